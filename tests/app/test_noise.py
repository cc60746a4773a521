"""DP-Paillier-MGD from an experiment file: who adds how much noise, to what, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from scipy.stats import norm

from splitvfl.app.experiment import build_trainer, run_experiment
from splitvfl.app.noise import NoisePlan
from splitvfl.app.noise_plans import plan_of
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import PartyData, VerticalData
from splitvfl.defenses import CoefficientNoise, GaussianIR
from splitvfl.errors import ConfigError
from splitvfl.exchange.taylor import Taylor
from splitvfl.messaging.messages import Message
from tests.run.parties import SHORT_KEYS

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["* error", "worst *"]}
model: {name: logistic-regression, row_norm: 0.7, init: zero}
exchange: {name: taylor, encryption: {key_bits: 2048}, noise: {epsilon: 0.2, delta: 0.1}}
train: {epochs: 30, batch_size: 256, optimizer: {name: sgd, lr: 0.01}, noise_seed_for_experiments: 3}
"""

LAST = 184  # records of the last batch, of 440 in batches of 256

THREE = TEXT.replace(
    'columns: ["* error", "worst *"]}', 'columns: ["* error"]}\n  far: {role: passive, columns: ["worst *"]}'
)


def config_of(*changes: str, text: str = TEXT) -> ExperimentConfig:
    return parse_config(text, source="noisy.yaml", overrides=changes)


@pytest.fixture(autouse=True)
def short_keys() -> Iterator[None]:
    with SHORT_KEYS():
        yield


@pytest.fixture(scope="module")
def data() -> VerticalData:
    return load_data(config_of())


def noise_plan(config: ExperimentConfig, data: PartyData) -> NoisePlan:
    found = plan_of(config, data)
    assert isinstance(found, NoisePlan)
    return found


def sigma_by_hand(party: str, *, epsilon: float, epochs: int, steps: int) -> float:
    """The published formula at δ = .1, G = 1, η = .01, s the last batch's records."""
    drift = 8 * epochs**2 * steps * 0.01**2 / LAST
    own = 64 * epochs if party == "A" else 16 * epochs
    return math.sqrt(2 * math.log(1.25 / 0.1)) * math.sqrt(drift + own) / epsilon


def test_the_published_noise_is_that_of_all_epochs(data: VerticalData) -> None:
    plan = noise_plan(config_of(), data.active)
    # 2 steps an epoch: 440 training records in batches of 256.
    steps = 30 * math.ceil(data.active.train.count / 256)
    assert plan.steps == steps
    assert plan.active == pytest.approx(sigma_by_hand("A", epsilon=0.2, epochs=30, steps=steps), rel=1e-6)
    assert plan.passive == pytest.approx(sigma_by_hand("B", epsilon=0.2, epochs=30, steps=steps), rel=1e-6)
    assert plan.active == pytest.approx(493, abs=1)


def test_the_noise_of_one_epoch_is_that_of_the_published_experiments(data: VerticalData) -> None:
    for epsilon, published in ((0.1, 179.8), (0.2, 89.9), (0.5, 36.0)):
        changes = ("exchange.noise.calibration=one-epoch", f"exchange.noise.epsilon={epsilon}")
        plan = noise_plan(config_of(*changes), data.active)
        assert plan.active == pytest.approx(published, abs=0.05)


def test_corrected_noise_protects_one_party(data: VerticalData) -> None:
    alone = noise_plan(config_of("exchange.noise.calibration=corrected", "exchange.noise.protects=active"), data.active)
    beside = noise_plan(
        config_of(
            "exchange.noise.calibration=corrected", "exchange.noise.protects=passive", "exchange.noise.other_sigma=2.0"
        ),
        data.active,
    )
    published = noise_plan(config_of(), data.active)
    assert (alone.active, alone.passive) == (published.active, 0.0)
    assert beside.active == 2.0
    # G grows by 2 tau / 4 with tau = sqrt(2 ln(2 s T / δ')), δ' = .05, and δ is .05 too.
    bound = 1 + 2 * math.sqrt(2 * math.log(2 * LAST * beside.steps / 0.05)) / 4
    drift = 8 * bound**2 * 900 * beside.steps * 0.01**2 / LAST
    by_hand = math.sqrt(2 * math.log(1.25 / 0.05)) * math.sqrt(drift + (8 * bound - 4) ** 2 * 30) / 0.2
    assert beside.passive == pytest.approx(by_hand, rel=1e-6)


