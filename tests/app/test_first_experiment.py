"""What init writes trains at once and learns; every guess is said, and what cannot be guessed is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import datasets

from splitvfl.app import first_experiment
from splitvfl.app.records import load_data
from splitvfl.cli import main
from splitvfl.config.sections import CELL_SETTINGS, load_config, parse_config
from splitvfl.data.columns import Columns, Records
from splitvfl.report.summary import read_summary

SMALL = """
data: breast-cancer
parties: {a: {role: active, columns: []}, b: {role: passive, columns: rest}}
model: mlp
"""
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
        assert guess in " ".join(said.split())
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


@pytest.mark.slow(reason="a run by the defaults")
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


@pytest.mark.parametrize(
    ("records", "positives", "canaries"),
    [
        (8_000, 4_000, 200),  # 5 % of the rarer class
        (8_000, 3_960, None),  # 198: too few to decide anything
        (4_000, 2_000, None),
        (40_000, 20_000, 1_000),
        (20_000, 1_340, None),  # 6.7 % positives
    ],
)
def test_canaries_are_a_comment_where_enough_fit(
    here: Path, monkeypatch: pytest.MonkeyPatch, records: int, positives: int, canaries: int | None
) -> None:
    # All records are trained on here: the division is none of this.
    labels = torch.zeros(records)
    labels[:positives] = 1.0
    train = Records(torch.arange(records), Columns.of(torch.zeros(records, 1)), labels)
    data = load_data(parse_config(SMALL, source="x"))
    data = replace(data, active=replace(data.active, train=train))
    monkeypatch.setattr(first_experiment, "load_data", lambda config: data)
    tumours().to_csv("clinic.csv", index=False)
    assert main(["init", "clinic.csv"]) == 0
    text = (here / "clinic.yaml").read_text()
    assert "splitvfl train clinic.yaml --audit-twin" in " ".join(text.replace("#", "").split())
    assert load_config(here / "clinic.yaml").canaries is None
    found = [line for line in text.splitlines() if "canaries:" in line]
    assert found == ([] if canaries is None else [f"# audit: {{canaries: {canaries}}}"])
    if canaries == 200:
        assert "±0.10" in text
    # Without the #, it is a setting that is taken.
    bare = text.replace("# audit:", "audit:")
    assert parse_config(bare, source="clinic.yaml").canaries == canaries


def test_canaries_of_numbers_are_six_per_cent_of_the_records() -> None:
    data = load_data(parse_config(SMALL.replace("breast-cancer", "diabetes"), source="x"))
    assert first_experiment._affordable(data) == data.active.train.count * 6 // 100 > 0


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
    printed = capsys.readouterr().out
    said, written = " ".join(printed.split()), " ".join((here / "bank.yaml").read_text().replace("\n#", "").split())
    assert max(map(len, printed.splitlines())) <= 80
    for left_out in (
        "spent (text that looks like numbers",
        "born (dates: make numbers of them, such as days since a day",
        "street (looks like",
    ):
        assert f"left out: {left_out}" in said
        assert f"left out: {left_out}" in written
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
    few(people()).to_csv("bank.csv", index=False)
    (here / "bank.yaml").write_text("mine")

    assert main(["init", "bank.csv"]) == 2
    assert "--out" in capsys.readouterr().err
    assert (here / "bank.yaml").read_text() == "mine"
    assert main(["init", "bank.csv", "--out", "new/first.yaml"]) == 0
    assert load_config(here / "new" / "first.yaml").data.path == str(here / "bank.csv")


def few(frame: pd.DataFrame, *text: str) -> pd.DataFrame:
    """Leave columns of text out but those that are named: each is tried in every style of numbers."""
    return frame.drop(columns=[name for name in ("born", "street", "country", "spent") if name not in text])


@pytest.mark.parametrize(
    ("change", "flags", "told"),
    [
        (few, ["--label", "churn"], "--label: no column 'churn'; did you mean 'churned'?"),
        (few, ["--label", "usage"], "it has 39 missing values in 200 records"),
        (lambda frame: few(frame, "country"), ["--label", "country"], "it is 'DE' in every record that has a value"),
        (lambda frame: few(frame, "street"), ["--label", "street"], "it holds 200 different texts"),
        (
            lambda frame: few(frame).assign(churned=frame["churned"].where(frame.index > 5)),
            [],
            "churned of bank.csv looks like the label by its name, and has 6 missing values in 200 records",
        ),
        (
            lambda frame: few(frame).assign(churned=np.where(frame.index > 5, "yes", " ")),
            [],
            "churned of bank.csv looks like the label by its name, and is 'yes' in every record that has a value",
        ),
        (few, ["--id", "job"], "--id: column 'job' of bank.csv cannot name the records"),
        (few, ["--id", "custmer_id"], "did you mean 'customer_id'?"),
        (lambda frame: few(frame).rename(columns={"churned": "a"}).assign(b=frame["churned"]), [], "say --label"),
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


def test_records_whose_outcome_is_not_known_yet_are_left_out_on_request(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = people().drop(columns=["street", "spent", "born"])
    frame["churned"] = frame["churned"].where(frame.index > 5)
    frame.drop(columns="usage").to_csv("bank.csv", index=False)
    frame[["customer_id", "usage"]][::-1].to_csv("telecom.csv", index=False)

    assert main(["init", "bank.csv", "telecom.csv", "--unlabelled", "drop"]) == 0

    assert "task is binary; without a label, and left out: 6" in " ".join(capsys.readouterr().out.split())
    assert load_config(here / "bank.yaml").data.unlabelled == "drop"
    assert "init bank.csv telecom.csv --unlabelled drop" in (here / "bank.yaml").read_text()
    assert main(["check", "bank.yaml"]) == 0
    assert "200 records joined by customer_id" in " ".join(capsys.readouterr().out.split())
    assert main(["train", "bank.yaml", "train.epochs=1", *QUICK]) == 0
    assert "without a label, and left out: 6" in " ".join(capsys.readouterr().err.split())
    assert main(["train", "bank.yaml", "data.unlabelled=error", "--out", "other"]) == 2
    assert "data.unlabelled: drop" in " ".join(capsys.readouterr().err.split())
    assert main(["init", "bank.csv", "telecom.csv", "--unlabelled", "leave", "--out", "other.yaml"]) == 2


def test_classes_that_differ_by_case_and_blanks_only_are_warned_of(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = people()[["customer_id", "balance", "region", "churned"]]
    frame["churned"] = np.where(frame["churned"] == 1, np.where(frame.index % 50 < 5, "yes ", "Yes"), "No")
    frame.to_csv("bank.csv", index=False)

    assert main(["init", "bank.csv"]) == 0

    assert "has values that differ by case and blanks only" in " ".join(capsys.readouterr().out.split())


def test_one_positive_record_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = people()[["customer_id", "balance", "region"]].assign(churned=0)
    frame.loc[7, "churned"] = 1
    frame.to_csv("bank.csv", index=False)

    assert main(["init", "bank.csv"]) == 2

    said = " ".join(capsys.readouterr().err.split())
    assert "label column 'churned' of bank.csv has one record of the positive class, in row 7 (from 0)" in said
    assert "it needs 2 at least" in said


def test_a_file_of_one_column_is_asked_for_its_delimiter(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people()[["customer_id", "balance", "churned"]].to_csv("bank.csv", index=False, sep="^")

    assert main(["init", "bank.csv"]) == 2

    assert "one column only, 'customer_id^balance^churned': which delimiter?" in capsys.readouterr().err


def german(rows: int = 80) -> pd.DataFrame:
    random = np.random.default_rng(0)
    amounts = random.uniform(0, 9999, rows)
    return pd.DataFrame(
        {
            "kunde": np.arange(rows) + 1000,
            "umsatz": [f"{one:,.2f}".translate(str.maketrans(",.", ".,")) for one in amounts],
            "punkte": [f"{1000 * (row + 1):,}".replace(",", ".") for row in range(rows)],  # 1.000 is no fraction
            "seit": [f"{1 + row % 28:02}.07.{1950 + row % 50}" for row in range(rows)],
            "label": (amounts > 5000).astype(int),
        }
    )


def test_an_export_of_another_country_trains_with_the_settings_that_are_written(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    german().to_csv("bank.csv", index=False, sep=";", encoding="utf-8-sig")
    pd.DataFrame({"kunde": np.arange(80) + 1000, "usage": np.linspace(0, 1, 80)}).to_csv("telecom.csv", index=False)

    assert main(["init", "bank.csv", "telecom.csv"]) == 0

    said = " ".join(capsys.readouterr().out.split())
    assert "how numbers are written in bank.csv: decimal ',', thousands '.' (such as" in said
    assert "left out: seit (dates: make numbers of them" in said
    config = load_config(here / "bank.yaml")
    assert (config.parties["bank"].decimal, config.parties["bank"].thousands) == (",", ".")
    assert (config.parties["telecom"].decimal, config.data.decimal) == (None, None)
    data = load_data(config)
    points = data.active.numeric_names.index("punkte")
    numbers = torch.cat([data.active.train.columns.numeric, data.active.test.columns.numeric])[:, points]
    assert float(numbers.max() - numbers.min()) > 3  # 80,000 points, and not 8.0 beside 10.0 to 9.0
    assert main(["check", "bank.yaml"]) == 0
    assert main(["train", "bank.yaml", "train.epochs=1", *QUICK]) == 0


@pytest.mark.parametrize(
    ("cells", "delimiter", "written"),
    [
        (["1.5", "2.5", "?"], ",", {"missing_values": ("?",)}),
        (["1.5", "2.5", "unknown"], ",", {"missing_values": ("unknown",)}),
        (["1.5", "2.5", "-"], ";", {"missing_values": ("-",)}),
        (["1,5", "2,5", "k.A."], ";", {"decimal": ",", "missing_values": ("k.A.",)}),
        (["1 234,5", "2 345,5", "3,5"], ";", {"decimal": ",", "thousands": " "}),
        (["1,234", "2,345", "3,456"], ";", {"decimal": ","}),
        (["1,234", "2,345", "3,456"], ",", {"thousands": ","}),
        (["1.5", "2.5", "NA"], ",", {}),
        (["01234", "04567", "12345"], ",", {}),
        (["1.5", "2.5", "high"], ",", None),
        (["$1.5", "$2.5", "$3.5"], ",", None),
    ],
)
def test_what_numbers_need_is_guessed_and_what_is_no_number_is_named(
    cells: list[str], delimiter: str, written: dict[str, object] | None, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = people()[["customer_id", "region", "churned"]].assign(cell=[cells[row % 3] for row in range(200)])
    frame.assign(other="x").to_csv("bank.csv", index=False, sep=delimiter)

    assert main(["init", "bank.csv", "--active", "bank=region", "--passive", "telecom=cell"]) == (
        0 if written is not None else 2
    )

    if written is None:
        assert "cell" in capsys.readouterr().err
        return
    data = load_config(here / "bank.yaml").data
    settings = {name: getattr(data, name) for name in CELL_SETTINGS}
    assert {name: value for name, value in settings.items() if value is not None} == written
    assert main(["check", "bank.yaml"]) == 0


def test_numbers_kept_as_text_in_a_typed_file_are_numbers(here: Path) -> None:
    frame = people()[["customer_id", "region", "churned"]].assign(amount=[f"{row / 8}" for row in range(200)])
    frame.to_parquet("bank.parquet")

    assert main(["init", "bank.parquet"]) == 0

    config = load_config(here / "bank.yaml")
    assert config.data.decimal == "."
    assert "amount" in load_data(config).passives["partner"].numeric_names


def test_ids_that_a_join_made_fractions_are_taken_if_they_are_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people().drop(columns=["street", "spent", "usage"]).to_csv("bank.csv", index=False)
    usage = people()[["customer_id", "usage"]].astype({"customer_id": float})
    usage.to_parquet("telecom.parquet")

    for number, named in enumerate([[], ["--id", "customer_id"]]):
        assert main(["init", "bank.csv", "telecom.parquet", *named, "--out", f"{number}.yaml"]) == 0
        assert "200 records joined by customer_id, which all tables have" in " ".join(capsys.readouterr().out.split())

    usage.assign(customer_id=usage["customer_id"] + 0.5).to_parquet("telecom.parquet")
    assert main(["init", "bank.csv", "telecom.parquet", "--id", "customer_id"]) == 2
    assert "column 'customer_id': 1000.5 is a fraction" in " ".join(capsys.readouterr().err.split())
