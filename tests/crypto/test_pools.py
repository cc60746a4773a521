from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import gmpy2
import pytest
import torch

from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.pools import Pool
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import ArgumentError, CryptoError

POOLS: dict[str, Callable[[PrivateKey], Pool]] = {
    "powers": lambda key: Pool.powers(key.public, capacity=4),
    "products": lambda key: Pool.products(key.public, capacity=4),
    "fixed base": lambda key: Pool.fixed_base(key, capacity=4),
}
PATIENCE_S = 120.0  # a loaded machine starts a process in tens of seconds


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.parametrize("source", POOLS)
def test_a_pool_hands_out_obfuscators_once(key: PrivateKey, source: str) -> None:
    with POOLS[source](key) as pool:
        # More than the pool ever holds.
        made = pool.take(30) + pool.take(0) + pool.take(3)

    order = gmpy2.lcm(key.p - 1, key.q - 1)
    assert len(made) == len(set(made)) == 33
    assert all(gmpy2.powmod(value, order, key.public.square) == 1 for value in made)


def test_two_pools_have_randomness_of_their_own(key: PrivateKey) -> None:
    with POOLS["powers"](key) as first, POOLS["powers"](key) as second:
        assert not set(first.take(20)) & set(second.take(20))


def test_a_full_pool_waits(key: PrivateKey) -> None:
    with POOLS["powers"](key) as pool:
        wait_for(lambda: len(pool) >= 4)
        time.sleep(0.05)
        # What it holds, and the one frame that was read when there was room.
        assert len(pool) < 4 + 8
        pool.take(len(pool))
        wait_for(lambda: len(pool) >= 4)


def test_a_dead_worker_is_an_error_and_not_a_hang(key: PrivateKey) -> None:
    with POOLS["powers"](key) as pool:
        wait_for(lambda: len(pool) >= 4)
        os.kill(pool._process._process.pid, signal.SIGKILL)
        with pytest.raises(CryptoError, match=r"a worker process ended \(exit status -9\)"):
            pool.take(100_000)


def test_who_waits_when_a_pool_is_closed_is_told(key: PrivateKey) -> None:
    pool = POOLS["powers"](key)
    said: list[str] = []

    def wait() -> None:
        try:
            pool.take(100_000)
        except CryptoError as error:
            said.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    pool.close()
    waiting.join(PATIENCE_S)

    assert said == ["this pool is closed"]
    assert pool._process._process.returncode is not None
    assert not pool._reader.is_alive()
    pool.close()
    with pytest.raises(CryptoError, match="closed"):
        pool.take(1)


SCRIPT = """
import signal
signal.alarm(600)  # whatever becomes of the test
from splitvfl.crypto.keys import PublicKey
from splitvfl.crypto.pools import Pool
from splitvfl.crypto.processes import Workers

pool, workers = Pool.powers(PublicKey({n}, insecure_for_tests=True), capacity=4), Workers(1)
pool.take(1)
print(pool._process._process.pid, workers._processes[0]._process.pid, flush=True)
pool.take(10**9)
"""


def is_running(pid: int) -> bool:
    try:
        # A process that has ended and was not waited for is a Z; it is not ours to wait for.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "sent", [pytest.param(signal.SIGINT, marks=pytest.mark.slow(reason="a process of its own")), signal.SIGKILL]
)
def test_processes_end_with_the_one_that_made_them(key: PrivateKey, checkout: Path, sent: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(n=key.public.n)],
        cwd=checkout,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as party:
        assert party.stdout is not None
        pids = [int(pid) for pid in party.stdout.readline().split()]
        party.send_signal(sent)
        assert party.wait(PATIENCE_S) == -sent

    assert len(pids) == 2
    wait_for(lambda: not any(map(is_running, pids)))


def test_a_forked_child_is_refused(key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    with POOLS["powers"](key) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: -1)
            with pytest.raises(CryptoError, match="belongs to another process"):
                pool.take(1)
        assert len(pool.take(1)) == 1


def test_a_capacity_out_of_range_is_refused(key: PrivateKey) -> None:
    with pytest.raises(ArgumentError, match="capacity from 1, got 0"):
        Pool.powers(key.public, capacity=0)


def test_a_step_from_pools(key: PrivateKey, layout: Callable[..., ProductLayout]) -> None:
    agreed = layout()
    with POOLS["fixed base"](key) as of_owner, POOLS["products"](key) as of_evaluator:
        owner = Owner(key, obfuscators=of_owner)
        evaluator = Evaluator(key.public, agreed, obfuscators=of_evaluator)
        masked = evaluator.masked_sums([(owner.encrypt([1, -2, 3]), torch.arange(27).view(3, 9))])
        assert evaluator.unmask(owner.open_masked(masked.reply, agreed), masked) == [36 + 2 * j for j in range(9)]
