"""Training: epochs of conversations between parties in this process, watched, checkpointed and resumable."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitvfl.cut.layer import refuse_batch_mixing
from splitvfl.data.digests import data_digests, refuse_changed_data
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError
from splitvfl.exchange.base import Exchange, Side, checked_side
from splitvfl.exchange.handshake import terms_of
from splitvfl.hooks import (
    At,
    Attack,
    Defense,
    placed,
    reads_activations,
    reads_steps,
    reads_whole_model,
    seat_of,
    target_of,
)
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.features import FeatureLeak
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.leaks import Leaks
from splitvfl.leakage.membership import MembershipLeak
from splitvfl.leakage.message_audit import MessageAudit
from splitvfl.leakage.packed_values import PackedReading
from splitvfl.leakage.watching import Watch
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.schedule import checked_count
from splitvfl.messaging.conversation import Half, Recorder, converse
from splitvfl.messaging.messages import Message
from splitvfl.party.attaching import attach_defense, check_labels
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.party.refusals import Refusals, journal_of
from splitvfl.run import checkpoint, written_files
from splitvfl.run.column_seats import ColumnSeats
from splitvfl.run.feature_seats import feature_leaks
from splitvfl.run.membership_seat import MembershipSeat
from splitvfl.run.packing_seat import PackingSeat, deviating, reads_packed
from splitvfl.run.party_training import ActiveTraining, PartyTraining, PassiveTraining, Rendezvous
from splitvfl.run.plan import TrainingPlan
from splitvfl.run.progress_bar import progress_bar
from splitvfl.run.replacement import Replacement
from splitvfl.run.results import Results
from splitvfl.run.score_seats import ScoreSeats
from splitvfl.run.seats import LabelBook, Seats
from splitvfl.run.step_seat import StepSeat
from splitvfl.run.training import Run, Training, TrainingProgress, new_run_number

if TYPE_CHECKING:
    from splitvfl.crypto.engine import Engine


class Trainer(Run):
    """Trains one model over the columns of several parties, all in this process, and watches what leaks.

    Every label attack is run in the seat of each passive party, on what that party holds and received; the harness
    judges it. The auditor's attack is run on what the active party sends.

    Args:
        active: The party with the labels.
        passives: The other parties by name.
        plan: What the training is.
        defenses: Attached where each belongs. At several cuts, each cut gets its own copy. One of the activation acts
            in training, evaluations and predictions, unless :class:`~splitvfl.hooks.At` names some of them.
        attacks: Label attacks for every passive party, run at every step or, if that is what they are for, once after
            training; feature attacks run at every step or, if that is what they are for, once at the end, on
            predictions.
        folder: Folder for TensorBoard, ``metrics.jsonl`` and checkpoints; ``None`` keeps nothing. A folder that holds
            another run is refused, unless :meth:`resume` goes on with it or :attr:`overwrite` is set.
        exchanges: By party's name how a step is talked through, where one of them deviates; ``None``: as the plan says.
        malicious: By party's name, the engine of one that deviates from an encrypted exchange, such as
            ``{"lab": PackingEngine()}``: what it reads is judged (:attr:`packing`). Default: all are honest.

    Attributes:
        exchange: How the active party talks a step through.
        overwrite: Whether a run that the folder holds is replaced. It is deleted when this run has its first
            checkpoint; if training ends before, it is as it was.
        record: Called with every message of the training steps; in exchange one-way, with everything that crosses
            before them.
        record_evaluations: Called with every message of evaluations.
        number: Number of the run, which its checkpoints keep: trained further, it is the same run.
        data_digests: Digests of every party's data, by party, as checkpoints hold them
            (:func:`splitvfl.data.digests.data_digests`); empty before training, and without a folder.

    Raises:
        ArgumentError: If parties have no or clashing names, an attack needs what a party cannot show, or the plan has a
            dtype that no party takes.
        ConfigError: If an attack, a defense or canaries are for binary labels and the task is another; if there are to
            be canaries without an auditor who looks for them, or where no message about one record comes back; or if
            noise is agreed on that was not calculated.
        DataError: If there are to be more canaries than other records.
        PrivacyError: If a guarantee per record is claimed for a model with batch-mixing layers.
    """

    def __init__(
        self,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        plan: TrainingPlan,
        *,
        defenses: Sequence[Defense | At] = (),
        attacks: Sequence[Attack] = (),
        folder: Path | None = None,
        exchanges: Mapping[str, Exchange] | None = None,
        malicious: Mapping[str, Engine] | None = None,
    ) -> None:
        super().__init__(Training(Watch(passives)))
        self.training.parties = (active, *passives.values())
        self.active, self.passives, self.folder = active, dict(passives), folder
        check_names(active, self.passives)
        self.batches = plan.batches(active.data)
        by_party = _by_party(plan, exchanges, (active.name, *self.passives))
        if malicious:
            by_party |= deviating(by_party[active.name], malicious, active.name, (active.name, *self.passives))
        self.exchange = by_party[active.name]
        self.exchange.check_shards(plan.shards)
        self._training_plan = replace(plan, exchange=self.exchange)
        self._settings = self._training_plan.terms()
        if self.exchange.in_flight:  # checkpoints are where nothing is in flight: weights depend on where they come
            self._settings["checkpoint every"] = plan.checkpoint_every or 0
        self._prepare(defenses)
        self._sides = _sides(by_party, active, self.passives)
        self._take_seats(attacks, malicious or {})
        self.overwrite, self._begun = False, False
        self.record: Recorder | None = None
        self.record_evaluations: Recorder | None = None
        self.number = new_run_number()
        self.data_digests: dict[str, dict[str, str]] = {}

    def _prepare(self, defenses: Sequence[Defense | At]) -> None:
        """Make the parties ready to train, each with randomness and defenses of its own."""
        active, plan = self.active, self._training_plan
        for party in self.training.parties:
            plan.prepare(party, seed=derive_seed(plan.seed, "party", party.name))
        plan.stop_early(active, self.batches)
        active.training_labels.canaries = None  # of an earlier trainer
        plan.check_canaries()
        plan.place_canaries(active, self.batches)
        for name in self.passives:
            active.connect(name)
        _attach(defenses, active, self.passives, plan.noise_seed_for_experiments)

    def _take_seats(self, attacks: Sequence[Attack], malicious: Mapping[str, Engine]) -> None:
        """Let every attack, and the auditor, watch from where it belongs."""
        active, own, seed = self.active, self.exchange, self._training_plan.seed
        known = self._training_plan.known_records(active)
        self.known_positives, self.known_negatives = known["known_positives"], known["known_negatives"]
        on_features = [one for one in attacks if seat_of(one) == "active" and target_of(one) == "features"]
        of_scores = [one for one in on_features if reads_whole_model(one) and not reads_activations(one)]
        of_steps = [one for one in on_features if reads_steps(one)]
        elsewhere = {id(one) for one in on_features if reads_activations(one)} | {
            id(one) for one in (*of_scores, *of_steps)
        }
        self.feature_attacks = [one for one in on_features if id(one) not in elsewhere]
        self._column_seats = ColumnSeats(
            active,
            self.passives,
            [attack for attack in on_features if reads_activations(attack)],
            watch=self.watch,
            exchange=own,
            batches=self.batches,
            seed=seed,
        )
        self._score_seats = ScoreSeats(
            active, self.passives, of_scores, watch=self.watch, batches=self.batches, seed=seed
        )
        self._step_seat = StepSeat(active, self.passives, of_steps, watch=self.watch, exchange=own, seed=seed)
        self._membership_seat = MembershipSeat(
            active,
            self.passives,
            [one for one in attacks if target_of(one) == "members"],
            watch=self.watch,
            batches=self.batches,
            seed=seed,
        )
        self.labels_of = LabelBook(active.data.train, canaries=active.training_labels.canaries, in_flight=own.in_flight)
        self.training.begun[active.name] = self.labels_of.turn_to
        self._seats = Seats(
            active,
            self.passives,
            [one for one in attacks if seat_of(one) == "passive" and not (malicious and reads_packed(one))],
            watch=self.watch,
            labels_of=self.labels_of,
            known=known,
            seed=derive_seed(seed, "after training"),
        )
        self.after_training = self._seats.after_training
        self._packing_seat = PackingSeat(
            active,
            self.passives,
            malicious,
            attacks=[one for one in attacks if reads_packed(one)],
            watch=self.watch,
            labels_of=self.labels_of,
            exchange=own,
            sides=self._sides,
        )
        if self._training_plan.audit and own.shows_gradients():
            for name, party in self.passives.items():
                self.watch.audits[name] = active.cuts[name].audit(
                    canaries=active.training_labels.canaries, classes=active.task.classes, features=party.data.train
                )

    def __repr__(self) -> str:
        """Return parties, records and how far it is."""
        worst, by = self.watch.worst_logged
        figures = [f"test {name} {value:.3f}" for name, value in self.test.items()]
        leak = [] if math.isnan(worst) else [f"worst leak {worst:.2f} ({by})"]
        parties = " and ".join((self.active.name, *self.passives))
        return f"<Trainer of {parties}: {', '.join([f'step {self.step}', *figures, *leak])}>"

    def observe(self, party: str, layer: str, attack: Attack) -> Leak:
        """Let an attack watch the gradient of an earlier layer's output in a passive party's bottom model.

        Source: Li et al., ICLR 2022, arXiv:2102.08504, figure 2b.

        Args:
            party: Name of the passive party.
            layer: Name of the layer, as in ``bottom.named_modules()``.
            attack: A label attack that needs the gradient only.

        Raises:
            ArgumentError: If there is no such party or layer, or the attack needs more than the gradient.
            ConfigError: If the task is not binary.
        """
        return self._seats.observe(party, layer, attack)

    def fit(self, epochs: int, *, progress: TrainingProgress | bool | None = None) -> Results:
        """Train up to a number of epochs in total, evaluate after each, and return the last test figures.

        After :meth:`resume` it goes on where the checkpoint was taken; ``epochs`` counts from the run's beginning. With
        early stopping every party has its best weights afterwards, and the figures returned are theirs; checkpoints
        hold the weights as trained too, from which a later call with more epochs goes on. A run that was stopped early
        does not go on.

        Args:
            epochs: Epochs of the whole run, at least 1.
            progress: ``True`` shows a bar, on a terminal or in a notebook; or what is called after every step.

        Returns:
            Headline figure and loss on the test records, by name.

        Raises:
            Interrupted: At Ctrl-C, after the current step and a checkpoint.
            ArgumentError: If ``epochs`` is no whole number of at least 1.
            ConfigError: If the folder holds another run, or a defense cannot keep what it promises of a run.
            DataError: If the parties do not agree on records or settings.
            SumRefused: If a sum that was opened is none of the agreed numbers, or too many were refused in this run.
            CheckpointError: If a checkpoint cannot be written; the last good one stays.
        """
        if progress is None or isinstance(progress, bool):
            with progress_bar(shown=bool(progress)) as bar:
                return self.fit(epochs, progress=bar)
        epochs = checked_count("epochs", epochs)
        longest = self._training_plan.noise_epochs
        if longest is not None and epochs > longest:
            raise ConfigError(
                f"the noise of this run was calculated for {longest} epochs, and {epochs} would spend more than was "
                "promised: say epochs to a new Trainer"
            )
        stop = None if (account := self.training.account) is None else account.stop
        schedule = self._training_plan.schedule(self.batches, epochs, stop=stop)
        self.exchange.plan_run(self.active, epochs=epochs)
        self.training.set_out(schedule, progress)
        try:
            self._train()
        except BaseException:
            if self.replacing is not None and self.replacing.undo():
                self._begun = False  # nothing of it is in the folder any more
            raise
        return Results(self.test, worst=self.watch.worst_logged, label_leaks=self.watch.label_leaks_logged)

    def _train(self) -> None:
        """Train, and attack when that is done; whatever ends it, files are closed."""
        try:
            self._converse()
            self._seats.attack_after_training(self.step, self.training.log.monitor)
            self._score_seats.read(self.step, self.training.log.monitor)
            self._step_seat.read(self.step, self.training.log.monitor)
            self._membership_seat.read(self.step, self.training.log.monitor)
        finally:
            for side in self._sides.values():
                side.close()
            try:
                self.training.log.flush()
            finally:
                self.training.log.monitor.close()

    def _converse(self) -> None:
        """Let all parties talk through the whole run."""
        common: dict[str, Any] = {
            "exchange": self.exchange,
            "plan": self._training_plan.evaluation(self.active.data, self.batches),
            "here": Rendezvous(len(self.training.parties)),
        }
        terms = {party.name: terms_of(party.data, self._settings) for party in self.training.parties}
        active_name, names = self.active.name, tuple(self.passives)
        active = ActiveTraining(self.active, names, self, terms=terms[active_name], **common)
        own: dict[str, PartyTraining[Any]] = {
            name: PassiveTraining(party, (active_name,), self, terms=terms[name], **common)
            for name, party in self.passives.items()
        } | {active_name: active}
        for name, party_training in own.items():
            party_training.side = self._sides[name]
        halves = {name: own[name].half() if name in own else side.serve() for name, side in self._sides.items()}
        if self.exchange.one_way:
            halves[active_name] = _in_sequence(active.half(), active.steps())

        def record(message: Message) -> None:
            # What somebody without data says belongs to what the active party does.
            sender = own.get(message.sender, active)
            if self.record is not None and sender.trains:
                self.record(message)
            if self.record_evaluations is not None and sender.evaluates:
                self.record_evaluations(message)

        converse(halves, record=record)

    def begin(self) -> None:
        """Take the folder and the sides of the exchange into use.

        Raises:
            ConfigError: If the folder holds another run.
            SumRefused: If too many sums were refused in this run before.
            CheckpointError: If a file cannot be written.
        """
        if self.folder is not None and not self._begun:
            _claim(self.folder, self._settled(self.folder), overwrite=self.overwrite)
        for party in self.training.parties:
            if self.folder is not None:
                party.refusals = Refusals(party.name, journal_of(self.folder, party.name))
            party.refusals.check()
        if self.folder is not None and not self.data_digests:
            self.data_digests = _digests(self.training.parties)
        self.training.log.begin_in(self.folder, going_on_from=self.step if self._begun else None)
        self._begun = True
        for side in self._sides.values():
            side.keep_in(self.folder)

    def _settled(self, folder: Path) -> Replacement:
        """Return the earlier run in the folder, after what a killed process has left was ended."""
        if self.replacing is None:
            self.replacing = Replacement(folder, written_files.paths, notify=self.training.notify)
            self.replacing.settle()
        return self.replacing

    @property
    def test(self) -> dict[str, float]:
        """Headline figure and loss on the test records, of the weights that the models hold; empty before any.

        With a private top these are its own, and ``"sending/auc"`` and so on those of the top that sends.
        """
        return _figures_of(self, "test")

    @property
    def validation(self) -> dict[str, float]:
        """The same on the records that early stopping holds out; empty without it."""
        return _figures_of(self, "validation")

    @property
    def leaks(self) -> Leaks:
        """The attacks in the seat of each passive party, by name."""
        return self.watch.leaks

    @property
    def audits(self) -> dict[str, MessageAudit]:
        """The auditor's attack on what is sent to each passive party; none if the run has none."""
        return self.watch.audits

    @property
    def unavailable(self) -> dict[str, dict[str, str]]:
        """Attacks that could not be run, by passive party and name, with the reason."""
        return self.watch.unavailable

    def summaries(self, party: str) -> dict[str, LeakSummary]:
        """Return the figures of every attack in one passive party's seat, and of the auditor's, by name."""
        return self.watch.summaries(party)

    @property
    def worst_leak(self) -> tuple[float, str]:
        """The worst leak AUC of all attacks, per step or accumulated, and that attack's name; NaN and "" if none."""
        return self.watch.worst

    def column_readings(self, party: str) -> list[ColumnReading]:
        """Return what attacks in the active party's seat read of a passive party's columns.

        In activations, during training (:mod:`splitvfl.leakage.column_reading`), and, when it has ended, in scores of
        predictions (:mod:`splitvfl.run.score_seats`) and in all steps together (:mod:`splitvfl.run.step_seat`). Beside
        those of the first two kinds stands what the active party's own columns tell.
        """
        seats = (self._column_seats, self._score_seats, self._step_seat)
        return [reading for seat in seats for reading in seat.readings(party)]

    @property
    def packing(self) -> list[PackedReading]:
        """What parties that deviate have read so far, and what they would have read in the published protocol."""
        return self._packing_seat.readings()

    @property
    def membership(self) -> list[MembershipLeak]:
        """How well attacks told training from test records by the finished model; empty before training has ended.

        See :mod:`splitvfl.run.membership_seat`.
        """
        return list(self._membership_seat.found)

    def feature_leaks(self) -> dict[str, list[FeatureLeak]]:
        """Run the feature attacks on predictions of training and test records, in the active party's seat.

        Each is run on what scores tell and on what the activation tells (:mod:`splitvfl.run.feature_seats`). The
        attacker is assumed to know the passive parties' weights, and the range of their columns over the training
        records; errors are in units of that range. Only passive parties whose bottom is one linear layer are attacked;
        others are listed in :attr:`unavailable`.
        """
        return feature_leaks(self.feature_attacks, self.active, self.passives, self.unavailable)

    def save_checkpoint(self) -> None:
        """Write a checkpoint, if the run has a folder.

        Raises:
            CheckpointError: If it cannot be written; the last good one stays.
        """
        if self.folder is None:
            return
        self.training.log.flush()
        run = {
            **self.training.progress_state(),
            "number": self.number,
            "settings": dict(self._settings),
            "figures": dict(self.training.figures),
            "best figures": dict(self.training.kept),
            **self.training.evaluated_state(),
            "watch": self.watch.state_dict(),
            "steps": self._step_seat.state_dict(),
            "packing": self._packing_seat.state_dict(),
            "sides": {name: side.state_dict() for name, side in self._sides.items()},
            "data": self.data_digests,
        }
        parts: dict[str, dict[str, Any]] = {"run": run}
        for party in self.training.parties:
            parts[f"party-{party.name}"] = party.state_dict()
            parts[f"hooks-{party.name}"] = party.hook_state()
        checkpoint.save(self.folder / "checkpoints", self.step, parts)
        if self.replacing is not None:
            self.replacing.done()  # from here on this one can be resumed

    def resume(self) -> int:
        """Take back the newest checkpoint in the run's folder and return the number of steps done.

        Raises:
            CheckpointError: If there is none, or it belongs to another experiment.
            DataError: If the data of a party are not those that the run began with.
        """
        if self.folder is not None:
            self._settled(self.folder)
        return self.take_up()

    def take_up(self) -> int:
        """Take back the newest checkpoint as :meth:`resume` does, and change nothing in the run's folder.

        Raises:
            CheckpointError: As :meth:`resume`.
            DataError: As :meth:`resume`.
        """
        newest = None if self.folder is None else checkpoint.latest(self.folder / "checkpoints")
        if newest is None:
            raise CheckpointError(f"there is no checkpoint in {self.folder} to resume from")
        parts = checkpoint.load(newest)
        self.data_digests = _digests(self.training.parties)
        begun_with = parts.get("run", {}).get("data")
        refuse_changed_data(begun_with, self.data_digests, where=self.folder, notify=self.training.notify)
        with checkpoint.restoring(newest, what="experiment", anew="with --overwrite or another folder"):
            run = parts["run"]
            if run["settings"] != self._settings:
                raise ValueError(f"it was made with {run['settings']}, this run has {self._settings}")
            for party in self.training.parties:
                party.load_state_dict(parts[f"party-{party.name}"])
                party.load_hook_state(parts[f"hooks-{party.name}"])
            self.watch.load_state_dict(run["watch"])
            self._step_seat.load_state_dict(run.get("steps", {}))
            self._packing_seat.load_state_dict(run.get("packing", {}))
            for name, side in self._sides.items():
                side.load_state_dict(run.get("sides", {}).get(name, {}))
            self.training.figures, self.training.kept = run["figures"], run["best figures"]
            self.training.take_back_evaluated(run)
            self.training.take_back_progress(run)
            self.number = str(run["number"]) if "number" in run else self._number_of_older(newest.parent.parent)
        self._begun = True
        return self.step

    def _number_of_older(self, folder: Path) -> str:
        """Return the number of a run whose checkpoint does not say it: another one, as older versions gave it."""
        return self.number


