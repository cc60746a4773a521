"""Norms of rows that neither vanish nor overflow, and noise measured against them."""

from __future__ import annotations

import torch
from torch import Tensor

from splitvfl.hooks import Secrets

# Squares of norms between these are normal numbers, even in float32.
_SAFE = (1e-15, 1e15)
_COVER = 8.0

REACH = 4.0
"""Standard deviations that nearly every draw stays within."""


def row_norms(rows: Tensor) -> Tensor:
    """Return the Euclidean norm of every row, ``‖r_i‖₂``, right for rows of any magnitude.

    Squares of entries near 1e-23 vanish in float32 and those near 1e19 overflow. Rows with such norms, in practice
    gradients of records that the model is sure of, are computed again in units of their largest entry.

    Args:
        rows: ``(n, d)``, floating point.

    Returns:
        ``(n,)`` in the dtype of ``rows``; 0 for rows of zeros only.
    """
    if rows.shape[1] == 1:  # the message of a linear model: nothing is squared
        return rows.abs().squeeze(1)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    odd = (norms < _SAFE[0]) | (norms > _SAFE[1])
    if odd.any():
        norms[odd] = _scaled_norms(rows[odd])
    return norms


def rows_within(rows: Tensor, norms: Tensor, bound: float) -> Tensor:
    """Return the rows, the longer ones scaled down to a norm; those of one number exactly to it.

    Args:
        rows: ``(n, d)``, floating point.
        norms: Of the rows, as :func:`row_norms` has them.
        bound: Above 0.
    """
    if rows.shape[1] == 1:
        return rows.clamp(-bound, bound)
    return rows * (bound / norms.clamp(min=bound)).unsqueeze(1)


def _scaled_norms(rows: Tensor) -> Tensor:
    peaks = rows.abs().amax(dim=1, keepdim=True)
    units = rows / torch.where(peaks > 0, peaks, 1.0)
    norms: Tensor = torch.linalg.vector_norm(units, dim=1) * peaks[:, 0]
    return norms


def rounding_cover(dtype: torch.dtype, largest: float) -> float:
    """Return the scale of noise in every entry that covers how rows up to some norm were rounded.

    Multiples of one vector are rounded each in its own way, so that noise along that vector leaves them to be told
    apart. Two rows are at most ``eps · largest`` apart by their rounding; under noise of eight times that in every
    entry no attacker's detection error is below Φ(−1/16) = .475 by what their rounding tells of one message.

    Args:
        dtype: Of the message.
        largest: Norm of the longest row, as it is sent.
    """
    return _COVER * torch.finfo(dtype).eps * largest


def log_noise(secrets: Secrets, power: float, norms: Tensor) -> None:
    """Log ``power`` and, for a batch that is not all zeros, ``noise_to_signal``.

    Args:
        secrets: The sender's.
        power: Mean squared norm of a row's noise.
        norms: Norms of the clean rows, ``(n,)``; the signal is their mean square.
    """
    secrets.log("power", power)
    signal = norms.double().square().mean().item()
    if signal > 0:
        secrets.log("noise_to_signal", power / signal)


def log_change(secrets: Secrets, clean: Tensor, sent: Tensor) -> None:
    """Log as :func:`log_noise` what a defense without noise did: power is the mean squared norm of a row's change.

    Args:
        secrets: The sender's.
        clean: Gradient before the defense, ``(n, width)``.
        sent: What is sent instead, ``(n, width)``.
    """
    log_noise(secrets, row_norms(sent - clean).double().square().mean().item(), row_norms(clean))
