"""One party's training run over a network: meet, agree, go on from the last common checkpoint, train, take leave.

Whatever breaks a link (a partner that is killed, a cut network, a message that does not belong there) ends the meeting:
the party goes back to the newest checkpoint that all parties have and meets the others again. A run that was broken any
number of times ends with the weights of an undisturbed one.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

from splitvfl.data.digests import refuse_changed_data
from splitvfl.errors import ArgumentError, ConfigError, DataError, LinkError, ProtocolError
from splitvfl.exchange.base import Exchange, Side, checked_side
from splitvfl.exchange.evaluation import EvaluationPlan
from splitvfl.exchange.handshake import (
    HeldCheckpoints,
    TaskSpec,
    active_introduction,
    passive_introduction,
)
from splitvfl.leakage.column_reading import ColumnReader
from splitvfl.leakage.watching import Watch
from splitvfl.learning.batches import Batches
from splitvfl.learning.schedule import Schedule
from splitvfl.messaging.conversation import Half
from splitvfl.net.driver import Correspondent
from splitvfl.net.meeting import Meeting
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.party.refusals import Refusals, journal_of
from splitvfl.run import checkpoint
from splitvfl.run.party_folder import KEPT_CHECKPOINTS, PartyFolder, RunEnd
from splitvfl.run.party_training import ActiveTraining, P, PartyTraining, PassiveTraining
from splitvfl.run.replay import ReplayJournal
from splitvfl.run.session import Session
from splitvfl.run.shared_state import with_shared, without_shared, without_the_others
from splitvfl.run.teamwork import TeamMeeting, check_replicas, telling
from splitvfl.run.training import Run, Training, TrainingProgress
from splitvfl.run.written_files import REPLAY_JOURNAL
from splitvfl.team.team import Alone, Team

USUAL_LOSS = "the usual one"
ROWS_HERE = "rows of tables here"
DENSE_HERE = "dense weights here"
# What checkpoints that do not say it hold: they are older than the setting.
_BEFORE = {"loss": USUAL_LOSS, "workers of each party": "1", "shards of the records": "1", "batches in flight": "0"} | {
    ROWS_HERE: "all",
    DENSE_HERE: "all",
}

_ANEW = "at every party with --overwrite"

# A party that has been asked to stop may be waiting for another: so long it waits on.
_GRACE_S = 5.0


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
        team: The workers that the party consists of, of which this process is one.
        data: Digests of this party's data (:func:`splitvfl.data.digests.data_digests`), likewise.
        folder: Where this party keeps its run.
    """

    batches: Batches
    schedule: Schedule
    evaluation: EvaluationPlan
    exchange: Exchange
    terms: Mapping[str, object]
    folder: Path
    own_terms: Mapping[str, object] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    team: Team = field(default_factory=Alone)

    @property
    def kept_terms(self) -> dict[str, str]:
        """All that must be as it was when this party goes on, as a checkpoint holds it."""
        return {key: str(value) for key, value in {**self.terms, **self.own_terms}.items()}


