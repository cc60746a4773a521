"""How often each record was scored, under names that tell nothing to who lacks a key.

A record is counted under its *mark*: 64 bits of AES under a secret key of the folder, of the number or the hash that
its id is. Ids can be guessed, and their plain hashes found by trying; marks only by who has the key. Two of n records
have one mark with a chance of about n² / 2⁶⁵ (three in a million for ten million records), and are counted together
then: too often, never too rarely.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from splitvfl.data.id_column import id_numbers, normalised, whole_number

Marks = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Forms = npt.NDArray[np.int64]

# What the number of a record is: itself, the hash of a text, or a row of a file without ids.
_NUMBER, _TEXT, _ROW = 0, 1, 2
_MOST_RECENT: Final = 1 << 18


def record_forms(names: pa.Array, *, rows: bool) -> Forms:
    """Return what tells records apart, ``(n, 2)`` int64, alike whether ids come as numbers or as text.

    Blanks around an id and its letter case do not count, whatever the parties compare: two ids that differ in no more
    are counted as one record.

    Args:
        names: Ids, whole numbers or text.
        rows: Whether they are no ids, but numbers of rows.
    """
    if pa.types.is_integer(names.type) and not pa.types.is_uint64(names.type):  # some of these are too large for one
        numbers = names.to_numpy(zero_copy_only=False).astype(np.int64)
        return np.stack([np.full(len(numbers), _ROW if rows else _NUMBER), numbers], axis=1)
    written = [normalised(str(name), "folded") for name in names.to_pylist()]
    whole = np.array([whole_number(name) is not None for name in written], bool)
    return np.stack([np.where(whole, _NUMBER, _TEXT), id_numbers(written)], axis=1).astype(np.int64)


def marks_of(forms: Forms, key: bytes) -> Marks:
    """Return the marks of records, ``(n,)``."""
    own = hashlib.blake2b(b"marks", key=key, digest_size=16).digest()
    # One block for each record, and no two records have the same: in this mode AES is what it is, a permutation that
    # nobody without the key can tell from a random one.
    encryptor = Cipher(algorithms.AES(own), modes.ECB()).encryptor()
    blocks = encryptor.update(np.ascontiguousarray(forms, "<i8").tobytes()) + encryptor.finalize()
    return np.frombuffer(blocks, "<u8")[::2].astype(np.uint64)


def rank_within(marks: Marks) -> Counts:
    """Return for each place how often its mark has come so far, itself included: 1 at the first, ``(n,)``."""
    order = np.argsort(marks, kind="stable")
    ordered = marks[order]
    starts = _starts(ordered)
    ranks = np.empty(len(marks), np.int64)
    ranks[order] = np.arange(len(marks)) - np.repeat(starts, np.diff(starts, append=len(marks))) + 1
    return ranks


class RecordCounts:
    """How often each mark has come. Takes 16 bytes a record; a look-up of a few in ten million takes microseconds."""

    def __init__(self) -> None:
        self._marks, self._counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._recent: Counter[int] = Counter()
        self._waiting: list[Marks] = []

    def add(self, marks: Marks) -> None:
        """Count them."""
        self._waiting.append(marks)

    def of(self, marks: Marks) -> Counts:
        """Return how often each of them has come, ``(n,)``."""
        self._settle()
        places = np.searchsorted(self._marks, marks)
        inside = np.minimum(places, max(len(self._marks) - 1, 0))
        found = self._marks[inside] == marks if len(self._marks) else np.zeros(len(marks), bool)
        counts = np.where(found, self._counts[inside], 0) if len(self._marks) else np.zeros(len(marks), np.int64)
        recent = self._recent.get
        return counts + np.array([recent(mark, 0) for mark in marks.tolist()], np.int64)

    def _settle(self) -> None:
        """Sort what came since: a few into a table, many into the sorted whole."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if len(self._recent) + sum(map(len, waiting)) <= _MOST_RECENT:
            self._recent.update(np.concatenate(waiting).tolist())
            return
        found = _counted(np.concatenate(waiting))
        recent_marks = np.fromiter(self._recent, np.uint64, len(self._recent))
        recent_counts = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        self._recent = Counter()
        if not len(self._marks) and not len(recent_marks):
            self._marks, self._counts = found
            return
        marks = np.concatenate([self._marks, recent_marks, found[0]])
        order = np.argsort(marks)
        marks, counts = marks[order], np.concatenate([self._counts, recent_counts, found[1]])[order]
        starts = _starts(marks)
        self._marks, self._counts = marks[starts], np.add.reduceat(counts, starts)


def most_often(marks: Marks) -> tuple[int, int]:
    """Return how many different marks there are, and how often the one that came most often did; 0 and 0 of none."""
    _, counts = _counted(marks)
    return len(counts), int(counts.max(initial=0))


def _counted(marks: Marks) -> tuple[Marks, Counts]:
    """Return the different ones, in ascending order, and how often each is there."""
    ordered = np.sort(marks)
    starts = _starts(ordered)
    return ordered[starts], np.diff(starts, append=len(ordered)).astype(np.int64)


def _starts(ordered: Marks) -> Counts:
    """Return where something new begins."""
    new = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return np.flatnonzero(new)
