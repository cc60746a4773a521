"""Noise and coin tosses of defenses: the one place where they are drawn, and where noise is added.

Everything comes from :func:`random_bits`, in whole numbers of 63 bits, of a torch generator or, in a deployed run, a
:class:`~splitvfl.learning.discrete_noise.Keystream`. A hook draws through its :class:`~splitvfl.hooks.Secrets`, which
call these functions with its own source.

Why not ``torch.randn``: in float32 on a CPU, torch's Gaussian noise has one of 2^24 angles in every pair of numbers.
Whoever knows two rows that may have been sent takes each away and sees which one leaves such an angle: the label of a
record, or the record, is read through noise of any size. So noise is drawn in float64, added in float64, and the *sum*
is rounded, once, on a grid that no row decides. Drawing in float64 alone would not do where the message is float64
itself: then the 2^53 angles of such noise can be seen.

From a keystream, :func:`add_normal` and :func:`add_laplace` with one scale add discrete noise to numbers of its grid,
exactly (:mod:`splitvfl.learning.discrete_noise`).

What is not promised. Torch's generators are not cryptographic: from enough output their state, and so all noise, can be
computed. Numbers that are not discrete are Gaussian as far as float64 goes: beyond 9.42 standard deviations there are
none, and beyond seven (two pairs in 10^11) they lie on a lattice that can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.learning.discrete_noise import MOST_SCALES, DiscreteNoise, Keystream, Law

Source = torch.Generator | Keystream
"""Where random bits come from: a seeded generator, for experiments, or a secret keystream."""

GRID_BITS = 30
"""The grid of a sum is 2^-30 of the noise's scale, rounded up to a power of two."""

_BITS = 63
_FLOAT_BITS = 53  # of a float64's significand
# Blocks of half a MiB of float64 stay in the cache between one operation and the next.
_BLOCK_ENTRIES = 2**16
_LARGEST_EXPONENT = 1000  # so that no grid overflows


def drawing_device(device: torch.device) -> torch.device:
    """Return where noise for messages on a device is drawn and added: there, or on the CPU if it has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def random_bits(count: int, generator: Source) -> Tensor:
    """Return ``(count,)`` whole numbers, each uniform in [0, 2^63), on the generator's device, or the CPU."""
    if isinstance(generator, Keystream):
        return torch.from_numpy((generator.words(count) >> np.uint64(1)).astype(np.int64))
    return torch.empty(count, dtype=torch.int64, device=generator.device).random_(generator=generator)


def uniform(shape: Sequence[int], generator: Source) -> Tensor:
    """Return float64 numbers uniform in [0, 1), multiples of 2^-53, on the generator's device."""
    bits = random_bits(math.prod(shape), generator) >> (_BITS - _FLOAT_BITS)
    return bits.double().mul_(2.0**-_FLOAT_BITS).reshape(tuple(shape))


def standard_normal(shape: Sequence[int], generator: Source) -> Tensor:
    """Return standard normal numbers in float64, on the generator's device; how many bits they take, the shape decides.

    ``r cos t`` and ``r sin t`` with ``r = sqrt(−2 ln u)``, u and t from 63 bits each. Torch's own takes 53, and two to
    three times as long.

    Source: Box and Muller, Annals of Mathematical Statistics 29 (1958).
    """
    count = math.prod(shape)
    half = (count + 1) // 2
    bits = random_bits(2 * half, generator)
    drawn = bits.double()
    radius, angle = drawn[:half], drawn[half:]
    radius.add_(0.5).mul_(2.0**-_BITS).log_().mul_(-2.0).sqrt_()  # half a unit: no logarithm of zero
    angle.mul_(math.tau * 2.0**-_BITS)
    sine = torch.sin(angle, out=bits.view(torch.float64)[:half])  # the bits are used up
    angle.cos_().mul_(radius)
    radius.mul_(sine)
    return drawn[:count].reshape(tuple(shape))


def standard_laplace(shape: Sequence[int], generator: Source) -> Tensor:
    """Return Laplace numbers of mean 0 and scale 1 in float64, on the generator's device.

    ``±ln u``, with a sign of one bit and u from 62: none is beyond 43.7, where one in 10^19 would be.
    """
    bits = random_bits(math.prod(shape), generator)
    size = (bits >> 1).double().add_(0.5).mul_(2.0 ** -(_BITS - 1)).log_()  # half a unit: no logarithm of zero
    return torch.where(bits & 1 == 0, size, -size).reshape(tuple(shape))


