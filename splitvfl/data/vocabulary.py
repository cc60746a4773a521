"""Categories of a field: counted in bounded memory, sorted, and looked up; or hashed.

Counting keeps a table of different values and their counts per field. When all tables together pass a budget, the
largest is written to disk, divided by fingerprints into parts that are merged one at a time in the end. Looking up
needs 12 bytes per category, whatever its length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.chunks import Kind
from splitvfl.data.encoding import as_categories
from splitvfl.data.hashing import Words, bucket_codes, fingerprints, text_buffers

Counts = npt.NDArray[np.int64]
NarrowCodes = npt.NDArray[np.int32]

# Of the different values that wait to be written out, of all fields together.
COUNT_BUDGET = 96 << 20
_PARTS = 16


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The listed categories of one field.

    Attributes:
        values: Text, int64 or float64, sorted, without null.
        missing_code: Code of a missing value; 0 where it is not listed.
        rare: Number of categories that were seen and are not listed.
    """

    values: pa.Array
    missing_code: int
    rare: int


class CategoryCounter:
    """Counts the different values of one field.

    Args:
        kind: Type of the values.
        scratch: What files begin with that take what does not fit into memory. Without it all must fit; with it, the
            type is string, int64 or float64.
    """

    def __init__(self, kind: pa.DataType, scratch: Path | None = None) -> None:
        self._values = pa.array([], kind)
        self._counts: Counts = np.zeros(0, np.int64)
        self._waiting: list[tuple[pa.Array, Counts]] = []
        self._waiting_rows = 0
        self._missing = 0
        self._scratch = scratch
        self._spills: list[Path] = []

    @property
    def nbytes(self) -> int:
        """Size of what it keeps in memory."""
        waiting = sum(values.nbytes + counts.nbytes for values, counts in self._waiting)
        return int(self._values.nbytes + self._counts.nbytes + waiting)

    @property
    def missing(self) -> int:
        """Number of rows without a value."""
        return self._missing

    def add(self, column: pa.Array) -> None:
        """Count the values of some rows; truth values are 0 and 1 where numbers are counted."""
        column = as_categories(column).cast(self._values.type)
        found = pc.value_counts(column.drop_null())
        self._missing += column.null_count
        self._wait(found.field("values"), found.field("counts").to_numpy())

    def add_missing(self, rows: int) -> None:
        """Count rows without a value."""
        self._missing += rows

    def add_counted(self, values: pa.Array, counts: Counts) -> None:
        """Take in values that were counted elsewhere; whole numbers become the nearest float64 where those are counted.

        Args:
            values: Without null and NaN.
            counts: How often each occurred, ``(values,)``.
        """
        self._wait(values.cast(self._values.type, safe=False), counts)

    def _wait(self, values: pa.Array, counts: Counts) -> None:
        self._waiting.append((values, counts))
        self._waiting_rows += len(values)
        # Merged when as much waits as is merged: every value is then merged a bounded number of times on average.
        if self._waiting_rows > max(len(self._values), 1 << 16):
            self._merge()

    def _merge(self) -> None:
        self._values, self._counts = _merged([(self._values, self._counts), *self._waiting])
        self._waiting, self._waiting_rows = [], 0

    def spill(self) -> None:
        """Write everything counted so far to disk, and go on from nothing."""
        self._merge()
        assert self._scratch is not None, "all must fit into memory"
        path = self._scratch.with_name(f"{self._scratch.name}-{len(self._spills)}.arrow")
        schema = pa.schema([("values", self._values.type), ("counts", pa.int64())])
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for values, counts in _divided(self._values, self._counts):
                writer.write_batch(pa.record_batch([values, counts], schema=schema))
        self._spills.append(path)
        self._forget()

    def _forget(self) -> None:
        self._values, self._counts = self._values.slice(0, 0), np.zeros(0, np.int64)

    def vocabulary(self, min_count: int) -> Vocabulary:
        """Return the categories with enough rows, and forget everything."""
        kept, seen = [], 0
        for values, counts in self._tables():
            seen += len(values)
            kept.append(values.filter(pa.array(counts >= min_count)))
        values = _joined(kept)
        values = values.take(pc.sort_indices(values))
        listed = len(values) + (self._missing >= min_count and self._missing > 0)
        missing_code = listed if listed > len(values) else 0
        self._forget()
        return Vocabulary(values, missing_code, seen + (self._missing > 0) - listed)

    def counted(self) -> Iterator[tuple[pa.Array, Counts]]:
        """Yield all values and how often each occurred, a part at a time, and forget them.

        Parts and their order depend on the values alone: not on their order, nor on whether they passed through files.
        """
        divided = self._tables() if self._spills else (part for table in self._tables() for part in _divided(*table))
        for values, counts in divided:
            order = pc.sort_indices(values)
            yield values.take(order), counts[order.to_numpy()]
        self._forget()

    def _tables(self) -> Iterator[tuple[pa.Array, Counts]]:
        """Yield what was counted: by parts if there are files, else as one."""
        if self._spills:
            self.spill()
            yield from map(self._part, range(_PARTS))
        else:
            self._merge()
            yield self._values, self._counts

    def _part(self, number: int) -> tuple[pa.Array, Counts]:
        batches = []
        for path in self._spills:
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
                batch = reader.get_batch(number)
                batches.append((batch.column(0), batch.column(1).to_numpy()))
        return _merged(batches)


