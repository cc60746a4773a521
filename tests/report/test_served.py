"""What a report says of ledgers: counts by hand, and whether they are whole, without changing anything in them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitvfl.cli import main
from splitvfl.errors import CheckpointError, LimitError
from splitvfl.report import served
from splitvfl.report.report import write_report
from splitvfl.report.served import lines_of, served_in
from splitvfl.run import ledger_file
from splitvfl.run.ledger import Ledger, ScoredFor, ScoreLimits
from splitvfl.run.ledger_file import KEY_FILE, LEDGER_FOLDER, LINES_FILE, MARKS_FILE
from tests.report.test_report import run, stored, text_of

ABOUT = ScoredFor(partner="bank", asked="predict", model="b" * 64, defenses=(), scorer="bank")


def write_ledger(folder: Path, party: str = "telecom") -> Path:
    """Two days: five predictions of 12 records, 6 different ones, record 1 three times, two refusals."""
    now = [1_800_000_000.0]  # 2027-01-15
    where = folder / LEDGER_FOLDER / party
    ledger = Ledger(where, party=party, run="a" * 32, limits=ScoreLimits(per_record=3, per_day=8), clock=lambda: now[0])

    def score(*records: int) -> None:
        forms = np.stack([np.zeros(len(records), np.int64), np.array(records)], axis=1)
        ledger.count(ledger.marks(forms), ABOUT)

    score(1, 2)
    score(1, 3, 4)
    score(1)
    with pytest.raises(LimitError, match="per_record"):
        score(1, 5)
    with pytest.raises(LimitError, match="per_day"):
        score(5, 6, 2, 3)
    now[0] += 86_400
    score(5, 6)
    score(2, 3, 4, 5)
    return where


def test_counts_are_those_that_were_written(tmp_path: Path) -> None:
    where = write_ledger(tmp_path)
    before = {path: path.read_bytes() for path in where.iterdir()}
    (found,) = served_in(tmp_path)
    assert (found.party, found.calls, found.records, found.different, found.most) == ("telecom", 5, 12, 6, 3)
    assert found.last_days == [("2027-01-15", 6, 6), ("2027-01-16", 6, 0)]
    assert found.refused == "1 by per_day: 8, 1 by per_record: 3"
    assert found.head == hashlib.sha256((where / LINES_FILE).read_bytes().splitlines(keepends=True)[-1]).hexdigest()
    assert found.state == f"whole; its last line is {found.head}"
    assert lines_of([tmp_path]) == [
        "telecom's ledger: 5 predictions of 12 records for bank, 6 different ones, one at most 3 times; refused: 1 by "
        f"per_day: 8, 1 by per_record: 3; whole; its last line is {found.head}"
    ]
    assert {path: path.read_bytes() for path in where.iterdir()} == before
    assert served_in(tmp_path / "nowhere") == []


def test_an_auditor_without_the_key_sees_the_chain_alone(tmp_path: Path) -> None:
    where = write_ledger(tmp_path)
    (where / KEY_FILE).unlink()
    (found,) = served_in(tmp_path)
    assert (found.problem, found.records, found.most) == ("", 12, 3)
    assert "its key is not here, so that only the chain was looked at" in found.state
    content = (where / LINES_FILE).read_text()
    (where / LINES_FILE).write_text(content.replace('"records":3', '"records":2'))
    assert "NOT WHOLE" in served_in(tmp_path)[0].state


def test_links_and_pipes_in_a_ledger_that_was_handed_on_are_told_and_not_opened(tmp_path: Path) -> None:
    where = write_ledger(tmp_path)
    kept = tmp_path / "kept"
    (where / LINES_FILE).rename(kept)
    (where / LINES_FILE).symlink_to(kept)
    assert f"NOT WHOLE: {where / LINES_FILE} is a link" in served_in(tmp_path)[0].state
    (where / LINES_FILE).unlink()
    os.mkfifo(where / LINES_FILE)
    assert f"NOT WHOLE: {where / LINES_FILE} is no file" in served_in(tmp_path)[0].state
    for name in (MARKS_FILE, KEY_FILE):
        (where / name).unlink()
        os.mkfifo(where / name)
        with pytest.raises(CheckpointError, match=f"{name} is no file"):
            served_in(tmp_path)


def test_what_is_not_whole_is_told_beside_what_is(tmp_path: Path) -> None:
    where = write_ledger(tmp_path)
    whole = (where / LINES_FILE).read_bytes()
    raw = whole.splitlines(keepends=True)
    (where / LINES_FILE).write_bytes(b"".join([*raw[:3], *raw[4:]]))
    (found,) = served_in(tmp_path)
    assert (found.calls, found.records) == (2, 5)
    assert found.state.startswith("NOT WHOLE: ")
    assert "ledger.jsonl, line 4: it does not follow from the line before" in found.state
    (where / LINES_FILE).write_bytes(b"".join(raw[:6]))
    assert "lines after line 6 were cut off, and marks of their records are there" in served_in(tmp_path)[0].state
    (where / LINES_FILE).write_bytes(whole[:-5])
    (found,) = served_in(tmp_path)
    assert (found.problem, found.interrupted, found.records) == ("", 1, 8)
    (where / LINES_FILE).write_bytes(whole.replace(b"telecom", b"tel\\u001b[2Jcom"))
    assert "\x1b" not in served_in(tmp_path)[0].in_words
    (where / MARKS_FILE).write_bytes(b"")
    assert "NOT WHOLE" in served_in(tmp_path)[0].state


def test_the_page_and_the_screen_show_each_partys_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path / "run", run())
    page = write_report([folder], tmp_path / "report.html", title="A title")
    assert "What was scored" not in page.read_text()
    for party in ("shop", "telecom"):
        write_ledger(folder, party)
    page = write_report([folder], tmp_path / "report.html", title="A title")
    told = text_of(page.read_text())
    assert "5 predictions of 12 records for bank: 6 different records, one at most 3 times." in " ".join(told.split())
    assert "2027-01-16" in told
    assert page.stat().st_mode & 0o077 == 0, "who was asked when is nobody else's business"

    assert main(["report", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "shop's ledger: 5 predictions" in shown
    assert "telecom's ledger: 5 predictions" in shown
    # A party's run over a network that has a ledger, and no figures.
    write_ledger(tmp_path / "own")
    assert main(["report", str(tmp_path / "own")]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "no page: there are no figures of a training here" in shown
    assert main(["report", str(tmp_path / "own"), "--out", str(tmp_path / "page.html")]) == 2
    assert "--out: no page can be made" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "page.html").exists()


def test_of_a_damaged_ledger_no_count_is_told(tmp_path: Path) -> None:
    where = write_ledger(tmp_path)
    raw = (where / LINES_FILE).read_bytes().splitlines(keepends=True)
    (where / LINES_FILE).write_bytes(b"".join([raw[0], raw[1].replace(b'"bank"', b'"bonk"'), *raw[2:]]))
    (line,) = lines_of([tmp_path])
    assert line.startswith("telecom's ledger: NOT WHOLE: ")
    assert line.endswith("its code is not that of the folder's key: it was changed. How much was scored cannot be said")


def test_a_ledger_that_is_written_to_meanwhile_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes between two looks at its files: whole lines, or marks whose line is not there yet."""
    where = write_ledger(tmp_path)
    before = served_in(tmp_path)[0].calls
    ledger = Ledger(where, party="telecom", run="a" * 32, clock=lambda: 1_800_200_000.0)
    forms = np.array([[0, 7], [0, 8]])
    looked = served.entries_from

    def write_and_look(folder: Path, start: int) -> Any:
        for _ in range(2):
            ledger.count(ledger.marks(forms), ABOUT)
        found = looked(folder, start)
        ledger.count(ledger.marks(forms), ABOUT)
        return found

    monkeypatch.setattr(served, "entries_from", write_and_look)
    (found,) = served_in(tmp_path)
    assert (found.problem, found.interrupted, found.calls) == ("", 0, before)
    monkeypatch.undo()
    assert served_in(tmp_path)[0].calls == before + 3

    # A process that has written marks, and holds the ledger while it writes their line.
    write, seen = ledger_file.append_bytes, []

    def slow(path: Path, content: bytes) -> None:
        if path.name == LINES_FILE:
            seen.extend(served_in(tmp_path))
        write(path, content)

    monkeypatch.setattr(ledger_file, "append_bytes", slow)
    ledger.count(ledger.marks(forms), ABOUT)
    assert [(one.problem, one.interrupted, one.calls) for one in seen] == [("", 0, before + 3)]
