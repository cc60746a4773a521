"""Every message of an encrypted exchange, damaged in every way: who receives it says whose it is, and learns nothing.

The parties are live: what is no longer what was sent goes through real keys, sums and masks.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import gmpy2
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.crypto.ciphertexts import encrypted
from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.crypto.keys import PrivateKey, PublicKey
from splitvfl.crypto.obfuscators import Powers
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.tags import TAG_BYTES
from splitvfl.data.columns import NO_RECORDS
from splitvfl.errors import DataError, ForgedError, ProtocolError, ReplayError, SplitVFLError, SumRefused
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message
from splitvfl.party.refusals import Refusals
from splitvfl.run.replay import ReplayGuard
from tests.crypto.conftest import blum_prime
from tests.crypto.test_key_proof import answers
from tests.exchange.logistic import BATCH, SHORT, trainer_of, weights_of

EXCHANGES: dict[str, Callable[[], Exchange]] = {
    "residue": lambda: Residue(rows=BATCH, encryption=SHORT),
    "taylor": lambda: Taylor(rows=BATCH, encryption=SHORT),
    "coordinator": lambda: Coordinator(rows=BATCH, encryption=SHORT),
    "hybrid": lambda: Hybrid(
        rows=BATCH, encryption=SHORT, epsilon=1.0, share=0.4, selection_seed_for_experiments=SELECTION
    ),
}
# With it as many records are asked for in the second step as in the first: what is repeated has the right form.
SELECTION = 18
WIDTHS = {"lab": 4, "shop": 2}
CIPHERTEXT_BYTES = SHORT.key_bits // 4
# Messages of ciphertexts that its receiver computes with or decrypts, and of masked plaintexts.
ENCRYPTED = {"residues", "sums", "logits", "relayed", "asked"}
MASKED = {"opened", "answered"}


@dataclass(frozen=True)
class Place:
    """One message of a run: whose, to whom, what, and in which step; the keys cross before the first one."""

    exchange: str
    sender: str
    receiver: str
    kind: str
    step: int | None

    def __str__(self) -> str:
        return f"{self.exchange}: {self.kind}, {self.sender} to {self.receiver}"


class Stage:
    """Parties that have exchanged keys and taken a step, and go back to where they were after every attempt."""

    def __init__(self, exchange: Exchange) -> None:
        self.trainer = trainer_of(exchange, WIDTHS)
        self.messages: list[Message] = []
        self.opening: list[Message] = []
        converse(self._halves(None), record=self.opening.append)
        converse(self._halves(0), record=self.messages.append)
        self._keys_exchanged = True
        self._state = {party.name: copy.deepcopy(party.state_dict()) for party in self.trainer.training.parties}

    def _halves(self, step: int | None) -> dict[str, Half]:
        sides = self.trainer._sides
        if step is None:
            return {name: side.open() for name, side in sides.items()}
        rows = self.trainer.batches.epoch(0)[step]
        batches = {party.name: party.train_batch(rows) for party in self.trainer.training.parties}
        return {name: side.step(batches.get(name, NO_RECORDS), step) for name, side in sides.items()}

    def attempt(self, place: Place, change: Change, *, record: Callable[[Message], None] | None = None) -> None:
        """Exchange keys again, or take the second step, with one message changed on its way."""
        step = place.step
        before = weights_of(self.trainer)
        if step is not None and not self._keys_exchanged:
            converse(self._halves(None))
        self._keys_exchanged = False  # an attempt that failed is the end of a meeting
        try:
            halves = {name: _changing(half, place, change) for name, half in self._halves(step).items()}
            converse(halves, record=record)
        except SplitVFLError as error:
            if "without reading" not in str(error):  # then it came after the step was taken
                assert torch.equal(weights_of(self.trainer)[place.receiver], before[place.receiver])
            raise
        else:
            assert all(weight.isfinite().all() for weight in weights_of(self.trainer).values())
        finally:
            for party in self.trainer.training.parties:
                party.load_state_dict(copy.deepcopy(self._state[party.name]))
                party.refusals = Refusals(party.name)  # every attempt is the first


# A sum of bits at random lies within the agreed limit with a probability of one half at most, and the fewest that are
# opened together are two: so many attempts all pass with one of 2^-32, and any of fewer than fifty with 2^-26.
ATTEMPTS = 16


def noticed(place: Place, change: Callable[[Message], tuple[Message, ...]], pattern: str) -> None:
    """Change a message until somebody sees that what was decrypted is none of the sums: by chance they may be small."""

    def attempts() -> None:
        for _ in range(ATTEMPTS):
            stage(place.exchange).attempt(place, change)

    with pytest.raises(ProtocolError, match=pattern) as caught:
        attempts()
    said = str(caught.value)
    # All else that is noticed does not depend on what is under a mask, and is not counted.
    assert isinstance(caught.value, SumRefused) or re.search("expected new ciphertexts|bits, as agreed", said), said


@cache
def stage(name: str) -> Stage:
    return Stage(EXCHANGES[name]())


@cache
def places(name: str) -> tuple[Place, ...]:
    """The messages that go to and from lab, of the exchange of keys and of the second step."""
    found = [(None, message) for message in stage(name).opening] + [(1, message) for message in stage(name).messages]
    return tuple(
        Place(name, message.sender, message.receiver, message.kind, step)
        for step, message in found
        if "lab" in (message.sender, message.receiver)
    )


PLACES = [place for name in EXCHANGES for place in places(name)]
# Messages with a Paillier key: sent to whoever computes under it, or passed on.
KEYED = [
    place
    for place in dict.fromkeys(PLACES)
    if place.kind == "key"
    or (
        place.kind == "member"
        and (place.exchange, place.receiver) in {("taylor", "bank"), ("taylor", "lab"), ("coordinator", "lab")}
    )
]
Change = Callable[[Message], tuple[Message, ...]]


def _changing(half: Half, place: Place, change: Change) -> Half:
    outbox = next(half)
    while True:
        sent: tuple[Message, ...] = ()
        for message in outbox.send:
            if (message.sender, message.receiver, message.kind) == (place.sender, place.receiver, place.kind):
                sent += change(message)
            elif (message.sender, message.kind, place.kind) == (place.sender, "tags", "logits") and sent:
                code = _code(place, sent[-1].payload[:BATCH])  # it vouches for what it has sent
                sent += (replace(message, payload=code.reshape(1, -1)),)
            else:
                sent += (message,)
        inbox = yield Outbox(send=sent, wait=outbox.wait)
        try:
            outbox = half.send(inbox)
        except StopIteration as stop:
            return stop.value


# What has a code behind it, from one party to another that it has no link with: here there is one of these.
SEALED = {("taylor", "relayed"), ("taylor", "asked"), ("taylor", "answered"), ("coordinator", "opened")}
SEALED |= {("coordinator", "sums")}
FORGED = r"bank passed on \w+ of step 1 in the name of \w+, and it is not"


def by_relay(place: Place) -> bool:
    """Whether the active party sends what another has vouched for: it can change it, and make no code."""
    return (place.exchange, place.kind) in SEALED and place.sender == "bank"


def _code(place: Place, content: Tensor) -> Tensor:
    """A party's own code for something else than what it should have sent."""
    other = "shop" if place.exchange == "taylor" else "coordinator"
    outputs = {name: count + (place.exchange == "taylor") for name, count in WIDTHS.items()}
    count = {"logits": BATCH, "answered": outputs["shop"]}.get(place.kind, outputs["lab"])
    tags = stage(place.exchange).trainer._sides[place.sender]._passed_on._tags  # type: ignore[attr-defined]
    tags._keys.sent[other] -= 1
    return tags.tag(other, content, kind=place.kind, step=1, count=count)  # type: ignore[no-any-return]


