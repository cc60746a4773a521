"""Attacks in the label party's seat on scores of a trained model, whatever its form, which they know as a whole.

The attacker is assumed to hold every part of the model, its own and the passive parties', and sees what comes out of
predictions: its own columns and the scores, as they are published after all defenses, and no activation. Of a few
training records it knows the columns. It estimates those of other records, all passive parties' side by side. Who sees
activations besides is told more: those attacks are in :mod:`splitvfl.run.column_seats`. Of linear models scores are
equations, with exact solutions where there are as many as columns: :mod:`splitvfl.run.feature_seats`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from splitvfl.cut.split_model import call_top
from splitvfl.data.columns import Columns, Records
from splitvfl.errors import ArgumentError, AttackRefused, HookError
from splitvfl.exchange.prediction import predict_records
from splitvfl.hooks import Attack, KnownColumns, View, fields_in_words, hook_name, known_share_of, needs_of, unused
from splitvfl.leakage.after_training import own_copy
from splitvfl.leakage.column_errors import shares_recovered
from splitvfl.leakage.column_figures import TOLD, ColumnReading, ColumnShare
from splitvfl.leakage.features import Part, run_feature_attack
from splitvfl.leakage.monitor import Monitor
from splitvfl.leakage.ridge import fit_ridge
from splitvfl.leakage.watching import Watch
from splitvfl.learning.batches import Batches
from splitvfl.learning.losses import link_of, loss_name
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.column_seats import sent_records
from splitvfl.run.feature_systems import sampled_rows

SHOWN: Final = frozenset({"scores", "columns", "classes", "whole_model", "known_columns"})
"""View fields that an attack on scores of a whole model can have."""

NO_WHOLE_MODEL: Final = (
    "needs the whole trained model, of which a party of a networked run has its own half alone: in an experiment "
    "of all parties (splitvfl train) it can be run"
)
"""Why such an attack is not run over a network."""

# Records that an attacker knows: as many as three, and no more than a search over them can bear.
_FEWEST, _MOST_KNOWN = 3, 512


class WholeModel(nn.Module):
    """A trained model in one piece, from the columns of all parties to its outputs, on copies of its parts.

    Args:
        bottoms: The passive parties' models.
        widths: Numeric columns of each.
        top: The label party's, which predicts.
    """

    def __init__(self, bottoms: Sequence[nn.Module], widths: Sequence[int], top: nn.Module) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(map(own_copy, bottoms))
        self.top = own_copy(top)
        self.widths = tuple(widths)
        self.eval()

    def forward(self, own: Tensor | Columns, columns: Tensor) -> Tensor:
        """Return the outputs, ``(n, k)``.

        Args:
            own: The label party's columns, ``(n, c)``; c may be 0.
            columns: The passive parties' numeric columns, side by side, ``(n, d)``.
        """
        parts = columns.split(self.widths, dim=1)
        sent = [bottom(part) for bottom, part in zip(self.bottoms, parts, strict=True)]
        nothing = isinstance(own, Tensor) and not own.shape[1]
        return call_top(self.top, sent, None if nothing else own)


class ScoreSeats:
    """Attacks on scores of predictions, run once when training has ended.

    Args:
        active: The label party.
        passives: The others by name.
        attacks: The attacks: each reads ``whole_model``.
        watch: Where the reasons of those are kept that could not be run.
        batches: Which records were trained on.
        seed: Draws the records whose columns an attacker is assumed to know: the same for all attacks.
    """

    def __init__(
        self,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        attacks: Sequence[Attack],
        *,
        watch: Watch,
        batches: Batches,
        seed: int,
    ) -> None:
        self._active, self._passives, self._attacks, self._watch = active, passives, attacks, watch
        self._batches, self._seed = batches, derive_seed(seed, "known columns", "scores")
        self._found: dict[str, list[ColumnReading]] = {}

    def readings(self, party: str) -> list[ColumnReading]:
        """Return what was read of one party's columns; nothing before training has ended."""
        return list(self._found.get(party, []))

    def read(self, step: int, monitor: Monitor) -> None:
        """Run the attacks on predictions of the model as it is, and log what they find.

        Args:
            step: Number of steps done.
            monitor: The log.
        """
        self._found = {name: [] for name in self._passives}
        for attack in self._attacks:
            own = copy.deepcopy(attack)
            try:
                found = self._read_by(own, step)
            except (AttackRefused, ArgumentError, HookError) as error:
                # A run that has just been trained is not lost for that.
                for name in self._passives:
                    self._watch.unavailable[name][hook_name(attack)] = str(error)
                continue
            for name, reading in found.items():
                label = unused(reading.attack, {one.attack: one for one in self._found[name]})
                self._found[name].append(replace(reading, attack=label))
                monitor.write(step, {f"feature_leak_of_scores/{name}/{label}": reading.share})

    def _read_by(self, attack: Attack, step: int) -> dict[str, ColumnReading]:
        """Return what one attack reads of each party's columns."""
        why = refusal(attack, self._active, self._passives)
        if why:
            raise AttackRefused(why)
        among = sent_records(self._active.data.train, self._batches)
        scored = _Scored.drawn(self._active, self._passives, among, known_share_of(attack), self._seed)
        view = scored.view(self._active, self._passives, needs_of(attack), step)
        random = PartyRandom(self._seed)
        if self._active.device.type == "cuda":
            random.use_cuda()
        with random:  # what an attack draws changes nothing else
            estimate, note = run_feature_attack(attack, view, scored.columns(self._passives).shape[1])
        widths = [party.data.width for party in self._passives.values()]
        estimates = estimate.detach().double().cpu().split(widths, dim=1)
        found = {
            name: scored.reading(attack, own, self._active, party, note)
            for own, (name, party) in zip(estimates, self._passives.items(), strict=True)
        }
        return {name: reading for name, reading in found.items() if reading is not None}


