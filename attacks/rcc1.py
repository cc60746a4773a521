"""Feature attack: the relaxed Chebyshev centre of the solutions (RCC1), by a semidefinite program."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from splitvfl.attacks.box_projection import in_pieces, nearest_solution, project, unit_box
from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.attacks.row_space import RowSpace, check_equations, row_space
from splitvfl.hooks import Equations

# A certificate's diagonal is met to this: it is of numbers up to ¼, and comes from two Cholesky factors.
_CERTIFIED = 1e-9
# Keeps Gram matrices of vanishing columns invertible; nothing of this size can be told from rounding.
_TINY = 1e-13
# Multipliers, slacks and V to begin with. The first is what most programs are solved from in 10 to 20 steps; those of
# solutions with next to no interior, of which it leaves one in a hundred, from the second.
_STARTS = ((5.0, 0.3, 0.05), (20.0, 1.0, 1.0))
_STEPS = 60
# Programs that take their steps together.
_TOGETHER = 256
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


def rcc1(A: Tensor, b: Tensor) -> Tensor:
    """Return the relaxed Chebyshev centre of the solutions of ``A x = b`` in [0, 1]^d (RCC1), for every prediction.

    See :func:`rcc1_with_value`, which also tells how far from it the truth can be.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, or an entry is not finite.
    """
    return rcc1_with_value(A, b).points


def rcc1_with_value(A: Tensor, b: Tensor) -> BoundedCentre:
    """Return the relaxed Chebyshev centre for every prediction, and a bound on the distance of every solution from it.

    The Chebyshev centre is the centre of the smallest ball around the solutions in the box. Relaxed: maximise ``Tr V``
    over x and V with ``A x = b``, ``V ⪰ 0``, ``A V = 0`` and ``V_ii <= x_i (1 − x_i)``. The value is at least the
    squared radius of that ball, and at most ``Σ x_i (1 − x_i)`` at RCC2. The two are equal, and so are the points,
    where some V has all of ``x_i (1 − x_i)`` at RCC2 as its diagonal. So: RCC2; a search for such a V among ``P diag(γ)
    P`` with P the projector on the null space of A scaled by the roots of that diagonal (of one equation an
    exact condition: no scaled weight exceeds the sum of the others); and for the rest the dual, ``min f(α)`` over ``α
    >= 0`` with ``M = Σ α_i w_i w_iᵀ ⪰ I``, where rows w of W span the null space, ``f = gᵀ M⁻¹ g + Σ α_i q_i (1 −
    q_i)``, ``q = A⁺b``, ``g = Σ α_i (q_i − ½) w_i``, whose gradient is ``x_i (1 − x_i)`` at ``x = q − W M⁻¹ g``. Solved
    by a primal-dual interior point method, many at once.

    Where no point of the box satisfies the equations, b is replaced as in :func:`rcc2`.

    Memory: beside the result, about a hundred MiB whatever n is.

    Source: Eldar, Beck and Teboulle, *A Minimax Chebyshev Estimator for Bounded Error Estimation*, IEEE Trans. Signal
    Processing 56 (2008); *Privacy Against Inference Attacks in Vertical Federated Learning*, the RCC1 estimate. The
    search direction: Helmberg, Rendl, Vanderbei and Wolkowicz, SIAM J. Optim. 6 (1996).

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, or an entry is not finite.
    """
    check_equations(A, b)
    space = row_space(A)
    d = A.shape[1]
    middle = space.rows.new_empty(d)
    row = BoundedCentre(middle, middle.new_empty(()), middle.new_empty((), dtype=torch.bool))
    found = BoundedCentre(
        *in_pieces(
            lambda part: _certified(space, nearest_solution(A, part, 0.5).points),
            b,
            entries=d**2,
            like=row,
        )
    )
    for start in _STARTS:
        # Few are left of each piece, and steps of few take as long as those of many.
        for places in (~found.solved).nonzero().squeeze(1).split(_TOGETHER):
            _improve(found, places, space, start)
    return found


def _certified(space: RowSpace, nearest: Tensor) -> BoundedCentre:
    """Return the nearest solutions to ½ with their bound, and for which it is the value of the relaxation."""
    spread = nearest * (1.0 - nearest)
    if not space.null.shape[1]:
        return BoundedCentre(nearest, torch.zeros_like(spread[:, 0]), torch.ones_like(spread[:, 0], dtype=torch.bool))
    return BoundedCentre(nearest, spread.sum(dim=1), _is_tight(space.rows, spread))


def _improve(found: BoundedCentre, places: Tensor, space: RowSpace, start: tuple[float, float, float]) -> None:
    """Put in what the programs of some predictions give, where it is better."""
    centres = _Program(space.null, found.points[places] @ space.rows.T @ space.rows, start).optimum()
    before = found.bound[places]
    better = centres.solved | (centres.bound < before)
    places = places[better]
    found.points[places] = _within_box(space, centres.points[better])
    found.bound[places] = torch.minimum(centres.bound, before)[better]
    found.solved[places] = centres.solved[better]


def _within_box(space: RowSpace, points: Tensor) -> Tensor:
    """Return points that round, or multipliers that were capped, put out of the box, as solutions in it."""
    inside = project(space.rows, points @ space.rows.T, points, unit_box(points.shape[1], points))
    return torch.where(inside.residual.isfinite().unsqueeze(1), inside.points, points.clamp(0.0, 1.0))


def _is_tight(rows: Tensor, spread: Tensor) -> Tensor:
    """Return where a V ⪰ 0 with ``rows · V = 0`` and the diagonal ``spread`` was found, ``(n,)``."""
    scaled = rows * spread.clamp(min=0.0).sqrt().unsqueeze(1)
    if len(rows) == 1:
        sizes = scaled.abs().squeeze(1)
        return 2.0 * sizes.amax(dim=1) <= sizes.sum(dim=1)
    few, many = (torch.eye(size, dtype=rows.dtype, device=rows.device) for size in rows.shape)
    factor, _ = torch.linalg.cholesky_ex(scaled @ scaled.mT + _TINY * few)
    basis = torch.linalg.solve_triangular(factor, scaled, upper=False)
    outside = basis.mT @ basis
    projector = many - outside
    squares = projector.square()
    factor, failed = torch.linalg.cholesky_ex(squares + _TINY * many)
    weights = torch.cholesky_solve(torch.ones_like(spread).unsqueeze(2), factor)
    met = ((squares @ weights).squeeze(2) - 1.0).abs().amax(dim=1) <= _CERTIFIED
    # Where all weights are positive, so is V; elsewhere it still may be.
    _, negative = torch.linalg.cholesky_ex((projector * weights.mT) @ projector + outside + _CERTIFIED * many)
    tight: Tensor = (failed == 0) & met & (negative == 0)
    return tight


class _Here(NamedTuple):
    """What a step needs to know of where it begins; one entry, row or matrix for each program."""

    points: Tensor
    value: Tensor  # f, the bound
    error: Tensor  # of x_i (1 − x_i) = V_ii + slack_i
    mean: Tensor  # product of multipliers and slacks
    factor: Tensor  # Cholesky, of M − I
    whole: Tensor  # Cholesky, of M
    shadow: Tensor  # V = W · spread · Wᵀ


class _Program:
    """The dual of some predictions' programs, from a start, by steps that all take together.

    Its optimality conditions: ``x_i (1 − x_i) = V_ii + s_i``, ``α_i s_i = 0``, ``(M − I) Y = 0``, with slacks s >= 0
    and ``V = W Y Wᵀ``, ``Y ⪰ 0``.
    """

    def __init__(self, null: Tensor, base: Tensor, start: tuple[float, float, float]) -> None:
        self._null = null
        count, (_, p) = len(base), null.shape
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
        return self._null.T @ (weights.unsqueeze(2) * self._null)

    def _evaluated(self) -> _Here:
        form = self._form(self._alpha)
        factor, failed = torch.linalg.cholesky_ex(form - self._unit)
        whole, _ = torch.linalg.cholesky_ex(form)
        pull = (self._alpha * (self._base - 0.5)) @ self._null
        answer = torch.cholesky_solve(pull.unsqueeze(2), whole).squeeze(2)
        points = self._base - answer @ self._null.T
        value = (pull * answer).sum(dim=1) + (self._alpha * self._base * (1.0 - self._base)).sum(dim=1)
        # On the border all digits are lost, and the bound with them.
        value = value.masked_fill(failed != 0, torch.inf)
        products = (self._alpha * self._slacks).sum(dim=1) + ((form - self._unit) * self._spread).sum(dim=(1, 2))
        shadow = self._null @ self._spread @ self._null.T
        error = points * (1.0 - points) - shadow.diagonal(dim1=1, dim2=2) - self._slacks
        return _Here(points, value, error.abs().amax(dim=1), products / sum(self._null.shape), factor, whole, shadow)

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
        for name in ("_places", "_base", "_alpha", "_slacks", "_spread", "_length"):
            setattr(self, name, getattr(self, name)[kept])

    def _step(self, here: _Here) -> None:
        inverse = torch.cholesky_inverse(here.factor)
        reach = self._null @ inverse @ self._null.T
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
        answers = self._null @ torch.cholesky_solve(self._null.T.expand(len(away), -1, -1), here.whole)
        system = 2.0 * away.unsqueeze(1) * answers * away.unsqueeze(2) + reach * here.shadow
        system.diagonal(dim1=1, dim2=2).add_(self._slacks / self._alpha)
        wanted = aim * (reach.diagonal(dim1=1, dim2=2) + 1.0 / self._alpha) - here.points * (1.0 - here.points)
        scale = system.diagonal(dim1=1, dim2=2).rsqrt()
        system = scale.unsqueeze(1) * system * scale.unsqueeze(2)
        system.diagonal(dim1=1, dim2=2).add_(_TINY)
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


class RCC1Attack(EquationAttack):
    """Estimate a party's features by the relaxed Chebyshev centre of the solutions in their range (RCC1).

    Promises, for records whose features lie in their range and equations without error: the truth is no further from
    the estimate than the root of :func:`rcc1_with_value`'s bound, whatever it is. The truth where there are as many
    independent equations as features. Not promised: a smaller error than RCC2, which it often equals.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, and the paper on the relaxation; see
    :func:`rcc1_with_value`.
    """

    name: ClassVar[str] = "rcc1"

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`rcc1` of them."""
        return rcc1(known.A, known.b)
