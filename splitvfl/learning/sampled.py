"""A bottom model that puts out a normal draw for each record: what an information bottleneck needs.

The tensor that is drawn carries what it was drawn from, so that whoever holds the activation of a step, with several
steps under way too, holds its own distribution. Copies and messages carry nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from splitvfl.errors import ArgumentError
from splitvfl.learning.compiling import leave_untraced, untraced
from splitvfl.learning.randomness import EntropicGenerator


class Distribution(NamedTuple):
    """A normal distribution with independent units, for each record.

    Attributes:
        mean: ``(n, width)``.
        log_variance: Natural logarithm of the variance, ``(n, width)``.
    """

    mean: Tensor
    log_variance: Tensor


class Sampled(nn.Module):
    """A bottom model that puts out a draw: ``z = mean + exp(log_variance / 2) · e`` with e standard normal.

    It draws in training, in evaluations and for predictions alike: what is said of the information in a message is said
    of a draw, and a mean in its place would tell more than any number of draws. So scores vary from one time to the
    next, and whoever gets several messages of one record can average them.

    Numbers come from torch's generator, as those of dropout: within a run that is the party's own state, which
    checkpoints hold. Saved models draw from the operating system's entropy (:attr:`generator`). They are float32's, and
    their last digits are no secret noise: nothing here is differentially private.

    Source: reparametrised gradients, Kingma and Welling, arXiv:1312.6114; as a bottleneck, Alemi et al.,
    arXiv:1612.00410.

    Args:
        module: Puts out means and then logarithms of variances, ``(n, 2 · width)``, from one matrix or several parts.

    Attributes:
        module: Likewise.
        generator: What draws in place of torch's generator, on the device of the activation; ``None``: nothing does. Of
            an :class:`~splitvfl.learning.randomness.EntropicGenerator` copies of the model draw numbers of their own.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        leave_untraced(type(self))
        self.module = module
        self.generator: torch.Generator | EntropicGenerator | None = None

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return a draw, ``(n, width)``.

        Args:
            inputs: Those of the module.

        Raises:
            ArgumentError: If the module puts out an odd number of units.
        """
        both: Tensor = self.module(*inputs)
        if both.dim() != 2 or both.shape[1] % 2:
            raise ArgumentError(
                f"a sampled layer takes means and logarithms of variances, (n, 2 * width), got {tuple(both.shape)}"
            )
        return self._draw(both)

    @untraced
    def _draw(self, both: Tensor) -> Tensor:
        mean, log_variance = both.chunk(2, dim=1)
        generator = self.generator() if isinstance(self.generator, EntropicGenerator) else self.generator
        noise = torch.empty_like(mean).normal_(generator=generator)
        drawn = mean + (0.5 * log_variance).exp() * noise
        drawn.drawn_from = Distribution(mean, log_variance)  # type: ignore[attr-defined]
        return drawn


def distribution_of(activation: Tensor) -> Distribution | None:
    """Return what an activation was drawn from; ``None`` where it is no draw, or was changed since."""
    found: Distribution | None = getattr(activation, "drawn_from", None)
    return found


def sampled_layers(module: nn.Module) -> list[Sampled]:
    """Return the sampled layers of a model."""
    return [layer for layer in module.modules() if isinstance(layer, Sampled)]
