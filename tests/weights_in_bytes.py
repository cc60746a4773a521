"""Whether a model's weights are among some bytes: what a file or a message holds of them."""

from __future__ import annotations

import numpy as np
import torch


def holds_weights(content: bytes, weight: torch.Tensor) -> bool:
    """Return whether these bytes hold more than two of the weights, as numbers of either size or in digits.

    One or two may be there by chance: four bytes may be anything.
    """
    values = weight.flatten().tolist()
    numbers = [kind(value).tobytes() for kind in (np.float32, np.float64) for value in values]
    digits = [f"{abs(value):.6f}"[:7].encode() for value in values]
    return sum(one in content for one in (*numbers, *digits)) > 2
