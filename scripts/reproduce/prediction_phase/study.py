"""What the parts of this reproduction share: the data in two variants, the models, and the windows of columns.

**The paper's text** and **the published curves** disagree about the data. The variants here:

- ``text``: Bank without ``duration``; a category is replaced by the share of positives among the *training* records
  that have it; biases are not penalised; a fifth of the records is tested on (Satellite: its official test part).
- ``curves``: what the published curves were made with. Bank with ``duration`` and without ``campaign``; categories and
  ``cons_conf_idx`` replaced by the share of positives of *all* records; biases penalised; half of the fifth tested on;
  the two parts of Satellite scaled by themselves.

In both, columns are scaled to [0, 1] on all records (but for Satellite's parts), so that no record is out of range.
Labels of test records in the columns, and labels at a party that has none, are the paper's; nobody can do so in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from torch import Tensor

from scripts.reproduce.shared.settings import Settings, data_folder

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

Source = Literal["bank", "robot", "satellite", "synthetic"]
Variant = Literal["text", "curves"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
TITLES: Mapping[Variant, str] = {"text": "the paper's text", "curves": "the published curves' settings"}

CODED: Mapping[Source, float] = {"bank": 1e-4, "robot": 1e-7, "satellite": 1e-4, "synthetic": 1e-7}
"""The penalties that stand in the published code."""

FILES: Mapping[Source, str] = {
    "bank": "bank_marketing_additional_full.parquet",
    "robot": "wall_following_robot_24.parquet",
    "satellite": "statlog_landsat_satellite.parquet",
}

SPLIT_STATE = 40
"""Of scikit-learn's split, in the published code; seed s of this reproduction adds s."""

TINY_PENALTY = 1e-10
"""In place of none: softmax weights of all classes can be moved together, and this decides where to."""

_SYNTHETIC_ROWS = 20_000
_QUICK_ROWS = 600


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set in one variant.

    Attributes:
        source: Which data.
        variant: See the module.
        path: File of the data; empty for synthetic ones.
        rows: Only so many of the first records of each part are used; 0: all.
    """

    source: Source
    variant: Variant
    path: str = ""
    rows: int = 0

    @property
    def title(self) -> str:
        """Name for people."""
        return {
            "bank": "Bank",
            "robot": "Robot",
            "satellite": "Satellite",
            "synthetic": "synthetic",
        }[self.source]

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values."""
        return {"source": self.source, "variant": self.variant, "path": self.path, "rows": self.rows}


class Table(NamedTuple):
    """Scaled columns and classes.

    Attributes:
        train: ``(n, p)``, in [0, 1].
        labels: ``(n,)``, from 0.
        test: ``(s, p)``, in [0, 1].
        test_labels: ``(s,)``.
        names: Of the columns.
    """

    train: Array
    labels: Labels
    test: Array
    test_labels: Labels
    names: tuple[str, ...]

    @property
    def classes(self) -> int:
        """Number of classes, k."""
        return int(self.labels.max()) + 1


class Model(NamedTuple):
    """A softmax regression of all columns.

    Attributes:
        weight: ``(k, p)``.
        bias: ``(k,)``.
        slope: Largest entry of the objective's gradient where training ended.
    """

    weight: Array
    bias: Array
    slope: float

    def logits(self, rows: Array) -> Array:
        """Return ``(n, k)``."""
        found: Array = rows @ self.weight.T + self.bias
        return found

    def scores(self, rows: Array) -> Array:
        """Return ``(n, k)``."""
        found: Array = softmax(self.logits(rows), axis=1)
        return found

    def accuracy(self, rows: Array, labels: Labels) -> float:
        """Return the share of records whose class has the largest score."""
        return float((self.logits(rows).argmax(axis=1) == labels).mean())


def problems(settings: Settings, variant: Variant) -> list[Problem]:
    """Return the data sets that are at hand; what is missing is said, and left out."""
    if settings.quick:
        return [Problem(source="synthetic", variant=variant, rows=_QUICK_ROWS)]
    found = []
    for source, name in FILES.items():
        path = data_folder() / name
        if settings.has(source, path):
            found.append(Problem(source=source, variant=variant, path=str(path)))
    return [*found, Problem(source="synthetic", variant=variant)]


@lru_cache(maxsize=4)
def table_of(problem: Problem, seed: int) -> Table:
    """Return the data as one seed divides them.

    Args:
        problem: Which.
        seed: Of the split; Satellite has an official one, and synthetic data are drawn anew.
    """
    table = _READERS[problem.source](problem, seed)
    if not problem.rows:
        return table
    few = problem.rows
    return Table(table.train[:few], table.labels[:few], table.test[:few], table.test_labels[:few], table.names)


