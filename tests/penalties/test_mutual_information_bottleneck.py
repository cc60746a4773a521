"""The divergence beside torch's own, the bound beside information that is known, and draws that carry their origin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Held, penalise
from splitvfl.learning.sampled import Distribution, distribution_of
from splitvfl.models import Sampled
from splitvfl.penalties import MutualInformationBottleneck


def held(distribution: Distribution) -> Held:
    rows = len(distribution.mean)
    return Held(
        party="lab",
        step=0,
        ids=torch.arange(rows),
        columns=torch.zeros(rows, 0),
        categories=torch.zeros(rows, 0, dtype=torch.int64),
        generator=torch.Generator(),
        distribution=distribution,
    )


class Linear(nn.Module):
    """Mean ``gain · x`` and the same variance for all records."""

    def __init__(self, gain: float, variance: float) -> None:
        super().__init__()
        self.gain, self.log_variance = gain, math.log(variance)

    def forward(self, columns: Tensor) -> Tensor:
        return torch.cat([self.gain * columns, torch.full_like(columns, self.log_variance)], dim=1)


def bound(distribution: Distribution) -> float:
    return penalise(MutualInformationBottleneck(), distribution.mean, held(distribution)).value


def test_it_is_the_divergence_of_torch_and_so_is_its_gradient() -> None:
    random = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(2, 7, 3, generator=random, dtype=torch.float64).unbind()
    mean.requires_grad_(), log_variance.requires_grad_()
    theirs = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).sum(dim=1).mean()
    found = penalise(MutualInformationBottleneck(), mean, held(Distribution(mean, log_variance)))
    # Sums of 21 numbers around 1 in float64.
    assert found.value == pytest.approx(theirs.item(), abs=1e-12)
    for ours, other in zip(found.by_distribution, torch.autograd.grad(theirs, (mean, log_variance)), strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-12)
    assert torch.equal(found.gradient, torch.zeros_like(mean)), "a draw has no part in it"


def test_it_is_least_where_nothing_is_told() -> None:
    nothing = Distribution(torch.zeros(4, 2), torch.zeros(4, 2))
    assert bound(nothing) == 0.0
    for place in (0, 1):
        other = [part.clone() for part in nothing]
        other[place][2, 1] = 0.1
        assert bound(Distribution(*other)) > 0.0


@pytest.mark.parametrize("gain", [0.0, 0.3, 0.8, 2.0])
@pytest.mark.parametrize("variance", [0.1, 0.36, 1.0, 4.0])
def test_it_bounds_information_that_is_known(gain: float, variance: float) -> None:
    """Of normal columns and a linear bottom: I = d/2 · ln(1 + gain² / variance), and the bound has a closed form."""
    columns = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    distribution = distribution_of(Sampled(Linear(gain, variance))(columns))
    assert distribution is not None
    found = bound(distribution)
    known = 1.5 * math.log1p(gain**2 / variance)
    closed = 1.5 * (gain**2 + variance - math.log(variance) - 1.0)
    # The mean of 60 000 squares of normal numbers: five standard errors of gain² / 2 · 3 · their mean.
    error = 5 * 1.5 * gain**2 * math.sqrt(2 / 60_000) + 1e-9
    assert found == pytest.approx(closed, abs=error)
    assert found >= known - error
    if math.isclose(gain**2 + variance, 1.0):
        # Draws are standard normal together, and nothing is lost.
        assert found == pytest.approx(known, abs=error)


@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_no_reader_of_one_draw_recovers_more_than_it_allows(gain: float) -> None:
    """Of d independent normal columns: share <= 1 - exp(-2 I / d), by Shannon's rate of a normal source; I <= bound."""
    columns = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(2))
    torch.manual_seed(3)
    drawn = Sampled(Linear(gain, 0.5))(columns)
    distribution = distribution_of(drawn)
    assert distribution is not None
    # The best of all readers here: the conditional mean.
    estimate = drawn * gain / (gain**2 + 0.5)
    share = 1.0 - (estimate - columns).square().mean().item() / columns.square().mean().item()
    assert share == pytest.approx(gain**2 / (gain**2 + 0.5), abs=0.02), "the reader reads"
    # Five standard errors of a ratio of means of 40 000 squares.
    assert share <= 1.0 - math.exp(-2.0 * bound(distribution) / 2) + 0.035


def test_draws_have_the_mean_and_the_variance_that_they_carry_in_evaluation_too() -> None:
    torch.manual_seed(0)
    layer = Sampled(Linear(2.0, 0.25)).eval()
    draws = layer(torch.full((40_000, 1), 3.0))
    # Five standard errors of 40 000 draws.
    assert draws.mean().item() == pytest.approx(6.0, abs=5 * 0.5 / 200)
    assert draws.var().item() == pytest.approx(0.25, rel=5 * math.sqrt(2 / 40_000))
    assert not torch.equal(draws, layer(torch.full((40_000, 1), 3.0)))


def test_a_draw_carries_its_origin_and_what_is_made_of_it_does_not() -> None:
    columns = torch.randn(5, 3)
    layer = Sampled(nn.Linear(3, 4))
    first, second = layer(columns), layer(columns + 1.0)
    of_first, of_second = distribution_of(first), distribution_of(second)
    assert of_first is not None
    assert of_second is not None
    both = layer.module(columns)
    assert torch.equal(torch.cat([*of_first], dim=1), both)
    assert not torch.equal(of_first.mean, of_second.mean)
    for other in (first.detach(), first.clone(), first + 0.0, first.relu()):
        assert distribution_of(other) is None


def test_the_gradient_goes_back_through_the_draw() -> None:
    layer, columns = Sampled(nn.Linear(3, 4).double()), torch.randn(5, 3, dtype=torch.float64)

    def drawn(weight: Tensor) -> Tensor:
        torch.manual_seed(0)
        return torch.func.functional_call(layer, {"module.weight": weight}, (columns,))

    assert torch.autograd.gradcheck(drawn, layer.module.weight)  # type: ignore[arg-type]


def test_an_odd_number_of_units_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"means and logarithms of variances, \(n, 2 \* width\), got \(5, 3\)"):
        Sampled(nn.Linear(2, 3))(torch.zeros(5, 2))
