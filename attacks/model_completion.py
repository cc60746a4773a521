"""Label attack by completing the trained bottom model with a head fitted to known labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import LBFGS, Adam, Optimizer, SparseAdam

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Moment, View, classes_of, known_labels_of

_ROWS_AT_ONCE = 8192
_HEAD_STEPS = 100

_Loss = Callable[[Tensor, Tensor], Tensor]


class ModelCompletionAttack:
    """Score every record by one's own trained bottom model, with a new head fitted to a few known labels.

    After training, the passive party puts a linear head on its bottom model, ``s_i = w · (h_i − m) / c + b``, where h_i
    is the activation of record i, m the mean over all records and c² the mean variance of a unit. It fits the head
    alone first, then head and bottom together, by the logistic loss on the known records, both classes of equal weight,
    with ``l2 · ‖w‖²`` added. Higher means more likely positive.

    Of k classes the head has k outputs and softmax cross entropy, every class of equal weight; of numbers one output
    and squared error, on labels of mean zero and variance one.

    It reads no message: the labels come from what training has taught the bottom model. A defense lowers its score only
    by keeping the bottom model from learning; noise that averages out in training hides nothing here.

    The attacker is assumed to know the ids in ``view.known_positives`` and ``view.known_negatives``; those records are
    not scored (NaN), and none is if it knows records of one class only.

    Also called: passive model completion.

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
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass", "regression"})

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
            ``(n,)``, or ``(n, k)`` of k classes, float32 or wider: NaN for the known records, and for all if those are
            of one class, or of less than k.
        """
        classes = classes_of(view)
        known, targets = _known(view)
        width = classes if classes is not None and classes > 2 else None
        if len(targets.unique()) < (classes or 2):
            shape = view.ids.shape if width is None else (*view.ids.shape, width)
            return torch.full(shape, torch.nan, device=view.ids.device)
        loss = _LOSSES.get(classes, _of_classes)
        bottom = view.bottom.eval()  # dropout and running statistics as in predictions
        activations = _activations(bottom, view.columns)
        head = _TrainedHead(activations, width)
        targets = targets if width else targets.to(activations)
        with torch.enable_grad():
            self._fit_head(head, activations[known], targets, loss)
            self._fit_both(head, bottom, _rows(view.columns, known), targets, loss)
        scores: Tensor = head(_activations(bottom, view.columns) if self._steps else activations)
        return scores.index_fill(0, known, torch.nan)

    def _loss(self, head: _TrainedHead, activations: Tensor, targets: Tensor, loss: _Loss) -> Tensor:
        return loss(head(activations), targets) + self._l2 * head.weight.square().sum()

    def _fit_head(self, head: _TrainedHead, activations: Tensor, targets: Tensor, loss_of: _Loss) -> None:
        optimizer = LBFGS(head.parameters(), max_iter=_HEAD_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self._loss(head, activations, targets, loss_of)
            loss.backward()
            return loss

        optimizer.step(closure)

    def _fit_both(self, head: _TrainedHead, bottom: nn.Module, columns: Any, targets: Tensor, loss: _Loss) -> None:
        optimizers: list[Optimizer] = []
        for _ in range(self._steps):
            head.zero_grad()
            bottom.zero_grad()
            self._loss(head, bottom(columns), targets, loss).backward()
            optimizers = optimizers or self._optimizers([*head.parameters(), *bottom.parameters()])
            for optimizer in optimizers:
                optimizer.step()

    def _optimizers(self, parameters: list[nn.Parameter]) -> list[Optimizer]:
        """Return an optimiser for each kind of gradient; only now is it known which are sparse."""
        dense = [weight for weight in parameters if weight.grad is not None and not weight.grad.is_sparse]
        sparse = [weight for weight in parameters if weight.grad is not None and weight.grad.is_sparse]
        found: list[Optimizer] = [Adam(dense, lr=self._lr)]
        return [*found, SparseAdam(sparse, lr=self._lr)] if sparse else found


def _known(view: View) -> tuple[Tensor, Tensor]:
    """Return where the known records are in a view, and what is learned of them: labels, or standardised numbers."""
    records, labels = known_labels_of(view)
    order = torch.argsort(records)
    places = torch.isin(view.ids, records).nonzero()[:, 0]
    found = labels[order][torch.searchsorted(records[order], view.ids[places])]
    if classes_of(view) is None:
        found = (found - found.mean()) / found.std(correction=0).clamp(min=torch.finfo(found.dtype).tiny)
    return places, found


def _of_two(outputs: Tensor, targets: Tensor) -> Tensor:
    share = targets.mean()
    weights = torch.where(targets == 1, 0.5 / share, 0.5 / (1.0 - share))
    return functional.binary_cross_entropy_with_logits(outputs, targets, weights)


def _of_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    counts = torch.bincount(targets, minlength=outputs.shape[1])
    return functional.cross_entropy(outputs, targets, (1.0 / counts).to(outputs))


def _of_numbers(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets)


_LOSSES: Mapping[int | None, _Loss] = {2: _of_two, None: _of_numbers}


class _TrainedHead(nn.Module):
    """A linear layer, from zeros, on activations that are centred and scaled as the given ones.

    One scale for all units: each brought to variance one, those that training has left alone would count as much as
    those that it has taught to tell classes apart.
    """

    def __init__(self, activations: Tensor, outputs: int | None) -> None:
        super().__init__()
        self._mean = activations.mean(dim=0)
        spread = activations.var(dim=0, correction=0).mean().sqrt()
        # Activations that are all alike say nothing.
        self._scale = torch.where(spread > 0, 1.0 / spread, 0.0)
        shape = () if outputs is None else (outputs,)
        self.weight = nn.Parameter(self._mean.new_zeros((*self._mean.shape, *shape)))
        self.bias = nn.Parameter(self._mean.new_zeros(shape))

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
