"""Discrete Gaussian noise on sums that the owner of a key opens, and on its own: whole numbers of the sums' last bit.

A masked sum is a whole number that its owner cannot read, nor round to the grid of the noise. So the noise is ``g k +
u``: k of :func:`~splitvfl.learning.discrete_noise.discrete_gaussian`, g its grid in units of the sum's last bit, and u
uniform in ``[0, g)``. For an f that is uniform whatever the sum is, ``s + g k + u`` is f plus g times (``s`` rounded to
the grid, with f as the threshold, plus k). That is the mechanism with rounding before the noise, which
:meth:`~splitvfl.learning.discrete_noise.DiscreteNoise.widened` counts, and f tells nothing of the sum. Where the grid
is finer than the last bit, k is rounded to it: rounding after the noise, which costs nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from splitvfl.learning.discrete_noise import DiscreteNoise, Keystream, discrete_gaussian

KEY_BYTES = 32
_WORD_BITS = 64


@dataclass(frozen=True)
class SumNoise:
    """Noise of one standard deviation on the sums of a step, which follows from a key and the step's number.

    A step that is taken again has the same noise. Whoever knows the key knows it all.

    Attributes:
        key: 32 secret bytes.
        sigma: Standard deviation on every sum, > 0.
    """

    key: bytes = field(repr=False)
    sigma: float

    @property
    def law(self) -> DiscreteNoise:
        """What is drawn of every number."""
        return discrete_gaussian(self.sigma)

    def on_integers(self, receiver: str, step: int, count: int, *, bits: int) -> list[int]:
        """Return noise for sums that are whole numbers with so many fraction bits.

        Args:
            receiver: The party whose sums these are; each has draws of its own.
            step: Number of the step.
            count: How many sums there are.
            bits: Fraction bits of the sums.
        """
        stream = self._stream(f"sums of {receiver}", step)
        finer = _exponent(self.law.grid) + bits
        drawn: list[int] = self.law.draw(count, stream).tolist()
        if finer < 0:
            half = 1 << (-finer - 1)
            return [(number + half) >> -finer for number in drawn]
        return [(number << finer) + below for number, below in zip(drawn, _uniform(count, finer, stream), strict=True)]

    def on_own(self, sums: Tensor, step: int) -> Tensor:
        """Return the owner's own sums, float64 ``(count,)``, rounded to the grid of the noise, plus noise."""
        return torch.from_numpy(self.law.add(sums.numpy(), self._stream("own sums", step)))

    def _stream(self, purpose: str, step: int) -> Keystream:
        name = f"{step}/{purpose}".encode()
        return Keystream(hashlib.blake2b(name, key=self.key, digest_size=KEY_BYTES).digest())


def largest_noise(sigma: float) -> float:
    """Return the largest size of noise that is ever drawn: 13 standard deviations and two steps of its grid."""
    law = discrete_gaussian(sigma)
    return law.farthest + 2.0 * law.grid


def _exponent(power_of_two: float) -> int:
    """Return the exponent of a power of two."""
    mantissa, denominator = power_of_two.as_integer_ratio()
    return mantissa.bit_length() - denominator.bit_length()


def _uniform(count: int, bits: int, stream: Keystream) -> list[int]:
    """Return so many whole numbers, uniform in ``[0, 2^bits)``."""
    if not bits:
        return [0] * count
    words = -(-bits // _WORD_BITS)
    found = stream.words(count * words).astype("<u8").tobytes()
    width = 8 * words
    return [
        int.from_bytes(found[place : place + width], "little") >> (words * _WORD_BITS - bits)
        for place in range(0, len(found), width)
    ]
