"""What the label-leakage paper says in its text: the course of the leak, training loss, and the slope by class.

Runs without the auditor, so that they are cheap: the norm attack and the residual attack alone.

Source: Li et al., ICLR 2022, arXiv:2102.08504, observation 2 and the text of figure 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scripts.reproduce.label_leakage.figure_1 import QUICK_STEPS, STEPS, quantities
from scripts.reproduce.label_leakage.figure_2 import ISOTROPIC, MOST_SEEDS, NONE, SUMKL
from scripts.reproduce.label_leakage.study import PASSIVE, Course, Defense, Problem, build_trainer, problems, train
from scripts.reproduce.shared.claims import UNIT, Claim, interval, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.attacks import ResidualAttack
from splitvfl.hooks import View
from splitvfl.leakage.judging import ScoreKeeper
from splitvfl.metrics import detection_error, rank_auc
from splitvfl.run.training import Status

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

DEFENSES = (NONE, SUMKL[0.4], ISOTROPIC)
HIGH = 0.85
"""From here on a leak AUC is about .9, or more."""
ONE_ORDER = 10.0
START = 10
"""One over the share of a run in which a threshold is fixed."""
_CUT_AFTER = 2


class ResidualErrors:
    """Detection errors ½(FPR + FNR) of the residual attack, by who chooses the threshold, and when.

    It is the harness: thresholds are chosen with the labels, in favour of the attacker.
    """

    def __init__(self) -> None:
        self._scores: list[Floats] = []
        self._labels: list[Flags] = []

    def add(self, scores: Tensor, labels: Tensor) -> None:
        """Keep one step's; steps of one class only, or without any score, are left out."""
        values, positive = scores.double().cpu().numpy(), labels.cpu().numpy() == 1
        if values.any() and positive.any() and not positive.all():
            self._scores.append(values)
            self._labels.append(positive)

    @property
    def by_step(self) -> float:
        """Mean over steps, each with the threshold that is best for it."""
        return mean(best_threshold(*step)[0] for step in zip(self._scores, self._labels, strict=True))

    @property
    def by_run(self) -> float:
        """Of all steps, with the one threshold that is best for the run, in units of each batch's root mean square."""
        if not self._scores:
            return math.nan
        scaled = [values / math.sqrt(float(np.mean(values**2))) for values in self._scores]
        return best_threshold(np.concatenate(scaled), np.concatenate(self._labels))[0]

    @property
    def from_start(self) -> float:
        """Of all later steps, with the threshold that was best in the first tenth, in the gradient's own unit."""
        start = len(self._scores) // START
        if start == 0:
            return math.nan
        first, later = slice(None, start), slice(start, None)
        _, threshold = best_threshold(np.concatenate(self._scores[first]), np.concatenate(self._labels[first]))
        scores, labels = torch.from_numpy(np.concatenate(self._scores[later])), np.concatenate(self._labels[later])
        return detection_error(scores, torch.from_numpy(labels), threshold=threshold)

    @property
    def auc(self) -> float:
        """Mean leak AUC of the steps."""
        return mean(rank_auc(*step) for step in zip(self._scores, self._labels, strict=True))


def best_threshold(scores: Floats, positive: Flags) -> tuple[float, float]:
    """Return the least ½(FPR + FNR) over all thresholds above which a record is called positive, and one that has it.

    >>> best_threshold(np.array([0.1, 0.4, 0.3, 0.9]), np.array([False, False, True, True]))
    (0.25, 0.1)
    """
    order = np.argsort(scores, kind="stable")
    values, flags = scores[order], positive[order]
    # Below threshold k lie the first k scores; equal ones fall to one side together.
    places = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [values.size]])
    missed = np.concatenate([[0], np.cumsum(flags)])[places] / flags.sum()
    alarmed = 1 - np.concatenate([[0], np.cumsum(~flags)])[places] / (~flags).sum()
    best = int(np.argmin(missed + alarmed))
    below = values[places[best] - 1] if places[best] else -math.inf
    return float((missed + alarmed)[best] / 2), float(below)


