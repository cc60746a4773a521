"""When a party has done everything in a run, and when nobody needs it any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from splitvfl.errors import DataError
from splitvfl.run.party_folder import PartyFolder, RunEnd
from splitvfl.team.team import Alone


class OfTwo(Alone):
    """A worker whose other one has said farewell."""

    def collect(self, data: bytes) -> list[bytes]:
        return [data, b"parted"]


def state(step: int, *, stopped: bool = False, **more: Any) -> dict[str, Any]:
    return {"run": "r", "step": step, "stopped": stopped, **more}


def test_a_run_ends_with_its_last_step_or_where_it_is_stopped(tmp_path: Path) -> None:
    end = RunEnd(PartyFolder(tmp_path), 9)
    assert [end.is_at(run) for run in ({}, state(8), state(9), state(3, stopped=True))] == [False, False, True, True]


def test_who_sends_everything_once_is_done_when_it_has_crossed(tmp_path: Path) -> None:
    end = RunEnd(PartyFolder(tmp_path), 9, crosses=True)
    assert [end.is_at(run) for run in (state(9), state(0, crossed=False), state(0, crossed=True))] == [
        False,
        False,
        True,
    ]


def test_a_party_has_parted_where_it_said_farewell_at_the_end(tmp_path: Path) -> None:
    folder = PartyFolder(tmp_path)
    end, alone = RunEnd(folder, 9), RunEnd(folder, 9, ends_alone=True)
    assert not end.has_parted(state(9))
    folder.note_farewell("r", 9)
    assert end.has_parted(state(9))
    assert not end.has_parted(state(8))
    assert not end.has_parted(state(8, stopped=True)), "that is another moment of it"
    assert not end.has_parted({**state(9), "run": "another"})
    assert alone.has_parted(state(0)), "it has all that it needs, whatever it has done with it"
    assert not alone.has_parted({**state(0), "run": "another"})
    assert not alone.has_parted({})


def test_a_worker_that_lacks_the_end_of_the_others_is_refused_by_its_folder(tmp_path: Path) -> None:
    end = RunEnd(PartyFolder(tmp_path), 9)
    assert end.team_has_parted(state(9), OfTwo(), "bank")
    assert not end.team_has_parted(state(9), Alone(), "bank")
    with pytest.raises(DataError, match=f"other workers of bank have finished this run, and {tmp_path} does not hold"):
        end.team_has_parted(state(8), OfTwo(), "bank")
