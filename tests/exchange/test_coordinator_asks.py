"""An active party that asks the coordinator for what it likes: what it reads, as the threat model says it can."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.key_agreement import KEY_BYTES, AgreementKey
from splitvfl.crypto.paillier import generate_keys
from splitvfl.errors import DataError, ProtocolError
from splitvfl.exchange.coordinator import _END, NAME, Coordinator, ThirdParty
from splitvfl.exchange.handshake import agreement
from splitvfl.exchange.paillier import COLUMNS, awaited_bytes
from splitvfl.exchange.passing_on import PassedOn, sealed_bytes
from splitvfl.exchange.roll_call import active_roll_call, member_roll_call
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message
from tests.exchange.logistic import BATCH, SHORT

KEY = generate_keys(512, insecure_for_tests=True)
SUMS = 8


def vouching(exchange: Coordinator, ends: list[PassedOn]) -> Half:
    """A passive party that sends the coordinator what the active party wants: a puppet of it, or one made up."""
    key = AgreementKey()
    roll = yield from member_roll_call(
        "lab", "bank", key.public, subject=exchange.name, length_of=exchange.bytes_of, vouching=exchange.vouching
    )
    ends.append(PassedOn("lab", "bank", key, {NAME: roll.keys[NAME][:KEY_BYTES]}, roll.session))


def asking(exchange: Coordinator, sent: Tensor, ends: list[PassedOn], *, turns: list[int], sums: int) -> Half:
    """Ask for single numbers that others have encrypted as if they were sums of its columns."""
    yield from agreement("bank", (NAME,), exchange.agreed)
    lengths = {name: exchange.bytes_of(name) for name in ("lab", NAME)}
    said = yield from active_roll_call("bank", lengths, exchange.vouching)
    public = exchange.encryption.key_of(NAME, said[NAME][KEY_BYTES:], sender=NAME, receiver="bank")
    yield Outbox(send=(Message("bank", NAME, COLUMNS, 0, torch.tensor([sums, 1])),))
    layout, other = exchange.layout(sums, 2), exchange.layout(1, 2)
    asker, read = Evaluator(public, layout), []
    for number, turn in enumerate(turns):
        mine = sent[number * sums : (number + 1) * sums]
        masked = asker.masked_sums([(mine, torch.eye(sums, dtype=torch.int64))])
        theirs = ends[0].to_others({NAME: asker.encrypt([0] * other.replies)}, "sums", turn, {NAME: other.outputs})
        size = layout.replies * layout.opened_bytes
        whole = size + sealed_bytes((other.replies, other.opened_bytes))
        inbox = yield Outbox(
            send=(
                Message("bank", NAME, "turn", 0, torch.tensor([turn])),
                Message("bank", NAME, "asked", turn, torch.cat([masked.reply.flatten(), theirs])),
            ),
            wait=(awaited_bytes(NAME, "answered", turn, (whole,)),),
        )
        opened = inbox[NAME].payload[:size].reshape(layout.replies, layout.opened_bytes)
        read += asker.unmask(opened, masked)
    yield Outbox(send=(Message("bank", NAME, "turn", 0, torch.tensor([_END])),))
    return read


def test_an_active_party_reads_every_part_of_the_logits_as_sums_of_its_own() -> None:
    """With one passive party that vouches for what it wants, also in steps that nobody else takes."""
    exchange, ends = Coordinator(rows=BATCH, encryption=SHORT, key=KEY), []
    parts = [(-1) ** place * place << 20 for place in range(4 * SUMS)]
    sent = Evaluator(KEY.public, exchange.layout(1, 1)).encrypt(parts)
    served = ThirdParty("bank", exchange)
    asks = asking(exchange, sent, ends, turns=[0, 0, 7, 0], sums=SUMS)
    found = converse({"bank": asks, "lab": vouching(exchange, ends), NAME: served.serve()})
    assert found["bank"] == parts
    assert served.served == 4


def test_of_each_step_it_gets_no_more_sums_than_are_agreed() -> None:
    capped = SHORT.model_copy(update={"most_columns": SUMS - 1})
    exchange, ends = Coordinator(rows=BATCH, encryption=capped, key=KEY), []
    sent = Evaluator(KEY.public, exchange.layout(1, 1)).encrypt([0] * SUMS)
    asks = asking(exchange, sent, ends, turns=[0], sums=SUMS)
    with pytest.raises(DataError, match="asks for 8 sums"):
        converse({"bank": asks, "lab": vouching(exchange, ends), NAME: ThirdParty("bank", exchange).serve()})


def test_it_does_not_ask_without_any_passive_party() -> None:
    exchange = Coordinator(rows=BATCH, encryption=SHORT, key=KEY)

    def alone() -> Half:
        yield from agreement("bank", (NAME,), exchange.agreed)
        yield from active_roll_call("bank", {NAME: exchange.bytes_of(NAME)}, exchange.vouching)

    with pytest.raises(ProtocolError, match="bank names no passive party"):
        converse({"bank": alone(), NAME: ThirdParty("bank", exchange).serve()})
