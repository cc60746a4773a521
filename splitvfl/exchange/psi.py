"""Private set intersection of record ids, as conversations.

The active party intersects with each passive party by itself, so what follows is about one pair. Each id is hashed to a
point ``H(x)`` (:mod:`~splitvfl.crypto.hashed_points`). The active party draws a secret scalar ``a`` and sends
``a·H(x)``, the passive party draws ``b`` and sends ``b·H(y)``, both in an order of their own that is drawn anew. The
passive party returns ``b·a·H(x)``, the active party computes ``a·b·H(y)``: the points that are equal are ids that both
hold. Whoever lacks a secret sees random points; trying out guessed ids needs the other's secret.

Ids are hashed with a *context*, a hash of both parties' names and of a nonce of each, drawn for this pair and this
alignment (:func:`~splitvfl.crypto.hashed_points.pair_context`). So one id is another point, unrelated to the first, in
every pair and at every alignment: an active party that passes one passive party's points on to another, or sends points
that it has seen before, compares what cannot be equal. It rests on the passive parties' own nonces. Names alone would
not do, as a party chooses its own, and the active party's nonce would not do, as it may send the same one twice.
Secrets and orders are drawn anew for every pair, too.

What each mode reveals, beside the number of records that each of a pair holds:

``both``
    The active party learns which of its records each passive party holds; every passive party learns which of its
    records *all* parties hold.
``padded``
    The active party learns the same. A passive party learns a list in which a share ``1 / (1 + padding)`` of the
    records is held by all; the others are *dummies*, drawn by the active party from those that it does not hold (all of
    these, where they are fewer than wanted). A record outside the list is not held by all.
``size-only``
    Answers come back shuffled: the active party learns how many records it has in common with each passive party, and
    tells each its own number. Nobody learns which.

About records that the active party does not hold, it learns nothing in any mode: not which of them two passive parties
both have, and not how many. Of its own, it learns what each passive party has, and so what several have, in the modes
``both`` and ``padded``; in ``size-only`` it learns one number for each pair, and none for several together.

What it does not promise. Parties keep to the protocol, but look at what they see. One that does not can *stuff its
set*: whoever enters the id of a person learns whether the other has it, as in any intersection; in the modes
``size-only`` and ``padded`` a set of one real id reveals the same. An active party that takes another secret for each
point learns which records are common in the mode ``size-only`` too. Agree on the number of records that is to be
expected, and align seldom: two padded alignments of the same records have few dummies in common. A passive party takes
the active party's word for what is common, and two passive parties that show each other their ids know the dummies.

Messages, in this order; a piece is a message of 1 MiB at most, and its number is the message's step:

================  ==================  ========================================================================
kind              from                payload
================  ==================  ========================================================================
``agreement``     both                the terms, see :mod:`splitvfl.exchange.handshake`
``records``       both                int64 ``(1,)``: how many records the sender has
``nonce``         both                uint8 ``(32,)``: random, for this pair and this alignment
``points``        both, in turn       uint8 ``(n, 32)``, pieces: own points times own secret
``answers``       passive             uint8 ``(n, 32)``, pieces: the active party's points times both secrets
``common``        active              int64 ``(1,)``: how many records are common, dummies included
``order``         active              int64 ``(n, 2)``, pieces: place among the receiver's points, new id; ascending
``digest``        both                uint8 ``(32,)``: SHA-256 of the new ids
================  ==================  ========================================================================

In the mode ``size-only`` the conversation ends with ``common``.

Source: Huberman, Franklin and Hogg, EC 1999 (the protocol); Meadows, S&P 1986; De Cristofaro, Gasti and Tsudik, CANS
2012, figure 1 (``size-only``).
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch

from splitvfl.crypto.hashed_points import (
    POINT_BYTES,
    Points,
    check_library,
    hashed,
    multiplied,
    pair_context,
    random_scalar,
)
from splitvfl.data.id_column import DIGEST_BYTES, Case, Digests, first_repeat, order_digest
from splitvfl.errors import ArgumentError, DataError, ProtocolError
from splitvfl.exchange.handshake import SHARD, agreement
from splitvfl.messaging.conversation import Expected, Half, Inbox, Outbox
from splitvfl.messaging.messages import Message

Mode = Literal["both", "size-only", "padded"]
Rows = npt.NDArray[np.int64]
AlignmentProgress = Callable[[int, int], None]

DUMMY_ROW = -1
"""The row of a record that the active party does not hold."""

NONCE_BYTES = 32
# A message of points is 1 MiB, and one of the order half as many entries of twice the size.
PIECE_POINTS = (1 << 20) // POINT_BYTES
PIECE_ENTRIES = (1 << 20) // 16
# Points between two calls of the progress, and handed to a thread at once.
_SLICE = 2048
_VERSION = 2
_MOST_PADDING = 100.0

MOST_BUCKETS = 1 << 12
"""Into how many buckets ids are divided at most."""

_Result = TypeVar("_Result")
_Part = Generator[Outbox, Inbox, _Result]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of an alignment, which must be equal at both ends.

    Attributes:
        active: Name of the active party: the one that learns which records are common, and orders them.
        mode: ``"both"``, ``"size-only"`` or ``"padded"``; see :mod:`splitvfl.exchange.psi`.
        padding: Dummies per common record, in (0, 100]; for the mode ``"padded"`` only.
        case: Whether letters of ids are ``"kept"`` as they are, or ``"folded"``, so that case does not count.
        shards: Which shards of how many are aligned, in words (:class:`splitvfl.data.sharding.HeldShards`); empty where
            all records are.
        most_records: Parties with more records are refused. 32 bytes are held for each record of a peer, of one bucket.
        buckets: Into how many parts ids are divided by their hash, each intersected by itself:
            :mod:`splitvfl.exchange.psi_buckets`. 1: none.

    Raises:
        ArgumentError: If a setting is out of its range, or padding and mode do not go together.
    """

    active: str
    mode: Mode = "both"
    padding: float = 0.0
    case: Case = "kept"
    shards: str = ""
    most_records: int = 1 << 24
    buckets: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, allowed in (("mode", Mode), ("case", Case)):
            if getattr(self, name) not in get_args(allowed):
                raise ArgumentError(
                    f"expected {name} one of {', '.join(get_args(allowed))}, got {getattr(self, name)!r}"
                )
        if self.mode == "padded" and not 0 < self.padding <= _MOST_PADDING:
            raise ArgumentError(
                f"mode padded needs dummies per common record: expected padding above 0, up to {_MOST_PADDING:g}, "
                f"got {self.padding}"
            )
        if self.mode != "padded" and self.padding != 0:
            raise ArgumentError(f"padding {self.padding} is for mode padded, and the mode is {self.mode}")
        if self.most_records < 1:
            raise ArgumentError(f"expected most_records from 1, got {self.most_records}")
        if not 1 <= self.buckets <= MOST_BUCKETS:
            raise ArgumentError(f"expected buckets from 1 to {MOST_BUCKETS}, got {self.buckets}")
        if self.buckets > 1 and self.mode == "size-only":
            raise ArgumentError(
                f"mode size-only tells how many records are common, and with {self.buckets} buckets would tell it of "
                "each of them; take one bucket"
            )

    def agreed(self) -> dict[str, object]:
        """Return what is compared, in the words in which a difference is reported."""
        return {
            "alignment version": _VERSION,
            "active party": self.active,
            "mode": self.mode,
            "padding": self.padding,
            "letter case of ids": self.case,
            "most records": self.most_records,
            **({} if self.buckets == 1 else {"buckets": self.buckets}),
            # Not said where there are none: older versions know of none.
            **({SHARD: self.shards} if self.shards else {}),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Aligned:
    """The result of an alignment: all parties have the same ids in the same order.

    Attributes:
        rows: Row of each common record in the party's own file, from 0; :data:`DUMMY_ROW` where the active party has
            none. ``(records,)``, int64.
        ids: New names of the records: random numbers from 0 to 2⁶³ − 1, ascending. ``(records,)``, int64.
        digest: SHA-256 of the ids, in hexadecimal.
        sizes: Number of records that each party holds, by name.
        shared: At the active party, records in common with each passive party, by name; empty at a passive party.
    """

    rows: Rows
    ids: Rows
    digest: str
    sizes: Mapping[str, int]
    shared: Mapping[str, int] = field(default_factory=dict)

    @property
    def dummies(self) -> int:
        """Records that the active party does not hold; 0 at a passive party, which cannot tell."""
        return int((self.rows == DUMMY_ROW).sum())


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The result of an alignment in the mode ``"size-only"``.

    Attributes:
        sizes: Number of records that each party holds, by name.
        shared: Records in common with each peer, by name.
    """

    sizes: Mapping[str, int]
    shared: Mapping[str, int]


def align(
    party: str,
    peers: Sequence[str],
    digests: Digests,
    terms: Terms,
    *,
    threads: int | None = None,
    progress: AlignmentProgress | None = None,
) -> Half:
    """Return one party's half of an alignment; its result is :class:`Aligned`, or :class:`Overlap` under ``size-only``.

    Args:
        party: The party's name.
        peers: At the active party, all passive parties; at a passive party, the active one.
        digests: A hash of each record's id, in the file's order, ``(records, 64)`` uint8, all different: see
            :func:`splitvfl.data.id_column.id_digest`.
        terms: What is agreed on.
        threads: Threads that compute. Default: as many as there are cores.
        progress: Called with the points computed so far, and those to be computed in all.

    Raises:
        ArgumentError: If digests have another form, or the peers are not those that the role has.
        DataError: If there are no records, more than agreed, two alike or none in common; or if terms differ.
        CryptoError: If libsodium takes points from outside the group: see :func:`check_library`.
        ProtocolError: If a peer sends what has no place here: no point of the group, a point twice, another number.
    """
    _check(party, peers, digests, terms)
    check_library()
    if terms.buckets > 1:
        raise ArgumentError(f"{terms.buckets} buckets are intersected one by one, and not as one set")
    return _introduced(party, tuple(peers), digests, terms, threads, progress)


def _introduced(
    name: str,
    peers: tuple[str, ...],
    digests: Digests,
    terms: Terms,
    threads: int | None,
    progress: AlignmentProgress | None,
) -> Half:
    """Compare the terms, tell each other how many records there are, and intersect."""
    yield from agreement(name, peers, terms.agreed())
    inbox = yield from swap(name, "records", dict.fromkeys(peers, _number(len(digests))))
    sizes = {peer: _read_number(inbox[peer], range(1, terms.most_records + 1)) for peer in peers}
    return (yield from intersection(name, peers, digests, sizes, terms, threads=threads, progress=progress))


def intersection(
    name: str,
    peers: tuple[str, ...],
    digests: Digests,
    sizes: Mapping[str, int],
    terms: Terms,
    *,
    threads: int | None = None,
    progress: AlignmentProgress | None = None,
    taken: Rows | None = None,
) -> Half:
    """Return one party's half of the intersection of one set with each peer, when terms and sizes are known.

    Args:
        name: The party's name.
        peers: As for :func:`align`.
        digests: As for :func:`align`.
        sizes: How many records each peer has.
        terms: What was agreed on.
        threads: As for :func:`align`.
        progress: As for :func:`align`.
        taken: Ids that are given to records of other sets already; then nothing need be common. ``None``: this is the
            only set, and something must be.

    Raises:
        DataError: If nothing is common, and something must be.
        ProtocolError: As for :func:`align`.
    """
    work = _Work(peers, digests, threads or os.cpu_count() or 1, progress)
    work.total += sum(sizes.values())
    half = _active if name == terms.active else _passive
    return half(name, peers, work, terms, dict(sizes), taken)


def _check(party: str, peers: Sequence[str], digests: Digests, terms: Terms) -> None:
    if digests.dtype != np.uint8 or digests.ndim != 2 or digests.shape[1] != DIGEST_BYTES:
        raise ArgumentError(f"expected digests of shape (records, {DIGEST_BYTES}) in uint8, got {digests.shape}")
    if party != terms.active and list(peers) != [terms.active]:
        raise ArgumentError(f"{party} is passive and talks to {terms.active} alone, got {', '.join(peers) or 'nobody'}")
    if not peers or party in peers or len(set(peers)) < len(peers):
        raise ArgumentError(f"expected other parties with different names beside {party}, got {list(peers)}")
    if not 0 < len(digests) <= terms.most_records:
        raise DataError(f"{party} has {len(digests)} records to align; expected 1 to {terms.most_records}")
    if first_repeat(digests) is not None:
        raise DataError(f"{party} has two records with the same id; ids must differ")


@dataclass(frozen=True)
class _Pair:
    """A party's state for one peer alone: a secret, a nonce, and an order of its records."""

    secret: bytes
    nonce: bytes
    row_of: Rows


class _Work:
    """One party's pairs of one alignment, and what it computes."""

    def __init__(
        self, peers: Sequence[str], digests: Digests, threads: int, progress: AlignmentProgress | None
    ) -> None:
        self.digests = digests
        self.pairs = {
            peer: _Pair(random_scalar(), secrets.token_bytes(NONCE_BYTES), random_order(len(digests))) for peer in peers
        }
        self.total = len(digests) * len(peers)
        self._threads = threads
        self._progress = progress
        self._done = 0

    def own(self, peer: str, context: bytes, piece: int) -> Points:
        """Return one piece of ``secret·H(id)`` for a peer, in its pair's order; empty after the last piece."""
        pair = self.pairs[peer]
        rows = pair.row_of[piece * PIECE_POINTS : (piece + 1) * PIECE_POINTS]
        return self._spread(lambda digests: multiplied(hashed(digests, context), pair.secret), self.digests[rows])

    def other(self, peer: str, points: Points) -> Points:
        """Return ``secret·point`` for points that a peer has sent.

        Raises:
            ProtocolError: If one of them is no point of the prime-order group, or its zero.
        """
        return self._spread(partial(multiplied, scalar=self.pairs[peer].secret), points)

    def _spread(self, work: Callable[[Points], Points], rows: Points) -> Points:
        """Do the work of many rows in threads: libsodium's calls let others run meanwhile."""
        parts = [rows[start : start + _SLICE] for start in range(0, len(rows), _SLICE)]
        done = [np.empty((0, POINT_BYTES), np.uint8)]
        with ThreadPoolExecutor(self._threads) as pool:
            for part in pool.map(work, parts):
                done.append(part)
                self._done += len(part)
                if self._progress is not None:
                    self._progress(self._done, self.total)
        return np.concatenate(done)


def random_order(count: int) -> Rows:
    """Return the numbers from 0 to ``count`` − 1 in a random order, drawn from the operating system."""
    return np.argsort(np.frombuffer(secrets.token_bytes(8 * count), np.uint64), kind="stable")


def random_ids(count: int, taken: Rows | None = None) -> Rows:
    """Return different random numbers from 0 to 2⁶³ − 1, ascending, drawn from the operating system.

    Args:
        count: How many.
        taken: Numbers that are not to be among them.
    """
    drawn: Rows = np.zeros(0, np.int64)
    while len(drawn) < count:
        more = np.frombuffer(secrets.token_bytes(8 * (count - len(drawn))), np.uint64) >> np.uint64(1)
        drawn = np.union1d(drawn, more.astype(np.int64))
        drawn = drawn if taken is None else np.setdiff1d(drawn, taken, assume_unique=True)
    return drawn


def _active(
    name: str, passives: tuple[str, ...], work: _Work, terms: Terms, sizes: dict[str, int], taken: Rows | None
) -> Half:
    theirs = yield from _exchange_points(name, sizes, work, terms)
    answers = yield from _receive_answers(passives, len(work.digests))
    matches = {
        passive: _rows_in_common(work.pairs[passive], answers.pop(passive), theirs.pop(passive)) for passive in passives
    }
    shared = {passive: len(own) for passive, (own, _) in matches.items()}
    everybody = {name: len(work.digests), **sizes}
    if terms.mode == "size-only":
        yield Outbox(send=tuple(_message(name, passive, "common", _number(shared[passive])) for passive in passives))
        return Overlap(sizes=everybody, shared=shared)
    held, places = _joined(matches, len(work.digests))
    common = len(held)
    # Rounded down, few common records would get no dummy at all; and of several sets, one without any that is common
    # would be seen to have none.
    wanted = max(math.ceil(terms.padding * common), int(terms.padding > 0))
    if common or taken is not None:
        held, places = _padded(held, places, matches, sizes, wanted)
    ids = random_ids(len(held), taken)
    yield Outbox(send=tuple(_message(name, passive, "common", _number(len(ids))) for passive in passives))
    if taken is None:
        check_common(name, passives, common)
    yield from _send_order(name, {passive: np.stack([place, ids], axis=1) for passive, place in places.items()})
    yield from confirm(name, passives, ids)
    return Aligned(rows=held, ids=ids, digest=order_digest(ids), sizes=everybody, shared=shared)


def _passive(
    name: str, peers: tuple[str, ...], work: _Work, terms: Terms, sizes: dict[str, int], taken: Rows | None
) -> Half:
    (active,) = peers
    theirs = yield from _exchange_points(name, sizes, work, terms)
    answers = theirs.pop(active)
    if terms.mode == "size-only":
        # In the order in which they came, they would tell which of its records are common.
        answers = answers[random_order(len(answers))]
    for number, piece in enumerate(_pieces(len(answers), PIECE_POINTS)):
        yield Outbox(send=(_message(name, active, "answers", answers[piece], number),))
    everybody = {name: len(work.digests), **sizes}
    most = len(work.digests) if terms.mode != "size-only" else min(everybody.values())
    common = yield from _receive_number(active, "common", range(most + 1))
    if terms.mode == "size-only":
        return Overlap(sizes=everybody, shared={active: common})
    if taken is None:
        check_common(name, peers, common)
    positions, ids = yield from _receive_order(active, common, len(work.digests))
    yield from confirm(name, peers, ids)
    return Aligned(rows=work.pairs[active].row_of[positions], ids=ids, digest=order_digest(ids), sizes=everybody)


def _agree_on_contexts(name: str, peers: Sequence[str], work: _Work, terms: Terms) -> _Part[dict[str, bytes]]:
    """Exchange nonces, and return the context of each pair."""
    nonces = {peer: np.frombuffer(work.pairs[peer].nonce, np.uint8) for peer in peers}
    inbox = yield from swap(name, "nonce", nonces)
    contexts = {}
    for peer in peers:
        own, other = work.pairs[peer].nonce, inbox[peer].payload.numpy().tobytes()
        is_active = name == terms.active
        passive, both = (peer, (own, other)) if is_active else (name, (other, own))
        contexts[peer] = pair_context(terms.active, passive, both)
    return contexts


def _exchange_points(name: str, sizes: Mapping[str, int], work: _Work, terms: Terms) -> _Part[dict[str, Points]]:
    """Send the own points, piece by piece, and return those of each peer times the own secret, in its order."""
    contexts = yield from _agree_on_contexts(name, tuple(sizes), work, terms)
    found: dict[str, list[Points]] = {peer: [] for peer in sizes}
    for piece in range(len(_pieces(max(len(work.digests), *sizes.values()), PIECE_POINTS))):
        own = {peer: work.own(peer, context, piece) for peer, context in contexts.items()}
        sends = tuple(_message(name, peer, "points", points, piece) for peer, points in own.items() if len(points))
        waits = tuple(
            Expected(peer, "points", piece, (torch.uint8,), (rows, POINT_BYTES))
            for peer, size in sizes.items()
            if (rows := min(PIECE_POINTS, size - piece * PIECE_POINTS)) > 0
        )
        inbox = yield Outbox(send=sends, wait=waits)
        for awaited in waits:
            found[awaited.sender].append(_times_secret(work, inbox[awaited.sender]))
    return {peer: _all_different(peer, "points", parts) for peer, parts in found.items()}


def _times_secret(work: _Work, message: Message) -> Points:
    try:
        return work.other(message.sender, message.payload.numpy())
    except ProtocolError as error:
        raise ProtocolError(f"{message.sender} sent points of which {error} (piece {message.step})") from error


def _receive_answers(passives: tuple[str, ...], count: int) -> _Part[dict[str, Points]]:
    found: dict[str, list[Points]] = {passive: [] for passive in passives}
    for number, piece in enumerate(_pieces(count, PIECE_POINTS)):
        shape = (piece.stop - piece.start, POINT_BYTES)
        wait = tuple(Expected(other, "answers", number, (torch.uint8,), shape) for other in passives)
        inbox = yield Outbox(wait=wait)
        for passive in passives:
            found[passive].append(inbox[passive].payload.numpy())
    return {passive: _all_different(passive, "answers", parts) for passive, parts in found.items()}


def _all_different(peer: str, what: str, parts: list[Points]) -> Points:
    points = np.concatenate(parts)
    parts.clear()
    repeat = first_repeat(points)
    if repeat is not None:
        raise ProtocolError(f"{peer} sent the same of its {what} twice, as numbers {repeat[0]} and {repeat[1]}")
    return points


def _rows_in_common(pair: _Pair, answers: Points, theirs: Points) -> tuple[Rows, Rows]:
    """Return which own rows a peer has too, and where each stands among its points; no point is in either twice."""
    words = np.concatenate([answers, theirs]).view("<u8")
    order = np.lexsort(words.T)
    equal = np.flatnonzero((words[order[1:]] == words[order[:-1]]).all(axis=1))
    # The sort is stable: answers come first.
    return pair.row_of[order[equal]], order[equal + 1] - len(answers)


def _joined(matches: Mapping[str, tuple[Rows, Rows]], count: int) -> tuple[Rows, dict[str, Rows]]:
    """Return the active party's rows of the records that all have, and where they stand at each passive one."""
    places = {}
    for passive, (own, other) in matches.items():
        places[passive] = np.full(count, -1, np.int64)
        places[passive][own] = other
    common = np.flatnonzero(np.all([place >= 0 for place in places.values()], axis=0))
    # In the order of the active party's file they would tell that order to the others, and with it labels, if it is
    # sorted by them.
    common = common[random_order(len(common))]
    return common, {passive: place[common] for passive, place in places.items()}


def _padded(
    held: Rows,
    places: Mapping[str, Rows],
    matches: Mapping[str, tuple[Rows, Rows]],
    sizes: Mapping[str, int],
    wanted: int,
) -> tuple[Rows, dict[str, Rows]]:
    """Return the same with dummies among them: records that each passive party has and the active one has not."""
    foreign = {passive: np.setdiff1d(np.arange(sizes[passive]), other) for passive, (_, other) in matches.items()}
    count = min(wanted, *map(len, foreign.values()))
    mixed = random_order(len(held) + count)
    dummies = {passive: rows[random_order(len(rows))[:count]] for passive, rows in foreign.items()}
    return np.append(held, np.full(count, DUMMY_ROW))[mixed], {
        passive: np.append(place, dummies[passive])[mixed] for passive, place in places.items()
    }


def check_common(name: str, peers: tuple[str, ...], common: int) -> None:
    """Check that any record is common.

    Raises:
        DataError: If none is.
    """
    if common == 0:
        raise DataError(
            f"{name} has no record in common with {' and '.join(peers)}; is the id column the same, and are ids "
            "written alike? If only letter case differs, all parties align with --fold-case; leading zeros count"
        )


def _send_order(name: str, entries: Mapping[str, Rows]) -> _Part[None]:
    """Tell each passive party which of its points are common, and their new ids: rows of two, ascending by id."""
    count = len(next(iter(entries.values())))
    for number, piece in enumerate(_pieces(count, PIECE_ENTRIES)):
        yield Outbox(
            send=tuple(_message(name, passive, "order", rows[piece], number) for passive, rows in entries.items())
        )


def _receive_order(active: str, count: int, own: int) -> _Part[tuple[Rows, Rows]]:
    """Return positions among the own points, and new ids.

    Raises:
        ProtocolError: If a position is none, or comes twice, or ids do not ascend from 0.
    """
    parts: list[Rows] = [np.empty((0, 2), np.int64)]
    for number, piece in enumerate(_pieces(count, PIECE_ENTRIES)):
        shape = (piece.stop - piece.start, 2)
        inbox = yield Outbox(wait=(Expected(active, "order", number, (torch.int64,), shape),))
        parts.append(inbox[active].payload.numpy())
    positions, ids = (np.ascontiguousarray(column) for column in np.concatenate(parts).T)
    if ((positions < 0) | (positions >= own)).any() or len(np.unique(positions)) < count:
        raise ProtocolError(f"{active} sent an order that names records of which there is none, or one twice")
    if (ids < 0).any() or (ids[1:] <= ids[:-1]).any():
        raise ProtocolError(f"{active} sent an order whose ids do not ascend from 0")
    return positions, ids


def confirm(name: str, peers: tuple[str, ...], ids: Rows) -> _Part[None]:
    """Compare digests of the order that each party ends with.

    Raises:
        ProtocolError: If one differs.
    """
    digest = np.frombuffer(bytes.fromhex(order_digest(ids)), np.uint8)
    inbox = yield from swap(name, "digest", dict.fromkeys(peers, digest))
    for peer in peers:
        if not np.array_equal(inbox[peer].payload.numpy(), digest):
            raise ProtocolError(f"{name} and {peer} did not end with the same order of records; align again")


def _receive_number(peer: str, kind: str, allowed: range) -> _Part[int]:
    inbox: Inbox = yield Outbox(wait=(Expected(peer, kind, 0, (torch.int64,), (1,)),))
    return _read_number(inbox[peer], allowed)


def _read_number(message: Message, allowed: range) -> int:
    value = int(message.payload[0])
    if value not in allowed:
        raise ProtocolError(
            f"{message.sender} sent {value} as the number of {_MEANING[message.kind]}; expected {allowed.start} to "
            f"{allowed.stop - 1}"
        )
    return value


_MEANING = {"records": "its records", "common": "common records"}


def _pieces(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _message(sender: str, receiver: str, kind: str, rows: Points | Rows, step: int = 0) -> Message:
    return Message(sender, receiver, kind, step, torch.from_numpy(rows.copy()))


def _number(value: int) -> Rows:
    return np.array([value], np.int64)


def swap(name: str, kind: str, told: Mapping[str, Points | Rows]) -> _Part[Inbox]:
    """Tell each peer something, and return what each tells in turn, which has the same form."""
    sent = tuple(_message(name, peer, kind, rows) for peer, rows in told.items())
    forms = [(one.receiver, one.payload.dtype, tuple(one.payload.shape)) for one in sent]
    wait = tuple(Expected(peer, kind, 0, (dtype,), shape) for peer, dtype, shape in forms)
    return (yield Outbox(send=sent, wait=wait))
