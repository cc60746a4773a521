"""Trained generalised linear models are what scikit-learn and cvxpy find, however columns are divided."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.svm import LinearSVC

from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.learning.optimizers import OPTIMIZERS
from splitvfl.learning.tasks import task_for
from splitvfl.models import GLMRecipe
from splitvfl.party.party import ActiveParty, PassiveParty

Numbers = npt.NDArray[np.float64]
Solution = tuple[Numbers, float]  # weights, intercept

ROWS = 80
# A gap in the objective is the square of one in the weights.
CLOSE = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
# Columns of the label party, then of each passive one.
DIVISIONS = {1: (2, 5), 2: (2, 3, 2), 3: (2, 2, 2, 1)}
WIDTH = 7


def design() -> Numbers:
    """Centred columns with ``XᵀX = n I``, as float32 has them: every Hessian is then about a multiple of the identity.

    So gradient descent with a step of one over that multiple is there in a few dozen steps.
    """
    random = np.random.default_rng(0)
    columns = np.linalg.qr(np.column_stack([np.ones(ROWS), random.normal(size=(ROWS, WIDTH))]))[0][:, 1:]
    rounded: Numbers = (columns * np.sqrt(ROWS)).astype(np.float32).astype(np.float64)
    return rounded


X = design()
TRUTH = np.array([0.6, -0.4, 0.5, 0.0, -0.7, 0.02, 0.3])
T = X @ TRUTH + 0.2


def labels(kind: str) -> Numbers:
    random = np.random.default_rng(1)
    match kind:
        case "binary":
            made = (random.random(ROWS) < 1 / (1 + np.exp(-T))).astype(float)
        case "counts":
            made = random.poisson(np.exp(0.5 * T)).astype(float)
        case "amounts":
            made = random.gamma(2.0, 0.5 / (1.2 - 0.2 * T))
        case _:  # numbers, some of them far out
            made = T + random.normal(size=ROWS) * np.where(random.random(ROWS) < 0.1, 5.0, 0.5)
    return made.astype(np.float32).astype(np.float64)


def trained(
    recipe: GLMRecipe, y: Numbers, optimizer: Callable[[Any], Any], *, passives: int, steps: int
) -> dict[str, Numbers]:
    """Return each party's weights after so many steps of full batches, the label party's with the intercept last."""
    loss = recipe.make_loss()
    task = task_for(loss.labels or "", 2, loss)
    bounds = np.cumsum([0, *DIVISIONS[passives]])
    data = [
        _data(f"party {number}", X[:, start:stop], None if number else y)
        for number, (start, stop) in enumerate(itertools.pairwise(bounds))
    ]
    own, *others = data
    lab = {one.name: PassiveParty(one, recipe.make_bottom(one, task), optimizer=optimizer) for one in others}
    bank = ActiveParty(own, recipe.make_top(own, task, [1] * passives), task=task, optimizer=optimizer)
    Trainer(bank, lab, batch_size=ROWS, audit=False, evaluate_every=steps).fit(steps)
    top: Any = bank.top
    found = {own.name: torch.cat([top.own.weight.flatten(), top.intercept]).detach()}
    found |= {name: party.bottom.weight.detach().flatten() for name, party in lab.items()}  # type: ignore[union-attr, operator]
    return {name: weights.double().numpy() for name, weights in found.items()}


def _data(name: str, columns: Numbers, y: Numbers | None) -> PartyData:
    made = Records(
        torch.arange(ROWS),
        Columns.of(torch.tensor(columns, dtype=torch.float32)),
        None if y is None else torch.tensor(y, dtype=torch.float32),
    )
    names = tuple(f"{name}.{number}" for number in range(columns.shape[1]))
    return PartyData(name, names, names, (), made, made)


@dataclass(frozen=True)
class Problem:
    """A loss and a penalty, with another's minimiser.

    Attributes:
        recipe: The model.
        kind: Which labels.
        optimizer: Its name.
        settings: Its settings; a step is one over the largest curvature, about.
        oracle: Returns the minimiser; the labels are 0 and 1 where there are two.
        steps: How many are taken.
    """

    recipe: GLMRecipe
    kind: str
    optimizer: str
    settings: dict[str, float]
    oracle: Callable[[Numbers], Solution]
    steps: int = 12


def of_scikit_learn(model: Any, y: Numbers) -> Solution:
    fitted = model.fit(X, y)
    return fitted.coef_.ravel(), float(np.ravel(fitted.intercept_)[0])


def of_cvxpy(loss: Callable[[Any, Numbers], Any], y: Numbers, *, l2: float = 0.0) -> Solution:
    weights, intercept = cp.Variable(WIDTH), cp.Variable()
    objective = cp.sum(loss(X @ weights + intercept, y)) / ROWS + l2 / 2 * cp.sum_squares(weights)
    cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL, **CLOSE)
    assert weights.value is not None
    return weights.value, float(intercept.value)


def gamma_loss(t: Any, y: Numbers, *, a: float) -> Any:
    return (cp.multiply(y, -t) - cp.log(-t)) / a


def huber_loss(t: Any, y: Numbers, *, c: float) -> Any:
    return cp.huber(t - y, c) / 2  # cvxpy's is twice that of statistics


def glm(loss: Any, **settings: Any) -> GLMRecipe:
    return GLMRecipe(loss=loss, init="zero", **settings)


# Ours is the mean of the records' losses and (l2 / 2) ‖w‖², the others':
# - LogisticRegression, LinearSVC: ‖w‖² / 2 and C times the sum, so C = 1 / (n l2);
# - Ridge: the sum and alpha ‖w‖², so alpha = n l2 / 2;
# - Lasso, ElasticNet: half the mean, so that penalties are half of ours: alpha · l1_ratio = l1 / 2 on the absolute
#   values, and alpha · (1 − l1_ratio) / 2 = l2 / 4 on the squares;
# - PoissonRegressor: the mean of half deviances and alpha / 2 ‖w‖², so alpha = l2.
PROBLEMS = {
    "logistic": Problem(
        glm("logistic"),
        "binary",
        "proximal-sgd",
        {"lr": 4.0, "l2": 0.1},
        partial(of_scikit_learn, LogisticRegression(C=1 / (ROWS * 0.1), tol=1e-10, max_iter=10_000)),
        steps=40,
    ),
    "logistic, sgd": Problem(
        glm("logistic", intercept=False),
        "binary",
        "sgd",
        {"lr": 1 / 0.35, "weight_decay": 0.1},
        partial(of_scikit_learn, LogisticRegression(C=1 / (ROWS * 0.1), tol=1e-10, fit_intercept=False)),
        steps=40,
    ),
    "least squares": Problem(
        glm("least-squares"), "numbers", "sgd", {"lr": 0.45}, partial(of_scikit_learn, LinearRegression())
    ),
    "normal": Problem(
        # A variance divides the gradient, and so the penalty weighs as many times more.
        glm("normal", dispersion=0.5),
        "numbers",
        "proximal-sgd",
        {"lr": 0.45, "l2": 0.8},
        partial(of_scikit_learn, Ridge(alpha=ROWS * 0.4, tol=1e-12)),
    ),
    "ridge": Problem(
        glm("least-squares"),
        "numbers",
        "proximal-sgd",
        {"lr": 0.45, "l2": 0.5},
        partial(of_scikit_learn, Ridge(alpha=ROWS * 0.25)),
    ),
    "ridge, sgd": Problem(
        glm("least-squares", intercept=False),
        "numbers",
        "sgd",
        {"lr": 0.4, "weight_decay": 0.5},
        partial(of_scikit_learn, Ridge(alpha=ROWS * 0.25, fit_intercept=False)),
    ),
    "lasso": Problem(
        glm("least-squares"),
        "numbers",
        "proximal-sgd",
        {"lr": 0.45, "l1": 0.7},
        partial(of_scikit_learn, Lasso(alpha=0.35, tol=1e-12)),
    ),
    "elastic net": Problem(
        glm("least-squares"),
        "numbers",
        "proximal-sgd",
        {"lr": 0.45, "l1": 0.6, "l2": 0.4},
        partial(of_scikit_learn, ElasticNet(alpha=0.5, l1_ratio=0.6, tol=1e-12)),
    ),
    "l2-svm": Problem(
        glm("l2-svm", intercept=False),
        "binary",
        "sgd",
        {"lr": 0.4, "weight_decay": 0.5},
        partial(
            of_scikit_learn,
            LinearSVC(C=1 / (ROWS * 0.5), loss="squared_hinge", fit_intercept=False, tol=1e-10, max_iter=100_000),
        ),
        steps=30,
    ),
    "poisson": Problem(
        glm("poisson"),
        "counts",
        "proximal-sgd",
        {"lr": 0.45, "l2": 0.3},
        partial(of_scikit_learn, PoissonRegressor(alpha=0.3, tol=1e-10, max_iter=10_000)),
        steps=50,
    ),
    "gamma": Problem(
        glm("gamma", dispersion=0.5),
        "amounts",
        "proximal-sgd",
        {"lr": 0.5, "l2": 0.3},
        partial(of_cvxpy, partial(gamma_loss, a=0.5), l2=0.3),
        steps=50,
    ),
    "huber": Problem(
        glm("huber", threshold=0.8),
        "numbers",
        "proximal-sgd",
        {"lr": 1.0, "l2": 0.2},
        partial(of_cvxpy, partial(huber_loss, c=0.8), l2=0.2),
        steps=40,
    ),
}


@pytest.mark.parametrize(
    ("name", "passives"),
    [
        *((name, 2) for name in PROBLEMS),
        *((name, passives) for name in ("logistic", "elastic net") for passives in (1, 3)),
    ],
)
def test_full_batches_without_noise_end_where_others_do(name: str, passives: int) -> None:
    problem = PROBLEMS[name]
    y = labels(problem.kind)
    weights, intercept = problem.oracle(y)

    found = trained(
        problem.recipe,
        y,
        partial(OPTIMIZERS[problem.optimizer], **problem.settings, radius=100.0),
        passives=passives,
        steps=problem.steps,
    )

    own, *others = found.values()
    # Weights of size one in float32, whose steps are rounded at 6e-8: 1e-5 leaves two orders for what adds up.
    np.testing.assert_allclose(np.concatenate([own[:-1], *others]), weights, atol=1e-5, rtol=0)
    assert own[-1] == pytest.approx(intercept, abs=1e-5)
    if "l1" in problem.settings:
        assert (np.concatenate([own[:-1], *others]) == 0).sum() == (np.abs(weights) < 1e-12).sum() > 0


@pytest.mark.parametrize(
    ("name", "settings", "loss"),
    [
        ("logistic", {"lr": 4.0}, lambda t, y: cp.logistic(cp.multiply(1 - 2 * y, t))),
        ("least-squares", {"lr": 0.45, "l1": 0.3}, lambda t, y: cp.square(t - y)),
        ("huber", {"lr": 1.0}, partial(huber_loss, c=1.0)),
    ],
)
def test_with_the_ball_reached_they_solve_the_problem_that_has_the_balls(
    name: Any, settings: dict[str, float], loss: Callable[[Any, Numbers], Any]
) -> None:
    """Each party's weights have a ball of their own, and the label party's holds its intercept."""
    radius, y = 0.35, labels("binary" if name == "logistic" else "numbers") + (0.5 if name != "logistic" else 0.0)
    found = trained(glm(name), y, partial(OPTIMIZERS["proximal-sgd"], **settings, radius=radius), passives=2, steps=60)

    widths = DIVISIONS[2]
    parts, intercept = [cp.Variable(width) for width in widths], cp.Variable(1)
    t = X @ cp.hstack(parts) + intercept
    penalty = settings.get("l1", 0.0) * sum(cp.norm1(part) for part in parts)
    balls = [cp.norm(cp.hstack([parts[0], intercept])) <= radius, *(cp.norm(part) <= radius for part in parts[1:])]
    cp.Problem(cp.Minimize(cp.sum(loss(t, y)) / ROWS + penalty), balls).solve(solver=cp.CLARABEL, **CLOSE)

    expected = [np.concatenate([parts[0].value, intercept.value]), *(part.value for part in parts[1:])]
    norms = [np.linalg.norm(weights) for weights in found.values()]
    assert max(norms) <= radius
    assert sum(norm > radius * (1 - 1e-6) for norm in norms) >= 2  # so that the balls decide
    for weights, wanted in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(weights, wanted, atol=1e-5, rtol=0)
