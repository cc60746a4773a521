from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.attacks import LeastSquaresAttack, equations, least_squares, score_equations
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, call_attack, target_of
from splitvfl.leakage.score_equations import activation_equations, count_scores, product_error, stacked
from splitvfl.leakage.unit_box import Box
from splitvfl.metrics import reconstruction_mse


def system(n: int, k: int, d: int, *, seed: int = 0, scale: float = 1.0) -> tuple[torch.Tensor, ...]:
    """Scores, active logits, weights and the true features; one sigmoid for k = 1."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(n, d, generator=generator, dtype=torch.float64)
    weight = scale * torch.randn(k, d, generator=generator, dtype=torch.float64)
    known = torch.randn(n, k, generator=generator, dtype=torch.float64)
    if k == 1:
        weight, known = weight[0], known[:, 0]
        return torch.sigmoid(known + features @ weight), known, weight, features
    return torch.softmax(known + features @ weight.T, dim=1), known, weight, features


@given(k=st.integers(1, 8), d=st.integers(1, 10), seed=st.integers(0, 1000))
def test_the_true_features_solve_the_equations(k: int, d: int, seed: int) -> None:
    scores, known, weight, features = system(5, k, d, seed=seed)

    left, right = equations(scores, known, weight)

    assert left.shape == (max(k - 1, 1), d)
    # Logits up to about 15 here: a score as small as e^-15 costs no digits, and 1 - c at most e^15 · 1e-16.
    torch.testing.assert_close(features @ left.T, right, rtol=0, atol=1e-9)


def test_a_sigmoid_is_one_equation_in_the_weights() -> None:
    scores, known, weight, _ = system(4, 1, 3)

    left, right = equations(scores, known, weight)

    assert torch.equal(left, weight.unsqueeze(0))
    expected = [math.log(c) - math.log(1 - c) - a for c, a in zip(scores.tolist(), known.tolist(), strict=True)]
    assert right[:, 0].tolist() == pytest.approx(expected, rel=1e-12)


def test_float32_is_solved_in_float64() -> None:
    left, right = equations(*(tensor.float() for tensor in system(3, 4, 5)[:3]))

    assert left.dtype == right.dtype == torch.float64


def test_a_saturated_sigmoid_is_bounded_and_reported() -> None:
    scores = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)

    with pytest.warns(RuntimeWarning, match="2 of 3 predictions hold scores of exactly 0 or 1"):
        _, right = equations(scores, torch.zeros(3, dtype=torch.float64), torch.ones(2, dtype=torch.float64))

    bound = -math.log(torch.finfo(torch.float64).eps / 2)
    assert right[:, 0].tolist() == pytest.approx([-bound, math.log(1 / 3), bound], rel=1e-12)


def test_a_raised_zero_stays_below_every_score_that_was_published() -> None:
    scores = torch.tensor([0.0, 1e-30], dtype=torch.float64)

    with pytest.warns(RuntimeWarning, match="1 of 2"):
        _, right = equations(scores, torch.zeros(2, dtype=torch.float64), torch.ones(1, dtype=torch.float64))

    assert right[0, 0] == pytest.approx(math.log(0.5e-30))
    assert right[1, 0] == pytest.approx(math.log(1e-30))


@pytest.mark.parametrize("d", [2, 3, 6])
def test_zero_scores_of_a_row_with_two_positive_ones_are_left_out(d: int) -> None:
    scores, known, weight, _ = system(6, 5, d)
    zeroed = scores.clone()
    zeroed[1, 2] = zeroed[1, 4] = zeroed[3, 0] = 0.0

    with pytest.warns(RuntimeWarning, match="2 of 6"):
        estimate = least_squares(*equations(zeroed, known, weight))

    for row, kept in ((1, [0, 1, 3]), (3, [1, 2, 3, 4])):
        reduced = equations(scores[row : row + 1, kept], known[row : row + 1, kept], weight[kept])
        # Consistent systems of condition number below 1e3.
        torch.testing.assert_close(estimate[row], least_squares(*reduced)[0], rtol=0, atol=1e-10)
    untouched = least_squares(*equations(scores, known, weight))
    torch.testing.assert_close(estimate[[0, 2, 4, 5]], untouched[[0, 2, 4, 5]], rtol=0, atol=1e-12)


def test_a_one_hot_row_is_bounded() -> None:
    scores = torch.tensor([[0.0, 1.0, 0.0]])

    with pytest.warns(RuntimeWarning):
        left, right = equations(scores, torch.zeros(1, 3), torch.eye(3))

    bound = -math.log(torch.finfo(torch.float32).eps / 2)
    assert left.tolist() == [[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]]
    assert right[0].tolist() == pytest.approx([bound, -bound], rel=1e-6)


@given(m=st.integers(1, 8), d=st.integers(1, 8), rank=st.integers(1, 8), seed=st.integers(0, 1000))
def test_least_squares_equals_the_pseudo_inverse_of_scipy(m: int, d: int, rank: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(m, rank, generator=generator, dtype=torch.float64)
    left = left @ torch.randn(rank, d, generator=generator, dtype=torch.float64)
    right = torch.randn(4, m, generator=generator, dtype=torch.float64)

    estimate = least_squares(left, right)

    expected = right.numpy() @ scipy.linalg.pinv(left.numpy(), rtol=1e-10).T
    # Condition numbers of these draws reach about 1e5.
    np.testing.assert_allclose(estimate.numpy(), expected, rtol=1e-7, atol=1e-7)


def test_least_squares_treats_tiny_singular_values_as_zero() -> None:
    left = torch.diag(torch.tensor([1.0, 1e-11], dtype=torch.float64))

    assert least_squares(left, torch.ones(1, 2, dtype=torch.float64)).tolist() == [[1.0, 0.0]]


def test_error_of_least_squares_is_what_the_null_space_hides() -> None:
    scores, known, weight, features = system(300, 4, 7)

    left, right = equations(scores, known, weight)
    mse = reconstruction_mse(least_squares(left, right), features)

    projection = np.linalg.pinv(left.numpy()) @ left.numpy()
    second_moment = features.numpy().T @ features.numpy() / 300
    expected = np.trace((np.eye(7) - projection) @ second_moment) / 7
    assert mse == pytest.approx(expected, rel=1e-9)
    # It lies between the sums of the d - rank smallest and largest eigenvalues.
    eigenvalues = np.linalg.eigvalsh(second_moment)
    assert eigenvalues[:4].sum() <= 7 * mse <= eigenvalues[-4:].sum()


def test_as_many_equations_as_features_are_enough() -> None:
    scores, known, weight, features = system(50, 6, 5)
    view = View(party="A", step=0, ids=torch.arange(50), equations=score_equations(scores, known, weight))

    estimate = call_attack(LeastSquaresAttack(), view)

    assert target_of(LeastSquaresAttack()) == "features"
    # Condition number below 1e3, logits with an error of about 1e-14.
    torch.testing.assert_close(estimate, features, rtol=0, atol=1e-10)


@given(d=st.integers(1, 6), seed=st.integers(0, 1000), scale=st.floats(0.1, 3))
def test_a_sigmoid_and_two_softmax_columns_give_one_result(d: int, seed: int, scale: float) -> None:
    scores, known, weight, _ = system(6, 1, d, seed=seed, scale=scale)
    split = torch.rand(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    other = torch.randn(d, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)

    one = equations(scores, known, weight)
    two = equations(
        torch.stack([1 - scores, scores], dim=1),
        torch.stack([split, split + known], dim=1),
        torch.stack([other, other + weight]),
    )

    # The weights of a class cancel, up to roundings of numbers of size 100.
    torch.testing.assert_close(two[0], one[0], rtol=0, atol=1e-13)
    torch.testing.assert_close(two[1], one[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@given(
    k=st.integers(1, 6),
    d=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    scale=st.floats(0.01, 60),
    decimals=st.none() | st.integers(0, 4),
)
def test_the_error_holds_the_true_equations(
    dtype: torch.dtype, k: int, d: int, seed: int, scale: float, decimals: int | None
) -> None:
    """Scores computed in few digits of logits that float64 knows, then rounded."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(8, d, generator=generator, dtype=torch.float64)
    weight = scale * torch.randn(k, d, generator=generator, dtype=torch.float64)
    known = scale * torch.randn(8, k, generator=generator, dtype=torch.float64)
    logits = (known + features @ weight.T).to(dtype).double()
    known = logits - features @ weight.T  # so that the logits are exact in this type
    narrow = logits.to(dtype)
    scores = torch.sigmoid(narrow[:, 0]) if k == 1 else torch.softmax(narrow, dim=1)
    if decimals is not None:
        scores = torch.round(scores.double(), decimals=decimals).to(dtype)
    if k == 1:
        weight, known = weight[0], known[:, 0]

    left, right, error = score_equations(scores, known, weight, resolution=0.0 if decimals is None else 10.0**-decimals)

    assert error.shape == right.shape
    # Roundings of the products here, of numbers of up to 1,000.
    assert ((features @ left.T - right).abs() <= error + 1e-12).all()
    assert not right.isinf().any()


