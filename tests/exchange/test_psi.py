"""Private set intersection against a plain one, a slow one by other means, and peers that cheat."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitvfl.crypto import hashed_points
from splitvfl.data.id_column import id_digest, order_digest
from splitvfl.errors import ArgumentError, CryptoError, DataError, ProtocolError, SplitVFLError
from splitvfl.exchange import psi
from splitvfl.exchange.psi import Aligned, Overlap, Terms, align
from splitvfl.messaging.conversation import Half, Inbox, Outbox, converse
from splitvfl.messaging.messages import Message

# --- edwards25519 in plain Python, from RFC 8032, section 5.1 and RFC 9380, section 6.7.1

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


def added(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2 % P
    return (
        (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P,
    )


def times(scalar: int, point: Point) -> Point:
    result = (0, 1)
    while scalar:
        if scalar & 1:
            result = added(result, point)
        point, scalar = added(point, point), scalar >> 1
    return result


def root(square: int) -> int | None:
    candidate = pow(square, (P + 3) // 8, P)
    if candidate * candidate % P != square % P:
        candidate = candidate * pow(2, (P - 1) // 4, P) % P
    return candidate if candidate * candidate % P == square % P else None


def encoded(point: Point) -> bytes:
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decoded(data: bytes) -> Point:
    number = int.from_bytes(data, "little")
    y, sign = number & ((1 << 255) - 1), number >> 255
    x = root((y * y - 1) * pow(D * y * y + 1, -1, P) % P)
    assert x is not None
    return (P - x if x & 1 != sign else x, y)


def elligator(half: bytes) -> Point:
    """The point of 32 uniform bytes: Elligator 2 on curve25519, to the Edwards form, sign by the top bit, times 8."""
    number = int.from_bytes(half, "little")
    r, sign = number & ((1 << 255) - 1), number >> 255
    a = 486662
    u = -a * pow(1 + 2 * r * r, -1, P) % P
    if root(u * (u * u + a * u + 1) % P) is None:
        u = (-a - u) % P
    y = (u - 1) * pow(u + 1, -1, P) % P
    x = root((y * y - 1) * pow(D * y * y + 1, -1, P) % P)
    assert x is not None
    return times(8, (P - x if x & 1 != sign else x, y))


SMALL_ORDER = [
    encoded((0, 1)),
    encoded((0, P - 1)),
    bytes(32),
    bytes(31) + b"\x80",
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
]

# --- builders


def digests_of(names: Iterable[str]) -> Any:
    return np.frombuffer(b"".join(map(id_digest, names)), np.uint8).reshape(-1, 64)


def talk(
    names: Mapping[str, list[str]],
    terms: Terms | None = None,
    *,
    record: Callable[[Message], None] | None = None,
    **others: Half,
) -> dict[str, Any]:
    """The first party is active."""
    active, *passives = names
    terms = terms or Terms(active=active)
    halves = {
        name: align(name, passives if name == active else [active], digests_of(own), terms, threads=1)
        for name, own in names.items()
    }
    return converse({**halves, **others}, record=record)


def people(first: int, last: int) -> list[str]:
    return [f"p{number}" for number in range(first, last)]


# --- new ids


def test_new_ids_are_none_of_those_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of numbers from 0 to 7, of which three are taken, all others are drawn."""
    draw = secrets.token_bytes

    def small(count: int) -> bytes:
        return ((np.frombuffer(draw(count), np.uint64) % np.uint64(8)) << np.uint64(1)).tobytes()

    monkeypatch.setattr(secrets, "token_bytes", small)
    assert psi.random_ids(5, np.array([1, 4, 6])).tolist() == [0, 2, 3, 5, 7]


# --- against a plain intersection

NAMES = st.lists(st.integers(0, 30).map(str), unique=True, min_size=1, max_size=20)