def course_run(problem: Mapping[str, Any], seed: int, defense: Mapping[str, Any]) -> Result:
    """Train once, and return training loss by epoch, the norm attack's windows, and the residual attack's errors.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of everything.
        defense: What :meth:`Defense.as_settings` returned.
    """
    trainer = build_trainer(Problem(**problem), seed, defense=defense, audit=False)
    steps = problem["epochs"] * len(trainer.batches)
    attack, errors = ResidualAttack(), ResidualErrors()

    class _Seat:
        needs = frozenset({"gradient"})

        def __call__(self, view: View, /) -> None:
            errors.add(attack(view), trainer.labels_of(view.ids))

    trainer.passives[PASSIVE].observers.append(_Seat())
    keeper = trainer.leaks[PASSIVE]["norm"].keeper
    assert isinstance(keeper, ScoreKeeper)
    course = Course(trainer, {"norm": keeper}, steps=steps)
    train(trainer, steps=steps, progress=course)
    return {
        "steps": course.steps,
        "windows": course.leaks["norm"],
        "loss": course.loss,
        "test": course.test,
        "residual": {
            "auc": errors.auc,
            "by step": errors.by_step,
            "by run": errors.by_run,
            "from start": errors.from_start,
        },
    }


def slope_run(problem: Mapping[str, Any], seed: int, moments: Sequence[int]) -> Result:
    """Return the mean ``‖∇h‖`` and ``|p − y|`` of each class after some numbers of steps, cut as in figure 1.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of everything.
        moments: Numbers of steps, ascending.
    """
    trainer = build_trainer(Problem(**problem), seed, cut_after=_CUT_AFTER, audit=False)
    found: dict[str, list[list[float]]] = {"slope": [], "residual": []}

    def look(status: Status) -> None:
        if status.step in moments:
            values, labels = quantities(trainer)
            for name, means in found.items():
                means.append([float(values[name][labels == label].double().mean()) for label in (0, 1)])

    train(trainer, steps=max(moments), progress=look)
    return dict(found)


# --- the section


def sections(settings: Settings) -> list[Section]:
    """Return the section on what the paper's text claims."""
    chosen = [replace(problem, seeds=problem.seeds[:MOST_SEEDS]) for problem in problems(settings)]
    chosen = [problem for problem in chosen if not problem.generated]
    moments = list(QUICK_STEPS if settings.quick else STEPS)
    settings.say(f"course: {len(chosen)} data sets")
    runs = {problem.key: {defense.label: _of(problem, defense, settings) for defense in DEFENSES} for problem in chosen}
    slopes = {
        problem.key: run_jobs(
            [
                Job(slope_run, {"problem": problem.as_settings(), "seed": seed, "moments": moments})
                for seed in problem.seeds
            ],
            settings.jobs,
            workers=settings.workers,
            say=settings.say,
        )
        for problem in chosen
    }
    return [_section(chosen, runs, slopes)]


def _of(problem: Problem, defense: Defense, settings: Settings) -> list[Result]:
    jobs = [
        Job(course_run, {"problem": problem.as_settings(), "seed": seed, "defense": defense.as_settings()})
        for seed in problem.seeds
    ]
    return run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)


Runs = Mapping[str, Mapping[str, Sequence[Result]]]

_TEXT = f"""\
Claims of the paper that stand in its text and in no figure's numbers. Three seeds at most; not on generated clicks.

*Training loss* is the mean of the last epoch's batches; the difference is paired by seed. *The norm attack's course*
is the share of a run's forty windows in which its leak AUC at the cut is {shown(HIGH, 2)} or more ("about .9"), without
noise. *Slopes by class*: the mean of ‖∇h‖ over one class divided by that over the other, the larger by the smaller, cut
after two layers as in figure 1, at the worst of its moments; one order of magnitude is a ratio below {ONE_ORDER:g}.
Beside it the same ratio of |p − y|, which is the other factor of ‖g‖.

*The residual attack* needs no label, but a detection error needs a threshold. "Of each step" is the one that is best
for that step; "of the run", one for all steps, with scores divided by the root of their mean square in the batch; "of
the first tenth", in the gradient's own unit, what was best there, on the rest. All are chosen with the labels, in
favour of the attacker. A leak AUC does not depend on it."""


