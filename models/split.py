"""Cut an existing model in two."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from splitvfl.errors import ArgumentError


def split_sequential(model: nn.Sequential, *, at: int | str) -> tuple[nn.Sequential, nn.Sequential]:
    """Return bottom and top of a sequential model, which together compute what it computed.

    Both hold the very layers of ``model`` under their old names, not copies: training one trains the other.

    Args:
        model: At least two layers.
        at: First layer of the top: its position, negative ones counted from the end as in slices, or its name.

    Returns:
        ``(bottom, top)``, each with at least one layer.

    Raises:
        ArgumentError: If the model is not sequential, there is no such layer, or a half would be empty.

    >>> bottom, top = split_sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), at=-1)
    >>> len(bottom), len(top)
    (2, 1)
    """
    if not isinstance(model, nn.Sequential):
        raise ArgumentError(f"expected an nn.Sequential, got {type(model).__name__}")
    layers = list(model._modules.items())  # named_children() would skip a layer that is used twice
    position = _position(at, [name for name, _ in layers])
    return _sequential(layers[:position]), _sequential(layers[position:])


def _position(at: int | str, names: list[str]) -> int:
    count = len(names)
    if isinstance(at, str):
        if at not in names:
            raise ArgumentError(f"no layer {at!r} to cut at; the layers are {', '.join(names)}")
        position = names.index(at)
    else:
        position = at + count if at < 0 else at
    if not 1 <= position < count:
        raise ArgumentError(f"a model of {count} layers is cut at 1 to {count - 1}, got {at!r}")
    return position


def _sequential(layers: Sequence[tuple[str, nn.Module | None]]) -> nn.Sequential:
    return nn.Sequential(OrderedDict((name, layer) for name, layer in layers if layer is not None))
