"""An active party that changes what it passes on between parties that have no link, keys aside: what it reads with it.

Keys are signed in a roll call that works. The parties are live: what the active party makes goes through real keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.crypto import tags
from splitvfl.crypto.ciphertexts import encrypted
from splitvfl.crypto.evaluator import Evaluator, MaskedSums
from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.crypto.key_agreement import AgreementKey
from splitvfl.crypto.keys import PublicKey
from splitvfl.crypto.obfuscators import Powers
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.crypto.tags import Tags
from splitvfl.data.columns import NO_RECORDS
from splitvfl.errors import ForgedError, SplitVFLError, SumRefused
from splitvfl.exchange.coordinator import NAME, Coordinator
from splitvfl.exchange.paillier import EncryptedExchange
from splitvfl.exchange.roll_call import NONCE_BYTES, UNSIGNED, _session
from splitvfl.exchange.taylor import Taylor
from splitvfl.messaging.conversation import Half, converse
from splitvfl.messaging.messages import Message
from splitvfl.party.refusals import MOST
from splitvfl.run.trainer import Trainer
from tests.exchange.logistic import BATCH, SHORT, trainer_of, weights_of
from tests.exchange.test_roll_call import changing, vouching

WIDTHS = {"lab": 4, "shop": 2}
# A number that is read errs by its own fraction bits and by those of the weight it is multiplied with.
READ = 1e-6
Change = Callable[[Message], Message]


def trainer_for(
    kind: type[EncryptedExchange], widths: Mapping[str, int] = WIDTHS, *, signs: bool = True, meets: bool = True
) -> Trainer:
    """Parties that vouch for their keys, and have met."""
    members = (*widths, *((NAME,) if kind is Coordinator else ()))
    # In one process the coordinator's side is made by the active party's exchange.
    signers = {"bank": NAME if kind is Coordinator else "bank", **{name: name for name in widths}}
    by_party = {
        party: kind(rows=BATCH, encryption=SHORT, vouching=vouching(signer, members) if signs else UNSIGNED)
        for party, signer in signers.items()
    }
    trainer = trainer_of(by_party, widths)  # type: ignore[arg-type]
    if meets:
        meet(trainer)
    return trainer


def meet(trainer: Trainer) -> None:
    converse({name: side.open() for name, side in trainer._sides.items()})


def exchange_of(trainer: Trainer) -> Any:
    side: Any = trainer._sides["bank"]
    return side._exchange


def layout_of(exchange: Taylor | Coordinator, columns: int) -> ProductLayout:
    """Return the layout of the sums of a party of so many columns, and of its intercept's under exchange taylor."""
    return exchange.sums_layout(columns + 1) if isinstance(exchange, Taylor) else exchange.layout(columns, 3)


def public_of(trainer: Trainer, owner: str) -> PublicKey:
    side: Any = trainer._sides[owner]
    return side._owner.public


def halves_of(trainer: Trainer, change: Change, *, step: int = 0) -> dict[str, Half]:
    rows = trainer.batches.epoch(0)[step]
    batches: dict[str, Any] = {party.name: party.train_batch(rows) for party in trainer.training.parties}
    halves = {name: side.step(batches.get(name, NO_RECORDS), step) for name, side in trainer._sides.items()}
    return {**halves, "bank": changing(halves["bank"], change)}


def logits_of(trainer: Trainer, name: str, *, step: int = 0) -> Tensor:
    """What a passive party encrypts."""
    party = trainer.passives[name]
    columns = party.train_batch(trainer.batches.epoch(0)[step]).columns.numeric
    with torch.no_grad():
        return party.bottom(columns)[:, 0].double()


def picking(evaluator: Evaluator, logits: Tensor, places: Sequence[int]) -> MaskedSums:
    """Ask for single records' numbers, in the place of sums."""
    weights = torch.zeros(len(logits), len(places), dtype=torch.float64)
    weights[[*places], range(len(places))] = 1.0
    return evaluator.masked_sums([(logits, evaluator.layout.encode_weights(weights))])


@dataclass
class Reader:
    """An active party that puts requests of its own in the place of a passive party's, and reads what comes back.

    Attributes:
        public: The key under which it asks.
        layout: Of what the other party asks for.
        places: The records whose numbers it wants, in the place of sums.
    """

    public: PublicKey
    layout: ProductLayout
    places: Sequence[int]
    mine: MaskedSums | None = None
    read: Tensor | None = None

    def ask(self, logits: Tensor) -> Tensor:
        self.evaluator = Evaluator(self.public, self.layout)
        self.mine = picking(self.evaluator, logits, self.places)
        return self.mine.reply

    def look(self, answer: Tensor) -> None:
        assert self.mine is not None
        plain = answer.flatten()[: self.layout.replies * self.layout.opened_bytes]
        sums = self.evaluator.unmask(plain.reshape(self.layout.replies, -1), self.mine)
        self.read = self.layout.decode_sums(sums)


