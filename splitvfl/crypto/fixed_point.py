"""Real numbers as integers with an agreed number of fraction bits, and back.

A value ``x`` becomes ``round(x · 2^bits)``, half to even, which errs by ``2^(-bits-1)`` at most. The number of bits is
agreed, so nothing beside the integer travels: an exponent per number, as ``phe`` sends it, tells each number's size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, CryptoError


def encode(values: Tensor, *, bits: int, limit: float) -> Tensor:
    """Return ``round(values · 2^bits)``.

    Args:
        values: Any shape, of a floating dtype; computed in float64.
        bits: Fraction bits, ≥ 0.
        limit: The agreed largest size of a value. Nothing is clipped here: clip first, where it can be seen.

    Returns:
        int64 of the same shape.

    Raises:
        ArgumentError: If ``limit · 2^bits`` does not fit 62 bits.
        CryptoError: If a value is NaN or larger than the limit; it says which.
    """
    if bits < 0 or not 0 < limit * 2.0**bits < 2.0**62:
        raise ArgumentError(
            f"expected bits from 0 and limit · 2^bits between 0 and 2^62, got {bits} bits, limit {limit:g}"
        )
    if not values.is_floating_point():
        raise ArgumentError(f"expected real numbers, got {str(values.dtype).removeprefix('torch.')}")
    wide = values.detach().to(torch.float64)
    # Written so that NaN counts as outside.
    outside = ~(wide.abs() <= limit)
    if outside.any():
        place = tuple(outside.nonzero()[0].tolist())
        raise CryptoError(
            f"expected values of size up to {limit:g}, the agreed limit, got {wide[place].item():g} at place "
            f"{place[0] if len(place) == 1 else place} ({int(outside.sum())} of {wide.numel()} are outside): "
            "clip them first, or agree on a larger limit"
        )
    return torch.round(wide * 2.0**bits).to(torch.int64)


def decode(values: Sequence[int] | Tensor, *, bits: int) -> Tensor:
    """Return ``values / 2^bits``, each rounded once.

    Args:
        values: Integers of any size: a sequence, or an int64 tensor ``(count,)``.
        bits: Fraction bits, ≥ 0.

    Returns:
        float64 ``(count,)``.
    """
    scale = 1 << bits
    listed = values.tolist() if isinstance(values, Tensor) else values
    # Division of Python integers is correctly rounded, however large they are.
    return torch.tensor([int(value) / scale for value in listed], dtype=torch.float64)
