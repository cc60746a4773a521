"""One party's part in scoring records one request at a time: it meets the others, again and again, until it is stopped.

Between the parties there is one conversation at a time, message after message; what comes from many requests at once is
put together into one message. A partner that goes away is waited for, and requests meanwhile are told who is missing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from splitvfl.data.columns import Columns, Records
from splitvfl.errors import DataError, LinkError, PrivacyError, ProtocolError, SplitVFLError
from splitvfl.exchange.handshake import (
    TaskSpec,
    active_introduction,
    agreement,
    passive_introduction,
)
from splitvfl.exchange.online import Answers, Scored, Standing, answering, asking
from splitvfl.hooks import hook_name
from splitvfl.messaging.conversation import Expected, Half
from splitvfl.messaging.messages import Message
from splitvfl.net.driver import Correspondent, drive
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.run.answers import RecordAnswers
from splitvfl.run.ask_limits import AskCounts
from splitvfl.run.trained_halves import TrainedHalves, halves_terms

_log = logging.getLogger("splitvfl.run")

MOST_ROWS: Final = 4096
"""Records in a message, at most."""

# How often a party that waits for requests looks whether the others are still there.
_LOOK_EVERY_S: Final = 0.25
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# A passive party waits for the next question as long as it takes.
_FOR_EVER_S: Final = 1e8


class OnlineLink(Correspondent, Protocol):
    """The part of a :class:`~splitvfl.net.link.Link` that a service needs."""

    @property
    def ended(self) -> object:
        """The reason why nothing more will arrive; ``None`` as long as something may."""
        ...


class OnlineMeeting(AbstractContextManager[Any], Protocol):
    """Where the parties find each other, again and again, within a block: a :class:`~splitvfl.net.meeting.Meeting`."""

    def meet(self) -> AbstractContextManager[Mapping[str, OnlineLink]]:
        """Return links to all partners, which are closed when the block is left."""
        ...


@dataclass(frozen=True, kw_only=True)
class OnlineSettings(TrainedHalves):
    """What the parties of a service have in common, and how long one of them waits.

    Attributes:
        case: Whether letter case counts in ids.
        answer_s: Seconds that a message may take.
        meeting_s: Seconds that agreeing on a service may take, once the parties are linked.
    """

    case: str = "kept"
    answer_s: float = 10.0
    meeting_s: float = 60.0


def online_terms(party: Party, settings: OnlineSettings) -> dict[str, object]:
    """Return what must be equal at every party of a service, by the names under which it is compared."""
    return {
        "what is done": "online scoring",
        **halves_terms(party, settings),
        "letter case of ids": settings.case,
    }


# --- the label party


class Unavailable(LinkError):
    """A request cannot be answered now, and may be sent again.

    Attributes:
        missing: Parties that are not there; none if there is too much to do.
        retry_s: Whole seconds after which to try again.
    """

    def __init__(self, message: str, *, missing: tuple[str, ...] = (), retry_s: int = 1) -> None:
        super().__init__(message)
        self.missing, self.retry_s = missing, retry_s


@dataclass(frozen=True, eq=False)
class Question:
    """Records that one request asks for.

    Attributes:
        records: The label party's own columns of them.
        digests: Digests of their ids (:func:`splitvfl.data.record_index.asked_digests`), ``(n, 32)`` uint8.
    """

    records: Records
    digests: Tensor


class OnlineObserver(Protocol):
    """Something that is told how a service does: counts and seconds, never an id or a value."""

    def met(self, partner: str, there: bool) -> None:
        """A partner came, or went."""
        ...

    def batch(self, records: int, seconds: float) -> None:
        """So many records went out in one message, and were answered after so many seconds."""
        ...


class _Nobody:
    def met(self, partner: str, there: bool) -> None: ...

    def batch(self, records: int, seconds: float) -> None: ...


class QuietScores:
    """Sees to it that the defenses of scores draw no noise: asked often enough for one record, it would average out.

    Args:
        party: The label party; its defenses are tried once, on scores that are nobody's.

    Raises:
        PrivacyError: If one draws, or has a state of its own; it is named.
    """

    _TRIED: Final = 64

    def __init__(self, party: ActiveParty) -> None:
        self._chain, self._party = party.scores, party
        for defense in self._chain:
            if hasattr(defense, "state_dict"):
                raise self._refusal(hook_name(defense), "has a state of its own")
        self._chain.draw_generators(torch.device("cpu"))
        self._before = self._drawn()
        outputs = torch.linspace(-3.0, 3.0, self._TRIED * party.task.outputs).reshape(self._TRIED, party.task.outputs)
        trial = party.task.loss.scores(outputs)
        self._chain.apply(trial, step=0, ids=torch.arange(self._TRIED), labels=None)
        self.check()

    def check(self) -> None:
        """Look whether anything has been drawn.

        Raises:
            PrivacyError: If something has.
        """
        for name, state in self._drawn().items():
            before = self._before[name]
            if not torch.equal(state["generator"], before["generator"]) or state["keystream"] != before["keystream"]:
                raise self._refusal(name, "draws noise anew for every answer")

    def _drawn(self) -> dict[str, dict[str, Any]]:
        return self._chain.state_dict()

    def _refusal(self, name: str, what: str) -> PrivacyError:
        return PrivacyError(
            f"{self._party.name} cannot answer requests behind the defense of scores {name}: it {what}, and whoever "
            "asks for one record again and again would have the score without it. Take a defense that does not draw "
            "(rounding), or score files together with `splitvfl predict`"
        )


@dataclass(eq=False)
class _Waiting:
    question: Question
    future: Future[Scored] = field(default_factory=Future)

    @property
    def count(self) -> int:
        return self.question.records.count


class LabelService:
    """The label party's part: it takes questions from any thread, and asks the partners in one of its own.

    Args:
        party: The party, with its trained model and its defenses of scores.
        settings: What is common to all.
        meeting: Where it meets the others.
        most_rows: Records that are put together into one message, at most.
        gather_s: Seconds for which a question waits for others to go along with it.
        most_waiting: Records that may wait; a question that comes then is refused.
        notify: Told in one line what happens.
        observer: Told how it does.
    """

    def __init__(
        self,
        party: ActiveParty,
        settings: OnlineSettings,
        meeting: OnlineMeeting,
        *,
        most_rows: int = 1024,
        gather_s: float = 0.002,
        most_waiting: int = 16 * MOST_ROWS,
        notify: Callable[[str], None] = lambda line: None,
        observer: OnlineObserver | None = None,
    ) -> None:
        self.party, self.settings = party, settings
        self.failed: Exception | None = None
        self._quiet_scores = QuietScores(party)
        self.meeting, self._notify, self._observer = meeting, notify, observer or _Nobody()
        self._most_rows, self._gather_s, self._most_waiting = min(most_rows, MOST_ROWS), gather_s, most_waiting
        self._missing: tuple[str, ...] = tuple(party.cuts)
        self._lost: tuple[str, ...] = ()
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._served = 0

    @property
    def partners(self) -> tuple[str, ...]:
        """The other parties, in the order in which the top takes them."""
        return tuple(self.party.cuts)

    @property
    def missing(self) -> tuple[str, ...]:
        """Parties that it is not linked with now."""
        return self._missing

    def submit(self, question: Question) -> Future[Scored]:
        """Return what will be the answer to a question of 1 to :data:`MOST_ROWS` records.

        Raises:
            Unavailable: If a partner is not there, or too much waits already.
        """
        waiting = _Waiting(question)
        with self._changed:
            self._check_open(waiting.count)
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.future

    def _check_open(self, records: int) -> None:
        if self._stopping.is_set():
            raise Unavailable(f"{self.party.name} is being stopped")
        if self._missing:
            raise _away(self._missing)
        if self._queued + records > self._most_waiting:
            raise Unavailable(f"{self._queued} records wait already, and at most {self._most_waiting} may")

    @property
    def _queued(self) -> int:
        return sum(waiting.count for waiting in self._waiting)

    def stop(self) -> None:
        """Have :meth:`run` end once everything is answered that waits; nothing more is taken."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        """Meet the partners and answer questions until it is stopped.

        Raises:
            SplitVFLError: If the parties do not agree, or one has refused for good; also in :attr:`failed`.
        """
        pause_s = _FIRST_PAUSE_S
        try:
            while not self._stopping.is_set():
                before = self._served
                try:
                    self._meet_once()
                except (LinkError, ProtocolError) as error:
                    self._part(self._lost or self.partners, error)
                    if getattr(error, "final", False):
                        raise
                    pause_s = _FIRST_PAUSE_S if self._served > before else min(2 * pause_s, _LONGEST_PAUSE_S)
                    self._stopping.wait(pause_s)
        except Exception as error:  # kept for whoever started this thread
            self.failed = error
            raise
        finally:
            self._stopping.set()
            self._part(self.partners, Unavailable(f"{self.party.name} has stopped"))

    def _meet_once(self) -> None:
        self._lost = self._missing  # who is still not there, as far as anybody knows
        with self.meeting.meet() as links:
            noted = {name: _Noted(link, name) for name, link in links.items()}
            try:
                self._talk(noted)
            finally:
                self._lost = tuple(name for name, link in noted.items() if link.lost)

    def _talk(self, links: Mapping[str, _Noted]) -> None:
        self._drive(self._opening(), links, self.settings.meeting_s)
        self._join()
        with self.party.evaluating():
            for number in count():
                pieces = self._next_pieces(links)
                if not pieces:
                    return
                self._answer(pieces, links, number)

    def _opening(self) -> Half:
        name = self.party.name
        yield from agreement(name, self.partners, online_terms(self.party, self.settings))
        widths = yield from active_introduction(name, self.partners, self.settings.learned)
        for other, width in widths.items():
            if width != self.party.widths[other]:
                raise DataError(
                    f"{other} sends activations of width {width}; the half of {name} was trained on "
                    f"{self.party.widths[other]}"
                )

    def _join(self) -> None:
        with self._changed:
            self._missing = ()
        for name in self.partners:
            self._observer.met(name, True)
        self._notify(f"serving: linked with {' and '.join(self.partners)}")
        _log.info("%s: serves, linked with %s", self.party.name, ", ".join(self.partners))

    def _part(self, lost: Iterable[str], why: SplitVFLError) -> None:
        """Note who is missing, and tell so whoever waits."""
        with self._changed:
            was_there = not self._missing
            self._missing = tuple(lost)
            refused, self._waiting = self._waiting, deque()
        for waiting in refused:
            _fail(waiting.future, why if isinstance(why, Unavailable) else _away(self._missing))
        for name in self._missing if was_there else ():
            self._observer.met(name, False)
        if was_there and not isinstance(why, Unavailable):
            self._notify(f"{why}; meeting again")
            _log.warning("%s: lost %s: %s", self.party.name, ", ".join(self._missing), type(why).__name__)

    def _next_pieces(self, links: Mapping[str, _Noted]) -> list[_Waiting]:
        """Wait for questions, and return those that go together; none once the service is stopped and all is answered.

        Raises:
            LinkError: If a partner has gone meanwhile.
        """
        with self._changed:
            while self._waiting or not self._stopping.is_set():
                if not self._waiting:
                    for link in links.values():
                        link.check()
                    self._changed.wait(_LOOK_EVERY_S)
                    continue
                self._gather()
                # Who does not wait any more is left out.
                pieces = [one for one in self._taken() if one.future.set_running_or_notify_cancel()]
                if pieces:
                    return pieces
        return []

    def _gather(self) -> None:
        """Give other questions a moment to come."""
        deadline = time.monotonic() + self._gather_s
        while self._queued < self._most_rows and not self._stopping.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._changed.wait(left)

    def _taken(self) -> list[_Waiting]:
        """Take questions off the front, in their order, as long as they fit into one message: one at least."""
        taken = [self._waiting.popleft()]
        rows = taken[0].count
        while self._waiting and rows + self._waiting[0].count <= self._most_rows:
            taken.append(self._waiting.popleft())
            rows += taken[-1].count
        return taken

    def _answer(self, pieces: list[_Waiting], links: Mapping[str, _Noted], number: int) -> None:
        batch = _joined([waiting.question.records for waiting in pieces])
        digests = torch.cat([waiting.question.digests for waiting in pieces])
        started = time.monotonic()
        try:
            scored: Scored = self._drive(asking(self.party, batch, digests, number), links, self.settings.answer_s)
            self._quiet_scores.check()
        except BaseException as error:
            lost = tuple(name for name, link in links.items() if link.lost)
            for waiting in pieces:  # whatever it is, nobody waits for ever
                _fail(waiting.future, _away(lost) if isinstance(error, LinkError) else error)
            raise
        self._served += 1
        self._observer.batch(batch.count, time.monotonic() - started)
        for waiting, part in zip(pieces, _parts(scored, [waiting.count for waiting in pieces]), strict=True):
            waiting.future.set_result(part)

    def _drive(self, half: Half, links: Mapping[str, Correspondent], timeout: float) -> Any:
        return drive(half, party=self.party.name, links=links, turn=self.party.random, timeout=timeout)


def _away(missing: tuple[str, ...]) -> Unavailable:
    return Unavailable(f"waiting for {' and '.join(missing)}", missing=missing, retry_s=2)


def _fail(future: Future[Scored], error: BaseException) -> None:
    if future.done() or (not future.running() and not future.set_running_or_notify_cancel()):
        return
    future.set_exception(error)


def _joined(records: list[Records]) -> Records:
    if len(records) == 1:
        return records[0]
    columns = Columns(
        torch.cat([one.columns.numeric for one in records]), torch.cat([one.columns.categorical for one in records])
    )
    return Records(torch.cat([one.ids for one in records]), columns, row_norm=records[0].row_norm)


def _parts(scored: Scored, counts: list[int]) -> Iterable[Scored]:
    """Return what belongs to each question."""
    standing = {name: one.split(counts) for name, one in scored.standing.items()}
    scores = scored.scores.split([int(part.sum()) for part in scored.held.split(counts)])
    return [Scored(own, {name: parts[place] for name, parts in standing.items()}) for place, own in enumerate(scores)]


class _Noted:
    """A link that remembers that it was lost, so that requests can be told who is missing."""

    def __init__(self, link: OnlineLink, name: str) -> None:
        self._link, self._name = link, name
        self.lost = False

    def check(self) -> None:
        if self._link.ended is not None:
            self.lost = True
            raise LinkError(f"{self._name} is gone")

    def send(self, message: Message, *, timeout: float) -> None:
        try:
            self._link.send(message, timeout=timeout)
        except (LinkError, ProtocolError):
            self.lost = True
            raise

    def receive(self, expected: Expected, *, timeout: float) -> Message:
        try:
            return self._link.receive(expected, timeout=timeout)
        except (LinkError, ProtocolError):
            self.lost = True
            raise

    def announce(self, expected: Expected) -> None:
        self._link.announce(expected)


# --- a passive party


class RecordService:
    """A passive party's part: it answers for its own records, within its limits, until it is stopped.

    Args:
        party: The party, with its trained model and the defenses of its activation.
        active: The label party.
        settings: What is common to all.
        meeting: Where it meets the label party.
        answers: What it answers.
        counts: Its limits, and what it was asked.
        notify: Told in one line what happens.
    """

    def __init__(
        self,
        party: PassiveParty,
        active: str,
        settings: OnlineSettings,
        meeting: OnlineMeeting,
        *,
        answers: RecordAnswers,
        counts: AskCounts,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.party, self.active, self.settings = party, active, settings
        self.meeting, self._answers, self._counts, self._notify = meeting, answers, counts, notify
        self._answered = 0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Have :meth:`run` end when the label party next ends the link."""
        self._stopping.set()

    def run(self) -> None:
        """Answer until Ctrl-C, or until the label party refuses for good.

        Raises:
            KeyboardInterrupt: At Ctrl-C.
            SplitVFLError: If the parties do not agree, or the label party has refused for good.
        """
        pause_s = _FIRST_PAUSE_S
        try:
            while not self._stopping.is_set():
                before = self._answered
                try:
                    with self.meeting.meet() as links:
                        self._talk(links)
                except (LinkError, ProtocolError) as error:
                    if getattr(error, "final", False):
                        raise
                    self._notify(f"{error}; meeting again")
                    pause_s = _FIRST_PAUSE_S if self._answered > before else min(2 * pause_s, _LONGEST_PAUSE_S)
                    self._stopping.wait(pause_s)
        finally:
            self._counts.write()

    def answer(self, asked: Tensor) -> Answers:
        """Return what is answered to digests of ids, ``(n, 32)`` uint8: beyond the limits, nothing is looked up."""
        admitted = self._counts.admit(len(asked))
        found = self._answers(asked[:admitted])
        held, not_held = (int((found.standing == one).sum()) for one in (Standing.HELD, Standing.NOT_HELD))
        self._counts.count(held=held, not_held=not_held, limited=admitted - held - not_held)
        refused = torch.full((len(asked) - admitted,), int(Standing.REFUSED), dtype=torch.uint8)
        return Answers(torch.cat([found.standing, refused]), found.activation)

    def _talk(self, links: Mapping[str, Correspondent]) -> None:
        self._drive(self._opening(), links, self.settings.meeting_s)
        self._notify(f"serving: linked with {self.active}")
        with self.party.evaluating():
            for number in count():
                half = answering(self.party.name, self.active, self.answer, number, most=MOST_ROWS)
                self._drive(half, links, self.settings.answer_s, patience=_FOR_EVER_S)
                self._answered += 1

    def _opening(self) -> Half:
        name = self.party.name
        yield from agreement(name, (self.active,), online_terms(self.party, self.settings))
        yield from passive_introduction(name, self.active, self._width_for)

    def _width_for(self, learned: TaskSpec) -> int:
        self.settings.check_learned(learned, self.active, self.party.name)
        return self.party.output_width()

    def _drive(
        self, half: Half, links: Mapping[str, Correspondent], timeout: float, *, patience: float | None = None
    ) -> object:
        return drive(
            half, party=self.party.name, links=links, turn=self.party.random, timeout=timeout, patience=patience
        )
