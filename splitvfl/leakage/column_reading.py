"""What the label party reads of a partner's columns in the partner's activations, while a model is trained.

An attack in the label party's seat estimates the numeric columns of every record of a message. It is judged by the
share of each column's variance that it recovers, ``1 − MSE / variance`` and never below 0, both of the same records:
those that it is judged by. It is not judged by records whose columns it is assumed to know.

An attack that says that it may be ``sampled`` takes no more of a step where the batch is large: it is called with one
message of n/64 where they have n records each, at least one of every epoch, and gets what known records it needs of
those before. Whoever is called is judged by 512 records of the message at most, and by those that are followed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from splitvfl.data.columns import Records
from splitvfl.errors import AttackRefused
from splitvfl.hooks import (
    Attack,
    Auxiliary,
    View,
    hook_name,
    is_sampled,
    known_share_of,
    most_records_of,
    needs_of,
)
from splitvfl.leakage.features import run_feature_attack
from splitvfl.learning.randomness import PartyRandom

TOLD: Final = 0.5
"""A column is told when more than this share of its variance is recovered."""

# Records of whom estimates are added up over the run, at most.
_FOLLOWED = 2_000
_FEWEST = 3  # known records of a message: of two, each left out leaves a constant, whatever the penalty
_PIECE = 65_536  # records that are read at a time
_CALLED = 64  # records of a message so large that a sampled attack is called with each
_HELD = 512  # known records of messages with which it is not called, at most: the latest
_ROUNDING = 1e-12  # of a mean square, in float64: a smaller variance is none
_JUDGED = 512  # records of a message by which it is judged, at most, besides those that are followed


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
        standing_still: Whether the model had been trained, and stood still: messages were computed again, and read when
            training was over.
        knows_model: Whether the attack is assumed to know the partner's half of the model too.
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


class ColumnReader:
    """An attack on what one partner sends, and its judge.

    Args:
        attack: The attack; reads ``received_activation``.
        name: What it is called; ``None``: by its own name.
        names: Of the partner's numeric columns.
        train: Its training records.
        among: Places of those that are sent in training and are records of somebody; ``None``: all are.
        seed: Draws the records whose columns the attacker knows, and those that are followed over the run.
        epoch_steps: Steps of an epoch; ``None``: the attack is called with every message, sampled or not.
        refused: Told why, where the attack cannot work; it is not called again.
        models: By view field, what makes a copy of a model as it is, for an attack that reads it; told the ids of the
            message's known records.
        spared: Whether an attack that fails is left out, and why is said, in place of ending the run.

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
        among: Tensor | None = None,
        seed: int,
        epoch_steps: int | None = None,
        refused: Callable[[str], None] = lambda why: None,
        models: Mapping[str, Callable[[Tensor], nn.Module]] | None = None,
        spared: bool = False,
    ) -> None:
        self.name, self.seconds = name or hook_name(attack), 0.0
        self._attack, self._refused, self._asked, self._spared = attack, refused, True, spared
        self._why, self._random = "", PartyRandom(seed)
        self._seed, self._most = seed, most_records_of(attack)
        self._models = {name: made for name, made in (models or {}).items() if name in needs_of(attack)}
        self._share = known_share_of(attack) if "auxiliary" in needs_of(attack) else 0.0
        self._names = tuple(names)
        self._middle, variance = _moments(train, len(self._names))
        self._varies = variance > 0
        among = torch.arange(train.count) if among is None else among
        self._when = _Moments.of(len(among), epoch_steps, self._share) if is_sampled(attack) else _Moments()
        self._held: Auxiliary | None = None
        self._others = None if len(among) == train.count else train.ids[among].cpu().sort().values
        drawn = among[torch.randperm(len(among), generator=torch.Generator().manual_seed(seed))]
        count = round(self._share * len(among))
        self.known = drawn[:count].sort().values
        self.followed = drawn[count : count + _FOLLOWED].sort().values
        self._known = train.ids[self.known].cpu().sort().values
        followed = train.rows(self.followed)
        self._followed, order = followed.ids.cpu().sort()
        self._truth = followed.columns.numeric.cpu()[order].double()
        self._sums = torch.zeros_like(self._truth)
        self._times = torch.zeros(len(order), dtype=torch.int64)
        self._epoch, self._recent, self._last = (_Errors(len(self._names)) for _ in range(3))
        self._messages = self._unjudged = 0
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
        if not self._asked or not self._when.holds(step) or not bool(self._varies.any()):
            return
        started = time.perf_counter()
        try:
            self._look(message.detach(), columns, ids, party=party, step=step)
        except AttackRefused as error:
            self._leave_out(str(error))
        except Exception as error:
            if not self._spared:
                raise
            self._leave_out(f"failed at step {step:,}: {error}")
        finally:
            self.seconds += time.perf_counter() - started

    def _leave_out(self, why: str) -> None:
        self._asked, self._why = False, why
        self._refused(why)

    def _look(self, message: Tensor, columns: Tensor, ids: Tensor, *, party: str, step: int) -> None:
        message = message.float() if message.dtype.itemsize < 4 else message
        own = ids.cpu()
        known = _is_among(own, self._known)
        there = known.nonzero().squeeze(1).to(ids.device)
        auxiliary = Auxiliary(message[there], columns[there], ids[there])
        if not self._when.calls(step):
            self._held = _latest(auxiliary, self._held)
            return
        judged = ~known if self._others is None else ~known & _is_among(own, self._others)
        self._messages += 1
        if (self._share and len(there) < _FEWEST) or not bool(judged.any()):
            self._unjudged += 1
            return
        places = judged.nonzero().squeeze(1)
        if self._when.every > 1:
            drawn = self._drawn(places, step, _JUDGED)
            places = torch.cat([drawn, (judged & _is_among(own, self._followed)).nonzero().squeeze(1)]).unique()
        here = self._drawn(places, step, self._most).to(ids.device)
        none = Auxiliary(*(part[:0] for part in auxiliary))
        view = View(
            party=party,
            step=step,
            ids=ids[here],
            received_activation=message[here],
            auxiliary=auxiliary,
            earlier_auxiliary=none if self._held is None else self._held,
            # A copy costs as much as the model is large.
            **{name: made(auxiliary.ids) for name, made in self._models.items()},
        )
        self._held = None
        if ids.device.type == "cuda":
            self._random.use_cuda()
        with self._random:  # what an attack draws is not to change what it watches
            estimate, self._note = run_feature_attack(self._attack, view, columns.shape[1])
        estimate = estimate.detach().double().cpu()
        truth = columns[here].double().cpu()
        for sums in (self._epoch, self._recent):
            sums.add(estimate - truth, truth - self._middle)
        self._follow(ids[here].cpu(), estimate)

    def _drawn(self, places: Tensor, step: int, most: int | None) -> Tensor:
        """Return so many of these places at most, drawn anew at each step: those of a shard lie side by side."""
        if most is None or len(places) <= most:
            return places
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(self._seed + step))
        return places[order[:most].sort().values]

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
            note="; ".join(filter(None, (self._note, self.unjudged))),
            knows_model="partner_bottom" in needs_of(self._attack),
        )

    @property
    def unjudged(self) -> str:
        """How many messages could not be judged, in words; empty if all were."""
        if not self._unjudged:
            return ""
        return (
            f"{self._unjudged:,} of {self._messages:,} messages had fewer than {_FEWEST} of the records whose columns "
            "it knows, and were left out"
        )

    def share_of(self, estimate: Tensor, truth: Tensor) -> float:
        """Return the share of variance that estimates of some records recover, the mean over columns."""
        errors = _Errors(len(self._names))
        errors.add(estimate.double() - truth.double(), truth.double() - self._middle)
        return self._mean(self._shares(errors))

    def _shares(self, errors: _Errors) -> Tensor:
        """Return which share of each column's variance is recovered, ``(d,)``; NaN where nothing was judged."""
        if not errors.count:
            return torch.full_like(self._middle, math.nan)
        # A column that does not vary among these records has nothing to recover.
        variance = errors.variance
        shares = 1 - errors.sums / errors.count / variance.clamp_min(torch.finfo(torch.float64).tiny)
        return torch.where(variance > 0, shares, 0.0).clamp_min(0.0)

    def _accumulated(self) -> Tensor | None:
        met = self._times > 0
        if not bool(met.any()):
            return None
        errors = _Errors(len(self._names))
        errors.add(self._sums[met] / self._times[met, None] - self._truth[met], self._truth[met] - self._middle)
        return self._shares(errors)

    def _mean(self, shares: Tensor | None) -> float:
        return math.nan if shares is None else shares[self._varies].mean().item()

    # --- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return all figures so far, and what the attack remembers."""
        own = self._attack.state_dict() if hasattr(self._attack, "state_dict") else {}
        errors = {name: getattr(self, f"_{name}").state() for name in ("epoch", "recent", "last")}
        counts = {"messages": self._messages, "unjudged": self._unjudged, "asked": self._asked}
        held = None if self._held is None else list(self._held)
        kept = {"held": held, "why": self._why, "random": self._random.state_dict(), "attack": own}
        return {**errors, **counts, "sums": self._sums, "times": self._times, **kept}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        for name in ("epoch", "recent", "last"):
            setattr(self, f"_{name}", _Errors.of(*state[name]))
        self._sums.copy_(state["sums"])
        self._times.copy_(state["times"])
        self._asked, self._messages, self._unjudged = (state[name] for name in ("asked", "messages", "unjudged"))
        if not self._asked and state.get("why"):
            self._leave_out(state["why"])
        if "random" in state:
            self._random.load_state_dict(state["random"])
        held = state.get("held")  # an older run called its attack with every message
        self._held = None if held is None else Auxiliary(*held)
        if state["attack"]:
            self._attack.load_state_dict(state["attack"])  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _Moments:
    """With which messages an attack is called, and of which known records are held for it.

    Attributes:
        epoch_steps: Steps of an epoch.
        every: It is called with one message of so many.
        ahead: Of so many messages before that one known records are held.
    """

    epoch_steps: int = 1
    every: int = 1
    ahead: int = 0

    @classmethod
    def of(cls, records: int, epoch_steps: int | None, known_share: float) -> _Moments:
        """Return those of an attack that may be sampled.

        Args:
            records: Of an epoch.
            epoch_steps: Its steps; ``None``: the attack is called with each.
            known_share: Share of the records that the attack knows.
        """
        if epoch_steps is None:
            return cls()
        size = records / epoch_steps
        # The last message of an epoch may be a small one.
        every = max(1, min(math.ceil(size / _CALLED), epoch_steps - 1))
        return cls(epoch_steps, every, math.ceil(_HELD / max(known_share * size, 1.0)))

    def calls(self, step: int) -> bool:
        return self._left(step) == 0

    def holds(self, step: int) -> bool:
        return self._left(step) <= self.ahead

    def _left(self, step: int) -> int:
        return self.every - 1 - step % self.epoch_steps % self.every


