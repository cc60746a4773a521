"""Laplace noise on residues: what a release costs in ε, and what it leaves to an attacker.

A residue is r = y − f(x), in [−1, 1]. Neighbours are any two residues of one record ("value"), or the two residues that
its two labels leave where f is known ("label"). All is of one release; E releases of a record cost E times as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import scipy

from splitvfl.errors import ArgumentError, count, number, positive

MultiplicativeMode = Literal["as_printed", "sign_preserving", "centred_at_one"]

_Vector = npt.NDArray[np.float64]

# Two residues of one record are at most this far apart.
_SPAN: Final = 2.0
_SMALLEST: Final = 1e-6  # of either bound
# Among which (b1, b2) are chosen: b1 from its smallest value to 1, b2 in units of the largest residue.
_INNER_STEPS: Final = 16
_OUTER: Final = np.geomspace(0.05, 20.0, 27)
# Points in (0, 1) and weights of an integral over it.
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(32)
_POINTS, _WEIGHTS = (1.0 + _NODES) / 2, _NODE_WEIGHTS / 2
_FARTHEST: Final = 40.0  # a standard Laplace number is as large once in 10^17 draws


class MultiplicativeBounds(NamedTuple):
    """Parameters of the multiplicative mechanism.

    Attributes:
        epsilon: The nominal ε to set, which fixes the multiplier's scale ``2 b2 / (b1 ε)``.
        b1: Smallest size of a residue before noise, in (0, 1].
        b2: Largest size of what is sent, > 0.
        correlation: Between what is sent and the residue, under the prior.
    """

    epsilon: float
    b1: float
    b2: float
    correlation: float


def laplace_scale(epsilon: float) -> float:
    """Return the scale of the Laplace noise that makes any two residues ε-indistinguishable, ``2 / ε``.

    Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, the additive mechanism.

    Args:
        epsilon: Privacy loss of one release in nats, > 0.

    Raises:
        ArgumentError: If ``epsilon`` is not finite and above 0.
    """
    return _SPAN / positive("epsilon", epsilon)


def laplace_label_success(epsilon: float) -> float:
    """Return how often one release of :func:`laplace_scale` tells a label of even odds, f known: ``1 − e^(−ε/4) / 2``.

    Two labels leave residues that are 1 apart. The best test puts its threshold half way between them.

    Args:
        epsilon: Privacy loss of one release by value in nats, > 0; by label it is half of that.

    Raises:
        ArgumentError: If ``epsilon`` is not finite and above 0.

    >>> [round(laplace_label_success(epsilon), 3) for epsilon in (0.01, 0.1, 1.0, 10.0)]
    [0.501, 0.512, 0.611, 0.959]
    """
    return 1.0 - 0.5 * math.exp(-positive("epsilon", epsilon) / 4.0)


def label_success_ceiling(epsilon: float, releases: int = 1) -> float:
    """Return how often any attack on so many releases can at most tell a label of even odds: ``e^x / (1 + e^x)``.

    ``x = releases · ε`` is the ε by label of all of them together. Of randomised response with x it is the success
    itself, so that nothing tighter holds for all mechanisms.

    Source: Kairouz, Oh and Viswanath, ICML 2015, arXiv:1311.0776, theorem 2.1.

    Args:
        epsilon: Privacy loss of one release by label in nats, > 0.
        releases: How often the record is released, ≥ 1.

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> round(label_success_ceiling(0.5, releases=4), 3)
    0.881
    """
    return 1.0 / (1.0 + math.exp(-positive("epsilon", epsilon) * count("releases", releases)))


def multiplicative_laplace_epsilon(epsilon: float, b1: float, b2: float, *, mode: MultiplicativeMode) -> float:
    """Return the true ε of one release of the multiplicative mechanism, by value.

    A residue r is first kept away from 0, ``|r'| = max(|r|, b1)``, multiplied by Laplace noise of scale
    ``λ = 2 b2 / (b1 ε)``, and clipped at b2. The modes differ in the noise's mean and in the signs of both clips; see
    :class:`~splitvfl.defenses.MultiplicativeLaplaceResidue`.

    - ``"as_printed"`` and ``"sign_preserving"``, mean 0: ``max(ln(1/b1), ε (1 − b1) / 2)``, which is more than the
      nominal ε wherever b1 < e^−ε. The published proof leaves out the factor ``1 / |r|`` of the density.
    - ``"centred_at_one"``, mean 1: the largest log ratio, over any two residues, of the densities inside (−b2, b2) and
      of the probabilities of ±b2. Between a few points it is convex in what is sent, so that it is taken at these
      points alone.

    The label alone, f known, may cost less; no more is claimed here. Exact but for rounding, a few units in the last of
    sixteen digits. That the noise itself is drawn in floating point is not covered.

    Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, the multiplicative mechanism,
    corrected.

    Args:
        epsilon: The nominal ε, > 0.
        b1: Smallest size of a residue before noise, from 10^-6 to 1.
        b2: Largest size of what is sent, from 10^-6 to 10^6.
        mode: Which mechanism.

    Returns:
        ε in nats, ≥ 0: of ``b1 = 1`` with mean 0 it is 0, as nothing but noise is sent.

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> [round(multiplicative_laplace_epsilon(e, 0.1, 10.0, mode="sign_preserving"), 2) for e in (0.01, 1.0, 10.0)]
    [2.3, 2.3, 4.5]
    """
    inner, outer = checked_bounds(b1, b2)
    nominal = positive("epsilon", epsilon)
    match checked_mode(mode):
        case "as_printed" | "sign_preserving":
            return max(-math.log(inner), nominal * (1.0 - inner) / 2.0)
        case "centred_at_one":
            scale = 2.0 * outer / (inner * nominal)
            return max(_density_loss(inner, outer, scale), _atom_loss(inner, outer, scale))


def choose_multiplicative_bounds(epsilon: float) -> MultiplicativeBounds:
    """Return parameters of ``"centred_at_one"`` whose *true* ε is at most the one given, found without any data.

    Of a grid of (b1, b2), each at the largest nominal ε that keeps the promise, the pair of highest correlation between
    what is sent and the residue, where residues are distributed as a calibrated model with predictions uniform in
    (0, 1) leaves them: with density ``1 − |r|``. The size of what is sent is no part of it: the learning rate makes up
    for that.

    Up to a true ε of about 6 this is randomised response on the sign of the residue, or nearly so: b1 = 1, and the
    smallest b2 of the grid, where hardly anything but ±b2 is sent.

    It does not promise the best test figure: no data are looked at, and test data above all.

    Source: this project's. The paper has no method.

    Args:
        epsilon: The true ε by value of one release in nats, > 0.

    Raises:
        ArgumentError: If ``epsilon`` is not finite and above 0.

    >>> chosen = choose_multiplicative_bounds(1.0)
    >>> multiplicative_laplace_epsilon(*chosen[:3], mode="centred_at_one") <= 1.0
    True
    """
    target = positive("epsilon", epsilon)
    found = [
        MultiplicativeBounds(nominal, inner, outer, _correlation(inner, outer, 2.0 * outer / (inner * nominal)))
        for inner in _inner_grid(target)
        for outer in _OUTER.tolist()
        for nominal in _largest_nominal(target, inner, outer)
    ]
    return max(found, key=lambda each: each.correlation)


def checked_mode(mode: str) -> MultiplicativeMode:
    """Return a mode of the multiplicative mechanism.

    Raises:
        ArgumentError: If there is none of that name.
    """
    for known in get_args(MultiplicativeMode):
        if mode == known:
            checked: MultiplicativeMode = known
            return checked
    raise ArgumentError(f"mode must be one of {', '.join(get_args(MultiplicativeMode))}, got {mode!r}")


def checked_bounds(b1: float, b2: float) -> tuple[float, float]:
    """Return the two bounds of the multiplicative mechanism.

    Raises:
        ArgumentError: If b1 is not from 10^-6 to 1, or b2 not from 10^-6 to 10^6.
    """
    b1, b2 = number("b1", b1), number("b2", b2)
    if not _SMALLEST <= b1 <= 1.0:
        raise ArgumentError(f"b1 must be above 0, from {_SMALLEST:g} to 1, the largest residue, got {b1!r}")
    if not _SMALLEST <= b2 <= 1.0 / _SMALLEST:
        raise ArgumentError(f"b2 must be above 0, from {_SMALLEST:g} to {1.0 / _SMALLEST:g}, got {b2!r}")
    return float(b1), float(b2)


def _density_loss(inner: float, outer: float, scale: float) -> float:
    """Return the largest log ratio of two densities at one point of (−b2, b2), for sizes in [b1, 1] and any signs.

    With z ≥ 0 sent, size a and sign s the log density is ``−ln a − |z/a − s| / λ`` and a constant. In a it is unimodal:
    its maximum is at an end, at the kink a = z or at the stationary point a = z/λ, and its minimum at an end. In z the
    maximum less the minimum is convex but at the kinks of the two ends, z = b1 and z = 1: the stationary point enters
    and leaves [b1, 1] with the slope of the end that it takes over from.
    """
    points = [z for z in (0.0, inner, 1.0) if z < outer] + [outer]
    return max(_spread(z, inner, scale) for z in points)


def _spread(z: float, inner: float, scale: float) -> float:
    sizes = [inner, 1.0, *(a for a in (z, z / scale) if inner <= a <= 1.0)]
    logs = [-math.log(a) - abs(z / a - sign) / scale for a in sizes for sign in (-1.0, 1.0)]
    return max(logs) - min(logs)


def _atom_loss(inner: float, outer: float, scale: float) -> float:
    """Return the log ratio of the probabilities of +b2 under the residues 1 and −b1: it grows in both sizes."""
    return _log_tail((outer - 1.0) / scale) - _log_tail((outer / inner + 1.0) / scale)


def _log_tail(distance: float) -> float:
    """Return the log probability that a standard Laplace number is at least so large."""
    return math.log1p(-0.5 * math.exp(distance)) if distance < 0.0 else -distance - math.log(2.0)


def _inner_grid(target: float) -> Iterator[float]:
    """Yield values of b1: no ε below ln(1/b1) is to be had, as densities at 0 are in that ratio."""
    smallest = math.exp(-target)
    for step in range(1, _INNER_STEPS + 1):
        yield smallest + (1.0 - smallest) * step / _INNER_STEPS


def _largest_nominal(target: float, inner: float, outer: float) -> Iterator[float]:
    """Yield the largest nominal ε whose true one is at most the target, if there is one."""

    def beyond(log_nominal: float) -> float:
        nominal = math.exp(log_nominal)
        return multiplicative_laplace_epsilon(nominal, inner, outer, mode="centred_at_one") - target

    low = high = 0.0
    while beyond(low) > 0.0:
        if low < -60.0:
            return
        low -= 1.0
    while beyond(high) <= 0.0:
        high += 1.0
    root = float(scipy.optimize.brentq(beyond, low, high, xtol=1e-12))
    yield next(math.exp(root - back) for back in (0.0, 1e-11, 1e-9, 1e-6) if beyond(root - back) <= 0.0)


def _correlation(inner: float, outer: float, scale: float) -> float:
    """Return the correlation of r and what is sent, for residues of density 1 − |r| on [−1, 1].

    Both have mean 0 by symmetry, and E r² = 1/6.
    """
    pieces = [(0.0, inner), (inner, 1.0)]  # split at the kink of max(|r|, b1)
    sizes = np.concatenate([low + (high - low) * _POINTS for low, high in pieces])
    weights = np.concatenate([(high - low) * _WEIGHTS for low, high in pieces])
    mean, square = _sent_moments(np.maximum(sizes, inner), outer, scale)
    density = 2.0 * (1.0 - sizes) * weights  # of |r|
    return float(density @ (sizes * mean)) / math.sqrt(float(density @ square) / 6.0)


def _sent_moments(sizes: _Vector, outer: float, scale: float) -> tuple[_Vector, _Vector]:
    """Return mean and mean square of ``clip(a (1 + λ L), −b2, b2)``, L standard Laplace, for each size a.

    With ``a λ`` as the unit it is Y = L + 1/λ clipped at β = b2 / (a λ), of which the mean is the integral of
    ``P(Y > t) − P(Y < −t)`` over (0, β), and the mean square that of 2t times their sum. Nothing cancels in them.
    """
    centre, bound = 1.0 / scale, outer / (sizes * scale)
    below, above = np.minimum(bound, centre), np.clip(bound - centre, 0.0, _FARTHEST)
    near, beyond = np.outer(below, _POINTS), np.outer(above, _POINTS)  # t, and t − 1/λ
    rising, falling, mirrored = np.exp(near - centre) / 2, np.exp(-near - centre) / 2, np.exp(-beyond) / 2
    twin = math.exp(-2.0 * centre) * mirrored  # P(Y < −t) beyond the centre
    mean = below * ((1.0 - rising - falling) @ _WEIGHTS) + above * ((mirrored - twin) @ _WEIGHTS)
    square = below * ((2.0 * near * (1.0 - rising + falling)) @ _WEIGHTS)
    square += above * ((2.0 * (centre + beyond) * (mirrored + twin)) @ _WEIGHTS)
    unit = sizes * scale
    return unit * mean, unit**2 * square
