"""Fully connected layers with ReLU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.learning.sampled import Sampled
from splitvfl.learning.tasks import Task
from splitvfl.party.recipe import Held, HiddenWidths, Recipe, Widths, check_size, weights_of_layers

if TYPE_CHECKING:
    from splitvfl.data.columns import PartyData


class MLP(nn.Module):
    """A stack of linear layers, each followed by ReLU, and by dropout where that is asked for.

    As a bottom it keeps the last activation; as a top, whose last width is the number of outputs, it has
    ``final_activation=False`` and ends in a plain linear layer.

    Args:
        inputs: Width of the input, at least 1.
        widths: Width of every layer's output, at least one layer.
        final_activation: Whether ReLU and dropout follow the last layer too.
        dropout: Probability that an activation is dropped in training, in [0, 1).

    Attributes:
        layers: The layers as one ``nn.Sequential``.

    Raises:
        ArgumentError: If there is no layer, a width is below 1, or ``dropout`` lies outside [0, 1).
    """

    def __init__(
        self, inputs: int, widths: Sequence[int], *, final_activation: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if not widths or min(inputs, *widths) < 1:
            raise ArgumentError(
                f"expected inputs and at least one width, all at least 1, got {inputs} and {list(widths)}"
            )
        if not 0.0 <= dropout < 1.0:
            raise ArgumentError(f"dropout must lie in [0, 1), got {dropout}")
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(zip([inputs, *widths], widths, strict=False), start=1):
            layers.append(nn.Linear(before, after))
            if number < len(widths) or final_activation:
                layers.append(nn.ReLU())
                layers.extend([nn.Dropout(dropout)] if dropout else [])
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last layer's output, ``(n, widths[-1])``.

        Args:
            inputs: ``(n, inputs)``.
        """
        output: Tensor = self.layers(inputs)
        return output


class LabelScale(nn.Module):
    """A top whose outputs count in standard deviations of the labels, from their mean.

    An output that begins near 0 does not reach labels around 150, or around 10⁶, in the steps that a model needs to
    learn what they depend on.

    Args:
        top: What puts out ``(n, outputs)``.
        mean: Mean of the labels.
        deviation: Their standard deviation, above 0.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, top: nn.Module, mean: float, deviation: float) -> None:
        super().__init__()
        self.top = top
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("deviation", torch.tensor(deviation))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the top's output in the labels' own unit, ``(n, outputs)``."""
        output: Tensor = self.mean + self.deviation * self.top(inputs)
        return output


@dataclass(frozen=True, kw_only=True)
class MLPRecipe(Recipe):
    """Fully connected layers: ``bottom`` at each passive party, ``top`` over what they put out and the own columns.

    The width of the outputs follows from the task, and stands in no file.

    Works with: every task; exchanges split and one-way.

    In a file: ``model: {name: mlp, bottom: [64, 32], top_hidden: [16]}``

    Attributes:
        bottom: Widths of the layers at each passive party; the last one is that of what it sends.
        top_hidden: Widths of the layers at the active party before its outputs; without any, one linear layer.
        top: The same with the outputs included, as in ``top: [32, 1]``; one of the two is enough.
        dropout: Share of a layer's outputs that are left out in a training step.
        private_top: Whether the active party has a second top of the same widths, which learns from true labels, sends
            nothing and predicts (:mod:`splitvfl.party.top_model`); the first decides what crosses. It is the active
            party's own business: no other party is told of it, or needs to write it.
        label_scale: For regression: whether the top puts out standard deviations of the training labels from their
            mean (:class:`LabelScale`).
        sampled: Whether what a passive party sends is drawn from a normal distribution for each record, whose mean and
            variance its layers put out (:class:`Sampled`): what the penalty ``mutual-information-bottleneck`` needs.
            The last layer has no ReLU then. It is the passive parties' own business: no other party needs to write it.
        dense: Where a party has several workers, whether each of them holds a part of every weight of a passive party's
            layers, ``sharded``, or all of them, ``replicated``.

    Raises:
        ArgumentError: If ``top`` and ``top_hidden`` contradict each other.
    """

    name: ClassVar[str] = "mlp"

    bottom: Widths = (64, 32)
    top_hidden: HiddenWidths = ()
    top: Widths | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    private_top: bool = False
    label_scale: bool = False
    sampled: bool = False
    dense: Held = "replicated"

    def __post_init__(self) -> None:
        """Check that ``top`` and ``top_hidden`` say the same."""
        if self.top is not None and self.top_hidden != self.top[:-1]:
            raise ArgumentError("top and top_hidden contradict each other; top is top_hidden and then the outputs")

    def make_bottom(self, columns: PartyData, task: Task) -> MLP | Sampled:
        """Return layers with ReLU, or what draws from what they put out."""
        widths = (*self.bottom[:-1], 2 * self.bottom[-1]) if self.sampled else self.bottom
        check_size("model.bottom", columns.name, weights_of_layers(columns.width, widths))
        layers = MLP(columns.width, widths, final_activation=not self.sampled, dropout=self.dropout)
        return Sampled(layers) if self.sampled else layers

    def make_top(self, columns: PartyData, task: Task, widths: Sequence[int]) -> nn.Module:
        """Return layers over the joined activations and the own columns.

        Raises:
            ConfigError: If ``top`` ends in another number of outputs than the task has, or labels that are no numbers
                are to be scaled.
        """
        if self.top is not None and self.top[-1] != task.outputs:
            raise ConfigError(f"model.top ends in {self.top[-1]}, a {task.name} task needs {task.outputs}")
        inputs, layers = sum(widths) + columns.width, [*self.top_hidden, task.outputs]
        check_size("model.top_hidden", columns.name, weights_of_layers(inputs, layers))
        top = MLP(inputs, layers, final_activation=False, dropout=self.dropout)
        return self._scaled(top, columns, task) if self.label_scale else top

    def _scaled(self, top: MLP, columns: PartyData, task: Task) -> LabelScale:
        if task.name != "regression":
            raise ConfigError(f"model.label_scale: for regression; this is a {task.name} task: leave it out")
        labels = columns.train.labels
        if labels is None or labels.numel() < 2:  # a saved top brings its own
            return LabelScale(top, 0.0, 1.0)
        deviation = float(labels.double().std())
        return LabelScale(top, float(labels.double().mean()), deviation or 1.0)

    def options_for_width(self, width: int) -> Mapping[str, Any]:
        """Return another last layer of the bottoms."""
        return {"bottom": (*self.bottom[:-1], width)}

    def options_for_cut(self, layers: int) -> Mapping[str, Any]:
        """Return the same layers, divided elsewhere; the last one, which puts out the outputs, stays in the top."""
        every = (*self.bottom, *self.top_hidden)
        if not 1 <= layers <= len(every):
            raise ConfigError(f"--cuts: the model has {len(every)} layers before its outputs, got a cut after {layers}")
        hidden = every[layers:]
        outputs = {} if self.top is None else {"top": (*hidden, self.top[-1])}
        return {"bottom": every[:layers], "top_hidden": hidden, **outputs}
