"""A private top predicts, and nothing that crosses depends on it: messages are the same to the bit without it."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from splitvfl.app.trainer import Trainer
from splitvfl.attacks import LeastSquaresAttack
from splitvfl.data.columns import Columns
from splitvfl.defenses import AxisSumKL, GaussianIR, Isotropic, RandomisedResponse
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, ProtocolError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.prediction import predict
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from splitvfl.hooks import Defense, Secrets
from splitvfl.leakage.monitor import read_metrics
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.learning.tasks import task_for
from splitvfl.messaging import conversation
from splitvfl.messaging.messages import Message
from splitvfl.models import MLP, Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty, adam
from splitvfl.party.top_model import own_copies
from splitvfl.run import trainer as training
from splitvfl.run.training import Status
from tests.builders import ACTIVE, WIDTH, bottom_model, party_data, passive_party, same, seeded, sgd, top_model, weights

PARTS = ("validation", "test")


def private_model(passives: int = 1, *, outputs: int = 1, dropout: float = 0.0) -> nn.Module:
    inputs = passives * WIDTH + 2
    return seeded("private top", lambda: MLP(inputs, [7, outputs], final_activation=False, dropout=dropout))


def trainer_with(
    private_top: nn.Module | None,
    names: Sequence[str] = ("telecom",),
    *,
    task: str = "binary",
    dropout: float = 0.0,
    optimizer: Any = sgd,
    top: nn.Module | None = None,
    **settings: Any,
) -> Trainer:
    what = task_for(task, 3)
    top = top or top_model(len(names), outputs=what.outputs, dropout=dropout)
    data = party_data(ACTIVE, width=2, task=task)
    private = {} if private_top is None else {"private_top": private_top, "private_optimizer": optimizer}
    active = ActiveParty(data, top, task=what, optimizer=optimizer, **private)
    passives = {name: passive_party(name, dropout=dropout, optimizer=optimizer) for name in names}
    # Audits cross nowhere, and know nothing of a private top.
    return Trainer(active, passives, **{"batch_size": 16, "noise_seed_for_experiments": 4, "audit": False, **settings})


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Every message between parties from now on, those of evaluations and verdicts too."""
    messages: list[Message] = []
    recording = partial(conversation.converse, record=messages.append)
    monkeypatch.setattr(training, "converse", lambda halves, **options: recording(halves, turns=options.get("turns")))
    return messages


def taken(messages: list[Message]) -> list[tuple[Any, ...]]:
    """Return what has crossed, as bytes and in order, and forget it."""
    found = [
        (one.sender, one.receiver, one.kind, one.step, str(one.payload.dtype), _bytes(one.payload)) for one in messages
    ]
    messages.clear()
    return found


def _bytes(payload: Tensor) -> bytes:
    return bytes(payload.contiguous().flatten().view(torch.uint8).numpy())


# Made anew for each run: some keep the directions of gradients that they have seen.
DEFENSES: dict[str, Callable[[], list[Defense]]] = {
    "none": list,
    "labels and activations": lambda: [RandomisedResponse(epsilon=1.0), GaussianIR(clip=2.0, sigma=0.3)],
    "gradients": lambda: [AxisSumKL(detection_error=0.4)],
}


@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize(
    ("names", "stopping"), [(("telecom",), EarlyStopping(patience=2, validation_every=4)), (("telecom", "shop"), None)]
)
def test_messages_are_the_same_to_the_bit_with_and_without_it(
    crossed: list[Message], defense: str, names: tuple[str, ...], stopping: EarlyStopping | None
) -> None:
    found = []
    for private in (None, private_model(len(names), dropout=0.4)):
        trainer = trainer_with(
            private, names, dropout=0.3, defenses=DEFENSES[defense](), early_stopping=stopping, evaluate_every=2
        )
        trainer.fit(6)
        found.append((taken(crossed), weights(trainer), trainer.step, trainer.kept_epoch))
    (plain, plain_weights, *plain_end), (beside, beside_weights, *beside_end) = found
    assert len({kind for _, _, kind, *_ in plain}) >= 4  # agreement, activation, gradient, evaluation, verdict
    assert plain == beside
    assert same(plain_weights, beside_weights)
    assert plain_end == beside_end


