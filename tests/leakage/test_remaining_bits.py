"""Bits that are left of a column: of known distributions, and what the correction for few records is worth."""

from __future__ import annotations

import math

import pytest
import torch

from splitvfl.errors import ArgumentError
from splitvfl.leakage.remaining_bits import BINS, bits_left, bits_of


def uniform(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_of_a_uniform_column_there_are_as_many_bits_as_bins() -> None:
    # 16 bins have 4 bits; of 100,000 records the entropy is off by about 1e-5.
    assert bits_of(uniform(100_000)) == pytest.approx(math.log2(BINS), abs=1e-3)


def test_an_exact_estimate_leaves_nothing_even_with_roundings() -> None:
    x = torch.cat([uniform(2_000), torch.arange(17, dtype=torch.float64) / BINS])  # ends of bins among them

    assert bits_left(x, x) == 0.0
    assert bits_left(x, x + 3e-13 * (uniform(len(x), 1) - 0.5)) == 0.0
    assert bits_left(x[:2_000], 1 - x[:2_000]) == 0.0


def test_one_half_leaves_everything() -> None:
    x = uniform(5_000)

    assert bits_left(x, torch.full_like(x, 0.5)) == bits_of(x)


def test_of_a_noisy_channel_it_is_its_conditional_entropy() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (200_000,), generator=draw).double()
    wrong = torch.rand(len(x), generator=draw) < 0.11
    estimate = torch.where(wrong, 1 - x, x)

    # The binary symmetric channel of .11 leaves h(.11) bits; three standard errors are .007.
    expected = -(0.11 * math.log2(0.11) + 0.89 * math.log2(0.89))
    assert bits_left(x, estimate) == pytest.approx(expected, abs=0.007)


def test_few_records_make_no_estimate_of_chance_look_like_knowledge() -> None:
    left = [bits_left(uniform(1_000, seed), uniform(1_000, 100 + seed)) for seed in range(20)]
    uncorrected = math.log2(BINS) - (BINS - 1) ** 2 / (2 * 1_000 * math.log(2))  # the bias's leading term

    # About 250 of 256 cells occur: what is left of the bias is a fifth of it.
    assert sum(left) / len(left) > (4 * math.log2(BINS) + uncorrected) / 5
    assert max(left) <= math.log2(BINS) + 0.02


@pytest.mark.parametrize(
    ("values", "estimate"),
    [
        (torch.zeros(0), torch.zeros(0)),
        (torch.zeros(3), torch.zeros(2)),
        (torch.zeros(3, 1), torch.zeros(3, 1)),
        (torch.tensor([0.0, math.nan]), torch.zeros(2)),
    ],
)
def test_what_is_no_column_is_refused(values: torch.Tensor, estimate: torch.Tensor) -> None:
    with pytest.raises(ArgumentError):
        bits_left(values, estimate)
