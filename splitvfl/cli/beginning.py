"""Commands to begin with: examples, a first experiment of one's own, and what is wrong with it before it trains."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from splitvfl.cli.console import ExperimentFile, Overrides, command_line, importing, next_steps, output_console, say
from splitvfl.data.spelling import as_flag, settings_written
from splitvfl.errors import ConfigError, printable


def init(
    files: Annotated[
        list[Path], typer.Argument(help="One CSV, TSV or Parquet file of each party, or one file of all columns.")
    ],
    label: Annotated[str | None, typer.Option(help="The label column. Default: guessed.")] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id", help="Column that names the records, in every file; or bank=customer,lab=patient. Default: guessed."
        ),
    ] = None,
    active: Annotated[
        str | None, typer.Option(help="Of one file: who holds the labels, and what else: 'bank=AGE,SEX'.")
    ] = None,
    passive: Annotated[
        list[str] | None, typer.Option(help="Of one file: another party: 'telecom=PAY_*' or telecom=rest. Repeatable.")
    ] = None,
    unlabelled: Annotated[
        str, typer.Option(help="Records without a label: error, or drop (outcomes that are not known yet).")
    ] = "error",
    out: Annotated[Path | None, typer.Option(help="The experiment. Default: NAME.yaml of the label's file.")] = None,
) -> None:
    """Look at your files and write an experiment that trains, with every guess said."""
    from splitvfl.app.data_summary import summary_of
    from splitvfl.app.first_experiment import first_experiment
    from splitvfl.app.records import in_words_of
    from splitvfl.data.guesses import OpenFile, guess
    from splitvfl.system.untrusted_files import new_file

    with settings_written(as_flag):
        opened = [OpenFile.read(path) for path in files]
        guesses = guess(opened, label=label, id_column=_ids(id_column), unlabelled=unlabelled)  # type: ignore[arg-type]
    path = out or Path(f"{guesses.label.party}.yaml")
    if path.exists():
        raise ConfigError(f"{path} is there already, and is left alone; name another file with --out")
    flags = {"label": label, "id": id_column, "active": active, "passive": passive}
    flags |= {"unlabelled": None if unlabelled == "error" else unlabelled}
    made = first_experiment(
        opened,
        guesses,
        path,
        command=command_line("init", *files, *_flags(**flags)),
        active=active,
        passive=passive or [],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, mode=0o666) as file:
        file.write(made.text.encode())
    for line in made.said:
        _tell_in_width(line)
    with in_words_of(made.config.data, made.config.parties):
        for line in summary_of(made.data):
            _tell_in_width(line)
    print(f"{path}: correct there what was guessed wrong")
    next_steps(command_line("check", path), command_line("train", path))


def _ids(given: str | None) -> str | dict[str, str] | None:
    """Return an id column, or one by party: ``bank=customer,lab=patient``."""
    if given is None or "=" not in given:
        return given
    pairs = [one.partition("=") for one in given.split(",")]
    return {party.strip(): column.strip() for party, _, column in pairs}


def _flags(**given: str | Sequence[str] | None) -> Iterator[str]:
    """Yield flags as they were given."""
    for name, value in given.items():
        for one in [value] if isinstance(value, str) else value or ():
            yield from (f"--{name}", one)


def check(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    as_: Annotated[
        str | None, typer.Option("--as", help="Check what this party needs to train with others over a network.")
    ] = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="Meet the partners, who run the same command, and part again.")
    ] = False,
    wait: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds to wait for them.")] = 60.0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run to be. Default: as train and party.")] = None,
) -> None:
    """Check file, data, models, certificates and, if asked, partners; nothing is trained or written.

    A run in the folder is compared as train --resume and party compare it.
    """
    with importing():
        from splitvfl.app.checking import check_experiment, check_party, takes_part_in_training
        from splitvfl.app.run_folder import has_checkpoint
        from splitvfl.app.workers import worker_started
        from splitvfl.config.sections import load_config
        from splitvfl.run.replacement import is_unsettled

    if connect and as_ is None:
        raise ConfigError("--connect: which party is this? Say so with --as NAME")
    config = load_config(experiment, overrides or [])
    folder_flag = () if out is None else ("--out", out)
    if as_ is None:
        folder = out or Path("runs") / config.name
        problems = check_experiment(config, folder, tell=_tell_in_width)
        resumed = ("--resume",) if has_checkpoint(folder) or is_unsettled(folder) else ()
        command = command_line("train", experiment, *(overrides or []), *folder_flag, *resumed)
    else:
        name = config.own_name(as_)
        folder = out or Path("runs") / f"{config.name}-{name}"
        problems = check_party(
            config,
            name,
            folder,
            connect_s=wait if connect else None,
            tell=_tell_in_width,
            worker=worker_started(config.team.workers, config.source),
        )
        what = (
            "party" if takes_part_in_training(name, config.parties, config.exchange.factory.third_party) else "predict"
        )
        command = command_line(
            what, experiment, *(overrides or []), "--as", name, *(folder_flag if what == "party" else ())
        )
        if what == "party" and config.team.workers > 1:
            command = f"torchrun --nproc-per-node {config.team.workers} --no-python {command}"
    for problem in problems:
        print("\n".join(map(printable, f"splitvfl: {problem}".split("\n"))), file=sys.stderr)
    if problems:
        print(f"splitvfl: {len(problems)} {'thing' if len(problems) == 1 else 'things'} to mend", file=sys.stderr)
        raise typer.Exit(2)
    print("nothing is wrong with it")
    next_steps(command)


def _tell_in_width(line: str) -> None:
    from splitvfl.app.console import in_width

    say(in_width(line, output_console().width))


def examples(
    names: Annotated[list[str] | None, typer.Argument(help="Which to write. Default: list what there is.")] = None,
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path(),
) -> None:
    """List example experiments, or write some of them into a folder, ready to train."""
    from splitvfl.app.examples import COMPANIES, write_example

    if not names:
        _print_examples()
        next_steps("splitvfl examples digits", "splitvfl train digits.yaml")
        return
    written = {name: write_example(name, out) for name in names}
    for path in written.values():
        print(path)
    if COMPANIES in written:
        next_steps("splitvfl demo --network   (the same three companies, unattended)", "docs/network.md, step by step")
    else:
        next_steps(*(command_line("train", path) for path in written.values()))


def _print_examples() -> None:
    from splitvfl.app.examples import described

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, summary in described().items():
        table.add_row(name, summary)
    output_console().print(table)
