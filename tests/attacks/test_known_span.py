"""Known records with categories, whose columns add up to one in every record."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitvfl.attacks import ProcrustesAttack, WeightEstimationAttack, estimate_weights
from splitvfl.attacks.known_span import spans_all_but_sums, summing_groups
from splitvfl.attacks.procrustes import recover_transform
from splitvfl.data.transform import flip
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Equations, KnownRows, View


def records(n: int, *, seed: int = 0, sizes: tuple[int, ...] = (3, 2)) -> Tensor:
    """Return records of two numbers and categories; each category occurs at least every few records."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    drawn = [torch.randint(size, (n,), generator=generator) for size in sizes]
    one_hot = [torch.nn.functional.one_hot(one, size).double() for one, size in zip(drawn, sizes, strict=True)]
    return torch.cat([numbers, *one_hot], dim=1)


X = records(60)
KNOWN, OTHERS = X[:20], X[20:]
WEIGHT = torch.randn(4, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
INTERCEPT = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)


def test_categories_are_found_by_their_sums_moved_or_not() -> None:
    for rows in (KNOWN, KNOWN - KNOWN.mean(dim=0), KNOWN - 0.5):
        assert summing_groups(rows) == [range(2, 5), range(5, 7)]
    assert summing_groups(torch.rand(20, 3, generator=torch.Generator().manual_seed(2))) == []
    # Two numbers of two records are two values, too, and no category.
    assert summing_groups(torch.tensor([[0.2, 0.7], [0.5, 0.3]])) == []


@pytest.mark.parametrize("intercept", [True, False])
def test_the_estimate_is_exact_for_records_whose_categories_add_up(intercept: bool) -> None:
    own = INTERCEPT * intercept
    found = estimate_weights(KNOWN, KNOWN @ WEIGHT.T + own, intercept=intercept)
    torch.testing.assert_close(OTHERS @ found.A.T + found.intercept, OTHERS @ WEIGHT.T + own, rtol=0, atol=1e-9)
    # The weights themselves no record tells: those found are their shortest like.
    assert torch.linalg.vector_norm(found.A - WEIGHT) > 0.1
    assert found.error.max() < 1e-6
    torch.testing.assert_close(
        found.A[:, 2:5].sum(dim=1) - found.intercept, found.A[:, 5:].sum(dim=1) - found.intercept, rtol=0, atol=1e-9
    )


def test_both_attacks_go_on_with_equations_that_the_truth_solves() -> None:
    """Of a flipped model, as of any, and of one with as many equations as columns are free: all is found."""
    turned = flip(7)
    weight = torch.randn(7, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    right, revealed = X @ weight.T, weight @ turned.matrix.T
    known = KnownRows(KNOWN, right[:20], torch.zeros(20, 7, dtype=torch.float64))
    equations = Equations(revealed, right[20:], torch.zeros(40, 7, dtype=torch.float64))
    view = View(party="bank", step=0, ids=torch.arange(40), equations=equations, known_rows=known)
    for attack in (
        ProcrustesAttack(known_rows=20, then="rcc2"),
        WeightEstimationAttack(known_rows=20, then="rcc2"),
    ):
        found = attack(view.lent())
        assert (found[:, :2] - OTHERS[:, :2]).abs().max() < 1e-4  # numbers are in no sum
        for group in (range(2, 5), range(5, 7)):
            places = list(group)
            assert torch.equal(found[:, places].argmax(dim=1), OTHERS[:, places].argmax(dim=1))


def test_a_category_that_no_known_record_has_is_not_determined() -> None:
    without = KNOWN[KNOWN[:, 4] == 0]
    with pytest.raises(ArgumentError, match=r"determine 5 of 8.*1 of 7 columns are the same.*every category occurs"):
        estimate_weights(without, without @ WEIGHT.T, intercept=True)
    view = View(
        party="bank",
        step=0,
        ids=torch.arange(1),
        equations=Equations(WEIGHT, OTHERS[:1] @ WEIGHT.T, torch.zeros(1, 4, dtype=torch.float64)),
        known_rows=KnownRows(without, without @ WEIGHT.T, torch.zeros(len(without), 4, dtype=torch.float64)),
    )
    with pytest.raises(AttackRefused, match="1 of 7 columns are the same"):
        ProcrustesAttack(known_rows=len(without))(view)


def test_columns_that_depend_otherwise_and_too_few_records_are_refused() -> None:
    twice = torch.cat([KNOWN, KNOWN[:, :1]], dim=1)
    with pytest.raises(ArgumentError, match="depend on each other otherwise"):
        estimate_weights(twice, torch.zeros(20, 1), intercept=True)
    with pytest.raises(ArgumentError, match="name more records"):
        recover_transform(KNOWN[:4], KNOWN[:4])
    # Two records of two flags that differ seem a category; it takes one more to see it.
    assert not spans_all_but_sums(torch.eye(2, dtype=torch.float64) - 0.5, 1)
    assert spans_all_but_sums(torch.eye(2, dtype=torch.float64)[[0, 1, 1]] - 0.5, 1)
