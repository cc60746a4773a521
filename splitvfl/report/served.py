"""What a run's ledgers say of how much was scored with it, and whether they are whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from splitvfl.errors import CheckpointError, printable
from splitvfl.run.ledger_file import LEDGER_FOLDER, LINES_FILE, Chain, Line, entries_from, key_of, read_on
from splitvfl.run.record_counts import most_often
from splitvfl.system.folder_lock import is_held

_SHOWN_DAYS: Final = 14


@dataclass
class Served:
    """What one ledger says, as far as it is whole.

    Attributes:
        where: Its folder.
        party: Whose it is.
        calls: Predictions, and answers on request, for which records were counted.
        records: Records that were counted, repeated ones again.
        different: How many different ones.
        most: How often the one was that was scored most often.
        partners: For whom.
        days: Of each day: records that were counted, and records that were refused.
        refusals: How many there were by each limit.
        interrupted: How often a process ended while it wrote.
        with_key: Whether its key is there: without it, no change of the last line is noticed, nor of marks.
        head: SHA-256 of the last line.
        problem: Why it is not whole, in words; empty: it is.
    """

    where: Path
    party: str = ""
    calls: int = 0
    records: int = 0
    different: int = 0
    most: int = 0
    partners: list[str] = field(default_factory=list)
    days: dict[str, tuple[int, int]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    interrupted: int = 0
    with_key: bool = True
    head: str = ""
    problem: str = ""

    @property
    def last_days(self) -> list[tuple[str, int, int]]:
        """The last days on which something was asked for: day, records counted, records refused."""
        return [(day, *counts) for day, counts in list(self.days.items())[-_SHOWN_DAYS:]]

    @property
    def refused(self) -> str:
        """The refusals by limit, in words."""
        return ", ".join(f"{count} by {limit}" for limit, count in sorted(self.refusals.items())) or "none"

    @property
    def state(self) -> str:
        """Whether it is whole, in words."""
        if self.problem:
            return f"NOT WHOLE: {self.problem}"
        torn = f"; {self.interrupted} interrupted" if self.interrupted else ""
        alone = "" if self.with_key else "; its key is not here, so that only the chain was looked at"
        return f"whole{torn}{alone}; its last line is {self.head}"

    @property
    def in_words(self) -> str:
        """All of it in a line."""
        if self.problem:
            whose = f"{self.party}'s ledger" if self.party else f"the ledger in {self.where}"
            return f"{whose}: {self.state}. How much was scored cannot be said"
        return (
            f"{self.party}'s ledger: {_many(self.calls, 'prediction')} of {_many(self.records, 'record')} for "
            f"{' and '.join(self.partners) or 'nobody'}, {self.different:,} different ones, one at most {self.most} "
            f"times; refused: {self.refused}; {self.state}"
        )

    def add(self, line: Line) -> None:
        """Take in one line."""
        counted, refused = self.days.get(line.day, (0, 0))
        match line.what:
            case "begun":
                self.party = printable(line.party)
                return
            case "counted":
                self.calls += 1
                counted += line.records
            case "interrupted":
                self.interrupted += 1
                counted += line.records
            case "refused":
                self.refusals[printable(line.limit)] += 1
                refused += line.records
        self.days[line.day] = counted, refused
        partner = printable(line.partner)
        if partner and partner not in self.partners:
            self.partners.append(partner)


def served_in(run: Path) -> list[Served]:
    """Return what each ledger in a run's folder says, by party; none where nothing was scored.

    Nothing is changed in it: what a process that was killed has left is seen to when the party next counts.

    Raises:
        CheckpointError: If one cannot be read.
    """
    return [_served(path.parent) for path in sorted((run / LEDGER_FOLDER).glob(f"*/{LINES_FILE}"))]


def _served(where: Path) -> Served:
    found, marks = Served(where), []
    try:
        key = key_of(where)
        chain, found.with_key = Chain(where, key), key is not None
        # In this order: who writes meanwhile has marks on the disk before their line.
        size = (where / LINES_FILE).stat().st_size
        entries = entries_from(where, 0)
        try:
            for line, own in read_on(chain, entries, size=size):
                found.add(line)
                marks.append(own)
            beyond = entries[chain.total :]
            # Looked at before the file: who has let go of the ledger has finished its line.
            in_use = is_held(where)
            grown = (where / LINES_FILE).stat().st_size > size
            if not grown and (beyond["line"] != chain.lines).any():
                found.problem = f"lines after line {chain.lines} were cut off, and marks of their records are there"
            # What the next process to count finds: nothing that this one may change.
            found.interrupted += not (in_use or grown) and (bool(len(beyond)) or size > chain.size)
        except CheckpointError as error:
            found.problem = printable(str(error).partition(". Nothing was sent")[0])
    except OSError as error:
        raise CheckpointError(f"cannot read the ledger in {where}: {error.strerror or error}") from error
    found.head, found.records = chain.head, chain.total
    found.different, found.most = most_often(np.concatenate(marks) if marks else np.zeros(0, np.uint64))
    return found


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def lines_of(runs: Sequence[Path]) -> list[str]:
    """Return what all ledgers in these runs say, a line each."""
    return [one.in_words for run in runs for one in served_in(run)]
