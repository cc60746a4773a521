"""What a run shows while it goes on: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

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

from splitvfl.leakage.message_audit import shown_name

if TYPE_CHECKING:
    from splitvfl.data.ingest.progress import IngestStatus
    from splitvfl.run.training import Status

# Seconds between two plain lines: a log file of a long run stays readable.
_PLAIN_EVERY_S = 10.0

_BAR_WIDTH = 12
# Of a line that is no terminal's: logs are read at this width.
_PLAIN_WIDTH = 80
_LONGEST_LABEL = 24
_SHORTEST_LABEL = 16
# Loss, test figure and leak: a long label makes room for these.
_MAIN_FIGURES = 3


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
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=_BAR_WIDTH),
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
        self._print("\n".join(in_width(part, self._console.width) for part in line.splitlines()), always=True)

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
        super().__init__(console, MofNCompleteColumn(), TextColumn("{task.fields[figures]}", markup=False))
        self._runs = runs
        self._run = 0
        self._task = self._bar.add_task("", total=None, figures="")

    def run(self, label: str) -> Callable[[Status], None]:
        """Start the next run and return what is called after each of its steps."""
        self._run += 1
        label = f"{self._run}/{self._runs} {label}" if self._runs > 1 else label

        def show(status: Status) -> None:
            if self._live:
                beside = _BAR_WIDTH + len(f"  {status.step}/{status.steps} ") + 1
                name, shown = fitted(label, figures(status), self._console.width - beside)
                self._bar.update(self._task, description=name, total=status.steps, completed=status.step, figures=shown)
            else:
                epoch = f": epoch {status.epoch}/{status.epochs} "
                name, shown = fitted(label, figures(status), _PLAIN_WIDTH - len(epoch))
                self._print(f"{name}{epoch}{shown}", always=status.step == status.steps)

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
            console,
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} rows", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
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


def figures(status: Status) -> list[str]:
    """Return the figures of a moment, in a few words each, what matters most first."""
    leaks = status.label_leaks
    found = [
        ("loss", status.loss, 3, ""),  # a passive party knows of none
        ("test", status.test, 3, ""),
        ("leak", status.worst_leak[0], 2, f" ({shown_name(status.worst_leak[1])})"),
        ("excess", _largest(leak.beyond for leak in leaks.values() if leak.canaries), 2, ""),
        ("baseline", _largest(leak.known for leak in leaks.values()), 2, ""),
        ("total", _largest(leak.total for leak in leaks.values()), 2, ""),
    ]
    return [f"{name} {value:.{digits}f}{more}" for name, value, digits, more in found if not math.isnan(value)]


def _largest(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=math.nan)


def fitted(label: str, parts: Sequence[str], width: int) -> tuple[str, str]:
    """Return a label and as many parts, from the first, as fit into a width; a long label is shortened.

    What stands in brackets is left out first; before that a long label makes room for the first three parts.

    >>> fitted("digits", ["loss 0.431", "test 0.761", "leak 1.00 (residual)"], 30)
    ('digits', 'loss 0.431  test 0.761')
    >>> fitted("digits", ["loss 0.431", "leak 1.00 (residual)"], 30)
    ('digits', 'loss 0.431  leak 1.00')
    >>> fitted("7/9 credit, axis-sumkl(ratio=1)", ["loss 0.431", "test 0.761", "leak 0.69 (direction)"], 67)
    ('7/9 credit, axis-su…', 'loss 0.431  test 0.761  leak 0.69 (direction)')
    """
    room = width - sum(len(part) + 2 for part in parts[:_MAIN_FIGURES])
    longest = max(_SHORTEST_LABEL, min(_LONGEST_LABEL, room))
    name = label if len(label) <= longest else f"{label[: longest - 1]}…"
    shown = ""
    for part in parts:
        room = width - len(name) - len(shown) - 2
        fitting = part if len(part) <= room else part.partition(" (")[0]
        if len(fitting) > room:
            break
        shown = f"{shown}  {fitting}" if shown else fitting
    return name, shown


def in_width(line: str, width: int) -> str:
    """Return a line broken between words; what is too long, a path say, stays whole. Further lines are indented.

    >>> print(in_width("  bank (active): 3 numeric columns", 20))
      bank (active): 3
        numeric columns
    """
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
