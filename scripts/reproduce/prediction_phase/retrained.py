"""What models that are trained again and again tell of one record: the table of docs/what-scores-tell.md.

    python -m scripts.reproduce.prediction_phase.retrained [--seeds 5] [--quick]

Robot (`wall_following_robot_24.parquet` in the folder of data), 24 columns and 4 classes, the passive party with 12 of
them in a row: cyclic windows, every second one. Each model is fitted to another random half of the training records;
all score the same test records. Columns are as in the variant of the paper's text. Printed is the mean squared error
per column over windows, as a mean over seeds with half of its 95 % interval, and the mean bound of an estimate.

No claim of a paper is reproduced here: the papers have one model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scripts.reproduce.prediction_phase.study import Problem, Table, optimum, table_of, tensor, window
from scripts.reproduce.shared.claims import markdown_table, with_interval
from scripts.reproduce.shared.settings import data_folder
from splitvfl.attacks import (
    clamped_least_squares,
    estimate_weights,
    least_squares,
    rcc2_within,
    score_equations,
    stack_models,
)
from splitvfl.hooks import Equations
from splitvfl.leakage.unit_box import Box
from splitvfl.metrics import reconstruction_mse

COLUMNS, MODELS, PENALTY = 12, (1, 2, 3, 4, 6, 12), 1e-3
DECIMALS: tuple[int | None, ...] = (None, 6, 4, 3, 2)
INTERVALS = (3, 2)
KNOWN = 20
_RECORDS = 200


def fitted(table: Table, count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return weights and biases of models that were fitted to random halves of the training records."""
    draw = np.random.default_rng([seed, 4])
    found = []
    for _ in range(count):
        half = draw.permutation(len(table.train))[: len(table.train) // 2]
        model = optimum(table.train[half], table.labels[half], PENALTY, biases=False)
        found.append((tensor(model.weight), tensor(model.bias)))
    return found


def systems(
    models: Sequence[tuple[Tensor, Tensor]], rows: Tensor, columns: Sequence[int], decimals: int | None
) -> Iterator[Equations]:
    """Yield what each model's scores of the same records tell of some of their columns, rounded if asked for."""
    others = [place for place in range(rows.shape[1]) if place not in set(columns)]
    box = Box(torch.zeros(len(columns)), torch.ones(len(columns)))
    for weight, bias in models:
        scores = torch.softmax(rows @ weight.T + bias, dim=1)
        resolution = 0.0 if decimals is None else 10.0**-decimals
        shown = scores if decimals is None else scores.round(decimals=decimals)
        own = rows[:, others] @ weight[:, others].T + bias
        yield box.equations(score_equations(shown, own, weight[:, list(columns)], resolution=resolution))


def errors(table: Table, seed: int, *, quick: bool) -> dict[tuple[str, int], tuple[float, float]]:
    """Return, by what is seen and number of models, the error of clamped least squares, and its bound; means."""
    models = fitted(table, max(MODELS), seed)
    rows = tensor(table.test)[: 20 if quick else _RECORDS]
    known = tensor(table.train)[:KNOWN]
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for start in range(0, rows.shape[1], 12 if quick else 2):
        columns = window(start, COLUMNS, rows.shape[1]).tolist()
        truth = rows[:, columns]
        for decimals in DECIMALS:
            seen = list(systems(models, rows, columns, decimals))
            told = list(systems(models, known, columns, decimals))
            for count in MODELS:
                stacked = stack_models(seen[:count])
                missed = _missed(stacked.known.A, stacked.known.b, truth)
                bound = stacked.bound.clamp(max=1.0).mean().item()
                found.setdefault((_name(decimals), count), []).append((missed, bound))
                if decimals is None:
                    plain = reconstruction_mse(least_squares(*stacked.known[:2]), truth)
                    found.setdefault(("all digits, not clamped", count), []).append((plain, float("nan")))
                if decimals in INTERVALS and start % 8 == 0:
                    few = slice(20)
                    nearest = rcc2_within(stacked.known.A, stacked.known.b[few], stacked.known.error[few])
                    row = f"{_name(decimals)}, as intervals (RCC2)", count
                    found.setdefault(row, []).append((reconstruction_mse(nearest, truth[few]), float("nan")))
                beside = stack_models(told[:count]).known
                guess = estimate_weights(known[:, columns], beside.b, intercept=True)
                without = _missed(guess.A, stacked.known.b - guess.intercept, truth)
                found.setdefault((f"{_name(decimals)}, weights unknown", count), []).append((without, float("nan")))
    return {key: tuple(np.mean(values, axis=0)) for key, values in found.items()}  # type: ignore[misc]


def _missed(A: Tensor, b: Tensor, truth: Tensor) -> float:
    return reconstruction_mse(clamped_least_squares(A, b), truth)


def _name(decimals: int | None) -> str:
    return "all digits" if decimals is None else f"{decimals} decimals"


def tables(results: Sequence[Mapping[tuple[str, int], tuple[float, float]]]) -> str:
    """Return the errors and the bounds as tables, a row for each number of digits."""
    names = list(dict.fromkeys(name for name, _ in results[0]))
    return "\n\n".join(
        markdown_table(
            ("scores", *(f"{count}" for count in MODELS)),
            [
                (name, *(_shown([found[name, count][which] for found in results]) for count in MODELS))
                for name in names
                if which == 0 or "," not in name
            ],
            left=1,
        )
        for which in (0, 1)
    )


def _shown(values: Sequence[float]) -> str:
    return "0" if float(np.mean(values)) < 5e-5 else with_interval(values, 4)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="on little generated data, of which nothing is to be read")
    chosen = parser.parse_args(argv)
    path = Path(data_folder()) / "wall_following_robot_24.parquet"
    if not chosen.quick and not path.is_file():
        print(f"{path} is not there: name the folder of data (SPLITVFL_DATA)", file=sys.stderr)
        return 2
    problem = Problem(source="robot", variant="text", path=str(path))
    found = [
        errors(_generated(seed) if chosen.quick else table_of(problem, seed), seed, quick=chosen.quick)
        for seed in range(2 if chosen.quick else chosen.seeds)
    ]
    print(tables(found))
    return 0


def _generated(seed: int) -> Table:
    draw = np.random.default_rng(seed)
    columns = draw.random((240, 24))
    labels = (columns @ draw.normal(size=(24, 4)) + draw.gumbel(size=(240, 4))).argmax(axis=1)
    return Table(columns[:200], labels[:200], columns[200:], labels[200:], tuple(f"x{n}" for n in range(24)))


if __name__ == "__main__":
    sys.exit(main())
