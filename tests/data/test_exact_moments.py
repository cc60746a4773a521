from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from splitvfl.data import exact_moments
from splitvfl.data.exact_moments import ExactMoments

ANY = st.floats(allow_nan=False, allow_infinity=False)


def of(*streams: list[float]) -> ExactMoments:
    moments = ExactMoments()
    for stream in streams:
        moments.add(np.array(stream, np.float64))
    return moments


@example([5e-324, 1.7976931348623157e308, -1.5, 0.0, -5e-324])
@example([1.7976931348623157e308] * 3)
@example([-0.0])
@given(st.lists(ANY, max_size=40))
def test_sums_are_those_of_fractions(values: list[float]) -> None:
    moments = of(values)

    exact = [Fraction(value) for value in values]
    assert moments.count == len(values)
    assert Fraction(moments.total, 2**1126) == sum(exact)
    assert Fraction(moments.squares, 2**2252) == sum(value * value for value in exact)


@given(st.lists(ANY, min_size=1, max_size=40), st.integers(0, 40), st.floats(-1e9, 1e9), st.integers(0, 10**12))
def test_pieces_and_constants_come_to_the_same(values: list[float], cut: int, value: float, times: int) -> None:
    whole, merged = of(values), of(values[cut:])
    merged.merge(of(values[:cut]))
    whole.add_constant(value, times)
    merged.add_constant(value, times)

    exact = sum(map(Fraction, values)) + times * Fraction(value)
    assert (merged.total, merged.squares) == (whole.total, whole.squares)
    assert merged.mean == float(exact / (len(values) + times))


def test_long_streams_are_cut_where_sums_would_round(monkeypatch: pytest.MonkeyPatch) -> None:
    # The largest pieces there are: 2^19 squared, as often as goes into one piece.
    values = np.full(3 * exact_moments._PIECE + 1, 1 - 2.0**-53)

    moments = of(values.tolist())

    assert Fraction(moments.squares, 2**2252) == len(values) * Fraction(1 - 2.0**-53) ** 2


def test_deviations_far_from_zero_keep_their_digits() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=10_000)

    moments = of(values.tolist())

    mean = sum(map(Fraction, values)) / len(values)
    variance = sum((Fraction(value) - mean) ** 2 for value in values) / len(values)
    assert moments.mean == float(mean)
    assert moments.deviation == math.sqrt(float(variance))


def test_deviations_beyond_any_number_are_infinite() -> None:
    assert of([-1e200, 1e200]).deviation == math.inf
    assert of([0.1] * 7).deviation == 0
    assert of([0.1] * 7).mean == 0.1