class PartyRun(Run, Generic[P]):
    """One party's run.

    Args:
        session: Where it meets its partners.
        partners: Names of those that it talks to.
        settings: How it runs.
        progress: Told of every step.

    Attributes:
        number: Number of the run, the same at all its parties; empty before they have met.
    """

    _end: RunEnd

    def __init__(
        self,
        session: Session[Meeting],
        partners: Sequence[str],
        settings: RunSettings,
        *,
        progress: TrainingProgress = lambda status: None,
    ) -> None:
        super().__init__(Training(Watch(partners), notify=session.notify))
        self.name, self.partners, self.settings = session.party, tuple(partners), settings
        self._session = session
        self._first_s = session.message_s  # for the first message
        self._own: PartyTraining[P] | None = None
        self._side: Side | None = None
        self._links: dict[str, Correspondent] = {}
        self.number = ""
        self._folder = PartyFolder(settings.folder)
        self._saved = -1
        self._guard: ReplayJournal | None = None
        self._refusals = Refusals(self.name)
        self.team = self.training.team = settings.team
        self.training.set_out(settings.schedule, progress, grace_s=_GRACE_S)

    @property
    def party(self) -> P:
        """The party, once it has met the others and its model could be built."""
        assert self._own is not None, "it is built at the first meeting"
        return self._own.party

    # --- meeting, and meeting again

    def run(self) -> None:
        """Train to the end, however often links break.

        Raises:
            Interrupted: At Ctrl-C, after the current step and a checkpoint.
            DataError: If the parties do not agree, have no checkpoint in common, or this party's data have changed.
            LinkError: If a partner does not appear in time, or the run gets no further.
            ProtocolError: If a partner keeps sending what does not belong there.
            SumRefused: If too many sums were refused in this run, before it was started again too.
            CheckpointError: If a checkpoint cannot be written; the last good one stays.

        A party that has done everything itself ends well, without the others, whatever they do or send then.
        """
        with telling(self.team):
            self._run()

    def _run(self) -> None:
        newest = self._folder.newest()
        if newest:  # before anybody is met
            self._refuse_changes(newest)
        if self._end.team_has_parted(newest, self.team, self.name):
            if self._end.is_at(newest):
                self.training.notify(f"{self.name} finished this run before: nothing is left to train")
            self._go_on_alone(newest)
            return
        try:
            self._refusals = Refusals(self.name, journal_of(self.settings.folder, self.name))
            self._refusals.check()
            with self._session.place as place:
                self.team.collect(b"")  # whoever cannot listen says so before the others wait for partners
                session = replace(self._session, notify=self.training.notify).at(TeamMeeting(place, self.team))
                session.meet_until_done(
                    lambda links: self._drive(self._half(), links),
                    reached=lambda: self._saved,
                    then="going back to the last checkpoint that all have",
                )
            if self.settings.exchange.one_way:
                self._go_on_alone(self._folder.newest())
        except (DataError, LinkError, ProtocolError) as error:
            if not self._end.is_at(self._folder.newest()):
                raise
            self.training.notify(
                f"{error}; {self.name} itself has done everything, and ends without them. If another party still has "
                "to go back to a checkpoint, start this one again"
            )
            self._go_on_alone(self._folder.newest())
        finally:
            if self._guard is not None:
                self._guard.close()
            if self._side is not None:
                self._side.close()

    def take_up(self) -> None:
        """Take up the newest checkpoint in the folder, if there is one, for what does not fit; nothing is written.

        It needs nobody else. A run that has done this is not run: another one is made. Of several workers only data and
        settings are compared, as the weights are put together by all of them.

        Raises:
            DataError: If this party's data have changed.
            CheckpointError: If it is damaged, or of other settings, another model, other hooks or other partners.
        """
        newest = self._folder.newest()
        if not newest:
            return
        self._refuse_changes(newest)
        if self.team.size == 1:
            self._take_up(checkpoint.latest(self._folder.checkpoints), alone=False)

    def _refuse_changes(self, newest: Mapping[str, Any]) -> None:
        """Refuse data or settings that are not those of the newest checkpoint."""
        begun_with = {self.name: newest["data"]} if "data" in newest else None
        now = {self.name: self.settings.data}
        refuse_changed_data(begun_with, now, where=self.settings.folder, notify=self.training.notify)
        path = checkpoint.latest(self._folder.checkpoints)
        assert path is not None, "it lay there just now"
        with checkpoint.restoring(path, what="run", anew=_ANEW):
            self._check_terms(newest)

    @property
    def is_at_its_end(self) -> bool:
        """Whether the newest checkpoint in the folder is that of the last step."""
        return self._end.is_at(self._folder.newest())

    def was_at_its_end(self) -> bool:
        """Return whether all workers of this party had done everything before, so that its half can be written."""
        return {b"end"} == set(self.team.collect(b"end" if self.is_at_its_end else b""))

    def take_end(self) -> None:
        """Take up the end of the run, without anybody: what was trained is written before partners are waited for."""
        self._go_on_alone(self._folder.newest())

    def _go_on_alone(self, newest: Mapping[str, Any]) -> None:
        """Do what is left to do without the others: nothing, as a rule."""
        self._take_up(checkpoint.latest(self._folder.checkpoints), alone=True)
        self.party.weights.best.use()

    def _drive(self, half: Half, links: Mapping[str, Correspondent]) -> None:
        self._links = dict(links)
        try:
            self._session.drive(half, self._links, first_s=self._first_s)
        finally:
            self.training.log.monitor.close()

    @abstractmethod
    def _half(self) -> Half:
        """Return the half of one meeting: its model is built at the introduction, if it is the first."""

    @abstractmethod
    def _build_as(self, run: Mapping[str, Any]) -> None:
        """Build its model as it was built in the run whose state this is."""

    @abstractmethod
    def _take_side(self) -> Side:
        """Return its side of the exchange."""

    @property
    def _spoken(self) -> dict[str, Any]:
        """What its part in the conversation is made with."""
        settings = self.settings
        return {
            "exchange": settings.exchange,
            "terms": settings.terms,
            "plan": settings.evaluation,
            "parted": lambda: self._folder.note_farewell(self.number, self.step),
        }

    def begin(self) -> None:
        """Take its side of the exchange into use.

        Raises:
            ConfigError: If its model is not one that this exchange can train.
        """
        assert self._own is not None, "it was built at the introduction"
        if self.party.weights.is_to_be_divided:
            self.party.share_with_workers()  # of what is divided nobody has the whole any more
            try:
                self.party.weights.divide()
            except ArgumentError as error:
                raise ConfigError(f"model.dense: sharded: {error}") from error
        if self._side is None:
            self._side = self._own.side = self._take_side()
        self._side.keep_in(self.settings.folder)
        self.party.refusals = self._refusals

    def new_number(self) -> str:
        """Return the number that a new run gets: one for all workers."""
        return self.team.collect(secrets.token_hex(16).encode())[0].decode()

    def before_leaving(self) -> None:
        """Wait until all workers have saved their last step: whoever hears a farewell knows then that they have."""
        self.team.collect(b"done")

    def choose(self, resuming: Callable[[HeldCheckpoints], Half]) -> Half:
        """Go on from a checkpoint that all parties have.

        Args:
            resuming: Returns the party's half of the choice, given what it has.

        Raises:
            CheckpointError: If it is damaged, or belongs to another run.
        """
        self._go_on_from((yield from resuming(self._folder.held_by_all(self.team, self.name))))

    def _take_up(self, path: Path | None, *, alone: bool) -> None:
        assert path is not None, "it lay there just now"
        parts = checkpoint.load(path)
        with checkpoint.restoring(path, what="run", anew=_ANEW):
            self._check_terms(parts["run"])
            if alone:  # at the end, where worker 0 has what is to be written, and the others what is divided
                parts["party"] = without_the_others(parts["party"])
            elif parts["run"]["step"]:
                parts["party"] = with_shared(parts["party"], self.team)
        if self._own is None:
            self._build_as(parts["run"])
        self.party.weights.divide()
        with checkpoint.restoring(path, what="run", anew=_ANEW):
            self._take_back(parts)

    # --- checkpoints

    def _go_on_from(self, chosen: HeldCheckpoints) -> None:
        (step,) = chosen.steps
        found = checkpoint.steps(self._folder.checkpoints)
        # A first one that some workers lack: nothing was sent before all had theirs, and all begin again.
        if not step and b"" in self.team.collect(b"here" if step in found else b""):
            found = {}
        if step in found:
            self._take_up(found[step], alone=False)
            for later in (path for number, path in found.items() if number > step):
                checkpoint.remove(later)
        self.number = chosen.run
        if not step and self.team.size > 1:  # what was drawn at random is worker 0's
            self.party.share_with_workers()
        check_replicas(self.team, self.party)
        self._watch_replays()
        # What a run logs is worker 0's, which has what all of them evaluate.
        log = self.settings.folder if self.team.rank == 0 else None
        self.training.log.begin_in(log, going_on_from=step if step in found and log is not None else None)
        if step not in found or not step:
            self.save_checkpoint()  # under the number of this run
            self.team.collect(b"saved")
        if self.replacing is not None:
            self.replacing.done()  # all workers have a checkpoint of this one
        self._saved = step
        if step:
            self.training.notify(f"going on from step {step}")

    def _watch_replays(self) -> None:
        assert self._own is not None, "it was built at the introduction"
        kinds = self._own.answered()
        if self._guard is None and kinds:
            self._guard = ReplayJournal(self.settings.folder / REPLAY_JOURNAL, kinds)
        if self._guard is not None:
            self._guard.go_back()
            self.party.remember = self._guard.admit
            self._links |= {name: self._guard.watching(link) for name, link in self._links.items()}

    def save_checkpoint(self) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: If it cannot be written; the last good one stays.
        """
        check_replicas(self.team, self.party)
        self.training.log.flush()
        for chain in self.party.chains().values():
            chain.draw_generators(self.party.device)  # else a run that goes back to its beginning would draw others
        party = self.party.state_dict()
        if self.step:  # a first checkpoint may be there at some workers only, who begin again then
            party = without_shared(party, self.team, own=self.party.weights.divided)
        parts = {"run": self._state(), "party": party, "hooks": self.party.hook_state()}
        checkpoint.save(self._folder.checkpoints, self.step, parts, keep=KEPT_CHECKPOINTS)
        self._saved = self.step
        if self._guard is not None:
            self._guard.forget(min(checkpoint.steps(self._folder.checkpoints)))

    def _state(self) -> dict[str, Any]:
        return {
            **self.training.progress_state(),
            "run": self.number,
            "stopped": self.stopped,
            "terms": self.settings.kept_terms,
            "data": dict(self.settings.data),
            "side": {} if self._side is None else self._side.state_dict(),
            "crossed": self._own is not None and self._own.crossed,
        }

    def _check_terms(self, run: Mapping[str, Any]) -> None:
        # An older version kept fewer settings of the party's own: what it does not say is taken to be as it was.
        own = {key: str(value) for key, value in self.settings.own_terms.items()}
        terms = own | _BEFORE | run["terms"]
        changed = [
            f"{key} was {terms.get(key)} and is {value}"
            for key, value in self.settings.kept_terms.items()
            if terms.get(key) != value and key != "epochs"
        ]
        if changed:
            raise ValueError(f"{', '.join(changed)}; start anew with --overwrite, or name another folder with --out")

    def _take_back(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        run = parts["run"]
        self.party.load_state_dict(dict(parts["party"]))
        self.party.load_hook_state(dict(parts["hooks"]))
        self.training.take_back_progress(run)
        self.number = run["run"]
        if self._side is not None:
            self._side.load_state_dict(run.get("side", {}))


class ActiveRun(PartyRun[ActiveParty]):
    """The label party's run: it watches what its own messages give away.

    Args:
        learned: What it tells the passive parties of what is learned.
        build: Makes the party, given the width of each passive party's activation, its cuts, defenses and attacks
            included.
    """

    def __init__(
        self,
        session: Session[Meeting],
        partners: Sequence[str],
        settings: RunSettings,
        *,
        learned: TaskSpec,
        build: Callable[[Mapping[str, int]], tuple[ActiveParty, Watch]],
        **options: Any,
    ) -> None:
        super().__init__(session, partners, settings, **options)
        self.learned, self._build = learned, build
        self._end = RunEnd(self._folder, settings.schedule.steps, ends_alone=settings.exchange.one_way)

    def _half(self) -> Half:
        widths = yield from active_introduction(self.name, self.partners, self.learned)
        if self._own is None:
            self._build_as({"widths": widths})
        elif widths != self.party.widths:
            raise ProtocolError(f"the widths of the activations were {self.party.widths}, and are {widths} now")
        assert self._own is not None, "it was built just now"
        yield from self._own.half()

    def _build_as(self, run: Mapping[str, Any]) -> None:
        party, self.training.watch = self._build(run["widths"])
        self.training.parties = (party,)
        self._own = ActiveTraining(party, self.partners, self, **self._spoken)

    def _check_terms(self, run: Mapping[str, Any]) -> None:
        super()._check_terms(run)
        if set(run["widths"]) != set(self.partners):
            raise ValueError(
                f"partners were {', '.join(sorted(run['widths']))} and are {', '.join(sorted(self.partners))}; start "
                "anew with --overwrite, or name another folder with --out"
            )

    def _take_side(self) -> Side:
        self.settings.exchange.check_private_top(self.party)
        return checked_side(self.settings.exchange.active(self.party), self.settings.exchange)

    def _go_on_alone(self, newest: Mapping[str, Any]) -> None:
        if not self.settings.exchange.one_way or self._end.is_at(newest):
            super()._go_on_alone(newest)
            return
        if self._own is None:
            self._build_as(newest)
        self.begin()
        self._take_up(checkpoint.latest(self._folder.checkpoints), alone=True)
        assert self._side is not None, "it was taken just now"
        self._side.reopen()
        self.training.notify(
            f"nobody else is needed any more: {self.name} trains on what it has, from step {self.step} on"
        )
        self.training.log.begin_in(self.settings.folder, going_on_from=self.step)
        self._train()

    def _train(self) -> None:
        assert self._own is not None, "it was built before"
        self._drive(self._own.steps(), {})

    def _state(self) -> dict[str, Any]:
        own = self.training
        found = {"figures": dict(own.figures), "kept": dict(own.kept), **own.evaluated_state()}
        return super()._state() | found | {"watch": self.watch.state_dict(), "widths": dict(self.party.widths)}

    def _take_back(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        super()._take_back(parts)
        run = parts["run"]
        self.training.figures, self.training.kept = dict(run["figures"]), dict(run["kept"])
        self.training.take_back_evaluated(run)
        self.watch.load_state_dict(run["watch"])


class PassiveRun(PartyRun[PassiveParty]):
    """A passive party's run.

    Args:
        build: Makes the party, given what is learned, its defenses and who reads its columns in what it sends included.
    """

    def __init__(
        self,
        session: Session[Meeting],
        active: str,
        settings: RunSettings,
        *,
        build: Callable[[TaskSpec], tuple[PassiveParty, Watch]],
        **options: Any,
    ) -> None:
        super().__init__(session, (active,), settings, **options)
        self._build = build
        self._end = RunEnd(self._folder, settings.schedule.steps, crosses=settings.exchange.one_way)
        self._learned: TaskSpec | None = None
        # The active party says nothing before everybody is there: as long as it waits for them, this one does.
        self._first_s = session.first_s

    @property
    def learned(self) -> TaskSpec:
        """What is learned."""
        assert self._learned is not None, "the first meeting tells"
        return self._learned

    def _half(self) -> Half:
        yield from passive_introduction(self.name, self.partners[0], self._width_for)
        assert self._own is not None, "it was built just now"
        yield from self._own.half()

    def _width_for(self, learned: TaskSpec) -> int:
        if self._own is None:
            self._build_as({"learned": asdict(learned)})
        self._learned = learned
        return self.party.output_width()

    def _build_as(self, run: Mapping[str, Any]) -> None:
        self._learned = TaskSpec(**run["learned"])
        party, self.training.watch = self._build(self._learned)
        self.training.parties = (party,)
        self._own = PassiveTraining(party, self.partners, self, **self._spoken)

    def _take_side(self) -> Side:
        exchange = self.settings.exchange
        exchange.check_penalties(self.party)
        side = checked_side(exchange.passive(self.party, self.partners[0]), exchange)
        self.party.shown, self.party.one_way = side.shown, exchange.one_way
        return side

    @property
    def is_broken_off(self) -> bool:
        """Whether there is anything left to do."""
        return not self._end.is_at(self._state())

    def take_newest(self) -> bool:
        """Take up what is known of a run that has ended before its end, without anybody; return whether it had begun.

        That is all that was sent, where this process has sent it; else what the newest checkpoint has.
        """
        if self._own is None and self._folder.newest():
            self._go_on_alone(self._folder.newest())
        return self._own is not None and (self.step > 0 or any(one.reading() for one in self._readers))

    @property
    def _readers(self) -> list[ColumnReader]:
        return [*self.watch.readers[self.name].values()]

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"learned": asdict(self.learned), "watch": self.watch.state_dict()}

    def _take_back(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        super()._take_back(parts)
        if "watch" in parts["run"]:  # an older run watched nothing here
            begun = self.watch.take_up_readers(parts["run"]["watch"])
            if begun and self.step:
                self.training.notify(f"{', '.join(begun)} at {self.name}: not in the checkpoint; it reads from here on")