def add_normal(message: Tensor, scale: float | Tensor, generator: Source) -> Tensor:
    """Return ``message + scale · N(0, 1)`` in the message's dtype: drawn and added in float64, rounded once.

    From a keystream, and with one scale, the noise is discrete: the message is rounded to its grid first.

    Args:
        message: ``(n, …)``, floating point, on the generator's device.
        scale: Standard deviation, at least 0: one number, or a tensor that can be expanded to the message's shape.
        generator: Where the bits come from.

    Raises:
        ArgumentError: If the scale is negative or not finite.
    """
    largest = largest_scale(scale)
    if isinstance(generator, Keystream) and not isinstance(scale, Tensor) and _has_grid(message, scale):
        return _discrete("gaussian", message, scale, generator)
    sent = torch.empty_like(message, memory_format=torch.contiguous_format)
    scales = scale.expand(message.shape) if isinstance(scale, Tensor) else None
    for block in blocks(message):
        total = standard_normal(message[block].shape, generator).to(message.device)
        total.mul_(scale if scales is None else scales[block]).add_(message[block])
        sent[block] = snap(total, largest)
    return sent


def add_laplace(message: Tensor, scale: float, generator: Source) -> Tensor:
    """Return ``message + scale · Laplace(0, 1)`` in the message's dtype, as :func:`add_normal` does it.

    Args:
        message: Floating point, on the generator's device.
        scale: Scale of the noise, at least 0.
        generator: Where the bits come from.

    Raises:
        ArgumentError: If the scale is negative or not finite.
    """
    largest = largest_scale(scale)
    if isinstance(generator, Keystream) and _has_grid(message, scale):
        return _discrete("laplace", message, scale, generator)
    noise = standard_laplace(message.shape, generator).to(message.device)
    return snap(noise.mul_(scale).add_(message), largest).to(message.dtype)


def _has_grid(message: Tensor, scale: float) -> bool:
    """Return whether a message can be rounded to the grid of noise: not without noise, nor what noise cannot cover."""
    if scale == 0.0 or not 1e-290 < scale < 1e270 or not message.numel():
        return False
    # Not of what is not finite either, which whoever receives it refuses.
    return bool((message.detach().abs() < scale * MOST_SCALES).all())


def _discrete(law: Law, message: Tensor, scale: float, stream: Keystream) -> Tensor:
    values = message.detach().to(device="cpu", dtype=torch.float64).numpy()
    sent = torch.from_numpy(DiscreteNoise(law, scale).add(values, stream))
    return sent.to(device=message.device, dtype=message.dtype)


def snap(total: Tensor, scale: float) -> Tensor:
    """Round a float64 sum of message and noise, in place, to a grid of 2^-30 of the scale (or 2^-52 of the number).

    How finely floating point holds a number depends on the number. The bits below the grid hold nothing of the message
    that the noise covers, and are where its lattice could be seen.

    Args:
        total: The sum, float64.
        scale: The largest scale of the noise; 0 changes nothing.
    """
    if scale == 0.0:
        return total
    # The last bit of a float64 of this size is the grid's; adding it rounds there, and nothing overflows.
    shift = math.ldexp(1.5, min(math.frexp(scale)[1], _LARGEST_EXPONENT) + _FLOAT_BITS - 1 - GRID_BITS)
    return total.add_(shift).sub_(shift)


def largest_scale(scale: float | Tensor) -> float:
    """Return the largest of some scales.

    Raises:
        ArgumentError: If one is negative or not finite.
    """
    if isinstance(scale, Tensor):
        low, high = (value.item() for value in torch.aminmax(scale)) if scale.numel() else (0.0, 0.0)
    else:
        low = high = float(scale)
    if not (low >= 0.0 and high < math.inf):
        raise ArgumentError(f"the scale of noise must be finite and at least 0, got {low if low < 0.0 else high}")
    return high


def blocks(rows: Tensor) -> Iterator[slice]:
    """Return slices of the first dimension that are worked on one by one: on a GPU all at once."""
    count = rows.shape[0]
    each = max(1, _BLOCK_ENTRIES * count // max(rows.numel(), 1)) if rows.device.type == "cpu" else max(count, 1)
    return (slice(start, min(start + each, count)) for start in range(0, count, each))
