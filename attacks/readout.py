"""Label attack by reading the top model's weights out of the gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.leading_direction import leading_direction
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View

# About the last hundred batches count: the top model moves slowly, and noise averages out over them.
_DECAY = 0.99


class ReadoutAttack:
    """Score every record by its own activation along the direction in which the gradients vary most.

    Below a linear top model ``g_i = r_i w``: every gradient points along the top's weights w, whatever the residues
    r_i. Noise along that line shows it better, and isotropic noise averages out of the gradients' second moment. So the
    partner learns w up to its sign, and ``h_i · w`` is the model's own prediction of record i (up to the active party's
    part). No defense at the cut that lets the bottom model learn hides that: this attack's AUC nears the model's. Such
    a defense can limit what labels leak *beyond the prediction* (:func:`~splitvfl.metrics.matched_auc`). Strong
    isotropic noise drowns this attack (20 times the largest row, on digits: .66 to .71), and hides no prediction: the
    first principal component of the activations has .85 to .93 there.

    Of numbers, with one output and squared error, it is the same with ``r_i = 2 (ŷ_i − y_i)``.

    The direction is the leading eigenvector of the second moment of the received gradients, each batch in units of its
    root mean square norm, with exponential forgetting. Its sign is arbitrary and kept from step to step, so the judge's
    one orientation per run applies. At a top model with hidden layers the gradients have no common line, and the score
    means less.

    Source: this project's; that gradients below a linear layer are multiples of its weights: Li et al., ICLR 2022,
    arXiv:2102.08504, section 3.
    """

    name: ClassVar[str] = "readout"
    explanation: ClassVar[str] = (
        "At a linear top the gradients show the top's weights; with its own activations the partner then has the "
        "model's own prediction of every record. What it reads in messages comes on top of that."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "activation"})
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "regression"})
    not_for: ClassVar[Mapping[str, str]] = {
        "multiclass": "gradients of k classes show the space of the top's weights and not one line; the mixture attack "
        "fits the weights of each class"
    }

    def __init__(self) -> None:
        self._moment: Tensor | None = None
        self._direction: Tensor | None = None

    @property
    def direction(self) -> Tensor | None:
        """The direction so far, ``(width,)`` float64, of unit length; ``None`` before a gradient other than zero."""
        return None if self._direction is None else self._direction.clone()

    def __call__(self, view: View, /) -> Tensor:
        """Return the activations along the direction, after this batch has been learned from.

        Args:
            view: Its ``gradient`` and ``activation``, each ``(n, width)``, are read.

        Returns:
            ``(n,)``, float64; zeros before any gradient other than zero was met.

        Raises:
            ArgumentError: If the width differs from that of earlier gradients.
        """
        gradient = view.gradient
        if self._moment is None:
            self._moment = torch.zeros(gradient.shape[1], gradient.shape[1], dtype=torch.float64)
        if self._moment.shape[0] != gradient.shape[1]:
            raise ArgumentError(f"expected gradients of width {self._moment.shape[0]}, got {gradient.shape[1]}")
        self._learn(gradient)
        if self._direction is None:
            return torch.zeros(gradient.shape[0], dtype=torch.float64, device=gradient.device)
        scores: Tensor = view.activation.double() @ self._direction.to(view.activation.device)
        return scores

    def _learn(self, gradient: Tensor) -> None:
        assert self._moment is not None
        peak = gradient.abs().max()
        if not peak > 0:
            return
        rows = gradient.double() / peak.double()
        moment = rows.T @ rows
        self._moment = _DECAY * self._moment + (moment / moment.trace()).cpu()
        direction = leading_direction(self._moment)
        turned = self._direction is not None and float(direction @ self._direction) < 0.0
        self._direction = -direction if turned else direction

    def state_dict(self) -> dict[str, Any]:
        """Return the second moment ``(width, width)`` and the direction ``(width,)``; ``None`` before the first."""
        return {"moment": self._moment, "direction": self._direction}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._moment, self._direction = state["moment"], state["direction"]
