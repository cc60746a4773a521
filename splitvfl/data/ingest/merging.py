"""Statistics of all shards of a table, merged: how cells become numbers at each of them, as if they were one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from splitvfl.data.alignment import Alignment
from splitvfl.data.chunks import Kind, Source
from splitvfl.data.id_column import check_id_column
from splitvfl.data.id_rules import FIRST_RULE
from splitvfl.data.ingest.plan import Plan, check_aligned, planned
from splitvfl.data.ingest.settings import check_alike
from splitvfl.data.ingest.statistics import ShardFolder
from splitvfl.data.ingest.survey import FittedColumns, Statistics, check_parts
from splitvfl.data.sources import check_kinds, common_kind, kind_in_words
from splitvfl.data.spelling import setting
from splitvfl.data.tables import listed
from splitvfl.errors import ArgumentError, DataError


class AllShards:
    """The statistics of all shards, each there once and all made alike.

    Args:
        folders: Where they are, in any order.

    Attributes:
        folders: The same, by shard.
        settings: What was asked for, at all of them.
        names: All columns, in the order of the first shard.
        kinds: What the columns that are read hold, by all shards together; a column without any value holds numbers.

    Raises:
        DataError: If one is missing, there twice or damaged, was made with other settings or of other columns, or holds
            text where others hold numbers.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = sorted(map(ShardFolder, folders), key=lambda folder: folder.statistics.shard)
        first = self.folders[0]
        self.settings = first.statistics.settings
        self.names = first.statistics.names
        for folder in self.folders[1:]:
            check_alike(folder.statistics.settings, folder, self.settings, first)
            _check_names(folder, first)
        _check_complete(self.folders)
        self.kinds = {name: _kind(name, self.folders) for name in first.statistics.kinds}

    @property
    def rows(self) -> int:
        """Records of all shards."""
        return sum(folder.statistics.training_rows + folder.statistics.test_rows for folder in self.folders)

    def plan(
        self, sources: Sequence[Source], *, name: str, hash_secret: bytes | None, aligned: Alignment | None
    ) -> Plan:
        """Return what is to be done with the files of one shard.

        Args:
            sources: The files.
            name: Name of the data set.
            hash_secret: The key that categories were hashed with.
            aligned: The shard's own alignment.

        Raises:
            ArgumentError: If the shards were aligned and this is not, or the other way round.
            DataError: If the files have other columns, or hold other things in them, or the key is another one.
        """
        if self.settings.aligned != (aligned is not None):
            raise ArgumentError(
                f"the statistics were taken {'with' if self.settings.aligned else 'without'} an alignment: "
                + (f"name this shard's own ({setting('aligned')})" if self.settings.aligned else "name none here")
            )
        if not self.settings.has_key(hash_secret):
            raise DataError(f"categories were hashed with another key in {self.folders[0]}; give the same key file")
        where = sources[0].name
        if sorted(sources[0].names) != sorted(self.names):
            odd = sorted(set(sources[0].names) ^ set(self.names))
            raise DataError(f"{where} and the files of {self.folders[0]} do not both have {listed(odd)}")
        spec, claims, hashing = self.settings.spec(), self.settings.claims, self.settings.hashing(hash_secret)
        for source in sources:
            source.written = spec.written(self.names, source=where)
        check_kinds(sources, self.kinds)
        if spec.id_column is not None and spec.id_rule != FIRST_RULE:
            check_id_column(sources, spec.id_column)
        if aligned is not None:
            check_aligned(spec, claims, aligned)
        return planned(self.names, self.kinds, spec, claims, where=where, name=name, hashing=hashing, aligned=aligned)

    def check_among(self, records: str, named: str) -> None:
        """Check that statistics were taken of these records.

        Args:
            records: Their digest, as in :class:`splitvfl.data.ingest.statistics.ShardStatistics`.
            named: What to call them.

        Raises:
            DataError: If not.
        """
        if not any(folder.statistics.records == records for folder in self.folders):
            raise DataError(
                f"{named}: none of the {len(self.folders)} statistics is of these records; give the shard's own files, "
                "as they were, or take its statistics anew"
            )

    def learned(self, plan: Plan, scratch: Path, *, watch: Callable[[int], None]) -> FittedColumns:
        """Return how cells become numbers.

        Args:
            plan: What is done with which column, at any of the shards.
            scratch: Folder for what does not fit into memory.
            watch: Called with the number of rows that the shards which are done have.

        Raises:
            DataError: If statistics are damaged, or together are not what the task needs.
        """
        check_parts(plan, self.rows, sum(folder.statistics.test_rows for folder in self.folders))
        merged = Statistics(plan, scratch)
        rows = 0
        for folder in self.folders:
            _merge_sums(merged, folder, plan)
            _merge_counts(merged, folder, self.kinds)
            if merged.labels is not None:
                merged.labels.add_counted(folder.statistics.labels)
            rows += folder.statistics.training_rows + folder.statistics.test_rows
            watch(rows)
        return merged.learned()


