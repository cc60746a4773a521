"""What is to be done with which column: settled before the first row is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa

from splitvfl.data.columns import TaskName
from splitvfl.data.encoding import Missing, Scale
from splitvfl.data.ingest.aligned import AlignedRows
from splitvfl.data.ingest.encoders import read_type
from splitvfl.data.ingest.hashing import hash_key, key_name
from splitvfl.data.ingest.records import Mask, cell_value
from splitvfl.data.ingest.sources import Source, check_kinds, infer_kinds
from splitvfl.data.labels import Positive
from splitvfl.data.partition import ColumnClaim, divide, matching, patterns
from splitvfl.data.schema import (
    DataSchema,
    Encoder,
    HashEncoder,
    IdRule,
    Kind,
    LabelSchema,
    NumericEncoder,
    Role,
    SplitRule,
    read_data_schema,
    read_party_schema,
)
from splitvfl.data.tables import did_you_mean, listed
from splitvfl.errors import ArgumentError, DataError

Patterns = str | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The settings of :func:`splitvfl.data.ingest.ingest`; see there.

    Raises:
        ArgumentError: If one is out of its range, or two do not go together.
    """

    name: str
    label: str | None
    task: TaskName
    positive: Positive | None
    id_column: str | None
    active: ColumnClaim | None
    active_name: str
    passive: Mapping[str, ColumnClaim]
    drop: Patterns
    scale: Scale
    scale_columns: Mapping[Scale, Patterns]
    missing: Missing
    categorical_columns: Patterns
    text_columns: Patterns
    min_count: int
    buckets: int | None
    hash_fields: Patterns | None
    hash_secret: bytes | None = field(repr=False)
    test_fraction: float
    split_seed: int
    split_column: str | None
    test_value: str | float

    def __post_init__(self) -> None:
        """Check the settings."""
        self._check_names()
        for value in (self.scale, *self.scale_columns):
            _check_one_of("scale", value, get_args(Scale))
        _check_one_of("missing", self.missing, get_args(Missing))
        _check_one_of("task", self.task, get_args(TaskName))
        if not 0 < self.test_fraction < 1:
            raise ArgumentError(f"expected test_fraction in (0, 1), got {self.test_fraction}")
        if not 0 <= self.split_seed < 1 << 64:
            raise ArgumentError(f"expected split_seed from 0 to 2**64 - 1, got {self.split_seed}")
        if self.min_count < 1:
            raise ArgumentError(f"expected min_count from 1, got {self.min_count}")
        self._check_hashing()

    def _check_names(self) -> None:
        if self.label is None and self.active is not None:
            raise ArgumentError(f"the active party {self.active_name!r} holds the labels: expected the label column")
        if not self.parties:
            raise ArgumentError("expected a label column for the active party, or a passive party; got neither")
        if self.label is not None and self.active_name in self.passive:
            raise ArgumentError(f"{self.active_name!r} is the active party's name and a passive party's")
        for party in self.parties:
            # As experiments want them; and a name must be able to name a folder.
            if not re.fullmatch(r"\w[\w-]{,99}", party):
                raise ArgumentError(f"expected a party's name of up to 100 letters, digits, _ and -, got {party!r}")

    def _check_hashing(self) -> None:
        # A code must fit into int32, with one more for missing values.
        if self.buckets is not None and not 1 <= self.buckets < (1 << 31) - 2:
            raise ArgumentError(f"expected buckets from 1 to 2**31 - 3, got {self.buckets}")
        if self.buckets is None and (self.hash_fields is not None or self.hash_secret is not None):
            raise ArgumentError("fields to hash or a hash key were given, and no number of buckets")

    @property
    def parties(self) -> dict[str, ColumnClaim]:
        """The parties' claims, the active one first."""
        active = {} if self.label is None else {self.active_name: () if self.active is None else self.active}
        return {**active, **self.passive}


