"""An active party that passes on other keys than it was given: what each member notices.

Members sign with Ed25519 here; certificates are the business of ``tests/net/test_signing.py``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from splitvfl.crypto.key_generation import generate_keys
from splitvfl.crypto.sum_masks import SumMasks
from splitvfl.errors import DataError, ProtocolError, SplitVFLError
from splitvfl.exchange.coordinator import NAME, Coordinator
from splitvfl.exchange.masking import active_masking, passive_masking
from splitvfl.exchange.roll_call import NONCE_BYTES, UNSIGNED, Vouching, active_roll_call, member_roll_call
from splitvfl.exchange.taylor import Taylor
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message
from tests.exchange.logistic import BATCH, SHORT, trainer_of, weights_of

MEMBERS = ("lab", "shop", "telecom")
SIZE = 40
SECRETS = {name: Ed25519PrivateKey.generate() for name in (*MEMBERS, NAME, "bank")}


class Pen:
    """Signs with a party's own key, and knows everybody's."""

    def __init__(self, name: str, run: str = "today") -> None:
        self.name, self.run = name, run.encode()

    def sign(self, statement: bytes) -> Mapping[str, object]:
        return {"signature": base64.b64encode(SECRETS[self.name].sign(self.run + statement)).decode()}

    def check(self, member: str, statement: bytes, shown: Mapping[str, object]) -> None:
        try:
            SECRETS[member].public_key().verify(base64.b64decode(str(shown["signature"])), self.run + statement)
        except InvalidSignature:
            raise ProtocolError(f"not vouched for by {member}") from None


def vouching(name: str, members: Sequence[str] | None = MEMBERS, run: str = "today") -> Vouching:
    return Vouching(None if members is None else frozenset(members), Pen(name, run))


def keys_of(name: str) -> Tensor:
    return torch.full((SIZE,), len(name), dtype=torch.uint8)


def half_of(name: str, *, subject: str = "taylor", active: str = "bank", **changes: Any) -> Half:
    given = changes.get("vouching") or vouching(name, **{k: v for k, v in changes.items() if k != "vouching"})
    return member_roll_call(name, active, keys_of(name), subject=subject, length_of=lambda other: SIZE, vouching=given)


Change = Callable[[Message], Message]


def changing(half: Half, change: Change) -> Half:
    """The active party's half, with what it sends changed."""
    outbox = next(half)
    while True:
        inbox = yield Outbox(send=tuple(map(change, outbox.send)), wait=outbox.wait)
        try:
            outbox = half.send(inbox)
        except StopIteration as stop:
            return stop.value


def called(change: Change = lambda message: message, *, members: Sequence[str] = MEMBERS, **halves: Half) -> Any:
    given = {name: halves.get(name) or half_of(name) for name in members}
    active = active_roll_call("bank", dict.fromkeys(members, SIZE), vouching("bank"))
    return converse({**given, "bank": changing(active, change)})


def test_all_have_the_same_keys_and_one_session_that_no_other_meeting_has() -> None:
    sessions = set()
    for _ in range(3):
        found = called()
        assert found["bank"].keys() == {*MEMBERS}
        assert all(torch.equal(found["bank"][name], keys_of(name)) for name in MEMBERS)
        assert len({found[name].session for name in MEMBERS}) == 1
        for name in MEMBERS:
            assert list(found[name].keys) == [other for other in MEMBERS if other != name]
            assert all(torch.equal(key, keys_of(other)) for other, key in found[name].keys.items())
        sessions.add(found["lab"].session)
    assert len(sessions) == 3


# --- what a dishonest active party may try


def of(kind: str, receiver: str, spoil: Callable[[Tensor], Tensor]) -> Change:
    """A change of what the active party passes on of one kind to one member, of the first other member."""
    seen: list[Message] = []

    def change(message: Message) -> Message:
        if (message.kind, message.receiver) != (kind, receiver) or seen:
            return message
        seen.append(message)
        return replace(message, payload=spoil(message.payload.clone()))

    return change


def bumped(place: int) -> Callable[[Tensor], Tensor]:
    def spoil(payload: Tensor) -> Tensor:
        payload[place] += 1
        return payload

    return spoil


@pytest.mark.parametrize("place", [NONCE_BYTES, NONCE_BYTES + SIZE - 1, 0, NONCE_BYTES - 1], ids=str)
@pytest.mark.parametrize("receiver", MEMBERS)
def test_a_key_or_a_nonce_of_its_own_is_noticed(receiver: str, place: int) -> None:
    with pytest.raises(ProtocolError, match="not vouched for by"):
        called(of("member", receiver, bumped(place)))


def test_a_key_of_its_own_for_everybody_is_noticed() -> None:
    def change(message: Message) -> Message:
        if message.kind != "member":
            return message
        return replace(message, payload=torch.cat([message.payload[:NONCE_BYTES], torch.zeros(SIZE).byte()]))

    with pytest.raises(ProtocolError, match="not vouched for by"):
        called(change)


def recorded() -> list[Message]:
    kept: list[Message] = []

    def keep(message: Message) -> Message:
        kept.append(message)
        return message

    called(keep)
    return kept


