"""Keys and numbers of ``phe`` (python-paillier) from ours, and the other way round.

``phe`` is the reference that everything here is interoperable with: its users decrypt what
:class:`~splitvfl.crypto.owner.Owner` encrypts, and what they encrypt is taken. It is imported in this module only, when
one of these functions is called; nothing else needs it. Of the keys that ``phe`` makes one in four has primes that are
both 3 modulo 4: the others decrypt and encrypt here, but cannot be proven, and so not be sent to a partner.

Source: Paillier, EUROCRYPT 1999, scheme 1 with the generator ``n + 1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.crypto.key_generation import generate_keys
from splitvfl.crypto.keys import PrivateKey, PublicKey
from splitvfl.errors import ArgumentError, CryptoError

if TYPE_CHECKING:
    from phe import paillier as phe

# Made elsewhere, and found here too.
__all__ = [
    "ciphertexts_from_phe",
    "ciphertexts_to_phe",
    "from_phe",
    "generate_keys",
    "private_from_phe",
    "private_to_phe",
    "to_phe",
]


def to_phe(key: PublicKey) -> phe.PaillierPublicKey:
    """Return a public key as one of ``phe``.

    Raises:
        ImportError: If phe is not installed.
    """
    return _phe().PaillierPublicKey(key.n)


def private_to_phe(key: PrivateKey) -> phe.PaillierPrivateKey:
    """Return a private key as one of ``phe``. It is then as safe as ``phe`` keeps it.

    Raises:
        ImportError: If phe is not installed.
    """
    return _phe().PaillierPrivateKey(to_phe(key.public), int(key.p), int(key.q))


def from_phe(key: phe.PaillierPublicKey, *, insecure_for_tests: bool = False) -> PublicKey:
    """Return a public key of ``phe`` as one of ours."""
    return PublicKey(int(key.n), insecure_for_tests=insecure_for_tests)


def private_from_phe(key: phe.PaillierPrivateKey, *, insecure_for_tests: bool = False) -> PrivateKey:
    """Return a private key of ``phe`` as one of ours."""
    return PrivateKey(int(key.p), int(key.q), insecure_for_tests=insecure_for_tests)


def ciphertexts_to_phe(key: PublicKey, ciphertexts: Tensor, *, bits: int) -> list[phe.EncryptedNumber]:
    """Return ciphertexts of fixed-point numbers as ``phe`` holds encrypted floats.

    ``phe`` writes ``mantissa · 16^exponent`` and sends the exponent in the clear; here it is the same for every number.
    It decrypts plaintexts up to ``n/3`` in size, and raises ``OverflowError`` for masked ones beyond.

    Args:
        key: The key that they are under.
        ciphertexts: uint8 ``(count, ciphertext_bytes)``.
        bits: Their fraction bits, a multiple of 4, as ``phe`` counts in digits of base 16.

    Raises:
        ArgumentError: If ``bits`` is no multiple of 4.
        CryptoError: If they are no ciphertexts under a key of this size.
        ImportError: If phe is not installed.
    """
    if bits < 0 or bits % 4:
        raise ArgumentError(f"expected fraction bits that are a multiple of 4 (phe counts in base 16), got {bits}")
    public = to_phe(key)
    values = tensor_to_integers(ciphertexts, key.ciphertext_bytes)
    return [_phe().EncryptedNumber(public, value, -bits // 4) for value in values]


def ciphertexts_from_phe(key: PublicKey, numbers: list[phe.EncryptedNumber], *, bits: int) -> Tensor:
    """Return encrypted numbers of ``phe`` that have one exponent as ciphertexts.

    Those that ``phe`` has not obfuscated yet, as the results of its arithmetic, are obfuscated: it does so only when it
    is asked for the ciphertext.

    Args:
        key: The key that they must be under.
        numbers: Encrypted with ``precision=2**-bits``, or brought to the exponent ``-bits / 4``.
        bits: Fraction bits, a multiple of 4.

    Raises:
        CryptoError: If a number has another exponent or key.
    """
    for place, number in enumerate(numbers):
        if int(number.public_key.n) != key.n:
            raise CryptoError(f"expected numbers under the key of {key.bits} bits, number {place} is under another key")
        if -4 * number.exponent != bits:
            raise CryptoError(
                f"expected {bits} fraction bits, number {place} has {-4 * number.exponent}: "
                "encrypt all with one precision"
            )
    if not numbers:
        return torch.zeros((0, key.ciphertext_bytes), dtype=torch.uint8)
    return integers_to_tensor([number.ciphertext() for number in numbers], key.ciphertext_bytes)


def _phe() -> phe:
    try:
        from phe import paillier as phe
    except ImportError as error:
        raise ImportError(
            "phe (python-paillier) is not installed, and conversion to its keys and numbers needs it: pip install phe. "
            "Training, prediction and the encrypted protocols work without it",
            name="phe",
        ) from error
    return phe
