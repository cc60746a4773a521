"""What the columns of a table are, and how they become numbers: said once, for files of any size."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from splitvfl.data.cell_format import CellFormat, cell_format
from splitvfl.data.columns import TaskName
from splitvfl.data.encoding import Encoding, Scale, check_one_of
from splitvfl.data.id_rules import FIRST_RULE, ID_RULE, RuleVersion, SplitBy
from splitvfl.data.labels import Positive, Unlabelled
from splitvfl.data.partition import REST, ColumnClaim, divide, matching, patterns
from splitvfl.data.ranges import GivenRanges
from splitvfl.data.schema import Role
from splitvfl.data.spelling import setting
from splitvfl.data.tables import did_you_mean
from splitvfl.errors import ArgumentError, DataError

Patterns = str | Sequence[str]
Cells = str | float | Sequence[str | float]


@dataclass(frozen=True)
class PartyClaim:
    """One party, and which columns of a table are to be its own.

    Attributes:
        name: Its name.
        role: ``"active"``, which holds the labels, or ``"passive"``.
        columns: Its columns, see :mod:`splitvfl.data.partition`: names and patterns, a share, or ``"rest"``.

    Raises:
        ArgumentError: If the role is none of these.
    """

    name: str
    role: Role
    columns: ColumnClaim = REST

    def __post_init__(self) -> None:
        """Check the role."""
        if self.role not in get_args(Role):
            raise ArgumentError(f"expected role active or passive, got {self.role!r}")


class Division(NamedTuple):
    """Who holds which columns of a table.

    Attributes:
        held: Each party's columns, in the table's order.
        kept: The columns that may be held: neither dropped nor reserved.
        dropped: Columns that nobody holds.
        reserved: Columns that are no features, and what they are instead; dropped ones included.
    """

    held: Mapping[str, tuple[str, ...]]
    kept: tuple[str, ...]
    dropped: tuple[str, ...]
    reserved: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class TableSpec(Encoding):
    """A table: where it is, what its columns are, how they become numbers, and which records are tested on.

    What it says of an encoding holds for every column that nothing else is said of.

    Attributes:
        source: A CSV, Parquet or Arrow file; several files of the same columns, or patterns of them, to be ingested; or
            a table in memory: Arrow, pandas, polars, arrays and tensors, see
            :func:`splitvfl.data.arrow_table.as_arrow`.
        header: Names of the columns, for CSV files without a header line.
        label: The label column. Without one there is no active party.
        task: ``"binary"``, ``"multiclass"`` or ``"regression"``.
        positive: Which of two label values is the positive class; not needed for 0 and 1.
        unlabelled: ``"drop"`` leaves out records without a label, as their outcome is not known yet, before tables are
            joined; ``"error"`` refuses them.
        id_column: Column that names the records; default: their numbers from 0.
        drop: Columns that nobody gets, as names and patterns; applied before any claim.
        test_fraction: Expected share of test records, in (0, 1).
        split_seed: Decides which, with each record's id alone, from 0 to 2⁶⁴ − 1.
        split_column: Column that decides it instead. It must not be made from labels: the partner sees which records
            are tested, and infers labels from such a division.
        test_value: What that column holds in test rows.
        scale_columns: Columns that are scaled otherwise, by scale.
        ranges: Public bounds of every numeric column, to be used in place of what training rows show: the path of a
            file, or ``{column: (lower, upper)}``; see :mod:`splitvfl.data.ranges`. Numbers are clipped to them.
            ``"standard"`` then is (x − middle) / half the width, to [−1, 1]; ``"minmax"`` to [0, 1]; ``"log1p"`` as
            ``"standard"``, of logarithms. Gaps that may be filled get the middle, and a mark in every column.
        categorical_columns: Numeric columns that hold categories, as names and patterns; text always does.
        text_columns: Columns whose text stays as it stands whatever it looks like; those of CSV files are read as text.
        id_rule: Version of the rule for ids (:mod:`splitvfl.data.id_column`); an earlier one is for what an earlier
            version of splitvfl began.
        split_by: ``"ids"``; a division by ``"labels"``, which an earlier version made, is refused.
        missing_values: What says that nothing is known, such as ``["?", "-"]``: gaps in every column but those of
            ``text_columns``. In columns of numbers, empty cells and what pandas takes for missing (``NA``, ``null``,
            ``None``) are gaps without being named; in columns of text they are not.
        decimal: The decimal separator: ``"."`` or ``","``. Given, text in typed columns is read as numbers too.
        thousands: What stands between groups of three digits: ``","``, ``"."``, ``" "`` (any space) or ``"'"``.
        units: What stands before or behind numbers, and is left out: ``["$"]``; 12.5% is 12.5. ``"()"`` stands for
            accounting brackets: (12.5) is −12.5. All numbers of a column have the same unit, or none.

    Raises:
        ArgumentError: If a setting is out of its range.
    """

    source: object = None
    header: Sequence[str] | None = None
    label: str | None = None
    task: TaskName = "binary"
    positive: Positive | None = None
    unlabelled: Unlabelled = "error"
    id_column: str | None = None
    drop: Patterns = ()
    test_fraction: float = 0.2
    split_seed: int = 0
    split_column: str | None = None
    test_value: str | float = "test"
    scale_columns: Mapping[Scale, Patterns] = field(default_factory=dict)
    ranges: GivenRanges = None
    categorical_columns: Patterns = ()
    text_columns: Patterns = ()
    missing_values: Cells = ()
    decimal: str | None = None
    thousands: str | None = None
    units: Cells = ()
    id_rule: RuleVersion = ID_RULE
    split_by: SplitBy = "ids"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_one_of("task", self.task, get_args(TaskName))
        check_one_of("split_by", self.split_by, get_args(SplitBy))
        check_one_of("unlabelled", self.unlabelled, get_args(Unlabelled))
        for scale in self.scale_columns:
            check_one_of("scale", scale, get_args(Scale))
        if not 0 < self.test_fraction < 1:
            raise ArgumentError(f"expected test_fraction in (0, 1), got {self.test_fraction}")
        if not 0 <= self.split_seed < 1 << 64:
            raise ArgumentError(f"expected split_seed from 0 to 2**64 - 1, got {self.split_seed}")
        cell_format(self.missing_values, self.decimal, self.thousands, self.units)

    def text(self, names: Collection[str], *, source: str) -> tuple[str, ...]:
        """Return those of a table's columns that are named as text; raises as :meth:`categories`."""
        return matching(patterns(self.text_columns), list(names), source=source)

    def written(self, names: Collection[str] = (), *, source: str = "") -> CellFormat:
        """Return how the cells of a table are written; without its columns, of any.

        Raises:
            DataError: If a name or pattern of text matches no column.
        """
        text = self.text(names, source=source) if names else ()
        return cell_format(self.missing_values, self.decimal, self.thousands, self.units, text)

    @property
    def text_ids(self) -> frozenset[str]:
        """The id column, as a set, where that of a CSV file is read as text."""
        return frozenset() if self.id_column is None or self.id_rule == FIRST_RULE else frozenset([self.id_column])

    def roles(self, names: Collection[str], *, source: str) -> dict[str, str]:
        """Return the columns that are no features, and what they are instead.

        Args:
            names: The table's columns.
            source: What to call the table in messages, here and below.

        Raises:
            ArgumentError: If one column is two things.
            DataError: If the table has no such column.
        """
        wanted = {
            "label": ("the label", self.label),
            "id_column": ("the id column", self.id_column),
            "split_column": ("the split column", self.split_column),
        }
        roles: dict[str, str] = {}
        for name, (role, column) in wanted.items():
            if column is None:
                continue
            if roles.setdefault(column, role) != role:
                raise ArgumentError(f"column {column!r} cannot be both {roles[column]} and {role}")
            if column not in names:
                hint = did_you_mean(column, names, used={other for _, other in wanted.values()})
                raise DataError(f"no column {column!r} in {source}{hint} (it should be {role}: {setting(name)})")
        return roles

    def divide(self, names: Sequence[str], parties: Sequence[PartyClaim], *, source: str) -> Division:
        """Return who holds which of the table's columns, in the table's order.

        Raises:
            ArgumentError: If one column is two things, or the claims contradict each other.
            DataError: If a column is not there, is claimed by nobody or twice, or a passive party has none.
        """
        roles = self.roles(names, source=source)
        features = [name for name in names if name not in roles]
        dropped = matching(patterns(self.drop), features, source=source, reserved=roles)
        left_out = frozenset(dropped)
        kept = tuple(name for name in features if name not in left_out)
        reserved = roles | dict.fromkeys(dropped, "a dropped column")
        held = divide(kept, {party.name: party.columns for party in parties}, source=source, reserved=reserved)
        for party in parties:
            if party.role == "passive" and not held[party.name]:
                raise DataError(f"passive party {party.name!r} is left without a column of {source}")
        return Division(held, kept, dropped, reserved)

    def categories(self, division: Division, *, source: str) -> frozenset[str]:
        """Return the columns that are named as categorical; text is so without being named.

        Raises:
            DataError: If a name or pattern matches no column.
        """
        features = [*division.kept, *division.dropped]
        return frozenset(matching(patterns(self.categorical_columns), features, source=source))

    def scales(self, numeric: Sequence[str], division: Division, *, source: str) -> dict[str, Scale]:
        """Return how each numeric column is scaled.

        Raises:
            ArgumentError: If a column is to be scaled in two ways.
            DataError: If a name or pattern matches no numeric column.
        """
        where = f"the numeric columns of {source}"
        own: dict[str, Scale] = {}
        for scale, wanted in self.scale_columns.items():
            for name in matching(patterns(wanted), numeric, source=where, reserved=division.reserved):
                if own.setdefault(name, scale) != scale:
                    raise ArgumentError(f"column {name!r} cannot be scaled both {own[name]} and {scale}")
        return dict.fromkeys(numeric, self.scale) | own


def check_parties(parties: Sequence[PartyClaim]) -> None:
    """Check that parties have names of their own, and that one of them at most is active.

    Raises:
        ArgumentError: If not.
    """
    active = [party.name for party in parties if party.role == "active"]
    if len(active) > 1:
        raise ArgumentError(f"expected one active party at most, got {' and '.join(active)}")
    names = [party.name for party in parties]
    for name in names:
        if names.count(name) > 1 and name in active:
            raise ArgumentError(f"{name!r} is the active party's name and a passive party's; they must differ")
        if names.count(name) > 1:
            raise ArgumentError(f"{name!r} is the name of two parties; they must differ")
