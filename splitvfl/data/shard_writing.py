"""From files of any size to one file per shard, in bounded memory and with few files open.

Rows are read once, or twice where CSV files hold whole numbers (:mod:`splitvfl.data.shard_types`). A load of them at a
time is sorted by shard, and what each shard gets is put behind what it has, in a file of its own that is open for no
longer than that. When all rows are read, these files become Parquet files, one after the other.

Memory: a few loads of 128 MiB, and some 50 bytes for each record of the largest shard, by which ids that are there
twice are found. Room on the disk: what the shards take, and more than that for the files in between, which go one by
one. Files open at a time: one that is read and one that is written, however many shards there are.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from splitvfl.data.chunks import Chunk, Source
from splitvfl.data.id_column import Case, check_id_column, first_repeat, names_in, repeated_id
from splitvfl.data.id_rules import ID_RULE
from splitvfl.data.ingest.progress import IngestStatus, Progress
from splitvfl.data.partition import matching, patterns
from splitvfl.data.schema import write_schema
from splitvfl.data.shard_files import (
    SHARDING_FILE,
    ShardingSchema,
    ShardNote,
    is_sharded_folder,
    shard_file,
)
from splitvfl.data.shard_types import Types, as_schema, column_types
from splitvfl.data.sharding import Hashes, Numbers, check_shards, id_hashes, shard_of
from splitvfl.data.sources import chunks, open_all
from splitvfl.data.spec import Patterns
from splitvfl.data.writing import check_target, draft
from splitvfl.errors import DataError
from splitvfl.system.private_folder import make_parents
from splitvfl.system.untrusted_files import new_file

# Of rows that are sorted at once: enough that what a shard gets of them is worth opening its file.
LOAD_BYTES = 128 << 20
# A row group of a shard ends when it has so many rows or bytes.
GROUP_ROWS = 1 << 20
GROUP_BYTES = 64 << 20
# What is kept of a hash to find ids that are there twice; two different ids have the same 16 bytes once in 2^64 ids.
_KEPT = 16
_HOLDS = "shards"


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """What was divided.

    Attributes:
        folder: Where the shards are.
        sharding: What is written of them.
        types: Type of each column in the shards.
        seconds: Time taken.
        read_bytes: Size of the files, in bytes.
    """

    folder: Path
    sharding: ShardingSchema
    types: Types
    seconds: float
    read_bytes: int

    @property
    def rows(self) -> int:
        """Records of all shards."""
        return sum(self.sharding.records)


def shard(
    source: object,
    out: str | os.PathLike[str],
    *,
    id_column: str,
    shards: int,
    case: Case = "kept",
    text_columns: Patterns = (),
    drop: Patterns = (),
    header: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ShardReport:
    """Divide the records of files of any size into shards, by the rule of :mod:`splitvfl.data.sharding`.

    Each shard becomes a Parquet file in the folder ``out``, see :mod:`splitvfl.data.shard_files`; its rows have the
    order of the files. All have the same columns, of the same types, also a shard that is empty. The folder appears
    when it is complete, for its owner only; a division that fails or is interrupted leaves nothing.

    Args:
        source: Files with the same columns, or a table in memory, as a :class:`splitvfl.data.spec.TableSpec` names
            them.
        out: The folder to be made.
        id_column: The column that names the records.
        shards: Into how many, 1 to :data:`splitvfl.learning.batches.MOST_SHARDS`.
        case: Whether letter case of ids counts.
        text_columns: Columns of CSV files to keep as text whatever they look like, as names and patterns.
        drop: Columns to leave out, as names and patterns.
        header: Names of the columns, for CSV files without a header line.
        overwrite: Replace shards that are there already.
        progress: Called now and then.

    Raises:
        ArgumentError: If the number of shards is out of its range.
        DataError: If a file, a column or a cell is not as it must be, or an id is missing or there twice; the message
            says where.
    """
    check_shards(shards)
    target = Path(out)
    make_parents(target)
    check_target(target, overwrite=overwrite, holds=_HOLDS, recognised=is_sharded_folder)
    sources = open_all(source, header=header, nested=True)
    check_id_column(sources, id_column)
    begun = time.monotonic()
    with draft(target, overwrite=overwrite, holds=_HOLDS, recognised=is_sharded_folder, private=True) as folder:
        watch = _Watch(sources, progress)
        types = column_types(
            sources,
            _kept(sources[0], id_column, drop),
            id_column=id_column,
            text=matching(patterns(text_columns), sources[0].names, source=sources[0].name),
            watch=watch.of("reading", 0.0, 0.3),
        )
        scratch = folder / ".scratch"
        piles = _Piles(scratch, as_schema(types, sources), shards)
        records = _fill(piles, sources, id_column, case, watch.of("dividing", 0.3, 0.7))
        sharding = ShardingSchema(
            shards=shards,
            id_column=id_column,
            case=case,
            id_rule=ID_RULE,
            division=secrets.token_hex(16),
            records=tuple(records.tolist()),
            files=tuple(one.name for one in sources),
        )
        _write_all(piles, folder, sources, sharding, watch)
        shutil.rmtree(scratch)
        write_schema(folder / SHARDING_FILE, sharding)
    return ShardReport(
        folder=target,
        sharding=sharding,
        types=types,
        seconds=time.monotonic() - begun,
        read_bytes=sum(one.size for one in sources),
    )


def _kept(source: Source, id_column: str, drop: Patterns) -> list[str]:
    features = [name for name in source.names if name != id_column]
    dropped = matching(patterns(drop), features, source=source.name, reserved={id_column: "the id column"})
    left_out = frozenset(dropped)
    return [name for name in source.names if name not in left_out]


class _Watch:
    """Tells how far a division has come.

    Args:
        sources: What is divided.
        progress: Who is told.
    """

    def __init__(self, sources: Sequence[Source], progress: Progress | None) -> None:
        self._size = max(sum(source.size for source in sources), 1)
        self._progress = progress

    def of(self, phase: str, begun: float, ended: float) -> Callable[[Chunk], None]:
        """Return what is called with every chunk of a phase that takes this part of all work."""
        rows = 0

        def watch(chunk: Chunk) -> None:
            nonlocal rows
            rows += chunk.rows
            self.tell(phase, rows, begun + (ended - begun) * chunk.done_bytes / self._size)

        return watch

    def tell(self, phase: str, rows: int, done: float) -> None:
        if self._progress is not None:
            self._progress(IngestStatus(phase, rows, done))


class _Piles:
    """The files in between: of each shard what it has got so far, with a hash and the place of every row.

    Args:
        folder: Where they are; it is made.
        schema: Of the rows.
        shards: How many there are.
    """

    def __init__(self, folder: Path, schema: pa.Schema, shards: int) -> None:
        self.schema = schema
        self._folder = folder
        self.shards = shards
        # These two are found by their position: a column of the files may have any name.
        self._whole = schema.append(pa.field("hash", pa.binary(_KEPT))).append(pa.field("row", pa.int64()))
        folder.mkdir()

    def put(self, rows: Sequence[pa.RecordBatch], hashes: Hashes, first: int) -> Numbers:
        """Put rows behind those of their shards, and return how many each of these got.

        Args:
            rows: Consecutive rows.
            hashes: Of their ids, ``(n, 32)`` uint8.
            first: Place of the first of them among the rows of all files.
        """
        numbers = shard_of(hashes, self.shards)
        counts = np.bincount(numbers, minlength=self.shards)
        kept = pa.py_buffer(np.ascontiguousarray(hashes[:, -_KEPT:]))
        added = [
            pa.FixedSizeBinaryArray.from_buffers(pa.binary(_KEPT), len(hashes), [None, kept]),
            pa.array(np.arange(first, first + len(hashes))),
        ]
        table = pa.Table.from_batches(rows, self.schema)
        whole = pa.Table.from_arrays([*table.columns, *added], schema=self._whole)
        whole = whole.take(pa.array(np.argsort(numbers, kind="stable")))
        for shard, (begin, end) in enumerate(pairwise([0, *np.cumsum(counts).tolist()])):
            if end > begin:
                self._append(shard, whole.slice(begin, end - begin))
        return counts

    def _append(self, shard: int, rows: pa.Table) -> None:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with self._path(shard).open("ab") as file, pa.ipc.new_stream(file, self._whole, options=options) as stream:
            stream.write_table(rows)

    def take(self, shard: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a shard in their order, the hash and the place last, and remove its file."""
        path = self._path(shard)
        if not path.exists():
            return
        size = path.stat().st_size
        with pa.OSFile(str(path)) as file:
            while file.tell() < size:
                yield from pa.ipc.open_stream(file)
        path.unlink()

    def _path(self, shard: int) -> Path:
        return self._folder / f"{shard}.arrow"


