"""What a passive party lets be scored, and the ledger in which it counts that: before its part of a score leaves.

Limits are a party's own business: nobody else need agree to them, and nobody is asked. Whatever is refused is refused
whole where records are scored together, and record by record where they are asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, LimitError, PrivacyError
from splitvfl.run.ledger_file import (
    BRING_BACK,
    LINES_FILE,
    MARKS_FILE,
    Chain,
    Line,
    append,
    cut_to,
    entries_from,
    ids_digest,
    made_key,
    marks_size,
    read_on,
)
from splitvfl.run.record_counts import Forms, Marks, RecordCounts, marks_of, rank_within
from splitvfl.system.folder_lock import locked

_PATIENCE_S: Final = 30.0
_REMEDY: Final = "see what keeps it"
_NAMED: Final = 5  # rows in a refusal

Admitted = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ScoreLimits:
    """How much a passive party lets be scored; ``None``: as much as anybody likes.

    Attributes:
        per_record: How often one record.
        per_day: How many records in a day, UTC, repeated ones counted again.
        fewest: How many records at least in one prediction: the sum of a few parts says much of each.

    Raises:
        ArgumentError: If one is below 1, or no prediction can meet two of them.
    """

    per_record: int | None = None
    per_day: int | None = None
    fewest: int | None = None

    def __post_init__(self) -> None:
        for name in ("per_record", "per_day", "fewest"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"expected {name} of 1 at least, got {value}")
        if self.fewest is not None and self.per_day is not None and self.fewest > self.per_day:
            raise ArgumentError(
                f"fewest is {self.fewest} and per_day {self.per_day}: no prediction has so many records and so few"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredFor:
    """What stands in a line beside the records.

    Attributes:
        partner: The label party.
        asked: Whether all score together, or answers are given on request.
        model: Digest of the party's trained half.
        defenses: Names of the defenses that act on what it sends.
        scorer: Who computes the scores.
    """

    partner: str
    asked: Literal["predict", "serve"]
    model: str
    defenses: tuple[str, ...]
    scorer: str


class Ledger:
    """One passive party's ledger of one run. Threads, and other processes that have the same one, take turns.

    Args:
        where: Its folder, made at the first time, which its owner alone may enter.
        party: Whose it is.
        run: Number of the run that the party's model is of.
        limits: What is let be scored.
        clock: Tells the seconds since 1970.
        notify: Told in one line what a process that was killed has left behind.

    Raises:
        CheckpointError: If the ledger is damaged, another party's or another run's, or cannot be read or written, here
            or later. Nothing is to be sent then.
    """

    def __init__(
        self,
        where: Path,
        *,
        party: str,
        run: str,
        limits: ScoreLimits | None = None,
        clock: Callable[[], float] = time.time,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.where, self.party, self.limits = where, party, limits or ScoreLimits()
        self._run, self._clock, self._notify = run, clock, notify
        self._counts = RecordCounts()
        self._thread = threading.Lock()
        self._chain = Chain(where, None)
        with self._turn():
            pass

    @property
    def head(self) -> str:
        """SHA-256 of the last line: who keeps it can tell later whether anything before was changed."""
        return self._chain.head

    def marks(self, forms: Forms) -> Marks:
        """Return the marks of records (:func:`splitvfl.run.record_counts.record_forms`), ``(n,)``."""
        assert self._chain.key is not None, "it is open"
        return marks_of(forms, self._chain.key)

    def count(self, marks: Marks, about: ScoredFor) -> None:
        """Count records that are about to be scored together, and have that on the disk; all of them or none.

        Raises:
            LimitError: If a limit is reached; that is in the ledger then, and nothing is counted.
            CheckpointError: If it cannot be counted.
        """
        with self._turn():
            refusal = self._too_few(marks) or self._too_many(marks) or self._too_often(marks)
            if refusal is None:
                self._add("counted", about, marks)
                return
            limit, why = refusal
            self._add("refused", about, marks, limit=limit)
        raise LimitError(f"{self.party} scores none of these records: {why} (prediction.{limit}); nothing was sent")

    def admit(self, marks: Marks, about: ScoredFor) -> tuple[Admitted, Admitted]:
        """Count those records that may be answered now, and have that on the disk.

        Returns:
            Which they are, ``(n,)``, and which were not scored as often as they may be: of these more may be answered
            another day.

        Raises:
            CheckpointError: If it cannot be counted.
        """
        with self._turn():
            within = self._within_record(marks)
            left = self._left_today()
            kept = within if left is None else within & (np.cumsum(within) <= left)
            for limit, refused in (("per_record", ~within), ("per_day", within & ~kept)):
                if refused.any():
                    value = getattr(self.limits, limit)
                    self._add("refused", about, marks[refused], limit=f"{limit}: {value}")
            if kept.any():
                self._add("counted", about, marks[kept])
            return kept, within

    # --- limits

    def _too_few(self, marks: Marks) -> tuple[str, str] | None:
        fewest = self.limits.fewest
        if fewest is None or len(marks) >= fewest:
            return None
        return f"fewest: {fewest}", f"there are {len(marks)}, and it takes {fewest} at least"

    def _too_many(self, marks: Marks) -> tuple[str, str] | None:
        left = self._left_today()
        if left is None or len(marks) <= left:
            return None
        why = f"there are {len(marks)}, and of its {self.limits.per_day} of {self._day()} (UTC) {left} are left"
        if self._day() > self._today():
            why += f"; its clock is at {self._today()}, before the latest day in its ledger, for which these count"
        return f"per_day: {self.limits.per_day}", why

    def _too_often(self, marks: Marks) -> tuple[str, str] | None:
        beyond = np.flatnonzero(~self._within_record(marks))
        if not len(beyond):
            return None
        rows = ", ".join(map(str, beyond[:_NAMED].tolist())) + (", ..." if len(beyond) > _NAMED else "")
        most = self.limits.per_record
        often = "once" if most == 1 else f"{most} times"
        return (
            f"per_record: {most}",
            f"it scores none more than {often}, and {len(beyond)} of {len(marks)} would be, at rows {rows} (from 0)",
        )

    def _within_record(self, marks: Marks) -> Admitted:
        most = self.limits.per_record
        if most is None:
            return np.ones(len(marks), bool)
        return self._counts.of(marks) + rank_within(marks) <= most

    def _left_today(self) -> int | None:
        if self.limits.per_day is None:
            return None
        used = self._chain.of_day if self._chain.day == self._day() else 0
        return max(self.limits.per_day - used, 0)

    def _today(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).date().isoformat()

    def _day(self) -> str:
        """Return the day that counts: a clock that was set back makes none of them new."""
        return max(self._today(), self._chain.day)

    # --- lines

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Have the ledger alone for a block, up to date with what others have written."""
        try:
            with self._thread, locked(self.where, patience_s=_PATIENCE_S, remedy=_REMEDY):
                self._catch_up()
                yield
        except OSError as error:
            raise CheckpointError(
                f"cannot read or write the ledger in {self.where}: {error.strerror or error}; nothing was sent, for "
                "what is scored is counted there first. Make room, or let this user write there"
            ) from error
        except ConfigError as error:
            raise CheckpointError(f"the ledger in {self.where} cannot be had: {error}; nothing was sent") from error

    def _catch_up(self) -> None:
        chain = self._chain
        if chain.is_current():
            return
        chain.key = chain.key or made_key(self.where)
        entries = entries_from(self.where, chain.total)
        for _, marks in read_on(chain, entries):
            self._note(marks)
            entries = entries[len(marks) :]
        self._repair(entries["line"], np.ascontiguousarray(entries["mark"]))
        if chain.first is None:
            self._write(Line(**self._place("begun"), party=self.party, run=self._run))
        assert chain.first is not None, "it was just written"
        if (chain.first.party, chain.first.run) != (self.party, self._run):
            raise CheckpointError(
                f"{self.where} is the ledger of {chain.first.party} for run {chain.first.run}, and this is "
                f"{self.party} with a model of run {self._run}. Nothing was sent: bring back the ledger of this model, "
                "or the model of this ledger. A model that an older version of splitvfl trained further got another "
                "number: splitvfl train --resume gives it back that of its ledger"
            )

    def _repair(self, lines: npt.NDArray[np.uint32], marks: Marks) -> None:
        """See to what a process that was killed has left: it was the last one, as everybody does so first."""
        chain = self._chain
        if (lines != chain.lines).any():
            raise CheckpointError(
                f"{self.where / LINES_FILE} ends after line {chain.lines}, and {MARKS_FILE} has records of later ones: "
                f"lines were cut off. Nothing was sent: {BRING_BACK}"
            )
        torn = cut_to(self.where / LINES_FILE, chain.size)
        cut_to(self.where / MARKS_FILE, marks_size(chain.total + len(marks)))
        # Of a first line there was a piece at most, and no record is counted before it.
        if chain.first is None or (not torn and not len(marks)):
            return
        assert chain.key is not None, "it was read"
        place = self._place("interrupted", records=len(marks), total=chain.total + len(marks))
        # Its marks are there.
        self._write(Line(**place, ids=ids_digest(marks, chain.key)))
        self._note(marks)
        self._notify(
            f"{self.where}: a process ended while it wrote line {chain.lines}; {len(marks)} records that it had "
            "counted count, whether they were scored or not"
        )

    def _add(self, what: Literal["counted", "refused"], about: ScoredFor, marks: Marks, *, limit: str = "") -> None:
        chain = self._chain
        assert chain.key is not None, "it was read"
        counted = marks if what == "counted" else marks[:0]
        line = Line(
            **self._place(what, records=len(marks), total=chain.total + len(counted)),
            ids=ids_digest(marks, chain.key),
            partner=about.partner,
            asked=about.asked,
            model=about.model,
            defenses=about.defenses,
            scorer=about.scorer,
            limit=limit,
        )
        self._write(line, counted)
        self._note(counted)

    def _write(self, line: Line, marks: Marks | None = None) -> None:
        append(self._chain, line, np.zeros(0, np.uint64) if marks is None else marks)

    def _note(self, marks: Marks) -> None:
        if self.limits.per_record is not None:
            self._counts.add(marks)

    def _place(self, what: str, *, records: int = 0, total: int | None = None) -> dict[str, Any]:
        chain = self._chain
        now = datetime.fromtimestamp(self._clock(), UTC)
        return {
            "before": chain.head,
            "line": chain.lines,
            "what": what,
            "time": now.isoformat(timespec="seconds"),
            "day": self._day(),
            "records": records,
            "total": chain.total if total is None else total,
        }