def _divided(values: pa.Array, counts: Counts) -> Iterator[tuple[pa.Array, Counts]]:
    part_of = fingerprints(values, 0) >> np.uint64(60)
    for part in range(_PARTS):
        rows = np.flatnonzero(part_of == part)
        yield values.take(pa.array(rows)), counts[rows]


def keep_within(counters: Iterable[CategoryCounter], budget: int) -> None:
    """Spill the largest counters until all together keep no more than ``budget`` bytes."""
    sizes = {counter: counter.nbytes for counter in counters}
    while sum(sizes.values()) > budget:
        largest = max(sizes, key=lambda counter: sizes[counter])
        largest.spill()
        sizes[largest] = largest.nbytes
        # Otherwise the allocator keeps what it was freed, for as much again.
        pa.default_memory_pool().release_unused()


def _merged(tables: list[tuple[pa.Array, Counts]]) -> tuple[pa.Array, Counts]:
    encoded = _joined([values for values, _ in tables]).dictionary_encode()
    # Sums of float64 are exact up to 2⁵³ rows.
    weights = np.concatenate([counts for _, counts in tables]).astype(np.float64)
    sums = np.bincount(encoded.indices.to_numpy(), weights, minlength=len(encoded.dictionary))
    return encoded.dictionary, sums.astype(np.int64)


def _joined(parts: list[pa.Array]) -> pa.Array:
    joined = pa.chunked_array(parts).combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def category_type(kind: Kind) -> pa.DataType:
    """Return the type that the categories of an ingested field have; truth values are 0 and 1."""
    return {"text": pa.string(), "number": pa.float64(), "integer": pa.int64(), "truth": pa.int64()}[kind]


def ingested_categories(column: pa.Array) -> pa.Array:
    """Return a column as categories of :func:`category_type`: NaN is missing, and negative zero is zero."""
    return column.cast(pa.int64()) if pa.types.is_boolean(column.type) else as_categories(column)


