"""What init writes trains at once and learns; every guess is said, and what cannot be guessed is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.report.summary import read_summary

QUICK = ("audit=false", "attacks=[]")


def tumours() -> pd.DataFrame:
    frame = datasets.load_breast_cancer(as_frame=True).frame
    frame["malignant"] = np.where(frame.pop("target") == 0, "yes", "no")
    return frame.assign(patient=[f"P{row:04}" for row in range(len(frame))])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_files_are_joined_trained_and_learned_from(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = tumours()
    means = [name for name in frame if name.startswith("mean")]
    frame[["patient", *means, "malignant"]].sample(frac=0.95, random_state=0).to_csv("clinic.csv", index=False)
    frame.drop(columns=[*means, "malignant"]).sample(frac=0.95, random_state=1).to_csv("lab.csv", index=False)

    assert main(["init", "lab.csv", "clinic.csv"]) == 0

    said, text = capsys.readouterr().out, (here / "clinic.yaml").read_text()
    for guess in (
        "label: malignant (by its name; two values, of which 'yes' is the positive one), so the task is binary",
        "ids: patient (in all 2 files, and different in every record of each)",
        "clinic has the label column and is the active party",
    ):
        assert guess in said
        assert guess in " ".join(line.removeprefix("#").strip() for line in text.splitlines())
    assert "splitvfl train clinic.yaml" in said
    config = load_config(here / "clinic.yaml")
    assert {name: party.role for name, party in config.parties.items()} == {"clinic": "active", "lab": "passive"}
    assert [hook.name for hook in config.defenses] == ["asymmetric-response"]
    assert main(["check", "clinic.yaml"]) == 0
    assert main(["train", "clinic.yaml", *QUICK]) == 0
    metric = read_summary(here / "runs" / "clinic").test_metric
    assert metric is not None
    assert metric > 0.97


def test_amounts_are_a_regression_that_reaches_its_labels(here: Path) -> None:
    frame = datasets.load_diabetes(as_frame=True).frame
    frame["target"] *= 1000.0  # as prices are
    frame.to_csv("patients.csv", index=False)

    assert main(["init", "patients.csv"]) == 0
    path = here / "patients.yaml"
    assert [hook.name for hook in load_config(path).attacks] == ["norm", "direction", "residual"]
    assert load_config(path).defenses == ()
    assert main(["train", "patients.yaml", *QUICK]) == 0

    metric = read_summary(here / "runs" / "patients").test_metric
    assert metric is not None
    assert metric > 0.25  # least squares: .33 on this split


def test_names_with_control_characters_are_escaped_and_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"a\x1b_id": np.arange(60) + 1000, "x\x07": np.arange(60) % 7, "z": np.arange(60) % 5}
    pd.DataFrame({**columns, "la\x1b[2J\x7fte": np.arange(60) % 2}).to_csv("bank.csv", index=False)

    assert main(["init", "bank.csv", "--label", "la\x1b[2J\x7fte", "--id", "a\x1b_id"]) == 0

    said = capsys.readouterr().out
    assert r"label: la\x1b[2J\x7fte" in said
    assert not set("\x1b\x07\x7f") & set(said.replace("\n", ""))
    assert load_config("bank.yaml").data.id_column == "a\x1b_id"
    assert main(["check", "bank.yaml"]) == 0


def attacks_judged(run: Path) -> set[str]:
    party = read_summary(run).parties["partner"]
    assert not party.unavailable
    return set(party.attacks)


def test_the_defense_of_numbers_that_is_offered_trains_once_its_range_is_said(here: Path) -> None:
    datasets.load_diabetes(as_frame=True).frame.to_csv("patients.csv", index=False)
    assert main(["init", "patients.csv"]) == 0
    path = here / "patients.yaml"
    text = path.read_text().replace("# defenses:\n#   - {", "defenses:\n  - {").replace("LEAST, LARGEST", "0, 400")

    path.write_text(text)

    assert [hook.name for hook in load_config(path).defenses] == ["gaussian-targets"]
    assert main(["train", "patients.yaml", "train.epochs=1", "audit=false"]) == 0
    assert {"norm", "direction", "residual"} <= attacks_judged(here / "runs" / "patients")


def test_attacks_on_classes_are_written_and_run(here: Path) -> None:
    frame = datasets.load_wine(as_frame=True).frame
    frame.rename(columns={"target": "label"}).to_csv("wines.csv", index=False)
    assert main(["init", "wines.csv"]) == 0

    assert main(["train", "wines.yaml", "train.epochs=1", "audit=false"]) == 0

    assert {"norm", "direction", "residual"} <= attacks_judged(here / "runs" / "wines")


def people(rows: int = 200) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "customer_id": np.arange(rows) + 1000,
            "born": "2020-01-01",
            "region": random.integers(1, 8, rows),
            "usage": np.where(random.random(rows) < 0.2, np.nan, random.normal(size=rows)),
            "street": [f"Street {row}" for row in range(rows)],
            "country": "DE",
            "spent": [f"{row},50" for row in range(rows)],
            "job": random.choice(["nurse", "clerk"], rows),
            "balance": random.normal(size=rows),
            "churned": random.integers(0, 2, rows),
        }
    )


def test_kinds_of_columns_are_guessed_and_each_guess_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people().to_csv("bank.csv", index=False)

    assert main(["init", "bank.csv", "--active", "bank=balance,job", "--passive", "telecom=rest"]) == 0

    data = load_config(here / "bank.yaml").data
    assert (data.label, data.id_column, data.missing) == (None, "customer_id", "indicator")
    assert set(data.drop) == {"born", "street", "country", "spent"}
    assert data.categorical_columns == ("region",)
    said = capsys.readouterr().out
    assert "left out: spent (numbers written with a comma" in said
    assert "left out: born (dates, of which no numbers are made here)" in " ".join(said.split())
    assert "bank (active): 1 numeric and 1 categorical columns" in said
    assert "telecom (passive): 1 numeric and 1 categorical columns" in said


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"income": "amounts", "left": "ja or nein"},
            "label: left (the only column of two values",
        ),
        ({"income": "ja or nein", "price": "amounts"}, "label: income"),
        ({"target": "amounts", "left": "ja or nein"}, "label: target"),
        ({"price": "amounts", "size": "amounts"}, "label: price"),
        ({"class": "ja or nein", "label": "amounts"}, "label: class"),
    ],
)
def test_a_label_is_guessed_by_its_name_and_its_values(
    columns: dict[str, str], expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    kinds = {"amounts": lambda: random.normal(size=80), "ja or nein": lambda: random.choice(["ja", "nein"], 80)}
    frame = pd.DataFrame({"a": random.normal(size=80), "b": random.normal(size=80)})
    frame.assign(**{name: kinds[kind]() for name, kind in columns.items()}).to_csv("bank.csv", index=False)

    assert main(["init", "bank.csv"]) == 0
    assert capsys.readouterr().out.startswith(expected)


def test_an_experiment_that_is_there_is_left_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people().to_csv("bank.csv", index=False)
    (here / "bank.yaml").write_text("mine")

    assert main(["init", "bank.csv"]) == 2
    assert "--out" in capsys.readouterr().err
    assert (here / "bank.yaml").read_text() == "mine"
    assert main(["init", "bank.csv", "--out", "new/first.yaml"]) == 0
    assert load_config(here / "new" / "first.yaml").data.path == str(here / "bank.csv")


@pytest.mark.parametrize(
    ("change", "flags", "told"),
    [
        (lambda frame: frame, ["--label", "churn"], "--label: no column 'churn'; did you mean 'churned'?"),
        (lambda frame: frame, ["--label", "usage"], "a value in every row"),
        (lambda frame: frame, ["--id", "job"], "--id: column 'job' of bank.csv cannot name the records"),
        (lambda frame: frame, ["--id", "custmer_id"], "did you mean 'customer_id'?"),
        (lambda frame: frame.rename(columns={"churned": "a"}).assign(b=frame["churned"]), [], "say --label"),
        (lambda frame: frame[["customer_id", "balance", "churned"]], [], "one column to learn from, 'balance'"),
        (lambda frame: frame[["customer_id", "born", "churned"]], [], "no column to learn from"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(
    change: object, flags: list[str], told: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(people()).to_csv("bank.csv", index=False)  # type: ignore[operator]

    assert main(["init", "bank.csv", *flags]) == 2
    assert told.lower() in capsys.readouterr().err.lower()
    assert not (here / "bank.yaml").exists()


@pytest.mark.parametrize("flags", [[], ["--id", "bank=customer_id,telecom=client_id"]])
def test_files_may_call_their_ids_otherwise(flags: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people().drop(columns=["street", "spent", "usage"]).to_csv("bank.csv", index=False)
    usage = people()[["customer_id", "usage"]].rename(columns={"customer_id": "client_id"})
    usage[::-1].to_csv("telecom.csv", index=False)

    assert main(["init", "bank.csv", "telecom.csv", *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "ids: customer_id of bank and client_id of telecom" in said
    assert "200 records joined by customer_id of bank and client_id of telecom, which all tables have" in said
    config = load_config(here / "bank.yaml")
    assert config.data.id_column is None
    assert {name: config.id_column_of(name) for name in config.parties} == {
        "bank": "customer_id",
        "telecom": "client_id",
    }


def test_files_without_common_ids_ask_for_them(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people().drop(columns=["customer_id", "street", "spent"]).to_csv("bank.csv", index=False)
    people()[["customer_id", "usage"]].to_csv("telecom.csv", index=False)

    assert main(["init", "bank.csv", "telecom.csv"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "which column names the records?" in said
    assert "say --id COLUMN, or --id bank=COLUMN,telecom=COLUMN" in said
    assert main(["init", "bank.csv", "telecom.csv", "--id", "bank=balance"]) == 2
    assert "expected a column for each of 'bank', 'telecom'" in " ".join(capsys.readouterr().err.split())


def test_ids_that_a_join_made_fractions_are_taken_if_they_are_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people().drop(columns=["street", "spent", "usage"]).to_csv("bank.csv", index=False)
    usage = people()[["customer_id", "usage"]].astype({"customer_id": float})
    usage.to_parquet("telecom.parquet")

    assert main(["init", "bank.csv", "telecom.parquet", "--id", "customer_id"]) == 0
    assert "200 records joined by customer_id, which all tables have" in " ".join(capsys.readouterr().out.split())

    usage.assign(customer_id=usage["customer_id"] + 0.5).to_parquet("telecom.parquet")
    assert main(["init", "bank.csv", "telecom.parquet", "--id", "customer_id"]) == 2
    assert "column 'customer_id': 1000.5 is a fraction" in " ".join(capsys.readouterr().err.split())
