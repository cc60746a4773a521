"""Noise on sums from an experiment file: how much of it, on what it rests, what is said and counted of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from splitvfl.app.assembly import Assembly
from splitvfl.app.auditing import audit_experiment
from splitvfl.app.deployment import Deployment, party_run, run_party
from splitvfl.app.experiment import build_trainer, run_experiment
from splitvfl.app.noise_plans import plan_of
from splitvfl.app.plan_auditing import NoisyTraining, audit_plan
from splitvfl.app.records import load_data
from splitvfl.app.run_folder import check_folder
from splitvfl.app.sum_noise import SumNoisePlan
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import VerticalData
from splitvfl.errors import ConfigError, ReplayError
from splitvfl.exchange.residue import Residue
from splitvfl.report.summary import read_summary
from splitvfl.run import checkpoint
from splitvfl.run.written_files import FAREWELL_FILE
from tests.run.parties import SHORT_KEYS, free_ports, same_weights, side_by_side, weights_of

TEXT = """
data: {name: table, path: people.csv, label: sick, id_column: id, split_seed: 3}
parties:
  clinic: {role: active, columns: [a0, a1], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: [b0, b1, b2]}
  far: {role: passive, columns: [c0, c1]}
model: {name: logistic-regression, init: zero, row_norm: 0.5}
exchange: {name: residue, own_part: sent, sum_noise: {epsilon: 1.0, delta: 0.001}, encryption: {key_bits: 2048}}
train: {epochs: 3, batch_size: 10, optimizer: {name: sgd, lr: 0.1}}
"""
NETWORK = 'network: {listen: "127.0.0.1:PORT", plaintext_on_loopback: true, meeting_s: 60, message_s: 60}\n'
NOISE = "sum_noise: {epsilon: 1.0, delta: 0.001}"
RECORDS, EACH = 24, 3  # of 30, 24 are trained on, in batches of 10


@pytest.fixture(autouse=True, scope="module")
def short_keys() -> Iterator[None]:
    with SHORT_KEYS():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("people")
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(30, 7))
    labels = (columns.sum(axis=1) + rng.normal(size=30) > 0).astype(int)
    lines = ["id,a0,a1,b0,b1,b2,c0,c1,sick"]
    lines += [
        ",".join([str(row), *(f"{number:.4f}" for number in columns[row]), str(labels[row])]) for row in range(30)
    ]
    (made / "people.csv").write_text("\n".join(lines) + "\n")
    return made


def config_of(folder: Path, *changes: str, text: str = TEXT, port: int = 1) -> ExperimentConfig:
    return parse_config(text.replace("PORT", str(port)), source=folder / "sums.yaml", folder=folder, overrides=changes)


@pytest.fixture(scope="module")
def data(folder: Path) -> VerticalData:
    found = load_data(config_of(folder))
    assert found.active.train.count == RECORDS
    return found


def plan_for(folder: Path, data: VerticalData, *changes: str, text: str = TEXT) -> SumNoisePlan:
    found = plan_of(config_of(folder, *changes, text=text), data.active)
    assert isinstance(found, SumNoisePlan)
    return found


def delta_by_hand(mu: float, epsilon: float) -> float:
    """Balle and Wang's formula, in other code than the one that found the noise."""
    left, right = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(norm.cdf(left) - math.exp(epsilon) * norm.cdf(right))


# --- how much noise


@pytest.mark.parametrize(
    ("changes", "squares"),
    [
        ((), 2 * 0.25 + 0.25 + 1),  # two others' rows, one's own, and the intercept's one
        (("model.intercept=false",), 3 * 0.25),
        (("exchange.own_part=exact",), 2 * 0.25),
    ],
)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (1.0, 1e-3), (8.0, 1e-5)])
def test_the_noise_has_the_delta_that_was_asked_for(
    changes: tuple[str, ...], squares: float, epsilon: float, delta: float, folder: Path, data: VerticalData
) -> None:
    """Three uses of a record, whose label moves all sums of a step by its rows' norms and a residue's 1."""
    asked = (f"exchange.sum_noise.epsilon={epsilon}", f"exchange.sum_noise.delta={delta}")
    plan = plan_for(folder, data, *changes, *asked)
    mu = math.sqrt(3 * squares) / plan.once.sigma
    found = delta_by_hand(mu, epsilon)
    assert found <= delta
    # Encoding and rounding take the rest: columns to 2^-27 each, numbers to 2^-20 of σ, of up to 4096 columns a party.
    more = math.sqrt(3 * 3 * 4096) * 2.0**-20
    assert delta_by_hand(mu * (1 + 1e-4) + more, epsilon) >= delta * (1 - 1e-6)


