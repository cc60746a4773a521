"""The ledger of a passive party: what it counts, what it refuses, and what nobody can change in it unnoticed."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from splitvfl.errors import ArgumentError, CheckpointError, LimitError, PrivacyError
from splitvfl.run import ledger as ledger_module
from splitvfl.run import ledger_file
from splitvfl.run.ledger import CountedCall, Ledger, ScoredFor, ScoreLimits
from splitvfl.run.ledger_file import KEY_FILE, LINES_FILE, MARKS_FILE
from splitvfl.run.record_counts import (
    RecordCounts,
    marks_of,
    most_often,
    rank_within,
    record_forms,
)
from splitvfl.system import untrusted_files
from splitvfl.system.folder_lock import locked
from tests.run.forked import FORKS

RUN = "a" * 32
ABOUT = ScoredFor(partner="bank", asked="predict", model="b" * 64, defenses=("gaussian-ir",), scorer="bank")
NOON = datetime(2026, 3, 14, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def opened(folder: Path, *, clock: Clock | None = None, run: str = RUN, **limits: int) -> Ledger:
    return Ledger(folder / "ledger", party="telecom", run=run, limits=ScoreLimits(**limits), clock=clock or Clock())


def ids(*names: int | str) -> pa.Array:
    return pa.array(list(names))


def score(ledger: Ledger, *names: int | str) -> None:
    ledger.count(ledger.marks(record_forms(ids(*names), rows=False)), ABOUT)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger" / LINES_FILE).read_text().splitlines()]


def refused(ledger: Ledger, *names: int | str) -> str:
    with pytest.raises(LimitError) as caught:
        score(ledger, *names)
    return str(caught.value)


# --- what a line says


def test_each_prediction_is_a_line_that_holds_the_digest_of_the_one_before(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    score(ledger, "c1", "c2", "c2")
    score(ledger, "c1")

    raw = (tmp_path / "ledger" / LINES_FILE).read_bytes().splitlines(keepends=True)
    found = lines(tmp_path)
    assert [one["before"] for one in found] == ["0" * 64, *(hashlib.sha256(line).hexdigest() for line in raw[:-1])]
    assert ledger.head == hashlib.sha256(raw[-1]).hexdigest()
    assert {key: found[1][key] for key in ("what", "records", "total", "partner", "asked", "model", "scorer")} == {
        "what": "counted",
        "records": 3,
        "total": 3,
        "partner": "bank",
        "asked": "predict",
        "model": "b" * 64,
        "scorer": "bank",
    }
    assert (found[1]["time"], found[1]["day"]) == ("2026-03-14T12:00:00+00:00", "2026-03-14")
    assert found[1]["defenses"] == ["gaussian-ir"]
    assert (found[0]["what"], found[0]["party"], found[0]["run"]) == ("begun", "telecom", RUN)


def test_nothing_in_the_folder_tells_an_id_to_who_lacks_the_key(tmp_path: Path) -> None:
    """Not the id, and no digest of it that could be found by trying all ids."""
    ledger = opened(tmp_path)
    score(ledger, 1001, 1002)
    folder = tmp_path / "ledger"
    for path in (LINES_FILE, MARKS_FILE, KEY_FILE):
        assert (folder / path).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    kept = (folder / MARKS_FILE).read_bytes() + (folder / LINES_FILE).read_bytes()
    forms = record_forms(ids(1001, 1002), rows=False)
    plain = [b"1001", b"1002", *(row.tobytes() for row in forms)]
    tried = [hashlib.new(kind, one).digest()[:8] for kind in ("sha256", "blake2b", "sha1") for one in plain]
    assert not any(one in kept for one in (*tried, plain[2], plain[3], (1001).to_bytes(8, "little")))

    other = opened(tmp_path / "elsewhere")
    score(other, 1001, 1002)
    assert lines(tmp_path / "elsewhere")[1]["ids"] != lines(tmp_path)[1]["ids"], "another key"


@pytest.mark.parametrize(
    "same",
    [
        ("c1", " C1 "),
        ("7", 7),
        ("0", 0),
        ("ÉA", "e\u0301a"),
        ("1761234567890123456", 1_761_234_567_890_123_456),
        *((str(end), end) for end in (2**63 - 1, -(2**63))),
    ],
)
def test_one_id_is_one_record_however_it_is_written(same: tuple[str | int, str | int]) -> None:
    first, second = (record_forms(ids(one), rows=False) for one in same)
    np.testing.assert_array_equal(first, second)


def test_a_number_of_64_bits_without_a_sign_is_the_record_that_its_text_is() -> None:
    large = [2**63, 2**64 - 1, 7]
    numbers = record_forms(pa.array(large, pa.uint64()), rows=False)
    np.testing.assert_array_equal(numbers, record_forms(pa.array([*map(str, large)]), rows=False))
    assert len({tuple(row) for row in numbers.tolist()}) == 3


def test_ids_and_numbers_of_rows_are_not_mixed_up() -> None:
    names = ["7", "07", "+7", "7.0", "-7", "", "1" * 18, "1" * 19, "1" * 25, "c7"]
    forms = record_forms(pa.array(names), rows=False)
    everything = np.concatenate([forms, record_forms(ids(7), rows=True)])
    assert len({tuple(row) for row in everything.tolist()}) == len(names) + 1
    assert len(set(marks_of(everything, b"k" * 32).tolist())) == len(names) + 1


# --- counting


def test_counts_are_those_of_a_counter() -> None:
    draw = np.random.default_rng(0)
    counts, expected = RecordCounts(), Counter[int]()
    for size in (0, 5, 300, 300_000, 17, 400_000, 3):
        marks = draw.integers(0, 50_000, size).astype(np.uint64)
        asked = draw.integers(0, 60_000, 200).astype(np.uint64)
        assert counts.of(asked).tolist() == [expected[mark] for mark in asked.tolist()]
        counts.add(marks)
        expected.update(marks.tolist())
        assert counts.of(asked).tolist() == [expected[mark] for mark in asked.tolist()]
        assert most_often(marks) == (len(set(marks.tolist())), max(Counter(marks.tolist()).values(), default=0))
        seen: Counter[int] = Counter()
        ranks = []
        for mark in marks[:1000].tolist():
            seen[mark] += 1
            ranks.append(seen[mark])
        assert rank_within(marks[:1000]).tolist() == ranks


def test_a_record_is_scored_so_often_and_no_more_restarts_and_repeats_included(tmp_path: Path) -> None:
    score(opened(tmp_path, per_record=3), "c1", "c2", "c1")
    ledger = opened(tmp_path, per_record=3)
    score(ledger, "c1", "c3")
    assert refused(ledger, "c3", "c1", "c2", "c1") == (
        "telecom scores none of these records: it scores none more than 3 times, and 2 of 4 would be, at rows 1, 3 "
        "(from 0) (prediction.per_record: 3); nothing was sent"
    )
    refusal = lines(tmp_path)[-1]
    assert (refusal["what"], refusal["limit"], refusal["records"]) == ("refused", "per_record: 3", 4)
    score(ledger, "c3", "c2")  # a refused prediction counted none of its records
    assert "2 of 2 would be, at rows 1" not in refused(opened(tmp_path, per_record=3), "c2", "c2")
    score(opened(tmp_path), "c1")  # without a limit


def test_a_record_twice_in_one_prediction_counts_twice(tmp_path: Path) -> None:
    ledger = opened(tmp_path, per_record=1)
    assert "1 of 2 would be, at rows 1" in refused(ledger, "c1", "c1")
    score(ledger, "c1")


def test_a_day_has_so_many_records_and_a_clock_that_is_set_back_makes_no_new_one(tmp_path: Path) -> None:
    clock = Clock()
    ledger = opened(tmp_path, clock=clock, per_day=5)
    score(ledger, 1, 2, 3)
    assert "there are 3, and of its 5 of 2026-03-14 (UTC) 2 are left (prediction.per_day: 5)" in refused(
        ledger, 1, 2, 3
    )
    clock.now = NOON + DAY
    score(ledger, 1, 2, 3, 4)
    clock.now = NOON
    words = refused(ledger, 1, 2)
    assert "of its 5 of 2026-03-15 (UTC) 1 are left; its clock is at 2026-03-14, before the latest day" in words
    assert refused(opened(tmp_path, clock=clock, per_day=5), 1, 2) == words, "after a restart too"
    score(ledger, 1)
    assert lines(tmp_path)[-1] | {"time": "2026-03-14T12:00:00+00:00", "day": "2026-03-15"} == lines(tmp_path)[-1]
    clock.now = NOON - 300 * DAY
    assert "2026-03-15 (UTC) 0 are left" in refused(ledger, 1)


def test_a_prediction_has_so_many_records_at_least(tmp_path: Path) -> None:
    ledger = opened(tmp_path, fewest=3)
    assert "there are 2, and it takes 3 at least (prediction.fewest: 3)" in refused(ledger, 1, 2)
    score(ledger, 1, 2, 3)
    assert [line["what"] for line in lines(tmp_path)] == ["begun", "refused", "counted"]


@pytest.mark.parametrize("wrong", [{"per_record": 0}, {"per_day": -1}, {"fewest": 51, "per_day": 50}])
def test_limits_that_nobody_can_meet_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=r"of 1 at least, got|no prediction has so many"):
        ScoreLimits(**wrong)


def test_on_request_each_record_is_let_or_refused_for_itself(tmp_path: Path) -> None:
    ledger = opened(tmp_path, per_record=2, per_day=5)
    marks = ledger.marks(record_forms(ids("a", "b", "a", "a", "c"), rows=False))
    let, within = ledger.admit(marks, ABOUT)
    assert let.tolist() == within.tolist() == [True, True, True, False, True]
    let, within = ledger.admit(marks, ABOUT)
    assert let.tolist() == [False, True, False, False, False], "one was left of the day"
    assert within.tolist() == [False, True, False, False, True]
    told = [(line["what"], line.get("records", 0), line.get("limit", "")) for line in lines(tmp_path)]
    assert told == [
        ("begun", 0, ""),
        ("refused", 1, "per_record: 2"),
        ("counted", 4, ""),
        ("refused", 3, "per_record: 2"),
        ("refused", 1, "per_day: 5"),
        ("counted", 1, ""),
    ]


def test_a_thousand_requests_at_once_lose_no_count(tmp_path: Path) -> None:
    """Of forty threads, with two objects on one folder: each record is let exactly as often as the limit says."""
    both = [opened(tmp_path, per_record=20), opened(tmp_path, per_record=20)]
    let, lock = Counter[int](), threading.Lock()

    def ask(number: int) -> None:
        ledger = both[number % 2]
        for turn in range(25):
            names = [turn % 5, 100 + number, turn % 5]
            found, _ = ledger.admit(ledger.marks(record_forms(ids(*names), rows=False)), ABOUT)
            with lock:
                let.update(name for name, own in zip(names, found.tolist(), strict=True) if own)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [let[name] for name in range(5)] == [20] * 5, "asked for four hundred times each"
    assert all(let[100 + number] == 20 for number in range(40)), "asked for 25 times each"
    assert lines(tmp_path)[-1]["total"] == sum(let.values()) == 900
    assert opened(tmp_path).head == both[0].head or opened(tmp_path).head == both[1].head


def ask_in_a_process(folder: Path, told: Any) -> None:
    ledger = opened(folder, per_record=100)
    marks = ledger.marks(record_forms(ids("shared"), rows=False))
    told.put(sum(int(ledger.admit(marks, ABOUT)[0].sum()) for _ in range(80)))


def test_two_processes_on_one_folder_count_together(tmp_path: Path) -> None:
    told = FORKS.Queue()
    both = [FORKS.Process(target=ask_in_a_process, args=(tmp_path, told)) for _ in range(2)]
    for process in both:
        process.start()
    assert sum(told.get(timeout=60) for _ in both) == 100
    for process in both:
        process.join(60)
    assert lines(tmp_path)[-1]["total"] == 100


# --- a process that ends at any moment


class Killed(BaseException):
    """What a kill is to a test."""


@pytest.mark.parametrize("moment", ["marks", "half of the marks", "line", "half of the line", "after"])
def test_a_process_that_is_killed_has_counted_too_much_and_never_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    ledger = opened(tmp_path, per_record=2)
    score(ledger, "c1")
    write = ledger_file.append_bytes

    def killed(path: Path, content: bytes) -> None:
        if moment.endswith("marks" if path.name == MARKS_FILE else "line"):
            if moment.startswith("half"):
                write(path, content[: len(content) // 2 - 1])
            raise Killed
        write(path, content)

    monkeypatch.setattr(ledger_file, "append_bytes", killed)
    if moment == "after":
        score(ledger, "c1", "c2")
    else:
        with pytest.raises(Killed):
            score(ledger, "c1", "c2")
    monkeypatch.undo()
    told: list[str] = []
    again = Ledger(tmp_path / "ledger", party="telecom", run=RUN, limits=ScoreLimits(per_record=2), notify=told.append)
    kept = {"marks": 0, "half of the marks": 0, "line": 2, "half of the line": 2, "after": 2}[moment]
    assert lines(tmp_path)[-1]["total"] == 1 + kept
    if kept:  # all of them count, and nothing had left
        assert "1 of 1 would be" in refused(again, "c1")
    else:
        score(again, "c1")
    score(again, "c2")
    if "line" in moment:
        assert told == [
            f"{tmp_path / 'ledger'}: a process ended while it wrote line 3; 2 records that it had counted count, "
            "whether they were scored or not"
        ]
        assert lines(tmp_path)[2]["what"] == "interrupted"
    else:
        assert told == []
    opened(tmp_path)  # whole


def test_one_that_is_killed_at_the_first_count_of_all_locks_nobody_out_who_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, doomed = opened(tmp_path, per_record=2), opened(tmp_path, per_record=2)
    write = ledger_file.append_bytes

    def killed(path: Path, content: bytes) -> None:
        if path.name == LINES_FILE:
            raise Killed
        write(path, content)

    monkeypatch.setattr(ledger_file, "append_bytes", killed)
    with pytest.raises(Killed):
        score(doomed, "c1")
    monkeypatch.undo()
    score(at_work, "c1", "c2")
    assert [line["what"] for line in lines(tmp_path)] == ["begun", "interrupted", "counted"]
    assert "1 of 1 would be" in refused(at_work, "c1")
    score(opened(tmp_path), "c3")  # whole


@pytest.mark.parametrize("moment", ["key", "half of the key", "half of the first line"])
def test_a_process_that_is_killed_while_it_makes_the_ledger_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    write, link = ledger_file.append_bytes, os.link

    def killed(path: Path, content: bytes) -> None:
        write(path, content[: len(content) // 2])
        raise Killed

    def not_linked(*names: object, **how: object) -> None:
        raise Killed

    class Torn:
        """A file of which half is written."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Torn:
            return self

        def __exit__(self, *error: object) -> None:
            self._file.close()

        def write(self, content: bytes) -> None:
            self._file.write(content[:7])
            self._file.flush()
            raise Killed

    if moment == "half of the first line":
        monkeypatch.setattr(ledger_file, "append_bytes", killed)
    elif moment == "key":
        monkeypatch.setattr(os, "link", not_linked)
    else:
        monkeypatch.setattr(untrusted_files, "open", lambda *a, **k: Torn(open(*a, **k)), raising=False)  # noqa: SIM115
        monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    with pytest.raises(Killed):
        opened(tmp_path)
    monkeypatch.undo()
    assert os.link is link

    ledger = opened(tmp_path, per_record=1)
    score(ledger, "c1")
    assert "1 of 1 would be" in refused(ledger, "c1")
    assert [line["what"] for line in lines(tmp_path)] == ["begun", "counted", "refused"]
    opened(tmp_path)  # whole


