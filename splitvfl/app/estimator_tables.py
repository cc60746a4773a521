"""What estimators are given, as tables: frames as they are, arrays with a name for each column."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy
import torch
from pydantic import ValidationError
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor

from splitvfl.app.transforms import transform_for
from splitvfl.config.sections import TransformConfig
from splitvfl.data.arrow_table import as_arrow
from splitvfl.data.cell_format import Origin
from splitvfl.data.columns import PartyData, Records
from splitvfl.data.doubts import DoubtWarning, doubts_of, in_words
from splitvfl.data.drift import ColumnDrift
from splitvfl.data.encoding import Encoded, FittedEncoding
from splitvfl.data.labels import Labels
from splitvfl.data.load import as_written, check_input, fit, party_of, records_of
from splitvfl.data.partition import REST
from splitvfl.data.plain_columns import list_groups
from splitvfl.data.same_order import RESET, index_against
from splitvfl.data.schema import Role
from splitvfl.data.spec import PartyClaim, TableSpec, check_parties
from splitvfl.data.transform import Transform
from splitvfl.errors import DEEPER, ArgumentError, DataError
from splitvfl.learning.randomness import derive_seed

SOURCE = "X"
"""What the table is called in messages."""

_ORIGIN: Final = Origin(SOURCE, lambda row: f"{SOURCE}, row {row} (from 0)", typed=True, is_file=False)

Position = int | slice
Claim = str | float | Sequence[str | int] | slice


@dataclass(frozen=True)
class FittedParty:
    """One party's columns, and how they become numbers.

    Attributes:
        name: The party.
        columns: Its columns, in the table's order.
        encoding: What was learned of them.
        transform: What is done to its numeric columns, if anything.
    """

    name: str
    columns: tuple[str, ...]
    encoding: FittedEncoding
    transform: Transform | None = None

    def new_data(self, table: pa.Table, *, norm: float | None) -> tuple[PartyData, tuple[ColumnDrift, ...]]:
        """Return all rows of a table as this party's records to predict, and how they differ from those of training.

        Raises:
            DataError: As :meth:`data`.
        """
        encoded = self.encoding.apply(table, source=SOURCE, count=True)
        return self._data(encoded, table.num_rows, train=False, norm=norm), self.encoding.drift(encoded.counts)

    def data(self, table: pa.Table, *, train: bool, labels: Labels | None = None, norm: float | None) -> PartyData:
        """Return all rows of a table as this party's records: to train on, or else to predict.

        Args:
            table: The table.
            train: Whether they are trained on.
            labels: At the active party, ``(n,)``.
            norm: Largest norm of a record's numbers; longer ones are scaled down.

        Raises:
            DataError: If a column is of another kind than it was, or holds what cannot be encoded.
        """
        encoded = self.encoding.apply(table, source=SOURCE)
        if train:
            role: Role = "passive" if labels is None else "active"
            everything = np.arange(table.num_rows, dtype=np.int64)
            check_input(PartyClaim(self.name, role), encoded, everything, source=SOURCE)
        return self._data(encoded, table.num_rows, train=train, labels=labels, norm=norm)

    def _data(
        self, encoded: Encoded, count: int, *, train: bool, labels: Labels | None = None, norm: float | None
    ) -> PartyData:
        rows = np.arange(count, dtype=np.int64)
        used = records_of(encoded, rows, rows, labels)
        parts = (used, _none_of(used)) if train else (_none_of(used), used)
        return party_of(self.name, self.columns, encoded, *parts).with_transform(self.transform).with_row_norm(norm)


def transformed(
    parties: Sequence[FittedParty], table: pa.Table, chosen: Mapping[str, Any], *, seed: int | None
) -> list[FittedParty]:
    """Return the parties with the transforms of their columns, drawn anew where they are by chance.

    Args:
        parties: The active party first.
        table: All rows that are trained on.
        chosen: By passive party: a name, or a mapping with its options, as an experiment has them.
        seed: For what is drawn; ``None``: from the operating system's entropy.

    Raises:
        ArgumentError: If there is no such passive party, or its transform does not fit its columns.
    """
    passive = [party.name for party in parties[1:]]
    if not isinstance(chosen, Mapping):
        raise ArgumentError(
            f"transforms: expected a mapping from a passive party ({', '.join(passive)}) to its transform, such as "
            f"{{{passive[0]!r}: 'flip'}}, got {chosen!r}"
        )
    unknown = [name for name in chosen if name not in passive]
    if unknown:
        raise ArgumentError(f"transforms: {unknown[0]!r} is no passive party; there are {', '.join(passive)}")
    return [
        replace(party, transform=_transform(party, table, chosen[party.name], seed)) if party.name in chosen else party
        for party in parties
    ]


def _transform(party: FittedParty, table: pa.Table, chosen: Any, seed: int | None) -> Transform:
    settings = {"name": chosen} if isinstance(chosen, str) else dict(chosen)
    drawn = settings.get("name") in ("permute", "orthonormal") and settings.get("matrix") is None
    if drawn and seed is not None:
        settings = {"seed_for_experiments": derive_seed(seed, "transform", party.name), **settings}
    try:
        return transform_for(TransformConfig(**settings), party.data(table, train=True, norm=None))
    except ValidationError as error:
        told = "; ".join(": ".join([*map(str, one["loc"]), one["msg"]]) for one in error.errors())
        raise ArgumentError(f"transforms[{party.name!r}]: {told}") from error
    except (ArgumentError, DataError) as error:
        raise ArgumentError(f"transforms[{party.name!r}]: {error}") from error


def _none_of(records: Records) -> Records:
    return replace(records.rows(torch.zeros(0, dtype=torch.int64)), positions=None)


@dataclass(frozen=True)
class FittedColumns:
    """The columns that an estimator was fitted on.

    Attributes:
        names: Their names, in order.
        named: Whether the user gave them: of an array they are ``x0``, ``x1`` and so on.
    """

    names: tuple[str, ...]
    named: bool


def table_of(estimator: BaseEstimator, given: Any, *, fitted: FittedColumns | None, allow_nan: bool) -> pa.Table:
    """Return what an estimator was given, checked as scikit-learn does, as a table.

    scikit-learn warns where one of the two, what was fitted on and what is given now, has names and the other has none.
    Columns are then taken by position, as its own estimators do.

    Args:
        estimator: The estimator. Before a fit it gets ``n_features_in_``, and ``feature_names_in_`` of a frame, and
            else it is compared with them.
        given: A frame, of which every column may have a type of its own; or an array or tensor of numbers,
            ``(n, columns)``, whose columns are called ``x0``, ``x1`` and so on. After a fit on a frame an array of
            objects may hold its text.
        fitted: What it was fitted on; ``None``: it is fitted on this.
        allow_nan: Whether arrays may have gaps.

    Raises:
        ValueError: If it is no array of numbers, or another table than was trained on.
        DataError: If a column cannot be one.
    """
    reset = fitted is None
    # A matrix of scipy's may be a mapping too.
    frame = as_arrow(given, called=SOURCE) if isinstance(given, Mapping) and not scipy.sparse.issparse(given) else given
    if is_frame(frame):
        validate_data(estimator, frame, reset=reset, skip_check_array=True)
        table = as_arrow(frame, called=SOURCE)
        if not table.num_rows:
            raise ArgumentError(f"found 0 sample(s) in {SOURCE}, while a minimum of 1 is required")
        return table if fitted is None or fitted.named else table.rename_columns(list(fitted.names))
    values = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
    if (dimensions := _dimensions(values)) > 2:
        raise ArgumentError(f"{SOURCE}: {DEEPER.format(dimensions)}")
    if fitted is not None and fitted.named and _may_hold_text(values):
        # The encoding looks for gaps and infinite numbers, as of a frame.
        values = validate_data(estimator, values, reset=False, dtype=object, ensure_all_finite=False)
        typed = zip(fitted.names, values.T, strict=True)
        return as_arrow({name: _typed(column, name) for name, column in typed}, called=SOURCE)
    finite = "allow-nan" if allow_nan else True
    values = validate_data(estimator, values, reset=reset, dtype="numeric", ensure_all_finite=finite)
    return as_arrow(values) if fitted is None else as_arrow(values).rename_columns(list(fitted.names))


def _may_hold_text(values: Any) -> bool:
    """Return whether an array can have text in one column and numbers in another; a list of lists can."""
    return not scipy.sparse.issparse(values) and getattr(getattr(values, "dtype", None), "kind", "O") == "O"


def _typed(column: npt.NDArray[Any], name: str) -> pa.Array:
    """Return a column of objects in the type of its values, as pandas' ``infer_objects`` does."""
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"column {name!r} of {SOURCE} holds values of several types: {error}") from error


