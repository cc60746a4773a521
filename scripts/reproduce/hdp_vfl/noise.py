"""How much noise each party adds: as the paper prints it, and as this package calculates it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from scripts.reproduce.hdp_vfl import published
from splitvfl.learning.discrete_noise import GRID_BITS
from splitvfl.privacy import HdpTraining, gaussian_delta, gaussian_mu, hdp_sensitivity

Calibration = Literal["published", "tight"]
Side = Literal["passive", "active"]

LIPSCHITZ, BETA_THETA, BETA_Y = 1.0, 0.25, 0.5
"""Of the logistic loss, for labels −1 and +1."""


class Training(NamedTuple):
    """What sensitivity depends on.

    Attributes:
        epochs: How often each record is used.
        each: Batches in an epoch, all of one size.
        batch_size: Records in a batch.
        eta: Learning rate.
        radius: Of the ball that each party's weights stay in.
        intercept: Whether the label party has a column of ones besides its row of norm 1.
    """

    epochs: int
    each: int
    batch_size: int
    eta: float
    radius: float
    intercept: bool

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * self.each

    def norm(self, side: Side) -> float:
        """Return the largest norm of a party's row."""
        return math.sqrt(2.0) if self.intercept and side == "active" else 1.0


class Noise(NamedTuple):
    """Standard deviations of the noise on each number that a party sends."""

    passive: float
    active: float


NO_NOISE = Noise(0.0, 0.0)


def noise_of(training: Training, epsilon: float, calibration: Calibration, delta: float = published.DELTA) -> Noise:
    """Return the noise of both parties.

    ``"published"`` is the textbook's ``sqrt(2 ln(1.25 / δ)) Δ / ε`` at every ε, with Δ of lemmas 3 and 4 and the
    paper's β_y; ``"tight"`` is what exchange ``split`` calculates: the least noise for Δ of what the optimiser does,
    what rounding to the grid of discrete noise adds included. The ends of that noise, which matter where it is a
    seventh of what it hides or less, are not looked at: up to ε = 100 the package adds the same, at 1000 up to twice as
    much.

    Args:
        training: How long, in batches of how many, with which steps.
        epsilon: ε of the whole training.
        calibration: Which.
        delta: δ of the whole training.
    """
    return Noise(*(_sigma(training, side, epsilon, calibration, delta) for side in ("passive", "active")))


def true_delta(epsilon: float, delta: float = published.DELTA) -> float:
    """Return the δ that the textbook's noise has at an ε, if its Δ is right; it is the same for every Δ."""
    return gaussian_delta(math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon, epsilon, sensitivity=1.0)


def _sigma(training: Training, side: Side, epsilon: float, calibration: Calibration, delta: float) -> float:
    if calibration == "published":
        return math.sqrt(2.0 * math.log(1.25 / delta)) * published_sensitivity(training, side) / epsilon
    rounding = 2.0**-GRID_BITS * math.sqrt(training.steps * training.batch_size)
    return tight_sensitivity(training, side) / (_mu(epsilon, delta) - rounding)


@lru_cache
def _mu(epsilon: float, delta: float) -> float:
    return gaussian_mu(epsilon=epsilon, delta=delta)


def published_sensitivity(training: Training, side: Side, beta_y: float = published.BETA_Y) -> float:
    """Return Δ of lemma 3 or 4; a row of norm R with weights w counts as one of norm 1 with weights R w."""
    norm = training.norm(side)
    own: dict[str, Any] = {"beta_theta": BETA_THETA, "beta_y": beta_y, "k_y": 1.0} if side == "active" else {}
    return hdp_sensitivity(
        side,
        steps=training.steps,
        epochs=training.epochs,
        batch_size=training.batch_size,
        eta=training.eta * norm**2,
        k=training.radius * norm,
        lipschitz=LIPSCHITZ,
        **own,
    )


@lru_cache(maxsize=256)
def tight_sensitivity(training: Training, side: Side) -> float:
    """Return Δ of what the optimiser does: weight decay, projection, order of batches, and the exact range of h."""
    norm = training.norm(side)
    own: dict[str, Any] = {}
    if side == "active":
        own = {
            "beta_theta": BETA_THETA,
            "beta_y": BETA_Y,
            "k_y": 1.0,
            "step": 1 + math.tanh(training.radius * norm / 2),
        }
    recursion = HdpTraining(
        party=side,
        steps_per_epoch=training.each,
        batch_size=training.batch_size,
        eta=training.eta,
        k=training.radius,
        lipschitz=LIPSCHITZ,
        weight_decay=published.WEIGHT_DECAY,
        row_norm=norm,
        **own,
    )
    return recursion.sensitivity(training.steps)
