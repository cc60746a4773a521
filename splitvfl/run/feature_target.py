"""A passive party whose columns are sought: its weights, the range of each column, and the truth, for judges alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError
from splitvfl.hooks import (
    Alphabet,
)
from splitvfl.leakage.alphabets import known_alphabets
from splitvfl.leakage.categories import CategoryGroup, category_groups, varying_groups
from splitvfl.leakage.features import Part
from splitvfl.leakage.unit_box import Box
from splitvfl.party.party import PassiveParty

_PIECE = 65_536  # records that are read at a time


def targets_of(passives: Mapping[str, PassiveParty]) -> dict[str, FeatureTarget]:
    """Return the passive parties as those whose columns are sought, by name."""
    return {name: FeatureTarget(party) for name, party in passives.items()}


def with_transforms_known(
    targets: Mapping[str, FeatureTarget],
) -> tuple[dict[str, FeatureTarget], dict[str, str]]:
    """Return the targets of who knows every party's transform, and where that cannot be undone, by party, why.

    Where nobody has a transform that can be undone there are no such targets: nothing would be known that was not.
    """
    known = {
        name: target.with_transform_known()
        for name, target in targets.items()
        if not target.refused and target.party.data.transform is not None
    }
    refused = {name: target.refused for name, target in known.items() if target.refused}
    undone = {name: target for name, target in known.items() if not target.refused}
    return ({**targets, **undone} if undone else {}), refused


class FeatureTarget:
    """A passive party whose columns are sought: its weights, and the box of its columns.

    Args:
        party: The party.

    Attributes:
        party: As given.
        knows_transform: Whether the attacker knows the party's transform.
        refused: Why its columns cannot be sought; empty: they can, and it has what follows.
        box: Range of each column over the training records.
        weight: Its weights, ``(k, d)``.
        bias: Its intercept, ``(k,)``.
    """

    def __init__(self, party: PassiveParty) -> None:
        self.party = party
        self.knows_transform = False
        self.refused = "" if party.is_linear else "needs linear models (logistic regression)"
        if party.weights.divides and party.team.size > 1:
            self.refused = "needs the party's weights, which are divided among its workers (model.dense: sharded)"
        if self.refused:
            return
        try:
            self.box = _box_of(party)
        except ArgumentError as error:
            self.refused = str(error)
            return
        if not bool(self.box.varying.any()):
            self.refused = "none of its columns varies over the training records: there is nothing to find"
        weight, *bias = (parameter.detach().cpu() for parameter in party.bottom.parameters())
        self.weight = weight
        self.bias = bias[0] if bias else weight.new_zeros(weight.shape[0])

    def with_transform_known(self) -> FeatureTarget:
        """Return the same for who knows the party's transform z = H x + s, and so the weights W H of x itself."""
        transform = self.party.data.transform
        assert transform is not None, "else there is nothing to know"
        known = copy.copy(self)
        known.knows_transform = True
        known.weight = self.weight.double() @ transform.matrix
        known.bias = self.bias.double() + self.weight.double() @ transform.shift
        if self.party.data.train.row_norm is not None and bool(transform.shift.any()):
            known.refused = "rows are scaled down to a norm after the transform: there is no equation in the columns"
        return known

    @property
    def names(self) -> list[str]:
        """Names of the columns that vary."""
        kept = self.box.varying.tolist()
        return [name for name, varies in zip(self.party.data.numeric_names, kept, strict=True) if varies]

    def points(self, part: Part, rows: Tensor) -> Tensor:
        """Return records of a part as points of the unit box, ``(n, d)``, float64, without columns that do not vary."""
        columns = as_known(getattr(self.party.data, part)).rows(rows).columns.numeric
        return varying_columns(self.box.unit(columns.double().cpu()), self.box)

    def beyond(self, part: Part, rows: Tensor) -> Tensor:
        """Return which records of a part lie beyond the known range of a column, ``(n,)``, bool."""
        return self.box.outside(as_known(getattr(self.party.data, part)).rows(rows).columns.numeric.double().cpu())

    @cached_property
    def groups(self) -> list[CategoryGroup]:
        """Categories among the columns that vary."""
        return varying_groups(category_groups(self.party.data), self.box.varying)

    @cached_property
    def alphabets(self) -> tuple[Alphabet, ...]:
        """Which of the columns that vary have few values, and which."""
        data = self.party.data
        return known_alphabets(replace(data, train=as_known(data.train)), self.box)


def as_known(records: Records) -> Records:
    """Return records as an attacker knows their columns: as the model takes them, but for a transform, which is secret.

    Who takes transformed weights for true seeks the columns themselves, in the range that is known of these.
    """
    return replace(records, transform=None)


def _box_of(party: PassiveParty) -> Box:
    """Return the range of each column over the training records, before the party's transform of them."""
    train = as_known(party.data.train)
    if not train.count:
        raise ArgumentError("it has no training record: nobody knows the range of its columns")
    boxes = [
        Box.of(train.rows(rows).columns.numeric.cpu().double()) for rows in torch.arange(train.count).split(_PIECE)
    ]
    return Box(
        torch.stack([box.lower for box in boxes]).amin(dim=0), torch.stack([box.upper for box in boxes]).amax(dim=0)
    )


def varying_columns(matrix: Tensor, box: Box) -> Tensor:
    """Return the columns of a matrix ``(m, d)`` that vary over the training records."""
    return matrix[:, box.varying.to(matrix.device)]
