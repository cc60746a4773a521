"""A progress bar of a run for a person: on a terminal, in a notebook, and as a few lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from splitvfl.run.training import Status, TrainingProgress

_LINES = 20


@contextmanager
def progress_bar(*, shown: bool = True, console: Console | None = None) -> Iterator[TrainingProgress]:
    """Yield what is called after every step of a run, and shows how far it is, with its figures.

    In a notebook without ``ipywidgets``, and where output is no terminal, it prints twenty lines at most.

    Args:
        shown: Whether anything is shown.
        console: Where; default: standard error.
    """
    if not shown:
        yield lambda status: None
        return
    console = console or Console(stderr=True)
    if not _is_live(console):
        yield lambda status: _print(console, status)
        return
    what, figures = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[figures]}", markup=False)
    with Progress(what, BarColumn(bar_width=16), MofNCompleteColumn(), figures, console=console) as bar:
        task = bar.add_task("", total=None, figures="")

        def show(status: Status) -> None:
            epoch = f"epoch {status.epoch}/{status.epochs}"
            bar.update(task, description=epoch, total=status.steps, completed=status.step, figures=_figures(status))

        yield show


def _is_live(console: Console) -> bool:
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


def _print(console: Console, status: Status) -> None:
    if status.step * _LINES // status.steps > (status.step - 1) * _LINES // status.steps:
        console.print(f"epoch {status.epoch}/{status.epochs}  {_figures(status)}", highlight=False, markup=False)


def _figures(status: Status) -> str:
    found = [("loss", status.loss, 3, ""), ("test", status.test, 3, "")]
    found.append(("worst leak", status.worst_leak[0], 2, f" ({status.worst_leak[1]})"))
    return "  ".join(f"{name} {value:.{digits}f}{of}" for name, value, digits, of in found if not math.isnan(value))
