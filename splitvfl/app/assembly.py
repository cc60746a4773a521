"""From a checked experiment file to the parts of its run, in one process or of one party over a network alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from splitvfl.app.exchanges import exchange_of, said_before, task_of
from splitvfl.app.label_horizon import LabelHorizon
from splitvfl.app.models import Models, own_code
from splitvfl.app.noise_plans import plan_of
from splitvfl.app.party_results import measurements_of, party_result
from splitvfl.app.transforms import transform_for
from splitvfl.config.registry import built_in
from splitvfl.config.sections import MOST_ROWS, ExperimentConfig
from splitvfl.data.columns import PartyData, TaskName
from splitvfl.data.sets import TABLES
from splitvfl.errors import ArgumentError, ConfigError, DataError
from splitvfl.exchange.roll_call import UNSIGNED, Vouching
from splitvfl.hooks import At, Attack, Crossing, Defense, Weighed, hook_name, placed
from splitvfl.leakage.canaries import check_canaries
from splitvfl.leakage.judging import task_name
from splitvfl.learning.batches import BLOCK_ROWS
from splitvfl.learning.defaults import suggested_batch_size
from splitvfl.learning.devices import choose_device
from splitvfl.learning.optimizers import (
    EMBEDDING_OPTIMIZERS,
    PerParameter,
    plain_rate,
    project_on_ball,
    rowwise_adagrad,
    steps_row_by_row,
)
from splitvfl.learning.precision import narrow_dtype
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.learning.tasks import Task, check_loss
from splitvfl.metrics import known
from splitvfl.party.attaching import (
    attach_defense,
    check_clips,
    claims_in_words,
    promised_in_short,
)
from splitvfl.party.party import SENDING, ActiveParty, Party, PassiveParty
from splitvfl.party.recipe import Recipe
from splitvfl.party.top_model import private_adam
from splitvfl.privacy.accounting import PrivacyBudget
from splitvfl.report.releases import Reserve
from splitvfl.report.summary import ExchangeTraits, RunSummary, SpentPrivacy
from splitvfl.run.plan import TrainingPlan
from splitvfl.run.training import Training
from splitvfl.team.team import Alone, Team

if TYPE_CHECKING:
    from splitvfl.crypto.engine import Engine


class Assembly:
    """What the runs of an experiment are put together from: resolved once, built where it is used.

    Args:
        config: The experiment, or the file of one of its parties.
        data: Any party's data: they have equally many records.
        vouching: Over a network: how the party proves that its keys are its own, and whose it takes.
        team: The workers of the party, of which this process is one; ``None``: it is the only one.

    Attributes:
        exchange: How a step is talked through.
        batch_size: Records in a step.
        models: What makes the parties' models.
        noise: Noise that was calculated for a privacy loss, if there is any.

    Raises:
        ConfigError: If the training is not one that the noise was calculated for, or tables cannot be divided.
    """

    def __init__(
        self, config: ExperimentConfig, data: PartyData, *, vouching: Vouching = UNSIGNED, team: Team | None = None
    ) -> None:
        train = config.train
        self._config = config
        self.batch_size = train.rows(data.training_records)
        self.noise = plan_of(config, data)
        self._data: dict[str, PartyData] = {data.name: data}
        self.exchange = exchange_of(config.exchange, rows=self.batch_size, noise=self.noise, vouching=vouching)
        own_optimizer = train.embedding_optimizer is not None
        self._workers = (team or Alone()).size
        dividing = self._dividing(team or Alone())
        self.models = Models(config.model, self.exchange, own_optimizer=own_optimizer, team=dividing)

    def _dividing(self, team: Team) -> Team:
        """Return the workers among which tables may be divided.

        Raises:
            ConfigError: If tables, or other weights, are to be divided, and cannot be.
        """
        source, recipe = self._config.source, self._config.model.recipe
        tables, named = recipe.tables, self._config.train.embedding_optimizer
        asked = [key for key in ("tables", "dense") if getattr(recipe, key) == "sharded"]
        if asked:
            try:
                self.exchange.check_shards(2)
            except ConfigError as error:
                raise ConfigError(
                    f"{source}: model.{asked[0]}: sharded: weights are divided among workers, of which a party here "
                    f"can have one: {error}"
                ) from error
        if recipe.dense == "sharded" and self.exchange.in_flight:
            raise ConfigError(
                f"{source}: model.dense: sharded: not with exchange.in_flight, where a batch is learned from at the "
                "weights that it was computed with, which nobody has as a whole; leave one of them out"
            )
        if named is None or steps_row_by_row(named.make):
            return team
        if tables == "sharded":
            raise ConfigError(
                f"{source}: train.embedding_optimizer: nothing says that {named.name} moves each row of a table by "
                "that row's gradients alone, and model.tables: sharded divides rows among workers; take one of "
                f"{', '.join(EMBEDDING_OPTIMIZERS)}, give it an attribute row_by_row = True, or leave model.tables out"
            )
        return Alone()

    @property
    def recipe(self) -> Recipe:
        """The recipe of the parties' models."""
        return self._config.model.recipe

    @property
    def epochs(self) -> int:
        """How often every training record is met."""
        return self._config.train.epochs

    @property
    def partners(self) -> int:
        """How many partners the label party has."""
        return len(self._config.parties) - 1

    def named_defenses(self, crossing: Crossing) -> list[str]:
        """Return the names of the file's defenses of one kind of message, each once."""
        found = [hook.name for hook, one in self._config.found_defenses if one.crossing == crossing]
        return list(dict.fromkeys(found))

    @property
    def rows_here(self) -> str:
        """Which rows of tables this process holds, in words, where they may be divided."""
        team = self.models.team
        divided = team.size > 1 and self._config.model.recipe.tables != "replicated"
        return f"{team.rank} mod {team.size}" if divided else "all"

    def dense_here(self, team: Team) -> str:
        """Which part of its bottom's dense weights a worker holds, in words."""
        divided = team.size > 1 and self._config.model.recipe.dense == "sharded"
        return f"part {team.rank} of {team.size}" if divided else "all"

    def task(self, name: str, classes: int) -> Task:
        """Return the task, with the loss that the file asks for.

        Args:
            name: Its name.
            classes: Number of classes, if there are any.

        Raises:
            ConfigError: If the exchange or the loss is for other labels.
        """
        loss, of_model = self._config.train.loss, self._config.model.recipe.make_loss()
        try:
            task = task_of(self.exchange, name, classes, of_model if loss is None else loss.make())
            if loss is not None:
                check_loss(task)
            return task
        except ArgumentError as error:
            key = "train.loss" if of_model is None else "model.loss"
            raise ConfigError(f"{self._config.source}: {key}: {error}") from error

    # --- parties

    def passive(self, data: PartyData, task: Task, *, seed: int | None) -> PassiveParty:
        """Return a passive party, its first weights drawn with a seed, or from entropy without one."""
        self._check_noise(data, task)
        data = self._transformed(data)
        with _first_weights(seed, data.name):
            bottom = self.models.bottom(data, task)
            party = PassiveParty(
                self.models.bounded(data), bottom, optimizer=self._optimizer(), penalties=self._penalties(data.name)
            )
            party.penalties.check_draws(f"{self._config.source}: model")
            # On one record. Here, because layers that wait for their first input draw their weights now.
            with own_code(f"model: the bottom of {data.name}, {type(bottom).__name__},"):
                if not _is_built_in(bottom):
                    party.output_width()
            self._keep_in_ball(party)
        party.weights.divides = self._config.model.recipe.dense == "sharded"
        if party.weights.divides and self._workers > 1:
            self._check_dividable(party)
        return party

    def _penalties(self, name: str) -> list[Weighed]:
        """Return new penalties of a passive party, each with its weight."""
        return [hook.made("penalties", self._config.folder) for hook in self._config.parties[name].penalties]

    def _check_dividable(self, party: PassiveParty) -> None:
        """Refuse a bottom whose dense weights are to be divided and cannot be, before anybody is met."""
        from splitvfl.team.sharded_dense import check_dividable  # takes half as long to import as all of torch

        try:
            check_dividable(party.module)
        except ArgumentError as error:
            raise ConfigError(f"{self._config.source}: model.dense: sharded: {party.name}: {error}") from error

    def _check_noise(self, data: PartyData, task: Task) -> None:
        self._data[data.name] = data
        if self.noise is not None:
            try:
                self.noise.check(data, task)
            except ConfigError as error:
                raise ConfigError(f"{self._config.source}: {error}") from error

    def _keep_in_ball(self, party: Party) -> None:
        """Take first weights into the ball in which every step leaves them."""
        if self.noise is not None and self.noise.radius is not None:
            project_on_ball([weight for weight in party.module.parameters() if weight.requires_grad], self.noise.radius)

    def _transformed(self, data: PartyData) -> PartyData:
        """Return a passive party's data with the transform that the file asks for, drawn anew if it is by chance."""
        chosen = self._config.parties[data.name].transform
        if chosen is None:
            return data
        try:
            return data.with_transform(transform_for(chosen, data))
        except (ArgumentError, DataError) as error:
            raise ConfigError(f"{self._config.source}: parties.{data.name}.transform: {error}") from error

    def active(self, data: PartyData, task: Task, widths: Sequence[int], *, seed: int | None) -> ActiveParty:
        """Return the active party, as :meth:`passive`; ``widths`` are those of the activations, in the file's order."""
        self._check_noise(data, task)
        with _first_weights(seed, data.name):
            top = self.models.top(data, task, widths)
        with _first_weights(seed, data.name, "private top"):
            private_top = self.models.private_top(data, task, widths)
        party = ActiveParty(
            self.models.bounded(data),
            top,
            private_top=private_top,
            private_optimizer=None if private_top is None else self._optimizer(private=True),
            task=task,
            optimizer=self._optimizer(),
        )
        self._keep_in_ball(party)
        return party

    def _optimizer(self, *, private: bool = False) -> PerParameter:
        """Return what makes a party's optimiser: of its sparse tables, if it has any, and of everything else."""
        train = self._config.train
        private_top, tables = train.private_top_optimizer, train.embedding_optimizer
        top = private_adam if private_top is None else private_top.make
        own = train.optimizer.make
        if self.noise is not None and self.noise.radius is not None:
            own = partial(own, radius=self.noise.radius)
        return PerParameter(
            dense=top if private else own,
            embeddings=rowwise_adagrad if tables is None else tables.make,
        )

    def check_private_top(self) -> None:
        """Refuse an optimiser for a private top where there is none.

        Raises:
            ConfigError: If there is one.
        """
        config = self._config
        if config.train.private_top_optimizer is not None and not config.model.recipe.private_top:
            raise ConfigError(
                f"{config.source}: train.private_top_optimizer: there is no private top; write model.private_top: "
                "true, or leave it out"
            )

    def check_batch_size(self, records: int) -> None:
        """Refuse batches that are larger than the training part, in words that say whose number it is.

        Args:
            records: Training records; those that early stopping holds out are in no batch.

        Raises:
            ConfigError: If they are.
        """
        train, size, records = self._config.train, self.batch_size, self._config.train.batched(records)
        if records < 1:
            return
        source = f"{self._config.source}: train.batch_size"
        if size > MOST_ROWS:
            raise ConfigError(
                f"{source}: all training records are {size}, and a batch, which is in memory as a whole, has at most "
                f"{MOST_ROWS}; set a number"
            )
        if size > records:
            default = "" if "batch_size" in train.model_fields_set else ", which is the default"
            raise ConfigError(
                f"{source}: expected 1 to {records}, the number of training records, got {size}{default}; set "
                f"train.batch_size, to {suggested_batch_size(records)} for example, or write batch_size: all, which "
                "makes one batch of all of them"
            )

    @property
    def block_rows(self) -> int:
        """Neighbouring records that are shuffled as one."""
        return self._config.train.block_rows or (BLOCK_ROWS if self._config.data.name == TABLES else 1)

    @cached_property
    def plan(self) -> TrainingPlan:
        """What the training is, the same in one process and at each party over a network.

        Raises:
            ConfigError: If it is to run on a device that is not here.
        """
        config, train = self._config, self._config.train
        return TrainingPlan(
            exchange=self.exchange,
            epochs=train.epochs,
            batch_size=self.batch_size,
            drop_last=train.drop_last,
            block_rows=self.block_rows,
            shards=config.shards,
            seed=train.seed,
            noise_seed_for_experiments=train.noise_seed_for_experiments,
            known_positives=config.known_positives,
            known_negatives=config.known_negatives,
            audit=config.audited,
            canaries=config.canaries,
            checkpoint_every=train.checkpoint_every_steps,
            evaluate_every=train.evaluate_every_epochs,
            early_stopping=train.early_stopping,
            device=choose_device(train.device),
            autocast=narrow_dtype(train.autocast),
            wire=narrow_dtype(config.exchange.wire),
        )

    @property
    def rate(self) -> float | None:
        """The learning rate of a party's logistic regression, if it descends the gradient as it is."""
        return plain_rate(self._config.train.optimizer.make) if self._config.model.recipe.is_linear else None

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss is the usual one of the exchange, of which a residue's sign is its record's label."""
        return self._config.train.loss is None and self._config.model.recipe.make_loss() is None

    @property
    def telling_rate(self) -> float | None:
        """The same, if a residue's sign is its record's label: of the usual loss, where nobody adds noise."""
        config = self._config
        return None if config.defenses or not self.has_own_loss or self.noise is not None else self.rate

    def agreed_horizon(self, records: int, task: TaskName | None) -> LabelHorizon | None:
        """Return what any party can know of until which step signs tell labels; ``None`` where nothing is known.

        A passive party need not know the task.
        """
        recipe, rate = self._config.model.recipe, self.telling_rate
        may_tell = task == "binary" or (task is None and self.exchange.sums_only)
        if rate is None or recipe.row_norm is None or not may_tell:
            return None
        return LabelHorizon.agreed(rate, recipe, self.exchange.approximation, len(self._config.parties), records)

    # --- hooks

    def attacks(self) -> list[Attack]:
        """Return new attacks: those of the file, and that of a party which deviates."""
        made = [hook.made("attacks", self._config.folder) for hook in self._config.attacks]
        listed = {hook_name(one) for one in made}
        deviations = [name for name in dict.fromkeys(self._config.malicious.values()) if name not in listed]
        return [*made, *(built_in("attacks")[name]() for name in deviations)]

    def malicious(self) -> dict[str, Engine]:
        """Return what parties compute with that deviate, by name."""
        return {name: built_in("attacks")[deviation].engine() for name, deviation in self._config.malicious.items()}

    def defenses(self) -> list[Defense | At]:
        """Return new defenses in their order, the calculated noise last."""
        named = [hook.made("defenses", self._config.folder) for hook in self._config.defenses]
        return [*named, *([] if self.noise is None else self.noise.defenses())]

    def defend(self, party: Party) -> None:
        """Attach the defenses of a party's own messages; those of other parties are theirs to attach.

        Raises:
            ConfigError: If one was made for other labels than the task's.
            PrivacyError: If nothing bounds a message that is to be bounded.
        """
        seed = self._config.train.noise_seed_for_experiments
        for number, (defense, phases) in enumerate(map(placed, self.defenses())):
            attach_defense(party, defense, number=number, noise_seed=seed, phases=phases)
        self.check_clips(party)

    def check_clips(self, party: Party) -> None:
        """Hold a party to the bounds that are agreed on; see :func:`splitvfl.party.attaching.check_clips`."""
        agreed = self._config.exchange
        check_clips(party, activation=agreed.activation_clip, gradient=agreed.gradient_clip)

    def check_canaries(self) -> None:
        """Refuse canaries that nobody could look for.

        Raises:
            ConfigError: If there are to be any.
        """
        config, exchange = self._config, self.exchange
        if config.canaries is None and not config.audit_twin:
            return
        try:
            check_canaries(audit=config.audited, exchange=exchange.name, read=exchange.shows_gradients())
        except ConfigError as error:
            key = "twin" if config.audit_twin else "canaries"
            raise ConfigError(f"{config.source}: audit.{key}: {error}") from error

    def noise_notes(self) -> list[str]:
        """Return what is to be said of calculated noise, of the parties that are here."""
        return [] if self.noise is None else self.noise.notes(self._data)

    def budget(self) -> PrivacyBudget | None:
        """Return a new account of what a run spends, ``None`` where nothing is promised of all its messages."""
        return None if self.noise is None else self.noise.budget()

    @property
    def reserve(self) -> Reserve | None:
        """What calculated noise puts by for predictions after the training."""
        return None if self.noise is None else self.noise.reserve

    # --- the finished run

    def summary(
        self,
        run: Training,
        active: ActiveParty,
        *,
        data: str,
        epoch_steps: int,
        more: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        notes: Sequence[str] = (),
        partners: Iterable[Party] = (),
    ) -> RunSummary:
        """Return a finished run in numbers.

        Args:
            run: The run.
            active: Its active party.
            data: Name of the data.
            epoch_steps: Steps of an epoch.
            more: By passive party what is known of it beside the figures of attacks, as :class:`PartyResult` takes it.
            notes: Sentences about the run, before those of the attacks.
            partners: Parties whose defenses are known beside those of the active party.
        """
        config, train, task, watch = self._config, self._config.train, active.task, run.watch
        figures = run.kept if active.weights.best.in_use else run.figures
        told = self.plan.known_records(active)
        parties = [active, *partners]
        added = [] if self.noise is None else [self.noise.name]
        return RunSummary(
            name=config.name,
            data=data,
            task=task_name(task.classes),
            model=config.model.name,
            defenses=[*map(str, config.defenses), *added],
            exchange=config.exchange.name,
            exchange_traits=ExchangeTraits.of(config.exchange.factory),
            notes=[
                *self.noise_notes(),
                *run.spent(),
                *run.exchange_notes,
                *_private_top_notes(active),
                *said_before(self.exchange, active, epochs=train.epochs),
                *active.notes,
                *(note for party in parties if isinstance(party, PassiveParty) for note in party.penalties.notes),
                *notes,
                *watch.notes,
            ],
            claims=claims_in_words(parties),
            promised=promised_in_short(parties, epochs=train.epochs, own_part=self.exchange.own_part),
            seed=train.seed,
            epochs=run.step // epoch_steps,
            planned_epochs=train.epochs if train.early_stopping else None,
            kept_epoch=run.kept_epoch,
            validation_metric=known(figures.get(f"validation/{active.judged_by}", math.nan)),
            sending_metric=known(figures.get(f"test/{SENDING}{task.metric}", math.nan)),
            steps=run.step,
            batch_size=self.batch_size,
            metric=task.metric,
            test_metric=known(figures[f"test/{task.metric}"]),
            test_loss=known(figures["test/loss"]),
            step_ms=known(run.step_ms),
            known_positives=told["known_positives"],
            known_negatives=told["known_negatives"],
            parties={
                name: party_result(run, active, self.exchange, name, epochs=train.epochs, more=more.get(name, {}))
                for name in watch.leaks
            },
            label_owner=active.name,
            label_releases=[release.name for release in active.label_releases],
            measurements=measurements_of(run, active.name),
            canaries=watch.worst_canaries,
            private_top=active.private_top is not None,
            goal=config.goal,
            solvable=list(run.solvable),
            privacy=[] if run.account is None else [SpentPrivacy.of(*each) for each in run.account.everything()],
        )


def _is_built_in(model: nn.Module) -> bool:
    return type(model).__module__.startswith("splitvfl.")


def _first_weights(seed: int | None, *name: str) -> PartyRandom:
    """Return what first weights are drawn under.

    Without a seed that is entropy: a partner who knew them could compute what they were multiplied with.
    """
    if seed is None:
        return PartyRandom.entropic(torch.device("cpu"))
    return PartyRandom(derive_seed(seed, "initialisation", *name))


def _private_top_notes(party: ActiveParty) -> list[str]:
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