def test_noises_of_several_passive_parties_add_up_in_what_the_active_party_is_protected_from() -> None:
    changes = ("exchange.noise.calibration=corrected", "exchange.noise.protects=active", "model.row_norm=0.5")
    config = config_of(*changes, "exchange.noise.other_sigma=2.0", text=THREE)
    found = noise_plan(config, load_data(config).active)
    assert found.passive == 2.0
    # G grows by sqrt(2) 2 tau / 4: two noises of 2 have a deviation of 2 sqrt(2) together.
    tau = math.sqrt(2 * math.log(2 * LAST * found.steps / 0.05))
    bound = 1 + 2 * math.sqrt(2) * tau / 4
    drift = 8 * bound**2 * 900 * found.steps * 0.01**2 / LAST
    by_hand = math.sqrt(2 * math.log(1.25 / 0.05)) * math.sqrt(drift + 64 * bound**2 * 30) / 0.2
    assert found.active == pytest.approx(by_hand, rel=1e-6)


def test_every_party_adds_its_noise_in_training_only(data: VerticalData) -> None:
    config = config_of()
    trainer = build_trainer(config, data)
    plan = noise_plan(config, data.active)
    (own,) = trainer.active.cuts["lab"].gradient
    assert isinstance(own, CoefficientNoise)
    assert (own.sigma, own.largest) == (plan.active, 4.0)
    (other,) = trainer.passives["lab"].activation["training"]
    assert isinstance(other, GaussianIR)
    assert (other.sigma, other.clip) == (plan.passive, 2.0)
    assert not list(trainer.passives["lab"].activation["evaluation"])
    assert not list(trainer.passives["lab"].activation["prediction"])


