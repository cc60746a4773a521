"""Ciphertexts as they arrive and leave: checked, added, and multiplied by fresh obfuscators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import gmpy2
from gmpy2 import mpz
from torch import Tensor

from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.crypto.keys import PublicKey
from splitvfl.errors import CryptoError


def check_ciphertexts(tensor: Tensor, public: PublicKey, *, count: int | None = None) -> None:
    """Raise unless these can be ciphertexts under a key.

    What it does not promise: that they were made under this key, or by whom. Every number that passes decrypts to
    something.

    Args:
        tensor: uint8 ``(count, ciphertext_bytes)``.
        public: The key.
        count: How many were awaited.

    Raises:
        CryptoError: If their size or number is another one, or one is not in ``[1, n²)`` or has a factor in common
            with ``n``.
    """
    read_ciphertexts(tensor, public, count=count)


def read_ciphertexts(tensor: Tensor, public: PublicKey, *, count: int | None = None) -> list[mpz]:
    """Return checked ciphertexts as numbers; see :func:`check_ciphertexts`."""
    if count is not None and tensor.shape[:1] != (count,):
        raise CryptoError(f"expected {count} ciphertexts, got {tensor.shape[0] if tensor.dim() else 'none'}")
    values = [mpz(value) for value in tensor_to_integers(tensor, public.ciphertext_bytes)]
    for place, value in enumerate(values):
        if not 0 < value < public.square:
            raise CryptoError(
                f"expected ciphertexts in [1, n²) of a key of {public.bits} bits, number {place} is "
                f"{'0' if value == 0 else 'n² or more: it is under another key'}"
            )
    if values and gmpy2.gcd(_product(values, public.modulus), public.modulus) != 1:
        place = next(place for place, value in enumerate(values) if gmpy2.gcd(value, public.modulus) != 1)
        raise CryptoError(f"expected ciphertexts coprime to n, number {place} of {len(values)} is not")
    return values


def write_ciphertexts(values: Sequence[int | mpz], public: PublicKey) -> Tensor:
    """Return ciphertexts as uint8 ``(len(values), ciphertext_bytes)``."""
    return integers_to_tensor(values, public.ciphertext_bytes)


def add_ciphertexts(public: PublicKey, addends: Sequence[Tensor]) -> Tensor:
    """Return the encrypted elementwise sums of encrypted vectors.

    The result is fit for the next computation, not for sending: it is the product of its factors, which whoever has
    them recognises.

    Args:
        public: The key of all of them.
        addends: At least one, each uint8 ``(count, ciphertext_bytes)``.

    Raises:
        CryptoError: If one holds no ciphertexts under such a key, or their counts differ.
    """
    if not addends:
        raise CryptoError("expected at least one vector of ciphertexts, got none")
    columns = [read_ciphertexts(addend, public, count=addends[0].shape[0]) for addend in addends]
    return write_ciphertexts([_product(row, public.square) for row in zip(*columns, strict=True)], public)


def _product(values: Sequence[mpz], modulus: mpz) -> mpz:
    return reduce(lambda product, value: product * value % modulus, values, mpz(1))
