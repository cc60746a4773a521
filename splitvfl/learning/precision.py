"""Limits of half precision: models may run in bfloat16; losses, defenses and attacks compute in float32."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

HALF_DTYPES = (torch.bfloat16, torch.float16)

# As experiment files and saved halves name what models and messages may be narrowed to. No float16: it would need a
# loss scaler, as the gradient of a mean over 65 536 records lies below its smallest number.
NARROW_DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16}


def narrow_dtype(name: str | None) -> torch.dtype | None:
    """Return the dtype of that name; ``None`` for none.

    Raises:
        ArgumentError: If there is none of that name.
    """
    if name is not None and name not in NARROW_DTYPES:
        raise ArgumentError(f"expected a precision of {', '.join(NARROW_DTYPES)}, or none, got {name!r}")
    return None if name is None else NARROW_DTYPES[name]


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
