"""Noise on the logits of published scores, by who has the scores, in a direction that the passive party names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from splitvfl.claims import NoPromise
from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.hooks import Crossing, Scope, Secrets

Scheme = Literal[1, 2, 3, "optimum"]


class ScoreNoise:
    """Add noise n to the logits of every published score: the scores c become ``c̃ ∝ c ∘ eⁿ``.

    Schemes 1 to 3 keep which class has the largest score, ties included, and ``‖n‖² ≤ power`` for every record. With
    v the direction, of length one, and i* the class of the largest score:

    - ``1``: ``n_i = √t |v_i|`` at i*, and ``−√t |v_i|`` elsewhere
    - ``2``: ``n = √t · sgn(v_i*) v``, where no entry exceeds that of i*; ``sgn(0)`` counts as 1
    - ``3``: ``√t`` at i*, and 0 elsewhere
    - ``optimum``: ``n = ± √t v``, a coin for every record: theorem 4's noise, which changes the class at will

    Where several classes have the largest score, all of them get the same: the least that one of them would, in scheme
    3 ``√(t / how many)``. A sigmoid is two classes, ``(1 − c, c)``, and its direction two numbers. Scores of 0 stay 0,
    and so does a score of 1.

    v comes from the passive party, whose loss of privacy is at stake: k numbers
    (:func:`~splitvfl.defenses.noise_direction`), and not its weights. Of all directions it is the one in which noise of
    power t raises the error of least squares most, by ``t σ₁² / d`` with the noise of theorem 4.

    Cost: scores are further from calibrated, the more, the larger the power; schemes 1 to 3 leave accuracy as it is.

    With ``direction: sent`` the passive party that ``prediction.direction_by`` names sends v before it sends anything
    of a record.

    In a file: ``defenses: [{name: score-noise, scheme: 3, power: 1.0}]``

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, theorem 4 and section VII; the formulas
    of the schemes are this library's, as those of the paper are not legible.

    Args:
        scheme: 1, 2, 3 or ``optimum``.
        power: t, the largest squared length of n, in squared units of logits; above 0.
        direction: v, one number for each of k classes, of any length above 0; or ``sent``. Scheme 3 has no direction
            and refuses one. Scheme 1 without one takes all classes alike.

    Raises:
        ArgumentError: If there is no such scheme, the power is not positive and finite, or the direction is missing, or
            is none, or scheme 3 is given one.

    Attributes:
        awaits_direction: Whether the direction is to be sent: :meth:`take_direction`.
    """

    name: ClassVar[str] = "score-noise"
    shifts_scores: ClassVar[str] = "noise is added to the logits of the scores, and they are no probabilities"
    crossing: ClassVar[Crossing] = "scores"
    scope: ClassVar[Scope] = "row"
    needs_probabilities: ClassVar[bool] = True

    def __init__(
        self, *, scheme: Scheme, power: float, direction: Sequence[float] | Literal["sent"] | None = None
    ) -> None:
        self.scheme = _checked_scheme(scheme)
        if not (power > 0 and math.isfinite(power)):
            raise ArgumentError(f"power must be positive and finite, got {power}")
        if direction is None and scheme in (2, "optimum"):
            raise ArgumentError(
                f"scheme {scheme} needs a direction: one number for each class, from the passive party "
                "(splitvfl.defenses.noise_direction)"
            )
        if isinstance(direction, str) and direction != "sent":
            raise ArgumentError(f"direction: expected numbers, or: sent, got {direction!r}")
        if direction is not None and scheme == 3:
            raise ArgumentError(
                "direction: scheme 3 adds noise to the predicted class alone and has none; leave it out, or take "
                "scheme 1, 2 or optimum"
            )
        self.power = float(power)
        self.awaits_direction = direction == "sent"
        self.direction: Tensor | None = None
        if direction is not None and not isinstance(direction, str):
            self.direction = unit_direction(torch.tensor(list(direction), dtype=torch.float64))

    def take_direction(self, direction: Tensor) -> None:
        """Take the direction that a passive party has sent, ``(k,)``, in place of any that it sent before.

        Raises:
            ArgumentError: If none was awaited, or this is none.
        """
        if not self.awaits_direction:
            raise ArgumentError("this noise has its direction from its settings, and takes no other")
        self.direction = unit_direction(direction.detach().cpu().double())

    def claims(self) -> tuple[NoPromise]:
        """Return that nothing is promised, and why."""
        return (
            NoPromise(
                "Schemes 1 to 3 draw nothing and keep the predicted class: an attacker who knows the weights, the "
                "scheme and the power takes the noise off again."
            ),
        )

    def __call__(self, scores: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the scores with noise.

        Args:
            scores: ``(n,)`` sigmoid or ``(n, k)`` softmax, in [0, 1].
            secrets: Of it, the generator of ``optimum`` is used.

        Returns:
            A new tensor like ``scores``; rows of k classes sum to one.

        Raises:
            ArgumentError: If there are not as many classes as the direction has numbers.
            PrivacyError: If the direction was to be sent, and was not.
        """
        if self.awaits_direction and self.direction is None:
            raise PrivacyError(
                "the direction of noise was to be sent (direction: sent), and has not been: no score was published; "
                "let all parties agree on prediction.direction_by: NAME, a passive party's"
            )
        shares = as_classes(scores)
        if self.scheme == "optimum":
            assert self.direction is not None, "it was asked for"
            signs = 1.0 - 2.0 * (secrets.uniform(len(shares), 1) < 0.5).double()
            direction = _fitting(self.direction, shares)
            noise = math.sqrt(self.power) * signs.to(shares.device) * direction
            return like_scores(with_noise(shares, noise), scores)
        noise = scheme_noise(shares, self.scheme, power=self.power, direction=self.direction)
        return like_scores(with_noise(shares, noise), scores, top=largest(shares))


