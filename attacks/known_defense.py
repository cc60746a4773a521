"""Feature attack on defended scores by who knows the defense and its settings, and nothing of what it drew."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splitvfl.attacks.noise_subtraction import subtract_noise
from splitvfl.attacks.rcc2 import rcc2_within
from splitvfl.defenses.class_label import ClassLabel
from splitvfl.defenses.purification import Purification
from splitvfl.defenses.score_noise import ScoreNoise, as_classes, largest
from splitvfl.defenses.top_one import TopOne
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Defense, Equations, hook_name, resolution_of
from splitvfl.leakage.score_equations import score_equations
from splitvfl.leakage.unit_box import Box


def can_be_known(defense: Defense) -> bool:
    """Return whether :func:`estimate_behind` knows how a defense changes scores: not of maps of a user's own."""
    undone = type(defense) in (ScoreNoise, Purification, ClassLabel, TopOne)
    return undone or resolution_of(defense) is not None


def estimate_behind(defense: Defense, scores: Tensor, active_logits: Tensor, passive_weight: Tensor) -> Tensor:
    """Return RCC2 of what defended scores still tell who knows the defense, for every prediction.

    - Schemes 1 to 3 of noise are subtracted, and a temperature is undone: the equations are those without a defense.
    - Rounded scores are intervals, and so is the optimum's noise, whose sign is not known.
    - A class label is k − 1 inequalities: the predicted class has the largest score. The largest score alone bounds
      all others by what it leaves; of two classes it tells all.

    Each is what is known for certain of a truth in the box, so that the error of none exceeds that of ½, for any record
    in the box: up to what the dtype of the scores rounds.

    Args:
        defense: Of scores.
        scores: As published, ``(n,)`` or ``(n, k)``.
        active_logits: The rest of the logits, of the same shape.
        passive_weight: ``(d,)`` or ``(k, d)``, of columns in the unit box.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If it is no defense that can be known, or shapes do not fit.
    """
    if not can_be_known(defense):
        raise ArgumentError(f"nothing is known of what {hook_name(defense)} does to scores")
    if isinstance(defense, ClassLabel | TopOne):
        return _of_largest(isinstance(defense, TopOne), scores, active_logits, passive_weight)
    known = _unit(_told(defense, scores, active_logits, passive_weight))
    return rcc2_within(*known)


def _told(defense: Defense, scores: Tensor, active_logits: Tensor, passive_weight: Tensor) -> Equations:
    rest = active_logits, passive_weight
    if isinstance(defense, Purification):
        shares = torch.softmax(defense.temperature * as_classes(scores).log(), dim=1)
        return score_equations(_like(shares, scores), *rest)
    if not isinstance(defense, ScoreNoise):
        return score_equations(scores, *rest, resolution=resolution_of(defense) or 0.0)
    if defense.scheme == "optimum":
        assert defense.direction is not None, "it was asked for"
        known = score_equations(scores, *rest)
        moved = math.sqrt(defense.power) * torch.diff(defense.direction).abs().to(known.b.device)
        return known._replace(error=known.error + moved)
    plain = subtract_noise(scores, defense.scheme, power=defense.power, direction=defense.direction)
    return score_equations(plain, *rest)


def _like(shares: Tensor, scores: Tensor) -> Tensor:
    return shares if scores.dim() == 2 and scores.shape[1] > 1 else shares[:, 1].reshape(scores.shape)


def _unit(known: Equations) -> Equations:
    """Return equations of columns in the unit box, with what the box allows in place of endless errors."""
    d = known.A.shape[1]
    return Box(torch.zeros(d, device=known.A.device), torch.ones(d, device=known.A.device)).equations(known)


def _of_largest(shown: bool, scores: Tensor, active_logits: Tensor, passive_weight: Tensor) -> Tensor:
    """Return the estimates from which class has the largest score, and, if that is shown, from this score too."""
    shares = as_classes(scores)
    known, weight = active_logits.double(), passive_weight.double()
    if scores.dim() == 1:
        known, weight = (torch.stack([torch.zeros_like(one), one], dim=way) for one, way in ((known, 1), (weight, 0)))
    top = largest(shares).double().argmax(dim=1)
    found = torch.empty(len(shares), weight.shape[1], dtype=torch.float64, device=shares.device)
    for place in top.unique().tolist():
        rows = top == place
        others = [other for other in range(weight.shape[0]) if other != place]
        A = weight[place] - weight[others]
        ahead = _least_lead(shares[rows, place]) if shown else torch.zeros_like(shares[rows, place])
        low = ahead.unsqueeze(1) - (known[rows, place].unsqueeze(1) - known[rows][:, others])
        exact = shown and len(others) == 1
        high = low if exact else torch.maximum(low, A.clamp(min=0.0).sum(dim=1))
        # What the scores' dtype rounds.
        slack = 8 * torch.finfo(scores.dtype).eps * (1.0 + low.abs() + 1.0 / _rest(shares[rows, place]).unsqueeze(1))
        found[rows] = rcc2_within(A, (low + high) / 2.0, (high - low) / 2.0 + slack)
    return found


def _rest(score: Tensor) -> Tensor:
    return (1.0 - score).clamp(min=1e-300)


def _least_lead(score: Tensor) -> Tensor:
    """Return by how much the logit of the largest score exceeds every other one, at least."""
    return score.log() - torch.minimum(score, _rest(score)).log()
