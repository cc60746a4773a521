"""The schedule against a plain nested loop, and the verdicts against their definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitvfl.errors import ArgumentError
from splitvfl.learning.batches import Batches
from splitvfl.learning.schedule import EarlyStopping, Patience, Schedule, Verdict
from tests.rows import every

counts = st.integers(1, 5)


def plain_loop(
    batches: Batches, epochs: int, log_every: int, checkpoint_every: int | None, evaluate_every: int
) -> list[tuple[object, ...]]:
    """What each step of a run is followed by, counted by hand."""
    found: list[tuple[object, ...]] = []
    done = 0
    for epoch in range(epochs):
        rows = list(batches.epoch(epoch))
        for number, batch in enumerate(rows):
            done += 1
            last = number == len(rows) - 1
            evaluates = last and (epoch == epochs - 1 or epoch % evaluate_every == evaluate_every - 1)
            logs = last or done % log_every == 0
            saves = last or (checkpoint_every is not None and done % checkpoint_every == 0)
            found.append((done - 1, batch.tolist(), epoch, last, evaluates, logs, saves))
    return found


@settings(max_examples=60, deadline=None)
@given(
    records=st.integers(2, 12),
    size=st.integers(1, 5),
    block_rows=st.sampled_from([1, 3]),
    epochs=counts,
    log_every=counts,
    checkpoint_every=st.none() | counts,
    evaluate_every=counts,
    data=st.data(),
)
def test_turns_from_any_step_are_those_of_a_plain_loop(
    records: int,
    size: int,
    block_rows: int,
    epochs: int,
    log_every: int,
    checkpoint_every: int | None,
    evaluate_every: int,
    data: st.DataObject,
) -> None:
    batches = Batches(records, min(size, records), seed=1, block_rows=block_rows)
    schedule = Schedule(
        batches, epochs, log_every=log_every, checkpoint_every=checkpoint_every, evaluate_every=evaluate_every
    )
    expected = plain_loop(batches, epochs, log_every, checkpoint_every, evaluate_every)
    start = data.draw(st.integers(0, len(expected) + 2))
    plans = [
        (plan.step, plan.rows.tolist(), plan.epoch, plan.ends_epoch, plan.evaluates, plan.logs, plan.saves)
        for plan in schedule.plans(start)
    ]
    assert schedule.steps == len(expected)
    assert plans == expected[start:]


@every(name=["epochs", "log_every", "checkpoint_every", "evaluate_every"], number=[0, -1])
def test_numbers_below_one_are_refused(name: str, number: int) -> None:
    given = {"epochs": 1, "log_every": 1, "checkpoint_every": None, "evaluate_every": 1, name: number}
    with pytest.raises(ArgumentError, match=f"{name} must be at least 1, got {number}"):
        Schedule(Batches(4, 2, seed=0), **given)  # type: ignore[arg-type]


figures = st.lists(st.sampled_from([math.nan, 0.1, 0.2, 0.25, 0.3, 0.5, 0.9]) | st.floats(0, 1), max_size=12)


def by_definition(history: list[float], patience: int, min_delta: float) -> list[Verdict]:
    """Every verdict from the whole history before it."""
    best_at: list[int] = []
    verdicts = []
    for number, figure in enumerate(history):
        if not math.isnan(figure) and (not best_at or figure > history[best_at[-1]] + min_delta):
            best_at.append(number)
        since = number - best_at[-1] if best_at else number + 1
        verdicts.append(Verdict(stop=since >= patience, best=bool(best_at) and best_at[-1] == number))
    return verdicts


@settings(max_examples=200, deadline=None)
@given(history=figures, patience=st.integers(1, 4), min_delta=st.sampled_from([0.0, 0.05, 0.5]), cut=st.integers(0, 12))
def test_verdicts_follow_from_the_history_also_across_a_restart(
    history: list[float], patience: int, min_delta: float, cut: int
) -> None:
    rule = EarlyStopping(patience=patience, min_delta=min_delta)
    first, second = Patience(rule), Patience(rule)
    verdicts = [first.judge(figure) for figure in history[:cut]]
    second.load_state_dict(first.state_dict())
    verdicts += [second.judge(figure) for figure in history[cut:]]
    assert verdicts == by_definition(history, patience, min_delta)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 0}, "patience must be at least 1 evaluation, got 0"),
        ({"min_delta": -0.1}, "min_delta must be a finite number from 0, got -0.1"),
        ({"min_delta": math.nan}, "min_delta must be a finite number from 0, got nan"),
        ({"min_delta": math.inf}, "min_delta must be a finite number from 0, got inf"),
        ({"validation_every": 1}, "validation_every must be at least 2"),
    ],
)
def test_early_stopping_checks_its_settings(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        EarlyStopping(**settings)  # type: ignore[arg-type]


def test_a_verdict_is_two_whole_numbers_on_the_wire() -> None:
    assert torch.tensor(Verdict(stop=True, best=False), dtype=torch.int64).tolist() == [1, 0]


@every(start=range(8), stop=range(1, 8))
def test_a_stop_ends_the_run_as_its_last_epoch_does(start: int, stop: int) -> None:
    def schedule(**more: Any) -> Schedule:
        numbers = {"log_every": 5, "checkpoint_every": None, "evaluate_every": 3}
        return Schedule(Batches(6, 2, seed=0), 2, **numbers, **more)  # type: ignore[arg-type]

    stopped = schedule(stop=lambda done: done >= stop)
    plans, whole = list(stopped.plans(start)), list(schedule().plans(start))
    assert stopped.steps == min(stop, 6)
    assert [plan.step for plan in plans] == [plan.step for plan in whole if plan.step < stop]
    assert all(map(torch.equal, (plan.rows for plan in plans), (plan.rows for plan in whole)))
    if plans:
        last = plans[-1]
        assert (last.ends_epoch, last.evaluates, last.logs, last.saves) == (True, True, True, True)
