"""What is wrong with an experiment is told at once, before training, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from splitvfl.cli import main

EXPERIMENT = """
data: {name: table, path: people.csv, label: default}
parties:
  bank: {role: active, columns: [income]}
  telecom: {role: passive, columns: rest}
model: {name: mlp, bottom: [4]}
"""


def people(rows: int = 100) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {"income": random.normal(size=rows), "usage": random.normal(size=rows), "default": np.arange(rows) % 3 == 0}
    ).astype({"default": int})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    people().to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "loan.yaml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_good_experiment_is_said_to_be_one_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(folder)

    assert main(["check", "loan.yaml", "train.batch_size=16", "--out", "there"]) == 0
    assert "splitvfl train loan.yaml train.batch_size=16 --out there" in capsys.readouterr().out
    assert main(["check", "loan.yaml", "train.batch_size=16"]) == 0

    said = capsys.readouterr()
    assert "80 training and 20 test records, 33.75% positive" in said.out
    # One column and four activations to one output; one column to four.
    assert "models: bank 6 weights, telecom 8 weights" in said.out
    assert "10 epochs of 5 steps" in said.out
    assert "splitvfl train loan.yaml train.batch_size=16" in said.out
    assert said.err == ""
    assert files(folder) == before


def test_a_default_that_nobody_wrote_is_called_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "loan.yaml"]) == 2
    err = capsys.readouterr().err
    assert "train.batch_size: expected 1 to 80, the number of training records, got 256, which is the default" in err
    assert "to 16 for example" in err

    assert main(["train", "loan.yaml", "train.batch_size=256"]) == 2
    err = capsys.readouterr().err
    assert "got 256; set" in err
    assert not (folder / "runs" / "loan").exists()


def test_all_is_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").touch()

    assert main(["check", "loan.yaml", "--out", "mine", "data.label=defualt"]) == 2

    err = capsys.readouterr().err
    assert "did you mean 'default'? (it should be the label: data.label)" in err
    assert "mine holds files and is not a run" in err
    assert "2 things to mend" in err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda frame: frame.assign(default=frame["income"]), "data.task: regression if they are amounts"),
        (lambda frame: frame.assign(default=np.arange(100) % 4), "data.task: multiclass if they are classes"),
        (lambda frame: frame.assign(default=np.where(frame["default"] == 1, "yes", "no")), "data.positive, the value"),
        (lambda frame: frame.assign(born="2020-01-01"), "days since a day"),
        (
            lambda frame: frame.assign(usage=[None, *range(99)]),
            "data.missing: indicator, set before training, fills in the median",
        ),
    ],
)
def test_mistakes_are_told_in_the_words_of_the_file(
    change: object, told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(people()).to_csv("people.csv", index=False)  # type: ignore[operator]

    assert main(["check", "loan.yaml", "train.batch_size=16"]) == 2
    assert told in capsys.readouterr().err


def test_a_file_of_windows_says_how_to_convert_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people().assign(city="Zürich").to_csv("people.csv", index=False, encoding="latin-1")

    assert main(["check", "loan.yaml"]) == 2
    err = capsys.readouterr().err
    assert "line 2, column 'city': the text is not UTF-8" in err
    assert "iconv -f WINDOWS-1252 -t UTF-8 people.csv" in err


NETWORK = """
data: {name: table, path: people.csv}
parties:
  bank: {role: active, address: "127.0.0.1:1"}
  telecom: {role: passive, columns: usage}
model: {name: mlp, bottom: [4]}
train: {batch_size: 16}
network: {plaintext_on_loopback: true}
"""


def test_a_party_checks_its_own_half(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.yaml").write_text(NETWORK)
    before = files(folder)

    assert main(["check", "own.yaml", "--as", "telecom"]) == 0

    said = capsys.readouterr().out
    assert "telecom (passive): 1 numeric column" in said
    assert "model: 8 weights" in said
    assert "splitvfl party own.yaml --as telecom" in said
    assert files(folder) == before


def test_missing_certificates_and_a_wrong_column_are_both_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "own.yaml").write_text(
        NETWORK.replace("plaintext_on_loopback: true", "certificates: certs").replace("usage", "uasge")
    )

    assert main(["check", "own.yaml", "--as", "telecom"]) == 2
    err = capsys.readouterr().err
    assert "certs/ca.pem: not there" in err
    assert "did you mean 'usage'" in err


def test_a_partner_that_does_not_answer_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.yaml").write_text(NETWORK)

    assert main(["check", "own.yaml", "--as", "telecom", "--connect", "--wait", "1"]) == 2
    assert "bank at 127.0.0.1:1" in capsys.readouterr().err


def test_whose_partners_are_meant_has_to_be_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "loan.yaml", "--connect"]) == 2
    assert "--as NAME" in capsys.readouterr().err


def test_what_a_prediction_needs_is_checked_with_the_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    linear = NETWORK.replace("{name: mlp, bottom: [4]}", "logistic-regression")
    (folder / "own.yaml").write_text(linear.replace("columns: usage", 'address: "127.0.0.1:2"'))
    bank = ["check", "own.yaml", "--as", "bank", "parties.bank={role: active, columns: age, label: repaid}"]

    assert main([*bank, "prediction={scores_by: coordinator, per_record: 3}"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "prediction: per_record: a passive party limits what it lets be scored" in err
    assert "how do bank and coordinator meet? Give prediction.address" in err

    third = ["own.yaml", "--as", "coordinator", "prediction.scores_by=coordinator", "network.listen=127.0.0.1:0"]
    assert main(["check", *third]) == 0
    assert "splitvfl predict own.yaml" in capsys.readouterr().out
    assert main(["party", *third]) == 2
    assert "coordinator has no part in this training" in " ".join(capsys.readouterr().err.split())
