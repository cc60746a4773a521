from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from splitvfl.data.encoding import Floats, Scale, scale_column, shift_and_scale, symmetric_log
from splitvfl.data.ingest import statistics
from splitvfl.data.ingest.statistics import MedianSketch, Moments, NumericStatistics
from splitvfl.errors import DataError

FINITE = st.floats(-1e6, 1e6, allow_nan=False)
STREAMS = st.lists(arrays(np.float64, st.integers(0, 30), elements=FINITE), min_size=1, max_size=6)


@given(STREAMS)
def test_moments_of_pieces_are_those_of_the_whole(pieces: list[Floats]) -> None:
    moments = Moments()
    for piece in pieces:
        moments.add(piece)
    whole = np.concatenate(pieces)

    assert moments.count == whole.size
    if whole.size:
        # Rounding in sums of 180 numbers up to 1e6; the variance's square root magnifies it near 0.
        assert moments.mean == pytest.approx(whole.mean(), abs=1e-8)
        assert moments.deviation == pytest.approx(whole.std(), rel=1e-9, abs=1e-6)


def test_moments_far_from_zero_keep_their_digits() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=10_000)
    moments = Moments()
    for piece in np.split(values, 100):
        moments.add(piece)

    # Sums of squares would have lost all digits: 1e18 has a spacing of 128.
    assert moments.deviation == pytest.approx(values.std(), rel=1e-6)


@given(STREAMS)
def test_the_median_is_exact_where_values_are_few(pieces: list[Floats]) -> None:
    sketch = MedianSketch()
    for piece in pieces:
        sketch.add(piece)
    whole = np.concatenate(pieces)

    if whole.size:
        assert sketch.median() == pytest.approx(np.median(whole), rel=1e-15)
    assert sketch.error == 0


@given(st.lists(st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6), min_size=20, max_size=60, unique=True))
def test_the_median_of_many_values_is_within_its_bound_and_does_not_depend_on_order(values: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "EXACT_VALUES", 8)
        sketches = [MedianSketch() for _ in range(3)]
        for value in values:
            sketches[0].add(np.array([value]))
        sketches[1].add(np.array(values))
        for value in reversed(values):
            sketches[2].add(np.array([value]))

    medians = [sketch.median() for sketch in sketches]
    assert medians[0] == medians[1] == medians[2]
    assert sketches[0].error > 0
    low, high = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]]
    bound = sketches[0].error * 0.5 * (abs(low) + abs(high))
    assert abs(medians[0] - np.median(values)) <= bound * (1 + 1e-9) + 1e-12


def test_a_sketch_stays_small() -> None:
    sketch = MedianSketch()
    rng = np.random.default_rng(0)
    values = [rng.lognormal(size=50_000) for _ in range(4)]
    for piece in values:
        sketch.add(piece)

    assert sketch._values.size <= statistics.EXACT_VALUES
    assert sketch.error == 2.0**-13
    assert sketch.median() == pytest.approx(np.median(np.concatenate(values)), rel=sketch.error)


@pytest.mark.parametrize("scale", ["standard", "minmax", "log1p", "none"])
@pytest.mark.parametrize("gaps", [0, 7])
def test_columns_are_scaled_as_when_they_are_whole(scale: Scale, gaps: int) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=40) * 50
    values[:gaps] = np.nan
    found = NumericStatistics("x", "number", scale=scale, fill=True)
    for piece in np.split(values, 4):
        found.add(piece)

    encoder = found.encoder()

    assert encoder.median is not None
    assert (encoder.gaps, encoder.rows, encoder.marked) == (gaps, 40, gaps > 0)
    filled = np.where(np.isnan(values), np.nanmedian(values), values)
    logs = symmetric_log(filled) if scale == "log1p" else filled
    np.testing.assert_allclose(
        shift_and_scale(logs, encoder.offset, encoder.spread, scale), scale_column(filled, filled, scale), rtol=1e-12
    )


def test_a_constant_column_has_no_spread_whatever_rounding_says() -> None:
    found = NumericStatistics("x", "number", scale="standard", fill=False)
    for _ in range(7):
        found.add(np.full(3, 0.1))

    assert found.encoder().spread == 0


def test_a_column_without_a_training_value_is_an_error() -> None:
    found = NumericStatistics("x", "number", scale="standard", fill=True)
    found.add(np.full(3, np.nan))

    with pytest.raises(DataError, match="'x' has no value in any of 3 training rows"):
        found.encoder()


def test_a_column_whose_squares_overflow_is_an_error() -> None:
    found = NumericStatistics("x", "number", scale="standard", fill=False)
    found.add(np.array([1e200, -1e200]))

    with pytest.raises(DataError, match="too large to be scaled"):
        found.encoder()
