"""Noise along each gradient that hides its length, and not its direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.claims import NoPromise
from splitvfl.defenses.row_norms import REACH, log_noise, rounding_cover, row_norms
from splitvfl.hooks import Secrets


class MaxNorm:
    """Give every row of the cut gradient the same expected squared norm.

    Row ``g`` becomes ``g + z · sqrt(peak² − ‖g‖²) · g / ‖g‖``, where ``z ~ N(0, 1)`` and ``peak`` is the largest row
    norm. The mean is unchanged.

    Every row but those of zeros and the largest also gets noise of the size of rounding in every entry: noise along a
    row only scales it, and how a scaled row was rounded tells which one it was.

    A heuristic with no formal guarantee: direction survives up to sign, the largest row is sent unchanged, and rows of
    zeros stay zero, visibly so. Gradients in half precision are rounded far more coarsely than that noise covers.

    Logs ``power``, the mean squared norm of a row's noise, and ``noise_to_signal``, power over the mean squared norm of
    a clean row.

    Cost: on digits a test AUC of .989 for .997 undefended (private top: .990). Time: one number for each record.

    In a file: ``defenses: [max-norm]``

    Source: Li et al., ICLR 2022, arXiv:2102.08504, section 4 (``max_norm``).
    """

    name: ClassVar[str] = "max-norm"
    shifts_scores: ClassVar[str] = ""
    weaknesses: ClassVar[Mapping[str, str]] = {"direction": "max-norm hides norms only, and direction recovers labels."}

    def claims(self) -> tuple[NoPromise]:
        """Return that nothing is promised, and why."""
        return (
            NoPromise(
                "It is a heuristic against the attack norm: directions survive up to their sign, and noise averages "
                "out over epochs."
            ),
        )

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the gradient to send.

        Args:
            gradient: ``(n, width)``, float32 or wider.
            secrets: The sender's; its generator and log are used.

        Returns:
            A new tensor like ``gradient``.
        """
        norms = row_norms(gradient)
        peak = norms.max()
        # The factored form neither overflows nor cancels.
        scales = torch.sqrt(peak - norms) * torch.sqrt(peak + norms)
        log_noise(secrets, scales.double().square().mean().item(), norms)
        # Divided first: the quotient of a scale and a tiny norm could overflow.
        units = gradient.double() / torch.where(norms > 0, norms, 1.0).unsqueeze(1)
        along = secrets.normal(norms.shape[0]).mul_(scales).unsqueeze(1)
        noisy = (scales * norms > 0).unsqueeze(1)
        cover = secrets.normal(*gradient.shape).mul_(noisy * rounding_cover(gradient.dtype, REACH * peak.item()))
        total = units.mul_(along).add_(cover).add_(gradient)
        return secrets.rounded(total, scale=peak.item(), like=gradient)
