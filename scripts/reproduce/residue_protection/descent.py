"""Gradient descent of one contender, many trainings at a time: with other learning rates, or other noise.

One passive party has all columns, and the label party labels only. All trainings start from weights of zero and see the
same batches. It is what the package's exchanges `split` and `hybrid` come to under its defenses; a test compares them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import NamedTuple

import torch
from torch import Tensor

from scripts.reproduce.residue_protection.protections import Contender, Protection, Selection
from splitvfl.exchange.selection import KEY_BYTES
from splitvfl.learning.batches import Batches

MOST_STEPS = 5_000
"""Batches of eight records would make 150 000 steps of the largest table: days under encryption."""


class Step(NamedTuple):
    """The records of one step.

    Attributes:
        rows: Whose logits are asked for, positions ``(L,)``.
        used: Which of them are learned from, ``(L,)``, bool: all but in the hybrid exchange.
    """

    rows: Tensor
    used: Tensor


Watch = Callable[[Step, Tensor, Tensor], None]
"""Called after each step with its records, their logits ``(L, R)`` and what is sent of those used, ``(k, R)``."""

Draw = Callable[[int, int], Tensor]
"""Returns standard Laplace numbers, ``(s, R)``."""


def steps_of(
    contender: Contender, *, records: int, columns: int, batch_size: int, epochs: int, seed: int
) -> Iterator[Step]:
    """Yield the steps of a run.

    As many as use every record ``epochs`` times, and no more than :data:`MOST_STEPS`. In the hybrid exchange that is on
    average: as its batches are used in part, it goes through the records more often. A last batch of an epoch that can
    hide nothing is left out, as there.

    Args:
        contender: Whose batches.
        records: Training records.
        columns: Of the passive party.
        batch_size: Records in a step of contenders that have none of their own.
        epochs: How often each record is used.
        seed: Of the order, and of what is drawn.
    """
    wanted = number_of_steps(contender, records=records, batch_size=batch_size, epochs=epochs)
    if contender.selection is None:
        order = Batches(records, contender.rows(batch_size), seed=seed)
        every = (rows for epoch in range(epochs) for rows in order.epoch(epoch))
        for rows in islice(every, wanted):
            yield Step(rows, torch.ones(len(rows), dtype=torch.bool))
    else:
        key = hashlib.blake2b(f"{seed}/secret batches".encode(), digest_size=KEY_BYTES).digest()
        yield from islice(hybrid_steps(contender.selection, key, records, columns, seed), wanted)


def number_of_steps(contender: Contender, *, records: int, batch_size: int, epochs: int) -> int:
    """Return how many steps a run has; see :func:`steps_of`."""
    used = contender.rows(batch_size) if contender.selection is None else contender.selection.used
    return min(epochs * -(-records // used), MOST_STEPS)


def hybrid_steps(selection: Selection, key: bytes, records: int, columns: int, seed: int) -> Iterator[Step]:
    """Yield the steps of the hybrid exchange whose draws follow from a key, without end."""
    size = min(selection.batch_size, records)
    order, secret = Batches(records, size, seed=seed), selection.secret_batch
    # Of a probability that takes a millisecond, and depends on the size alone.
    hides = {rows: secret.is_likely(rows, columns) for rows in {size, records % size} if rows}
    every = (rows for epoch in count() for rows in order.epoch(epoch))
    for step, rows in enumerate(every):
        if hides[len(rows)]:
            drawn = secret.draw(key, step, len(rows), [columns])
            yield Step(rows[drawn.sent], drawn.used[drawn.sent])


def descend(
    columns: Tensor,
    targets: Tensor,
    protection: Protection,
    steps: Iterator[Step],
    *,
    rates: Tensor,
    draw: Draw,
    watch: Watch | None = None,
) -> Tensor:
    """Return the weights of each training, ``(d, R)``, float64.

    A step is ``w ← w + rate · Xᵀ sent / k``, over the k records that are used.

    Args:
        columns: ``(n, d)``, float64.
        targets: What is learned of each record by each training, ``(n, R)``, float64.
        protection: What becomes of residues.
        steps: Their records, in order.
        rates: Learning rates, ``(R,)``, float64.
        draw: Where noise comes from; not called by protections that draw none in a step.
        watch: Called after each step.
    """
    weights = torch.zeros(columns.shape[1], len(rates), dtype=torch.float64)
    for step in steps:
        used = step.rows[step.used]
        rows = columns[used]
        logits = rows @ weights
        residues = protection.residues(targets[used], logits)
        sent = protection.sent(residues, draw(*residues.shape).double() if protection.draws_noise else None)
        if watch is not None:
            watch(step, columns[step.rows] @ weights, sent)
        weights += rows.T @ sent * (rates / len(used))
    return weights
