"""Randomised response, asked once per record and remembered."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, Secrets
from splitvfl.records import RecordTable, Slots


class MemoisedResponse:
    """Train on labels of which each was flipped with probability π, once and for the whole run.

    The first time that a record is met its answer ỹ is drawn: its label y, flipped with probability π. Later the same
    answer is given again, whatever the label. The loss is computed with the corrected target
    ``t = (ỹ − π) / (1 − 2π)``, for which ``E[t | y] = y``; binary cross-entropy on logits is linear in its target, so
    the expected loss, and with it the expected gradient at given weights, is that of the true labels.

    Every label is ``ε = ln((1 − π) / π)`` locally differentially private (neighbours differ in one label), over all
    epochs together, towards everybody who sees anything that is computed from the targets: gradients, weights,
    scores. It says nothing about what the columns give away: whoever can predict a label from them still can.
    Measurements with the true labels (an AUC on training records) are outside of it too. It rests on the secrecy of
    the answers kept here and of the generator, and torch's generators are not cryptographic.

    Logs ``epsilon``.

    Source: Warner, JASA 60 (1965), randomised response; memoised as in RAPPOR, Erlingsson et al., CCS 2014,
    arXiv:1407.6981.

    Args:
        flip: π, in (0, ½).
        epsilon: ε in nats, > 0, instead of π: ``π = 1 / (1 + e^ε)``.

    Raises:
        ArgumentError: Unless exactly one is given, in its range.
    """

    name: ClassVar[str] = "memoised-response"
    crossing: ClassVar[Crossing] = "labels"
    needs_binary_labels: ClassVar[bool] = True

    def __init__(self, *, flip: float | None = None, epsilon: float | None = None) -> None:
        if (flip is None) == (epsilon is None):
            raise ArgumentError(f"expected exactly one of flip and epsilon, got flip {flip} and epsilon {epsilon}")
        if flip is None:
            assert epsilon is not None
            flip = _flip_of(epsilon)
        if not 0.0 < flip < 0.5:
            raise ArgumentError(f"flip must lie strictly between 0 and 0.5, got {flip}")
        self._flip = flip
        self._answers = _empty_table()

    @property
    def flip(self) -> float:
        """Probability π that a label is flipped."""
        return self._flip

    @property
    def epsilon(self) -> float:
        """Privacy loss of a label over the whole run, in nats: ``ln((1 − π) / π)``."""
        return math.log1p(-self._flip) - math.log(self._flip)

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the corrected targets.

        Args:
            labels: ``(n,)`` in {0, 1}, of a floating-point dtype, as targets are no whole numbers.
            secrets: The label party's; its record ids, generator and log are used.

        Returns:
            A new tensor like ``labels``, with values ``−π / (1 − 2π)`` and ``(1 − π) / (1 − 2π)``.

        Raises:
            ArgumentError: If labels are not 0 and 1, or not floating point.
            PrivacyError: If the ids of the records are not known.
        """
        _check(labels)
        slots = self._answers.slots(secrets.ids.detach().cpu().numpy())
        self._ask(slots, labels, secrets.generator)
        secrets.log("epsilon", self.epsilon)
        values = np.array([math.nan, -self._flip, 1.0 - self._flip]) / (1.0 - 2.0 * self._flip)
        targets = torch.from_numpy(values[self._answers["answer"][slots]])
        return targets.to(device=labels.device, dtype=labels.dtype)

    def _ask(self, slots: Slots, labels: Tensor, generator: torch.Generator) -> None:
        """Draw the answers of records that were never met; answers are 1 for no and 2 for yes, 0 for none yet."""
        answers = self._answers["answer"]
        new = np.flatnonzero(answers[slots] == 0)
        if new.size == 0:
            return
        unasked, first = np.unique(slots[new], return_index=True)
        draws = torch.rand(unasked.size, generator=generator, device=generator.device, dtype=torch.float64)
        flipped = (draws < self._flip).cpu().numpy()
        truth = labels.detach().cpu().numpy()[new[first]] == 1
        answers[unasked] = 1 + (truth ^ flipped)

    def state_dict(self) -> dict[str, Any]:
        """Return π and the answers. They are secret: whoever knows them knows every label up to π."""
        return {"flip": self._flip, "answers": self._answers.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ArgumentError: If the answers were drawn with another π, so that ε would be wrong.
        """
        if state["flip"] != self._flip:
            raise ArgumentError(f"expected answers drawn with flip {self._flip}, got flip {state['flip']}")
        self._answers = _empty_table()
        self._answers.load_state_dict(state["answers"])


def _empty_table() -> RecordTable:
    return RecordTable(answer=np.int8)


def _flip_of(epsilon: float) -> float:
    if not epsilon > 0:
        raise ArgumentError(f"epsilon must be greater than 0, got {epsilon}")
    flip = math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    if not 0.0 < flip < 0.5:
        raise ArgumentError(f"epsilon {epsilon} is too close to 0 or too large to flip labels by")
    return flip


def _check(labels: Tensor) -> None:
    if not labels.is_floating_point():
        raise ArgumentError(f"expected labels of a floating-point dtype, got {labels.dtype}; pass labels.float()")
    if not ((labels == 0) | (labels == 1)).all():
        raise ArgumentError(f"labels must be 0 or 1, got {torch.unique(labels)[:5].tolist()}")
