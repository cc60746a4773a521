"""What is said of a table, said once: checked where it is said, and where it meets the columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from splitvfl.data.ingest.plan import Hashing
from splitvfl.data.ingest.run import ingest
from splitvfl.data.load import load, load_table
from splitvfl.data.party_file import load_party
from splitvfl.data.spec import PartyClaim, TableSpec, check_parties
from splitvfl.errors import ArgumentError, DataError

NAMES = ("id", "y", "part", "n1", "n2", "c")
SHOP, ADS = PartyClaim("shop", "active", "n1"), PartyClaim("ads", "passive")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = range(60)
    table = pa.table(
        {
            "id": [row * 3 for row in rows],
            "y": [row % 2 for row in rows],
            "part": ["test" if row % 5 == 0 else "train" for row in rows],
            "n1": [row**1.5 for row in rows],
            "n2": [row**0.5 for row in rows],
            "c": [f"c{row % 4}" for row in rows],
        }
    )
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    return tmp_path / "t.csv"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "ranking"}, "expected task one of binary, multiclass, regression, got 'ranking'"),
        ({"scale": "zscore"}, "expected scale one of standard, minmax, log1p, none, got 'zscore'"),
        ({"scale_columns": {"log": "n1"}}, "expected scale one of standard, minmax, log1p, none, got 'log'"),
        ({"missing": "drop"}, "expected missing one of error, indicator, got 'drop'"),
        ({"categorical": "codes"}, "expected categorical one of onehot, index, got 'codes'"),
        ({"min_count": 0}, "expected min_count from 1, got 0"),
        ({"test_fraction": 0.0}, "expected test_fraction in (0, 1), got 0.0"),
        ({"split_seed": 1 << 64}, "expected split_seed from 0 to 2**64 - 1"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_where_it_is_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        TableSpec(**settings)


@pytest.mark.parametrize(
    ("parties", "message"),
    [
        ([SHOP, PartyClaim("bank", "active")], "expected one active party at most, got shop and bank"),
        ([SHOP, PartyClaim("shop", "passive")], "'shop' is the active party's name and a passive party's"),
        ([ADS, ADS], "'ads' is the name of two parties"),
    ],
)
def test_parties_have_names_of_their_own(parties: list[PartyClaim], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        check_parties(parties)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"label": "why"}, DataError, "no column 'why' in t.csv; there are"),
        ({"label": "Y"}, DataError, "no column 'Y' in t.csv; did you mean 'y'? (it should be the label: label)"),
        ({"split_column": "prt"}, DataError, "did you mean 'part'? (it should be the split column: split_column)"),
        ({"id_column": "y"}, ArgumentError, "column 'y' cannot be both the label and the id column"),
        ({"drop": "y"}, DataError, "'y' is the label of t.csv and no feature"),
        ({"drop": "n1"}, DataError, "'n1' is a dropped column of t.csv and no feature"),
    ],
)
def test_errors_name_the_table_and_the_column(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        TableSpec(**{"label": "y", **settings}).divide(NAMES, [SHOP, ADS], source="t.csv")


def test_columns_are_divided_in_the_order_of_the_table() -> None:
    spec = TableSpec(label="y", id_column="id", split_column="part", drop="n2")

    division = spec.divide(NAMES, [SHOP, ADS], source="t.csv")

    assert division.held == {"shop": ("n1",), "ads": ("c",)}
    assert (division.kept, division.dropped) == (("n1", "c"), ("n2",))
    assert division.reserved == {
        "y": "the label",
        "id": "the id column",
        "part": "the split column",
        "n2": "a dropped column",
    }


def test_a_name_and_a_spec_are_two_ways_to_say_the_same(file: Path) -> None:
    settings: dict[str, Any] = {"label": "y", "id_column": "id", "split_column": "part", "categorical": "index"}

    named = load("table", path=file, active="n1", active_name="shop", passive={"ads": "rest"}, **settings)
    said = load_table(TableSpec(source=file, **settings), [SHOP, ADS])

    assert (said.name, said.description, said.task) == (named.name, named.description, named.task)
    for party in ("shop", "ads"):
        for part in ("train", "test"):
            ours, theirs = getattr(said[party], part), getattr(named[party], part)
            assert torch.equal(ours.ids, theirs.ids)
            assert torch.equal(ours.columns.numeric, theirs.columns.numeric)
            assert torch.equal(ours.columns.categorical, theirs.columns.categorical)


def test_columns_are_scaled_one_by_one_in_memory_too(file: Path) -> None:
    settings: dict[str, Any] = {"label": "y", "drop": "id, part, c", "passive": {"ads": "rest"}}
    plain, logs = (load("table", path=file, scale=scale, **settings)["ads"].train for scale in ("none", "log1p"))

    mixed = load("table", path=file, scale="none", scale_columns={"log1p": "n2"}, **settings)["ads"].train

    assert torch.equal(mixed.columns.numeric[:, 0], plain.columns.numeric[:, 0])
    assert torch.equal(mixed.columns.numeric[:, 1], logs.columns.numeric[:, 1])


def test_a_misspelt_setting_gets_a_suggestion(file: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no setting 'lable'; did you mean 'label'\?"):
        load("table", path=file, lable="y")


@pytest.mark.parametrize("parties", [[SHOP], [ADS]])
def test_a_table_in_memory_needs_both_roles(file: Path, parties: list[PartyClaim]) -> None:
    with pytest.raises(ArgumentError, match=r"expected one (active|passive) party at least, got none"):
        load_table(TableSpec(source=file, label="y"), parties)


def test_a_table_in_memory_is_one_file(file: Path) -> None:
    file.with_name("u.csv").write_bytes(file.read_bytes())

    with pytest.raises(DataError, match=r"expected one file, got 't.csv', 'u.csv'"):
        load_table(TableSpec(source=file.parent / "*.csv", label="y"), [SHOP, ADS])


def test_names_and_columns_of_text_are_said_of_a_table_in_memory_too(file: Path) -> None:
    file.write_text(file.read_text().partition("\n")[2])
    spec = TableSpec(source=file, header=NAMES, text_columns="id", label="y", drop="part")

    data = load_table(spec, [SHOP, ADS])

    assert data["ads"].column_names == ("id", "n2", "c")
    assert "id=102" in data["ads"].numeric_names
    named = load("table", path=file, header=NAMES, text_columns="id", label="y", drop="part")
    assert "id=102" in named["passive"].numeric_names
    with pytest.raises(DataError, match=r"no column 'd' in t\.csv"):
        load_table(TableSpec(source=file, header=NAMES, text_columns="d", label="y"), [SHOP, ADS])


def test_settings_that_mean_nothing_for_a_party_or_an_ingest_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="split by their ids"):
        load_party(TableSpec(source=file, label="y", split_column="part"), SHOP)
    with pytest.raises(ArgumentError, match="hold codes of categories, got categorical='onehot'"):
        ingest(TableSpec(source=file, label="y", categorical="onehot"), [SHOP, ADS], tmp_path / "tables")
    with pytest.raises(ArgumentError, match="label column 'y' is the active party's, and there is no active party"):
        ingest(TableSpec(source=file, label="y"), [ADS], tmp_path / "tables")
    with pytest.raises(ArgumentError, match=r"expected a file, an Arrow, pandas or polars table, .*, got NoneType"):
        ingest(TableSpec(label="y"), [SHOP, ADS], tmp_path / "tables")
    with pytest.raises(ArgumentError, match=re.escape("expected buckets from 1 to 2**31 - 3, got 0")):
        Hashing(buckets=0)
