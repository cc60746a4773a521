from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from splitvfl.data.bayes_auc import BayesAUC
from splitvfl.errors import ArgumentError, DataError


def _filled(probabilities: np.ndarray, labels: np.ndarray | None = None) -> BayesAUC:
    ranking = BayesAUC()
    ranking.add(probabilities, np.zeros(len(probabilities), bool) if labels is None else labels)
    return ranking


def _drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probabilities = 1 / (1 + np.exp(1.5 - 1.2 * rng.standard_normal(count)))
    return probabilities, rng.random(count) < probabilities


# Logits a tenth apart lie in different bins, so that nothing but rounding separates the two.
@given(st.lists(st.integers(-80, 80), min_size=2, max_size=40))
def test_it_is_the_sum_over_all_pairs(tenths: list[int]) -> None:
    chances = [1 / (1 + math.exp(-tenth / 10)) for tenth in tenths]
    ranked = pairs = 0.0
    for i, first in enumerate(chances):
        for j, second in enumerate(chances):
            if i != j:
                pairs += first * (1 - second)
                ranked += first * (1 - second) * (1.0 if first > second else 0.5 if first == second else 0.0)

    # Rounding of the subtracted own pairs is largest where few chances are far from one half: 1e-15 / 1e-4.
    assert _filled(np.array(chances)).auc == pytest.approx(ranked / pairs, abs=1e-9)


def test_labels_drawn_from_the_probabilities_have_this_auc() -> None:
    probabilities, _ = _drawn(2_000, 0)
    rng = np.random.default_rng(1)
    found = [roc_auc_score(rng.random(2_000) < probabilities, probabilities) for _ in range(200)]

    # Four standard errors of the mean of 200 draws.
    assert _filled(probabilities).auc == pytest.approx(np.mean(found), abs=4 * np.std(found) / math.sqrt(200))


def test_the_standard_error_is_that_of_samples_of_the_population() -> None:
    samples = [_filled(_drawn(1_000, seed)[0]) for seed in range(200)]
    spread = np.std([sample.auc for sample in samples])

    # A standard deviation of 200 draws has a relative standard error of 1/√400; four of them.
    assert np.mean([sample.standard_error for sample in samples]) == pytest.approx(spread, rel=4 / math.sqrt(400))


def test_the_auc_of_the_drawn_labels_is_scikit_learns() -> None:
    probabilities, labels = _drawn(20_000, 2)

    ranking = _filled(probabilities, labels)

    # Below 1e-3 of all pairs lie within one bin, 1/1024 of the logit wide, and these are as often right as wrong.
    assert ranking.drawn_auc == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-5)
    assert (ranking.records, ranking.positives) == (20_000, int(labels.sum()))


def test_chunks_add_up() -> None:
    probabilities, labels = _drawn(1_000, 3)
    parts = BayesAUC()
    for part in np.array_split(np.arange(1_000), 7):
        parts.add(probabilities[part], labels[part])
    whole = _filled(probabilities, labels)

    # Only the order of the additions differs.
    assert parts.auc == pytest.approx(whole.auc, abs=1e-12)
    assert parts.drawn_auc == whole.drawn_auc
    assert parts.standard_error == pytest.approx(whole.standard_error, rel=1e-9)


def test_probabilities_near_their_ends_are_ranked() -> None:
    ranking = _filled(np.array([1e-12, 1 - 1e-12]), np.array([False, True]))

    assert ranking.auc == pytest.approx(1)
    assert ranking.drawn_auc == 1


def test_one_class_only_has_no_drawn_auc() -> None:
    assert math.isnan(_filled(np.array([0.2, 0.3])).drawn_auc)


@pytest.mark.parametrize("wrong", [0.0, 1.0, math.nan, -0.5])
def test_what_is_no_probability_is_refused(wrong: float) -> None:
    with pytest.raises(ArgumentError, match="strictly between 0 and 1"):
        _filled(np.array([0.5, wrong]))


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ArgumentError, match="one label per probability"):
        _filled(np.array([0.5, 0.5]), np.array([True]))


def test_one_record_has_no_pairs() -> None:
    with pytest.raises(DataError, match="two records or more, got 1"):
        _ = _filled(np.array([0.5])).auc