def _claim(folder: Path, earlier: Replacement, *, overwrite: bool) -> None:
    """Make sure that a folder holds no run: what training would write over is refused, or moved aside."""
    found = written_files.paths(folder)  # nothing, where a run of the whole folder was moved aside before
    if found and not overwrite:
        raise ConfigError(
            f"{folder} already holds a run: go on with it by trainer.resume(), replace it by overwrite=True, "
            "or name another log_dir"
        )
    if found:
        earlier.begin()


def _figures_of(trainer: Trainer, part: str) -> dict[str, float]:
    """Return the figures of a part of the records that belong to the weights in use."""
    figures = trainer.training.kept if trainer.active.weights.best.in_use else trainer.training.figures
    return {tag.removeprefix(f"{part}/"): value for tag, value in figures.items() if tag.startswith(f"{part}/")}


def _digests(parties: Sequence[Party]) -> dict[str, dict[str, str]]:
    return {party.name: data_digests(party.data) for party in parties}


def check_names(active: ActiveParty, passives: Mapping[str, PassiveParty]) -> None:
    """Refuse parties without names, or with clashing ones.

    Raises:
        ArgumentError: If there are any.
    """
    if not passives:
        raise ArgumentError("expected at least one passive party")
    for name, party in passives.items():
        if party.name != name:
            raise ArgumentError(f"the party under {name!r} calls itself {party.name!r}; give both one name")
    if active.name in passives:
        raise ArgumentError(f"two parties are called {active.name!r}")


