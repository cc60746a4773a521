"""HDP-VFL from an experiment file: who adds how much noise, to what, on what it rests, and what is said of it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import norm

from splitvfl.app.assembly import Assembly
from splitvfl.app.deployment import Deployment, party_run, run_party
from splitvfl.app.experiment import Experiment, Workbench, build_trainer, run_experiment
from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.app.noise_plans import plan_of
from splitvfl.app.noise_stream import Stream
from splitvfl.app.records import load_data
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import PartyData, VerticalData
from splitvfl.defenses import CoefficientNoise, GaussianIR
from splitvfl.errors import ConfigError, DataError
from splitvfl.exchange.noise import HdpNoiseSettings
from splitvfl.exchange.receiver_clips import ReceiverClips
from splitvfl.exchange.split import Split
from splitvfl.messaging.messages import Message
from splitvfl.privacy import gaussian_sigma, tight_hdp_sensitivity
from splitvfl.run.trainer import Trainer
from tests.run.parties import free_ports, same_weights, side_by_side, weights_of

TEXT = """
data: {name: breast-cancer, split_seed: 8}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error"]}
  far: {role: passive, columns: ["worst *"]}
model: {name: logistic-regression, init: zero, row_norm: 1.0, intercept: false}
exchange: {name: split, noise: {epsilon: 1.0, delta: 0.001}}
train: {epochs: 10, batch_size: all, optimizer: {name: sgd, lr: 0.1}}
audit: false
"""
NETWORK = 'network: {listen: "127.0.0.1:PORT", plaintext_on_loopback: true, meeting_s: 60, message_s: 60}\n'
PAIR = TEXT.replace('\n  far: {role: passive, columns: ["worst *"]}', "").replace('["* error"]', "rest")
RECORDS = 455  # of 569, under this split seed: those of the check values of the specification


def config_of(*changes: str, text: str = TEXT, port: int = 1, source: Any = "hdp.yaml") -> ExperimentConfig:
    return parse_config(text.replace("PORT", str(port)), source=source, overrides=changes)


@pytest.fixture(scope="module")
def data() -> VerticalData:
    return load_data(config_of())


def plan_for(data: VerticalData, *changes: str, text: str = TEXT) -> HdpPlan:
    found = plan_of(config_of(*changes, text=text), data.active)
    assert isinstance(found, HdpPlan)
    return found


def delta_by_hand(stream: Stream, epsilon: float) -> float:
    """Balle and Wang's formula, in other code than the one that found the noise, and what the noise is not."""
    # Each of ten releases of 455 numbers is rounded to 2^-20 of the noise at most.
    ratio = stream.sensitivity / stream.sigma + 2.0**-20 * math.sqrt(10 * RECORDS)
    left, right = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
    return float(norm.cdf(left) - math.exp(epsilon) * norm.cdf(right))


# --- how much noise


def test_the_check_values_of_the_specification(data: VerticalData) -> None:
    plan = plan_for(data)
    assert plan.passive.sensitivity == pytest.approx(6.333, abs=5e-4)
    assert plan.active.sensitivity == pytest.approx(4.625, abs=5e-4)
    published = plan_for(data, "exchange.noise.calibration=analytic")
    assert published.passive.sensitivity == pytest.approx(6.345, abs=5e-4)
    assert published.active.sensitivity == pytest.approx(4.747, abs=5e-4)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("calibration", ["tight", "analytic"])
def test_the_noise_has_the_delta_that_was_asked_for(epsilon: float, calibration: str, data: VerticalData) -> None:
    plan = plan_for(data, f"exchange.noise.epsilon={epsilon}", f"exchange.noise.calibration={calibration}")
    for stream in (plan.passive, plan.active):
        # The noise is rounded up in its eighth digit.
        assert delta_by_hand(stream, epsilon) == pytest.approx(0.001, rel=1e-5)
        assert delta_by_hand(stream, epsilon) <= 0.001 * (1 + 1e-9)
        assert stream.delta == 0.001
        # Rounding is counted, and costs little: the exact Gaussian's noise is smaller by less than a per cent.
        exact = gaussian_sigma(epsilon, 0.001, sensitivity=stream.sensitivity)
        assert exact * (1 + 1e-6) < stream.sigma < 1.01 * exact


