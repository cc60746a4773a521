"""Workers of one party that are threads of one process: cheap, and in step like those that torch joins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from splitvfl.errors import TeamError
from splitvfl.team.team import Team

T = TypeVar("T")

# Longer than anything that is done between two operations.
_LIMIT_S = 60.0


class Table:
    """Where the workers of one team lay down what they have, all of them, before anybody looks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=_LIMIT_S)
        self._laid: list[Any] = [None] * size

    def all_of(self, rank: int, operation: str, content: Any) -> list[Any]:
        self._laid[rank] = operation, content
        self._wait()
        laid = list(self._laid)
        self._wait()
        assert {name for name, _ in laid} == {operation}, "workers are not in step"
        return [one for _, one in laid]

    def _wait(self) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise TeamError("another worker is gone", final=True) from error

    def leave(self) -> None:
        """Let nobody wait for one that failed."""
        self._barrier.abort()


class Threads(Team):
    """A worker that is a thread.

    Attributes:
        done: Names of the operations that it took part in.
    """

    stop_asked = False

    def __init__(self, rank: int, table: Table) -> None:
        super().__init__()
        self.rank, self.size, self._table = rank, table.size, table
        self.done: list[str] = []

    def _all(self, operation: str, content: Any) -> list[Any]:
        self.done.append(operation)
        return self._table.all_of(self.rank, operation, content)

    def add_up(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        columns = zip(*self._all("add up", list(tensors)), strict=True)
        present = [[one for one in column if one is not None] for column in columns]
        return [torch.stack(column).sum(0) if column else None for column in present]

    def divide(self, module: nn.Module) -> nn.Module:
        raise NotImplementedError("torch's process groups are of processes")

    def jointly(self, work: Callable[[], T]) -> T:
        self._all("jointly", None)
        return work()

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        found = self._all("gather", tensor.detach().clone())
        return None if self.rank else found

    def scatter(self, parts: Sequence[Tensor] | None, rows: int) -> Tensor:
        found = self._all("scatter", parts)
        mine: Tensor = found[0][self.rank].clone()
        assert len(mine) == rows
        return mine

    def exchange(
        self, rows: Tensor, counts: Sequence[int], awaited: Sequence[int] | None = None
    ) -> tuple[Tensor, list[int]]:
        found = self._all("exchange", (rows.detach().clone(), list(counts)))
        mine = [theirs.split(each)[self.rank] for theirs, each in found]
        assert awaited is None or list(awaited) == list(map(len, mine))
        return torch.cat(mine), list(map(len, mine))

    def share(self, tensors: Sequence[Tensor]) -> None:
        first = self._all("share", [tensor.detach().clone() for tensor in tensors])[0]
        with torch.no_grad():
            for tensor, known in zip(tensors, first, strict=True):
                tensor.copy_(known)

    def collect(self, content: bytes) -> list[bytes]:
        return self._all("collect", content)

    def compute_on(self, device: torch.device) -> str:
        assert self._all("compute on", device.type) == [device.type] * self.size
        return "threads"

    def refuse(self, reason: str, *, final: bool = False) -> None:
        self._table.leave()

    def is_refusing(self) -> bool:
        return False


def in_threads(work: Callable[[int], T], *tables: Table) -> list[T]:
    """What a function returns for each rank, each in a thread of its own; the first failure, if one fails.

    Args:
        work: What each worker does.
        tables: Those of the teams that meet in it, one for each party.
    """
    found: dict[int, T] = {}
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except BaseException as error:
            failed.append(error)
            for table in tables:
                table.leave()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(tables[0].size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)
    if failed:
        raise failed[0]
    return [found[rank] for rank in sorted(found)]
