"""``splitvfl shard``: what it prints, and that it leaves all or nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from splitvfl.cli import main
from splitvfl.data.shard_files import read_sharding, shard_file
from tests.commands import Command


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "people.csv"
    path.write_text("customer,zip,day\n" + "".join(f"c{row},{row:05d},2020-01-01\n" for row in range(2000)))
    return path


WANTED = ("--id", "customer", "--text", "zip,day", "--out", "sharded")


def test_shards_are_written_and_listed(people: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "peo*.csv", *WANTED, "--shards", "3"]) == 0

    printed = capsys.readouterr().out.splitlines()
    records = read_sharding(Path("sharded")).records
    assert printed[0].startswith("sharded: 2,000 records in 3 shards, ")
    assert "rows/s" in printed[0]
    assert printed[1:6] == [
        "divided by column 'customer': text",
        "shard  records",
        *(f"    {number}  {count:>7,}" for number, count in enumerate(records)),
    ]
    assert printed[-1].startswith("next: splitvfl align sharded/shard-0.parquet --id customer --as NAME ...")
    assert pq.read_table(shard_file(Path("sharded"), 0)).column("zip").to_pylist()[0][0] == "0"


def test_many_shards_are_told_in_few_lines_and_empty_ones_named(
    people: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people.write_text("customer,zip,day\n" + "".join(f"{row},1,d\n" for row in range(60)))
    assert main(["shard", "people.csv", *WANTED, "--shards", "40", "--fold-case"]) == 0

    printed = capsys.readouterr().out.splitlines()
    counts = [pq.read_metadata(shard_file(Path("sharded"), number)).num_rows for number in range(40)]
    empty = ", ".join(str(number) for number, count in enumerate(counts) if count == 0)
    assert empty
    assert printed[1:5] == [
        "divided by column 'customer': whole numbers, letter case folded",
        f"smallest: shard {counts.index(0)} with 0 records",
        f"largest: shard {counts.index(max(counts))} with {max(counts)} records",
        f"empty: {empty}; an empty shard can be put to no use: divide into fewer",
    ]
    assert "--fold-case --as NAME" in printed[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv", *WANTED, "--shards", "2"], "expected a CSV or Parquet file at none.csv"),
        (["people.csv", *WANTED, "--shards", "0"], "expected 1 to 4096 shards, got 0"),
        (["people.csv", "--id", "customer", "--shards", "2"], "dates; leave it out (--drop)"),
        (["people.csv", "--id", "custmer", "--shards", "2"], "did you mean 'customer'?"),
        (["people.csv", *WANTED[:-1], "people.csv", "--shards", "2"], "people.csv exists and holds no shards"),
    ],
)
def test_mistakes_are_told_on_one_line(
    arguments: list[str], message: str, people: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", *arguments]) == 2

    error = capsys.readouterr().err
    assert error.startswith("splitvfl: ")
    assert message in error
    assert [path.name for path in people.parent.iterdir()] == ["people.csv"]


def test_shards_are_replaced_when_asked(people: Path) -> None:
    assert main(["shard", "people.csv", *WANTED, "--shards", "2"]) == 0
    assert main(["shard", "people.csv", *WANTED, "--shards", "3"]) == 2
    assert main(["shard", "people.csv", *WANTED, "--shards", "3", "--overwrite"]) == 0
    assert read_sharding(Path("sharded")).shards == 3


def test_a_file_without_a_header_is_divided(people: Path) -> None:
    people.write_text(people.read_text().partition("\n")[2])
    arguments = ["--names", "customer,zip,day", "--drop", "zip"]
    assert main(["shard", "people.csv", "--id", "customer", "--text", "day", "--shards", "2", *arguments]) == 0
    assert pq.read_schema(shard_file(Path("sharded"), 0)).names == ["customer", "day"]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow(reason="another signal"))]
)
def test_a_division_that_is_interrupted_leaves_nothing(number: signal.Signals, people: Path) -> None:
    # Large enough to be still at work when the signal comes.
    people.write_text("customer,zip,day\n" + "".join(f"c{row},1,d\n" for row in range(200_000)))
    process = Command(["shard", "people.csv", *WANTED, "--shards", "500"], people.parent)
    while not list(people.parent.glob(".sharded.writing-*/shard-3.parquet")):
        assert process.poll() is None, list(process.stderr)
        time.sleep(0.01)
    process.send_signal(number)
    _, error = process.communicate()

    assert process.returncode == 130
    assert error == "splitvfl: stopped; nothing was written to sharded\n"
    assert [path.name for path in people.parent.iterdir()] == ["people.csv"]
