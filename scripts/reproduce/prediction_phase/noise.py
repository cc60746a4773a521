"""Figure 13: what noise on logits buys, against what it costs; and what is left of it to who takes it off again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from scripts.reproduce.prediction_phase.figures import REGULAR
from scripts.reproduce.prediction_phase.study import (
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
from scripts.reproduce.prediction_phase.white_box import WIDTHS, WINDOWS, predictions, some_windows
from scripts.reproduce.shared.claims import Claim, markdown_table, mean, with_interval
from scripts.reproduce.shared.drawing import Panel, Pen, draw_panels
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.attacks import equations, half, least_squares, rcc2
from splitvfl.attacks.noise_subtraction import KnownScheme, subtract_noise
from splitvfl.defenses import ClassLabel, ScoreNoise, noise_direction
from splitvfl.hooks import Secrets
from splitvfl.metrics import mean_divergence, reconstruction_mse
from splitvfl.report.drawing import MUTED, PALETTE

SCHEMES: tuple[KnownScheme, ...] = get_args(KnownScheme)
POWERS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
EPSILONS = (0.15, 0.05, 0.01, 0.001, 0.0001)
LABEL = "class label"

_PREDICTIONS = 300
_PENS = {
    "scheme 1": Pen(PALETTE[0]),
    "scheme 2": Pen(PALETTE[1]),
    "scheme 3": Pen(PALETTE[2]),
    LABEL: Pen(PALETTE[3]),
    "scheme 1, subtracted": Pen(PALETTE[0], dashed=True),
    "scheme 2, subtracted": Pen(PALETTE[1], dashed=True),
    "scheme 3, subtracted": Pen(PALETTE[2], dashed=True),
    "Half": Pen(MUTED),
}


def measure(problem: Mapping[str, Any], seed: int, penalty: float, count: int) -> Result:
    """Return divergence, errors and kept classes of every scheme and power, averaged over windows of half the columns.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of split and predictions.
        penalty: λ of the model, at its optimum.
        count: Predictions.
    """
    given = Problem(**problem)
    table = table_of(given, seed)
    model = Fit(penalty)(table.train, table.labels, given.variant, seed)
    rows = predictions(table.test, count, seed)
    weight, bias = tensor(model.weight), tensor(model.bias)
    scores = torch.softmax(rows @ weight.T + bias, dim=1)
    total, width = rows.shape[1], middle_width(given)
    found: dict[str, list[Result]] = {}
    plain = []
    for columns in some_windows(given, width, total):
        others = np.setdiff1d(np.arange(total), columns)
        known, passive, truth = rows[:, others] @ weight[:, others].T + bias, weight[:, columns], rows[:, columns]
        direction, _ = noise_direction(passive)
        plain.append(_errors(scores, known, passive, truth) | {"Half": reconstruction_mse(*_half(passive, truth))})
        for scheme in SCHEMES:
            named = None if scheme == 3 else direction.tolist()
            for place, power in enumerate(POWERS):
                published = ScoreNoise(scheme=scheme, power=power, direction=named)(scores, _secrets(seed))
                point = _point(scores, published, known, passive, truth)
                taken_off = subtract_noise(published, scheme, power=power, direction=direction)
                again = _errors(taken_off, known, passive, truth)
                point |= {f"{name}, subtracted": error for name, error in again.items()}
                _add(found, f"scheme {scheme}", place, point)
        for place, epsilon in enumerate(EPSILONS):
            published = ClassLabel(epsilon=epsilon)(scores, _secrets(seed))
            _add(found, LABEL, place, _point(scores, published, known, passive, truth))
    return {
        "width": width,
        "plain": {name: mean(window[name] for window in plain) for name in plain[0]},
        "schemes": {
            name: [{key: mean(values) for key, values in point.items()} for point in points]
            for name, points in found.items()
        },
    }


def middle_width(problem: Problem) -> int:
    """Return about half of the columns, as one of the widths of the other figures."""
    widths = WIDTHS[problem.source]
    return widths[len(widths) // 2]


def _secrets(seed: int) -> Secrets:
    return Secrets(party="label party", step=0, generator=torch.Generator().manual_seed(seed))


def _half(passive: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    return half(torch.diff(passive, dim=0), truth.new_zeros(len(truth), len(passive) - 1)), truth


def _errors(scores: Tensor, known: Tensor, passive: Tensor, truth: Tensor) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scores that round to 0
        A, b = equations(scores, known, passive)
    return {"LS": reconstruction_mse(least_squares(A, b), truth), "RCC2": reconstruction_mse(rcc2(A, b), truth)}


def _point(scores: Tensor, published: Tensor, known: Tensor, passive: Tensor, truth: Tensor) -> dict[str, float]:
    kept = (published.argmax(dim=1) == scores.argmax(dim=1)).double().mean().item()
    return {
        "divergence": mean_divergence(scores, published),
        "kept": kept,
        **_errors(published, known, passive, truth),
    }


def _add(found: dict[str, list[Result]], name: str, place: int, point: Mapping[str, float]) -> None:
    points = found.setdefault(name, [])
    if place == len(points):
        points.append({key: [] for key in point})
    for key, value in point.items():
        points[place][key].append(value)


# --- the section


def sections(settings: Settings) -> list[Section]:
    """Return the section on figure 13."""
    chosen = [
        (problem, seed)
        for variant in VARIANTS
        for problem in problems(settings, variant)
        for seed in range(settings.seeds)
    ]
    count = 100 if settings.quick else _PREDICTIONS
    jobs = [
        Job(measure, {"problem": problem.as_settings(), "seed": seed, "penalty": REGULAR, "count": count})
        for problem, seed in chosen
    ]
    runs: dict[tuple[Source, Variant], list[Result]] = {}
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    for (problem, _), result in zip(chosen, results, strict=True):
        runs.setdefault((problem.source, problem.variant), []).append(result)
    sources = list(dict.fromkeys(source for source, _ in runs))
    figures = {f"prediction-phase-13-{source}": _drawn(source, runs) for source in sources}
    captions = {
        f"prediction-phase-13-{source}": f"{source.capitalize()}: MSE per column of LS and RCC2 against the mean KL of "
        f"scores, {TITLES['curves']}"
        for source in sources
    }
    claims = [claim for (source, variant), found in runs.items() for claim in _claims(source, variant, found)]
    return [
        Section(
            title="Figure 13: noise on the logits, and who takes it off",
            body=f"{_TEXT}\n\n{_table(runs)}",
            figures=figures,
            captions=captions,
            claims=claims,
        )
    ]


_TEXT = f"""\
Regularised models (λ = {REGULAR:g}), half of the columns unknown, {WINDOWS} windows, {_PREDICTIONS} predictions.
Powers t are {", ".join(f"{power:g}" for power in POWERS)}; ε of the class label
{", ".join(f"{epsilon:g}" for epsilon in EPSILONS)}. The formulas of schemes 1 to 3 are this library's, as those of the
paper are not legible. The direction is that of theorem 4 for each window. Noise is no secret: an attacker who knows the
weights and t subtracts it, and the last columns show what is then left of the defense. The class label alone cannot be
undone so, as what it drops is gone.