def _by_party(
    plan: TrainingPlan, exchanges: Mapping[str, Exchange] | None, names: Sequence[str]
) -> dict[str, Exchange]:
    """Return the exchange of each party, its secrets fixed where an experiment fixes them."""
    seed = plan.noise_seed_for_experiments

    def fixed(one: Exchange) -> Exchange:
        return one if seed is None else one.repeatable(seed)

    if exchanges is None:
        return dict.fromkeys(names, fixed(plan.exchange))
    if set(exchanges) != set(names):
        given = ", ".join(exchanges) or "none"
        raise ArgumentError(f"expected an exchange for each of {', '.join(names)}, got {given}")
    return {name: fixed(one) for name, one in exchanges.items()}


def _attach(
    defenses: Sequence[Defense | At],
    active: ActiveParty,
    passives: Mapping[str, PassiveParty],
    noise_seed: int | None,
) -> None:
    """Attach every defense where it belongs; each of several passive parties gets a copy of its own."""
    parties = (active, *passives.values())
    for number, given in enumerate(defenses):
        defense, phases = placed(given)
        refuse_batch_mixing((party.module for party in parties), defense)
        check_labels(active, defense)
        for party in parties:
            shared = party is not active and len(passives) > 1
            own = copy.deepcopy(defense) if shared else defense
            attach_defense(party, own, number=number, noise_seed=noise_seed, phases=phases)


def _sides(
    exchanges: Mapping[str, Exchange], active: ActiveParty, passives: Mapping[str, PassiveParty]
) -> dict[str, Side]:
    sides = {
        name: checked_side(exchanges[name].passive(party, active.name), exchanges[name])
        for name, party in passives.items()
    }
    for name, party in passives.items():
        party.shown, party.one_way = sides[name].shown, exchanges[name].one_way
        exchanges[name].check_penalties(party)
    own = exchanges[active.name]
    own.check_private_top(active)
    return sides | {active.name: checked_side(own.active(active), own)} | dict(own.third_parties(active.name))


def _in_sequence(*halves: Half) -> Half:
    for half in halves:
        yield from half
