"""Which weights of a model every worker of a party holds alike, and of which each holds a part."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from splitvfl.team.sharded_table import ShardedTable


def sharded_tables(module: nn.Module) -> dict[str, ShardedTable]:
    """Return the tables of a model that are divided among workers, by the names of their layers, each once."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, ShardedTable)}


def divided_weights(module: nn.Module) -> dict[str, Any]:
    """Return the dense weights of a model that are divided (:mod:`splitvfl.team.sharded_dense`), by name.

    They are tensors of torch's type ``DTensor``, which is not imported here: that takes half as long as all of torch.
    """
    return {name: weight for name, weight in module.named_parameters() if hasattr(weight, "to_local")}


def replicated_state(module: nn.Module) -> dict[str, Tensor]:
    """Return what every worker holds alike of a model: weights and buffers by name, without what is divided."""
    divided = {f"{name}.rows" if name else "rows" for name in sharded_tables(module)} | divided_weights(module).keys()
    state = module.state_dict().items()
    return {name: value for name, value in state if isinstance(value, Tensor) and name not in divided}
