"""The monitor of a run: its figures as TensorBoard events, and as lines of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from splitvfl.errors import CheckpointError
from splitvfl.leakage.board import add_layout
from splitvfl.leakage.event_file import EventFile
from splitvfl.system.private_folder import private_folder
from splitvfl.system.untrusted_files import MOST_BYTES, MOST_VALUES, UntrustedFile, decoded, open_own


class Monitor:
    """Writes scalars to a folder: ``metrics.jsonl`` and TensorBoard event files.

    An event file is begun with the first value: a party that logs none has none, and a meeting that comes to nothing
    leaves none behind. What TensorBoard shows of steps that were discarded goes with the next value that is written.

    Args:
        folder: The run's folder; ``None`` keeps nothing.
        resume_at: Byte offset in ``metrics.jsonl`` at the checkpoint, and the step; what was written later is
            discarded, so that a resumed run reads like an uninterrupted one. ``None`` starts anew.

    Raises:
        CheckpointError: If a file cannot be written, here or later.
    """

    def __init__(self, folder: Path | None, *, resume_at: tuple[int, int] | None = None) -> None:
        self._folder = folder
        self._lines: BinaryIO | None = None
        self._events: EventFile | None = None
        # TensorBoard hides what is at this step or later; the checkpoint's own step was logged before it was saved.
        self._purge_step = None if resume_at is None else resume_at[1] + 1
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        try:
            private_folder(folder)
            if resume_at is None:
                self._lines = open_own(path, "wb", mode=0o666)
            else:
                self._lines = lines = open_own(path, "r+b")
                _cut_back(lines, resume_at[0])
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error}") from error

    @property
    def is_open(self) -> bool:
        """Whether it has a folder, and was not closed."""
        return self._lines is not None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record named values of one step. NaN (undefined) values are left out of both."""
        known = {tag: float(value) for tag, value in values.items() if not math.isnan(value)}
        if self._lines is None or not known:
            return
        with self._named():
            self._lines.write(json.dumps({"step": step, **known}).encode() + b"\n")
            if self._events is None:
                assert self._folder is not None, "without a folder nothing is written"
                self._events = EventFile(self._folder, purge_step=self._purge_step)
                add_layout(self._events, values)
            self._events.add_scalars(step, known)

    def flush(self) -> int:
        """Bring everything to disk and return the size of ``metrics.jsonl``, in bytes."""
        if self._lines is None:
            return 0
        with self._named():
            self._lines.flush()
            return self._lines.tell()

    def close(self) -> None:
        """Flush and close; the second time does nothing."""
        lines, events = self._lines, self._events
        if lines is None:
            return
        try:
            self.flush()
        finally:
            self._lines = self._events = None
            with self._named():
                try:
                    if events is not None:
                        events.close()
                finally:
                    lines.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"cannot write metrics in {self._folder}: {error}; checkpoints are untouched: make room and go on from "
                "the last one (with --resume, if it is a run of `splitvfl train`)"
            ) from error


def _cut_back(lines: BinaryIO, offset: int) -> None:
    """Drop what lies behind an offset; of a file that a power failure has made shorter than that, half a line."""
    content = lines.read(offset)
    end = offset if len(content) == offset else content.rfind(b"\n") + 1
    lines.truncate(end)
    lines.seek(end)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's ``metrics.jsonl``; empty if there are none.

    Raises:
        CheckpointError: If a line is no JSON; the message names it. Or if the file is a link, no file, or larger than
            1 GiB.
    """
    path = folder / "metrics.jsonl"
    content = UntrustedFile(path=path, most=4 * MOST_BYTES).read() or b""
    if (count := content.count(b"\n")) > MOST_VALUES:
        raise CheckpointError(f"{path} has {count:,} lines, and no run writes more than {MOST_VALUES:,}: take it away")
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            row = decoded(line, infinite=True)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}:{number}: not a line of JSON: {error}") from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise CheckpointError(f"{path}:{number}: expected an object with a step, got {line[:40]!r}")
        if not all(_is_number(value) for value in row.values()):
            raise CheckpointError(f"{path}:{number}: expected numbers alone, got {line[:40]!r}")
        rows.append(row)
    return rows


def _is_number(value: object) -> bool:
    """Return whether a value can be drawn: JSON has integers that no float holds."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
