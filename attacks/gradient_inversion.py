"""Feature attack by gradient descent on the mismatch of published scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from splitvfl.attacks.guesses import check_seed, uniform_points
from splitvfl.attacks.row_space import check_equations
from splitvfl.errors import ArgumentError, shown
from splitvfl.hooks import Target, View
from splitvfl.leakage.score_equations import equations

Loss = Literal["squares", "kl", "log-squares"]
Start = float | Literal["random"]

# Features lie in [0, 1]: moves of a step below this are sums of roundings.
_SETTLED = 1e-13
_STEPS = 20_000
# Of Adam, whose steps are as long as its rate until the gradient's sign changes.
_ADAM_STEPS = 2_000
_ADAM_RATE = 0.01
_ADAM_SETTLED = 1e-6


def gradient_inversion(
    scores: Tensor,
    active_logits: Tensor,
    passive_weight: Tensor,
    *,
    start: Start = 0.5,
    loss: Loss = "squares",
    seed: int = 0,
    steps: int | None = None,
) -> Tensor:
    """Return features in [0, 1] that reproduce the scores, found by projected gradient descent (GIA).

    With ``loss="squares"`` and (A, b) of :func:`equations`: ``x ← clip(x − Aᵀ(Ax − b) / σ_max(A)², 0, 1)`` to rest, see
    :func:`projected_gradient`. Once the box is touched, other losses and other paths have other limits. The two others
    are of the scores ĉ that x gives, minimised by Adam (rate 0.01), the clamp passed straight through by the gradient:
    ``"kl"``: KL(c ‖ ĉ); ``"log-squares"``: Σ (ln ĉ − ln c)², as the paper's authors do.

    No prediction is dropped for a large error. Scores of exactly 0 or 1 are treated, and reported, as in
    :func:`equations`. Records that have not come to rest within the steps are counted in a ``RuntimeWarning``.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the gradient inversion attack.

    Args:
        scores: Published predictions, ``(n, k)`` softmax or ``(n,)`` sigmoid, in [0, 1].
        active_logits: The active party's part of the logits, of the same shape.
        passive_weight: The passive party's weights, ``(k, d)`` or ``(d,)``.
        start: Where every feature starts, in [0, 1]; or ``"random"``: uniform, for every record anew.
        loss: What is minimised.
        seed: Of a random start.
        steps: The most that are taken; by default 20 000, of Adam 2 000.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, scores or ``start`` lie outside [0, 1], an entry is not finite, or there is
            no such loss.
    """
    _check(start, loss, seed, steps)
    left, right = equations(scores, active_logits, passive_weight)
    if loss == "squares":
        return projected_gradient(left, right, start=start, seed=seed, steps=steps or _STEPS)
    return _match_scores(left, right, active_logits, start=start, loss=loss, seed=seed, steps=steps or _ADAM_STEPS)


def projected_gradient(A: Tensor, b: Tensor, *, start: Start = 0.5, seed: int = 0, steps: int = _STEPS) -> Tensor:
    """Return the limit of ``x ← clip(x − Aᵀ(Ax − b) / σ_max(A)², 0, 1)``, a point of the box that fits A x = b best.

    Unless the box is touched on the way the limit is ``x₀ + A⁺(b − A x₀)``: LS from 0, Half* from ½. A record rests
    when no entry moves by more than 1e-13 in a step; one that does not within the steps is returned as it is, and
    counted in a ``RuntimeWarning``. Steps needed grow as (σ_max / σ_min)².

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the gradient inversion attack.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.
        start: Where every feature starts, in [0, 1]; or ``"random"``: uniform, for every record anew.
        seed: Of a random start.
        steps: The most that are taken, at least 1.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, or an argument is out of range.
    """
    _check(start, "squares", seed, steps)
    check_equations(A, b)
    left, right = A.double(), b.double()
    estimate = _first(start, right.shape[0], left.shape[1], seed, right.device)
    largest = torch.linalg.matrix_norm(left, ord=2)
    if not largest > 0:
        return estimate  # nothing is told, and nothing moves
    scaled, target = left / largest, right / largest
    moving = torch.arange(len(estimate), device=estimate.device)
    for _ in range(steps):
        before = estimate[moving]
        after = (before - (before @ scaled.T - target[moving]) @ scaled).clamp(0.0, 1.0)
        estimate[moving] = after
        moving = moving[((after - before).abs() > _SETTLED).any(dim=1)]
        if not len(moving):
            return estimate
    _warn(len(moving), len(estimate), steps)
    return estimate


def _first(start: Start, count: int, width: int, seed: int, device: torch.device) -> Tensor:
    if isinstance(start, str):
        return uniform_points(count, width, seed=seed).to(device)
    return torch.full((count, width), start, dtype=torch.float64, device=device)


def _warn(moving: int, count: int, steps: int) -> None:
    warnings.warn(
        f"{moving} of {count} records had not come to rest after {steps:,} steps of gradient inversion",
        RuntimeWarning,
        stacklevel=3,
    )


def _check(start: Start, loss: Loss, seed: int, steps: int | None) -> None:
    if start != "random" and (isinstance(start, str) or not 0.0 <= start <= 1.0):
        raise ArgumentError(f"start must lie in [0, 1] or be 'random', got {shown(start)}")
    if loss not in get_args(Loss):
        raise ArgumentError(f"loss must be one of {', '.join(get_args(Loss))}, got {shown(loss)}")
    check_seed(seed)
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise ArgumentError(f"steps must be a whole number of at least 1, got {shown(steps)}")


def _match_scores(
    left: Tensor, right: Tensor, active_logits: Tensor, *, start: Start, loss: Loss, seed: int, steps: int
) -> Tensor:
    """Return where Adam leaves a loss of the scores that x gives, clamped; see :func:`gradient_inversion`."""
    own = active_logits.double()
    own = torch.stack([torch.zeros_like(own), own], dim=1) if own.dim() == 1 else own
    # Logits up to a number that all classes share: sums of the neighbours' differences.
    weight = torch.cat([left.new_zeros(1, left.shape[1]), left.cumsum(dim=0)])
    wanted = torch.log_softmax(own + torch.cat([right.new_zeros(len(right), 1), right.cumsum(dim=1)], dim=1), dim=1)
    slope = _SLOPES[loss]
    free = _first(start, right.shape[0], left.shape[1], seed, right.device)
    mean, square, moved = torch.zeros_like(free), torch.zeros_like(free), torch.zeros_like(free)
    for step in range(1, steps + 1):
        before = free.clamp(0.0, 1.0)
        reached = torch.log_softmax(own + before @ weight.T, dim=1)
        gradient = slope(reached, wanted) @ weight
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.square()
        change = (mean / (1.0 - 0.9**step)) / ((square / (1.0 - 0.999**step)).sqrt() + 1e-8)
        free = free - _ADAM_RATE * change
        moved = (free.clamp(0.0, 1.0) - before).abs()
        if not bool((moved > _ADAM_SETTLED).any()):
            break
    unsettled = int((moved > _ADAM_SETTLED).any(dim=1).sum())
    if unsettled:
        _warn(unsettled, len(free), steps)
    return free.clamp(0.0, 1.0)


def _kl_slope(reached: Tensor, wanted: Tensor) -> Tensor:
    """Return the gradient of Σ c (ln c − ln ĉ) in the logits of ĉ."""
    return reached.exp() - wanted.exp()


def _log_squares_slope(reached: Tensor, wanted: Tensor) -> Tensor:
    """Return the gradient of Σ (ln ĉ − ln c)² in the logits of ĉ."""
    off = reached - wanted
    return 2.0 * (off - reached.exp() * off.sum(dim=1, keepdim=True))


_SLOPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"kl": _kl_slope, "log-squares": _log_squares_slope}


class GradientInversionAttack:
    """Estimate the other parties' columns by gradient descent on the mismatch of what a prediction shows (GIA).

    See :func:`gradient_inversion`. The attacker is assumed to know the weights and the range of each column. The losses
    of scores need scores; on an activation there is ``squares`` alone.

    Also called: GIA.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the gradient inversion attack.

    Args:
        start: Where every feature starts, in [0, 1]; or ``random``: uniform, for every record anew.
        loss: ``squares`` of the equations, or of the scores ``kl`` or ``log-squares``.
        seed: Of a random start.
        steps: The most that are taken; by default 20 000, of ``kl`` and ``log-squares`` 2 000.
    """

    name: ClassVar[str] = "gradient-inversion"
    target: ClassVar[Target] = "features"
    needs: frozenset[str] = frozenset({"equations"})

    def __init__(self, *, start: Start = 0.5, loss: Loss = "squares", seed: int = 0, steps: int | None = None) -> None:
        _check(start, loss, seed, steps)
        self._start, self._loss, self._seed, self._steps = start, loss, seed, steps
        if loss != "squares":
            self.needs = frozenset({"equations", "active_logits"})

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``equations`` are read, and for a loss of scores ``active_logits``.

        Returns:
            ``(n, d)``, float64, in [0, 1].

        Raises:
            ArgumentError: As :func:`gradient_inversion`.
        """
        known = view.equations
        if self._loss == "squares":
            return projected_gradient(known.A, known.b, start=self._start, seed=self._seed, steps=self._steps or _STEPS)
        check_equations(known.A, known.b)
        return _match_scores(
            known.A,
            known.b,
            view.active_logits,
            start=self._start,
            loss=self._loss,
            seed=self._seed,
            steps=self._steps or _ADAM_STEPS,
        )