def test_where_noise_is_small_what_is_never_drawn_takes_more_of_it(data: VerticalData) -> None:
    """Beyond 13 σ nothing is drawn: of parts of a logit that are 2 apart at most, noise of 2 / 13 hides nothing."""
    plan = plan_for(data, "exchange.noise.epsilon=2000")
    exact = gaussian_sigma(2000, 0.001, sensitivity=plan.passive.sensitivity)
    assert exact < 2 / 13 < plan.passive.sigma
    # Some number of 4550 is so near the end with the whole δ: nothing else matters here.
    assert 4550 * 2 * norm.sf(13 - 2 / plan.passive.sigma) == pytest.approx(0.001, rel=0.01)
    with pytest.raises(ConfigError, match=r"exchange.noise: rounding 4,550 numbers to the grid .* fewer epochs"):
        plan_for(data, "exchange.noise.epsilon=1e-9", "exchange.noise.delta=1e-9")


def test_the_published_noise_is_the_textbooks_and_says_what_it_really_is(data: VerticalData) -> None:
    below = plan_for(data, "exchange.noise.calibration=published", "exchange.noise.epsilon=0.5")
    by_hand = math.sqrt(2 * math.log(1.25 / 0.001)) * 6.345 / 0.5
    assert below.passive.sigma == pytest.approx(by_hand, rel=1e-4)
    assert not any("textbook" in line for line in below.notes({}))
    # At ε 10 and δ .01 its true δ is .04.
    beyond = plan_for(data, *(f"exchange.noise.{one}" for one in ("calibration=published", "epsilon=10", "delta=0.01")))
    assert beyond.passive.delta == pytest.approx(0.04, abs=0.005)
    assert beyond.passive.delta == pytest.approx(delta_by_hand(beyond.passive, 10), rel=1e-6)
    said = " ".join(beyond.notes({}))
    assert f"the textbook's noise of a passive party has a δ of {beyond.passive.delta:.3g}, not 0.01" in said
    assert f"(10, {beyond.passive.delta:.3g})-differentially private" in said  # and never what it is not


@pytest.mark.parametrize("epsilon", [0.5, 10.0])
def test_every_run_says_its_joint_differential_privacy(epsilon: float, data: VerticalData) -> None:
    plan = plan_for(data, "exchange.noise.calibration=published", f"exchange.noise.epsilon={epsilon}")
    (said,) = [line for line in plan.notes({}) if "theorem 2 of HDP-VFL" in line]
    # Each party's messages towards all others together: the largest of the two δ, by the other formula.
    delta = max(0.001, *(delta_by_hand(stream, epsilon) for stream in (plan.passive, plan.active)))
    assert said.startswith(f"The training is ({epsilon:g}, {delta:.3g})-joint differentially private")


def test_where_delta_reaches_one_the_statement_is_void_and_no_probability_is_above_one(data: VerticalData) -> None:
    """At ε 1000 the textbook's noise is 1/40 of what it hides: all 4550 numbers end beyond what is ever drawn."""
    plan = plan_for(data, "exchange.noise.calibration=published", "exchange.noise.epsilon=1000")
    assert plan.passive.missing == pytest.approx(4550)
    account = plan.budget()
    for step in range(account.last_step):
        account.begin(step)
    said = " ".join([*plan.notes({}), *(spent.in_words() for spent in account.spent_on_everything())])
    assert said.count("nothing is guaranteed at ε 1000: δ reaches 1") == 3  # a row, a row and label, all at once
    assert "differentially private" not in said
    assert "no ε at δ 0.001" in said
    assert not re.search(r"\b(4550|inf|nan)\b", said)
    assert not [share for share in re.findall(r"([\d.]+)%", said) if float(share) > 100]


