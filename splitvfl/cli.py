"""The command line: it parses, calls, and prints. Results go to standard output, all else to standard error."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from splitvfl.errors import SplitVFLError

# Commands import what they need when they run: --help and list do not wait for torch.
if TYPE_CHECKING:
    from splitvfl.console import RunProgress
    from splitvfl.experiment import Variant
    from splitvfl.leakage.summary import RunSummary
    from splitvfl.training import Progress

app = typer.Typer(
    name="splitvfl",
    help="Train a model over columns that belong to different organisations, and see what leaks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings to change: train.lr=0.01 defenses.0.detection_error=0.3")
]
ExperimentFile = Annotated[Path, typer.Argument(help="The experiment, a YAML file.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in the same folder.")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 a mistake of the user's, 130 interrupted."""
    try:
        app(args=None if argv is None else list(argv), prog_name="splitvfl")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except SplitVFLError as error:
        print(f"splitvfl: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"splitvfl: cannot read or write {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and the report.")] = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Three epochs instead of fifteen.")] = False,
) -> None:
    """Show on real data what gradients leak, and what five defenses cost.

    Earlier demonstrations in the same folder are replaced.
    """
    from splitvfl.console import RunProgress
    from splitvfl.demo import demo_variants
    from splitvfl.experiment import run_variants
    from splitvfl.leakage.report import write_report
    from splitvfl.leakage.tables import summary_table
    from splitvfl.training import Interrupted

    planned = demo_variants(out, quick=quick)
    summaries = []
    try:
        with RunProgress(_errors(), sum(len(group) for group in planned.values())) as progress:
            for name, group in planned.items():
                summaries += run_variants(group, overwrite=True, progress=partial(_start, progress, name))
    except Interrupted:
        raise _interrupted("splitvfl demo starts anew; finished runs are in", out) from None
    Console().print(summary_table(summaries))
    _print_advice(summaries)
    folders = [variant.folder for group in planned.values() for variant in group]
    report = write_report(folders, out / "report.html", title="What gradients leak, and what stops it")
    _next_steps(
        f"{report}   (open it in a browser)",
        f"tensorboard --logdir {out}",
        "splitvfl list defenses",
        "splitvfl train scripts/experiments/digits.yaml",
        "splitvfl compare scripts/experiments/digits.yaml --defenses sumkl,axis-sumkl --seeds 3",
    )


@app.command()
def train(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/NAME.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train one experiment, and watch what leaks."""
    from splitvfl.config import load_config
    from splitvfl.console import RunProgress
    from splitvfl.experiment import run_experiment
    from splitvfl.leakage.findings import verdict
    from splitvfl.leakage.tables import summary_table
    from splitvfl.training import Interrupted

    config = load_config(experiment, overrides or [])
    folder = out or Path("runs") / config.name
    try:
        with RunProgress(_errors()) as progress:
            summary = run_experiment(
                config, folder, resume=resume, overwrite=overwrite, progress=progress.run(config.name)
            )
    except Interrupted:
        raise _interrupted(
            f"go on with: {_command('train', experiment, *(overrides or []), '--out', folder, '--resume')}; state in",
            folder,
        ) from None
    console = Console()
    console.print(summary_table([summary]))
    console.print(Text(verdict(summary)))
    for leak in (leak for party in summary.parties.values() for leak in party.features if leak.note):
        console.print(Text(f"{leak.attack}: {leak.note}."))
    _next_steps(
        f"splitvfl report {folder}",
        "tensorboard --logdir runs" if out is None else f"tensorboard --logdir {folder}",
        f"splitvfl compare {experiment} --defenses none,sumkl,axis-sumkl --seeds 3",
    )


@app.command()
def compare(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    defenses: Annotated[
        str | None,
        typer.Option(
            help="By comma: none,isotropic,'sumkl(detection_error=0.3)'. Default: none and the experiment's own."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each defense, under as many seeds.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs. Default: runs/NAME-compare.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train one experiment under several defenses and seeds, and print means with 95 % intervals."""
    from splitvfl.config import load_config, parse_defenses
    from splitvfl.console import RunProgress
    from splitvfl.experiment import run_variants, variants
    from splitvfl.leakage.report import write_report
    from splitvfl.leakage.tables import comparison_table
    from splitvfl.training import Interrupted

    config = load_config(experiment, overrides or [])
    chosen = [[], list(config.defenses)] if defenses is None else parse_defenses(defenses, folder=config.folder)
    folder = out or Path("runs") / f"{config.name}-compare"
    planned = variants(config, chosen, seeds, folder)
    try:
        with RunProgress(_errors(), len(planned)) as progress:
            summaries = run_variants(
                planned, overwrite=overwrite, resume=resume, progress=partial(_start, progress, config.name)
            )
    except Interrupted:
        raise _interrupted("go on with the same command and --resume; state in", folder) from None
    Console().print(comparison_table(summaries))
    _print_advice(summaries)
    report = write_report([variant.folder for variant in planned], folder / "report.html", title=config.name)
    _next_steps(f"{report}   (open it in a browser)", f"tensorboard --logdir {folder}")


@app.command(name="list")
def list_(
    kind: Annotated[str, typer.Argument(help="attacks, defenses, models or data")],
) -> None:
    """List what can be named in an experiment."""
    from splitvfl.registry import describe

    console = Console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, summary in describe(kind):
        table.add_row(escape(name), escape(summary))
    console.print(table)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    out: Annotated[Path | None, typer.Option(help="The page. Default: report.html in the first run's folder.")] = None,
    title: Annotated[str, typer.Option(help="Its title.")] = "What leaks",
) -> None:
    """Make one self-contained HTML page out of finished runs."""
    from splitvfl.leakage.report import write_report

    print(write_report(runs, out or runs[0] / "report.html", title=title))


def _errors() -> Console:
    return Console(stderr=True)


def _start(progress: RunProgress, name: str, variant: Variant) -> Progress:
    return progress.run(f"{name}, {variant.label}")


def _interrupted(hint: str, folder: Path) -> typer.Exit:
    print(f"splitvfl: stopped; {hint} {folder}", file=sys.stderr)
    return typer.Exit(130)


def _print_advice(summaries: Sequence[RunSummary]) -> None:
    from splitvfl.leakage.findings import advice, group_runs

    console = Console()
    for group in group_runs(summaries):
        console.print(Text(f"\n{group.title}: {advice(group)}"))


def _command(*words: object) -> str:
    return shlex.join(["splitvfl", *map(str, words)])


def _next_steps(*commands: str) -> None:
    """Print what to try next; long commands are never broken, so that they can be copied."""
    print()
    for number, command in enumerate(commands):
        print(f"{'next:' if number == 0 else '     '} {command}")
