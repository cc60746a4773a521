"""Steps of HDP-VFL on the logistic loss in float64, with what theorem 3 and an attacker on labels ask of them.

The package's own trainer shows neither an average of the weights nor both parties' logits; a test holds this beside it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Floats = npt.NDArray[np.float64]


class Course(NamedTuple):
    """One training.

    Attributes:
        average: The mean of the weights after each step, both parties' together, ``(d,)``.
        last: The weights in the end, ``(d,)``.
        evidence: For every record the log-likelihood ratio of label +1 against −1 in all derivatives that were sent,
            for somebody who knows the logits, ``(n,)``.
    """

    average: Floats
    last: Floats
    evidence: Floats


def descend(
    active: Floats,
    passive: Floats,
    labels: Floats,
    *,
    steps: int,
    rate: float,
    radius: float,
    sigma_active: float,
    sigma_passive: float,
    seed: int,
) -> Course:
    """Return what comes of steps on all records: weights from zero, receivers that clip, projections on both balls.

    Args:
        active: Columns of the label party, ``(n, d)``, a column of ones among them if it has an intercept.
        passive: Columns of the passive party, ``(n, d')``.
        labels: −1 and +1, ``(n,)``.
        steps: How many.
        rate: Learning rate.
        radius: k, of each party's ball.
        sigma_active: Noise on the derivatives; 0: none.
        sigma_passive: Noise on the passive party's parts of the logits.
        seed: Of the noise.
    """
    draw = np.random.default_rng(seed)
    count, own = active.shape
    weights = [np.zeros(own), np.zeros(passive.shape[1])]
    total, evidence = np.zeros(own + passive.shape[1]), np.zeros(count)
    reach = radius * float(np.linalg.norm(passive, axis=1).max())
    for _ in range(steps):
        received = np.clip(passive @ weights[1] + sigma_passive * draw.normal(size=count), -reach, reach)
        positive = expit(active @ weights[0] + received)
        derivative = positive - (labels > 0)
        sent = derivative + sigma_active * draw.normal(size=count)
        if sigma_active:
            # h is S − 1 of one label and S of the other: half way between them nothing is told.
            evidence -= (sent - positive + 0.5) / sigma_active**2
        used = np.clip(sent, -1.0, 1.0)
        moved = [
            weights[0] - rate * active.T @ derivative / count,
            weights[1] - rate * passive.T @ used / count,
        ]
        weights = [inside(each, radius) for each in moved]
        total += np.concatenate(weights)
    return Course(total / steps, np.concatenate(weights), evidence)


def inside(weights: Floats, radius: float) -> Floats:
    """Return the nearest weights in the ball."""
    norm = math.hypot(*weights)
    return weights if norm <= radius else weights * (radius / norm)


def loss(rows: Floats, labels: Floats, weights: Floats) -> float:
    """Return the mean logistic loss of labels −1 and +1."""
    return float(np.logaddexp(0.0, -labels * (rows @ weights)).mean())


def least_loss(active: Floats, passive: Floats, labels: Floats, radius: float) -> tuple[Floats, float]:
    """Return the weights in both balls with the least loss, and that loss, by accelerated projected descent.

    Args:
        active: Columns of the label party.
        passive: Columns of the passive party.
        labels: −1 and +1.
        radius: Of each ball.
    """
    rows, own = np.hstack([active, passive]), active.shape[1]
    rate = 4.0 * len(rows) / float(np.linalg.eigvalsh(rows.T @ rows)[-1])
    weights = ahead = np.zeros(rows.shape[1])
    momentum = 1.0
    for _ in range(20_000):
        gradient = -rows.T @ (labels * expit(-labels * (rows @ ahead))) / len(rows)
        moved = ahead - rate * gradient
        moved = np.concatenate([inside(moved[:own], radius), inside(moved[own:], radius)])
        if np.linalg.norm(moved - ahead) < 1e-10:
            return moved, loss(rows, labels, moved)
        if (ahead - moved) @ (moved - weights) > 0:  # it goes back: start anew from here
            momentum = 1.0
        later = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
        weights, ahead = moved, moved + (momentum - 1.0) / later * (moved - weights)
        momentum = later
    return weights, loss(rows, labels, weights)
