"""What defenses of residues have in common: their unit, where they act, and what has been released of each record."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from splitvfl.claims import Condition
from splitvfl.defenses.claim_words import ONE_RECORD
from splitvfl.defenses.row_norms import log_change
from splitvfl.errors import ArgumentError, PrivacyError, number
from splitvfl.hooks import Secrets
from splitvfl.learning.records import RecordTable
from splitvfl.privacy.laplace import label_success_ceiling

CONDITIONS = (
    Condition(
        "A row of the gradient is a record's residue over the size of the batch.",
        "Checked: the cut has one column, the label party's model adds up logits, and its loss is the logistic one; a "
        "loop of one's own takes the mean logistic loss, which nobody can check there.",
    ),
    Condition(
        "Passive parties get one draw between them.",
        "Checked in every step where all of them have it: rows that differ are not sent; cut layers of a loop of one's "
        "own draw each for itself, unless they are given one OneDraw.",
    ),
    ONE_RECORD,
)
MANY_RELEASES = (
    "That this is little over many epochs: noise is fresh in each of them, and E releases cost E times as much. Of a "
    "run it is said before the first step whether that is all that they cost."
)


# Of the smallest there is nothing left to learn from 10^12 records; of the largest there is no noise left.
_EPSILONS = (1e-6, 1e6)
# Two clipped residues are never further apart.
_SPAN = 2.0


def residues_of(gradient: Tensor, name: str) -> Tensor:
    """Return the residues r = y − f of a batch from its cut gradient, of which row i is −r_i / n, clipped to [−1, 1].

    Taylor's exchange sends ``f / (4 n)`` of its own coefficients ``f = z − 2 (2 y − 1)``, and that is −r / n too.

    Args:
        gradient: ``(n, 1)``.
        name: Of the defense, for the error.

    Returns:
        ``(n,)``, float64.

    Raises:
        PrivacyError: If the cut is wider than 1: a row is no residue then; or if one is NaN or infinite.
    """
    n, width = gradient.shape
    if width != 1:
        raise PrivacyError(
            f"{name} is for residues, and this cut has {width} columns, so nothing was sent; take it with model "
            "logistic-regression and two classes, or another defense (record-gaussian)"
        )
    residues = gradient[:, 0].double() * -n
    if not bool(torch.isfinite(residues).all()):
        raise PrivacyError(
            f"{name}: residues are NaN or infinite, which no noise covers, so nothing was sent; look for weights that "
            "diverge (a smaller learning rate), or logits that are no numbers"
        )
    return residues.clamp(-1.0, 1.0)


def largest_with_laplace(scale: float, residues: int) -> float:
    """Return a size that so many residues with Laplace noise exceed in one run of 10^8.

    ``P(|noise| > t · scale) = e^-t``, so that with ``t = ln(2 N) + 20`` any of N does with probability 1e-9.

    Args:
        scale: Of the noise, in the unit of residues.
        residues: N, at least 1.
    """
    return 1.0 + scale * (math.log(2.0 * residues) + 20.0)


def sent_for(residues: Tensor, gradient: Tensor, secrets: Secrets, *, scale: float) -> Tensor:
    """Return noisy residues as a cut gradient, rounded once, and log what was done to it.

    Args:
        residues: What is sent of each record, ``(n,)``, float64.
        gradient: The clean gradient, ``(n, 1)``.
        secrets: The sender's.
        scale: Scale of the noise on a residue.
    """
    n = max(len(gradient), 1)
    sent = secrets.rounded((residues / -n).unsqueeze(1), scale=scale / n, like=gradient)
    log_change(secrets, gradient, sent)
    return sent


def check_residues(top: nn.Module, name: str) -> None:
    """Raise :class:`PrivacyError` unless the label party's model adds up logits, so that rows below it are residues."""
    if not getattr(top, "is_linear", False):
        raise PrivacyError(
            f"{name} is for residues, which are the gradient where the label party's model adds up logits; below "
            f"{type(top).__name__} a row is something else, of any size. Take model logistic-regression, or "
            "record-gaussian"
        )


def checked_epsilon(epsilon: float) -> float:
    """Return an ε of one release that noise can be drawn for.

    Raises:
        ArgumentError: If it is not from 10^-6 to 10^6.
    """
    given = number("epsilon", epsilon)
    if not _EPSILONS[0] <= given <= _EPSILONS[1]:
        raise ArgumentError(
            f"epsilon must be positive and finite, from {_EPSILONS[0]:g} to {_EPSILONS[1]:g}, got {given!r}"
        )
    return given