def _fill(
    piles: _Piles, sources: Sequence[Source], id_column: str, case: Case, watch: Callable[[Chunk], None]
) -> Numbers:
    """Put all rows on the piles, and return the number of each.

    Raises:
        DataError: If there are no rows, a cell is not as it must be, or an id is missing.
    """
    records, rows = np.zeros(piles.shards, np.int64), 0
    for load, hashes in _loads(sources, piles.schema, id_column, case, watch):
        records += piles.put(load, hashes, rows)
        rows += len(hashes)
    if not rows:
        raise DataError(f"{sources[0].name} has a header and no rows")
    return records


def _loads(
    sources: Sequence[Source], schema: pa.Schema, id_column: str, case: Case, watch: Callable[[Chunk], None]
) -> Iterator[tuple[list[pa.RecordBatch], Hashes]]:
    """Yield all rows with the hashes of their ids, :data:`LOAD_BYTES` at a time."""
    types = dict(zip(schema.names, schema.types, strict=True))
    load: list[pa.RecordBatch] = []
    hashes: list[Hashes] = []
    for chunk in chunks(sources, types):
        hashes.append(id_hashes(names_in(chunk, id_column, case)))
        load.append(pa.RecordBatch.from_arrays([chunk.columns[name] for name in types], schema=schema))
        watch(chunk)
        if sum(batch.nbytes for batch in load) >= LOAD_BYTES:
            yield load, np.concatenate(hashes)
            load, hashes = [], []
    if load:
        yield load, np.concatenate(hashes)


