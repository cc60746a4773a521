from __future__ import annotations

import hashlib
import random

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.errors import ArgumentError, DataError
from splitvfl.learning import batches as batches_module
from splitvfl.learning.batches import Batches

sizes = st.integers(1, 200).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))


@given(sizes, st.integers(-(2**70), 2**70), st.integers(0, 1000))
def test_every_record_comes_once_per_epoch(size: tuple[int, int], seed: int, epoch: int) -> None:
    count, batch_size = size
    batches = Batches(count, batch_size, seed=seed)

    visited = batches.epoch(epoch)

    assert torch.cat(visited).sort().values.tolist() == list(range(count))
    assert len(visited) == len(batches)
    assert all(batch.dtype == torch.int64 and batch.shape == (batch_size,) for batch in visited[:-1])
    assert 1 <= visited[-1].numel() <= batch_size


@given(sizes, st.integers(0, 10), st.integers(0, 10))
def test_dropping_the_last_leaves_full_batches_only(size: tuple[int, int], seed: int, epoch: int) -> None:
    count, batch_size = size
    full = Batches(count, batch_size, seed=seed, drop_last=True)

    visited = full.epoch(epoch)

    assert len(visited) == len(full) == count // batch_size
    everything = Batches(count, batch_size, seed=seed).epoch(epoch)
    for kept, batch in zip(visited, everything, strict=False):
        assert kept.numel() == batch_size
        assert torch.equal(kept, batch)


def test_two_parties_agree_whatever_else_they_draw() -> None:
    bank, telecom = Batches(1000, 64, seed=7), Batches(1000, 64, seed=7)
    first = bank.epoch(3)
    torch.manual_seed(1)
    random.seed(1)
    telecom.epoch(0)

    second = telecom.epoch(3)

    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_orders_of_seeds_and_epochs_are_all_different() -> None:
    # (0, 1) and (1, 0) would be one order if seeds were added, (1, 11) and (11, 1) if they were written together.
    orders = {
        tuple(torch.cat(Batches(40, 40, seed=seed).epoch(epoch)).tolist()) for seed in range(12) for epoch in range(12)
    }

    assert len(orders) == 144


def test_every_record_is_equally_likely_to_come_first() -> None:
    epochs, count = 6000, 6
    batches = Batches(count, 1, seed=0)

    first = torch.tensor([batches.epoch(epoch)[0].item() for epoch in range(epochs)])

    # The standard deviation of each count is sqrt(6000 * 1/6 * 5/6) = 28.9; five of them.
    assert (torch.bincount(first, minlength=count) - epochs / count).abs().max() < 5 * 28.9


def test_the_order_never_changes_between_versions() -> None:
    # Computed with NumPy 2.4; parties with other versions must agree, and old checkpoints must resume.
    order = torch.cat(Batches(1000, 1000, seed=42).epoch(5))

    assert hashlib.sha256(order.numpy().astype("<i8").tobytes()).hexdigest()[:16] == "60b231c8a0e16e01"


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_a_batch_size_that_cannot_be_is_refused(batch_size: int) -> None:
    with pytest.raises(DataError, match=f"from 1 to the 10 records there are, got {batch_size}"):
        Batches(10, batch_size, seed=0)


def test_a_negative_epoch_is_refused() -> None:
    with pytest.raises(ArgumentError, match="epoch from 0, got -1"):
        Batches(10, 2, seed=0).epoch(-1)


# Tables from one block to many pools: with blocks of up to 7 rows and small batches, a pool is 64 to 448 rows.
blocked = st.integers(1, 2500).flatmap(
    lambda count: st.tuples(st.just(count), st.integers(1, min(count, 90)), st.integers(2, 7))
)


@given(blocked, st.integers(0, 5), st.integers(0, 5))
def test_every_record_comes_once_per_epoch_in_blocks(size: tuple[int, int, int], seed: int, epoch: int) -> None:
    count, batch_size, block_rows = size
    batches = Batches(count, batch_size, seed=seed, block_rows=block_rows)

    visited = list(batches.epoch(epoch))

    assert torch.cat(visited).sort().values.tolist() == list(range(count))
    assert len(visited) == len(batches) == len(batches.epoch(epoch))
    assert all(batch.dtype == torch.int64 and batch.shape == (batch_size,) for batch in visited[:-1])


@given(blocked, st.data())
def test_an_epoch_in_blocks_goes_on_at_any_place(size: tuple[int, int, int], data: st.DataObject) -> None:
    count, batch_size, block_rows = size
    batches = Batches(count, batch_size, seed=3, block_rows=block_rows)
    whole = [batch.tolist() for batch in batches.epoch(1)]
    place = data.draw(st.integers(0, len(whole) - 1))

    resumed = Batches(count, batch_size, seed=3, block_rows=block_rows).epoch(1)[place:]

    assert [batch.tolist() for batch in resumed] == whole[place:]
    assert batches.epoch(1)[place].tolist() == whole[place]
    assert batches.epoch(1)[-1].tolist() == whole[-1]


