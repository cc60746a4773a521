"""What commands have in common: their arguments, and how they speak and stop."""

from __future__ import annotations

import gc
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from splitvfl.errors import ConfigError, printable

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
        help="Where the classes that a run folder names are defined: a folder or package:NAME. Repeat the option to "
        "give several. Default: the current folder.",
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write all figures to this file as JSON. With - they are printed in place of the screen.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in the same folder.")]


class _SafeConsole(Console):
    """A console that text does not steer: names of columns, parties and folders in it may be anybody's."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)  # [/x] and :x: are names as well
        self._under_way = threading.local()  # progress is shown by a thread of its own

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is shown, with control and format characters escaped that are none of the console's own."""
        # What is rendered within a table is laid out there, and no cell is to grow afterwards.
        within = getattr(self._under_way, "outer", False)
        self._under_way.outer = True
        try:
            for segment in super().render(renderable, options):
                yield segment if within or segment.is_control else segment._replace(text=_safe(segment.text))
        finally:
            self._under_way.outer = within


def _safe(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def output_console() -> Console:
    """Return a console on standard output, where results go."""
    return _SafeConsole()


def errors_console() -> Console:
    """Return a console on standard error, where all goes that is no result."""
    return _SafeConsole(stderr=True)


def say(line: str) -> None:
    """Print a line of a result on standard output, as it is but for what would steer a terminal."""
    print(_safe(line))


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
def importing() -> Iterator[None]:
    """Import much within a block, without Python's search for objects that nothing refers to any more.

    A command imports thousands of modules. To look through all of them again and again takes a quarter of the CPU time
    of a short run, and finds nothing. What the process holds at the end of the block is left out of later searches too.
    """
    before, searches = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        if searches:
            gc.enable()


@contextmanager
def told_if_stopped(hint: str | Callable[[], str], *by: type[BaseException]) -> Iterator[None]:
    """End the command with exit code 130 and a hint if its block is stopped: by Ctrl-C, if nothing else is named.

    Args:
        hint: How to resume, in words, or a function that says so once the block has ended.
        by: What stops it.
    """
    stops = by or (KeyboardInterrupt,)
    try:
        yield
    except stops:
        print(f"splitvfl: stopped; {hint if isinstance(hint, str) else hint()}", file=sys.stderr)
        raise typer.Exit(130) from None


def command_line(*words: object) -> str:
    """Return a command of ours as a shell takes it."""
    return shlex.join(["splitvfl", *map(str, words)])


def writes_json(file: Path | None, found: Callable[[], Any], *, mode: int = 0o666) -> bool:
    """Write figures where ``--json`` says, and return whether they stand in place of the screen.

    Args:
        file: The file; ``-`` is standard output; ``None``: nothing is written.
        found: Returns what is written.
        mode: Permissions of the file, from which those of the umask are taken.
    """
    if file is None:
        return False
    import msgspec

    from splitvfl.system.untrusted_files import write_named

    encoded = msgspec.json.format(msgspec.json.encode(found()), indent=2) + b"\n"
    if str(file) == "-":
        sys.stdout.write(encoded.decode())
        return True
    write_named(file, encoded, mode=mode)
    return False


def given_command() -> str:
    """Return the command under way as it may be shown: without secrets, and without folders of this machine."""
    from splitvfl.report.provenance import shown_word

    return command_line(*map(shown_word, GIVEN.get()))


def next_steps(*commands: str) -> None:
    """Print what to try next; long commands are never broken, so that they can be copied."""
    print()
    for number, command in enumerate(commands):
        print(f"{'next:' if number == 0 else '     '} {command}")
