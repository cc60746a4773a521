"""Attacks in the label party's seat on a partner's only column, from all steps of a training with linear models.

Each step is kept as it happens: what was received of the partner's parts of the logits, and what was sent. An attack
looks once, when training has ended, and knows no record, no weight and no model. What it finds is judged up to what
remains open by theorem 3.5: one sign for all records, and one factor where the partner's weight takes no plain gradient
step. Both are granted: of the two signs, and of all factors, the one with the smallest error counts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from splitvfl.data.columns import columns_of, with_one
from splitvfl.errors import ArgumentError, AttackRefused, HookError
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import Attack, PartnerStep, View, fields_in_words, hook_name, needs_of, unused
from splitvfl.leakage.column_errors import shares_recovered
from splitvfl.leakage.column_figures import EXACT, TOLD, ColumnReading, ColumnShare
from splitvfl.leakage.features import run_feature_attack
from splitvfl.leakage.monitor import Monitor
from splitvfl.leakage.watching import Watch
from splitvfl.learning.optimizers import plain_rate_of
from splitvfl.learning.randomness import PartyRandom
from splitvfl.party.party import ActiveParty, LinearStep, PassiveParty

NO_STEPS: Final = (
    "nobody's real column is reconstructed over a network; splitvfl check and splitvfl party say before step 1 whether "
    "it could be, and an experiment of all parties (splitvfl train) runs it"
)
"""Why such an attack is not run over a network."""

_SHOWN: Final = frozenset({"partner_steps"})
# Of all steps that are kept, 64 MiB; what comes later is not looked at, and the reading says so.
_MOST_NUMBERS: Final = 1 << 23


@dataclass(frozen=True)
class _Kept:
    """One step.

    Attributes:
        positions: Where its records are among the label party's.
        summed: Whether parts were received as sums.
        received: As of :class:`~splitvfl.party.party.LinearStep`, by partner.
        of_all: Likewise.
        sent: Likewise, by partner.
        part_weight: Likewise.
        rates: Learning rates, by partner.
    """

    positions: Tensor
    summed: bool
    received: Mapping[str, Tensor]
    of_all: Tensor
    sent: Mapping[str, Tensor]
    part_weight: float
    rates: Mapping[str, float | None]

    @property
    def numbers(self) -> int:
        """How many it takes."""
        return len(self.positions) + sum(
            len(one) for one in (self.of_all, *self.received.values(), *self.sent.values())
        )


class StepSeat:
    """Attacks on all steps of a training, run once when it has ended.

    Args:
        active: The label party.
        passives: The others by name.
        attacks: The attacks: each reads ``partner_steps``.
        watch: Where the reasons of those are kept that could not be run.
        exchange: How a step is talked through.
        seed: Of what attacks draw.
    """

    def __init__(
        self,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        attacks: Sequence[Attack],
        *,
        watch: Watch,
        exchange: Exchange,
        seed: int,
    ) -> None:
        self._active, self._attacks, self._watch, self._seed = active, attacks, watch, seed
        self._plain = not exchange.in_flight  # else a gradient meets another weight than made the part
        self._kept: list[_Kept] = []
        self._numbers = self._left_out = 0
        self._found: dict[str, list[ColumnReading]] = {}
        active.told_of_steps.clear()  # of an earlier trainer
        self._attacked: dict[str, PassiveParty] = {}
        for name, party in passives.items() if attacks else ():
            why = refusal(party, exchange, partners=len(passives))
            if why:
                watch.unavailable[name].update({hook_name(attack): why for attack in attacks})
            else:
                self._attacked[name] = party
        if self._attacked:
            active.told_of_steps.append(self._keep)

    def readings(self, party: str) -> list[ColumnReading]:
        """Return what was reconstructed of one party's column; nothing before training has ended."""
        return list(self._found.get(party, []))

    def _keep(self, step: LinearStep) -> None:
        if self._numbers >= _MOST_NUMBERS:
            self._left_out += 1
            return
        assert step.batch.positions is not None, "batches are taken from the party's records"
        held = [{name: own[name].cpu() for name in self._attacked if name in own} for own in (step.received, step.sent)]
        kept = _Kept(
            step.batch.positions.cpu(),
            bool(step.columns.shape[1]),
            held[0],
            step.of_all.cpu(),
            held[1],
            step.part_weight,
            {name: self._rate(party) for name, party in self._attacked.items()},
        )
        self._kept.append(kept)
        self._numbers += kept.numbers

    def _rate(self, party: PassiveParty) -> float | None:
        return plain_rate_of(party.weights.optimizer) if self._plain and not len(party.penalties) else None

    def read(self, step: int, monitor: Monitor) -> None:
        """Run the attacks on all steps that were kept, and log what they find.

        Args:
            step: Number of steps done.
            monitor: The log.
        """
        self._found = {name: [] for name in self._attacked}
        for name, party in self._attacked.items():
            for attack in self._attacks:
                try:
                    found = self._read_by(copy.deepcopy(attack), name, party, step)
                except (AttackRefused, ArgumentError, HookError) as error:
                    # A run that has just been trained is not lost for that.
                    self._watch.unavailable[name][hook_name(attack)] = str(error)
                    continue
                label = unused(hook_name(attack), {one.attack: one for one in self._found[name]})
                self._found[name].append(found)
                monitor.write(step, {f"feature_leak_of_steps/{name}/{label}": found.share})

    def _read_by(self, attack: Attack, name: str, party: PassiveParty, step: int) -> ColumnReading:
        missing = fields_in_words(needs_of(attack) - _SHOWN)
        if missing:
            raise AttackRefused(f"needs {', '.join(missing)}")
        steps = tuple(self._shown(one, name) for one in self._kept if name in one.received)
        if not steps:
            raise AttackRefused("no step was taken")
        train = self._active.data.train
        seen = torch.zeros(train.count, dtype=torch.bool)
        for one in self._kept:
            seen[one.positions] = True
        if train.real is not None:
            seen &= train.real.cpu()
        places = seen.nonzero().squeeze(1)
        view = View(party=self._active.name, step=step, ids=train.ids[places], partner_steps=steps)
        with PartyRandom(self._seed):  # what an attack draws changes nothing else
            estimate, note = run_feature_attack(attack, view, 1)
        truth = party.data.train.rows(places).columns.numeric.detach().cpu().double()
        scaled = all(one.eta is not None for one in steps)
        if self._left_out:
            kept = f"only the first {len(self._kept):,} of {len(self._kept) + self._left_out:,} steps were looked at"
            note = "; ".join(filter(None, (note, kept)))
        return _reading(
            hook_name(attack), party.data.numeric_names[0], estimate.detach().cpu().double(), truth, scaled, note
        )

    def _shown(self, kept: _Kept, name: str) -> PartnerStep:
        train = self._active.data.train
        columns = torch.zeros(len(kept.positions), 0, dtype=torch.float64)
        if kept.summed:
            columns = with_one(columns_of(train.rows(kept.positions))).cpu()
        return PartnerStep(
            train.ids[kept.positions].cpu(),
            columns,
            kept.received[name],
            kept.of_all,
            kept.sent[name],
            kept.part_weight,
            kept.rates[name],
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the steps that are kept."""
        return {"steps": [vars(one) for one in self._kept], "left_out": self._left_out}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._kept = [_Kept(**one) for one in state.get("steps", [])]
        self._numbers = sum(one.numbers for one in self._kept)
        self._left_out = state.get("left_out", 0)


def refusal(party: PassiveParty, exchange: Exchange, *, partners: int) -> str:
    """Return why no attack can look at a party's steps; empty if one can."""
    columns = party.data.width
    if columns != 1 or party.data.train.columns.categorical.shape[1]:
        return (
            f"reconstructs the only column of a partner, and {party.name} has {columns}: two or more are determined up "
            "to an orthogonal map only"
        )
    weights = [tuple(weight.shape) for weight in party.bottom.parameters()]
    if not party.is_linear or weights != [(1, 1)]:
        return f"needs a linear model without an intercept, and {party.name} has another"
    if party.data.transform is not None:
        return "not where a party transforms its columns: those before or behind it are meant?"
    if exchange.one_way:
        return f"in exchange {exchange.name} nothing is sent in steps"
    if exchange.third_party is not None and partners > 1:
        return f"in exchange {exchange.name} the label party opens sums of the parts of all partners together"
    return ""


def _reading(attack: str, column: str, estimate: Tensor, truth: Tensor, scaled: bool, note: str) -> ColumnReading:
    """Return how far an estimate recovers a column, up to what no attack can know."""
    if scaled:
        factor = 1.0 if (estimate - truth).square().sum() <= (estimate + truth).square().sum() else -1.0
    else:
        factor = float((estimate * truth).sum() / estimate.square().sum().clamp_min(torch.finfo(torch.float64).tiny))
    found = factor * estimate
    share = shares_recovered(found, truth)[0].item()
    near = (found - truth).abs() <= EXACT * truth.std(correction=0)
    granted = "its sign is granted" if scaled else "one factor and its sign are granted"
    return ColumnReading(
        attack=attack,
        known_share=0.0,
        share=share,
        told=int(share > TOLD),
        records=len(truth),
        columns=[ColumnShare(column, share)],
        note="; ".join(filter(None, (note, granted))),
        of_steps=True,
        exact=near.double().mean().item(),
    )
