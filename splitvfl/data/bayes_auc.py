"""The best AUC that any model can reach, where the probability of every record's label is known."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from splitvfl.errors import ArgumentError, DataError

Floats = npt.NDArray[np.float64]

# Bins of equal width in the logit. Records of one bin count as ties, which moves the AUC by less than 1e-6.
_BINS, _REACH = 1 << 15, 16.0


class BayesAUC:
    """Adds up, chunk by chunk and in bounded memory, how well the true probabilities rank the labels.

    The probability p that a record is positive, given all its columns, is the best score that there is. With labels
    drawn from it, independently, the expected share of well ranked pairs has a closed form::

        AUC = Σ_{i≠j} p_i (1 − p_j) (1[p_i > p_j] + ½ 1[p_i = p_j])  /  Σ_{i≠j} p_i (1 − p_j)

    which estimates the population's Bayes AUC from the columns alone, without the noise of the labels. Probabilities
    are binned by their logit, so that the sum over pairs is one pass over the bins.
    """

    def __init__(self) -> None:
        self._records = np.zeros(_BINS)
        self._expected = np.zeros(_BINS)
        self._squares = np.zeros(_BINS)
        self._positives = np.zeros(_BINS)

    def add(self, probabilities: Floats, labels: npt.NDArray[np.bool_]) -> None:
        """Count more records.

        Args:
            probabilities: True probabilities of the positive class, ``(n,)``, strictly between 0 and 1.
            labels: What was drawn, ``(n,)``.

        Raises:
            ArgumentError: If lengths differ, or a probability is not strictly between 0 and 1.
        """
        if probabilities.shape != labels.shape:
            raise ArgumentError(f"expected one label per probability, got {labels.shape} and {probabilities.shape}")
        if not ((probabilities > 0) & (probabilities < 1)).all():
            raise ArgumentError("expected probabilities strictly between 0 and 1")
        logits = np.log(probabilities / (1 - probabilities))
        bins = ((logits + _REACH) * (_BINS / (2 * _REACH))).astype(np.int64).clip(0, _BINS - 1)
        for total, weights in (
            (self._records, None),
            (self._expected, probabilities),
            (self._squares, probabilities**2),
            (self._positives, labels),
        ):
            total += np.bincount(bins, weights, minlength=_BINS)

    @property
    def records(self) -> int:
        """Number of records."""
        return int(self._records.sum())

    @property
    def positives(self) -> int:
        """Number of positive labels that were drawn."""
        return int(self._positives.sum())

    @property
    def auc(self) -> float:
        """The Bayes AUC, by the formula above.

        Raises:
            DataError: If there are fewer than two records.
        """
        negative = self._records - self._expected
        # Pairs of a record with itself, which are in the sums over bins as ties.
        own = self._expected.sum() - self._squares.sum()
        pairs = self._expected.sum() * negative.sum() - own
        if self.records < 2:
            raise DataError(f"expected two records or more, got {self.records}")
        return float(((self._expected * _below(negative)).sum() - own / 2) / pairs)

    @property
    def drawn_auc(self) -> float:
        """AUC of the true probabilities for the labels that were drawn; NaN where these are of one class only."""
        negative = self._records - self._positives
        pairs = self._positives.sum() * negative.sum()
        return float((self._positives * _below(negative)).sum() / pairs) if pairs else math.nan

    @property
    def standard_error(self) -> float:
        """Standard error of :attr:`auc` as an estimate of the population's, for records drawn independently.

        The standard deviation of one record's influence on the ratio, over √n: with F the expected share of negatives
        below p and G that of positives above it, both of all records, and π the positive share, the influence is
        ``(p F + (1 − p) G − AUC (p (1 − π) + (1 − p) π)) / (π (1 − π))``.

        Raises:
            DataError: As :attr:`auc`.
        """
        count, share = self._records.sum(), self._expected.sum() / self._records.sum()
        probability = self._expected / self._records.clip(min=1)
        negative = self._records - self._expected
        below = _below(negative) / count
        above = _below(self._expected[::-1])[::-1] / count
        expected_pairs = probability * (1 - share) + (1 - probability) * share
        influence = probability * below + (1 - probability) * above - self.auc * expected_pairs
        influence /= share * (1 - share)
        return float(math.sqrt((self._records * influence**2).sum()) / count)

    @property
    def interval(self) -> tuple[float, float]:
        """A 95 % interval of the population's Bayes AUC; raises as :attr:`auc`."""
        return self.auc - 1.96 * self.standard_error, self.auc + 1.96 * self.standard_error


def _below(weights: Floats) -> Floats:
    """Return for each bin the weight of all lower bins and half of its own."""
    below: Floats = np.cumsum(weights) - weights / 2
    return below