def refusal(attack: Attack, active: ActiveParty, passives: Mapping[str, PassiveParty]) -> str:
    """Return why an attack on scores of a whole model cannot be run; empty if it can."""
    if link_of(active.task.loss) is None:
        return f"needs scores that show outputs, and those of the {loss_name(active.task.loss)} loss are others"
    for name, party in passives.items():
        if party.data.train.columns.categorical.shape[1]:
            return f"{name} has categories, and a model that looks them up has no gradient to go back by"
        if party.data.transform is not None:
            return f"not where a party transforms its columns, as {name} does: those before or behind it are meant?"
    if any(party.weights.divided or party.weights.is_to_be_divided for party in (active, *passives.values())):
        return "needs the whole model, of which workers hold parts here"
    if not any(party.data.width for party in passives.values()):
        return "no passive party has columns of numbers"
    missing = sorted(needs_of(attack) - SHOWN)
    return f"needs {', '.join(fields_in_words(missing))}" if missing else ""


@dataclass(frozen=True)
class _Scored:
    """Records whose scores the attacker sees, the known ones first.

    Attributes:
        known: How many of them are known.
        of: Each party's records, by its name.
        scores: As published, of all.
    """

    known: int
    of: Mapping[str, Records]
    scores: Tensor

    @classmethod
    def drawn(
        cls,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        among: Tensor,
        known_share: float,
        seed: int,
    ) -> _Scored:
        """Return records that are drawn, and scored: known training records, and test records, where there are any.

        Args:
            active: The label party.
            passives: The others.
            among: Places of the training records that the known ones are drawn from.
            known_share: Share of these that are known.
            seed: Draws them.

        Raises:
            AttackRefused: If too few would be known, or nobody else is left to be judged by.
        """
        order = among[torch.randperm(len(among), generator=torch.Generator().manual_seed(seed))]
        count = round(known_share * len(among))
        known, others, tests = order[: min(count, _MOST_KNOWN)], order[count:], active.data.test.count
        if len(known) < _FEWEST:
            raise AttackRefused(f"needs {_FEWEST} known records, and of {len(among):,} it knows {len(known)}")
        if not tests and not len(others):
            raise AttackRefused("it knows all records that it would be judged by")
        judged = sampled_rows(tests) if tests else others[sampled_rows(len(others))]
        told = _Scored._scored(active, passives, "train", known, piece=3)
        asked = _Scored._scored(active, passives, "test" if tests else "train", judged, piece=4)
        together = {name: _joined(own, asked.of[name]) for name, own in told.of.items()}
        return cls(len(known), together, torch.cat([told.scores, asked.scores]))

    @classmethod
    def _scored(
        cls, active: ActiveParty, passives: Mapping[str, PassiveParty], part: Part, rows: Tensor, *, piece: int
    ) -> _Scored:
        of = {party.name: getattr(party.data, part).rows(rows) for party in (active, *passives.values())}
        return cls(0, of, predict_records(active, passives, of, piece=piece).scores)

    def columns(self, names: Iterable[str]) -> Tensor:
        """Return the numeric columns of some parties, side by side, ``(n, d)``."""
        return torch.cat([self.of[name].columns.numeric for name in names], dim=1)

    def view(self, active: ActiveParty, passives: Mapping[str, PassiveParty], needs: frozenset[str], step: int) -> View:
        """Return what the attacker holds and sees."""
        device, own = active.device, self.of[active.name].to(active.device)
        widths = [party.data.width for party in passives.values()]
        top = active.top if active.private_top is None else active.private_top.module
        seen: dict[str, Any] = {
            "scores": self.scores,
            "columns": own.columns.module_input(),
            "classes": active.task.classes,
            "known_columns": KnownColumns(own.ids[: self.known], self.columns(passives)[: self.known].to(device)),
        }
        if "whole_model" in needs:
            seen["whole_model"] = WholeModel([party.bottom for party in passives.values()], widths, top)
        shown = {field: value for field, value in seen.items() if field in needs}
        return View(party=active.name, step=step, ids=own.ids, **shown)

    def reading(
        self, attack: Attack, estimate: Tensor, active: ActiveParty, party: PassiveParty, note: str
    ) -> ColumnReading | None:
        """Return how far an estimate of all records, ``(n, d)``, recovers one party's columns; ``None``: none varies.

        Beside it stands ridge regression on the label party's own columns, which knows the same records.
        """
        truth, own = self.of[party.name].columns.numeric.cpu().double(), self.of[active.name].columns.numeric.cpu()
        known, rest = slice(self.known), slice(self.known, None)
        alone = fit_ridge(own[known], truth[known]).estimate(own[rest])
        shares, beside = (shares_recovered(found, truth[rest]) for found in (estimate[rest], alone))
        varies = truth[rest].amax(dim=0) > truth[rest].amin(dim=0)
        if not bool(varies.any()):
            return None
        columns = [
            ColumnShare(name, share, without=own_share)
            for name, share, own_share, told in zip(
                party.data.numeric_names, shares.tolist(), beside.tolist(), varies.tolist(), strict=True
            )
            if told
        ]
        return ColumnReading(
            attack=hook_name(attack),
            known_share=known_share_of(attack),
            share=shares[varies].mean().item(),
            told=sum(one.share > TOLD for one in columns),
            records=len(truth[rest]),
            columns=sorted(columns, key=lambda one: -one.share),
            left_out=[name for name, told in zip(party.data.numeric_names, varies.tolist(), strict=True) if not told],
            without_messages=beside[varies].mean().item(),
            note=note,
            standing_still=True,
            knows_model=True,
            of_scores=True,
        )


def _joined(first: Records, second: Records) -> Records:
    """Return records of two parts as one: those that were taken, without labels."""
    columns = Columns(*(torch.cat(pair) for pair in zip(first.columns, second.columns, strict=True)))
    return Records(torch.cat([first.ids, second.ids]), columns)