def _dimensions(values: Any) -> int:
    """Return how many dimensions an array has, or lists within lists."""
    if isinstance(values, list | tuple):
        return 1 + (_dimensions(values[0]) if values else 0)
    return int(getattr(values, "ndim", 0))


def is_frame(given: Any) -> bool:
    """Return whether something is a table whose columns have names."""
    return any(hasattr(given, name) for name in ("__dataframe__", "__arrow_c_stream__", "iloc"))


def fit_parties(
    table: pa.Table,
    claims: Mapping[str, Claim],
    spec: TableSpec,
    *,
    active_name: str,
    categorical: object,
    text: object = (),
) -> list[FittedParty]:
    """Return which party holds which columns, and how they become numbers; the active party comes first.

    Args:
        table: All rows are learned from.
        claims: By passive party; the active party has what is left.
        spec: How columns become numbers.
        active_name: Name of the active party.
        categorical: Numeric columns that hold categories: names, patterns and positions.
        text: Columns whose text stays as it stands, likewise.

    Raises:
        ArgumentError: If a position is none, or parties contradict each other.
        DataError: If columns are not there, are claimed twice, or cannot be encoded.
    """
    names = table.column_names
    groups = list_groups(table.schema)
    passive = {name: _by_name(claim, groups, f"parties[{name!r}]") for name, claim in claims.items()}
    own = () if REST in passive.values() else REST
    parties = [
        PartyClaim(active_name, "active", own),
        *(PartyClaim(name, "passive", claim) for name, claim in passive.items()),
    ]
    spec = replace(
        spec,
        categorical_columns=_by_name(categorical, groups, "categorical_columns"),
        text_columns=_by_name(text, groups, "text_columns"),
    )
    rows = np.arange(table.num_rows, dtype=np.int64)
    check_parties(parties)
    division = spec.divide(names, parties, source=SOURCE)
    table, written = as_written(spec, division, table, division.kept, _ORIGIN)
    doubts = doubts_of(table, division.kept, categories=spec.categories(division, source=SOURCE), written=written)
    lines = list(in_words([doubt for doubt in doubts if doubt.kind == "numbers"]))
    if lines:
        warnings.warn(f"columns may not be what they were taken for\n  {lines[0]}", DoubtWarning, stacklevel=4)
    return [
        FittedParty(name, columns, fit(spec, division, table, columns, train=rows, source=SOURCE))
        for name, columns in division.held.items()
    ]


