"""What the workers of one party do together; a party that is one process is a team of one, and does nothing.

Every worker holds a replica of the party's model and a part of the records. What they do together they do in step: all
of them call the same operation, one after the other. Before each operation every worker says whether it can go on; if
one cannot, all of them raise, so that nobody waits for somebody who does not come. Nothing here is a message of the
conversation with other parties: what a party does inside itself is its own business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


def _never() -> bool:
    return False


class Team(ABC):
    """The workers of one party, as one of them sees them.

    Attributes:
        rank: Number of this worker, from 0.
        size: How many there are.
        stopping: Asked before every operation whether this worker was asked to stop.
        link_lost: Asked about once a second while this worker waits for the others whether it has lost a link meanwhile
            that it needs to go on.
    """

    rank: int = 0
    size: int = 1

    def __init__(self) -> None:
        self.stopping: Callable[[], bool] = _never
        self.link_lost: Callable[[], bool] = _never

    @property
    @abstractmethod
    def stop_asked(self) -> bool:
        """Whether any worker had been asked to stop when the last operation began: the same at all of them."""

    @abstractmethod
    def add_up(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the sums over all workers of these tensors, the same to the bit at each.

        A worker may have ``None`` where others have a tensor, and counts as zeros there; where all have ``None``, the
        sum is ``None``. Sparse tensors stay sparse.

        Args:
            tensors: As many at every worker, each of one shape and dtype there.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """

    @abstractmethod
    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """Return what every worker has, in order, at worker 0; ``None`` at the others.

        Args:
            tensor: Of one dtype at all workers, and of one shape but for its first dimension.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """

    @abstractmethod
    def scatter(self, parts: Sequence[Tensor] | None, rows: int) -> Tensor:
        """Return this worker's part of what worker 0 has.

        Args:
            parts: At worker 0 one for each worker, alike but for their first dimension; ``None`` at the others.
            rows: How long the first dimension of this worker's part is.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """

    def whole(self, tensor: Tensor) -> Tensor | None:
        """Return what all workers have, one behind the other, at worker 0; ``None`` at the others."""
        parts = self.gather(tensor)
        return None if parts is None else torch.cat(parts)

    @abstractmethod
    def exchange(
        self, rows: Tensor, counts: Sequence[int], awaited: Sequence[int] | None = None
    ) -> tuple[Tensor, list[int]]:
        """Give every worker the rows that this one has for it, and return those that all have for this one.

        Args:
            rows: One behind the other those for worker 0, 1, …; of one dtype at all workers, and of one shape but for
                the first dimension.
            counts: How many of them are for each worker; for itself too.
            awaited: How many each worker has for this one, at all workers or at none; ``None``: they tell each other
                before.

        Returns:
            The rows of worker 0, 1, … for this one, one behind the other, and how many are of each.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """

    @abstractmethod
    def share(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite these tensors with those of worker 0.

        Args:
            tensors: As many at every worker, each of one shape and dtype there.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """

    @abstractmethod
    def collect(self, content: bytes) -> list[bytes]:
        """Return what every worker says, in order; short contents, as a note or a digest.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """

    @abstractmethod
    def divide(self, module: nn.Module) -> nn.Module:
        """Divide a model's dense weights among the workers, in place, if there are several. Nobody waits for anybody.

        From then on all workers call it together, forward and backward, within :meth:`jointly`.

        Args:
            module: The model, with the same weights at all workers.

        Returns:
            What this worker holds of it, as :func:`splitvfl.team.sharded_dense.divide` has it.

        Raises:
            ArgumentError: If one of its weights cannot be divided.
        """

    @abstractmethod
    def jointly(self, work: Callable[[], T]) -> T:
        """Do something in which torch makes workers wait for each other: all of them, or none.

        Args:
            work: The same at all workers.

        Raises:
            TeamError: If a worker could not go on, or is gone, or failed in the work.
        """

    @abstractmethod
    def compute_on(self, device: torch.device) -> str:
        """Say on which device this worker computes from now on, and return what adds up dense gradients of all then.

        Args:
            device: Its own; of one kind at all workers.

        Returns:
            In words; empty where there is nothing to add up.

        Raises:
            TeamError: If workers compute on devices of several kinds, or cannot be joined, or one is gone.
        """

    @property
    def lost(self) -> str:
        """Why nothing can be done together any more; empty as long as something can."""
        return ""

    @abstractmethod
    def refuse(self, reason: str, *, final: bool = False) -> None:
        """Tell the others, in the place of their next operation, that this worker cannot go on; they raise.

        Where another one refuses for good at the same time, :attr:`lost` says why.

        Args:
            reason: What they are told, in words; of more than 500 bytes the first.
            final: Whether it would be the same another time.
        """

    @abstractmethod
    def is_refusing(self) -> bool:
        """Return whether a worker that waits for this one in the next operation refuses, or has lost a link.

        For one that waits for another party before that operation: what it waits for may never come.
        """


class Alone(Team):
    """A party that is one process."""

    @property
    def stop_asked(self) -> bool:
        """Whether this process was asked to stop."""
        return self.stopping()

    def add_up(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the tensors as they are."""
        return list(tensors)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor alone."""
        return [tensor]

    def scatter(self, parts: Sequence[Tensor] | None, rows: int) -> Tensor:
        """Return the one part."""
        assert parts is not None, "worker 0 has them"
        (part,) = parts
        return part

    def exchange(
        self, rows: Tensor, counts: Sequence[int], awaited: Sequence[int] | None = None
    ) -> tuple[Tensor, list[int]]:
        """Return the rows as they are."""
        return rows, list(counts)

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Leave them as they are."""

    def collect(self, content: bytes) -> list[bytes]:
        """Return the content alone."""
        return [content]

    def divide(self, module: nn.Module) -> nn.Module:
        """Return the model as it is."""
        return module

    def jointly(self, work: Callable[[], T]) -> T:
        """Do it."""
        return work()

    def compute_on(self, device: torch.device) -> str:
        """Return nothing."""
        return ""

    def refuse(self, reason: str, *, final: bool = False) -> None:
        """Do nothing: nobody else waits."""

    def is_refusing(self) -> bool:
        """Return that there is none."""
        return False


class FirstWorker(Alone):
    """Worker 0 of several of whom the others are not there: to see what it would be made of, and not to train.

    The others are taken to say what it says.

    Args:
        size: How many there would be.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def collect(self, content: bytes) -> list[bytes]:
        """Return the content as often as there would be workers."""
        return [content] * self.size


def part_of(count: int, team: Team) -> range:
    """Return the positions of this worker's part of so many records."""
    return range(team.rank * count // team.size, (team.rank + 1) * count // team.size)