class CountedCall:
    """The records of one prediction, counted when it begins, and not let go beyond that.

    Args:
        ledger: Where they are counted.
        marks: Theirs.
        about: What is said of them.
        records: How many parts leave for them; more than there are marks where some records are dummies.
        again: Whether they count again when the prediction begins again. They need not where what leaves then is to the
            bit what left before, and this party itself sees to it that nothing else is answered.
    """

    def __init__(self, ledger: Ledger, marks: Marks, about: ScoredFor, *, records: int, again: bool) -> None:
        self._ledger, self._marks, self._about = ledger, marks, about
        self._records, self._again = records, again
        self._counted, self._left = False, 0

    def begin(self) -> None:
        """Count them, before anything of a record leaves; called at every beginning.

        Raises:
            LimitError: If a limit is reached.
            CheckpointError: If they cannot be counted.
        """
        self._left = 0
        if self._again or not self._counted:
            self._ledger.count(self._marks, self._about)
        self._counted, self._left = True, self._records

    def leaving(self, records: int) -> None:
        """Let parts of so many records go.

        Raises:
            PrivacyError: If they were not counted.
        """
        if records > self._left:
            raise PrivacyError(
                f"{self._ledger.party}: parts of {records} records were to leave, and {self._left} of them are "
                "counted in its ledger; nothing of these was sent"
            )
        self._left -= records
