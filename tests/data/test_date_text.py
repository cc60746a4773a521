"""Text that is dates is known for it, and is not taken for categories in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from splitvfl import from_tables
from splitvfl.data.date_text import dates_in_text
from splitvfl.data.doubts import DoubtWarning
from splitvfl.data.load import load
from splitvfl.errors import DataError
from tests.tables import ingest


@pytest.mark.parametrize(
    ("values", "date"),
    [
        (["2021-08-17", "2020-1-3"], "2021-08-17"),
        (["2021/08/17 10:15", None, ""], "2021/08/17 10:15"),
        (["17.08.2021", "1.2.99"], "17.08.2021"),
        (["8/17/2021"], "8/17/2021"),
        (["17 Aug 2021", "3. März 2020", "17-Aug-21"], "17 Aug 2021"),
        (["August 17, 2021"], "August 17, 2021"),
        (["17.08.2021"] * 3 + [f"{one}.1.2020" for one in range(1, 20)] + ["unknown"], "17.08.2021"),
        (["17.08.2021", "never", "later"], None),
        (["20-45-12", "40-47-84"], None),  # sort codes
        (["1.10.2", "2.0.13"], None),
        (["12 Market 2021", "May"], None),
        (["2021", "2022"], None),
        ([None, ""], None),
    ],
)
def test_dates_are_told_from_other_text(values: list[Any], date: str | None) -> None:
    assert dates_in_text(pa.array(values, pa.string())) == date


def frame() -> pd.DataFrame:
    rows = 60
    born = [f"{1 + row % 28:02}.07.{1950 + row % 50}" for row in range(rows)]
    return pd.DataFrame({"id": np.arange(rows), "a": np.arange(rows) % 7, "born": born, "y": np.arange(rows) % 2})


def test_a_file_with_dates_is_refused_at_every_entrance_unless_they_are_declared(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    frame().to_csv(path, index=False)
    frame().to_parquet(tmp_path / "t.parquet")
    settings: dict[str, Any] = {"label": "y", "id_column": "id"}
    told = r"column 'born': '01.07.1950' looks like a date.*drop.*days since a day.*text_columns"

    for source in (path, tmp_path / "t.parquet"):
        with pytest.raises(DataError, match=told):
            load("table", path=source, active="a", **settings)
        with pytest.raises(DataError, match=told):
            from_tables(active=source, passive={"lab": frame()[["id", "a"]]}, label="y", id="id")
        with pytest.raises(DataError, match=told):
            ingest(source, out=tmp_path / "out", active="a", passive={"lab": "rest"}, **settings)
    assert load("table", path=path, active="a", text_columns="born", **settings)["passive"].column_names == ("born",)


def test_a_table_in_memory_with_dates_is_warned_of() -> None:
    with pytest.warns(DoubtWarning, match=r"active: born \(such as '01.07.1950'\) became categories"):
        from_tables(active=frame(), passive={"lab": frame()[["id", "a"]]}, label="y", id="id")