def listening(half: Half, hear: Callable[[Message], None]) -> Half:
    """A half that tells what it receives, before it looks at it."""
    outbox = next(half)
    while True:
        inbox = yield outbox
        for message in inbox.values():
            hear(message)
        try:
            outbox = half.send(inbox)
        except StopIteration as stop:
            return stop.value


def over(start: Tensor, payload: Tensor) -> Tensor:
    """The payload with something else at its beginning."""
    flat = payload.clone().flatten()
    flat[: start.numel()] = start.flatten()
    return flat.reshape(payload.shape)


@pytest.fixture(params=[True, False], ids=["codes", "without"])
def checked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether codes are looked at: what an attack reads where they are not says what they are for."""
    if not request.param:
        monkeypatch.setattr(tags.hmac, "compare_digest", lambda one, other: True)
    return bool(request.param)


def attack(
    trainer: Trainer, change: Change, hear: Callable[[Message], None] = lambda message: None
) -> Exception | None:
    """Take a step with an active party that deviates; return the error that ends it, if one does."""
    before = weights_of(trainer)
    halves = halves_of(trainer, change)
    try:
        converse({**halves, "bank": listening(halves["bank"], hear)})
    except SplitVFLError as error:
        assert torch.equal(weights_of(trainer)["shop"], before["shop"])  # where every attack below is, or nobody learns
        return error
    return None


def forged(error: Exception | None, kind: str, sender: str, trainer: Trainer) -> bool:
    """Return whether that is how an attack ends: for good, with both names, and nothing is counted as refused."""
    assert isinstance(error, ForgedError), repr(error)
    assert re.search(rf"bank passed on {kind} of step 0 in the name of {sender}, and", str(error)), str(error)
    assert error.final
    return not any(len(party.refusals) for party in (trainer.active, *trainer.passives.values()))


def test_it_reads_no_logits_by_asking_in_anothers_name(checked: bool) -> None:
    trainer = trainer_for(Taylor)
    layout = exchange_of(trainer).sums_layout(WIDTHS["shop"] + 1)
    reader = Reader(public_of(trainer, "lab"), layout, (0, 5, 9))
    logits: list[Tensor] = []

    def hear(message: Message) -> None:
        if (message.sender, message.kind) == ("lab", "logits"):
            logits.append(message.payload)
        if (message.sender, message.kind) == ("lab", "answered"):
            reader.look(message.payload)

    def ask(message: Message) -> Message:
        if (message.kind, message.receiver) != ("asked", "lab"):
            return message
        return replace(message, payload=over(reader.ask(logits[0][:BATCH]), message.payload))

    truth = logits_of(trainer, "lab")[[0, 5, 9]]
    error = attack(trainer, ask, hear)
    if checked:
        assert forged(error, "asked", "shop", trainer)
        assert reader.read is None
    else:
        assert reader.read is not None
        torch.testing.assert_close(reader.read, truth, rtol=0, atol=READ)


def test_it_reads_no_logit_in_the_product_with_one_that_it_made_up(checked: bool) -> None:
    trainer = trainer_for(Taylor)
    public = public_of(trainer, "lab")
    values = exchange_of(trainer).encode(torch.eye(BATCH, dtype=torch.float64)[3], "lab", 0)
    made = encrypted(values.tolist(), public, Powers(public), limit=None)
    products: list[float] = []

    def hand_out(message: Message) -> Message:
        if (message.kind, message.receiver) != ("relayed", "shop"):
            return message
        return replace(message, payload=over(made, message.payload))

    def hear(message: Message) -> None:
        if (message.sender, message.kind) == ("shop", "products"):
            products.append(message.payload.item())

    truth = logits_of(trainer, "shop")[3].item()
    error = attack(trainer, hand_out, hear)
    if checked:
        assert forged(error, "logits", "lab", trainer)
        assert not products
    else:
        assert error is None  # nothing is noticed
        assert products == pytest.approx([truth], abs=READ)


@pytest.mark.parametrize(
    ("kind", "what", "owner"),
    [(Taylor, "answered", "lab"), (Coordinator, "opened", NAME)],
    ids=["taylor", "coordinator"],
)
def test_it_makes_no_party_refuse_a_sum_that_another_has_opened(
    kind: Any, what: str, owner: str, checked: bool
) -> None:
    trainer = trainer_for(kind)
    layout = layout_of(exchange_of(trainer), WIDTHS["shop"])
    size = layout.replies * layout.opened_bytes

    def bend(message: Message) -> Message:
        if (message.kind, message.receiver) != (what, "shop"):
            return message
        numbers = tensor_to_integers(message.payload[:size].reshape(layout.replies, -1), layout.opened_bytes)
        numbers[0] = (numbers[0] + (3 << (layout.slot_bits - 3))) % (1 << layout.opened_bits[0])
        return replace(message, payload=over(integers_to_tensor(numbers, layout.opened_bytes), message.payload))

    errors = [attack(trainer, bend) for _ in range(1 if checked else MOST)]
    if checked:
        assert forged(errors[0], what, owner, trainer)
    else:
        assert all(isinstance(error, SumRefused) for error in errors)
        assert f"{what} of step 0 from {owner}" in str(errors[0])  # who has not done it
        assert len(trainer.passives["shop"].refusals) == MOST


def test_the_coordinator_decrypts_nothing_for_it_in_anothers_name(checked: bool) -> None:
    trainer = trainer_for(Coordinator)
    own, of_lab = (exchange_of(trainer).layout(count, 3) for count in (4, WIDTHS["lab"]))
    reader = Reader(public_of(trainer, NAME), of_lab, (0, 5, 9, 2))
    logits: list[Tensor] = []

    def hear(message: Message) -> None:
        if (message.sender, message.kind) == ("lab", "logits"):
            logits.append(message.payload)
        if message.kind == "answered":
            reader.look(message.payload[own.replies * own.opened_bytes :])

    def ask(message: Message) -> Message:
        if message.kind != "asked":
            return message
        start = own.replies * reader.public.ciphertext_bytes
        mine = over(reader.ask(logits[0]), message.payload[start:])
        return replace(message, payload=torch.cat([message.payload[:start], mine]))

    truth = logits_of(trainer, "lab")[[0, 5, 9, 2]]
    error = attack(trainer, ask, hear)
    if checked:
        assert forged(error, "sums", "lab", trainer)
        assert reader.read is None
    else:
        assert reader.read is not None
        torch.testing.assert_close(reader.read, truth, rtol=0, atol=READ)


# --- every message that is passed on, damaged in every way


THREE = {"lab": 4, "shop": 2, "telecom": 3}


@dataclass(frozen=True)
class Place:
    """A message that the active party sends on, where the parts of others in it begin, and how long they are."""

    exchange: type[EncryptedExchange]
    kind: str
    receiver: str

    def __str__(self) -> str:
        return f"{self.exchange.__name__.lower()}: {self.kind} to {self.receiver}"


PLACES = [
    *(Place(Taylor, kind, "shop") for kind in ("relayed", "asked", "answered")),
    Place(Coordinator, "asked", NAME),
    Place(Coordinator, "opened", "shop"),
]


def spans(trainer: Trainer, place: Place) -> dict[str, tuple[int, int]]:
    """Where in a message each party's part begins and ends, from what the parties' columns are."""
    exchange, width = exchange_of(trainer), SHORT.key_bits // 4
    if place.exchange is Taylor:
        asked = {name: exchange.sums_layout(count + 1) for name, count in THREE.items()}
        sizes = {
            "relayed": dict.fromkeys(THREE, BATCH * width),
            "asked": {name: one.replies * width for name, one in asked.items()},
            "answered": dict.fromkeys(THREE, asked["shop"].replies * asked["shop"].opened_bytes),
        }[place.kind]
        sizes = {name: size + 32 for name, size in sizes.items() if name != place.receiver}
        start = 0
    else:
        asked = {name: exchange.layout(count, 4) for name, count in THREE.items()}
        of_shop = {NAME: asked["shop"].replies * asked["shop"].opened_bytes + 32}
        of_all = {name: one.replies * width + 32 for name, one in asked.items()}
        sizes = of_all if place.kind == "asked" else of_shop
        start = exchange.layout(4, 4).replies * width if place.kind == "asked" else 0
    found = {}
    for name, size in sizes.items():
        found[name] = (start, start + size)
        start += size
    return found


@cache
def stage(kind: type[EncryptedExchange]) -> Trainer:
    return trainer_for(kind, THREE)


def attempt(place: Place, change: Change, *, steps: Sequence[int] = (0,)) -> Exception:
    """Meet anew, and take steps in which one message is changed; return the error that ends them."""
    trainer = stage(place.exchange)
    meet(trainer)

    def changed(message: Message) -> Message:
        return change(message) if (message.kind, message.receiver) == (place.kind, place.receiver) else message

    before = weights_of(trainer)
    for step in steps:
        try:
            converse(halves_of(trainer, changed, step=step))
        except SplitVFLError as error:
            after = weights_of(trainer)
            assert place.receiver == NAME or torch.equal(after[place.receiver], before[place.receiver])
            assert not any(len(party.refusals) for party in trainer.training.parties)
            return error
        before = weights_of(trainer)
    raise AssertionError("nothing was noticed")


def told(error: Exception, place: Place, sender: str, step: int = 0) -> None:
    kind = {"relayed": "logits", "asked": "sums" if place.exchange is Coordinator else "asked"}.get(
        place.kind, place.kind
    )
    assert isinstance(error, ForgedError), repr(error)
    assert f"bank passed on {kind} of step {step} in the name of {sender}, and it is not what {sender} sent " in str(
        error
    )


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_bit_of_each_part_and_of_each_code_is_missed(place: Place) -> None:
    for sender, (start, end) in spans(stage(place.exchange), place).items():
        for spot in (start, end - 33, end - 32, end - 1):

            def flip(message: Message, spot: int = spot) -> Message:
                payload = message.payload.clone()
                payload[spot] ^= 1 << (spot % 8)
                return replace(message, payload=payload)

            told(attempt(place, flip), place, sender)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_one_of_another_step_is_missed(place: Place) -> None:
    """The same kind, pair and direction, and everything about it right but the step."""
    sent: list[Tensor] = []

    def older(message: Message) -> Message:
        sent.append(message.payload)
        return replace(message, payload=sent[0])

    sender = next(iter(spans(stage(place.exchange), place)))
    told(attempt(place, older, steps=(0, 1)), place, sender, step=1)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_one_of_another_meeting_is_missed(place: Place) -> None:
    """The same kind, step, pair and direction, in the same place; weights have not changed."""
    kept: list[Tensor] = []

    def keep(message: Message) -> Message:
        kept.append(message.payload)
        return replace(message, payload=message.payload[:-1])  # which ends the step

    attempt(place, keep)
    sender = next(iter(spans(stage(place.exchange), place)))
    told(attempt(place, lambda message: replace(message, payload=kept[0])), place, sender)


@pytest.mark.parametrize(
    "place", [place for place in PLACES if place.kind == "relayed" or place.kind == "answered"], ids=str
)
def test_parts_of_one_form_in_each_others_place_are_missed(place: Place) -> None:
    (first, one), (_, other) = spans(stage(place.exchange), place).items()

    def swap(message: Message) -> Message:
        payload = message.payload
        return replace(message, payload=torch.cat([payload[slice(*other)], payload[slice(*one)]]))

    told(attempt(place, swap), place, first)


def test_what_was_sent_to_another_party_is_missed() -> None:
    """Both get the same ciphertexts, each with a code of its own."""
    place = Place(Taylor, "relayed", "shop")
    trainer = stage(Taylor)
    meet(trainer)

    def hand_out(message: Message) -> Message:
        # Of the lab, to shop and telecom, whose messages are made in this order.
        if message.kind != "tags":
            return message
        return replace(message, payload=torch.stack([message.payload[1], message.payload[1]]))

    halves = halves_of(trainer, lambda message: message)
    with pytest.raises(ForgedError) as caught:
        converse({**halves, "lab": changing(halves["lab"], hand_out)})
    told(caught.value, place, "lab")


@pytest.mark.parametrize(("kind", "theirs"), [("asked", "answered"), ("relayed", "asked")])
def test_a_code_of_another_kind_or_of_its_own_is_missed(kind: str, theirs: str) -> None:
    """Its own message comes back to it, or the code of another one that the same party has sent before."""
    place = Place(Taylor, kind, "shop")
    found: dict[str, Tensor] = {}
    trainer = stage(Taylor)
    meet(trainer)

    def hear(message: Message) -> None:
        if message.sender == "shop":
            found[message.kind] = message.payload

    def reflect(message: Message) -> Message:
        if (message.kind, message.receiver) != (kind, "shop"):
            return message
        start, end = spans(trainer, place)["lab"]
        payload = message.payload.clone()
        # What shop has sent for the lab stands first.
        source = found["tags"][0] if kind == "relayed" else found["asked"][: end - start][-32:]
        payload[end - 32 : end] = source
        return replace(message, payload=payload)

    halves = halves_of(trainer, reflect)
    with pytest.raises(ForgedError) as caught:
        converse({**halves, "bank": listening(halves["bank"], hear)})
    told(caught.value, place, "lab")


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("form", ["shorter", "longer", "without codes", "none"])
def test_another_length_is_refused_before_anything_is_compared(place: Place, form: str) -> None:
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "shorter": lambda payload: payload[:-1],
        "longer": lambda payload: torch.cat([payload, payload[:1]]),
        "without codes": lambda payload: payload[:-32],
        "none": lambda payload: payload[:0],
    }
    error = attempt(place, lambda message: replace(message, payload=forms[form](message.payload)))
    assert not isinstance(error, ForgedError)
    assert f"expected {place.kind} of step 0 from bank to be" in str(error)


@pytest.mark.parametrize("exchange", [Taylor, Coordinator])
def test_other_numbers_of_sums_than_a_party_has_are_missed(exchange: Any) -> None:
    """As many ciphertexts and bytes, but one sum less: its owner would return other bits than were asked for."""
    counts = {"lab": 4, "shop": 22}
    trainer = trainer_for(exchange, counts, meets=False)
    layouts = [layout_of(exchange_of(trainer), count) for count in (22, 21)]
    assert len({(one.replies, one.opened_bytes) for one in layouts}) == 1
    assert len({one.opened_bits for one in layouts}) == 2

    def fewer(message: Message) -> Message:
        if (message.kind, message.receiver) not in {("peers", "lab"), ("columns", NAME)}:
            return message
        return replace(message, payload=torch.where(message.payload == 22, 21, message.payload))

    halves = {name: side.open() for name, side in trainer._sides.items()}
    converse({**halves, "bank": changing(halves["bank"], fewer)})
    error = attack(trainer, lambda message: message)
    assert forged(error, "asked" if exchange is Taylor else "sums", "shop", trainer)


# --- what does not hold


def test_where_keys_are_not_signed_an_active_party_makes_codes_in_everybodys_name() -> None:
    """It has handed out a key of its own to each of the two."""
    own = {name: AgreementKey() for name in WIDTHS}
    trainer = trainer_for(Taylor, signs=False, meets=False)
    truth = logits_of(trainer, "lab")[[0, 5, 9]]
    said: dict[str, Tensor] = {}  # what each has sent of keys and nonces
    shown: dict[str, Tensor] = {}  # what each has got as the other's

    def hand_out(message: Message) -> Message:
        if message.kind != "member":
            return message
        payload = message.payload.clone()
        other = "lab" if message.receiver == "shop" else "shop"
        said[other] = message.payload
        payload[NONCE_BYTES : NONCE_BYTES + 32] = own[other].public
        shown[message.receiver] = payload
        return replace(message, payload=payload)

    halves = {name: side.open() for name, side in trainer._sides.items()}
    converse({**halves, "bank": changing(halves["bank"], hand_out)})

    # To each it is the other.
    codes, others = {}, {"lab": "shop", "shop": "lab"}
    for victim, other in others.items():
        session = _session("taylor", "bank", {victim: said[victim], other: shown[victim]})
        keys = {victim: bytes(said[victim][NONCE_BYTES : NONCE_BYTES + 32].tolist())}
        codes[victim] = Tags(other, "bank", own[other], keys, session=session)
    reader = Reader(public_of(trainer, "lab"), exchange_of(trainer).sums_layout(WIDTHS["shop"] + 1), (0, 5, 9))
    logits: list[Tensor] = []

    def hear(message: Message) -> None:
        if (message.sender, message.kind) == ("lab", "logits"):
            logits.append(message.payload)
        if (message.sender, message.kind) == ("lab", "answered"):
            reader.look(message.payload)

    def ask(message: Message) -> Message:
        victim = message.receiver
        if message.kind not in ("relayed", "asked"):
            return message
        content = message.payload[:-32]
        if (message.kind, victim) == ("asked", "lab"):
            content = reader.ask(logits[0][:BATCH])
        kind, count = ("logits", BATCH) if message.kind == "relayed" else ("asked", WIDTHS[others[victim]] + 1)
        return replace(message, payload=codes[victim].sealed(victim, content, kind=kind, step=0, count=count))

    halves = halves_of(trainer, ask)
    with pytest.raises(ForgedError, match="passed on answered"):  # for which it had only to do the same
        converse({**halves, "bank": listening(halves["bank"], hear)})
    assert reader.read is not None
    torch.testing.assert_close(reader.read, truth, rtol=0, atol=READ)
