"""A partner's categories as a reader of activations is asked for them: a column of zeros and ones for each.

A reader estimates numbers. So a categorical field is put before it as columns of indicators, behind the party's own
numeric columns, and its answer is the category whose indicator it estimates largest. One-hot columns that a party holds
as numbers are judged so too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.leakage.categories import CategoryGroup, category_groups

MOST_CATEGORIES: Final = 32
"""A field is read where so many indicators are enough for it."""

RARE_SHARE: Final = 0.05
"""Of the training records at most such a share has a category that counts as one of the others."""

_PIECE = 65_536  # records that are read at a time


@dataclass(frozen=True, eq=False, slots=True)
class _Field:
    """A categorical field with few categories.

    Attributes:
        place: Which of the party's fields it is.
        codes: Of the categories that have an indicator of their own, ``(c,)``.
        others: Whether one more indicator stands for all others.
    """

    place: int
    codes: Tensor
    others: bool

    @property
    def width(self) -> int:
        return len(self.codes) + self.others

    def indicators(self, codes: Tensor) -> Tensor:
        """Return zeros and ones for the codes of some records, ``(n, width)``, bool."""
        own = codes[:, None] == self.codes.to(codes)
        return torch.cat([own, ~own.any(dim=1, keepdim=True)], dim=1) if self.others else own


@dataclass(frozen=True, eq=False, slots=True)
class AskedCategories:
    """Which of a party's categories a reader is asked for.

    Attributes:
        fields: Categorical fields that are put before it as indicators, by name: places among all columns that it is
            asked for, numeric ones first.
        one_hot: Numeric columns side by side of which each record has one, by the name of the table's column.
        too_many: Fields of more categories than are asked for.
        single: Fields that have one and the same category in every record.
    """

    fields: tuple[CategoryGroup, ...] = ()
    one_hot: tuple[CategoryGroup, ...] = ()
    too_many: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    _asked: tuple[_Field, ...] = ()

    @property
    def width(self) -> int:
        """Number of indicators behind the numeric columns."""
        return sum(one.width for one in self._asked)

    def beside(self, columns: Columns) -> Tensor:
        """Return what is asked for of some records: their numeric columns, and the indicators behind them, ``(n, d)``.

        A category that no training record has is one of the others, or none at all.
        """
        numeric, codes = columns
        parts = [one.indicators(codes[:, one.place]).to(numeric.dtype) for one in self._asked]
        return torch.cat([numeric, *parts], dim=1) if parts else numeric


NO_CATEGORIES: Final = AskedCategories()


def asked_categories(data: PartyData) -> AskedCategories:
    """Return which of a party's categories readers are asked for.

    A field of at most 32 categories has an indicator for each. One of more has 31 for the most frequent and one for all
    others, if these are the categories of at most 5 % of the training records; it is not asked for otherwise.

    Args:
        data: The party's; its training records are counted once through.
    """
    names = data.field_names or tuple(f"field {place}" for place in range(len(data.field_sizes)))
    asked: list[_Field] = []
    groups: list[CategoryGroup] = []
    too_many, single, width = [], [], data.width
    for place, (name, counts) in enumerate(zip(names, _counted(data.train, data.field_sizes), strict=True)):
        field = _field(place, counts)
        if field is None:
            too_many.append(name)
        elif field.width < 2:
            single.append(name)
        else:
            asked.append(field)
            groups.append(CategoryGroup(name, tuple(range(width, width + field.width))))
            width += field.width
    one_hot = tuple(one for one in category_groups(data) if len(one.places) > 1)
    return AskedCategories(tuple(groups), one_hot, tuple(too_many), tuple(single), tuple(asked))


def _counted(train: Records, sizes: Sequence[int]) -> list[Tensor]:
    """Return how many records have each code of each field, ``(size,)`` each, read piece by piece."""
    counts = [torch.zeros(size, dtype=torch.int64) for size in sizes]
    for first in range(0, train.count if sizes else 0, _PIECE):
        codes = train.rows(torch.arange(first, min(first + _PIECE, train.count))).columns.categorical.cpu().long()
        for place, size in enumerate(sizes):
            counts[place] += torch.bincount(codes[:, place], minlength=size)
    return counts


def _field(place: int, counts: Tensor) -> _Field | None:
    """Return a field as it is asked for; ``None`` where it has too many categories."""
    order = counts.argsort(descending=True, stable=True)
    met = order[counts[order] > 0]
    if len(met) <= MOST_CATEGORIES:
        return _Field(place, met, others=False)
    own = met[: MOST_CATEGORIES - 1]
    others = 1 - counts[own].sum() / counts.sum()
    return _Field(place, own, others=True) if others <= RARE_SHARE else None
