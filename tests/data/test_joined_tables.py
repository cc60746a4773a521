"""Tables of several parties are what they would be in files, and in one file of all columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from splitvfl import from_tables, load
from splitvfl.data.columns import VerticalData
from splitvfl.data.doubts import DoubtWarning
from splitvfl.errors import ArgumentError, DataError

ROWS = 90
Cells = dict[str, npt.NDArray[Any]]


def bank() -> Cells:
    rng = np.random.default_rng(1)
    return {
        "customer": rng.permutation(ROWS) * 3 + 5,
        "age": rng.integers(18, 80, ROWS),
        "income": rng.lognormal(size=ROWS),
        "job": rng.choice(["clerk", "nurse", "é"], ROWS),
        "default": np.arange(ROWS) % 3 // 2,
    }


def lab() -> Cells:
    rng = np.random.default_rng(2)
    gappy = rng.normal(size=ROWS)
    gappy[rng.random(ROWS) < 0.2] = np.nan
    return {
        "customer": rng.permutation(bank()["customer"]),
        "usage": gappy,
        "plan": rng.choice(["s", "m"], ROWS),
        "abroad": rng.random(ROWS) < 0.5,
        "calls": rng.integers(0, 9, ROWS),
    }


def without_text(cells: Cells) -> dict[str, Any]:
    """Tensors hold no text."""
    return {name: values if values.dtype.kind == "U" else torch.from_numpy(values) for name, values in cells.items()}


FORMS: dict[str, Callable[[Cells], Any]] = {
    "pandas": pd.DataFrame,
    "pandas index": lambda cells: pd.DataFrame(cells).set_index("customer"),
    "polars": pl.DataFrame,
    "polars categories": lambda cells: pl.DataFrame(cells).with_columns(pl.col(pl.String).cast(pl.Categorical)),
    "arrow": pa.table,
    "arrays": dict,
    "tensors": without_text,
}
WANTED: dict[str, Any] = {
    "label": "default",
    "missing": "indicator",
    "categorical": "index",
    "categorical_columns": "calls",
    "scale_columns": {"log1p": "inc*", "minmax": ["a*"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, cells in (("bank", bank()), ("lab", lab())):
        table = pa.Table.from_pandas(pd.DataFrame(cells))  # in which a gap is missing, as in a CSV file
        pq.write_table(table, folder / f"{name}.parquet")
        pyarrow.csv.write_csv(table, folder / f"{name}.csv")
    joined = pd.DataFrame(bank()).merge(pd.DataFrame(lab()), on="customer")  # in the order of the left table
    joined.to_parquet(folder / "joined.parquet")
    return folder


def same(ours: VerticalData, theirs: VerticalData) -> None:
    assert (ours.task, ours.classes, list(ours.passives)) == (theirs.task, theirs.classes, list(theirs.passives))
    for party in (ours.active.name, *ours.passives):
        for what in ("column_names", "numeric_names", "field_names", "field_sizes"):
            assert getattr(ours[party], what) == getattr(theirs[party], what)
        for part in ("train", "test"):
            one, other = getattr(ours[party], part), getattr(theirs[party], part)
            for a, b in ((one.ids, other.ids), *zip(one.columns, other.columns, strict=True)):
                assert (a.dtype, a.shape, a.numpy().tobytes()) == (b.dtype, b.shape, b.numpy().tobytes())
            assert (one.labels is None) == (party in ours.passives)
            if one.labels is not None:
                assert torch.equal(one.labels, other.labels)


@pytest.mark.parametrize("form", FORMS)
def test_tables_are_what_they_would_be_in_files(form: str, folder: Path) -> None:
    ours = from_tables(active=FORMS[form](bank()), passive={"lab": FORMS[form](lab())}, id="customer", **WANTED)

    for suffix in ("parquet", "csv"):
        files = {"active": folder / f"bank.{suffix}", "passive": {"lab": folder / f"lab.{suffix}"}}
        same(ours, from_tables(**files, id="customer", **WANTED))
    claims = {"active": "age, income, job", "passive": {"lab": "rest"}}
    same(ours, load("table", path=folder / "joined.parquet", id_column="customer", **claims, **WANTED))


def test_without_ids_rows_are_taken_as_they_come(folder: Path) -> None:
    own, other = ({k: v for k, v in cells.items() if k != "customer"} for cells in (bank(), lab()))

    settings = {**WANTED, "scale": "none", "scale_columns": None}
    data = from_tables(active=own, passive={"lab": pd.DataFrame(other)}, **settings)

    assert data["lab"].column_names == ("usage", "plan", "abroad", "calls")  # an index without a name is none of them
    for records in (data.active.train, data.active.test):
        np.testing.assert_array_equal(records.columns.numeric[:, 0], own["age"][records.ids].astype(np.float32))
    assert data.description.startswith("90 records, taken to be the same in every row of all tables (no id was named)")


def test_records_that_are_not_in_every_table_are_left_out_and_counted() -> None:
    shop = {"nr": [f"{number}" for number in bank()["customer"][10:]] + ["x"], "basket": np.arange(81.0)}

    data = from_tables(
        active=bank(),
        passive={"lab": pd.DataFrame(lab())[20:], "shop": shop},
        id={"bank": "customer", "lab": "customer", "shop": "nr"},
        active_name="bank",
        **WANTED,
    )

    expected = [one for one in bank()["customer"][10:].tolist() if one in set(lab()["customer"][20:].tolist())]
    met = torch.cat([data.active.train.ids, data.active.test.ids]).tolist()
    assert sorted(met) == sorted(expected)
    count = len(expected)
    assert data.description == (
        f"{count} records joined by customer of bank and customer of lab and nr of shop; not in every table, and left "
        f"out: {90 - count} of 90 of bank, {70 - count} of 70 of lab, {81 - count} of 81 of shop; label default"
    )
    # Whole numbers and their digits are one id: the basket was numbered by the bank's rows.
    row_of = {number: row - 10 for row, number in enumerate(bank()["customer"].tolist())}
    baskets = torch.cat([data["shop"].train.columns.numeric, data["shop"].test.columns.numeric])[:, 0]
    order = np.array([row_of[number] for number in met], np.float64)
    assert np.corrcoef(order, baskets)[0, 1] == pytest.approx(1)


@pytest.mark.filterwarnings("ignore::splitvfl.data.doubts.DoubtWarning")
def test_a_column_of_one_name_in_two_tables_is_two_columns() -> None:
    own = {**bank(), "region": np.arange(ROWS)}

    data = from_tables(
        active=own,
        passive={"lab": {**lab(), "region": -np.arange(ROWS)}},
        id="customer",
        drop=["job", "plan", "usage"],
        label="default",
    )

    assert data.active.column_names == ("age", "income", "region")
    assert data["lab"].column_names == ("abroad", "calls", "region")
    assert not torch.equal(data.active.train.columns.numeric[:, 2], data["lab"].train.columns.numeric[:, 2])


def test_the_active_table_may_say_what_is_tested() -> None:
    part = np.where(np.arange(ROWS) % 4 == 1, "test", "train")

    data = from_tables(
        active={**bank(), "part": part},
        passive={"lab": {"customer": lab()["customer"], "calls": lab()["calls"], "part": part}},
        id="customer",
        split_column="part",
        label="default",
    )

    assert data["lab"].column_names == ("calls",)
    assert sorted(data.active.test.ids.tolist()) == sorted(bank()["customer"][1::4].tolist())


def test_few_records_in_common_are_warned_of() -> None:
    shifted = {**lab(), "customer": lab()["customer"] + 3 * 60}

    with pytest.warns(UserWarning, match="60 of the 90 records of active, .* as only 30 are in every .*written alike"):
        from_tables(active=bank(), passive={"lab": shifted}, id="customer", **WANTED)


def test_a_table_of_which_most_is_left_out_is_named_though_another_is_nearly_whole() -> None:
    """As where a small bank's customers are all among a telecom's."""
    few = {name: values[:40] for name, values in bank().items()}

    with pytest.warns(UserWarning, match="records of lab are left out") as caught:
        data = from_tables(active=few, passive={"lab": lab()}, id="customer", **WANTED)

    count = data.active.train.count + data.active.test.count
    rows = len(lab()["customer"])
    assert 20 <= count < rows / 2
    assert str(caught[0].message).startswith(f"{rows - count} of the {rows} records of lab are left out")
    assert len(caught) == 1


def test_columns_that_may_not_be_what_they_were_taken_for_are_warned_of_once() -> None:
    spent = [f"{row},5" for row in range(ROWS)]

    with pytest.warns(DoubtWarning) as caught:
        data = from_tables(
            **tables(active={**bank(), "spent": spent}, passive={"lab": {**lab(), "same": np.ones(ROWS)}})
        )

    said = [str(warning.message) for warning in caught]
    assert len(said) == 1
    assert "active: spent" in said[0]
    assert "set decimal=','" in said[0]
    assert "lab: same" in said[0]
    assert caught[0].filename == __file__
    assert [doubt.kind for doubt in data.active.doubts] == ["numbers"]


def tables(**changed: Any) -> dict[str, Any]:
    return {"active": bank(), "passive": {"lab": lab()}, "label": "default", "id": "customer", **WANTED, **changed}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"active": 7}, ArgumentError, "expected a file, .* as the table of active, got int"),
        ({"active": pl.LazyFrame(bank())}, ArgumentError, "as the table of active, got LazyFrame; call .collect()"),
        ({"active": {"a": [1], "b": [1, 2]}}, DataError, "given as the table of active is no table"),
        ({"passive": pd.DataFrame(lab())}, ArgumentError, "expected passive as a mapping .* got DataFrame"),
        ({"passive": {}}, ArgumentError, "expected one passive party at least"),
        ({"passive": {"active": lab()}}, ArgumentError, "they must differ"),
        ({"label": bank()["default"]}, ArgumentError, "expected label as the name of a column .* got ndarray"),
        ({"label": "defualt"}, DataError, "no column 'defualt' in the table of active; did you mean 'default'?"),
        ({"id": "client"}, DataError, "no column 'client' in the table of active"),
        ({"id": {"active": "customer"}}, ArgumentError, "expected an id column for each of active, lab, got active"),
        ({"id": 3}, ArgumentError, "expected id as a column's name, or a name by party, got int"),
        ({"id": None}, DataError, "tells which record is which"),
        ({"id_column": "customer"}, ArgumentError, "takes id=, not id_column="),
        ({"scael": "none"}, ArgumentError, "no setting 'scael'; did you mean 'scale'?"),
        ({"drop": "jbo"}, DataError, "no column 'jbo' in the tables; did you mean 'job'?"),
        ({"scale_columns": {"log1p": "job"}}, DataError, "no column 'job' in the tables"),
        ({"split_column": "part"}, DataError, "no column 'part' in the table of active"),
        ({"test_fraction": 2}, ArgumentError, "expected test_fraction in"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    fewer = {**changed, "passive": {"lab": pd.DataFrame(lab())[:9]}} if changed == {"id": None} else changed

    with pytest.raises(error, match=message.replace("(", r"\(").replace(")", r"\)")):
        from_tables(**tables(**fewer))


def test_labels_at_a_passive_party_are_refused() -> None:
    with pytest.raises(DataError, match="the table of lab has a column 'default', which is the label"):
        from_tables(**tables(passive={"lab": {**lab(), "default": bank()["default"]}}))


@pytest.mark.parametrize(
    ("customers", "message"),
    [
        (lab()["customer"] * 0, r"the table of lab, row 1 .*id 0 is there already in the table of lab, row 0"),
        (lab()["customer"] + 0.5, r"the table of lab, row 0 .*column 'customer': .*5 is a fraction"),
        (
            [f"00{one}" for one in lab()["customer"]],
            "no id is in every table .*active and lab: 90 more would match without leading zeros",
        ),
        ([None, *lab()["customer"].tolist()[1:]], r"the table of lab, row 0 .*there is no id"),
    ],
)
def test_ids_that_do_not_do(customers: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_tables(**tables(passive={"lab": {**lab(), "customer": pa.array(customers)}}))


def test_rows_in_messages_are_those_of_the_joined_tables() -> None:
    frame = pd.DataFrame(lab())[5:].assign(usage=np.inf)

    with pytest.raises(DataError, match=re.escape("of the table of lab (rows counted as they are joined)")):
        from_tables(**tables(passive={"lab": frame}))


@pytest.mark.parametrize("ids", ["customer", {"active": "customer", "lab": "patient"}])
def test_a_message_about_a_row_says_whose_it_is(ids: Any) -> None:
    frame = pd.DataFrame(lab())
    own = ids if isinstance(ids, str) else ids["lab"]
    # The other way round, as in no file.
    frame = frame.rename(columns={"customer": own})[::-1].reset_index(drop=True)
    missing = int(frame[own][3])
    frame.loc[3, "usage"] = np.inf
    with pytest.raises(DataError, match=rf"column 'usage' .* first in row \d+ .*; row \d+ is {own} {missing}"):
        from_tables(**tables(passive={"lab": frame}, id=ids))

    cells = {**bank(), "default": [None, *list(bank()["default"])[1:]]}
    with pytest.raises(DataError, match=rf"'default' .* row 0 .*; row 0 is customer {int(bank()['customer'][0])}"):
        from_tables(**tables(active=cells))

    cells = {**bank(), "default": np.arange(ROWS) == 1}
    with pytest.raises(DataError, match=rf"one record of the positive .*; row 1 is customer {bank()['customer'][1]}"):
        from_tables(**tables(active=cells))


def test_a_table_as_path_is_told_where_to_go() -> None:
    with pytest.raises(ArgumentError, match=r"got a DataFrame; tables in memory are for splitvfl\.from_tables"):
        load("table", path=pd.DataFrame(bank()), label="default")  # type: ignore[arg-type]


@pytest.mark.parametrize("gap", [None, np.nan, "", " "])
def test_records_without_a_label_are_left_out_before_tables_are_joined(gap: Any) -> None:
    own, other = pd.DataFrame(bank()), pd.DataFrame(lab())
    labels: Any = own["default"].astype(object if gap is None or isinstance(gap, str) else float)
    if isinstance(gap, str):
        labels = labels.map({0: "no", 1: "yes"})
    own["default"] = labels
    own.loc[own.index[:7], "default"] = gap
    settings: dict[str, Any] = {"label": "default", "missing": "indicator"}
    settings |= {"positive": "yes"} if isinstance(gap, str) else {}

    found = from_tables(active=own, passive={"lab": other}, id="customer", unlabelled="drop", **settings)

    expected = from_tables(active=own[7:], passive={"lab": other}, id="customer", **settings)
    same(found, expected)
    assert "without a label, and left out: 7" in found.description
    assert found.active.train.count + found.active.test.count == ROWS - 7
    with pytest.raises(DataError, match=r"has no value in 7 rows, first in row 0 .*unlabelled='drop'.*customer"):
        from_tables(active=own, passive={"lab": other}, id="customer", **settings)


def test_records_without_a_label_and_without_an_id_are_left_out_at_all_parties() -> None:
    own, other = pd.DataFrame(bank()).drop(columns="customer"), pd.DataFrame(lab()).drop(columns="customer")
    own["default"] = own["default"].astype(float)
    own.loc[[3, 50], "default"] = np.nan
    rest = own.drop(index=[3, 50]), other.drop(index=[3, 50])
    settings: dict[str, Any] = {"label": "default", "missing": "indicator"}

    found = from_tables(active=own, passive={"lab": other}, unlabelled="drop", **settings)

    expected = from_tables(active=rest[0], passive={"lab": rest[1]}, **settings)
    for party in ("active", "lab"):
        mine, theirs = (data.active if party == "active" else data["lab"] for data in (found, expected))
        torch.testing.assert_close(mine.train.columns.numeric, theirs.train.columns.numeric, rtol=0, atol=0)
