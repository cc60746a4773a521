"""Paillier keys, public and private: how a public key is sent, and how a private key is stored.

A key crosses with a proof that its modulus is one (:mod:`splitvfl.crypto.key_proof`), and is read only if that holds.
The proof is made once, when the key is first sent or saved, and kept with it.

A private key is written readable by its owner only, with a passphrase sealed by AES-256-GCM under a key from scrypt.
It is in no text: what ``repr`` and messages of errors show is its number of bits. It cannot be pickled or sent.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import stat
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

import gmpy2
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from gmpy2 import mpz
from torch import Tensor

from splitvfl.crypto import key_proof
from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.errors import ArgumentError, CryptoError
from splitvfl.system.untrusted_files import UntrustedFile, decoded, write_whole

LEAST_BITS = 2048
"""Shorter keys are refused but in tests: 1024 bits are worth about 80, which is for comparisons with papers."""

# A number that a partner calls its key is looked at this far: 16384 bits are beyond all use, and cost seconds.
_MOST_BITS = 16384
_SMALL_PRIMES = gmpy2.primorial(1 << 12)
_MOST_BYTES = 1 << 20
_FORMAT = "splitvfl paillier private key 2"
# Without a proof: it is made when it is needed.
_FORMAT_BEFORE = "splitvfl paillier private key 1"
# Keys, with their proofs, that a process has verified: of 3072 bits, 54 KB each.
_KEYS_REMEMBERED = 1 << 7
# As OWASP's password storage recommendations: 128 MiB for one guess.
_SCRYPT_COST, _SCRYPT_BLOCK = 1 << 17, 8


@dataclass(frozen=True)
class PublicKey:
    """A Paillier modulus ``n``; a ciphertext is a number modulo ``n²``.

    One that came from another party (:meth:`from_tensor`) is the product of exactly two different primes and has no
    factor in common with ``φ(n)``, as its proof has shown. One that is made of a bare number is checked only as far as
    can be seen from it: it may have many primes, or primes that divide others less one, and its owner then learns more
    from replies than the sums. What no proof shows: that the primes were drawn at random, or are of equal length. An
    owner who chooses them badly harms the secrecy of all that is encrypted under it.

    Attributes:
        n: The modulus: odd, no prime, no power, without factors below 4096.
        insecure_for_tests: Take fewer than 2048 bits.

    Raises:
        CryptoError: If ``n`` cannot be a key, or is too short.
    """

    n: int
    insecure_for_tests: bool = field(default=False, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check what can be seen of a modulus."""
        object.__setattr__(self, "n", int(self.n))
        least = 64 if self.insecure_for_tests else LEAST_BITS
        if self.n <= 0 or not least <= self.bits <= _MOST_BITS:
            raise CryptoError(f"expected a key of {least} to {_MOST_BITS} bits, got {self.bits} bits")
        if self.n % 2 == 0:
            raise CryptoError(f"expected an odd modulus, got an even one of {self.bits} bits: it is no Paillier key")
        if gmpy2.gcd(self.n, _SMALL_PRIMES) != 1 or gmpy2.is_power(self.n) or gmpy2.is_prime(self.n):
            raise CryptoError(
                f"expected a product of two large primes, got a number of {self.bits} bits that is a prime, a power, "
                "or has a small factor: it is no Paillier key"
            )

    def __repr__(self) -> str:
        return f"PublicKey({self.bits} bits)"

    @property
    def bits(self) -> int:
        """Bit length of ``n``."""
        return self.n.bit_length()

    @property
    def plaintext_bytes(self) -> int:
        """Bytes of a number modulo ``n``."""
        return (self.bits + 7) // 8

    @property
    def ciphertext_bytes(self) -> int:
        """Bytes of a number modulo ``n²``: what each ciphertext takes, whatever it holds."""
        return (2 * self.bits + 7) // 8

    @cached_property
    def modulus(self) -> mpz:
        """``n``, for arithmetic."""
        return mpz(self.n)

    @cached_property
    def square(self) -> mpz:
        """``n²``, for arithmetic."""
        return self.modulus**2

    @classmethod
    def from_tensor(cls, tensor: Tensor, *, bits: int, insecure_for_tests: bool = False) -> PublicKey:
        """Return the key that a partner sent, once its proof is verified; the same one again costs nothing.

        Args:
            tensor: uint8 :func:`sent_shape` of ``bits``, what :meth:`PrivateKey.to_send` returns.
            bits: The agreed bit length; another one is refused.
            insecure_for_tests: Take fewer than 2048 bits.

        Raises:
            CryptoError: If it is no key of that length, or its proof does not hold.
        """
        rows, width = sent_shape(bits)
        if tuple(tensor.shape) != (rows, width):
            raise CryptoError(f"expected a key with its proof, {rows} x {width} bytes, got {tuple(tensor.shape)}")
        n, *roots = tensor_to_integers(tensor, width)
        if n.bit_length() != bits:
            raise CryptoError(f"expected a public key of {bits} bits, as agreed, got one of {n.bit_length()} bits")
        key = cls(n, insecure_for_tests=insecure_for_tests)
        _verify_once(n, tuple(roots))
        return key


