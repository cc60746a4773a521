"""Rows that depend on each other, and rows that do not, of every law of noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from splitvfl.audit.dependence import batches_differ, ranks_of, rows_follow

Array = npt.NDArray[np.float64]
SHAPE = (32, 200, 2)  # batches, rows, columns


def rademacher(rng: np.random.Generator) -> Array:
    return rng.choice(np.array([-1.0, 1.0]), SHAPE)


LAWS: dict[str, Callable[[np.random.Generator], Array]] = {
    "normal": lambda rng: rng.standard_normal(SHAPE),
    "Laplace": lambda rng: rng.laplace(size=SHAPE),
    "Cauchy": lambda rng: rng.standard_cauchy(SHAPE),
    "coins": rademacher,
    "rare": lambda rng: (rng.random(SHAPE) < 1e-4).astype(np.float64),
    "none": lambda rng: np.ones(SHAPE),
}


@pytest.mark.parametrize("law", LAWS)
def test_independent_rows_are_not_taken_for_others(law: str) -> None:
    """In ten tries, of which one in a million each may be."""
    for seed in range(10):
        batches, other = (LAWS[law](np.random.default_rng((seed, one))) for one in (0, 1))
        ranks = ranks_of(batches)
        assert not batches_differ(batches, ranks)
        assert not rows_follow(ranks)
        assert not rows_follow(ranks, ranks_of(other))


@pytest.mark.parametrize("law", ["normal", "Laplace"])
def test_noise_that_sums_to_zero_and_noise_that_is_shared_show_in_batches(law: str) -> None:
    rng = np.random.default_rng(0)
    noise, offset = LAWS[law](rng), 0.5 * rng.standard_normal((SHAPE[0], 1, 1))
    for batches in (noise - noise.mean(axis=1, keepdims=True), noise + offset):
        assert batches_differ(batches, ranks_of(batches))


@pytest.mark.parametrize("law", ["normal", "Laplace", "Cauchy"])
@pytest.mark.parametrize("distance", [1, 2, 77, 100])
def test_a_row_that_follows_from_another_shows_at_every_distance(law: str, distance: int) -> None:
    rng = np.random.default_rng(0)
    noise = LAWS[law](rng)
    later = np.roll(noise, distance, axis=1)
    assert rows_follow(ranks_of(noise - later))
    assert rows_follow(ranks_of(noise), ranks_of(LAWS[law](rng) - later))
    # A size alone, where the sign is drawn: every other row has that of one before it, so far away.
    of_one_size = noise.copy()
    of_one_size[:, ::2] = (rademacher(rng) * np.abs(later))[:, ::2]
    assert distance % 2 == 0 or rows_follow(ranks_of(of_one_size))


def test_columns_of_one_row_may_depend_on_each_other() -> None:
    noise = np.random.default_rng(0).standard_normal(SHAPE)
    noise[:, :, 1] = -noise[:, :, 0]
    assert not rows_follow(ranks_of(noise))
    assert rows_follow(ranks_of(noise), ranks_of(noise))
