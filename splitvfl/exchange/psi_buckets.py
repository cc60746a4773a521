"""Private set intersection bucket by bucket: for more ids than memory holds at once, and to go on after a break.

Every id belongs to one bucket, by its hash, the same at all parties; no record of one bucket can be common with one of
another. Each bucket is intersected by itself (:func:`splitvfl.exchange.psi.intersection`), with secrets, nonces and
orders of its own, and kept when it is done. Parties that meet again go on with the buckets that one of them lacks. New
ids are random over all buckets, and records are in their order: neither tells the bucket.

What buckets reveal beyond :mod:`splitvfl.exchange.psi`: how many ids the other party has in each bucket, in place of
how many it has in all. Of a guessed id that says next to nothing as long as buckets are large, so that buckets of fewer
than :data:`LEAST_IN_BUCKET` ids are refused, the other party's too. In the mode ``padded`` a passive party knows how
many records of each bucket are common, as without buckets it knows it of all. A party may say that it lacks a bucket
which it has: then it is intersected again, as if parties aligned again; in the mode ``padded`` with other dummies, and
who has seen both lists of the bucket can tell most of them.

Messages, before those of each bucket:

================  ==================  ========================================================================
kind              from                payload
================  ==================  ========================================================================
``agreement``     both                the terms, see :mod:`splitvfl.exchange.handshake`
``buckets``       both                int64 ``(buckets,)``: how many records the sender has in each
``done``          both                uint8 ``(buckets, 32)``: SHA-256 of the new ids of each bucket that is done;
                                      zeros of others
``left``          active              uint8 ``(buckets,)``: 1 for each bucket that is to be intersected
================  ==================  ========================================================================

After the last bucket both confirm the whole order, as for one set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from splitvfl.crypto.hashed_points import check_library
from splitvfl.data.id_column import DIGEST_BYTES, Digests, order_digest
from splitvfl.errors import DataError, ProtocolError
from splitvfl.exchange.handshake import agreement
from splitvfl.exchange.psi import (
    DUMMY_ROW,
    Aligned,
    AlignmentProgress,
    Rows,
    Terms,
    check_common,
    confirm,
    intersection,
    swap,
)
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.messages import Message

LEAST_IN_BUCKET = 10_000
"""Records that every party must have in each bucket."""

_HASH_BYTES = 32
# Where in an id's digest its bucket stands: the last eight bytes. Nothing else is made of them alone.
_BUCKET_PART = slice(DIGEST_BYTES - 8, DIGEST_BYTES)


def bucket_of(digests: Digests, buckets: int) -> npt.NDArray[np.int64]:
    """Return the bucket of each id, ``(n,)`` int64 from 0: the last 8 bytes of its digest, little-endian, modulo.

    It does not depend on the shard of the id, which follows from another hash.

    Args:
        digests: :func:`splitvfl.data.id_column.id_digest` of each, ``(n, 64)`` uint8.
        buckets: How many there are.
    """
    words = np.ascontiguousarray(digests[:, _BUCKET_PART]).view("<u8")[:, 0]
    return (words % np.uint64(buckets)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class DoneBucket:
    """What is kept of a bucket.

    Attributes:
        rows: As :attr:`splitvfl.exchange.psi.Aligned.rows`, of the party's whole file.
        ids: New ids, ascending.
        shared: At the active party, records of the bucket in common with each passive party.
    """

    rows: Rows
    ids: Rows
    shared: Mapping[str, int] = field(default_factory=dict)


class BucketStore(Protocol):
    """One party's ids, bucket by bucket, and what has been found of them."""

    @property
    def sizes(self) -> Rows:
        """How many records the party has in each bucket, ``(buckets,)``, int64."""
        ...

    def read(self, number: int) -> tuple[Rows, Digests]:
        """Return the rows of a bucket in the party's files, and the digests of their ids, all different."""
        ...

    def done(self, number: int) -> DoneBucket | None:
        """Return what is kept of a bucket, if it is done."""
        ...

    def keep(self, number: int, found: DoneBucket) -> None:
        """Keep what was found of a bucket, whatever happens next."""
        ...