def within(place: Place, change: Change) -> Change:
    """A change of what is under a code: its sender makes another code, the active party leaves that which came."""
    if (place.exchange, place.kind) not in SEALED:
        return change

    def changed(message: Message) -> tuple[Message, ...]:
        content, code = message.payload[:-TAG_BYTES], message.payload[-TAG_BYTES:]
        rows = content.reshape(-1, CIPHERTEXT_BYTES) if place.kind in ENCRYPTED else content.reshape(1, -1)
        (made,) = change(replace(message, payload=rows))
        content = made.payload.flatten()
        code = code if by_relay(place) else _code(place, content)
        return (replace(message, payload=torch.cat([content, code])),)

    return changed


# --- another form


FORMS: dict[str, Callable[[Message], Message]] = {
    "a row less": lambda message: replace(message, payload=message.payload[:-1]),
    "a row more": lambda message: replace(message, payload=torch.cat([message.payload, message.payload[-1:]])),
    "a hundred rows": lambda message: replace(
        message, payload=torch.cat([message.payload] * 100) if message.payload.dim() else message.payload
    ),
    "nothing in it": lambda message: replace(message, payload=message.payload[:0]),
    "shorter rows": lambda message: replace(message, payload=message.payload[..., :-1].contiguous()),
    "another dtype": lambda message: replace(message, payload=message.payload.to(torch.float16)),
    "of the step before": lambda message: replace(message, step=message.step - 1),
    "another kind": lambda message: replace(message, kind="gradient"),
}


