"""What an attacker is shown in place of a passive party's weights, and what that does to its equations.

Weights that were turned (``W Hᵀ``) or shifted (``W + Δ``) as remark 6 has it, and those of a file that a party has
revealed. The attacker takes them for the model's own: scores and activations stay what they are.

Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, remark 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor

from splitvfl.app.target_columns import TargetColumns, in_unit_box
from splitvfl.attacks.error_bounds import row_space
from splitvfl.data.transform import MOST_ROTATED, best_rotation
from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.leakage.score_equations import RANK_TOLERANCE
from splitvfl.learning.revealed_weights import least_singular_value, rotated_weights, weight_shift
from splitvfl.run.feature_systems import System
from splitvfl.run.feature_target import FeatureTarget
from splitvfl.run.revealed_file import Revealed

SHIFT: Final = 0.6
"""Norm of a shift of weights, in units of the least singular value of the equations, from which on it has no largest
error."""

Changed = Literal["rotated", "shifted"]


@dataclass(frozen=True, eq=False)
class WeightChange:
    """By how much the weights that are shown differ from a model's own.

    Attributes:
        weight: In the unit box, of the columns that vary, ``(k, d)``, float64.
        offset: Of what the model sends of a record that is at the lower end of every column, ``(k,)``, float64.
    """

    weight: Tensor
    offset: Tensor


def changed_weights(columns: TargetColumns, how: Changed) -> WeightChange:
    """Return what a party does to weights that it shows; the same for scores and activations: they are shown once.

    H is that of theorem 3, Δ of :data:`SHIFT`.

    Raises:
        ConfigError: If they have too many columns, or equations that depend on each other.
    """
    name, weight, moments = columns.target.party.name, columns.weight, columns.moments
    A = torch.diff(weight, dim=0) if len(weight) > 1 else weight
    unmoved = weight.new_zeros(len(weight))
    if how == "rotated":
        if weight.shape[1] > MOST_ROTATED:
            raise ConfigError(
                f"--transformed-weights: rotated: {name} has {weight.shape[1]} columns, and at most {MOST_ROTATED} can "
                "be turned"
            )
        H = best_rotation(row_space(A), moments.around(0.0)).matrix
        return WeightChange(rotated_weights(weight, H) - weight, unmoved)
    flat = weight if len(weight) > 1 else weight[0]
    least = least_singular_value(flat)
    if int(torch.linalg.matrix_rank(A, rtol=RANK_TOLERANCE)) < min(A.shape):
        raise ConfigError(
            f"--transformed-weights: shifted: the equations of {name} depend on each other, so that its weights can be "
            "shifted by next to nothing before their error has no bound; take rotated"
        )
    try:
        shift = weight_shift(flat, moments.around(0.0), moments.mean, norm=SHIFT * least)
    except ArgumentError as error:
        raise ConfigError(f"--transformed-weights: shifted: {name}: {error}") from error
    return WeightChange(shift.reshape(weight.shape), unmoved)


def as_model_weights(target: FeatureTarget, change: WeightChange) -> dict[str, Tensor]:
    """Return changed weights as those of a model of the party's own columns: what is written into a file.

    Columns that do not vary keep their weights.

    Returns:
        ``weight`` ``(k, d)`` and ``bias`` ``(k,)``, float64.
    """
    own, box = target.weight.double(), target.box
    weight = own.clone()
    weight[:, box.varying] += change.weight / box.width[box.varying]
    bias = target.bias.double() + change.offset + (own - weight) @ box.lower
    return {"weight": weight, "bias": bias}


def revealed_change(target: FeatureTarget, revealed: Revealed) -> WeightChange:
    """Return what who takes a file's weights for the model's own has in place of these."""
    lower = target.box.lower
    own = target.bias.double() + target.weight.double() @ lower
    taken = revealed.bias + revealed.weight @ lower
    return WeightChange(in_unit_box(target, revealed.weight) - in_unit_box(target, target.weight), taken - own)


def shown_system(system: System, changes: Mapping[str, WeightChange]) -> System:
    """Return a system as it is for who is shown other weights, and takes them for the model's own.

    Args:
        system: As it is for who knows the weights.
        changes: By party; of a party that is not there the weights are known.
    """
    A, b, error = system.known
    moves, offset, first = torch.zeros_like(A), b.new_zeros(1), 0
    weight, logits = (system.fields.get(name) for name in ("passive_weight", "active_logits"))
    for name, target in system.targets.items():
        span = slice(first, first + len(target.names))
        first = span.stop
        change = changes.get(name)
        if change is None:
            continue
        differences = system.sees == "scores" and len(change.weight) > 1
        moves[:, span] = (torch.diff(change.weight, dim=0) if differences else change.weight).to(A)
        offset = offset + (torch.diff(change.offset) if differences else change.offset).to(b)
        if weight is not None:
            weight = weight.clone()
            weight[..., span] += change.weight.reshape(weight[..., span].shape).to(weight)
        if logits is not None:
            logits = logits + (change.offset if logits.dim() == 2 else change.offset[0]).to(logits)
    fields = {
        name: value
        for name, value in {**system.fields, "passive_weight": weight, "active_logits": logits}.items()
        if value is not None
    }
    return replace(system, known=system.known._replace(A=A + moves, b=b - offset, error=error), fields=fields)
