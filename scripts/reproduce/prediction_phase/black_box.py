"""Figures 6 and 7: the means of columns, and one unknown column of a model whose weights are not known.

The column is ``emp_var_rate`` of Bank. The attacker sees ``o = w x + β`` of N predictions and knows the signs of w and
β, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from scripts.reproduce.prediction_phase.study import (
    CODED,
    TITLES,
    VARIANTS,
    Fit,
    Problem,
    Source,
    Variant,
    problems,
    table_of,
    tensor,
)
from scripts.reproduce.shared.claims import Claim, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.drawing import Line, Panel, Pen, draw_panels
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.attacks import black_box_feature
from splitvfl.attacks.black_box_feature import Case
from splitvfl.report.drawing import MUTED, PALETTE

COLUMN = "emp_var_rate"
COUNTS = tuple(range(2, 98, 5))
REPETITIONS = 300

OURS, BOUND, HALF, ZERO = "black box", "bound", "Half", "Zero"
SIGNED, TURNED = "without absolute values, class 0", "without absolute values, class 1"
_PENS = {
    OURS: Pen(PALETTE[0]),
    SIGNED: Pen(PALETTE[3], dashed=True),
    TURNED: Pen(PALETTE[1]),
    BOUND: Pen(PALETTE[2], dashed=True),
    HALF: Pen(MUTED),
}


def measure(problem: Mapping[str, Any], seed: int, penalty: float, repetitions: int) -> Result:
    """Return errors by number of predictions N, and the signs of weight and bias.

    Args:
        problem: Of two classes.
        seed: Of split and draws.
        penalty: λ.
        repetitions: Draws of N predictions each, with replacement.
    """
    given = Problem(**problem)
    table = table_of(given, seed)
    model = Fit(penalty)(table.train, table.labels, given.variant, seed)
    place = table.names.index(COLUMN) if COLUMN in table.names else 0
    weight = float(model.weight[1, place] - model.weight[0, place])
    bias = float(model.bias[1] - model.bias[0])
    generator = np.random.default_rng([seed, 11])
    values = tensor(table.test[:, place])
    found: dict[str, list[float]] = {name: [] for name in _PENS}
    for count in COUNTS:
        sums = dict.fromkeys(found, 0.0)
        for _ in range(repetitions):
            x = values[torch.from_numpy(generator.integers(0, len(values), count))]
            seen = weight * x + bias
            estimate = black_box_feature(seen, case=case_of(weight, bias))
            sums[OURS] += (estimate - x).square().mean().item()
            sums[SIGNED] += (_signed(-seen) - x).square().mean().item()
            sums[TURNED] += (_signed(seen) - x).square().mean().item()
            sums[BOUND] += ((1 - x.max()) ** 2 + x.min() ** 2).item()
            sums[HALF] += (x - 0.5).square().mean().item()
        for name, total in sums.items():
            found[name].append(total / repetitions)
    return {"weight": weight, "bias": bias, "case": case_of(weight, bias), "errors": found}


def case_of(weight: float, bias: float) -> Case:
    """Return which of the paper's cases it is: 2 with one sign, 3 with opposite ones."""
    return 2 if weight * bias > 0 else 3


def _signed(seen: torch.Tensor) -> torch.Tensor:
    """Return observations stretched to [0, 1] as they are, which is right for a positive weight."""
    low, high = seen.min(), seen.max()
    return (seen - low) / (high - low) if high > low else torch.full_like(seen, 0.5)


def sections(settings: Settings) -> list[Section]:
    """Return the sections on figures 6 and 7."""
    return [_means_section(settings), _section(settings)]


def _section(settings: Settings) -> Section:
    wanted: Source = "synthetic" if settings.quick else "bank"
    repetitions = 10 if settings.quick else REPETITIONS
    chosen = [
        (problem, seed)
        for variant in VARIANTS
        for problem in problems(settings, variant)
        if problem.source == wanted
        for seed in range(settings.seeds)
    ]
    jobs = [
        Job(
            measure,
            {
                "problem": problem.as_settings(),
                "seed": seed,
                "penalty": CODED[wanted],
                "repetitions": repetitions,
            },
        )
        for problem, seed in chosen
    ]
    runs: dict[Variant, list[Result]] = {}
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    for (problem, _), result in zip(chosen, results, strict=True):
        runs.setdefault(problem.variant, []).append(result)
    name = "prediction-phase-7"
    figures = {name: draw_panels(name, [_panel(v, found) for v, found in runs.items()], _PENS)} if runs else {}
    return Section(
        title="Figure 7: one column, weights unknown",
        body=f"{_TEXT}\n\n{_table(runs)}",
        figures=figures,
        captions={name: "MSE of one column by the number of predictions N: with and without absolute values"},
        claims=[claim for variant, found in runs.items() for claim in _claims(variant, found)],
    )


_TEXT = f"""\
Bank's `{COLUMN}` (number 14 of the 19, counted from 0), λ as coded, N = 2, 7, …, 97 predictions drawn with
replacement, {REPETITIONS} times for each seed. "Without absolute values" is the published code's estimate, which is
right for a positive weight: with a negative one it returns 1 − x. It takes the logit of class 0 (no deposit), in which
this column's weight is positive, so that the published curve stands; of the logit of class 1 the same code answers
1 − x. Which of the paper's cases it is follows from the signs of the trained weight and bias, of the logit of class 1
here; the attacker is told these. The bound is (1 − max x)² + (min x)²."""


