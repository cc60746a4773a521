"""Training and test rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.labels import Labels
from splitvfl.data.spelling import setting
from splitvfl.data.tables import Rows
from splitvfl.errors import ArgumentError, DataError


def random_split(labels: Labels, *, test_fraction: float, seed: int, stratified: bool) -> tuple[Rows, Rows]:
    """Return positions of training and test rows, each ascending.

    Args:
        labels: One per row.
        test_fraction: Share of the rows to test on, in (0, 1).
        seed: Decides which.
        stratified: Keep the classes' proportions in both parts.

    Raises:
        ArgumentError: If the fraction lies outside (0, 1).
        DataError: If there are too few rows, in total or of one class.
    """
    # Takes a second to import, which `splitvfl --help` need not wait for.
    from sklearn.model_selection import train_test_split

    if not 0 < test_fraction < 1:
        raise ArgumentError(f"expected test_fraction in (0, 1), got {test_fraction}")
    try:
        train, test = train_test_split(
            np.arange(len(labels)),
            test_size=test_fraction,
            random_state=seed,
            stratify=labels if stratified else None,
        )
    except ValueError as error:
        raise DataError(
            f"{len(labels)} rows cannot be split with {setting('test_fraction', test_fraction)}: {error}"
        ) from error
    return np.sort(train), np.sort(test)


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
