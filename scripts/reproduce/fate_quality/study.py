"""What FATE's benchmark compares: a vertical logistic regression and scikit-learn's, on the same records and penalty.

FATE trains and judges on all records, standardised. Its configuration files give the penalty and its data files tell
which columns are whose; both are matched here by the values in the first rows of these files.

Source: FederatedAI/FATE, ``examples/benchmark_quality/hetero_lr`` and ``examples/data``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score, roc_curve
from torch import nn

from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.data.load import load
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.prediction import predict
from splitvfl.learning.losses import Approximation
from splitvfl.learning.tasks import Binary
from splitvfl.models import Linear, LinearTop, logistic_loss
from splitvfl.party.party import ActiveParty, PassiveParty

TOLERANCE = 0.01
"""FATE's ``relative_tol``."""
AIM = 0.001
"""What we ask of ourselves."""

GUEST, HOST = "guest", "host"
_MOMENTUM = 0.9

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """One of FATE's data sets.

    Attributes:
        name: For people.
        columns: Standardised, ``(n, d)``: mean 0 and variance 1 over all records.
        labels: ``(n,)`` in {0, 1}.
        own: How many first columns are the label party's (FATE's guest).
        alpha: Weight of half the squared norm of the weights, beside the mean loss; the intercept is free.
        lr: Learning rate of the descent.
    """

    name: str
    columns: Floats
    labels: Whole
    own: int
    alpha: float
    lr: float

    def some(self, rows: int) -> Problem:
        """Return the same with the first records only, standardised among themselves."""
        columns = self.columns[:rows]
        varied = columns.std(axis=0) > 0
        own = int(np.count_nonzero(varied[: self.own]))
        return replace(self, columns=_standardised(columns[:, varied]), labels=self.labels[:rows], own=own)


def breast_cancer() -> Problem:
    """Return 569 tumours: the ten worst measurements at the label party, means and errors at the partner."""
    found = load_breast_cancer()
    columns = np.concatenate([found.data[:, 20:], found.data[:, :20]], axis=1)
    return Problem("breast cancer", _standardised(columns), found.target, own=10, alpha=0.01, lr=0.3)


def credit_default(path: str | None = None) -> Problem:
    """Return 30,000 card holders: the last repayment status, bills and payments at the label party.

    Args:
        path: Of the file; without one it is looked for where data files lie.

    Raises:
        DataError: If there is no such file, or it cannot be read.
    """
    own = ["PAY_6", "BILL_AMT*", "PAY_AMT*"]
    own_and_rest: dict[str, Any] = {"active": own, "passive": {HOST: "rest"}, "categorical_columns": []}
    data = load("credit-default", path=path, test_fraction=0.2, **own_and_rest)
    parts = (data.active.train, data.active.test)
    rows = [
        torch.cat([part.columns.numeric, other.columns.numeric], dim=1)
        for part, other in zip(parts, (data[HOST].train, data[HOST].test), strict=True)
    ]
    labels = torch.cat([part.labels for part in parts if part.labels is not None])
    columns = torch.cat(rows).double().numpy()
    own_width = data.active.train.columns.numeric.shape[1]
    # The loader has put training records first; order does not matter to steps on all records.
    return Problem("credit default", _standardised(columns), labels.long().numpy(), own_width, alpha=0.001, lr=0.5)


def _standardised(columns: Floats) -> Floats:
    found: Floats = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    return found


@dataclass(frozen=True)
class Quality:
    """What FATE compares of one model, on the records that it was trained on.

    Attributes:
        auc: Area under the ROC curve.
        accuracy: Share of right classes at probability one half.
        recall: Macro average of the two classes.
        precision: Likewise.
        ks: Largest distance of true and false positive rate.
    """

    auc: float
    accuracy: float
    recall: float
    precision: float
    ks: float

    @classmethod
    def of(cls, probabilities: Floats, labels: Whole) -> Quality:
        """Return the figures, all by scikit-learn."""
        called = probabilities > 0.5
        false, true, _ = roc_curve(labels, probabilities)
        return cls(
            auc=float(roc_auc_score(labels, probabilities)),
            accuracy=float(accuracy_score(labels, called)),
            recall=float(recall_score(labels, called, average="macro")),
            precision=float(precision_score(labels, called, average="macro")),
            ks=float(np.max(true - false)),
        )

    def apart(self, reference: Quality) -> Mapping[str, float]:
        """Return the relative difference of each figure to a reference, by name: ``|a − b| / max(|a|, |b|)``.

        That is what Python's ``math.isclose`` compares with a relative tolerance, which FATE does.
        """
        pairs = {name: (getattr(self, name), getattr(reference, name)) for name in vars(reference)}
        return {name: abs(own - other) / max(abs(own), abs(other)) for name, (own, other) in pairs.items()}


def reference(problem: Problem) -> Quality:
    """Return the quality of scikit-learn's model: the optimum, with the same penalty."""
    rows = len(problem.labels)
    # scikit-learn weighs the sum of the losses, against half the squared norm.
    model = LogisticRegression(C=1.0 / (rows * problem.alpha), tol=1e-10, max_iter=10_000)
    fitted = model.fit(problem.columns, problem.labels)
    return Quality.of(fitted.predict_proba(problem.columns)[:, 1], problem.labels)


def train(problem: Problem, exchange: Exchange, *, steps: int, approximation: Approximation = "exact") -> Quality:
    """Return the quality of the vertical model after so many steps, each on all records, from zeros.

    Args:
        problem: The data.
        exchange: How a step is talked through.
        steps: How many.
        approximation: Of the sigmoid, in the loss: the exchange's.
    """
    active, passive = (_party(problem, name) for name in (GUEST, HOST))
    top, bottom = LinearTop(1, active_inputs=active.width), Linear(passive.width)
    for weight in (*top.parameters(), *bottom.parameters()):
        nn.init.zeros_(weight)
    descent = partial(accelerated, lr=problem.lr, alpha=problem.alpha)
    trainer = Trainer(
        ActiveParty(active, top, task=Binary(logistic_loss(approximation)), optimizer=descent),
        {HOST: PassiveParty(passive, bottom, optimizer=descent)},
        batch_size=len(problem.labels),
        exchange=exchange,
        audit=False,
        evaluate_every=steps,
    )
    trainer.fit(steps)
    found = predict(trainer.active, trainer.passives)
    return Quality.of(found.scores.double().numpy().reshape(-1), problem.labels)


def accelerated(parameters: Iterable[nn.Parameter], *, lr: float, alpha: float) -> torch.optim.SGD:
    """Return gradient descent with Nesterov's momentum, in which weights shrink and intercepts do not."""
    weights = list(parameters)
    groups = [
        {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": alpha},
        {"params": [weight for weight in weights if weight.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD([group for group in groups if group["params"]], lr=lr, momentum=_MOMENTUM, nesterov=True)


def _party(problem: Problem, name: str) -> PartyData:
    labelled = name == GUEST
    columns = problem.columns[:, : problem.own] if labelled else problem.columns[:, problem.own :]
    rows, names = len(columns), tuple(f"x{number}" for number in range(columns.shape[1]))

    def records(first: int) -> Records:
        return Records(
            torch.arange(first, first + rows),
            Columns.of(torch.from_numpy(columns.astype(np.float32))),
            torch.from_numpy(problem.labels.astype(np.float32)) if labelled else None,
        )

    return PartyData(name, names, names, (), records(0), records(rows))  # judged on what it was trained on
