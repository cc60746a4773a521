"""The command that trains as one of several parties, each in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from splitvfl.cli.console import (
    Json,
    Overrides,
    command_line,
    errors_console,
    given_command,
    importing,
    next_steps,
    output_console,
    tell,
    told_if_stopped,
    writes_json,
)
from splitvfl.cli.training import AllowInconclusive, Explain, FailAbove, LeakCheck, noting, print_run
from splitvfl.errors import ConfigError
from splitvfl.system.signals import wait_for_a_signal

if TYPE_CHECKING:
    from splitvfl.report.summary import RunSummary


def party(
    experiment: Annotated[Path, typer.Argument(help="This party's own file, YAML.")],
    as_: Annotated[str, typer.Option("--as", help="Which party this is: its name, or active.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/NAME-PARTY.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew; every party must. Default: go on where all left off.")
    ] = False,
    explain: Explain = False,
    fail_above: FailAbove = None,
    allow_inconclusive: AllowInconclusive = False,
    json_: Json = None,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="When all is done, wait to be stopped: for what starts again whatever ends."),
    ] = False,
) -> None:
    """Train as one of several parties, each in its own process, over mutual TLS."""
    check = LeakCheck(fail_above, allow_inconclusive)
    with check.before_training():
        _train_as_party(
            experiment, as_, overrides or [], out, overwrite=overwrite, explain=explain, check=check, json_=json_
        )
    if stay:
        with suppress(KeyboardInterrupt):  # SIGTERM too
            tell("done; waits to be stopped (--stay)")
            wait_for_a_signal()


def _train_as_party(
    experiment: Path,
    as_: str,
    overrides: Sequence[str],
    out: Path | None,
    *,
    overwrite: bool,
    explain: bool,
    check: LeakCheck,
    json_: Path | None,
) -> None:
    with importing():
        from splitvfl.app.beginning import Command
        from splitvfl.app.console import RunProgress
        from splitvfl.app.deployment import coordinator_run, run_party
        from splitvfl.app.workers import team_of
        from splitvfl.config.sections import load_config
        from splitvfl.run.replacement import earlier_stands
        from splitvfl.system.signals import Interrupted

        config = load_config(experiment, overrides)
    name = config.own_name(as_)
    if check.goal is not None and name != config.active:
        raise ConfigError(
            f"--fail-above: {name} has no labels, and does not know what others learn of them; give it at "
            f"{config.active}, and leave it out here"
        )
    if name == config.exchange.factory.third_party:
        served = coordinator_run(config, notify=tell)
        with told_if_stopped("start it again with the same command"):
            served.run()
        print(f"coordinator: {served.step} steps served")
        return
    if name not in config.parties:
        raise ConfigError(
            f"{name} has no part in this training: it computes scores once the model is trained; start it with "
            f"{command_line('predict', experiment, *overrides, '--as', name)}"
        )
    folder = out or Path("runs") / f"{config.name}-{name}"
    told: set[str] = set()

    def again() -> str:
        if config.team.workers > 1:
            return f"resume by starting its workers again, as they were started; state in {folder}"
        anew = ["--overwrite"] if earlier_stands(folder) in told else []
        command = command_line("party", experiment, *overrides, "--as", name, "--out", folder, *anew)
        return f"{'start anew' if anew else 'resume'} with: {command}; state in {folder}"

    with (
        told_if_stopped(again, Interrupted, KeyboardInterrupt),
        team_of(config, name, notify=tell) as team,
        RunProgress(Console(quiet=True) if team.rank else errors_console()) as progress,
    ):
        run, summary = run_party(
            config,
            name,
            folder,
            overwrite=overwrite,
            notify=noting(told, progress.tell),
            progress=progress.run(name),
            command=Command(given_command(), check.refuse),
            team=team,
        )
    if team.rank:  # worker 0 tells what all have done
        return
    if summary is not None and writes_json(json_, summary.as_json):
        check.end(summary)
        return
    sent = config.exchange.factory.one_way and name != config.active
    done = "its activations are sent, and nothing more is needed of it" if sent else f"{run.step} steps done"
    print(f"{name}: {done}; its model part is in {folder / 'model'}")
    if summary is not None:
        _print_own_columns(summary) if summary.seat else print_run(summary, explain=explain, told=told, folder=folder)
        next_steps(f"splitvfl report {folder}", f"tensorboard --logdir {folder}")
        check.end(summary)


def _print_own_columns(summary: RunSummary) -> None:
    from splitvfl.report.own_seat import seat_lines
    from splitvfl.report.tables import summary_table

    console = output_console()
    for line in seat_lines(summary):
        console.print(Text(line, style="bold"))
    console.print()
    console.print(summary_table([summary]))
    noted = summary.parties[summary.seat].feature_notes
    for line in [*summary.notes, *(f"{note}." for note in noted)]:
        console.print(Text(line))