def sent_shape(bits: int) -> tuple[int, int]:
    """Return the rows and bytes of a key of so many bits as it is sent: ``n``, and the roots of its proof."""
    return 1 + key_proof.ROOTS, (bits + 7) // 8


@lru_cache(maxsize=_KEYS_REMEMBERED)
def _verify_once(n: int, roots: tuple[int, ...]) -> None:
    # Errors are not remembered: what is wrong is wrong each time.
    key_proof.verify(mpz(n), roots)


class PrivateKey:
    """The primes of a Paillier key.

    Only one of primes that are 3 modulo 4, as :func:`~splitvfl.crypto.key_generation.generate_keys` makes them, can be
    proven, and so be sent to a partner; any other decrypts what is under it.

    Args:
        p: A prime.
        q: Another of the same length.
        insecure_for_tests: Take fewer than 2048 bits.

    Raises:
        CryptoError: If they are no such primes; the message shows neither.
    """

    def __init__(self, p: int, q: int, *, insecure_for_tests: bool = False) -> None:
        self._p, self._q = mpz(p), mpz(q)
        usable = self._p != self._q and self._p.bit_length() == self._q.bit_length()
        if not usable or not (gmpy2.is_prime(self._p) and gmpy2.is_prime(self._q)):
            raise CryptoError("expected two different primes of the same length: this is no private key")
        self.public = PublicKey(int(self._p * self._q), insecure_for_tests=insecure_for_tests)
        self._proof: list[mpz] | None = None

    @property
    def p(self) -> mpz:
        """One prime. A secret."""
        return self._p

    @property
    def q(self) -> mpz:
        """The other prime. A secret."""
        return self._q

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.bits} bits)"

    def to_send(self) -> Tensor:
        """Return the public key with its proof, as it is sent: uint8 :func:`sent_shape`. Nothing in it is a secret.

        Raises:
            CryptoError: If it cannot be proven.
        """
        if self._proof is None:
            self._proof = key_proof.prove(self._p, self._q)
        return integers_to_tensor([self.public.n, *self._proof], self.public.plaintext_bytes)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a private key is not pickled: save() writes it, readable by its owner only")

    def save(self, path: Path | str, *, passphrase: str | None = None) -> None:
        """Write the key, readable by its owner only; all of it or nothing. A file that is there already is replaced.

        With it goes its proof, which is made now if it was not; a key that cannot be proven is written without.

        Args:
            path: The file.
            passphrase: Seals the key: AES-256-GCM under scrypt (N = 2¹⁷, r = 8). Without one, file permissions
                are all that protects it.

        Raises:
            CryptoError: If it cannot be written; the message shows nothing of the key.
        """
        can_be_proven = self._p % 4 == self._q % 4 == 3
        proof = base64.b64encode(self.to_send().numpy().tobytes()).decode() if can_be_proven else None
        content = {"p": hex(self._p), "q": hex(self._q), "proof": proof}
        body = {"key": content} if passphrase is None else _sealed(json.dumps(content).encode(), passphrase)
        _write_privately(Path(path), json.dumps({"format": _FORMAT, "bits": self.public.bits, **body}).encode())

    @classmethod
    def load(cls, path: Path | str, *, passphrase: str | None = None, insecure_for_tests: bool = False) -> PrivateKey:
        """Return the key in a file, its proof verified.

        Args:
            path: What :meth:`save` wrote, in this version or the one before, which wrote no proof.
            passphrase: The one it was sealed with; ``None`` if with none.
            insecure_for_tests: Take fewer than 2048 bits.

        Raises:
            CryptoError: If the file cannot be read, others may read it, it holds no key, or the passphrase is not its
                own.
        """
        path = Path(path)
        found = _read_privately(path)
        content = found.get("key")
        if content is None:
            content = _opened(found, passphrase, path)
        elif passphrase is not None:
            raise CryptoError(
                f"{path} is not sealed, and a passphrase was given: leave it out, or save the key with one"
            )
        try:
            p, q = int(content["p"], 16), int(content["q"], 16)
            proof = content["proof"] if found["format"] == _FORMAT else None
            sent = None if proof is None else base64.b64decode(proof, validate=True)
        except (KeyError, TypeError, ValueError):
            # Without the cause, which would show what was read.
            raise CryptoError(f"{path} holds no private key") from None
        key = cls(p, q, insecure_for_tests=insecure_for_tests)
        if sent is not None:
            key._take_proof(sent, path)
        return key

    def _take_proof(self, sent: bytes, path: Path) -> None:
        width = self.public.plaintext_bytes
        numbers = [mpz(int.from_bytes(sent[at : at + width], "big")) for at in range(0, len(sent), width)]
        roots = numbers[1:]
        try:
            if numbers[:1] != [self.public.n]:
                raise CryptoError("it is that of another key")
            key_proof.verify(self.public.modulus, roots)
        except CryptoError as error:
            raise CryptoError(f"{path}: the proof in it does not belong to its key: {error}") from None
        self._proof = roots


