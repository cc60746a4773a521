"""A run says before its first step what partners can solve for, and what is said is what attacks find."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from splitvfl.app.checking import check_party
from splitvfl.app.deployment import Deployment
from splitvfl.app.experiment import Experiment, Workbench, run_experiment
from splitvfl.app.records import load_data
from splitvfl.app.solving import refuse_solvable, solvable_in_python
from splitvfl.app.trainer import Trainer
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.defenses import AsymmetricResponse, Isotropic
from splitvfl.errors import SolvableError
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import Defense
from splitvfl.learning.optimizers import sgd
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.privacy import Solvable, laplace_label_success
from splitvfl.report.report import write_report
from splitvfl.report.summary import read_summary
from splitvfl.report.verdict import Verdict
from splitvfl.run.training import Status
from tests.summaries import opened

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["* error"]}
  shop: {role: passive, columns: ["worst *"]}
model: {name: logistic-regression}
exchange: {name: oracle}
train: {epochs: 1, batch_size: 8, optimizer: {name: sgd, lr: 0.05}}
attacks: [residue-solving]
"""


def foreseen(*changes: str, text: str = TEXT) -> tuple[list[Solvable], list[str]]:
    config = parse_config(text, source="solving.yaml", overrides=changes)
    experiment = Experiment(config, Workbench(load_data(config), {}))
    trainer = experiment.trainer()
    return experiment.solving(trainer, experiment.horizons(trainer)[0])


def test_a_run_says_it_before_step_1_and_the_attack_finds_what_is_said(tmp_path: Path) -> None:
    lines: list[str] = []
    steps: list[Status] = []
    config = parse_config(TEXT, source="solving.yaml", overrides=["data.test_fraction=0.2"])
    summary = run_experiment(
        config, tmp_path / "run", notify=lambda line: lines.append(f"{len(steps)} {line}"), progress=steps.append
    )
    said = [line for line in lines if "can solve for" in line]
    assert [line.split(" can")[0] for line in said] == ["0 lab", "0 shop"]  # no step was taken before
    assert "440 of 440 labels after 1 epoch" in said[0]
    for found in summary.solvable:
        assert found.reveals_labels
        attack = summary.parties[found.partner].attacks["residue-solving"]
        assert (attack.signs_right, found.leak_auc) == (1.0, 1.0)
    page = write_report([tmp_path / "run"], tmp_path / "report.html", title="solving").read_text()
    assert all(f"<td>{name}</td><td>batch equations</td><td>labels</td>" in page for name in ("lab", "shop"))
    assert page.count("440 of 440</td><td>1 epoch</td><td>yes</td>") == 2
    again = read_summary(tmp_path / "run")
    assert again.solvable == summary.solvable
    assert [note for note in again.notes if "can solve for" in note] == [line[2:] for line in said]


