"""Approximate sigmoids of vertical logistic regression for computations under encryption."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import partial
from typing import assert_never, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.errors import ArgumentError, shown
from splitvfl.learning.losses import ApproximateLogistic, Approximation, Logistic, Loss

APPROXIMATIONS: tuple[Approximation, ...] = get_args(Approximation)

_SCALES: Mapping[Approximation, float] = {"taylor": 4.0, "minimax": 1.0, "piecewise": 1.0, "exact": 1.0}

# S(z) is about 1/2 + LINEAR z + CUBIC z³ on |z| <= REACH, as published. The best such cubic has .19751 and -.004265.
MINIMAX_LINEAR, MINIMAX_CUBIC, MINIMAX_REACH = 0.197, -0.004, 5.0


def sigmoid_coefficients(z: Tensor, y: Tensor, *, approximation: Approximation) -> Tensor:
    """Return each record's coefficient f in the gradient ``1 / (c s) · Σ f_i x_i`` of the mean logistic loss.

    With c of :func:`gradient_scale`, the sigmoid S and the batch size s:

    - ``taylor``: ``z − 2y``, c = 4
    - ``minimax``: ``−0.004 z³ + 0.197 z − y/2``, c = 1; made for ``|z| ≤ 5``, and far off beyond
    - ``piecewise``: ``1[|z| < ½] (z − y/2) − y 1[y z ≤ −½]``, c = 1; 0 where the label is met with a margin of ½
    - ``exact``: ``(S(y z) − 1) y``, c = 1

    In all four ``f / c = S̃(z) − (1 + y)/2`` with the approximated sigmoid S̃, and at z = 0 it is ``−y/2``. The published
    minimax coefficients are rounded.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the three approximations.

    Args:
        z: Logits, ``(s,)``, all parties' parts added up, finite.
        y: Labels, ``(s,)``, each −1 or +1; a label in {0, 1} is ``2 · label − 1`` here.
        approximation: ``"taylor"``, ``"minimax"``, ``"piecewise"`` or ``"exact"``.

    Returns:
        ``(s,)``, float64, on z's device.

    Raises:
        ArgumentError: If shapes differ, a logit is not finite, a label is neither −1 nor +1, or there is no such
            approximation.

    Warns:
        UserWarning: If a logit lies outside [−5, 5] with ``minimax``.

    >>> sigmoid_coefficients(torch.tensor([0.0, 1.0]), torch.tensor([1.0, -1.0]), approximation="taylor").tolist()
    [-2.0, 3.0]
    """
    logits, labels = _checked(z, y, approximation)
    match approximation:
        case "taylor":
            return logits - 2 * labels
        case "minimax":
            _warn_beyond_reach(logits)
            return MINIMAX_CUBIC * logits**3 + MINIMAX_LINEAR * logits - labels / 2
        case "piecewise":
            inner = torch.where(logits.abs() < 0.5, logits - labels / 2, 0.0)
            return inner - torch.where(labels * logits <= -0.5, labels, 0.0)
        case "exact":
            # S(t) − 1 = −S(−t): the difference would round to 0 for large t.
            return -torch.sigmoid(-labels * logits) * labels
        case _:
            assert_never(approximation)


def gradient_scale(approximation: Approximation) -> float:
    """Return c of the gradient ``1 / (c s) · Σ f_i x_i``: 4 for ``taylor``, 1 for the others.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the three approximations.

    Raises:
        ArgumentError: If there is no such approximation.

    >>> gradient_scale("taylor"), gradient_scale("exact")
    (4.0, 1.0)
    """
    return _SCALES[checked_approximation(approximation)]


def largest_logit(residue: float, *, approximation: Approximation) -> float:
    """Return up to which size of a logit no residue ``|f| / c`` is larger, whatever the label; infinite where none is.

    The exact residue and that of ``piecewise`` stay within 1. Taylor's is ``|z| / 4 + ½`` at most, and that of
    ``minimax`` ``|0.197 z − 0.004 z³| + ½``, which grows with the cube of a logit from 7 on.

    Args:
        residue: The size, ≥ 0.
        approximation: As for :func:`sigmoid_coefficients`.

    Raises:
        ArgumentError: If there is no such approximation, or the size is NaN or below 0.

    >>> largest_logit(16.0, approximation="taylor"), round(largest_logit(16.0, approximation="minimax"), 2)
    (62.0, 16.75)
    """
    checked_approximation(approximation)
    if not residue >= 0:
        raise ArgumentError(f"expected the size of a residue, at least 0, got {residue!r}")
    beyond_half = max(0.0, residue - 0.5)
    match approximation:
        case "taylor":
            return gradient_scale("taylor") * beyond_half
        case "minimax":
            # Where the cubic has that size first, of either sign.
            roots = np.concatenate(
                [np.roots([sign * MINIMAX_CUBIC, 0.0, sign * MINIMAX_LINEAR, -beyond_half]) for sign in (1, -1)]
            )
            return float(roots.real[(abs(roots.imag) < 1e-9) & (roots.real >= 0)].min())
        case "piecewise":
            return math.inf if residue >= 1 else beyond_half
        case "exact":
            return math.inf if residue >= 1 else math.log(residue / (1 - residue)) if residue > 0.5 else 0.0
        case _:
            assert_never(approximation)


def approximate_loss(z: Tensor, y: Tensor, *, approximation: Approximation) -> Tensor:
    """Return each record's loss, whose derivative by z is ``f / c`` of :func:`sigmoid_coefficients`.

    - ``taylor``: ``log 2 − y z/2 + z²/8``
    - ``minimax``: ``log 2 − y z/2 + 0.0985 z² − 0.001 z⁴``; it has no lower bound, so beyond ``|z| ≤ 5`` it is no loss
    - ``piecewise``, with ``m = y z``: ``0`` for ``m ≥ ½``, ``(m − ½)²/2`` between, ``−m`` for ``m ≤ −½``
    - ``exact``: ``log(1 + exp(−y z))``

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the three approximations, integrated over z.

    Arguments, errors and warnings are those of :func:`sigmoid_coefficients`.

    Returns:
        ``(s,)``, float64, in nats.

    >>> round(approximate_loss(torch.zeros(1), torch.ones(1), approximation="taylor").item(), 4)
    0.6931
    """
    logits, labels = _checked(z, y, approximation)
    margins = labels * logits
    match approximation:
        case "taylor":
            return math.log(2) - margins / 2 + logits**2 / 8
        case "minimax":
            _warn_beyond_reach(logits)
            return math.log(2) - margins / 2 + MINIMAX_LINEAR / 2 * logits**2 + MINIMAX_CUBIC / 4 * logits**4
        case "piecewise":
            between = (margins.clamp(max=0.5) - 0.5) ** 2 / 2
            return torch.where(margins <= -0.5, -margins, between)
        case "exact":
            return functional.softplus(-margins)
        case _:
            assert_never(approximation)


def logistic_loss(approximation: Approximation) -> Loss:
    """Return the loss that training under an approximation makes small.

    Raises:
        ArgumentError: If there is no such approximation.
    """
    if checked_approximation(approximation) == "exact":
        return Logistic()
    return ApproximateLogistic(partial(approximate_loss, approximation=approximation), approximation)


def checked_approximation(approximation: Approximation) -> Approximation:
    """Return the approximation.

    Raises:
        ArgumentError: If there is no such approximation.
    """
    if approximation not in APPROXIMATIONS:
        raise ArgumentError(f"approximation must be one of {', '.join(APPROXIMATIONS)}, got {shown(approximation)}")
    return approximation


def _checked(z: Tensor, y: Tensor, approximation: Approximation) -> tuple[Tensor, Tensor]:
    """Return logits and labels in float64, or raise."""
    checked_approximation(approximation)
    if z.dim() != 1 or z.shape != y.shape:
        raise ArgumentError(f"expected logits (s,) and labels (s,), got {tuple(z.shape)} and {tuple(y.shape)}")
    logits, labels = z.double(), y.double()
    if not torch.isfinite(logits).all():
        raise ArgumentError(f"logits hold {int((~torch.isfinite(logits)).sum())} NaN or infinite values")
    wrong = labels[labels.abs() != 1]
    if wrong.numel():
        raise ArgumentError(
            f"expected labels -1 and +1, got {wrong[0].item():g} among {labels.numel()}; "
            "a label in {0, 1} is 2 * label - 1 here"
        )
    return logits, labels


def _warn_beyond_reach(logits: Tensor) -> None:
    if (logits.abs() > MINIMAX_REACH).any():
        # No numbers: a warning of the same words is shown once in a run, not at every step.
        warnings.warn(
            "logits lie outside [-5, 5], where the minimax sigmoid means nothing; a smaller learning rate or a penalty "
            "keeps them inside",
            UserWarning,
            stacklevel=3,
        )