@settings(max_examples=30, deadline=None)
@given(NAMES, NAMES)
def test_two_parties_find_what_a_plain_intersection_finds(bank: list[str], telecom: list[str]) -> None:
    common = set(bank) & set(telecom)
    if not common:
        with pytest.raises(DataError, match="no record in common"):
            talk({"bank": bank, "telecom": telecom})
        return
    found = talk({"bank": bank, "telecom": telecom})
    check(found, {"bank": bank, "telecom": telecom}, common)
    assert found["bank"].shared == {"telecom": len(common)}


@settings(max_examples=20, deadline=None)
@given(st.permutations(people(0, 12)), NAMES, NAMES)
def test_three_parties_end_with_the_records_that_all_have(bank: list[str], one: list[str], two: list[str]) -> None:
    parties = {"bank": bank, "shop": [*one, "p3", "p4"], "telecom": ["p4", *two, "p3"]}
    found = talk(parties)
    check(found, parties, {"p3", "p4"})
    assert found["bank"].shared == {"shop": 2, "telecom": 2}


def check(found: Mapping[str, Aligned], files: Mapping[str, list[str]], common: set[str]) -> None:
    orders = {name: [files[name][row] for row in aligned.rows if row >= 0] for name, aligned in found.items()}
    first = next(iter(orders.values()))
    assert sorted(first) == sorted(common)
    assert all(order == first for order in orders.values())
    ids = next(iter(found.values())).ids
    assert (np.diff(ids) > 0).all()
    assert ids.min() >= 0
    for aligned in found.values():
        np.testing.assert_array_equal(aligned.ids, ids)
        assert aligned.digest == order_digest(ids)
        assert aligned.sizes[next(iter(found))] == len(files[next(iter(found))])


def test_pieces_of_messages_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi, "PIECE_POINTS", 7)
    monkeypatch.setattr(psi, "PIECE_ENTRIES", 4)
    monkeypatch.setattr(psi, "_SLICE", 3)
    parties = {"bank": people(0, 50), "shop": people(20, 29), "telecom": people(10, 31)}
    check(talk(parties), parties, set(people(20, 29)))


def test_a_message_is_a_mebibyte() -> None:
    assert psi.PIECE_POINTS * 32 == psi.PIECE_ENTRIES * 16 == 1 << 20


# --- against the group law in plain Python


CONTEXT = psi.pair_context("bank", "telecom", (bytes(32), bytes(range(32))))


def test_points_are_those_of_the_plain_computation() -> None:
    digests = digests_of(["anna", "", "Zoë", "7"])
    hashes = [hashlib.sha512(CONTEXT + bytes(digest)).digest() for digest in digests]
    slow = [encoded(added(elligator(value[:32]), elligator(value[32:]))) for value in hashes]
    assert list(map(bytes, hashed_points.hashed(digests, CONTEXT))) == slow
    scalar = secrets.token_bytes(31) + b"\0"
    number = int.from_bytes(scalar, "little")
    multiples = [encoded(times(number, decoded(point))) for point in slow]
    assert list(map(bytes, hashed_points.multiplied(hashed_points.hashed(digests, CONTEXT), scalar))) == multiples
    assert all(times(L, decoded(point)) == (0, 1) for point in slow)


def test_ids_are_hashed_behind_a_prefix() -> None:
    assert id_digest("anna") == hashlib.sha512(b"splitvfl.align.1\0anna").digest()


# --- what crosses


def crossing(parties: Mapping[str, list[str]], terms: Terms | None = None) -> list[Message]:
    sent: list[Message] = []
    talk(parties, terms, record=sent.append)
    return sent


def shapes(messages: Iterable[Message]) -> list[tuple[str, str, str, tuple[int, ...]]]:
    return [(m.sender, m.receiver, m.kind, tuple(m.payload.shape)) for m in messages]


