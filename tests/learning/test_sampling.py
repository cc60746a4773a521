"""Numbers that are drawn for noise against the distributions that they are drawn from, and how sums are rounded."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from splitvfl.errors import ArgumentError
from splitvfl.learning.randomness import entropic_generator
from splitvfl.learning.sampling import (
    add_normal,
    blocks,
    drawing_device,
    random_bits,
    snap,
    standard_laplace,
    standard_normal,
    uniform,
)


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_bit_is_a_coin() -> None:
    n = 20_000
    bits = random_bits(n, random()).numpy()

    assert bits.min() >= 0
    shares = ((bits[:, None] >> np.arange(63)) & 1).mean(axis=0)
    # Six standard errors for each of 63 coins: a false alarm in 8e6 of other seeds.
    assert np.abs(shares - 0.5).max() < 6 * 0.5 / math.sqrt(n)


def test_uniform_numbers_are_multiples_of_two_to_the_minus_53_below_one() -> None:
    numbers = uniform((100, 200), random()).numpy().ravel()

    assert stats.kstest(numbers, "uniform").pvalue > 1e-6
    assert numbers.min() >= 0
    assert numbers.max() < 1
    scaled = numbers * 2.0**53
    assert np.array_equal(scaled, np.floor(scaled))
    assert (scaled % 2 == 1).mean() == pytest.approx(0.5, abs=6 * 0.5 / math.sqrt(numbers.size))


def test_laplace_numbers_are_laplace_and_their_signs_are_coins_of_their_own() -> None:
    drawn = standard_laplace((400, 501), random())
    numbers = drawn.numpy().ravel()

    assert drawn.dtype == torch.float64
    assert tuple(drawn.shape) == (400, 501)
    assert stats.kstest(numbers, "laplace").pvalue > 1e-6
    # A sign tells nothing of a size: a correlation of n pairs has a standard error of 1/√n.
    assert abs(np.corrcoef(np.sign(numbers), np.abs(numbers))[0, 1]) < 6 / math.sqrt(numbers.size)


@pytest.mark.parametrize("shape", [(200_000,), (200_001,), (400, 501), (3, 5, 7, 1000)])
def test_normal_numbers_are_normal_and_independent_of_each_other(shape: tuple[int, ...]) -> None:
    drawn = standard_normal(shape, random())
    numbers = drawn.numpy().ravel()
    n, half = numbers.size, (numbers.size + 1) // 2

    assert drawn.dtype == torch.float64
    assert tuple(drawn.shape) == shape
    assert stats.kstest(numbers, "norm").pvalue > 1e-6
    # Two numbers of one pair, and their squares, and neighbours: correlations have standard errors of 1/√n.
    first, second = numbers[: n - half], numbers[half:]
    for one, other in ((first, second), (first**2, second**2), (numbers[:-1], numbers[1:])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / math.sqrt(one.size)


def test_the_tails_are_normal_too() -> None:
    generator, n, beyond = random(1), 10_000_000, 4.5
    found = sum(int((standard_normal((n // 10,), generator).abs() > beyond).sum()) for _ in range(10))

    expected = 2 * stats.norm.sf(beyond) * n  # 68
    assert abs(found - expected) < 6 * math.sqrt(expected)


def test_the_least_and_the_greatest_bits_give_finite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for bits in (0, 2**63 - 1):
        monkeypatch.setattr(
            "splitvfl.learning.sampling.random_bits",
            lambda count, _, bits=bits: torch.full((count,), bits, dtype=torch.int64),
        )
        numbers = standard_normal((4,), random())
        assert torch.isfinite(numbers).all()
        assert numbers.abs().max() < 9.5  # √(2 · 64 · ln 2)
        assert 0 <= uniform((1,), random()).item() < 1


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17])
def test_the_shape_alone_decides_how_many_bits_are_drawn(count: int) -> None:
    one, other = random(3), random(3)
    standard_normal((count,), one)
    random_bits(count + count % 2, other)
    assert torch.equal(one.get_state(), other.get_state())


def test_noise_goes_on_from_a_saved_state_to_the_bit() -> None:
    generator = entropic_generator(torch.device("cpu"))
    standard_normal((1001,), generator)
    again = torch.Generator()
    again.set_state(generator.get_state())

    message = torch.ones(700, 130)
    assert torch.equal(add_normal(message, 0.3, generator), add_normal(message, 0.3, again))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (5000, 40), (300_000,)])
def test_noise_of_any_scale_is_added_to_messages_of_any_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    message = torch.full(shape, 3.0, dtype=dtype)
    sent = add_normal(message, 0.5, random())

    assert sent.dtype == dtype
    noise = (sent - message).double().numpy().ravel() / 0.5
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert torch.equal(message, torch.full(shape, 3.0, dtype=dtype))


def test_a_scale_for_every_row() -> None:
    scales = torch.tensor([0.0, 1.0, 100.0]).repeat(10_000)[:, None]
    message = torch.arange(30_000.0)[:, None].expand(-1, 8)

    noise = (add_normal(message.double(), scales, random()) - message).numpy()

    assert not noise[::3].any()
    for start, scale in ((1, 1.0), (2, 100.0)):
        # 80 000 draws: six standard errors of a standard deviation.
        assert noise[start::3].std() == pytest.approx(scale, rel=6 / math.sqrt(2 * 80_000))


def test_without_noise_nothing_is_rounded() -> None:
    message = torch.rand(50, 3, generator=random(), dtype=torch.float64)
    assert torch.equal(add_normal(message, 0.0, random()), message)
    assert torch.equal(add_normal(message.T, torch.zeros(3, 1), random()), message.T)
    assert add_normal(torch.empty(0, 4), torch.empty(0, 1), random()).shape == (0, 4)


@pytest.mark.parametrize("scale", [1e-290, 1e-12, 0.7, 1.0, 1e12, 1e290])
def test_sums_lie_on_a_grid_of_the_noise_and_not_of_the_row(scale: float) -> None:
    numbers = torch.randn(10_000, generator=random(), dtype=torch.float64) * scale
    before = numbers.clone()
    grid = 2.0 ** (math.frexp(scale)[1] - 30)

    snapped = snap(numbers, scale)

    steps = snapped / grid
    assert torch.equal(steps, steps.round())
    assert (snapped - before).abs().max() <= grid / 2
    assert (steps % 2 == 1).double().mean().item() == pytest.approx(0.5, abs=0.03)  # and on no coarser one


def test_messages_far_above_their_noise_keep_their_digits() -> None:
    for message in (1e30, -1e300):
        assert snap(torch.tensor([message], dtype=torch.float64), 1e-20).item() == pytest.approx(message, rel=2**-51)
    assert math.isfinite(snap(torch.tensor([1.0], dtype=torch.float64), 1.7e308).item())


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf, torch.tensor([[1.0], [-1.0]]), torch.tensor(math.nan)])
def test_a_scale_that_is_none_is_refused(scale: float | torch.Tensor) -> None:
    with pytest.raises(ArgumentError, match="the scale of noise must be finite and at least 0"):
        add_normal(torch.zeros(2, 1), scale, random())


def test_blocks_cover_all_rows_once_and_are_not_empty() -> None:
    for shape in ((0, 3), (1, 1), (1, 10**6), (70_000, 2), (4097, 128), (100, 0)):
        rows = torch.empty(shape)
        assert [row for block in blocks(rows) for row in range(shape[0])[block]] == list(range(shape[0]))
        assert all(block.stop > block.start for block in blocks(rows))


def test_noise_for_a_device_without_float64_is_drawn_on_the_cpu() -> None:
    assert drawing_device(torch.device("mps")) == torch.device("cpu")
    assert drawing_device(torch.device("cpu")) == torch.device("cpu")
    assert drawing_device(torch.device("cuda", 1)) == torch.device("cuda", 1)


@pytest.mark.cuda
def test_on_a_gpu_numbers_are_normal_and_stay_there() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    numbers = standard_normal((100_001,), generator)

    assert numbers.device.type == "cuda"
    assert stats.kstest(numbers.cpu().numpy(), "norm").pvalue > 1e-6
    shares = ((random_bits(20_000, generator).cpu().numpy()[:, None] >> np.arange(63)) & 1).mean(axis=0)
    assert np.abs(shares - 0.5).max() < 6 * 0.5 / math.sqrt(20_000)
    sent = add_normal(torch.ones(512, 128, device="cuda"), 0.5, generator)
    assert sent.dtype == torch.float32
    assert sent.std().item() == pytest.approx(0.5, rel=6 / math.sqrt(2 * 512 * 128))
