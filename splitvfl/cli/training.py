"""Commands that train, in one process or as one of several parties."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from splitvfl.cli.console import (
    ExperimentFile,
    Overrides,
    Overwrite,
    command_line,
    errors_console,
    given_command,
    next_steps,
    output_console,
    tell,
    told_if_stopped,
)
from splitvfl.errors import ConfigError
from splitvfl.system.signals import wait_for_a_signal

# Commands import what they need when they run: --help and list do not wait for torch.
if TYPE_CHECKING:
    from splitvfl.app.console import RunProgress
    from splitvfl.app.experiment import Variant
    from splitvfl.config.sections import ExchangeSection
    from splitvfl.privacy import Solvable
    from splitvfl.report.summary import RunSummary
    from splitvfl.run.training import TrainingProgress

# Two that put noise on gradients and on labels; in quotes, as a shell would take the brackets for its own.
TO_COMPARE = "'none,axis-sumkl(detection_error=0.4),asymmetric-response(detection_error=0.4)'"

ABOVE = 3
"""Exit code of a run that leaks more than --fail-above allows."""

Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Explain = Annotated[bool, typer.Option("--explain", help="Print every figure too, and what each means.")]


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs. Default: runs/demo, or runs/demo-network.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three epochs instead of fifteen and forty.")] = False,
    network: Annotated[
        bool,
        typer.Option("--network", help="Three companies on this machine instead: align, train over TLS, score."),
    ] = False,
    explain: Explain = False,
) -> None:
    """Show on real data what gradients leak, what defenses cost, and what costs nothing.

    Earlier demonstrations in the same folder are replaced.
    """
    if network:
        _demo_network(out or Path("runs/demo-network"), quick=quick)
    else:
        _demo(out or Path("runs/demo"), quick=quick, explain=explain)


def _demo_network(out: Path, *, quick: bool) -> None:
    from splitvfl.app.network_demo import demonstrate

    with told_if_stopped(f"splitvfl demo --network starts anew; what was done is in {out}"):
        demonstrate(out, quick=quick)


def _demo(out: Path, *, quick: bool, explain: bool) -> None:
    from splitvfl.app.console import RunProgress
    from splitvfl.app.demo import demo_variants
    from splitvfl.app.experiment import run_variants
    from splitvfl.report.report import write_report
    from splitvfl.run.training import Interrupted

    planned = demo_variants(out, quick=quick)
    summaries = []
    runs = sum(len(group) for group in planned.values())
    anew = f"splitvfl demo starts anew; finished runs are in {out}"
    with told_if_stopped(anew, Interrupted), RunProgress(errors_console(), runs) as progress:
        for name, group in planned.items():
            show = partial(_start, progress, name)
            summaries += run_variants(group, overwrite=True, progress=show, command=given_command())
    _print_runs(summaries, explain=explain)
    folders = [variant.folder for group in planned.values() for variant in group]
    report = write_report(folders, out / "report.html", title="What gradients leak, and what stops it")
    next_steps(
        f"{report}   (open it in a browser)",
        f"tensorboard --logdir {out}",
        "splitvfl list defenses",
        "splitvfl examples digits && splitvfl train digits.yaml",
        f"splitvfl compare digits.yaml --defenses {TO_COMPARE} --seeds 3",
        "splitvfl init YOUR.csv   (an experiment with data of your own)",
    )


def train(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/NAME.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    fail_above: Annotated[
        float | None,
        typer.Option(
            "--fail-above",
            metavar="AUC",
            help="End with exit code 3 if the worst leak AUC of any attack on messages is above this, and before "
            "training if a partner can solve for more labels.",
        ),
    ] = None,
    explain: Explain = False,
) -> None:
    """Train one experiment, and watch what leaks."""
    from splitvfl.app.console import RunProgress
    from splitvfl.app.experiment import run_experiment
    from splitvfl.app.run_folder import is_barely_begun
    from splitvfl.config.sections import load_config
    from splitvfl.run.training import Interrupted
    from splitvfl.system.folder_lock import locked

    config = load_config(experiment, overrides or [])
    if fail_above is not None:
        _check_leak_check(config.exchange, fail_above, measured=config.audited or bool(config.attacks))
    folder = out or Path("runs") / config.name
    again = command_line("train", experiment, *(overrides or []), "--out", folder, "--resume")
    told: set[str] = set()
    with (
        _ending_above(),
        locked(folder),
        told_if_stopped(f"go on with: {again}; state in {folder}", Interrupted),
        RunProgress(errors_console()) as progress,
    ):
        summary = run_experiment(
            config,
            folder,
            resume=resume,
            # What ended before its first checkpoint is nothing to go on from, and nothing to lose.
            overwrite=overwrite or (not resume and is_barely_begun(folder)),
            progress=progress.run(config.name),
            notify=_noting(told, progress.tell),
            command=given_command(),
            foreseen=_refusing(fail_above),
        )
    _print_run(summary, explain=explain, told=told, folder=folder)
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
    if fail_above is not None:
        _end_above(summary, fail_above)


def party(
    experiment: Annotated[Path, typer.Argument(help="This party's own file, YAML.")],
    as_: Annotated[str, typer.Option("--as", help="Which party this is: its name, or active.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/NAME-PARTY.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew; every party must. Default: go on where all left off.")
    ] = False,
    explain: Explain = False,
    fail_above: Annotated[
        float | None,
        typer.Option(
            "--fail-above",
            metavar="AUC",
            help="At the label owner: end with exit code 3 before training if a partner can solve for more labels than "
            "this leak AUC.",
        ),
    ] = None,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="When all is done, wait to be stopped: for what starts again whatever ends."),
    ] = False,
) -> None:
    """Train as one of several parties, each in its own process, over mutual TLS."""
    with _ending_above():
        _train_as_party(
            experiment, as_, overrides or [], out, overwrite=overwrite, explain=explain, fail_above=fail_above
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
    fail_above: float | None,
) -> None:
    from splitvfl.app.console import RunProgress
    from splitvfl.app.deployment import coordinator_run, run_party
    from splitvfl.app.workers import team_of
    from splitvfl.config.sections import load_config
    from splitvfl.run.replacement import earlier_stands
    from splitvfl.run.training import Interrupted

    config = load_config(experiment, overrides)
    name = config.own_name(as_)
    if fail_above is not None:
        _check_solving(config.exchange, name, config.active, fail_above)
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
            return f"go on by starting its workers again, as they were started; state in {folder}"
        anew = ["--overwrite"] if earlier_stands(folder) in told else []
        command = command_line("party", experiment, *overrides, "--as", name, "--out", folder, *anew)
        return f"{'start anew' if anew else 'go on'} with: {command}; state in {folder}"

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
            notify=_noting(told, progress.tell),
            progress=progress.run(name),
            command=given_command(),
            team=team,
            foreseen=_refusing(fail_above),
        )
    if team.rank:  # worker 0 tells what all have done
        return
    crossed = config.exchange.factory.one_way and name != config.active
    done = "its activations have crossed, and nothing more is needed of it" if crossed else f"{run.step} steps done"
    print(f"{name}: {done}; the {'half' if crossed else 'trained half'} is in {folder / 'model'}")
    if summary is not None:
        _print_own_columns(summary) if summary.seat else _print_run(summary, explain=explain, told=told, folder=folder)
        next_steps(f"splitvfl report {folder}", f"tensorboard --logdir {folder}")


def compare(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    defenses: Annotated[
        str | None,
        typer.Option(
            help="By comma: none,isotropic,'sumkl(detection_error=0.3)'. Default: none and the experiment's own."
        ),
    ] = None,
    cuts: Annotated[
        str | None, typer.Option(help="By comma, after how many layers to cut the model: 1,2. Default: as it is.")
    ] = None,
    widths: Annotated[
        str | None, typer.Option(help="By comma, how wide the cut is: 64,16,4. Default: as it is.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each defense, under as many seeds.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs. Default: runs/NAME-compare.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    explain: Explain = False,
) -> None:
    """Train one experiment under several defenses and seeds, and print means with 95 % intervals; of two, ranges.

    With --cuts and --widths each defense is tried at each cut of the model and each width.
    """
    from splitvfl.app.console import RunProgress
    from splitvfl.app.experiment import cut_otherwise, run_variants, variants
    from splitvfl.config.sections import load_config, parse_defenses
    from splitvfl.report.report import write_report
    from splitvfl.run.training import Interrupted

    config = load_config(experiment, overrides or [])
    chosen = [[], list(config.defenses)] if defenses is None else parse_defenses(defenses, folder=config.folder)
    folder = out or Path("runs") / f"{config.name}-compare"
    cut = cut_otherwise(
        config,
        lambda more: load_config(experiment, [*(overrides or []), *more]),
        _numbers("--cuts", cuts),
        _numbers("--widths", widths),
    )
    planned = [variant for named, one in cut.items() for variant in variants(one, chosen, seeds, folder, cut=named)]
    again = f"go on with the same command and --resume; state in {folder}"
    with told_if_stopped(again, Interrupted), RunProgress(errors_console(), len(planned)) as progress:
        summaries = run_variants(
            planned,
            overwrite=overwrite,
            resume=resume,
            progress=partial(_start, progress, config.name),
            command=given_command(),
        )
    _print_runs(summaries, compared=True, explain=explain)
    report = write_report([variant.folder for variant in planned], folder / "report.html", title=config.name)
    next_steps(f"{report}   (open it in a browser)", f"tensorboard --logdir {folder}")


def _numbers(option: str, text: str | None) -> list[int | None]:
    """Return whole numbers above 0 that are given by comma, each once; without an option ``None``, as it is."""
    from splitvfl.errors import ConfigError

    if text is None:
        return [None]
    said = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in said):
        raise ConfigError(f"{option}: expected whole numbers above 0 by comma, as in 64,16,4; got {text!r}")
    return list(dict.fromkeys(int(part) for part in said))


def _start(progress: RunProgress, name: str, variant: Variant) -> TrainingProgress:
    return progress.run(f"{name}, {variant.label}")


def _noting(told: set[str], tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return what tells a line, and notes that it was told."""

    def tell_and_note(line: str) -> None:
        told.add(line)
        tell(line)

    return tell_and_note


