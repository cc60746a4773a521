"""Scoring over links is scoring in one process, to the bit; parties that do not fit together are told how."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.defenses import GaussianIR, Rounding
from splitvfl.errors import ConfigError, DataError, LinkError, ProtocolError, ReplayError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.prediction import Prediction, predict
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message
from splitvfl.net.driver import Correspondent
from splitvfl.net.frames import Hello
from splitvfl.net.link import DONE, pair
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.run.prediction import ActivePrediction, PassivePrediction, PredictionSettings
from splitvfl.run.session import MeetingPlace, Session
from tests.builders import ACTIVE, WIDTH, active_party, passive_party

TWO, THREE = ("telecom",), ("shop", "telecom")


class Noise:
    """Gaussian noise on scores; whatever it is good for."""

    crossing = "scores"

    def __call__(self, scores: Tensor, secrets: Any, /) -> Tensor:
        noise: Tensor = torch.randn(scores.shape, generator=secrets.generator)
        return scores + noise


class Spy:
    """A link that notes what is sent, and breaks before the message of a number."""

    def __init__(self, link: Correspondent, sent: list[Message], breaks_at: int | None) -> None:
        self._link, self._sent, self._left = link, sent, breaks_at

    def send(self, message: Message, *, timeout: float) -> None:
        if self._left == 0:
            raise LinkError(f"the link with {message.receiver} broke")
        self._left = None if self._left is None else self._left - 1
        self._sent.append(message)
        self._link.send(message, timeout=timeout)

    def receive(self, expected: Expected, *, timeout: float) -> Message:
        return self._link.receive(expected, timeout=timeout)


class World:
    """Parties in threads, and the meetings that they come to.

    Args:
        passives: Names of the passive parties.
        breaks: For each meeting that goes wrong: who loses the link, before which of its messages.
    """

    def __init__(self, passives: Sequence[str], breaks: Sequence[tuple[str, int]] = ()) -> None:
        self.passives, self.breaks = tuple(passives), tuple(breaks)
        self.sent: dict[str, list[Message]] = {name: [] for name in (ACTIVE, *passives)}
        self.told: dict[str, list[str]] = {name: [] for name in (ACTIVE, *passives)}
        self.met = 0
        self.patience_s = 20.0
        self._everybody = threading.Barrier(len(passives) + 1, action=self._join)
        self._ends: dict[str, dict[str, Any]] = {}

    def _join(self) -> None:
        """Make the links of the next meeting, once everybody is there."""
        self._ends = {name: {} for name in (ACTIVE, *self.passives)}
        for name in self.passives:
            near, far = pair(Hello(ACTIVE, "bank, prediction", "active"), Hello(name, "bank, prediction", "passive"))
            self._ends[ACTIVE][name], self._ends[name][ACTIVE] = near, far
        self.met += 1

    @contextmanager
    def meet(self, name: str) -> Iterator[Mapping[str, Correspondent]]:
        try:
            self._everybody.wait(timeout=self.patience_s)
        except threading.BrokenBarrierError:
            raise LinkError("somebody did not appear") from None
        ends = self._ends[name]
        who, when = self.breaks[self.met - 1] if self.met <= len(self.breaks) else ("", 0)
        try:
            yield {other: Spy(link, self.sent[name], when if name == who else None) for other, link in ends.items()}
        except BaseException as error:
            for link in ends.values():
                link.close("it stopped", final=isinstance(error, ConfigError | DataError | ReplayError))
            raise
        for link in ends.values():
            link.close(DONE)

    def run(self, tasks: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Run all parties; what one returns or raises is its result."""
        results: dict[str, Any] = {}

        def act(name: str, task: Callable[[], Any]) -> None:
            try:
                results[name] = task()
            except Exception as error:  # handed to the test
                results[name] = error
            finally:
                # It does not come again, whether it is done or has failed, and nobody need wait for it.
                self._everybody.abort()

        threads = [threading.Thread(target=act, args=item) for item in tasks.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads), "somebody hangs"
        return results


class _At:
    """One party's meeting."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def meet(self) -> Any:
        return self._world.meet(self._name)


class _Late(_At):
    """The active party's: once linked, it waits for somebody else before it says anything."""

    @contextmanager
    def meet(self) -> Iterator[Mapping[str, Correspondent]]:
        with super().meet() as links:
            time.sleep(1.0)
            yield links


