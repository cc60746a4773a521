"""Label attack by solving one signed sum of rows, where all residues of a batch have the same size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import flint
import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from splitvfl.attacks.residue_solving import solve_residues
from splitvfl.errors import ArgumentError, AttackRefused, HookError
from splitvfl.hooks import View
from splitvfl.learning.losses import Approximation
from splitvfl.learning.sigmoid_coefficients import checked_approximation, gradient_scale, sigmoid_coefficients

FloatMatrix = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

# Below this share of equations the box alone has other points in it, and its search is in vain.
_BOX_EQUATIONS = 0.4
# The time of a lattice reduction grows with the fourth power of its size: this many take about ten seconds.
_MOST_IN_LATTICE = 192
# Parts of one unit of the lattice, so that rounding the features to whole numbers adds little to a vector's length.
_UNIT = 16
# Orders of the basis that are tried; each leads the reduction to other vectors.
_ORDERS = 3
# Sums of each half that are enumerated, 64 MiB in all.
_MOST_SUMS = 1 << 20
# Pairs of half sums that are compared in full at once.
_PAIRS_AT_ONCE = 1 << 16
_MOST_PAIRS = 1 << 22


def recover_labels(features: Tensor, weighted_sum: Tensor, *, tolerance: float | Tensor | None = None) -> Tensor:
    """Return labels z in {−1, +1} with ``featuresᵀ z = weighted_sum``.

    Such a sum is what a batch gives away where the active party has no columns (d_A = 0), and in the first batch after
    zero initialisation whatever it has; :func:`label_sum` makes it from the gradient. In this order: least squares (as
    many equations as records); least squares within the box [−1, 1] (equations from about .55 to .7 times the records
    on); lattice reduction (128 records with 16 equations in seconds, 60 with 4); enumeration of two halves that meet
    (up to about 40 records). Every answer is checked against the sum.

    Identical rows share what the sum tells, which is how many of them are positive: the first ones are returned
    as the positives, whichever they are. A row of zeros enters no sum, and its label is returned as 0: undecided. It
    does not promise that there are no other such labels where columns hold few distinct values.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the attack for d_A = 0; the lattice is that of
    Coster et al., Computational Complexity 2 (1992), for subset sums, with all sums at once.

    Args:
        features: ``(s, d)``, the columns of one batch.
        weighted_sum: ``(d,)``.
        tolerance: How far a coordinate of the sum may be off, a number or ``(d,)``, in the features' unit: for sums in
            fixed point, their error. Default: what adding up in the coarser input dtype can be off,
            ``s · eps · Σ|x|``.

    Returns:
        ``(s,)``, float64: −1 and +1, and 0 for rows of zeros.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, the sum carries fewer bits than there are labels,
            or no such labels are found.

    >>> x = torch.tensor([[0.5, 1.0], [0.25, -1.5], [2.0, 0.125], [-0.75, 0.375]])
    >>> recover_labels(x, x.T @ torch.tensor([1.0, -1.0, -1.0, 1.0])).tolist()
    [1.0, -1.0, -1.0, 1.0]
    """
    return _assigned(_solved(features, weighted_sum, tolerance))


def label_sum(
    features: Tensor, gradient: Tensor, *, approximation: Approximation, logits: Tensor | None = None
) -> Tensor:
    """Return ``featuresᵀ y``, the signed sum of rows that a gradient of the mean loss tells.

    ``featuresᵀ y = featuresᵀ (2 S̃(z) − 1) − 2 s · gradient``, as ``f / c = S̃(z) − (1 + y)/2`` in all approximations. It
    is right only where the logits z are known to the last digit: zero before the first step after zero
    initialisation, or one's own part where nobody else has one.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the attack for d_A = 0.

    Args:
        features: ``(s, d)``.
        gradient: ``(d,)``, ``1 / (c s) · featuresᵀ f``: that of the batch's mean loss.
        approximation: Of the residues f.
        logits: ``(s,)``, default zeros.

    Returns:
        ``(d,)``, float64.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, or there is no such approximation.
    """
    _check(features, gradient)
    known = features.new_zeros(features.shape[0]) if logits is None else logits
    # f / c of a record with label −1 is S̃(z) itself.
    negatives = -torch.ones_like(known)
    sigmoid = sigmoid_coefficients(known, negatives, approximation=approximation) / gradient_scale(approximation)
    if sigmoid.shape[0] != features.shape[0]:
        raise ArgumentError(f"expected logits ({features.shape[0]},), one per row, got {tuple(known.shape)}")
    return features.double().T @ (2 * sigmoid - 1) - 2 * features.shape[0] * gradient.double()


@dataclass(frozen=True)
class _SumProblem:
    """Distinct rows other than zero, how often each comes, and the sum that they are to give.

    Unknown is each group's sum of labels: one of −count, −count + 2, ..., count.
    """

    rows: FloatMatrix
    counts: Whole
    total: FloatMatrix
    tolerance: FloatMatrix
    typical: FloatMatrix  # how far the sum is off in all likelihood, at most the tolerance
    group: Whole  # of each record; -1 for a row of zeros

    @property
    def largest(self) -> FloatMatrix:
        """Each column's largest magnitude, 1 for a column of zeros."""
        peaks = np.abs(self.rows).max(axis=0)
        return np.where(peaks > 0, peaks, 1.0)

    def met_by(self, sums: Whole) -> bool:
        """Return whether the groups can have these sums, and they give the total."""
        possible = (np.abs(sums) <= self.counts).all() and not ((sums + self.counts) % 2).any()
        return bool(possible and (np.abs(self.rows.T @ sums - self.total) <= self.tolerance).all())

    def nearest(self, sums: FloatMatrix) -> Whole:
        """Return the nearest sums that the groups can have."""
        positives = np.clip(np.rint((sums + self.counts) / 2), 0, self.counts)
        return (2 * positives - self.counts).astype(np.int64)


