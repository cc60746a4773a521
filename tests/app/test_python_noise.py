"""Noise for a trainer in Python is that of an experiment's file with the same settings, and so is the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

import splitvfl.run.trainer
from splitvfl.app import estimators
from splitvfl.app.experiment import Experiment, Workbench
from splitvfl.app.noise_plans import plan_of
from splitvfl.app.records import load_data
from splitvfl.app.trainer import Trainer
from splitvfl.claims import auc_of_epsilon, auc_of_mu
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import VerticalData
from splitvfl.defenses import AsymmetricResponse, GaussianIR, Rounding
from splitvfl.errors import ArgumentError, ConfigError, SplitVFLError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.noise import HdpNoiseSettings, NoiseSettings, SumNoiseSettings
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.learning.glm_losses import LeastSquaresLoss
from splitvfl.learning.optimizers import ProximalSGD, fused_adam, sgd
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.learning.tasks import Binary, Regression, Task
from splitvfl.models import MLP, Linear, LinearTop, logistic_loss
from splitvfl.models.linear import LogisticRegressionRecipe
from splitvfl.party.attaching import label_guarantee
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.privacy import tight_hdp_sensitivity
from splitvfl.run.plan import TrainingPlan
from splitvfl.sklearn import SplitClassifier, SplitRegressor
from tests.exchange.logistic import SHORT
from tests.run.parties import SHORT_KEYS

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["* error"]}
  far: {role: passive, columns: ["worst *"]}
model: {name: logistic-regression, init: zero, row_norm: 0.5}
exchange: {name: split, noise: {epsilon: 1.0, delta: 0.001}}
train: {epochs: 2, batch_size: 128, optimizer: {name: sgd, lr: 0.1}, noise_seed_for_experiments: 5, seed: 3}
audit: false
"""
SGD = partial(sgd, lr=0.1)


def config_of(*changes: str) -> ExperimentConfig:
    return parse_config(TEXT, source="hdp.yaml", overrides=changes)


@pytest.fixture(scope="module")
def data() -> VerticalData:
    return load_data(config_of())


def in_python(
    data: VerticalData,
    exchange: Exchange,
    *,
    norm: float | None = 0.5,
    optimizer: Any = SGD,
    task: Task | None = None,
    intercept: bool = True,
    bottom: Callable[[int], nn.Module] = lambda width: Linear(width, init="zero"),
    **settings: Any,
) -> Trainer:
    """A trainer of the file above, from objects."""
    own = data.active.with_row_norm(norm)
    top = LinearTop(len(data.passives), 1, active_inputs=own.width, init="zero", intercept=intercept)
    active = ActiveParty(own, top, task=task or Binary(), optimizer=optimizer)
    passives = {
        name: PassiveParty(party.with_row_norm(norm), bottom(party.width), optimizer=optimizer)
        for name, party in data.passives.items()
    }
    usual = {"epochs": 2, "batch_size": 128, "seed": 3, "noise_seed_for_experiments": 5, "audit": False}
    return Trainer(active, passives, exchange=exchange, **{**usual, **settings})


def sigmas(trainer: Trainer) -> list[tuple[str, float]]:
    """Every standard deviation of noise that is attached, in its order."""
    parties = (trainer.active, *trainer.passives.values())
    chains = [item for party in parties for item in sorted(party.chains().items())]
    return [(where, getattr(one, "sigma", 0.0)) for where, chain in chains for one in chain]


def weights_of(trainer: Trainer) -> list[torch.Tensor]:
    parties = (trainer.active, *trainer.passives.values())
    return [weight.detach().clone() for party in parties for weight in party.module.parameters()]


HDP = HdpNoiseSettings(epsilon=1.0, delta=0.001)


