"""Runs of the hybrid mechanism without encryption, which it does not change, and attacks on them in the library's view.

A run is gradient descent on the records that the label party draws (:class:`~splitvfl.exchange.selection.SecretBatch`),
from weights of zero, of a label party with nothing but labels. Attacks see what a passive party sees under the exchange
(:mod:`splitvfl.exchange.hybrid`), and :class:`~splitvfl.leakage.judging.Leak` judges them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from splitvfl.exchange.selection import SecretBatch
from splitvfl.hooks import View
from splitvfl.learning.randomness import derive_seed

_LEAST_KEPT = 0.6


@dataclass(frozen=True)
class Drawing:
    """How many records of a batch are used and sent, on average.

    Attributes:
        used: k.
        sent: L.
    """

    used: int
    sent: int

    @property
    def kept(self) -> float:
        """The probability p that a bit is kept: .6, or more where k / L, which it has to exceed, is more."""
        return max(_LEAST_KEPT, (1 + 2 * self.used / self.sent) / 3)

    @property
    def size(self) -> int:
        """``|S|``."""
        return round(self.used / self.kept + (self.sent - self.used) / (1 - self.kept))

    @property
    def epsilon(self) -> float:
        """ε of the randomised response on who is used."""
        return math.log(self.kept / (1 - self.kept))

    @property
    def share(self) -> float:
        """What share of a batch is meant to be used: q."""
        return self.used / self.kept / self.size

    @property
    def secret_batch(self) -> SecretBatch:
        """What draws them."""
        return SecretBatch(self.epsilon, self.share)


class Round(NamedTuple):
    """One step as it is seen and judged.

    Attributes:
        view: The passive party's.
        zeros: Of its records, whose residue is a zero by design.
    """

    view: View
    zeros: Tensor


def rounds_of(columns: Tensor, targets: Tensor, drawing: Drawing, *, rate: float, seed: int) -> Iterator[Round]:
    """Yield steps without end: in each the same records are the batch, and who is used is drawn anew.

    A record comes once an epoch, and so these are epochs. In a table of more than one batch an epoch has more steps, of
    other records each, which tell of no record more.

    Args:
        columns: ``(|S|, d)``.
        targets: What is trained on, ``(|S|,)``.
        drawing: Who is drawn.
        rate: The learning rate.
        seed: Of the draws.
    """
    rows, wanted = columns.double(), targets.double()
    count, rank = rows.shape
    weights = torch.zeros(rank, dtype=torch.float64)
    key = derive_seed(seed, "who is used").to_bytes(8, "little", signed=False) * 4
    step = 0
    while True:
        draw = drawing.secret_batch.draw(key, step, count, [0])
        logits = rows @ weights
        residues = torch.where(draw.used, torch.sigmoid(logits) - wanted, 0.0) / draw.used.sum()
        gradient = (rows.T @ residues).float()
        sent = draw.sent.nonzero().squeeze(1)
        yield Round(view_of(columns[sent], gradient, logits[sent], ids=sent, step=step), ~draw.used[sent])
        weights = weights - rate * gradient.double()
        step += 1


def view_of(columns: Tensor, gradient: Tensor, logits: Tensor, *, ids: Tensor, step: int = 0) -> View:
    """Return what a passive party sees of a step."""
    known: dict[str, Any] = {
        "columns": columns.float(),
        "aggregated_gradient": gradient.float()[:, None],
        "activation": logits.float()[:, None],
        "logits": logits.float()[:, None],
    }
    return View(party="passive", step=step, ids=ids, **known)


def balanced(scores: Tensor, labels: Tensor) -> float:
    """Return the balanced accuracy of signs, an undecided one counting one half; NaN with one class only."""
    signs, truth = np.sign(scores.double().numpy()), 2 * labels.double().numpy() - 1
    credit = (1 + signs * truth) / 2
    classes = [credit[truth == label] for label in (-1, 1)]
    return float(np.mean([each.mean() for each in classes])) if all(each.size for each in classes) else math.nan
