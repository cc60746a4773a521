"""The directions in which the rows of a matrix vary most around zero."""

from __future__ import annotations

import scipy
import torch
from torch import Tensor


def leading_direction(moment: Tensor) -> Tensor:
    """Return the unit eigenvector of the largest eigenvalue, ``(d,)``; its sign is arbitrary.

    Args:
        moment: Symmetric, ``(d, d)``, float64.
    """
    if moment.is_cuda:
        last: Tensor = torch.linalg.eigh(moment).eigenvectors[:, -1]
        return last
    # One eigenvector in a third of the time of all of them.
    top = moment.shape[0] - 1
    _, vectors = scipy.linalg.eigh(moment.numpy(), subset_by_index=[top, top])
    return torch.from_numpy(vectors[:, 0])


def leading_directions(moment: Tensor, count: int) -> Tensor:
    """Return the unit eigenvectors of the largest eigenvalues, ``(d, count)``; their signs are arbitrary.

    Args:
        moment: Symmetric, ``(d, d)``, float64.
        count: How many, at most d.
    """
    if moment.is_cuda:
        last: Tensor = torch.linalg.eigh(moment).eigenvectors[:, -count:]
        return last
    size = moment.shape[0]
    _, vectors = scipy.linalg.eigh(moment.numpy(), subset_by_index=[size - count, size - 1])
    return torch.from_numpy(vectors)
