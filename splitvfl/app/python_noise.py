"""Noise for a trainer in Python: its objects are read as an experiment's file is, and the same noise is calculated."""

from __future__ import annotations

from collections.abc import Iterator

from splitvfl.app.batching import Batching
from splitvfl.app.noise_basis import Beside, NoiseBasis
from splitvfl.app.noise_plans import plan_for, with_noise
from splitvfl.errors import ConfigError
from splitvfl.exchange.noise import HdpNoiseSettings
from splitvfl.hooks import PHASES, crossing_of, hook_name, placed
from splitvfl.learning.glm_losses import GLMLoss
from splitvfl.learning.losses import ApproximateLogistic, Logistic
from splitvfl.learning.optimizers import ParameterFactory, plain_rate, projected_steps
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import Party
from splitvfl.run.calculated_noise import CalculatedNoise, Given

SOURCE = "Trainer (keys as in an experiment's file)"


def calculated(given: Given) -> CalculatedNoise:
    """Return the noise for what a trainer was given, and keep its parties' weights in the ball that it assumes.

    Raises:
        ConfigError: If the training is not one that the noise can be calculated for.
    """
    agreed = given.exchange.noise
    if isinstance(agreed, HdpNoiseSettings) and agreed.predictions is not None:
        raise ConfigError(
            f"{SOURCE}: exchange.noise.prediction_share: records that are scored later are counted in the folder of a "
            "run, by splitvfl predict, and nothing counts them here; leave it out, or train from a file"
        )
    plan = plan_for(_basis_of(given))
    assert plan is not None
    parties: list[Party] = [given.active, *given.passives.values()]
    for party in parties:
        try:
            plan.check(party.data, given.active.task)
        except ConfigError as error:
            raise ConfigError(f"{SOURCE}: {error}") from error
        if plan.radius is not None:
            party.keep_in_ball(plan.radius)
    return CalculatedNoise(
        exchange=with_noise(given.exchange, plan),
        defenses=plan.defenses(),
        account=plan.budget(),
        notes=tuple(plan.notes({party.name: party.data for party in parties})),
    )


def _basis_of(given: Given) -> NoiseBasis:
    active, passives, batches = given.active, given.passives, given.batches
    parties: list[Party] = [active, *passives.values()]
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
    usual = type(loss) is Logistic or (given.exchange.sums_only and isinstance(loss, ApproximateLogistic))
    return NoiseBasis(
        source=SOURCE,
        names=(active.name, *passives),
        exchange=given.exchange,
        batching=Batching.of(
            epochs=given.epochs,
            size=batches.batch_size,
            drop_last=batches.drop_last,
            records=active.data.train.count - batches.all_held_out,
            every=given.evaluate_every,
            tested=active.data.test.count,
        ),
        optimizer=_same_optimizer(parties),
        linear=True,
        private_top=active.private_top is not None,
        row_norm=max(_row_norm(party) for party in parties),
        intercept=_top_of(active).intercept.requires_grad,
        model_loss=of_model,
        own_loss=of_model is None and not usual,
        early_stopping=given.early_stopping,
        autocast=given.autocast,
        defenses=tuple(_beside(given)),
        fixed=given.fixed,
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


def _same_optimizer(parties: list[Party]) -> ParameterFactory:
    """Return what makes the parties' optimisers, which take the same steps."""
    factories = [party.dense_optimizer for party in parties]
    steps = {(projected_steps(one), plain_rate(one)) for one in factories}
    if len(steps) > 1:
        raise ConfigError(
            f"{SOURCE}: train.optimizer: noise is calculated for the same steps at every party, and "
            f"{' and '.join(party.name for party in parties)} take others; give all one optimiser"
        )
    return factories[0]


def _beside(given: Given) -> Iterator[Beside]:
    """Yield the defenses that were given, and those that parties have."""
    for defense, phases in map(placed, given.defenses):
        yield Beside(hook_name(defense), crossing_of(defense), phases)
    for party in (given.active, *given.passives.values()):
        for chain in party.chains().values():
            for defense in chain:
                yield Beside(hook_name(defense), chain.crossing, PHASES)
