"""The likeliest columns for what a known model made of them: those that it maps there, and that are likely at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from splitvfl.errors import AttackRefused

# How the damping of steps changes with one that helped, and with one that did not.
_EASIER: Final = 0.3
_HARDER: Final = 10.0


class Normal(NamedTuple):
    """A normal distribution of columns: ``middle + root · z`` with z standard normal.

    Attributes:
        middle: ``(d,)``.
        root: ``(d, d)``.
    """

    middle: Tensor
    root: Tensor

    @classmethod
    def of(cls, columns: Tensor) -> Normal:
        """Return the distribution of known records ``(m, d)``; of few, columns are taken for less dependent."""
        count, width = columns.shape
        middle = columns.mean(dim=0)
        spread = columns.std(dim=0, correction=0)
        spread = torch.where(spread > 0, spread, spread.mean()).clamp_min(1e-6)
        units = (columns - middle) / spread
        alike = units.T @ units / count
        apart = _apart(alike, count)
        alike = (1.0 - apart) * alike + (apart + 1e-6) * torch.eye(width, dtype=alike.dtype, device=alike.device)
        return cls(middle, spread[:, None] * torch.linalg.cholesky(alike))

    def back(self, units: Tensor) -> Tensor:
        """Return columns, ``(n, d)``."""
        return self.middle + units @ self.root.T


def _apart(alike: Tensor, count: int) -> Tensor:
    """Return how far a correlation of so many records is drawn towards none, from 0 to 1.

    Source: the oracle approximating shrinkage of Chen, Wiesel, Eldar and Hero, IEEE TSP 2010, Eq. (23).
    """
    width = len(alike)
    squares = alike.square().sum()
    beyond = (count + 1.0 - 2.0 / width) * (squares - width)
    return torch.where(beyond > 0, ((1.0 - 2.0 / width) * squares + width**2) / beyond, 1.0).clamp(0.0, 1.0)


def likeliest(off: Callable[[Tensor], Tensor], one: Tensor, other: Tensor, *, steps: int) -> Tensor:
    """Return the likeliest z of each record for a standard normal prior, ``(n, d)``: ``min ‖off(z)‖² + ‖z‖²``.

    It is sought by damped Gauss-Newton steps from two places. Where ``off`` is linear that is the exact minimum, and
    elsewhere a place where no step helps, which another start might better.

    Args:
        off: What the model's outputs for z are off by, in standard deviations, ``(2n, k)`` for ``(2n, d)``: all records
            behind one another, twice.
        one: Where to begin, ``(n, d)``.
        other: Likewise.
        steps: How many.

    Raises:
        AttackRefused: If ``off`` passes no gradient on to z.
    """
    found = torch.cat([one, other])
    damping = torch.ones_like(found[:, 0])
    for _ in range(steps):
        residual, slope = _linearised(off, found)
        tried = found - _step(slope, residual, found, damping)
        better = _unlikely(off, tried) < residual.square().sum(dim=1) + found.square().sum(dim=1)
        found = torch.where(better[:, None], tried, found)
        damping = torch.where(better, _EASIER * damping, _HARDER * damping).clamp(1e-12, 1e12)
    first, second = _unlikely(off, found).chunk(2)
    one, other = found.chunk(2)
    return torch.where((first <= second)[:, None], one, other)


def _step(slope: Tensor, residual: Tensor, found: Tensor, damping: Tensor) -> Tensor:
    """Return ``(H + λ diag(H))⁻¹ (Jᵀ r + z)`` with ``H = Jᵀ J + I``, for each record, ``(2n, d)``.

    Args:
        slope: J, ``(2n, k, d)``.
        residual: r, ``(2n, k)``.
        found: z, ``(2n, d)``.
        damping: λ, ``(2n,)``.
    """
    down = (slope.mT @ residual[:, :, None])[:, :, 0] + found
    # The matrix is JᵀJ and a diagonal: of fewer outputs than columns it is inverted by way of the outputs.
    diagonal = 1.0 + damping[:, None] * (1.0 + slope.square().sum(dim=1))
    outputs, columns = slope.shape[1:]
    if columns <= outputs:
        step: Tensor = torch.linalg.solve(slope.mT @ slope + torch.diag_embed(diagonal), down)
        return step
    spread = slope / diagonal[:, None]
    inner = slope @ spread.mT + torch.eye(outputs, dtype=slope.dtype, device=slope.device)
    seen: Tensor = torch.linalg.solve(inner, spread @ down[:, :, None])
    return down / diagonal - (spread.mT @ seen)[:, :, 0]


def _unlikely(off: Callable[[Tensor], Tensor], found: Tensor) -> Tensor:
    """Return what is made small, ``(2n,)``."""
    with torch.no_grad():
        return off(found).square().sum(dim=1) + found.square().sum(dim=1)


def _linearised(off: Callable[[Tensor], Tensor], found: Tensor) -> tuple[Tensor, Tensor]:
    """Return what outputs are off by, ``(2n, k)``, and their derivatives, ``(2n, k, d)``."""
    with torch.enable_grad():
        asked = found.detach().requires_grad_()
        residual = off(asked)
        if not residual.requires_grad:
            raise AttackRefused("the model passes no gradient on to the partner's columns")
        each = torch.eye(residual.shape[1], dtype=residual.dtype, device=residual.device)[:, None]
        (slopes,) = torch.autograd.grad(residual, asked, each.expand(-1, len(found), -1), is_grads_batched=True)
    return residual.detach(), slopes.transpose(0, 1)
