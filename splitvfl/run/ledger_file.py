"""The files of a ledger: a line for each time that records were scored, and the mark of every record that was.

``ledger.jsonl`` has one JSON object a line, each with SHA-256 of the line before and a code under the key of the
folder; ``scored.bin`` has 12 bytes for every record that was counted, its mark
(:mod:`splitvfl.run.record_counts`) and the number of its line, and every line a keyed digest of its marks, in their
order. Both only grow. What is in them was written in this order: marks, then their line, each on the disk before the
next thing happens, and then only does anything leave. So what a process that was killed leaves behind is marks without
a line, or a piece of a line: the records count, and a line says that something was interrupted.

What this proves, and to whom: a line that was changed, left out or put in is noticed, and so is one at the end that was
changed, by who has the key. The end of the ledger that was cut off is noticed where marks of more than one line are
left. Who owns the folder has the key, and can write all of it anew, or cut lines and marks off alike: that shows to who
has kept the digest of an earlier last line.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from splitvfl.errors import CheckpointError
from splitvfl.run.record_counts import Marks
from splitvfl.system.private_folder import close_folder
from splitvfl.system.untrusted_files import UntrustedFile, append_bytes, decoded, flush_folder, open_own, write_new

LEDGER_FOLDER: Final = "ledger"
"""In the folder of a run; in it each passive party whose half the run has has a folder of its own."""
LINES_FILE: Final = "ledger.jsonl"
MARKS_FILE: Final = "scored.bin"
KEY_FILE: Final = "ledger.key"

BRING_BACK: Final = (
    "bring it back as it was, from a backup: without it nobody knows how often each record was scored, and this model "
    "scores no more"
)
"""What helps where a ledger is not whole. A new one would let the partner score all records once more."""

NOTHING: Final = "0" * 64
"""In the place of a line before the first one."""

KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = 16
_LONGEST_LINE: Final = 1 << 16
_MOST_MARKS: Final = 1 << 32
_ENTRY: Final = np.dtype([("mark", "<u8"), ("line", "<u4")])
_CODE: Final = b',"code":"'

Entries = npt.NDArray[np.void]
What = Literal["begun", "counted", "refused", "interrupted"]


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line, without its code.

    Attributes:
        before: SHA-256 of the line before, in hexadecimal.
        line: Its number, from 0.
        what: ``begun``: the ledger, as its first line; ``counted``: records, whose scores were computed from then on;
            ``refused``: records, of which nothing was sent; ``interrupted``: a process ended while it wrote the line
            that should stand here, and the records that it had counted count.
        time: What the clock said, UTC.
        day: The day that it counts for: that of the clock, or that of the line before, if it is later.
        records: Of how many records it is, repeated ones counted again.
        total: How many were counted so far, these included.
        ids: Keyed digest of their marks, in their order; of records that were refused too.
        partner: The label party.
        asked: Whether it was a prediction of records that all score together, or answers on request.
        model: Digest of the party's trained half.
        defenses: Names of its own defenses that act on what it sends.
        scorer: Who computes the scores.
        limit: Of a refusal: the limit, as the settings name it.
        party: Of the first line: whose ledger it is.
        run: Of the first line: number of the run that the model is of.
    """

    before: str
    line: int
    what: What
    time: str
    day: str
    records: int = 0
    total: int = 0
    ids: str = ""
    partner: str = ""
    asked: Literal["", "predict", "serve"] = ""
    model: str = ""
    defenses: tuple[str, ...] = ()
    scorer: str = ""
    limit: str = ""
    party: str = ""
    run: str = ""


