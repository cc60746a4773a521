"""What a checkpoint does to a state, without a file."""

from __future__ import annotations

import io
from typing import Any

import torch


def through_disk(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as a checkpoint gives it back: tensors and plain values only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded
