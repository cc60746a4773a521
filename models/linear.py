"""Vertical (logistic) regression: one linear layer per party, summed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.learning.tasks import Task
from splitvfl.party.recipe import Recipe

if TYPE_CHECKING:
    from splitvfl.data.columns import PartyData

Init = Literal["xavier", "zero", "kaiming", "normal"]
_INITS: Mapping[Init, Callable[[Tensor], Tensor]] = {
    "xavier": nn.init.xavier_normal_,
    "zero": nn.init.zeros_,
    "kaiming": nn.init.kaiming_normal_,
    "normal": nn.init.normal_,
}

# Largest standard deviation of a weight, whatever the number of columns.
_LARGEST_DEVIATION: Mapping[Init, float] = {"zero": 0.0, "xavier": 1.0, "kaiming": math.sqrt(2), "normal": 1.0}


class Linear(nn.Linear):
    """A party's half of a linear model: ``x Wᵀ``, its part of the logits.

    With one linear layer as bottom a party learns only ``columnsᵀ · gradient`` from a training step.

    Args:
        inputs: Number of columns, at least 1.
        outputs: Number of logits, at least 1.
        bias: Whether to add an intercept; one party's is enough.
        init: ``"xavier"`` draws weights from N(0, 2 / (inputs + outputs)), ``"kaiming"`` from N(0, 2 / inputs),
            ``"normal"`` from N(0, 1); ``"zero"`` starts from zeros, and then the first batch's residues are plus or
            minus one half, the labels themselves. The intercept starts at zero.

    Raises:
        ArgumentError: If a size is below 1, or there is no such ``init``.
    """

    def __init__(self, inputs: int, outputs: int = 1, *, bias: bool = False, init: Init = "xavier") -> None:
        if inputs < 1 or outputs < 1:
            raise ArgumentError(f"expected at least 1 input and 1 output, got {inputs} and {outputs}")
        if init not in get_args(Init):
            raise ArgumentError(f"init must be one of {', '.join(get_args(Init))}, got {init!r}")
        self.init: Init = init  # set first: the base class draws the weights in its constructor
        super().__init__(inputs, outputs, bias=bias)

    def reset_parameters(self) -> None:
        """Draw the weights anew; of a layer without memory, nothing: torch would import its compiler for that."""
        if self.weight.is_meta:
            return
        _INITS[self.init](self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class LinearTop(nn.Module):
    """Sum of the passive parties' logits, the active party's own linear part and the intercept.

    ``logits = Σ_p h_p + x_a W_aᵀ + b``. The passive parts have weight one, so that with logistic loss the cut gradient
    of every passive party is ``(prediction − label) / n``: the residues. It hides nothing by itself.

    Args:
        passives: Number of passive parties, at least 1.
        outputs: Number of logits, at least 1; also the width of every cut.
        active_inputs: Number of the active party's columns, 0 if it has none.
        init: As :class:`Linear`.
        intercept: Whether the intercept learns; ``False``: it stays zero.

    Attributes:
        own: The active party's linear layer, ``None`` without columns.
        intercept: ``(outputs,)``, from zeros.

    Raises:
        ArgumentError: If a size is too small.
    """

    is_linear: ClassVar[bool] = True

    def __init__(
        self,
        passives: int,
        outputs: int = 1,
        *,
        active_inputs: int = 0,
        init: Init = "xavier",
        intercept: bool = True,
    ) -> None:
        super().__init__()
        if passives < 1 or outputs < 1 or active_inputs < 0:
            raise ArgumentError(
                "expected at least 1 passive party, 1 output and 0 columns of the active party, "
                f"got {passives}, {outputs} and {active_inputs}"
            )
        self.passives, self.outputs, self.active_inputs = passives, outputs, active_inputs
        self.own = Linear(active_inputs, outputs, init=init) if active_inputs else None
        self.intercept = nn.Parameter(torch.zeros(outputs), requires_grad=intercept)

    def forward(self, joined: Tensor) -> Tensor:
        """Return the logits.

        Args:
            joined: Activations of the passive parties, then the active party's columns,
                ``(n, passives · outputs + active_inputs)``.

        Returns:
            ``(n, outputs)``.

        Raises:
            ArgumentError: If the width does not fit.
        """
        received = self.passives * self.outputs
        if joined.dim() != 2 or joined.shape[1] != received + self.active_inputs:
            raise ArgumentError(
                f"expected shape (n, {received + self.active_inputs}): {received} activations and "
                f"{self.active_inputs} columns of the active party, got {tuple(joined.shape)}"
            )
        parts = joined[:, :received].reshape(-1, self.passives, self.outputs)
        logits: Tensor = parts.sum(dim=1) + self.active_logits(joined[:, received:])
        return logits

    @property
    def adds_nothing(self) -> bool:
        """Whether the logits are the passive parties' parts alone: no own columns, and no intercept that learns."""
        return self.own is None and not self.intercept.requires_grad and not bool(self.intercept.any())

    def active_logits(self, columns: Tensor) -> Tensor:
        """Return the active party's own part of the logits, ``x_a W_aᵀ + b``.

        Args:
            columns: ``(n, active_inputs)``.

        Returns:
            ``(n, outputs)``.
        """
        own = columns.new_zeros(columns.shape[0], self.outputs) if self.own is None else self.own(columns)
        logits: Tensor = own + self.intercept
        return logits


