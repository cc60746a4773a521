"""Copies between a GPU and main memory, by way of page-locked memory; and what lies there as bytes.

A GPU reads and writes page-locked memory itself, while the processor does other things; what lies elsewhere is copied
once more on the way. torch keeps blocks that it has locked once, and hands them out again.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uses_gpu() -> bool:
    """Return whether this process has used a GPU so far: to ask must not begin to use one."""
    begun: bool = torch.cuda.is_initialized()
    return begun


def empty_bytes(size: int) -> Tensor:
    """Return memory for so many bytes that are to come, uint8: page-locked in a process that uses a GPU."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=size > 0 and uses_gpu())


def bytes_of(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, little-endian and in row-major order, where they lie if they lie so.

    Args:
        tensor: On the CPU, without gradient, of a dtype that NumPy has, or bfloat16.
    """
    if tensor.numel() == 0:
        return memoryview(b"")
    # NumPy has no bfloat16; a view of the same width works for every shape and stride, one of bytes does not.
    raw = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return raw.contiguous().reshape(-1).numpy().data.cast("B")


def to_memory(tensor: Tensor) -> Tensor:
    """Return a tensor in main memory, without gradient: itself, if it lies there; of a GPU's, when it has come."""
    tensor = tensor.detach()
    if tensor.device.type != "cuda":
        return tensor.cpu()
    found = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    found.copy_(tensor)  # waits for what computes it
    return found


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device: itself, if it lies there.

    Nobody may write to it any more: from page-locked memory it leaves while the caller goes on.
    """
    return tensor.to(device, non_blocking=device.type == "cuda" and not tensor.is_cuda and tensor.is_pinned())
