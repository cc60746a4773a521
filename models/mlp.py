"""Fully connected layers with ReLU."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from splitvfl.errors import ArgumentError


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
