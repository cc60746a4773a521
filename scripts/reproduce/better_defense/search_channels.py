"""What a label party could tell its partner in place of labels: the mathematics of the channels that are tried.

Each function returns the targets that the top which sends learns from, and beside them the scores by which who knows
the algorithm, everything that it was computed from but the labels, and every target to the last digit, would read the
labels of single records. The messages are computed from the targets, so that he sees at least as much as a partner
does. No channel here is a defense of splitvfl; ``docs/results/better-defense.md`` says what came of them.

Records are rows, ``(n, d)``; labels ``(n,)`` in {0, 1}; all in float64.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.sparse import linalg
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, Secrets

CLIPPED = 0.9
"""So many of the records keep their length in the noisy statistics; the others are shortened to the same bound."""


class Told(NamedTuple):
    """What is told instead of labels.

    Attributes:
        targets: ``(n,)``, what the top that sends learns from.
        read: ``(n,)``, scores of the labels by who knows all but these.
    """

    targets: Tensor
    read: Tensor


class Given:
    """A label defense that answers from a table, which whoever trains may replace between epochs.

    It claims nothing: what is promised of a table is a matter of how it was computed.

    Args:
        ids: Of the records, ``(n,)``, int64, each once.
        targets: Of these records, ``(n,)``.
    """

    name: ClassVar[str] = "given-targets"
    crossing: ClassVar[Crossing] = "labels"
    needs_binary_labels: ClassVar[bool] = True

    def __init__(self, ids: Tensor, targets: Tensor) -> None:
        self._ids, self._order = ids.sort()
        self.targets = targets

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the table's targets of the batch's records, ``(n,)``; the labels are not looked at."""
        places = self._order[torch.searchsorted(self._ids, secrets.ids.cpu())]
        return self.targets[places].to(device=labels.device, dtype=labels.dtype)


class Whitened(NamedTuple):
    """Features of equal weight in every direction, of bounded length.

    Attributes:
        rows: ``(n, d)``.
        bound: No row is longer.
    """

    rows: Tensor
    bound: float


def whitened(features: Tensor, *, ridge: float = 1.0) -> Whitened:
    """Return ``z (ZᵀZ + ridge)^(−½)``, of which the longest tenth is shortened. Labels have no part in it.

    The squared length of a row is its leverage: how far its label moves its own fitted value in a regression.
    """
    moments = features.T @ features + ridge * torch.eye(features.shape[1], dtype=features.dtype)
    values, vectors = torch.linalg.eigh(moments)
    rows = features @ (vectors / values.sqrt()) @ vectors.T
    lengths = torch.linalg.vector_norm(rows, dim=1)
    bound = float(lengths.quantile(CLIPPED))
    return Whitened(rows * (bound / lengths.clamp(min=bound))[:, None], bound)


def noisy_opinions(features: Tensor, labels: Tensor, *, mu: float, generator: torch.Generator) -> Told:
    """Return what a linear regression on noisy sums says of every record.

    With u the whitened features and c their bound, ``b = Σ u_i (y_i − ½) + N(0, c²/μ²)`` is released once; all targets
    are computed from b and the features. One record's label moves b by at most c, so that b, and with it everything
    that is computed from the targets, in as many epochs as one likes, is μ-Gaussian-DP in every single label, whoever
    knows all features and all other labels: AUC at most ``Φ(μ/√2)``. What the partner sees must depend on labels
    through the targets alone. The estimate is shrunk as by James and Stein, which costs nothing of that.

    Source: noise on sufficient statistics, Vu and Slavković, ICDM Workshops 2009; Gaussian differential privacy, Dong,
    Roth and Su, JRSS B 84 (2022).

    Args:
        features: ``(n, d)``; they hold a constant, if there is to be one.
        labels: ``(n,)``.
        mu: μ, above 0; infinite: no noise.
        generator: Of the noise. Seeded: for experiments.

    Returns:
        Targets in [0, 1], and by whom b is known ``u_i·b`` less what it says without this record's own part.
    """
    u, bound = whitened(features)
    scale = bound / mu
    noise = torch.randn(u.shape[1], generator=generator, dtype=u.dtype) * scale
    sums = u.T @ (labels - 0.5) + noise
    # A coordinate's own variance: of the noise, and a quarter at most of labels that are drawn.
    variance = scale**2 + 0.25
    kept = max(0.0, 1.0 - u.shape[1] * variance / float(sums @ sums))
    weights = kept * torch.linalg.solve(u.T @ u + 1e-9 * torch.eye(u.shape[1], dtype=u.dtype), sums)
    opinions = 0.5 + u @ weights
    # What b says of a record, less the part that is known without its label: of b all but that is noise to him.
    return Told(opinions.clamp(0.0, 1.0), u @ sums - u.square().sum(dim=1) * (u @ weights))


