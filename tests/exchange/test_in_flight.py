"""Batches in flight: how stale an activation is is a number, and nothing under way is ever saved or evaluated."""

from __future__ import annotations

import copy
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from splitvfl.attacks import NormAttack
from splitvfl.defenses import GaussianIR, Isotropic
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, ProtocolError
from splitvfl.exchange.noise import HdpNoiseSettings
from splitvfl.exchange.split import Split
from splitvfl.hooks import View
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status
from splitvfl.system.signals import Interrupted
from tests.builders import ACTIVE, WIDTH, awaited, passive_party, same, sgd, small_trainer, weights

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
}


def trained(in_flight: int, *, epochs: int = 3, names: Sequence[str] = ("telecom",), **settings: Any) -> Trainer:
    settings = {"batch_size": 7, "optimizer": OPTIMIZERS["adam"], "audit": False, **settings}
    trainer = small_trainer(names, exchange=Split(in_flight=in_flight), **settings)
    trainer.fit(epochs)
    return trainer


def by_hand(
    trainer: Trainer, in_flight: int, epochs: int, optimizer: Any, checkpoint_every: int | None = None
) -> dict[str, Tensor]:
    """Weights after training that shares no code with the exchange: a copy of every bottom for every batch."""
    active, own = trainer.active, trainer.active.data.train
    bottoms = {name: party.bottom for name, party in trainer.passives.items()}
    columns = {name: party.data.train.columns.numeric for name, party in trainer.passives.items()}
    steps = {name: optimizer(bottom.parameters()) for name, bottom in bottoms.items()}
    of_top = optimizer(active.top.parameters())
    assert own.labels is not None
    waiting: list[dict[str, tuple[nn.Module, Tensor, Tensor]]] = []

    def learn() -> None:
        for name, (apart, activation, gradient) in waiting.pop(0).items():
            apart.zero_grad()
            activation.backward(gradient)
            for weight, kept in zip(bottoms[name].parameters(), apart.parameters(), strict=True):
                weight.grad = kept.grad
            steps[name].step()

    done = 0
    for epoch in range(epochs):
        for rows in trainer.batches.epoch(epoch):
            apart = {name: copy.deepcopy(bottom) for name, bottom in bottoms.items()}
            activations = {name: apart[name](columns[name][rows]) for name in bottoms}
            leaves = {name: one.detach().requires_grad_() for name, one in activations.items()}
            of_top.zero_grad()
            logits = active.top(torch.cat([*leaves.values(), own.columns.numeric[rows]], dim=1))[:, 0]
            functional.binary_cross_entropy_with_logits(logits, own.labels[rows]).backward()
            of_top.step()
            waiting.append({name: (apart[name], activations[name], leaves[name].grad) for name in bottoms})  # type: ignore[misc]
            if len(waiting) > in_flight:
                learn()
            done += 1
            while checkpoint_every and done % checkpoint_every == 0 and waiting:
                learn()
        while waiting:
            learn()
    return weights(trainer)


@pytest.mark.parametrize(("names", "optimizer"), [(("telecom",), "sgd"), (("telecom", "shop"), "adam")])
@pytest.mark.parametrize(("in_flight", "checkpoint_every"), [(1, None), (2, 3), (16, None)])
def test_an_activation_has_not_seen_the_gradients_of_so_many_steps(
    in_flight: int, checkpoint_every: int | None, optimizer: Any, names: Sequence[str]
) -> None:
    optimizer = OPTIMIZERS[optimizer]
    settings: dict[str, Any] = {"optimizer": optimizer, "checkpoint_every": checkpoint_every, "names": names}
    ours = trained(in_flight, **settings)
    theirs = small_trainer(names, batch_size=7, optimizer=optimizer)

    expected = by_hand(theirs, in_flight, 3, optimizer, checkpoint_every)

    # The same operations on the same numbers, whichever order parties come in.
    found = weights(ours)
    assert all(torch.allclose(found[name], expected[name], rtol=0, atol=1e-6) for name in expected)
    assert not same(found, weights(trained(0, **settings)))


