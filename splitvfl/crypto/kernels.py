"""Sums of encrypted values with plain integer weights, ``∏ᵢ cᵢ^wᵢⱼ mod n²``, many at once and packed.

Four ideas make it fast; measured side by side in ``scripts/bench/paillier.py``:

**Bit planes** (the "four Russians" over two's complement). Weights are shifted to be non-negative, ``w + 2^B``, and
cut into planes of one bit each. Samples are taken in groups of ``k`` about 8: a table holds the product of every
subset of a group, and one multiplication per group and plane does the work of ``k``. All columns and planes share the
tables. The shift is undone by one factor per column.

**One chain.** A packed reply is ``∏ᵢ cᵢ^Eᵢ``, where ``Eᵢ`` holds the weights of a whole row, slot after slot. All
slots are done in one chain of squarings from the top, which multiplies planes in as it comes by: the squarings that
move a sum to its slot are also those between its planes.

**Half-sized factors.** Every unit modulo ``n²`` is ``t · (1 + λn)`` with ``t < n``, and ``1 + λn`` is plain encryption
of ``λ`` with no randomness: such factors commute with everything and add up. So the tables hold ``t``, half as long as
a ciphertext, the chain multiplies by ``t`` only, and the ``λ`` of all factors become one number, multiplied in at the
end.

**Squaring in two halves.** ``(a + bn)² = a² + 2abn``: two products and two divisions of half the length cost less than
one of each in full.

None of this is constant-time: the planes that are needed depend on the largest weight of each column in the batch, and
a factor 1 (no bit of a group set in a plane) is cheap. Time tells something of the party's own weights to whoever waits
for the reply. Small ciphertexts are cheap too, and their owner chooses them, one by one: callers blind them first
(:class:`~splitvfl.crypto.obfuscators.Blinding`), or time tells the weights of single records.

Source: Arlazarov, Dinic, Kronrod and Faradzev, 1970 (tables of subsets); Straus, 1964 (one chain for many exponents).
"""

from __future__ import annotations

from collections.abc import Sequence

import gmpy2
import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from splitvfl.crypto.modular import ONE, Factor, inverted_factor, multiplied, split, square_often

Weights = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]

# One entry of a table costs as much as about two multiplications in the chain.
_ENTRY_COST = 2
_SQUARING_COST = 1.4
_USUAL_PLANES = 30
_LARGEST_GROUP = 12


def packed_sums(
    ciphertexts: Sequence[mpz], weights: Weights, *, counts: Sequence[int], slot_bits: int, n: mpz
) -> list[mpz]:
    """Return encrypted packed sums ``Σᵢ wᵢⱼ mᵢ``, slot after slot from the lowest.

    Args:
        ciphertexts: Encrypted ``m``, ``(s,)``, coprime to ``n``.
        weights: Signed integers, ``(s, d)``.
        counts: How many sums each result holds; ``d`` together.
        slot_bits: Width of a slot, at least that of the largest weight with its sign.
        n: The modulus.

    Returns:
        One number modulo ``n²`` per count. Not re-randomised.
    """
    planes = 1 + _bits(weights)
    tables = Tables(ciphertexts, group_sizes(len(ciphertexts), int(planes.sum())), n)
    columns = tables.lookups(weights, planes)
    results, first = [], 0
    for count in counts:
        results.append(tables.chain(columns[first : first + count], slot_bits))
        first += count
    return results


def group_sizes(samples: int, lookups: int) -> list[int]:
    """Return how many samples to take together, as evenly as possible, so that tables and look-ups cost least.

    Args:
        samples: How many there are.
        lookups: How often each table is used: planes times columns.
    """
    return _evenly(samples, _cheapest(samples, lookups)) if samples else []


def cost(samples: int, columns: int, slot_bits: int) -> float:
    """Return about how long the sums take, in multiplications, to compare ways to divide them."""
    lookups = columns * _USUAL_PLANES
    chains = _SQUARING_COST * columns * slot_bits
    return _multiplications(samples, _cheapest(samples, lookups), lookups) + chains if samples else chains


