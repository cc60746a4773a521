from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.crypto import pack, slot_capacity, unpack
from splitvfl.crypto.packing import centred
from splitvfl.errors import ArgumentError

MODULUS = (1 << 199) + 9


@st.composite
def slots(draw: st.DrawFn) -> tuple[int, list[int]]:
    width = draw(st.integers(2, 60))
    limit = (1 << (width - 1)) - 1
    most = slot_capacity(MODULUS.bit_length(), width)
    return width, draw(st.lists(st.integers(-limit, limit), max_size=most))


@given(slots())
def test_unpacking_undoes_packing(given_slots: tuple[int, list[int]]) -> None:
    width, values = given_slots

    packed = pack(values, slot_bits=width, modulus=MODULUS)

    assert 0 <= packed < MODULUS
    assert packed == sum(value * 2 ** (width * place) for place, value in enumerate(values)) % MODULUS
    assert unpack(packed, slot_bits=width, count=len(values), modulus=MODULUS) == values
    assert unpack(centred(packed, MODULUS), slot_bits=width, count=len(values), modulus=MODULUS) == values


@given(st.integers(), st.integers(2, 10**6))
def test_centred_is_the_residue_nearest_to_zero(value: int, modulus: int) -> None:
    found = centred(value, modulus)

    assert (found - value) % modulus == 0
    assert -modulus < 2 * found <= modulus


@pytest.mark.parametrize(
    ("modulus_bits", "slot_bits", "slots"), [(2048, 64, 31), (2049, 64, 32), (2048, 2047, 1), (2048, 2048, 0)]
)
def test_capacity_is_that_of_the_paper(modulus_bits: int, slot_bits: int, slots: int) -> None:
    assert slot_capacity(modulus_bits, slot_bits) == slots


def test_the_fullest_packing_survives_the_smallest_modulus_of_its_length() -> None:
    modulus = (1 << 64) + 13
    values = [-(2**7) + 1, 2**7 - 1] * 4

    assert unpack(pack(values, slot_bits=8, modulus=modulus), slot_bits=8, count=8, modulus=modulus) == values


def test_an_overflow_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"below 2\^7 in size, got one of 8 bits at place 1"):
        pack([0, 128], slot_bits=8, modulus=MODULUS)
    with pytest.raises(ArgumentError, match="got one of 8 bits at place 0"):
        pack([-128], slot_bits=8, modulus=MODULUS)


def test_too_many_values_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match="expected 0 to 24 values in slots of 8 bits modulo a number of 200 bits, got 25"
    ):
        pack([0] * 25, slot_bits=8, modulus=MODULUS)
    with pytest.raises(ArgumentError, match="got 25"):
        unpack(0, slot_bits=8, count=25, modulus=MODULUS)


def test_what_is_left_above_the_slots_is_noticed() -> None:
    packed = pack([1, 2, 3], slot_bits=8, modulus=MODULUS)

    with pytest.raises(ArgumentError, match="expected 2 slots of 8 bits, got a number that exceeds them by 2 bits"):
        unpack(packed, slot_bits=8, count=2, modulus=MODULUS)


@pytest.mark.parametrize("width", [1, 0, -3])
def test_a_slot_without_room_for_a_sign_is_refused(width: int) -> None:
    with pytest.raises(ArgumentError, match=f"slot_bits from 2 .*, got {width}"):
        slot_capacity(2048, width)
    with pytest.raises(ArgumentError, match=f"got {width}"):
        pack([0], slot_bits=width, modulus=MODULUS)


def test_a_modulus_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match="modulus above 1, got 1"):
        pack([], slot_bits=8, modulus=1)
    with pytest.raises(ArgumentError, match="modulus_bits from 1, got 0"):
        slot_capacity(0, 8)