def test_a_disk_that_is_full_counts_a_record_once_however_often_it_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(tmp_path, per_record=3)
    write = ledger_file.append_bytes

    def full(path: Path, content: bytes) -> None:
        if path.name == LINES_FILE:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(ledger_file, "append_bytes", full)
    for _ in range(9):
        with pytest.raises(CheckpointError, match="No space left on device"):
            score(ledger, "c1")
    monkeypatch.undo()

    score(ledger, "c1")  # the second time: the first try's mark is there
    score(ledger, "c1")
    assert "1 of 1 would be" in refused(ledger, "c1")
    assert "1 of 1 would be" in refused(opened(tmp_path, per_record=3), "c1")


def test_what_is_counted_is_on_the_disk_before_anything_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks, then their line; and the folders of a ledger that is new. Tests run without it: here it is looked at."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/dev/fd/{descriptor}").resolve().name))
    ledger = Ledger(tmp_path / "RUN" / "ledger" / "telecom", party="telecom", run=RUN, clock=Clock())
    assert {"telecom", "ledger", "RUN", LINES_FILE} <= set(synced)
    assert any(KEY_FILE in name for name in synced)
    synced.clear()
    score(ledger, "c1")
    assert synced == [MARKS_FILE, "telecom", LINES_FILE]  # the first marks are a new file in the folder