def _write_all(piles: _Piles, folder: Path, sources: Sequence[Source], sharding: ShardingSchema, watch: _Watch) -> None:
    """Make a Parquet file of each pile.

    Raises:
        DataError: If an id is there twice.
    """
    done = 0
    for shard, records in enumerate(sharding.records):
        schema = ShardNote.of(sharding, shard).added_to(piles.schema)
        marks = _write_one(shard_file(folder, shard), schema, piles.take(shard), records)
        repeat = first_repeat(marks.hashes)
        if repeat is not None:
            raise repeated_id(sources, sharding.id_column, marks.rows[list(repeat)].tolist())
        done += records
        watch.tell("writing", done, 0.7 + 0.3 * done / sum(sharding.records))


def _write_one(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], records: int) -> _Marks:
    marks = _Marks(records)
    with new_file(path) as file, pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(marks.taken_off(batches), schema):
            writer.write_table(group, row_group_size=GROUP_ROWS)
    return marks


class _Marks:
    """Hash and place of every row of a shard, which are written nowhere.

    Args:
        records: Number of rows.
    """

    def __init__(self, records: int) -> None:
        self.hashes = np.empty((records, _KEPT), np.uint8)
        self.rows = np.empty(records, np.int64)

    def taken_off(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.Array]]:
        """Yield the rows' own columns."""
        done = 0
        for batch in batches:
            *columns, hashes, rows = batch.columns
            end = done + batch.num_rows
            self.hashes[done:end] = _bytes_of(hashes)
            self.rows[done:end] = rows.to_numpy()
            yield columns
            done = end


def _bytes_of(hashes: pa.FixedSizeBinaryArray) -> Hashes:
    # A buffer may be longer than the array that it is of.
    start, count = hashes.offset * _KEPT, len(hashes) * _KEPT
    return np.frombuffer(hashes.buffers()[1], np.uint8, count, start).reshape(-1, _KEPT)


def _groups(parts: Iterator[list[pa.Array]], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield rows in row groups that are worth reading, and fit into memory."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for columns in parts:
        group.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        rows, size = rows + group[-1].num_rows, size + group[-1].nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(group)
            group, rows, size = [], 0, 0
    if group:
        yield pa.Table.from_batches(group)
