"""A proof that a modulus is the product of exactly two different primes, and has no factor in common with ``φ(n)``.

Both are about ``n`` alone, and cannot be seen from it. Without the first the obfuscators of
:class:`~splitvfl.crypto.obfuscators.Products` may be told from each other; without the second there is a subgroup that
neither ``n``-th powers nor powers of ``1 + n`` touch, through which the owner of the key reads what others multiply its
ciphertexts with, whatever the mask.

The proof answers questions that are hashed from ``n``, so that nobody chooses them:

- **11 n-th roots** of numbers ``x`` modulo ``n``. If a prime ``s`` divides ``n`` and ``φ(n)``, at most one unit in
  ``s`` has an ``n``-th root. A key's factors are above 4096 (:class:`~splitvfl.crypto.keys.PublicKey` checks it), so
  that one such modulus passes with probability below ``4099^-11 < 2^-132``. What passes is square-free.
- **128 square roots**, each of one of ``y``, ``-y``, ``w·y``, ``-w·y``, where ``w`` is the least number of Jacobi
  symbol -1. Modulo two primes that are 3 modulo 4 exactly one of the four is a square; modulo ``k ≥ 3`` different
  primes the four lie in at most four of the ``2^k`` classes of units modulo squares, so that at most half of all ``y``
  have such a root, for whoever knows the primes too: one such modulus passes with probability ``2^-128`` at most.
  Nothing is shown of a prime: that ``n`` is none is checked with the key, where no prime is ever taken for a product.

Numbers are SHAKE-256 of ``n``, a label and a place, with 128 bits more than ``n``: no residue is more than ``1 +
2^-128`` times as probable as in a uniform draw, which leaves the bounds as they are, in the random oracle model. They
are chances *of one modulus*: who tries ``2^k`` bad ones finds one that passes with probability ``2^(k - 128)``, and
each try costs at least a hash and a power or a Jacobi symbol. Nothing of a run or a party goes in, so that a key is
proven once and verified anywhere; whose key it is, is not said here.

What it does not prove: that the two primes are of equal length, or were drawn at random. A prime of 13
bits passes. An owner who chooses them badly harms the secrecy of all that is encrypted under the key, as does one who
tells them: its own plaintexts, and those of all where they encrypt under one key.

The proof tells nothing that ``n`` does not, in the random oracle model: a root of a number that nobody chose can be
made without the primes by choosing the root first. That holds for **one** root of each number. Two square roots of one
number that are not each other's negative give away the primes, so that there is one answer only: the root that is
itself a square modulo both primes, or its negative if that is smaller. It is the one root below ``n/2`` of Jacobi
symbol 1, and no other is taken; an ``n``-th root is unique anyway. So a modulus has exactly one proof, nobody can make
another of it, and a key with its proof is as good a name of the key as ``n``.

Source: Gennaro, Micciancio and Rabin, *An efficient non-interactive statistical zero-knowledge proof system for
quasi-safe prime products*, ACM CCS 1998; Goldberg, Reyzin, Sagga and Baldimtsi, *Efficient noninteractive certification
of RSA moduli and beyond*, ASIACRYPT 2019 (n-th roots; two primes by square roots); Canetti, Gennaro, Goldfeder,
Makriyannis and Peled, *UC non-interactive, proactive, threshold ECDSA with identifiable aborts*, ACM CCS 2020, figure
16, which takes fourth roots and proves both at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import gmpy2
from gmpy2 import mpz

from splitvfl.errors import CryptoError

NTH_ROOTS: Final = 11
SQUARE_ROOTS: Final = 128
ROOTS: Final = NTH_ROOTS + SQUARE_ROOTS

_LABEL: Final = b"splitvfl proof of a Paillier modulus, version 1, "
_SPARE_BYTES: Final = 16
# A modulus can be made so that w is large, by as many primes as it has bits; one of which it is larger is none of ours.
_LARGEST_W: Final = 1 << 16


def prove(p: mpz, q: mpz) -> list[mpz]:
    """Return the proof for ``n = p q``: first the n-th roots, then the square roots.

    It takes about .2 seconds at 2048 bits, .6 at 3072. What is made is verified before it is returned: a root that is
    wrong modulo one prime only, by a fault of the machine, would give away the primes.

    Raises:
        CryptoError: If the primes are not both 3 modulo 4, or one divides the other less one.
    """
    if p % 4 != 3 or q % 4 != 3:
        raise CryptoError(
            "expected two primes that are 3 modulo 4, got others: nobody can prove that there are two of them, so that "
            "this key cannot be sent; make one with splitvfl.crypto.key_generation.generate_keys"
        )
    if (p - 1) % q == 0 or (q - 1) % p == 0:
        raise CryptoError("expected two primes of which neither divides the other less one: this is no Paillier key")
    n, inverse = p * q, gmpy2.invert(q, p)

    def joined(by_p: mpz, by_q: mpz) -> mpz:
        return by_q + q * ((by_p - by_q) * inverse % p)

    exponents = [(prime, gmpy2.invert(n, prime - 1)) for prime in (p, q)]
    roots = [
        joined(*(gmpy2.powmod_sec(x % prime, exponent, prime) for prime, exponent in exponents))
        for x in _numbers(n, b"n-th root", NTH_ROOTS)
    ]
    w = _non_square(n)
    for y in _numbers(n, b"square root", SQUARE_ROOTS):
        square = next(one for one in _candidates(y, w, n) if gmpy2.jacobi(one, p) == gmpy2.jacobi(one, q) == 1)
        root = joined(*(gmpy2.powmod_sec(square % prime, (prime + 1) // 4, prime) for prime in (p, q)))
        roots.append(min(root, n - root))
    verify(n, roots)
    return roots


def verify(n: mpz, roots: Sequence[mpz | int]) -> None:
    """Check a proof; ``n`` itself must have passed the checks of :class:`~splitvfl.crypto.keys.PublicKey`.

    It takes about 40 ms at 2048 bits and 110 at 3072, and never more: what is cheap is checked first, and the first
    wrong root ends it.

    Raises:
        CryptoError: If it does not prove what it should; nothing may be computed under that key.
    """
    if len(roots) != ROOTS:
        raise CryptoError(f"expected a key with a proof of {ROOTS} roots, got {len(roots)}")
    if not all(0 < root < n for root in roots):
        raise CryptoError("expected a key with roots modulo n, got one outside [1, n): it is no Paillier key")
    w = _non_square(n)
    squares = zip(_numbers(n, b"square root", SQUARE_ROOTS), map(mpz, roots[NTH_ROOTS:]), strict=True)
    for place, (y, root) in enumerate(squares):
        usual = 2 * root < n and gmpy2.jacobi(root, n) == 1 and gmpy2.gcd(y, n) == 1
        if not usual or root * root % n not in _candidates(y, w, n):
            raise CryptoError(
                f"expected a key with a proof that it is the product of two primes, got a wrong square root {place}: "
                "it is no Paillier key, or its proof belongs to another one"
            )
    for place, (x, root) in enumerate(zip(_numbers(n, b"n-th root", NTH_ROOTS), roots, strict=False)):
        if gmpy2.gcd(x, n) != 1 or gmpy2.powmod(root, n, n) != x:
            raise CryptoError(
                f"expected a key with a proof that n and φ(n) have no common factor, got a wrong n-th root {place}: "
                "it is no Paillier key, or its proof belongs to another one"
            )


def _numbers(n: mpz, label: bytes, count: int) -> Iterator[mpz]:
    size = (n.bit_length() + 7) // 8
    prefix = _LABEL + label + b", " + n.bit_length().to_bytes(4, "big") + int(n).to_bytes(size, "big")
    for place in range(count):
        stream = hashlib.shake_256(prefix + place.to_bytes(2, "big")).digest(size + _SPARE_BYTES)
        yield mpz(int.from_bytes(stream, "big")) % n


def _candidates(y: mpz, w: int, n: mpz) -> tuple[mpz, mpz, mpz, mpz]:
    return y, -y % n, w * y % n, -w * y % n


def _non_square(n: mpz) -> int:
    """Return the least number of Jacobi symbol -1.

    Raises:
        CryptoError: If there is none below 2^16, as for a square.
    """
    for w in range(2, _LARGEST_W):
        if gmpy2.jacobi(w, n) == -1:
            return w
    raise CryptoError("expected a product of two primes, got a number that looks like a square: it is no Paillier key")
