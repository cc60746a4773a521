"""How much leaked: rank statistics and errors of reconstruction.

Leak AUC is computed here, exactly and with midranks, on any device and dtype. scikit-learn's is the oracle in the
tests; a library that squashes scores above one before it ranks them would not do for gradient norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

Array = npt.NDArray[np.floating[Any]]

_LARGEST = np.finfo(np.float64).max


def leak_auc(scores: Tensor, labels: Tensor) -> float:
    """Return the probability that a random positive's score exceeds a random negative's, ties counting one half.

    0.5 is a blind attacker, 1 a perfect one, 0 a perfect one with the sign reversed. Exact for any number of ties.

    Args:
        scores: ``(n,)`` or ``(n, 1)``, any real dtype and device; higher means "more likely positive".
        labels: ``n`` labels in {0, 1}, any dtype.

    Returns:
        A float in [0, 1]; NaN with one class only, where no such probability exists.

    Raises:
        ArgumentError: If lengths differ, labels lie outside {0, 1}, or a score is NaN.
    """
    return rank_auc(*scores_and_positives(scores, labels))


def rank_auc(scores: Array, positive: npt.NDArray[np.bool_]) -> float:
    """Return :func:`leak_auc` of arrays that :func:`scores_and_positives` made."""
    positives, negatives = np.sort(scores[positive]), np.sort(scores[~positive])
    if positives.size == 0 or negatives.size == 0:
        return math.nan
    below = np.searchsorted(negatives, positives, side="left").sum(dtype=np.int64)
    not_above = np.searchsorted(negatives, positives, side="right").sum(dtype=np.int64)
    return float((below + not_above) / (2.0 * positives.size * negatives.size))


def tied_leak_auc(scores: Tensor, labels: Tensor) -> float:
    """Return the leak AUC of all records, where those that an attack left out tie with each other, in the middle.

    A left-out record, whose score is NaN, gets the mean of the others' scores: what an attacker would answer who says
    one thing of all that it knows nothing of. So leaving out the hard ones gains nothing: an attacker whose scores read
    well only where they are large has one figure whether it abstains elsewhere or not, and one who reads a tenth of the
    labels and no others gets .595, not 1. Counting every pair with a left-out record as one half would not do: then an
    attacker could look harmless by leaving out what it does read.

    What abstaining itself says is not judged. An attack that means "negative" by it returns a number.

    Args:
        scores: As :func:`leak_auc`; NaN where a record was left out.
        labels: As :func:`leak_auc`.

    Returns:
        A float in [0, 1]; one half if nothing was scored; NaN with one class only.

    Raises:
        ArgumentError: As :func:`leak_auc`, NaN aside.
    """
    left_out = torch.isnan(scores.detach().reshape(-1))
    values, positive = scores_and_positives(scores.detach().reshape(-1).masked_fill(left_out, 0.0), labels)
    return rank_auc(in_the_middle(values, ~left_out.cpu().numpy()), positive)


def in_the_middle(values: Array, scored: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return scores with the mean of those that count in the place of the others; zeros if none counts.

    Scores stay as they are: taken relative to a mean that one huge score has moved, all others would be equal.
    """
    placed = np.zeros(values.size)
    counted = values[scored].astype(np.float64)
    if counted.size:
        placed[:] = mean_within(counted)
        placed[scored] = counted
    return placed


