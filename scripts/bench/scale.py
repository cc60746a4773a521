"""Parties of several workers: what they gain, that they train what one process trains, and that nothing is lost.

- ``equality``: two and four workers of each party beside one process, in float64 and float32, with defenses and attacks
- ``faults``: thirty faults in runs of two parties of two workers, and whether they end as if nothing had been
- ``alone``: what a party that is one process pays for that it could be several
- ``pairs``: one pair of workers on one core beside several pairs on as many
- ``model``: what many more workers would gain, computed from constants that ``pairs`` measures, and an epoch of many
  records worked through

``pairs`` and ``model`` are of times: run them on a quiet machine. Run
``python -m scripts.bench.scale [--only ROW ...] [--quick] [--seed 0] [--json OUT]``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch

from scripts.bench.measuring import Result, machine, print_table
from scripts.bench.scale_alone import alone
from scripts.bench.scale_equality import equality
from scripts.bench.scale_example import example, passive_record_s
from scripts.bench.scale_faults import faults
from scripts.bench.scale_model import checked, computed, said_of
from scripts.bench.scale_pairs import (
    LOADS,
    QUICK_LOADS,
    Measured,
    cores_here,
    measured,
    numbers_of_pairs,
    results,
)
from splitvfl.system.allocator import keep_large_blocks

ROWS: Final = ("equality", "faults", "alone", "pairs", "model")
# Of which a figure that misses its target is a defect, and not a slow machine.
STRICT: Final = frozenset({"equality", "faults"})


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is asked for, print and write it; 1 if something is lost, or not what one process trains."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help="some of the above")
    parser.add_argument("--quick", action="store_true", help="the same on smaller work")
    parser.add_argument("--seed", type=int, default=0, help="draws what faults happen, to whom, and when")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results here")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    keep_large_blocks()
    found = []
    for name, rows in measure(frozenset(arguments.only), quick=arguments.quick, seed=arguments.seed):
        print_table(name, rows)
        found.append((name, rows))
    if arguments.json is not None:
        written = [{**asdict(row), "holds": row.holds} for _, rows in found for row in rows]
        arguments.json.write_text(json.dumps({"machine": machine(), "results": written}, indent=2) + "\n")
    return 0 if all(row.holds for name, rows in found if name in STRICT for row in rows) else 1


def measure(wanted: frozenset[str], *, quick: bool, seed: int) -> Iterator[tuple[str, list[Result]]]:
    """Yield the rows of each name that is wanted, as soon as there are any.

    Args:
        wanted: Some of :data:`ROWS`.
        quick: Whether on smaller work.
        seed: Draws the faults.
    """
    simple: Mapping[str, Callable[[], list[Result]]] = {
        "equality": lambda: equality(quick),
        "faults": lambda: faults(quick, seed=seed),
        "alone": lambda: alone(quick),
    }
    for name, rows in simple.items():
        if name in wanted:
            yield name, rows()
    if wanted & {"pairs", "model"}:
        timed = measured(QUICK_LOADS if quick else LOADS, numbers_of_pairs(len(cores_here())))
        if "pairs" in wanted:
            yield "pairs", results(timed)
        if "model" in wanted:
            yield "model", modelled(timed)


def modelled(timed: Sequence[Measured]) -> list[Result]:
    """Return the constants, whether the model says what was measured, what it says beyond, and the worked example."""
    largest = max(timed, key=lambda one: (one.load.fields, one.load.batch))
    return [*said_of(timed), *checked(timed), *computed(timed), *example(passive_record_s(largest))]


if __name__ == "__main__":
    sys.exit(main())
