"""From a name or a file to what each party holds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from splitvfl.data.columns import Columns, PartyData, Records, TaskName, VerticalData
from splitvfl.data.encoding import Categorical, Encoded, Encoding, Missing, Scale, encode
from splitvfl.data.labels import Positive, check_split, read_labels
from splitvfl.data.partition import REST, Claim, divide, matching, patterns
from splitvfl.data.sets import DATA_SETS, DataSet, digit_labels, table_of
from splitvfl.data.split import Rows, random_split, record_ids, split_by_column
from splitvfl.data.tables import column_of, did_you_mean
from splitvfl.errors import ArgumentError


def load(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    label: str | None = None,
    task: TaskName | None = None,
    positive: Positive | None = None,
    digit: int | None = 8,
    active: Claim | None = None,
    passive: Mapping[str, Claim] | None = None,
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
        name: A key of :data:`DATA_SETS`; ``"table"`` for any file.
        path: The CSV or Parquet file. Without it, a known file name in the folder ``SPLITVFL_DATA``.
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
    if name not in DATA_SETS:
        raise ArgumentError(f"no data set {name!r}{did_you_mean(name, DATA_SETS)}")
    if name != "digits" and digit != 8:
        raise ArgumentError(f"digit={digit!r} is a setting of the digits set, not of {name}")
    data_set = DATA_SETS[name]
    claims = _claims(active_name, active, passive)
    encoding = _encoding(data_set.encoding, scale=scale, missing=missing, categorical=categorical, min_count=min_count)
    table, source = table_of(name, path)

    label = label or _label_name(data_set, table, name)
    split_column = split_column or _present(data_set.split_column, table)
    reserved = {label: "the label"}
    reserved |= {split_column: "the split column"} if split_column else {}
    reserved |= {id_column: "the id column"} if id_column else {}
    columns = {role: column_of(table, column, source=source) for column, role in reserved.items()}

    target, wanted = columns["the label"], task or data_set.task
    if name == "digits" and label == "digit":
        target, wanted = digit_labels(target, digit), task or ("multiclass" if digit is None else "binary")
    labels, classes = read_labels(
        target,
        task=wanted,
        positive=_positive(positive, data_set, target, wanted),
        source=f"label column {label!r} of {source}",
    )
    if split_column:
        where = f"split column {split_column!r} of {source}"
        train, test = split_by_column(columns["the split column"], test_value=test_value, source=where)
    else:
        train, test = random_split(
            labels, test_fraction=test_fraction, seed=split_seed, stratified=wanted != "regression"
        )
    check_split(labels, train, test, task=wanted, source=f"label column {label!r} of {source}")
    ids = record_ids(columns.get("the id column"), table.num_rows, source=f"id column {id_column!r} of {source}")

    features = [column for column in table.column_names if column not in reserved and column not in data_set.ignored]
    dropped = matching(patterns(drop), features, source=source, reserved=reserved)
    categories = _categories(categorical_columns, data_set, features, source, reserved)
    kept = [column for column in features if column not in dropped]
    reserved |= dict.fromkeys(dropped, "a dropped column")
    parties = {}
    for party, held in divide(kept, claims, source=source, reserved=reserved).items():
        encoded = encode(table, held, train=train, encoding=encoding, categories=categories, source=source)
        own_labels = torch.from_numpy(labels) if party == active_name else None
        parties[party] = _party_data(party, held, encoded, torch.from_numpy(ids), own_labels, train, test)
    return VerticalData(
        name=Path(source).stem if name == "table" else name,
        task=wanted,
        classes=classes,
        active=parties.pop(active_name),
        passives=parties,
        description=data_set.description if name != "table" else f"{source}: {table.num_rows} rows, label {label}",
    )
