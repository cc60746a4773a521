"""What it takes to read the labels of one step of the hybrid mechanism: seconds of sparse recovery.

At the settings of the paper's table IV, the passive party has d columns, and L records are sent of which k are used.
Columns are drawn: normal ones, and for census six normal ones and 75 categories of eight attributes, standardised, in
float32 as they cross; residues are ±½, as with weights of zero, and spread over (−1, 1), as later on. One call is four
rounds of reweighted L1 (:func:`~splitvfl.attacks.sparse_residues`); times are CPU time of one thread.

The note has how many signs of the residues that are not zero come out right, by the sparse solution alone, to which the
attack has another beside it. Beside it stands the work that the paper's equation 12 claims for an attacker, L (L + 1)
2^(L − 2).

Run ``python -m scripts.bench.sparse_recovery [--quick] [--json OUT]``. ``--quick`` takes two batches in place of 20.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean

import numpy as np
import torch
from torch import Tensor

from scripts.bench.measuring import Result, interleaved, main
from splitvfl.attacks import sparse_residues

# Name, columns, used records, sent ones, target in ms.
SETTINGS = (
    ("breast cancer", 30, 16, 40, None),
    ("digits", 64, 32, 70, None),
    ("census income", 81, 32, 90, 50.0),
    ("give me some credit", 10, 8, 15, None),
)
CATEGORIES = (9, 16, 7, 15, 6, 5, 2, 15)
BATCHES, QUICK_BATCHES = 20, 2
RUNS = 3


def claimed_work(sent: int) -> int:
    """Return the work that equation 12 of the paper claims: ``L (L + 1) 2^(L − 2)``.

    >>> claimed_work(15)
    1966080
    """
    return sent * (sent + 1) * (1 << sent - 2)


def columns_of(rng: np.random.Generator, sent: int, count: int, *, categories: bool) -> Tensor:
    """Return columns of records that are sent, ``(sent, count)``, float32."""
    if not categories:
        return torch.from_numpy(rng.normal(size=(sent, count))).float()
    shares = [1 / np.arange(1, size + 1) for size in CATEGORIES]
    chosen = [np.eye(len(share))[rng.choice(len(share), sent, p=share / share.sum())] for share in shares]
    columns = np.hstack([rng.normal(size=(sent, count - sum(CATEGORIES))), *chosen])
    spread = columns.std(axis=0)
    return torch.from_numpy((columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).float()


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes few batches."""
    return [
        _result(name, columns, used, sent, target, batches=QUICK_BATCHES if quick else BATCHES)
        for name, columns, used, sent, target in SETTINGS
    ]


def _result(name: str, columns: int, used: int, sent: int, target: float | None, *, batches: int) -> Result:
    rng = np.random.default_rng(0)
    works: list[Callable[[], object]] = []
    shares = []
    for number in range(batches):
        features = columns_of(rng, sent, columns, categories=name.startswith("census"))
        residues = torch.zeros(sent, dtype=torch.float64)
        drawn = rng.uniform(-1, 1, used) if number % 2 else rng.choice([-0.5, 0.5], used)
        residues[torch.from_numpy(rng.permutation(sent)[:used])] = torch.from_numpy(drawn)
        total = (features.double().T @ residues).float()
        found = sparse_residues(features, total)
        shares.append(float((found.sign() == residues.sign())[residues != 0].double().mean()))
        works.append(partial(sparse_residues, features, total))
    times = np.concatenate(interleaved(works, runs=RUNS, warm_up=0))
    low, middle, high = (1000 * np.quantile(times, [0.25, 0.5, 0.75])).tolist()
    note = (
        f"{len(times)} runs, {low:.3g} to {high:.3g}; {mean(shares):.1%} of the signs right; "
        f"equation 12 claims {claimed_work(sent):.2g} operations"
    )
    return Result(
        f"{name}: labels of one step, {columns} columns, {used} of {sent} used", middle, "ms", target, note=note
    )


if __name__ == "__main__":
    raise SystemExit(main("Sparse recovery: the labels of a hybrid step", measure))
