"""Label attack by the model's prediction of a record and the sum of its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.attacks.readout import ReadoutAttack
from splitvfl.hooks import View
from splitvfl.learning.records import RecordTable

Vector = npt.NDArray[np.float64]

# About the last hundred batches say how far readouts and messages are spread.
_DECAY = 0.99
# A record's readout is the mean of about its last so many: those of the model as it is now, with less noise.
_LAST = 4.0


class CombinedAttack:
    """Score every record by its readout and its accumulated messages together: ``z(readout) − z(Σ_t x_t)``.

    The readout is the activation along the direction w in which gradients vary most
    (:class:`~splitvfl.attacks.readout.ReadoutAttack`): the model's own prediction p. The messages' projections x on the
    same direction are ``‖w‖ (p − y)`` and noise, which averages out over the epochs. Each is divided by its spread over
    the records (z) and both have equal weight: no label and no fit is needed.

    Their relative sign is known: turning w turns both, and below a linear top whatever raises the prediction is *minus*
    the gradient. Messages do not tell which class is the positive one; the judge grants that bit. The sign of the
    direction is kept from step to step.

    A readout is the mean of a record's last four or so. A message counts in units of the messages' root mean square of
    the last hundred batches or so, and all messages of a record count: an attack of the whole run (``cumulative``).
    Memory grows by 24 bytes for each record and its id.

    Of numbers, with one output and squared error, messages are ``2 ‖w‖ (ŷ − y)``, and the sum is of the same two.

    Unlike :class:`~splitvfl.attacks.mixture.MixtureAttack` it does not weigh the two by their worth, and has no model
    that could fail. At a top with hidden layers there is no single direction, and it promises nothing.

    Source: this project's.
    """

    name: ClassVar[str] = "combined"
    explanation: ClassVar[str] = (
        "Adds up a record's messages and, with the same weight, what the model predicts of it: the partner has both. "
        "It needs no known label."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "activation"})
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "regression"})
    not_for: ClassVar[Mapping[str, str]] = {
        "multiclass": "gradients of k classes show the space of the top's weights and not one line; the mixture attack "
        "fits the weights of each class"
    }
    cumulative: ClassVar[bool] = True

    def __init__(self) -> None:
        self._line = ReadoutAttack()
        self._records = RecordTable(readout=np.float64, messages=np.float64, seen=np.int64)
        # Weight, sum and square of the recent readouts; weight and square of the recent messages.
        self._readouts, self._messages = np.zeros(3), np.zeros(2)
        # Sum and square over the records of their readouts and of their messages, and how many there are.
        self._totals, self._count = np.zeros((2, 2)), 0

    def __call__(self, view: View, /) -> Tensor:
        """Return the sums, after this batch has been added.

        Args:
            view: Its ``gradient`` and ``activation``, each ``(n, width)``, and ``ids`` are read.

        Returns:
            ``(n,)``, float64; zeros before any gradient other than zero was met.

        Raises:
            ArgumentError: If the width differs from that of earlier gradients.
        """
        gradient = view.gradient
        readout = self._line(view).cpu().numpy()
        direction = self._line.direction
        if direction is None:
            return torch.zeros(gradient.shape[0], dtype=torch.float64, device=gradient.device)
        slots = self._records.slots(view.ids.cpu().numpy())
        # In the unit of the summed loss, in which a short last batch counts as the others do.
        messages = (gradient.double() @ direction.to(gradient.device)).cpu().numpy() * gradient.shape[0]
        chosen = np.unique(slots)
        self._count_out(chosen)
        self._add(slots, self._readout_units(readout), self._message_units(messages))
        self._count_in(chosen)
        readout_spread, message_spread = self._spreads()
        scores = self._records["readout"][slots] / readout_spread - self._records["messages"][slots] / message_spread
        return torch.from_numpy(scores).to(gradient.device)

    def _readout_units(self, readout: Vector) -> Vector:
        self._readouts = _DECAY * self._readouts + [readout.size, readout.sum(), readout @ readout]
        weight, total, square = self._readouts
        variance = square / weight - (total / weight) ** 2
        return (readout - total / weight) / np.sqrt(variance) if variance > 0.0 else np.zeros_like(readout)

    def _message_units(self, messages: Vector) -> Vector:
        self._messages = _DECAY * self._messages + [messages.size, messages @ messages]
        weight, square = self._messages
        return messages / np.sqrt(square / weight) if square > 0.0 else np.zeros_like(messages)

    def _add(self, slots: npt.NDArray[np.int64], readout: Vector, messages: Vector) -> None:
        np.add.at(self._records["seen"], slots, 1)
        share = 1.0 / np.minimum(self._records["seen"][slots], _LAST)
        before = self._records["readout"][slots]
        self._records["readout"][slots] = before + share * (readout - before)
        np.add.at(self._records["messages"], slots, messages)

    def _count_out(self, slots: npt.NDArray[np.int64]) -> None:
        known = slots[self._records["seen"][slots] > 0]
        self._totals -= self._moments(known)
        self._count -= known.size

    def _count_in(self, slots: npt.NDArray[np.int64]) -> None:
        self._totals += self._moments(slots)
        self._count += slots.size

    def _moments(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        values = np.stack([self._records["readout"][slots], self._records["messages"][slots]])
        return np.stack([values.sum(axis=1), (values**2).sum(axis=1)], axis=1)

    def _spreads(self) -> Vector:
        mean, square = self._totals.T / self._count
        variance = square - mean**2
        return np.sqrt(np.where(variance > 0.0, variance, 1.0))

    def state_dict(self) -> dict[str, Any]:
        """Return the direction, the records' readouts and sums, and how far they are spread."""
        return {
            "line": self._line.state_dict(),
            "records": self._records.state_dict(),
            "readouts": torch.from_numpy(self._readouts.copy()),
            "messages": torch.from_numpy(self._messages.copy()),
            "totals": torch.from_numpy(self._totals.copy()),
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._line.load_state_dict(state["line"])
        self._records.load_state_dict(state["records"])
        self._readouts, self._messages, self._totals = (
            state[name].numpy().copy() for name in ("readouts", "messages", "totals")
        )
        self._count = state["count"]
