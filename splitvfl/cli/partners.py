"""Commands that come before training with partners: certificates, and the records that all have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitvfl.cli.console import Overwrite, command_line, errors_console, next_steps, say, told_if_stopped
from splitvfl.errors import ConfigError

if TYPE_CHECKING:
    from splitvfl.data.alignment import AlignmentSchema
    from splitvfl.run.alignment import AlignmentJob


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


def _by_party(hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of ``--host PARTY=NAME``."""
    found: dict[str, list[str]] = {}
    for text in hosts:
        party, equals, host = text.partition("=")
        if not (party and equals and host):
            raise ConfigError(f"--host: expected PARTY=NAME like telecom=vfl.telecom.example, got {text!r}")
        found.setdefault(party, []).append(host)
    return found


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
    buckets: Annotated[
        int,
        typer.Option(
            help="Divide ids into so many parts, aligned one by one: for millions of them, and to go on after a break."
        ),
    ] = 1,
    shard: Annotated[
        str | None, typer.Option(help="Which shard of how many, 3/8, of files that another tool has divided.")
    ] = None,
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
    """Find the records that all parties have, without showing the others, and agree on an order.

    If you align again with a changed list, your partner sees how the common records have changed.
    """
    from splitvfl.app.console import AlignProgress
    from splitvfl.data.alignment import read_alignment
    from splitvfl.data.sharding import HeldShards
    from splitvfl.net.tls import Identity, Plaintext
    from splitvfl.run.alignment import AlignmentJob, described, peers_of, run_alignment, terms_of

    names = {name: carried for name, carried in peers_of(identity or []).items() if carried is not None}
    own_name = names.pop(party, None)
    job = AlignmentJob(
        party=party,
        terms=terms_of(active=active, mode=mode, padding=padding, fold_case=fold_case, buckets=buckets),
        files=tuple(files),
        id_column=id_column,
        out=out if out is not None or mode == "size-only" else Path("aligned") / party,
        peers=peers_of(peer or ([] if party == active else [active])),
        identities=names,
        listen=listen,
        credentials=Plaintext(True) if plaintext else Identity.load(party, folder=certificates, identity=own_name),
        meeting_s=wait,
        overwrite=overwrite,
        shards=None if shard is None else HeldShards.read(shard),
    )
    kept = "nothing was written" if buckets == 1 else "buckets that are done are kept; resume with the same command"
    with told_if_stopped(kept), AlignProgress(errors_console()) as progress:
        found = run_alignment(job, notify=progress.tell, progress=progress)
    for line in described(job, found):
        say(line)
    if job.out is not None:
        next_steps(*_after_alignment(job, read_alignment(job.out).schema))


def _after_alignment(job: AlignmentJob, schema: AlignmentSchema) -> tuple[str, ...]:
    """Return what comes next: a training, or scores of new records; of a shard its statistics, as it is not alone."""
    number, _, of = schema.shards.partition(" of ")
    if not number.isdecimal():
        train = f"splitvfl party EXPERIMENT.yaml --as {job.party}   (to train, with data: {{..., aligned: {job.out}}})"
        if len(job.files) > 1:
            return (train,)
        scores = ("--out", "scores.csv") if job.role == "active" else ()
        own = ("--as", job.party, "--records", job.files[0], "--aligned", job.out or "")
        return train, f"{command_line('predict', 'EXPERIMENT.yaml', *own, *scores)}   (to score new records)"
    statistics = ("--statistics-only", f"{number}/{of}", "--out", f"stats/{number}")
    command = command_line("ingest", *job.files, "--aligned", job.out or "", *statistics)
    return (f"{command}   (with --{job.role} {job.party}=rest, and the other settings of ingest)",)
