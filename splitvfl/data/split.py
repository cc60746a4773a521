"""Training and test rows."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.labels import Labels, class_named
from splitvfl.data.spelling import setting
from splitvfl.data.tables import Rows
from splitvfl.errors import ArgumentError, DataError


def random_split(
    labels: Labels, *, test_fraction: float, seed: int, stratified: bool, source: str = "the label column"
) -> tuple[Rows, Rows]:
    """Return positions of training and test rows, each ascending.

    A stratified division is made from labels and reveals them to everybody who sees it: counts of the classes and the
    seed give an AUC of 0.83 and more. No guarantee covers that.

    Args:
        labels: One per row.
        test_fraction: Share of the rows to test on, in (0, 1).
        seed: Decides which.
        stratified: Keep the classes' proportions in both parts.
        source: What to call the labels in messages.

    Raises:
        ArgumentError: If the fraction lies outside (0, 1).
        DataError: If there are too few rows, in total or of one class.
    """
    if not 0 < test_fraction < 1:
        raise ArgumentError(f"expected test_fraction in (0, 1), got {test_fraction}")
    _check_enough(labels, test_fraction, stratified, source)
    # Takes a second to import, which `splitvfl --help` need not wait for.
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=test_fraction,
        random_state=seed,
        stratify=labels if stratified else None,
    )
    return np.sort(train), np.sort(test)


def _check_enough(labels: Labels, test_fraction: float, stratified: bool, source: str) -> None:
    """Check that both parts get a record, and where classes keep their proportions, one of each class."""
    classes, counts = np.unique(labels, return_counts=True) if stratified else (labels[:1], np.array([len(labels)]))
    if stratified and counts.min(initial=2) < 2:
        single = classes[counts.argmin()]
        row = int(np.flatnonzero(labels == single)[0])
        error = DataError(
            f"{source} has one record of {class_named(single, labels)}, in row {row} (from 0); it needs 2 at least, "
            "one to train on and one to test on"
        )
        error.row = row
        raise error
    tested = math.ceil(test_fraction * len(labels))
    needed = max(len(classes) if stratified else 1, 1)
    parts = {"test": tested, "training": len(labels) - tested}
    for part, records in parts.items():
        if records < needed:
            of_each = f"{needed} at least, one of each class" if needed > 1 else "one at least"
            raise DataError(
                f"{len(labels)} records with {setting('test_fraction', test_fraction)} make {records} {part} records; "
                f"expected {of_each}"
            )


def split_by_column(column: pa.Array, *, test_value: object, source: str) -> tuple[Rows, Rows]:
    """Return positions of training and test rows: a row is tested on where the column equals ``test_value``.

    Raises:
        DataError: If no row, or every row, is a test row.
    """
    values = column.to_pylist()
    tested = np.array([value == test_value for value in values], bool)
    if not tested.any() or tested.all():
        found = pc.unique(column).to_pylist()[:8]
        raise DataError(f"{source} holds {found}; expected {test_value!r} in some rows and not in others")
    return np.flatnonzero(~tested), np.flatnonzero(tested)
