"""Noise for a trainer in Python: its objects are read as an experiment's file is, and the same noise is calculated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from splitvfl.app.batching import Batching
from splitvfl.app.noise_basis import Beside, NoiseBasis
from splitvfl.app.noise_plans import plan_for, with_noise
from splitvfl.errors import ConfigError
from splitvfl.exchange.noise import HdpNoiseSettings
from splitvfl.hooks import PHASES, At, Defense, crossing_of, hook_name, placed
from splitvfl.learning.glm_losses import GLMLoss
from splitvfl.learning.losses import ApproximateLogistic, Logistic
from splitvfl.learning.optimizers import ParameterFactory, plain_rate, projected_steps
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.privacy.accounting import PrivacyBudget
from splitvfl.run.plan import TrainingPlan

SOURCE = "Trainer (keys as in an experiment's file)"


class PlannedNoise(NamedTuple):
    """A training with noise that was calculated for it.

    Attributes:
        plan: What it is, with the noise that is agreed on.
        defenses: Those that were given, then the noise, each for the party that it belongs to.
        account: What a run spends; ``None``: nothing is counted.
        notes: What is protected, from whom, by what, and what is not covered, in sentences.
    """

    plan: TrainingPlan
    defenses: Sequence[Defense | At]
    account: PrivacyBudget | None
    notes: tuple[str, ...]


def calculated(
    training: TrainingPlan,
    active: ActiveParty,
    passives: Mapping[str, PassiveParty],
    defenses: Sequence[Defense | At],
) -> PlannedNoise:
    """Return the noise for what a trainer was given, and keep its parties' weights in the ball that it assumes.

    Args:
        training: What the training is; its exchange says what was agreed on noise.
        active: The label party.
        passives: The others by name.
        defenses: What else changes messages.

    Raises:
        ConfigError: If the training is not one that the noise can be calculated for.
    """
    exchange, agreed = training.exchange, training.exchange.noise
    exchange.check_shards(training.shards)
    if isinstance(agreed, HdpNoiseSettings) and agreed.predictions is not None:
        raise ConfigError(
            f"{SOURCE}: exchange.noise.prediction_share: records that are scored later are counted in the folder of a "
            "run, by splitvfl predict, and nothing counts them here; leave it out, or train from a file"
        )
    parties: list[Party] = [active, *passives.values()]
    plan = plan_for(_basis_of(training, active, parties, tuple(_beside(defenses, parties))))
    assert plan is not None
    for party in parties:
        try:
            plan.check(party.data, active.task)
        except ConfigError as error:
            raise ConfigError(f"{SOURCE}: {error}") from error
        if plan.radius is not None:
            party.weights.keep_in_ball(plan.radius)
    return PlannedNoise(
        plan=replace(training, exchange=with_noise(exchange, plan)),
        defenses=[*defenses, *plan.defenses()],
        account=plan.budget(),
        notes=tuple(plan.notes({party.name: party.data for party in parties})),
    )


def _basis_of(
    training: TrainingPlan, active: ActiveParty, parties: Sequence[Party], beside: tuple[Beside, ...]
) -> NoiseBasis:
    batches, epochs = training.batches(active.data), training.noise_epochs
    assert epochs is not None, "else no noise is calculated"
    for party in parties:
        _check_model(party)
    loss = active.task.loss
    of_model = loss if isinstance(loss, GLMLoss) else None
    if of_model is None and active.task.name != "binary":
        raise ConfigError(
            f"{SOURCE}: noise is calculated for labels of two classes, and {active.name} has a task of another kind, "
            f"{active.task.name}; take labels of two classes, or for numbers model glm with one of its losses for them "
            "and target_clip"
        )
    # Under encryption the exchange computes residues by its own approximation, whatever the loss says.
    usual = type(loss) is Logistic or (training.exchange.sums_only and isinstance(loss, ApproximateLogistic))
    return NoiseBasis(
        source=SOURCE,
        names=tuple(party.name for party in parties),
        exchange=training.exchange,
        batching=Batching.of(
            epochs=epochs,
            size=batches.batch_size,
            drop_last=batches.drop_last,
            records=active.data.train.count - batches.all_held_out,
            every=training.evaluate_every,
            tested=active.data.test.count,
        ),
        optimizer=_same_optimizer(parties),
        linear=True,
        private_top=active.private_top is not None,
        row_norm=max(_row_norm(party) for party in parties),
        intercept=_top_of(active).intercept.requires_grad,
        model_loss=of_model,
        own_loss=of_model is None and not usual,
        early_stopping=training.early_stopping is not None,
        autocast=training.autocast is not None,
        defenses=beside,
        fixed=training.noise_seed_for_experiments is not None,
    )


def _check_model(party: Party) -> None:
    """Refuse a model of which the noise does not know what one row moves."""
    if type(party.module) is LinearTop:
        own = party.module.own
        weights = [] if own is None else list(own.parameters())
        if all(weight.requires_grad for weight in weights) and (
            party.module.intercept.requires_grad or not bool(party.module.intercept.any())
        ):
            return
    elif type(party.module) is Linear and party.module.bias is None and party.module.weight.requires_grad:
        return
    raise ConfigError(
        f"{SOURCE}: model: noise is calculated for splitvfl.models.Linear(columns, 1) without a bias at passive "
        f"parties, and splitvfl.models.LinearTop at the label party, all of whose weights learn; {party.name} has "
        f"{type(party.module).__name__}; take model logistic-regression or glm"
    )


def _top_of(party: Party) -> LinearTop:
    assert isinstance(party.module, LinearTop)
    return party.module


def _row_norm(party: Party) -> float:
    norms = [part.row_norm for part in (party.data.train, party.data.test)]
    if None in norms:
        raise ConfigError(
            f"{SOURCE}: model.row_norm: noise is calculated for rows of bounded norm, and nothing bounds those of "
            f"{party.name}: make the party of data.with_row_norm(1.0), which scales longer rows down to it"
        )
    return max(norm for norm in norms if norm is not None)


def _same_optimizer(parties: Sequence[Party]) -> ParameterFactory:
    """Return what makes the parties' optimisers, which take the same steps."""
    factories = [party.weights.dense_optimizer for party in parties]
    steps = {(projected_steps(one), plain_rate(one)) for one in factories}
    if len(steps) > 1:
        raise ConfigError(
            f"{SOURCE}: train.optimizer: noise is calculated for the same steps at every party, and "
            f"{' and '.join(party.name for party in parties)} take others; give all one optimiser"
        )
    return factories[0]


def _beside(defenses: Sequence[Defense | At], parties: Sequence[Party]) -> Iterator[Beside]:
    """Yield the defenses that were given, and those that parties have."""
    for defense, phases in map(placed, defenses):
        yield Beside(hook_name(defense), crossing_of(defense), phases)
    for party in parties:
        for chain in party.chains().values():
            for defense in chain:
                yield Beside(hook_name(defense), chain.crossing, PHASES)
