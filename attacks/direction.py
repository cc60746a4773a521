"""Label attack by the direction of gradients."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, classes_of, known_labels_of


class DirectionAttack:
    """Score every record by the cosine of its gradient to gradients of known positives.

    Record i scores the mean of ``cos(g_i, r_j)`` over the known positives ``j ≠ i``, with ``r_j`` the last non-zero
    gradient received of record j. Higher means more likely positive: at a linear top model the cosine is +1 for
    positives and −1 for negatives.

    Of k classes the score of a class is the mean cosine to the references of that class, less the mean over all
    classes. Below a linear top W a row is ``Wᵀ(p − e_y) / n``: what records of one class share is ``−w_y``. Of numbers
    lengths count, in units of the batch: record i scores the mean of ``⟨g_i, r_j⟩ (y_j − ȳ)`` over the known records,
    which is the residue times what residues and labels have in common.

    The attacker is assumed to know the ids in ``view.known_positives``. A record without a reference is not scored
    (NaN): before any known positive was met, and the only known positive itself. A zero gradient scores 0. References
    age as the model moves.

    Also called: cosine leak, cosine attack.

    Source: Li et al., ICLR 2022, arXiv:2102.08504, section 3.1 (cosine leak), with references kept across batches.
    """

    name: ClassVar[str] = "direction"
    place: ClassVar[int] = 2
    explanation: ClassVar[str] = (
        "Compares a record's gradient with that of records known to be positive: gradients of one class point one way."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "known_positives"})
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass", "regression"})

    def __init__(self) -> None:
        self._ids = torch.zeros(0, dtype=torch.int64)
        self._units: Tensor | None = None

    def __call__(self, view: View, /) -> Tensor:
        """Return the mean cosines, after taking this batch's known positives as references.

        Args:
            view: Its ``gradient`` ``(n, width)``, ``ids`` ``(n,)`` and ``known_positives`` ``(k,)`` are read.

        Returns:
            ``(n,)`` in [−1, 1], NaN where there is no reference, in the gradient's dtype or float32 if that is wider.
            Of k classes ``(n, k)``: NaN before a reference of every class was met.

        Raises:
            ArgumentError: If the width differs from that of earlier gradients.
        """
        units = _unit_rows(view.gradient) if classes_of(view) is not None else _scaled_rows(view.gradient)
        ids = view.ids.to(units.device)
        if classes_of(view) != 2:
            return self._of_labels(view, ids, units)
        known = view.known_positives.to(units.device)
        self._remember(ids, units, known)
        assert self._units is not None
        granted = torch.isin(self._ids, known)
        return _mean_cosines(ids, units, self._ids[granted], self._units[granted])

    def _of_labels(self, view: View, ids: Tensor, units: Tensor) -> Tensor:
        """Return the scores of k classes, or of numbers."""
        records, labels = (part.to(units.device) for part in known_labels_of(view))
        self._remember(ids, units, records)
        assert self._units is not None
        order = torch.argsort(records)
        places = torch.searchsorted(records[order], self._ids)
        labels = labels[order][places.clamp(max=max(len(records) - 1, 0))]
        classes = classes_of(view)
        if classes is None:
            return self._weighed(ids, units, labels)
        scores = [
            _mean_cosines(ids, units, self._ids[labels == label], self._units[labels == label])
            for label in range(classes)
        ]
        found = torch.stack(scores, dim=1)
        return found - found.mean(dim=1, keepdim=True)

    def _weighed(self, ids: Tensor, units: Tensor, labels: Tensor) -> Tensor:
        assert self._units is not None
        if not labels.numel():
            return units.new_full(ids.shape, torch.nan)
        weights = (labels - labels.mean()).to(units)
        scores = units @ (self._units * weights[:, None]).mean(dim=0)
        return scores.masked_fill(torch.isin(ids, self._ids), torch.nan)  # known already

    def _remember(self, ids: Tensor, units: Tensor, known: Tensor) -> None:
        if self._units is None:
            self._units = units.new_zeros(0, units.shape[1])
        if self._units.shape[1] != units.shape[1]:
            raise ArgumentError(f"expected gradients of width {self._units.shape[1]}, got {units.shape[1]}")
        fresh = torch.isin(ids, known) & units.any(dim=1)
        met = torch.cat([self._ids.to(ids.device), ids[fresh]])
        rows = torch.cat([self._units.to(units), units[fresh]])
        self._ids, group = torch.unique(met, return_inverse=True)
        # The last of several gradients of one record is the most recent one.
        order = torch.arange(met.numel(), device=met.device)
        last = order.new_zeros(self._ids.numel()).scatter_reduce_(0, group, order, "amax")
        self._units = rows[last]

    def state_dict(self) -> dict[str, Any]:
        """Return the references: ids ``(r,)`` and unit gradients ``(r, width)``, ``None`` before the first batch."""
        return {"ids": self._ids, "units": self._units}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._ids, self._units = state["ids"], state["units"]


def _unit_rows(gradient: Tensor) -> Tensor:
    rows = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    tiny = torch.finfo(rows.dtype).tiny
    # Two steps: the square of a tiny entry would vanish before its row is scaled.
    rows = rows / rows.abs().amax(dim=1, keepdim=True).clamp(min=tiny)
    return rows.div_(torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=tiny))


def _scaled_rows(gradient: Tensor) -> Tensor:
    """Return rows in units of the batch's root mean square norm."""
    rows = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    tiny = torch.finfo(rows.dtype).tiny
    rows = rows / rows.abs().max().clamp(min=tiny)
    scaled: Tensor = rows / torch.linalg.vector_norm(rows, dim=1).square().mean().sqrt().clamp(min=tiny)
    return scaled


def _mean_cosines(ids: Tensor, units: Tensor, reference_ids: Tensor, references: Tensor) -> Tensor:
    total = units @ references.sum(dim=0)
    others = torch.full_like(total, reference_ids.numel())
    own = torch.isin(ids, reference_ids)
    own_reference = references[torch.searchsorted(reference_ids, ids[own])]
    total[own] -= (units[own] * own_reference).sum(dim=1)
    others[own] -= 1
    return torch.where(others > 0, (total / others).clamp(-1.0, 1.0), torch.nan)
