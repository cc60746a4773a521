"""Judging a feature attack: how far its estimate lies from the columns that it never saw."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Attack, View, call_attack, hook_name
from splitvfl.metrics import reconstruction_mse


@dataclass(frozen=True, slots=True)
class FeatureLeak:
    """One attack's leak of the other party's columns.

    Attributes:
        attack: The attack's name.
        mse: Mean squared error per feature of its estimate.
        blind_mse: The same for the estimate that answers every column's mean: what knowing nothing of a record costs.
        features: Number of columns.
        note: What the attack warned of, such as scores that hold no logit; empty if nothing.
    """

    attack: str
    mse: float
    blind_mse: float
    features: int
    note: str = ""


def judge_features(attack: Attack, view: View, truth: Tensor) -> FeatureLeak:
    """Run a feature attack on a view and compare it with the true columns.

    Args:
        attack: Returns ``(n, d)``.
        view: What the attacking party sees; the truth is not in it.
        truth: The other party's columns, ``(n, d)``.

    Raises:
        HookError: If the attack breaks its contract.
        ArgumentError: If its estimate has another shape than the truth, or is not finite.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        estimate = call_attack(attack, view)
    if estimate.shape != truth.shape:
        raise ArgumentError(
            f"{hook_name(attack)}: expected an estimate of {tuple(truth.shape)}, got {tuple(estimate.shape)}"
        )
    blind = truth.mean(dim=0, keepdim=True).expand_as(truth)
    return FeatureLeak(
        attack=hook_name(attack),
        mse=reconstruction_mse(estimate, truth),
        blind_mse=reconstruction_mse(blind, truth),
        features=truth.shape[1],
        note="; ".join(str(warning.message) for warning in caught),
    )