def test_selection_of_records_by_label_voids_what_is_said_of_labels(data: VerticalData) -> None:
    plan = plan_for(data)
    (said,) = [
        line
        for line in plan.notes({"clinic": replace(data.active, selected_by_label=True)})
        if "does not apply" in line
    ]
    assert said.startswith("Not covered: one record's label. ")
    assert "selection of records by label is made from labels" in said
    assert not [line for line in plan.notes({"clinic": data.active}) if "does not apply" in line]


def test_the_noise_as_printed_takes_the_papers_constant_for_the_label_party(data: VerticalData) -> None:
    settings = ("train.batch_size=91", "exchange.noise.epsilon=0.9", "exchange.noise.delta=0.01")
    printed, published = (
        plan_for(data, *settings, f"exchange.noise.calibration={name}") for name in ("as-printed", "published")
    )
    # Lemma 4 by hand: 10 epochs of 5 batches, β_θ = 1/4, L = 1, q = 1/4 + β_y.
    for plan, beta in ((printed, 1.1), (published, 0.5)):
        half = 0.25 + beta
        moved = math.sqrt(4 * 0.25**2 * 100 * 50 * 0.01 / 91 + 8 * half * 0.25 * 100 * 0.1 / 91 + 4 * half**2 * 10)
        assert plan.active.sensitivity == pytest.approx(moved, rel=1e-6)
        assert plan.active.sigma == pytest.approx(math.sqrt(2 * math.log(125)) * moved / 0.9, rel=1e-6)
    assert printed.active.sensitivity == pytest.approx(8.56, abs=0.005)
    assert printed.active.sigma == pytest.approx(29.6, abs=0.05)
    assert published.active.sigma == pytest.approx(16.5, abs=0.05)
    assert printed.passive == published.passive
    assert "as-printed" in printed.name


def test_the_papers_constant_is_of_the_logistic_loss_alone() -> None:
    text = TEXT.replace("logistic-regression", "glm, loss: l2-svm")
    with pytest.raises(ConfigError, match=r"calibration: .*logistic loss alone, and model.loss is l2-svm"):
        plan_for(load_data(config_of(text=text)), "exchange.noise.calibration=as-printed", text=text)


def test_what_moves_weights_is_in_the_noise(data: VerticalData) -> None:
    """Penalties, norms, the ball, smaller last batches and the intercept, each against the recursion called by name."""
    changes = ("train.batch_size=128", "train.optimizer={name: sgd, lr: 0.3, weight_decay: 0.2}", "model.row_norm=0.8")
    plan = plan_for(data, *changes, "exchange.noise.radius=0.5", "model.intercept=true")
    common: dict[str, Any] = {
        "steps": 40,
        "epochs": 10,
        "batch_size": 128,
        "last_batch": 71,
        "eta": 0.3,
        "k": 0.5,
        "lipschitz": 1.0,
        "weight_decay": 0.2,
    }
    of_labels = {"beta_theta": 0.25, "beta_y": 0.5, "k_y": 1.0}
    longest = math.sqrt(0.8**2 + 1)
    exact = 1 + 2 / (1 + math.exp(-0.5 * longest)) - 1  # S(r) − S(−r) + 1, as far as one's own part goes
    assert plan.passive.sensitivity == pytest.approx(tight_hdp_sensitivity("passive", **common, row_norm=0.8))
    assert plan.active.sensitivity == pytest.approx(
        tight_hdp_sensitivity("active", **common, **of_labels, row_norm=longest, step=exact)
    )
    dropped = plan_for(data, *changes, "exchange.noise.radius=0.5", "train.drop_last=true")
    common |= {"steps": 30, "last_batch": 128}
    assert dropped.passive.sensitivity == pytest.approx(tight_hdp_sensitivity("passive", **common, row_norm=0.8))
    proximal = plan_for(data, "train.optimizer={name: proximal-sgd, lr: 0.3, l1: 0.01, l2: 0.2}")
    once = {"steps": 10, "epochs": 10, "batch_size": RECORDS, "eta": 0.3, "k": 1.0, "lipschitz": 1.0}
    assert proximal.passive.sensitivity == pytest.approx(tight_hdp_sensitivity("passive", **once, proximal_l2=0.2))
    # An intercept, which the penalty leaves alone, is not drawn together.
    intercept = plan_for(data, "train.optimizer={name: proximal-sgd, lr: 0.3, l2: 0.2}", "model.intercept=true")
    assert intercept.active.sensitivity == pytest.approx(
        tight_hdp_sensitivity("active", **once, **of_labels, row_norm=math.sqrt(2), step=1 + math.tanh(math.sqrt(0.5)))
    )


