from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from sklearn.datasets import load_breast_cancer
from torch import Tensor

from splitvfl.attacks import SparseResiduesAttack, solve_residues, sparse_residues
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View, call_attack
from splitvfl.leakage.judging import Leak


def batch(rows: int, columns: int, used: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Columns, residues of which so many are not zero, and their sum."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    residues = torch.zeros(rows, dtype=torch.float64)
    chosen = torch.randperm(rows, generator=generator)[:used]
    residues[chosen] = 2 * torch.rand(used, generator=generator, dtype=torch.float64) - 1
    return features, residues, features.T @ residues


def test_few_residues_among_more_records_than_columns_are_found_exactly() -> None:
    features, residues, total = batch(40, 30, 12)

    # HiGHS keeps equations to 1e-7, and the inverse of 30 rows of normal numbers enlarges that about tenfold.
    assert torch.allclose(sparse_residues(features, total), residues, atol=1e-5)
    assert not torch.allclose(solve_residues(features, total, underdetermined=True), residues, atol=0.1)


def test_weighted_rounds_find_what_the_first_does_not() -> None:
    batches = [batch(40, 30, 16, seed=seed) for seed in range(8)]
    errors = [
        sum((sparse_residues(x, total, rounds=rounds) - r).abs().mean().item() for x, r, total in batches)
        for rounds in (1, 4)
    ]

    assert errors[1] < 0.95 * errors[0]


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(3, 8), st.integers(2, 5))
def test_the_first_round_is_the_least_sum_of_sizes(seed: int, rows: int, columns: int) -> None:
    features, _, total = batch(rows, columns, min(rows, 3), seed=seed)
    found = sparse_residues(features, total, rounds=1).numpy()
    x = features.numpy()

    assert np.allclose(x.T @ found, total.numpy(), atol=1e-6)  # HiGHS's feasibility tolerance is 1e-7
    assert np.abs(found).max() <= 1 + 1e-9
    assert np.abs(found).sum() == pytest.approx(least_sum_of_sizes(features, total), abs=1e-6)


def least_sum_of_sizes(features: Tensor, total: Tensor) -> float:
    """The same problem put another way: sizes t >= |r| as unknowns of their own, by another entry to the solver."""
    rows, columns = features.shape
    eye, x = np.eye(rows), features.numpy()
    rules = [
        LinearConstraint(np.hstack([x.T, np.zeros((columns, rows))]), total.numpy(), total.numpy()),
        LinearConstraint(np.hstack([eye, -eye]), -np.inf, 0),
        LinearConstraint(np.hstack([-eye, -eye]), -np.inf, 0),
    ]
    bounds = Bounds([-1.0] * rows + [0.0] * rows, 1.0)
    return float(milp(np.r_[np.zeros(rows), np.ones(rows)], constraints=rules, bounds=bounds).fun)


@pytest.mark.parametrize("columns", [8, 17, 18, 24, 29], ids=lambda columns: f"rank {columns} of 30")
def test_whichever_program_is_the_smaller_one_finds_the_least_sum_of_sizes(columns: int) -> None:
    """From 18 equations in 30 unknowns on it is the dual. Some residues lie at the bound."""
    generator = torch.Generator().manual_seed(columns)
    features = torch.randn(30, columns, generator=generator, dtype=torch.float64)
    residues = (1.5 * torch.randn(30, generator=generator, dtype=torch.float64)).clamp(-1, 1)
    total = features.T @ residues

    found = sparse_residues(features, total, rounds=1)

    assert found.abs().max() <= 1 + 1e-9
    assert torch.allclose(features.T @ found, total, atol=1e-6)  # HiGHS's feasibility tolerance is 1e-7
    assert found.abs().sum().item() == pytest.approx(least_sum_of_sizes(features, total), abs=1e-5)
    with pytest.raises(ArgumentError, match=r"no residues of size at most 0\.1 give this sum"):
        sparse_residues(features, total, bound=0.1)


def test_as_many_columns_as_records_leave_one_solution() -> None:
    features, residues, total = batch(8, 12, 8)

    assert torch.allclose(sparse_residues(features, total), residues, atol=1e-6)


def test_the_unit_of_the_residues_is_that_of_the_gradient() -> None:
    features, residues, total = batch(20, 15, 5)

    small = sparse_residues(features, 1e-4 * total, bound=1e-4)

    assert torch.allclose(small, 1e-4 * residues, atol=1e-9)