def _bank(problem: Problem, seed: int) -> Table:
    frame = pd.read_parquet(problem.path)
    labels = frame.pop("y").to_numpy(np.int64)
    curves = problem.variant == "curves"
    frame = frame.drop(columns="campaign" if curves else "duration")
    train, test = _division(len(frame), problem.variant, seed)
    known = np.arange(len(frame)) if curves else train
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name]) or (curves and name == "cons_conf_idx"):
            frame[name] = _positive_shares(frame[name].to_numpy(), labels, known)
    columns = unit_scaled(frame.to_numpy(np.float64))
    return Table(columns[train], labels[train], columns[test], labels[test], tuple(frame.columns))


def _positive_shares(values: npt.NDArray[Any], labels: Labels, known: npt.NDArray[np.int64]) -> Array:
    """Return for every record the share of positives among the known records of its value; of none: among all."""
    _, codes = np.unique(values.astype(str), return_inverse=True)
    sizes = np.bincount(codes[known], minlength=codes.max() + 1)
    positives = np.bincount(codes[known], weights=labels[known], minlength=codes.max() + 1)
    shares = np.where(sizes > 0, positives / np.maximum(sizes, 1), labels[known].mean())
    found: Array = shares[codes]
    return found


def _robot(problem: Problem, seed: int) -> Table:
    frame = pd.read_parquet(problem.path)
    _, labels = np.unique(frame.pop("Class").to_numpy().astype(str), return_inverse=True)
    columns = unit_scaled(frame.to_numpy(np.float64))
    train, test = _division(len(frame), problem.variant, seed)
    return Table(columns[train], labels[train], columns[test], labels[test], tuple(frame.columns))


def _satellite(problem: Problem, _seed: int) -> Table:
    frame = pd.read_parquet(problem.path)
    first = frame.pop("split").to_numpy() == "train"
    _, labels = np.unique(frame.pop("label").to_numpy(), return_inverse=True)
    columns = frame.to_numpy(np.float64)
    if problem.variant == "text":
        columns = unit_scaled(columns)
        train, test = columns[first], columns[~first]
    else:
        train, test = unit_scaled(columns[first]), unit_scaled(columns[~first])
    return Table(train, labels[first], test, labels[~first], tuple(frame.columns))


def _synthetic(problem: Problem, seed: int) -> Table:
    from sklearn.datasets import make_classification

    columns, labels = make_classification(
        n_samples=_SYNTHETIC_ROWS, n_features=10, n_informative=3, n_redundant=2, n_classes=2, random_state=seed
    )
    columns = unit_scaled(columns)
    train, test = _division(len(columns), problem.variant, seed)
    names = tuple(f"x{number}" for number in range(columns.shape[1]))
    return Table(columns[train], labels[train], columns[test], labels[test], names)


_READERS = {"bank": _bank, "robot": _robot, "satellite": _satellite, "synthetic": _synthetic}


