"""The command line: it parses, calls, and prints. Results go to standard output, all else to standard error."""

from __future__ import annotations

import inspect
import logging
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from splitvfl.app.log_file import STANDARD_ERROR, LogLevel, logging_to, refused_calls_told
from splitvfl.cli import (
    auditing,
    beginning,
    comparing,
    forecasting,
    partners,
    party,
    prediction,
    reading,
    reconstruction,
    revealing,
    serving,
    tables,
    training,
)
from splitvfl.cli.console import GIVEN, check_one_process, workers_started
from splitvfl.cli.help_pages import lay_out
from splitvfl.errors import DriftError, SplitVFLError, printable
from splitvfl.system.allocator import keep_large_blocks
from splitvfl.system.signals import stoppable

_log = logging.getLogger("splitvfl.cli")

app = typer.Typer(
    name="splitvfl",
    help="Train a model over columns that belong to different organisations, and see what leaks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
synth = typer.Typer(help="Write synthetic data.", no_args_is_help=True)


# Reading the signatures of all commands takes longer than many a command; they are the same in every call.
_command = cache(lambda: typer.main.get_command(app))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done, 1 a claim does not hold (audit --strict), 2 a mistake of the user's, 3 too large a leak, 4 records have
    drifted (predict --fail-on-drift), 130 stopped.
    """
    keep_large_blocks()
    with ExitStack() as log:
        code = _exit_code(argv, log)
        _log.info("ends with exit code %d", code)
    return code


def _exit_code(argv: Sequence[str] | None, log: ExitStack) -> int:
    GIVEN.set(tuple(sys.argv[1:] if argv is None else argv))
    try:
        with stoppable():
            _command().main(args=prediction.with_threshold(GIVEN.get()), prog_name="splitvfl", obj=log)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except SplitVFLError as error:
        # What it says may quote data: that is for the console.
        _log.error("%s; what is wrong is said on standard error", type(error).__name__)
        # So may what it says quote what another wrote.
        print("\n".join(map(printable, f"splitvfl{_worker()}: {error}".split("\n"))), file=sys.stderr)
        return 4 if isinstance(error, DriftError) else 2
    except OSError as error:
        _log.error("%s; what is wrong is said on standard error", type(error).__name__)
        print(f"splitvfl: cannot read or write {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _worker() -> str:
    """Return which of several workers this process is, for what it says; nothing where it is the only one."""
    return f", worker {os.environ['RANK']}" if workers_started() > 1 and "RANK" in os.environ else ""


def _print_version(asked: bool) -> None:
    if asked:
        print(f"splitvfl {_version_of('splitvfl')}, Python {platform.python_version()}, torch {_version_of('torch')}")
        raise typer.Exit


def _version_of(package: str) -> str:
    """Return the version of an installed package, without importing it; torch takes a second."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def options(
    context: typer.Context,
    log: Annotated[
        Path | None,
        typer.Option(
            envvar="SPLITVFL_LOG", metavar="FILE", help="Append to this file what happens, without data; - is stderr."
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="SPLITVFL_LOG_LEVEL", help="The least severe entries that are kept.")
    ] = LogLevel.INFO,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions, and end.")
    ] = False,
) -> None:
    """Begin the log, if there is to be one, for all of the command."""
    if log is not None:
        context.obj.enter_context(logging_to(log, log_level))
    if log != STANDARD_ERROR:
        context.obj.enter_context(refused_calls_told())
    _log.info("begins: %s", context.invoked_subcommand)
    if context.invoked_subcommand not in ("party", "predict", "check"):
        check_one_process(f"only party and predict have several: start {context.invoked_subcommand}")


def _register(command: Callable[..., None], *, within: typer.Typer) -> None:
    # Typer evaluates an annotation that is text four times, which takes a sixth of what --help does.
    command.__annotations__ = inspect.get_annotations(command, eval_str=True)
    within.command(command.__name__.strip("_"))(command)


app.callback()(options)
# In the order in which --help lists them.
for _one in (
    comparing.demo,
    beginning.examples,
    beginning.init,
    beginning.check,
    training.train,
    party.party,
    prediction.predict,
    prediction.distill,
    serving.serve,
    comparing.compare,
    reading.list_,
    reading.schema,
    reading.report,
    auditing.audit,
    forecasting.forecast,
    reconstruction.reconstruct,
    revealing.reveal,
    tables.ingest,
    tables.shard,
    partners.certs,
    partners.align,
):
    _register(_one, within=app)
_register(tables.clicks, within=synth)
app.add_typer(synth, name="synth")
lay_out(app)