def test_messages_do_not_depend_on_the_order_of_rows() -> None:
    """Their form is the same, and their points are random: sorted rows do not show as sorted points."""
    one = {"bank": people(0, 40), "telecom": people(20, 60)}
    other = {name: rows[::-1] for name, rows in one.items()}
    assert shapes(crossing(one)) == shapes(crossing(other))
    positions = []
    for _ in range(20):
        entries = [m.payload for m in crossing(one) if m.kind == "order"]
        positions.append(torch.cat(entries)[:, 0].sort().values.double().mean().item())
    # Were points in the file's order, the common ones would always be the telecom's first 20, of mean 9.5; drawn at
    # random their mean is 19.5, with a standard deviation of 1.85.
    assert min(positions) > 9.5 + 1
    assert len(set(positions)) > 5


def test_no_point_crosses_twice_in_two_alignments() -> None:
    """Each alignment has its own secrets: what crossed before cannot be recognised."""
    parties = {"bank": people(0, 5), "telecom": people(0, 5)}
    seen = [
        {bytes(row) for m in crossing(parties) if m.kind in ("points", "answers") for row in m.payload.numpy()}
        for _ in range(2)
    ]
    assert len(seen[0]) == len(seen[1]) == 15
    assert not seen[0] & seen[1]


def test_no_point_is_a_hash_that_could_be_guessed() -> None:
    """Nonces cross, so everybody can compute the hashes: secrets hide them."""
    sent = crossing({"bank": people(0, 5), "telecom": people(0, 5)})
    nonces = {m.sender: m.payload.numpy().tobytes() for m in sent if m.kind == "nonce"}
    context = psi.pair_context("bank", "telecom", (nonces["bank"], nonces["telecom"]))
    guessed = {bytes(row) for row in hashed_points.hashed(digests_of(people(0, 5)), context)}
    crossed = {bytes(row) for m in sent if m.kind == "points" for row in m.payload.numpy()}
    assert len(crossed) == 10
    assert not guessed & crossed


def test_ids_of_common_records_are_new_each_time() -> None:
    parties = {"bank": people(0, 5), "telecom": people(0, 5)}
    assert not set(talk(parties)["bank"].ids) & set(talk(parties)["bank"].ids)


def test_the_order_of_common_records_is_not_that_of_a_file() -> None:
    """It would tell the others how the active party's file is sorted: by labels, say."""
    found = talk({"bank": people(0, 25), "shop": people(0, 30), "telecom": people(3, 40)})
    for aligned in found.values():
        # Drawn at random, 22 rows ascend in one case of 10^21.
        assert (np.diff(aligned.rows) < 0).any()


# --- modes


def test_size_only_tells_sizes_and_nothing_else() -> None:
    parties = {"bank": people(0, 50), "shop": people(45, 60), "telecom": people(10, 30)}
    sent: list[Message] = []
    found = talk(parties, Terms(active="bank", mode="size-only"), record=sent.append)
    assert found["bank"] == Overlap(sizes={"bank": 50, "shop": 15, "telecom": 20}, shared={"shop": 5, "telecom": 20})
    assert found["shop"] == Overlap(sizes={"shop": 15, "bank": 50}, shared={"bank": 5})
    assert not [m for m in sent if m.kind == "order"]


def test_two_alignments_show_the_difference_of_two_lists() -> None:
    """Which is why help and docs/alignment.md ask to align seldom."""
    before, after, theirs = people(0, 20), [*people(0, 5), *people(6, 20), "p31"], people(0, 40)
    names = [
        {theirs[row] for row in talk({"bank": own, "telecom": theirs})["telecom"].rows.tolist()}
        for own in (before, after)
    ]
    assert names[1] - names[0] == {"p31"}
    assert names[0] - names[1] == {"p5"}
    sizes = [
        talk({"bank": own, "telecom": theirs}, Terms(active="bank", mode="size-only"))["telecom"].shared["bank"]
        for own in (before, [*before, "p31"])
    ]
    assert sizes == [20, 21]


