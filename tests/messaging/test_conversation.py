"""Conversations: who sends what when, and what happens when somebody breaks the rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from splitvfl.errors import HookError, ProtocolError
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.messaging.conversation import Expected, Half, Outbox, admit, converse
from splitvfl.messaging.messages import Message
from tests.builders import ACTIVE, active_party, awaited, passive_party


def letter(sender: str, receiver: str, kind: str = "activation", step: int = 0) -> Message:
    return Message(sender, receiver, kind, step, torch.zeros(1))


def send_then_end(sender: str, *messages: Message) -> Half:
    yield Outbox(send=messages)
    return sender


def receive(name: str, *senders: str, kind: str = "activation", log: list[str] | None = None) -> Half:
    inbox = yield Outbox(wait=tuple(awaited(sender, kind) for sender in senders))
    if log is not None:
        log.append(name)
    return {sender: message.kind for sender, message in inbox.items()}


def test_results_are_what_the_halves_return() -> None:
    results = converse({"a": send_then_end("a", letter("a", "b", "scores")), "b": receive("b", "a", kind="scores")})
    assert results == {"a": "a", "b": {"a": "scores"}}


def test_no_halves_have_no_results() -> None:
    assert converse({}) == {}


def test_sends_leave_before_the_wait_begins() -> None:
    """Two halves that both send and wait in one outbox: if waiting came first, neither could go on."""

    def half(name: str, other: str) -> Half:
        inbox = yield Outbox(send=(letter(name, other),), wait=(awaited(other),))
        return inbox[other].sender

    assert converse({"a": half("a", "b"), "b": half("b", "a")}) == {"a": "b", "b": "a"}


def test_an_outbox_that_waits_for_nobody_resumes_at_once_with_an_empty_inbox() -> None:
    def half() -> Half:
        first = yield Outbox()
        second = yield Outbox()
        return [first, second]

    assert converse({"a": half()}) == {"a": [{}, {}]}


def test_a_half_gets_exactly_one_message_from_each_awaited_name() -> None:
    def sender(name: str, count: int) -> Half:
        yield Outbox(send=tuple(letter(name, "c", f"{name}{number}") for number in range(count)))

    def receiver() -> Half:
        first = yield Outbox(wait=(awaited("a", "a0"), awaited("b", "b0")))
        second = yield Outbox(wait=(awaited("a", "a1"),))
        third = yield Outbox(wait=(awaited("b", "b1"),))
        return [{name: message.kind for name, message in inbox.items()} for inbox in (first, second, third)]

    results = converse({"c": receiver(), "a": sender("a", 2), "b": sender("b", 2)})
    assert results["c"] == [{"a": "a0", "b": "b0"}, {"a": "a1"}, {"b": "b1"}]


def test_messages_pass_by_reference() -> None:
    message = letter("a", "b")

    def receiver() -> Half:
        return (yield Outbox(wait=(awaited("a"),)))["a"].payload

    assert converse({"a": send_then_end("a", message), "b": receiver()})["b"] is message.payload


def test_every_message_is_recorded_in_the_order_of_sending() -> None:
    recorded: list[Message] = []
    first, second = letter("a", "b", "one"), letter("a", "c", "two")
    converse(
        {
            "c": receive("c", "a", kind="two"),
            "b": receive("b", "a", kind="one"),
            "a": send_then_end("a", first, second),
        },
        record=recorded.append,
    )
    assert recorded == [first, second]


def test_a_deadlock_says_who_waits_for_whom() -> None:
    halves = {"bank": receive("bank", "telecom", "shop"), "telecom": receive("telecom", "bank"), "shop": receive("s")}
    with pytest.raises(ProtocolError) as caught:
        converse(halves)
    assert str(caught.value) == "nobody can go on: bank waits for telecom, shop; telecom waits for bank"


def test_a_deadlock_names_only_those_who_have_not_sent() -> None:
    halves = {
        "bank": receive("bank", "telecom", "shop"),
        "telecom": send_then_end("telecom", letter("telecom", "bank")),
    }
    with pytest.raises(ProtocolError, match=r"bank waits for shop$"):
        converse(halves)


def test_a_message_in_anothers_name_is_refused() -> None:
    halves = {"a": send_then_end("a", letter("c", "b")), "b": receive("b", "c"), "c": receive("c", "b")}
    with pytest.raises(ProtocolError, match="a sent activation in the name of c"):
        converse(halves)


@pytest.mark.parametrize("receiver", ["nobody", "b"])
def test_a_message_to_nobody_or_to_one_who_has_ended_is_refused(receiver: str) -> None:
    def late() -> Half:
        yield Outbox()
        yield Outbox()
        yield Outbox(send=(letter("a", receiver),))

    with pytest.raises(ProtocolError, match=rf"a sent activation to {receiver}, who takes no part"):
        converse({"b": send_then_end("b"), "a": late()})


def test_a_message_that_nobody_reads_is_refused() -> None:
    halves = {
        "a": send_then_end("a", letter("a", "b", "one"), letter("a", "b", "two")),
        "b": receive("b", "a", kind="one"),
    }
    with pytest.raises(ProtocolError, match="b ended without reading two"):
        converse(halves)


class Closing:
    """A half that notes how it was closed, and would update last."""

    def __init__(self, *waits: str) -> None:
        self.waits = waits
        self.closed = False
        self.updated = False

    def half(self) -> Half:
        try:
            yield Outbox(wait=tuple(map(awaited, self.waits)))
        except GeneratorExit:
            self.closed = True
            raise
        self.updated = True


def test_one_failing_half_closes_the_others_and_its_error_comes_out() -> None:
    def failing() -> Half:
        yield Outbox()
        raise HookError("broken")

    others = [Closing("bad"), Closing("bad")]
    # Held here: a half that nobody refers to any more would be closed by Python itself.
    one, two = (other.half() for other in others)
    with pytest.raises(HookError, match="broken"):
        converse({"one": one, "bad": failing(), "two": two})
    assert [(other.closed, other.updated) for other in others] == [(True, False), (True, False)]


def test_a_half_waits_until_others_have_come_as_far() -> None:
    done: list[str] = []

    def at_once() -> Half:
        done.append("at once")
        yield Outbox(until=lambda: "later" in done)
        assert done == ["at once", "later"]

    def later() -> Half:
        yield Outbox()
        yield Outbox()
        done.append("later")

    converse({"a": at_once(), "b": later()})
    with pytest.raises(ProtocolError, match="nobody can go on: a waits for all to come as far"):
        converse({"a": iter_once(Outbox(until=lambda: False))})


def iter_once(outbox: Outbox) -> Half:
    yield outbox


def test_a_deadlock_closes_all_halves() -> None:
    others = [Closing("b"), Closing("a")]
    halves = {name: other.half() for name, other in zip("ab", others, strict=True)}
    with pytest.raises(ProtocolError):
        converse(halves)
    assert all(other.closed and not other.updated for other in others)


def test_each_party_acts_within_its_own_turn() -> None:
    inside: list[str] = []
    seen: list[tuple[str, list[str]]] = []

    class Turn:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            inside.append(self.name)

        def __exit__(self, *_: object) -> None:
            inside.remove(self.name)

    def half(name: str, other: str) -> Half:
        seen.append((name, list(inside)))
        yield Outbox(send=(letter(name, other),), wait=(awaited(other),))
        seen.append((name, list(inside)))

    converse({"a": half("a", "b"), "b": half("b", "a")}, turns={"a": Turn("a"), "b": Turn("b")})
    assert sorted(seen) == [("a", ["a"])] * 2 + [("b", ["b"])] * 2
    assert inside == []


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (letter("a", "b", "gradient"), "expected activation of step 0 from a, got gradient of step 0 from a"),
        (letter("a", "b", step=4), "expected activation of step 0 from a, got activation of step 4 from a"),
        (letter("c", "b"), "expected activation of step 0 from a, got activation of step 0 from c"),
    ],
    ids=["kind", "step", "sender"],
)
def test_what_does_not_belong_here_is_refused(message: Message, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{complaint}$"):
        admit(message, awaited("a"))


FORMS: list[tuple[tuple[int | range, ...], torch.dtype, torch.Tensor, str]] = [
    ((2, 3), torch.float32, torch.zeros(3, 2), "2 x 3 in float32, got 3 x 2 in float32"),
    ((2, 3), torch.float32, torch.zeros(6), "2 x 3 in float32, got 6 in float32"),
    ((), torch.float32, torch.zeros(1), "a single number in float32, got 1 in float32"),
    ((1,), torch.float32, torch.zeros(()), "1 in float32, got a single number in float32"),
    ((1,), torch.float32, torch.zeros(1, dtype=torch.int64), "1 in float32, got 1 in int64"),
    ((range(1, 4),), torch.uint8, torch.zeros(4, dtype=torch.uint8), "1 to 3 in uint8, got 4 in uint8"),
    ((range(1, 4),), torch.uint8, torch.zeros(0, dtype=torch.uint8), "1 to 3 in uint8, got 0 in uint8"),
]


@pytest.mark.parametrize(("shape", "dtype", "payload", "complaint"), FORMS)
def test_what_has_another_form_is_refused(
    shape: tuple[int | range, ...], dtype: torch.dtype, payload: torch.Tensor, complaint: str
) -> None:
    with pytest.raises(ProtocolError, match=f"expected scores of step 7 from a to be {complaint}"):
        admit(Message("a", "b", "scores", 7, payload), Expected("a", "scores", 7, (dtype,), shape))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_belongs_here_is_let_in(count: int) -> None:
    message = Message("a", "b", "scores", 7, torch.zeros(2, count))
    assert admit(message, awaited("a", "scores", 7, shape=(2, range(1, 4)))) is message


def test_a_message_that_is_not_awaited_stops_the_conversation() -> None:
    halves = {"a": send_then_end("a", letter("a", "b", "one"), letter("a", "b", "two")), "b": receive("b", "a")}
    with pytest.raises(ProtocolError, match="expected activation of step 0 from a, got one"):
        converse(halves)


@contextmanager
def unchanged(*parties: Any) -> Iterator[None]:
    """Check that weights and optimiser state of these parties are as before."""

    def state() -> list[Any]:
        weights = [weight.detach().clone() for party in parties for weight in party.module.parameters()]
        steps = [len(party.weights.optimizer.state_dict()["state"]) for party in parties]
        return [weights, steps]

    weights, steps = state()
    yield
    now, now_steps = state()
    assert now_steps == steps
    assert all(torch.equal(left, right) for left, right in zip(weights, now, strict=True))


def rows() -> torch.Tensor:
    return torch.arange(16)


def test_a_half_that_fails_leaves_the_other_optimiser_as_it_was() -> None:
    """The active party has computed its gradients when the passive one fails; nobody has stepped."""

    class Failing:
        needs = frozenset({"gradient"})

        def __call__(self, view: Any, /) -> None:
            raise HookError("the observer failed")

    active, passive = active_party(), passive_party("telecom")
    active.connect("telecom")
    passive.observers.append(Failing())
    with unchanged(active, passive), pytest.raises(HookError, match="observer failed"):
        converse(
            {
                "telecom": passive_step(passive, passive.train_batch(rows()), 0, active=ACTIVE),
                ACTIVE: active_step(active, active.train_batch(rows()), 0),
            }
        )
    converse(
        {
            "telecom": passive_step(passive_party("telecom"), passive.train_batch(rows()), 0, active=ACTIVE),
            ACTIVE: active_step(active, active.train_batch(rows()), 0),
        }
    )


@pytest.mark.parametrize("yields", [0, 1])
def test_each_half_steps_its_optimiser_after_its_last_yield(yields: int) -> None:
    """Closed at any of its yields, a half has changed neither weights nor optimiser; run to its end, both."""
    active, passive = active_party(), passive_party("telecom")
    active.connect("telecom")
    activation = passive.activate(passive.train_batch(rows())).detach()
    replies = {
        "active": {"telecom": Message("telecom", ACTIVE, "activation", 0, activation)},
        "passive": {ACTIVE: Message(ACTIVE, "telecom", "gradient", 0, torch.ones_like(activation))},
    }

    def halves() -> dict[str, Half]:
        return {
            "active": active_step(active, active.train_batch(rows()), 0),
            "passive": passive_step(passive, passive.train_batch(rows()), 0, active=ACTIVE),
        }

    with unchanged(active, passive):
        for name, half in halves().items():
            next(half)
            if yields and name == "active":
                assert half.send(replies[name]).wait == ()  # type: ignore[arg-type]
            half.close()
    before = [weight.detach().clone() for party in (active, passive) for weight in party.module.parameters()]
    for name, half in halves().items():
        next(half)
        if name == "active":
            half.send(replies[name])  # type: ignore[arg-type]
        with pytest.raises(StopIteration):
            half.send({} if name == "active" else replies[name])  # type: ignore[arg-type]
    after = [weight for party in (active, passive) for weight in party.module.parameters()]
    assert not any(torch.equal(left, right) for left, right in zip(before, after, strict=True))
