from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.learning.losses import Approximation
from splitvfl.learning.sigmoid_coefficients import APPROXIMATIONS
from splitvfl.models import approximate_loss, gradient_scale, sigmoid_coefficients

# Both sides of the piecewise corners, the corners themselves, and the minimax boundary.
LOGITS = torch.tensor([-5.0, -2.0, -0.75, -0.5, -0.25, 0.0, 0.1, 0.5, 0.6, 3.0, 5.0], dtype=torch.float64)


def slow_sigmoid(z: float, approximation: Approximation) -> float:
    """Each approximated sigmoid as it is defined, one number at a time."""
    if approximation == "taylor":
        return 0.5 + z / 4
    if approximation == "minimax":
        return 0.5 + 0.197 * z - 0.004 * z**3
    if approximation == "piecewise":
        return 0.0 if z <= -0.5 else 1.0 if z >= 0.5 else z + 0.5
    return 1 / (1 + math.exp(-z))


def both_labels() -> tuple[Tensor, Tensor]:
    return LOGITS.repeat(2), torch.cat([torch.ones_like(LOGITS), -torch.ones_like(LOGITS)])


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_f_is_the_approximated_sigmoid_minus_the_label(approximation: Approximation) -> None:
    z, y = both_labels()
    f = sigmoid_coefficients(z, y, approximation=approximation)
    expected = [slow_sigmoid(a, approximation) - (1 + b) / 2 for a, b in zip(z.tolist(), y.tolist(), strict=True)]
    # Three or four roundings of numbers below 5.
    torch.testing.assert_close(
        f / gradient_scale(approximation), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_f_is_minus_half_the_label_at_zero(approximation: Approximation) -> None:
    y = torch.tensor([1, -1])
    f = sigmoid_coefficients(torch.zeros(2), y, approximation=approximation)
    assert f.dtype == torch.float64
    assert (f / gradient_scale(approximation)).tolist() == [-0.5, 0.5]


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_f_is_the_derivative_of_the_loss(approximation: Approximation) -> None:
    z, y = both_labels()
    leaf = z.clone().requires_grad_()
    # The loss is the slow form's integral: checked by quadrature, not by differentiating the same expression.
    approximate_loss(leaf, y, approximation=approximation).sum().backward()
    assert leaf.grad is not None
    expected = sigmoid_coefficients(z, y, approximation=approximation) / gradient_scale(approximation)
    torch.testing.assert_close(leaf.grad, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_the_loss_rises_by_the_integral_of_the_slow_residue(approximation: Approximation, label: float) -> None:
    steps = 4000
    grid = torch.linspace(-4, 4, steps + 1, dtype=torch.float64)
    residues = [slow_sigmoid(z, approximation) - (1 + label) / 2 for z in grid.tolist()]
    integral = torch.trapezoid(torch.tensor(residues, dtype=torch.float64), grid).item()
    ends = approximate_loss(grid[[0, -1]], torch.full((2,), label), approximation=approximation)
    # Trapezoids of width h = .002: at most 8 h²/12 · max |f''| = 8 · 3.3e-7 · .1, and one corner of h²/8.
    assert (ends[1] - ends[0]).item() == pytest.approx(integral, abs=2e-6)


@pytest.mark.parametrize("approximation", ["taylor", "exact", "minimax"])
def test_the_loss_of_an_undecided_record_is_log_two(approximation: Approximation) -> None:
    losses = approximate_loss(torch.zeros(2), torch.tensor([1, -1]), approximation=approximation)
    assert losses.tolist() == pytest.approx([math.log(2)] * 2)


def test_a_record_met_with_a_margin_has_no_piecewise_residue() -> None:
    z, y = torch.tensor([0.5, -7.0, 0.5, -0.5]), torch.tensor([1.0, -1.0, -1.0, 1.0])
    assert sigmoid_coefficients(z, y, approximation="piecewise").tolist() == [0.0, 0.0, 1.0, -1.0]


def test_exact_residues_stay_signed_far_out() -> None:
    f = sigmoid_coefficients(torch.tensor([40.0, -40.0]), torch.tensor([1.0, -1.0]), approximation="exact")
    assert f[0] < 0 < f[1]
    # exp(-40) to double precision; 1 - S(40) would be 0.
    assert f.tolist() == pytest.approx([-math.exp(-40), math.exp(-40)])


def test_minimax_warns_outside_its_interval() -> None:
    with pytest.warns(UserWarning, match=r"logits lie outside \[-5, 5\]"):
        sigmoid_coefficients(torch.tensor([5.1, 1.0]), torch.ones(2), approximation="minimax")
    with pytest.warns(UserWarning, match="lie outside"):
        approximate_loss(torch.tensor([-6.0]), torch.ones(1), approximation="minimax")


@pytest.mark.parametrize(
    ("z", "y", "expected"),
    [
        (torch.zeros(3), torch.tensor([1.0, 0.0, 1.0]), r"-1 and \+1, got 0 among 3; .*2 \* label - 1"),
        (torch.zeros(1), torch.tensor([float("nan")]), "got nan"),
        (torch.zeros(2), torch.ones(3), r"\(2,\) and \(3,\)"),
        (torch.zeros(2, 1), torch.ones(2, 1), r"logits \(s,\)"),
        (torch.tensor([float("inf")]), torch.ones(1), "1 NaN or infinite"),
    ],
)
def test_bad_input_is_refused(z: Tensor, y: Tensor, expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        sigmoid_coefficients(z, y, approximation="taylor")
    with pytest.raises(ArgumentError, match=expected):
        approximate_loss(z, y, approximation="taylor")


def test_an_unknown_approximation_is_refused() -> None:
    with pytest.raises(ArgumentError, match="taylor, minimax, piecewise, exact, got 'tailor'"):
        gradient_scale("tailor")  # type: ignore[arg-type]  # what a user may type
    with pytest.raises(ArgumentError, match="must be one of"):
        sigmoid_coefficients(torch.zeros(1), torch.ones(1), approximation="tailor")  # type: ignore[arg-type]  # the same
