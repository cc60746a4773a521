"""The command line: it parses, calls, and prints. Results go to standard output, all else to standard error."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from splitvfl.app.log_file import STANDARD_ERROR, LogLevel, logging_to, refused_calls_told
from splitvfl.errors import ConfigError, SplitVFLError
from splitvfl.system.allocator import keep_large_blocks
from splitvfl.system.signals import stoppable

# Commands import what they need when they run: --help and list do not wait for torch.
if TYPE_CHECKING:
    from splitvfl.app.console import RunProgress
    from splitvfl.app.experiment import Variant
    from splitvfl.report.summary import RunSummary
    from splitvfl.run.training import TrainingProgress

_log = logging.getLogger("splitvfl.cli")

app = typer.Typer(
    name="splitvfl",
    help="Train a model over columns that belong to different organisations, and see what leaks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

synth = typer.Typer(help="Write synthetic data.", no_args_is_help=True)
app.add_typer(synth, name="synth")

# Two that put noise on gradients and on labels; in quotes, as a shell would take the brackets for its own.
_TO_COMPARE = "'none,axis-sumkl(detection_error=0.4),asymmetric-response(detection_error=0.4)'"

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings to change: train.lr=0.01 defenses.0.detection_error=0.3")
]
ExperimentFile = Annotated[Path, typer.Argument(help="The experiment, a YAML file.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in the same folder.")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 a mistake of the user's, 130 interrupted."""
    keep_large_blocks()
    with ExitStack() as log:
        code = _exit_code(argv, log)
        _log.info("ends with exit code %d", code)
    return code


