"""The value of a single unknown feature, from logits of several records, without the model's weights."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.wording import shown

Case = Literal[1, 2, 3]


def black_box_feature(observations: Tensor, *, case: Case, mean: float | None = None) -> Tensor:
    """Return an estimate of x in [0, 1] from ``o = w x`` or ``o = w x + β``, with w and β unknown.

    Case 1, β = 0: ``|o| / max|o|``. Its mean squared error is at most ``(1 − max x)²``; of N uniform features it is
    ``2 / (3N(N+1))`` on average.

    Case 2, w and β of one sign: ``(|o| − min|o|) / (max|o| − min|o|)``; at most ``(1 − max x)² + (min x)²``, of N >= 2
    uniform features ``1 / (N(N+1))`` on average.

    Case 3, w and β of opposite signs: one minus that, if all observations have one sign. If they have both, it is not
    known which way they grow, and every estimate is ½; unless the population's mean is known: of ``(o − min o) /
    (max o − min o)`` and one minus it, the one whose mean is nearer is taken.

    Absolute values make an estimate that does not depend on the sign of w. In cases 1 and 2 observations have one sign
    up to rounding; that they have is not checked. Observations that are all equal (one record, say) tell nothing in
    cases 2 and 3: ½. In case 1 a single record is estimated as 1, and zeros throughout as 0.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the black-box attack on one feature and
    lemma 2, with absolute values.

    Args:
        observations: The passive party's part of the logit of each record, ``(n,)``, n >= 1.
        case: 1, 2 or 3.
        mean: The feature's mean in the population, in [0, 1], if it is known; read in case 3 with observations of both
            signs. At ½ it does not decide.

    Returns:
        ``(n,)``, float64, in [0, 1].

    Raises:
        ArgumentError: If there is no observation, one is not finite, there is no such case, or ``mean`` lies outside
            [0, 1].

    >>> black_box_feature(torch.tensor([-1.0, -2.0, -4.0]), case=1).tolist()
    [0.25, 0.5, 1.0]
    """
    _check(observations, case, mean)
    seen = observations.double()
    match case:
        case 1:
            largest = seen.abs().max()
            return seen.abs() / largest if largest > 0 else torch.zeros_like(seen)
        case 2:
            return _stretched(seen.abs())
        case 3 if bool((seen < 0).any()) and bool((seen > 0).any()):
            return _decided(_stretched(seen), mean)
        case 3:
            return 1.0 - _stretched(seen.abs())
    raise AssertionError(case)


def _check(observations: Tensor, case: object, mean: float | None) -> None:
    if observations.dim() != 1 or not len(observations):
        raise ArgumentError(f"expected observations (n,) of at least one record, got {tuple(observations.shape)}")
    if not observations.is_floating_point():
        raise ArgumentError(f"expected observations of a floating-point dtype, got {observations.dtype}")
    if not bool(torch.isfinite(observations).all()):
        raise ArgumentError("observations holds NaN or infinite values")
    if case not in (1, 2, 3) or isinstance(case, bool):
        raise ArgumentError(f"case must be 1, 2 or 3, got {shown(case)}")
    if mean is not None and not 0.0 <= mean <= 1.0:
        raise ArgumentError(f"mean must lie in [0, 1], got {shown(mean)}")


def _stretched(values: Tensor) -> Tensor:
    """Return values moved and scaled to [0, 1]; ½ where they are all equal."""
    least, largest = values.min(), values.max()
    if not largest > least:
        return torch.full_like(values, 0.5)
    # Each half is finite where their difference would not be.
    return ((values / 2 - least / 2) / (largest / 2 - least / 2)).clamp(0.0, 1.0)


def _decided(candidate: Tensor, mean: float | None) -> Tensor:
    """Return an estimate or one minus it, whichever has its mean nearer to the known one; ½ where none has."""
    # Of two numbers that mirror each other at ½, the nearer one lies on the same side of it.
    side = 0.0 if mean is None else (candidate.mean().item() - 0.5) * (mean - 0.5)
    if side == 0.0:
        return torch.full_like(candidate, 0.5)
    return candidate if side > 0.0 else 1.0 - candidate
