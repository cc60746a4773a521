"""A few records' columns as a reader of activations estimates them, for a picture, and the file that keeps them.

Only where the file of a run asks for it, as a page with such a picture is handed on. What is kept is what the picture
needs and no more: no ids, no units, no extremes, and records that are drawn for each column anew, sorted by their
values, so that no two values are known to be one record's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from splitvfl.system.untrusted_files import UntrustedFile, write_json

SHOWN_FILE: Final = "columns-read.json"
SHOWN_COLUMNS: Final = 3
SHOWN_RECORDS: Final = 50
_ENDS: Final = (0.01, 0.99)
_STEPS: Final = 100
_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 24
# Every attack of a run on every party; a page draws a figure for each.
_MOST_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class PlottedColumn:
    """True and estimated values of a column, of some records, in the unit box.

    Attributes:
        column: Its name.
        true: Values as they are; outside [0, 1] where a record lies beyond the known range.
        estimated: The best attack's estimates of them.
    """

    column: str
    true: tuple[float, ...]
    estimated: tuple[float, ...]


class ShownRecords(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one reader of one party's columns.

    Attributes:
        party: Whose columns.
        attack: Who estimated them.
        columns: True against estimated values, of the columns that are read most: 0 and 1 are the first and the last
            hundredth of the column's values, what lies beyond is drawn there, and all is rounded to hundredths.
    """

    party: str
    attack: str
    columns: tuple[PlottedColumn, ...]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _VERSION
    shown: tuple[ShownRecords, ...]


def shown_column(name: str, truth: Tensor, estimate: Tensor, *, seed: int) -> PlottedColumn | None:
    """Return a column of a few records drawn at random, sorted by their values; ``None`` of two values or fewer.

    Args:
        name: Its name.
        truth: Its values, ``(n,)``.
        estimate: What was estimated of the same records, ``(n,)``.
        seed: Draws the records.
    """
    if len(truth.unique()) < 3:
        return None
    low, high = torch.quantile(truth.double(), torch.tensor(_ENDS, dtype=torch.float64)).tolist()
    if low == high:
        return None
    drawn = torch.randperm(len(truth), generator=torch.Generator().manual_seed(seed))[:SHOWN_RECORDS]
    points = sorted(zip(*(_rounded(values[drawn], low, high) for values in (truth, estimate)), strict=True))
    true, estimated = zip(*points, strict=True)
    return PlottedColumn(name, true, estimated)


def _rounded(values: Tensor, low: float, high: float) -> list[float]:
    places = ((values.double() - low) / (high - low)).clamp(0, 1).mul(_STEPS).round()
    return [int(place) / _STEPS for place in places.tolist()]


def save_shown(folder: Path, shown: tuple[ShownRecords, ...]) -> None:
    """Write the file, all at once, readable by its owner alone; with nothing to show, take away an earlier one."""
    path = folder / SHOWN_FILE
    if not shown:
        path.unlink(missing_ok=True)
        return
    write_json(path, _File(shown=shown), indent=-1)


def read_shown(folder: Path) -> tuple[ShownRecords, ...]:
    """Return what a run has kept, which may be somebody else's; nothing where it has kept nothing.

    Raises:
        CheckpointError: If the file is damaged, or holds more than a run keeps.
    """
    file = UntrustedFile(path=folder / SHOWN_FILE, most=_MOST_BYTES, remedy="leave out --show-records, or delete it")
    found = file.json(_File, version=_VERSION, sanitise=True, wrong_in=lambda found: _wrong_in(found.shown))
    return () if found is None else found.shown


def _wrong_in(found: tuple[ShownRecords, ...]) -> str:
    """Return what a run would not have kept so, as a page takes time and room for each; empty where all is well."""
    columns = [column for shown in found for column in shown.columns]
    if len(found) > _MOST_SHOWN:
        return f"expected at most {_MOST_SHOWN} readers, got {len(found):,}"
    if not all(1 <= len(shown.columns) <= SHOWN_COLUMNS for shown in found):
        return f"expected 1 to {SHOWN_COLUMNS} columns of each reader, got another number"
    if not all(len(one.true) == len(one.estimated) for one in columns):
        return "it has not as many estimates as values"
    if not all(1 <= len(one.true) <= SHOWN_RECORDS for one in columns):
        return f"expected 1 to {SHOWN_RECORDS} records of each column, got another number"
    if not all(0.0 <= value <= 1.0 for one in columns for value in (*one.true, *one.estimated)):
        return "expected values in [0, 1], got others"
    return ""
