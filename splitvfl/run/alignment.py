"""One party's alignment over links: meet the others, intersect, write the aligned order."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from splitvfl.data.alignment import AlignmentSchema, check_alignment_target, write_alignment
from splitvfl.data.id_column import AS_IT_STANDS, fingerprint, names_in, read_digests
from splitvfl.data.id_hints import written_oddly
from splitvfl.data.id_rules import ID_RULE
from splitvfl.data.schema import Role
from splitvfl.data.shard_files import held_shards
from splitvfl.data.sharding import HeldShards
from splitvfl.data.sources import chunks, find_files, open_all
from splitvfl.errors import ConfigError, DataError
from splitvfl.exchange.psi import Aligned, AlignmentProgress, Mode, Overlap, Terms, align
from splitvfl.exchange.psi_buckets import align_in_buckets
from splitvfl.messaging.conversation import Half
from splitvfl.net.driver import drive
from splitvfl.net.frames import Hello
from splitvfl.net.meeting import Meeting, Partner
from splitvfl.net.tls import Credentials, identities
from splitvfl.run.bucket_folder import BucketFolder, folder_of_buckets
from splitvfl.system.folder_lock import locked
from splitvfl.system.private_folder import private_folder

RUN = "alignment"
"""What links of an alignment say they are for; one for a training run is refused."""


@dataclass(frozen=True, kw_only=True)
class AlignmentJob:
    """What one party must know to align.

    Attributes:
        party: Its name.
        terms: What all must state alike.
        files: Its own CSV or Parquet files.
        id_column: The column that names the records.
        out: The folder to be made; ``None`` in the mode ``"size-only"``, and then only.
        peers: Who is talked to, with the address at which each is dialled; ``None``: it dials this party.
        identities: DNS names in the certificates of those that carry another than their party's name.
        listen: Where to listen for those that dial.
        credentials: The party's own.
        meeting_s: Seconds to wait for all parties to appear.
        message_s: Seconds to wait for each message, of 1 MiB at most.
        overwrite: Replace an alignment that is there already.
        shards: Which shards of how many the files are; ``None``: as they say of themselves, if they do.

    Raises:
        ConfigError: If these do not fit together.
    """

    party: str
    terms: Terms
    files: tuple[Path, ...]
    id_column: str
    out: Path | None
    peers: dict[str, str | None]
    identities: dict[str, str]
    listen: str | None
    credentials: Credentials
    meeting_s: float = 300.0
    message_s: float = 120.0
    overwrite: bool = False
    shards: HeldShards | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        if (self.out is None) != (self.terms.mode == "size-only"):
            raise ConfigError(
                "mode size-only writes nothing: give no folder"
                if self.out is not None
                else f"mode {self.terms.mode} writes the aligned order: name a folder"
            )
        waiting = [peer for peer, address in self.peers.items() if address is None]
        if waiting and self.listen is None:
            raise ConfigError(
                f"{waiting[0]} has no address, so it must dial: say where to listen, or where {waiting[0]} is"
            )
        if self.listen is not None and not waiting:
            raise ConfigError(f"all parties are dialled, so nobody will come to {self.listen}; leave it out")
        for name, seconds in (("for each party", self.meeting_s), ("for each message", self.message_s)):
            if not 0 < seconds < math.inf:
                raise ConfigError(f"expected a number of seconds above 0 to wait {name}, got {seconds:g}")
        strange = [peer for peer in self.identities if peer not in self.peers]
        if strange:
            raise ConfigError(f"{strange[0]} has an identity and is no peer; there are {', '.join(self.peers)}")

    @property
    def role(self) -> Role:
        """The party's role."""
        return "active" if self.party == self.terms.active else "passive"


