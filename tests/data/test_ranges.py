"""Public bounds in place of statistics: no record moves another, in memory, in a party's own file and ingested."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
import torch

from splitvfl.app.records import load_data
from splitvfl.app.saved_run import load_run
from splitvfl.cli import main
from splitvfl.config.sections import parse_config
from splitvfl.data.doubts import DoubtWarning
from splitvfl.data.encoding import Scale
from splitvfl.data.ingest.run import ingest_like
from splitvfl.data.joined_tables import from_tables
from splitvfl.data.learned_columns import learned_columns
from splitvfl.data.load import load
from splitvfl.data.ranges import Ranges, as_ranges, read_ranges
from splitvfl.data.store import open_party, open_tables
from splitvfl.errors import ArgumentError, DataError
from tests.tables import ingest, load_party

BOUNDS = {"age": (20.0, 60.0), "calls": (0.0, 10.0), "owed": (-100.0, 1000.0)}
FILE = "column,lower,upper\n" + "".join(f"{name},{low},{high}\n" for name, (low, high) in BOUNDS.items())
ROWS = 60


def people() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "customer": np.arange(ROWS),
            "age": draw.normal(40, 15, ROWS),  # some are beyond either bound
            "calls": draw.integers(0, 14, ROWS),
            "owed": draw.normal(0, 400, ROWS),
            "default": draw.integers(0, 2, ROWS),
        }
    )


def by_hand(values: Any, column: str, scale: Scale) -> npt.NDArray[np.float32]:
    low, high = BOUNDS[column]
    found = []
    for value in values:
        value = min(max(value, low), high)
        if scale == "log1p":
            value, low_, high_ = (math.copysign(math.log1p(abs(x)), x) for x in (value, low, high))
        else:
            low_, high_ = low, high
        share = (value - low_) / (high_ - low_)
        found.append({"minmax": share, "standard": 2 * share - 1, "log1p": 2 * share - 1, "none": value}[scale])
    return np.array(found, np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    people().to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "ranges.csv").write_text(FILE)
    return tmp_path


def in_memory(folder: Path, **how: Any) -> dict[int, list[float]]:
    data = load("table", path=folder / "people.csv", label="default", id_column="customer", **how)
    return rows_of(data["passive"])


def one_party(folder: Path, **how: Any) -> dict[int, list[float]]:
    found = load_party(folder / "people.csv", name="lab", role="passive", id_column="customer", drop="default", **how)
    return rows_of(found.data)


def ingested(folder: Path, **how: Any) -> dict[int, list[float]]:
    out = folder / f"tables {len(list(folder.iterdir()))}"
    ingest(folder / "people.csv", out=out, label="default", id_column="customer", passive={"lab": "rest"}, **how)
    return rows_of(open_tables(out)["lab"])


def rows_of(data: Any) -> dict[int, list[float]]:
    parts = (data.train, data.test)
    return {
        int(one): row
        for part in parts
        for one, row in zip(part.ids, part.columns.numeric.numpy().tolist(), strict=True)
    }


WAYS: dict[str, Callable[..., dict[int, list[float]]]] = {
    "memory": in_memory,
    "party file": one_party,
    "ingested": ingested,
}


@pytest.mark.parametrize("scale", ["standard", "minmax", "log1p", "none"])
@pytest.mark.parametrize("way", WAYS)
def test_numbers_are_clipped_and_scaled_by_their_bounds(way: str, scale: Scale, folder: Path) -> None:
    found = WAYS[way](folder, scale=scale, ranges=folder / "ranges.csv")
    table = people()
    rows = np.array([found[one] for one in range(ROWS)])
    for number, column in enumerate(BOUNDS):
        # A few roundings to float64, and then one to float32, which they may push over.
        np.testing.assert_allclose(rows[:, number], by_hand(table[column], column, scale), rtol=2e-7, atol=1e-7)
    if scale != "none":
        assert rows.min() == (0 if scale == "minmax" else -1)
        assert rows.max() == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scale", ["standard", "minmax", "log1p"])
def test_no_record_moves_another(way: str, scale: Scale, folder: Path) -> None:
    """The neighbouring relation itself: one record's values change, and all other rows stay as they were."""

    def rows(**how: Any) -> dict[int, list[float]]:
        return WAYS[way](folder, scale=scale, missing="indicator", **how)

    public, by_data = rows(ranges=folder / "ranges.csv"), rows()
    changed = people()
    trained = changed.index[changed.customer == 7]  # in the training part of each
    changed.loc[trained, ["age", "owed"]] = [300.0, np.nan]
    changed.to_csv(folder / "people.csv", index=False)
    public_after, by_data_after = rows(ranges=folder / "ranges.csv"), rows()
    assert public_after.pop(7) != public.pop(7)
    assert public_after == public
    for some in (by_data, by_data_after):
        some.pop(7)
    assert by_data_after != by_data


