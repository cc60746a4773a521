"""A label defense that computes the loss of what it answers: where its loss is used, and where it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl import SplitModel
from splitvfl.config.sections import parse_config
from splitvfl.cut.chain import DefenseChain
from splitvfl.defenses import AbstainingResponse, AsymmetricResponse, Isotropic, MemoisedResponse, RandomisedResponse
from splitvfl.errors import ArgumentError, ConfigError, HookError, PrivacyError
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from splitvfl.hooks import Secrets
from splitvfl.learning.randomness import derive_seed
from tests.builders import ACTIVE, sgd, small_trainer, weights
from tests.exchange.logistic import SHORT, trainer_of
from tests.run.test_trainer import model_weights, same, split_model_of

MAKERS: dict[str, Callable[[], Any]] = {
    "abstaining": lambda: AbstainingResponse(detection_error=0.3),
    "abstaining, likelihood": lambda: AbstainingResponse(detection_error=0.3, corrected="likelihood"),
    "asymmetric, likelihood": lambda: AsymmetricResponse(detection_error=0.3, corrected="likelihood"),
    "memoised, likelihood": lambda: MemoisedResponse(flip=0.2, corrected="likelihood"),
}
BOTH = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


class Squared:
    """Labels as they are, and half the squared distance of the output from them."""

    name, crossing, target_values = "squared", "labels", (0.0, 1.0)

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        return labels.clone()

    def record_loss(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        return (outputs[:, 0] - targets).square() / 2


def loop(model: SplitModel, trainer: Any, epochs: int) -> None:
    """A loop of one's own, with the model's loss, on the trainer's data and in its order."""
    optimizers = [sgd(module.parameters()) for module in (*model.bottoms.values(), model.top)]
    train = trainer.active.data.train
    for epoch in range(epochs):
        for rows in trainer.batches.epoch(epoch):
            model.zero_grad()
            columns = [party.data.train.columns.numeric[rows] for party in trainer.passives.values()]
            labels, ids = train.labels[rows], train.ids[rows]
            output = model(*columns, active=train.columns.numeric[rows], labels=labels, ids=ids)
            model.loss(output, labels, ids=ids).backward()
            for optimizer in optimizers:
                optimizer.step()


@pytest.mark.parametrize("names", [("telecom",), ("telecom", "shop")])
@BOTH
def test_trainer_and_plain_loop_give_the_same_weights_to_the_bit(
    make: Callable[[], Any], names: tuple[str, ...]
) -> None:
    trainer = small_trainer(names, optimizer=sgd, defenses=[make()], noise_seed_for_experiments=1, audit=False)
    model, honest = split_model_of(trainer), small_trainer(names, optimizer=sgd, audit=False)
    model.defend(make(), noise_seed_for_experiments=derive_seed(1, "labels", ACTIVE, 0))

    trainer.fit(2)
    loop(model, trainer, 2)
    honest.fit(2)

    assert same(weights(trainer), model_weights(model))
    assert not same(weights(trainer), weights(honest))


