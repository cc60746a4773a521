from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.attacks import StackedEpochsAttack, stack_epochs, two_mean_labels
from splitvfl.attacks.stacked_epochs import EpochBatch, _epochs, _equations, _System
from splitvfl.data.load import load
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View
from splitvfl.learning.losses import Approximation
from splitvfl.learning.sigmoid_coefficients import APPROXIMATIONS
from splitvfl.metrics import leak_auc
from splitvfl.models import gradient_scale, sigmoid_coefficients


def train(
    own: Tensor,
    other: Tensor,
    labels: Tensor,
    *,
    batch: int,
    epochs: int,
    eta: float = 0.01,
    approximation: Approximation = "taylor",
    seed: int = 0,
) -> list[EpochBatch]:
    """Train from zero on two parties' columns and return what the one with ``own`` saw."""
    generator = torch.Generator().manual_seed(seed)
    mine, theirs = own.new_zeros(own.shape[1]), own.new_zeros(other.shape[1])
    batches = []
    for _ in range(epochs):
        for ids in torch.randperm(len(own), generator=generator).split(batch):
            part = own[ids] @ mine
            f = sigmoid_coefficients(part + other[ids] @ theirs, labels[ids], approximation=approximation)
            scaled = f / (gradient_scale(approximation) * len(ids))
            batches.append(EpochBatch(ids, own[ids], own[ids].T @ scaled, part))
            mine, theirs = mine - eta * own[ids].T @ scaled, theirs - eta * other[ids].T @ scaled
    return batches


