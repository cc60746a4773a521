"""One party of a networked run: from its own file to its run, and from beginning to end.

As :mod:`splitvfl.app.experiment` is for all parties in one process, with the same sections and the same assembly; what
belongs to other parties is left out of the file, or not looked at.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from splitvfl.app.addresses import AddressBook
from splitvfl.app.assembly import Assembly
from splitvfl.app.beginning import NO_COMMAND, Beginning, Command, with_ids_of
from splitvfl.app.column_auditing import live_readers, message_size, said_of_few_known
from splitvfl.app.data_summary import own_summary_of
from splitvfl.app.exchanges import exchange_of, said_before
from splitvfl.app.goal_before import said_of_goal
from splitvfl.app.joining import with_own_model
from splitvfl.app.label_horizon import before
from splitvfl.app.own_columns import own_summary
from splitvfl.app.records import OwnData, in_words_of, own_data
from splitvfl.app.run_files import MODEL_FOLDER
from splitvfl.app.run_folder import check_folder, has_checkpoint, is_barely_begun, replacing, settle, write_config
from splitvfl.app.saved_model import Origin, save_half
from splitvfl.app.scoring import check_own_defenses
from splitvfl.app.single_columns import said_of_columns, said_to_label_owner, solvable_columns
from splitvfl.app.solving import Solving, SolvingBasis
from splitvfl.app.team_settings import check_team
from splitvfl.app.workers import (
    after_worker_0,
    alike,
    begin_others,
    check_replicable,
    folder_of,
    leaving_together,
    said_of_divided,
    said_of_team,
    shards_of,
)
from splitvfl.config.sections import ColumnSetting, ExperimentConfig, config_to_yaml
from splitvfl.data.columns import Shards
from splitvfl.data.digests import data_digests
from splitvfl.errors import ArgumentError, ConfigError, DataError, SplitVFLError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import ThirdParty
from splitvfl.exchange.handshake import TaskSpec, terms_of
from splitvfl.hooks import (
    Attack,
    hook_name,
    moment_of,
    placed,
    reads_activations,
    reads_steps,
    reads_whole_model,
    refusal_of,
    scope_of,
    target_of,
)
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.shown_records import save_shown
from splitvfl.leakage.watching import Watch
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.learning.tasks import Task
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.privacy.solvable import Solvable
from splitvfl.report.board_row import show_on_board
from splitvfl.report.own_seat import seat_lines
from splitvfl.report.releases import keep_reserve
from splitvfl.report.summary import RunSummary
from splitvfl.run.column_seats import read_own_columns, shown_of
from splitvfl.run.coordinator import CoordinatorRun
from splitvfl.run.networked import DENSE_HERE, ROWS_HERE, USUAL_LOSS, ActiveRun, PassiveRun, RunSettings
from splitvfl.run.score_seats import NO_WHOLE_MODEL
from splitvfl.run.seats import NOTHING_COMES_BACK, SUMS_ARE_READ
from splitvfl.run.step_seat import NO_STEPS
from splitvfl.run.teamwork import check_workers_alike, telling
from splitvfl.run.training import TrainingProgress
from splitvfl.run.weights_file import give_parts
from splitvfl.system.folder_lock import locked
from splitvfl.system.private_folder import close_folder, closed_for_writing, private_folder
from splitvfl.team.team import Alone, FirstWorker, Team


def _known_by(seed: int | None) -> str:
    """Return a word by which two seeds of noise are compared; whoever tries seeds finds it, so it hides nothing."""
    return "not fixed" if seed is None else f"fixed, {hashlib.sha256(str(seed).encode()).hexdigest()[:12]}"


class Deployment:
    """One party of a networked run, out of its own file: what it brings, and the parts of its run.

    Args:
        config: Its file.
        name: Its name.
        own: What it brings, if that is loaded.
        notify: Told in one line what happens.
        team: The workers that the party consists of, of which this process is one.
        shards: How its records are divided, where each worker has a table of its own.

    Attributes:
        own: What it brings.
        assembly: What its parts are made by.

    Raises:
        ConfigError: If parts do not fit together.
        DataError: If its data are not what the file says.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        name: str,
        *,
        own: OwnData | None = None,
        notify: Callable[[str], None] = lambda line: None,
        team: Team | None = None,
        shards: Shards | None = None,
        foreseen: Callable[[Sequence[Solvable]], None] = lambda found: None,
    ) -> None:
        self._config, self.name, self._notify, self._told_solvable = config, name, notify, foreseen
        self._team = team or Alone()
        self._label_owner: ActiveParty | None = None
        check_team(config)
        self._check_defenses()
        self._check_canaries_here()
        self._check_transforms()
        addresses = AddressBook(config, name, worker=self._team.rank)
        self._session = addresses.session(notify)
        self.own = own or own_data(config, name, worker=None if shards is None else shards.here)
        if shards is not None:
            self.own = replace(self.own, data=self.own.data.in_shards(shards))
        data = self.own.data
        self.assembly = Assembly(config, data, vouching=addresses.vouching(self._session.place), team=self._team)
        self.assembly.check_batch_size(data.training_records)
        self.assembly.exchange.check_shards(config.shards)
        self._check_noise_seed()
        self._check_selection_seed(addresses)
        self._plan = self.assembly.plan
        self._batches = self._plan.batches(data, shard=self._team.rank if self._team.size > 1 else None)
        self._check_labels_first()

    def _check_defenses(self) -> None:
        """Refuse a defense that a party's own file asks for, and that nobody who reads this file would apply.

        In a file that describes other parties too, it may be one of theirs.
        """
        config, name = self._config, self.name
        described = [party.role for other, party in config.parties.items() if other == name or party.columns]
        check_own_defenses(config, name)
        for hook in config.defenses:
            crossing = hook.found("defenses", config.folder).crossing
            if crossing == "scores" and config.scorer != config.active:
                continue
            if (role := "passive" if crossing == "activation" else "active") not in described:
                raise ConfigError(
                    f"{config.source}: defenses: {hook.name} acts on the {crossing} of the {role} party, and would do "
                    f"nothing at {name}, which is {config.parties[name].role}; take it out here (splitvfl list "
                    "defenses)"
                )

    def _check_canaries_here(self) -> None:
        """Refuse a twin, and canaries in the file of a party that can place none; it may be a file of all parties."""
        config = self._config
        if config.audit_twin:
            raise ConfigError(
                f"{config.source}: audit.twin: over a network the twin's messages reach the partners too, and are a "
                "second release of the same labels. Train it in one process (splitvfl train), or measure this run: "
                "audit: {canaries: N}"
            )
        if config.canaries is None or self.name == config.active or config.parties[config.active].columns:
            return
        raise ConfigError(
            f"{config.source}: audit.canaries: the label party, {config.active}, places them, and in its file alone "
            f"they stand; here they do nothing, and tell {self.name} how many there are; take them out"
        )

    def _check_noise_seed(self) -> None:
        """Refuse noise that partners could draw themselves, where something is promised of it."""
        noise, train = self.assembly.noise, self._config.train
        if noise is not None and not noise.fixed_seeds and train.noise_seed_for_experiments is not None:
            raise ConfigError(
                f"{self._config.source}: train.noise_seed_for_experiments: whoever knows the seed takes the noise of "
                "exchange.noise off again, and nothing that is promised holds; leave it out"
            )

    def _check_selection_seed(self, addresses: AddressBook) -> None:
        """Refuse a seed of the label party's secret draws that others know: those whose file this is, or is too."""
        config = self._config
        if getattr(config.exchange, "selection_seed_for_experiments", None) is None or addresses.on_one_machine:
            return
        shared = any(party.columns for other, party in config.parties.items() if other != config.active)
        if self.name != config.active or shared:
            raise ConfigError(
                f"{config.source}: exchange.selection_seed_for_experiments: whoever knows the seed knows which records "
                f"{config.active} uses, and {'this is a file of several parties' if shared else f'{self.name} does'}; "
                "leave it out. With all addresses on this machine (127.0.0.1), for experiments, it is taken"
            )

    def _check_transforms(self) -> None:
        """Refuse a transform of another party's columns: it hides them from who does not know it."""
        config = self._config
        for other, party in config.parties.items():
            if other != self.name and party.transform is not None:
                raise ConfigError(
                    f"{config.source}: parties.{other}.transform: the transform of {other}'s columns is {other}'s "
                    f"secret, and {self.name}, whose file this is, would know it; let it stand in {other}'s own file "
                    "alone, and take it out here"
                )

    def _check_labels_first(self) -> None:
        """Refuse labels that nothing can be learned from before anybody is met, if no partner is to learn of labels.

        Raises:
            DataError: If they are of one class only, say, or those held out are.
        """
        own = self.own
        if own.task is None or not self.assembly.exchange.one_way:
            return
        party = ActiveParty(own.data, torch.nn.Identity(), task=self.assembly.task(own.task, own.classes))
        self._plan.stop_early(party, self._batches)

    # --- its run

    def told_before(self) -> list[str]:
        """Return what is to be said before the first step, in sentences."""
        with in_words_of(self._config.data, self._config.parties):
            about = own_summary_of(self.own.data, self.own.task)
        agreed = self.assembly.agreed_horizon(self.own.data.training_records, self.own.task)
        records = self.own.data.train.count
        few = said_of_few_known(self._own_readers(), records=records, batch_size=message_size(self.assembly, records))
        return [*about, *few, *self.assembly.noise_notes(), *before(None, agreed), *self.said_of_columns()]

    def said_of_columns(self) -> list[str]:
        """Return whether the label owner can compute a partner's only feature, in sentences.

        A passive party knows its own features alone, and the label owner its own.
        """
        width = self.own.data.width
        if self.name == self._config.active:
            partners = [name for name in self._config.parties if name != self.name]
            return said_to_label_owner(self.assembly, self._batches, partners, own_features=width)
        found = solvable_columns(self.assembly, self._batches, {self.name: width}, own_features=None)
        return said_of_columns(found)

    def _own_readers(self) -> list[Attack]:
        """Return what reads what a passive party sends while it trains; the party with labels sends no activation."""
        return (
            []
            if self.name == self._config.active
            else live_readers(self.assembly, audited=self._config.audited, records=self.own.data.train.count)
        )

    def take_up(
        self, run: ActiveRun | PassiveRun, *, notify: Callable[[str], None] = lambda line: None
    ) -> ActiveRun | PassiveRun:
        """Return another run that has taken up what this one goes on from, before anybody is met; it is not run.

        What ``party`` refuses of a run that is there, it refuses here, and ``check`` too.

        Args:
            run: The run.
            notify: Told in one line what could not be compared.

        Raises:
            DataError: As :meth:`splitvfl.run.networked.PartyRun.take_up`.
            CheckpointError: Likewise.
        """
        team = FirstWorker(self._team.size)  # its own: the workers ask the run that is run whether they are to stop
        quiet = Deployment(self._config, self.name, own=self.own, team=team)
        tried = quiet.run(run.settings.folder, settings=replace(run.settings, team=team))  # data are digested once
        tried.training.notify = notify
        tried.take_up()
        return tried

    def run(
        self,
        folder: Path,
        *,
        progress: TrainingProgress = lambda status: None,
        settings: RunSettings | None = None,
    ) -> ActiveRun | PassiveRun:
        """Return the party's run, which it keeps in a folder, ready to be run.

        Args:
            folder: The folder.
            progress: Told of every step.
            settings: How it runs, if that is known from another run of the same party.

        Raises:
            ConfigError: If parts do not fit together.
        """
        config, own, settings = self._config, self.own, settings or self._settings(folder)
        if self.name != config.active:
            passive = PassiveRun(self._session, config.active, settings, build=self._watched_passive, progress=progress)
            passive.training.account = self.assembly.budget()
            return passive
        self.assembly.check_private_top()
        assert own.task is not None, "labels say what is learned"
        task = self.assembly.task(own.task, own.classes)
        active = ActiveRun(
            self._session,
            [other for other in config.parties if other != self.name],
            settings,
            learned=TaskSpec(own.task, task.outputs),
            build=lambda widths: self._active(task, widths),
            progress=progress,
        )
        active.training.account = self.assembly.budget()
        solving = self._solving()
        if solving is not None:
            active.training.foresee = lambda columns: self._foreseen(solving, columns)
        return active

    def _solving(self) -> Solving | None:
        """Return what the run lets partners solve for, given how many features they have.

        ``None`` without labels, and where more than sums are sent: there it is measured.
        """
        own = self.own
        if own.task is None or not self.assembly.exchange.sums_only:
            return None
        basis = SolvingBasis.of_file(
            self.assembly, records=self._batches.count, task=own.task, own_columns=own.data.width
        )
        return Solving(basis, self._batches, task=own.task)

    def _foreseen(self, solving: Solving, columns: Mapping[str, int]) -> tuple[list[Solvable], list[str]]:
        found = solving.of(columns)
        self._told_solvable(found)
        return found, [*self._said_of_goal(found), *solving.said(found)]

    def _said_of_goal(self, solvable: Sequence[Solvable]) -> list[str]:
        """Return what is known of labels and the goal before the first step."""
        assert self._label_owner is not None, "it is made before its partners say how many columns they have"
        return said_of_goal(
            self._label_owner,
            self.assembly.exchange,
            goal=self._config.goal,
            epochs=self._config.train.epochs,
            account=self.assembly.budget(),
            solvable=solvable,
            defenses=self._config.found_defenses,
        )

    def said_of_solving(self) -> list[str]:
        """Return what partners can solve for, and what that says of the goal, as far as it is known before they meet.

        Once there is a half that was tried.
        """
        solving = self._solving()
        partners = {other: party for other, party in self._config.parties.items() if other != self.name}
        columns = {other: _named_columns(party.columns) for other, party in partners.items()}
        known = {other: count for other, count in columns.items() if count is not None}
        found = [] if solving is None else solving.of(known)
        of_goal = [] if self._label_owner is None else self._said_of_goal(found)
        return [*of_goal, *([] if solving is None else solving.said_before_connecting(columns))]

    def _settings(self, folder: Path) -> RunSettings:
        train, data, exchange = self._config.train, self.own.data, self.assembly.exchange
        account = self.assembly.budget()
        stop = None if account is None else account.stop
        agreed = self._agreed()
        # How a party trains alone is its own business; it is not told, and need not be known to anybody.
        shared = (*exchange.terms(), "autocast", "wire", "clip of activations") if exchange.one_way else tuple(agreed)
        own = {key: value for key, value in agreed.items() if key not in shared}
        if self.name == self._config.active:
            loss = self._config.train.loss
            own["loss"] = USUAL_LOSS if loss is None else json.dumps(loss.model_dump(mode="json"), sort_keys=True)
        own |= self._own_settings()
        # On which the order of the records and the weights depend, agreed where they are not as in one process.
        own |= {
            "workers of each party": str(self._config.team.workers),
            "shards of the records": str(self._config.shards),
            "batches in flight": str(exchange.in_flight),
            ROWS_HERE: self.assembly.rows_here,
            DENSE_HERE: self.assembly.dense_here(self._team),
        }
        if self._team.size > 1:  # what a folder holds of defenses was drawn and answered for one worker's records
            own["number of this worker"] = str(self._team.rank)
        return RunSettings(
            batches=self._batches,
            schedule=self._plan.schedule(self._batches, train.epochs, stop=stop),
            evaluation=self._plan.evaluation(data, self._batches, team=self._team),
            exchange=exchange,
            terms=terms_of(data, {key: agreed[key] for key in shared}),
            folder=folder,
            own_terms=own,
            team=self._team,
            data=data_digests(data),
        )

    def _own_settings(self) -> dict[str, str]:
        """Return the settings on which this party's weights and messages depend, beside those that are agreed.

        A run that goes on takes its weights, and what its optimiser keeps, rates of learning included, from the
        checkpoint: other settings would not be used. And it draws the same noise again: with other settings it would
        send the same noise on other numbers, or the same numbers with more of it, and of two such messages noise can
        be taken off.
        """
        config, train = self._config, self._config.train
        penalties = config.parties[self.name].penalties if self.name in config.parties else ()
        sections: dict[str, Any] = {
            "defenses": [hook.model_dump(mode="json") for hook in config.defenses],
            # Without what makes no other weights but by rounding, and is compared by itself.
            "model": config.model.model_dump(mode="json", exclude={"tables", "dense"}),
            "optimizer": train.optimizer.model_dump(mode="json"),
            "penalties": [one.model_dump(mode="json") for one in penalties],
            "embedding_optimizer": (tables := train.embedding_optimizer) and tables.model_dump(mode="json"),
            "private_top_optimizer": (top := train.private_top_optimizer) and top.model_dump(mode="json"),
        }
        if self._team.size > 1:  # at which worker noise is drawn
            sections["scope of defenses"] = [scope_of(placed(defense)[0]) for defense in self.assembly.defenses()]
        own = {name: json.dumps(section, sort_keys=True) for name, section in sections.items()}
        return own | {"noise_seed_for_experiments": _known_by(train.noise_seed_for_experiments)}

    def _agreed(self) -> dict[str, object]:
        """Return the settings of the training, by the names under which parties compare them."""
        train, section, recipe = self._config.train, self._config.exchange, self._config.model.recipe
        noise = self.assembly.noise
        # On the rate and the norm rests what a run says of its labels.
        rate = {} if recipe.row_norm is None else {"rate of plain gradient descent": self.assembly.rate}
        return self._plan.terms() | {
            "epochs": train.epochs,
            "checkpoint every": train.checkpoint_every_steps or 0,
            "clip of activations": section.activation_clip,
            "clip of gradients": section.gradient_clip,
            **({} if self._config.team.workers == 1 else {"workers of each party": self._config.team.workers}),
            **({} if noise is None else noise.terms()),
            **recipe.terms(),
            **rate,
        }

    # --- its parts, once it has met the others

    def _passive(self, learned: TaskSpec) -> PassiveParty:
        task = self.assembly.task(learned.task, learned.outputs)
        party = self.assembly.passive(self.own.data, task, seed=self._config.train.private_seed_for_experiments)
        self._prepare(party)
        self.assembly.defend(party)
        self._join_team(party)
        return party

    def _watched_passive(self, learned: TaskSpec) -> tuple[PassiveParty, Watch]:
        party, watch = self._passive(learned), Watch([self.name])
        for line in party.penalties.notes if self._team.rank == 0 else ():
            self._notify(line)
        read_own_columns(
            party,
            self._own_readers(),
            watch,
            active=self._config.active,
            exchange=self.assembly.exchange,
            batches=self._batches,
            seed=self._config.train.seed,
        )
        return party, watch

    def _active(self, task: Task, widths: Mapping[str, int]) -> tuple[ActiveParty, Watch]:
        train = self._config.train
        in_order = [widths[other] for other in self._config.parties if other != self.name]
        party = self.assembly.active(self.own.data, task, in_order, seed=train.private_seed_for_experiments)
        for other in widths:
            party.connect(other)
        party.widths = dict(widths)
        self._prepare(party)
        party.training_labels.check_together(self._team)
        self._plan.stop_early(party, self._batches)
        self.assembly.defend(party)
        self._join_team(party)
        self._place_canaries(party)
        self.assembly.exchange.plan_run(party, epochs=train.epochs)
        self._label_owner = party
        of_goal = [] if self.assembly.exchange.sums_only else self._said_of_goal([])  # else once columns are known
        for line in [*said_before(self.assembly.exchange, party, epochs=train.epochs), *of_goal]:
            self._notify(line)
        return party, self._watch(party)

    def tried_half(self) -> Party | None:
        """Return this party as it would be trained, before it has met the others: for what objects to what.

        What the others would tell is taken to be as here: activations as wide as its own bottom would send. ``None`` at
        an active party without columns, which has no such bottom.

        Raises:
            SplitVFLError: If parts do not fit together.
        """
        own = self.own
        if own.task is None:
            return self._passive(TaskSpec("binary", 1))
        if not own.data.column_names:
            return None
        task = self.assembly.task(own.task, own.classes)
        width = self.assembly.passive(own.data, task, seed=0).output_width()
        return self._active(task, {other: width for other in self._config.parties if other != self.name})[0]

    def _prepare(self, party: Party) -> None:
        seed = self._config.train.private_seed_for_experiments
        party.join(self._team)
        own_seed = secrets.randbits(63) if seed is None else derive_seed(seed, "party", party.name)
        self._plan.prepare(party, seed=own_seed)
        if seed is None:
            party.random = PartyRandom.entropic(party.device)
            if isinstance(party, ActiveParty) and party.private_top is not None:
                party.private_top.random = PartyRandom.entropic(party.device)

    def _join_team(self, party: Party) -> None:
        """Make a party one worker of several, with randomness of its own; it gets worker 0's weights at step 0."""
        if self._team.size == 1:
            return
        check_replicable(party, self._config.source)
        for line in said_of_divided(party, self._config.model.recipe):
            self._notify(line)
        seed = self._config.train.private_seed_for_experiments
        if seed is not None and self._team.rank:  # else all would drop out the same places of their rows
            party.random = PartyRandom(derive_seed(seed, "party", party.name, "worker", self._team.rank))
            if party.device.type == "cuda":
                party.random.use_cuda()

    def _place_canaries(self, party: ActiveParty) -> None:
        self.assembly.check_canaries()
        try:
            self._plan.place_canaries(party, self._batches, team=self._team)
        except (ArgumentError, ConfigError, DataError) as error:
            raise ConfigError(f"{self._config.source}: audit.canaries: {error}") from error

    def _watch(self, party: ActiveParty) -> Watch:
        """Let the partners' attacks look at what the label party sends, as far as it can know what they would see."""
        watch, exchange = Watch(party.cuts), self.assembly.exchange
        known = self._plan.known_records(party)
        for name, cut in party.cuts.items():
            for attack in self.assembly.attacks():
                reason = _unavailable(attack, party, cut.shows, exchange, partner=name)
                if reason:
                    watch.unavailable[name][hook_name(attack)] = reason
                else:
                    watch.add(
                        name,
                        cut.watch(attack, canaries=party.training_labels.canaries, classes=party.task.classes, **known),
                    )
            if self._config.audited and exchange.shows_gradients():
                watch.audits[name] = cut.audit(canaries=party.training_labels.canaries, classes=party.task.classes)
        return watch

    # --- the finished run

    def keep_half(self, run: ActiveRun | PassiveRun, folder: Path) -> None:
        """Write the party's trained half into a folder.

        Raises:
            CheckpointError: If it cannot be written; an earlier half stays.
        """
        alone = run.settings.exchange.one_way  # how long it trained, and which epoch was best, is told to nobody later
        learned, models = run.learned, self.assembly.models
        task = self.assembly.task(learned.task, learned.outputs)
        origin = Origin(
            learned=learned,
            model=models.of_passive(self.own.data, task) if isinstance(run, PassiveRun) else models.of_active(),
            run=run.number,
            step=0 if alone else run.step,
            epoch=0 if alone else run.party.weights.best.epoch or math.ceil(run.step / len(run.settings.batches)),
            encoding=self.own.encoding,
            id_column=self._config.id_column_of(self.name),
            id_rule=self._config.id_rule,
            loss=None if isinstance(run, PassiveRun) else self._config.train.loss,
            tables=self.own.tables,
        )
        save_half(folder, run.party, origin)

    def write_half(self, run: ActiveRun | PassiveRun, folder: Path) -> None:
        """Write the party's trained half into the run's folder, as worker 0 does; the others give it their parts.

        Raises:
            CheckpointError: If it cannot be written; an earlier half stays.
            TeamError: If weights are divided, and a worker could not go on, or is gone.
        """
        if self._team.rank:
            give_parts(run.party.models[-1], self._team)
            return
        # Before there is a model: where one is, a reserve that is missing was taken away, and may have been used.
        if not (folder / MODEL_FOLDER).exists():
            keep_reserve(folder, self.assembly.reserve)
        self.keep_half(run, folder / MODEL_FOLDER)

    def keep_summary(self, run: ActiveRun | PassiveRun, folder: Path, *, begun: Beginning, command: str) -> RunSummary:
        """Write a run's summary into its folder, with where its figures come from, and return it.

        Args:
            run: The run; it has ended.
            folder: Its folder.
            begun: When it began.
            command: The command that was given, as it may be shown.
        """
        config, settings = self._config, run.settings
        if isinstance(run, ActiveRun):
            found = self.summary(run)
            if config.audited:
                found = with_own_model(found, run.training, run.party)
        else:
            found = own_summary(config, self.assembly, run, notify=self._notify)
        provenance = begun.provenance(
            config,
            {self.name: self.own.data},
            {self.name: settings.data},
            folder=folder,
            held_out=settings.batches.all_held_out,
            command=command,
        )
        if isinstance(run, PassiveRun):
            save_shown(folder, shown_of(run.watch, run.name) if config.keep_records else ())
        summary = replace(found, provenance=provenance)
        summary.save(folder)
        return summary

    def tell_so_far(self, run: PassiveRun, folder: Path, keeping: Callable[[], RunSummary]) -> None:
        """Say what was read of a passive party's columns in a run that ended before its end, if anything was sent.

        A partner that leaves, at the last step say, is not to keep it from who is read.
        """
        if not run.take_newest():
            return
        summary = keeping()
        for line in seat_lines(summary)[:-1]:
            self._notify(line)
        self._notify(f"more of it: splitvfl report {folder}")

    def summary(self, run: ActiveRun) -> RunSummary:
        """Return the label party's finished run in numbers: what it could see of its own messages, and nothing else."""
        steps = len(run.settings.batches)
        return self.assembly.summary(run.training, run.party, data=self._config.data.name, epoch_steps=steps)


