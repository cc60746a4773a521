"""The paper's mechanisms, many settings at once, and the package's defense that each of them is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor

from splitvfl.defenses import LaplaceResidue, MultiplicativeLaplaceResidue
from splitvfl.hooks import Defense
from splitvfl.privacy import (
    MultiplicativeMode,
    choose_multiplicative_bounds,
    laplace_scale,
    multiplicative_laplace_epsilon,
)

Kind = Literal["none", "add", "mult"]

_QUANTILES = 20_000


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What is sent in place of a residue.

    Attributes:
        kind: Residues as they are, with additive noise, or times noise within bounds.
        epsilon: The nominal ε of one release; 0 for ``none``, which has none.
        b1: Smallest size of a residue before it is multiplied.
        b2: Largest size of what is sent then.
        mode: Which multiplicative mechanism.
    """

    kind: Kind
    epsilon: float = 0.0
    b1: float = 1.0
    b2: float = 1.0
    mode: MultiplicativeMode = "centred_at_one"

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values."""
        return asdict(self)

    @property
    def true_epsilon(self) -> float:
        """ε of one release of a residue that holds, in nats."""
        if self.kind == "none":
            return math.inf
        if self.kind == "add":
            return self.epsilon
        return multiplicative_laplace_epsilon(self.epsilon, self.b1, self.b2, mode=self.mode)

    @property
    def scale(self) -> float:
        """Scale of the Laplace noise that a residue has added, or is multiplied by."""
        if self.kind == "none":
            return 0.0
        return laplace_scale(self.epsilon) * (1.0 if self.kind == "add" else self.b2 / self.b1)

    @property
    def size(self) -> float:
        """Root mean square of what is sent of residues of ±1/2, what there is before the first step."""
        sent = torch.cat([sent_quantiles(self, residue) for residue in (-0.5, 0.5)])
        return float(sent.square().mean().sqrt())

    def defense(self) -> Defense | None:
        """Return the package's defense; ``None`` where residues are sent as they are."""
        if self.kind == "none":
            return None
        if self.kind == "add":
            return LaplaceResidue(epsilon=self.epsilon)
        return MultiplicativeLaplaceResidue(epsilon=self.epsilon, b1=self.b1, b2=self.b2, mode=self.mode)


NONE = Mechanism(kind="none")


def sent_quantiles(mechanism: Mechanism, residue: float) -> Tensor:
    """Return what is sent of a residue at the middle of many equally likely intervals of the noise, float64."""
    uniform = 2 * (torch.arange(_QUANTILES, dtype=torch.float64) + 0.5) / _QUANTILES - 1
    laplace = (-uniform.sign() * torch.log1p(-uniform.abs())).unsqueeze(1)
    return Bank([mechanism]).sent(torch.full_like(laplace, residue), laplace)


def additive(epsilon: float) -> Mechanism:
    """Return the additive mechanism."""
    return Mechanism(kind="add", epsilon=epsilon)


def multiplicative(epsilon: float, b1: float, b2: float, mode: MultiplicativeMode = "centred_at_one") -> Mechanism:
    """Return a multiplicative mechanism of this nominal ε."""
    return Mechanism(kind="mult", epsilon=epsilon, b1=b1, b2=b2, mode=mode)


@lru_cache(maxsize=16)
def chosen(epsilon: float) -> Mechanism:
    """Return the multiplicative mechanism whose *true* ε is at most this one, its bounds chosen without data."""
    bounds = choose_multiplicative_bounds(epsilon)
    return multiplicative(bounds.epsilon, bounds.b1, bounds.b2)


def from_settings(settings: Iterable[Mapping[str, Any]]) -> list[Mechanism]:
    """Return the mechanisms of :meth:`Mechanism.as_settings`."""
    return [Mechanism(**each) for each in settings]


class Bank:
    """Several mechanisms side by side: column i of what is sent is mechanism i's.

    The same numbers as the package's defenses send, but for rounding: those compute in float64, one setting at a time.

    Args:
        mechanisms: At least one; as many of one kind as there are should stand together, as they are computed together.
    """

    def __init__(self, mechanisms: Sequence[Mechanism]) -> None:
        self._runs = []
        start = 0
        for (kind, mode), group in groupby(mechanisms, key=lambda each: (each.kind, each.mode)):
            members = list(group)
            figures = torch.tensor([[each.scale, each.b1, each.b2] for each in members], dtype=torch.float64).T
            self._runs.append((slice(start, start + len(members)), kind, mode, figures))
            start += len(members)

    def sent(self, residues: Tensor, laplace: Tensor) -> Tensor:
        """Return what is sent.

        Args:
            residues: ``(…, C)``, in [−1, 1].
            laplace: Laplace numbers of scale 1, ``(…, C)``; may have fewer entries that are repeated.
        """
        sent = torch.empty_like(residues)
        for columns, kind, mode, figures in self._runs:
            given, noise = residues[..., columns], laplace[..., columns]
            scale, b1, b2 = figures.to(residues.dtype)
            if kind == "none":
                sent[..., columns] = given
            elif kind == "add":
                sent[..., columns] = given + scale * noise
            else:
                sent[..., columns] = _multiplied(given, noise, scale, b1, b2, mode)
        return sent


def _multiplied(
    given: Tensor, noise: Tensor, scale: Tensor, b1: Tensor, b2: Tensor, mode: MultiplicativeMode
) -> Tensor:
    if mode == "as_printed":
        # Both of the printed clips: a small residue of either sign becomes +b1, a large product of either sign +b2.
        product = torch.where(given.abs() <= b1, b1, given) * (scale * noise)
        return torch.where(product.abs() >= b2, b2, product)
    kept = torch.copysign(torch.maximum(given.abs(), b1), given)
    multiplier = scale * noise + 1.0 if mode == "centred_at_one" else scale * noise
    return torch.minimum(torch.maximum(kept * multiplier, -b2), b2)
