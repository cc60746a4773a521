"""Which label each id came with: ids that are counted anew in every batch are told from ids of records."""

from __future__ import annotations

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

_PLACES = 1 << 16


class KnownLabels:
    """The labels of the first records that were seen, up to 65 536 of them: an id has one label.

    What remembers by id (memoised answers, scores over all steps, canaries) would mix records otherwise. An id whose
    place another has taken is not compared, so that memory stays bounded.
    """

    def __init__(self) -> None:
        self._ids = torch.zeros(_PLACES, dtype=torch.int64)
        self._labels = torch.full((_PLACES,), torch.nan, dtype=torch.float64)

    def check(self, ids: Tensor, labels: Tensor) -> None:
        """Take in a batch.

        Args:
            ids: ``(n,)``, int64.
            labels: ``(n,)``; NaN where a record has none.

        Raises:
            ArgumentError: If an id has another label than before.
        """
        if labels.numel() != len(ids):
            return
        given = labels.detach().reshape(-1).to("cpu", torch.float64)
        known = ~given.isnan()
        given, numbers = given[known], ids.detach().to("cpu")[known]
        places = numbers.remainder(_PLACES)
        new = self._labels[places].isnan().nonzero()[:, 0]
        # Of several that would take one place, the first: in a batch too an id has one label.
        taken, order = places[new].sort(stable=True)
        new = new[order[torch.diff(taken, prepend=taken.new_tensor([-1])) != 0]]
        self._ids[places[new]], self._labels[places[new]] = numbers[new], given[new]
        other = (self._ids[places] == numbers) & (self._labels[places] != given)
        if bool(other.any()):
            first = int(other.nonzero()[0])
            raise ArgumentError(
                f"id {int(numbers[first])} comes with label {given[first].item():g}, and came with "
                f"{self._labels[places[first]].item():g} before: an id names one record of the data, not a place in "
                "the batch. Give ids[rows] of ids = torch.arange(records), or leave ids out"
            )