def test_the_error_is_not_much_larger_than_it_has_to_be() -> None:
    _, known, weight, features = (part.float() for part in system(500, 4, 5))
    left, right, error = score_equations(torch.softmax(known + features @ weight.T, dim=1), known, weight)
    off = (features.double() @ left.T - right).abs()
    # Logits were not exact here; those errors are of the same kind.
    assert error.max() < 100 * off.max()
    exact = score_equations(*system(50, 4, 5)[:3])
    assert exact.error.max() < 1e-12


def test_the_error_of_three_decimals_is_that_of_the_interval() -> None:
    """Against an exact interval: c = .250 means [.2495, .2505], and a logit between its ends."""
    scores = torch.tensor([0.25, 0.999], dtype=torch.float64)
    _, right, error = score_equations(
        scores, torch.zeros(2, dtype=torch.float64), torch.ones(1, dtype=torch.float64), resolution=1e-3
    )
    for row, c in enumerate(scores.tolist()):
        low, high = (math.log((c + off) / (1 - c - off)) for off in (-5e-4, 5e-4))
        centre = math.log(c / (1 - c))
        assert right[row, 0].item() == pytest.approx(centre, rel=1e-12)
        assert error[row, 0].item() == pytest.approx(max(high - centre, centre - low), rel=1e-9)


