"""The figures that the paper prints, in per cent as there: accuracy, AUC.

Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, tables II and III.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

EPSILONS = (0.01, 0.1, 1.0, 10.0)


class Scores(NamedTuple):
    """Accuracy and AUC, from 0 to 1."""

    accuracy: float
    auc: float


class Row(NamedTuple):
    """Table II's figures of one problem, those of the mechanisms in the order of :data:`EPSILONS`."""

    baseline: Scores
    add: tuple[Scores, ...]
    mult: tuple[Scores, ...]


def _scores(text: str) -> tuple[Scores, ...]:
    pairs = [pair.split("/") for pair in text.split()]
    return tuple(Scores(round(float(accuracy) / 100, 4), round(float(auc) / 100, 4)) for accuracy, auc in pairs)


def _row(baseline: str, add: str, mult: str) -> Row:
    return Row(_scores(baseline)[0], _scores(add), _scores(mult))


TABLE_2: Mapping[str, Row] = {
    "breast": _row(
        "97.37/99.87",
        "83.33/87.52 87.72/95.84 92.10/98.92 94.74/99.43",
        "87.72/95.90 89.47/96.79 92.98/97.78 95.61/99.21",
    ),
    "digits": _row(
        "91.11/96.66",
        "63.33/63.02 77.50/86.99 89.17/95.84 90.83/96.72",
        "77.50/86.36 79.17/85.90 85.00/89.71 89.72/96.14",
    ),
    "census": _row(
        "82.69/88.79",
        "63.43/66.72 71.35/75.85 80.89/85.95 82.06/88.76",
        "63.77/75.57 63.32/76.88 69.77/83.45 79.45/87.74",
    ),
    "credit": _row(
        "85.56/81.15",
        "71.24/70.50 77.44/76.97 82.77/79.24 85.54/81.08",
        "63.15/65.21 69.51/71.16 71.91/76.61 88.14/81.44",
    ),
}
