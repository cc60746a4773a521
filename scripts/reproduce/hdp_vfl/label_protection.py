"""Beyond the paper: five ways of protecting a label at the same ε of it for the whole run, and who wins where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import stats

from scripts.reproduce.hdp_vfl.label_runs import (
    COINS,
    DELTA,
    DRAWS,
    EPSILONS,
    GAUSSIAN,
    KINDS,
    Kind,
    Protection,
    protect,
)
from scripts.reproduce.hdp_vfl.study import Problem, problems, table_of
from scripts.reproduce.residue_protection.beyond_outcomes import LEVEL, Compared, corrected
from scripts.reproduce.shared.claims import Claim, grouped, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

ROWS = 10_000
"""Training and test records of the two large problems, at most."""

TITLES: Mapping[Kind, str] = {
    "none": "none",
    "hdp": "HDP-VFL, derivatives",
    "add": "Add",
    "memoised": "`memoised-response`",
    "targets": "`gaussian-targets`",
    "fresh targets": "`gaussian-targets`, fresh",
    "sums": "noise on sums",
}


@dataclass(frozen=True)
class Outcome:
    """What came of one protection on one problem at one ε, a result for each seed."""

    protection: Protection
    cells: Sequence[Result]

    def values(self, name: str) -> list[float]:
        """Return a figure, one for each seed."""
        return [float(cell[name]) for cell in self.cells]

    def share(self, name: str = "right") -> list[float]:
        """Return the share of coins that were read, one for each seed; NaN where such an attack does not apply."""
        return [float(cell.get(name, math.nan)) / float(cell["coins"]) for cell in self.cells]

    @property
    def above_ceiling(self) -> float:
        """The probability of so many right coins, or more, of an attack that is as good as is allowed."""
        right, coins = (int(sum(self.values(name))) for name in ("right", "coins"))
        return float(stats.binom.sf(right - 1, coins, self.protection.ceiling))


Found = Mapping[Problem, Mapping[tuple[Kind, float], Outcome]]


def compared(settings: Settings) -> list[Problem]:
    """Return the problems that are at hand, the large ones cut."""
    return [replace(one, rows=one.rows or ROWS) for one in problems(settings)]


def outcomes(settings: Settings) -> Found:
    """Train and attack all protections on all problems with all seeds."""
    entered = [(problem, kind) for problem in compared(settings) for kind in KINDS]
    jobs = [
        Job(protect, {"problem": problem.as_settings(), "seed": seed, "kind": kind, "small": settings.quick})
        for seed in range(settings.seeds)
        for problem, kind in entered
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    found: dict[Problem, dict[tuple[Kind, float], Outcome]] = {}
    for place, (problem, kind) in enumerate(entered):
        own = results[place :: len(entered)]
        for epsilon in EPSILONS if kind != "none" else (math.inf,):
            cells = [one[f"{epsilon:g}"] for one in own]
            found.setdefault(problem, {})[kind, epsilon] = Outcome(Protection(kind, epsilon), cells)
    return found