@pytest.mark.parametrize("name", EXCHANGES)
@settings(max_examples=25)
@given(data=st.data())
def test_a_message_of_another_form_is_refused(name: str, data: st.DataObject) -> None:
    place, form = data.draw(st.sampled_from(places(name))), data.draw(st.sampled_from(list(FORMS)))
    step = place.step or 0
    # A number of parties is not agreed: a message that brings it may be longer. What follows then does not fit it.
    pattern = rf"expected {place.kind} of step {step} from {place.sender}"
    if place.kind == "peers" and form in ("a row less", "shorter rows", "a row more", "a hundred rows"):
        pattern = r"bank names 1 other parties, and columns of|asks for"
    if place.kind == "members" and form in ("a row less", "shorter rows", "a row more", "a hundred rows"):
        pattern = "bank sent no members"
    with pytest.raises((ProtocolError, DataError), match=pattern):
        stage(place.exchange).attempt(place, lambda message: (FORMS[form](message),))


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_message_that_is_left_out_or_sent_twice_ends_the_step(place: Place) -> None:
    missing = (
        rf"nobody can go on: .*{place.receiver} waits for [\w, ]*{place.sender}"
        rf"|expected {place.kind} of step \d from {place.sender}, got"
    )
    with pytest.raises(ProtocolError, match=missing):
        stage(place.exchange).attempt(place, lambda message: ())
    with pytest.raises(ProtocolError, match=r"without reading|expected \w+ of step|who takes no part"):
        stage(place.exchange).attempt(place, lambda message: (message, message))


# --- no ciphertexts, keys or numbers


def _all(payload: Tensor, number: int) -> Tensor:
    return integers_to_tensor([number] * len(payload), payload.shape[1])


def _one(payload: Tensor, number: int) -> Tensor:
    return torch.cat([payload[:-1], integers_to_tensor([number], payload.shape[1])])


NO_CIPHERTEXTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "all zero": (lambda payload: _all(payload, 0), "is 0"),
    "one zero": (lambda payload: _one(payload, 0), "is 0"),
    "all 256^m - 1": (lambda payload: _all(payload, 256**CIPHERTEXT_BYTES - 1), "n² or more"),
    "one 256^m - 1": (lambda payload: _one(payload, 256**CIPHERTEXT_BYTES - 1), "n² or more"),
}


@settings(max_examples=25)
@given(
    place=st.sampled_from([place for place in PLACES if place.kind in ENCRYPTED]),
    damage=st.sampled_from(list(NO_CIPHERTEXTS)),
)
def test_what_is_no_ciphertext_is_refused_by_whoever_it_is_for(place: Place, damage: str) -> None:
    spoil, complaint = NO_CIPHERTEXTS[damage]
    expected = f"{place.kind} of step 1 from {place.sender}: expected ciphertexts .*{complaint}"
    if by_relay(place):
        expected = FORGED
    change = within(place, lambda message: (replace(message, payload=spoil(message.payload)),))
    with pytest.raises(ProtocolError, match=expected):
        stage(place.exchange).attempt(place, change)


