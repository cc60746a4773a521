"""Tables whose rows are divided among workers, beside the same table as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from splitvfl.learning.optimizers import EMBEDDING_OPTIMIZERS
from splitvfl.team.divided import replicated_state, sharded_tables
from splitvfl.team.sharded_table import ShardedTable
from splitvfl.team.team import Alone, Team
from tests.team.together import SIZE, together

# A number of rows that the workers do not divide evenly; categories under Zipf's law.
ROWS, DIM, FIELDS, STEPS = 200, 3, 4, 12


def normal(table: Tensor) -> Tensor:
    return nn.init.normal_(table, std=0.1)


def codes_of(rank: int, step: int) -> Tensor:
    """A worker's codes in a step: of another number of records at each, and of none at worker 1 in some steps."""
    random = torch.Generator().manual_seed(1000 * rank + step)
    records = 0 if rank == 1 and step % 3 == 0 else 2 + 5 * rank
    return (float(ROWS) ** torch.rand(records, FIELDS, generator=random) - 1).long()


def loss_of(vectors: Tensor, rank: int, step: int) -> Tensor:
    """Something whose gradient depends on the rows."""
    random = torch.Generator().manual_seed(1000 * rank + step)
    return (vectors * torch.randn(vectors.shape, generator=random).to(vectors)).sin().sum()


def trained_apart(team: Team) -> Any:
    found = {}
    for name, make in EMBEDDING_OPTIMIZERS.items():
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(7)
            table = ShardedTable(ROWS, DIM, team, initialise=normal).to(dtype)
            optimizer = make(table.parameters(), lr=0.1)
            for step in range(STEPS):
                table.forget_gradients()
                loss_of(table(codes_of(team.rank, step)), team.rank, step).backward()
                table.bring_home()
                assert table.rows.grad is not None
                assert table.rows.grad.is_sparse
                with torch.sparse.check_sparse_tensor_invariants(enable=False):
                    optimizer.step()
            held = [
                value for value in optimizer.state[table.rows].values() if isinstance(value, Tensor) and value.dim()
            ]
            blocks = list(table.whole())
            whole = None if team.rank else torch.cat([block for block in blocks if block is not None]).numpy()
            assert team.rank == 0 or blocks == [None]
            found[name, dtype] = whole, len(table.rows), {len(value) for value in held}
    return found


