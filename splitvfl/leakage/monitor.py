"""What happens in a run, as it happens: TensorBoard events, and the same numbers as lines of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from splitvfl.errors import CheckpointError
from splitvfl.private_folder import private_folder


class _Writer(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


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
        self._writer: _Writer | None = None
        # TensorBoard hides what is at this step or later; the checkpoint's own step was logged before it was saved.
        self._purge_step = None if resume_at is None else resume_at[1] + 1
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        try:
            private_folder(folder)
            if resume_at is None:
                self._lines = path.open("wb")
            else:
                self._lines = lines = path.open("r+b")
                _cut_back(lines, resume_at[0])
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error}") from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record named values of one step. NaN (undefined) values are left out of both."""
        known = {tag: float(value) for tag, value in values.items() if not math.isnan(value)}
        if self._lines is None or not known:
            return
        with self._named():
            self._lines.write(json.dumps({"step": step, **known}).encode() + b"\n")
            writer = self._opened_writer()
            for tag, value in known.items():
                writer.add_scalar(tag, value, step)

    def _opened_writer(self) -> _Writer:
        assert self._folder is not None, "without a folder nothing is written"
        if self._writer is None:
            self._writer = _tensorboard(self._folder, self._purge_step)
        return self._writer

    def flush(self) -> int:
        """Bring everything to disk and return the size of ``metrics.jsonl``, in bytes."""
        if self._lines is None:
            return 0
        with self._named():
            self._lines.flush()
            if self._writer is not None:
                self._writer.flush()
            return self._lines.tell()

    def close(self) -> None:
        """Flush and close; the second time does nothing."""
        lines, writer = self._lines, self._writer
        if lines is None:
            return
        try:
            self.flush()
        finally:
            self._lines = self._writer = None
            with self._named():
                try:
                    if writer is not None:
                        writer.close()
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


def _tensorboard(folder: Path, purge_step: int | None) -> _Writer:
    # Imported late: TensorBoard takes longer to import than a short run takes to train.
    from torch.utils.tensorboard import SummaryWriter

    writer: _Writer = SummaryWriter(str(folder), purge_step=purge_step)
    return writer


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's ``metrics.jsonl``; empty if there are none.

    Raises:
        CheckpointError: If a line is no JSON; the message names it.
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}:{number}: not a line of JSON: {error}") from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise CheckpointError(f"{path}:{number}: expected an object with a step, got {line[:40]!r}")
        rows.append(row)
    return rows
