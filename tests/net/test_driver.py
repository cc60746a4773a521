"""One half over links does what it does beside the others in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from splitvfl.errors import HookError, LinkError, ProtocolError
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.messaging.conversation import Expected, Half, Outbox, converse
from splitvfl.messaging.messages import Message
from splitvfl.net.driver import drive
from splitvfl.net.frames import Hello
from splitvfl.net.link import Link, pair
from tests.builders import ACTIVE, active_party, passive_party

ENOUGH = 10.0


def star(*passives: str) -> dict[str, dict[str, Link]]:
    """Return every party's links."""
    links: dict[str, dict[str, Link]] = {ACTIVE: {}, **{name: {} for name in passives}}
    for name in passives:
        links[ACTIVE][name], links[name][ACTIVE] = pair(Hello(ACTIVE, "r", "active"), Hello(name, "r", "passive"))
    return links


def apart(
    halves: dict[str, Half], links: dict[str, dict[str, Link]], turns: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Drive each half in a thread of its own, the active party's in this one."""
    results: dict[str, Any] = {}

    def run(name: str) -> None:
        turn = (turns or {}).get(name)
        results[name] = drive(halves[name], party=name, links=links[name], turn=turn, timeout=ENOUGH)

    threads = [threading.Thread(target=run, args=(name,)) for name in halves if name != ACTIVE]
    for thread in threads:
        thread.start()
    run(ACTIVE)
    for thread in threads:
        thread.join(ENOUGH)
    return results


@pytest.mark.parametrize("passives", [("telecom",), ("telecom", "shop")], ids=["two parties", "three parties"])
def test_a_step_over_links_equals_one_in_process_to_the_bit(passives: tuple[str, ...]) -> None:
    weights, losses = [], []
    for run in (converse, lambda halves: apart(halves, star(*passives))):
        active = active_party(len(passives))
        others = {name: passive_party(name) for name in passives}
        for name in passives:
            active.connect(name)
        rows = torch.arange(16)
        for step in range(3):
            halves: dict[str, Half] = {
                name: passive_step(party, party.train_batch(rows), step, active=ACTIVE)
                for name, party in others.items()
            }
            results = run({**halves, ACTIVE: active_step(active, active.train_batch(rows), step)})
            losses.append(results[ACTIVE])
        weights.append([weight for party in (active, *others.values()) for weight in party.module.parameters()])
    assert losses[:3] == losses[3:]
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def letter(sender: str, receiver: str, value: float = 0.0) -> Message:
    return Message(sender, receiver, "scores", 0, torch.tensor([value]))


def score_from(sender: str) -> Expected:
    return Expected(sender, "scores", 0, (torch.float32,), (1,))


def test_a_party_acts_within_its_turn_and_waits_outside_it() -> None:
    inside = False

    class Links:
        def send(self, message: Message, *, timeout: float) -> None:
            assert not inside

        def receive(self, expected: Expected, *, timeout: float) -> Message:
            assert not inside
            return letter("telecom", ACTIVE, 3.0)

    @contextmanager
    def turn() -> Iterator[None]:
        nonlocal inside
        inside = True
        yield
        inside = False

    class Again:
        def __enter__(self) -> None:
            self.context = turn()
            self.context.__enter__()

        def __exit__(self, *details: Any) -> None:
            self.context.__exit__(None, None, None)

    def half() -> Half:
        assert inside
        inbox = yield Outbox(send=(letter(ACTIVE, "telecom"),), wait=(score_from("telecom"),))
        assert inside
        nothing = yield Outbox()
        assert nothing == {}
        return inbox["telecom"].payload.item()

    links = {"telecom": Links()}
    assert drive(half(), party=ACTIVE, links=links, turn=Again(), timeout=ENOUGH) == 3.0  # type: ignore[arg-type]


class Watched:
    """A half that notes whether it was closed."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox, self.closed = outbox, False

    def half(self) -> Half:
        try:
            yield self.outbox
        finally:
            self.closed = True


@pytest.mark.parametrize(
    ("outbox", "kind", "complaint"),
    [
        (Outbox(send=(letter("shop", "telecom"),)), ProtocolError, "bank sent scores in the name of shop"),
        (Outbox(send=(letter(ACTIVE, "shop"),)), ProtocolError, "bank talks to telecom, and has no link with shop"),
        (Outbox(wait=(score_from("shop"),)), ProtocolError, "bank talks to telecom, and has no link with shop"),
        (Outbox(wait=(score_from("telecom"),)), LinkError, "waiting for scores of step 0 from telecom"),
        (Outbox(until=lambda: False), ProtocolError, "waits for a party of this process, and there is none"),
    ],
)
def test_what_goes_wrong_closes_the_half(outbox: Outbox, kind: type[Exception], complaint: str) -> None:
    watched = Watched(outbox)
    half = watched.half()
    with pytest.raises(kind, match=complaint):
        drive(half, party=ACTIVE, links=star("telecom")[ACTIVE], timeout=0.05)
    assert watched.closed


def test_a_half_that_needs_nothing_more_goes_on_without_a_lost_partner() -> None:
    def half() -> Half:
        try:
            yield Outbox(wait=(score_from("telecom"),))
        except LinkError:
            yield Outbox()
            return "done"

    assert drive(half(), party=ACTIVE, links=star("telecom")[ACTIVE], timeout=0.05) == "done"


def test_an_error_of_the_half_is_the_one_that_comes_out() -> None:
    def half() -> Half:
        yield Outbox()
        raise HookError("broken")

    with pytest.raises(HookError, match="broken"):
        drive(half(), party=ACTIVE, links={}, timeout=ENOUGH)


def test_patience_is_for_the_first_messages_alone() -> None:
    limits: list[float] = []

    class Scoring:
        def send(self, message: Message, *, timeout: float) -> None:
            limits.append(timeout)

        def receive(self, expected: Expected, *, timeout: float) -> Message:
            limits.append(timeout)
            return Message("telecom", ACTIVE, "scores", 0, torch.zeros(1))

    def half() -> Half:
        yield Outbox(send=(Message(ACTIVE, "telecom", "scores", 0, torch.zeros(1)),))
        yield Outbox(wait=(score_from("telecom"),))
        yield Outbox(wait=(score_from("telecom"),))

    drive(half(), party=ACTIVE, links={"telecom": Scoring()}, timeout=1.0, patience=9.0)
    assert limits == [1.0, 9.0, 1.0]


def test_messages_that_are_not_awaited_are_refused_whoever_sends_them() -> None:
    wrongs: list[Callable[[], Message]] = [
        lambda: Message("telecom", ACTIVE, "labels", 0, torch.zeros(1)),
        lambda: Message("telecom", ACTIVE, "scores", 1, torch.zeros(1)),
        lambda: Message("telecom", ACTIVE, "scores", 0, torch.zeros(1, dtype=torch.float64)),
        lambda: Message("telecom", ACTIVE, "scores", 0, torch.zeros(2)),
    ]
    for wrong in wrongs:
        links = star("telecom")
        links["telecom"][ACTIVE].send(wrong(), timeout=ENOUGH)
        watched = Watched(Outbox(wait=(score_from("telecom"),)))
        half = watched.half()
        with pytest.raises(ProtocolError, match="expected scores of step 0 from telecom"):
            drive(half, party=ACTIVE, links=links[ACTIVE], timeout=ENOUGH)
        assert watched.closed