def _assigned(solved: tuple[_SumProblem, Whole]) -> Tensor:
    """Return a label for each record: a group's first records are its positives."""
    problem, sums = solved
    labels = np.zeros(problem.group.size)
    for number, (count, total) in enumerate(zip(problem.counts, sums, strict=True)):
        members = np.flatnonzero(problem.group == number)
        labels[members] = np.where(np.arange(count) < (count + total) // 2, 1.0, -1.0)
    return torch.from_numpy(labels)


def _shared(solved: tuple[_SumProblem, Whole]) -> Tensor:
    """Return each record's mean label in its group, NaN for a row of zeros."""
    problem, sums = solved
    means = np.append(sums / problem.counts, math.nan)
    return torch.from_numpy(means[problem.group])


def _solved(features: Tensor, weighted_sum: Tensor, tolerance: float | Tensor | None) -> tuple[_SumProblem, Whole]:
    problem = _problem(features, weighted_sum, tolerance)
    if not problem.rows.size:
        return problem, problem.counts
    _check_information(problem)
    for method in (_least_squares, _boxed, _lattice, _met_in_the_middle):
        for candidate in method(problem):
            if problem.met_by(candidate):
                return problem, candidate
    raise ArgumentError(
        f"no labels of {problem.counts.sum()} records were found that give the sum of {problem.total.size} columns "
        f"within {problem.tolerance.max():.3g}: either there are none, because the residues are not all of one "
        "magnitude (a later step, other first weights, an intercept, noise), or the columns are too few for so many "
        "records"
    )


def _problem(features: Tensor, weighted_sum: Tensor, tolerance: float | Tensor | None) -> _SumProblem:
    _check(features, weighted_sum)
    matrix, total = features.detach().cpu().double().numpy(), weighted_sum.detach().cpu().double().numpy()
    filled = matrix.any(axis=1)
    rows, inverse, counts = np.unique(matrix[filled], axis=0, return_inverse=True, return_counts=True)
    group = np.full(matrix.shape[0], -1)
    group[filled] = inverse.reshape(-1)
    eps = max(torch.finfo(tensor.dtype).eps for tensor in (features, weighted_sum))
    worst, typical = _rounding(matrix, total, eps)
    if tolerance is not None:
        worst = typical = _tolerance(tolerance, total.size)
    beyond = np.flatnonzero(np.abs(total) > np.abs(matrix).sum(axis=0) + worst)
    if beyond.size:
        raise ArgumentError(
            f"no labels give the sum {total[beyond[0]]:.6g} of column {beyond[0]}: its entries add up to at most "
            f"{np.abs(matrix[:, beyond[0]]).sum():.6g}"
        )
    return _SumProblem(rows, counts, total, worst, typical, group)


def _rounding(matrix: FloatMatrix, total: FloatMatrix, eps: float) -> tuple[FloatMatrix, FloatMatrix]:
    """Return how far the computed sum can be off, and how far it will be off in all likelihood."""
    bound = eps * (np.abs(matrix).sum(axis=0) + np.abs(total)) + np.finfo(np.float64).tiny
    # Each of s additions is off by at most half an eps of what has come together so far, in a random direction.
    spread = eps * (np.sqrt(matrix.shape[0]) * np.linalg.norm(matrix, axis=0)) + np.finfo(np.float64).tiny
    worst = matrix.shape[0] * bound
    return worst, np.minimum(worst, spread)


def _tolerance(tolerance: float | Tensor, size: int) -> FloatMatrix:
    given = np.asarray(tolerance.detach().cpu() if isinstance(tolerance, Tensor) else tolerance, dtype=np.float64)
    if given.shape not in ((), (size,)) or not np.isfinite(given).all() or not (given > 0).all():
        raise ArgumentError(f"expected a tolerance above 0, one number or ({size},), got {tolerance}")
    return np.broadcast_to(given, (size,)).copy()


def _check(features: Tensor, weighted_sum: Tensor) -> None:
    if features.dim() != 2 or weighted_sum.shape != features.shape[1:] or features.numel() == 0:
        raise ArgumentError(
            f"expected features (s, d) and a sum (d,), got {tuple(features.shape)} and {tuple(weighted_sum.shape)}"
        )
    for name, tensor in (("features", features), ("the sum", weighted_sum)):
        if not tensor.is_floating_point():
            raise ArgumentError(f"expected {name} of a floating-point dtype, got {tensor.dtype}")
        if not torch.isfinite(tensor).all():
            raise ArgumentError(f"{name} holds NaN or infinite values")


def _check_information(problem: _SumProblem) -> None:
    """Refuse sums so coarse that other labels than the true ones would give them too, by chance."""
    sizes = np.linalg.svd(problem.rows / problem.tolerance, compute_uv=False)
    # A sum of random signs is near normal; of its 2^s values, so many lie within the tolerance of any one.
    carried = np.log2(np.maximum(sizes * math.sqrt(math.pi / 2), 1.0)).sum()
    asked = np.log2(problem.counts + 1.0).sum()
    if asked > carried:
        raise ArgumentError(
            f"the sum of {problem.total.size} columns, known to {problem.tolerance.max():.3g}, carries about "
            f"{carried:.0f} bits, and {problem.counts.sum()} labels are {asked:.0f}: other labels give the same sum"
        )


def _least_squares(problem: _SumProblem) -> Iterator[Whole]:
    """Yield the one solution, if there are as many independent equations as groups."""
    if np.linalg.matrix_rank(problem.rows / problem.largest) == len(problem.rows):
        solution, *_ = np.linalg.lstsq((problem.rows / problem.largest).T, problem.total / problem.largest)
        yield problem.nearest(solution.astype(np.float64))


def _boxed(problem: _SumProblem) -> Iterator[Whole]:
    """Yield the nearest to a point of the box that gives the sum; with enough equations there is only one."""
    if len(problem.rows) * _BOX_EQUATIONS > problem.total.size:
        return
    equations, total = (problem.rows / problem.largest).T, problem.total / problem.largest
    found = scipy.optimize.lsq_linear(equations, total, bounds=(-problem.counts, problem.counts), tol=1e-12)
    yield problem.nearest(found.x)


def _lattice(problem: _SumProblem) -> Iterator[Whole]:
    """Yield short vectors of a lattice in which the groups' sums are one of the shortest."""
    if len(problem.rows) > _MOST_IN_LATTICE:
        return
    random = np.random.default_rng(0)  # decides in which order things are tried, and nothing else
    for number in range(_ORDERS):
        order = np.arange(len(problem.rows)) if number == 0 else random.permutation(len(problem.rows))
        for error in (problem.typical, problem.tolerance):
            for sums in _reduced(problem, order, error):
                unordered = np.empty_like(sums)
                unordered[order] = sums
                yield from (unordered, -unordered)
            if error is problem.typical and np.array_equal(problem.typical, problem.tolerance):
                break


def _reduced(problem: _SumProblem, order: Whole, error: FloatMatrix) -> Iterator[Whole]:
    """Yield the sums, in that order, that the rows of the reduced basis stand for.

    The basis has the rows ``(2 u_g | 2 K x_g)`` and ``(u · count | K (Σ count x − total))``: it holds
    ``(u · sums | K (rowsᵀ sums − total))`` for sums of the right parity only, twice as far apart as all sums.
    """
    counts = problem.counts[order]
    units = np.maximum(np.rint(_UNIT / counts), 1).astype(int)
    steps = [[_whole(value, step) for value, step in zip(row, error, strict=True)] for row in problem.rows[order]]
    total = [_whole(value, step) for value, step in zip(problem.total, error, strict=True)]
    size, width = len(counts), len(total)
    basis = [[0] * (size + width) for _ in range(size + 1)]
    for number, row in enumerate(steps):
        basis[number][number] = 2 * int(units[number])
        basis[number][size:] = [2 * value for value in row]
    basis[size][:size] = [int(unit * count) for unit, count in zip(units, counts, strict=True)]
    basis[size][size:] = [
        sum(int(count) * row[column] for count, row in zip(counts, steps, strict=True)) - total[column]
        for column in range(width)
    ]
    limits = units * counts
    for vector in flint.fmpz_mat(basis).lll().tolist():
        # Within the limits numbers are small; elsewhere in the vector they may be of any length.
        if all(abs(int(value)) <= limit for value, limit in zip(vector, limits, strict=False)):
            yield np.array([int(value) for value in vector[:size]], dtype=np.int64) // units


def _whole(value: float, step: float) -> int:
    """Return ``value · _UNIT / step`` as the nearest whole number, however large."""
    numerator, denominator = float(value).as_integer_ratio()
    above, below = float(step).as_integer_ratio()
    return round(Fraction(numerator * below * _UNIT, denominator * above))


def _met_in_the_middle(problem: _SumProblem) -> Iterator[Whole]:
    """Yield what sums of two halves of the groups add up to the total, along one random line."""
    halves = _halves(problem.counts)
    if halves is None:
        return
    line = np.random.default_rng(0).normal(size=problem.total.size) / problem.tolerance
    weights, target = problem.rows @ line, float(problem.total @ line)
    width = float(np.abs(line) @ problem.tolerance)
    left, right = (_half_sums(weights[half], problem.counts[half]) for half in halves)
    order = np.argsort(right)
    first = np.searchsorted(right[order], target - width - left, side="left")
    last = np.searchsorted(right[order], target + width - left, side="right")
    for pairs in _pairs(first, last):
        yield from _joined(problem, halves, pairs[:, 0], order[pairs[:, 1]])


def _halves(counts: Whole) -> tuple[Whole, Whole] | None:
    """Return two halves of the groups with about as many possible sums, or ``None`` if these are too many."""
    bits = np.cumsum(np.log2(counts + 1.0))
    middle = int(np.abs(bits - bits[-1] / 2).argmin()) + 1
    halves = np.arange(middle), np.arange(middle, counts.size)
    too_many = any(np.log2(counts[half] + 1.0).sum() > math.log2(_MOST_SUMS) + 1e-9 for half in halves)
    return None if too_many else halves


def _half_sums(weights: FloatMatrix, counts: Whole) -> FloatMatrix:
    """Return the weighted sum of every choice of group sums; the last group changes fastest."""
    sums = np.zeros(1)
    for weight, count in zip(weights, counts, strict=True):
        sums = (sums[:, None] + weight * np.arange(-count, count + 1, 2)).reshape(-1)
    return sums


def _pairs(first: Whole, last: Whole) -> Iterator[Whole]:
    """Yield pairs (left, position on the right), in pieces and up to a limit."""
    ends = np.cumsum(last - first)
    for start in range(0, min(int(ends[-1]), _MOST_PAIRS), _PAIRS_AT_ONCE):
        numbers = np.arange(start, min(start + _PAIRS_AT_ONCE, int(ends[-1])))
        left = np.searchsorted(ends, numbers, side="right")
        yield np.stack([left, last[left] - ends[left] + numbers], axis=1)


def _joined(problem: _SumProblem, halves: tuple[Whole, Whole], left: Whole, right: Whole) -> Iterator[Whole]:
    sums = np.empty((left.size, problem.counts.size), dtype=np.int64)
    for half, chosen in zip(halves, (left, right), strict=True):
        shape = tuple(problem.counts[half] + 1)
        digits = np.unravel_index(chosen, shape) if shape else ()
        for group, digit in zip(half, digits, strict=True):
            sums[:, group] = 2 * digit - problem.counts[group]
    off = np.abs(sums @ problem.rows - problem.total)
    yield from sums[(off <= problem.tolerance).all(axis=1)]


class LabelSumAttack:
    """Read all labels of a batch from its one aggregated gradient, as far as the theory goes.

    In the first batch after zero initialisation every residue is minus or plus the same number, so a linear bottom's
    gradient tells ``columnsᵀ y``, from which :func:`recover_labels` gets the labels of far more records than there are
    columns. Where the active party has no columns (d_A = 0) and no intercept, that holds in every batch, with
    ``every_step``: the passive party's own activation is then the whole logit.

    Later batches are not scored (NaN) without ``every_step``: their residues depend on what another party holds. A
    batch whose gradient is no such sum is refused with the reason: the first weights were not zero, an intercept has
    moved, the gradient is noisy, or the columns are too few. Residues are taken as averaged over the batch, unweighted.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the attack for d_A = 0.

    Args:
        every_step: Whether to attack every batch: the active party has neither columns nor an intercept.
        approximation: Of the residues; at zero logits all are the same.
        gradient_error: How far a coordinate of the gradient may be off, > 0: the error of sums in fixed point. Default:
            that of its dtype.
        fallback: Whether to score by :func:`~splitvfl.attacks.solve_residues` where it would not score or refuse.
    """

    name: ClassVar[str] = "label-sum"
    explanation: ClassVar[str] = (
        "Searches the labels that explain the sum of residues times rows exactly: at weights of zero all residues are "
        "of one size, and a few sums tell the labels of far more records than there are columns."
    )
    signed: ClassVar[bool] = True

    def __init__(
        self,
        *,
        every_step: bool = False,
        approximation: Approximation = "exact",
        gradient_error: float | None = None,
        fallback: bool = False,
    ) -> None:
        if gradient_error is not None and not (math.isfinite(gradient_error) and gradient_error > 0):
            raise ArgumentError(f"expected a finite gradient_error above 0, got {gradient_error}")
        self._every_step = every_step
        self._approximation = checked_approximation(approximation)
        self._gradient_error = gradient_error
        self._fallback = fallback
        self.needs = frozenset({"columns", "aggregated_gradient"} | ({"activation"} if every_step else set()))

    def __call__(self, view: View, /) -> Tensor:
        """Return the labels, or minus the solved residues.

        Args:
            view: Its ``columns`` ``(n, d)`` and ``aggregated_gradient`` ``(d, 1)`` are read, and with ``every_step``
                its ``activation`` ``(n, 1)``.

        Returns:
            ``(n,)``, float64: −1 and +1; between them the mean label of identical rows, and NaN for a row of zeros.

        Raises:
            HookError: If the columns are not one tensor, or the cut is wider than 1.
            AttackRefused: If the labels cannot be had.
        """
        columns, gradient = view.columns, view.aggregated_gradient
        if not isinstance(columns, Tensor):
            raise HookError(f"attack {self.name} needs numeric columns (n, d), got {type(columns).__name__}")
        if gradient.shape[1:] != (1,):
            raise HookError(f"attack {self.name} solves cuts of width 1, got shape {tuple(gradient.shape)}")
        if self._every_step or view.step == 0:
            try:
                return self._labels(view, columns, gradient[:, 0]).to(columns.device)
            except ArgumentError as error:
                if not self._fallback:
                    raise AttackRefused(
                        f"attack {self.name} at step {view.step}: {error}; it needs weights of zero at the first step, "
                        "or an active party without columns and intercept (every_step)"
                    ) from error
        if self._fallback:
            return -solve_residues(columns, gradient[:, 0], underdetermined=True)
        return torch.full((columns.shape[0],), math.nan, dtype=torch.float64, device=columns.device)

    def _labels(self, view: View, columns: Tensor, gradient: Tensor) -> Tensor:
        logits = view.activation[:, 0] if self._every_step else None
        total = label_sum(columns, gradient, approximation=self._approximation, logits=logits)
        # The sum is as coarse as the gradient that it comes from.
        error = None if self._gradient_error is None else 2 * columns.shape[0] * self._gradient_error
        return _shared(_solved(columns, total.to(gradient.dtype), error))
