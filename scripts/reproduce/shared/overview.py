"""The overview of all claims: one table per paper, taken from the tables of the papers' pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.reproduce.shared.claims import CLAIM_HEADINGS, VERDICT_RULE, VERDICTS, markdown_table, write_whole
from scripts.reproduce.shared.pages import MADE
from scripts.reproduce.shared.papers import ENTRIES, PAPERS, Entry
from scripts.reproduce.shared.statements import NOT_JUDGED, STATEMENT_HEADINGS
from splitvfl.errors import ArgumentError, DataError

NAME = "index.md"
_HEADS = {f"| {' | '.join(headings)} |": headings for headings in (CLAIM_HEADINGS, STATEMENT_HEADINGS)}


class Row(NamedTuple):
    """A row of a page's table of claims, or of numbered claims, as it stands there, without the reason."""

    claim: str
    published: str
    ours: str
    seeds: str
    verdict: str


def rows_of(page: str) -> list[Row]:
    """Return the rows of all tables of claims on a page, and of numbered claims, in its order.

    Raises:
        ArgumentError: If a row has another number of cells, or a verdict that is not defined.
    """
    lines, found = iter(page.splitlines()), []
    for line in lines:
        headings = _HEADS.get(line)
        if headings is None:
            continue
        next(lines)  # how columns are aligned
        for row in lines:
            if not row.startswith("|"):
                break
            found.append(_row(row, headings))
    return found


def _row(line: str, headings: Sequence[str]) -> Row:
    # A stroke within a cell has a backslash before it.
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
    if len(cells) != len(headings):
        raise ArgumentError(f"expected {len(headings)} cells, got {len(cells)}: {line}")
    if headings is STATEMENT_HEADINGS:
        number, says, _, verdict, _ = cells
        # Its figures are those of other rows.
        row, allowed = Row(f"{number}: {says}", "–", "–", "–", verdict), (*VERDICTS, NOT_JUDGED)
    else:
        row, allowed = Row(*cells[:-1]), (*VERDICTS,)
    if row.verdict not in allowed:
        raise ArgumentError(f"expected a verdict of {', '.join(allowed)}, got {row.verdict!r}: {row.claim}")
    return row


def made_of(page: str) -> list[str]:
    """Return what a page says of how it was made, as items of a list: without what, at which cost, of which code."""
    _, _, section = page.partition(f"\n## {MADE}\n")
    return [line for line in section.splitlines() if line.startswith("- ") and re.search(r"\*\*|\bcells?,? ", line)]


def overview(folder: Path) -> str:
    """Return the overview of the pages in a folder.

    Raises:
        ArgumentError: As :func:`rows_of`.
    """
    pages = {entry: _read(folder / f"{entry.page}.md") for entry in PAPERS}
    rows = {entry: rows_of(text) for entry, text in pages.items()}
    parts = [
        _TEXT,
        "\n".join(f"- *{verdict}*: {meaning}" for verdict, meaning in VERDICTS.items()),
        VERDICT_RULE,
        _AFTER_VERDICTS,
        _counts(rows),
        *(_section(entry, pages[entry], rows[entry]) for entry in PAPERS),
        "## Without a paper",
        "\n".join(f"- [{entry.title}]({entry.page}.md)" for entry in ENTRIES if not entry.paper),
    ]
    return "\n\n".join(parts) + "\n"


def write_overview(folder: Path) -> Path:
    """Write the overview of the pages in a folder beside them, and return its path.

    Raises:
        ArgumentError: As :func:`rows_of`.
        DataError: If there is no such folder, or it cannot be written in.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder with pages, there is none")
    path = folder / NAME
    write_whole(path, overview(folder))
    return path


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _counts(rows: dict[Entry, list[Row]]) -> str:
    table = []
    for entry, own in rows.items():
        verdicts = Counter(row.verdict for row in own)
        table.append((entry.title, str(len(own)), *(str(verdicts[verdict]) for verdict in (*VERDICTS, NOT_JUDGED))))
    return markdown_table(("paper", "claims", *VERDICTS, NOT_JUDGED), table)


def _section(entry: Entry, page: str, rows: Sequence[Row]) -> str:
    if not page:
        return f"## {entry.title}\n\nThere is no page yet: `python -m {entry.module} --out DIR --page docs/results`."
    made = made_of(page) or ["- Made before pages said at which cost and of which code."]
    headings = CLAIM_HEADINGS[:-1]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    table = "\n".join([markdown_table(headings, [], last_left=1), *lines])
    return (
        f"## {entry.title}\n\nReasons and tables: [its page]({entry.page}.md).\n\n" + "\n".join(made) + f"\n\n{table}"
    )


_TEXT = """\
# What reproduces, claim by claim

Every claim that has a row in a table of claims on a paper's page, and every numbered one, as it stands there, without
its reason. `python -m scripts.reproduce all --quick` runs everything on little data; the pages say how each is made
whole. This page is written with them, or alone by `python -m scripts.reproduce overview`.

The figures on these pages were measured with a division into training and test records that is stratified by labels,
unless a page names another. Since this version runs divide by a hash of the record id and `split_seed`: figures move in
the second digit, and by more where test records are few.

## What the verdicts mean

The same words mean the same on every page:"""

_AFTER_VERDICTS = """\
*Published* is the paper's figure, a dash where the claim is no figure. *Ours* is the mean over so many *seeds*, with
the 95 % interval of that mean in brackets (Student's t), where there is one: it is of other seeds, not of other data. A
dash is a figure that does not exist. Claims of this project about its own attacks and defenses stand among those of the
papers where they are measured on the same page. A claim that the paper numbers, theorem, lemma, remark or figure, has
a row of its own, without figures: they are in other rows, or a test shows it that the page names. *Not judged*: neither
its words nor what they come to were at hand, or it is out of scope here. Claims of which a page gives only how many
hold are in the `results.json` of its run. Counts of verdicts are no test of a paper: claims are many and alike."""
