"""The column by which parties recognise a record, made the same at all of them: one rule, here, for every command.

A cell becomes an id like this:

- text stands for itself, in Unicode's normal form C, without blanks around it, and, if that is agreed on, with letter
  case folded. ``007``, ``+7`` and ``7.0`` are texts, and none of them is ``7``. Cells of CSV files are text as they
  stand there;
- whole numbers, of whatever type the column is, are their decimal digits: 7, and the 7.0 of a column of fractions, as a
  join with gaps leaves it, are ``7``. Fractions are an error;
- UUIDs are small letters in their canonical form, of Arrow's type and as text of that form alike;
- bytes are what they are in UTF-8, or an error.

An id that is missing, empty, or there twice is an error, also if it is there twice in two ways of writing.

Where records have numbers (in tables and in messages), an id of 64 bits that is written as a whole number is that
number, and any other one is the hash of its text (:func:`splitvfl.data.hashing.text_ids`).

What was written by an earlier version keeps that version's rule (:data:`FIRST_RULE`): the folder of a run, of tables,
of an alignment or of shards says which one it was made by, and says nothing if it was the first.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.arrow_source import TypedSource
from splitvfl.data.chunks import Chunk, Source
from splitvfl.data.hashing import text_ids
from splitvfl.data.id_rules import FIRST_RULE, ID_RULE, RuleVersion
from splitvfl.data.sources import cells_at, chunks, open_all
from splitvfl.data.tables import Rows, did_you_mean
from splitvfl.data.typed_cells import as_text, is_plain, names_records
from splitvfl.errors import DataError

Case = Literal["kept", "folded"]
Digests = npt.NDArray[np.uint8]

AS_IT_STANDS: Final = None
"""The type that an id column is read with."""

DIGEST_BYTES = 64
_PREFIX = b"splitvfl.align.1\0"


_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_UUID_LENGTH = 36
_WHOLE = re.compile(r"-?[1-9][0-9]{0,18}|0")
# So short that 64 bits hold it, whatever its digits are.
_SHORT_WHOLE = r"\A(?:0|-?[1-9][0-9]{0,17})\z"
_NUMBERS = np.iinfo(np.int64)


def normalised(cell: str, case: Case = "kept", *, rule: RuleVersion = ID_RULE) -> str:
    r"""Return an id that is text as all parties write it: see the module's rule.

    >>> normalised(" Zoe\u0308 ") == "Zo\u00eb"
    True
    >>> normalised("AB-1", "folded")
    'ab-1'
    >>> normalised("123E4567-E89B-12D3-A456-426614174000")
    '123e4567-e89b-12d3-a456-426614174000'
    """
    if not cell.isascii():
        cell = unicodedata.normalize("NFC", cell)
        if case == "folded":
            return unicodedata.normalize("NFC", cell.casefold()).strip()
    cell = (cell.casefold() if case == "folded" else cell).strip()
    is_uuid = len(cell) == _UUID_LENGTH and rule != FIRST_RULE and _UUID.fullmatch(cell)
    return cell.lower() if is_uuid else cell


def whole_number(name: str) -> int | None:
    """Return the number that an id is written as, if it is one of 64 bits; ``007`` and ``+7`` are none.

    >>> whole_number("-7"), whole_number("007")
    (-7, None)
    """
    number = int(name) if _WHOLE.fullmatch(name) else None
    return number if number is not None and _NUMBERS.min <= number <= _NUMBERS.max else None


def id_numbers(names: Sequence[str]) -> Rows:
    """Return the number by which each record is known, ``(n,)`` int64; names are as :func:`normalised` writes them.

    >>> id_numbers(["7", "-3"]).tolist(), bool(id_numbers(["007"])[0] == 7)
    ([7, -3], False)
    """
    whole = list(map(whole_number, names))
    numbers: Rows = np.array([0 if number is None else number for number in whole], np.int64)
    others = [place for place, number in enumerate(whole) if number is None]
    numbers[others] = text_ids(names[place] for place in others)
    return numbers


def numbers_in(chunk: Chunk, column: str) -> tuple[Rows, int]:
    """Return the number by which each row of a chunk is known, and how many ids are whole numbers.

    Arguments and errors are as of :func:`names_in`.
    """
    cells = chunk.columns[column]
    if not cells.null_count and pa.types.is_integer(cells.type) and not pa.types.is_uint64(cells.type):
        return np.asarray(cells.to_numpy(), np.int64), chunk.rows
    text = pa.types.is_string(cells.type) and not cells.null_count
    if text and pc.all(pc.match_substring_regex(cells, _SHORT_WHOLE)).as_py():
        return np.asarray(cells.cast(pa.int64()).to_numpy(), np.int64), chunk.rows
    names = list(names_in(chunk, column, "kept"))
    return id_numbers(names), sum(whole_number(name) is not None for name in names)


def ids_in_table(cells: pa.Array, column: str, source: str) -> list[str]:
    """Return the id of each row of a table in memory as all parties write it, all different.

    Args:
        cells: The id column.
        column: Its name.
        source: What to call the table.

    Raises:
        DataError: If the column cannot name records, or an id is missing, empty, or there twice; places are named.
    """
    _check_type(cells.type, column, source)
    chunk = Chunk.of(pa.table({column: cells}).combine_chunks(), [column], source=source)
    names = list(names_in(chunk, column, "kept"))
    seen: dict[str, int] = {}
    for row, name in enumerate(names):
        first = seen.setdefault(name, row)
        if first != row:
            found = [(chunk.place(one), cells[one].as_py()) for one in (first, row)]
            raise _repeated(column, *found)
    return names


def numbers_of(cells: pa.Array, column: str, source: str) -> Rows:
    """Return the number by which each row of a table in memory is known; arguments and errors as of `ids_in_table`.

    Raises:
        DataError: As :func:`ids_in_table`, or if two ids have one number, as one of four billion has.
    """
    numbers = id_numbers(ids_in_table(cells, column, source))
    if len(np.unique(numbers)) < len(numbers):
        raise DataError(f"id column {column!r} of {source}: two ids have the same 63-bit hash; number the records")
    return numbers


def names_kept(cells: pa.Array, column: str, source: str) -> pa.Array:
    """Return ids as they are written beside scores: text and whole numbers as they stand, all else as text.

    Raises:
        DataError: As :func:`ids_in_table`.
    """
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if is_plain(cells.type):
        return cells
    _check_type(cells.type, column, source)
    return pa.array(names_in(Chunk.of(pa.table({column: cells}), [column], source=source), column, "kept"), pa.string())


def id_digest(name: str) -> bytes:
    """Return the 64 bytes that a normalised id is hashed to: SHA-512 of a prefix, a zero byte and its UTF-8."""
    return hashlib.sha512(_PREFIX + name.encode()).digest()


def read_digests(
    source: object, column: str, *, case: Case = "kept", called: str | None = None, rule: RuleVersion = ID_RULE
) -> Digests:
    """Return the hash of each record's id, in the files' order.

    Takes 64 bytes a record.

    Args:
        source: Files or a table in memory, as a :class:`splitvfl.data.spec.TableSpec` names them.
        column: The id column.
        case: Whether letter case counts (``"kept"``) or not (``"folded"``).
        called: What to call a table in memory in messages, unless "the table".
        rule: Version of the rule.

    Returns:
        :func:`id_digest` of each, ``(records, 64)`` uint8, all different.

    Raises:
        DataError: If a file or the column is not there or cannot name records, or an id is missing or there twice; both
            places are named.
    """
    sources = open_all(source, called=called)
    check_id_column(sources, column)
    found = chunks(sources, {column: AS_IT_STANDS})
    parts = [b"".join(map(id_digest, names_in(chunk, column, case, rule=rule))) for chunk in found]
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
    return _repeated(column, *cells_at(sources, column, AS_IT_STANDS, rows))


def _repeated(column: str, first: tuple[str, object], second: tuple[str, object]) -> DataError:
    (place, value), (other_place, other) = first, second
    same = repr(other) if value == other else f"{other!r}, which is {value!r} once normalised,"
    return DataError(
        f"{other_place}, column {column!r}: id {same} is there already in {place}; ids must differ: take all but one "
        "out"
    )


def same_id(one: object, other: object) -> bool:
    """Return whether two cells of one column are the same id."""
    names = [list(names_in(Chunk.of(pa.table({"": [cell]}), [""], source=""), "", "kept")) for cell in (one, other)]
    return names[0] == names[1]


def check_id_column(sources: Sequence[Source], column: str) -> None:
    """Check that every file has a column that can name records.

    Raises:
        DataError: If one has not, or it is of a type that cannot there.
    """
    for source in sources:
        where = source.name
        if column not in source.names:
            raise DataError(
                f"no column {column!r} in {where}, which should name the records{did_you_mean(column, source.names)}"
            )
        # Cells of CSV files are text, whatever they look like.
        if isinstance(source, TypedSource):
            _check_type(source.type_of(column), column, where)


def _check_type(kind: pa.DataType, column: str, where: str) -> None:
    if not names_records(kind):
        raise DataError(
            f"id column {column!r} of {where} must hold whole numbers, text or UUIDs, and holds {kind}; write it as "
            "text"
        )


def names_in(chunk: Chunk, column: str, case: Case, *, rule: RuleVersion = ID_RULE) -> Iterator[str]:
    """Yield the id of each row as all parties write it.

    Args:
        chunk: Rows; the column is of a type that :func:`check_id_column` has seen.
        column: The id column.
        case: Whether letter case counts.
        rule: Version of the rule.

    Raises:
        DataError: If one is missing or empty, or no id, with its place.
    """
    try:
        cells = as_text(chunk.columns[column]).to_pylist()
    except DataError as error:
        raise DataError(f"{chunk.place(error.row or 0)}, column {column!r}: {error}") from error
    for row, cell in enumerate(cells):
        name = "" if cell is None else normalised(cell, case, rule=rule)
        if not name:
            raise missing_id(chunk.place(row), column)
        yield name


def missing_id(place: str, column: str) -> DataError:
    """Return the error that a row has no id."""
    return DataError(f"{place}, column {column!r}: there is no id; write one there, or take the record out")


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
