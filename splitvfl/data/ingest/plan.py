"""What is to be done with which column: settled before the first row is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never

import pyarrow as pa

from splitvfl.data.alignment import Alignment
from splitvfl.data.cell_format import AS_USUAL, CellFormat
from splitvfl.data.chunks import Kind, Mask, Source
from splitvfl.data.columns import TaskName
from splitvfl.data.drift import Profile
from splitvfl.data.encoding import Missing, Scale
from splitvfl.data.hashing import hash_key, key_name
from splitvfl.data.id_column import AS_IT_STANDS, check_id_column
from splitvfl.data.id_rules import FIRST_RULE
from splitvfl.data.ingest.records import cell_value
from splitvfl.data.labels import Positive
from splitvfl.data.partition import matching, patterns
from splitvfl.data.ranges import Bounds, as_ranges
from splitvfl.data.schema import (
    DataSchema,
    Encoder,
    HashEncoder,
    IdRule,
    LabelSchema,
    NumericEncoder,
    Role,
    SplitRule,
    read_data_schema,
    read_party_schema,
)
from splitvfl.data.sources import check_kinds, infer_kinds, open_all
from splitvfl.data.spec import Division, PartyClaim, Patterns, TableSpec, check_parties
from splitvfl.data.spelling import setting
from splitvfl.data.tables import did_you_mean, listed
from splitvfl.errors import ArgumentError, DataError


@dataclass(frozen=True, kw_only=True)
class Hashing:
    """Categories that are hashed instead of being listed. Code 0 then never occurs.

    Attributes:
        buckets: Number of codes.
        fields: Which fields to hash, as names and patterns; default all.
        secret: Key to hash with, 16 bytes at least; default a public one. With a secret key, whoever sees codes and not
            the key cannot try out which category has which; how often each code occurs is seen in any case. Only a
            fingerprint of the key is written.

    Raises:
        ArgumentError: If the number of codes is out of its range.
    """

    buckets: int
    fields: Patterns | None = None
    secret: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the number of codes."""
        # A code must fit into int32, with one more for missing values.
        if not 1 <= self.buckets < (1 << 31) - 2:
            raise ArgumentError(f"expected buckets from 1 to 2**31 - 3, got {self.buckets}")


@dataclass(frozen=True, kw_only=True)
class PartyPlan:
    """One party's name, role and columns."""

    name: str
    role: Role
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What an earlier ingest learned, to be used again.

    Attributes:
        folder: Its table folder.
        encoders: By column.
        label: What labels mean; ``None`` where the new files have none.
        classes: Number of classes, 0 without an active party.
        profiles: What its training values looked like, by column.
    """

    folder: Path
    encoders: Mapping[str, Encoder]
    label: LabelSchema | None
    classes: int
    profiles: Mapping[str, Profile]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done with which column.

    Attributes:
        name: Name of the data set.
        task: What is learned.
        label: The label column, where there is one.
        label_column: Its name, also where these files have none and earlier ones had.
        positive: Its positive value, where it is not 1.
        ids: How records are named.
        split: Which records are test records.
        dropped: Columns that nobody holds.
        parties: Who holds the others.
        kinds: What the cells of every column that is read hold.
        scales: The numeric columns, and how each is scaled.
        bounds: Their public bounds, where these take the place of what training rows show.
        vocabularies: Categorical columns whose categories are listed.
        hashed: Categorical columns that are hashed.
        missing: What happens to missing numbers.
        min_count: Training rows that a category needs to be listed.
        buckets: Codes of a hashed column.
        key: What they are hashed with.
        earlier: Where the encoders come from, if they are not learned now.
        aligned: Which rows are taken, and their new ids; ``None``: all, by their own ids.
        labelled: Which rows have a label, where others are left out; ``None``: all are taken.
        written: How cells are written.
        doubted: Columns of text of which nobody has said that they are no numbers.
    """

    name: str
    task: TaskName
    label: str | None
    label_column: str | None
    ids: IdRule
    split: SplitRule
    dropped: tuple[str, ...]
    parties: tuple[PartyPlan, ...]
    kinds: Mapping[str, Kind]
    scales: Mapping[str, Scale]
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    positive: Positive | None = None
    vocabularies: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    missing: Missing = "error"
    min_count: int = 1
    buckets: int = 0
    key: bytes = field(repr=False)
    earlier: Earlier | None = None
    aligned: Alignment | None = field(default=None, repr=False)
    labelled: Mask | None = field(default=None, repr=False)
    written: CellFormat = AS_USUAL
    doubted: tuple[str, ...] = ()

    @property
    def kept(self) -> Mask | None:
        """Which rows of the files are read; ``None``: all."""
        return self.labelled if self.aligned is None else self.aligned.kept

    @property
    def unlabelled(self) -> int:
        """Number of records that are left out, as they have no label."""
        return 0 if self.labelled is None else int((~self.labelled).sum())

    @property
    def types(self) -> dict[str, pa.DataType | None]:
        """The type that each column is read with; ids as they stand."""
        types: dict[str, pa.DataType | None] = {
            name: read_type(kind, numeric=name in self.scales or name == self.label)
            for name, kind in self.kinds.items()
        }
        if self.ids.as_written and self.ids.column is not None:
            types[self.ids.column] = AS_IT_STANDS
        return types