def cross_fitted_opinions(
    features: Tensor, labels: Tensor, *, folds: int, generator: torch.Generator, ridge: float = 1.0
) -> Told:
    """Return what a linear regression on the other folds says of every record.

    A record's own target does not depend on its label. Those of other folds do, and they give it away: from the weights
    of every fold's model follow the sums ``Σ z_i y_i`` of each fold, d equations about n / folds labels.

    Args:
        features: ``(n, d)``.
        labels: ``(n,)``.
        folds: How many, at least 3.
        generator: Draws the folds.
        ridge: Added to the squares.

    Returns:
        Targets in [0, 1]; read is the fit of a record's own fold, from these sums, less its target.
    """
    fold = torch.randperm(len(labels), generator=generator) % folds
    eye = ridge * torch.eye(features.shape[1], dtype=features.dtype)
    moments = [features[fold == k].T @ features[fold == k] for k in range(folds)]
    sums = [features[fold == k].T @ (labels[fold == k] - 0.5) for k in range(folds)]
    opinions, own = torch.empty_like(labels), torch.empty_like(labels)
    for k in range(folds):
        rows = fold == k
        rest = torch.linalg.solve(sum(moments) - moments[k] + eye, sum(sums) - sums[k])
        opinions[rows] = 0.5 + features[rows] @ rest
        own[rows] = 0.5 + features[rows] @ torch.linalg.solve(moments[k] + eye, sums[k])
    return Told(opinions.clamp(0.0, 1.0), own - opinions)


