"""Attacks on membership: from what the finished model makes of a record, was it trained on?

The parties of a training know whom they trained on. Somebody who gets to see later what the label party sees (the
activations of records, and its loss of them, which takes their labels) need not: a new owner of the label party's half,
or who reads its logs. An attack is shown training and test records in one order, under new ids, and is judged by how
well it tells them apart. Everything is computed anew, in evaluation mode, behind all defenses of predictions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, AttackRefused, HookError
from splitvfl.exchange.prediction import predict_records
from splitvfl.hooks import (
    Attack,
    View,
    call_attack,
    fields_in_words,
    hook_name,
    known_share_of,
    needs_of,
    note_of,
    unused,
)
from splitvfl.leakage.membership import MembershipLeak
from splitvfl.leakage.monitor import Monitor
from splitvfl.leakage.watching import Watch
from splitvfl.learning.batches import Batches
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.column_seats import sent_records
from splitvfl.run.feature_systems import sampled_rows

SHOWN: Final = frozenset({"losses", "received_activation", "known_members", "known_others"})
"""View fields that an attack on membership can have."""

# Of each kind, the known ones left out: with fewer an interval covers half of the scale.
_FEWEST: Final = 20


class MembershipSeat:
    """Attacks on membership, run once when training has ended.

    Args:
        active: The label party.
        passives: The others by name.
        attacks: The attacks.
        watch: Where the reasons of those are kept that could not be run.
        batches: Which records were trained on.
        seed: Draws which records are known, and the order in which they are shown.
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
        self._active, self._passives, self._attacks, self._watch = active, dict(passives), attacks, watch
        self._batches, self._seed = batches, derive_seed(seed, "membership")
        self.found: list[MembershipLeak] = []

    def read(self, step: int, monitor: Monitor) -> None:
        """Run the attacks on the model as it is, and log what they find.

        Args:
            step: Number of steps done.
            monitor: The log.
        """
        self.found = []
        if not self._attacks:
            return
        shown: _Shown | None = None
        for attack in self._attacks:
            try:
                shown = shown or _Shown.drawn(self._active, self._passives, self._batches, self._seed)
                found = self._judged(copy.deepcopy(attack), shown, step)
            except (AttackRefused, ArgumentError, HookError) as error:
                for name in self._passives:
                    self._watch.unavailable[name][hook_name(attack)] = str(error)
                continue
            self.found.append(found)
            figures = {"auc": found.auc, "hits": found.hits}
            monitor.write(
                step, {f"membership/{what}/{found.attack}": one for what, one in figures.items() if one is not None}
            )

    def _judged(self, attack: Attack, shown: _Shown, step: int) -> MembershipLeak:
        needs = needs_of(attack)
        share = known_share_of(attack) if needs & {"known_members", "known_others"} else 0.0
        known = shown.known(share)
        view, asked = shown.view(self._active.name, known, needs, step), ~known
        for kind in (shown.member & asked, ~shown.member & asked):
            if int(kind.sum()) < _FEWEST:
                raise AttackRefused(
                    f"needs {_FEWEST} training and {_FEWEST} test records that it is judged by, and has "
                    f"{int((shown.member & asked).sum())} and {int((~shown.member & asked).sum())}"
                )
        with PartyRandom(self._seed):  # what an attack draws changes nothing else
            scores = call_attack(attack, view).detach().double().cpu()
        if scores.shape != known.shape or not bool(torch.isfinite(scores).all()):
            raise ArgumentError(f"{hook_name(attack)}: expected {len(known)} finite scores, got {tuple(scores.shape)}")
        label = unused(hook_name(attack), {one.attack: one for one in self.found})
        return MembershipLeak.of(
            label, scores[asked], shown.member[asked], known=int(known.sum()), note=note_of(attack)
        )


class _Shown:
    """Records in one order, whether they were trained on, and what the finished model makes of them.

    Args:
        member: Whether each was trained on, ``(n,)``, bool.
        losses: Of each, ``(n,)``, float64.
        activation: What was received of each, ``(n, width)``, of all passive parties side by side; ``None``: nobody
            sees it.
    """

    def __init__(self, member: Tensor, losses: Tensor, activation: Tensor | None) -> None:
        self.member, self._losses, self._activation = member, losses, activation

    @classmethod
    def drawn(cls, active: ActiveParty, passives: Mapping[str, PassiveParty], batches: Batches, seed: int) -> _Shown:
        """Return as many training and test records as there are, 2 000 of each at most.

        Raises:
            AttackRefused: If there is no record of one kind.
        """
        trained, tests = sent_records(active.data.train, batches), active.data.test.count
        if not len(trained) or not tests:
            raise AttackRefused("needs training records and test records, to be told apart")
        random = torch.Generator().manual_seed(seed)
        members = trained[torch.randperm(len(trained), generator=random)[: len(sampled_rows(len(trained)))]]
        rows = {"train": members, "test": sampled_rows(tests)}
        parts = [
            _made_of(active, passives, part, places, piece=piece)
            for piece, (part, places) in enumerate(rows.items(), start=5)
        ]
        losses = torch.cat([losses for losses, _ in parts])
        activations = [activation for _, activation in parts if activation is not None]
        member = torch.arange(len(losses)) < len(members)
        order = torch.randperm(len(losses), generator=random)
        activation = torch.cat(activations)[order] if len(activations) == 2 else None
        return cls(member[order], losses[order], activation)

    def known(self, share: float) -> Tensor:
        """Return which records an attacker knows, ``(n,)``, bool: the first of each kind, which are in no order."""
        known = torch.zeros(len(self.member), dtype=torch.bool)
        for kind in (self.member, ~self.member):
            places = kind.nonzero().squeeze(1)
            known[places[: round(share * len(places))]] = True
        return known

    def view(self, party: str, known: Tensor, needs: frozenset[str], step: int) -> View:
        """Return what an attacker sees, on the CPU.

        Raises:
            AttackRefused: If it needs what nobody sees.
        """
        ids = torch.arange(len(self.member))
        seen: dict[str, Any] = {
            "losses": self._losses,
            "known_members": ids[known & self.member],
            "known_others": ids[known & ~self.member],
        }
        if self._activation is not None:
            seen["received_activation"] = self._activation
        missing = sorted(needs - seen.keys())
        if missing:
            raise AttackRefused(f"needs {', '.join(fields_in_words(missing))}")
        return View(party=party, step=step, ids=ids, **{field: seen[field] for field in needs})


def _made_of(
    active: ActiveParty, passives: Mapping[str, PassiveParty], part: str, rows: Tensor, *, piece: int
) -> tuple[Tensor, Tensor | None]:
    """Return each record's loss and, where the label party receives it, the activation of each."""
    records = {party.name: getattr(party.data, part).rows(rows) for party in (active, *passives.values())}
    sent: dict[str, list[Tensor]] = {name: [] for name in passives}

    def keep(message: Message) -> None:
        if message.kind == "activation" and message.sender in sent:
            sent[message.sender].append(message.payload)

    outputs = predict_records(active, passives, records, piece=piece, record=keep).outputs
    labels = records[active.name].labels
    assert labels is not None, "the label party has them"
    loss = active.task.loss
    losses = [
        loss(outputs[row : row + 1], labels[row : row + 1].to(outputs.device)).detach() for row in range(len(rows))
    ]
    if active.sums_parts or not all(sent.values()):
        return torch.stack(losses).double().cpu(), None
    received = [torch.cat([active.received(one).float() for one in parts]) for parts in sent.values()]
    return torch.stack(losses).double().cpu(), torch.cat(received, dim=1).cpu()
