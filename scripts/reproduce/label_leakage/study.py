"""What the figures share: the data, the model, the trainer, and how a run is followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from scripts.reproduce.shared.settings import Settings, data_folder
from splitvfl.app.trainer import Trainer
from splitvfl.attacks import NormAttack
from splitvfl.config.sections import HookConfig
from splitvfl.data.clicks import Clicks, write_clicks
from splitvfl.data.columns import PartyData, VerticalData
from splitvfl.data.load import load
from splitvfl.hooks import Attack
from splitvfl.leakage.judging import ScoreKeeper
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.models import WideDeepBottom, WideDeepTop
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.training import Status

PASSIVE = "passive"
WIDTHS = (128, 128, 128, 128)
"""The deep part: four layers of 128 ReLU units, as in the paper."""

LEARNING_RATE = 1e-3
EMBEDDING_DIM = 4


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set and the scale at which the paper's experiment is run on it.

    Attributes:
        key: Short name, fit for a file.
        title: Name for people.
        arguments: Of :func:`splitvfl.data.load.load`.
        batch_size: Records in a step. The paper's: 65 536.
        epochs: The paper's: 30.
        seeds: The seeds; each has its own split, initialisation, order and noise.
        generated: Whether it is large and generated, so that fewer runs are affordable.
    """

    key: str
    title: str = ""
    arguments: Mapping[str, Any]
    batch_size: int = 512
    epochs: int = 30
    seeds: tuple[int, ...] = (0,)
    generated: bool = False

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values."""
        return {
            "key": self.key,
            "arguments": dict(self.arguments),
            "batch_size": self.batch_size,
            "epochs": self.epochs,
        }


@dataclass(frozen=True)
class Defense:
    """A defense by its registered name and options, or none.

    Attributes:
        label: For figures and tables.
        name: ``""`` for no defense.
        options: As in an experiment file.
    """

    label: str
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values."""
        return {"label": self.label, "name": self.name, "options": dict(self.options)}


def problems(settings: Settings) -> list[Problem]:
    """Return the data sets that are at hand; what is missing is said, and left out."""
    if settings.quick:
        return [_quick_problem()]
    folder = data_folder()
    found = []
    for name, problem in _with_files(settings).items():
        if (folder / name).is_file():
            found.append(replace(problem, arguments={**problem.arguments, "path": str(folder / name)}))
        else:
            settings.leave_out(problem.title, folder / name)
    return found + _clicks(settings)


def _with_files(settings: Settings) -> dict[str, Problem]:
    seeds = tuple(range(settings.seeds))
    return {
        "criteo_random_46k_20cols.parquet": Problem(
            key="criteo-46k",
            title="Criteo, random 46k (13 counts, 7 categories)",
            arguments={"name": "criteo"},
            epochs=15,
            seeds=seeds,
        ),
        "criteo_head_10k.parquet": Problem(
            key="criteo-10k",
            title="Criteo, first 10k (13 counts, 26 categories)",
            arguments={"name": "criteo"},
            seeds=seeds,
        ),
        "give_me_some_credit.parquet": Problem(
            key="give-me-some-credit",
            title="Give Me Some Credit",
            arguments={"name": "give-me-some-credit"},
            epochs=5,
            seeds=seeds,
        ),
        "bank_marketing_additional_full.parquet": Problem(
            key="bank-marketing",
            title="bank marketing, without the length of the call",
            arguments={"name": "bank-marketing", "drop": ["duration"]},
            epochs=15,
            seeds=seeds,
        ),
    }


def _quick_problem() -> Problem:
    return Problem(
        key="clicks-quick",
        title="generated clicks, 20 000 rows",
        arguments={"name": "clicks"},
        epochs=1,
        seeds=(0, 1),
    )


