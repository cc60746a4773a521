"""Drift of columns: counted against the training, compared with what chance explains."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from splitvfl.data.drift import (
    ColumnDrift,
    Counts,
    Profile,
    Saturation,
    added,
    check_drift,
    compared,
    counted_codes,
    counted_numbers,
    drift_said,
    profile_of_codes,
    profile_of_numbers,
    stability_index,
)
from splitvfl.data.encoding import Encoding, FittedEncoding
from splitvfl.data.fitting import fit_encoding
from splitvfl.data.ranges import Ranges
from splitvfl.errors import ArgumentError, DriftError

Floats = np.ndarray


def drift_of(training: Floats, new: Floats) -> ColumnDrift:
    profile = profile_of_numbers(training)
    return compared({"x": counted_numbers(new, profile)}, {"x": profile})[0]


def test_bins_are_deciles_and_ties_stay_together() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    assert profile_of_numbers(values).counts == (100,) * 10
    counts = profile_of_numbers(np.repeat([0.0, 1.0, 2.0], [70, 20, 10]))
    assert (counts.counts, counts.edges) == ((70, 20, 10), (0.5, 1.5))
    assert profile_of_numbers(np.full(9, 3.0)).counts == (9,)


def test_what_is_counted_of_training_values_is_their_profile() -> None:
    values = np.random.default_rng(1).poisson(3, 500).astype(float)
    values[::7] = np.nan
    profile = profile_of_numbers(values)
    found = counted_numbers(values, profile)
    assert (tuple(found.bins), found.missing, found.outside) == (profile.counts, profile.gaps, 0)
    assert stability_index(found, profile)[0] == 0


def test_the_index_is_the_formula() -> None:
    profile = Profile(rows=100, gaps=0, low=0, high=9, edges=(5.0,), counts=(60, 40))
    index, by_chance = stability_index(Counts(rows=50, bins=[20, 30]), profile)
    p, q = np.array([60.5, 40.5]) / 101, np.array([20.5, 30.5]) / 51
    assert index == pytest.approx(((q - p) * np.log(q / p)).sum())
    # The 0.999 quantile of chi-squared with one degree of freedom is 10.83.
    assert by_chance == pytest.approx(10.83 * (1 / 100 + 1 / 50), rel=0.04)


@pytest.mark.parametrize("size", [(50, 50), (400, 80), (300, 1000), (1000, 40)])
@pytest.mark.parametrize("kind", ["normal", "cauchy", "counts", "rare"])
def test_chance_alone_is_seldom_a_shift(kind: str, size: tuple[int, int]) -> None:
    random = np.random.default_rng(7)
    draw = {
        "normal": random.standard_normal,
        "cauchy": random.standard_cauchy,
        "counts": lambda n: random.poisson(2, n).astype(float),
        "rare": lambda n: (random.random(n) < 0.03).astype(float),
    }[kind]
    found = [drift_of(draw(size[0]), draw(size[1])) for _ in range(150)]
    assert sum(one.level != "none" for one in found) <= 2  # of 150, where one in 1,000 is expected
    # Half of the indices are below half of what chance explains in 999 of 1,000 cases: it is no bound of nothing.
    assert np.median([one.index or 0.0 for one in found]) < 0.5 * np.median([one.by_chance for one in found])


def test_unknown_categories_of_a_long_tail_are_no_shift() -> None:
    random = np.random.default_rng(3)
    weights = random.dirichlet(np.full(60, 0.3))
    levels = []
    for _ in range(100):
        training, new = (random.choice(60, n, p=weights) + 1 for n in (300, 300))
        profile = profile_of_codes(training, np.zeros(300, bool))
        new = np.where(np.isin(new, training), new, 0)
        levels.append(compared({"c": counted_codes(new, None, profile)}, {"c": profile})[0].level)
    assert levels.count("none") >= 97


@pytest.mark.parametrize("rows", [10, 400])
def test_another_unit_is_drift(rows: int) -> None:
    random = np.random.default_rng(2)
    found = drift_of(random.normal(50, 9, 400), 100 * random.normal(50, 9, rows))
    assert (found.level, found.outside) == ("drift", 1.0)
    assert found.is_beyond(9.0)  # fractions count whatever the threshold of the index


def test_a_moved_mean_inside_the_range_is_drift_by_its_index_alone() -> None:
    random = np.random.default_rng(2)
    found = drift_of(random.normal(size=4000), random.normal(0.8, 1, 4000))
    assert found.index is not None
    assert 0.5 < found.index < 0.9
    assert (found.level, found.is_beyond(0.25), found.is_beyond(0.9)) == ("drift", True, False)


def test_gaps_where_training_had_none_are_drift_and_a_few_are_not() -> None:
    values = np.random.default_rng(2).normal(size=400)
    assert drift_of(values, np.full(300, np.nan)).level == "drift"
    some = values[:300].copy()
    some[0] = np.nan
    assert drift_of(values, some).level == "none"
    gappy = np.where(np.arange(400) % 3 == 0, np.nan, values)
    assert drift_of(gappy, gappy[:300]).level == "none"
    found = drift_of(gappy, np.full(300, np.nan))
    assert (found.missing, found.missing_in_training) == (1.0, 134 / 400)


def test_counts_add_up_as_one_stream() -> None:
    values = np.random.default_rng(4).normal(size=100)
    profile = profile_of_numbers(values)
    total: dict[str, Counts] = {}
    for part in (2 * values[:30], 2 * values[30:31], 2 * values[31:]):
        added(total, {"x": counted_numbers(part, profile)})
    assert total["x"] == counted_numbers(2 * values, profile)


TABLE = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "c": ["a", "b", "a", "b"]})


def fitted(**settings: object) -> FittedEncoding:
    return fit_encoding(
        TABLE,
        ["x", "c"],
        train=np.arange(4),
        encoding=Encoding(missing="indicator"),
        categories=(),
        source="t",
        **settings,  # type: ignore[arg-type]
    )


def test_public_ranges_keep_nothing_of_records_and_are_the_range() -> None:
    encoding = fitted(ranges=Ranges({"x": (0.0, 10.0)}))
    assert encoding.profiles == {}
    encoded = encoding.apply(pa.table({"x": [11.0, 5.0], "c": ["a", "z"]}), source="t", count=True)
    found = {one.column: one for one in encoding.drift(encoded.counts)}
    assert (found["x"].outside, found["x"].index, found["x"].missing_in_training) == (0.5, None, None)
    assert found["c"].unknown == 0.5


def test_a_model_of_an_earlier_version_says_what_it_can() -> None:
    encoding = FittedEncoding(columns=fitted().columns)
    encoded = encoding.apply(pa.table({"x": [None, None], "c": ["z", "a"]}), source="t", count=True)
    drift = encoding.drift(encoded.counts)
    assert {one.column: one.excess for one in drift} == {"x": 1.0, "c": 0.5}
    assert "no bins: trained by an earlier version" in drift_said({"bank": drift})[0]


def test_profiles_are_no_part_of_what_an_encoding_does() -> None:
    encoding = fitted()
    assert encoding.profiles["c"].counts == (2, 2, 0)
    assert encoding.encodes_like(FittedEncoding(columns=encoding.columns))
    other = fit_encoding(TABLE.slice(1), ["x", "c"], train=np.arange(3), encoding=Encoding(), categories=(), source="t")
    assert not encoding.encodes_like(other)


def test_nothing_is_counted_unless_asked_for() -> None:
    assert fitted().apply(TABLE, source="t").counts == {}


def test_lines_name_the_worst_columns_first_and_are_one_where_nothing_drifts() -> None:
    values = np.arange(1000.0)
    same, moved = drift_of(values, values), drift_of(values, values + 600)
    assert drift_said({"bank": [same]}) == ["drift: none beyond chance in 1 columns of 1,000 records"]
    lines = drift_said({"bank": [same], "lab": [moved]})
    assert lines[0] == "drift: 1 of 2 columns of 1,000 records differ from the training"
    assert lines[2].split()[:3] == ["lab:", "x", "60.0%"]
    assert len(drift_said({"lab": [moved] * 30})) == 11


def test_records_that_have_drifted_are_refused_by_name() -> None:
    values = np.arange(1000.0)
    drift = {"bank": [drift_of(values, values), drift_of(values, values + 600)]}
    with pytest.raises(DriftError, match=r"bank: x: 60.0% outside the training range, stability index"):
        check_drift(drift, 0.25)
    check_drift({"bank": drift["bank"][:1]}, 0.25)
    with pytest.raises(ArgumentError, match="above 0"):
        check_drift({}, 0.0)


@pytest.mark.parametrize(
    ("before", "drifted", "said"),
    [(0.0, False, True), (0.9, True, False), (None, False, False), (None, True, True)],
)
def test_saturated_scores_are_said_where_they_are_news(before: float | None, drifted: bool, said: bool) -> None:
    found = Saturation(fraction=0.99, records=854, in_training=before, drifted=drifted)
    assert str(found).startswith("845 of 854 scores are exactly 0 or 1") is said
    if said:
        with pytest.raises(DriftError):
            found.check()
    else:
        found.check()
    assert not str(Saturation(fraction=0.5, records=854, in_training=0.0, drifted=True))
