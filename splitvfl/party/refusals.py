"""Count of the sums that a party has refused in a run: each refusal tells the decrypting party something it chose.

A sum that is opened is compared with the agreed limit, which everybody knows. Whoever opens it may add to it what it
likes, and sees whether it is refused: whether the sum it cannot read lies above a number of its choice. So a run takes
:data:`MOST` refusals, from all others together, and ends for good at the last of them. In honest runs there are none.

Two more ends of a run are seen by others and follow from what they opened, and are counted with them: a party's own
number is larger than agreed (whoever has moved its weights learns that a logit lies above a limit), and a sum is not
what it was before the run went back (whoever opens both learns whether they differ by a number of its choice). An
honest run comes to the first where its settings do not fit.

Who opens ``N`` sums learns with that at most ``log₂(1 + N + N(N-1)/2 + N(N-1)(N-2)/6)`` bits, from which of them were
refused: 27 bits of a thousand, 37 of ten thousand (:func:`bits_told`). What it does not promise: that sums which are
not refused are right; see :meth:`~splitvfl.crypto.evaluator.Evaluator.unmask`.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Final

from splitvfl.errors import CheckpointError, SumRefused
from splitvfl.system.untrusted_files import UntrustedFile, append_bytes, flush_folder

# What is logged of encrypted sums has one logger, whoever counts them.
_log = logging.getLogger("splitvfl.crypto")

MOST: Final = 3
"""The last refusal that a run takes."""

PATTERN: Final = "refused-sums-*.journal"


def journal_of(folder: Path, party: str) -> Path:
    """Return where a party keeps its refusals in a run's folder."""
    return folder / PATTERN.replace("*", party)


def bits_told(answers: int, *, most: int = MOST) -> float:
    """Return what refusals tell at most, in bits: ``log₂`` of the number of ways to refuse up to ``most`` of them.

    Args:
        answers: Sums that one party opens for another, in the whole run, those of steps that are taken again included.
        most: Refusals that end the run.

    >>> round(bits_told(1000), 1)
    27.3
    """
    return math.log2(sum(math.comb(answers, refused) for refused in range(most + 1)))


class Refusals:
    """The refusals of one party in one run.

    Args:
        party: The party's name.
        path: Where it is kept, one line for each; a process that is killed, or a machine that loses power, forgets
            nothing then. Whoever can restore an older copy of it undoes it. ``None``: in memory.

    Raises:
        CheckpointError: If it cannot be read.
    """

    def __init__(self, party: str, path: Path | None = None) -> None:
        self.party = party
        self._path = path
        content = None if path is None else UntrustedFile(path=path).read()
        kept = (content or b"").decode(errors="replace").splitlines()
        # A line that was torn off counts: it was being written because of a refusal.
        self._told = [line for line in kept if line]

    def __len__(self) -> int:
        return len(self._told)

    def check(self) -> None:
        """Go on, unless too many sums were refused already.

        Raises:
            SumRefused: If they were; it says which.
        """
        if len(self) >= MOST:
            raise SumRefused(f"{self._listed()}, and takes no part in this run any more; {self._advice()}", final=True)

    def refuse(self, what: str, why: str) -> SumRefused:
        """Note a refusal, and return the error to raise. It is on disk before anybody can notice it.

        ``what`` is whose message it was, in one line, and ``why`` what is wrong with it.

        Raises:
            CheckpointError: If it cannot be written.
        """
        self.note(what)
        if len(self) < MOST:
            count = f"{self.party} has refused {len(self)} of the {MOST} sums at which it ends this run"
            return SumRefused(f"{what}: {why}. {count}", final=False)
        return SumRefused(
            f"{what}: {why}. {self._listed()}, and {self.party} ends this run; {self._advice()}", final=True
        )

    def note(self, what: str) -> None:
        """Note in one line what ends the run, or this attempt at it, by another error, which others see as a refusal.

        Raises:
            CheckpointError: If it cannot be written.
        """
        line = " ".join(what.split())
        if self._path is not None:
            _append(self._path, line)
        self._told.append(line)
        _log.warning("%s: refusal %d of the %d that end a run: %s", self.party, len(self), MOST, line)

    def _listed(self) -> str:
        return f"{self.party} has refused {len(self)} sums in this run ({'; '.join(self._told)})"

    def _advice(self) -> str:
        kept = "" if self._path is None else f" (it is noted in {self._path})"
        return (
            "each refusal tells whoever opened the sum something of it, and an honest run has none: find out with the "
            f"other parties what happened, and begin a new run only with those that you still trust{kept}"
        )


def _append(path: Path, line: str) -> None:
    try:
        append_bytes(path, f"\n{line}".encode())  # a new line, also behind one that was torn off
        flush_folder(path.parent)  # also of a file that a process made, and was killed
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}; make room, and start the party again") from error
