from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.data.ingest import records
from splitvfl.data.ingest.records import LabelCoder, LabelValues, cell_value, first_repeated
from splitvfl.errors import DataError


@given(st.lists(st.integers(-20, 20), max_size=40))
def test_the_first_repeated_id_is_found_with_both_rows(ids: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_PIECE", 8 * 3)
        file = Path(folder) / "ids"
        np.array(ids, np.int64).tofile(file)
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        found = first_repeated(file, scratch)

    seen: dict[int, int] = {}
    expected = None
    for row, number in enumerate(ids):
        if number in seen and expected is None:
            expected = (seen[number], row)
        seen[number] = row
    assert found == expected


def values_of(labels: pa.Array, tested: list[bool], **settings: object) -> LabelValues:
    kind = "text" if pa.types.is_string(labels.type) else "number"
    found = LabelValues("y", kind, **{"task": "binary", "positive": None, **settings})  # type: ignore[arg-type]
    for start in range(0, len(labels), 2):
        found.add(labels.slice(start, 2), np.array(tested[start : start + 2]))
    return found


def test_binary_labels_become_0_and_1() -> None:
    labels = pa.array(["yes", "no", "no", "yes"])

    schema, classes = values_of(labels, [False, False, True, True], positive="yes").schema()
    numbers, unknown = LabelCoder(schema, "binary").encode(labels)

    assert (schema.values, schema.positive, classes) == (("no", "yes"), 1, 2)
    assert numbers.tolist() == [1, 0, 0, 1]
    assert numbers.dtype == np.float32
    assert unknown is None


def test_classes_are_numbered_in_sorted_order_and_others_found() -> None:
    schema, classes = values_of(pa.array([10.0, 2.0, 3.0, 2.0]), [False] * 4, task="multiclass").schema()

    numbers, unknown = LabelCoder(schema, "multiclass").encode(pa.array([3.0, 10.0, 4.0]))

    assert classes == 3
    assert numbers[:2].tolist() == [1, 2]
    assert numbers.dtype == np.int64
    assert unknown == 2


def test_measurements_stay_as_they_are_if_they_fit() -> None:
    schema, classes = values_of(pa.array([0.5, 1.5]), [False, True], task="regression").schema()

    numbers, unknown = LabelCoder(schema, "regression").encode(pa.array([0.25, 1e300]))

    assert classes == 1
    assert numbers[0] == 0.25
    assert unknown == 1


@pytest.mark.parametrize(
    ("labels", "tested", "settings", "message"),
    [
        ([0.0, 2.0], [False, False], {}, "label column 'y' holds 0, 2; a binary task needs 0 and 1"),
        ([0.0, 1.0, 2.0], [False] * 3, {"positive": 1}, "exactly one other value"),
        ([0.0, 1.0] * 2, [False, True] * 2, {}, "all training rows have one class .* split_seed"),
        ([0.0, 1.0] * 2, [False, True] * 2, {"split_column": "part"}, "one class .* split_column='part' divides them"),
        ([0.0, 0.0, 1.0], [False, True, True], {}, "label column 'y' has one record of the positive class; it needs 2"),
        ([0.0, 1.0, 2.0], [False, False, True], {"task": "multiclass"}, "occurs in test rows only"),
        ([0.0, 0.5], [False, False], {"task": "multiclass"}, "classes are text or whole numbers"),
        (["a", "b"], [False, False], {}, "holds 'a', 'b'"),
    ],
)
def test_labels_that_are_not_what_the_task_needs_are_an_error(
    labels: list[object], tested: list[bool], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        values_of(pa.array(labels), tested, **settings).schema()


def test_too_many_classes_are_no_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_CLASSES", 3)
    found = LabelValues("y", "number", task="multiclass", positive=None)

    with pytest.raises(DataError, match=r"label column 'y' has more than 3 different values; is this a regression"):
        found.add(pa.array([1.0, 2.0, 3.0, 4.0]), np.zeros(4, bool))


def test_typed_values_are_taken_as_the_column_holds_them() -> None:
    assert cell_value("1", "text") == "1"
    assert cell_value("1", "integer") == 1
    assert cell_value("True", "truth") == 1
    with pytest.raises(DataError, match="expected a number as in the column, got 'yes'"):
        cell_value("yes", "number")
