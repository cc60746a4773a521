"""Feature attack by gradient descent on the mismatch of published scores."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.equation_solving import RANK_TOLERANCE, equations, least_squares
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Target, View

_STEPS = 10_000
# Features lie in [0, 1]: gradients below this are sums of roundings.
_SETTLED = 1e-13


def gradient_inversion(scores: Tensor, active_logits: Tensor, passive_weight: Tensor, *, start: float = 0.5) -> Tensor:
    """Return features in [0, 1] that reproduce the scores, found by projected gradient descent (GIA).

    Minimises a mismatch of log scores over the box [0, 1]^d from ``x = start · 1``: ``½ ‖A⁺ (A x − b)‖²``, with A and b
    of :func:`equations`. Under this loss every equation counts alike, and saturated scores converge as fast as others:
    a gradient step of length one ends where the scores fit exactly. If that point lies in the box, the limit is ``A⁺b``
    from 0, and Half*, ``A⁺b + (I − A⁺A)½1``, from ½. Otherwise steps alternate between the solutions and the box, and
    the limit is a point of the box that fits best, without a closed form. Steps are accelerated, and restarted where
    they overshoot; they end when no gradient is left, or after 10 000.

    No prediction is dropped for a large error. Scores of exactly 0 or 1 are treated, and reported, as in
    :func:`equations`. Other losses have other limits once the box is touched.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the gradient inversion attack, with the
    loss above; restarts: O'Donoghue and Candès, Found. Comput. Math. 15 (2015), section 3.2.

    Args:
        scores: Published predictions, ``(n, k)`` softmax or ``(n,)`` sigmoid, in [0, 1].
        active_logits: The active party's part of the logits, of the same shape.
        passive_weight: The passive party's weights, ``(k, d)`` or ``(d,)``.
        start: Where every feature starts, in [0, 1].

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, scores or ``start`` lie outside [0, 1], or an entry is not finite.
    """
    _check_start(start)
    left, right = equations(scores, active_logits, passive_weight)
    fitting = least_squares(left, right)
    return _descend(torch.full_like(fitting, start), fitting, _row_space(left))


def _check_start(start: float) -> None:
    if not 0.0 <= start <= 1.0:
        raise ArgumentError(f"start must lie in [0, 1], got {start}")


def _row_space(equation_rows: Tensor) -> Tensor:
    """Return an orthonormal basis of the row space, ``(rank, d)``."""
    _, sizes, basis = torch.linalg.svd(equation_rows, full_matrices=False)
    kept: Tensor = basis[sizes > RANK_TOLERANCE * sizes[0]]
    return kept


def _descend(estimate: Tensor, fitting: Tensor, basis: Tensor) -> Tensor:
    """Minimise ``½ ‖basis (x − fitting)‖²`` over the box, every row with a momentum of its own."""
    ahead = estimate
    age = torch.ones_like(estimate[:, :1])
    for _ in range(_STEPS):
        gradient = (ahead - fitting) @ basis.T @ basis
        reached = (ahead - gradient).clamp(0.0, 1.0)
        if not ((reached - ahead).abs() > _SETTLED).any():
            break
        step = reached - estimate
        overshot = ((ahead - reached) * step).sum(dim=1, keepdim=True) > 0
        next_age = (1.0 + (1.0 + 4.0 * age.square()).sqrt()) / 2.0
        momentum = torch.where(overshot, 0.0, (age - 1.0) / next_age)
        age = torch.where(overshot, 1.0, next_age)
        estimate, ahead = reached, reached + momentum * step
    return ahead.clamp(0.0, 1.0)


class GradientInversionAttack:
    """Estimate the passive party's features by gradient descent on the mismatch of the scores (GIA).

    See :func:`gradient_inversion`. The attacker is assumed to know the passive party's weights, and that features lie
    in [0, 1].

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the gradient inversion attack.

    Args:
        start: Where every feature starts, in [0, 1].
    """

    name: ClassVar[str] = "gradient-inversion"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"scores", "active_logits", "passive_weight"})

    def __init__(self, *, start: float = 0.5) -> None:
        _check_start(start)
        self._start = start

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``scores``, ``active_logits`` and ``passive_weight`` are read.

        Returns:
            ``(n, d)``, float64, in [0, 1].

        Raises:
            ArgumentError: As :func:`gradient_inversion`.
        """
        return gradient_inversion(view.scores, view.active_logits, view.passive_weight, start=self._start)
