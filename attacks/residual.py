"""Label attack by the residual of a batch of gradients, without its main direction."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from splitvfl.attacks.leading_direction import leading_direction, leading_directions
from splitvfl.hooks import View, classes_of

# A sent row carries a few roundings of its own dtype; residuals below this many are nothing but those.
_ROUNDINGS = 16.0


class ResidualAttack:
    """Score every record by what the batch's first singular direction does not explain of its gradient.

    With ``v`` the leading right singular vector of the received batch ``G`` (not centred), record i scores the residual
    norm ``‖g_i − (g_i·v) v‖₂``, or minus it. Neither labels nor clean gradients are needed. Where the gradients of a
    batch are collinear, as they are at a linear top model, any noise that only one class receives off that line marks
    the class.

    Orientation: positives are assumed to be the rarer class. Which class a defense marks can change from batch to
    batch (sumKL marks the one with the smaller variance), so the attacker looks which group is the smaller one: where
    the residual norms lean to the right (mean above median), few stand out and the norms are the scores; where they
    lean to the left, few are left out and the scores are minus the norms. Without a marked class the leaning is
    chance, and so is the sign.

    Of k classes, the gradients below a linear top are ``Wᵀ(p − e_y) / n``, in k − 1 dimensions, as ``p − e_y`` sums to
    zero: it is the leading k − 1 directions that are taken away. Of numbers it is one.

    Residuals below ``16 · eps(dtype) · ‖g_i‖`` are rounding noise and count as 0, so that collinear gradients give ties
    (AUC ½) and not a pattern of roundings. It reads nothing in gradients of width 1, where every score is 0.

    Source: measured against sumKL noise (Li et al., ICLR 2022, arXiv:2102.08504), whose model of isotropic class
    covariances does not hold at a linear top model.
    """

    name: ClassVar[str] = "residual"
    place: ClassVar[int] = 3
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass", "regression"})
    explanation: ClassVar[str] = (
        "Takes away the line along which the batch's gradients lie and scores what is left: noise that one class only "
        "gets off that line marks that class. It needs no knowledge at all."
    )

    def __call__(self, view: View, /) -> Tensor:
        """Return the residual norms, or minus them where most are large.

        Args:
            view: Its ``gradient``, ``(n, width)``, is read.

        Returns:
            ``(n,)``, float64, all of one sign, in the unit of the gradient.
        """
        gradient = view.gradient
        low, high = gradient.aminmax()
        peak = torch.maximum(high, -low).double()
        directions = (classes_of(view) or 2) - 1
        if gradient.shape[1] <= directions or peak == 0:
            return torch.zeros(gradient.shape[0], dtype=torch.float64, device=gradient.device)
        # A copy in units of the peak: squares of 1e-200 would vanish, of 1e200 overflow.
        rows = gradient.to(torch.float64, copy=True).div_(peak)
        noise = _ROUNDINGS * torch.finfo(gradient.dtype).eps * torch.linalg.vector_norm(rows, dim=1)
        if directions == 1:
            axis = leading_direction(rows.T @ rows)
            rows.addr_(rows @ axis, axis, alpha=-1.0)
        else:
            axes = leading_directions(rows.T @ rows, directions)
            rows.addmm_(rows @ axes, axes.T, alpha=-1.0)
        residuals: Tensor = torch.linalg.vector_norm(rows, dim=1)
        residuals = torch.where(residuals > noise, residuals * peak, 0.0)
        # Not torch's median, which takes the lower one of two in the middle.
        leans_right = residuals.mean().item() >= np.median(residuals.cpu().numpy())
        return residuals if leans_right else -residuals