def test_size_only_answers_come_back_in_another_order() -> None:
    """To whoever knows the secret, answers in order would be the multiples of the points in their order."""
    drawn: list[bytes] = []

    def remembered() -> bytes:
        drawn.append(hashed_points.crypto_core_ed25519_scalar_reduce(secrets.token_bytes(64)))
        return drawn[-1]

    for mode, in_order in (("both", True), ("size-only", False)):
        drawn.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psi, "random_scalar", remembered)
            sent = crossing({"bank": people(0, 30), "telecom": people(0, 30)}, Terms(active="bank", mode=mode))
        points = next(m.payload.numpy() for m in sent if m.kind == "points" and m.sender == "bank")
        answers = next(m.payload.numpy() for m in sent if m.kind == "answers")
        multiples = hashed_points.multiplied(points, drawn[1])
        assert np.array_equal(multiples, answers) == in_order
        assert sorted(map(bytes, multiples)) == sorted(map(bytes, answers))


def test_padding_adds_records_that_the_active_party_does_not_hold() -> None:
    parties = {"bank": people(0, 40), "shop": people(20, 80), "telecom": people(10, 90)}
    found = talk(parties, Terms(active="bank", mode="padded", padding=0.5))
    bank = found["bank"]
    assert bank.dummies == 10  # half of 20
    assert len(bank.ids) == 30
    dummy = bank.rows == -1
    # Behind all others they could be told from these; drawn at random, they lie there in one case of 30 million.
    assert dummy[:20].any()
    for name in ("shop", "telecom"):
        assert found[name].dummies == 0
        held = [parties[name][row] for row in found[name].rows]
        assert not {held[place] for place in np.flatnonzero(dummy)} & set(parties["bank"])
        assert [held[place] for place in np.flatnonzero(~dummy)] == [parties["bank"][row] for row in bank.rows[~dummy]]
        np.testing.assert_array_equal(found[name].ids, bank.ids)


def test_few_common_records_get_a_dummy_too() -> None:
    found = talk({"bank": people(0, 10), "telecom": people(9, 50)}, Terms(active="bank", mode="padded", padding=0.1))
    assert found["bank"].dummies == 1


def test_there_are_no_more_dummies_than_foreign_records() -> None:
    found = talk({"bank": people(0, 40), "telecom": people(10, 43)}, Terms(active="bank", mode="padded", padding=5.0))
    assert found["bank"].dummies == 3
    assert len(found["telecom"].ids) == 33


# --- what is refused


def test_differing_terms_are_refused_and_named() -> None:
    own, other = digests_of(["a"]), Terms(active="bank", mode="padded", padding=0.2)
    halves = {"bank": align("bank", ["t"], own, Terms(active="bank")), "t": align("t", ["bank"], own, other)}
    with pytest.raises(DataError) as caught:
        converse(halves)
    assert "mode: " in str(caught.value)
    assert "padding: " in str(caught.value)
    assert "letter case" not in str(caught.value)


def test_both_cannot_be_active() -> None:
    own = digests_of(["a"])
    halves = {
        "bank": align("bank", ["t"], own, Terms(active="bank")),
        "t": align("t", ["bank"], own, Terms(active="t")),
    }
    with pytest.raises(DataError, match="active party: "):
        converse(halves)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"mode": "all"}, "expected mode one of both, size-only, padded, got 'all'"),
        ({"case": "lower"}, "expected case one of kept, folded"),
        ({"mode": "padded"}, "expected padding above 0"),
        ({"mode": "padded", "padding": 101.0}, "up to 100, got 101"),
        ({"padding": 0.1}, "is for mode padded"),
        ({"most_records": 0}, "expected most_records from 1"),
    ],
)
def test_terms_out_of_range_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        Terms(active="bank", **settings)


