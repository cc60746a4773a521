"""What the ingest of one shard learned of its rows, on disk, to be merged with that of all other shards.

::

    stats/3/statistics.json          ShardStatistics: settings, kinds, numbers of rows, sums
    stats/3/counts.safetensors       what has no place there, by column

For a column of numbers, ``COLUMN.values`` (F64) and ``COLUMN.counts`` (I64) are what the median's sketch keeps, where
gaps are filled. For a column whose categories are listed, ``COLUMN.values`` (F64 or I64), or ``COLUMN.bytes`` (U8) and
``COLUMN.offsets`` (I64) of text, are all its categories in the training rows; ``COLUMN.counts`` (I64) says how often
each occurs there.

This is the data of the party itself, category by category. The folder is for its owner only; it never goes to a
partner. What is read back is compared with its digests, and checked before memory is taken for it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import safe_open

from splitvfl.data.chunks import Kind
from splitvfl.data.encoding import Missing, Scale
from splitvfl.data.exact_moments import ExactMoments
from splitvfl.data.fitting import KeptSums, SketchCounts
from splitvfl.data.ingest.plan import column_uses, needed_columns
from splitvfl.data.ingest.records import LabelCount
from splitvfl.data.ingest.settings import IngestSettings
from splitvfl.data.ingest.survey import SUMMED_SCALES, Statistics
from splitvfl.data.schema import has_format, read_schema, write_schema
from splitvfl.data.vocabulary import CategoryCounter, Counts, as_tensors, category_type, from_tensors
from splitvfl.data.writing import StoredTensor, write_safetensors
from splitvfl.errors import ArgumentError, DataError
from splitvfl.learning.batches import MOST_SHARDS
from splitvfl.system.untrusted_files import MOST_LARGE, UntrustedFile

FORMAT = "splitvfl statistics"
VERSION = 1
STATISTICS_FILE = "statistics.json"
COUNTS_FILE = "counts.safetensors"

_AGAIN = "take the shard's statistics anew"
_OWNER_ONLY = 0o600
# Categories that are looked at at once.
_SLICE = 1 << 14
# Of all of these together, in bytes: what Arrow's offsets can tell.
_MOST_TEXT = (1 << 31) - 1
# A sketch at its coarsest keeps this many values at most: all that there are of sign, exponent and seven bits.
_MOST_KEPT = 1 << 19

_DTYPES = {"|u1": "U8", "<i8": "I64", "<f8": "F64"}
_NUMPY = {name: dtype for dtype, name in _DTYPES.items()}
# The tensors of a column's counts, by the type of its categories: what they are, and how many more than categories.
_PARTS: Mapping[pa.DataType, Mapping[str, tuple[str, int]]] = {
    pa.string(): {"bytes": ("U8", 0), "offsets": ("I64", 1), "counts": ("I64", 0)},
    pa.int64(): {"values": ("I64", 0), "counts": ("I64", 0)},
    pa.float64(): {"values": ("F64", 0), "counts": ("I64", 0)},
}

_Sum = Annotated[str, msgspec.Meta(pattern="^-?[0-9a-f]{1,1200}$")]
_Rows = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ColumnSums(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was added up of a column of numbers, over training rows.

    Attributes:
        known: Rows with a value.
        gaps: Rows without.
        low: Smallest value; ``None`` without any.
        high: Largest value; ``None`` without any.
        total: Exact sum of the values, or of their logarithms under ``"log1p"``, in units of 2⁻¹¹²⁶: hexadecimal;
            ``None`` where mean and deviation are not needed.
        squares: Exact sum of their squares, in units of 2⁻²²⁵², likewise.
        level: How coarse the sketch of the median is; ``None`` where gaps are not filled.
        different: Values that the sketch keeps.
    """

    known: _Rows
    gaps: _Rows
    low: float | None
    high: float | None
    total: _Sum | None
    squares: _Sum | None
    level: int | None
    different: _Rows


class ColumnCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was counted of a column of categories, over training rows.

    Attributes:
        missing: Rows without a value.
        different: Different values.
    """

    missing: _Rows
    different: _Rows


class ShardStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``statistics.json``: everything but long lists.

    Attributes:
        format: Always :data:`FORMAT`.
        version: Version of the format.
        digest: SHA-256 of all the rest.
        counts_digest: SHA-256 of the other file.
        shard: Which shard this is, from 0.
        shards: How many there are.
        settings: What was asked for.
        names: All columns of the files, in order.
        kinds: What the columns that are read hold; ``None`` where no row has a value.
        training_rows: Number of training rows.
        test_rows: Number of test rows.
        records: SHA-256 of the ids in their order, and of which are test records.
        sums: By column of numbers.
        counts: By column whose categories are listed; columns without any value are counted as text.
        labels: The different labels, and how often each occurs; none without a label column, or of a regression.
    """

    format: str = FORMAT
    version: int = VERSION
    digest: str
    counts_digest: _Digest
    shard: _Rows
    shards: Annotated[int, msgspec.Meta(ge=1, le=MOST_SHARDS)]
    settings: IngestSettings
    names: tuple[str, ...]
    kinds: dict[str, Kind | None]
    training_rows: _Rows
    test_rows: _Rows
    records: _Digest
    sums: dict[str, ColumnSums]
    counts: dict[str, ColumnCounts]
    labels: tuple[LabelCount, ...]

    @property
    def blank(self) -> tuple[str, ...]:
        """Columns without any value."""
        return tuple(name for name, kind in self.kinds.items() if kind is None)

    def counted_kind(self, column: str) -> Kind:
        """Return what a column's values were read as."""
        return self.kinds[column] or "text"


def is_statistics(folder: Path) -> bool:
    """Return whether a folder holds statistics of any version."""
    return has_format(folder / STATISTICS_FILE, FORMAT)


# --- writing


def write_statistics(folder: Path, learned: Statistics, scratch: Path, **facts: Any) -> ShardStatistics:
    """Write what was learned, and return it as far as it is not long.

    Args:
        folder: The folder, which is there.
        learned: What was learned; its counts are forgotten.
        scratch: Folder for what is on its way.
        facts: The attributes of :class:`ShardStatistics` that are neither sums, counts nor digests of them.
    """
    tensors = _Tensors(scratch)
    sums = {name: _write_sums(name, one.kept, tensors) for name, one in learned.sums.items()}
    counts = {name: _write_counts(name, one, tensors) for name, one in learned.counters.items()}
    write_safetensors(folder / COUNTS_FILE, tensors.stored)
    digest = _counts_file(folder).digest()
    statistics = ShardStatistics(digest="", counts_digest=digest, sums=sums, counts=counts, **facts)
    statistics = msgspec.structs.replace(statistics, digest=_digest(statistics))
    write_schema(folder / STATISTICS_FILE, statistics)
    for name in (COUNTS_FILE, STATISTICS_FILE):  # others may enter the folder that it is copied to
        (folder / name).chmod(_OWNER_ONLY)
    return statistics


