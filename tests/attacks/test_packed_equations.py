from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.attacks.packed_equations import (
    packed_selections,
    packed_weights,
    slot_bits_needed,
    slots_available,
    solve_equations,
    unpack_equations,
)
from splitvfl.errors import ArgumentError

PRIME = 2**521 - 1  # any modulus will do; this one has 521 bits


def dot(left: list[int], right: list[int]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


def decrypted(weights: list[int], values: list[int], modulus: int) -> int:
    """What the other party decrypts: the sum modulo N, after a mask was added and taken off."""
    mask = random.Random(1).randrange(modulus)
    masked = (sum(w * v for w, v in zip(weights, values, strict=True)) + mask) % modulus
    return (masked - mask) % modulus


@given(
    rows=st.integers(1, 5).flatmap(
        lambda s: st.lists(st.lists(st.integers(-(2**20), 2**20), min_size=s, max_size=s), min_size=1, max_size=8)
    ),
    data=st.data(),
)
def test_every_slot_holds_its_rows_sum_whatever_the_signs(rows: list[list[int]], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(-(2**30), 2**30), min_size=len(rows[0]), max_size=len(rows[0])))

    weights = packed_weights(rows, slot_bits=54, value_bound=2**30, modulus=PRIME)
    found = unpack_equations([decrypted(weights, values, PRIME)], slot_bits=54, count=len(rows), modulus=PRIME)

    assert found == [dot(row, values) for row in rows]


def test_a_batch_of_u_times_d_records_is_read_from_d_ciphertexts() -> None:
    draw = random.Random(0)
    bits = slot_bits_needed(52, value_bits=16, weight_bits=12, largest_value=3.0, largest_weight=2.0)
    slots, ciphertexts = slots_available(PRIME.bit_length(), bits), 4
    records = slots * ciphertexts
    assert records == 52
    values = [draw.randint(-3 * 2**16, 3 * 2**16) for _ in range(records)]
    rows = [[draw.randint(-2 * 2**12, 2 * 2**12) for _ in range(records)] for _ in range(records)]

    plaintexts = []
    for j in range(ciphertexts):
        own = rows[j * slots : (j + 1) * slots]
        weights = packed_weights(own, slot_bits=bits, value_bound=3 * 2**16, modulus=PRIME)
        plaintexts.append(decrypted(weights, values, PRIME))
    sums = unpack_equations(plaintexts, slot_bits=bits, count=slots, modulus=PRIME)

    assert sums == [dot(row, values) for row in rows]
    assert solve_equations(rows, sums) == values
    with pytest.raises(ArgumentError, match="51 equations of rank 51 do not determine 52 values"):
        solve_equations(rows[:-1], sums[:-1])


@pytest.mark.parametrize(("records", "ciphertexts"), [(1, 1), (7, 1), (40, 4), (41, 4), (12, 3)])
def test_selections_read_the_values_themselves(records: int, ciphertexts: int) -> None:
    draw = random.Random(records)
    values = [draw.randint(-1000, 1000) for _ in range(records)]
    bits = 50
    slots = slots_available(PRIME.bit_length(), bits)

    weights = packed_selections(records, ciphertexts=ciphertexts, slot_bits=bits, value_bound=1000, modulus=PRIME)
    plaintexts = [decrypted(own, values, PRIME) for own in weights]
    found = unpack_equations(plaintexts, slot_bits=bits, count=slots, modulus=PRIME)

    reached = values[: slots * ciphertexts]
    assert found == reached + [0] * (slots * ciphertexts - len(reached))


