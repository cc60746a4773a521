"""Aligned records in an ingest: others are left out, and the tables are sorted by the new ids."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from splitvfl.data.chunks import Mask
from splitvfl.data.ingest.records import Ids
from splitvfl.data.ingest.writing import NpyWriter
from splitvfl.data.schema import PARTS, Part, Role

# Rows that are gathered at once: what is in memory is a piece of one array.
_PIECE = 1 << 18


@dataclass(frozen=True, eq=False)
class AlignedRows:
    """Which rows of the files are aligned, and how records are called and ordered in the end.

    Attributes:
        party: Whose alignment it is.
        role: The party's role.
        id_column: The files' id column.
        kept: Which rows of the files are aligned, ``(rows,)``.
        row_ids: Their new ids, in the files' order.
        ids: All new ids, ascending, dummies included.
        real: Which of these are no dummies.
        digest: Digest of the order, the same at all parties.
        seed: What decides how dummies are filled.
    """

    party: str
    role: Role
    id_column: str
    kept: Mask
    row_ids: Ids
    ids: Ids
    real: Mask
    digest: str
    seed: int


def fill_dummies(places: npt.NDArray[np.int64], real: Mask, *, seed: int, part: Part) -> npt.NDArray[np.int64]:
    """Return where each record's columns and label come from: a dummy's from a random real record of its part.

    Args:
        places: Where the real records' lie, in their order, ``(real records,)``.
        real: Which records are real, ``(records,)``.
        seed: Decides what fills the dummies.
        part: The part that all of these belong to.
    """
    filled = np.empty(len(real), np.int64)
    filled[real] = places
    if not real.all() and len(places):
        generator = np.random.Generator(np.random.PCG64([seed, PARTS.index(part)]))
        filled[~real] = generator.choice(places, int((~real).sum()))
    return filled


def sort_tables(folder: Path, aligned: AlignedRows, tested: Mask) -> None:
    """Sort the arrays of one party's folder by the new ids, and put dummies among them.

    Args:
        folder: The party's folder, with the real records in the files' order.
        aligned: The order.
        tested: Which of the aligned records are test records, dummies included, ``(records,)``.
    """
    for part, mask in zip(PARTS, (~tested, tested), strict=True):
        ids, real = aligned.ids[mask], aligned.real[mask]
        written = _mapped(folder / f"{part}.ids.npy")
        order = fill_dummies(np.argsort(written, kind="stable"), real, seed=aligned.seed, part=part)
        for path in sorted(folder.glob(f"{part}.*.npy")):
            if path.name != f"{part}.ids.npy":
                _gather(path, order)
        _replace(folder / f"{part}.ids.npy", ids)
        if not aligned.real.all():
            with NpyWriter(folder / f"{part}.real.npy", real.shape, "|b1") as writer:
                writer.append(real)


def _mapped(path: Path) -> npt.NDArray[Any]:
    with path.open("rb") as stream:
        npy.read_magic(stream)
        shape, _, dtype = npy.read_array_header_1_0(stream)
        offset = stream.tell()
    # Nothing can be mapped of an array without elements.
    return np.memmap(path, dtype, "r", offset, shape) if 0 not in shape else np.empty(shape, dtype)


def _gather(path: Path, order: npt.NDArray[np.int64]) -> None:
    values = _mapped(path)
    fresh = path.with_suffix(".sorted")
    with NpyWriter(fresh, (len(order), *values.shape[1:]), values.dtype.str) as writer:
        for start in range(0, len(order), _PIECE):
            writer.append(values[order[start : start + _PIECE]])
    os.replace(fresh, path)


def _replace(path: Path, values: npt.NDArray[np.int64]) -> None:
    path.unlink()
    with NpyWriter(path, values.shape, "<i8") as writer:
        writer.append(values)
