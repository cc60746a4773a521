"""How many records a passive party looks up for another in a minute and in a day, and how many it was asked for.

Whoever may ask for any id finds out who is a client. Limits bound how many in a time; the counts of each day are kept
in a file, so that they outlive the process and somebody can look at them. No id is in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from splitvfl.errors import ArgumentError, CheckpointError
from splitvfl.system.untrusted_files import UntrustedFile, write_json

_KEPT_DAYS: Final = 400
_WRITTEN_EVERY_S: Final = 1.0
_MINUTE_S: Final = 60.0


@dataclass
class DayCount:
    """What was asked on one day (UTC), in records.

    Attributes:
        asked: Records asked for.
        held: Those that were answered.
        not_held: Those that are not held: each tells the asker that somebody is no client.
        refused: Those that were not looked up, beyond a limit.
        limited: Those that are held and were not answered, as prediction.per_record or per_day says.
    """

    asked: int = 0
    held: int = 0
    not_held: int = 0
    refused: int = 0
    limited: int = 0


@dataclass(frozen=True, slots=True)
class AskLimits:
    """How many records are looked up.

    Attributes:
        per_minute: As many may also come at once.
        per_day: From midnight to midnight, UTC.

    Raises:
        ArgumentError: If one is below 1.
    """

    per_minute: int = 6_000
    per_day: int = 100_000

    def __post_init__(self) -> None:
        """Check the limits."""
        for name in ("per_minute", "per_day"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"expected {name} of 1 record at least, got {getattr(self, name)}")


def _in_a_thread(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


class AskCounts:
    """Lets records be looked up within the limits, and counts them in a file.

    A process that is killed loses what it counted in its last second.

    Args:
        limits: The limits.
        path: The file, which its owner alone may read; made if it is missing. ``None``: counts last as long as this.
        clock: Tells the seconds since 1970.
        later: Has something done after so many seconds, in whatever thread.

    Raises:
        CheckpointError: If the file is damaged, or cannot be read or written, here or later.
    """

    def __init__(
        self,
        limits: AskLimits,
        path: Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
        later: Callable[[float, Callable[[], None]], None] = _in_a_thread,
    ) -> None:
        self._limits, self._path, self._clock, self._later = limits, path, clock, later
        self._days = {} if path is None else _read(path)
        self._tokens, self._filled_s = float(limits.per_minute), clock()
        self._lock = threading.RLock()
        self._awaited = False  # whether a write is to come
        self._failed: CheckpointError | None = None

    @property
    def today(self) -> DayCount:
        """The counts of this day."""
        day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        return self._days.setdefault(day, DayCount())

    def admit(self, records: int) -> int:
        """Return how many of some records may be looked up now; they are counted as asked, the others as refused."""
        with self._lock:
            return self._admit(records)

    def _admit(self, records: int) -> int:
        if self._failed is not None:  # without counts nothing is answered
            raise self._failed
        now = self._clock()
        # A clock that is set back fills nothing.
        gained = max(now - self._filled_s, 0.0) * self._limits.per_minute / _MINUTE_S
        self._tokens, self._filled_s = min(self._tokens + gained, float(self._limits.per_minute)), now
        today = self.today
        left = self._limits.per_day - (today.held + today.not_held + today.limited)
        admitted = max(min(records, int(self._tokens), left), 0)
        self._tokens -= admitted
        today.asked += records
        today.refused += records - admitted
        self._write_soon()
        return admitted

    def count(self, *, held: int, not_held: int, limited: int = 0) -> None:
        """Count what came of records that were looked up."""
        with self._lock:
            self.today.held += held
            self.today.not_held += not_held
            self.today.limited += limited
            self._write_soon()

    def _write_soon(self) -> None:
        """Have the file written within a second, whether anything else is asked for or not."""
        if self._path is not None and not self._awaited:
            self._awaited = True
            self._later(_WRITTEN_EVERY_S, self._write_awaited)

    def _write_awaited(self) -> None:
        with self._lock:
            self._awaited = False
            try:
                self.write()
            except CheckpointError as error:  # told to who asks next: nobody waits for this
                self._failed = error

    def write(self) -> None:
        """Write the file."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        kept = dict(sorted(self._days.items())[-_KEPT_DAYS:])
        try:
            write_json(self._path, kept, indent=1, flush=False)
        except OSError as error:
            raise CheckpointError(f"cannot write {self._path}: {error.strerror or error}; make room") from error


def _read(path: Path) -> dict[str, DayCount]:
    file = UntrustedFile(
        path=path,
        says="holds no counts of what was asked",
        remedy="bring it back; if there is no copy, delete it on the next day (UTC), whose counts begin at 0 anyway",
    )
    return file.json(dict[str, DayCount]) or {}