def _sealed(content: bytes, passphrase: str) -> dict[str, str]:
    if not passphrase:
        raise ArgumentError("expected a passphrase of at least one character, got an empty one; None seals nothing")
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    box = AESGCM(_stretched(passphrase, salt)).encrypt(nonce, content, _FORMAT.encode())
    return {name: base64.b64encode(part).decode() for name, part in (("salt", salt), ("nonce", nonce), ("box", box))}


def _opened(found: dict[str, Any], passphrase: str | None, path: Path) -> Any:
    if passphrase is None:
        raise CryptoError(f"{path} is sealed: a passphrase is needed")
    try:
        salt, nonce, box = (base64.b64decode(found[name], validate=True) for name in ("salt", "nonce", "box"))
        return decoded(AESGCM(_stretched(passphrase, salt)).decrypt(nonce, box, found["format"].encode()))
    except InvalidTag:
        raise CryptoError(f"{path}: the passphrase is another one, or the file was changed") from None
    except (KeyError, TypeError, ValueError):
        raise CryptoError(f"{path} holds no private key") from None


def _stretched(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=_SCRYPT_COST, r=_SCRYPT_BLOCK, p=1).derive(passphrase.encode())


def _write_privately(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content, alone=False)
    except OSError as error:
        raise CryptoError(f"cannot write the private key to {path}: {error.strerror}") from error


def _read_privately(path: Path) -> dict[str, Any]:
    with UntrustedFile(path=path, linked=True, remedy="name the file of the key", error=CryptoError).opened() as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise CryptoError(
                f"others may read {path} (mode {mode:o}): chmod 600 it, and make a new key if somebody may have done so"
            )
        content = file.read(_MOST_BYTES)
    try:
        found = decoded(content)
    except (ValueError, RecursionError):
        # Without the cause, which would show what was read.
        raise CryptoError(f"{path} holds no private key") from None
    if not isinstance(found, dict) or found.get("format") not in (_FORMAT, _FORMAT_BEFORE):
        raise CryptoError(f"{path} holds no private key")
    return found
