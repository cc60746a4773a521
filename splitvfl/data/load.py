"""From a name or a table to what each party holds."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from splitvfl.data.cell_format import CellFormat, Origin, column_units, numbers_in_text, read_cells
from splitvfl.data.columns import Columns, PartyData, Provenance, Records, VerticalData
from splitvfl.data.doubts import Doubt, doubts_of, label_doubts
from splitvfl.data.encoding import Encoded, FittedEncoding
from splitvfl.data.fitting import fit_encoding
from splitvfl.data.id_column import ids_in_table, numbers_of, whole_number
from splitvfl.data.id_rules import FIRST_RULE
from splitvfl.data.labels import Labels, check_split, left_out, read_labels, with_label
from splitvfl.data.old_ids import of_file, record_ids
from splitvfl.data.partition import REST, ColumnClaim
from splitvfl.data.plain_columns import declared_categories
from splitvfl.data.ranges import as_ranges
from splitvfl.data.sets import DATA_SETS, TABLES, DataSet, digit_labels, file_of
from splitvfl.data.sources import open_one, origin_of, read_whole
from splitvfl.data.spec import Division, PartyClaim, TableSpec, check_parties
from splitvfl.data.spelling import setting
from splitvfl.data.split import split_by_column, split_by_ids
from splitvfl.data.store import open_tables
from splitvfl.data.tables import Rows, column_of, did_you_mean, is_text
from splitvfl.errors import ArgumentError, DataError

# Settings that say how cells are read.
_OF_CELLS = ("header", "text_columns", "missing_values", "decimal", "thousands", "units")


def load(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    digit: int | None = 8,
    active: ColumnClaim | None = None,
    passive: Mapping[str, ColumnClaim] | None = None,
    active_name: str = "active",
    **settings: Any,
) -> VerticalData:
    """Return a data set divided between parties, encoded, and split into training and test records.

    The same arguments give the same tensors. Settings left out, or ``None``, are the named set's own; for ``"table"``
    these are a binary task, standard scale, no missing numbers, and one-hot categories.

    Args:
        name: A key of :data:`DATA_SETS`; ``"table"`` for any file; ``"tables"`` for a folder that was ingested, where
            everything but its path is settled: see :func:`splitvfl.data.store.open_tables`.
        path: The CSV or Parquet file, or the folder. Without it, a known file name in the folder ``SPLITVFL_DATA``.
        digit: For ``"digits"`` and ``"mnist"``: the positive class, or ``None`` for all ten.
        active: The active party's columns, see :mod:`splitvfl.data.partition`; default none.
        passive: Each passive party's columns. Default: one party ``"passive"`` with the rest.
        active_name: Name of the party that holds the labels.
        settings: Attributes of :class:`splitvfl.data.spec.TableSpec`: ``label``, ``task``, ``positive``,
            ``unlabelled``, ``drop``, ``id_column``, ``test_fraction``, ``split_seed``, ``split_column``,
            ``test_value``, ``scale``, ``missing``, ``categorical``, ``categorical_columns``, ``min_count``, ``ranges``,
            ``missing_values``, ``decimal``, ``thousands``, ``units`` and the others.

    Raises:
        ArgumentError: If an argument is malformed, or means nothing for this set.
        DataError: If the file, its columns, labels or records are not what was asked for.

    >>> data = load("breast-cancer", active="mean *", passive={"lab": "rest"})
    >>> data.active.width, data["lab"].width, data["lab"].train.count, data["lab"].test.count
    (10, 20, 440, 129)
    """
    given = {key: value for key, value in settings.items() if value is not None}
    _check_settings(given)
    _check_path(path)
    if name == TABLES:
        claims = {"digit": digit, "active": active, "passive": passive, "active_name": active_name}
        return _ingested(path, claims | given)
    data_set = _named(name, digit)
    passives = {"passive": REST} if passive is None else passive
    parties = [
        PartyClaim(active_name, "active", () if active is None else active),
        *(PartyClaim(party, "passive", columns) for party, columns in passives.items()),
    ]
    _check_both(parties)
    table, origin = _read(name, file_of(name, path), given)
    spec, table = _completed(data_set, given, table, origin.name)
    if data_set.of_digits and spec.label in data_set.labels:
        spec, table = _of_digit(spec, table, digit, origin.name)
    data = _divided(spec, parties, table, origin)
    if name == "table":
        return data
    if data_set.make is not None:
        return replace(data, name=name, description=data_set.description)
    # A file of that name may hold other records than the published set.
    asked = f" (1 where it is {digit})" if data_set.of_digits and data.task == "binary" else ""
    return replace(data, name=name, description=f"{data.description}{asked}")


def load_table(spec: TableSpec, parties: Sequence[PartyClaim]) -> VerticalData:
    """Return a table divided between parties, encoded, and split into training and test records.

    Each column is encoded by itself and from training rows only, so that a party could do it alone.

    Args:
        spec: The table.
        parties: The active party, and one passive party at least.

    Raises:
        ArgumentError: If a setting means nothing for this table.
        DataError: If the file, its columns, labels or records are not what was asked for.
    """
    _check_both(parties)
    return _divided(spec, parties, *read_source(spec))


def read_source(spec: TableSpec) -> tuple[pa.Table, Origin]:
    """Return the whole table that a spec names, and where it comes from; its text is not looked at.

    Raises:
        ArgumentError: If it names none.
        DataError: If the file is not found or cannot be read, or there are several.
    """
    source = open_one(spec.source, header=spec.header, written=spec.written())
    text = {*spec.text(source.names, source=source.name), *spec.text_ids}
    return read_whole(source, text=text & {*source.names}), origin_of(source)


def as_written(
    spec: TableSpec, division: Division, table: pa.Table, columns: Sequence[str], origin: Origin
) -> tuple[pa.Table, CellFormat]:
    """Return a table whose text is read as a spec says, and how it is written.

    Args:
        spec: The table.
        division: Who holds which columns.
        table: All rows.
        columns: The columns that are needed, beside the label.
        origin: Where the table comes from.

    Raises:
        DataError: If a column of a file is text and looks like numbers, or a cell is none.
    """
    written = spec.written(table.column_names, source=origin.name)
    categories = spec.categories(division, source=origin.name) | declared_categories(table.schema)
    judged, declared = [name for name in columns if name not in categories], [*categories]
    if spec.label is not None:
        # Text of digits may be classes; a word among digits may not.
        label = column_of(table, spec.label, source=origin.name)
        found = numbers_in_text(label, written) if is_text(label) else None
        is_number = found is not None and (spec.task == "regression" or found.cells > 0)
        (judged if is_number else declared).append(spec.label)
    return read_cells(table, origin, written, judged=judged, declared=declared), written


def _divided(spec: TableSpec, parties: Sequence[PartyClaim], table: pa.Table, origin: Origin) -> VerticalData:
    source = origin.name
    if spec.label is None:
        raise ArgumentError(f"expected the name of the label column ({setting('label')}), got none")
    division = spec.divide(table.column_names, parties, source=source)
    table, written = as_written(spec, division, table, division.kept, origin)
    name, where = source, f"label column {spec.label!r} of {source}"
    target = column_of(table, spec.label, source=source)
    used = with_label(target, spec.unlabelled, source=where)
    if not used.all():
        table, source = (
            table.filter(pa.array(used)).combine_chunks(),
            f"{source} (of the rows with a label)",
        )
        target = column_of(table, spec.label, source=source)
    labels, classes = read_labels(target, task=spec.task, positive=spec.positive, source=where)
    split = split_rows(spec, table, source)
    check_split(labels, *split, task=spec.task, source=where, split_column=spec.split_column)
    ids = ids_of_rows(table, spec, source)
    held: dict[str, PartyData] = {}
    for party in parties:
        columns = division.held[party.name]
        fitted = fit(spec, division, table, columns, train=split[0], source=source)
        encoded = fitted.apply(table, source=source)
        check_input(party, encoded, split[0], source=source)
        own = labels if party.role == "active" else None
        train, test = (records_of(encoded, ids[rows], rows, own) for rows in split)
        provenance = Provenance(encoding=fitted, id_column=spec.id_column, id_rule=spec.id_rule)
        doubts = doubts_of(table, columns, categories=spec.categories(division, source=source), written=written)
        if party.role == "active":
            doubts += label_doubts(table, spec.label)
        own_part = (party.name, columns, encoded, train, test, provenance, doubts)
        held[party.name] = party_of(*own_part, divided_by_ids=spec.split_column is None)
        if party.role == "active" and not used.all():
            held[party.name] = replace(held[party.name], selected_by_label=True)
    active = next(party.name for party in parties if party.role == "active")
    return VerticalData(
        name=Path(name).stem,
        task=spec.task,
        classes=classes,
        active=held.pop(active),
        passives=held,
        description=f"{name}: {table.num_rows} rows, label {spec.label}{left_out(used)}",
    )


def fit(
    spec: TableSpec, division: Division, table: pa.Table, columns: Sequence[str], *, train: Rows, source: str
) -> FittedEncoding:
    """Return what the training rows say of how to encode some columns of a table.

    Raises:
        ArgumentError: If a column is to be scaled in two ways.
        DataError: If a name or pattern matches nothing, ranges are not as they must be, or a column cannot be encoded.
    """
    categories = spec.categories(division, source=source) | declared_categories(table.schema)
    numeric = [name for name in division.kept if name not in categories and not is_text(table.column(name))]
    fitted = fit_encoding(
        table,
        columns,
        train=train,
        encoding=spec,
        categories=categories,
        scales=spec.scales(numeric, division, source=source),
        ranges=as_ranges(spec.ranges),
        source=source,
    )
    written = spec.written(table.column_names, source=source)
    if not written.is_given:
        return fitted
    text = tuple(name for name in columns if name in written.text)
    units = column_units(table, columns) if written.units else {}
    return msgspec.structs.replace(fitted, written=msgspec.structs.replace(written, text=text, column_units=units))


def check_input(party: PartyClaim, encoded: Encoded, train: Rows, *, source: str) -> None:
    """Check that a passive party's model has anything to learn from; the active party may have labels alone.

    Args:
        party: The party.
        encoded: Its columns, of all rows.
        train: The training rows.
        source: Where they come from, for messages.

    Raises:
        DataError: If each of them is the same in all training rows, or none is left.
    """
    columns = (part[train, place] for part in (encoded.numeric, encoded.codes) for place in range(part.shape[1]))
    if party.role == "passive" and len(train) > 1 and not any((column != column[0]).any() for column in columns):
        raise no_input(party.name, source)


def no_input(name: str, source: str) -> DataError:
    """Return the error that a passive party has columns, and nothing can be learned from them."""
    return DataError(
        f"passive party {name!r} has no input left in {source}: each of its columns has one value only, or no category "
        f"with enough training rows ({setting('min_count')}); give it other columns, or leave the party out"
    )


def _check_settings(given: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(TableSpec) if field.name != "source"]
    for name in given:
        if name not in known:
            raise ArgumentError(f"no setting {name!r}{did_you_mean(name, known)}")


def _check_path(path: object) -> None:
    if path is not None and not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"expected path as the name of a file, got a {type(path).__name__}; tables in memory are for "
            "splitvfl.from_tables(active=table, passive={'lab': other}, label=..., id=...), with the columns of each "
            "party in a table of its own, such as table[['age', 'default']] and table[['usage']]"
        )


def _ingested(path: str | os.PathLike[str] | None, given: Mapping[str, Any]) -> VerticalData:
    if path is None:
        raise ArgumentError(f"data set {TABLES!r} needs the path of a folder that `splitvfl ingest` wrote")
    usual = {field.name: field.default for field in fields(TableSpec)}
    usual |= {name: parameter.default for name, parameter in inspect.signature(load).parameters.items()}
    changed = [name for name, value in given.items() if value != usual[name]]
    if changed:
        raise ArgumentError(
            f"{', '.join(changed)}: settled when the data were ingested; ingest them again to change it"
        )
    return open_tables(path)


def _named(name: str, digit: int | None) -> DataSet:
    if name not in DATA_SETS:
        raise ArgumentError(f"no data set {name!r}{did_you_mean(name, DATA_SETS)}")
    if not DATA_SETS[name].of_digits and digit != 8:
        raise ArgumentError(f"digit={digit!r} is a setting of the sets digits and mnist, not of {name}")
    return DATA_SETS[name]


def _check_both(parties: Sequence[PartyClaim]) -> None:
    check_parties(parties)
    roles = [party.role for party in parties]
    for role in ("active", "passive"):
        if role not in roles:
            raise ArgumentError(f"expected one {role} party at least, got none")


def _read(name: str, file: Path | None, given: Mapping[str, Any]) -> tuple[pa.Table, Origin]:
    make = DATA_SETS[name].make
    if make is not None:
        return make(), Origin(name, lambda row: f"{name}, row {row} (from 0)", typed=True, is_file=False)
    read = DATA_SETS[name].read
    if read is not None:
        assert file is not None, "it is no bundled set"
        return read(file), Origin(
            file.name, lambda row: f"{file.name}, image {row} (from 0)", typed=True, is_file=False
        )
    how = {key: given[key] for key in (*_OF_CELLS, "id_column", "id_rule") if key in given}
    return read_source(TableSpec(source=file, **how))


def _completed(data_set: DataSet, given: Mapping[str, Any], table: pa.Table, source: str) -> tuple[TableSpec, pa.Table]:
    """Return the settings of a named set, where none are given instead, and the table without what it ignores."""
    # The first name when there is none, so that the error names what was looked for.
    label = next((name for name in data_set.labels if name in table.column_names), next(iter(data_set.labels), None))
    split_column = data_set.split_column if data_set.split_column in table.column_names else None
    own = {"task": data_set.task, "label": label, "split_column": split_column, **asdict(data_set.encoding)}
    spec = TableSpec(**own | dict(given))
    roles = spec.roles(table.column_names, source=source)
    table = table.drop_columns([name for name in data_set.ignored if name in table.column_names and name not in roles])
    if "categorical_columns" not in given:
        features = [name for name in table.column_names if name not in roles]
        spec = replace(spec, categorical_columns=tuple(name for name in data_set.categories if name in features))
    text = spec.label is not None and is_text(table.column(spec.label))
    if spec.positive is None and spec.task == "binary" and text:
        spec = replace(spec, positive=data_set.positive)
    return spec, table


def _of_digit(spec: TableSpec, table: pa.Table, digit: int | None, source: str) -> tuple[TableSpec, pa.Table]:
    assert spec.label is not None
    column = column_of(table, spec.label, source=source)
    target = digit_labels(column, digit)
    if digit is not None and len(set(target.to_pylist())) == 1:
        raise DataError(
            f"label column {spec.label!r} of {source} is {digit} in {'every' if target[0].as_py() else 'no'} row; "
            f"{setting('digit', digit)} needs rows of that digit and of others"
        )
    table = table.set_column(table.column_names.index(spec.label), spec.label, target)
    return replace(spec, task="multiclass" if digit is None else spec.task), table


def split_rows(spec: TableSpec, table: pa.Table, source: str) -> tuple[Rows, Rows]:
    """Return the training and the test rows of a table, each ascending: by its split column, or else by its ids.

    Raises:
        DataError: If a part is empty, an id is missing or there twice, the split column says nothing, or an earlier
            version made the division.
    """
    if spec.split_column is None:
        if spec.split_by == "labels":
            raise DataError(
                f"an earlier version divided {source}, by the labels where there are classes, and so revealed labels "
                "to the partner. This version divides by ids and would test other records: train again; the old run "
                "still predicts new records (--records, or predict(records))"
            )
        ids = numbers_of_rows(table, spec, source)
        return split_by_ids(ids, test_fraction=spec.test_fraction, seed=spec.split_seed, source=source)
    column = column_of(table, spec.split_column, source=source)
    where = f"split column {spec.split_column!r} of {source}"
    return split_by_column(column, test_value=spec.test_value, source=where)


def numbers_of_rows(table: pa.Table, spec: TableSpec, source: str) -> Rows:
    """Return the numbers by which every party knows the rows of a table: those of their ids, or else from 0.

    Raises:
        DataError: If an id is missing or there twice, or two ids have one number.
    """
    if spec.id_column is None:
        return np.arange(table.num_rows, dtype=np.int64)
    cells = column_of(table, spec.id_column, source=source)
    if spec.id_rule == FIRST_RULE:
        return of_file(cells, source=f"id column {spec.id_column!r} of {source}")
    return numbers_of(cells, spec.id_column, source)


def ids_of_rows(table: pa.Table, spec: TableSpec, source: str) -> Rows:
    """Return the numbers by which rows are known in one process: their ids if all are whole numbers, else from 0.

    Raises:
        DataError: If an id is missing or there twice.
    """
    if spec.id_column is None:
        return np.arange(table.num_rows, dtype=np.int64)
    cells = column_of(table, spec.id_column, source=source)
    if spec.id_rule == FIRST_RULE:
        return record_ids(cells, source=f"id column {spec.id_column!r} of {source}")
    whole = [whole_number(name) for name in ids_in_table(cells, spec.id_column, source)]
    return np.arange(table.num_rows, dtype=np.int64) if None in whole else np.array(whole, np.int64)


def party_of(
    name: str,
    columns: tuple[str, ...],
    encoded: Encoded,
    train: Records,
    test: Records,
    provenance: Provenance | None = None,
    doubts: tuple[Doubt, ...] = (),
    *,
    divided_by_ids: bool = False,
) -> PartyData:
    """Return what a party holds whose table's columns became these numbers, and what is doubtful about them."""
    own = (columns, encoded.names, encoded.field_sizes, train, test, encoded.field_names, provenance, doubts)
    return PartyData(name, *own, divided_by_ids=divided_by_ids)


def records_of(
    encoded: Encoded, ids: Rows, rows: Rows, labels: Labels | None, *, real: npt.NDArray[np.bool_] | None = None
) -> Records:
    """Return records, called by these ids, whose columns and labels come from these rows of a table.

    Args:
        encoded: The table's columns.
        ids: One per record.
        rows: One per record.
        labels: Of all rows.
        real: Which records are no dummies; ``None``: all.
    """
    return Records(
        torch.tensor(ids),
        Columns(torch.from_numpy(encoded.numeric[rows]), torch.from_numpy(encoded.codes[rows])),
        None if labels is None else torch.from_numpy(labels[rows]),
        real=None if real is None or real.all() else torch.from_numpy(real),
    )