def test_other_losses_bring_their_own_bounds() -> None:
    text = TEXT.replace("breast-cancer", "diabetes").replace('["mean *"]', "[age, bmi]").replace('["* error"]', "[bp]")
    text = text.replace('["worst *"]', "rest").replace("logistic-regression", "glm, loss: least-squares")
    config = config_of("model.target_clip=2", text=text)
    found = plan_of(config, load_data(config).active)
    assert isinstance(found, HdpPlan)
    # Three parties of at most 1 each: Q = 3, and so L = 2 (k_y + Q) = 10.
    assert found.clips.activation == 1.0
    assert found.clips.coefficient == 10.0
    unbounded = config_of(text=text)
    active = load_data(unbounded).active
    with pytest.raises(ConfigError, match=r"hdp.yaml: model: the least-squares loss has no bounds here.*target_clip"):
        plan_of(unbounded, active)


# --- what is done with it


def trained(*changes: str, text: str = TEXT, epochs: int = 2) -> tuple[Trainer, list[Message]]:
    config = config_of("train.noise_seed_for_experiments=5", *changes, text=text)
    crossed: list[Message] = []
    trainer = build_trainer(config, load_data(config))
    trainer.record = crossed.append
    trainer.fit(epochs)
    return trainer, crossed


def test_each_message_has_the_noise_of_its_sender_and_q_is_drawn_once() -> None:
    trainer, crossed = trained("train.batch_size=100", "exchange.noise.epsilon=0.1", epochs=10)
    config = config_of("train.batch_size=100", "exchange.noise.epsilon=0.1")
    plan = plan_of(config, load_data(config).active)
    assert isinstance(plan, HdpPlan)
    sent = {kind: [one for one in crossed if one.kind == kind] for kind in ("activation", "gradient")}
    for name in ("lab", "far"):
        drawn = torch.cat([one.payload.double() for one in sent["activation"] if one.sender == name])
        # 4550 numbers, whose deviation is known to 1 %; what they hide is at most 1, against a noise of some 60.
        assert drawn.std().item() == pytest.approx(plan.passive.sigma, rel=0.05)
    to_lab, to_far = ([one for one in sent["gradient"] if one.receiver == name] for name in ("lab", "far"))
    assert len(to_lab) == 50
    assert all(torch.equal(left.payload, right.payload) for left, right in zip(to_lab, to_far, strict=True))
    q = torch.cat([one.payload.double() * len(one.payload) for one in to_lab])
    assert q.std().item() == pytest.approx(plan.active.sigma, rel=0.05)
    steps = [one.payload for one in to_lab]
    assert not torch.equal(steps[0], steps[1])
    cuts = trainer.active.cuts
    assert cuts["lab"].gradient.measurements == cuts["far"].gradient.measurements  # what was spent is spent for both


@pytest.mark.parametrize("init", ["zero", "normal"])
def test_weights_are_in_the_ball_from_the_first_to_the_last(init: str) -> None:
    long = ("train.optimizer.lr=3", "train.batch_size=64")
    config = config_of(f"model.init={init}", "model.intercept=true", "exchange.noise.radius=0.2", *long)
    trainer = build_trainer(config, load_data(config))
    norms: list[float] = []

    def measure(*_: object) -> None:
        modules = (trainer.active.top, *(one.bottom for one in trainer.passives.values()))
        norms.extend(
            math.hypot(*(float(weight.detach().double().norm()) for weight in one.parameters())) for one in modules
        )

    measure()
    trainer.fit(1, progress=measure)
    assert len(norms) == 27  # of three parties, before and after eight steps
    assert max(norms) <= 0.2
    assert sorted(norms)[-6] == pytest.approx(0.2, rel=1e-6)  # the noise throws them at its edge