def _checked_scheme(scheme: Scheme) -> Scheme:
    if isinstance(scheme, bool) or scheme not in get_args(Scheme):
        raise ArgumentError(f"scheme must be 1, 2, 3 or optimum, got {scheme!r}")
    return scheme


# --- noise


def scheme_noise(shares: Tensor, scheme: Scheme, *, power: float, direction: Tensor | None = None) -> Tensor:
    """Return the noise of schemes 1 to 3 on the logits of scores; see :class:`ScoreNoise`.

    It depends on the scores by their largest alone, and scales with ``√power``.

    Args:
        shares: Scores of k classes, ``(n, k)``.
        scheme: 1, 2 or 3.
        power: t, at least 0.
        direction: v of length one, ``(k,)``; ``None``: all classes alike, for schemes 1 and 3.

    Returns:
        ``(n, k)``, float64.

    Raises:
        ArgumentError: If there is no such scheme, or the direction is missing or of another length.
    """
    top, k = largest(shares), shares.shape[1]
    if scheme == 3:
        count = top.sum(dim=1, keepdim=True)
        return math.sqrt(power) * top.double() / count.double().sqrt()
    if scheme not in (1, 2) or (scheme == 2 and direction is None):
        raise ArgumentError(f"expected scheme 1, 2 or 3, and a direction for 2, got {scheme!r} and {direction}")
    alike = torch.full((k,), 1.0 / math.sqrt(k), dtype=torch.float64, device=shares.device)
    v = alike if direction is None else _fitting(direction, shares)
    sizes = v.abs().expand_as(top)
    least = sizes.masked_fill(~top, math.inf).amin(dim=1, keepdim=True)
    if scheme == 1:
        return math.sqrt(power) * torch.where(top, least, -sizes)
    # Of several largest classes the first one gives the sign.
    first = top.double().argmax(dim=1)
    signs = torch.where(v[first] < 0, -1.0, 1.0)[:, None]
    return math.sqrt(power) * torch.where(top, least, torch.minimum(signs * v, least))


def unit_direction(direction: Tensor) -> Tensor:
    """Return a direction of length one.

    Raises:
        ArgumentError: If it has fewer than two numbers, is not finite, or is 0.
    """
    length: Tensor = torch.linalg.vector_norm(direction)
    if direction.dim() != 1 or len(direction) < 2 or not (torch.isfinite(length) and length > 0):
        raise ArgumentError(
            "direction: expected a finite number for each of k classes (two where a model has one logit), not all 0, "
            f"got {direction.tolist()}"
        )
    return direction / length


def _fitting(direction: Tensor, shares: Tensor) -> Tensor:
    if direction.shape != (shares.shape[1],):
        raise ArgumentError(
            f"direction: expected a number for each of {shares.shape[1]} classes, got {len(direction)} numbers"
        )
    return direction.to(shares.device)


# --- scores of classes


def as_classes(scores: Tensor) -> Tensor:
    """Return scores as those of k classes, ``(n, k)``, float64: a sigmoid c is ``(1 − c, c)``.

    Raises:
        ArgumentError: If they are no scores: of another shape, not in [0, 1], NaN, or all 0.
    """
    values = scores.detach().double()
    if values.dim() == 1 or (values.dim() == 2 and values.shape[1] == 1):
        flat = values.reshape(-1)
        values = torch.stack([1.0 - flat, flat], dim=1)
    if values.dim() != 2 or not ((values >= 0) & (values <= 1)).all() or not (values.sum(dim=1) > 0).all():
        raise ArgumentError(f"expected scores in [0, 1], (n,) or (n, k), got {tuple(scores.shape)} with others in it")
    return values


def largest(shares: Tensor) -> Tensor:
    """Return which classes have the largest score of their record, ``(n, k)``, bool."""
    return shares == shares.amax(dim=1, keepdim=True)


def with_noise(shares: Tensor, noise: Tensor) -> Tensor:
    """Return ``c̃ ∝ c ∘ eⁿ``, ``(n, k)``, float64; scores of 0 stay 0."""
    return torch.softmax(shares.log() + noise, dim=1)


def like_scores(shares: Tensor, scores: Tensor, *, top: Tensor | None = None) -> Tensor:
    """Return scores of k classes in the form and the dtype that scores came in.

    Args:
        shares: ``(n, k)``, float64.
        scores: What they stand for, ``(n,)`` or ``(n, k)``.
        top: Which classes are to be the largest, ``(n, k)``: what rounding would let come level with them is rounded
            down. ``None``: nothing is looked at.
    """
    if scores.dim() == 1 or scores.shape[1] == 1:
        return _sigmoids(shares, scores, top)
    rounded = shares.to(scores.dtype)
    if top is None:
        return rounded
    peak = torch.where(top, rounded, 0.0).amax(dim=1, keepdim=True)
    below = torch.nextafter(peak, torch.zeros_like(peak))
    return torch.where(top, peak, torch.minimum(rounded, below))


def _sigmoids(shares: Tensor, scores: Tensor, top: Tensor | None) -> Tensor:
    """Return the second of two classes, on the same side of ½ as the largest of them."""
    rounded = shares[:, 1].to(scores.dtype)
    if top is not None:
        half = torch.full_like(rounded, 0.5)
        above, beneath = (torch.nextafter(half, torch.full_like(half, end)) for end in (1.0, 0.0))
        rounded = torch.where(
            top.all(dim=1),
            half,
            torch.where(top[:, 1], torch.maximum(rounded, above), torch.minimum(rounded, beneath)),
        )
    return rounded.reshape(scores.shape)
