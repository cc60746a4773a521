"""The value of a single unknown feature, from logits of several records, without the model's weights."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, AttackRefused, shown
from splitvfl.hooks import Target, View

Case = Literal[1, 2, 3, "mixed"]


def black_box_feature(observations: Tensor, *, case: Case, mean: float | None = None) -> Tensor:
    """Return an estimate of x in [0, 1] from ``o = w x`` or ``o = w x + β``, with w and β unknown.

    Case 1, β = 0: ``|o| / max|o|``. Its mean squared error is at most ``(1 − max x)²``; of N uniform features it is
    ``2 / (3N(N+1))`` on average.

    Case 2, w and β of one sign: ``(|o| − min|o|) / (max|o| − min|o|)``; at most ``(1 − max x)² + (min x)²``, of N >= 2
    uniform features ``1 / (N(N+1))`` on average.

    Case 3, w and β of opposite signs: one minus that, if all observations have one sign. If they have both, it is not
    known which way they grow, and every estimate is ½; unless the population's mean is known: of ``(o − min o) /
    (max o − min o)`` and one minus it, the one whose mean is nearer is taken.

    ``"mixed"``: nothing is known of the signs. As case 3 with observations of both signs, whatever they have.

    Absolute values make an estimate that does not depend on the sign of w. In cases 1 and 2 observations have one sign
    up to rounding; that they have is not checked. Observations that are all equal (one record, say) tell nothing but in
    case 1: ½. There a single record is estimated as 1, and zeros throughout as 0.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the black-box attack on one feature and
    lemma 2, with absolute values.

    Args:
        observations: The passive party's part of the logit of each record, ``(n,)``, n >= 1.
        case: 1, 2, 3 or ``"mixed"``.
        mean: The feature's mean in the population, in [0, 1], if it is known; read in case 3 with observations of both
            signs, and in the mixed one. At ½ it does not decide.

    Returns:
        ``(n,)``, float64, in [0, 1].

    Raises:
        ArgumentError: If there is no observation, one is not finite, there is no such case, or ``mean`` lies outside
            [0, 1].

    >>> black_box_feature(torch.tensor([-1.0, -2.0, -4.0]), case=1).tolist()
    [0.25, 0.5, 1.0]
    """
    _check_observations(observations)
    _check_settings(case, mean)
    seen = observations.double()
    match case:
        case 1:
            largest = seen.abs().max()
            return seen.abs() / largest if largest > 0 else torch.zeros_like(seen)
        case 2:
            return _stretched(seen.abs())
        case 3 if not (bool((seen < 0).any()) and bool((seen > 0).any())):
            return 1.0 - _stretched(seen.abs())
        case _:
            return _decided(_stretched(seen), mean)


def _check_observations(observations: Tensor) -> None:
    if observations.dim() != 1 or not len(observations):
        raise ArgumentError(f"expected observations (n,) of at least one record, got {tuple(observations.shape)}")
    if not observations.is_floating_point():
        raise ArgumentError(f"expected observations of a floating-point dtype, got {observations.dtype}")
    if not bool(torch.isfinite(observations).all()):
        raise ArgumentError("observations holds NaN or infinite values")


def _check_settings(case: object, mean: float | None) -> None:
    if case not in get_args(Case) or isinstance(case, bool):
        raise ArgumentError(f"case must be 1, 2, 3 or mixed, got {shown(case)}")
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


class BlackBoxFeatureAttack:
    """Estimate the single column of a party from its part of the logits, without the model's weights.

    The attacker knows its own part, the column's range, and how the signs of what it does not know compare: in the unit
    box the other part is ``w x + β``, where β holds the lower end of the range, times the weight, beside the intercept.
    Of k classes the part that varies most is read.

    Promises the mean squared errors of :func:`black_box_feature`, if the case is the right one. Refused where the part
    is of more than one column: a category's one-hot columns, say, or scores of several parties.

    In a file: ``attacks: [{name: black-box-feature, case: mixed, mean: 0.3}]``

    Also called: single-feature.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the black-box attack on one feature.

    Args:
        case: 1: β = 0, as of a column from 0 on without an intercept. 2: w and β have one sign. 3: they have opposite
            ones. ``"mixed"``: nothing is known.
        mean: The column's mean in the population, in the unit box, if it is known: it decides where signs do not.

    Raises:
        ArgumentError: If there is no such case, or ``mean`` lies outside [0, 1].
    """

    name: ClassVar[str] = "black-box-feature"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"logit_parts"})

    def __init__(self, *, case: Case = 1, mean: float | None = None) -> None:
        _check_settings(case, mean)
        self._case, self._mean = case, mean

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``logit_parts`` are read.

        Returns:
            ``(n, 1)``, float64, in [0, 1].

        Raises:
            AttackRefused: If they are of more than one column.
        """
        values, columns = view.logit_parts
        if len(columns) != 1:
            raise AttackRefused(
                f"without the weights a single column can be told, and these logits are of {len(columns)}: "
                + ", ".join(columns)
            )
        spread = values.amax(dim=0) - values.amin(dim=0)
        widest = int((spread if bool(spread.any()) else values.abs().amax(dim=0)).argmax())
        return black_box_feature(values[:, widest], case=self._case, mean=self._mean).unsqueeze(1)
