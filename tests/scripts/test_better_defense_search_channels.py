"""What the searched channels promise, and what they are of, against brute force and scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
import torch
from scipy.stats import norm
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from scripts.reproduce.better_defense.search_channels import (
    Given,
    Told,
    cross_fitted_opinions,
    gaussian_auc,
    mu_for,
    neighbours_means,
    noisy_opinions,
    sided_answers,
    sided_auc,
    total_variation_for,
    whitened,
)
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _records(count: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = _generator(seed)
    features = torch.randn(count, width, generator=source, dtype=torch.float64)
    labels = (features[:, 0] + torch.randn(count, generator=source, dtype=torch.float64) > 0).double()
    return features, labels


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("prior", [0.2, 0.7])
def test_sided_answers_are_unbiased_and_as_variable_as_is_said(label: float, prior: float) -> None:
    count, delta = 100_000, 0.3
    labels = torch.full((count,), label, dtype=torch.float64)
    found = sided_answers(labels, torch.full_like(labels, prior), delta=delta, generator=_generator()).unbiased
    told_apart = label == (1.0 if prior <= 0.5 else 0.0)
    variance = (1 - delta) / delta if told_apart else 0.0
    # Five standard errors of a mean; the fourth moment of a scaled coin gives those of its variance.
    assert abs(found.mean().item() - label) <= 5 * math.sqrt(variance / count)
    assert found.var().item() == pytest.approx(variance, rel=0.05, abs=1e-12)


def test_the_posterior_and_the_ratio_of_an_answer_are_those_of_bayes() -> None:
    delta = 0.25
    for prior in (0.1, 0.5, 0.8):
        side = 1.0 if prior <= 0.5 else 0.0  # the class of which a share is told
        chance = {label: delta if label == side else 0.0 for label in (0.0, 1.0)}  # that it is told
        labels = torch.tensor([0.0, 1.0]).repeat(200).double()
        found = sided_answers(labels, torch.full_like(labels, prior), delta=delta, generator=_generator(1))
        for label, target, posterior, read in zip(labels.tolist(), *map(Tensor.tolist, found), strict=True):
            told = target == (1 / delta if side == 1.0 else 1 - 1 / delta)
            assert not told or label == side
            likelihood = {one: chance[one] if told else 1 - chance[one] for one in (0.0, 1.0)}
            both = prior * likelihood[1.0] + (1 - prior) * likelihood[0.0]
            assert posterior == pytest.approx(prior * likelihood[1.0] / both)
            ratio = math.inf if not likelihood[0.0] else likelihood[1.0] / likelihood[0.0]
            assert read == pytest.approx(math.log(ratio) if ratio else -math.inf)


def test_the_auc_of_sided_answers_about_coins() -> None:
    source, count, delta, high = _generator(2), 100_000, 0.3, 0.4
    labels = torch.randint(2, (count,), generator=source).double()
    prior = torch.where(torch.rand(count, generator=source) < high, 0.9, 0.1).double()
    read = sided_answers(labels, prior, delta=delta, generator=source).read.clamp(-9, 9)
    # A standard error of an AUC of this many is below .002.
    assert roc_auc_score(labels, read) == pytest.approx(sided_auc(delta, high), abs=0.008)
    on_one_side = roc_auc_score(labels[prior < 0.5], read[prior < 0.5])
    assert on_one_side == pytest.approx((1 + delta) / 2, abs=0.01)
    assert sided_auc(delta, 0.0) == pytest.approx((1 + delta) / 2)


def test_answers_and_a_noisy_release_have_the_auc_that_is_promised_of_both() -> None:
    mu, auc, count = 0.4, 0.7, 200_000
    delta = total_variation_for(auc, mu)
    source = np.random.default_rng(0)
    labels = source.integers(2, size=count)
    told = (labels == 1) & (source.random(count) < delta)
    release = source.normal(mu * labels, 1.0)
    assert roc_auc_score(labels, np.where(told, 100.0, release)) == pytest.approx(auc, abs=0.006)
    with pytest.raises(ArgumentError, match="expected an AUC above"):
        total_variation_for(0.6, 2.0)


def test_mu_is_the_inverse_of_its_auc() -> None:
    assert gaussian_auc(mu_for(0.6)) == pytest.approx(0.6)
    assert gaussian_auc(1.0) == pytest.approx(norm.cdf(1 / math.sqrt(2)))


def test_whitened_rows_are_of_equal_weight_and_bounded() -> None:
    features, _ = _records(300, 4)
    rows, bound = whitened(features * torch.tensor([1.0, 5.0, 0.2, 2.0]), ridge=2.0)
    z = (features * torch.tensor([1.0, 5.0, 0.2, 2.0])).numpy()
    expected = z @ np.linalg.inv(scipy.linalg.sqrtm(z.T @ z + 2.0 * np.eye(4)))
    lengths = np.linalg.norm(expected, axis=1)
    assert bound == pytest.approx(np.quantile(lengths, 0.9))
    np.testing.assert_allclose(rows.numpy(), expected * np.minimum(1.0, bound / lengths)[:, None], atol=1e-9)


def test_the_noisy_teacher_keeps_its_promise_and_no_more_noise_than_that() -> None:
    # Who knows all features and all labels but one takes b back from the targets, shrinking and all.
    count, width, mu, draws = 60, 3, 1.0, 200
    features, _ = _records(count, width)
    labels = (features[:, 0] > 0).double()  # so clear that it is never shrunk to nothing
    rows, bound = whitened(features)
    record = int(torch.linalg.vector_norm(rows, dim=1).argmax())
    moments, variance = rows.T @ rows, (bound / mu) ** 2 + 0.25

    def sums_behind(label: float, seed: int) -> Tensor:
        changed = labels.clone()
        changed[record] = label
        targets = noisy_opinions(features, changed, mu=mu, generator=_generator(seed)).targets
        inside = (targets > 0) & (targets < 1)
        weights: Tensor = torch.linalg.lstsq(rows[inside], targets[inside][:, None] - 0.5).solution[:, 0]
        shrunk: Tensor = moments @ weights
        size = float(torch.linalg.vector_norm(shrunk))
        return shrunk * ((size + math.sqrt(size**2 + 4 * width * variance)) / (2 * size))

    scores = {
        label: [float(rows[record] @ sums_behind(label, 2 * n + int(label))) for n in range(draws)]
        for label in (0.0, 1.0)
    }
    read = roc_auc_score([0] * draws + [1] * draws, scores[0.0] + scores[1.0])
    # The longest row is as long as the bound. Four standard errors of an AUC of 200 against 200.
    assert read == pytest.approx(norm.cdf(mu / math.sqrt(2)), abs=0.094)


def test_the_noisy_teacher_without_noise_is_a_shrunk_regression() -> None:
    features, labels = _records(500, 3)
    features = torch.cat([torch.ones(500, 1, dtype=torch.float64), features], dim=1)
    told = noisy_opinions(features, labels, mu=math.inf, generator=_generator())
    rows, _ = whitened(features)
    plain = Ridge(alpha=1e-9, fit_intercept=False, solver="cholesky").fit(rows, labels - 0.5).coef_
    squared = float(np.square(rows.numpy().T @ (labels.numpy() - 0.5)).sum())
    expected = 0.5 + rows.numpy() @ plain * (1 - 4 * 0.25 / squared)
    np.testing.assert_allclose(told.targets.numpy(), expected.clip(0, 1), atol=1e-6)


def test_noise_that_drowns_all_tells_nothing() -> None:
    features, labels = _records(200, 3)
    told = noisy_opinions(features, labels, mu=1e-9, generator=_generator(5))
    assert ((told.targets - 0.5).abs() < 1).all()
    assert torch.isfinite(told.targets).all()


def _cross_fitted(features: Tensor, labels: Tensor) -> Told:
    return cross_fitted_opinions(features, labels, folds=4, generator=_generator(3))


def _neighbours(features: Tensor, labels: Tensor) -> Told:
    return neighbours_means(features, labels, count=3, generator=_generator(3), block=1000)


@pytest.mark.parametrize("tell", [_cross_fitted, _neighbours])
def test_a_target_does_not_depend_on_its_own_label_but_others_do(tell: Callable[[Tensor, Tensor], Told]) -> None:
    features, labels = _records(60, 2)
    before, moved = tell(features, labels).targets, 0.0
    for record in range(0, 60, 7):
        flipped = labels.clone()
        flipped[record] = 1 - flipped[record]
        after = tell(features, flipped).targets
        assert after[record] == pytest.approx(before[record].item(), abs=1e-12)
        moved = max(moved, float((after - before).abs().max()))
    # Without noise: who knows all other labels is certain of these.
    assert moved > 1e-3


def test_cross_fitted_opinions_are_ridge_regressions_of_the_other_folds() -> None:
    features, labels = _records(80, 3)
    fold = (torch.randperm(80, generator=_generator(3)) % 4).numpy()
    found = _cross_fitted(features, labels).targets.numpy()
    for k in range(4):
        model = Ridge(alpha=1.0, fit_intercept=False).fit(features[fold != k], labels[fold != k] - 0.5)
        np.testing.assert_allclose(found[fold == k], (0.5 + model.predict(features[fold == k])).clip(0, 1), atol=1e-9)


def test_fold_sums_give_labels_away() -> None:
    # Few labels per equation: 10 features, 20 records in a fold.
    features, _ = _records(200, 10)
    coins = torch.randint(2, (200,), generator=_generator(9)).double()
    told = cross_fitted_opinions(features, coins, folds=10, generator=_generator(3))
    assert roc_auc_score(coins, told.read) > 0.8


def test_neighbours_means_are_those_of_scikit_learn_and_are_solved() -> None:
    features, _ = _records(300, 2)
    coins = torch.randint(2, (300,), generator=_generator(9)).double()
    told = _neighbours(features, coins)
    found = NearestNeighbors(n_neighbors=3).fit(features).kneighbors(return_distance=False)
    np.testing.assert_allclose(told.targets, coins.numpy()[found].mean(axis=1))
    assert roc_auc_score(coins, told.targets) < 0.6
    assert roc_auc_score(coins, told.read) > 0.9
    with pytest.raises(ArgumentError, match="blocks of more than 3"):
        neighbours_means(features[:3], coins[:3], count=3, generator=_generator(), block=1000)


def test_given_targets_are_told_by_id_whatever_the_label() -> None:
    table = Given(torch.tensor([30, 10, 20]), torch.tensor([0.3, 0.1, 0.2], dtype=torch.float64))
    secrets = Secrets(party="active", step=0, generator=_generator(), ids=torch.tensor([20, 30, 10, 20]))
    for labels in (torch.zeros(4), torch.ones(4)):
        assert torch.equal(table(labels, secrets), torch.tensor([0.2, 0.3, 0.1, 0.2]))
