"""What reconstructing features costs: our batched solvers against general ones, and a million predictions.

Three linear models of real data, of which the attacker misses d columns and sees k classes: a part of breast cancer's
(d = 19, k = 2), all of the robot's (24, 4), and a part of the digits' pixels (36, 10). Per prediction: our solvers take
2000 at once; cvxpy takes a problem with a parameter for the right side, compiled before, a few predictions in turn, by
each of its solvers at its default tolerances, and the fastest counts. Ratios are of CPU time on one thread, interleaved
in one run.

Then a million predictions of the digits' model: time, and memory beside the equations and the result.

Run ``python -m scripts.bench.reconstruction [--quick] [--json OUT]``; the robot is read from ``SPLITVFL_DATA``.
"""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import cvxpy
import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from scripts.bench.measuring import Result, interleaved, main, ratio
from splitvfl.attacks import constrained_least_squares, rcc1, rcc1_with_value, rcc2
from splitvfl.data.sets import file_of

Floats = NDArray[np.float64]
Estimate = Callable[[Tensor, Tensor], Tensor]

MANY, QUICK_MANY = 2000, 200
FEW, QUICK_FEW = 10, 2
RUNS, QUICK_RUNS = 5, 1
MILLION, QUICK_MILLION = 1_000_000, 20_000
_OFTEN = 10  # how many times ours is called within a run
# How many times faster per prediction, in the order of the models.
RCC2_TARGETS, RCC1_TARGETS = (1000.0, 1000.0, 60.0), (50.0, 50.0, 50.0)
PROJECTORS = ("CLARABEL", "OSQP", "SCS")
SEMIDEFINITE = ("CLARABEL", "SCS")  # OSQP has no semidefinite cone


@dataclass(frozen=True)
class Model:
    """Equations of one model, and what they are solved for.

    Attributes:
        name: For people.
        left: A, ``(k − 1, d)``, or ``(1, d)``.
        records: The missing columns in [0, 1], ``(n, d)``.
    """

    name: str
    left: Tensor
    records: Tensor

    def right(self, count: int) -> Tensor:
        """Return right sides of records drawn with replacement, ``(count, k − 1)``."""
        drawn = torch.randint(len(self.records), (count,), generator=torch.Generator().manual_seed(0))
        # In parts: the records of a million would be what the peak of memory is.
        return torch.cat([self.records[part] @ self.left.T for part in drawn.split(10_000)])


def models() -> list[Model]:
    """Return the three models."""
    cancer, digits = load_breast_cancer(), load_digits()
    robot = pq.read_table(file_of("robot", None))
    readings = np.stack([robot[name].to_numpy() for name in robot.column_names if name != "Class"], axis=1)
    return [
        _model("breast cancer", cancer.data, cancer.target, 19),
        _model("robot", readings, robot["Class"].to_numpy(), 24),
        _model("digits", digits.data, digits.target, 36),
    ]


def _model(name: str, columns: Floats, labels: NDArray[np.generic], missing: int) -> Model:
    low, high = columns.min(axis=0), columns.max(axis=0)
    scaled = (columns - low) / np.where(high > low, high - low, 1.0)
    fitted = LogisticRegression(max_iter=2000).fit(scaled, labels)
    weights = torch.from_numpy(fitted.coef_[:, -missing:].copy())
    left = weights if len(weights) == 1 else weights.diff(dim=0)
    title = f"{name} (d = {missing}, k = {len(fitted.classes_)})"
    return Model(title, left, torch.from_numpy(scaled[:, -missing:].copy()))


class General:
    """A problem of cvxpy, compiled once, whose right side is a parameter."""

    def __init__(self, objective: cvxpy.Problem, target: cvxpy.Parameter, solver: str, right: Tensor) -> None:
        self._problem, self._target, self._solver, self._right = objective, target, solver, right.numpy()

    def __call__(self) -> None:
        """Solve it for every right side in turn."""
        with warnings.catch_warnings():
            # It says so where a solver stops short of its tolerance: none the slower for it.
            warnings.simplefilter("ignore")
            for row in self._right:
                self._target.value = row
                self._problem.solve(solver=self._solver)


def projection(left: Tensor, solver: str, right: Tensor) -> General:
    """Return RCC2 as a quadratic program."""
    x, target = cvxpy.Variable(left.shape[1]), cvxpy.Parameter(left.shape[0])
    goal = cvxpy.Minimize(cvxpy.sum_squares(x - 0.5))
    return General(cvxpy.Problem(goal, [left.numpy() @ x == target, x >= 0, x <= 1]), target, solver, right)


