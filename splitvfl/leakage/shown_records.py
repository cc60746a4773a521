"""A few records' columns as a reader of activations estimates them, for a picture, and the file that keeps them.

Only where the file of a run asks for it, as a page with such a picture is handed on. What is kept is what the picture
needs and no more: no ids, no units, no extremes, and records that are drawn for each column anew, sorted by their
values, so that no two values are known to be one record's.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from splitvfl.errors import CheckpointError, printable
from splitvfl.leakage.reconstruction import PlottedColumn

SHOWN_FILE: Final = "columns-read.json"
SHOWN_COLUMNS: Final = 3
SHOWN_RECORDS: Final = 50
_ENDS: Final = (0.01, 0.99)
_STEPS: Final = 100
_VERSION: Final = 1


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
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    with open(draft, "xb", opener=_private) as file:
        file.write(msgspec.json.encode(_File(shown=shown)) + b"\n")
    os.replace(draft, path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_shown(folder: Path) -> tuple[ShownRecords, ...]:
    """Return what a run has kept, which another may have handed on; nothing where it has kept nothing.

    Raises:
        CheckpointError: If the file is damaged.
    """
    path = folder / SHOWN_FILE
    if not path.is_file():
        return ()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}; leave out --show-records, or delete it") from error
    if not all(len(one.true) == len(one.estimated) > 0 for shown in found.shown for one in shown.columns):
        raise CheckpointError(f"{path} is damaged: it has not as many estimates as values; delete it")
    return tuple(_harmless(one) for one in found.shown)


def _harmless(shown: ShownRecords) -> ShownRecords:
    columns = tuple(replace(one, column=printable(one.column)) for one in shown.columns)
    return ShownRecords(party=printable(shown.party), attack=printable(shown.attack), columns=columns)