@pytest.mark.parametrize("task", ["multiclass", "regression"])
@pytest.mark.parametrize("precision", ["as they are", "autocast", "wire"])
def test_messages_are_the_same_whatever_is_learned_and_in_half_precision(
    crossed: list[Message], task: str, precision: str
) -> None:
    setting: dict[str, Any] = {} if precision == "as they are" else {precision: torch.bfloat16}
    outputs = task_for(task, 3).outputs
    found = []
    for private in (None, private_model(outputs=outputs, dropout=0.4)):
        trainer = trainer_with(private, task=task, dropout=0.3, defenses=[Isotropic(ratio=1.0)], **setting)
        trainer.fit(2)
        found.append((taken(crossed), trainer.test))
    (plain, figures), (beside, with_private) = found
    assert plain == beside
    metric = task_for(task, 3).metric
    assert with_private[f"sending/{metric}"] == figures[metric]
    assert with_private["sending/loss"] == figures["loss"] != with_private["loss"]


class Swapped:
    """Answers every label with the other one: a top that learns from it predicts the wrong way round."""

    crossing = "labels"
    binary = True

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        return 1.0 - labels


def fitted_by_hand(trainer: Trainer, private: nn.Module, epochs: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """What anybody would write: the tops that send and predict, and the bottom, as one loop trains them."""
    bottom, top = bottom_model("telecom"), top_model()
    optimizers = [sgd(model.parameters()) for model in (bottom, top, private)]
    own, other = trainer.active.data.train, trainer.passives["telecom"].data.train
    assert own.labels is not None
    for epoch in range(epochs):
        for rows in trainer.batches.epoch(epoch):
            for optimizer in optimizers:
                optimizer.zero_grad()
            activation, columns = bottom(other.columns.numeric[rows]), own.columns.numeric[rows]
            logits = top(torch.cat([activation, columns], dim=1))[:, 0]
            binary_cross_entropy_with_logits(logits, 1.0 - own.labels[rows]).backward()
            logits = private(torch.cat([activation.detach(), columns], dim=1))[:, 0]
            binary_cross_entropy_with_logits(logits, own.labels[rows]).backward()
            for optimizer in optimizers:
                optimizer.step()
    return bottom, top, private


def test_it_learns_from_true_labels_and_predicts_while_the_other_learns_from_answers() -> None:
    trainer = trainer_with(private_model(), defenses=[Swapped()])
    figures = trainer.fit(8)
    bottom, top, private = fitted_by_hand(trainer, private_model(), 8)

    models = [trainer.passives["telecom"].bottom, *trainer.active.models]
    for model, by_hand in zip(models, (bottom, top, private), strict=True):
        for one, other in zip(model.parameters(), by_hand.parameters(), strict=True):
            assert torch.equal(one, other)

    own, partner = trainer.active.data.test, trainer.passives["telecom"].data.test
    with torch.no_grad():
        joined = torch.cat([bottom(partner.columns.numeric), own.columns.numeric], dim=1)
        expected = {"": private(joined), "sending/": top(joined)}
    assert torch.equal(predict(trainer.active, trainer.passives).outputs, expected[""])
    for of, outputs in expected.items():
        assert figures[f"{of}auc"] == pytest.approx(roc_auc_score(own.labels, outputs[:, 0]))
    assert figures["sending/auc"] < 0.5 < figures["auc"]


def test_an_evaluation_shows_both_in_the_log(tmp_path: Path) -> None:
    trainer = trainer_with(
        private_model(), log_dir=tmp_path, early_stopping=EarlyStopping(patience=9, validation_every=4)
    )
    trainer.fit(1)
    (*_, last) = read_metrics(tmp_path)
    both = {f"{part}/{of}{name}" for part in PARTS for of in ("", "sending/") for name in ("auc", "loss")}
    assert both <= last.keys()
    assert last["train/private_top/left_out"] == 0.0
    assert set(trainer.validation) == {"auc", "loss", "sending/auc", "sending/loss"}


class Diverging(nn.Module):
    """A head whose outputs overflow after so many calls."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.inside, self.after, self.calls = private_model(), after, 0

    def forward(self, joined: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.inside(joined)
        return outputs * (math.inf if self.calls > self.after else 1.0)


@pytest.mark.parametrize(("after", "stopping"), [(0, EarlyStopping(patience=3, validation_every=4)), (7, None)])
def test_one_that_diverges_stands_still_and_the_partner_sees_nothing_of_it(
    crossed: list[Message], after: int, stopping: EarlyStopping | None, tmp_path: Path
) -> None:
    found = []
    for number, private in enumerate((None, Diverging(after))):
        trainer = trainer_with(private, early_stopping=stopping, log_dir=tmp_path / str(number))
        figures = trainer.fit(8)
        found.append((taken(crossed), trainer.step, trainer.kept_epoch))
    assert found[0] == found[1]
    assert math.isnan(figures["auc"])
    assert math.isfinite(figures["sending/auc"])
    assert trainer.active.private_top is not None
    assert trainer.active.private_top.left_out > 0
    for weight in trainer.active.private_top.module.parameters():
        assert torch.isfinite(weight).all()
    with pytest.raises(ProtocolError, match="NaN or infinite"):
        predict(trainer.active, trainer.passives)


def test_a_top_that_no_longer_learns_ends_the_run_however_good_the_private_one_gets() -> None:
    """The verdict crosses, and is of the top that sends."""
    trainer = trainer_with(
        private_model(), defenses=[Swapped()], early_stopping=EarlyStopping(patience=2, validation_every=3)
    )
    trainer.fit(40)
    kept = trainer.kept_epoch
    plain = trainer_with(None, defenses=[Swapped()], early_stopping=EarlyStopping(patience=2, validation_every=3))
    plain.fit(40)
    assert trainer.stopped
    assert (trainer.step, kept) == (plain.step, plain.kept_epoch)
    assert trainer.validation["sending/auc"] < 0.5 < trainer.validation["auc"]


def test_the_private_weights_kept_are_of_the_epoch_whose_bottoms_are_kept() -> None:
    """Of another epoch it would have learned with other activations than it gets."""
    trainer = trainer_with(private_model(), early_stopping=EarlyStopping(patience=3, validation_every=3))
    figures = trainer.fit(40)
    kept = trainer.kept_epoch
    assert kept is not None
    assert kept < trainer.step // len(trainer.batches)
    again = trainer_with(private_model(), early_stopping=EarlyStopping(patience=40, validation_every=3))
    again.fit(kept)
    again.active.weights.best.restore_trained()
    for passive in again.passives.values():
        passive.weights.best.restore_trained()
    for one, other in zip(trainer.active.models, again.active.models, strict=True):
        for left, right in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(left, right)
    labels = trainer.active.data.test.labels
    outputs = predict(trainer.active, trainer.passives).outputs
    assert figures["auc"] == pytest.approx(roc_auc_score(labels, outputs[:, 0]))
    assert torch.equal(outputs, predict(again.active, again.passives).outputs)


class Kill(BaseException):
    """Stands for whatever ends a process between two steps."""


@pytest.mark.parametrize("died_at", [3, 5, 7])
def test_a_run_that_is_resumed_goes_on_to_the_bit(crossed: list[Message], tmp_path: Path, died_at: int) -> None:
    def made(folder: str, private: bool = True) -> Trainer:
        return trainer_with(
            private_model(dropout=0.4) if private else None,
            dropout=0.3,
            optimizer=adam,
            defenses=[RandomisedResponse(epsilon=1.0), Isotropic(ratio=0.5)],
            early_stopping=EarlyStopping(patience=2, validation_every=4),
            log_dir=tmp_path / folder,
            checkpoint_every=2,
        )

    def dying(status: Status) -> None:
        if status.step == died_at:
            raise Kill

    straight = made("straight")
    straight.fit(6)
    whole = [message for message in taken(crossed) if message[2] != "agreement"]
    with pytest.raises(Kill):
        made("broken").fit(6, progress=dying)
    crossed.clear()
    resumed = made("broken")
    resumed.resume()
    resumed.fit(6)
    rest = [message for message in taken(crossed) if message[2] != "agreement"]
    assert rest
    assert whole[-len(rest) :] == rest
    assert resumed.test == straight.test
    for one, other in zip(straight.active.models, resumed.active.models, strict=True):
        assert same(one.state_dict(), other.state_dict())
    logs = [(tmp_path / run / "metrics.jsonl").read_bytes() for run in ("straight", "broken")]
    assert logs[0] == logs[1]

    with pytest.raises(CheckpointError, match="a private top at bank, and this run has none"):
        made("straight", private=False).resume()
    plain = made("plain", private=False)
    plain.fit(1)
    with pytest.raises(CheckpointError, match="no private top at bank, and this run has one"):
        made("plain").resume()


class Restless(nn.Module):
    """Draws numbers forward and backward, in training and evaluation, and works in place on what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = private_model()

    def forward(self, joined: Tensor) -> Tensor:
        joined += torch.randn_like(joined)
        outputs: Tensor = self.inside(joined.relu_())
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: gradient + torch.randn_like(gradient))
        return outputs * torch.rand(())


