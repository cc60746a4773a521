"""How a CSV file is laid out: what separates its cells, and where its header line stands."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from splitvfl.errors import DataError

DELIMITERS = ",;\t|"
# As much of a file is looked at.
LOOKED_AT_BYTES = 1 << 16
# Excel writes and reads this line before the header.
_EXCEL_LINE = re.compile(r'"?sep=(?P<delimiter>.)"?\r?\n', re.IGNORECASE)
_NUMBER = re.compile(r"\s*[-+]?[\d.,]*\d\s*")


class Layout(NamedTuple):
    """The layout of a CSV file.

    Attributes:
        delimiter: What separates its cells.
        skipped: Lines before the header, or before the first row where there is no header line.
        trailing: Columns at the end that have neither a name nor a value, as every line ends with a delimiter.
    """

    delimiter: str
    skipped: int
    trailing: int


class _Row(NamedTuple):
    """The cells of a row, and the number of lines before it."""

    cells: Sequence[str]
    before: int


class _Look(NamedTuple):
    """What a file looks like with one delimiter: comment lines, the rows that follow, and how many cells most have."""

    delimiter: str
    rows: Sequence[_Row]
    cells: int

    def rank(self, names: int | None) -> tuple[bool, bool, float, int]:
        """Return how well the delimiter fits: the larger, the better."""
        counts = [len(row.cells) for row in self.rows]
        share = counts.count(self.cells) / max(len(counts), 1)
        first = names if names is not None else counts[0] if counts else 0
        # One ragged line must not decide, hence one digit.
        return self.cells > 1, first == self.cells, round(share, 1), self.cells

    def numbers(self) -> float:
        """Return the share of cells that are numbers: it decides between delimiters of one rank."""
        numbers = [bool(_NUMBER.fullmatch(cell)) for row in self.rows for cell in row.cells]
        return sum(numbers) / max(len(numbers), 1)


def layout_of(text: str, *, name: str, header: Sequence[str] | None = None) -> Layout:
    r"""Return the layout of a file.

    The delimiter is the one of comma, semicolon, tab and ``|`` by which the first line and most of those that follow
    have the same number of cells, two at least; of several, the one with the most cells. Quotation marks are respected.
    Lines that begin with ``#`` before the header are skipped, unless the last of them is the header itself; so is
    Excel's line ``sep=;``.

    Args:
        text: The first lines of the file, whole ones.
        name: What to call the file in messages.
        header: Names of its columns if it has no header line.

    Raises:
        DataError: If the first line has not as many cells as most that follow; it says what to do.

    >>> layout_of("# made by hand\na;b\n1,5;2\n", name="t.csv")
    Layout(delimiter=';', skipped=1, trailing=0)
    """
    said = _EXCEL_LINE.match(text)
    skipped = 0 if said is None else 1
    sample = _whole_lines(text[0 if said is None else said.end() :])
    best = _best(sample, DELIMITERS if said is None else said["delimiter"], None if header is None else len(header))
    if not best.rows:
        return Layout(best.delimiter, skipped, 0)
    if header is None:
        _check_header(best, skipped, name)
    return Layout(best.delimiter, skipped + best.rows[0].before, _trailing(best) if header is None else 0)


def _best(sample: str, delimiters: str, names: int | None) -> _Look:
    """Return how a sample looks with the delimiter that fits best, the first of those that fit alike."""
    # One that is nowhere in it makes one cell of a row: it is looked at where no other makes more of most rows.
    there = [_look(sample, delimiter) for delimiter in delimiters if delimiter in sample]
    if not any(look.cells > 1 for look in there):
        there = [_look(sample, delimiter) for delimiter in delimiters]
    ranks = [look.rank(names) for look in there]
    alike = [look for look, rank in zip(there, ranks, strict=True) if rank == max(ranks)]
    return alike[0] if len(alike) == 1 else max(alike, key=_Look.numbers)


def _trailing(look: _Look) -> int:
    """Return how many columns at the end have neither a name nor a value."""
    alike = [row.cells for row in look.rows if len(row.cells) == look.cells]
    if len(alike) < 2 or alike[0] is not look.rows[0].cells:
        return 0
    return next((place for place in range(look.cells) if any(cells[-1 - place].strip() for cells in alike)), 0)


def in_words(delimiter: str) -> str:
    """Return a delimiter as people name it.

    >>> in_words(";")
    'semicolon'
    """
    return {",": "comma", ";": "semicolon", "\t": "tab"}.get(delimiter, repr(delimiter))


def _whole_lines(text: str) -> str:
    """Return the first lines of a text, without the one that is cut off; of a single long line its beginning."""
    if len(text) <= LOOKED_AT_BYTES:
        return text
    head = text[:LOOKED_AT_BYTES]
    return head[: head.rfind("\n") + 1] or head


def _look(text: str, delimiter: str) -> _Look:
    rows: list[_Row] = []
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter)
    before = 0
    with suppress(csv.Error):  # the reader of the blocks says in which line; here the rows before it will do
        for cells in reader:
            if cells:
                rows.append(_Row(cells, before))
            before = reader.line_num
    counts = Counter(len(row.cells) for row in rows)
    # Of equally many rows the first one decides.
    most = max(counts, key=lambda count: counts[count]) if counts else 0
    marked = next((place for place, row in enumerate(rows) if not row.cells[0].lstrip().startswith("#")), 0)
    # A header line may begin with # as well: then it has a cell for each column, and no other header follows.
    named = marked > 0 and len(rows[marked - 1].cells) == most and not _are_names(rows[marked:])
    return _Look(delimiter, rows[marked - named :], most)


def _are_names(rows: Sequence[_Row]) -> bool:
    """Return whether the first row holds no number, and others hold numbers in one of its columns."""
    first, *others = (row.cells for row in rows)
    if any(map(_NUMBER.fullmatch, first)):
        return False
    alike = [cells for cells in others if len(cells) == len(first)]
    columns = zip(*alike, strict=True)
    return any(2 * sum(bool(_NUMBER.fullmatch(cell)) for cell in column) > len(alike) for column in columns)


def _check_header(look: _Look, skipped: int, name: str) -> None:
    """Refuse a header that has not as many cells as most lines."""
    first, *others = look.rows
    got, most = len(first.cells), look.cells
    alike = [row for row in others if len(row.cells) == most]
    if got == most or most < 2 or 2 * len(alike) <= len(others):
        return
    line, next_line = skipped + first.before + 1, skipped + alike[0].before + 1
    place = f"{name}, line {line}: expected {most} cells as in most lines that follow, got {got}"
    if got == most - 1 and not any(row.cells[-1].strip() for row in alike):
        raise DataError(
            f"{place}: the other lines end with a {in_words(look.delimiter)}, and the header does not; take it off "
            "the ends of lines, or add one to the header"
        )
    if got == most + 1 and not first.cells[-1].strip():
        raise DataError(
            f"{place}: the header ends with a {in_words(look.delimiter)}, and the other lines do not; take it off"
        )
    if got == most - 1:
        raise DataError(f"{place}: one column has no name; write one for each column into the header")
    raise DataError(
        f"{place}. The first line must name the columns. If line {next_line} does, delete those above it, or begin "
        "each of them with #; if a cell of the others holds a "
        f"{in_words(look.delimiter)}, put the cell in quotation marks"
    )
