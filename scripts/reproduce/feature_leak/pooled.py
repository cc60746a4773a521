"""The trial's figure, as near as its words and numbers lead: another model, other labels, another mean over columns."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from scripts.reproduce.shared.jobs import Result
from splitvfl.leakage.ridge import fit_ridge
from splitvfl.learning.randomness import PartyRandom

_EPOCHS, _BATCH, _RATE = 15, 64, 0.003


def pool(*, width: int, known_share: float, seed: int) -> Result:
    """Train one network on all digits, and read pixels once behind a cut without ReLU.

    Ten classes, pixels from 0 to 1, layers of 64 and of the cut's width, and one linear layer on top.

    Args:
        width: Of the cut.
        known_share: Share of the records whose pixels are known.
        seed: Of weights, order, and of which records are known.

    Returns:
        ``share``: of the variance of all pixels added up, that one fit of ridge regression recovers of other records.
    """
    digits = load_digits()
    pixels, classes = torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)
    with PartyRandom(seed):
        bottom = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, width))
        top = nn.Linear(width, 10)
        optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=_RATE)
        for _ in range(_EPOCHS):
            for rows in torch.randperm(len(pixels)).split(_BATCH):
                optimizer.zero_grad()
                functional.cross_entropy(top(bottom(pixels[rows])), classes[rows]).backward()
                optimizer.step()
        order = torch.randperm(len(pixels))
    count = round(known_share * len(pixels))
    known, others = order[:count], order[count:]
    with torch.no_grad():
        sent = bottom(pixels)
    estimate = fit_ridge(sent[known], pixels[known]).estimate(sent[others])
    return {"share": pooled(estimate, pixels[others])}


def pooled(estimate: Tensor, truth: Tensor) -> float:
    """Return the share of the variance of all columns, added up, that estimates recover."""
    errors = (estimate.double() - truth.double()).square().mean(dim=0).sum()
    return 1.0 - (errors / truth.double().var(dim=0, correction=0).sum()).item()
