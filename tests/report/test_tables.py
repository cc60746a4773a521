from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console, RenderableType
from scipy import stats

from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.column_figures import ColumnReading, ColumnShare
from splitvfl.leakage.features import ColumnLeak, FeatureLeak
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.report.findings import facts, stopping_note, total_notes
from splitvfl.report.party_result import PartyResult
from splitvfl.report.provenance import Provenance
from splitvfl.report.rows import attack_names, attack_result, estimate, group_runs, rows_by_defense, written
from splitvfl.report.summary import ExchangeTraits, RunSummary, read_summary
from splitvfl.report.tables import comparison_table, summary_table
from tests.summaries import late as after_training
from tests.summaries import opened


def result(step: float, accumulated: float = math.nan, *, quantile: float = 0.77, undefined: int = 3) -> LeakSummary:
    return LeakSummary(
        auc=step,
        worst_auc=step,
        quantile_95=math.nan if math.isnan(step) else quantile,
        accumulated_auc=accumulated,
        worst_accumulated_auc=accumulated,
        steps=100,
        undefined=undefined,
    )


def party(**attacks: LeakSummary) -> PartyResult:
    named = {name.replace("_", "-"): figures for name, figures in attacks.items()}
    return PartyResult(attacks=named, own_columns_auc=0.71, own_columns_model="gradient boosting", detection_error=0.33)