def relaxation(left: Tensor, solver: str, right: Tensor) -> General:
    """Return RCC1 as a semidefinite program, V on A's null space."""
    null = torch.linalg.svd(left).Vh[int(torch.linalg.matrix_rank(left)) :].T.numpy()
    x, target = cvxpy.Variable(left.shape[1]), cvxpy.Parameter(left.shape[0])
    spread = cvxpy.Variable((null.shape[1], null.shape[1]), PSD=True)
    bounded = cvxpy.diag(null @ spread @ null.T) <= x - cvxpy.square(x)
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.trace(spread)), [left.numpy() @ x == target, bounded])
    return General(problem, target, solver, right)


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` solves for fewer predictions, once."""
    found = models()
    # First, while the process is small: its peak size never falls again.
    results = _million(found[-1], QUICK_MILLION if quick else MILLION)
    for model, fast, slow in zip(found, RCC2_TARGETS, RCC1_TARGETS, strict=True):
        results += _against(model, "RCC2", rcc2, partial(projection, model.left), PROJECTORS, fast, quick=quick)
        results += _against(model, "RCC1", rcc1, partial(relaxation, model.left), SEMIDEFINITE, slow, quick=quick)
        results.append(_certified_share(model, QUICK_MANY if quick else MANY))
        if torch.cuda.is_available():
            results += _gpu_results(model, MANY)
    return results


def _against(
    model: Model,
    name: str,
    ours: Estimate,
    theirs: Callable[[str, Tensor], General],
    solvers: tuple[str, ...],
    target: float,
    *,
    quick: bool,
) -> list[Result]:
    many, few, runs = (QUICK_MANY, QUICK_FEW, QUICK_RUNS) if quick else (MANY, FEW, RUNS)
    right = model.right(many)
    works = [partial(ours, model.left, right), *(theirs(solver, right[:few]) for solver in solvers)]
    # Ours takes a few milliseconds for all: too short to be timed once.
    taken, *others = interleaved(works, runs=runs, repeats=[_OFTEN, *[1] * len(solvers)], warm_up=1)
    each = {solver: [seconds / few for seconds in times] for solver, times in zip(solvers, others, strict=True)}
    fastest = min(each, key=lambda solver: float(np.median(each[solver])))
    mine = [seconds / many for seconds in taken]
    value, note = ratio(each[fastest], mine)
    medians = ", ".join(f"{solver} {1e3 * float(np.median(times)):.2f} ms" for solver, times in each.items())
    return [
        Result(f"{name}, {model.name}: faster than cvxpy", value, "ratio", target, "higher", f"{note}; {medians}"),
        Result(f"{name}, {model.name}: a prediction", 1e6 * float(np.median(mine)), "us", None, note=f"{many} at once"),
    ]


def _certified_share(model: Model, many: int) -> Result:
    """Return how many RCC1 points are RCC2's, whose certificate spares the program."""
    right = model.right(many)
    same = ((rcc1(model.left, right) - rcc2(model.left, right)).abs().amax(dim=1) < 1e-6).double().mean()
    return Result(f"{model.name}: RCC1 is RCC2", float(same), "of predictions", None, "higher", f"{many} predictions")


def _gpu_results(model: Model, many: int) -> list[Result]:
    right = model.right(many)
    left, there = model.left.cuda(), right.cuda()
    rows = []
    for name, estimate in (("RCC2", rcc2), ("CLS", constrained_least_squares)):
        apart = float((estimate(left, there).cpu() - estimate(model.left, right)).abs().max())
        rows.append(Result(f"{name}, {model.name}: GPU against CPU", apart, "largest difference", 1e-9, note="1 run"))
        torch.cuda.synchronize()
        begun = time.perf_counter()
        estimate(left, there)
        torch.cuda.synchronize()
        taken = 1e6 * (time.perf_counter() - begun) / many
        rows.append(Result(f"{name}, {model.name}: a prediction on the GPU", taken, "us", None, note="wall, 1 run"))
    apart = float((rcc1_with_value(left, there).bound.cpu() - rcc1_with_value(model.left, right).bound).abs().max())
    return [
        *rows,
        Result(f"RCC1's bound, {model.name}: GPU against CPU", apart, "largest difference", 1e-6, note="1 run"),
    ]


def _million(model: Model, count: int) -> list[Result]:
    results = []
    right = model.right(count)
    own = count * model.left.shape[1] * 8 / (1 << 20)
    for name, estimate in (("RCC2", rcc2), ("CLS", constrained_least_squares)):
        before, begun = _peak_mib(), time.process_time()
        estimate(model.left, right)
        taken = time.process_time() - begun
        # The peak of the process never falls, so later rows say what is needed beyond the ones before.
        more = max(_peak_mib() - before - own, 0.0)
        what, note = f"{name}, {model.name}: {count:,} predictions", f"1 run; the result itself has {own:.0f} MiB"
        results += [
            Result(what, taken, "s", None, note=note),
            Result(f"{what}, memory beside the result", more, "MiB", 400.0, note=note),
        ]
    return results


def _peak_mib() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1 << 20 if sys.platform == "darwin" else 1 << 10)


if __name__ == "__main__":
    raise SystemExit(main("Reconstructing features: batched solvers against general ones", measure))