def _print_run(summary: RunSummary, *, explain: bool, told: Collection[str], folder: Path) -> None:
    from splitvfl.leakage.features import feature_notes
    from splitvfl.report.brief import brief
    from splitvfl.report.findings import sending_note, stopping_note, verdict
    from splitvfl.report.summary import FILE_NAME
    from splitvfl.report.tables import summary_table

    console = output_console()
    console.print(brief([summary]))
    console.print()
    noted = list(feature_notes(leak for party in summary.parties.values() for leak in party.features))
    said = [verdict(summary), stopping_note(summary), sending_note(summary)]
    said += [note for note in summary.notes if note not in told]
    if any(note in told for note in summary.notes):
        noted.append(f"What the run said above of noise and promises is kept in {folder / FILE_NAME}, for the report")
    for line in filter(None, [*said, *(f"{note}." for note in noted)]):
        console.print(Text(line))
    if explain:
        console.print()
        console.print(summary_table([summary]))


def _print_own_columns(summary: RunSummary) -> None:
    from splitvfl.leakage.features import feature_notes
    from splitvfl.report.own_seat import seat_lines
    from splitvfl.report.tables import summary_table

    console = output_console()
    for line in seat_lines(summary):
        console.print(Text(line, style="bold"))
    console.print()
    console.print(summary_table([summary]))
    noted = feature_notes(summary.parties[summary.seat].features)
    for line in [*summary.notes, *(f"{note}." for note in noted)]:
        console.print(Text(line))


