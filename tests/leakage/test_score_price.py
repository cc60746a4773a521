from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score

from splitvfl.errors import ArgumentError
from splitvfl.leakage.score_price import score_price, score_quality
from splitvfl.metrics import calibration_error, mean_divergence


def case(k: int, seed: int, n: int = 60) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = (logits + torch.randn(n, k, generator=generator, dtype=torch.float64)).argmax(dim=1)
    labels[:k] = torch.arange(k)
    other = torch.softmax(logits + 0.5 * torch.randn(n, k, generator=generator, dtype=torch.float64), dim=1)
    return torch.softmax(logits, dim=1), other, labels


@given(k=st.integers(2, 6), seed=st.integers(0, 300))
def test_figures_are_those_of_other_libraries(k: int, seed: int) -> None:
    scores, sent, labels = case(k, seed)

    found = score_price(scores, sent, labels)

    entropies = scipy.stats.entropy(scores.numpy(), sent.numpy(), axis=1)
    assert found.divergence == pytest.approx(entropies.mean(), abs=1e-12)
    for quality, values in ((found.before, scores.numpy()), (found.after, sent.numpy())):
        assert quality.accuracy == pytest.approx(accuracy_score(labels, values.argmax(axis=1)))
        known = values[:, 1] if k == 2 else values
        assert quality.auc == pytest.approx(roc_auc_score(labels, known, multi_class="ovr"), abs=1e-12)


@given(seed=st.integers(0, 100), bins=st.integers(1, 20), k=st.integers(2, 5))
def test_the_calibration_error_is_that_of_a_loop_over_bins(seed: int, bins: int, k: int) -> None:
    scores, _, labels = case(k, seed)
    expected = 0.0
    for number in range(bins):
        inside = [
            row
            for row, one in enumerate(scores.max(dim=1).values.tolist())
            if number / bins < one <= (number + 1) / bins
        ]
        if inside:
            right = np.mean([int(scores[row].argmax()) == int(labels[row]) for row in inside])
            expected += len(inside) / len(scores) * abs(right - scores[inside].max(dim=1).values.mean().item())

    assert calibration_error(scores, labels, bins=bins) == pytest.approx(expected, abs=1e-12)


def test_a_sigmoid_is_two_classes() -> None:
    scores, sent, labels = case(2, seed=4)

    assert score_price(scores[:, 1], sent[:, 1], labels.float()) == score_price(
        torch.stack([1 - scores[:, 1], scores[:, 1]], 1), torch.stack([1 - sent[:, 1], sent[:, 1]], 1), labels
    )


def test_perfect_scores_are_calibrated_and_equal_ones_do_not_diverge() -> None:
    labels = torch.tensor([0, 1, 2])
    quality = score_quality(torch.eye(3), labels)

    assert (quality.accuracy, quality.calibration_error, quality.auc) == (1.0, 0.0, 1.0)
    assert mean_divergence(torch.eye(3), torch.eye(3)) == 0.0
    assert mean_divergence(torch.full((1, 3), 1 / 3), torch.eye(3)[:1]) == math.inf


def test_bad_input_is_told() -> None:
    with pytest.raises(ArgumentError, match="one shape"):
        mean_divergence(torch.eye(3), torch.eye(2))
    with pytest.raises(ArgumentError, match="bins must be"):
        calibration_error(torch.eye(2), torch.tensor([0, 1]), bins=0)
    with pytest.raises(ArgumentError, match=r"scores in \[0, 1\]"):
        score_quality(torch.tensor([math.nan]), torch.tensor([0]))
    with pytest.raises(ArgumentError, match="at least one record"):
        score_quality(torch.zeros(0, 3), torch.zeros(0))
    assert math.isnan(calibration_error(torch.zeros(0, 3), torch.zeros(0)))
