"""What defenses of residues have in common: their unit, where they act, and what has been released of each record."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from splitvfl.defenses.row_norms import log_change
from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.hooks import Secrets
from splitvfl.learning.records import RecordTable
from splitvfl.privacy import label_success_ceiling

CONDITIONS = (
    (
        "a row of the gradient is a record's residue over the size of the batch",
        "checked: the cut has one column, the label party's model adds up logits, and its loss is the logistic one; a "
        "loop of one's own takes the mean logistic loss, which nobody can check there",
    ),
    (
        "passive parties get one draw between them",
        "checked in every step where all of them have it: rows that differ are not sent; cut layers of a loop of one's "
        "own draw each for itself, unless they are given one OneDraw",
    ),
)
NOT_COVERED = (
    "that noise is drawn and rounded in floating point, from a generator that is not cryptographic",
    "what the model's own predictions tell of a label",
)


# Of the smallest there is nothing left to learn from 10^12 records; of the largest there is no noise left.
_EPSILONS = (1e-6, 1e6)


def residues_of(gradient: Tensor, name: str) -> Tensor:
    """Return the residues r = y − f of a batch from its cut gradient, of which row i is −r_i / n, clipped to [−1, 1].

    Taylor's exchange sends ``f / (4 n)`` of its own coefficients ``f = z − 2 (2 y − 1)``, and that is −r / n too.

    Args:
        gradient: ``(n, 1)``.
        name: Of the defense, for the error.

    Returns:
        ``(n,)``, float64.

    Raises:
        PrivacyError: If the cut is wider than 1: a row is no residue then.
    """
    n, width = gradient.shape
    if width != 1:
        raise PrivacyError(
            f"{name} is for residues, and this cut has {width} columns, so nothing was sent; take it with model "
            "logistic-regression and two classes, or another defense (record-gaussian)"
        )
    return (gradient[:, 0].double() * -n).clamp(-1.0, 1.0)


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
    if not _EPSILONS[0] <= epsilon <= _EPSILONS[1]:
        raise ArgumentError(
            f"epsilon must be positive and finite, from {_EPSILONS[0]:g} to {_EPSILONS[1]:g}, got {epsilon!r}"
        )
    return float(epsilon)


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


class ResidueNoise:
    """What such a defense is: where it is attached, and how often it has released each record.

    Attributes:
        releases: The counts, which its checkpoint holds.
    """

    name: ClassVar[str]
    needs_binary_labels: ClassVar[bool] = True
    needs_logistic_loss: ClassVar[bool] = True
    one_draw: ClassVar[bool] = True
    comes_first: ClassVar[bool] = True

    def __init__(self) -> None:
        self.releases = Releases()

    def check_top(self, top: nn.Module) -> None:
        """Raise :class:`PrivacyError` if rows below this top model are no residues."""
        check_residues(top, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return how often each record was released."""
        return self.releases.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self.releases.load_state_dict(state)


def log_spent(secrets: Secrets, releases: int, epsilon: float) -> None:
    """Log what the releases of one record have come to: ``epsilon_spent``, by label, and ``label_success_bound``.

    Args:
        secrets: The sender's.
        releases: Of the record that was sent most often.
        epsilon: Of one release, by label.
    """
    secrets.log("epsilon_spent", releases * epsilon)
    secrets.log("label_success_bound", label_success_ceiling(epsilon, releases) if releases else 0.5)
