"""An experiment with all parties in one process: from its file to a trainer, and from there to a finished run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor

from splitvfl.app.assembly import Assembly
from splitvfl.app.beginning import NO_COMMAND, Beginning, Command, with_ids_of
from splitvfl.app.column_auditing import experiment_attacks, message_size, said_of_few_known
from splitvfl.app.data_summary import summary_of
from splitvfl.app.exchanges import said_before
from splitvfl.app.goal_before import said_of_goal
from splitvfl.app.joining import with_own_model
from splitvfl.app.label_horizon import LabelHorizon, before, observed_horizon, outcome
from splitvfl.app.reconstruction_figures import reconstruct_listed
from splitvfl.app.records import in_words_of, load_data
from splitvfl.app.run_files import CONFIG_FILE, MODEL_FOLDER
from splitvfl.app.run_folder import check_folder, finished_at, has_checkpoint, replacing, settle, write_config
from splitvfl.app.single_columns import said_of_columns, solvable_columns
from splitvfl.app.solving import Solving, SolvingBasis, independent_columns
from splitvfl.app.team_settings import said_in_one_process
from splitvfl.config.sections import (
    ExperimentConfig,
    HookConfig,
    classes_named,
    config_to_yaml,
    kept_text,
    parse_config,
)
from splitvfl.config.yaml import Document
from splitvfl.data.coin_labels import eligible
from splitvfl.data.columns import VerticalData
from splitvfl.errors import ConfigError, DataError, shown
from splitvfl.hooks import target_of
from splitvfl.leakage.canaries import twin_canaries
from splitvfl.leakage.features import FeatureLeak
from splitvfl.leakage.reconstruction import RECONSTRUCTION_FILE, Reconstruction
from splitvfl.leakage.shown_records import save_shown
from splitvfl.party.direction import awaits_direction, check_awaited
from splitvfl.party.memoised import KEY_BYTES, MemoisedNoise, check_memoised
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.privacy.single_column import SolvableColumn
from splitvfl.privacy.solvable import Solvable
from splitvfl.report.board_row import show_on_board
from splitvfl.report.releases import Reserve, keep_reserve
from splitvfl.report.rows import counted
from splitvfl.report.summary import FILE_NAME, RunSummary, read_summary
from splitvfl.run.column_seats import shown_of
from splitvfl.run.half_folder import HALF_FILE, read_half_schema
from splitvfl.run.saving_trainer import MadeBy, SavingTrainer
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import TrainingProgress
from splitvfl.system.folder_lock import locked
from splitvfl.system.private_folder import close_folder, closed_for_writing, private_folder
from splitvfl.system.untrusted_files import write_whole

if TYPE_CHECKING:
    from splitvfl.leakage.own_columns import OwnColumns

_MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Workbench:
    """What runs of one experiment share: the data, and what each partner predicts from its own columns.

    Attributes:
        data: The loaded data.
        own_columns: By passive party; empty where a class has fewer than five records.
        first_components: AUC of the first principal component of its columns, by passive party; likewise, and of
            those that have columns of numbers.
    """

    data: VerticalData
    own_columns: Mapping[str, OwnColumns]
    first_components: Mapping[str, float] = field(default_factory=dict)

    @property
    def known(self) -> dict[str, float]:
        """AUC of what each passive party knows of the labels without any message, where that was measured."""
        found = {name: own.auc for name, own in self.own_columns.items()}
        return found | {name: max(auc, found.get(name, auc)) for name, auc in self.first_components.items()}


def prepare(config: ExperimentConfig) -> Workbench:
    """Load the data of an experiment, and measure what each partner predicts anyway.

    Raises:
        DataError: If the data are not what the experiment says.
        ConfigError: If settings contradict each other.
    """
    # Imported late: scikit-learn takes as long as a short run, and a party of a networked run has no use for it.
    from splitvfl.leakage.own_columns import first_component_auc, own_columns_auc
    from splitvfl.learning.drawing import FOLDS

    data = load_data(config)
    labels = data.active.train.labels
    if labels is None or not config.audited:
        return Workbench(data, {})
    if data.task != "binary":
        return _of_many(data, labels)
    positives = int((labels == 1).sum())
    if min(positives, labels.numel() - positives) < FOLDS:
        return Workbench(data, {})  # too few of a class to say; no reason not to train
    components = {name: first_component_auc(party.train.columns, labels) for name, party in data.passives.items()}
    return Workbench(
        data,
        {name: own_columns_auc(party.train.columns, labels) for name, party in data.passives.items()},
        {name: auc for name, auc in components.items() if auc is not None},
    )


def _of_many(data: VerticalData, labels: Tensor) -> Workbench:
    """Return the same of k classes, or of numbers."""
    from splitvfl.leakage.own_columns_many import first_component_leak, own_columns_leak

    classes = None if data.task == "regression" else data.classes
    columns = {name: party.train.columns for name, party in data.passives.items()}
    try:
        own = {name: own_columns_leak(held, labels, classes) for name, held in columns.items()}
    except DataError:
        return Workbench(data, {})  # too few of a class to say; no reason not to train
    components = {name: first_component_leak(held, labels, classes) for name, held in columns.items()}
    return Workbench(data, own, {name: auc for name, auc in components.items() if auc is not None})


class Experiment:
    """An experiment with all its parties in one process, and the parts of its runs.

    Args:
        config: The experiment.
        bench: Its data, and what is known of them.

    Raises:
        ConfigError: If parts do not fit together.
    """

    def __init__(self, config: ExperimentConfig, bench: Workbench) -> None:
        self._config, self._bench = config, bench
        self._check_tables()
        self._check_fields()
        self._assembly = Assembly(config, bench.data.active)
        self._assembly.check_private_top()
        self._assembly.check_batch_size(bench.data.active.training_records)
        self._task = self._assembly.task(bench.data.task, bench.data.classes)
        self._assembly.check_canaries()

    def _check_tables(self) -> None:
        recipe, name = self._config.model.recipe, self._config.model.name
        if self._config.train.embedding_optimizer is None:
            return
        if not recipe.takes_fields:
            raise ConfigError(f"train.embedding_optimizer: the model {name} has no embeddings; leave it out")
        if recipe.sparse is False:
            raise ConfigError(
                "train.embedding_optimizer: model.sparse is false, so that train.optimizer trains the embeddings; "
                "leave one of them out"
            )

    def _check_fields(self) -> None:
        model, data = self._config.model, self._bench.data
        with_fields = [party.name for party in (data.active, *data.passives.values()) if party.field_sizes]
        if with_fields and not model.recipe.takes_fields:
            raise ConfigError(
                f"model: {model.name} takes numbers only, and {' and '.join(with_fields)} of {data.name} "
                f"{'has' if len(with_fields) == 1 else 'have'} categorical fields; take wide-deep"
            )

    def trainer(self, folder: Path | None = None) -> SavingTrainer:
        """Return a new trainer, whose defenses know what the run will be; it keeps nothing without a folder.

        Raises:
            ConfigError: If parts do not fit together, a defense cannot keep what it promises of the run, or the agreed
                limit is too low for its noise.
            PrivacyError: If nothing bounds a message that is to be bounded.
        """
        config, assembly = self._config, self._assembly
        active, passives = self._parties()
        trainer = SavingTrainer(
            active,
            passives,
            assembly.plan,
            defenses=assembly.defenses(),
            attacks=experiment_attacks(assembly, audited=config.audited, records=active.data.train.count),
            folder=folder,
            malicious=assembly.malicious(),
        )
        trainer.score_by(config.prediction.scores_by, direction_by=self._direction_by)
        for party in (active, *passives.values()):
            assembly.check_clips(party)
        active.score_noise = self._score_noise(active)
        trainer.made_by = self._made_by()
        trainer.training.account = assembly.budget()
        trainer.exchange.plan_run(active, epochs=config.train.epochs)
        return trainer

    def audit_twin(self, trainer: Trainer) -> SavingTrainer | None:
        """Return the trainer of the audit twin, which keeps nothing: the same experiment with canaries.

        Args:
            trainer: The run's own, which has none.

        Returns:
            ``None`` where no twin is wanted.

        Raises:
            DataError: If there are too few records.
        """
        config = self._config
        if not config.audit_twin:
            return None
        among, _ = eligible(trainer.active.data.train, trainer.batches.count, trainer.batches.positions)
        twin = config.auditing(canaries=twin_canaries(among))
        # What attacks infer of features and membership is measured on the run itself.
        on_labels = [hook for hook in config.attacks if target_of(hook.made("attacks", config.folder)) == "labels"]
        return Experiment(twin.model_copy(update={"attacks": tuple(on_labels)}), self._bench).trainer()

    @property
    def _direction_by(self) -> str | None:
        """Name of the party that sends a direction of noise, if anybody does."""
        config = self._config
        elsewhere = config.network is not None and config.scorer != config.active
        return (
            None
            if elsewhere and not _awaits_direction(config.defenses, config.folder)
            else config.prediction.direction_by
        )

    def _score_noise(self, active: ActiveParty) -> MemoisedNoise | None:
        """Return memoised noise on the scores of this trainer; ``None``: it is drawn anew for every prediction."""
        check_awaited(active.scores, self._direction_by)
        if not self._config.prediction.memoised:
            return None
        check_memoised(active.scores)
        seed = self._config.train.noise_seed_for_experiments
        return MemoisedNoise(os.urandom(KEY_BYTES) if seed is None else sha256(f"scores/{seed}".encode()).digest())

    def _made_by(self) -> dict[str, MadeBy]:
        data, models = self._bench.data, self._assembly.models
        own = MadeBy(model=models.of_active(), loss=self._config.train.loss)
        passives = {name: MadeBy(model=models.of_passive(party, self._task)) for name, party in data.passives.items()}
        return {data.active.name: own, **passives}

    def _parties(self) -> tuple[ActiveParty, dict[str, PassiveParty]]:
        data, seed = self._bench.data, self._config.train.seed
        passives = {name: self._assembly.passive(party, self._task, seed=seed) for name, party in data.passives.items()}
        widths = [party.output_width() for party in passives.values()]
        return self._assembly.active(data.active, self._task, widths, seed=seed), passives

    def horizons(self, trainer: Trainer) -> tuple[LabelHorizon | None, LabelHorizon | None]:
        """Return until which step signs tell labels: as the auditor knows before the first step, and as any party."""
        data, assembly = self._bench.data, self._assembly
        observed = observed_horizon(assembly.telling_rate, assembly.exchange, trainer)
        return observed, assembly.agreed_horizon(data.active.train.count, data.task)

    def solving(self, trainer: Trainer, observed: LabelHorizon | None) -> tuple[list[Solvable], list[str]]:
        """Return what partners can compute of labels before the first step, as a figure and in sentences.

        Args:
            trainer: The run.
            observed: As of :meth:`horizons`.
        """
        task, active = self._bench.data.task, trainer.active.data
        basis = SolvingBasis.of_file(self._assembly, records=trainer.batches.count, task=task, own_columns=active.width)
        solving = Solving(basis, trainer.batches, task=task, observed=observed)
        found = solving.of(independent_columns(trainer)) if solving.applies else []
        return found, solving.said(found)

    def noise_notes(self) -> list[str]:
        """Return what is to be said of calculated noise, once there are parties."""
        return self._assembly.noise_notes()

    def few_known(self, trainer: Trainer) -> Iterator[str]:
        """Yield which readers of activations will leave messages out, in sentences."""
        records = trainer.active.data.train.count
        attacks = experiment_attacks(self._assembly, audited=self._config.audited, records=records)
        return said_of_few_known(attacks, records=records, batch_size=message_size(self._assembly, records))

    def columns_solvable(self, trainer: Trainer) -> list[SolvableColumn]:
        """Return which partners' only features the label owner can compute."""
        widths = {name: party.data.width for name, party in trainer.passives.items()}
        own = trainer.active.data.width
        return solvable_columns(self._assembly, trainer.batches, widths, own_features=own)

    def said_of_malicious(self) -> list[str]:
        """Return who deviates, in sentences."""
        return [
            f"{name} deviates from exchange {self._config.exchange.name} ({deviation}): where it cannot read a whole "
            "batch its own weights stay as they are, and the model is not that of an honest run."
            for name, deviation in self._config.malicious.items()
        ]

    def told_before(
        self, trainer: Trainer, observed: LabelHorizon | None, agreed: LabelHorizon | None
    ) -> Iterator[str]:
        """Yield what is known before the first step, in sentences; horizons as of :meth:`horizons`."""
        with in_words_of(self._config.data, self._config.parties):
            yield from summary_of(self._bench.data)
        yield from said_in_one_process(self._config)
        yield from self.few_known(trainer)
        yield from self.noise_notes()
        yield from before(observed, agreed)
        yield from self.said_of_malicious()
        yield from said_before(trainer.exchange, trainer.active, epochs=self._config.train.epochs)
        yield from self.said_of_goal(trainer)

    def said_of_goal(self, trainer: Trainer) -> list[str]:
        """Return what is known of labels and the goal before the first step, once it is known what can be solved."""
        return said_of_goal(
            trainer.active,
            trainer.exchange,
            goal=self._config.goal,
            epochs=self._config.train.epochs,
            account=self._assembly.budget(),
            solvable=trainer.training.solvable,
            defenses=self._config.found_defenses,
        )

    @property
    def reserve(self) -> Reserve | None:
        """What calculated noise puts by for predictions."""
        return self._assembly.reserve

    def refuse_changes(self, path: Path) -> None:
        """Refuse to go on with other settings than a run wrote; more epochs are welcome without calculated noise.

        It is calculated for the epochs that were planned: that of the first ones would be too little for more. Given
        noise has a budget instead, which ends where it ends.

        Raises:
            ConfigError: If they differ.
        """
        text = kept_text(path) or ""
        # The folder may come from somebody else: a class is looked up only if this experiment names it too.
        named = classes_named(self._config.model_dump(mode="json"))
        others = classes_named(Document(text, source=str(path)).tree) - named
        if others:
            raise ConfigError(
                f"{path.parent} was started with other settings: {path} names {', '.join(map(shown, sorted(others)))}; "
                "start anew with --overwrite or --out"
            )
        kept = parse_config(text, source=path, folder=self._config.folder)
        account = self._assembly.budget()
        limited = account is not None and account.epsilon is not None
        longer = self._assembly.noise is None or limited
        free = ("goal", "keep_records", "train.epochs") if longer else ("goal", "keep_records")
        earlier, now = (each.of_the_run.model_dump(mode="json") for each in (kept, self._config))
        changed = [key for key in _differing(earlier, now) if key not in free]
        if changed:
            few = "" if "train.epochs" not in changed else " (noise was calculated for the epochs that were planned)"
            raise ConfigError(
                f"{path.parent} was started with other settings: {', '.join(changed)}{few}; "
                f"resume it with the same ones, as {path} says (if you changed none: another version of splitvfl began "
                "it, and had other defaults), or start anew with --overwrite or --out"
            )

    def take_up(self, trainer: Trainer, folder: Path) -> RunSummary | None:
        """Go on from the newest checkpoint of a run, and change nothing in its folder.

        Args:
            trainer: Takes it up.
            folder: The run's, which the trainer has too.

        Returns:
            The figures of the run, if nothing of it is left to train or to write.

        Raises:
            ConfigError: If the run was started with other settings.
            CheckpointError: If the checkpoint is damaged, or belongs to another experiment.
            DataError: If the data are not those that the run began with.
        """
        self.refuse_changes(folder / CONFIG_FILE)
        trainer.take_up()
        return _finished(folder, trainer, self._config.train.epochs)

    def summary(
        self,
        trainer: Trainer,
        horizon: LabelHorizon | None = None,
        features: Mapping[str, Sequence[FeatureLeak]] = MappingProxyType({}),
    ) -> RunSummary:
        """Return a finished run in numbers.

        Args:
            trainer: The run.
            horizon: The auditor's before the first step.
            features: What feature attacks found, by party.
        """
        bench = self._bench
        more: dict[str, dict[str, Any]] = {}
        for name in trainer.passives:
            own = bench.own_columns.get(name)
            more[name] = {
                "own_columns_auc": None if own is None else own.auc,
                "own_columns_model": "" if own is None else own.model,
                "first_component_auc": bench.first_components.get(name),
                "features": list(features.get(name, [])),
                "readings": trainer.column_readings(name),
                "after_training": dict(trainer.after_training[name]),
            }
        found = self._assembly.summary(
            trainer.training,
            trainer.active,
            data=bench.data.name,
            epoch_steps=len(trainer.batches),
            more=more,
            notes=outcome(trainer, horizon),
            partners=trainer.passives.values(),
        )
        solvable = self.columns_solvable(trainer)
        return replace(found, membership=trainer.membership, packing=trainer.packing, columns_solvable=solvable)


