"""From the exchange section of an experiment to objects: the exchange, and the task with the loss that it can train."""

from __future__ import annotations

from typing import Any

from splitvfl.app.noise import NoisePlan
from splitvfl.config.sections import ExchangeSection
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.roll_call import UNSIGNED, Vouching
from splitvfl.learning.losses import Loss
from splitvfl.learning.tasks import Task, task_for
from splitvfl.models import logistic_loss


def exchange_of(
    section: ExchangeSection, *, rows: int, noise: NoisePlan | None = None, vouching: Vouching = UNSIGNED
) -> Exchange:
    """Return the exchange that a section describes.

    Args:
        section: The section.
        rows: Largest batch.
        noise: What is added before encryption.
        vouching: Over a network: how the party proves that its keys are its own, and whose it takes.

    Raises:
        ConfigError: If its constructor objects.
    """
    supplied: dict[str, Any] = {"rows": rows, "vouching": vouching}
    if noise is not None and section.encryption.value_limit is None:
        supplied["encryption"] = section.encryption.model_copy(update={"value_limit": noise.value_limit})
    exchange: Exchange = section.make(**supplied)
    return exchange


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
