"""Wide & Deep across parties: a deep tower at the passive party, the wide part at the active party."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn
from torch.nn import functional

from splitvfl.errors import ArgumentError, ConfigError, DataError, shown, suggestion
from splitvfl.learning.tasks import Task
from splitvfl.models.mlp import MLP
from splitvfl.party.recipe import Count, Held, Recipe, Widths, check_size, weights_of_layers
from splitvfl.team.sharded_table import ShardedTable
from splitvfl.team.team import Team

if TYPE_CHECKING:
    from splitvfl.data.columns import Columns, PartyData

_MOST_EMBEDDING = 4096
_MOST_BUCKETS = 2**31 - 1  # as for hashed columns, whose codes have 32 bits
_BUCKETS = 100_000
_EMBEDDING_DEVIATION = 0.01

# From this many rows on, a table's gradient is sparse where nobody says otherwise: a dense optimiser would then spend
# longer on rows that a batch of some hundred records does not touch than on the rest of the step.
SPARSE_ROWS = 100_000

# Constants of splitmix64, as signed numbers of 64 bits.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIXERS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def has_sparse_gradient(rows: int, sparse: bool | None) -> bool:
    """Return whether the gradient of a table with so many rows is sparse; ``None``: it depends on their number."""
    return rows >= SPARSE_ROWS if sparse is None else sparse


class FieldTable(nn.Module):
    """Vectors of the categories of several fields, kept in one table.

    Category c of field j is row ``offset_j + c``. One table costs a half to a third of one table per field.

    Args:
        field_sizes: Number of categories per field, each at least 1; at least one field.
        dim: Length of a vector.
        sparse: Whether the table's gradient is sparse; far cheaper for large tables, for optimisers that take it
            (:class:`~splitvfl.learning.optimizers.RowWiseAdagrad`, SparseAdam, Adagrad, SGD). ``None``: from 100 000
            rows on.
        initialise: Fills the table in place; of a table that is divided, block by block.
        team: The workers of a party among which the table is divided, if its gradient is sparse; ``None``: it is not.

    Attributes:
        table: All vectors, ``(sum(field_sizes), dim)``; of a table that is divided, what this worker has of it.
        sparse: As decided.

    Raises:
        ArgumentError: If there is no field, or a size is below 1.
    """

    offsets: Tensor
    sizes: Tensor

    def __init__(
        self,
        field_sizes: Sequence[int],
        dim: int,
        *,
        sparse: bool | None,
        initialise: Callable[[Tensor], Tensor],
        team: Team | None = None,
    ) -> None:
        super().__init__()
        if not field_sizes or min(*field_sizes, dim) < 1:
            raise ArgumentError(f"expected fields and a dimension of at least 1, got {list(field_sizes)} and {dim}")
        sizes = torch.tensor(field_sizes)
        rows = sum(field_sizes)
        self.sparse = has_sparse_gradient(rows, sparse)
        self.table: nn.Parameter | ShardedTable
        if self.sparse and team is not None and team.size > 1:
            self.table = ShardedTable(rows, dim, team, initialise=initialise)
        else:
            self.table = nn.Parameter(torch.empty(rows, dim))
            initialise(self.table)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the vectors, ``(n, fields, dim)``.

        Args:
            codes: ``(n, fields)``, int64 or int32, each from 0 to its field's size less one.

        Raises:
            ArgumentError: If the number of fields does not fit.
            DataError: If a code is out of range; the message names its field by position.
        """
        if codes.dim() != 2 or codes.shape[1] != self.sizes.numel():
            raise ArgumentError(f"expected codes (n, {self.sizes.numel()}), got {tuple(codes.shape)}")
        self._check_range(codes)
        rows = codes + self.offsets
        if isinstance(self.table, ShardedTable):
            vectors: Tensor = self.table(rows)
            return vectors
        return functional.embedding(rows, self.table, sparse=self.sparse)

    def _check_range(self, codes: Tensor) -> None:
        # A code out of its field's range would silently be a category of another field.
        wrong = (codes < 0) | (codes >= self.sizes)
        if wrong.any():
            row, field = wrong.nonzero()[0].tolist()
            raise DataError(
                f"categorical field {field} has codes 0 to {self.sizes[field].item() - 1}, "
                f"got {codes[row, field].item()} in row {row} of the batch"
            )


