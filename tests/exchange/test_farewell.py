"""Nobody leaves before all have done everything, and the active party has noted it."""

from __future__ import annotations

import pytest

from splitvfl.errors import ProtocolError
from splitvfl.exchange.farewell import active_farewell, farewell
from splitvfl.messaging.conversation import converse
from splitvfl.messaging.messages import Message


def test_the_active_party_hears_all_notes_it_and_has_the_last_word() -> None:
    order: list[str] = []

    def record(message: Message) -> None:
        order.append(f"{message.sender} to {message.receiver}")

    halves = {
        "bank": active_farewell("bank", ("telecom", "shop"), 7, lambda: order.append("noted")),
        "telecom": farewell("telecom", ("bank",), 7),
        "shop": farewell("shop", ("bank",), 7),
    }
    converse(halves, record=record)
    assert order == ["telecom to bank", "shop to bank", "noted", "bank to telecom", "bank to shop"]


def test_who_ended_elsewhere_is_named_and_nothing_is_noted() -> None:
    noted: list[str] = []
    halves = {
        "bank": active_farewell("bank", ("telecom",), 7, lambda: noted.append("noted")),
        "telecom": farewell("telecom", ("bank",), 6),
    }
    with pytest.raises(ProtocolError, match="farewell of step 7 from telecom, got farewell of step 6"):
        converse(halves)
    assert noted == []
