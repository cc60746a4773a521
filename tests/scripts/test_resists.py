"""Parts of the reproduction of residue protection that are about secret batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scripts.reproduce.residue_protection.resists import weak_threshold
from scripts.reproduce.residue_protection.secret_batches import Drawing, balanced, rounds_of
from splitvfl.attacks import sparse_residues


@pytest.mark.parametrize(("used", "sent"), [(2, 3), (10, 25), (80, 400), (16, 40), (8, 15)])
def test_as_many_are_used_and_sent_on_average_as_asked_for(used: int, sent: int) -> None:
    drawn, size = Drawing(used, sent).secret_batch, Drawing(used, sent).size
    # Sizes and the number of ones are rounded.
    assert drawn.expected_used(size) == pytest.approx(used, abs=1)
    assert drawn.expected_sent(size) == pytest.approx(sent, abs=1)
    assert drawn.kept > max(0.5, used / sent)


def test_a_round_is_the_gradient_of_those_that_are_used_and_weights_follow_it() -> None:
    generator = torch.Generator().manual_seed(0)
    drawing = Drawing(6, 15)
    columns = torch.randn(drawing.size, 4, generator=generator)
    labels = (torch.rand(drawing.size, generator=generator) < 0.5).float()
    rounds = rounds_of(columns, labels, drawing, rate=0.5, seed=1)
    weights = np.zeros(4)
    for _, (view, zeros) in zip(range(3), rounds, strict=False):
        used = view.ids[~zeros].numpy()
        rows = columns.numpy()[used]
        expected = rows.T @ (1 / (1 + np.exp(-rows @ weights)) - labels.numpy()[used]) / len(used)
        # Gradients cross as float32.
        assert np.allclose(view.aggregated_gradient[:, 0].numpy(), expected, rtol=0, atol=1e-6)
        assert torch.equal(view.columns, columns[view.ids])
        weights = weights - 0.5 * expected
    with pytest.raises(AssertionError):  # they are drawn anew
        assert torch.equal(view.ids, next(rounds).view.ids)


def test_the_threshold_is_the_published_one_and_parts_what_sparse_recovery_finds() -> None:
    # Donoho and Tanner's weak threshold of the cross-polytope is .386 at rank / L = ½: there k / L = .193.
    assert weak_threshold(1 / 0.193) == pytest.approx(0.386, abs=0.003)
    # Rank 60 of L = 2.5 k records: well below the threshold all are found, and well above none.
    rng = np.random.default_rng(0)
    for ratio, found in ((0.6 * weak_threshold(2.5), True), (1.6 * weak_threshold(2.5), False)):
        used = round(60 * ratio)
        sent = round(2.5 * used)
        exact = []
        for _ in range(5):
            columns, residues = rng.normal(size=(sent, 60)), np.zeros(sent)
            residues[:used] = rng.choice([-0.5, 0.5], used)
            features = torch.from_numpy(columns)
            solved = sparse_residues(features, torch.from_numpy(columns.T @ residues), bound=100.0, rounds=1)
            exact.append(np.allclose(solved.numpy(), residues, atol=1e-6))
        assert all(exact) if found else not any(exact)


def test_balanced_accuracy_counts_undecided_signs_as_half() -> None:
    assert balanced(torch.tensor([1.0, -1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])) == 0.5
    assert balanced(torch.tensor([3.0, -1.0]), torch.tensor([1.0, 0.0])) == 1.0
    assert math.isnan(balanced(torch.tensor([3.0]), torch.tensor([1.0])))
