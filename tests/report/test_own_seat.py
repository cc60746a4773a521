"""What a passive party is told of its own columns, in words."""

from __future__ import annotations

from dataclasses import replace

from splitvfl.leakage.column_reading import ColumnReading, ColumnShare
from splitvfl.leakage.features import ColumnLeak, FeatureLeak
from splitvfl.report.own_seat import _reading, seat_lines, seat_verdict
from splitvfl.report.summary import PartyResult
from tests.report.test_report import run


def leak(*errors: float) -> FeatureLeak:
    columns = [
        ColumnLeak(column=f"c{place}", mse=error, mean_mse=0.1, half_mse=0.2, near=0.0)
        for place, error in enumerate(errors)
    ]
    return FeatureLeak("rcc2", sum(errors) / len(errors), 0.1, len(errors), columns=columns)


def test_a_column_that_is_told_is_named_where_the_mean_of_all_looks_harmless() -> None:
    told = _reading(leak(0.01, 0.5))
    assert told.endswith("taken together, but rcc2 learns more than half of the variance of 'c0'.")
    assert _reading(leak(0.06, 0.5)).endswith("better than their means do.")


def test_what_training_tells_is_said_of_the_attack_that_reads_most() -> None:
    weak, strong = (
        ColumnReading(name, 0.05, share, told, 100, [ColumnShare("age", 0.7), ColumnShare("income", 2 * share - 0.7)])
        for name, share, told in (("ridge", 0.40, 1), ("nearest", 0.65, 2))
    )
    own = run(parties={"lab": PartyResult({}, readings=[weak, strong])}, seat="lab")
    first, *others = seat_lines(own)
    assert first == (
        "Columns of lab: in training nearest reads 65% of their variance, more than half of 2 of 2, most of age (70%)."
    )
    assert len(others) == 1  # nothing of predictions, at which nobody looked
    assert "by the nearest attack" in seat_verdict(own)
    assert "is not known" not in seat_verdict(own)
    knowing = replace(strong, attack="inversion", share=0.9, knows_model=True, standing_still=True)
    both = run(parties={"lab": PartyResult({}, readings=[weak, strong, knowing])}, seat="lab")
    assert [line.split(" reads")[0] for line in seat_lines(both)[:2]] == [
        "Columns of lab: in training nearest",
        "Columns of lab: with the finished model inversion, which knows the model,",
    ]
    said = seat_verdict(both)
    assert "From what you send with the finished model whoever knows your half of the model and the columns of" in said
    assert "is not known" in seat_verdict(run(parties={"lab": PartyResult({})}, seat="lab"))