def align_in_buckets(
    party: str,
    peers: Sequence[str],
    store: BucketStore,
    terms: Terms,
    *,
    threads: int | None = None,
    progress: AlignmentProgress | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Half:
    """Return one party's half of an alignment in buckets; its result is :class:`~splitvfl.exchange.psi.Aligned`.

    Args:
        party: The party's name.
        peers: At the active party, all passive parties; at a passive party, the active one.
        store: Its ids, and what is done.
        terms: What is agreed on, the number of buckets among it; the most records are those of a bucket.
        threads: Threads that compute. Default: as many as there are cores.
        progress: Called with the points computed so far, and those to be computed in all.
        notify: Told in one line what happens, for a person.

    Raises:
        DataError: If a party has too few or too many records in a bucket, nothing is common, or terms differ.
        CryptoError: If libsodium takes points from outside the group.
        ProtocolError: If a peer sends what has no place here.
    """
    check_library()
    _check_sizes(party, store.sizes, terms)  # before anybody is met
    return _aligned(party, tuple(peers), store, terms, threads, progress, notify)


def _aligned(
    party: str,
    peers: tuple[str, ...],
    store: BucketStore,
    terms: Terms,
    threads: int | None,
    progress: AlignmentProgress | None,
    notify: Callable[[str], None],
) -> Half:
    own = store.sizes
    yield from agreement(party, peers, terms.agreed())
    inbox = yield from swap(party, "buckets", dict.fromkeys(peers, own))
    sizes = {peer: inbox[peer].payload.numpy() for peer in peers}
    for peer, theirs in sizes.items():
        _check_sizes(peer, theirs, terms)
    left = yield from _agree_on_left(party, peers, store, terms)
    if len(left) < terms.buckets:
        notify(f"{terms.buckets - len(left)} of {terms.buckets} buckets were done before; going on with the others")
    counted = _Counted(progress, sum(int(own[number]) for number in left) * len(peers), sizes, left)
    for place, number in enumerate(left, start=1):
        rows, digests = store.read(number)
        here = {peer: int(theirs[number]) for peer, theirs in sizes.items()}
        found: Aligned = yield from intersection(
            party,
            peers,
            digests,
            here,
            terms,
            threads=threads,
            progress=counted.of_next(len(digests), here),
            taken=_ids(store, terms.buckets, but=number),
        )
        in_file = np.where(found.rows == DUMMY_ROW, DUMMY_ROW, rows[np.maximum(found.rows, 0)])
        store.keep(number, DoneBucket(in_file, found.ids, found.shared))
        notify(f"bucket {place} of {len(left)}: {len(found.ids):,} records")
    whole = _joined(party, peers, store, terms, {party: own, **sizes})
    yield from confirm(party, peers, whole.ids)
    return whole


def _check_sizes(party: str, sizes: Rows, terms: Terms) -> None:
    """Refuse buckets that say too much of the ids in them, or take too much memory.

    Raises:
        DataError: If there are such.
    """
    number = int(sizes.argmin())
    if sizes[number] < LEAST_IN_BUCKET:
        raise DataError(
            f"{party} has {sizes[number]} records in bucket {number} of {terms.buckets}; expected {LEAST_IN_BUCKET:,} "
            "at least, as their number is told: all parties take fewer buckets (--buckets)"
        )
    if int(sizes.max()) > terms.most_records:
        raise DataError(
            f"{party} has {int(sizes.max()):,} records in a bucket; expected {terms.most_records:,} at most: all "
            "parties take more buckets (--buckets)"
        )


def _agree_on_left(party: str, peers: tuple[str, ...], store: BucketStore, terms: Terms) -> Half:
    """Return the numbers of the buckets that are not done alike at all parties: the active party says which."""
    own = np.zeros((terms.buckets, _HASH_BYTES), np.uint8)
    for number in range(terms.buckets):
        done = store.done(number)
        if done is not None:
            own[number] = np.frombuffer(bytes.fromhex(order_digest(done.ids)), np.uint8)
    inbox = yield from swap(party, "done", dict.fromkeys(peers, own))
    held: npt.NDArray[np.bool_] = np.any(own, axis=1)
    if party == terms.active:
        for peer in peers:
            held &= (inbox[peer].payload.numpy() == own).all(axis=1)
        left = torch.from_numpy((~held).astype(np.uint8))
        yield Outbox(send=tuple(Message(party, peer, "left", 0, left) for peer in peers))
        return np.flatnonzero(~held).tolist()
    wait = Expected(terms.active, "left", 0, (torch.uint8,), (terms.buckets,))
    left = (yield Outbox(wait=(wait,)))[terms.active].payload
    if int(left.max()) > 1 or not held[left.numpy() == 0].all():
        raise ProtocolError(f"{terms.active} leaves out buckets that {party} has not done")
    return left.nonzero()[:, 0].tolist()


def _ids(store: BucketStore, buckets: int, *, but: int) -> Rows:
    """Return the new ids of all buckets that are done, but for one."""
    found = [store.done(number) for number in range(buckets) if number != but]
    return np.concatenate([np.empty(0, np.int64), *(one.ids for one in found if one is not None)])


def _joined(party: str, peers: tuple[str, ...], store: BucketStore, terms: Terms, sizes: Mapping[str, Rows]) -> Aligned:
    """Return all buckets as one alignment, ascending by new id.

    Raises:
        DataError: If nothing is common.
        ProtocolError: If an id is there twice.
    """
    found = []
    for number in range(terms.buckets):
        one = store.done(number)
        assert one is not None, "all are done"
        found.append(one)
    rows, ids = np.concatenate([one.rows for one in found]), np.concatenate([one.ids for one in found])
    check_common(party, peers, int((rows != DUMMY_ROW).sum()))
    order = np.argsort(ids, kind="stable")
    rows, ids = rows[order], ids[order]
    if (ids[1:] == ids[:-1]).any():
        raise ProtocolError(
            f"{terms.active} sent an id in two buckets; remove the folders of buckets at all parties, and align anew"
        )
    shared: dict[str, int] = {}
    for one in found:
        for peer, count in one.shared.items():
            shared[peer] = shared.get(peer, 0) + count
    whole = {name: int(counts.sum()) for name, counts in sizes.items()}
    return Aligned(rows=rows, ids=ids, digest=order_digest(ids), sizes=whole, shared=shared)


class _Counted:
    """Points computed in all buckets together."""

    def __init__(
        self, progress: AlignmentProgress | None, own: int, sizes: Mapping[str, Rows], left: Sequence[int]
    ) -> None:
        self._progress = progress
        self._total = own + sum(int(theirs[number]) for theirs in sizes.values() for number in left)
        self._before = 0

    def of_next(self, own: int, sizes: Mapping[str, int]) -> AlignmentProgress | None:
        """Return what is told of the next bucket's points."""
        if self._progress is None:
            return None
        tell, before, total = self._progress, self._before, self._total
        self._before += own * len(sizes) + sum(sizes.values())
        return lambda done, of: tell(before + done, total)
