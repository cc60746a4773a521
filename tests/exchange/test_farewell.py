"""A meeting ends when all have ended, at the same step."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from splitvfl.conversation import Half, Outbox, converse
from splitvfl.errors import ProtocolError
from splitvfl.exchange.farewell import farewell
from splitvfl.exchange.notes import awaited_note
from splitvfl.messages import Message


def halves(bank: int, telecom: int, shop: int) -> dict[str, Half]:
    return {
        "bank": farewell("bank", ("telecom", "shop"), bank),
        "telecom": farewell("telecom", ("bank",), telecom),
        "shop": farewell("shop", ("bank",), shop),
    }


def test_those_who_ended_together_part() -> None:
    assert converse(halves(7, 7, 7)) == {"bank": None, "telecom": None, "shop": None}


def test_nobody_leaves_before_the_others_have_ended() -> None:
    half = farewell("bank", ("telecom", "shop"), 7)
    assert {one.sender for one in next(half).wait} == {"telecom", "shop"}


@pytest.mark.parametrize("steps", [(8, 7, 7), (7, 8, 7), (7, 7, 6)])
def test_who_ended_elsewhere_is_noticed(steps: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError, match=r"expected farewell of step \d from (bank|telecom|shop), got"):
        converse(halves(*steps))


@pytest.mark.parametrize("facts", [{"steps": 8}, {}, {"steps": "7"}, {"steps": 7, "more": 1}, {"steps": [7]}])
def test_a_farewell_that_says_something_else_is_refused(facts: Any) -> None:
    def stranger() -> Half:
        payload = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
        yield Outbox(
            send=(Message("telecom", "bank", "farewell", 7, payload),), wait=(awaited_note("bank", "farewell", 7),)
        )

    with pytest.raises(ProtocolError, match="bank ended after 7 steps, and telecom did not"):
        converse({"bank": farewell("bank", ("telecom",), 7), "telecom": stranger()})