class Crosses(nn.Module):
    """Weights of combinations of categories: the cross-product transformations of the wide part.

    A cross of the fields j₁ … j_m has one weight vector per combination of their categories; a combination is hashed
    to one of ``buckets``, and combinations that meet in a bucket share it. Each cross has buckets of its own. The
    weights start from zero.

    The bucket is ``h mod buckets`` of the upper 63 bits of ``h = mix(… mix(mix(c₁) ⊕ c₂) … ⊕ c_m)``, where mix is
    splitmix64: integers only, so it is the same on every machine and device. It is no keyed hash and hides nothing.

    Source: Cheng et al., DLRS 2016, arXiv:1606.07792, section 3.1; Steele et al., OOPSLA 2014 (splitmix64).

    Args:
        fields: Positions of each cross's fields among the codes: at least two different ones each.
        outputs: Length of a weight vector.
        buckets: Buckets per cross.
        sparse: As :class:`FieldTable`.
        team: As :class:`FieldTable`.

    Raises:
        ArgumentError: If there is no cross, a cross has fewer than two fields or one twice, or a size is below 1.
    """

    def __init__(
        self,
        fields: Sequence[Sequence[int]],
        outputs: int,
        *,
        buckets: int,
        sparse: bool | None,
        team: Team | None = None,
    ) -> None:
        super().__init__()
        wrong = [list(cross) for cross in fields if len(cross) < 2 or len(set(cross)) < len(cross) or min(cross) < 0]
        if wrong:
            raise ArgumentError(f"a cross needs at least two different fields by position, got {wrong[0]}")
        self.fields = tuple(tuple(cross) for cross in fields)
        self.buckets = buckets
        self.weights = FieldTable([buckets] * len(fields), outputs, sparse=sparse, initialise=nn.init.zeros_, team=team)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the sum of the weights of each record's combinations, ``(n, outputs)``.

        Args:
            codes: ``(n, fields)``, int64 or int32.
        """
        columns = codes.long().unbind(dim=1)
        buckets = [_bucket([columns[field] for field in cross], self.buckets) for cross in self.fields]
        logits: Tensor = self.weights(torch.stack(buckets, dim=1)).sum(dim=1)
        return logits


def _bucket(codes: Sequence[Tensor], buckets: int) -> Tensor:
    hashed = torch.zeros_like(codes[0])
    for code in codes:
        hashed = _splitmix64(hashed ^ code)
    bucket: Tensor = _shifted(hashed, 1) % buckets
    return bucket


def _splitmix64(values: Tensor) -> Tensor:
    """Return the finaliser of splitmix64 of each number; multiplication wraps around, as it does in C."""
    mixed = values + _GOLDEN
    for shift, factor in _MIXERS:
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    return mixed ^ _shifted(mixed, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift right without sign; torch's own shift of int64 copies the sign."""
    shifted: Tensor = (values >> bits) & (2 ** (64 - bits) - 1)
    return shifted


class WideDeepBottom(nn.Module):
    """The passive party's deep tower: embeddings of its categories and its numbers, through an MLP.

    ``MLP([numeric, e_1, …, e_f])`` with ReLU after every layer. Embeddings start from N(0, 0.01²). Where the model is
    cut is said by the widths: the layers that are not here are the ``hidden`` ones of :class:`WideDeepTop`.

    Source: Cheng et al., DLRS 2016, arXiv:1606.07792; split as in Li et al., ICLR 2022, arXiv:2102.08504, section 4.

    Args:
        numeric_inputs: Number of numeric columns, at least 0.
        field_sizes: Number of categories of every categorical field; may be empty.
        embedding_dim: Length of a category's embedding.
        widths: Widths of the deep layers; the last one is the width of the cut.
        sparse: Whether the embeddings have sparse gradients; see :class:`FieldTable`.
        team: The workers among which they are divided then; see :class:`FieldTable`.

    Raises:
        ArgumentError: If there is neither a numeric nor a categorical column, or a size is too small.
    """

    def __init__(
        self,
        numeric_inputs: int,
        field_sizes: Sequence[int] = (),
        *,
        embedding_dim: int = 12,
        widths: Sequence[int] = (128, 128, 128, 128),
        sparse: bool | None = False,
        team: Team | None = None,
    ) -> None:
        super().__init__()
        self._numeric_inputs = _checked_count(numeric_inputs)
        self.embeddings = (
            FieldTable(field_sizes, embedding_dim, sparse=sparse, initialise=_small_normal, team=team)
            if field_sizes
            else None
        )
        self.deep = MLP(numeric_inputs + len(field_sizes) * embedding_dim, widths)

    def forward(self, columns: Tensor | Columns) -> Tensor:
        """Return the activation, ``(n, widths[-1])``.

        Args:
            columns: Numeric columns ``(n, numeric_inputs)`` and codes ``(n, fields)``; the numeric columns alone
                where there is no categorical field.

        Raises:
            ArgumentError: If the number of columns does not fit.
            DataError: If a code is out of range.
        """
        numeric, codes = _parts(columns, self._numeric_inputs, self.embeddings)
        if self.embeddings is not None and codes is not None:
            numeric = torch.cat([numeric, self.embeddings(codes).flatten(1)], dim=1)
        activation: Tensor = self.deep(numeric)
        return activation


