"""Linear equations in the passive parties' columns, from what a prediction shows: scores, or activations."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, shown
from splitvfl.hooks import Equations

# Singular values below this share of the largest are treated as zero.
RANK_TOLERANCE = 1e-10


def equations(scores: Tensor, active_logits: Tensor, passive_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(A, b)`` with ``A x = b`` for the passive parties' features x of every prediction.

    For ``scores = softmax(active_logits + W x)``: ``A = J W`` and ``b = J (ln scores − active_logits)``, where J takes
    differences of neighbouring classes. For one sigmoid: ``A = wᵀ`` and ``b = ln c − ln(1 − c) − active_logits``, which
    is what two softmax columns ``(1 − c, c)`` give. Only ratios of a row's scores are read, so rows need not sum to
    one; scores that tie say that two logits are equal. Several passive parties are one, with their weights side by
    side.

    Scores of exactly 0 (or a sigmoid of 1) have no logit; a ``RuntimeWarning`` counts them. Where two or more scores
    of a softmax row stay positive, the zeros' equations are dropped: as all rows share A, they are replaced by what
    the least-squares solution of the other equations predicts, which leaves that solution as it is. Elsewhere zeros
    are raised to half the rounding unit (eps of the scores' dtype, or the smallest positive score if that is less),
    which bounds the logit and does not measure it.

    Logits lose digits as scores saturate: in float64 they are off by about 1e-3 at 30, in float32 useless near 17;
    :func:`score_equations` says by how much.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the equation solving attack.

    Args:
        scores: Published predictions, ``(n, k)`` softmax or ``(n,)`` sigmoid, in [0, 1].
        active_logits: The active party's part of the logits, intercept included, of the same shape.
        passive_weight: The passive party's weights, ``(k, d)`` or ``(d,)``.

    Returns:
        ``A`` of shape ``(m, d)`` and ``b`` of shape ``(n, m)``, float64; m = k − 1, or 1.

    Raises:
        ArgumentError: If shapes do not fit, scores lie outside [0, 1], or an entry is not finite.
    """
    shares, known, weight = _softmax_form(scores, active_logits, passive_weight)
    unit = _unit_of(scores)
    if bool((shares == 0).any()):
        warnings.warn(count_scores(scores).saturation, RuntimeWarning, stacklevel=2)
    return torch.diff(weight, dim=0), _right_sides(shares, known, weight, unit)


def score_equations(
    scores: Tensor,
    active_logits: Tensor,
    passive_weight: Tensor,
    *,
    resolution: float = 0.0,
    logit_error: Tensor | float = 0.0,
) -> Equations:
    """Return :func:`equations`, with how far each right side may be off because scores have few digits.

    With ``c*`` the scores of the true features and ``A x = b*``: ``|b − b*| <= error``, provided that a score was
    computed as :func:`torch.softmax` or :func:`torch.sigmoid` does in the scores' dtype, off by at most
    ``(½|ln c| + k + 4) · eps`` of it, from logits that are off by at most ``logit_error``, and then rounded to the
    nearest multiple of ``resolution``, if that is not 0. The error is infinite where a score may be 0: it has a bound
    on one side only; :meth:`~splitvfl.leakage.unit_box.Box.equations` puts what the box allows in its place. Noise of
    a defense is in none of this. No ``RuntimeWarning`` is raised: :func:`count_scores` counts.

    Args:
        scores: Published predictions, ``(n, k)`` softmax or ``(n,)`` sigmoid, in [0, 1].
        active_logits: The active party's part of the logits, intercept included, of the same shape.
        passive_weight: The passive parties' weights, ``(k, d)`` or ``(d,)``.
        resolution: Published scores are multiples of this: ``1e-3`` of three decimals. Zeros that have no other bound
            are raised to a quarter of it, the middle of what rounds to zero.
        logit_error: How far the logits may be off by which scores were computed, >= 0; ``(n, k)``, or what extends to
            it: ``(n,)`` of a sigmoid. :func:`product_error` bounds it.

    Raises:
        ArgumentError: As :func:`equations`; or if ``resolution`` lies outside [0, 1], or ``logit_error`` is negative or
            NaN.
    """
    shares, known, weight = _softmax_form(scores, active_logits, passive_weight)
    if not 0.0 <= resolution <= 1.0:
        raise ArgumentError(f"resolution must lie in [0, 1], got {shown(resolution)}")
    right = _right_sides(shares, known, weight, resolution / 2 if resolution else _unit_of(scores))
    low, high = _log_odds(scores, resolution)
    slack = _slack(logit_error, scores)
    own = torch.diff(known, dim=1)
    error = torch.maximum(high - own - right, right - low + own) + slack
    # What float64 itself rounds: a few units of the logits' size.
    size = 1.0 + right.abs() + known[:, 1:].abs() + known[:, :-1].abs()
    return Equations(torch.diff(weight, dim=0), right, error + 8 * torch.finfo(torch.float64).eps * size)