def test_steps_are_those_of_the_algorithm_with_the_noise_that_was_drawn(data: VerticalData) -> None:
    config = config_of("exchange.noise.epsilon=0.5", "exchange.noise.calibration=one-epoch", "train.epochs=1")
    trainer = build_trainer(config, data)
    noises: dict[str, list[torch.Tensor]] = {"clinic": [], "lab": []}
    (own,), (other,) = trainer.active.cuts["lab"].gradient, trainer.passives["lab"].activation["training"]
    _noting(own, noises["clinic"])
    _noting(other, noises["lab"])
    bank, lab = trainer.active, trainer.passives["lab"]
    weights = {"clinic": torch.zeros(11, dtype=torch.float64), "lab": torch.zeros(20, dtype=torch.float64)}
    trainer.fit(1)
    for number, rows in enumerate(trainer.batches.epoch(0)):
        mine, theirs = bank.train_batch(rows), lab.train_batch(rows)
        columns = {"clinic": mine.columns.numeric.double(), "lab": theirs.columns.numeric.double()}
        assert all(part.norm(dim=1).max() <= 0.7 + 1e-6 for part in columns.values())
        columns["clinic"] = torch.cat([columns["clinic"], torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)
        own_part = columns["clinic"] @ weights["clinic"] - 2 * (2 * mine.labels.double() - 1)
        their_part = columns["lab"] @ weights["lab"]
        sent = {
            "clinic": own_part + noises["clinic"][number][:, 0].double() * 4 * len(rows),
            "lab": their_part + noises["lab"][number][:, 0].double(),
        }
        # Algorithm 3, corrected: its own part as it is, the other's as it was sent.
        weights["clinic"] -= 0.01 / (4 * len(rows)) * columns["clinic"].T @ (own_part + sent["lab"])
        weights["lab"] -= 0.01 / (4 * len(rows)) * columns["lab"].T @ (their_part + sent["clinic"])
    found = torch.cat([bank.top.own.weight.detach().flatten(), bank.top.intercept.detach()])
    # Weights and noise are float32, of size .1 and 300: 2^-24 of each, over two steps of rate .01.
    torch.testing.assert_close(found.double(), weights["clinic"], rtol=0, atol=1e-6)
    torch.testing.assert_close(lab.bottom.weight.detach()[0].double(), weights["lab"], rtol=0, atol=1e-6)
    assert weights["lab"].abs().max() > 1e-3


def _noting(defense: object, noises: list[torch.Tensor]) -> None:
    """Have a defense note what it adds; nothing is clipped in these steps."""
    original = type(defense).__call__

    class Noting(type(defense)):  # type: ignore[misc]
        claims = type(defense).claims

        def __call__(self, message: torch.Tensor, secrets: object, /) -> torch.Tensor:
            sent = original(self, message, secrets)
            noises.append(sent - message)
            return sent

    defense.__class__ = Noting


def test_a_run_says_what_its_noise_buys(tmp_path: Path) -> None:
    summary = run_experiment(config_of("train.epochs=2", "exchange.noise.epsilon=0.5"), tmp_path / "run")
    sigma = sigma_by_hand("A", epsilon=0.5, epochs=2, steps=summary.steps)
    text = " ".join(summary.notes)
    assert f"σ {sigma:.1f} on the active party's part" in text
    assert f"probability {norm.cdf(2 / sigma):.3f} from one step" in text
    assert f"and {norm.cdf(2 * math.sqrt(2) / sigma):.3f} from the mean of all epochs" in text
    assert "heuristic" in text
    assert summary.defense == "dp-paillier-mgd(epsilon=0.5, delta=0.1, published)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.optimizer={name: sgd, lr: 0.01, momentum: 0.9}", "plain gradient descent"),
        ("train.optimizer={name: adam}", "plain gradient descent"),
        ("train.optimizer.lr=1.5", "at most 1"),
        ("model=logistic-regression", r"with 2 of them .* row_norm: 0.7"),
        ("model.row_norm=0.71", r"with 2 of them .* row_norm: 0.7"),
    ],
)
def test_training_that_the_noise_is_not_calculated_for_is_refused(
    change: str, message: str, data: VerticalData
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_trainer(config_of(change), data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("exchange.noise.epsilon=1.0", "epsilon"),
        ("exchange.noise.delta=0", "delta"),
        ("exchange.noise.gradient_bound=0.5", "gradient_bound"),
        ("exchange.noise.calibration=corrected", "protects one party"),
        ("exchange.noise.protects=active", "for one, write calibration: corrected"),
        ("exchange.noise.other_sigma=1.0", "goes with calibration corrected"),
        ("exchange.loss=true", "it would mean nothing"),
    ],
)
def test_noise_that_contradicts_itself_is_refused(change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(change)


def test_held_out_records_take_no_step(data: VerticalData) -> None:
    plan = noise_plan(config_of("train.early_stopping={validation_every: 4}"), data.active)
    trainer = build_trainer(config_of("train.early_stopping={validation_every: 4}"), data)
    assert plan.steps == 30 * len(trainer.batches)


def test_a_run_with_noise_is_not_resumed_for_more_epochs(tmp_path: Path) -> None:
    run_experiment(config_of("train.epochs=1", "exchange.noise.epsilon=0.5"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"started with other settings: train\.epochs"):
        run_experiment(config_of("train.epochs=2", "exchange.noise.epsilon=0.5"), tmp_path / "run", resume=True)


def test_all_passive_parties_get_one_draw_of_the_active_partys_noise() -> None:
    config = config_of("train.epochs=1", "exchange.noise.epsilon=0.5", "model.row_norm=0.5", text=THREE)
    trainer = build_trainer(config, load_data(config))
    messages: list[Message] = []
    trainer.record = messages.append
    trainer.fit(1)
    sent: dict[int, list[torch.Tensor]] = {}
    for message in messages:
        if message.kind == "residues":
            sent.setdefault(message.step, []).append(message.payload)
    assert {len(payloads) for payloads in sent.values()} == {2}
    # One ciphertext for both: two draws would average out between them.
    assert all(torch.equal(*payloads) for payloads in sent.values())


def test_corrected_noise_of_several_passive_parties_is_refused() -> None:
    config = config_of(
        "exchange.noise.calibration=corrected", "exchange.noise.protects=passive", "model.row_norm=0.5", text=THREE
    )
    with pytest.raises(ConfigError, match="for one passive party; here are 2"):
        build_trainer(config, load_data(config))


@pytest.mark.parametrize("protects", ["both", "active"])
def test_noise_that_nothing_planned_is_not_trained_without(protects: str, data: VerticalData) -> None:
    """An exchange that was told of noise, at a party that has none."""
    changes = () if protects == "both" else ("exchange.noise.calibration=corrected", "exchange.noise.protects=active")
    planned = build_trainer(config_of(*changes), data)  # which attaches noise, at one party or at both
    exchange = planned.exchange
    assert isinstance(exchange, Taylor)
    told = Taylor(noise=exchange.noise, encryption=exchange.encryption, rows=exchange.rows)
    with pytest.raises(ConfigError, match="noise is agreed on, and nothing has planned it"):
        told.passive_side(planned.passives["lab"], planned.active.name)
