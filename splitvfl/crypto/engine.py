"""The means by which a party computes under encryption: shared obfuscators and worker processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.keys import PrivateKey, PublicKey
from splitvfl.crypto.obfuscators import Products
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.pools import Pool
from splitvfl.crypto.processes import Workers
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import ArgumentError


class Engine:
    """Makes a party's owners and evaluators.

    A context manager. Processes are started when the first owner or evaluator is made, and end with :meth:`close`.

    Args:
        processes: Processes beside this one that share sums and decryption, ≥ 0.
        stock: Encryptions under its own key for which obfuscators are made beforehand, in a process of its own; 0 makes
            them when they are needed. Useful above 0 where cores are idle: about two batches.

    Raises:
        ArgumentError: If a number is below 0.
    """

    def __init__(self, *, processes: int = 0, stock: int = 0) -> None:
        if processes < 0 or stock < 0:
            raise ArgumentError(f"expected processes and stock from 0, got {processes} and {stock}")
        self._processes, self._stock = processes, stock
        self._workers: Workers | None = None
        self._obfuscators: dict[int, Products] = {}
        self._kept = ExitStack()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def owner(self, key: PrivateKey) -> Owner:
        """Return the owner of a key."""
        pool = None if not self._stock else self._kept.enter_context(Pool.fixed_base(key, capacity=self._stock))
        return Owner(key, obfuscators=pool, workers=self._shared_workers())

    def evaluator(self, public: PublicKey, layout: ProductLayout) -> Evaluator:
        """Return an evaluator under another party's key; all of one key share their obfuscators."""
        return Evaluator(public, layout, obfuscators=self._of(public), workers=self._shared_workers())

    def claimed(self, own: int, most: int, layout: Callable[[int], ProductLayout]) -> int:
        """Return how many sums this party says that it needs: its own number, whatever else it may say.

        Args:
            own: How many it needs.
            most: How many a party may ask for, as agreed.
            layout: Returns the layout of so many sums.
        """
        return own

    def close(self) -> None:
        """End all processes; what was made cannot be used any more. Closing twice does nothing."""
        self._kept.close()
        self._obfuscators.clear()
        self._workers = None

    def _of(self, public: PublicKey) -> Products:
        # No pool: one of these takes a millisecond, and a reply needs one to three: a process for them would cost more.
        return self._obfuscators.setdefault(public.n, Products(public))

    def _shared_workers(self) -> Workers | None:
        if self._workers is None and self._processes:
            self._workers = self._kept.enter_context(Workers(self._processes))
        return self._workers
