"""Label attack by completing the trained bottom model with a head fitted to known labels."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import LBFGS, Adam, Optimizer, SparseAdam

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Moment, View

_ROWS_AT_ONCE = 8192
_HEAD_STEPS = 100


class ModelCompletionAttack:
    """Score every record by one's own trained bottom model, with a new head fitted to a few known labels.

    After training, the passive party puts a linear head on its bottom model, ``s_i = w · (h_i − m) / c + b``, where h_i
    is the activation of record i, m the mean over all records and c² the mean variance of a unit. It fits the head
    alone first, then head and bottom together, by the logistic loss on the known records, both classes of equal weight,
    with ``l2 · ‖w‖²`` added. Higher means more likely positive.

    It reads no message: the labels come from what training has taught the bottom model. A defense lowers its score only
    by keeping the bottom model from learning; noise that averages out in training hides nothing here.

    The attacker is assumed to know the ids in ``view.known_positives`` and ``view.known_negatives``; those records are
    not scored (NaN), and none is if it knows records of one class only.

    Source: passive model completion of Fu et al., *Label Inference Attacks Against Vertical Federated Learning*,
    USENIX Security 2022. There the fine-tuning is semi-supervised (MixMatch on images, MixText on text) and rests on
    augmentations that keep labels, which columns of a table do not have in general. This one is supervised, and uses
    the other records for m and c only: it understates what a more patient attacker reads.

    Args:
        steps: Steps in which head and bottom are tuned together, each on all known records; 0 keeps the bottom.
        lr: Learning rate of these steps (Adam), > 0.
        l2: Weight of the head's squared norm, at least 0.

    Raises:
        ArgumentError: If a setting is outside its range.
    """

    name: ClassVar[str] = "model-completion"
    explanation: ClassVar[str] = (
        "After training, the partner puts an output of its own on its half of the model, fits it to the few records "
        "whose labels it knows, and reads the others. It needs no message: it reads what training has taught the "
        "partner's half."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"bottom", "columns", "known_positives", "known_negatives"})
    when: ClassVar[Moment] = "after-training"

    def __init__(self, *, steps: int = 50, lr: float = 3e-4, l2: float = 0.1) -> None:
        if steps < 0 or not lr > 0 or l2 < 0:
            raise ArgumentError(f"expected steps and l2 of at least 0 and lr above 0, got {steps}, {l2} and {lr}")
        self._steps, self._lr, self._l2 = steps, lr, l2

    @torch.no_grad()
    def __call__(self, view: View, /) -> Tensor:
        """Return the completed model's logits.

        Args:
            view: Its ``bottom``, ``columns`` of ``n`` records, ``ids`` ``(n,)``, ``known_positives`` and
                ``known_negatives`` ``(k,)`` are read. The bottom model is changed.

        Returns:
            ``(n,)``, float32 or wider: NaN for the known records, and for all if those are of one class.
        """
        positive, negative = (torch.isin(view.ids, known) for known in (view.known_positives, view.known_negatives))
        known = (positive | negative).nonzero()[:, 0]
        if not (positive.any() and negative.any()):
            return torch.full(view.ids.shape, torch.nan, device=view.ids.device)
        bottom = view.bottom.eval()  # dropout and running statistics as in predictions
        activations = _activations(bottom, view.columns)
        head = _TrainedHead(activations)
        with torch.enable_grad():
            targets = positive[known].to(activations)
            self._fit_head(head, activations[known], targets)
            self._fit_both(head, bottom, _rows(view.columns, known), targets)
        scores: Tensor = head(_activations(bottom, view.columns) if self._steps else activations)
        return scores.index_fill(0, known, torch.nan)

    def _loss(self, head: _TrainedHead, activations: Tensor, targets: Tensor) -> Tensor:
        share = targets.mean()
        weights = torch.where(targets == 1, 0.5 / share, 0.5 / (1.0 - share))
        loss = functional.binary_cross_entropy_with_logits(head(activations), targets, weights)
        return loss + self._l2 * head.weight.square().sum()

    def _fit_head(self, head: _TrainedHead, activations: Tensor, targets: Tensor) -> None:
        optimizer = LBFGS(head.parameters(), max_iter=_HEAD_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self._loss(head, activations, targets)
            loss.backward()
            return loss

        optimizer.step(closure)

    def _fit_both(self, head: _TrainedHead, bottom: nn.Module, columns: Any, targets: Tensor) -> None:
        optimizers: list[Optimizer] = []
        for _ in range(self._steps):
            head.zero_grad()
            bottom.zero_grad()
            self._loss(head, bottom(columns), targets).backward()
            optimizers = optimizers or self._optimizers([*head.parameters(), *bottom.parameters()])
            for optimizer in optimizers:
                optimizer.step()

    def _optimizers(self, parameters: list[nn.Parameter]) -> list[Optimizer]:
        """Return an optimiser for each kind of gradient; only now is it known which are sparse."""
        dense = [weight for weight in parameters if weight.grad is not None and not weight.grad.is_sparse]
        sparse = [weight for weight in parameters if weight.grad is not None and weight.grad.is_sparse]
        found: list[Optimizer] = [Adam(dense, lr=self._lr)]
        return [*found, SparseAdam(sparse, lr=self._lr)] if sparse else found


class _TrainedHead(nn.Module):
    """A linear layer, from zeros, on activations that are centred and scaled as the given ones.

    One scale for all units: each brought to variance one, those that training has left alone would count as much as
    those that it has taught to tell classes apart.
    """

    def __init__(self, activations: Tensor) -> None:
        super().__init__()
        self._mean = activations.mean(dim=0)
        spread = activations.var(dim=0, correction=0).mean().sqrt()
        # Activations that are all alike say nothing.
        self._scale = torch.where(spread > 0, 1.0 / spread, 0.0)
        self.weight = nn.Parameter(torch.zeros_like(self._mean))
        self.bias = nn.Parameter(self._mean.new_zeros(()))

    def forward(self, activations: Tensor) -> Tensor:
        scores: Tensor = ((activations - self._mean) * self._scale) @ self.weight + self.bias
        return scores


def _activations(bottom: nn.Module, columns: Any) -> Tensor:
    count = columns.shape[0] if isinstance(columns, Tensor) else columns.count
    starts = range(0, count, _ROWS_AT_ONCE)
    return torch.cat([bottom(_rows(columns, slice(start, start + _ROWS_AT_ONCE))) for start in starts])


def _rows(columns: Any, index: Tensor | slice) -> Any:
    """Return some records of a tensor, or of each tensor of ``Columns``."""
    return columns[index] if isinstance(columns, Tensor) else type(columns)(*(part[index] for part in columns))
