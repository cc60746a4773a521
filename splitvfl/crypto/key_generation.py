"""New Paillier keys, from the operating system's entropy (``secrets``) and ``gmpy2.next_prime``."""

from __future__ import annotations

import secrets

import gmpy2
from gmpy2 import mpz

from splitvfl.crypto.keys import LEAST_BITS, PrivateKey
from splitvfl.errors import ArgumentError

# Primes are further apart than 2^(bits - 100), as FIPS 186-5 asks for, so that no search from the root of n finds them;
# those of short keys, which protect nothing, differ in their first half.
_LEAST_DISTANCE = 100
_SHORTEST_FOR_TESTS = 64


def generate_keys(bits: int = 3072, *, insecure_for_tests: bool = False) -> PrivateKey:
    """Return a new private key; its ``public``, with a proof, is what is sent.

    Both primes have half the bits, the highest two set, so that ``n`` has all of them; both are 3 modulo 4, without
    which nobody could prove that there are two (:mod:`splitvfl.crypto.key_proof`). Primes of one length never divide
    each other less one, so that ``gcd(n, φ(n)) = 1``.

    Each prime is the next one after a number drawn at random, so that it is drawn with a probability in proportion to
    the gap before it. Below 2^1536 a gap is 1064 on average, and none is known that is 42 times as long as the average
    at its place: no prime is more than 42 times as probable as in a uniform draw, which is 2^-1500 at most, and what
    guesses at a prime cost falls by six bits at most.

    Primality is Baillie, PSW and Miller-Rabin, as GMP has them: no proof, and no composite number is known to pass. The
    time that the search takes depends on the primes.

    Args:
        bits: Bit length of the modulus, even, ≥ 2048.
        insecure_for_tests: Allow shorter keys, from 64 bits, which protect nothing.

    Raises:
        ArgumentError: If the length is odd or too short.
    """
    if bits % 2 or bits < (_SHORTEST_FOR_TESTS if insecure_for_tests else LEAST_BITS):
        raise ArgumentError(
            f"expected an even key length from {LEAST_BITS} bits, got {bits}: shorter keys are for tests, "
            "which ask for them with insecure_for_tests=True"
        )
    half = bits // 2
    p = _prime(half)
    while abs(p - (q := _prime(half))).bit_length() <= max(half - _LEAST_DISTANCE, half // 2):
        pass
    return PrivateKey(int(p), int(q), insecure_for_tests=insecure_for_tests)


def _prime(bits: int) -> mpz:
    """Return a prime of exactly so many bits, the highest two set, that is 3 modulo 4."""
    while True:
        found = gmpy2.next_prime(mpz(3) << (bits - 2) | secrets.randbits(bits - 2))
        # The last gap may lead beyond; every start is drawn anew, so that a draw that failed says nothing of the next.
        if found % 4 == 3 and found.bit_length() == bits:
            return found
