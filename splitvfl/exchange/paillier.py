"""Common code of the exchanges under Paillier encryption: agreed numbers, keys and their exchange, and refusals."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Generic, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from splitvfl.crypto.ciphertexts import Seen
from splitvfl.crypto.engine import Engine
from splitvfl.crypto.evaluator import Evaluator, MaskedSums
from splitvfl.crypto.key_agreement import KEY_BYTES
from splitvfl.crypto.key_generation import generate_keys
from splitvfl.crypto.keys import PrivateKey, PublicKey, sent_shape
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.cut.views import SUMS
from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError, CryptoError, DataError, ProtocolError, ReplayError, SumError, WorkerError
from splitvfl.exchange.base import Exchange, Side, check_words
from splitvfl.exchange.linear import check_defenses, check_top, weight_of
from splitvfl.exchange.roll_call import UNSIGNED, Vouching, member_roll_call, vouching_terms
from splitvfl.hooks import hook_name
from splitvfl.learning.settings import Settings
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.own_part import OwnPart
from splitvfl.party.party import MAX_WIDTH, ActiveParty, Party, PassiveParty

_P = TypeVar("_P", bound=Party)
_E = TypeVar("_E", bound="EncryptedExchange")

KEY = "key"
COLUMNS = "columns"

# Beyond it, sums of two integers leave int64.
_LARGEST_INTEGER = 2.0**62
_MOST_STOCK = 2**20  # encryptions of up to 4 KB each


class Encryption(Settings):
    """The settings that parties agree on to compute under encryption.

    Attributes:
        key_bits: Bit length of every key.
        value_bits: Fraction bits of encrypted numbers.
        feature_bits: Fraction bits of columns.
        value_limit: Largest size of an encrypted number; a larger one ends the run, nothing wraps around. ``None``
            takes 16 and, with ``exchange.noise``, what that needs; noise of defenses may need a higher one.
        feature_limit: Largest size of an entry of a column.
        packed: Whether several sums share a ciphertext.
        most_columns: Largest number of columns that a passive party may ask sums for.
        insecure_for_tests: Whether keys shorter than 2048 bits are taken; see :class:`InsecureEncryption`.
    """

    gone: ClassVar = {
        "mask": "delete this key: there is one kind of mask now, which hides whatever is encrypted; the agreed bits "
        "come back"
    }
    insecure_for_tests: ClassVar[bool] = False

    key_bits: Annotated[int, Field(ge=2048, le=16_384, multiple_of=2)] = 3072
    value_bits: Annotated[int, Field(ge=8, le=60)] = 32
    feature_bits: Annotated[int, Field(ge=8, le=60)] = 26
    value_limit: Annotated[float, Field(gt=0)] | None = None
    feature_limit: Annotated[float, Field(gt=0)] = 64.0
    packed: bool = True
    most_columns: Annotated[int, Field(ge=1, le=MAX_WIDTH)] = 4096

    @model_validator(mode="after")
    def _check_sizes(self) -> Encryption:
        for what, limit, bits in (
            ("value", self.value_limit or 1.0, self.value_bits),
            ("feature", self.feature_limit, self.feature_bits),
        ):
            if limit * 2.0**bits >= _LARGEST_INTEGER:
                raise ValueError(
                    f"{what}_limit {limit:g} with {what}_bits {bits} makes integers up to "
                    f"2^{math.log2(limit) + bits:.0f}, and 2^{math.log2(_LARGEST_INTEGER):.0f} is too many: take fewer "
                    "bits, or a lower limit"
                )
        return self

    @property
    def largest_value(self) -> float:
        """Largest size of an encrypted number: ``value_limit``, or 16."""
        return 16.0 if self.value_limit is None else self.value_limit

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party."""
        agreed = {**dict(self), "value_limit": self.largest_value, "insecure_for_tests": self.insecure_for_tests}
        return {f"encryption: {name.replace('_', ' ')}": value for name, value in agreed.items()}

    @property
    def error(self) -> float:
        """Largest error of a mean of products of an encrypted number and a column's entry, by fixed point."""
        return self.layout(1, 1).error

    def layout(self, rows: int, outputs: int) -> ProductLayout:
        """Return the layout of sums over so many rows at most.

        Raises:
            ArgumentError: If a sum does not fit the key.
        """
        return ProductLayout(
            key_bits=self.key_bits,
            rows=rows,
            outputs=outputs,
            value_limit=self.largest_value,
            weight_limit=self.feature_limit,
            value_bits=self.value_bits,
            weight_bits=self.feature_bits,
            packed=self.packed,
        )

    def read_key(self, message: Message) -> PublicKey:
        """Return the public key that a party has sent, its proof verified.

        Raises:
            ProtocolError: If it cannot be one, has another length than agreed, or its proof does not hold.
        """
        with refusing(message):
            return PublicKey.from_tensor(
                message.payload, bits=self.key_bits, insecure_for_tests=self.insecure_for_tests
            )

    def key_of(self, owner: str, payload: Tensor, *, sender: str, receiver: str) -> PublicKey:
        """Return a party's public key that came in a roll call, its proof verified; see :meth:`read_key`."""
        kind = KEY if owner == sender else f"{KEY} passed on for {owner}"
        return self.read_key(Message(sender, receiver, kind, 0, payload.reshape(self.key_shape)))

    @property
    def key_shape(self) -> tuple[int, int]:
        """Rows and bytes of a key as it is sent, with its proof."""
        return sent_shape(self.key_bits)

    @property
    def key_bytes(self) -> int:
        """Bytes of a key as it is sent."""
        rows, width = self.key_shape
        return rows * width

    def awaited_key(self, sender: str) -> Expected:
        """Return what is awaited of a party that has a key."""
        return Expected(sender, KEY, 0, (torch.uint8,), self.key_shape)

    def receive_columns(self, senders: Iterable[str], *, send: tuple[Message, ...] = ()) -> Half:
        """Send something, and return how many sums each passive party asks for at each step: one for each column.

        Raises:
            DataError: As :meth:`checked_columns`.
        """
        inbox = yield Outbox(send, tuple(Expected(name, COLUMNS, 0, (torch.int64,), (1,)) for name in senders))
        return {name: self.checked_columns(int(inbox[name].payload.item()), name) for name in senders}

    def checked_columns(self, count: int, sender: str) -> int:
        """Return a number of sums.

        Raises:
            DataError: If they are none, or more than agreed: each is an equation about what is encrypted.
        """
        if not 1 <= count <= self.most_columns:
            raise DataError(
                f"{sender} asks for {count} sums at each step; agreed are 1 to {self.most_columns} "
                "(exchange.encryption.most_columns)"
            )
        return count

    def check_values(self, values: Tensor, owner: str, step: int) -> None:
        """Check what a party is about to encrypt against the agreed limit.

        Raises:
            CryptoError: If a value is NaN, infinite or larger than agreed: nothing is sent.
        """
        largest = values.abs().max().item() if values.numel() else 0.0
        if not largest <= self.largest_value:
            beyond = int((~(values.abs() <= self.largest_value)).sum())
            raise CryptoError(
                f"{owner} would send a value of size {largest:g} at step {step}, and "
                f"exchange.encryption.value_limit is {self.largest_value:g} ({beyond} of {values.numel()} values "
                f"exceed it): {_what_to_do(step, few=2 * beyond < values.numel())}, or agree on a higher limit (with "
                "Gaussian noise, eight times its standard deviation more; with Laplace noise, 40 times its scale)"
            )

    def check_columns(self, data: PartyData) -> None:
        """Check a party's own columns against the agreed limit.

        Raises:
            DataError: If an entry is larger; it names the column.
        """
        for part in (data.train, data.test):
            if not part.count or (part.row_norm is not None and part.row_norm <= self.feature_limit):
                continue
            largest, row = part.transformed.numeric.abs().max(dim=0)
            for column in (largest > self.feature_limit).nonzero().flatten().tolist():
                raise DataError(
                    f"{data.name}: column {data.numeric_names[column]!r} holds {largest[column].item():g} (record "
                    f"{part.ids[row[column]].item()}), and exchange.encryption.feature_limit is "
                    f"{self.feature_limit:g}: scale the column (data.scale: standard), or agree on a higher limit"
                )


