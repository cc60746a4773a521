"""Bits that are left of a column: of known distributions, and what the correction for few records is worth."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from splitvfl.errors import ArgumentError
from splitvfl.leakage.remaining_bits import BINS, bits_left, bits_of, category_bits_left


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


@pytest.mark.parametrize("count", [2, 3, 16, 40, 400])
def test_so_many_values_or_bins_have_no_more_bits_than_that(count: int) -> None:
    assert bits_of(torch.arange(count, dtype=torch.float64) / count) <= math.log2(min(count, BINS))


@pytest.mark.parametrize(("records", "left"), [(114, 3.0), (455, 3.87), (1_000, 3.99)])
def test_what_a_random_estimate_leaves_of_four_bits_is_what_is_said(records: int, left: float) -> None:
    found = [bits_left(uniform(records, seed), uniform(records, 100 + seed)) for seed in range(20)]

    # One of them has a standard deviation of .08 at 114 records, and less beyond: .05 are nearly three errors of 20.
    assert sum(found) / 20 == pytest.approx(left, abs=0.05)


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


@pytest.mark.parametrize("seed", range(3))
def test_of_categories_it_is_what_counting_pairs_gives(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    own, told = (torch.randint(0, c, (300,), generator=draw).tolist() for c in (5, 3))
    told = [a if a < 2 else b for a, b in zip(own, told, strict=True)]
    pairs, guesses = Counter(zip(own, told, strict=True)), Counter(told)
    # H(X | X̂) = Σ p(x, x̂) log2 (p(x̂) / p(x, x̂)), with a half for each free cell.
    plain = sum(count / 300 * math.log2(guesses[told] / count) for (_, told), count in pairs.items())
    corrected = plain + (len(pairs) - len(guesses)) / (2 * 300 * math.log(2))
    assert category_bits_left(torch.tensor(own), torch.tensor(told)) == pytest.approx(corrected, rel=1e-12)
    levels = torch.tensor(own).double() / 5
    assert bits_left(levels, torch.tensor(told).double() / 3) == pytest.approx(corrected, rel=1e-12)


def test_the_correction_takes_off_most_of_the_bias_of_few_records() -> None:
    """Of uniform categories and guesses of chance: log2 6 bits are left, whatever was drawn."""
    plain, corrected = [], []
    for seed in range(200):
        draw = torch.Generator().manual_seed(seed)
        own, told = (torch.randint(0, 6, (150,), generator=draw) for _ in range(2))
        cells = torch.unique(own * 6 + told, return_counts=True)[1] / 150
        shares = torch.unique(told, return_counts=True)[1] / 150
        plain.append((shares * shares.log2()).sum().item() - (cells * cells.log2()).sum().item())
        corrected.append(category_bits_left(own, told))
    biases = [math.log2(6) - sum(one) / len(one) for one in (plain, corrected)]
    # The leading term of the bias is (36 − 6) / 2n nats, .144 bits; a mean of 200 is off by about .004.
    assert biases[0] == pytest.approx(30 / (300 * math.log(2)), abs=0.02)
    # Of the rest most is that no result is above the column's own entropy, which it would be half of the times.
    assert abs(biases[1]) < biases[0] / 4


@pytest.mark.parametrize(
    ("categories", "guesses"),
    [
        (torch.tensor([0.0]), torch.tensor([0])),
        (torch.tensor([-1]), torch.tensor([0])),
        (torch.tensor([1, 2]), torch.tensor([0])),
        (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
    ],
)
def test_what_are_no_categories_is_refused(categories: torch.Tensor, guesses: torch.Tensor) -> None:
    with pytest.raises(ArgumentError):
        category_bits_left(categories, guesses)