def test_none_in_flight_is_the_usual_step_to_the_bit() -> None:
    by_hand_weights = by_hand(small_trainer(batch_size=7, optimizer=OPTIMIZERS["adam"]), 0, 3, OPTIMIZERS["adam"])
    assert all(
        torch.allclose(one, by_hand_weights[name], rtol=0, atol=1e-6) for name, one in weights(trained(0)).items()
    )


def test_two_runs_are_equal_to_the_bit_with_dropout_too() -> None:
    assert same(weights(trained(2, dropout=0.3)), weights(trained(2, dropout=0.3)))


def test_messages_cross_in_the_order_of_steps_and_all_of_an_epoch_before_the_next() -> None:
    said: list[Message] = []
    trainer = trained(2, epochs=2, record=said.append)

    steps = 2 * len(trainer.batches)
    for kind in ("activation", "gradient"):
        assert [message.step for message in said if message.kind == kind] == list(range(steps))
    places = {(message.kind, message.step): number for number, message in enumerate(said)}
    assert places["gradient", steps // 2 - 1] < places["activation", steps // 2]


def test_early_stopping_keeps_weights_that_have_seen_every_gradient(tmp_path: Path) -> None:
    stopping = EarlyStopping(patience=2, validation_every=4)
    trainer = trained(3, epochs=4, early_stopping=stopping, log_dir=tmp_path / "run")
    again = trained(3, epochs=4, early_stopping=stopping)
    assert same(weights(trainer), weights(again))
    assert trainer.training.figures == again.training.figures


def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_been() -> None:
    whole = trained(3, epochs=4, dropout=0.2)

    half = small_trainer(
        exchange=Split(in_flight=3), batch_size=7, optimizer=OPTIMIZERS["adam"], dropout=0.2, audit=False
    )
    half.fit(2)
    half.fit(4)

    assert same(weights(whole), weights(half))


class Keeper:
    """An attack that keeps what it is shown."""

    name, needs = "keeper", frozenset({"gradient", "activation", "weights", "columns"})

    def __init__(self) -> None:
        self.seen: list[View] = []

    def __call__(self, view: View, /) -> Tensor:
        self.seen.append(view)
        return view.gradient.norm(dim=1)

    def __deepcopy__(self, memo: Any) -> Keeper:
        return self


def test_an_attack_is_shown_the_weights_that_made_the_activation_and_judged_by_the_labels_of_its_records() -> None:
    keeper = Keeper()
    trainer = small_trainer(exchange=Split(in_flight=3), attacks=[keeper], batch_size=7)
    bottom = trainer.passives["telecom"].bottom

    trainer.fit(2)

    assert [view.step for view in keeper.seen] == list(range(2 * len(trainer.batches)))
    for view in keeper.seen:
        with torch.no_grad():
            made = torch.func.functional_call(bottom, dict(view.weights), view.columns)
        assert torch.equal(made, view.activation)
        assert torch.equal(view.ids, trainer.active.data.train.ids[_rows(trainer, view.step)])


def test_leaks_are_judged_by_the_labels_of_the_records_that_a_gradient_is_about() -> None:
    """With weights that never change, messages are the same however many batches are in flight: so are all figures."""
    still: Any = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.0), "attacks": [NormAttack()]}
    still["audit"] = True

    usual, ahead = (trained(in_flight, **still).summaries("telecom") for in_flight in (0, 3))

    assert {"norm", "auditor-ratio"} <= usual.keys()
    assert repr(usual) == repr(ahead)


def _rows(trainer: Trainer, step: int) -> Tensor:
    epoch, place = divmod(step, len(trainer.batches))
    return trainer.batches.epoch(epoch)[place]


def test_ctrl_c_brings_what_is_under_way_to_an_end_before_it_is_saved(tmp_path: Path) -> None:
    """The run that goes on begins where nothing is under way, as one that was to save there anyway."""

    def interrupt(status: Status) -> None:
        if status.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    def trainer(**settings: Any) -> Trainer:
        return small_trainer(exchange=Split(in_flight=2), batch_size=7, log_dir=tmp_path, audit=False, **settings)

    said: list[str] = []
    stopped = trainer()
    stopped.training.notify = said.append
    with pytest.raises(Interrupted):
        stopped.fit(1, progress=interrupt)
    resumed = trainer()
    assert resumed.resume() == 4
    resumed.fit(1)

    planned = small_trainer(exchange=Split(in_flight=2), batch_size=7, checkpoint_every=4, audit=False)
    planned.fit(1)
    assert same(weights(resumed), weights(planned))
    assert said == [
        "telecom brought its batches in flight to an end for this stop. A run that goes on from here is as good, and "
        "ends with other weights than one that was not stopped"
    ]
    with pytest.raises(CheckpointError, match="checkpoint every"):
        trainer(checkpoint_every=4).resume()


