"""Runs side by side: a conclusion, ranked rows, and what to do."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from splitvfl.claims import Guarantee
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.report.comparison import as_json, comparison, conclusion, joining_sentence, ranked, to_do
from splitvfl.report.party_result import PartyResult
from splitvfl.report.rows import RunGroup, group_runs
from splitvfl.report.summary import ExchangeTraits, OwnModelResult, RunSummary
from tests.report.test_tables import party, result, run

ABOVE, UNCLEAR, BELOW = (0.98, 0.96, 0.99), (0.56, 0.48, 0.63), (0.52, 0.48, 0.57)
GUARANTEED = Guarantee(0.6, "run", "asymmetric-response(detection_error=0.4)")


def printed(renderable: RenderableType, width: int = 80, **settings: Any) -> str:
    target = io.StringIO()
    Console(file=target, width=width, markup=False, **settings).print(renderable)
    return target.getvalue()


def leaking(
    excess: tuple[float, float, float] | None, defense: str = "none", *, bound: Guarantee | None = None, **changes: Any
) -> RunSummary:
    coins = None if excess is None else CanaryLeak(*excess, 150, 150, figures=3)
    shown = replace(
        party(norm=result(0.9)),
        excess=coins,
        canaries={} if coins is None else {"norm": coins},
        guarantee=bound,
        own_columns_auc=0.77,
        first_component_auc=0.57,
        total=0.8,
    )
    return run(defense, parties={"lab": shown}, **changes)


def group(*runs: RunSummary) -> RunGroup:
    (found,) = group_runs(runs)
    return found


def one_way(**changes: Any) -> RunSummary:
    return run(
        exchange="one-way",
        exchange_traits=ExchangeTraits(one_way=True, in_headings=False),
        parties={"lab": PartyResult({}, own_columns_auc=0.77, first_component_auc=0.57)},
        **changes,
    )


def test_what_protects_labels_comes_first_and_of_these_the_better_model() -> None:
    found = ranked(
        group(
            leaking(ABOVE, test_metric=0.99),
            leaking(UNCLEAR, "a", test_metric=0.98),
            leaking(UNCLEAR, "b", bound=GUARANTEED, test_metric=0.7),
            one_way(test_metric=0.8),
        )
    )
    assert [(one.row.label, one.verdict.state) for one in found] == [
        ("one-way", "no-label-dependent-message"),
        ("b", "below-goal"),
        ("a", "inconclusive"),
        ("none", "above-goal"),
    ]


def test_seeds_are_pooled_into_one_row() -> None:
    (row,) = ranked(group(*[leaking(UNCLEAR, "a", seed=seed) for seed in range(6)]))
    assert row.verdict.state == "below-goal"
    assert row.verdict.excess is not None
    assert row.verdict.excess.canaries == 1800


def test_the_conclusion_is_the_defense_to_take_beside_the_model_without_one() -> None:
    runs = [leaking(ABOVE, test_metric=0.95), leaking(UNCLEAR, "a", bound=GUARANTEED, test_metric=0.9)]
    first, second = conclusion(group(*runs))
    assert first.startswith("a: below goal, guaranteed for the whole run: AUC at most 0.60")
    assert second == "Test AUC 0.900 (without a defense 0.950)."
    assert to_do(group(*runs)) == ""
    assert conclusion(group(runs[1]))[1] == "Test AUC 0.900 (no undefended model in this comparison)."


def test_where_nothing_protects_it_says_why_and_proposes_what_does() -> None:
    unclear = group(leaking(ABOVE), leaking(UNCLEAR, "a"))
    assert conclusion(unclear) == [
        "Inconclusive: nothing here is shown, with 95 % confidence, to keep excess leakage below 0.60."
    ]
    assert to_do(unclear).startswith(
        "Train one-way (exchange: one-way) or randomise labels (asymmetric-response(detection_error=0.4))."
    )
    assert "canaries" in to_do(unclear)
    above = group(leaking(ABOVE), leaking(ABOVE, "asymmetric-response(detection_error=0.1)"))
    assert conclusion(above) == ["Above goal: nothing here keeps individual labels below 0.60."]
    assert to_do(above) == "Train one-way (exchange: one-way)."


@pytest.mark.parametrize(
    "defense", ["sumkl(detection_error=0.4)", "axis-sumkl(ratio=2)", "axis-gaussian(ratio=2)", "isotropic", "max-norm"]
)
def test_a_defense_that_is_known_to_be_broken_is_never_proposed(defense: str) -> None:
    measured = group(leaking(BELOW, defense), leaking(ABOVE))
    assert measured.of_defense(defense)
    (line,) = conclusion(measured)
    assert "known to be broken: do not rely on it" in line
    assert "known to be broken" in printed(comparison(measured.runs))
    assert to_do(measured).startswith("Train one-way")
    better = group(leaking(BELOW, defense, test_metric=0.99), leaking(BELOW, "a", test_metric=0.5))
    assert conclusion(better)[0].startswith("a: below goal")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_the_table_fits_and_cuts_nothing(seeds: int, width: int) -> None:
    name = "a-defense-with-a-rather-long-name(first_setting=0.5, second=0.123456)"
    runs = [
        leaking(excess, defense, bound=bound, seed=seed, test_metric=0.9 + seed / 100)
        for excess, defense, bound in ((ABOVE, "none", None), (UNCLEAR, name, GUARANTEED))
        for seed in range(seeds)
    ]
    text = printed(comparison([*runs, one_way()]), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for shown in ("BELOW GOAL", "ABOVE GOAL", "≤ 0.60", "0.90", "0.57", "(0.77)", "0.56", "second=0.123456"):
        assert shown in text
    assert ("0.900–" in text and "0.910" in text) is (seeds == 2)
    assert ("±0.025" in text) is (seeds == 3)  # t(0.975, 2) · 0.01 / √3


def test_states_alone_have_a_colour_and_only_on_a_terminal() -> None:
    runs = [leaking(ABOVE), leaking(BELOW, "a")]
    assert "\x1b" not in printed(comparison(runs))
    coloured = printed(comparison(runs), force_terminal=True, color_system="standard")
    assert re.search(r"\x1b\[1;31mABOVE GOAL *\x1b\[0m", coloured)
    assert re.search(r"\x1b\[1;32mBELOW GOAL *\x1b\[0m", coloured)
    assert len(re.findall(r"\x1b\[[0-9;]*3[0-7]m", coloured)) == 2


def test_other_programs_get_rows_with_all_that_is_shown() -> None:
    found = as_json(group(leaking(ABOVE), leaking(UNCLEAR, "a", bound=GUARANTEED)))
    assert found["goal"] == 0.6
    assert [row["defense"] for row in found["rows"]] == ["a", "none"]
    first = found["rows"][0]
    assert first["verdict"]["state"] == "below-goal"
    assert first["verdict"]["excess"]["low"] == 0.48
    assert first["verdict"]["guarantee"]["auc"] == 0.6
    assert first["test"]["mean"] == pytest.approx(0.9876)


def test_a_partner_to_whom_labels_leak_decides_of_several() -> None:
    (near,) = leaking(BELOW, "a").parties.values()
    (far,) = leaking(ABOVE, "a").parties.values()
    both = run("a", parties={"near": near, "far": far})
    assert conclusion(group(both)) == ["Above goal: nothing here keeps individual labels below 0.60."]
    text = printed(comparison([both]))
    assert "a, near" in text
    assert "a, far" in text


OWN = OwnModelResult("bank", "auc", "gradient boosting", 0.741, 0.794, 0.053, 0.031, 0.075, 6000, 6000)


def test_the_joint_model_stands_beside_the_label_owners_own() -> None:
    def said(own: OwnModelResult) -> str:
        return joining_sentence([leaking(None, own_model=own)])

    figures = "AUC 0.794 against 0.741 with gradient boosting (difference +0.053, 95 % CI"
    assert said(OWN) == (f"The joint model is significantly better than bank alone: {figures} +0.031 to +0.075).")
    worse = replace(OWN, alone=0.794, joint=0.741, difference=-0.053, low=-0.075, high=-0.031)
    assert "significantly worse than bank alone: AUC 0.741 against 0.794" in said(worse)
    unclear = said(replace(OWN, low=-0.002))
    assert "not significantly different from bank alone" in unclear
    assert "-0.002 to +0.075" in unclear
    assert said(replace(OWN, of=70_000)).endswith("to +0.075, 6,000 of 70,000 test records).")
    assert "R² 0.794 against" in said(replace(OWN, metric="r2"))


def test_of_several_seeds_it_is_counted_what_is_significant() -> None:
    worse = replace(OWN, alone=0.775, joint=0.761, difference=-0.014, low=-0.02, high=-0.01)
    unclear = replace(OWN, joint=0.745, difference=0.004, low=-0.01, high=0.02)
    runs = [leaking(None, seed=seed, own_model=own) for seed, own in enumerate([OWN, OWN, worse, unclear])]
    # Means: (0.794 + 0.794 + 0.761 + 0.745) / 4 and (3 · 0.741 + 0.775) / 4.
    assert joining_sentence(runs) == (
        "The joint model is significantly better than bank alone in 2 of 4 runs, and worse in 1: AUC 0.774 against "
        "0.750 on average."
    )


def test_why_there_is_no_own_model_is_said() -> None:
    missing = "What bank alone reaches was not measured: all test records have the same label."
    assert joining_sentence([leaking(None, no_own_model=missing)]) == missing


def test_an_undefended_run_is_found_with_a_private_top_and_like_is_compared_with_like() -> None:
    def line(*runs: RunSummary) -> str:
        return conclusion(group(*runs))[1]

    top = leaking(ABOVE, test_metric=0.80, private_top=True)
    held = leaking(BELOW, "a", test_metric=0.78, private_top=True)
    plain = leaking(ABOVE, test_metric=0.83)
    assert line(top, held) == "Test AUC 0.780 (without a defense 0.800)."
    assert line(plain, top, held) == "Test AUC 0.780 (without a defense 0.800)."
    assert line(plain, held) == "Test AUC 0.780 (without a defense or private top 0.830)."
    assert line(top, replace(held, private_top=False)).endswith("without a defense, but with a private top 0.800).")
