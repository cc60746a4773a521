"""Two worlds told apart: a test learned on some draws, an event chosen on others, and judged on the rest.

By Neyman and Pearson the best events are those where the likelihood ratio of the two worlds is above a threshold. It is
learned from draws: in one dimension as the ratio in bins, where values that come back are bins of their own, so that
thresholds, intervals, unions of them and atoms are all among the events; of wider messages as a linear and a quadratic
function of all entries, as a quadratic one of entries and their squares, as the sum over entries of such ratios, and by
boosting, which finds what is in none of these. Which of these, and which threshold, is chosen on draws that taught none
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from splitvfl.errors import ArgumentError, count, probability
from splitvfl.learning.odds import Vector, share_bounds
from splitvfl.privacy.audit.boosted import boosted
from splitvfl.privacy.audit.bounds import Direction, deltas, epsilons, mus

Messages = npt.NDArray[np.float64]
Draw = Callable[[int], npt.NDArray[np.floating]]
"""Draws so many independent messages of one world, ``(n,)`` or ``(n, d)``."""

Kind = Literal["epsilon", "delta", "mu", "advantage"]

_BINS = 200
_ATOM = 8  # a value that comes back so often among those that teach is no accident of a continuous law
_RIDGE = 1e-9
_MOST_TAUGHT = 250_000  # draws of each world that teach
_LEAST_BOOSTED = 2_500  # draws of each world: from fewer, trees learn little
_PIECE = 1 << 17  # draws of each world that are in memory at once, of those that choose and judge
_NONE = np.empty(0)


class Objective(NamedTuple):
    """What is bounded from below.

    Attributes:
        kind: ``"epsilon"`` at a δ, ``"delta"`` at an ε, ``"mu"``, or ``"advantage"``: 1 − FPR − FNR.
        given: That δ, or that ε.
    """

    kind: Kind
    given: float = 0.0

    def of(self, low: Vector, high: Vector) -> Vector:
        """Return what P(S) ≥ low and Q(S) ≤ high prove."""
        match self.kind:
            case "epsilon":
                return epsilons(low, high, self.given)
            case "delta":
                return deltas(low, high, self.given)
            case "mu":
                return mus(low, high)
            case "advantage":
                return low - high


@dataclass(frozen=True, slots=True)
class Measured:
    """A lower bound, and what proves it.

    Attributes:
        objective: What it is of.
        bound: At least so much, at ``confidence``; 0: nothing is proven.
        ceiling: The most that so many draws could have proven.
        event: The counts of the event that proves it.
        statistic: By which test: of one number ``"threshold"`` or ``"ratio"``, of more ``"linear"``, ``"quadratic"``,
            ``"squares"``, ``"entries"`` or ``"boosted"``.
        confidence: Share of measurements whose bound holds.
    """

    objective: Objective
    bound: float
    ceiling: float
    event: Direction
    statistic: str
    confidence: float


def measure(
    first: Draw, second: Draw, objective: Objective, *, draws: int, confidence: float = 0.95, boosting: bool = True
) -> Measured:
    """Return what the messages of two worlds prove of how well they can be told apart.

    A quarter of the draws teaches tests, a quarter chooses one test and its thresholds, and half judges them: once in
    each direction, the first world likely and the second likely, at half of ``1 − confidence`` each. No more than
    250,000 teach; the others are drawn piece by piece, so that millions of them need little memory.

    Args:
        first: Draws messages of one world.
        second: Draws messages of the other.
        objective: What to bound.
        draws: Of each world, at least 100.
        confidence: Share of measurements whose bound holds, in (0, 1).
        boosting: Whether a test of wide messages is boosted too, which takes a second or two; from 10,000 draws on.

    Raises:
        ArgumentError: If there are fewer draws, messages have other shapes, or are not finite.

    >>> rng = np.random.default_rng(0)
    >>> found = measure(rng.standard_normal, lambda n: 1 + rng.standard_normal(n), Objective("mu"), draws=20_000)
    >>> 0.85 < found.bound < 1.0
    True
    """
    if count("draws", draws) < 100:
        raise ArgumentError(f"expected at least 100 draws of each world, got {draws}")
    alpha = (1.0 - probability("confidence", confidence)) / 4.0
    quarter = draws // 4
    taught = min(quarter, _MOST_TAUGHT)
    tests = _learn(_drawn(first, taught), _drawn(second, taught), boosting=boosting)
    # As many choose as before: a rare event is only known for one among many draws.
    chosen = _best(_tallies(tests, first, second, quarter), quarter, objective, alpha)
    judged = draws - taught - quarter
    events = _judged(chosen, first, second, judged)
    bounds = [float(_proven(objective, alpha, event)) for event in events]
    best = int(np.argmax(bounds))
    ceiling = float(_proven(objective, alpha, Direction(judged, judged, 0, judged)))
    return Measured(objective, max(0.0, bounds[best]), ceiling, events[best], chosen[best].test.name, confidence)


def _drawn(draw: Draw, number: int) -> Messages:
    found = np.asarray(draw(number), dtype=np.float64)
    if len(found) != number:
        raise ArgumentError(f"expected {number} messages, got {len(found)}")
    if not np.isfinite(found).all():
        raise ArgumentError("messages hold NaN or infinite values")
    return found.reshape(number, -1)


class _Test(NamedTuple):
    name: str
    score: Callable[[Messages], Vector]
    """The log likelihood ratio of the first world to the second, as far as the test sees it."""


class _Choice(NamedTuple):
    test: _Test
    threshold: float


class _Tally(NamedTuple):
    """How often a test gave which score in both worlds.

    Attributes:
        test: The test.
        values: The scores, ascending.
        counts: Of each, in the first world and in the second, ``(2, number)``.
    """

    test: _Test
    values: Vector
    counts: npt.NDArray[np.int64]

    def events(self, side: int) -> tuple[Vector, npt.NDArray[np.int64]]:
        """Return thresholds, and how often a score reaches each, in both worlds.

        Args:
            side: 0: that of the first world is large; 1: of the other, whose scores have the other sign.
        """
        if side == 0:
            return self.values, self.counts[:, ::-1].cumsum(axis=1)[:, ::-1]
        return -self.values, self.counts.cumsum(axis=1)


def _tallies(tests: Sequence[_Test], first: Draw, second: Draw, number: int) -> list[_Tally]:
    """Return what the tests give on so many draws of each world; a test is a table, and gives few values."""
    found = [_Tally(test, np.empty(0), np.zeros((2, 0), dtype=np.int64)) for test in tests]
    for size in _pieces(number):
        for world, draw in enumerate((first, second)):
            messages = _drawn(draw, size)
            found = [_with_scores(tally, world, tally.test.score(messages)) for tally in found]
    return found


def _with_scores(tally: _Tally, world: int, scores: Vector) -> _Tally:
    new, counts = np.unique(scores, return_counts=True)
    values = np.union1d(tally.values, new)
    merged = np.zeros((2, len(values)), dtype=np.int64)
    merged[:, np.searchsorted(values, tally.values)] = tally.counts
    merged[world, np.searchsorted(values, new)] += counts
    return _Tally(tally.test, values, merged)


def _best(tallies: Sequence[_Tally], number: int, objective: Objective, alpha: float) -> tuple[_Choice, _Choice]:
    """Return for each direction the test and the threshold that prove most where the event is ``score ≥ threshold``.

    Scores of the second direction, in which the second world is likely, are those of the first with the other sign.
    """

    def choice(side: int) -> _Choice:
        found = []
        for tally in tallies:
            thresholds, reached = tally.events(side)
            low, _ = share_bounds(reached[side], number, lower_alpha=alpha, upper_alpha=alpha)
            _, high = share_bounds(reached[1 - side], number, lower_alpha=alpha, upper_alpha=alpha)
            proven = objective.of(low, high)
            best = int(np.argmax(proven))
            found.append((float(proven[best]), _Choice(tally.test, float(thresholds[best]))))
        return max(found, key=lambda each: each[0])[1]

    return choice(0), choice(1)


def _judged(chosen: tuple[_Choice, _Choice], first: Draw, second: Draw, number: int) -> tuple[Direction, Direction]:
    """Return how often the events of both directions happen among so many draws of each world."""
    # By direction and world: of each world the same draws are judged in both.
    hits = np.zeros((2, 2), dtype=np.int64)
    for size in _pieces(number):
        for world, draw in enumerate((first, second)):
            messages = _drawn(draw, size)
            scores: dict[int, Vector] = {}
            for side, (test, threshold) in enumerate(chosen):
                if id(test) not in scores:
                    scores[id(test)] = test.score(messages)
                score = scores[id(test)] if side == 0 else -scores[id(test)]
                hits[side, world] += np.count_nonzero(score >= threshold)
    likely, unlikely = (hits[side].tolist() for side in (0, 1))
    return Direction(likely[0], number, likely[1], number), Direction(unlikely[1], number, unlikely[0], number)


def _pieces(number: int) -> Iterator[int]:
    yield from (min(_PIECE, number - begun) for begun in range(0, number, _PIECE))


def _proven(objective: Objective, alpha: float, event: Direction) -> Vector:
    low, _ = share_bounds(event.hits, event.draws, lower_alpha=alpha, upper_alpha=alpha)
    _, high = share_bounds(event.other_hits, event.other_draws, lower_alpha=alpha, upper_alpha=alpha)
    return objective.of(low, high)


# --- likelihood ratios


def _learn(first: Messages, second: Messages, *, boosting: bool) -> list[_Test]:
    """Return tests, each a likelihood ratio in bins of one number per message."""
    if first.shape[1] != second.shape[1]:
        raise ArgumentError(f"expected messages of one width, got {first.shape[1]} and {second.shape[1]}")
    if first.shape[1] == 1:
        return list(_binned("ratio", "threshold", lambda messages: messages[:, 0], first, second))
    entries = [_ratio(first[:, column], second[:, column], _NONE) for column in range(first.shape[1])]

    def summed(messages: Messages) -> Vector:
        total: Vector = np.sum([ratio(messages[:, column]) for column, ratio in enumerate(entries)], axis=0)
        return total

    projections: list[tuple[str, Callable[[Messages], Vector]]] = [("entries", summed)]
    projections += [("linear", _linear(first, second)), ("quadratic", _quadratic(first, second))]
    forms = _quadratic(_with_squares(first), _with_squares(second))
    projections.append(("squares", lambda messages: forms(_with_squares(messages))))
    if boosting and len(first) >= _LEAST_BOOSTED:
        projections.append(("boosted", boosted(first, second)))
    return [test for name, project in projections for test in _binned(name, name, project, first, second)]


def _binned(
    name: str, ordered: str, project: Callable[[Messages], Vector], first: Messages, second: Messages
) -> Iterator[_Test]:
    """Yield the ratio of one number in bins of quantiles, and with bins for values that come back, if there are any.

    And the order of the bins: which of two rare ones is rarer in the other world, no ratio of few draws knows.
    """
    samples = project(first), project(second)
    yield _Test(ordered, _composed(_order(*samples), project))
    values, counts = np.unique(np.concatenate(samples), return_counts=True)
    atoms = values[counts >= _ATOM]
    # Values that came back may do so because draws are not independent: then the bins without them are right.
    for kept in (atoms[:0], atoms)[: 1 + bool(len(atoms))]:
        yield _Test(name, _composed(_ratio(*samples, kept), project))


def _composed(ratio: Callable[[Vector], Vector], project: Callable[[Messages], Vector]) -> Callable[[Messages], Vector]:
    return lambda messages: ratio(project(messages))


def _ratio(first: Vector, second: Vector, atoms: Vector) -> Callable[[Vector], Vector]:
    """Return the log likelihood ratio in bins: of quantiles, finer towards both ends, and one for each atom."""
    pooled = np.concatenate([first, second])
    rest = pooled[~np.isin(pooled, atoms)] if len(atoms) else pooled
    edges = np.unique(np.quantile(rest, _levels(len(rest)))) if len(rest) else np.empty(0)

    def place(numbers: Vector) -> npt.NDArray[np.int64]:
        found = np.searchsorted(edges, numbers, side="right")
        if len(atoms):
            near = np.minimum(np.searchsorted(atoms, numbers), len(atoms) - 1)
            found = np.where(atoms[near] == numbers, len(edges) + 1 + near, found)
        return found

    size = len(edges) + 1 + len(atoms)
    logs = [
        np.log(np.bincount(place(sample), minlength=size) + 0.5) - np.log(len(sample)) for sample in (first, second)
    ]
    table = logs[0] - logs[1]
    return lambda numbers: table[place(numbers)]


def _order(first: Vector, second: Vector) -> Callable[[Vector], Vector]:
    """Return the number of the bin, with the sign with which it is larger in the first world."""
    pooled = np.concatenate([first, second])
    edges = np.unique(np.quantile(pooled, _levels(len(pooled))))

    def place(numbers: Vector) -> Vector:
        return np.searchsorted(edges, numbers, side="right").astype(np.float64)

    sign = 1.0 if place(first).mean() >= place(second).mean() else -1.0
    return lambda numbers: sign * place(numbers)


def _levels(size: int) -> Vector:
    """Return levels of quantiles: evenly spaced, and on to the last ten of a sample at both ends."""
    even = np.arange(1, _BINS) / _BINS
    tails = np.geomspace(min(10.0 / size, 0.5 / _BINS), 1.0 / _BINS, 24)[:-1]
    return np.concatenate([tails, even, 1.0 - tails])


def _linear(first: Messages, second: Messages) -> Callable[[Messages], Vector]:
    spread = np.cov(first, rowvar=False) + np.cov(second, rowvar=False)
    gap = first.mean(axis=0) - second.mean(axis=0)
    weights = np.linalg.solve(spread + _ridge(spread), gap)
    return lambda messages: messages @ weights


def _quadratic(first: Messages, second: Messages) -> Callable[[Messages], Vector]:
    forms = [_Normal.fitted(sample) for sample in (first, second)]
    return lambda messages: forms[0].log_density(messages) - forms[1].log_density(messages)


def _with_squares(messages: Messages) -> Messages:
    """Return entries and their squares: a form of them vanishes where two entries have noise of one size."""
    return np.concatenate([messages, np.square(messages)], axis=1)


class _Normal(NamedTuple):
    mean: Vector
    whiten: Vector
    log_volume: float

    @classmethod
    def fitted(cls, sample: Messages) -> _Normal:
        spread = np.cov(sample, rowvar=False)
        values, vectors = np.linalg.eigh(spread + _ridge(spread))
        values = np.maximum(values, np.finfo(np.float64).tiny)
        return cls(sample.mean(axis=0), vectors / np.sqrt(values), float(0.5 * np.log(values).sum()))

    def log_density(self, messages: Messages) -> Vector:
        found: Vector = -0.5 * np.square((messages - self.mean) @ self.whiten).sum(axis=1) - self.log_volume
        return found


def _ridge(spread: Vector) -> Vector:
    """Return what keeps a matrix of one value, or of entries that follow from each other, invertible."""
    scale = float(np.trace(spread)) / len(spread)
    ridge: Vector = np.eye(len(spread)) * (_RIDGE * scale if scale > 0 else 1.0)
    return ridge
