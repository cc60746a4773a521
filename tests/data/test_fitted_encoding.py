"""What was fitted on training rows, kept as JSON, gives new rows the numbers that it gave the old ones."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitvfl.data.encoding import (
    Encoding,
    FittedCategories,
    FittedEncoding,
    FittedNumbers,
)
from splitvfl.data.fitting import fit_encoding
from splitvfl.errors import DataError

Cells = list[Any]


def fitted(columns: dict[str, Any], *, train: int, categories: tuple[str, ...] = (), **how: Any) -> FittedEncoding:
    table = pa.table(columns)
    return fit_encoding(
        table,
        table.column_names,
        train=np.arange(train),
        encoding=Encoding(**how),
        categories=categories,
        source="old.csv",
    )


def again(encoding: FittedEncoding) -> FittedEncoding:
    """As it is read back."""
    return msgspec.json.decode(msgspec.json.encode(encoding), type=FittedEncoding)


# --- an oracle: one pass over all rows at once, each column by loops over plain numbers


def numbers_by_hand(cells: Cells, train: int, scale: str) -> list[list[np.float32]]:
    known = np.array([cell for cell in cells[:train] if cell is not None], np.float64)
    values = np.array([np.median(known) if cell is None else cell for cell in cells], np.float64)
    fit = values[:train]
    if scale == "log1p":
        values, fit = (np.copysign(np.log1p(np.abs(some)), some) for some in (values, fit))
    low, high = fit.min(), fit.max()
    offset, spread = (low, high - low) if scale == "minmax" else (fit.mean(), fit.std())
    scaled = [0.0 if low == high or spread == 0 else (value - offset) / spread for value in values]
    if scale == "minmax":
        scaled = [min(max(value, 0.0), 1.0) for value in scaled]
    columns = [[np.float32(value) for value in (values if scale == "none" else scaled)]]
    if None in cells[:train]:
        columns.append([np.float32(cell is None) for cell in cells])
    return columns


def codes_by_hand(cells: Cells, train: int, min_count: int) -> tuple[list[int], Cells]:
    kept = sorted({cell for cell in cells[:train] if cell is not None and cells[:train].count(cell) >= min_count})
    if cells[:train].count(None) >= min_count:
        kept.append(None)
    return [kept.index(cell) + 1 if cell in kept else 0 for cell in cells], kept


texts = st.lists(st.sampled_from(["a", "b", "c", "1", "", None]), min_size=12, max_size=12)
reals = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=12, max_size=12).map(lambda cells: [1.5, *cells])


@settings(max_examples=60)
@given(
    text=texts, real=reals, scale=st.sampled_from(["standard", "minmax", "log1p", "none"]), min_count=st.integers(1, 3)
)
def test_fit_and_apply_are_one_pass_by_hand(text: Cells, real: Cells, scale: str, min_count: int) -> None:
    text = ["a", *text]
    table = pa.table({"x": pa.array(real, pa.float64()), "job": pa.array(text, pa.string())})
    how: dict[str, Any] = {"scale": scale, "missing": "indicator", "min_count": min_count}

    for categorical in ("index", "onehot"):
        encoding = fitted({"x": table["x"], "job": table["job"]}, train=9, categorical=categorical, **how)
        found = again(encoding).apply(table, source="old.csv")

        expected = numbers_by_hand(real, 9, scale)
        codes, kept = codes_by_hand(text, 9, min_count)
        if categorical == "onehot":
            expected += [[np.float32(code == place) for code in codes] for place in range(1, len(kept) + 1)]
            labels = ["missing" if category is None else category for category in kept]
            assert found.names[len(found.names) - len(kept) :] == tuple(f"job={label}" for label in labels)
        else:
            assert found.codes.tolist() == [[code] for code in codes]
            assert (found.field_sizes, found.field_names) == ((len(kept) + 1,), ("job",))
        # The same operations in the same order, in double precision.
        np.testing.assert_array_equal(found.numeric.T, np.array(expected, np.float32))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "numbers": ({"a": [0.1, 0.7, 1 / 3, 9e9], "b": [1, 2, 3, 4], "c": [True, False, True, True]}, {}),
    "minmax": ({"a": [0.1, 0.7, 1 / 3, 9e9]}, {"scale": "minmax"}),
    "log1p": ({"a": [-3.3, 0.7, 1 / 3, 9e9]}, {"scale": "log1p"}),
    "none": ({"a": [-0.0, 0.7, 1 / 3, 9e9]}, {"scale": "none"}),
    "constant": ({"a": [0.1, 0.1, 0.1, 7.0]}, {}),
    "missing": ({"a": [None, 0.7, 1 / 3, 9e9], "b": [1.0, 2.0, 3.0, None]}, {"missing": "indicator"}),
    "onehot": ({"a": ["y", None, "x", "z"], "b": [2, 10, 2, 3]}, {"categories": ("b",)}),
    "index": ({"a": ["y", None, "x", "z"], "b": [2, 10, 2, 3]}, {"categories": ("b",), "categorical": "index"}),
    "rare": ({"a": ["y", "y", "x", "z"]}, {"min_count": 2, "categorical": "index"}),
    "truths": ({"a": [True, False, True, False]}, {"categories": ("a",)}),
    "reals": ({"a": [0.1, float("nan"), 1e300, 0.1]}, {"categories": ("a",)}),
    "decimals": ({"a": [Decimal("0.10"), Decimal("2.00"), None, Decimal("10.00")]}, {"categories": ("a",)}),
    "wide integers": ({"a": pa.array([2**64 - 1, 2**53 + 1, 2**53, 1], pa.uint64())}, {"categories": ("a",)}),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_fitted_comes_back_from_json_to_the_bit(case: str) -> None:
    columns, options = CASES[case]
    table = pa.table(columns) if columns else pa.table({"a": [1, 2, 3, 4]}).select([])
    encoding = fitted(columns, train=3, **options)

    assert again(encoding) == encoding
    first = encoding.apply(table, source="old.csv")
    second = again(encoding).apply(table, source="old.csv")
    assert first.numeric.tobytes() == second.numeric.tobytes()
    np.testing.assert_array_equal(first.codes, second.codes)
    assert (first.names, first.field_sizes, first.unknown) == (second.names, second.field_sizes, second.unknown)


@pytest.mark.parametrize("case", [name for name in CASES if name != "nothing"])
def test_a_row_alone_gets_the_numbers_that_it_gets_among_others(case: str) -> None:
    columns, options = CASES[case]
    table = pa.table(columns)
    encoding = fitted(columns, train=3, **options)
    together = encoding.apply(table, source="old.csv")

    for row in range(table.num_rows):
        alone = encoding.apply(table.slice(row, 1).combine_chunks(), source="new.csv")
        # The logarithm of one number may differ from that of one among many in its last bit of 53.
        np.testing.assert_allclose(alone.numeric[0], together.numeric[row], rtol=1.2e-7)
        np.testing.assert_array_equal(alone.codes[0], together.codes[row])


# --- new rows


def test_unknown_categories_are_zero_and_counted() -> None:
    columns = {"job": ["x", "y", "x"], "town": ["p", "p", "q"]}
    new = pa.table({"town": ["q", "r", "r", None], "job": ["y", "z", "x", "y"], "more": [1, 2, 3, 4]})

    onehot = fitted(columns, train=3).apply(new, source="new.csv")
    index = fitted(columns, train=3, categorical="index").apply(new, source="new.csv")

    assert onehot.names == ("job=x", "job=y", "town=p", "town=q")
    assert onehot.numeric.tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]
    assert index.codes.tolist() == [[2, 2], [0, 0], [1, 0], [2, 0]]
    assert onehot.unknown == index.unknown == {"job": 1, "town": 3}


def test_gaps_are_filled_with_the_median_of_the_training_rows() -> None:
    encoding = fitted({"a": [1.0, 2.0, 9.0]}, train=3, missing="indicator", scale="none")
    marked = fitted({"a": [1.0, None, 9.0, 3.0]}, train=4, missing="indicator", scale="none")
    new = pa.table({"a": [None, 100.0, None]})

    assert encoding.apply(new, source="new.csv").numeric.tolist() == [[2.0], [100.0], [2.0]]
    assert marked.apply(new, source="new.csv").numeric.tolist() == [[3.0, 1.0], [100.0, 0.0], [3.0, 1.0]]


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"job": ["x"]}, "no column 'AGE' in new.csv"),
        ({"age": [1], "job": ["x"]}, "no column 'AGE' in new.csv; did you mean 'age'?"),
        ({"AGE": ["old"], "job": ["x"]}, "column 'AGE' of new.csv holds string, and held numbers when"),
        ({"AGE": [1], "job": [7]}, "column 'job' of new.csv holds int64, and held text when"),
        ({"AGE": [None], "job": ["x"]}, "column 'AGE' of new.csv has no value in 1 of 1 rows"),
        ({"AGE": [float("inf")], "job": ["x"]}, "column 'AGE' of new.csv is infinite in 1 rows"),
        ({"AGE": [1e300], "job": ["x"]}, "column 'AGE' of new.csv holds values too large for float32"),
        ({"AGE": pa.array([1], pa.date32()), "job": ["x"]}, "column 'AGE' of new.csv holds date32[day]"),
    ],
)
def test_columns_of_another_kind_are_named(new: dict[str, Any], message: str) -> None:
    encoding = fitted({"AGE": [20, 30, 40], "job": ["x", "y", "x"]}, train=3)

    with pytest.raises(DataError, match=re.escape(message)):
        encoding.apply(pa.table(new), source="new.csv")


def test_numbers_as_categories_are_known_by_their_value_whatever_their_type() -> None:
    encoding = fitted({"SEX": [1, 2, 2]}, train=3, categories=("SEX",), categorical="index")

    for same in ([2.0, 1.0, 3.0], [Decimal(2), Decimal(1), Decimal(3)]):
        assert encoding.apply(pa.table({"SEX": same}), source="new").codes.tolist() == [[2], [1], [0]]
    with pytest.raises(DataError, match="holds string, and held numbers"):
        encoding.apply(pa.table({"SEX": ["1"]}), source="new")


def test_decimals_are_known_by_their_value() -> None:
    encoding = fitted({"a": [Decimal("0.10"), Decimal("2.00")]}, train=2, categories=("a",), categorical="index")

    new = pa.table({"a": [Decimal("0.1000"), Decimal("2.0000"), Decimal("0.1001")]})
    assert again(encoding).apply(new, source="new").codes.tolist() == [[1], [2], [0]]


def test_infinite_categories_come_back() -> None:
    table = {"a": [math.inf, 1.0, -math.inf, None]}
    encoding = fitted(table, train=4, categories=("a",), categorical="index")

    new = pa.table({"a": [None, -math.inf, 1.0, math.inf, 2.0]})
    assert again(encoding).apply(new, source="new").codes.tolist() == [[4], [1], [2], [3], [0]]
    assert encoding.apply(pa.table({"a": [1]}), source="new").codes.tolist() == [[2]]


def test_what_is_text_is_said() -> None:
    encoding = fitted({"zip": ["01234", "99"], "AGE": [1, 2], "SEX": [1, 2]}, train=2, categories=("SEX",))

    assert encoding.text_columns == ("zip",)
    assert [type(one) for one in encoding.columns] == [FittedCategories, FittedNumbers, FittedCategories]


@pytest.mark.parametrize(
    "text", ['{"columns":[{"fitted":"numbers","column":"a"}]}', '{"columns":[{"fitted":"code"}]}', "{}", "[]"]
)
def test_json_that_is_no_encoding_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=FittedEncoding)
