"""The search for a better defense: what is chosen, how defenses are compared at equal leak, and the page."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression

from scripts.reproduce.better_defense import __main__ as better_defense
from scripts.reproduce.better_defense import defenses, equal_leak, kept, measures, settings, study, summary, worth
from scripts.reproduce.better_defense.choosing import Choice, best, counted_edges, extended
from scripts.reproduce.better_defense.defenses import ASYMMETRIC, AXIS_SUMKL, ISOTROPIC, NONE, RECORD
from scripts.reproduce.better_defense.estimates import Estimate, curve_at, half_shown, jackknife, next_weaker, paired
from scripts.reproduce.better_defense.measures import BEYOND, TOTAL
from scripts.reproduce.better_defense.runs import SILENT, Measured
from scripts.reproduce.better_defense.settings import Case, cases
from scripts.reproduce.better_defense.study import Setting
from scripts.reproduce.label_leakage.study import PASSIVE
from scripts.reproduce.shared import drawing
from scripts.reproduce.shared.claims import shown, signed
from scripts.reproduce.shared.jobs import Job
from scripts.reproduce.shared.settings import Settings
from splitvfl.config.registry import built_in
from splitvfl.data.sets import DATA_FOLDER
from splitvfl.metrics import leak_auc

# Whether own columns were judged is asked here, not how well they predict.
pytestmark = pytest.mark.usefixtures("few_rounds")

# --- figures over seeds


def test_of_a_mean_the_jackknife_is_the_usual_interval() -> None:
    values = [0.71, 0.74, 0.69, 0.78, 0.75]

    found = jackknife(lambda seeds: float(np.mean([values[seed] for seed in seeds])), len(values))

    assert found.value == pytest.approx(np.mean(values))
    assert found.error == pytest.approx(stats.sem(values))
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert found.interval() == pytest.approx(expected)


def test_the_jackknife_makes_the_whole_procedure_anew() -> None:
    # A figure that is no mean: the formula written out, over all ways to leave one out.
    values = [2.0, 3.0, 7.0, 1.0]
    without = [np.median([values[one] for one in four]) for four in itertools.combinations(range(4), 3)]

    found = jackknife(lambda seeds: float(np.median([values[seed] for seed in seeds])), 4)

    assert found.value == 2.5
    assert found.error == pytest.approx(math.sqrt(3 / 4 * sum((one - np.mean(without)) ** 2 for one in without)))


def test_what_is_not_known_without_some_seed_is_not_known() -> None:
    found = jackknife(lambda seeds: math.nan if 2 not in seeds else 1.0, 4)

    assert found.value == 1.0
    assert not found.known


def test_one_seed_has_no_error() -> None:
    assert math.isnan(jackknife(lambda seeds: 1.0, 1).error)


def test_many_comparisons_share_the_five_per_cent() -> None:
    estimate = Estimate(0.01, 0.002, 5)

    low, high = estimate.interval(comparisons=21)

    # Of t with four degrees of freedom, so much lies outside on each side.
    assert stats.t.sf((high - 0.01) / 0.002, 4) == pytest.approx(0.025 / 21)
    assert (low + high) / 2 == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("level", "expected"),
    [(0.5, 0.70), (0.6, 0.75), (0.55, 0.725), (0.75, 0.78), (0.9, 0.81), (0.49, math.nan), (0.95, math.nan)],
)
def test_test_auc_is_read_off_straight_lines_and_not_outside_of_them(level: float, expected: float) -> None:
    # Strengths in any order: the weakest leaks most.
    assert curve_at([0.9, 0.5, 0.6], [0.81, 0.70, 0.75], level) == pytest.approx(expected, nan_ok=True)


def test_a_stricter_strength_that_keeps_more_takes_the_place_of_a_weaker_one() -> None:
    # At .7 nobody has to take less than the .735 that leaks .57 only.
    assert curve_at([0.57, 0.70, 0.95], [0.735, 0.716, 0.740], 0.70) == pytest.approx(0.735)
    assert curve_at([0.57, 0.70, 0.95], [0.735, 0.716, 0.740], 0.825) == pytest.approx(0.7375)


def test_a_leak_that_is_not_known_gives_nothing() -> None:
    assert math.isnan(curve_at([math.nan, 0.9], [0.7, 0.8], 0.9))
    assert math.isnan(curve_at([], [], 0.9))


def test_a_difference_of_aucs_is_not_said_to_reach_beyond_one() -> None:
    # Two seeds, .2 apart: half of the interval is 1.27.
    estimate = paired([0.9, 0.7], [0.6, 0.6])

    assert estimate.half() == pytest.approx(12.7062 * 0.1, rel=1e-5)
    assert estimate.interval() == (-1.0, 1.0)
    assert estimate.shown() == "+.200 ± 1 or more"
    assert half_shown(0.0004) == ".000"
    assert Estimate(-0.0001, 0.001, 3).shown() == ".000 ± .004"


def test_the_corrected_half_width_stands_beside_the_plain_one() -> None:
    plain, corrected = (stats.t.ppf(1 - 0.025 / number, 4) * 0.002 for number in (1, 28))

    assert Estimate(0.01, 0.002, 5).shown(28) == f"+.010 ± {plain:.3f} (± {corrected:.3f})".replace("0.", ".")


def test_a_difference_of_rows_is_not_of_fewer_seeds_than_it_says() -> None:
    assert not paired([0.9, math.nan, 0.8], [0.6, 0.6, 0.6]).known
    assert paired([0.9, math.nan, 0.8], [0.6, 0.6, 0.6]).shown() == "–"


# --- what is chosen


def test_the_best_of_all_epochs_and_rates_is_chosen() -> None:
    table = {0.003: [0.71, 0.74, 0.73], 0.01: [0.72, 0.73, 0.75]}

    assert best((2, 5, 10), table) == Choice(10, 0.01, 0.75, "most")
    assert best((2, 5, 10), {0.003: [0.71, 0.74, 0.73]}) == Choice(5, 0.003, 0.74, "")
    assert best((2, 5, 10), {0.003: [0.75, 0.74, math.nan]}) == Choice(2, 0.003, 0.75, "fewest")


def test_of_equals_the_cheaper_is_chosen_and_nan_never() -> None:
    assert best((1, 3), {0.01: [0.7, 0.7], 0.003: [0.7, 0.7]}) == Choice(1, 0.003, 0.7, "fewest")
    assert best((1, 3), {0.01: [math.nan, 0.1]}).epochs == 3


def test_more_epochs_are_tried_only_beyond_the_most_and_kept_only_where_they_are_better() -> None:
    most = best((2, 5), {0.1: [0.6, 0.7]})

    assert extended(most, 10, 0.71) == Choice(10, 0.1, 0.71, "most")
    assert extended(most, 10, 0.69) == Choice(5, 0.1, 0.7, "")
    assert extended(most, 10, math.nan) == Choice(5, 0.1, 0.7, "")
    with pytest.raises(ValueError, match="the most alone"):
        extended(best((2, 5), {0.1: [0.7, 0.6]}), 10, 0.9)
    with pytest.raises(ValueError, match="the most alone"):
        extended(most, 5, 0.9)


def test_ends_of_what_was_tried_are_counted() -> None:
    choices = [best((1, 2, 3), {0.1: aucs}) for aucs in ([3, 2, 1], [1, 2, 3], [1, 3, 2], [1, 2, 9])]

    assert counted_edges(choices) == {"fewest": 1, "most": 2, "all": 4}


# --- measures and comparisons


def test_the_auditors_attack_is_chosen_once_for_all_runs() -> None:
    runs = [{"canaries": {"a": 0.9, "b": 0.70}}, {"canaries": {"a": 0.5, "b": 0.72}}]

    # Chosen in each run it would be (.9 + .72) / 2.
    assert measures.beyond(runs) == pytest.approx(0.71)
    assert measures.beyond_by_seed(runs) == [0.70, 0.72]
    assert math.isnan(measures.beyond([{"canaries": {"a": math.nan}}]))


def test_an_attack_that_some_run_does_not_have_is_not_compared_with_others() -> None:
    runs = [{"canaries": {"a": 0.9, "b": 0.7}}, {"canaries": {"a": math.nan, "b": 0.7}}, {"canaries": {"b": 0.7}}]

    assert measures.beyond(runs) == pytest.approx(0.7)
    assert math.isnan(measures.total([{"total": 0.9}, {"total": math.nan}]))


def test_how_much_the_best_of_several_attacks_is_read_too_high_is_told_by_the_other_seeds() -> None:
    """Attacks that know nothing: the best by its own mean is above a half, the one that others choose is not."""
    draw = np.random.default_rng(0)
    studies = [
        [{"canaries": dict(zip("abc", draw.normal(0.5, 0.01, 3), strict=True))} for _ in range(5)] for _ in range(1000)
    ]

    by_mean, by_others = (
        np.array([figure(runs) for runs in studies]) for figure in (measures.beyond, measures.beyond_by_others)
    )

    # The largest of three standard normal figures has the mean 3/(2√π). Four standard errors of a mean of a thousand.
    assert by_mean.mean() - 0.5 == pytest.approx(1.5 / math.sqrt(math.pi) * 0.01 / math.sqrt(5), abs=0.0006)
    assert by_others.mean() == pytest.approx(0.5, abs=0.0006)
    assert math.isnan(measures.beyond_by_others(studies[0][:1]))


def test_beside_the_leak_it_is_said_how_much_too_high_it_is_read() -> None:
    found = measured({"isotropic": 0.0})
    found.runs[NONE.label][0]["canaries"] = {"a": 0.99, "b": 0.999}
    for one in found.runs[NONE.label][1:]:
        one["canaries"] = {"a": 0.99, "b": 0.988}

    said = kept.read_too_high([found])

    # b has .999, .988, .988, .988: the best by .00075. Of the first seed the others choose a, with .990; else b.
    assert "lower by at most .002, .000 in the median" in said
    assert "of 5 rows" in said
    assert "one seed does not tell" in kept.read_too_high([measured({"isotropic": 0.0}, seeds=1)])


def result(leak: float, test: float) -> dict[str, Any]:
    rest = {"matched": leak, "prediction": 0.7, "late_error": 0.4}
    return {"canaries": {"a": leak}, "total": leak, "test": test, "private": test + 0.01, **rest}


def measured(gains: Mapping[str, float], *, seeds: int = 4, validation: Mapping[str, float] | None = None) -> Measured:
    """Families of which each is better than a common line by so much; leaks .9 to .55 in as many strengths."""
    noise = np.random.default_rng(0).normal(0, 0.001, (seeds, 16))
    runs: dict[str, list[dict[str, Any]]] = {
        NONE.label: [result(0.99, 0.8 + 0.02 * seed) for seed in range(seeds)],
    }
    validated = {}
    for number, (name, gain) in enumerate(gains.items()):
        family = next(one for one in defenses.FAMILIES if one.label == name)
        for place, member in enumerate(family.members):
            leak = 0.9 - 0.35 * place / (len(family.members) - 1)
            runs[member.label] = [
                # Seeds differ by .02, and a comparison within seeds does not notice.
                result(leak, 0.7 + 0.1 * leak + 0.02 * seed + gain + noise[seed, number])
                for seed in range(seeds)
            ]
            validated[member.label] = result(leak, 0.5 + (validation or gains)[name])
    return Measured(
        case=Case(setting=Setting(key="x", title="a set"), epochs=(1, 2, 3), seeds=tuple(range(seeds))),
        choices={label: Choice(1, 0.01, 0.5 + 0.001 * number) for number, label in enumerate(runs)},
        silent_choices={name: Choice(1, 0.01, 0.7 + 0.01 * len(name)) for name in SILENT},
        runs=runs,
        validated=validated,
        silent={name: [0.7 + 0.02 * seed for seed in range(seeds)] for name in SILENT},
    )


@pytest.mark.parametrize(("better", "side"), [(0.02, "newer"), (-0.02, "older"), (0.0, "")])
def test_a_newer_defense_is_compared_within_seeds(better: float, side: str) -> None:
    found = measured({"isotropic": 0.0, "axis-sumkl": -0.01, "asymmetric-response": better})

    comparisons = equal_leak.all_compared([found], BEYOND, "test")

    assert [(one.level, one.newer, one.older) for one in comparisons] == [
        (level, "asymmetric-response", "isotropic") for level in equal_leak.LEVELS
    ]
    for one in comparisons:
        # The noise of a figure is .001, of a mean of four differences .0007: four of these.
        assert one.gain.value == pytest.approx(better, abs=0.003)
        assert equal_leak.outcome(one, len(comparisons)) == side
        claim = equal_leak.claim_of(one, len(comparisons))
        assert claim.verdict == ("reproduces" if side == "newer" else "does not")
        assert "corrected for the 3 comparisons of all tables" in claim.why


def test_all_tables_of_equal_leak_are_corrected_together() -> None:
    """By two measures of the leak and two tops: the same interval, whichever table a comparison is in."""
    found = [measured({"isotropic": 0.0, "axis-sumkl": -0.01, "asymmetric-response": 0.02})]
    made = [
        one
        for measure in (BEYOND, TOTAL)
        for top in ("test", "private")
        for one in equal_leak.all_compared(found, measure, top)
    ]

    assert len(made) == equal_leak.comparisons_of(found) == 12
    for measure in (BEYOND, TOTAL):
        for top in ("test", "private"):
            assert equal_leak.counted(found, measure, top).startswith("3 comparisons, corrected for 12. ")
    # Three degrees of freedom: of one in 240 on each side.
    half = stats.t.ppf(1 - 0.025 / 12, 3) * made[0].gain.error
    assert equal_leak.claim_of(made[0], 12).why == (
        f"corrected for the 12 comparisons of all tables the interval, {signed(made[0].gain.value - half)} to "
        f"{signed(made[0].gain.value + half)}, lies above 0, and beside the older one's next weaker strength the gain "
        f"is {signed(made[0].least)}"
    )


def test_none_is_ahead_that_a_bend_of_the_older_curve_might_hide() -> None:
    one = equal_leak.all_compared([measured({"isotropic": 0.0, "asymmetric-response": 0.05})], BEYOND, "test")[0]
    gain = Estimate(0.05, 0.001, 4)

    assert equal_leak.outcome(replace(one, gain=gain, least=0.01), 3) == "newer"
    hidden = replace(one, gain=gain, least=-0.01)
    assert equal_leak.outcome(hidden, 3) == ""
    assert "but beside the older one's next weaker strength the gain is −.010" in equal_leak.claim_of(hidden, 3).why
    assert equal_leak.claim_of(hidden, 3).verdict == "does not"
    behind = replace(one, gain=Estimate(-0.05, 0.001, 4), most=-0.01)
    assert equal_leak.outcome(behind, 3) == "older"
    assert equal_leak.outcome(replace(behind, most=0.01), 3) == ""


def test_a_curve_that_bends_down_lies_between_its_line_and_its_next_weaker_strength() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        leaks = sorted(draw.uniform(0.5, 1.0, 4).tolist())
        level, power = draw.uniform(leaks[0], leaks[-1]), draw.uniform(0.1, 1.0)
        tests = [leak**power for leak in leaks]  # rises, and bends down

        assert curve_at(leaks, tests, level) <= level**power + 1e-12
        assert next_weaker(leaks, tests, level) >= level**power - 1e-12


def test_what_the_next_weaker_strength_keeps_is_the_best_that_leaks_no_more() -> None:
    leaks, tests = [0.9, 0.5, 0.6], [0.70, 0.65, 0.75]

    assert next_weaker(leaks, tests, 0.55) == next_weaker(leaks, tests, 0.6) == 0.75
    assert next_weaker(leaks, tests, 0.61) == 0.75  # of what leaks .9 nobody would take less
    assert math.isnan(next_weaker(leaks, tests, 0.91))


def test_errors_are_wider_where_runs_share_records() -> None:
    values = [0.1, 0.4, 0.2, 0.3]

    plain, wider = (jackknife(lambda seeds: float(np.mean([values[s] for s in seeds])), 4, overlap=o) for o in (0, 0.2))

    # Nadeau and Bengio: (1/n + n_test/n_train) times the variance.
    assert wider.error == pytest.approx(math.sqrt((1 / 4 + 0.2) * np.var(values, ddof=1)))
    assert plain.error == pytest.approx(stats.sem(values))


def test_a_gain_that_a_table_alone_would_tell_is_not_told_among_all() -> None:
    # By its own table of three comparisons it is ahead, of all twelve at once it is not.
    one = equal_leak.all_compared([measured({"isotropic": 0.0, "asymmetric-response": 0.05})], BEYOND, "test")[0]
    error = 0.05 / stats.t.ppf(1 - 0.025 / 6, 3)
    doubtful = replace(one, gain=Estimate(0.05, float(error), 4))

    assert equal_leak.outcome(doubtful, 3) == "newer"
    assert equal_leak.outcome(doubtful, 12) == ""


def test_tables_of_the_private_top_are_said_to_be_secondary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(equal_leak, "study", lambda asked: [measured({"isotropic": 0.0, "asymmetric-response": 0.05})])

    (section,) = equal_leak.sections(Settings(out=tmp_path))

    titles = re.findall(r"^\*\*(.+?)\.\*\*", section.body, flags=re.MULTILINE)
    assert [title.endswith("the private top (secondary)") for title in titles] == [False, True] * 2
    assert "are *secondary*" in section.body
    assert "for the 12 comparisons of all four tables together" in " ".join(section.body.split())
    wider = stats.t.ppf(1 - 0.025 / 12, 3) / stats.t.ppf(0.975, 3)
    assert f"the corrected one is {wider:.1f} times that" in " ".join(section.body.split())


def test_the_older_one_is_chosen_by_the_validation_seed() -> None:
    gains = {"isotropic": 0.0, "axis-sumkl": 0.01, "record-gaussian": 0.005}

    for chosen in ("isotropic", "axis-sumkl"):
        found = measured(gains, validation=dict.fromkeys(gains, 0.0) | {chosen: 0.1})
        comparisons = equal_leak.compared(found, BEYOND, "test")
        assert {one.older for one in comparisons} == {chosen}
        assert all((one.gain.value > 0) == (chosen == "isotropic") for one in comparisons)


def test_the_older_one_is_chosen_by_the_top_that_is_compared() -> None:
    found = measured({"isotropic": 0.0, "axis-sumkl": 0.01, "record-gaussian": 0.005})
    for number, family in enumerate((ISOTROPIC, AXIS_SUMKL)):
        for member in family.members:
            # By the top that sends isotropic noise is ahead, by the private one axis-sumKL.
            found.validated[member.label].update(test=0.9 - 0.1 * number, private=0.8 + 0.1 * number)

    assert {one.older for one in equal_leak.compared(found, BEYOND, "test")} == {"isotropic"}
    assert {one.older for one in equal_leak.compared(found, BEYOND, "private")} == {"axis-sumkl"}


def test_who_does_not_reach_a_leak_is_not_compared_there() -> None:
    found = measured({"isotropic": 0.0, "asymmetric-response": 0.01})
    runs = dict(found.runs)
    # Without its strongest members the family ends at a leak of .667.
    for member in ASYMMETRIC.members[3:]:
        del runs[member.label]
    shorter = Measured(**{**vars(found), "runs": runs})

    assert [one.level for one in equal_leak.compared(shorter, BEYOND, "test")] == [0.7, 0.8]
    assert equal_leak.best_older(found, BEYOND, "test", 0.95) is None


def test_an_error_of_the_leak_is_in_the_interval() -> None:
    # Test AUCs without any error; one seed's leaks of the newer defense are .1 off, on a line of slope .1.
    found = measured({"isotropic": 0.0, "asymmetric-response": 0.0})
    exact = {
        label: [result(one["total"], 0.7 + 0.1 * one["total"]) for one in found.runs[label]]
        for label in (member.label for family in (ISOTROPIC, ASYMMETRIC) for member in family.members)
    }
    off = {
        member.label: [
            result(one["total"] + 0.1 * (seed == 0), one["test"]) for seed, one in enumerate(exact[member.label])
        ]
        for member in ASYMMETRIC.members
    }
    certain, uncertain = (Measured(**{**vars(found), "runs": {**found.runs, **exact, **more}}) for more in ({}, off))

    (first, *_), (second, *_) = (equal_leak.compared(one, BEYOND, "test")[1:] for one in (certain, uncertain))

    assert first.gain.error == pytest.approx(0.0, abs=1e-12)
    # The mean leak is .025 too large, so .0025 are missing at that leak; as of a mean of .01, 0, 0 and 0.
    assert second.gain.value == pytest.approx(-0.0025, abs=1e-9)
    # Each seed tests on a tenth of the same records.
    assert second.gain.error == pytest.approx(stats.sem([0.01, 0.0, 0.0, 0.0]) * math.sqrt(1 + 4 / 9), rel=1e-6)


def test_levels_of_the_total_follow_from_leaks_alone() -> None:
    found = measured({"isotropic": 0.0, "record-gaussian": 0.5})

    # Both reach .55 to .9.
    assert equal_leak.levels(found, TOTAL) == pytest.approx([0.6375, 0.725, 0.8125])
    assert equal_leak.levels(measured({"isotropic": 0.0}), TOTAL) == []


def test_a_defended_model_is_worth_what_it_has_above_no_message() -> None:
    found = measured({"isotropic": 0.0, "record-gaussian": 0.05})

    one = worth.worth_of(found, RECORD.members[0].label, found.no_message)

    # .7 + .1 · .9 + .05 and the private top's .01, less .7; the noise of a mean of four is .0005.
    assert one.gain.value == pytest.approx(0.15, abs=0.002)
    assert found.no_message == max((name for name, how in SILENT.items() if how), key=len)
    assert {one.label for one in worth.bought([found], "any top")["a set"]} <= set(found.runs) - {NONE.label}
    assert all(claim.verdict == "reproduces" for claim in worth.claims_of([found]))


def test_what_is_not_surely_better_than_no_message_has_bought_nothing() -> None:
    found = measured({"isotropic": -0.2})
    uncertain = [
        [0.7 + 0.02 * seed + gain for seed, gain in enumerate(gains)] for gains in ([0.001] * 4, [-1, 1, 1, 2])
    ]
    runs = {
        **found.runs,
        NONE.label: [result(0.99, test - 0.01) for test in uncertain[0]],
        ISOTROPIC.members[-1].label: [result(0.9, test) for test in uncertain[1]],
    }
    found = Measured(**{**vars(found), "runs": runs})

    # The label with the highest validation AUC comes last.
    assert worth.best_on_validation(found) == ISOTROPIC.members[-1].label
    undefended, defended, *_ = worth.claims_of([found])
    assert (undefended.verdict, defended.verdict) == ("reproduces", "does not")
    assert undefended.ours == pytest.approx(0.001)
    # A mean gain of .76 with a standard deviation of 1.3.
    unsure = worth.worth_of(found, ISOTROPIC.members[-1].label, found.no_message)
    assert unsure.gain.value > 0.5
    assert worth.bought([found], "any top") == {"a set": []}


def test_sentences_name_who_is_ahead_and_where() -> None:
    ahead = measured({"isotropic": 0.0, "asymmetric-response": 0.05})
    behind = replace(
        measured({"isotropic": 0.0, "asymmetric-response": -0.05}),
        case=Case(setting=Setting(key="y", title="another set"), epochs=(1, 2, 3), seeds=(0, 1, 2, 3)),
    )

    said = equal_leak.counted([ahead, behind], BEYOND, "test")

    assert said.startswith("6 comparisons, corrected for 24. `asymmetric-response`: ahead in 3 of 6 (a set; by .0")
    assert "behind in 3 (another set; by .0" in said
    # Three gains of .05 and three of −.05, give or take .001.
    assert re.search(
        r"\(without correction 3 and 3; median gain [+−]?\.00\d, median ± \.00\d, corrected ± \.0\d\d\)\.$", said
    )
    warning, *texts = summary.findings([ahead, behind])
    assert "a set 4, another set 4" in warning
    for text in texts[:2]:
        assert "yes in a set +" in text
        assert "it is worse in none" in text


@pytest.mark.parametrize("seeds", [1, 2])
def test_nothing_is_counted_below_three_seeds(seeds: int) -> None:
    found = measured({"isotropic": 0.0, "asymmetric-response": 0.05, "record-gaussian": 0.05}, seeds=seeds)

    said = summary.findings([found])
    told = " ".join(text for text in said if not text.startswith("**More epochs"))

    assert not re.search(r"\d+ of \d+", told)
    assert not re.search(r"(yes|ahead|worse|behind) in", told)
    assert told.count("fewer than 3 seeds, so not tested: a set.") == 2
    assert "With fewer than 3 seeds it is not counted which have." in told
    assert "fewer than 3 seeds" in worth.bought_table([found])
    assert not re.search(r"\d+ of \d+", worth.bought_table([found]))
    assert worth.bought([found], "any top") == {}
    # With three they are.
    enough = measured({"isotropic": 0.0, "asymmetric-response": 0.05, "record-gaussian": 0.05}, seeds=3)
    assert re.search(r"ahead in \d of \d", " ".join(summary.findings([enough])))
    assert re.search(r"\d+ of 12 \(", worth.bought_table([enough]))


def test_of_one_seed_nothing_is_said_to_be_reached() -> None:
    cells = equal_leak.table([measured({"isotropic": 0.0, "asymmetric-response": 0.05}, seeds=1)], BEYOND, "test")

    assert cells.count("one seed: not compared") == len(equal_leak.LEVELS)
    assert "none reaches it" not in cells


def test_what_is_claimed_of_worth_is_corrected_for_all_that_is() -> None:
    """Two rows of two settings beside two baselines: eight."""
    found = [measured({"isotropic": -0.01}), measured({"isotropic": 0.02})]

    claims = worth.claims_of(found)

    assert len(claims) == len(worth.judged(found)) == 8
    assert all("corrected for all 8 such claims" in claim.why for claim in claims)
    for claim, (one, _) in zip(claims, worth.judged(found), strict=True):
        low = one.gain.value - stats.t.ppf(1 - 0.025 / 8, 3) * one.gain.error
        assert (claim.verdict == "reproduces") is bool(low > 0.0)
    # Four defended rows each, beside both baselines.
    assert worth.rows_compared(found) == 16
    assert "corrected for 8 comparisons, by which it is judged" in summary.findings(found)[1]
    assert "corrected for all 16 comparisons of a defended row" in " ".join(summary.findings(found))


def test_beside_in_none_stands_what_could_have_been_told() -> None:
    found = [measured({"isotropic": -0.2})]
    named = worth.judged(found)[0][0]
    named.measured.runs[NONE.label][0]["private"] += 0.02

    (text, *_) = [text for text in summary.findings(found) if text.startswith("**Are messages")]
    bought = next(text for text in summary.findings(found) if text.startswith("**Has any"))

    assert worth.worth_of(found[0], NONE.label, found[0].no_message).gain.shown(4) in text
    halves = [one.gain.half(8) for one in worth.every_worth(found, "any top")]
    assert f"in 0 of 1 settings, the median corrected ± being {half_shown(float(np.median(halves)))}" in bought


def test_it_is_said_which_defenses_are_at_the_edge_of_what_was_tried() -> None:
    found = measured({"isotropic": 0.0, "axis-sumkl": 0.0, "asymmetric-response": 0.0})
    edges = {member.label: "most" for member in (*AXIS_SUMKL.members, ISOTROPIC.members[0])}
    choices = {label: replace(choice, edge=edges.get(label, "")) for label, choice in found.choices.items()}
    found = Measured(**{**vars(found), "choices": choices})

    (said,) = [text for text in summary.findings([found]) if text.startswith("**More epochs")]

    assert "Of 13 choices 5 are of the most epochs that were tried: `axis-sumkl` 4 of 4, `isotropic` 1 of 4;" in said
    assert "of what sends nothing back 0 of 5." in said
    assert (
        "Of the older families that the newer ones are compared with 5 of 8 choices, of the newer ones 0 of 4" in said
    )


def test_a_collapsed_run_makes_no_interval_beyond_what_can_be() -> None:
    found = measured({"isotropic": 0.0})
    label = ISOTROPIC.members[0].label
    found.runs[label][0].update(test=0.1, private=0.1)

    row = next(line for line in kept.table(found).splitlines() if label in line)

    tests = [one["test"] for one in found.runs[label]]
    assert f"[{shown(min(tests))} to {shown(max(tests))}]" in row
    assert kept._bar(tests) == pytest.approx((np.mean(tests) - min(tests), max(tests) - np.mean(tests)))


# --- the runs


def test_a_hidden_layer_and_components_make_other_heads() -> None:
    setting = QUICK["digits"].setting.as_settings()
    found = {
        (bottom, hidden): study.one_way(setting, 0, bottom, hidden, 0.01, [1, 2], validation=True)["auc"]
        for bottom in ("random", "pca")
        for hidden in (False, True)
    }

    assert len({tuple(aucs) for aucs in found.values()}) == 4
    assert all(0.0 < auc < 1.0 for aucs in found.values() for auc in aucs)


QUICK = {case.key: case for case in settings._QUICK}


def test_columns_are_divided_as_the_setting_says() -> None:
    apart = study.data_of(QUICK["digits"].setting.as_settings(), 0, validation=False)
    both = study.data_of(QUICK["breast-cancer"].setting.as_settings(), 0, validation=False)

    assert not set(apart.active.column_names) & set(apart[PASSIVE].column_names)
    assert len(apart.active.column_names) == 24
    assert both.active.column_names == both[PASSIVE].column_names
    assert torch.equal(both.active.train.columns.numeric, both[PASSIVE].train.columns.numeric)


def test_validation_records_are_training_records() -> None:
    setting = QUICK["digits"].setting.as_settings()
    whole, part = (study.data_of(setting, 5, validation=validation) for validation in (False, True))

    train, validated = (set(records.ids.tolist()) for records in (part.active.train, part.active.test))
    assert not train & validated
    assert train | validated == set(whole.active.train.ids.tolist())


def test_images_are_cut_below_their_upper_third(tmp_path: Path) -> None:
    images = np.arange(30 * 28 * 28, dtype=np.uint8).reshape(30, 28, 28)
    digits = np.arange(30, dtype=np.uint8) % 10
    np.savez(tmp_path / "m.npz", x_train=images, y_train=digits, x_test=images[:5], y_test=digits[:5])
    setting = Setting(key="m", kind="images", arguments={"path": str(tmp_path / "m.npz")}).as_settings()

    data = study.data_of(setting, 0, validation=False)

    rows = torch.cat([data.active.test.columns.numeric, data[PASSIVE].test.columns.numeric], dim=1)
    assert torch.equal((rows * 255).round().byte(), torch.from_numpy(images[:5].reshape(5, -1)))
    assert data.active.test.columns.numeric.shape[1] == 9 * 28
    assert data.active.test.labels is not None
    assert data.active.test.labels.tolist() == [0, 1, 0, 1, 0]
    assert not set(data.active.train.ids.tolist()) & set(data.active.test.ids.tolist())


def test_a_run_of_the_most_epochs_passes_through_the_others() -> None:
    setting = QUICK["digits"].setting.as_settings()
    defense = ASYMMETRIC.members[2].as_settings()

    (one, two) = study.validate(setting, 5, defense, 0.01, [1, 2])["auc"]

    assert study.validate(setting, 5, defense, 0.01, [1])["auc"] == [one]
    assert study.validate(setting, 5, defense, 0.01, [2])["auc"] == [two]


def test_the_label_party_alone_has_its_own_columns_only() -> None:
    setting = QUICK["digits"].setting
    data = study.data_of(setting.as_settings(), 0, validation=False)
    own = data.active.train.columns.numeric.numpy()

    found = study.alone(setting.as_settings(), 0, 0.01, [150], validation=False)["auc"][0]

    assert data.active.train.labels is not None
    assert data.active.test.labels is not None
    model = LogisticRegression(max_iter=20_000, C=1e4).fit(own, data.active.train.labels.numpy())
    scores = torch.from_numpy(model.decision_function(data.active.test.columns.numeric.numpy()))
    # Of 180 records 17 are positives, so that .02 are 55 of 2771 pairs; after 150 epochs it is nearly the optimum.
    assert found == pytest.approx(leak_auc(scores, data.active.test.labels), abs=0.02)


def test_every_defense_is_known_by_its_name() -> None:
    for name, kind in study.KINDS.items():
        assert built_in("defenses")[name] is kind
    for one in defenses.EVERY:
        assert [type(made).name for made in study.defense_of(one.as_settings())] == ([one.name] if one.name else [])
    assert study.defense_of(AXIS_SUMKL.members[0].as_settings())[0].detection_error == 0.3


def test_missing_data_are_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    (tmp_path / "mnist.npz").touch()
    said: list[str] = []
    asked = Settings(out=tmp_path, say=said.append)

    assert [case.key for case in cases(asked)] == ["mnist"]
    assert len(said) == len(asked.missing) == 6
    assert asked.missing["Give Me Some Credit, columns divided"] == "give_me_some_credit.parquet"


def test_fewer_seeds_are_those_that_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    (tmp_path / "mnist.npz").touch()

    (case,) = cases(Settings(out=tmp_path, seeds=2, say=lambda line: None))

    assert case.seeds == (0, 1)
    assert settings.VALIDATION_SEED not in Case(setting=case.setting, epochs=(1,)).seeds


# --- the whole


@pytest.fixture(scope="module")
def quick(one_code: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("better-defense")
    few = (NONE, *ISOTROPIC.members[1:3], AXIS_SUMKL.members[1], ASYMMETRIC.members[2])
    with pytest.MonkeyPatch.context() as patch:
        # One data set and a few defenses: what CI's run of the command does takes longer.
        patch.setattr(settings, "_QUICK", (settings._QUICK[0],))
        patch.setattr(defenses, "QUICK", few)
        patch.setattr(drawing, "svg_file", lambda figure, name: "<svg/>")
        # The search has its own tests.
        parts = ",".join(part for part in better_defense.PARTS if part != "search")
        assert better_defense.main(["--quick", "--only", parts, "--out", str(out), "--page", str(out / "docs")]) == 0
        yield out


def test_the_quick_run_writes_results_and_page(quick: Path) -> None:
    content = json.loads((quick / "results.json").read_text())
    page = (quick / "better-defense.md").read_text()

    assert {cell["part"] for cell in content["cells"]} <= {*better_defense.PARTS, None}
    assert not any(cell["stale"] for cell in content["cells"])
    assert "{settings}" not in page
    assert "{sections}" not in page
    assert str(quick) not in page
    # About a tenth of 569 records is tested on; a tenth of the others would be less than 400 canaries.
    row = re.search(
        r"\| breast cancer \| (\d+) \| (\d+) \| \d+\.\d % \| 30 / 30 \| 16 \| 64 \| 1, 2, 3 \| (\d+) \| 2 \|", page
    )
    assert row is not None
    trained, tested, canaries = map(int, row.groups())
    assert trained + tested == 569
    assert canaries == trained // 10
    assert (quick / "docs" / "better-defense.md").read_text() == page
    for name in re.findall(r"\]\(figures/([\w-]+\.svg)\)", page):
        assert ElementTree.parse(quick / "docs" / "figures" / name).getroot().tag == "svg"


def kept_jobs(quick: Path, work: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (quick / "jobs").glob(f"{work}-*.json")]


def test_each_defense_is_measured_at_its_own_best(quick: Path) -> None:
    tried: dict[str, dict[tuple[int, float], float]] = {}
    for cell in kept_jobs(quick, "validate"):
        given = cell["settings"]
        assert given["seed"] == settings.VALIDATION_SEED
        rows = tried.setdefault(given["defense"]["label"], {})
        rows |= {
            (epochs, given["learning_rate"]): auc
            for epochs, auc in zip(given["epochs"], cell["result"]["auc"], strict=True)
        }

    runs = [cell["settings"] for cell in kept_jobs(quick, "measure") if not cell["settings"]["validation"]]

    assert sorted((one["defense"]["label"], one["seed"]) for one in runs) == sorted(
        (label, seed) for label in tried for seed in (0, 1)
    )
    for one in runs:
        rows = tried[one["defense"]["label"]]
        first = 3 * (3 if one["defense"]["name"] == "asymmetric-response" else 2)
        assert len(rows) - first == sum(epochs > 3 for epochs, _ in rows)
        assert rows[one["epochs"], one["learning_rate"]] == max(rows.values())
        # Of the most epochs until then twice as many were tried, unless there are four times as many.
        assert one["epochs"] not in (3, 6) or (2 * one["epochs"], one["learning_rate"]) in rows


def test_what_leaks_of_canaries_is_what_is_promised(quick: Path) -> None:
    found = {
        cell["settings"]["defense"]["label"]: cell["result"]["canaries"].values()
        for cell in kept_jobs(quick, "measure")
        if cell["settings"]["seed"] == 0
    }

    # Undefended below a linear top they are read, all; answers that are drawn once have at most .60. Of 51 coins the
    # standard error is .08: three of these.
    assert max(found[NONE.label]) == 1.0
    assert max(found["asymmetric-response 0.4"]) < 0.6 + 0.25


def test_a_second_run_repeats_no_work(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {path: path.stat().st_mtime_ns for path in (quick / "jobs").iterdir()}
    ran: list[Sequence[Job]] = []
    monkeypatch.setattr("scripts.reproduce.shared.jobs._run", lambda job, folder, code: ran.append(job))

    assert better_defense.main(["--quick", "--only", "kept", "--out", str(quick)]) == 0

    assert not ran
    assert {path: path.stat().st_mtime_ns for path in (quick / "jobs").iterdir()} == jobs


def test_one_cell_is_run_alone(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = (cell for cell in kept_jobs(quick, "alone") if cell["settings"]["seed"] == 1)
    name = Job(study.alone, cell["settings"]).name

    assert better_defense.main(["--quick", "--only", f"kept:{name}", "--out", str(quick)]) == 0
    assert better_defense.main(["--quick", "--only", "kept:nothing", "--out", str(quick)]) == 2
    assert "nothing" in capsys.readouterr().err