def _unavailable(attack: Attack, party: ActiveParty, shows: frozenset[str], exchange: Exchange, *, partner: str) -> str:
    """Return why the label party cannot run an attack of its own, or of a partner in its place, or nothing."""
    if reads_activations(attack):
        return (
            f"it is judged by the columns of {partner}, which {party.name} does not have: in an experiment of all "
            "parties (splitvfl train) it is"
        )
    if reads_whole_model(attack):
        return NO_WHOLE_MODEL
    if reads_steps(attack):
        return NO_STEPS
    if target_of(attack) == "members":
        return "is run where one process has all parties: in an experiment (splitvfl train) it can be"
    if target_of(attack) == "features":
        return (
            f"it needs the weights of {partner}, which whoever runs it is assumed to know and {party.name} does not, "
            f"and the columns to judge it by; {partner} runs it on itself, if its own file lists it"
        )
    refused = refusal_of(attack, party.task.name)
    if refused:
        return refused
    if moment_of(attack) == "after-training":
        return "needs the partner's model"
    if exchange.one_way:
        return NOTHING_COMES_BACK
    missing = sorted(Leak(attack, classes=party.task.classes).needs - shows)
    if exchange.sums_only and not missing:
        return (
            f"the partner gets no gradient per record but their sum; {SUMS_ARE_READ}, in an experiment of all parties "
            "(splitvfl train)"
        )
    return f"needs the partner's {' and '.join(missing)}" if missing else ""