def test_a_gap_is_the_middle_of_its_range_and_every_column_has_marks() -> None:
    table = {"age": [None, 60.0, 20.0, 30.0, 30.0], "calls": [1.0, 2.0, 3.0, 4.0, 5.0]}
    data = from_tables(
        active={"y": [0, 1, 0, 1, 1]},
        passive={"lab": table},
        label="y",
        missing="indicator",
        ranges=BOUNDS,
        test_fraction=0.4,
    )
    lab = data["lab"]
    assert lab.numeric_names == ("age", "age missing", "calls", "calls missing")
    rows = torch.cat([lab.train.columns.numeric, lab.test.columns.numeric])
    gap = rows[torch.cat([lab.train.ids, lab.test.ids]) == 0][0]
    assert gap.tolist() == pytest.approx([0.0, 1.0, -0.8, 0.0])  # 1 of 0 to 10


def test_files_that_are_encoded_like_earlier_ones_keep_the_bounds(folder: Path) -> None:
    tables = folder / "tables"
    ingest(
        folder / "people.csv", out=tables, label="default", id_column="customer", passive={"lab": "rest"}, ranges=BOUNDS
    )
    more = people().iloc[:5].assign(age=[-5.0, 20.0, 40.0, 60.0, 600.0])
    more.to_csv(folder / "more.csv", index=False)
    ingest_like(folder / "more.csv", folder / "new", like=tables)
    found = rows_of(open_tables(folder / "new")["lab"])
    assert [found[one][0] for one in range(5)] == [-1.0, -1.0, 0.0, 1.0, 1.0]


def test_the_command_that_ingests_takes_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ingest", str(folder / "people.csv"), "--out", str(folder / "t"), "--label", "default"]
    arguments += ["--id", "customer", "--passive", "lab=rest"]
    assert main([*arguments, "--ranges", str(folder / "ranges.csv")]) == 0
    assert learned_columns(open_party(folder / "t" / "lab")) == ()
    (folder / "ranges.csv").write_text(FILE.replace("owed", "owned"))
    assert main([*arguments, "--overwrite", "--ranges", str(folder / "ranges.csv")]) == 2
    assert "no range of column 'owed'; did you mean 'owned'?" in " ".join(capsys.readouterr().err.split())


EXPERIMENT = """
data: {name: table, path: people.csv, id_column: customer, label: default, ranges: ranges.csv}
parties:
  bank: {role: active, columns: [age]}
  lab: {role: passive, columns: rest}
model: logistic-regression
train: {epochs: 1, batch_size: 16}
audit: false
"""


def test_an_experiment_keeps_them_in_the_model_that_it_leaves(folder: Path) -> None:
    (folder / "run.yaml").write_text(EXPERIMENT)
    assert main(["train", str(folder / "run.yaml"), "--out", str(folder / "run")]) == 0
    (folder / "ranges.csv").unlink()  # what was agreed is in the halves
    run = load_run(folder / "run")
    new = people().drop(columns="default").head(3)
    beyond = new.assign(age=[-1.0, 75.0, 1e30], calls=99, owed=[-1e9, 1e9, 0.0])
    within = new.assign(age=[20.0, 60.0, 60.0], calls=10, owed=[-100.0, 1000.0, 0.0])
    with pytest.warns(DoubtWarning, match="bank: age +100.0%"):
        scores = [run.predict({"bank": beyond, "lab": beyond})]
    scores.append(run.predict({"bank": within, "lab": within}))
    assert torch.equal(*(torch.as_tensor(one) for one in scores))


