"""The semidefinite program behind RCC1, many at once: a primal-dual interior point method on its dual."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Keeps Gram matrices of vanishing columns invertible; nothing of this size can be told from rounding.
TINY = 1e-13
# Multipliers, slacks and V to begin with. The first is what most programs are solved from in 10 to 20 steps; those of
# solutions with next to no interior, of which it leaves one in a hundred, from the second.
STARTS = ((5.0, 0.3, 0.05), (20.0, 1.0, 1.0))
_STEPS = 60
# Programs that take their steps together.
TOGETHER = 256
# Solved: the mean product of multipliers and slacks is below the first, so that V's trace and the bound differ by less
# than d + p times that, and the conditions of each coordinate, times its multiplier, are met to the second.
_GAP, _MET = 1e-11, 1e-7
# Multipliers larger than this are on their way to infinity: the solutions have no interior in the box.
_CAP = 1e8
# How far towards the border a step goes.
_SHORT_OF_BORDER = 0.98


class BoundedCentre(NamedTuple):
    """Estimates with a certificate.

    Attributes:
        points: ``(n, d)``, in [0, 1].
        bound: ``(n,)``: no solution in the box is further from the point than the root of this. At its optimum it is
            the value of the semidefinite program; by duality it holds before, too.
        solved: ``(n,)``, bool: it is the optimum, to 1e-6. False where the solutions have no interior in the box, so
            that the dual has no optimum: point and bound are then those of capped multipliers.
    """

    points: Tensor
    bound: Tensor
    solved: Tensor


class _Here(NamedTuple):
    """What a step needs to know of where it begins; one entry, row or matrix for each program."""

    points: Tensor
    value: Tensor  # f, the bound
    error: Tensor  # of x_i (1 − x_i) = V_ii + slack_i
    mean: Tensor  # product of multipliers and slacks
    factor: Tensor  # Cholesky, of M − I
    whole: Tensor  # Cholesky, of M
    shadow: Tensor  # V = W · spread · Wᵀ


class CentreProgram:
    """The dual of some predictions' programs, from a start, by steps that all take together.

    Unknown are z, in p dimensions, of which numbers ``y = base + W z`` are known to be in [0, 1]. Where W is an
    orthonormal basis of a null space, y is a point, and as far from another as z is.

    Its optimality conditions: ``y_i (1 − y_i) = V_ii + s_i``, ``α_i s_i = 0``, ``(M − I) Y = 0``, with slacks s >= 0
    and ``V = W Y Wᵀ``, ``Y ⪰ 0``.

    Args:
        null: W, ``(D, p)``, or ``(n, D, p)`` where each program has its own.
        base: ``(n, D)``.
        start: Multipliers, slacks and Y to begin with.
    """

    def __init__(self, null: Tensor, base: Tensor, start: tuple[float, float, float]) -> None:
        self._null = null
        count, p = len(base), null.shape[-1]
        self._unit = torch.eye(p, dtype=base.dtype, device=base.device)
        self._places = torch.arange(count, device=base.device)
        self._base = base
        self._alpha = torch.full_like(base, start[0])
        self._slacks = torch.full_like(base, start[1])
        self._spread = (start[2] * self._unit).repeat(count, 1, 1)
        self._length = torch.ones_like(base[:, 0])
        flags = torch.zeros(count, dtype=torch.bool, device=base.device)
        self._found = BoundedCentre(base.clone(), torch.full_like(base[:, 0], torch.inf), flags)

    def optimum(self) -> BoundedCentre:
        """Return the best points and bounds found, and which are optimal."""
        for _ in range(_STEPS):
            here = self._write_down(self._evaluated())
            if not len(self._places):
                break
            self._step(here)
        return self._found

    def _form(self, weights: Tensor) -> Tensor:
        """Return ``Σ weight_i w_i w_iᵀ``."""
        return self._null.mT @ (weights.unsqueeze(2) * self._null)

    def _evaluated(self) -> _Here:
        form = self._form(self._alpha)
        factor, failed = torch.linalg.cholesky_ex(form - self._unit)
        whole, _ = torch.linalg.cholesky_ex(form)
        pull = ((self._alpha * (self._base - 0.5)).unsqueeze(1) @ self._null).squeeze(1)
        answer = torch.cholesky_solve(pull.unsqueeze(2), whole).squeeze(2)
        points = self._base - (answer.unsqueeze(1) @ self._null.mT).squeeze(1)
        value = (pull * answer).sum(dim=1) + (self._alpha * self._base * (1.0 - self._base)).sum(dim=1)
        # On the border all digits are lost, and the bound with them.
        value = value.masked_fill(failed != 0, torch.inf)
        products = (self._alpha * self._slacks).sum(dim=1) + ((form - self._unit) * self._spread).sum(dim=(1, 2))
        shadow = self._null @ self._spread @ self._null.mT
        error = points * (1.0 - points) - shadow.diagonal(dim1=1, dim2=2) - self._slacks
        return _Here(
            points, value, error.abs().amax(dim=1), products / sum(self._null.shape[-2:]), factor, whole, shadow
        )

    def _write_down(self, here: _Here) -> _Here:
        """Keep what is better than before, let the solved and the hopeless go, and return the rest."""
        better = here.value < self._found.bound[self._places]
        solved = (here.mean <= _GAP) & (here.error * self._alpha.amax(dim=1) <= _MET)
        places = self._places[better]
        self._found.points[places], self._found.bound[places] = here.points[better], here.value[better]
        self._found.solved[self._places[solved]] = True
        # What is not finite compares false.
        kept = ~solved & (self._alpha.amax(dim=1) < _CAP) & (here.value < torch.inf)
        if kept.all():
            return here
        self._keep(kept)
        return _Here(*(part[kept] for part in here))

    def _keep(self, kept: Tensor) -> None:
        if self._null.dim() == 3:
            self._null = self._null[kept]
        for name in ("_places", "_base", "_alpha", "_slacks", "_spread", "_length"):
            setattr(self, name, getattr(self, name)[kept])

    def _step(self, here: _Here) -> None:
        inverse = torch.cholesky_inverse(here.factor)
        reach = self._null @ inverse @ self._null.mT
        # Nearer to the centre after short steps.
        share = torch.tensor([0.95, 0.5, 0.2, 0.05], dtype=here.mean.dtype, device=here.mean.device)[
            (self._length > 0.1).int() + (self._length > 0.5).int() + (self._length > 0.9).int()
        ]
        aim = (share * here.mean).unsqueeze(1)
        change = self._direction(here, reach, aim)
        slacks = aim / self._alpha - self._slacks - self._slacks / self._alpha * change
        form = self._form(change)
        turned = inverse @ form @ self._spread
        spread = aim.unsqueeze(2) * inverse - self._spread - 0.5 * (turned + turned.mT)
        length = torch.minimum(_until_zero(self._alpha, change), _until_zero(self._slacks, slacks))
        factor, _ = torch.linalg.cholesky_ex(self._spread)
        length = torch.minimum(
            length, torch.minimum(_until_singular(here.factor, form), _until_singular(factor, spread))
        )
        self._length = (_SHORT_OF_BORDER * length).clamp(max=1.0)
        step = self._length.unsqueeze(1)
        self._alpha = self._alpha + step * change
        self._slacks = self._slacks + step * slacks
        self._spread = self._spread + step.unsqueeze(2) * spread

    def _direction(self, here: _Here, reach: Tensor, aim: Tensor) -> Tensor:
        """Return the change of the multipliers: Hessian of f, plus what slacks and V answer to it."""
        away = here.points - 0.5
        answers = self._null @ torch.cholesky_solve(self._null.mT.expand(len(away), -1, -1), here.whole)
        system = 2.0 * away.unsqueeze(1) * answers * away.unsqueeze(2) + reach * here.shadow
        system.diagonal(dim1=1, dim2=2).add_(self._slacks / self._alpha)
        wanted = aim * (reach.diagonal(dim1=1, dim2=2) + 1.0 / self._alpha) - here.points * (1.0 - here.points)
        scale = system.diagonal(dim1=1, dim2=2).rsqrt()
        system = scale.unsqueeze(1) * system * scale.unsqueeze(2)
        system.diagonal(dim1=1, dim2=2).add_(TINY)
        factor, _ = torch.linalg.cholesky_ex(system)
        return scale * torch.cholesky_solve((scale * wanted).unsqueeze(2), factor).squeeze(2)


def _until_zero(values: Tensor, changes: Tensor) -> Tensor:
    """Return the length of the step after which the first of some positive numbers is 0, ``(n,)``."""
    return torch.where(changes < 0, -values / changes, torch.inf).amin(dim=1)


def _until_singular(factor: Tensor, change: Tensor) -> Tensor:
    """Return the length of the step after which a positive definite matrix, by its Cholesky factor, is singular."""
    half = torch.linalg.solve_triangular(factor, change, upper=False)
    relative = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    # A program that has lost its digits stays where it is, and goes when its value is looked at.
    sound = relative.isfinite().all(dim=2).all(dim=1)
    least = torch.linalg.eigvalsh(torch.where(sound.unsqueeze(1).unsqueeze(2), relative, 0.0))[:, 0]
    return torch.where(sound, torch.where(least < 0, -1.0 / least, torch.inf), torch.nan)
