"""Training and test rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.hashing import are_tested
from splitvfl.data.spelling import setting
from splitvfl.data.tables import Rows
from splitvfl.errors import ArgumentError, DataError


def split_by_ids(
    ids: npt.NDArray[np.int64], *, test_fraction: float, seed: int, source: str = "the table"
) -> tuple[Rows, Rows]:
    """Return positions of training and test rows, each ascending; each id and the seed decide, and nothing else.

    The rule is :func:`splitvfl.data.hashing.are_tested`, in one process, at a party of a network and in ``splitvfl
    ingest`` alike. No label enters it: the partner sees which records are tested, and a division made from labels
    reveals them.

    Args:
        ids: One per row, all different, ``(n,)``.
        test_fraction: Expected fraction of test rows, in (0, 1).
        seed: Decides which, from 0 to 2⁶⁴ − 1.
        source: What to call the rows in messages.

    Raises:
        ArgumentError: If the fraction lies outside (0, 1).
        DataError: If a part is empty.
    """
    if not 0 < test_fraction < 1:
        raise ArgumentError(f"expected test_fraction in (0, 1), got {test_fraction}")
    tested = are_tested(ids, seed=seed, fraction=test_fraction)
    check_both_parts(len(ids), int(tested.sum()), test_fraction=test_fraction, source=source)
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def check_both_parts(rows: int, tested: int, *, test_fraction: float | None, source: str) -> None:
    """Check that rows divided by their ids give both parts a row.

    Raises:
        DataError: If not.
    """
    if 0 < tested < rows:
        return
    part, change = ("training", "a smaller") if tested else ("test", "a larger")
    raise DataError(
        f"{source} has no {part} record among {rows} with {setting('test_fraction', test_fraction)}, as each id "
        f"decides by itself; give another {setting('split_seed')}, {change} {setting('test_fraction')}, or more records"
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
