"""Repairs of a model before it is split: what can be mended without asking what was meant."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

from torch import nn

from splitvfl.cut.findings import IN_PLACE, Finding
from splitvfl.cut.halves import Halves
from splitvfl.cut.model_check import can_be_normed_apart, check_model
from splitvfl.cut.model_trial import Trial
from splitvfl.hooks import BATCH_MIXING

# As many groups as channels allow up to here: the usual choice for images.
_MOST_GROUPS = 32


def fix_model(model: Any, *columns: Any, active: Any = None, at: int | None = None) -> Any:
    """Return a repaired copy of a model; the model itself stays as it is.

    - Batch norms become norms of each record: of all features in the place of a ``BatchNorm1d`` (on two dimensions a
      layer norm), of groups of channels in that of others. Scale and shift stay, running statistics are gone: train it.
    - A layer that writes in place into what crosses computes a tensor of its own.
    - A bottom whose output has more than two dimensions ends in ``nn.Flatten``, and where the top needs the shape, it
      begins with ``nn.Unflatten``. That takes an example.

    Everything else is the owner's to decide: :func:`~splitvfl.cut.model_check.check_model` tells what is left. Weights
    keep their names, but for those of a half that is no ``nn.Sequential`` and gets a layer more.

    Args:
        model: As :func:`~splitvfl.cut.model_check.check_model` takes it.
        *columns: The example.
        active: The active party's own columns of it.
        at: Position of the first layer of the top of a sequential model.

    Returns:
        A model of the same form; of a sequential model with ``at`` the pair ``(bottom, top)``.

    Raises:
        ArgumentError: If the model is none, or defenses or attacks are attached to it: attach them afterwards.

    >>> bottom, top = fix_model((nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 1)))
    >>> type(bottom[1]).__name__, bottom[1].num_groups
    ('GroupNorm', 1)
    """
    halves = Halves.of(model, at=at).copied().with_layers(_normed_apart)
    _start_apart(halves, columns, active)
    if columns and halves.top is not None:
        halves = _flattened(halves, columns, active)
    return halves.joined(dict(halves.bottoms), halves.top)


def _normed_apart(layer: nn.Module) -> nn.Module:
    """Return a norm of each record in the place of a batch norm, and any other layer as it is."""
    if not isinstance(layer, BATCH_MIXING) or not can_be_normed_apart(layer):
        return layer
    channels = layer.num_features
    # A group of one feature would be normed to nothing where a record has no more than that of it.
    groups = 1 if isinstance(layer, nn.BatchNorm1d) else _groups(channels)
    norm = nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine).train(layer.training)
    if layer.affine:
        norm.weight, norm.bias = layer.weight, layer.bias
    return norm


def _groups(channels: int) -> int:
    """Return the largest number of equal groups of two channels or more."""
    return max(
        (count for count in range(1, _MOST_GROUPS + 1) if channels % count == 0 and channels // count > 1), default=1
    )


def _start_apart(halves: Halves, columns: tuple[Any, ...], active: Any) -> None:
    """Let the layer of the top that writes into what crosses compute a tensor of its own."""
    if halves.top is None:
        return
    pair = (dict(halves.bottoms), halves.top)
    layers = dict(halves.layers())
    for _ in layers:  # behind the first such layer there may be another
        places = [one.where for one in check_model(pair, *columns, active=active) if _can_start_apart(one)]
        if not places:
            return
        layers[places[0].split(" (")[0]].inplace = False  # type: ignore[assignment]  # whatever torch thinks of it


def _can_start_apart(finding: Finding) -> bool:
    return finding.what == IN_PLACE and finding.repaired


def _flattened(halves: Halves, columns: tuple[Any, ...], active: Any) -> Halves:
    """Return halves of which every bottom puts out ``(n, width)``."""
    trial = Trial(halves, columns, active)
    trial.findings()
    deep = {party: shape for party, shape in trial.shapes.items() if len(shape) > 1}
    if not deep:
        return halves
    bottoms = {
        party: _ending(half, "flatten", nn.Flatten()) if party in deep else half
        for party, half in halves.bottoms.items()
    }
    if trial.flattens or len(halves.bottoms) > 1 or active is not None:
        return replace(halves, bottoms=bottoms)
    (shape,) = deep.values()
    return replace(halves, bottoms=bottoms, top=_beginning("unflatten", nn.Unflatten(1, shape), halves.top))


def _ending(half: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    layers = list(half._modules.items()) if isinstance(half, nn.Sequential) else [("model", half)]
    return nn.Sequential(OrderedDict([*layers, (name, layer)])).train(half.training)


def _beginning(name: str, layer: nn.Module, half: nn.Module) -> nn.Module:
    layers = list(half._modules.items()) if isinstance(half, nn.Sequential) else [("model", half)]
    return nn.Sequential(OrderedDict([(name, layer), *layers])).train(half.training)