def random_parties(records: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    own, other = torch.randn(2, records, 4, generator=generator, dtype=torch.float64)
    labels = torch.where(own[:, 0] + other[:, 0] + torch.randn(records, generator=generator) > 0.8, 1.0, -1.0)
    return own, torch.cat([other, torch.ones(records, 1, dtype=torch.float64)], dim=1), labels.double()


def right(ids: Tensor, estimates: Tensor, labels: Tensor) -> float:
    return float((two_mean_labels(estimates) == labels[ids]).double().mean())


def test_the_solution_is_that_of_one_dense_matrix() -> None:
    own, other, labels = random_parties(30)
    batches = train(own, other, labels, batch=9, epochs=3)
    rows, totals = [], []
    for number, batch in enumerate(batches):
        orthonormal, triangle = np.linalg.qr(batch.features.numpy())
        # Xᵀ y = Xᵀ z_own / 2 - 2 s G, in the orthonormal basis; the last three unknowns are shifts of the epochs.
        total = batch.features.T @ batch.own_logits / 2 - 2 * len(batch.ids) * batch.gradient
        dense = np.zeros((orthonormal.shape[1], 33))
        dense[:, batch.ids.numpy()] = orthonormal.T
        # In units of .5: a shift is damped by four times as much as a label.
        dense[:, 30 + number // 4] = 0.5 * orthonormal.sum(axis=0)
        rows.append(dense)
        totals.append(np.linalg.lstsq(triangle.T, total.numpy())[0])
    matrix = np.concatenate(rows)
    solved = np.linalg.solve(matrix.T @ matrix + 0.3**2 * np.eye(33), matrix.T @ np.concatenate(totals))
    ids, estimates = stack_epochs(batches, approximation="taylor", damping=0.3)
    assert ids.tolist() == list(range(30))
    # The solver stops at a relative residual of 1e-5.
    np.testing.assert_allclose(estimates, solved[:30] + 0.5 * solved[30:].mean(), atol=2e-3)


def test_cross_validation_is_that_of_the_whole_influence_matrix() -> None:
    own, other, labels = random_parties(40)
    batches = train(own, other, labels, batch=12, epochs=6)
    equations = [_equations(batch, "taylor") for batch in batches]
    system = _System(equations, np.concatenate([each.ids for each in equations]), 40)
    for damping in (0.2, 0.8):
        basis = np.eye(system.total.size)
        matrix = np.stack([system._forward(unit) for unit in np.eye(system._unknowns)], axis=1)
        influence = matrix @ np.linalg.solve(matrix.T @ matrix + damping**2 * np.eye(matrix.shape[1]), matrix.T)
        residual = (basis - influence) @ system.total
        exact = (residual @ residual / len(basis)) / (1 - np.trace(influence) / len(basis)) ** 2
        # One random sign vector estimates the trace of 84 equations to a few per cent.
        assert system.cross_validation(damping) == pytest.approx(exact, rel=0.25)


def test_forward_and_backward_are_each_others_transpose() -> None:
    own, other, labels = random_parties(40)
    equations = [_equations(batch, "taylor") for batch in train(own, other, labels, batch=12, epochs=2)]
    system = _System(equations, np.concatenate([each.ids for each in equations]), 40)
    generator = np.random.default_rng(0)
    unknown, values = generator.normal(size=system._unknowns), generator.normal(size=system.total.size)
    assert values @ system._forward(unknown) == pytest.approx(unknown @ system._backward(values))


@pytest.mark.parametrize(
    "approximation",
    [
        pytest.param(
            name, marks=[] if name in ("exact", "taylor") else pytest.mark.slow(reason="another approximation")
        )
        for name in APPROXIMATIONS
    ],
)
def test_epochs_together_tell_what_one_batch_does_not(approximation: Approximation) -> None:
    own, other, labels = random_parties(600)
    batches = train(own, other, labels, batch=50, epochs=40, approximation=approximation)
    first = stack_epochs(batches[:12], approximation=approximation, underdetermined=True)
    together = stack_epochs(batches, approximation=approximation)
    # 40 epochs of 4 columns are 3.2 times as many equations as a batch has records; one epoch is a twelfth as many.
    assert right(*together, labels) > 0.97
    assert right(*first, labels) < 0.75


def test_without_columns_of_the_others_it_is_exact() -> None:
    own, _, labels = random_parties(200)
    batches = train(own, torch.zeros(200, 1, dtype=torch.float64), labels, batch=50, epochs=40)
    ids, estimates = stack_epochs(batches, approximation="taylor", damping=0.0)
    # The solver stops at a relative residual of 1e-5 over all 600 equations, not at each label.
    torch.testing.assert_close(estimates, labels[ids], rtol=0, atol=5e-2)


@pytest.fixture(scope="module")
def credit_default(data_folder: Path) -> tuple[Tensor, Tensor]:
    """Columns and labels of a twentieth of the records."""
    data = load("credit-default", path=data_folder / "credit_default_taiwan.parquet", categorical_columns=())
    records = torch.randperm(24_000, generator=torch.Generator().manual_seed(0))[:1280]
    columns = data.passives["passive"].train.columns.numeric[records].double()
    assert data.active.train.labels is not None
    return columns, 2 * data.active.train.labels[records].double() - 1


@pytest.mark.slow(reason="up to thirty epochs of many records")
@pytest.mark.parametrize(("batch", "epochs", "expected"), [(256, 30, 0.95), (64, 12, 0.98)])
def test_credit_default_gives_its_labels_away(
    batch: int, epochs: int, expected: float, credit_default: tuple[Tensor, Tensor]
) -> None:
    columns, labels = credit_default
    columns = columns / torch.linalg.vector_norm(columns, dim=1).max()
    # Twenty times the learning rate: as many equations for a label, and weights move as far as with all records.
    batches = train(columns[:, 12:], with_intercept(columns[:, :12]), labels, batch=batch, epochs=epochs, eta=0.2)
    found = right(*stack_epochs(batches, approximation="taylor"), labels)
    assert found > expected
    assert (labels < 0).double().mean() == pytest.approx(0.78, abs=0.03)


def with_intercept(columns: Tensor) -> Tensor:
    return torch.cat([columns, columns.new_ones(len(columns), 1)], dim=1)


def test_an_epoch_is_over_when_a_record_comes_again() -> None:
    batches: Sequence[list[int]] = [[1, 2], [3, 4], [2, 5], [1, 3], [4], [1]]
    assert _epochs([np.array(ids) for ids in batches]) == [0, 0, 1, 1, 1, 2]


def test_two_means_find_the_gap_of_unequal_heaps() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.where(torch.rand(2000, generator=generator) < 0.2, 1.0, -1.0)
    shifted = labels + 0.7 + 0.25 * torch.randn(2000, generator=generator)
    # Four deviations from either heap: at most one in 10 000 is beyond.
    assert (two_mean_labels(shifted) == labels).double().mean() > 0.998
    assert two_mean_labels(torch.full((3,), 0.5)).tolist() == [-1.0, -1.0, -1.0]


def views(batches: Sequence[EpochBatch]) -> list[View]:
    return [
        View(
            party="telecom",
            step=step,
            ids=batch.ids,
            columns=batch.features,
            aggregated_gradient=batch.gradient[:, None],
            activation=batch.own_logits[:, None],
        )
        for step, batch in enumerate(batches)
    ]


def test_the_hook_learns_from_epoch_to_epoch_and_ends_where_the_function_does() -> None:
    own, other, labels = random_parties(300)
    batches = train(own, other, labels, batch=50, epochs=31)
    attack = StackedEpochsAttack(approximation="taylor", damping=0.1)
    scores = [attack(view) for view in views(batches)]
    positive = labels > 0
    epochs = [
        leak_auc(torch.cat(scores[start : start + 6]), torch.cat([positive[b.ids] for b in batches[start : start + 6]]))
        for start in (0, 60, 180)
    ]
    assert epochs[0] < 0.85 < epochs[1] < epochs[2]
    assert epochs[2] > 0.98
    # In the last epoch it had solved those before it, and nothing else.
    before = dict(
        zip(*(part.tolist() for part in stack_epochs(batches[:-6], approximation="taylor", damping=0.1)), strict=True)
    )
    assert scores[-1].tolist() == [before[number] for number in batches[-1].ids.tolist()]


def test_a_first_epoch_scores_the_minimum_norm_solution_of_its_batch() -> None:
    own, other, labels = random_parties(20)
    [batch] = train(own, other, labels, batch=20, epochs=1)
    expected = torch.linalg.lstsq(own.T, own.T @ labels, driver="gelsd").solution[batch.ids]
    torch.testing.assert_close(StackedEpochsAttack(approximation="taylor")(views([batch])[0]), expected)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitvfl.attacks.stacked_epochs._MOST_NUMBERS", 20 * 4 * 3)
    own, other, labels = random_parties(100)
    batches = train(own, other, labels, batch=20, epochs=4)
    attack = StackedEpochsAttack(approximation="taylor", damping=0.1)
    for view in views(batches):
        attack(view)
    kept = [ids.tolist() for ids, _, _ in attack.state_dict()["equations"]]
    assert kept == [batch.ids.tolist() for batch in batches[-3:]]


def test_a_record_that_is_new_after_the_first_epoch_is_not_scored() -> None:
    own, other, labels = random_parties(20)
    batches = train(own, other, labels, batch=20, epochs=2)
    renamed = EpochBatch(batches[1].ids.clone(), batches[1].features, batches[1].gradient, batches[1].own_logits)
    renamed.ids[0] = 99
    attack = StackedEpochsAttack(approximation="taylor", damping=0.1)
    scores = [attack(view) for view in views([batches[0], renamed])][1]
    assert scores.isnan().tolist() == [True, *[False] * 19]


def test_too_few_equations_are_refused() -> None:
    own, other, labels = random_parties(100)
    batches = train(own, other, labels, batch=50, epochs=3)
    with pytest.raises(ArgumentError, match=r"24 equations of 6 batches.*100 records; it takes more epochs"):
        stack_epochs(batches, approximation="taylor")
    assert stack_epochs(batches, approximation="taylor", underdetermined=True)[1].shape == (100,)


def test_bad_input_is_refused() -> None:
    own, other, labels = random_parties(20)
    [batch] = train(own, other, labels, batch=20, epochs=1)
    for damping in (-1.0, float("nan")):
        with pytest.raises(ArgumentError, match="damping of at least 0"):
            stack_epochs([batch], approximation="taylor", damping=damping)
        with pytest.raises(ArgumentError, match="damping of at least 0"):
            StackedEpochsAttack(damping=damping)
    with pytest.raises(ArgumentError, match="at least one batch"):
        stack_epochs([], approximation="taylor")
    twice = EpochBatch(torch.zeros(20, dtype=torch.int64), batch.features, batch.gradient, batch.own_logits)
    with pytest.raises(ArgumentError, match="20 different record ids, got 1"):
        stack_epochs([twice], approximation="taylor")
    wrong = EpochBatch(batch.ids, batch.features * float("inf"), batch.gradient, batch.own_logits)
    with pytest.raises(ArgumentError, match="features holds NaN or infinite"):
        stack_epochs([wrong], approximation="taylor")
    for estimates in (torch.zeros(0), torch.zeros(2, 2), torch.tensor([float("nan")])):
        with pytest.raises(ArgumentError, match=r"finite estimates \(n,\)"):
            two_mean_labels(estimates)


def test_views_that_it_cannot_read_are_refused() -> None:
    own, other, labels = random_parties(20)
    [view] = views(train(own, other, labels, batch=20, epochs=1))
    with pytest.raises(HookError, match="numeric columns"):
        StackedEpochsAttack()(view.granting(columns=("a", "b")))
    with pytest.raises(HookError, match="width 1"):
        StackedEpochsAttack()(view.granting(aggregated_gradient=torch.zeros(4, 2)))