class _Tensors:
    """Tensors that grow in files, one file each.

    Args:
        scratch: Their folder.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._stored: dict[str, StoredTensor] = {}

    @property
    def stored(self) -> list[StoredTensor]:
        """The tensors, in the order in which they were begun."""
        return list(self._stored.values())

    def append(self, name: str, array: npt.NDArray[Any]) -> None:
        """Add numbers to a tensor, of uint8, int64 or float64."""
        file = self._scratch / f"tensor-{len(self._stored)}"
        before = self._stored.get(name, StoredTensor(name, _DTYPES[array.dtype.str], 0, file))
        with before.file.open("ab") as out:
            array.tofile(out)
        self._stored[name] = replace(before, length=before.length + array.size)


def _write_sums(name: str, kept: KeptSums, tensors: _Tensors) -> ColumnSums:
    moments, sketch = kept.moments, kept.sketch
    if sketch is not None:
        tensors.append(f"{name}.values", sketch.values)
        tensors.append(f"{name}.counts", sketch.counts)
    return ColumnSums(
        known=kept.known,
        gaps=kept.gaps,
        low=kept.low if kept.known else None,
        high=kept.high if kept.known else None,
        total=None if moments is None else f"{moments.total:x}",
        squares=None if moments is None else f"{moments.squares:x}",
        level=None if sketch is None else sketch.level,
        different=0 if sketch is None else sketch.values.size,
    )


def _write_counts(name: str, counter: CategoryCounter, tensors: _Tensors) -> ColumnCounts:
    different = end = 0
    for number, (values, counts) in enumerate(counter.counted()):
        arrays: dict[str, npt.NDArray[Any]] = {part: array for part, (_, array) in as_tensors(values).items()}
        if "offsets" in arrays:
            # There is one more than there are texts: each part goes on where the one before it ended.
            offsets = arrays["offsets"] + end
            end = int(offsets[-1])
            arrays["offsets"] = offsets if number == 0 else offsets[1:]
        for part, array in (arrays | {"counts": counts}).items():
            tensors.append(f"{name}.{part}", array)
        different += len(values)
    return ColumnCounts(missing=counter.missing, different=different)


def _digest(statistics: ShardStatistics) -> str:
    without = msgspec.structs.replace(statistics, digest="")
    return hashlib.sha256(msgspec.json.encode(without)).hexdigest()


# --- reading


class ShardFolder:
    """The statistics of one shard, as they lie on disk.

    Args:
        folder: Their folder.

    Attributes:
        folder: As given.
        statistics: All but long lists.

    Raises:
        DataError: If there are none, they have another version, or are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.statistics = _read(folder)
        counts = _counts_file(folder)
        if counts.digest() != self.statistics.counts_digest:
            raise _damaged(folder, f"{COUNTS_FILE} is not the one that was written")
        counts.tensor_heads()
        _check(self.statistics, folder)

    def __str__(self) -> str:
        """Return where they are."""
        return str(self.folder)

    def sums(self, column: str) -> KeptSums:
        """Return what was added up of a column of numbers.

        Raises:
            DataError: If it is damaged.
        """
        kept = self.statistics.sums[column]
        return KeptSums(
            known=kept.known,
            gaps=kept.gaps,
            low=math.inf if kept.low is None else kept.low,
            high=-math.inf if kept.high is None else kept.high,
            moments=_moments(kept),
            sketch=None if kept.level is None else self._sketch(column, kept, kept.level),
        )

    def _sketch(self, column: str, kept: ColumnSums, level: int) -> SketchCounts:
        with self._open() as file:
            values = _tensor(file, f"{column}.values", "F64", kept.different)
            counts = _tensor(file, f"{column}.counts", "I64", kept.different)
            # A sketch is small: it is taken as a whole.
            whole = slice(0, min(kept.different, _MOST_KEPT))
            sketch = SketchCounts(level, _part(values, whole), _part(counts, whole))
        if not sketch.is_sound or sum(sketch.counts.tolist()) != kept.known or sketch.values.size != kept.different:
            raise _damaged(self.folder, f"what is kept for the median of column {column!r} is none")
        return sketch

    def counts(self, column: str) -> Iterator[tuple[pa.Array, Counts]]:
        """Yield the categories of a column and how often each occurs, some at a time.

        Raises:
            DataError: If they are damaged.
        """
        kept, kind = self.statistics.counts[column], category_type(self.statistics.counted_kind(column))
        rows = kept.missing
        with self._open() as file:
            tensors = {
                part: _tensor(file, f"{column}.{part}", dtype, None if part == "bytes" else kept.different + more)
                for part, (dtype, more) in _PARTS[kind].items()
            }
            for start in range(0, kept.different, _SLICE):
                some = slice(start, min(start + _SLICE, kept.different))
                counts: Counts = _part(tensors["counts"], some)
                values = _texts(tensors, some) if kind == pa.string() else pa.array(_part(tensors["values"], some))
                rows += sum(counts.tolist())
                if values is None or (counts <= 0).any() or pc.any(pc.is_null(values, nan_is_null=True)).as_py():
                    raise _damaged(self.folder, f"the categories of column {column!r} are none")
                yield values, counts
        if rows != self.statistics.training_rows:
            raise _damaged(self.folder, f"the counts of column {column!r} are not those of its training rows")

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            with safe_open(self.folder / COUNTS_FILE, framework="np") as file:
                yield file
        except DataError:
            raise
        except Exception as error:  # safetensors' own error is no more particular than this
            raise _damaged(self.folder, f"{COUNTS_FILE}: {error}") from error


def _counts_file(folder: Path) -> UntrustedFile:
    return UntrustedFile(path=folder / COUNTS_FILE, most=MOST_LARGE, remedy=_AGAIN, error=DataError)


def _read(folder: Path) -> ShardStatistics:
    path = folder / STATISTICS_FILE
    what = "the statistics of a shard, as `splitvfl ingest --statistics-only` writes them"
    statistics = read_schema(path, ShardStatistics, what=what, wanted=FORMAT, version=VERSION, again=_AGAIN)
    if _digest(statistics) != statistics.digest:
        raise _damaged(folder, f"{STATISTICS_FILE} does not have the digest that it names")
    return statistics


