"""Ridge regression whose penalty leaves one record out best, for readers of columns and for what needs no message."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

# Penalties that are tried, in units of the mean square of the inputs' singular values, the largest first: of two that
# leave out equally well it is taken.
_PENALTIES = tuple(10.0**power for power in range(3, -7, -1))
_TIE = 1e-9
# How far estimates may go beyond known values where that was better, in units of their range: no further than it takes.
_BEYOND = 0.5


# Singular values this much smaller than the largest count as zeros: their squares are rounding.
_SMALL = 1e-7


class Ridge(NamedTuple):
    """A linear map, found by :func:`fit_ridge`.

    Attributes:
        centre: Mean of the inputs, ``(w,)``.
        weight: ``(w, d)``, float64, of inputs in their own units.
        intercept: Mean of the targets, ``(d,)``.
        penalty: Which penalty each target has, ``(d,)``, in units of the mean square of the singular values.
        left_out: What each record's estimate is off by when it is left out, ``(m, d)``.
        low: Below this no estimate goes, ``(d,)``.
        high: Above this, likewise.
    """

    centre: Tensor
    weight: Tensor
    intercept: Tensor
    penalty: Tensor
    left_out: Tensor
    low: Tensor
    high: Tensor

    def estimate(self, inputs: Tensor) -> Tensor:
        """Return estimates of the targets, ``(n, d)``, float64."""
        line = (inputs.double() - self.centre) @ self.weight + self.intercept
        return line.clamp(self.low, self.high)


def fit_ridge(inputs: Tensor, targets: Tensor) -> Ridge:
    """Return the ridge regression of targets on inputs, of each target with the penalty that leaves one out best.

    Inputs are taken in units of their standard deviations: one that is sent in large numbers would hide the others.
    With inputs centred and ``U S Vᵀ`` their singular value decomposition, the prediction for a record that is left out
    follows without another fit: ``e_i / (1 − h_i)``, e the residual and ``h_i = 1/m + Σ_j U_ij² s_j² / (s_j² + λ)``.

    Of inputs far from all known ones a line goes anywhere, and a few of these would hide in a mean square what all
    others tell. So estimates of a target stay within its known values; or, where records that are left out say that
    going beyond those of the others was better, within these and half their range on either side. Where targets are
    linear in the inputs it was: the outermost is such a record.

    Args:
        inputs: ``(m, w)``, m >= 2.
        targets: ``(m, d)``.

    Raises:
        ArgumentError: If there are fewer than two records, or one is not finite.
    """
    if len(inputs) < 2 or len(inputs) != len(targets):
        raise ArgumentError(f"expected at least 2 known records of each, got {len(inputs)} and {len(targets)}")
    if not bool(torch.isfinite(inputs).all() and torch.isfinite(targets).all()):
        raise ArgumentError("known records hold NaN or infinite values")
    inputs, targets = inputs.double(), targets.double()
    centre, intercept = inputs.mean(dim=0), targets.mean(dim=0)
    spread = (inputs - centre).square().mean(dim=0).sqrt()
    scale = torch.where(spread > 0, spread, 1.0)
    left, squares, right = _decomposed((inputs - centre) / scale)
    seen = targets - intercept
    along = left.T @ seen
    unit = squares.sum() / max(min(inputs.shape), 1)
    # Where all inputs are alike nothing is told apart, whatever the penalty.
    penalties = torch.tensor(_PENALTIES, dtype=torch.float64, device=inputs.device)
    shrinks = squares / (squares + penalties[:, None] * unit) if unit > 0 else squares.expand(len(penalties), -1) * 0.0
    errors = _left_out_by_all(left, along, seen, shrinks).square().mean(dim=0)
    best = (errors <= errors.amin(dim=0) * (1 + _TIE)).int().argmax(dim=0)
    shrink = shrinks[best].T  # (r, d)
    weight = right @ (shrink * along / squares.sqrt()[:, None]) / scale[:, None]
    left_out, beyond = _kept_within(targets, _left_out(left, along, seen, shrink))
    low, high = targets.aminmax(dim=0)
    further = _BEYOND * beyond * (high - low)
    return Ridge(centre, weight, intercept, penalties[best], left_out, low - further, high + further)


def _kept_within(targets: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return what estimates are off by that stay within the others' targets where that is no worse.

    Args:
        targets: ``(m, d)``.
        left_out: What each is off by when it is left out, wherever it goes, ``(m, d)``.

    Returns:
        What each is off by, ``(m, d)``, and of which targets estimates may go beyond, ``(d,)``.
    """
    lowest, highest = (targets.topk(2, dim=0, largest=largest).values for largest in (False, True))
    low = torch.where(targets == lowest[0], lowest[1], lowest[0])
    high = torch.where(targets == highest[0], highest[1], highest[0])
    within = targets - (targets - left_out).clamp(low, high)
    beyond = left_out.square().mean(dim=0) * (1 + _TIE) < within.square().mean(dim=0)
    return torch.where(beyond, left_out, within), beyond


def _decomposed(centred: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition of ``(m, w)`` without zeros: ``(m, r)``, squares ``(r,)``, ``(w, r)``.

    By the smaller of the two Gram matrices, which takes a tenth of the time of a decomposition of the whole.
    """
    wide = centred.shape[0] <= centred.shape[1]
    gram = centred @ centred.T if wide else centred.T @ centred
    squares, vectors = torch.linalg.eigh(gram)
    large = squares > _SMALL**2 * squares.amax().clamp_min(torch.finfo(torch.float64).tiny)
    squares, vectors = squares[large], vectors[:, large]
    others = (centred.T if wide else centred) @ vectors / squares.sqrt()
    return (vectors, squares, others) if wide else (others, squares, vectors)


def _left_out_by_all(left: Tensor, along: Tensor, seen: Tensor, shrinks: Tensor) -> Tensor:
    """Return the same as :func:`_left_out` under each of some penalties, ``(m, p, d)``: one product of matrices.

    Args:
        left: ``(m, r)``.
        along: ``(r, d)``.
        seen: ``(m, d)``.
        shrinks: ``(p, r)``.
    """
    shrunk = (shrinks[:, :, None] * along).permute(1, 0, 2)  # (r, p, d)
    fitted = (left @ shrunk.flatten(1)).unflatten(1, shrunk.shape[1:])
    lever = 1 / len(left) + left.square() @ shrinks.T
    off: Tensor = (seen[:, None] - fitted) / (1 - lever).clamp_min(1e-12)[:, :, None]
    return off


def _left_out(left: Tensor, along: Tensor, seen: Tensor, shrink: Tensor) -> Tensor:
    """Return what each record's estimate is off by when it is left out, ``(m, d)``.

    Args:
        left: ``(m, r)``.
        along: ``(r, d)``.
        seen: ``(m, d)``.
        shrink: ``(r, d)``: each target's.
    """
    lever = 1 / len(left) + left.square() @ shrink
    return (seen - left @ (shrink * along)) / (1 - lever).clamp_min(1e-12)
