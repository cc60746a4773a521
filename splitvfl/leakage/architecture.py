"""The architecture of a model without its weights: for who is assumed to know the one, and not the others."""

from __future__ import annotations

import math

import torch
from torch import nn

from splitvfl.errors import AttackRefused
from splitvfl.leakage.after_training import own_copy


def architecture_of(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a model whose weights are drawn anew, by the ``reset_parameters()`` of its layers.

    Every weight, and every buffer of floating point, is overwritten with NaN before: what no layer draws anew is none
    of the architecture, and is noticed. Buffers of whole numbers stay. Torch's generators stay as they were.

    Args:
        model: The model; it does not change.
        seed: Of the new weights: the same seed gives the same, whatever the model's own are.

    Raises:
        AttackRefused: If a weight or buffer is not drawn anew.
    """
    bare = own_copy(model)
    device = next((weight.device for weight in bare.parameters()), torch.device("cpu"))
    bare.cpu()
    held = {**dict(bare.named_parameters()), **dict(bare.named_buffers())}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in held.values():
            if part.is_floating_point():
                part.fill_(math.nan)
        for layer in bare.modules():
            if callable(draw := getattr(layer, "reset_parameters", None)):
                draw()
    for name, part in held.items():
        if part.is_floating_point() and bool(part.isnan().any()):
            raise AttackRefused(
                f"{name} of the partner's bottom model is no part of its architecture: no reset_parameters() of its "
                "layers draws it anew"
            )
    return bare.to(device)
