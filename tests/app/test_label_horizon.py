"""The run says until which step signs of solved residues are labels, and how many were."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from splitvfl.app.assembly import Assembly
from splitvfl.app.experiment import Experiment, Workbench, run_experiment
from splitvfl.app.label_horizon import LabelHorizon, before
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import TaskName
from splitvfl.privacy import initial_margin, sign_attack_horizon
from splitvfl.run.trainer import Trainer

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["* error", "worst *"]}
model: {name: logistic-regression, row_norm: 2.0}
exchange: {name: oracle, approximation: taylor}
train: {epochs: 1, batch_size: 16, optimizer: {name: sgd, lr: 0.05}}
attacks: [residue-solving, norm]
"""


def config_of(*changes: str) -> ExperimentConfig:
    return parse_config(TEXT, source="horizon.yaml", overrides=changes)


def assembly_of(config: ExperimentConfig) -> Assembly:
    return Assembly(config, load_data(config).active)


def agreed(config: ExperimentConfig, task: TaskName | None = "binary") -> LabelHorizon | None:
    return assembly_of(config).agreed_horizon(400, task)


def horizons(config: ExperimentConfig) -> tuple[Trainer, LabelHorizon | None, LabelHorizon | None]:
    experiment = Experiment(config, Workbench(load_data(config), {}))
    trainer = experiment.trainer()
    return trainer, *experiment.horizons(trainer)


@pytest.mark.parametrize("approximation", ["taylor", "minimax", "exact"])
def test_the_observed_horizon_is_that_of_the_rows_and_weights_that_there_are(approximation: str) -> None:
    trainer, found, _ = horizons(config_of(f"exchange.approximation={approximation}"))
    assert found is not None
    bank, lab = trainer.active, trainer.passives["lab"]
    radius = margin = 0.0
    for row in range(bank.data.train.count):
        index = torch.tensor([row])
        own, other = bank.train_batch(index).columns.numeric.double(), lab.train_batch(index).columns.numeric.double()
        radius = max(radius, math.sqrt(1 + float(own.square().sum() + other.square().sum())))
        logit = (
            own @ bank.top.own.weight.double().T + other @ lab.bottom.weight.double().T + bank.top.intercept.double()
        )
        margin = max(margin, abs(logit.item()))
    # Logits are float32.
    assert (found.radius, found.margin) == pytest.approx((radius, margin), rel=1e-5)
    assert found.steps == sign_attack_horizon(0.05, found.margin, approximation=approximation, radius=found.radius)


@pytest.mark.parametrize(("init", "deviation"), [("zero", 0.0), ("normal", 1.0), ("xavier", 1.0), ("kaiming", 2**0.5)])
def test_the_agreed_horizon_takes_the_norm_and_the_initialisation_alone(init: str, deviation: float) -> None:
    found = agreed(config_of(f"model.init={init}", "model.row_norm=0.1"))
    assert found is not None
    # Two parties of norm .1, and the intercept's one.
    assert found.radius == pytest.approx(math.sqrt(1.02))
    assert found.margin == pytest.approx(initial_margin(deviation, found.radius, 400, 0.01))
    assert found.steps == sign_attack_horizon(0.05, found.margin, radius=found.radius)


@pytest.mark.parametrize(
    "change",
    [
        "train.optimizer={name: adam}",
        "train.optimizer.momentum=0.5",
        "train.optimizer.weight_decay=0.5",
        "defenses=[{name: isotropic, ratio: 1}]",
        "exchange={name: taylor, noise: {epsilon: 0.5, delta: 0.1}}",
        "model={name: mlp, bottom: [4]}",
    ],
)
def test_no_horizon_is_claimed_where_signs_are_not_proven(change: str) -> None:
    config = config_of("exchange=split", change) if "mlp" in change else config_of("model.row_norm=0.7", change)
    assert horizons(config)[1:] == (None, None)


def test_without_an_agreed_norm_nobody_but_the_auditor_knows() -> None:
    config = config_of("model=logistic-regression")
    _, observed, anybodys = horizons(config)
    assert observed is not None
    assert anybodys is None


def test_signs_are_right_in_the_proven_steps_and_not_for_ever(tmp_path: Path) -> None:
    lines: list[str] = []
    config = config_of("model.init=zero", "train.epochs=4", "train.optimizer.lr=0.6")
    summary = run_experiment(config, tmp_path / "run", notify=lines.append)
    place = next(place for place, line in enumerate(lines) if "provably" in line)
    proven, alone = lines[place : place + 2]
    # A radius of 3 at most: growth by .6 · 9 / 4 at each step, so that logits may reach 2 in the second.
    assert "is provably its record's label in step 1 (rows of norm up to 3, first logits up to 0)." in proven
    assert alone.startswith(
        "From the agreed norm, rate and initialisation alone any party knows that, if nobody adds noise,"
    )
    (note,) = (one for one in summary.notes if one.startswith("residue-solving"))
    found = summary.parties["lab"].attacks["residue-solving"]
    assert found.signs_right is not None
    assert 0.5 < found.signs_right < 1
    assert note.startswith(f"residue-solving at lab: {found.signs_right:.1%} of signs were the label; of 440 records")
    assert note.endswith("In the steps where that is proven it was 100.0%.")
    assert summary.parties["lab"].attacks.get("norm") is None
    logged = [
        line for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() if "signs_right/lab" in line
    ]
    assert logged


def test_what_is_not_known_is_not_said() -> None:
    assert before(None, None) == []


def test_where_labels_need_not_be_binary_nothing_is_said() -> None:
    assert agreed(config_of(), "regression") is None
    assert agreed(config_of(), None) is not None  # a passive party: the exchange is for binary labels
    assert agreed(config_of("exchange=split"), None) is None


def test_the_rate_that_parties_compare_does_not_tell_who_defends() -> None:
    """A defense is its owner's business: parties with and without one agree."""
    assert (
        assembly_of(config_of()).rate == assembly_of(config_of("defenses=[{name: isotropic, ratio: 1}]")).rate == 0.05
    )
    assert assembly_of(config_of("train.optimizer={name: adam}")).rate is None
    assert assembly_of(config_of("train.optimizer.momentum=0.5")).rate is None


def test_signs_of_scores_of_the_whole_run_are_counted_by_their_last(tmp_path: Path) -> None:
    summary = run_experiment(
        config_of(
            "exchange=split",
            "model=logistic-regression",
            "defenses=[{name: laplace-residue, epsilon: 20.0}]",
            "attacks=[{name: additive-llr, epsilon: 20.0}]",
            "train.epochs=2",
        ),
        tmp_path / "run",
    )

    (note,) = [note for note in summary.notes if note.startswith("additive-llr at lab")]
    found = summary.parties["lab"].attacks["additive-llr"]
    assert found.records == 440
    # One release is read with probability 1 − e^-5 / 2 = .997 where the label party's part is one number; here it has
    # columns.
    assert found.records_right > 0.97 * 440
    assert f"of 440 records {found.records_right} by the last of their signs" in note
    assert note.endswith("have the commoner label).")  # nothing of solving: it reads each residue by itself
