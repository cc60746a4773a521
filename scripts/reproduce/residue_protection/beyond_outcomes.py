"""What came of the contenders beyond the paper: figures over seeds, intervals, and tests against ceilings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from scripts.reproduce.residue_protection.pareto import Choice
from scripts.reproduce.residue_protection.protections import Contender
from scripts.reproduce.residue_protection.study import Problem, table_of
from scripts.reproduce.shared.claims import Interval, mean
from scripts.reproduce.shared.jobs import Result
from splitvfl.privacy import label_success_ceiling

OWN, RATIOS = "own-prediction", "likelihood ratios"

LEVEL = 0.05
"""Of all comparisons of a kind together: each has this over their number."""


class Compared(NamedTuple):
    """A mean over seeds, and its interval.

    Attributes:
        middle: The mean.
        ends: Of the interval; ``None`` with one seed.
    """

    middle: float
    ends: Interval | None

    @property
    def surely_below(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.ends is not None and self.ends[1] < 0.0

    def surely_above(self, level: float) -> bool:
        """Return whether the whole interval is above a level."""
        return self.ends is not None and self.ends[0] > level


def corrected(values: Sequence[float], *, comparisons: int, least: float = -1.0) -> Compared:
    """Return the mean over seeds, with an interval that is one of so many.

    Student's t at ``.05 / comparisons`` (Bonferroni): all of the intervals hold together with a probability of .95. It
    holds for values that are roughly normal over seeds. It is cut where no mean can be.

    Args:
        values: One per seed; differences of two methods with the same seed, where methods are compared.
        comparisons: How many intervals are looked at together.
        least: The least that a value can be: 0 of shares, −1 of differences of shares. None can be above 1.
    """
    known = np.array(values, dtype=np.float64)
    middle = mean(known.tolist())
    if known.size < 2:
        return Compared(middle, None)
    half = stats.t.ppf(1.0 - LEVEL / comparisons / 2.0, known.size - 1) * known.std(ddof=1) / math.sqrt(known.size)
    return Compared(middle, (max(middle - float(half), least), min(middle + float(half), 1.0)))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one contender on one problem.

    Attributes:
        problem: Which.
        contender: Which.
        cells: What :func:`~scripts.reproduce.residue_protection.beyond_runs.contend` returned, one for each seed.
        step_seconds: Processor time of a step.
    """

    problem: Problem
    contender: Contender
    cells: Sequence[Result]
    step_seconds: float

    @property
    def key(self) -> str:
        """Key of the contender."""
        return self.contender.key

    @property
    def epsilon(self) -> float:
        """ε of a label over the whole run."""
        return self.contender.protection.label_epsilon(self.problem.epochs)

    @property
    def ceiling(self) -> float:
        """What any attack on coins can get at most."""
        return 1.0 if math.isinf(self.epsilon) else label_success_ceiling(self.epsilon)

    @property
    def uses(self) -> float:
        """How often a record is learned from in one training, on average."""
        used = self.contender.rows(self.problem.batch_size)
        if self.contender.selection is not None:
            used = self.contender.selection.used
        return float(self.cells[0]["steps"]) * used / len(table_of(self.problem, 0).train)

    @property
    def seconds(self) -> float:
        """Processor time of a training, extrapolated from measured steps."""
        return self.step_seconds * float(self.cells[0]["steps"])

    def values(self, name: str) -> list[float]:
        """Return ``accuracy`` or ``auc``, one per seed."""
        return [cell[name] for cell in self.cells]

    def read(self, attack: str, figure: str) -> list[float]:
        """Return a figure of an attack, one per seed; none if the attack does not apply."""
        return [cell["attacks"][attack][figure] for cell in self.cells if attack in cell["attacks"]]

    @property
    def attacks(self) -> list[str]:
        """The attacks that apply."""
        return list(self.cells[0]["attacks"])

    @property
    def best(self) -> str:
        """The attack that reads most coins over the run.

        Where residues cross, likelihood ratios: nothing reads a coin better, by Neyman and Pearson. Elsewhere the one
        of the largest mean over seeds; a choice among five flatters it by about a standard error.
        """
        if RATIOS in self.attacks:
            return RATIOS
        return max(self.attacks, key=lambda attack: mean(self.read(attack, "run_coins")))

    def most(self, figure: str) -> float:
        """Return the largest mean of a figure over attacks on messages: of :attr:`best` where residues cross."""
        reading = [RATIOS] if RATIOS in self.attacks else [attack for attack in self.attacks if attack != OWN]
        means = [mean(self.read(attack, figure)) for attack in reading]
        return max((value for value in means if not math.isnan(value)), default=math.nan)

    def beyond_ceiling(self, attack: str) -> float:
        """Return how likely it is that an attack at the ceiling gets as many coins right as this one, or more.

        Of all seeds together. Coins on which it does not decide are left out, as they may be (section 6 of
        Steinke et al., arXiv:2305.08846): whatever is guessed, each guess is right with the ceiling's probability at
        most, whatever the others were.
        """
        guessed, right = (sum(self.read(attack, name)) for name in ("guessed", "right"))
        return float(stats.binom.sf(right - 1, guessed, self.ceiling))

    def coins_between(self, attack: str, *, comparisons: int) -> Interval:
        """Return the exact interval of the share of guessed coins that an attack gets right, one of so many intervals.

        Of all seeds together: coins are tossed independently, so that nothing need be estimated from a few seeds.
        """
        guessed, right = (sum(self.read(attack, name)) for name in ("guessed", "right"))
        found = stats.binomtest(right, guessed).proportion_ci(1.0 - LEVEL / comparisons)
        return float(found.low), float(found.high)

    @property
    def choice(self) -> Choice:
        """What one gets of it, and at which cost."""
        return Choice(
            accuracy=mean(self.values("accuracy")),
            read=mean(self.read(self.best, "run_coins")),
            seconds=self.seconds,
        )


Outcomes = Mapping[Problem, Sequence[Outcome]]


def of_key(outcomes: Sequence[Outcome], key: str) -> Outcome | None:
    """Return the outcome of a contender, ``None`` where it did not take part."""
    return next((one for one in outcomes if one.key == key), None)


def differences(one: Outcome, other: Outcome, name: str) -> list[float]:
    """Return by how much one has more than another, with the same seed."""
    return [mine - theirs for mine, theirs in zip(one.values(name), other.values(name), strict=True)]


def above_ceilings(outcomes: Outcomes) -> tuple[int, list[tuple[Outcome, str]]]:
    """Return how many attacks were held against a ceiling below 1, and which got more than it allows.

    By :meth:`Outcome.beyond_ceiling`, at .05 for all together.
    """
    tried = [
        (one, attack)
        for found in outcomes.values()
        for one in found
        if one.ceiling < 1.0
        for attack in one.attacks
        if sum(one.read(attack, "guessed"))
    ]
    return len(tried), [(one, attack) for one, attack in tried if one.beyond_ceiling(attack) < LEVEL / len(tried)]
