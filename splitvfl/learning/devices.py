"""Which device models compute on, by the name that a file gives it."""

from __future__ import annotations

import torch

from splitvfl.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device: ``"auto"`` takes CUDA where there is one.

    Raises:
        ConfigError: If CUDA is asked for and there is none, or there is no such name.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"train.device: expected auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device: cuda was asked for, but torch finds no CUDA device; use auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
