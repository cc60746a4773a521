"""What a run shows while it goes on: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from splitvfl.data.ingest import IngestStatus
from splitvfl.leakage.label_leak import LabelLeak
from splitvfl.run.training import Status

# Seconds between two plain lines: a log file of a long run stays readable.
_PLAIN_EVERY_S = 10.0


class _Bar:
    """A bar on a terminal, and now and then a line elsewhere; a context manager that takes the bar away again.

    Args:
        console: Where to draw.
        columns: What stands beside the description and the bar.
    """

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        self._console = console
        self._live = console.is_terminal
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            *columns,
            console=console,
            transient=True,
            disable=not self._live,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def tell(self, line: str) -> None:
        """Print what happened, above the bar."""
        self._print(line, always=True)

    def _print(self, line: str, *, always: bool = False) -> None:
        """Print a plain line, unless one was printed just before."""
        now = time.monotonic()
        if always or now - self._last_line >= _PLAIN_EVERY_S:
            self._last_line = now
            self._console.print(Text(line), soft_wrap=True)


class RunProgress(_Bar):
    """Shows one bar over several runs, with the figures of the current one.

    Args:
        console: Where to draw.
        runs: Number of runs.
    """

    def __init__(self, console: Console, runs: int = 1) -> None:
        super().__init__(console, MofNCompleteColumn(), TextColumn("{task.fields[figures]}"))
        self._runs = runs
        self._run = 0
        self._task = self._bar.add_task("", total=None, figures="")

    def run(self, label: str) -> Callable[[Status], None]:
        """Start the next run and return what is called after each of its steps."""
        self._run += 1
        prefix = f"{self._run}/{self._runs} " if self._runs > 1 else ""

        def show(status: Status) -> None:
            if self._live:
                self._bar.update(
                    self._task,
                    description=f"{prefix}{label}",
                    total=status.steps,
                    completed=status.step,
                    figures=figures(status),
                )
            else:
                line = f"{prefix}{label}: epoch {status.epoch}/{status.epochs} {figures(status)}"
                self._print(line, always=status.step == status.steps)

        return show


class RowProgress(_Bar):
    """Shows how many rows of a file are done, and how many a second.

    Args:
        console: Where to draw.
        label: What is being done.
        rows: How many there will be.
    """

    def __init__(self, console: Console, label: str, rows: int) -> None:
        super().__init__(
            console, TextColumn("{task.completed:,.0f}/{task.total:,.0f} rows"), TextColumn("{task.fields[rate]}")
        )
        self._label = label
        self._rows = rows
        self._start = time.monotonic()
        self._task = self._bar.add_task(label, total=rows, rate="")

    def __call__(self, done: int) -> None:
        """Show that so many rows are done."""
        rate = f"{done / max(time.monotonic() - self._start, 1e-9):,.0f} rows/s"
        if self._live:
            self._bar.update(self._task, completed=done, rate=rate)
        else:
            self._print(f"{self._label}: {done:,}/{self._rows:,} rows  {rate}")


class AlignProgress(_Bar):
    """Shows how much of an alignment is computed; how much there is in all is known once the parties have met.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console, TaskProgressColumn(), TimeRemainingColumn())
        self._task = self._bar.add_task("aligning", total=1.0)

    def __call__(self, done: int, total: int) -> None:
        """Show that so many points of all are computed."""
        what = f"aligning {done:,}/{total:,} points"
        if self._live:
            self._bar.update(self._task, completed=done, total=total, description=what)
        else:
            self._print(what, always=done == total)


class IngestProgress(_Bar):
    """Shows how far an ingest has come: both looks at the files are one bar.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console, TaskProgressColumn(), TimeRemainingColumn())
        self._task = self._bar.add_task("reading", total=1.0)

    def __call__(self, status: IngestStatus) -> None:
        """Show how far it is."""
        what = f"{status.phase} {status.rows:,} rows"
        if self._live:
            self._bar.update(self._task, completed=status.done, description=what)
        else:
            self._print(f"{what}: {status.done:.0%} of all work done")


def _three(leak: LabelLeak, party: str) -> str:
    """Return beyond the prediction, in all, and known without messages: those that were measured."""
    named = {"beyond": leak.beyond, "all": leak.total, "known": leak.known}
    values = " ".join(f"{name} {value:.2f}" for name, value in named.items() if value is not None)
    return f"{party} {values}".strip()


def figures(status: Status) -> str:
    """Return the figures of a moment in a few words."""
    parts = [] if math.isnan(status.loss) else [f"loss {status.loss:.3f}"]  # a passive party knows of none
    if not math.isnan(status.test):
        parts.append(f"test {status.test:.3f}")
    parts += [_three(leak, name if len(status.label_leaks) > 1 else "") for name, leak in status.label_leaks.items()]
    if not math.isnan(status.worst_leak[0]):
        parts.append(f"worst {status.worst_leak[0]:.2f} ({status.worst_leak[1]})")
    return "  ".join(parts)
