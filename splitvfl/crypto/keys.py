"""Paillier keys: what a public and a private key are, how a key crosses the wire, and how a private one is kept.

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
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import gmpy2
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from gmpy2 import mpz
from torch import Tensor

from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.errors import ArgumentError, CryptoError

LEAST_BITS = 2048
"""Shorter keys are refused but in tests: 1024 bits are worth about 80, which is for comparisons with papers."""

# A number that a partner calls its key is looked at this far: 16384 bits are beyond all use, and cost seconds.
_MOST_BITS = 16384
_SMALL_PRIMES = gmpy2.primorial(1 << 12)
_FORMAT = "splitvfl paillier private key 1"
# As OWASP's password storage recommendations: 128 MiB for one guess.
_SCRYPT_COST, _SCRYPT_BLOCK = 1 << 17, 8


@dataclass(frozen=True)
class PublicKey:
    """A Paillier modulus ``n``; a ciphertext is a number modulo ``n²``.

    What it does not promise: that ``n`` has exactly two prime factors, none of which divides the other less one, or was
    drawn at random. That cannot be seen from ``n``. An owner who chooses it badly harms the secrecy of its own
    plaintexts; one who cheats, with many primes, say, may learn more from replies than the sums: no proof is asked for.

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

    def to_tensor(self) -> Tensor:
        """Return the key as it is sent: uint8 ``(plaintext_bytes,)``."""
        return integers_to_tensor([self.n], self.plaintext_bytes)[0]

    @classmethod
    def from_tensor(cls, tensor: Tensor, *, bits: int, insecure_for_tests: bool = False) -> PublicKey:
        """Return the key that a partner sent.

        Args:
            tensor: uint8 ``(ceil(bits / 8),)``.
            bits: The agreed bit length; another one is refused.
            insecure_for_tests: Take fewer than 2048 bits.

        Raises:
            CryptoError: If it is no key of that length.
        """
        (n,) = tensor_to_integers(tensor.unsqueeze(0), (bits + 7) // 8)
        if n.bit_length() != bits:
            raise CryptoError(f"expected a public key of {bits} bits, as agreed, got one of {n.bit_length()} bits")
        return cls(n, insecure_for_tests=insecure_for_tests)


class PrivateKey:
    """The primes of a Paillier key.

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

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a private key is not pickled: save() writes it, readable by its owner only")

    def save(self, path: Path | str, *, passphrase: str | None = None) -> None:
        """Write the key, readable by its owner only; all of it or nothing. A file that is there already is replaced.

        Args:
            path: The file.
            passphrase: Seals the key: AES-256-GCM under scrypt (N = 2¹⁷, r = 8). Without one, file permissions
                are all that protects it.

        Raises:
            CryptoError: If it cannot be written; the message shows nothing of the key.
        """
        content = json.dumps({"p": hex(self._p), "q": hex(self._q)})
        body = {"key": json.loads(content)} if passphrase is None else _sealed(content.encode(), passphrase)
        _write_privately(Path(path), json.dumps({"format": _FORMAT, "bits": self.public.bits, **body}).encode())

    @classmethod
    def load(cls, path: Path | str, *, passphrase: str | None = None, insecure_for_tests: bool = False) -> PrivateKey:
        """Return the key in a file.

        Args:
            path: What :meth:`save` wrote.
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
        except (KeyError, TypeError, ValueError):
            # Without the cause, which would show what was read.
            raise CryptoError(f"{path} holds no private key") from None
        return cls(p, q, insecure_for_tests=insecure_for_tests)


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
        return json.loads(AESGCM(_stretched(passphrase, salt)).decrypt(nonce, box, _FORMAT.encode()))
    except InvalidTag:
        raise CryptoError(f"{path}: the passphrase is another one, or the file was changed") from None
    except (KeyError, TypeError, ValueError):
        raise CryptoError(f"{path} holds no private key") from None


def _stretched(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=_SCRYPT_COST, r=_SCRYPT_BLOCK, p=1).derive(passphrase.encode())


def _write_privately(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise CryptoError(f"cannot write the private key to {path}: {error.strerror}") from error


def _read_privately(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise CryptoError(
                    f"others may read {path} (mode {mode:o}): chmod 600 it, and make a new key if somebody may have "
                    "done so"
                )
            found = json.loads(file.read())
    except OSError as error:
        raise CryptoError(f"cannot read the private key in {path}: {error.strerror}") from error
    except ValueError:
        raise CryptoError(f"{path} holds no private key") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise CryptoError(f"{path} holds no private key")
    return found
