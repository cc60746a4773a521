"""What a run with calculated noise has spent: in its figures, its checkpoints, and after a kill."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from splitvfl.app.deployment import run_party
from splitvfl.app.experiment import Experiment, Workbench, run_experiment
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import VerticalData
from splitvfl.errors import ConfigError
from splitvfl.hooks import Secrets
from splitvfl.privacy import PrivacyBudget, gaussian_delta, tight_hdp_sensitivity
from splitvfl.report.summary import SpentPrivacy, read_summary
from splitvfl.run import checkpoint
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status
from splitvfl.system.signals import Interrupted
from tests.run.parties import free_ports, side_by_side

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["* error"]}
  far: {role: passive, columns: ["worst *"]}
model: {name: logistic-regression, init: zero, row_norm: 1.0, intercept: false}
exchange: {name: split, noise: {epsilon: 1.0, delta: 0.001}}
train: {epochs: 3, batch_size: 128, optimizer: {name: sgd, lr: 0.1}}
audit: false
"""
RECORDS = 440
SIZES = (128, 128, 128, 56)  # of the batches of an epoch
EACH = len(SIZES)
SENSITIVITY: dict[str, Any] = {
    "steps": 3 * EACH,
    "epochs": 3,
    "batch_size": 128,
    "last_batch": SIZES[-1],
    "eta": 0.1,
    "k": 1.0,
    "lipschitz": 1.0,
}
# The active party's; what one changed row and label do to its own entry follows from its own part of the logit.
OF_ACTIVE: dict[str, Any] = {"beta_theta": 0.25, "beta_y": 0.5, "k_y": 1.0, "step": 1 + math.tanh(0.5)}


def config_of(*changes: str) -> ExperimentConfig:
    return parse_config(TEXT, source="hdp.yaml", overrides=changes)


@pytest.fixture(scope="module")
def data() -> VerticalData:
    return load_data(config_of())


def trainer_of(data: VerticalData, *changes: str, folder: Path | None = None) -> Trainer:
    return Experiment(config_of(*changes), Workbench(data, {})).trainer(folder)


def account_of(trainer: Trainer) -> PrivacyBudget:
    assert trainer.training.account is not None
    return trainer.training.account


def sigmas(data: VerticalData) -> tuple[float, float]:
    """Return the noise of a passive party and the label party: the one that what they would send has."""
    trainer = trainer_of(data)
    passive = next(iter(trainer.passives["lab"].activation["training"]))
    active = next(iter(trainer.active.cuts["lab"].gradient))
    return passive.sigma, active.sigma  # type: ignore[attr-defined]


def stop_after(steps: int) -> Any:
    def look(status: Status) -> None:
        if status.step == steps:
            raise KeyboardInterrupt

    return look


def test_the_whole_run_spends_what_was_asked_for(data: VerticalData) -> None:
    trainer = trainer_of(data)
    trainer.fit(3)
    account = account_of(trainer)
    assert account.begun == 3 * EACH
    for sender in ("clinic", "lab", "far"):
        # σ is rounded up in its eighth digit.
        assert account.spent(sender).epsilon == pytest.approx(1.0, rel=1e-6)
        assert account.spent(sender).epsilon <= 1.0
    assert account.spent("clinic", relation="label").epsilon < 1.0


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_part_of_it_spends_what_the_recursion_says_up_to_there(epochs: int, data: VerticalData) -> None:
    trainer = trainer_of(data)
    trainer.fit(epochs)
    account, numbers = account_of(trainer), RECORDS * epochs
    for sender, sigma, own in zip(("lab", "clinic"), sigmas(data), ({}, OF_ACTIVE), strict=True):
        side: Any = "passive" if sender == "lab" else "active"
        moved = tight_hdp_sensitivity(side, **SENSITIVITY, **own, after=EACH * epochs)
        spent = account.spent(sender)
        # Rounding before the noise, to 2^-20 of it.
        assert spent.mu == pytest.approx(moved / sigma + 2.0**-20 * math.sqrt(numbers), rel=1e-9)
        assert gaussian_delta(1.0, spent.epsilon, sensitivity=spent.mu) == pytest.approx(0.001, rel=1e-6)
        assert spent.zcdp == pytest.approx(spent.mu**2 / 2)
        assert account.planned(sender).epsilon == pytest.approx(1.0, rel=1e-6)
    outsider = math.sqrt(account.spent("clinic").mu ** 2 + 2 * account.spent("lab").mu ** 2)
    assert account.outsider().mu == pytest.approx(outsider)