def _latest(new: Auxiliary, held: Auxiliary | None) -> Auxiliary:
    """Return known records, those of the last message first, and no more than are held."""
    if held is None:
        return Auxiliary(*(part[:_HELD].clone() for part in new))
    return Auxiliary(*(torch.cat([part, old.to(part)])[:_HELD].clone() for part, old in zip(new, held, strict=True)))


def _is_among(ids: Tensor, some: Tensor) -> Tensor:
    """Return which of these ids are among some that ascend, ``(n,)``, bool."""
    if not len(some):
        return torch.zeros(len(ids), dtype=torch.bool)
    places = torch.searchsorted(some, ids).clamp_max_(len(some) - 1)
    return some[places] == ids


def _moments(train: Records, columns: int) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each numeric column over some records, ``(d,)`` each, read piece by piece."""
    count, mean, squares = 0, torch.zeros(columns, dtype=torch.float64), torch.zeros(columns, dtype=torch.float64)
    for first in range(0, train.count, _PIECE):
        piece = train.rows(torch.arange(first, min(first + _PIECE, train.count))).columns.numeric.cpu().double()
        own = piece.mean(dim=0)
        shift, both = own - mean, count + len(piece)
        squares = squares + (piece - own).square().sum(dim=0) + shift.square() * (count * len(piece) / both)
        mean, count = mean + shift * (len(piece) / both), both
    return mean, squares / max(count, 1)


class _Errors:
    """What estimates are off by, squared and added up by column, beside the spread of what was estimated."""

    def __init__(self, columns: int) -> None:
        self.sums, self._first, self._second = (torch.zeros(columns, dtype=torch.float64) for _ in range(3))
        self.count = 0

    @classmethod
    def of(cls, sums: Tensor, first: Tensor, second: Tensor, count: int) -> _Errors:
        """Return what :meth:`state` returned."""
        errors = cls(0)
        errors.sums, errors._first, errors._second, errors.count = sums.clone(), first.clone(), second.clone(), count
        return errors

    def add(self, off: Tensor, truth: Tensor) -> None:
        """Add records: what their estimates are off by, and their columns less a number that is near their mean."""
        self.sums = self.sums + off.square().sum(dim=0)
        self._first, self._second = self._first + truth.sum(dim=0), self._second + truth.square().sum(dim=0)
        self.count += len(off)

    @property
    def variance(self) -> Tensor:
        """Variance of each column among these records, ``(d,)``; 0 where they are alike but for rounding."""
        second = self._second / self.count
        variance = second - (self._first / self.count).square()
        # Of numbers that are all the same rounding leaves a variance, of which any estimate would recover all.
        return torch.where(variance > _ROUNDING * second, variance, 0.0)

    def state(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return the sums."""
        return self.sums, self._first, self._second, self.count