def read_type(kind: Kind, *, numeric: bool) -> pa.DataType:
    """Return the type that a column is read with; numeric columns are wanted as float64."""
    match kind:
        case "text":
            return pa.string()
        case "truth":
            return pa.bool_()
        case "integer":
            return pa.float64() if numeric else pa.int64()
        case "number":
            return pa.float64()
        case _:
            assert_never(kind)


def open_sources(spec: TableSpec, parties: Sequence[PartyClaim]) -> tuple[Source, ...]:
    """Return the files of a spec, or the table in memory, whose cells are read as it says.

    Raises:
        ArgumentError: If it names neither, or as :func:`make_plan`.
        DataError: If a file cannot be read, or has other columns than the first, or as :func:`make_plan`.
    """
    sources = open_all(spec.source, header=spec.header)
    names, where = sources[0].names, sources[0].name
    written = spec.written(names, source=where)
    declared = {*spec.categories(spec.divide(names, parties, source=where), source=where)}
    declared |= {name for name in (spec.id_column, spec.split_column) if name is not None}
    if spec.label is not None and spec.task != "regression":
        declared.add(spec.label)
    for source in sources:
        source.written, source.declared = written, frozenset(declared)
    return sources


def make_plan(
    sources: Sequence[Source],
    spec: TableSpec,
    parties: Sequence[PartyClaim],
    *,
    name: str,
    hashing: Hashing | None = None,
    aligned: Alignment | None = None,
) -> Plan:
    """Return what is to be done with files that are ingested for the first time.

    Raises:
        ArgumentError: If settings do not go together, or one column has two roles.
        DataError: If a column is not there, is claimed by nobody or twice, or holds what it may not.
    """
    names, where = sources[0].names, sources[0].name
    spec = with_declared(spec, sources)
    text = text_columns(names, spec, parties, where=where)
    if spec.id_column is not None:
        check_id_column(sources, spec.id_column)
    kinds = infer_kinds(sources, needed_columns(names, spec, parties, where=where), text=text)
    return planned(names, kinds, spec, parties, where=where, name=name, hashing=hashing, aligned=aligned)


def with_declared(spec: TableSpec, sources: Sequence[Source]) -> TableSpec:
    """Return what is said of files, with the columns as categories whose types say so in one of them.

    Raises:
        ArgumentError: If one column is two things.
        DataError: If a column is not there.
    """
    names = sources[0].names
    declared = frozenset().union(*(source.categories for source in sources)) - {
        *spec.roles(names, source=sources[0].name)
    }
    if not declared:
        return spec
    own = patterns(spec.categorical_columns)
    return replace(spec, categorical_columns=tuple(dict.fromkeys([*own, *(n for n in names if n in declared)])))


