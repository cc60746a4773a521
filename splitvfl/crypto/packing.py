"""Several signed integers in one: slots of a fixed width inside a number modulo ``n``.

The packed number is ``Σⱼ vⱼ · 2^(j·slot_bits) mod n``. Slots are signed, so a negative one borrows from the slot above:
unpacking centres the number first, then takes slot after slot from the low end and *subtracts* each before it shifts.
Plain cutting of bits would be wrong above every negative slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from splitvfl.errors import ArgumentError


def slot_capacity(modulus_bits: int, slot_bits: int) -> int:
    """Return how many signed slots fit, ``⌊(modulus_bits - 1) / slot_bits⌋``; 0 if none does.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, section 5.2.

    Args:
        modulus_bits: Bit length of the modulus.
        slot_bits: Width of a slot in bits, ≥ 2.

    Raises:
        ArgumentError: If a width is too small.

    >>> slot_capacity(2048, 71)
    28
    """
    if modulus_bits < 1:
        raise ArgumentError(f"expected modulus_bits from 1, got {modulus_bits}")
    if slot_bits < 2:
        raise ArgumentError(f"expected slot_bits from 2 (a signed slot needs its sign), got {slot_bits}")
    return (modulus_bits - 1) // slot_bits


def pack(values: Sequence[int], *, slot_bits: int, modulus: int) -> int:
    """Return signed integers as one number in ``[0, modulus)``, the first in the lowest slot.

    Args:
        values: Each in ``(-2^(slot_bits-1), 2^(slot_bits-1))``; at most :func:`slot_capacity` of them.
        slot_bits: Width of a slot in bits, ≥ 2.
        modulus: What the number is taken modulo, > 1.

    Raises:
        ArgumentError: If a value exceeds its slot, or there are more values than slots.

    >>> unpack(pack([3, -5, 0], slot_bits=8, modulus=10**9 + 7), slot_bits=8, count=3, modulus=10**9 + 7)
    [3, -5, 0]
    """
    _check_count(len(values), slot_bits, modulus)
    limit = 1 << (slot_bits - 1)
    packed = 0
    for place, value in enumerate(values):
        if not -limit < value < limit:
            raise ArgumentError(
                f"expected values below 2^{slot_bits - 1} in size, got one of {value.bit_length()} bits "
                f"at place {place}"
            )
        packed += value << (place * slot_bits)
    return packed % modulus


def unpack(packed: int, *, slot_bits: int, count: int, modulus: int) -> list[int]:
    """Return the ``count`` signed integers that :func:`pack` put into one number.

    Args:
        packed: A number modulo ``modulus``, or centred already.
        slot_bits: Width of a slot in bits, ≥ 2.
        count: How many values there are.
        modulus: What the number is taken modulo.

    Raises:
        ArgumentError: If so many slots do not fit, or something is left above the highest one: a slot has overflowed,
            or the number was packed otherwise.
    """
    _check_count(count, slot_bits, modulus)
    return split_slots(centred(packed, modulus), slot_bits=slot_bits, count=count)


def split_slots(signed: int, *, slot_bits: int, count: int) -> list[int]:
    """Return the slots of a signed number that is not taken modulo anything.

    Raises:
        ArgumentError: If something is left above the highest slot.
    """
    limit, mask = 1 << (slot_bits - 1), (1 << slot_bits) - 1
    values, rest = [], signed
    for _ in range(count):
        value = rest & mask
        value -= (value >= limit) << slot_bits
        values.append(value)
        rest = (rest - value) >> slot_bits
    if rest:
        raise ArgumentError(
            f"expected {count} slots of {slot_bits} bits, got a number that exceeds them by {rest.bit_length()} bits: "
            "a slot has overflowed, or it was packed otherwise"
        )
    return values


def centred(value: int, modulus: int) -> int:
    """Return the representative of ``value`` modulo ``modulus`` in ``(-modulus/2, modulus/2]``."""
    residue = int(value % modulus)
    return residue - int(modulus) if 2 * residue > modulus else residue


def _check_count(count: int, slot_bits: int, modulus: int) -> None:
    if modulus < 2:
        raise ArgumentError(f"expected a modulus above 1, got {modulus}")
    capacity = slot_capacity(int(modulus).bit_length(), slot_bits)
    if not 0 <= count <= capacity:
        raise ArgumentError(
            f"expected 0 to {capacity} values in slots of {slot_bits} bits modulo a number of "
            f"{int(modulus).bit_length()} bits, got {count}"
        )
