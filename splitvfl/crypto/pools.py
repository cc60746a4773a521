"""Obfuscators made in the background, in a process of their own, so that a step finds them ready."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Self

from gmpy2 import mpz

from splitvfl.crypto import worker
from splitvfl.crypto.keys import PrivateKey, PublicKey
from splitvfl.crypto.processes import Process
from splitvfl.errors import ArgumentError, WorkerError


class Pool:
    """A stock of obfuscators that a process of its own keeps full.

    A context manager, and a source of obfuscators itself. Each one is handed out once. After a fork the child is
    refused: it would hand out the parent's again.

    Args:
        source: How they are made, with its numbers: see :meth:`powers`, :meth:`products`, :meth:`fixed_base`.
        numbers: What the source needs.
        capacity: How many are kept ready, ≥ 1; some more wait in the pipe.
    """

    def __init__(self, source: str, numbers: Sequence[mpz], *, capacity: int) -> None:
        if capacity < 1:
            raise ArgumentError(f"expected a capacity from 1, got {capacity}")
        self._capacity = capacity
        self._stock: deque[mpz] = deque()
        self._changed = threading.Condition()
        self._error: WorkerError | None = None
        self._owner = os.getpid()
        self._process = Process()
        try:
            self._process.send(worker.fill_job(source, numbers))
        except WorkerError:
            self._process.close()
            raise
        self._reader = threading.Thread(target=self._read, name="obfuscators", daemon=True)
        self._reader.start()

    @classmethod
    def powers(cls, public: PublicKey, *, capacity: int) -> Self:
        """Return a pool of :class:`~splitvfl.crypto.obfuscators.Powers`."""
        return cls("powers", [public.modulus], capacity=capacity)

    @classmethod
    def products(cls, public: PublicKey, *, capacity: int) -> Self:
        """Return a pool of :class:`~splitvfl.crypto.obfuscators.Products`."""
        return cls("products", [public.modulus], capacity=capacity)

    @classmethod
    def fixed_base(cls, key: PrivateKey, *, capacity: int) -> Self:
        """Return a pool of :class:`~splitvfl.crypto.obfuscators.FixedBase`, for the owner of the key."""
        return cls("fixed-base", [key.p, key.q], capacity=capacity)

    def __len__(self) -> int:
        """Return how many are ready."""
        return len(self._stock)

    @property
    def pids(self) -> list[int]:
        """The process that makes them, for whoever measures."""
        return [self._process.pid]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, count: int) -> list[mpz]:
        """Return new obfuscators, waiting for them if need be.

        Raises:
            WorkerError: If the process that makes them has ended and there are not enough left, the pool is closed, or
                this is another process than the pool's.
        """
        if os.getpid() != self._owner:
            raise WorkerError(
                "this pool belongs to another process, which would hand out the same obfuscators: make a new one"
            )
        taken: list[mpz] = []
        with self._changed:
            while len(taken) < count:
                self._changed.wait_for(lambda: self._stock or self._error)
                if not self._stock:
                    assert self._error is not None
                    raise self._error
                taken.append(self._stock.popleft())
                self._changed.notify_all()
        return taken

    def close(self) -> None:
        """End the process and forget what is ready. Closing twice does nothing."""
        with self._changed:
            self._error = WorkerError("this pool is closed")
            self._stock.clear()
            self._changed.notify_all()
        if os.getpid() == self._owner:
            self._process.end()
            self._reader.join()
            self._process.close()

    def _read(self) -> None:
        try:
            while self._add(self._process.receive()):
                pass
        except WorkerError as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _add(self, made: list[mpz]) -> bool:
        """Wait for room, and put these in; return whether the pool is still open."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._stock) < self._capacity or self._error)
            if self._error is None:
                self._stock.extend(made)
                self._changed.notify_all()
            return self._error is None
