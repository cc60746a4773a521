"""What is said of the data before training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from splitvfl.app.data_summary import own_summary_of, summary_of
from splitvfl.cli import main
from splitvfl.data.columns import VerticalData
from splitvfl.data.ingest.run import ingest
from splitvfl.data.load import load_table
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.spelling import as_flag, settings_written
from splitvfl.data.store import open_tables

ROWS = 500


def table() -> pa.Table:
    random = np.random.default_rng(0)
    return pa.table(
        {
            "number": np.arange(ROWS),
            "sex": random.choice(["f", "m"], ROWS),
            "income": random.normal(size=ROWS),
            "region": random.integers(1, 8, ROWS),
            "always": np.ones(ROWS),
            "late": np.arange(ROWS) % 5 == 0,
        }
    )


def loaded(label: str = "late", **settings: object) -> VerticalData:
    spec = TableSpec(**{"source": table(), "label": label, **settings})  # type: ignore[arg-type]
    return load_table(spec, [PartyClaim("bank", "active", "sex"), PartyClaim("lab", "passive", "rest")])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pa.csv.write_csv(table(), tmp_path / "calls.csv")
    return tmp_path / "calls.csv"


EXPERIMENT = """
data: {name: table, path: calls.csv, label: late, positive: true}
parties:
  bank: {role: active, columns: [sex]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [4]}
train: {epochs: 1, batch_size: 100}
audit: false
"""


def test_names_out_of_a_file_do_not_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = "late\x1b[2J\x9b1m\u202ecc"
    Path("bank.csv").write_text(f"id,sex,{hostile},y\n" + "".join(f"{n},{n % 3},7,{n % 2}\n" for n in range(40)))
    changed = EXPERIMENT.replace("calls.csv, label: late, positive: true", "bank.csv, label: y")
    Path("one.yaml").write_text(changed.replace("100", "10"))

    assert main(["check", "one.yaml"]) == 0
    said = capsys.readouterr().out
    assert r"late\x1b[2J\x9b1m\u202ecc" in said
    assert main(["check", "one.yaml", f"data.drop=['{hostile.replace(chr(27), '')}x']"]) == 2
    said += capsys.readouterr().err

    assert "\\x9b" in said
    assert not set("\x1b\x9b\u202e") & set(said)


EXPECTED = [
    "data: {}, 392 training and 108 test records, 20.15% positive",
    "  calls.csv: 500 rows, label late",
    "  bank (active): 1 categorical column, 2 inputs to the model",
    "  lab (passive): 4 numeric columns",
    "warning: lab: number (500 different whole numbers in as many records) looks like an id, learned by heart; see "
    "data.id_column if it names the records, else data.drop",
]


def test_training_begins_with_what_there_is_to_know_of_the_data(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "calls.yaml").write_text(EXPERIMENT)
    monkeypatch.chdir(file.parent)

    assert main(["train", "calls.yaml"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    told = " ".join(" ".join(lines).split())  # lines are broken between words
    assert told.startswith(" ".join(" ".join([EXPECTED[0].format("calls"), *EXPECTED[1:]]).split()))
    assert "region (7 whole numbers, 1 to 7) may be codes" in told
    assert "always (always 1) holds one value only" in told


def test_a_party_is_told_of_its_own_data_only() -> None:
    data = loaded()

    own = own_summary_of(data["lab"], None)

    assert own[:2] == ["data: 392 training and 108 test records", "  lab (passive): 4 numeric columns"]
    assert not any("bank" in line or "positive" in line for line in own)
    assert own_summary_of(data.active, "binary") == [
        "data: 392 training and 108 test records, 20.15% positive",
        "  bank (active): 1 categorical column, 2 inputs to the model",
    ]


def test_other_labels_are_described_as_what_they_are() -> None:
    assert "7 classes, the largest" in summary_of(loaded("region", task="multiclass"))[0]

    regression = loaded("income", task="regression")

    labels = regression.active.train.labels
    assert labels is not None
    expected = f"labels from {labels.min():g} to {labels.max():g}, mean {labels.double().mean():.4g}"
    assert summary_of(regression)[0].endswith(expected)


def test_of_ingested_tables_it_speaks_of_flags(tmp_path: Path) -> None:
    claims = [PartyClaim("bank", "active", "sex"), PartyClaim("lab", "passive", "rest")]
    ingest(TableSpec(source=table(), label="late"), claims, tmp_path / "tables")

    with settings_written(as_flag):
        lines = summary_of(open_tables(tmp_path / "tables"))

    assert "% positive" in lines[0]
    assert "--id if it names the records, else --drop" in lines[4]
