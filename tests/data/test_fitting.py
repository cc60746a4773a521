from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from splitvfl.data import fitting
from splitvfl.data.chunks import Chunk
from splitvfl.data.encoding import Floats, Scale, shift_and_scale, symmetric_log
from splitvfl.data.fitting import MedianSketch, NumericFit, RunningSums, SketchCounts, WholeSums

FINITE = st.floats(-1e6, 1e6, allow_nan=False)
STREAMS = st.lists(arrays(np.float64, st.integers(0, 30), elements=FINITE), min_size=1, max_size=6)


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
        patch.setattr(fitting, "EXACT_VALUES", 8)
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


@example([np.array([-0.0]), np.array([0.0])], 9)
@example([np.array([0.0]), np.array([-0.0])], 9)
@example([1 + np.arange(8) / 2**40, np.array([1 + 1 / 3])], 4)
@given(STREAMS, st.integers(1, 40))
def test_merged_sums_are_those_of_one_stream(pieces: list[Floats], few: int) -> None:
    pieces = [np.where(piece > 5e5, np.nan, piece) for piece in pieces]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "EXACT_VALUES", few)
        whole = RunningSums(log=False, fill=True)
        whole.add(np.concatenate(pieces))
        merged = RunningSums(log=False, fill=True)
        for piece in reversed(pieces):
            part = RunningSums(log=False, fill=True)
            part.add(piece)
            assert part.kept.sketch is not None
            assert part.kept.sketch.is_sound
            merged.merge(part.kept)

    assert merged.kept.known == whole.kept.known
    if whole.known:
        median = whole.median()
        # To the bit, the sign of zero included.
        assert repr((merged.median(), merged.extent(median), merged.median_error)) == repr(
            (median, whole.extent(median), whole.median_error)
        )


@pytest.mark.parametrize(
    ("level", "values", "counts"),
    [
        (-1, [1.0], [1]),
        (6, [1.0], [1]),
        (0, [2.0, 1.0], [1, 1]),
        (0, [1.0, 1.0], [1, 1]),
        (0, [np.nan], [1]),
        (0, [np.inf], [1]),
        (0, [1.0], [0]),
        (0, [1.0], [1, 1]),
        (1, [1 + 2.0**-30], [1]),
        (0, list(range(9)), [1] * 9),
    ],
)
def test_a_sketch_takes_only_what_a_sketch_may_keep(
    level: int, values: list[float], counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "EXACT_VALUES", 8)

    assert SketchCounts(0, np.array([1.0, 2.5]), np.array([3, 1])).is_sound
    assert SketchCounts(5, np.arange(1.0, 10.0), np.ones(9, np.int64)).is_sound
    assert not SketchCounts(level, np.array(values, np.float64), np.array(counts)).is_sound


def test_a_sketch_stays_small() -> None:
    sketch = MedianSketch()
    rng = np.random.default_rng(0)
    values = [rng.lognormal(size=50_000) for _ in range(4)]
    for piece in values:
        sketch.add(piece)

    assert sketch._values.size <= fitting.EXACT_VALUES
    assert sketch.error == 2.0**-13
    assert sketch.median() == pytest.approx(np.median(np.concatenate(values)), rel=sketch.error)


def fit_of(
    scale: Scale, sums: WholeSums | RunningSums, values: Floats, *, pieces: int, fill: bool = True
) -> NumericFit:
    fit = NumericFit("x", scale=scale, fill=fill, sums=sums)
    for piece in np.split(values, pieces):
        fit.add(Chunk.of(pa.table({"x": piece}), ["x"], source="t.csv"), np.ones(piece.size, bool))
    return fit


@pytest.mark.parametrize("scale", ["standard", "minmax", "log1p", "none"])
@pytest.mark.parametrize("gaps", [0, 7])
def test_columns_are_scaled_as_when_they_are_whole(scale: Scale, gaps: int) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=40) * 50
    values[:gaps] = np.nan
    log = scale == "log1p"
    running, whole = RunningSums(log=log, fill=True), WholeSums(log=log)

    ours, theirs = fit_of(scale, running, values, pieces=4).fitted(), fit_of(scale, whole, values, pieces=1).fitted()

    assert (ours.median, ours.marked) == (theirs.median, theirs.marked) == (np.nanmedian(values), gaps > 0)
    assert (running.gaps, running.known) == (whole.gaps, whole.known) == (gaps, 40 - gaps)
    filled = np.where(np.isnan(values), np.nanmedian(values), values)
    logs = symmetric_log(filled) if log else filled
    np.testing.assert_allclose(
        *(shift_and_scale(logs, fitted.offset, fitted.spread, scale) for fitted in (ours, theirs)), rtol=1e-12
    )


@example([0.0, 5e-324], "standard")
@example([0.0, 5e-324], "minmax")
@given(st.lists(st.floats(-1e6, 1e6), min_size=2), st.sampled_from(["standard", "minmax", "log1p", "none"]))
def test_scaling_keeps_order_and_is_finite(values: list[float], scale: Scale) -> None:
    data = np.sort(np.array(values))
    fitted = fit_of(scale, WholeSums(log=scale == "log1p"), data, pieces=1).fitted()

    logs = symmetric_log(data) if scale == "log1p" else data
    scaled = shift_and_scale(logs, fitted.offset, fitted.spread, scale)

    assert np.isfinite(scaled).all()
    assert (np.diff(scaled) >= 0).all()


def test_a_constant_column_has_no_spread_whatever_rounding_says() -> None:
    sums = RunningSums(log=False, fill=False)

    assert fit_of("standard", sums, np.full(21, 0.1), pieces=7, fill=False).fitted().spread == 0
