"""Which columns have few values, and which: what an attacker is assumed to know who searches them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from splitvfl.data.columns import PartyData, Records
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Alphabet
from splitvfl.leakage.categories import category_groups
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
    place = {int(column): number for number, column in enumerate(box.varying.nonzero().flatten())}
    groups = [[at for at in one.places if at in place] for one in category_groups(data)]
    groups = [one for one in groups if len(one) > 1]
    grouped = {at for one in groups for at in one}
    alone = [[at] for at in place if at not in grouped]
    found = _few_values([*groups, *alone], data.train, box)
    return tuple(Alphabet(tuple(place[at] for at in columns), values) for columns, values in found)


def _few_values(groups: Sequence[Sequence[int]], records: Records, box: Box) -> Iterator[tuple[Sequence[int], Tensor]]:
    """Yield the groups of columns that take few values, with these."""
    seen: dict[int, Tensor] = {number: torch.empty(0, len(one)).double() for number, one in enumerate(groups)}
    # A first small piece leaves out most columns that are continuous.
    first = min(records.count, 10 * MOST_VALUES)
    for rows in (torch.arange(first), *torch.arange(first, records.count).split(_PIECE)):
        if not seen or not len(rows):
            continue
        points = box.unit(records.rows(rows).columns.numeric.cpu())
        seen = {
            number: torch.unique(torch.cat([values, points[:, list(groups[number])]]), dim=0)
            for number, values in seen.items()
        }
        seen = {
            number: values
            for number, values in seen.items()
            if len(values) <= max(MOST_VALUES, len(groups[number]) + 1)
        }
    for number, values in seen.items():
        if len(groups[number]) > 1 or len(values) * _OFTEN <= records.count:
            yield groups[number], values
