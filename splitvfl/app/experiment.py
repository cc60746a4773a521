"""From a checked experiment file to objects, and from objects to a finished run: nothing below knows names."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn

from splitvfl.app.exchanges import exchange_of, task_of
from splitvfl.app.label_horizon import LabelHorizon, agreed_horizon, before, observed_horizon, outcome
from splitvfl.app.noise import noise_plan
from splitvfl.config.registry import PluginKind
from splitvfl.config.sections import (
    MODEL,
    DataConfig,
    ExperimentConfig,
    HookConfig,
    ModelSection,
    TrainConfig,
    config_to_yaml,
    parse_config,
)
from splitvfl.crypto.refusals import PATTERN
from splitvfl.data import PartyData, VerticalData, load
from splitvfl.data.sets import TABLES
from splitvfl.data.store import open_tables
from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.exchange.kept import FOLDER as KEPT
from splitvfl.hooks import At, Defense
from splitvfl.leakage.canaries import check_canaries
from splitvfl.learning.batches import BLOCK_ROWS
from splitvfl.learning.optimizers import ParameterFactory, PerParameter, rowwise_adagrad
from splitvfl.learning.precision import narrow_dtype
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.tasks import Task
from splitvfl.party.attaching import check_clips
from splitvfl.party.party import SENDING, ActiveParty, PassiveParty
from splitvfl.party.private_top import private_adam
from splitvfl.party.recipe import Recipe, check_size
from splitvfl.report.summary import FILE_NAME, AttackResult, ExchangeTraits, PartyResult, RunSummary, known
from splitvfl.run import checkpoint
from splitvfl.run.party_folder import FAREWELL_FILE
from splitvfl.run.replay import JOURNAL
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import TrainingProgress
from splitvfl.system.private_folder import close_folder, closed_for_writing, private_folder

if TYPE_CHECKING:
    from splitvfl.leakage.own_columns import OwnColumns

CONFIG_FILE = "experiment.yaml"
_CONFIG_DRAFT = f".{CONFIG_FILE}"
_MOST_SEEDS = 10_000
HEADER = "# All settings of this run, written by splitvfl.\n"


@dataclass(frozen=True)
class Workbench:
    """What runs of one experiment share: the data, and what each partner predicts from its own columns.

    Attributes:
        data: The loaded data.
        own_columns: By passive party; empty for tasks that are not binary, and where a class has fewer than five
            records.
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
    from splitvfl.leakage.own_columns import FOLDS, first_component_auc, own_columns_auc

    data = load_data(config)
    labels = data.active.train.labels
    if data.task != "binary" or labels is None or not config.audited:
        return Workbench(data, {})
    positives = int((labels == 1).sum())
    if min(positives, labels.numel() - positives) < FOLDS:
        return Workbench(data, {})  # too few of a class to say; no reason not to train
    components = {name: first_component_auc(party.train.columns, labels) for name, party in data.passives.items()}
    return Workbench(
        data,
        {name: own_columns_auc(party.train.columns, labels) for name, party in data.passives.items()},
        {name: auc for name, auc in components.items() if auc is not None},
    )


def load_data(config: ExperimentConfig) -> VerticalData:
    """Return the experiment's data, divided between its parties.

    Raises:
        DataError: If the data are not what the experiment says.
        ConfigError: If an option means nothing for this data set.
    """
    if config.data.name == TABLES:
        return _ingested(config)
    if config.data.aligned is not None:
        raise ConfigError(f"{config.source}: data.aligned: only a party's own table is aligned (splitvfl party)")
    options = _data_options(config.data)
    parties = dict(config.parties)
    active = parties.pop(config.active)
    options["label"] = active.label or config.data.label
    if config.data.categorical is None and config.model.recipe.takes_fields:
        options["categorical"] = "index"
    try:
        return load(
            config.data.name,
            active_name=config.active,
            active=active.columns,
            passive={name: party.columns for name, party in parties.items()},
            **options,
        )
    except ArgumentError as error:
        raise ConfigError(f"{config.source}: data: {error}") from error


def _ingested(config: ExperimentConfig) -> VerticalData:
    if config.data.path is None:
        raise ConfigError(f"{config.source}: data: {TABLES} need the path of a folder that `splitvfl ingest` wrote")
    try:
        data = open_tables(config.data.path, parties={name: party.role for name, party in config.parties.items()})
    except ArgumentError as error:
        raise ConfigError(f"{config.source}: parties: {error}") from error
    if data.active.train.count == 0:
        raise ConfigError(
            f"{config.source}: data: {config.data.path} holds test records only, as files that were ingested --like "
            "others do; train on the others"
        )
    return data