class Releases:
    """How often each record was released: what a promise about one release has come to so far."""

    def __init__(self) -> None:
        self._table = RecordTable(releases=np.int32)
        self._without_ids = 0

    def count(self, secrets: Secrets) -> int:
        """Count the records of a batch, and return how often the one that was sent most often was sent."""
        if not secrets.has_ids:
            self._without_ids += 1  # which records these are is not known: as if they were the same every time
            return self.most
        slots = self._table.slots(secrets.ids.detach().cpu().numpy())
        np.add.at(self._table["releases"], slots, 1)
        return self.most

    @property
    def most(self) -> int:
        """Number of releases of the record that was sent most often."""
        counts = self._table["releases"]
        return self._without_ids + (int(counts.max()) if counts.size else 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts: a step that is taken again from a checkpoint is counted once."""
        return {"table": self._table.state_dict(), "without_ids": self._without_ids}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._table.load_state_dict(state["table"])
        self._without_ids = state["without_ids"]


class ResidueNoise(ABC):
    """What such a defense is: where it is attached, and how often it has released each record.

    Attributes:
        releases: The counts, which its checkpoint holds.
        label_moves: By how much a label can move the residue of its record, prediction known: 1, or more, up to 2,
            where a label defense answers in its place (:meth:`take_targets`).
    """

    name: ClassVar[str]
    needs_binary_labels: ClassVar[bool] = True
    needs_logistic_loss: ClassVar[bool] = True
    one_draw: ClassVar[bool] = True
    comes_first: ClassVar[bool] = True
    running_totals: ClassVar[frozenset[str]] = frozenset({"epsilon_spent", "label_success_bound"})

    def __init__(self) -> None:
        self.releases = Releases()
        self.label_moves = 1.0

    @property
    @abstractmethod
    def label_epsilon(self) -> float:
        """ε of one release in the label of a record, whose prediction is known."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the releases of one record have come to, once there are any."""
        most = self.releases.most
        if not most:
            return ()
        times = "once" if most == 1 else f"{most} times"
        return (
            f"{self.name}: the record that was sent most often was sent {times}. The noise alone of that costs ε = "
            f"{most * self.label_epsilon:.3g} in its label: from these releases, with predictions that do not depend "
            f"on the label, nobody tells one of even odds apart more often than "
            f"{label_success_ceiling(self.label_epsilon, most):.3f}.",
        )

    def take_targets(self, values: tuple[float, ...] | None) -> None:
        """Take what targets can be: behind a label defense that corrects for its lies they are more than 1 apart."""
        self.label_moves = _SPAN if values is None else min(_SPAN, max(values) - min(values))

    def check_labels(self, secrets: Secrets) -> None:
        """Check that labels, where the sender has any, are 0 and 1, of which one moves a residue as it is claimed.

        Raises:
            PrivacyError: If they are others: of -1 and +1 a label moves a residue by 2.
        """
        if not secrets.has_labels:
            return
        found = secrets.labels
        # ½ stands for a record for which a label defense says nothing.
        if not bool(((found == 0) | (found == 1) | (found == 0.5)).all()):
            raise PrivacyError(
                f"{self.name}: labels must be 0 and 1, got {torch.unique(found)[:5].tolist()}, of which one would move "
                "a residue by more than is claimed, so nothing was sent; a label of -1 and +1 is (label + 1) / 2 here"
            )

    def log_spent(self, secrets: Secrets) -> None:
        """Count a batch, and log what the releases of one record have come to by label.

        That is ``epsilon_spent``, and ``label_success_bound``: how often any attack on so many is right at most.
        """
        releases, epsilon = self.releases.count(secrets), self.label_epsilon
        secrets.log("epsilon_spent", releases * epsilon, per="run")
        most = label_success_ceiling(epsilon, releases) if releases else 0.5
        secrets.log("label_success_bound", most, per="run")

    def check_top(self, top: nn.Module) -> None:
        """Raise :class:`PrivacyError` if rows below this top model are no residues."""
        check_residues(top, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return how often each record was released."""
        return self.releases.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self.releases.load_state_dict(state)
