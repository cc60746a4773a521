"""What the label column means: checked, not guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.columns import TaskName
from splitvfl.data.spelling import setting
from splitvfl.data.tables import Rows, is_number, is_text, numbers
from splitvfl.errors import ArgumentError, DataError

Labels = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Positive = str | float | bool
Mask = npt.NDArray[np.bool_]
Unlabelled = Literal["error", "drop"]
"""What becomes of records without a label: they are refused, or left out."""


def read_labels(column: pa.Array, *, task: TaskName, positive: Positive | None, source: str) -> tuple[Labels, int]:
    """Return the labels of all rows and the number of classes.

    Binary: float32 0 and 1. The column holds 0 and 1 (or truth values), or ``positive`` names one of its two values.
    Multi-class: int64 0 … k−1, the values in sorted order. Regression: float32, unscaled, and 1 for the classes.

    Args:
        column: The label column.
        task: What is learned.
        positive: Value of the positive class, binary tasks only.
        source: What to call the column in messages.

    Raises:
        ArgumentError: If ``task`` is unknown, or ``positive`` is given where it means nothing.
        DataError: If a label is missing, or labels are not what the task needs.
    """
    if task not in ("binary", "multiclass", "regression"):
        raise ArgumentError(f"expected task binary, multiclass or regression, got {task!r}")
    if positive is not None and task != "binary":
        raise ArgumentError(f"{setting('positive', positive)} is for a binary task, not for {task}")
    if not is_text(column) and not is_number(column):
        raise DataError(f"{source} holds neither numbers nor text but {column.type}")
    missing = are_missing(column)
    if missing.any():
        error = DataError(
            f"{source} has no value in {missing.sum()} rows, first in row {missing.argmax()} (from 0); correct them, "
            f"or leave them out if the outcome is not known yet ({setting('unlabelled', 'drop')})"
        )
        error.row = int(missing.argmax())
        raise error
    values = np.asarray(column.to_pylist(), object) if is_text(column) else numbers(column)
    if task == "regression":
        return _real(values, is_text(column), source), 1
    found, codes = np.unique(values, return_inverse=True)
    match task:
        case "multiclass":
            return _classes(found, codes.astype(np.int64), source), len(found)
        case "binary":
            return (found == _positive(found.tolist(), positive, source))[codes].astype(np.float32), 2
        case _:
            assert_never(task)


def are_missing(column: pa.Array | pa.ChunkedArray) -> Mask:
    """Return which rows of a label column have no value: no number, or no text but blanks."""
    if is_text(column):
        missing = pc.equal(pc.utf8_trim_whitespace(column), "").fill_null(True)
    else:
        missing = pc.is_null(column, nan_is_null=True)
    found: Mask = np.asarray(missing, bool)
    return found


def with_label(labels: pa.Array, unlabelled: Unlabelled, *, source: str) -> Mask:
    """Return which rows are used: unless records without a label are dropped, all.

    Args:
        labels: The label column.
        unlabelled: What becomes of records without a label.
        source: What to call the column in messages.

    Raises:
        DataError: If no row has a label.
    """
    missing = are_missing(labels)
    if unlabelled == "error":
        return np.ones(len(missing), bool)
    if missing.all():
        raise DataError(f"{source} has no value in any row")
    return ~missing


def left_out(used: Mask | int) -> str:
    """Return how many records without a label were left out, to be added to a description; nothing if none was.

    Args:
        used: Which records are used, or how many are not.
    """
    unlabelled = used if isinstance(used, int) else int((~used).sum())
    return f"; without a label, and left out: {unlabelled:,}" if unlabelled else ""


def _real(values: npt.NDArray[Any], text: bool, source: str) -> npt.NDArray[np.float32]:
    if text:
        raise DataError(f"{source} holds text such as {values[0]!r}; regression needs numbers")
    with np.errstate(over="ignore"):
        real: npt.NDArray[np.float32] = values.astype(np.float32)
    if not np.isfinite(real).all():
        first = int(np.isfinite(real).argmin())
        error = DataError(f"{source} is infinite, or too large for float32, in row {first} (from 0)")
        error.row = first
        raise error
    return real


def _classes(found: npt.NDArray[Any], codes: npt.NDArray[np.int64], source: str) -> npt.NDArray[np.int64]:
    odd = [value for value in found.tolist() if isinstance(value, float) and not value.is_integer()]
    if odd:
        raise DataError(
            f"{source} holds {odd[0]:g}; classes are text or whole numbers ({setting('task', 'regression')} takes "
            "fractions)"
        )
    if len(found) < 2:
        raise DataError(
            f"{source} is {_shown(found.tolist())} in every row; a multi-class task needs 2 classes or more"
        )
    return codes


def _as_another_kind(found: Sequence[Any], positive: Positive) -> str:
    """Return that a value is there as a number, and was named as text, or the other way round; else nothing."""
    named_text = isinstance(positive, str)
    for value in found:
        if isinstance(value, str) != named_text and f"{value}".removesuffix(".0") == f"{positive}".removesuffix(".0"):
            kinds = ("text", "a number") if named_text else ("a number", "text")
            return f": that is {kinds[0]}, and the column holds {kinds[1]}"
    return ""


def _positive(found: Sequence[Any], positive: Positive | None, source: str) -> Positive:
    if positive is None and not set(found) <= {0, 1}:
        raise DataError(f"{source} holds {_shown(found)}; a binary task needs 0 and 1, or {_other_than_binary(found)}")
    if positive is not None and positive not in found:
        raise DataError(
            f"{source} holds {_shown(found)}, so {setting('positive', positive)} never occurs"
            f"{_as_another_kind(found, positive)}"
        )
    if len(found) > 2:
        raise DataError(
            f"{source} holds {_shown(found)}; beside {setting('positive', positive)}, expected exactly one other value"
        )
    if len(found) < 2:
        raise DataError(f"{source} is {_shown(found)} in every row; a binary task needs both classes")
    return 1 if positive is None else positive


def _other_than_binary(found: Sequence[Any]) -> str:
    """Return what to set where labels are not 0 and 1."""
    if set(found) == {-1, 1}:
        return setting("positive", 1)
    if len(found) == 2:
        return f"{setting('positive')}, the value that means yes"
    amounts = not isinstance(found[0], str)
    regression = f"{setting('task', 'regression')} if they are amounts or counts" if amounts else ""
    classes = f"{setting('task', 'multiclass')} if they are classes"
    return f"another task: {' or '.join(filter(None, [regression, classes]))}"


def class_named(one: float, labels: Labels) -> str:
    """Return what a class is called in messages: labels of two classes are float32, 0 and 1."""
    if labels.dtype == np.float32:
        return "the positive class" if one else "the negative class"
    return f"class {one:g} (in sorted order, from 0)"


def check_split(
    labels: Labels,
    train: Rows,
    test: Rows,
    *,
    task: TaskName,
    source: str,
    split_column: str | None = None,
    counts: Rows | None = None,
) -> None:
    """Check that what is tested can have been learned.

    Args:
        labels: One per row, or each class once with its ``counts``.
        train: Positions of training labels.
        test: Positions of test labels.
        task: What is learned.
        source: What to call the labels in messages.
        split_column: The column that divides the rows; ``None``: their ids do.
        counts: Of how many rows each label is; ``None``: of one, and a message about a row names it.

    Raises:
        DataError: If a binary task has one record of a class, or its training or test rows hold one class only, or a
            class occurs in test rows alone.
    """
    if task == "regression":
        return
    if task == "binary":
        _check_two_of_each(labels, counts, source)
    otherwise = (
        f"; divide the rows otherwise: {setting('split_seed')} or {setting('test_fraction')}"
        if split_column is None
        else f"; {setting('split_column', split_column)} divides them so: correct that column"
    )
    learned, measured = np.unique(labels[train]), np.unique(labels[test])
    if len(learned) < 2:
        raise DataError(f"all training rows have one class in {source}; two or more are needed{otherwise}")
    unseen = np.setdiff1d(measured, learned)
    if unseen.size:
        raise DataError(f"{class_named(unseen[0], labels)} of {source} occurs in test rows only{otherwise}")
    if task == "binary" and len(measured) < 2:
        raise DataError(f"all test rows have one class in {source}; a test AUC needs both{otherwise}")


def _check_two_of_each(labels: Labels, counts: Rows | None, source: str) -> None:
    """Refuse one record of a class before a division is blamed: no division gives both parts one."""
    classes, places = np.unique(labels, return_inverse=True)
    single = np.bincount(places, counts) == 1
    if not single.any():
        return
    only = classes[single.argmax()]
    row = int((labels == only).argmax()) if counts is None else None
    error = DataError(
        f"{source} has one record of {class_named(only, labels)}{'' if row is None else f', in row {row} (from 0)'}; "
        "it needs 2 at least, one to train on and one to test on"
    )
    error.row = row
    raise error


def _shown(values: Sequence[Any], limit: int = 8) -> str:
    plain = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values[:limit]]
    return ", ".join(map(repr, plain)) + (f" and {len(values) - limit} more" if len(values) > limit else "")