def test_receivers_use_no_more_than_the_proof_allows() -> None:
    """The step of each party, recomputed from what crossed with clips, and without: the noise is far beyond them."""
    text = PAIR.replace("zero", "zero, intercept: true").replace(", intercept: false", "")
    trainer, crossed = trained("exchange.noise.epsilon=0.1", "exchange.noise.radius=50", text=text, epochs=1)
    said = {one.kind: one.payload.double() for one in crossed if one.step == 0}
    held = {name: one.data.train.rows(torch.arange(RECORDS)) for name, one in trainer.passives.items()}
    order = trainer.batches.epoch(0)[0]
    columns = held["lab"].columns.numeric.double()[order]
    q = said["gradient"]
    used = q.clamp(-1 / RECORDS, 1 / RECORDS)
    assert float((q.abs() > 1 / RECORDS).double().mean()) > 0.5
    # A sum over 455 records in float32.
    torch.testing.assert_close(
        trainer.passives["lab"].bottom.weight.double(), -0.1 * used.T @ columns, rtol=1e-4, atol=1e-6
    )
    labels = trainer.active.data.train.labels
    assert labels is not None
    z = said["activation"][:, 0].clamp(-50, 50)
    step = -0.1 * (torch.sigmoid(z) - labels.double()[order]).mean()
    assert trainer.active.top.intercept.item() == pytest.approx(step.item(), rel=1e-4)


