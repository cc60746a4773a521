"""Label attack by solving for the residues, of which a linear bottom receives columnsᵀ · residues."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View


def solve_residues(features: Tensor, gradient: Tensor, *, underdetermined: bool = False) -> Tensor:
    """Return the minimum-norm solution f of ``featuresᵀ f = gradient``.

    ``f = (featuresᵀ)⁺ gradient``. When the numerical rank equals the number of rows s, f is unique: the residues
    themselves. The rank counts singular values above ``max(s, d) · eps · σ_max``, with eps of the coarser input dtype;
    smaller ones are treated as zero. It does not promise right signs when s exceeds the rank: there, for equal
    magnitudes and generic features, a sign is right with probability ``Φ(sqrt(d / (s − d)))``.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the residue solving attack.

    Args:
        features: ``(s, d)``, the columns of one batch.
        gradient: ``(d,)``, the sum over the batch of residue times row.
        underdetermined: Whether to answer also when s exceeds the rank.

    Returns:
        ``(s,)``, float64, in the unit of the residues in ``gradient``.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, or s exceeds the rank and ``underdetermined``
            is false.

    >>> solve_residues(torch.eye(2), torch.tensor([0.5, -0.25])).tolist()
    [0.5, -0.25]
    """
    check_sum(features, gradient)
    rows = features.shape[0]
    left, sizes, right = torch.linalg.svd(features.double(), full_matrices=False)
    eps = max(torch.finfo(tensor.dtype).eps for tensor in (features, gradient))
    kept = sizes > max(features.shape) * eps * sizes[0]
    rank = int(kept.sum())
    if rows > rank and not underdetermined:
        raise ArgumentError(
            f"{rows} residues are more than the features' rank {rank} determines; "
            "underdetermined=True returns the smallest of many solutions"
        )
    solution: Tensor = left[:, kept] @ ((right[kept] @ gradient.double()) / sizes[kept])
    return solution


def check_sum(features: Tensor, gradient: Tensor) -> None:
    """Raise :class:`ArgumentError` unless features ``(s, d)`` and a sum of their rows ``(d,)`` fit and are finite."""
    if features.dim() != 2 or gradient.shape != features.shape[1:] or features.numel() == 0:
        raise ArgumentError(
            f"expected features (s, d) and a gradient (d,), got {tuple(features.shape)} and {tuple(gradient.shape)}"
        )
    for name, tensor in (("features", features), ("gradient", gradient)):
        if not tensor.is_floating_point():
            raise ArgumentError(f"expected {name} of a floating-point dtype, got {tensor.dtype}")
        if not torch.isfinite(tensor).all():
            raise ArgumentError(f"{name} holds NaN or infinite values")


class ResidueSolvingAttack:
    """Score every record by minus its solved residue, from the aggregated gradient of a linear bottom model.

    It works where the passive party never sees a cut gradient per record, only ``columnsᵀ · gradient``, as under
    homomorphic encryption. Label +1 is ``−sign(f_i)`` with f from :func:`solve_residues`, here the score itself is
    ``−f_i``. Exact for batches of at most as many records as the columns' rank; beyond it the minimum-norm solution
    still has right signs with probability about ``Φ(sqrt(d / (s − d)))``. With several passive parties each one solves
    for itself, and every one with enough columns gets the same residues.

    Also called: equation solving.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the residue solving attack.

    Args:
        underdetermined: Whether to score batches larger than the rank too. ``False`` raises there.
    """

    name: ClassVar[str] = "residue-solving"
    explanation: ClassVar[str] = (
        "Solves the sum of residues times rows, which is the gradient of the partner's weights, for the residues: "
        "exactly if a batch has no more records than the partner has columns, else as well as least squares can. A "
        "residue's sign is its record's label. It makes no difference whether the sum was encrypted on its way."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"columns", "aggregated_gradient"})
    signed: ClassVar[bool] = True

    def __init__(self, *, underdetermined: bool = True) -> None:
        self._underdetermined = underdetermined

    def __call__(self, view: View, /) -> Tensor:
        """Return minus the solved residues.

        Args:
            view: Its ``columns`` ``(n, d)`` and ``aggregated_gradient`` ``(d, 1)`` are read.

        Returns:
            ``(n,)``, float64.

        Raises:
            HookError: If the columns are not one tensor, or the cut is wider than 1.
            ArgumentError: If the batch exceeds the rank and ``underdetermined`` is false.
        """
        columns, aggregated = view.columns, view.aggregated_gradient
        if not isinstance(columns, Tensor):
            raise HookError(f"attack {self.name} needs numeric columns (n, d), got {type(columns).__name__}")
        if aggregated.shape[1:] != (1,):
            raise HookError(f"attack {self.name} solves cuts of width 1, got shape {tuple(aggregated.shape)}")
        return -solve_residues(columns, aggregated[:, 0], underdetermined=self._underdetermined)
