"""Undoing a secret orthonormal transform of the passive columns, from records that the attacker knows.

The model was trained on ``z = H x``, the attacker takes z for x, and least squares returns ``ẑ = H P x``, with P the
projector on the row space of the equations (:mod:`splitvfl.data.transform`). From d records x that are known, in
general position, follows ``M = H P``: as much of H as matters. ``Mᵀ ẑ = P x`` is what least squares gives without a
transform.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.known_span import spans_all_but_sums, what_helps
from splitvfl.attacks.least_squares import least_squares
from splitvfl.attacks.white_box import WhiteBox, check_known_rows, white_box
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Equations, Target, View
from splitvfl.leakage.score_equations import RANK_TOLERANCE

_RANK_TOLERANCE = 1e-8


def recover_transform(estimates: Tensor, known: Tensor, *, rank: int | None = None) -> Tensor:
    """Return ``H P`` from estimates of known records.

    ``ẑ = x Mᵀ`` is solved by least squares, and the solution replaced by the nearest partial isometry of its rank: the
    orthogonal Procrustes problem. Exact where estimates are; of noisy ones more records than d give better answers. A
    permutation is such a transform. So is a flip, around ½: take ½ from the known records, and solve ``b − A ½`` for
    the estimates.

    Columns of a category add up to one in every record, so that known records less their mean never span all columns.
    Then it is ``H P S`` that is returned, the solution of smallest norm, with S the projector on what they span: the
    same as ``H P`` for every record whose categories add up likewise. It is no isometry, and none is looked for.

    Source: Schönemann, Psychometrika 31 (1966); *Privacy Against Inference Attacks in Vertical Federated Learning* on
    orthonormal transforms.

    Args:
        estimates: Least-squares estimates ẑ of the known records, ``(N, d)``.
        known: These records x, ``(N, d)``, N at least d, in general position but for categories' sums.
        rank: Number of independent equations. Default: that of the solution; to be named where estimates are noisy.

    Returns:
        ``(d, d)``, float64.

    Raises:
        ArgumentError: If shapes differ, an entry is not finite, known records span fewer than d dimensions by more
            than categories' sums, or the rank is not from 0 to d.

    >>> recover_transform(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.eye(2)).round().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    if estimates.shape != known.shape or known.dim() != 2 or not known.shape[1]:
        raise ArgumentError(f"expected estimates and known records (N, d), got {estimates.shape} and {known.shape}")
    if not (torch.isfinite(estimates).all() and torch.isfinite(known).all()):
        raise ArgumentError("estimates or known records hold NaN or infinite values")
    d, spanned = known.shape[1], int(torch.linalg.matrix_rank(known.double(), rtol=_RANK_TOLERANCE))
    if spanned < d and not spans_all_but_sums(known.double(), spanned):
        raise ArgumentError(
            f"expected known records that span all {d} columns, got {len(known)} that span {spanned}; without "
            f"that many the transform is not determined: {what_helps(known)}"
        )
    if rank is not None and not 0 <= rank <= d:
        raise ArgumentError(f"expected a rank from 0 to {d}, got {rank}")
    fitted: Tensor = torch.linalg.pinv(known.double(), rtol=_RANK_TOLERANCE) @ estimates.double()
    if spanned < d:
        return fitted.T
    left, sizes, right = torch.linalg.svd(fitted.T)
    kept = int((sizes > _RANK_TOLERANCE * max(1.0, sizes[0].item())).sum()) if rank is None else rank
    found: Tensor = left[:, :kept] @ right[:kept]
    return found


def undo_transform(estimates: Tensor, recovered: Tensor) -> Tensor:
    """Return what least squares would give without the transform: ``Mᵀ ẑ = P x``.

    Args:
        estimates: Least-squares estimates ẑ, ``(n, d)``.
        recovered: M of :func:`recover_transform`, ``(d, d)``.

    Returns:
        ``(n, d)``, float64.

    Raises:
        ArgumentError: If shapes do not fit.
    """
    if estimates.dim() != 2 or recovered.shape != (estimates.shape[1],) * 2:
        raise ArgumentError(
            f"expected estimates (n, d) and a transform (d, d), got {tuple(estimates.shape)} and "
            f"{tuple(recovered.shape)}"
        )
    return estimates.double() @ recovered.double().to(estimates.device)


class ProcrustesAttack:
    """Estimate a party's columns that were transformed before training, from its weights and some known records.

    The attacker knows the weights of the transformed columns, that the transform is ``H t + s`` with H orthonormal, and
    the columns of some training records: :func:`recover_transform` finds as much of H as matters, and the attack goes
    on with the equations of the columns themselves. A flip, a permutation and an orthonormal matrix are such
    transforms, where every column ranges over [0, 1] (``minmax``); with ranges of different widths the transform is
    orthonormal in the columns and not in their ranges, and :class:`WeightEstimationAttack` is the attack to use.

    Promises what the attack it goes on with does without a transform, where scores have all their digits.

    In a file: ``attacks: [{name: procrustes, known_rows: 20}]``

    Source: Schönemann, Psychometrika 31 (1966); *Privacy Against Inference Attacks in Vertical Federated Learning* on
    orthonormal transforms.

    Args:
        known_rows: Training records whose columns the attacker is assumed to know; it is not judged by them. At least
            as many as there are columns that vary, and one more with a shift, so that every category occurs
            among them.
        shifted: Whether the transform may have a shift s, as a flip has.
        then: The attack on equations that it goes on with.

    Raises:
        ArgumentError: If ``known_rows`` is no whole number of at least 1, or there is no such attack.
    """

    name: ClassVar[str] = "procrustes"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"equations", "known_rows"})

    def __init__(self, *, known_rows: int, shifted: bool = True, then: WhiteBox = "least-squares") -> None:
        self.known_rows = check_known_rows(known_rows)
        self._shifted = shifted
        self._then = white_box(then)

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``equations`` and ``known_rows`` are read.

        Returns:
            ``(n, d)``, float64.

        Raises:
            AttackRefused: If there are too few known records, or they span less than all columns by more than
                categories' sums.
        """
        (A, b, error), known = view.equations, view.known_rows
        columns, right = known.columns.double(), known.b.double()
        # A shift moves all records alike, so that differences from their mean do not have it.
        middle, shared = columns.mean(dim=0), right.mean(dim=0)
        if not self._shifted:
            middle, shared = torch.zeros_like(middle), torch.zeros_like(shared)
        rank = int(torch.linalg.matrix_rank(A, rtol=RANK_TOLERANCE))
        try:
            turned = recover_transform(least_squares(A, right - shared), columns - middle, rank=rank)
        except ArgumentError as problem:
            raise AttackRefused(f"{problem}{' (one is spent on the shift)' if self._shifted else ''}") from problem
        true = A @ turned
        constant = shared - true @ middle
        return self._then.estimate(Equations(true, b - constant, error))