@dataclass
class Chain:
    """How far a ledger has been read and found whole.

    Attributes:
        where: The folder.
        key: Its key; ``None``: codes and digests of ids are not looked at.
        head: SHA-256 of the last line.
        lines: Number of lines.
        size: Bytes that they take.
        total: Records that were counted.
        day: The latest day of a line.
        of_day: Records that were counted for it.
        first: The first line.
    """

    where: Path
    key: bytes | None = field(repr=False)
    head: str = NOTHING
    lines: int = 0
    size: int = 0
    total: int = 0
    day: str = ""
    of_day: int = 0
    first: Line | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._files = [os.fspath(self.where / name) for name in (LINES_FILE, MARKS_FILE)]

    def is_current(self) -> bool:
        """Return whether nobody has written anything since.

        Raises:
            OSError: If the files are gone.
        """
        if self.first is None:
            return False
        lines, marks = self._files
        # Before the first record is counted there are no marks, unless a process was killed that counted one.
        of_marks = os.stat(marks).st_size if self.total or os.path.exists(marks) else 0
        return os.stat(lines).st_size == self.size and of_marks == marks_size(self.total)

    def take(self, raw: bytes, marks: Marks) -> Line:
        """Return the next line, after it was checked.

        Args:
            raw: The line, with its end.
            marks: Of all records from :attr:`total` on that are counted by this line, or by later ones.

        Raises:
            CheckpointError: If it does not follow from the line before, or is not of these marks.
        """
        line = self._read(raw)
        if line.before != self.head or line.line != self.lines or line.day < self.day:
            raise self._wrong("it does not follow from the line before: one of the two was changed, or lines between")
        counted = line.records if line.what in ("counted", "interrupted") else 0
        if line.total != self.total + counted or counted > len(marks):
            raise self._wrong(f"it does not count what {MARKS_FILE} holds: that was cut off, or changed")
        # Of records that were refused there are no marks; the line's code says that their digest is as it was.
        if self.key is not None and line.what != "refused" and line.ids != ids_digest(marks[:counted], self.key):
            raise self._wrong(f"its records in {MARKS_FILE} are others than it was written for")
        self.follow(raw, line)
        return line

    def follow(self, raw: bytes, line: Line) -> None:
        """Go on to the next line."""
        counted = line.total - self.total
        self.of_day = counted + (self.of_day if line.day == self.day else 0)
        self.head, self.lines, self.size = hashlib.sha256(raw).hexdigest(), self.lines + 1, self.size + len(raw)
        self.total, self.day = line.total, line.day
        self.first = self.first or line

    def _read(self, raw: bytes) -> Line:
        body, mark, code = raw.rstrip(b"\n").rpartition(_CODE)
        try:
            line = msgspec.convert(decoded(body + b"}"), Line)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"it is none ({error})") from error
        expected = None if self.key is None else _code(body, self.key)
        if not mark or (expected is not None and code != expected.encode() + b'"}'):
            raise self._wrong("its code is not that of the folder's key: it was changed")
        return line

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.where / LINES_FILE}, line {self.lines + 1}: {what}. Nothing was sent. The ledger is the whole "
            f"folder: {BRING_BACK}"
        )


def ids_digest(marks: Marks, key: bytes) -> str:
    """Return what stands for the ids of a line, in hexadecimal: empty for no ids."""
    if not len(marks):
        return ""
    held = np.ascontiguousarray(marks, "<u8").data
    return hashlib.blake2b(held, key=key, digest_size=_DIGEST_BYTES, person=b"splitvfl ids").hexdigest()


def _code(body: bytes, key: bytes) -> str:
    return hashlib.blake2b(body, key=key, digest_size=_DIGEST_BYTES, person=b"splitvfl line").hexdigest()


def written(line: Line, key: bytes) -> bytes:
    """Return a line as it stands in the file."""
    body = msgspec.json.encode(line)[:-1]
    return body + _CODE + _code(body, key).encode() + b'"}\n'


# --- reading


def read_on(chain: Chain, entries: Entries, *, size: int | None = None) -> Iterator[tuple[Line, Marks]]:
    """Yield all whole lines after those that a chain has, each checked, with the marks of its records.

    Args:
        chain: Goes along.
        entries: What :func:`entries_from` returned for the chain's total.
        size: What comes after so many bytes is not looked at: a line that was written after its marks had been read.

    Raises:
        CheckpointError: If a line is not as it must be, or the ledger is shorter than it was.
        OSError: If it cannot be read.
    """
    marks, taken = np.ascontiguousarray(entries["mark"]), 0
    path = chain.where / LINES_FILE
    file = UntrustedFile(path=path).open()
    if file is None and not chain.lines:
        return
    if file is None:
        raise CheckpointError(f"{path} is gone. Nothing was sent: {BRING_BACK}")
    with file:
        if file.seek(0, os.SEEK_END) < chain.size:
            raise CheckpointError(
                f"{path} is shorter than it was: something was cut off. Nothing was sent: {BRING_BACK}"
            )
        file.seek(chain.size)
        while (size is None or chain.size < size) and (raw := file.readline(_LONGEST_LINE)).endswith(b"\n"):
            before = chain.total
            line = chain.take(raw, marks[taken:])
            own = entries[taken : taken + chain.total - before]
            if (own["line"] != line.line).any():
                raise CheckpointError(
                    f"{path}, line {line.line + 1}: its records in {MARKS_FILE} belong to another line: that was "
                    f"changed. Nothing was sent: {BRING_BACK}"
                )
            taken += len(own)
            yield line, marks[taken - len(own) : taken]


