"""What an attack in the label party's seat read of a partner's columns, in figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

TOLD: Final = 0.5
"""A column is told when more than this share of its variance is recovered."""


EXACT: Final = 0.1
"""A number is recovered when an estimate is within so many of its column's standard deviations."""


@dataclass(frozen=True, slots=True)
class ColumnShare:
    """What an attack recovers of one column.

    Attributes:
        column: Its name.
        share: Share of its variance, 0 to 1, over the records of the last epoch; of a categorical column
            ``(right − commonest) / (1 − commonest)``, at least 0.
        accumulated: The same of each followed record's mean estimate over the run; ``None``: there is none.
        right: Of a categorical column, share of records whose category is the one that was answered.
        commonest: What answering the most frequent category for all of them gives.
        worst: The largest share in any epoch of the run; ``None``: none has ended, or the summary is older than this.
        without: The share that the label party's own columns recover alone; ``None``: nobody looked.
    """

    column: str
    share: float
    accumulated: float | None = None
    right: float | None = None
    commonest: float | None = None
    worst: float | None = None
    without: float | None = None

    @property
    def most(self) -> float:
        """The most that was read of it: in the last epoch, in any, or over the run."""
        return _largest(self)

    def beyond(self, records: int) -> float:
        """Return by how much :attr:`most` surely exceeds what is known without messages: the lower end of a 95 % CI.

        The variance is that of a squared correlation of normal values, of a share of right answers that of a binomial
        one; both shares are taken as independent, which makes it wider than a paired one.

        Args:
            records: Number of estimates.
        """
        shares = (self.most, max(0.0, self.without or 0.0))
        return shares[0] - shares[1] - 1.96 * math.sqrt(sum(map(self._variance, shares)) / max(1, records))

    def _variance(self, share: float) -> float:
        if self.right is None or self.commonest is None:
            inside = min(max(share, 0.0), 1.0)
            return 4.0 * inside * (1.0 - inside) ** 2
        others = max(1e-12, 1.0 - self.commonest)
        right = min(1.0, self.commonest + share * others)
        return right * (1.0 - right) / others**2


@dataclass(frozen=True, slots=True)
class OwnShares:
    """What the label party's own columns recover of a partner's, without any message.

    Attributes:
        share: Share of variance, the mean over columns.
        exact: Share of records of which every column is recovered; ``None``: it has no columns.
        columns: Share of each column, by name.
    """

    share: float
    exact: float | None = None
    columns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaterReading:
    """What an attack read of messages that nothing is learned from: those of an evaluation, or of predictions.

    Attributes:
        share: As of :class:`ColumnReading`.
        told: Likewise.
        records: Number of estimates.
        columns: Column by column, that of which most is recovered first.
    """

    share: float
    told: int
    records: int
    columns: list[ColumnShare]