def settings(**changed: Any) -> PredictionSettings:
    known: dict[str, Any] = {"learned": TaskSpec("binary", 1), "run": "a" * 32, "step": 12, "epoch": 3, "rows": 7}
    return PredictionSettings(**{**known, **changed})


def session(world: World, name: str, **pace: Any) -> Session[MeetingPlace]:
    return Session(name, _At(world, name), **{"message_s": 5.0, "notify": world.told[name].append, **pace})


def parties(names: Sequence[str], task: str = "binary", *, defended: bool = False) -> dict[str, Party]:
    active = active_party(len(names), task=task, dropout=0.5)
    for name in names:
        active.connect(name)
    active.widths = dict.fromkeys(names, WIDTH)
    passives = {name: passive_party(name, dropout=0.5) for name in names}
    if defended:
        active.scores.attach(Noise(), noise_seed_for_experiments=1)
        active.scores.attach(Rounding(decimals=2))
        for name, party in passives.items():
            # One that trains with noise and predicts with other noise.
            party.activation.attach(GaussianIR(clip=1.0, sigma=3.0), at=("training",), noise_seed_for_experiments=2)
            seed = len(name)
            party.activation.attach(
                GaussianIR(clip=2.0, sigma=0.2), at=("prediction",), noise_seed_for_experiments=seed
            )
    return {ACTIVE: active, **passives}


def score(
    world: World, all_parties: Mapping[str, Party], agreed: Mapping[str, PredictionSettings], **pace: Any
) -> dict[str, Any]:
    tasks: dict[str, Callable[[], Any]] = {}
    for name, party in all_parties.items():
        here = session(world, name, **pace)
        if isinstance(party, ActiveParty):
            tasks[name] = ActivePrediction(party, world.passives, agreed[name], here).run
        else:
            assert isinstance(party, PassiveParty)
            tasks[name] = PassivePrediction(party, (ACTIVE,), agreed[name], here).run
    return world.run(tasks)


def alike(names: Sequence[str], **changed: Any) -> dict[str, PredictionSettings]:
    return dict.fromkeys((ACTIVE, *names), settings(**changed))


def in_one_process(all_parties: Mapping[str, Party]) -> Prediction:
    active = all_parties[ACTIVE]
    assert isinstance(active, ActiveParty)
    passives = {name: party for name, party in all_parties.items() if isinstance(party, PassiveParty)}
    return predict(active, passives, batch_size=7)


@pytest.mark.parametrize("names", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize("defended", [False, True], ids=["plain", "defended"])
@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3), ("regression", 1)])
def test_scores_over_links_are_those_of_one_process(
    names: tuple[str, ...], defended: bool, task: str, outputs: int
) -> None:
    expected = in_one_process(parties(names, task, defended=defended))

    found = score(World(names), parties(names, task, defended=defended), alike(names, learned=TaskSpec(task, outputs)))

    assert torch.equal(found[ACTIVE].outputs, expected.outputs)
    assert torch.equal(found[ACTIVE].scores, expected.scores)
    assert [found[name] for name in names] == [None] * len(names)


def test_passive_parties_get_nothing_that_depends_on_scores_unless_that_is_agreed() -> None:
    hidden, shown = World(THREE), World(THREE)

    score(hidden, parties(THREE), alike(THREE))
    found = score(shown, parties(THREE, defended=True), alike(THREE, publish=True))

    # 24 records in messages of 7.
    words = {"agreement", "introduction", "farewell"}
    assert [message.kind for message in hidden.sent[ACTIVE] if message.kind not in words] == []
    assert [message.kind for message in hidden.sent["shop"]] == [
        "agreement",
        "introduction",
        *["activation"] * 4,
        "farewell",
    ]
    assert [message.kind for message in shown.sent[ACTIVE]].count("scores") == 8
    for name in THREE:
        assert torch.equal(found[name], found[ACTIVE].scores)


def test_who_came_first_waits_while_the_active_party_waits_for_others() -> None:
    world, all_parties = World(TWO), parties(TWO)
    active, telecom = all_parties[ACTIVE], all_parties["telecom"]
    assert isinstance(active, ActiveParty)
    assert isinstance(telecom, PassiveParty)
    pace: dict[str, Any] = {"message_s": 0.4, "meeting_s": 20.0, "retries": 0}
    late = session(world, ACTIVE, **pace).at(_Late(world, ACTIVE))

    found = world.run(
        {
            ACTIVE: ActivePrediction(active, TWO, settings(), late).run,
            "telecom": PassivePrediction(telecom, (ACTIVE,), settings(), session(world, "telecom", **pace)).run,
        }
    )

    assert isinstance(found[ACTIVE], Prediction)
    assert found["telecom"] is None


