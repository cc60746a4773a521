"""Experiment files: what may stand in them, and what is wrong with one.

::

    data: {name: credit-default, path: credit.parquet}
    parties:
      bank: {role: active, columns: [LIMIT_BAL, SEX]}
      telecom: {role: passive, columns: [PAY_*, BILL_*]}
    model: {name: mlp, bottom: [64, 32]}
    train: {epochs: 10, batch_size: 256, optimizer: {name: adam, lr: 1e-3}, seed: 0}
    defenses:
      - {name: sumkl, detection_error: 0.4}
      - {name: "my_hooks:Clip", bound: 0.1}
    attacks: [norm, direction]

Where a section has a name and nothing else is said, the name is enough: ``model: mlp``. ``train.lr`` is short for
``train.optimizer.lr``. All mistakes are told at once, each with its line. Every number that decides how much memory is
taken, or how long something runs, has a largest one.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails
from torch import nn

from splitvfl.claims import claims_of
from splitvfl.config.module_sources import sources_in_force, untrusted_run
from splitvfl.config.named import Named, NamedSection, refusal
from splitvfl.config.registry import PluginKind, arguments_of, check_options, construct, find, resolve, unknown
from splitvfl.config.value_types import words
from splitvfl.config.yaml import Document, Place, parse_override, place_in, to_yaml
from splitvfl.data.coin_labels import LEAST_CANARIES
from splitvfl.data.columns import TaskName
from splitvfl.data.encoding import Categorical, Missing, Scale
from splitvfl.data.id_rules import ID_RULE, RuleVersion, SplitBy
from splitvfl.data.labels import Unlabelled
from splitvfl.data.partition import REST
from splitvfl.data.sets import DATA_SETS, TABLES
from splitvfl.data.shards import PLACEHOLDER
from splitvfl.errors import ArgumentError, ConfigError, HookError, SplitVFLError, shown, suggestion
from splitvfl.exchange.base import NO_PRIVATE_TOP, Exchange
from splitvfl.exchange.scoring import ACTIVE, COORDINATOR
from splitvfl.hooks import (
    PHASES,
    At,
    Attack,
    Crossing,
    Phase,
    Weighed,
    checked_phases,
    crossing_of,
    held_by,
    record_loss_of,
)
from splitvfl.learning.batches import MOST_SHARDS
from splitvfl.learning.optimizers import EMBEDDING_OPTIMIZERS, OPTIMIZERS
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.learning.settings import Settings
from splitvfl.party.recipe import Count, Recipe
from splitvfl.system.untrusted_files import UntrustedFile

__all__ = [
    "AuditConfig",
    "DataConfig",
    "ExchangeSection",
    "ExperimentConfig",
    "FoundDefense",
    "HookConfig",
    "ModelSection",
    "NetworkConfig",
    "PartyConfig",
    "PredictionConfig",
    "TrainConfig",
    "TransformConfig",
    "config_to_yaml",
    "load_config",
    "parse_attacks",
    "parse_config",
    "parse_defenses",
]

RUN_HEADER: Final = "# All settings of this run, written by splitvfl.\n"
"""The first line of the settings that a run writes into its folder."""
_RUN_WORDS: Final = RUN_HEADER.strip("#. \n")
_FIRST_LINES: Final = 1000
_RUN_FILE: Final = "experiment.yaml"
_BESIDE_SETTINGS: Final = (
    *("begun.json", "summary.json", "metrics.jsonl", "checkpoints/step-*", "model/half.json", "model/*/half.json"),
)

# Sections whose name alone may stand for them.
_NAMED_SECTIONS = ("data", "model", "exchange")
HOOK_LISTS: tuple[Literal["attacks", "defenses"], ...] = ("attacks", "defenses")
# Of penalties, what a file says of them that is no argument of their constructors.
_OF_WEIGHED = ("weight", "warm_up_steps")


def _claim(value: Any) -> str | float | tuple[str, ...]:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    if not isinstance(value, (str, list, tuple)):
        raise ValueError(f"expected names and patterns of columns, a share in (0, 1] or rest, got {shown(value)}")
    return _names(value)


def _names(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"expected names and patterns of columns, got {shown(value)}")
    wrong = [item for item in value if not isinstance(item, str)]
    if wrong:
        raise ValueError(f"expected names of columns as text, got {shown(wrong[0])}; put it in quotes")
    return tuple(value)


def _cells(value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str | int | float) else value
    if not isinstance(found, (list, tuple)):
        raise ValueError(f"expected a list of texts, got {shown(value)}")
    wrong = [item for item in found if not isinstance(item, str | int | float) or isinstance(item, bool)]
    if wrong:
        raise ValueError(f"expected texts as they stand in the file, got {shown(wrong[0])}; put it in quotes")
    return tuple(map(str, found))


def _scalar(value: Any) -> str | float | bool:
    if not isinstance(value, (str, int, float)):
        raise ValueError(f"expected a number, a text or a truth value, got {shown(value)}")
    return value


def _batch_size(value: Any) -> Any:
    if isinstance(value, str) and value != "all":
        raise ValueError(f"expected a whole number, or all, got {shown(value)}")
    return value


def _data_set(name: str) -> str:
    if name not in DATA_SETS:
        raise ValueError(unknown("data", name, DATA_SETS))
    return name


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w .+=-]*", name):
        raise ValueError(f"expected a name for a folder, of letters, digits and . _ + = -, got {shown(name)}")
    return name


def _phases(value: Any) -> tuple[Phase, ...] | None:
    if value is None:
        return None
    named = (value,) if isinstance(value, str) else value
    if not isinstance(named, (list, tuple)):
        raise ValueError(f"expected one or more of {', '.join(PHASES)}, got {shown(value)}")
    try:
        return checked_phases(named)
    except ArgumentError as error:
        raise ValueError(str(error)) from None


ColumnSetting = Annotated[str | Annotated[float, Field(gt=0, le=1)] | tuple[str, ...], BeforeValidator(_claim)]
Names = Annotated[str | tuple[str, ...], BeforeValidator(_names)]
Decimal = Literal[".", ","]
Thousands = Literal[",", ".", " ", "'", "\u00a0", "\u202f", "\u2009", "\u2019"]
Cells = Annotated[tuple[str, ...], BeforeValidator(_cells)]
Scalar = Annotated[str | int | float | bool, BeforeValidator(_scalar)]

# Whatever decides how much memory is taken, or how long something runs, has a largest number: a slip of the finger is
# told with its line, before memory is taken for it. How large a model may be as a whole is a question of its data and
# of the machine, asked where it is built (splitvfl.app.experiment).
_MOST_EPOCHS = 2**31 - 1  # so that with as many batches in each the steps are, too
MOST_ROWS = 2**24  # of a batch, which is in memory as a whole, in several copies
_MOST_THREADS = 1024  # more than cores there are; torch starts as many as it is told to
_MOST_KNOWN = 2**20  # they are held as Python's integers, and sorted
_MOST_RETRIES = 2**31 - 1
_MOST_CANARIES = 2**20  # chosen as Python's integers; with so many the interval is ±.001

RowCount = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Known = Annotated[int, Field(ge=0, le=_MOST_KNOWN)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
_PHASE = {"enum": list(PHASES)}
Phases = Annotated[
    tuple[Phase, ...] | None,
    BeforeValidator(_phases),
    WithJsonSchema({"anyOf": [_PHASE, {"type": "array", "items": _PHASE, "minItems": 1}, {"type": "null"}]}),
]


CELL_SETTINGS = ("missing_values", "decimal", "thousands", "units")
"""Settings of data that a party's own file may have otherwise."""


