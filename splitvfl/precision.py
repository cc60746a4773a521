"""Half precision: where it stops. Models may run in bfloat16; losses, defenses and attacks compute in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF_DTYPES = (torch.bfloat16, torch.float16)


def widened(tensor: Tensor) -> Tensor:
    """Return a half-precision tensor as float32, which changes no value; any other tensor as it is."""
    return tensor.float() if tensor.dtype in HALF_DTYPES else tensor


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a block in which operations keep the dtype of their inputs, whatever surrounds it.

    A loop that calls ``backward()`` inside its autocast block would otherwise have the noise computed in bfloat16.
    """
    if device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
