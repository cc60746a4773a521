"""A meeting of three: what the others are told when one of them ends it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from splitvfl.errors import DataError, LinkError, RefusedError, SplitVFLError, TeamError
from splitvfl.messaging.conversation import Expected
from splitvfl.net.frames import Hello
from splitvfl.net.meeting import Meeting, Partner
from splitvfl.net.tls import Plaintext

HERE = Plaintext(plaintext_on_loopback=True)

# Longer than anything here takes, and far below the time for which a partner would dial again.
ENOUGH_S = 20.0


def _never_sent(sender: str) -> Expected:
    return Expected(sender, "activation", 0, (torch.float32,), (1,))


def _partner(name: str, port: int, ends: Callable[[], None]) -> None:
    """Meet the bank, and end the meeting."""
    place = Meeting(
        Hello(name, "credit", "passive"), [Partner("bank", "bank", f"127.0.0.1:{port}")], HERE, wait_s=ENOUGH_S
    )
    with place, place.meet() as links:
        ends()
        links["bank"].receive(_never_sent("bank"), timeout=ENOUGH_S)


def _bank(place: Meeting, met: Event) -> None:
    """Meet both, and wait for the shop's word."""
    with place.meet() as links:
        met.set()
        links["shop"].receive(_never_sent("shop"), timeout=ENOUGH_S)


def _waits() -> None:
    """Leave it to the bank to end the meeting."""


def _disagrees() -> None:
    raise DataError("the shop has other terms")


def _breaks() -> None:
    raise LinkError("the shop lost its network")


@pytest.mark.parametrize(
    ("lasting", "ends", "kind", "told"),
    [
        (False, _disagrees, RefusedError, "bank ended the link for good: another party ended the run for good"),
        (False, _breaks, LinkError, "bank took its leave: it lost another party"),
        # The lab of a service waits for the bank, whatever the shop says.
        (True, _disagrees, LinkError, "bank took its leave: another party ended the run for good"),
    ],
)
def test_who_is_left_by_one_tells_the_others_whether_to_dial_again(
    lasting: bool, ends: Callable[[], None], kind: type[SplitVFLError], told: str
) -> None:
    listening = Meeting(
        Hello("bank", "credit", "active"),
        [Partner(name, name) for name in ("lab", "shop")],
        HERE,
        listen="127.0.0.1:0",
        wait_s=ENOUGH_S,
        lasting=lasting,
    )
    met = Event()

    def ends_once_met() -> None:
        # Who is gone before it was met is waited for again.
        assert met.wait(ENOUGH_S)
        ends()

    with ThreadPoolExecutor(2) as pool, listening as place:
        assert place.port is not None
        lab = pool.submit(_partner, "lab", place.port, _waits)
        shop = pool.submit(_partner, "shop", place.port, ends_once_met)
        with pytest.raises(RefusedError if ends is _disagrees else kind):
            _bank(place, met)
        with pytest.raises(kind, match=told) as caught:
            lab.result(ENOUGH_S)
        with pytest.raises(SplitVFLError, match="the shop "):
            shop.result(ENOUGH_S)
    assert "other terms" not in str(caught.value), "what one party says of its data goes to nobody else"


@pytest.mark.parametrize(
    ("error", "greeted"),
    [
        (KeyboardInterrupt(), False),
        (DataError("the columns have changed"), False),
        (TeamError("worker 1 is gone", final=True), False),
        (LinkError("a link broke"), True),
    ],
)
def test_who_is_about_to_go_greets_nobody_and_who_meets_again_does(error: BaseException, greeted: bool) -> None:
    """Else a partner that comes back at once would be greeted, and dropped, until it had no tries left."""
    place = Meeting(
        Hello("bank", "credit", "active"), [Partner("lab", "lab")], HERE, listen="127.0.0.1:0", wait_s=ENOUGH_S
    )

    def met() -> Meeting:
        assert place.port is not None
        partner = Partner("bank", "bank", f"127.0.0.1:{place.port}")
        return Meeting(Hello("lab", "credit", "passive"), [partner], HERE, wait_s=1.0)

    def visit(lab: Meeting, linked: Event, over: Event) -> None:
        with lab, lab.meet():
            linked.set()
            assert over.wait(ENOUGH_S)

    def meet_and_end() -> None:
        with place.meet():
            assert linked.wait(ENOUGH_S)
            raise error

    linked, over = Event(), Event()
    with place, ThreadPoolExecutor() as pool:
        visiting = pool.submit(visit, met(), linked, over)
        with pytest.raises(type(error)):
            meet_and_end()
        over.set()
        visiting.result(ENOUGH_S)
        again = met()
        if greeted:
            with again, again.meet():
                pass
        else:
            with again, pytest.raises(LinkError, match="bank is about to go; if it is started again"), again.meet():
                pass