def neighbours_means(features: Tensor, labels: Tensor, *, count: int, generator: torch.Generator, block: int) -> Told:
    """Return the mean label of each record's nearest others, its own left out.

    A record's own target does not depend on its label, and no label is told. But n means of n labels are as many
    equations as unknowns: who knows who is whose neighbour solves them.

    Args:
        features: ``(n, d)``, in which nearness is measured.
        labels: ``(n,)``.
        count: So many nearest others.
        generator: Divides the records into blocks.
        block: Neighbours are looked for in blocks of at most so many records, to save time.

    Returns:
        Targets in [0, 1]; read is the least-squares solution of the equations.

    Raises:
        ArgumentError: If a block has fewer others.
    """
    order = torch.randperm(len(labels), generator=generator)
    rows, others = [], []
    for part in order.chunk(-(-len(labels) // block)):
        if len(part) <= count:
            raise ArgumentError(f"expected blocks of more than {count} records, got {len(part)}")
        distances = torch.cdist(features[part].float(), features[part].float())
        distances.fill_diagonal_(math.inf)
        rows.append(part.repeat_interleave(count))
        others.append(part[distances.topk(count, dim=1, largest=False).indices].reshape(-1))
    places = torch.cat(rows).numpy(), torch.cat(others).numpy()
    means = sparse.csr_array((np.full(places[0].size, 1.0 / count), places), shape=(len(labels), len(labels)))
    targets = means @ labels.numpy()
    solved = linalg.lsqr(means, targets - 0.5, damp=1e-3, iter_lim=300)[0]
    return Told(torch.from_numpy(targets), torch.from_numpy(solved))


class SidedAnswers(NamedTuple):
    """Answers that are lies about the class that is less likely by a prior.

    Attributes:
        unbiased: Targets whose expectation is the label.
        posterior: P(label = 1 | answer, prior).
        read: The log-likelihood ratio of the answer.
    """

    unbiased: Tensor
    posterior: Tensor
    read: Tensor


def sided_answers(labels: Tensor, prior: Tensor, *, delta: float, generator: torch.Generator) -> SidedAnswers:
    """Return answers of total variation δ that are told at the expense of the class that a prior finds less likely.

    Where ``q ≤ ½``, a positive answers 1 with probability δ and else 0, as a negative does; where ``q > ½`` it is the
    other way round. Given q the targets ``1[1] / δ``, and ``1 − 1[0] / δ``, are unbiased, and their variance under q is
    ``min(q, 1 − q) (1 − δ) / δ``: the least for that total variation and side (:mod:`splitvfl.defenses.least_variance`,
    record by record). The asymmetric response has q = the share of the rarer class for all.

    Whatever is computed from the answers has a detection error of at least (1 − δ) / 2 on each label, and an AUC of at
    most (1 + δ) / 2 between records *of one side*. Which side a record is on is seen; between sides the AUC of labels
    that the prior does not know is higher (:func:`sided_auc`). q must not depend on the label: what it does tell adds
    up (:func:`total_variation_for`).

    Args:
        labels: ``(n,)``.
        prior: q, ``(n,)``, inside (0, 1).
        delta: δ, in (0, 1).
        generator: Of the answers. Seeded: for experiments.
    """
    seen = torch.rand(len(labels), generator=generator, dtype=labels.dtype) < delta
    low = prior <= 0.5
    told = torch.where(low, (labels == 1) & seen, (labels == 0) & seen)
    unbiased = torch.where(low, told / delta, 1.0 - told / delta)
    rest = (1.0 - delta) * torch.where(low, prior, 1.0 - prior)
    unsure = rest / (1.0 - delta * torch.where(low, prior, 1.0 - prior))
    posterior = torch.where(low, torch.where(told, 1.0, unsure), torch.where(told, 0.0, 1.0 - unsure))
    silent = math.log1p(-delta)
    read = torch.where(low, torch.where(told, math.inf, silent), torch.where(told, -math.inf, -silent))
    return SidedAnswers(unbiased.to(labels), posterior.to(labels), read.to(labels))


def sided_auc(delta: float, high: float) -> float:
    """Return the AUC of sided answers about labels that are independent of the prior, half of them positive.

    Args:
        delta: δ.
        high: Share of the records whose prior is above ½.
    """
    low = 1.0 - high
    positives = {math.inf: low * delta, 1.0: high, -1.0: low * (1.0 - delta)}
    negatives = {-math.inf: high * delta, 1.0: high * (1.0 - delta), -1.0: low}
    return sum(
        one * other * (1.0 if value > against else 0.5 if value == against else 0.0)
        for value, one in positives.items()
        for against, other in negatives.items()
    )


def gaussian_auc(mu: float) -> float:
    """Return Φ(μ/√2), the best AUC against something μ-Gaussian-DP."""
    return NormalDist().cdf(mu / math.sqrt(2.0))


def mu_for(auc: float) -> float:
    """Return the μ of which :func:`gaussian_auc` is this."""
    return math.sqrt(2.0) * NormalDist().inv_cdf(auc)


def total_variation_for(auc: float, mu: float) -> float:
    """Return the δ at which one-sided answers and a μ-Gaussian-DP release have at most this AUC together.

    A share δ of one class is certain, and of the rest the Gaussian release alone speaks: ``δ + (1 − δ) Φ(μ/√2)``.

    Raises:
        ArgumentError: If the release alone has as much.
    """
    alone = gaussian_auc(mu)
    if not alone < auc < 1:
        raise ArgumentError(f"expected an AUC above {alone:.3f}, that of the release alone, and below 1, got {auc}")
    return (auc - alone) / (1.0 - alone)