@pytest.mark.parametrize(
    "text", [pytest.param(PAIR, id="two"), pytest.param(TEXT, id="three", marks=pytest.mark.slow(reason="a network"))]
)
def test_over_a_network_it_is_the_same_to_the_bit(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Equal noise has to come from equal seeds, which a deployed run under a claim refuses.
    monkeypatch.setattr(Deployment, "_check_noise_seed", lambda self: None)
    changes = ("train.noise_seed_for_experiments=5", "train.batch_size=128", "train.epochs=2", "model.intercept=true")
    config = config_of(*changes, text=text + NETWORK, port=free_ports(1)[0], source=tmp_path / "run.yaml")
    assert side_by_side({name: partial(run_party, config, name, tmp_path / name) for name in config.parties}) == {}
    trainer = build_trainer(config, load_data(config))
    trainer.fit(2)
    modules = {"clinic": trainer.active.top, **{name: one.bottom for name, one in trainer.passives.items()}}
    for name, module in modules.items():
        assert same_weights(weights_of(tmp_path / name), module.state_dict())


def test_noise_is_an_agreed_term_and_that_of_another_rate_is_not_taken(tmp_path: Path) -> None:
    """A party that takes longer steps has more noise to add; the others see that it is not what they agreed on."""
    text, port = TEXT + NETWORK, free_ports(1)[0]
    config = config_of(text=text, port=port, source=tmp_path / "run.yaml")
    other = config_of("train.optimizer.lr=0.2", text=text, port=port, source=tmp_path / "run.yaml")
    own, theirs = (party_run(one, "lab", tmp_path / "run").settings.terms for one in (config, other))
    assert {"noise: epsilon", "noise: radius", "noise: calibration", "noise of the active party"} <= own.keys()
    differing = {key for key in own if own[key] != theirs[key]}
    assert {"noise of the active party", "noise of a passive party"} <= differing
    its = {"clinic": config, "lab": other, "far": config}
    failed = side_by_side({name: partial(run_party, one, name, tmp_path / name) for name, one in its.items()})
    assert isinstance(failed["lab"], DataError)
    assert "noise of a passive party: " in str(failed["lab"])


# --- what is said of it


def test_the_statement_names_who_is_protected_from_whom(data: VerticalData) -> None:
    said = plan_for(data).notes({})
    assert any(
        "One record's row at lab or far" in line and "towards the others, all of them together" in line for line in said
    )
    assert any(
        "row and label at clinic" in line and "towards lab and far together, who are sent one draw" in line
        for line in said
    )
    pair = plan_for(data, text=PAIR).notes({})
    assert any("One record's row at lab" in line and line.endswith("towards clinic.") for line in pair)
    assert any("row and label at clinic" in line and "towards lab;" in line for line in pair)


def test_an_outsider_reads_all_streams_and_a_label_moves_less_than_a_row(data: VerticalData) -> None:
    plan = plan_for(data)
    outsider = math.sqrt(plan.active.mu**2 + 2 * plan.passive.mu**2)
    (line,) = [line for line in plan.notes({}) if "outsider" in line]
    assert line.endswith(f"is right at most {norm.cdf(outsider / 2):.1%} of the time.")
    assert plan.label.sensitivity < plan.active.sensitivity
    # One release of each of ten epochs moves by exactly 1 where a label alone changes, and weights drift besides.
    assert plan.label.sensitivity > math.sqrt(10)
    assert f"at most {norm.cdf(plan.label.sensitivity / plan.active.sigma / 2):.1%}" in line


def statement(*changes: str, text: str = TEXT) -> list[str]:
    config = config_of(*changes, text=text)
    experiment = Experiment(config, Workbench(load_data(config), {}))
    experiment.trainer()
    return experiment.noise_notes()


def test_statistics_are_not_covered_and_public_ranges_are(tmp_path: Path, data: VerticalData) -> None:
    said = statement()
    for party in ("clinic", "lab", "far"):
        assert any(line.startswith("Not covered: statistics") and f"columns of {party}" in line for line in said)
    parties = (data.active, *data.passives.values())
    names = [name for party in parties for name in party.column_names]
    (tmp_path / "ranges.csv").write_text("column,lower,upper\n" + "".join(f"{name},0,5000\n" for name in names))
    covered = statement(f"data.ranges={tmp_path / 'ranges.csv'}")
    assert not any("statistics" in line for line in covered)
    assert len(covered) == len(said) - 3


def test_of_columns_that_came_as_numbers_nobody_knows(data: VerticalData) -> None:
    lab = replace(data["lab"], provenance=None)
    assert any("how lab's columns became numbers" in line for line in plan_for(data).notes({"lab": lab}))


def test_evaluations_are_not_covered_and_can_be_left_to_the_end(data: VerticalData) -> None:
    (often,) = [line for line in plan_for(data).notes({}) if "evaluation" in line]
    assert often.startswith("Not covered: 10 evaluations, 9 of them before the end (train.evaluate_every_epochs)")
    (once,) = [line for line in plan_for(data, "train.evaluate_every_epochs=10").notes({}) if "evaluation" in line]
    assert once.startswith("Not covered: the evaluation after the last epoch")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("exchange.noise.epsilon=0.0001",), "ε is below δ"),
        (("exchange.noise.delta=0.01",), "not below one over the 455 training records"),
        (("exchange.noise.epsilon=11",), "ε 11 is above 10"),
        (("train.noise_seed_for_experiments=1",), "whoever knows the fixed seed"),
        ((), "other runs over the same records, such as one that is started anew"),
        ((), "AES-256 in counter mode"),
        (("exchange.own_part=sent",), "what it learns from what it sent is counted"),
    ],
)
def test_what_weakens_a_promise_is_said(changes: tuple[str, ...], words: str, data: VerticalData) -> None:
    assert any(words in line for line in plan_for(data, *changes).notes({}))
    if changes and "seed" not in changes[0]:
        assert not any(words in line for line in plan_for(data).notes({}))


def test_of_a_fixed_seed_no_keystream_is_claimed_and_a_run_without_draws_from_one(data: VerticalData) -> None:
    assert not any("AES" in line for line in plan_for(data, "train.noise_seed_for_experiments=1").notes({}))
    config = config_of(text=PAIR)
    crossed: list[Message] = []
    trainer = build_trainer(config, load_data(config))
    trainer.record = crossed.append
    trainer.fit(1)
    plan = plan_for(data, text=PAIR)
    for kind, sigma in (("activation", plan.passive.sigma), ("gradient", plan.active.sigma / RECORDS)):
        (numbers,) = [one.payload.double() for one in crossed if one.kind == kind]
        grid = 2.0 ** (math.floor(math.log2(sigma)) - 20)
        steps = numbers[numbers.abs() < sigma] / grid  # float32 holds these whole: they have 21 bits
        assert len(steps) > 200
        assert torch.equal(steps, steps.round())


