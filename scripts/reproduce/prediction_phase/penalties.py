"""Which penalty the published curves may have had: the anchors by λ, and with the training that the code has."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.reproduce.prediction_phase import white_box
from scripts.reproduce.prediction_phase.figures import ANCHORS, EPOCHS, Anchor
from scripts.reproduce.prediction_phase.study import CODED, Problem, problems
from scripts.reproduce.prediction_phase.white_box import CLAMPED, CLS, HALF_CLAMPED, LS, RCC2, at_width
from scripts.reproduce.shared.claims import markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 2e-2, 3e-2)
_NAMES = (LS, CLAMPED, CLS, HALF_CLAMPED, RCC2)


def sections(settings: Settings) -> list[Section]:
    """Return the section on penalties, with the published curves' settings."""
    rows = []
    for problem in problems(settings, "curves"):
        anchors = [one for one in ANCHORS if one.source == problem.source and one.regular and not one.flipped]
        if not anchors:
            continue
        widths = [anchor.width for anchor in anchors]
        fits = [(penalty, 0) for penalty in (PENALTIES[2:4] if settings.quick else PENALTIES)]
        fits.append((CODED[problem.source], 2 if settings.quick else EPOCHS))
        jobs = [_job(problem, seed, *fit, widths, settings) for fit in fits for seed in range(settings.seeds)]
        results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
        by_fit = [results[place : place + settings.seeds] for place in range(0, len(results), settings.seeds)]
        for anchor in anchors:
            rows += _rows(anchor, fits, by_fit)
    headings = ("", "model", *_NAMES, "largest miss of these")
    return [
        Section(
            title="Which penalty: the regularised anchors by λ",
            body=f"{_TEXT}\n\n{markdown_table(headings, rows, left=2)}",
        )
    ]


_TEXT = f"""\
With the published curves' settings. The published code has λ = 1e-4 for Bank and Satellite and 1e-7 for Robot, and
{EPOCHS} epochs of Adam; the row *as coded* is that training. The last column is the largest difference of a mean to the
published row. A row that is met at one λ only says that the curve may come from it, not that it does."""


def _job(problem: Problem, seed: int, penalty: float, adam: int, widths: Sequence[int], settings: Settings) -> Job:
    return Job(
        white_box.measure_widths,
        {
            "problem": problem.as_settings(),
            "seed": seed,
            "penalty": penalty,
            "adam": adam,
            "count": 200 if settings.quick else white_box.PREDICTIONS,
            "widths": list(widths),
        },
    )


def _rows(
    anchor: Anchor, fits: Sequence[tuple[float, int]], found: Sequence[Sequence[Result]]
) -> list[tuple[str, ...]]:
    rows = [(anchor.title, "published", *(shown(anchor.values[name]) for name in _NAMES), "")]
    for (penalty, adam), results in zip(fits, found, strict=True):
        ours = [[at_width(result, name, anchor.width) for result in results] for name in _NAMES]
        missed = max(abs(mean(values) - anchor.values[name]) for values, name in zip(ours, _NAMES, strict=True))
        label = f"as coded, λ = {penalty:g}" if adam else f"optimum, λ = {penalty:g}"
        rows.append(("", label, *map(with_interval, ours), shown(missed)))
    return rows
