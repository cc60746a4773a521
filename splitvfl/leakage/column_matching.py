"""The error of an estimate whose columns are all there, but in an unknown order."""

from __future__ import annotations

import scipy
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError


def best_order(estimate: Tensor, truth: Tensor) -> Tensor:
    """Return which column of the estimate stands for each true one where the order was chosen best, ``(d,)``, int64.

    The assignment of least mean squared error: what a partner has who knows which features there are, say from a
    contract, and not in which order they came. The order is granted by who judges, so that it is the best for each
    estimate, the error of chance is lower too, and figures compare only with those of other estimates.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, on permuted features; the assignment is
    :func:`scipy.optimize.linear_sum_assignment`'s.

    Args:
        estimate: ``(n, d)``, n and d of at least 1.
        truth: ``(n, d)``.

    Raises:
        ArgumentError: If shapes differ, there is nothing in them, or an entry is not finite.

    >>> best_order(torch.tensor([[0.1, 0.8], [0.2, 0.4]]), torch.tensor([[0.8, 0.0], [0.5, 0.1]])).tolist()
    [1, 0]
    """
    if estimate.shape != truth.shape or truth.dim() != 2 or not truth.numel():
        raise ArgumentError(f"expected estimate and truth (n, d), got {tuple(estimate.shape)}, {tuple(truth.shape)}")
    if not bool(torch.isfinite(estimate).all() and torch.isfinite(truth).all()):
        raise ArgumentError("estimate or truth holds NaN or infinite values")
    guessed, true = estimate.double().to(truth.device), truth.double()
    # Of squares; all of a product's scale, so that roundings are of 1e-16 of it.
    costs = true.square().sum(dim=0).unsqueeze(1) + guessed.square().sum(dim=0) - 2 * (true.T @ guessed)
    _, chosen = scipy.optimize.linear_sum_assignment(costs.cpu().numpy())
    return torch.from_numpy(chosen).to(truth.device)


def matched_mse(estimate: Tensor, truth: Tensor) -> float:
    """Return the mean squared error per feature after :func:`best_order`, at most that without it.

    Args:
        estimate: ``(n, d)``.
        truth: ``(n, d)``.

    Raises:
        ArgumentError: As :func:`best_order`.
    """
    order = best_order(estimate, truth)
    guessed = estimate.double().to(truth.device)
    chosen, given = ((one - truth.double()).square().mean().item() for one in (guessed[:, order], guessed))
    return min(chosen, given)  # roundings of equal costs choose any