class WideDeepTop(nn.Module):
    """The active party's half: the rest of the deep part, and the whole wide part on its own columns.

    ``logits = V MLP(h) + b + W x + Σ_j w_j[c_j] + Σ_k u_k[cross_k(c)]``, with h the activations, x the numeric columns
    and c_j the categories of the active party. Without hidden layers, the model is cut before the last layer, and
    ``MLP(h) = h``. The wide weights start from zero. It is called with the activations and the active party's columns
    apart (``separate_active``), as categories cannot be joined with activations.

    Source: Cheng et al., DLRS 2016, arXiv:1606.07792; cut before the last layer, and after the second of four, in
    Li et al., ICLR 2022, arXiv:2102.08504.

    Args:
        activation_inputs: Width of the joined activations.
        numeric_inputs: Number of the active party's numeric columns, at least 0.
        field_sizes: Number of categories of each of its categorical fields; may be empty.
        outputs: Number of logits.
        hidden: Widths of the deep layers behind the cut, each with ReLU.
        crosses: For each cross, the positions of its fields among the active party's; see :class:`Crosses`.
        cross_buckets: Buckets of each cross.
        sparse: Whether the weights of categories and crosses have sparse gradients; see :class:`FieldTable`.
        team: The workers among which they are divided then; see :class:`FieldTable`.

    Raises:
        ArgumentError: If a size is too small, or a cross names a field that is not there.
    """

    separate_active: ClassVar[bool] = True

    def __init__(
        self,
        activation_inputs: int,
        numeric_inputs: int = 0,
        field_sizes: Sequence[int] = (),
        outputs: int = 1,
        *,
        hidden: Sequence[int] = (),
        crosses: Sequence[Sequence[int]] = (),
        cross_buckets: int = 100_000,
        sparse: bool | None = False,
        team: Team | None = None,
    ) -> None:
        super().__init__()
        if min(activation_inputs, outputs) < 1:
            raise ArgumentError(f"expected at least 1 activation and 1 output, got {activation_inputs} and {outputs}")
        _check_positions(crosses, len(field_sizes))
        self._numeric_inputs = _checked_count(numeric_inputs)
        self.hidden = MLP(activation_inputs, hidden) if hidden else None
        self.last = nn.Linear(hidden[-1] if hidden else activation_inputs, outputs)
        self.wide_numeric = nn.Linear(numeric_inputs, outputs, bias=False) if numeric_inputs else None
        if self.wide_numeric is not None:
            nn.init.zeros_(self.wide_numeric.weight)
        self.wide_fields = (
            FieldTable(field_sizes, outputs, sparse=sparse, initialise=nn.init.zeros_, team=team)
            if field_sizes
            else None
        )
        self.crosses = Crosses(crosses, outputs, buckets=cross_buckets, sparse=sparse, team=team) if crosses else None

    def forward(self, activation: Tensor, active: Tensor | Columns | None = None) -> Tensor:
        """Return the logits, ``(n, outputs)``.

        Args:
            activation: Joined activations, ``(n, activation_inputs)``.
            active: The active party's columns; ``None`` where it has none.

        Raises:
            ArgumentError: If the number of columns does not fit.
            DataError: If a code is out of range.
        """
        logits: Tensor = self.last(activation if self.hidden is None else self.hidden(activation))
        if active is None:
            active = activation.new_empty(activation.shape[0], 0)
        numeric, codes = _parts(active, self._numeric_inputs, self.wide_fields)
        if self.wide_numeric is not None:
            logits = logits + self.wide_numeric(numeric)
        if self.wide_fields is not None and codes is not None:
            logits = logits + self.wide_fields(codes).sum(dim=1)
            logits = logits if self.crosses is None else logits + self.crosses(codes)
        return logits


