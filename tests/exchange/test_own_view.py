"""An exchange of one's own says what its views show, and neither the cut nor a party knows of it."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from splitvfl.cut.views import Shown
from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError
from splitvfl.exchange.base import Side
from splitvfl.exchange.split import ActiveSide, Split
from splitvfl.exchange.split_step import gradient_of, update
from splitvfl.hooks import View, ViewField
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.builders import same, small_trainer, weights


class RankView(View):
    """A view with a field that no other exchange has."""

    ranks = ViewField[Tensor]("Place of each record's gradient among those of the batch by its norm, ``(n,)``.")


class Ranks(Split):
    """Splits as usual, and tells how long gradients are in another message."""

    name = "ranks"

    def active(self, party: ActiveParty) -> Side:
        return _Tells(party)

    def passive(self, party: PassiveParty, active: str) -> Side:
        return _Told(party, active)


class _Tells(ActiveSide):
    def step(self, batch: Records, step: int) -> Half:
        half = super().step(batch, step)
        inbox = yield next(half)
        gradients: Outbox = half.send(inbox)
        ranks = [(one.receiver, one.payload.norm(dim=1).argsort().argsort().float()) for one in gradients.send]
        yield gradients
        yield Outbox(send=tuple(Message(self._party.name, name, "ranks", step, rank) for name, rank in ranks))
        return (yield from half)


class _Told(Side):
    shown = Shown(frozenset({"ranks"}), RankView)

    def __init__(self, party: PassiveParty, active: str) -> None:
        self._party, self._active = party, active

    def step(self, batch: Records, step: int) -> Half:
        party, active = self._party, self._active
        activation = party.activate(batch)
        gradient = yield from gradient_of(party, activation.detach(), batch, step, active)
        inbox = yield Outbox(wait=(Expected(active, "ranks", step, (torch.float32,), (batch.count,)),))
        party.weights.clear_gradients()
        party.observe(activation, batch, step, ranks=inbox[active].payload)
        activation.backward(gradient)
        update(party, step, active)


class ReadsRanks:
    """An attack that keeps what it was shown."""

    name: ClassVar[str] = "ranks"
    needs: ClassVar[frozenset[str]] = frozenset({"ranks", "activation"})
    seen: ClassVar[list[View]] = []

    def __call__(self, view: View, /) -> Tensor:
        self.seen.append(view)
        assert isinstance(view, RankView)
        return view.ranks


def test_an_exchange_of_ones_own_shows_a_field_of_its_own() -> None:
    ReadsRanks.seen.clear()
    trainer, plain = small_trainer(exchange=Ranks(), attacks=[ReadsRanks()], audit=True), small_trainer()
    trainer.fit(1)
    plain.fit(1)

    assert same(weights(trainer), weights(plain)), "the step is that of split"
    assert len(ReadsRanks.seen) == trainer.step
    for view in ReadsRanks.seen:
        assert isinstance(view, RankView)
        assert view.fields == ("activation", "ranks")
        assert sorted(view.ranks.tolist()) == list(range(len(view.ids)))
    # Its own initial weights decide in which direction; that it tells labels is the point.
    assert abs(trainer.watch.leaks["telecom"]["ranks"].auc - 0.5) > 0.3


def test_no_label_is_in_what_it_shows() -> None:
    ReadsRanks.seen.clear()
    trainer = small_trainer(exchange=Ranks(), attacks=[ReadsRanks()])
    trainer.fit(1)
    for view in ReadsRanks.seen:
        labels = trainer.labels_of(view.ids)
        assert not any(
            tensor.shape == labels.shape and torch.equal(tensor.double(), labels) for tensor in view.tensors()
        )
    with pytest.raises(ArgumentError, match="fields of Labelled other than labels"):
        Shown(frozenset({"labels"}), type("Labelled", (View,), {"labels": ViewField("Labels.")}))


def test_what_a_side_does_not_show_no_attack_gets() -> None:
    class Greedy(ReadsRanks):
        needs: ClassVar[frozenset[str]] = frozenset({"gradient", "ranks"})

    trainer = small_trainer(exchange=Ranks(), attacks=[Greedy()])
    assert trainer.watch.unavailable["telecom"] == {"ranks": "needs the gradient of each record"}
    party, batch = trainer.passives["telecom"], trainer.passives["telecom"].train_batch(torch.arange(4))
    party.observers.append(ReadsRanks())
    with pytest.raises(ArgumentError, match=r"telecom received gradient, and its side of the exchange does not say so"):
        party.observe(party.activate(batch), batch, 0, gradient=torch.zeros(4, 4))


def test_what_is_shown_is_said_once_and_for_all() -> None:
    shown = _Told.shown
    with pytest.raises(dataclasses.FrozenInstanceError):
        shown.received = frozenset({"gradient"})  # type: ignore[misc]
    with pytest.raises(ArgumentError, match="expected fields of View other than labels, got ranks"):
        Shown(frozenset({"ranks"}))
