"""What attacks on noisy residues have in common: the label party's unknown part, fitted, and ratios by record."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View
from splitvfl.learning.records import RecordTable

Likelihoods = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Of noisy residues and predictions, which broadcast: log likelihoods under label 1 and under label 0."""

# Shifts of the logits that are tried. A step of ⅛ moves no prediction by more than .03.
_SHIFTS: Final = torch.linspace(-8.0, 8.0, 129, dtype=torch.float64)
# Where messages tell nothing of the shift, it is about 0: at ε = 1 that takes thousands of records.
_PRIOR: Final = -((_SHIFTS / 2.0) ** 2) / 2
# What earlier records told fades as the label party's part moves: by e with so many later ones.
_MEMORY: Final = 20_000
_MOST_FITTED: Final = 4096  # records of a batch that the shift is fitted to


class NoisyResidues:
    """Adds up log-likelihood ratios of each record's label over a run.

    Args:
        name: Of the attack, for errors.
        likelihoods: Of the mechanism that is attacked.
        shift: The label party's part of the logits, if it is known; ``None``: fitted.

    Raises:
        ArgumentError: If the shift is not finite.
    """

    def __init__(self, name: str, likelihoods: Likelihoods, shift: float | None) -> None:
        if shift is not None and not math.isfinite(shift):
            raise ArgumentError(f"expected a finite shift of the logits, or none for a fitted one, got {shift}")
        self._name, self._likelihoods, self._given = name, likelihoods, shift
        self._evidence = torch.zeros_like(_SHIFTS)
        self._records = RecordTable(ratio=np.float64)

    @property
    def shift(self) -> float:
        """The label party's part of the logits, as given or as last fitted: its mean under what steps have told."""
        if self._given is not None:
            return self._given
        return float(torch.softmax(self._evidence + _PRIOR, dim=0) @ _SHIFTS)

    def see(self, view: View) -> Tensor:
        """Return the ratios of the batch's records, of all that came of them so far, ``(n,)``, float64.

        Raises:
            HookError: If the cut is wider than 1.
        """
        gradient, activation = view.gradient, view.activation
        if gradient.shape[1:] != (1,) or activation.shape != gradient.shape:
            raise HookError(
                f"attack {self._name} reads residues, which come one for each record, below a model that adds up "
                f"logits: expected a cut of width 1, got shapes {tuple(gradient.shape)} and {tuple(activation.shape)}"
            )
        noisy = gradient[:, 0].double().cpu() * -len(gradient)
        logits = activation[:, 0].double().cpu()
        # A row of zeros is no release: a dummy's, or of a step that sent nothing.
        came = noisy != 0
        if self._given is None and came.any():
            self._fit(noisy[came], logits[came])
        one, zero = self._likelihoods(noisy, torch.sigmoid(logits + self.shift))
        slots = self._records.slots(view.ids.cpu().numpy())
        np.add.at(self._records["ratio"], slots, torch.where(came, one - zero, 0.0).numpy())
        return torch.from_numpy(self._records["ratio"][slots]).to(gradient.device)

    def _fit(self, noisy: Tensor, logits: Tensor) -> None:
        """Add what a step tells of the shift: its likelihood where a label is 1 with the prediction's probability."""
        every = -(-len(noisy) // _MOST_FITTED)
        shifted = logits[::every] + _SHIFTS[:, None]
        one, zero = self._likelihoods(noisy[::every], torch.sigmoid(shifted))
        mixed = torch.logaddexp(functional.logsigmoid(shifted) + one, functional.logsigmoid(-shifted) + zero)
        told = every * mixed.sum(dim=1)
        self._evidence = math.exp(-len(noisy) / _MEMORY) * self._evidence + (told - told.max())

    def state_dict(self) -> dict[str, Any]:
        """Return what steps told of the shift, and the ratios."""
        return {"evidence": self._evidence, "records": self._records.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._evidence = state["evidence"].clone()
        self._records.load_state_dict(state["records"])
