"""Limits hold whatever is asked, outlive the process, and name nobody."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from splitvfl.errors import ArgumentError, CheckpointError
from splitvfl.run import ask_limits
from splitvfl.run.ask_limits import AskCounts, AskLimits

DAY_S = 86_400.0


class Clock:
    now = 100 * DAY_S

    def __call__(self) -> float:
        return self.now


def ask(counts: AskCounts, records: int, *, held: float = 1.0) -> int:
    admitted = counts.admit(records)
    counts.count(held=int(held * admitted), not_held=admitted - int(held * admitted))
    return admitted


def test_a_minute_has_a_limit_and_fills_again() -> None:
    clock = Clock()
    counts = AskCounts(AskLimits(per_minute=60, per_day=10_000), clock=clock)

    assert [ask(counts, 50), ask(counts, 50), ask(counts, 50)] == [50, 10, 0]
    clock.now += 10.0
    assert ask(counts, 50) == 10
    clock.now += 3600.0
    assert ask(counts, 500) == 60


def test_no_minute_of_any_day_has_more_than_twice_its_limit() -> None:
    clock = Clock()
    counts = AskCounts(AskLimits(per_minute=60, per_day=10_000), clock=clock)
    admitted = []
    for _ in range(600):
        clock.now += 0.5
        admitted.append(ask(counts, 7))

    assert max(sum(admitted[start : start + 120]) for start in range(480)) <= 120
    assert sum(admitted) <= 60 + 300


def test_a_clock_that_is_set_back_gives_nothing() -> None:
    clock = Clock()
    counts = AskCounts(AskLimits(per_minute=60, per_day=10_000), clock=clock)
    assert ask(counts, 60) == 60
    for change in (-1000.0, 0.5, -1000.0, 0.4):
        clock.now += change
        assert ask(counts, 60) == 0


def test_a_day_has_a_limit_that_outlives_the_process(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "asked.json"
    limits = AskLimits(per_minute=1000, per_day=100)
    counts = AskCounts(limits, path, clock=clock)
    assert ask(counts, 70, held=0.5) == 70
    counts.write()

    again = AskCounts(limits, path, clock=clock)

    assert [ask(again, 70, held=0.5), ask(again, 70)] == [30, 0]
    again.write()
    day = {"asked": 210, "held": 50, "not_held": 50, "refused": 110, "limited": 0}
    assert json.loads(path.read_text()) == {"1970-04-11": day}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    clock.now += DAY_S
    assert ask(again, 70) == 70


def test_counts_are_written_a_second_later_though_nothing_more_is_asked_for(tmp_path: Path) -> None:
    path, due = tmp_path / "asked.json", []
    counts = AskCounts(AskLimits(), path, clock=Clock(), later=lambda seconds, act: due.append((seconds, act)))

    ask(counts, 1)
    ask(counts, 2)
    assert not path.exists()
    assert [seconds for seconds, _ in due] == [1.0]  # one write for both
    due.pop()[1]()
    assert json.loads(path.read_text())["1970-04-11"]["asked"] == 3
    ask(counts, 1)
    assert len(due) == 1

    (tmp_path / ".asked.json").mkdir()  # what cannot be written is told to who asks next
    due.pop()[1]()
    with pytest.raises(CheckpointError, match="cannot write"):
        ask(counts, 1)


def test_only_the_last_days_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask_limits, "_KEPT_DAYS", 3)
    clock, path = Clock(), tmp_path / "asked.json"
    counts = AskCounts(AskLimits(), path, clock=clock)
    for _ in range(5):
        ask(counts, 1)
        clock.now += DAY_S
    counts.write()
    assert list(json.loads(path.read_text())) == ["1970-04-13", "1970-04-14", "1970-04-15"]


@pytest.mark.parametrize("content", ["", "[]", '{"1970-04-11": {"asked": "many"}}', "\0"])
def test_a_damaged_file_is_not_read_as_no_counts(tmp_path: Path, content: str) -> None:
    path = tmp_path / "asked.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match="holds no counts of what was asked"):
        AskCounts(AskLimits(), path)


@pytest.mark.parametrize("limits", [{"per_minute": 0}, {"per_day": 0}])
def test_a_limit_of_nothing_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=r"expected per_(minute|day) of 1 record at least, got 0"):
        AskLimits(**limits)
