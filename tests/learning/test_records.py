"""The table of numbers per record, against a dictionary."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.learning import records
from splitvfl.learning.records import RecordTable
from splitvfl.run import checkpoint

small = st.integers(0, 30)
anything = st.one_of(
    small, st.integers(-50, -1), st.integers(2**40, 2**40 + 20), st.sampled_from([-(2**63), 2**63 - 1])
)
batches = st.lists(st.lists(anything, max_size=8), max_size=8)


def new_table() -> RecordTable:
    return RecordTable(total=np.float64, count=np.int64, label=np.int8)


def add(table: RecordTable, ids: list[int], value: float) -> None:
    slots = table.slots(np.array(ids, np.int64))
    np.add.at(table["total"], slots, value)
    np.add.at(table["count"], slots, 1)


def look_up(table: RecordTable, ids: list[int], column: str) -> list[float]:
    slots = table.slots(np.array(ids, np.int64))
    found: list[float] = table[column][slots].tolist()
    return found


def through_a_file(table: RecordTable, folder: Path) -> RecordTable:
    other = new_table()
    other.load_state_dict(checkpoint.load(checkpoint.save(folder, 1, {"table": table.state_dict()}))["table"])
    return other


@given(st.lists(st.lists(small, max_size=8), max_size=4), batches, st.booleans())
def test_it_is_a_dictionary_through_the_change_from_small_ids_to_any(
    dense: list[list[int]], mixed: list[list[int]], copied: bool
) -> None:
    table = new_table()
    total: defaultdict[int, float] = defaultdict(float)
    count: defaultdict[int, int] = defaultdict(int)
    for number, ids in enumerate([*dense, *mixed], start=1):
        if copied:
            other = new_table()
            other.load_state_dict(table.state_dict())
            table = other
        add(table, ids, number)  # whole numbers: sums are exact
        for name in ids:
            total[name] += number
            count[name] += 1
    met = sorted(count)
    assert look_up(table, met, "total") == [total[name] for name in met]
    assert look_up(table, met, "count") == [count[name] for name in met]
    assert table["count"].sum() == sum(count.values())  # nobody else has anything


@pytest.mark.parametrize("ids", [[3, 0, 7], [3, -1, 2**50, 7]], ids=["small", "any"])
def test_a_table_from_a_checkpoint_goes_on_alike_and_shares_nothing(tmp_path: Path, ids: list[int]) -> None:
    table = new_table()
    add(table, ids, 1.5)
    copy = through_a_file(table, tmp_path)
    add(copy, [7, 100, -3], 2.0)
    assert look_up(table, [7], "total") == [1.5]
    add(table, [7, 100, -3], 2.0)
    everyone = [*ids, 100, -3]
    for column in ("total", "count", "label"):
        assert look_up(copy, everyone, column) == look_up(table, everyone, column)


def test_an_empty_table_goes_through_a_checkpoint(tmp_path: Path) -> None:
    copy = through_a_file(new_table(), tmp_path)
    assert copy["count"].size == 0
    add(copy, [5], 1.0)
    assert look_up(copy, [5], "count") == [1]


def test_a_state_does_not_follow_the_table() -> None:
    table = new_table()
    add(table, [1, -5], 1.0)
    state = table.state_dict()
    add(table, [1, -9], 1.0)
    for _ in range(2):  # nor does it follow a table that took it back
        before = new_table()
        before.load_state_dict(state)
        assert look_up(before, [1, -5], "total") == [1.0, 1.0]
        assert before["count"].sum() == 2
        add(before, [1, -5], 4.0)


def test_ids_just_below_and_at_the_limit_of_direct_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "DENSE_LIMIT", 40)
    table = new_table()
    add(table, [39], 1.0)
    assert table["count"].size == 40
    add(table, [40, 39], 2.0)
    assert table["count"].size == 41
    assert look_up(table, [39, 40, 0], "total") == [3.0, 2.0, 0.0]


def test_memory_grows_with_the_records_and_not_with_time() -> None:
    table = new_table()
    for _ in range(300):
        add(table, [-4, 2**45, 9], 1.0)
    assert table["count"].size == 3
    assert look_up(table, [-4, 2**45, 9], "count") == [300, 300, 300]


def test_no_ids_change_nothing() -> None:
    table = new_table()
    assert table.slots(np.zeros(0, np.int64)).size == 0
    assert table["total"].size == 0


@given(batches, batches)
def test_finding_makes_no_room(met: list[list[int]], asked: list[list[int]]) -> None:
    table = new_table()
    slot_of: dict[int, int] = {}
    for ids in met:
        slot_of |= dict(zip(ids, table.slots(np.array(ids, np.int64)).tolist(), strict=True))
    size = len(table)
    for ids in asked:
        found = table.find(np.array(ids, np.int64)).tolist()
        # Small ids have their slot as soon as there is room, whether they were met or not.
        assert [slot if number in slot_of else -1 for slot, number in zip(found, ids, strict=True)] == [
            slot_of.get(number, -1) for number in ids
        ]
        assert all(-1 <= slot < size for slot in found)
        assert all(
            slot == -1 or 0 <= number <= 30 for slot, number in zip(found, ids, strict=True) if number not in slot_of
        )
    assert len(table) == size


def test_a_hundred_thousand_ids_that_differ_in_high_bits_only_have_slots_of_their_own() -> None:
    table = new_table()
    ids = (np.arange(100_000) - 50_000) << 40
    for part in np.array_split(ids, 7):
        table.slots(part)

    assert sorted(table.slots(ids).tolist()) == list(range(100_000))
    assert len(table) == 100_000


def test_looking_up_does_not_take_longer_in_a_larger_table() -> None:
    """Counted in cells looked at, not in time."""
    looked: list[int] = []

    class Counted(np.ndarray):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            looked.append(np.size(key))
            return super().__getitem__(key)

    random = np.random.default_rng(0)
    for count in (3000, 300_000):
        table = new_table()
        ids = random.integers(-(2**62), 2**62, count)
        table.slots(ids)
        assert table._index is not None
        table._index._ids = table._index._ids.view(Counted)
        table.slots(ids[:1000])
        table._index._ids = table._index._ids.view(np.ndarray)
        # Linear probing at a load a: (1 + 1 / (1 - a)) / 2 cells for a known id on average, 1.75 at 0.6.
        assert 1000 <= sum(looked) < 1750
        looked.clear()
