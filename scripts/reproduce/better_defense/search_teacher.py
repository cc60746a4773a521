"""What the teacher of some channels knows itself: a ridge regression at the label party, and nothing is sent back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scripts.reproduce.better_defense.search_data import PARTNER, Problem, components, data_of, wide_features
from scripts.reproduce.better_defense.search_study import TEACHER
from scripts.reproduce.shared.jobs import Result
from splitvfl.metrics import leak_auc


def teacher(*, problem: Mapping[str, Any], features: str, ridges: Sequence[float], seed: int, final: bool) -> Result:
    """Fit the label on what a teacher knows, and measure it on test records.

    Args:
        problem: As :func:`~scripts.reproduce.better_defense.search_study.train`.
        features: ``"components"``: 16 of the partner's; ``"wide"``: 512 label-free features of the partner.
        ridges: Added to the squares, one after the other.
        seed: Of the split.
        final: Whether on test records, or on a tenth of the training records.

    Returns:
        By ridge the AUC, ``private``.
    """
    data = data_of(Problem(**problem), seed, validation=not final)
    partner, own = data[PARTNER], data.active
    sent = wide_features(partner, seed) if features == "wide" else components(partner, seed, TEACHER)
    known = [_joined(part) for part in zip(sent, components(own, seed, TEACHER), strict=True)]
    labels, truth = own.train.labels, own.test.labels
    assert labels is not None
    assert truth is not None
    train, test = known
    squares, products = train.T @ train, train.T @ (labels.double() - 0.5)
    eye = torch.eye(len(squares), dtype=squares.dtype)
    return {
        "private": [leak_auc(test @ torch.linalg.solve(squares + ridge * eye, products), truth) for ridge in ridges]
    }


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([torch.ones(len(parts[0]), 1), *parts], dim=1).double()
