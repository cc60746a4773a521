"""The command that keeps answering."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitvfl.cli.console import ModuleSources, Overrides, importing, tell


def serve(
    run: Annotated[Path, typer.Argument(help="The folder of this party's networked run, as in runs/credit-bank.")],
    as_: Annotated[
        str | None, typer.Option("--as", help="Which party this is: its name, or active. Default: whose run it is.")
    ] = None,
    overrides: Overrides = None,
    modules: ModuleSources = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="At the label owner: the address for requests.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Own records, a file or tables: needed at a passive party.")
    ] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="Column that names the records.")] = None,
    fold_case: Annotated[
        bool | None, typer.Option("--fold-case/--keep-case", help="Whether letter case counts in ids; all alike.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that requests must carry; readable by its owner only.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate of the HTTP service, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM, readable by its owner only.")] = None,
    per_minute: Annotated[
        int, typer.Option(min=1, help="At a passive party: records that it looks up in a minute, at most.")
    ] = 6_000,
    per_day: Annotated[
        int, typer.Option(min=1, help="At a passive party: records that it looks up in a day (UTC), at most.")
    ] = 100_000,
    batch: Annotated[
        int, typer.Option(min=1, max=4096, help="Records of several requests that go out in one message, at most.")
    ] = 1024,
    wait_ms: Annotated[
        float, typer.Option(min=0, max=1000, help="Milliseconds for which a request waits for others to go along.")
    ] = 2.0,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds that partners may take to answer.")] = 10.0,
    not_covered: Annotated[
        bool,
        typer.Option(
            "--not-covered",
            help="Answer although a training with calculated noise put some by for splitvfl predict.",
        ),
    ] = False,
) -> None:
    """Score records on request, with the partners linked: JSON over HTTP at the label party, until it is stopped."""
    with importing():
        from splitvfl.app.http_access import HttpSettings
        from splitvfl.app.online import ServeSettings, prepare_service
        from splitvfl.errors import ConfigError
        from splitvfl.run.ask_limits import AskLimits

    door = None
    if http is not None:
        door = HttpSettings(http, token_file, tls_certificate, tls_key)
    elif token_file or tls_certificate or tls_key:
        raise ConfigError("--token-file, --tls-certificate and --tls-key say how requests come: give --http too")
    settings = ServeSettings(
        http=door,
        records=records,
        id_column=id_column,
        case=None if fold_case is None else "folded" if fold_case else "kept",
        limits=AskLimits(per_minute, per_day),
        most_rows=batch,
        gather_s=wait_ms / 1000,
        timeout_s=timeout,
        not_covered=not_covered,
    )
    prepare_service(run, as_, settings, overrides=tuple(overrides or ()), modules=modules, notify=tell).run()
