"""What the label party's own weights learn from: residues as they are, or as they were sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.errors import ConfigError, PrivacyError
from splitvfl.party.party import ActiveParty

OwnPart = Literal["exact", "sent"]
"""``"exact"``: from residues before their defenses. ``"sent"``: from what passive parties are sent, so that a label
moves nothing but through that."""


def check_own_part(party: ActiveParty, own_part: OwnPart, exchange: str) -> None:
    """Check that the label party's model can learn from what is sent, where it is to.

    Raises:
        ConfigError: If its model does not add up logits.
    """
    if own_part == "sent" and not hasattr(party.top, "active_logits"):
        raise ConfigError(
            f"exchange {exchange}: own_part: sent needs a model that adds up logits at {party.name} (model "
            f"logistic-regression), whose own weights can learn from what is sent; got {type(party.top).__name__}"
        )


def set_own(party: ActiveParty, weight: Tensor, intercept: Tensor) -> None:
    """Set the gradients of a linear top: of its own layer ``(m, d)``, if it has one, and of its intercept ``(m,)``."""
    layer, constant = party.top.own, party.top.intercept
    if layer is not None:
        layer.weight.grad = weight.reshape(layer.weight.shape).to(layer.weight)  # type: ignore[union-attr, arg-type]
    if constant.requires_grad:
        constant.grad = intercept.reshape(constant.shape).to(constant)  # type: ignore[arg-type]


def learn_from_sent(party: ActiveParty, gradients: Mapping[str, Tensor], batch: Records) -> None:
    """Let the label party's own weights learn from what all passive parties are sent.

    Args:
        party: The label party.
        gradients: What each passive party is sent, ``(n, m)``.
        batch: The records.

    Raises:
        PrivacyError: If they are sent different rows, of which none is *the* one to learn from.
    """
    first, *others = gradients.values()
    if any(not torch.equal(first, other) for other in others):
        raise PrivacyError(
            "own_part: sent lets the label party learn from what passive parties are sent, and each of them is sent "
            "something else; nothing was sent. Take a defense that draws once for all (laplace-residue)"
        )
    rows = first.double()
    set_own(party, rows.T @ batch.columns.numeric.double(), rows.sum(dim=0))