def mean_within(values: npt.NDArray[np.float64]) -> float:
    """Return the mean, rounded and yet within the range of the values: that of equal ones is their value."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.sum() / values.size
    if not math.isfinite(mean):
        mean = (np.clip(values, -_LARGEST, _LARGEST) / values.size).sum()
    return float(np.clip(mean, values.min(), values.max()))


def centred(values: Array) -> npt.NDArray[np.float64]:
    """Return values minus their mean; exact zeros if they are all equal."""
    if values.size == 0:
        return np.zeros(0)
    # Relative to one of them first: the mean of equal scores would be rounded, and differ from every one of them.
    shifted = np.subtract(values, values[0], dtype=np.float64)
    found: npt.NDArray[np.float64] = shifted - shifted.sum() / values.size
    return found


def oriented(auc: float) -> float:
    """Return the AUC of an attack that is turned round if that reads better: its distance from ½, above ½.

    Of means over steps, once for a run. Taken of every batch, or before a mean, it exceeds one half for pure noise:
    :func:`chance_auc` says by how much.

    >>> oriented(0.25), oriented(0.75)
    (0.75, 0.75)
    """
    return max(auc, 1.0 - auc)


def turned_round(auc: float | None) -> float | None:
    """Return :func:`oriented` of an AUC, if there is one."""
    return None if auc is None else oriented(auc)


def known(value: float) -> float | None:
    """Return the value, or ``None`` for NaN."""
    return None if math.isnan(value) else value


def chance_auc(positives: int, negatives: int) -> float:
    """Return the oriented leak AUC that an attack is expected to have which knows nothing: ½ + σ·√(2/π).

    σ² = (P + N + 1) / (12·P·N) is the variance of the AUC when every order of the P + N scores is equally likely, and
    a normal distribution's mean distance from its centre is √(2/π) of its standard deviation. Within .005 of a
    simulation from five records of each class on. Ties make σ smaller. For an AUC that is a mean over steps it holds
    where a record's score stays the same from step to step, over a few epochs (over one, small batches have more: .554
    for .544 at 56 of 113 in batches of 4); scores that are new in every step average out, and have less. The larger of
    two figures has more, such as that of a step and that of the sums (.558 there), and the largest of several attacks.
    A mean over seeds has as much as each of them where each is turned round before.

    Source: Mann and Whitney, Annals of Mathematical Statistics 18 (1947), for the variance.

    Args:
        positives: P, the number of positive records that are judged, at least 0.
        negatives: N, likewise.

    Returns:
        A float in [0.5, 1]; NaN where a class has no record.

    >>> round(chance_auc(56, 57), 2)
    0.54
    """
    if min(positives, negatives) < 1:
        return math.nan
    variance = (positives + negatives + 1) / (12.0 * positives * negatives)
    return min(1.0, 0.5 + math.sqrt(2.0 * variance / math.pi))


def chance_of_largest(chance: float, figures: int) -> float:
    """Return what the largest of several figures is at most expected to be that know nothing, each turned round.

    ½ + σ·E max|Z|, Z as many independent standard normal variables and σ from ``chance = ½ + σ·√(2/π)``. Figures of
    one run depend on each other (of one attack per step and accumulated, of attacks on the same rows), and their
    largest is then smaller: it is an upper limit.

    Source: Šidák, Journal of the American Statistical Association 62 (1967), for the limit.

    Args:
        chance: What each is expected to be: :func:`chance_auc`, say.
        figures: How many, at least 1.

    >>> round(chance_of_largest(0.54, 1), 2), round(chance_of_largest(0.54, 16), 2)
    (0.54, 0.6)
    """
    places = np.linspace(0.0, 12.0, 4001)
    above = 1.0 - np.array([math.erf(place / math.sqrt(2.0)) for place in places]) ** figures
    largest = float((above.sum() - 0.5 * (above[0] + above[-1])) * (places[1] - places[0]))
    return min(1.0, 0.5 + (chance - 0.5) * math.sqrt(math.pi / 2.0) * largest)


def limit_of_largest(chance: float, figures: int, *, level: float = 0.95) -> float:
    """Return what the largest of several figures that know nothing, each turned round, stays below with probability.

    ½ + σz, with P(max ``|Z|`` ≤ z) = level of as many independent standard normal variables Z, and σ from
    ``chance = ½ + σ·√(2/π)``. Figures of one run depend on each other, and it is then an upper limit.

    Source: Šidák, Journal of the American Statistical Association 62 (1967).

    Args:
        chance: What each is expected to be: :func:`chance_auc`, say.
        figures: How many, at least 1.
        level: The probability, in (0, 1).

    >>> round(limit_of_largest(0.54, 1), 3), round(limit_of_largest(0.54, 16), 3)
    (0.598, 0.648)
    """
    quantile = NormalDist().inv_cdf(0.5 + 0.5 * level ** (1.0 / figures))
    return min(1.0, 0.5 + (chance - 0.5) * math.sqrt(math.pi / 2.0) * quantile)


def auc_interval(scores: Tensor, labels: Tensor, *, level: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of the AUC, of which :func:`leak_auc` is the estimate; no orientation is chosen.

    DeLong's variance on the logit scale, z the normal quantile of ``(1 + level) / 2``::

        V = var(share of negatives below each positive) / P + var(share of positives above each negative) / N
        logit(AUC) ± z·√V / (AUC·(1 − AUC))

    Ties count as in the AUC. Where V is 0 (classes that do not overlap, equal scores) or a class has one record, the
    limits are the roots of (A − AUC)² = z²·v(A), v Hanley and McNeil's variance in Newcombe's form, which shrink to no
    point. In simulations of 20 to 300 records with fair labels (normal, binary and bimodal scores, AUC .5 to .995)
    nominal 95 % intervals held the AUC in 92 to 98.5 % of the draws.

    Meant for records that were drawn at random, whose scores are independent of one another: it says what other
    records of the same run would have read. Another training run may differ by more.

    Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988); Newcombe, Statistics in Medicine 25 (2006),
    559-573, method 5; Hanley and McNeil, Radiology 143 (1982).

    Args:
        scores: As :func:`leak_auc`.
        labels: As :func:`leak_auc`.
        level: Confidence, in (0, 1).

    Returns:
        Two floats in [0, 1]; NaN with one class only.

    Raises:
        ArgumentError: As :func:`leak_auc`; if ``level`` is not in (0, 1).

    >>> low, high = auc_interval(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    >>> 0.0 < low < 0.75 < high < 1.0
    True
    """
    if not 0.0 < level < 1.0:
        raise ArgumentError(f"level must be in (0, 1), got {level}")
    values, positive = scores_and_positives(scores, labels)
    above, below = _placements(values, positive)
    if min(above.size, below.size) == 0:
        return math.nan, math.nan
    auc, quantile = float(above.mean()), NormalDist().inv_cdf((1.0 + level) / 2.0)
    variance = (
        float(sum(part.var(ddof=1) / part.size for part in (above, below))) if min(above.size, below.size) > 1 else 0.0
    )
    if variance <= 0.0 or not 0.0 < auc < 1.0:
        return _score_limits(auc, above.size, below.size, quantile)
    middle, half = math.log(auc / (1.0 - auc)), quantile * math.sqrt(variance) / (auc * (1.0 - auc))
    return _logistic(middle - half), _logistic(middle + half)