def test_own_input_is_checked() -> None:
    terms = Terms(active="bank", most_records=3)
    with pytest.raises(DataError, match="two records with the same id"):
        align("bank", ["t"], digests_of(["a", "b", "a"]), terms)
    with pytest.raises(DataError, match="has 4 records to align; expected 1 to 3"):
        align("bank", ["t"], digests_of("abcd"), terms)
    with pytest.raises(DataError, match="has 0 records"):
        align("bank", ["t"], digests_of([]), terms)
    with pytest.raises(ArgumentError, match=r"shape \(records, 64\)"):
        align("bank", ["t"], np.zeros((3, 32), np.uint8), terms)
    with pytest.raises(ArgumentError, match="talks to bank alone"):
        align("t", ["shop"], digests_of("a"), terms)
    for peers in ([], ["bank"], ["t", "t"]):
        with pytest.raises(ArgumentError, match="other parties with different names"):
            align("bank", peers, digests_of("a"), terms)


# --- peers that cheat

Twist = Callable[[Message], Message]


def twisted(half: Half, twist: Twist) -> Half:
    """A peer that keeps to the protocol, but for what a twist does to its messages."""
    inbox: Inbox | None = None
    while True:
        try:
            outbox = next(half) if inbox is None else half.send(inbox)
        except StopIteration as stop:
            return stop.value
        inbox = yield Outbox(send=tuple(map(twist, outbox.send)), wait=outbox.wait)


def with_payload(message: Message, payload: torch.Tensor) -> Message:
    return Message(message.sender, message.receiver, message.kind, message.step, payload)


