"""What exchanges of linear models share: whether a model is one, and the sum of residue times row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from splitvfl.data.columns import Records
from splitvfl.errors import ConfigError
from splitvfl.party import ActiveParty, PassiveParty


def weight_of(party: PassiveParty, exchange: str) -> nn.Parameter:
    """Return the one weight of a passive party's linear bottom, ``(1, d)``.

    Raises:
        ConfigError: If its bottom is anything else than one linear layer with one output and without an intercept, or
            it has categorical columns.
    """
    parameters = list(party.bottom.parameters())
    if "aggregated_gradient" not in party.shows or len(parameters) != 1 or parameters[0].shape[0] != 1:
        raise ConfigError(
            f"exchange {exchange} trains logistic regression: expected the bottom of {party.name} to be one linear "
            "layer with one output and no intercept, on numeric columns; choose model logistic-regression, and encode "
            "categorical columns as numbers"
        )
    return parameters[0]


def check_top(party: ActiveParty, exchange: str) -> None:
    """Check that the active party's top adds up logits, and that its task is binary.

    Raises:
        ConfigError: If it is not so.
    """
    if not hasattr(party.top, "active_logits") or party.task.name != "binary":
        raise ConfigError(
            f"exchange {exchange} trains logistic regression: expected a top that adds up logits (LinearTop) and a "
            f"binary task at {party.name}, got {type(party.top).__name__} and a {party.task.name} task"
        )


def columns_of(batch: Records) -> Tensor:
    """Return the numeric columns of a batch in double precision, ``(n, d)``."""
    return batch.columns.numeric.to(torch.float64)
