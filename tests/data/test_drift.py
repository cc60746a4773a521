"""Drift of columns: counted against the training, compared with what chance explains."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from scipy.special import chdtri
from scipy.stats import betabinom, binom

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
from splitvfl.errors import ArgumentError, DataError, DriftError

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
    # The 0.9999 quantile of chi-squared with one degree of freedom is 15.14.
    assert by_chance == pytest.approx(15.14 * (1 / 100 + 1 / 50), rel=0.001)


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


FLAGGED = 0.001 / 3
"""How often one of the three figures of a single column may flag it, if nothing has changed."""


def beside(own: Counts, profile: Profile, columns: int) -> ColumnDrift:
    """Return how a column differs that is compared with others, which are as in training."""
    names = [str(number) for number in range(1, columns)]
    same = {name: Counts(rows=own.rows) for name in names}
    found = compared({"x": own} | same, {"x": profile} | {name: Profile(rows=profile.rows, gaps=0) for name in names})
    return next(one for one in found if one.column == "x")


@pytest.mark.parametrize("columns", [1, 20])
@pytest.mark.parametrize(("share", "rows"), [(0.005, 10), (0.005, 5), (0.02, 1), (0.02, 30)])
def test_gaps_are_seldom_flagged_by_chance(share: float, rows: int, columns: int) -> None:
    flagged = 0.0
    for before, now in product(range(50), range(min(rows, 10) + 1)):
        chance = binom.pmf(before, 1000, share) * binom.pmf(now, rows, share)
        found = beside(Counts(rows=rows, missing=now), Profile(rows=1000, gaps=before), columns)
        flagged += chance * (found.level != "none")
    assert columns * flagged <= FLAGGED


@pytest.mark.parametrize(("rows", "missing", "level"), [(5, 1, "none"), (1, 1, "none"), (3, 3, "drift")])
def test_gaps_where_training_had_none_pass_the_same_test(rows: int, missing: int, level: str) -> None:
    found = beside(Counts(rows=rows, missing=missing), Profile(rows=1000, gaps=0), 20)
    assert (found.level, found.missing) == (level, missing / rows)


@pytest.mark.parametrize("gaps", [0, 900])
@pytest.mark.parametrize(("trained", "rows"), [(200, 10), (200, 5000), (50, 50), (10_000, 3)])
def test_values_outside_are_flagged_from_where_chance_ends(trained: int, rows: int, gaps: int) -> None:
    profile = Profile(rows=trained + gaps, gaps=gaps, low=0.0, high=1.0)
    first = next(out for out in range(rows + 1) if beside(Counts(rows=rows, outside=out), profile, 1).excess)
    # A training range leaves a fraction outside that has the distribution Beta(2, n - 1), whatever the values.
    assert betabinom.sf(first - 1, rows, 2, trained - 1) <= FLAGGED < betabinom.sf(first - 2, rows, 2, trained - 1)


def drawn_codes(
    weights: Floats, sizes: tuple[int, int], random: np.random.Generator, min_count: int = 1
) -> ColumnDrift:
    """Return how new records of categories with these probabilities differ from training ones."""
    before, now = (random.multinomial(size, weights) for size in sizes)
    listed = before >= min_count
    codes = np.where(listed, np.cumsum(listed), 0)
    training = np.repeat(codes, before)
    profile = profile_of_codes(training, np.zeros(len(training), bool), min_count=min_count)
    return compared({"c": counted_codes(np.repeat(codes, now), None, profile)}, {"c": profile})[0]


EQUAL = np.full(40, 1 / 40)
ZIPF = 1 / np.arange(1, 501) / (1 / np.arange(1, 501)).sum()


@pytest.mark.parametrize(
    ("weights", "sizes", "min_count"),
    [
        (EQUAL, (200, 200), 1),
        (EQUAL, (200, 1000), 1),
        (EQUAL, (200, 10_000), 1),
        (ZIPF, (200, 5000), 1),
        (ZIPF, (1000, 1000), 5),
        (ZIPF, (300, 3000), 3),
        (np.full(1000, 0.001), (3000, 3000), 3),
    ],
)
def test_rare_categories_are_seldom_flagged_by_chance(weights: Floats, sizes: tuple[int, int], min_count: int) -> None:
    random = np.random.default_rng(8)
    found = [drawn_codes(weights, sizes, random, min_count) for _ in range(300)]
    assert {one.level for one in found} == {"none"}
    assert sum((one.index or 0.0) > one.by_chance for one in found) <= 1  # less than one in 1,000 is expected


@pytest.mark.parametrize("gaps", [0, 9000])
@pytest.mark.parametrize("rows", [10, 50, 1000, 20_000])
def test_a_category_that_training_has_just_missed_is_seldom_flagged(rows: int, gaps: int) -> None:
    profile = Profile(rows=1000 + gaps, gaps=gaps, counts=(100,) * 10, listed=((100, 10),))
    missed = 0.999**1000
    found = [
        beside(Counts(rows=rows, unknown=now, bins=[rows - now] + 9 * [0]), profile, 1)
        for now in range(min(rows, 59) + 1)
    ]
    flagged = sum(binom.pmf(now, rows, 0.001) for now, one in enumerate(found) if one.excess)
    assert missed * flagged <= FLAGGED


@pytest.mark.parametrize(("rows", "unknown", "level"), [(5, 1, "none"), (5, 4, "drift"), (100, 8, "drift")])
def test_new_categories_are_flagged(rows: int, unknown: int, level: str) -> None:
    profile = profile_of_codes(np.repeat([1, 2, 3, 4], 250), np.zeros(1000, bool))
    codes = np.where(np.arange(rows) < unknown, 0, 1 + np.arange(rows) % 4)
    assert beside(counted_codes(codes, None, profile), profile, 20).level == level


def test_many_categories_that_stand_once_let_more_be_unknown() -> None:
    few = profile_of_codes(np.repeat([1, 2, 3, 4], 250), np.zeros(1000, bool))
    many = profile_of_codes(np.arange(1, 1001), np.zeros(1000, bool))
    for profile, level in ((few, "drift"), (many, "none")):
        assert beside(Counts(rows=100, unknown=60, bins=[4] * len(profile.counts)), profile, 1).level == level


def test_unknown_categories_are_no_part_of_the_index() -> None:
    profile = Profile(rows=100, gaps=0, counts=(60, 40), listed=((40, 1), (60, 1)))
    known = stability_index(Counts(rows=50, bins=[20, 30]), profile)
    assert stability_index(Counts(rows=90, unknown=40, bins=[20, 30]), profile) == known
    assert stability_index(Counts(rows=40, unknown=40, bins=[0, 0]), profile) == (None, 0.0)


def test_categories_are_dealt_out_to_bins_whatever_their_counts() -> None:
    profile = profile_of_codes(np.repeat(np.arange(1, 26), np.arange(1, 26)), np.zeros(325, bool))
    assert profile.counts == (33, 36, 39, 42, 45, 22, 24, 26, 28, 30)
    assert counted_codes(np.array([0, 1, 11, 25, 30]), None, profile).bins == [2, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_what_chance_explains_grows_with_the_columns() -> None:
    random = np.random.default_rng(1)
    profile, new = profile_of_numbers(random.normal(size=500)), random.normal(size=300)
    found = beside(counted_numbers(new, profile), profile, 20)
    assert found.by_chance == pytest.approx(chdtri(9, 0.0001 / 60) * (1 / 500 + 1 / 300))


def test_the_mean_index_by_chance_is_the_formula_from_five_records_a_bin_on() -> None:
    random = np.random.default_rng(5)
    means: Mapping[int, float] = {
        rows: float(np.mean([drift_of(random.normal(size=1000), random.normal(size=rows)).index for _ in range(200)]))
        for rows in (5, 50, 500)
    }
    ratio = {rows: mean / (9 * (1 / 1000 + 1 / rows)) for rows, mean in means.items()}
    assert ratio[5] < 0.3
    assert ratio[50] == pytest.approx(1, abs=0.15)
    assert ratio[500] == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(("moved", "level"), [(0.2, "none"), (0.5, "shift"), (0.8, "drift")])
def test_the_usual_thresholds_see_no_small_shift(moved: float, level: str) -> None:
    random = np.random.default_rng(6)
    found = drift_of(random.normal(size=5000), random.normal(moved, size=5000))
    assert found.level == level


@pytest.mark.parametrize("rows", [5, 400])
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
    assert encoding.profiles["c"].counts == (2, 2)
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


@pytest.mark.parametrize(
    "odd",
    [
        {"rows": -3},
        {"rows": 1 << 60},
        {"gaps": 10**9, "rows": 5},
        {"counts": (-5, 9)},
        {"listed": ((-1, 5), (3, 2))},
        {"cut": -1},
        {"edges": (1.0, 2.0, 3.0), "counts": (1,)},
        {"edges": (3.0, 1.0), "counts": (1, 2, 3)},
        {"low": 0.0, "high": 1.0, "counts": (1, 2, 3)},
    ],
)
def test_a_profile_from_somebody_else_whose_numbers_do_not_fit_is_refused_as_it_is_read(odd: dict[str, Any]) -> None:
    whole = msgspec.to_builtins(profile_of_numbers(np.arange(4.0))) if "gaps" in odd else {}
    with pytest.raises(msgspec.ValidationError, match="numbers fit together"):
        msgspec.json.decode(msgspec.json.encode({**whole, **odd}), type=Profile)


@pytest.mark.parametrize("odd", [{"rows": 3, "missing": 4}, {"rows": 3, "bins": [2, 2]}, {"bins": [-1], "rows": 3}])
def test_counts_from_somebody_else_that_do_not_fit_are_refused_as_they_are_read(odd: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="no part of it more than its records"):
        msgspec.json.decode(msgspec.json.encode(odd), type=Counts)
    with pytest.raises(DataError, match="counts of 2 bins as in training, got 1"):
        stability_index(Counts(rows=3, bins=[3]), Profile(rows=4, counts=(2, 2)))
