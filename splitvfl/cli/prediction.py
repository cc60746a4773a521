"""Commands that use what was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box

from splitvfl.cli.console import (
    ModuleSources,
    Overrides,
    check_one_process,
    command_line,
    errors_console,
    importing,
    next_steps,
    output_console,
    silent,
    tell,
    told_if_stopped,
)
from splitvfl.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from splitvfl.app.distillation import Distilled
    from splitvfl.app.saved_run import SavedRun
    from splitvfl.app.serving import PredictionFiles
    from splitvfl.config.sections import ExperimentConfig


FAIL_ON_DRIFT = "--fail-on-drift"


def with_threshold(arguments: Sequence[str]) -> list[str]:
    """Return the command line with the usual threshold of drift behind ``--fail-on-drift``, if no number is there.

    >>> with_threshold(["predict", "runs/x", "--fail-on-drift", "--out", "s.csv"])
    ['predict', 'runs/x', '--fail-on-drift=0.25', '--out', 's.csv']
    """
    found = list(arguments)
    for place in [place for place, one in enumerate(found) if one == FAIL_ON_DRIFT]:
        behind = found[place + 1] if place + 1 < len(found) else ""
        if not behind.lstrip("+-").replace(".", "", 1).isdecimal():
            found[place] = f"{FAIL_ON_DRIFT}=0.25"
    return found


def predict(
    trained: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a run in one process; or, over a network, this party's own file, YAML."
        ),
    ],
    overrides: Overrides = None,
    as_: Annotated[
        str | None,
        typer.Option("--as", help="Over a network: which party this is: its name, active, or coordinator."),
    ] = None,
    records: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="New records: a file, or tables by `splitvfl ingest --like`; of a run in one process with the columns "
            "of all parties, or PARTY=FILE for each. Default: the run's own test records.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The scores, .csv or .parquet; over a network at a party that gets them.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Over a network: folder of the model part. Default: runs/NAME-PARTY/model."),
    ] = None,
    aligned: Annotated[
        Path | None,
        typer.Option(help="Over a network: the folder that `splitvfl align` wrote of the new records."),
    ] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="Column that names the records.")] = None,
    modules: ModuleSources = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace scores that are there.")] = False,
    not_covered: Annotated[
        bool,
        typer.Option(
            "--not-covered",
            help="Score more records than a training with calculated noise reserved. That ends its guarantee.",
        ),
    ] = False,
    strict_ids: Annotated[
        bool,
        typer.Option(
            "--strict-ids",
            help="Refuse ids that a spreadsheet takes for formulas (=1+1) before anything is scored; else count them.",
        ),
    ] = False,
    fail_on_drift: Annotated[
        float | None,
        typer.Option(
            FAIL_ON_DRIFT,
            metavar="[THRESHOLD]",
            help="Write no scores, and end with exit code 4, if a column drifts: its stability index is above "
            "THRESHOLD (0.25) and chance, or more than 5 % of its values are new. Also if more than half of the "
            "scores are exactly 0 or 1.",
        ),
    ] = None,
) -> None:
    """Score new records: with all halves of a run in one process, or as one of several parties with its own half."""
    if trained.is_dir():
        check_one_process(f"{trained} is a run in one process: start predict")
        _refuse("of a run in one process", {"--as": as_, "--model": model, "--aligned": aligned})
        _refuse_overrides(trained, overrides or [])
        target = _target(out, trained)
        _predict_run(
            load(trained, modules),
            records or [],
            target,
            id_column,
            overwrite=overwrite,
            not_covered=not_covered,
            strict_ids=strict_ids,
            fail_on_drift=fail_on_drift,
        )
        return
    with importing():
        from splitvfl.app.run_files import MODEL_FOLDER
        from splitvfl.app.serving import PredictionFiles
        from splitvfl.config.sections import load_config

        config = load_config(trained, overrides or [])
    _refuse("over a network", {"--modules": modules, "--records more than once": (records or [])[1:]})
    name = config.own_name(_told(as_, trained))
    if name not in config.parties:
        check_one_process(f"{name} is no party with records: start predict")
        _refuse(f"at {name}, which has no data", {"--records": records, "--out": out, "--model": model})
        _refuse(f"at {name}, which has no data", {"--aligned": aligned, "--id": id_column, "--strict-ids": strict_ids})
        _refuse(f"at {name}, which has no data", {FAIL_ON_DRIFT: fail_on_drift})
        _score_for_others(config)
        return
    files = PredictionFiles(
        model=model or Path("runs") / f"{config.name}-{name}" / MODEL_FOLDER,
        records=None if records is None else Path(records[0]),
        out=out,
        aligned=aligned,
        id_column=id_column,
        overwrite=overwrite,
        not_covered=not_covered,
        strict_ids=strict_ids,
        fail_on_drift=fail_on_drift,
    )
    _predict_with_others(config, name, files)


def _refuse(where: str, options: Mapping[str, object]) -> None:
    """Refuse options that mean nothing in one of the two ways of scoring."""
    given = [option for option, value in options.items() if value]
    if given:
        raise ConfigError(f"{', '.join(given)}: means nothing {where}; leave it out (splitvfl predict --help)")


def _refuse_overrides(run: Path, overrides: list[str]) -> None:
    """Refuse settings for a run in one process: they are those of its folder, and limits of scores are among them."""
    if overrides:
        raise ConfigError(
            f"{', '.join(overrides)}: a run in one process is scored with the settings in its folder; leave it out "
            f"here (limits of scores can be changed in {run / 'experiment.yaml'}, under prediction)"
        )


def _told(party: str | None, experiment: Path) -> str:
    if party is None:
        raise ConfigError(
            f"--as: say which party of {experiment} this is, to score with the others over a network; or name the "
            "folder of a run in one process, as in: splitvfl predict runs/NAME"
        )
    return party


def _target(out: Path | None, run: Path) -> Path:
    if out is None:
        raise ConfigError(f"--out: say where the scores go, as in: splitvfl predict {run} ... --out scores.csv")
    return out


def load(run: Path, modules: list[str] | None) -> SavedRun:
    """Return the parties of a finished run."""
    with importing():
        from splitvfl.app.saved_run import load_run

        return load_run(run, modules=modules)


def _predict_run(
    run: SavedRun,
    records: Sequence[str],
    out: Path,
    id_column: str | None,
    *,
    overwrite: bool,
    not_covered: bool,
    strict_ids: bool,
    fail_on_drift: float | None,
) -> None:
    import torch

    from splitvfl.app.score_drift import shifts_said
    from splitvfl.data.drift import drift_said
    from splitvfl.data.formulas import SPREADSHEETS
    from splitvfl.data.score_file import check_score_target, is_csv, write_scores

    sources = _sources(records, run)
    check_score_target(out, overwrite=overwrite)
    _keep_records(out, sources)
    if run.config is not None and run.config.train.threads is not None:
        torch.set_num_threads(run.config.train.threads)
    found = run.score(
        sources,
        id_column=id_column,
        not_covered=not_covered,
        strict_ids=strict_ids,
        fail_on_drift=fail_on_drift,
        notify=tell,
    )
    if is_csv(out) and found.formulas:
        tell(f"{found.formulas}. {SPREADSHEETS}")
    for party, columns in found.unknown.items():
        for column, rows in columns.items():
            tell(f"{party}: {column}: {rows} records have a value that training did not know")
    for line in (*drift_said(found.drift), *shifts_said(found.shifts)):
        tell(line)
    if found.saturation is not None and str(found.saturation):
        tell(str(found.saturation))
    write_scores(out, found.scores, name_column=found.name_column, names=found.names)
    whose = "" if records else "the run's own test records: "
    print(f"{whose}{len(found.names)} records scored; the scores are in {out}")


def _sources(records: Sequence[str], run: SavedRun) -> Any:
    """Return the records' files: one, or one for each party; ``None`` for the run's own."""
    if not records:
        return None
    if len(records) == 1 and (Path(records[0]).exists() or records[0].partition("=")[0] not in run.halves):
        return records[0]
    named = dict(text.partition("=")[::2] for text in records)
    unknown = [text for text in records if text.partition("=")[0] not in run.halves or "=" not in text]
    if unknown or len(named) < len(records):
        raise ConfigError(
            "--records: expected one file with the columns of all parties, or PARTY=FILE once for each, of "
            f"{', '.join(run.halves)}; got {', '.join(records)}"
        )
    return named


def _keep_records(out: Path, sources: Any) -> None:
    files = sources.values() if isinstance(sources, dict) else [sources]
    for file in files:
        if file is not None and out.exists() and Path(file).exists() and out.samefile(file):
            raise ConfigError(f"--out: {out} holds the records, which the scores would replace; choose another name")


def _predict_with_others(config: ExperimentConfig, name: str, files: PredictionFiles) -> None:
    from rich.console import Console

    from splitvfl.app.console import RowProgress
    from splitvfl.app.serving import prepare_prediction
    from splitvfl.app.workers import team_of_prediction
    from splitvfl.data.drift import drift_said
    from splitvfl.run.teamwork import telling

    with told_if_stopped("nothing was written"), team_of_prediction(config, name) as team, telling(team):
        service = prepare_prediction(config, name, files, notify=silent if team.rank else tell, team=team)
        for column, rows in service.scored.unknown.items():
            tell(f"{column}: {rows} records have a value that training did not know")
        for line in drift_said({name: service.scored.drift}):
            tell(line)
        console = Console(quiet=True) if team.rank else errors_console()
        with RowProgress(console, "scoring", service.scored.data.test.count) as progress:
            service.run(progress)
    if team.rank == 0:  # which tells what all have done
        scores = "" if files.out is None else f"; the scores are in {files.out}"
        print(f"{name}: {service.parts} records scored{scores}")


def _score_for_others(config: ExperimentConfig) -> None:
    from splitvfl.app.scoring import prepare_coordinator

    service = prepare_coordinator(config, notify=tell)
    with told_if_stopped("no score was kept here"):
        records = service.run()
    print(f"coordinator: {records} records scored")


def distill(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of a run in one process, or of the label owner's over a network."),
    ],
    scores: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Over a network: joint scores of the training records, as splitvfl predict wrote them.",
        ),
    ] = None,
    modules: ModuleSources = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides first weights, the order of records and the draws.")] = 0,
) -> None:
    """Train a model of the label owner's own features on scores of the joint model: it predicts without partners."""
    from rich.text import Text

    from splitvfl.app.distillation import distill as distil

    with told_if_stopped("nothing was written"):
        found = distil(run, scores=scores, modules=modules, seed=seed, notify=tell)
    output_console().print(_compared(found))
    output_console().print(Text(found.verdict()))
    next_steps(command_line("predict", found.student_folder, "--records", "FILE", "--out", "scores.csv"))


def _compared(found: Distilled) -> Table:
    """Return the test figures side by side."""
    from rich.table import Table

    table = Table("", f"test {found.metric}", "95 %", box=box.SIMPLE_HEAD, title=f"{found.party} without partners")
    for name, figure in found.figures.items():
        table.add_row(name, f"{figure.value:.3f}", f"{figure.low:.3f} to {figure.high:.3f}")
    return table