def test_a_run_says_all_of_it_before_the_first_step_and_with_its_figures(tmp_path: Path) -> None:
    told: list[str] = []
    summary = run_experiment(config_of("train.epochs=1"), tmp_path / "run", notify=told.append)
    assert [
        note for note in summary.notes if note in told and note.startswith(("HDP-VFL", "One record", "Not covered"))
    ]
    assert "hdp-vfl(epsilon=1, delta=0.001, tight)" in summary.defenses
    for name, hook in (("clinic", "coefficient-noise"), ("lab", "gaussian-ir"), ("far", "gaussian-ir")):
        (kept,) = (tmp_path / "run" / "checkpoints").rglob(f"hooks-{name}.pt")
        state = str(torch.load(kept, weights_only=True)["defenses"])
        assert hook in state
        assert "'keystream': {" in state
    with pytest.raises(ConfigError, match=r"other settings: train\.epochs \(noise was calculated for"):
        run_experiment(config_of("train.epochs=2"), tmp_path / "run", resume=True)


def test_check_says_it_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT.replace("PORT", "1"))
    assert main(["check", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run")]) == 0
    assert "towards lab and far together, who are sent one draw" in " ".join(capsys.readouterr().out.split())


def test_after_a_run_nothing_is_advised_that_its_noise_refuses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = TEXT.replace("PORT", "1")
    for name, content in (("noisy", text), ("plain", re.sub(r"(exchange: .*?), noise: {.*?}", r"\1", text))):
        (tmp_path / f"{name}.yaml").write_text(content)
        command = ["train", str(tmp_path / f"{name}.yaml"), "--out", str(tmp_path / name), "train.epochs=1"]
        assert main(command) == 0
        assert ("splitvfl compare" in capsys.readouterr().out) == (name == "plain")
        assert main(command) == 2
        assert ("--resume" in capsys.readouterr().err) == (name == "plain")


# --- what is refused


def test_a_comparison_that_cannot_end_does_not_begin(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT.replace("PORT", "1"))
    command = ["compare", str(tmp_path / "run.yaml"), "train.epochs=1", "--seeds", "1", "--out", str(tmp_path / "runs")]
    assert main([*command, "--defenses", "none,isotropic(ratio=1.0)"]) == 2
    assert "isotropic changes what crosses in training" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()  # the run without it is not trained first, and lost


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (("train.optimizer={name: adam}",), "train.optimizer: .*take sgd without momentum, or proximal-sgd"),
        (("train.optimizer={name: sgd, lr: 0.1, momentum: 0.9}",), "train.optimizer: .*without momentum"),
        (("train.optimizer={name: sgd, lr: 0.1, radius: 2.0}",), "train.optimizer.radius: .*is 1, and here it is 2"),
        (("train.optimizer.lr=9",), "train.optimizer.lr: expected a learning rate of at most 8, got 9"),
        (("train.optimizer={name: sgd, lr: 1.9, weight_decay: 0.5}",), r"train.optimizer.lr: .*at most 1\.6, got 1.9"),
        (("model={name: mlp}",), "model: exchange.noise is calculated for one linear layer"),
        (("model.private_top=true",), "model.private_top: exchange.noise is calculated for one linear layer"),
        (("model.row_norm=null",), "model.row_norm: .*rows of bounded norm"),
        (("train.loss=logistic",), "train.loss: .*leave it out"),
        (("train.early_stopping={}",), "train.early_stopping: .*true labels"),
        (("train.autocast=bf16",), "train.autocast"),
        (("exchange.receiver_clips={activation: 1.0}",), "exchange.receiver_clips: exchange.noise sets what"),
        (("defenses=[{name: isotropic, ratio: 1.0}]",), "defenses.0: isotropic changes what crosses in training"),
        (("defenses=[{name: memoised-response, epsilon: 1.0}]",), "defenses.0: memoised-response"),
        (("defenses=[{name: gaussian-ir, clip: 1.0, sigma: 1.0}]",), r"defenses.0: .*at: \[evaluation, prediction\]"),
    ],
)
def test_a_training_that_no_noise_is_calculated_for_is_refused(
    changes: tuple[str, ...], complaint: str, data: VerticalData
) -> None:
    with pytest.raises(ConfigError, match=f"hdp.yaml: {complaint}"):
        build_trainer(config_of(*changes), data)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("exchange.noise.epsilon=0", "epsilon"),
        ("exchange.noise.epsilon=.inf", "epsilon"),
        ("exchange.noise.delta=1", "delta"),
        ("exchange.noise.delta=0", "delta"),
        ("exchange.noise.radius=0", "radius"),
        ("exchange.noise.calibration=guessed", "calibration"),
        ("exchange.noise.protects=both", "protects"),
    ],
)
def test_settings_beyond_their_range_are_told_with_their_place(change: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"exchange\.noise\.{key}: "):
        config_of(change)


