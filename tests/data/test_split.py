from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from splitvfl.data.old_ids import record_ids
from splitvfl.data.split import split_by_column, split_by_ids
from splitvfl.errors import ArgumentError, DataError


def _split(rows: int, fraction: float = 0.2, seed: int = 0) -> tuple[Any, Any]:
    return split_by_ids(np.arange(rows), test_fraction=fraction, seed=seed)


def _mixed(number: int, seed: int) -> int:
    """Return splitmix64's output for an id and a seed, in Python's own whole numbers."""

    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    return mix((number + mix((seed + 0x9E3779B97F4A7C15) % 2**64)) % 2**64)


def test_a_split_is_a_partition_in_order_by_the_hash_of_each_id() -> None:
    ids = np.random.default_rng(0).integers(-(2**62), 2**62, 300)

    train, test = split_by_ids(ids, test_fraction=0.25, seed=9)

    assert sorted([*train, *test]) == list(range(300))
    assert (np.diff(train) > 0).all()
    assert test.tolist() == [row for row, one in enumerate(ids.tolist()) if _mixed(one, 9) < 2**62]


def test_the_seed_decides() -> None:
    assert np.array_equal(_split(100)[1], _split(100)[1])
    assert not np.array_equal(_split(100)[1], _split(100, seed=1)[1])


def test_other_records_move_none_from_one_part_to_the_other() -> None:
    ids = np.arange(100)
    few = ids[30:]

    whole, part = (split_by_ids(some, test_fraction=0.3, seed=4)[1] for some in (ids, few))

    assert set(few[part]) == set(ids[whole]) & set(few)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 3])
def test_a_fraction_outside_zero_and_one(fraction: float) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"test_fraction in (0, 1), got {fraction}")):
        _split(20, fraction)


@pytest.mark.parametrize(("fraction", "part", "change"), [(0.001, "test", "larger"), (0.999, "training", "smaller")])
def test_an_empty_part_says_what_to_change(fraction: float, part: str, change: str) -> None:
    message = rf"no {part} record among 5 with test_fraction={fraction}.* another split_seed, a {change} test_fraction"
    with pytest.raises(DataError, match=message):
        _split(5, fraction)


def test_a_column_may_decide() -> None:
    train, test = split_by_column(pa.array(["train", "test", None, "test"]), test_value="test", source="s")

    assert (train.tolist(), test.tolist()) == ([0, 2], [1, 3])


@pytest.mark.parametrize(("values", "test_value"), [(["a", "b"], "test"), ([1, 1], 1)])
def test_a_split_column_needs_both_kinds(values: list[Any], test_value: object) -> None:
    with pytest.raises(DataError, match=re.escape(f"s holds {sorted(set(values))}; expected {test_value!r} in some")):
        split_by_column(pa.array(values), test_value=test_value, source="s")


def test_whole_numbers_are_ids_and_text_stands_for_row_numbers() -> None:
    assert record_ids(pa.array([2**62, -5]), source="id").tolist() == [2**62, -5]
    assert record_ids(pa.array(["b", "a"]), source="id").tolist() == [0, 1]
    assert record_ids(pa.array([7], pa.uint8()), source="id").dtype == np.int64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([5, 9, 8, 9, 5]), "id holds 9 in rows 1 and 3 (from 0); ids must differ"),
        (pa.array(["x", "x"]), "id holds 'x' in rows 0 and 1 (from 0); ids must differ"),
        (pa.array([1, None]), "id has no id in 1 rows"),
        (pa.array([0.5]), "id must hold whole numbers or text, got double"),
        (pa.array([2**63], pa.uint64()), "id holds numbers beyond 64 bits"),
    ],
)
def test_ids_that_name_no_record(values: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        record_ids(values, source="id")