def changed(kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Twist:
    return lambda m: with_payload(m, change(m.payload.clone())) if m.kind == kind else m


def row_set(value: bytes) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(payload: torch.Tensor) -> torch.Tensor:
        payload[2] = torch.frombuffer(bytearray(value), dtype=torch.uint8)
        return payload

    return change


def repeated(payload: torch.Tensor) -> torch.Tensor:
    payload[2] = payload[0]
    return payload


NOT_CANONICAL = [(P + 3).to_bytes(32, "little"), (P + 1).to_bytes(32, "little"), (1 | 1 << 255).to_bytes(32, "little")]
# On the curve, but outside the prime-order group: a point of it plus one of order 8, 4 and 2.
MIXED = [encoded(added(elligator(bytes(range(32))), times(number, decoded(SMALL_ORDER[4])))) for number in (1, 2, 4)]
OFF_CURVE = next(
    y.to_bytes(32, "little") for y in itertools.count(2) if root((y * y - 1) * pow(D * y * y + 1, -1, P) % P) is None
)


def cheat(cheater: str, twist: Twist, complaint: str, kind: type[SplitVFLError] = ProtocolError) -> None:
    terms = Terms(active="bank")
    files = {"bank": digests_of(people(0, 8)), "telecom": digests_of(people(2, 12))}
    peers = {"bank": ["telecom"], "telecom": ["bank"]}
    halves = {name: align(name, peers[name], own, terms, threads=1) for name, own in files.items()}
    halves[cheater] = twisted(halves[cheater], twist)
    with pytest.raises(kind, match=complaint):
        converse(halves)


@pytest.mark.parametrize("cheater", ["bank", "telecom"])
@pytest.mark.parametrize("point", [*SMALL_ORDER, *NOT_CANONICAL, *MIXED, OFF_CURVE], ids=lambda point: point.hex()[:8])
def test_what_is_no_point_of_the_group_is_refused(cheater: str, point: bytes) -> None:
    cheat(cheater, changed("points", row_set(point)), f"{cheater} sent points of which {point.hex()}")


def test_a_library_that_takes_points_outside_the_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyNaCl before 1.6.2 does, with a point of the group plus the one of order 2."""
    real = hashed_points.crypto_scalarmult_ed25519_noclamp
    base = encoded(decoded(bytes.fromhex("58" + 31 * "66")))

    def lenient(scalar: bytes, point: bytes) -> bytes:
        inside = added(decoded(point), decoded(SMALL_ORDER[1]))
        return real(scalar, encoded(inside)) if times(L, inside) == (0, 1) else real(scalar, point)

    hashed_points.check_library()
    assert lenient(hashed_points._ONE, hashed_points._OUTSIDE) == base
    monkeypatch.setattr(hashed_points, "crypto_scalarmult_ed25519_noclamp", lenient)
    with pytest.raises(CryptoError, match=r"outside the prime-order group .* expected PyNaCl 1\.6\.2"):
        align("bank", ["t"], digests_of("a"), Terms(active="bank"))


@pytest.mark.parametrize(("cheater", "kind"), [("bank", "points"), ("telecom", "points"), ("telecom", "answers")])
def test_a_point_that_comes_twice_is_refused(cheater: str, kind: str) -> None:
    cheat(cheater, changed(kind, repeated), f"{cheater} sent the same of its {kind} twice, as numbers 0 and 2")


@pytest.mark.parametrize("cheater", ["bank", "telecom"])
@pytest.mark.parametrize("change", [lambda nonce: nonce[:31], lambda nonce: nonce.repeat(2), lambda nonce: nonce[:0]])
def test_a_nonce_of_another_length_is_refused(cheater: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    cheat(cheater, changed("nonce", change), f"expected nonce of step 0 from {cheater} to be")


@pytest.mark.parametrize("cheater", ["bank", "telecom"])
def test_who_uses_another_nonce_than_it_sent_finds_nothing(cheater: str) -> None:
    cheat(cheater, changed("nonce", lambda nonce: nonce ^ 1), "no record in common", DataError)


@pytest.mark.parametrize(("cheater", "kind"), [("bank", "points"), ("telecom", "answers")])
def test_another_number_of_points_is_refused(cheater: str, kind: str) -> None:
    cheat(cheater, changed(kind, lambda points: points[:-1]), f"expected {kind} of step 0 from {cheater} to be")


@pytest.mark.parametrize("number", [0, -1, (1 << 24) + 1, 1 << 62])
@pytest.mark.parametrize("cheater", ["bank", "telecom"])
def test_an_impossible_number_of_records_is_refused(cheater: str, number: int) -> None:
    twist = changed("records", lambda _: torch.tensor([number]))
    cheat(cheater, twist, f"{cheater} sent {number} as the number of its records; expected 1 to 16777216")


def test_more_common_records_than_there_are_own_are_refused() -> None:
    twist = changed("common", lambda _: torch.tensor([11]))
    cheat("bank", twist, "bank sent 11 as the number of common records; expected 0 to 10")


@pytest.mark.parametrize("value", [-1, 10])
def test_a_position_that_is_none_is_refused(value: int) -> None:
    def change(order: torch.Tensor) -> torch.Tensor:
        order[1, 0] = value
        return order

    cheat("bank", changed("order", change), "names records of which there is none")


def test_a_position_that_comes_twice_is_refused() -> None:
    def change(order: torch.Tensor) -> torch.Tensor:
        order[1, 0] = order[0, 0]
        return order

    cheat("bank", changed("order", change), "or one twice")


@pytest.mark.parametrize("place", [0, 3])
def test_ids_that_do_not_ascend_from_zero_are_refused(place: int) -> None:
    def change(order: torch.Tensor) -> torch.Tensor:
        order[place, 1] = -5 if place == 0 else order[place - 1, 1]
        return order

    cheat("bank", changed("order", change), "do not ascend from 0")


@pytest.mark.parametrize("cheater", ["bank", "telecom"])
def test_another_digest_is_refused(cheater: str) -> None:
    cheat(cheater, changed("digest", lambda digest: digest ^ 1), "did not end with the same order")


def test_another_order_is_noticed_by_the_digest() -> None:
    def change(order: torch.Tensor) -> torch.Tensor:
        order[-1, 1] += 1
        return order

    cheat("bank", changed("order", change), "did not end with the same order")


# --- progress


def test_progress_ends_with_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi, "_SLICE", 3)
    told: list[tuple[int, int]] = []
    terms = Terms(active="bank")
    halves = {
        "bank": align("bank", ["t"], digests_of(people(0, 10)), terms, progress=lambda *done: told.append(done)),
        "t": align("t", ["bank"], digests_of(people(3, 20)), terms),
    }
    converse(halves)
    assert told[-1] == (27, 27)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