def test_a_summary_from_before_has_no_such_figure(tmp_path: Path) -> None:
    run_experiment(parse_config(TEXT, source="solving.yaml"), tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    entries = opened(path)
    assert entries.pop("solvable")
    path.write_text(json.dumps(entries))
    assert read_summary(tmp_path / "run").solvable == []


@pytest.mark.parametrize(
    ("changes", "computations"),
    [
        ((), {"batch equations"}),
        (("train.batch_size=all", "train.epochs=9"), set()),
        (("train.batch_size=228",), set()),
        (("train.batch_size=29", "train.epochs=9"), {"batch equations", "stacked epochs"}),  # 5 in the last batch
        (("exchange=split", "attacks=[norm]"), set()),
        (
            ("model.init=zero", "exchange.approximation=taylor", "train.batch_size=48"),
            {"batch equations", "first batch"},
        ),
    ],
)
def test_each_computation_is_said_where_it_works(changes: tuple[str, ...], computations: set[str]) -> None:
    found, said = foreseen(*changes)
    assert {one.computation for one in found} == computations
    assert {one.partner for one in found} == ({"lab", "shop"} if computations else set())
    assert len(said) == len(found)


@pytest.mark.parametrize(
    ("defense", "labels", "guaranteed"),
    [
        ("asymmetric-response, detection_error: 0.4", "randomised", True),
        ("laplace-residue, epsilon: 1.0", "changed", True),
        ("isotropic, ratio: 1.0", "changed", False),
    ],
)
def test_behind_a_defense_no_true_labels_are_solved(defense: str, labels: str, guaranteed: bool) -> None:
    found, said = foreseen(f"defenses=[{{name: {defense}}}]")
    assert {one.labels for one in found} == {labels}
    assert not any(one.reveals_labels for one in found)
    refuse_solvable(found)
    assert all("no true labels" in line for line in said)
    assert all(("guarantees nothing" not in line) == guaranteed for line in said)


@pytest.mark.parametrize(
    ("approximation", "init", "proven"),
    # Of a piecewise residue that is 0, as logits beyond a half may leave it, nothing follows.
    [("exact", "xavier", 440), ("piecewise", "xavier", 0), ("piecewise", "zero", 8), ("taylor", "zero", 8)],
)
def test_only_signs_that_are_proven_count_as_labels(approximation: str, init: str, proven: int) -> None:
    found, _ = foreseen(f"exchange.approximation={approximation}", f"model.init={init}", "train.optimizer.lr=5.0")
    assert {(one.records, one.residues) for one in found if one.computation == "batch equations"} == {(proven, 440)}
    assert {one.reveals_labels for one in found} == {proven > 0}


def test_with_each_change_that_is_named_the_attack_no_longer_solves(tmp_path: Path) -> None:
    (found, *_), (said, *_) = foreseen()
    assert f"train.batch_size: {found.batch_size_needed}" in said
    right = {}
    for number, change in enumerate(
        [f"train.batch_size={found.batch_size_needed}", "defenses=[{name: laplace-residue, epsilon: 1.0}]"]
    ):
        config = parse_config(TEXT, source="solving.yaml", overrides=[change, "train.noise_seed_for_experiments=1"])
        summary = run_experiment(config, tmp_path / str(number))
        assert not any(one.reveals_labels for one in summary.solvable)
        right[change] = summary.parties["lab"].attacks["residue-solving"].signs_right
    batch, noise = right.values()
    # What features predict stays; 440 signs have a standard error of 0.024.
    assert batch is not None
    assert noise is not None
    assert batch < 0.95
    assert noise < laplace_label_success(1.0) + 0.07


def test_with_noise_on_sums_none_are() -> None:
    found, _ = foreseen(
        "exchange={name: residue, own_part: sent, sum_noise: {epsilon: 1.0, delta: 1.0e-5}}",
        "model.row_norm=1.0",
        "attacks=[]",
    )
    assert {one.labels for one in found} == {"changed"}


def test_columns_that_repeat_others_give_no_equations(tmp_path: Path) -> None:
    """One-hot columns: ten of them, and a batch of eight records has fewer different rows than records."""
    kinds = [[int(i * 7 % 10 == kind) for kind in range(10)] for i in range(60)]
    rows = [",".join(map(str, [i, i % 13, *kind, int(i % 3 == 0)])) for i, kind in enumerate(kinds)]
    (tmp_path / "t.csv").write_text("\n".join([f"id,age,{','.join(f'k{kind}' for kind in range(10))},y", *rows]))
    text = (
        "data: {name: table, path: t.csv, id_column: id, label: y}\n"
        "parties:\n  bank: {role: active, columns: [age]}\n  shop: {role: passive, columns: [k*]}\n"
        + TEXT[TEXT.index("model:") :]
    )
    config = parse_config(text, source=tmp_path / "t.yaml", folder=tmp_path)
    experiment = Experiment(config, Workbench(load_data(config), {}))
    trainer = experiment.trainer()
    assert trainer.passives["shop"].data.width == 10
    found, _ = experiment.solving(trainer, None)
    assert not [one for one in found if one.computation == "batch equations" and one.batch_size == 8]


def test_the_verdict_of_an_unmeasured_run_says_what_is_solvable(tmp_path: Path) -> None:
    config = parse_config(TEXT, source="solving.yaml", overrides=["attacks=[]", "audit=false"])
    summary = run_experiment(config, tmp_path / "run")
    found = summary.verdict["lab"].labels
    assert found is not None
    assert (found.state, found.row) == ("above-goal", "solvable")
    assert "lab solves every label" in found.reason


def test_a_leak_check_stops_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(TEXT)
    assert main(["train", "x.yaml", "--out", "run", "--fail-above", "0.9"]) == 3
    errors = " ".join(capsys.readouterr().err.split())
    assert "failed before step 1: above goal 0.9: lab can solve for 440 of 440 labels" in errors
    assert not list(Path("run").glob("*"))
    # With what it says prevents it nothing is solvable, and what is left cannot be measured among canaries.
    assert main(["train", "x.yaml", "train.batch_size=all", "--out", "run", "--fail-above", "0.9"]) == 4
    assert "the excess cannot be measured in this protocol" in " ".join(capsys.readouterr().err.split())


def test_a_single_label_that_can_be_solved_for_is_too_many() -> None:
    found, _ = foreseen("train.batch_size=29")  # 5 of 440 in the last batch
    with pytest.raises(SolvableError, match="lab can solve for 5 of 440 labels"):
        refuse_solvable(found)


NETWORKED = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000"}
  lab: {role: passive, columns: COLUMNS}
  shop: {role: passive, columns: ["worst *"]}
model: {name: logistic-regression}
exchange: residue
train: {epochs: 2, batch_size: 9, optimizer: {name: sgd, lr: 0.05}}
network: {listen: "127.0.0.1:7000", plaintext_on_loopback: true}
"""


TEN = ["radius", "texture", "perimeter", "area", "smoothness"]
TEN += ["compactness", "concavity", "concave points", "symmetry", "fractal dimension"]


@pytest.mark.parametrize(("columns", "known"), [([f"{name} error" for name in TEN], True), (["* error"], False)])
def test_check_of_one_partys_file_says_what_it_names(columns: list[str], known: bool, tmp_path: Path) -> None:
    lines: list[str] = []
    text = NETWORKED.replace("COLUMNS", json.dumps(columns))
    config = parse_config(text, source=tmp_path / "run.yaml")
    assert check_party(config, "clinic", tmp_path / "run", connect_s=None, tell=lines.append) == []
    said = [line for line in lines if "solve" in line]
    assert any(line.startswith("lab can solve for 440 of 440 labels") for line in said) == known
    unknown = "shop has" if known else "lab and shop have"
    assert any(line.startswith(f"How many features {unknown} is not known here. With 9 or more") for line in said)
    lines.clear()
    assert check_party(config, "lab", tmp_path / "run", connect_s=None, tell=lines.append) == []
    assert not [line for line in lines if "solve for" in line]


# --- a trainer in Python


def by_hand(config: ExperimentConfig, exchange: Exchange, *defenses: Defense, rate: float = 0.05) -> Trainer:
    """Return the parties of an experiment's file with its first weights, put together by hand."""
    made = Experiment(config, Workbench(load_data(config), {})).trainer()
    step: Any = partial(sgd, lr=rate)
    active = ActiveParty(made.active.data, made.active.top, optimizer=step, task=made.active.task)
    passives = {name: PassiveParty(party.data, party.bottom, optimizer=step) for name, party in made.passives.items()}
    size = config.train.rows(made.active.data.train.count)
    return Trainer(active, passives, exchange=exchange, defenses=defenses, batch_size=size, audit=False)


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("train.batch_size=228",),
        ("train.batch_size=29", "train.epochs=9"),
        ("model.init=zero", "exchange.approximation=taylor", "train.batch_size=48"),
        ("exchange.approximation=taylor",),
        ("exchange.approximation=piecewise",),
        (
            "parties.clinic.columns=[]",
            "parties.lab.columns=rest",
            "model.intercept=false",
            "train.batch_size=40",
            "train.epochs=9",
        ),
    ],
)
def test_a_trainer_in_python_foresees_what_an_experiment_does(changes: tuple[str, ...]) -> None:
    alone = "parties.clinic.columns=[]" in changes  # then the partner knows all logits
    text = TEXT.replace('  shop: {role: passive, columns: ["worst *"]}\n', "") if alone else TEXT
    config = parse_config(text, source="solving.yaml", overrides=changes)
    exchange = config.exchange.make(rows=config.train.batch_size)
    assert solvable_in_python(by_hand(config, exchange), config.train.epochs) == foreseen(*changes, text=text)[0]


