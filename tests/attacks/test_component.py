from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from splitvfl.attacks import ComponentAttack
from splitvfl.data.columns import Columns
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import View, call_attack, hook_name, needs_of
from splitvfl.metrics import leak_auc, oriented

ROWS = 90


def rows_of(seed: int = 0, *, width: int = 6) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    mixed = torch.randn(ROWS, width, generator=random) @ torch.randn(width, width, generator=random)
    return mixed * torch.logspace(-2, 3, width) + 50.0


def view_of(rows: Any, *, step: int = 0) -> View:
    count = rows.numeric.shape[0] if isinstance(rows, Columns) else rows.shape[0]
    return View(party="a", step=step, ids=torch.arange(count), columns=rows, activation=rows)


def same_line(found: Tensor, expected: Any) -> None:
    left, right = found.numpy(), np.asarray(expected)
    right = right if left @ right > 0 else -right
    np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("batch", [1, 7, ROWS])
def test_of_columns_it_is_that_of_standardised_columns_in_any_batches(batch: int) -> None:
    rows = rows_of()
    attack = ComponentAttack()
    for _ in range(2):  # a second epoch changes nothing
        for part in rows.split(batch):
            call_attack(attack, view_of(part))

    scaled = StandardScaler().fit_transform(rows.double().numpy())

    # All rows once more, in an epoch of one batch: the component is still that of the whole table.
    same_line(call_attack(attack, view_of(rows)), PCA(1).fit_transform(scaled)[:, 0])


def test_of_activations_it_is_that_of_weighted_rows() -> None:
    attack = ComponentAttack(of="activation")
    parts = [rows_of(seed) for seed in range(5)]
    for part in parts:
        found = call_attack(attack, view_of(part))

    weight = np.repeat(0.99 ** np.arange(4, -1, -1), ROWS)
    every = torch.cat(parts).double().numpy()
    centred = every - np.average(every, axis=0, weights=weight)
    direction = np.linalg.svd(np.sqrt(weight)[:, None] * centred, full_matrices=False)[2][0]
    expected = (centred @ direction)[-ROWS:]
    same_line(found / found.abs().max(), expected / np.abs(expected).max())


def test_one_batch_of_activations_is_sklearns() -> None:
    rows = rows_of()
    found = call_attack(ComponentAttack(of="activation"), view_of(rows))
    expected = PCA(1).fit_transform(rows.double().numpy())[:, 0]
    same_line(found / found.abs().max(), expected / np.abs(expected).max())


def test_it_ranks_breast_cancer_without_a_label_or_a_message() -> None:
    columns, labels = load_breast_cancer(return_X_y=True)
    attack = ComponentAttack()
    assert needs_of(attack) == {"columns"}
    scores = call_attack(attack, view_of(torch.tensor(columns)))
    assert oriented(leak_auc(scores, torch.tensor(labels))) > 0.95


def test_it_keeps_its_sign_from_step_to_step() -> None:
    attack = ComponentAttack(of="activation")
    rows = rows_of()
    first = call_attack(attack, view_of(rows))
    for step in range(20):
        noisy = rows + 0.01 * rows.std(dim=0) * torch.randn(rows.shape, generator=torch.Generator().manual_seed(step))
        assert call_attack(attack, view_of(noisy)) @ first > 0


@pytest.mark.parametrize("of", ["columns", "activation"])
def test_it_goes_on_to_the_bit(of: Literal["columns", "activation"]) -> None:
    straight, resumed = ComponentAttack(of=of), ComponentAttack(of=of)
    call_attack(straight, view_of(rows_of(0)))
    resumed.load_state_dict(straight.state_dict())
    for seed in (1, 2):
        assert torch.equal(call_attack(resumed, view_of(rows_of(seed))), call_attack(straight, view_of(rows_of(seed))))


def test_constant_columns_and_a_single_record_count_nothing() -> None:
    rows = rows_of()
    constant = torch.cat([rows, torch.full((ROWS, 2), 0.1)], dim=1)
    same_line(call_attack(ComponentAttack(), view_of(constant)), call_attack(ComponentAttack(), view_of(rows)).numpy())
    for of in ("columns", "activation"):
        assert call_attack(ComponentAttack(of=of), view_of(rows[:1])).tolist() == [0.0]


def test_of_mixed_columns_it_takes_the_numeric_ones_and_refuses_none() -> None:
    rows = rows_of()
    codes = torch.zeros(ROWS, 2, dtype=torch.int64)
    mixed = call_attack(ComponentAttack(), view_of(Columns(rows, codes)))
    assert torch.equal(mixed, call_attack(ComponentAttack(), view_of(rows)))
    with pytest.raises(AttackRefused, match="component needs numeric columns"):
        call_attack(ComponentAttack(), view_of(Columns(rows[:, :0], codes)))


def test_what_it_is_of_is_checked_and_named() -> None:
    assert (hook_name(ComponentAttack()), hook_name(ComponentAttack(of="activation"))) == (
        "component",
        "component-of-activation",
    )
    with pytest.raises(ArgumentError, match="'columns' or 'activation', got 'labels'"):
        ComponentAttack(of="labels")  # type: ignore[arg-type]
    attack = ComponentAttack()
    call_attack(attack, view_of(rows_of()))
    with pytest.raises(ArgumentError, match="columns of width 6, got 3"):
        call_attack(attack, view_of(rows_of(width=3)))
