"""Labels from the equations of all epochs together, where one batch has far more records than the party has columns.

Source: this project's attack, on the data of *Is Vertical Logistic Regression Privacy-Preserving?*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scripts.reproduce.shared.claims import (
    UNIT,
    Claim,
    markdown_table,
    mean,
    shown,
    standard_error,
    surely_above,
    with_interval,
)
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.vertical_lr_privacy.drawing import Chart, Curve, draw_charts
from scripts.reproduce.vertical_lr_privacy.labels import own_signs
from scripts.reproduce.vertical_lr_privacy.study import (
    PASSIVE,
    Problem,
    build_trainer,
    data_of,
    majority,
    problems,
)
from splitvfl.attacks import solve_residues
from splitvfl.attacks.stacked_epochs import EpochBatch, stack_epochs, two_mean_labels
from splitvfl.hooks import View
from splitvfl.metrics import leak_auc
from splitvfl.report.drawing import PALETTE
from splitvfl.run.training import Status

_LOOKS = (4, 8, 12, 30)
"""After so many epochs the equations are solved."""


class Equations:
    """Keeps what every batch gives the passive party, as an observer in its seat."""

    needs = frozenset({"columns", "aggregated_gradient", "activation"})

    def __init__(self) -> None:
        self.batches: list[EpochBatch] = []

    def __call__(self, view: View, /) -> None:
        """Keep one batch's."""
        gradient = view.aggregated_gradient[:, 0]
        self.batches.append(EpochBatch(view.ids, view.columns, gradient, view.activation[:, 0]))


def stacked_run(problem: Mapping[str, Any], seed: int) -> Result:
    """Train once from zero weights, and return what the stacked equations tell after some of the epochs.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of everything.
    """
    given = Problem(**problem)
    trainer, equations = build_trainer(given, seed), Equations()
    trainer.passives[PASSIVE].observers.append(equations)
    looks = sorted({min(look, given.epochs) for look in _LOOKS} | {given.epochs})
    right: list[float] = []
    aucs: list[float] = []

    def follow(status: Status) -> None:
        if status.step % len(trainer.batches) == 0 and status.step // len(trainer.batches) in looks:
            ids, estimates = stack_epochs(equations.batches, approximation="taylor", underdetermined=True)
            labels = trainer.labels_of(ids)
            right.append(float((two_mean_labels(estimates) == 2 * labels - 1).double().mean()))
            aucs.append(leak_auc(estimates, labels))

    trainer.fit(given.epochs, progress=follow)
    first = equations.batches[0]
    single = -solve_residues(first.features, first.gradient, underdetermined=True)
    signs = (single * (2 * trainer.labels_of(first.ids) - 1) > 0).double().mean()
    return {
        "epochs": looks,
        "right": right,
        "auc": aucs,
        "single": float(signs),
        "majority": majority(data_of(given, seed)),
        **own_signs(trainer),
    }


def sections(settings: Settings) -> list[Section]:
    """Return the section on stacked epochs."""
    chosen = [
        replace(problem, batch_size=batch_size, epochs=epochs)
        for problem in problems(settings)
        for batch_size, epochs in problem.stacked
    ]
    if not chosen:
        return []
    settings.say(f"stacked epochs: {len(chosen)} settings")
    wanted = [(problem, seed) for problem in chosen for seed in range(settings.seeds)]
    jobs = [Job(stacked_run, {"problem": problem.as_settings(), "seed": seed}) for problem, seed in wanted]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    found = [results[number * settings.seeds : (number + 1) * settings.seeds] for number in range(len(chosen))]
    return [_section(chosen, found)]


def _name(problem: Problem) -> str:
    return f"{problem.title}, batches of {problem.batch_size}"


def _section(chosen: Sequence[Problem], found: Sequence[Sequence[Result]]) -> Section:
    rows = [
        (
            problem.title,
            str(problem.batch_size),
            str(problem.epochs),
            with_interval((result["right"][-1] for result in results), limits=UNIT),
            with_interval((result["auc"][-1] for result in results), limits=UNIT),
            with_interval((result["single"] for result in results), limits=UNIT),
            with_interval((result["own"] for result in results), limits=UNIT),
            with_interval((result["own_auc"] for result in results), limits=UNIT),
            shown(mean(result["majority"] for result in results)),
        )
        for problem, results in zip(chosen, found, strict=True)
    ]
    headings = (
        "data",
        "batch",
        "epochs",
        "labels right",
        "AUC",
        "one batch alone",
        "own output",
        "its AUC",
        "larger class",
    )
    body = f"""
An honest passive party with eleven columns and batches of hundreds of records has too few equations in each batch. But
labels do not change from epoch to epoch, and every epoch brings as many equations again. It needs no packing, so that
no mask stops it; only noise does. Zero first weights, Taylor; labels are read off the estimates with a threshold that
needs no share of positives. "one batch alone" is the sign of least squares on the first batch.

{markdown_table(headings, rows)}
"""
    return Section(
        title="Stacked epochs: labels beyond s > d",
        body=body,
        figures={"vertical-lr-stacked": _figure(chosen, found)},
        captions={
            "vertical-lr-stacked": "Share of labels that an honest passive party reads from the gradients of all "
            "epochs so far, mean over seeds with standard errors."
        },
        claims=[_claim(problem, results) for problem, results in zip(chosen, found, strict=True)],
    )


def _figure(chosen: Sequence[Problem], found: Sequence[Sequence[Result]]) -> str:
    charts = []
    colours = dict(zip(sorted({problem.batch_size for problem in chosen}), PALETTE, strict=False))
    for title in dict.fromkeys(problem.title for problem in chosen):
        curves, level = [], {}
        for problem, results in zip(chosen, found, strict=True):
            if problem.title != title:
                continue
            by_look = list(zip(*(result["right"] for result in results), strict=True))
            curves.append(
                Curve(
                    across=results[0]["epochs"],
                    up=[mean(values) for values in by_look],
                    colour=colours[problem.batch_size],
                    errors=_errors(by_look),
                    label=f"batches of {problem.batch_size}",
                )
            )
            level = {"larger class": mean(result["majority"] for result in results)}
        charts.append(Chart(title=title, x_label="epochs", curves=curves, levels=level))
    return draw_charts("vertical-lr-stacked", charts, columns=len(charts), same_scale=True)


def _errors(by_look: Sequence[Sequence[float]]) -> list[float]:
    found = [standard_error(values) for values in by_look]
    return [] if any(math.isnan(error) for error in found) else found


def _claim(problem: Problem, results: Sequence[Result]) -> Claim:
    """Return whether more labels are read than are of the larger class: no publication has such an attack."""
    values = [result["right"][-1] for result in results]
    ahead = [result["right"][-1] - result["majority"] for result in results]
    return Claim.of(
        values,
        claim=f"{_name(problem)}: more labels are read after {problem.epochs} epochs than are of the larger class",
        holds=surely_above(ahead, 0.0),
        why=f"the larger class has {shown(mean(result['majority'] for result in results))}, the party's own output "
        f"{shown(mean(result['own'] for result in results))}; in pairs by seed",
        limits=UNIT,
    )
