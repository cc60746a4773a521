"""What is read most of a party's columns: in the last epoch of training, in any, over the run, or when it was over.

Whoever sends gradients moves what a reader finds from epoch to epoch, and can spoil the model at the end of a run. What
was read before stays read, and so the largest figure is said: of the mean over columns, and of each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from splitvfl.leakage.column_figures import TOLD, ColumnReading, ColumnShare
from splitvfl.report.party_result import PartyResult

_FAR: Final = 0.5  # of the most: so little in the last epoch is said


@dataclass(frozen=True, slots=True)
class MostRead:
    """The reading of the largest figure among those by attackers who know no more, and what all of them tell.

    Attributes:
        reading: The reading.
        columns: Of each column the most that any of them recovers, and what was right where that is of its last epoch;
            that of which most is recovered first.
    """

    reading: ColumnReading
    columns: list[ColumnShare]

    @property
    def share(self) -> float:
        """The most that was recovered, the mean over columns."""
        return self.reading.most

    @property
    def told(self) -> int:
        """Number of columns of which more than half was recovered."""
        return sum(one.share > TOLD for one in self.columns)

    @property
    def moment(self) -> str:
        """Of what the figure is: ``"finished"``, ``"last"`` epoch, ``"epoch"`` of another number, ``"run"``.

        Or ``"evaluation"``, where nothing else could be judged; ``"once"``, where all was sent once; ``"steps"``, of
        all steps together.
        """
        one = self.reading
        if one.evaluation_only:
            return "evaluation"
        if one.of_steps:
            return "steps"
        if one.standing_still:
            return "finished"
        if one.sent_once:
            return "once"
        if one.share == one.most:
            return "last"
        return "epoch" if one.worst == one.most else "run"

    @property
    def each_category_once(self) -> float | None:
        """The same figure where a category that is held as columns of zeros and ones counts once, not by its columns.

        ``None``: there is none, or the summary is older than this.
        """
        one = self.reading
        if not one.in_one_hot:
            return None
        in_one_hot = frozenset(one.in_one_hot)
        counted = [column for column in one.columns if column.column not in in_one_hot] + one.one_hot
        shares = [self._at_this_moment(column) for column in counted]
        return sum(shares) / len(shares)

    def _at_this_moment(self, column: ColumnShare) -> float:
        """Return what was read of a column at the moment of this figure, of an epoch at most."""
        found = {"run": column.accumulated, "epoch": column.worst}.get(self.moment)
        return column.share if found is None else found

    @property
    def fell(self) -> str:
        """A sentence, with a space before it, where the last epoch is far below the most that was read; or nothing."""
        one = self.reading
        if self.moment not in ("epoch", "run") or one.share >= _FAR * one.most:
            return ""
        return (
            f" In the last epoch it recovers {one.share:.0%} only: training, penalties or the gradients that a partner "
            "sends can bring that about, and what was recovered before stays known."
        )


def most_read(party: PartyResult) -> list[MostRead]:
    """Return what is read most by who knows some records, and by who knows the party's model if that is more.

    Behind them stands what is read most from scores of predictions, and from all steps together. Empty where nothing
    was read.
    """
    sent = [one for one in party.readings if not one.of_scores and not one.of_steps]
    unknowing = _most([one for one in sent if not one.knows_model])
    any_of_them = _most(sent)
    knowing = [one for one in any_of_them if one.reading.knows_model]
    kinds = ([one for one in party.readings if one.of_scores], [one for one in party.readings if one.of_steps])
    return [*unknowing, *knowing, *(best for kind in kinds for best in _most(kind))]


def _most(readings: Sequence[ColumnReading]) -> list[MostRead]:
    """Return what is read most of these, one or none."""
    if not readings:
        return []
    best = max(readings, key=lambda one: one.most)
    return [MostRead(best, most_of_each(column for reading in readings for column in reading.columns))]


def most_of_each(found: Iterable[ColumnShare]) -> list[ColumnShare]:
    """Return of each column the most that was read, as its share; that of which most is read first."""
    most: dict[str, ColumnShare] = {}
    for one in found:
        if one.column not in most or one.most > most[one.column].share:
            most[one.column] = one if one.share == one.most else replace(one, share=one.most, right=None)
    return sorted(most.values(), key=lambda one: -one.share)


def epoch_of(reading: ColumnReading) -> str:
    """Return which epoch was the worst, in words."""
    return "one epoch" if reading.worst_epoch is None else f"epoch {reading.worst_epoch:,}"


def sent_when(best: MostRead) -> str:
    """Return in words when that was sent of which most was read in training."""
    words = {
        "last": "in the last epoch",
        "run": "over the run",
        "evaluation": "of records that were evaluated",
        "once": "once, before training",
        "steps": "in all steps together",
    }
    return words.get(best.moment) or f"in {epoch_of(best.reading)}"
