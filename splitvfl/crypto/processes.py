"""Worker processes of one party, as the party sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial, reduce
from itertools import accumulate, pairwise
from typing import Any, Self

import msgspec
import numpy as np
from gmpy2 import mpz

from splitvfl.crypto import worker
from splitvfl.crypto.kernels import cost, packed_sums
from splitvfl.crypto.modular import power
from splitvfl.errors import ArgumentError, WorkerError

_MOST_WORKERS = 256
_ENDS_WITHIN_S = 5.0
# Work is shared if that takes at most this part of the time that one process takes.
_WORTH_SHARING = 0.72


class Process:
    """One worker process.

    Closing it ends it, whatever it does; it also ends by itself when this process does.
    """

    def __init__(self) -> None:
        # Its threads would only be in the way of its sisters, and it finds the package where this process has found it.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # In a group of its own: Ctrl-C is for the main process, which then ends this one.
        # -P: else a file msgspec.py in the folder that a run is started in would be imported by a process that is then
        # given the primes. PYTHONPATH is heeded all the same.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            process_group=0,
        )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def send(self, job: worker.Job) -> None:
        """Give it a job.

        Raises:
            WorkerError: If it has ended.
        """
        assert self._process.stdin is not None
        try:
            worker.write_frame(self._process.stdin, job)  # type: ignore[arg-type]
        except (BrokenPipeError, ValueError) as error:
            raise self._ended() from error

    def receive(self) -> list[mpz]:
        """Wait for its next answer.

        Raises:
            WorkerError: If it has ended, or what it wrote is no answer.
        """
        assert self._process.stdout is not None
        try:
            found = worker.read_frame(self._process.stdout)  # type: ignore[arg-type]
        except (msgspec.MsgspecError, OverflowError, MemoryError) as error:
            self.end()
            raise WorkerError(
                "a worker process wrote something that is no answer: something printed before it began"
            ) from error
        if found is None:
            raise self._ended()
        return [worker.to_number(value) for value in found]

    def end(self) -> None:
        """End it, whatever it does; who waits for its answer is told."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it, and close its streams."""
        self.end()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # the rest of a job that nobody reads any more

    def _ended(self) -> WorkerError:
        try:
            code = str(self._process.wait(_ENDS_WITHIN_S))
        except subprocess.TimeoutExpired:
            code = "unknown"
        return WorkerError(
            f"a worker process ended (exit status {code}) before its work was done; its own message, if any, is on "
            "the standard error. Go on with new workers"
        )


class Workers:
    """A number of worker processes that share the work of this one.

    A context manager. With ``count=1``, say, there are two that compute: this process and one more. Threads take turns.
    After a fork the child is refused: its jobs would get in between the parent's.

    Args:
        count: How many processes beside this one, ≥ 1.
    """

    def __init__(self, count: int) -> None:
        if not 1 <= count <= _MOST_WORKERS:
            raise ArgumentError(f"expected 1 to {_MOST_WORKERS} workers beside this process, got {count}")
        self._owner = os.getpid()
        self._turn = threading.Lock()
        self._processes: list[Process] = []
        try:
            for _ in range(count):
                self._processes.append(Process())
        except OSError:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def pids(self) -> list[int]:
        """The processes beside this one, for whoever measures."""
        return [process.pid for process in self._processes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes. Closing twice does nothing."""
        if os.getpid() == self._owner:
            for process in self._processes:
                process.close()
        self._processes = []

    def done(self, jobs: Sequence[worker.Job]) -> list[list[mpz]]:
        """Do jobs, one more than there are workers at most, the first in this process; return their answers in order.

        Raises:
            WorkerError: If a worker has ended; the others are ended too, so that no late answer can be taken for
                another's. Or if this is another process than that which made the workers.
        """
        if os.getpid() != self._owner:
            raise WorkerError("these workers belong to another process: make new ones")
        with self._turn:
            return self._done(jobs)

    def _done(self, jobs: Sequence[worker.Job]) -> list[list[mpz]]:
        if len(jobs) > len(self._processes) + 1:
            raise WorkerError(
                f"expected up to {len(self._processes) + 1} jobs at once, got {len(jobs)}: are they closed?"
            )
        busy = self._processes[: len(jobs) - 1]
        try:
            for process, job in zip(busy, jobs[1:], strict=True):
                process.send(job)
            own = worker.done(jobs[0])
            return [own, *(process.receive() for process in busy)]
        except BaseException:
            self.close()
            raise


def powers(triples: Sequence[tuple[mpz, mpz, mpz]], workers: Workers | None) -> list[mpz]:
    """Return ``base^exponent mod n²`` for each ``(base, exponent, n)``, side by side if there are workers."""
    parts = min(len(triples), 1 + (len(workers) if workers else 0))
    if workers is None or parts < 2:
        return [power(*triple) for triple in triples]
    answers = workers.done([worker.powers_job(triples[part::parts]) for part in range(parts)])
    return [answers[place % parts][place // parts] for place in range(len(triples))]


def shared_sums(
    ciphertexts: Sequence[mpz],
    weights: np.ndarray[Any, Any],
    *,
    counts: Sequence[int],
    slot_bits: int,
    n: mpz,
    workers: Workers | None,
) -> list[mpz]:
    """Return what :func:`~splitvfl.crypto.kernels.packed_sums` does, side by side if there are workers.

    Work is divided by results or by samples: results divide all work but the tables, samples all but the squarings.
    What is done twice counts too, as it is better spent elsewhere, on obfuscators for the next step, say; and if
    division saves too little, nothing is divided.
    """
    alone = cost(len(ciphertexts), sum(counts), slot_bits)
    parts = 1 + (len(workers) if workers else 0)
    by_samples, by_results = _cut(len(ciphertexts), parts), _cut(len(counts), parts)
    with_results = [cost(len(ciphertexts), sum(counts[part]), slot_bits) for part in by_results]
    with_samples = [cost(len(ciphertexts[part]), sum(counts), slot_bits) for part in by_samples]
    costs = min(with_results, with_samples, key=lambda costs: max(costs) + sum(costs) / parts)
    if workers is None or max(costs) > _WORTH_SHARING * alone:
        return packed_sums(ciphertexts, weights, counts=counts, slot_bits=slot_bits, n=n)
    job = partial(worker.sums_job, slot_bits=slot_bits, n=n)
    if costs is with_samples:
        jobs = [job(ciphertexts[part], weights[part], counts=counts) for part in by_samples]
        return reduce(partial(_products, modulus=n * n), workers.done(jobs))
    edges = [0, *accumulate(sum(counts[part]) for part in by_results)]
    columns = [weights[:, first:last] for first, last in pairwise(edges)]
    jobs = [job(ciphertexts, own, counts=counts[part]) for own, part in zip(columns, by_results, strict=True)]
    return [value for answer in workers.done(jobs) for value in answer]


def _products(left: list[mpz], right: list[mpz], modulus: mpz) -> list[mpz]:
    return [one * other % modulus for one, other in zip(left, right, strict=True)]


def _cut(total: int, parts: int) -> list[slice]:
    """Return consecutive slices, as even as possible, none of them empty."""
    parts = min(parts, total)
    edges = [total * part // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
