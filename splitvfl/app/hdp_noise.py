"""HDP-VFL: from what parties agree on (ε, δ) to the noise of split training, and to what is to be said of it.

Source: *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*, algorithm 1 and theorem 2,
with receivers that clip what they use, as its proof needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from splitvfl.config.sections import ExchangeSection, ExperimentConfig
from splitvfl.data import PartyData
from splitvfl.data.learned_columns import learned_columns
from splitvfl.defenses import CoefficientNoise, GaussianIR
from splitvfl.errors import ArgumentError, ConfigError, PrivacyError
from splitvfl.exchange.noise import HdpNoiseSettings
from splitvfl.exchange.receiver_clips import ReceiverClips
from splitvfl.hooks import At, Defense, Phase
from splitvfl.learning.optimizers import ProjectedSteps, projected_steps
from splitvfl.learning.tasks import Task
from splitvfl.models.glm_losses import GLMLoss, LogisticLoss, LossConstants
from splitvfl.party.own_part import OwnPart
from splitvfl.privacy import (
    GaussianEvaluations,
    GaussianMessages,
    HdpTraining,
    PrivacyBudget,
    gaussian_mu,
    hdp_sensitivity,
)
from splitvfl.privacy.accounting import Own
from splitvfl.privacy.gaussian_dp import gaussian_mu_delta
from splitvfl.privacy.sampling import GRID_BITS, discrete_gaussian
from splitvfl.report.releases import Reserve
from splitvfl.report.rows import counted

_TRAINING: Phase = "training"
_EVALUATION: Phase = "evaluation"
_PREDICTION: Phase = "prediction"
# Records of which it is looked up whether one is there twice; more of them were ingested, where none is.
_LOOKED_UP = 1 << 24
# Parties compare noise, and their machines may round differently: so many digits, rounded up, for it is a promise.
_DIGITS = 8
# The grid of the noise, at most, in standard deviations; it is a power of two.
_GRID = 2.0**-GRID_BITS


@dataclass(frozen=True)
class Stream:
    """What one party sends in a training, and the noise on it.

    Attributes:
        sensitivity: How far one changed row moves all of it, in L2.
        sigma: Standard deviation of the noise on each number.
        delta: The δ that this is at the agreed ε, all told.
        numbers: How many numbers it sends.
        clip: The largest of them, before noise; or half of the farthest that two can be apart.
        evaluations: What it sends for evaluations, where that has noise.
        predictions: What it sends for predictions after the training, likewise.
    """

    sensitivity: float
    sigma: float
    delta: float
    numbers: float
    clip: float
    evaluations: Stream | None = None
    predictions: Stream | None = None

    @property
    def mu(self) -> float:
        """How hard the two are to tell apart: as N(0, 1) from N(μ, 1)."""
        return math.hypot(self.sensitivity / self.sigma + self.rounding, *(one.mu for one in self._besides.values()))

    @property
    def _besides(self) -> Mapping[str, Stream]:
        found = {"evaluations": self.evaluations, "predictions": self.predictions}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def rounding(self) -> float:
        """What rounding to the grid of the noise, before it, adds to μ at most."""
        return _GRID * math.sqrt(self.numbers)

    @property
    def unmatched(self) -> float:
        """What is added to δ because noise beyond some size is never drawn, by the number."""
        return discrete_gaussian(self.sigma).unmatched(2.0 * self.clip)

    def delta_at(self, epsilon: float) -> float:
        """Return the δ that this is at an ε."""
        return min(1.0, gaussian_mu_delta(self.mu, epsilon) + self.missing)

    @property
    def missing(self) -> float:
        """What is added to δ because noise beyond some size is never drawn, of all numbers."""
        return self.numbers * self.unmatched + math.fsum(one.missing for one in self._besides.values())

    def with_sigma(self, sigma: float) -> Stream:
        """Return it with another noise, and that of evaluations and predictions in proportion."""
        besides: dict[str, Any] = {
            name: replace(one, sigma=one.sigma * (sigma / self.sigma)) for name, one in self._besides.items()
        }
        return replace(self, sigma=sigma, **besides)

    def rounded_up(self) -> Stream:
        """Return it with noise of so few digits that all parties find the same."""
        besides: dict[str, Any] = {name: one.rounded_up() for name, one in self._besides.items()}
        return replace(self, sigma=rounded_up(self.sigma), **besides)


@dataclass(frozen=True)
class HdpPlan:
    """Who adds how much noise to what it sends, and on what that rests.

    Attributes:
        settings: What was agreed.
        names: The parties, the label party first.
        training: How long, in batches of how many, and how often it is evaluated.
        steps: The optimiser's.
        loss: The loss.
        constants: Its bounds, for logits as large as parties' parts can be together.
        norm: Largest norm of a row of numbers.
        intercept: Whether the label party learns one, which is a column of ones.
        own_part: What the label party's own weights learn from.
        passive: What a passive party sends.
        active: What the label party sends.
        label: The same, where a label changes and no column.
        ends: Steps that are taken: all, unless the budget for given noise ends before.
        fixed: Whether noise is drawn from a fixed seed.
        recursions: How far one row of a ``"passive"`` and of the ``"active"`` party moves what it sends, and one
            ``"label"``.
    """

    settings: HdpNoiseSettings
    names: tuple[str, ...]
    training: Batching
    steps: ProjectedSteps
    loss: GLMLoss
    constants: LossConstants
    norm: float
    intercept: bool
    own_part: OwnPart
    passive: Stream
    active: Stream
    label: Stream
    ends: int
    fixed: bool
    recursions: Mapping[str, HdpTraining]

    fixed_seeds = False

    @property
    def name(self) -> str:
        """What it is called beside a run's figures."""
        agreed = self.settings
        return f"hdp-vfl(epsilon={agreed.epsilon:g}, delta={agreed.delta:g}, {self._kind})"

    @property
    def _kind(self) -> str:
        return "given noise" if self.settings.is_budget else self.settings.calibration

    @property
    def radius(self) -> float:
        """Largest norm of a party's weights."""
        return self.settings.radius

    @property
    def clips(self) -> ReceiverClips:
        """What receivers clip before use: to what is longest without noise."""
        return ReceiverClips(activation=self.radius * self.norm, coefficient=self.constants.lipschitz)

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party, by the names under which it is compared."""
        return {
            **{f"noise: {name}": value for name, value in self.settings.model_dump().items()},
            "noise: parties": sorted(self.names),
            "noise: loss": self.loss.name,
            "noise: intercept": self.intercept,
            "noise of the active party": self.active.sigma,
            "noise of a passive party": self.passive.sigma,
            "noise of an evaluation": None if self.passive.evaluations is None else self.passive.evaluations.sigma,
            "noise of a prediction": None if self.passive.predictions is None else self.passive.predictions.sigma,
        }

    def supplied(self, section: ExchangeSection) -> Mapping[str, Any]:
        """Return what receivers clip."""
        return {"receiver_clips": self.clips}

    def defenses(self) -> list[Defense | At]:
        """Return the noise as defenses: at every passive party, and at the label party, of one draw for all."""
        part, derivative = self.radius * self.norm, self.constants.lipschitz
        streams = {
            _TRAINING: self.passive,
            _EVALUATION: self.passive.evaluations,
            _PREDICTION: self.passive.predictions,
        }
        return [
            *(At(GaussianIR(clip=part, sigma=one.sigma), phase) for phase, one in streams.items() if one is not None),
            CoefficientNoise(sigma=self.active.sigma, clip=derivative, scale=1.0, one_draw=True),
        ]

    def check(self, data: PartyData, task: Task) -> None:
        """Refuse data or a task for which the noise was not calculated.

        Raises:
            ConfigError: If labels are of another task; a record is there twice, or stands in for another.
        """
        if task.name != self.loss.labels:
            raise ConfigError(
                f"exchange.noise: it was calculated for the {self.loss.name} loss of {self.loss.labels} labels, and "
                f"this is a {task.name} task: take model: {{name: glm, loss: ...}} with a loss of its labels"
            )
        check_used_once(data, "exchange.noise")

    def notes(self, parties: Mapping[str, PartyData]) -> list[str]:
        """Return the statement: what is protected, from whom, by what, and what is not covered."""
        return [
            self._what(),
            self._for_passive(),
            self._for_active(),
            *self._generator(),
            *self._not_covered(parties),
            *self._warnings(),
        ]

    def budget(self) -> PrivacyBudget:
        """Return the account of a run: what each step costs, whatever the noise was calculated from."""
        active, *passives = self.names
        own: dict[Own, HdpTraining] = {"row": self.recursions["active"], "label": self.recursions["label"]}
        streams: list[GaussianMessages | GaussianEvaluations] = [
            _messages(active, passives, own, self.active),
            *(_messages(name, [active], {"row": self.recursions["passive"]}, self.passive) for name in passives),
            *(shown for name in passives for shown in self._shown_by(name, active)),
        ]
        agreed = self.settings
        return PrivacyBudget(
            streams,
            self.training.steps,
            agreed.delta,
            # Calculated noise is enough for all steps, but for the textbook's, which says what it lacks.
            epsilon=agreed.epsilon if agreed.is_budget else None,
            records=self.training.records,
        )

    def _shown_by(self, name: str, active: str) -> Iterator[GaussianEvaluations]:
        """Yield what a passive party's evaluations cost, and its predictions: all that are planned, made or not."""
        shape, sent, planned = self.training, self.passive, self.settings.predictions
        for shown, records, after in (
            (sent.evaluations, shape.tested, shape.evaluated_after),
            (sent.predictions, planned or 0, (shape.steps,)),
        ):
            if shown is not None:
                yield GaussianEvaluations(
                    name,
                    (active,),
                    self.recursions["passive"],
                    shown.sigma,
                    records,
                    after,
                    grid=_GRID,
                    unmatched=shown.unmatched,
                )

    @property
    def reserve(self) -> Reserve | None:
        """What is put by for predictions after the training; ``None`` where nothing is."""
        put_by, records = self.passive.predictions, self.settings.predictions
        if put_by is None or records is None:
            return None
        return Reserve(records=records, sigma=put_by.sigma, clip=self.radius * self.norm)

    # --- the statement

    def _what(self) -> str:
        agreed, shape = self.settings, self.training
        return (
            f"HDP-VFL noise ({self._kind}) for ε {agreed.epsilon:g} and δ {agreed.delta:g} over {self._length} of "
            f"{shape.described}: σ "
            f"{self.passive.sigma:.3g} on each passive party's part of the logits, clipped to "
            f"{self.clips.activation:g} (sensitivity {self.passive.sensitivity:.4g}), σ {self.active.sigma:.3g} on the "
            f"label party's derivatives, clipped to {self.clips.coefficient:g} (sensitivity "
            f"{self.active.sensitivity:.4g}). Receivers clip what they use to the same; each party's weights stay in a "
            f"ball of radius {self.radius:g}."
        )

    @property
    def _length(self) -> str:
        shape = self.training
        if self.ends == shape.steps:
            return f"{counted(shape.epochs, 'epoch')}, {counted(shape.steps, 'step')}"
        return f"{counted(self.ends, 'step')}, where all parties end, of {shape.steps:,} in {shape.epochs:,} epochs,"

    def _for_passive(self) -> str:
        active, *passives = self.names
        others = "the others" if len(passives) > 1 else active
        return (
            f"One record's row at {_either(passives)}, changed in any way: all that the party sends in the training is "
            f"({self.settings.epsilon:g}, {self.passive.delta:.3g})-differentially private, towards {others}"
            f"{', all of them together' if len(passives) > 1 else ''}."
        )

    def _for_active(self) -> str:
        active, *passives = self.names
        together = (
            f"{_all(passives)} together, who are sent one draw of the noise" if len(passives) > 1 else passives[0]
        )
        outsider = math.hypot(self.active.mu, *(self.passive.mu for _ in passives))
        label = success(self.label.mu)
        return (
            f"One record's row and label at {active}, changed in any way: all that {active} sends is "
            f"({self.settings.epsilon:g}, {self.active.delta:.3g})-differentially private, towards {together}; what it "
            f"learns from {'exact derivatives' if self.own_part == 'exact' else 'what it sent'} is counted. A label "
            f"alone, all else known, is told right at most {label:.1%} of the time, if neither is commoner. An "
            f"outsider who reads every message, and doubts between two rows of a record at every party, is right at "
            f"most {success(outsider):.1%} of the time."
        )

    def _not_covered(self, parties: Mapping[str, PartyData]) -> list[str]:
        found = [line for name, data in parties.items() if (line := _columns_of(name, data))]
        found += [self._evaluations(), *self._predictions()]
        found.append(
            "Not covered: the trained weights, predictions and scores, if they are shown to anyone"
            f"{'' if self.reserve is None else ' beyond those that noise is put by for'}; settings that were "
            "chosen by results; who is in the aligned records; several records of one person, which cost as many times "
            "as much; other runs over the same records, such as one that is started anew; that sums and products are "
            "rounded, in floating point; and parties that do not keep to the protocol, but for what receivers clip."
        )
        if self.fixed:
            found.append("Not covered: anything, from whoever knows the fixed seed that the noise was drawn from.")
        else:
            found.append(
                "Not covered: anything, from whoever reads the folder of a party's run: the key of its noise is there."
            )
        return found

    def _evaluations(self) -> str:
        shown, shape = self.passive.evaluations, self.training
        if shown is None:
            return shape.evaluations
        return (
            f"Not covered: rows of test records. In {counted(shape.evaluated, 'evaluation')} their parts of the logits "
            f"have noise of σ {shown.sigma:.3g}, which hides what one training row does to a passive party's weights, "
            f"and is counted ({self.settings.evaluation_share:.3g} of μ²); figures on test records are of noisy parts."
        )

    def _predictions(self) -> Iterator[str]:
        if (put_by := self.reserve) is not None:
            yield (
                f"Not covered: rows of records that are scored after training. Of up to {put_by.records:,} of them, "
                f"counted each time, parts of the logits have noise of σ {put_by.sigma:.3g}, which hides what one "
                "training row does to a passive party's weights, and is counted "
                f"({self.settings.prediction_share:.3g} of μ², used or not); splitvfl predict refuses more. Scores, if "
                "they are published, are not covered."
            )

    def _generator(self) -> list[str]:
        if self.fixed:
            return []
        rounding = max(self.passive.rounding, self.active.rounding)
        missing = max(stream.missing for stream in (self.passive, self.active))
        return [
            "Noise is discrete Gaussian, from AES-256 in counter mode under keys of the operating system. In ε and δ "
            f"is counted that numbers are rounded to its grid before (up to {rounding:.2g} of μ), and that none beyond "
            f"13 σ is drawn (up to {missing:.2g} of δ)."
        ]

    def _warnings(self) -> list[str]:
        agreed, found = self.settings, []
        for what, stream in (("a passive party", self.passive), ("the label party", self.active)):
            if stream.delta > agreed.delta * (1 + 1e-6):
                found.append(
                    f"Not covered as asked: at ε {agreed.epsilon:g} the textbook's noise of {what} has a δ of "
                    f"{stream.delta:.3g}, not {agreed.delta:g}; calibration: tight has it."
                )
        if agreed.epsilon < agreed.delta:
            found.append("ε is below δ: what is promised is decided by δ alone, and could be had without any ε.")
        if agreed.delta >= 1 / self.training.records:
            found.append(
                f"δ {agreed.delta:g} is not below one over the {self.training.records:,} training records: a mechanism "
                "that publishes one of them whole would keep such a promise."
            )
        if agreed.epsilon > 10:
            found.append(f"ε {agreed.epsilon:g} is above 10: it promises next to nothing.")
        return found


