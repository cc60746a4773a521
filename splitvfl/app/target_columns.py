"""A passive party's columns as attacks on equations are judged on them: their moments, categories and weights."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from splitvfl.leakage.categories import CategoryGroup, category_groups, flags_among, varying_groups
from splitvfl.leakage.column_moments import ColumnMoments, two_valued
from splitvfl.run.feature_target import FeatureTarget

_PIECE = 65_536  # records that are read at a time


class TargetColumns:
    """What there is to know of a party's columns that vary, in their unit box, beside a single record.

    Args:
        target: The party.
    """

    def __init__(self, target: FeatureTarget) -> None:
        self.target = target

    @cached_property
    def moments(self) -> ColumnMoments:
        """First and second moments over the training records, in the unit box."""
        rows = torch.arange(self.target.party.data.train.count).split(_PIECE)
        return ColumnMoments.of(self.target.points("train", piece) for piece in rows)

    @cached_property
    def groups(self) -> list[CategoryGroup]:
        """Categories and flags among the columns."""
        groups = varying_groups(category_groups(self.target.party.data), self.target.box.varying)
        return [*groups, *flags_among(self.target.names, two_valued(self.moments), groups)]

    @property
    def weight(self) -> Tensor:
        """The model's weights of the columns that vary, ``(k, d)``, float64."""
        return in_unit_box(self.target, self.target.weight)


def in_unit_box(target: FeatureTarget, weight: Tensor) -> Tensor:
    """Return weights ``(k, d)`` of a party's columns as weights of the unit box, of the columns that vary, float64."""
    return (weight.double() * target.box.width)[:, target.box.varying]
