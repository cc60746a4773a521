"""Figures 4, 5 and 8 to 11: what estimates miss who know the weights, by the number of unknown columns.

One softmax model of all columns; then every cyclic window of d columns is in turn the passive party's, and errors are
averaged over windows. Predictions are drawn with replacement from the test records; scores are float64 softmax scores,
and equations are taken from them as an attacker would.

**The flip** x → 1 − x: the model is trained on flipped columns, and the attacker takes its estimates for x.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.reproduce.prediction_phase.study import Fit, Problem, Source, table_of, tensor, window
from scripts.reproduce.shared.jobs import Result
from splitvfl.attacks import (
    clamped_least_squares,
    constrained_least_squares,
    equations,
    half,
    half_star,
    least_squares,
    rcc1_with_value,
    rcc2,
)
from splitvfl.attacks.error_bounds import (
    UNIFORM_VARIANCE,
    errors_before_training,
    guess_error,
    half_star_error,
    least_error,
    least_squares_error,
)
from splitvfl.leakage.column_moments import ColumnMoments
from splitvfl.metrics import mean_divergence, reconstruction_mse

Estimate = Callable[[Tensor, Tensor], Tensor]

LS, CLAMPED, CLS, HALF_STAR, HALF_CLAMPED, RCC2, HALF = (
    "LS",
    "clamped LS",
    "CLS",
    "Half*",
    "Half*, clamped",
    "RCC2",
    "Half",
)
RCC1, ZERO = "RCC1", "Zero"

WIDTHS: Mapping[Source, tuple[int, ...]] = {
    "bank": (1, 2, 4, 6, 8, 11, 14, 17),
    "robot": (2, 3, 4, 6, 8, 12, 16, 21),
    "satellite": (2, 5, 7, 10, 16, 22, 28, 32),
    "synthetic": (1, 2, 3, 4, 5, 7, 9),
}
"""Numbers of unknown columns, up to .9 of all."""


def _clamped_half_star(A: Tensor, b: Tensor) -> Tensor:
    return half_star(A, b).clamp(0.0, 1.0)


def _zero(A: Tensor, b: Tensor) -> Tensor:
    return b.new_zeros(len(b), A.shape[1])


DIRECT: Mapping[str, Estimate] = {
    LS: least_squares,
    CLAMPED: clamped_least_squares,
    HALF_STAR: half_star,
    HALF_CLAMPED: _clamped_half_star,
    HALF: half,
    ZERO: _zero,
}
"""Estimates that are a product of matrices: made for all predictions."""

SOLVED: Mapping[str, Estimate] = {CLS: constrained_least_squares, RCC2: rcc2}
"""Estimates that need a solver: made for the first :data:`SOLVED_PREDICTIONS`."""

WINDOWS = 4
"""Of so many, in place of all, are figures that take long."""

PREDICTIONS, SOLVED_PREDICTIONS, RCC1_PREDICTIONS = 2000, 500, 100
"""How many predictions are estimated; RCC1 in every fourth window only."""


def predictions(rows: np.ndarray[Any, Any], count: int, seed: int) -> Tensor:
    """Return so many rows, drawn with replacement."""
    return tensor(rows[np.random.default_rng([seed, 7]).integers(0, len(rows), count)])


def measure_widths(
    problem: Mapping[str, Any], seed: int, penalty: float, adam: int, count: int, widths: Sequence[int]
) -> Result:
    """Return what :func:`measure` does before the flip, of some numbers of unknown columns, without bounds."""
    given = Problem(**problem)
    table = table_of(given, seed)
    model = Fit(penalty, adam)(table.train, table.labels, given.variant, seed)
    rows = predictions(table.test, count, seed)
    return {"before": _over_windows(given, rows, rows, model, widths)}


def measure(problem: Mapping[str, Any], seed: int, penalty: float, adam: int, flip: bool, count: int) -> Result:
    """Return the mean squared error per column of every estimate, by width, averaged over cyclic windows.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of the split and of the predictions.
        penalty: λ.
        adam: Epochs of Adam; 0: the optimum.
        flip: Whether the model is trained on flipped columns as well, and attacked after the flip.
        count: Predictions, :data:`PREDICTIONS`; a quarter and a twentieth of them for estimates that need a solver.
    """
    given = Problem(**problem)
    table, fit = table_of(given, seed), Fit(penalty, adam)
    model = fit(table.train, table.labels, given.variant, seed)
    rows = predictions(table.test, count, seed)
    found = _over_windows(given, rows, rows, model, widths_of(given))
    result: Result = {
        "before": found,
        "bounds": _bounds(given, rows, model),
        "slope": model.slope,
        "accuracy": model.accuracy(table.test, table.test_labels),
    }
    if flip:
        flipped = fit(1.0 - table.train, table.labels, given.variant, seed)
        result["after"] = _over_windows(given, 1.0 - rows, rows, flipped, widths_of(given))
        result["divergence"] = mean_divergence(
            tensor(model.scores(table.test)), tensor(flipped.scores(1.0 - table.test))
        )
    return result


def widths_of(problem: Problem) -> tuple[int, ...]:
    """Return the numbers of unknown columns; few for a cut problem."""
    return WIDTHS[problem.source][1::2] if problem.rows else WIDTHS[problem.source]


def some_windows(problem: Problem, width: int, total: int) -> list[np.ndarray[Any, Any]]:
    """Return four windows of columns that lie across all of them; one for a cut problem."""
    starts = [0] if problem.rows else range(0, total, -(-total // WINDOWS))
    return [window(start, width, total) for start in starts]


def published(model: Any, shown: Tensor, columns: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, the active party's part of the logits, and the passive party's weights.

    Args:
        model: Weights and biases.
        shown: Rows as the model takes them, ``(n, p)``.
        columns: Of the passive party.
    """
    weight, bias = tensor(model.weight), tensor(model.bias)
    others = np.setdiff1d(np.arange(weight.shape[1]), columns)
    scores = torch.softmax(shown @ weight.T + bias, dim=1)
    return scores, shown[:, others] @ weight[:, others].T + bias, weight[:, columns]


