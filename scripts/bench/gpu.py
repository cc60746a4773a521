"""What a GPU gains beside CPUs, and what copies between it and main memory take of a step.

Two parties, each a process, over mutual TLS on loopback, as ``scripts.bench.scale`` has them. Every step takes its
batch from main memory, and what crosses goes by way of it. Both parties share the GPU, as all workers do.

- ``steps``: a step where both compute on one core each, on more cores, and on the GPU, in turn
- ``copies``: what the passive party copies in a step, timed alone from page-locked and from other memory, and its share
- ``workers``: two workers of each party on the GPU, and what a sum of their gradients takes; by NCCL where that is
  possible, else by gloo

Run ``python -m scripts.bench.gpu [--only ROW ...] [--quick] [--json OUT]`` on a machine with an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import torch
from torch import Tensor

from scripts.bench.measuring import Result, machine, print_table, ratio
from scripts.bench.network import HERE, THERE
from scripts.bench.processes import workplace
from scripts.bench.scale_pairs import DENSE_SUM, ROWS_SUM, SMALL_SUM, Load, running_pairs
from scripts.bench.training import DIM, FIELDS, NUMERIC, WIDTH
from splitvfl.system.gpu_copies import to_device, to_memory

ROWS: Final = ("steps", "copies", "workers")
LOADS: Final = (
    Load("dense", 4096, None, 10, 5),
    Load("dense", 65_536, None, 2, 5),
    Load("Wide & Deep", 4096, None, 10, 5, FIELDS),
    Load("Wide & Deep", 65_536, None, 2, 5, FIELDS),
)
QUICK_LOADS: Final = (Load("dense", 256, None, 3, 2), Load("Wide & Deep", 256, None, 3, 2, 2))
_COPIES: Final = 15


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is asked for, print and write it; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help="some of the above")
    parser.add_argument("--quick", action="store_true", help="the same on smaller work")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results here")
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch finds no NVIDIA GPU here", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    found = list(measure(frozenset(arguments.only), QUICK_LOADS if arguments.quick else LOADS))
    if arguments.json is not None:
        written = [asdict(row) for row in found]
        named = {**machine(), "gpu": torch.cuda.get_device_name()}
        arguments.json.write_text(json.dumps({"machine": named, "results": written}, indent=2) + "\n")
    return 0


def measure(wanted: frozenset[str], loads: Sequence[Load]) -> Iterator[Result]:
    """Yield the rows of each name that is wanted, load by load, and print them."""
    for load in loads:
        steps = timed_steps(load) if wanted & {"steps", "copies"} else {}
        rows = [
            *(said_of_steps(load, steps) if "steps" in wanted else ()),
            *(copies(load, median(steps["GPU"])) if "copies" in wanted else ()),
            *(workers(load) if "workers" in wanted else ()),
        ]
        print_table(load.name, rows)
        yield from rows


def timed_steps(load: Load) -> dict[str, list[float]]:
    """Return the seconds of steps on each kind of device, of runs in turn."""
    cores = max(2, (os.cpu_count() or 2) // 2)
    kinds = {
        "one core each": load,
        f"{cores} cores each": replace(load, threads=cores),
        "GPU": replace(load, device="cuda"),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    with workplace(HERE, THERE) as folder, ExitStack() as stack:
        running = {kind: stack.enter_context(running_pairs(one, 1, folder)) for kind, one in kinds.items()}
        for number in range(load.rounds + 1):
            for kind, pair in running.items():
                timed = pair.run(load.steps)
                if number:  # the first one warms up
                    found[kind].append(timed.step_s)
    return found


def said_of_steps(load: Load, steps: dict[str, list[float]]) -> Iterator[Result]:
    """Yield what a step takes, and how many times as long as on the GPU."""
    for kind, taken in steps.items():
        yield Result(f"{load.name}: a step, {kind}", 1e3 * median(taken), "ms", None)
        if kind != "GPU":
            times, note = ratio(taken, steps["GPU"])
            yield Result(f"{load.name}: {kind} beside the GPU", times, "ratio", None, note=note)


def copies(load: Load, step_s: float) -> Iterator[Result]:
    """Yield what the passive party's copies of a step take, from memory of either kind, and their share of a step."""
    columns = [torch.randn(load.batch, NUMERIC if load.fields else NUMERIC + FIELDS * DIM)]
    columns += [torch.zeros(load.batch, load.fields, dtype=torch.int64)] if load.fields else []
    crossing = torch.randn(load.batch, WIDTH)
    there = crossing.to(_GPU)
    taken = {
        "columns": sum(_seconds(partial(to_device, part, _GPU)) for part in columns),
        "columns, page-locked": sum(_seconds(partial(to_device, part.pin_memory(), _GPU)) for part in columns),
        "gradient": _seconds(partial(to_device, crossing.pin_memory(), _GPU)),
        "gradient, not page-locked": _seconds(partial(to_device, crossing, _GPU)),
        "activation": _seconds(partial(to_memory, there)),
        "activation, not page-locked": _seconds(there.cpu),
    }
    for what, seconds in taken.items():
        yield Result(f"{load.name}: copy of {what}", 1e3 * seconds, "ms", None)
    done = sum(seconds for what, seconds in taken.items() if "page-locked" not in what)
    yield Result(f"{load.name}: copies' share of a step on the GPU", done / step_s, "ratio", None)


_GPU: Final = torch.device("cuda")


def _seconds(copy: Callable[[], Tensor]) -> float:
    taken = []
    for _ in range(_COPIES):
        torch.cuda.synchronize()
        started = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return median(taken)


def workers(load: Load) -> Iterator[Result]:
    """Yield what a step and what sums take with two workers of each party on the GPU."""
    with workplace(HERE, THERE) as folder, running_pairs(replace(load, device="cuda"), 2, folder) as pairs:
        pairs.run(load.steps)
        steps = [pairs.run(load.steps).step_s for _ in range(load.rounds)]
        sums = {kind: pairs.add_up(*kind) for kind in (SMALL_SUM, DENSE_SUM, ROWS_SUM)}
    yield Result(f"{load.name}: a step, two workers each on one GPU", 1e3 * median(steps), "ms", None)
    for (numbers, rows), seconds in sums.items():
        what = f"{numbers:,} numbers" + (f" and {rows:,} rows of a table" if rows else "")
        yield Result(f"{load.name}: a sum of {what}", 1e3 * seconds, "ms", None)


if __name__ == "__main__":
    sys.exit(main())
