"""Tables that are loaded and ingested with settings by name, as the commands do it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from splitvfl.data.alignment import Alignment, AlignmentSchema, write_alignment
from splitvfl.data.id_column import fingerprint, order_digest, read_digests
from splitvfl.data.ingest import run as ingesting
from splitvfl.data.ingest.run import IngestReport
from splitvfl.data.ingest.words import hashing_of
from splitvfl.data.partition import ColumnClaim
from splitvfl.data.party_file import PartyFile
from splitvfl.data.party_file import load_party as load_claimed
from splitvfl.data.spec import PartyClaim, TableSpec


def ingest(
    files: object,
    *,
    out: str | os.PathLike[str],
    active: ColumnClaim | None = None,
    active_name: str = "active",
    passive: Mapping[str, ColumnClaim] | None = None,
    **settings: Any,
) -> IngestReport:
    """Ingest files for an active party, if there is a label or it claims columns, and passive ones."""
    parties = [PartyClaim(name, "passive", columns) for name, columns in (passive or {}).items()]
    if active is not None or settings.get("label") is not None:
        parties.insert(0, PartyClaim(active_name, "active", () if active is None else active))
    hashing = [settings.pop(name, None) for name in ("buckets", "hash_fields", "hash_secret")]
    others = {name: settings.pop(name) for name in ("aligned", "progress") if name in settings}
    spec = TableSpec(source=files, **{"test_fraction": 0.1, **settings})
    return ingesting.ingest(spec, parties, out, hashing=hashing_of(*hashing), **others)


def align_rows(
    folder: Path, file: Path, *, rows: Sequence[int], ids: Sequence[int], overwrite: bool = False, **said: Any
) -> Alignment:
    """Write an alignment of a file's rows by the column ``customer``; unless it is said otherwise, the bank's."""
    digests = read_digests(file, "customer")
    facts: dict[str, Any] = {
        "party": "bank",
        "role": "active",
        "sizes": {said.get("party", "bank"): len(digests), "telecom": 9},
        "shared": {"telecom": len(ids)},
        "mode": "padded",
        "padding": 0.5,
        "records": len(ids),
        "dummies": sum(row < 0 for row in rows),
        "digest": order_digest(np.asarray(ids)),
        "files": (file.name,),
        "id_column": "customer",
        "case": "kept",
        "source": fingerprint(digests),
        "secret": secrets.token_hex(32),
    }
    schema = AlignmentSchema(**facts | said)
    return write_alignment(folder, np.array(rows), np.array(ids), schema, overwrite=overwrite)


def load_party(
    path: Path, *, name: str, role: Any, columns: ColumnClaim = "rest", aligned: Path | None = None, **settings: Any
) -> PartyFile:
    """Load one party's file."""
    return load_claimed(TableSpec(source=path, **settings), PartyClaim(name, role, columns), aligned=aligned)
