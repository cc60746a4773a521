"""Values of records that a picture shows: few, rounded, without extremes, and of nobody in particular."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.data.columns import Columns, Records
from splitvfl.errors import CheckpointError
from splitvfl.hooks import View
from splitvfl.leakage import shown_records
from splitvfl.leakage.column_reading import ColumnReader, SentColumns
from splitvfl.leakage.shown_records import SHOWN_FILE, PlottedColumn, ShownRecords, read_shown, save_shown, shown_column

VALUES = torch.randn(1_000, generator=torch.Generator().manual_seed(0)).double() * 30 + 40
VALUES[3] = 1e6


def test_points_are_rounded_values_of_some_records_with_their_estimates() -> None:
    estimates = VALUES * 0.5 + 3
    found = shown_column("age", VALUES, estimates, seed=1)
    assert found is not None
    low, high = np.quantile(VALUES.numpy(), [0.01, 0.99])
    units = ((VALUES.numpy() - low) / (high - low)).clip(0, 1)
    others = ((estimates.numpy() - low) / (high - low)).clip(0, 1)
    pairs = {(round(100 * true) / 100, round(100 * off) / 100) for true, off in zip(units, others, strict=True)}
    assert len(found.true) == len(found.estimated) == 50
    assert set(zip(found.true, found.estimated, strict=True)) <= pairs
    assert min(found.true) >= 0.0
    assert max(found.true) <= 1.0, "whoever has most is not told from the last hundredth"
    assert list(found.true) == sorted(found.true), "not in the order of the records"


RECORDS = 400


class Clear:
    """Knows nobody, and answers what was sent."""

    target: ClassVar[str] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation"})

    def __call__(self, view: View, /) -> Tensor:
        return view.received_activation


def test_of_each_column_other_records_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were they the same, three values in one order would be one person's."""
    numbers = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(0))
    numbers[:, 1:] = numbers[:, :1]  # three columns that are the same
    train = Records(torch.arange(RECORDS), Columns.of(numbers))
    reader = ColumnReader(Clear(), SentColumns(names=("a", "b", "c"), train=train), seed=0)
    reader.see(numbers, train.columns, train.ids, party="clinic", step=0)
    monkeypatch.setattr(shown_records, "_STEPS", 10**9)
    drawn = [set(one.true) - {0.0, 1.0} for one in reader.shown()]
    assert [len(values) >= 45 for values in drawn] == [True] * 3
    # Of 50 of 400 twice 6 are in both by expectation; more than 16 by chance once in 10,000.
    assert all(len(drawn[one] & drawn[other]) <= 16 for one, other in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("values", [[0.0, 1.0] * 20, [5.0] * 40, [0.0] * 999 + [1.0, 2.0]])
def test_flags_and_what_hardly_varies_have_no_picture(values: list[float]) -> None:
    assert shown_column("flag", torch.tensor(values), torch.tensor(values), seed=0) is None


def shown() -> tuple[ShownRecords, ...]:
    return (ShownRecords(party="lab", attack="ridge", columns=(PlottedColumn("age\x1b", (0.1, 0.2), (0.3, 0.4)),)),)


def test_the_file_is_its_owners_and_goes_with_the_next_run_that_keeps_none(tmp_path: Path) -> None:
    save_shown(tmp_path, shown())
    path = tmp_path / SHOWN_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (found,) = read_shown(tmp_path)
    assert found.columns[0].column == "age\\x1b"
    assert (found.party, found.attack, found.columns[0].estimated) == ("lab", "ridge", (0.3, 0.4))
    save_shown(tmp_path, ())
    assert not path.exists()
    assert read_shown(tmp_path) == ()


def written(*columns: dict[str, object], readers: int = 1) -> str:
    return json.dumps({"version": 1, "shown": [{"party": "lab", "attack": "ridge", "columns": columns}] * readers})


def column(*values: float, estimates: int | None = None) -> dict[str, object]:
    estimated = values if estimates is None else [0.5] * estimates
    return {"column": "age", "true": values, "estimated": estimated}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "truncated"),
        ("[" * 100_000, "recursion depth"),
        (written(column(1.0, estimates=0)), "as many estimates as values"),
        (written(column()), "expected 1 to 50 records"),
        (written(column(*[0.5] * 51)), "expected 1 to 50 records"),
        (written(), "expected 1 to 3 columns"),
        (written(*[column(0.5)] * 4), "expected 1 to 3 columns"),
        (written(column(0.5), readers=51), "expected at most 50 readers, got 51"),
        (written(column(1e308, -1e308)), r"expected values in \[0, 1\]"),
        (written(column(1.01)), r"expected values in \[0, 1\]"),
        ("\xff", "invalid character"),
    ],
)
def test_a_damaged_file_and_one_that_no_run_has_written_are_told_in_a_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    """A page draws a figure for each reader, and a point for each value."""
    (tmp_path / SHOWN_FILE).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=f"columns-read.json is damaged: .*{said}.*; leave out --show-records"):
        read_shown(tmp_path)


def test_the_most_that_a_run_keeps_is_read(tmp_path: Path) -> None:
    (tmp_path / SHOWN_FILE).write_text(written(*[column(*[0.0, 1.0] * 25)] * 3, readers=50))
    assert len(read_shown(tmp_path)) == 50