def test_a_refusal_tells_of_which_records_it_is_to_who_has_the_key(tmp_path: Path) -> None:
    ledger = opened(tmp_path, per_record=1)
    score(ledger, "c1")
    refused(ledger, "c1")
    score(ledger, "c2")
    begun, first, refusal, second = lines(tmp_path)
    assert begun["what"] == "begun"
    assert refusal["what"] == "refused"
    assert refusal["ids"] == first["ids"] != second["ids"]
    opened(tmp_path)  # whole


def test_the_key_is_in_no_text_of_the_ledger(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    key = (tmp_path / "ledger" / KEY_FILE).read_bytes()
    assert repr(key)[2:-1] not in repr(ledger._chain)


def test_a_prediction_counts_before_its_first_part_leaves(tmp_path: Path) -> None:
    ledger = opened(tmp_path, per_record=1)
    marks = ledger.marks(record_forms(ids(1, 2, 3), rows=False))
    call = CountedCall(ledger, marks, ABOUT, records=3, again=False)
    with pytest.raises(PrivacyError, match="parts of 1 records were to leave, and 0 of them are counted"):
        call.leaving(1)
    call.begin()
    call.leaving(2)
    call.begin()  # a link broke: the same again, to the bit
    call.leaving(2)
    call.leaving(1)
    with pytest.raises(PrivacyError, match="parts of 1 records were to leave, and 0"):
        call.leaving(1)
    assert lines(tmp_path)[-1]["total"] == 3


def test_where_somebody_else_answers_a_prediction_that_begins_again_counts_again(tmp_path: Path) -> None:
    ledger = opened(tmp_path, per_record=2)
    marks = ledger.marks(record_forms(ids(1, 2), rows=False))
    call = CountedCall(ledger, marks, ABOUT, records=2, again=True)
    call.begin()
    call.begin()
    assert lines(tmp_path)[-1]["total"] == 4
    with pytest.raises(LimitError):
        call.begin()
    with pytest.raises(PrivacyError, match="0 of them are counted"):
        call.leaving(1)


# --- what nobody changes unnoticed


def broken(folder: Path, **limits: int) -> str:
    with pytest.raises(CheckpointError) as caught:
        opened(folder, **limits)
    assert "othing was sent" in str(caught.value)
    return str(caught.value)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    ledger = opened(tmp_path)
    for number in range(4):
        score(ledger, number, number + 1)
    return tmp_path


@pytest.mark.parametrize("number", range(5))
def test_a_line_that_was_changed_is_noticed_the_last_one_too(kept: Path, number: int) -> None:
    path = kept / "ledger" / LINES_FILE
    content = path.read_bytes().splitlines(keepends=True)
    content[number] = content[number].replace(b"2026-03-14T12", b"2026-03-14T13")
    path.write_bytes(b"".join(content))
    assert f"ledger.jsonl, line {number + 1}: its code is not that of the folder's key" in broken(kept)


@pytest.mark.parametrize("number", range(4))
def test_a_line_that_was_taken_out_is_noticed(kept: Path, number: int) -> None:
    path = kept / "ledger" / LINES_FILE
    content = path.read_bytes().splitlines(keepends=True)
    del content[number]
    path.write_bytes(b"".join(content))
    assert f"line {number + 1}: it does not follow from the line before" in broken(kept)


def test_an_end_that_was_cut_off_is_noticed_while_marks_are_there(kept: Path) -> None:
    path = kept / "ledger" / LINES_FILE
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[:3]))
    assert "ends after line 3, and scored.bin has records of later ones: lines were cut off" in broken(kept)
    path.write_bytes(b"".join(content[:4]))  # one line: as a process that was killed leaves it
    opened(kept)
    assert lines(kept)[-1]["what"] == "interrupted"
    assert lines(kept)[-1]["total"] == 8, "its records count still"