@dataclass(frozen=True, kw_only=True)
class LinearRecipe(Recipe):
    """One linear layer per party, summed: what recipes of linear models have in common.

    Attributes:
        init: How first weights are drawn; ``zero`` draws none.
        row_norm: Largest Euclidean norm of a record's numbers at each party; longer rows are scaled down to it. Noise
            for a privacy loss needs one. ``null`` takes them as they are.
        intercept: Whether the label party learns an intercept. ``false``, with no columns of its own, leaves it nothing
            to learn, so that labels move the run through what it sends alone.
    """

    name: ClassVar[str]
    is_linear: ClassVar[bool] = True

    init: Init = "xavier"
    row_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    intercept: bool = True

    @property
    def largest_deviation(self) -> float:  # type: ignore[override]
        """Largest standard deviation of a first weight."""
        return _LARGEST_DEVIATION[self.init]

    def make_bottom(self, columns: PartyData, task: Task) -> Linear:
        """Return the party's linear layer."""
        return Linear(columns.width, task.outputs, init=self.init)

    def make_top(self, columns: PartyData, task: Task, widths: Sequence[int]) -> LinearTop:
        """Return what adds up the parties' parts of the logits.

        Raises:
            ConfigError: If an activation is no such part.
        """
        if set(widths) != {task.outputs}:
            raise ConfigError(f"model: {self.name} needs activations of width {task.outputs}, got {widths}")
        return LinearTop(
            len(widths), task.outputs, active_inputs=columns.width, init=self.init, intercept=self.intercept
        )

    def terms(self) -> Mapping[str, object]:
        """Return norm and first weights if there is a norm: on it rests what a run says of its labels."""
        return {} if self.row_norm is None else {"norm of rows": self.row_norm, "first weights": self.init}

    def options_for_width(self, width: int) -> Mapping[str, Any]:
        """Return nothing: a part of the logits is as wide as the logits."""
        return {}


@dataclass(frozen=True, kw_only=True)
class LogisticRegressionRecipe(LinearRecipe):
    """One linear layer per party, summed; linear or softmax regression where the task is another.

    Works with: every task under exchange split; labels 0 and 1 under oracle, residue, taylor and coordinator. Not with
    one-way, whose bottoms learn nothing.

    In a file: ``model: {name: logistic-regression, row_norm: 1.0}``

    Attributes:
        init: How first weights are drawn; ``zero`` draws none.
        row_norm: Largest Euclidean norm of a record's numbers at each party; longer rows are scaled down to it. Noise
            for a privacy loss needs one. ``null`` takes them as they are.
        intercept: Whether the label party learns an intercept. ``false``, with no columns of its own, leaves it nothing
            to learn, so that labels move the run through what it sends alone.
        private_top: As for ``mlp``: one linear layer over what the parties send, with weights of its own for each part
            of the logits, and the own columns.
    """

    name: ClassVar[str] = "logistic-regression"

    private_top: bool = False

    def make_private_top(self, columns: PartyData, task: Task, widths: Sequence[int]) -> Linear:
        """Return one linear layer over everything.

        It has weights of its own for what the parties send, which in the sum have weight one: answers of label defenses
        leave them too large or too small. It is still one linear model of everybody's columns.
        """
        return Linear(sum(widths) + columns.width, task.outputs, bias=True, init=self.init)
