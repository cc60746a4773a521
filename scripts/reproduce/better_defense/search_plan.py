"""Which channels are tried at which strengths, and the runs that each takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scripts.reproduce.better_defense.search_data import Problem
from scripts.reproduce.better_defense.search_study import silent, train
from scripts.reproduce.better_defense.search_teacher import teacher
from scripts.reproduce.shared.jobs import Job

Group = Literal["nothing sent", "known", "tried"]

RATES = (1e-3, 3e-3)
HEAD_RATES = (1e-3, 1e-2)
HEAD_POINTS = (1, 3, 10)
RIDGES = (1.0, 30.0, 1000.0)
VALIDATION_SEED = 3
SEEDS = (0, 1, 2)
FEW_COINS = 20
"""Canaries of runs that show what canaries cost: as few as there may be."""


@dataclass(frozen=True)
class Channel:
    """One way to tell the partner something, at up to three strengths.

    Attributes:
        name: In tables.
        group: Whether it is compared with, or tried.
        strengths: By what is said of each in tables, the settings of a run, the most private last.
        tuned: Which of these is tuned for all of them.
    """

    name: str
    group: Group
    strengths: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def tuned(self) -> str:
        """The strength at which rate and number of epochs are chosen: the middle one."""
        return list(self.strengths)[len(self.strengths) // 2]


def _silent(features: str, hidden: int = 0) -> Mapping[str, Mapping[str, Any]]:
    return {"": {"features": features, "hidden": hidden}}


def _errors(kind: str, *errors: float, **more: Any) -> Mapping[str, Mapping[str, Any]]:
    return {f"L = {error:g}": {"kind": kind, "detection_error": error, **more} for error in errors}


def _aucs(kind: str, *aucs: float, **more: Any) -> Mapping[str, Mapping[str, Any]]:
    return {f"AUC ≤ {auc:g}": {"kind": kind, "auc": auc, **more} for auc in aucs}


ASYMMETRIC = "asymmetric answers"
UNDEFENDED = "undefended"
ALONE = "label party alone"
NO_MESSAGE = "nothing sent back: random layers 256-128"
LIKELIHOOD = "answers, likelihood loss"
WARM = "warm start, then answers"
SIDED = "answers on the likelier side"
POSTERIOR = "the same, posterior as target"
NOISY = "noisy teacher, 16 components"
ROUNDS = "noisy teacher, three rounds"
NOISY_WIDE = "noisy teacher, 512 features"
CROSS_FITTED = "cross-fitted opinions"
NEIGHBOURS = "neighbours' labels"
RIDGE = "nothing sent back: ridge regression on 16 components"
RIDGE_WIDE = "nothing sent back: ridge regression on 512 features"
WIDE = "nothing sent back: 512 label-free features"
WIDE_HIDDEN = "the same, hidden layer of 64"
WIDE_HEADS = (WIDE, WIDE_HIDDEN)

CHANNELS = (
    Channel(ALONE, "nothing sent", _silent("none")),
    Channel("label party alone, hidden layer of 64", "nothing sent", _silent("none", 64)),
    Channel(NO_MESSAGE, "nothing sent", _silent("random")),
    Channel("nothing sent back: 64 components", "nothing sent", _silent("components")),
    Channel(WIDE, "nothing sent", _silent("wide")),
    Channel(WIDE_HIDDEN, "nothing sent", _silent("wide", 64)),
    Channel(RIDGE, "nothing sent", {"": {"teacher": "components"}}),
    Channel(RIDGE_WIDE, "nothing sent", {"": {"teacher": "wide"}}),
    Channel(UNDEFENDED, "known", {"": {"kind": "undefended"}}),
    Channel(ASYMMETRIC, "known", _errors("asymmetric", 0.2, 0.3, 0.4)),
    Channel("axis-sumKL", "known", _errors("axis-sumkl", 0.3, 0.4, 0.47)),
    Channel(LIKELIHOOD, "tried", _errors("asymmetric", 0.2, 0.3, 0.4, corrected="likelihood")),
    Channel(WARM, "tried", _errors("warm", 0.2, 0.3, 0.4)),
    Channel(SIDED, "tried", _aucs("sided", 0.8, 0.7, 0.6, posterior=False)),
    Channel(POSTERIOR, "tried", _aucs("sided", 0.8, 0.7, 0.6, posterior=True)),
    Channel(NOISY, "tried", _aucs("noisy", 0.6, 0.55, 0.52, rounds=1)),
    Channel(ROUNDS, "tried", _aucs("noisy", 0.6, 0.55, 0.52, rounds=3)),
    Channel(NOISY_WIDE, "tried", _aucs("noisy", 0.6, 0.55, 0.52, rounds=1, features="wide")),
    Channel(CROSS_FITTED, "tried", {f"{k} folds": {"kind": "cross-fitted", "folds": k} for k in (20, 5, 3)}),
    Channel(NEIGHBOURS, "tried", {f"{k} of them": {"kind": "neighbours", "count": k} for k in (4, 16, 64)}),
)


CHECKED = (UNDEFENDED, ASYMMETRIC, NOISY, CROSS_FITTED)
"""Channels of which it is measured what the coins among the labels cost them."""


@dataclass(frozen=True)
class Choice:
    """What validation chose.

    Attributes:
        rate: Learning rate; NaN of a regression.
        amount: Number of epochs; of a regression the ridge.
        auc: The validation AUC.
    """

    rate: float
    amount: float
    auc: float

    @property
    def shown(self) -> str:
        """For a table."""
        return f"ridge {self.amount:g}" if math.isnan(self.rate) else f"{self.amount:g}, {self.rate:g}"


def seeds_of(*, quick: bool) -> Sequence[int]:
    """Return the seeds that are measured with."""
    return SEEDS[:2] if quick else SEEDS


def tuning(problem: Problem, channel: Channel, *, quick: bool = False) -> list[Job]:
    """Return the runs on validation records, one for each rate; of the quick run for the lowest alone."""
    settings = channel.strengths[channel.tuned]
    rates, points = _scale(problem, channel)
    rates = rates[:1] if quick else rates
    return [_job(problem, settings, rate, points, VALIDATION_SEED, final=False) for rate in rates]


def chosen(problem: Problem, channel: Channel, found: Sequence[Mapping[str, Any]]) -> Choice:
    """Return the rate and the epochs of the largest validation AUC, of the private top, in the runs of :func:`tuning`.

    Of equal ones the first: the fewest epochs at the lowest rate.
    """
    rates, points = _scale(problem, channel)
    figures = [
        (run["private"][number], rate, at)
        for rate, run in zip(rates[: len(found)], found, strict=True)
        for number, at in enumerate(points)
    ]
    auc, rate, amount = max(figures, key=lambda figure: figure[0])
    return Choice(rate, amount, auc)


def final(problem: Problem, channel: Channel, choice: Choice, seeds: Sequence[int]) -> dict[str, list[Job]]:
    """Return the runs on test records, by strength, one for each seed."""
    return {
        strength: [_job(problem, settings, choice.rate, [choice.amount], seed, final=True) for seed in seeds]
        for strength, settings in channel.strengths.items()
    }


def with_few_coins(problem: Problem, channel: Channel, choice: Choice, seeds: Sequence[int]) -> list[Job]:
    """Return the runs of a channel's tuned strength once more, with nearly all labels true."""
    few = replace(problem, canaries=FEW_COINS)
    return final(few, channel, choice, seeds)[channel.tuned]


def _scale(problem: Problem, channel: Channel) -> tuple[Sequence[float], Sequence[float]]:
    """Return rates, and numbers of epochs or ridges."""
    if "teacher" in channel.strengths[channel.tuned]:
        return (math.nan,), RIDGES
    return (HEAD_RATES, HEAD_POINTS) if channel.group == "nothing sent" else (RATES, problem.points)


def _job(
    problem: Problem, settings: Mapping[str, Any], rate: float, points: Sequence[float], seed: int, *, final: bool
) -> Job:
    if "teacher" in settings:
        asked = {"problem": problem.as_settings(), "seed": seed, "final": final}
        return Job(teacher, {**asked, "features": settings["teacher"], "ridges": list(points)})
    common = {"problem": problem.as_settings(), "rate": rate, "points": list(points), "seed": seed, "final": final}
    if "kind" in settings:
        label = " ".join(str(value) for value in settings.values())
        return Job(train, {**common, "channel": {"label": label, **settings}})
    return Job(silent, {**common, **settings})