def _check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ArgumentError(f"expected {name} one of {', '.join(allowed)}, got {value!r}")


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
    """

    folder: Path
    encoders: Mapping[str, Encoder]
    label: LabelSchema | None
    classes: int


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
        vocabularies: Categorical columns whose categories are listed.
        hashed: Categorical columns that are hashed.
        missing: What happens to missing numbers.
        min_count: Training rows that a category needs to be listed.
        buckets: Codes of a hashed column.
        key: What they are hashed with.
        earlier: Where the encoders come from, if they are not learned now.
        aligned: Which rows are taken, and their new ids; ``None``: all, by their own ids.
    """

    name: str
    task: TaskName
    label: str | None
    label_column: str | None
    positive: Positive | None
    ids: IdRule
    split: SplitRule
    dropped: tuple[str, ...]
    parties: tuple[PartyPlan, ...]
    kinds: Mapping[str, Kind]
    scales: Mapping[str, Scale]
    vocabularies: tuple[str, ...]
    hashed: tuple[str, ...]
    missing: Missing
    min_count: int
    buckets: int
    key: bytes = field(repr=False)
    earlier: Earlier | None = None
    aligned: AlignedRows | None = field(default=None, repr=False)

    @property
    def kept(self) -> Mask | None:
        """Which rows of the files are read; ``None``: all."""
        return None if self.aligned is None else self.aligned.kept

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The type that each column is read with."""
        return {
            name: read_type(kind, numeric=name in self.scales or name == self.label)
            for name, kind in self.kinds.items()
        }


def make_plan(sources: Sequence[Source], choices: Choices, aligned: AlignedRows | None = None) -> Plan:
    """Return what is to be done with files that are ingested for the first time.

    Raises:
        ArgumentError: If one column has two roles.
        DataError: If a column is not there, is claimed by nobody or twice, or holds what it may not.
    """
    names, where = sources[0].names, sources[0].path.name
    if aligned is not None:
        _check_aligned(choices, aligned)
    roles = _roles(choices, names, where)
    features = [name for name in names if name not in roles]
    dropped = matching(patterns(choices.drop), features, source=where, reserved=roles)
    kept = [name for name in features if name not in dropped]
    reserved = roles | dict.fromkeys(dropped, "a dropped column")
    held = divide(kept, choices.parties, source=where, reserved=reserved)
    parties = tuple(_party(choices, name, columns, where) for name, columns in held.items())
    text = matching(patterns(choices.text_columns), [*kept, *roles], source=where)
    kinds = infer_kinds(sources, [*kept, *roles], text=text)
    categorical = set(matching(patterns(choices.categorical_columns), kept, source=where, reserved=reserved))
    categorical |= {name for name in kept if kinds[name] == "text"}
    hashed = _hashed(choices, [name for name in kept if name in categorical], where)
    return Plan(
        name=choices.name,
        task=choices.task,
        label=choices.label,
        label_column=choices.label,
        positive=_positive(choices, kinds),
        ids=_ids_by(choices.id_column, kinds, where, aligned),
        split=_split_rule(choices, kinds),
        dropped=dropped,
        parties=parties,
        kinds=kinds,
        scales=_scales(choices, [name for name in kept if name not in categorical], where, reserved),
        vocabularies=tuple(name for name in kept if name in categorical and name not in hashed),
        hashed=hashed,
        missing=choices.missing,
        min_count=choices.min_count,
        buckets=choices.buckets or 0,
        key=hash_key(choices.hash_secret),
        aligned=aligned,
    )


def _check_aligned(choices: Choices, aligned: AlignedRows) -> None:
    roles = {
        name: "active" if choices.label is not None and name == choices.active_name else "passive"
        for name in choices.parties
    }
    if roles != {aligned.party: aligned.role}:
        got = ", ".join(f"{name} ({role})" for name, role in roles.items())
        raise ArgumentError(f"the records were aligned for {aligned.party} ({aligned.role}) alone, got {got}")
    if choices.id_column != aligned.id_column:
        raise ArgumentError(
            f"the records were aligned by column {aligned.id_column!r}, got id column {choices.id_column!r}"
        )
    if choices.split_column is not None:
        raise ArgumentError("aligned records are split by their new ids, as at the other parties; give no split column")


def _roles(choices: Choices, names: Sequence[str], where: str) -> dict[str, str]:
    roles: dict[str, str] = {}
    wanted = {"the label": choices.label, "the id column": choices.id_column, "the split column": choices.split_column}
    for role, column in wanted.items():
        if column is None:
            continue
        if column not in names:
            raise DataError(f"no column {column!r} in {where}, which should be {role}{did_you_mean(column, names)}")
        if roles.setdefault(column, role) != role:
            raise ArgumentError(f"column {column!r} cannot be both {roles[column]} and {role}")
    return roles


def _party(choices: Choices, name: str, columns: tuple[str, ...], where: str) -> PartyPlan:
    active = choices.label is not None and name == choices.active_name
    if not active and not columns:
        raise DataError(f"passive party {name!r} is left without a column of {where}")
    return PartyPlan(name=name, role="active" if active else "passive", columns=columns)


def _hashed(choices: Choices, categorical: Sequence[str], where: str) -> tuple[str, ...]:
    if choices.buckets is None:
        return ()
    if choices.hash_fields is None:
        return tuple(categorical)
    return matching(patterns(choices.hash_fields), categorical, source=f"the categorical columns of {where}")


def _positive(choices: Choices, kinds: Mapping[str, Kind]) -> Positive | None:
    if choices.label is None or not isinstance(choices.positive, str):
        return choices.positive
    return cell_value(choices.positive, kinds[choices.label])


def _ids_by(column: str | None, kinds: Mapping[str, Kind], where: str, aligned: AlignedRows | None) -> IdRule:
    if aligned is not None:
        return IdRule(column=column, rule="aligned", digest=aligned.digest)
    return IdRule(column=column, rule=_id_rule(column, kinds, where))


def _id_rule(column: str | None, kinds: Mapping[str, Kind], where: str) -> Literal["integer", "blake2b-63", "row"]:
    if column is None:
        return "row"
    if kinds[column] not in ("integer", "text"):
        raise DataError(
            f"id column {column!r} of {where} must hold whole numbers or text, and holds fractions, gaps, truth values "
            "or numbers beyond 64 bits; have it read as text if that is meant"
        )
    return "integer" if kinds[column] == "integer" else "blake2b-63"


def _split_rule(choices: Choices, kinds: Mapping[str, Kind]) -> SplitRule:
    if choices.split_column is None:
        return SplitRule(rule="hash", fraction=choices.test_fraction, seed=choices.split_seed)
    value = choices.test_value
    if isinstance(value, str):
        value = cell_value(value, kinds[choices.split_column])
    return SplitRule(rule="column", column=choices.split_column, value=value)


def _scales(choices: Choices, numeric: Sequence[str], where: str, reserved: Mapping[str, str]) -> dict[str, Scale]:
    scales = dict.fromkeys(numeric, choices.scale)
    own: dict[str, Scale] = {}
    for scale, wanted in choices.scale_columns.items():
        for name in matching(patterns(wanted), numeric, source=f"the numeric columns of {where}", reserved=reserved):
            if own.setdefault(name, scale) != scale:
                raise ArgumentError(f"column {name!r} cannot be scaled both {own[name]} and {scale}")
    return {**scales, **own}


def plan_like(
    sources: Sequence[Source],
    folder: Path,
    *,
    name: str,
    hash_secret: bytes | None,
    aligned: AlignedRows | None = None,
) -> Plan:
    """Return what is to be done with files that are encoded like earlier ones.

    All their records become test records. The label column may be missing.

    Raises:
        ArgumentError: If the earlier records were aligned and these are not, or the other way round.
        DataError: If the earlier folder cannot be read, or the files have other columns, or hold other things in them.
    """
    data = read_data_schema(folder)
    if (data.ids.rule == "aligned") != (aligned is not None):
        raise ArgumentError(
            f"the records of {folder} were {'' if aligned is None else 'not '}aligned: align these as well, and name "
            "the folder of their alignment, or neither"
        )
    ids = data.ids if aligned is None else IdRule(column=aligned.id_column, rule="aligned", digest=aligned.digest)
    parties = {party.name: read_party_schema(folder / party.name) for party in data.parties}
    encoders = {encoder.column: encoder for party in parties.values() for encoder in party.encoders}
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
        positive=None,
        ids=ids,
        split=SplitRule(rule="all-test", column=data.split.column),
        dropped=data.dropped,
        parties=tuple(
            PartyPlan(name=name, role=party.role, columns=party.column_names) for name, party in parties.items()
        ),
        kinds=kinds,
        scales={name: encoder.scale for name, encoder in encoders.items() if isinstance(encoder, NumericEncoder)},
        vocabularies=(),
        hashed=(),
        missing="error",
        min_count=1,
        buckets=0,
        key=key,
        earlier=Earlier(folder=folder, encoders=encoders, label=label, classes=data.classes),
        aligned=aligned,
    )


def _kinds_like(
    sources: Sequence[Source], data: DataSchema, encoders: Mapping[str, Encoder], label: LabelSchema | None
) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {name: encoder.kind for name, encoder in encoders.items()}
    if data.ids.column is not None and data.ids.rule != "aligned":
        kinds[data.ids.column] = "integer" if data.ids.rule == "integer" else "text"
    if label is not None:
        kinds[label.column] = label.kind
    names, where = sources[0].names, sources[0].path.name
    missing = [name for name in kinds if name not in names]
    if missing:
        raise DataError(
            f"{where} has no column {missing[0]!r}, which the files that were ingested before had"
            f"{did_you_mean(missing[0], names)}"
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
