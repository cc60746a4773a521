"""Label attack by one's own part of the trained model: the baseline for attacks on training."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.errors import HookError
from splitvfl.hooks import View, classes_of


class OwnPredictionAttack:
    """Score every record by what the passive party's own trained linear model puts out, its part of the logit.

    ``x_B θ_B``, and the label is its sign (zero-mean columns and balanced classes given; the ranking needs neither). It
    needs no message and no known label, and a protocol that lets the bottom model learn cannot hide it: attacks
    on messages are worth what they tell beyond this. It is for bottoms of width 1 whose output adds to the logit as it
    is; beneath a top model with weights of its own, the sign of an output says nothing. Of k classes it is for bottoms
    of width k, one output for each class; of numbers for width 1.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the comparison with the model's own output.
    """

    name: ClassVar[str] = "own-prediction"
    explanation: ClassVar[str] = (
        "After training, scores a record by what the partner's own part of the linear model says of it. It needs no "
        "message: what others read counts as far as it is more than that."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"bottom", "columns"})
    when: ClassVar[str] = "after-training"
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass", "regression"})

    def __call__(self, view: View, /) -> Tensor:
        """Return the own part of the logits.

        Args:
            view: Its ``bottom`` and ``columns`` of ``n`` records are read.

        Returns:
            ``(n,)``, or ``(n, k)`` of k classes, in the bottom's dtype.

        Raises:
            HookError: If the bottom model's output has another width.
        """
        classes = classes_of(view) or 1
        width = 1 if classes == 2 else classes
        with torch.no_grad():
            logits: Tensor = view.bottom.eval()(view.columns)
        if logits.shape[1:] != (width,):
            raise HookError(f"attack {self.name} reads outputs of width {width}, got shape {tuple(logits.shape)}")
        return logits[:, 0] if width == 1 else logits
