"""Ids and labels of records, as they come in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.chunks import Kind, Mask
from splitvfl.data.columns import LABEL_DTYPES, TaskName
from splitvfl.data.hashing import mix64
from splitvfl.data.labels import Labels, Positive, check_split, read_labels
from splitvfl.data.schema import LabelSchema
from splitvfl.errors import DataError

Ids = npt.NDArray[np.int64]

# Classes beyond this many are measurements, or ids, taken for classes.
MOST_CLASSES = 10_000
_PARTS = 64
_PIECE = 8 << 20
_ENTRY = np.dtype([("id", "<i8"), ("row", "<i8")])


class Repeated(NamedTuple):
    """Two rows with the same id, from 0 over all files."""

    first: int
    second: int


def first_repeated(ids: Path, scratch: Path) -> Repeated | None:
    """Return the repeated id whose second row comes first, if there is one.

    Ids that ascend from row to row are looked at once. Others are divided by a hash into files, which are sorted one at
    a time: memory is that of a 64th of the ids.

    Args:
        ids: File of int64, one per row.
        scratch: An empty folder.
    """
    if _ascending(ids):
        return None
    _divide(ids, scratch)
    found = [pair for part in range(_PARTS) if (pair := _repeated_in(scratch / f"{part}")) is not None]
    return min(found, key=lambda pair: pair.second, default=None)


def _pieces(file: Path) -> Iterator[Ids]:
    with file.open("rb") as stream:
        while data := stream.read(_PIECE):
            yield np.frombuffer(data, np.int64)


def _ascending(file: Path) -> bool:
    last: Ids = np.zeros(0, np.int64)
    for ids in _pieces(file):
        if (np.diff(np.concatenate([last, ids])) <= 0).any():
            return False
        last = ids[-1:]
    return True


def _divide(file: Path, scratch: Path) -> None:
    row = 0
    with ExitStack() as stack:
        parts = [stack.enter_context((scratch / f"{part}").open("wb")) for part in range(_PARTS)]
        for ids in _pieces(file):
            entries = np.empty(ids.size, _ENTRY)
            entries["id"], entries["row"] = ids, np.arange(row, row + ids.size)
            part_of = (mix64(ids.view(np.uint64)) >> np.uint64(58)).astype(np.int64)
            entries = entries[np.argsort(part_of, kind="stable")]
            ends = np.cumsum(np.bincount(part_of, minlength=_PARTS))
            for part, piece in zip(parts, np.split(entries, ends[:-1]), strict=True):
                part.write(piece.tobytes())
            row += ids.size


def _repeated_in(file: Path) -> Repeated | None:
    entries = np.fromfile(file, _ENTRY)
    order = np.argsort(entries["id"], kind="stable")
    ids, rows = entries["id"][order], entries["row"][order]
    seconds = np.flatnonzero(ids[1:] == ids[:-1]) + 1
    if seconds.size == 0:
        return None
    second = seconds[rows[seconds].argmin()]
    return Repeated(int(rows[second - 1]), int(rows[second]))


class LabelCount(NamedTuple):
    """A value of the label column, and how many training and test rows have it."""

    value: float | str
    train: int
    test: int


class LabelValues:
    """The different values of the label column, and how often each occurs in training and test rows.

    Args:
        column: Its name.
        kind: What its cells hold.
        task: What is learned.
        positive: The positive class, where it is not 1.
        split_column: The column that divides the rows; ``None``: their ids do.

    Raises:
        DataError: If text is to be measured.
    """

    def __init__(
        self, column: str, kind: Kind, *, task: TaskName, positive: Positive | None, split_column: str | None = None
    ) -> None:
        if task == "regression" and kind == "text":
            raise DataError(f"label column {column!r} holds text; regression needs numbers")
        self._column = column
        self._kind = kind
        self._task = task
        self._positive = positive
        self._split_column = split_column
        self._counts: dict[Any, npt.NDArray[np.int64]] = {}
        self._where = f"label column {column!r}"

    def add(self, labels: pa.Array, tested: Mask) -> None:
        """Take in the labels of some rows.

        Raises:
            DataError: If there are too many classes.
        """
        if self._task == "regression":
            return
        encoded = labels.dictionary_encode()
        counts = np.zeros((2, len(encoded.dictionary)), np.int64)
        np.add.at(counts, (tested.astype(np.int64), encoded.indices.to_numpy()), 1)
        self._add(zip(encoded.dictionary.to_pylist(), counts.T, strict=True))

    def add_counted(self, counted: Iterable[LabelCount]) -> None:
        """Take in labels that were counted elsewhere.

        Raises:
            DataError: If there are too many classes.
        """
        self._add((one.value, np.array([one.train, one.test])) for one in counted)

    @property
    def counted(self) -> list[LabelCount]:
        """The different values in sorted order, and how often each occurred; none of a regression."""
        return [LabelCount(value, *self._counts[value].tolist()) for value in sorted(self._counts)]

    def _add(self, counted: Iterable[tuple[Any, npt.NDArray[np.int64]]]) -> None:
        for value, count in counted:
            self._counts[value] = self._counts.get(value, 0) + count
        if len(self._counts) > MOST_CLASSES:
            raise DataError(f"{self._where} has more than {MOST_CLASSES} different values; is this a regression task?")

    def schema(self) -> tuple[LabelSchema, int]:
        """Return what the labels mean, and the number of classes.

        Raises:
            DataError: If the values are not what the task needs, a class has no training row, or a binary task's class
                has one row.
        """
        found = sorted(self._counts)
        values = pa.array(found, pa.string() if self._kind == "text" else pa.float64())
        if self._task == "regression":
            return LabelSchema(column=self._column, kind=self._kind, values=(), positive=None), 1
        labels, classes = read_labels(values, task=self._task, positive=self._positive, source=self._where)
        counts = np.array([self._counts[value] for value in found])
        train, test = (np.flatnonzero(part > 0) for part in counts.T)
        check_split(
            labels,
            train,
            test,
            task=self._task,
            source=self._where,
            split_column=self._split_column,
            counts=counts.sum(axis=1),
        )
        positive = int(labels.argmax()) if self._task == "binary" else None
        return LabelSchema(column=self._column, kind=self._kind, values=tuple(found), positive=positive), classes


class LabelCoder:
    """Turns label cells into numbers.

    Args:
        schema: What the labels mean.
        task: What is learned.
    """

    def __init__(self, schema: LabelSchema, task: TaskName) -> None:
        self._task = task
        kind = pa.string() if schema.kind == "text" else pa.float64()
        self._values = pa.array(schema.values, kind)
        numbers = np.arange(len(schema.values))
        self._numbers = numbers if schema.positive is None else numbers == schema.positive

    @property
    def dtype(self) -> str:
        """Type of the numbers, as ``.npy`` files name it."""
        return LABEL_DTYPES[self._task]

    def encode(self, labels: pa.Array) -> tuple[Labels, int | None]:
        """Return the numbers, and the first row whose label is none of the known ones or too large, if there is one."""
        if self._task == "regression":
            with np.errstate(over="ignore"):
                real = labels.to_numpy().astype(np.float32)
            return real, first_true(~np.isfinite(real))
        places = pc.index_in(labels, value_set=self._values)
        unknown = places.is_null().to_numpy(zero_copy_only=False)
        numbers = self._numbers[places.fill_null(0).to_numpy()].astype(self.dtype)
        return numbers, first_true(unknown)


def first_true(mask: Mask) -> int | None:
    """Return the position of the first true entry, or ``None``."""
    return int(mask.argmax()) if mask.any() else None


def cell_value(text: str, kind: Kind) -> str | float:
    """Return a value that was given as text, as a column of this kind holds it.

    Raises:
        DataError: If the column holds numbers and this is none.
    """
    if kind == "text":
        return text
    truths: Sequence[str] = ("false", "true")
    if kind == "truth" and text.lower() in truths:
        return float(truths.index(text.lower()))
    try:
        return float(text)
    except ValueError:
        raise DataError(f"expected a number as in the column, got {text!r}") from None
