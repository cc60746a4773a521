"""The runs that the table of defenses is made of: what is trained, on which records, and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from scripts.bench.measuring import interleaved
from scripts.reproduce.shared.jobs import Result
from scripts.reproduce.shared.settings import data_folder
from splitvfl.app.experiment import Experiment, Workbench, prepare
from splitvfl.app.records import load_data
from splitvfl.app.trainer import Trainer
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import PartyData, VerticalData
from splitvfl.exchange.one_way import OneWay
from splitvfl.exchange.split import Split
from splitvfl.leakage.own_columns import first_component_auc, own_columns_auc
from splitvfl.learning.optimizers import fused_adam
from splitvfl.learning.randomness import PartyRandom
from splitvfl.learning.tasks import Binary
from splitvfl.messaging.messages import Message, encode
from splitvfl.messaging.transcript import Transcript
from splitvfl.metrics import leak_auc
from splitvfl.models import MLP
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.report.summary import RunSummary
from splitvfl.report.summary_file import nested, written
from splitvfl.run.training import Status


@dataclass(frozen=True)
class Sample:
    """Which records of a set are used.

    Attributes:
        validation: So many of its training records are judged on while settings are chosen, and not trained on then.
        train: So many others are trained on, always; ``None``: all that there are, those of the validation among them
            once settings are chosen.
        test: So many of its test records are used; ``None``: all.
        file: Of the data folder; empty for a set that comes with scikit-learn.
    """

    validation: int
    train: int | None = None
    test: int | None = None
    file: str = ""

    def of(self, data: VerticalData, *, validating: bool) -> VerticalData:
        """Return the data with these records alone; while settings are chosen, validation ones stand for test ones."""
        order, others = (_shuffled(part.count, seed) for seed, part in enumerate((data.active.train, data.active.test)))
        validated, rest = order[: self.validation], order[self.validation :]
        trained = order if self.train is None and not validating else rest[: self.train]

        def part(party: PartyData) -> PartyData:
            test = party.train.rows(validated.sort().values) if validating else party.test.rows(others[: self.test])
            return replace(party, train=party.train.rows(trained.sort().values), test=test)

        passives = {name: part(party) for name, party in data.passives.items()}
        return replace(data, active=part(data.active), passives=passives)


def _shuffled(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def train(
    *, about: Mapping[str, str], experiment: Mapping[str, str], seed: int, sample: Mapping[str, Any] | None = None
) -> Result:
    """Train one experiment, and return its summary.

    Args:
        about: For those who watch.
        experiment: Its text, under ``yaml``; the seed is in it.
        seed: For those who watch.
        sample: Fields of :class:`Sample`; ``None``: all records.
    """
    config = _config(experiment, about, seed, sample)
    parts = Experiment(config, _bench(config, sample))
    trainer = parts.trainer()
    trainer.fit(config.train.epochs)
    return {"summary": msgspec.json.encode(written(parts.summary(trainer), {})).decode()}


def summary_of(result: Result) -> RunSummary:
    """Return the summary that :func:`train` returned."""
    return msgspec.convert(nested(msgspec.json.decode(result["summary"])), RunSummary)


def validate(
    *,
    about: Mapping[str, str],
    experiment: Mapping[str, str],
    seed: int,
    sample: Mapping[str, Any],
    epochs: Sequence[int],
) -> Result:
    """Train one experiment to the largest number of epochs, and return validation AUCs after each of some numbers.

    One run stands for runs of each number: nothing in these experiments depends on how many epochs are planned.

    Args:
        about: For those who watch.
        experiment: Its text, under ``yaml``; its epochs are the largest of these.
        seed: For those who watch; it is in the experiment.
        sample: Fields of :class:`Sample`.
        epochs: After which it is evaluated.

    Returns:
        ``sending``: by epochs, the AUC of the top that sends.
    """
    config = _config(experiment, about, seed, sample)
    trainer = Experiment(config, Workbench(_data(config, sample, validating=True), {})).trainer()
    found: list[float] = []

    def follow(status: Status) -> None:
        if status.step % len(trainer.batches) == 0:
            found.append(trainer.training.figures.get("test/sending/auc", trainer.training.figures["test/auc"]))

    trainer.fit(config.train.epochs, progress=follow)
    return {"sending": {str(number): found[number - 1] for number in epochs}}


def alone(
    *,
    about: Mapping[str, str],
    experiment: Mapping[str, str],
    seed: int,
    sample: Mapping[str, Any],
    epochs: Sequence[int],
    rate: float,
    validating: bool,
) -> Result:
    """Train the label party's own top on its own columns, by batches as with a partner.

    Args:
        about: For those who watch.
        experiment: Text of the experiment that it is compared with, under ``yaml``.
        seed: Of initialisation and order.
        sample: Fields of :class:`Sample`.
        epochs: After which it is evaluated.
        rate: Of Adam.
        validating: Whether on validation records; else on test records.

    Returns:
        ``aucs``: by epochs.
    """
    config = _config(experiment, about, seed, sample)
    active = _data(config, sample, validating=validating).active
    columns, labels, truth = active.train.columns.numeric, active.train.labels, active.test.labels
    assert labels is not None
    assert truth is not None
    found = {}
    with PartyRandom(seed):
        hidden: Sequence[int] = config.model.recipe.top_hidden  # type: ignore[attr-defined]  # an MLP's
        top = MLP(columns.shape[1], [*hidden, 1], final_activation=False)
        optimizer = fused_adam(list(top.parameters()), lr=rate)
        for epoch in range(1, max(epochs) + 1):
            for rows in torch.randperm(labels.numel()).split(config.train.batch_size):
                optimizer.zero_grad()
                functional.binary_cross_entropy_with_logits(top(columns[rows])[:, 0], labels[rows].float()).backward()
                optimizer.step()
            if epoch in epochs:
                found[str(epoch)] = leak_auc(top(active.test.columns.numeric)[:, 0].detach(), truth)
    return {"aucs": found}


def step_cost(
    *,
    about: Mapping[str, str],
    without: Mapping[str, str],
    experiment: Mapping[str, str],
    sample: Mapping[str, Any],
    rounds: int,
) -> Result:
    """Measure the steps of two experiments in turn, and what crosses in a step of the second.

    Both are trained for one epoch, anew in every round, in the order A B, B A and so on; nothing watches. Times are of
    the CPU, between the ends of two steps that follow each other within the epoch.

    Args:
        about: For those who watch.
        without: Text of the experiment without a defense, under ``yaml``.
        experiment: The same with one.
        sample: Fields of :class:`Sample`.
        rounds: How many count; one more comes first.

    Returns:
        ``without_ms`` and ``with_ms``, medians over all steps; ``more_ms``, the median over rounds of the difference of
        their medians, and ``more_from`` and ``more_to``, quartiles of it; ``steps`` that were timed of each; and the
        bytes of the second one's first step, as :func:`bytes_of_step` returns them.
    """
    fits = [Fits(_config(text, about, 0, sample), sample) for text in (without, experiment)]
    interleaved([fit.next for fit in fits], runs=rounds, warm_up=1)
    bare, defended = ([1e3 * np.asarray(times) for times in fit.rounds[1:]] for fit in fits)
    more = [float(np.median(much) - np.median(less)) for less, much in zip(bare, defended, strict=True)]
    low, middle, high = np.quantile(more, [0.25, 0.5, 0.75])
    return {
        "without_ms": median(np.concatenate(bare).tolist()),
        "with_ms": median(np.concatenate(defended).tolist()),
        "more_ms": float(middle),
        "more_from": float(low),
        "more_to": float(high),
        "steps": int(np.concatenate(bare).size),
        "bytes": bytes_of_step(recorded(fits[1].config, fits[1].data), fits[1].data.active.name),
    }


def crossing_bytes(
    *, about: Mapping[str, str], experiment: Mapping[str, str], seed: int, sample: Mapping[str, Any]
) -> Result:
    """Count what crosses in a whole run of a one-way exchange, in which nothing crosses after it has begun.

    Args:
        about: For those who watch.
        experiment: Its text, under ``yaml``.
        seed: For those who watch; it is in the experiment.
        sample: Fields of :class:`Sample`.

    Returns:
        ``down`` and ``up``, as of :func:`bytes_of`.
    """
    config = _config(experiment, about, seed, sample)
    data = _data(config, sample, validating=False)
    return {**bytes_of(recorded(config, data), data.active.name)}


class Fits:
    """Trainings of one epoch of an experiment, each with its steps' times.

    Args:
        config: The experiment.
        sample: Fields of :class:`Sample`.

    Attributes:
        rounds: Seconds of the CPU by training, of the steps between the first and the last one.
    """

    def __init__(self, config: ExperimentConfig, sample: Mapping[str, Any]) -> None:
        self.config, self.data = config, _data(config, sample, validating=False)
        self.rounds: list[list[float]] = []

    def next(self) -> None:
        """Train once more, from the start."""
        trainer = Experiment(self.config, Workbench(self.data, {})).trainer()
        ends: list[float] = []
        trainer.fit(1, progress=lambda status: ends.append(time.process_time()))
        # Before the last step is said to be over comes an evaluation.
        self.rounds.append(np.diff(ends)[:-1].tolist())


def recorded(config: ExperimentConfig, data: VerticalData) -> Transcript:
    """Return what crosses in the training steps of one epoch, or with exchange one-way before them."""
    transcript, task, recipe = Transcript(), Binary(), config.model.recipe
    assert isinstance(config.train.batch_size, int)
    with PartyRandom(config.train.seed):
        passives = {name: PassiveParty(party, recipe.make_bottom(party, task)) for name, party in data.passives.items()}
        widths = [party.output_width() for party in passives.values()]
        top: nn.Module = recipe.make_top(data.active, task, widths)
    Trainer(
        ActiveParty(data.active, top),
        passives,
        defenses=[hook.made("defenses", Path()) for hook in config.defenses],
        batch_size=config.train.batch_size,
        noise_seed_for_experiments=0,
        audit=False,
        exchange=OneWay() if config.exchange.name == OneWay.name else Split(),
        record=transcript.record,
    ).fit(1)
    return transcript


def bytes_of_step(transcript: Transcript, active: str) -> dict[str, int]:
    """Return the bytes of all messages of the first recorded step, as they are encoded for the network.

    Args:
        transcript: Of steps.
        active: Name of the label party.

    Returns:
        ``down``: to its partners; ``up``: from them.
    """
    messages = list(transcript)
    return bytes_of([message for message in messages if message.step == messages[0].step], active)


def bytes_of(messages: Iterable[Message], active: str) -> dict[str, int]:
    """Return the bytes of messages as they are encoded for the network: ``down`` from the label party, ``up`` to it."""
    sizes = [(message.sender == active, len(encode(message))) for message in messages]
    return {
        "down": sum(size for sent, size in sizes if sent),
        "up": sum(size for sent, size in sizes if not sent),
    }


def _config(
    experiment: Mapping[str, str], about: Mapping[str, str], seed: int, sample: Mapping[str, Any] | None
) -> ExperimentConfig:
    config = parse_config(experiment["yaml"], source=f"defense_table ({about['label']}, seed {seed})")
    file = "" if sample is None else Sample(**sample).file
    if not file:
        return config
    # Where the file lies is this machine's, and in no setting.
    return config.model_copy(update={"data": config.data.model_copy(update={"path": str(data_folder() / file)})})


@dataclass
class _Shared:
    """What runs on the same records share: to measure what columns predict takes longer than a run."""

    data: dict[str, VerticalData] = field(default_factory=dict)
    benches: dict[str, Workbench] = field(default_factory=dict)


_SHARED = _Shared()


def _kept(made: dict[str, Any], key: str, make: Callable[[], Any]) -> Any:
    if key not in made:
        made[key] = make()
    return made[key]


def _data(config: ExperimentConfig, sample: Mapping[str, Any] | None, *, validating: bool) -> VerticalData:
    whole = repr((config.data, config.parties))
    key = repr((whole, sample, validating))
    if sample is None:
        data: VerticalData = _kept(_SHARED.data, whole, lambda: load_data(config))
        return data
    chosen: VerticalData = _kept(
        _SHARED.data, key, lambda: Sample(**sample).of(_data(config, None, validating=False), validating=validating)
    )
    return chosen


def _bench(config: ExperimentConfig, sample: Mapping[str, Any] | None) -> Workbench:
    def make() -> Workbench:
        if sample is None:
            return prepare(config)
        data = _data(config, sample, validating=False)
        labels = data.active.train.labels
        if not config.audited or labels is None:
            return Workbench(data, {})
        columns = {name: party.train.columns for name, party in data.passives.items()}
        components = {name: first_component_auc(held, labels) for name, held in columns.items()}
        known = {name: auc for name, auc in components.items() if auc is not None}
        return Workbench(data, {name: own_columns_auc(held, labels) for name, held in columns.items()}, known)

    found: Workbench = _kept(_SHARED.benches, repr((config.data, config.parties, config.audited, sample)), make)
    return found