def _means(found: Sequence[Result], name: str) -> list[float]:
    return [float(value) for value in np.mean([result["errors"][name] for result in found], axis=0)]


def _panel(variant: Variant, found: Sequence[Result]) -> Panel:
    across = [float(count) for count in COUNTS]
    lines: dict[str, Line] = {name: (across, _means(found, name)) for name in _PENS}
    return Panel(title=TITLES[variant], x_label="predictions N", lines=lines)


def _table(runs: Mapping[Variant, Sequence[Result]]) -> str:
    rows = []
    for variant, found in runs.items():
        cases = ", ".join(sorted({str(result["case"]) for result in found}))
        signs = f"w {shown(mean(result['weight'] for result in found), 2)}, β "
        signs += shown(mean(result["bias"] for result in found), 2)
        for place in (0, 3, 9, 19):
            cells = (with_interval((result["errors"][name][place] for result in found), 4) for name in _PENS)
            rows.append((TITLES[variant], cases, signs, str(COUNTS[place]), *cells))
    return markdown_table(("variant", "case", "mean w and β", "N", *_PENS), rows, left=3)


def _claims(variant: Variant, found: Sequence[Result]) -> list[Claim]:
    last = [result["errors"][OURS][-1] for result in found]
    over = [
        max(ours - most for ours, most in zip(result["errors"][OURS], result["errors"][BOUND], strict=True))
        for result in found
    ]
    informed = all(result["case"] == 2 for result in found)
    return [
        Claim.of(
            last,
            claim=f"one column is known after many predictions (MSE at N = {COUNTS[-1]}), {TITLES[variant]}",
            published=0.0,
            holds=max(last) < 1e-2,
            why="with absolute values; see the table for without"
            if informed
            else "w and β have opposite signs in some models, and observations both signs: the estimate is then ½",
        ),
        Claim.of(
            over,
            claim=f"MSE of the black box is at most its bound (largest excess over all N), {TITLES[variant]}",
            holds=max(over) <= 1e-9,
            why="case 2 in every model" if informed else "the bound is of case 2, and some of the models are in case 3",
        ),
    ]


def means(problem: Mapping[str, Any], seed: int) -> Result:
    """Return the means of the test records' columns in ascending order, and what constant answers miss.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of the split.
    """
    test = table_of(Problem(**problem), seed).test
    return {
        "means": np.sort(test.mean(axis=0)).tolist(),
        ZERO: float((test**2).mean()),
        HALF: float(((test - 0.5) ** 2).mean()),
        "their means": float(test.var(axis=0).mean()),
    }


def _means_section(settings: Settings) -> Section:
    chosen = [problem for variant in VARIANTS for problem in problems(settings, variant)]
    jobs = [
        Job(means, {"problem": problem.as_settings(), "seed": seed})
        for problem in chosen
        for seed in range(settings.seeds)
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    by_problem = [results[place : place + settings.seeds] for place in range(0, len(results), settings.seeds)]
    runs = list(zip(chosen, by_problem, strict=True))
    answers = (ZERO, HALF, "their means")
    rows = [
        (
            problem.title,
            TITLES[problem.variant],
            *(with_interval(pick(r["means"]) for r in found) for pick in (min, np.median, max)),
            *(with_interval(r[name] for r in found) for name in answers),
        )
        for problem, found in runs
    ]
    name = "prediction-phase-6"
    headings = ("data", "variant", "least mean", "median", "largest", "MSE of 0", "MSE of ½", "MSE of the means")
    panels = [_means_panel(problem, found) for problem, found in runs if problem.variant == "curves"]
    return Section(
        title="Figure 6: the columns' means",
        body=f"{_MEANS}\n\n{markdown_table(headings, rows, left=2)}",
        figures={name: draw_panels(name, panels, {"mean": Pen(PALETTE[0]), "½": Pen(MUTED)})},
        captions={name: f"Means of the columns of the test records, in ascending order; {TITLES['curves']}"},
        claims=[_means_claim(problem, found) for problem, found in runs],
    )


_MEANS = """\
Test records. LS leaves 0 where the equations say nothing, Half* ½: columns with means near ½ (Satellite) are Half*'s,
columns with means near 0 would be LS's. This is what figures 4 and 14 show again."""


def _means_panel(problem: Problem, found: Sequence[Result]) -> Panel:
    up = [float(value) for value in np.mean([result["means"] for result in found], axis=0)]
    across = [float(place) for place in range(1, len(up) + 1)]
    return Panel(
        title=problem.title,
        x_label="column, by its mean",
        lines={"mean": (across, up), "½": ([across[0], across[-1]], [0.5, 0.5])},
    )


def _means_claim(problem: Problem, found: Sequence[Result]) -> Claim:
    ahead = [result[ZERO] - result[HALF] for result in found]
    return Claim.of(
        ahead,
        claim=f"figure 6: columns are nearer to ½ than to 0 (MSE of 0 less that of ½), {problem.title}, "
        f"{TITLES[problem.variant]}",
        holds=min(ahead) > 0,
        why="so that Half* misses less than LS where the equations say nothing",
    )
