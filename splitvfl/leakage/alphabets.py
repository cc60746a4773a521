"""Which columns have few values, and which: what an attacker is assumed to know who searches them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from splitvfl.data.columns import PartyData, Records
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Alphabet
from splitvfl.leakage.categories import category_groups, varying_groups
from splitvfl.leakage.unit_box import Box

MOST_VALUES = 100
"""A column, or a category, of more values than this counts as continuous."""

# Each value occurs this often on average: a few records of a continuous column have few values too.
_OFTEN = 4
_PIECE = 65_536  # records that are read at a time


def one_hot(places: Sequence[int]) -> Alphabet:
    """Return the alphabet of a category's columns: exactly one of them is 1, the others are 0."""
    return Alphabet(tuple(places), torch.eye(len(places), dtype=torch.float64))


def finite(place: int, values: Sequence[float]) -> Alphabet:
    """Return the alphabet of one column: whole numbers in the unit box, say."""
    return Alphabet((place,), torch.tensor(values, dtype=torch.float64).unsqueeze(1))


def check_alphabets(alphabets: Iterable[Alphabet], columns: int) -> list[Alphabet]:
    """Return alphabets in float64, if they are alphabets of different columns.

    Args:
        alphabets: The alphabets.
        columns: Number of columns, d.

    Raises:
        ArgumentError: If one has no column, or one that there is not; no value, one outside [0, 1], or one that occurs
            twice; or if a column is in two of them, or twice in one.
    """
    checked = [_checked(one, number, columns) for number, one in enumerate(alphabets)]
    taken: dict[int, int] = {}
    for number, one in enumerate(checked):
        for place in one.places:
            if place in taken:
                raise ArgumentError(
                    f"column {place} is in alphabet {taken[place]} and in alphabet {number}: one says which values it "
                    "takes, so join them, or leave one out"
                )
            taken[place] = number
    return checked


def _checked(one: Alphabet, number: int, columns: int) -> Alphabet:
    what = f"alphabet {number}"
    places, values = tuple(one.places), torch.as_tensor(one.values, dtype=torch.float64)
    if not places or len(set(places)) != len(places):
        raise ArgumentError(f"{what}: expected different columns, at least one, got {places}")
    beyond = [place for place in places if not 0 <= place < columns]
    if beyond:
        raise ArgumentError(f"{what}: there are {columns} columns, from 0 to {columns - 1}, and it names {beyond[0]}")
    if values.dim() != 2 or values.shape[1] != len(places) or not len(values):
        raise ArgumentError(
            f"{what}: expected values (c, {len(places)}), at least one row, got {tuple(values.shape)}: a column "
            "without a value contradicts every record"
        )
    if not bool(((values >= 0) & (values <= 1)).all()):  # NaN is not
        raise ArgumentError(f"{what}: expected values in [0, 1], the unit box, got {values.min()} to {values.max()}")
    if len(torch.unique(values, dim=0)) != len(values):
        raise ArgumentError(f"{what}: a possibility occurs twice; each is one candidate, so name it once")
    return Alphabet(places, values)


def known_alphabets(data: PartyData, box: Box) -> tuple[Alphabet, ...]:
    """Return the alphabets of a party's columns, as far as these have few values over the training records.

    A category's one-hot columns are one alphabet, of the rows that occur: a category that is listed nowhere, whose
    columns are all 0, is one of them if it occurs. Every other column is one by itself if it has at most 100 values,
    each of which occurs four times on average. A value that occurs among new records only is in none.

    Args:
        data: The party's data; columns are taken as its records are.
        box: Their range.

    Returns:
        Alphabets in the unit box; places count the columns that vary.
    """
    groups = [one.places for one in varying_groups(category_groups(data), box.varying)]
    grouped = {at for places in groups for at in places}
    alone = [(at,) for at in range(int(box.varying.sum())) if at not in grouped]
    return tuple(_few_values([*groups, *alone], data.train, box))


def _few_values(groups: Sequence[tuple[int, ...]], records: Records, box: Box) -> Iterator[Alphabet]:
    """Yield the groups of columns that take few values, with these."""
    seen = {places: torch.empty(0, len(places), dtype=torch.float64) for places in groups}
    # A first small piece leaves out most columns that are continuous.
    first = min(records.count, 10 * MOST_VALUES)
    for rows in (torch.arange(first), *torch.arange(first, records.count).split(_PIECE)):
        if not seen or not len(rows):
            continue
        points = box.unit(records.rows(rows).columns.numeric.cpu())[:, box.varying]
        seen = {places: _with_new(values, points[:, list(places)]) for places, values in seen.items()}
        seen = {places: values for places, values in seen.items() if len(values) <= max(MOST_VALUES, len(places) + 1)}
    for places, values in seen.items():
        if len(places) > 1 or len(values) * _OFTEN <= records.count:
            yield Alphabet(places, values)


def _with_new(values: Tensor, points: Tensor) -> Tensor:
    """Return the different rows of both, sorted."""
    if points.shape[1] == 1:
        found = torch.cat([values, torch.unique(points).unsqueeze(1)])
    elif bool(((points == 0) | (points == 1)).all()) and bool((points.sum(dim=1) <= 1).all()):
        # Rows of one 1, or none, by which it is: sorting whole rows takes ten times as long.
        numbers = torch.unique((points @ torch.arange(1, points.shape[1] + 1, dtype=points.dtype)).long())
        unit = torch.eye(points.shape[1] + 1, points.shape[1], dtype=points.dtype).roll(1, dims=0)
        found = torch.cat([values, unit[numbers]])
    else:
        found = torch.cat([values, points])
    rows: Tensor = torch.unique(found, dim=0)
    return rows
