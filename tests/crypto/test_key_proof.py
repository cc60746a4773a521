"""Moduli of every bad shape, each by somebody who knows all of its factors and answers as well as anyone could."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Callable, Sequence

import gmpy2
import pytest
from gmpy2 import mpz

from splitvfl.crypto import key_proof
from splitvfl.crypto.key_generation import generate_keys
from splitvfl.crypto.key_proof import NTH_ROOTS, ROOTS, SQUARE_ROOTS, prove, verify
from splitvfl.crypto.keys import PrivateKey, PublicKey
from splitvfl.errors import CryptoError

RANDOM = random.Random()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test has moduli of its own, whichever tests ran before in the same process."""
    RANDOM.seed(0)


def prime(bits: int, *, residue: int = 3) -> int:
    """A prime of so many bits that is ``residue`` modulo 4."""
    while True:
        found = int(gmpy2.next_prime(RANDOM.getrandbits(bits - 2) | 3 << (bits - 2)))
        if found % 4 == residue and found.bit_length() == bits:
            return found


def prime_above(factor: int, bits: int) -> int:
    """A prime of so many bits that is 3 modulo 4, and 1 modulo ``factor``, which is odd."""
    while True:
        found = 2 * factor * (RANDOM.getrandbits(bits - factor.bit_length() - 1) | 1) + 1
        if found.bit_length() == bits and gmpy2.is_prime(found):
            return found


# --- what is asked, written down a second time


def numbers(n: int, label: str, count: int) -> list[int]:
    size = (n.bit_length() + 7) // 8
    start = f"splitvfl proof of a Paillier modulus, version 1, {label}, ".encode()
    start += n.bit_length().to_bytes(4, "big") + n.to_bytes(size, "big")
    return [
        int.from_bytes(hashlib.shake_256(start + place.to_bytes(2, "big")).digest(size + 16), "big") % n
        for place in range(count)
    ]


def w_of(n: int) -> int:
    return next(w for w in itertools.count(2) if gmpy2.jacobi(w, n) == -1)


# --- a forger who knows the factors


def power(base: int, exponent: int, modulus: int) -> int:
    """As :func:`pow` of three arguments, several times as fast."""
    return int(gmpy2.powmod(base, exponent, modulus))