def run_alignment(
    job: AlignmentJob, *, notify: Callable[[str], None] = lambda line: None, progress: AlignmentProgress | None = None
) -> Aligned | Overlap:
    """Align one party's records with the others', and write the aligned order.

    Args:
        job: What is to be done.
        notify: Told in one line what happens, for a person.
        progress: Called with the points computed so far, and those to be computed in all.

    Raises:
        DataError: If the files cannot be read, ids are missing or repeated, records belong to another shard, nothing is
            common, terms differ, or something is in the place of the folder.
        LinkError: If a party does not appear in time, or goes away.
        ProtocolError: If a party sends what does not belong here.
        ConfigError: If an address or an identity is none.
    """
    if job.out is not None:
        check_alignment_target(job.out, overwrite=job.overwrite)
    job = _with_shards(job)
    if job.terms.shards:
        notify(f"shard {job.terms.shards}")
    if job.terms.buckets > 1:
        return _run_in_buckets(job, notify, progress)
    digests = read_digests(job.files, job.id_column, case=job.terms.case)
    notify(f"{len(digests):,} records, column {job.id_column!r}")
    _tell_odd_ids(job, notify)
    half = align(job.party, tuple(job.peers), digests, job.terms, progress=progress)
    source = fingerprint(digests)
    del digests
    found: Aligned | Overlap = _talked(job, half, notify)
    if isinstance(found, Aligned):
        _write(job, found, source)
    return found


def _tell_odd_ids(job: AlignmentJob, notify: Callable[[str], None]) -> None:
    """Say which ids a partner may have written otherwise, out of this party's own alone, before anybody is met.

    How many of the partner's would match otherwise is not compared: that would be another intersection.
    """
    read = chunks(open_all(job.files), {job.id_column: AS_IT_STANDS})
    odd = written_oddly(name for chunk in read for name in names_in(chunk, job.id_column, job.terms.case))
    if odd:
        notify(f"{odd}; '007', '7.0' and '7' are three ids: all parties must write them alike")


def _with_shards(job: AlignmentJob) -> AlignmentJob:
    """Have the terms say which shards are aligned, if not all records are, after a look at whether all belong there."""
    noted = held_shards(find_files(job.files), id_column=job.id_column, case=job.terms.case)
    if job.shards is not None and noted not in (None, job.shards):
        raise DataError(f"{job.files[0].name} says that it is shard {noted}, and it was given as shard {job.shards}")
    held = noted or job.shards  # files say by which rule they were divided
    if held is None:
        return job
    held.check(job.files, job.id_column, case=job.terms.case)
    return replace(job, terms=replace(job.terms, shards=str(held)))


def _run_in_buckets(job: AlignmentJob, notify: Callable[[str], None], progress: AlignmentProgress | None) -> Aligned:
    """Align bucket by bucket; what is done stays when it is broken off, and the same command goes on."""
    assert job.out is not None, "the mode writes an order"
    folder = folder_of_buckets(job.out)
    private_folder(folder)
    with locked(folder / "buckets"):
        store = BucketFolder(
            folder,
            job.files,
            job.id_column,
            case=job.terms.case,
            buckets=job.terms.buckets,
            terms={"party": job.party, "peers": sorted(job.peers), "terms": job.terms.agreed()},
            overwrite=job.overwrite,
        )
        notify(f"{int(store.sizes.sum()):,} records, column {job.id_column!r}, in {job.terms.buckets} buckets")
        half = align_in_buckets(job.party, tuple(job.peers), store, job.terms, progress=progress, notify=notify)
        found: Aligned = _talked(job, half, notify)
        _write(job, found, store.fingerprint)
        store.remove()
    return found


def _talked(job: AlignmentJob, half: Half, notify: Callable[[str], None]) -> Any:
    """Meet the others, and return what comes of a half of the alignment."""
    with _meeting(job, notify) as meeting, meeting.meet() as links:
        # The active party says nothing before everybody is there: as long as it waits for them, the others wait for it.
        patience = job.message_s if job.role == "active" else max(job.meeting_s, job.message_s)
        return drive(half, party=job.party, links=links, timeout=job.message_s, patience=patience)


