"""What the paper prints, as far as there are numbers: settings, sizes of its data, and claims in its text.

Its figures are curves without numbers, of which we had no copy.

Source: *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*, table 1 and section
"Experiments".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

EPSILONS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
DELTA = 0.01
BATCH_SIZE = 3200
EPOCHS = 10
RADIUS = 1.0
WEIGHT_DECAY = 0.001
SEEDS = 10

BETA_Y = 1.1
"""The paper's β_y of the logistic loss, for labels anywhere in [−1, 1]; for labels −1 and +1 it is 1/2."""

SWEPT_EPOCHS = (5, 10, 15)
SWEPT_RADII = (0.1, 0.5, 1.0)


class Size(NamedTuple):
    """Table 1's row of one data set: records, and columns of the two parties, each with one that is no feature."""

    records: int
    active: int
    passive: int


TABLE_1: Mapping[str, Size] = {
    "breast": Size(569, 11, 20),
    "credit": Size(30_000, 14, 10),
    "adult": Size(32_561, 7, 8),
}