def _print_runs(summaries: Sequence[RunSummary], *, explain: bool, compared: bool = False) -> None:
    from splitvfl.report.brief import brief, compared_brief
    from splitvfl.report.tables import comparison_table, summary_table

    console = output_console()
    console.print((compared_brief if compared else brief)(summaries))
    _print_advice(summaries)
    if explain:
        console.print()
        console.print((comparison_table if compared else summary_table)(summaries))


def _print_advice(summaries: Sequence[RunSummary]) -> None:
    from splitvfl.report.findings import advice, headline
    from splitvfl.report.rows import group_runs

    console = output_console()
    for group in group_runs(summaries):
        said = advice(group) or (headline(group.runs[0]) if len(group.runs) == 1 else "")
        if said:
            console.print(Text(f"\n{group.title}, {group.subtitle}: {said}"))


# --- a leak check


def _check_highest(highest: float) -> None:
    if not 0.5 <= highest < 1.0:
        raise ConfigError(f"--fail-above: expected a leak AUC from 0.5 (blind) to below 1 (every label), got {highest}")


def _check_solving(exchange: ExchangeSection, name: str, active: str, highest: float) -> None:
    """Refuse a check of one party that could not fail, before anybody is met."""
    _check_highest(highest)
    if name != active:
        raise ConfigError(
            f"--fail-above: {name} has no labels, and does not know what others can solve for; give it at "
            f"{active}, and leave it out here"
        )
    if not exchange.factory.sums_only or exchange.factory.draws_records:
        raise ConfigError(
            f"--fail-above: in exchange {exchange.name} no labels are solved for from sums of a batch, so that "
            "there is nothing to check before training; leave it out"
        )


