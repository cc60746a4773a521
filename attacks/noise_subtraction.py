"""Feature attack on scores with noise of a known scheme: the noise is taken off again.

Schemes 1 to 3 of :class:`splitvfl.defenses.ScoreNoise` draw nothing: their noise is ``√t u``, where u follows from the
weights and from which class is in front, and that class stays in front. Who knows the power t subtracts it. Who does
not, knows that the equations ``A x = b̃ − √t J u`` have a solution in the unit box for the right t, which bounds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np
import scipy
import torch
from torch import Tensor

from splitvfl.attacks.least_squares import least_squares
from splitvfl.defenses.score_noise import as_classes, scheme_noise, unit_direction, with_noise
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Target, View
from splitvfl.leakage.score_equations import equations
from splitvfl.learning.noise_direction import noise_direction

KnownScheme = Literal[1, 2, 3]

# Right-hand sides are sums of rounded logits; solutions may miss them by this share of the largest.
_FIT_WITHIN = 1e-9
_MOST_LOOKED_AT = 200


class PowerRange(NamedTuple):
    """Which powers leave every prediction that was looked at with a solution in the unit box.

    Attributes:
        low: The smallest.
        high: The largest; infinite where nothing bounds it.
    """

    low: float
    high: float


def subtract_noise(scores: Tensor, scheme: KnownScheme, *, power: float, direction: Tensor | None = None) -> Tensor:
    """Return published scores without the noise of schemes 1 to 3: ``c ∝ c̃ ∘ e⁻ⁿ``.

    Exact up to the rounding of the published scores.

    Args:
        scores: ``(n,)`` sigmoid or ``(n, k)`` softmax.
        scheme: 1, 2 or 3.
        power: t, at least 0.
        direction: v of length one, ``(k,)``, as :func:`splitvfl.defenses.noise_direction` returns it.

    Returns:
        A new tensor of the same shape, float64.

    Raises:
        ArgumentError: If there is no such scheme, the power is negative or not finite, or shapes do not fit.
    """
    _check_power(power)
    shares = as_classes(scores)
    plain = with_noise(shares, -scheme_noise(shares, scheme, power=power, direction=direction))
    return plain if scores.dim() == 2 and scores.shape[1] > 1 else plain[:, 1].reshape(scores.shape)


def feasible_powers(A: Tensor, b: Tensor, step: Tensor, *, most: int = _MOST_LOOKED_AT) -> PowerRange:
    """Return between which powers t ``A x = b − √t step`` has a solution in the unit box, for every prediction.

    For each prediction these t are an interval, found by two linear programs; the right t is in all of them. The noise
    was subtracted exactly where low and high agree.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides with noise, ``(n, m)``.
        step: What noise of power 1 adds to them, ``(n, m)``.
        most: Predictions to look at, those first in line; the interval shrinks with more.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, or no t fits all predictions: it is another noise,
            scores are rounded, or records lie outside the box.
    """
    if A.dim() != 2 or b.shape != step.shape or b.dim() != 2 or b.shape[1:] != A.shape[:1] or not len(b):
        raise ArgumentError(
            f"expected A (m, d), b (n, m) and step (n, m), got {tuple(A.shape)}, {tuple(b.shape)}, {tuple(step.shape)}"
        )
    if not all(torch.isfinite(part).all() for part in (A, b, step)):
        raise ArgumentError("A, b or step holds NaN or infinite values")
    low, high = 0.0, math.inf
    for right, moved in zip(b[:most], step[:most], strict=True):
        found = _feasible_roots(A, right, moved)
        if found is None:
            raise ArgumentError(
                "no power leaves the equations of every prediction with a solution in [0, 1]: it is another scheme, "
                "or scores are rounded, or records lie outside the known range"
            )
        low, high = max(low, found[0]), min(high, found[1])
    if low > high + _FIT_WITHIN:
        raise ArgumentError("no power fits all predictions: it is another scheme, or each has its own power")
    return PowerRange(low**2, max(low, high) ** 2)


def _feasible_roots(A: Tensor, right: Tensor, moved: Tensor) -> tuple[float, float] | None:
    """Return the least and the largest s ≥ 0 for which ``A x + s moved = right`` has a solution in the box."""
    rows = np.hstack([A.cpu().double().numpy(), moved.cpu().double().numpy()[:, None]])
    given = right.cpu().double().numpy()
    # Half-spaces, so that roundings of the right-hand side leave an inside.
    slack = _FIT_WITHIN * max(1.0, float(np.abs(given).max()))
    limits = {"A_ub": np.vstack([rows, -rows]), "b_ub": np.concatenate([given + slack, slack - given])}
    box = [(0.0, 1.0)] * A.shape[1] + [(0.0, None)]
    ends = []
    for sign in (1.0, -1.0):
        solved = scipy.optimize.linprog(np.array([0.0] * A.shape[1] + [sign]), bounds=box, method="highs", **limits)
        if solved.status == 3:  # nothing bounds it
            ends.append(math.inf)
            continue
        if solved.status != 0:
            return None
        ends.append(float(solved.x[-1]))
    return ends[0], ends[1]


class NoiseSubtractionAttack:
    """Estimate the passive party's features from scores with noise of a known scheme: least squares without the noise.

    The attacker knows the passive party's weights, so also the direction of the noise, and the scheme. In a run it is
    given weights of columns in the unit box, and takes the direction from these: it is the defense's where columns are
    scaled to a range (``minmax``); elsewhere say it. With the power too it is back where
    :class:`LeastSquaresAttack` is without a defense. Without it, it takes the middle of what
    :func:`feasible_powers` allows (of the roots), or its lower end where nothing bounds it from above, and promises
    nothing.

    In a file: ``attacks: [{name: noise-subtraction, scheme: 3}]``

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, section VII, whose noise this undoes.

    Args:
        scheme: 1, 2 or 3.
        power: t, at least 0; ``None``: not known.
        direction: The defense's, one number for each class, as :class:`~splitvfl.defenses.ScoreNoise` takes it; scheme
            3 has none. Default: what follows from the weights.

    Raises:
        ArgumentError: If there is no such scheme, the power is negative or not finite, or the direction has no length
            or is given to scheme 3.
    """

    name: ClassVar[str] = "noise-subtraction"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"scores", "active_logits", "passive_weight"})

    def __init__(
        self, *, scheme: KnownScheme, power: float | None = None, direction: Sequence[float] | None = None
    ) -> None:
        if isinstance(scheme, bool) or scheme not in get_args(KnownScheme):
            raise ArgumentError(f"scheme must be 1, 2 or 3, got {scheme!r}")
        if power is not None:
            _check_power(power)
        if direction is not None and scheme == 3:
            raise ArgumentError(
                "direction: scheme 3 adds noise to the predicted class alone and has none; leave it out"
            )
        self._scheme, self._power = scheme, power
        self._direction = None if direction is None else unit_direction(torch.tensor(direction, dtype=torch.float64))

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``scores``, ``active_logits`` and ``passive_weight`` are read.

        Returns:
            ``(n, d)``, float64.

        Raises:
            ArgumentError: As :func:`splitvfl.attacks.equations`.
            AttackRefused: If a prediction has no score above 0, so that no class is in front, or as
                :func:`feasible_powers`.
        """
        scores, known, weight = view.scores, view.active_logits, view.passive_weight
        empty = int((scores <= 0).all(dim=1).sum()) if scores.dim() == 2 else 0
        if empty:
            raise AttackRefused(f"{empty} of {len(scores)} predictions have no score above 0: no class is in front")
        direction = (noise_direction(weight)[0] if self._direction is None else self._direction).to(scores.device)
        A, b = equations(scores, known, weight)
        unit = scheme_noise(as_classes(scores), self._scheme, power=1.0, direction=direction)
        step = torch.diff(unit, dim=1)
        return least_squares(A, b - self._root(A, b, step) * step)

    def _root(self, A: Tensor, b: Tensor, step: Tensor) -> float:
        """Return the root of the power, or what is taken for it."""
        if self._power is not None:
            return math.sqrt(self._power)
        try:
            return _middle(feasible_powers(A, b, step))
        except ArgumentError as problem:
            raise AttackRefused(str(problem)) from problem


def _middle(powers: PowerRange) -> float:
    low, high = math.sqrt(powers.low), math.sqrt(powers.high)
    return low if math.isinf(high) else (low + high) / 2.0


def _check_power(power: float) -> None:
    if not (power >= 0 and math.isfinite(power)):
        raise ArgumentError(f"power must be finite and at least 0, got {power}")
