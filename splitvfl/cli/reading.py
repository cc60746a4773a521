"""Commands that show: what there is to choose from, and what runs have found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from splitvfl.cli.console import output_console, say, tell
from splitvfl.errors import ConfigError, SplitVFLError, printable

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

# What is promised is told in fewer words than what is done.
_SHORT = 24


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            autocompletion=lambda: list(_KINDS),
            help=f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}",
        ),
    ],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them, to be told all about it.")] = None,
) -> None:
    """List what can be named in an experiment, or tell all about one name: settings, claim, cost, source."""
    if name is None:
        _print_names(kind)
    else:
        _print_entry(kind, name)


def _print_names(kind: str) -> None:
    from splitvfl.config.registry import describe

    if kind == "defenses":
        _print_overview((name, _claimed(name), summary) for name, summary in describe(kind))
        tell("\nIn the middle: what it promises, as its example sets it.")
    else:
        _print_overview(describe(kind))
    tell(f"\nsplitvfl list {kind} NAME tells all about one.")


def _claimed(name: str) -> str:
    """Return in a few words what a defense promises; one of somebody's own that cannot be read says so when named."""
    from splitvfl.claims import in_short
    from splitvfl.config.describing import claims_of_example

    try:
        return in_short(claims_of_example(name)[0])
    except SplitVFLError:
        return "?"


def _print_entry(kind: str, name: str) -> None:
    from splitvfl.config.describing import entry
    from splitvfl.config.keys import flat

    found = entry(kind, name)
    console = output_console()
    console.print(Text(f"{name}: {found.summary}"))
    console.print()
    _print_rows(found.facts.items())
    if found.options:
        console.print("\nSettings")
        _print_rows((place, _about(key)) for place, key in flat(found.options))
    console.print("\nIn an experiment")
    console.print(Text(f"  {found.example}"), soft_wrap=True)
    if found.documentation:
        console.print(f"\nMore: python -m pydoc {found.documentation}", soft_wrap=True, highlight=False)


def _about(key: Key) -> str:
    from splitvfl.config.keys import in_file

    return f"{key.takes}; {in_file(key.default)}. {key.meaning}"


def _print_overview(rows: Iterable[tuple[str, ...]]) -> None:
    """Print a line for each row: on a terminal as much as fits, in a pipe all of it."""
    given, console = list(rows), output_console()
    if not console.is_terminal:
        console.print(
            "\n".join("  ".join(row) for row in _aligned(given)), soft_wrap=True, markup=False, highlight=False
        )
        return
    for name, *middle, summary in _aligned(given, most=_SHORT):
        line = Text.assemble((name, "bold"), "  ", *(f"{one}  " for one in middle), summary)
        line.truncate(console.width, overflow="ellipsis")
        console.print(line, no_wrap=True, highlight=False)


def _aligned(rows: Sequence[tuple[str, ...]], *, most: int | None = None) -> Iterable[list[str]]:
    """Yield rows whose columns begin below each other; those between the first and the last in so many characters."""
    shortened = [(row[0], *(_cut(text, most) for text in row[1:-1]), row[-1]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shortened, strict=True)]
    for row in shortened:
        yield [*(text.ljust(width) for text, width in zip(row[:-1], widths[:-1], strict=True)), row[-1]]


def _cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def _print_rows(rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    for row in rows:
        table.add_row(*row)
    output_console().print(table)


def schema(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write it. Default: the screen.")] = None,
) -> None:
    """Print what an experiment file may say as JSON Schema, with which editors complete, explain and check it."""
    import json

    from splitvfl.config.schema import experiment_schema, schema_line

    text = json.dumps(experiment_schema(), ensure_ascii=False, indent=2) + "\n"
    if out is None:
        print(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    print(out)
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
            "Not for a page that is handed on.",
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