def test_it_is_known_which_columns_depend_on_all_records(folder: Path) -> None:
    config = parse_config(EXPERIMENT, source=folder / "run.yaml")
    assert learned_columns(load_data(config)["lab"]) == ()
    without = parse_config(EXPERIMENT.replace(", ranges: ranges.csv", ""), source=folder / "run.yaml")
    assert learned_columns(load_data(without)["lab"]) == ("calls", "owed")
    raw = parse_config(EXPERIMENT.replace("ranges: ranges.csv", "scale: none"), source=folder / "run.yaml")
    assert learned_columns(load_data(raw)["lab"]) == ()
    town = people().assign(town=["a", "b"] * (ROWS // 2))
    data = from_tables(
        active=town[["customer", "age", "default"]],
        passive={"lab": town[["customer", "calls", "town"]]},
        label="default",
        id="customer",
        ranges=BOUNDS,
    )
    assert learned_columns(data["lab"]) == ("town",)  # which towns there are is what records show


# --- bad input


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("age,20.0,60.0", "age,60,20", r"line 2: range of column 'age': expected a lower bound below .* got 60 and 20"),
        ("age,20.0,60.0", "age,20,20", "expected a lower bound below the upper one, got 20 and 20"),
        ("age,20.0,60.0", "age,nan,60", "line 2: .*expected a finite number as lower bound, got nan"),
        ("age,20.0,60.0", "age,20,inf", "expected a finite number as upper bound, got inf"),
        ("age,20.0,60.0", "age,-1e308,1e308", "expected a lower bound below the upper one"),
        ("age,20.0,60.0", "age,young,60", "line 2: expected a number as lower bound, got 'young'"),
        ("age,20.0,60.0", "age,20", "line 2: expected a column's name and two bounds, got 2 cells"),
        ("calls,", "age,", "line 3: column 'age' is there already"),
        ("column,lower,upper", "name,min,max", "line 1: expected the header column,lower,upper, got 'name,min,max'"),
        (FILE, "", "line 1: expected the header"),
        ("owed,-100.0,1000.0\n", "", "ranges.csv has no range of column 'owed'.*leave the column out"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_wrong_with_a_file_is_told(way: str, old: str, new: str, complaint: str, folder: Path) -> None:
    assert old in FILE
    (folder / "ranges.csv").write_text(FILE.replace(old, new))
    with pytest.raises(DataError, match=complaint):
        WAYS[way](folder, ranges=folder / "ranges.csv")


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ranges cannot be read from .*: there is no such file"):
        read_ranges(tmp_path / "ranges.csv")
    (tmp_path / "ranges.csv").write_bytes(b"column,lower,upper\n\xff,1,2\n")
    with pytest.raises(DataError, match="no CSV file of text in UTF-8"):
        read_ranges(tmp_path / "ranges.csv")


def test_other_columns_than_a_partys_own_may_be_described() -> None:
    assert Ranges(BOUNDS).of(["calls"]) == {"calls": (0.0, 10.0)}
    with pytest.raises(DataError, match="has no range of columns 'a', 'b'"):
        Ranges(BOUNDS).of(["a", "age", "b"])


@pytest.mark.parametrize("given", [3, {"age": 3}, {"age": (1, 2, 3)}, {"age": ("x", 1)}])
def test_ranges_in_python_are_two_numbers_for_each_column(given: Any) -> None:
    with pytest.raises(ArgumentError, match="expected"):
        as_ranges(given)


def test_values_that_are_missing_or_infinite_are_refused_as_ever() -> None:
    for value, complaint in ((math.nan, "has no value"), (math.inf, "infinite")):
        table = pa.table({"age": [value, 30.0, 40.0, 50.0]})
        with pytest.raises(DataError, match=complaint):
            from_tables(active={"y": [0, 1, 0, 1]}, passive={"lab": table}, label="y", ranges=BOUNDS, test_fraction=0.5)
