"""From the exchange section of an experiment to objects: the exchange, and the task with the loss that it can train."""

from __future__ import annotations

import math

from splitvfl.app.noise_plans import Plan, with_noise
from splitvfl.config.sections import ExchangeSection
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.paillier import EncryptedExchange
from splitvfl.exchange.roll_call import UNSIGNED, Vouching
from splitvfl.learning.losses import Loss
from splitvfl.learning.sigmoid_coefficients import largest_logit, logistic_loss
from splitvfl.learning.tasks import Task, task_for
from splitvfl.party.attaching import promises_of
from splitvfl.party.party import ActiveParty


def exchange_of(
    section: ExchangeSection, *, rows: int, noise: Plan | None = None, vouching: Vouching = UNSIGNED
) -> Exchange:
    """Return the exchange that a section describes.

    Args:
        section: The section.
        rows: Largest batch.
        noise: Noise that was calculated for it.
        vouching: Over a network: how the party proves that its keys are its own, and whose it takes.

    Raises:
        ConfigError: If its constructor objects.
    """
    exchange: Exchange = section.make(rows=rows, vouching=vouching)
    return exchange if noise is None else with_noise(exchange, noise)


def said_before(exchange: Exchange, active: ActiveParty, *, epochs: int) -> list[str]:
    """Return what a run says before its first step: what defenses promise, and which numbers an encrypted one can hold.

    Args:
        exchange: The exchange.
        active: The label party, with its defenses.
        epochs: How often each record is used.
    """
    promised = promises_of(active, epochs, own_part=exchange.own_part)
    shifted = [f"Scores are no probabilities: {why}." for why in (*active.learned_shifts, *active.published_shifts)]
    return [*promised, *shifted, *_limit_of_logits(exchange)]


def _limit_of_logits(exchange: Exchange) -> list[str]:
    """Say up to which logits an approximated sigmoid leaves residues that the agreed limit holds."""
    if not isinstance(exchange, EncryptedExchange) or exchange.approximation == "exact":
        return []
    limit, approximation = exchange.encryption.largest_value, exchange.approximation
    said = f"Exchange {exchange.name}, {approximation} sigmoid: "
    if exchange.hides_parts:
        return [
            f"{said}each party encrypts its part of the logits, the label party less 2 or plus 2, and value_limit "
            f"{limit:g} holds parts up to {limit:g}, of the label party up to {max(0.0, limit - 2):g}. A larger one "
            "ends the run: a smaller learning rate, shorter rows (model.row_norm) or a higher limit prevent that."
        ]
    most = largest_logit(limit, approximation=approximation)
    if math.isinf(most):
        return [f"{said}residues stay within 1 whatever the logits, and value_limit {limit:g} holds them."]
    return [
        f"{said}residues grow with logits, as those of the exact one do not, and value_limit {limit:g} holds them up "
        f"to a logit of {most:.3g}. A larger one may end the run: approximation exact or piecewise, a smaller learning "
        "rate, shorter rows (model.row_norm) or a higher limit prevent that."
    ]


def task_of(exchange: Exchange, name: str, classes: int, loss: Loss | None = None) -> Task:
    """Return the task, with the loss whose gradient the exchange computes unless another is given.

    Raises:
        ConfigError: If the exchange is for binary labels and these are others.
        ArgumentError: If the loss is.
    """
    if name != "binary" and exchange.sums_only:
        raise ConfigError(
            f"exchange {exchange.name} trains logistic regression, on labels 0 and 1; this is a {name} task: take "
            "exchange split for it"
        )
    if name == "binary" and loss is None:
        loss = logistic_loss(exchange.approximation)
    return task_for(name, classes, loss)
