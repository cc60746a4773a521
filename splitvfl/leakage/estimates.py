"""What an attack on columns found, in the figures of a table: of a forecast, and of a reconstruction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from splitvfl.leakage.categories import CategoryGroup, share_right
from splitvfl.leakage.features import NEAR, ColumnLeak, FeatureLeak
from splitvfl.leakage.remaining_bits import bits_of

TOLD = 0.5
"""A column is told when an attack leaves less than this share of its variance."""

_FEW_BITS = 0.05  # half a per cent of the records differ
_NAMED = 3


@dataclass(frozen=True, slots=True)
class OwnColumn:
    """A column as nobody sees it who knows nothing of a record.

    Attributes:
        column: Its name.
        variance: In the unit box: over all training records in a forecast, over the judged ones of a reconstruction.
        mean_mse: Mean squared error of answering its mean, over the judged records.
        half_mse: The same of answering ½.
        near_mean: Share of the judged records within .05 of the mean.
        bits: Entropy in bits (:func:`splitvfl.leakage.remaining_bits.bits_of`), of the judged records.
    """

    column: str
    variance: float
    mean_mse: float
    half_mse: float
    near_mean: float
    bits: float


@dataclass(frozen=True, slots=True)
class EstimatedColumn:
    """A column as an attack estimates it.

    Attributes:
        column: Its name.
        mse: Mean squared error, in the unit box.
        near: Share of records within .05.
        bits_left: What is still to be asked of it, in bits.
    """

    column: str
    mse: float
    near: float
    bits_left: float


@dataclass(frozen=True, slots=True)
class JudgedAttack:
    """What an attack finds of some records.

    Attributes:
        attack: Its name.
        mse: Mean squared error per column, in the unit box.
        near: Share of entries within .05.
        bits_left: Bits still to be asked, on average over columns.
        categories: Share of records whose category is right, by column; empty without categories.
        columns: Column by column.
        note: What it warned of.
    """

    attack: str
    mse: float
    near: float
    bits_left: float
    categories: Mapping[str, float]
    columns: tuple[EstimatedColumn, ...]
    note: str = ""


def judged_attack(leak: FeatureLeak, estimate: Tensor, truth: Tensor, groups: Sequence[CategoryGroup]) -> JudgedAttack:
    """Return an attack's figures, with the share of categories right, which needs its estimate.

    Args:
        leak: What was judged of it (:func:`splitvfl.leakage.features.judge_estimate`).
        estimate: ``(n, d)``, in the unit box.
        truth: The columns, likewise.
        groups: Categories among them.
    """
    assert leak.near is not None, "it was judged now"
    assert leak.bits_left is not None, "likewise"
    places = {one.column: list(one.places) for one in groups}
    return JudgedAttack(
        attack=leak.attack,
        mse=leak.mse,
        near=leak.near,
        bits_left=leak.bits_left,
        categories={column: share_right(estimate[:, at], truth[:, at]) for column, at in places.items()},
        columns=tuple(map(_estimated, leak.columns)),
        note=leak.note,
    )


def _estimated(one: ColumnLeak) -> EstimatedColumn:
    assert one.bits_left is not None, "it was judged now"
    return EstimatedColumn(one.column, one.mse, one.near, one.bits_left)


def best_first(attacks: Sequence[JudgedAttack]) -> tuple[JudgedAttack, ...]:
    """Return attacks in the order of their errors; roundings do not decide which of two equal ones is first."""
    return tuple(sorted(attacks, key=lambda one: (round(one.mse, 9), one.attack)))


def own_columns(names: Sequence[str], truth: Tensor, mean: Tensor, variances: Sequence[float]) -> Iterator[OwnColumn]:
    """Yield columns as nobody sees them who knows nothing of a record.

    Args:
        names: Of the columns.
        truth: The judged records, ``(n, d)``, in the unit box.
        mean: What is answered for every record, ``(d,)``.
        variances: Of the columns.
    """
    errors, middles = ((truth - point).square().mean(dim=0).tolist() for point in (mean, 0.5))
    near = ((truth - mean).abs() <= NEAR).double().mean(dim=0).tolist()
    for place, name in enumerate(names):
        yield OwnColumn(name, variances[place], errors[place], middles[place], near[place], bits_of(truth[:, place]))


def shares_left(attack: JudgedAttack, baselines: Sequence[OwnColumn]) -> dict[str, float]:
    """Return, by column, which share of its variance an attack leaves.

    A column of next to no bits is left out: too few of the judged records differ.
    """
    return {
        one.column: one.mse / own.mean_mse
        for one, own in zip(attack.columns, baselines, strict=True)
        if own.bits >= _FEW_BITS
    }


def off_by(mse: float) -> str:
    """Return how far off an estimate of this mean squared error typically is, in per cent of a column's range."""
    return f"{100 * math.sqrt(max(mse, 0.0)):.1f} %"


def quoted(names: Sequence[str]) -> str:
    """Return the first names in words, and how many more there are.

    >>> quoted(["age"]), quoted(["age", "plan"]), quoted(["a", "b", "c", "d"])
    ("'age'", "'age' and 'plan'", "'a', 'b', 'c' and 1 more")
    """
    more = len(names) - _NAMED
    named = [repr(name) for name in names[:_NAMED]]
    if more > 0:
        return f"{', '.join(named)} and {more} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