@pytest.mark.parametrize(
    ("changes", "settings", "given"),
    [
        ([], {}, {}),
        (
            ["exchange.noise.calibration=published", "train.drop_last=true"],
            {"calibration": "published"},
            {"drop_last": True},
        ),
        (["exchange.noise.calibration=as-printed"], {"calibration": "as-printed"}, {}),
        (["exchange.noise.radius=0.01", "model.intercept=false"], {"radius": 0.01}, {"intercept": False}),
        (["defenses=[{name: rounding, decimals: 3}]"], {}, {"defenses": [Rounding(decimals=3)]}),
        (
            ["train.optimizer={name: sgd, lr: 0.3, weight_decay: 0.2}"],
            {},
            {"optimizer": partial(torch.optim.SGD, lr=0.3, weight_decay=0.2)},
        ),
        (
            ["train.optimizer={name: proximal-sgd, lr: 0.3, l1: 0.01, l2: 0.2}"],
            {},
            {"optimizer": partial(ProximalSGD, lr=0.3, l1=0.01, l2=0.2)},
        ),
        (
            ["exchange.noise.evaluation_share=0.2", "train.evaluate_every_epochs=2"],
            {"evaluation_share": 0.2},
            {"evaluate_every": 2},
        ),
    ],
    ids=["tight", "published", "as-printed", "radius", "scores", "decay", "proximal", "evaluations"],
)
def test_hdp_noise_and_its_run_are_those_of_the_file(
    changes: list[str], settings: dict[str, Any], given: dict[str, Any], data: VerticalData
) -> None:
    config = config_of(*changes)
    experiment = Experiment(config, Workbench(data, {}))
    by_file = experiment.trainer()
    by_hand = in_python(data, Split(noise=HDP.model_copy(update=settings)), **given)

    assert sigmas(by_hand) == sigmas(by_file)
    assert len(sigmas(by_hand)) >= 4
    assert list(by_hand.noise_notes) == experiment.noise_notes()
    assert by_hand.fit(2) == by_file.fit(2)
    for mine, theirs in zip(weights_of(by_hand), weights_of(by_file), strict=True):
        assert torch.equal(mine, theirs)
    assert by_hand.training.spent() == by_file.training.spent() != []
    assert by_hand.training.account is not None
    mu = by_hand.training.account.spent(by_hand.active.name, relation="label").mu
    for verdict in by_hand.verdict.values():
        assert verdict.labels is not None
        assert verdict.labels.guarantee is not None
        assert verdict.labels.guarantee.of_run
        assert verdict.labels.guarantee.auc == pytest.approx(min(1.0, auc_of_mu(mu)), abs=1e-6)
    for party in (by_hand.active, *by_hand.passives.values()):
        norm = torch.cat([weight.flatten() for weight in party.module.parameters()]).double().norm()
        assert norm <= settings.get("radius", 1.0) + 1e-9


def test_first_weights_are_taken_into_the_ball(data: VerticalData) -> None:
    trainer = in_python(data, Split(noise=HDP), bottom=lambda width: Linear(width, init="normal"))
    # Ten standard normal numbers are about 3 long.
    for party in trainer.passives.values():
        assert party.module.weight.detach().norm() == pytest.approx(1.0, abs=1e-6)


def test_given_noise_has_a_budget_that_ends_the_run(data: VerticalData) -> None:
    given = {"epsilon": 1.0, "active_sigma": 8.0, "passive_sigma": 8.0}
    config = config_of(
        "exchange.noise={epsilon: 1.0, delta: 0.001, active_sigma: 8.0, passive_sigma: 8.0}", "train.epochs=9"
    )
    by_file = Experiment(config, Workbench(data, {})).trainer()
    by_hand = in_python(data, Split(noise=HDP.model_copy(update=given)), epochs=9)
    for trainer in (by_file, by_hand):
        trainer.fit(9)
    assert by_hand.step == by_file.step < 9 * 4
    assert by_hand.training.account is not None
    assert by_hand.training.account.last_step == by_hand.step


