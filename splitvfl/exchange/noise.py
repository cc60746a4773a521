"""Agreed settings of the noise before encryption."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from splitvfl.learning.settings import Settings

# Larger numbers cannot be clipped or added before encryption: with the fewest bits, integers of them are too large.
_LARGEST_BOUND = 2.0**54
# Smaller ones need noise that is larger than any number that can be encrypted.
_LEAST_EPSILON, _LEAST_DELTA = 1e-12, 1e-100


class NoiseSettings(Settings):
    """Gaussian noise before encryption, DP-Paillier-MGD.

    What each setting buys, and what it leaves to an attacker, is said with the run's figures.

    Attributes:
        epsilon: Privacy loss of all training together, in nats.
        delta: Its failure probability.
        gradient_bound: The paper's G: parts of the logits are clipped to ``4 G − 2``.
        calibration: ``published`` is the paper's formula at both parties; ``one-epoch`` the same as if each record were
            used once, as the paper's experiments had it; ``corrected`` covers what the other party's noise adds, which
            is possible for one party only.
        protects: Which party ``calibration: corrected`` protects.
        other_sigma: The noise that the other one adds all the same.
    """

    epsilon: Annotated[float, Field(ge=_LEAST_EPSILON, lt=1)]
    delta: Annotated[float, Field(ge=_LEAST_DELTA, lt=1)]
    gradient_bound: Annotated[float, Field(gt=0.5, le=_LARGEST_BOUND)] = 1.0
    calibration: Literal["published", "one-epoch", "corrected"] = "published"
    protects: Literal["both", "active", "passive"] = "both"
    other_sigma: Annotated[float, Field(ge=0, le=_LARGEST_BOUND)] = 0.0

    @model_validator(mode="after")
    def _check_sides(self) -> NoiseSettings:
        if (self.calibration == "corrected") == (self.protects == "both"):
            raise ValueError(
                "calibration corrected protects one party: write protects: active, or passive. Its noise grows with "
                "the other's, by more than that, so that no two noises protect both below an epsilon of 1"
                if self.protects == "both"
                else f"calibration {self.calibration} is of both parties' noise; for one, write calibration: corrected"
            )
        if self.other_sigma and self.protects == "both":
            raise ValueError("other_sigma goes with calibration corrected")
        return self