class WideDeepAlone(nn.Module):
    """Wide & Deep over the columns of one party, with nobody beside it.

    Args:
        deep: The deep tower, :class:`WideDeepBottom`.
        wide: What it ends in, with the wide part over the same columns, :class:`WideDeepTop`.
    """

    def __init__(self, deep: WideDeepBottom, wide: WideDeepTop) -> None:
        super().__init__()
        self.deep, self.wide = deep, wide

    def forward(self, columns: Tensor | Columns) -> Tensor:
        """Return the logits, ``(n, outputs)``.

        Args:
            columns: As :class:`WideDeepBottom` takes them.
        """
        logits: Tensor = self.wide(self.deep(columns), columns)
        return logits


def _small_normal(table: Tensor) -> Tensor:
    return nn.init.normal_(table, std=_EMBEDDING_DEVIATION)


def _check_positions(crosses: Sequence[Sequence[int]], fields: int) -> None:
    highest = max((field for cross in crosses for field in cross), default=-1)
    if highest >= fields:
        raise ArgumentError(f"crosses of {fields} categorical fields name positions 0 to {fields - 1}, got {highest}")


def _checked_count(numeric_inputs: int) -> int:
    if numeric_inputs < 0:
        raise ArgumentError(f"expected at least 0 numeric inputs, got {numeric_inputs}")
    return numeric_inputs


def _parts(columns: Tensor | Columns, numeric_inputs: int, fields: FieldTable | None) -> tuple[Tensor, Tensor | None]:
    """Return numeric columns, and codes where there are fields, after a check that neither is missing or left over."""
    numeric, codes = (columns, None) if isinstance(columns, Tensor) else (columns.numeric, columns.categorical)
    expected = 0 if fields is None else fields.sizes.numel()
    given = 0 if codes is None else codes.shape[1]
    if numeric.shape[1] != numeric_inputs or given != expected:
        raise ArgumentError(
            f"expected {numeric_inputs} numeric columns and {expected} categorical fields, "
            f"got {numeric.shape[1]} and {given}"
        )
    return numeric, codes


def _at_least_two(fields: tuple[str, ...]) -> tuple[str, ...]:
    if len(fields) < 2 or len(set(fields)) < len(fields):
        raise ValueError(f"expected the names of at least two different fields, got {shown(list(fields))}")
    return fields


Cross = Annotated[tuple[str, ...], AfterValidator(_at_least_two)]


