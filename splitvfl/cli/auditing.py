"""The command that puts an experiment's claims of privacy to the test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from splitvfl.cli.column_tables import plain_table
from splitvfl.cli.console import ModuleSources, Overrides, errors_console, output_console, say, told_if_stopped
from splitvfl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from splitvfl.app.auditing import ExperimentAudit
    from splitvfl.audit import DefenseAudit
    from splitvfl.audit.attacks import Seat

FAILED: Final = 1
"""Exit code of ``--strict`` where a claim is violated or not covered."""

_SEEDS: Final = 8  # trainings of an experiment, where it is not said how many


def audit(
    experiment: Annotated[
        Path, typer.Argument(metavar="RUN_OR_EXPERIMENT", help="The experiment, a YAML file, or the folder of a run.")
    ],
    overrides: Overrides = None,
    as_: Annotated[
        str | None,
        typer.Option("--as", help="Of a networked run: whose file it is, a name, or active. Its own messages alone."),
    ] = None,
    modules: ModuleSources = None,
    draws: Annotated[int, typer.Option(metavar="N", help="Messages of each of two worlds, for every test.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of the inputs and the noise of the audit.")] = 0,
    canaries: Annotated[
        int | None,
        typer.Option(metavar="M", help="Train once, with coins for M labels, and judge the run as a whole."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 where a claim is violated or not covered.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Train under N seeds, and try every attack; 0: train nothing for that. Default: 8."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where audit.json and its page go. Default: the run's folder, or here."),
    ] = None,
    json_: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Where audit.json goes instead.")] = None,
) -> None:
    """Check every claim of privacy by calculation, and try to refute it; what is not audited is listed."""
    import json

    from splitvfl.app.audit_input import read_input
    from splitvfl.app.auditing import audit_experiment
    from splitvfl.app.console import RunProgress
    from splitvfl.app.party_auditing import audit_party
    from splitvfl.report.audit_file import AUDIT_FILE, AUDIT_PAGE
    from splitvfl.report.audit_page import write_audit_page
    from splitvfl.system.signals import Interrupted
    from splitvfl.system.untrusted_files import write_named, write_whole

    asked = read_input(experiment, as_, overrides or [], modules=modules)
    if asked.party is None:
        trainings = _SEEDS if seeds is None else seeds
        stopped = told_if_stopped("nothing was written", Interrupted)
        with stopped, RunProgress(errors_console(), trainings) as progress:
            found = audit_experiment(
                asked.config,
                draws=draws,
                seed=seed,
                canaries=canaries,
                released=asked.released,
                seeds=trainings,
                progress=lambda number: progress.run(f"{asked.config.name}, seed {asked.config.train.seed + number}"),
            )
    else:
        _refuse_trainings(canaries, seeds, asked.party)
        found = audit_party(asked.config, asked.party, draws=draws, seed=seed, released=asked.released)
    folder = out or asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    written, said = json_ or folder / AUDIT_FILE, found.as_json()
    content = (json.dumps(said, ensure_ascii=False, indent=2) + "\n").encode()
    if json_ is None:
        write_whole(written, content, mode=0o666, alone=False)
    else:
        write_named(written, content)
    page = write_audit_page(said, folder / AUDIT_PAGE)
    _print(found)
    say(f"{page}   (open it in a browser)")
    say(str(written))
    if strict and not found.passes:
        raise typer.Exit(FAILED)


def _refuse_trainings(canaries: int | None, seeds: int | None, party: str) -> None:
    if seeds:
        raise ConfigError(
            f"--seeds: trains all parties in one process, and {party} has only its own features; leave it out"
        )
    if canaries is not None:
        raise ConfigError(
            f"--canaries: trains all parties in one process, and {party} has only its own features; leave it out, or "
            "place canaries in the networked run (audit: {canaries: 300} in the label owner's file)"
        )


def _print(found: ExperimentAudit) -> None:
    from rich.text import Text

    console = output_console()
    for defense in found.defenses:
        console.print(_table(defense))
        for line in dict.fromkeys(line for claim in defense.claims for line in claim.why):
            console.print(Text(f"  {line}"))
        for line in defense.left_out:
            console.print(Text(f"  Left out: {line}"))
        console.print()
    if found.learned:
        console.print(_learned(found.learned))
        if any(seat.after[-1].guarantee and seat.after[-1].why for seat in found.learned):
            console.print(Text("  In brackets: stated, and it does not count here."))
        console.print()
    for kind, lines in (("over the run", found.notes), ("not audited", found.gaps)):
        for line in lines:
            console.print(Text(f"{kind}: {line}"))
    console.print()
    console.print(Text(found.sentence, style="bold"))


def _table(defense: DefenseAudit) -> Table:
    from splitvfl.app.auditing import shown

    table = plain_table(
        f"{defense.defense}: {defense.verdict}", "claim", "calculated", "measured", "can refute", "verdict"
    )
    for claim in defense.claims:
        known = None if claim.calculated is None else claim.calculated.value
        table.add_row(claim.short, shown(known), shown(claim.bound), shown(claim.refutable), claim.verdict)
    return table


def _learned(seats: Sequence[Seat]) -> Table:
    """Return what the best attack on messages got, of a hundred labels, beside what is guaranteed."""
    from splitvfl.report.audit_words import at_most, best, of_hundred

    epochs = [reading.epochs for reading in seats[0].after]
    heads = [f"after {epochs[0]}", *map(str, epochs[1:-1]), f"{epochs[-1]} epochs"] if len(epochs) > 1 else ["after 1"]
    table = plain_table("what was tried, of 100 (guessing: 50)", "who, of whose", *heads, "guarantee")
    for seat in seats:
        readings = seat.as_json()["after"]
        figures = [best(reading) for reading in readings]
        tried = ["–" if found is None else of_hundred(found["right"]["mean"]) for found in figures]
        last = readings[-1]
        most = "none" if last["guarantee"] is None else at_most(last["guarantee"]["right"])
        counts = last["guarantee"] is None or not last["why"]
        kind = seat.relation.removesuffix(" of a record")
        who = " + ".join(seat.readers) or "reads all"
        table.add_row(f"{who}: {kind}, {' + '.join(seat.owners)}", *tried, most if counts else f"({most})")
    return table