class DataConfig(Settings):
    """Which data, and how they are read: the arguments of :func:`splitvfl.data.load.load` of the same names.

    ``path``, ``aligned`` and ``ranges`` are looked for beside the experiment file, then in the current folder; given on
    the command line, the other way round. Of ``tables``, which were ingested before, nothing but the path is left to
    say, here and at the parties.

    Attributes:
        name: A data set that has a name, ``table`` for a file of one's own, ``tables`` for what was ingested.
        path: The file, or the folder of ``tables``; ``{worker}`` in it stands for the number of a worker, where each
            has tables of its own. Without a path, a set with a name is looked for in the folder that the environment
            variable SPLITVFL_DATA names.
        label: The label column; a set with a name knows its own.
        task: What is learned of the label; ``null``: the set's own, ``binary`` of a table.
        positive: Of a binary task, which of two label values is the positive class; not needed for 0 and 1.
        unlabelled: What becomes of records without a label. ``error`` refuses them; ``drop`` leaves them out and says
            how many, for outcomes that are not known yet. They are left out before records are joined, never after an
            alignment: there the partner would see which they are.
        digit: Of the sets ``digits`` and ``mnist``: which digit is the positive class; ``null`` asks for all ten.
        drop: Columns to leave out, as names and patterns.
        id_column: Column that names the records; without one they are numbered.
        aligned: The folder that ``splitvfl align`` wrote: its records, in its order.
        test_fraction: Expected share of the records that the model is tested on.
        split_seed: Decides, with each record's id alone, which these are.
        split_column: Column that says which these are, in place of chance. It must not be made from labels: the partner
            sees which records are tested, and a division made from labels reveals them.
        test_value: What it says of test records.
        scale: How numeric columns are scaled, by what training records show. ``standard``: mean 0, standard deviation
            1; ``minmax``: to [0, 1]; ``log1p``: sign(x) · log(1 + abs(x)), then as ``standard``; ``none``: not at all.
            ``null``: the set's own, ``standard`` of a table.
        ranges: A CSV file of public bounds, ``column,lower,upper`` with a line for every numeric column, by which
            numbers are clipped and scaled in place of what training records show, so that no record moves another:
            ``standard`` and ``log1p`` then scale to [-1, 1], ``minmax`` to [0, 1], and ``indicator`` fills in the
            middle. ``null``: what training records show.
        missing: What becomes of gaps in numeric columns: ``error`` refuses them; ``indicator`` fills in the median and
            adds a column that says where. ``null``: the set's own, ``error`` of a table.
        categorical: What becomes of columns that hold text: ``onehot`` makes a column of 0 and 1 of each category,
            ``index`` a number, for models with embeddings. ``null``: the set's own, ``onehot`` of a table.
        text: Columns whose text stays as it stands whatever it looks like, such as codes, and ids beyond 64 bits; those
            of CSV files are read as text.
        categorical_columns: Columns of numbers that hold categories, as names and patterns; text always does.
        min_count: Categories that fewer training records have count as one, "others". ``null``: the set's own, 1 of a
            table.
        missing_values: What says that nothing is known, such as ``["?", "-"]``: gaps in every column but those of
            ``text``. In columns of numbers, empty cells, ``NA``, ``null`` and the like are gaps without being
            named; in columns of text they are not.
        decimal: The decimal separator, ``.`` or ``","``. Where it is given, text in Parquet files is read as numbers
            too if it looks so.
        thousands: What stands between groups of three digits: ``","``, ``.``, ``" "`` (any space) or ``"'"``.
        units: What stands before or behind numbers, and is left out, such as ``["$", "%", kg]``; 12.5% is 12.5.
            ``"()"`` stands for accounting brackets: (12.5) is -12.5. All numbers of a column have the same unit, or
            none.
    """

    name: Annotated[str, AfterValidator(_data_set)]
    path: str | None = None
    label: str | None = None
    task: TaskName | None = None
    positive: Scalar | None = None
    unlabelled: Unlabelled = "error"
    digit: Annotated[int, Field(ge=0, le=9)] | None = 8
    drop: Names = ()
    id_column: str | None = None
    aligned: str | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    split_seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    split_column: str | None = None
    test_value: Scalar = "test"
    scale: Scale | None = None
    ranges: str | None = None
    missing: Missing | None = None
    categorical: Categorical | None = None
    categorical_columns: Names | None = None
    text: Names | None = None
    min_count: Count | None = None
    missing_values: Cells | None = None
    decimal: Decimal | None = None
    thousands: Thousands | None = None
    units: Cells | None = None


class TransformConfig(Settings):
    """What a passive party does to its numeric columns before training, and to every record that it scores later.

    It stays in its half of the model, and no partner is told: a linear model with a penalty on weights alone gives the
    same scores, and weights that mislead who takes them for weights of the columns. See
    :mod:`splitvfl.data.transform`.

    Attributes:
        name: ``flip`` is x → 1 − x, of columns in [0, 1]; ``permute`` shuffles columns that hold the same values,
            or, of more than 64 different ones, the same smallest and largest; ``orthonormal`` mixes all columns, by
            ``matrix`` or by chance.
        columns: Which of the columns after encoding ``flip`` or ``permute`` is for, as names and patterns; ``null``:
            all.
        matrix: Of ``orthonormal``: the file of an orthonormal matrix (d, d), as ``numpy.save`` writes it, such as the
            best one of :func:`splitvfl.data.transform.best_rotation`; ``null``: one is drawn.
        seed_for_experiments: Makes what is drawn repeatable, and no secret; ``null``: it is drawn from the operating
            system's entropy, and kept in checkpoints and in the half.
    """

    name: Literal["flip", "permute", "orthonormal"]
    columns: Names | None = None
    matrix: str | None = None
    seed_for_experiments: Seed | None = None

    @model_validator(mode="after")
    def _check_use(self) -> TransformConfig:
        if self.matrix is not None and (self.name != "orthonormal" or self.seed_for_experiments is not None):
            raise ValueError("a matrix is of orthonormal, which then draws nothing and needs no seed; leave one out")
        if self.name == "orthonormal" and self.columns is not None:
            raise ValueError("orthonormal mixes all columns; leave columns out")
        if self.name == "flip" and self.seed_for_experiments is not None:
            raise ValueError("flip draws nothing; leave seed_for_experiments out")
        return self


class ModelSection(NamedSection):
    """A model: the name of its recipe (:class:`~splitvfl.party.recipe.Recipe`), and the recipe's settings."""

    factory: ClassVar[type[Recipe]]

    @property
    def recipe(self) -> Recipe:
        """The recipe, with these settings."""
        recipe: Recipe = self.make()
        return recipe


MODEL = Named("models", ModelSection)