def root_of_prime(value: int, prime: int) -> int | None:
    """A square root modulo a prime, by Tonelli and Shanks; none if there is none."""
    value %= prime
    if value == 0:
        return 0
    if power(value, (prime - 1) // 2, prime) != 1:
        return None
    odd, twos = prime - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    other = next(z for z in itertools.count(2) if gmpy2.jacobi(z, prime) == -1)
    m, c, t, r = twos, power(other, odd, prime), power(value, odd, prime), power(value, (odd + 1) // 2, prime)
    while t != 1:
        i = next(i for i in range(1, m) if power(t, 1 << i, prime) == 1)
        b = power(c, 1 << (m - i - 1), prime)
        m, c, t, r = i, b * b % prime, t * b * b % prime, r * b % prime
    return r


def square_roots(value: int, factors: Sequence[int]) -> list[int]:
    """All square roots modulo a product of different primes."""
    by_factor = [root_of_prime(value, factor) for factor in factors]
    if None in by_factor:
        return []
    n = math.prod(factors)
    # What is a root modulo one factor, and zero modulo all others.
    parts = [
        root * (n // factor) * pow(n // factor, -1, factor)  # type: ignore[operator]
        for root, factor in zip(by_factor, factors, strict=True)
    ]
    return [
        sum(sign * part for sign, part in zip(signs, parts, strict=True)) % n
        for signs in itertools.product((1, -1), repeat=len(factors))
    ]


def nth_root(value: int, factors: Sequence[int]) -> int | None:
    """An n-th root modulo a product of primes, each once, by one who knows them; none if there is none."""
    n = math.prod(factors)
    total = 0
    for factor in factors:
        order, exponent = factor - 1, n
        # Where exponent and order have a common factor, powers by it are left out: of these a root is known if one is.
        while (common := math.gcd(exponent, order)) > 1:
            order //= common
        root = power(value, pow(exponent, -1, order) if order > 1 else 0, factor)
        if power(root, n, factor) != value % factor:
            return None
        rest = n // factor
        total += root * rest * pow(rest, -1, factor)
    return total % n


def answers(factors: Sequence[int]) -> list[int | None]:
    """The best answer to every question, ``None`` where there is none."""
    n = math.prod(factors)
    w = w_of(n)
    found: list[int | None] = [nth_root(x, factors) for x in numbers(n, "n-th root", NTH_ROOTS)]
    for y in numbers(n, "square root", SQUARE_ROOTS):
        roots = [
            root
            for candidate in (y, -y, w * y, -w * y)
            for root in square_roots(candidate, factors)
            if 2 * root < n and gmpy2.jacobi(root, n) == 1
        ]
        found.append(roots[0] if roots else None)
    return found


def square_classes(factors: Sequence[int]) -> float:
    """The share of all y of which one of y, -y, w y and -w y is a square, and so has any root at all.

    Units fall into ``2^k`` classes modulo squares; those of 1, -1, w and -w are four different ones, or two.
    """
    w = w_of(math.prod(factors))
    classes = {tuple(gmpy2.jacobi(unit % factor, factor) for factor in factors) for unit in (1, -1, w, -w)}
    return len(classes) / 2 ** len(factors)


def assert_answered(squares: int, factors: Sequence[int]) -> None:
    """Of squares at least half have a root that is taken, which must be below n/2 and have symbol 1; all within 6 σ."""
    share = square_classes(factors)
    for least, most in ((share / 2, math.inf), (0.0, share)):
        edge = least or most
        error = 6 * math.sqrt(edge * (1 - edge) / SQUARE_ROOTS)
        assert least - error <= squares / SQUARE_ROOTS <= most + error


@pytest.mark.parametrize(
    "factors",
    [
        (7, 11),
        (103, 107),
        (13, 17),
        (13, 19),
        (19, 23, 31),
        (13, 19, 29),
        (7, 11, 19, 23),
    ],
)
def test_at_most_half_of_all_numbers_have_an_answer_but_with_two_primes(factors: tuple[int, ...]) -> None:
    """By trying all."""
    n = math.prod(factors)
    w = w_of(n)
    taken = {root * root % n for root in range(1, (n + 1) // 2) if gmpy2.jacobi(root, n) == 1}
    units = [y for y in range(1, n) if math.gcd(y, n) == 1]
    found = sum(not taken.isdisjoint((y, -y % n, w * y % n, -w * y % n)) for y in units) / len(units)
    assert square_classes(factors) / 2 <= found <= square_classes(factors)
    assert square_classes(factors) <= 0.5 or len(factors) == 2
    if len(factors) == 2 and all(factor % 4 == 3 for factor in factors):
        assert found == 1.0


def test_the_forger_answers_as_an_honest_owner_does() -> None:
    key = generate_keys(512, insecure_for_tests=True)

    assert answers([int(key.p), int(key.q)]) == prove(key.p, key.q)


def test_all_that_is_asked_is_asked(key: PrivateKey) -> None:
    """The questions and their number, by what somebody reads off the documentation."""
    n, w = key.public.n, w_of(key.public.n)
    roots = prove(key.p, key.q)

    assert (NTH_ROOTS, SQUARE_ROOTS, len(roots)) == (11, 128, 139)
    assert [pow(int(root), n, n) for root in roots[:11]] == numbers(n, "n-th root", 11)
    for y, root in zip(numbers(n, "square root", 128), roots[11:], strict=True):
        assert root * root % n in {y, n - y, w * y % n, -w * y % n}


# 11 roots of numbers of which one in s has one, and 128 of numbers of which half have one: how many of each were
# answered. A common factor s of 12 bits and more leaves each of 11 roots a chance of 2^-12.
SHAPES: dict[str, Callable[[], list[int]]] = {
    "a prime that divides another less one": lambda: [q := prime(128), prime_above(q, 384)],
    "the smallest common factor that is not seen": lambda: [4099, prime_above(4099, 499)],
    "many common factors": lambda: [*(s := [prime(24) for _ in range(6)]), prime_above(math.prod(s), 200), prime(168)],
    "three primes": lambda: [prime(170), prime(171), prime(171)],
    "three primes, not 3 modulo 4": lambda: [prime(170, residue=1), prime(171, residue=1), prime(171)],
    "four primes": lambda: [prime(128) for _ in range(4)],
    "nine primes": lambda: [prime(57) for _ in range(9)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_who_knows_the_factors_of_a_bad_modulus_cannot_answer(shape: str) -> None:
    factors = SHAPES[shape]()
    n = math.prod(factors)
    PublicKey(n, insecure_for_tests=True)  # which sees nothing wrong with it

    found = answers(factors)

    common = math.gcd(n, math.prod(factor - 1 for factor in factors))
    nth, squares = (sum(one is not None for one in part) for part in (found[:NTH_ROOTS], found[NTH_ROOTS:]))
    if common > 1:
        # Each of 11 is answered with probability 1/4099 at most: one of them with 0.3 %, and this is a fixed modulus.
        assert nth <= 1
    else:
        assert nth == NTH_ROOTS
    assert_answered(squares, factors)
    with pytest.raises(CryptoError, match=r"a wrong (square|n-th) root \d+|it is no Paillier key"):
        verify(mpz(n), [1 if one is None else one for one in found])


@pytest.mark.parametrize("residues", [(1, 1), (1, 3)])
def test_of_two_primes_that_are_not_3_modulo_4_not_all_questions_have_an_answer(residues: tuple[int, int]) -> None:
    """They are a Paillier key's as well, but nobody can show it."""
    factors = [prime(256, residue=residue) for residue in residues]
    squares = sum(one is not None for one in answers(factors)[NTH_ROOTS:])
    assert_answered(squares, factors)
    assert squares < SQUARE_ROOTS
    with pytest.raises(CryptoError, match="3 modulo 4"):
        prove(*map(mpz, factors))


def test_a_square_and_a_prime_power_have_no_proof() -> None:
    p, q = prime(128), prime(256)
    for n, factors in ((p * p * q, (p, q)), (p**4, (p,)), (p**3, (p,))):
        # An n-th power is one modulo p² only if it is modulo p: of p of them one.
        roots = numbers(n, "n-th root", NTH_ROOTS)
        assert not [x for x in roots if pow(x, math.prod(f - 1 for f in factors), p * p) == 1]
        with pytest.raises(CryptoError, match="is no Paillier key"):
            verify(mpz(n), [1] * ROOTS)
    assert gmpy2.is_power(p**4)
    for n in (p**4, p**3):
        with pytest.raises(CryptoError, match="a power"):
            PublicKey(n, insecure_for_tests=True)


@pytest.mark.parametrize("place", [0, 10, 11, 138])
@pytest.mark.parametrize("damage", ["one more", "zero", "n", "negative", "the other root", "of another key"])
def test_every_root_counts(key: PrivateKey, other_key: PrivateKey, place: int, damage: str) -> None:
    roots = prove(key.p, key.q)
    changes: dict[str, Callable[[int], int]] = {
        "one more": lambda root: root + 1,
        "zero": lambda root: 0,
        "n": lambda root: key.public.n,
        "negative": lambda root: -root,
        "the other root": lambda root: key.public.n - root,
        "of another key": lambda root: int(prove(other_key.p, other_key.q)[place]),
    }
    roots[place] = mpz(changes[damage](int(roots[place])))
    with pytest.raises(CryptoError, match=r"wrong (square|n-th) root|outside \[1, n\)"):
        verify(key.public.modulus, roots)


def test_roots_that_are_missing_or_too_many_or_in_another_order_are_refused(key: PrivateKey) -> None:
    roots = prove(key.p, key.q)
    n = key.public.modulus
    for wrong in (roots[:-1], roots[1:], [*roots, roots[-1]], []):
        with pytest.raises(CryptoError, match=f"a proof of 139 roots, got {len(wrong)}"):
            verify(n, wrong)
    for first, second in ((0, 1), (11, 12), (10, 11), (137, 138)):
        swapped = [*roots]
        swapped[first], swapped[second] = roots[second], roots[first]
        with pytest.raises(CryptoError, match="wrong"):
            verify(n, swapped)


def test_a_modulus_has_one_proof_and_no_second_root_gets_out(key: PrivateKey) -> None:
    """Two square roots of one number would give away the primes: whoever proves again gives the same ones."""
    first, second = prove(key.p, key.q), prove(key.q, key.p)

    assert first == second
    n = key.public.n
    for place, y in enumerate(numbers(n, "square root", SQUARE_ROOTS), start=NTH_ROOTS):
        roots = [r for c in (y, -y, w_of(n) * y, -w_of(n) * y) for r in square_roots(c, [int(key.p), int(key.q)])]
        usual, unusual = ([r for r in roots if 2 * r < n and gmpy2.jacobi(r, n) == sign] for sign in (1, -1))
        assert usual == [first[place]]
    with pytest.raises(CryptoError, match=f"wrong square root {SQUARE_ROOTS - 1}"):
        verify(mpz(n), [*first[:-1], *unusual])


def test_a_proof_that_a_fault_has_damaged_is_not_returned(key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that is wrong modulo one prime gives away the other."""
    right, calls = gmpy2.powmod_sec, []

    def faulty(base: mpz, exponent: mpz, modulus: mpz) -> mpz:
        calls.append(modulus)
        return (right(base, exponent, modulus) + (len(calls) == 6)) % modulus

    monkeypatch.setattr(key_proof.gmpy2, "powmod_sec", faulty)
    with pytest.raises(CryptoError, match="wrong n-th root 2"):
        prove(key.p, key.q)


def test_the_search_for_a_number_that_is_no_square_is_bounded() -> None:
    with pytest.raises(CryptoError, match="looks like a square"):
        verify(mpz(prime(256)) ** 2, [1] * ROOTS)
    # A modulus made so that all small numbers are squares in the eyes of Jacobi's symbol: it takes longer, and ends.
    small = [int(gmpy2.next_prime(1))]
    while len(small) < 40:
        small.append(int(gmpy2.next_prime(small[-1])))
    whole = 8 * math.prod(small[1:])
    n = next(n for n in (1 + whole * k for k in itertools.count(1)) if gmpy2.is_prime(n))
    assert w_of(n) > small[-1]
    with pytest.raises(CryptoError, match="wrong square root 0"):
        verify(mpz(n), [1] * ROOTS)


def test_primes_of_any_length_pass_as_it_is_said_that_they_do() -> None:
    """Everybody finds 4099: the proof is for those who compute under a key, not for its owner."""
    q = gmpy2.next_prime(mpz(3) << 498)
    while q % 4 != 3 or (q - 1) % 4099 == 0 or any(gmpy2.gcd(y, 4099) != 1 for y in _asked(4099 * q)):
        q = gmpy2.next_prime(q)
    roots = key_proof.prove(mpz(4099), q)
    modulus = PublicKey(int(4099 * q), insecure_for_tests=True).modulus
    assert modulus % 4099 == 0
    key_proof.verify(modulus, roots)  # raises where it does not pass
    with pytest.raises(CryptoError):
        key_proof.verify(modulus, [roots[0] + 1, *roots[1:]])


def _asked(n: mpz) -> list[mpz]:
    return [
        *key_proof._numbers(n, b"n-th root", key_proof.NTH_ROOTS),
        *key_proof._numbers(n, b"square root", key_proof.SQUARE_ROOTS),
    ]
