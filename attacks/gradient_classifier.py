"""Label attack by a small classifier of gradients, trained on records with known labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.residual import ResidualAttack
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, classes_of, known_labels_of

# Share by which the known rows must grow before the discriminant is computed anew: its cost vanishes over a run.
_GROWTH = 1.1
# Share of the rows' squares that is rounding: a ridge below it would read roundings where the known rows do not vary.
_ROUNDING = 1e-9


class GradientClassifierAttack:
    """Score every record by a linear discriminant that was fitted on the gradients of known records.

    Row ``g_i`` of a received batch becomes the features ``x_i = (g_i / rms, z(‖g_i‖), z(r_i))``: direction, length, and
    what the batch's main direction does not explain. ``rms`` is the root of the rows' mean squared norm, ``r_i`` the
    score of :class:`ResidualAttack`, and z standardises over the batch. The features of known records are collected
    over all steps, older ones fading, and record i scores ``x_i · (S + ridge · tr(S)/d · I)⁻¹ (m₁ − m₀)``, with m₁ and
    m₀ the mean features of the known positives and negatives, S their pooled covariance within classes and d its size.
    Higher means more likely positive.

    So it adapts to what a defense leaves: collinear gradients (the discriminant is their line), noise that marks a
    class (the last two features), noise along one direction (S is large there). It is fitted again when the rows that
    it has learned from have grown by a tenth, which takes a small share of a step.

    Of k classes record i has for class c the score ``(x_i − m_c/2) · (S + …)⁻¹ m_c``: the same discriminant, of normal
    classes with one covariance and equal shares.

    The attacker is assumed to know the ids in ``view.known_positives`` and ``view.known_negatives``. Those records are
    not scored (NaN), and none is before a record of each class was met. With few known records it estimates the best
    linear attack poorly; the auditor's attack, which knows all labels, shows how poorly.

    Source: an attacker with a few known labels as in Fu et al., *Label Inference Attacks Against Vertical Federated
    Learning*, USENIX Security 2022; Fisher's discriminant with a ridge as in Friedman, *Regularized Discriminant
    Analysis*, JASA 1989.

    Args:
        ridge: Share of the mean variance that is added to every direction, > 0.
        memory: Number of known rows after which an older row's weight has fallen to 1/e, at least 2.

    Raises:
        ArgumentError: If a setting is outside its range.
    """

    name: ClassVar[str] = "gradient-classifier"
    explanation: ClassVar[str] = (
        "A small classifier, trained on the gradients of a few records whose labels it knows, which come again in "
        "every epoch: it learns what a defense leaves."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "known_positives", "known_negatives"})
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass"})
    not_for: ClassVar[Mapping[str, str]] = {"regression": "it tells classes apart; direction reads numbers"}

    def __init__(self, *, ridge: float = 1.0, memory: int = 1000) -> None:
        if not 0.0 < ridge < math.inf:
            raise ArgumentError(f"ridge must be above 0 and finite, got {ridge}")
        if memory < 2:
            raise ArgumentError(f"memory must be at least 2, got {memory}")
        self._ridge = ridge
        self._memory = memory
        self._counts = torch.zeros(2, dtype=torch.float64)
        self._sums = torch.zeros(2, 0, dtype=torch.float64)
        self._squares = torch.zeros(2, 0, 0, dtype=torch.float64)
        self._met = 0
        self._fit_at = 0
        self._discriminant: Tensor | None = None

    def __call__(self, view: View, /) -> Tensor:
        """Return the scores, after learning from this batch's known records.

        Args:
            view: Its ``gradient`` ``(n, width)``, ``ids`` ``(n,)``, ``known_positives`` and ``known_negatives``
                ``(k,)`` are read.

        Returns:
            ``(n,)``, or ``(n, k)`` of k classes, in the gradient's dtype, or float32 if that is wider. NaN for the
            known records, and for all before a record of each class was met.

        Raises:
            ArgumentError: If the width differs from that of earlier gradients.
        """
        batch = _Features(view)
        ids = view.ids.to(batch.rows.device)
        if classes_of(view) != 2:
            return self._of_classes(batch, ids, view)
        positive, negative = (
            torch.isin(ids, known.to(ids.device)) for known in (view.known_positives, view.known_negatives)
        )
        self._learn([batch.of(negative), batch.of(positive)])
        if self._discriminant is None:
            return batch.rows.new_full(ids.shape, torch.nan)
        return batch.times(self._discriminant).masked_fill_(positive | negative, torch.nan)

    def _of_classes(self, batch: _Features, ids: Tensor, view: View) -> Tensor:
        """Return the scores of k classes."""
        classes = classes_of(view)
        assert classes is not None, "numbers are refused"
        known, labels = (part.to(ids.device) for part in known_labels_of(view))
        of_each = [torch.isin(ids, known[labels == label]) for label in range(classes)]
        self._learn([batch.of(members) for members in of_each])
        if self._discriminant is None:
            return batch.rows.new_full((len(ids), classes), torch.nan)
        # The last row is what is taken off again: half of a class's own score at its mean.
        scores = torch.stack([batch.times(column) for column in self._discriminant[:-1].T], dim=1)
        scores = scores - self._discriminant[-1].to(scores)
        return scores.masked_fill_(torch.stack(of_each).any(dim=0)[:, None], torch.nan)

    def _learn(self, of_each: Sequence[Tensor]) -> None:
        classes, width = len(of_each), of_each[0].shape[1]
        if self._met == 0:
            self._counts = self._counts.new_zeros(classes)
            self._sums = self._sums.new_zeros(classes, width)
            self._squares = self._squares.new_zeros(classes, width, width)
        if self._sums.shape[1] != width:
            raise ArgumentError(f"expected gradients of width {self._sums.shape[1] - 2}, got {width - 2}")
        for label, rows in enumerate(of_each):
            self._add(label, rows)
        if self._counts.min() > 0 and self._met >= _GROWTH * self._fit_at:
            self._fit()

    def _add(self, label: int, rows: Tensor) -> None:
        # Each class fades by its own rows: of a rare one, nothing would be left beside a common one.
        kept = (1.0 - 1.0 / self._memory) ** rows.shape[0]
        self._met += rows.shape[0]
        self._counts[label] = kept * self._counts[label] + rows.shape[0]
        self._sums[label] = kept * self._sums[label] + rows.sum(dim=0)
        self._squares[label] = kept * self._squares[label] + rows.T @ rows

    def _fit(self) -> None:
        means = self._sums / self._counts[:, None]
        total = self._squares.sum(dim=0) / self._counts.sum()
        within = total - torch.einsum("c,ci,cj->ij", self._counts / self._counts.sum(), means, means)
        size = total.shape[0]
        ridge = self._ridge * within.trace() / size + _ROUNDING * total.trace()
        if ridge > 0:  # else every known row was zero
            within.diagonal().add_(ridge)
            self._discriminant = _discriminant(within, means)
        self._fit_at = self._met

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of each class, counts, sums and squares ``(k, …)``, and the discriminant."""
        return {
            "counts": self._counts,
            "sums": self._sums,
            "squares": self._squares,
            "met": self._met,
            "fit_at": self._fit_at,
            "discriminant": self._discriminant,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._counts, self._sums, self._squares = (state[name].clone() for name in ("counts", "sums", "squares"))
        self._met, self._fit_at, self._discriminant = state["met"], state["fit_at"], state["discriminant"]


def _discriminant(within: Tensor, means: Tensor) -> Tensor:
    """Return the direction ``(d,)`` of two classes; of k ``(d + 1, k)``: their directions, and what is taken off."""
    if len(means) == 2:
        direction: Tensor = torch.linalg.solve(within, means[1] - means[0])
        return direction
    directions = torch.linalg.solve(within, means.T)
    return torch.cat([directions, 0.5 * (means.T * directions).sum(dim=0, keepdim=True)])


class _Features:
    """Direction, length and signed distance from the batch's main direction: ``(n, width + 2)``, and never all at once.

    Attributes:
        rows: The gradient in float32 or wider, in units of its largest entry.
    """

    def __init__(self, view: View) -> None:
        rows = view.gradient.to(torch.promote_types(view.gradient.dtype, torch.float32))
        # In units of the peak: sums of products of large entries would overflow.
        self.rows = rows / rows.abs().max().clamp(min=torch.finfo(rows.dtype).tiny)
        # In float64: the square of a tiny length would vanish.
        lengths = torch.linalg.vector_norm(self.rows, dim=1, dtype=torch.float64)
        self._rms = lengths.square().mean().sqrt().clamp(min=torch.finfo(lengths.dtype).tiny)
        self._numbers = torch.stack([_standardised(lengths), _standardised(ResidualAttack()(view))], dim=1)

    def of(self, chosen: Tensor) -> Tensor:
        """Return the features of some rows, ``(k, width + 2)``, float64, on the CPU."""
        return torch.cat([self.rows[chosen].double() / self._rms, self._numbers[chosen]], dim=1).cpu()

    def times(self, direction: Tensor) -> Tensor:
        """Return the features of all rows times a direction ``(width + 2,)``."""
        direction = direction.to(self.rows.device)
        along = (self.rows @ direction[:-2].to(self.rows.dtype)) / self._rms
        scores: Tensor = along + self._numbers @ direction[-2:]
        return scores.to(self.rows.dtype)


def _standardised(values: Tensor) -> Tensor:
    centred = values - values.mean()
    scaled: Tensor = centred / centred.square().mean().sqrt().clamp(min=torch.finfo(values.dtype).tiny)
    return scaled
