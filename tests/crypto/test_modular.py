from __future__ import annotations

import gmpy2
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.crypto import modular
from splitvfl.crypto.modular import (
    ONE,
    Factor,
    entry,
    inverted,
    inverted_factor,
    multiplied,
    power,
    powers,
    product,
    split,
    square_often,
)  # fmt: skip

P = mpz(gmpy2.next_prime(1 << 90))
N = P * gmpy2.next_prime(1 << 91)
units = st.integers(1, int(N * N) - 1).filter(lambda value: gmpy2.gcd(value, N) == 1).map(mpz)


def whole(factor: Factor) -> mpz:
    return factor.t * (1 + factor.log * N) % (N * N)


def is_sound(factor: Factor) -> bool:
    return 0 < factor.t < N and 0 <= factor.log < N and factor.t * factor.inverse % N == 1


@given(st.lists(units, min_size=1, max_size=5))
def test_a_unit_is_the_product_of_its_parts(values: list[mpz]) -> None:
    factors = split(values, N)

    assert [whole(factor) for factor in factors] == values
    assert all(map(is_sound, factors))


@given(units, units)
def test_factors_multiply_and_invert_like_what_they_stand_for(left: mpz, right: mpz) -> None:
    (first, second) = split([left, right], N)
    both, inverse = multiplied(first, second, N), inverted_factor(first, N)

    assert whole(both) == left * right % (N * N)
    assert whole(inverse) * left % (N * N) == 1
    assert is_sound(both)
    assert is_sound(inverse)


@given(units)
def test_powers_begin_with_one(value: mpz) -> None:
    (base,) = split([value], N)

    assert [whole(factor) for factor in powers(base, 5, N)] == [gmpy2.powmod(value, k, N * N) for k in range(5)]
    assert powers(base, 5, N)[0] == ONE


@given(st.lists(units, max_size=6))
def test_a_product_of_entries(values: list[mpz]) -> None:
    found = product([entry(factor, N) for factor in split(values, N)], N)

    expected = mpz(1)
    for value in values:
        expected = expected * value % (N * N)
    assert found == expected


def test_logs_of_many_entries_do_not_run_into_each_other() -> None:
    largest = Factor(mpz(1), mpz(1), N - 1)

    assert product([entry(largest, N)] * 3000, N) == 1 - 3000 * N % (N * N) + N * N


@given(st.integers(0, int(N * N) - 1).map(mpz), st.integers(0, 40))
def test_repeated_squaring(value: mpz, times: int) -> None:
    assert square_often(value, times, N) == gmpy2.powmod(value, 1 << times, N * N)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 31, 32, 33, 0b1000001, 0b11111100000, int(N), int(P) - 1])
def test_a_power_is_that_of_gmp_both_ways(exponent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    base = N * N - 12345
    expected = gmpy2.powmod(base, exponent, N * N)

    assert power(base, mpz(exponent), N) == expected
    monkeypatch.setattr(modular, "_LEAST_BITS", 0)
    assert power(base, mpz(exponent), N) == expected


@given(st.integers(1, 2**200))
def test_a_power_in_halves_is_that_of_gmp(exponent: int) -> None:
    before, modular._LEAST_BITS = modular._LEAST_BITS, 0
    try:
        assert power(mpz(3), mpz(exponent), N) == gmpy2.powmod(3, exponent, N * N)
    finally:
        modular._LEAST_BITS = before


@given(st.lists(units.map(lambda value: value % N), max_size=6))
def test_inverses_of_many(values: list[mpz]) -> None:
    assert [value * found % N for value, found in zip(values, inverted(values, N), strict=True)] == [1] * len(values)
