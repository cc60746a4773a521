from __future__ import annotations

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.crypto.kernels import cost, group_sizes, packed_sums

N = mpz(gmpy2.next_prime(1 << 60)) * gmpy2.next_prime(1 << 61)


def slow_sums(ciphertexts: list[mpz], weights: np.ndarray, counts: list[int], slot_bits: int) -> list[mpz]:
    """One power per weight and slot, in the order of the definition."""
    results, first = [], 0
    for count in counts:
        result = mpz(1)
        for slot in range(count):
            for value, weight in zip(ciphertexts, weights[:, first + slot].tolist(), strict=True):
                result = result * gmpy2.powmod(value, int(weight) << (slot * slot_bits), N * N) % (N * N)
        results.append(result)
        first += count
    return results


def units(count: int, seed: int) -> list[mpz]:
    state = gmpy2.random_state(seed)
    return [gmpy2.mpz_random(state, N * N) for _ in range(count)]


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, list[int], int]:
    rows, counts = draw(st.integers(1, 20)), draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    size = draw(st.sampled_from([1, 2, 7, 8, 2**26, 2**31 - 1]))
    entries = st.integers(-size, size)
    weights = draw(
        st.lists(st.lists(entries, min_size=sum(counts), max_size=sum(counts)), min_size=rows, max_size=rows)
    )
    return np.array(weights, dtype=np.int64), counts, draw(st.sampled_from([32, 33, 40, 71]))


@given(problems())
def test_sums_are_those_of_a_slow_loop(problem: tuple[np.ndarray, list[int], int]) -> None:
    weights, counts, slot_bits = problem
    ciphertexts = units(len(weights), seed=len(weights))

    found = packed_sums(ciphertexts, weights, counts=counts, slot_bits=slot_bits, n=N)

    assert found == slow_sums(ciphertexts, weights, counts, slot_bits)


@pytest.mark.parametrize("weight", [0, 1, -1, 2**25, -(2**25), 2**25 - 1, -(2**25) - 1])
def test_columns_at_the_edges_of_their_bits(weight: int) -> None:
    weights, ciphertexts = np.full((3, 2), weight, dtype=np.int64), units(3, seed=7)

    assert packed_sums(ciphertexts, weights, counts=[2], slot_bits=28, n=N) == slow_sums(ciphertexts, weights, [2], 28)


@pytest.mark.parametrize(("samples", "lookups"), [(1, 30), (8, 300), (16, 900), (32, 1900), (256, 1900), (300, 10)])
def test_groups_are_even_and_none_is_cheaper(samples: int, lookups: int) -> None:
    sizes = group_sizes(samples, lookups)

    assert sum(sizes) == samples
    assert max(sizes) - min(sizes) <= 1
    each = 2 * sum(2**size for size in sizes) + len(sizes) * lookups
    for width in range(1, min(samples, 12) + 1):
        whole, rest = divmod(samples, width)
        assert each <= 2 * (whole * 2**width + (2**rest if rest else 0)) + (whole + bool(rest)) * lookups


def test_more_work_costs_more() -> None:
    assert cost(32, 64, 70) > cost(16, 64, 70)
    assert cost(32, 64, 70) > cost(32, 32, 70)
    assert cost(32, 64, 70) > cost(32, 64, 60)