@given(
    records=st.integers(1, 10_000),
    value_bits=st.integers(0, 40),
    weight_bits=st.integers(0, 40),
    largest_value=st.floats(1e-3, 1e3),
    largest_weight=st.floats(1e-3, 1e3),
)
def test_a_slot_holds_the_largest_sum_and_has_no_bit_to_spare_twice(
    records: int, value_bits: int, weight_bits: int, largest_value: float, largest_weight: float
) -> None:
    bits = slot_bits_needed(
        records,
        value_bits=value_bits,
        weight_bits=weight_bits,
        largest_value=largest_value,
        largest_weight=largest_weight,
    )

    largest = records * Fraction(largest_value) * Fraction(largest_weight) * 2 ** (value_bits + weight_bits)
    # Half of a slot is for the other sign, and the published width keeps a bit more; logarithms round by 1e-15.
    assert largest * 2 <= 2 ** (bits - 1) * (1 + Fraction(1, 10**12))
    assert bits == 2 or largest * 2 >= 2 ** (bits - 2) * (1 - Fraction(1, 10**12))


def test_slots_are_counted_as_published() -> None:
    assert [slots_available(2048, bits) for bits in (1023, 1024, 2047, 2048)] == [2, 1, 1, 0]


def test_a_plaintext_that_is_still_masked_is_refused() -> None:
    masked = random.Random(3).randrange(PRIME)

    with pytest.raises(ArgumentError, match="overflowed, or it was packed otherwise"):
        unpack_equations([masked], slot_bits=50, count=5, modulus=PRIME)


def test_rows_that_could_overflow_or_have_no_slot_are_refused() -> None:
    good = {"slot_bits": 10, "value_bound": 100, "modulus": PRIME}
    packed_weights([[5, 0]], **good)
    with pytest.raises(ArgumentError, match=r"row 1 can reach 100 \* 6"):
        packed_weights([[5, 0], [5, -1]], **good)
    with pytest.raises(ArgumentError, match="at most 52 rows in slots of 10 bits, got 53"):
        packed_weights([[1]] * 53, **good)
    with pytest.raises(ArgumentError, match="value_bound from 1"):
        packed_weights([[1]], **(good | {"value_bound": 0}))
    for rows in ([], [[]], [[1], [1, 2]]):
        with pytest.raises(ArgumentError, match="one integer per record"):
            packed_weights(rows, **good)


def test_selections_refuse_what_cannot_be() -> None:
    good = {"ciphertexts": 1, "slot_bits": 12, "value_bound": 1000, "modulus": PRIME}
    with pytest.raises(ArgumentError, match="at least one record and one ciphertext, got 0 and 1"):
        packed_selections(0, **good)
    with pytest.raises(ArgumentError, match="got 3 and 0"):
        packed_selections(3, **(good | {"ciphertexts": 0}))
    with pytest.raises(ArgumentError, match="no slot of 12 bits fits a modulus of 8 bits"):
        packed_selections(3, **(good | {"modulus": 251}))
    with pytest.raises(ArgumentError, match="does not fit a signed slot of 12 bits"):
        packed_selections(3, **(good | {"value_bound": 2048}))


def test_sums_that_no_integers_solve_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no integers solve"):
        solve_equations([[2]], [3])
    with pytest.raises(ArgumentError, match="no integers solve"):
        solve_equations([[1, 0], [0, 1], [1, 1]], [1, 1, 3])
    with pytest.raises(ArgumentError, match="no integers solve"):
        solve_equations([[1], [1]], [0, 2])
    with pytest.raises(ArgumentError, match="rank 1 do not determine 2"):
        solve_equations([[1, 1], [2, 2]], [1, 2])
    with pytest.raises(ArgumentError, match="one sum per row, 1, got 2"):
        solve_equations([[1]], [1, 2])


@pytest.mark.parametrize(
    "change",
    [{"records": 0}, {"value_bits": -1}, {"weight_bits": -1}, {"largest_value": 0.0}, {"largest_weight": -1.0}],
)
def test_widths_of_impossible_sums_are_refused(change: dict[str, float]) -> None:
    arguments = {"records": 2, "value_bits": 3, "weight_bits": 3, "largest_value": 1.0, "largest_weight": 1.0} | change
    with pytest.raises(ArgumentError, match=r"expected records from 1|must be finite and above 0"):
        slot_bits_needed(arguments.pop("records"), **arguments)  # type: ignore[arg-type]
