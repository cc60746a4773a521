"""Canaries: training records with coin-toss labels, among which any leak of labels is one beyond the prediction.

A record's columns tell something of its label, and so does everything that a model makes of them. Of a coin that was
tossed for the record they tell nothing. The label party places the coins, alone and without a word; from then on they
are labels like all others: trained on, answered for, defended, sent. The AUC of an attack's score *among the canaries*
is then what the messages gave away of labels that nobody can predict, with nothing to subtract or to match.

**The coins** are fair and independent of everything. Should all of them agree (one case in 2¹⁹ at twenty records), all
are tossed again: given how many of each class there are, every order stays equally likely. So a score that knows
nothing of the coins has an AUC of one half in expectation, and a promise that a defense makes for every record holds
for the canaries: behind ``asymmetric-response`` at L no score that follows from the messages is expected to exceed
1 − L. If the lower end of the interval does, a promise is broken, or the label came another way.

**Who is asked.** The auditor scores canaries without having learned from them: neither their labels nor their clean
gradients enter its axis or its densities. Else its own knowledge would be found in messages that hold none. Its
prediction of a canary is no part of the figure: a model learns coins by heart (on digits, undefended, its final
prediction read .62 of them after 30 epochs), and the prediction stays with the label party. All other figures of
attacks are of the other records with their true labels; no attacker is granted a canary as a known record.

**The interval** says what other records and coins would have read in this run (:func:`~splitvfl.metrics.auc_interval`).
It says nothing of another run, with other noise and weights, nor of other attacks: what an attack reads is a lower
bound of what there is to read. 3000 canaries give about ±.02, 300 ±.065, 20 ±.25.

**What it costs.** Every canary is trained on noise; half of the labels are wrong on average, and where one class is
rare its share seems larger than it is. With 2 % canaries and no defense the test AUC changed by −.0010 ± .0013 on
credit-default (480 of 24,000; 5 seeds, 5 epochs; of the first 3 seeds −.0004 ± .0015) and by −.0015 ± .0021 on digits
(29 of 1437; 10 seeds, 20 epochs), the test loss by +.0001 ± .0005 of .442 and +.013 ± .004 of .080: ranks hardly
suffer, sharp probabilities do. With 10 % on credit-default: +.0001 ± .0019 and +.0036 ± .0029. (Paired by seed, 95 % t
intervals.) A private top learns from true labels, as it sends nothing.

**Are they like other records?** A canary's label is as often against the prediction as with it, others' are mostly with
it; what a message tells of a label *given* the prediction does not depend on which of the two it is. With the
prediction subtracted, the same score read .75 and .94 of 288 canaries on digits behind ``axis-sumkl`` at .4, after 6
and 30 epochs, and .72 and .94 of the other records; behind ``axis-gaussian`` .82 and .97, .81 and .97. It is the score
that may do worse on canaries: one that was fitted to others has rarely seen a confident prediction that is wrong.

**Can a partner find them?** Nothing that crosses says which they are: all messages are to the bit those of a run whose
data have these labels. But half are mislabelled, and mislabelled records keep large gradients. On digits, in the last
10 of 30 epochs, row norms told canaries whose coin is wrong from all other records with an AUC of .996 undefended, .72
behind ``max-norm`` and .60 behind ``asymmetric-response`` and ``axis-sumkl`` at .4. Whoever finds one learns that a
label is a coin, and nothing of a true one. The figure assumes that the partner does not treat canaries in a way of
their own: one that recognises them could send activations for them that make the figure better than the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.data.coin_labels import LEAST_CANARIES, Canaries, CoinLabels, Positions
from splitvfl.data.columns import Columns, Records
from splitvfl.errors import ArgumentError, ConfigError, DataError
from splitvfl.metrics import auc_interval, leak_auc, top_shares

MOST_TWIN_CANARIES = 3_000
"""An audit twin has no more: see :func:`twin_canaries`."""


@dataclass(frozen=True, slots=True)
class CanaryLeak:
    """One attack's leak of the canaries' labels, added up over the run, oriented by the records that are no canaries.

    Attributes:
        auc: AUC of the accumulated scores among the canaries. One that was never scored counts as a tie, in the middle.
        low: Lower end of the interval, :func:`~splitvfl.metrics.auc_interval`.
        high: Upper end.
        positives: Canaries with label 1 that were judged.
        negatives: Canaries with label 0.
        top1: Of k classes, where canaries have a label that was drawn from all of them: share whose own class scored
            highest, which for who knows nothing is 1/k; else ``None``. The AUC is then that of the label against one
            other that is drawn for each canary: by the difference of the two scores, which of the two has the larger
            number. So it is that of a fair coin there, too.
        figures: Of how many attacks it is the largest; the interval holds for all of them at once.
        twin: Whether it was measured on an audit twin, a training with the same settings that was thrown away.
    """

    auc: float
    low: float
    high: float
    positives: int
    negatives: int
    top1: float | None = None
    figures: int = 1
    twin: bool = False

    @property
    def count(self) -> int:
        """Number of canaries that were judged."""
        return self.positives + self.negatives

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, *, level: float = 0.95) -> Self:
        """Return the figures of scores of canaries, ``(n,)``, and their coins, ``(n,)`` in {0, 1}."""
        low, high = auc_interval(scores, labels, level=level)
        positives = int((labels == 1).sum())
        return cls(leak_auc(scores, labels), low, high, positives, labels.numel() - positives)

    @classmethod
    def of_classes(
        cls, scores: npt.NDArray[np.float64], labels: Positions, classes: int, *, level: float = 0.95
    ) -> Self:
        """Return the figures of scores of canaries, ``(n, k)``, and the classes that were drawn for them, ``(n,)``.

        The other class is drawn from a fixed seed: it need not be secret, only independent of the label.
        """
        rows = np.arange(labels.size)
        others = (labels + np.random.default_rng(0).integers(1, classes, labels.size)) % classes
        low, high = np.minimum(labels, others), np.maximum(labels, others)
        scores = scores if labels.size else np.zeros((0, classes))
        found = cls.of(
            torch.from_numpy(scores[rows, high] - scores[rows, low]),
            torch.from_numpy((labels > others).astype(np.int64)),
            level=level,
        )
        return replace(found, top1=float(top_shares(scores, labels).mean()) if labels.size else None)


def pooled(attacks: Sequence[Sequence[CanaryLeak]]) -> CanaryLeak | None:
    """Return the largest AUC of several attacks among the canaries of several runs, with an interval for all at once.

    An attack's AUC is its mean over runs, weighted by their pairs of a positive and a negative canary: so it is that of
    all pairs from one run. The largest is chosen then, not in each run, as a mean of largest reads too high however
    many runs there are. The interval combines those of the runs (MOVER). What runs differ by more than their intervals
    say is added (DerSimonian and Laird).

    Source: Zou and Donner, Statistics in Medicine 27 (2008), 1693-1702; DerSimonian and Laird, Controlled Clinical
    Trials 7 (1986), 177-188.

    Args:
        attacks: Of each attack the figures of every run, with intervals of 95 % of their own.
    """
    found = [_over_runs(runs, NormalDist().inv_cdf(1.0 - 0.025 / len(attacks))) for runs in attacks if runs]
    largest = max(found, key=lambda leak: leak.auc, default=None)
    return None if largest is None else replace(largest, high=max(leak.high for leak in found), figures=len(attacks))


def _over_runs(runs: Sequence[CanaryLeak], quantile: float) -> CanaryLeak:
    """Return one attack's figures over runs, with an interval of so many standard errors."""
    aucs, lows, highs = np.array([(leak.auc, leak.low, leak.high) for leak in runs]).T
    own = NormalDist().inv_cdf(0.975)
    precisions = np.maximum((highs - lows) / (2.0 * own), 1e-9) ** -2.0
    spread = precisions @ (aucs - precisions @ aucs / precisions.sum()) ** 2 - (aucs.size - 1)
    scale = precisions.sum() - precisions @ precisions / precisions.sum()
    between = max(0.0, spread / scale) if aucs.size > 1 else 0.0  # variance
    weights = np.array([leak.positives * leak.negatives for leak in runs], np.float64)
    weights /= weights.sum()
    middle = float(weights @ aucs)
    below, above = (quantile * math.sqrt(weights**2 @ (((aucs - ends) / own) ** 2 + between)) for ends in (lows, highs))
    return CanaryLeak(
        middle,
        max(0.0, middle - below),
        min(1.0, middle + above),
        sum(leak.positives for leak in runs),
        sum(leak.negatives for leak in runs),
        twin=all(leak.twin for leak in runs),
    )