def _check(statistics: ShardStatistics, folder: Path) -> None:
    """Check that what is there is what these settings ask of such columns, and that numbers of rows are alike."""
    settings, kinds = statistics.settings, {name: statistics.counted_kind(name) for name in statistics.kinds}
    try:
        settings.check()
        spec, claims = settings.spec(), settings.claims
        needed = needed_columns(statistics.names, spec, claims, where=str(folder))
        if set(needed) != set(kinds):
            raise _damaged(folder, "the columns are not those that were asked for")
        uses = column_uses(
            statistics.names,
            kinds,
            spec,
            claims,
            where=str(folder),
            hashing=settings.hashing(),
            blank=statistics.blank,
        )
    except ArgumentError as error:
        raise _damaged(folder, str(error)) from error
    if set(uses.numeric) != set(statistics.sums) or set(uses.listed) != set(statistics.counts):
        raise _damaged(folder, "the columns are not those that were asked for")
    for name, kept in statistics.sums.items():
        if not _fits(kept, statistics.training_rows, settings.missing, uses.scales[name]):
            raise _damaged(folder, f"the sums of column {name!r} are none of numbers")
    if not _labels_fit(statistics):
        raise _damaged(folder, "the labels are not those of its rows")
    if statistics.shard >= statistics.shards:
        raise _damaged(folder, f"there is no shard {statistics.shard} of {statistics.shards}")


def _labels_fit(statistics: ShardStatistics) -> bool:
    """Return whether labels were counted if they had to be, each of its kind, and as often as there are rows."""
    settings, labels = statistics.settings, statistics.labels
    if settings.label is None or settings.task == "regression":
        return not labels
    text = statistics.counted_kind(settings.label) == "text"
    return (
        all(isinstance(label.value, str) == text and min(label.train, label.test) >= 0 for label in labels)
        and sum(label.train for label in labels) == statistics.training_rows
        and sum(label.test for label in labels) == statistics.test_rows
    )


def _fits(kept: ColumnSums, training_rows: int, missing: Missing, scale: Scale) -> bool:
    """Return whether sums can be those of as many rows."""
    extremes = [] if kept.low is None or kept.high is None else [kept.low, kept.high]
    if kept.known + kept.gaps != training_rows or (kept.known > 0) != bool(extremes) or extremes != sorted(extremes):
        return False
    if (kept.level is not None) != (missing == "indicator") or (kept.total is not None) != (scale in SUMMED_SCALES):
        return False
    moments = _moments(kept)
    # The sum of squares is never smaller than the square of the sum over the count.
    return moments is None or 0 <= moments.total**2 <= kept.known * moments.squares


def _moments(kept: ColumnSums) -> ExactMoments | None:
    if kept.total is None or kept.squares is None:
        return None
    return ExactMoments(kept.known, int(kept.total, 16), int(kept.squares, 16))


def _tensor(file: Any, name: str, dtype: str, length: int | None) -> Any:
    """Return a tensor that can be read piece by piece, of this type and length."""
    found = file.get_slice(name)
    shape = found.get_shape()
    if found.get_dtype() != dtype or len(shape) != 1 or (length is not None and shape[0] != length):
        raise ValueError(f"expected {length} of {dtype} as {name!r}, got {found.get_dtype()} of shape {shape}")
    return found


def _part(tensor: Any, some: slice) -> npt.NDArray[Any]:
    if some.stop <= some.start:
        return np.zeros(0, np.dtype(_NUMPY[tensor.get_dtype()]))
    part: npt.NDArray[Any] = tensor[some]
    return part


def _texts(tensors: Mapping[str, Any], some: slice) -> pa.Array | None:
    """Return some of the texts; ``None`` if there are none such."""
    offsets = _part(tensors["offsets"], slice(some.start, some.stop + 1))
    first, last = int(offsets[0]), int(offsets[-1])
    if first < 0 or (np.diff(offsets) < 0).any() or last > tensors["bytes"].get_shape()[0] or last - first > _MOST_TEXT:
        return None
    texts = from_tensors({"offsets": offsets - first, "bytes": _part(tensors["bytes"], slice(first, last))})
    texts.validate(full=True)
    return texts


def _damaged(folder: Path, why: str) -> DataError:
    return DataError(f"{folder} is damaged: {why}; {_AGAIN}")
