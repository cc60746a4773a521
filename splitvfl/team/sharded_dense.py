"""Dense weights that are divided among the workers of a party, by torch's FSDP2 (``fully_shard``).

Each worker keeps a part of every weight: some of the rows of its first dimension, one behind the other. Before a layer
computes, its weights are put together, and given up again behind it; in the backward pass their gradients are added up
over the workers, and each worker gets its part of the sum. What is kept between two layers, weights, gradients and the
optimiser's state, is 1/W of what one process keeps.

Whatever calls such a model, forward or backward, all workers do together: those without records with no rows. All call
the same layers in the same order: a model that skips a layer for some records cannot be divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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


def divide(module: nn.Module, group: dist.ProcessGroup, called: Callable[[int], None] = lambda unit: None) -> nn.Module:
    """Divide a model's dense weights among workers, in place. Tables with sparse gradients stay as they are.

    No worker waits for another here. All of them hold the same weights before.

    Args:
        module: The model, on the CPU.
        group: The workers.
        called: Told, whenever weights are put together, of which part of the model, by number.

    Returns:
        What this worker holds of the model, as one with the same layers, weights and buffers by name: for its optimiser
        and for checkpoints, and not to be called.

    Raises:
        ArgumentError: As :func:`check_dividable`, or if torch cannot divide one of the weights.
    """
    check_dividable(module)
    tables = _tables(module)
    if all(weight in tables for weight in module.parameters()):
        return module
    mesh = DeviceMesh.from_group(group, "cpu")
    units = [*_units(module), module]
    try:
        for layer in units:
            # The outermost too: it would keep its weights as a whole after an evaluation, whatever is loaded then.
            fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=tables)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ArgumentError(f"torch's fully_shard cannot divide it: {error}") from error
    for number, layer in enumerate(units):
        assert isinstance(layer, FSDPModule), "it was made one just now"
        # Each worker's gradient is its part of the batch's: they are added up, and no mean is taken, which gloo could
        # not do on the way.
        layer.set_gradient_divide_factor(1.0)
        layer.set_force_sum_reduction_for_comms(True)
        # Within a layer that all workers call, a weight that the records of some do not train is added up at all.
        layer.set_reduce_scatter_unused_params(True, recurse=False)
        layer.register_forward_pre_hook(partial(_tell, number, called), prepend=True)
    return _held(module)


def _tell(number: int, called: Callable[[int], None], *_: object) -> None:
    called(number)


def check_dividable(module: nn.Module) -> None:
    """Refuse a model of which it is known that it would not compute what it computes as a whole.

    Not everything can be seen. A function that changes a layer's output in place is not noticed, but by a warning of
    torch's where that output is a view; nor is a forward pass that changes a weight, or reads one of a layer that it
    does not call.

    Raises:
        ArgumentError: If two layers share a weight, or a layer works in place, changes its weights as it reads them,
            keeps something besides weights and buffers, or has a weight without a dimension or trained weights of two
            dtypes; or if this is an older torch.
    """
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise ArgumentError(f"it takes torch 2.13 or later, and this is {torch.__version__}")
    seen: dict[int, str] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        other = seen.setdefault(id(weight), name)
        if other != name:
            raise ArgumentError(f"{other} and {name} are one weight; layers that share one cannot be divided")
        if not weight.dim():
            raise ArgumentError(f"{name} is a single number, of which nobody can have a part; give it a dimension")
    for name, layer in module.named_modules():
        why = _refused(layer)
        if why:
            raise ArgumentError(f"{name or 'the model'} {why}")
    tables, done = _tables(module), set[nn.Parameter]()
    for layer in (*_units(module), module):
        own = [weight for weight in layer.parameters() if weight not in tables and weight not in done]
        done.update(own)
        dtypes = {str(weight.dtype) for weight in own if weight.requires_grad}
        if len(dtypes) > 1:
            both = " and ".join(sorted(dtypes))
            raise ArgumentError(f"{type(layer).__name__} has trained weights of {both}; give them one dtype")


def _refused(layer: nn.Module) -> str:
    """Return why a layer cannot be divided, as the end of a sentence; empty if it can."""
    if isinstance(layer, torch.jit.ScriptModule):
        return "is compiled by TorchScript, and does not let its weights be put together"
    if getattr(layer, "inplace", False) is True:
        # On what a layer puts out it would drop what tells that layer to put its weights together for its gradient.
        return "changes what it is given in place; take inplace=False"
    if getattr(layer, "max_norm", None) is not None:
        return "changes its weights as it reads them (max_norm), and would change a copy"
    if type(layer).get_extra_state is not nn.Module.get_extra_state:
        return "keeps something besides weights and buffers (get_extra_state)"
    return ""


def _tables(module: nn.Module) -> set[nn.Parameter]:
    return {*sparse_parameters(module), *(table.rows for table in sharded_tables(module).values())}


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
    # The same dict, and not the tensors in it: a forward pass may put another one there.
    held._buffers = layer._buffers
    held._non_persistent_buffers_set = layer._non_persistent_buffers_set
    if getattr(layer, "sparse", False) is True:  # by which optimisers know a table
        held.sparse = True  # type: ignore[assignment]
    for name, child in layer.named_children():
        held.add_module(name, _held(child))
    return held
