"""The command that trains one experiment, in one process, and what a finished training prints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from splitvfl.cli.console import (
    ExperimentFile,
    Json,
    Overrides,
    Overwrite,
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
from splitvfl.errors import ConfigError

# Commands import what they need when they run: --help and list do not wait for torch.
if TYPE_CHECKING:
    from splitvfl.config.sections import ExperimentConfig
    from splitvfl.privacy.solvable import Solvable
    from splitvfl.report.summary import RunSummary

# In quotes, as a shell would take the brackets for its own.
TO_COMPARE = "'none,asymmetric-response(detection_error=0.4)'"

ABOVE = 3
UNDECIDED = 4
"""Exit codes of a run whose verdict on labels, with the goal of --fail-above, is above it, or inconclusive."""

Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
FailAbove = Annotated[
    float | None,
    typer.Option(
        "--fail-above",
        metavar="AUC",
        help="Judge labels with this goal: exit code 3 if above it, 4 if inconclusive. Where a partner can solve for "
        "labels, the run ends before step 1.",
    ),
]
AllowInconclusive = Annotated[
    bool, typer.Option("--allow-inconclusive", help="With --fail-above: exit code 0 if it is inconclusive.")
]
AuditTwin = Annotated[
    bool | None,
    typer.Option(
        "--audit-twin/--no-audit-twin",
        show_default=False,
        help="Train once more with canaries, measure the excess leakage, and throw that model away.",
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Print all figures too, with what each means.")]


def train(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/NAME.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    fail_above: FailAbove = None,
    allow_inconclusive: AllowInconclusive = False,
    audit_twin: AuditTwin = None,
    explain: Explain = False,
    json_: Json = None,
) -> None:
    """Train one experiment in one process, and measure what leaks."""
    check = LeakCheck(fail_above, allow_inconclusive)
    with importing():
        import sklearn.ensemble  # noqa: F401 - for what label owners and partners predict alone

        from splitvfl.app.beginning import Command
        from splitvfl.app.console import RunProgress
        from splitvfl.app.experiment import run_experiment
        from splitvfl.app.run_folder import is_barely_begun
        from splitvfl.config.sections import load_config
        from splitvfl.system.folder_lock import locked
        from splitvfl.system.signals import Interrupted

        config = load_config(experiment, overrides or [])  # which imports what the file names
    config = with_twin(config, audit_twin)
    folder = out or Path("runs") / config.name
    twin = {None: [], True: ["--audit-twin"], False: ["--no-audit-twin"]}[audit_twin]
    again = command_line("train", experiment, *(overrides or []), "--out", folder, "--resume", *twin)
    told: set[str] = set()
    with (
        check.before_training(),
        locked(folder),
        told_if_stopped(f"resume with: {again}; state in {folder}", Interrupted),
        RunProgress(errors_console()) as progress,
    ):
        summary = run_experiment(
            config,
            folder,
            resume=resume,
            # What ended before its first checkpoint is nothing to go on from, and nothing to lose.
            overwrite=overwrite or (not resume and is_barely_begun(folder)),
            progress=progress.run(config.name),
            notify=noting(told, progress.tell),
            command=Command(given_command(), check.refuse),
        )
    if writes_json(json_, summary.as_json):
        check.end(summary)
        return
    print_run(summary, explain=explain, told=told, folder=folder)
    steps = [f"splitvfl report {folder}", f"tensorboard --logdir {'runs' if out is None else folder}"]
    steps.append(command_line("predict", folder, "--records", "FILE", "--out", "scores.csv"))
    exchange = config.exchange.factory
    noise = getattr(config.exchange, "noise", None)
    if any(party.features for party in summary.parties.values()):
        steps.append(command_line("reconstruct", folder))
    # Calculated noise takes no defenses beside it: with it the comparison would be refused.
    if summary.task == "binary" and not exchange.one_way and not exchange.limits_values and noise is None:
        steps.append(f"splitvfl compare {experiment} --defenses {TO_COMPARE} --seeds 3")
    next_steps(*steps)
    check.end(summary)


def with_twin(config: ExperimentConfig, wanted: bool | None) -> ExperimentConfig:
    """Return an experiment with an audit twin or without, as an option says; ``None``: as the experiment says.

    Raises:
        ConfigError: If a twin is wanted, and nobody would look, or the run has canaries of its own.
    """
    if not wanted:
        return config if wanted is None else config.of_the_run
    if not config.audited:
        raise ConfigError("--audit-twin: audit is false, so that nobody would look for canaries")
    if config.canaries is not None:
        raise ConfigError(
            f"--audit-twin: the run has {config.canaries:,} canaries of its own (audit.canaries), which measure the "
            "excess leakage already; take one of them out"
        )
    return config.auditing(twin=True)


def noting(told: set[str], tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return what tells a line, and notes that it was told."""

    def tell_and_note(line: str) -> None:
        told.add(line)
        tell(line)

    return tell_and_note