def test_progress_and_modes() -> None:
    world, all_parties, done = World(TWO), parties(TWO), []
    active, telecom = all_parties[ACTIVE], all_parties["telecom"]
    assert isinstance(active, ActiveParty)
    assert isinstance(telecom, PassiveParty)

    world.run(
        {
            ACTIVE: ActivePrediction(active, TWO, settings(), session(world, ACTIVE), progress=done.append).run,
            "telecom": PassivePrediction(telecom, (ACTIVE,), settings(), session(world, "telecom")).run,
        }
    )

    assert done == [7, 14, 21, 24]
    assert all(layer.training for party in all_parties.values() for layer in party.module.modules())


# --- broken links


@pytest.mark.parametrize("when", [0, 1, 3, 5])
@pytest.mark.parametrize("who", ["telecom", "shop"])
def test_a_broken_link_is_made_anew_and_everything_is_said_again_to_the_bit(who: str, when: int) -> None:
    expected = in_one_process(parties(THREE, defended=True))
    world = World(THREE, breaks=[(who, when), (who, 2)])

    found = score(world, parties(THREE, defended=True), alike(THREE))

    assert world.met == 3
    assert torch.equal(found[ACTIVE].scores, expected.scores)
    for name in THREE:
        sent: dict[int, Tensor] = {}
        for message in world.sent[name]:
            if message.kind == "activation":
                # Another draw of the noise would let a partner who breaks links average it away.
                assert torch.equal(sent.setdefault(message.step, message.payload), message.payload)
        assert sorted(sent) == [0, 1, 2, 3]
    assert len(world.told[ACTIVE]) == 2
    assert all("beginning again" in line for line in world.told[who])


def test_noise_from_entropy_is_repeated_too() -> None:
    all_parties = parties(TWO)
    telecom = all_parties["telecom"]
    assert isinstance(telecom, PassiveParty)
    telecom.activation.attach(GaussianIR(clip=1.0, sigma=1.0), at=("prediction",))
    world = World(TWO, breaks=[("telecom", 4)])

    score(world, all_parties, alike(TWO))

    activations = [message for message in world.sent["telecom"] if message.kind == "activation"]
    assert [message.step for message in activations] == [0, 1, 0, 1, 2, 3]
    for first, second in zip(activations[:2], activations[2:4], strict=True):
        assert torch.equal(first.payload, second.payload)


@pytest.mark.parametrize("defended", [True, False], ids=["defended", "plain"])
def test_who_begins_again_gets_no_scores_with_the_same_noise_for_something_else(defended: bool) -> None:
    all_parties = parties(TWO)
    active, telecom = all_parties[ACTIVE], all_parties["telecom"]
    assert isinstance(active, ActiveParty)
    assert isinstance(telecom, PassiveParty)
    if defended:
        active.scores.attach(Noise())
    activate, calls = telecom.activate, [0]

    def shifted(batch: Any) -> Tensor:
        calls[0] += 1
        return activate(batch) + (1.0 if calls[0] > 2 else 0.0)  # from the second beginning on

    telecom.activate = shifted  # type: ignore[method-assign]
    world = World(TWO, breaks=[("telecom", 4)])

    found = score(world, all_parties, alike(TWO, publish=True))

    answered = [message.step for message in world.sent[ACTIVE] if message.kind == "scores"]
    if defended:
        assert answered == [0, 1]
        assert isinstance(found[ACTIVE], ReplayError)
        assert "telecom sent another activation for step 0 than before" in str(found[ACTIVE])
    else:
        assert answered == [0, 1, 0, 1, 2, 3]


def test_links_that_keep_breaking_are_given_up() -> None:
    world = World(TWO, breaks=[("telecom", 3)] * 9)

    found = score(world, parties(TWO), alike(TWO), retries=2)

    assert world.met == 3
    assert isinstance(found["telecom"], LinkError)
    assert isinstance(found[ACTIVE], LinkError)