def _exit_code(argv: Sequence[str] | None, log: ExitStack) -> int:
    try:
        with stoppable():
            app(args=None if argv is None else list(argv), prog_name="splitvfl", obj=log)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except SplitVFLError as error:
        # What it says may quote data: that is for the console.
        _log.error("%s; what is wrong is said on standard error", type(error).__name__)
        print(f"splitvfl: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        _log.error("%s; what is wrong is said on standard error", type(error).__name__)
        print(f"splitvfl: cannot read or write {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


@app.callback()
def options(
    context: typer.Context,
    log: Annotated[
        Path | None,
        typer.Option(
            envvar="SPLITVFL_LOG", metavar="FILE", help="Append to this file what happens, without data; - is stderr."
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="SPLITVFL_LOG_LEVEL", help="The least severe entries that are kept.")
    ] = LogLevel.INFO,
) -> None:
    """Begin the log, if there is to be one, for all of the command."""
    if log is not None:
        context.obj.enter_context(logging_to(log, log_level))
    if log != STANDARD_ERROR:
        context.obj.enter_context(refused_calls_told())
    _log.info("begins: %s", context.invoked_subcommand)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and the report.")] = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Three epochs instead of fifteen and forty.")] = False,
) -> None:
    """Show on real data what gradients leak, what defenses cost, and what costs nothing.

    Earlier demonstrations in the same folder are replaced.
    """
    from splitvfl.app.console import RunProgress
    from splitvfl.app.demo import demo_variants
    from splitvfl.app.experiment import run_variants
    from splitvfl.report.report import write_report
    from splitvfl.report.tables import summary_table
    from splitvfl.run.training import Interrupted

    planned = demo_variants(out, quick=quick)
    summaries = []
    runs = sum(len(group) for group in planned.values())
    anew = f"splitvfl demo starts anew; finished runs are in {out}"
    with _told_if_stopped(anew, Interrupted), RunProgress(_errors(), runs) as progress:
        for name, group in planned.items():
            summaries += run_variants(group, overwrite=True, progress=partial(_start, progress, name))
    Console().print(summary_table(summaries))
    _print_advice(summaries)
    folders = [variant.folder for group in planned.values() for variant in group]
    report = write_report(folders, out / "report.html", title="What gradients leak, and what stops it")
    _next_steps(
        f"{report}   (open it in a browser)",
        f"tensorboard --logdir {out}",
        "splitvfl list defenses",
        "splitvfl train scripts/experiments/digits.yaml",
        f"splitvfl compare scripts/experiments/digits.yaml --defenses {_TO_COMPARE} --seeds 3",
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
    from splitvfl.app.console import RunProgress
    from splitvfl.app.experiment import run_experiment
    from splitvfl.config.sections import load_config
    from splitvfl.run.training import Interrupted

    config = load_config(experiment, overrides or [])
    folder = out or Path("runs") / config.name
    again = _command("train", experiment, *(overrides or []), "--out", folder, "--resume")
    with _told_if_stopped(f"go on with: {again}; state in {folder}", Interrupted), RunProgress(_errors()) as progress:
        summary = run_experiment(
            config,
            folder,
            resume=resume,
            overwrite=overwrite,
            progress=progress.run(config.name),
            notify=progress.tell,
        )
    console = Console()
    _print_run(console, summary)
    for leak in (leak for party in summary.parties.values() for leak in party.features if leak.note):
        console.print(Text(f"{leak.attack}: {leak.note}."))
    steps = [f"splitvfl report {folder}", f"tensorboard --logdir {'runs' if out is None else folder}"]
    exchange = config.exchange.factory
    if summary.task == "binary" and not exchange.one_way and not exchange.limits_values:
        steps.append(f"splitvfl compare {experiment} --defenses {_TO_COMPARE} --seeds 3")
    _next_steps(*steps)


@app.command()
def party(
    experiment: Annotated[Path, typer.Argument(help="This party's own file, YAML.")],
    as_: Annotated[str, typer.Option("--as", help="Which party this is: its name, or active.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/NAME-PARTY.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew; every party must. Default: go on where all left off.")
    ] = False,
) -> None:
    """Train as one of several parties, each in its own process, over mutual TLS."""
    from splitvfl.app.console import RunProgress
    from splitvfl.app.deployment import coordinator_run, run_party
    from splitvfl.config.sections import load_config
    from splitvfl.run.training import Interrupted

    config = load_config(experiment, overrides or [])
    name = config.own_name(as_)
    if name == config.exchange.factory.third_party:
        served = coordinator_run(config, notify=_tell)
        with _told_if_stopped("start it again with the same command"):
            served.run()
        print(f"coordinator: {served.step} steps served")
        return
    folder = out or Path("runs") / f"{config.name}-{name}"
    again = f"go on with: {_command('party', experiment, *(overrides or []), '--as', name, '--out', folder)}"
    with (
        _told_if_stopped(f"{again}; state in {folder}", Interrupted, KeyboardInterrupt),
        RunProgress(_errors()) as progress,
    ):
        run, summary = run_party(
            config, name, folder, overwrite=overwrite, notify=progress.tell, progress=progress.run(name)
        )
    crossed = config.exchange.factory.one_way and summary is None
    done = "its activations have crossed, and nothing more is needed of it" if crossed else f"{run.step} steps done"
    print(f"{name}: {done}; the {'half' if crossed else 'trained half'} is in {folder / 'model'}")
    if summary is not None:
        _print_run(Console(), summary)
        _next_steps(f"splitvfl report {folder}", f"tensorboard --logdir {folder}")


@app.command()
def predict(
    experiment: Annotated[Path, typer.Argument(help="This party's own file, YAML.")],
    as_: Annotated[str, typer.Option("--as", help="Which party this is: its name, or active.")],
    overrides: Overrides = None,
    records: Annotated[
        Path | None, typer.Option(help="This party's new records: a file, or tables by `splitvfl ingest --like`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The scores, .csv or .parquet; at a party that gets them: the active one.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of the trained half. Default: runs/NAME-PARTY/model.")
    ] = None,
    aligned: Annotated[
        Path | None, typer.Option(help="The folder that `splitvfl align` wrote of the new records.")
    ] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="Column that names the records.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace scores that are there.")] = False,
) -> None:
    """Score new records as one of several parties, with the halves that they have trained."""
    from splitvfl.app.console import RowProgress
    from splitvfl.app.run_folder import MODEL_FOLDER
    from splitvfl.app.serving import PredictionFiles, prepare_prediction
    from splitvfl.config.sections import load_config

    config = load_config(experiment, overrides or [])
    name = config.own_name(as_)
    files = PredictionFiles(
        model=model or Path("runs") / f"{config.name}-{name}" / MODEL_FOLDER,
        records=records,
        out=out,
        aligned=aligned,
        id_column=id_column,
        overwrite=overwrite,
    )
    service = prepare_prediction(config, name, files, notify=_tell)
    for column, rows in service.scored.unknown.items():
        _tell(f"{column}: {rows} records have a value that training did not know")
    count = service.scored.data.test.count
    with _told_if_stopped("nothing was written"), RowProgress(_errors(), "scoring", count) as progress:
        service.run(progress)
    print(f"{name}: {count} records scored" + ("" if out is None else f"; the scores are in {out}"))


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
    from splitvfl.app.console import RunProgress
    from splitvfl.app.experiment import run_variants, variants
    from splitvfl.config.sections import load_config, parse_defenses
    from splitvfl.report.report import write_report
    from splitvfl.report.tables import comparison_table
    from splitvfl.run.training import Interrupted

    config = load_config(experiment, overrides or [])
    chosen = [[], list(config.defenses)] if defenses is None else parse_defenses(defenses, folder=config.folder)
    folder = out or Path("runs") / f"{config.name}-compare"
    planned = variants(config, chosen, seeds, folder)
    again = f"go on with the same command and --resume; state in {folder}"
    with _told_if_stopped(again, Interrupted), RunProgress(_errors(), len(planned)) as progress:
        summaries = run_variants(
            planned, overwrite=overwrite, resume=resume, progress=partial(_start, progress, config.name)
        )
    Console().print(comparison_table(summaries))
    _print_advice(summaries)
    report = write_report([variant.folder for variant in planned], folder / "report.html", title=config.name)
    _next_steps(f"{report}   (open it in a browser)", f"tensorboard --logdir {folder}")