def _by_name(claim: Any, groups: Sequence[Sequence[str]], called: str) -> Any:
    """Return a claim in which positions have become names: all of a column of lists, which is at one position."""
    if isinstance(claim, slice):
        return [name for group in groups[claim] for name in group]
    if isinstance(claim, str | float) or not isinstance(claim, Sequence | np.ndarray):
        return claim
    return [name for one in claim for name in (_names_at(one, groups, called) if _is_position(one) else [one])]


def _is_position(one: object) -> TypeGuard[int]:
    return isinstance(one, int | np.integer) and not isinstance(one, bool)


def _names_at(position: int, groups: Sequence[Sequence[str]], called: str) -> Sequence[str]:
    if not -len(groups) <= position < len(groups):
        raise ArgumentError(f"{called}: expected the position of one of {len(groups)} columns, got {position}")
    return groups[position]


def check_rows(table: pa.Table, labels: npt.NDArray[Any]) -> None:
    """Check that there is one label for each row, and more than one row.

    Raises:
        ValueError: If not.
    """
    check_consistent_length(np.empty(table.num_rows), labels)
    if table.num_rows < 2:
        raise ArgumentError("expected two records or more to train on, got 1 sample")


def check_order(table: Any, labels: Any) -> None:
    """Check that indexes of pandas, if both have one, do not contradict that labels are in the order of the rows.

    Raises:
        ArgumentError: If they do.
    """
    against = index_against(table, labels)
    if against:
        raise ArgumentError(
            f"rows of {SOURCE} and y are taken to belong together in their order, but {against}; bring y into the "
            f"order of {SOURCE} (y.loc[{SOURCE}.index]), or, if they belong together as they stand, call {RESET}"
        )


@contextmanager
def value_errors() -> Iterator[None]:
    """Turn what is wrong with data into the type of error that callers of estimators expect.

    Raises:
        ArgumentError: In place of a :class:`~splitvfl.errors.DataError`.
    """
    try:
        yield
    except DataError as error:
        raise ArgumentError(str(error)) from error