def run_of(where: Path) -> str:
    """Return the number of the run that a ledger is of; empty where there is none.

    Raises:
        CheckpointError: If its first line is damaged.
        OSError: If it cannot be read.
    """
    lines = read_on(Chain(where, None), entries_from(where, 0))
    return next((line.run for line, _ in lines), "")


def entries_from(where: Path, start: int) -> Entries:
    """Return the marks of records from a place on, and the numbers of their lines; a piece at the end is left out.

    Raises:
        CheckpointError: If the file is a link, or no file.
        OSError: If they cannot be read.
    """
    path = where / MARKS_FILE
    file = UntrustedFile(path=path).open()
    if file is None:
        return np.zeros(0, _ENTRY)
    with file:
        if os.fstat(file.fileno()).st_size > _MOST_MARKS:
            raise CheckpointError(f"{path} is larger than {_MOST_MARKS >> 30} GiB, and no such file is: {BRING_BACK}")
        file.seek(start * _ENTRY.itemsize)
        content = file.read()
    return np.frombuffer(content[: len(content) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)


def key_of(where: Path) -> bytes | None:
    """Return a ledger's key; ``None`` where there is none.

    Raises:
        CheckpointError: If it is damaged, a link, or no file.
        OSError: If it cannot be read.
    """
    path = where / KEY_FILE
    key = UntrustedFile(path=path, most=1 << 10).read()
    if key is None:
        return None
    if len(key) != KEY_BYTES:
        raise CheckpointError(f"{path}: expected {KEY_BYTES} bytes, got {len(key)}; bring it back")
    return key


# --- writing, by who holds the lock


def made_key(where: Path) -> bytes:
    """Return a ledger's key; with the folder, it is made at the first time, and its owner alone may read it.

    Raises:
        CheckpointError: If it is damaged, or gone while there are lines.
        OSError: If it cannot be read or written.
    """
    close_folder(where)
    key = key_of(where)
    if key is None and any((where / name).exists() for name in (LINES_FILE, MARKS_FILE)):
        raise CheckpointError(
            f"{where / KEY_FILE} is gone, and without it nobody knows which records were counted. Nothing was sent: "
            f"{BRING_BACK}"
        )
    if key is None:
        key = os.urandom(KEY_BYTES)
        write_new(where / KEY_FILE, key)
        # The folder is new, and the one around it may be: what is counted is gone with either.
        for folder in (where, where.parent, where.parent.parent):
            flush_folder(folder)
    return key


def append(chain: Chain, line: Line, marks: Marks) -> None:
    """Write the marks of records, and then their line, and have both on the disk.

    Raises:
        OSError: If they cannot be written; what is there of them then is seen to when the ledger is next read.
    """
    assert chain.key is not None, "only who has the key writes"
    if len(marks):
        entries = np.zeros(len(marks), _ENTRY)
        entries["mark"], entries["line"] = marks, line.line
        append_bytes(chain.where / MARKS_FILE, entries.tobytes())
    raw = written(line, chain.key)
    append_bytes(chain.where / LINES_FILE, raw)
    chain.follow(raw, line)


def cut_to(path: Path, size: int) -> bool:
    """Cut a file to a size, if it is longer, and return whether it was.

    Raises:
        OSError: If it cannot be done.
    """
    if not path.exists() or path.stat().st_size <= size:
        return False
    with open_own(path, "r+b") as file:
        file.truncate(size)
    return True


def marks_size(records: int) -> int:
    """Return how many bytes the marks of so many records take."""
    return records * _ENTRY.itemsize