class ExchangeSection(NamedSection):
    """How a training step is talked through (:mod:`splitvfl.exchange`), and what every exchange can set.

    ``activation_clip`` and ``gradient_clip`` are promises that the parties agree on: each row is bounded to this norm
    before noise is added to it, by the defenses of its sender, in every phase. A defense counts that claims so
    (:mod:`splitvfl.claims`): ``gaussian-ir`` with a ``clip``, ``clip-gradient`` with a ``bound``, or one's own. Behind
    it there may be noise that claims to be nothing else (``isotropic`` with ``sigma``); any other defense that comes
    later voids the bound. The sender refuses to run without, and stops before it sends a row that breaks the claim. The
    receiver cannot check it: it is a protection from mistakes, not from a partner who lies.

    Attributes:
        name: Which exchange.
        wire: ``bf16`` rounds activations and gradients to bfloat16 as the last thing before they cross, which halves
            what is sent; ``null`` sends them as they were computed.
        activation_clip: Largest norm of a row of an activation before noise, which passive parties promise to keep.
        gradient_clip: Largest norm of a row of a gradient before noise, which the active party promises to keep.
    """

    factory: ClassVar[type[Exchange]]

    wire: Literal["bf16"] | None = None
    activation_clip: Annotated[float, Field(gt=0)] | None = None
    gradient_clip: Annotated[float, Field(gt=0)] | None = None

    @field_validator("wire", "activation_clip", "gradient_clip")
    @classmethod
    def _check_use(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and (told := cls.gone.get(str(info.field_name))):
            raise ValueError(told)
        return value


_EXCHANGES = Named("exchanges", ExchangeSection)
_OPTIMIZERS = Named("optimizers")
_EMBEDDING_OPTIMIZERS = Named("embedding_optimizers")
LOSS = Named("losses")
# Unless a file names another.
_MLP, _SPLIT, _ADAM = "mlp", "split", "adam"
_OPTIMIZER_NAMES = {"optimizer": _ADAM, "embedding_optimizer": "rowwise-adagrad", "private_top_optimizer": _ADAM}
# Those that come with splitvfl, and up to which size of their settings no step leaves float32.
_OWN_OPTIMIZERS = frozenset([*OPTIMIZERS.values(), *EMBEDDING_OPTIMIZERS.values()])
_ORDINARY = 1e6
USUAL_NAMES: Mapping[str, str] = {"exchange": _SPLIT, **_OPTIMIZER_NAMES}
"""By key, what a section stands for that has no name."""


class TrainConfig(Settings):
    """How long and how fast. ``train.lr`` is short for ``train.optimizer.lr``.

    Attributes:
        epochs: How often every training record is met.
        batch_size: Records in a step, at most those that there are; ``all`` makes one batch of all of them. Small data
            need small batches: a few hundred records learn little in batches of 256.
        drop_last: Leave out, in every epoch, the records that do not fill a batch: others each time, by the order.
        block_rows: Neighbouring records that are shuffled as one before they are shuffled with others
            (:class:`splitvfl.learning.batches.Batches`); ``null`` takes 4096 for ``tables``, which are read from disk,
            and 1 for all other data.
        shards: Into how many runs of neighbours the records are divided, each with an order of its own, of which every
            batch has its part: the order of that many workers, in one process.
        optimizer: How weights are updated, at every party on its own.
        embedding_optimizer: That of tables with sparse gradients (``model.sparse``), which ``optimizer`` and its weight
            decay then leave alone; ``null`` takes row-wise Adagrad.
        private_top_optimizer: That of the private top, but for its sparse tables; ``null`` takes Adam at 1e-2.
        loss: What training makes small, the label party's own business; ``null`` takes the usual one of the task.
        seed: Decides the order of records and the first weights. In a networked run all parties know it, and it decides
            the order only.
        noise_seed_for_experiments: Makes noise repeatable, and no protection at all; in one process also which records
            exchange hybrid uses. ``null``: they are drawn from the operating system's entropy.
        private_seed_for_experiments: In a networked run: makes first weights and dropout repeatable, which others could
            then know; ``null``: they are drawn from entropy.
        device: Where models compute; ``auto`` takes a CUDA device if torch finds one.
        autocast: ``bf16`` runs the models in bfloat16 where torch finds it safe.
        threads: Those of torch; ``null`` leaves its default, with which results differ between machines.
        checkpoint_every_steps: Steps from one checkpoint to the next, besides one after each epoch; ``null``: no more.
        evaluate_every_epochs: Epochs from one evaluation to the next.
        early_stopping: ``{}`` holds out training records, ends when the model no longer gets better at them, and keeps
            the best weights; ``null`` trains all epochs on all records.
    """

    epochs: Annotated[int, Field(ge=1, le=_MOST_EPOCHS)] = 10
    batch_size: Annotated[RowCount | Literal["all"], BeforeValidator(_batch_size)] = 256
    drop_last: bool = False
    block_rows: RowCount | None = None
    shards: Annotated[int, Field(ge=1, le=MOST_SHARDS)] = 1
    optimizer: Annotated[NamedSection, _OPTIMIZERS] = Field(default_factory=partial(_OPTIMIZERS.default, _ADAM))
    embedding_optimizer: Annotated[NamedSection, _EMBEDDING_OPTIMIZERS] | None = None
    private_top_optimizer: Annotated[NamedSection, _OPTIMIZERS] | None = None
    loss: Annotated[NamedSection, LOSS] | None = None
    seed: Seed = 0
    noise_seed_for_experiments: Seed | None = None
    private_seed_for_experiments: Seed | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    autocast: Literal["bf16"] | None = None
    threads: Annotated[int, Field(ge=1, le=_MOST_THREADS)] | None = 1
    checkpoint_every_steps: Count | None = None
    evaluate_every_epochs: Count = 1
    early_stopping: EarlyStopping | None = None

    def batched(self, records: int) -> int:
        """Return how many of so many training records are in batches: early stopping holds out the others."""
        return records if self.early_stopping is None else records - records // self.early_stopping.validation_every

    def rows(self, records: int) -> int:
        """Return the number of records in a step, where there are so many training records."""
        return max(1, self.batched(records)) if self.batch_size == "all" else self.batch_size


@dataclass(frozen=True)
class FoundHook:
    """What a hook is made of, and what is known of it before it is attached.

    Attributes:
        factory: Its class.
        options: Arguments of the constructor.
        crossing: Which message it changes, if it is a defense.
        brings_loss: Whether it is a label defense that computes the loss itself.
    """

    factory: type[Any]
    options: Mapping[str, Any]
    crossing: Crossing
    brings_loss: bool

    @classmethod
    def tried(cls, kind: PluginKind, factory: type[Any], options: Mapping[str, Any]) -> FoundHook:
        """Return it after one was made, for what the constructor objects to and what a defense says of itself.

        Raises:
            ConfigError: If the constructor objects.
            HookError: If a defense claims or brings what no defense can.
        """
        hook = construct(factory, copy.deepcopy(options))
        _check_call(kind, hook)
        if kind == "penalties":
            held_by(hook)
        if kind != "defenses":
            return cls(factory, options, "gradient", brings_loss=False)
        claims_of(hook)
        return cls(factory, options, crossing_of(hook), brings_loss=record_loss_of(hook) is not None)

    def make(self) -> Any:
        """Return a new hook."""
        return construct(self.factory, copy.deepcopy(self.options))


# By kind of hook, the names under which a hook that cannot be called is told what it is called with.
_GIVEN: Mapping[PluginKind, tuple[str, ...]] = {
    "attacks": ("view",),
    "defenses": ("message", "secrets"),
    "penalties": ("activation", "held"),
}


def _check_call(kind: PluginKind, hook: Any) -> None:
    """Refuse a hook that cannot be called as hooks are.

    Raises:
        ConfigError: If it cannot.
    """
    given = _GIVEN[kind]
    try:
        signature = inspect.signature(hook)
    except ValueError:  # of what is not written in Python nobody knows
        return
    except TypeError:
        raise ConfigError(f"expected __call__(self, {', '.join(given)}, /), and it cannot be called") from None
    try:
        signature.bind(*given)
    except TypeError:
        raise ConfigError(f"expected __call__(self, {', '.join(given)}, /), and it cannot be called so") from None


class HookConfig(BaseModel):
    """An attack or a defense: its name, and the arguments of its constructor.

    >>> HookConfig(name="sumkl", detection_error=0.4).options
    {'detection_error': 0.4}

    Attributes:
        name: Which one.
        at: Of a defense of the activation: in which phases it acts, one or a list; without it in all of them.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, ser_json_inf_nan="constants")

    name: str
    at: Phases = None

    _found: FoundHook | None = PrivateAttr(default=None)

    if typing.TYPE_CHECKING:

        def __init__(self, *, name: str, **options: Any) -> None: ...

    @model_serializer(mode="wrap")
    def _without_the_unset(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in serialise(self).items() if key != "at" or value is not None}

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases in which a defense of the activation acts."""
        return PHASES if self.at is None else self.at

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the hook's constructor, as the file gives them."""
        return dict(self.model_extra or {})

    def found(self, kind: PluginKind, folder: Path) -> FoundHook:
        """Return what the hook is made of: as it was found when the file was read, if a file names it.

        Raises:
            ConfigError: If there is no such hook, or it does not take these options.
        """
        return self._found or FoundHook.tried(kind, *find(kind, self.name, self.options, folder=folder))

    def made(self, kind: PluginKind, folder: Path) -> Any:
        """Return a new hook, as :meth:`found`; in the phases that the file names, if it does."""
        hook = self.found(kind, folder).make()
        return hook if self.at is None else At(hook, *self.at)

    def __str__(self) -> str:
        """Return it with its settings, as people write it: ``sumkl(detection_error=0.4)``."""
        options = self.options if self.at is None else {**self.options, "at": "+".join(self.at)}
        settings = ", ".join(f"{key}={value}" for key, value in options.items())
        return f"{self.name}({settings})" if settings else self.name


FoundDefense = tuple[HookConfig, FoundHook]
"""A defense as a file has it, and what it is made of."""


class PenaltyConfig(HookConfig):
    """A penalty: its name, its weight, and the arguments of its constructor.

    >>> PenaltyConfig(name="distance-correlation", weight=2.0, records=64).options
    {'records': 64}

    Attributes:
        name: Which one.
        weight: What its gradient is multiplied by, at least 0.
        warm_up_steps: In how many steps the weight rises to that, in a straight line; 0: it is the same in all.
    """

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    warm_up_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0

    def made(self, kind: PluginKind, folder: Path) -> Weighed:
        """Return a new penalty with its weight, as :meth:`HookConfig.found`."""
        return Weighed(self.found(kind, folder).make(), self.weight, warm_up_steps=self.warm_up_steps)


class PartyConfig(Settings):
    """One party: its role, and the columns it holds.

    Parties of ``tables`` have the names and roles with which they were ingested, and neither columns nor label here. In
    a networked run another party's columns and label need not be known.

    Attributes:
        role: ``active`` holds the labels, and is one; all others are ``passive``.
        columns: Names and patterns, as a list or in one string with commas; a share in (0, 1] of what no name claims;
            or ``rest``. See :mod:`splitvfl.data.partition`.
        label: The label column, at the active party.
        path: This party's own file, where all parties train in one process and each has one: records are joined by
            ``data.id_column``, and a party holds all columns of its file but that one, the label, and ``data.drop``. In
            a networked run it may stand here instead of ``data.path``.
        id_column: Column that names the records in this party's own file, where it is called otherwise there; ``null``:
            ``data.id_column``.
        missing_values: Of this party's own file, where cells are written otherwise there; ``null``:
            ``data.missing_values``.
        decimal: Likewise; ``null``: ``data.decimal``.
        thousands: Likewise; ``null``: ``data.thousands``.
        units: Likewise; ``null``: ``data.units``.
        address: Over a network: where this party is found. The party that runs the file dials it there, and waits to be
            dialled by parties without one.
        identity: The DNS name in its certificate, if that is not its name.
        transform: At a passive party: what it does to its numeric columns before training. A name alone will do:
            ``transform: flip``. It belongs into this party's own file alone.
        penalties: At a passive party: what is added to the gradient that its bottom model learns from, so that its
            activations tell less of its columns. For each a name, or a section. Over a network each party has its own
            in its file, and no partner is told.
    """

    role: Literal["active", "passive"]
    columns: ColumnSetting = ()
    path: str | None = None
    id_column: str | None = None
    missing_values: Cells | None = None
    decimal: Decimal | None = None
    thousands: Thousands | None = None
    units: Cells | None = None
    label: str | None = None
    address: str | None = None
    identity: str | None = None
    transform: TransformConfig | None = None
    penalties: tuple[PenaltyConfig, ...] = ()

    def cells(self, data: DataConfig) -> dict[str, Any]:
        """Return how the cells of this party's file are written: as it says, or else as the section on data does."""
        own = {key: getattr(self, key) for key in CELL_SETTINGS}
        return {key: getattr(data, key) if value is None else value for key, value in own.items()}

    @model_validator(mode="after")
    def _check_role(self) -> PartyConfig:
        if self.role == "active" and self.transform is not None:
            raise ValueError("a transform hides columns from who adds up the parts; the active party has none")
        if self.role == "active" and self.penalties:
            raise ValueError("penalties are of an activation that is sent; the active party sends none")
        if self.role == "passive" and self.label is not None:
            raise ValueError("labels are at the active party; a passive party has no label column")
        return self


class NetworkConfig(Settings):
    """How one party meets the others: :mod:`splitvfl.net`.

    Attributes:
        run: What the parties meet for, alike at all of them; ``null``: the active party's name.
        listen: Where it waits for those that dial it, as in ``0.0.0.0:7000``; ``null``: nobody dials it.
        certificates: Folder with ``ca.pem``, ``NAME.pem`` and ``NAME.key``; or name the files one by one.
        certificate: This party's certificate, in PEM.
        key: Its private key, in PEM; readable by nobody else.
        roots: Certificates of the authorities that are trusted, in PEM.
        plaintext_on_loopback: Whether to do without certificates, on one machine only.
        meeting_s: Seconds to wait for the others to appear.
        message_s: Seconds to wait for any message.
        retries: How often in a row it goes back to the last common checkpoint without getting any further.
        publish_scores: Whether the passive parties get what is predicted, and so something of the labels; alike at all
            of them.
    """

    run: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    listen: str | None = None
    certificates: str | None = None
    certificate: str | None = None
    key: str | None = None
    roots: str | None = None
    plaintext_on_loopback: bool = False
    meeting_s: Annotated[float, Field(gt=0, le=604_800)] = 600.0
    message_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    retries: Annotated[int, Field(ge=0, le=_MOST_RETRIES)] = 20
    publish_scores: bool = False


class TeamConfig(Settings):
    """How many processes each party consists of.

    All parties have as many. Worker i of a party talks with worker i of every other, and has the i-th shard of the
    records, for good (:mod:`splitvfl.team`).

    Attributes:
        workers: How many; alike at all parties. Several are started by ``torchrun``.
    """

    workers: Annotated[int, Field(ge=1, le=MOST_SHARDS)] = 1


class PredictionConfig(Settings):
    """How records are scored with the trained model; it changes no training.

    Who computes the scores is alike at all parties. Limits are each passive party's own: they stand in its file, and
    need nobody's consent (:mod:`splitvfl.run.ledger`); in one process they are those of every passive party.

    Attributes:
        scores_by: Who computes the scores: ``active``, the label party; ``coordinator``, a third party without data; or
            a passive party, by its name. Another one than the label party adds up what all send of linear models,
            applies the defenses of scores, which stand in its file, and answers the label party alone
            (:mod:`splitvfl.exchange.scoring`).
        address: Over a network: where the coordinator is found; without an address it dials the label party.
        identity: The DNS name in its certificate, if that is not its name.
        score_noise: How defenses of scores draw noise: ``fresh``, anew for every prediction, so that the mean of many
            answers has little of it; or ``memoised``, which follows from the record's logits and a secret key of who
            computes the scores, so that the same logits have the same scores in every prediction
            (:mod:`splitvfl.party.memoised`). All parties compute record by record then, which takes longer.
        direction_by: The passive party that sends who computes the scores the direction in which noise hides its
            columns best (``score-noise`` with ``direction: sent``): k numbers, which follow from its weights.
        per_record: How often a passive party lets one record be scored with the model; default: no limit.
        per_day: How many records in a day, UTC, repeated ones counted again; default: no limit.
        fewest: How many records at least in one prediction; default: no limit. With answers to single requests
            (``splitvfl serve``) it cannot be kept.
    """

    scores_by: Annotated[str, Field(min_length=1, max_length=100)] = ACTIVE
    address: str | None = None
    identity: str | None = None
    score_noise: Literal["fresh", "memoised"] = "fresh"
    direction_by: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    per_record: Annotated[int, Field(ge=1)] | None = None
    per_day: Annotated[int, Field(ge=1)] | None = None
    fewest: Annotated[int, Field(ge=1)] | None = None

    @property
    def memoised(self) -> bool:
        """Whether noise on scores is memoised."""
        return self.score_noise == "memoised"

    @property
    def limits(self) -> dict[str, int]:
        """The limits that there are, by name."""
        found = {name: getattr(self, name) for name in ("per_record", "per_day", "fewest")}
        return {name: limit for name, limit in found.items() if limit is not None}

    @model_validator(mode="after")
    def _check_limits(self) -> PredictionConfig:
        if self.fewest is not None and self.per_day is not None and self.fewest > self.per_day:
            raise ValueError(
                f"no prediction can have {self.fewest} records at least (fewest) and {self.per_day} at most (per_day); "
                "change one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_place(self) -> PredictionConfig:
        if self.scores_by != COORDINATOR and not (self.address is None and self.identity is None):
            raise ValueError(
                f"address and identity are the {COORDINATOR}'s, and scores_by names {shown(self.scores_by)}; leave "
                "them out"
            )
        return self


class AuditConfig(Settings):
    """The auditor's attack, and what it is tried on.

    Canaries are the label party's secret, in whose file alone this stands: nothing tells the others that there are any.

    Attributes:
        canaries: So many training records get a coin toss for a label, at random (:mod:`splitvfl.leakage.canaries`).
            The AUC among them is the leak beyond the prediction; 3000 make its 95 % interval about ±.02, and 20, the
            fewest, ±.25. The price: they are trained on as they are, and on average half of the labels are wrong.
    """

    canaries: Annotated[int, Field(ge=LEAST_CANARIES, le=_MOST_CANARIES)] | None = None


def _kind_of_audit(value: Any) -> str:
    return "section" if isinstance(value, (Mapping, Settings)) else "switch"


def _audit_switch(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {shown(value)}; or a section, as in {{canaries: 3000}}")
    return value


AuditSetting = Annotated[
    Annotated[bool, BeforeValidator(_audit_switch), Tag("switch")] | Annotated[AuditConfig, Tag("section")],
    Discriminator(_kind_of_audit),
]


def _check_parties(parties: Mapping[str, PartyConfig]) -> Mapping[str, PartyConfig]:
    for name in parties:
        # Names become parts of file names, of TensorBoard tags, and of keys on the command line.
        if not re.fullmatch(r"\w[\w-]*", name):
            raise ValueError(f"expected a party's name of letters, digits, _ and -, got {shown(name)}")
    active = [name for name, party in parties.items() if party.role == "active"]
    if len(active) != 1:
        raise ValueError(f"expected exactly one active party, got {' and '.join(active) or 'none'}")
    if len(parties) == 1:
        raise ValueError(f"expected at least one passive party beside {active[0]}")
    return parties


class ExperimentConfig(Settings):
    """A whole experiment file, checked, with every default filled in.

    Attributes:
        name: Of the experiment, and so of the folder of its run; by default that of the file.
        data: Which data, and how they are read. A name alone will do: ``data: breast-cancer``.
        parties: Who holds what, by the parties' names: one is active, at least one passive.
        model: What is trained. A name alone will do: ``model: mlp``.
        exchange: What crosses between the parties in a step. A name alone will do: ``exchange: residue``.
        network: How this party meets the others, where each has a process of its own.
        team: How many processes each party consists of.
        prediction: Who computes the scores of records, once the model is trained, and how many a party lets be scored.
        train: How long, how fast, and by chance or not.
        defenses: What is done to messages before they leave, in this order. For each a name, or a section.
        attacks: What the partner is assumed to try. For each a name, or a section.
        malicious: Which parties deviate from an encrypted protocol, and how, in one process: ``packing`` asks for
            single values in place of sums. The run judges what they read, and what they would have read in the
            published protocol. Such a party may spoil the training.
        audit: Whether the auditor's attack is run, which knows all labels; or a section of its settings.
        known_positives: How many positive records an attacker is assumed to know, at most half of those that there are.
        known_negatives: How many negative ones, likewise.
        goal: The leak AUC below which reports call labels protected, in (0.5, 1]: an attack that reads no more than
            that, or no more than a partner's own columns tell anyway, is below it. It changes no training.
        keep_records: Whether 50 records' values of the three columns that are read most in activations are kept, true
            and estimated, for ``splitvfl report --show-records``: without ids, units and extremes, and of each column
            other records. Readable by the owner alone. It changes no training.
    """

    name: Annotated[str, AfterValidator(_folder_name)]
    data: DataConfig
    parties: Annotated[Mapping[str, PartyConfig], AfterValidator(_check_parties)]
    model: Annotated[ModelSection, MODEL] = Field(default_factory=partial(MODEL.default, _MLP))
    exchange: Annotated[ExchangeSection, _EXCHANGES] = Field(default_factory=partial(_EXCHANGES.default, _SPLIT))
    network: NetworkConfig | None = None
    team: TeamConfig = TeamConfig()
    prediction: PredictionConfig = PredictionConfig()
    train: TrainConfig = TrainConfig()
    defenses: tuple[HookConfig, ...] = ()
    attacks: tuple[HookConfig, ...] = ()
    malicious: Mapping[str, Literal["packing"]] = Field(default_factory=dict)
    audit: AuditSetting = True
    known_positives: Known = 10
    known_negatives: Known = 10
    goal: Annotated[float, Field(gt=0.5, le=1)] = 0.6
    keep_records: bool = False

    _source: str = PrivateAttr(default="experiment")
    _folder: Path = PrivateAttr(default=Path())
    _id_rule: RuleVersion = PrivateAttr(default=ID_RULE)
    _split_by: SplitBy = PrivateAttr(default="ids")

    @classmethod
    def refusal(cls, key: str) -> str:
        """Return what is said of a key that no section of a file has; it may be one of a section's."""
        for name, section in (("train", TrainConfig), ("data", DataConfig)):
            if key in section.model_fields:
                return f"no such key; did you mean {name}.{key}?"
        return super().refusal(key)

    @model_validator(mode="after")
    def _check_label(self) -> ExperimentConfig:
        own = self.parties[self.active].label
        if own is not None and self.data.label not in (None, own):
            raise ValueError(f"data.label is {self.data.label!r}, and parties.{self.active}.label is {own!r}; keep one")
        return self

    @model_validator(mode="after")
    def _check_third_party(self) -> ExperimentConfig:
        third = self.exchange.factory.third_party
        if third in self.parties:
            raise ValueError(
                f"parties.{third}: so is called who has the key in exchange {self.exchange.name}, and has no data; "
                "give the party another name"
            )
        return self

    @model_validator(mode="after")
    def _check_shards(self) -> ExperimentConfig:
        if 1 not in (self.team.workers, self.train.shards) and self.team.workers != self.train.shards:
            raise ValueError(
                f"team.workers is {self.team.workers}, and each worker has one shard, but train.shards is "
                f"{self.train.shards}; leave train.shards out"
            )
        return self

    @property
    def shards(self) -> int:
        """Into how many shards the records are divided: one for each worker."""
        return max(self.team.workers, self.train.shards)

    @property
    def audited(self) -> bool:
        """Whether the auditor's attack is run."""
        return self.audit is not False

    @property
    def found_defenses(self) -> list[FoundDefense]:
        """Every defense, with what it is made of.

        Raises:
            ConfigError: If there is no such hook, or it does not take these options.
        """
        return [(hook, hook.found("defenses", self.folder)) for hook in self.defenses]

    @property
    def canaries(self) -> int | None:
        """How many training records get a coin toss for a label, if any do."""
        return None if isinstance(self.audit, bool) else self.audit.canaries

    @property
    def source(self) -> str:
        """What the file is called in messages."""
        return self._source

    @property
    def folder(self) -> Path:
        """Where the user's own modules are looked for: the file's folder."""
        return self._folder

    @property
    def id_rule(self) -> RuleVersion:
        """Version of the rule for ids: that of this version, or of the one that began the run."""
        return self._id_rule

    @property
    def split_by(self) -> SplitBy:
        """What divides its records where one process loads them: ids, unless an earlier version began the run."""
        return self._split_by

    def keeping_ids(self, rule: RuleVersion, split_by: SplitBy = "ids") -> ExperimentConfig:
        """Return the same experiment, whose ids are read and whose records are divided as by the run that began it.

        Args:
            rule: Version of the rule for ids (:mod:`splitvfl.data.id_column`).
            split_by: What divides its records.
        """
        kept = self.model_copy()
        kept._id_rule, kept._split_by = rule, split_by
        return kept

    @property
    def active(self) -> str:
        """Name of the party that holds the labels."""
        return next(name for name, party in self.parties.items() if party.role == "active")

    @property
    def scorer(self) -> str:
        """Name of who computes the scores, once the model is trained."""
        return self.active if self.prediction.scores_by == ACTIVE else self.prediction.scores_by

    @property
    def hides_columns(self) -> bool:
        """Whether a party transforms its columns, which is a secret of these settings."""
        return any(party.transform is not None for party in self.parties.values())

    def id_column_of(self, name: str) -> str | None:
        """Return the column that names the records in a party's file; ``None``: they are numbered."""
        return self.parties[name].id_column or self.data.id_column

    def own_name(self, name: str) -> str:
        """Return a party's name; ``active`` stands for that of the active party.

        Raises:
            ConfigError: If the file has no such party.
        """
        if name in self.parties or name in (self.exchange.factory.third_party, self.scorer):
            return name
        if name == "active":
            return self.active
        raise ConfigError(f"{self.source}: parties: there is no {name!r}; there are {', '.join(self.parties)} (--as)")


_MOST_BYTES = 1 << 24  # of a file of settings


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Return the experiment that a file describes.

    Args:
        path: The YAML file.
        overrides: Settings to change, as ``train.epochs=3``; values are YAML. They come last, in their order.

    Raises:
        ConfigError: If the file cannot be read, or anything in it is wrong: one line for each mistake. Of the file that
            a run wrote into its folder, that is a class from anywhere but the current folder, too.
    """
    file = Path(path)
    text = _config_text(file, named=True)
    if text is None:
        neighbours = [other.name for other in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
        raise ConfigError(f"{file}: no such file{suggestion(file.name, neighbours)}")
    if not _is_of_run(file, text) or sources_in_force() is not None:
        return parse_config(text, source=file, overrides=overrides)
    with untrusted_run(file.parent, remedy=_copied_if_yours(file)):
        return parse_config(text, source=file, overrides=overrides)


def _copied_if_yours(file: Path) -> str:
    return f"if {file} is yours, copy it to a file of another name beside your own modules, and start that"


def _is_of_run(file: Path, text: str) -> bool:
    """Return whether a file is the one that a run writes: by its name, and what it says or what lies beside it.

    A copy under another name is its user's own.
    """
    if file.name != _RUN_FILE:
        return False
    return _RUN_WORDS in text[:_FIRST_LINES] or any(any(file.parent.glob(name)) for name in _BESIDE_SETTINGS)


def kept_text(path: Path) -> str | None:
    """Return the text of the settings in a run's folder, which may be somebody else's; ``None`` if there are none.

    Raises:
        ConfigError: If it is no text, too long, a link or no file.
    """
    return _config_text(path, named=False)


def _config_text(path: Path, *, named: bool) -> str | None:
    # A pipe of the shell's, as in <(...), and none that waits under a file's name for whoever reads it.
    piped = named and path.parts[:2] == ("/", "dev")
    file = UntrustedFile(path=path, most=_MOST_BYTES, error=ConfigError, linked=named, piped=piped)
    content = file.read()
    try:
        return None if content is None else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected text in UTF-8, got the byte 0x{error.object[error.start]:02x}") from None


def parse_config(
    text: str, *, source: str | os.PathLike[str], overrides: Sequence[str] = (), folder: Path | None = None
) -> ExperimentConfig:
    """Return the experiment that a text describes.

    Args:
        text: YAML.
        source: What to call it in messages: a file name. Its stem is the experiment's name, unless it has one.
        overrides: See :func:`load_config`.
        folder: Where the data file and the user's own modules are looked for; default: the source's folder.

    Raises:
        ConfigError: See :func:`load_config`.
    """
    place = Path(source)
    folder = place.parent if folder is None else folder
    document = Document(text, source=os.fspath(source))
    _write_out(document)
    for override in overrides:
        _override(document, override)
    document.tree.setdefault("name", place.stem)
    _find_data_files(document, folder)
    _take_hidden_from_top(document.tree.get("model"))
    exchange = _class_named("exchanges", document.tree.get("exchange", {"name": _SPLIT}), folder)
    attacks, defenses = (_check_hooks(document, kind, folder) for kind in HOOK_LISTS)
    _check_losses(document, defenses, exchange)
    _check_claims(document)
    _check_private_top(document, exchange)
    penalties = _check_penalties(document, exchange, folder)
    _check_one_way(document, exchange, folder)
    config = _validated(document, folder)
    _check_model(document, config.model, config.exchange.factory)
    _check_loss_of_model(document, config.model, config.exchange, config.train, defenses)
    _check_constructors(document, config.model, config.exchange, config.train)
    _check_scorer(document, config)
    _check_direction(document, config)
    _check_malicious(document, config)
    document.raise_problems()
    config._source, config._folder = document.source, folder
    for hook, found in zip((*config.attacks, *config.defenses), (*attacks, *defenses), strict=True):
        _with_found(hook, found)
    for name, party in config.parties.items():
        for penalty, found in zip(party.penalties, penalties[name], strict=True):
            _with_found(penalty, found)
    return config


def _check_malicious(document: Document, config: ExperimentConfig) -> None:
    """Report parties that cannot deviate."""
    if config.malicious and config.network is not None:
        text = (
            "a party that deviates over a network is no setting of its file; take out the section network to try it in "
            "one process"
        )
        document.report(("malicious",), text)
        return
    names = [config.active, *(name for name in config.parties if name != config.active)]
    for name in config.malicious:
        why = config.exchange.factory.why_not_malicious(name, active=config.active, names=names)
        if why:
            document.report(("malicious", name), why)


def classes_named(tree: Any) -> set[str]:
    """Return every text in settings that may name a class as ``module:Class``, in whatever form and at any depth."""
    if isinstance(tree, str):
        return {tree} if ":" in tree else set()
    if isinstance(tree, dict):
        return set().union(*map(classes_named, (*tree, *tree.values())))
    return set().union(*map(classes_named, tree)) if isinstance(tree, list | tuple) else set()


def config_to_yaml(config: ExperimentConfig) -> str:
    """Return the experiment as YAML with every default written out; :func:`parse_config` reads the same from it."""
    return to_yaml(config.model_dump(mode="json"))


def parse_defenses(text: str, *, folder: Path, source: str = "--defenses") -> list[list[HookConfig]]:
    """Return the choices of defenses that a command line lists.

    Choices are divided by commas. Each is ``none``, a name, a name with options as in ``sumkl(detection_error=0.3)``,
    or several of these joined by ``+``.

    Args:
        text: Such as ``"none,max-norm,isotropic(ratio=2)+rounding(decimals=3)"``.
        folder: Where the user's own modules are looked for.
        source: What to call the text in messages.

    Raises:
        ConfigError: If the text has another form, or a defense does not exist or does not take its options.
    """
    document = Document("{}", source=source)
    chosen: list[list[tuple[dict[str, Any], FoundHook | None]]] = []
    for choice in _divided(text, ","):
        hooks = [] if choice.strip() == "none" else [_hook_of(part.strip(), source) for part in _divided(choice, "+")]
        chosen.append([(hook, _check_hook(document, "defenses", (), hook, folder)) for hook in hooks])
    document.raise_problems()
    return [[_with_found(HookConfig(**hook), found) for hook, found in hooks] for hooks in chosen]


def parse_attacks(
    text: str, *, folder: Path, beside: Sequence[str] = (), source: str = "--attacks"
) -> list[Attack | str]:
    """Return new attacks that a command line lists by comma, some with options.

    Args:
        text: Such as ``"rcc2,gradient-inversion(steps=500)"``.
        folder: Where the user's own modules are looked for.
        beside: Names of what is no attack of the library; they are returned as they are.
        source: What to call the text in messages.

    Raises:
        ConfigError: If the text has another form, or an attack does not exist or does not take its options.
    """
    document = Document("{}", source=source)
    hooks = [_hook_of(part.strip(), source) for part in _divided(text, ",")]
    found = [None if _is_one(hook, beside) else _check_hook(document, "attacks", (), hook, folder) for hook in hooks]
    document.raise_problems()
    return [
        hook["name"] if one is None else _with_found(HookConfig(**hook), one).made("attacks", folder)
        for hook, one in zip(hooks, found, strict=True)
    ]


def _is_one(hook: Mapping[str, Any], names: Sequence[str]) -> bool:
    return hook["name"] in names and len(hook) == 1


def _with_found(hook: HookConfig, found: FoundHook | None) -> HookConfig:
    hook._found = found
    return hook


def _divided(text: str, mark: str) -> list[str]:
    """Split at a mark that is not inside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _hook_of(text: str, source: str) -> dict[str, Any]:
    form = re.fullmatch(r"([\w.:-]+)(?:\((.*)\))?", text)
    if form is None:
        raise ConfigError(f"{source}: expected none, a name, or name(option=value), got {shown(text)}")
    name, written = form.groups()
    hook: dict[str, Any] = {"name": name}
    for option in _divided(written, ",") if written else ():
        key = option.partition("=")[0].strip()
        if not key.isidentifier() or "=" not in option or key in hook:
            raise ConfigError(f"{source}: {name}: expected each option once, as option=value, got {shown(option)}")
        hook[key] = parse_override(option)[1]
    return hook


def _write_out(document: Document) -> None:
    """Replace short forms by what they are short for, and drop sections in which nothing is said."""
    tree = document.tree
    for key in [key for key, value in tree.items() if value is None]:
        del tree[key]
    for key in _NAMED_SECTIONS:
        tree.update({key: _named(tree[key])} if key in tree else {})
    if isinstance(tree.get("exchange"), dict):
        tree["exchange"] = {"name": _SPLIT, **tree["exchange"]}
    for kind in HOOK_LISTS:
        if isinstance(tree.get(kind), list):
            tree[kind] = [_named(hook) for hook in tree[kind]]
    if isinstance(tree.get("parties"), dict):
        for party in tree["parties"].values():
            if isinstance(party, dict) and "transform" in party:
                party["transform"] = _named(party["transform"])
            if isinstance(party, dict) and isinstance(party.get("penalties"), list):
                party["penalties"] = [_named(penalty) for penalty in party["penalties"]]
    if isinstance(tree.get("train"), dict):
        _write_out_training(document, tree["train"])


def _named(section: Any) -> Any:
    return {"name": section} if isinstance(section, str) else section


def _write_out_training(document: Document, train: dict[str, Any]) -> None:
    if "lr" in train:
        optimizer = _named(train.setdefault("optimizer", {}))
        if isinstance(optimizer, dict) and "lr" not in optimizer:
            train["optimizer"] = {**optimizer, "lr": train.pop("lr")}
            document.moved(("train", "lr"), ("train", "optimizer", "lr"))
        else:
            document.report(("train", "lr"), "short for train.optimizer.lr, which is given too; keep one")
            del train["lr"]
    for key, name in _OPTIMIZER_NAMES.items():
        section = _named(train.get(key))
        if isinstance(section, dict):
            train[key] = {"name": name, **section}
    if "loss" in train:
        train["loss"] = _named(train["loss"])


def _override(document: Document, text: str) -> None:
    try:
        keys, value = parse_override(text)
        document.assign(("train", "optimizer", "lr") if keys == ("train", "lr") else keys, value)
    except ConfigError as error:
        document.report_command_line(str(error))
    _write_out(document)


def _find_data_files(document: Document, folder: Path) -> None:
    """Make the paths of the data absolute, so that the settings kept with a run stay true."""
    parties = document.tree.get("parties")
    sections: dict[Place, Any] = {("data",): document.tree.get("data")}
    for name, party in parties.items() if isinstance(parties, dict) else ():
        sections[("parties", name)] = party
        sections[("parties", name, "transform")] = party.get("transform") if isinstance(party, dict) else None
    for place, section in sections.items():
        for key in ("path", "aligned", "matrix", "ranges"):
            if isinstance(section, dict) and isinstance(section.get(key), str):
                given = Path(section[key]).expanduser()
                places = [folder, Path.cwd()]
                if document.is_assigned((*place, key)):
                    places.reverse()
                candidates = [beside / given for beside in places]
                found = next(filter(_is_there, candidates), candidates[0])
                section[key] = os.path.abspath(found)
                if found.exists() and not (found.is_file() or found.is_dir()):
                    text = f"{found} is no file, but a pipe or a device, which may never end; name a file"
                    document.report((*place, key), text)


def _is_there(path: Path) -> bool:
    """Return whether there is a file or folder; of what lies in shards, any of them."""
    return any(path.parent.glob(path.name.replace(PLACEHOLDER, "*"))) if PLACEHOLDER in path.name else path.exists()


def _take_hidden_from_top(model: Any) -> None:
    if isinstance(model, dict) and model.get("name") == _MLP and isinstance(model.get("top"), list):
        model.setdefault("top_hidden", model["top"][:-1])


def _class_named(kind: PluginKind, section: Any, folder: Path) -> type[Any] | None:
    """Return what a section names, if there is such a thing; else it is reported elsewhere."""
    with suppress(ConfigError):
        if isinstance(section, dict) and isinstance(section.get("name"), str):
            found: type[Any] = resolve(kind, section["name"], folder=folder)
            return found
    return None


def _listed(hooks: Any) -> list[Any]:
    return hooks if isinstance(hooks, list) else []


def _check_hooks(document: Document, kind: Literal["attacks", "defenses"], folder: Path) -> list[FoundHook | None]:
    """Report what is wrong with hooks; return each, or ``None`` for those with which something is."""
    return _check_listed(document, kind, (kind,), document.tree.get(kind), folder)


def _check_listed(
    document: Document, kind: PluginKind, place: Place, hooks: Any, folder: Path
) -> list[FoundHook | None]:
    return [
        _check_hook(document, kind, (*place, index), hook, folder)
        # Anything else is not of the form of a hook, which the schema reports.
        if isinstance(hook, dict) and isinstance(hook.get("name"), str)
        else None
        for index, hook in enumerate(_listed(hooks))
    ]


def _check_penalties(
    document: Document, exchange: type[Exchange] | None, folder: Path
) -> dict[str, list[FoundHook | None]]:
    """Report what is wrong with the penalties of each party, where there is a place for any; return them by party."""
    parties, section = document.tree.get("parties"), document.tree.get("exchange")
    noise = isinstance(section, dict) and section.get("noise") is not None
    why = "" if exchange is None else exchange.refuses_penalties(noise=noise)
    found: dict[str, list[FoundHook | None]] = {}
    for name, party in parties.items() if isinstance(parties, dict) else ():
        penalties, place = party.get("penalties") if isinstance(party, dict) else None, ("parties", name, "penalties")
        if _listed(penalties) and why:
            document.report(place, why)
        found[name] = _check_listed(document, "penalties", place, penalties, folder)
    return found


def _check_losses(document: Document, defenses: Sequence[FoundHook | None], exchange: type[Exchange] | None) -> None:
    """Report losses that cannot be used: the file's, and those of label defenses, which come last among these."""
    train = document.tree.get("train")
    asked = isinstance(train, dict) and train.get("loss") is not None
    if asked and exchange is not None and exchange.sums_only:
        text = f"exchange {exchange.name} trains logistic regression, with its own loss; leave it out"
        document.report(("train", "loss"), text)
    before: str | None = None
    for index, defense in enumerate(defenses):
        if defense is None or defense.crossing != "labels":
            continue
        name = document.tree["defenses"][index]["name"]
        if before is not None:
            text = f"{before} computes the loss of what it answers, so that nothing can answer for labels after it"
            document.report(("defenses", index), f"{name}: {text}")
        if not defense.brings_loss:
            continue
        before = name
        if asked:
            text = "it computes the loss itself, and train.loss names another; leave one of them out"
            document.report(("defenses", index), f"{name}: {text}")
        if exchange is not None and exchange.sums_only:
            text = f"it computes the loss itself, and exchange {exchange.name} has its own; take exchange split for it"
            document.report(("defenses", index), f"{name}: {text}")


def _check_hook(
    document: Document, kind: PluginKind, place: Place, hook: Mapping[str, Any], folder: Path
) -> FoundHook | None:
    """Report what is wrong with a hook, and return it, or ``None``."""
    try:
        factory = resolve(kind, hook["name"], folder=folder)
    except ConfigError as error:
        document.report((*place, "name"), str(error))
        return None
    _check_at(document, kind, place, hook, factory)
    ours = ("name", "at", *(_OF_WEIGHED if kind == "penalties" else ()))
    options, problems = check_options(factory, {key: value for key, value in hook.items() if key not in ours})
    for inside, text in problems:
        document.report((*place, *inside), text)
    if problems:
        return None
    try:
        return FoundHook.tried(kind, factory, options)
    except (ConfigError, HookError) as error:
        document.report(place, f"{hook['name']}: {error}")
        return None


def _check_at(document: Document, kind: PluginKind, place: Place, hook: Mapping[str, Any], factory: type[Any]) -> None:
    if "at" not in hook:
        return
    if kind != "defenses" or crossing_of(factory) != "activation":
        others = {"attacks": "is an attack", "penalties": "is a penalty, and acts in training alone"}
        what = others.get(kind) or f"defends the {crossing_of(factory)}"
        document.report((*place, "at"), f"for defenses of the activation; {hook['name']} {what}")
        return
    try:
        _phases(hook["at"])
    except ValueError as error:
        document.report((*place, "at"), str(error))


def _check_claims(document: Document) -> None:
    """Report passive parties without columns; or, of data that were ingested, whatever was settled then."""
    data, parties = document.tree.get("data"), document.tree.get("parties")
    data = data if isinstance(data, dict) else {}
    ingested = data.get("name") == TABLES
    parties = parties if isinstance(parties, dict) else {}
    for name, party in parties.items():
        if not isinstance(party, dict):
            continue
        if ingested:
            _check_settled(
                document, ("parties", name), party, PartyConfig, but=("role", "address", "identity", "penalties")
            )
        elif party.get("path") is not None:
            _check_own_file(document, name, data, parties or {})
        elif party.get("role") == "passive" and party.get("columns", []) in ([], "") and "network" not in document.tree:
            text = (
                "a passive party needs columns: names and patterns, a share in (0, 1], or rest; or a file of its own: "
                "path (those of other parties are left out only where there is a section network)"
            )
            document.report(("parties", name), text)
    if ingested:
        _check_settled(document, ("data",), data, DataConfig, but=("name", "path"))


def _check_own_file(document: Document, name: str, data: Mapping[str, Any], parties: Mapping[str, Any]) -> None:
    """Report what does not go with a party's own file."""
    party = parties[name]
    if data.get("name") != "table":
        text = f"only for data: {{name: table}}; of {shown(data.get('name'))} the parties have columns"
        document.report(("parties", name, "path"), text)
    if data.get("path") is not None:
        document.report(("data", "path"), f"parties.{name}.path names a file of its own; keep one of the two")
    if party.get("columns", []) not in ([], "", REST):
        text = "a party with a file of its own holds all columns of it; leave this out, and see data.drop"
        document.report(("parties", name, "columns"), text)
    for other, theirs in parties.items() if "network" not in document.tree else ():
        if isinstance(theirs, dict) and theirs.get("path") is None:
            document.report(("parties", other), f"parties.{name} has a file of its own: path; {other} needs one too")


def _check_private_top(document: Document, exchange: type[Exchange] | None) -> None:
    """Report a private top in an exchange that trains none."""
    model = document.tree.get("model")
    asked = isinstance(model, dict) and model.get("private_top") is True
    if asked and exchange is not None and not exchange.has_private_top:
        document.report(("model", "private_top"), f"exchange {exchange.name} {NO_PRIVATE_TOP}")


def _check_one_way(document: Document, exchange: type[Exchange] | None, folder: Path) -> None:
    """Report defenses of what does not cross in an exchange that is one-way."""
    if exchange is None or not exchange.one_way:
        return
    for index, hook in enumerate(_listed(document.tree.get("defenses"))):
        found = _class_named("defenses", hook, folder)
        crossing = None if found is None else crossing_of(found)
        if crossing in ("gradient", "labels"):
            text = (
                f"{hook['name']} defends the {crossing}, and has nothing to defend in exchange one-way, where nothing "
                "comes back to a passive party; take it out, or take exchange split"
            )
            document.report(("defenses", index, "name"), text)


def _check_settled(
    document: Document, place: Place, given: Mapping[str, Any], section: type[Settings], *, but: tuple[str, ...]
) -> None:
    for key, field in section.model_fields.items():
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        # The settings that a run writes down hold every default.
        if key not in but and given.get(key, default) != default:
            document.report((*place, key), f"settled when {TABLES} were ingested; leave it out, or ingest them again")


def _validated(document: Document, folder: Path) -> ExperimentConfig:
    try:
        # As JSON, in which a list may become a tuple but, strictly, a truth value or a text never a number.
        config: ExperimentConfig | None = ExperimentConfig.model_validate_json(
            json.dumps(document.tree), context={"folder": folder}
        )
    except ValidationError as error:
        for detail in error.errors():
            place, text = _in_words(detail, document.tree)
            document.report(place, text)
        config = None
    document.raise_problems()
    assert config is not None, "what is invalid has a problem to tell"
    return config


def _check_model(document: Document, model: ModelSection, exchange: type[Exchange]) -> None:
    """Report what a model lacks, and a linear one where bottoms are never trained."""
    if model.factory.make_top is Recipe.make_top:
        text = (
            f"{model.name} has no make_top(columns, task, widths), which returns the active party's model; without it, "
            "it is no model of an experiment"
        )
        document.report(("model", "name"), text)
    if model.factory.is_linear and exchange.one_way:
        text = (
            "its top adds up the parties' logits, and in exchange one-way the passive parties' are never trained; take "
            "mlp (with top_hidden: [] its top is logistic regression over activations and own columns)"
        )
        document.report(("model", "name"), text)


def _check_loss_of_model(
    document: Document,
    model: ModelSection,
    exchange: ExchangeSection,
    train: TrainConfig,
    defenses: Sequence[FoundHook | None],
) -> None:
    """Report what has a loss besides the one that belongs to the model."""
    try:
        own = model.recipe.make_loss()
    except SplitVFLError:  # what its constructor objects to is reported there
        return
    if own is None:
        return
    name = model.name
    if train.loss is not None:
        document.report(("train", "loss"), f"model {name} brings its own loss, model.loss; leave this one out")
    if exchange.factory.sums_only:
        text = (
            f"it brings its own loss, and exchange {exchange.name} computes the gradient of another, the logistic one; "
            "take exchange split, or model logistic-regression"
        )
        document.report(("model", "name"), text)
    for index, defense in enumerate(defenses):
        if defense is not None and defense.brings_loss:
            text = f"it computes the loss itself, and model {name} brings another; leave one of them out"
            document.report(("defenses", index), f"{document.tree['defenses'][index]['name']}: {text}")


def _check_scorer(document: Document, config: ExperimentConfig) -> None:
    """Report a scorer that takes no part, and what keeps others than the label party from computing scores."""
    scorer, model = config.prediction.scores_by, config.model
    if scorer == ACTIVE:
        return
    place = ("prediction", "scores_by")
    passives = [name for name, party in config.parties.items() if party.role == "passive"]
    if scorer == config.active:
        document.report(place, f"{scorer} is the label party: write {ACTIVE}")
    elif scorer != COORDINATOR and scorer not in passives:
        text = f"expected {ACTIVE}, {COORDINATOR} or a passive party ({', '.join(passives)}), got {shown(scorer)}"
        document.report(place, text + suggestion(scorer, (ACTIVE, COORDINATOR, *passives)))
    if scorer == COORDINATOR and COORDINATOR in config.parties:
        text = f"so is called who computes the scores and has no data (prediction.scores_by: {COORDINATOR})"
        document.report(("parties", COORDINATOR), f"{text}; give the party another name")
    for wrong in _kept_from_scoring(model, config.exchange, config.train, config.network):
        document.report(place, f"{scorer} cannot compute the scores: {wrong}; or write {ACTIVE}")
    if not model.factory.is_linear:
        text = f"model {model.name} is not linear, and only parts of logits add up: take logistic-regression or glm"
        document.report(place, f"{scorer} cannot compute the scores: {text}; or write {ACTIVE}")


def _check_direction(document: Document, config: ExperimentConfig) -> None:
    """Report a direction of noise that nobody can send, or that nobody is named to send."""
    sender, model = config.prediction.direction_by, config.model
    place = ("prediction", "direction_by")
    if sender is None:
        return
    passives = [name for name, party in config.parties.items() if party.role == "passive"]
    if sender not in passives:
        text = f"expected a passive party ({', '.join(passives)}), got {shown(sender)}"
        document.report(place, text + suggestion(sender, passives))
    if not model.factory.is_linear:
        text = f"a direction of noise follows from the weights of a linear model, and {model.name} is none"
        document.report(place, f"{text}; take logistic-regression or glm, or leave it out")
    if config.scorer == config.active and not (config.network is None or config.network.publish_scores):
        text = f"{config.active} computes the scores and publishes none, so that nobody is told scores with noise"
        document.report(place, f"{text}; leave it out, or let another party compute the scores (prediction.scores_by)")


def _kept_from_scoring(
    model: ModelSection, exchange: ExchangeSection, train: TrainConfig, network: NetworkConfig | None
) -> Iterator[str]:
    """Yield why another one than the label party cannot compute scores, beside a model that is not linear."""
    if model.recipe.private_top:
        yield "model.private_top predicts, and is the label party's alone; leave it out"
    if exchange.wire is not None or train.autocast is not None:
        yield "it adds up parts in float32: leave exchange.wire and train.autocast out"
    if network is not None and network.publish_scores:
        yield "it answers the label party alone: leave network.publish_scores out"
    if getattr(exchange, "noise", None) is not None:
        yield (
            "exchange.noise calculates noise for what the passive parties send the label party, and nobody has "
            "calculated what the label party's own part of the logits tells; leave one of the two out"
        )


def _check_step(key: str, made: Any) -> None:
    """Try one step of an optimiser of ordinary weights, as the training will take it.

    Raises:
        ConfigError: If it takes none.
    """
    if key not in ("optimizer", "private_top_optimizer"):
        return
    try:
        made.step()
    except (AttributeError, RuntimeError, TypeError) as error:
        raise ConfigError(
            f"{type(made).__name__} cannot take a step of this training: {error}; take another"
        ) from error


def _to_try(section: NamedSection | None) -> NamedSection | None:
    """Return the settings of an optimiser that may object to them, or to a step.

    Those that come with splitvfl object to nothing that their annotations allow and that is of an ordinary size. To
    make one imports torch's compiler, which takes as long as torch.
    """
    if section is None or section.factory not in _OWN_OPTIMIZERS:
        return section
    numbers = [value for _, value in section if isinstance(value, int | float)]
    return None if all(abs(number) <= _ORDINARY for number in numbers) else section


def _check_constructors(document: Document, model: NamedSection, exchange: NamedSection, train: TrainConfig) -> None:
    """Report what the constructors of the model, the exchange, optimisers and the loss object to."""
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    weights = [weight]
    # One whose constructor asks for the largest batch is made when the data are there to say how many "all" are.
    unknown = train.batch_size == "all" and "rows" in arguments_of(exchange.factory)
    for place, section, given, supplied in (
        (("model",), model, (), {}),
        (("exchange",), None if unknown else exchange, (), {"rows": train.batch_size}),
        *((("train", key), _to_try(getattr(train, key)), (weights,), {}) for key in _OPTIMIZER_NAMES),
        (("train", "loss"), train.loss, (), {}),
    ):
        try:
            if section is not None:
                _check_step(place[-1], section.make(*given, **supplied))
        except ConfigError as error:
            document.report(place, str(error))


def _in_words(error: ErrorDetails, tree: Mapping[str, Any]) -> tuple[Place, str]:
    location, kind = error["loc"], error["type"]
    place = place_in(location, tree, may_be_absent=kind == "missing")
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return place, refusal(ExperimentConfig, location)
    return place, words(error)