def test_an_end_that_was_cut_off_everywhere_shows_to_who_kept_the_head(kept: Path) -> None:
    """That is all that a ledger can do against who owns its folder."""
    path, marks = kept / "ledger" / LINES_FILE, kept / "ledger" / MARKS_FILE
    head, content = opened(kept).head, path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[:3]))
    marks.write_bytes(marks.read_bytes()[: 4 * 12])
    again = opened(kept)
    score(again, 99)
    assert head not in {hashlib.sha256(line).hexdigest() for line in path.read_bytes().splitlines(keepends=True)}


@pytest.mark.parametrize(("start", "words"), [(0, "are others than it was written for"), (8, "belong to another line")])
def test_marks_that_were_changed_are_noticed(kept: Path, start: int, words: str) -> None:
    path = kept / "ledger" / MARKS_FILE
    content = bytearray(path.read_bytes())
    content[12 + start] ^= 1
    path.write_bytes(bytes(content))
    assert words in broken(kept)


def test_marks_that_were_cut_off_are_noticed(kept: Path) -> None:
    path = kept / "ledger" / MARKS_FILE
    path.write_bytes(path.read_bytes()[:-12])
    assert "it does not count what scored.bin holds: that was cut off" in broken(kept)
    path.unlink()
    assert "it does not count what scored.bin holds" in broken(kept)


