"""Commands that train several times and compare: an experiment under several defenses, and the demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from splitvfl.cli.console import (
    ExperimentFile,
    Json,
    Overrides,
    Overwrite,
    errors_console,
    given_command,
    importing,
    next_steps,
    output_console,
    told_if_stopped,
    writes_json,
)
from splitvfl.cli.training import TO_COMPARE, AuditTwin, Explain, Resume, with_twin
from splitvfl.errors import ConfigError

if TYPE_CHECKING:
    from splitvfl.app.console import RunProgress
    from splitvfl.app.experiment import Variant
    from splitvfl.report.summary import RunSummary
    from splitvfl.run.training import TrainingProgress


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs. Default: runs/demo, or runs/demo-network.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three epochs instead of eight.")] = False,
    network: Annotated[
        bool,
        typer.Option("--network", help="Three companies on this machine instead: align, train over TLS, score."),
    ] = False,
    explain: Explain = False,
) -> None:
    """Show on real data what messages leak, which defenses fail, and what protects labels.

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
    from splitvfl.app.beginning import Command
    from splitvfl.app.console import RunProgress
    from splitvfl.app.demo import NAME, demo_variants, lesson
    from splitvfl.app.experiment import run_variants
    from splitvfl.report.report import write_report
    from splitvfl.system.signals import Interrupted

    planned = demo_variants(out, quick=quick)
    anew = f"splitvfl demo starts anew; finished runs are in {out}"
    with told_if_stopped(anew, Interrupted), RunProgress(errors_console(), len(planned)) as progress:
        show = partial(_start, progress, NAME)
        summaries = run_variants(planned, overwrite=True, progress=show, command=Command(given_command()))
    report = write_report([one.folder for one in planned], out / "report.html", title="What leaks, and what stops it")
    _print_runs(summaries, explain=explain)
    console = output_console()
    for line in ["", *lesson(summaries)]:
        console.print(Text(line))
    next_steps(
        f"{report}   (open it in a browser)",
        f"tensorboard --logdir {out}",
        "splitvfl list defenses",
        "splitvfl examples digits && splitvfl train digits.yaml",
        f"splitvfl compare digits.yaml --defenses {TO_COMPARE} --seeds 3",
        "splitvfl init YOUR.csv   (an experiment with data of your own)",
    )


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
    audit_twin: AuditTwin = None,
    explain: Explain = False,
    json_: Json = None,
) -> None:
    """Train one experiment under several defenses and seeds, and rank them by their verdict and by the test figure.

    Seeds are pooled. With --cuts and --widths each defense is tried at each cut of the model and each width. Where the
    experiment has no canaries of its own, each run is followed by its audit twin; --no-audit-twin leaves twins out.
    """
    with importing():
        from splitvfl.app.beginning import Command
        from splitvfl.app.console import RunProgress
        from splitvfl.app.experiment import cut_otherwise, run_variants, variants
        from splitvfl.config.sections import load_config, parse_defenses
        from splitvfl.report.report import write_report
        from splitvfl.report.summary import FILE_NAME
        from splitvfl.system.signals import Interrupted

        config = load_config(experiment, overrides or [])
    readable = config.audited and config.canaries is None and config.exchange.factory.shows_gradients()
    wanted = True if audit_twin is None and readable else audit_twin
    config = with_twin(config, wanted)
    chosen = [[], list(config.defenses)] if defenses is None else parse_defenses(defenses, folder=config.folder)
    folder = out or Path("runs") / f"{config.name}-compare"
    if (folder / FILE_NAME).is_file():
        raise ConfigError(
            f"--out: {folder} holds a run of its own, whose report this one would replace; name another folder"
        )
    cut = cut_otherwise(
        config,
        lambda more: with_twin(load_config(experiment, [*(overrides or []), *more]), wanted),
        _numbers("--cuts", cuts),
        _numbers("--widths", widths),
    )
    planned = [variant for named, one in cut.items() for variant in variants(one, chosen, seeds, folder, cut=named)]
    again = f"resume with the same command and --resume; state in {folder}"
    with told_if_stopped(again, Interrupted), RunProgress(errors_console(), len(planned)) as progress:
        summaries = run_variants(
            planned,
            overwrite=overwrite,
            resume=resume,
            progress=partial(_start, progress, config.name),
            command=Command(given_command()),
        )
    report = write_report([variant.folder for variant in planned], folder / "report.html", title=config.name)
    if writes_json(json_, partial(_as_json, summaries)):
        return
    _print_runs(summaries, explain=explain)
    next_steps(f"{report}   (open it in a browser)", f"tensorboard --logdir {folder}")


def _numbers(option: str, text: str | None) -> list[int | None]:
    """Return whole numbers above 0 that are given by comma, each once; without an option ``None``, as it is."""
    if text is None:
        return [None]
    said = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in said):
        raise ConfigError(f"{option}: expected whole numbers above 0 by comma, as in 64,16,4; got {text!r}")
    return list(dict.fromkeys(int(part) for part in said))


def _start(progress: RunProgress, name: str, variant: Variant) -> TrainingProgress:
    return progress.run(f"{name}, {variant.label}")


def _print_runs(summaries: Sequence[RunSummary], *, explain: bool) -> None:
    from splitvfl.report.comparison import comparison
    from splitvfl.report.tables import comparison_table

    console = output_console()
    console.print(comparison(summaries))
    if explain:
        console.print()
        console.print(comparison_table(summaries))


def _as_json(summaries: Sequence[RunSummary]) -> list[dict[str, Any]]:
    from splitvfl.report.comparison import as_json
    from splitvfl.report.rows import group_runs

    return [as_json(group) for group in group_runs(summaries)]
