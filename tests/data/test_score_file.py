from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from splitvfl.data.score_file import check_score_target, write_scores
from splitvfl.errors import DataError

NAMES = pa.array(["007", 'say "a, b"', "c"])


def read(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, dtype={"customer": str})


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("scores", [torch.rand(3), torch.rand(3, 4), torch.tensor([0.1, 1e-30, 1.0])])
def test_scores_come_back_to_the_bit_beside_their_names(tmp_path: Path, ending: str, scores: Tensor) -> None:
    path = tmp_path / f"scores.{ending}"

    write_scores(path, scores, name_column="customer", names=NAMES)

    found = read(path)
    assert found["customer"].tolist() == NAMES.to_pylist()
    columns = ["score"] if scores.dim() == 1 else [f"score_{number}" for number in range(4)]
    assert list(found.columns) == ["customer", *columns]
    assert torch.equal(torch.tensor(found[columns].to_numpy(), dtype=torch.float32).reshape(scores.shape), scores)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a name for each of 2 scores, got 3"):
        write_scores(tmp_path / "scores.csv", torch.rand(2), name_column="customer", names=NAMES)
    (tmp_path / "scores.csv").mkdir()
    with pytest.raises(OSError, match="scores"):
        write_scores(tmp_path / "scores.csv", torch.rand(3), name_column="customer", names=NAMES)
    assert [file.name for file in tmp_path.iterdir()] == ["scores.csv"]


def test_targets_are_looked_at_before(tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("mine")

    check_score_target(tmp_path / "new.CSV", overwrite=False)
    check_score_target(there, overwrite=True)
    for path, overwrite, message in (
        (tmp_path / "scores.txt", False, "ends in one of .csv, .parquet, .pq, got scores.txt"),
        (tmp_path / "no" / "scores.csv", False, "there is no folder"),
        (there, False, "is there already; choose another name, or overwrite it (--overwrite)"),
        (tmp_path, True, "ends in one of"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            check_score_target(path, overwrite=overwrite)
    assert there.read_text() == "mine"
