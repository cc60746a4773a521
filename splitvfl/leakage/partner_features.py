"""The partner's own features, for the auditor: what they predict of each record's label, out of fold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.data.columns import Columns, Records
from splitvfl.errors import ArgumentError, DataError
from splitvfl.learning.records import Ids

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

# Ids are looked through in pieces of so many.
_PIECE = 1 << 20


class PartnerFeatures:
    """The features of one partner by record id.

    Args:
        features: ``Records`` with their ids; or ``Columns``, or numbers ``(n, d)``, of which row i belongs to the
            record with id i.

    Raises:
        ArgumentError: If they are none of these.
    """

    def __init__(self, features: Records | Columns | Tensor) -> None:
        self._ids: Tensor | None = None
        if isinstance(features, Records):
            self._columns, self._ids = features.columns, features.ids
        elif isinstance(features, Columns):
            self._columns = features
        elif isinstance(features, Tensor) and features.dim() == 2 and not features.is_complex():
            self._columns = Columns.of(features.detach())
        else:
            shape = f" of shape {tuple(features.shape)}" if isinstance(features, Tensor) else ""
            raise ArgumentError(
                f"expected features as Records, Columns or a matrix of numbers (n, d), got {type(features).__name__}"
                f"{shape}"
            )

    def rows(self, ids: Ids) -> Rows:
        """Return the row of each record.

        Args:
            ids: ``(n,)``.

        Raises:
            DataError: If a record has no features.
        """
        if self._ids is None:
            found = np.where((ids >= 0) & (ids < self._columns.count), ids, -1)
        else:
            found = np.full(ids.shape, -1, np.int64)
            order = np.argsort(ids)
            for start in range(0, self._ids.numel(), _PIECE):
                piece = self._ids[start : start + _PIECE].cpu().numpy()
                places = np.searchsorted(ids, piece, sorter=order).clip(max=max(ids.size - 1, 0))
                hits = np.flatnonzero(ids[order[places]] == piece) if ids.size else np.zeros(0, np.int64)
                found[order[places[hits]]] = start + hits
        if (found < 0).any():
            raise DataError(
                f"expected the partner's features of every record that is sent, got none of record "
                f"{ids[found < 0][0]}; give audit(features=...) a row for each record id, or Records with their ids"
            )
        return found

    @staticmethod
    def folds(truth: npt.NDArray[np.int64], seed: int) -> Rows:
        """Return the fold in which each record is held out, ``(n,)``, of k classes: those of :meth:`predictions`."""
        from splitvfl.leakage.own_columns import folds_of

        found = np.empty(truth.size, np.int64)
        for number, (_, held_out) in enumerate(folds_of(truth, seed)):
            found[held_out] = number
        return found

    def predictions(
        self, rows: Rows, truth: npt.NDArray[np.float64], classes: int | None, *, seed: int
    ) -> tuple[dict[str, Floats], float]:
        """Return what two models of the features predict of these records out of fold, and the better one's figure.

        No record's own label enters what is predicted of it. It is fitted once for the same records in a process.

        Args:
            rows: ``(n,)``, as :meth:`rows` returns them.
            truth: ``(n,)``, their labels.
            classes: Number of classes; ``None`` for numbers.
            seed: Decides the folds (:func:`~splitvfl.leakage.own_columns.folds_of`, and ``KFold`` of numbers).

        Returns:
            By the model's name, as :class:`~splitvfl.leakage.own_columns.OwnColumns` has it; and a leak AUC.
        """
        # scikit-learn is slow to import, and nobody who has no features needs it.
        from splitvfl.leakage import own_columns, own_columns_many

        used = self._columns.rows(torch.from_numpy(rows))
        if classes == 2:
            found = own_columns.of_these(used, truth.astype(np.int64), seed=seed)
        else:
            found = own_columns_many.of_these(used, truth, classes, seed=seed)
        return dict(found.predicted), found.auc
