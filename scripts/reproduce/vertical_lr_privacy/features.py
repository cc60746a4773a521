"""The feature attack on a party with one column: how many epochs it takes until everything is linked.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, theorem 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from scripts.reproduce.shared.claims import Claim, markdown_table, mean, shown
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.vertical_lr_privacy.drawing import Chart, Curve, draw_charts
from splitvfl.attacks.single_feature import ObservedBatch, recover_single_feature
from splitvfl.errors import ArgumentError
from splitvfl.learning.batches import Batches
from splitvfl.report.drawing import MUTED, PALETTE

COUNTS = (2, 4, 8, 16, 32, 64, 128)
SIZES = (2, 4, 16, 64)
QUICK_COUNTS, QUICK_SIZES = (2, 4, 8), (2, 8)
ORDERS, QUICK_ORDERS = 200, 20
ATTACKED = 8
"""Orders in which the attack itself is run."""
EXACT = 1e-6
_MOST_EPOCHS = 40
_RATE = 0.05


def promised(batches: int) -> int:
    """Return the paper's number of epochs for so many batches in an epoch: ``max(⌈log₂ m⌉ + 1, 2)``."""
    return max((batches - 1).bit_length() + 1, 2)


def linked_after(batches: int, size: int, seed: int) -> int | None:
    """Return after how many epochs every batch is linked to every other by shared records; ``None`` if after none.

    Batches and records are the nodes of a graph, with an edge where a record is in a batch.

    Args:
        batches: m, batches in an epoch.
        size: Records in a batch.
        seed: Of the order.
    """
    records = batches * size
    order = Batches(records, size, seed=seed)
    rows, columns = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for epoch in range(_MOST_EPOCHS):
        for number, batch in enumerate(order.epoch(epoch)):
            rows = np.concatenate([rows, np.full(len(batch), records + epoch * batches + number)])
            columns = np.concatenate([columns, batch.numpy()])
        nodes = records + (epoch + 1) * batches
        graph = coo_array((np.ones(rows.size), (rows, columns)), shape=(nodes, nodes))
        if connected_components(graph, directed=False)[0] == 1:
            return epoch + 1
    return None


def linkage(batches: int, size: int, orders: int) -> Result:
    """Return after how many epochs everything is linked, by order; ``None`` stands for more than forty."""
    return {"epochs": [linked_after(batches, size, seed) for seed in range(orders)]}


def attack(batches: int, size: int, seed: int) -> Result:
    """Return the largest error of the attack after 1, 2, ... epochs of a descent, infinite where a feature is unknown.

    Taylor residues; the attacker has as many columns as a batch has records, the other party one; features and
    labels are drawn, and so are the first weights.

    Args:
        batches: m, batches in an epoch.
        size: Records in a batch.
        seed: Of everything.
    """
    random = np.random.default_rng([seed, batches, size])
    records = batches * size
    own, other = random.normal(size=(records, size)) / math.sqrt(size), random.normal(size=records)
    labels = np.where(random.random(records) < 0.4, 1.0, -1.0)
    own_weights, other_weight = 0.1 * random.normal(size=size), float(random.normal())
    order, seen = Batches(records, size, seed=seed), []
    errors: list[float] = []
    for epoch in range(promised(batches) + 2):
        for batch in order.epoch(epoch):
            index = batch.numpy()
            mine = own[index] @ own_weights
            residues = mine + other[index] * other_weight - 2 * labels[index]
            gradient = own[index].T @ residues
            tensors = [torch.from_numpy(array) for array in (own[index], gradient, mine, labels[index])]
            seen.append(ObservedBatch(batch, tensors[0], tensors[1], tensors[2], tensors[3], _RATE))
            own_weights = own_weights - _RATE / (4 * size) * gradient
            other_weight -= _RATE / (4 * size) * float(other[index] @ residues)
        errors.append(_error(seen, other))
    return {"errors": errors}


