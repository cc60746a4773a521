"""Columns and records as one party holds them, and a data set divided between parties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import scipy
import torch
from torch import Tensor

from splitvfl.data.id_rules import ID_RULE, RuleVersion
from splitvfl.data.transform import Transform
from splitvfl.errors import DEEPER, ArgumentError, DataError

if TYPE_CHECKING:
    from splitvfl.data.doubts import Doubt
    from splitvfl.data.encoding import FittedEncoding

TaskName = Literal["binary", "multiclass", "regression"]

# As .npy files name them: the types in which labels are kept.
LABEL_DTYPES: Mapping[TaskName, str] = {"binary": "<f4", "multiclass": "<i8", "regression": "<f4"}

_BY_CHANCE = 1e-3  # how often a test calls a random division one by labels
_FEWEST_EXPECTED = 5  # records of a class in each part, for the test of independence


class Columns(NamedTuple):
    """One party's columns for some records.

    Attributes:
        numeric: ``(n, d)``, float32; ``d`` may be 0.
        categorical: ``(n, f)``, int64 or int32 codes of ``f`` fields; ``f`` may be 0. Tables on disk hold int32.
    """

    numeric: Tensor
    categorical: Tensor

    def __repr__(self) -> str:
        """Return how many there are."""
        return f"Columns({self.count} records of {self.numeric.shape[1]} numbers and {self.categorical.shape[1]} codes)"

    @classmethod
    def of(cls, numeric: Tensor) -> Columns:
        """Return columns without categorical fields."""
        return cls(numeric, numeric.new_zeros((numeric.shape[0], 0), dtype=torch.int64))

    @property
    def count(self) -> int:  # type: ignore[override]  # tuple.count, which counts tensors, is of no use here
        """Number of records; ``len()`` of a named tuple is 2."""
        return self.numeric.shape[0]

    def rows(self, index: Tensor) -> Columns:
        """Return the records at these positions, int64 ``(k,)``, in their order."""
        return Columns(_gathered(self.numeric, index), _gathered(self.categorical, index))

    def to(self, device: torch.device | str) -> Columns:
        """Return the columns on a device."""
        return Columns(self.numeric.to(device), self.categorical.to(device))

    def bounded(self, norm: float) -> Columns:
        """Return the columns with every numeric row ``x`` as ``x · min(1, norm / ‖x‖)``."""
        lengths = torch.linalg.vector_norm(self.numeric, dim=1, keepdim=True, dtype=torch.float64)
        scales = (norm / lengths.clamp(min=norm)).to(self.numeric.dtype)
        return Columns(self.numeric * scales, self.categorical)

    def module_input(self) -> Tensor | Columns:
        """Return what a bottom model is called with: the numeric tensor alone where there is no categorical field."""
        return self.numeric if self.categorical.shape[1] == 0 else self


def _gathered(values: Tensor, index: Tensor) -> Tensor:
    # Copies whole rows: seven times faster than values[index] on a CPU at 65,536 rows of 26.
    return values.index_select(0, index.to(values.device))


@dataclass(frozen=True, eq=False)
class Records:
    """The training or the test part as one party holds it.

    Tensors may be backed by a file (:mod:`splitvfl.data.store`): then rows are read as they are asked for.

    Attributes:
        ids: Record ids, ``(n,)``, int64: the same at every party, in the same order.
        columns: The party's columns of these records.
        labels: At the active party, ``(n,)``: float32 0 and 1 (binary), int64 0 … k−1 (multi-class) or float32
            (regression). ``None`` at a passive party.
        real: At the active party of a padded alignment, ``(n,)``, bool: which records it holds. The others are dummies,
            which are trained on and sent like all, and count in no figure. ``None``: it holds all of them.
        row_norm: Numeric rows with a larger Euclidean norm are scaled down to it when they are taken
            (:meth:`rows`); ``columns`` holds them as they are. ``None``: they are taken as they are.
        transform: What the party does to its numeric columns when rows are taken, before their norm is looked at; it
            is nobody else's to know. ``columns`` holds them as they are; records that were taken have none left.
        positions: Of records that were taken from others (:meth:`rows`): where these are among them, int64 ``(n,)`` on
            the CPU.
    """

    ids: Tensor
    columns: Columns
    labels: Tensor | None = None
    real: Tensor | None = None
    row_norm: float | None = None
    positions: Tensor | None = None
    transform: Transform | None = None

    def __post_init__(self) -> None:
        """Check that ids, columns and labels have one length, and a transform fits."""
        lengths = {
            "ids": self.ids.shape[0],
            "numeric": self.columns.count,
            "categorical": len(self.columns.categorical),
        }
        for name, values in (("labels", self.labels), ("real", self.real)):
            if values is not None:
                lengths[name] = values.shape[0]
        if len(set(lengths.values())) > 1:
            raise DataError(f"expected one row per record everywhere, got {lengths}")
        if self.columns.numeric.dim() > 2:
            raise DataError(f"numeric: {DEEPER.format(self.columns.numeric.dim())}")
        if self.transform is not None and self.transform.columns != self.columns.numeric.shape[1]:
            raise DataError(
                f"the transform is of {self.transform.columns} numeric columns, and there are "
                f"{self.columns.numeric.shape[1]}"
            )

    def __repr__(self) -> str:
        """Return how many there are, and what they have."""
        numbers, codes = (part.shape[1] for part in self.columns)
        labels = "" if self.labels is None else ", with labels"
        return f"Records({self.count} records of {numbers} numbers and {codes} codes{labels})"

    @property
    def count(self) -> int:
        """Number of records."""
        return self.ids.shape[0]

    def rows(self, index: Tensor) -> Records:
        """Return the records at these positions, int64 ``(k,)``, in their order."""
        labels, real = (None if own is None else _gathered(own, index) for own in (self.labels, self.real))
        columns = self._transformed(self.columns.rows(index))
        if self.row_norm is not None:
            columns = columns.bounded(self.row_norm)
        return Records(_gathered(self.ids, index), columns, labels, real, self.row_norm, index)

    def part(self, index: Tensor) -> Records:
        """Return some of these records, which were taken before, as they are: int64 ``(k,)``, in their order."""
        labels, real = (None if own is None else _gathered(own, index) for own in (self.labels, self.real))
        positions = None if self.positions is None else _gathered(self.positions, index)
        ids, columns = _gathered(self.ids, index), self.columns.rows(index)
        return Records(ids, columns, labels, real, self.row_norm, positions, self.transform)

    def to(self, device: torch.device | str) -> Records:
        """Return the records on a device."""
        labels, real = (None if own is None else own.to(device) for own in (self.labels, self.real))
        ids, columns = self.ids.to(device), self.columns.to(device)
        return Records(ids, columns, labels, real, self.row_norm, self.positions, self.transform)

    def taken_like(self, others: Records) -> Records:
        """Return the same records, taken with the transform and the norm of others."""
        return replace(self, row_norm=others.row_norm, transform=others.transform)

    @property
    def transformed(self) -> Columns:
        """All columns after the transform, if there is one, and before rows are scaled down to a norm."""
        return self._transformed(self.columns)

    def _transformed(self, columns: Columns) -> Columns:
        if self.transform is None:
            return columns
        return Columns(self.transform.of(columns.numeric), columns.categorical)

    @property
    def judged(self) -> Tensor | None:
        """The labels that attacks are judged by: NaN, in float64, where a dummy has none of its own."""
        if self.labels is None or self.real is None:
            return self.labels
        return self.labels.double().masked_fill(~self.real, torch.nan)

    @property
    def own_labels(self) -> Tensor:
        """The labels of all records but dummies; empty where there are none."""
        if self.labels is None:
            return torch.zeros(0)
        return self.labels if self.real is None else self.labels[self.real]


NO_RECORDS = Records(torch.zeros(0, dtype=torch.int64), Columns.of(torch.zeros(0, 0)))


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How a party's columns became numbers: what a trained model needs to read new records.

    Attributes:
        encoding: What was learned of its table's columns; ``None`` where its tables say so.
        id_column: The column of that table that names the records, if one does.
        tables: The folder of its tables, where ``splitvfl ingest`` wrote them.
        id_rule: Version of the rule by which its ids became numbers (:mod:`splitvfl.data.id_column`).
    """

    encoding: FittedEncoding | None = None
    id_column: str | None = None
    tables: Path | None = None
    id_rule: RuleVersion = ID_RULE


