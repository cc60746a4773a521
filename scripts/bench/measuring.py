"""What the benchmarks share: interleaved timing, results, and how they are printed and written."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from splitvfl.system.allocator import keep_large_blocks

Work = Callable[[], object]


@dataclass(frozen=True)
class Result:
    """One measured claim.

    Attributes:
        name: What was measured.
        value: The median.
        unit: Its unit: ``"ratio"``, ``"of a step"``, ``"ms"``, ``"us"``.
        target: What is aimed at; ``None`` for a figure without a target.
        better: Which direction is better.
        note: Number of runs, spread, and the like.
    """

    name: str
    value: float
    unit: str
    target: float | None
    better: Literal["lower", "higher"] = "lower"
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        if self.target is None:
            return True
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def interleaved(
    works: Sequence[Work],
    *,
    runs: int,
    repeats: Sequence[int] = (),
    warm_up: int = 2,
    clock: Callable[[], float] = time.process_time,
) -> list[list[float]]:
    """Return the seconds of each run of each piece of work, taken in turn: A B C, C B A and so on.

    Garbage collection is off while the clock runs, and before it looks through what has been made since the beginning.

    Args:
        works: What to time.
        runs: Counted runs of each.
        repeats: How often each piece is done within one run, of which the mean is taken: short pieces are not timed
            one by one. Default: once.
        warm_up: Runs of each that are not counted, first.
        clock: What tells the time. Default: CPU time of this process, which with one thread is the work itself,
            whatever else the machine does. Work that waits for other processes needs :func:`time.perf_counter`.
    """
    times: list[list[float]] = [[] for _ in works]
    pieces = list(zip(works, times, repeats or [1] * len(works), strict=True))
    # A program that has imported much has a million objects, none of them garbage: to look through them takes longer
    # than most of what is timed.
    gc.collect()
    gc.freeze()
    try:
        for number in range(warm_up + runs):
            # Forwards and backwards in turn: what a piece finds in the caches depends on the one before it.
            for work, taken, often in pieces if number % 2 == 0 else reversed(pieces):
                elapsed = _mean_time(work, often, clock)
                if number >= warm_up:
                    taken.append(elapsed)
    finally:
        gc.unfreeze()
    return times


def _mean_time(work: Work, often: int, clock: Callable[[], float]) -> float:
    gc.collect()
    gc.disable()
    try:
        started = clock()
        for _ in range(often):
            work()
        return (clock() - started) / often
    finally:
        gc.enable()


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, str]:
    """Return the median of paired ratios, and a note: how many, and from which quartile to which."""
    ratios = np.asarray(numerator) / np.asarray(denominator)
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return float(middle), f"{len(ratios)} runs, {low:.3g} to {high:.3g}"


def cpu_of_all_processes() -> float:
    """Return CPU seconds of this process and of all that it has started; 0 where the system does not tell."""
    if not Path("/proc/self/schedstat").exists():
        return 0.0
    ended = os.times()
    running = sum(_cpu_of(process) for process in _started_by(Path("/proc/self")))
    return time.process_time() + ended.children_user + ended.children_system + running


def _cpu_of(process: Path) -> float:
    # In nanoseconds; the system's other figures come in hundredths of a second.
    return sum(int(thread.read_text().split()[0]) for thread in process.glob("task/*/schedstat")) / 1e9


def _started_by(process: Path) -> Iterator[Path]:
    for thread in process.glob("task/*/children"):
        for pid in thread.read_text().split():
            yield Path("/proc", pid)
            yield from _started_by(Path("/proc", pid))


def machine() -> dict[str, str | int]:
    """Return what the figures were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def main(description: str, measure: Callable[[bool], list[Result]], argv: Sequence[str] | None = None) -> int:
    """Parse ``[--quick] [--json OUT]``, measure, print a table, write JSON, and return 0.

    A missed target is a result, not an error: it is printed and written as ``"holds": false``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="the same rows on smaller work")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results here")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    keep_large_blocks()  # as the command line does
    results = measure(arguments.quick)
    print_table(description, results)
    if arguments.json is not None:
        rows = [{**asdict(result), "holds": result.holds} for result in results]
        arguments.json.write_text(json.dumps({"machine": machine(), "results": rows}, indent=2) + "\n")
    return 0


def print_table(title: str, results: Sequence[Result]) -> None:
    """Print the results for people."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("what")
    for heading in ("median", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("unit")
    table.add_column("holds")
    for result in results:
        target = "" if result.target is None else f"{result.target:.3g}"
        holds = "" if result.target is None else "yes" if result.holds else "NO"
        table.add_row(result.name, f"{result.value:.3g}", target, result.unit, holds)
        table.add_row(f"  {result.note}", "", "", "", "", style="dim")
    Console().print(table)