def needed_columns(
    names: Sequence[str], spec: TableSpec, parties: Sequence[PartyClaim], *, where: str
) -> tuple[str, ...]:
    """Return the columns whose cells must be of one kind: features, label and split column; raises as `make_plan`.

    An id column is none of them: its cells are read as they stand. By the first rule for ids it is.
    """
    roles = spec.roles(names, source=where)
    wanted = [name for name in roles if name != spec.id_column or spec.id_rule == FIRST_RULE]
    return (*spec.divide(names, parties, source=where).kept, *wanted)


def text_columns(
    names: Sequence[str], spec: TableSpec, parties: Sequence[PartyClaim], *, where: str
) -> tuple[str, ...]:
    """Return those of CSV files that are read as text whatever they look like; raises as :func:`make_plan`."""
    known = (*needed_columns(names, spec, parties, where=where), *spec.text_ids)
    return matching(patterns(spec.text_columns), known, source=where)


@dataclass(frozen=True, kw_only=True)
class ColumnUses:
    """What becomes of a table's columns.

    Attributes:
        division: Who holds which.
        numeric: Columns of numbers.
        listed: Categorical columns whose categories are listed.
        hashed: Categorical columns that are hashed.
        scales: The numeric columns, and how each is scaled.
    """

    division: Division
    numeric: tuple[str, ...]
    listed: tuple[str, ...]
    hashed: tuple[str, ...]
    scales: Mapping[str, Scale]


def column_uses(
    names: Sequence[str],
    kinds: Mapping[str, Kind],
    spec: TableSpec,
    parties: Sequence[PartyClaim],
    *,
    where: str,
    hashing: Hashing | None,
    blank: Collection[str] = (),
) -> ColumnUses:
    """Return what becomes of a table's columns.

    Args:
        names: All columns, in order.
        kinds: What those that are read hold; ``"text"`` for blank ones.
        spec: The table.
        parties: Who gets which columns.
        where: What to call the table in messages.
        hashing: Categories that are hashed.
        blank: Columns without any value here: they are counted as text, and whatever names columns of numbers may
            name them, for elsewhere they may hold some.

    Raises:
        ArgumentError: If settings do not go together, or one column has two roles.
        DataError: If a column is not there, is claimed by nobody or twice, or is named as what it is not.
    """
    division = spec.divide(names, parties, source=where)
    named = spec.categories(division, source=where)
    categorical = {name: None for name in division.kept if name in named or kinds[name] == "text"}
    numeric = {name: None for name in division.kept if name not in categorical}
    hashed = frozenset(_hashed(hashing, list(categorical), where))
    empty = frozenset(blank)
    scales = spec.scales([name for name in division.kept if name in numeric or name in empty], division, source=where)
    return ColumnUses(
        division=division,
        numeric=tuple(numeric),
        listed=tuple(name for name in categorical if name not in hashed),
        hashed=tuple(name for name in categorical if name in hashed),
        scales={name: scales[name] for name in numeric},
    )


def planned(
    names: Sequence[str],
    found: Mapping[str, Kind | None],
    spec: TableSpec,
    parties: Sequence[PartyClaim],
    *,
    where: str,
    name: str,
    hashing: Hashing | None = None,
    aligned: Alignment | None = None,
) -> Plan:
    """Return what is to be done with columns that hold these kinds, ``None`` without any value; the rest as above."""
    kinds: dict[str, Kind] = {column: kind or "text" for column, kind in found.items()}
    blank = [column for column, kind in found.items() if kind is None]
    uses = column_uses(names, kinds, spec, parties, where=where, hashing=hashing, blank=blank)
    division = uses.division
    ranges = as_ranges(spec.ranges)
    owned = frozenset().union(*division.held.values())
    held = [name for name in uses.numeric if name in owned]
    written = spec.written(names, source=where)
    declared = {*spec.categories(division, source=where), *written.text, *blank}
    texts = [name for name in division.kept if kinds[name] == "text" and name not in declared]
    if spec.label is not None and kinds[spec.label] == "text" and spec.label not in declared:
        texts.append(spec.label)
    return Plan(
        name=name,
        task=spec.task,
        label=spec.label,
        label_column=spec.label,
        positive=_positive(spec, kinds),
        ids=_ids_by(spec, kinds, aligned),
        split=_split_rule(spec, kinds),
        dropped=division.dropped,
        parties=tuple(
            PartyPlan(name=party.name, role=party.role, columns=division.held[party.name]) for party in parties
        ),
        kinds=kinds,
        scales=uses.scales,
        bounds={} if ranges is None else ranges.of(held),
        vocabularies=uses.listed,
        hashed=uses.hashed,
        missing=spec.missing,
        min_count=spec.min_count,
        buckets=0 if hashing is None else hashing.buckets,
        key=hash_key(None if hashing is None else hashing.secret),
        aligned=aligned,
        written=written,
        doubted=tuple(texts),
    )