def test_a_party_that_misses_the_last_word_has_said_everything() -> None:
    expected = in_one_process(parties(THREE))
    world = World(THREE, breaks=[(ACTIVE, 2)])
    world.patience_s = 0.5

    found = score(world, parties(THREE), alike(THREE))

    assert [message.kind for message in world.sent[ACTIVE]] == ["agreement"] * 2 + ["introduction"] * 2
    assert torch.equal(found[ACTIVE].scores, expected.scores)
    assert [found[name] for name in THREE] == [None, None]
    assert all("everything had been said before" in world.told[name][-1] for name in (ACTIVE, *THREE))


def test_a_partner_who_never_appears_is_not_waited_for_again() -> None:
    class Nobody:
        calls = 0

        @contextmanager
        def meet(self) -> Iterator[Mapping[str, Correspondent]]:
            Nobody.calls += 1
            raise LinkError("telecom did not appear")
            yield {}

    active = parties(TWO)[ACTIVE]
    assert isinstance(active, ActiveParty)
    with pytest.raises(LinkError, match="did not appear"):
        ActivePrediction(active, TWO, settings(), Session(ACTIVE, Nobody())).run()
    assert Nobody.calls == 1


# --- who does not fit


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"run": "b" * 32}, f"run of the trained half: bank has {'a' * 32}, telecom has {'b' * 32}"),
        ({"step": 13}, "steps of the trained half: bank has 12, telecom has 13"),
        ({"epoch": 2}, "epoch of the trained half: bank has 3, telecom has 2"),
        ({"rows": 8}, "records in a message: bank has 7, telecom has 8"),
        ({"publish": True}, "scores are published: bank has false, telecom has true"),
    ],
)
def test_what_differs_is_named_with_both_values(changed: dict[str, Any], words: str) -> None:
    world = World(TWO)

    found = score(world, parties(TWO), {ACTIVE: settings(), "telecom": settings(**changed)})

    assert world.met == 1
    assert isinstance(found[ACTIVE], DataError)
    assert words in str(found[ACTIVE])
    assert isinstance(found["telecom"], DataError | ProtocolError)


@pytest.mark.parametrize("change", ["order", "fewer"])
def test_other_records_are_refused(change: str) -> None:
    all_parties = parties(TWO)
    telecom = all_parties["telecom"]
    rows = torch.arange(24).flip(0) if change == "order" else torch.arange(23)
    telecom.data = replace(telecom.data, test=telecom.data.test.rows(rows))

    found = score(World(TWO), all_parties, alike(TWO))

    assert isinstance(found[ACTIVE], DataError)
    assert ("records: bank has 24, telecom has 23" in str(found[ACTIVE])) == (change == "fewer")
    assert "order of the record ids: bank has" in str(found[ACTIVE])


@pytest.mark.parametrize("setting", ["wire", "autocast"])
def test_other_precisions_are_refused(setting: str) -> None:
    all_parties = parties(TWO)
    setattr(all_parties["telecom"], setting, torch.bfloat16)

    found = score(World(TWO), all_parties, alike(TWO))

    assert f"{setting}: bank has none, telecom has bfloat16" in str(found[ACTIVE])


def test_another_width_or_task_is_refused() -> None:
    all_parties = parties(TWO)
    active = all_parties[ACTIVE]
    assert isinstance(active, ActiveParty)
    active.widths = {"telecom": 9}
    found = score(World(TWO), all_parties, alike(TWO))
    assert isinstance(found[ACTIVE], DataError)
    assert "telecom sends activations of width 4; the half of bank was trained on 9" in str(found[ACTIVE])

    other = {ACTIVE: settings(), "telecom": settings(learned=TaskSpec("multiclass", 3))}
    found = score(World(TWO), parties(TWO), other)
    assert isinstance(found["telecom"], DataError)
    assert "TaskSpec(task='binary', outputs=1)" in str(found["telecom"])


def test_an_activation_that_is_not_finite_is_not_sent() -> None:
    all_parties = parties(TWO)
    with torch.no_grad():
        next(all_parties["telecom"].module.parameters()).fill_(torch.nan)

    found = score(World(TWO), all_parties, alike(TWO), retries=0)

    assert isinstance(found["telecom"], ProtocolError)
    assert "activation of step 0 of telecom holds NaN" in str(found["telecom"])
    assert isinstance(found[ACTIVE], LinkError)