def _error(seen: Sequence[ObservedBatch], truth: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    try:
        found = recover_single_feature(seen).features.numpy()
    except ArgumentError:
        return math.inf  # nothing fixes the scale yet
    errors = [float(np.abs(found - sign * truth).max()) for sign in (1, -1)]
    return math.inf if math.isnan(errors[0]) else min(errors)


def epochs_of_attack(result: Result) -> float:
    """Return after how many epochs the attack had every feature to within 1e-6; NaN if after none that was run."""
    for epoch, error in enumerate(result["errors"], start=1):
        if error <= EXACT:  # JSON has no infinity: NaN
            return float(epoch)
    return math.nan


def sections(settings: Settings) -> list[Section]:
    """Return the section on theorem 3.5."""
    counts, sizes = (QUICK_COUNTS, QUICK_SIZES) if settings.quick else (COUNTS, SIZES)
    orders = QUICK_ORDERS if settings.quick else ORDERS
    attacked = min(settings.seeds, ATTACKED)
    pairs = [(count, size) for size in sizes for count in counts]
    settings.say(f"features: {len(pairs)} settings")
    jobs = [Job(linkage, {"batches": count, "size": size, "orders": orders}) for count, size in pairs]
    jobs += [
        Job(attack, {"batches": count, "size": size, "seed": seed})
        for count, size in pairs
        for seed in range(attacked)
        if count <= ATTACK_UP_TO
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    epochs = dict(zip(pairs, (result["epochs"] for result in results[: len(pairs)]), strict=True))
    rest = iter(results[len(pairs) :])
    attacks = {
        pair: [epochs_of_attack(next(rest)) for _ in range(attacked)] for pair in pairs if pair[0] <= ATTACK_UP_TO
    }
    return [_section(counts, sizes, epochs, attacks)]


ATTACK_UP_TO = 32
"""The attack itself is run up to so many batches in an epoch; linkage is all that could differ beyond."""

_TEXT = f"""\
A party with one column sends multiples of it, and theorem 3.5 says that the label party has the column exactly, up to
its sign, after max(⌈log₂ m⌉ + 1, 2) epochs; m is taken to be the number of batches in an epoch. In a batch the features
are known up to one factor; batches that share a record have their factors linked, and what decides is when all are.
"Linked" is that, of {ORDERS} orders of this package for each setting; "the attack" is the epoch from which
`recover_single_feature` has every feature to within {EXACT:g}, in a descent with Taylor residues on drawn features."""


def _section(
    counts: Sequence[int],
    sizes: Sequence[int],
    epochs: dict[tuple[int, int], list[int | None]],
    attacks: dict[tuple[int, int], list[float]],
) -> Section:
    rows = [
        (
            str(size),
            str(count),
            str(promised(count)),
            shown(mean(_known(epochs[count, size])), 2),
            f"{max(_known(epochs[count, size])):.0f}",
            shown(_share_within(epochs[count, size], count)),
            _span(attacks.get((count, size), [])),
        )
        for size in sizes
        for count in counts
    ]
    headings = (
        "batch",
        "batches m",
        "epochs, theorem 3.5",
        "linked, mean",
        "largest",
        "share in the theorem's epochs",
        "the attack",
    )
    return Section(
        title="Features of a party with one column (theorem 3.5)",
        body=f"{_TEXT}\n\n{markdown_table(headings, rows)}",
        figures={"vertical-lr-features": _figure(counts, sizes, epochs)},
        captions={
            "vertical-lr-features": "Epochs until all batches are linked, mean over orders, by batches in an epoch; "
            "dashed: what theorem 3.5 says."
        },
        claims=[_claim(size, counts, epochs) for size in sizes] + [_attack_claim(epochs, attacks)],
    )


def _known(epochs: Sequence[int | None]) -> list[float]:
    # A result that was kept as JSON has NaN where there was none.
    return [math.inf if epoch is None or math.isnan(epoch) else float(epoch) for epoch in epochs]


def _share_within(epochs: Sequence[int | None], count: int) -> float:
    return mean(float(epoch <= promised(count)) for epoch in _known(epochs))


def _span(values: Sequence[float]) -> str:
    if not values:
        return "–"
    if any(math.isnan(value) for value in values):
        return "later"
    low, high = min(values), max(values)
    return f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"


def _figure(counts: Sequence[int], sizes: Sequence[int], epochs: dict[tuple[int, int], list[int | None]]) -> str:
    curves = [
        Curve(
            across=counts,
            up=[mean(_known(epochs[count, size])) for count in counts],
            colour=colour,
            label=f"batches of {size}",
        )
        for size, colour in zip(sizes, PALETTE, strict=False)
    ]
    curves.append(
        Curve(across=counts, up=[promised(count) for count in counts], colour=MUTED, dashed=True, label="theorem 3.5")
    )
    chart = Chart(title="epochs until all is linked", x_label="batches in an epoch, m", curves=curves, log_x=True)
    return draw_charts("vertical-lr-features", [chart], columns=1)


def _claim(size: int, counts: Sequence[int], epochs: dict[tuple[int, int], list[int | None]]) -> Claim:
    shares = [_share_within(epochs[count, size], count) for count in counts]
    worst = min(shares)
    return Claim(
        claim=f"theorem 3.5, batches of {size}: all is linked in max(⌈log₂ m⌉ + 1, 2) epochs (least share of orders)",
        published=1.0,
        ours=worst,
        interval=None,
        seeds=len(epochs[counts[0], size]),
        verdict="reproduces" if worst == 1.0 else "does not",
        why=f"{counts[shares.index(worst)]} batches in an epoch are the worst of {counts[0]} to {counts[-1]}"
        if worst < 1
        else f"{counts[0]} to {counts[-1]} batches in an epoch; it takes at most "
        f"{max(max(_known(epochs[count, size])) for count in counts):.0f}",
    )


def _attack_claim(
    epochs: dict[tuple[int, int], list[int | None]], attacks: dict[tuple[int, int], list[float]]
) -> Claim:
    pairs = [
        (found, linked)
        for pair, by_seed in attacks.items()
        for found, linked in zip(by_seed, _known(epochs[pair]), strict=False)
        if linked <= promised(pair[0]) + 2
    ]
    equal = [found == max(linked, 1.0) for found, linked in pairs]
    return Claim(
        claim="the attack has every feature in the epoch in which all is linked (share of descents)",
        published=None,
        ours=mean(map(float, equal)),
        interval=None,
        seeds=max(map(len, attacks.values())),
        verdict="reproduces" if all(equal) else "does not",
        why=f"{len(equal)} descents; exact up to one sign, to {EXACT:g}",
    )
