"""Training of many mechanisms and learning rates at once, on the package's own batches, and what it comes to.

One step is that of exchange ``split`` between a label party without columns and a passive party with all of them:
``w ← w + rate · Xᵀ sent / n``, with ``sent`` a mechanism's answer to the residues ``y − σ(X w)``. A test holds it
against the package's trainer and defenses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scripts.reproduce.residue_protection.mechanisms import Bank, Mechanism, from_settings
from scripts.reproduce.residue_protection.study import Problem, Table, held_out, table_of
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.settings import Settings
from splitvfl.learning.batches import Batches
from splitvfl.learning.randomness import derive_seed

RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Learning rates among which a held-out tenth decides, in units of ``1/2`` over :attr:`Mechanism.size`."""

_TOGETHER = 64
"""Mechanisms in one job: so many fit into a processor's cache with all their rates."""

Draw = Callable[[int, int], Tensor]
"""Returns Laplace numbers of scale 1, ``(records, mechanisms)``."""

Watcher = Callable[[int, Tensor], None]
"""Called after each epoch with its number, from 0, and the weights ``(d, rates, mechanisms)``."""


def laplace_numbers(generator: torch.Generator) -> Draw:
    """Return a source of Laplace numbers in float32, fast, and for experiments only: they have 24 bits."""

    def draw(records: int, mechanisms: int) -> Tensor:
        uniform = torch.empty(records, mechanisms).uniform_(-1.0, 1.0, generator=generator)
        # -1 itself may be drawn, of which the logarithm is infinite.
        return torch.log1p(-uniform.abs().clamp_(max=1.0 - 2.0**-24)).copysign_(uniform)

    return draw


def descend(
    table: Table,
    mechanisms: Sequence[Mechanism],
    rates: Tensor,
    *,
    batch_size: int,
    epochs: int,
    seed: int,
    draw: Draw,
    watch: Watcher = lambda epoch, weights: None,
) -> Tensor:
    """Train every mechanism at every one of its learning rates, from weights of zero, and return the weights.

    The order of the records is the package's for this seed. Each mechanism has noise of its own, alike at all its
    rates.

    Args:
        table: The records; those to test on are not looked at.
        mechanisms: C of them.
        rates: ``(R, C)``.
        batch_size: Records in a step.
        epochs: How often each record is released.
        seed: Of the order.
        draw: Where noise comes from.
        watch: Called after every epoch.

    Returns:
        ``(d, R, C)``.
    """
    count, width = table.train.shape
    weights = table.train.new_zeros(width, *rates.shape)
    flat = weights.view(width, -1)
    bank = Bank(mechanisms)
    order = Batches(count, batch_size, seed=seed)
    for epoch in range(epochs):
        for index in order.epoch(epoch):
            rows, labels = table.train.index_select(0, index), table.labels[index]
            predictions = torch.sigmoid(rows @ flat).view(-1, *rates.shape)
            residues = labels.view(-1, 1, 1) - predictions
            sent = bank.sent(residues, draw(len(index), len(mechanisms)).unsqueeze(1))
            flat += (rates.to(rows.dtype) / len(index)).view(-1) * (rows.T @ sent.view(len(index), -1))
        watch(epoch, weights)
    return weights


