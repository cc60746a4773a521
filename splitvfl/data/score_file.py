"""Scores in a file, beside the names of the records: complete or not there at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from torch import Tensor

from splitvfl.data.arrow_source import PARQUET_SUFFIXES
from splitvfl.errors import DataError
from splitvfl.system.untrusted_files import replacing

_SUFFIXES = (".csv", *PARQUET_SUFFIXES)


def check_score_target(path: Path, *, overwrite: bool) -> None:
    """Check that scores may be written to a file.

    Raises:
        DataError: If its ending says no format, there is no folder for it, or it is there already.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise DataError(f"expected a file that ends in one of {', '.join(_SUFFIXES)}, got {path.name}")
    if not path.parent.is_dir():
        raise DataError(f"cannot write {path}: there is no folder {path.parent}")
    if path.exists() and (not overwrite or not path.is_file()):
        raise DataError(f"{path} is there already; choose another name, or overwrite it (--overwrite)")


def is_csv(path: Path) -> bool:
    """Return whether scores in a file of this name are CSV, which spreadsheets open and calculate formulas in."""
    return path.suffix.lower() == ".csv"


def write_scores(path: Path, scores: Tensor, *, name_column: str, names: pa.Array) -> None:
    """Write scores beside the names of their records; the file appears when it is complete, for its owner only.

    Args:
        path: The file; its ending says whether it is CSV or Parquet.
        scores: ``(n,)``, in a column ``score``; or ``(n, k)``, in columns ``score_0`` to ``score_{k-1}``, by class.
        name_column: What the column of names is called.
        names: The records' names, in the order of the scores.

    Raises:
        DataError: If there is not one name for each score.
        OSError: If the file cannot be written.
    """
    if len(names) != scores.shape[0]:
        raise DataError(f"expected a name for each of {scores.shape[0]} scores, got {len(names)}")
    columns = [scores] if scores.dim() == 1 else list(scores.unbind(dim=1))
    labels = ["score"] if scores.dim() == 1 else [f"score_{number}" for number in range(len(columns))]
    table = pa.table([names, *(pa.array(column.cpu().numpy()) for column in columns)], names=[name_column, *labels])
    with replacing(path, alone=False) as file:
        write = pyarrow.csv.write_csv if is_csv(path) else pyarrow.parquet.write_table
        write(table, file)
