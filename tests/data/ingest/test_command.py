from __future__ import annotations

import re
import shlex
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

from splitvfl.app.console import IngestProgress
from splitvfl.cli import main
from splitvfl.data.ingest import words
from splitvfl.data.ingest.progress import IngestStatus
from splitvfl.data.ingest.run import PartyReport
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
    assert "next: splitvfl predict RUN --records later --out scores.csv   (a run on tables)" in printed


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


def shards_of(clicks: Path) -> None:
    """Divide the clicks among three files."""
    header, *rows = clicks.read_text().splitlines()
    for number in range(3):
        Path(f"shard-{number}.csv").write_text("\n".join([header, *rows[number::3], ""]))
    Path("stats").mkdir()


def test_shards_are_ingested_by_the_statistics_of_all(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards_of(clicks)
    Path("key").write_bytes(b"0123456789abcdef\n")
    how = (*WANTED, "--log1p", "I1", "--buckets", "7", "--hash-key-file", "key")
    for number in range(3):
        assert (
            main(
                ["ingest", f"shard-{number}.csv", *how, "--statistics-only", f"{number}/3", "--out", f"stats/{number}"]
            )
            == 0
        )
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"stats/2: statistics of shard 2 of 3, 133 rows \(\d+ train, \d+ test\), [\d,]+ rows/s", printed[-4]
    )
    assert printed[-3] == "2 numeric columns, 0 listed fields"
    command, hint = printed[-1].removeprefix("next: ").split("   ")
    assert hint == "(once the statistics of all 3 shards are in stats)"

    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("tables-2: 133 rows (")
    assert main(["ingest", "clicks.csv", *how, "--out", "whole"]) == 0
    for party in ("shop", "publisher"):
        ours, theirs = (read_party_schema(Path(name) / party) for name in ("tables-2", "whole"))
        assert ours.encoders == theirs.encoders
        assert ours.agreed == theirs.agreed


def test_columns_without_a_value_are_told(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clicks.write_text("id,click,I1,C1\n1,0,,a\n2,1,,b\n")

    wanted = ["--label", "click", "--id", "id", "--active", "shop=rest", "--statistics-only", "0/2", "--out", "stats"]
    assert main(["ingest", "clicks.csv", *wanted]) == 0

    printed = capsys.readouterr().out.splitlines()
    assert printed[1].startswith("0 numeric columns, 2 listed fields of ")
    assert printed[2] == "  no value in any row: 'I1' (the other shards say what it holds)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--statistics-only", "3", *WANTED],
            "expected a shard as its number from 0 and how many there are, as in 3/8",
        ),
        (["--statistics-only", "-1/3", *WANTED], "as in 3/8, got '-1/3'"),
        (["--statistics-only", "3/3", *WANTED], "expected a shard from 0 to one below their number"),
        (["--statistics-only", "0/3", "--label", "click"], "shards need a column that names the records (--id)"),
        (["--statistics", "none"], "expected statistics of shards at none"),
        (["--statistics", "stats"], "the statistics of shards 0, 2 of 3 (from 0) are missing"),
        (
            ["--statistics", "stats", "--label", "click"],
            "--label: settled when the statistics were taken; leave it out",
        ),
        (["--statistics", "stats", "--statistics-only", "0/3"], "--statistics-only: settled when"),
        (["--statistics", "stats", "--like", "t"], "--statistics: settled when the tables that --like names"),
        (["stats/1", "--statistics", "stats"], "stats/1 holds statistics and no records; name the folder of all: "),
    ],
)
def test_mistakes_about_shards_are_told_on_one_line(
    arguments: list[str], message: str, clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards_of(clicks)
    main(["ingest", "shard-1.csv", *WANTED, "--statistics-only", "1/3", "--out", "stats/1"])
    capsys.readouterr()

    assert main(["ingest", "shard-1.csv", *arguments, "--out", "out"]) == 2

    error = capsys.readouterr().err
    assert error.startswith("splitvfl: ")
    assert error.count("\n") == 1
    assert message in error
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow(reason="another signal"))]
)
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
