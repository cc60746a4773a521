"""What the label party reads of a partner's columns in the partner's activations, while a model is trained.

An attack in the label party's seat estimates the numeric columns of every record of a message. It is judged by the
share of each column's variance that it recovers, ``1 − MSE / variance`` and never below 0, both of the same records:
those that it is judged by. It is not judged by records whose columns it is assumed to know.

Of a categorical field it estimates an indicator for each category (:mod:`splitvfl.leakage.asked_categories`), and
answers the largest. It is judged by how many records that is right of, beside the most frequent category of the same
records; ``(right − p) / (1 − p)``, p the share of that one and never below 0, stands in one list with shares of
variance: both are 0 for who knows nothing of a record, and 1 for who knows all.

Of records that are evaluated or scored the label party receives activations too, and knows nobody among them. What the
attack has learned in training reads these as well: it is given the known records that came last in training, and judged
by itself. Nothing of that is kept: a copy of the attack is asked.

The label party has columns of its own, and receives the activations of other partners. An attack that can is run a
second time, with all of these of each record beside its activation: together they tell more than alone.

Records of which all columns are recovered at once are counted too: every number within a tenth of its standard
deviation, every category the right one.

An attack that says that it may be ``sampled`` takes no more of a step where the batch is large: it is called with one
message of n/64 where they have n records each, at least one of every epoch, and gets what known records it needs of
those before. Whoever is called is judged by 512 records of the message at most, and by those that are followed.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from splitvfl.data.columns import Columns, Records
from splitvfl.errors import AttackRefused
from splitvfl.hooks import (
    Attack,
    Auxiliary,
    Phase,
    View,
    hook_name,
    is_sampled,
    known_share_of,
    most_records_of,
    needs_of,
)
from splitvfl.leakage.asked_categories import NO_CATEGORIES, AskedCategories
from splitvfl.leakage.categories import CategoryGroup, records_right
from splitvfl.leakage.column_errors import ROUNDING, ColumnErrors, WorstEpoch
from splitvfl.leakage.column_figures import EXACT, TOLD, ColumnReading, ColumnShare, LaterReading, OwnShares
from splitvfl.leakage.features import run_feature_attack
from splitvfl.leakage.read_messages import HELD, ReadMessages
from splitvfl.leakage.shown_records import SHOWN_COLUMNS, PlottedColumn, shown_column
from splitvfl.learning.randomness import PartyRandom, derive_seed

# Records of whom estimates are added up over the run, at most.
_FOLLOWED = 2_000
FEWEST = 3  # known records of a message: of two, each left out leaves a constant, whatever the penalty
_PIECE = 65_536  # records that are read at a time
_JUDGED = 512  # records of a message by which it is judged, at most, besides those that are followed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentColumns:
    """The columns of one partner, and how what is made of them is sent.

    Attributes:
        names: Of its numeric columns.
        train: Its training records.
        categories: Which of its categories are asked for.
        among: Places of those that are sent in training and are records of somebody; ``None``: all are.
        nobodys: Ids of those that are nobody's, in any part; ``None``: there are none.
        epoch_steps: Steps of an epoch; ``None``: an attack is called with every message, sampled or not.
        once: Whether all is sent once, before the first step: then nothing is added up over the run or its epochs.
    """

    names: Sequence[str]
    train: Records
    categories: AskedCategories = NO_CATEGORIES
    among: Tensor | None = None
    nobodys: Tensor | None = None
    epoch_steps: int | None = None
    once: bool = False


class ColumnReader:
    """An attack on what one partner sends, and its judge.

    Args:
        attack: The attack; reads ``received_activation``.
        sent: The partner's columns, and how it sends what it makes of them.
        name: What it is called; ``None``: by its own name.
        seed: Draws the records whose columns the attacker knows, and those that are followed over the run.
        refused: Told why, where the attack cannot work; it is not called again.
        models: By view field, what makes a copy of a model as it is, for an attack that reads it; told the ids of the
            message's known records.
        spared: Whether an attack that fails is left out, and why is said, in place of ending the run.
        joint: Whether it is run a second time, with all else that the label party has of a record beside each message.

    Attributes:
        joint: That second one, which has figures of its own; ``None``: there is none.
        name: What it is called.
        seconds: Time that it and its judging took.
        known: Places of the training records whose columns it is assumed to know, ascending.
        followed: Places of those whose estimates are added up over the run, likewise.
    """

    def __init__(
        self,
        attack: Attack,
        sent: SentColumns,
        *,
        name: str | None = None,
        seed: int,
        refused: Callable[[str], None] = lambda why: None,
        models: Mapping[str, Callable[[Tensor], nn.Module]] | None = None,
        spared: bool = False,
        joint: bool = False,
    ) -> None:
        second = partial(ColumnReader, name=name, seed=seed, spared=spared)
        self.joint: ColumnReader | None = second(copy.deepcopy(attack), sent) if joint else None
        self.name, self.seconds = name or hook_name(attack), 0.0
        self._attack, self._refused, self._asked, self._spared = attack, refused, True, spared
        self._why, self._random, self._once = "", PartyRandom(seed), sent.once
        self._seed, self._most = seed, most_records_of(attack)
        self._models = {name: made for name, made in (models or {}).items() if name in needs_of(attack)}
        self._share = known_share_of(attack) if "auxiliary" in needs_of(attack) else 0.0
        names, train, categories = sent.names, sent.train, sent.categories
        self._categories, self._numbers = categories, len(names)
        middle, variance = _moments(train, len(names))
        self._within = EXACT * variance.sqrt()
        one_hot = [one for one in categories.one_hot if int((variance[list(one.places)] > 0).sum()) > 1]
        self._groups, self._one_hot = (*categories.fields, *one_hot), one_hot
        self._names = (*names, *(group.column for group in self._groups))
        self._middle = torch.cat([middle, middle.new_zeros(categories.width)])
        kinds = (variance > 0, [True] * len(categories.fields), [False] * len(one_hot))
        self._counted = torch.cat([torch.as_tensor(kind, dtype=torch.bool) for kind in kinds])
        # Of categories that are held as columns of zeros and ones the largest decides.
        self._as_numbers = self._counted[: len(names)].clone()
        self._as_numbers[[place for one in one_hot for place in one.places]] = False
        among = torch.arange(train.count) if sent.among is None else sent.among
        self._when = ReadMessages()
        if is_sampled(attack):
            self._when = ReadMessages.of(len(among), sent.epoch_steps, self._share)
        self._held: Auxiliary | None = None
        # For messages in which nobody is known.
        self._remembered: Auxiliary | None = None
        self._nobodys = None if sent.nobodys is None else sent.nobodys.cpu().sort().values
        self._others = None if len(among) == train.count else train.ids[among].cpu().sort().values
        drawn = among[torch.randperm(len(among), generator=torch.Generator().manual_seed(seed))]
        count = round(self._share * len(among))
        self.known = drawn[:count].sort().values
        self.followed = drawn[count : count + _FOLLOWED].sort().values
        self._known = train.ids[self.known].cpu().sort().values
        followed = train.rows(self.followed)
        self._followed, order = followed.ids.cpu().sort()
        self._truth = categories.beside(followed.columns).cpu()[order].double()
        self._sums = torch.zeros_like(self._truth)
        self._times = torch.zeros(len(order), dtype=torch.int64)
        self._epoch, self._recent, self._last = (self._errors() for _ in range(3))
        self._worst = WorstEpoch(torch.zeros(len(self._names), dtype=torch.float64))
        self._later: dict[Phase, ColumnErrors] = {}
        self._unlogged = False
        self._messages = self._unjudged = 0
        self._note = ""

    def see(self, message: Tensor, columns: Columns, ids: Tensor, *, party: str, step: int) -> None:
        """Let the attack look at a message of training, and judge it.

        Args:
            message: What was sent, ``(n, width)``.
            columns: The columns of its records.
            ids: Their ids.
            party: The label party's name.
            step: Number of the step.

        Raises:
            HookError: If the attack breaks its contract.
            ArgumentError: If its estimate has another shape than ``(n, d)``, or is not finite.
        """
        if not self._asked or not self._when.holds(step) or not bool(self._counted.any()):
            return
        started = time.perf_counter()
        with self._sparing(step):
            self._look(_widened(message), columns, ids, party=party, step=step)
        self.seconds += time.perf_counter() - started

    def see_jointly(
        self, message: Tensor, columns: Columns, ids: Tensor, beside: Tensor, *, party: str, step: int
    ) -> None:
        """Let :attr:`joint` look at a message that :meth:`see` was shown, and judge it.

        Args:
            message: As for :meth:`see`.
            columns: Likewise.
            ids: Likewise.
            beside: What else the label party has of them, ``(n, w)``: its own columns, other partners' messages.
            party: Likewise.
            step: Likewise.

        Raises:
            HookError: As :meth:`see`.
            ArgumentError: Likewise.
        """
        if self.joint is None:
            return
        started = time.perf_counter()
        wide = _widened(message)
        self.joint.see(torch.cat([wide, beside.to(wide)], dim=1), columns, ids, party=party, step=step)
        self.seconds += time.perf_counter() - started

    def see_later(
        self, message: Tensor, columns: Columns, ids: Tensor, *, party: str, step: int, phase: Phase, piece: int
    ) -> None:
        """Let the attack look at a message that nothing is learned from, and judge it, up to 512 of its records.

        Of many messages it looks at fewer and fewer: at those numbered 0, 1, 2, 4, 8 and so on. It is asked by a copy,
        so that what it does in training stays as it is.

        Args:
            message: As for :meth:`see`.
            columns: Likewise.
            ids: Likewise.
            party: Likewise.
            step: Number of training steps done, or of the message.
            phase: ``"evaluation"`` or ``"prediction"``.
            piece: Number of the message in the evaluation or the prediction, from 0; at 0 another one begins.

        Raises:
            HookError: As :meth:`see`.
            ArgumentError: Likewise.
        """
        if not self._asked or piece & (piece - 1) or not bool(self._counted.any()):
            return
        if piece == 0:
            self._later[phase] = self._errors()
        with self._sparing(step):
            self._look_later(_widened(message), columns, ids, party=party, step=step, phase=phase, piece=piece)

    @contextmanager
    def _sparing(self, step: int) -> Iterator[None]:
        """Leave the attack out, and say why, if it refuses or is spared; what it raises otherwise is raised."""
        try:
            yield
        except AttackRefused as error:
            self._leave_out(str(error))
        except Exception as error:
            if not self._spared:
                raise
            self._leave_out(f"failed at step {step:,}: {error}")

    def _leave_out(self, why: str) -> None:
        self._asked, self._why = False, why
        self._refused(why)

    def _columns_of(self, columns: Columns, rows: Tensor) -> Tensor:
        """Return what is asked for of some records, ``(k, d)``."""
        return self._categories.beside(columns.rows(rows))

    def _known_among(self, message: Tensor, columns: Columns, ids: Tensor) -> tuple[Tensor, Auxiliary]:
        """Return which records are known, bool on the CPU, and what is known of them."""
        known = _is_among(ids.cpu(), self._known)
        there = known.nonzero().squeeze(1).to(ids.device)
        return known, Auxiliary(message[there], self._columns_of(columns, there), ids[there])

    def _look(self, message: Tensor, columns: Columns, ids: Tensor, *, party: str, step: int) -> None:
        own = ids.cpu()
        known, auxiliary = self._known_among(message, columns, ids)
        self._remembered = _latest(auxiliary, self._remembered)
        if not self._when.calls(step):
            self._held = _latest(auxiliary, self._held)
            return
        judged = ~known if self._others is None else ~known & _is_among(own, self._others)
        self._messages += 1
        if (self._share and len(auxiliary.ids) < FEWEST) or not bool(judged.any()):
            self._unjudged += 1
            return
        places = judged.nonzero().squeeze(1)
        if self._when.every > 1:
            drawn = self._drawn(places, step, _JUDGED)
            places = torch.cat([drawn, (judged & _is_among(own, self._followed)).nonzero().squeeze(1)]).unique()
        here = self._drawn(places, step, self._most).to(ids.device)
        view = self._view(message[here], ids[here], auxiliary, self._held, party=party, step=step)
        self._held = None
        estimate, self._note = self._estimate(self._attack, view, self._random)
        truth = self._columns_of(columns, here).double().cpu()
        self._judge(estimate, truth, self._epoch, self._recent)
        self._follow(ids[here].cpu(), estimate)

    def _look_later(
        self, message: Tensor, columns: Columns, ids: Tensor, *, party: str, step: int, phase: Phase, piece: int
    ) -> None:
        own = ids.cpu()
        known, auxiliary = self._known_among(message, columns, ids)
        auxiliary = _each_once(_latest(auxiliary, self._remembered))
        judged = ~known if self._nobodys is None else ~known & ~_is_among(own, self._nobodys)
        if (self._share and len(auxiliary.ids) < FEWEST) or not bool(judged.any()):
            return
        most = min(_JUDGED, self._most or _JUDGED)
        here = self._drawn(judged.nonzero().squeeze(1), step + piece, most).to(ids.device)
        view = self._view(message[here], ids[here], auxiliary, None, party=party, step=step)
        random = PartyRandom(derive_seed(self._seed, phase, step, piece))
        estimate, _ = self._estimate(copy.deepcopy(self._attack), view, random)
        self._judge(estimate, self._columns_of(columns, here).double().cpu(), self._later[phase])
        self._unlogged |= phase == "evaluation"

    def _view(
        self, message: Tensor, ids: Tensor, known: Auxiliary, earlier: Auxiliary | None, *, party: str, step: int
    ) -> View:
        none = Auxiliary(*(part[:0] for part in known))
        return View(
            party=party,
            step=step,
            ids=ids,
            received_activation=message,
            auxiliary=known,
            earlier_auxiliary=none if earlier is None else earlier,
            # A copy costs as much as the model is large.
            **{name: made(known.ids) for name, made in self._models.items()},
        )

    def _estimate(self, attack: Attack, view: View, random: PartyRandom) -> tuple[Tensor, str]:
        """Return the attack's estimate on the CPU, ``(n, d)``, float64, and what it warned of."""
        if view.device.type == "cuda":
            random.use_cuda()
        with random:  # what an attack draws is not to change what it watches
            estimate, note = run_feature_attack(attack, view, len(self._middle))
        return estimate.detach().double().cpu(), note

    def _judge(self, estimate: Tensor, truth: Tensor, *sums: ColumnErrors) -> None:
        hits = [_hits(group, estimate, truth) for group in self._groups]
        right = torch.stack([hit.sum() for hit in hits]) if hits else None
        off = estimate - truth
        near = off[:, : self._numbers].abs() <= self._within
        exact = (near | ~self._as_numbers).all(dim=1) & torch.stack([torch.ones(len(off)).bool(), *hits]).all(dim=0)
        for one in sums:
            one.add(off, truth - self._middle, right, exact.sum().item())

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
        self._recent = self._errors()
        if epoch_ends:
            values[f"feature_leak_accumulated/{party}/{self.name}"] = self._mean(self._accumulated())
            values |= self._category_scalars(f"{party}/{self.name}")
            self._worst = self._worst_so_far(counted=True)
            if self._epoch.count:
                self._last, self._epoch = self._epoch, self._errors()
        if self._unlogged:
            self._unlogged = False
            values[f"feature_leak_evaluation/{party}/{self.name}"] = self._mean(self._shares(self._later["evaluation"]))
        if self.joint is not None:
            beside = self.joint.scalars(party, epoch_ends=epoch_ends)
            values |= {tag.replace("/", "_joint/", 1): value for tag, value in beside.items()}
        return {tag: value for tag, value in values.items() if not math.isnan(value)}

    def _category_scalars(self, tag: str) -> dict[str, float]:
        """Return how often categories were right in the epoch, and what answering the most frequent one gives."""
        values = {}
        for group, right, commonest in zip(self._groups, *self._answers(self._epoch), strict=True):
            values[f"categories_right/{tag}/{group.column}"] = right.item()
            values[f"categories_commonest/{tag}/{group.column}"] = commonest.item()
        return values

    def _worst_so_far(self, *, counted: bool) -> WorstEpoch:
        """Return the worst of all epochs.

        Args:
            counted: Whether an epoch ends now. Else the one under way is among them if it has come half as far as the
                last: few records can be read well by chance.
        """
        epochs = self._worst.epochs + 1
        there = self._epoch.count and (counted or 2 * self._epoch.count >= self._last.count > 0)
        worst = self._worst
        if there:
            shares = self._shares(self._epoch)
            worst = worst.with_epoch(shares, self._mean(shares), epochs, self._epoch.exact_share)
        return replace(worst, epochs=epochs) if counted else worst

    def reading(self) -> ColumnReading | None:
        """Return its figures of the last epoch, of the worst, and of the run.

        Where no message of training could be judged, those of the last evaluation; ``None`` if none of it either.
        """
        last = self._last if self._last.count else self._epoch
        if evaluation_only := not last.count:
            last = self._later.get("evaluation", last)
        if not last.count:
            return None
        joint = None if self.joint is None else self.joint.reading()
        accumulated = None if self._once else self._accumulated()
        worst = self._worst_so_far(counted=False)
        several = worst.judged and not self._once
        found = self._columns(last, accumulated, worst.shares if several else None)
        columns = self._sorted(found)
        return ColumnReading(
            attack=self.name,
            known_share=self._share,
            share=self._mean(self._shares(last)),
            told=sum(one.share > TOLD for one in columns),
            records=last.count,
            columns=columns,
            accumulated=None if accumulated is None else self._mean(accumulated),
            followed=int((self._times > 0).sum()),
            left_out=[
                *(name for name, kept in zip(self._names[: self._numbers], self._counted, strict=False) if not kept),
                *self._categories.single,
            ],
            note="; ".join(filter(None, (self._note, self.unjudged))),
            knows_model="partner_bottom" in needs_of(self._attack),
            one_hot=found[self._numbers + len(self._categories.fields) :],
            in_one_hot=[self._names[place] for one in self._one_hot for place in one.places if self._counted[place]],
            too_many=list(self._categories.too_many),
            evaluation=self._later_reading("evaluation"),
            prediction=self._later_reading("prediction"),
            worst=worst.share if several else None,
            worst_epoch=(worst.epoch or None) if several else None,
            evaluation_only=evaluation_only,
            sent_once=self._once,
            joint=None if joint is None or joint.evaluation_only else joint.most,
            exact=self._exact(last),
            exact_joint=None if joint is None or joint.evaluation_only else joint.exact,
        )

    def _later_reading(self, phase: Phase) -> LaterReading | None:
        errors = self._later.get(phase)
        if errors is None or not errors.count:
            return None
        columns = self._sorted(self._columns(errors))
        told = sum(one.share > TOLD for one in columns)
        return LaterReading(self._mean(self._shares(errors)), told, errors.count, columns)

    def _sorted(self, found: list[ColumnShare]) -> list[ColumnShare]:
        """Return those that are counted, that of which most is recovered first."""
        counted = (one for one, counted in zip(found, self._counted, strict=True) if counted)
        return sorted(counted, key=lambda one: -one.most)

    def _columns(
        self, errors: ColumnErrors, accumulated: Tensor | None = None, worst: Tensor | None = None
    ) -> list[ColumnShare]:
        """Return what is recovered of each numeric column, each field, and each category in one-hot columns."""
        nothing: list[float | None] = [None] * self._numbers
        unknown = [None] * len(self._names)
        return [
            ColumnShare(*figures)
            for figures in zip(
                self._names,
                self._shares(errors).tolist(),
                unknown if accumulated is None else accumulated.tolist(),
                *(nothing + figure.tolist() for figure in self._answers(errors)),
                unknown if worst is None else worst.tolist(),
                strict=True,
            )
        ]

    def shown(self) -> tuple[PlottedColumn, ...]:
        """Return the numeric columns that are read most over the run, three at most, each of a few records."""
        shares, met = self._accumulated(), self._times > 0
        if shares is None:
            return ()
        places = [place for place in range(self._numbers) if self._counted[place]]
        found = (
            shown_column(
                self._names[place],
                self._truth[met, place],
                self._sums[met, place] / self._times[met],
                seed=derive_seed(self._seed, "shown", place),
            )
            for place in sorted(places, key=lambda place: -shares[place].item())
        )
        return tuple(islice((one for one in found if one is not None), SHOWN_COLUMNS))

    @property
    def unjudged(self) -> str:
        """How many messages could not be judged, in words; empty if all were."""
        if not self._unjudged:
            return ""
        return (
            f"{self._unjudged:,} of {self._messages:,} messages had fewer than {FEWEST} of the records whose columns "
            "it knows, and were left out"
        )

    def share_of(self, estimate: Tensor, truth: Tensor) -> OwnShares:
        """Return what estimates of some records recover."""
        errors = self._errors()
        self._judge(estimate.double(), truth.double(), errors)
        shares = self._shares(errors)
        columns = dict(zip(self._names, shares.tolist(), strict=True))
        return OwnShares(self._mean(shares), errors.exact_share, columns)

    def _shares(self, errors: ColumnErrors) -> Tensor:
        """Return which share is recovered of each column's variance and of each group's categories.

        NaN where nothing was judged.
        """
        right, commonest = self._answers(errors)
        others = 1 - commonest
        beyond = torch.where(others > ROUNDING, (right - commonest) / others.clamp_min(ROUNDING), 0.0)
        return torch.cat([errors.shares[: self._numbers], beyond.clamp_min(0.0)])

    def _answers(self, errors: ColumnErrors) -> tuple[Tensor, Tensor]:
        """Return which share of each group's categories is right, and that of the most frequent one; NaN of nobody."""
        if not errors.count or not self._groups:
            return (torch.full((len(self._groups),), math.nan, dtype=torch.float64),) * 2
        frequent = errors.mean + self._middle
        return errors.right / errors.count, torch.stack([frequent[list(one.places)].max() for one in self._groups])

    def _errors(self) -> ColumnErrors:
        return ColumnErrors(len(self._middle), len(self._groups))

    def _accumulated(self) -> Tensor | None:
        errors = self._of_followed()
        return self._shares(errors) if errors.count else None

    def _of_followed(self) -> ColumnErrors:
        """Return what the mean estimates of followed records over the run are off by."""
        errors, met = self._errors(), self._times > 0
        if bool(met.any()):
            self._judge(self._sums[met] / self._times[met, None], self._truth[met], errors)
        return errors

    def _exact(self, last: ColumnErrors) -> float | None:
        """Return of which share of records every column was right: then, in any epoch, or over the run."""
        found = [last.exact_share]
        if not self._once:
            worst = self._worst_so_far(counted=False)
            found += [worst.exact if worst.judged else math.nan, self._of_followed().exact_share]
        return max((one for one in found if not math.isnan(one)), default=None)

    def _mean(self, shares: Tensor | None) -> float:
        return math.nan if shares is None else shares[self._counted].mean().item()

    # --- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return all figures so far, and what the attack remembers."""
        own = self._attack.state_dict() if hasattr(self._attack, "state_dict") else {}
        errors = {name: getattr(self, f"_{name}").state() for name in ("epoch", "recent", "last")}
        counts = {"messages": self._messages, "unjudged": self._unjudged, "asked": self._asked}
        held, remembered = (None if one is None else list(one) for one in (self._held, self._remembered))
        kept = {"held": held, "why": self._why, "random": self._random.state_dict(), "attack": own}
        later = {phase: sums.state() for phase, sums in self._later.items()}
        if self.joint is not None:
            kept["joint"] = self.joint.state_dict()
        kept |= {"remembered": remembered, "later": later, "unlogged": self._unlogged, "worst": self._worst.state()}
        return {**errors, **counts, "sums": self._sums, "times": self._times, **kept}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        for name in ("epoch", "recent", "last"):
            setattr(self, f"_{name}", ColumnErrors.of(*state[name]))
        self._sums.copy_(state["sums"])
        self._times.copy_(state["times"])
        self._asked, self._messages, self._unjudged = (state[name] for name in ("asked", "messages", "unjudged"))
        if not self._asked and state.get("why"):
            self._leave_out(state["why"])
        if "random" in state:
            self._random.load_state_dict(state["random"])
        # An older run called its attack with every message, and in training only.
        held, remembered = state.get("held"), state.get("remembered")
        self._held = None if held is None else Auxiliary(*held)
        self._remembered = None if remembered is None else Auxiliary(*remembered)
        self._later = {phase: ColumnErrors.of(*sums) for phase, sums in state.get("later", {}).items()}
        self._unlogged = state.get("unlogged", False)
        # An older one kept the last epoch alone, and not which it was.
        shares = self._shares(self._last)
        older = self._worst.with_epoch(shares, self._mean(shares), 0) if self._last.count else self._worst
        self._worst = WorstEpoch(*state["worst"]) if "worst" in state else older
        if self.joint is not None and "joint" in state:
            self.joint.load_state_dict(state["joint"])
        if state["attack"]:
            self._attack.load_state_dict(state["attack"])  # type: ignore[attr-defined]


def _latest(new: Auxiliary, held: Auxiliary | None) -> Auxiliary:
    """Return known records, those of the last message first, and no more than are held."""
    if held is None:
        return Auxiliary(*(part[:HELD].clone() for part in new))
    return Auxiliary(*(torch.cat([part, old.to(part)])[:HELD].clone() for part, old in zip(new, held, strict=True)))


def _each_once(known: Auxiliary) -> Auxiliary:
    """Return the first of each record."""
    first = {number: place for place, number in reversed([*enumerate(known.ids.tolist())])}
    rows = torch.tensor(sorted(first.values()), dtype=torch.int64, device=known.ids.device)
    return Auxiliary(*(part[rows] for part in known))


def _widened(message: Tensor) -> Tensor:
    message = message.detach()
    return message.float() if message.dtype.itemsize < 4 else message


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


def _hits(group: CategoryGroup, estimate: Tensor, truth: Tensor) -> Tensor:
    """Return of each record whether a group's category is the one of the largest estimate, ``(n,)``."""
    places = list(group.places)
    return records_right(estimate[:, places], truth[:, places])
