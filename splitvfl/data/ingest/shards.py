"""What one shard of a table says of its columns, taken on the shard's own machine, to be merged with all others'."""

from __future__ import annotations

import glob
import hashlib
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from splitvfl.data.alignment import Alignment
from splitvfl.data.chunks import Kind, Source
from splitvfl.data.id_column import check_id_column
from splitvfl.data.id_rules import FIRST_RULE
from splitvfl.data.ingest.plan import (
    Hashing,
    Plan,
    check_ingested,
    needed_columns,
    open_sources,
    planned,
    text_columns,
    with_declared,
)
from splitvfl.data.ingest.progress import Progress, watched
from splitvfl.data.ingest.records import LabelCount
from splitvfl.data.ingest.settings import settings_of
from splitvfl.data.ingest.statistics import (
    COUNTS_FILE,
    STATISTICS_FILE,
    is_statistics,
    write_statistics,
)
from splitvfl.data.ingest.survey import Statistics, Survey, look
from splitvfl.data.schema import Part
from splitvfl.data.sources import known_kinds
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.spelling import setting
from splitvfl.data.writing import check_target, draft
from splitvfl.errors import ArgumentError, DataError
from splitvfl.learning.batches import MOST_SHARDS
from splitvfl.system.private_folder import make_parents

_PIECE = 8 << 20

HOLDS = "statistics of a shard"
"""What is in such a folder, in words."""


class Shard(NamedTuple):
    """Which shard of a table it is.

    Attributes:
        number: Its number, from 0.
        of: How many there are.
    """

    number: int
    of: int

    def check(self) -> None:
        """Check that there is such a shard.

        Raises:
            ArgumentError: If not.
        """
        if not 0 <= self.number < self.of <= MOST_SHARDS:
            raise ArgumentError(
                f"expected a shard from 0 to one below their number, which is {MOST_SHARDS} at most, got "
                f"{self.number} of {self.of}"
            )


@dataclass(frozen=True, kw_only=True)
class StatisticsReport:
    """Of what statistics were taken.

    Attributes:
        folder: Where they are.
        shard: Of which shard they are.
        rows: Records by part.
        numeric: Columns of numbers.
        categories: Different categories by column, where these are listed.
        blank: Columns without any value: what they hold is decided by the other shards.
        seconds: Time taken.
        read_bytes: Size of the files, in bytes.
    """

    folder: Path
    shard: Shard
    rows: Mapping[Part, int]
    numeric: int
    categories: Mapping[str, int]
    blank: tuple[str, ...]
    seconds: float
    read_bytes: int


