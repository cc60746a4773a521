"""How ``--help`` shows commands: in which group, with which examples. What one does, its own docstring says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
from rich.markup import escape

BEGIN, TRAIN, USE, SEE, PARTNERS = (
    "Begin",
    "Train",
    "Use what was trained",
    "See what there is, and what leaked",
    "With partners, and with large files",
)


class Page(NamedTuple):
    """The group of a command, and commands that can be copied; with what a README or an example calls its files."""

    group: str
    examples: tuple[str, ...]


PAGES: Mapping[str, Page] = {
    "demo": Page(BEGIN, ("splitvfl demo", "splitvfl demo --quick --out runs/look")),
    "examples": Page(BEGIN, ("splitvfl examples", "splitvfl examples breast_cancer --out experiments")),
    "init": Page(BEGIN, ("splitvfl init bank.csv telecom.csv",)),
    "check": Page(BEGIN, ("splitvfl check bank.yaml", "splitvfl check bank.yaml --as bank --connect")),
    "train": Page(
        TRAIN,
        (
            "splitvfl train breast_cancer.yaml",
            "splitvfl train breast_cancer.yaml train.lr=0.002 train.epochs=20 --out runs/longer",
            "splitvfl train breast_cancer.yaml --resume",
        ),
    ),
    "compare": Page(
        TRAIN,
        (
            "splitvfl compare breast_cancer.yaml --seeds 5",
            "splitvfl compare breast_cancer.yaml --defenses 'none,isotropic,sumkl(detection_error=0.3)'",
        ),
    ),
    "party": Page(TRAIN, ("splitvfl party bank.yaml --as bank", "splitvfl party bank.yaml --as bank --overwrite")),
    "predict": Page(USE, ("splitvfl predict bank.yaml --as bank --records new.csv --id customer --out scores.csv",)),
    "distill": Page(USE, ("splitvfl distill runs/bank",)),
    "serve": Page(USE, ("splitvfl serve runs/credit-bank --as bank --http 127.0.0.1:8080",)),
    "list": Page(
        SEE,
        (
            "splitvfl list defenses",
            "splitvfl list defenses asymmetric-response",
            "splitvfl list attacks GIA",
            "splitvfl list data",
        ),
    ),
    "schema": Page(SEE, ("splitvfl schema --out experiment.schema.json",)),
    "report": Page(SEE, ("splitvfl report runs/breast_cancer", "splitvfl report runs/a runs/b --out both.html")),
    "audit": Page(
        SEE,
        (
            "splitvfl audit breast_cancer.yaml",
            "splitvfl audit breast_cancer.yaml --strict --draws 1000000",
            "splitvfl audit bank.yaml --as bank",
        ),
    ),
    "forecast": Page(
        SEE,
        (
            "splitvfl forecast telecom.yaml --as telecom",
            "splitvfl forecast telecom.yaml --as telecom --model runs/credit-telecom/model --json forecast.json",
        ),
    ),
    "reconstruct": Page(
        SEE,
        (
            "splitvfl reconstruct runs/digits",
            "splitvfl reconstruct runs/digits --attacks rcc2,half-star --views scores --records 500",
            "splitvfl reconstruct runs/digits --transformed-weights rotated --json figures.json",
            "splitvfl reconstruct runs/may runs/june runs/july --attacks least-squares,rcc2",
        ),
    ),
    "reveal": Page(
        SEE,
        (
            "splitvfl reveal runs/credit-telecom --out telecom.safetensors",
            "splitvfl reveal runs/credit-telecom --out telecom.safetensors --transformed-weights rotated "
            "--experiment telecom.yaml",
        ),
    ),
    "ingest": Page(
        PARTNERS,
        (
            "splitvfl ingest clicks.parquet --label label --id id --passive publisher=rest --out tables",
            "splitvfl ingest new.parquet --like tables --out new-tables",
            "splitvfl ingest shard-3.parquet --id id --passive ads=rest --statistics-only 3/8 --out stats/3",
            "splitvfl ingest shard-3.parquet --statistics stats --out tables-3",
        ),
    ),
    "shard": Page(
        PARTNERS,
        (
            "splitvfl shard 'people-*.csv.gz' --id customer --shards 8 --out sharded",
            "splitvfl shard people.csv --id customer --shards 8 --text customer,postcode",
        ),
    ),
    "certs": Page(PARTNERS, ("splitvfl certs bank telecom --host telecom=telecom.example",)),
    "align": Page(
        PARTNERS,
        (
            "splitvfl align people.csv --id customer --as bank --active bank --peer telecom=telecom.example:7000",
            "splitvfl align clients.csv --id client --as telecom --active bank --listen :7000",
        ),
    ),
    "synth": Page(PARTNERS, ()),
    "synth clicks": Page(PARTNERS, ("splitvfl synth clicks --rows 1000000 --out clicks.parquet",)),
}


def lay_out(app: typer.Typer, *, before: str = "") -> None:
    """Show every command of an application in its group, with its examples below its options."""
    for command in app.registered_commands:
        _lay_out_one(command, f"{before}{command.name}")
    for group in app.registered_groups:
        _lay_out_one(group, f"{before}{group.name}")
        if group.typer_instance is not None:
            lay_out(group.typer_instance, before=f"{before}{group.name} ")


def _lay_out_one(command: Any, name: str) -> None:
    page = PAGES.get(name)
    if page is None:
        return
    if " " not in name:
        command.rich_help_panel = page.group
    if page.examples:
        # Each stands in a paragraph, as the lines of one are joined.
        command.epilog = "\n\n".join(["Examples:", *map(escape, page.examples)])
