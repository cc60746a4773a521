"""Activations cross once and nothing comes back: what is learned is what one would learn from them in one place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl import training
from splitvfl.conversation import converse
from splitvfl.data.batches import Batches
from splitvfl.exchange import kept
from splitvfl.exchange.one_way import OneWay
from splitvfl.messages import Message, encode
from splitvfl.schedule import EarlyStopping
from splitvfl.training import Trainer
from tests.builders import ACTIVE, WIDTH, active_party, bottom_model, party_data, sgd, small_trainer


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 training and 24 test records cross in pieces of 10: 5 and 3."""
    monkeypatch.setattr(kept, "PIECE_ROWS", 10)


def one_way(names: tuple[str, ...] = ("telecom",), **settings: Any) -> Trainer:
    return small_trainer(names, **{"exchange": OneWay(), "optimizer": sgd, **settings})


def weights(trainer: Trainer) -> list[Tensor]:
    return [weight.detach().clone() for weight in trainer.active.top.parameters()]


@pytest.mark.parametrize("names", [("telecom",), ("shop", "telecom")])
def test_the_top_is_the_one_trained_on_the_same_activations_in_one_place(names: tuple[str, ...]) -> None:
    trainer = one_way(names, seed=4)
    before = [weight.clone() for party in trainer.passives.values() for weight in party.bottom.parameters()]
    trainer.fit(3)

    alone, bottoms = active_party(len(names)), [bottom_model(name) for name in names]
    train = [party_data(name, width=5).train.columns.numeric for name in names]
    with torch.no_grad():
        inputs = torch.cat(
            [*(bottom(rows) for bottom, rows in zip(bottoms, train, strict=True)), alone.data.train.columns.numeric], 1
        )
    optimizer, labels = sgd(alone.top.parameters()), alone.data.train.labels
    assert labels is not None
    for epoch in range(3):
        for rows in Batches(48, 16, seed=4).epoch(epoch):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(alone.top(inputs[rows])[:, 0], labels[rows]).backward()
            optimizer.step()
    # Rows of 10 and of 48 go through the bottom's matrices in another order of sums.
    torch.testing.assert_close(weights(trainer), [weight.detach() for weight in alone.top.parameters()])
    after = [weight for party in trainer.passives.values() for weight in party.bottom.parameters()]
    assert all(map(torch.equal, before, after))
    assert set(trainer.test) == {"auc", "loss"}


def test_each_activation_crosses_once_and_nothing_but_a_number_comes_back() -> None:
    crossed: list[Message] = []
    trainer = one_way(record=crossed.append)
    trainer.fit(4)
    trainer.fit(5)
    rows = [one for one in crossed if one.kind == "activation"]
    assert [tuple(one.payload.shape) for one in rows] == [(10, WIDTH)] * 4 + [(8, WIDTH)] + [(10, WIDTH)] * 2 + [(4, 4)]
    assert [bytes(one.payload.numpy()) for one in crossed if one.receiver != ACTIVE] == [
        b'{"pieces": 0}',
        b'{"pieces": 8}',
    ]


class Everything:
    """Every message of every conversation of a run, by receiver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: dict[str, list[bytes]] = {}

        def recorded(halves: Any, *, turns: Any = None, record: Any = None) -> dict[str, Any]:
            return converse(halves, turns=turns, record=self.see)

        monkeypatch.setattr(training, "converse", recorded)

    def see(self, message: Message) -> None:
        self.sent.setdefault(message.receiver, []).append(encode(message))


def with_labels(trainer: Trainer, labels: Tensor) -> None:
    train = trainer.active.data.train.labels
    assert train is not None
    train.copy_(labels)


@pytest.mark.parametrize("stopping", [None, EarlyStopping(patience=1, validation_every=4)])
def test_no_byte_that_a_passive_party_receives_depends_on_labels(
    stopping: EarlyStopping | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, ends = [], []
    for labels in (torch.arange(48) % 2, torch.arange(48) % 3 == 0, torch.arange(48) < 24, None):
        everything = Everything(monkeypatch)
        trainer = one_way(("telecom", "shop"), early_stopping=stopping)
        if labels is not None:
            with_labels(trainer, labels.float())
        trainer.fit(8)
        seen.append({name: everything.sent[name] for name in ("telecom", "shop")})
        ends.append((trainer.step, weights(trainer)))
        states = {name: party.state_dict() for name, party in trainer.passives.items()}
        assert not any(state["stopped"] or state["epoch"] for state in states.values())
    assert all(one == seen[0] for one in seen)
    assert [len(sent) for sent in seen[0].values()] == [2, 2]  # terms, and how many pieces have arrived
    assert not all(map(torch.equal, ends[0][1], ends[1][1]))  # and the labels made a difference
    assert (len({steps for steps, _ in ends}) > 1) == (stopping is not None)
