"""What a run shows while it goes on: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from splitvfl.training import Status

# Seconds between two plain lines: a log file of a long run stays readable.
_PLAIN_EVERY_S = 10.0


class RunProgress:
    """Shows one bar over several runs, with the figures of the current one.

    Args:
        console: Where to draw.
        runs: Number of runs.
    """

    def __init__(self, console: Console, runs: int = 1) -> None:
        self._console = console
        self._runs = runs
        self._run = 0
        self._live = console.is_terminal
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._task = self._bar.add_task("", total=None, figures="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

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
            elif status.step == status.steps or time.monotonic() - self._last_line >= _PLAIN_EVERY_S:
                self._last_line = time.monotonic()
                line = f"{prefix}{label}: epoch {status.epoch}/{status.epochs} {figures(status)}"
                self._console.print(Text(line), soft_wrap=True)

        return show


def figures(status: Status) -> str:
    """Return the figures of a moment in a few words."""
    parts = [f"loss {status.loss:.3f}"]
    if not math.isnan(status.test):
        parts.append(f"test {status.test:.3f}")
    if not math.isnan(status.worst_leak[0]):
        parts.append(f"leak {status.worst_leak[0]:.2f} ({status.worst_leak[1]})")
    return "  ".join(parts)