def test_noise_before_encryption_is_that_of_the_file(data: VerticalData) -> None:
    changes = (
        "exchange={name: taylor, noise: {epsilon: 0.5, delta: 0.1}}",
        "train.optimizer.lr=0.01",
        "train.epochs=1",
        "train.batch_size=256",
    )
    with SHORT_KEYS():
        by_file = Experiment(config_of(*changes), Workbench(data, {})).trainer()
        exchange = Taylor(rows=256, encryption=SHORT, noise=NoiseSettings(epsilon=0.5, delta=0.1))
        by_hand = in_python(
            data,
            exchange,
            optimizer=partial(sgd, lr=0.01),
            task=Binary(logistic_loss("taylor")),
            epochs=1,
            batch_size=256,
        )
        assert sigmas(by_hand) == sigmas(by_file) != []
        assert by_hand.exchange.noise_is_planned
        assert by_hand.exchange.encryption.largest_value == by_file.exchange.encryption.largest_value  # type: ignore[attr-defined]
        assert not exchange.noise_is_planned  # it can be given to another trainer
        assert by_hand.fit(1) == by_file.fit(1)
    for mine, theirs in zip(weights_of(by_hand), weights_of(by_file), strict=True):
        assert torch.equal(mine, theirs)


def test_noise_on_sums_is_that_of_the_file(data: VerticalData) -> None:
    config = config_of("exchange={name: residue, own_part: sent, sum_noise: {epsilon: 1.0, delta: 0.001}}")
    plan = plan_of(config, data.active)
    assert plan is not None
    agreed = SumNoiseSettings(epsilon=1.0, delta=0.001)
    by_hand = in_python(data, Residue(rows=128, own_part="sent", sum_noise=agreed))
    assert by_hand.exchange.sum_noise is not None
    assert {"noise on a sum": by_hand.exchange.sum_noise.sigma}.items() <= plan.terms().items()
    assert list(by_hand.noise_notes) == plan.notes({})
    assert by_hand.training.account is not None
    owner = by_hand.active.name
    found = label_guarantee(by_hand.active, next(iter(by_hand.passives)), epochs=2, account=by_hand.training.account)
    assert found is not None
    assert found.auc == pytest.approx(auc_of_mu(by_hand.training.account.planned(owner, relation="label").mu), abs=1e-6)
    assert 0.5 < found.auc < auc_of_epsilon(1.0)  # (ε, δ) of this noise is a μ of less
    # Given noise of which nothing is counted needs no number of epochs.
    given = agreed.model_copy(update={"sigma": 5.0})
    uncounted = in_python(data, Residue(rows=128, own_part="sent", sum_noise=given), epochs=None)
    assert uncounted.training.account is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"epochs": None}, r"say how many they are, Trainer\(\.\.\., epochs=10\)"),
        ({"norm": None}, r"nothing bounds those of clinic: make the party of data\.with_row_norm\(1\.0\)"),
        ({"bottom": lambda width: MLP(width, [1])}, "LinearTop at the label party.*lab has MLP"),
        ({"bottom": lambda width: Linear(width, bias=True)}, "lab has Linear"),
        ({"optimizer": partial(sgd, lr=0.1, momentum=0.9)}, "take sgd without momentum"),
        ({"optimizer": fused_adam}, "take sgd without momentum"),
        ({"early_stopping": EarlyStopping(patience=1)}, r"train\.early_stopping: .*true labels"),
        ({"autocast": torch.bfloat16}, r"train\.autocast"),
        ({"defenses": [AsymmetricResponse(detection_error=0.4)]}, "asymmetric-response changes what crosses"),
        ({"defenses": [GaussianIR(clip=1.0, sigma=1.0)]}, "gaussian-ir changes what crosses"),
        ({"task": Binary(logistic_loss("taylor"))}, r"train\.loss: exchange\.noise is calculated for the logistic"),
        ({"task": Regression(LeastSquaresLoss())}, "the least-squares loss has no bounds here"),
        ({"shards": 2}, "exchange.noise: is calculated for batches of one size"),
    ],
)
def test_what_the_noise_is_not_calculated_for_is_refused(given: dict[str, Any], text: str, data: VerticalData) -> None:
    with pytest.raises(ConfigError, match=text):
        in_python(data, Split(noise=HDP), **given)