@dataclass(frozen=True)
class Shards:
    """Records in shards that lie apart, each at a worker of its own.

    Attributes:
        sizes: How many training records each shard has.
        tests: How many test records each has.
        here: Which of them this process has. ``None``: all, one behind the other.
    """

    sizes: tuple[int, ...]
    tests: tuple[int, ...]
    here: int | None = None


@dataclass(frozen=True, eq=False)
class PartyData:
    """Everything that one party holds, or one of its workers, whose records lie apart from the others'.

    Attributes:
        name: The party's name.
        column_names: The table's columns that it holds, as named there.
        numeric_names: Names of the columns of ``numeric``, after encoding: ``AGE``, ``AGE missing``, ``SEX=2``.
        field_sizes: Vocabulary size of each categorical field, the code 0 for "unknown" included.
        train: Training records.
        test: Test records.
        field_names: Names of the categorical fields, in the order of ``field_sizes``; empty if they have none.
        provenance: How the table's columns became numbers; ``None``: they came as numbers, and nobody knows.
        doubts: Columns that may not be what they were taken for, for people to look at.
        shards: How its records are divided, where they lie in shards; ``None``: they are one table.
        selected_by_label: Whether records were left out as they have no label, which partners see.
        divided_by_ids: Whether ids alone decide which records are tested; if not, that may be made from labels.
    """

    name: str
    column_names: tuple[str, ...]
    numeric_names: tuple[str, ...]
    field_sizes: tuple[int, ...]
    train: Records
    test: Records
    field_names: tuple[str, ...] = ()
    provenance: Provenance | None = None
    doubts: tuple[Doubt, ...] = ()
    shards: Shards | None = None
    selected_by_label: bool = False
    divided_by_ids: bool = False

    def __repr__(self) -> str:
        """Return its name, and how much it holds."""
        return (
            f"PartyData({self.name!r}: {len(self.column_names)} columns, {self.train.count} training and "
            f"{self.test.count} test records)"
        )

    def in_shards(self, shards: Shards) -> PartyData:
        """Return the same data, which are one of several shards.

        Raises:
            DataError: If it has not as many training records.
        """
        assert shards.here is not None, "these are one of them"
        expected = shards.sizes[shards.here]
        if self.train.count != expected:
            raise DataError(f"shard {shards.here} has {self.train.count} training records, and had {expected} just now")
        return replace(self, shards=shards)

    @cached_property
    def seems_stratified(self) -> bool:
        """Whether labels may decide which records are tested, in proportion to the classes or otherwise.

        Each class has the share of test records that a stratified division gives it, to one record; or class and part
        depend on one another: a test of independence finds it, or a class that a part lacks is expected there. Numbers
        are compared by their ranks. All that happens by chance too, and nobody can tell these from each other: the
        first the more often the fewer records there are, the second in about one of 1,000 random divisions.
        Not where ids divide the records, or nothing does as all are in both parts.
        """
        train, test = self.train.own_labels, self.test.own_labels
        if self.divided_by_ids or self.train.ids is self.test.ids or not len(train) or not len(test):
            return False
        parts = torch.cat([train, test])
        if parts.is_floating_point() and not bool(((parts == 0) | (parts == 1)).all()):
            return bool(scipy.stats.mannwhitneyu(train.cpu().numpy(), test.cpu().numpy()).pvalue < _BY_CHANCE)
        classes, members = parts.unique(return_inverse=True)
        counts = [torch.bincount(part, minlength=len(classes)) for part in members.split([len(train), len(test)])]
        table = torch.stack(counts).cpu().double().numpy()
        sizes, shares = table.sum(0), table.sum(1, keepdims=True) / len(parts)
        if bool((abs(table - shares * sizes) < 1.0).all()):
            return True
        lacking = (table == 0) & ((1.0 - shares) ** sizes < _BY_CHANCE / len(classes))
        common = table[:, (shares * sizes).min(0) >= _FEWEST_EXPECTED]
        depends = common.shape[1] > 1 and scipy.stats.chi2_contingency(common).pvalue < _BY_CHANCE
        return bool(depends or lacking.any())

    @property
    def training_records(self) -> int:
        """Number of training records, those of all shards together."""
        return self.train.count if self.shards is None else sum(self.shards.sizes)

    @property
    def test_records(self) -> int:
        """Number of test records, those of all shards together."""
        return self.test.count if self.shards is None else sum(self.shards.tests)

    @property
    def width(self) -> int:
        """Number of numeric columns after encoding, ``d``."""
        return len(self.numeric_names)

    def with_row_norm(self, norm: float | None) -> PartyData:
        """Return the same data, of which every row is scaled down to this Euclidean norm when it is taken.

        Args:
            norm: Above 0; ``None`` takes rows as they are.
        """
        return replace(self, train=replace(self.train, row_norm=norm), test=replace(self.test, row_norm=norm))

    def with_transform(self, transform: Transform | None) -> PartyData:
        """Return the same data, whose numeric columns are transformed when rows are taken.

        Args:
            transform: See :mod:`splitvfl.data.transform`; ``None`` takes them as they are.

        Raises:
            DataError: If it is of another number of columns.
        """
        train, test = (replace(part, transform=transform) for part in (self.train, self.test))
        return replace(self, train=train, test=test)

    @property
    def transform(self) -> Transform | None:
        """What is done to the numeric columns when rows are taken; ``None``: nothing."""
        return self.train.transform