def shard_statistics(
    spec: TableSpec,
    parties: Sequence[PartyClaim],
    out: str | os.PathLike[str],
    *,
    shard: Shard,
    hashing: Hashing | None = None,
    aligned: Alignment | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> StatisticsReport:
    """Write what one shard of a table says of its columns, for :func:`splitvfl.data.ingest.run.ingest_shard`.

    Rows are read once. Nothing of one shard decides how its cells become numbers: that is decided by all shards
    together. So a shard may lack training or test rows, a class, or any value of a column. The folder is for its owner
    only: it holds the categories of the training rows and how often each occurs. It appears when it is complete.

    Records need ids, and no id may be in two shards, which nobody can see from one: divide them by a hash of the id.

    Args:
        spec: As for :func:`splitvfl.data.ingest.run.ingest`, alike for all shards but for the source.
        parties: As there, alike for all shards.
        out: The folder to be made.
        shard: Which shard of how many this is.
        hashing: As there, alike for all shards.
        aligned: As there: the shard's own alignment.
        overwrite: Replace statistics that are there already.
        progress: Called after every chunk.

    Raises:
        ArgumentError: If an argument is out of its range, or two do not go together.
        DataError: If a file, a column or a cell is not what was asked for; the message says where it stands.
    """
    begun, target = time.monotonic(), Path(out)
    shard.check()
    check_ingested(spec, parties, aligned)
    if spec.unlabelled != "error":
        raise ArgumentError(f"{setting('unlabelled', spec.unlabelled)} is not for shards; take such records out before")
    if spec.id_column is None:
        raise ArgumentError(
            f"shards need a column that names the records ({setting('id_column')}): row numbers begin anew in each"
        )
    make_parents(target)  # the folder of all shards' statistics
    check_target(target, overwrite=overwrite, holds=HOLDS, recognised=is_statistics)
    sources = open_sources(spec, parties)
    spec = with_declared(spec, sources)
    kinds = _kinds(sources, spec, parties)
    names, where = sources[0].names, sources[0].name
    plan = planned(names, kinds, spec, parties, where=where, name="statistics", hashing=hashing, aligned=aligned)
    with draft(target, overwrite=overwrite, holds=HOLDS, recognised=is_statistics, private=True) as folder:
        scratch = folder / ".scratch"
        scratch.mkdir()
        learned = Statistics(plan, scratch)
        watch = watched(progress, "reading", sources, begun=0.0, ended=1.0)
        survey = look(sources, plan, scratch, statistics=learned, watch=watch)
        statistics = write_statistics(
            folder,
            learned,
            scratch,
            shard=shard.number,
            shards=shard.of,
            settings=settings_of(spec, parties, hashing, aligned=aligned is not None),
            names=sources[0].names,
            kinds=kinds,
            training_rows=survey.sizes["train"],
            test_rows=survey.sizes["test"],
            records=records_digest(plan, survey),
            labels=_labels(learned, spec),
        )
        shutil.rmtree(scratch)
    return StatisticsReport(
        folder=target,
        shard=shard,
        rows=survey.sizes,
        numeric=len(statistics.sums),
        categories={name: counts.different for name, counts in statistics.counts.items()},
        blank=statistics.blank,
        seconds=time.monotonic() - begun,
        read_bytes=sum(source.size for source in sources),
    )


def _kinds(sources: Sequence[Source], spec: TableSpec, parties: Sequence[PartyClaim]) -> dict[str, Kind | None]:
    """Return what columns hold; ``None`` for features without any value."""
    names, where = sources[0].names, sources[0].name
    needed = needed_columns(names, spec, parties, where=where)
    if spec.id_column is not None and spec.id_rule != FIRST_RULE:
        check_id_column(sources, spec.id_column)
    known = known_kinds(sources, needed, text=text_columns(names, spec, parties, where=where))
    roles = spec.roles(names, source=where)
    # Without a value, an id or a label is a mistake, of which the look at the rows says where it is.
    return {name: known.get(name, "number" if name in roles else None) for name in needed}


def _labels(learned: Statistics, spec: TableSpec) -> tuple[LabelCount, ...]:
    found = () if learned.labels is None else tuple(learned.labels.counted)
    odd = [label.value for label in found if isinstance(label.value, float) and not math.isfinite(label.value)]
    if odd:
        raise DataError(f"label column {spec.label!r} holds {odd[0]}; expected finite numbers or text")
    return found


def records_digest(plan: Plan, survey: Survey) -> str:
    """Return SHA-256 of the ids of some records, in their order, and of which are test records."""
    digest = hashlib.sha256((plan.ids.digest or "").encode())
    for path in (survey.ids, survey.mask):
        with path.open("rb") as file:
            while data := file.read(_PIECE):
                digest.update(data)
    return digest.hexdigest()


def find_statistics(wanted: Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Return the folders of statistics that names and shell-style patterns mean, and folders that hold such folders.

    Raises:
        DataError: If one of them means none.
    """
    found: list[Path] = []
    for one in wanted:
        name = os.path.expanduser(one)
        hits = [Path(name)] if os.path.isdir(name) else [Path(hit) for hit in sorted(glob.glob(name))]
        folders = [folder for hit in hits for folder in ([hit] if _was_one(hit) else _within(hit))]
        if not folders:
            raise DataError(
                f"expected statistics of shards at {name}, as `splitvfl ingest --statistics-only` writes them, or a "
                "folder of them, and there are none"
            )
        found += folders
    return tuple(found)


def _within(folder: Path) -> list[Path]:
    """Return the statistics in a folder; what has a hidden name is being written."""
    return [path for path in sorted(folder.glob("*")) if not path.name.startswith(".") and _was_one(path)]


def _was_one(folder: Path) -> bool:
    """Return whether a folder holds statistics, damaged ones included: these are then refused by their name."""
    return (folder / STATISTICS_FILE).exists() or (folder / COUNTS_FILE).exists()
