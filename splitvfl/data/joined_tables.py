"""One table per party, as they come out of a data frame or a file, joined by the ids of their records."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from splitvfl.data.cell_format import Origin
from splitvfl.data.columns import PartyData, Provenance, VerticalData
from splitvfl.data.doubts import DoubtWarning, doubts_of, in_words, label_doubts
from splitvfl.data.id_column import ids_in_table, read_digests
from splitvfl.data.id_hints import would_match
from splitvfl.data.id_rules import RuleVersion
from splitvfl.data.labels import Mask, check_split, left_out, read_labels, with_label
from splitvfl.data.load import as_written, check_input, fit, ids_of_rows, party_of, records_of, split_rows
from splitvfl.data.named_rows import rows_called
from splitvfl.data.partition import matching, meant_by, patterns
from splitvfl.data.plain_columns import declared_categories
from splitvfl.data.same_order import refused
from splitvfl.data.schema import Role
from splitvfl.data.sources import open_one, origin_of, read_whole
from splitvfl.data.spec import PartyClaim, Patterns, TableSpec, check_parties
from splitvfl.data.tables import Rows, column_of, did_you_mean, is_text
from splitvfl.errors import ArgumentError, DataError

# Below this share of a table's records in common, its ids may be written differently, and its owner should look.
_FEW = 0.5
# Settings that each table may have otherwise.
_OF_CELLS = ("missing_values", "decimal", "thousands", "units")


def from_tables(
    *,
    active: object,
    passive: Mapping[str, object],
    label: str,
    id: str | Mapping[str, str] | None = None,
    active_name: str = "active",
    **settings: Any,
) -> VerticalData:
    """Return tables of several parties as one data set: joined, encoded, and split into training and test records.

    A party holds every column of its own table but ids, labels and dropped ones. Each column is encoded by itself and
    from training rows only. The result is to the bit that of files with the same columns, and what
    :func:`~splitvfl.data.load.load` returns for one file with all columns of the records in common.

    Records are joined by their ids, in the active party's order; those that are not in every table are left out, and
    :attr:`~splitvfl.data.columns.VerticalData.description` says how many. Ids are compared as ``splitvfl align``
    compares them (:mod:`splitvfl.data.id_column`): 7 in one table is ``"7"`` in another, and not ``"007"``. Without
    ``id`` all tables must have the same number of rows, and are taken to hold the same records in the same order,
    unless they say themselves that they do not (:mod:`splitvfl.data.same_order`).

    Args:
        active: The table of the party that holds the labels: pandas, polars, Arrow, a mapping from column names to
            arrays or tensors, an array or tensor of two dimensions, or the path of a CSV or Parquet file; see
            :func:`splitvfl.data.arrow_table.as_arrow`.
        passive: The other parties' tables by party name.
        label: The label column, in the active party's table.
        id: The column that names the records: one name for all tables, or a name by party. An index of pandas that has
            this name will do.
        active_name: Name of the party that holds the labels.
        settings: Attributes of :class:`splitvfl.data.spec.TableSpec`: ``task``, ``positive``, ``unlabelled``,
            ``scale``, ``scale_columns``, ``missing``, ``categorical``, ``categorical_columns``, ``min_count``,
            ``drop``, ``ranges``, ``missing_values``, ``decimal``, ``thousands``, ``units``, ``test_fraction``,
            ``split_seed``, ``split_column`` and ``test_value`` (of the active party's table). How cells are written
            (``missing_values``, ``decimal``, ``thousands``, ``units``) may be a mapping by party. Patterns of columns
            are looked for in all tables.

    Raises:
        ArgumentError: If an argument is malformed.
        DataError: If a table, its columns, labels or ids are not what was asked for, or no record is in every table; or
            if tables without ``id`` contradict that their rows are in the same order.

    Warns:
        UserWarning: If most of a table's records are left out, as they are not in every table, or more would be in
            every table if ids were written alike; it names the tables.
        DoubtWarning: If columns may not be what they were taken for, as numbers that are text because of a word; once
            for all of them, which are the parties' ``doubts`` (:mod:`splitvfl.data.doubts`).

    >>> bank = {"customer": [1, 2, 3, 4, 5, 6], "income": [3.0, 1, 4, 1, 5, 9], "default": [0, 1, 0, 1, 0, 1]}
    >>> lab = {"customer": [6, 5, 4, 3, 2, 9], "usage": [2.0, 7, 1, 8, 2, 8]}
    >>> data = from_tables(active=bank, passive={"lab": lab}, label="default", id="customer", test_fraction=0.4)
    >>> data.active.train.count + data.active.test.count, data["lab"].numeric_names
    (5, ('usage',))
    """
    parties = _parties(active, passive, active_name)
    common, cells = _spec(label, settings, parties)
    tables = [_read(table, common) for table in _opened(parties, _id_columns(id, parties), common, cells)]
    specs = _own_specs(tables, common)
    rows = _joined(tables, parties, common.id_rule)
    used = _labelled(tables[0], rows, common)
    taken = [table.taken(rows[table.name][used]) for table in tables]
    data = _divided(taken, specs, description=f"{_described(tables, rows, label)}{left_out(used)}")
    if not used.all():
        data = replace(data, active=replace(data.active, selected_by_label=True))
    _tell_doubts(data)
    return data


@dataclass(frozen=True, eq=False)
class _PartyTable:
    """One party's table.

    Attributes:
        name: The party.
        role: Its role.
        id_column: Which column names the records, if any does.
        table: The table.
        source: What to call it in messages.
        given: What it came from.
        origin: Where its rows stand.
        text: Columns that are named as text.
        cells: Settings that say how its cells are written, where each table has its own.
    """

    name: str
    role: Role
    id_column: str | None
    table: pa.Table
    source: str
    given: object
    origin: Origin
    text: tuple[str, ...] = ()
    cells: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows)

    @property
    def ids(self) -> list[str]:
        """Ids as all parties write them; the table has an id column."""
        assert self.id_column is not None
        return ids_in_table(column_of(self.table, self.id_column, source=self.source), self.id_column, self.source)

    def taken(self, rows: Rows) -> _PartyTable:
        """Return these rows of it, in their order."""
        if np.array_equal(rows, np.arange(self.rows)):
            return self
        table = self.table.take(pa.array(rows)).combine_chunks()
        return replace(self, table=table, source=f"{self.source} (rows counted as they are joined)")

    def rows_called(self) -> AbstractContextManager[None]:
        """Have errors about a row of it say which record that is, for the length of a block."""
        return rows_called(self.id_column, None if self.id_column is None else self.table.column(self.id_column))


# --- what was given


def _spec(
    label: object, settings: Mapping[str, Any], parties: Collection[str]
) -> tuple[TableSpec, dict[str, dict[str, Any]]]:
    """Return the settings of all tables, and those of each that say how its cells are written."""
    own = {"source": "active= and passive=", "label": "label=", "id_column": "id="}
    known = [one.name for one in fields(TableSpec) if one.name not in own]
    for name in settings:
        if name in own:
            raise ArgumentError(f"from_tables takes {own[name]}, not {name}=")
        if name not in known:
            raise ArgumentError(f"no setting {name!r}{did_you_mean(name, known)}")
    if not isinstance(label, str):
        raise ArgumentError(f"expected label as the name of a column of the active table, got {type(label).__name__}")
    given = {name: value for name, value in settings.items() if value is not None}
    cells: dict[str, dict[str, Any]] = {party: {} for party in parties}
    for name in [name for name in _OF_CELLS if isinstance(given.get(name), Mapping)]:
        for party, value in given.pop(name).items():
            if party not in cells:
                raise ArgumentError(f"{name}: there is no party {party!r}{did_you_mean(str(party), parties)}")
            cells[party][name] = value
    return TableSpec(label=label, **given), cells


def _parties(active: object, passive: object, active_name: str) -> dict[str, object]:
    """Return the tables as they were given, by party, the active one first."""
    if not isinstance(passive, Mapping) or not all(isinstance(name, str) for name in passive):
        raise ArgumentError(
            "expected passive as a mapping from party names to tables, such as {'lab': table}, got "
            f"{type(passive).__name__}"
        )
    if not passive:
        raise ArgumentError("expected one passive party at least, got none")
    check_parties([PartyClaim(active_name, "active"), *(PartyClaim(name, "passive") for name in passive)])
    return {active_name: active, **passive}


def _id_columns(wanted: object, parties: Collection[str]) -> dict[str, str | None]:
    """Return the name of each party's id column."""
    if wanted is None or isinstance(wanted, str):
        return dict.fromkeys(parties, wanted)
    if not isinstance(wanted, Mapping):
        raise ArgumentError(f"expected id as a column's name, or a name by party, got {type(wanted).__name__}")
    if set(wanted) != set(parties):
        got = ", ".join(map(str, wanted)) or "none"
        raise ArgumentError(f"expected an id column for each of {', '.join(parties)}, got {got}")
    return dict(wanted)


def _opened(
    parties: Mapping[str, object],
    ids: Mapping[str, str | None],
    common: TableSpec,
    cells: Mapping[str, Mapping[str, Any]],
) -> list[_PartyTable]:
    sources = {
        name: open_one(
            _with_index(given, ids[name]),
            header=common.header,
            called=f"the table of {name}",
            written=replace(common, **cells[name]).written(),
        )
        for name, given in parties.items()
    }
    # Which columns of files are text has to be known before they are read.
    text = _shared_out(common.text_columns, {name: source.names for name, source in sources.items()})
    found: list[_PartyTable] = []
    for name, source in sources.items():
        own = matching(text[name], source.names, source=source.name)
        texts = {*own, *replace(common, id_column=ids[name]).text_ids}
        read = read_whole(source, text=texts & {*source.names})
        given = parties[name] if isinstance(parties[name], str | os.PathLike) else read
        role: Role = "passive" if found else "active"
        found.append(_PartyTable(name, role, ids[name], read, source.name, given, origin_of(source), own, cells[name]))
    return found


def _read(table: _PartyTable, common: TableSpec) -> _PartyTable:
    """Return a table whose text is read as the settings say."""
    spec = _without_patterns(common, table)
    features = _features(table, spec)
    dropped, categories = (_meaning(wanted, features) for wanted in (common.drop, common.categorical_columns))
    spec = replace(spec, drop=dropped, categorical_columns=categories)
    division = spec.divide(table.table.column_names, [PartyClaim(table.name, table.role)], source=table.source)
    try:
        return replace(table, table=as_written(spec, division, table.table, division.kept, table.origin)[0])
    except DataError as error:
        if not spec.written().is_given:
            raise
        raise DataError(
            f"{error}. If only the table of {table.name} is written so, set it for that party alone: "
            f"parties.{table.name}.SETTING in an experiment, SETTING={{{table.name!r}: ...}} in Python"
        ) from error


def _with_index(given: Any, id_column: str | None) -> Any:
    """Return a pandas table whose index is the ids with a column of them."""
    names = getattr(getattr(given, "index", None), "names", ())
    is_index = id_column is not None and id_column in names and id_column not in given.columns
    return given.reset_index() if is_index else given


# --- the records in common


def _labelled(active: _PartyTable, rows: Mapping[str, Rows], spec: TableSpec) -> Mask:
    """Return which of the common records are used: those that have a label, where others are left out."""
    assert spec.label is not None
    labels = column_of(active.table, spec.label, source=active.source).take(pa.array(rows[active.name]))
    return with_label(labels, spec.unlabelled, source=f"label column {spec.label!r} of {active.source}")


def _joined(tables: Sequence[_PartyTable], given: Mapping[str, object], rule: RuleVersion) -> dict[str, Rows]:
    """Return which rows of each table are the common records, in the active party's order."""
    if tables[0].id_column is None:
        _check_counts(tables)
        contradicted = refused(given, {table.name: table.table for table in tables})
        if contradicted:
            raise DataError(contradicted)
        return {table.name: np.arange(table.rows, dtype=np.int64) for table in tables}
    places = {table.name: _places(table, table.id_column, rule) for table in tables if table.id_column is not None}
    first, *others = places.values()
    common = [name for name in first if all(name in other for other in others)]
    _check_common(len(common), tables)
    return {party: np.array([rows[name] for name in common], np.int64) for party, rows in places.items()}


def _check_counts(tables: Sequence[_PartyTable]) -> None:
    if len({table.rows for table in tables}) > 1:
        counts = ", ".join(f"{table.name} has {table.rows}" for table in tables)
        raise DataError(
            f"expected the same records in every table, as id= names no column of ids: {counts} rows; name the column "
            "that tells which record is which"
        )


def _places(table: _PartyTable, id_column: str, rule: RuleVersion) -> dict[bytes, int]:
    """Return each id's row."""
    digests = read_digests(table.given, id_column, called=table.source, rule=rule)
    return {digest.tobytes(): row for row, digest in enumerate(digests)}


def _check_common(count: int, tables: Sequence[_PartyTable]) -> None:
    columns = ", ".join(f"column {table.id_column!r} of {table.source}" for table in tables)
    hint = _would_match(tables) if any(count < table.rows for table in tables) else ""
    asked = hint or "are ids written alike? 7 is '7', and '007' is another"
    if not count:
        raise DataError(f"no id is in every table ({columns}); {asked}")
    losing = [table for table in tables if count < table.rows if hint or count < _FEW * table.rows]
    if losing:
        lost = ", ".join(f"{table.rows - count} of the {table.rows} records of {table.name}" for table in losing)
        warnings.warn(f"{lost} are left out, as only {count} are in every table ({columns}); {asked}", stacklevel=4)


def _would_match(tables: Sequence[_PartyTable]) -> str:
    """Return in words how many records more would be common, were ids written alike."""
    names = {table.name: table.ids for table in tables}
    first, *others = names
    hints = {name: would_match(names[first], names[name]) for name in others}
    return ", and ".join(f"{first} and {name}: {hint}" for name, hint in hints.items() if hint)


def _described(tables: Sequence[_PartyTable], rows: Mapping[str, Rows], label: str) -> str:
    """Return in one line how the tables were joined, and what was left out."""
    active, count = tables[0], len(rows[tables[0].name])
    if active.id_column is None:
        return f"{count} records, taken to be the same in every row of all tables (no id was named); label {label}"
    left = [f"{table.rows - count} of {table.rows} of {table.name}" for table in tables if table.rows > count]
    said = f"; not in every table, and left out: {', '.join(left)}" if left else ", which all tables have"
    if len({table.id_column for table in tables}) == 1:
        columns = str(active.id_column)
    else:
        columns = " and ".join(f"{table.id_column} of {table.name}" for table in tables)
    return f"{count} records joined by {columns}{said}; label {label}"


# --- columns


def _own_specs(tables: Sequence[_PartyTable], common: TableSpec) -> dict[str, TableSpec]:
    """Return each table's spec, with the names and patterns that mean columns of it; each must mean one somewhere."""
    specs = {table.name: _without_patterns(common, table) for table in tables}
    features = {table.name: _features(table, specs[table.name]) for table in tables}
    dropped, categories = (_shared_out(wanted, features) for wanted in (common.drop, common.categorical_columns))
    for table in tables:
        _check_no_label(table, common.label, matching(dropped[table.name], features[table.name], source=table.source))
    numeric = {table.name: _numeric(table, features[table.name], categories[table.name]) for table in tables}
    scales = {scale: _shared_out(wanted, numeric) for scale, wanted in common.scale_columns.items()}
    return {
        name: replace(
            spec,
            drop=dropped[name],
            categorical_columns=categories[name],
            scale_columns={scale: shared[name] for scale, shared in scales.items() if shared[name]},
        )
        for name, spec in specs.items()
    }


def _check_no_label(table: _PartyTable, label: str | None, dropped: Collection[str]) -> None:
    if table.role == "passive" and label in table.table.column_names and label not in dropped:
        raise DataError(
            f"{table.source} has a column {label!r}, which is the label: passive party {table.name!r} would hold the "
            "labels; take it out of that table"
        )


def _without_patterns(common: TableSpec, table: _PartyTable) -> TableSpec:
    own = replace(
        common,
        id_column=table.id_column,
        drop=(),
        categorical_columns=(),
        scale_columns={},
        text_columns=table.text,
        **table.cells,
    )
    if table.role == "active":
        return own
    # Another party's copy of the split is no feature either.
    split = common.split_column if common.split_column in table.table.column_names else None
    return replace(own, label=None, split_column=split)


def _features(table: _PartyTable, spec: TableSpec) -> list[str]:
    roles = spec.roles(table.table.column_names, source=table.source)
    return [name for name in table.table.column_names if name not in roles]


def _numeric(table: _PartyTable, features: Sequence[str], categories: Patterns) -> list[str]:
    named = {
        *matching(patterns(categories), features, source=table.source),
        *declared_categories(table.table.schema),
    }
    return [name for name in features if name not in named and not is_text(table.table.column(name))]


def _shared_out(wanted: Patterns, columns: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Return by table the names and patterns that mean a column of it.

    Raises:
        DataError: If one means a column of none.
    """
    everywhere = list(dict.fromkeys(name for names in columns.values() for name in names))
    matching(patterns(wanted), everywhere, source="the tables")
    return {table: _meaning(wanted, list(names)) for table, names in columns.items()}


def _meaning(wanted: Patterns, names: Sequence[str]) -> tuple[str, ...]:
    known = frozenset(names)
    return tuple(one for one in patterns(wanted) if one in known or meant_by(one, names))


# --- records


def _divided(tables: Sequence[_PartyTable], specs: Mapping[str, TableSpec], *, description: str) -> VerticalData:
    active = tables[0]
    spec = specs[active.name]
    assert spec.label is not None
    where = f"label column {spec.label!r} of {active.source}"
    target = column_of(active.table, spec.label, source=active.source)
    with active.rows_called():
        labels, classes = read_labels(target, task=spec.task, positive=spec.positive, source=where)
        split = split_rows(spec, active.table, active.source)
        check_split(labels, *split, task=spec.task, source=where, split_column=spec.split_column)
    ids = ids_of_rows(active.table, spec, active.source)
    held: dict[str, PartyData] = {}
    for table in tables:
        own = specs[table.name]
        party = PartyClaim(table.name, table.role)
        division = own.divide(table.table.column_names, [party], source=table.source)
        columns = division.held[table.name]
        with table.rows_called():
            fitted = fit(own, division, table.table, columns, train=split[0], source=table.source)
            encoded = fitted.apply(table.table, source=table.source)
        check_input(party, encoded, split[0], source=table.source)
        train, test = (records_of(encoded, ids[part], part, labels if table is active else None) for part in split)
        provenance = Provenance(encoding=fitted, id_column=own.id_column, id_rule=own.id_rule)
        doubts = doubts_of(
            table.table,
            columns,
            categories=own.categories(division, source=table.source),
            written=own.written(table.table.column_names, source=table.source),
        )
        if table is active:
            doubts += label_doubts(table.table, spec.label)
        by_ids = spec.split_column is None
        held[table.name] = party_of(
            table.name, columns, encoded, train, test, provenance, doubts, divided_by_ids=by_ids
        )
    return VerticalData(
        name="tables in memory",
        task=spec.task,
        classes=classes,
        active=held.pop(active.name),
        passives=held,
        description=description,
    )


def _tell_doubts(data: VerticalData) -> None:
    parties = (data.active, *data.passives.values())
    lines = [f"{party.name}: {line}" for party in parties for line in in_words(party.doubts)]
    if lines:
        warnings.warn("\n  ".join(["columns may not be what they were taken for", *lines]), DoubtWarning, stacklevel=3)