@dataclass(frozen=True, eq=False)
class VerticalData:
    """A data set whose columns belong to different parties.

    Attributes:
        name: Name of the data set.
        task: ``"binary"``, ``"multiclass"`` or ``"regression"``.
        classes: 2 for binary, k for multi-class, 1 for regression.
        active: The party that holds the labels; it may have no columns.
        passives: The other parties by name, in the order of the experiment.
        description: One line for people.
    """

    name: str
    task: TaskName
    classes: int
    active: PartyData
    passives: Mapping[str, PartyData]
    description: str

    def __repr__(self) -> str:
        """Return what it is, and which party holds how much."""
        parties = (self.active, *self.passives.values())
        held = ", ".join(f"{party.name} {len(party.column_names)}" for party in parties)
        return (
            f"VerticalData({self.name!r}, {self.task}; columns: {held}; {self.active.train.count} training and "
            f"{self.active.test.count} test records; {self.description})"
        )

    def __getitem__(self, party: str) -> PartyData:
        """Return the data of the party with this name.

        Raises:
            ArgumentError: If there is none.
        """
        parties = {self.active.name: self.active, **self.passives}
        if party not in parties:
            raise ArgumentError(f"no party {party!r} in {self.name}; expected one of {', '.join(parties)}")
        return parties[party]


def columns_of(batch: Records) -> Tensor:
    """Return the numeric columns of a batch in double precision, ``(n, d)``."""
    return batch.columns.numeric.to(torch.float64)


def with_one(columns: Tensor) -> Tensor:
    """Return columns with the intercept's one behind, ``(n, d + 1)``."""
    return torch.cat([columns, columns.new_ones(len(columns), 1)], dim=1)
