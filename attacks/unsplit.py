"""A partner's columns from its activations, by who knows its architecture: columns and weights by turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Seat, Target, View

_MOST_RECORDS: Final = 10_000
_LR_OF_COLUMNS: Final = 0.05
_LR_OF_WEIGHTS: Final = 1e-3
# What the square of a column costs, beside what is off by the variance of outputs.
_PRIOR: Final = 0.01


class UnSplitAttack:
    """Estimate a partner's numeric columns by fitting columns and a clone of its bottom model to what it sends.

    Assumes no record, and no weight: the architecture of the bottom model alone, as a fresh copy with weights drawn
    anew. Columns x, which begin at 0, and the clone's weights take steps of gradient descent by turns, so that::

        |clone(x) − a|² / variance of a  +  0.01 |x|² / number of columns

    falls; the clone goes on from message to message. The second term, in place of the total variation that pictures
    have, says that columns are standardised, and that is all that puts an estimate into units: where a party holds
    columns of another mean or size, it is off by that.

    A clone whose columns are exchanged, turned or mirrored sends the same, and nothing here tells them apart. So it
    reads columns where the first weights of the architecture nearly are the partner's: of four columns behind a layer
    that begins as the identity, and that training has moved by .2 in each weight, .76 to .86 of the variance. Behind a
    layer whose first weights are drawn it reads 0 to .25, by chance, while the best affine map of its estimates has .73
    to .97: columns are there, and not which is which. Of real tables behind two layers it read 0 to .08 (fifteen runs).

    Promises nothing: it has no record to judge itself by.

    Only ``records`` records of a message are asked for, drawn anew at each, as each takes long. Takes
    3 to 5 s of a core for a thousand records that are asked for, behind two layers of up to 64.

    In a file: ``attacks: [{name: unsplit}]``

    Source: Erdoğan, Küpçü and Çiçek, *UnSplit*, WPES 2022 (arXiv:2108.09033). That fully connected layers
    withstand such attacks: Semenov et al., arXiv:2412.11689. The prior on columns in place of total variation is ours.

    Args:
        records: Records of a message that are asked for, at most.
        rounds: How often columns and weights take turns, at least 1.
        steps: Steps of each in a turn, at least 1.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "unsplit"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation", "partner_architecture"})

    def __init__(
        self,
        *,
        records: Annotated[int, Field(ge=1, le=_MOST_RECORDS)] = 32,
        rounds: Annotated[int, Field(ge=1, le=1_000)] = 10,
        steps: Annotated[int, Field(ge=1, le=1_000)] = 10,
    ) -> None:
        if not 1 <= records <= _MOST_RECORDS:
            raise ArgumentError(f"records must be 1 to {_MOST_RECORDS:,}, got {records}")
        if not 1 <= rounds <= 1_000:
            raise ArgumentError(f"rounds must be 1 to 1,000, got {rounds}")
        if not 1 <= steps <= 1_000:
            raise ArgumentError(f"steps must be 1 to 1,000, got {steps}")
        self.most_records = records
        self._rounds, self._steps = rounds, steps
        self._clone: dict[str, Tensor] | None = None

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``received_activation`` and ``partner_architecture`` are read. The latter is changed.

        Returns:
            ``(n, d)``, float64, in units of standardised columns.

        Raises:
            AttackRefused: If the bottom model passes no gradient on to its columns, or its first layer that has weights
                does not say how many columns it takes.
        """
        clone = view.partner_architecture.float().eval()
        if self._clone is not None:
            clone.load_state_dict(self._clone)
        sent = view.received_activation.float()
        columns = sent.new_zeros(len(sent), columns_of(clone)).requires_grad_()
        turns: list[tuple[Optimizer, list[Tensor]]] = [(Adam([columns], lr=_LR_OF_COLUMNS), [columns])]
        weights: list[Tensor] = list(clone.parameters())
        if weights:
            turns.append((Adam(weights, lr=_LR_OF_WEIGHTS), weights))
        with torch.enable_grad():
            for _ in range(self._rounds):
                for optimizer, moved in turns:
                    for _ in range(self._steps):
                        _go_down(optimizer, moved, _off(clone, columns, sent))
        self._clone = {name: part.detach().clone() for name, part in clone.state_dict().items()}
        return columns.detach().double()

    def state_dict(self) -> dict[str, Any]:
        """Return the clone's weights."""
        return {"clone": self._clone}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._clone = state["clone"]


def columns_of(model: nn.Module) -> int:
    """Return how many columns a model takes, by its first layer that says so.

    Raises:
        AttackRefused: If none does.
    """
    for layer in model.modules():
        width = getattr(layer, "in_features", None)
        if isinstance(width, int):
            return width
    raise AttackRefused("no layer of the partner's bottom model says how many columns it takes (in_features)")


def _off(clone: nn.Module, columns: Tensor, sent: Tensor) -> Tensor:
    """Return what is to fall: squares of what the clone is off by, per record, in units of the outputs' variance."""
    variance = sent.var(dim=0, correction=0).sum()
    made = clone(columns)
    if not made.requires_grad:
        raise AttackRefused("the partner's bottom model passes no gradient on to its columns")
    off = (made - sent).square().sum(dim=1).mean() / torch.where(variance > 0, variance, 1.0)
    total: Tensor = off + _PRIOR * columns.square().mean()
    return total


def _go_down(optimizer: Optimizer, moved: list[Tensor], off: Tensor) -> None:
    gradients = torch.autograd.grad(off, moved, allow_unused=True)
    for part, gradient in zip(moved, gradients, strict=True):
        part.grad = gradient
    optimizer.step()
