"""Judging attacks on numbers: against brute force over pairs, SciPy, and what chance gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict

from splitvfl.attacks import DirectionAttack, NormAttack, ReadoutAttack
from splitvfl.data.coin_labels import Canaries
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.number_judging import NumberKeeper, held_out_concordance, shares_within
from splitvfl.leakage.own_columns import place_of_each
from splitvfl.metrics import concordance, leak_auc, rank_concordance


def numbers(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(150.0, 40.0, rows))


def test_concordance_of_two_values_is_the_auc() -> None:
    labels, scores = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([0.1, 0.5, 0.1, 0.2, 0.9])
    assert concordance(scores, labels) == pytest.approx(leak_auc(scores, labels), abs=1e-15)


def test_concordance_counts_pairs_of_different_labels_and_ties_as_one_half() -> None:
    generator = np.random.default_rng(3)
    scores, labels = generator.integers(0, 5, 60).astype(float), generator.integers(0, 4, 60).astype(float)
    pairs = [(i, j) for i in range(60) for j in range(i) if labels[i] != labels[j]]
    right = [
        0.5 if scores[i] == scores[j] else float((scores[i] > scores[j]) == (labels[i] > labels[j])) for i, j in pairs
    ]
    assert concordance(torch.from_numpy(scores), torch.from_numpy(labels)) == pytest.approx(np.mean(right), abs=1e-12)


def test_concordance_of_constants() -> None:
    assert concordance(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])) == 0.5
    assert math.isnan(concordance(torch.rand(3), torch.ones(3)))
    with pytest.raises(ArgumentError, match="must not be NaN"):
        concordance(torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 2.0]))


def test_figures_are_scipys() -> None:
    labels = numbers(200)
    scores = labels + 40.0 * torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keeper = NumberKeeper()
    keeper.add(torch.arange(200), scores, labels)

    found = keeper.summary()

    tau = stats.kendalltau(scores, labels).statistic
    assert found.auc == found.accumulated_auc == pytest.approx((1 + tau) / 2, abs=1e-12)
    assert found.correlation == pytest.approx(stats.spearmanr(scores, labels).statistic, abs=1e-12)
    line = stats.linregress(scores, labels)
    told = np.abs(labels.numpy() - line.intercept - line.slope * scores.numpy()) <= 0.5 * labels.numpy().std()
    assert found.within == pytest.approx(told.mean())


def test_the_best_single_guess_is_found_among_all() -> None:
    labels = numbers(150).numpy()
    reach = 0.5 * labels.std()
    best = max((np.abs(labels - guess) <= reach).mean() for guess in np.linspace(labels.min(), labels.max(), 20_000))
    within, trivially = shares_within(np.zeros(150), labels)
    assert trivially == pytest.approx(best, abs=1 / 150 + 1e-9)
    assert within == pytest.approx((np.abs(labels - labels.mean()) <= reach).mean())


def test_what_nothing_reads_is_what_is_said_of_chance() -> None:
    """150 runs of 80 records with scores that know nothing."""
    best, generator = [], np.random.default_rng(0)
    for seed in range(150):
        keeper = NumberKeeper()
        keeper.add(torch.arange(80), torch.from_numpy(generator.normal(size=80)), numbers(80, seed))
        found = keeper.summary()
        best.append(found.worst)
    assert np.mean(best) == pytest.approx(found.by_chance, abs=4.0 * np.std(best) / math.sqrt(150))


def test_canaries_are_told_apart_by_which_of_two_numbers_they_have() -> None:
    labels = numbers(100)
    labels[:40] = torch.tensor([120.0, 180.0]).repeat(20)
    keeper = NumberKeeper(canaries=Canaries(torch.arange(40)))
    keeper.add(torch.arange(100), torch.where(torch.arange(100) < 40, labels, torch.zeros(100).double()), labels)
    found = keeper.canary_leak()
    assert found is not None
    assert (found.auc, found.positives, found.negatives) == (1.0, 20, 20)
    assert keeper.summary().accumulated_auc == 0.5


def test_state_goes_on_alike() -> None:
    labels = numbers(50)
    whole, first, second = NumberKeeper(), NumberKeeper(), NumberKeeper()
    left_out = torch.where(torch.arange(50) < 5, math.nan, labels)
    for keeper in (whole, first):
        keeper.add(torch.arange(50), left_out, labels)
    second.load_state_dict(first.state_dict())
    for keeper in (whole, second):
        keeper.add(torch.arange(50), labels.flip(0), labels)
    assert repr(whole.summary()) == repr(second.summary())
    assert whole.leaves_out


def test_below_a_linear_top_squared_errors_are_read() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, activation = torch.randn(8, generator=generator), torch.randn(200, 8, generator=generator)
    labels = (activation @ weight).double() + 0.5 * torch.randn(200, generator=generator).double()
    residues = (activation @ weight).double() * 0.5 - labels
    gradient = residues.float()[:, None] * weight / 200
    view = View(party="p", step=0, ids=torch.arange(200), gradient=gradient, activation=activation)
    # A known record tells which way is up; the readout needs none, and is turned round.
    read = {attack.name: Leak(attack, classes=None) for attack in (DirectionAttack(), ReadoutAttack(), NormAttack())}
    for leak in read.values():
        leak.see(view, labels)
    assert read["readout"].summary.worst_auc > 0.85
    assert read["direction"].summary.auc > 0.7
    assert read["direction"].known == {"known_records": 20}
    assert read["norm"].summary.worst_auc < 0.65  # far from the mean is no more high than low


def test_pairs_in_one_fold_count_and_no_others() -> None:
    """By hand: fold 0 orders all three pairs rightly, fold 1 its pair wrongly, fold 2 has one number only."""
    scores = np.array([1.0, 2.0, 3.0, 9.0, 8.0, 0.0, 7.0])
    labels = np.array([1.0, 2.0, 3.0, 1.0, 2.0, 5.0, 5.0])
    folds = np.array([0, 0, 0, 1, 1, 2, 2])
    assert held_out_concordance(scores, labels, folds) == pytest.approx(3 / 4)
    assert math.isnan(held_out_concordance(scores, np.ones(7), folds))


def test_what_knows_nothing_is_not_read_below_one_half_out_of_fold() -> None:
    """Means of 40 runs of 60 records: within four standard errors of one half; all pairs together are far below."""
    generator, folds = np.random.default_rng(0), KFold(5, shuffle=True, random_state=0)
    places, within, together = place_of_each(folds.split(np.empty(60))), [], []
    for _ in range(40):
        labels = generator.normal(size=60)
        scores = cross_val_predict(Ridge(100.0), generator.normal(size=(60, 2)), labels, cv=folds)
        within.append(held_out_concordance(scores, labels, places))
        together.append(rank_concordance(scores, labels))
    error = 4.0 * np.std(within) / math.sqrt(40)
    assert np.mean(within) == pytest.approx(0.5, abs=error)
    assert np.mean(together) < 0.5 - error
