"""From files to a table folder, in two looks at every row and bounded memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitvfl.data.alignment import Alignment
from splitvfl.data.chunks import Source
from splitvfl.data.drift import ColumnDrift, compared
from splitvfl.data.ingest.encode import Written, bytes_needed, data_schema, write_parties
from splitvfl.data.ingest.merging import AllShards
from splitvfl.data.ingest.plan import Hashing, PartyPlan, Plan, check_ingested, make_plan, open_sources, plan_like
from splitvfl.data.ingest.progress import IngestStatus, Progress, watched
from splitvfl.data.ingest.shards import find_statistics, records_digest
from splitvfl.data.ingest.survey import (
    FittedColumns,
    Statistics,
    Survey,
    check_parts,
    labelled_only,
    learned_before,
    look,
)
from splitvfl.data.labels import left_out
from splitvfl.data.schema import SCHEMA_FILE, Part, write_schema
from splitvfl.data.sources import open_all
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.tables import listed
from splitvfl.data.writing import check_space, check_target, draft
from splitvfl.errors import DataError

# Share of the work that is done when it is known how cells become numbers.
_LOOKED = 0.5


@dataclass(frozen=True, kw_only=True)
class PartyReport:
    """What one party got.

    Attributes:
        numeric: Numeric columns, marks of missing values included.
        fields: Number of codes by categorical field.
        unknown: Test records with code 0, by categorical field: values that were not listed.
        drift: Of files that were encoded like earlier ones: how columns differ from these, the worst first.
    """

    numeric: int
    fields: Mapping[str, int]
    unknown: Mapping[str, int]
    drift: tuple[ColumnDrift, ...] = ()


@dataclass(frozen=True, kw_only=True)
class IngestReport:
    """What was ingested.

    Attributes:
        folder: The table folder.
        rows: Records by part.
        parties: What each party got, in order.
        active: The party with the labels, if there is one.
        positive_share: Share of positive records; ``None`` but in a binary task.
        seconds: Time taken.
        read_bytes: Size of the files, in bytes.
        unlabelled: Records that were left out, as they have no label.
    """

    folder: Path
    rows: Mapping[Part, int]
    parties: Mapping[str, PartyReport]
    active: str | None
    positive_share: float | None
    seconds: float
    read_bytes: int
    unlabelled: int = 0

    @property
    def can_be_trained_on(self) -> bool:
        """Whether there are labels, a passive party, and training records."""
        return self.active is not None and len(self.parties) > 1 and self.rows["train"] > 0

    @property
    def rows_per_s(self) -> float:
        """Records per second."""
        return sum(self.rows.values()) / self.seconds


def ingest(
    spec: TableSpec,
    parties: Sequence[PartyClaim],
    out: str | os.PathLike[str],
    *,
    hashing: Hashing | None = None,
    aligned: Alignment | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> IngestReport:
    """Write files of any size as tables that training maps into memory: see :mod:`splitvfl.data.schema`.

    Rows are read twice, a chunk at a time. The first look takes ids, splits, and learns from the training rows what
    numbers are scaled and filled with and which categories there are; the second writes. Columns are encoded as by
    :class:`splitvfl.data.encoding.Encoding` with ``categorical="index"``, with three differences: the median that fills
    gaps is a sketch where a column has more than 65 536 different values
    (:class:`splitvfl.data.fitting.MedianSketch`), sums are rounded once and not on the way
    (:class:`splitvfl.data.fitting.RunningSums`), and fields may be hashed. The folder appears when it is complete; an
    interrupted or failed ingest leaves nothing.

    The split looks at each record's id alone (:func:`splitvfl.data.hashing.are_tested`): parties that
    ingest apart split alike, if they give the same ids, seed and fraction. Text that names records is hashed
    (:func:`splitvfl.data.hashing.text_ids`). Their records must be in the same order;
    ``id_fingerprints`` in ``schema.json`` shows whether they are. Aligned records (``aligned``) are, by their new ids;
    other rows are left out, and dummies get the columns and the label of a random record of their part.

    Memory: about 12 bytes per listed category of all fields, the texts of one field's categories, and some hundred MiB.

    Args:
        spec: The table: files with the same columns, or one in memory.
        parties: Who gets which columns; an active one if there is a label column.
        out: The folder to be made.
        hashing: Categories that are hashed instead of being listed.
        aligned: What an alignment says of these files, see :func:`splitvfl.data.alignment.aligned_rows`; the files are
            then those of one party.
        overwrite: Replace tables that are there already.
        progress: Called after every chunk.

    Raises:
        ArgumentError: If an argument is out of its range, or two do not go together.
        DataError: If a file, a column or a cell is not what was asked for; the message says where it stands.
    """
    target = Path(out)
    check_ingested(spec, parties, aligned)
    check_target(target, overwrite=overwrite)
    sources = open_sources(spec, parties)
    plan = make_plan(sources, spec, parties, name=target.name, hashing=hashing, aligned=aligned)
    if spec.unlabelled == "drop":
        plan = labelled_only(sources, plan)
    return _Run(sources, plan, progress).into(target, overwrite=overwrite)


def ingest_like(
    source: object,
    out: str | os.PathLike[str],
    *,
    like: str | os.PathLike[str],
    hash_secret: bytes | None = None,
    header: Sequence[str] | None = None,
    aligned: Alignment | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> IngestReport:
    """Write further files, encoded as those of an earlier ingest; all their records are test records.

    The columns must be the earlier ones. The label column may be missing, for prediction. Categories that were not
    listed then have code 0, and are counted.

    Args:
        source: As that of a spec for :func:`ingest`.
        out: The folder to be made.
        like: The earlier folder.
        hash_secret: The earlier key, if there was one.
        header: Names of the columns, for CSV files without a header line.
        aligned: As for :func:`ingest`; needed where the earlier records were aligned.
        overwrite: Replace tables that are there already.
        progress: Called after every chunk.

    Raises:
        DataError: If the earlier folder cannot be read or is ``out`` itself, or a file, a column or a cell is not as it
            was then.
    """
    target = Path(out)
    if target.resolve() == Path(like).resolve():
        raise DataError(f"{target} cannot be replaced by records that are encoded like its own; choose another name")
    check_target(target, overwrite=overwrite)
    sources = open_all(source, header=header)
    plan = plan_like(sources, Path(like), name=target.name, hash_secret=hash_secret, aligned=aligned)
    return _Run(sources, plan, progress).into(target, overwrite=overwrite)


def ingest_shard(
    source: object,
    out: str | os.PathLike[str],
    *,
    statistics: Sequence[str | os.PathLike[str]],
    hash_secret: bytes | None = None,
    header: Sequence[str] | None = None,
    aligned: Alignment | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> IngestReport:
    """Write one shard of a table as :func:`ingest` would write its rows, were all shards one table.

    What numbers are scaled and filled with and which categories there are follows from the statistics of all shards
    (:func:`splitvfl.data.ingest.shards.shard_statistics`), and nothing else of the settings is asked for again: they
    are kept there. Neither the order of the shards matters nor how the rows were divided among them. Encoders and
    vocabularies are equal at all shards; numbers of records, ids and their fingerprints are the shard's own.

    Args:
        source: The shard, as its statistics were taken of it.
        out: The folder to be made.
        statistics: Those of all shards: their folders, patterns of them, or a folder that holds them.
        hash_secret: The key that categories were hashed with, if there was one.
        header: Names of the columns, for CSV files without a header line.
        aligned: As for :func:`ingest`: the shard's own alignment, needed where records were aligned.
        overwrite: Replace tables that are there already.
        progress: Called after every chunk.

    Raises:
        ArgumentError: If the shards were aligned and this is not, or the other way round.
        DataError: If statistics are missing, there twice, damaged, or do not go together; the source is not one of the
            shards; or as for :func:`ingest`.
    """
    target = Path(out)
    check_target(target, overwrite=overwrite)
    shards = AllShards(find_statistics(statistics))
    sources = open_all(source, header=header)
    plan = shards.plan(sources, name=target.name, hash_secret=hash_secret, aligned=aligned)
    return _Run(sources, plan, progress, shards).into(target, overwrite=overwrite)


class _Run:
    """One ingest: files and a plan on the way to a folder.

    Args:
        sources: The files.
        plan: What is done with them.
        progress: Told how far it is.
        shards: What says how cells become numbers, where the files are one shard of several.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        plan: Plan,
        progress: Progress | None,
        shards: AllShards | None = None,
    ) -> None:
        self._sources = sources
        self._plan = plan
        self._progress = progress
        self._shards = shards
        self._begun = time.monotonic()
        self._read_bytes = sum(source.size for source in sources)

    def into(self, target: Path, *, overwrite: bool) -> IngestReport:
        """Do it, and say what was done."""
        with draft(target, overwrite=overwrite) as folder:
            scratch = folder / ".scratch"
            scratch.mkdir()
            survey, learned = self._look(scratch)
            check_space(folder, bytes_needed(self._plan, learned, survey.rows))
            watch = watched(self._progress, "writing", self._sources, begun=_LOOKED, ended=1.0)
            written = write_parties(folder, self._sources, self._plan, survey, learned, watch=watch)
            schema = data_schema(self._plan, survey, learned, written, described=self._description(survey))
            write_schema(folder / SCHEMA_FILE, schema)
            shutil.rmtree(scratch)
        return self._report(target, survey, learned, written, schema.positive_share)

    def _look(self, scratch: Path) -> tuple[Survey, FittedColumns]:
        if self._shards is not None:
            return self._look_at_shard(scratch, self._shards)
        watch = watched(self._progress, "reading", self._sources, begun=0.0, ended=_LOOKED)
        if self._plan.earlier is not None:
            survey = look(self._sources, self._plan, scratch, statistics=None, watch=watch)
            return survey, learned_before(self._plan, self._plan.earlier, scratch)
        statistics = Statistics(self._plan, scratch)
        survey = look(self._sources, self._plan, scratch, statistics=statistics, watch=watch)
        check_parts(self._plan, survey.rows, survey.tested)
        return survey, statistics.learned()

    def _look_at_shard(self, scratch: Path, shards: AllShards) -> tuple[Survey, FittedColumns]:
        read = _LOOKED / 2
        watch = watched(self._progress, "reading", self._sources, begun=0.0, ended=read)
        survey = look(self._sources, self._plan, scratch, statistics=None, watch=watch)
        shards.check_among(records_digest(self._plan, survey), listed([source.name for source in self._sources]))

        def merged(rows: int) -> None:
            if self._progress is not None:
                self._progress(IngestStatus("merging", rows, read + (_LOOKED - read) * rows / shards.rows))

        return survey, shards.learned(self._plan, scratch, watch=merged)

    def _description(self, survey: Survey) -> str:
        more = f" and {len(self._sources) - 1} more" if len(self._sources) > 1 else ""
        label = "no label" if self._plan.label is None else f"label {self._plan.label}"
        return f"{self._sources[0].name}{more}: {survey.rows} rows, {label}{left_out(self._plan.unlabelled)}"

    def _report(
        self, target: Path, survey: Survey, learned: FittedColumns, written: Written, positive_share: float | None
    ) -> IngestReport:
        parties = {}
        for party in self._plan.parties:
            encoder = learned.of(party)
            parties[party.name] = PartyReport(
                numeric=len(encoder.names),
                fields=encoder.fields,
                unknown={name: written.unknown[name] for name in encoder.fields},
                drift=self._drift(party, written),
            )
        return IngestReport(
            folder=target,
            rows=written.sizes,
            parties=parties,
            active=next((party.name for party in self._plan.parties if party.role == "active"), None),
            positive_share=positive_share,
            unlabelled=self._plan.unlabelled,
            seconds=time.monotonic() - self._begun,
            read_bytes=self._read_bytes,
        )

    def _drift(self, party: PartyPlan, written: Written) -> tuple[ColumnDrift, ...]:
        if self._plan.earlier is None:
            return ()
        counts = {name: written.counts[name] for name in party.columns}
        return compared(counts, self._plan.earlier.profiles)
