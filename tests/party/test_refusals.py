"""Refusals of sums are counted, on disk before anybody can notice them, and three of them are all that a run takes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from splitvfl.errors import CheckpointError, SumRefused
from splitvfl.party.refusals import MOST, Refusals, bits_told, journal_of


def test_the_third_refusal_is_the_last(tmp_path: Path) -> None:
    path = journal_of(tmp_path, "lab")
    refusals = Refusals("lab", path)
    for number in (1, 2):
        refusals.check()
        error = refusals.refuse(f"opened of step {number} from bank", "too large")
        assert not error.final
        assert f"opened of step {number} from bank: too large. lab has refused {number} of the 3 sums" in str(error)
    last = refusals.refuse("opened of step 9 from bank", "too large")
    assert last.final
    for error in (last, _refused_by(refusals), _refused_by(Refusals("lab", path))):
        assert error.final
        said = "(opened of step 1 from bank; opened of step 2 from bank; opened of step 9 from bank)"
        assert f"lab has refused 3 sums in this run {said}" in str(error)
        assert f"it is noted in {path}" in str(error)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(Refusals("lab")) == 0  # another run


def _refused_by(refusals: Refusals) -> SumRefused:
    with pytest.raises(SumRefused) as caught:
        refusals.check()
    return caught.value


def test_steps_that_succeed_forgive_nothing(tmp_path: Path) -> None:
    for number, sender in enumerate(("bank", "shop", "coordinator")):  # all others together
        refusals = Refusals("lab", journal_of(tmp_path, "lab"))  # started again each time
        assert len(refusals) == number
        for _ in range(100):
            refusals.check()
        refusals.refuse(f"opened of step {number} from {sender}", "too large")
    _refused_by(Refusals("lab", journal_of(tmp_path, "lab")))


def test_a_refusal_outlives_a_process_that_is_killed_as_soon_as_it_has_its_error(
    tmp_path: Path, checkout: Path
) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from splitvfl.party.refusals import Refusals\n"
        "Refusals('lab', Path(sys.argv[1])).refuse('opened of step 4 from bank', 'too large')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    path = tmp_path / "journal"
    for number in range(1, MOST + 1):
        ended = subprocess.run([sys.executable, "-c", program, str(path)], env=environment, check=False)
        assert ended.returncode == -signal.SIGKILL
        assert len(Refusals("lab", path)) == number


def test_a_line_that_was_torn_off_counts_and_swallows_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Refusals("lab", path).refuse("opened of step 4 from bank", "too large")
    path.write_bytes(path.read_bytes()[:7])
    again = Refusals("lab", path)
    assert len(again) == 1
    again.refuse("opened of step 5\nfrom bank", "too large")  # one line, whatever is in it
    assert len(Refusals("lab", path)) == 2


def test_what_cannot_be_noted_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write .*journal"):
        Refusals("lab", tmp_path / "missing" / "journal").refuse("opened of step 4 from bank", "too large")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"folder is no file"):
        Refusals("lab", tmp_path / "folder")


@pytest.mark.parametrize("answers", [0, 1, 2, 3, 8])
def test_what_refusals_tell_is_which_of_the_answers_were_refused(answers: int) -> None:
    """Counted one by one: a run shows some pattern of answers that were taken and refused, and ends at the third."""
    seen = set()
    for pattern in product((False, True), repeat=answers):
        shown = []
        for refused in pattern:
            if sum(shown) < MOST:
                shown.append(refused)
        seen.add(tuple(shown) + (None,) * (answers - len(shown)))
    assert bits_told(answers) == pytest.approx(math.log2(len(seen)))


def test_the_bits_that_the_threat_model_names() -> None:
    assert [round(bits_told(answers)) for answers in (1_000, 10_000)] == [27, 37]
