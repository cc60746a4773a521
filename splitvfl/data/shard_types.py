"""Which types columns have in shards: the same in all of them, whatever the rows of one alone look like.

Columns of typed files keep their types. A column that they have in different types, and those of CSV files, get the one
that an ingest of the same files reads them with. A column of a CSV file holds whole numbers if all its cells do, which
a look at all of them tells; the id column only if each of its cells is also the same id as a number: ``007`` is not.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from splitvfl.data.arrow_source import TypedSource
from splitvfl.data.chunks import Chunk, Source
from splitvfl.data.csv_source import CsvSource
from splitvfl.data.ingest.plan import read_type
from splitvfl.data.plain_columns import declared
from splitvfl.data.sources import infer_kinds
from splitvfl.data.spelling import setting
from splitvfl.errors import DataError

Types = dict[str, pa.DataType]
Watcher = Callable[[Chunk], None]

# A cell that is the same id as a number and as text; blanks around it do not count for ids.
_DECIMAL = r"\A[ \t]*(0|-?[1-9][0-9]*)[ \t]*\z"
_TEXTS = (pa.large_string(), pa.string_view())


def column_types(
    sources: Sequence[Source], columns: Sequence[str], *, id_column: str, text: Collection[str], watch: Watcher
) -> Types:
    """Return the type of each column in all shards.

    Args:
        sources: The files.
        columns: Their columns that are kept.
        id_column: The one that names the records: of whole numbers or text, as
            :func:`splitvfl.data.id_column.check_id_column` has seen.
        text: Columns of CSV files to keep as text whatever they look like.
        watch: Called with every chunk, if all rows of the CSV files have to be looked at.

    Raises:
        DataError: If a column holds text in one file and numbers in another, dates in a CSV file, or what Parquet files
            cannot hold; or if there are no rows.
    """
    types = {name: kind for name in columns if (kind := _common_type(sources, name)) is not None}
    guessed = [name for name in columns if name not in types and name != id_column]
    kinds = infer_kinds(sources, guessed, text=text)
    types |= {name: read_type(kind, numeric=False) for name, kind in kinds.items()}
    if id_column not in types:
        types[id_column] = pa.string() if id_column in text or not _may_be_numbers(sources, id_column) else pa.int64()
    whole = [name for name in (*guessed, id_column) if types[name] == pa.int64()]
    for name in set(whole) - _whole_throughout(sources, whole, id_column, watch):
        types[name] = pa.string() if name == id_column else pa.float64()
    for name in columns:
        _check_writable(name, types[name])
    return {name: types[name] for name in columns}


def as_schema(types: Types, sources: Sequence[Source]) -> pa.Schema:
    """Return the columns of shards; what a file declares as categories is declared so in all shards."""
    categories = frozenset().union(*(source.categories for source in sources))
    return pa.schema(
        [declared(name, kind) if name in categories else pa.field(name, kind) for name, kind in types.items()]
    )


def _common_type(sources: Sequence[Source], column: str) -> pa.DataType | None:
    """Return the type that a column has in all files; ``None`` if it has several, or one of them states none."""
    found = {_plain(source.type_of(column)) if isinstance(source, TypedSource) else None for source in sources}
    # A typed file without a value of it.
    stated = found - {pa.null()} or found
    return stated.pop() if len(stated) == 1 else None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without what Arrow has several layouts for, some of which its functions do not take."""
    if kind in _TEXTS:
        return pa.string()
    return pa.binary() if kind == pa.binary_view() else kind


def _may_be_numbers(sources: Sequence[Source], column: str) -> bool:
    """Return whether a column holds whole numbers in all typed files; cells of the others are looked at one by one."""
    typed = [source for source in sources if isinstance(source, TypedSource)]
    return all(pa.types.is_integer(source.type_of(column)) for source in typed)


def _whole_throughout(sources: Sequence[Source], columns: Collection[str], id_column: str, watch: Watcher) -> set[str]:
    """Return the columns that hold whole numbers in every row of every CSV file; typed files say so themselves.

    Cells that are no numbers at all are none of this: they are an error when they are read for good.
    """
    found, done = set(columns), 0
    for source in sources:
        for chunk in _as_they_look(source, found, id_column):
            found -= {name for name, cells in chunk.columns.items() if not _is_whole(cells)}
            if not found:
                return found
            watch(replace(chunk, done_bytes=done + chunk.done_bytes))
        done += source.size
    return found


def _as_they_look(source: Source, columns: Collection[str], id_column: str) -> Iterator[Chunk]:
    """Yield the rows of a CSV file; of another none. Ids are text: as a number, one does not show how it is written."""
    if isinstance(source, CsvSource):
        yield from source.as_they_look({name: pa.string() if name == id_column else None for name in columns})


def _is_whole(cells: pa.Array) -> bool:
    if not pa.types.is_string(cells.type):
        return not pa.types.is_floating(cells.type)
    if not pc.all(pc.match_substring_regex(cells, _DECIMAL)).as_py():
        return False
    try:
        pc.utf8_trim_whitespace(cells).cast(pa.int64())
    except pa.ArrowInvalid:  # more digits than 64 bits hold
        return False
    return True


def _check_writable(name: str, kind: pa.DataType) -> None:
    empty = pa.schema([(name, kind)]).empty_table()
    try:
        pyarrow.parquet.write_table(empty.take(pa.array([], pa.int64())), io.BytesIO())
    except pa.ArrowException as error:
        raise DataError(
            f"column {name!r} holds {kind}, which shards cannot: {error}; leave it out ({setting('drop')})"
        ) from error
