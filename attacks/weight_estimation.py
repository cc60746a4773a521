"""The equations' matrix, estimated from records whose columns the attacker knows: what a black-box attacker can do."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from splitvfl.attacks.known_span import spans_all_but_sums, what_helps
from splitvfl.attacks.white_box import WhiteBox, check_known_rows, white_box
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Equations, Target, View
from splitvfl.leakage.score_equations import RANK_TOLERANCE


class WeightEstimate(NamedTuple):
    """What auxiliary records tell of a model's weights.

    Attributes:
        A: ``(m, d)``, float64: the estimate of the matrix in ``A x = b``.
        intercept: ``(m,)``, float64: of what b exceeds ``A x`` by; zeros unless it was asked for.
        error: ``(m, d)``, float64: no entry of A is off by more.
        intercept_error: ``(m,)``, likewise.
    """

    A: Tensor
    intercept: Tensor
    error: Tensor
    intercept_error: Tensor


def estimate_weights(
    columns: Tensor, b: Tensor, *, error: Tensor | float = 0.0, intercept: bool = False
) -> WeightEstimate:
    """Return the least-squares estimate of A in ``A x = b`` from records whose columns x are known.

    Exact where b is; then any attack that takes the weights for known can be run. With right sides that are off by at
    most ``error``, ``|Â − A| <= |X⁺| · error`` entry by entry, plus what float64 rounds. Where the errors of N records
    are independent, the estimate's falls as 1/√N; the bound, which holds for any errors, need not fall.

    Columns of a category add up to one in every record, so that no records tell all weights: a constant may be moved
    between them. The solution of smallest norm is taken then. It gives the same ``A x`` plus intercept as the weights
    themselves for every record whose categories add up likewise, and for no other: one of a category that the encoding
    does not list, say. ``error`` is then of the weights' part that such records can tell.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the attacker with auxiliary data.

    Args:
        columns: Known columns X of the auxiliary records, ``(N, d)`` with N >= d, or N >= d + 1 with an intercept.
            With categories among the columns so many are enough too.
        b: Right-hand sides of the same records, ``(N, m)``. Those of scores need no weights:
            ``equations(scores, active_logits, zeros(k, d))[1]``.
        error: How far each may be off, >= 0: ``(N, m)``, or what extends to it.
        intercept: Whether b also holds a number that is unknown and the same for all records.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, there are too few records, or they do not determine
            the weights by more than a category's sum: repeated records, say, a category that none of them has, or
            another column that does not vary beside an intercept.
    """
    known, right = _checked(columns, b, intercept)
    off = torch.as_tensor(error, dtype=torch.float64, device=right.device)
    if not bool((off >= 0).all()) or not bool(torch.isfinite(off).all()):
        raise ArgumentError("expected a finite error of at least 0 everywhere")
    try:
        off = off.expand(right.shape)
    except RuntimeError as problem:
        raise ArgumentError(
            f"expected an error that extends to {tuple(right.shape)}, got {tuple(off.shape)}"
        ) from problem
    inverse: Tensor = torch.linalg.pinv(known, rtol=RANK_TOLERANCE)
    found = (inverse @ right).T
    # What the pseudo-inverse rounds: units of the condition number, times the inverse's size and that of b.
    units = 8 * known.shape[0] * torch.finfo(torch.float64).eps * _condition(known)
    rounded = units * torch.linalg.matrix_norm(inverse, ord=2) * torch.linalg.vector_norm(right, dim=0)
    bound = (inverse.abs() @ off).T + rounded.unsqueeze(1)
    width = columns.shape[1]
    if intercept:
        return WeightEstimate(found[:, :width], found[:, width], bound[:, :width], bound[:, width])
    none = found.new_zeros(found.shape[0])
    return WeightEstimate(found, none, bound, none)


def _checked(columns: Tensor, b: Tensor, intercept: bool) -> tuple[Tensor, Tensor]:
    """Return X, with a column of ones for an intercept, and b, in float64."""
    fits = columns.dim() == 2 and b.dim() == 2 and columns.shape[:1] == b.shape[:1]
    if not fits or 0 in (columns.shape[1], b.shape[1]):
        raise ArgumentError(f"expected columns (N, d) and b (N, m), got {tuple(columns.shape)} and {tuple(b.shape)}")
    known, right = columns.double(), b.double()
    if not (torch.isfinite(known).all() and torch.isfinite(right).all()):
        raise ArgumentError("columns or b holds NaN or infinite values")
    if intercept:
        known = torch.cat([known, known.new_ones(len(known), 1)], dim=1)
    wanted, rank = known.shape[1], int(torch.linalg.matrix_rank(known, rtol=RANK_TOLERANCE))
    rows = columns.double()
    if intercept:
        rows = rows - rows.mean(dim=0) if len(rows) else rows
    if rank < wanted and not spans_all_but_sums(rows, rank - int(intercept)):
        raise ArgumentError(
            f"{len(known)} auxiliary records determine {rank} of {wanted} unknown weights: {what_helps(columns)}"
        )
    return known, right


def _condition(known: Tensor) -> Tensor:
    """Return the largest singular value over the smallest that counts."""
    sizes = torch.linalg.svdvals(known)
    found: Tensor = sizes[0] / sizes[sizes > RANK_TOLERANCE * sizes[0]][-1]
    return found


class WeightEstimationAttack:
    """Estimate a party's columns without its weights: these from records whose columns are known, then a white box.

    The black-box attacker with auxiliary records: it sees scores, and knows its own part of them, the range of the
    other party's columns, and the columns of some training records. What a prediction tells beyond that party's weights
    is one unknown number per equation, the same for all records, so one record more is needed than there are columns.
    A transform of the columns does not stop it: it estimates the transformed weights for the columns themselves.

    Promises what the attack it goes on with does, where scores have all their digits; of rounded ones the estimated
    equations are off by what :func:`estimate_weights` bounds, which is added to their error.

    In a file: ``attacks: [{name: weight-estimation, known_rows: 20, then: rcc2}]``

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the attacker with auxiliary data.

    Args:
        known_rows: Training records whose columns the attacker is assumed to know; it is not judged by them. At least
            one more than there are columns that vary, so that every category occurs among them.
        then: The attack on equations that it goes on with.

    Raises:
        ArgumentError: If ``known_rows`` is no whole number of at least 1, or there is no such attack.
    """

    name: ClassVar[str] = "weight-estimation"
    target: ClassVar[Target] = "features"
    weights_known: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"equations", "known_rows"})

    def __init__(self, *, known_rows: int, then: WhiteBox = "rcc2") -> None:
        self.known_rows = check_known_rows(known_rows)
        self._then = white_box(then)

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``known_rows`` are read, and of ``equations`` the right sides, up to a number that is the same for
                all records.

        Returns:
            ``(n, d)``, float64.

        Raises:
            AttackRefused: If there are too few known records, or they do not determine the weights.
        """
        known = view.known_rows
        try:
            found = estimate_weights(known.columns, known.b, error=known.error, intercept=True)
        except ArgumentError as problem:
            raise AttackRefused(str(problem)) from problem
        _, b, error = view.equations
        # Points of the unit box weigh each entry of the matrix by at most 1.
        off = found.error.sum(dim=1) + found.intercept_error
        return self._then.estimate(Equations(found.A, b - found.intercept, error + off))