def _differing(before: Any, now: Any, key: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [found for name in names for found in _differing(before.get(name), now.get(name), f"{key}.{name}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        same = not any(map(_differing, before, now))
    else:  # a number that is none is itself, and a truth value no number
        same = before == now if before == before else now != now
        same = same and isinstance(before, bool) == isinstance(now, bool)
    return [] if same else [key.removeprefix(".")]


def build_trainer(config: ExperimentConfig, data: VerticalData, *, folder: Path | None = None) -> SavingTrainer:
    """Return the trainer of an experiment on data that are loaded; see :meth:`Experiment.trainer`."""
    return Experiment(config, Workbench(data, {})).trainer(folder)


@closed_for_writing()
def run_experiment(
    config: ExperimentConfig,
    folder: Path,
    *,
    workbench: Workbench | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: TrainingProgress | None = None,
    notify: Callable[[str], None] = lambda line: None,
    command: Command = NO_COMMAND,
) -> RunSummary:
    """Train one experiment and write everything about it into a folder.

    The folder gets ``experiment.yaml`` (all settings), ``metrics.jsonl``, TensorBoard events, ``checkpoints/``,
    ``weights/PARTY.safetensors``, the trained halves ``model/PARTY``, ``begun.json`` and ``summary.json``; where
    attacks on columns are listed, ``reconstruct.json`` too, without values of records; with ``keep_records``
    ``columns-read.json``. A run that has finished is
    resumed by leaving it as it is, once its settings and data are found to be the same.

    With ``audit: {twin: true}`` the audit twin is trained when all of this is written. It leaves its excess leakage in
    ``summary.json`` and nothing else. If it is broken off, the run is finished all the same, and ``resume`` trains the
    twin anew.

    Args:
        config: The experiment.
        folder: The run's folder, in which nobody else is at work (:func:`splitvfl.system.folder_lock.locked`).
        workbench: Shared data, loaded before.
        resume: Go on from the folder's last checkpoint.
        overwrite: Replace what the folder holds, which is deleted when this run has its first checkpoint.
        progress: Called after every step.
        notify: Told in one line what is known before the first step.
        command: The command that was given.

    Raises:
        ConfigError: If the folder holds another run, or parts do not fit together.
        DataError: If a run is to go on with other data than it began with.
        Interrupted: At Ctrl-C, after a checkpoint.
    """
    settle(folder, notify=notify)
    check_folder(folder, config.source, resume=resume, overwrite=overwrite)
    train = config.train
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    if resume:
        config = with_ids_of(config, folder)
    bench = workbench or prepare(config)
    experiment = Experiment(config, bench)
    trainer = experiment.trainer(folder)
    twin = experiment.audit_twin(trainer)  # here, so that what it lacks is said before the first step
    trainer.training.notify = notify
    trainer.watch.known = bench.known
    observed, agreed = experiment.horizons(trainer)  # of the first weights, also where the run goes on
    trainer.training.solvable, said_of_labels = experiment.solving(trainer, observed)
    command.foreseen(trainer.training.solvable)
    if resume:
        done = experiment.take_up(trainer, folder)
        if done is not None:
            private_folder(folder)  # as every start of a run, whether it trains or not
            if done.goal != config.goal:
                done = replace(done, goal=config.goal)
                done.save(folder)
                notify(f"{folder}: the goal is {config.goal:g} from now on; what was measured stays as it was.")
            if twin is not None and not done.has_twin:
                planned = done.planned_epochs or done.epochs
                if planned != train.epochs:
                    raise ConfigError(
                        f"{config.source}: train.epochs: an audit twin is trained like its run, of {planned}; got "
                        f"{train.epochs}"
                    )
                return _measured_on(twin, done, folder, progress=progress, notify=notify)
            notify(nothing_left(folder, done))
            return done
    else:
        close_folder(folder)
    # Only now, and not for good: an earlier run is not given up for one that cannot start, or ends early.
    with replacing(folder, anew=not resume, notify=notify) as trainer.replacing:
        write_config(folder, config_to_yaml(config), private=config.hides_columns)
        begun = Beginning.noted(folder, going_on=resume, id_rule=config.id_rule, split_by=config.split_by)
        for line in experiment.told_before(trainer, observed, agreed):
            notify(line)
        trainer.training.tell([*said_of_columns(experiment.columns_solvable(trainer)), *said_of_labels])
        trainer.fit(train.epochs, progress=progress)
        told, leaks = reconstruct_listed(trainer, config.name)
        provenance = begun.provenance(
            config.of_the_run,
            {party.name: party.data for party in (trainer.active, *trainer.passives.values())},
            trainer.data_digests,
            folder=folder,
            held_out=len(trainer.batches.held_out),
            command=command.words,
        )
        summary = replace(experiment.summary(trainer, observed, leaks), provenance=provenance)
        if config.audited:
            summary = with_own_model(summary, trainer.training, trainer.active)
        shown = tuple(one for name in trainer.passives for one in shown_of(trainer.watch, name))
        save_shown(folder, shown if config.keep_records else ())
        _write_run(folder, trainer, experiment, summary, told)
    return summary if twin is None else _measured_on(twin, summary, folder, progress=progress, notify=notify)


def _measured_on(
    twin: SavingTrainer,
    summary: RunSummary,
    folder: Path,
    *,
    progress: TrainingProgress | None,
    notify: Callable[[str], None],
) -> RunSummary:
    """Train the audit twin of a finished run, and return the run's figures with its excess, which are kept."""
    canaries = twin.active.training_labels.canaries
    assert canaries is not None
    notify(
        f"Audit twin: the model is kept. The same training runs once more with {canaries.count:,} records "
        "as canaries, and is thrown away."
    )
    twin.fit(summary.planned_epochs or summary.epochs, progress=progress)
    found = summary.with_twin(twin.watch)
    found.save(folder)
    return found


def _write_run(
    folder: Path, trainer: SavingTrainer, experiment: Experiment, summary: RunSummary, told: Reconstruction | None
) -> None:
    """Write all that a finished run leaves, its figures last: with them it is finished."""
    _save_weights(trainer, folder / "weights")
    # Before there is a model: where one is, a reserve that is missing was taken away, and may have been used.
    if not (folder / MODEL_FOLDER).exists():
        keep_reserve(folder, experiment.reserve)
    trainer.save(folder / MODEL_FOLDER)
    # What an earlier part of the training told is not what this model tells.
    (folder / RECONSTRUCTION_FILE).unlink(missing_ok=True)
    if told is not None:
        told.keep(folder)
    summary.save(folder)
    show_on_board(summary, folder)


def _finished(folder: Path, trainer: Trainer, epochs: int) -> RunSummary | None:
    """Return the figures of a run that has been taken up, if nothing of it is left to train or to write."""
    steps = epochs * len(trainer.batches)
    if trainer.training.account is not None:
        steps = min(steps, trainer.training.account.last_step)
    if not (folder / FILE_NAME).is_file() or not (trainer.stopped or trainer.step >= steps):
        return None
    # Figures are written last: others are of before a training that went on and was killed before it wrote its model.
    done = read_summary(folder)
    numbers = {read_half_schema(half.parent).run for half in (folder / MODEL_FOLDER).glob(f"*/{HALF_FILE}")}
    return done if done.steps == trainer.step and numbers == {trainer.number} else None


def nothing_left(folder: Path, done: RunSummary) -> str:
    """Return what is said of a finished run that was taken up again, in a sentence."""
    stopped = "" if done.planned_epochs in (None, done.epochs) else f" of {done.planned_epochs}, with early stopping"
    more = "" if stopped else f"; to train it longer: train.epochs={2 * done.epochs} --resume"
    return (
        f"{folder} holds a finished run, of {counted(done.epochs, 'epoch')}{stopped}{finished_at(done)}: nothing is "
        f"left to train, and nothing was changed{more}"
    )


def _save_weights(trainer: Trainer, folder: Path) -> None:
    """Write each party's weights to a file of its own, without code: ``PARTY.safetensors``.

    Those of a private top are in ``PARTY.private-top.safetensors``.
    """
    private_folder(folder)
    for party in (trainer.active, *trainer.passives.values()):
        for model, what in zip(party.models, ("", ".private-top"), strict=False):
            weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
            path = folder / f"{party.name}{what}.safetensors"
            write_whole(path, save(weights), flush=False)


@dataclass(frozen=True)
class Variant:
    """One run of a comparison.

    Attributes:
        label: The defenses in one phrase, and how the model is cut, where that is compared too.
        config: The experiment with this defense and seed.
        folder: Where its run goes.
    """

    label: str
    config: ExperimentConfig
    folder: Path


def cut_otherwise(
    config: ExperimentConfig,
    load: Callable[[Sequence[str]], ExperimentConfig],
    cuts: Sequence[int | None],
    widths: Sequence[int | None],
) -> dict[str, ExperimentConfig]:
    """Return an experiment with its model cut elsewhere, and with other widths of the cut: each with each, by name.

    Args:
        config: The experiment.
        load: Returns it with further overrides.
        cuts: After how many layers; ``None``: where it is cut.
        widths: Of what passive parties send, there; ``None``: as it is.

    Raises:
        ConfigError: If the model cannot be cut so.
    """
    found = {}
    for cut in cuts:
        options = {} if cut is None else dict(config.model.recipe.options_for_cut(cut))
        there = load(_as_overrides(options))
        for width in widths:
            wide = {} if width is None else dict(there.model.recipe.options_for_width(width))
            if width is not None and not wide:
                raise ConfigError(
                    f"--widths: of {config.model.name} the width of the cut follows from the task, and cannot be "
                    f"{width}; leave it out"
                )
            named = (f"{what} {number}" for what, number in (("cut", cut), ("width", width)) if number is not None)
            found[", ".join(named)] = load([*_as_overrides(options), *_as_overrides(wide)])
    return found


def _as_overrides(options: Mapping[str, Any]) -> list[str]:
    return [f"model.{key}={json.dumps(value)}" for key, value in options.items()]


def variants(
    config: ExperimentConfig,
    defenses: Sequence[Sequence[HookConfig]],
    seeds: int,
    folder: Path,
    *,
    cut: str = "",
) -> list[Variant]:
    """Return the runs of a comparison: each list of defenses, once, under each seed from the experiment's own on.

    Args:
        config: The experiment.
        defenses: What is compared.
        seeds: Number of runs of each.
        folder: Where the runs go.
        cut: How the model is cut, where that is compared too: a part of every run's name.

    Raises:
        ConfigError: If ``seeds`` is not from 1 to 10 000.
    """
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ConfigError(f"--seeds: expected 1 to {_MOST_SEEDS}, got {seeds}")
    found = []
    each = {"+".join(str(hook) for hook in chosen) or "none": chosen for chosen in defenses}
    for named, chosen in each.items():
        label = f"{cut}, {named}" if cut else named
        prediction = config.prediction
        # No party sends a direction of noise if no defense awaits one.
        if prediction.direction_by is not None and not _awaits_direction(chosen, config.folder):
            prediction = prediction.model_copy(update={"direction_by": None})
        for seed in range(config.train.seed, config.train.seed + seeds):
            train = config.train.model_copy(update={"seed": seed, "noise_seed_for_experiments": seed})
            changes = {"train": train, "defenses": tuple(chosen), "prediction": prediction}
            found.append(
                Variant(label, config.model_copy(update=changes), folder / _folder_name(label) / f"seed-{seed}")
            )
    return found


def _awaits_direction(defenses: Sequence[HookConfig], folder: Path) -> bool:
    return any(awaits_direction(hook.made("defenses", folder)) for hook in defenses)


def _folder_name(label: str) -> str:
    return "".join(character if character.isalnum() or character in "-+._=" else "-" for character in label).strip("-")


def run_variants(
    planned: Sequence[Variant],
    *,
    overwrite: bool,
    resume: bool = False,
    progress: Callable[[Variant], TrainingProgress | None] = lambda variant: None,
    command: Command = NO_COMMAND,
) -> list[RunSummary]:
    """Run variants of one experiment, one after the other, on data that is loaded once.

    Args:
        planned: The runs.
        overwrite: Replace earlier runs in the same folders.
        resume: Keep finished runs, and go on with interrupted ones.
        progress: Called before each run for what is called after each of its steps.
        command: The command that was given.

    Raises:
        ConfigError: If a folder holds a run and neither ``resume`` nor ``overwrite`` is asked for.
        Interrupted: At Ctrl-C, after a checkpoint.
    """
    begun = next((variant.folder for variant in planned if resume and has_checkpoint(variant.folder)), None)
    if begun is not None:
        kept = with_ids_of(planned[0].config, begun)
        planned = [
            replace(variant, config=variant.config.keeping_ids(kept.id_rule, kept.split_by)) for variant in planned
        ]
    bench = prepare(planned[0].config)
    for variant in {variant.label: variant for variant in planned}.values():
        Experiment(variant.config, bench)  # what cannot be trained is refused before hours go into the others
    summaries = []
    for variant in planned:
        with locked(variant.folder):
            found = run_experiment(
                variant.config,
                variant.folder,
                workbench=bench,
                # A run that was stopped before its first checkpoint starts anew.
                overwrite=overwrite or resume,
                resume=resume and has_checkpoint(variant.folder),
                progress=progress(variant),
                command=command,
            )
        summaries.append(found)
    return summaries