def test_it_is_in_the_log_the_summary_and_the_words(tmp_path: Path) -> None:
    summary = run_experiment(config_of(), tmp_path / "run")
    assert read_summary(tmp_path / "run") == summary
    found = {(*one.senders, one.relation): one for one in summary.privacy}
    everybody = ("clinic", "lab", "far")
    assert set(found) == {*((name, "row") for name in everybody), ("clinic", "label"), (*everybody, "record")}
    row = found["lab", "row"]
    assert (row.coalition, row.steps, row.planned_steps) == (["clinic"], 12, 12)
    assert row.epsilon == row.planned_epsilon == pytest.approx(1.0, rel=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [value for line in lines if (value := line.get("privacy/row at lab/epsilon")) is not None]
    assert len(logged) == 3
    assert logged == sorted(logged)
    assert logged[-1] == pytest.approx(row.epsilon)
    (said,) = [note for note in summary.notes if note.startswith("Spent on one row at lab")]
    shown = re.fullmatch(
        r"Spent on one row at lab, towards clinic: ε 1 at δ 0\.001 \(μ ([\d.]+), zCDP ([\d.]+)\) after 12 steps\.", said
    )
    assert shown is not None
    for cost, text in zip((row.mu, row.zcdp), shown.groups(), strict=True):
        assert cost <= float(text) <= 1.01 * cost  # never below what it is


def test_an_unbounded_loss_is_none_in_the_summary() -> None:
    from splitvfl.privacy import GaussianMessages, HdpTraining

    training = HdpTraining(party="passive", steps_per_epoch=1, batch_size=1, eta=0.1, k=1, lipschitz=1)
    budget = PrivacyBudget([GaussianMessages("lab", ("clinic",), {"row": training}, 1.0, unmatched=0.5)], 1, 0.1)
    budget.begin(0)
    ((spent, planned),) = budget.everything()
    assert SpentPrivacy.of(spent, planned).epsilon is None
    said = spent.in_words(planned)
    assert "no ε at δ 0.1 " in said
    assert said.endswith(": nothing is promised.")
    begun = replace(spent, epsilon=1.0, steps=0)  # bounded so far, and not at the end
    assert begun.in_words(spent).endswith("and no ε after the 1 that were planned: of all of them nothing is promised.")
    assert "promised" not in begun.in_words(replace(spent, epsilon=2.0))


def test_it_survives_a_kill_and_a_repeated_step_counts_once(
    tmp_path: Path, data: VerticalData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after six steps, when the last checkpoint is of four."""
    drawn: list[Any] = []
    add_normal = Secrets.add_normal

    def watched(self: Secrets, message: Any, scale: Any) -> Any:
        sent = add_normal(self, message, scale)
        drawn.append((self.party, self.step, sent.clone()))
        return sent

    monkeypatch.setattr(Secrets, "add_normal", watched)
    killed = trainer_of(data, folder=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        killed.fit(3, progress=stop_after(6))
    assert account_of(killed).begun == 6
    before = {(party, step): sent for party, step, sent in drawn}
    drawn.clear()
    again = trainer_of(data, folder=tmp_path / "run")
    assert again.resume() == EACH
    assert account_of(again).begun == EACH
    again.fit(3)
    for party, step, sent in drawn:
        if (party, step) in before:
            assert step >= EACH
            assert sent.equal(before[party, step])  # the same noise: nothing new is told
    assert account_of(again).spent("lab").epsilon == pytest.approx(1.0, rel=1e-6)


def test_a_checkpoint_without_an_account_counts_its_steps(tmp_path: Path, data: VerticalData) -> None:
    begun = trainer_of(data, folder=tmp_path / "run")
    begun.training.account = None  # as it was before accounts were kept
    begun.fit(1)
    later = trainer_of(data, folder=tmp_path / "run")
    later.resume()
    later.fit(2)
    assert account_of(later).begun == 2 * EACH


def test_who_stops_is_told_what_was_spent(tmp_path: Path, data: VerticalData) -> None:
    told: list[str] = []
    trainer = trainer_of(data, folder=tmp_path / "run")
    trainer.training.notify = told.append

    def ask(status: Status) -> None:
        if status.step == 5:
            trainer.training.signals.asked = True

    with pytest.raises(Interrupted):
        trainer.fit(3, progress=ask)
    (said,) = [line for line in told if line.startswith("Spent on one row at far")]
    assert "after 5 steps, and ε 1 after the 12 that were planned" in said


def test_more_epochs_than_planned_are_refused(tmp_path: Path, data: VerticalData) -> None:
    trainer = trainer_of(data)
    trainer.fit(3)
    with pytest.raises(ConfigError, match=r"calculated for 12 steps, and 4 epochs have 16"):
        trainer.fit(4)
    run_experiment(config_of(), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"other settings: train\.epochs"):
        run_experiment(config_of("train.epochs=4"), tmp_path / "run", resume=True)


# --- a budget for given noise

GIVEN = ("exchange.noise.active_sigma=20", "exchange.noise.passive_sigma=20", "train.epochs=30")


def last_by_hand(epsilon: float = 1.0, delta: float = 0.001, sigma: float = 20.0) -> int:
    """Return after how many steps neither party has overspent: the recursion, and Balle and Wang's formula."""
    longer = SENSITIVITY | {"steps": 30 * EACH, "epochs": 30}
    for step in range(1, 30 * EACH + 1):
        for side, own in (("passive", {}), ("active", OF_ACTIVE)):
            sizes = SIZES * 30
            mu = tight_hdp_sensitivity(side, **longer, **own, after=step) / sigma  # type: ignore[arg-type]
            mu += 2.0**-20 * math.sqrt(sum(sizes[:step]))
            if norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) > delta:
                return step - 1
    return 30 * EACH


def test_training_ends_before_the_step_that_would_overspend(tmp_path: Path) -> None:
    told: list[str] = []
    last = last_by_hand()
    assert 8 < last < 30 * EACH
    summary = run_experiment(config_of(*GIVEN), tmp_path / "run", notify=told.append)
    assert summary.steps == last
    assert list(checkpoint.steps(tmp_path / "run" / "checkpoints"))[-1] == last
    rows = {one.senders[0]: one for one in summary.privacy if one.relation == "row"}
    assert max(one.epsilon or 0 for one in rows.values()) <= 1.0
    assert all((one.planned_epsilon or 0) > 1.0 for one in rows.values() if one.senders == ["lab"])
    assert summary.test_metric is not None  # it ends in an evaluation
    assert any(f"{last} steps, where all parties end, of 120 in 30 epochs" in line for line in told)
    # There is nothing left to train, of so many epochs or more.
    again = run_experiment(config_of(*GIVEN), tmp_path / "run", resume=True)
    assert again == summary


def test_more_epochs_count_the_run_that_was(tmp_path: Path) -> None:
    """Of given noise they are welcome, as far as the budget goes."""
    first = run_experiment(config_of(*GIVEN, "train.epochs=1"), tmp_path / "run")
    assert first.steps == EACH
    longer = run_experiment(config_of(*GIVEN), tmp_path / "run", resume=True)
    assert longer.steps == last_by_hand()


def test_a_budget_that_is_large_enough_ends_nothing(data: VerticalData) -> None:
    trainer = trainer_of(data, *GIVEN, "train.epochs=2", "exchange.noise.passive_sigma=1000")
    trainer.fit(2)
    assert trainer.step == 2 * EACH
    said = Experiment(config_of(*GIVEN, "train.epochs=2"), Workbench(data, {})).noise_notes()
    assert said[0].startswith("HDP-VFL noise (given noise) for ε 1 and δ 0.001 over 2 epochs, 8 steps of 128 records")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (("exchange.noise.active_sigma=20",), "active_sigma and passive_sigma go together"),
        ((*GIVEN, "exchange.noise.calibration=published"), "calibration published calculates noise, and here it"),
        ((*GIVEN, "exchange.noise.passive_sigma=0.1"), "exchange.noise: no step fits: one with so little noise"),
        ((*GIVEN, "exchange.noise.passive_sigma=0"), "exchange.noise.passive_sigma"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(changes: tuple[str, ...], complaint: str, data: VerticalData) -> None:
    with pytest.raises(ConfigError, match=complaint):
        trainer_of(data, *changes)


NETWORK = 'network: {listen: "127.0.0.1:PORT", plaintext_on_loopback: true, meeting_s: 60, message_s: 60}\n'


@pytest.mark.slow(reason="trains over a network")
def test_deployed_parties_end_alike_and_each_says_what_was_spent(tmp_path: Path) -> None:
    text = TEXT.replace('columns: ["mean *"]}', 'columns: ["mean *"], address: "127.0.0.1:PORT"}') + NETWORK
    text = text.replace("PORT", str(free_ports(1)[0]))
    config = parse_config(text, source=tmp_path / "run.yaml", overrides=GIVEN)
    done: dict[str, int] = {}
    told: dict[str, list[str]] = {name: [] for name in config.parties}

    def take_part(name: str) -> None:
        run, _ = run_party(config, name, tmp_path / name, notify=told[name].append)
        assert run.training.account is not None
        done[name] = run.training.account.begun

    def train() -> None:
        assert side_by_side({name: partial(take_part, name) for name in config.parties}) == {}

    train()
    assert done == dict.fromkeys(config.parties, last_by_hand())
    for name in ("lab", "far"):
        (said,) = [line for line in told[name] if line.startswith("Spent on one row at lab")]
        assert f"after {last_by_hand()} steps" in said
        assert list(checkpoint.steps(tmp_path / name / "checkpoints"))[-1] == last_by_hand()
    done.clear()
    train()  # what was spent is what the checkpoint says: nothing is left to train
    assert done == dict.fromkeys(config.parties, last_by_hand())


# --- evaluations that are counted

SHARED = ("exchange.noise.evaluation_share=0.2",)


def test_evaluations_with_noise_are_part_of_what_was_asked_for(data: VerticalData) -> None:
    """The distance of neighbours' weights, stepped by hand for every place of the changed record."""
    trainer = trainer_of(data, *SHARED)
    chains = trainer.passives["lab"].activation
    (trained,), (shown,) = chains["training"], chains["evaluation"]
    apart = [0.0, 0.0, 0.0]
    for at in itertools.product(range(EACH), repeat=3):
        distance = 0.0
        for epoch, place in enumerate(at):
            for batch, size in enumerate(SIZES):
                distance = min(2.0, distance + (0.2 / size if batch == place else 0.0))
            apart[epoch] = max(apart[epoch], distance)
    tested = data.active.test.count
    moved = math.sqrt(tested * sum(distance**2 for distance in apart))
    of_training = tight_hdp_sensitivity("passive", **SENSITIVITY) / trained.sigma  # type: ignore[attr-defined]
    of_figures = moved / shown.sigma  # type: ignore[attr-defined]
    assert of_figures**2 / (of_figures**2 + of_training**2) == pytest.approx(0.2, rel=1e-6)
    rounding = [2.0**-20 * math.sqrt(3 * count) for count in (RECORDS, tested)]
    mu = math.hypot(of_training + rounding[0], of_figures + rounding[1])
    assert gaussian_delta(1.0, 1.0, sensitivity=mu) == pytest.approx(0.001, rel=1e-5)
    # An evaluation shows what a row has done to few weights, and so takes little noise.
    assert shown.sigma < trained.sigma / 10  # type: ignore[attr-defined]
    trainer.fit(3)
    account = account_of(trainer)
    assert account.spent("lab").mu == pytest.approx(mu, rel=1e-9)
    assert account.spent("lab").epsilon == pytest.approx(1.0, rel=1e-6)


def test_what_an_evaluation_shows_has_the_noise(data: VerticalData, monkeypatch: pytest.MonkeyPatch) -> None:
    crossed: list[Any] = []
    noisy, clear = trainer_of(data, *SHARED), trainer_of(data)
    for trainer in (noisy, clear):
        monkeypatch.setattr(trainer.passives["lab"], "defend_activation", watching(trainer.passives["lab"], crossed))
        trainer.fit(1)
    (shown,) = noisy.passives["lab"].activation["evaluation"]
    added, none = ((sent - clean).double() for clean, sent in crossed)
    assert not none.any()
    # 129 numbers: their deviation is known to 7 %.
    assert added.std().item() == pytest.approx(shown.sigma, rel=0.3)  # type: ignore[attr-defined]


def watching(party: Any, crossed: list[Any]) -> Any:
    defend = party.defend_activation

    def watched(activation: Any, batch: Any, step: int, phase: str = "training") -> Any:
        sent = defend(activation, batch, step, phase)
        if phase == "evaluation":
            crossed.append((activation.detach().clone(), sent.detach().clone()))
        return sent

    return watched


def test_it_is_said_what_evaluations_hide_and_what_they_do_not(data: VerticalData) -> None:
    (said,) = [
        line
        for line in Experiment(config_of(*SHARED), Workbench(data, {})).noise_notes()
        if "evaluation" in line and line.startswith("Not covered")
    ]
    assert said.startswith("Not covered: rows of test records. In 3 evaluations")
    with pytest.raises(ConfigError, match="evaluation_share is of noise that is calculated"):
        config_of(*SHARED, *GIVEN)
    with pytest.raises(ConfigError, match=r"defenses.0: gaussian-ir changes what crosses"):
        trainer_of(data, *SHARED, "defenses=[{name: gaussian-ir, clip: 1.0, sigma: 1.0, at: [evaluation]}]")


def test_a_long_run_says_it_less_often_and_at_its_end(data: VerticalData, tmp_path: Path) -> None:
    changes = ("train.epochs=113", "train.batch_size=all", "train.evaluate_every_epochs=200")
    trainer = trainer_of(data, *changes, folder=tmp_path / "run")
    trainer.fit(113)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    told = [line["step"] for line in lines if "privacy/row at lab/mu" in line]
    assert told == [*range(1, 101), 110, 113]
