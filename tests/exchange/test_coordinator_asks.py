"""An active party that asks the coordinator for what it likes: what it reads, as the threat model says it can."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from splitvfl.conversation import Half, Outbox, converse
from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.paillier import generate_keys
from splitvfl.errors import DataError
from splitvfl.exchange.agreement import agreement
from splitvfl.exchange.coordinator import _END, NAME, Coordinator, ThirdParty
from splitvfl.exchange.paillier import COLUMNS, awaited_bytes
from splitvfl.exchange.roll_call import active_roll_call
from splitvfl.messages import Message
from tests.exchange.logistic import BATCH, SHORT

KEY = generate_keys(512, insecure_for_tests=True)
SUMS = 8


def asking(exchange: Coordinator, sent: Tensor, *, turns: list[int], sums: int) -> Half:
    """Name itself alone, and ask for single numbers that others have encrypted as if they were sums of its columns."""
    yield from agreement("bank", (NAME,), exchange.agreed)
    said = yield from active_roll_call("bank", {NAME: exchange.bytes_of(NAME)}, exchange.vouching)
    public = exchange.encryption.key_of(NAME, said[NAME], sender=NAME, receiver="bank")
    yield Outbox(send=(Message("bank", NAME, COLUMNS, 0, torch.tensor([sums])),))
    budget = exchange.budget(sums, 1)
    asker, read = Evaluator(public, budget), []
    for number, turn in enumerate(turns):
        mine = sent[number * sums : (number + 1) * sums]
        masked = asker.masked_sums([(mine, torch.eye(sums, dtype=torch.int64))])
        inbox = yield Outbox(
            send=(
                Message("bank", NAME, "turn", 0, torch.tensor([turn])),
                Message("bank", NAME, "asked", turn, masked.reply),
            ),
            wait=(awaited_bytes(NAME, "answered", turn, (budget.replies * budget.opened_bytes,)),),
        )
        read += asker.unmask(inbox[NAME].payload.reshape(budget.replies, budget.opened_bytes), masked)
    yield Outbox(send=(Message("bank", NAME, "turn", 0, torch.tensor([_END])),))
    return read


def test_an_active_party_reads_every_part_of_the_logits_by_steps_that_nobody_else_takes() -> None:
    """The coordinator hears of steps from the active party alone."""
    exchange = Coordinator(rows=BATCH, encryption=SHORT, key=KEY)
    parts = [(-1) ** place * place << 20 for place in range(4 * SUMS)]
    sent = Evaluator(KEY.public, exchange.budget(1, 1)).encrypt(parts)
    served = ThirdParty("bank", exchange)
    found = converse({"bank": asking(exchange, sent, turns=[0, 0, 7, 0], sums=SUMS), NAME: served.serve()})
    assert found["bank"] == parts
    assert served.served == 4


def test_of_each_step_it_gets_no_more_sums_than_are_agreed() -> None:
    exchange = Coordinator(rows=BATCH, encryption=replace(SHORT, most_columns=SUMS - 1), key=KEY)
    sent = Evaluator(KEY.public, exchange.budget(1, 1)).encrypt([0] * SUMS)
    with pytest.raises(DataError, match="asks for 8 sums"):
        converse({"bank": asking(exchange, sent, turns=[0], sums=SUMS), NAME: ThirdParty("bank", exchange).serve()})