def test_a_score_that_may_be_zero_has_an_endless_error_until_there_is_a_box() -> None:
    weight = torch.tensor([[1.0, -2.0], [0.0, 1.0], [3.0, 0.0]], dtype=torch.float64)
    scores = torch.tensor([[0.0, 0.6, 0.4], [0.0, 1.0, 0.0]], dtype=torch.float64)
    known = torch.zeros(2, 3, dtype=torch.float64)
    raw = score_equations(scores, known, weight, resolution=0.1)
    assert raw.error.isinf().tolist() == [[True, False], [True, True]]

    boxed = Box(torch.zeros(2), torch.ones(2)).equations(raw)

    assert torch.isfinite(boxed.error).all()
    corners = torch.cartesian_prod(*(torch.tensor([0.0, 1.0], dtype=torch.float64) for _ in range(2)))
    for row in range(2):
        off = (corners @ boxed.A.T - boxed.b[row]).abs()
        assert (off <= boxed.error[row] + 1e-12)[:, raw.error[row].isinf()].all()


def test_saturated_tied_and_unnormalised_scores_are_counted() -> None:
    scores = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [0.2, 0.3, 0.4]])
    counts = count_scores(scores)
    assert counts == (4, 2, 1, 1, 1)
    assert counts.note.split("; ") == [
        "2 of 4 predictions hold scores of exactly 0 or 1, whose logits are bounded or left out, not known",
        "1 of 4 predictions have no largest score alone",
        "1 of 4 predictions do not sum to one: only ratios are read",
    ]
    assert count_scores(torch.tensor([0.5, 1.0, 0.3])) == (3, 1, 1, 1, 0)
    assert count_scores(torch.tensor([0.1])).note == ""
    assert count_scores(torch.zeros(0)) == (0, 0, 0, 0, 0)


def test_tied_scores_say_that_logits_are_equal() -> None:
    _, right = equations(torch.full((1, 3), 1 / 3), torch.tensor([[0.5, 1.0, -1.0]]), torch.eye(3))
    assert right[0].tolist() == pytest.approx([-0.5, 2.0], rel=1e-6)


def test_scores_need_not_sum_to_one() -> None:
    scores, known, weight, _ = system(5, 4, 3)
    for one, half in zip(equations(scores, known, weight), equations(scores / 2, known, weight), strict=True):
        torch.testing.assert_close(one, half, rtol=1e-12, atol=1e-12)


def test_no_prediction_gives_no_right_side() -> None:
    left, right = equations(torch.zeros(0, 3), torch.zeros(0, 3), torch.ones(3, 2))
    assert (tuple(left.shape), tuple(right.shape)) == ((2, 2), (0, 2))


