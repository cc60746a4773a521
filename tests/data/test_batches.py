from __future__ import annotations

import hashlib
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.data.batches import Batches
from splitvfl.errors import ArgumentError, DataError

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
