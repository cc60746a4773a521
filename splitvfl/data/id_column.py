"""The column by which parties recognise a record, made the same at all of them.

A cell becomes an id like this: a whole number in decimal digits; text in Unicode's normal form C, without blanks around
it, and, if that is agreed on, with letter case folded. Cells of CSV files are text as it stands there: ``007`` is not
``7``, and is ``007`` in a Parquet file of text too. An id that is missing, empty, or there twice is an error.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.data.chunks import Chunk, Source
from splitvfl.data.sources import cells_at, chunks, open_all
from splitvfl.data.tables import did_you_mean
from splitvfl.errors import DataError

Case = Literal["kept", "folded"]
Digests = npt.NDArray[np.uint8]

DIGEST_BYTES = 64
_PREFIX = b"splitvfl.align.1\0"


def normalised(cell: str, case: Case = "kept") -> str:
    r"""Return an id as all parties write it: see the module's rule.

    >>> normalised(" Zoe\u0308 ") == "Zo\u00eb"
    True
    >>> normalised("AB-1", "folded")
    'ab-1'
    """
    if not cell.isascii():
        cell = unicodedata.normalize("NFC", cell)
        if case == "folded":
            return unicodedata.normalize("NFC", cell.casefold()).strip()
    return (cell.casefold() if case == "folded" else cell).strip()


def id_digest(name: str) -> bytes:
    """Return the 64 bytes that a normalised id is hashed to: SHA-512 of a prefix, a zero byte and its UTF-8."""
    return hashlib.sha512(_PREFIX + name.encode()).digest()


def read_digests(source: object, column: str, *, case: Case = "kept", called: str | None = None) -> Digests:
    """Return the hash of each record's id, in the files' order.

    Takes 64 bytes a record.

    Args:
        source: Files or a table in memory, as a :class:`splitvfl.data.spec.TableSpec` names them.
        column: The id column.
        case: Whether letter case counts (``"kept"``) or not (``"folded"``).
        called: What to call a table in memory in messages, unless "the table".

    Returns:
        :func:`id_digest` of each, ``(records, 64)`` uint8, all different.

    Raises:
        DataError: If a file or the column is not there, holds neither whole numbers nor text, or an id is missing or
            there twice; both places are named.
    """
    sources = open_all(source, called=called)
    check_id_column(sources, column)
    types = {column: pa.string()}
    parts = [b"".join(map(id_digest, names_in(chunk, column, case))) for chunk in chunks(sources, types)]
    data = b"".join(parts)
    parts.clear()
    if not data:
        raise DataError(f"{sources[0].name} has a header and no rows")
    digests = np.frombuffer(data, np.uint8).reshape(-1, DIGEST_BYTES)
    repeat = first_repeat(digests)
    if repeat is not None:
        raise repeated_id(sources, column, repeat)
    return digests


def repeated_id(sources: Sequence[Source], column: str, rows: Sequence[int]) -> DataError:
    """Return the error that two rows, ascending and counted over all files, have the same id; both are looked up."""
    (place, value), (other_place, other) = cells_at(sources, column, pa.string(), rows)
    same = repr(other) if value == other else f"{other!r}, which is {value!r} once normalised,"
    return DataError(
        f"{other_place}, column {column!r}: id {same} is there already in {place}; ids must differ: take all but one "
        "out"
    )


def check_id_column(sources: Sequence[Source], column: str) -> None:
    """Check that every file has a column that can name records.

    Raises:
        DataError: If one has not, or it holds neither whole numbers nor text there.
    """
    for source in sources:
        where = source.name
        if column not in source.names:
            raise DataError(
                f"no column {column!r} in {where}, which should name the records{did_you_mean(column, source.names)}"
            )
        # Cells of CSV files are taken as text, whatever they look like.
        kind = "text" if not source.typed else source.infer([column], ()).get(column, "text")
        if kind not in ("integer", "text"):
            raise DataError(
                f"id column {column!r} of {where} must hold whole numbers or text, and holds fractions or truth values"
            )


def names_in(chunk: Chunk, column: str, case: Case) -> Iterator[str]:
    """Yield the id of each row as all parties write it.

    Args:
        chunk: Rows; the column is of text or of whole numbers.
        column: The id column.
        case: Whether letter case counts.

    Raises:
        DataError: If one is missing or empty, with its place.
    """
    for row, cell in enumerate(chunk.columns[column].cast(pa.string()).to_pylist()):
        name = "" if cell is None else normalised(cell, case)
        if not name:
            raise DataError(f"{chunk.place(row)}, column {column!r}: there is no id")
        yield name


def first_repeat(rows: npt.NDArray[np.uint8]) -> tuple[int, int] | None:
    """Return the places of two equal rows, ascending, if there are any.

    Args:
        rows: ``(n, width)`` uint8, the width a multiple of 8.
    """
    words = np.ascontiguousarray(rows).view("<u8")
    order = np.argsort(words[:, 0], kind="stable")
    # Rows with the same first word are rare unless they are equal; all words of these alone are compared.
    near = np.flatnonzero(words[order[1:], 0] == words[order[:-1], 0])
    suspects = np.union1d(order[near], order[near + 1])
    order = suspects[np.lexsort(words[suspects].T)]
    equal = np.flatnonzero((words[order[1:]] == words[order[:-1]]).all(axis=1))
    return (int(order[equal[0]]), int(order[equal[0] + 1])) if len(equal) else None


def fingerprint(digests: Digests) -> str:
    """Return a digest of an id column in its order, in hexadecimal; it differs where records or their order do."""
    return hashlib.sha256(np.ascontiguousarray(digests).data).hexdigest()


def order_digest(ids: npt.NDArray[np.int64]) -> str:
    """Return SHA-256 of ids in their order, as 8 bytes each, little-endian; in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(ids, "<i8").data).hexdigest()