@app.command(name="list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(help="attacks, defenses, models, exchanges, losses, optimizers, embedding_optimizers or data"),
    ],
) -> None:
    """List what can be named in an experiment."""
    from splitvfl.config.registry import describe

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
    from splitvfl.report.report import write_report

    print(write_report(runs, out or runs[0] / "report.html", title=title))


@app.command()
def ingest(
    context: typer.Context,
    files: Annotated[
        list[str], typer.Argument(help="CSV, TSV (also .gz, .zst) and Parquet files, of the same columns.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to be made.")],
    label: Annotated[str | None, typer.Option(help="The label column.")] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="Column that names the records.")] = None,
    active: Annotated[str | None, typer.Option(help="Who holds the labels, and what else: 'shop=I[1-6]'.")] = None,
    passive: Annotated[
        list[str] | None, typer.Option(help="Another party and its columns: 'publisher=rest'. May be repeated.")
    ] = None,
    drop: Annotated[str, typer.Option(help="Columns that nobody gets. Lists are names and patterns, by comma.")] = "",
    task: Annotated[str, typer.Option(help="binary, multiclass or regression.")] = "binary",
    positive: Annotated[str | None, typer.Option(help="The positive class, where labels are not 0 and 1.")] = None,
    scale: Annotated[str, typer.Option(help="Of numbers: standard, minmax, log1p or none.")] = "standard",
    standard: Annotated[str, typer.Option(help="Columns scaled so instead.")] = "",
    minmax: Annotated[str, typer.Option(help="Columns scaled so instead.")] = "",
    log1p: Annotated[str, typer.Option(help="Columns scaled so instead.")] = "",
    missing: Annotated[
        str, typer.Option(help="Missing numbers: error, or indicator (median filled in, gaps marked).")
    ] = "error",
    categorical_columns: Annotated[str, typer.Option(help="Columns of numbers that hold categories.")] = "",
    text: Annotated[str, typer.Option(help="Columns of CSV files to read as text whatever they look like.")] = "",
    min_count: Annotated[int, typer.Option(help="Training rows that a category needs to have a code.")] = 1,
    buckets: Annotated[int | None, typer.Option(help="Hash categories to so many codes, and list none.")] = None,
    hash_fields: Annotated[str | None, typer.Option(help="Hash these columns only.")] = None,
    hash_key_file: Annotated[Path | None, typer.Option(help="Secret to hash with, 16 bytes at least.")] = None,
    test_fraction: Annotated[float, typer.Option(help="Expected share of test records.")] = 0.1,
    split_seed: Annotated[int, typer.Option(help="Decides which; parties that agree on it split alike.")] = 0,
    split_column: Annotated[str | None, typer.Option(help="Column that decides it instead.")] = None,
    test_value: Annotated[str, typer.Option(help="What that column holds in test rows.")] = "test",
    names: Annotated[str | None, typer.Option(help="Column names of CSV files without a header line.")] = None,
    like: Annotated[
        Path | None, typer.Option(help="Encode like these earlier tables; all records become test records.")
    ] = None,
    aligned: Annotated[
        Path | None, typer.Option(help="Take aligned rows only, in their order: the folder that `align` wrote.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write files of any size as tables to train on, one folder per party."""
    from splitvfl.app.console import IngestProgress
    from splitvfl.data import ingest as ingesting
    from splitvfl.data.alignment import aligned_rows
    from splitvfl.data.ingest.words import claims_of, described, hashing_of, names_of, scales_of, secret_in
    from splitvfl.data.spec import TableSpec

    secret = None if hash_key_file is None else secret_in(hash_key_file)
    rows = None if aligned is None else aligned_rows(aligned, files)
    with _told_if_stopped(f"nothing was written to {out}"), IngestProgress(_errors()) as progress:
        if like is not None:
            _only_with_like(context)
            done = ingesting.ingest_like(
                files,
                out,
                like=like,
                hash_secret=secret,
                header=names_of(names),
                aligned=rows,
                overwrite=overwrite,
                progress=progress,
            )
        else:
            spec = TableSpec(
                source=files,
                header=names_of(names),
                label=label,
                task=task,  # type: ignore[arg-type]  # checked there
                positive=positive,
                id_column=id_column if id_column is not None or rows is None else rows.schema.id_column,
                drop=drop,
                test_fraction=test_fraction,
                split_seed=split_seed,
                split_column=split_column,
                test_value=test_value,
                scale=scale,  # type: ignore[arg-type]  # checked there
                scale_columns=scales_of(standard=standard, minmax=minmax, log1p=log1p),
                missing=missing,  # type: ignore[arg-type]  # checked there
                categorical_columns=categorical_columns,
                text_columns=text,
                min_count=min_count,
            )
            done = ingesting.ingest(
                spec,
                claims_of(active, passive or [], label),
                out,
                hashing=hashing_of(buckets, hash_fields, secret),
                aligned=rows,
                overwrite=overwrite,
                progress=progress,
            )
    for line in described(done):
        print(line)
    if done.can_be_trained_on:
        _next_steps(f"splitvfl train EXPERIMENT.yaml   (with data: {{name: tables, path: {out}}})")


@app.command()
def certs(
    names: Annotated[list[str], typer.Argument(help="The parties.")],
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("certs"),
    days: Annotated[int, typer.Option(help="How long they are valid.")] = 30,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A further name in a party's certificate: telecom=vfl.telecom.example. May be repeated."),
    ] = None,
    keep_ca_key: Annotated[
        bool, typer.Option("--keep-ca-key", help="Keep what signs, to add parties later. Default: throw it away.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace all, with a new authority.")] = False,
) -> None:
    """Make certificates for development: an authority, and a key for each party."""
    from splitvfl.net.certs import make_certificates

    made = make_certificates(
        out, names, hosts=_by_party(host or []), days=days, keep_ca_key=keep_ca_key, overwrite=overwrite
    )
    for name, files in made.parties.items():
        print(f"{name} gets {made.roots} {files.certificate} {files.key}")
    print("Nobody else gets a .key file; its owner keeps it readable by nobody else (mode 600).")
    if made.authority_key is not None:
        print(f"{made.authority_key}: whoever has it can pass for any party; it goes to none.")
    print(f"For development only, valid until {made.valid_until:%Y-%m-%d %H:%M} UTC. See docs/certificates.md.")


@app.command()
def align(
    files: Annotated[list[Path], typer.Argument(help="Your CSV or Parquet files, of the same columns.")],
    id_column: Annotated[str, typer.Option("--id", help="Column that names the records.")],
    party: Annotated[str, typer.Option("--as", help="Your name.")],
    active: Annotated[str, typer.Option(help="The party with the labels; all must say the same.")],
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Another party: telecom=telecom.example:7000, or its name if it dials you. May be repeated."),
    ] = None,
    listen: Annotated[str | None, typer.Option(help="Where to wait for those that dial you: :7000")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to be made. Default: aligned/NAME.")] = None,
    mode: Annotated[str, typer.Option(help="Who learns what: both, size-only or padded.")] = "both",
    padding: Annotated[float, typer.Option(help="Dummies per common record, in mode padded.")] = 0.0,
    fold_case: Annotated[bool, typer.Option("--fold-case", help="Letter case of ids does not count.")] = False,
    certificates: Annotated[Path, typer.Option(help="Folder with ca.pem, NAME.pem and NAME.key.")] = Path("certs"),
    identity: Annotated[
        list[str] | None,
        typer.Option(help="Name in a party's certificate, if not its own: telecom=vfl.telecom.example."),
    ] = None,
    plaintext: Annotated[
        bool, typer.Option("--plaintext-on-loopback", help="No certificates: for trials on one machine only.")
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for all parties to appear.")] = 300.0,
    overwrite: Overwrite = False,
) -> None:
    """Find the records that all parties have, without showing the others, and agree on an order."""
    from splitvfl.app.console import AlignProgress
    from splitvfl.exchange.psi import Terms
    from splitvfl.net.tls import Identity, Plaintext
    from splitvfl.run.alignment import AlignmentJob, described, peers_of, run_alignment

    names = {name: carried for name, carried in peers_of(identity or []).items() if carried is not None}
    own_name = names.pop(party, None)
    job = AlignmentJob(
        party=party,
        terms=Terms(
            active=active,
            mode=mode,  # type: ignore[arg-type]  # checked there
            padding=padding,
            case="folded" if fold_case else "kept",
        ),
        files=tuple(files),
        id_column=id_column,
        out=out if out is not None or mode == "size-only" else Path("aligned") / party,
        peers=peers_of(peer or ([] if party == active else [active])),
        identities=names,
        listen=listen,
        credentials=Plaintext(True) if plaintext else Identity.load(party, folder=certificates, identity=own_name),
        meeting_s=wait,
        overwrite=overwrite,
    )
    with _told_if_stopped("nothing was written"), AlignProgress(_errors()) as progress:
        found = run_alignment(job, notify=progress.tell, progress=progress)
    for line in described(job, found):
        print(line)
    if job.out is not None:
        _next_steps(f"splitvfl party EXPERIMENT.yaml --as {party}   (with data: {{..., aligned: {job.out}}})")


@synth.command()
def clicks(
    rows: Annotated[int, typer.Option(help="How many.")],
    out: Annotated[Path, typer.Option(help="The file: .parquet, .csv, .csv.gz or .csv.zst.")] = Path("clicks.parquet"),
    seed: Annotated[int, typer.Option(help="Decides everything else.")] = 0,
    positive_share: Annotated[float, typer.Option(help="Expected share of clicks.")] = 0.25,
    bayes_auc: Annotated[float, typer.Option(help="AUC that the best model can reach.")] = 0.8,
    fields: Annotated[int, typer.Option(help="Categorical columns, C1 and so on.")] = 26,
    numbers: Annotated[int, typer.Option(help="Counts, I1 and so on.")] = 13,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Write clicks in the form of Criteo's, with a known Bayes AUC, of any number of rows."""
    from splitvfl.app.console import RowProgress
    from splitvfl.data.clicks import Clicks, write_clicks

    made = Clicks(rows, seed=seed, positive_share=positive_share, bayes_auc=bayes_auc, fields=fields, numbers=numbers)
    begun = time.monotonic()
    with RowProgress(_errors(), f"writing {out}", rows) as progress:
        found = write_clicks(out, made, overwrite=overwrite, progress=progress)
    print(f"{out}: {rows:,} rows, {rows / (time.monotonic() - begun):,.0f} a second")
    print(f"clicks: {found.positives:,} ({found.positives / rows:.2%})")
    low, high = found.interval
    print(f"Bayes AUC: {found.auc:.4f} (95 % interval {low:.4f} to {high:.4f}); no model can do better on new rows")
    print(f"AUC of the true probabilities on these labels: {found.drawn_auc:.4f}")
    parties = ["--label", "label", "--id", "id", "--active", "shop=I[1-6]", "--passive", "publisher=rest"]
    encoding = ["--scale", "log1p", "--missing", "indicator", "--min-count", 5]
    _next_steps(_command("ingest", out, *parties, *encoding, "--out", "tables"))


def _errors() -> Console:
    return Console(stderr=True)


def _tell(line: str) -> None:
    _errors().print(Text(line), soft_wrap=True)


def _by_party(hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of ``--host PARTY=NAME``."""
    found: dict[str, list[str]] = {}
    for text in hosts:
        party, equals, host = text.partition("=")
        if not (party and equals and host):
            raise ConfigError(f"--host: expected PARTY=NAME like telecom=vfl.telecom.example, got {text!r}")
        found.setdefault(party, []).append(host)
    return found


def _only_with_like(context: typer.Context) -> None:
    """Refuse settings that the earlier ingest has settled."""
    allowed = {"files", "out", "like", "aligned", "hash_key_file", "names", "overwrite"}
    given = [
        name
        for name in context.params
        if name not in allowed and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        flags = ", ".join("--" + ("id" if name == "id_column" else name.replace("_", "-")) for name in given)
        raise ConfigError(f"{flags}: settled when the tables that --like names were ingested; leave it out")


def _start(progress: RunProgress, name: str, variant: Variant) -> TrainingProgress:
    return progress.run(f"{name}, {variant.label}")


@contextmanager
def _told_if_stopped(hint: str, *by: type[BaseException]) -> Iterator[None]:
    """End the command with exit code 130 and a hint if its block is stopped: by Ctrl-C, if nothing else is named."""
    stops = by or (KeyboardInterrupt,)
    try:
        yield
    except stops:
        print(f"splitvfl: stopped; {hint}", file=sys.stderr)
        raise typer.Exit(130) from None


def _print_run(console: Console, summary: RunSummary) -> None:
    from splitvfl.report.findings import sending_note, stopping_note, verdict
    from splitvfl.report.tables import summary_table

    console.print(summary_table([summary]))
    for said in filter(None, [verdict(summary), stopping_note(summary), sending_note(summary), *summary.notes]):
        console.print(Text(said))


def _print_advice(summaries: Sequence[RunSummary]) -> None:
    from splitvfl.report.findings import advice, headline
    from splitvfl.report.rows import group_runs

    console = Console()
    for group in group_runs(summaries):
        said = advice(group) or (headline(group.runs[0]) if len(group.runs) == 1 else "")
        if said:
            console.print(Text(f"\n{group.title}, {group.subtitle}: {said}"))


def _command(*words: object) -> str:
    return shlex.join(["splitvfl", *map(str, words)])


def _next_steps(*commands: str) -> None:
    """Print what to try next; long commands are never broken, so that they can be copied."""
    print()
    for number, command in enumerate(commands):
        print(f"{'next:' if number == 0 else '     '} {command}")
