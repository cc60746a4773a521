"""What a column was declared as, and what its lists hold, is the same at every entrance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

from splitvfl import from_tables, load
from splitvfl.data import arrow_source
from splitvfl.data.arrow_table import as_arrow
from splitvfl.data.columns import Columns, Records
from splitvfl.data.encoding import FittedEncoding
from splitvfl.data.ingest.run import ingest_like, ingest_shard
from splitvfl.data.ingest.shards import Shard, shard_statistics
from splitvfl.data.new_records import read_new_records
from splitvfl.data.plain_columns import declared_categories
from splitvfl.data.schema import VocabularyEncoder, read_party_schema
from splitvfl.data.shard_writing import shard
from splitvfl.data.sources import chunks, open_all, read_table
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.store import open_tables
from splitvfl.data.tables import column_of
from splitvfl.errors import DataError
from tests.tables import ingest, load_party

ROWS = 60
CODES = np.arange(ROWS) % 5 * 3
FILES = ["t.parquet", "t.feather"]


def frame() -> pd.DataFrame:
    """Codes that are declared as categories, in every type that pandas has of them, and numbers that are not."""
    return pd.DataFrame(
        {
            "id": np.arange(ROWS),
            "y": np.arange(ROWS) % 2,
            "k": pd.Categorical(CODES),
            "flag": pd.Categorical(CODES > 6),
            "half": pd.Categorical(CODES / 2, ordered=True),
            "t": pd.Categorical([f"t{code}" for code in CODES]),
            "plain": CODES,
        }
    )


def written(table: pd.DataFrame, path: Path) -> Path:
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_feather(path)
    return path


def streamed(table: pd.DataFrame) -> pa.Table:
    """As polars has it: text in views, categories in dictionaries of them."""
    found = pa.table(table)
    for name in ("t",):
        place = found.column_names.index(name)
        codes = found[name].combine_chunks().indices
        values = pa.array(table[name].cat.categories, pa.string_view())
        found = found.set_column(place, name, pa.DictionaryArray.from_arrays(codes, values))
    return found


DECLARED = {"k", "flag", "half", "t"}
KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda table: table,
    "arrow": lambda table: pa.table(table),
    "streamed": streamed,
    "mapping": lambda table: {name: table[name] for name in table},
    "polars": lambda table: pl.from_arrow(pa.table(table)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_declared_as_categories_is_known_in_memory(kind: str) -> None:
    table = frame() if kind != "polars" else frame().drop(columns=["k", "flag", "half"])
    found = as_arrow(KINDS[kind](table))

    assert declared_categories(found.schema) == (DECLARED if kind != "polars" else {"t"})
    assert found["t"].to_pylist() == [f"t{code}" for code in CODES]


@pytest.mark.parametrize("file", FILES)
def test_what_is_declared_as_categories_is_known_in_files(file: str, tmp_path: Path) -> None:
    path = written(frame(), tmp_path / file)

    assert declared_categories(read_table(path).schema) == DECLARED
    assert open_all(path)[0].categories == DECLARED
    again = pq.read_table(path) if file == FILES[0] else pyarrow.feather.read_table(path)
    assert declared_categories(as_arrow(again).schema) == DECLARED


def test_enums_of_polars_are_categories() -> None:
    table = pl.DataFrame(
        {
            "e": pl.Series(["a", "b"], dtype=pl.Enum(["b", "a"])),
            "c": pl.Series(["x", None], dtype=pl.Categorical),
            "n": [1, 2],
        }
    )

    found = as_arrow(table)

    assert declared_categories(found.schema) == {"e", "c"}
    assert found.to_pydict() == {"e": ["a", "b"], "c": ["x", None], "n": [1, 2]}


NAMES = (
    *(f"k={code}" for code in (0, 3, 6, 9, 12)),
    *("flag=False", "flag=True"),
    *(f"half={code / 2}" for code in (0, 3, 6, 9, 12)),
    *(f"t={code}" for code in ("t0", "t12", "t3", "t6", "t9")),
    "plain",
)


@pytest.mark.parametrize("file", [None, *FILES])
def test_declared_categories_become_columns_of_their_own(file: str | None, tmp_path: Path) -> None:
    table: Any = frame() if file is None else written(frame(), tmp_path / file)
    labels = {"id": np.arange(ROWS), "y": np.arange(ROWS) % 2}

    joined = from_tables(active=labels, passive={"lab": table}, label="y", id="id", drop="y") if file is None else None
    if file is not None:
        spec = {"label": "y", "id_column": "id"}
        assert load("table", path=table, **spec)["passive"].numeric_names == NAMES  # type: ignore[arg-type]
        found = load_party(table, name="lab", role="passive", id_column="id", drop="y", test_fraction=0.3)
        assert found.data.numeric_names == NAMES
        later = pd.DataFrame({"id": [900, 901], "k": [3, 77], "flag": [True, False], "half": [1.5, 0.0]})
        later = later.assign(t=["t0", "t3"], plain=[1, 2])
        new = written(later, tmp_path / f"new{file}")
        scored = read_new_records(new, name="lab", role="passive", encoding=found.encoding, id_column="id")
        numeric = pd.DataFrame(scored.data.test.columns.numeric.numpy(), columns=NAMES)
        assert numeric["k=3"].tolist() == [1, 0]
        assert scored.unknown == {"k": 1}
    if joined is not None:
        assert joined["lab"].numeric_names == NAMES
        assert not joined["lab"].doubts


@pytest.mark.parametrize("file", FILES)
def test_declared_categories_are_ingested_as_such_in_shards_too(file: str, tmp_path: Path) -> None:
    path = written(frame(), tmp_path / file)
    settings = {"label": "y", "id_column": "id", "test_fraction": 0.3}
    ingest(path, out=tmp_path / "tables", active="plain", passive={"lab": "rest"}, **settings)

    assert set(open_tables(tmp_path / "tables")["lab"].field_names) == DECLARED
    encoders = {one.column: one for one in read_party_schema(tmp_path / "tables" / "lab").encoders}
    assert isinstance(encoders["k"], VocabularyEncoder)
    assert encoders["k"].categories == 5

    plain = written(frame().astype({"k": int, "flag": bool, "half": float}), tmp_path / f"plain{file}")
    ingest_like(plain, out=tmp_path / "like", like=tmp_path / "tables")
    same = open_tables(tmp_path / "tables")["lab"], open_tables(tmp_path / "like")["lab"]
    assert len(same[0].train.ids) + len(same[0].test.ids) == len(same[1].test.ids)
    assert same[1].test.columns.categorical.min() >= 1

    shard(path, tmp_path / "shards", id_column="id", shards=2)
    parties = [PartyClaim("active", "active", "plain"), PartyClaim("lab", "passive")]
    for number, piece in enumerate(sorted((tmp_path / "shards").glob("*.parquet"))):
        assert open_all(piece)[0].categories == DECLARED
        spec = TableSpec(source=piece, **settings)  # type: ignore[arg-type]
        shard_statistics(spec, parties, tmp_path / "stats" / str(number), shard=Shard(number, 2))
    ingest_shard(piece, tmp_path / "one", statistics=[tmp_path / "stats"])
    assert set(open_tables(tmp_path / "one")["lab"].field_names) == DECLARED


# --- lists


def lists(rows: int = 20, gap: int = 3) -> list[list[float] | None]:
    return [None if row == gap else [row + 0.25, -row, 1.0] for row in range(rows)]


def places(rows: int = 20, gap: int = 3) -> dict[str, list[float | None]]:
    found = lists(rows, gap)
    return {f"emb_{place}": [None if one is None else one[place] for one in found] for place in range(3)}


LISTS: dict[str, Callable[[], Any]] = {
    "list": lambda: pa.table({"emb": pa.array(lists())}),
    "large": lambda: pa.table({"emb": pa.array(lists(), pa.large_list(pa.float64()))}),
    "fixed": lambda: pa.table({"emb": pa.array(lists(), pa.list_(pa.float32(), 3))}),
    "half": lambda: pa.table({"emb": pa.array(lists(), pa.list_(pa.float16()))}),
    "pandas": lambda: pd.DataFrame({"emb": [None if one is None else np.array(one) for one in lists()]}),
    "pandas lists": lambda: pd.DataFrame({"emb": lists()}),
    "polars": lambda: pl.DataFrame({"emb": lists()}),
    "polars array": lambda: pl.DataFrame({"emb": pl.Series(lists(), dtype=pl.Array(pl.Float32, 3))}),
    "mapping": lambda: {"emb": lists()},
    "slice": lambda: pa.table({"emb": pa.array([[9.0, 9, 9], None, *lists()])}).slice(2),
    "pieces": lambda: pa.concat_tables([LISTS["fixed"]().slice(0, 7), LISTS["fixed"]().slice(7)]),
    "tensors": lambda: pa.table(
        {
            "emb": pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.float32(), [3]), pa.array(lists(), pa.list_(pa.float32(), 3))
            )
        }
    ),
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_become_columns_in_memory_and_in_files(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_source, "BATCH_ROWS", 2)  # the first chunk after a gap has its lists elsewhere
    given = LISTS[kind]()
    assert as_arrow(given).to_pydict() == places()
    if not isinstance(given, pa.Table):
        return
    pq.write_table(given, tmp_path / "t.parquet", row_group_size=4)
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file, pa.ipc.new_file(file, given.schema) as writer:
        writer.write_table(given)
    for name in ("t.parquet", "t.arrow"):
        assert read_table(tmp_path / name).to_pydict() == places()
        sources = open_all(tmp_path / name)
        assert sources[0].names == ("emb_0", "emb_1", "emb_2")
        read = [
            cell for chunk in chunks(sources, {"emb_1": pa.float64()}) for cell in chunk.columns["emb_1"].to_pylist()
        ]
        assert read == places()["emb_1"]


REFUSED: dict[str, tuple[list[Any], str]] = {
    "uneven": ([[1.0, 2.0], None, [3.0]], "'emb' .*different lengths: 1 in row 2 .from 0., and 2 in another"),
    "empty at first": ([[], [1.0, 2.0]], "different lengths: 0 in row 0"),
    "empty": ([[], None], "'emb' .*empty lists"),
    "deeper": ([[[1.0]], [[2.0]]], r"expected \(n, features\), got 3 dimensions: flatten it .*nn.Unflatten"),
    "texts": ([["a"], ["b"]], "'emb' .*neither numbers nor text but list<"),
    "struct": ([{"a": 1}, None], "'emb' .*neither numbers nor text but struct<"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_columns_is_refused_where_it_is_used_and_can_be_left_out(kind: str, tmp_path: Path) -> None:
    cells, message = REFUSED[kind]
    cells = cells * 10
    rows = len(cells)
    table = pa.table(
        {"id": range(rows), "y": [row % 2 for row in range(rows)], "x": [row / 3 for row in range(rows)], "emb": cells}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    active = table.select(["id", "y"])
    chosen: dict[str, Any] = {"label": "y", "id_column": "id", "test_fraction": 0.3}

    with pytest.raises(DataError, match=message):
        from_tables(active=active, passive={"lab": table.drop_columns("y")}, label="y", id="id", test_fraction=0.3)
    with pytest.raises(DataError, match=message):
        load("table", path=tmp_path / "t.parquet", **chosen)
    with pytest.raises(DataError, match=message):
        ingest(tmp_path / "t.parquet", out=tmp_path / "tables", active=(), passive={"lab": "rest"}, **chosen)

    drop = "emb*"
    data = from_tables(
        active=active, passive={"lab": table.drop_columns("y")}, label="y", id="id", drop=drop, test_fraction=0.3
    )
    assert data["lab"].column_names == ("x",)
    assert load("table", path=tmp_path / "t.parquet", drop=drop, **chosen)["passive"].column_names == ("x",)
    ingest(tmp_path / "t.parquet", out=tmp_path / "tables", passive={"lab": "rest"}, drop=drop, **chosen)
    assert open_tables(tmp_path / "tables")["lab"].column_names == ("x",)


def test_a_place_of_a_list_is_no_other_column() -> None:
    table = pa.table({"emb": [[1.0, 2.0]] * 4, "emb_1": [1, 2, 3, 4], "x": [1, 2, 3, 4]})

    with pytest.raises(DataError, match="column 'emb' of t holds lists, whose numbers would become column 'emb_1'"):
        column_of(as_arrow(table), "emb", source="t")
    with pytest.raises(DataError, match="no column 'emb_0' in t"):
        column_of(as_arrow(table), "emb_0", source="t")


def test_the_name_of_the_lists_leads_to_that_of_their_columns() -> None:
    with pytest.raises(DataError, match=r"no column 'emb' in t; did you mean 'emb_\*'"):
        column_of(as_arrow({"emb": lists()}), "emb", source="t")


def embedded(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"id": np.arange(rows), "emb": list(rng.normal(size=(rows, 4))), "x": np.arange(rows)})


def test_patterns_and_shares_mean_the_columns_of_lists(tmp_path: Path) -> None:
    table = embedded().assign(y=np.arange(40) % 2)
    table.to_parquet(tmp_path / "t.parquet")
    spec: dict[str, Any] = {"path": tmp_path / "t.parquet", "label": "y", "id_column": "id"}

    data = load("table", passive={"lab": "emb_*"}, active="x", **spec)
    assert data["lab"].column_names == tuple(f"emb_{place}" for place in range(4))
    data = load("table", drop="emb_[12]", **spec)
    assert data["passive"].column_names == ("emb_0", "emb_3", "x")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_new_lists_are_as_long_as_those_that_were_trained_on(suffix: str, tmp_path: Path) -> None:
    def file(name: str, table: pd.DataFrame) -> Path:
        path = tmp_path / f"{name}.{suffix}"
        table.to_parquet(path) if suffix == "parquet" else pyarrow.feather.write_feather(table, path)
        return path

    train = file("train", embedded())
    found = load_party(train, name="lab", role="passive", id_column="id", missing="indicator", test_fraction=0.3)
    reading: dict[str, Any] = {"name": "lab", "role": "passive", "encoding": found.encoding, "id_column": "id"}

    for length in (3, 5):
        longer = embedded().assign(emb=[[0.5] * length] * 40)
        with pytest.raises(DataError, match=f"'emb' .*holds lists of {length}, and held lists of 4"):
            read_new_records(file(f"new{length}", longer), **reading)
    gone = read_new_records(file("none", embedded().assign(emb=[None] * 40)), **reading)
    gaps = read_new_records(
        file(
            "nan",
            pd.DataFrame({**embedded()[["id", "x"]], **dict.fromkeys((f"emb_{place}" for place in range(4)), np.nan)}),
        ),
        **reading,
    )
    torch.testing.assert_close(gone.data.test.columns.numeric, gaps.data.test.columns.numeric)


# --- arrays


@pytest.mark.parametrize(
    "source",
    [np.zeros((3, 2, 2, 2)), torch.zeros(3, 2, 2, 2), {"img": np.zeros((3, 2, 2, 2))}],
)
def test_arrays_of_more_dimensions_are_refused_with_what_helps(source: object) -> None:
    with pytest.raises(DataError, match=r"expected \(n, features\), got 4 dimensions: flatten it .*nn.Unflatten"):
        as_arrow(source)


def test_cells_that_are_arrays_of_more_dimensions_are_refused_likewise() -> None:
    with pytest.raises(DataError, match=r"img: expected \(n, features\), got 3 dimensions"):
        as_arrow(pd.DataFrame({"img": [np.zeros((2, 2))] * 3}))
    with pytest.raises(DataError, match=r"expected \(n, features\), got 3 dimensions"):
        Records(torch.arange(2), Columns.of(torch.zeros(2, 3, 4)))


# --- no input left


def constant(rows: int = 40) -> dict[str, npt.NDArray[Any]]:
    return {"id": np.arange(rows), "c": np.full(rows, 7.0), "t": np.array(["only"] * rows)}


@pytest.mark.filterwarnings("ignore:columns may not be")
@pytest.mark.parametrize("settings", [{}, {"drop": "t"}, {"drop": "c"}, {"drop": "c", "min_count": 50}])
def test_a_passive_party_without_any_input_is_an_error(settings: dict[str, Any], tmp_path: Path) -> None:
    labels = {"id": np.arange(40), "y": np.arange(40) % 2, "a": np.arange(40)}
    both = labels | constant()
    pq.write_table(pa.table(both), tmp_path / "t.parquet")
    pq.write_table(pa.table(constant()), tmp_path / "lab.parquet")
    message = "passive party 'lab' has no input left"
    chosen: dict[str, Any] = {"label": "y", "id_column": "id", "test_fraction": 0.3, **settings}

    with pytest.raises(DataError, match=message):
        from_tables(active=labels, passive={"lab": constant()}, label="y", id="id", **settings)
    with pytest.raises(DataError, match=message):
        load("table", path=tmp_path / "t.parquet", active="a", passive={"lab": "rest"}, **chosen)
    with pytest.raises(DataError, match=message):
        load_party(tmp_path / "lab.parquet", name="lab", role="passive", **{**chosen, "label": None})
    with pytest.raises(DataError, match=message):
        ingest(tmp_path / "t.parquet", out=tmp_path / "tables", active="a", passive={"lab": "rest"}, **chosen)

    # With the roles reversed: labels alone are enough for the active party.
    settings = {name: value for name, value in settings.items() if name != "min_count"}
    data = from_tables(
        active=constant() | {"y": labels["y"]},
        passive={"lab": {"id": labels["id"], "a": labels["a"]}},
        label="y",
        id="id",
        **settings,
    )
    assert data["lab"].width == 1


@pytest.mark.parametrize("length", [0, -1, 1 << 40])
def test_no_memory_is_taken_for_lists_that_somebody_elses_folder_announces(length: int) -> None:
    with pytest.raises(msgspec.ValidationError, match="expected lists of 1 to"):
        msgspec.json.decode(msgspec.json.encode({"columns": [], "lists": {"emb": length}}), type=FittedEncoding)
