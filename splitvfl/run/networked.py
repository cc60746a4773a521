"""One party's training run over a network: meet, agree, go on from the last common checkpoint, train, take leave.

Whatever breaks a link (a partner that is killed, a cut network, a message that does not belong there) ends the meeting:
the party goes back to the newest checkpoint that all parties have and meets the others again. A run that was broken any
number of times ends with the weights of an undisturbed one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from splitvfl.crypto.refusals import Refusals, journal_of
from splitvfl.errors import DataError, LinkError, ProtocolError
from splitvfl.exchange.base import Exchange, Side, evaluation_of
from splitvfl.exchange.evaluation import EvaluationPlan, passive_evaluation
from splitvfl.exchange.handshake import (
    HeldCheckpoints,
    TaskSpec,
    active_farewell,
    active_introduction,
    active_resuming,
    agreement,
    farewell,
    passive_introduction,
    passive_resuming,
)
from splitvfl.leakage.monitor import Monitor
from splitvfl.leakage.watching import Watch
from splitvfl.learning.batches import Batches
from splitvfl.learning.schedule import Schedule, Verdict
from splitvfl.messaging.conversation import Half
from splitvfl.net.driver import Correspondent, drive
from splitvfl.net.meeting import Meeting
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.run import checkpoint
from splitvfl.run.meeting_again import meet_until_done
from splitvfl.run.party_folder import KEPT_CHECKPOINTS, PartyFolder
from splitvfl.run.replay import JOURNAL, ReplayJournal
from splitvfl.run.training import Training, TrainingProgress

# A party that has been asked to stop may be waiting for another: so long it waits on.
_GRACE_S = 5.0

_P = TypeVar("_P", bound=Party)


@dataclass(frozen=True)
class RunSettings:
    """What a party must know to run, besides its model and its hooks.

    Attributes:
        batches: The order of the training records.
        schedule: What happens after which step.
        evaluation: What is evaluated.
        exchange: How a step is talked through.
        terms: What must be equal at every party.
        own_terms: What must be as it was when this party goes on, and is no concern of the others.
        folder: Where this party keeps its run.
        message_s: Seconds that a message may take.
        retries: How often in a row it goes back to a checkpoint without getting any further.
    """

    batches: Batches
    schedule: Schedule
    evaluation: EvaluationPlan
    exchange: Exchange
    terms: Mapping[str, object]
    folder: Path
    message_s: float
    retries: int
    own_terms: Mapping[str, object] = field(default_factory=dict)

    @property
    def kept_terms(self) -> dict[str, str]:
        """All that must be as it was when this party goes on, as a checkpoint holds it."""
        return {key: str(value) for key, value in {**self.terms, **self.own_terms}.items()}


class PartyRun(Training, Generic[_P]):
    """One party's run.

    Args:
        name: The party's name.
        partners: Names of those that it talks to.
        settings: How it runs.
        meeting: Where it meets them.
        notify: Told in one line what happens, for a person.
        progress: Told of every step.

    Attributes:
        number: Number of the run, the same at all its parties; empty before they have met.
    """

    def __init__(
        self,
        name: str,
        partners: Sequence[str],
        settings: RunSettings,
        meeting: Meeting,
        *,
        notify: Callable[[str], None] = lambda line: None,
        progress: TrainingProgress = lambda status: None,
    ) -> None:
        super().__init__(Watch(partners))
        self.name, self.partners, self.settings = name, tuple(partners), settings
        self._meeting, self._notify, self._progress = meeting, notify, progress
        self._party: _P | None = None
        self._side: Side | None = None
        self._learned: TaskSpec | None = None
        self._links: Mapping[str, Correspondent] = {}
        self.number = ""
        self._folder = PartyFolder(settings.folder)
        self._saved = -1
        self._crossed = False
        self._guard: ReplayJournal | None = None
        self._refusals = Refusals(name)

    @property
    def party(self) -> _P:
        """The party, once it has met the others and its model could be built."""
        assert self._party is not None, "it is built at the first meeting"
        return self._party

    @property
    def _parties(self) -> tuple[Party, ...]:
        return (self.party,)

    @property
    def learned(self) -> TaskSpec:
        """What is learned."""
        assert self._learned is not None, "the first meeting tells"
        return self._learned

    # --- meeting, and meeting again

    def run(self) -> None:
        """Train to the end, however often links break.

        Raises:
            Interrupted: At Ctrl-C, after the current step and a checkpoint.
            DataError: If the parties do not agree, or have no checkpoint in common.
            LinkError: If a partner does not appear in time, or the run gets no further.
            ProtocolError: If a partner keeps sending what does not belong there.
            SumRefused: If too many sums were refused in this run, before it was started again too.
            CheckpointError: If a checkpoint cannot be written; the last good one stays.

        A party that has done everything itself ends well, without the others, whatever they do or send then.
        """
        newest = self._folder.newest()
        if self._has_parted(newest):
            self._go_on_alone(newest)
            return
        try:
            self._meet_until_done()
            if self.settings.exchange.one_way:
                self._go_on_alone(self._folder.newest())
        except (DataError, LinkError, ProtocolError) as error:
            if not self._is_end(self._folder.newest()):
                raise
            self._notify(
                f"{error}; {self.name} itself has done everything, and ends without them. If another party still has "
                "to go back to a checkpoint, start this one again"
            )
            self._end_alone()
        finally:
            if self._guard is not None:
                self._guard.close()
            if self._side is not None:
                self._side.close()

    def _go_on_alone(self, newest: Mapping[str, Any]) -> None:
        """Do what is left to do without the others: nothing, as a rule."""
        self._end_alone()

    def _meet_until_done(self) -> None:
        self._refusals = Refusals(self.name, journal_of(self.settings.folder, self.name))
        self._refusals.check()
        with self._meeting:
            meet_until_done(
                self._meeting,
                self._talk,
                retries=self.settings.retries,
                reached=lambda: self._saved,
                notify=self._notify,
                then="going back to the last checkpoint that all have",
            )

    def _talk(self, links: Mapping[str, Correspondent]) -> None:
        self._links = links
        try:
            self._train_together()
        finally:
            self._monitor.close()

    def _train_together(self) -> None:
        self._introduce()
        self._drive(agreement(self.name, self.partners, self.settings.terms))
        self._side = self._side or self._take_side()
        self._side.keep_in(self.settings.folder)
        self.party.refusals = self._refusals
        if self.settings.exchange.one_way:
            self._cross(self._side)
            return
        self._drive(self._side.open())
        self._go_on_from(self._drive(self._resuming(self._folder.held())))
        self._train()
        self._take_leave()
        self.party.best.use()

    def _cross(self, side: Side) -> None:
        """Do all that is done together in a one-way exchange: it ends before the first training step."""
        self._crossed = False  # of a meeting that broke off after the last activation, it is not known
        # Before anything is sent there is a checkpoint, from which the same would be sent again.
        self._go_on_from(self._drive(self._resuming(self._folder.held())))
        self._drive(side.open())
        self._crossed = True
        self.save()
        self._take_leave()

    def _drive(self, half: Half, *, timeout: float | None = None) -> Any:
        turn = None if self._party is None else self._party.random
        guard = self._guard
        links: Mapping[str, Correspondent] = self._links
        if guard is not None:
            links = {name: guard.watching(link) for name, link in links.items()}
        return drive(half, party=self.name, links=links, turn=turn, timeout=timeout or self.settings.message_s)

    @abstractmethod
    def _introduce(self) -> None:
        """Tell the partners what they must know to build their models, and build one's own."""

    @abstractmethod
    def _take_side(self) -> Side:
        """Return its side of the exchange."""

    @abstractmethod
    def _resuming(self, own: HeldCheckpoints) -> Half:
        """Return its half of the choice of a checkpoint."""

    @abstractmethod
    def _take_leave(self) -> None:
        """Part, once nobody needs anybody any more."""

    @abstractmethod
    def _build_as(self, run: Mapping[str, Any]) -> None:
        """Build its model as it was built in the run whose state this is."""

    @abstractmethod
    def _answered(self) -> frozenset[str]:
        """Return the kinds of messages on which what it sends depends, if that is defended; they must not vary."""

    # --- the end of the run

    def _is_end(self, run: Mapping[str, Any]) -> bool:
        """Return whether it has done everything at a checkpoint."""
        return bool(run) and (run["stopped"] or run["step"] == self.settings.schedule.steps)

    def _has_parted(self, run: Mapping[str, Any]) -> bool:
        """Return whether nobody needs it any more, and it nobody."""
        return bool(run) and self._folder.noted_farewell() == (run["run"], run["step"]) and self._is_end(run)

    def _end_alone(self) -> None:
        self._take_up_newest()
        self.party.best.use()

    def _take_up_newest(self) -> None:
        newest = checkpoint.latest(self._folder.checkpoints)
        assert newest is not None
        self._take_up(newest)

    def _take_up(self, path: Path) -> None:
        parts = checkpoint.load(path)
        if self._party is None:
            self._build_as(parts["run"])
        with checkpoint.restoring(path, what="run", anew="at every party with --overwrite"):
            self._take_back(parts)

    # --- checkpoints

    def _go_on_from(self, chosen: HeldCheckpoints) -> None:
        (step,) = chosen.steps
        found = checkpoint.steps(self._folder.checkpoints)
        if step in found:
            self._take_up(found[step])
            for later in (path for number, path in found.items() if number > step):
                checkpoint.remove(later)
        self.number = chosen.run
        self._watch_replays()
        self._monitor = Monitor(self.settings.folder, resume_at=(self._offset, step) if step in found else None)
        if step not in found or not step:
            self.save()  # under the number of this run
        self._saved = step
        if step:
            self._notify(f"going on from step {step}")

    def _watch_replays(self) -> None:
        if self._guard is None and self._answered():
            self._guard = ReplayJournal(self.settings.folder / JOURNAL, self._answered())
        if self._guard is not None:
            self._guard.go_back()
            self.party.remember = self._guard.admit

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: If it cannot be written; the last good one stays.
        """
        self._flush()
        for chain in self.party.chains().values():
            chain.draw_generators(self.party.device)  # else a run that goes back to its beginning would draw others
        parts = {"run": self._state(), "party": self.party.state_dict(), "hooks": self.party.hook_state()}
        checkpoint.save(self._folder.checkpoints, self.step, parts, keep=KEPT_CHECKPOINTS)
        self._saved = self.step
        if self._guard is not None:
            self._guard.forget(min(checkpoint.steps(self._folder.checkpoints)))

    def _state(self) -> dict[str, Any]:
        return {
            **self._progress_state(),
            "run": self.number,
            "stopped": self.stopped,
            "terms": self.settings.kept_terms,
            "side": {} if self._side is None else self._side.state_dict(),
            "crossed": self._crossed,
        }

    def _take_back(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        run = parts["run"]
        changed = [
            f"{key} was {run['terms'].get(key)} and is {value}"
            for key, value in self.settings.kept_terms.items()
            if run["terms"].get(key) != value and key != "epochs"
        ]
        if changed:
            raise ValueError(f"{', '.join(changed)}; start anew with --overwrite, or name another folder with --out")
        self.party.load_state_dict(dict(parts["party"]))
        self.party.load_hook_state(dict(parts["hooks"]))
        self._take_back_progress(run)
        self.number = run["run"]
        if self._side is not None:
            self._side.load_state_dict(run.get("side", {}))

    # --- training

    def _train(self) -> None:
        self._follow(self.settings.schedule, self._progress, grace_s=_GRACE_S)

    def _train_step(self, rows: Tensor) -> None:
        assert self._side is not None, "it was taken at the first meeting"
        half = self._side.step(self.party.train_batch(rows), self.step)
        with self._timed():
            loss = self._drive(half)
        self._step_taken(loss)


class ActiveRun(PartyRun[ActiveParty]):
    """The label party's run: it watches what its own messages give away.

    Args:
        learned: What it tells the passive parties of what is learned.
        build: Makes the party, given the width of each passive party's activation, its cuts, defenses and attacks
            included.
    """

    def __init__(
        self,
        name: str,
        partners: Sequence[str],
        settings: RunSettings,
        meeting: Meeting,
        *,
        learned: TaskSpec,
        build: Callable[[Mapping[str, int]], tuple[ActiveParty, Watch]],
        **options: Any,
    ) -> None:
        super().__init__(name, partners, settings, meeting, **options)
        self._learned, self._build = learned, build

    def _introduce(self) -> None:
        widths = self._drive(active_introduction(self.name, self.partners, self.learned))
        if self._party is None:
            self._party, self.watch = self._build(widths)
        elif widths != self.party.widths:
            raise ProtocolError(f"the widths of the activations were {self.party.widths}, and are {widths} now")

    def _take_side(self) -> Side:
        self.settings.exchange.check_private_top(self.party)
        return self.settings.exchange.active(self.party)

    def _resuming(self, own: HeldCheckpoints) -> Half:
        return active_resuming(self.name, self.partners, own)

    def _take_leave(self) -> None:
        noting = partial(self._folder.note_farewell, self.number, self.step)
        self._drive(active_farewell(self.name, self.partners, self.step, noting))
        assert self._side is not None, "it was taken at the first meeting"
        try:
            self._drive(self._side.leave())
        except LinkError as error:  # nothing is needed of anybody any more
            self._notify(f"{error}; everything had been said before")

    def _build_as(self, run: Mapping[str, Any]) -> None:
        self._party, self.watch = self._build(run["widths"])

    def _has_parted(self, run: Mapping[str, Any]) -> bool:
        if not self.settings.exchange.one_way:
            return super()._has_parted(run)
        noted = self._folder.noted_farewell() if run else None
        return noted is not None and noted[0] == run["run"]  # it has all activations, whatever it has done with them

    def _go_on_alone(self, newest: Mapping[str, Any]) -> None:
        if not self.settings.exchange.one_way or self._is_end(newest):
            super()._go_on_alone(newest)
            return
        if self._party is None:
            self._build_as(newest)
        self._side = self._side or self._take_side()
        self._side.keep_in(self.settings.folder)
        self._take_up_newest()
        self._side.reopen()
        self._notify(f"nobody else is needed any more: {self.name} trains on what it has, from step {self.step} on")
        self._monitor = Monitor(self.settings.folder, resume_at=(self._offset, self.step))
        try:
            self._train()
        finally:
            self._monitor.close()
        self.party.best.use()

    def _answered(self) -> frozenset[str]:
        chains = (self.party.labels, *(cut.gradient for cut in self.party.cuts.values()))
        # Of parts under masks that are new at every meeting, the sum is remembered.
        kinds = {"activation"} if self.party.sums_parts else {"activation", "evaluation"}
        return frozenset(kinds if any(map(len, chains)) else ())

    def _evaluate(self, epoch: int) -> Verdict:
        assert self._side is not None, "it was taken at the first meeting"
        plan = self.settings.evaluation
        return self._evaluated(self._drive(evaluation_of(self._side, self.party, plan, step=self.step, epoch=epoch)))

    def _state(self) -> dict[str, Any]:
        found = {"figures": dict(self.figures), "kept": dict(self.kept)}
        return super()._state() | found | {"watch": self.watch.state_dict(), "widths": dict(self.party.widths)}

    def _take_back(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        super()._take_back(parts)
        run = parts["run"]
        self.figures, self.kept = dict(run["figures"]), dict(run["kept"])
        self.watch.load_state_dict(run["watch"])


class PassiveRun(PartyRun[PassiveParty]):
    """A passive party's run.

    Args:
        build: Makes the party, given what is learned, its defenses included.
    """

    def __init__(
        self,
        name: str,
        active: str,
        settings: RunSettings,
        meeting: Meeting,
        *,
        build: Callable[[TaskSpec], PassiveParty],
        **options: Any,
    ) -> None:
        super().__init__(name, (active,), settings, meeting, **options)
        self._active, self._build = active, build

    def _introduce(self) -> None:
        # The active party says nothing before everybody is there: as long as it waits for them, this one does.
        patience = max(self._meeting.wait_s, self.settings.message_s)
        self._drive(passive_introduction(self.name, self._active, self._width_for), timeout=patience)

    def _width_for(self, learned: TaskSpec) -> int:
        self._learned = learned
        if self._party is None:
            self._party = self._build(learned)
        return self._party.output_width()

    def _take_side(self) -> Side:
        side = self.settings.exchange.passive(self.party, self._active)
        self.party.shown, self.party.one_way = side.shown, self.settings.exchange.one_way
        return side

    def _is_end(self, run: Mapping[str, Any]) -> bool:
        if self.settings.exchange.one_way:  # it takes no step
            return bool(run) and bool(run.get("crossed"))
        return super()._is_end(run)

    def _resuming(self, own: HeldCheckpoints) -> Half:
        return passive_resuming(self.name, self._active, own)

    def _take_leave(self) -> None:
        self._drive(farewell(self.name, self.partners, self.step))
        self._folder.note_farewell(self.number, self.step)

    def _build_as(self, run: Mapping[str, Any]) -> None:
        self._learned = TaskSpec(**run["learned"])
        self._party = self._build(self._learned)

    def _answered(self) -> frozenset[str]:
        # Its activation of a step depends on the gradients of those before.
        if self.settings.exchange.one_way:
            return frozenset()
        return frozenset({"gradient"} if any(map(len, self.party.chains().values())) else ())

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"learned": asdict(self.learned)}

    def _evaluate(self, epoch: int) -> Verdict:
        plan = self.settings.evaluation
        half = passive_evaluation(self.party, plan, step=self.step, epoch=epoch, active=self._active)
        verdict: Verdict = self._drive(half)
        return verdict