def _named_columns(columns: ColumnSetting) -> int | None:
    """Return how many columns a file names; ``None`` where it names none, or writes patterns for some."""
    if not columns or not isinstance(columns, tuple) or any(set(name) & set("*?[") for name in columns):
        return None
    return len(columns)


def party_run(
    config: ExperimentConfig, name: str, folder: Path, *, own: OwnData | None = None
) -> ActiveRun | PassiveRun:
    """Return one party's run, ready to be run; see :class:`Deployment`."""
    return Deployment(config, name, own=own).run(folder)


def coordinator_run(config: ExperimentConfig, *, notify: Callable[[str], None] = lambda line: None) -> CoordinatorRun:
    """Return the run of the party that has the key and no data, ready to be run.

    Args:
        config: Its file, in which data are not looked at.
        notify: Told in one line what happens.

    Raises:
        ConfigError: If parts do not fit together.
    """
    name = config.exchange.factory.third_party
    assert name is not None, "else it is not run"
    if config.train.batch_size == "all":
        raise ConfigError(
            f"{config.source}: train.batch_size: {name} has no data, and cannot know how many all records are; write "
            "the number here"
        )
    check_team(config)
    addresses = AddressBook(config, name)
    session = addresses.session(notify)
    vouching = addresses.vouching(session.place)
    exchange = exchange_of(config.exchange, rows=config.train.batch_size, vouching=vouching)
    side = exchange.third_parties(config.active)[name]
    assert isinstance(side, ThirdParty)
    return CoordinatorRun(side, session)