@given(k=st.integers(1, 5), d=st.integers(1, 6), seed=st.integers(0, 1000), flat=st.booleans())
def test_an_activation_is_k_equations(k: int, d: int, seed: int, flat: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer = torch.nn.Linear(d, k)
    columns = torch.rand(9, d, generator=generator)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    activation = layer(columns).detach()
    if flat and k == 1:
        activation, weight = activation[:, 0], weight[0]

    found = activation_equations(activation, weight, bias, error=product_error(weight, columns.abs(), bias))

    assert found.A.shape == (k, d)
    assert ((columns.double() @ found.A.T - found.b).abs() <= found.error).all()
    assert found.error.max() < 1e-4
    assert (activation_equations(activation, weight).error == 0).all()


def test_systems_of_one_models_repeats_are_stacked() -> None:
    scores, known, weight, features = system(5, 3, 4)
    again = system(5, 3, 4, seed=1)[2]
    both = stacked(
        [
            score_equations(scores, known, weight),
            score_equations(torch.softmax(known + features @ again.T, dim=1), known, again),
        ]
    )
    assert both.A.shape == (4, 4)
    assert (features @ both.A.T - both.b).abs().max() < 1e-9
    # Four equations in four columns.
    torch.testing.assert_close(least_squares(both.A, both.b), features, rtol=0, atol=1e-6)
    with pytest.raises(ArgumentError, match="4 columns of 5 records, 3 columns of 5 records"):
        stacked([both, both._replace(A=both.A[:, :3])])
    with pytest.raises(ArgumentError, match="got none"):
        stacked([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resolution": -0.1}, "resolution must lie in"),
        ({"resolution": math.nan}, "resolution must lie in"),
        ({"logit_error": -1.0}, "at least 0"),
        ({"logit_error": torch.tensor([math.nan])}, "at least 0"),
        ({"logit_error": torch.ones(7)}, r"extends to \(2, 1\), got \(7,\)"),
    ],
)
def test_an_error_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        score_equations(torch.full((2,), 0.5), torch.zeros(2), torch.ones(3), **options)


@pytest.mark.parametrize(
    ("activation", "weight", "bias", "message"),
    [
        (torch.ones(3, 2), torch.ones(3, 4), None, r"got \(3, 2\), \(3, 4\) and \(3,\)"),
        (torch.ones(3, 2), torch.ones(2, 4), torch.ones(3), "expected an activation"),
        (torch.ones(3, 2), torch.ones(2, 0), None, "expected an activation"),
        (torch.full((3, 2), math.nan), torch.ones(2, 4), None, "activation holds NaN"),
        (torch.ones(3, 2), torch.full((2, 4), math.inf), None, "passive_weight holds NaN"),
    ],
)
def test_bad_activations_are_refused(
    activation: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        activation_equations(activation, weight, bias)


@pytest.mark.parametrize(
    ("scores", "known", "weight", "message"),
    [
        (torch.rand(3), torch.rand(2), torch.rand(4), r"got \(3,\), \(2,\) and \(4,\)"),
        (torch.rand(3), torch.rand(3), torch.rand(1, 4), "expected scores and active logits"),
        (torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 4), "expected scores and active logits"),
        (torch.rand(3, 1), torch.rand(3, 1), torch.rand(1, 4), "k > 1"),
        (torch.rand(3, 2), torch.rand(3, 2), torch.rand(2), "expected scores and active logits"),
        (torch.rand(3), torch.rand(3), torch.rand(0), "expected scores and active logits"),
        (torch.tensor([1.5]), torch.zeros(1), torch.ones(2), r"scores must lie in \[0, 1\]"),
        (torch.tensor([-0.5]), torch.zeros(1), torch.ones(2), r"scores must lie in \[0, 1\]"),
        (torch.tensor([math.nan]), torch.zeros(1), torch.ones(2), "scores holds NaN"),
        (torch.tensor([0.5]), torch.tensor([math.inf]), torch.ones(2), "active_logits holds NaN or infinite"),
        (torch.tensor([1]), torch.zeros(1), torch.ones(2), "floating-point dtype, got torch.int64"),
    ],
)
def test_bad_input_is_refused(scores: torch.Tensor, known: torch.Tensor, weight: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        equations(scores, known, weight)


def test_least_squares_refuses_systems_that_do_not_fit() -> None:
    with pytest.raises(ArgumentError, match=r"got \(2, 3\) and \(4, 3\)"):
        least_squares(torch.ones(2, 3), torch.ones(4, 3))
    with pytest.raises(ArgumentError, match="NaN"):
        least_squares(torch.ones(2, 3), torch.full((4, 2), math.nan))
