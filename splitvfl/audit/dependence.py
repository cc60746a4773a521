"""Whether rows that a defense sends depend on each other: they are no independent draws then, and noise may cancel.

Nothing is assumed of the law of the noise. All tests are of ranks of what is sent of equal rows, and of how far it is
from the middle, so that rows are found too whose noise has one size and two signs.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy

Array = npt.NDArray[np.float64]

_COLUMNS = 16  # of a message, at most
_BY_CHANCE = 1e-6  # how often rows that share nothing are taken for such that do


def ranks_of(batches: Array) -> Array:
    """Return the ranks of what was sent of equal rows, and of its distance from the middle; their means are 0.

    Args:
        batches: Several batches of rows, ``(batches, rows, d)``.

    Returns:
        ``(batches, rows, 2 d)``, in (-1/2, 1/2); of more than 16 columns some.
    """
    columns = batches[:, :, :: -(-batches.shape[2] // _COLUMNS)]
    seen = np.concatenate([columns, np.abs(columns - np.median(columns, axis=(0, 1)))], axis=2)
    ranks = scipy.stats.rankdata(seen.reshape(-1, seen.shape[2]), axis=0).reshape(seen.shape)
    found: Array = (ranks - ranks.mean(axis=(0, 1))) / (len(batches) * batches.shape[1])
    return found


def batches_differ(batches: Array, ranks: Array) -> bool:
    """Return whether batches are less alike, or more alike, than independent rows would make them.

    By both tails of Kruskal and Wallis's test: rows that share noise differ from batch to batch together; where noise
    adds up to 0 over a batch, its batches are too much alike. It is the values that add up, so that they are looked at
    too, but not for the other tail, where a few large ones decide.

    Args:
        batches: As for :func:`ranks_of`.
        ranks: As of :func:`ranks_of`.
    """
    # Of one value everywhere there is no noise that could be shared.
    by_rank, by_value = _between(ranks), _between(batches - batches.mean(axis=(0, 1)))
    if not by_rank.size:
        return False
    least = min(by_rank.min(), by_value.min())
    chances = scipy.stats.chi2.sf(by_rank.max(), len(batches) - 1), scipy.stats.chi2.cdf(least, len(batches) - 1)
    return bool(2 * min(chances) * (by_rank.size + by_value.size) < _BY_CHANCE)


def _between(centred: Array) -> Array:
    """Return how much batches differ, of each column that is not constant: one less than their number, if by chance."""
    number, rows = centred.shape[:2]
    between = rows * np.square(centred.mean(axis=1)).sum(axis=0)
    overall = np.square(centred).sum(axis=(0, 1))
    found: Array = (number * rows - 1) * between[overall > 0] / overall[overall > 0]
    return found


def rows_follow(first: Array, second: Array | None = None) -> bool:
    """Return whether a row follows from another one, at the same distance in all batches.

    By the correlation of rows at every distance, counted in a circle, and Bernstein's inequality, which holds for rare
    values too.

    Args:
        first: As of :func:`ranks_of`, ``(batches, rows, m)``.
        second: Of another message of the same batches; default: ``first``, in which no row is compared with itself.
    """
    number, rows = first.shape[:2]
    other = first if second is None else second
    spectra = np.fft.rfft(first, axis=1), np.fft.rfft(other, axis=1)
    sums = np.fft.irfft(np.einsum("bfi,bfj->fij", spectra[0].conj(), spectra[1], optimize=True), n=rows, axis=0)
    if second is None:
        sums = sums[1:]
        if rows % 2 == 0:
            sums[rows // 2 - 1] /= math.sqrt(2.0)  # half a circle away each pair is counted twice
    if sums.size == 0:
        return False
    spread = np.outer(np.square(first).sum(axis=(0, 1)), np.square(other).sum(axis=(0, 1))) / (number * rows)
    most = np.outer(np.abs(first).max(axis=(0, 1)), np.abs(other).max(axis=(0, 1)))
    room = 2.0 * (spread + most * np.abs(sums) / 3.0)
    log_chance = -np.square(sums) / np.where(room > 0, room, np.inf)
    return bool(math.log(2.0 * sums.size) + log_chance.min() < math.log(_BY_CHANCE))