def _check_leak_check(exchange: ExchangeSection, highest: float, *, measured: bool) -> None:
    """Refuse a check that could not fail, before anything is trained."""
    _check_highest(highest)
    if exchange.factory.one_way:
        raise ConfigError(
            f"--fail-above: in exchange {exchange.name} no message of training depends on labels, so that there "
            "is nothing to check; leave it out"
        )
    if not measured:
        raise ConfigError("--fail-above: audit is false and there are no attacks, so that nothing would be measured")


def _refusing(highest: float | None) -> Callable[[Sequence[Solvable]], None]:
    """Return what refuses a run in which a partner can solve for more labels than the highest leak AUC allows."""
    from splitvfl.app.solving import refuse_solvable

    return (lambda found: None) if highest is None else partial(refuse_solvable, highest=highest)


@contextmanager
def _ending_above() -> Iterator[None]:
    """End the command with exit code 3 and two lines where a run is refused for what partners can solve for."""
    from splitvfl.errors import SolvableError

    try:
        yield
    except SolvableError as error:
        tell(f"leak check failed before training: {error}")
        raise typer.Exit(ABOVE) from error


def _end_above(summary: RunSummary, highest: float) -> None:
    """End the command with exit code 3 and a line if the worst leak AUC of a run is above the highest allowed."""
    from splitvfl.report.rows import shown_name

    worst, attack, partner = summary.worst
    if worst is None:
        raise ConfigError(
            f"--fail-above {highest:g}: no attack on messages could be judged in this run, so that nothing was "
            "measured: no batch held records of different labels; add attacks: [norm, direction] or audit: true"
        )
    found = f"worst leak AUC {worst:.4f} ({shown_name(attack)} at {partner})"
    if worst > highest:
        tell(f"leak check failed: {found} is above {highest:g}")
        raise typer.Exit(ABOVE)
    missing = sorted({name for party in summary.parties.values() for name in party.unavailable})
    unseen = f"; could not be run: {', '.join(missing)}" if missing else ""
    tell(f"leak check passed: {found} is not above {highest:g}{unseen}")
