"""What the label party reads of a partner's columns in the partner's activations, while a model is trained.

An attack in the label party's seat estimates the numeric columns of every record of a message. It is judged by the
share of each column's variance that it recovers, ``1 − MSE / variance`` and never below 0, the variance being that of
the column over the training records. It is not judged by records whose columns it is assumed to know.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.errors import AttackRefused
from splitvfl.hooks import Attack, Auxiliary, View, hook_name, known_share_of
from splitvfl.leakage.features import run_feature_attack

TOLD: Final = 0.5
"""A column is told when more than this share of its variance is recovered."""

# Records of whom estimates are added up over the run, at most.
_FOLLOWED = 2_000
_FEWEST = 2  # known records of a message
_PIECE = 65_536  # records that are read at a time


@dataclass(frozen=True, slots=True)
class ColumnShare:
    """What an attack recovers of one column.

    Attributes:
        column: Its name.
        share: Share of its variance, 0 to 1, over the records of the last epoch.
        accumulated: The same of each followed record's mean estimate over the run; ``None``: there is none.
    """

    column: str
    share: float
    accumulated: float | None = None


@dataclass(frozen=True, slots=True)
class ColumnReading:
    """What an attack in the label party's seat read of a partner's columns.

    Attributes:
        attack: Its name.
        known_share: Share of the training records whose columns it was assumed to know.
        share: Share of variance recovered, the mean over columns, in the last epoch.
        told: Number of columns of which more than half was recovered then.
        records: Number of estimates in that epoch.
        columns: Column by column, that of which most is recovered first.
        accumulated: Share of variance that each followed record's mean estimate over the run recovers, likewise.
        followed: Number of these records.
        left_out: Columns without variance over the training records.
        without_messages: Share of variance that ridge regression on the label party's own columns recovers, from the
            same known records; ``None``: nobody looked.
        note: What it warned of.
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


