"""How a leak is measured, over some seeds, and what is known of it by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scripts.reproduce.better_defense.estimates import Seeds, curve_at, next_weaker
from scripts.reproduce.better_defense.runs import Measured
from scripts.reproduce.shared.claims import mean_of_all
from scripts.reproduce.shared.jobs import Result

Top = Literal["test", "private"]
"""Whose test AUC: of the top that sends, or of the private one."""


def total(results: Sequence[Result]) -> float:
    """Return the mean AUC of messages and prediction together; NaN if a run has none."""
    return mean_of_all(result["total"] for result in results)


def beyond(results: Sequence[Result]) -> float:
    """Return the auditor's mean AUC among canaries, by the one of its attacks that is best in the mean.

    Chosen once for these runs: chosen anew in each it would be read too high, by nearly the deviation of one run. The
    largest of several means is still read too high, by a part of the deviation of a mean: :func:`beyond_by_others`.
    """
    return mean_of_all(beyond_by_seed(results))


def beyond_by_seed(results: Sequence[Result]) -> list[float]:
    """Return that attack's AUC in each run; NaN where there is none."""
    found = _of_every_run(results)
    return max(found.values(), key=mean_of_all) if found else [math.nan] * len(results)


def beyond_by_others(results: Sequence[Result]) -> float:
    """Return the mean AUC of attacks that are chosen for each run by the means of the others alone.

    What is read in a run has no part in its attack's choice, so that it is not read too high; and rather too low, as
    fewer runs choose. NaN with one run.
    """
    found = _of_every_run(results)
    if len(results) < 2 or not found:
        return math.nan
    return mean_of_all(
        max(found.values(), key=lambda leaks: mean_of_all(leaks[:run] + leaks[run + 1 :]))[run]
        for run in range(len(results))
    )


def _of_every_run(results: Sequence[Result]) -> dict[str, list[float]]:
    """Return the AUCs of each attack that has one in every run: means of different runs are not compared."""
    names = dict.fromkeys(name for result in results for name in result["canaries"])
    found = {name: [float(result["canaries"].get(name, math.nan)) for result in results] for name in names}
    return {name: leaks for name, leaks in found.items() if not any(map(math.isnan, leaks))}


@dataclass(frozen=True)
class Measure:
    """A way to measure the leak.

    Attributes:
        key: Fit for a file.
        title: For figures and tables.
        of: Its mean over runs.
    """

    key: str
    title: str
    of: Callable[[Sequence[Result]], float]


TOTAL = Measure("total", "prediction and messages together", total)
BEYOND = Measure("beyond", "beyond the prediction, by canaries", beyond)


def members(measured: Measured, labels: Sequence[str]) -> list[str]:
    """Return those of a family's members that were run."""
    return [label for label in labels if label in measured.runs]


def leaks_of(measured: Measured, labels: Sequence[str], measure: Measure) -> list[float]:
    """Return the mean leaks of a family's members over all seeds."""
    return [measure.of(measured.runs[label]) for label in members(measured, labels)]


def kept_at(measured: Measured, labels: Sequence[str], measure: Measure, top: Top, level: float, seeds: Seeds) -> float:
    """Return a family's test AUC at a leak, from the means over some seeds; NaN where it does not reach it."""
    return curve_at(*_curve(measured, labels, measure, top, seeds), level)


def kept_at_most(measured: Measured, labels: Sequence[str], measure: Measure, top: Top, level: float) -> float:
    """Return a family's test AUC at the nearest strength that leaks as much or more, from the means over all seeds."""
    return next_weaker(*_curve(measured, labels, measure, top, range(len(measured.case.seeds))), level)


def around(measured: Measured, labels: Sequence[str], measure: Measure, level: float) -> list[str]:
    """Return the two strengths between which a family is read at a leak: the nearest on either side, by mean leaks."""
    run = members(measured, labels)
    leaks = dict(zip(run, leaks_of(measured, run, measure), strict=True))
    below = max((label for label in run if leaks[label] <= level), key=lambda label: leaks[label], default=None)
    above = min((label for label in run if leaks[label] >= level), key=lambda label: leaks[label], default=None)
    return [label for label in (below, above) if label is not None]


def _curve(
    measured: Measured, labels: Sequence[str], measure: Measure, top: Top, seeds: Seeds
) -> tuple[list[float], list[float]]:
    """Return mean leak and mean test AUC of each strength."""
    runs = [[measured.runs[label][seed] for seed in seeds] for label in members(measured, labels)]
    return [measure.of(results) for results in runs], [
        mean_of_all(result[top] for result in results) for results in runs
    ]
