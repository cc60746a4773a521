"""Differences of two scores on the same records: figures by counting, variances by leaving out and by simulation."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from splitvfl.leakage.paired_aucs import difference, judged
from splitvfl.metrics import auc_interval, concordance


def scored(records: int, classes: int | None, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two scores that depend on each other, with ties, and labels."""
    source = np.random.default_rng(seed)
    if classes is None:
        labels = np.round(source.normal(size=records), 1)
        signal = labels[:, None]
    else:
        labels = source.permutation(np.arange(records) % classes).astype(float)
        signal = labels[:, None] if classes == 2 else np.eye(classes)[labels.astype(int)]
    common = source.normal(size=signal.shape)
    first, second = (np.round(strength * signal + common + source.normal(size=signal.shape), 1) for strength in (2, 1))
    return first, second, labels


def test_the_figure_of_two_classes_is_the_auc_and_of_k_the_mean_of_them() -> None:
    first, _, labels = scored(60, 2)
    assert judged(first, labels, 2).value == pytest.approx(roc_auc_score(labels, first[:, 0]))
    first, _, labels = scored(60, 3)
    one_by_one = [roc_auc_score(labels == label, first[:, label]) for label in range(3)]
    assert judged(first, labels, 3).value == pytest.approx(np.mean(one_by_one))


def test_the_figure_of_numbers_is_the_concordance_of_more_records_than_are_compared_at_a_time() -> None:
    first, _, labels = scored(300, None)
    expected = concordance(torch.from_numpy(first[:, 0]), torch.from_numpy(labels))
    assert judged(first, labels, None).value == pytest.approx(expected)


def test_two_classes_have_delongs_variance() -> None:
    first, second, labels = scored(80, 2)
    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)

    def wins(scores: np.ndarray) -> np.ndarray:
        ordered = scores[positives] - scores[negatives].T
        return (ordered > 0) + 0.5 * (ordered == 0)

    apart = wins(first) - wins(second)
    variance = apart.mean(axis=1).var(ddof=1) / len(positives) + apart.mean(axis=0).var(ddof=1) / len(negatives)
    half = NormalDist().inv_cdf(0.975) * math.sqrt(variance)
    found = difference(judged(first, labels, 2), judged(second, labels, 2))
    assert found == pytest.approx((apart.mean() - half, apart.mean() + half))


def test_one_score_alone_has_the_interval_of_its_auc() -> None:
    first, _, labels = scored(80, 2)
    level = 0.9
    low, high = auc_interval(torch.from_numpy(first[:, 0]), torch.from_numpy(labels), level=level)
    one, nothing = judged(first, labels, 2), judged(np.zeros_like(first), labels, 2)
    assert nothing.value == 0.5
    linear = difference(one, nothing, level=level)
    on_logits = (math.log(high / (1 - high)) - math.log(low / (1 - low))) * one.value * (1 - one.value)
    assert linear[1] - linear[0] == pytest.approx(on_logits)


@pytest.mark.parametrize("classes", [3, None])
def test_others_have_the_variance_of_leaving_out_one_record_at_a_time(classes: int | None) -> None:
    first, second, labels = scored(150, classes)

    def apart(kept: np.ndarray) -> float:
        return judged(first[kept], labels[kept], classes).value - judged(second[kept], labels[kept], classes).value

    rows = np.arange(150)
    without = np.array([apart(rows != row) for row in rows])
    jackknife = 149 / 150 * np.square(without - without.mean()).sum()
    low, high = difference(judged(first, labels, classes), judged(second, labels, classes))
    assert (low + high) / 2 == pytest.approx(apart(rows >= 0))
    assert ((high - low) / 2 / NormalDist().inv_cdf(0.975)) ** 2 == pytest.approx(jackknife, rel=0.05)


def test_intervals_of_scores_that_are_equally_good_hold_zero_in_nineteen_of_twenty_cases() -> None:
    held = 0
    source = np.random.default_rng(1)
    labels = (np.arange(200) < 60).astype(float)
    for _ in range(400):
        common = source.normal(size=200)
        first, second = (judged((labels + common + source.normal(size=200))[:, None], labels, 2) for _ in range(2))
        low, high = difference(first, second)
        held += low <= 0.0 <= high
    assert 0.92 < held / 400 < 0.98


def test_labels_that_are_all_equal_tell_nothing() -> None:
    scores = np.arange(6.0)[:, None]
    for classes in (2, None):
        found = judged(scores, np.ones(6), classes)
        assert math.isnan(found.value)
        assert not found.influence.any()
