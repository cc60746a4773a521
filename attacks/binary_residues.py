"""Label attack on a sum of few residues where predictions are known: each is one of three numbers."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from splitvfl.attacks.grouped_rows import GroupedRows, Vector
from splitvfl.errors import ArgumentError

# HiGHS keeps equations to 1e-6.
_SOLVER_TOLERANCE: Final = 2e-6
# The first answer will do, however far from the fewest records it is.
_ANY_GAP: Final = 1e9


class BinaryResidues(NamedTuple):
    """What a search for residues of three values each has found.

    Attributes:
        residues: ``(s,)``, float64, in the unit of the gradient; ``None`` where none were found.
        in_time: Whether the search ended by itself: none were found because there are none.
    """

    residues: Tensor | None
    in_time: bool


def binary_residues(
    features: Tensor, gradient: Tensor, predictions: Tensor, *, time_limit: float = 2.0
) -> BinaryResidues:
    """Return residues with ``featuresᵀ r = gradient``, each 0, f / k or (f − 1) / k, of which k are not zero.

    They are what a batch's gradient is made of where some of its records are left out: of the k others each has the
    residue ``f − y`` over k. Neither k nor who is left out has to be known: an integer program with two binary unknowns
    for each record, whether it is used and whether it is used and positive. Every answer is checked against the sum.
    Identical rows share what is told of their sum.

    It does not promise that there are no other such residues; with r equations of generic real numbers there hardly
    are. With the predictions of another model there are none.

    Source: this project's, against the hybrid mechanism of *Residue-based Label Protection Mechanisms in Vertical
    Logistic Regression*.

    Args:
        features: ``(s, d)``, the columns of one batch.
        gradient: ``(d,)``.
        predictions: ``(s,)``, f in [0, 1], equal for identical rows.
        time_limit: Seconds after which the search ends, > 0.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, a prediction lies outside [0, 1], or the limit is
            not positive.

    >>> x = torch.tensor([[1.0, 0.2], [0.3, 1.0], [-0.8, 0.5], [0.1, -0.9]])
    >>> f = torch.full((4,), 0.5)
    >>> binary_residues(x, (0.5 * x[1] - 0.5 * x[2]) / 2, f).residues.tolist()
    [0.0, 0.25, -0.25, 0.0]
    """
    if not (math.isfinite(time_limit) and time_limit > 0):
        raise ArgumentError(f"expected a finite time limit above 0 s, got {time_limit}")
    problem = GroupedRows.of(features, gradient)
    known = predictions.detach().cpu().double().numpy()
    if known.shape != problem.group.shape or not ((known >= 0) & (known <= 1)).all():
        raise ArgumentError(f"expected predictions ({problem.group.size},) in [0, 1], got shape {known.shape}")
    shared = np.empty(problem.counts.size)
    shared[problem.group[problem.group >= 0]] = known[problem.group >= 0]
    used, positive, in_time = _solved(problem, shared, time_limit)
    if used is None or positive is None:
        return BinaryResidues(None, in_time)
    each = problem.of_records((shared * used - positive) / used.sum())
    return BinaryResidues(torch.from_numpy(each).to(features.device), in_time)


def _solved(problem: GroupedRows, predictions: Vector, time_limit: float) -> tuple[Vector | None, Vector | None, bool]:
    """Return how many records of each group are used, how many of these are positive, and whether time sufficed."""
    groups = problem.counts.size
    # Σ_g equations (f u − v) = total Σ_g u: both sides times k, which makes them linear in the unknowns.
    left = problem.equations.T * predictions - problem.total[:, None]
    rules = np.hstack([left, -problem.equations.T])
    off = _SOLVER_TOLERANCE + problem.rounding
    eye = np.eye(groups)
    found = scipy.optimize.milp(
        # An objective, to go by: with none the search takes up to twenty times as long.
        np.concatenate([np.ones(groups), np.zeros(groups)]),
        integrality=np.ones(2 * groups),
        bounds=scipy.optimize.Bounds(0.0, np.concatenate([problem.counts, problem.counts])),
        constraints=[
            scipy.optimize.LinearConstraint(rules, -off, off),
            scipy.optimize.LinearConstraint(np.hstack([eye, -eye]), 0.0, np.inf),
            scipy.optimize.LinearConstraint(np.concatenate([np.ones(groups), np.zeros(groups)])[None], 1.0, np.inf),
        ],
        options={"time_limit": time_limit, "mip_rel_gap": _ANY_GAP},
    )
    if found.x is None:
        return None, None, found.status != 1
    used, positive = np.split(np.rint(found.x), 2)
    if (np.abs(rules @ np.concatenate([used, positive])) > 2 * off).any():
        return None, None, True
    return used, positive, True