def _division(count: int, variant: Variant, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows to train and to test on: a fifth for the tests, for the curves the first half of it."""
    from sklearn.model_selection import train_test_split

    state = SPLIT_STATE + seed
    train, test = train_test_split(np.arange(count), test_size=0.2, random_state=state)
    if variant == "curves":
        test, _ = train_test_split(test, test_size=0.5, random_state=state)
    return train, test


def unit_scaled(columns: Array) -> Array:
    """Return columns moved and scaled to [0, 1]; a constant one is 0."""
    low, high = columns.min(axis=0), columns.max(axis=0)
    found: Array = (columns - low) / np.where(high > low, high - low, 1.0)
    return found


# --- models


def optimum(columns: Array, labels: Labels, penalty: float, *, biases: bool) -> Model:
    """Return the softmax regression of least mean cross entropy plus ``penalty · Σθ²``, by a trust-region method.

    Args:
        columns: ``(n, p)``.
        labels: ``(n,)``, from 0.
        penalty: λ; at least :data:`TINY_PENALTY` is taken.
        biases: Whether λ is on biases, too.
    """
    rows, k = np.hstack([columns, np.ones((len(columns), 1))]), int(labels.max()) + 1
    n, q = rows.shape
    truth = np.eye(k)[labels]
    shrink = np.full((k, q), max(penalty, TINY_PENALTY))
    shrink[:, -1] = shrink[:, -1] if biases else TINY_PENALTY

    def value(flat: Array) -> tuple[float, Array]:
        theta = flat.reshape(k, q)
        logs = log_softmax(rows @ theta.T, axis=1)
        slope = (np.exp(logs) - truth).T @ rows / n + 2 * shrink * theta
        return float(-(logs * truth).sum() / n + (shrink * theta**2).sum()), slope.ravel()

    def curvature(flat: Array) -> Array:
        shares = softmax(rows @ flat.reshape(k, q).T, axis=1)
        found = np.zeros((k, q, k, q))
        for one in range(k):
            for other in range(one + 1):
                weights = shares[:, one] * ((one == other) - shares[:, other])
                block = (rows * (weights / n)[:, None]).T @ rows
                found[one, :, other, :] = found[other, :, one, :] = block
        found = found.reshape(k * q, k * q)
        found[np.diag_indices(k * q)] += 2 * shrink.ravel()
        return found

    solved = minimize(
        value, np.zeros(k * q), jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-9, "maxiter": 400}
    )
    theta = solved.x.reshape(k, q)
    return Model(theta[:, :-1], theta[:, -1], float(np.abs(solved.jac).max()))


def by_adam(columns: Array, labels: Labels, penalty: float, *, seed: int, epochs: int = 1000) -> Model:
    """Return the softmax regression that Adam ends with, as for the published curves.

    Rate .1, batches of 1000 in a new order in each epoch, ``penalty · Σθ²`` of weights and biases. The rate is divided
    by 1.5 after every hundredth epoch with a larger loss than a hundred epochs before.

    Args:
        columns: ``(n, p)``.
        labels: ``(n,)``, from 0.
        penalty: λ.
        seed: Of initialisation and order.
        epochs: How many.
    """
    rows, k = torch.from_numpy(columns), int(labels.max()) + 1
    truth = torch.eye(k, dtype=torch.float64)[torch.from_numpy(labels)]
    generator, reach = torch.Generator().manual_seed(seed), columns.shape[1] ** -0.5
    weight, bias = (
        (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * reach
        for shape in ((k, columns.shape[1]), (k,))
    )
    adam, before = _Adam([weight, bias], rate=0.1), np.inf
    for epoch in range(epochs):
        losses = []
        for batch in torch.randperm(len(rows), generator=generator).split(1000):
            logs = torch.log_softmax(rows[batch] @ weight.T + bias, dim=1)
            losses.append(-(logs * truth[batch]).sum() / len(batch) + penalty * (weight.square().sum() + bias @ bias))
            adam.step(_slopes(rows[batch], truth[batch], logs, weight, bias, penalty))
        if epoch % 100 == 0:
            loss = float(torch.stack(losses).mean())
            if loss > before:
                adam.rate /= 1.5
            before = loss
    last = _slopes(rows, truth, torch.log_softmax(rows @ weight.T + bias, dim=1), weight, bias, penalty)
    return Model(weight.numpy(), bias.numpy(), max(slope.abs().max().item() for slope in last))


def _slopes(
    rows: Tensor, truth: Tensor, logs: Tensor, weight: Tensor, bias: Tensor, penalty: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of mean cross entropy and penalty: an automatic one takes ten times as long."""
    off = (logs.exp() - truth) / len(rows)
    return off.T @ rows + 2 * penalty * weight, off.sum(dim=0) + 2 * penalty * bias


class _Adam:
    """As ``torch.optim.Adam``, which takes longer to import than the quick run to compute."""

    def __init__(self, parameters: Sequence[Tensor], *, rate: float) -> None:
        self.rate = rate
        self._moments = [(one, torch.zeros_like(one), torch.zeros_like(one)) for one in parameters]
        self._steps = 0

    def step(self, slopes: Sequence[Tensor]) -> None:
        """Move the parameters, in place."""
        self._steps += 1
        for (parameter, mean, square), slope in zip(self._moments, slopes, strict=True):
            mean.lerp_(slope, 0.1)
            square.lerp_(slope.square(), 0.001)
            root = (square / (1 - 0.999**self._steps)).sqrt_().add_(1e-8)
            parameter.addcdiv_(mean, root, value=-self.rate / (1 - 0.9**self._steps))


@dataclass(frozen=True)
class Fit:
    """How a model is trained.

    Attributes:
        penalty: λ.
        adam: By Adam and for so many epochs; 0: to the optimum.
    """

    penalty: float
    adam: int = 0

    def __call__(self, columns: Array, labels: Labels, variant: Variant, seed: int) -> Model:
        """Train; biases are penalised in the published curves' variant."""
        if self.adam:
            return by_adam(columns, labels, self.penalty, seed=seed, epochs=self.adam)
        return optimum(columns, labels, self.penalty, biases=variant == "curves")


# --- windows


def window(start: int, width: int, total: int) -> npt.NDArray[np.int64]:
    """Return the columns of a cyclic window, ``(width,)``.

    >>> window(3, 2, 4).tolist()
    [3, 0]
    """
    return (start + np.arange(width)) % total


def tensor(values: Array) -> Tensor:
    """Return a float64 tensor with its own memory."""
    return torch.tensor(values, dtype=torch.float64)