def trained_as_a_whole(make: Callable[..., Optimizer], dtype: torch.dtype) -> Tensor:
    torch.manual_seed(7)
    table = nn.Parameter(normal(torch.empty(ROWS, DIM)).to(dtype))
    optimizer = make([table], lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        parts = [(functional.embedding(codes_of(rank, step), table, sparse=True), rank) for rank in range(SIZE)]
        torch.stack([loss_of(vectors, rank, step) for vectors, rank in parts]).sum().backward()
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            optimizer.step()
    return table.detach()


@pytest.fixture(scope="module")
def apart() -> list[Mapping[Any, Any]]:
    return together(trained_apart)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", EMBEDDING_OPTIMIZERS)
def test_a_divided_table_ends_as_the_whole_one(
    apart: list[Mapping[Any, Any]], name: str, dtype: torch.dtype, bound: float
) -> None:
    whole = torch.from_numpy(apart[0][name, dtype][0])
    expected = trained_as_a_whole(EMBEDDING_OPTIMIZERS[name], dtype)
    assert whole.dtype == dtype
    assert (whole - expected).abs().max() <= bound * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("name", EMBEDDING_OPTIMIZERS)
def test_a_worker_holds_its_part_of_rows_and_of_the_optimisers_state(apart: list[Mapping[Any, Any]], name: str) -> None:
    rows = [found[name, torch.float32][1] for found in apart]
    assert rows == [67, 67, 66]
    for found in apart:
        _, own, held = found[name, torch.float32]
        assert held <= {own}


def asked_for(team: Team) -> Any:
    """How many rows a worker asks for, and what it gets; of a table in which row r is r, 2r."""
    numbers = iter(range(10**6))

    def numbered(block: Tensor) -> Tensor:
        for row in block:
            row.copy_(torch.tensor([1.0, 2.0]) * next(numbers))
        return block

    table = ShardedTable(11, 2, team, initialise=numbered)
    crossed = []
    exchange = team.exchange

    def counted(rows: Tensor, counts: Any, awaited: Any = None) -> Any:
        crossed.append(len(rows))
        return exchange(rows, counts, awaited)

    team.exchange = counted  # type: ignore[method-assign]
    rows = torch.tensor([[10, 3, 3], [10, 10, 0]] if team.rank else [[1, 1, 1]])
    first, second = table(rows), table(rows[:, :2])
    # Two lookups, and one backward pass of the later one before the earlier one's.
    second.sum().backward()
    first.sum().backward()
    table.bring_home()
    assert table.rows.grad is not None
    return first.tolist(), crossed, table.rows.grad.to_dense().tolist(), table.rows.detach().tolist()


def test_each_row_is_asked_for_once_and_gradients_of_several_lookups_are_summed() -> None:
    found = together(asked_for, size=2)
    for rank, rows in enumerate(([[1, 1, 1]], [[10, 3, 3], [10, 10, 0]])):
        vectors, crossed, _, held = found[rank]
        assert vectors == [[[1.0 * row, 2.0 * row] for row in record] for record in rows]
        assert held == [[1.0 * row, 2.0 * row] for row in range(rank, 11, 2)]
        named = len({row for record in rows for row in record})
        assert crossed[0] == named
    gradient = torch.zeros(11)
    for rows in ([1, 1, 1], [10, 3, 3, 10, 10, 0], [1, 1], [10, 3, 10, 10]):
        gradient.index_add_(0, torch.tensor(rows), torch.ones(len(rows)))
    for rank in range(2):
        assert found[rank][2] == [[value, value] for value in gradient[rank::2].tolist()]


def worker(rank: int, size: int) -> Alone:
    team = Alone()
    team.rank, team.size = rank, size
    return team


@pytest.mark.parametrize("rows", [3, 65_536, 65_537, 131_075])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_first_rows_are_those_of_one_process_and_so_are_numbers_drawn_afterwards(rows: int, dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(3)
        whole, after = normal(torch.empty(rows, 5)), torch.rand(3)
        for rank in range(3):
            torch.manual_seed(3)
            table = ShardedTable(rows, 5, worker(rank, 3), initialise=normal)
            assert torch.equal(table.rows, whole[rank::3])
            assert torch.equal(torch.rand(3), after)
    finally:
        torch.set_default_dtype(before)


def test_a_table_is_found_in_a_model_and_told_from_what_all_workers_hold_alike() -> None:
    model = nn.Sequential(nn.Linear(2, 2), ShardedTable(6, 2, worker(1, 2), initialise=normal))
    assert list(sharded_tables(model)) == ["1"]
    assert list(replicated_state(model)) == ["0.weight", "0.bias"]
    assert list(replicated_state(model[1])) == []
    assert "rows 1 mod 2 of 6, 2 wide" in repr(model)


def test_one_worker_alone_has_the_whole_table() -> None:
    table = ShardedTable(5, 2, Alone(), initialise=normal)
    rows = torch.tensor([[4, 0], [4, 2]])
    vectors = table(rows)
    assert torch.equal(vectors, table.rows[rows])
    vectors.sum().backward()
    table.bring_home()
    assert table.rows.grad is not None
    assert table.rows.grad.to_dense()[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0, 2.0]
    assert torch.equal(torch.cat([block for block in table.whole() if block is not None]), table.rows)


def test_a_table_that_is_not_trained_keeps_no_gradient() -> None:
    table = ShardedTable(5, 2, Alone(), initialise=normal)
    assert not torch.no_grad()(table)(torch.tensor([1])).requires_grad
    table.rows.requires_grad_(False)
    assert not table(torch.tensor([1])).requires_grad
    assert table.gradients == []