def test_noise_where_it_does_no_harm_is_taken(data: VerticalData) -> None:
    changes = ("defenses=[{name: gaussian-ir, clip: 1.0, sigma: 0.1, at: prediction}, {name: rounding, decimals: 2}]",)
    kinds = [type(one) for one in build_trainer(config_of(*changes), data).passives["lab"].activation["training"]]
    assert kinds == [GaussianIR]
    gradient = build_trainer(config_of(*changes), data).active.cuts["lab"].gradient
    assert [type(one) for one in gradient] == [CoefficientNoise]


def test_a_fixed_seed_in_a_deployed_run_is_refused(tmp_path: Path) -> None:
    config = config_of("train.noise_seed_for_experiments=5", text=TEXT + NETWORK)
    with pytest.raises(ConfigError, match=r"noise_seed_for_experiments: whoever knows the seed takes the noise"):
        party_run(config, "lab", tmp_path / "run")
    without = config_of(
        "train.noise_seed_for_experiments=5", text=(TEXT + NETWORK).replace("noise: {epsilon: 1.0, delta: 0.001}", "")
    )
    party_run(without, "lab", tmp_path / "run")


def test_noise_that_nothing_attached_is_not_trained_without(data: VerticalData) -> None:
    """An exchange that was told of noise, at parties that have none."""
    plain = config_of(text=TEXT.replace(", noise: {epsilon: 1.0, delta: 0.001}", ""))
    settings = HdpNoiseSettings(epsilon=1.0, delta=0.001)
    for clips in (None, ReceiverClips(activation=1.0, coefficient=1.0)):
        made = build_trainer(plain, data)
        with pytest.raises(ConfigError, match="noise is agreed on, and nothing has attached it at lab"):
            Split(noise=settings, receiver_clips=clips).passive(made.passives["lab"], made.active.name)


def assembled(data: PartyData, task: str, data_set: VerticalData) -> None:
    assembly = Assembly(config_of(), data_set.active)
    assembly.passive(data, assembly.task(task, 1), seed=0)


def test_records_that_are_used_twice_an_epoch_are_refused(data: VerticalData) -> None:
    lab = data["lab"]
    ids = lab.train.ids.clone()
    ids[3] = ids[7]
    with pytest.raises(ConfigError, match=r"hdp\.yaml: .*an id is there twice among the training records of lab"):
        assembled(replace(lab, train=replace(lab.train, ids=ids)), "binary", data)
    real = torch.ones(lab.train.count, dtype=torch.bool)
    real[0] = False
    with pytest.raises(ConfigError, match=r"dummies of the padded alignment repeat records of lab"):
        assembled(replace(lab, train=replace(lab.train, real=real)), "binary", data)
    with pytest.raises(ConfigError, match="logistic loss of binary labels, and this is a regression task"):
        assembled(lab, "regression", data)