def check_canaries(*, audit: bool, exchange: str, read: bool = True) -> None:
    """Refuse canaries where nobody looks for them.

    Args:
        audit: Whether the auditor's attack is run.
        exchange: Name of the exchange.
        read: Whether messages about single records come back to a passive party in it.

    Raises:
        ConfigError: If so.
    """
    if not audit:
        raise ConfigError("canaries are for the auditor, who is switched off; take them out")
    if not read:
        raise ConfigError(
            f"the excess leakage cannot be measured in this protocol: in exchange {exchange} no message about one "
            "record comes back to a passive party, so there is nothing in which canaries could be read; take them out"
        )


def twin_canaries(records: int) -> int:
    """Return how many canaries an audit twin has: half of the records that may be one, and no more than 3 000.

    They cost nothing, as the twin is thrown away. 3 000 have a margin of ±0.025, and decide an excess that is 0.04 from
    the goal in nine runs of ten. More would make the twin's labels, of which half of the canaries' are wrong, less like
    those of the run.

    Args:
        records: Training records that are neither held out nor dummies.

    Raises:
        DataError: If there are too few.
    """
    if records < 2 * LEAST_CANARIES:
        raise DataError(f"an audit twin needs {2 * LEAST_CANARIES} training records, and there are {records}")
    return min(MOST_TWIN_CANARIES, records // 2)


def canaries_of(given: Canaries | Tensor | None) -> Canaries | None:
    """Return canaries, of which the ids may be given alone."""
    return Canaries(given) if isinstance(given, Tensor) else given


def with_canaries(
    labels: Tensor, count: int, *, noise_seed_for_experiments: int | None = None, classes: int | None = 2
) -> tuple[Tensor, Tensor]:
    """Return labels of which some are coin tosses, and which: for a training loop of one's own.

    Call it once for a run and keep what it returns: other coins in every epoch would be noise on the labels. Train on
    the labels returned and judge with ``cut.audit(canaries=ids[positions])``.

    Args:
        labels: Of the training records, ``(n,)`` in {0, 1}, any dtype, or in 0 … k−1, or numbers; they stay as they
            are.
        count: How many canaries, from twenty to ``n // 2``.
        noise_seed_for_experiments: Fixed seed, for experiments only. Default: the operating system's entropy.
        classes: Number of classes, of which each canary gets one, all equally likely; ``None`` for numbers, of which it
            gets the lower or the upper quartile.

    Returns:
        Labels ``(n,)`` like ``labels``, and the positions of the canaries, ``(count,)`` int64, ascending.

    Raises:
        ArgumentError: If there are fewer than twenty, or labels are not 0 and 1, or no such classes.
        DataError: If they are more than half.
    """
    if classes == 2 and (labels.dim() != 1 or not ((labels == 0) | (labels == 1)).all()):
        raise ArgumentError(f"expected labels 0 and 1, one per record, got {labels.dtype} {tuple(labels.shape)}")
    if labels.dim() != 1 or (classes is not None and not ((labels >= 0) & (labels < classes)).all()):
        raise ArgumentError(
            f"expected one label per record, at least 0 and below {classes}, got {labels.dtype} {tuple(labels.shape)}"
        )
    positions = torch.arange(labels.shape[0])
    records = Records(positions, Columns.of(torch.zeros(labels.shape[0], 0)), labels)
    placed = CoinLabels.place(
        records,
        count,
        trained=records.count,
        position=lambda places: places,
        noise_seed_for_experiments=noise_seed_for_experiments,
        classes=classes,
    )
    tossed = placed.label(records, positions).labels
    assert tossed is not None
    return tossed, torch.from_numpy(placed.ids.copy()).to(labels.device)
