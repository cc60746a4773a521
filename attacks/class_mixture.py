"""The mixture of k classes: what the messages of a run say of each record's class, without a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
import torch

from splitvfl.learning.records import RecordTable

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_ROUNDS, _STARTS = 60, 4
# Changes of a record's mean log likelihood below which a fit has ended.
_ENOUGH = 1e-6
_LEAST_SHARE = 1e-3
_MOST_FITTED = 20_000


class ClassFit(NamedTuple):
    """A mixture of k normal clusters of one variance.

    Attributes:
        centres: ``(k, d)``.
        variance: Along every direction.
        shares: ``(k,)``, summing to one.
        likelihood: Mean log likelihood of a row.
    """

    centres: Floats
    variance: float
    shares: Floats
    likelihood: float

    def log_posteriors(self, rows: Floats) -> Floats:
        """Return the log probability of each cluster, ``(n, k)``."""
        found: Floats = scipy.special.log_softmax(self._joint(rows), axis=1)
        return found

    def _joint(self, rows: Floats) -> Floats:
        apart = np.square(rows[:, None] - self.centres).sum(axis=2)
        found: Floats = np.log(self.shares) - apart / (2.0 * self.variance)
        return found


def fit_classes(rows: Floats, classes: int, *, seed: int = 0) -> ClassFit:
    """Return the mixture of largest likelihood that expectation and maximisation find from a few starts.

    Args:
        rows: ``(n, d)``, n at least k.
        classes: k.
        seed: Draws the starts, as k-means++ does: rows far from those that were drawn are the likelier.
    """
    generator = np.random.default_rng(seed)
    fits = [_climbed(rows, _started(rows, classes, generator)) for _ in range(_STARTS)]
    return max(fits, key=lambda fit: fit.likelihood)


def _started(rows: Floats, classes: int, generator: np.random.Generator) -> Floats:
    centres = [rows[generator.integers(len(rows))]]
    while len(centres) < classes:
        apart = np.min([np.square(rows - centre).sum(axis=1) for centre in centres], axis=0)
        total = apart.sum()
        chosen = generator.choice(len(rows), p=apart / total) if total > 0.0 else generator.integers(len(rows))
        centres.append(rows[chosen])
    return np.stack(centres)


def _climbed(rows: Floats, centres: Floats) -> ClassFit:
    classes = len(centres)
    floor = max(1e-9 * float(rows.var(axis=0).mean()), 1e-300)
    variance = max(
        float(np.min([np.square(rows - c).sum(axis=1) for c in centres], axis=0).mean()) / rows.shape[1], floor
    )
    fit = ClassFit(centres, variance, np.full(classes, 1.0 / classes), -np.inf)
    for _ in range(_ROUNDS):
        joint = fit._joint(rows)
        likelihood = float(np.logaddexp.reduce(joint, axis=1).mean() - 0.5 * rows.shape[1] * np.log(fit.variance))
        posterior = np.exp(scipy.special.log_softmax(joint, axis=1))
        weight = posterior.sum(axis=0).clip(min=_LEAST_SHARE)
        centres = posterior.T @ rows / weight[:, None]
        apart = np.square(rows[:, None] - centres).sum(axis=2)
        variance = max(float((posterior * apart).sum()) / rows.size, floor)
        ended = likelihood - fit.likelihood < _ENOUGH
        fit = ClassFit(centres, variance, weight / weight.sum(), likelihood)
        if ended:
            break
    return fit


class RecordDirections:
    """Mean direction of each record's messages, in the space that k classes span, and the mixture that fits them.

    Below a linear top W a row is ``Wᵀ(p − e_y) / n``; whatever p is, its direction leans to ``−w_y``. Rows that come
    count alike, whatever their lengths, and noise averages out over a record's messages.

    Args:
        classes: k.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._table = RecordTable(epoch=np.int64, count=np.int64)
        self._sums = np.zeros((0, 0))
        self._moment = np.zeros((0, 0))
        self._axes = np.zeros((0, 0))
        self._epoch = 1
        self._fit: ClassFit | None = None

    @property
    def fitted(self) -> bool:
        """Whether an epoch was over."""
        return self._fit is not None

    def see(self, ids: Whole, rows: Floats) -> Floats:
        """Return log probabilities of k clusters, ``(n, k)``, after these messages; NaN before an epoch was over.

        Args:
            ids: ``(n,)``.
            rows: ``(n, width)``.
        """
        slots = self._table.slots(ids)
        if (self._table["epoch"][slots] == self._epoch).any():
            self._refit()
            self._epoch += 1
        self._table["epoch"][slots] = self._epoch
        self._add(slots, rows)
        if self._fit is None:
            return np.full((len(ids), self._classes), np.nan)
        return self._fit.log_posteriors(self._means(slots))

    def _add(self, slots: Whole, rows: Floats) -> None:
        if len(self._table) > len(self._sums):
            wider = np.zeros((max(len(self._table), 2 * len(self._sums)), rows.shape[1]))
            wider[: len(self._sums), : self._sums.shape[1]] = self._sums
            self._sums = wider
        lengths = np.linalg.norm(rows, axis=1)
        came = lengths > 0.0
        units = rows[came] / lengths[came][:, None]
        np.add.at(self._sums, slots[came], units)
        np.add.at(self._table["count"], slots[came], 1)
        moment = units.T @ units
        self._moment = moment if not len(self._moment) else self._moment + moment

    def _means(self, slots: Whole) -> Floats:
        found: Floats = self._sums[slots] / np.maximum(self._table["count"][slots], 1)[:, None] @ self._axes
        return found

    def _refit(self) -> None:
        """Fit what has come so far; clusters keep the places of those that they are nearest to."""
        met = np.flatnonzero(self._table["count"] > 0)
        if len(met) < self._classes:
            return
        if len(met) > _MOST_FITTED:
            met = np.random.default_rng(0).choice(met, _MOST_FITTED, replace=False)
        before = None if self._fit is None else self._fit.centres @ self._axes.T
        spanned = min(self._classes - 1, len(self._moment))
        self._axes = np.linalg.eigh(self._moment)[1][:, -spanned:]
        fit = fit_classes(self._means(met), self._classes)
        if before is not None:
            apart = np.square(before[:, None] - fit.centres @ self._axes.T).sum(axis=2)
            order = scipy.optimize.linear_sum_assignment(apart)[1]
            fit = fit._replace(centres=fit.centres[order], shares=fit.shares[order])
        self._fit = fit

    def state_dict(self) -> dict[str, Any]:
        """Return the records' sums, the space and the last fit."""
        arrays = {"sums": self._sums[: len(self._table)], "moment": self._moment, "axes": self._axes}
        fit = None
        if self._fit is not None:
            fit = {**self._fit._asdict(), "centres": torch.from_numpy(self._fit.centres.copy())}
            fit["shares"] = torch.from_numpy(self._fit.shares.copy())
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()} | {
            "classes": self._classes,
            "table": self._table.state_dict(),
            "epoch": self._epoch,
            "fit": fit,
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._classes, self._epoch = state["classes"], state["epoch"]
        self._table.load_state_dict(state["table"])
        self._sums, self._moment, self._axes = (state[name].numpy().copy() for name in ("sums", "moment", "axes"))
        fit = state["fit"]
        self._fit = None
        if fit is not None:
            arrays = {name: fit[name].numpy().copy() for name in ("centres", "shares")}
            self._fit = ClassFit(**{**fit, **arrays})
