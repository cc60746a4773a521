from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitvfl.data import vocabulary
from splitvfl.data.vocabulary import CategoryCounter, CodeBook, as_tensors, from_tensors, keep_within

CELLS = st.lists(
    st.lists(st.one_of(st.none(), st.text("ab\x00é\U0001f600", max_size=3)), max_size=20), min_size=1, max_size=5
)


def slowly(cells: list[str | None], min_count: int) -> tuple[list[str], int, int]:
    """Return listed categories, the code of a missing one, and the number of rare ones."""
    counts = Counter(cells)
    kept = sorted(value for value, count in counts.items() if value is not None and count >= min_count)
    missing_listed = counts[None] >= min_count
    return kept, len(kept) + 1 if missing_listed else 0, len(counts) - len(kept) - missing_listed


@given(CELLS, st.integers(1, 3), st.booleans())
def test_counting_in_pieces_is_counting_the_whole(chunks: list[list[str | None]], min_count: int, spill: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        counter = CategoryCounter(pa.string(), Path(scratch) / "c")
        for chunk in chunks:
            counter.add(pa.array(chunk, pa.string()))
            if spill:
                counter.spill()
        found = counter.vocabulary(min_count)

    whole = [cell for chunk in chunks for cell in chunk]
    assert (found.values.to_pylist(), found.missing_code, found.rare) == slowly(whole, min_count)


@settings(max_examples=25)
@given(CELLS, st.booleans())
def test_counts_come_back_in_parts_that_depend_on_the_values_alone(chunks: list[list[str | None]], spill: bool) -> None:
    whole = [cell for chunk in chunks for cell in chunk]
    with tempfile.TemporaryDirectory() as scratch:
        counter, other = (CategoryCounter(pa.string(), Path(scratch) / name) for name in "ab")
        for chunk in chunks:
            counter.add(pa.array(chunk, pa.string()))
            if spill:
                counter.spill()
        other.add(pa.array(whole[::-1], pa.string()))
        parts, theirs = (
            [(values.to_pylist(), counts.tolist()) for values, counts in one.counted()] for one in (counter, other)
        )

    assert parts == theirs
    found = {value: count for values, counts in parts for value, count in zip(values, counts, strict=True)}
    assert found == {value: count for value, count in Counter(whole).items() if value is not None}
    assert counter.missing == whole.count(None)
    merged = CategoryCounter(pa.string())
    merged.add_missing(counter.missing)
    for values, counts in parts * 2:
        merged.add_counted(pa.array(values, pa.string()), np.array(counts, np.int64))
    found = merged.vocabulary(2)
    assert found.values.to_pylist() == sorted({cell for cell in whole if cell is not None})


def test_whole_numbers_that_were_counted_become_the_nearest_float(tmp_path: Path) -> None:
    counter = CategoryCounter(pa.float64())
    counter.add(pa.array([0.5, 2.0**53]))
    counter.add_counted(pa.array([2**53, 2**53 + 1, 7]), np.array([2, 3, 1]))

    assert sum(int(counts.sum()) for _, counts in counter.counted()) == 8
    counter.add_counted(pa.array([2**53 + 1]), np.array([1]))
    assert counter.vocabulary(1).values.to_pylist() == [2.0**53]


def test_the_largest_field_is_written_out_until_all_fit(tmp_path: Path) -> None:
    small, large = (CategoryCounter(pa.int64(), tmp_path / name) for name in ("small", "large"))
    small.add(pa.array(range(100)))
    large.add(pa.array(range(10_000)))

    keep_within([small, large], 50_000)

    assert {path.name for path in tmp_path.iterdir()} == {"large-0.arrow"}
    assert small.nbytes + large.nbytes <= 50_000
    large.add(pa.array(range(5_000, 15_000)))
    assert len(large.vocabulary(1).values) == 15_000


def test_counts_survive_merging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    cells = [f"{int(rng.paretovariate(0.5)) % 300_000:x}" for _ in range(300_000)]
    counter = CategoryCounter(pa.string(), tmp_path / "c")
    for start in range(0, len(cells), 30_000):
        counter.add(pa.array(cells[start : start + 30_000]))

    found = counter.vocabulary(2)

    kept, missing_code, rare = slowly(list(cells), 2)
    assert found.values.to_pylist() == kept
    assert (found.missing_code, found.rare) == (missing_code, rare)


@given(CELLS, st.lists(st.one_of(st.none(), st.text("abc", max_size=3)), max_size=20))
def test_codes_are_places_in_the_list(chunks: list[list[str | None]], asked: list[str | None]) -> None:
    listed = sorted({cell for chunk in chunks for cell in chunk if cell is not None})
    book = CodeBook("c", pa.array(listed, pa.string()), 77)
    asked = [*asked, *listed, None]

    codes = book.codes(pa.array(asked, pa.string()))

    assert codes.dtype == np.int32
    assert codes.tolist() == [77 if cell is None else listed.index(cell) + 1 if cell in listed else 0 for cell in asked]


def test_two_categories_with_one_fingerprint_get_two_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = vocabulary.fingerprints

    def colliding(values: pa.Array, seed: int) -> vocabulary.Words:
        return honest(values, seed) % np.uint64(2) if seed == 0 else honest(values, seed)

    monkeypatch.setattr(vocabulary, "fingerprints", colliding)

    assert CodeBook("c", pa.array(["a", "b", "c"]), 0).codes(pa.array(["c", "a", "b", "d"])).tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize(
    "values",
    [pa.array(["", "a", "é"]), pa.array([], pa.string()), pa.array([-1, 2**62]), pa.array([0.5, 1.5])],
)
def test_vocabularies_come_back_from_tensors(values: pa.Array) -> None:
    tensors = {part: array for part, (_, array) in as_tensors(values).items()}

    assert from_tensors(tensors).equals(values)