def test_users_import_the_trainer_that_calculates_and_the_other_says_so(data: VerticalData) -> None:
    assert splitvfl.Trainer is Trainer
    trainer = in_python(data, Split())
    with pytest.raises(ConfigError, match="would be protected by nothing"):
        splitvfl.run.trainer.Trainer(
            trainer.active, trainer.passives, TrainingPlan(exchange=Split(noise=HDP), epochs=2, batch_size=64)
        )


def test_parties_take_the_same_steps(data: VerticalData) -> None:
    own = data.active.with_row_norm(0.5)
    active = ActiveParty(own, LinearTop(1, active_inputs=own.width), optimizer=SGD)
    other = data.passives["lab"].with_row_norm(0.5)
    lab = PassiveParty(other, Linear(other.width), optimizer=partial(sgd, lr=0.2))
    with pytest.raises(ConfigError, match="clinic and lab take others; give all one optimiser"):
        Trainer(active, {"lab": lab}, exchange=Split(noise=HDP), epochs=2)


def test_more_epochs_than_it_was_calculated_for_are_refused(data: VerticalData) -> None:
    trainer = in_python(data, Split(noise=HDP))
    with pytest.raises(ConfigError, match="calculated for 2 epochs, and 3 would spend more"):
        trainer.fit(3)


@pytest.mark.parametrize("noise", [HDP, None])
@pytest.mark.parametrize("epochs", [0, -1, 2.5, "2", True, math.nan])
def test_epochs_are_a_whole_number_of_at_least_one(
    epochs: Any, noise: HdpNoiseSettings | None, data: VerticalData
) -> None:
    with pytest.raises(ArgumentError, match=r"^epochs must be (a whole number, )?at least 1, got "):
        in_python(data, Split(noise=noise), epochs=epochs)
    trainer = in_python(data, Split(noise=noise))
    with pytest.raises(ArgumentError, match=r"^epochs must be (a whole number, )?at least 1, got "):
        trainer.fit(epochs)
    with pytest.raises(ArgumentError, match=r"^evaluate_every must be (a whole number, )?at least 1, got "):
        in_python(data, Split(noise=noise), evaluate_every=epochs)


def test_epochs_may_be_counted_by_numpy(data: VerticalData) -> None:
    assert sigmas(in_python(data, Split(noise=HDP), epochs=np.int64(2))) == sigmas(in_python(data, Split(noise=HDP)))


@pytest.mark.parametrize(
    ("exchange", "text"),
    [
        ("split", r"^expected exchange as an object of splitvfl\.exchange, .* got 'split'$"),
        (Split, r"^expected exchange as an object of splitvfl\.exchange, .* got <class"),
        (False, "^expected exchange as an object .* got false$"),
        (["clinic"], r"^expected exchange as an object .* got \['clinic'\]$"),
        ({}, "^expected an exchange for each of clinic, lab, far, got none$"),
        ({"clinic": Split(), "lab": "split", "far": Split()}, "^expected exchange of lab as an object .* got 'split'$"),
        ({"clinic": Split(), "lab": Split(), "far": None}, "^expected exchange of far as an object .* got nothing$"),
    ],
    ids=["text", "class", "false", "list", "none", "text of one", "none of one"],
)
def test_what_is_no_exchange_is_refused_by_name(exchange: Any, text: str, data: VerticalData) -> None:
    with pytest.raises(ArgumentError, match=text):
        in_python(data, exchange)


OF_SUMS = SumNoiseSettings(epsilon=1.0, delta=0.001)
BEFORE_ENCRYPTION = NoiseSettings(epsilon=0.5, delta=0.1)


@pytest.mark.parametrize("given", [{"epsilon": 0.5, "delta": 0.1}, {}, 1.0, False, "hdp", HdpNoiseSettings])
@pytest.mark.parametrize(
    ("make", "argument", "kind"),
    [
        (Split, "noise", HdpNoiseSettings),
        (partial(Taylor, rows=4), "noise", NoiseSettings),
        (partial(Residue, rows=4), "sum_noise", SumNoiseSettings),
    ],
    ids=["split", "taylor", "residue"],
)
def test_an_exchange_says_of_which_class_its_noise_is(make: Any, argument: str, kind: type, given: Any) -> None:
    others = [one for one in (HDP, OF_SUMS, BEFORE_ENCRYPTION) if type(one) is not kind]
    for wrong in (given, *others):
        with pytest.raises(
            ArgumentError, match=rf"^expected {argument} as splitvfl\.exchange\.noise\.{kind.__name__}\("
        ):
            make(**{argument: wrong})