def check_used_once(data: PartyData, key: str) -> None:
    """Refuse records that are used more often than once an epoch.

    Args:
        data: A party's data.
        key: The setting whose noise was calculated for records that are not.

    Raises:
        ConfigError: If a record is there twice, or stands in for another.
    """
    if data.train.real is not None:
        raise ConfigError(
            f"{key}: it was calculated for records that are used once an epoch, and dummies of the padded "
            f"alignment repeat records of {data.name}; align without padding"
        )
    ids = data.train.ids
    if len(ids) <= _LOOKED_UP and len(ids.unique()) < len(ids):
        raise ConfigError(
            f"{key}: it was calculated for records that are used once an epoch, and an id is there twice among the "
            f"training records of {data.name}"
        )


def success(mu: float) -> float:
    """Return how often N(0, 1) and N(μ, 1) are told apart rightly at most, at even odds: ``Φ(μ/2)``."""
    return 0.5 * math.erfc(-mu / math.sqrt(8))


def _messages(
    sender: str, receivers: list[str], trainings: Mapping[Own, HdpTraining], stream: Stream
) -> GaussianMessages:
    return GaussianMessages(sender, tuple(receivers), trainings, stream.sigma, grid=_GRID, unmatched=stream.unmatched)


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _all(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _columns_of(name: str, data: PartyData) -> str:
    learned = learned_columns(data)
    if learned is None:
        return (
            f"Not covered: how {name}'s columns became numbers, which is not known here; if it depends on statistics "
            "of the records, every row depends on all of them."
        )
    if not learned:
        return ""
    shown = ", ".join(learned[:5]) + (f" and {len(learned) - 5} more" if len(learned) > 5 else "")
    return (
        f"Not covered: statistics of training records, by which columns of {name} were encoded ({shown}), so that "
        "every row depends on all records; give their public bounds (data.ranges), and categories as numbers."
    )


@dataclass(frozen=True)
class Batching:
    """How long a training is, and in batches of how many.

    Attributes:
        epochs: How often each record is used.
        each: Batches in an epoch.
        size: Records in a batch.
        last: Records in the last batch of an epoch.
        records: Training records.
        evaluated: How often it is evaluated.
        every: Epochs from one evaluation to the next.
        tested: Test records.
    """

    epochs: int
    each: int
    size: int
    last: int
    records: int
    evaluated: int
    every: int
    tested: int

    @classmethod
    def of(cls, config: ExperimentConfig, records: int, tested: int) -> Batching:
        """Return that of an experiment."""
        train, size = config.train, config.train.rows(records)
        each = max(1, records // size) if train.drop_last else math.ceil(records / size)
        # Everybody knows the order: a record may be known to sit in the smaller last batch.
        last = size if train.drop_last else records - (each - 1) * size
        evaluated = math.ceil(train.epochs / train.evaluate_every_epochs)
        return cls(train.epochs, each, size, last, records, evaluated, train.evaluate_every_epochs, tested)

    @property
    def evaluated_after(self) -> tuple[int, ...]:
        """After how many steps it is evaluated, each time."""
        epochs = {*range(self.every, self.epochs + 1, self.every), self.epochs}
        return tuple(epoch * self.each for epoch in sorted(epochs))

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * self.each

    @property
    def described(self) -> str:
        """How many records are in a batch, in words."""
        last = "" if self.last == self.size else f" (the last of each epoch {self.last})"
        return f"{self.size} records{last}"

    @property
    def evaluations(self) -> str:
        """What evaluations give away, in a sentence."""
        when = (
            "the evaluation after the last epoch"
            if self.evaluated == 1
            else f"{self.evaluated} evaluations, {self.evaluated - 1} of them before the end "
            "(train.evaluate_every_epochs)"
        )
        return (
            f"Not covered: {when}, for which test records cross without this noise; the label party solves them for a "
            "passive party's weights, which depend on its training records."
        )


# --- what it is calculated from


def hdp_plan(config: ExperimentConfig, settings: HdpNoiseSettings, data: PartyData) -> HdpPlan:
    """Return the noise of an experiment in exchange split.

    Args:
        config: The experiment.
        settings: What was agreed.
        data: Any party's data: they have equally many records.

    Raises:
        ConfigError: If the training is not one that noise can be calculated for.
    """
    shares: dict[Phase, float] = {_EVALUATION: settings.evaluation_share, _PREDICTION: settings.prediction_share}
    _check_training(config, counted_phases=(_TRAINING, *(phase for phase, share in shares.items() if share)))
    norm, intercept = _checked_rows(config)
    steps = _checked_steps(config, settings.radius)
    loss = _loss_of(config)
    names = (config.active, *(name for name in config.parties if name != config.active))
    # The intercept is a column of ones, and its weight in the ball.
    own_norm = math.hypot(norm, 1.0) if intercept else norm
    try:
        reach = settings.radius * (own_norm + (len(names) - 1) * norm)
        constants = loss.bounded_constants(reach, 1.0 if loss.labels == "binary" else math.inf)
    except (ArgumentError, PrivacyError) as error:
        raise ConfigError(f"{config.source}: model: {error}") from error
    batching = Batching.of(config, data.train.count, data.test.count)
    common: dict[str, Any] = {
        "steps_per_epoch": batching.each,
        "batch_size": batching.size,
        "last_batch": batching.last,
        "eta": steps.lr,
        "k": settings.radius,
        "lipschitz": constants.lipschitz,
        "weight_decay": steps.weight_decay,
    }
    own: dict[str, Any] = {
        "beta_theta": constants.beta_theta,
        "beta_y": constants.beta_y,
        "k_y": _largest_target(loss, constants),
        "step": _exact_range(loss, constants, settings.radius * own_norm),
        # The proximal factor leaves an intercept alone.
        "proximal_l2": 0.0 if intercept else steps.l2,
        "row_norm": own_norm,
    }
    try:
        passive = HdpTraining(party="passive", **common, proximal_l2=steps.l2, row_norm=norm)
        active = HdpTraining(party="active", **common, **own)
        label = HdpTraining(party="active", **common, **own, changed="label")
    except ArgumentError as error:
        raise ConfigError(f"{config.source}: train.optimizer.lr: {error}") from error
    try:
        streams = [
            _stream(settings, training, batching, clip)
            for training, clip in ((passive, settings.radius * norm), (active, constants.lipschitz))
        ]
    except PrivacyError as error:
        raise ConfigError(f"{config.source}: exchange.noise: {error}") from error
    sent = streams[1]
    plan = HdpPlan(
        settings=settings,
        names=names,
        training=batching,
        steps=steps,
        loss=loss,
        constants=constants,
        norm=norm,
        intercept=intercept,
        own_part=config.exchange.own_part,
        passive=streams[0],
        active=sent,
        label=replace(sent, sensitivity=label.sensitivity(batching.steps)),
        ends=batching.steps,
        fixed=config.train.noise_seed_for_experiments is not None,
        recursions={"passive": passive, "active": active, "label": label},
    )
    return _until_overspent(plan, config) if settings.is_budget else plan


def _until_overspent(plan: HdpPlan, config: ExperimentConfig) -> HdpPlan:
    """Return the plan of given noise, as far as its budget goes."""
    budget, agreed = plan.budget(), plan.settings
    last, train = budget.last_step, config.train
    if not last:
        raise ConfigError(
            f"{config.source}: exchange.noise: no step fits: one with so little noise spends more than ε "
            f"{agreed.epsilon:g} at δ {agreed.delta:g}; take larger active_sigma and passive_sigma, or leave them out, "
            "and they are calculated"
        )
    begun = math.ceil(last / plan.training.each)

    def taken(stream: Stream, of: str) -> Stream:
        recursion = plan.recursions[of]
        moved, numbers = recursion.sensitivity(last), float(recursion.numbers(last).sum())
        return replace(stream, sensitivity=moved, numbers=numbers)

    return replace(
        plan,
        training=replace(plan.training, evaluated=math.ceil(begun / train.evaluate_every_epochs)),
        passive=taken(plan.passive, "passive"),
        active=taken(plan.active, "active"),
        label=taken(plan.label, "label"),
        ends=last,
    )


def _check_training(config: ExperimentConfig, *, counted_phases: tuple[Phase, ...]) -> None:
    train, source = config.train, config.source
    if config.exchange.receiver_clips is not None:
        raise ConfigError(
            f"{source}: exchange.receiver_clips: exchange.noise sets what receivers clip, by its radius and the loss; "
            "leave it out"
        )
    if train.early_stopping is not None:
        raise ConfigError(
            f"{source}: train.early_stopping: it looks at true labels and at activations without noise, and what ends "
            "the training is seen by all; with exchange.noise the number of epochs is fixed: leave it out"
        )
    if train.autocast is not None:
        raise ConfigError(
            f"{source}: train.autocast: bounds on which exchange.noise rests are of float32; leave it out"
        )
    for index, hook in enumerate(config.defenses):
        crossing = hook.found("defenses", config.folder).crossing
        changes = any(phase in hook.phases for phase in counted_phases)
        if crossing in ("gradient", "labels") or (crossing == "activation" and changes):
            raise ConfigError(
                f"{source}: defenses.{index}: {hook.name} changes what crosses in training, and exchange.noise is "
                "calculated for what the loss and the models send; leave it out"
                + (" (or give it at: [evaluation, prediction])" if crossing == "activation" else "")
            )


def _checked_rows(config: ExperimentConfig) -> tuple[float, bool]:
    """Return the largest norm of a row of numbers, and whether the label party learns an intercept beside."""
    recipe, source = config.model.recipe, config.source
    if not recipe.is_linear or recipe.private_top:
        key = "model.private_top" if recipe.private_top else "model"
        raise ConfigError(
            f"{source}: {key}: exchange.noise is calculated for one linear layer at every party; take "
            "logistic-regression or glm, without private_top"
        )
    if recipe.row_norm is None:
        raise ConfigError(
            f"{source}: model.row_norm: exchange.noise is calculated for rows of bounded norm; with row_norm: 1.0 "
            "longer rows are scaled down to it"
        )
    return recipe.row_norm, bool(getattr(recipe, "intercept", True))


def _checked_steps(config: ExperimentConfig, radius: float) -> ProjectedSteps:
    source = f"{config.source}: train.optimizer"
    steps = projected_steps(config.train.optimizer.make)
    if steps is None:
        raise ConfigError(
            f"{source}: exchange.noise is calculated for steps along the gradient of one batch; take sgd without "
            "momentum, or proximal-sgd"
        )
    if steps.radius not in (None, radius):
        raise ConfigError(
            f"{source}.radius: exchange.noise.radius is {radius:g}, and here it is {steps.radius:g}; leave it out here"
        )
    return steps


def _loss_of(config: ExperimentConfig) -> GLMLoss:
    if config.train.loss is not None:
        raise ConfigError(
            f"{config.source}: train.loss: exchange.noise is calculated for the logistic loss, or for that of model "
            "glm, which all parties know; leave it out"
        )
    own = config.model.recipe.make_loss()
    if own is None:
        return LogisticLoss()
    if not isinstance(own, GLMLoss):
        raise ConfigError(f"{config.source}: model: no bounds are known of the loss {type(own).__name__}; take glm")
    return own


def _largest_target(loss: GLMLoss, constants: LossConstants) -> float:
    """Return the largest label; where nothing bounds it, one from which on the derivative is bounded by L alone."""
    if loss.labels == "binary":
        return 1.0
    return constants.lipschitz / constants.beta_y if loss.target_clip is None else loss.target_clip


def _exact_range(loss: GLMLoss, constants: LossConstants, reach: float) -> float:
    """Return how far a changed row and label can move one derivative, given what the others sent."""
    # Of the logistic loss it is largest where the others' parts add up to nothing.
    return min(constants.span, 1.0 + math.tanh(reach / 2.0)) if isinstance(loss, LogisticLoss) else constants.span


def _stream(settings: HdpNoiseSettings, training: HdpTraining, batching: Batching, clip: float) -> Stream:
    epsilon, delta = settings.epsilon, settings.delta
    # Of given noise the account says how far it goes, by the same recursion.
    tight = settings.calibration == "tight"
    moved = training.sensitivity(batching.steps) if tight else _published(training, batching)
    whole = Stream(moved, moved, delta, float(training.numbers(batching.steps).sum()), clip)
    if training.party == "passive":
        whole = _with_releases(whole, training, batching, settings)
    given = settings.passive_sigma if training.party == "passive" else settings.active_sigma
    if given is not None:
        return replace(whole, sigma=given)
    if settings.calibration == "published":
        sigma = math.sqrt(2.0 * math.log(1.25 / delta)) * moved / epsilon
    else:
        sigma = least_sigma(whole, epsilon, delta)
    found = whole.with_sigma(rounded_up(sigma)).rounded_up()
    return replace(found, delta=max(delta, found.delta_at(epsilon)))


def _with_releases(whole: Stream, training: HdpTraining, batching: Batching, settings: HdpNoiseSettings) -> Stream:
    """Return a passive party's messages with those of evaluations and predictions, whose noise takes shares of μ²."""
    shares: dict[str, tuple[float, int, tuple[int, ...]]] = {}
    if settings.evaluation_share and batching.tested:
        shares["evaluations"] = settings.evaluation_share, batching.tested, batching.evaluated_after
    if settings.predictions is not None:
        shares["predictions"] = settings.prediction_share, settings.predictions, (batching.steps,)
    left = 1.0 - math.fsum(share for share, _, _ in shares.values())
    besides: dict[str, Any] = {}
    for name, (share, records, after) in shares.items():
        farthest = [training.moved(steps) for steps in after]
        moved = math.sqrt(records * math.fsum(each**2 for each in farthest))
        # Δ / σ of training is √left of μ, and this √share.
        sigma = whole.sigma * (moved / whole.sensitivity) * math.sqrt(left / share)
        numbers = float(records * len(farthest))
        besides[name] = Stream(moved, sigma, whole.delta, numbers, min(whole.clip, max(farthest) / 2))
    return replace(whole, **besides)


def least_sigma(stream: Stream, epsilon: float, delta: float) -> float:
    """Return the least noise with which a stream is (ε, δ)-private, rounding and all that the noise is not included."""
    if gaussian_mu_delta(stream.rounding, epsilon) >= delta:
        raise PrivacyError(
            f"rounding {stream.numbers:,.0f} numbers to the grid of the noise spends more than ε {epsilon:g} at δ "
            f"{delta:g}, however large the noise is; take a larger epsilon or delta, or fewer epochs"
        )
    # No less than an exact Gaussian would take, to which little is to be added.
    low = math.log(stream.sensitivity / gaussian_mu(epsilon=epsilon, delta=delta))
    high, step = low, 1e-6
    while stream.with_sigma(math.exp(high)).delta_at(epsilon) > delta:
        low, high, step = high, high + step, 2.0 * step
    while high - low > 1e-12:
        middle = 0.5 * (low + high)
        enough = stream.with_sigma(math.exp(middle)).delta_at(epsilon) <= delta
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def _published(training: HdpTraining, batching: Batching) -> float:
    """Return the sensitivity as published, which knows neither penalties nor balls, and batches of one size only.

    It is for rows of norm 1. A row of R x with weights w is one of x with weights R w, whose steps are R² as long.
    """
    norm = training.row_norm
    own = {name: getattr(training, name) for name in ("beta_theta", "beta_y", "k_y")}
    return hdp_sensitivity(
        training.party,
        steps=batching.steps,
        epochs=batching.epochs,
        batch_size=min(batching.size, batching.last),
        eta=training.eta * norm**2,
        k=training.k * norm,
        lipschitz=training.lipschitz,
        **(own if training.party == "active" else {}),
    )


def rounded_up(sigma: float) -> float:
    """Return a noise in so many digits that machines which round differently find the same, never below it."""
    unit = 10.0 ** (math.floor(math.log10(sigma)) - _DIGITS + 1)
    return float(f"{math.ceil(sigma / unit) * unit:.{_DIGITS - 1}e}")
