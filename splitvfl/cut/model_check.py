"""Everything that stands in a model's way before it is split: found at once, and not one error after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from splitvfl.cut.findings import MIXES, Finding, Findings, in_place, place_of
from splitvfl.cut.halves import Halves
from splitvfl.cut.model_trial import Trial
from splitvfl.hooks import BATCH_MIXING


def check_model(model: Any, *columns: Any, active: Any = None, at: int | None = None) -> Findings:
    """Return all that stands in a model's way, so that it can be mended at once; the model stays as it is.

    Without an example only what layers say of themselves is looked at: those that mix the records of a batch, a top
    that starts in place, weights that two halves share, devices, what is no module or frozen. With one, a copy of the
    model is run: shapes at the cut, gradients, records that change each other in a way of the model's own, outputs that
    differ between two runs.

    Args:
        model: A :class:`~splitvfl.SplitModel`; a pair ``(bottom, top)``, or ``({party: bottom}, top)``; or a sequential
            model, with ``at`` as :func:`~splitvfl.models.split_sequential` takes it, and without for its layers alone.
        *columns: Some records as an example, at least two: one argument per bottom.
        active: The active party's own columns of these, if its top takes any.
        at: Position of the first layer of the top, from 1.

    Returns:
        The findings, in the order of the model; empty if there are none. An empty answer is no promise: of an example
        of a few records, not every path of a model is seen.

    Raises:
        ArgumentError: If the model is none of these.

    >>> bottom = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> [(one.what, one.where) for one in check_model((bottom, nn.Linear(8, 1)))]
    [('mixes records', 'bottom.1 (BatchNorm1d)')]
    """
    halves = Halves.of(model, at=at)
    stopping = [*_no_modules(halves), *_lazy(halves)]
    found = [*stopping, *_mixing(halves), *_shared(halves), *_devices(halves), *_frozen(halves)]
    if columns and halves.top is not None and not stopping:
        mixing = {finding.where for finding in found if finding.what == MIXES}
        tried = Trial(halves, columns, active).findings()
        # What a layer says of itself is not said of its half once more.
        return Findings([*found, *(one for one in tried if one.what != MIXES or not _names(mixing, one))])
    return Findings([*found, *_starts_in_place(halves, active)])


def _names(places: set[str], finding: Finding) -> bool:
    """Return whether a place is inside that of a finding."""
    half = finding.where.split(" (")[0]
    return any(place.split(" (")[0] == half or place.startswith(f"{half}.") for place in places)


def _no_modules(halves: Halves) -> Iterator[Finding]:
    named = {f"{halves.prefix}{party}": bottom for party, bottom in halves.bottoms.items()}
    named |= {} if halves.top is None else {"top": halves.top}
    for path, half in named.items():
        if not isinstance(half, nn.Module):
            yield Finding(
                "no module",
                place_of(path, half),
                "its weights, its mode and its device cannot be found",
                "make it an nn.Module",
            )


def _mixing(halves: Halves) -> Iterator[Finding]:
    for path, layer in halves.layers():
        if isinstance(layer, BATCH_MIXING):
            yield Finding(
                MIXES,
                place_of(path, layer),
                "one record changes what is sent of the others, so that defenses with a guarantee per record refuse "
                "it, and the auditor reads less",
                "take GroupNorm or LayerNorm",
                repaired=can_be_normed_apart(layer),
            )


def can_be_normed_apart(layer: nn.Module) -> bool:
    """Return whether a batch norm can become a norm of each record: of one number alone nothing would be left."""
    features = getattr(layer, "num_features", 0)
    return bool(features > 1 or (features == 1 and not isinstance(layer, nn.BatchNorm1d)))


def _shared(halves: Halves) -> Iterator[Finding]:
    owners: dict[int, str] = {}
    for path, half in halves.modules():
        tensors = [*half.named_parameters(), *half.named_buffers()]
        for name, tensor in tensors:
            first = owners.setdefault(id(tensor), f"{path}.{name}")
            if not first.startswith(f"{path}."):
                yield Finding(
                    "shared weights",
                    f"{path}.{name}",
                    f"it is {first} too, and belongs to two parties: each would have to hold the other's",
                    "give each half weights of its own (copy.deepcopy)",
                )


def _devices(halves: Halves) -> Iterator[Finding]:
    for path, half in halves.modules():
        found = sorted({str(weight.device) for weight in half.parameters()})
        if len(found) > 1:
            why = f"its weights are on {' and '.join(found)}"
            yield Finding("devices", place_of(path, half), why, "move it to one: .to(device)")


def _frozen(halves: Halves) -> Iterator[Finding]:
    for path, half in halves.modules():
        weights = list(half.parameters())
        if path != "top" and weights and not any(weight.requires_grad for weight in weights):
            yield Finding(
                "frozen",
                place_of(path, half),
                "none of its weights learns, and yet a gradient is sent to its party, which tells it of labels",
                "let it learn, or train with exchange one-way, where nothing is sent back",
            )


def _lazy(halves: Halves) -> Iterator[Finding]:
    for path, layer in halves.layers():
        if any(isinstance(weight, UninitializedParameter) for weight in layer.parameters(recurse=False)):
            yield Finding(
                "no weights yet",
                place_of(path, layer),
                "its shape is not known before it has seen a batch, so that no optimiser can take its weights",
                "call the model once on some records, then check it again",
            )


def _starts_in_place(halves: Halves, active: Any) -> Iterator[Finding]:
    """Yield a first layer of the top that writes into what it is given, as far as a sequential model shows it."""
    path, layer = "top", halves.top
    while isinstance(layer, nn.Sequential) and len(layer):
        name, layer = next(iter(layer._modules.items()))
        path = f"{path}.{name}"
    # Several activations, and own columns, are joined first, and the result is the top's own.
    if len(halves.bottoms) == 1 and active is None and getattr(layer, "inplace", False):
        yield in_place(path, layer)
