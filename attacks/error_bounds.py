"""Closed forms and bounds of the error of least squares and Half*, from a party's own columns.

A party knows its columns, so it knows what the estimates of others would miss, without a message. Columns enter through
sums over rows (:class:`ColumnMoments`), so that their number does not matter.

With ``P = A⁺A`` and ``K_m = E(x − m)(x − m)ᵀ`` over the records, and d columns:

- ``d · MSE(least squares) = Tr((I − P) K_0)``
- ``d · MSE(Half*) = Tr((I − P) K_½)``
- no estimate ``A⁺b + (I − P)m`` has less than ``Tr((I − P) K_mean)``; it is that of the columns' means.

Estimates are taken as they are, not clipped to the box: clipping can only make the errors smaller. Columns are in the
unit box.

Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, theorem 2, lemma 1 and theorem 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.leakage.column_moments import ColumnMoments
from splitvfl.leakage.score_equations import RANK_TOLERANCE

Seen = Literal["scores", "activation"]

UNIFORM_VARIANCE = 1.0 / 12.0
"""Of a uniform random number in [0, 1]: what a uniform guess adds to the error of ½, per feature, on any data."""

_HALF = 0.5


class ErrorRange(NamedTuple):
    """Between which numbers an MSE per feature lies.

    Attributes:
        low: It is no less.
        high: It is no more.
    """

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ErrorForecast:
    """What an attacker's estimates miss, as far as it is known before training: MSE per feature.

    Attributes:
        rank: Number of independent equations.
        least_squares: Of least squares.
        half_star: Of Half*.
        best: Of ``A⁺b + (I − P)·mean``, for who knows the columns' means; its lower end bounds the two others too.
    """

    rank: int
    least_squares: ErrorRange
    half_star: ErrorRange
    best: ErrorRange

    @property
    def exact(self) -> bool:
        """Whether every column is found exactly, of every record."""
        return self.least_squares.high == 0.0


def row_space(A: Tensor) -> Tensor:
    """Return the projector ``P = A⁺A`` on the rows of A, ``(d, d)``, float64.

    Singular values below ``1e-10 · σ_max`` count as zero.

    Args:
        A: Equations, ``(m, d)``, m of 0 or more.

    Raises:
        ArgumentError: If the shape is another, or an entry is not finite.
    """
    if A.dim() != 2 or A.shape[1] == 0 or not torch.isfinite(A).all():
        raise ArgumentError(f"expected finite equations (m, d) with d of at least 1, got {tuple(A.shape)}")
    if A.shape[0] == 0:
        return torch.zeros(A.shape[1], A.shape[1], dtype=torch.float64)
    _, sizes, basis = torch.linalg.svd(A.detach().cpu().double(), full_matrices=False)
    kept = basis[sizes > RANK_TOLERANCE * sizes[0]]
    found: Tensor = kept.T @ kept
    return found


def column_errors(A: Tensor, moments: ColumnMoments, *, fill: float | Tensor) -> Tensor:
    """Return the mean squared error of every column under the estimate ``A⁺b + (I − P)m``.

    ``m = 0`` is least squares, ``m = ½`` Half*, the columns' means the best of this form. With A of no rows it is the
    estimate m itself.

    Args:
        A: Equations, ``(m, d)``.
        moments: Of the columns.
        fill: m, a number or ``(d,)``.

    Returns:
        ``(d,)``, float64; its mean is the MSE per feature.

    Raises:
        ArgumentError: As :func:`row_space`; if the number of columns differs.
    """
    missed = _missed(A, moments)
    errors: Tensor = ((missed @ moments.around(fill)) * missed).sum(dim=1)
    return errors.clamp(min=0.0)


def least_squares_error(A: Tensor, moments: ColumnMoments) -> float:
    """Return ``Tr((I − P) K_0) / d``, the MSE per feature of least squares; arguments as of :func:`column_errors`."""
    return column_errors(A, moments, fill=0.0).mean().item()


def half_star_error(A: Tensor, moments: ColumnMoments) -> float:
    """Return ``Tr((I − P) K_½) / d``, the MSE per feature of Half*; arguments as of :func:`column_errors`."""
    return column_errors(A, moments, fill=_HALF).mean().item()


def least_error(A: Tensor, moments: ColumnMoments) -> float:
    """Return ``Tr((I − P) K_mean) / d``, which no estimate ``A⁺b + (I − P)m`` goes below."""
    return column_errors(A, moments, fill=moments.mean).mean().item()


def guess_error(moments: ColumnMoments, mean: float | Tensor, variance: float | Tensor = 0.0) -> float:
    """Return the MSE per feature of a random guess that looks at no equation.

    It is that of the guess's mean and the guess's variance on top: lemma 1. ``guess_error(moments, 0.5)`` is Half,
    ``guess_error(moments, 0.5, UNIFORM_VARIANCE)`` a uniform guess.

    Args:
        moments: Of the columns.
        mean: Of the guess, a number or ``(d,)``.
        variance: Of the guess, per feature, at least 0.
    """
    spread = torch.as_tensor(variance, dtype=torch.float64).expand(moments.columns)
    return (moments.around(mean).diagonal() + spread).mean().item()


def flip_gain(A: Tensor, moments: ColumnMoments) -> float:
    """Return ``4 Tr(P K_½) / d``: by how much the flip x → 1 − x raises the MSE of least squares and of Half*.

    For an attacker who takes the flipped columns for the true ones, and nobody else.
    """
    known = torch.eye(moments.columns, dtype=torch.float64) - _missed(A, moments)
    return 4.0 * (known * moments.around(_HALF)).sum().item() / moments.columns


def transformed_error(
    A: Tensor, moments: ColumnMoments, H: Tensor, shift: Tensor | None = None, *, fill: float = 0.0
) -> float:
    """Return the MSE per feature where the model was trained on ``z = H x + s``, and the attacker takes z for x.

    The weights are then ``A Hᵀ``, and the estimate of z is ``H P Hᵀ z + (I − H P Hᵀ) m``. For m = 0 and s = 0 this is
    ``(Tr((I + P) K_0) − 2 Tr(H P K_0)) / d``.

    Args:
        A: Equations of the model without the transform, ``(m, d)``.
        moments: Of the columns, untransformed.
        H: Orthonormal, ``(d, d)``.
        shift: s, ``(d,)``; default: zeros.
        fill: m: 0 for least squares, ½ for Half*.

    Raises:
        ArgumentError: As :func:`row_space`; if shapes differ.
    """
    d = moments.columns
    if H.shape != (d, d) or (shift is not None and shift.shape != (d,)):
        raise ArgumentError(f"expected H ({d}, {d}) and a shift ({d},), got {tuple(H.shape)} and {shift}")
    identity, turned = torch.eye(d, dtype=torch.float64), H.double()
    known = identity - _missed(A, moments)
    missed = identity - turned @ known
    projector = turned @ known @ turned.T
    moved = torch.zeros(d, dtype=torch.float64) if shift is None else shift.double()
    constant = projector @ moved + (identity - projector) @ torch.full((d,), fill, dtype=torch.float64)
    # Around ½, where the moments have their digits: x − estimate = missed (x − ½) + rest.
    rest = missed.sum(dim=1) * _HALF - constant
    spread = ((missed @ moments.around(_HALF)) * missed).sum()
    cross = 2.0 * (rest @ missed @ (moments.mean - _HALF))
    return ((spread + cross + rest @ rest) / d).item()


def _missed(A: Tensor, moments: ColumnMoments) -> Tensor:
    if A.dim() != 2 or A.shape[1] != moments.columns:
        raise ArgumentError(f"expected equations (m, {moments.columns}), got {tuple(A.shape)}")
    return torch.eye(moments.columns, dtype=torch.float64) - row_space(A)


# --- before training


def equation_count(classes: int, *, seen: Seen, one_logit: bool = True) -> int:
    """Return how many equations one prediction gives.

    Args:
        classes: k, at least 2.
        seen: Scores, or the activation itself, which whoever adds up the parts receives.
        one_logit: Whether two classes share one logit (a sigmoid), as they do in this library: the activation then
            tells what the score does.

    Returns:
        k − 1 of scores, k of the activation; 1 of one logit.

    Raises:
        ArgumentError: If there are fewer than two classes, or neither scores nor the activation are seen.
    """
    if classes < 2:
        raise ArgumentError(f"expected at least 2 classes, got {classes}")
    if seen not in ("scores", "activation"):
        raise ArgumentError(f"expected scores or activation, got {seen!r}")
    if classes == 2 and one_logit:
        return 1
    return classes - 1 if seen == "scores" else classes


def classes_for_exactness(columns: int, *, seen: Seen, one_logit: bool = True) -> int:
    """Return from how many classes on every column is found exactly, for weights in general position.

    Args:
        columns: d, at least 1.
        seen: As in :func:`equation_count`.
        one_logit: Likewise.

    >>> classes_for_exactness(9, seen="scores"), classes_for_exactness(9, seen="activation")
    (10, 9)
    """
    if columns < 1:
        raise ArgumentError(f"expected at least one column, got {columns}")
    classes = 2
    while equation_count(classes, seen=seen, one_logit=one_logit) < columns:
        classes += 1
    return classes


def models_for_exactness(columns: int, equations: int) -> int | None:
    """Return after how many models every column is found exactly: the least T with ``T · equations >= columns``.

    Of models in general position, as those are that were fitted to different records; models that are alike need more.
    The equations are those of one prediction by each model of the same record (:func:`equation_count`).

    Args:
        columns: d, at least 1.
        equations: That each model gives, at least 0.

    Returns:
        T, or ``None`` where models give no equation.

    Raises:
        ArgumentError: If a number is below that.

    >>> models_for_exactness(12, equation_count(4, seen="scores"))
    4
    """
    if columns < 1 or equations < 0:
        raise ArgumentError(f"expected at least one column and 0 equations, got {columns} and {equations}")
    return -(-columns // equations) if equations else None


def errors_before_training(moments: ColumnMoments, equations: int) -> ErrorForecast:
    """Return what estimates miss with so many equations in general position, whatever the weights will be.

    ``d · MSE`` lies between the sums of the ``d − rank`` smallest and largest eigenvalues of K, for every A of this
    rank: ``I − P`` is a projector on ``d − rank`` dimensions. Ranges hold for each A; which end is nearer, only the
    trained weights tell. A model whose equations depend on each other has a lower rank and larger errors.

    Args:
        moments: Of the columns.
        equations: How many there are (:func:`equation_count`), at least 0.

    Raises:
        ArgumentError: If ``equations`` is negative.
    """
    if equations < 0:
        raise ArgumentError(f"expected at least 0 equations, got {equations}")
    rank = min(equations, moments.columns)
    ranges = (_range(moments.around(point), rank) for point in (0.0, _HALF, moments.mean))
    return ErrorForecast(rank, *ranges)


def _range(second_moments: Tensor, rank: int) -> ErrorRange:
    values = torch.linalg.eigvalsh(second_moments).clamp(min=0.0)  # ascending; roundings may go below
    columns = values.shape[0]
    unknown = columns - rank
    return ErrorRange(values[:unknown].sum().item() / columns, values[columns - unknown :].sum().item() / columns)