def test_messages_that_are_sent_again_are_the_same_with_noise_and_all(tmp_path: Path) -> None:
    """Of two messages with the same noise on other numbers the difference has none."""
    said: dict[str, list[Message]] = {"first": [], "again": []}

    def trainer(where: str) -> Trainer:
        noise = [GaussianIR(clip=1.0, sigma=0.5), Isotropic(ratio=1.0)]
        return small_trainer(
            exchange=Split(in_flight=2),
            batch_size=7,
            checkpoint_every=3,
            audit=False,
            defenses=noise,
            log_dir=tmp_path,
            record=said[where].append,
        )

    def stop(status: Status) -> None:
        if status.step == 5:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        trainer("first").fit(1, progress=stop)
    again = trainer("again")
    assert again.resume() == 3
    again.fit(1)

    first = {(one.kind, one.step): one.payload for one in said["first"]}
    second = {(one.kind, one.step): one.payload for one in said["again"]}
    twice = first.keys() & second.keys()
    assert {("activation", 4), ("gradient", 4)} <= twice
    assert all(torch.equal(first[one], second[one]) for one in twice)


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([(1, 0.1, 6)], "expected gradient of step 0 from bank, got gradient of step 1"),
        ([(0, 0.1, 5)], "expected gradient of step 0 from bank to be 6 x 4"),
        ([(0, math.nan, 6)], "gradient of step 0 from bank holds NaN"),
        ([(0, 1e38, 6)], "gradients of the weights of telecom at step 0 overflow"),
        ([(0, 0.1, 6), (0, 0.1, 6)], "expected gradient of step 1 from bank, got gradient of step 0"),
        ([(0, 0.1, 6), (1, math.inf, 6)], "gradient of step 1 from bank holds NaN"),
    ],
)
def test_a_gradient_that_does_not_fit_its_activation_changes_no_weight(
    answers: list[tuple[int, float, int]], complaint: str
) -> None:
    party = passive_party("telecom", optimizer=sgd)
    side = Split(in_flight=2).passive(party, ACTIVE)
    batches = [party.train_batch(torch.arange(6) + 6 * step) for step in range(2)]
    before = [weight.clone() for weight in party.module.parameters()]

    def ours() -> Half:
        for step, batch in enumerate(batches):
            yield from side.step(batch, step)
        yield from side.drain()

    def theirs() -> Half:
        for step in range(2):
            yield Outbox(wait=(awaited("telecom", step=step, shape=(6, WIDTH)),))
        for step, value, rows in answers:
            gradient = torch.full((rows, WIDTH), value)
            yield Outbox(send=(Message(ACTIVE, "telecom", "gradient", step, gradient),))

    with pytest.raises(ProtocolError, match=complaint):
        converse({"telecom": ours(), ACTIVE: theirs()})

    changed = [not torch.equal(one, other) for one, other in zip(party.module.parameters(), before, strict=True)]
    assert any(changed) == (len(answers) > 1)  # by the one before, which fitted
    assert side.under_way
    list(side.open())
    assert not side.under_way


def test_calculated_noise_is_refused_beside_them() -> None:
    with pytest.raises(ConfigError, match="leave in_flight out"):
        Split(in_flight=1, noise=HdpNoiseSettings(epsilon=1.0, delta=1e-3))


@pytest.mark.parametrize("in_flight", [-1, 17])
def test_a_number_that_makes_no_sense_is_refused(in_flight: int) -> None:
    with pytest.raises(ArgumentError, match="0 to 16"):
        Split(in_flight=in_flight)


def test_parties_agree_on_it() -> None:
    assert Split().terms() == Split(in_flight=0).terms()
    assert Split(in_flight=2).terms() | {"batches in flight": 3} == Split(in_flight=3).terms()