def run(defense: str = "none", *, parties: dict[str, PartyResult] | None = None, **changes: object) -> RunSummary:
    plain = RunSummary(
        name="demo",
        data="digits",
        task="binary",
        model="mlp",
        defenses=[] if defense == "none" else [defense],
        seed=0,
        epochs=15,
        steps=100,
        batch_size=128,
        metric="auc",
        test_metric=0.9876,
        test_loss=0.1234,
        step_ms=1.987,
        known_positives=1,
        parties={"telecom": party(norm=result(0.61, 0.62))} if parties is None else parties,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def printed(renderable: RenderableType, *, colour: bool = False, width: int = 80) -> str:
    target = io.StringIO()
    Console(file=target, width=width, force_terminal=colour, color_system="standard" if colour else None).print(
        renderable
    )
    return target.getvalue()


def all_figures() -> list[RunSummary]:
    leaky = party(
        norm=result(0.91, 0.92, quantile=0.93, undefined=4),
        direction=result(0.81, 0.82, quantile=0.83, undefined=5),
        residual=result(0.51, 0.52, quantile=0.53, undefined=6),
        auditor_linear=result(0.94, 0.84, quantile=0.95, undefined=7),
        auditor_likelihood=result(0.74, 0.96, quantile=0.85, undefined=8),
    )
    measured = replace(leaky, measurements={"sumkl/noise_to_signal": 73.91, "sumkl/detection_error_bound": 0.42})
    return [run(parties={"telecom": leaky}), run("sumkl(detection_error=0.4)", parties={"telecom": measured})]


def test_every_figure_is_in_the_table() -> None:
    text = printed(summary_table(all_figures()))

    for expected in (
        "0.988",  # test AUC
        "0.123",  # test loss
        "1.99",  # ms per step
        "73.9",  # noise
        "0.91/0.92",
        "0.93 (4)",
        "0.81/0.82",
        "0.83 (5)",
        "0.51/0.52",
        "0.53 (6)",
        "0.94/0.96",  # the auditor's better attack, figure by figure
        "0.95 (8)",
        "0.71",  # own columns
        "0.33",  # measured detection error
        "0.42",  # promised
    ):
        assert expected in text, expected
    assert re.search(r"0\.96 +auditor", text), "the worst leak and who reads it"


def test_nothing_is_cut_at_80_columns() -> None:
    runs = [
        run(f"a-defense-with-a-rather-long-name(first_setting={number}, second_setting=0.123456)", **changes)  # type: ignore[arg-type]
        for number, changes in enumerate(
            (
                {"test_loss": 123456.789, "step_ms": 98765.4},
                {"test_loss": -99999.9, "test_metric": -1234.5},
                {"parties": {f"party-{name}": all_figures()[1].parties["telecom"] for name in "ab"}},
            )
        )
    ]
    for table in (summary_table(runs), comparison_table(runs)):
        text = printed(table)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
    assert {"1.2e+05", "-1.0e+05", "9.9e+04", "-1.2e+03"} <= set(printed(summary_table(runs)).split())


def test_the_legend_explains_what_is_there() -> None:
    without = [run(parties={"telecom": party(norm=result(0.61, 0.62))})]
    for table in (summary_table, comparison_table):
        assert "auditor  " in printed(table(all_figures()))
        assert "auditor  " not in printed(table(without))
        assert "leak AUC  " in printed(table(without))
    unseen = printed(summary_table([run(parties={"telecom": PartyResult(attacks={}, unavailable={"norm": "x"})})]))
    assert "noise  " in unseen
    assert "leak AUC  " not in unseen


def test_the_legend_counts_the_auditors_attacks_on_these_labels() -> None:
    audited = {"telecom": party(**{"auditor-linear": result(0.61, 0.62)})}
    binary, many = run(parties=audited), run(parties=audited, task="multiclass")
    for table in (summary_table, comparison_table):
        for runs, counted in (([binary], {"three"}), ([many], {"two"}), ([binary, many], {"three", "two"})):
            text = " ".join(printed(table(runs)).split())
            assert {
                number for number in ("two", "three") if re.search(f"the (best|better) of {number}", text)
            } == counted


@pytest.mark.parametrize("count", [1, 4, 5, 9])
def test_any_number_of_attacks_fits(count: int) -> None:
    names = [f"my-own-attack-number-{number}@bottom.layers.{number}" for number in range(count)]
    attacks = {name: result((50 + number) / 100, 1.0) for number, name in enumerate(names)}
    text = printed(summary_table([run(parties={"telecom": PartyResult(attacks=attacks)})]))

    for number in range(count):
        assert f"{(50 + number) / 100:.2f}/1.00" in text
    assert max(map(len, text.splitlines())) <= 80


def test_missing_figures_are_dashes() -> None:
    text = printed(
        summary_table(
            [
                run(
                    test_metric=None,
                    test_loss=None,
                    step_ms=None,
                    parties={"p": PartyResult({"norm": result(math.nan)})},
                )
            ]
        )
    )
    assert re.search(r"none( +–){4}", text)
    assert "nan" not in text.lower()
    assert "None" not in text


def test_only_the_power_of_noise_is_known() -> None:
    measured = replace(party(norm=result(0.5)), measurements={"gaussian-ir/power": 0.0021})
    assert "p 2e-03" in printed(summary_table([run("gaussian-ir", parties={"telecom": measured})]))


@pytest.mark.parametrize(
    ("task", "metric", "word"), [("multiclass", "accuracy", "accuracy"), ("regression", "r2", "R²")]
)
def test_tasks_without_leak_auc(task: str, metric: str, word: str) -> None:
    runs = [run(task=task, metric=metric, parties={"telecom": PartyResult(attacks={})})]
    for table in (summary_table(runs), comparison_table(runs)):
        text = printed(table)
        assert f"test {word}" in text.replace("\n", " ") or word in text
        assert "What leaks" not in text


def test_markup_in_names_is_text() -> None:
    named = replace(party(norm=result(0.5)), unavailable={"[red]x[/red]": "needs [bold]"})
    runs = [run("[bold]mine[/bold]", data="[link]d", parties={"[i]": named})]
    text = printed(summary_table(runs))
    for name in ("[bold]mine[/bold]", "[link]d", "[red]x[/red]", "needs [bold]"):
        assert name in text


def test_features_and_unavailable_attacks_are_listed() -> None:
    shown = replace(
        party(norm=result(0.5)),
        features=[
            FeatureLeak(attack="least-squares", mse=0.0123, blind_mse=0.0834, features=5),
            FeatureLeak(
                attack="least-squares",
                mse=0.0011,
                blind_mse=0.08,
                features=2,
                sees="activation",
                near=0.5,
                columns=[ColumnLeak("age", 0.0002, 0.07, 0.1, 0.9), ColumnLeak("calls", 0.002, 0.09, 0.2, 0.1)],
            ),
            FeatureLeak(
                attack="least-squares", mse=0.0456, blind_mse=0.09, features=2, sees="activation", part="train"
            ),
        ],
        unavailable={"sign": "needs known_positives"},
    )
    text = printed(summary_table([run(parties={"telecom": shown})]))
    assert re.search(r"telecom, scores +least-squares +0\.0123 +– +0\.0834 +–", text)
    assert re.search(r"activation +least-squares|telecom, +least-squares +0\.0011 +0\.0456 +0\.08 +50%", text)
    assert re.search(r"telecom, +age +0\.0002 +0\.07 +0\.1 +90%", text)
    assert text.index("age  ") < text.index("calls  ")
    assert "sign could not be run at telecom: needs known_positives" in text


AFTER = after_training(0.97, 0.93, 0.72, 0.71)


def test_categories_are_listed_with_the_most_frequent_one() -> None:
    columns = [ColumnShare("region", 0.5, 0.55, right=0.83, commonest=0.66), ColumnShare("age", 0.1, 0.1)]
    reading = ColumnReading(
        "ridge", 0.05, 0.3, 0, 200, columns, one_hot=[ColumnShare("sex", 0.2, right=0.61, commonest=0.51)]
    )
    text = printed(summary_table([run(parties={"lab": replace(party(), readings=[reading])})]))
    assert re.search(r"lab\s+region\s+83%\s+66%\s+50%", text)
    assert re.search(r"lab\s+sex\s+61%\s+51%\s+20%", text)
    assert "most frequent" in text
    bare = replace(reading, columns=columns[1:], one_hot=[])
    assert "most frequent" not in printed(summary_table([run(parties={"lab": replace(party(), readings=[bare])})]))


def test_what_is_read_after_training_stands_beside_what_was_read_before() -> None:
    shown = replace(party(norm=result(0.5)), after_training={"model-completion": AFTER})
    for table in (summary_table, comparison_table):
        text = printed(table([run(parties={"telecom": shown})]))
        assert re.search(r"none +model-completion +0\.97 +0\.93 +0\.72\n +0\.71", text)
        assert "the same attack's leak AUCs" in text
        assert "After training" not in printed(table([run()]))
        assert "the same attack's leak AUCs" not in printed(table([run()]))


def test_what_taking_part_has_taught_the_partner_is_said() -> None:
    shown = replace(party(norm=result(0.5)), after_training={"model-completion": AFTER})
    assert facts(run(parties={"telecom": shown})) == [
        "After training, with the labels of 10 positive and 12 negative records and telecom's own model part, the "
        "model-completion attack reaches an AUC of 0.97 on other training records; with that part before training, "
        "0.72."
    ]
    unknown = replace(shown, after_training={"model-completion": after_training(math.nan, 0.93, 0.72, 0.71)})
    assert facts(run(parties={"telecom": unknown})) == []


def test_recovered_features_have_a_sentence_and_those_that_are_not_another() -> None:
    leak = FeatureLeak(attack="least-squares", mse=0.001, blind_mse=0.08, features=3)
    held = FeatureLeak(attack="gradient-inversion", mse=0.09, blind_mse=0.08, features=3)
    assert facts(run(parties={"telecom": replace(party(norm=result(0.5)), features=[leak, held])})) == [
        "From the published scores, least-squares recovers features of telecom with a mean squared error of 0.001; "
        "guessing their means has 0.08."
    ]
    both = replace(party(norm=result(0.5)), features=[leak, replace(leak, sees="activation")])
    (once,) = facts(run(parties={"telecom": both}))
    assert once.startswith("From the published scores or the activation that the active party receives")
    nothing = replace(party(norm=result(0.5)), features=[held])
    assert facts(run(parties={"telecom": nothing})) == [
        "Features of telecom: gradient-inversion estimates them with a mean squared error of 0.09, no better than "
        "their means, 0.08."
    ]


def test_a_broken_defense_says_which_attack_breaks_it_where_that_was_run() -> None:
    shown = run("sumkl(detection_error=0.4)", parties={"telecom": party(norm=result(0.9), residual=result(0.97))})
    assert facts(shown) == [
        "sumkl adds noise off the gradient's axis to one class only, and residual recovers labels from it."
    ]
    assert facts(run("sumkl(ratio=2)", parties={"telecom": party(norm=result(0.9))})) == []


def test_figures_after_training_are_averaged_over_runs_and_the_undefined_are_left_out() -> None:
    second = after_training(0.87, math.nan, 0.62)
    runs = [
        run(
            parties={"telecom": replace(party(norm=result(0.5)), after_training={"model-completion": after})}, seed=seed
        )
        for seed, after in enumerate((AFTER, second))
    ]
    (row,) = rows_by_defense(group_runs(runs)[0])
    found = row.parties[0].after_training["model-completion"]
    assert found.train is not None
    assert found.test is not None
    assert (found.train.mean, found.train.count) == (pytest.approx(0.92), 2)
    assert (found.test.mean, found.test.count) == (0.93, 1)
    assert found.known == "10 positive and 12 negative records"


def test_groups_hold_runs_that_may_be_compared() -> None:
    runs = [run(), run("max-norm"), run(model="linear"), run(data="bank"), run(batch_size=64)]
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [2, 1, 1, 1]
    assert groups[0].title == "digits, mlp"


def test_runs_that_may_stop_early_belong_together_wherever_they_stopped() -> None:
    early = {"planned_epochs": 30, "validation_metric": 0.91}
    runs = [run(epochs=7, kept_epoch=4, **early), run("max-norm", epochs=12, kept_epoch=9, **early), run(epochs=30)]
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [2, 1]
    assert groups[0].subtitle == "at most 30 epochs, with early stopping, batches of 128"
    assert groups[1].subtitle == "30 epochs, batches of 128"


def test_where_a_run_stopped_is_told_in_a_sentence() -> None:
    kept = run(epochs=7, planned_epochs=30, kept_epoch=4, validation_metric=0.9123)
    assert (
        stopping_note(kept) == "Trained 7 of 30 epochs and kept the weights of epoch 4, with a validation AUC of 0.912."
    )
    nothing = run(epochs=3, planned_epochs=30)
    assert "no evaluation gave a figure to judge by" in stopping_note(nothing)
    assert stopping_note(run()) == ""


def test_seeds_are_told_apart_only_where_needed() -> None:
    text = printed(summary_table([run(), run("max-norm", seed=1), run("max-norm", seed=2)]))
    assert "max-norm, seed 1" in text
    assert "max-norm, seed 2" in text
    assert "none, seed" not in text


def test_estimate_is_scipys_interval() -> None:
    values = [0.91, 0.87, 0.95, 0.90]
    found = estimate([*values, None])
    assert found is not None
    low, high = stats.t.interval(0.95, df=3, loc=np.mean(values), scale=stats.sem(values))
    # Both are sums of a handful of doubles near one: agreement to 1e-12 is rounding.
    assert found.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert found.half_width == pytest.approx((high - low) / 2, abs=1e-12)
    assert found.count == 4


def test_estimate_of_one_and_of_none() -> None:
    single = estimate([None, 0.5])
    assert single is not None
    assert (single.mean, single.half_width) == (0.5, None)
    assert estimate([None]) is None


def test_comparison_averages_over_seeds() -> None:
    values = (0.61, 0.64, 0.70)
    runs = [
        run("max-norm", seed=seed, test_metric=0.9 + seed / 100, parties={"telecom": party(norm=result(0.5, value))})
        for seed, value in enumerate(values)
    ]
    half = float(stats.t.ppf(0.975, 2) * np.std(values, ddof=1) / np.sqrt(3))
    text = printed(comparison_table([run(), *runs]))

    assert f"{np.mean(values):.2f} ±{half:.2f}" in text
    assert "0.910 ±0.025" in text  # t(0.975, 2) · 0.01 / √3 = 0.0248
    assert re.search(r"none +1 +0\.988 +1\.99", text), "one run has no interval"


def test_worst_of_a_run_is_over_all_parties() -> None:
    runs = [run(parties={"a": party(norm=result(0.55)), "b": party(norm=result(0.95))})]
    row = rows_by_defense(group_runs(runs)[0])[0]
    assert row.worst is not None
    assert row.worst.mean == 0.95
    assert "none, b" in printed(summary_table(runs))


def test_order_of_attacks() -> None:
    attacks = ["mine", "auditor-linear", "sign", "residual", "auditor-likelihood", "norm@layers.0", "norm"]
    named = PartyResult(attacks={name: result(0.5) for name in attacks})
    assert attack_names([run(parties={"p": named})]) == ["auditor", "norm", "residual", "sign", "mine", "norm@layers.0"]


def test_auditor_is_the_worse_of_two_figure_by_figure() -> None:
    merged = attack_result(all_figures()[0].parties["telecom"], "auditor")
    assert merged is not None
    assert (merged.worst_auc, merged.worst_accumulated_auc, merged.quantile_95, merged.undefined) == (
        0.94,
        0.96,
        0.95,
        8,
    )
    assert merged.worst == 0.96


def judged(defense: str = "none", own: float | None = None, **attacks: LeakSummary) -> RunSummary:
    return run(defense, parties={"telecom": replace(party(**attacks), own_columns_auc=own)})


def test_an_attack_that_reads_better_the_other_way_round_shows_its_raw_figures_too() -> None:
    turned = replace(result(0.64, 0.71), auc=0.36, accumulated_auc=0.29)

    assert "0.36/0.29" in printed(summary_table([run(parties={"telecom": party(norm=turned)})]))
    assert "third line" in printed(summary_table([run()]))
    assert len(re.findall(r"0\.61/0\.62", printed(summary_table([run()])))) == 1


# --- orientation, chance and records left out


def late(train: float, before: float = 0.52, **changes: object) -> PartyResult:
    found = after_training(train, math.nan, before, **changes)
    return replace(party(norm=result(0.5)), after_training={"model-completion": found})


def test_an_auc_far_below_one_half_after_training_is_a_leak() -> None:
    counts = {"positives": 56, "negatives": 57}
    (text,) = facts(run(parties={"telecom": late(0.29, 0.45, **counts)}))
    assert "with the labels of 10 positive and 12 negative records" in text
    assert "0.71 on other training records (0.29 before it is oriented; guessing: 0.54)" in text
    assert text.endswith("with that part before training, 0.55.")
    for table in (summary_table, comparison_table):
        shown = printed(table([run(parties={"telecom": late(0.09, **counts)})]))
        assert "0.91" in shown
        assert "raw 0.09" in shown
        assert "0.54" in shown
        assert max(map(len, printed(table([run(parties={"telecom": late(0.09, **counts)})])).splitlines())) <= 80


def test_means_over_seeds_are_taken_after_orientation() -> None:
    runs = [
        run(parties={"telecom": late(train, before)}, seed=seed)
        for seed, (train, before) in enumerate(((0.3, 0.6), (0.7, 0.4)))
    ]
    (row,) = rows_by_defense(group_runs(runs)[0])
    found = row.parties[0].after_training["model-completion"]
    assert found.train is not None
    assert found.before_train is not None
    assert found.raw_train is not None
    assert (found.train.mean, found.before_train.mean) == (pytest.approx(0.7), pytest.approx(0.6))
    assert found.raw_train.mean == pytest.approx(0.5)
    assert found.raw_train != found.train


def abstaining(share: float = 0.1) -> LeakSummary:
    return replace(
        result(0.987, 0.99),
        worst_auc=0.59,
        worst_accumulated_auc=0.58,
        tied_auc=0.41,
        tied_accumulated_auc=0.58,
        scored=share,
        positives=56,
        negatives=57,
    )


def test_the_share_that_an_attack_scores_and_both_aucs_are_shown_and_the_tied_one_decides() -> None:
    shown = run(parties={"telecom": party(norm=abstaining())})
    text = printed(summary_table([shown]))
    assert "0.59/0.58" in text
    assert "0.41/0.58" in text  # turned, at the step
    assert re.search(r"of 10%\s[^\n]*\n[^\n]*0\.99/0\.99", text)
    assert shown.worst[0] == 0.59
    assert facts(replace(shown, goal=0.7)) == [
        "The norm attack scores 10% of the records only. Among these its leak AUC is 0.99; with the others counted as "
        "ties it is 0.59."
    ]
    assert "of 10%  " in text  # the legend
    assert facts(run(parties={"telecom": party(norm=abstaining(0.999))})) == []


def test_what_chance_gives_and_what_attacks_were_told_stand_beside_the_figures() -> None:
    shown = run(parties={"telecom": party(norm=abstaining())}, known_positives=3, known_negatives=10)
    for table in (summary_table, comparison_table):
        text = " ".join(printed(table([shown])).split())
        assert "Guessing is expected to reach 0.54 on 113, of them 56 positive" in text
        assert "know 3 positive and 10 negative records. They are judged on others." in text
        assert "The largest of 2 such figures is up to 0.56." in text
    assert "Guessing" not in printed(summary_table([run()]))  # a summary that counted no records


# --- total, beyond prediction, known without messages


def three(
    auc: float = 0.55, low: float = 0.5, high: float = 0.59, *, canaries: bool = True, **changes: object
) -> RunSummary:
    """Return a run with all three figures: 0.91 in all, 0.77 by own columns; 0.62 is the worst of any attack."""
    found = CanaryLeak(auc, low, high, 150, 150) if canaries else None
    figures = replace(
        party(norm=result(0.61, 0.62), auditor_linear=result(0.6)),
        own_columns_auc=0.77,
        first_component_auc=0.64,
        total=0.91,
        beyond_prediction=0.66,
        worst_canaries=found,
        canaries={} if found is None else {"norm": found},
        includes_features=True,
        total_by_chance=0.547,
    )
    return run("x", parties={"telecom": replace(figures, **changes)}, canaries=found)  # type: ignore[arg-type]


def test_three_figures_are_in_both_tables_and_fit() -> None:
    text = printed(summary_table([three()]))
    assert re.search(r"x +0\.55 +0\.91 +0\.77 +0\.62 +norm *\n +0\.50–0\.59 +0\.64", text)
    without = printed(summary_table([three(canaries=False)]))
    assert re.search(r"x +– +0\.91 +0\.77 +0\.62 +norm *\n +0\.64", without), "without canaries there is no excess"
    several = [replace(three(auc, auc - 0.05, auc + 0.05), seed=seed) for seed, auc in enumerate((0.52, 0.56))]
    compared = printed(comparison_table(several))
    assert re.search(r"x +0\.54 +0\.91–0\.91 +0\.77–0\.77 +0\.62–0\.62 *\n +0\.5\d–0\.5\d", compared), (
        "seeds are pooled"
    )
    assert max(map(len, (text + compared).splitlines())) <= 80


def test_runs_with_a_private_top_are_not_averaged_with_those_without() -> None:
    runs = [run("x"), run("x", private_top=True), run(private_top=True)]
    assert [row.label for row in rows_by_defense(group_runs(runs)[0])] == ["x", "x, private top", "none, private top"]


def test_reports_say_of_an_exchange_what_it_says_of_itself(tmp_path: Path) -> None:
    silent = {"telecom": PartyResult({}, own_columns_auc=0.77)}
    own = run(
        exchange="own",
        exchange_traits=ExchangeTraits(one_way=True, in_headings=False, shows_gradients=False),
        parties=silent,
    )
    assert own.label == "own"
    assert group_runs([own])[0].title == "digits, mlp"
    assert group_runs([run(exchange="oracle")])[0].title == "digits, mlp, exchange oracle"
    # One that nobody knows any more, in a summary that says nothing of it.
    assert run(exchange="gone").traits == ExchangeTraits(one_way=False, in_headings=True)

    own.save(tmp_path)
    assert read_summary(tmp_path) == own
    before = opened(tmp_path / "summary.json") | {"exchange": "one-way"}
    del before["exchange_traits"]
    (tmp_path / "summary.json").write_text(json.dumps(before))
    assert read_summary(tmp_path).traits == own.exchange_traits


# --- the goal is relative


# --- runs that are averaged


def of_settings(seed: int, *, label: str = "labels-1", old: bool = False, **settings: object) -> RunSummary:
    written = {"train.optimizer.lr": "0.1", **{key.replace("__", "."): json.dumps(v) for key, v in settings.items()}}
    noted = Provenance("", "", "", {}, written, 100, 20, 0, same_data=label)
    return run("max-norm", seed=seed, test_metric=0.9 + seed / 100, provenance=None if old else noted)


def test_runs_that_differ_in_a_setting_are_not_averaged() -> None:
    runs = [
        of_settings(0),
        of_settings(1),
        of_settings(2, train__optimizer__lr=0.5),
        of_settings(3, train__loss="focal"),
    ]
    (group,) = group_runs(runs)
    assert [row.runs for row in rows_by_defense(group)] == [2, 1, 1]
    assert [row.label for row in rows_by_defense(group)] == [
        "max-norm (loss=none, lr=0.1)",
        "max-norm (loss=none, lr=0.5)",
        "max-norm (loss=focal, lr=0.1)",
    ]


def test_runs_that_differ_in_their_data_are_not_even_compared() -> None:
    groups = group_runs([of_settings(0), of_settings(1, label="labels-2"), of_settings(2)])
    assert [len(group.runs) for group in groups] == [2, 1]
    assert groups[0].subtitle.endswith(", data 1 of 2")
    assert groups[1].subtitle.endswith(", data 2 of 2")


def test_runs_of_an_older_version_are_grouped_as_they_were() -> None:
    (group,) = group_runs([of_settings(0, old=True), of_settings(1, old=True)])
    assert [row.runs for row in rows_by_defense(group)] == [2]
    assert "data" not in group.subtitle


def test_two_runs_have_a_range_and_three_an_interval() -> None:
    two = estimate([0.9, 1.0, None])
    assert two is not None
    assert two.is_range
    assert two.ends == pytest.approx((0.9, 1.0))
    assert written(two, 2) == "0.90–1.00"
    three_runs = estimate([0.9, 0.95, 1.0])
    assert three_runs is not None
    assert not three_runs.is_range
    assert written(three_runs, 2) == "0.95 ± 0.12"  # t(0.975, 2) · 0.05 / √3 = 0.124


def test_what_a_total_leaves_out_is_said_of_every_run() -> None:
    known, networked = three(), three(includes_features=False, total_by_chance=0.561)
    assert total_notes([known]) == [
        "The total is the largest of several figures: where nothing leaks, 95 % are below 0.55."
    ]
    assert total_notes([networked])[0].startswith("Total: messages and predictions only; ")
    assert total_notes([known, networked])[0].startswith("Total: messages and predictions only for 1 of 2 totals; ")
    assert total_notes([three(total=None)]) == []
    assert "messages and predictions only" in printed(comparison_table([networked]))
    assert "messages and predictions only" not in printed(comparison_table([known]))


def test_what_the_features_tell_alone_is_in_a_total_that_includes_them() -> None:
    """So is an attack that reads no message; elsewhere neither is."""
    attack = {"columns": replace(result(0.6, 0.99), by_messages=False)}
    for own, includes, expected in ((0.95, True, 0.95), (0.95, False, 0.91), (0.77, True, 0.91)):
        leak = three(own_columns_auc=own, includes_features=includes).parties["telecom"].label_leak
        assert (leak.total, leak.includes_features) == (expected, includes)
        leak = three(attacks=attack, own_columns_auc=own, includes_features=includes).parties["telecom"].label_leak
        assert leak.total == (0.99 if includes else expected)