class FieldCoder(ABC):
    """Gives the codes of one field, found once per different value.

    Args:
        column: The field's column.
        size: Number of codes, 0 included.
        missing_code: Code of a missing value.

    Attributes:
        column: As given.
        size: As given.
        names: Nothing: codes stay codes.
    """

    names = ()

    def __init__(self, column: str, *, size: int, missing_code: int) -> None:
        self.column = column
        self.size = size
        self._missing_code = missing_code

    def codes(self, column: pa.Array) -> NarrowCodes:
        """Return the code of each row, ``(rows,)``; 0 for an unknown value."""
        encoded = ingested_categories(column).dictionary_encode()
        found = np.append(self._codes_of(encoded.dictionary), np.int32(self._missing_code))
        codes: NarrowCodes = found[encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()]
        return codes

    @abstractmethod
    def _codes_of(self, values: pa.Array) -> NarrowCodes:
        """Return a code for each of some different values."""


class CodeBook(FieldCoder):
    """Looks up the codes of one field.

    An unlisted value has a listed one's fingerprint, and so its code, with a chance of categories / 2⁶⁴.

    Args:
        column: The field's column.
        values: The listed categories, sorted: they have the codes from 1.
        missing_code: Code of a missing value.
    """

    def __init__(self, column: str, values: pa.Array, missing_code: int) -> None:
        super().__init__(column, size=1 + max(len(values), missing_code), missing_code=missing_code)
        self._seed, words = _distinct_fingerprints(values)
        order = np.argsort(words)
        self._words = words[order]
        self._codes = (order + 1).astype(np.int32)

    def _codes_of(self, values: pa.Array) -> NarrowCodes:
        words = fingerprints(values, self._seed)
        if self._words.size == 0:
            return np.zeros(words.size, np.int32)
        # Sorted, they are found in order, which is several times faster in a large table.
        order = np.argsort(words)
        places = np.minimum(np.searchsorted(self._words, words[order]), self._words.size - 1)
        codes = np.empty(words.size, np.int32)
        codes[order] = np.where(self._words[places] == words[order], self._codes[places], 0)
        return codes


def _distinct_fingerprints(values: pa.Array) -> tuple[int, Words]:
    """Return a seed under which no two values have the same fingerprint, and the fingerprints."""
    seed = 0
    while True:
        words = fingerprints(values, seed)
        if np.unique(words).size == words.size:
            return seed, words
        seed += 1


class BucketCoder(FieldCoder):
    """Hashes the values of one field; no record has code 0.

    Args:
        column: The field's column; its name goes into the hash.
        buckets: Number of different hash codes, from 1; the next one is that of a missing value.
        key: The key, see :func:`splitvfl.data.hashing.hash_key`.
    """

    def __init__(self, column: str, buckets: int, key: bytes) -> None:
        super().__init__(column, size=buckets + 2, missing_code=buckets + 1)
        self._buckets = buckets
        self._key = key

    def _codes_of(self, values: pa.Array) -> NarrowCodes:
        """Hash values as texts alike in every version: whole numbers in digits, others as Python writes them."""
        cells = values.to_pylist()
        texts = cells if pa.types.is_string(values.type) else map(repr, cells)
        return bucket_codes(texts, column=self.column, key=self._key, buckets=self._buckets)


def as_tensors(values: pa.Array) -> Mapping[str, tuple[str, npt.NDArray[np.generic]]]:
    """Return a vocabulary as tensors, by what follows the field's name: safetensors type and numbers.

    Text becomes ``bytes`` (all of it, UTF-8) and ``offsets`` (one more than there are categories); numbers ``values``.
    """
    if pa.types.is_string(values.type):
        offsets, data = text_buffers(values)
        return {"bytes": ("U8", data), "offsets": ("I64", offsets)}
    return {"values": ("F64" if pa.types.is_floating(values.type) else "I64", values.to_numpy())}


def from_tensors(tensors: Mapping[str, npt.NDArray[np.generic]]) -> pa.Array:
    """Return the vocabulary that :func:`as_tensors` made tensors of."""
    if "values" in tensors:
        return pa.array(tensors["values"])
    offsets = pa.py_buffer(tensors["offsets"].astype(np.int32))
    return pa.Array.from_buffers(
        pa.string(), len(tensors["offsets"]) - 1, [None, offsets, pa.py_buffer(tensors["bytes"])]
    )
