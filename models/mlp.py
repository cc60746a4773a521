"""Fully connected layers with ReLU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from splitvfl.data.columns import PartyData
from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.learning.tasks import Task
from splitvfl.party.recipe import HiddenWidths, Recipe, Widths, check_size, weights_of_layers


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


@dataclass(frozen=True, kw_only=True)
class MLPRecipe(Recipe):
    """Fully connected layers: ``bottom`` at each passive party, ``top`` over what they put out and the own columns.

    The width of the outputs follows from the task, so that ``top_hidden`` names the widths of the layers before it.
    ``top`` says the same with the outputs included, as in ``top: [32, 1]``; one of the two is enough.
    ``private_top: true`` adds a second top of the same widths at the active party, which learns from true labels, sends
    nothing and predicts (:mod:`splitvfl.party.private_top`); the first decides what crosses. It is the active party's
    own business: no other party is told of it, or needs to write it.

    Raises:
        ArgumentError: If ``top`` and ``top_hidden`` contradict each other.
    """

    name: ClassVar[str] = "mlp"

    bottom: Widths = (64, 32)
    top_hidden: HiddenWidths = ()
    top: Widths | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    private_top: bool = False

    def __post_init__(self) -> None:
        """Check that ``top`` and ``top_hidden`` say the same."""
        if self.top is not None and self.top_hidden != self.top[:-1]:
            raise ArgumentError("top and top_hidden contradict each other; top is top_hidden and then the outputs")

    def make_bottom(self, columns: PartyData, task: Task) -> MLP:
        """Return layers with ReLU."""
        check_size("model.bottom", columns.name, weights_of_layers(columns.width, self.bottom))
        return MLP(columns.width, self.bottom, dropout=self.dropout)

    def make_top(self, columns: PartyData, task: Task, widths: Sequence[int]) -> MLP:
        """Return layers over the joined activations and the own columns.

        Raises:
            ConfigError: If ``top`` ends in another number of outputs than the task has.
        """
        if self.top is not None and self.top[-1] != task.outputs:
            raise ConfigError(f"model.top ends in {self.top[-1]}, a {task.name} task needs {task.outputs}")
        inputs, layers = sum(widths) + columns.width, [*self.top_hidden, task.outputs]
        check_size("model.top_hidden", columns.name, weights_of_layers(inputs, layers))
        return MLP(inputs, layers, final_activation=False, dropout=self.dropout)

    def options_for_width(self, width: int) -> Mapping[str, Any]:
        """Return another last layer of the bottoms."""
        return {"bottom": (*self.bottom[:-1], width)}
