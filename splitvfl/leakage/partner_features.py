"""The partner's own features, for the auditor: what they predict of each record's label, out of fold."""

from __future__ import annotations

from typing import NamedTuple

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


class OutOfFold(NamedTuple):
    """What models of a partner's features predict.

    Attributes:
        auc: Leak AUC of the better one.
        nested: ``(5, n, m)`` of m models, of k classes ``(5, n, k, m)``: by the fold that is left out, log odds of two
            classes, log probabilities of k, and numbers (:func:`~splitvfl.leakage.own_columns.nested`).
        places: ``(n,)``, the fold of each record.
    """

    auc: float
    nested: Floats
    places: Rows


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
        self._last: tuple[int, Rows, Floats, OutOfFold] | None = None
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

    def columns(self, rows: Rows) -> Columns:
        """Return the features of these rows, ``(n,)``."""
        return self._columns.rows(torch.from_numpy(rows))

    def component(self, rows: Rows, *, seed: int) -> Floats:
        """Return where these rows are on the first principal component of all, ``(n,)``; zeros if there is none."""
        from splitvfl.leakage.own_columns import first_component

        place = first_component(self._columns, self._columns.count, seed=seed)
        return np.zeros(rows.size) if place is None else place(self.columns(rows))

    def predictions(self, rows: Rows, truth: Floats, classes: int | None, *, seed: int) -> OutOfFold:
        """Return what two models of the features predict of these records out of fold.

        No record's own label enters what is predicted of it, nor what a second model is fitted to that is judged on it.
        Models are fitted once for the same records.

        Args:
            rows: ``(n,)``, as :meth:`rows` returns them.
            truth: ``(n,)``, their labels.
            classes: Number of classes; ``None`` for numbers.
            seed: Decides the folds (:func:`~splitvfl.leakage.own_columns.folds_of`, and ``KFold`` of numbers).
        """
        # scikit-learn is slow to import, and nobody who has no features needs it.
        from splitvfl.leakage import own_columns, own_columns_many

        kept = self._last
        if kept is not None and kept[0] == seed and np.array_equal(kept[1], rows) and np.array_equal(kept[2], truth):
            return kept[3]
        used = self.columns(rows)
        if classes == 2:
            names = truth.astype(np.int64)
            auc = own_columns.of_these(used, names, seed=seed).auc
            nested = own_columns.nested_of_these(used, names, seed=seed)
            folds = own_columns.folds_of(names, seed)
        else:
            auc = own_columns_many.of_these(used, truth, classes, seed=seed).auc
            nested = own_columns_many.nested_of_these(used, truth, classes, seed=seed)
            numbers = classes is None
            folds = (
                own_columns_many.number_folds(truth.size, seed)
                if numbers
                else own_columns.folds_of(truth.astype(np.int64), seed)
            )
        found = OutOfFold(auc, np.stack([*nested.values()], axis=-1), own_columns.place_of_each(folds))
        self._last = (seed, rows, truth, found)
        return found