def run_party(
    config: ExperimentConfig,
    name: str,
    folder: Path,
    *,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda line: None,
    progress: TrainingProgress = lambda status: None,
    command: Command = NO_COMMAND,
    team: Team | None = None,
) -> tuple[ActiveRun | PassiveRun, RunSummary | None]:
    """Train as one party, go on where an earlier run in the folder left off, and write the trained half.

    The folder is this process's own meanwhile.

    Args:
        config: The party's file.
        name: Its name.
        folder: Where it keeps its run.
        overwrite: Start anew, and replace what the folder holds; all parties must. It is deleted when the parties have
            agreed, and the new run has its first checkpoint.
        notify: Told in one line what happens.
        progress: Told of every step.
        command: The command that was given; at the label owner it is told what partners can compute of labels, once
            they have said how many features they have.
        team: The workers that the party consists of, of which this process is one; worker 0 keeps the run in the
            folder, and every other one what is its own in ``worker-1`` and so on within it.

    Returns:
        The finished run and its summary: at the active party of what it sent, at a passive one of its own columns.
        ``None`` at a worker that is not worker 0.

    Raises:
        ConfigError: If parts do not fit together, or the folder holds something else, or is in use.
        Interrupted: At Ctrl-C, after a checkpoint.
        SplitVFLError: As :meth:`splitvfl.run.networked.PartyRun.run`.
    """
    team = team or Alone()
    folder = folder_of(folder, team)
    with telling(team):
        shards = shards_of(config.data.path, name, team, source=config.source)
    with telling(team), leaving_together(team), after_worker_0(team), locked(folder), closed_for_writing():
        settle(folder, notify=notify)
        going_on = not overwrite and has_checkpoint(folder)
        check_folder(folder, config.source, resume=going_on, overwrite=overwrite or is_barely_begun(folder))
        if config.train.threads is not None:
            torch.set_num_threads(config.train.threads)
        if going_on:
            config = with_ids_of(config, folder)
        deployment = Deployment(config, name, notify=notify, team=team, shards=shards, foreseen=command.foreseen)
        for line in [*said_of_team(team, os.environ), *deployment.told_before()]:
            notify(line)
        run = deployment.run(folder, progress=progress)
        if going_on:
            deployment.take_up(run)
        (private_folder if going_on else close_folder)(folder)
        # Others hear of an error before the earlier run is brought back: that waits until they have left their folders.
        with replacing(folder, anew=not going_on, notify=notify) as run.replacing, telling(team):
            write_config(folder, config_to_yaml(config), private=config.hides_columns)
            begun = Beginning.noted(folder, going_on=going_on, id_rule=config.id_rule, split_by=config.split_by)
            begin_others(team)
            check_workers_alike(team, name, alike(config, run.settings.data, overwrite=overwrite))
            written: int | None = None
            if team.size > 1 and run.was_at_its_end():
                # Before partners are waited for: workers that have parted over a partner's end could not do it
                # together.
                run.take_end()
                deployment.write_half(run, folder)
                written = run.step
            keeping = partial(deployment.keep_summary, run, folder, begun=begun, command=command.words)
            try:
                run.run()
            except SplitVFLError:
                if isinstance(run, PassiveRun) and team.size == 1:
                    try:
                        deployment.tell_so_far(run, folder, keeping)
                    except (SplitVFLError, OSError) as error:  # why the run has ended is said, whatever becomes of this
                        notify(f"what was read so far could not be written: {error}")
                raise
            if run.step != written:
                deployment.write_half(run, folder)
            if team.rank:  # what is left to do is done once, by worker 0
                return run, None
            if isinstance(run, PassiveRun):
                for line in run.training.spent():  # which the summary of an active party says
                    notify(line)
            summary = keeping()
            show_on_board(summary, folder)
            return run, summary
