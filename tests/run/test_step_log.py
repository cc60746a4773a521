"""What is written down of a run's steps."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from splitvfl.run.step_log import StepLog


def party(**measured: float) -> Any:
    return SimpleNamespace(measurements=measured, running_totals=frozenset({"total"}))


def test_means_are_over_finite_values_and_of_a_total_the_last() -> None:
    log = StepLog()
    for power, total in ((1.0, 1.0), (math.inf, 2.0), (3.0, 5.0)):
        measured = log.add([party(**{"bank/noise/power": power, "bank/noise/total": total})], 0.5)
        assert measured["bank/noise/power"] == power
    assert log.means == {"bank/noise/power": 2.0, "bank/noise/total": 5.0}
    assert log.step_ms(3) == 500.0
    assert math.isnan(log.step_ms(0))


def test_a_log_goes_on_where_another_was() -> None:
    first, second = StepLog(), StepLog()
    first.add([party(**{"bank/noise/power": 1.0})], 2.0)
    second.load_state_dict(first.state_dict())
    second.add([party(**{"bank/noise/power": 2.0})], 1.0)
    assert second.means == {"bank/noise/power": 1.5}
    assert first.means == {"bank/noise/power": 1.0}
    assert second.step_ms(2) == 1500.0