def check_ingested(spec: TableSpec, parties: Sequence[PartyClaim], aligned: Alignment | None = None) -> None:
    """Check that a table can be ingested for these parties, and that its records were aligned for them, if they were.

    Raises:
        ArgumentError: If not.
    """
    check_parties(parties)
    active = next((party.name for party in parties if party.role == "active"), None)
    if not parties:
        raise ArgumentError("expected a label column for the active party, or a passive party; got neither")
    if spec.label is None and active is not None:
        raise ArgumentError(f"the active party {active!r} holds the labels: expected the label column")
    if spec.label is not None and active is None:
        raise ArgumentError(f"label column {spec.label!r} is the active party's, and there is no active party")
    for party in parties:
        # As experiments want them; and a name must be able to name a folder.
        if not re.fullmatch(r"\w[\w-]{,99}", party.name):
            raise ArgumentError(f"expected a party's name of up to 100 letters, digits, _ and -, got {party.name!r}")
    if spec.categorical == "onehot":
        raise ArgumentError("tables that are ingested hold codes of categories, got categorical='onehot'; leave it out")
    if spec.unlabelled == "drop" and (aligned is not None or len(parties) < 2 or active is None):
        raise ArgumentError(
            f"{setting('unlabelled', 'drop')} is for the tables of all parties together, got those of one: its "
            "partners would keep these records, and see whose outcome is not known yet. Take them out of the file, and "
            "align what is left (splitvfl align)"
        )
    if aligned is not None:
        check_aligned(spec, parties, aligned)


def check_aligned(spec: TableSpec, parties: Sequence[PartyClaim], aligned: Alignment) -> None:
    """Check that records were aligned for this party, by this id column.

    Raises:
        ArgumentError: If not.
    """
    schema = aligned.schema
    if [(party.name, party.role) for party in parties] != [(schema.party, schema.role)]:
        got = ", ".join(f"{party.name} ({party.role})" for party in parties)
        raise ArgumentError(f"the records were aligned for {schema.party} ({schema.role}) alone, got {got}")
    if spec.id_column != schema.id_column:
        raise ArgumentError(
            f"the records were aligned by column {schema.id_column!r}, got id column {spec.id_column!r}"
        )
    if spec.split_column is not None:
        raise ArgumentError("aligned records are split by their new ids, as at the other parties; give no split column")


def _hashed(hashing: Hashing | None, categorical: Sequence[str], where: str) -> tuple[str, ...]:
    if hashing is None:
        return ()
    if hashing.fields is None:
        return tuple(categorical)
    return matching(patterns(hashing.fields), categorical, source=f"the categorical columns of {where}")


def _positive(spec: TableSpec, kinds: Mapping[str, Kind]) -> Positive | None:
    if spec.label is None or not isinstance(spec.positive, str):
        return spec.positive
    return cell_value(spec.positive, kinds[spec.label])


def _ids_by(spec: TableSpec, kinds: Mapping[str, Kind], aligned: Alignment | None) -> IdRule:
    if aligned is not None:
        return _aligned_ids(aligned)
    if spec.id_column is None:
        return IdRule(column=None, rule="row")
    if spec.id_rule != FIRST_RULE:
        return IdRule(column=spec.id_column, rule="mixed", id_rule=spec.id_rule)  # until they are seen
    return IdRule(column=spec.id_column, rule="integer" if kinds[spec.id_column] == "integer" else "blake2b-63")


