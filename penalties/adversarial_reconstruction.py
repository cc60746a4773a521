"""A reader of one's own: a small network that reconstructs columns from the activation, and that the bottom evades."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from splitvfl.errors import ArgumentError

if TYPE_CHECKING:
    from splitvfl.hooks import Held

_MOST_RECORDS = 2**20
_MOST_HIDDEN = 4096
_MOST_STEPS = 100
# Added to a variance of what is standardised, so that what does not vary becomes 0.
_LEAST_VARIANCE = 1e-6


class AdversarialReconstruction:
    """Lower the share of its columns' variance that a small network of the party's own reconstructs from activations.

    The penalty is the mean over columns of ``max(0, 1 - squared error / variance)``, both of the records that are
    looked at, in [0, 1]. In every step the network first learns to lower its error at these records; then the bottom is
    asked to raise it. So the bottom is given the network's gradient reversed, up to the error of who answers each
    column's mean and no further: an error that the bottom could raise without end would drown the loss. What the
    network reads is standardised by unit of the activation, so that to scale or shift activations is no escape. Columns
    without variance among the records count as 0. Categories are left out.

    Claim: no claim. It is lowered what this network finds, which is small and a step behind; another reader, a larger
    one or one that is fitted anew, may find more. Who puts a record's activations of several epochs side by side, as
    ``stacked-ridge`` does, reads nearly as much as without: .72 of .80 of six columns, of which ridge regression reads
    .31 of .65 (docs/reference/penalties.md). So it hides little from who keeps what was received.

    Works with: exchange split without exchange.noise; parties with columns of numbers; any task and model.

    Cost: ``steps`` + 1 forward and backward passes of a network of one hidden layer, over ``records`` records.

    In a file: ``parties: {bank: {role: active, columns: 0.5}, lab: {role: passive, columns: rest,
    penalties: [{name: adversarial-reconstruction, weight: 1.0, hidden: 64}]}}``

    Also called: DeepObfuscator.

    Source: gradients reversed below an adversary, Ganin et al., *JMLR* 2016, arXiv:1505.07818; against reconstruction
    from what a bottom model sends, Li et al., DeepObfuscator, arXiv:1909.04126.

    Args:
        records: How many records of a batch it looks at, drawn anew in each step; all of a smaller one.
        hidden: Width of the network's hidden layer.
        lr: Rate of the network's Adam, > 0.
        steps: How many steps the network takes in one of the bottom. With few of them the bottom keeps ahead of this
            network alone, and tells others as much as before.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "adversarial-reconstruction"
    shifts_scores: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset({"columns"})

    def __init__(
        self,
        *,
        records: Annotated[int, Field(ge=2, le=_MOST_RECORDS)] = 512,
        hidden: Annotated[int, Field(ge=1, le=_MOST_HIDDEN)] = 64,
        lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01,
        steps: Annotated[int, Field(ge=1, le=_MOST_STEPS)] = 20,
    ) -> None:
        for what, value, least, most in (
            ("records", records, 2, _MOST_RECORDS),
            ("hidden", hidden, 1, _MOST_HIDDEN),
            ("steps", steps, 1, _MOST_STEPS),
        ):
            if not least <= value <= most:
                raise ArgumentError(f"{what} must be {least} to {most:,}, got {value}")
        if not 0.0 < lr < math.inf:
            raise ArgumentError(f"lr must be finite and above 0, got {lr}")
        self.most_records, self._hidden, self._lr, self._steps = records, hidden, lr, steps
        self._weights: list[Tensor] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._saved: Mapping[str, Any] = {}

    def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
        """Return what share of variance the network reconstructs, after it has learned.

        Args:
            activation: What the bottom put out, ``(m, width)``.
            held: Its columns are used, and its generator for the network's first weights.

        Returns:
            ``()``, in [0, 1], in the dtype of the activation.
        """
        sent = _standardised(activation)
        columns = held.columns.to(sent.dtype)
        if self._optimizer is None:
            self._make(sent.shape[1], columns.shape[1], like=sent)
            if self._saved:
                self._take_back(self._saved)
            else:
                self._draw_weights(held.generator)
        assert self._optimizer is not None, "it was made just now"
        # To learn each column alike, whatever its unit.
        variance = columns.var(dim=0, correction=0)
        unit = torch.where(variance > 0, variance, 1.0)
        for _ in range(self._steps):
            self._optimizer.zero_grad(set_to_none=True)
            ((self._answer(sent.detach()) - columns).square() / unit).mean().backward()
            self._optimizer.step()
        error = (self._answer(sent) - columns).square().mean(dim=0)
        return torch.where(variance > 0, 1.0 - error / unit, -1.0).clamp_min(0.0).mean()

    def _answer(self, sent: Tensor) -> Tensor:
        """Return the network's columns: a linear map, and what one hidden layer bends beside it."""
        straight, inner, shift, outer, mean = self._weights
        return torch.addmm(mean, sent, straight) + torch.addmm(shift, sent, inner).relu() @ outer

    def _make(self, width: int, columns: int, *, like: Tensor) -> None:
        shapes = ((width, columns), (width, self._hidden), (self._hidden,), (self._hidden, columns), (columns,))
        self._weights = [torch.zeros(shape, dtype=like.dtype, device=like.device).requires_grad_() for shape in shapes]
        self._optimizer = torch.optim.Adam(self._weights, lr=self._lr)

    def _draw_weights(self, generator: torch.Generator) -> None:
        """Draw what the hidden layer looks at; all else begins at zero, so that the first answer is zero."""
        inner = self._weights[1]
        drawn = torch.randn(inner.shape, generator=generator) / inner.shape[0] ** 0.5
        with torch.no_grad():
            inner.copy_(drawn)

    def state_dict(self) -> dict[str, Any]:
        """Return the network's weights, and what its optimiser keeps; before the first step nothing."""
        if self._optimizer is None:
            return dict(self._saved)
        return {"weights": [weight.detach().clone() for weight in self._weights], "adam": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned, for the next call, which tells on which device.

        Raises:
            ValueError: If the network had another hidden width.
        """
        hidden = state["weights"][1].shape[1] if state else self._hidden
        if hidden != self._hidden:
            raise ValueError(
                f"the network of {self.name} had a hidden layer of {hidden}, and has one of {self._hidden}"
            )
        self._optimizer, self._saved = None, state

    def _take_back(self, state: Mapping[str, Any]) -> None:
        assert self._optimizer is not None, "it was made just now"
        with torch.no_grad():
            for own, saved in zip(self._weights, state["weights"], strict=True):
                own.copy_(saved)
        self._optimizer.load_state_dict(state["adam"])


def _standardised(rows: Tensor) -> Tensor:
    """Return rows with mean 0 and variance 1 in every unit; one that does not vary becomes 0."""
    variance, mean = torch.var_mean(rows, dim=0, correction=0)
    return (rows - mean) / (variance + _LEAST_VARIANCE).sqrt()
