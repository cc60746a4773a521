"""Agreed settings of noise that is calculated for a privacy loss: before encryption, of split training, on sums."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from splitvfl.errors import ArgumentError, shown
from splitvfl.learning.settings import Settings

# Larger numbers cannot be clipped or added before encryption: with the fewest bits, integers of them are too large.
_LARGEST_BOUND = 2.0**54
# Smaller ones need noise that is larger than any number that can be encrypted.
_LEAST_EPSILON, _LEAST_DELTA = 1e-12, 1e-100
# Beyond it nothing is private, and e^epsilon would soon overflow.
_LARGEST_EPSILON = 1e6
_MOST_PREDICTIONS = 10**9
_LEAST_SIGMA, _LARGEST_SIGMA = 1e-6, 1e9
# Of weights in float32, whose squares are summed.
_LEAST_RADIUS, _LARGEST_RADIUS = 1e-6, 1e6

Calibration = Literal["tight", "published", "analytic", "as-printed"]
"""How HDP-VFL's noise is calculated."""


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


class HdpNoiseSettings(Settings):
    """Gaussian noise on what crosses in the training of a linear model, HDP-VFL.

    Each passive party adds noise to its part of the logits, the label party to the loss's derivatives, drawn once for
    all passive parties. Whoever receives them clips them before use; all weights of a party stay in a ball; rows have
    the norm ``model.row_norm``. What is promised, to whom, and what is not covered is said before the first step and
    with the run's figures.

    Attributes:
        epsilon: Privacy loss of all messages of one party in the whole training, in nats.
        delta: Its failure probability.
        radius: Largest norm of a party's weights together, its intercept included; no optimiser need name it.
        calibration: ``tight`` follows what the optimiser does step by step, with the exact Gaussian mechanism;
            ``analytic`` takes the published sensitivity with the same mechanism; ``published`` that and the textbook's
            formula too, which holds below an epsilon of 1: above, the run says which delta it really has;
            ``as-printed`` is ``published`` with the 1.1 that the paper prints for the label party's logistic loss,
            where 1/2 is enough.
        active_sigma: Noise of the label party on each derivative, where it is given and not calculated; then
            ``epsilon`` is a budget, and training ends before the step that would overspend it, at all parties alike.
        passive_sigma: Noise of each passive party on its part of a logit; both are given, or none.
        evaluation_share: Share of a passive party's squared mu that evaluations may spend, whose messages then have
            noise too; 0: they cross in the clear, and are not covered.
        prediction_share: Share of a passive party's squared mu that is put by for ``splitvfl predict`` after the
            training, whose messages then have noise too; 0: they cross in the clear, and are not covered.
        predictions: Records that can be scored with it, repeated ones counted again; more are refused.
    """

    epsilon: Annotated[float, Field(ge=_LEAST_EPSILON, le=_LARGEST_EPSILON)]
    delta: Annotated[float, Field(ge=_LEAST_DELTA, lt=1)]
    radius: Annotated[float, Field(ge=_LEAST_RADIUS, le=_LARGEST_RADIUS)] = 1.0
    calibration: Calibration = "tight"
    active_sigma: Annotated[float, Field(ge=_LEAST_SIGMA, le=_LARGEST_SIGMA)] | None = None
    passive_sigma: Annotated[float, Field(ge=_LEAST_SIGMA, le=_LARGEST_SIGMA)] | None = None
    evaluation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    prediction_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    predictions: Annotated[int, Field(ge=1, le=_MOST_PREDICTIONS)] | None = None

    @property
    def by_textbook(self) -> bool:
        """Whether the noise is that of the textbook's formula, which holds below an epsilon of 1."""
        return self.calibration in ("published", "as-printed")

    @property
    def is_budget(self) -> bool:
        """Whether the noise is given, and ε and δ are what may be spent with it."""
        return self.active_sigma is not None

    @model_validator(mode="after")
    def _check_given(self) -> HdpNoiseSettings:
        if (self.active_sigma is None) != (self.passive_sigma is None):
            raise ValueError("active_sigma and passive_sigma go together: both are given, or both are calculated")
        if self.is_budget and self.calibration != "tight":
            raise ValueError(f"calibration {self.calibration} calculates noise, and here it is given; leave it out")
        if self.evaluation_share and (self.is_budget or self.calibration != "tight"):
            raise ValueError("evaluation_share is of noise that is calculated with calibration tight; leave it out")
        if self.prediction_share and (self.is_budget or self.calibration != "tight"):
            raise ValueError("prediction_share is of noise that is calculated with calibration tight; leave it out")
        if bool(self.prediction_share) != (self.predictions is not None):
            raise ValueError(
                "prediction_share and predictions go together: what share of mu is for them, and of how many records"
            )
        if self.evaluation_share + self.prediction_share >= 1:
            raise ValueError(
                f"evaluation_share {self.evaluation_share:g} and prediction_share {self.prediction_share:g} leave "
                "nothing for training; take shares that add up to less than 1"
            )
        return self


class SumNoiseSettings(Settings):
    """Gaussian noise on the masked sums that the label party opens, for one label over the whole run.

    One label moves a sum of residue times row by at most the agreed ``model.row_norm``, however many records are in the
    batch, so that less noise is needed than on each residue. What is promised rests on **passive parties that multiply
    residues with their columns and nothing else**, which nobody can check.

    Attributes:
        epsilon: Privacy loss of one label over the whole run, in nats.
        delta: Its failure probability.
        sigma: Standard deviation of the noise on a sum, where it is given and not calculated; then ``epsilon`` is a
            budget, and training ends before the step that would overspend it, at all parties alike.
    """

    epsilon: Annotated[float, Field(ge=_LEAST_EPSILON, le=_LARGEST_EPSILON)]
    delta: Annotated[float, Field(ge=_LEAST_DELTA, lt=1)]
    sigma: Annotated[float, Field(ge=_LEAST_SIGMA, le=_LARGEST_SIGMA)] | None = None


_N = TypeVar("_N", NoiseSettings, HdpNoiseSettings, SumNoiseSettings)


def checked_noise(argument: str, given: object, kind: type[_N]) -> _N | None:
    """Return agreed noise, ``None`` for none.

    Args:
        argument: What the argument is called.
        given: What it was given.
        kind: The settings that the exchange takes.

    Raises:
        ArgumentError: If it is something else, such as the noise of another exchange.
    """
    if given is None or isinstance(given, kind):
        return given
    raise ArgumentError(
        f"expected {argument} as splitvfl.exchange.noise.{kind.__name__}(epsilon=..., delta=...), got {shown(given)}"
    )