def test_identical_rows_share_their_sum_and_zero_rows_get_nothing() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])

    found = sparse_residues(features, torch.tensor([1.5, -0.5]))

    assert found.tolist() == pytest.approx([0.75, -0.5, 0.75, 0.0], abs=1e-6)


def test_a_residue_beyond_the_bound_has_no_solution() -> None:
    with pytest.raises(ArgumentError, match="no residues of size at most 1 give this sum"):
        sparse_residues(torch.eye(3), torch.tensor([0.5, 1.5, 0.0]))


@pytest.mark.parametrize(
    ("features", "gradient", "bound", "said"),
    [
        (torch.ones(2, 2), torch.ones(3), 1.0, r"got \(2, 2\) and \(3,\)"),
        (torch.ones(2, 2), torch.tensor([math.nan, 0.0]), 1.0, "NaN"),
        (torch.zeros(2, 2), torch.zeros(2), 1.0, "every row of the features is zero"),
        (torch.ones(2, 2), torch.ones(2), 0.0, "bound above 0"),
        (torch.ones(2, 2), torch.ones(2), math.nan, "bound above 0"),
        (torch.ones(0, 2), torch.ones(2), 1.0, r"got \(0, 2\)"),
    ],
)
def test_what_is_no_sum_of_rows_is_refused(features: Tensor, gradient: Tensor, bound: float, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        sparse_residues(features, gradient, bound)


def test_no_round_at_all_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one round, got 0"):
        sparse_residues(torch.ones(2, 2), torch.ones(2), rounds=0)


# --- the attack ------------------------------------------------------------------------------------------------------


def view_of(features: Tensor, gradient: Tensor, activation: Tensor | None = None, *, ids: Tensor | None = None) -> View:
    known = {} if activation is None else {"activation": activation.unsqueeze(1)}
    return View(
        party="lab",
        step=0,
        ids=torch.arange(len(features)) if ids is None else ids,
        columns=features,
        aggregated_gradient=gradient.unsqueeze(1),
        **known,
    )


class Hybrid:
    """Gradients as the hybrid mechanism makes them: of so many records sent, the first few were used."""

    def __init__(self, columns: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        self.columns, self.labels, self.weights = columns, labels, weights

    def view(self, rows: np.ndarray, used: int) -> View:
        x = self.columns[rows]
        activation = x @ self.weights
        residues = (1 / (1 + np.exp(-activation)) - self.labels[rows]) / used
        features, total = torch.from_numpy(x).float(), torch.from_numpy(x[:used].T @ residues[:used]).float()
        return view_of(features, total, torch.from_numpy(activation).float(), ids=torch.from_numpy(rows))


@pytest.fixture(scope="module")
def standardised() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Breast cancer, and the weights after 300 steps of gradient descent."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    weights = np.zeros(30)
    for _ in range(300):
        weights -= 0.1 * x.T @ (1 / (1 + np.exp(-x @ weights)) - y) / len(x)
    return x, y, weights


def balanced(attack: SparseResiduesAttack, world: Hybrid, batches: int) -> float:
    """Balanced accuracy on the records that were used; L 40, k 16 as published."""
    rng = np.random.default_rng(0)
    hits: dict[float, list[float]] = {0.0: [], 1.0: []}
    for _ in range(batches):
        rows = rng.choice(len(world.columns), 40, replace=False)
        scores = call_attack(attack, world.view(rows, 16)).numpy()[:16]
        for score, label in zip(scores, world.labels[rows][:16], strict=True):
            hits[float(label)].append(0.5 if score == 0 else float((score > 0) == (label == 1)))
    return float(np.mean([np.mean(each) for each in hits.values()]))


@pytest.mark.parametrize("trained", [False, True])
def test_at_the_published_setting_one_batch_tells_its_labels(
    standardised: tuple[np.ndarray, np.ndarray, np.ndarray], trained: bool
) -> None:
    x, y, weights = standardised

    found = balanced(SparseResiduesAttack(), Hybrid(x, y, weights * trained), 12)

    # .998 and .984 of 100 batches; standard errors of 12 are .01 and less.
    assert found > 0.95


def test_with_known_predictions_every_label_of_a_batch_is_read(
    standardised: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    x, y, weights = standardised
    attack = SparseResiduesAttack(predictions_known=True, time_limit=30.0)

    assert balanced(attack, Hybrid(x, y, 0.3 * weights), 5) == 1.0
    assert attack.note == (
        "the integer program answered in 5 of 5 batches, and its limit of 30 s ended it in 0; the others were solved "
        "without known predictions"
    )


def test_without_an_answer_in_time_the_other_solvers_decide_and_the_note_says_so() -> None:
    features, _, total = batch(40, 30, 12)
    view = view_of(features, total / 12, torch.zeros(40, dtype=torch.float64))  # predictions of another model
    late = SparseResiduesAttack(predictions_known=True, time_limit=1e-6)

    scores = call_attack(late, view)

    assert torch.equal(scores, call_attack(SparseResiduesAttack(), view))
    assert "answered in 0 of 1 batches" in late.note
    assert SparseResiduesAttack().note == ""


def test_few_residues_are_taken_as_found_and_many_as_of_least_norm() -> None:
    for used, sparse in ((12, True), (36, False)):
        features, residues, total = batch(40, 30, used)
        least = solve_residues(features, total / used, underdetermined=True)

        scores = call_attack(SparseResiduesAttack(), view_of(features, total / used))

        assert torch.allclose(scores, -residues / used, atol=1e-6) == sparse
        assert torch.equal(scores, -least) != sparse


def test_sparse_residues_that_are_too_large_for_their_number_are_not_believed() -> None:
    features, residues, total = batch(40, 30, 12)
    unit = 1 / float(residues.abs().max())

    for size, believed in ((0.99, True), (1.01, False)):
        # 12 residues that are not zero, the largest of which is so many twelfths.
        gradient = size * unit * total / 12
        least = solve_residues(features, gradient, underdetermined=True)
        scores = call_attack(SparseResiduesAttack(), view_of(features, gradient))
        assert torch.equal(scores, -least) != believed


def test_a_bound_that_is_too_small_leaves_the_minimum_norm() -> None:
    features, _, total = batch(40, 30, 12)
    least = solve_residues(features, total / 12, underdetermined=True)

    scores = call_attack(SparseResiduesAttack(least_used=1000), view_of(features, total / 12))

    assert torch.equal(scores, -least)


def test_votes_of_several_rounds_tell_more_than_one() -> None:
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(96, 13))
    labels = (generator.uniform(size=96) < 0.5).astype(float)
    world, leak = Hybrid(columns, labels, np.zeros(13)), Leak(SparseResiduesAttack())
    for _ in range(32):
        rows = generator.choice(96, 24, replace=False)
        leak.see(world.view(rows, 9), torch.from_numpy(labels[rows]))

    assert leak.summary.signs_right is not None
    # A record is in eight rounds, and used in three; where it is not, its sign says nothing.
    assert leak.summary.records_right / leak.summary.records > leak.summary.signs_right + 0.1
    assert leak.accumulated_auc > 0.9


def test_nothing_sent_decides_nothing() -> None:
    for known in (False, True):
        attack = SparseResiduesAttack(predictions_known=known)
        zeros = torch.zeros(4, 2)
        assert call_attack(attack, view_of(zeros, torch.zeros(2), torch.zeros(4))).tolist() == [0.0] * 4
        assert call_attack(attack, view_of(zeros + 1, torch.zeros(2), torch.zeros(4))).tolist() == [0.0] * 4


def test_wide_cuts_categorical_columns_and_wrong_settings_are_refused() -> None:
    for columns, gradient, said in (
        (torch.ones(4, 5), torch.zeros(5, 2), r"width 1, got shape \(5, 2\)"),
        ((torch.ones(4, 5), torch.ones(4, 1)), torch.zeros(5, 1), "numeric columns"),
    ):
        view = View(party="lab", step=0, ids=torch.arange(4), columns=columns, aggregated_gradient=gradient)
        with pytest.raises(HookError, match=said):
            call_attack(SparseResiduesAttack(), view)
    with pytest.raises(ArgumentError, match="least_used of at least 1"):
        SparseResiduesAttack(least_used=0)
    with pytest.raises(ArgumentError, match="time_limit above 0"):
        SparseResiduesAttack(time_limit=0.0)