def print_run(summary: RunSummary, *, explain: bool, told: Collection[str], folder: Path) -> None:
    """Print what a finished run has found; its notes without those that were printed before."""
    from splitvfl.report.findings import facts, sending_note, stopping_note
    from splitvfl.report.first_screen import first_screen
    from splitvfl.report.summary import FILE_NAME
    from splitvfl.report.tables import summary_table

    console = output_console()
    console.print(first_screen(summary))
    console.print()
    noted = summary.feature_notes
    lines = [stopping_note(summary), sending_note(summary), *facts(summary)]
    lines += [note for note in summary.notes if note not in told]
    if any(note in told for note in summary.notes):
        noted.append(f"The notes above on noise and guarantees are kept in {folder / FILE_NAME}")
    for line in filter(None, [*lines, *(f"{note}." for note in noted)]):
        console.print(Text(line))
    if explain:
        console.print()
        console.print(summary_table([summary]))


# --- a leak check


@dataclass(frozen=True)
class LeakCheck:
    """Whether the verdict on labels fails a command.

    Attributes:
        goal: The goal that is checked; ``None``: nothing is.
        allow_inconclusive: Whether an inconclusive verdict passes.

    Raises:
        ConfigError: If no AUC is above the goal, or every one.
    """

    goal: float | None
    allow_inconclusive: bool = False

    def __post_init__(self) -> None:
        if self.goal is None and self.allow_inconclusive:
            raise ConfigError("--allow-inconclusive belongs to --fail-above: give both, or leave it out")
        if self.goal is not None and not 0.5 <= self.goal < 1.0:
            raise ConfigError(f"--fail-above: expected an AUC from 0.5 (guessing) to below 1, got {self.goal}")

    def refuse(self, found: Sequence[Solvable]) -> None:
        """Refuse a run before its first step if a partner can solve for labels."""
        from splitvfl.app.solving import refuse_solvable

        if self.goal is not None:
            refuse_solvable(found)

    @contextmanager
    def before_training(self) -> Iterator[None]:
        """End the command with exit code 3 where a run is refused for what partners can solve for."""
        from splitvfl.errors import SolvableError

        try:
            yield
        except SolvableError as error:
            tell(f"leak check failed before step 1: above goal {self.goal:g}: {error}")
            raise typer.Exit(ABOVE) from error

    def end(self, summary: RunSummary) -> None:
        """Say the ground of the worst verdict on labels, and end the command with the exit code that it has."""
        from splitvfl.report.first_screen import ground
        from splitvfl.report.verdict import worst_of_labels

        if self.goal is None:
            return
        worst = worst_of_labels(summary.judged(self.goal))
        if worst is None:
            raise ConfigError("--fail-above: this run has no verdict on labels; give it at the label owner")
        name, verdict = worst
        code = {"above-goal": ABOVE, "inconclusive": 0 if self.allow_inconclusive else UNDECIDED}.get(verdict.state, 0)
        outcome = {ABOVE: "failed", UNDECIDED: "undecided"}.get(code, "passed")
        other = "" if self.goal == summary.goal else f". The screen judges by the run's goal, {summary.goal:.2f}"
        tell(f"leak check {outcome}: {ground(name, summary.label_owner, verdict, self.goal)}{other}")
        if code:
            raise typer.Exit(code)
