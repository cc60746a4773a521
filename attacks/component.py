"""Label attack by the first principal component of a party's own numbers, without messages or labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from splitvfl.attacks.leading_direction import leading_direction
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import View

# About the last hundred batches of activations count: the bottom model that makes them moves.
_DECAY = {"columns": 1.0, "activation": 0.99}


class ComponentAttack:
    """Score every record by the first principal component of the party's own columns, or of its own activations.

    A baseline that reads no message and knows no label. Where the label is what columns have in common, their first
    component ranks records by it before any training: on give-me-some-credit with an AUC of .81. That of the
    activations (``of="activation"``) is of the trained bottom model: training spreads records along what the label
    teaches it, and no defense of gradients takes its own bottom model from a party. An attack on messages is worth what
    it tells beyond these.

    Columns count in units of their deviation, constant ones not at all. Activations are taken in one common unit, with
    exponential forgetting over about a hundred batches. Both are moments, of memory ``d²``, that are updated in each
    step; nothing is kept of a record. The score is by the component as known so far, so a record's last one counts
    (``cumulative``). Its sign is arbitrary and kept from step to step; the judge grants it. Of k classes it is one
    score for all, which the judge turns round for each class on its own; of numbers it is one for large and small.

    Source: Pearson, Philosophical Magazine 2 (1901), for the component; its use as a baseline is this project's. The
    sums are put together as in Chan, Golub and LeVeque, COMPSTAT 1982.

    Args:
        of: ``"columns"`` or ``"activation"``. Of columns with categorical fields the numeric ones are used.

    Attributes:
        name: ``component``, or ``component-of-activation``.
        needs: The one field that is read.

    Raises:
        ArgumentError: If it is of anything else.
    """

    name: str = "component"
    explanation: ClassVar[str] = (
        "The direction in which the partner's own columns vary most. It needs no message and no label: what others "
        "read counts as far as it is more than that."
    )
    other_names: ClassVar[Mapping[str, str]] = {
        "component-of-activation": "The same of what the partner's own half of the model puts out: training spreads "
        "records along what the labels make it learn, and no noise on messages hides it."
    }
    needs: frozenset[str] = frozenset({"columns"})
    cumulative: ClassVar[bool] = True
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass", "regression"})

    def __init__(self, *, of: Literal["columns", "activation"] = "columns") -> None:
        if of not in _DECAY:
            raise ArgumentError(f"of must be 'columns' or 'activation', got {of!r}")
        self._of = of
        if of == "activation":
            self.name = "component-of-activation"
            self.needs = frozenset({"activation"})
        self._weight = 0.0
        self._mean: Tensor | None = None
        self._scatter: Tensor | None = None
        self._direction: Tensor | None = None

    def __call__(self, view: View, /) -> Tensor:
        """Return each record's place on the component, after this batch has been learned from.

        Args:
            view: Its ``columns`` ``(n, d)`` or ``activation`` ``(n, d)`` are read.

        Returns:
            ``(n,)``, float64; zeros where nothing varies.

        Raises:
            AttackRefused: If there is no numeric column.
            ArgumentError: If there are other columns, or another width, than before.
        """
        rows = self._rows(view)
        device, rows = rows.device, rows.double().cpu()
        self._learn(rows)
        assert self._mean is not None
        assert self._scatter is not None
        units = self._units()
        covariance = self._scatter / torch.outer(units, units)
        if not covariance.diagonal().any():
            return torch.zeros(rows.shape[0], dtype=torch.float64, device=device)
        direction = leading_direction(covariance)
        turned = self._direction is not None and float(direction @ self._direction) < 0.0
        self._direction = -direction if turned else direction
        scores: Tensor = ((rows - self._mean) / units) @ self._direction
        return scores.to(device)

    def _rows(self, view: View) -> Tensor:
        if self._of == "activation":
            return view.activation
        columns = view.columns
        rows: Tensor = columns if isinstance(columns, Tensor) else columns.numeric
        if rows.shape[1] == 0:
            raise AttackRefused(f"attack {self.name} needs numeric columns, and this party has none")
        return rows

    def _learn(self, rows: Tensor) -> None:
        width = rows.shape[1]
        if self._mean is None or self._scatter is None:
            self._mean = torch.zeros(width, dtype=torch.float64)
            self._scatter = torch.zeros(width, width, dtype=torch.float64)
        if self._mean.numel() != width:
            raise ArgumentError(f"expected {self._of} of width {self._mean.numel()}, got {width}")
        mean = rows.mean(dim=0)
        centred, apart = rows - mean, mean - self._mean
        before = _DECAY[self._of] * self._weight
        self._weight = before + rows.shape[0]
        self._scatter = (
            _DECAY[self._of] * self._scatter
            + centred.T @ centred
            + torch.outer(apart, apart) * (before * rows.shape[0] / self._weight)
        )
        self._mean = self._mean + apart * (rows.shape[0] / self._weight)

    def _units(self) -> Tensor:
        """Return the unit of each number: its deviation, of columns; the largest deviation of all, of activations."""
        assert self._mean is not None
        assert self._scatter is not None
        deviations = (self._scatter.diagonal().clamp(min=0.0) / self._weight).sqrt()
        if self._of == "activation":
            return torch.full_like(deviations, float(deviations.max()) or 1.0)
        # What rounding leaves of a constant column's deviation is no unit.
        varies = deviations > 1e-9 * self._mean.abs()
        return torch.where(varies, deviations, torch.inf)

    def state_dict(self) -> dict[str, Any]:
        """Return the weight, the mean ``(d,)``, the scatter ``(d, d)`` and the direction ``(d,)``; ``None`` before."""
        return {
            "weight": self._weight,
            "mean": self._mean,
            "scatter": self._scatter,
            "direction": self._direction,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._weight, self._mean = state["weight"], state["mean"]
        self._scatter, self._direction = state["scatter"], state["direction"]