def _check_names(folder: ShardFolder, first: ShardFolder) -> None:
    ours, theirs = folder.statistics.names, first.statistics.names
    known_here, known_there = frozenset(ours), frozenset(theirs)
    extra = [name for name in ours if name not in known_there]
    missing = [name for name in theirs if name not in known_here]
    if extra:
        raise DataError(f"{folder} is of files with {listed(extra)}, and {first} is not; all need the same columns")
    if missing:
        raise DataError(f"{first} is of files with {listed(missing)}, and {folder} is not; all need the same columns")


def _check_complete(folders: Sequence[ShardFolder]) -> None:
    shards = folders[0].statistics.shards
    found: dict[int, ShardFolder] = {}
    records: dict[str, ShardFolder] = {}
    for folder in folders:
        statistics = folder.statistics
        if statistics.shards != shards:
            raise DataError(f"{folder} is of one of {statistics.shards} shards, and {folders[0]} of one of {shards}")
        twice = found.setdefault(statistics.shard, folder)
        if twice is not folder:
            raise DataError(f"{twice} and {folder} are both of shard {statistics.shard}; give one of them")
        same = records.setdefault(statistics.records, folder)
        if same is not folder:
            raise DataError(f"{same} and {folder} are of the same records, and not of two shards")
    missing = [str(shard) for shard in range(shards) if shard not in found]
    if missing:
        named = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise DataError(
            f"the statistics of shard{'s' if len(missing) > 1 else ''} {named} of {shards} (from 0) are missing; "
            "all of them are needed"
        )


def _kind(name: str, folders: Sequence[ShardFolder]) -> Kind:
    known = [(kind, folder) for folder in folders if (kind := folder.statistics.kinds[name]) is not None]
    if not known:
        return "number"
    found, first = known[0]
    for kind, folder in known[1:]:
        common = common_kind(kind, found)
        if common is None:
            raise DataError(
                f"column {name!r} holds {kind_in_words(found)} in {first}, and {kind_in_words(kind)} in {folder}; take "
                f"all statistics anew with it read as text ({setting('text_columns', name)}; in Parquet files, convert "
                "it)"
            )
        found = common
    return found


def _merge_sums(merged: Statistics, folder: ShardFolder, plan: Plan) -> None:
    statistics = folder.statistics
    for name, sums in merged.sums.items():
        if statistics.kinds[name] is not None:
            sums.merge(folder.sums(name))
        elif plan.missing == "error":
            raise DataError(
                f"column {name!r} of {folder} has no value in any row, and holds numbers in others; "
                f"{setting('missing', 'indicator')} fills in the median of the training rows and marks the gap"
            )
        else:
            sums.add_gaps(statistics.training_rows)


def _merge_counts(merged: Statistics, folder: ShardFolder, kinds: Mapping[str, Kind]) -> None:
    statistics = folder.statistics
    for name, counter in merged.counters.items():
        if statistics.kinds[name] is None and kinds[name] != "text":
            counter.add_missing(statistics.training_rows)
            continue
        counter.add_missing(statistics.counts[name].missing)
        for values, counts in folder.counts(name):
            counter.add_counted(values, counts)
            merged.keep_within_budget()