@pytest.mark.parametrize("place", [place for place in PLACES if place.kind in ("sums", "asked")], ids=str)
def test_a_multiple_of_a_factor_of_n_is_refused(place: Place) -> None:
    """Whoever knew one had broken the key; the owner of another key may send one to see what happens."""

    def multiple(message: Message) -> tuple[Message, ...]:
        reader = "shop" if (place.kind, place.receiver) == ("asked", "bank") else place.receiver
        if place.exchange == "coordinator":
            reader = "coordinator"
        key = stage(place.exchange).trainer._sides[reader]._owner._key  # type: ignore[attr-defined]
        return (replace(message, payload=_one(message.payload, 12345 * int(key.p))),)

    expected = rf"{place.kind} of step 1 from {place.sender}: expected ciphertexts coprime to n"
    with pytest.raises(ProtocolError, match=FORGED if by_relay(place) else expected):
        stage(place.exchange).attempt(place, within(place, multiple))


@settings(max_examples=40)
@given(
    place=st.sampled_from([*KEYED, *(place for place in PLACES if place.kind in ("peers", "columns"))]),
    wrong=st.sampled_from(["zero", "even", "prime", "square", "small factor", "a bit shorter"]),
)
def test_what_is_no_key_and_no_number_of_columns_is_refused(place: Place, wrong: str) -> None:
    bits = SHORT.key_bits
    large = int(gmpy2.next_prime(1 << (bits - 1)))
    root = int(gmpy2.next_prime(math.isqrt(1 << (bits - 1)) + 1))
    number = {
        "zero": 0,
        "even": 1 << (bits - 1),
        "prime": large,
        "square": root**2,
        "small factor": 3 * (large // 3 | 1) | (1 << (bits - 1)),
        "a bit shorter": (1 << (bits - 1)) - 1,
    }[wrong]
    if wrong == "small factor":
        number += 3 - number % 3 if number % 3 else 0
        number += 3 * (number % 2 == 0)
    count = {"zero": 0, "even": -1, "prime": 4097, "square": (1 << 63) - 1, "small factor": -(1 << 63)}.get(wrong, 0)

    def spoiled(message: Message) -> tuple[Message, ...]:
        payload = message.payload.clone()
        if place in KEYED:
            row = integers_to_tensor([number], bits // 8)[0]
            payload.view(-1)[-SHORT.key_bytes :][: len(row)] = row
        else:
            payload[-1] = count
        return (replace(message, payload=payload),)

    pattern = rf"key of step 0 from {place.sender}: expected" if place.kind == "key" else f"{place.sender} asks for"
    if place.kind == "member":  # bank hands it out to others, who may be first
        pattern = r"key (passed on for \w+ )?of step 0 from (lab|bank): expected"
    with pytest.raises((ProtocolError, DataError), match=pattern):
        stage(place.exchange).attempt(place, spoiled)


@cache
def bad_key(shape: str) -> tuple[int, list[int]]:
    """A modulus whose owner reads what others multiply its ciphertexts with, or learns their parities, and a proof.

    Its owner knows all factors, and answers whatever has an answer.
    """
    small = [int(gmpy2.next_prime((1 << 24) + (number << 20))) for number in range(4)]
    rest = SHORT.key_bits - math.prod(small).bit_length()
    half = next(p for k in itertools.count(1 << (rest // 2 - 98)) if gmpy2.is_prime(p := 2 * math.prod(small) * k + 1))
    whole = math.prod(small) * half
    last = int(blum_prime((3 << (SHORT.key_bits - 2)) // whole))
    third = int(blum_prime(3 << 168))
    factors = {
        "common factors": [*small, half, last],
        "three primes": [third, int(blum_prime(third)), int(blum_prime((3 << 510) // third**2))],
    }[shape]
    return math.prod(factors), [answer or 1 for answer in answers(factors)]


@pytest.mark.parametrize("place", KEYED, ids=str)
@pytest.mark.parametrize("shape", ["common factors", "three primes"])
def test_a_dishonest_modulus_is_refused_before_anything_is_computed_under_it(place: Place, shape: str) -> None:
    n, proof = bad_key(shape)
    assert PublicKey(n, insecure_for_tests=True).bits == SHORT.key_bits  # taken, as a bare number

    def spoiled(message: Message) -> tuple[Message, ...]:
        if message.payload.numel() < SHORT.key_bytes:
            return (message,)  # a member's that has another key
        payload = message.payload.clone()
        sent = integers_to_tensor([n, *proof], SHORT.key_bits // 8).flatten()
        payload.view(-1)[-len(sent) :] = sent
        return (replace(message, payload=payload),)

    with pytest.raises(
        ProtocolError, match=r"key (passed on for \w+ )?of step 0 from \w+: expected a key with a proof"
    ):
        stage(place.exchange).attempt(place, spoiled)


@settings(max_examples=10)
@given(
    place=st.sampled_from([place for place in PLACES if place.kind in ("activation", "products")]),
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_logits_and_products_that_are_not_finite_are_refused(place: Place, value: float) -> None:
    def spoiled(message: Message) -> tuple[Message, ...]:
        payload = message.payload.clone()
        payload[-1] = value
        return (replace(message, payload=payload),)

    with pytest.raises(ProtocolError, match=rf"{place.kind}.* of step 1 from {place.sender} .*infinite"):
        stage(place.exchange).attempt(place, spoiled)


@pytest.mark.parametrize("name", EXCHANGES)
def test_own_logits_that_are_not_finite_are_not_sent(name: str) -> None:
    own = Stage(EXCHANGES[name]())
    with torch.no_grad():
        own.trainer.passives["lab"].bottom.get_parameter("weight").fill_(math.nan)
    sent: list[Message] = []
    nothing = Place(name, "lab", "bank", "", 1)
    with pytest.raises(ProtocolError, match=r"activation of step 1 of lab holds NaN"):
        own.attempt(nothing, lambda message: (message,), record=sent.append)
    assert "lab" not in {message.sender for message in sent}


# --- ciphertexts that are ciphertexts, but not these


def other_key() -> PrivateKey:
    """A key whose modulus is smaller than any other of its length: no ciphertext under it is too large."""
    prime = blum_prime(math.isqrt(1 << (SHORT.key_bits - 1)) + 1)
    return PrivateKey(int(prime), int(blum_prime(prime)), insecure_for_tests=True)


@pytest.mark.parametrize("place", [place for place in PLACES if place.kind in ENCRYPTED], ids=str)
def test_ciphertexts_under_another_key_are_noticed_once_sums_are_opened(place: Place) -> None:
    """They decrypt to bits at random."""
    owner = Owner(other_key())

    def under_another(message: Message) -> tuple[Message, ...]:
        made = owner.encrypt([1] * len(message.payload))
        assert made.shape == message.payload.shape
        return (replace(message, payload=made),)

    if by_relay(place):
        with pytest.raises(ForgedError, match=FORGED):
            stage(place.exchange).attempt(place, within(place, under_another))
        return
    pattern = r"of step 1 from \w+: (.* something else was decrypted|masked plaintext)"
    noticed(place, within(place, under_another), pattern)


@pytest.mark.parametrize("place", [place for place in PLACES if place.kind in MASKED], ids=str)
def test_other_plaintexts_than_those_under_the_mask_are_noticed(place: Place) -> None:
    changed = torch.Generator().manual_seed(0)

    def at_random(message: Message) -> tuple[Message, ...]:
        payload = torch.randint(0, 256, message.payload.shape, dtype=torch.uint8, generator=changed)
        return (replace(message, payload=payload),)

    if by_relay(place):
        with pytest.raises(ForgedError, match=FORGED):
            stage(place.exchange).attempt(place, within(place, at_random))
        return
    noticed(place, within(place, at_random), r"(opened|answered) of step 1 from \w+: .*(decrypted|masked plaintext)")


@pytest.mark.parametrize("name", EXCHANGES)
def test_what_is_repeated_from_the_step_before_is_noticed(name: str) -> None:
    old = {(one.sender, one.receiver, one.kind): one.payload for one in stage(name).messages}
    for place in places(name):
        if place.step is None:
            continue
        payload = old[place.sender, place.receiver, place.kind]

        def repeating(message: Message, payload: Tensor = payload) -> tuple[Message, ...]:
            return (replace(message, payload=payload),)

        if (place.exchange, place.kind) in SEALED or (name == "taylor" and place.kind == "tags"):
            # Of members too, whose code was for that step.
            with pytest.raises(ForgedError, match=FORGED):
                stage(name).attempt(place, repeating)
        elif place.kind in ENCRYPTED | MASKED:
            told = "expected new ciphertexts in step 1, number 0, .* came in step 0|else was decrypted|masked plaintext"
            noticed(place, repeating, rf"of step 1 from \w+: .*({told})")
        else:
            stage(name).attempt(place, repeating)


@pytest.mark.parametrize("name", EXCHANGES)
def test_values_above_the_agreed_limit_are_noticed_by_whoever_adds_them_up(name: str) -> None:
    """An owner that encrypts more than was agreed would let slots overflow into their neighbours."""
    kind, sender, receiver = ("residues", "bank", "lab") if name in ("residue", "hybrid") else ("logits", "lab", "bank")
    place = Place(name, sender, receiver, kind, 1)
    side = stage(name).trainer._sides[sender]
    keyed = side._owner or side._evaluator  # type: ignore[attr-defined]
    size = SHORT.layout(BATCH, 1).value_size

    def too_large(message: Message) -> tuple[Message, ...]:
        values = [1000 * size * (-1) ** number for number in range(len(message.payload))]
        public, obfuscators = keyed.public, Powers(keyed.public)
        return (replace(message, payload=encrypted(values, public, obfuscators, limit=None)),)

    with pytest.raises(ProtocolError, match=r"(opened|answered) of step 1 from \w+: .*(else was decrypted|overflow)"):
        stage(name).attempt(place, too_large)


def test_what_the_owner_returns_has_only_the_bits_that_were_asked_for() -> None:
    """Whatever a party asks to have decrypted, the low bits of the agreed number of plaintexts come back."""
    key, seen = other_key(), list[Message]()
    layout = SHORT.layout(BATCH, WIDTHS["lab"])
    asked = (key.public.n - 1) // 3
    reply = Owner(key).encrypt([asked] * layout.replies)
    # Numbers at random are refused mostly: once in a dozen times all of these few are within the agreed limit.
    with contextlib.suppress(ProtocolError):
        Stage(Residue(rows=BATCH, encryption=SHORT, key=key)).attempt(
            Place("residue", "lab", "bank", "sums", 1),
            lambda message: (replace(message, payload=reply),),
            record=seen.append,
        )
    (opened,) = [message.payload for message in seen if (message.kind, message.receiver) == ("opened", "lab")]
    assert opened.shape == (layout.replies, layout.opened_bytes)
    for value, count in zip(tensor_to_integers(opened, layout.opened_bytes), layout.counts, strict=True):
        assert value == asked & ((1 << count * layout.slot_bits) - 1)


@pytest.mark.parametrize(
    ("name", "cheat", "victim", "complaint"),
    [
        ("residue", "bank", "lab", "bank sent another opened for step 1"),
        ("hybrid", "bank", "lab", "bank sent another opened for step 1"),
        ("taylor", "bank", "lab", "bank sent another opened for step 1"),
        ("taylor", "lab", "bank", "lab sent another opened for step 1"),
        ("taylor", "shop", "lab", "bank sent another opened for step 1"),  # who passes it on
    ],
)
def test_who_takes_a_step_again_must_get_the_same_under_other_masks(
    name: str, cheat: str, victim: str, complaint: str
) -> None:
    own = Stage(EXCHANGES[name]())
    parties = {party.name: party for party in own.trainer.training.parties}
    guard = ReplayGuard(())
    parties[victim].remember = guard.admit
    nothing = Place(name, "", "", "", 1)
    for _ in range(2):
        guard.go_back()
        own.attempt(nothing, lambda message: (message,))
    guard.go_back()
    with torch.no_grad():
        next(parties[cheat].module.parameters()).add_(0.125)
    with pytest.raises(ReplayError, match=complaint):
        own.attempt(replace(nothing, receiver=victim), lambda message: (message,))