def activation_equations(
    activation: Tensor,
    passive_weight: Tensor,
    passive_bias: Tensor | None = None,
    *,
    error: Tensor | float = 0.0,
) -> Equations:
    """Return the equations of a linear model's activation itself, ``W x = h − bias``: k of them, one more than scores.

    Whoever computes scores from the passive parties' activations has these, whatever becomes of the scores. Of a sum of
    several parties' activations the weights stand side by side, and the bias is the sum.

    Args:
        activation: ``(n, k)`` or ``(n,)``, as received.
        passive_weight: ``(k, d)`` or ``(d,)``.
        passive_bias: ``(k,)``, or a number of one dimension ``(1,)``; ``None``: there is none.
        error: How far an activation may be off, >= 0; ``(n, k)`` or what extends to it. :func:`product_error` bounds
            it where nobody added noise.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, or ``error`` is negative or NaN.
    """
    flat = activation.dim() == 1
    right = activation.unsqueeze(1) if flat else activation
    weight = passive_weight.unsqueeze(0) if passive_weight.dim() == 1 else passive_weight
    bias = weight.new_zeros(weight.shape[0]) if passive_bias is None else passive_bias
    fits = right.dim() == 2 and weight.dim() == 2 and right.shape[1:] == weight.shape[:1] == bias.shape
    if not fits or 0 in weight.shape:
        raise ArgumentError(
            "expected an activation (n, k), weights (k, d) and a bias (k,), got "
            f"{tuple(activation.shape)}, {tuple(passive_weight.shape)} and {tuple(bias.shape)}"
        )
    for name, tensor in (("activation", right), ("passive_weight", weight), ("passive_bias", bias)):
        _check_numbers(name, tensor)
    return Equations(weight.double(), right.double() - bias.double(), _extended(error, right))


def score_part(known: Equations) -> Equations:
    """Return what scores alone tell of the equations of the logits' parts: ``J A x = J b``, one equation fewer.

    J takes differences of neighbouring classes, as :func:`equations` does: what all logits have in common cancels in a
    softmax. Of one logit a score tells what the logit does.

    Args:
        known: The equations of k logits, ``A = W``: :func:`activation_equations`, or a party's own ``W x``.
    """
    if len(known.A) < 2:
        return known
    error = known.error[:, 1:] + known.error[:, :-1]
    return Equations(torch.diff(known.A, dim=0), torch.diff(known.b, dim=1), error)


def stacked(systems: Sequence[Equations]) -> Equations:
    """Return several systems in the same columns of the same records as one: of a model that was trained again, say.

    Raises:
        ArgumentError: If there is none, or they are of other columns or records.
    """
    if len({(one.A.shape[1], one.b.shape[0]) for one in systems}) != 1:
        found = ", ".join(f"{one.A.shape[1]} columns of {one.b.shape[0]} records" for one in systems)
        raise ArgumentError(f"expected equations in one set of columns, of the same records, got {found or 'none'}")
    return Equations(
        torch.cat([one.A for one in systems]),
        torch.cat([one.b for one in systems], dim=1),
        torch.cat([one.error for one in systems], dim=1),
    )


