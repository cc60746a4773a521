"""Whether known records span all that records of their kind can: the columns of a category add up to one in each."""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDING = 1e-9


def summing_groups(rows: Tensor) -> list[range]:
    """Return the groups of neighbouring columns that look like one category each: of one sum, by one 1 and else 0.

    Each column takes two values among the rows, one apart; records may be moved by a common vector.

    Args:
        rows: ``(N, d)``, N at least 2.
    """
    least, most = rows.amin(dim=0), rows.amax(dim=0)
    unit = rows - least
    flags = ((most - least - 1).abs() < _ROUNDING) & (torch.minimum(unit, 1 - unit).abs() < _ROUNDING).all(dim=0)
    found: list[range] = []
    first = 0
    while first < rows.shape[1]:
        group = _group_from(unit, flags, first)
        if group:
            found.append(group)
        first = group.stop if group else first + 1
    return found


def _group_from(unit: Tensor, flags: Tensor, first: int) -> range:
    """Return the group that begins with a column; an empty range if none does."""
    total = torch.zeros(len(unit), dtype=unit.dtype, device=unit.device)
    for last in range(first, unit.shape[1]):
        total = total + unit[:, last]
        if not flags[last] or total.max() > 1 + _ROUNDING:
            break
        if total.min() > 1 - _ROUNDING:
            return range(first, last + 1)
    return range(first, first)


def spans_all_but_sums(rows: Tensor, rank: int) -> bool:
    """Return whether rows span every direction but those in which the columns of categories add up.

    Where they do, what is linear and fits these rows fits every record whose categories add up too, whichever of the
    solutions is taken: they differ by what is the same for all such records. That categories do so among all records is
    taken from the known ones; a category that none of them has, whose column stays 0, counts as not spanned.

    Args:
        rows: ``(N, d)``; less their mean where a shift is unknown too.
        rank: Their rank, as the caller counts it.
    """
    if len(rows) <= rank + 1:  # a sum needs a record more than the others, to be seen in it
        return rank == rows.shape[1]
    groups = summing_groups(rows)
    sums = [rows[:, list(group)].sum(dim=1).mean().abs() > _ROUNDING for group in groups]
    # Sums that are no zero depend on each other: one of them is spanned by the rows themselves.
    return rank >= rows.shape[1] - len(groups) + int(any(sums))


def what_helps(rows: Tensor) -> str:
    """Return what would help where known records span too little, in words."""
    constant = (rows.amax(dim=0) - rows.amin(dim=0) <= _ROUNDING).sum() if len(rows) else rows.shape[1]
    still = f"{int(constant)} of {rows.shape[1]} columns are the same in all of them; " if constant else ""
    return (
        f"{still}name more records (known_rows), until every column varies and every category occurs among them; of "
        "columns that depend on each other otherwise than a category's do, which add up to one, keep one"
    )
