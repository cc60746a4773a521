"""From a name or a file to what each party holds."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from splitvfl.data.columns import Columns, PartyData, Records, TaskName, VerticalData
from splitvfl.data.encoding import Categorical, Encoded, Encoding, Missing, Scale, encode
from splitvfl.data.labels import Labels, Positive, check_split, read_labels
from splitvfl.data.partition import REST, ColumnClaim, divide, matching, patterns
from splitvfl.data.sets import DATA_SETS, TABLES, DataSet, digit_labels, table_of
from splitvfl.data.split import random_split, record_ids, split_by_column
from splitvfl.data.store import open_tables
from splitvfl.data.tables import Rows, column_of, did_you_mean, is_text
from splitvfl.errors import ArgumentError, DataError


def load(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    label: str | None = None,
    task: TaskName | None = None,
    positive: Positive | None = None,
    digit: int | None = 8,
    active: ColumnClaim | None = None,
    passive: Mapping[str, ColumnClaim] | None = None,
    active_name: str = "active",
    drop: str | Sequence[str] = (),
    id_column: str | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    split_column: str | None = None,
    test_value: str | float = "test",
    scale: Scale | None = None,
    missing: Missing | None = None,
    categorical: Categorical | None = None,
    categorical_columns: str | Sequence[str] | None = None,
    min_count: int | None = None,
) -> VerticalData:
    """Return a data set divided between parties, encoded, and split into training and test records.

    The same arguments give the same tensors. Settings left at ``None`` are the named set's own; for ``"table"`` these
    are a binary task, standard scale, no missing numbers, and one-hot categories. Each column is encoded by itself and
    from training rows only, so that a party could do it alone.

    Args:
        name: A key of :data:`DATA_SETS`; ``"table"`` for any file; ``"tables"`` for a folder that was ingested, where
            everything but its path is settled: see :func:`splitvfl.data.store.open_tables`.
        path: The CSV or Parquet file, or the folder. Without it, a known file name in the folder ``SPLITVFL_DATA``.
        label: Name of the label column.
        task: ``"binary"``, ``"multiclass"`` or ``"regression"``.
        positive: Which of two label values is the positive class; not needed for 0 and 1.
        digit: For ``"digits"``: the positive class, or ``None`` for all ten.
        active: The active party's columns, see :mod:`splitvfl.data.partition`; default none.
        passive: Each passive party's columns. Default: one party ``"passive"`` with the rest.
        active_name: Name of the party that holds the labels.
        drop: Columns that nobody gets, as names and patterns; applied before any claim.
        id_column: Column that names the records; see :func:`splitvfl.data.split.record_ids`.
        test_fraction: Share of records to test on, stratified by class.
        split_seed: Decides which.
        split_column: Column that decides it instead.
        test_value: What that column holds in test rows.
        scale: See :class:`splitvfl.data.encoding.Encoding`, as for the next two.
        missing: ``"error"`` or ``"indicator"``.
        categorical: ``"onehot"`` or ``"index"``.
        categorical_columns: Numeric columns that hold categories, as names and patterns; text always does.
        min_count: Rarer categories count as unknown.

    Raises:
        ArgumentError: If an argument is malformed, or means nothing for this set.
        DataError: If the file, its columns, labels or records are not what was asked for.

    >>> data = load("breast-cancer", active="mean *", passive={"lab": "rest"})
    >>> data.active.width, data["lab"].width, data["lab"].train.count, data["lab"].test.count
    (10, 20, 455, 114)
    """
    if name == TABLES:
        return _ingested(path, locals())
    data_set = _named(name, digit)
    claims = _claims(active_name, active, passive)
    encoding = encoding_of(
        data_set.encoding, scale=scale, missing=missing, categorical=categorical, min_count=min_count
    )
    table, source = table_of(name, path)
    label = label or _label_name(data_set, table)
    split_column = split_column or _present(data_set.split_column, table)
    reserved = reserved_columns({"the label": label, "the id column": id_column, "the split column": split_column})
    features = [column for column in table.column_names if column not in reserved and column not in data_set.ignored]

    target = column_of(table, label, source=source)
    where = f"label column {label!r} of {source}"
    task = task or data_set.task
    if name == "digits" and label in data_set.labels:
        target, task = digit_labels(target, digit), "multiclass" if digit is None else task
    if positive is None and task == "binary" and is_text(target):
        positive = data_set.positive
    labels, classes = read_labels(target, task=task, positive=positive, source=where)
    if split_column:
        column = column_of(table, split_column, source=source)
        split = split_by_column(column, test_value=test_value, source=f"split column {split_column!r} of {source}")
    else:
        split = random_split(labels, test_fraction=test_fraction, seed=split_seed, stratified=task != "regression")
    check_split(labels, *split, task=task, source=where)
    ids = _ids(table, id_column, source)

    dropped = matching(patterns(drop), features, source=source, reserved=reserved)
    kept = [column for column in features if column not in dropped]
    held = divide(kept, claims, source=source, reserved=reserved | dict.fromkeys(dropped, "a dropped column"))
    categories = _categories(categorical_columns, data_set, features, source)
    parties: dict[str, PartyData] = {}
    for party, columns in held.items():
        if not columns and party != active_name:
            raise DataError(f"passive party {party!r} is left without a column of {source}")
        encoded = encode(table, columns, train=split[0], encoding=encoding, categories=categories, source=source)
        parties[party] = _party_data(party, columns, encoded, ids, labels if party == active_name else None, split)
    return VerticalData(
        name=Path(source).stem if name == "table" else name,
        task=task,
        classes=classes,
        active=parties.pop(active_name),
        passives=parties,
        description=f"{source}: {table.num_rows} rows, label {label}" if name == "table" else data_set.description,
    )


def _ingested(path: str | os.PathLike[str] | None, arguments: Mapping[str, Any]) -> VerticalData:
    if path is None:
        raise ArgumentError(f"data set {TABLES!r} needs the path of a folder that `splitvfl ingest` wrote")
    defaults = {name: parameter.default for name, parameter in inspect.signature(load).parameters.items()}
    given = [name for name, value in arguments.items() if name not in ("name", "path") and value != defaults[name]]
    if given:
        raise ArgumentError(f"{', '.join(given)}: settled when the data were ingested; ingest them again to change it")
    return open_tables(path)


def _named(name: str, digit: int | None) -> DataSet:
    if name not in DATA_SETS:
        raise ArgumentError(f"no data set {name!r}{did_you_mean(name, DATA_SETS)}")
    if name != "digits" and digit != 8:
        raise ArgumentError(f"digit={digit!r} is a setting of the digits set, not of {name}")
    return DATA_SETS[name]


def _claims(
    active_name: str, active: ColumnClaim | None, passive: Mapping[str, ColumnClaim] | None
) -> dict[str, ColumnClaim]:
    passive = {"passive": REST} if passive is None else passive
    if not passive:
        raise ArgumentError("expected one passive party at least, got none")
    if active_name in passive:
        raise ArgumentError(f"{active_name!r} is the active party's name and a passive party's; they must differ")
    return {active_name: () if active is None else active, **passive}


def encoding_of(default: Encoding, **settings: Any) -> Encoding:
    """Return an encoding with some settings changed; those that are ``None`` stay as they are."""
    return replace(default, **{name: value for name, value in settings.items() if value is not None})


def _label_name(data_set: DataSet, table: pa.Table) -> str:
    if not data_set.labels:
        raise ArgumentError("expected the name of the label column (`label`), got none")
    # The first name when there is none, so that the error names what was looked for.
    return next((name for name in data_set.labels if name in table.column_names), data_set.labels[0])


def _present(column: str | None, table: pa.Table) -> str | None:
    return column if column in table.column_names else None


def reserved_columns(roles: Mapping[str, str | None]) -> dict[str, str]:
    """Return the columns that are no features, and what they are instead.

    Args:
        roles: Columns by what they are; ``None`` where there is none.

    Raises:
        ArgumentError: If one column is two things.
    """
    reserved: dict[str, str] = {}
    for role, column in roles.items():
        if column is not None and reserved.setdefault(column, role) != role:
            raise ArgumentError(f"column {column!r} cannot be both {reserved[column]} and {role}")
    return reserved


def _ids(table: pa.Table, id_column: str | None, source: str) -> Rows:
    if id_column is None:
        return np.arange(table.num_rows, dtype=np.int64)
    return record_ids(column_of(table, id_column, source=source), source=f"id column {id_column!r} of {source}")


def _categories(
    wanted: str | Sequence[str] | None, data_set: DataSet, features: Sequence[str], source: str
) -> frozenset[str]:
    if wanted is None:
        return frozenset(data_set.categories)
    return frozenset(matching(patterns(wanted), features, source=source))


def _party_data(
    name: str,
    columns: tuple[str, ...],
    encoded: Encoded,
    ids: Rows,
    labels: Labels | None,
    split: tuple[Rows, Rows],
) -> PartyData:
    train, test = (
        Records(
            torch.from_numpy(ids[rows]),
            Columns(torch.from_numpy(encoded.numeric[rows]), torch.from_numpy(encoded.codes[rows])),
            None if labels is None else torch.from_numpy(labels[rows]),
        )
        for rows in split
    )
    return PartyData(name, columns, encoded.names, encoded.field_sizes, train, test, encoded.field_names)