@dataclass(frozen=True, kw_only=True)
class WideDeepRecipe(Recipe):
    """Wide & Deep: embeddings and a deep tower at each passive party, the wide part at the active one.

    Works with: every task; exchanges split and one-way; columns of numbers and categories.

    In a file: ``model: {name: wide-deep, bottom: [128, 128, 128, 128], cut_after: 2}``

    Source: Cheng et al., *Wide & Deep Learning for Recommender Systems*, DLRS 2016, arXiv:1606.07792.

    Attributes:
        embedding_dim: Numbers that stand for one category.
        bottom: Widths of the deep layers.
        cut_after: How many of them are at each passive party; the others are at the active party, over what all passive
            parties send. ``null`` leaves all to the passive parties.
        crosses: Combinations of the active party's categorical fields, by name, that get weights of their own.
        cross_buckets: Into how many weights each of them is hashed. Only with crosses.
        sparse: Whether tables of categories have sparse gradients, and with them an optimiser of their own
            (``train.embedding_optimizer``); ``null``: tables of 100 000 rows or more, of all fields together.
        private_top: As for ``mlp``: the layers behind the cut and the wide part once more.
        tables: Where a party has several workers, whether each of them holds a part of the rows of tables that have
            sparse gradients, ``sharded``, or all of them, ``replicated``. ``null``: a part, if the tables' optimiser
            moves each row by that row's gradients alone.
        dense: Likewise for the other weights of each passive party's layers.

    Raises:
        ArgumentError: If there are not so many layers to cut after, tables are to be divided and have no sparse
            gradients, or ``cross_buckets`` is set and there are no crosses.
    """

    name: ClassVar[str] = "wide-deep"
    takes_fields: ClassVar[bool] = True

    embedding_dim: Annotated[int, Field(ge=1, le=_MOST_EMBEDDING)] = 12
    bottom: Widths = (128, 128, 128, 128)
    cut_after: Count | None = None
    crosses: tuple[Cross, ...] = ()
    cross_buckets: Annotated[int, Field(ge=1, le=_MOST_BUCKETS)] = _BUCKETS
    sparse: bool | None = None
    private_top: bool = False
    tables: Held | None = None
    dense: Held = "replicated"
    team: Team | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check where it is cut."""
        if self.cut_after is not None and self.cut_after > len(self.bottom):
            raise ArgumentError(f"cut_after is {self.cut_after}, and bottom has {len(self.bottom)} layers to cut after")
        # The settings that a run writes down hold every default.
        if not self.crosses and self.cross_buckets != _BUCKETS:
            raise ArgumentError(
                f"cross_buckets is {self.cross_buckets}, and there are no crosses to hash; write crosses, or leave it "
                "out"
            )
        if self.tables == "sharded" and self.sparse is False:
            raise ArgumentError(
                "tables: sharded divides tables with sparse gradients, and sparse is false; leave one of them out"
            )

    @property
    def _cut(self) -> int:
        return self.cut_after or len(self.bottom)

    def make_bottom(self, columns: PartyData, task: Task) -> WideDeepBottom:
        """Return the deep tower up to the cut."""
        dim, widths = self.embedding_dim, self.bottom[: self._cut]
        inputs = columns.width + len(columns.field_sizes) * dim
        check_size("model.embedding_dim", columns.name, self._held(sum(columns.field_sizes)) * dim)
        check_size("model.bottom", columns.name, weights_of_layers(inputs, widths))
        return WideDeepBottom(
            columns.width, columns.field_sizes, embedding_dim=dim, widths=widths, sparse=self.sparse, team=self.team
        )

    def make_top(self, columns: PartyData, task: Task, widths: Sequence[int]) -> nn.Module:
        """Return the layers behind the cut, and the wide part; without partners, the whole of it over the own columns.

        Raises:
            ConfigError: If a cross names a field that the active party has not.
        """
        if not widths:
            deep = self.make_bottom(columns, task)
            return WideDeepAlone(deep, self._wide_part(columns, task, [self.bottom[self._cut - 1]]))
        return self._wide_part(columns, task, widths)

    def _wide_part(self, columns: PartyData, task: Task, widths: Sequence[int]) -> WideDeepTop:
        hidden = self.bottom[self._cut :]
        buckets = len(self.crosses) * self.cross_buckets
        check_size("model.cross_buckets", columns.name, self._held(buckets) * task.outputs)
        check_size("model.bottom", columns.name, weights_of_layers(sum(widths), [*hidden, task.outputs]))
        return WideDeepTop(
            sum(widths),
            columns.width,
            columns.field_sizes,
            task.outputs,
            hidden=hidden,
            crosses=[[_position(name, columns) for name in cross] for cross in self.crosses],
            cross_buckets=self.cross_buckets,
            sparse=self.sparse,
            team=self.team,
        )

    def among(self, team: Team) -> WideDeepRecipe:
        """Return the recipe of a worker, which holds its part of the tables that are divided."""
        recipe = replace(self)
        object.__setattr__(recipe, "team", None if self.tables == "replicated" else team)
        return recipe

    def _held(self, rows: int) -> int:
        """Return how many rows of a table one worker holds."""
        divided = self.team is not None and has_sparse_gradient(rows, self.sparse)
        return -(-rows // self.team.size) if divided and self.team is not None else rows

    def options_for_width(self, width: int) -> Mapping[str, Any]:
        """Return another last layer before the cut."""
        return {"bottom": (*self.bottom[: self._cut - 1], width, *self.bottom[self._cut :])}

    def options_for_cut(self, layers: int) -> Mapping[str, Any]:
        """Return the same layers, cut elsewhere."""
        if not 1 <= layers <= len(self.bottom):
            raise ConfigError(f"--cuts: the model has {len(self.bottom)} deep layers, got a cut after {layers}")
        return {"cut_after": layers}


def _position(name: str, columns: PartyData) -> int:
    """Return the position of a categorical field of the active party."""
    if name in columns.field_names:
        return columns.field_names.index(name)
    if name in columns.column_names:
        hint = " (the column is not categorical; data.categorical_columns can make it so)"
    else:
        hint = suggestion(name, columns.field_names) or "; it has none"
    raise ConfigError(f"model.crosses: {columns.name} has no categorical field {name!r}{hint}")
