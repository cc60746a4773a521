"""What every built-in model, loss and exchange must do. A new one is one more row in the table of its kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl import exchange as exchanges
from splitvfl import models
from splitvfl.app.trainer import Trainer
from splitvfl.config.registry import built_in
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.learning import losses
from splitvfl.learning.losses import Loss
from splitvfl.learning.tasks import Binary, Multiclass, Regression, Task
from splitvfl.messaging.messages import Message
from splitvfl.models import LinearTop, Recipe, logistic_loss
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.builders import ACTIVE, party_data, seeded, weights

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("quick_own_models")

BATCH = 16
ENCRYPTED = InsecureEncryption(key_bits=512)


@dataclass(frozen=True)
class ModelRow:
    """One recipe; ``whole``: it makes tops too."""

    make: Callable[[], Recipe]
    whole: bool = True


@dataclass(frozen=True)
class LossRow:
    """One loss; ``task`` is of the labels that it takes."""

    make: Callable[[], Loss]
    task: Callable[[Loss], Task]


@dataclass(frozen=True)
class ExchangeRow:
    """One exchange; ``linear``: it trains logistic regression only."""

    make: Callable[[], Exchange]
    linear: bool = True


MODELS = {
    "glm": ModelRow(models.GLMRecipe),
    "logistic-regression": ModelRow(models.LogisticRegressionRecipe),
    "mlp": ModelRow(partial(models.MLPRecipe, bottom=(4,))),
    "pca": ModelRow(partial(models.PCARecipe, width=2), whole=False),
    "wide-deep": ModelRow(partial(models.WideDeepRecipe, bottom=(4,), cut_after=1)),
}

LOSSES = {
    "ApproximateLogistic": LossRow(lambda: logistic_loss("taylor"), Binary),
    "CrossEntropy": LossRow(losses.CrossEntropy, partial(Multiclass, 3)),
    "Logistic": LossRow(losses.Logistic, Binary),
    "SquaredError": LossRow(losses.SquaredError, Regression),
}

EXCHANGES = {
    "coordinator": ExchangeRow(partial(exchanges.Coordinator, rows=BATCH, encryption=ENCRYPTED)),
    "hybrid": ExchangeRow(partial(exchanges.Hybrid, rows=BATCH, encryption=ENCRYPTED, epsilon=1.0, share=0.3)),
    "one-way": ExchangeRow(exchanges.OneWay, linear=False),
    "oracle": ExchangeRow(exchanges.Oracle),
    "residue": ExchangeRow(partial(exchanges.Residue, rows=BATCH, encryption=ENCRYPTED)),
    "split": ExchangeRow(exchanges.Split, linear=False),
    "taylor": ExchangeRow(partial(exchanges.Taylor, rows=BATCH, encryption=ENCRYPTED)),
}


def exported(package: Any, base: type) -> set[str]:
    """Return the names under which classes of this kind are exported."""
    found = {name: getattr(package, name) for name in package.__all__}
    return {name for name, one in found.items() if inspect.isclass(one) and issubclass(one, base) and one is not base}


def test_tables_miss_nothing_that_is_exported() -> None:
    assert set(LOSSES) == exported(losses, Loss)
    assert set(MODELS) == set(built_in("models"))
    assert set(EXCHANGES) == set(built_in("exchanges"))
    assert (len(MODELS), len(EXCHANGES)) == (len(exported(models, Recipe)), len(exported(exchanges, Exchange)))


def trainer_of(
    recipe: Recipe, task: Task, exchange: Exchange, record: Callable[[Message], None] | None = None
) -> Trainer:
    """Return two parties with the halves that a recipe makes, and gradient descent."""
    active = party_data(ACTIVE, width=2, task=task.name)
    passive = party_data("telecom", width=3)
    bottom = seeded("bottom", lambda: recipe.fitted(recipe.make_bottom(passive, task), passive))
    lab = PassiveParty(passive, bottom, optimizer=partial(torch.optim.SGD, lr=0.1))
    top = seeded("top", lambda: recipe.make_top(active, task, [lab.output_width()]))
    bank = ActiveParty(active, top, task=task, optimizer=partial(torch.optim.SGD, lr=0.1))
    return Trainer(bank, {"telecom": lab}, batch_size=BATCH, exchange=exchange, record=record)


def moved_in_an_epoch(trainer: Trainer) -> set[str]:
    """Train for an epoch, and return the parties of which a weight has changed."""
    before = weights(trainer)
    trainer.fit(1)
    after = weights(trainer)
    return {name.partition("/")[0] for name in after if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("name", MODELS)
def test_the_halves_of_a_model_fit_together_and_learn(name: str) -> None:
    recipe = MODELS[name].make()
    task = Binary()
    if not MODELS[name].whole:
        with pytest.raises(ConfigError, match="no top model"):
            recipe.make_top(party_data(ACTIVE, width=2), task, [2])
        bottom = recipe.fitted(recipe.make_bottom(party_data("telecom", width=3), task), party_data("telecom", width=3))
        assert bottom(party_data("telecom", width=3).train.columns.module_input()).shape == (48, 2)
        return
    trainer = trainer_of(recipe, task, exchanges.Split())
    assert moved_in_an_epoch(trainer) == {ACTIVE, "telecom"}
    assert all(torch.isfinite(weight).all() for weight in weights(trainer).values())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_how_its_bottoms_get_another_width_or_that_it_cannot(name: str) -> None:
    try:
        options = MODELS[name].make().options_for_width(1)
    except ConfigError:
        return
    changed = type(MODELS[name].make())(**{**vars(MODELS[name].make()), **options})
    assert isinstance(changed.make_bottom(party_data("telecom", width=3), Binary()), nn.Module)


def examples(name: str) -> tuple[Loss, Task, Tensor, Tensor]:
    """Return a loss, its task, outputs in float64 that learn, and labels."""
    loss = LOSSES[name].make()
    task = LOSSES[name].task(loss)
    data = party_data(ACTIVE, width=2, task=task.name)
    assert data.train.labels is not None
    random = torch.Generator().manual_seed(0)
    outputs = torch.randn(48, task.outputs, generator=random, dtype=torch.float64, requires_grad=True)
    return loss, task, outputs, data.train.labels


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_the_mean_of_those_of_the_records(name: str) -> None:
    loss, task, outputs, labels = examples(name)
    task.check(labels)
    each = torch.stack([loss(outputs[[row]], labels[[row]]) for row in range(48)])
    # Sums of 48 numbers of size about 1 in float64.
    torch.testing.assert_close(loss(outputs, labels), each.mean(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_the_gradient_of_its_differences(name: str) -> None:
    loss, _, outputs, labels = examples(name)
    assert torch.autograd.gradcheck(lambda given: loss(given, labels), outputs)


@pytest.mark.parametrize("name", LOSSES)
def test_scores_are_one_for_each_record_or_for_each_class_of_it(name: str) -> None:
    loss, task, outputs, _ = examples(name)
    scores = loss.scores(outputs)
    assert scores.shape == ((48,) if task.outputs == 1 else (48, task.outputs))
    assert torch.isfinite(scores).all()
    assert not torch.isnan(torch.tensor(task.measure(outputs, examples(name)[3])))


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_trains_what_it_can_and_does_as_its_attributes_say(name: str) -> None:
    row, sent = EXCHANGES[name], list[Message]()
    exchange = row.make()
    recipe = models.LogisticRegressionRecipe() if row.linear else models.MLPRecipe(bottom=(4,))
    trainer = trainer_of(recipe, Binary(logistic_loss(exchange.approximation)), exchange, sent.append)
    assert moved_in_an_epoch(trainer) == ({ACTIVE} if exchange.one_way else {ACTIVE, "telecom"})
    assert exchange.terms()["exchange"] == name
    back = [message for message in sent if message.receiver == "telecom" and message.kind == "gradient"]
    assert not (back and exchange.one_way)
    assert exchange.shows_gradients() <= bool(back)
    assert isinstance(trainer.active.top, LinearTop) == row.linear
    third = exchange.third_parties(ACTIVE)
    assert list(third) == ([] if exchange.third_party is None else [exchange.third_party])


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_that_trains_no_private_top_says_so(name: str) -> None:
    exchange = EXCHANGES[name].make()
    active = ActiveParty(party_data(ACTIVE, width=2, task="binary"), nn.Linear(3, 1), private_top=nn.Linear(3, 1))
    if exchange.has_private_top:
        exchange.check_private_top(active)
        return
    with pytest.raises(ConfigError, match=f"exchange {name} trains no private top"):
        exchange.check_private_top(active)
