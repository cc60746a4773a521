"""Tables in memory are the tables that they would be in a file, whoever made them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from splitvfl.data.arrow_table import as_arrow
from splitvfl.data.columns import VerticalData
from splitvfl.data.ingest.run import ingest
from splitvfl.data.load import load_table
from splitvfl.data.party_file import load_party
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.errors import ArgumentError, DataError

ROWS = 80
PARTIES = [PartyClaim("shop", "active", "n1"), PartyClaim("ads", "passive")]
WANTED: dict[str, Any] = {"label": "y", "id_column": "id", "missing": "indicator", "categorical": "index"}


def cells() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    gappy = rng.normal(size=ROWS)
    gappy[rng.random(ROWS) < 0.2] = np.nan
    return {
        "id": rng.permutation(ROWS) * 3,
        "y": rng.integers(0, 2, ROWS),
        "n1": rng.lognormal(size=ROWS),
        "n2": gappy,
        "c": rng.choice(["x", "y", "z"], ROWS),
        "t": rng.random(ROWS) < 0.5,
    }


class Streamed:
    """What polars offers: a stream of Arrow's, in which text has a layout of its own."""

    def __init__(self, table: pa.Table) -> None:
        text = table.column_names.index("c")
        self._table = table.set_column(text, "c", table["c"].cast(pa.string_view()))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class Converted:
    """What polars offered before it had streams."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def to_arrow(self) -> pa.Table:
        return self._table


FORMS: dict[str, Callable[[], Any]] = {
    "arrow": lambda: pa.table(cells()),
    "batch": lambda: pa.table(cells()).to_batches()[0],
    "chunks": lambda: pa.concat_tables([pa.table(cells()).slice(0, 30), pa.table(cells()).slice(30)]),
    "pandas": lambda: pd.DataFrame(cells(), index=np.arange(ROWS)[::-1]),
    "pandas categories": lambda: pd.DataFrame({**cells(), "c": pd.Categorical(cells()["c"])}),
    "streamed": lambda: Streamed(pa.table(cells())),
    "converted": lambda: Converted(pa.table(cells())),
    "arrays": cells,
    "lists": lambda: {name: values.tolist() for name, values in cells().items()},
    "tensors": lambda: {name: values if name == "c" else torch.from_numpy(values) for name, values in cells().items()},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pq.write_table(pa.table(cells()), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def same(ours: VerticalData, theirs: VerticalData) -> None:
    for party in ("shop", "ads"):
        for what in ("column_names", "numeric_names", "field_names", "field_sizes"):
            assert getattr(ours[party], what) == getattr(theirs[party], what)
        for part in ("train", "test"):
            one, other = getattr(ours[party], part), getattr(theirs[party], part)
            assert torch.equal(one.ids, other.ids)
            assert torch.equal(one.columns.numeric, other.columns.numeric)
            assert torch.equal(one.columns.categorical, other.columns.categorical)


@pytest.mark.parametrize("form", FORMS)
def test_a_table_in_memory_is_loaded_like_a_file(form: str, file: Path) -> None:
    data = load_table(TableSpec(source=FORMS[form](), **WANTED), PARTIES)

    same(data, load_table(TableSpec(source=file, **WANTED), PARTIES))
    assert (data.name, data.description) == ("the table", "the table: 80 rows, label y")


@pytest.mark.parametrize("form", FORMS)
def test_a_table_in_memory_is_ingested_like_a_file(form: str, file: Path, tmp_path: Path) -> None:
    for name, source in (("ours", FORMS[form]()), ("theirs", file)):
        ingest(TableSpec(source=source, **WANTED), PARTIES, tmp_path / name)

    written = {path.relative_to(tmp_path / "theirs"): path for path in (tmp_path / "theirs").rglob("*.*")}
    assert len(written) > 15
    for name, path in written.items():
        ours, theirs = (tmp_path / "ours" / name).read_bytes(), path.read_bytes()
        assert ours.replace(b"the table", b"t.parquet").replace(b'"ours"', b'"theirs"') == theirs


def test_one_party_has_a_table_in_memory(file: Path) -> None:
    ours, theirs = (
        load_party(TableSpec(source=source, **WANTED), PartyClaim("shop", "active", "n*, c"))
        for source in (pd.DataFrame(cells()), file)
    )

    assert ours.encoding == theirs.encoding
    assert torch.equal(ours.data.test.columns.numeric, theirs.data.test.columns.numeric)


def test_an_array_of_two_dimensions_is_a_column_each() -> None:
    numbers = torch.arange(6.0).reshape(3, 2)

    assert as_arrow(numbers).to_pydict() == {"x0": [0, 2, 4], "x1": [1, 3, 5]}
    assert as_arrow({"pixel": numbers.numpy(), "y": [1, 0, 1]}).column_names == ["pixel0", "pixel1", "y"]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (7, ArgumentError, "expected a file, an Arrow, pandas or polars table, .* as source, got int"),
        ({"a": [1, 2], "b": [1]}, DataError, "the dict given as source is no table: .*length"),
        ({"a": np.zeros((2, 2, 2))}, DataError, "the dict given as source is no table: .*dimension"),
        (pd.DataFrame({"a": [1, "x"]}), DataError, "the DataFrame given as source is no table"),
    ],
)
def test_what_is_no_table(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_arrow(source)


def test_names_that_come_twice_are_refused() -> None:
    twice = {"x": np.zeros((3, 1)), "x0": [1, 2, 3], "y": [0, 1, 0]}

    with pytest.raises(DataError, match="the table names more than one column 'x0'"):
        load_table(TableSpec(source=twice, label="y"), PARTIES)


def test_rows_are_named_in_messages(tmp_path: Path) -> None:
    content = {**cells(), "n1": np.where(np.arange(ROWS) == 7, np.inf, 1.0)}

    with pytest.raises(DataError, match=r"the table, row 7 \(from 0\), column 'n1': expected a finite number"):
        ingest(TableSpec(source=content, **WANTED), PARTIES, tmp_path / "tables")
    with pytest.raises(DataError, match=r"column 'n1' of the table is infinite in 1 rows, first in row 7"):
        load_table(TableSpec(source=content, **WANTED), PARTIES)