def test_noise_does_not_grow_with_records_nor_batches(folder: Path, data: VerticalData) -> None:
    sigmas = {plan_for(folder, data, f"train.batch_size={size}").once.sigma for size in (4, 10, 24)}
    assert len(sigmas) == 1
    assert plan_for(folder, data, "train.epochs=12").once.sigma == pytest.approx(2 * sigmas.pop(), rel=1e-3)


def test_few_bits_are_counted(folder: Path, data: VerticalData) -> None:
    """Residues rounded to 2^-8 move by that more where float32 crosses a bit; entries of 4096 columns to 2^-9."""
    coarse = plan_for(folder, data, "exchange.encryption.value_bits=8", "exchange.encryption.feature_bits=16")
    rows = 0.5 + 64 * 2.0**-17
    assert coarse.once.sensitivity == pytest.approx((1 + 2.0**-8) * math.sqrt(2 * rows**2 + 1.25), rel=1e-5)


def test_the_exchange_gets_it(folder: Path, data: VerticalData) -> None:
    assembly = Assembly(config_of(folder), data.active)
    exchange = assembly.exchange
    assert isinstance(exchange, Residue)
    assert exchange.sum_noise is not None
    assert exchange.sum_noise.sigma == plan_for(folder, data).once.sigma
    assert exchange.terms()["noise on sums"] == exchange.sum_noise.sigma


# --- a run


def test_a_run_says_and_counts_it(folder: Path, tmp_path: Path) -> None:
    config = config_of(folder, "train.noise_seed_for_experiments=1", "train.epochs=2")
    run_experiment(config, tmp_path / "run")
    summary = read_summary(tmp_path / "run")
    said = "\n".join(summary.notes)
    assert "Noise on sums for ε 1 and δ 0.001 over 2 epochs, 6 steps of 10 records (the last of each epoch 4)" in said
    assert "One record's label at clinic: all that clinic sends in the run is (1, 0.001)-differentially private" in said
    assert "towards lab and far together" in said
    assert "It rests on lab and far multiplying residues with the very columns that are bounded" in said
    assert "seeded noise" in said
    assert "noise on sums(epsilon=1, delta=0.001)" in summary.defenses
    (spent,) = [one for one in summary.privacy if one.relation == "label"]
    assert spent.epsilon is not None
    assert 0.999 < spent.epsilon <= 1.0 + 1e-9
    # Its noise is that of these epochs: none is offered beyond them.
    with pytest.raises(ConfigError, match="already holds a finished run") as caught:
        check_folder(tmp_path / "run", "sums.yaml", resume=False, overwrite=False)
    assert "--resume" not in str(caught.value)


def test_given_noise_ends_where_its_budget_does(folder: Path, data: VerticalData, tmp_path: Path) -> None:
    """Noise for one epoch, planned for three: after the first, every record would have been used again."""
    sigma = plan_for(folder, data, "train.epochs=1").once.sigma
    given = f"exchange.sum_noise.sigma={sigma}"
    plan = plan_for(folder, data, given)
    assert (plan.ends, plan.uses) == (EACH, 1)
    assert "3 steps, where all parties end, of 9 in 3 epochs" in plan.notes({})[0]
    run_experiment(config_of(folder, given, "train.noise_seed_for_experiments=1"), tmp_path / "run")
    assert read_summary(tmp_path / "run").steps == EACH
    with pytest.raises(ConfigError, match=r"sum_noise\.sigma: no step fits"):
        plan_for(folder, data, "exchange.sum_noise.sigma=0.1")