def _what_to_do(step: int, *, few: bool) -> str:
    """Return what helps where values are too large: few of a batch are so for their rows, most for the weights."""
    rows = (
        "scale its columns so that no row is far longer than others (data.scale, log1p or minmax), bound its rows "
        "(model.row_norm), start from smaller weights (model.init), or take a defense that adds less"
    )
    if step == 0 or few:  # no learning rate has had a part in the first step
        return rows
    return f"take a smaller learning rate; or {rows}"


class InsecureEncryption(Encryption):
    """The same with keys that are quick to make, and to break: for tests."""

    insecure_for_tests: ClassVar[bool] = True

    key_bits: int = 512


class EncryptedExchange(Exchange):
    """An exchange under Paillier encryption.

    Args:
        rows: Largest batch.
        encryption: What the parties agree on.
        processes: Worker processes beside this one that share sums and decryption: each party's own business.
        stock: How many encryptions are prepared beforehand by one more process (about two batches, where cores are
            idle), likewise.
        key: This party's key, from a run before, say. Default: a new one for every run.
        engine: Makes what this party computes with, in the place of ``processes`` and ``stock``.
        vouching: How this party proves that its keys are its own, where the active party passes them on, and whose it
            takes. Default: nobody signs, which is for one process.

    Attributes:
        passes_on_keys: Whether the active party passes on keys between parties that have no link.
        residue_unit: How large the number is that is encrypted of a residue of 1, at most.
    """

    gone: ClassVar = {
        "in_flight": "under encryption a step is opened as a whole before the next one begins; leave it out, or take "
        "exchange split"
    }
    multiplied_by = frozenset({"active", "passive"})
    sums_only = True
    limits_values = True
    passes_on_keys: ClassVar[bool] = True
    residue_unit: ClassVar[float] = 1.0

    def __init__(
        self,
        *,
        rows: int,
        encryption: Encryption = Encryption(),  # noqa: B008 - it is frozen
        processes: Annotated[int, Field(ge=0, le=256)] = 0,
        stock: Annotated[int, Field(ge=0, le=_MOST_STOCK)] = 0,
        key: PrivateKey | None = None,
        engine: Callable[[], Engine] | None = None,
        vouching: Vouching = UNSIGNED,
        own_part: OwnPart = "exact",
    ) -> None:
        check_words(own_part=own_part)
        self.rows = rows
        self.own_part = own_part
        self.encryption = encryption
        self.most_sums = encryption.most_columns
        self.key = key
        self.engine = engine or partial(Engine, processes=processes, stock=stock)
        self.vouching = vouching

    def with_engine(self, engine: Engine) -> EncryptedExchange:
        """Return it with what one party of an experiment computes with, which deviates."""
        other = copy.copy(self)
        other.engine = lambda: engine
        return other

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party."""
        vouching = vouching_terms(self.vouching) if self.passes_on_keys else {}
        return {**super().terms(), **self.encryption.terms(), **vouching}

    def encode(self, values: Tensor, owner: str, step: int) -> Tensor:
        """Return what a party is about to encrypt as integers.

        Raises:
            CryptoError: If one is NaN, infinite or larger than agreed: nothing is sent.
        """
        self.encryption.check_values(values, owner, step)
        return self.encryption.layout(self.rows, 1).encode_values(values)

    def sums_layout(self, outputs: int) -> ProductLayout:
        """Return the layout of the sums that a passive party asks for, one for each of its columns."""
        return self.encryption.layout(self.rows, outputs)

    @property
    def most_claimed(self) -> int:
        """Largest number of sums that a party may ask for."""
        return self.encryption.most_columns

    def bytes_of(self, member: str) -> int:
        """Return how many bytes the keys of a member of the roll call have: X25519's, and Paillier's behind it."""
        return KEY_BYTES + self.encryption.key_bytes

    def roll_call(self, member: str, active: str, own: Tensor) -> Half:
        """Return a member's half of the roll call with its keys, uint8 ``(bytes_of(member),)``."""
        return member_roll_call(member, active, own, subject=self.name, length_of=self.bytes_of, vouching=self.vouching)

    def check_noise(self, party: ActiveParty, *, epochs: int) -> None:
        """Check that the agreed limit holds the noise of defenses at the active party, as far as they tell its size.

        Raises:
            ConfigError: If it is lower.
        """
        records = party.data.train.count
        for name, size in _largest_residues(party, records * epochs):
            needed = self.residue_unit * size
            if needed > self.encryption.largest_value:
                raise ConfigError(
                    f"exchange.encryption.value_limit is {self.encryption.largest_value:g}, and {name} sends numbers "
                    f"up to {needed:.4g} in {epochs} epoch{'s' * (epochs > 1)} of {records} records, one of "
                    f"which would end the run: agree on value_limit: {2.0 ** math.ceil(math.log2(needed)):g}, at every "
                    "party, or take a defense that adds less"
                )

    def active(self, party: ActiveParty) -> Side:
        """Return the active party's side.

        Raises:
            ConfigError: If its top does not add up logits, its task is not binary, or a defense of its gradients needs
                what these would be under other labels.
            DataError: If an entry of columns that it computes with exceeds the agreed limit.
        """
        check_top(party, self.name, None if self.hides_parts else self.approximation)
        check_defenses(party, self.name)
        if "active" in self.multiplied_by:
            self.encryption.check_columns(party.data)
        return self.active_side(party)

    def passive(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side.

        Raises:
            ConfigError: If its bottom is not one linear layer without intercept.
            DataError: If an entry of its columns exceeds the agreed limit.
        """
        weight_of(party, self.name)
        self.encryption.check_columns(party.data)
        return self.passive_side(party, active)

    @abstractmethod
    def active_side(self, party: ActiveParty) -> Side:
        """Return the side of an active party that can take part."""

    @abstractmethod
    def passive_side(self, party: PassiveParty, active: str) -> Side:
        """Return the side of a passive party that can take part."""


def _largest_residues(party: ActiveParty, residues: int) -> Iterator[tuple[str, float]]:
    """Yield the defenses of gradients that say how large residues become, with what they say of so many."""
    for cut in party.cuts.values():
        if cut.gradient.row_bound().norm is not None:
            continue  # what comes later makes them shorter again
        for defense in cut.gradient:
            largest: Callable[[int], float] | None = getattr(defense, "largest_residue", None)
            if largest is not None:
                yield hook_name(defense), largest(max(residues, 1))


class EncryptedSide(Side):
    """A side of such an exchange, with what it computes with, and its key if it has one."""

    def __init__(self, exchange: EncryptedExchange) -> None:
        super().__init__()
        self._engine = exchange.engine()
        self._keys = exchange
        self._owner: Owner | None = None
        self._seen: dict[int, Seen] = {}

    def take_key(self) -> Owner:
        """Return the owner of its key, which is made if there is none yet."""
        if self._owner is None:
            limits = self._keys.encryption
            new = self._keys.key or generate_keys(limits.key_bits, insecure_for_tests=limits.insecure_for_tests)
            self._owner = self._engine.owner(new)
        return self._owner

    def owner_of(self, modulus: int) -> Owner | None:
        """Return the owner of the key of a modulus, if it is its own."""
        return self._owner if self._owner is not None and self._owner.public.n == modulus else None

    @property
    def owner(self) -> Owner:
        """The owner of its key, which was sent before the first step."""
        assert self._owner is not None, "keys cross first"
        return self._owner

    def decrypt_masked(self, message: Message, layout: ProductLayout) -> Tensor:
        """Return the masked plaintexts of what a party asks to have decrypted.

        Raises:
            ProtocolError: If these are not the agreed number of ciphertexts; nothing is decrypted then.
        """
        with refusing(message):
            return self.owner.open_masked(message.payload, layout)

    def masked_sums(self, message: Message, evaluator: Evaluator, weights: Tensor) -> MaskedSums:
        """Return masked sums of what a party has encrypted, times weights.

        Raises:
            ProtocolError: If these are no ciphertexts, more than agreed, or not new (:meth:`check_new`).
        """
        with refusing(message):
            masked = evaluator.masked_sums([(message.payload, weights)])
        self.check_new(message, evaluator.public)
        return masked

    def check_new(self, message: Message, public: PublicKey) -> None:
        """Check that what a party has encrypted was not sent in another step, or obfuscated as something before it.

        Raises:
            ProtocolError: If it was.
        """
        with refusing(message):
            self._seen.setdefault(public.n, Seen(public)).check(message.payload, step=message.step)

    def close(self) -> None:
        """End its processes, and forget its key."""
        self._engine.close()
        self._owner = None
        self._seen.clear()


class PartySide(EncryptedSide, Generic[_P, _E]):
    """The side of a party with data, which has others decrypt its sums."""

    def __init__(self, party: _P, exchange: _E) -> None:
        super().__init__(exchange)
        self._party, self._exchange = party, exchange
        self._evaluator: Evaluator | None = None

    @property
    def evaluator(self) -> Evaluator:
        """Its evaluator under the key of another party, which came before the first step."""
        assert self._evaluator is not None, "keys cross first"
        return self._evaluator

    def unmasked(self, message: Message, evaluator: Evaluator, masked: MaskedSums) -> Tensor:
        """Return the sums that this party has asked for, as real numbers, without their masks.

        ``message`` has the masked plaintexts of ``masked``, which ``evaluator`` made.

        Raises:
            SumRefused: If a sum is larger than agreed numbers can make it. It is counted, and after a few the party
                takes no further part in the run.
            ProtocolError: If these are not the agreed number of plaintexts, or longer ones.
        """
        self._party.refusals.check()
        with refusing(message):
            try:
                sums = evaluator.unmask(message.payload, masked)
            except SumError as error:
                raise self._party.refusals.refuse(_name_of(message), str(error)) from error
        return evaluator.layout.decode_sums(sums)

    @contextmanager
    def counting(self, step: int) -> Iterator[None]:
        """Count it like a refused sum if this party's own numbers exceed what was agreed in the block.

        They follow from what others sent and opened before, and others see that the party stops: whoever moves its
        weights by what it opens, or adds to its logits what it sends, would learn without end whether they lie above a
        limit.

        Raises:
            CryptoError: As the block does.
        """
        try:
            yield
        except WorkerError:
            raise
        except CryptoError:
            self._party.refusals.note(f"numbers of its own at step {step} larger than agreed, after what others sent")
            raise

    def remember(self, message: Message, sums: Tensor) -> None:
        """Remember what a message has opened, and count it like a refused sum if it was another before a run went back.

        Whoever encrypts other values then, and opens their sum with an addend, would learn without end whether the two
        sums differ by a number of its choice.

        Raises:
            ReplayError: If it is another one.
        """
        try:
            self._party.remember(replace(message, payload=sums))
        except ReplayError:
            self._party.refusals.note(f"{_name_of(message)}, another one than before")
            raise


class PassiveSide(PartySide[PassiveParty, _E]):
    """The side of a passive party, which has a link with the active one only."""

    shown = SUMS

    def __init__(self, party: PassiveParty, active: str, exchange: _E) -> None:
        super().__init__(party, exchange)
        self._active = active

    def to_active(self, kind: str, step: int, payload: Tensor) -> tuple[Message]:
        """Return a message to the active party, to be sent."""
        return (Message(self._party.name, self._active, kind, step, payload),)

    def from_active(self, kind: str, step: int, shape: tuple[int, ...], *, send: tuple[Message, ...] = ()) -> Half:
        """Send something, and return the active party's next message, of ciphertexts or plaintexts."""
        inbox = yield Outbox(send=send, wait=(awaited_bytes(self._active, kind, step, shape),))
        return inbox[self._active]


@contextmanager
def refusing(message: Message) -> Iterator[None]:
    """Say whose message it is if what it holds is refused in the block.

    Raises:
        ProtocolError: In place of a ``CryptoError``.
    """
    try:
        yield
    except WorkerError:
        raise  # which the sender has nothing to do with
    except CryptoError as error:
        raise ProtocolError(f"{_name_of(message)}: {error}") from error


def _name_of(message: Message) -> str:
    return f"{message.kind} of step {message.step} from {message.sender}"


def awaited_bytes(sender: str, kind: str, step: int, shape: tuple[int, ...]) -> Expected:
    """Return what is awaited of ciphertexts or plaintexts."""
    return Expected(sender, kind, step, (torch.uint8,), shape)


def scatter(payloads: Mapping[str, Tensor], sender: str, kind: str, step: int) -> tuple[Message, ...]:
    """Return a message for each receiver."""
    return tuple(Message(sender, receiver, kind, step, payload) for receiver, payload in payloads.items())