@given(blocked)
def test_blocks_are_shuffled_into_pools_and_rows_within_them(size: tuple[int, int, int]) -> None:
    count, batch_size, block_rows = size
    pool_blocks = max(64, -(-4 * batch_size // block_rows))
    order = torch.cat(list(Batches(count, batch_size, seed=1, block_rows=block_rows).epoch(0)))
    sizes = torch.arange(count).div(block_rows, rounding_mode="floor").bincount()

    # Read off the order itself: a pool ends where so many blocks have come completely.
    blocks = order.div(block_rows, rounding_mode="floor").tolist()
    pools, begun = [], set()
    left = sizes.tolist()
    for block in blocks:
        begun.add(block)
        left[block] -= 1
        if all(left[other] == 0 for other in begun):
            pools.append(begun)
            begun = set()

    together = [pool for pool in pools if len(pool) > 1]
    assert begun == set()
    assert all(len(pool) <= pool_blocks for pool in pools)
    assert len(pools) >= -(-len(sizes) // pool_blocks)
    assert len(together) <= -(-len(sizes) // pool_blocks)


def test_rows_of_one_block_are_spread_over_the_batches_of_their_pool() -> None:
    batches = Batches(64 * 64, 256, seed=0, block_rows=64)  # one pool of 64 blocks, 16 batches

    visited = torch.stack(list(batches.epoch(0)))
    counts = torch.stack([(visited // 64).eq(block).sum(dim=1) for block in range(64)]).double()

    # 4 rows of each block in each batch are expected. Chi-square over 64 x 16 cells has mean 63 * 15 = 945
    # and standard deviation sqrt(2 * 945) = 43; five of them.
    assert abs(((counts - 4).square() / 4).sum().item() - 945) < 5 * 43


def test_batches_of_one_epoch_come_from_many_parts_of_the_table() -> None:
    batches = Batches(1 << 18, 512, seed=0, block_rows=256)  # 1024 blocks in 16 pools of 64

    first = next(iter(batches.epoch(0)))

    # A pool has 64 blocks at random of 1024; 512 rows at random of 64 blocks leave out less than one (64 * e**-8).
    assert 60 <= first.div(256, rounding_mode="floor").unique().numel() <= 64
    # The standard error of the mean of 64 random places in [0, 1) is 1 / sqrt(12 * 64) = 0.036; five of them.
    assert abs(first.double().mean().item() / (1 << 18) - 0.5) < 5 * 0.036


def test_orders_in_blocks_differ_by_seed_epoch_and_size_of_block() -> None:
    orders = {
        tuple(torch.cat(list(Batches(400, 10, seed=seed, block_rows=rows).epoch(epoch))).tolist())
        for seed in range(4)
        for epoch in range(4)
        for rows in (1, 2, 3)
    }

    assert len(orders) == 48


def test_the_last_batch_can_be_left_out_of_blocks_too() -> None:
    kept = Batches(1003, 100, seed=0, drop_last=True, block_rows=8).epoch(0)
    everything = Batches(1003, 100, seed=0, block_rows=8).epoch(0)

    assert len(kept) == 10
    assert all(torch.equal(one, other) for one, other in zip(kept, everything[:-1], strict=True))


def test_the_order_in_blocks_never_changes_between_versions() -> None:
    order = torch.cat(list(Batches(10_000, 100, seed=42, block_rows=16).epoch(5)))

    assert hashlib.sha256(order.numpy().astype("<i8").tobytes()).hexdigest()[:16] == "4b09c7d153dece65"


def test_going_through_an_epoch_makes_each_pool_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    shuffled = batches_module._shuffled
    monkeypatch.setattr(
        batches_module, "_shuffled", lambda count, purpose: made.append(purpose) or shuffled(count, purpose)
    )

    # Batches of 100 in pools of 64 x 8 = 512 rows: every pool ends within a batch.
    list(Batches(5000, 100, seed=0, block_rows=8).epoch(0))

    assert len(made) == len(set(made)) == 1 + 10  # the blocks, and ten pools


def test_ten_thousand_million_records_can_be_gone_through_from_the_middle() -> None:
    batches = Batches(10**10, 16_384, seed=0, block_rows=1 << 14)

    rows = batches.epoch(7)[400_000:][0]

    assert rows.numel() == 16_384
    assert 0 <= rows.min() < rows.max() < 10**10


@given(st.lists(st.integers(0, 3), max_size=30))
def test_equal_keys_keep_their_order(keys: list[int]) -> None:
    order = batches_module._sorting(np.array(keys, np.uint64))

    assert order.tolist() == sorted(range(len(keys)), key=keys.__getitem__)


@pytest.mark.parametrize("rows", [0, -4])
def test_a_size_of_block_that_cannot_be_is_refused(rows: int) -> None:
    with pytest.raises(ArgumentError, match=f"block_rows from 1, got {rows}"):
        Batches(10, 2, seed=0, block_rows=rows)


def test_a_negative_epoch_is_refused_in_blocks() -> None:
    with pytest.raises(ArgumentError, match="epoch from 0, got -1"):
        Batches(10, 2, seed=0, block_rows=2).epoch(-1)


@pytest.mark.parametrize("block_rows", [1, 3, 7])
@pytest.mark.parametrize("drop_last", [False, True])
@given(count=st.integers(4, 60), every=st.integers(2, 12), size=st.integers(1, 5))
def test_held_out_records_are_in_no_batch_and_all_others_in_the_order_of_a_table_without_them(
    block_rows: int, drop_last: bool, count: int, every: int, size: int
) -> None:
    kept = [position for position in range(count) if position % every != every - 1]
    size = min(size, len(kept))
    options = {"seed": 3, "drop_last": drop_last, "block_rows": block_rows}

    batches = Batches(count, size, held_out_every=every, **options)  # type: ignore[arg-type]

    assert list(batches.held_out) == sorted(set(range(count)) - set(kept))
    found = [batch.tolist() for batch in batches.epoch(1)]
    table = Batches(len(kept), size, **options).epoch(1)  # type: ignore[arg-type]
    assert found == [[kept[place] for place in batch.tolist()] for batch in table]
    assert len(batches) == len(found)


@pytest.mark.parametrize(("count", "every", "shards"), [(50, 7, 3), (50, 7, 1), (9, 8, 4), (101, 2, 5)])
def test_the_most_held_out_records_of_a_shard_are_known_at_all(count: int, every: int, shards: int) -> None:
    of_each = [
        Batches(count, shards, seed=0, held_out_every=every, shards=shards).of_shard(shard) for shard in range(shards)
    ]
    assert {one.most_held_out for one in of_each} == {max(len(one.held_out) for one in of_each)}


def test_records_held_out_take_no_memory() -> None:
    batches = Batches(10**10, 16_384, seed=0, block_rows=1 << 14, held_out_every=10)

    assert (len(batches.held_out), batches.held_out[0], batches.held_out[-1]) == (10**9, 9, 10**10 - 1)
    assert (batches.epoch(0)[200_000] % 10 != 9).all()


def test_nothing_is_held_out_by_default() -> None:
    assert list(Batches(10, 2, seed=0).held_out) == []


def test_batches_cannot_be_larger_than_what_is_not_held_out() -> None:
    with pytest.raises(DataError, match="from 1 to the 5 records there are, got 6"):
        Batches(10, 6, seed=0, held_out_every=2)
    with pytest.raises(ArgumentError, match="held_out_every from 2, got 1"):
        Batches(10, 2, seed=0, held_out_every=1)


# --- shards


@st.composite
def divided(draw: st.DrawFn) -> Batches:
    """Batches of several shards, with blocks, records that are held out and a last batch left out, or without."""
    shards = draw(st.integers(2, 5))
    every = draw(st.none() | st.integers(2, 6))
    count = draw(st.integers(3 * shards, 200))
    rest = count - (0 if every is None else count // every)
    batch_size = draw(st.integers(shards, max(shards, rest)))
    return Batches(
        count,
        batch_size,
        seed=draw(st.integers(0, 9)),
        drop_last=draw(st.booleans()),
        block_rows=draw(st.sampled_from([1, 3, 16])),
        held_out_every=every,
        shards=shards,
    )


@given(divided(), st.integers(0, 3))
def test_a_batch_is_what_its_shards_contribute_and_a_record_never_changes_its_shard(whole: Batches, epoch: int) -> None:
    shards = [whole.of_shard(shard) for shard in range(whole.shards)]
    count = shards[0]._bounds[-1]

    visited = whole.epoch(epoch)
    parts = [shard.epoch(epoch) for shard in shards]

    assert len(visited) == len(whole) == len(parts[0])
    for place, batch in enumerate(visited):
        assert batch.tolist() == [row for part in parts for row in part[place].tolist()]
        assert whole.whole(place) == len(batch) > 0
    for number, part in enumerate(parts):
        first, last = count * number // whole.shards, count * (number + 1) // whole.shards
        rows = torch.cat(list(part))
        assert rows.unique().numel() == rows.numel()
        assert ((rows >= first) & (rows < last)).all()
        # Spread evenly: of one record more or less.
        assert max(map(len, part)) - min(map(len, part)) <= 1
    every = whole._every
    held_out = set(range(count)[every - 1 :: every]) if every else set()
    assert [row for shard in shards for row in shard.held_out] == sorted(held_out) == list(whole.held_out)
    missing = set(range(count)) - held_out - {row for batch in visited for row in batch.tolist()}
    assert not missing or (whole.drop_last and len(missing) < whole.batch_size + whole.shards)
    # All shards may have their larger part in one batch, and their smaller part in another.
    assert max(map(len, visited)) - min(map(len, visited)) <= whole.shards


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.data())
def test_shards_that_lie_apart_count_from_their_own_first_record(found: list[int], data: st.DataObject) -> None:
    every = data.draw(st.none() | st.integers(2, 6))
    count, shards = sum(found), len(found)
    rest = count - (0 if every is None else count // every)
    hypothesis.assume(rest >= shards)
    size, blocks = data.draw(st.integers(shards, rest)), data.draw(st.sampled_from([1, 3]))
    given = {"seed": 1, "held_out_every": every, "block_rows": blocks, "shards": shards, "sizes": found}
    whole = Batches(count, size, **given)
    parts = [whole.of_shard(shard) for shard in range(shards)]

    firsts = [sum(found[:shard]) for shard in range(shards)]
    for place, batch in enumerate(whole.epoch(2)):
        own = [part.epoch(2)[place] for part in parts]
        assert batch.tolist() == [first + row for first, rows in zip(firsts, own, strict=True) for row in rows.tolist()]
        assert whole.whole(place) == parts[0].whole(place) == len(batch) > 0
        assert all(((rows >= 0) & (rows < size)).all() for rows, size in zip(own, found, strict=True))
    held = [first + place for first, part in zip(firsts, parts, strict=True) for place in part.held_out]
    assert held == list(whole.held_out) == [row for row in range(count) if every and row % every == every - 1]
    assert {part.all_held_out for part in parts} == {len(held)}
    visited = [row for batch in whole.epoch(2) for row in batch.tolist()]
    assert sorted(visited + held) == list(range(count))


def test_even_sizes_are_no_other_order() -> None:
    apart = Batches(11, 4, seed=1, shards=2, sizes=[5, 6])
    known = Batches(11, 4, seed=1, shards=2)
    assert [one.tolist() for one in apart.epoch(3)] == [one.tolist() for one in known.epoch(3)]


@pytest.mark.parametrize("wrong", [[5, 5], [11], [5, 5, 1], [12, -1]])
def test_sizes_are_those_of_all_records(wrong: list[int]) -> None:
    with pytest.raises(ArgumentError, match="expected sizes of 2 shards that add up to 11"):
        Batches(11, 4, seed=1, shards=2, sizes=wrong)


@given(sizes, st.integers(0, 9), st.sampled_from([1, 7]))
def test_one_shard_is_no_division(size: tuple[int, int], epoch: int, block_rows: int) -> None:
    plain = Batches(*size, seed=4, block_rows=block_rows)
    for batches in (
        Batches(*size, seed=4, block_rows=block_rows, shards=1),
        Batches(*size, seed=4, block_rows=block_rows, shards=1).of_shard(0),
    ):
        assert [batch.tolist() for batch in batches.epoch(epoch)] == [batch.tolist() for batch in plain.epoch(epoch)]
    assert [plain.whole(place) for place in range(len(plain))] == [len(batch) for batch in plain.epoch(epoch)]


def test_the_order_in_shards_never_changes_between_versions() -> None:
    found = [batch.tolist() for batch in Batches(11, 4, seed=1, shards=2).epoch(1)]
    assert found == [[4, 10, 9], [0, 1, 7, 5], [2, 3, 8, 6]]


def test_an_epoch_in_shards_goes_on_at_any_place() -> None:
    batches = Batches(100, 8, seed=3, shards=3)
    later = batches.epoch(2)[5:]
    assert [batch.tolist() for batch in later] == [batch.tolist() for batch in batches.epoch(2)][5:]


@pytest.mark.parametrize("shards", [0, -1])
def test_shards_that_cannot_be_are_refused(shards: int) -> None:
    with pytest.raises(ArgumentError, match="expected shards from 1"):
        Batches(10, 5, seed=0, shards=shards)


@pytest.mark.parametrize(("shards", "shard"), [(2, 2), (2, -1), (1, 1)])
def test_a_shard_that_is_none_of_them_is_refused(shards: int, shard: int) -> None:
    with pytest.raises(ArgumentError, match=f"one of {shards} shards, got number {shard}"):
        Batches(10, 5, seed=0, shards=shards).of_shard(shard)


def test_a_batch_has_a_record_of_each_shard_at_least() -> None:
    with pytest.raises(DataError, match="batches of 4 records at least"):
        Batches(10, 3, seed=0, shards=4)
