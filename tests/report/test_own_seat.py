"""What a passive party is told of its own columns, in words."""

from __future__ import annotations

from splitvfl.leakage.features import ColumnLeak, FeatureLeak
from splitvfl.report.own_seat import _reading


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
