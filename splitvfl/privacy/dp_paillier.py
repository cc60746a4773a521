"""DP-Paillier-MGD: Gaussian noise on both parties' inner products before they are encrypted."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal, TypedDict, Unpack

from splitvfl.errors import ArgumentError, count, positive, probability
from splitvfl.learning.gaussian_noise import classic_gaussian_sigma

PartyLetter = Literal["A", "B"]


class TrainingArguments(TypedDict):
    """How a party trains, as arguments of :func:`dp_paillier_sensitivity`, which says what they are."""

    G: float
    epochs: int
    steps: int
    eta: float
    batch_size: int


def dp_paillier_sensitivity(
    party: PartyLetter, *, G: float, epochs: int, steps: int, eta: float, batch_size: int
) -> float:
    """Return the published L2 sensitivity of everything that one party releases in training.

    With e epochs, T steps, learning rate η and batch size s:

    - label party ``"A"``, which releases ``g_i^A − 2 y_i``: ``Δ² = 8 G² e² T η² / s + 64 G² e``
    - passive party ``"B"``, which releases ``g_i^B``: ``Δ² = 8 G² e² T η² / s + (8G − 4)² e``

    Neighbouring data sets differ in the party's own row of one record. It assumes rows of norm at most 1, weights of
    norm at most 4G − 2 throughout, and every record at most once per epoch; none of it is checked here.
    **Heuristic**: the published proof ignores that a changed row also multiplies the other party's noise, see
    :func:`corrected_dp_paillier_sigma`.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the noise of Algorithm 3.

    Args:
        party: ``"A"`` or ``"B"``.
        G: Bound on a record's gradient, above 1/2.
        epochs: e, how often each record is used, at least 1.
        steps: T, the number of all steps together: steps per epoch times e, so at least e.
        eta: Learning rate η, in (0, 1].
        batch_size: s, at least 1.

    Returns:
        Δ, in the unit of an inner product.

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> round(dp_paillier_sensitivity("A", G=1, epochs=1, steps=30, eta=0.01, batch_size=256), 4)
    8.0
    """
    if party not in ("A", "B"):
        raise ArgumentError(f"party must be 'A' (with labels) or 'B' (without), got {party!r}")
    if positive("G", G) <= 0.5:
        raise ArgumentError(f"G must be above 1/2, as weights have norm at most 4G - 2, got {G!r}")
    used = count("epochs", epochs)
    if count("steps", steps) < used:
        raise ArgumentError(f"steps counts those of all epochs together: expected at least {used}, got {steps}")
    if positive("eta", eta) > 1:
        raise ArgumentError(f"eta must be at most 1, got {eta!r}")
    drift = 8.0 * G**2 * used**2 * steps * float(eta) ** 2 / count("batch_size", batch_size)
    own = 64.0 * G**2 if party == "A" else (8.0 * G - 4.0) ** 2
    return math.sqrt(drift + own * used)


def dp_paillier_sigma(
    party: PartyLetter, *, epsilon: float, delta: float, G: float, epochs: int, steps: int, eta: float, batch_size: int
) -> float:
    """Return the published noise scale of DP-Paillier-MGD: ``sqrt(2 ln(1.25/δ)) · Δ / ε``.

    Δ is :func:`dp_paillier_sensitivity`, outside the root. It makes no promise of (ε, δ)-differential privacy: that
    function says what is assumed, and what its proof ignores. What it leaves to an attacker on the labels is
    :func:`label_attack_success`.

    The published experiments have δ = .1, G = 1, η = .01, s = 256 and T = 30. Their σ of ``"A"``, 179.8, 89.9 and 36.0
    at ε = .1, .2 and .5, is that of one epoch; with the 30 epochs that were run it is 985, 492 and 197. Both are with
    T = 30 steps in all; with the steps that 30 epochs really have, σ is .1 to .5 % larger.

    ``epsilon``, in nats, and ``delta`` lie in (0, 1); beyond it, pass the sensitivity to
    :func:`~splitvfl.learning.gaussian_noise.gaussian_sigma`. All other arguments are those of
    :func:`dp_paillier_sensitivity`.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the noise of Algorithm 3.

    Returns:
        Standard deviation of the noise on each inner product.

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> setting = dict(delta=0.1, G=1, steps=30, eta=0.01, batch_size=256)
    >>> [round(dp_paillier_sigma("A", epsilon=0.1, epochs=epochs, **setting), 1) for epochs in (1, 30)]
    [179.8, 984.8]
    """
    span = dp_paillier_sensitivity(party, G=G, epochs=epochs, steps=steps, eta=eta, batch_size=batch_size)
    return classic_gaussian_sigma(epsilon, delta, sensitivity=span)


def corrected_dp_paillier_sigma(
    party: PartyLetter,
    *,
    epsilon: float,
    delta: float,
    delta_prime: float,
    sigma_other: float,
    **training: Unpack[TrainingArguments],
) -> float:
    """Return the noise scale of one party that also covers what its changed row does to the other party's noise.

    :func:`dp_paillier_sigma` with G replaced by ``G + σ_other τ / 4``, where ``τ = sqrt(2 ln(2 s T / δ'))`` bounds all
    s T noises that the other party adds, except with probability δ'. The guarantee is (ε, δ + δ'), under the
    assumptions of :func:`dp_paillier_sensitivity`.

    It serves one party beside a given noise of the other. Both parties cannot have it at once for ε < 1: each σ would
    be more than ``2 τ sqrt(2 ln(1.25/δ)) / ε > 1.5`` times the other.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the noise of Algorithm 3, with the missing term
    of its proof put in.

    Args:
        party: Whose noise is returned, ``"A"`` or ``"B"``.
        epsilon: As :func:`dp_paillier_sigma`.
        delta: As :func:`dp_paillier_sigma`.
        delta_prime: Probability with which the other party's noise may exceed its bound, in (0, 1).
        sigma_other: Standard deviation of the other party's noise, at least 0.
        training: As :func:`dp_paillier_sensitivity`.

    Returns:
        Standard deviation of the noise on each of the party's inner products.

    Raises:
        ArgumentError: If an argument is outside its range, or δ + δ' is not below 1.

    >>> setting = dict(delta=0.05, delta_prime=0.05, G=1, epochs=1, steps=30, eta=0.01, batch_size=256)
    >>> round(corrected_dp_paillier_sigma("A", epsilon=0.5, sigma_other=18.0, **setting))
    959
    """
    dp_paillier_sensitivity(party, **training)  # or raise
    probability("delta + delta_prime", probability("delta", delta) + probability("delta_prime", delta_prime))
    if not (math.isfinite(sigma_other) and sigma_other >= 0):
        raise ArgumentError(f"sigma_other must be finite and at least 0, got {sigma_other!r}")
    largest = math.sqrt(2.0 * math.log(2.0 * training["batch_size"] * training["steps"] / delta_prime))
    training["G"] += sigma_other * largest / 4.0
    return dp_paillier_sigma(party, epsilon=epsilon, delta=delta, **training)


def label_attack_success(sigma: float, epochs: int = 1) -> float:
    """Return how often the sign of the label party's noisy releases is still the label: ``Φ(2 sqrt(E) / σ)``.

    For ``g_i^A − 2 y_i + N(0, σ²)`` with small ``g_i^A``, averaged over E epochs of fresh noise. One release is
    ``Φ(2/σ)``. It is what an attacker gets who averages, at the start of training; it is no bound on other attacks.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the label attack under noise.

    Args:
        sigma: Standard deviation of the label party's noise, above 0, in the unit of ``g_i^A − 2 y_i``.
        epochs: Number E of releases that are averaged, at least 1.

    Returns:
        A probability in [1/2, 1].

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> round(label_attack_success(36.0), 3), round(label_attack_success(36.0, 30), 3)
    (0.522, 0.62)
    """
    return NormalDist().cdf(2.0 * math.sqrt(count("epochs", epochs)) / positive("sigma", sigma))
