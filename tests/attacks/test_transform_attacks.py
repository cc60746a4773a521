"""Attackers who know of a transform, or suspect one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.attacks import least_squares
from splitvfl.attacks.procrustes import recover_transform, undo_transform
from splitvfl.attacks.suspected_flip import suspect_flip
from splitvfl.data.transform import flip, permute, random_rotation
from splitvfl.errors import ArgumentError
from splitvfl.metrics import reconstruction_mse


def case(d: int, m: int, *, seed: int, n: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return x, torch.randn(m, d, generator=generator, dtype=torch.float64)


@given(d=st.integers(1, 7), m=st.integers(1, 5), seed=st.integers(0, 200), shuffled=st.booleans())
def test_d_known_records_undo_any_orthonormal_transform(d: int, m: int, seed: int, shuffled: bool) -> None:
    x, A = case(d, m, seed=seed, n=d + 20)
    transform = permute([range(d)], d, seed=seed) if shuffled else random_rotation(d, seed=seed)
    revealed = A @ transform.matrix.T
    estimates = least_squares(revealed, transform.of(x) @ revealed.T)
    # Records in general position, of a condition that leaves digits.
    known = x[:d] + 3 * torch.eye(d, dtype=torch.float64)
    seen = least_squares(revealed, transform.of(known) @ revealed.T)

    recovered = recover_transform(seen, known)

    projector = torch.linalg.pinv(A) @ A
    torch.testing.assert_close(recovered, transform.matrix @ projector, rtol=0, atol=1e-7)
    torch.testing.assert_close(undo_transform(estimates, recovered), least_squares(A, x @ A.T), rtol=0, atol=1e-6)


@given(d=st.integers(1, 6), m=st.integers(1, 4), seed=st.integers(0, 99), chosen=st.sets(st.integers(0, 5)))
def test_d_known_records_undo_a_flip_too(d: int, m: int, seed: int, chosen: set[int]) -> None:
    x, A = case(d, m, seed=seed)
    turned = flip(d, [column for column in chosen if column < d])
    revealed = A @ turned.matrix.T

    def around_half(rows: Tensor) -> Tensor:
        return least_squares(revealed, (turned.of(rows) - 0.5) @ revealed.T)

    known = x[:d] + 3 * torch.eye(d, dtype=torch.float64)
    recovered = recover_transform(around_half(known), known - 0.5)

    half_star = least_squares(A, (x - 0.5) @ A.T)
    torch.testing.assert_close(undo_transform(around_half(x), recovered), half_star, rtol=0, atol=1e-6)


def test_rounded_estimates_are_undone_about_as_well_as_they_were_rounded() -> None:
    x, A = case(6, 3, seed=1, n=400)
    turn = random_rotation(6, seed=2)
    revealed = A @ turn.matrix.T
    estimates = least_squares(revealed, turn.of(x) @ revealed.T)
    noisy = (estimates * 100).round() / 100

    recovered = recover_transform(noisy[:200], x[:200], rank=3)
    undone = undo_transform(noisy[200:], recovered)

    sizes = torch.linalg.svdvals(recovered)  # of a partial isometry, whatever was fitted
    torch.testing.assert_close(sizes, torch.tensor([1.0, 1, 1, 0, 0, 0]).double(), rtol=0, atol=1e-12)

    plain = least_squares(A, x @ A.T)[200:]
    misled = reconstruction_mse(estimates[200:], x[200:])
    assert (undone - plain).abs().max() < 0.03  # rounding to .01 in six columns
    assert reconstruction_mse(undone, x[200:]) < misled / 2


@given(d=st.integers(1, 5), belief=st.floats(0, 1), seed=st.integers(0, 99))
def test_the_answer_between_is_the_best_for_its_belief(d: int, belief: float, seed: int) -> None:
    x, estimate = case(d, 40, seed=seed, n=40)

    def expected_error(answer: Tensor) -> float:
        as_they_are, flipped = (reconstruction_mse(answer, truth) for truth in (estimate, 1 - estimate))
        return (1 - belief) * as_they_are + belief * flipped

    found = expected_error(suspect_flip(estimate, belief=belief))

    for other in (
        x,
        estimate,
        1 - estimate,
        torch.full_like(x, 0.5),
        suspect_flip(estimate, belief=min(1, belief + 0.1)),
    ):
        assert found <= expected_error(other) + 1e-12


def test_who_only_suspects_a_flip_has_the_error_of_half() -> None:
    x, A = case(5, 2, seed=3)
    turned = flip(5)
    revealed = A @ turned.matrix.T
    estimate = least_squares(revealed, turned.of(x) @ revealed.T)

    answer = suspect_flip(estimate)

    assert torch.equal(answer, torch.full_like(x, 0.5))
    torch.testing.assert_close(suspect_flip(estimate, belief=torch.tensor([1.0, 0, 0, 0, 0]))[:, 0], 1 - estimate[:, 0])


def test_bad_input_is_told() -> None:
    x = torch.eye(3)
    with pytest.raises(ArgumentError, match="got 2 that span 2"):
        recover_transform(x[:2], x[:2])
    with pytest.raises(ArgumentError, match="that span 1"):
        recover_transform(torch.ones(4, 2), torch.ones(4, 2))
    with pytest.raises(ArgumentError, match="known records"):
        recover_transform(x, x[:2])
    with pytest.raises(ArgumentError, match="NaN"):
        recover_transform(x * math.nan, x)
    with pytest.raises(ArgumentError, match="rank from 0 to 3"):
        recover_transform(x, x, rank=4)
    with pytest.raises(ArgumentError, match=r"transform \(d, d\)"):
        undo_transform(x, x[:2])
    with pytest.raises(ArgumentError, match=r"belief in \[0, 1\]"):
        suspect_flip(x, belief=1.5)
    with pytest.raises(ArgumentError, match=r"belief or \(d,\)"):
        suspect_flip(x, belief=torch.ones(2))
