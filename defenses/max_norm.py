"""Noise along each gradient that hides its length, and not its direction."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.defenses.row_norms import log_noise, row_norms
from splitvfl.hooks import Secrets


class MaxNorm:
    """Give every row of the cut gradient the same expected squared norm.

    Row ``g`` becomes ``g + z · sqrt(peak² − ‖g‖²) · g / ‖g‖``, where ``z ~ N(0, 1)`` and ``peak`` is the largest row
    norm. The mean is unchanged.

    A heuristic with no formal guarantee: direction survives up to sign, the largest row is sent unchanged, and rows of
    zeros stay zero, visibly so.

    Logs ``power``, the mean squared norm of a row's noise, and ``noise_to_signal``, power over the mean squared norm of
    a clean row.

    Source: Li et al., ICLR 2022, arXiv:2102.08504, section 4 (``max_norm``).
    """

    name: ClassVar[str] = "max-norm"

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
        z = torch.randn(norms.shape, generator=secrets.generator, device=norms.device, dtype=norms.dtype)
        # Divided first: the quotient of a scale and a tiny norm could overflow.
        units = gradient / torch.where(norms > 0, norms, 1.0).unsqueeze(1)
        return units.mul_((z * scales).unsqueeze(1)).add_(gradient)
