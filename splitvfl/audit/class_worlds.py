"""Neighbours of more than two classes: which pairs of labels are told apart, at which predictions, and their rows.

Rows are made below a linear top of k outputs and the cross entropy, as autograd makes them. The directions of the
classes are as far apart as the width of the cut lets them be.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.learning.label_gradients import LabelGradients, LabelGradientSource

MOST_PAIRED: Final = 10
"""Classes of which every pair is tried; of more, each with its neighbour and with the first."""

_OTHERS = 0.02  # probability of all classes that are not told apart, together
_EVEN = 0.5
_CUT = "partner"


def label_pairs(classes: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of labels that are told apart."""
    if classes <= MOST_PAIRED:
        yield from combinations(range(classes), 2)
        return
    yield from ((0, other) for other in range(1, classes))
    yield from ((one, one + 1) for one in range(1, classes - 1))


def paired_predictions(classes: int, predictions: tuple[float, ...]) -> Iterator[tuple[int, int, float]]:
    """Yield pairs of labels, and how probable the second of them is: every pair at ½, and two pairs at all of these."""
    pairs = list(label_pairs(classes))
    yield from ((*pair, _EVEN) for pair in pairs)
    for pair in dict.fromkeys((pairs[0], pairs[-1])):
        yield from ((*pair, prediction) for prediction in predictions if prediction != _EVEN)


def class_probabilities(classes: int, pair: tuple[int, int], prediction: Tensor) -> Tensor:
    """Return what the model predicts of records ``(n, k)``: all but little of it between two classes.

    Args:
        classes: k.
        pair: The two classes.
        prediction: Of the second one, as a share of both, ``(n,)``.
    """
    found = torch.full((len(prediction), classes), _OTHERS / max(1, classes - 2), dtype=torch.float64)
    both = 1.0 - (_OTHERS if classes > 2 else 0.0)
    found[:, pair[0]], found[:, pair[1]] = (1.0 - prediction) * both, prediction * both
    return found


def class_rows(probabilities: Tensor, labels: Tensor, width: int) -> tuple[Tensor, LabelGradients | None]:
    """Return cut gradients ``(n, width)`` of the mean cross entropy, and what they would be under other labels.

    Args:
        probabilities: Of each class, ``(n, k)``.
        labels: ``(n,)`` int64.
        width: Columns of the cut.
    """
    classes = probabilities.shape[1]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)

    activation = torch.zeros(len(labels), width, requires_grad=True)
    source = LabelGradientSource(loss, labels)
    with torch.enable_grad():
        crossed = activation.clone()
        # The label party's own columns say the rest of each logit.
        outputs = crossed @ _directions(width, classes) + probabilities.log().float()
        values = tuple(map(float, range(classes)))
        followed = source.follow(outputs, {_CUT: crossed}, classes=classes, values=values)
        loss(followed, labels).backward()
    assert activation.grad is not None
    return activation.grad, source.at(_CUT)


def _directions(width: int, classes: int) -> Tensor:
    """Return the weights of a top, ``(width, k)``: of each class a column of norm 1."""
    if width >= classes:
        return torch.eye(width, classes)
    drawn = torch.randn(width, classes, generator=torch.Generator().manual_seed(0))
    directions: Tensor = drawn / torch.linalg.vector_norm(drawn, dim=0)
    return directions
