"""Commands that make tables: from files of any size, or of nothing but chance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitvfl.cli.console import Overwrite, command_line, errors_console, next_steps, say, told_if_stopped
from splitvfl.data.spelling import as_flag, settings_written
from splitvfl.errors import ConfigError

if TYPE_CHECKING:
    from splitvfl.data.ingest.shards import StatisticsReport


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
    unlabelled: Annotated[
        str, typer.Option(help="Records without a label: error, or drop (outcomes that are not known yet).")
    ] = "error",
    scale: Annotated[str, typer.Option(help="Of numbers: standard, minmax, log1p or none.")] = "standard",
    standard: Annotated[str, typer.Option(help="Columns scaled so instead.")] = "",
    minmax: Annotated[str, typer.Option(help="Columns scaled so instead.")] = "",
    log1p: Annotated[str, typer.Option(help="Columns scaled so instead.")] = "",
    ranges: Annotated[
        Path | None, typer.Option(help="Public bounds of every column of numbers, in place of statistics: a CSV file.")
    ] = None,
    missing: Annotated[
        str, typer.Option(help="Missing numbers: error, or indicator (median filled in, gaps marked).")
    ] = "error",
    categorical_columns: Annotated[str, typer.Option(help="Columns of numbers that hold categories.")] = "",
    text: Annotated[str, typer.Option(help="Columns of CSV files to read as text whatever they look like.")] = "",
    missing_values: Annotated[
        str, typer.Option(help="Cells that say that nothing is known, beside the usual ones: '?,-'.")
    ] = "",
    decimal: Annotated[str | None, typer.Option(help="The decimal separator of numbers: '.' or ','.")] = None,
    thousands: Annotated[
        str | None, typer.Option(help="What stands between groups of three digits: ',', '.', ' ' or an apostrophe.")
    ] = None,
    units: Annotated[
        str, typer.Option(help="What stands before or behind numbers: '$,%,kg'; () for accounting brackets.")
    ] = "",
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
    statistics_only: Annotated[
        str | None, typer.Option(help="These files are shard 3/8 (from 0): write what they say of columns to --out.")
    ] = None,
    statistics: Annotated[
        list[Path] | None,
        typer.Option(help="Encode a shard by the statistics of all shards: the folder that holds theirs."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write files of any size as tables to train on, one folder per party."""
    from splitvfl.app.console import IngestProgress
    from splitvfl.data.alignment import aligned_rows
    from splitvfl.data.ingest import run as ingesting
    from splitvfl.data.ingest.shards import shard_statistics
    from splitvfl.data.ingest.words import (
        claims_of,
        described,
        hashing_of,
        names_of,
        read_shard,
        scales_of,
        secret_in,
    )
    from splitvfl.data.shard_files import check_noted
    from splitvfl.data.sources import find_files
    from splitvfl.data.spec import TableSpec

    _refuse_statistics(files)
    taken: StatisticsReport | None = None
    secret = None if hash_key_file is None else secret_in(hash_key_file)
    rows = None if aligned is None else aligned_rows(aligned, files)
    with (
        settings_written(as_flag),
        told_if_stopped(f"nothing was written to {out}"),
        IngestProgress(errors_console()) as progress,
    ):
        settled: dict[str, Any] = {"header": names_of(names), "hash_secret": secret}
        how: dict[str, Any] = {"aligned": rows, "overwrite": overwrite, "progress": progress}
        if like is not None:
            _only_with(context, "like", "the tables that --like names were ingested")
            done = ingesting.ingest_like(files, out, like=like, **settled, **how)
        elif statistics:
            _only_with(context, "statistics", "the statistics were taken")
            done = ingesting.ingest_shard(files, out, statistics=statistics, **settled, **how)
        else:
            spec = TableSpec(
                source=files,
                header=names_of(names),
                label=label,
                task=task,  # type: ignore[arg-type]  # checked there
                positive=positive,
                unlabelled=unlabelled,  # type: ignore[arg-type]  # checked there
                id_column=id_column if id_column is not None or rows is None else rows.schema.id_column,
                drop=drop,
                test_fraction=test_fraction,
                split_seed=split_seed,
                split_column=split_column,
                test_value=test_value,
                scale=scale,  # type: ignore[arg-type]  # checked there
                scale_columns=scales_of(standard=standard, minmax=minmax, log1p=log1p),
                ranges=ranges,
                missing=missing,  # type: ignore[arg-type]  # checked there
                categorical_columns=categorical_columns,
                text_columns=text,
                missing_values=names_of(missing_values or None) or (),
                decimal=decimal,
                thousands=thousands,
                units=names_of(units or None) or (),
                min_count=min_count,
            )
            parties = claims_of(active, passive or [], label)
            hashing = hashing_of(buckets, hash_fields, secret)
            if statistics_only is None:
                done = ingesting.ingest(spec, parties, out, hashing=hashing, **how)
            else:
                shard = read_shard(statistics_only)
                check_noted(find_files(files), shard=shard.number, shards=shard.of)
                taken = shard_statistics(spec, parties, out, shard=shard, hashing=hashing, **how)
    if taken is not None:
        _tell_statistics(taken, files, names=names, hash_key_file=hash_key_file, aligned=aligned)
        return
    for line in described(done):
        say(line)
    if like is not None and len(done.parties) > 1:
        next_steps(f"{command_line('predict', 'RUN', '--records', out, '--out', 'scores.csv')}   (a run on {like})")
    if done.can_be_trained_on:
        next_steps(f"splitvfl train EXPERIMENT.yaml   (with data: {{name: tables, path: {out}}})")


