"""What a passive party is told of its own columns, in words."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from splitvfl.leakage.column_figures import ColumnReading, ColumnShare, OwnShares
from splitvfl.leakage.features import ColumnLeak, FeatureLeak
from splitvfl.report.comparison import comparison
from splitvfl.report.findings import columns_read
from splitvfl.report.most_read import most_read
from splitvfl.report.own_seat import _reading, seat_lines, seat_verdict
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import read_summary
from splitvfl.report.tables import comparison_table, summary_table
from tests.report.test_report import page_of, run, text_of
from tests.report.test_tables import printed
from tests.summaries import opened


def leak(*errors: float) -> FeatureLeak:
    columns = [
        ColumnLeak(column=f"c{place}", mse=error, mean_mse=0.1, half_mse=0.2, near=0.0)
        for place, error in enumerate(errors)
    ]
    return FeatureLeak("rcc2", sum(errors) / len(errors), 0.1, len(errors), columns=columns)


def test_a_column_that_is_told_is_named_where_the_mean_of_all_looks_harmless() -> None:
    told = _reading(leak(0.01, 0.5))
    assert told.endswith("taken together, but rcc2 recovers more than half of the variance of 'c0'.")
    assert _reading(leak(0.06, 0.5)).endswith("better than their means do.")


def test_what_training_tells_is_said_of_the_attack_that_reads_most() -> None:
    weak, strong = (
        ColumnReading(name, 0.05, share, told, 100, [ColumnShare("age", 0.7), ColumnShare("income", 2 * share - 0.7)])
        for name, share, told in (("ridge", 0.40, 1), ("nearest", 0.65, 2))
    )
    own = run(parties={"lab": PartyResult({}, readings=[weak, strong])}, seat="lab")
    first, *others = seat_lines(own)
    assert first == (
        "Features of lab: in training nearest recovers 65% of their variance, more than half of 2 of 2, most of age "
        "(70%)."
    )
    assert len(others) == 1  # nothing of predictions, at which nobody looked
    assert "nearest recovers 65%" in seat_verdict(own)
    assert "is not known" not in seat_verdict(own)
    knowing = replace(strong, attack="inversion", share=0.9, knows_model=True, standing_still=True)
    both = run(parties={"lab": PartyResult({}, readings=[weak, strong, knowing])}, seat="lab")
    assert [line.split(" recovers")[0] for line in seat_lines(both)[:2]] == [
        "Features of lab: in training nearest",
        "Features of lab: with the finished model inversion, which knows the model,",
    ]
    said = seat_verdict(both)
    assert "From what you send with the finished model, inversion recovers 90%" in said
    assert "It knows your model part and the features of 5%" in said
    assert "is not known" in seat_verdict(run(parties={"lab": PartyResult({})}, seat="lab"))


def share(column: str, last: float, worst: float, accumulated: float) -> ColumnShare:
    return ColumnShare(column, last, accumulated, worst=worst)


SPOILED = ColumnReading(
    "ridge",
    0.05,
    0.01,
    0,
    100,
    [share("age", 0.03, 0.45, 0.4), share("income", 0.0, 0.6, 0.2), share("debt", 0.0, 0.1, 0.55)],
    accumulated=0.38,
    worst=0.42,
    worst_epoch=5,
)


def test_what_was_read_before_the_last_epoch_counts_by_column_and_in_all() -> None:
    own = run(parties={"lab": PartyResult({}, readings=[SPOILED])}, seat="lab")
    fell = "In the last epoch it recovers 1% only: training, penalties or the gradients that a partner sends can bring"
    assert seat_lines(own)[0].startswith(
        "Features of lab: in epoch 5 ridge recovers 42% of their variance, more than half of 2 of 3, most of income "
        f"(60%). {fell}"
    )
    for said in (seat_verdict(own), *columns_read(own)):
        assert " sent in epoch 5" in said
        assert "ridge recovers 42% of the variance of" in said
        assert "more than half of 2 of them, most of income (60%)" in said
        assert fell in said
    over = replace(SPOILED, share=0.3, accumulated=0.5)
    (said,) = columns_read(run(parties={"lab": PartyResult({}, readings=[over])}))
    assert "From what lab sent over the run, ridge recovers 50%" in said
    assert "In the last epoch" not in said, "more than half of the most"
    older = replace(over, worst=None, worst_epoch=None, columns=[ColumnShare("age", 0.6, 0.5)])
    (said,) = columns_read(run(parties={"lab": PartyResult({}, readings=[replace(older, accumulated=None)])}))
    assert "sent in the last epoch, ridge recovers 30%" in said
    assert "more than half of 1 of them, most of age (60%)" in said


def test_a_column_counts_by_whoever_reads_most_of_it_and_assumes_no_more() -> None:
    finished, scores = (
        ColumnReading("nearest", 0.05, 0.2, 1, 100, [ColumnShare("debt", 0.9), ColumnShare("age", 0.1)], **more)
        for more in ({"standing_still": True}, {"of_scores": True})
    )
    knowing = replace(finished, attack="inversion", share=0.1, knows_model=True, columns=[ColumnShare("age", 0.99)])
    first, behind = most_read(PartyResult({}, readings=[finished, SPOILED, knowing, scores]))
    assert first.reading == SPOILED
    assert [(one.column, one.share) for one in first.columns] == [("debt", 0.9), ("income", 0.6), ("age", 0.45)]
    assert first.told == 2
    assert behind.reading == scores
    assert behind.told == 1
    _, inversion = most_read(PartyResult({}, readings=[finished, SPOILED, replace(knowing, share=0.5)]))
    assert [one.column for one in inversion.columns] == ["age", "debt", "income"]


def test_tables_comparisons_and_the_page_say_the_most_beside_the_last_epoch(tmp_path: Path) -> None:
    found = run(parties={"lab": PartyResult({}, readings=[SPOILED])})
    assert re.search(r"lab\s+ridge\s+42%\s+–\s+–\s+–\s+2 of 3", printed(summary_table([found])))
    assert re.search(r"lab\s+income\s+60%\s+20%", printed(summary_table([found])))
    both = [found, replace(found, seed=1)]
    assert re.search(r"ridge\s+0\.42\S* ?\S*\s+–\s+–\s+–\s+2", printed(comparison_table(both)))
    assert "ridge recovers 0.42" in printed(comparison(both))
    text = text_of(page_of(tmp_path, found))
    assert "ridge knows 5% of the records" in text
    assert "income 60%" in text, "at most"
    assert "mean of all 42%" in text


def test_a_summary_of_before_there_were_worst_epochs_is_read(tmp_path: Path) -> None:
    found = run(parties={"lab": PartyResult({}, readings=[SPOILED])})
    found.save(tmp_path)
    kept = opened(tmp_path / "summary.json")
    del kept["planned_steps"]
    (reading,) = kept["parties"]["lab"]["readings"]
    newer = ("sent_once", "joint", "exact", "exact_without", "exact_joint")
    for one in ("worst", "worst_epoch", "evaluation_only", *newer):
        reading.pop(one, None)
    for column in reading["columns"]:
        del column["worst"]
    (tmp_path / "summary.json").write_text(json.dumps(kept))
    older = read_summary(tmp_path)
    assert older.planned_steps is None
    (best,) = most_read(older.parties["lab"])
    assert (best.share, best.moment, best.columns[0].column) == (0.38, "run", "debt")
    assert best.reading.exact_total is None
    assert "Every column" not in seat_verdict(replace(older, seat="lab"))


def test_own_columns_both_together_and_whole_records_are_said_everywhere(tmp_path: Path) -> None:
    reading = replace(SPOILED, joint=0.39, exact=0.1, exact_joint=0.2).with_own(OwnShares(0.3, 0.15))
    assert (reading.joint, reading.exact_joint) == (0.42, 0.2), "who has both may leave one aside"
    found = run(parties={"lab": PartyResult({}, readings=[reading])})
    assert re.search(r"lab\s+ridge\s+42%\s+30%\s+42%\s+20%\s+2 of 3", printed(summary_table([found])))
    (said,) = columns_read(found)
    assert "(its own features alone 30%, all together 42%)" in said
    assert "recovered for 20% of the records (numbers within 0.1 standard deviations)" in said
    text = text_of(page_of(tmp_path, found))
    assert "mean, from messages and own features 42% baseline: mean, from own features alone 30%" in text
    assert "records recovered exactly, within 0.1 σ 20%" in text
    both = printed(comparison_table([found, replace(found, seed=1)]))
    assert re.search(r"ridge\s+0\.42\S* ?\S*\s+0\.30\S* ?\S*\s+0\.42\S* ?\S*\s+0\.20", both)
    found.save(tmp_path)
    assert read_summary(tmp_path).parties["lab"].readings == [reading]


def test_who_never_could_look_is_named_with_the_reason() -> None:
    why = {"ridge": "never judged: 8 of 8", "b": "no gradient", "a": "no gradient"}
    said = seat_verdict(run(parties={"lab": PartyResult({}, unavailable=why)}, seat="lab"))
    assert said.endswith("a, b could not be run: no gradient. ridge never judged: 8 of 8.")