@pytest.mark.parametrize("noisy", [("clinic", "lab", "far"), ("clinic",), ("lab",)])
def test_noise_by_party_is_refused_and_nobody_trains_without(noisy: tuple[str, ...], data: VerticalData) -> None:
    exchange = {name: Split(noise=HDP if name in noisy else None) for name in ("clinic", "lab", "far")}
    with pytest.raises(ConfigError, match="noise is agreed on, and nothing has attached it"):
        in_python(data, exchange)  # type: ignore[arg-type]


def test_what_is_put_by_for_predictions_is_refused_where_nothing_counts_them(data: VerticalData) -> None:
    agreed = HDP.model_copy(update={"prediction_share": 0.2, "predictions": 100})
    with pytest.raises(ConfigError, match="nothing counts them here"):
        in_python(data, Split(noise=agreed))


# --- estimators


def features(count: int = 60) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(count, 5))
    return X, (X[:, 0] + X[:, 4] > 0).astype(int)


LOGISTIC = {"name": "logistic-regression", "init": "zero", "row_norm": 1.0}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """Every trainer that an estimator makes."""
    found: list[Trainer] = []

    class Noting(Trainer):
        def __init__(self, *parties: Any, **settings: Any) -> None:
            super().__init__(*parties, **settings)
            found.append(self)

    monkeypatch.setattr(estimators, "Trainer", Noting)
    return found


def test_an_estimators_noise_is_that_of_a_trainer_and_so_is_its_run(made: list[Trainer]) -> None:
    X, y = features()
    given = {"exchange": Split(noise=HDP), "learning_rate": 0.5, "epochs": 3, "batch_size": 20, "random_state": 1}
    model = clone(SplitClassifier({"lab": slice(2, None)}, model=LOGISTIC, audit=False, **given)).fit(X, y)
    (own,) = made
    parties = {name: party.data for name, party in own.passives.items()}
    steps = partial(sgd, lr=0.5)
    bank = ActiveParty(own.active.data, LinearTop(1, active_inputs=2, init="zero"), optimizer=steps)
    others = {name: PassiveParty(one, Linear(one.width, init="zero"), optimizer=steps) for name, one in parties.items()}
    usual: dict[str, Any] = {"batch_size": 20, "seed": own.batches.seed, "audit": False, "evaluate_every": 3}
    noise_seed = own.batches.seed  # random_state makes noise repeatable too
    by_hand = Trainer(bank, others, exchange=Split(noise=HDP), epochs=3, noise_seed_for_experiments=noise_seed, **usual)
    by_hand.fit(3)

    assert sigmas(by_hand) == sigmas(own)
    assert len(sigmas(own)) == 2
    for mine, theirs in zip(weights_of(own), weights_of(by_hand), strict=True):
        assert torch.equal(mine, theirs)
    assert model.noise_notes_ == list(by_hand.noise_notes)
    # Lemma by lemma: three batches of 20 an epoch, rows and weights of norm 1, a rate of 1/2.
    moved = tight_hdp_sensitivity("passive", steps=9, epochs=3, batch_size=20, eta=0.5, k=1.0, lipschitz=1.0)
    assert f"(sensitivity {moved:.4g})" in model.noise_notes_[0]


