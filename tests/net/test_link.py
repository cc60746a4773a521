"""Links in one process: order, limits, leave-taking, and a peer that says what it should not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from splitvfl.errors import ArgumentError, DataError, LinkError, ProtocolError, RefusedError
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message
from splitvfl.net import frames
from splitvfl.net.frames import Hello, bye_frame, pack
from splitvfl.net.link import GONE, WAITING_FRAMES, Link, Stream, pair

BANK, TELECOM = Hello("bank", "credit", "active"), Hello("telecom", "credit", "passive")
# Longer than anything here takes, shorter than a test may.
ENOUGH = 10.0


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    bank, telecom = pair(BANK, TELECOM)
    yield bank, telecom
    bank.close()
    telecom.close()


def activation(step: int, count: int = 3) -> Message:
    return Message("telecom", "bank", "activation", step, torch.arange(count, dtype=torch.float32) + step)


def awaited(step: int, count: int = 3) -> Expected:
    return Expected("telecom", "activation", step, (torch.float32,), (count,))


def test_messages_arrive_in_order_and_whole(ends: tuple[Link, Link]) -> None:
    bank, telecom = ends
    assert (bank.peer, telecom.peer, bank.theirs) == ("telecom", "bank", TELECOM)
    for step in range(3):
        telecom.send(activation(step, 400_000), timeout=ENOUGH)
    for step in range(3):
        message = bank.receive(awaited(step, 400_000), timeout=ENOUGH)
        assert (message.sender, message.receiver) == ("telecom", "bank")
        assert torch.equal(message.payload, activation(step, 400_000).payload)


def test_both_may_send_large_messages_before_either_reads(ends: tuple[Link, Link]) -> None:
    bank, telecom = ends
    large = torch.zeros(16 * frames.CHUNK, dtype=torch.uint8)  # more than all queues together hold
    form = ((torch.uint8,), tuple(large.shape))
    bank.send(Message("bank", "telecom", "points", 0, large), timeout=ENOUGH)
    telecom.send(Message("telecom", "bank", "points", 0, large), timeout=ENOUGH)
    received: list[Message] = []
    other = threading.Thread(
        target=lambda: received.append(telecom.receive(Expected("bank", "points", 0, *form), timeout=ENOUGH))
    )
    other.start()
    received.append(bank.receive(Expected("telecom", "points", 0, *form), timeout=ENOUGH))
    other.join(ENOUGH)
    assert len(received) == 2


def arrived(stream: Stream) -> int:
    return len(stream.incoming._things)


def until(count: int, stream: Stream) -> None:
    """Wait until so many frames have arrived."""
    deadline = time.monotonic() + ENOUGH
    while arrived(stream) < count and time.monotonic() < deadline:
        time.sleep(0.002)
    assert arrived(stream) == count


def test_what_is_announced_arrives_before_it_is_awaited_and_nothing_else_does(ends: tuple[Link, Link]) -> None:
    """Each message has six frames of at most 1 MiB; four may come of whatever comes."""
    bank, telecom = ends
    stream, count = bank._stream, 6 * frames.CHUNK // 4
    for step in range(3):
        telecom.send(activation(step, count), timeout=ENOUGH)
    until(WAITING_FRAMES, stream)

    bank.announce(awaited(0, count))
    bank.announce(awaited(0, count))
    until(WAITING_FRAMES + 6, stream)
    time.sleep(0.05)  # else what is held back may just not have come yet
    assert arrived(stream) == WAITING_FRAMES + 6
    assert torch.equal(bank.receive(awaited(0, count), timeout=ENOUGH).payload, activation(0, count).payload)
    assert arrived(stream) == WAITING_FRAMES

    bank.announce(awaited(1, count))
    bank.announce(awaited(2, count))
    until(12, stream)
    for step in (1, 2):
        assert torch.equal(bank.receive(awaited(step, count), timeout=ENOUGH).payload, activation(step, count).payload)


def test_what_comes_in_the_place_of_what_was_announced_is_refused_when_it_is_awaited(ends: tuple[Link, Link]) -> None:
    bank, telecom = ends
    bank.announce(awaited(1, 3))
    telecom.send(activation(2, 3), timeout=ENOUGH)
    with pytest.raises(ProtocolError, match="expected activation of step 1 from telecom, got activation of step 2"):
        bank.receive(awaited(1, 3), timeout=ENOUGH)
    with pytest.raises(ArgumentError, match="brings nothing from shop"):
        bank.announce(Expected("shop", "activation", 1, (torch.float32,), (3,)))


def test_no_more_room_is_made_than_any_message_may_take() -> None:
    expected = Expected("telecom", "activation", 1, (torch.float32,), (1 << 20, range(1, 1 << 16)))
    assert frames.most_frames(expected) == 1024


@pytest.mark.parametrize(("shape", "count"), [((3,), 1), ((0,), 1), ((range(1, 9), 1 << 17), 4), ((1 << 18, 2), 2)])
def test_room_is_made_for_the_largest_message_that_would_fit(shape: tuple[int | range, ...], count: int) -> None:
    expected = Expected("telecom", "activation", 1, (torch.bfloat16, torch.float32), shape)
    largest = torch.zeros([size.stop - 1 if isinstance(size, range) else size for size in shape])
    assert frames.most_frames(expected) == count
    assert len(list(pack(Message("telecom", "bank", "activation", 1, largest), 0).frames())) == count


def test_a_wait_ends_with_who_was_waited_for_what_and_how_long(ends: tuple[Link, Link]) -> None:
    with pytest.raises(LinkError, match=r"^waiting for activation of step 7 from telecom: .* within 0\.05 s$"):
        ends[0].receive(awaited(7), timeout=0.05)


def test_who_waits_looks_around_again_and_again_and_may_give_up(
    ends: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitvfl.net.link._LOOK_S", 0.1)
    bank, telecom = ends
    looks: list[str] = []

    def look() -> None:
        looks.append("")
        if len(looks) == 2:
            raise LinkError("a fellow has lost its link")

    bank.while_waiting = look
    telecom.send(activation(0), timeout=ENOUGH)
    bank.receive(awaited(0), timeout=ENOUGH)
    assert not looks  # what is there is not waited for
    with pytest.raises(LinkError, match=r"^a fellow has lost its link$"):
        bank.receive(awaited(1), timeout=ENOUGH)
    assert len(looks) == 2

    def leave() -> None:
        raise LinkError("a fellow refuses")

    def send_all() -> None:  # to one that takes nothing
        for step in range(100):
            telecom.send(activation(1 + step, 1 << 19), timeout=ENOUGH)

    telecom.while_waiting = leave
    with pytest.raises(LinkError, match=r"^a fellow refuses$"):
        send_all()


def test_a_message_that_does_not_end_is_not_waited_for_forever() -> None:
    stream = Stream()
    link = Link(stream, own=BANK, theirs=TELECOM, hang_up=lambda: None)
    first, *_ = pack(activation(0, 1 << 20), 0).frames()
    stream.incoming.put(first)
    with pytest.raises(LinkError, match="activation of step 0 from telecom"):
        link.receive(awaited(0, 1 << 20), timeout=0.05)


def test_a_peer_that_takes_nothing_holds_the_sender_back(ends: tuple[Link, Link]) -> None:
    """Messages of 2 MiB: a few wait here, 4 MiB of the first are on the way, and then it stops."""
    _, telecom = ends
    accepted: list[int] = []

    def send_all() -> None:
        for step in range(100):
            telecom.send(activation(step, 1 << 19), timeout=0.2)
            accepted.append(step)

    with pytest.raises(LinkError, match=r"sending activation of step \d+ to bank: bank took nothing for 0\.2 s"):
        send_all()
    assert len(accepted) <= 4 + 4


@pytest.mark.parametrize("final", [False, True])
def test_a_leave_taken_tells_why_and_whether_for_good(ends: tuple[Link, Link], final: bool) -> None:
    bank, telecom = ends
    telecom.send(activation(0), timeout=ENOUGH)
    telecom.close("the \x1b[2Jdisk is full", final=final)
    bank.receive(awaited(0), timeout=ENOUGH)  # what was sent before still counts
    kind = RefusedError if final else LinkError
    for attempt in (
        lambda: bank.receive(awaited(1), timeout=ENOUGH),
        lambda: bank.send(Message("bank", "telecom", "gradient", 0, torch.zeros(1)), timeout=ENOUGH),
    ):
        with pytest.raises(kind, match=r"the \\x1b\[2Jdisk is full$") as caught:
            attempt()
        assert getattr(caught.value, "final", False) is final


def test_closing_waits_for_what_was_sent_and_twice_is_once(ends: tuple[Link, Link]) -> None:
    bank, telecom = ends
    for step in range(4):
        telecom.send(activation(step, 1 << 18), timeout=ENOUGH)
    reading = threading.Thread(
        target=lambda: [bank.receive(awaited(step, 1 << 18), timeout=ENOUGH) for step in range(4)]
    )
    reading.start()
    telecom.close()
    telecom.close("again")
    reading.join(ENOUGH)
    assert not reading.is_alive()
    with pytest.raises(LinkError, match="took its leave: it gave no reason"):
        bank.receive(awaited(4), timeout=ENOUGH)
    with pytest.raises(LinkError, match="this side had closed the link"):
        telecom.send(activation(4), timeout=ENOUGH)


def test_a_peer_that_does_not_listen_does_not_hold_up_the_end(
    ends: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitvfl.net.link._LINGER_S", 0.05)
    _, telecom = ends
    for step in range(5):
        telecom.send(activation(step, 1 << 20), timeout=ENOUGH)
    began = time.monotonic()
    telecom.close()
    assert time.monotonic() - began < ENOUGH / 2


def test_an_error_inside_its_block_is_not_told_to_the_other(ends: tuple[Link, Link]) -> None:
    bank, telecom = ends
    with pytest.raises(DataError), telecom:
        raise DataError("Ms Smith has no income")
    with pytest.raises(LinkError, match=r"took its leave: telecom stopped with an error$"):
        bank.receive(awaited(0), timeout=ENOUGH)


def test_what_does_not_belong_on_a_link_is_not_sent_or_awaited(ends: tuple[Link, Link]) -> None:
    bank, telecom = ends
    for wrong in (
        Message("bank", "telecom", "x", 0, torch.zeros(1)),
        Message("telecom", "shop", "x", 0, torch.zeros(1)),
    ):
        with pytest.raises(ProtocolError, match="the link from telecom to bank does not carry x"):
            telecom.send(wrong, timeout=ENOUGH)
    with pytest.raises(ArgumentError, match="a link with telecom brings nothing from shop"):
        bank.receive(Expected("shop", "x", 0, (torch.float32,), ()), timeout=ENOUGH)


def test_messages_that_are_repeated_skipped_or_swapped_are_refused() -> None:
    first, second, third = (next(pack(activation(0), number).frames()) for number in range(3))
    for wrong, number in (((first, first), 0), ((first, third), 2), ((second, first), 1)):
        stream = Stream()
        link = Link(stream, own=BANK, theirs=TELECOM, hang_up=lambda: None)
        stream.incoming.put(wrong[0])
        stream.incoming.put(wrong[1])
        complaint = f"expected message number . from telecom, got number {number}"
        with pytest.raises(ProtocolError, match=complaint):
            [link.receive(awaited(0), timeout=ENOUGH) for _ in wrong]


def test_what_is_said_after_the_last_word_is_dropped_and_a_garbled_one_is_one() -> None:
    for last, said in ((bye_frame("enough", final=False), "enough"), (b"\x04garbled", "not a bye from it")):
        stream = Stream()
        stream.read(iter([last, *pack(activation(0), 0).frames()]))
        link = Link(stream, own=BANK, theirs=TELECOM, hang_up=lambda: None)
        with pytest.raises(LinkError, match=said):
            link.receive(awaited(0), timeout=ENOUGH)


def test_who_sends_waits_for_a_last_word_that_is_still_being_read() -> None:
    """What carries the frames is over, and a thread that has not had its turn has the reason."""
    stream = Stream()
    stream.finish()
    threading.Thread(target=stream.read, args=(_later([bye_frame("no more of these", final=True)]),)).start()
    link = Link(stream, own=BANK, theirs=TELECOM, hang_up=lambda: None)
    with pytest.raises(RefusedError, match="no more of these"):
        link.send(Message("bank", "telecom", "gradient", 0, torch.zeros(1)), timeout=ENOUGH)


def test_a_last_word_is_found_behind_more_frames_than_there_is_room_for() -> None:
    stream, read = Stream(), threading.Event()

    def arriving() -> Iterator[bytes]:
        yield from [b"\0" * 9] * (WAITING_FRAMES + 3)
        yield bye_frame("no more of these", final=True)
        read.set()

    threading.Thread(target=stream.read, args=(arriving(),), daemon=True).start()
    assert not read.wait(0.1), "it waits for somebody who takes them"
    stream.finish()
    link = Link(stream, own=BANK, theirs=TELECOM, hang_up=lambda: None)
    with pytest.raises(RefusedError, match="no more of these"):
        link.send(Message("bank", "telecom", "gradient", 0, torch.zeros(1)), timeout=ENOUGH)
    assert read.wait(ENOUGH)


def test_pings_are_answered_and_a_flood_of_them_takes_no_memory() -> None:
    stream, heard_all = Stream(), threading.Event()

    def flood() -> Iterator[bytes]:
        yield from [frames.PING_FRAME] * 1000
        heard_all.wait(ENOUGH)

    threading.Thread(target=stream.read, args=(flood(),)).start()
    answers = stream.frames()
    assert [next(answers) for _ in range(3)] == [frames.PONG_FRAME] * 3
    heard_all.set()
    assert len(list(answers)) <= 1000
    quiet = Stream()
    assert not quiet.answers(0.01)
    threading.Thread(target=quiet.read, args=(_later([frames.PONG_FRAME]),)).start()
    assert quiet.answers(ENOUGH)


def _later(parts: list[bytes]) -> Iterator[bytes]:
    time.sleep(0.1)
    yield from parts


def test_two_that_do_not_fit_are_no_pair() -> None:
    with pytest.raises(ProtocolError, match="both telecom and bank say they are the active party"):
        pair(BANK, Hello("telecom", "credit", "active"))
    with pytest.raises(ProtocolError, match="telecom is here for alignment, bank for credit"):
        pair(BANK, Hello("telecom", "alignment", "passive"))


def test_frames_that_end_without_a_word_are_explained_by_who_carries_them() -> None:
    stream, other = Stream(), Stream()
    stream.read(iter([]))
    other.read(iter([]), silence="it went, or something was too large")
    assert stream.incoming.cause == GONE
    assert other.incoming.cause == "it went, or something was too large"


def test_a_worker_that_reaches_another_partys_other_worker_is_told_so() -> None:
    with pytest.raises(
        ProtocolError, match="worker 3 of telecom reached worker 2 of bank; worker i of one party talks"
    ):
        pair(Hello("bank", "credit", "active", 2, 4), Hello("telecom", "credit", "passive", 3, 4))
    with pytest.raises(ProtocolError, match=r"telecom has 1 worker, and bank has 4 workers: all .* team\.workers"):
        pair(Hello("bank", "credit", "active", 0, 4), Hello("telecom", "credit", "passive"))
    bank, telecom = pair(Hello("bank", "credit", "active", 2, 4), Hello("telecom", "credit", "passive", 2, 4))
    bank.close()
    telecom.close()