def test_its_verdict_is_above_the_goal_where_labels_can_be_solved_for() -> None:
    config = parse_config(TEXT, source="solving.yaml", overrides=["attacks=[]"])

    def of_lab(*defenses: Defense) -> Verdict:
        trainer = by_hand(config, config.exchange.make(rows=8), *defenses)
        trainer.fit(1)
        found = trainer.verdict["lab"].labels
        assert found is not None
        return found

    assert (of_lab().state, of_lab().row) == ("above-goal", "solvable")
    assert of_lab().prevented_by.startswith("train.batch_size: ")
    assert of_lab(AsymmetricResponse(detection_error=0.4)).row == "guarantee"
    assert of_lab(Isotropic(ratio=1.0)).row == "undecided"


ENCRYPTED = "exchange={name: residue, encryption: {key_bits: 2048, most_columns: 10}}"


def test_under_encryption_what_a_deviating_partner_reads_is_said_too_and_stops_no_run() -> None:
    found, said = foreseen(ENCRYPTED, "train.batch_size=64")
    packed = [one for one in found if one.deviates]
    assert [one.partner for one in packed] == ["lab", "shop"]
    assert all(one.equations == one.left < 64 for one in packed)
    assert sum("if it deviates from the protocol (attack packing)" in line for line in said) == 2
    refuse_solvable(packed)


