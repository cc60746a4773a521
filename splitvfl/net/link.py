"""A link: messages to one other party and back, in order, checked, with a limit on every wait.

Nothing here knows what carries the frames; :mod:`splitvfl.net.links` has them carried by gRPC, and :func:`pair` by two
threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, Self, TypeVar

from splitvfl.errors import ArgumentError, LeaveError, LinkError, ProtocolError, RefusedError
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message
from splitvfl.net import frames
from splitvfl.net.frames import Assembly, Bye, Hello, Packed, pack, shown_text
from splitvfl.net.pipes import Cause, Pipe, PipeEnded, PipeTimeout

T = TypeVar("T")

WAITING_FRAMES: Final = 4
WAITING_MESSAGES: Final = 4

# Frames that may still be read when the carrier is over: no more of them than it had room for.
_ALL: Final = 1 << 30
# How often a party that waits looks whether its own workers still want it to.
_LOOK_S: Final = 1.0
# How long a party that takes its leave waits for its last word to be heard, and the other one to hear it.
_LINGER_S: Final = 2.0
GONE: Final = "it went without a word, or the network between did"
DONE: Final = "it has done everything"
_CLOSED_HERE: Final = "this side had closed the link"


class Stream:
    """Frames in both directions: what lies between a :class:`Link` and whatever carries them.

    The carrier takes frames to send out of :meth:`frames`, in a thread of its own, and hands what arrives to
    :meth:`read`, in another.

    Attributes:
        incoming: Frames that have arrived, few, so that a sender that is too fast is held back.
        outgoing: What is to be sent: messages, whole and uncopied, and control frames.
        over: Set once nothing is carried any more.
    """

    def __init__(self) -> None:
        self.incoming: Pipe[bytes] = Pipe(WAITING_FRAMES)
        self.outgoing: Pipe[Packed | bytes] = Pipe(WAITING_MESSAGES)
        self.over = threading.Event()
        self._heard = threading.Event()

    def frames(self) -> Iterator[bytes]:
        """Yield what is to be sent until this side has nothing more to say."""
        while True:
            try:
                thing = self.outgoing.get()
            except PipeEnded:
                return
            if isinstance(thing, bytes):
                yield thing
            else:
                yield from thing.frames()

    def read(
        self, arriving: Iterable[bytes], explain: Callable[[Exception], str] = str, *, silence: str = GONE
    ) -> None:
        """Take in what arrives, to its end. What comes after the last word is dropped.

        ``explain`` says in words what an error means, and ``silence`` an end without an error or a last word.
        """
        cause = silence
        try:
            for frame in arriving:
                self._heard.set()
                self._arrive(frame)
        except Exception as error:  # whatever it is, the link is broken, and who waits for it is told so
            cause = explain(error)
        self.incoming.end(cause)
        self.outgoing.end(cause, drop=True)

    def finish(self) -> None:
        """Note that nothing is carried any more: what has arrived is read to its end, whether or not it is awaited."""
        self.over.set()
        self.incoming.make_room(_ALL)
        self.outgoing.end(GONE, drop=True)

    def end(self, cause: str, last: bytes | None = None) -> None:
        """Say a last word, if any, and nothing more; and listen no longer."""
        self.outgoing.end(cause, last=last)
        self.incoming.end(cause, drop=True)

    def answers(self, within_s: float) -> bool:
        """Ask the other side whether it is there, and return whether anything came from it in time."""
        self._heard.clear()
        self.outgoing.offer(frames.PING_FRAME)
        return self._heard.wait(within_s)

    def _arrive(self, frame: bytes) -> None:
        if frame == frames.PING_FRAME:
            self.outgoing.offer(frames.PONG_FRAME)
        elif frame[:1] == bytes([frames.BYE]):
            self._part(frame)
        elif frame != frames.PONG_FRAME and self.incoming.cause is None:
            try:
                self.incoming.put(frame)
            except PipeEnded:
                return

    def _part(self, frame: bytes) -> None:
        try:
            cause: Cause = frames.read_bye(frame, "it")
        except ProtocolError as error:
            cause = str(error)
        self.incoming.end(cause)
        self.outgoing.end(cause, drop=True)


class Link:
    """Messages to one other party and back.

    Messages are numbered, each direction for itself, and one that is repeated, left out or out of order is refused.
    What is received is compared with what is awaited before memory is taken for it; its values are not looked at.

    A link is used by one thread at a time. One that raised an error is of no more use: close it.

    Args:
        stream: What carries its frames; hellos have been exchanged.
        own: What this side said of itself.
        theirs: What the other side said.
        hang_up: Stops the carrier, whatever is under way.

    Attributes:
        peer: The other party's name.
        theirs: What it said of itself.
        while_waiting: Called about once a second while this waits for the other party; what it raises ends the wait.
    """

    def __init__(self, stream: Stream, *, own: Hello, theirs: Hello, hang_up: Callable[[], None]) -> None:
        self.peer = theirs.party
        self.theirs = theirs
        self._own = own
        self._stream = stream
        self._hang_up = hang_up
        self._sent = 0
        self._received = 0
        self._announced: dict[tuple[str, int], int] = {}
        self.while_waiting: Callable[[], None] = lambda: None

    @property
    def ended(self) -> Cause | None:
        """The reason why nothing more will arrive; ``None`` as long as something may."""
        return self._stream.incoming.cause

    def send(self, message: Message, *, timeout: float) -> None:
        """Hand a message over for sending.

        It leaves while this party goes on: its payload must not change any more. At most four messages wait to leave;
        while there are as many, this waits, ``timeout`` seconds at most.

        Raises:
            LinkError: If the link is broken, or the other party takes nothing in time.
            ProtocolError: If the message is not from this party to the other, or has no place on the wire.
        """
        if (message.sender, message.receiver) != (self._own.party, self.peer):
            raise ProtocolError(
                f"the link from {self._own.party} to {self.peer} does not carry {message.kind} from {message.sender} "
                f"to {message.receiver}"
            )
        what = f"sending {message.kind} of step {message.step} to {self.peer}"
        packed = pack(message, self._sent)
        try:
            self._patiently(partial(self._stream.outgoing.put, packed), time.monotonic() + timeout)
        except PipeEnded as ended:
            # Whatever carries the frames may know that it is over before its last word has been read.
            raise _gone(self.peer, what, self._stream.incoming.why_ended(_LINGER_S) or ended.cause) from None
        except PipeTimeout:
            raise LinkError(f"{what}: {self.peer} took nothing for {timeout:g} s") from None
        self._sent += 1

    def receive(self, expected: Expected, *, timeout: float) -> Message:
        """Return the message that is awaited; nothing is allocated for anything else.

        This waits ``timeout`` seconds at most for its beginning, and as many again for the rest.

        Raises:
            LinkError: If the link is broken, the other party has taken its leave, or nothing comes in time.
            RefusedError: If the other party has ended the link for good.
            ProtocolError: If something else comes.
        """
        if expected.sender != self.peer:
            raise ArgumentError(f"a link with {self.peer} brings nothing from {expected.sender}")
        # From here on its frames are taken as they come: the room is for what comes after it, if that was announced.
        if self._announced.pop((expected.kind, expected.step), None) is not None:
            self._make_room()
        frame = self._next_frame(expected, timeout, time.monotonic() + timeout)
        assembly = Assembly(frame, expected, receiver=self._own.party, sequence=self._received)
        deadline = time.monotonic() + timeout
        while (message := assembly.message) is None:
            assembly.add(self._next_frame(expected, timeout, deadline))
        self._received += 1
        return message

    def announce(self, expected: Expected) -> None:
        """Let a message that will be awaited later arrive while this party goes on; the second time does nothing.

        Without it four frames of what comes next are taken in ahead, at most 1 MiB each, and the sender waits with the
        rest. With it there is room for as many more as the largest such message has; they are looked at when the
        message is awaited.
        """
        if expected.sender != self.peer:
            raise ArgumentError(f"a link with {self.peer} brings nothing from {expected.sender}")
        place = (expected.kind, expected.step)
        if place not in self._announced:
            self._announced[place] = frames.most_frames(expected)
            self._make_room()

    def _make_room(self) -> None:
        self._stream.incoming.make_room(sum(self._announced.values()))

    def _next_frame(self, expected: Expected, timeout: float, deadline: float) -> bytes:
        what = f"waiting for {expected.kind} of step {expected.step} from {self.peer}"
        try:
            return self._patiently(self._stream.incoming.get, deadline)
        except PipeEnded as ended:
            raise _gone(self.peer, what, ended.cause) from None
        except PipeTimeout:
            raise LinkError(f"{what}: not (all of) it came within {timeout:g} s") from None

    def _patiently(self, attempt: Callable[[float], T], deadline: float) -> T:
        """Try until the deadline, and look around once a second meanwhile."""
        while True:
            until = min(deadline, time.monotonic() + _LOOK_S)
            try:
                return attempt(until)
            except PipeTimeout:
                if until == deadline:
                    raise
                self.while_waiting()

    def close(self, reason: str = "", *, final: bool = False) -> None:
        """Take leave and hang up; the second time does nothing.

        What was handed over for sending leaves first. All of this takes two seconds at most; a party that does not
        listen misses the end of it. It is told the reason, of more than 500 characters the first, and, with ``final``,
        not to try again.
        """
        self._stream.end(_CLOSED_HERE, frames.bye_frame(reason, final=final))
        self._stream.over.wait(_LINGER_S)
        self._hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # What went wrong here may tell of this party's data: the other learns only that something did.
        self.close("" if error is None else f"{self._own.party} stopped with an error")


def _gone(peer: str, what: str, cause: Cause) -> LinkError | RefusedError:
    if not isinstance(cause, Bye):
        return LinkError(f"{what}: the link with {peer} broke: {shown_text(cause)}")
    reason = shown_text(cause.reason) or "it gave no reason"
    if cause.final:
        return RefusedError(f"{what}: {peer} ended the link for good: {reason}")
    return LeaveError(f"{what}: {peer} took its leave: {reason}", done=cause.reason == DONE)


def greeted(stream: Stream, own: Hello, peer: str, timeout: float) -> Hello:
    """Wait for the hello of the party that must be on the other side, and return it.

    Raises:
        LinkError: If none comes.
        RefusedError: If the other side refuses this one.
        ProtocolError: If something else comes, or the hellos do not fit together.
    """
    theirs = first_words(stream, peer, timeout)
    check_fit(own, theirs, peer)
    return theirs


def first_words(stream: Stream, peer: str, timeout: float) -> Hello:
    """Wait for a hello, whatever it says, and return it.

    Raises:
        LinkError: If none comes.
        RefusedError: If the other side refuses this one.
        ProtocolError: If something else comes.
    """
    what = f"waiting for the hello of {peer}"
    try:
        return frames.read_hello(stream.incoming.get(time.monotonic() + timeout), peer)
    except PipeEnded as ended:
        raise _gone(peer, what, ended.cause) from None
    except PipeTimeout:
        raise LinkError(f"{what}: none came within {timeout:g} s") from None


def check_fit(own: Hello, theirs: Hello, peer: str) -> None:
    """Compare what the two sides of a link say of themselves.

    Raises:
        ProtocolError: If they do not fit together.
    """
    if theirs.party != peer:
        raise ProtocolError(f"expected {peer}, got a party that calls itself {shown_text(theirs.party)}")
    if theirs.run != own.run:
        raise ProtocolError(f"{peer} is here for {shown_text(theirs.run)}, {own.party} for {own.run}")
    if theirs.role == own.role:
        raise ProtocolError(f"both {peer} and {own.party} say they are the {own.role} party; a link joins one of each")
    if theirs.workers != own.workers:
        raise ProtocolError(
            f"{peer} has {_counted(theirs.workers)}, and {own.party} has {_counted(own.workers)}: all parties need as "
            "many: write the same team.workers in all files, and start as many everywhere (torchrun)"
        )
    if theirs.worker != own.worker:
        raise ProtocolError(
            f"worker {theirs.worker} of {peer} reached worker {own.worker} of {own.party}; worker i of one party talks "
            "with worker i of the other: see that addresses and network.listen count workers alike"
        )


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def pair(left: Hello, right: Hello) -> tuple[Link, Link]:
    """Return the two ends of a link in this process: that of ``left`` and that of ``right``.

    Everything goes through frames, as between processes. The one difference: nothing is ever lost.

    Raises:
        ProtocolError: If the two do not fit together.
    """
    check_fit(left, right, right.party)
    streams = Stream(), Stream()
    for near, far in (streams, streams[::-1]):
        threading.Thread(target=_carry, args=(near, far), name="splitvfl-pair", daemon=True).start()
    first, second = streams
    return (
        Link(first, own=left, theirs=right, hang_up=lambda: None),
        Link(second, own=right, theirs=left, hang_up=lambda: None),
    )


def _carry(near: Stream, far: Stream) -> None:
    near.read(far.frames())
    near.over.set()