That a scheme raises the error reproduces where it does so **in each of the seeds**. With n of them a coin has that
1 time in 2ⁿ, so that the rule is weak where seeds are few. The interval of the mean says how large the rise is, and
may hold 0 all the same: with generated data the rise of one seed is a thousand times that of another."""


def _curve(found: Sequence[Result], scheme: str, estimate: str) -> tuple[list[float], list[float]]:
    points = [result["schemes"][scheme] for result in found]
    across, up = (
        [mean(run[place][key] for run in points) for place in range(len(points[0]))] for key in ("divergence", estimate)
    )
    return across, up


def _drawn(source: Source, runs: Mapping[tuple[Source, Variant], Sequence[Result]]) -> str:
    found = runs[source, "curves"]
    panels = []
    for estimate in ("LS", "RCC2"):
        schemes = [name for name in found[0]["schemes"] if name != LABEL]
        lines = {name: _curve(found, name, estimate) for name in (*schemes, LABEL)}
        lines |= {f"{name}, subtracted": _curve(found, name, f"{estimate}, subtracted") for name in schemes}
        widest = max(across[-1] for across, _ in lines.values())
        level = mean(result["plain"]["Half"] for result in found)
        lines["Half"] = ([0.0, widest], [level, level])
        panels.append(
            Panel(title=f"{source.capitalize()}: {estimate}", x_label="mean KL (nats)", lines=lines, marked=True)
        )
    return draw_panels(f"prediction-phase-13-{source}", panels, _PENS)


def _table(runs: Mapping[tuple[Source, Variant], Sequence[Result]]) -> str:
    rows = []
    for (source, variant), found in runs.items():
        plain = [result["plain"] for result in found]
        rows.append(
            (
                source.capitalize(),
                TITLES[variant],
                f"none (d = {found[0]['width']}; Half: {with_interval(p['Half'] for p in plain)})",
                "0",
                *(with_interval(p[name] for p in plain) for name in ("LS", "RCC2")),
                "",
                "",
            )
        )
        for scheme, places in {**{f"scheme {s}": (3, 5) for s in SCHEMES}, LABEL: (2,)}.items():
            for place in places:
                points = [result["schemes"][scheme][place] for result in found]
                setting = f"ε = {EPSILONS[place]:g}" if scheme == LABEL else f"t = {POWERS[place]:g}"
                subtracted = [f"{name}, subtracted" for name in ("LS", "RCC2")]
                cells = [with_interval(point[name] for point in points) for name in ("divergence", "LS", "RCC2")]
                cells += [with_interval(p[name] for p in points) if name in points[0] else "" for name in subtracted]
                rows.append(("", "", f"{scheme}, {setting}", *cells))
    headings = ("data", "variant", "defense", "mean KL", "LS", "RCC2", "LS, subtracted", "RCC2, subtracted")
    return markdown_table(headings, rows, left=3)


def _seeds_of(rises: Sequence[float]) -> str:
    """Return in how many seeds there is a rise; and how often a coin has as many as all."""
    up = sum(rise > 0 for rise in rises)
    if up < len(rises):
        return f"in {up} of {len(rises)} seeds"
    return f"in each of {up} seeds, which a coin has 1 time in {2**up}"


def _claims(source: Source, variant: Variant, found: Sequence[Result]) -> list[Claim]:
    where = f"{source.capitalize()}, {TITLES[variant]}"
    kept = [min(point["kept"] for points in result["schemes"].values() for point in points) for result in found]
    rises = [
        min(result["schemes"][f"scheme {scheme}"][-1]["LS"] - result["plain"]["LS"] for scheme in SCHEMES)
        for result in found
    ]
    left = [
        max(
            abs(point["LS, subtracted"] - result["plain"]["LS"])
            for scheme in SCHEMES
            for point in result["schemes"][f"scheme {scheme}"]
        )
        for result in found
    ]
    return [
        Claim.of_shares(
            kept,
            claim=f"schemes 1 to 3 and the class label keep every predicted class (share), {where}",
            published=1.0,
            holds=min(kept) == 1.0,
            why="the least share over schemes and powers",
        ),
        Claim.of(
            rises,
            claim=f"each scheme raises the error of LS at the largest power (least rise), {where}",
            holds=min(rises) > 0,
            why=f"{_seeds_of(rises)}; t = {POWERS[-1]:g}, against an attacker who does not know of the noise",
        ),
        Claim.of(
            left,
            claim=f"schemes 1 to 3 help against who knows weights and t (largest change of LS), {where}",
            holds=max(left) > 1e-3,
            why="the attacker subtracts the noise, and its error is that without a defense"
            if max(left) <= 1e-3
            else "what rounds to 0 in the published scores cannot be subtracted",
        ),
    ]