def product_error(
    weight: Tensor, largest: Tensor, bias: Tensor | None = None, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return a bound on how far ``W x + bias``, computed in a floating-point type, lies from the exact one.

    ``(d + 2) eps (|W| largest + |bias|)``, in any order of summation; products in TF32 need the dtype's eps that they
    have, 2⁻¹⁰.

    Source: Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1.

    Args:
        weight: ``(k, d)`` or ``(d,)``.
        largest: Largest absolute value of each column, ``(d,)``, or of each record, ``(n, d)``.
        bias: ``(k,)``; ``None``: there is none.
        dtype: The one in which it was computed, and sent.

    Returns:
        ``(k,)``, or ``(n, k)``; float64.
    """
    rows = weight.double().abs() if weight.dim() == 2 else weight.double().abs().unsqueeze(0)
    size = largest.double() @ rows.T
    if bias is not None:
        size = size + bias.double().abs()
    return (rows.shape[1] + 2) * torch.finfo(dtype).eps * size


class ScoreCounts(NamedTuple):
    """How many predictions hold scores that tell less than others, or that are no probabilities of one distribution.

    Attributes:
        predictions: All.
        saturated: Those with a score of exactly 0 (or a sigmoid of 1): it has no logit.
        bounded: Those of them without two positive scores, so that no logit is known.
        tied: Those whose largest score is not one class's alone.
        unnormalised: Those whose scores do not sum to one, up to a hundredth; only their ratios count.
    """

    predictions: int
    saturated: int
    bounded: int
    tied: int
    unnormalised: int

    @property
    def saturation(self) -> str:
        """How many predictions are saturated, in words."""
        what = "hold scores of exactly 0 or 1, whose logits are bounded or left out, not known"
        return f"{self.saturated} of {self.predictions} predictions {what}"

    @property
    def note(self) -> str:
        """What a report says of them; empty where there is nothing to say."""
        tied = f"{self.tied} of {self.predictions} predictions have no largest score alone"
        said = [(self.saturated, self.saturation), (self.tied, tied), (self.unnormalised, self.unnormalised_note)]
        return "; ".join(text for count, text in said if count)

    @property
    def unnormalised_note(self) -> str:
        """How many predictions do not sum to one, in words."""
        return f"{self.unnormalised} of {self.predictions} predictions do not sum to one: only ratios are read"


def count_scores(scores: Tensor) -> ScoreCounts:
    """Return how many predictions are saturated, tied or do not sum to one.

    Args:
        scores: ``(n, k)`` softmax or ``(n,)`` sigmoid.
    """
    shares = scores.double() if scores.dim() == 2 else torch.stack([1.0 - scores.double(), scores.double()], dim=1)
    positive = (shares > 0).sum(dim=1)
    largest = shares.max(dim=1, keepdim=True).values if len(shares) else shares[:, :1]
    saturated = positive < shares.shape[1]
    return ScoreCounts(
        len(shares),
        int(saturated.sum()),
        int((saturated & (positive < 2)).sum()),
        int(((shares == largest).sum(dim=1) > 1).sum()),
        int(((shares.sum(dim=1) - 1.0).abs() > 0.01).sum()),
    )


def _unit_of(scores: Tensor) -> float:
    return torch.finfo(scores.dtype).eps


def _right_sides(shares: Tensor, known: Tensor, weight: Tensor, unit: float) -> Tensor:
    logits = _completed(_raised_where_few(shares, unit).log() - known, weight)
    return torch.diff(logits, dim=1)


def _softmax_form(scores: Tensor, active_logits: Tensor, passive_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores ``(n, k)``, active logits ``(n, k)`` and weights ``(k, d)``, checked, in float64.

    A sigmoid becomes the softmax of two classes, the first of which has logit and weights zero.
    """
    _check(scores, active_logits, passive_weight)
    shares, known, weight = scores.double(), active_logits.double(), passive_weight.double()
    if shares.dim() == 2:
        return shares, known, weight
    return (
        torch.stack([1.0 - shares, shares], dim=1),
        torch.stack([torch.zeros_like(known), known], dim=1),
        torch.stack([torch.zeros_like(weight), weight]),
    )


def _check(scores: Tensor, active_logits: Tensor, passive_weight: Tensor) -> None:
    classes = scores.shape[1:]
    shapes = [tuple(tensor.shape) for tensor in (scores, active_logits, passive_weight)]
    fits = scores.dim() in (1, 2) and scores.shape == active_logits.shape and passive_weight.shape[:-1] == classes
    if not fits or passive_weight.dim() != scores.dim() or classes == (1,) or 0 in passive_weight.shape:
        raise ArgumentError(
            "expected scores and active logits (n,) with weights (d,), or (n, k) with (k, d) and k > 1, "
            f"got {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )
    for name, tensor in (("scores", scores), ("active_logits", active_logits), ("passive_weight", passive_weight)):
        _check_numbers(name, tensor)
    if scores.numel() and (scores.min() < 0 or scores.max() > 1):
        raise ArgumentError(f"scores must lie in [0, 1], got {scores.min().item()} to {scores.max().item()}")


def _check_numbers(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise ArgumentError(f"expected {name} of a floating-point dtype, got {tensor.dtype}")
    if not torch.isfinite(tensor).all():
        raise ArgumentError(f"{name} holds NaN or infinite values")


def _raised_where_few(shares: Tensor, unit: float) -> Tensor:
    """Return scores with zeros raised to half the unit in rows with fewer than two positive ones."""
    positive = shares > 0
    few = positive.sum(dim=1, keepdim=True) < 2
    least = torch.where(positive, shares, unit).amin().clamp(max=unit) if shares.numel() else unit
    return torch.where(few & ~positive, least / 2, shares)


def _completed(logits: Tensor, weight: Tensor) -> Tensor:
    """Return logits with every −∞ replaced by what its row's other logits predict by least squares."""
    missing = logits.isinf()
    complete = logits.clone()
    for pattern in torch.unique(missing[missing.any(dim=1)], dim=0):
        rows = (missing == pattern).all(dim=1)
        kept = logits[rows][:, ~pattern]
        inverse: Tensor = torch.linalg.pinv(torch.diff(weight[~pattern], dim=0), rtol=RANK_TOLERANCE)
        features = torch.diff(kept, dim=1) @ inverse.T
        offset = (kept - features @ weight[~pattern].T).mean(dim=1, keepdim=True)
        complete[rows] = torch.where(pattern, features @ weight.T + offset, complete[rows])
    return complete


def _log_odds(scores: Tensor, resolution: float) -> tuple[Tensor, Tensor]:
    """Return the ends of what the logarithm of the ratio of neighbouring true scores may be, ``(n, k − 1)`` each."""
    low, high = _true_range(scores, resolution)
    if scores.dim() == 1:
        # The two scores of a sigmoid are off together: its own range says all.
        return torch.logit(low).unsqueeze(1), torch.logit(high).unsqueeze(1)
    low, high = low.log(), high.log()
    return low[:, 1:] - high[:, :-1], high[:, 1:] - low[:, :-1]


def _true_range(scores: Tensor, resolution: float) -> tuple[Tensor, Tensor]:
    """Return in which range each true score lies, within [0, 1]."""
    shown_scores = scores.double()
    low, high = (shown_scores - resolution / 2).clamp(min=0.0), (shown_scores + resolution / 2).clamp(max=1.0)
    limits = torch.finfo(scores.dtype)
    classes = scores.shape[1] if scores.dim() == 2 else 2
    # The exponential's argument is rounded by ½ eps of its size, which is at most |ln c| + ln k below the largest.
    units = (high.clamp(min=limits.tiny).log().abs() / 2 + classes + 4) * limits.eps
    low_units = (low.clamp(min=limits.tiny).log().abs() / 2 + classes + 4) * limits.eps
    # A score of less than the smallest normal number may have become 0.
    low = low / (1.0 + low_units) - limits.tiny
    return low.clamp(min=0.0), (high / (1.0 - units).clamp(min=limits.tiny) + limits.tiny).clamp(max=1.0)


def _slack(logit_error: Tensor | float, scores: Tensor) -> Tensor:
    """Return by how much differences of neighbouring logits may be off, ``(n, m)``."""
    each = _extended(logit_error, scores if scores.dim() == 2 else scores.unsqueeze(1))
    return each if scores.dim() == 1 else each[:, 1:] + each[:, :-1]


def _extended(error: Tensor | float, like: Tensor) -> Tensor:
    """Return an error as a matrix like another, float64."""
    found = torch.as_tensor(error, dtype=torch.float64, device=like.device)
    if found.dim() == 1 and like.shape[1] == 1 and found.shape[0] == like.shape[0]:
        found = found.unsqueeze(1)
    if not bool((found >= 0).all()):
        raise ArgumentError("expected an error of at least 0 everywhere, got a negative one or NaN")
    try:
        return found.expand(like.shape).clone()
    except RuntimeError as problem:
        raise ArgumentError(
            f"expected an error that extends to {tuple(like.shape)}, got {tuple(found.shape)}"
        ) from problem