def _aligned_ids(aligned: Alignment) -> IdRule:
    return IdRule(column=aligned.schema.id_column, rule="aligned", digest=aligned.schema.digest)


def _split_rule(spec: TableSpec, kinds: Mapping[str, Kind]) -> SplitRule:
    if spec.split_column is None:
        return SplitRule(rule="hash", fraction=spec.test_fraction, seed=spec.split_seed)
    value = spec.test_value
    if isinstance(value, str):
        value = cell_value(value, kinds[spec.split_column])
    return SplitRule(rule="column", column=spec.split_column, value=value)


def plan_like(
    sources: Sequence[Source],
    folder: Path,
    *,
    name: str,
    hash_secret: bytes | None,
    aligned: Alignment | None = None,
) -> Plan:
    """Return what is to be done with files that are encoded like earlier ones.

    All their records become test records. The label column may be missing.

    Raises:
        ArgumentError: If the earlier records were aligned and these are not, or the other way round.
        DataError: If the earlier folder cannot be read, or the files have other columns, or hold other things in them.
    """
    data = read_data_schema(folder)
    for source in sources:
        source.written = data.cells
    if (data.ids.rule == "aligned") != (aligned is not None):
        raise ArgumentError(
            f"the records of {folder} were {'' if aligned is None else 'not '}aligned: align these as well, and name "
            "the folder of their alignment, or neither"
        )
    ids = (
        data.ids
        if aligned is None
        else IdRule(column=aligned.schema.id_column, rule="aligned", digest=aligned.schema.digest)
    )
    parties = {party.name: read_party_schema(folder / party.name) for party in data.parties}
    encoders = {encoder.column: encoder for party in parties.values() for encoder in party.encoders}
    profiles = {name: profile for party in parties.values() for name, profile in party.known_profiles.items()}
    label = next((party.label for party in parties.values() if party.label is not None), None)
    if label is not None and label.column not in sources[0].names:
        label = None
    kinds = _kinds_like(sources, data, encoders, label)
    key = hash_key(hash_secret)
    _check_key(encoders, key, folder)
    return Plan(
        name=name,
        task=data.task,
        label=None if label is None else label.column,
        label_column=data.label_column,
        ids=ids,
        split=SplitRule(rule="all-test", column=data.split.column),
        dropped=data.dropped,
        parties=tuple(
            PartyPlan(name=name, role=party.role, columns=party.column_names) for name, party in parties.items()
        ),
        kinds=kinds,
        scales={name: encoder.scale for name, encoder in encoders.items() if isinstance(encoder, NumericEncoder)},
        key=key,
        earlier=Earlier(folder=folder, encoders=encoders, label=label, classes=data.classes, profiles=profiles),
        aligned=aligned,
        written=data.cells,
    )


def _kinds_like(
    sources: Sequence[Source], data: DataSchema, encoders: Mapping[str, Encoder], label: LabelSchema | None
) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {name: encoder.kind for name, encoder in encoders.items()}
    if data.ids.as_written and data.ids.column is not None:
        check_id_column(sources, data.ids.column)
    elif data.ids.column is not None and data.ids.rule != "aligned":
        kinds[data.ids.column] = "integer" if data.ids.rule == "integer" else "text"
    if label is not None:
        kinds[label.column] = label.kind
    names, where = sources[0].names, sources[0].name
    there = frozenset(names)
    missing = [name for name in kinds if name not in there]
    if missing:
        raise DataError(
            f"{where} has no column {missing[0]!r}, which the files that were ingested before had"
            f"{did_you_mean(missing[0], names, used=kinds)}"
        )
    known = {*kinds, *data.dropped, data.ids.column, data.split.column, data.label_column}
    extra = [name for name in names if name not in known]
    if extra:
        raise DataError(f"{where} has {listed(extra)}, which the files that were ingested before had not")
    check_kinds(sources, kinds)
    return kinds


def _check_key(encoders: Mapping[str, Encoder], key: bytes, folder: Path) -> None:
    for name, encoder in encoders.items():
        if isinstance(encoder, HashEncoder) and encoder.key != key_name(key):
            raise DataError(f"column {name!r} of {folder} was hashed with another key; give the same key file")
