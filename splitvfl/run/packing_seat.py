"""A party of an experiment that deviates from an encrypted protocol: what it reads, and who judges it.

Its engine packs single values where sums were agreed on. The harness knows all keys, and so opens what whole plaintexts
would have told beside what came back. Over a network a party that deviates is nobody's setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor

from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange, Side
from splitvfl.hooks import Attack, View, needs_of
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.packed_values import STRENGTHS, PackedReading, PackedScores, PackedValues
from splitvfl.leakage.watching import Watch
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.seats import LabelBook

if TYPE_CHECKING:
    from splitvfl.crypto.engine import Engine
    from splitvfl.crypto.owner import Owner

PACKED: Final = "packed_values"
"""The view field of attacks on what a deviating party unpacks."""


class Deviating(Protocol):
    """An engine that reads single values, as :class:`splitvfl.attacks.PackingEngine`.

    Attributes:
        told: Called with what was read of each request.
        open_whole: Opens ciphertexts under the key of a modulus as a whole, for the figure of the published protocol.
    """

    told: Callable[[PackedValues], None]
    open_whole: Callable[[int, Tensor], list[int]] | None


def deviating(exchange: Exchange, engines: Mapping[str, Any], active: str, names: Sequence[str]) -> dict[str, Exchange]:
    """Return the exchange of each party, where some deviate.

    Args:
        exchange: The agreed one.
        engines: By party, what it computes with in place of the agreed engine.
        active: The label party's name.
        names: All parties.

    Raises:
        ConfigError: If there is no such party, or it multiplies nothing that others have encrypted.
    """
    for name in engines:
        why = exchange.why_not_malicious(name, active=active, names=names)
        if why:
            raise ConfigError(f"malicious.{name}: {why}")
    return {name: exchange.with_engine(engines[name]) if name in engines else exchange for name in names}


class PackingSeat:
    """Parties that deviate, and what they read.

    Args:
        active: The label party.
        passives: The others by name.
        engines: By party, the engine of one that deviates.
        attacks: Attacks on labels that read ``packed_values``.
        watch: Where attacks on labels are kept.
        labels_of: The labels to judge by.
        exchange: How a step is talked through.
        sides: Sides of all parties, which have keys once they are opened.
    """

    def __init__(
        self,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        engines: Mapping[str, Engine],
        *,
        attacks: Sequence[Attack],
        watch: Watch,
        labels_of: LabelBook,
        exchange: Exchange,
        sides: Mapping[str, Side],
    ) -> None:
        self._active, self._passives, self._sides, self._exchange = active, passives, sides, exchange
        self._scores: dict[tuple[str, str, str], PackedScores] = {}
        self._latest: dict[str, Tensor] = {}
        self._sorted = active.data.train.ids.cpu().sort()
        for name, engine in engines.items():
            # An engine of another kind deviates in another way, of which nothing is known here.
            if hasattr(engine, "told"):
                engine.told = partial(self._note, name)
                engine.open_whole = self._opened  # type: ignore[attr-defined]
            for attack in attacks if name in passives else ():
                self._seat(passives[name], attack, watch, labels_of)

    def _seat(self, party: PassiveParty, attack: Attack, watch: Watch, labels_of: LabelBook) -> None:
        leak = Leak(attack, remove=lambda: None, classes=self._active.task.classes)
        watch.add(party.name, leak)
        party.observers.append(_Observer(leak, labels_of, partial(self._latest.__getitem__, party.name)))

    def _opened(self, modulus: int, ciphertexts: Tensor) -> list[int]:
        return self._keeper(modulus)[1].decrypt(ciphertexts)

    def _keeper(self, modulus: int) -> tuple[str, Owner]:
        """Return who has a key, and its owner."""
        for name, side in self._sides.items():
            owner = side.owner_of(modulus)
            if owner is not None:
                return name, owner
        raise AssertionError("a key belongs to one of the parties")

    def _note(self, name: str, packed: PackedValues) -> None:
        owner, _ = self._keeper(packed.modulus)
        # Of a step that no passive party has ended: until it is opened for them they wait.
        ids = self._passives.get(name, next(iter(self._passives.values()))).batch_ids
        assert ids is not None, "parts are computed before they are sent"
        sorted_ids, order = self._sorted
        places = order[torch.searchsorted(sorted_ids, ids.cpu())]
        labels = name in self._passives and owner not in self._passives
        if name in self._passives and not labels:
            return  # parts of another passive party, which may have ended the step by now
        truth = self._true_labels() if labels else None
        for strength, values in zip(STRENGTHS, (packed.agreed, packed.whole), strict=True):
            read, here = values[: len(places)], places[: len(values)]
            scores = self._scores.setdefault((name, owner, strength), PackedScores(self._active.data.train.count))
            expected = self._parts(owner, here) if truth is None else truth[here]
            scores.add(packed, read, here, expected, labels=labels, sent=places)
        if labels:
            known = torch.full((len(places),), torch.nan, dtype=torch.float64)
            known[: len(packed.agreed)] = packed.agreed[: len(places)]
            self._latest[name] = known

    def _true_labels(self) -> Tensor:
        labels = self._active.data.train.labels
        assert labels is not None, "they are what is trained on"
        return labels.cpu()

    def _parts(self, owner: str, places: Tensor) -> Tensor:
        """Return parts of the logits as their owner's bottom computes them."""
        party = self._passives[owner]
        with torch.no_grad():
            parts: Tensor = party.bottom(party.train_batch(places).columns.module_input())
        return parts.squeeze(1).cpu().double()

    def readings(self) -> list[PackedReading]:
        """Return what was read, what came back first."""
        found = []
        for (name, owner, strength), scores in self._scores.items():
            labels = name in self._passives and owner not in self._passives
            found.append(
                scores.reading(
                    self._true_labels() if labels else None,
                    party=name,
                    owner=owner,
                    reads="labels" if labels else "parts",
                    strength=strength,
                    most_columns=self._exchange.most_sums,
                )
            )
        return [one for one in found if one is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return what was read so far."""
        return {"scores": [[*key, scores.state_dict()] for key, scores in self._scores.items()]}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._scores = {}
        for name, owner, strength, kept in state.get("scores", []):
            scores = PackedScores(self._active.data.train.count)
            scores.load_state_dict(kept)
            self._scores[name, owner, strength] = scores


class _Observer:
    """A deviating passive party's attack on labels, which sees what its engine has unpacked in the step."""

    def __init__(self, leak: Leak, labels_of: LabelBook, latest: Callable[[], Tensor]) -> None:
        self.needs = leak.needs - {PACKED} | {"aggregated_gradient"}
        self._leak, self._labels_of, self._latest = leak, labels_of, latest

    def __call__(self, view: View, /) -> None:
        values = self._latest().to(view.device)
        self._leak.see(view.granting(packed_values=values), self._labels_of(view.ids))


def reads_packed(attack: object) -> bool:
    """Return whether an attack reads what a deviating party unpacks."""
    return PACKED in needs_of(attack)
