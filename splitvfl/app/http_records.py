"""From the body of a request to records that can be scored: everything in it is looked at before it is used.

::

    {"records": [{"id": "c301", "age": 44.0, "plan": "b"}, {"id": "c302", "age": null, "plan": "a"}]}
    {"id": "c301", "age": 44.0, "plan": "b"}

Columns are the label party's own, as they were in the file that it trained on. Where it has the records itself, the id
alone will do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

from splitvfl.data.cell_format import AS_USUAL, Mistake, read_numbers, without_gaps
from splitvfl.data.columns import Columns, Records
from splitvfl.data.drift import Counts
from splitvfl.data.encoding import Encoded, FittedCategories, FittedEncoding, FittedNumbers
from splitvfl.data.id_column import Case, normalised
from splitvfl.data.plain_columns import list_places
from splitvfl.data.record_index import RecordIndex, asked_digests
from splitvfl.data.tables import did_you_mean
from splitvfl.errors import DataError, SplitVFLError
from splitvfl.run.online import MOST_ROWS, Question

RECORDS: Final = "records"
ID: Final = "id"

_LONGEST_ID: Final = 200
_LONGEST_TEXT: Final = 10_000
_SHOWN: Final = 80
# Its place among the columns of a request; a column of the model has a name of one character at least.
_NUMBER: Final = ""


class RequestMistake(SplitVFLError):
    """A request is not as it must be; the message says what was expected, what came, and where.

    Attributes:
        status: The HTTP status that says so.
        where: Place in the body, as in ``records[3].age``; empty where it is all of it.
    """

    def __init__(self, message: str, *, status: int = 422, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.status, self.where = status, where


@dataclass(frozen=True, eq=False)
class OwnRecords:
    """Records that the label party has itself, to be looked up by their ids.

    Attributes:
        records: The records.
        index: Where they are.
    """

    records: Records
    index: RecordIndex


@dataclass(frozen=True, eq=False)
class Asked:
    """What one request asks for.

    Attributes:
        ids: As the request has them.
        own: Which of them have columns here, ``(n,)`` bool; the others are not held by this party.
        question: What the partners are asked, for those that have.
        unknown: Of each record, its columns that hold a category which training did not know.
        single: Whether the request was one record without a list.
        counts: What was counted of the columns that were sent, to find drift.
    """

    ids: tuple[str | int, ...]
    own: tuple[bool, ...]
    question: Question
    unknown: tuple[tuple[str, ...], ...]
    single: bool
    counts: Mapping[str, Counts]


class RequestReader:
    """Reads the bodies of requests.

    Args:
        encoding: How the label party's columns become numbers; ``None``: they cannot be sent, and are looked up.
        run: Number of the run.
        row_norm: What numeric rows are scaled down to; ``None``: they are not.
        case: Whether letter case counts in ids.
        id_column: What the label party calls the column of the ids: taken as a name of it, beside ``id``.
        own: Its own records, if it has them.
        most: Records in a request, at most.
    """

    def __init__(
        self,
        encoding: FittedEncoding | None,
        *,
        run: str,
        row_norm: float | None = None,
        case: Case = "kept",
        id_column: str | None = None,
        own: OwnRecords | None = None,
        most: int = 1000,
    ) -> None:
        self._fitted = {} if encoding is None else {one.column: one for one in encoding.columns}
        self._lists = {} if encoding is None else encoding.lists
        self._encoding, self._run, self._row_norm, self._case, self._own = encoding, run, row_norm, case, own
        self._id_keys = tuple(key for key in dict.fromkeys((ID, id_column)) if key and key not in self._fitted)
        self._most = min(most, MOST_ROWS)

    @property
    def columns(self) -> Mapping[str, str]:
        """What each column of a record must hold, in words."""
        return {name: _kind(one) for name, one in self._fitted.items()}

    @property
    def id_key(self) -> str:
        """What the id of a record is called."""
        return self._id_keys[0]

    def read(self, body: bytes) -> Asked:
        """Return what a body asks for.

        Raises:
            RequestMistake: If anything in it is not as it must be.
        """
        given, single = self._listed(_parsed(body))
        found = [self._record(one, "" if single else f"{RECORDS}[{place}]") for place, one in enumerate(given)]
        ids = [one for one, _ in found]
        digests = asked_digests([normalised(str(one), self._case) for one in ids], run=self._run)
        sent = [place for place, (_, columns) in enumerate(found) if columns is not None]
        kept = [place for place, (_, columns) in enumerate(found) if columns is None]
        encoded = self._encoded([found[place][1] or {} for place in sent], [] if single else sent)
        places = np.full(0, 0) if self._own is None else self._own.index.find(digests[kept])
        own = [True] * len(ids)
        for place, row in zip(kept, places.tolist(), strict=True):
            own[place] = row >= 0
        columns = self._stacked(len(ids), sent, encoded, [p for p in kept if own[p]], places[places >= 0])
        asked = torch.tensor([place for place, here in enumerate(own) if here], dtype=torch.int64)
        wanted = torch.from_numpy(digests.copy())[asked]
        numbers = wanted[:, :8].contiguous().view(torch.int64)[:, 0] if len(asked) else asked
        records = Records(numbers, columns.rows(asked), row_norm=self._row_norm)
        unknown = self._unknown([columns for _, columns in found], encoded)
        counts = {} if encoded is None else encoded.counts
        return Asked(tuple(ids), tuple(own), Question(records, wanted), unknown, single, counts)

    # --- its form

    def _listed(self, content: Any) -> tuple[list[Any], bool]:
        if not isinstance(content, dict):
            raise RequestMistake(f"expected an object, got {_shown(content)}; {self._form}")
        if RECORDS not in content or RECORDS in self._fitted:
            return [content], True
        records = content[RECORDS]
        if set(content) != {RECORDS}:
            other = next(key for key in content if key != RECORDS)
            raise RequestMistake(f"expected nothing beside {RECORDS}, got {_shown(other)}; {self._form}")
        if not isinstance(records, list) or not 1 <= len(records) <= self._most:
            came = f"{len(records)}" if isinstance(records, list) else _shown(records)
            raise RequestMistake(f"expected a list of 1 to {self._most} records, got {came}", where=RECORDS)
        return records, False

    @property
    def _form(self) -> str:
        example = {self.id_key: "...", **dict.fromkeys(self._fitted, "...")}
        return f"send {json.dumps({RECORDS: [example]})[:500]}"

    def _record(self, given: Any, where: str) -> tuple[str | int, dict[str, Any] | None]:
        """Return the id and the columns of one record; ``None`` where they are to be looked up."""
        if not isinstance(given, dict):
            raise RequestMistake(f"expected an object with an {self.id_key}, got {_shown(given)}", where=where)
        keys = [key for key in self._id_keys if key in given]
        if len(keys) != 1:
            came = "none" if not keys else f"both {' and '.join(keys)}"
            raise RequestMistake(f"expected {_inside(where, self.id_key)}, the id of the record, got {came}")
        name = _checked_id(given[keys[0]], _inside(where, keys[0]))
        columns = {key: value for key, value in given.items() if key != keys[0]}
        return name, self._checked_columns(columns, where)

    def _checked_columns(self, given: dict[str, Any], where: str) -> dict[str, Any] | None:
        for name in self._lists.keys() & given.keys() - self._fitted.keys():
            given |= self._places(name, given.pop(name), given, where)
        unknown = next((key for key in given if key not in self._fitted), None)
        if unknown is not None:
            advice = did_you_mean(unknown, self._fitted, used=given) if self._fitted else "; send the id alone"
            raise RequestMistake(f"no such column{advice}", where=_inside(where, _shown_name(unknown)))
        if not given and self._own is not None:
            return None
        missing = [name for name in self._fitted if name not in given]
        if missing:
            alone = " (or the id alone)" if self._own is not None else ""
            expected = f"expected {_kind(self._fitted[missing[0]])}, got no such key; a record needs all of"
            names = ", ".join(list(self._fitted)[:20])
            raise RequestMistake(f"{expected} {names}{alone}", where=_inside(where, missing[0]))
        return {name: self._checked(value, self._fitted[name], _inside(where, name)) for name, value in given.items()}

    def _checked(self, value: Any, fitted: FittedNumbers | FittedCategories, where: str) -> Any:
        """Return a cell as it would have been read from the file that was trained on.

        Where settings say how its cells are written, a text may be a number, or say that nothing is known.
        """
        written = AS_USUAL if self._encoding is None else self._encoding.written
        text = isinstance(fitted, FittedCategories) and fitted.kind == "text"
        if written.is_given and isinstance(value, str) and _encodes(value) and len(value) <= _LONGEST_TEXT:
            if text and fitted.column not in written.text:
                value = without_gaps(pa.array([value]), written)[0].as_py()
            elif not text:
                found = read_numbers(pa.array([value]), written, unit=written.column_units.get(fitted.column))
                if isinstance(found, Mistake):
                    raise RequestMistake(
                        f"expected {_kind(fitted)}, as in the file that was trained on, got {_shown(value)}",
                        where=where,
                    )
                value = found[0].as_py()
        return _checked(value, fitted, where)

    def _places(self, name: str, value: Any, given: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the columns that a list becomes: those of its places that the model takes."""
        length, inside = self._lists[name], _inside(where, name)
        if value is not None and not (isinstance(value, list) and len(value) == length):
            came = f"{len(value)}" if isinstance(value, list) else _shown(value)
            raise RequestMistake(f"expected a list of {length} numbers, got {came}", where=inside)
        places = list_places(name, length)
        if twice := next((place for place in places if place in given), None):
            raise RequestMistake(f"expected {name} or {twice}, got both", where=inside)
        cells = zip(places, [None] * length if value is None else value, strict=True)
        return {place: cell for place, cell in cells if place in self._fitted}

    # --- its columns

    def _encoded(self, rows: list[dict[str, Any]], places: Sequence[int]) -> Encoded | None:
        """Return records as numbers; ``places`` says where they are in the list of the request, if there is one."""
        if self._encoding is None or not rows:
            return None
        try:
            return self._encoding.apply(self._table(rows), source="the request", count=True)
        except DataError as error:
            if len(rows) == 1:
                where = f"{RECORDS}[{places[0]}]" if places else ""
                raise RequestMistake(str(error), where=where) from error
            for row, place in zip(rows, places, strict=True):
                self._encoded([row], [place])
            raise

    def _table(self, rows: list[dict[str, Any]]) -> pa.Table:
        """Return rows as a table; with their numbers, so that it has rows where there is no column."""
        arrays = {name: _array([row[name] for row in rows], one) for name, one in self._fitted.items()}
        return pa.table({_NUMBER: pa.array(range(len(rows))), **arrays})

    def _stacked(
        self, count: int, sent: list[int], encoded: Encoded | None, kept: list[int], places: np.ndarray[Any, Any]
    ) -> Columns:
        """Return the columns of all records, those that were sent and those that were looked up; others are zero."""
        like = Columns(torch.from_numpy(encoded.numeric), torch.from_numpy(encoded.codes)) if encoded else None
        looked_up = None if self._own is None else self._own.records.columns.rows(torch.from_numpy(places))
        numeric, codes = (torch.zeros((count, part.shape[1]), dtype=part.dtype) for part in like or looked_up or ())
        for rows, found in ((sent, like), (kept, looked_up)):
            if rows and found is not None:
                numeric[rows], codes[rows] = found.numeric, found.categorical.to(codes.dtype)
        return Columns(numeric, codes)

    def _unknown(self, rows: list[dict[str, Any] | None], encoded: Encoded | None) -> tuple[tuple[str, ...], ...]:
        """Return, of every record that was sent, its columns with a category that training did not know."""
        strange = {} if encoded is None else encoded.unknown
        return tuple(tuple(name for name in strange if row and self._is_strange(name, row[name])) for row in rows)

    def _is_strange(self, name: str, value: Any) -> bool:
        fitted = self._fitted[name]
        return isinstance(fitted, FittedCategories) and int(fitted.codes(_array([value], fitted))[0]) == 0