def test_one_that_draws_everywhere_and_writes_on_what_it_gets_changes_nothing(crossed: list[Message]) -> None:
    found = []
    for private in (None, Restless()):
        # Without own columns the top is given the activation itself, of which nothing is a copy.
        active = ActiveParty(party_data(ACTIVE, width=0, task="binary"), top_model(own=0, dropout=0.3))
        if private is not None:
            private.inside = seeded("narrow", lambda: MLP(WIDTH, [1], final_activation=False))
            active = ActiveParty(active.data, active.top, private_top=private)
        trainer = Trainer(active, {"telecom": passive_party("telecom", dropout=0.3)}, batch_size=16)
        trainer.fit(3)
        found.append((taken(crossed), weights(trainer)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


class OnFields(nn.Module):
    """A head over activations and categorical codes that writes on both."""

    separate_active = True

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, activations: Tensor, active: Columns) -> Tensor:
        activations.zero_()
        active.numeric.zero_()
        active.categorical.zero_()
        return self.linear(activations[:, :1])  # type: ignore[no-any-return]


def test_it_gets_copies_of_its_own_columns_too() -> None:
    activation, columns = torch.ones(3, 2), Columns(torch.ones(3, 1), torch.ones(3, 1, dtype=torch.int64))
    activations, own = own_copies([activation], columns)
    OnFields()(*activations, own)
    assert all((tensor == 1).all() for tensor in (activation, *columns))
    assert own_copies([activation], None)[1] is None


def _same_layer(top: nn.Module) -> nn.Module:
    return nn.Sequential(top, nn.Linear(1, 1))


def _tied(top: nn.Module) -> nn.Module:
    private = private_model()
    private.layers[0].bias = nn.Parameter(next(top.parameters()).data[0, :1].expand(7))  # type: ignore[index, union-attr]
    return private


def _buffer(top: nn.Module) -> nn.Module:
    private = private_model()
    private.register_buffer("seen", top.layers[0].weight.data)  # type: ignore[index, union-attr]
    return private


@pytest.mark.parametrize("build", [lambda top: top, _same_layer, _tied, _buffer])
def test_one_that_shares_weights_with_the_top_that_sends_is_refused(build: Callable[[nn.Module], nn.Module]) -> None:
    top = top_model()
    with pytest.raises(ArgumentError, match="shares weights"):
        ActiveParty(party_data(ACTIVE, width=2, task="binary"), top, private_top=build(top))
    ActiveParty(party_data(ACTIVE, width=2, task="binary"), top, private_top=copy.deepcopy(top))


def test_dummies_have_no_label_that_it_learns_from(crossed: list[Message]) -> None:
    data = party_data(ACTIVE, width=2, task="binary")
    assert data.train.labels is not None
    real = torch.arange(data.train.count) % 3 != 0
    real[torch.tensor([0, 1, 2])] = False
    found = []
    for labels in (data.train.labels, torch.where(real, data.train.labels, 1 - data.train.labels)):
        train = dataclasses.replace(data.train, labels=labels, real=real)
        active = ActiveParty(dataclasses.replace(data, train=train), top_model(), private_top=private_model())
        # Batches of two: of some both records are dummies.
        trainer = Trainer(active, {"telecom": passive_party("telecom")}, batch_size=2, audit=False)
        trainer.passives["telecom"].bottom.requires_grad_(False)  # else activations differ from the first step
        trainer.fit(1)
        found.append(trainer.active.models[1].state_dict())
    assert same(*found)


def test_one_that_is_frozen_stays_as_it_is() -> None:
    private = private_model().requires_grad_(False)
    before = copy.deepcopy(private.state_dict())
    trainer = trainer_with(private)
    figures = trainer.fit(2)
    assert same(before, private.state_dict())
    assert {"auc", "sending/auc"} <= figures.keys()


@pytest.mark.parametrize(
    "exchange", [Oracle(), Residue(rows=16), Taylor(rows=16), Coordinator(rows=16)], ids=lambda one: one.name
)
def test_exchanges_of_sums_refuse_it_by_name(exchange: Exchange) -> None:
    active = ActiveParty(
        party_data(ACTIVE, width=2, task="binary"), LinearTop(1, active_inputs=2), private_top=nn.Linear(3, 1)
    )
    with pytest.raises(ConfigError, match=f"exchange {exchange.name} trains no private top"):
        Trainer(
            active,
            {"telecom": PassiveParty(party_data("telecom", width=3), Linear(3))},
            batch_size=16,
            exchange=exchange,
        )


def test_attacks_on_scores_of_a_linear_model_are_not_run_on_another_models_scores() -> None:
    active = ActiveParty(
        party_data(ACTIVE, width=2, task="binary"), LinearTop(1, active_inputs=2), private_top=nn.Linear(3, 1)
    )
    passive = PassiveParty(party_data("telecom", width=3), Linear(3))
    trainer = Trainer(active, {"telecom": passive}, batch_size=16, attacks=[LeastSquaresAttack()])
    trainer.fit(1)
    assert {leak.sees for leak in trainer.feature_leaks()["telecom"]} == {"activation"}
    assert "the private one predicts" in trainer.unavailable["telecom"]["least-squares (scores)"]


def test_an_optimizer_without_a_private_top_is_refused() -> None:
    with pytest.raises(ArgumentError, match="bank has no private top to be trained"):
        ActiveParty(party_data(ACTIVE, width=2, task="binary"), top_model(), private_optimizer=sgd)


def test_canaries_are_coins_for_what_crosses_and_true_for_the_private_top(crossed: list[Message]) -> None:
    """Beside models that stand still it learns, to the bit, what it learns without canaries."""

    def make(canaries: int | None) -> Trainer:
        top = top_model(1).requires_grad_(False)
        run = trainer_with(private_model(), top=top, canaries=canaries, audit=canaries is not None)
        for party in run.passives.values():
            party.bottom.requires_grad_(False)
        return run

    coins, plain = make(20), make(None)
    coins.fit(2)
    tossed = taken(crossed)
    plain.fit(2)
    assert tossed != taken(crossed)  # the coins are in what crosses
    left, right = (run.active.private_top for run in (coins, plain))
    assert left is not None
    assert right is not None
    assert same(left.module.state_dict(), right.module.state_dict())
