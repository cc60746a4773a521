from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from itertools import product as cartesian

import gmpy2
import pytest
from gmpy2 import mpz

from splitvfl.crypto import obfuscators
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.modular import product
from splitvfl.crypto.obfuscators import FixedBase, Obfuscators, Powers, Products

SOURCES: dict[str, Callable[[PrivateKey], Obfuscators]] = {
    "powers": lambda key: Powers(key.public),
    "products": lambda key: Products(key.public),
    "fixed base": FixedBase,
}


def test_tables_of_whole_and_of_half_bytes_hold_the_powers_of_one_base(monkeypatch: pytest.MonkeyPatch) -> None:
    prime, n = mpz(1_000_003), mpz(1_000_003 * 1_000_033)
    for bits, entries in ((21, [16] * 6), (20, [256] * 3)):
        monkeypatch.setattr(obfuscators, "_LARGE_TABLES_FROM_BITS", bits)
        made = obfuscators._PrimeBase(prime, n)
        base = product([made._tables[0][1]], prime)
        assert [len(table) for table in made._tables] == entries
        for exponent in (0, 1, 15, 16, 255, 256, 65_537, 999_999):
            monkeypatch.setattr(secrets, "randbelow", lambda limit, exponent=exponent: exponent)
            assert made.one() == gmpy2.powmod(base, exponent, prime**2)
        monkeypatch.undo()


@pytest.mark.parametrize("source", SOURCES)
def test_obfuscators_are_nth_powers_and_all_different(key: PrivateKey, source: str) -> None:
    made = SOURCES[source](key).take(40)

    # The n-th powers modulo n² are exactly the numbers whose order divides lcm(p - 1, q - 1): they encrypt 0.
    order, square = gmpy2.lcm(key.p - 1, key.q - 1), key.public.square
    assert all(gmpy2.powmod(value, order, square) == 1 for value in made)
    assert all(1 < value < square for value in made)
    assert len(set(made)) == 40


@pytest.mark.parametrize("source", SOURCES)
def test_all_randomness_is_from_the_operating_system(
    key: PrivateKey, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the system's generator replaced by a counter, everything repeats: there is no other source.
    def rigged() -> list[mpz]:
        state = iter(range(1, 10**9))
        monkeypatch.setattr(secrets, "randbelow", lambda limit: (next(state) * 0x9E3779B97F4A7C15) ** 9 % limit)
        monkeypatch.setattr(
            secrets, "token_bytes", lambda count: bytes((next(state) * 0x9E3779B9 >> 8) % 256 for _ in range(count))
        )
        return SOURCES[source](key).take(3)

    assert rigged() == rigged()


class Tiny:
    """p = 7 and q = 11, so that all 60 n-th powers can be counted."""

    p, q, modulus = mpz(7), mpz(11), mpz(77)


def nth_powers() -> set[mpz]:
    return {gmpy2.powmod(root, 77, 77 * 77) for root in range(1, 77) if gmpy2.gcd(root, 77) == 1}


@pytest.mark.parametrize("source", ["powers", "products"])
def test_obfuscators_are_uniform(source: str) -> None:
    made = {"powers": Powers, "products": Products}[source](Tiny).take(6000)

    counts = Counter(made)
    assert set(counts) == nth_powers()
    # Pearson's statistic of 60 classes has mean 59 and variance 118; 59 + 7·√118 is exceeded once in some 10^8 runs.
    statistic = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert statistic < 59 + 7 * 118**0.5


def test_the_first_products_are_the_powers_of_which_all_others_are_made(key: PrivateKey) -> None:
    source = Products(key.public)
    made = [value for count in (1, 0, 100, 40, 9) for value in source.take(count)]

    assert made[:128] == source._generators
    assert len(set(made)) == len(made) == 150


def test_what_is_prepared_is_not_handed_out(key: PrivateKey) -> None:
    source = Products(key.public)
    first = source.take(3)
    source.prepare()

    assert source._generators[:3] == first
    assert len(source._generators) == 128
    assert not set(source.take(50)) & set(source._generators)


def test_the_owners_obfuscators_are_uniform_on_what_their_base_generates() -> None:
    # A base that is a square modulo neither prime, nor a cube or a fifth power where these divide, generates everything
    # that one base can: as many as lcm(6, 10) when exponents are equal, and all pairs when they are drawn apart.
    counts = Counter(FixedBase(Tiny).take(6000))

    assert set(counts) == nth_powers()
    statistic = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert statistic < 59 + 7 * 118**0.5


def test_the_base_is_no_small_power() -> None:
    prime = mpz(2 * 3 * 5 * 7 * 11 + 1)
    assert gmpy2.is_prime(prime)

    for _ in range(20):
        base = obfuscators._base(prime)
        assert all(gmpy2.powmod(base, (prime - 1) // factor, prime) != 1 for factor in (2, 3, 5, 7, 11))


def test_enough_bits_are_drawn_for_each_product() -> None:
    # The proof needs |n| + 128 bits in all, from at least 128 independent powers.
    for bits in (512, 2048, 3072, 4096):
        widths = obfuscators.exponent_widths(bits)
        assert 128 * sum(widths) >= bits + 128
        assert max(widths) <= 7


def test_tables_hold_all_powers_of_a_digit() -> None:
    (base,) = obfuscators.split([mpz(12345)], Tiny.modulus)
    tables = list(obfuscators._windows(base, [2, 3], Tiny.modulus))

    assert [len(table) for table in tables] == [4, 8]
    for low, high in cartesian(range(4), range(8)):
        found = obfuscators.product([tables[0][low], tables[1][high]], Tiny.modulus)
        assert found == gmpy2.powmod(12345, low + 4 * high, 77 * 77)
