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
import scipy
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, PrivacyError, number

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
        number("epsilon", self.epsilon)
        number("share", self.share)
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

    @classmethod
    def for_sizes(cls, used: int, sent: int, *, kept: float | None = None) -> tuple[SecretBatch, int]:
        """Return how to draw, and from batches of which size, where it is known how many are to be used and sent.

        With k used and L sent on average, ``q |S| = k / p`` and ``(1 − q) |S| = (L − k) / (1 − p)`` for any
        ``p > max(½, k / L)``: the further above it, the larger the batch. Both are rounded to whole numbers, so that
        :meth:`expected_used` and :meth:`expected_sent` may differ a little from what was asked for.

        Args:
            used: k, ≥ 1.
            sent: L, above k.
            kept: p. Default: the one of which both numbers come out whole, or nearest to it; of several that are as
                near, the one of the smallest batch.

        Returns:
            The draw, and ``|S|``, which is ``train.batch_size``.

        Raises:
            ArgumentError: If the sizes are not in this order, p is not between ``max(½, k / L)`` and 1, or no p makes
                ``k / p`` a whole number.

        >>> drawn, size = SecretBatch.for_sizes(16, 40)
        >>> size, drawn.ones(size), round(drawn.kept, 3), round(drawn.expected_sent(size), 9)
        (84, 28, 0.571, 40.0)
        """
        if not 1 <= used < sent:
            raise ArgumentError(f"expected 1 <= used < sent records, k and L of a batch, got {used} and {sent}")
        least = max(0.5, used / sent)
        if kept is None:
            if not (whole := [ones for ones in range(used + 1, 2 * used) if ones < sent]):
                raise ArgumentError(
                    f"of {used} used and {sent} sent records no p = k / (ones of m) lies above {least:.3g} and below "
                    "1: name p (kept)"
                )
            kept = used / min(whole, key=lambda ones: _apart(used, sent, used / ones))
        if not least < kept < 1:
            raise ArgumentError(
                f"expected p above max(½, k / L) = {least:.3g} and below 1, got {kept!r}: from there down the share q "
                "is one half or more"
            )
        ones, others = round(used / kept), round((sent - used) / (1 - kept))
        return cls(math.log(kept / (1 - kept)), ones / (ones + others)), ones + others

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
        ones = self.ones(size)
        used = np.arange(1, ones + 1)
        others = scipy.stats.binom(size - ones, 1 - self.kept)
        within = np.clip(others.cdf(size - 1 - used) - others.cdf(columns - used), 0, 1)
        return float(scipy.stats.binom(ones, self.kept).pmf(used) @ within)

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
        for share in (part / 20 for part in range(1, 10)):
            if share > self.share and SecretBatch(self.epsilon, share).is_likely(size, columns):
                found.append(f"share (q) {share:g}")
                break
        for kept in (part / 100 for part in range(95, 50, -5)):
            epsilon = math.floor(100 * math.log(kept / (1 - kept))) / 100
            if 0 < epsilon < self.epsilon and SecretBatch(epsilon, self.share).is_likely(size, columns):
                found.append(f"epsilon {epsilon:g} (p = {SecretBatch(epsilon, self.share).kept:.3f})")
                break
        return found

    def size_for(self, used: float) -> int:
        """Return the smallest batch of which so many records are used on average."""
        return math.ceil(used / (self.share * self.kept))


def run_success(epochs: float, *, size: int, used: float, sent: float, columns: int) -> float:
    """Return about how often a label is read right from a run: ``Φ(√(E d k / (L |S|)))``.

    A record is sent ``E L / |S|`` times and used in k of L of these, and who attacks does not know in which: the
    likelihoods add up to a Gaussian of as many noises. That is so where each tells little, k well above d; below, a run
    tells more. It is what :class:`~splitvfl.attacks.SecretBatchLikelihoodAttack` reads, and no bound on other attacks.

    Args:
        epochs: E: how often each record is in a batch.
        size: ``|S|``.
        used: ``k``, on average.
        sent: ``L``, on average.
        columns: ``d``.

    >>> round(run_success(100, size=3467, used=640, sent=1600, columns=10), 3)
    0.633
    """
    return NormalDist().cdf(math.sqrt(epochs * columns * used / (sent * size)))


def epochs_for_success(success: float, *, size: int, used: float, sent: float, columns: int) -> float:
    """Return after how many epochs :func:`run_success` is so much, above ½.

    >>> round(epochs_for_success(0.9, size=3467, used=640, sent=1600, columns=10))
    1424
    """
    return NormalDist().inv_cdf(success) ** 2 * sent * size / (used * columns)


def _apart(used: int, sent: int, kept: float) -> tuple[float, float]:
    """Return how far the number of zeros of ``m`` is from a whole one, and that number."""
    others = (sent - used) / (1 - kept)
    return round(abs(others - round(others)), 9), others


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
