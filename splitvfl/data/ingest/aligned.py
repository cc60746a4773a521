"""Aligned records in an ingest: others are left out, and the tables are sorted by the new ids."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from splitvfl.data.alignment import Alignment, fill_dummies
from splitvfl.data.chunks import Mask
from splitvfl.data.schema import PARTS
from splitvfl.data.writing import NpyWriter

# Rows that are gathered at once: what is in memory is a piece of one array.
_PIECE = 1 << 18


def sort_tables(folder: Path, aligned: Alignment, tested: Mask) -> None:
    """Sort the arrays of one party's folder by the new ids, and put dummies among them.

    Args:
        folder: The party's folder, with the real records in the files' order.
        aligned: The order.
        tested: Which of the aligned records are test records, dummies included, ``(records,)``.
    """
    for part, mask in zip(PARTS, (~tested, tested), strict=True):
        ids, real = aligned.ids[mask], aligned.real[mask]
        written = np.load(folder / f"{part}.ids.npy", mmap_mode="r")
        order = fill_dummies(np.argsort(written, kind="stable"), real, seed=aligned.seed, part=part)
        for path in sorted(folder.glob(f"{part}.*.npy")):
            if path.name != f"{part}.ids.npy":
                _gather(path, order)
        _replace(folder / f"{part}.ids.npy", ids)
        if not aligned.real.all():
            with NpyWriter(folder / f"{part}.real.npy", real.shape, "|b1") as writer:
                writer.append(real)


def _gather(path: Path, order: npt.NDArray[np.int64]) -> None:
    values = np.load(path, mmap_mode="r")
    fresh = path.with_suffix(".sorted")
    with NpyWriter(fresh, (len(order), *values.shape[1:]), values.dtype.str) as writer:
        for start in range(0, len(order), _PIECE):
            writer.append(values[order[start : start + _PIECE]])
    os.replace(fresh, path)


def _replace(path: Path, values: npt.NDArray[np.int64]) -> None:
    path.unlink()
    with NpyWriter(path, values.shape, "<i8") as writer:
        writer.append(values)