def _data_options(data: DataConfig) -> dict[str, Any]:
    return {name: getattr(data, name) for name in type(data).model_fields if name not in ("name", "aligned")}


def build_trainer(config: ExperimentConfig, data: VerticalData, *, folder: Path | None = None) -> Trainer:
    """Return the trainer of an experiment.

    Args:
        config: The experiment.
        data: Its data.
        folder: The run's folder; ``None`` keeps nothing.

    Raises:
        ConfigError: If parts do not fit together.
        PrivacyError: If nothing bounds a message that is to be bounded.
    """
    _check_tables(config)
    check_private_top(config)
    _check_fields(config, data)
    train = config.train
    noise = noise_plan(config, data.active)
    exchange = exchange_of(config.exchange, rows=train.batch_size, noise=noise)
    task = task_of(exchange, data.task, data.classes)
    _check_canaries(config, task)
    active, passives = _parties(config, data, task)
    trainer = Trainer(
        active=active,
        passives=passives,
        defenses=[*_defenses(config), *([] if noise is None else noise.defenses())],
        attacks=_hooks("attacks", config.attacks, config),
        batch_size=train.batch_size,
        block_rows=train.block_rows or (BLOCK_ROWS if config.data.name == TABLES else 1),
        seed=train.seed,
        noise_seed_for_experiments=train.noise_seed_for_experiments,
        known_positives=config.known_positives,
        known_negatives=config.known_negatives,
        audit=config.audited,
        canaries=config.canaries,
        log_dir=folder,
        checkpoint_every=train.checkpoint_every_steps,
        evaluate_every=train.evaluate_every_epochs,
        early_stopping=None if train.early_stopping is None else train.early_stopping.settings(),
        device=choose_device(train.device),
        autocast=narrow_dtype(train.autocast),
        wire=narrow_dtype(config.exchange.wire),
        exchange=exchange,
    )
    for party in (trainer.active, *trainer.passives.values()):
        check_clips(party, activation=config.exchange.activation_clip, gradient=config.exchange.gradient_clip)
    return trainer


def _check_canaries(config: ExperimentConfig, task: Task) -> None:
    if config.canaries is None:
        return
    exchange = config.exchange.factory
    try:
        check_canaries(task.name, audit=config.audited, exchange=exchange.name, read=exchange.shows_gradients())
    except ConfigError as error:
        raise ConfigError(f"{config.source}: audit.canaries: {error}") from error


def _check_tables(config: ExperimentConfig) -> None:
    recipe = config.model.recipe
    if config.train.embedding_optimizer is None:
        return
    if not recipe.takes_fields:
        raise ConfigError(f"train.embedding_optimizer: the model {config.model.name} has no embeddings; leave it out")
    if recipe.sparse is False:
        raise ConfigError(
            "train.embedding_optimizer: model.sparse is false, so that train.optimizer trains the embeddings; "
            "leave one of them out"
        )


def check_private_top(config: ExperimentConfig) -> None:
    """Refuse an optimiser for a private top where there is none.

    Raises:
        ConfigError: If there is one.
    """
    if config.train.private_top_optimizer is not None and not config.model.recipe.private_top:
        raise ConfigError(
            f"{config.source}: train.private_top_optimizer: there is no private top; write model.private_top: true, or "
            "leave it out"
        )


def _check_fields(config: ExperimentConfig, data: VerticalData) -> None:
    with_fields = [party.name for party in (data.active, *data.passives.values()) if party.field_sizes]
    if with_fields and not config.model.recipe.takes_fields:
        raise ConfigError(
            f"model: {config.model.name} takes numbers only, and {' and '.join(with_fields)} of {data.name} "
            f"{'has' if len(with_fields) == 1 else 'have'} categorical fields; take wide-deep"
        )


def _hooks(kind: PluginKind, hooks: Sequence[HookConfig], config: ExperimentConfig) -> list[Any]:
    return [hook.found(kind, config.folder).make() for hook in hooks]


def _defenses(config: ExperimentConfig) -> list[Defense | At]:
    built = _hooks("defenses", config.defenses, config)
    return [
        defense if hook.at is None else At(defense, *hook.at)
        for hook, defense in zip(config.defenses, built, strict=True)
    ]