def test_over_a_network_it_is_the_same_to_the_bit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A deployed party draws its key from the operating system, and no seed gives it.
    monkeypatch.setattr(Residue, "noise_key", lambda self: bytes(range(32)))
    # 28 training records, in the order that both kinds of run read them in.
    text = TEXT.replace("name: table, path: people.csv, label: sick, id_column: id", "name: breast-cancer")
    for own, theirs in (("[a0, a1]", '["mean *"]'), ("[b0, b1, b2]", '["* error"]'), ("[c0, c1]", '["worst *"]')):
        text = text.replace(own, theirs)
    changes = ("data.test_fraction=0.95", "train.epochs=1")
    config = config_of(folder, *changes, text=text + NETWORK, port=free_ports(1)[0])
    assert side_by_side({name: partial(run_party, config, name, tmp_path / name) for name in config.parties}) == {}
    trainer = build_trainer(config, load_data(config))
    trainer.fit(1)
    modules = {"clinic": trainer.active.top, **{name: one.bottom for name, one in trainer.passives.items()}}
    for name, module in modules.items():
        assert same_weights(weights_of(tmp_path / name), module.state_dict())


def test_who_goes_back_and_sends_other_activations_gets_no_second_sum_with_the_same_noise(
    folder: Path, tmp_path: Path
) -> None:
    """A partner that multiplies with its own columns, as agreed, and breaks a link."""
    text = TEXT.replace("  far: {role: passive, columns: [c0, c1]}\n", "") + NETWORK
    changes = ("train.epochs=1", "train.checkpoint_every_steps=1", "network.retries=0")

    def taken() -> dict[str, BaseException | None]:
        config = config_of(folder, *changes, text=text, port=free_ports(1)[0])
        for name in config.parties:
            (tmp_path / name).mkdir(exist_ok=True)
        with ThreadPoolExecutor(len(config.parties)) as pool:
            runs = {name: pool.submit(party_run(config, name, tmp_path / name).run) for name in config.parties}
            return {name: run.exception(60) for name, run in runs.items()}

    assert taken() == {"clinic": None, "lab": None}
    for name in ("clinic", "lab"):
        (tmp_path / name / FAREWELL_FILE).unlink()
        newest = checkpoint.latest(tmp_path / name / "checkpoints")
        assert newest is not None
        checkpoint.remove(newest)
    before = checkpoint.latest(tmp_path / "lab" / "checkpoints")
    assert before is not None
    party = checkpoint.load(before, only="party")["party"]
    for weight in party["module"].values():
        weight.add_(0.1)
    torch.save(party, before / "party.pt")
    failed = taken()["clinic"]
    assert isinstance(failed, ReplayError)
    assert f"lab sent another activation for step {EACH - 1} than before" in str(failed)


def test_parties_agree_on_the_noise_and_a_deployed_run_takes_no_seed(folder: Path, tmp_path: Path) -> None:
    text = TEXT + NETWORK
    own = party_run(config_of(folder, text=text), "lab", tmp_path / "run").settings.terms
    theirs = party_run(config_of(folder, "train.epochs=4", text=text), "lab", tmp_path / "run").settings.terms
    differing = {key for key in own if own[key] != theirs[key]}
    assert {"noise on a sum", "epochs"} <= differing
    seeded = config_of(folder, "train.noise_seed_for_experiments=5", text=text)
    with pytest.raises(ConfigError, match="whoever knows the seed takes the noise"):
        party_run(seeded, "lab", tmp_path / "run")
    keys = set()
    for _ in range(2):
        exchange = Deployment(config_of(folder, text=text), "clinic").assembly.exchange
        assert isinstance(exchange, Residue)
        keys.add(exchange.noise_key())
    assert len(keys) == 2


# --- its audit