def _clicks(settings: Settings) -> list[Problem]:
    """Return the generated clicks, which are written by the first part that asks for them."""
    if not settings.rows_of_clicks:
        return []
    path = settings.out / f"clicks-{settings.rows_of_clicks}.parquet"
    if not path.exists():
        settings.say(f"writing {path}")
        write_clicks(path, Clicks(settings.rows_of_clicks))
    return [
        Problem(
            key=f"clicks-{settings.rows_of_clicks}",
            title=f"generated clicks, {settings.rows_of_clicks:_} rows".replace("_", " "),
            arguments={"name": "criteo", "path": str(path), "drop": ["id"], "min_count": 20},
            batch_size=min(4096, settings.rows_of_clicks // 20),
            epochs=2,
            seeds=tuple(range(min(2, settings.seeds))),
            generated=True,
        )
    ]


@lru_cache(maxsize=2)
def _loaded(arguments: tuple[tuple[str, Any], ...], seed: int) -> VerticalData:
    given: dict[str, Any] = dict(arguments)
    if given["name"] != "tables":  # those were divided and split when they were made
        given |= {"passive": {PASSIVE: "rest"}, "categorical": "index", "split_seed": seed, "test_fraction": 0.1}
    return load(**given)


def data_of(problem: Problem, seed: int) -> VerticalData:
    """Return the data: a random tenth to test on, the wide and the deep part both on all columns, as in the paper.

    There the two parties hold the same features and one of them the labels; :func:`~splitvfl.data.load.load` gives
    every column to one party only, so that the active party's are added here.
    """
    arguments = tuple(
        (name, tuple(value) if isinstance(value, list) else value) for name, value in sorted(problem.arguments.items())
    )
    data = _loaded(arguments, seed)
    passive, active = data[PASSIVE], data.active
    shared = PartyData(
        active.name,
        passive.column_names,
        passive.numeric_names,
        passive.field_sizes,
        replace(passive.train, labels=active.train.labels),
        replace(passive.test, labels=active.test.labels),
        passive.field_names,
    )
    return replace(data, active=shared)


def held_out(data: VerticalData, seed: int) -> VerticalData:
    """Return the training records alone, a random tenth of them to validate on in place of the test records."""
    count = data.active.train.count
    order = torch.randperm(count, generator=torch.Generator().manual_seed(derive_seed(seed, "validation")))
    validated, trained = order[: count // 10].sort().values, order[count // 10 :].sort().values

    def divided(party: PartyData) -> PartyData:
        return replace(party, train=party.train.rows(trained), test=party.train.rows(validated))

    passives = {name: divided(party) for name, party in data.passives.items()}
    return replace(data, active=divided(data.active), passives=passives)


def describe(problem: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return how many training records there are, and how many of them are positives."""
    train = data_of(Problem(**problem), seed).active.train
    assert train.labels is not None
    return {"records": train.count, "positives": int(train.labels.sum().item())}


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Return the optimiser of both parties."""
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)


def build_trainer(
    problem: Problem,
    seed: int,
    *,
    defense: Mapping[str, Any] | None = None,
    cut_after: int = 4,
    audit: bool = True,
    attacks: Sequence[Attack] | None = None,
    known: int = 1,
    validation: bool = False,
) -> Trainer:
    """Return the trainer of the paper's Wide & Deep model.

    Args:
        problem: The data set.
        seed: Of split, initialisation, order and noise.
        defense: What :meth:`Defense.as_settings` returned; ``None`` for no defense.
        cut_after: Number of deep layers at the passive party; 4 leaves a linear top.
        audit: Whether to run the auditor's attack.
        attacks: Default: the norm attack alone.
        known: Records of each class that an attacker which needs some is assumed to know.
        validation: Whether a tenth of the training records is tested on, and the test records are left out.
    """
    data = held_out(data_of(problem, seed), seed) if validation else data_of(problem, seed)
    passive = data[PASSIVE]
    with PartyRandom(derive_seed(seed, "initialisation", PASSIVE)):
        bottom = WideDeepBottom(
            passive.width, passive.field_sizes, embedding_dim=EMBEDDING_DIM, widths=WIDTHS[:cut_after]
        )
    with PartyRandom(derive_seed(seed, "initialisation", data.active.name)):
        top = WideDeepTop(WIDTHS[cut_after - 1], passive.width, passive.field_sizes, hidden=WIDTHS[cut_after:])
    return Trainer(
        ActiveParty(data.active, top, optimizer=adam),
        {PASSIVE: PassiveParty(passive, bottom, optimizer=adam)},
        defenses=[HookConfig(name=defense["name"], **defense["options"]).made("defenses", Path())]
        if defense and defense["name"]
        else [],
        attacks=[NormAttack()] if attacks is None else attacks,
        batch_size=problem.batch_size,
        seed=seed,
        noise_seed_for_experiments=seed,
        known_positives=known,
        known_negatives=known,
        audit=audit,
    )


class _Enough(Exception):
    """As many steps as were wanted."""


def train(trainer: Trainer, *, steps: int, progress: Callable[[Status], None]) -> None:
    """Train for a number of steps, which need not fill an epoch.

    Args:
        trainer: A trainer that has not begun.
        steps: How many, at least 1.
        progress: Called after each.
    """

    def follow(status: Status) -> None:
        progress(status)
        if status.step == steps:
            raise _Enough

    try:
        trainer.fit(-(-steps // len(trainer.batches)), progress=follow)
    except _Enough:
        return


class Course:
    """The course of a run: leak AUC in windows of steps, training loss and test AUC in epochs.

    Args:
        trainer: The trainer that is followed.
        keepers: Judges of the attacks that are followed, by name.
        windows: Number of windows in the run of so many steps.
        steps: Steps in the run.

    Attributes:
        steps: Last step of each window.
        leaks: By attack, the mean leak AUC of the window's steps; NaN where no step of it had one.
        loss: Mean training loss of each epoch.
        test: Test AUC after each epoch.
    """

    def __init__(self, trainer: Trainer, keepers: Mapping[str, ScoreKeeper], *, steps: int, windows: int = 40) -> None:
        self.steps: list[int] = []
        self.leaks: dict[str, list[float]] = {name: [] for name in keepers}
        self.loss: list[float] = []
        self.test: list[float] = []
        self._keepers = dict(keepers)
        self._counted = dict.fromkeys(keepers, (0.0, 0))
        self._per_epoch = len(trainer.batches)
        self._total = steps
        self._window = max(1, steps // windows)
        self._losses: list[float] = []

    def __call__(self, status: Status) -> None:
        """Take down what a step has brought."""
        self._losses.append(status.loss)
        if status.step % self._window == 0 or status.step == self._total:
            self._close_window(status.step)
        if status.step % self._per_epoch == 0:
            self.loss.append(sum(self._losses) / len(self._losses))
            self.test.append(status.test)
            self._losses = []

    def _close_window(self, step: int) -> None:
        self.steps.append(step)
        for name, keeper in self._keepers.items():
            (total, count), (total_before, count_before) = keeper.auc_sum, self._counted[name]
            self._counted[name] = total, count
            new = count - count_before
            self.leaks[name].append((total - total_before) / new if new else float("nan"))