def choose_device(name: str) -> torch.device:
    """Return the device: ``"auto"`` takes CUDA where there is one.

    Raises:
        ConfigError: If CUDA is asked for and there is none, or there is no such name.
    """
    match name:
        case "cpu":
            return torch.device("cpu")
        case "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        case "cuda":
            if not torch.cuda.is_available():
                raise ConfigError("train.device: cuda was asked for, but torch finds no CUDA device; use auto or cpu")
            return torch.device("cuda")
        case _:
            raise ConfigError(f"train.device: expected auto, cpu or cuda, got {name!r}")


def optimizers_of(train: TrainConfig) -> PerParameter:
    """Return what makes each party's optimiser: of its sparse tables, if it has any, and of everything else."""
    return PerParameter(dense=train.optimizer.make, embeddings=_of_embeddings(train))


def private_optimizer_of(train: TrainConfig) -> PerParameter:
    """Return what makes the optimiser of a private top, as :func:`optimizers_of`."""
    section = train.private_top_optimizer
    return PerParameter(dense=private_adam if section is None else section.make, embeddings=_of_embeddings(train))


def _of_embeddings(train: TrainConfig) -> ParameterFactory:
    return rowwise_adagrad if train.embedding_optimizer is None else train.embedding_optimizer.make


def _parties(config: ExperimentConfig, data: VerticalData, task: Task) -> tuple[ActiveParty, dict[str, PassiveParty]]:
    seed, optimizer = config.train.seed, optimizers_of(config.train)
    passives = {}
    for name, party in data.passives.items():
        with seeded(derive_seed(seed, "initialisation", name)):
            bottom = bottom_of(config, party, task)
        passives[name] = PassiveParty(bounded(config, party), bottom, optimizer=optimizer)
    widths = [party.output_width() for party in passives.values()]
    with seeded(derive_seed(seed, "initialisation", data.active.name)):
        top = top_of(config, data.active, task, widths)
    with seeded(derive_seed(seed, "initialisation", data.active.name, "private top")):
        private_top = private_top_of(config, data.active, task, widths)
    active = ActiveParty(
        bounded(config, data.active),
        top,
        private_top=private_top,
        private_optimizer=private_optimizer_of(config.train),
        task=task,
        optimizer=optimizer,
    )
    return active, passives


def bounded(config: ExperimentConfig, data: PartyData) -> PartyData:
    """Return a party's data with rows of the norm that the model asks for."""
    return data.with_row_norm(config.model.recipe.row_norm)


def bottom_of(config: ExperimentConfig, party: PartyData, task: Task) -> nn.Module:
    """Return a passive party's model before its first step."""
    recipe = _with_tables(passive_model(config, party, task), config.train)
    return recipe.fitted(recipe.make_bottom(party, task), party)


def top_of(config: ExperimentConfig, active: PartyData, task: Task, widths: Sequence[int]) -> nn.Module:
    """Return the active party's model.

    Args:
        config: The experiment.
        active: The active party's data.
        task: What is learned.
        widths: Width of each passive party's activation.

    Raises:
        ConfigError: If the model cannot take these widths.
    """
    return _with_tables(active_model(config), config.train).make_top(active, task, widths)


def private_top_of(config: ExperimentConfig, active: PartyData, task: Task, widths: Sequence[int]) -> nn.Module | None:
    """Return the active party's private top, as :func:`top_of`; ``None`` if the experiment has none."""
    recipe = _with_tables(config.model, config.train)
    return recipe.make_private_top(active, task, widths) if recipe.private_top else None


def _with_tables(model: ModelSection, train: TrainConfig) -> Recipe:
    """Return the recipe; who names an optimiser for tables wants sparse gradients, unless the model says otherwise."""
    if train.embedding_optimizer is not None and model.recipe.sparse is None:
        return model.model_copy(update={"sparse": True}).recipe
    return model.recipe


def active_model(config: ExperimentConfig) -> ModelSection:
    """Return the section that describes the active party's model: the experiment's, with the width of the exchange."""
    exchange, model = exchange_of(config.exchange, rows=config.train.batch_size), config.model
    if exchange.width is None:
        return model
    return model.model_copy(update=dict(model.recipe.options_for_width(exchange.width)))


