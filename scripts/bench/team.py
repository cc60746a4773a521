"""Workers of one party as processes of this machine, each on one core and one thread, joined by gloo over loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Final, TypeVar

import torch

from splitvfl.system.allocator import keep_large_blocks
from splitvfl.team.team import Team
from splitvfl.team.workers import Workers

T = TypeVar("T")

WORKERS: Final = 2
PROCESSES = get_context("forkserver")
LIMIT_S: Final = 600.0


def done_by_workers(work: Callable[[Team], T]) -> T:
    """Return what work that all workers do returns at worker 0.

    Args:
        work: A function of a module, or a partial of one.

    Raises:
        RuntimeError: If they do not come to an end, or one fails.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here, there = PROCESSES.Pipe(duplex=False)
    workers = [PROCESSES.Process(target=_worker, args=(rank, port, work, there)) for rank in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        running = list(workers)
        while not here.poll():
            ready = wait([here, *(worker.sentinel for worker in running)], LIMIT_S)
            running = [worker for worker in running if worker.exitcode is None]
            if not ready or any(worker.exitcode for worker in workers):
                raise RuntimeError("the workers do not come to an end, or one has failed, which says above why")
        answer: T = here.recv()
        for worker in workers:
            worker.join(LIMIT_S)
    finally:
        for worker in workers:
            worker.kill()
    return answer


def _worker(rank: int, port: int, work: Callable[[Team], T], answers: Connection) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    keep_large_blocks()
    variables = {"RANK": rank, "WORLD_SIZE": WORKERS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {key: str(value) for key, value in variables.items()}
    os.environ |= environment
    with Workers(WORKERS, party="bench", environment=environment, wait_s=LIMIT_S) as team:
        answer = work(team)
        if rank == 0:
            answers.send(answer)
