"""A TensorBoard event file."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from splitvfl.system.untrusted_files import open_own

_NAME = "events.out.tfevents"


class EventFile:
    """A new event file, which TensorBoard reads after all others of its folder.

    TensorBoard sorts the files of a folder by name, as text. The usual writer names a file after the clock, the
    machine, the process and a counter. So a file that is begun in the same second as an older one, or after the clock
    went back, can sort before it, and then what a resumed run discarded is shown, and what it wrote is not. Here a
    file's second is greater than that of every older file that is named like this.

    Args:
        folder: An existing folder.
        purge_step: TensorBoard hides what older files say of this step and of later ones; ``None`` hides nothing.

    Raises:
        OSError: If the file cannot be written, here or later.
    """

    def __init__(self, folder: Path, *, purge_step: int | None = None) -> None:
        second = max([int(time.time()), *(1 + _second(path) for path in folder.glob(f"{_NAME}.*"))])
        name = f"{_NAME}.{second:010d}.{socket.gethostname()}.{os.getpid()}"
        self._open(open_own(folder / name, "xb", mode=0o666))
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_step is not None:
            start = self._session(status=self._session.START)
            self._write(self._event(wall_time=time.time(), step=purge_step, session_log=start))
        self.flush()

    @classmethod
    def last_of(cls, folder: Path) -> EventFile:
        """Return the last of a folder's files, to be gone on with when its writer has closed it; a new one without any.

        Raises:
            OSError: If it cannot be written, here or later.
        """
        files = sorted(path for path in folder.glob(f"{_NAME}.*") if _second(path))
        if not files:
            return cls(folder)
        last = cls.__new__(cls)
        last._open(open_own(files[-1], "ab", mode=0o666))
        return last

    def _open(self, file: BinaryIO) -> None:
        # Imported late: TensorBoard takes longer to import than a short run takes to train.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._session = event_pb2.Event, summary_pb2.Summary, event_pb2.SessionLog
        self._records = RecordWriter(file)

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add named values of one step; they are on their way to disk when this returns, for who watches."""
        scalars = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self.add(step, self._summary(value=scalars))

    def add(self, step: int, summary: Any) -> None:
        """Add a summary of any kind, as TensorBoard's own protocol has it, likewise."""
        self._write(self._event(wall_time=time.time(), step=step, summary=summary))
        self.flush()

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._records.flush()

    def close(self) -> None:
        """Flush and close."""
        self._records.close()

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


def _second(path: Path) -> int:
    """The second in a file's name; 0 where another program has named it otherwise."""
    word = path.name.removeprefix(f"{_NAME}.").split(".", 1)[0]
    return int(word) if word.isdecimal() else 0
