"""The command that says what the scores of a finished run reveal of its parties' features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitvfl.cli.column_tables import attack_table, category_table, column_table
from splitvfl.cli.console import Json, ModuleSources, command_line, next_steps, output_console, writes_json

if TYPE_CHECKING:
    from splitvfl.leakage.reconstruction import ReconstructedView, Reconstruction

# As splitvfl.leakage.features has them, which takes a second to import.
_VIEWS = ("scores", "activation")
_TRANSFORMED = ("rotated", "shifted")


def reconstruct(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run with the model parts of all parties. Of several models that score the same records, "
            "equations are solved together.",
        ),
    ],
    attacks: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="By comma: rcc2,half-star. Default: all that need only weights."),
    ] = None,
    views: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            autocompletion=lambda: list(_VIEWS),
            help="What the attacker sees of predictions: scores, activation, or both by comma.",
        ),
    ] = ",".join(_VIEWS),
    records: Annotated[
        int, typer.Option(metavar="N", help="At most so many training and test records are scored.")
    ] = 2_000,
    transformed: Annotated[
        str | None,
        typer.Option(
            "--transformed-weights",
            metavar="HOW",
            autocompletion=lambda: list(_TRANSFORMED),
            help="Beside the true weights, give an attacker others: rotated (W Hᵀ) or shifted (W + Δ).",
        ),
    ] = None,
    revealed: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Weights that a party has revealed (splitvfl reveal); one of each party."),
    ] = None,
    plots: Annotated[
        bool,
        typer.Option(
            "--plots/--no-plots", help="Keep values of up to 200 records for the pictures of the report, or of none."
        ),
    ] = True,
    modules: ModuleSources = None,
    json_: Json = None,
) -> None:
    """Reconstruct features of passive parties from the scores of a finished run, and measure how well that works."""
    from splitvfl.app.reconstruction import reconstruct as reconstruct_run
    from splitvfl.report.summary import FILE_NAME

    run, *also = runs
    found = reconstruct_run(
        runs,
        attacks=attacks,
        views=[view.strip() for view in views.split(",")],  # type: ignore[misc]  # it is checked there
        records=records,
        weights=transformed or "true",  # type: ignore[arg-type]  # likewise
        revealed=revealed or (),
        plots=plots,
        modules=modules,
    )
    # What several models tell together is none of a single run's figures.
    written = [] if also else [found.keep(run)]
    if writes_json(json_, found.as_json, mode=0o600):  # statistics of the parties' features are in it
        return
    written += [] if json_ is None else [json_]
    _print(found)
    for path in written:
        print(path)
    if not also and (run / FILE_NAME).is_file():  # an auditor's copy of halves has none
        next_steps(command_line("report", run))


def _print(found: Reconstruction) -> None:
    from rich.text import Text

    console = output_console()
    for sentence in found.sentences.values():
        console.print(Text(sentence, style="bold"))
        console.print()
    for party, seen, view, trained in found.shown():
        what = f"{party}, {seen}"
        console.print(
            attack_table(
                _title(what, view),
                view.attacks,
                view.baselines,
                view.commonest,
                mean_mse=view.mean_mse,
                beside=_beside(trained),
            )
        )
        if view.weights == "true":
            console.print(column_table(what, view.best, view.baselines, view.left))
            if view.best.categories:
                console.print(category_table(what, view.best, view.commonest))
        for line in view.said:
            console.print(Text(line))
        console.print()
    for line in found.said:
        console.print(Text(f"note: {line}"))


def _title(what: str, view: ReconstructedView) -> str:
    equations = f"{view.equations} equation{'' if view.equations == 1 else 's'} in {view.joint} columns"
    part = "test" if view.part == "test" else "training"
    return (
        f"{what}: {equations}, {view.records:,} {part} records. Mean squared error per column in the unit box; ½ alone "
        f"{view.half_mse:.4f}, means alone {view.mean_mse:.4f}"
    )


def _beside(trained: ReconstructedView | None) -> tuple[str, dict[str, float], float] | None:
    """Return the errors on training records."""
    if trained is None:
        return None
    return "train", {one.attack: one.mse for one in trained.attacks}, trained.mean_mse
