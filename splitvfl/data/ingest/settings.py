"""The settings of an ingest as they are kept: what was asked for, without the files and without any secret."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from splitvfl.data.columns import TaskName
from splitvfl.data.encoding import Missing, Scale
from splitvfl.data.hashing import hash_key, key_name
from splitvfl.data.id_rules import FIRST_RULE, RuleVersion
from splitvfl.data.ingest.plan import Hashing, check_ingested
from splitvfl.data.partition import ColumnClaim, patterns
from splitvfl.data.ranges import Bounds, as_ranges
from splitvfl.data.schema import Role
from splitvfl.data.spec import PartyClaim, Patterns, TableSpec
from splitvfl.data.spelling import setting
from splitvfl.data.tables import listed
from splitvfl.errors import DataError


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A party, and which columns were asked for in its name; see :class:`splitvfl.data.spec.PartyClaim`."""

    name: str
    role: Role
    columns: str | float | tuple[str, ...]


class IngestSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What :class:`splitvfl.data.spec.TableSpec` and :class:`splitvfl.data.ingest.plan.Hashing` say, and who gets what.

    Lists of names and patterns are sorted. Attributes that are called as there mean the same.

    Attributes:
        ranges: Public bounds by column, in place of a file of them.
        parties: Who gets which columns.
        buckets: Number of hash codes; ``None`` where nothing is hashed.
        hash_fields: Which fields are hashed; ``None``: all.
        hash_key: Fingerprint of the key, never the key; ``None`` where nothing is hashed.
        aligned: Whether the records are aligned.
        id_rule: Version of the rule for ids; none is the first.
    """

    label: str | None
    task: TaskName
    positive: bool | float | str | None
    id_column: str | None
    drop: tuple[str, ...]
    test_fraction: float
    split_seed: int
    split_column: str | None
    test_value: bool | float | str
    scale: Scale
    missing: Missing
    min_count: int
    scale_columns: dict[Scale, tuple[str, ...]]
    ranges: dict[str, Bounds] | None
    categorical_columns: tuple[str, ...]
    text_columns: tuple[str, ...]
    parties: tuple[Claim, ...]
    buckets: int | None
    hash_fields: tuple[str, ...] | None
    hash_key: str | None
    aligned: bool
    missing_values: tuple[str, ...] = ()
    decimal: str | None = None
    thousands: str | None = None
    units: tuple[str, ...] = ()
    id_rule: RuleVersion | msgspec.UnsetType = msgspec.UNSET

    @property
    def rule_of_ids(self) -> RuleVersion:
        """Version of the rule for ids (:mod:`splitvfl.data.id_column`)."""
        return FIRST_RULE if self.id_rule is msgspec.UNSET else self.id_rule

    def spec(self, source: object = None, header: Sequence[str] | None = None) -> TableSpec:
        """Return what is to be done with files.

        Raises:
            ArgumentError: If a setting is out of its range.
        """
        kept = set(TableSpec.__dataclass_fields__) & set(self.__struct_fields__) - {"id_rule"}
        settings = {name: getattr(self, name) for name in kept}
        return TableSpec(source=source, header=header, id_rule=self.rule_of_ids, **settings)

    @property
    def claims(self) -> tuple[PartyClaim, ...]:
        """Who gets which columns."""
        return tuple(PartyClaim(claim.name, claim.role, claim.columns) for claim in self.parties)

    def hashing(self, secret: bytes | None = None) -> Hashing | None:
        """Return how categories are hashed, if they are.

        Raises:
            ArgumentError: If a setting is out of its range.
        """
        if self.buckets is None:
            return None
        return Hashing(buckets=self.buckets, fields=self.hash_fields, secret=secret)

    def check(self) -> None:
        """Check that files can be ingested so.

        Raises:
            ArgumentError: If not.
        """
        check_ingested(self.spec(), self.claims)
        self.hashing()

    def has_key(self, secret: bytes | None) -> bool:
        """Return whether a secret is the one that categories were hashed with."""
        return self.hash_key == (None if self.buckets is None else key_name(hash_key(secret)))


def settings_of(
    spec: TableSpec, parties: Sequence[PartyClaim], hashing: Hashing | None, *, aligned: bool
) -> IngestSettings:
    """Return settings as they are kept.

    Raises:
        ArgumentError: If one is malformed.
        DataError: If ranges cannot be read.
    """
    ranges = as_ranges(spec.ranges)
    return IngestSettings(
        label=spec.label,
        task=spec.task,
        positive=spec.positive,
        id_column=spec.id_column,
        drop=_sorted(spec.drop),
        test_fraction=spec.test_fraction,
        split_seed=spec.split_seed,
        split_column=spec.split_column,
        test_value=spec.test_value,
        scale=spec.scale,
        missing=spec.missing,
        min_count=spec.min_count,
        scale_columns={scale: _sorted(wanted) for scale, wanted in sorted(spec.scale_columns.items())},
        ranges=None if ranges is None else {name: ranges.bounds[name] for name in sorted(ranges.bounds)},
        categorical_columns=_sorted(spec.categorical_columns),
        text_columns=_sorted(spec.text_columns),
        parties=tuple(Claim(name=party.name, role=party.role, columns=_claimed(party.columns)) for party in parties),
        buckets=None if hashing is None else hashing.buckets,
        hash_fields=None if hashing is None or hashing.fields is None else _sorted(hashing.fields),
        hash_key=None if hashing is None else key_name(hash_key(hashing.secret)),
        missing_values=spec.written().missing_values,
        decimal=spec.decimal,
        thousands=spec.thousands,
        units=spec.written().units,
        aligned=aligned,
        id_rule=msgspec.UNSET if spec.id_rule == FIRST_RULE else spec.id_rule,
    )


def _sorted(wanted: Patterns) -> tuple[str, ...]:
    return tuple(sorted(set(patterns(wanted))))


def _claimed(columns: ColumnClaim) -> str | float | tuple[str, ...]:
    if isinstance(columns, str):
        return columns
    return float(columns) if isinstance(columns, int | float) else tuple(columns)


def check_alike(settings: IngestSettings, where: object, first: IngestSettings, first_where: object) -> None:
    """Check that two ingests were asked for the same.

    Raises:
        DataError: If not; the setting is named.
    """
    for name in settings.__struct_fields__:
        ours, theirs = getattr(settings, name), getattr(first, name)
        if ours != theirs:
            raise DataError(f"{where} was made with {_said(name, ours)}, and {first_where} with {_said(name, theirs)}")


def _said(name: str, value: Any) -> str:
    match name:
        case "aligned":
            return "aligned records" if value else "records that are not aligned"
        case "id_rule":
            return "the first rule for ids" if value is msgspec.UNSET else f"version {value} of the rule for ids"
        case "hash_key":
            return "no hash key" if value is None else f"the hash key of fingerprint {value}"
        case "parties":
            return "parties " + ", ".join(f"{claim.name} ({claim.role}: {claim.columns})" for claim in value)
        case "scale_columns":
            return " ".join(setting(scale, ",".join(wanted)) for scale, wanted in value.items()) or "one scale for all"
        case "ranges":
            return f"no {setting(name)}" if value is None else f"{setting(name)} of {listed(list(value))}"
        case _:
            value = ",".join(value) if isinstance(value, tuple) else value
            return f"no {setting(name)}" if value in (None, "") else setting(name, value)
