"""The data of a run in a few lines, before anything is trained: what there is, and what may not be what it seems."""

from __future__ import annotations

import torch

from splitvfl.data.columns import PartyData, Records, TaskName, VerticalData
from splitvfl.data.doubts import in_words
from splitvfl.errors import printable

_LABELS_READ = 1_000_000


def summary_of(data: VerticalData) -> list[str]:
    """Return what there is to know of the data of all parties, a line each; warnings last.

    They speak of settings as they are written where the user is: see :func:`splitvfl.data.spelling.setting`.
    """
    lines = [
        f"data: {data.name}, {_records(data.active)}, {_labels(data.active.train, data.task)}",
        f"  {data.description}",
        f"  {_columns(data.active, 'active')}",
        *(f"  {_columns(party, 'passive')}" for party in data.passives.values()),
    ]
    warnings = [line for party in (data.active, *data.passives.values()) for line in warnings_of(party)]
    return [*map(printable, lines), *warnings]


def own_summary_of(data: PartyData, task: TaskName | None) -> list[str]:
    """Return what there is to know of one party's own data; nothing is known of others.

    Args:
        data: Its data.
        task: What is learned; ``None`` at a passive party.
    """
    labels = "" if task is None else f", {_labels(data.train, task)}"
    role = "passive" if task is None else "active"
    return [f"data: {_records(data)}{labels}", printable(f"  {_columns(data, role)}"), *warnings_of(data)]


def _records(data: PartyData) -> str:
    found, shards = f"{data.train.count:,} training and {data.test.count:,} test records", data.shards
    if shards is None:
        return found
    count = len(shards.sizes)
    return f"{found} in {count} shards" if shards.here is None else f"{found}, of shard {shards.here} ({count} in all)"


def _labels(records: Records, task: TaskName) -> str:
    labels = records.labels
    if labels is None or records.count == 0:
        return "no labels"
    some = labels[:_LABELS_READ]  # of a table on disk a part is enough, and is soon read
    of = "" if len(some) == len(labels) else f" (of the first {_LABELS_READ:,})"
    if task == "binary":
        return f"{float(some.double().mean()):.2%} positive{of}"
    if task == "multiclass":
        counts = torch.bincount(some)
        return f"{int((counts > 0).sum())} classes, the largest {float(counts.max()) / len(some):.0%}{of}"
    return f"labels from {float(some.min()):g} to {float(some.max()):g}, mean {float(some.double().mean()):.4g}{of}"


def _columns(party: PartyData, role: str) -> str:
    if not party.column_names:
        return f"{party.name} ({role}): no columns"
    numeric = frozenset(party.numeric_names)
    numbers = sum(column in numeric for column in party.column_names)
    kinds = {"numeric": numbers, "categorical": len(party.column_names) - numbers}
    held = " and ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    inputs = party.width + len(party.field_sizes)
    encoded = "" if inputs == len(party.column_names) else f", {inputs} inputs to the model"
    return f"{party.name} ({role}): {held} {'column' if len(party.column_names) == 1 else 'columns'}{encoded}"


def warnings_of(party: PartyData) -> list[str]:
    """Return what is doubtful about a party's columns, a line for each kind of doubt, and what to do about it."""
    return [printable(f"warning: {party.name}: {line}") for line in in_words(party.doubts)]
