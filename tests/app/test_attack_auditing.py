"""Attacks on several trainings, read on the way, and what is guaranteed at each of these moments."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from splitvfl.app.assembly import Assembly
from splitvfl.app.attack_auditing import _moment, coins_of, seats_of, try_attacks
from splitvfl.app.audit_ceilings import NO_COLUMNS, NO_LABELS, REFUTED, Guarantees, accounted_claim
from splitvfl.app.auditing import audit_experiment
from splitvfl.app.experiment import Experiment, prepare
from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.attacks import NormAttack
from splitvfl.audit import ClaimAudit, DefenseAudit
from splitvfl.config.sections import AuditConfig, ExperimentConfig, load_config
from splitvfl.errors import ConfigError
from splitvfl.hooks import View
from splitvfl.metrics import leak_auc
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status
from tests.builders import small_trainer

TWO = {"bank": {"role": "active", "columns": 0.4}, "lab": {"role": "passive", "columns": "rest"}}
THREE = {
    "bank": {"role": "active", "columns": ["mean *"]},
    "lab": {"role": "passive", "columns": ["* error"]},
    "shop": {"role": "passive", "columns": ["worst *"]},
}
HDP = {
    "model": {"name": "logistic-regression", "row_norm": 1.0},
    "exchange": {"name": "split", "noise": {"epsilon": 4.0, "delta": 1e-3, "radius": 1.0}},
    "train": {"epochs": 12, "batch_size": "all", "optimizer": {"name": "sgd", "lr": 0.5}},
}


def config_of(folder: Path, *defenses: Any, **sections: Any) -> ExperimentConfig:
    settings = {
        "data": {"name": "breast-cancer"},
        "parties": TWO,
        "model": "logistic-regression",
        "train": {"epochs": 2, "batch_size": 64, "noise_seed_for_experiments": 5},
        "attacks": ["norm"],
        "defenses": list(defenses),
        **sections,
    }
    path = folder / "asked.yaml"
    path.write_text(yaml.safe_dump(settings))
    return load_config(path)


def guarantees_of(config: ExperimentConfig, *audits: DefenseAudit) -> Guarantees:
    bench = prepare(config)
    trainer = Experiment(config, bench).trainer()
    plan = Assembly(config, bench.data.active).noise
    found = audits or audit_experiment(config, draws=400).defenses
    return Guarantees(trainer, found, plan if isinstance(plan, HdpPlan) else None, epochs=config.train.epochs)


def proven(defense: str, epsilon: float, per: str) -> DefenseAudit:
    claim = ClaimAudit("it is so", "ε", epsilon, "label of a record", "proven", ("It is.",), per=per)
    return DefenseAudit(defense, "labels" if per == "run" else "gradient", (claim,))


def test_reading_a_training_on_the_way_leaves_it_as_it_is(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    bench = prepare(config)
    tried = try_attacks(config, bench, seeds=2, coins=40)
    assert (tried.epochs, tried.count, tried.coins) == ((1, 2), 2, 40)
    for number in range(2):
        train = config.train.model_copy(update={"seed": number, "noise_seed_for_experiments": 5 + number})
        alone = Experiment(
            config.model_copy(update={"train": train, "audit": AuditConfig(canaries=40)}), bench
        ).trainer()
        seen: dict[int, float] = {}

        def look(status: Status, alone: Trainer = alone, seen: dict[int, float] = seen) -> None:
            if status.step in (len(alone.batches), status.steps):
                seen[status.step] = alone.summaries("lab")["auditor-ratio"].worst_accumulated_auc

        alone.fit(2, progress=look)
        read = [tried.moments[epochs][number][("lab",)]["auditor-ratio"].auc for epochs in (1, 2)]
        assert read == list(seen.values())
        scores, coins = alone.watch.canary_scores()["auditor-ratio at lab"]
        own = tried.moments[2][number][("lab",)]["auditor-ratio"].coins
        assert own is not None
        np.testing.assert_array_equal(own[0], scores)
        np.testing.assert_array_equal(own[1], coins)


def test_coins_are_asked_for_or_one_record_in_ten_where_they_can_be_read(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    bench = prepare(config)  # 440 training records
    assert coins_of(bench, canaries=None, usual=None, readable=True) == 44
    assert coins_of(bench, canaries=60, usual=30, readable=True) == 60
    assert coins_of(bench, canaries=None, usual=None, readable=False) == 0
    assert coins_of(bench, canaries=None, usual=30, readable=False) == 30


def test_without_coins_only_true_labels_are_read(tmp_path: Path) -> None:
    found = audit_experiment(config_of(tmp_path, audit=False), draws=400, seeds=1)
    labels = found.learned[0]
    last = labels.after[-1]
    assert [attack.attack for attack in last.attacks] == ["norm"]
    assert (last.attacks[0].right, last.proven) == (None, None)
    assert found.trainings is not None
    assert (found.trainings.coins, found.trainings.count) == (0, 1)
    assert any("whole run" in gap for gap in found.gaps)


def test_all_together_put_their_scores_of_each_record_together(tmp_path: Path) -> None:
    noise = {"name": "laplace-residue", "epsilon": 0.5}
    config = config_of(tmp_path, noise, parties=THREE, train={"epochs": 2, "batch_size": 64})
    (moment,) = try_attacks(config, prepare(config), seeds=1, coins=40).moments[2]
    for name, read in moment[("lab", "shop")].items():
        parts = [moment[(party,)][name].coins for party in ("lab", "shop")]
        assert read.coins is not None
        units = [(part[0] - np.median(part[0])) for part in parts if part is not None]
        joint = sum(unit / np.sqrt(np.mean(unit**2)) for unit in units) / 2.0
        np.testing.assert_allclose(read.coins[0], joint, rtol=1e-9)
        assert all(part is not None and (part[1] == read.coins[1]).all() for part in parts)


class UpsideDown(NormAttack):
    """The norm attack, whose scores at one party are higher for the other class."""

    name = "upside-down"

    def __call__(self, view: View, /) -> Tensor:
        scores = super().__call__(view)
        return -scores if view.party == "shop" else scores


def test_coins_are_read_the_way_round_that_other_records_say() -> None:
    made = small_trainer(
        ("lab", "shop"),
        sizes={"train": 200, "test": 20},
        batch_size=50,
        canaries=60,
        audit=True,
        noise_seed_for_experiments=5,
        attacks=[NormAttack(), UpsideDown()],
    )
    made.fit(2)
    for readers, found in _moment(made).items():
        aucs = {}
        for name, read in found.items():
            assert read.coins is not None
            aucs[name] = leak_auc(*map(torch.from_numpy, read.coins))
        assert aucs["norm"] == pytest.approx(aucs["upside-down"]), readers
        assert found["norm"].auc == pytest.approx(found["upside-down"].auc), readers
        assert aucs["norm"] > 0.6, readers


def test_seeds_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--seeds: expected 0 to 100, got 101"):
        audit_experiment(config_of(tmp_path), draws=400, seeds=101)


def test_undefended_labels_are_read_and_nothing_is_guaranteed(tmp_path: Path) -> None:
    found = audit_experiment(config_of(tmp_path, parties=THREE), draws=400, seeds=2)
    assert [seat.readers for seat in found.learned] == [("lab",), ("shop",), ("lab", "shop"), ("bank",), ("bank",)]
    assert {seat.after[-1].why for seat in found.learned} == {(NO_LABELS,), (NO_COLUMNS,)}
    for seat in found.learned[:3]:
        last = seat.after[-1]
        best = last.attacks[0]
        assert best.right is not None
        assert best.right.mean > 0.9, "residues tell labels"
        assert last.proven is not None
        assert last.proven.epsilon > 1.0
        # Whole runs have half of what may err, and what is read on the way half of that: of each of three readers after
        # each of two epochs one bound, by four attacks with two numbers of guesses.
        assert last.proven.confidence == pytest.approx(1 - 0.05 / 4 / (3 * 2) / (4 * 2), abs=1e-9)
        # Norm and three attacks of the auditor, each with two intervals, of three readers.
        assert found.trainings is not None
        assert found.trainings.figures == 3 * 4 * 2
    (run,) = found.defenses
    assert (run.defense, run.verdict) == ("2 runs, whole", "no claim")


@pytest.mark.parametrize("epochs", [1, 12])
def test_calculated_noise_allows_what_its_account_says(tmp_path: Path, epochs: int) -> None:
    config = config_of(tmp_path, parties=THREE, **HDP)
    found = guarantees_of(config)
    labels, alone = found.of_labels(epochs), found.noise_alone(2, epochs)
    plan = Assembly(config, prepare(config).data.active).noise
    assert isinstance(plan, HdpPlan)
    # One derivative an epoch, moved by one, and one draw for both readers.
    mu = math.sqrt(epochs) / plan.active.sigma
    assert alone is not None
    assert (alone.right, alone.auc) == pytest.approx(
        (NormalDist().cdf(mu / 2.0), NormalDist().cdf(mu / math.sqrt(2.0)))
    )
    assert labels.ceiling is not None
    # The account has what a label moves in weights and rounding on top of that, and no statistics of columns count.
    assert alone.right <= labels.ceiling.right <= alone.right + 0.01
    assert labels.why == ()
    if epochs == 12:
        assert accounted_claim(plan).mu == labels.ceiling.value
        rows = found.of_rows(("lab",), 12)
        assert rows.ceiling is not None
        # At ε 4 and δ .001 the noise is as much as it takes, and no more.
        assert rows.ceiling.value == pytest.approx(plan.passive.mu, rel=1e-6)
        assert rows.why[0].startswith("Statistics: ")
        joint = found.of_rows(("bank", "lab", "shop"), 12)
        assert joint.ceiling is not None
        assert joint.ceiling.value > rows.ceiling.value


@pytest.mark.parametrize(("one_draw", "readers", "numbers"), [(False, 1, 3), (False, 2, 6), (True, 2, 3)])
def test_readers_with_draws_of_their_own_have_as_many_noisy_numbers_together(
    tmp_path: Path, one_draw: bool, readers: int, numbers: int
) -> None:
    noise = {"name": "coefficient-noise", "sigma": 4.0, "clip": 1.0, "scale": 1.0, "one_draw": one_draw}
    config = config_of(tmp_path, noise, parties=THREE, train={"epochs": 3, "batch_size": 64})
    alone = guarantees_of(config, proven("coefficient-noise", 1.0, "run")).noise_alone(readers, 3)
    # A label moves each of that many numbers by 1, under noise of its own: the best test adds them up.
    mu = math.dist([1.0] * numbers, [0.0] * numbers) / 4.0
    assert alone is not None
    assert (alone.value, alone.right) == pytest.approx((mu, NormalDist().cdf(mu / 2.0)))


@pytest.mark.parametrize(
    ("defense", "own_part", "right"),
    [
        (proven("memoised-response", 1.0, "run"), "exact", 1.0 / (1.0 + math.exp(-1.0))),
        (proven("laplace-residue", 0.25, "message"), "sent", 1.0 / (1.0 + math.exp(-2 * 0.25))),
        (proven("laplace-residue", 0.25, "message"), "exact", None),
    ],
)
def test_what_releases_come_to_is_guaranteed_where_they_add_up(
    tmp_path: Path, defense: DefenseAudit, own_part: str, right: float | None
) -> None:
    train = {"epochs": 2, "batch_size": 64}
    exchange = {"name": "split", "own_part": own_part}
    # A label moves a residue by half of what any two residues are apart, and costs half of their ε.
    epsilon = 1.0 if defense.crossing == "labels" else 0.5
    config = config_of(tmp_path, {"name": defense.defense, "epsilon": epsilon}, train=train, exchange=exchange)
    allowed = guarantees_of(config, defense).of_labels(2)
    if right is None:
        assert allowed.ceiling is None
        assert "exact residues" in allowed.why[0]
    else:
        assert allowed.ceiling is not None
        assert allowed.ceiling.right == pytest.approx(right)
        assert (allowed.why, allowed.ceiling.verdict) == ((), "proven")


def test_what_is_void_or_refuted_does_not_count(tmp_path: Path) -> None:
    response = {"name": "memoised-response", "epsilon": 1.0}
    seeded = guarantees_of(config_of(tmp_path, response)).of_labels(2)  # a fixed seed of the noise
    assert seeded.ceiling is not None
    assert "fixed seed" in seeded.why[0]

    config = config_of(tmp_path, response, train={"epochs": 2, "batch_size": 64})
    trainer = Experiment(config, prepare(config)).trainer()
    label = ClaimAudit("It is private", "ε", 1.0, "label of a record", "proven", ("so",), per="run")
    run = ClaimAudit("It is private", "ε", 1.0, "label of a record", "violated", ("ε is 2",), per="run")
    audits = [DefenseAudit("memoised-response", "labels", (label,)), DefenseAudit("one run, whole", "run", (run,))]
    refuted = Guarantees(trainer, audits, None, epochs=2)
    assert refuted.of_labels(2).why == (REFUTED,)
    seats, trainings = seats_of(trainer, prepare(config), refuted, None, confidence=0.95)
    assert trainings is None
    assert seats[0].after[-1].why == (REFUTED,)
    assert Guarantees(trainer, audits[:1], None, epochs=2).of_labels(2).why == ()