def _placements(values: Array, positive: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return for each positive the share of negatives below it, and for each negative that of positives above it."""
    positives, negatives = np.sort(values[positive]), np.sort(values[~positive])
    if min(positives.size, negatives.size) == 0:
        return positives, negatives

    def share(of: Array, under: Array) -> npt.NDArray[np.float64]:
        counts = np.searchsorted(of, under, side="left") + np.searchsorted(of, under, side="right")
        found: npt.NDArray[np.float64] = counts / (2.0 * of.size)
        return found

    return share(negatives, positives), 1.0 - share(positives, negatives)


def _score_limits(auc: float, positives: int, negatives: int, quantile: float) -> tuple[float, float]:
    """Return between which AUCs the estimate lies within ``quantile`` of their own standard errors."""
    pairs, others = positives * negatives, (positives + negatives) / 2.0 - 1.0

    def within(true: float) -> bool:
        spread = 1.0 + others * ((1.0 - true) / (2.0 - true) + true / (1.0 + true))
        return (true - auc) ** 2 <= quantile**2 * true * (1.0 - true) * spread / pairs

    return _last(within, auc, 0.0), _last(within, auc, 1.0)


def _last(within: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return where a condition ends that holds at one place and, as a rule, not at the other, by bisection."""
    if within(outside) and outside != inside:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2.0
        inside, outside = (middle, outside) if within(middle) else (inside, middle)
    return inside


def _logistic(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value > -700.0 else 0.0


def matched_auc(scores: Tensor, labels: Tensor, predictions: Tensor, *, groups: int = 50) -> float:
    """Return the leak AUC between records that a prediction tells nothing about: positives and negatives alike in it.

    The records are divided at quantiles of ``predictions`` into groups of about equal size (fewer where predictions
    tie). The AUC is taken within each group and averaged, weighted by its pairs of a positive and a negative. What a
    score knows of the label through *this* prediction alone is gone; what remains, it knows beyond it. Of several
    predictions the second one divides each group of the first, and so on, each into as many parts.

    It reads too high. Groups are not infinitely narrow, so that predictions themselves score a little above one half
    (.51 is typical at 50 groups). Above all one prediction, the final one, does not hold all that is predicted: the
    messages of a run tell what earlier models predicted too, and where two records agree in the last prediction they
    differ in those. It was found to read up to .11 above what a theorem allows, where canaries read what it allows
    (.604 for .60): :mod:`splitvfl.leakage.canaries` measure the same without matching. It stays for runs without them.

    Args:
        scores: As :func:`leak_auc`.
        labels: As :func:`leak_auc`.
        predictions: ``(n,)`` or ``(n, m)`` numbers, any real dtype: what is known of the records without the scores.
        groups: How many in all, at least 1. One group is :func:`leak_auc`.

    Returns:
        A float in [0, 1]; NaN where no group has both classes.

    Raises:
        ArgumentError: As :func:`leak_auc`; if there is not one prediction per score or one is NaN, or ``groups`` < 1.
    """
    values, positive = scores_and_positives(scores, labels)
    columns = predictions[:, None] if predictions.dim() == 1 else predictions
    known = [scores_and_positives(column, labels)[0] for column in columns.T]
    if groups < 1:
        raise ArgumentError(f"groups must be at least 1, got {groups}")
    parts, each = [np.arange(values.size)], max(1, round(groups ** (1.0 / len(known))))
    for column in known:
        parts = [part[piece] for part in parts for piece in _divided(column[part], each)]
    pairs = np.array([np.count_nonzero(positive[part]) * np.count_nonzero(~positive[part]) for part in parts])
    if not pairs.any():
        return math.nan
    aucs = [rank_auc(values[part], positive[part]) for part, count in zip(parts, pairs, strict=True) if count]
    return float(np.average(aucs, weights=pairs[pairs > 0]))


def _divided(values: Array, groups: int) -> list[npt.NDArray[np.int64]]:
    """Return the positions of values in groups of about equal size, divided at quantiles."""
    borders = np.quantile(values, np.arange(1, groups) / groups)
    members = np.searchsorted(borders, values, side="right")
    order = np.argsort(members, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(members[order])) + 1)


def detection_error(scores: Tensor, labels: Tensor, *, threshold: float) -> float:
    """Return ½(FPR + FNR) of calling a record positive when its score exceeds a threshold.

    0.5 is a blind attacker, 0 a perfect one. The least over all thresholds would be smaller, but a threshold chosen on
    the very records that it is measured on flatters the attacker; hand in one that was fixed before.

    Source: the detection error of Li et al., ICLR 2022, arXiv:2102.08504, section 3.2.

    Args:
        scores: ``(n,)``, any real dtype and device.
        labels: ``n`` labels in {0, 1}.
        threshold: In the unit of the scores.

    Returns:
        A float in [0, 1]; NaN with one class only.

    Raises:
        ArgumentError: As :func:`leak_auc`.
    """
    values, positive = scores_and_positives(scores, labels)
    if positive.all() or not positive.any():
        return math.nan
    called = values > threshold
    return float(0.5 * (called[~positive].mean() + (~called[positive]).mean()))


def scores_and_positives(scores: Tensor, labels: Tensor) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return scores and "is positive" as flat arrays of one length, checked.

    Raises:
        ArgumentError: As :func:`leak_auc`.
    """
    values = _numpy(scores)
    truth = _numpy(labels)
    if values.shape != truth.shape:
        raise ArgumentError(f"expected one score per label, got {values.size} scores and {truth.size} labels")
    positive = truth == 1
    if np.count_nonzero(positive) + np.count_nonzero(truth == 0) != truth.size:
        raise ArgumentError(f"labels must be 0 or 1, got {np.unique(truth)[:5].tolist()}")
    # A sum is NaN where an entry is, and also where infinities cancel; only then is a second look needed.
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    if math.isnan(total) and np.isnan(values).any():
        raise ArgumentError(f"{int(np.isnan(values).sum())} of {values.size} scores are NaN")
    return values, positive


def _numpy(values: Tensor) -> Array:
    flat = values.detach().reshape(-1)
    if flat.dtype in (torch.bfloat16, torch.float16):
        flat = flat.float()
    array: npt.NDArray[Any] = flat.cpu().numpy()
    return array if array.dtype == np.float32 else array.astype(np.float64, copy=False)


def reconstruction_mse(estimate: Tensor, truth: Tensor) -> float:
    """Return the mean squared error per feature: the squared distance of every record, averaged over n·d entries.

    Args:
        estimate: ``(n, d)`` or ``(n,)``.
        truth: The same shape.

    Raises:
        ArgumentError: If shapes differ, are empty, or an entry is not finite.
    """
    if estimate.shape != truth.shape or estimate.numel() == 0:
        raise ArgumentError(
            f"expected estimate and truth of one shape, got {tuple(estimate.shape)} and {tuple(truth.shape)}"
        )
    error = (estimate.double() - truth.double().to(estimate.device)).square().mean().item()
    if not math.isfinite(error):
        raise ArgumentError("estimate or truth holds NaN or infinite values")
    return error


# --- scores as probabilities


def mean_divergence(scores: Tensor, published: Tensor) -> float:
    """Return the mean over records of ``KL(c ‖ c̃) = Σ c ln(c / c̃)``, in nats: what a defense of scores changed.

    Args:
        scores: c, ``(n,)`` sigmoid or ``(n, k)`` with rows that sum to one.
        published: c̃, of the same shape.

    Returns:
        A float of at least 0, up to roundings; infinite where a published score is 0 and the true one is not.

    Raises:
        ArgumentError: If shapes differ or are empty, or a score is not in [0, 1].
    """
    true, sent = (_class_shares(part) for part in (scores, published))
    if true.shape != sent.shape or not len(true):
        raise ArgumentError(f"expected scores of one shape, got {tuple(scores.shape)} and {tuple(published.shape)}")
    # Logarithms apart: of a quotient that overflows nothing would be left.
    return float((torch.special.xlogy(true, true) - torch.special.xlogy(true, sent)).sum(dim=1).mean())


def calibration_error(scores: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Return the expected calibration error: how far largest scores are from the shares of records they are right on.

    Records are put into bins of equal width by their largest score; the mean of ``|share right − mean score|`` is taken
    over bins, weighted by their records. Of several classes with the largest score, the first is predicted.

    Source: Guo et al., ICML 2017, arXiv:1706.04599, section 2.

    Args:
        scores: ``(n,)`` sigmoid or ``(n, k)``, in [0, 1].
        labels: Classes from 0, ``(n,)``.
        bins: At least 1.

    Returns:
        A float in [0, 1]; NaN without records.

    Raises:
        ArgumentError: If shapes do not fit, a score is not in [0, 1], a label is no class, or ``bins`` is below 1.
    """
    if bins < 1:
        raise ArgumentError(f"bins must be at least 1, got {bins}")
    shares = _class_shares(scores)
    values, truth = scores_and_classes(shares, labels)
    if not len(values):
        return math.nan
    largest = values.max(axis=1)
    right = (values.argmax(axis=1) == truth).astype(np.float64)
    # Half-open from below, (0, 1/bins], as in the source.
    places = np.clip(np.ceil(largest * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, right - largest, bins)
    return float(np.abs(gaps).sum() / len(values))


def saturated(scores: Any) -> float:
    """Return the fraction of scores of which a probability is exactly 1, or exactly 0: ``(n,)`` or ``(n, k)``.

    >>> saturated(np.array([1.0, 1.0, 0.5, 0.0]))
    0.75
    """
    found = np.asarray(scores)
    ends = (found == 0) | (found == 1) if found.ndim == 1 else (found == 1).any(axis=1)
    return float(ends.mean()) if len(found) else 0.0


def _class_shares(scores: Tensor) -> Tensor:
    """Return scores ``(n, k)``, float64; of a sigmoid those of two classes."""
    shares = scores.detach().cpu().double()
    if shares.dim() == 1:
        shares = torch.stack([1.0 - shares, shares], dim=1)
    if shares.dim() != 2 or not ((shares >= 0) & (shares <= 1)).all():  # NaN is not
        raise ArgumentError(f"expected scores in [0, 1], (n,) or (n, k), got {tuple(scores.shape)} with others in it")
    return shares


# --- labels of k classes, and numbers


def class_aucs(scores: Array, labels: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.float64]:
    """Return the AUC of every column of scores as a score of every class against the rest.

    Args:
        scores: ``(n, m)``, finite.
        labels: ``(n,)`` in 0 … k−1.
        classes: k.

    Returns:
        ``(m, k)``; NaN in the columns of classes that no record, or every record, has.
    """
    members = np.zeros((labels.size, classes))
    members[np.arange(labels.size), labels] = 1.0
    inside = members.sum(axis=0)
    pairs = inside * (labels.size - inside)
    if labels.size == 0:
        return np.full((scores.shape[1], classes), math.nan)
    # The sum of midranks is that of records below or level, within the class too: Mann and Whitney.
    above = scipy.stats.rankdata(scores, axis=0).T @ members - inside * (inside + 1.0) / 2.0
    found: npt.NDArray[np.float64] = np.divide(above, pairs, out=np.full(above.shape, math.nan), where=pairs > 0)
    return found


def macro_auc(scores: Tensor, labels: Tensor) -> float:
    """Return the mean, over classes, of the AUC of a class's score for the class against the rest.

    0.5 is a blind attacker, whatever the shares of the classes, 1 a perfect one. scikit-learn's ``roc_auc_score`` with
    ``multi_class="ovr"`` and ``average="macro"`` is the same for scores that sum to one. Classes without any record do
    not count.

    Args:
        scores: ``(n, k)``, any real dtype and device; column c: higher for "more likely class c".
        labels: ``(n,)`` in 0 … k−1, any dtype.

    Returns:
        A float in [0, 1]; NaN where all records have one class.

    Raises:
        ArgumentError: If shapes do not fit, a score is NaN, or a label is no class.
    """
    values, truth = scores_and_classes(scores, labels)
    if values.shape[1] < 2:
        raise ArgumentError(f"expected a score for each of k classes, (n, k), got {tuple(scores.shape)}")
    return mean_known(np.diagonal(class_aucs(values, truth, values.shape[1])))


def scores_and_classes(
    scores: Tensor, labels: Tensor, *, classes: int | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return scores ``(n, m)`` and classes ``(n,)`` as arrays, checked.

    Args:
        scores: ``(n,)`` or ``(n, m)``.
        labels: ``(n,)`` in 0 … k−1.
        classes: k. Default: m.

    Raises:
        ArgumentError: If shapes do not fit, a score is NaN, or a label is no class.
    """
    # Not reshape(n, -1), which knows no number of columns where there is no record.
    rows = scores.detach().cpu().double().reshape(len(scores), math.prod(scores.shape[1:])).numpy()
    truth = labels.detach().cpu().double().reshape(-1).numpy()
    wanted = rows.shape[1] if classes is None else classes
    if len(rows) != len(truth):
        raise ArgumentError(f"expected one row of scores per label, got {len(rows)} and {len(truth)} labels")
    if np.isnan(rows).any():
        raise ArgumentError("scores must not be NaN")
    if ((truth != np.floor(truth)) | (truth < 0) | (truth >= wanted)).any():
        found = np.unique(truth)[:5].tolist()
        raise ArgumentError(f"labels must be classes from 0 to {wanted - 1}, got {found}")
    return rows, truth.astype(np.int64)


def top_shares(scores: Array, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return for each record whether its class has the largest score: 1 or 0, and 1/j of j that are level.

    Args:
        scores: ``(n, k)``.
        labels: ``(n,)`` in 0 … k−1.
    """
    largest = scores == scores.max(axis=1, keepdims=True)
    found: npt.NDArray[np.float64] = largest[np.arange(labels.size), labels] / largest.sum(axis=1)
    return found


def mean_known(values: Array) -> float:
    """Return the mean of the values that are not NaN; NaN if none is."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else math.nan


def chance_macro_auc(counts: Sequence[int]) -> float:
    """Return the mean over classes of :func:`chance_auc`: what a score is expected to have that knows nothing.

    It holds for one score that is turned round for each class on its own. Scores of their own for every class that are
    turned round together, or not at all, have less.

    Args:
        counts: Records of each class.

    >>> round(chance_macro_auc([50, 50, 50]), 3)
    0.54
    """
    total = sum(counts)
    return mean_known(np.array([chance_auc(count, total - count) for count in counts]))


def concordance(scores: Tensor, labels: Tensor) -> float:
    """Return the probability that of two records with different labels the one with the larger has the larger score.

    Ties of scores count one half. With labels in {0, 1} that is :func:`leak_auc`; of numbers it is the concordance
    index, a rank correlation on the scale of an AUC: 0.5 is a blind attacker, 1 a perfect one, 0 one with the sign
    reversed. With no ties at all it is ``(1 + τ)/2``, τ being Kendall's.

    Source: Harrell, Lee and Mark, Statistics in Medicine 15 (1996).

    Args:
        scores: ``(n,)``, any real dtype and device.
        labels: ``(n,)`` numbers, finite.

    Returns:
        A float in [0, 1]; NaN where all labels are equal.

    Raises:
        ArgumentError: If lengths differ, or a score or a label is NaN.
    """
    return rank_concordance(*scores_and_numbers(scores, labels))


def scores_and_numbers(scores: Tensor, labels: Tensor) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return scores and labels ``(n,)`` as arrays, checked.

    Raises:
        ArgumentError: If lengths differ, or a score or a label is NaN.
    """
    values, truth = (part.detach().cpu().double().reshape(-1).numpy() for part in (scores, labels))
    if values.shape != truth.shape:
        raise ArgumentError(f"expected one score per label, got {values.size} scores and {truth.size} labels")
    if np.isnan(values).any() or np.isnan(truth).any():
        raise ArgumentError("scores and labels must not be NaN")
    return values, truth


def rank_concordance(scores: Array, labels: Array) -> float:
    """Return :func:`concordance` of arrays that are checked."""
    if labels.size < 2 or labels.min() == labels.max():
        return math.nan
    # Kendall's τ_b is (C − D) / √(pairs with other scores · pairs with other labels).
    other_scores, other_labels = (pairs_apart(part) for part in (scores, labels))
    if other_scores == 0:
        return 0.5
    balance = scipy.stats.kendalltau(scores, labels).statistic * math.sqrt(other_scores) * math.sqrt(other_labels)
    return float(np.clip(0.5 + 0.5 * balance / other_labels, 0.0, 1.0))


def pairs_apart(values: Array) -> float:
    """Return the number of pairs of different values."""
    _, counts = np.unique(values, return_counts=True)
    return float(values.size * (values.size - 1) - (counts * (counts - 1.0)).sum()) / 2.0


def chance_concordance(records: int) -> float:
    """Return the oriented concordance that an attack is expected to have which knows nothing: ½ + ½σ·√(2/π).

    σ² = 2(2n + 5) / (9n(n − 1)) is the variance of Kendall's τ where every order is equally likely and nothing ties.

    Source: Kendall, Biometrika 30 (1938).

    >>> round(chance_concordance(100), 2)
    0.53
    """
    if records < 2:
        return math.nan
    variance = 2.0 * (2 * records + 5) / (9.0 * records * (records - 1))
    return min(1.0, 0.5 + 0.5 * math.sqrt(2.0 * variance / math.pi))
