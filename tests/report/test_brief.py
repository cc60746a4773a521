"""Two lines and a table of single figures: what is read first after a run."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.features import FeatureLeak
from splitvfl.report.brief import BRIEF_WIDTH, brief, compared_brief, two_lines
from splitvfl.report.findings import advice, verdict
from splitvfl.report.party_result import PartyResult
from splitvfl.report.rows import group_runs
from splitvfl.report.summary import OwnModelResult, RunSummary
from tests.report.test_tables import party, result, run


def printed(renderable: RenderableType, width: int = 80) -> str:
    target = io.StringIO()
    Console(file=target, width=width).print(renderable)
    return target.getvalue()


def lines(*runs: RunSummary) -> list[str]:
    (group,) = group_runs(runs)
    return two_lines(group)


def leaking(step: float, *, own: float | None = 0.71, defense: str = "none", **changes: object) -> RunSummary:
    shown = replace(party(norm=result(step), direction=result(0.51, 0.55)), own_columns_auc=own)
    return run(defense, parties={"lab": shown}, **changes)


def test_the_first_line_is_the_worst_leak_beside_what_columns_tell_and_the_second_the_model() -> None:
    assert lines(leaking(0.93, test_metric=0.794)) == [
        "Labels: worst leak 0.93 (norm), lab's own columns 0.71: goal missed.",
        "Test AUC 0.794.",
    ]
    assert lines(leaking(0.70))[0].endswith("goal met.")
    assert "own columns not known" in lines(leaking(0.93, own=None))[0]


OWN = OwnModelResult("bank", "auc", "gradient boosting", 0.741, 0.794, 0.053, 0.031, 0.075, 6000, 6000)


def test_the_joint_model_stands_beside_the_label_owners_own() -> None:
    def said(own: OwnModelResult) -> str:
        return lines(leaking(0.93, test_metric=0.794, own_model=own))[1]

    figures = "AUC 0.794 against 0.741 with gradient boosting (difference +0.053, 95 % CI"
    assert said(OWN) == f"Test AUC 0.794. The joint model is better than bank alone: {figures} +0.031 to +0.075)."
    worse = replace(OWN, alone=0.794, joint=0.741, difference=-0.053, low=-0.075, high=-0.031)
    assert "The joint model is worse than bank alone: AUC 0.741 against 0.794" in said(worse)
    unclear = said(replace(OWN, low=-0.002))
    assert "No difference is shown between the joint model and bank alone" in unclear
    assert "-0.002 to +0.075" in unclear
    assert "No difference is shown" in said(replace(OWN, difference=0.0, low=0.0, high=0.0))
    assert said(replace(OWN, of=70_000)).endswith("to +0.075, 6,000 of 70,000 test records).")
    assert "R² 0.794 against" in said(replace(OWN, metric="r2"))


def test_of_several_seeds_it_is_counted_what_is_shown() -> None:
    worse = replace(OWN, alone=0.775, joint=0.761, difference=-0.014, low=-0.02, high=-0.01)
    unclear = replace(OWN, joint=0.745, difference=0.004, low=-0.01, high=0.02)
    runs = [leaking(0.93, seed=seed, own_model=own) for seed, own in enumerate([OWN, OWN, worse, unclear])]
    # Means: (0.794 + 0.794 + 0.761 + 0.745) / 4 and (3 · 0.741 + 0.775) / 4.
    assert lines(*runs)[1].endswith(
        ". The joint model is better than bank alone in 2 of 4 runs and worse in 1; in the others no difference is "
        "shown: AUC 0.774 against 0.750 on average."
    )


def test_why_there_is_no_own_model_is_said() -> None:
    missing = "What bank alone reaches was not measured: all test records have the same label."
    assert lines(leaking(0.93, test_metric=0.794, no_own_model=missing))[1] == f"Test AUC 0.794. {missing}"


def test_the_name_of_a_figure_is_not_broken_inside_a_word() -> None:
    words = printed(brief([leaking(0.93, metric="d2")])).split()
    assert {"explained", "deviance"} <= set(words)


def test_a_defense_that_was_trained_alone_says_what_it_is_not_compared_with() -> None:
    first, second = lines(leaking(0.93, defense="max-norm", test_metric=0.794))
    assert first.startswith("Labels: worst leak ")
    assert second == "Test AUC 0.794; without a defense not trained."


def test_an_undefended_run_is_found_with_a_private_top_and_like_is_compared_with_like() -> None:
    top = leaking(0.95, test_metric=0.80, private_top=True)
    held = leaking(0.55, defense="a", test_metric=0.78, private_top=True)
    plain = leaking(0.95, test_metric=0.83)
    assert lines(top, held)[1] == "Test AUC 0.780; without a defense 0.800."
    assert lines(plain, top, held)[1] == "Test AUC 0.780; without a defense 0.800."
    assert lines(plain, held)[1] == "Test AUC 0.780; without a defense or private top 0.830."
    assert lines(top, replace(held, private_top=False))[1].endswith("without a defense, but with a private top 0.800.")
    assert lines(top) == ["Labels: worst leak 0.95 (norm), lab's own columns 0.71: goal missed.", "Test AUC 0.800."]


def test_one_way_training_has_nothing_to_be_without() -> None:
    silent = run(exchange="one-way", parties={"lab": PartyResult({}, own_columns_auc=0.71)}, test_metric=0.7)
    assert lines(silent)[1] == "Test AUC 0.700."


def test_of_several_the_lines_are_of_the_best_model_below_the_goal_else_of_the_least_leak() -> None:
    plain = leaking(1.0, test_metric=0.95)
    held = leaking(0.55, defense="a", test_metric=0.90)
    better = leaking(0.58, defense="b", test_metric=0.92)
    assert lines(plain, held, better) == [
        "Labels behind b: worst leak 0.58 (norm), lab's own columns 0.71: goal met.",
        "Test AUC 0.920; without a defense 0.950.",
    ]
    worse = leaking(0.8, defense="c", test_metric=0.99)
    assert lines(plain, worse)[0].startswith(
        "Labels behind c: worst leak 0.80 (norm), lab's own columns 0.71: goal miss"
    )


def test_of_several_seeds_the_worst_is_said_and_all_must_hold() -> None:
    found = lines(leaking(0.55, own=None, defense="a", seed=0), leaking(0.65, own=None, defense="a", seed=1))
    assert found[0] == "Labels: worst leak 0.65 (norm), lab's own columns not known: goal missed."


def test_canaries_nothing_flowing_back_and_nothing_measured() -> None:
    coins = CanaryLeak(0.55, 0.5, 0.59, 150, 150)
    with_coins = leaking(0.93, canaries=coins)
    audited = {name: replace(found, total=0.97) for name, found in with_coins.parties.items()}
    with_coins = replace(with_coins, parties=audited)
    assert "0.55 (0.50 to 0.59) beyond the prediction, 0.97 in all" in lines(with_coins)[0]
    assert lines(with_coins)[0].endswith("goal met.")
    silent = run(exchange="one-way", parties={"lab": PartyResult({}, own_columns_auc=0.71)})
    assert lines(silent)[0] == "Labels: no message of training depends on them; lab's own columns 0.71."
    assert "was not measured" in lines(run(parties={"lab": PartyResult({})}))[0]


def test_the_partner_is_named_where_there_are_several() -> None:
    both = run(parties={"a": party(norm=result(0.55)), "b": party(norm=result(0.95))})
    assert lines(both)[0] == "Labels: worst leak 0.95 (norm at b), b's own columns 0.71: goal missed."


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_the_table_holds_at_60_columns_and_cuts_nothing(seeds: int) -> None:
    name = "a-defense-with-a-rather-long-name(first_setting=0.5, second_setting=0.123456)"
    shown = {"p": party(auditor_linear=result(0.94)), "q": party(my_own_attack_of_a_long_name=result(0.81))}
    runs = [
        run(defense, seed=seed, test_metric=0.9 + seed / 100, parties=shown)
        for defense in ("none", name)
        for seed in range(seeds)
    ]
    for table in (brief(runs), compared_brief(runs)):
        text = printed(table, width=BRIEF_WIDTH)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= BRIEF_WIDTH
        assert "0.94" in text
        assert "0.81" in text
    plain = printed(compared_brief(runs), width=BRIEF_WIDTH)
    assert ("0.900–0.910" in plain) is (seeds == 2)
    assert ("0.910 ±0.025" in plain) is (seeds == 3)  # t(0.975, 2) · 0.01 / √3


def test_a_single_run_lists_its_attacks_by_what_they_read() -> None:
    assert "Leak AUC by attack: norm 0.93, direction 0.55." in printed(brief([leaking(0.93)]))
    assert "by attack" not in printed(brief([leaking(0.93), leaking(0.93, seed=1)]))
    silent = run(parties={"telecom": party(sign=result(math.nan), norm=result(0.93))})
    assert "Leak AUC by attack: norm 0.93." in printed(brief([silent]))


def test_cells_are_single_figures() -> None:
    text = printed(brief([leaking(0.93)]))
    row = next(line for line in text.splitlines() if line.startswith("none"))
    assert re.fullmatch(r"none +0\.988 +0\.93 +norm +0\.71", row.strip())


def test_advice_says_what_it_was_without_a_defense_with_a_private_top_too() -> None:
    top = leaking(0.95, own=None, test_metric=0.80, private_top=True)
    held = leaking(0.55, own=None, defense="a", test_metric=0.78, private_top=True)
    (group,) = group_runs([top, held])
    assert "It reached a test AUC of 0.780; without any defense it was 0.800." in advice(group)
    (worse,) = group_runs([top, leaking(0.97, own=None, defense="a", private_top=True)])
    assert "The run without a defense, with a private top, leaked least" in advice(worse)


def test_where_a_partner_reads_as_much_as_the_auditor_every_place_names_its_attack() -> None:
    tied = run(
        parties={"lab": replace(party(auditor_linear=result(0.614), direction=result(0.609)), own_columns_auc=None)}
    )
    assert "worst leak 0.61 (direction)" in lines(tied)[0]
    assert "the direction attack reads part of them (leak AUC 0.61" in verdict(tied)
    assert re.search(r"0\.61 +direction", printed(brief([tied])))
    ahead = run(
        parties={"lab": replace(party(auditor_linear=result(0.74), direction=result(0.61)), own_columns_auc=None)}
    )
    assert "worst leak 0.74 (auditor)" in lines(ahead)[0]


def test_a_mean_below_the_goal_is_not_green_where_a_run_missed_it() -> None:
    runs = [leaking(leak, own=None, defense="a", seed=seed) for seed, leak in enumerate((0.52, 0.53, 0.63))]
    assert lines(*runs)[0].endswith("goal missed.")
    green = "\x1b[32m"
    target = io.StringIO()
    Console(file=target, width=80, force_terminal=True, color_system="standard").print(compared_brief(runs))
    assert "0.58 ±" in target.getvalue()
    assert green not in target.getvalue()
    target = io.StringIO()
    Console(file=target, width=80, force_terminal=True, color_system="standard").print(compared_brief(runs[:2]))
    assert green in target.getvalue()


def test_canaries_are_named_at_the_partner_where_they_were_read() -> None:
    low, high = CanaryLeak(0.52, 0.46, 0.58, 150, 150), CanaryLeak(0.66, 0.6, 0.72, 150, 150)
    near = replace(party(norm=result(0.95)), own_columns_auc=0.9, total=0.96, worst_canaries=low)
    far = replace(party(norm=result(0.7)), own_columns_auc=0.55, total=0.75, worst_canaries=high)
    both = run("a", parties={"near": near, "far": far}, canaries=high)
    assert lines(both)[0] == (
        "Labels: 0.66 (0.60 to 0.72) beyond the prediction, 0.75 in all (messages and predictions only) at far, "
        "far's own columns 0.55: goal missed."
    )


def test_columns_that_no_attack_reads_have_a_line_by_who_knows_a_transform() -> None:
    held = FeatureLeak("half", 0.0912, 0.08, 3)
    leaks = [held, replace(held, sees="activation", mse=0.0834), replace(held, attack="rcc2 (knows the transform)")]
    shown = run(parties={"lab": replace(party(norm=result(0.5)), features=leaks)})
    text = " ".join(printed(brief([shown])).split())
    assert "Columns of lab: half estimates them with a mean squared error of 0.0834, no better than their" in text
    assert "Columns of lab: rcc2 (knows the transform) estimates them with a mean squared error of 0.0912" in text

    read = replace(leaks[-1], mse=0.01)  # the verdict says it
    shown = run(parties={"lab": replace(party(norm=result(0.5)), features=[*leaks[:2], read])})
    assert "Columns of lab: rcc2" not in printed(brief([shown]))
