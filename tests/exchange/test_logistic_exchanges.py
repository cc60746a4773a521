"""The exchanges of logistic regression against gradient descent written out record by record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from splitvfl.app.trainer import Trainer
from splitvfl.attacks import LabelSumAttack, NormAttack, ResidueSolvingAttack
from splitvfl.defenses import Isotropic, MemoisedResponse
from splitvfl.errors import ConfigError, CryptoError, DataError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.hooks import Secrets
from splitvfl.learning.losses import Approximation
from splitvfl.learning.tasks import Binary
from splitvfl.messaging.messages import Message
from splitvfl.models import MLP, Linear, LinearTop, logistic_loss
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.exchange.logistic import (
    BATCH,
    SHORT,
    by_hand,
    data_of,
    exact_coefficient,
    taylor_coefficient,
    trainer_of,
    weights_of,
)

ONE, THREE = {"lab": 4}, {"lab": 4, "shop": 2, "telecom": 5}

# Weights are float32 of size one: ten steps may each round by 2^-24.
ROUNDING = 2e-6


def _encrypted(name: str) -> Exchange:
    return {"residue": Residue, "taylor": Taylor}[name](rows=BATCH, encryption=SHORT)


@pytest.mark.parametrize("widths", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize("name", ["oracle", "residue", "taylor"])
def test_an_exchange_trains_as_gradient_descent_does(name: str, widths: dict[str, int]) -> None:
    trainer = trainer_of(Oracle() if name == "oracle" else _encrypted(name), widths)
    expected = by_hand(trainer, 2, taylor_coefficient, 4.0)
    trainer.fit(2)
    for party, weight in weights_of(trainer).items():
        # The gradients' fixed-point error, taken ten times with the learning rate, is far below float32's rounding.
        assert np.allclose(weight.numpy(), expected[party], rtol=0, atol=ROUNDING + 10 * SHORT.error), party


@pytest.mark.parametrize("name", ["oracle", "residue"])
def test_residues_of_the_exact_sigmoid(name: str) -> None:
    trainer = trainer_of(Oracle() if name == "oracle" else _encrypted(name), ONE, approximation="exact")
    expected = by_hand(trainer, 2, exact_coefficient, 1.0)
    trainer.fit(2)
    for party, weight in weights_of(trainer).items():
        assert np.allclose(weight.numpy(), expected[party], rtol=0, atol=ROUNDING), party


@pytest.mark.parametrize(
    "make",
    [
        Oracle,
        partial(Residue, rows=32, encryption=SHORT),
        partial(Hybrid, rows=32, epsilon=1.0, share=0.3, encryption=SHORT),
    ],
)
@pytest.mark.parametrize(("announced", "trained"), [("taylor", "exact"), ("exact", "taylor"), ("piecewise", "taylor")])
def test_an_exchange_does_not_announce_another_sigmoid_than_is_trained(
    make: Callable[..., Exchange], announced: Approximation, trained: Approximation
) -> None:
    def made(approximation: Approximation) -> Trainer:
        top, task = LinearTop(1, active_inputs=3), Binary(logistic_loss(trained))
        active = ActiveParty(data_of("bank", 3, labels=True), top, task=task)
        passive = PassiveParty(data_of("lab", 4), Linear(4))
        return Trainer(active, {"lab": passive}, exchange=make(approximation=approximation), batch_size=32)

    with pytest.raises(ConfigError, match=f"expected a loss with the {announced} sigmoid at bank, got .* {trained}"):
        made(announced)
    assert made(trained).exchange.approximation == trained


def test_the_oracle_is_split_learning_of_a_linear_model() -> None:
    oracle, split = (trainer_of(exchange, THREE, approximation="exact") for exchange in (Oracle(), Split()))
    oracle.fit(2)
    split.fit(2)
    for party, weight in weights_of(oracle).items():
        assert torch.allclose(weight, weights_of(split)[party], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("widths", [ONE, THREE], ids=["one", "three"])
def test_the_loss_of_each_step_is_that_of_the_computation_in_the_clear(widths: dict[str, int]) -> None:
    losses: dict[str, list[float]] = {}
    for exchange in (Oracle(), _encrypted("taylor")):
        seen = losses.setdefault(exchange.name, [])
        trainer_of(exchange, widths).fit(1, progress=lambda status, seen=seen: seen.append(status.loss))
    # Logits are float32 in one, float64 in the other; a mean of a few units.
    assert losses["taylor"] == pytest.approx(losses["oracle"], abs=1e-5)
    assert len(losses["taylor"]) == 5


def test_the_loss_can_be_left_out() -> None:
    messages: list[Message] = []
    seen: list[float] = []
    trainer = trainer_of(Taylor(rows=BATCH, encryption=SHORT, loss=False), THREE, record=messages.append)
    expected = by_hand(trainer, 1, taylor_coefficient, 4.0)
    trainer.fit(1, progress=lambda status: seen.append(status.loss))
    assert np.isnan(seen).all()
    assert "products" not in {message.kind for message in messages}
    for party, weight in weights_of(trainer).items():
        assert np.allclose(weight.numpy(), expected[party], rtol=0, atol=ROUNDING)


def test_nothing_of_a_step_crosses_in_the_clear() -> None:
    messages: list[Message] = []
    trainer_of(_encrypted("taylor"), ONE, record=messages.append).fit(1)
    assert {message.kind for message in messages} == {"logits", "residues", "sums", "opened"}
    assert {message.payload.dtype for message in messages} == {torch.uint8}
    # Masked plaintexts are uniform modulo n: 5 steps' high bytes are neither constant nor small.
    opened = [bytes(message.payload[:, :4].flatten().tolist()) for message in messages if message.kind == "opened"]
    assert len(set(opened)) == len(opened)


def test_equal_values_are_never_encrypted_alike() -> None:
    messages: list[Message] = []
    trainer = trainer_of(_encrypted("taylor"), ONE, record=messages.append)
    for party in (trainer.active, *trainer.passives.values()):
        for parameter in party.module.parameters():
            torch.nn.init.zeros_(parameter)
    trainer.fit(1)
    first = next(message.payload for message in messages if message.kind == "logits")
    assert first.unique(dim=0).shape[0] == len(first)  # all of them encrypt 0


@pytest.mark.parametrize("exchange", [Oracle(), Residue(rows=BATCH, encryption=SHORT)], ids=["oracle", "residue"])
def test_attacks_see_the_gradient_of_the_weight_and_no_residue(exchange: Exchange) -> None:
    attacks = [NormAttack(), ResidueSolvingAttack()]
    trainer = trainer_of(exchange, {"lab": BATCH + 4}, attacks=attacks)
    for party in (trainer.active, *trainer.passives.values()):
        for parameter in party.module.parameters():
            torch.nn.init.zeros_(parameter)
    trainer.fit(1)
    assert trainer.unavailable == {
        "lab": {
            "norm": "needs the gradient of each record, and the exchange shows only their sum; the attack "
            "residue-solving recovers labels from it"
        }
    }
    # As many columns as records: the residues follow from the gradients, encrypted or not. At the first step of zero
    # weights they are the labels.
    assert trainer.leaks["lab"]["residue-solving"].keeper.aucs[0] == 1.0
    assert not trainer.audits


def test_a_defense_of_the_gradient_acts_before_it_is_encrypted() -> None:
    plain, defended = (
        trainer_of(_encrypted("taylor"), ONE, defenses=defenses) for defenses in ((), (Isotropic(ratio=0.5),))
    )
    for trainer in (plain, defended):
        trainer.fit(1)
    bank, lab = ((weights_of(plain)[name] - weights_of(defended)[name]).abs().max() for name in ("bank", "lab"))
    assert lab > 0.01
    assert plain.measurements != defended.measurements
    assert bank > 0  # through the logits of later steps only


# --- what is refused


def test_a_value_above_the_limit_ends_the_run() -> None:
    tight = InsecureEncryption(key_bits=512, value_limit=0.5)
    with pytest.raises(CryptoError, match=r"value of size .* at step 0, and exchange.encryption.value_limit is 0.5"):
        trainer_of(Taylor(rows=BATCH, encryption=tight), ONE).fit(1)
    with pytest.raises(CryptoError, match=r"bank would send a value of size .* at step 0, .*value_limit is 0.1"):
        trainer_of(Residue(rows=BATCH, encryption=InsecureEncryption(key_bits=512, value_limit=0.1)), ONE).fit(1)


ROWS = r"scale its columns .*\(data.scale, log1p or minmax\).*\(model.row_norm\).*\(model.init\)"


@pytest.mark.parametrize("owner", ["bank", "lab"])
@pytest.mark.parametrize("step", [0, 1])
def test_heavy_tails_are_told_by_what_helps_against_them(owner: str, step: int) -> None:
    """At the first step no learning rate had a part in it, nor later where one row is far longer than the others."""
    trainer = trainer_of(Taylor(rows=BATCH, encryption=SHORT), ONE)
    party = trainer.active if owner == "bank" else trainer.passives[owner]
    row = trainer.batches.epoch(0)[step][0]
    party.data.train.columns.numeric[row] = 60.0  # within the limit of features, of which each part is a sum
    with torch.no_grad():
        for weight in party.module.parameters():
            weight.fill_(0.3)
    with pytest.raises(CryptoError, match=rf"{owner} would send .* at step {step}, .* \(1 of \d+ .*: {ROWS}") as caught:
        trainer.fit(1)
    assert "learning rate" not in str(caught.value)


def test_a_learning_rate_is_named_where_most_values_are_too_large() -> None:
    trainer = trainer_of(Taylor(rows=BATCH, encryption=SHORT), ONE)
    for party in (trainer.active, *trainer.passives.values()):
        assert party.weights.optimizer is not None
        party.weights.optimizer.param_groups[0]["lr"] = 1e4
    with pytest.raises(CryptoError, match=rf"at step 1, .*: take a smaller learning rate; or {ROWS}"):
        trainer.fit(1)


@pytest.mark.parametrize("kind", [Residue, Taylor])
def test_a_column_above_the_limit_is_named(kind: type[Residue | Taylor]) -> None:
    tight = InsecureEncryption(key_bits=512, feature_limit=1.0)
    with pytest.raises(DataError, match=r"column '(lab|bank) \d' holds -?\d.* exchange.encryption.feature_limit is 1"):
        trainer_of(kind(rows=BATCH, encryption=tight), ONE)


@pytest.mark.parametrize("name", ["residue", "taylor"])
def test_a_party_that_claims_too_many_columns_is_refused(name: str) -> None:
    capped = InsecureEncryption(key_bits=512, most_columns=3)
    kind = {"residue": Residue, "taylor": Taylor}[name]
    with pytest.raises(DataError, match=r"lab asks for 4 sums at each step; agreed are 1 to 3"):
        trainer_of(kind(rows=BATCH, encryption=capped), ONE).fit(1)


@pytest.mark.parametrize("exchange", [Oracle(), Residue(rows=8, encryption=SHORT), Taylor(rows=8, encryption=SHORT)])
def test_other_models_are_refused(exchange: Exchange) -> None:
    bank, lab = data_of("bank", 2, labels=True), data_of("lab", 3)
    with pytest.raises(ConfigError, match=r"expected the bottom of lab to be one linear layer"):
        Trainer(
            ActiveParty(bank, LinearTop(1, active_inputs=2)),
            {"lab": PassiveParty(lab, MLP(3, (4, 1)))},
            exchange=exchange,
            batch_size=8,
        )
    with pytest.raises(ConfigError, match=r"expected a top that adds up logits .* at bank, got MLP"):
        Trainer(
            ActiveParty(bank, MLP(3, (1,))),
            {"lab": PassiveParty(lab, torch.nn.Linear(3, 1, bias=False))},
            exchange=exchange,
            batch_size=8,
        )


def test_parties_that_agree_on_other_limits_do_not_agree() -> None:
    ours, theirs = Residue(rows=8, encryption=SHORT).terms(), Residue(rows=8).terms()
    assert {key for key in ours if ours[key] != theirs[key]} == {
        "encryption: key bits",
        "encryption: insecure for tests",
    }
    assert ours.keys() == theirs.keys()
    assert Taylor(rows=8).terms()["exchange"] == "taylor"


def test_a_run_goes_on_without_an_attack_that_cannot_work() -> None:
    # Weights are not zero: the first gradient is no sum of labels.
    attacks = [LabelSumAttack(), ResidueSolvingAttack()]
    trainer = trainer_of(Oracle(), {"lab": 4}, approximation="exact", attacks=attacks)
    trainer.fit(1)
    assert "it needs weights of zero at the first step" in trainer.unavailable["lab"]["label-sum"]
    assert trainer.leaks["lab"]["label-sum"].summary.steps == 0
    assert trainer.leaks["lab"]["residue-solving"].summary.steps == 5


# Labels that are told wrongly send weights far.
WIDE = InsecureEncryption(key_bits=512, value_limit=1024.0)


class Spy:
    """A defense of the gradient that notes what it is told of labels."""

    needs = ("labels",)

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def __call__(self, gradient: torch.Tensor, secrets: Secrets, /) -> torch.Tensor:
        self.seen.append(secrets.labels.clone())
        return gradient.clone()


@pytest.mark.parametrize(
    "exchange",
    [Taylor(rows=BATCH, encryption=WIDE), Coordinator(rows=BATCH, encryption=WIDE)],
    ids=["taylor", "coordinator"],
)
def test_later_defenses_get_the_answers_of_label_defenses(exchange: Exchange) -> None:
    trainer = trainer_of(exchange, {"lab": 3}, defenses=(MemoisedResponse(flip=0.4), Spy()))
    trainer.fit(1)
    (spy,) = trainer.active.cuts["lab"].gradient
    rows = torch.cat(trainer.batches.epoch(0))
    labels = trainer.active.data.train.labels
    assert labels is not None
    told = torch.cat(spy.seen)
    # Four tenths of 70 are flipped, with a standard deviation of 4; the seed is fixed.
    assert 10 < (told != labels[rows]).sum().item() < 60


def test_all_passive_parties_get_one_draw() -> None:
    """Draws of their own would average out between parties that put them together."""
    messages: list[Message] = []
    trainer_of(
        Taylor(rows=BATCH, encryption=SHORT), THREE, defenses=(Isotropic(sigma=0.001),), record=messages.append
    ).fit(1)
    first = [message.payload for message in messages if message.kind == "residues" and message.step == 0]
    assert len(first) == len(THREE)
    assert all(torch.equal(one, first[0]) for one in first)


@pytest.mark.parametrize("exchange", [Oracle(approximation="taylor"), Taylor(rows=BATCH, encryption=WIDE)])
def test_every_passive_party_with_columns_enough_reads_the_labels(exchange: Exchange) -> None:
    widths = {"lab": BATCH + 2, "shop": BATCH, "telecom": 4}
    trainer = trainer_of(exchange, widths, attacks=[ResidueSolvingAttack()])
    for party in (trainer.active, *trainer.passives.values()):
        for parameter in party.module.parameters():
            torch.nn.init.zeros_(parameter)
        party.weights.optimizer.param_groups[0]["lr"] = 0.01  # type: ignore[union-attr]
    trainer.fit(1)
    shares = {name: leaks["residue-solving"].summary.signs_right for name, leaks in trainer.leaks.items()}
    assert shares["lab"] == shares["shop"] == 1.0
    assert shares["telecom"] < 0.9  # four equations for sixteen residues
