"""Ciphertexts as they arrive and leave: checked, compared with those before, and added."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import islice

import gmpy2
from gmpy2 import mpz
from torch import Tensor

from splitvfl.crypto.integers import integers_to_tensor, plain_integers, tensor_to_integers
from splitvfl.crypto.keys import PublicKey
from splitvfl.crypto.obfuscators import Obfuscators
from splitvfl.errors import ArgumentError, CryptoError


def check_ciphertexts(tensor: Tensor, public: PublicKey, *, count: int | None = None) -> None:
    """Raise unless these, uint8 ``(count, ciphertext_bytes)``, can be ciphertexts under a key.

    What it does not promise: that they were made under this key, or by whom. Every number that passes decrypts to
    something.

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


class Seen:
    """Notices ciphertexts that have come before, and obfuscators that were used before.

    Modulo ``n`` a ciphertext is its obfuscator, whatever is in it, and these are all different. A repeated one was sent
    again in place of a new one, or it was obfuscated with an old one, or not at all: two ciphertexts with one
    obfuscator tell everybody the difference of their plaintexts. What it does not promise: to notice an old ciphertext
    that was obfuscated anew, which looks like any other.

    It remembers ``capacity`` of them, about 150 bytes each; the oldest are forgotten first.
    """

    def __init__(self, public: PublicKey, *, capacity: int = 1 << 16) -> None:
        if capacity < 1:
            raise ArgumentError(f"expected a capacity from 1, got {capacity}")
        self._public = public
        self._capacity = capacity
        self._steps: dict[bytes, int] = {}

    def check(self, ciphertexts: Tensor, *, step: int) -> None:
        """Remember ciphertexts, uint8 ``(count, ciphertext_bytes)``, unless one of them is known already.

        A step that is taken again, after a link broke, may bring the same.

        Raises:
            CryptoError: If one came in another step, or twice in this message; it says which. None of the message is
                remembered then.
        """
        found: dict[bytes, int] = {}
        for place, value in enumerate(tensor_to_integers(ciphertexts, self._public.ciphertext_bytes)):
            digest = self._digest(value)
            before = self._steps.get(digest, step)
            if digest in found or before != step:
                when = f"in step {before}" if before != step else "in this message"
                raise CryptoError(
                    f"expected new ciphertexts in step {step}, number {place}, or its obfuscator, came {when} already"
                )
            found[digest] = step
        self._steps |= found
        for oldest in list(islice(self._steps, max(len(self._steps) - self._capacity, 0))):
            del self._steps[oldest]

    def _digest(self, value: int) -> bytes:
        obfuscator = (value % self._public.n).to_bytes(self._public.plaintext_bytes, "big")
        return hashlib.blake2b(obfuscator, digest_size=16).digest()


def encrypted(
    values: Tensor | Iterable[int], public: PublicKey, obfuscators: Obfuscators, *, limit: int | None
) -> Tensor:
    """Return ``(1 + m·n) · f mod n²`` for each integer ``m``, with a fresh obfuscator ``f`` each.

    Values are int64 ``(count,)``, or integers, up to the limit in size; ``None``: anything below ``n/2``.

    Raises:
        CryptoError: If a value is larger; it says which.
    """
    plain = plain_integers(values)
    largest = (public.n - 1) // 2 if limit is None else limit
    for place, value in enumerate(plain):
        if abs(value) > largest:
            what = "n/2" if limit is None else "the agreed limit"
            raise CryptoError(
                f"expected values up to 2^{largest.bit_length()} in size ({what}), number {place} has "
                f"{value.bit_length()} bits"
            )
    n, square = public.modulus, public.square
    fresh = obfuscators.take(len(plain))
    made = [(1 + value * n) * factor % square for value, factor in zip(plain, fresh, strict=True)]
    return write_ciphertexts(made, public)


def add_ciphertexts(public: PublicKey, addends: Sequence[Tensor]) -> Tensor:
    """Return the encrypted elementwise sums of encrypted vectors.

    The result is fit for the next computation, not for sending: it is the product of its factors, which whoever has
    them recognises. Its values are as large as the sums: a layout's ``value_limit`` has to hold for these. Vectors are
    uint8 ``(count, ciphertext_bytes)``.

    Raises:
        CryptoError: If one holds no ciphertexts under such a key, or their counts differ.
    """
    if not addends:
        raise CryptoError("expected at least one vector of ciphertexts, got none")
    columns = [read_ciphertexts(addend, public, count=addends[0].shape[0]) for addend in addends]
    return write_ciphertexts([_product(row, public.square) for row in zip(*columns, strict=True)], public)


def _product(values: Sequence[mpz], modulus: mpz) -> mpz:
    return reduce(lambda product, value: product * value % modulus, values, mpz(1))