def passive_model(config: ExperimentConfig, party: PartyData, task: Task) -> ModelSection:
    """Return the section that describes a passive party's model.

    Raises:
        ConfigError: If principal components are asked for of columns that are not numbers, or more than there are.
    """
    exchange = exchange_of(config.exchange, rows=config.train.batch_size)
    if exchange.bottom != "pca":
        return active_model(config)  # which is all there is, as of a saved half
    if party.field_sizes or not party.width:
        raise ConfigError(
            f"exchange.bottom: principal components are of numbers, and {party.name} has "
            f"{'categorical fields (' + ', '.join(party.field_names) + ')' if party.field_sizes else 'no columns'}; "
            "encode them as numbers (data.categorical: one-hot, with model mlp), or take bottom: random"
        )
    if exchange.width is not None and exchange.width > party.width:
        raise ConfigError(
            f"exchange.width: expected at most the {party.width} numeric columns of {party.name}, of which there are "
            f"no more principal components, got {exchange.width}"
        )
    check_size("exchange.bottom", party.name, 2 * party.width**2)
    width = exchange.width or min(_bottom_width(config, party, task), party.width)
    found: ModelSection = MODEL.default("pca", width=width)
    return found


def _bottom_width(config: ExperimentConfig, party: PartyData, task: Task) -> int:
    """Return the width of what a party's bottom of the experiment's own model would put out."""
    with seeded(0):  # the weights are thrown away; nobody else's numbers are to be used up for them
        return PassiveParty(party, config.model.recipe.make_bottom(party, task)).output_width()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block under a seed of its own, and leave torch's global state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def check_folder(folder: Path, config: ExperimentConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that a run may not be written to; nothing is changed in it.

    Raises:
        ConfigError: If the folder holds a run and neither ``resume`` nor ``overwrite`` is asked for, holds other files,
            is no folder, or there is nothing to resume.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; a run needs a folder")
    if resume:
        if checkpoint.latest(folder / "checkpoints") is None:
            raise ConfigError(f"{folder} holds no checkpoint to resume from; start it without --resume")
        return
    if not folder.exists() or {path.name for path in folder.iterdir()} <= {_CONFIG_DRAFT}:
        return
    if not is_run(folder) or Path(config.source).resolve() == (folder / CONFIG_FILE).resolve():
        raise ConfigError(
            f"{folder} holds files and is not a run of splitvfl; it is left alone, name another with --out"
        )
    if not overwrite:
        raise ConfigError(f"{folder} already holds a run; continue it with --resume, or replace it with --overwrite")


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run: settings that a run wrote, not an experiment file of the same name."""
    path = folder / CONFIG_FILE
    return path.is_file() and path.read_bytes().startswith(HEADER.encode())


def is_barely_begun(folder: Path) -> bool:
    """Return whether a folder holds a run that was broken off before its first checkpoint: nothing worth keeping."""
    kept = ("model", "weights", "report.html", FILE_NAME)
    return (
        is_run(folder)
        and checkpoint.latest(folder / "checkpoints") is None
        and not any((folder / name).exists() for name in kept)
        and not any(folder.glob(PATTERN))
    )


def write_config(folder: Path, config: ExperimentConfig) -> None:
    """Write the settings of a run into its folder, all at once."""
    beside = folder / _CONFIG_DRAFT
    beside.write_text(HEADER + config_to_yaml(config))
    beside.replace(folder / CONFIG_FILE)


def clear_run(folder: Path) -> None:
    """Delete what a run writes, and nothing else. Killed on the way, it leaves a run, of which the rest can go too."""
    doomed = folder / ".deleting"
    for name in ("checkpoints", "weights", "model", KEPT):
        shutil.rmtree(doomed, ignore_errors=True)
        if (folder / name).exists():
            (folder / name).rename(doomed)  # half deleted, they must not pass for whole ones
            shutil.rmtree(doomed, ignore_errors=True)
    names = ("metrics.jsonl", "report.html", FILE_NAME, FAREWELL_FILE, JOURNAL, CONFIG_FILE)
    many = ("events.out.tfevents.*", PATTERN)
    for path in [*(path for pattern in many for path in folder.glob(pattern)), *(folder / name for name in names)]:
        path.unlink(missing_ok=True)


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
) -> RunSummary:
    """Train one experiment and write everything about it into a folder.

    The folder gets ``experiment.yaml`` (all settings), ``metrics.jsonl``, TensorBoard events, ``checkpoints/``,
    ``weights/PARTY.safetensors`` and ``summary.json``.

    Args:
        config: The experiment.
        folder: The run's folder.
        workbench: Shared data, loaded before.
        resume: Go on from the folder's last checkpoint.
        overwrite: Replace what the folder holds.
        progress: Called after every step.
        notify: Told in one line what is known before the first step.

    Raises:
        ConfigError: If the folder holds another run, or parts do not fit together.
        Interrupted: At Ctrl-C, after a checkpoint.
    """
    check_folder(folder, config, resume=resume, overwrite=overwrite)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    bench = workbench or prepare(config)
    trainer = build_trainer(config, bench.data, folder=folder)
    trainer.active.plan_run(epochs=config.train.epochs, early_stopping=config.train.early_stopping is not None)
    trainer.watch.known = bench.known
    horizon = observed_horizon(config, trainer)  # of the first weights, also where the run goes on
    if resume:
        _refuse_changes(config, folder / CONFIG_FILE)
        trainer.resume()
    else:
        # Only now: an earlier run is not given up for one that cannot start.
        close_folder(folder)
        clear_run(folder)
    write_config(folder, config)
    for line in before(horizon, agreed_horizon(config, bench.data.active.train.count, task=bench.data.task)):
        notify(line)
    for line in trainer.active.promises(config.train.epochs):
        notify(line)
    trainer.fit(config.train.epochs, progress=progress)
    summary = summarise(config, trainer, bench, horizon)
    save_weights(trainer, folder / "weights")
    summary.save(folder)
    return summary


def _refuse_changes(config: ExperimentConfig, path: Path) -> None:
    """Raise :class:`ConfigError` if a run is to be resumed with other settings; more epochs are welcome without noise.

    Noise is calculated for the epochs that were planned: that of the first ones would be too little for more.
    """
    before = parse_config(path.read_text(), source=path, folder=config.folder).model_dump(mode="json")
    now = config.model_dump(mode="json")
    exchange = exchange_of(config.exchange, rows=config.train.batch_size)
    free = ("train.epochs",) if exchange.noise is None else ()
    changed = [key for key in _differing(before, now) if key not in free]
    if changed:
        raise ConfigError(
            f"{path.parent} was started with other settings: {', '.join(changed)}; "
            f"resume it with the same ones, as {path} says (if you changed none: another version of splitvfl began it, "
            "and had other defaults), or start anew with --overwrite or --out"
        )


def _differing(before: Any, now: Any, key: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [found for name in names for found in _differing(before.get(name), now.get(name), f"{key}.{name}")]
    return [] if before == now else [key.removeprefix(".")]


def save_weights(trainer: Trainer, folder: Path) -> None:
    """Write each party's weights to a file of its own, without code: ``PARTY.safetensors``.

    Those of a private top are in ``PARTY.private-top.safetensors``.
    """
    private_folder(folder)
    for party in (trainer.active, *trainer.passives.values()):
        for model, what in zip(party.models, ("", ".private-top"), strict=False):
            weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
            save_file(weights, folder / f"{party.name}{what}.safetensors")


def summarise(
    config: ExperimentConfig, trainer: Trainer, bench: Workbench, horizon: LabelHorizon | None = None
) -> RunSummary:
    """Return a finished run in numbers; ``horizon`` is that of its first weights."""
    task = trainer.active.task
    noise = noise_plan(config, trainer.active.data)
    features = trainer.feature_leaks()
    parties = {}
    for name in trainer.passives:
        own = bench.own_columns.get(name)
        parties[name] = PartyResult(
            attacks={attack: AttackResult.of(summary) for attack, summary in trainer.summaries(name).items()},
            unavailable=dict(trainer.unavailable[name]),
            own_columns_auc=None if own is None else own.auc,
            own_columns_model="" if own is None else own.model,
            first_component_auc=bench.first_components.get(name),
            measurements=measurements_of(trainer.measurements, name),
            features=features.get(name, []),
            after_training=dict(trainer.after_training[name]),
            canaries=trainer.watch.canaries(name),
        ).audited(trainer.audits.get(name))
    return RunSummary(
        name=config.name,
        data=bench.data.name,
        task=task.name,
        model=config.model.name,
        defenses=[*map(describe_hook, config.defenses), *([] if noise is None else [noise.name])],
        exchange=config.exchange.name,
        exchange_traits=ExchangeTraits.of(config.exchange.factory),
        notes=[
            *([] if noise is None else noise.notes()),
            *private_top_notes(trainer.active),
            *trainer.active.promises(config.train.epochs),
            *trainer.active.notes,
            *outcome(trainer, horizon),
            *trainer.watch.notes,
        ],
        seed=config.train.seed,
        epochs=trainer.step // len(trainer.batches),
        planned_epochs=config.train.epochs if config.train.early_stopping else None,
        kept_epoch=trainer.kept_epoch,
        validation_metric=known(trainer.validation.get(trainer.active.judged_by, math.nan)),
        sending_metric=known(trainer.test.get(f"{SENDING}{task.metric}", math.nan)),
        steps=trainer.step,
        batch_size=config.train.batch_size,
        metric=task.metric,
        test_metric=known(trainer.test[task.metric]),
        test_loss=known(trainer.test["loss"]),
        step_ms=known(trainer.step_ms),
        known_positives=trainer.known_positives,
        known_negatives=trainer.known_negatives,
        parties=parties,
        measurements=measurements_of(trainer.measurements, trainer.active.name),
        canaries=trainer.watch.worst_canaries,
        private_top=trainer.active.private_top is not None,
    )


def private_top_notes(party: ActiveParty) -> list[str]:
    """Return what is to be known of a private top beside its figures, in sentences."""
    if party.private_top is None:
        return []
    said = [
        "The test figures are of the private top, which learned from true labels and sent nothing. What a partner gets "
        "to see of its predictions is a release of its own, of which no claim of a defense of training speaks."
    ]
    if party.private_top.left_out:
        said.append(
            f"In {party.private_top.left_out:,} steps the private top's loss or a gradient was NaN or "
            "infinite, and it learned nothing: lower train.private_top_optimizer.lr."
        )
    return said


def measurements_of(measurements: Mapping[str, float], party: str) -> dict[str, float]:
    """Return what the defenses of one party's messages logged, out of what all did."""
    prefix = f"{party}/"
    return {tag.removeprefix(prefix): value for tag, value in measurements.items() if tag.startswith(prefix)}