def test_a_ledger_without_its_key_or_of_another_model_is_refused(kept: Path) -> None:
    words = (
        f"is the ledger of telecom for run {RUN}, and this is telecom with a model of run {'c' * 32}. Nothing was "
        "sent: bring back the ledger of this model"
    )
    with pytest.raises(CheckpointError, match=words):
        opened(kept, run="c" * 32)
    key = kept / "ledger" / KEY_FILE
    key.write_bytes(b"short")
    assert_key = "expected 32 bytes, got 5; bring it back"
    with pytest.raises(CheckpointError, match=assert_key):
        opened(kept)
    key.write_bytes(b"k" * 32)
    assert "line 1: its code is not that of the folder's key" in broken(kept)
    key.unlink()
    assert "ledger.key is gone, and without it nobody knows which records were counted" in broken(kept)


def test_lines_that_are_none_are_refused_by_their_number(kept: Path) -> None:
    path = kept / "ledger" / LINES_FILE
    content = path.read_bytes()
    for junk in (b"{}\n", b"\xff\xfe\n", b"\n", b"[1]\n", b'{"code":"x"}\n', b"x" * (1 << 17) + b"\n"):
        path.write_bytes(content + junk)
        if len(junk) > 1 << 16:  # no line is so long: a piece of one, as far as anybody can tell
            opened(kept)
            assert lines(kept)[-1]["what"] == "interrupted"
        else:
            assert "ledger.jsonl, line 6: it is none" in broken(kept)


def test_a_ledger_that_disappears_while_it_is_used_stops_the_party(kept: Path) -> None:
    ledger = opened(kept)
    (kept / "ledger").rename(kept / "moved")
    with pytest.raises(CheckpointError, match=r"cannot read or write the ledger in .*; nothing was sent"):
        score(ledger, 1)
    (kept / "moved").rename(kept / "ledger")
    (kept / "ledger" / LINES_FILE).write_text("")
    with pytest.raises(CheckpointError, match="is shorter than it was: something was cut off"):
        score(ledger, 1)


def test_a_folder_that_cannot_be_written_to_stops_the_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(tmp_path)

    def full(*anything: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device; nothing was sent, for what is scored is"):
            score(ledger, 1)
    score(ledger, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises((CheckpointError, OSError)):
        Ledger(tmp_path / "file", party="telecom", run=RUN)


def test_who_holds_the_ledger_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(tmp_path)
    monkeypatch.setattr(ledger_module, "_PATIENCE_S", 0.01)
    with locked(tmp_path / "ledger"), pytest.raises(CheckpointError, match="another process is at work in"):
        score(ledger, 1)
    score(ledger, 1)