def _refuse_statistics(files: Sequence[str]) -> None:
    """Refuse folders of statistics among the files: a pattern after --statistics that the shell has spelt out."""
    from splitvfl.data.ingest.statistics import is_statistics

    odd = [file for file in files if is_statistics(Path(file))]
    if odd:
        parent = Path(odd[0]).parent
        raise ConfigError(f"{odd[0]} holds statistics and no records; name the folder of all: --statistics {parent}")


def _tell_statistics(taken: StatisticsReport, files: Sequence[str], **again: str | Path | None) -> None:
    """Print of what statistics were taken, and what comes next."""
    from splitvfl.data.ingest.words import described_statistics

    for line in described_statistics(taken):
        say(line)
    given = [word for name, value in again.items() if value is not None for word in (as_flag(name), value)]
    where = taken.folder.parent
    command = command_line("ingest", *files, *given, "--statistics", where, "--out", f"tables-{taken.shard.number}")
    next_steps(f"{command}   (once the statistics of all {taken.shard.of} shards are in {where})")


def _only_with(context: typer.Context, flag: str, settled: str) -> None:
    """Refuse settings that are settled by what a flag names."""
    allowed = {"files", "out", flag, "aligned", "hash_key_file", "names", "overwrite"}
    given = [
        name
        for name in context.params
        if name not in allowed and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        flags = ", ".join("--" + ("id" if name == "id_column" else name.replace("_", "-")) for name in given)
        raise ConfigError(f"{flags}: settled when {settled}; leave it out")


def shard(
    files: Annotated[
        list[str], typer.Argument(help="CSV, TSV (also .gz, .zst), Parquet and Arrow files, of the same columns.")
    ],
    id_column: Annotated[str, typer.Option("--id", help="Column that names the records; it decides.")],
    shards: Annotated[int, typer.Option(help="Into how many; all parties must say the same.")],
    out: Annotated[Path, typer.Option(help="The folder to be made.")] = Path("sharded"),
    fold_case: Annotated[
        bool, typer.Option("--fold-case", help="Letter case of ids does not count, as for `align`.")
    ] = False,
    text: Annotated[str, typer.Option(help="Columns of CSV files to keep as text whatever they look like.")] = "",
    drop: Annotated[str, typer.Option(help="Columns to leave out. Lists are names and patterns, by comma.")] = "",
    names: Annotated[str | None, typer.Option(help="Column names of CSV files without a header line.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace earlier shards in the same folder.")] = False,
) -> None:
    """Divide the records of files of any size into shards, alike at all parties: one file for each machine."""
    from splitvfl.app.console import IngestProgress
    from splitvfl.data.ingest.words import names_of
    from splitvfl.data.shard_words import described
    from splitvfl.data.shard_writing import shard as divide

    with (
        settings_written(as_flag),
        told_if_stopped(f"nothing was written to {out}"),
        IngestProgress(errors_console()) as progress,
    ):
        done = divide(
            files,
            out,
            id_column=id_column,
            shards=shards,
            case="folded" if fold_case else "kept",
            text_columns=text,
            drop=drop,
            header=names_of(names),
            overwrite=overwrite,
            progress=progress,
        )
    for line in described(done):
        say(line)
    folded = ["--fold-case"] if fold_case else []
    example = command_line("align", out / "shard-0.parquet", "--id", id_column, *folded)
    next_steps(f"{example} --as NAME ...   (with shard 0 of every party, and so on)")


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
    with RowProgress(errors_console(), f"writing {out}", rows) as progress:
        found = write_clicks(out, made, overwrite=overwrite, progress=progress)
    print(f"{out}: {rows:,} rows, {rows / (time.monotonic() - begun):,.0f} a second")
    print(f"clicks: {found.positives:,} ({found.positives / rows:.2%})")
    low, high = found.interval
    print(f"Bayes AUC: {found.auc:.4f} (95 % interval {low:.4f} to {high:.4f}); no model can do better on new rows")
    print(f"AUC of the true probabilities on these labels: {found.drawn_auc:.4f}")
    parties = ["--label", "label", "--id", "id", "--active", "shop=I[1-6]", "--passive", "publisher=rest"]
    encoding = ["--scale", "log1p", "--missing", "indicator", "--min-count", 5]
    next_steps(command_line("ingest", out, *parties, *encoding, "--out", "tables"))
