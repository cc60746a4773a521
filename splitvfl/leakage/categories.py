"""Categories among a party's columns of numbers, and how many of them an estimate gets right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splitvfl.data.columns import PartyData
from splitvfl.errors import ArgumentError
from splitvfl.leakage.remaining_bits import category_bits_left

_ROUNDING = 1e-9  # float64 breaks no tie


@dataclass(frozen=True, slots=True)
class CategoryGroup:
    """What a record has one of several of: one-hot columns side by side, or one column of two values.

    Attributes:
        column: Name of the table's column that they stand for.
        places: Which columns they are, from 0.
    """

    column: str
    places: tuple[int, ...]


def category_groups(data: PartyData) -> list[CategoryGroup]:
    """Return the categories that became columns of 0 and 1, as far as it is known how columns were encoded."""
    if data.provenance is None or data.provenance.encoding is None:
        return []
    place = {name: number for number, name in enumerate(data.numeric_names)}
    return [
        CategoryGroup(column, tuple(place[name] for name in names))
        for column, names in data.provenance.encoding.indicators.items()
    ]


def varying_groups(groups: Sequence[CategoryGroup], varying: Tensor) -> list[CategoryGroup]:
    """Return groups by their places among the columns that vary; those of which less than two vary are none.

    Args:
        groups: By places among all columns.
        varying: Which columns vary, ``(d,)``, bool.
    """
    place = {int(column): number for number, column in enumerate(varying.nonzero().flatten())}
    kept = [CategoryGroup(one.column, tuple(place[p] for p in one.places if p in place)) for one in groups]
    return [one for one in kept if len(one.places) > 1]


def flags_among(
    names: Sequence[str], two_valued: Sequence[bool], groups: Sequence[CategoryGroup]
) -> list[CategoryGroup]:
    """Return columns of two values that are in no group.

    Args:
        names: Of the columns.
        two_valued: Which of them have two values.
        groups: The groups among them.
    """
    taken = {place for group in groups for place in group.places}
    return [
        CategoryGroup(name, (place,)) for place, name in enumerate(names) if two_valued[place] and place not in taken
    ]


@dataclass(frozen=True, slots=True)
class CategoryLeak:
    """What an estimate tells of one category.

    Attributes:
        column: Name of the table's column.
        right: Share of records whose category is the one with the largest estimate; a tie counts in part.
        commonest: What answering the commonest one for every record gives.
        bits: Entropy of the category, in bits.
        bits_left: What is left of it to who has the category with the largest estimate.
    """

    column: str
    right: float
    commonest: float
    bits: float
    bits_left: float


def flags(truth: Tensor, names: Sequence[str], groups: Iterable[CategoryGroup]) -> list[CategoryGroup]:
    """Return the columns that are 0 or 1 in every record, both of which occur, and that are in no group.

    Args:
        truth: ``(n, d)``, in the unit box.
        names: Of the columns.
        groups: Categories among them.
    """
    taken = {place for one in groups for place in one.places}
    two = ((truth == 0) | (truth == 1)).all(dim=0) & (truth.amin(dim=0) < truth.amax(dim=0))
    return [CategoryGroup(names[at], (at,)) for at in two.nonzero().flatten().tolist() if at not in taken]


def judge_category(group: CategoryGroup, estimate: Tensor, truth: Tensor) -> CategoryLeak:
    """Return what an estimate of all columns tells of one category.

    Args:
        group: Which columns it is.
        estimate: ``(n, d)``.
        truth: ``(n, d)``; in the group's columns as :func:`share_right` expects it.

    Raises:
        ArgumentError: As :func:`share_right`.
    """
    guessed, true = estimate[:, list(group.places)], truth[:, list(group.places)]
    right = share_right(guessed, true)
    sides = _both_sides(true.double())
    # A record of no category is of one more.
    numbers = torch.where((sides > 0).any(dim=1), sides.argmax(dim=1), sides.shape[1])
    answers = _both_sides(guessed.double()).argmax(dim=1)
    bits, left = (category_bits_left(numbers, told) for told in (torch.zeros_like(numbers), answers))
    return CategoryLeak(group.column, right, commonest_share(true), bits, left)


def share_right(estimate: Tensor, truth: Tensor) -> float:
    """Return the share of records whose category is the one with the largest estimate; a tie counts in part.

    A record without any of the categories cannot be right.

    Args:
        estimate: ``(n, c)``; of a flag ``(n, 1)``, which is right on its side of ½.
        truth: ``(n, c)``, positive in one column or in none, and 0 elsewhere.

    Raises:
        ArgumentError: If shapes differ, or there is nothing in them.

    >>> share_right(torch.tensor([[0.2, 0.3], [0.4, 0.4]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    0.75
    """
    if estimate.shape != truth.shape or truth.dim() != 2 or not truth.numel():
        raise ArgumentError(f"expected estimate and truth (n, c), got {tuple(estimate.shape)}, {tuple(truth.shape)}")
    return records_right(estimate, truth).mean().item()


def records_right(estimate: Tensor, truth: Tensor) -> Tensor:
    """Return of each record whether its category is the one with the largest estimate, ``(n,)``, float64, 0 to 1.

    Args:
        estimate: As of :func:`share_right`.
        truth: Likewise.
    """
    guessed, true = (_both_sides(columns.double()) for columns in (estimate, truth))
    largest = guessed >= guessed.amax(dim=1, keepdim=True) - _ROUNDING
    hit = (largest & (true > 0)).any(dim=1).double()
    return hit / largest.sum(dim=1)


def commonest_share(truth: Tensor) -> float:
    """Return how often one category alone is right: what knowing nothing of a record gives.

    Args:
        truth: As of :func:`share_right`.
    """
    return (_both_sides(truth.double()) > 0).double().mean(dim=0).max().item()


def _both_sides(columns: Tensor) -> Tensor:
    return torch.cat([1.0 - columns, columns], dim=1) if columns.shape[1] == 1 else columns
