"""Obfuscators: uniform ``n``-th powers modulo ``n²``, one for each ciphertext that leaves, none ever used twice.

Three sources, from slow to fast: :class:`Powers` for anybody, :class:`Products` for anybody who needs more than 128,
and :class:`FixedBase` for the owner of the key. All randomness is from the operating system (``secrets``).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Protocol

import gmpy2
from gmpy2 import mpz

from splitvfl.crypto.modular import Factor, entry, multiplied, power, powers, product, split

# A base that is a power of a smaller prime's order is drawn again.
_SMALL_PRIMES_BELOW = 1 << 16
_GENERATORS = 128
_WIDEST_WINDOW = 7
# Large tables are worth their making after some 200 obfuscators. A key of shorter primes protects nothing: it is a
# test's, which encrypts less.
_LARGE_TABLES_FROM_BITS = 1024


class Obfuscators(Protocol):
    """A source of obfuscators."""

    def take(self, count: int) -> list[mpz]:
        """Return new ones, which are never returned again."""
        ...


# The parts of a public and of a private key that worker processes need.


class _Modulus(Protocol):
    @property
    def modulus(self) -> mpz: ...


class _Primes(Protocol):
    @property
    def p(self) -> mpz: ...

    @property
    def q(self) -> mpz: ...


class Powers:
    """``r^n mod n²`` with ``r`` uniform among the numbers coprime to ``n``.

    Uniform by definition; nothing is prepared, and it is slow.
    """

    def __init__(self, public: _Modulus) -> None:
        self._n = public.modulus

    def take(self, count: int) -> list[mpz]:
        """Return new obfuscators."""
        return [power(_unit(self._n), self._n, self._n) for _ in range(count)]


class Products:
    """True ``n``-th powers ``Rⱼ`` first, 128 of them, and then products ``∏ⱼ Rⱼ^xⱼ`` with fresh random exponents.

    Products are made about seven times as fast as powers. The ``Rⱼ = rⱼ^n`` are drawn once, and everybody may know
    them, so that they serve as obfuscators themselves, once each: nothing has to be prepared. Exponents have ``b =
    ⌈(|n| + 128)/128⌉`` bits each, so that by the leftover hash lemma one product is within ``½ √(2^(3-128) + 2^-128) <
    2^-62`` of uniform on all ``n``-th powers, and independent of the ``Rⱼ``, in statistical distance, whatever the two
    primes of ``n`` are: no assumption, and no short exponent. That ``n`` has two, and no factor in common with
    ``φ(n)``, is proven with every key that another party sends (:mod:`splitvfl.crypto.key_proof`), and must be known of
    any other: under an ``n`` of many primes, whose ``n``-th powers need more than 128 generators, its owner may learn
    some of the weights' parities. What it does not promise: more than ``N · 2^-62`` for ``N`` obfuscators together.

    Why: two different vectors of exponents, of difference ``D``, collide with probability ``gcd(D, |G₁|) · gcd(D, |G₂|)
    / |G|`` over the choice of the ``Rⱼ`` in ``G = G₁ × G₂``, both cyclic as ``n`` has two primes, of which neither
    divides the other less one; the expectation of ``gcd(D)²`` for ``D ≠ 0`` is below ``1 + 2^(3-128)``.

    Source: Impagliazzo, Levin and Luby, STOC 1989 (the lemma).
    """

    def __init__(self, public: _Modulus) -> None:
        self._n = public.modulus
        self._powers = Powers(public)
        self._generators: list[mpz] = []

    def take(self, count: int) -> list[mpz]:
        """Return new obfuscators."""
        new = self._powers.take(min(count, _GENERATORS - len(self._generators)))
        self._generators += new
        return new + [self._product() for _ in range(count - len(new))]

    def prepare(self) -> None:
        """Do all that is done once: the powers, which are not handed out then, and tables of them.

        Otherwise it comes little by little with the first 128 obfuscators, and about a tenth of a second after these.
        It takes about one second in all at 2048 bits, three at 3072.
        """
        self._generators += self._powers.take(_GENERATORS - len(self._generators))
        assert self._tables

    @cached_property
    def _tables(self) -> list[list[mpz]]:
        widths = exponent_widths(self._n.bit_length())
        return [table for base in split(self._generators, self._n) for table in _windows(base, widths, self._n)]

    def _product(self) -> mpz:
        # Tables have a power of two of entries, of which a byte's low bits choose one.
        choices = zip(self._tables, secrets.token_bytes(len(self._tables)), strict=True)
        return product([table[byte & (len(table) - 1)] for table, byte in choices], self._n)


class Blinding:
    """Gives ciphertexts that another party chose a form that it did not choose; what is encrypted stays the same.

    Nothing that computes with ciphertexts here takes the same time for all of them, and a partner can choose, whatever
    it encrypts, what a ciphertext is modulo ``n``: a small number, say, by which one multiplies sooner. Each is
    multiplied first by a secret ``n``-th power, which is squared from one message to the next.

    What it does not promise: that time then depends on nothing secret. It depends on nothing that another party chose.

    Source: Kocher, *Timing attacks on implementations of Diffie-Hellman, RSA, DSS, and other systems*, CRYPTO 1996,
    section 10.
    """

    def __init__(self, public: _Modulus) -> None:
        self._public, self._square = public, public.modulus**2
        self._factor: mpz | None = None

    def blinded(self, values: Sequence[mpz]) -> list[mpz]:
        """Return other ciphertexts, of the same numbers."""
        if self._factor is None:
            (self._factor,) = Powers(self._public).take(1)
        self._factor = self._factor * self._factor % self._square
        return [value * self._factor % self._square for value in values]


class FixedBase:
    """``g^x mod n²`` for the owner of the key: powers of one base from tables, modulo ``p²`` and ``q²``.

    Modulo each prime's square, ``g`` is an ``n``-th power of order ``p - 1`` but for a divisor without prime factors
    below 2¹⁶ (it is checked that ``g`` is no ``l``-th power for any such ``l`` that divides ``p - 1``), and ``x`` is
    uniform below ``p - 1``. So an obfuscator is uniform on the ``n``-th powers, or on a subgroup of them that has an
    index above 2¹⁶; that nobody tells it from all of them without ``p`` is the assumption of Paillier's scheme for a
    random base.

    Preparing takes about .2 seconds at 2048 bits. Look-ups are not constant-time.
    """

    def __init__(self, key: _Primes) -> None:
        self._halves = [_PrimeBase(prime, key.p * key.q) for prime in (key.p, key.q)]
        (by_p, by_q) = self._halves
        self._inverse = gmpy2.invert(by_q.square, by_p.square)

    def take(self, count: int) -> list[mpz]:
        """Return new obfuscators."""
        return [self._one() for _ in range(count)]

    def _one(self) -> mpz:
        (by_p, by_q) = self._halves
        first, second = by_p.one(), by_q.one()
        return second + by_q.square * ((first - second) * self._inverse % by_p.square)


class _PrimeBase:
    def __init__(self, prime: mpz, n: mpz) -> None:
        self._prime = prime
        self.square = prime**2
        self._order = int(prime - 1)
        self._bytes = (self._order.bit_length() + 7) // 8
        self._halved = prime.bit_length() < _LARGE_TABLES_FROM_BITS
        (base,) = split([power(_base(prime), n, prime)], prime)
        widths = [4, 4] * self._bytes if self._halved else [8] * self._bytes
        self._tables = list(_windows(base, widths, prime))

    def one(self) -> mpz:
        digits = secrets.randbelow(self._order).to_bytes(self._bytes, "little")
        if self._halved:
            digits = bytes(half for byte in digits for half in (byte & 15, byte >> 4))
        return product([table[digit] for table, digit in zip(self._tables, digits, strict=True)], self._prime)


def exponent_widths(modulus_bits: int) -> list[int]:
    """Return the bits of each digit of an exponent of :class:`Products`; 128 such exponents have ``|n| + 128`` bits."""
    bits = -(-(modulus_bits + _GENERATORS) // _GENERATORS)
    parts = -(-bits // _WIDEST_WINDOW)
    return [(bits + part) // parts for part in range(parts)]


def _base(prime: mpz) -> mpz:
    """Return a number that is no ``l``-th power modulo the prime, for any small prime ``l`` that divides its order."""
    factors = [factor for factor in _small_primes() if (prime - 1) % factor == 0]
    while True:
        base = _unit(prime)
        if all(gmpy2.powmod(base, (prime - 1) // factor, prime) != 1 for factor in factors):
            return base


@cache
def _small_primes() -> tuple[int, ...]:
    primes = [2]
    while primes[-1] < _SMALL_PRIMES_BELOW:
        primes.append(int(gmpy2.next_prime(primes[-1])))
    return tuple(primes[:-1])


def _unit(n: mpz) -> mpz:
    """Return a uniform number coprime to ``n``."""
    while True:
        root = mpz(secrets.randbelow(int(n)))
        if gmpy2.gcd(root, n) == 1:
            return root


def _windows(base: Factor, widths: Sequence[int], n: mpz) -> Iterator[list[mpz]]:
    """Yield the powers of ``base``, of ``base^(2^w₀)``, of ``base^(2^(w₀+w₁))``: a table for each digit."""
    for width in widths:
        table = powers(base, 1 << width, n)
        yield [entry(factor, n) for factor in table]
        base = multiplied(table[-1], base, n)
