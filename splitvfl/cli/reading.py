"""Commands that show: what there is to choose from, and what runs have found."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from splitvfl.cli.console import output_console, say, tell
from splitvfl.errors import ConfigError, printable

if TYPE_CHECKING:
    from splitvfl.config.keys import Key


# As splitvfl.config.registry has them, which takes a second to import.
_KINDS = (
    "attacks",
    "defenses",
    "penalties",
    "models",
    "exchanges",
    "losses",
    "optimizers",
    "embedding_optimizers",
    "data",
)

# Lists are read, and columns wider than that are not read well; a pipe has no width of its own.
_WIDEST = 110
_NARROWEST = 20


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            autocompletion=lambda: list(_KINDS),
            help=f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}",
        ),
    ],
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]", help="Describe this one. Names that papers use are found too."),
    ] = None,
) -> None:
    """List what an experiment can name, or describe one of them: settings, claim, cost, source."""
    if not name:
        _print_names(kind)
    else:
        _print_found(kind, " ".join(name))


def _print_names(kind: str) -> None:
    from splitvfl.config.overview import overview

    groups = overview(kind)
    widest = max((len(row.name) for group in groups for row in group.rows), default=0)
    for number, group in enumerate(groups):
        if group.heading:
            _print_lines("", f"{group.heading}:", before="" if number == 0 else "\n")
        for row in group.rows:
            _print_lines(row.name, row.text, widest, indent="  " if group.heading else "")
    if kind == "defenses":
        tell("\nGuarantees are those of each defense with the settings of its example. A protocol in which no message")
        tell("depends on labels protects them without any defense: exchange: one-way.")
    _tell_how(kind)


def _tell_how(kind: str) -> None:
    tell(f"\nsplitvfl list {kind} NAME describes one of them.")


def _print_found(kind: str, name: str) -> None:
    """Print all about one name; where it may stand for several things, or for one elsewhere, say for which."""
    from splitvfl.config.describing import entry
    from splitvfl.config.registry import search

    meant, covered = search(kind, name)
    if not covered and len(meant) < 2:
        _print_entry(kind, meant[0] if meant else name)
        return
    for one in meant:
        _print_lines(one, entry(kind, one).summary, max(map(len, meant)))
    for clause in covered:
        _print_lines("", f"{name}: {clause}")
    if meant:
        _tell_how(kind)


def _print_entry(kind: str, name: str) -> None:
    from splitvfl.config.describing import entry
    from splitvfl.config.keys import flat

    found = entry(kind, name)
    console = _console()
    _print_lines("", f"{name}: {found.summary}")
    console.print()
    _print_rows(found.facts.items())
    if found.options:
        console.print("\nSettings")
        _print_rows((place, _about(key)) for place, key in flat(found.options))
    console.print("\nIn an experiment")
    # Broken at spaces it is YAML as before.
    _print_lines("", found.example, indent="  ", within="  ")
    if found.documentation:
        console.print(f"\nMore: python -m pydoc {found.documentation}", soft_wrap=True, highlight=False)


def _about(key: Key) -> str:
    from splitvfl.config.keys import in_file

    return f"{key.takes}; {in_file(key.default)}. {key.meaning}"


def _console() -> Console:
    console = output_console()
    console.width = min(console.width, _WIDEST)
    return console


def _print_lines(name: str, text: str, width: int = 0, *, indent: str = "", within: str = "", before: str = "") -> None:
    """Print a text beside a name, broken at spaces.

    Args:
        name: Where it begins with one.
        text: What is broken.
        width: Characters that names take.
        indent: What lines begin with.
        within: What lines but the first have besides.
        before: What comes before it.
    """
    console = _console()
    start = f"{indent}{name.ljust(width)}  " if name else indent
    lines = textwrap.wrap(
        text,
        max(console.width - len(start), _NARROWEST),
        subsequent_indent=within,
        break_long_words=False,
        break_on_hyphens=False,
    )
    rest = " " * len(start)
    shown = Text.assemble(before, indent, (start.removeprefix(indent), "bold"), f"\n{rest}".join(lines or [""]))
    console.print(shown, soft_wrap=True, highlight=False)


def _print_rows(rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def schema(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write it. Default: the screen.")] = None,
    *,
    summary: Annotated[bool, typer.Option("--summary", help="Describe summary.json of a run instead.")] = False,
) -> None:
    """Print what an experiment file may say as JSON Schema, with which editors complete, explain and check it."""
    import json

    from splitvfl.config.schema import DIALECT, experiment_schema, schema_line
    from splitvfl.system.untrusted_files import write_named

    if summary:
        from splitvfl.report.summary import summary_schema
    described = {"$schema": DIALECT, **summary_schema()} if summary else experiment_schema()
    text = json.dumps(described, ensure_ascii=False, indent=2) + "\n"
    if out is None:
        print(text, end="")
        return
    write_named(out, text.encode())
    print(out)
    if summary:
        return
    tell("For editors that know YAML, make this the first line of an experiment; the path is from that file's folder:")
    tell(schema_line(out))


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of comparisons.")],
    out: Annotated[Path | None, typer.Option(help="The page. Default: report.html in the first folder.")] = None,
    title: Annotated[str, typer.Option(help="Its title.")] = "What leaks",
    show_records: Annotated[
        bool,
        typer.Option(
            "--show-records",
            help="Show true against estimated values of a few records, of runs whose file has keep_records: true. "
            "Not for a page that you give to others.",
        ),
    ] = False,
) -> None:
    """Make one self-contained HTML page out of finished runs, to read, print and sign."""
    from splitvfl.report.report import finished_in, unfinished_runs, write_report
    from splitvfl.report.served import lines_of

    served = lines_of(runs)
    for line in served:
        tell(line)
    if served and not any(finished_in(run) for run in runs):
        if out is not None:
            raise ConfigError(
                f"--out: no page can be made: there are no figures of a training in {' and '.join(map(str, runs))}: a "
                "party without labels has none, and what its ledger says is all that there is"
            )
        tell("no page: there are no figures of a training here")
        return
    page = write_report(runs, out or runs[0] / "report.html", title=title, show_records=show_records)
    say(str(page))
    for folder in unfinished_runs(runs):
        tell(f"left out, as it has not finished: {printable(str(folder))}")
