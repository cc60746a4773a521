"""The sumKL problem: the Gaussian noise of a given power that hides the label best, under the published model.

Negatives' gradients are modelled as N(m0, uI), positives' as N(m1, vI). Noise of class y has the variance
``parallel_y`` along the gap m1 - m0 and ``orthogonal_y`` in each direction across it.

The problem is solved once for plain floats (one problem in tens of microseconds, for a training step) and once for
tensors (thousands of problems at a time). Both follow the same formulas in the same order.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar, overload

import torch
from torch import Tensor

from splitvfl.defenses.setting_checks import check_detection_error
from splitvfl.errors import ArgumentError

Number = TypeVar("Number", float, Tensor)

HALVINGS = 60
"""After as many, the bracket of the batched solver is at the resolution of float64."""

_RELATIVE_RESOLUTION = 2.0**-51
_HALF_PER_CENT = 0.004975  # two of them are log(1.01)
_SMALLEST_EXPONENT = -1000


class SumKLSolution(NamedTuple, Generic[Number]):
    """Noise variances per direction, and the divergence that they leave.

    Attributes:
        parallel_negative: λ10, the negatives' variance along the gap.
        orthogonal_negative: λ20, the negatives' variance in each direction across it; 0 at width 1.
        parallel_positive: λ11.
        orthogonal_positive: λ21; 0 at width 1.
        sum_kl: KL(1‖0) + KL(0‖1) of the noisy classes, in nats; may be infinite without noise.
    """

    parallel_negative: Number
    orthogonal_negative: Number
    parallel_positive: Number
    orthogonal_positive: Number
    sum_kl: Number


@overload
def solve_sumkl(  # type: ignore[overload-overlap]  # all floats fit both; the first one is meant then
    u: float, v: float, gap: float, width: int, positive_share: float, power: float
) -> SumKLSolution[float]: ...


@overload
def solve_sumkl(
    u: float | Tensor,
    v: float | Tensor,
    gap: float | Tensor,
    width: int | Tensor,
    positive_share: float | Tensor,
    power: float | Tensor,
) -> SumKLSolution[Tensor]: ...


def solve_sumkl(
    u: float | Tensor,
    v: float | Tensor,
    gap: float | Tensor,
    width: int | Tensor,
    positive_share: float | Tensor,
    power: float | Tensor,
) -> SumKLSolution[float] | SumKLSolution[Tensor]:
    """Return the noise variances that minimise sumKL within a power budget.

    With a = λ10 + u, b = λ11 + v, c0 = λ20 + u, c1 = λ21 + v, p the share of positives and d the width, minimises ::

        sumKL = ½[(d-1)(c0-c1)²/(c0 c1) + (a-b)²/(ab) + gap (1/a + 1/b)]

    subject to (1-p)(λ10 + (d-1) λ20) + p(λ11 + (d-1) λ21) ≤ power and all λ ≥ 0. The answer is the global minimum:
    in the logarithms of a, b, c0, c1 the problem is convex. The larger-variance class gets nothing across the gap, the
    split along it is closed, and one root is found in between. Scaling u, v, gap and power together scales the λ's and
    leaves sumKL. Without a gap (``gap == 0``) less than the budget may be spent; without a budget the λ's are 0 and
    sumKL is that of the clean gradients.

    What this does not promise: anything about gradients that are not isotropic Gaussians in each class.

    Source: Li et al., ICLR 2022, arXiv:2102.08504, section 4.2 and Theorem 2, with the classes' roles and the remark on
    the orthogonal variances corrected.

    Args:
        u: Negatives' variance per coordinate, ≥ 0.
        v: Positives' variance per coordinate, ≥ 0.
        gap: Squared distance of the class means, ≥ 0.
        width: Number of coordinates, a whole number ≥ 1.
        positive_share: Share of positives, strictly between 0 and 1.
        power: Budget: the expected squared norm of a row's noise. Below 0 it counts as 0.

    Returns:
        Floats if every argument is a number. If one is a tensor, float64 tensors of the common (broadcast) shape, on
        the first tensor's device.

    Raises:
        ArgumentError: If an argument is outside its range, not finite, or the shapes do not broadcast.

    >>> solution = solve_sumkl(1.0, 2.0, gap=4.0, width=8, positive_share=0.25, power=3.0)
    >>> round(solution.sum_kl, 3), solution.orthogonal_positive
    (2.109, 0.0)
    """
    if any(isinstance(value, Tensor) for value in (u, v, gap, width, positive_share, power)):
        return _solve_tensors(*_checked_tensors(u, v, gap, width, positive_share, power))
    return _solve_floats(*_checked_floats(u, v, gap, width, positive_share, power))


def detection_error_bound(sum_kl: float) -> float:
    """Return a lower bound on every attacker's detection error ½(FPR + FNR), given sumKL.

    Computes max(0, ½(1 - ½√sumKL)): the total variation of the two classes is at most ½√sumKL. It holds for the
    distributions whose sumKL this is, so for measured gradients only as far as the Gaussian model does.

    Source: Li et al., ICLR 2022, arXiv:2102.08504, section 4.2; Pinsker's inequality in both directions.

    Args:
        sum_kl: KL(1‖0) + KL(0‖1), in nats, ≥ 0, infinity included.

    Returns:
        A float in [0, 0.5].

    Raises:
        ArgumentError: If ``sum_kl`` is negative or NaN.

    >>> round(detection_error_bound(1.44), 12)
    0.2
    """
    if not sum_kl >= 0.0:
        raise ArgumentError(f"sum_kl must be at least 0, got {sum_kl}")
    return max(0.0, 0.5 * (1.0 - 0.5 * math.sqrt(sum_kl)))


def sum_kl_for(detection_error: float) -> float:
    """Return the largest sumKL whose bound on the detection error is still ``detection_error``: (2 - 4L)².

    The inverse of :func:`detection_error_bound`, with its limits.

    Args:
        detection_error: L, strictly between 0 and 0.5.

    Raises:
        ArgumentError: If L is outside that range.
    """
    check_detection_error(detection_error)
    return (2.0 - 4.0 * detection_error) ** 2


def least_power(
    u: float,
    v: float,
    gap: float,
    width: int,
    positive_share: float,
    sum_kl: float,
    *,
    start: float | None = None,
) -> tuple[float, SumKLSolution[float]]:
    """Return the least power whose sumKL is at most ``sum_kl``, to one per cent, and its solution.

    The solution's sumKL never exceeds ``sum_kl``; the power exceeds the least one by at most 1 %. It is 0 where the
    clean gradients' sumKL is already low enough. The result depends on ``start`` within that 1 %.

    Args:
        u: As for :func:`solve_sumkl`, like the next four.
        v: See there.
        gap: See there.
        width: See there.
        positive_share: See there.
        sum_kl: Largest sumKL allowed, > 0.
        start: A guess of the power, such as that of the step before; it saves work. Ignored unless positive.

    Raises:
        ArgumentError: As :func:`solve_sumkl`, or if ``sum_kl`` is not positive.
    """
    if not sum_kl > 0.0:
        raise ArgumentError(f"sum_kl must be positive, got {sum_kl}")
    problem = _checked_floats(u, v, gap, width, positive_share, 0.0)[:5]
    without = _solve_floats(*problem, 0.0)
    if without.sum_kl <= sum_kl:
        return 0.0, without
    guess = start if start is not None and start > 0.0 else max(gap, abs(u - v) * width)
    return _search(lambda power: _solve_floats(*problem, power), sum_kl, guess)


def _search(
    solve: Callable[[float], SumKLSolution[float]], target: float, guess: float
) -> tuple[float, SumKLSolution[float]]:
    """Find where log sumKL falls to the target, as a function of log power."""
    tried: dict[float, tuple[float, SumKLSolution[float]]] = {}

    def excess(log_power: float) -> float:
        power = math.exp(log_power)
        solution = solve(power)
        tried[log_power] = power, solution
        if solution.sum_kl > target:
            return max(math.log(solution.sum_kl / target), sys.float_info.min)
        return min(math.log(solution.sum_kl / target), 0.0) if solution.sum_kl > 0.0 else -math.inf

    here = (math.log(guess), excess(math.log(guess)))
    margin, steepness = 0.004, 1.0
    while True:
        # To where the target would be at this steepness, and a margin further; 1e6-fold at most.
        step = min(max(here[1] / steepness, -14.0), 14.0) + math.copysign(margin, here[1])
        there = (here[0] + step, excess(here[0] + step))
        if (there[1] > 0.0) != (here[1] > 0.0):
            break
        margin *= 2.0
        if math.isfinite(there[1]) and there[1] != here[1]:
            steepness = min(max((here[1] - there[1]) / step, 0.1), 10.0)
        here = there
    ends = _narrow(excess, here, there, resolution=lambda _: _HALF_PER_CENT)
    return tried[max(ends)]


# One problem, in floats. -------------------------------------------------------------------------------------------


def _checked_floats(
    u: object, v: object, gap: object, width: object, positive_share: object, power: object
) -> tuple[float, float, float, float, float, float]:
    try:
        u, v, gap, width, share, power = map(float, (u, v, gap, width, positive_share, power))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"expected numbers or tensors: {error}") from None
    if not (0.0 <= u < math.inf and 0.0 <= v < math.inf and 0.0 <= gap < math.inf):
        raise ArgumentError(f"u, v and gap must be finite and at least 0, got u={u}, v={v}, gap={gap}")
    if not (width >= 1.0 and width.is_integer()):
        raise ArgumentError(f"width must be a whole number of at least 1, got {width}")
    if not 0.0 < share < 1.0:
        raise ArgumentError(f"positive_share must lie strictly between 0 and 1, got {share}")
    if not math.isfinite(power):
        raise ArgumentError(f"power must be finite, got {power}")
    return u, v, gap, width, share, power


def _solve_floats(u: float, v: float, gap: float, width: float, share: float, power: float) -> SumKLSolution[float]:
    if u <= v:
        x, z, y, sum_kl = _solve_ordered(u, v, gap, width - 1.0, share, power)
        return SumKLSolution(x, z, y, 0.0, sum_kl)
    x, z, y, sum_kl = _solve_ordered(v, u, gap, width - 1.0, 1.0 - share, power)
    return SumKLSolution(y, 0.0, x, z, sum_kl)


def _solve_ordered(
    u: float, v: float, gap: float, rest: float, p: float, power: float
) -> tuple[float, float, float, float]:
    """Solve for u ≤ v: (along for u's class, across for u's class, along for v's class, sumKL); rest = width - 1."""
    if power <= 0.0:
        return 0.0, 0.0, 0.0, _sum_kl(u, v, v - u, gap, rest, 0.0, 0.0, 0.0)
    # A power of two as unit keeps every product in range and changes no bit of the answer.
    unit = math.ldexp(1.0, max(math.frexp(max(v, gap, power))[1], _SMALLEST_EXPONENT))
    u, v, gap, power = u / unit, v / unit, gap / unit, power / unit
    wide, q = v - u, 1.0 - p
    if gap == 0.0:
        x = min(wide, power / (q * (rest + 1.0)))
        z, y = (x if rest else 0.0), 0.0
    else:
        z = _across(u, v, wide, gap, rest, p, q, power) if rest and wide else 0.0
        x, y = _along(u, v, wide, gap, p, q, max(power - q * rest * z, 0.0))
    return x * unit, z * unit, y * unit, _sum_kl(u, v, wide, gap, rest, x, y, z)


def _along(u: float, v: float, wide: float, gap: float, p: float, q: float, budget: float) -> tuple[float, float]:
    """Split a budget along the gap between the classes, in closed form."""
    total = budget + q * u + p * v
    e = math.sqrt((total + q * gap) / (total + p * gap))
    # v - E·u, without the cancellation where u is close to v and E to 1.
    shift = wide - (q - p) * gap / ((total + p * gap) * (e + 1.0)) * u
    norm = p * e + q
    x = min(max((budget + p * shift) / norm, 0.0), budget / q)
    y = min(max((e * budget - q * shift) / norm, 0.0), budget / p)
    return x, y


def _across(u: float, v: float, wide: float, gap: float, rest: float, p: float, q: float, power: float) -> float:
    """Return the variance across the gap: the root of an increasing slope, by Chandrupatla's bracketed method."""

    def slope(z: float) -> float:
        """Return c² h(z), which has h's sign and no pole at c = 0."""
        c = u + z
        budget = max(power - q * rest * z, 0.0)
        total = budget + q * u + p * v
        high, low = total + q * gap, total + p * gap
        e = math.sqrt(high / low)
        shift = budget + p * (v - e * u)
        if shift <= 0.0:
            b = v + budget / p
            descent = (c / u - ((u + gap) / b) * (c / b)) / p
        elif q * shift >= budget * (p * e + q):
            a = u + budget / q
            if a == 0.0:
                return math.inf
            descent = (c / v - ((v + gap) / a) * (c / a)) / q
        else:
            bend = (total + 2.0 * p * q * gap) / (math.sqrt(high) * math.sqrt(low)) + 1.0
            descent = -(gap / total) * (c / total) * bend
        return (z - wide) * (c + v) / v - q * c * descent

    end = min(wide, power / (q * rest))
    if (at_start := slope(0.0)) >= 0.0:
        return 0.0
    if (at_end := slope(end)) <= 0.0:
        return end
    ends = _narrow(slope, (0.0, at_start), (end, at_end), resolution=lambda z: _RELATIVE_RESOLUTION * (u + z))
    return ends[0]


def _narrow(
    function: Callable[[float], float],
    left: tuple[float, float],
    right: tuple[float, float],
    *,
    resolution: Callable[[float], float],
) -> tuple[float, float]:
    """Return the ends of a bracket, the better first, no wider than twice the resolution there.

    Chandrupatla's method: inverse quadratic interpolation where it can be trusted, else halving.

    Source: T. R. Chandrupatla, Advances in Engineering Software 28 (1997) 145-149.

    Args:
        function: Changes its sign between the points; may be infinite.
        left: One point (x, function(x)).
        right: The other.
        resolution: Distance below which points need not be told apart, near x.
    """
    (x1, f1), (x2, f2) = left, right
    share = 0.5
    while True:
        x = x1 + share * (x2 - x1)
        f = function(x)
        if (f > 0.0) == (f1 > 0.0):
            x3, f3 = x1, f1
        else:
            x3, f3, x2, f2 = x2, f2, x1, f1
        x1, f1 = x, f
        best, other = (x1, x2) if abs(f1) < abs(f2) else (x2, x1)
        least = resolution(best) / abs(x2 - x1)
        if least > 0.5:
            return best, other
        share = 0.5
        if f3 != f2 and math.isfinite(f3 - f2):
            place, level = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
            if level * level < place and (1.0 - level) ** 2 < 1.0 - place:
                share = f1 / (f2 - f1) * f3 / (f2 - f3) + (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
        share = min(max(share, least), 1.0 - least)


def _sum_kl(u: float, v: float, wide: float, gap: float, rest: float, x: float, y: float, z: float) -> float:
    a, b, c = u + x, v + y, u + z
    difference = x - y - wide
    if a == 0.0 or b == 0.0:
        along = math.inf if gap or difference else 0.0
    else:
        along = (difference / a) * (difference / b) + gap / a + gap / b
    left = wide - z
    if not rest or left == 0.0:
        return 0.5 * along
    return math.inf if c == 0.0 else 0.5 * (rest * (left / c) * (left / v) + along)


# Many problems, in tensors. Division by zero gives infinities there, which `where` discards. -----------------------


def _checked_tensors(*values: float | Tensor) -> tuple[Tensor, ...]:
    device = next(value.device for value in values if isinstance(value, Tensor))
    try:
        tensors = [torch.as_tensor(value, dtype=torch.float64, device=device).detach() for value in values]
        u, v, gap, width, share, power = torch.broadcast_tensors(*tensors)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"expected numbers and tensors of one length: {error}") from None
    for name, tensor in (("u", u), ("v", v), ("gap", gap)):
        _require(name, tensor, (tensor >= 0.0) & (tensor < math.inf), "finite and at least 0")
    _require("width", width, (width >= 1.0) & (width.floor() == width) & (width < math.inf), "whole and at least 1")
    _require("positive_share", share, (share > 0.0) & (share < 1.0), "strictly between 0 and 1")
    _require("power", power, power.isfinite(), "finite")
    return u, v, gap, width, share, power


def _require(name: str, tensor: Tensor, good: Tensor, what: str) -> None:
    if not good.all():
        raise ArgumentError(f"{name} must be {what}, got {tensor[~good].reshape(-1)[:5].tolist()}")


def _solve_tensors(
    u: Tensor, v: Tensor, gap: Tensor, width: Tensor, share: Tensor, power: Tensor
) -> SumKLSolution[Tensor]:
    swapped = u > v
    small, large = torch.minimum(u, v), torch.maximum(u, v)
    p = torch.where(swapped, 1.0 - share, share)
    x, z, y, sum_kl = _solve_ordered_tensors(small, large, gap, width - 1.0, p, power.clamp(min=0.0))
    none = torch.zeros_like(z)
    return SumKLSolution(
        torch.where(swapped, y, x),
        torch.where(swapped, none, z),
        torch.where(swapped, x, y),
        torch.where(swapped, z, none),
        sum_kl,
    )


def _solve_ordered_tensors(
    u: Tensor, v: Tensor, gap: Tensor, rest: Tensor, p: Tensor, power: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    top = torch.maximum(torch.maximum(v, gap), power)
    exponent = torch.frexp(top).exponent.clamp(min=_SMALLEST_EXPONENT)
    unit = torch.ldexp(torch.ones_like(top), exponent)
    u, v, gap, power = u / unit, v / unit, gap / unit, power / unit
    wide, q = v - u, 1.0 - p
    z = _across_tensors(u, v, wide, gap, rest, p, q, power)
    x, y = _along_tensors(u, v, wide, gap, p, q, (power - q * rest * z).clamp(min=0.0))
    level = torch.minimum(wide, power / (q * (rest + 1.0)))
    centred, idle = gap == 0.0, power == 0.0
    x = torch.where(centred, level, x).masked_fill(idle, 0.0)
    y = y.masked_fill(centred | idle, 0.0)
    z = torch.where(centred & (rest > 0.0), level, z).masked_fill(idle, 0.0)
    return x * unit, z * unit, y * unit, _sum_kl_tensors(u, v, wide, gap, rest, x, y, z)


def _along_tensors(
    u: Tensor, v: Tensor, wide: Tensor, gap: Tensor, p: Tensor, q: Tensor, budget: Tensor
) -> tuple[Tensor, Tensor]:
    total = budget + q * u + p * v
    e = ((total + q * gap) / (total + p * gap)).sqrt()
    shift = wide - (q - p) * gap / ((total + p * gap) * (e + 1.0)) * u
    norm = p * e + q
    x = torch.minimum(((budget + p * shift) / norm).clamp(min=0.0), budget / q)
    y = torch.minimum(((e * budget - q * shift) / norm).clamp(min=0.0), budget / p)
    return x, y


def _across_tensors(
    u: Tensor, v: Tensor, wide: Tensor, gap: Tensor, rest: Tensor, p: Tensor, q: Tensor, power: Tensor
) -> Tensor:
    def slope(z: Tensor) -> Tensor:
        c = u + z
        budget = (power - q * rest * z).clamp(min=0.0)
        total = budget + q * u + p * v
        high, low = total + q * gap, total + p * gap
        e = (high / low).sqrt()
        shift = budget + p * (v - e * u)
        a, b = u + budget / q, v + budget / p
        bend = (total + 2.0 * p * q * gap) / (high.sqrt() * low.sqrt()) + 1.0
        descent = torch.where(
            shift <= 0.0,
            (c / u - ((u + gap) / b) * (c / b)) / p,
            torch.where(
                q * shift >= budget * (p * e + q),
                (c / v - ((v + gap) / a) * (c / a)) / q,
                -(gap / total) * (c / total) * bend,
            ),
        )
        return (z - wide) * (c + v) / v - q * c * descent

    none = torch.zeros_like(wide)
    end = torch.where(rest > 0.0, torch.minimum(wide, power / (q * rest)), none)
    below, above = none, end
    for _ in range(HALVINGS):
        middle = 0.5 * (below + above)
        rising = slope(middle) > 0.0
        above, below = torch.where(rising, middle, above), torch.where(rising, below, middle)
    z = torch.where(slope(end) <= 0.0, end, 0.5 * (below + above))
    return torch.where((slope(none) >= 0.0) | (end == 0.0), none, z)


def _sum_kl_tensors(
    u: Tensor, v: Tensor, wide: Tensor, gap: Tensor, rest: Tensor, x: Tensor, y: Tensor, z: Tensor
) -> Tensor:
    a, b, c = u + x, v + y, u + z
    difference, left = x - y - wide, wide - z
    along = torch.where(
        (difference == 0.0) & (gap == 0.0), 0.0, (difference / a) * (difference / b) + gap / a + gap / b
    )
    along = along.masked_fill(((a == 0.0) | (b == 0.0)) & ((difference != 0.0) | (gap > 0.0)), math.inf)
    across = torch.where((rest == 0.0) | (left == 0.0), 0.0, rest * (left / c) * (left / v))
    return 0.5 * (along + across)