def aucs(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the AUC of every column of logits, ties counted half.

    Args:
        logits: ``(n, C)``.
        labels: ``(n,)``, 0 and 1, with some of each.

    Returns:
        ``(C,)``, float64.
    """
    positives, negatives = (logits[labels == label].T.contiguous() for label in (1, 0))
    ordered = negatives.sort(dim=1).values
    below = torch.searchsorted(ordered, positives) + torch.searchsorted(ordered, positives, right=True)
    return below.double().sum(dim=1) / (2 * positives.shape[1] * negatives.shape[1])


def accuracies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of records that every column of logits puts on the right side of zero, ``(C,)``, float64."""
    return ((logits > 0) == (labels == 1).unsqueeze(1)).double().mean(dim=0)


def train_cells(problem: Mapping[str, Any], seed: int, mechanisms: Sequence[Mapping[str, Any]]) -> Result:
    """Train every mechanism at the rate that a held-out tenth of the training records prefers, and test each epoch.

    Rates are compared by accuracy plus AUC, both of which the paper prints, of the weights after the last epoch. Then
    all training records are trained on at the best one.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of split, held-out tenth, order and noise.
        mechanisms: What :meth:`Mechanism.as_settings` returned.

    Returns:
        ``cells``: for each mechanism its ``rate``, the same as a multiple (``relative_rate``), and ``auc`` and
        ``accuracy`` on the test records after each epoch.
    """
    given, cells = Problem.of(problem), from_settings(mechanisms)
    table = table_of(given, seed)
    sizes = torch.tensor([each.size for each in cells], dtype=torch.float64)
    rates = torch.tensor(RATES, dtype=torch.float64).unsqueeze(1) / (2 * sizes)
    purpose = json.dumps(list(mechanisms), sort_keys=True)

    def run(part: Table, offered: Tensor, stage: str, watch: Watcher = lambda epoch, weights: None) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, stage, given.key, purpose))
        return descend(
            part,
            cells,
            offered,
            batch_size=given.batch_size,
            epochs=given.epochs,
            seed=seed,
            draw=laplace_numbers(generator),
            watch=watch,
        )

    validated = held_out(table, seed)
    weights = run(validated, rates, "choice of rates")
    logits = validated.test @ weights.flatten(1)
    judged = aucs(logits, validated.test_labels) + accuracies(logits, validated.test_labels)
    best = judged.view(rates.shape).argmax(dim=0)
    courses: list[tuple[list[float], list[float]]] = []

    def test(_epoch: int, trained: Tensor) -> None:
        logits = table.test @ trained[:, 0]
        courses.append(
            (aucs(logits, table.test_labels).tolist(), accuracies(logits, table.test_labels).tolist()),
        )

    run(table, rates.gather(0, best.unsqueeze(0)), "training", test)
    return {
        "cells": [
            {
                "rate": float(rates[best[cell], cell]),
                "relative_rate": RATES[int(best[cell])],
                "auc": [auc[cell] for auc, _ in courses],
                "accuracy": [accuracy[cell] for _, accuracy in courses],
            }
            for cell in range(len(cells))
        ]
    }


class Course:
    """What one mechanism came to on one problem, seed by seed.

    Attributes:
        auc: On the test records, after each epoch, for each seed.
        accuracy: Likewise.
        rates: The learning rates that were chosen, in units of :data:`RATES`.
    """

    def __init__(self, cells: Sequence[Mapping[str, Any]]) -> None:
        self.auc: list[list[float]] = [cell["auc"] for cell in cells]
        self.accuracy: list[list[float]] = [cell["accuracy"] for cell in cells]
        self.rates: list[float] = [cell["relative_rate"] for cell in cells]

    def last(self, measure: str) -> list[float]:
        """Return ``auc`` or ``accuracy`` after the last epoch, one per seed."""
        return [course[-1] for course in getattr(self, measure)]

    def best(self, measure: str) -> list[float]:
        """Return the largest ``auc`` or ``accuracy`` after any epoch, chosen by the test records, one per seed."""
        return [max(course) for course in getattr(self, measure)]


def courses_of(
    settings: Settings, problems: Sequence[Problem], mechanisms: Sequence[Mechanism]
) -> dict[Problem, dict[Mechanism, Course]]:
    """Train every mechanism on every problem with every seed, and return what came of it.

    Args:
        settings: Seeds, and where finished jobs are kept.
        problems: The problems.
        mechanisms: The same for all; two that are alike are trained once.
    """
    wanted = sorted(dict.fromkeys(mechanisms), key=lambda each: (each.kind, each.mode))
    groups = [wanted[start : start + _TOGETHER] for start in range(0, len(wanted), _TOGETHER)]
    places = [(problem, seed, group) for seed in range(settings.seeds) for problem in problems for group in groups]
    jobs = [
        Job(
            train_cells,
            {
                "problem": problem.as_settings(),
                "seed": seed,
                "mechanisms": [each.as_settings() for each in group],
            },
        )
        for problem, seed, group in places
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    cells: dict[Problem, dict[Mechanism, list[Mapping[str, Any]]]] = {problem: {} for problem in problems}
    for (problem, _, group), result in zip(places, results, strict=True):
        for mechanism, cell in zip(group, result["cells"], strict=True):
            cells[problem].setdefault(mechanism, []).append(cell)
    return {problem: {each: Course(found) for each, found in of.items()} for problem, of in cells.items()}
