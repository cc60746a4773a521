"""Label attack by a record's messages and by what a party's own features predict of messages, without a known label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.attacks.class_mixture import fit_classes
from splitvfl.attacks.leading_direction import leading_directions
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import View, classes_of
from splitvfl.leakage.message_models import in_units, taught_by_messages
from splitvfl.learning.records import RecordTable

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

# About the last hundred batches say in which directions messages vary.
_DECAY = 0.99
# About the last so many records say what their mean message is: the model's mean error moves while it learns.
_RECENT = 256.0
# Features and messages that are kept take 128 MiB at most.
_MOST_BYTES = 1 << 27
_MOST_FITTED = 20_000
_LEAST_FITTED = 10


class LabelsAndFeaturesAttack:
    """Score every record by its messages and by what the partner's own features predict of them, with equal weight.

    The partner knows no label. Every message tells a little of its record's label, or of the random one that a defense
    put in its place. What many messages have in common with the features is no noise: that is the label. So the attack
    learns messages from features, and predicts each record's message from its features alone, by models that were
    fitted to other records. The score is ``z(message) + z(forest) + z(ridge)``: what came, and two predictions of it,
    each divided by its spread over the records.

    *What came* is the mean of a record's messages along the direction in which gradients vary most, as
    :class:`~splitvfl.attacks.readout.ReadoutAttack` finds it: each in units of its batch's root mean square, and less
    the mean of the messages of late. The direction's sign is carried from batch to batch. *Forest* and *ridge* are
    extremely randomised trees and ridge regression in five folds, on at most 20 000 records that are drawn. A category
    counts as the mean message of its records, within the folds. The judge grants which end is which class.

    Of k classes messages are points in the k − 1 dimensions in which they vary most, and the sum of the three is a
    mixture of k normal clusters (:func:`~splitvfl.attacks.class_mixture.fit_classes`); the judge grants their names. Of
    numbers it is the sum as it is.

    A new message changes what features predict of every record, so that scores of all are asked for at once where
    figures are read (:meth:`revised`), and the models are fitted then. What a call returns in between is what came of
    each record so far.

    It adds most where messages are few or noisy and features say something of the label. The weights are equal, as no
    message says how noisy it is: where messages alone tell every label, as without a defense, the sum reads less than
    they do, and the figures of its steps are those of the messages. At a top with hidden layers there is no single
    direction, and its score means less.

    Features and messages are kept in 128 MiB at most: records beyond that are not scored, and a note says so.

    Source: this project's. For the trees: Geurts, Ernst and Wehenkel, Machine Learning 63 (2006).
    """

    name: ClassVar[str] = "labels-and-features"
    explanation: ClassVar[str] = (
        "Learns a record's messages from the partner's own features, on other records, and adds up what came and what "
        "the features predict of it. It needs no known label, and takes off noise that no single message shows."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "columns"})
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass", "regression"})
    cumulative: ClassVar[bool] = True
    clusters: ClassVar[bool] = True

    def __init__(self) -> None:
        self._table = RecordTable(place=np.int64)
        self._count = 0
        self._left_out = 0
        self._ids = np.zeros(0, np.int64)
        self._seen = np.zeros(0, np.int64)
        self._numeric = np.zeros((0, 0), np.float32)
        self._codes = np.zeros((0, 0), np.int64)
        self._sums = np.zeros((0, 0))
        self._moment: Tensor | None = None
        self._axes: Tensor | None = None
        # The mean message of late, and of how many records that is.
        self._mean, self._weight = np.zeros(0), 0.0
        self._classes: int | None = 2

    @property
    def note(self) -> str:
        """Remark beside its figures where records did not fit into its memory; else empty."""
        if not self._left_out:
            return ""
        return f"it kept the first {self._count} records that came, which fill its memory, and does not score others"

    def __call__(self, view: View, /) -> Tensor:
        """Take in a message, and return what came of its records so far.

        Args:
            view: Its ``gradient`` ``(n, width)``, ``columns`` and ``ids`` are read.

        Returns:
            ``(n,)``, float64, NaN of records for which there is no room; of k classes zeros, ``(n, k)``: these are
            scored by :meth:`revised` alone.

        Raises:
            AttackRefused: If the party has no columns.
            ArgumentError: If there is another width, or other columns, than before.
        """
        gradient, classes = view.gradient, classes_of(view)
        self._classes = classes
        numeric, codes = _features(view.columns)
        ids = view.ids.cpu().numpy()
        places = self._places(ids, numeric, codes, axes=min(1 if classes is None else classes - 1, gradient.shape[1]))
        self._take(places, gradient.double().cpu())
        if classes not in (2, None):
            return torch.zeros(len(ids), classes, dtype=torch.float64, device=gradient.device)
        scores = np.full(len(ids), np.nan)
        scores[places >= 0] = self._means(places[places >= 0])[:, 0]
        return torch.from_numpy(scores).to(gradient.device)

    def _places(self, ids: Whole, numeric: npt.NDArray[np.float32], codes: Whole, *, axes: int) -> Whole:
        """Return where each record is kept, ``(n,)``, with room made for new ones; −1 where there is none."""
        if not self._count:
            self._numeric, self._codes = np.zeros((0, numeric.shape[1]), np.float32), codes[:0]
            self._sums, self._mean = np.zeros((0, axes)), np.zeros(axes)
        if numeric.shape[1] != self._numeric.shape[1] or codes.shape[1] != self._codes.shape[1]:
            before, now = (
                f"{own.shape[1]} numbers and {fields.shape[1]} categories"
                for own, fields in ((self._numeric, self._codes), (numeric, codes))
            )
            raise ArgumentError(f"expected columns of {before}, got {now}")
        slots = self._table.slots(ids)
        new, first = np.unique(slots[self._table["place"][slots] == 0], return_index=True)
        first = np.flatnonzero(self._table["place"][slots] == 0)[first]
        room = max(self._most - self._count, 0)
        self._left_out += max(len(new) - room, 0)
        # In the order in which they came, of which the shuffled order of a run makes a random sample.
        first = np.sort(first)[:room]
        self._grow(self._count + len(first))
        kept = slice(self._count, self._count + len(first))
        self._ids[kept], self._numeric[kept], self._codes[kept] = ids[first], numeric[first], codes[first]
        self._table["place"][slots[first]] = np.arange(kept.start, kept.stop) + 1
        self._count = kept.stop
        return self._table["place"][slots] - 1

    @property
    def _most(self) -> int:
        """How many records there is room for."""
        each = 4 * self._numeric.shape[1] + 8 * (self._codes.shape[1] + self._sums.shape[1] + 2)
        return _MOST_BYTES // each

    def _grow(self, size: int) -> None:
        room = len(self._ids)
        if size <= room:
            return
        for name in ("_ids", "_seen", "_numeric", "_codes", "_sums"):
            own = getattr(self, name)
            wider = np.zeros((max(size, min(2 * room, self._most)), *own.shape[1:]), own.dtype)
            wider[:room] = own
            setattr(self, name, wider)

    def _take(self, places: Whole, gradient: Tensor) -> None:
        """Add a batch's messages to what came of its records."""
        if self._moment is not None and len(self._moment) != gradient.shape[1]:
            raise ArgumentError(f"expected gradients of width {len(self._moment)}, got {gradient.shape[1]}")
        # A row of zeros is none of a record: a dummy's, or of a step that sent nothing.
        came = gradient.any(dim=1)
        if not came.any():
            return
        rows = gradient[came]
        peak = rows.abs().max()
        rows = rows / peak
        rows = rows / rows.square().sum(dim=1).mean().sqrt()
        moment = rows.T @ rows / len(rows)
        self._moment = moment if self._moment is None else _DECAY * self._moment + moment
        self._axes = _turned(leading_directions(self._moment, self._sums.shape[1]), self._axes)
        along = (rows @ self._axes).numpy()
        before = self._weight * math.exp(-len(along) / _RECENT)
        self._weight = before + len(along)
        self._mean = (before * self._mean + along.sum(axis=0)) / self._weight
        own = places[came.numpy()]
        known = own >= 0
        np.add.at(self._sums, own[known], along[known] - self._mean)
        np.add.at(self._seen, own[known], 1)

    def _means(self, places: Whole | slice) -> Floats:
        """Return the mean message of each of these records; zeros where none came."""
        found: Floats = self._sums[places] / np.maximum(self._seen[places], 1)[:, None]
        return found

    def revised(self) -> tuple[Tensor, Tensor]:
        """Return the scores of all records by all that has come, for which the models are fitted anew.

        Returns:
            Ids ``(m,)`` and scores ``(m,)``, float64; of k classes log probabilities of k clusters, ``(m, k)``.
        """
        messages, came = self._means(slice(self._count)), self._seen[: self._count] > 0
        points = in_units(messages)
        if np.count_nonzero(came) >= _LEAST_FITTED:
            predicted = taught_by_messages(self._numeric[: self._count], self._codes[: self._count], messages, came)
            points = points + sum(in_units(each) for each in predicted)
        scores = points[:, 0] if self._classes in (2, None) else self._clustered(points, self._classes)
        return torch.from_numpy(self._ids[: self._count].copy()), torch.from_numpy(scores)

    def _clustered(self, points: Floats, classes: int | None) -> Floats:
        assert classes is not None
        if len(points) < classes:
            return np.zeros((len(points), classes))
        drawn = np.random.default_rng(0).permutation(len(points))[:_MOST_FITTED]
        fit = fit_classes(points[drawn], classes)
        # In pieces, as there is a distance for each record, cluster and dimension.
        starts = range(0, len(points), _MOST_FITTED)
        return np.concatenate([fit.log_posteriors(points[start : start + _MOST_FITTED]) for start in starts])

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept of each record, and the directions of messages."""
        kept = {name: getattr(self, f"_{name}")[: self._count] for name in ("ids", "seen", "numeric", "codes", "sums")}
        return {name: torch.from_numpy(own.copy()) for name, own in kept.items()} | {
            "table": self._table.state_dict(),
            "left_out": self._left_out,
            "moment": self._moment,
            "axes": self._axes,
            "mean": torch.from_numpy(self._mean.copy()),
            "weight": self._weight,
            "classes": self._classes,
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._ids, self._seen, self._numeric, self._codes, self._sums, self._mean = (
            state[name].numpy().copy() for name in ("ids", "seen", "numeric", "codes", "sums", "mean")
        )
        self._count, self._left_out = len(self._ids), state["left_out"]
        self._table.load_state_dict(state["table"])
        self._moment, self._axes = state["moment"], state["axes"]
        self._weight, self._classes = state["weight"], state["classes"]


def _features(columns: Any) -> tuple[npt.NDArray[np.float32], Whole]:
    """Return a batch's numbers ``(n, d)`` and codes ``(n, f)``.

    Raises:
        AttackRefused: If there are neither.
    """
    numeric, codes = (columns, None) if isinstance(columns, Tensor) else (columns.numeric, columns.categorical)
    numbers = torch.nan_to_num(numeric.flatten(1).float()).cpu().numpy()
    fields = np.zeros((len(numbers), 0), np.int64) if codes is None else codes.cpu().numpy().astype(np.int64)
    if not numbers.shape[1] and not fields.shape[1]:
        raise AttackRefused("attack labels-and-features needs columns, and this party has none")
    return numbers, fields


def _turned(axes: Tensor, before: Tensor | None) -> Tensor:
    """Return axes of the same space that are turned to those before: of one axis, with its sign."""
    if before is None:
        return axes
    left, _, right = torch.linalg.svd(axes.T @ before)
    turned: Tensor = axes @ left @ right
    return turned
