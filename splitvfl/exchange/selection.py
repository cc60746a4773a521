"""Secret batches: which records of an agreed batch are used, and which are sent along to hide them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, PrivacyError

KEY_BYTES: Final = 32

# Where no more than half of the draws fail, so many do in a row once in 10³⁸ steps.
_REDRAWS: Final = 128
_LEAST_ACCEPTANCE: Final = 0.5
_LARGEST_BATCH: Final = 1 << 22

Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw for a batch of ``n`` records.

    Attributes:
        sent: Whose part of the logits is asked for, and of whom something encrypted is sent, ``(n,)``, bool: ``RR(m)``.
        used: Whose residues are sent, ``(n,)``, bool: ``m`` and ``RR(m)``. Nobody but the label party knows them.
    """

    sent: Tensor
    used: Tensor


@dataclass(frozen=True, slots=True)
class SecretBatch:
    """How the records that are used are drawn from an agreed batch S, and hidden among others.

    ``m`` has exactly ``q |S|`` ones, rounded to the nearest whole number, at places drawn without replacement. Each of
    its bits is kept with ``p = e^ε / (1 + e^ε)`` and else turned round, which gives ``RR(m)``, of which ``L`` are ones;
    those of them that are ones of ``m`` too are used, ``k`` in number. A draw counts where ``k > 0`` and
    ``d < L < |S|`` for every number of columns ``d`` (equation 11); else everything is drawn again, so that ``RR`` is
    conditioned on it, and ``p`` no longer exact: :meth:`acceptance` says how often that happens.

    **ε is of m, which says nothing of labels**: it bounds what ``RR(m)`` tells of which records are used, nothing else.

    Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, table I and equation 11.

    Args:
        epsilon: ε of the randomised response on ``m`` in nats.
        share: ``q``: what share of the batch are ones of ``m``.

    Raises:
        ArgumentError: If ε is not positive and finite, or so large that p rounds to 1, or q is not between 0 and ½.
    """

    epsilon: float
    share: float

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not (math.isfinite(self.epsilon) and self.epsilon > 0 and 0.5 < self.kept < 1):
            raise ArgumentError(
                "expected epsilon positive and finite, and small enough that bits are turned round at all: "
                f"p = e^ε / (1 + e^ε) must be above ½ and below 1, got epsilon {self.epsilon!r}, which is p "
                f"{self.kept!r}"
            )
        if not 0 < self.share < 0.5:
            raise ArgumentError(
                f"expected share, q, above 0 and below ½ of the batch, got {self.share!r}: from ½ on more than half of "
                "the batch would be meant to be used, and nothing hidden among others"
            )

    @property
    def kept(self) -> float:
        """``p``: the probability that a bit is kept."""
        return 1.0 if self.epsilon > 700 else 1 / (1 + math.exp(-self.epsilon))

    def ones(self, size: int) -> int:
        """Return how many ones ``m`` has in a batch of so many records."""
        return round(self.share * size)

    def expected_used(self, size: int) -> float:
        """Return the mean of k, before anything is drawn again."""
        return self.ones(size) * self.kept

    def expected_sent(self, size: int) -> float:
        """Return the mean of L, before anything is drawn again."""
        ones = self.ones(size)
        return ones * self.kept + (size - ones) * (1 - self.kept)

    def acceptance(self, size: int, columns: int) -> float:
        """Return the probability that a draw counts: ``k > 0`` and ``columns < L < size``; exact.

        ``k`` and ``L − k`` are independent and binomial.

        Args:
            size: Records of the batch.
            columns: The largest number of columns of a passive party.
        """
        from scipy.stats import binom  # slow to import, and needed for this exchange only

        ones = self.ones(size)
        used = np.arange(1, ones + 1)
        others = binom(size - ones, 1 - self.kept)
        within = np.clip(others.cdf(size - 1 - used) - others.cdf(columns - used), 0, 1)
        return float(binom(ones, self.kept).pmf(used) @ within)

    def is_likely(self, size: int, columns: int) -> bool:
        """Return whether no more than half of the draws fail."""
        return columns + 1 < size and self.acceptance(size, columns) >= _LEAST_ACCEPTANCE

    def draw(self, key: bytes, step: int, size: int, columns: Iterable[int]) -> Draw:
        """Return the draw of a step: the same for the same key and step, and as good as random to who has no key.

        Args:
            key: A secret of 32 bytes of the label party.
            step: Number of the step.
            size: Records of the batch.
            columns: How many columns each passive party has.

        Raises:
            PrivacyError: If no draw of 128 counts.
        """
        most = max(columns)
        for attempt in range(_REDRAWS):
            meant, sent = self._bits(key, step, attempt, size)
            used = meant & sent
            if used.any() and most < sent.sum() < size:
                return Draw(torch.from_numpy(sent), torch.from_numpy(used))
        raise PrivacyError(
            f"none of {_REDRAWS} draws for the {size} records of step {step} has a record that is used and from "
            f"{most + 1} to {size - 1} that are sent; nothing was sent. Take larger batches (train.batch_size)"
        )

    def _bits(self, key: bytes, step: int, attempt: int, size: int) -> tuple[Bits, Bits]:
        assert len(key) == KEY_BYTES, "a key is 32 bytes long"
        stream = hashlib.shake_256(key + step.to_bytes(8, "little") + attempt.to_bytes(8, "little"))
        places, turns = np.frombuffer(stream.digest(16 * size), "<u8").reshape(2, size)
        meant = np.zeros(size, dtype=bool)
        meant[np.argsort(places, kind="stable")[: self.ones(size)]] = True
        # 64 bits each: p is met to 2^-53, as it is known.
        return meant, meant ^ (turns >= np.uint64(int(self.kept * 2.0**64)))

    def remedies(self, size: int, columns: int, records: int | None = None) -> list[str]:
        """Return settings, each alone in the place of today's, with which no more than half of the draws fail.

        Args:
            size: Records of the batch.
            columns: The largest number of columns of a passive party.
            records: How many there are to make batches of; ``None``: as many as are asked for.
        """
        found = []
        batch = _least(lambda size: self.is_likely(size, columns), columns + 2, records or _LARGEST_BATCH)
        if batch is not None:
            found.append(f"train.batch_size (|S|) from {batch} on")
        for share in (number / 20 for number in range(1, 10)):
            if share > self.share and SecretBatch(self.epsilon, share).is_likely(size, columns):
                found.append(f"share (q) {share:g}")
                break
        for kept in (number / 100 for number in range(95, 50, -5)):
            epsilon = math.floor(100 * math.log(kept / (1 - kept))) / 100
            if 0 < epsilon < self.epsilon and SecretBatch(epsilon, self.share).is_likely(size, columns):
                found.append(f"epsilon {epsilon:g} (p = {SecretBatch(epsilon, self.share).kept:.3f})")
                break
        return found

    def size_for(self, used: float) -> int:
        """Return the smallest batch of which so many records are used on average."""
        return math.ceil(used / (self.share * self.kept))


def known_support_ceiling(used: float, columns: int) -> float:
    """Return how often a sign is read right by who knows which records are used: ``Φ(√(d / (k − d)))``, 1 for k ≤ d.

    Of minimum-norm least squares on equations in k unknowns of one size, with generic columns.

    Args:
        used: ``k``.
        columns: ``d``, as many equations.

    >>> round(known_support_ceiling(100, 30), 3)
    0.744
    """
    if used <= columns:
        return 1.0
    return NormalDist().cdf(math.sqrt(columns / (used - columns)))


def used_for_ceiling(success: float, columns: int) -> float:
    """Return how many records must be used for such a ceiling: ``d (1 + 1 / z²)``, ``Φ(z)`` being the success.

    >>> round(used_for_ceiling(0.6, 1), 1), round(used_for_ceiling(0.55, 1), 1)
    (16.6, 64.3)
    """
    return columns * (1 + NormalDist().inv_cdf(success) ** -2)


def _least(holds: Callable[[int], bool], low: int, most: int) -> int | None:
    """Return the smallest number that will do, up to so many; ``None`` if the largest that is tried will not."""
    high = min(low, most)
    while high < most and not holds(high):
        low, high = high + 1, min(2 * high, most)
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high
