from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from splitvfl.crypto import key_generation
from splitvfl.crypto.key_generation import generate_keys
from splitvfl.errors import ArgumentError


def passes_fermat(number: int) -> bool:
    """Whether a number looks prime to the oldest test there is, in Python's own arithmetic."""
    return all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11, 13))


@pytest.mark.parametrize("bits", [64, 66, 256, 512, 1024])
def test_a_key_is_made_of_two_primes_as_they_must_be(bits: int) -> None:
    for _ in range(8):
        key = generate_keys(bits, insecure_for_tests=True)
        p, q = int(key.p), int(key.q)
        assert key.public.n == p * q
        assert key.public.bits == bits
        for prime in (p, q):
            assert passes_fermat(prime)
            assert prime % 4 == 3
            assert prime.bit_length() == bits // 2
            assert prime >> (bits // 2 - 2) == 3
        assert math.gcd(p * q, (p - 1) * (q - 1)) == 1
        assert abs(p - q).bit_length() > max(bits // 2 - 100, bits // 4)


def test_primes_that_are_near_each_other_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([5, 7, 9, 1 << 125])
    monkeypatch.setattr(key_generation.secrets, "randbits", lambda bits: next(draws))
    monkeypatch.setattr(key_generation.gmpy2, "next_prime", _next_blum)

    key = generate_keys(256, insecure_for_tests=True)

    assert {int(key.p), int(key.q)} == {_next_blum((3 << 126) + 5), _next_blum((3 << 126) + (1 << 125))}


def _next_blum(start: int) -> int:
    number = int(start) + 1
    while number % 4 != 3 or not passes_fermat(number):
        number += 1
    return number


def test_every_start_is_drawn_from_the_operating_system_and_all_of_its_bits_vary() -> None:
    # Short ones, so that there can be many; below the highest two, bits are even but for the last two.
    primes = [int(prime) for _ in range(400) for key in [generate_keys(256, insecure_for_tests=True)]
              for prime in (key.p, key.q)]  # fmt: skip
    assert len(set(primes)) == len(primes)
    # 120 bits, each tested two-sidedly at 1e-9: all of them fail with probability 1.2e-7 where all is well. The lowest
    # bits are those of a prime, the next ones nearly even.
    for place in range(4, 124):
        assert binomtest(sum(prime >> place & 1 for prime in primes), len(primes)).pvalue > 1e-9, place


@pytest.mark.parametrize("bits", [0, -2, 1024, 2046, 2047, 2049])
def test_weak_or_odd_lengths_are_refused(bits: int) -> None:
    with pytest.raises(ArgumentError, match=f"even key length from 2048 bits, got {bits}"):
        generate_keys(bits)
    with pytest.raises(ArgumentError, match="even key length"):
        generate_keys(62, insecure_for_tests=True)
