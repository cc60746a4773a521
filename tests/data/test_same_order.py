"""Tables that contradict that their rows are in the same order are not joined by it; others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from splitvfl import from_tables
from splitvfl.data.same_order import column_against
from splitvfl.errors import DataError
from splitvfl.sklearn import SplitClassifier

ROWS = 40
SHUFFLED = np.random.default_rng(5).permutation(ROWS)
AMOUNTS = np.linspace(-1, 1, ROWS) ** 3


def bank(index: Any = None) -> pd.DataFrame:
    return pd.DataFrame({"income": np.arange(ROWS) % 7 + 0.5, "default": np.arange(ROWS) % 2}, index=index)


def lab(index: Any = None, **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"usage": np.arange(ROWS) % 5 + 0.25, **more}, index=index)


def joined(active: Any, passive: Any) -> int:
    data = from_tables(active=active, passive={"lab": passive}, label="default")
    return data.active.train.count + data.active.test.count


@pytest.mark.parametrize(
    ("active", "passive", "message"),
    [
        (bank(), lab().iloc[SHUFFLED], "indexes have the same labels in another order"),
        (bank(range(9, 9 + ROWS)), lab(range(9, 9 + ROWS)).iloc[SHUFFLED], "the same labels in another order"),
        (bank(list("ab") * 20), lab([*"a" * 20, *"b" * 20]), "the same labels in another order"),
        (bank(range(1, 1 + ROWS)), lab(range(2, 2 + ROWS)), "indexes have different labels"),
        (bank(pd.date_range("2026-05-04", periods=ROWS)), lab(range(2, 2 + ROWS)), "have different labels"),
    ],
)
def test_indexes_of_pandas_that_contradict(active: Any, passive: Any, message: str) -> None:
    with pytest.raises(DataError, match=rf"tables of active and lab .*{message}.*\(id=.*reset_index\(drop=True\)"):
        joined(active, passive)
    assert joined(*(frame.reset_index(drop=True) for frame in (active, passive))) == ROWS


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table, dict])
@pytest.mark.parametrize("values", [AMOUNTS, np.arange(ROWS) + 100, np.array([f"k{row}" for row in range(ROWS)])])
def test_a_column_of_both_that_tells_records_apart_in_another_order(frame: Callable[..., Any], values: Any) -> None:
    tables = [
        frame({**table.to_dict("series"), "key": pd.Series(column)})
        for table, column in ((bank(), values), (lab(), values[SHUFFLED]))
    ]

    with pytest.raises(DataError, match="column 'key' has the same values in both, in another order; name the column"):
        joined(*tables)


@pytest.mark.parametrize(
    ("active", "passive"),
    [
        (bank(), lab()),
        (bank(range(9, 9 + ROWS)), lab()),
        (bank(), lab([f"k{row}" for row in range(ROWS)])),
        (bank().iloc[SHUFFLED], lab().iloc[SHUFFLED]),
        (bank(pd.Index(range(ROWS), name="one")), lab(np.arange(ROWS, dtype=np.int32))),
        (bank().assign(age=AMOUNTS), lab(age=AMOUNTS)),
        (bank().assign(age=AMOUNTS), lab(age=AMOUNTS[SHUFFLED] + 1e-9)),
        (bank().assign(age=np.arange(ROWS) % 9), lab(age=(np.arange(ROWS) % 9)[SHUFFLED])),
        (bank().assign(age=AMOUNTS), lab(Age=AMOUNTS[SHUFFLED])),
    ],
)
def test_what_contradicts_nothing_is_joined(active: Any, passive: Any) -> None:
    assert joined(active, passive) == ROWS


def test_an_id_column_settles_it() -> None:
    active, passive = bank().assign(key=range(ROWS)), lab(key=range(ROWS)).iloc[SHUFFLED]

    data = from_tables(active=active, passive={"lab": passive}, label="default", id="key")

    assert data.active.train.count + data.active.test.count == ROWS


def test_gaps_and_repeats_tell_nothing() -> None:
    gap = pa.table({"k": pa.array([1.5, None, 3])}), pa.table({"k": pa.array([None, 1.5, 3])})
    assert column_against(*gap) is None
    assert column_against(pa.table({"k": [1, 1, 2]}), pa.table({"k": [2, 1, 1]})) is None
    assert column_against(pa.table({"k": [1, 2]}), pa.table({"k": [2.0, 1.0]})) == "k"


def test_labels_of_an_estimator_in_another_order_are_refused() -> None:
    frame = pd.DataFrame({"a": AMOUNTS, "b": AMOUNTS[::-1]})
    labels = pd.Series(np.arange(ROWS) % 2)

    with pytest.raises(ValueError, match=r"X and y .*same labels in another order; bring y into .* \(y.loc\[X.index\]"):
        SplitClassifier().fit(frame, labels.iloc[SHUFFLED])
    with pytest.raises(ValueError, match="different labels"):
        SplitClassifier().fit(frame.set_axis(range(5, 5 + ROWS)), labels.set_axis(range(6, 6 + ROWS)))


@pytest.mark.parametrize("shuffled", [SHUFFLED, SHUFFLED[:30]])
def test_labels_of_a_part_and_frames_that_were_counted_anew_are_taken(shuffled: Any) -> None:
    frame, labels = pd.DataFrame({"a": AMOUNTS, "b": AMOUNTS[::-1]}), pd.Series(np.arange(ROWS) % 2)
    taken = [(frame.iloc[shuffled], labels.iloc[shuffled])]
    if len(shuffled) < ROWS:  # as after a scaler, which returns an array
        taken.append((frame.iloc[shuffled].reset_index(drop=True), labels.iloc[shuffled]))

    for own, truth in taken:
        assert SplitClassifier(epochs=1, parties={"p": ["b"]}).fit(own, truth).n_features_in_ == 2


def test_two_passive_tables_are_compared_with_each_other() -> None:
    shop = lab(key=np.arange(ROWS) + 100)
    club = lab(key=(np.arange(ROWS) + 100)[SHUFFLED])

    with pytest.raises(
        DataError, match=r"tables of shop and club .*column 'key' has the same values in both, in anoth"
    ):
        from_tables(active=bank(), passive={"shop": shop, "club": club}, label="default")