def test_an_estimator_trains_under_encryption_with_noise_before_it(made: list[Trainer]) -> None:
    X, y = features()
    exchange = Taylor(rows=60, encryption=SHORT, noise=NoiseSettings(epsilon=0.5, delta=0.1))
    recipe = {**LOGISTIC, "row_norm": 0.7}
    with SHORT_KEYS():
        model = SplitClassifier(
            {"lab": slice(2, None)},
            model=recipe,
            audit=False,
            exchange=exchange,
            learning_rate=0.1,
            epochs=1,
            batch_size=60,
        ).fit(X, y)
    (trainer,) = made
    # One batch of all, one epoch: the published formula at G = 1.
    by_hand = math.sqrt(2 * math.log(1.25 / 0.1)) * math.sqrt(8 * 0.1**2 / 60 + 64) / 0.5
    assert dict(sigmas(trainer))["gradient/lab"] == pytest.approx(by_hand, rel=1e-6)
    assert any("heuristic" in line for line in model.noise_notes_)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"exchange": "split"}, r"expected exchange as an object of splitvfl\.exchange, .* got 'split'"),
        ({"learning_rate": None}, "learning_rate: noise is calculated for plain gradient descent"),
        ({"model": "mlp"}, "active has MLP.*take model logistic-regression or glm"),
        (
            {"model": "logistic-regression"},
            r"^model: .* write model=\{'name': 'logistic-regression', 'row_norm': 1\.0\}, with",
        ),
        (
            {"model": {"name": "glm", "init": "zero"}},
            r"^model: .* write model=\{'name': 'glm', 'init': 'zero', 'row_norm': 1\.0\}, with",
        ),
        (
            {"model": LogisticRegressionRecipe()},
            r"^model: .* write row_norm=1\.0 in LogisticRegressionRecipe\(",
        ),
        (
            {"model": "logistic-regression", "exchange": Taylor(rows=60, noise=BEFORE_ENCRYPTION)},
            r"write model=\{'name': 'logistic-regression', 'row_norm': 0\.7\}, with",
        ),
        (
            {"model": "logistic-regression", "exchange": Residue(rows=60, own_part="sent", sum_noise=OF_SUMS)},
            r"write model=\{'name': 'logistic-regression', 'row_norm': 1\.0\}, with",
        ),
        ({"epochs": 0}, "^epochs must be at least 1, got 0$"),
        ({"epochs": 2.5}, r"^epochs must be a whole number, at least 1, got 2\.5$"),
        ({"exchange": {"active": Split(noise=HDP), "lab": Split(noise=HDP)}}, "^expected exchange as an object of"),
    ],
)
def test_an_estimator_says_what_noise_needs(given: dict[str, Any], text: str) -> None:
    settings = {"model": LOGISTIC, "exchange": Split(noise=HDP), "learning_rate": 0.5, **given}
    with pytest.raises(SplitVFLError, match=text):
        SplitClassifier({"lab": slice(2, None)}, **settings).fit(*features())


@pytest.mark.parametrize("model", [LOGISTIC, "logistic-regression"], ids=["bounded", "unbounded"])
@pytest.mark.parametrize(
    ("estimator", "labels", "task"),
    [(SplitClassifier, np.arange(60) % 3, "multiclass"), (SplitRegressor, np.linspace(0, 1, 60), "regression")],
    ids=["three classes", "numbers"],
)
def test_an_estimator_says_that_noise_is_for_two_classes(estimator: Any, labels: Any, task: str, model: Any) -> None:
    unfit = estimator({"lab": slice(2, None)}, model=model, exchange=Split(noise=HDP), learning_rate=0.5)
    with pytest.raises(ConfigError, match=f"for labels of two classes, and active has a task of another kind, {task}"):
        unfit.fit(features()[0], labels)


def test_an_estimator_trains_on_numbers_with_a_loss_that_is_bounded(made: list[Trainer]) -> None:
    """As the refusal of other losses says."""
    model = {"name": "glm", "loss": "least-squares", "row_norm": 1.0, "target_clip": 2.0}
    numbers = SplitRegressor(
        {"lab": slice(2, None)}, model=model, exchange=Split(noise=HDP), learning_rate=0.5, epochs=1, audit=False
    )
    numbers.fit(features()[0], np.linspace(0, 1, 60))
    (trainer,) = made
    assert all(sigma > 0 for _, sigma in sigmas(trainer))
    assert len(sigmas(trainer)) == 2