def describe_hook(hook: HookConfig) -> str:
    """Return a hook with its settings, as people write it: ``sumkl(detection_error=0.4)``."""
    options = hook.options if hook.at is None else {**hook.options, "at": "+".join(hook.at)}
    settings = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{hook.name}({settings})" if settings else hook.name


@dataclass(frozen=True)
class Variant:
    """One run of a comparison.

    Attributes:
        label: The defenses in one phrase.
        config: The experiment with this defense and seed.
        folder: Where its run goes.
    """

    label: str
    config: ExperimentConfig
    folder: Path


def variants(
    config: ExperimentConfig, defenses: Sequence[Sequence[HookConfig]], seeds: int, folder: Path
) -> list[Variant]:
    """Return the runs of a comparison: each list of defenses under each seed, counted from the experiment's own.

    Raises:
        ConfigError: If ``seeds`` is not from 1 to 10 000.
    """
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ConfigError(f"--seeds: expected 1 to {_MOST_SEEDS}, got {seeds}")
    found = []
    for chosen in defenses:
        label = "+".join(describe_hook(hook) for hook in chosen) or "none"
        for seed in range(config.train.seed, config.train.seed + seeds):
            train = config.train.model_copy(update={"seed": seed, "noise_seed_for_experiments": seed})
            changed = config.model_copy(update={"train": train, "defenses": tuple(chosen)})
            found.append(Variant(label, changed, folder / _folder_name(label) / f"seed-{seed}"))
    return found


def _folder_name(label: str) -> str:
    return "".join(character if character.isalnum() or character in "-+._=" else "-" for character in label).strip("-")


def run_variants(
    planned: Sequence[Variant],
    *,
    overwrite: bool,
    resume: bool = False,
    progress: Callable[[Variant], TrainingProgress | None] = lambda variant: None,
) -> list[RunSummary]:
    """Run variants of one experiment, one after the other, on data that is loaded once.

    Args:
        planned: The runs.
        overwrite: Replace earlier runs in the same folders.
        resume: Keep finished runs, and go on with interrupted ones.
        progress: Called before each run for what is called after each of its steps.

    Raises:
        ConfigError: If a folder holds a run and neither ``resume`` nor ``overwrite`` is asked for.
        Interrupted: At Ctrl-C, after a checkpoint.
    """
    bench = prepare(planned[0].config)
    return [
        run_experiment(
            variant.config,
            variant.folder,
            workbench=bench,
            # A run that was stopped before its first checkpoint starts anew.
            overwrite=overwrite or resume,
            resume=resume and checkpoint.latest(variant.folder / "checkpoints") is not None,
            progress=progress(variant),
        )
        for variant in planned
    ]
