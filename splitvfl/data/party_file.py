"""One party's data out of its own file: no other party's columns, models or secrets are needed, or known."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from splitvfl.data.alignment import Alignment, read_alignment
from splitvfl.data.columns import Columns, PartyData, Records, TaskName
from splitvfl.data.encoding import Categorical, Encoded, Encoding, FittedEncoding, Missing, Scale, fit_encoding
from splitvfl.data.ingest.aligned import fill_dummies
from splitvfl.data.ingest.hashing import are_tested
from splitvfl.data.ingest.records import ids_of
from splitvfl.data.labels import Labels, Positive, check_split, read_labels
from splitvfl.data.load import encoding_of, reserved_columns
from splitvfl.data.partition import REST, ColumnClaim, divide, matching, patterns
from splitvfl.data.schema import PARTS, Part, Role
from splitvfl.data.split import record_ids
from splitvfl.data.tables import Rows, column_of, read_table
from splitvfl.errors import ArgumentError, DataError


class PartyFile(NamedTuple):
    """What one party holds, and what is learned.

    Attributes:
        data: Its records.
        task: What is learned; ``None`` at a passive party, which need not know.
        classes: 2 for binary, k for multi-class, 1 for regression; 0 at a passive party.
        encoding: How its columns became numbers, to be kept for new records.
    """

    data: PartyData
    task: TaskName | None
    classes: int
    encoding: FittedEncoding


def load_party(
    path: str | os.PathLike[str],
    *,
    name: str,
    role: Role,
    columns: ColumnClaim = REST,
    drop: str | Sequence[str] = (),
    label: str | None = None,
    task: TaskName = "binary",
    positive: Positive | None = None,
    id_column: str | None = None,
    aligned: str | os.PathLike[str] | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    scale: Scale | None = None,
    missing: Missing | None = None,
    categorical: Categorical | None = None,
    categorical_columns: str | Sequence[str] = (),
    min_count: int | None = None,
) -> PartyFile:
    """Return what one party holds, encoded, and split into training and test records.

    The split looks at each record's id alone (:func:`splitvfl.data.ingest.hashing.are_tested`), as that of ``splitvfl
    ingest`` does: parties with the same ids, seed and fraction split alike without talking. Aligned records are in the
    order of their new ids. Others are in the file's order, called by the id column (whole numbers as they are, text by
    its hash), or numbered from 0 without one: parties must then have the same records in the same order.

    Dummies of a padded alignment, which the active party does not hold, get the columns and the label of a random
    record of their part, the same at every call: what they are filled from is kept in the alignment folder. They are
    marked in :attr:`splitvfl.data.columns.Records.real`.

    Args:
        path: The party's CSV or Parquet file.
        name: The party's name.
        role: ``"active"`` or ``"passive"``.
        columns: Its columns, see :mod:`splitvfl.data.partition`: names and patterns, a share, or ``"rest"`` for all.
            Columns that are not claimed are left out.
        drop: Columns that are left out before that, as names and patterns.
        label: The label column; at the active party, and there only.
        task: ``"binary"``, ``"multiclass"`` or ``"regression"``.
        positive: Which of two label values is the positive class; not needed for 0 and 1.
        id_column: Column that names the records. Default: that of the alignment.
        aligned: The folder that ``splitvfl align`` wrote.
        test_fraction: Expected share of test records, in (0, 1).
        split_seed: Decides which, from 0 to 2⁶⁴ − 1.
        scale: See :class:`splitvfl.data.encoding.Encoding`, as for the next two.
        missing: ``"error"`` or ``"indicator"``.
        categorical: ``"onehot"`` or ``"index"``.
        categorical_columns: Numeric columns that hold categories, as names and patterns; text always does.
        min_count: Rarer categories count as unknown.

    Raises:
        ArgumentError: If an argument is malformed, or does not go with the role or the alignment.
        DataError: If the file, its columns, labels or records are not what was asked for, or not those that were
            aligned.
    """
    _check(role, label, test_fraction, split_seed)
    alignment = None if aligned is None else own_alignment(read_alignment(aligned), name, role, id_column)
    id_column = id_column if alignment is None else alignment.schema.id_column
    table, source = read_table(Path(path)), Path(path).name
    reserved = reserved_columns({"the label": label, "the id column": id_column})
    held = _held(table, name, columns, drop, reserved, source)
    if not held and role == "passive":
        raise DataError(f"passive party {name!r} is left without a column of {source}")
    if alignment is None:
        order = _file_order(table, id_column, source)
    else:
        alignment.check_source(path)
        order = _Order(alignment.ids, alignment.rows, int(alignment.schema.secret, 16))
        table, source = _in_order(table, order), f"{source} (rows counted as they are aligned)"
    tested = are_tested(order.ids, seed=split_seed, fraction=test_fraction)
    split = np.flatnonzero(~tested[order.real]), np.flatnonzero(tested[order.real])
    _check_parts(name, split, test_fraction)
    labels, classes = _labels(table, label, task, positive, source, split)
    encoding = encoding_of(Encoding(), scale=scale, missing=missing, categorical=categorical, min_count=min_count)
    categories = frozenset(matching(patterns(categorical_columns), held, source=source, reserved=reserved))
    fitted = fit_encoding(table, held, train=split[0], encoding=encoding, categories=categories, source=source)
    encoded = fitted.apply(table, source=source)
    train, test = (_records(part, order, tested, encoded, labels) for part in PARTS)
    data = PartyData(name, held, encoded.names, encoded.field_sizes, train, test, encoded.field_names)
    return PartyFile(data, task if role == "active" else None, classes, fitted)


def _check(role: Role, label: str | None, test_fraction: float, split_seed: int) -> None:
    if role not in get_args(Role):
        raise ArgumentError(f"expected role active or passive, got {role!r}")
    if role == "active" and label is None:
        raise ArgumentError("the active party holds the labels: expected the name of the label column, got none")
    if role == "passive" and label is not None:
        raise ArgumentError(f"a passive party holds no labels, got label {label!r}; drop the column if it has one")
    if not 0 < test_fraction < 1:
        raise ArgumentError(f"expected test_fraction in (0, 1), got {test_fraction}")
    if not 0 <= split_seed < 1 << 64:
        raise ArgumentError(f"expected split_seed from 0 to 2**64 - 1, got {split_seed}")


def own_alignment(alignment: Alignment, name: str, role: Role, id_column: str | None) -> Alignment:
    """Return an alignment after a check that it is this party's, by this id column if one is named.

    Raises:
        DataError: If it is not.
    """
    schema = alignment.schema
    if (schema.party, schema.role) != (name, role):
        raise DataError(
            f"{alignment.folder} was aligned by {schema.party} as the {schema.role} party, not by {name} as the {role} "
            "one; name this party's own folder, or align again"
        )
    if id_column is not None and id_column != schema.id_column:
        raise DataError(
            f"{alignment.folder} was aligned by column {schema.id_column!r}, got id column {id_column!r}; leave it "
            "out, or align again"
        )
    return alignment


def _held(
    table: pa.Table, name: str, claim: ColumnClaim, drop: str | Sequence[str], reserved: dict[str, str], source: str
) -> tuple[str, ...]:
    features = [column for column in table.column_names if column not in reserved]
    dropped = matching(patterns(drop), features, source=source, reserved=reserved)
    kept = [column for column in features if column not in dropped]
    # What this party does not claim belongs to nobody, and is left out.
    claims: dict[str, ColumnClaim] = {name: claim} if claim == REST else {name: claim, f"not {name}": REST}
    held = divide(kept, claims, source=source, reserved=reserved | dict.fromkeys(dropped, "a dropped column"))
    return held[name]


@dataclass(frozen=True, eq=False)
class _Order:
    """The records of one party in their order.

    Attributes:
        ids: Their ids.
        rows: Their rows in the file; negative for a dummy.
        seed: What decides how dummies are filled.
    """

    ids: Rows
    rows: Rows
    seed: int = 0

    @property
    def real(self) -> npt.NDArray[np.bool_]:
        return self.rows >= 0


def _file_order(table: pa.Table, id_column: str | None, source: str) -> _Order:
    rows = np.arange(table.num_rows, dtype=np.int64)
    if id_column is None:
        return _Order(rows, rows)
    column = column_of(table, id_column, source=source)
    record_ids(column, source=f"id column {id_column!r} of {source}")  # no id is missing, and none is there twice
    ids = ids_of(column.cast(pa.string() if pa.types.is_large_string(column.type) else column.type))
    if len(np.unique(ids)) < len(ids):
        raise DataError(f"id column {id_column!r} of {source}: two texts have the same 63-bit hash; number the records")
    return _Order(ids, rows)


def _in_order(table: pa.Table, order: _Order) -> pa.Table:
    return table.take(pa.array(order.rows[order.real])).combine_chunks()


def _check_parts(name: str, split: tuple[Rows, Rows], test_fraction: float) -> None:
    train, test = map(len, split)
    if not train or not test:
        part = "training" if test else "test"
        raise DataError(
            f"{name} has no {part} record among {train + test} with test_fraction={test_fraction}; "
            "expected more records"
        )


def _labels(
    table: pa.Table, label: str | None, task: TaskName, positive: Positive | None, source: str, split: Sequence[Rows]
) -> tuple[Labels | None, int]:
    if label is None:
        return None, 0
    where = f"label column {label!r} of {source}"
    labels, classes = read_labels(column_of(table, label, source=source), task=task, positive=positive, source=where)
    check_split(labels, split[0], split[1], task=task, source=where)
    return labels, classes


def _records(
    part: Part, order: _Order, tested: npt.NDArray[np.bool_], encoded: Encoded, labels: Labels | None
) -> Records:
    mask = tested if part == "test" else ~tested
    real = order.real[mask]
    rows = fill_dummies(np.flatnonzero(mask[order.real]), real, seed=order.seed, part=part)
    return Records(
        torch.from_numpy(order.ids[mask]),
        Columns(torch.from_numpy(encoded.numeric[rows]), torch.from_numpy(encoded.codes[rows])),
        None if labels is None else torch.from_numpy(labels[rows]),
        real=None if order.real.all() else torch.from_numpy(real),
    )
