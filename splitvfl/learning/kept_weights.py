"""Weights as they were in the forward pass, for a backward pass that comes after later steps of the optimiser.

An optimiser changes weights in place. Autograd would refuse a backward pass of a forward pass from before such a step,
and rightly: its gradient is due at the weights that made the activation. Inside :func:`keeping_weights` autograd keeps
a copy of every weight that the backward pass needs, once however often it is used, and nothing of the others: an
embedding's table is never copied, as its gradient does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def keeping_weights(module: nn.Module) -> Iterator[None]:
    """Let a module run forward inside this block, and backward whenever it is asked to, as if nothing had changed.

    What a module reads past autograd, as an ``autograd.Function`` that keeps a weight as an attribute of its context
    does, is not copied: its gradient is then at the weights of the backward pass.

    Args:
        module: The module whose weights and buffers change between the two.

    Raises:
        RuntimeError: In the backward pass, as autograd does, if something else that it needs was changed in place.
    """
    own = {_place(one) for one in chain(module.parameters(), module.buffers()) if _lies_somewhere(one)}
    copies: dict[tuple[Any, ...], Tensor] = {}

    def keep(saved: Tensor) -> tuple[Tensor, int]:
        if not _lies_somewhere(saved) or _place(saved) not in own:
            # Detached, as what autograd saves may be the very output that holds it.
            return saved.detach(), saved._version
        # With the version: a module may change a buffer of its own between two uses of it.
        key = (saved.data_ptr(), saved.dtype, saved.shape, saved.stride(), saved._version)
        if key not in copies:
            copies[key] = saved.detach().clone()
        return copies[key], copies[key]._version

    def give_back(kept: tuple[Tensor, int]) -> Tensor:
        tensor, version = kept
        if tensor._version != version:
            raise RuntimeError(
                f"a tensor of {type(module).__name__} that its backward pass needs, {tuple(tensor.shape)}, was changed "
                f"in place after its forward pass: it is at version {tensor._version}, and version {version} is needed"
            )
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, give_back):
        yield


def _lies_somewhere(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage().nbytes() > 0


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
