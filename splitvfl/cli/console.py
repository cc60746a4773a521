"""What commands have in common: their arguments, and how they speak and stop."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from splitvfl.errors import ConfigError

GIVEN: ContextVar[tuple[str, ...]] = ContextVar("GIVEN", default=())
"""The words of the command under way."""

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings to change: train.lr=0.01 defenses.0.detection_error=0.3")
]
ExperimentFile = Annotated[Path, typer.Argument(help="The experiment, a YAML file.")]
ModuleSources = Annotated[
    list[str] | None,
    typer.Option(
        "--modules",
        metavar="SOURCE",
        help="Of a run folder: where the classes are defined that it names, a folder or package:NAME. Repeat it for "
        "more. Default: the current folder.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in the same folder.")]


def errors_console() -> Console:
    """Return a console on standard error, where all goes that is no result."""
    return Console(stderr=True)


def tell(line: str) -> None:
    """Say one line on standard error, unbroken."""
    errors_console().print(Text(line), soft_wrap=True)


def silent(line: str) -> None:
    """Say nothing: one of several workers that do the same says it."""


def workers_started() -> int:
    """Return how many workers were started, of which this process is one."""
    started = os.environ.get("WORLD_SIZE", "1")
    return int(started) if started.isdecimal() else 1


def check_one_process(what: str) -> None:
    """Refuse several workers where one process does all.

    Args:
        what: Who has none, and what is to be started.

    Raises:
        ConfigError: If this is one of several.
    """
    if workers_started() > 1:
        raise ConfigError(
            f"{workers_started()} workers were started (WORLD_SIZE), and {what} as one process, without torchrun"
        )


@contextmanager
def told_if_stopped(hint: str, *by: type[BaseException]) -> Iterator[None]:
    """End the command with exit code 130 and a hint if its block is stopped: by Ctrl-C, if nothing else is named."""
    stops = by or (KeyboardInterrupt,)
    try:
        yield
    except stops:
        print(f"splitvfl: stopped; {hint}", file=sys.stderr)
        raise typer.Exit(130) from None


def command_line(*words: object) -> str:
    """Return a command of ours as a shell takes it."""
    return shlex.join(["splitvfl", *map(str, words)])


def given_command() -> str:
    """Return the command under way as it may be shown: without secrets, and without folders of this machine."""
    from splitvfl.report.provenance import shown_word

    return command_line(*map(shown_word, GIVEN.get()))


def next_steps(*commands: str) -> None:
    """Print what to try next; long commands are never broken, so that they can be copied."""
    print()
    for number, command in enumerate(commands):
        print(f"{'next:' if number == 0 else '     '} {command}")
