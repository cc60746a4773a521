"""Both parties of a service in threads, over links in memory: requests go together, partners go and come back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.defenses import Rounding
from splitvfl.errors import DataError, LinkError, PrivacyError, ProtocolError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.online import Standing
from splitvfl.exchange.prediction import predict
from splitvfl.hooks import Secrets
from splitvfl.net.frames import Hello
from splitvfl.net.link import Link, pair
from splitvfl.run.ask_limits import AskCounts, AskLimits
from splitvfl.run.online import LabelService, OnlineSettings, Question, RecordService, Unavailable
from tests.builders import ACTIVE
from tests.exchange.test_online import answers_of, digests_of, parties

LIMIT_S = 20.0
SETTINGS = OnlineSettings(learned=TaskSpec("binary", 1), run="a" * 32, step=3, epoch=1, answer_s=LIMIT_S)


class Place:
    """Where two parties in one process meet, as often as they like."""

    def __init__(self) -> None:
        self.links: queue.Queue[Link] = queue.Queue()
        self.met: list[Link] = []

    def of_label_party(self) -> Any:
        return _Meeting(self._call)

    def of_partner(self) -> Any:
        return _Meeting(self._answer)

    def _call(self) -> Mapping[str, Link]:
        left, right = pair(Hello(ACTIVE, "here", "active"), Hello("telecom", "here", "passive"))
        self.links.put(right)
        self.met.append(left)
        return {"telecom": left}

    def _answer(self) -> Mapping[str, Link]:
        try:
            return {ACTIVE: self.links.get(timeout=0.1)}
        except queue.Empty:
            raise LinkError("nobody came") from None


class _Meeting:
    def __init__(self, link: Callable[[], Mapping[str, Link]]) -> None:
        self._link = link

    @contextmanager
    def meet(self) -> Iterator[Mapping[str, Link]]:
        links = self._link()
        try:
            yield links
        finally:
            for link in links.values():
                link.close("gone")


class Serving:
    """A label party and its partner, each in a thread; a context manager."""

    def __init__(self, place: Place, **settings: Any) -> None:
        limits = settings.pop("limits", AskLimits())
        self.partner_settings = settings.pop("partner", SETTINGS)
        self.label, passives = parties("telecom")
        self.partner = passives["telecom"]
        self.place, self.counts = place, AskCounts(limits)
        self.answers = answers_of(self.partner, settings.pop("held", torch.arange(24)))
        self.service = LabelService(self.label, settings.pop("label", SETTINGS), place.of_label_party(), **settings)
        self.told: list[str] = []
        self.wrong: list[Exception] = []
        self.threads: list[threading.Thread] = []
        self.start(self.service.run)
        self.start_partner()

    def start_partner(self) -> None:
        self.partners_part = RecordService(
            self.partner,
            ACTIVE,
            self.partner_settings,
            self.place.of_partner(),
            answers=self.answers,
            counts=self.counts,
            notify=self.told.append,
        )
        self.start(self.partners_part.run)

    def start(self, run: Callable[[], None]) -> None:
        def act() -> None:
            try:
                run()
            except Exception as error:  # handed to the test
                self.wrong.append(error)

        self.threads.append(threading.Thread(target=act, daemon=True))
        self.threads[-1].start()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.partners_part.stop()
        self.service.stop()
        for thread in self.threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in self.threads), "somebody hangs"

    def question(self, *rows: int) -> Question:
        batch = self.label.test_batch(torch.tensor(rows))
        return Question(batch, digests_of(batch))

    def ready(self, *, meetings: int = 1) -> None:
        patience = threading.Event()
        for _ in range(int(LIMIT_S / 0.01)):
            if len(self.place.met) >= meetings and not self.service.missing:
                return
            patience.wait(0.01)
        raise AssertionError(f"not ready: {self.wrong}, {self.told}")

    def ask_for_ever(self) -> None:
        while True:
            self.scores(3)

    def scores(self, *rows: int) -> Tensor:
        scores: Tensor = self.service.submit(self.question(*rows)).result(LIMIT_S).scores
        return scores


def expected() -> Tensor:
    active, passives = parties("telecom")
    return predict(active, passives).scores


def test_questions_are_answered_one_after_the_other_and_together() -> None:
    seen: list[int] = []

    class Observer:
        def met(self, partner: str, there: bool) -> None: ...

        def batch(self, records: int, seconds: float) -> None:
            seen.append(records)

    with Serving(Place(), gather_s=LIMIT_S, most_rows=6, observer=Observer()) as serving:
        serving.ready()
        asked = [(0, 1), (5,), (7, 3, 5)]
        futures = [serving.service.submit(serving.question(*rows)) for rows in asked]
        found = [future.result(LIMIT_S).scores for future in futures]

        # Six records do not wait for a seventh.
        assert seen == [6]
        for rows, scores in zip(asked, found, strict=True):
            torch.testing.assert_close(scores, expected()[list(rows)], rtol=0, atol=1e-6)


def test_a_message_has_no_more_records_than_it_may() -> None:
    with Serving(Place(), gather_s=0.0, most_rows=4) as serving:
        serving.ready()
        futures = [serving.service.submit(serving.question(*range(start, start + 3))) for start in range(0, 21, 3)]
        scores = torch.cat([future.result(LIMIT_S).scores for future in futures])
    torch.testing.assert_close(scores, expected()[:21], rtol=0, atol=1e-6)


def test_each_question_learns_what_is_not_held_of_its_own_records() -> None:
    with Serving(Place(), held=torch.tensor([2, 3, 4]), gather_s=LIMIT_S, most_rows=4) as serving:
        serving.ready()
        futures = [serving.service.submit(serving.question(*rows)) for rows in ((1, 2), (3,), (9,))]
        found = [future.result(LIMIT_S) for future in futures]
    assert [one.standing["telecom"].tolist() for one in found] == [[0, 1], [1], [0]]
    assert [len(one.scores) for one in found] == [1, 1, 0]
    torch.testing.assert_close(torch.cat([found[0].scores, found[1].scores]), expected()[[2, 3]], rtol=0, atol=1e-6)


def test_beyond_the_limit_nothing_is_looked_up() -> None:
    limits = AskLimits(per_minute=10, per_day=4)
    with Serving(Place(), limits=limits, held=torch.tensor([0, 1])) as serving:
        serving.ready()
        first = serving.service.submit(serving.question(0, 5, 1)).result(LIMIT_S)
        second = serving.service.submit(serving.question(0, 5, 1)).result(LIMIT_S)
    assert first.standing["telecom"].tolist() == [1, 0, 1]
    assert second.standing["telecom"].tolist() == [1, Standing.REFUSED, Standing.REFUSED]
    today = serving.counts.today
    assert (today.asked, today.held, today.not_held, today.refused) == (6, 3, 1, 2)


def test_a_partner_that_goes_away_is_met_again() -> None:
    with Serving(Place()) as serving:
        serving.ready()
        before = serving.scores(3)
        serving.partners_part.stop()
        serving.place.met[-1].close("the line was cut")
        with pytest.raises(Unavailable, match="waiting for telecom") as told:
            serving.ask_for_ever()
        assert told.value.missing == ("telecom",)
        assert told.value.retry_s >= 1
        serving.start_partner()
        serving.ready(meetings=2)
        assert torch.equal(serving.scores(3), before)


def test_a_partner_that_says_nothing_is_given_up() -> None:
    service = LabelService(
        parties("telecom")[0], OnlineSettings(**{**_fields(SETTINGS), "meeting_s": 0.05}), Place().of_label_party()
    )
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    with pytest.raises(Unavailable) as told:
        service.submit(Question(parties("telecom")[0].test_batch(torch.tensor([1])), torch.zeros(1, 32).byte()))
    assert told.value.missing == ("telecom",)
    service.stop()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_partner_that_does_not_answer_in_time_counts_as_gone() -> None:
    goes_on = threading.Event()
    with Serving(Place(), label=OnlineSettings(**{**_fields(SETTINGS), "answer_s": 0.1})) as serving:
        serving.ready()
        answer = serving.partners_part.answer

        def late(asked: Tensor) -> Any:
            goes_on.wait(LIMIT_S)
            return answer(asked)

        serving.partners_part.answer = late  # type: ignore[method-assign]
        serving.scores(1)  # this answer was on its way already
        with pytest.raises(Unavailable) as told:
            serving.scores(1)
        assert told.value.missing == ("telecom",)
        serving.partners_part.answer = answer  # type: ignore[method-assign]
        goes_on.set()
        serving.ready(meetings=2)


def _fields(settings: OnlineSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def test_parties_with_other_halves_end_and_say_so() -> None:
    other = OnlineSettings(**{**_fields(SETTINGS), "step": 4})
    with Serving(Place(), partner=other) as serving:
        for thread in serving.threads:
            thread.join(LIMIT_S)
    assert len(serving.wrong) == 2
    assert all(isinstance(one, DataError) and "steps of the trained half" in str(one) for one in serving.wrong)
    assert isinstance(serving.service.failed, DataError)
    with pytest.raises(Unavailable, match="being stopped"):
        serving.service.submit(serving.question(1))


def test_what_does_not_belong_there_is_told_to_who_asked_and_the_service_goes_on() -> None:
    with Serving(Place()) as serving:
        serving.ready()
        serving.answers._keep(torch.tensor([4]), torch.full((1, 4), torch.nan))
        with pytest.raises(ProtocolError, match="NaN"):
            serving.scores(4)
        serving.ready(meetings=2)
        torch.testing.assert_close(serving.scores(5), expected()[5:6], rtol=0, atol=1e-6)


def test_no_more_waits_than_may() -> None:
    with Serving(Place(), most_waiting=3, gather_s=30.0, most_rows=1000) as serving:
        serving.ready()
        waiting = serving.service.submit(serving.question(0, 1))
        with pytest.raises(Unavailable, match="2 records wait already, and at most 3 may") as told:
            serving.service.submit(serving.question(0, 1))
        assert told.value.missing == ()
        serving.service.stop()
        # What waits is answered, and nothing more is taken.
        assert len(waiting.result(LIMIT_S).scores) == 2
        with pytest.raises(Unavailable, match="being stopped"):
            serving.scores(0)


def test_who_waits_no_longer_is_not_asked_for() -> None:
    with Serving(Place(), gather_s=0.3) as serving:
        serving.ready()
        serving.service.submit(serving.question(0, 1)).cancel()
        assert len(serving.scores(2)) == 1
    assert serving.counts.today.asked == 1


class Noise:
    crossing = "scores"

    def __call__(self, scores: Tensor, secrets: Secrets, /) -> Tensor:
        return secrets.add_normal(scores, 0.1)


class Sometimes(Noise):
    calls = 0

    def __call__(self, scores: Tensor, secrets: Secrets, /) -> Tensor:
        self.calls += 1
        return super().__call__(scores, secrets) if self.calls > 1 else scores


def test_defenses_of_scores_that_draw_are_refused_by_name() -> None:
    active, _ = parties("telecom")
    active.scores.attach(Rounding(decimals=2))
    LabelService(active, SETTINGS, Place().of_label_party())
    active.scores.attach(Noise())
    with pytest.raises(PrivacyError, match=r"bank cannot answer .* defense of scores Noise: it draws noise anew"):
        LabelService(active, SETTINGS, Place().of_label_party())


def test_a_defense_of_scores_that_begins_to_draw_ends_the_service() -> None:
    place = Place()
    serving = Serving(place)
    with serving:
        serving.ready()
        serving.label.scores.attach(Sometimes())
        serving.service._quiet_scores = type(serving.service._quiet_scores)(serving.label)
        with pytest.raises(PrivacyError, match="Sometimes: it draws noise anew"):
            serving.scores(1)
        serving.threads[0].join(LIMIT_S)
    assert isinstance(serving.service.failed, PrivacyError)
