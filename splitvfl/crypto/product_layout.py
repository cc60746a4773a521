"""Agreed limits on the size of encrypted numbers, checked before encrypting and never taken from a batch.

A sum of ``rows`` products is below ``rows · weight_limit · value_limit`` in size; in fixed point that takes
``value_bits + weight_bits`` bits more. One slot that overflows would corrupt all slots above it without a sign of it,
and Paillier itself wraps around silently; so every party computes the width of a slot from the agreed numbers alone.

Above the ``W`` bits of packed sums :data:`ROOM` bits of the key stay free. A mask is uniform on the ``n − 2^(W+1)``
numbers of ``[2^W, n − 2^W)``, so that honest sums, below ``2^(W-1)`` in size, never wrap around ``n`` with it, and what
the owner of the key opens, ``s + mask mod n``, lies within ``2^(W+1)/n`` of uniform on ``[0, n)`` in statistical
distance, whatever number ``s`` modulo ``n`` is: also if the owner has encrypted what it likes. As ``n ≥
2^(key_bits-1)`` and ``W ≤ key_bits - 43``, that is ``2^-41`` at most for each ciphertext of a reply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from torch import Tensor

from splitvfl.crypto.fixed_point import decode, encode
from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.crypto.packing import slot_capacity
from splitvfl.errors import ArgumentError

ROOM = 43
"""Bits of a key that stay above those of packed sums: masks hide up to a statistical distance of ``2^(2 - ROOM)``."""


@dataclass(frozen=True, kw_only=True)
class ProductLayout:
    """The agreed sizes of one encrypted matrix-vector product.

    Attributes:
        key_bits: Bit length of the key that the values are under.
        rows: Most products that are added up in one sum: the batch size, times the number of terms.
        outputs: How many sums there are: the columns of the party that asks, in ``[1, 2^20]``. The owner of the key
            decrypts that many and no more.
        value_limit: Largest size of an encrypted value, > 0.
        weight_limit: Largest size of a plain weight, > 0.
        value_bits: Fraction bits of values.
        weight_bits: Fraction bits of weights.
        plain_limit: Largest size of the real number that is added to a sum in the clear before it is masked, ≥ 0.
        packed: Whether several sums share a ciphertext.

    Raises:
        ArgumentError: If a number is out of its range, or one sum does not fit the key; it shows the numbers.
    """

    key_bits: int
    rows: int
    outputs: int
    value_limit: float
    weight_limit: float
    value_bits: int = 32
    weight_bits: int = 26
    plain_limit: float = 0.0
    packed: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, least, most in (("key_bits", 64, 16384), ("rows", 1, 1 << 40), ("outputs", 1, 1 << 20)):
            _check_range(name, getattr(self, name), least, most)
        for name in ("value_bits", "weight_bits"):
            _check_range(name, getattr(self, name), 0, 60)
        for limit in ("value_limit", "weight_limit"):
            if not (math.isfinite(getattr(self, limit)) and getattr(self, limit) > 0):
                raise ArgumentError(f"expected {limit} above 0 and finite, got {getattr(self, limit)}")
        if not (math.isfinite(self.plain_limit) and self.plain_limit >= 0):
            raise ArgumentError(f"expected plain_limit from 0 and finite, got {self.plain_limit}")
        if self._capacity < 1:
            raise ArgumentError(
                f"a sum of {self.rows} products up to {self.weight_limit:g} x {self.value_limit:g} with "
                f"{self.sum_bits} fraction bits takes {self.slot_bits} bits, and a key of {self.key_bits} bits holds "
                f"{max(self._room, 0)} beside its mask: take a longer key, fewer bits, or clip harder"
            )

    @property
    def sum_bits(self) -> int:
        """Fraction bits of a sum."""
        return self.value_bits + self.weight_bits

    @cached_property
    def value_size(self) -> int:
        """Largest size of an encoded value."""
        return _encoded_limit(self.value_limit, self.value_bits)

    @cached_property
    def weight_size(self) -> int:
        """Largest size of an encoded weight."""
        return _encoded_limit(self.weight_limit, self.weight_bits)

    @cached_property
    def plain_size(self) -> int:
        """Largest size of an encoded plain addend."""
        return _encoded_limit(self.plain_limit, self.sum_bits)

    @cached_property
    def largest_sum(self) -> int:
        """Largest size of an encoded sum, ``rows · weight_size · value_size + plain_size``: every party knows it."""
        largest: int = self.rows * self.weight_size * self.value_size + self.plain_size
        return largest

    @cached_property
    def slot_bits(self) -> int:
        """Bits of one sum with its sign: ``⌈log₂(largest size)⌉ + 2``."""
        return (self.largest_sum - 1).bit_length() + 2

    @property
    def error(self) -> float:
        """Largest error of a sum: ``rows · (weight_limit · 2^-(fv+1) + value_limit · 2^-(fw+1) + 2^-(fv+fw+2))``.

        ``fv`` and ``fw`` are ``value_bits`` and ``weight_bits``; a plain addend errs by ``2^-(fv+fw+1)`` more, if it
        was rounded.
        """
        value, weight = 2.0 ** -(self.value_bits + 1), 2.0 ** -(self.weight_bits + 1)
        return self.rows * (self.weight_limit * value + self.value_limit * weight + value * weight)

    @property
    def slots(self) -> int:
        """Sums in one full ciphertext."""
        return min(self._capacity, self.outputs) if self.packed else 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Sums in each ciphertext of the reply, as even as possible: its length is the number of ciphertexts."""
        replies = -(-self.outputs // self.slots)
        return tuple((self.outputs + place) // replies for place in reversed(range(replies)))

    @property
    def replies(self) -> int:
        """Ciphertexts of the reply; the owner of the key decrypts no more."""
        return len(self.counts)

    @property
    def opened_bits(self) -> tuple[int, ...]:
        """Low bits of each masked plaintext that the owner of the key returns, ``W``: those of its sums, and no more.

        That caps what a party learns which packs more into a ciphertext than was agreed.
        """
        return tuple(count * self.slot_bits for count in self.counts)

    @property
    def single_bits(self) -> int:
        """Bits of one encrypted value with its sign, and one to spare."""
        return self.value_size.bit_length() + 2

    @property
    def single_values(self) -> int:
        """How many encrypted values fit in full into what comes back: what a party reads that packs no sums."""
        return sum(bits // self.single_bits for bits in self.opened_bits)

    @property
    def opened_bytes(self) -> int:
        """Bytes that each of them takes on the way: room for the longest."""
        return (max(self.opened_bits) + 7) // 8

    @property
    def opened_shape(self) -> tuple[int, int]:
        """Shape of all of them, uint8."""
        return self.replies, self.opened_bytes

    def add_to_opened(self, opened: Tensor, addends: Sequence[int]) -> Tensor:
        """Return masked plaintexts with a number added to each of their sums, which nobody sees: noise, say.

        Args:
            opened: What the owner of the key has opened, uint8 ``opened_shape``.
            addends: For each sum, ``(outputs,)``, in units of its last bit, up to ``plain_size`` in size.

        Raises:
            ArgumentError: If these are not that many, or one is larger: its slot might overflow.
        """
        if len(addends) != self.outputs or max(map(abs, addends)) > self.plain_size:
            raise ArgumentError(
                f"expected {self.outputs} addends up to {self.plain_size} in size, got {len(addends)}, up to "
                f"{max(map(abs, addends), default=0)}"
            )
        rest = iter(addends)
        values = tensor_to_integers(opened, self.opened_bytes)
        total = [
            value + sum(next(rest) << (place * self.slot_bits) for place in range(count))
            for value, count in zip(values, self.counts, strict=True)
        ]
        # Masks are taken off modulo the same power of two.
        low = [value & ((1 << bits) - 1) for value, bits in zip(total, self.opened_bits, strict=True)]
        return integers_to_tensor(low, self.opened_bytes)

    def encode_values(self, values: Tensor) -> Tensor:
        """Return real values as integers for encryption; see :func:`~splitvfl.crypto.fixed_point.encode`."""
        return encode(values, bits=self.value_bits, limit=self.value_limit)

    def encode_weights(self, weights: Tensor) -> Tensor:
        """Return real weights as integers; see :func:`~splitvfl.crypto.fixed_point.encode`."""
        return encode(weights, bits=self.weight_bits, limit=self.weight_limit)

    def decode_sums(self, sums: Sequence[int]) -> Tensor:
        """Return integer sums as float64 ``(outputs,)``."""
        return decode(sums, bits=self.sum_bits)

    @property
    def _room(self) -> int:
        return self.key_bits - ROOM

    @property
    def _capacity(self) -> int:
        return slot_capacity(max(self._room, 0) + 1, self.slot_bits)


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ArgumentError(f"expected {name} from {least} to {most}, got {value}")


def _encoded_limit(limit: float, bits: int) -> int:
    # Exact: a float is a fraction, and a value of the limit's own size may be rounded up.
    return math.ceil(Fraction(limit) * (1 << bits))