@pytest.mark.parametrize(("share", "said"), [(0.1, True), (0.45, False)])
def test_hybrid_says_when_fewer_records_are_used_than_a_partner_has_features(share: float, said: bool) -> None:
    exchange = f"exchange={{name: hybrid, epsilon: 1.0, share: {share}, encryption: {{key_bits: 2048}}}}"
    found, lines = foreseen(exchange, "train.batch_size=64")
    sparse = [one for one in found if one.computation == "sparse residues"]
    assert bool(sparse) == said
    assert not any(one.reveals_labels for one in found)
    assert any("attack sparse-residues" in line for line in lines) == said


@pytest.mark.parametrize(
    ("defense", "told"),
    [
        ("{name: asymmetric-response, detection_error: 0.4}", "These are randomised labels, and no true labels."),
        ("{name: laplace-residue, epsilon: 1.0}", "These are residues that were changed before, and no true labels."),
    ],
)
def test_check_of_a_defended_label_owners_file_says_what_party_says(defense: str, told: str, tmp_path: Path) -> None:
    """The sentences are those that follow from the numbers of features that partners send."""
    text = NETWORKED.replace("COLUMNS", json.dumps([f"{name} error" for name in TEN]))
    lines: list[str] = []
    changes = [f"defenses=[{defense}]", "exchange={name: residue, encryption: {value_limit: 64}}"]
    config = parse_config(text, source=tmp_path / "run.yaml", overrides=changes)
    assert check_party(config, "clinic", tmp_path / "run", connect_s=None, tell=lines.append) == []
    said = [line for line in lines if line.startswith("lab can solve")]
    assert said
    assert all(told in line for line in said)
    solving = Deployment(config, "clinic")._solving()
    assert solving is not None
    assert [line for line in solving.said(solving.of({"lab": 10})) if line.startswith("lab can solve")] == said
