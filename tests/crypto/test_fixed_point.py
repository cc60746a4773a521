from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.crypto.fixed_point import decode, encode
from splitvfl.errors import ArgumentError, CryptoError


@given(st.lists(st.floats(-8, 8), min_size=1), st.integers(0, 40))
def test_the_error_is_half_a_unit_at_most(values: list[float], bits: int) -> None:
    encoded = encode(torch.tensor(values, dtype=torch.float64), bits=bits, limit=8.0)

    assert encoded.dtype == torch.int64
    for value, integer in zip(values, encoded.tolist(), strict=True):
        assert abs(Fraction(value) - Fraction(integer, 2**bits)) <= Fraction(1, 2 ** (bits + 1))


def test_ties_go_to_even() -> None:
    assert encode(torch.tensor([0.5, 1.5, -0.5, -1.5]), bits=0, limit=2.0).tolist() == [0, 2, 0, -2]


def test_decoding_rounds_once_however_large_the_integer() -> None:
    # 2^100 + 1 rounds to 2^100; in two steps, through a product of floats, nothing would differ here but the exponent.
    found = decode([(1 << 100) + 1, -3], bits=58)

    assert found.dtype == torch.float64
    assert found.tolist() == [2.0**42, -3 / 2**58]
    assert decode(torch.tensor([6]), bits=1).tolist() == [3.0]


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_a_value_over_the_limit_is_never_clipped(shape: tuple[int, ...]) -> None:
    values = torch.zeros(shape, dtype=torch.float64)
    values[2] = -4.5

    with pytest.raises(CryptoError, match=r"size up to 4, the agreed limit, got -4.5 at place \(?2"):
        encode(values, bits=26, limit=4.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(CryptoError, match="at place 1 "):
        encode(torch.tensor([0.0, value]), bits=26, limit=4.0)


@pytest.mark.parametrize(("bits", "limit"), [(60, 4.0), (-1, 4.0), (26, 0.0), (26, float("nan")), (26, float("inf"))])
def test_a_scale_that_does_not_fit_is_refused(bits: int, limit: float) -> None:
    with pytest.raises(ArgumentError, match="between 0 and 2\\^62"):
        encode(torch.zeros(1), bits=bits, limit=limit)


def test_integers_are_no_real_numbers() -> None:
    with pytest.raises(ArgumentError, match="expected real numbers, got int64"):
        encode(torch.tensor([1]), bits=26, limit=4.0)
