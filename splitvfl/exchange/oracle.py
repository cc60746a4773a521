"""The gradient oracle: the sums of the encrypted exchanges of logistic regression, without encryption.

Logits cross as in :mod:`splitvfl.exchange.split`, and residues come back in the clear; a passive party uses, and its
attacks see, only the sum of residue times row. It is for experiments: what it learns is what a protocol under
encryption lets it learn, at the speed of the computation in the clear. It protects nothing: whoever keeps the residues
that it was sent has the labels.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the gradient oracle.
"""

from __future__ import annotations

from typing import ClassVar

from splitvfl.cut.views import SUMS
from splitvfl.data.columns import Records, columns_of
from splitvfl.exchange.base import Exchange, Side, check_words
from splitvfl.exchange.linear import check_top, learn_sum, weight_of
from splitvfl.exchange.split import ActiveSide
from splitvfl.exchange.split_step import gradient_of
from splitvfl.learning.losses import Approximation
from splitvfl.messaging.conversation import Half
from splitvfl.party.own_part import OwnPart
from splitvfl.party.party import ActiveParty, PassiveParty


class Oracle(Exchange):
    """Logistic regression in the clear, of which a passive party learns the gradients of its weights only.

    Works with: model logistic-regression, numeric columns, labels 0 and 1; for experiments.

    Cost: as exchange split.

    In a file: ``exchange: oracle``

    Also called: gradient oracle.

    Args:
        approximation: The sigmoid's in the loss of the active party's task; another one there is refused.
        own_part: As for :class:`~splitvfl.exchange.split.Split`.
    """

    name = "oracle"
    gone: ClassVar = {
        "in_flight": "exchange oracle stands for encrypted ones, of which each step ends before the next; leave it "
        "out, or take exchange split"
    }
    sums_only = True
    seen = (
        "each passive party's logits",
        "residues, of which it uses only the gradient of its weights: for experiments",
    )

    def __init__(self, *, approximation: Approximation = "exact", own_part: OwnPart = "exact") -> None:
        check_words(approximation=approximation, own_part=own_part)
        self.approximation, self.own_part = approximation, own_part

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party."""
        return {**super().terms(), "approximation": self.approximation}

    def active(self, party: ActiveParty) -> Side:
        """Return the active party's side.

        Raises:
            ConfigError: If its top does not add up logits, or its task is not binary.
        """
        check_top(party, self.name, self.approximation)
        return ActiveSide(party, self.own_part)

    def passive(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side.

        Raises:
            ConfigError: If its bottom is not one linear layer without intercept.
        """
        weight_of(party, self.name)
        return _Passive(party, active)


class _Passive(Side):
    shown = SUMS

    def __init__(self, party: PassiveParty, active: str) -> None:
        super().__init__()
        self._party, self._active = party, active

    def step(self, batch: Records, step: int) -> Half:
        party, active = self._party, self._active
        activation = party.activate(batch).detach()
        residues = yield from gradient_of(party, activation, batch, step, active)
        total = columns_of(batch).T @ residues.double()
        learn_sum(party, activation, total.squeeze(1), batch, step, active)
