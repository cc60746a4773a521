from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

from splitvfl.app.console import IngestProgress
from splitvfl.cli import main
from splitvfl.data.ingest import IngestStatus, PartyReport, words
from splitvfl.data.schema import read_data_schema, read_party_schema
from splitvfl.data.store import open_tables
from splitvfl.errors import ArgumentError, DataError
from tests.commands import Command

OTHERS = ("--missing", "indicator", "--out", "tables")


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [f"{number},{number % 3 == 0:d},{number % 7 or ''},{number % 5}.5,c{number % 11}" for number in range(400)]
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join(["id,click,I1,I2,C1", *rows, ""]))
    return path


WANTED = (
    "--label",
    "click",
    "--id",
    "id",
    "--active",
    "shop=I1",
    "--passive",
    "publisher=rest",
    "--missing",
    "indicator",
)


def test_tables_are_written_and_described(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", "clicks*.csv", *WANTED, "--log1p", "I1", "--min-count", "2", "--out", "tables"]) == 0

    printed = capsys.readouterr().out.splitlines()
    data = open_tables("tables")
    train, test = data.active.train.count, data.active.test.count
    assert printed[0].startswith(f"tables: 400 rows ({train} train, {test} test), ")
    assert "rows/s" in printed[0]
    assert printed[1:4] == [
        "positive: 33.50%",
        "shop (active): 2 numeric columns, 0 fields",
        "publisher (passive): 1 numeric columns, 1 fields of 12 codes",
    ]
    assert printed[-1] == "next: splitvfl train EXPERIMENT.yaml   (with data: {name: tables, path: tables})"
    scales = {
        encoder.column: getattr(encoder, "scale", None) for encoder in read_party_schema(Path("tables/shop")).encoders
    }
    assert scales == {"I1": "log1p"}


def test_unknown_categories_are_counted(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["ingest", "clicks.csv", *WANTED, "--out", "tables"])
    later = Path("later.csv")
    later.write_text("id,I1,I2,C1\n900,1,1.5,new\n901,2,2.5,c1\n902,2,2.5,newer\n")
    capsys.readouterr()

    assert main(["ingest", "later.csv", "--like", "tables", "--out", "later"]) == 0

    printed = capsys.readouterr().out
    assert "later: 3 rows (0 train, 3 test)" in printed
    assert "test rows with an unknown or rare category (code 0): C1 2\n" in printed
    assert "next:" not in printed


def test_a_passive_party_ingests_alone(clicks: Path) -> None:
    wanted = ("--id", "id", "--drop", "click,I1", "--passive", "publisher=rest")
    assert main(["ingest", "clicks.csv", *wanted, "--out", "theirs"]) == 0
    assert main(["ingest", "clicks.csv", *WANTED, "--out", "both"]) == 0

    for path in Path("both/publisher").glob("*.npy"):
        assert path.read_bytes() == (Path("theirs/publisher") / path.name).read_bytes()


def test_fields_are_hashed_with_a_key_in_a_file(clicks: Path) -> None:
    Path("key").write_bytes(b"0123456789abcdef\n")
    Path("same").write_bytes(b"0123456789abcdef")

    for name in ("key", "same"):
        assert (
            main(["ingest", "clicks.csv", *WANTED, "--buckets", "5", "--hash-key-file", name, "--out", f"by-{name}"])
            == 0
        )

    ours, theirs = (read_party_schema(Path(f"by-{name}/publisher")) for name in ("key", "same"))
    assert ours.encoders == theirs.encoders
    assert ours.field_sizes == (7,)


def test_a_file_without_a_header_and_columns_as_text(clicks: Path) -> None:
    clicks.write_text(clicks.read_text().partition("\n")[2])

    names = ["--names", "id,click,I1,I2,C1", "--text", "I2", "--split-column", "C1", "--test-value", "c4"]
    assert main(["ingest", "clicks.csv", *WANTED, *names, "--out", "tables"]) == 0

    assert read_party_schema(Path("tables/publisher")).field_names == ("I2",)
    assert read_data_schema(Path("tables")).rows == {"train": 364, "test": 36}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv", *WANTED, "--out", "t"], "expected a CSV or Parquet file at none.csv"),
        (["clicks.csv", "--out", "t"], "expected a label column for the active party, or a passive party"),
        (["clicks.csv", "--active", "shop", "--out", "t"], "the active party 'shop' holds the labels"),
        (["clicks.csv", *WANTED, "--scale", "log", "--out", "t"], "expected scale one of"),
        (["clicks.csv", *WANTED, "--hash-key-file", "none", "--out", "t"], "expected a file with the hash key at none"),
        (
            ["clicks.csv", *WANTED, "--passive", "publisher=I1", "--out", "t"],
            "party 'publisher' was given more than once",
        ),
        (
            ["clicks.csv", "--like", "old", "--label", "click", "--id", "id", "--out", "t"],
            "--label, --id: settled when",
        ),
        (
            ["clicks.csv", "--like", "old", "--out", "t"],
            "expected a table folder, as `splitvfl ingest` writes it, at old",
        ),
        (["clicks.csv", *WANTED, "--out", "clicks.csv"], "exists and holds no tables"),
    ],
)
def test_mistakes_are_told_on_one_line(
    arguments: list[str], message: str, clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ingest", *arguments]) == 2

    error = capsys.readouterr().err
    assert error.startswith("splitvfl: ")
    assert message in error
    assert [path.name for path in clicks.parent.iterdir()] == ["clicks.csv"]


def test_tables_are_replaced_when_asked(clicks: Path) -> None:
    assert main(["ingest", "clicks.csv", *WANTED, "--out", "tables"]) == 0
    assert main(["ingest", "clicks.csv", *WANTED, "--out", "tables"]) == 2
    assert main(["ingest", "clicks.csv", *WANTED, "--out", "tables", "--overwrite"]) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_ingest_leaves_nothing(number: signal.Signals, clicks: Path) -> None:
    text = clicks.read_text()
    body = text.partition("\n")[2]
    # Large enough to be still at work when the signal comes.
    with clicks.open("a") as file:
        for _ in range(1000):
            file.write(body)
    command = ["ingest", "clicks.csv", "--label", "click", "--active", "shop=rest", *OTHERS]
    process = Command(command, clicks.parent)
    # The spool of ids is there once rows are being read.
    while not list(clicks.parent.glob(".tables.writing-*/.scratch/ids")):
        assert process.poll() is None, process.stderr
        time.sleep(0.01)
    process.send_signal(number)
    _, error = process.communicate()

    assert process.returncode == 130
    assert error == "splitvfl: stopped; nothing was written to tables\n"
    assert [path.name for path in clicks.parent.iterdir()] == ["clicks.csv"]


def test_progress_is_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(record=True, width=80)
    monkeypatch.setattr("splitvfl.app.console._PLAIN_EVERY_S", 0.0)

    with IngestProgress(console) as progress:
        progress(IngestStatus("reading", 1_234_567, 0.25))

    assert console.export_text() == "reading 1,234,567 rows: 25% of all work done\n"


def test_progress_is_a_bar_on_a_terminal() -> None:
    console = Console(record=True, width=80, force_terminal=True)

    with IngestProgress(console) as progress:
        progress(IngestStatus("writing", 2000, 0.75))

    assert "writing 2,000 rows" in console.export_text()


def test_many_unknown_fields_are_not_all_listed() -> None:
    party = PartyReport(numeric=0, fields={}, unknown={f"C{number}": number for number in range(12)})

    (line,) = words._unknown(party)

    assert line.endswith("C11 11, C10 10, C9 9, C8 8, C7 7, C6 6, C5 5, C4 4 and 3 more fields")


def test_parties_are_named_once_and_keys_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="party 'a' was given more than once"):
        words.claims_of(None, ["a=x", "b=y", "a=z"])
    with pytest.raises(DataError, match="expected a file with the hash key"):
        words.secret_in(tmp_path / "none")
