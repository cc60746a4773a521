"""The training that noise is calculated for: of an experiment's file, or of the objects of a trainer in Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from splitvfl.app.batching import Batching
from splitvfl.claims import not_applying
from splitvfl.config.sections import ExperimentConfig
from splitvfl.data.columns import PartyData
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import Crossing, Phase
from splitvfl.learning.losses import Loss
from splitvfl.learning.optimizers import ParameterFactory
from splitvfl.learning.tasks import Task
from splitvfl.party.party import label_releases_of


def void_for_labels(parties: Iterable[PartyData], task: Task) -> str:
    """Return why nothing is guaranteed of a label over the whole run, as far as this is known; empty if it is.

    Early stopping is refused where noise is calculated.

    Args:
        parties: Data of the parties that this process has.
        task: The task that noise was calculated for.
    """
    found = [release for data in parties for release in label_releases_of(data, task)]
    return not_applying(tuple(dict.fromkeys(found)))


class Beside(NamedTuple):
    """A defense beside the noise.

    Attributes:
        name: Its name.
        crossing: The message that it changes.
        phases: When it acts.
    """

    name: str
    crossing: Crossing
    phases: tuple[Phase, ...]


@dataclass(frozen=True, kw_only=True)
class NoiseBasis:
    """A training, as far as noise is calculated from it.

    Attributes:
        source: Where it is described, for errors: keys that these name are those of an experiment's file.
        names: The parties, the label party first.
        exchange: The exchange, with what was agreed on noise.
        batching: How long it is, in batches of how many, and how often it is evaluated.
        optimizer: Makes every party's optimiser.
        linear: Whether each party has one linear layer.
        private_top: Whether the label party has a private top.
        row_norm: Largest norm of a row of numbers of each party; ``None``: any.
        intercept: Whether the label party learns an intercept.
        model_loss: The loss that the model brings; ``None``: the usual one of the task.
        own_loss: Whether the label party trains on another.
        early_stopping: Whether it decides by labels when training ends.
        autocast: Whether models run in fewer bits.
        defenses: What else changes messages, in its order.
        fixed: Whether noise is drawn from a fixed seed.
    """

    source: str
    names: tuple[str, ...]
    exchange: Exchange
    batching: Batching
    optimizer: ParameterFactory
    linear: bool
    private_top: bool
    row_norm: float | None
    intercept: bool
    model_loss: Loss | None
    own_loss: bool
    early_stopping: bool
    autocast: bool
    defenses: tuple[Beside, ...]
    fixed: bool

    @classmethod
    def of_file(cls, config: ExperimentConfig, data: PartyData) -> NoiseBasis:
        """Return that of an experiment.

        Args:
            config: The experiment.
            data: Any party's data: they have equally many records.
        """
        train, recipe, records = config.train, config.model.recipe, data.train.count
        size = train.rows(records)
        return cls(
            source=config.source,
            names=(config.active, *(name for name in config.parties if name != config.active)),
            exchange=config.exchange.make(rows=size),
            batching=Batching.of(
                epochs=train.epochs,
                size=size,
                drop_last=train.drop_last,
                records=train.batched(records),
                every=train.evaluate_every_epochs,
                tested=data.test.count,
            ),
            optimizer=train.optimizer.make,
            linear=recipe.is_linear,
            private_top=recipe.private_top,
            row_norm=recipe.row_norm,
            intercept=bool(getattr(recipe, "intercept", True)),
            model_loss=recipe.make_loss(),
            own_loss=train.loss is not None,
            early_stopping=train.early_stopping is not None,
            autocast=train.autocast is not None,
            defenses=tuple(
                Beside(hook.name, hook.found("defenses", config.folder).crossing, hook.phases)
                for hook in config.defenses
            ),
            fixed=train.noise_seed_for_experiments is not None,
        )
