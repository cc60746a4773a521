"""What chance in the choice of test records makes of figures, and of their differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Draws of an interval, and records that are looked at in all of them together: large tables need fewer draws.
_MOST_DRAWS, _FEWEST_DRAWS, _MOST_WORK = 1000, 200, 20_000_000


@dataclass(frozen=True)
class Figure:
    """A figure with its interval.

    Attributes:
        value: On all records.
        low: 2.5 % quantile over draws of as many records with replacement; NaN where none has a value.
        high: 97.5 % quantile.
    """

    value: float
    low: float
    high: float


def paired_bootstrap(
    measures: Mapping[str, Callable[[Tensor], float]], count: int, *, seed: int = 0
) -> dict[str, tuple[Figure, list[float]]]:
    """Return figures with 95 % percentile intervals, and their values over draws: the same draws for all figures.

    The interval is that of a model as it is, on other test records of the same kind; how a model would turn out under
    another seed is not in it. There are 1000 draws, and 200 at least where there are more than 20 000 records.

    Source: Efron, Annals of Statistics 7 (1979).

    Args:
        measures: By name, what returns a figure on the records at these positions, int64.
        count: Number of records.
        seed: Decides the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = max(_FEWEST_DRAWS, min(_MOST_DRAWS, _MOST_WORK // max(count, 1)))
    values: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(draws):
        rows = torch.randint(count, (count,), generator=generator)
        for name, measure in measures.items():
            values[name].append(measure(rows))
    everything = torch.arange(count)
    return {name: (interval(measure(everything), values[name]), values[name]) for name, measure in measures.items()}


def interval(value: float, draws: Sequence[float]) -> Figure:
    """Return a figure with the interval that its values over draws give; draws without a value do not count."""
    known = torch.tensor([draw for draw in draws if math.isfinite(draw)], dtype=torch.float64)
    if not len(known):
        return Figure(value, math.nan, math.nan)
    low, high = torch.quantile(known, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Figure(value, low, high)