# --- JSON


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number)
    except RequestMistake:
        raise
    except RecursionError:
        raise RequestMistake(
            "expected a list of records, got lists within lists too deep to read", status=400
        ) from None
    except UnicodeDecodeError as error:
        raise RequestMistake(f"expected UTF-8, got the byte 0x{body[error.start]:02x}", status=400) from None
    except ValueError as error:  # a number of too many digits included
        raise RequestMistake(f"expected JSON: {error}", status=400) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise RequestMistake(f"expected every key once, got {_shown(name)} twice", status=400)
        content[name] = value
    return content


def _no_number(text: str) -> None:
    raise RequestMistake(f"expected JSON, in which there is no {text}", status=400)


def _shown(value: Any) -> str:
    """Return another's value so that it can be shown: short, and on one line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _shown_name(name: str) -> str:
    return name if name.isprintable() and len(name) <= _SHOWN else _shown(name)


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _checked_id(value: Any, where: str) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RequestMistake(f"expected an id, a text or a whole number, got {_shown(value)}", where=where)
    text = str(value)
    if len(text) > _LONGEST_ID or not text.strip():
        raise RequestMistake(f"expected an id of 1 to {_LONGEST_ID} characters, got {len(text)}", where=where)
    if not _encodes(text):
        raise RequestMistake(f"expected an id of Unicode characters, got {_shown(value)}", where=where)
    return value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


# --- cells


def empty_table(encoding: FittedEncoding) -> pa.Table:
    """Return a table with the columns that an encoding takes, and no row."""
    return pa.table({_NUMBER: pa.array([], pa.int64()), **{one.column: _array([], one) for one in encoding.columns}})


def _kind(fitted: FittedNumbers | FittedCategories) -> str:
    if isinstance(fitted, FittedNumbers):
        return "a number" if fitted.median is None else "a number or null"
    if _of_truth_values(fitted):
        return "true, false or null"
    return "a text or null" if fitted.kind == "text" else "a number or null"


def _of_truth_values(fitted: FittedNumbers | FittedCategories) -> bool:
    return isinstance(fitted, FittedCategories) and any(isinstance(value, bool) for value in fitted.values)


def _checked(value: Any, fitted: FittedNumbers | FittedCategories, where: str) -> Any:
    text = isinstance(fitted, FittedCategories) and fitted.kind == "text"
    optional = isinstance(fitted, FittedCategories) or fitted.median is not None
    fits = isinstance(value, str) if text else isinstance(value, int | float)
    if isinstance(value, bool) and not _of_truth_values(fitted):
        # To Python it is the number 1, which a column of amounts would take without a word.
        advice = "" if text else "; of a column of truth values send 1 or 0"
        raise RequestMistake(f"expected {_kind(fitted)}, got {_shown(value)}{advice}", where=where)
    if not (fits or (value is None and optional)):
        raise RequestMistake(f"expected {_kind(fitted)}, got {_shown(value)}", where=where)
    if isinstance(value, str) and (len(value) > _LONGEST_TEXT or not _encodes(value)):
        raise RequestMistake(
            f"expected a text of at most {_LONGEST_TEXT} Unicode characters, got {len(value)}", where=where
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise RequestMistake(f"expected a number within 64 bits, got {_shown(value)}", where=where)
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestMistake("expected a finite number, got one beyond the range of float64", where=where)
    return value


def _array(values: list[Any], fitted: FittedNumbers | FittedCategories) -> pa.Array:
    if isinstance(fitted, FittedNumbers):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if fitted.kind == "text":
        return pa.array(values, pa.string())
    whole = all(value is None or isinstance(value, int) for value in values)
    convert: Any = int if whole else float
    return pa.array(
        [None if value is None else convert(value) for value in values], pa.int64() if whole else pa.float64()
    )
