"""Kept results as one file beside their page: without paths of a machine, and a run can begin with them."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scripts.reproduce.shared.claims import write_whole, write_whole_bytes
from scripts.reproduce.shared.jobs import Cells, name_of_cell
from splitvfl.errors import DataError

DATA = "{data}/"
"""What stands in the file for the folder of the data files."""

_MOST_BYTES = 64 * 2**20
"""A file that is more when it is unpacked is none of ours."""


def publish(cells: Cells, path: Path, *, data: Path) -> None:
    """Write every cell that was used into one file: a line of JSON each, sorted, in gzip.

    The same cells give the same bytes.

    Args:
        cells: Where they are kept.
        path: Of the file.
        data: The folder of the data files, which is this machine's and does not stand in the file.

    Raises:
        DataError: If a cell is not there any more or is of data elsewhere, or the file cannot be written.
    """
    lines = sorted(_line(cells.folder / f"{name}.json", data) for name in cells.used)
    write_whole_bytes(path, gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def take_over(path: Path, cells: Cells, *, data: Path, say: Callable[[str], None]) -> None:
    """Put the cells of a published file where those of a run are kept; what lies there stays.

    Whether one is whole, and of which code, is looked at when it is used, as with every other.

    Raises:
        DataError: If the file is none that :func:`publish` wrote.
    """
    contents = {}
    for line in _lines(path):
        try:
            content = _replaced(json.loads(line), DATA, f"{data}/")
            name = name_of_cell({key: content[key] for key in ("work", "version", "settings")})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"{path}: not a file of published cells: {line[:60]!r}") from None
        if not re.fullmatch(r"\w+-[0-9a-f]{16}", name):
            raise DataError(f"{path}: not a file of published cells: {content['work']!r} is no function")
        contents[cells.folder / f"{name}.json"] = content
    if not contents:
        raise DataError(f"{path}: not a file of published cells: it has none")
    new = {place: content for place, content in contents.items() if not place.exists()}
    for place, content in new.items():
        write_whole(place, json.dumps(content))
    say(f"{len(new)} cells of {path.name} are taken over; {len(contents) - len(new)} others were there already")


def _line(path: Path, data: Path) -> str:
    """Return a cell as it is published."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    line = json.dumps(_replaced(content, f"{data}/", DATA), sort_keys=True)
    if '"/' in line:
        raise DataError(f"{path}: names a file outside {data}, and paths of a machine are not published")
    return line


def _lines(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path) as stream:
            content = stream.read(_MOST_BYTES + 1)
        text = content.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a file of published cells ({error})") from None
    if len(content) > _MOST_BYTES:
        raise DataError(f"{path}: not a file of published cells (more than {_MOST_BYTES // 2**20} MiB)")
    yield from text.splitlines()


def _replaced(value: Any, old: str, new: str) -> Any:
    """Return JSON values in which texts that begin with one folder begin with another."""
    if isinstance(value, dict):
        return {name: _replaced(part, old, new) for name, part in value.items()}
    if isinstance(value, list):
        return [_replaced(part, old, new) for part in value]
    return new + value.removeprefix(old) if isinstance(value, str) and value.startswith(old) else value