def _section(chosen: Sequence[Problem], runs: Runs, slopes: Mapping[str, Sequence[Result]]) -> Section:
    losses = [
        (problem.title, *(with_interval(run["loss"][-1] for run in runs[problem.key][d.label]) for d in DEFENSES))
        for problem in chosen
    ]
    residual = [
        (
            problem.title,
            *(
                with_interval([run["residual"][key] for run in runs[problem.key][SUMKL[0.4].label]], limits=UNIT)
                for key in _KINDS
            ),
        )
        for problem in chosen
    ]
    body = "\n\n".join(
        [
            _TEXT,
            markdown_table(("training loss, last epoch", *(defense.label for defense in DEFENSES)), losses),
            markdown_table(_RESIDUAL, residual),
        ]
    )
    claims = [claim for problem in chosen for claim in _claims(problem, runs[problem.key], slopes[problem.key])]
    return Section(title="What the text claims: loss, course, slopes", body=body, claims=claims)


_KINDS = ("auc", "by step", "by run", "from start")
_RESIDUAL = (
    f"residual attack on {SUMKL[0.4].label}",
    "leak AUC",
    "error, threshold of each step",
    "of the run",
    "of the first tenth",
)


def high_share(result: Result) -> float:
    """Return the share of a run's windows in which the norm attack's leak AUC is about .9 or more."""
    known = [leak for leak in result["windows"] if not math.isnan(leak)]
    return sum(leak >= HIGH for leak in known) / len(known) if known else math.nan


def ratio(result: Result, name: str) -> float:
    """Return the largest ratio of the two classes' means over the moments, the larger over the smaller."""
    pairs: list[tuple[float, float]] = result[name]
    return max(max(pair) / min(pair) for pair in pairs)


def _claims(problem: Problem, runs: Mapping[str, Sequence[Result]], slopes: Sequence[Result]) -> list[Claim]:
    gains = [
        own["loss"][-1] - other["loss"][-1]
        for own, other in zip(runs[SUMKL[0.4].label], runs[ISOTROPIC.label], strict=True)
    ]
    ends = interval(gains)
    shares = [high_share(run) for run in runs[NONE.label]]
    ratios = [ratio(result, "slope") for result in slopes]
    others = mean(ratio(result, "residual") for result in slopes)
    return [
        Claim.of(
            gains,
            claim=f"training loss of sumKL (L = .4) less that of {ISOTROPIC.label}, below 0: {problem.title}",
            holds=ends is not None and ends[1] < 0,
            why=_why_of_loss(ends),
        ),
        Claim.of_shares(
            shares,
            claim=f"without noise the norm attack leaks about .9 through most of training: {problem.title}",
            holds=all(share > 0.5 for share in shares),
            why=f"share of windows with {shown(HIGH, 2)} or more; it holds if above one half with every seed",
        ),
        Claim.of(
            ratios,
            claim=f"observation 2, ‖∇h‖ is of one order in both classes (ratio of means): {problem.title}",
            holds=all(one < ONE_ORDER for one in ratios),
            why=f"the worst moment; the ratio of |p − y| is {others:.1f}",
        ),
    ]


def _why_of_loss(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return "one seed tells no difference"
    if ends[1] < 0:
        return "the interval of the paired difference lies below 0"
    if ends[0] > 0:
        return "sumKL has the larger loss: the interval of the paired difference lies above 0"
    return "no difference can be told at this number of seeds"
