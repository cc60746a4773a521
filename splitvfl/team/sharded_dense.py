"""Dense weights that are divided among the workers of a party, by torch's FSDP2 (``fully_shard``).

Each worker keeps a part of every weight: some of the rows of its first dimension, one behind the other. Before a layer
computes, its weights are put together, and given up again behind it; in the backward pass their gradients are added up
over the workers, and each worker gets its part of the sum. What is kept between two layers, weights, gradients and the
optimiser's state, is 1/W of what one process keeps.

Whatever calls such a model, forward or backward, all workers do together: those without records with no rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from splitvfl.errors import ArgumentError
from splitvfl.learning.optimizers import sparse_parameters
from splitvfl.team.divided import sharded_tables

# Layers of torch that only call those within. Others of torch's may read the weights of theirs without a call.
_CONTAINERS: Final = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
# Those that nobody calls.
_LISTS: Final = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def divide(module: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """Divide a model's dense weights among workers, in place. Tables with sparse gradients stay as they are.

    No worker waits for another here. All of them hold the same weights before.

    Args:
        module: The model, on the CPU.
        group: The workers.

    Returns:
        What this worker holds of the model, as one with the same layers, weights and buffers by name: for its optimiser
        and for checkpoints, and not to be called.

    Raises:
        ArgumentError: If two layers share a weight, a layer works in place or keeps something besides weights and
            buffers, or torch cannot divide one of the weights. A function that changes a layer's output in place is not
            noticed, but by a warning of torch's where that output is a view.
    """
    _check(module)
    tables = {*sparse_parameters(module), *(table.rows for table in sharded_tables(module).values())}
    mesh = DeviceMesh.from_group(group, "cpu")
    try:
        for layer in (*_units(module), module):
            # The outermost too: it would keep its weights as a whole after an evaluation, whatever is loaded then.
            fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=tables)
    except (NotImplementedError, ValueError) as error:
        raise ArgumentError(f"torch's fully_shard cannot divide it: {error}") from error
    for layer in module.modules():
        if isinstance(layer, FSDPModule):
            # Each worker's gradient is its part of the batch's: they are added up, and no mean is taken, which gloo
            # could not do on the way.
            layer.set_gradient_divide_factor(1.0)
            layer.set_force_sum_reduction_for_comms(True)
            # A weight that some workers' records train, and others' do not, is added up at all of them.
            layer.set_reduce_scatter_unused_params(True, recurse=False)
    return _held(module)


def _check(module: nn.Module) -> None:
    seen: dict[int, str] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        other = seen.setdefault(id(weight), name)
        if other != name:
            raise ArgumentError(f"{other} and {name} are one weight; layers that share one cannot be divided")
    for name, layer in module.named_modules():
        if getattr(layer, "inplace", False) is True:
            # On what a layer puts out it would drop what tells that layer to put its weights together for its gradient.
            raise ArgumentError(f"{name or 'the model'} changes what it is given in place; take inplace=False")
        if type(layer).get_extra_state is not nn.Module.get_extra_state:
            raise ArgumentError(f"{name or 'the model'} keeps something besides weights and buffers (get_extra_state)")


def _units(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers whose weights are put together one after the other, those within a layer before it."""
    for layer in module.children():
        opened = isinstance(layer, _CONTAINERS) or not type(layer).__module__.startswith("torch.")
        if opened:
            yield from _units(layer)
        weights = next(layer.parameters(recurse=not opened), None)
        if weights is not None and not isinstance(layer, _LISTS):
            yield layer


def own_part(weight: DTensor) -> nn.Parameter:
    """Return this worker's part of a divided weight, with its memory: whatever changes one of them changes both."""
    with torch.no_grad():
        return nn.Parameter(weight.to_local(), weight.requires_grad)


def _held(layer: nn.Module) -> nn.Module:
    if not any(isinstance(weight, DTensor) for weight in layer.parameters()):
        return layer
    held = nn.Module()
    for name, weight in layer.named_parameters(recurse=False):
        held.register_parameter(name, own_part(weight) if isinstance(weight, DTensor) else weight)
    for name, buffer in layer.named_buffers(recurse=False):
        held.register_buffer(name, buffer, persistent=name not in layer._non_persistent_buffers_set)
    for name, child in layer.named_children():
        held.add_module(name, _held(child))
    return held
