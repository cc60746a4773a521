"""Numbers out of text: fingerprints for looking up, keyed hashes for codes, and hashes for ids and the split.

Two kinds of hash are here. :func:`fingerprints` is fast and means nothing outside one run. The others are part of what
parties agree on and what a model is trained with: they are BLAKE2b (RFC 7693) and splitmix64, the same on every machine
and in every version, and changing one of them is a new version of the table format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.errors import ArgumentError

Words = npt.NDArray[np.uint64]

# Not a secret: without a key file, everybody hashes alike.
PUBLIC_KEY = b"splitvfl public category key, 1"
SHORTEST_KEY = 16
_CATEGORY = b"splitvfl.field"
_RECORD = b"splitvfl.record"
_KEY_NAME = b"splitvfl.keyname"
_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix64(words: Words) -> Words:
    """Return splitmix64's output function of each word; it is a bijection.

    Source: Steele, Lea and Flood, OOPSLA 2014, figure 16, with the constants of Vigna's splitmix64.c.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def are_tested(ids: npt.NDArray[np.int64], *, seed: int, fraction: float) -> npt.NDArray[np.bool_]:
    """Return which records are for testing, decided by each id and the seed alone.

    A record is tested on where ``mix64(id + mix64(seed + γ)) < fraction · 2⁶⁴``, all modulo 2⁶⁴, with splitmix64's
    γ = 0x9E3779B97F4A7C15: parties with the same ids, seed and fraction split alike without talking.

    Args:
        ids: Record ids.
        seed: Decides which; any whole number from 0 to 2⁶⁴ − 1.
        fraction: Expected share of test records, in (0, 1).
    """
    offset = mix64(np.array([(seed + _GAMMA) & _MASK], np.uint64))
    limit = min(int(fraction * 2.0**64), _MASK)
    return mix64(ids.view(np.uint64) + offset) < np.uint64(limit)


def text_ids(values: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return an id from 0 to 2⁶³ − 1 per text: the first 8 bytes of its BLAKE2b, little-endian, without the top bit.

    Two among n texts have the same id with a chance of about ``n² / 2⁶⁴``: 5 % among a billion.
    """
    digests = b"".join(
        hashlib.blake2b(value.encode(), digest_size=8, person=_RECORD, usedforsecurity=False).digest()
        for value in values
    )
    ids: npt.NDArray[np.int64] = (np.frombuffer(digests, "<u8") & np.uint64((1 << 63) - 1)).astype(np.int64)
    return ids


def hash_key(secret: bytes | None) -> bytes:
    """Return the 32 bytes that categories are hashed with: a digest of the secret, or of the public constant.

    Raises:
        ArgumentError: If the secret is so short that it could be guessed.
    """
    if secret is not None and len(secret) < SHORTEST_KEY:
        raise ArgumentError(f"expected a hash key of {SHORTEST_KEY} bytes at least, got {len(secret)}")
    return hashlib.blake2b(PUBLIC_KEY if secret is None else secret, digest_size=32).digest()


def key_name(key: bytes) -> str:
    """Return a fingerprint by which two parties see whether they hold the same key, and nothing else."""
    return hashlib.blake2b(key, digest_size=8, person=_KEY_NAME).hexdigest()


def bucket_codes(values: Iterable[str], *, column: str, key: bytes, buckets: int) -> npt.NDArray[np.int32]:
    """Return a code from 1 to ``buckets`` per text.

    ``1 + BLAKE2b_key'(text) mod buckets`` with ``key' = BLAKE2b_key(column)``, 8 bytes little-endian: one text has
    different codes in two columns.

    Args:
        values: Texts.
        column: Name of the column.
        key: See :func:`hash_key`.
        buckets: Number of codes.
    """
    of_column = hashlib.blake2b(column.encode(), digest_size=32, key=key, person=_CATEGORY).digest()
    keyed = hashlib.blake2b(digest_size=8, key=of_column)
    digests = []
    for value in values:
        state = keyed.copy()
        state.update(value.encode())
        digests.append(state.digest())
    words = np.frombuffer(b"".join(digests), "<u8")
    return (words % np.uint64(buckets)).astype(np.int32) + np.int32(1)


def fingerprints(values: pa.Array, seed: int) -> Words:
    """Return 64 bits per value, for comparing with others of the same seed; not for storing.

    Args:
        values: Text, int64 or float64, without nulls.
        seed: Another seed gives other fingerprints, should two values have the same.
    """
    if not pa.types.is_string(values.type):
        return mix64(values.to_numpy(zero_copy_only=False).view(np.uint64) ^ np.uint64(seed))
    offsets, data = text_buffers(values)
    starts, lengths = offsets[:-1], np.diff(offsets)
    words = np.lib.stride_tricks.sliding_window_view(np.concatenate([data, np.zeros(8, np.uint8)]), 8)
    state = mix64(lengths.astype(np.uint64) + np.uint64((seed * _GAMMA) & _MASK))
    alive = np.flatnonzero(lengths > 0)
    done = 0
    while alive.size:
        left = lengths[alive] - done
        word = np.ascontiguousarray(words[starts[alive] + done]).view("<u8").ravel()
        state[alive] = mix64(state[alive] ^ (word & _FIRST_BYTES[np.minimum(left, 8)]))
        done += 8
        alive = alive[left > 8]
    return state


_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)


def text_buffers(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return where each text begins and ends, and all their bytes; offsets begin with 0."""
    _, offsets, data = values.buffers()
    if len(values) == 0 or data is None:
        return np.zeros(len(values) + 1, np.int64), np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
    return bounds - bounds[0], np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