@dataclass(frozen=True, slots=True)
class ColumnReading:
    """What an attack in the label party's seat read of a partner's columns.

    Attributes:
        attack: Its name.
        known_share: Share of the training records whose columns it was assumed to know.
        share: Share of variance recovered in the last epoch, the mean over columns; a categorical field counts as one,
            by its own share.
        told: Number of columns of which more than half was recovered then.
        records: Number of estimates in that epoch.
        columns: Column by column, that of which most is recovered first; categorical fields among them.
        accumulated: Share of variance that each followed record's mean estimate over the run recovers, likewise.
        followed: Number of these records.
        left_out: Columns without variance over the training records, and fields of a single category.
        without_messages: Share of variance that ridge regression on the label party's own columns recovers, from the
            same known records; ``None``: nobody looked. Its categories are among its columns, its labels are not.
        joint: The most that is recovered with all: by the same attack on activations beside which the label party's
            own columns and the other partners' activations stand, as :attr:`most`, or by one alone if that is more. It
            is a largest of three, and so never below :attr:`most` or :attr:`without_messages`. ``None``: nobody looked,
            or there is nothing to stand beside them.
        exact: Share of records of which every column was recovered, each number within :data:`EXACT` standard
            deviations and each category the right one: in the last epoch, in any, or by mean estimates over the run,
            whichever is most. Columns without variance and fields that are not asked for do not count. ``None``: the
            summary is older than this.
        exact_without: The same by :attr:`without_messages`.
        exact_joint: The same by all, the largest of three likewise.
        note: What it warned of.
        standing_still: Whether the model had been trained, and stood still: messages were computed again, and read when
            training was over.
        knows_model: Whether the attack is assumed to know the partner's half of the model too.
        one_hot: Categories that the party holds as columns of zeros and ones, as categories: their columns are in
            ``columns`` too, one by one, and these alone are counted in ``share``.
        in_one_hot: Names of those columns.
        too_many: Categorical fields of more categories than are asked for.
        evaluation: What it read in the last evaluation; ``None``: there was none.
        prediction: What it read when records were last scored by the trainer; likewise.
        of_scores: Whether it saw scores of predictions in place of messages.
        of_steps: Whether it saw all steps of the training of a linear model, in place of messages one by one, and knew
            no record: of a partner's only column, up to one sign.
        worst: The largest share in any epoch of the run, the mean over columns as ``share`` is; ``None``: none has
            ended, or the summary is older than this. Whoever sends gradients moves ``share``, and can spoil the model
            at the end of a run; what was read before stays read.
        worst_epoch: Number of that epoch, from 1; ``None`` likewise, or where an older checkpoint did not count.
        sent_once: Whether all was sent once, before the first step (exchange one-way): there are no epochs then.
        evaluation_only: Whether it could be judged by no message of training: then ``share``, ``told``, ``records`` and
            ``columns`` are those of the last evaluation.
    """

    attack: str
    known_share: float
    share: float
    told: int
    records: int
    columns: list[ColumnShare] = field(default_factory=list)
    accumulated: float | None = None
    followed: int = 0
    left_out: list[str] = field(default_factory=list)
    without_messages: float | None = None
    note: str = ""
    standing_still: bool = False
    knows_model: bool = False
    one_hot: list[ColumnShare] = field(default_factory=list)
    in_one_hot: list[str] = field(default_factory=list)
    too_many: list[str] = field(default_factory=list)
    evaluation: LaterReading | None = None
    prediction: LaterReading | None = None
    of_scores: bool = False
    of_steps: bool = False
    worst: float | None = None
    worst_epoch: int | None = None
    evaluation_only: bool = False
    sent_once: bool = False
    joint: float | None = None
    exact: float | None = None
    exact_without: float | None = None
    exact_joint: float | None = None

    @property
    def most(self) -> float:
        """The most that was read, the mean over columns: in the last epoch, in any, or over the run."""
        return _largest(self)

    def with_own(self, own: OwnShares | None) -> ColumnReading:
        """Return it beside what the label party's own columns recover alone; ``None``: that is not known."""
        share, exact = (None, None) if own is None else (own.share, own.exact)
        joint = None if self.joint is None else max(one for one in (self.joint, self.most, share) if one is not None)
        together = [one for one in (self.exact_joint, self.exact, exact) if one is not None]
        exact_joint = None if self.exact_joint is None else max(together)
        beside = {} if own is None else own.columns
        return replace(
            self,
            without_messages=share,
            exact_without=exact,
            joint=joint,
            exact_joint=exact_joint,
            columns=[replace(one, without=beside.get(one.column)) for one in self.columns],
        )

    @property
    def exact_total(self) -> float | None:
        """The largest share of records of which every column is recovered, from all that is held; ``None``: unknown."""
        return max((one for one in (self.exact, self.exact_without, self.exact_joint) if one is not None), default=None)

    @property
    def most_told(self) -> int:
        """Number of columns of which more than half was recovered in the last epoch, in any, or over the run."""
        return sum(one.most > TOLD for one in self.columns)


def _largest(figures: ColumnShare | ColumnReading) -> float:
    return max(one for one in (figures.share, figures.accumulated, figures.worst) if one is not None)
