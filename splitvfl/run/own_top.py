"""The label party's top model as its own attacks are shown it: what it would lose by an activation of some records."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from splitvfl.cut.split_model import call_top
from splitvfl.data.columns import Columns
from splitvfl.leakage.after_training import own_copy
from splitvfl.learning.losses import Loss
from splitvfl.learning.precision import widened
from splitvfl.party.party import ActiveParty
from splitvfl.party.top_model import own_input


class OwnTop:
    """Makes copies of a label party's top model as it is, each of some of its training records.

    Args:
        active: The label party, with one partner.
    """

    def __init__(self, active: ActiveParty) -> None:
        self._active = active
        self._sorted, self._places = active.data.train.ids.cpu().sort()

    def __call__(self, ids: Tensor) -> TopOfRecords:
        """Return a copy that knows these records: their columns and labels are the label party's.

        Args:
            ids: Ids of training records, ``(m,)``.
        """
        rows = self._places[torch.searchsorted(self._sorted, ids.cpu())]
        batch = self._active.train_batch(rows)
        assert batch.labels is not None, "the label party has labels"
        top = own_copy(self._active.top).eval().requires_grad_(False)
        return TopOfRecords(top, own_input(batch), batch.labels, self._active.task.loss)


class TopOfRecords(nn.Module):
    """A top model, and what the label party holds of some records.

    Args:
        top: The model, in evaluation mode.
        columns: The label party's columns of the records; ``None``: it has none.
        labels: Their labels, ``(m,)``.
        loss: What is learned by.
    """

    def __init__(self, top: nn.Module, columns: Tensor | Columns | None, labels: Tensor, loss: Loss) -> None:
        super().__init__()
        self.top = top
        self._columns, self._labels, self._loss = columns, labels, loss

    def forward(self, activation: Tensor) -> Tensor:
        """Return the mean loss of the records, ``()``, if this were sent of them, ``(m, width)``."""
        return self._loss(widened(call_top(self.top, [activation], self._columns)), self._labels)