def _cheapest(samples: int, lookups: int) -> int:
    """Return into how many groups to divide samples, of which there are some."""
    fewest = -(-samples // _LARGEST_GROUP)
    return min(range(fewest, samples + 1), key=lambda groups: _multiplications(samples, groups, lookups))


def _multiplications(samples: int, groups: int, lookups: int) -> int:
    """Return what groups of :func:`_evenly` cost; from their two sizes, as every number of them is tried."""
    size, larger = divmod(samples, groups)
    return _ENTRY_COST * (1 << size) * (groups + larger) + groups * lookups


def _evenly(total: int, parts: int) -> list[int]:
    return [(total + part) // parts for part in range(parts)]


def _bits(weights: Weights) -> Rows:
    """Return, for each column, the least ``B`` with all weights in ``[-2^B, 2^B)``."""
    # -1 - w is as long as w is with its sign.
    longest = np.maximum(weights, -1 - weights).max(axis=0)
    return np.array([int(value).bit_length() for value in longest], dtype=np.int64)


class Tables:
    """Products of every subset of each group of ciphertexts.

    Args:
        ciphertexts: ``(s,)``, coprime to ``n``.
        sizes: How many make a group; ``s`` together.
        n: The modulus.
    """

    def __init__(self, ciphertexts: Sequence[mpz], sizes: Sequence[int], n: mpz) -> None:
        self._n, self._square = n, n * n
        self._roots: list[mpz] = []
        self._logs: list[mpz] = []
        self._sizes = sizes
        factors, everything = split(ciphertexts, n), ONE
        first = 0
        for size in sizes:
            subsets = _subsets(factors[first : first + size], n)
            self._roots += [subset.t for subset in subsets]
            self._logs += [subset.log for subset in subsets]
            everything = multiplied(everything, subsets[-1], n)
            first += size
        self._undo = inverted_factor(everything, n)

    def lookups(self, weights: Weights, planes: Rows) -> list[list[list[int]]]:
        """Return the entries to multiply by: for each column, each of its planes from the top, each group.

        Args:
            weights: ``(s, d)``, column ``j`` in ``[-2^(planes[j]-1), 2^(planes[j]-1))``.
            planes: How many bits each column takes, ``(d,)``.
        """
        shifted = weights + (1 << (planes - 1))
        most = int(planes.max())
        order = np.arange(most - 1, -1, -1)
        found = np.empty((weights.shape[1], most, len(self._sizes)), dtype=np.int64)
        row = start = 0
        for group, size in enumerate(self._sizes):
            bits = (shifted[row : row + size, :, None] >> order) & 1
            found[:, :, group] = start + np.tensordot(1 << np.arange(size), bits, axes=(0, 0))
            row, start = row + size, start + 2**size
        return [column[most - own :].tolist() for column, own in zip(found, planes.tolist(), strict=True)]

    def chain(self, columns: Sequence[Sequence[Sequence[int]]], slot_bits: int) -> mpz:
        """Return one packed sum: all its columns in one chain of squarings, from the highest slot down.

        Args:
            columns: What :meth:`lookups` returned for them, from the lowest slot.
            slot_bits: Squarings from one column to the next, those between its planes included.
        """
        value, log = mpz(1), mpz(0)
        for planes in reversed(columns):
            gap = slot_bits - len(planes) + 1
            value, log = self._add_planes(square_often(value, gap, self._n), log << gap, planes)
        return value * (1 + log % self._n * self._n) % self._square

    def _add_planes(self, value: mpz, log: mpz, planes: Sequence[Sequence[int]]) -> tuple[mpz, mpz]:
        n, square, roots, logs = self._n, self._square, self._roots, self._logs
        # The top plane is that of the shift by 2^B, which this undoes.
        value, log = value * self._undo.t % square, log + self._undo.log
        for number, plane in enumerate(planes):
            if number:
                # Squared without a last reduction: that of the next product does for both.
                high, low = gmpy2.f_divmod(value, n)
                value, log = low * low + (low + low) * high % n * n, log << 1
            for place in plane:
                value = value * roots[place] % square
                log += logs[place]
        return value, log % n


def _subsets(group: Sequence[Factor], n: mpz) -> list[Factor]:
    """Return the products of all subsets, that of the bits of ``j`` at place ``j``."""
    subsets = [ONE]
    for new in group:
        subsets += [multiplied(subset, new, n) for subset in subsets]
    return subsets