@pytest.mark.parametrize("kinds", [{"member", "signature"}, {"signature"}], ids=["keys too", "signatures"])
def test_what_was_signed_at_another_meeting_is_noticed(kinds: set[str]) -> None:
    old = {(message.receiver, message.kind): [] for message in recorded()}
    for message in recorded():
        old.setdefault((message.receiver, message.kind), []).append(message)

    def replayed(message: Message) -> Message:
        return old[message.receiver, message.kind].pop(0) if message.kind in kinds else message

    with pytest.raises(ProtocolError, match="not vouched for by"):
        called(replayed)


def test_two_members_in_each_others_place_are_noticed() -> None:
    def swapped(message: Message) -> Message:
        if (message.kind, message.receiver) != ("members", "telecom"):
            return message
        text = json.dumps({"names": ["shop", "lab", "telecom"]}).encode()
        return replace(message, payload=torch.frombuffer(bytearray(text), dtype=torch.uint8))

    with pytest.raises(ProtocolError, match="not vouched for by shop"):
        called(swapped)


def named(*names: object) -> Change:
    def change(message: Message) -> Message:
        if (message.kind, message.receiver) != ("members", "lab"):
            return message
        text = json.dumps({"names": names}).encode()
        return replace(message, payload=torch.frombuffer(bytearray(text), dtype=torch.uint8))

    return change


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("lab", "shop"), "telecom, named there, not among them"),
        (("lab",), "shop, telecom, named there, not among them"),
        (("lab", "shop", "telecom", "sybil"), "sybil' among them, not named there"),
        (("lab", "shop", "sybil"), "telecom, named there, not among them; 'sybil' among them"),
    ],
)
def test_other_members_than_a_file_names_are_refused_by_name(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        called(named(*names))
    assert "the file of lab names" in str(caught.value)
    assert "in the file of lab, write `NAME: {role: passive}` under `parties`" in str(caught.value)


@pytest.mark.parametrize(
    "names", [(), ("shop", "telecom"), ("lab", "lab", "shop"), ("lab", 3), ("lab", ["shop"]), tuple("x" * 1025)]
)
def test_a_list_of_names_that_is_none_is_refused(names: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError, match="expected bank to name"):
        called(named(*names))


def test_a_member_that_is_left_out_everywhere_is_missed_by_all() -> None:
    with pytest.raises(DataError, match="telecom, named there, not among them"):
        called(members=("lab", "shop"))


@pytest.mark.parametrize(
    "other", [{"subject": "coordinator"}, {"run": "yesterday"}, {"active": "clinic"}], ids=["exchange", "run", "active"]
)
def test_what_is_signed_for_something_else_is_noticed(other: dict[str, str]) -> None:
    """Members who were told different things, each of them honest: neither takes the other's signature."""
    asked = half_of("lab", **other)
    with pytest.raises(ProtocolError, match="not vouched for by"):
        called(lab=renamed(asked, "clinic") if "active" in other else asked)


def renamed(half: Half, active: str) -> Half:
    """A half that talks with the active party as if that had another name."""
    outbox = next(half)
    while True:
        sent = tuple(replace(message, receiver="bank") for message in outbox.send)
        inbox = yield Outbox(send=sent, wait=tuple(replace(one, sender="bank") for one in outbox.wait))
        answers = [replace(message, sender=active) for message in inbox.values()]
        try:
            outbox = half.send({answer.sender: answer for answer in answers})
        except StopIteration as stop:
            return stop.value


def test_a_signature_of_another_member_does_not_do() -> None:
    class Impostor(Pen):
        def sign(self, statement: bytes) -> Mapping[str, object]:
            self.name = "shop"
            return super().sign(statement)

    with pytest.raises(ProtocolError, match="not vouched for by lab"):
        called(lab=half_of("lab", vouching=Vouching(frozenset(MEMBERS), Impostor("lab"))))


def test_a_member_that_does_not_sign_ends_it() -> None:
    with pytest.raises(SplitVFLError, match=r"nobody can go on|without reading|takes no part"):
        called(lab=half_of("lab", vouching=UNSIGNED))


def test_nobody_signs_where_there_is_nobody_else() -> None:
    found = called(members=("lab",), lab=half_of("lab", members=("lab",)))

    assert found["lab"].keys == {}


# --- whole exchanges


@pytest.mark.parametrize("kind", [Taylor, Coordinator])
def test_an_exchange_whose_keys_are_signed_ends_as_one_whose_are_not(kind: Any) -> None:
    plain = trainer_of(kind(rows=BATCH, encryption=SHORT), {"lab": 4, "shop": 2})
    members = ("lab", "shop") if kind is Taylor else ("lab", "shop", NAME)
    exchanges = {
        name: kind(rows=BATCH, encryption=SHORT, vouching=vouching(name, members)) for name in ("bank", "lab", "shop")
    }
    if kind is Coordinator:  # whose side the active party's exchange makes, in one process
        exchanges["bank"] = kind(rows=BATCH, encryption=SHORT, vouching=vouching(NAME, members))
    signed = trainer_of(exchanges, {"lab": 4, "shop": 2})
    for trainer in (plain, signed):
        trainer.fit(1)
    assert all(torch.equal(weight, weights_of(signed)[name]) for name, weight in weights_of(plain).items())


@pytest.mark.parametrize("kind", [Taylor, Coordinator])
@pytest.mark.parametrize("signs", [False, True])
def test_an_active_party_that_hands_out_a_paillier_key_of_its_own(kind: Any, signs: bool) -> None:
    """Everything about that key is right, and the active party decrypts what is under it."""
    members = ("lab", "shop") if kind is Taylor else ("lab", "shop", NAME)
    parties = ("lab", "shop", NAME if kind is Coordinator else "bank")
    exchanges = {
        name if name != NAME else "bank": kind(
            rows=BATCH, encryption=SHORT, vouching=vouching(name, members) if signs else UNSIGNED
        )
        for name in parties
    }
    trainer = trainer_of(exchanges, {"lab": 4, "shop": 2})
    its_own = generate_keys(SHORT.key_bits, insecure_for_tests=True)

    def hands_out(message: Message) -> Message:
        if message.kind != "member" or message.payload.numel() < SHORT.key_bytes:
            return message
        start = message.payload[: -SHORT.key_bytes]
        return replace(message, payload=torch.cat([start, its_own.to_send().flatten()]))

    halves = {name: side.open() for name, side in trainer._sides.items()}
    halves["bank"] = changing(halves["bank"], hands_out)
    if signs:
        with pytest.raises(ProtocolError, match="not vouched for by"):
            converse(halves)
        return
    converse(halves)
    lab: Any = trainer._sides["lab"]
    evaluator = lab._peers["shop"] if kind is Taylor else lab._evaluator
    assert evaluator.public == its_own.public  # under which it encrypts, or computes, from now on


def test_parties_of_whom_one_signs_and_one_does_not_do_not_agree() -> None:
    signed, plain = (Taylor(rows=BATCH, encryption=SHORT, vouching=one) for one in (vouching("lab"), UNSIGNED))

    assert signed.terms()["keys that are passed on"] == "signed"
    assert plain.terms()["keys that are passed on"] == "not signed"


def halves_of_masking(hands_out: Callable[[Message], Message], signs: bool) -> dict[str, Any]:
    trainer = trainer_of(Taylor(rows=BATCH, encryption=SHORT), dict.fromkeys(MEMBERS, 2))
    given = {name: vouching(name) if signs else UNSIGNED for name in (*MEMBERS, "bank")}
    halves = {name: passive_masking(party, "bank", given[name]) for name, party in trainer.passives.items()}
    halves["bank"] = changing(active_masking(trainer.active, given["bank"]), hands_out)
    converse(halves)
    return dict(trainer.passives)


def test_who_hands_out_its_own_keys_reads_every_part_unless_they_are_signed() -> None:
    """The attack: the active party stands between all passive parties."""
    its_own: dict[tuple[str, int], SumMasks] = {}
    nonces: dict[str, list[Tensor]] = {}

    def hands_out(message: Message) -> Message:
        if message.kind != "member":
            return message
        sent = nonces.setdefault(message.receiver, [])
        own = its_own.setdefault((message.receiver, len(sent)), SumMasks())
        sent.append(message.payload[:NONCE_BYTES])
        return replace(message, payload=torch.cat([message.payload[:NONCE_BYTES], own.public]))

    parties = halves_of_masking(hands_out, signs=False)
    part = torch.tensor([[1.5], [-2.25]])
    sent = parties["lab"].masks.masked(part, kind="scores", number=0, piece=0)
    taken_off = sent.clone()
    for (receiver, _), own in its_own.items():
        if receiver == "lab":
            own._shared = [(1 if own._own < parties["lab"].masks._own else -1, shared)
                           for _, shared in [agreed(own, parties["lab"].masks)]]  # fmt: skip
            taken_off += own.masked(torch.zeros(2, 1), kind="scores", number=0, piece=0)
    assert torch.equal(taken_off.double() * 2.0**-32, part.double())

    nonces.clear()
    its_own.clear()
    with pytest.raises(ProtocolError, match="not vouched for by"):
        halves_of_masking(hands_out, signs=True)


def agreed(own: SumMasks, victim: SumMasks) -> tuple[int, bytes]:
    """What the attacker computes: the same as its victim, who has met that key."""
    return next((sign, key) for sign, key in victim._shared if key in _derived(own, victim))


def _derived(own: SumMasks, victim: SumMasks) -> set[bytes]:
    # The session is no secret from the active party: it has passed on all that goes into it. Here it is looked up.
    return {own._agreed(victim._own, session) for session in SESSIONS}


SESSIONS: list[bytes] = []


@pytest.fixture(autouse=True)
def sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    SESSIONS.clear()
    meet = SumMasks.meet

    def noting(self: SumMasks, others: Tensor, *, session: bytes) -> None:
        SESSIONS.append(session)
        meet(self, others, session=session)

    monkeypatch.setattr(SumMasks, "meet", noting)