@pytest.mark.parametrize(("seeded", "verdict"), [(False, "proven"), (True, "not covered")])
def test_an_audit_recomputes_its_delta_and_names_what_it_rests_on(seeded: bool, verdict: str, folder: Path) -> None:
    changes = ("train.noise_seed_for_experiments=1",) if seeded else ()
    audited = audit_experiment(config_of(folder, *changes), draws=400)
    (found,) = audited.defenses
    (claim,) = found.claims
    assert claim.verdict == verdict
    assert (claim.claimed, claim.relation, claim.per) == (1e-3, "label at clinic", "run")
    assert claim.calculated is not None
    assert 0.99e-3 < claim.calculated.value <= 1e-3
    assert any("multiplying residues with the very columns that are bounded" in line for line in claim.why)
    labels = [seat.after[-1] for seat in audited.learned if seat.relation == "label of a record"]
    assert len(labels) == 3  # lab, far, and both together
    for last in labels:
        assert last.guarantee is not None
        mu = 2 * norm.ppf(last.guarantee.right)
        assert delta_by_hand(mu, 1.0) == pytest.approx(1e-3, rel=1e-6)  # μ is found by bisection in doubles
        assert bool(last.why) == seeded


def test_an_audit_notices_noise_that_is_half_of_what_is_needed(folder: Path, data: VerticalData) -> None:
    plan, config = plan_for(folder, data), config_of(folder)
    trained = NoisyTraining(config.active, config.train, Assembly(config, data.active).exchange, [], roles=("active",))
    halved = replace(plan, once=plan.once.with_sigma(plan.once.sigma / 2))
    (claim,) = audit_plan(halved, trained).claims
    assert claim.verdict == "violated"
    assert audit_plan(plan, replace(trained, roles=("passive",))).claims == ()


# --- bad input


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("exchange.sum_noise.epsilon=0", r"exchange\.sum_noise\.epsilon"),
        ("exchange.sum_noise.delta=1", r"exchange\.sum_noise\.delta"),
        ("exchange.sum_noise.sigma=0", r"exchange\.sum_noise\.sigma"),
        ("exchange.sum_noise.radius=1", r"exchange\.sum_noise\.radius: no such key"),
        ("model.row_norm=null", r"model\.row_norm: exchange\.sum_noise is calculated for rows of bounded norm"),
        ("train.early_stopping={patience: 2}", r"train\.early_stopping: with exchange\.sum_noise"),
        ("exchange.approximation=taylor", "take approximation exact or piecewise"),
        ("exchange.own_part=exact", "write own_part: sent"),
        ("defenses=[{name: laplace-residue, epsilon: 1.0}]", "laplace-residue at clinic changes labels or residues"),
    ],
)
def test_bad_input_is_told_with_its_place(change: str, words: str, folder: Path, data: VerticalData) -> None:
    with pytest.raises(ConfigError, match=words):
        build_trainer(config_of(folder, change), data)


def test_records_that_are_used_twice_an_epoch_are_refused(folder: Path, data: VerticalData) -> None:
    lab = data["lab"]
    ids = lab.train.ids.clone()
    ids[3] = ids[7]
    assembly = Assembly(config_of(folder), data.active)
    twice: Any = replace(lab, train=replace(lab.train, ids=ids))
    with pytest.raises(ConfigError, match=r"exchange\.sum_noise: .*an id is there twice among the training records"):
        assembly.passive(twice, assembly.task("binary", 1), seed=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("exchange.sum_noise.delta=0.05", "δ 0.05 is 1/24 or more"),
        ("exchange.sum_noise.epsilon=0.0001", "ε 0.0001 is below δ 0.001"),
        ("exchange.sum_noise.epsilon=20", "ε 20 is above 10"),
    ],
)
def test_what_weakens_a_promise_is_said(change: str, words: str, folder: Path, data: VerticalData) -> None:
    assert any(words in line for line in plan_for(folder, data, change).notes({}))
    assert not any(line.startswith("Warning") for line in plan_for(folder, data).notes({}))


def test_of_a_keystream_it_is_said_what_is_counted(folder: Path, data: VerticalData) -> None:
    said = "\n".join(plan_for(folder, data).notes({}))
    assert "discrete Gaussian, from AES-256 in counter mode" in said
    assert torch.get_default_dtype() == torch.float32  # nothing here changes it
