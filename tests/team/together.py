"""Workers as processes, each of which does the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from splitvfl.errors import TeamError
from splitvfl.team.team import Team
from splitvfl.team.workers import Workers
from tests.run.forked import FORKS
from tests.run.parties import free_ports

SIZE = 3
# Longer than anything here takes on a busy machine.
ENOUGH_S = 60.0


def worker(rank: int, port: int, size: int, work: Callable[[Team], Any], answers: Any) -> None:
    torch.set_num_threads(1)
    variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in variables.items()}
    with Workers(size, party="shop", environment=os.environ, wait_s=ENOUGH_S) as team:
        try:
            answer = work(team)
        except TeamError as error:
            answer = error.final, str(error)
    answers.put((rank, answer))


def together(work: Callable[[Team], Any], *, size: int = SIZE) -> list[Any]:
    """What each worker returns, in order; of one that is told that another cannot go on, whether for good, and why."""
    answers, (port,) = FORKS.Queue(), free_ports(1)
    processes = [FORKS.Process(target=worker, args=(rank, port, size, work, answers)) for rank in range(size)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=ENOUGH_S) for _ in processes)
    for process in processes:
        process.join(ENOUGH_S)
    return [found[rank] for rank in range(size)]
