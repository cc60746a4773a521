"""Transforms of a party's own columns before training: isometries ``z = H x + s`` that its partners are not told.

A linear model that is trained on z in place of x, with a penalty on weights alone, has the weights ``W Hᵀ`` and the
same scores (*Privacy Against Inference Attacks in Vertical Federated Learning*, theorem 3 and its remarks). An attacker
who takes these weights for weights of x is misled. One who knows H, or d records, is not.

Only numeric columns are transformed; codes of categorical fields stay.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, DataError

MOST_ROTATED = 4096
"""Columns that an orthonormal matrix may mix: it has their square in numbers of 8 bytes."""

# What H Hᵀ may differ from the identity by, per entry: float32 matrices that users bring are orthonormal to about 1e-6.
_ORTHONORMAL_WITHIN = 1e-5
# Columns with more values than this count as continuous.
_MOST_LEVELS = 64
_PIECE = 1 << 16


@dataclass(frozen=True, eq=False)
class Rearrangement:
    """A permutation of columns, some of them flipped: ``z_i = x_(order i)``, or ``1 − x_(order i)``.

    Attributes:
        order: From which column each comes, ``(d,)``, int64: a permutation of 0 … d−1.
        flipped: Which of z are flipped, ``(d,)``, bool.

    Raises:
        ArgumentError: If ``order`` is no permutation, or lengths differ.

    >>> Rearrangement(torch.tensor([1, 0]), torch.tensor([True, False])).of(torch.tensor([[0.25, 1.0]]))
    tensor([[0.0000, 0.2500]])
    """

    order: Tensor
    flipped: Tensor

    def __post_init__(self) -> None:
        """Check it."""
        d = self.order.shape[0] if self.order.dim() == 1 else -1
        if self.order.dtype != torch.int64 or not torch.equal(self.order.sort().values, torch.arange(d)):
            raise ArgumentError(f"expected a permutation of 0 … d−1 as int64 (d,), got {tuple(self.order.shape)}")
        if self.flipped.dtype != torch.bool or self.flipped.shape != self.order.shape:
            raise ArgumentError(f"expected flipped ({d},) as bool, got {tuple(self.flipped.shape)}")

    def __repr__(self) -> str:
        """Return what it is, and nothing of which columns it is about."""
        return f"Rearrangement(of {self.columns} columns)"

    @property
    def columns(self) -> int:
        """Number of columns, d."""
        return self.order.shape[0]

    def of(self, numeric: Tensor) -> Tensor:
        """Return z, a new tensor like ``numeric``, ``(n, d)``."""
        taken = numeric.index_select(1, self.order.to(numeric.device))
        return torch.where(self.flipped.to(numeric.device), 1.0 - taken, taken)

    def undone(self, transformed: Tensor) -> Tensor:
        """Return x of z, to the rounding of ``1 − (1 − x)``."""
        turned = torch.where(self.flipped.to(transformed.device), 1.0 - transformed, transformed)
        return turned.index_select(1, self.order.argsort().to(transformed.device))

    @property
    def matrix(self) -> Tensor:
        """H, ``(d, d)``, float64."""
        signs = 1.0 - 2.0 * self.flipped.double()
        return torch.eye(self.columns, dtype=torch.float64)[self.order] * signs[:, None]

    @property
    def shift(self) -> Tensor:
        """s, ``(d,)``, float64."""
        return self.flipped.double()

    def tensors(self) -> dict[str, Tensor]:
        """Return it as :func:`transform_of` takes it back."""
        return {"order": self.order.contiguous(), "flipped": self.flipped.contiguous()}


@dataclass(frozen=True, eq=False)
class Rotation:
    """An orthonormal map, ``z = H x``. Its columns are mixtures, which do not stay in [0, 1].

    Attributes:
        matrix: H, ``(d, d)``, float64.

    Raises:
        ArgumentError: If it is not square, not finite, has more than 4096 columns, or is not orthonormal: an entry of
            ``H Hᵀ`` is off by more than 1e-5.

    >>> Rotation(torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)).of(torch.tensor([[0.25, 1.0]]))
    tensor([[ 1.0000, -0.2500]])
    """

    matrix: Tensor

    def __post_init__(self) -> None:
        """Check it, and lay it out as it is kept: another layout is multiplied with other roundings."""
        object.__setattr__(self, "matrix", self.matrix.contiguous())
        shape, matrix = tuple(self.matrix.shape), self.matrix
        if len(shape) != 2 or shape[0] != shape[1] or matrix.dtype != torch.float64:
            raise ArgumentError(f"expected an orthonormal matrix (d, d), float64, got {shape}, {matrix.dtype}")
        if shape[0] > MOST_ROTATED:
            raise ArgumentError(
                f"expected at most {MOST_ROTATED} columns to be mixed, got {shape[0]}; flip them instead"
            )
        off = (matrix @ matrix.T - torch.eye(shape[0], dtype=torch.float64)).abs().max().item() if shape[0] else 0.0
        if not off <= _ORTHONORMAL_WITHIN:  # NaN is not
            raise ArgumentError(
                f"expected an orthonormal matrix, H Hᵀ = I, got one whose H Hᵀ is off by {off:.2g}; only with such a "
                "one a penalty on weights, and so every score, stays the same"
            )

    def __repr__(self) -> str:
        """Return what it is, and nothing of its entries."""
        return f"Rotation(of {self.columns} columns)"

    @property
    def columns(self) -> int:
        """Number of columns, d."""
        return self.matrix.shape[0]

    def of(self, numeric: Tensor) -> Tensor:
        """Return z, computed in float64, a new tensor like ``numeric``, ``(n, d)``."""
        return (numeric.double() @ self.matrix.to(numeric.device).T).to(numeric.dtype)

    def undone(self, transformed: Tensor) -> Tensor:
        """Return x of z, to the rounding of z."""
        return (transformed.double() @ self.matrix.to(transformed.device)).to(transformed.dtype)

    @property
    def shift(self) -> Tensor:
        """s, zeros ``(d,)``, float64."""
        return torch.zeros(self.columns, dtype=torch.float64)

    def tensors(self) -> dict[str, Tensor]:
        """Return it as :func:`transform_of` takes it back."""
        return {"matrix": self.matrix}


Transform = Rearrangement | Rotation


def transform_of(tensors: Mapping[str, Tensor]) -> Transform:
    """Return a transform from what its ``tensors()`` returned.

    Raises:
        ArgumentError: If they describe none.
    """
    if set(tensors) == {"order", "flipped"}:
        return Rearrangement(tensors["order"], tensors["flipped"])
    if set(tensors) == {"matrix"}:
        return Rotation(tensors["matrix"])
    raise ArgumentError(f"expected order and flipped, or matrix, of a transform, got {', '.join(sorted(tensors))}")


# --- flips and permutations


def flip(columns: int, chosen: Sequence[int] | None = None) -> Rearrangement:
    """Return the flip x → 1 − x of columns.

    Args:
        columns: d.
        chosen: Which ones, from 0. Default: all.

    Raises:
        ArgumentError: If there is no such column.
    """
    flipped = torch.ones(columns, dtype=torch.bool) if chosen is None else torch.zeros(columns, dtype=torch.bool)
    for column in chosen or ():
        if not 0 <= column < columns:
            raise ArgumentError(f"expected columns from 0 to {columns - 1} to flip, got {column}")
        flipped[column] = True
    return Rearrangement(torch.arange(columns), flipped)


def permute(groups: Sequence[Sequence[int]], columns: int, *, seed: int | None = None) -> Rearrangement:
    """Return a random permutation of columns within groups; others stay where they are.

    Every permutation within a group is equally likely, that which changes nothing among them.

    Args:
        groups: Columns, from 0, none of them in two groups.
        columns: d.
        seed: For experiments: makes it repeatable, and no secret. Default: it is drawn from the operating system's
            entropy.

    Raises:
        ArgumentError: If a column is in two groups, or does not exist.
    """
    named = [column for group in groups for column in group]
    if len(set(named)) < len(named) or not all(0 <= column < columns for column in named):
        raise ArgumentError(f"expected groups of different columns from 0 to {columns - 1}, got {groups}")
    order = torch.arange(columns)
    keys = _words(columns, seed)
    for group in groups:
        # Ties of 64-bit words would favour one order by 2^-64; nobody can tell.
        shuffled = sorted(group, key=lambda column: int(keys[column]))
        order[torch.tensor(list(group), dtype=torch.int64)] = torch.tensor(shuffled, dtype=torch.int64)
    return Rearrangement(order, torch.zeros(columns, dtype=torch.bool))


def like_alphabets(rows: Tensor) -> list[list[int]]:
    """Return groups of columns that hold the same values, so that none of them shows which of the group it is.

    Columns with at most 64 different values go with those that have the same ones. Others go with those that have the
    same smallest and largest value: columns that were scaled to [0, 1]. Shapes of distributions are not looked at, and
    who knows these may still tell columns apart. Groups of one column are left out.

    Args:
        rows: ``(n, d)``.

    Raises:
        ArgumentError: If there is no row.
    """
    if rows.dim() != 2 or not rows.shape[0]:
        raise ArgumentError(f"expected at least one row (n, d), got {tuple(rows.shape)}")
    groups: dict[tuple[object, ...], list[int]] = {}
    for column in range(rows.shape[1]):
        values = np.unique(rows[:, column].detach().cpu().numpy())
        few = len(values) <= _MOST_LEVELS
        key = ("levels", *values.tolist()) if few else ("range", float(values[0]), float(values[-1]))
        groups.setdefault(key, []).append(column)
    return [group for group in groups.values() if len(group) > 1]


def check_unit_box(rows: Tensor, names: Sequence[str], chosen: Sequence[int]) -> None:
    """Check that columns which are to be flipped lie in [0, 1].

    Args:
        rows: Training records, ``(n, d)``. New ones may lie outside: the flip takes them outside on the other side.
        names: Of the columns.
        chosen: Which are flipped.

    Raises:
        DataError: If one does not.
    """
    for piece in rows.split(_PIECE):
        for column in chosen:
            low, high = piece[:, column].min().item(), piece[:, column].max().item()
            if not (low >= 0.0 and high <= 1.0):
                raise DataError(
                    f"the flip x → 1 − x is for columns in [0, 1], and {names[column]!r} holds {low:g} to {high:g}: "
                    "scale it so (data.scale: minmax), or leave it out of transform.columns"
                )


# --- orthonormal matrices


def random_rotation(columns: int, *, seed: int | None = None) -> Rotation:
    """Return a random orthonormal map, uniform over all of them (Haar).

    Args:
        columns: d, from 1 to 4096.
        seed: For experiments: makes it repeatable, and no secret. Default: it is drawn from the operating system's
            entropy.

    Raises:
        ArgumentError: If ``columns`` is out of its range.
    """
    if not 1 <= columns <= MOST_ROTATED:
        raise ArgumentError(f"expected 1 to {MOST_ROTATED} columns to be mixed, got {columns}; flip them instead")
    normal = _normal(columns * columns, seed).reshape(columns, columns)
    basis, triangle = torch.linalg.qr(torch.from_numpy(normal))
    # QR alone is not uniform: the signs of the triangle's diagonal decide (Mezzadri, Notices AMS 54, 2007).
    return Rotation(basis * triangle.diagonal().sign())


def best_rotation(known: Tensor, second_moments: Tensor) -> Rotation:
    """Return the orthonormal map with which least squares misses most: theorem 3.

    With ``P K_0 = U Σ Vᵀ`` it is ``H = −V Uᵀ``, and ``d · MSE = Tr((I + P) K_0) + 2 Tr Σ``. P is that of the weights
    that a training without a transform ends with; a training with H then ends with ``W Hᵀ``. It is no secret in itself:
    who knows P and K_0 can compute it.

    Args:
        known: P, the projector on the row space of the equations, ``(d, d)``.
        second_moments: ``K_0 = E x xᵀ`` of the untransformed columns, ``(d, d)``.

    Raises:
        ArgumentError: If shapes differ.
    """
    if known.shape != second_moments.shape or known.dim() != 2 or known.shape[0] != known.shape[1]:
        raise ArgumentError(f"expected P and K_0 (d, d), got {tuple(known.shape)} and {tuple(second_moments.shape)}")
    left, _, right = torch.linalg.svd(known.double() @ second_moments.double())
    return Rotation(-(right.T @ left.T))


def _normal(count: int, seed: int | None) -> npt.NDArray[np.float64]:
    uniform = ((_words(count, seed) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    found: npt.NDArray[np.float64] = scipy.special.ndtri(uniform)
    return found


def _words(count: int, seed: int | None) -> npt.NDArray[np.uint64]:
    """Return random 64-bit words: of a generator for experiments, or else of the operating system's entropy."""
    if seed is None:
        return np.frombuffer(secrets.token_bytes(8 * count), np.uint64)
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)