def test_a_loss_of_ones_own_reaches_the_cut() -> None:
    model = SplitModel(nn.Linear(3, 2), nn.Linear(2, 1)).double()
    model.defend(Squared())
    model.cut.audit()
    sent: list[Tensor] = []
    model.cut.register_full_backward_hook(lambda _, given, __: sent.append(given[0]))
    labels = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)

    output = model(torch.randn(4, 3, dtype=torch.float64), labels=labels)
    model.loss(output, labels).backward()

    expected = (output.detach() - labels[:, None]) / 4 * model.top.weight.detach()
    torch.testing.assert_close(sent[0], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_without_such_a_defense_it_is_the_loss_of_the_model(reduction: str) -> None:
    def loss(output: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.mse_loss(output[:, 0], labels, reduction=reduction)

    labels, output = torch.tensor([0.0, 2.0]), torch.tensor([[1.0], [1.0]])
    assert SplitModel(nn.Linear(3, 2), nn.Linear(2, 1), loss=loss).loss(output, labels).item() == 1.0
    model = SplitModel(nn.Linear(3, 2), nn.Linear(2, 1))
    labels = torch.tensor([0.0, 1.0])
    assert model.loss(torch.zeros(2, 1), labels).item() == pytest.approx(0.6931, abs=1e-4)


def test_with_a_defense_that_only_replaces_labels_it_is_the_loss_of_its_targets() -> None:
    model = SplitModel(nn.Linear(3, 2), nn.Linear(2, 1))
    model.defend(MemoisedResponse(flip=0.3))
    labels, ids = (torch.arange(20) % 2).float(), torch.arange(20)
    output = model(torch.randn(20, 3), labels=labels, ids=ids)
    loss = model.loss(output, labels, ids=ids)
    loss.backward()
    model(torch.randn(20, 3), labels=labels, ids=ids)
    expected = nn.functional.binary_cross_entropy_with_logits(output[:, 0], model.targets(labels, ids=ids))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@BOTH
def test_targets_are_refused_where_the_defense_computes_the_loss(make: Callable[[], Any]) -> None:
    model = SplitModel(nn.Linear(3, 2), nn.Linear(2, 1))
    model.defend(make())
    labels, ids = torch.ones(5), torch.arange(5)
    output = model(torch.randn(5, 3), labels=labels, ids=ids)
    with pytest.raises(PrivacyError, match=r"computes the loss itself: use model\.loss\(output, y, ids=ids\)"):
        model.targets(labels, ids=ids)
    with pytest.raises(PrivacyError, match=r"model\.loss\(output, y, ids=ids\)"):
        nn.functional.binary_cross_entropy_with_logits(output[:, 0], labels).backward()


def test_nothing_answers_for_labels_after_it() -> None:
    chain = DefenseChain("labels", "bank")
    chain.attach(RandomisedResponse(epsilon=1.0))
    chain.attach(AbstainingResponse(detection_error=0.3))
    with pytest.raises(ArgumentError, match=r"abstaining-response computes the loss of .*memoised-response"):
        chain.attach(MemoisedResponse(flip=0.1))
    chain = DefenseChain("labels", "bank")
    chain.attach(AsymmetricResponse(detection_error=0.3))  # by targets alone: allowed before, as ever
    assert chain.with_own_loss is None


def test_what_is_no_loss_is_refused() -> None:
    class OfGradients:
        record_loss = staticmethod(lambda outputs, targets: outputs)

    class NoMethod:
        crossing, record_loss = "labels", 3

    class Mean(Squared):
        def record_loss(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
            return outputs.mean()

    with pytest.raises(HookError, match="record_loss is for defenses of labels, not of gradient"):
        DefenseChain("gradient", "bank").attach(OfGradients())  # type: ignore[arg-type]
    with pytest.raises(HookError, match="record_loss must be a method"):
        DefenseChain("labels", "bank").attach(NoMethod())  # type: ignore[arg-type]
    chain = DefenseChain("labels", "bank")
    chain.attach(Mean())
    with pytest.raises(HookError, match=r"a loss for each record, \(4,\), got \(\)"):
        chain.loss(lambda outputs, targets: outputs.sum())(torch.zeros(4, 1), torch.zeros(4))


def test_notes_that_are_no_sentences_are_refused() -> None:
    trainer = small_trainer()
    squared = Squared()
    trainer.active.labels.attach(squared)
    assert trainer.active.notes == []
    squared.notes = "one"  # type: ignore[attr-defined]
    with pytest.raises(HookError, match="squared: notes must be a tuple of sentences, got 'one'"):
        _ = trainer.active.notes


@pytest.mark.parametrize(
    "exchange",
    [Oracle(), *(kind(rows=16, encryption=SHORT) for kind in (Residue, Taylor, Coordinator))],
    ids=lambda exchange: exchange.name,
)
def test_exchanges_of_sums_refuse_it_by_name(exchange: Any) -> None:
    defense = AbstainingResponse(detection_error=0.3)
    with pytest.raises(ConfigError, match=rf"exchange {exchange.name} computes .* abstaining-response at bank"):
        trainer_of(exchange, {"lab": 3}, defenses=(defense,))


def test_one_that_comes_later_is_refused_in_the_step() -> None:
    trainer = trainer_of(Taylor(rows=16, encryption=SHORT), {"lab": 3})
    trainer.active.labels.attach(AbstainingResponse(detection_error=0.3))
    with pytest.raises(ConfigError, match="abstaining-response at bank brings another"):
        trainer.fit(1)


TEXT = """\
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["worst *"]}
model: logistic-regression
exchange: EXCHANGE
train: {optimizer: {name: sgd, lr: 0.1}}
defenses:
  - {name: asymmetric-response, detection_error: 0.4}
  - {name: abstaining-response, detection_error: 0.4}
"""


@pytest.mark.parametrize("exchange", ["oracle", "residue", "taylor", "{name: coordinator}"])
def test_an_experiment_is_refused_with_its_line(exchange: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(TEXT.replace("EXCHANGE", exchange), source="run.yaml")
    name = exchange.strip("{}").removeprefix("name: ")
    assert str(caught.value) == (
        "run.yaml:10: defenses.1: abstaining-response: it computes the loss itself, and exchange "
        f"{name} has its own; take exchange split for it"
    )


def test_an_experiment_with_two_losses_is_refused_with_its_line() -> None:
    text = TEXT.replace("EXCHANGE", "split") + "  - {name: memoised-response, flip: 0.1}\n  - max-norm\n"
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="run.yaml")
    assert str(caught.value) == (
        "run.yaml:11: defenses.2: memoised-response: abstaining-response computes the loss of what it answers, so "
        "that nothing can answer for labels after it"
    )
    assert len(parse_config(TEXT.replace("EXCHANGE", "split"), source="run.yaml").defenses) == 2


@BOTH
def test_a_resumed_run_ends_like_an_uninterrupted_one(make: Callable[[], Any], tmp_path: Path) -> None:
    def run(name: str) -> Any:
        return small_trainer(
            defenses=[make(), Isotropic(ratio=0.5)],
            noise_seed_for_experiments=6,
            log_dir=tmp_path / name,
            checkpoint_every=3,
        )

    straight = run("straight")
    straight.fit(3)
    run("resumed").fit(1)
    again = run("resumed")
    again.resume()
    again.fit(3)

    assert same(weights(straight), weights(again))
    assert straight.measurements == again.measurements
    assert repr(straight.summaries("telecom")) == repr(again.summaries("telecom"))