class ColumnReader:
    """An attack on what one partner sends, and its judge.

    Args:
        attack: The attack; reads ``received_activation``.
        name: What it is called; ``None``: by its own name.
        names: Of the partner's numeric columns.
        train: Its training records.
        seed: Draws the records whose columns the attacker knows, and those that are followed over the run.
        refused: Told why, where the attack cannot work; it is not called again.

    Attributes:
        name: What it is called.
        seconds: Time that it and its judging took.
        known: Places of the training records whose columns it is assumed to know, ascending.
        followed: Places of those whose estimates are added up over the run, likewise.
    """

    def __init__(
        self,
        attack: Attack,
        *,
        name: str | None = None,
        names: Sequence[str],
        train: Records,
        seed: int,
        refused: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.name, self.seconds = name or hook_name(attack), 0.0
        self._attack, self._refused, self._asked = attack, refused, True
        self._share = known_share_of(attack)
        self._names = tuple(names)
        self._variance = _variances(train, len(self._names))
        self._varies = self._variance > 0
        drawn = torch.randperm(train.count, generator=torch.Generator().manual_seed(seed))
        count = round(self._share * train.count)
        self.known = drawn[:count].sort().values
        self.followed = drawn[count : count + _FOLLOWED].sort().values
        self._known = train.ids[self.known].cpu().sort().values
        followed = train.rows(self.followed)
        self._followed, order = followed.ids.cpu().sort()
        self._truth = followed.columns.numeric.cpu()[order].double()
        self._sums = torch.zeros_like(self._truth)
        self._times = torch.zeros(len(order), dtype=torch.int64)
        self._epoch, self._recent, self._last = (_Errors(len(self._names)) for _ in range(3))
        self._note = ""

    def see(self, message: Tensor, columns: Tensor, ids: Tensor, *, party: str, step: int) -> None:
        """Let the attack look at a message of training, and judge it.

        Args:
            message: What was sent, ``(n, width)``.
            columns: The numeric columns of its records, ``(n, d)``.
            ids: Their ids.
            party: The label party's name.
            step: Number of the step.

        Raises:
            HookError: If the attack breaks its contract.
            ArgumentError: If its estimate has another shape than ``(n, d)``, or is not finite.
        """
        if not self._asked or not bool(self._varies.any()):
            return
        started = time.perf_counter()
        try:
            self._look(message.detach(), columns, ids, party=party, step=step)
        except AttackRefused as error:
            self._asked = False
            self._refused(str(error))
        finally:
            self.seconds += time.perf_counter() - started

    def _look(self, message: Tensor, columns: Tensor, ids: Tensor, *, party: str, step: int) -> None:
        message = message.float() if message.dtype.itemsize < 4 else message
        known = torch.isin(ids.cpu(), self._known).to(ids.device)
        if int(known.sum()) < _FEWEST or bool(known.all()):
            return
        view = View(
            party=party,
            step=step,
            ids=ids[~known],
            received_activation=message[~known],
            auxiliary=Auxiliary(message[known], columns[known], ids[known]),
        )
        estimate, self._note = run_feature_attack(self._attack, view, columns.shape[1])
        estimate = estimate.detach().double().cpu()
        errors = (estimate - columns[~known].double().cpu()).square()
        for sums in (self._epoch, self._recent):
            sums.add(errors)
        self._follow(ids[~known].cpu(), estimate)

    def _follow(self, ids: Tensor, estimate: Tensor) -> None:
        if not len(self._followed):
            return
        places = torch.searchsorted(self._followed, ids).clamp_max(len(self._followed) - 1)
        here = self._followed[places] == ids
        self._sums.index_add_(0, places[here], estimate[here])
        self._times.index_add_(0, places[here], torch.ones(int(here.sum()), dtype=torch.int64))

    # --- figures

    def scalars(self, party: str, *, epoch_ends: bool) -> dict[str, float]:
        """Return what there is to log, by tag: since it was logged last, and of the run so far at the end of an epoch.

        Args:
            party: Whose columns they are.
            epoch_ends: Whether an epoch has just ended.
        """
        values = {f"feature_leak/{party}/{self.name}": self._mean(self._shares(self._recent))}
        self._recent = _Errors(len(self._names))
        if epoch_ends:
            values[f"feature_leak_accumulated/{party}/{self.name}"] = self._mean(self._accumulated())
            if self._epoch.count:
                self._last, self._epoch = self._epoch, _Errors(len(self._names))
        return {tag: value for tag, value in values.items() if not math.isnan(value)}

    def reading(self) -> ColumnReading | None:
        """Return its figures of the last epoch, and of the run; ``None`` where it was never judged."""
        last = self._last if self._last.count else self._epoch
        if not last.count:
            return None
        shares, accumulated = self._shares(last), self._accumulated()
        columns = [
            ColumnShare(name, shares[place].item(), None if accumulated is None else accumulated[place].item())
            for place, name in enumerate(self._names)
            if self._varies[place]
        ]
        return ColumnReading(
            attack=self.name,
            known_share=self._share,
            share=self._mean(shares),
            told=sum(one.share > TOLD for one in columns),
            records=last.count,
            columns=sorted(columns, key=lambda one: -one.share),
            accumulated=None if accumulated is None else self._mean(accumulated),
            followed=int((self._times > 0).sum()),
            left_out=[name for place, name in enumerate(self._names) if not self._varies[place]],
            note=self._note,
        )

    def share_of(self, errors: Tensor) -> float:
        """Return the share of variance recovered by estimates with these mean squared errors, ``(d,)``."""
        return self._mean((1 - errors / self._variance).clamp_min(0.0))

    def _shares(self, errors: _Errors) -> Tensor:
        """Return which share of each column's variance is recovered, ``(d,)``; NaN where nothing was judged."""
        if not errors.count:
            return torch.full_like(self._variance, math.nan)
        return (1 - errors.sums / errors.count / self._variance).clamp_min(0.0)

    def _accumulated(self) -> Tensor | None:
        met = self._times > 0
        if not bool(met.any()):
            return None
        means = self._sums[met] / self._times[met, None]
        return (1 - (means - self._truth[met]).square().mean(dim=0) / self._variance).clamp_min(0.0)

    def _mean(self, shares: Tensor | None) -> float:
        return math.nan if shares is None else shares[self._varies].mean().item()

    # --- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return all figures so far, and what the attack remembers."""
        own = self._attack.state_dict() if hasattr(self._attack, "state_dict") else {}
        errors = {name: getattr(self, f"_{name}").state() for name in ("epoch", "recent", "last")}
        return {**errors, "sums": self._sums, "times": self._times, "asked": self._asked, "attack": own}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        for name in ("epoch", "recent", "last"):
            setattr(self, f"_{name}", _Errors.of(*state[name]))
        self._sums.copy_(state["sums"])
        self._times.copy_(state["times"])
        self._asked = state["asked"]
        if state["attack"]:
            self._attack.load_state_dict(state["attack"])  # type: ignore[attr-defined]


def _variances(train: Records, columns: int) -> Tensor:
    """Return the variance of each numeric column over some records, ``(d,)``, read piece by piece."""
    count, mean, squares = 0, torch.zeros(columns, dtype=torch.float64), torch.zeros(columns, dtype=torch.float64)
    for first in range(0, train.count, _PIECE):
        piece = train.rows(torch.arange(first, min(first + _PIECE, train.count))).columns.numeric.cpu().double()
        own = piece.mean(dim=0)
        shift, both = own - mean, count + len(piece)
        squares = squares + (piece - own).square().sum(dim=0) + shift.square() * (count * len(piece) / both)
        mean, count = mean + shift * (len(piece) / both), both
    return squares / max(count, 1)


class _Errors:
    """Squared errors of estimates, by column, added up."""

    def __init__(self, columns: int) -> None:
        self.sums, self.count = torch.zeros(columns, dtype=torch.float64), 0

    @classmethod
    def of(cls, sums: Tensor, count: int) -> _Errors:
        errors = cls(0)
        errors.sums, errors.count = sums.clone(), count
        return errors

    def add(self, squares: Tensor) -> None:
        self.sums = self.sums + squares.sum(dim=0)
        self.count += len(squares)

    def state(self) -> tuple[Tensor, int]:
        return self.sums, self.count