def system(model: Any, shown: Tensor, columns: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
    """Return ``(A, b)`` of what is :func:`published`, with the same arguments."""
    with warnings.catch_warnings():
        # Scores that round to 0 are treated as documented there, and counted by this reproduction.
        warnings.simplefilter("ignore", RuntimeWarning)
        return equations(*published(model, shown, columns))


def _over_windows(problem: Problem, shown: Tensor, truth: Tensor, model: Any, widths: Sequence[int]) -> Result:
    total, names = truth.shape[1], [*DIRECT, *SOLVED, RCC1]
    step = 3 if problem.rows else 1
    found: dict[str, list[float]] = {name: [] for name in names}
    rounding = 0
    weight, bias = tensor(model.weight), tensor(model.bias)
    rounding = int((torch.softmax(shown @ weight.T + bias, dim=1) == 0).any(dim=1).sum())
    for width in widths:
        errors: dict[str, list[float]] = {name: [] for name in names}
        for start in range(0, total, step):
            columns = window(start, width, total)
            A, b = system(model, shown, columns)
            target = truth[:, columns]
            few, fewer = max(len(b) // 4, 1), max(len(b) // 20, 1)
            for name, estimate in DIRECT.items():
                errors[name].append(reconstruction_mse(estimate(A, b), target))
            for name, estimate in SOLVED.items():
                errors[name].append(reconstruction_mse(estimate(A, b[:few]), target[:few]))
            if start % 4 == 0:
                centres = rcc1_with_value(A, b[:fewer])
                errors[RCC1].append(reconstruction_mse(centres.points, target[:fewer]))
        for name in names:
            found[name].append(float(np.mean(errors[name])))
    return {"widths": list(widths), "errors": found, "rounded": rounding}


def _bounds(problem: Problem, rows: Tensor, model: Any) -> Result:
    """Return closed forms and bounds of theorem 2 from the moments of the predictions' own records."""
    total, classes = rows.shape[1], len(model.bias)
    weight = tensor(model.weight)
    step = 3 if problem.rows else 1
    names = ("LS", "Half*", "least", "LS, low", "LS, high", "Half*, low", "Half*, high", "Half", "uniform")
    found: dict[str, list[float]] = {name: [] for name in names}
    for width in widths_of(problem):
        errors: dict[str, list[float]] = {name: [] for name in names}
        for start in range(0, total, step):
            columns = window(start, width, total)
            moments, A = ColumnMoments.of(rows[:, columns]), torch.diff(weight[:, columns], dim=0)
            forecast = errors_before_training(moments, classes - 1)
            values = (
                least_squares_error(A, moments),
                half_star_error(A, moments),
                least_error(A, moments),
                *forecast.least_squares,
                *forecast.half_star,
                guess_error(moments, 0.5),
                guess_error(moments, 0.5, UNIFORM_VARIANCE),
            )
            for name, value in zip(names, values, strict=True):
                errors[name].append(value)
        for name in names:
            found[name].append(float(np.mean(errors[name])))
    return found


def at_width(result: Result, name: str, width: int, *, when: str = "before") -> float:
    """Return an estimate's error at a number of unknown columns."""
    part = result[when]
    return float(part["errors"][name][part["widths"].index(width)])


def mean_over(results: Sequence[Result], name: str, *, when: str = "before") -> list[float]:
    """Return an estimate's error by width, the mean over seeds."""
    return [float(value) for value in np.mean([result[when]["errors"][name] for result in results], axis=0)]
