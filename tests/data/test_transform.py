from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.data import transform as transforms
from splitvfl.data.transform import (
    Rearrangement,
    Rotation,
    best_rotation,
    check_unit_box,
    flip,
    like_alphabets,
    permute,
    random_rotation,
    transform_of,
)
from splitvfl.errors import ArgumentError, DataError

KINDS = ("flip", "some", "permute", "rotation")


def made(kind: str, d: int, *, seed: int = 0) -> Rearrangement | Rotation:
    return {
        "flip": lambda: flip(d),
        "some": lambda: flip(d, range(0, d, 2)),
        "permute": lambda: permute([range(d)], d, seed=seed),
        "rotation": lambda: random_rotation(d, seed=seed),
    }[kind]()


def rows(n: int, d: int, *, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(kind=st.sampled_from(KINDS), d=st.integers(1, 8), seed=st.integers(0, 100))
def test_a_transform_is_the_isometry_that_it_says_and_can_be_undone(kind: str, d: int, seed: int) -> None:
    transform, x = made(kind, d, seed=seed), rows(7, d, seed=seed)

    z = transform.of(x)

    torch.testing.assert_close(z, x @ transform.matrix.T + transform.shift, rtol=0, atol=1e-14)
    torch.testing.assert_close(torch.cdist(z, z), torch.cdist(x, x), rtol=0, atol=1e-7)  # roots of roundings near 0
    torch.testing.assert_close(transform.undone(z), x, rtol=0, atol=1e-14)
    again = transform_of(transform.tensors())
    assert torch.equal(again.of(x), z)
    assert again.columns == d


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_transform_prints_tells_nothing_of_it(kind: str) -> None:
    assert repr(made(kind, 5, seed=1)) == repr(made("flip" if kind != "rotation" else kind, 5, seed=2))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_their_dtype(kind: str) -> None:
    assert made(kind, 3).of(rows(2, 3).float()).dtype == torch.float32


# --- scores


def trained(
    x: Tensor, own: Tensor, y: Tensor, *, penalty: float, of_intercepts: float = 0.0
) -> tuple[Tensor, Tensor, float]:
    """Softmax regression by Newton's method, both parties' columns at once: passive weights, scores and mean loss.

    Args:
        x: The passive party's columns.
        own: The active party's.
        y: Classes.
        penalty: Of half the squared weights of both parties.
        of_intercepts: The same of the intercepts.
    """
    design = np.hstack([x.numpy(), own.numpy(), np.ones((len(x), 1))])
    (n, p), k = design.shape, int(y.max()) + 1
    held = np.tile([penalty] * (p - 1) + [of_intercepts], k)
    flat, targets = np.zeros(k * p), np.eye(k)[y.numpy()]
    for _ in range(60):
        logits = design @ flat.reshape(k, p).T
        shares = scipy.special.softmax(logits, axis=1)
        gradient = ((shares - targets).T @ design / n).ravel() + held * flat
        if np.abs(gradient).max() < 1e-14:
            break
        mixed = np.einsum("nc,ce->nce", shares, np.eye(k)) - np.einsum("nc,ne->nce", shares, shares)
        curvature = np.einsum("nce,np,nq->cpeq", mixed, design, design).reshape(k * p, k * p) / n + np.diag(held)
        # A constant on all classes' weights changes no score; least squares takes no step along it.
        flat -= np.linalg.lstsq(curvature, gradient, rcond=1e-13)[0]
    loss = -np.log((shares * targets).sum(axis=1)).mean()
    return torch.from_numpy(flat.reshape(k, p)[:, : x.shape[1]]), torch.from_numpy(shares), float(loss)


def problem(n: int = 60, d: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, own = rows(n, d, seed=1), rows(n, 2, seed=2)
    truth = torch.randn(d + 2, 3, generator=generator, dtype=torch.float64)
    noise = torch.rand(n, 3, generator=generator, dtype=torch.float64).clamp(min=1e-9)
    return x, own, (torch.cat([x, own], dim=1) @ truth - (-noise.log()).log()).argmax(dim=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_penalty_on_weights_alone_leaves_every_score_as_it_was(kind: str) -> None:
    x, own, y = problem()
    transform = made(kind, x.shape[1])

    weight, scores, _ = trained(x, own, y, penalty=1e-2)
    turned, again, _ = trained(transform.of(x), own, y, penalty=1e-2)

    # Newton ends at gradients of 1e-14 with curvatures of 1e-2.
    torch.testing.assert_close(again, scores, rtol=0, atol=1e-9)
    torch.testing.assert_close(turned, weight @ transform.matrix.T, rtol=0, atol=1e-9)


def test_a_penalty_on_intercepts_too_changes_scores_by_the_flip() -> None:
    x, own, y = problem()

    scores, flipped = (trained(columns, own, y, penalty=1e-2, of_intercepts=1e-2)[1] for columns in (x, 1 - x))

    assert (scores - flipped).abs().max() > 1e-4


def test_without_a_penalty_the_loss_stays() -> None:
    x, own, y = problem(n=120)

    losses = [trained(made(kind, 4).of(x), own, y, penalty=0.0)[2] for kind in KINDS]

    assert losses == pytest.approx([trained(x, own, y, penalty=0.0)[2]] * len(KINDS), abs=1e-12)


# --- random ones


def test_random_transforms_differ_unless_an_experiment_asks_for_a_seed() -> None:
    assert not torch.equal(random_rotation(5).matrix, random_rotation(5).matrix)
    assert torch.equal(random_rotation(5, seed=1).matrix, random_rotation(5, seed=1).matrix)
    orders = {tuple(permute([range(9)], 9).order.tolist()) for _ in range(20)}
    assert len(orders) > 15  # of 362 880


def test_without_a_seed_only_the_operating_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms.secrets, "token_bytes", lambda count: b"\7" * count)
    monkeypatch.setattr(np.random, "default_rng", None)

    assert transforms._words(33, None).tolist() == [int.from_bytes(b"\7" * 8, "little")] * 33


def test_rotations_are_uniform() -> None:
    # An entry of a uniform H in three dimensions is uniform in [-1, 1] (Archimedes); one of QR alone is not.
    entries = [random_rotation(3, seed=seed).matrix[0, 0].item() for seed in range(2000)]

    assert scipy.stats.kstest(entries, scipy.stats.uniform(-1, 2).cdf).pvalue > 0.01  # of fixed seeds


@given(seed=st.integers(0, 200))
def test_permutations_stay_within_their_groups(seed: int) -> None:
    order = permute([[0, 2, 5], [1, 4]], 6, seed=seed).order

    assert sorted(order[[0, 2, 5]].tolist()) == [0, 2, 5]
    assert sorted(order[[1, 4]].tolist()) == [1, 4]
    assert order[3] == 3


def test_permutations_within_a_group_are_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(3000):
        order = tuple(permute([[0, 1, 2]], 3, seed=seed).order.tolist())
        counts[order] = counts.get(order, 0) + 1

    assert len(counts) == math.factorial(3)
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 0.01  # of fixed seeds


# --- the best


@given(d=st.integers(1, 7), m=st.integers(1, 4), seed=st.integers(0, 200))
def test_no_orthonormal_matrix_makes_least_squares_miss_more(d: int, m: int, seed: int) -> None:
    x = rows(30, d, seed=seed)
    A = torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    known = torch.linalg.pinv(A) @ A

    def error(H: Tensor) -> float:
        return (x - x @ known.T @ H.T).square().sum(dim=1).mean().item()

    best = best_rotation(known, x.T @ x / 30)

    others = [random_rotation(d, seed=seed + 1 + number).matrix for number in range(20)]
    worst = max(map(error, [*others, -torch.eye(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64)]))
    assert error(best.matrix) >= worst - 1e-9
    # Theorem 3: equal to the closed form.
    K = x.T @ x / 30
    sizes = torch.linalg.svdvals(known @ K).sum()
    closed = torch.trace((torch.eye(d) + known) @ K) + 2 * sizes
    assert error(best.matrix) == pytest.approx(closed.item(), abs=1e-9)


# --- groups and checks


def test_columns_with_like_alphabets_are_found() -> None:
    many = torch.linspace(0, 1, 100, dtype=torch.float64)
    x = torch.stack(
        [many, (many > 0.5).double(), many.square(), (many > 0.9).double(), 2 * many, (3 * many).floor() / 3], dim=1
    )

    assert like_alphabets(x) == [[0, 2], [1, 3]]


def test_a_flip_is_for_the_unit_box() -> None:
    x = torch.tensor([[0.0, -0.1], [1.0, 0.5]])
    check_unit_box(x, ["age", "rent"], [0])
    with pytest.raises(DataError, match=r"'rent' holds -0.1 to 0.5.*minmax"):
        check_unit_box(x, ["age", "rent"], [0, 1])


@pytest.mark.parametrize(
    "matrix",
    [torch.ones(2, 2), torch.eye(3)[:2], torch.eye(2) * 1.001, torch.full((2, 2), math.nan), torch.ones(2)],
    ids=["ones", "not square", "scaled", "nan", "vector"],
)
def test_a_matrix_that_is_not_orthonormal_is_refused(matrix: Tensor) -> None:
    with pytest.raises(ArgumentError, match="orthonormal"):
        Rotation(matrix.double())


def test_bad_input_is_told() -> None:
    with pytest.raises(ArgumentError, match="permutation"):
        Rearrangement(torch.tensor([0, 0]), torch.tensor([False, False]))
    with pytest.raises(ArgumentError, match="flipped"):
        Rearrangement(torch.tensor([0, 1]), torch.tensor([False]))
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        flip(2, [2])
    with pytest.raises(ArgumentError, match="groups of different columns"):
        permute([[0, 1], [1]], 3)
    with pytest.raises(ArgumentError, match="1 to 4096"):
        random_rotation(5000)
    with pytest.raises(ArgumentError, match="of a transform"):
        transform_of({"order": torch.arange(2)})
    with pytest.raises(ArgumentError, match="at least one row"):
        like_alphabets(torch.zeros(0, 2))
    with pytest.raises(ArgumentError, match="P and K_0"):
        best_rotation(torch.eye(2), torch.eye(3))