def terms_of(*, active: str, mode: str, padding: float, fold_case: bool, buckets: int) -> Terms:
    """Return the terms that a command's options come to.

    Raises:
        ArgumentError: As :class:`~splitvfl.exchange.psi.Terms` does, if the mode is none, among others.
    """
    return Terms(
        active=active,
        mode=cast("Mode", mode),  # checked there
        padding=padding,
        case="folded" if fold_case else "kept",
        buckets=buckets,
    )


def peers_of(texts: Sequence[str]) -> dict[str, str | None]:
    """Return addresses by party out of ``"telecom=telecom.example:7000"``, and ``None`` out of ``"telecom"``.

    Raises:
        ConfigError: If one is written otherwise, or named twice.

    >>> peers_of(["telecom=telecom.example:7000", "shop"])
    {'telecom': 'telecom.example:7000', 'shop': None}
    """
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, address = text.partition("=")
        if not name or ":" in name or (equals and not address):
            raise ConfigError(f"expected a peer like telecom=telecom.example:7000, or its name alone, got {text!r}")
        if name in found:
            raise ConfigError(f"peer {name} was named twice")
        found[name] = address or None
    return found


def _meeting(job: AlignmentJob, notify: Callable[[str], None]) -> Meeting:
    names = identities({peer: job.identities.get(peer) for peer in job.peers})
    # Those that dial are waited for last: meanwhile they can.
    peers = sorted(job.peers.items(), key=lambda peer: peer[1] is None)
    return Meeting(
        Hello(job.party, RUN, job.role),
        [Partner(peer, names[peer], address) for peer, address in peers],
        job.credentials,
        listen=job.listen,
        wait_s=job.meeting_s,
        notify=notify,
    )


# Modes of which rows are kept; of "size-only" there are none.
_KEPT: Final[Mapping[Mode, Literal["both", "padded"]]] = {"both": "both", "padded": "padded"}


def _write(job: AlignmentJob, found: Aligned, source: str) -> None:
    assert job.out is not None, "the job was checked"
    schema = AlignmentSchema(
        party=job.party,
        role=job.role,
        sizes=dict(found.sizes),
        shared=dict(found.shared),
        mode=_KEPT[job.terms.mode],
        padding=job.terms.padding,
        records=len(found.ids),
        dummies=found.dummies,
        digest=found.digest,
        files=tuple(file.name for file in job.files),
        id_column=job.id_column,
        case=job.terms.case,
        id_rule=ID_RULE,
        source=source,
        secret=secrets.token_hex(32),
        shards=job.terms.shards,
    )
    write_alignment(job.out, found.rows, found.ids, schema, overwrite=job.overwrite)


def described(job: AlignmentJob, found: Aligned | Overlap) -> Iterator[str]:
    """Yield the lines that say what came of it, and who knows what now."""
    sizes = ", ".join(f"{name} {size:,}" for name, size in found.sizes.items())
    yield f"records: {sizes}"
    if isinstance(found, Overlap):
        for peer, common in found.shared.items():
            yield f"in common with {peer}: {common:,}; neither of you learned which"
        return
    for peer, common in found.shared.items():
        yield f"in common with {peer}: {common:,}"
    real = len(found.ids) - found.dummies
    share = 1 / (1 + job.terms.padding)
    match _KEPT[job.terms.mode], job.role:
        case "both", _:
            yield f"{job.out}: {real:,} records that all parties have"
        case "padded", "active":
            yield f"{job.out}: {real:,} records of yours, and {found.dummies:,} dummies that pass for yours"
        case "padded", "passive":
            who = f"about {share:.0%} are {job.terms.active}'s; you cannot tell which"
            yield f"{job.out}: {real:,} records, of which {who}"
    yield f"digest of the order, the same at all parties: {found.digest[:16]}"
