from __future__ import annotations

import copy
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gmpy2
import numpy as np
import pytest
import torch
from gmpy2 import mpz

from splitvfl.crypto import processes, worker
from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.kernels import packed_sums
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.processes import Process, Workers, powers, shared_sums
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import ArgumentError, CryptoError, WorkerError


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as made:
        yield made


@pytest.mark.parametrize(
    ("rows", "counts"), [(1, [1]), (2, [3]), (40, [2]), (7, [2, 2, 1]), (3, [4, 4, 4, 4]), (5, [6, 5])]
)
def test_shared_sums_are_those_of_one_process(
    key: PrivateKey, workers: Workers, rows: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_WORTH_SHARING", float("inf"))
    weights = np.random.default_rng(rows).integers(-(2**20), 2**20, (rows, sum(counts)))
    state = gmpy2.random_state(rows)
    ciphertexts = [gmpy2.mpz_random(state, key.public.square) for _ in range(rows)]
    settings = {"counts": counts, "slot_bits": 40, "n": key.public.modulus}

    found = shared_sums(ciphertexts, weights, workers=workers, **settings)  # type: ignore[arg-type]

    assert found == packed_sums(ciphertexts, weights, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "counts", "shared"),
    [(8, [10], 0), (16, [30], 0), (32, [32, 32], 2), (32, [27] * 3, 2), (256, [22] * 3, 2)],
)
def test_small_sums_are_not_shared(
    key: PrivateKey, rows: int, counts: list[int], shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[int] = []

    def counted(given: list[worker.Job]) -> list[list[mpz]]:
        jobs.append(len(given))
        return [worker.done(job) for job in given]

    with Workers(1) as one:
        monkeypatch.setattr(one, "done", counted)
        ciphertexts = [mpz(place + 2) for place in range(rows)]
        weights = np.full((rows, sum(counts)), 3 << 24)
        shared_sums(ciphertexts, weights, counts=counts, slot_bits=62, n=key.public.modulus, workers=one)
    assert sum(jobs) == shared


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_shared_powers_come_in_order(workers: Workers, count: int) -> None:
    triples = [(mpz(3 + place), mpz(1000 + place), mpz(10**9 + 7)) for place in range(count)]

    assert powers(triples, workers) == [gmpy2.powmod(base, exponent, n * n) for base, exponent, n in triples]


def test_a_step_with_workers(key: PrivateKey, workers: Workers, layout: Callable[..., ProductLayout]) -> None:
    agreed = layout()
    owner, evaluator = Owner(key, workers=workers), Evaluator(key.public, agreed, workers=workers)

    masked = evaluator.masked_sums([(owner.encrypt([1, -2, 3]), torch.arange(27).view(3, 9))])

    assert evaluator.unmask(owner.open_masked(masked.reply, agreed), masked) == [36 + 2 * j for j in range(9)]


def test_a_dead_worker_is_an_error_and_ends_the_others(key: PrivateKey) -> None:
    workers = Workers(2)
    first, second = (process._process for process in workers._processes)
    os.kill(first.pid, signal.SIGKILL)

    with pytest.raises(CryptoError, match=r"a worker process ended \(exit status -9\)"):
        powers([(mpz(2), mpz(5), mpz(101))] * 3, workers)
    assert second.returncode is not None
    with pytest.raises(CryptoError, match="expected up to 1 jobs at once, got 2: are they closed"):
        workers.done([worker.powers_job([])] * 2)
    assert powers([(mpz(2), mpz(5), mpz(101))], workers) == [32]


def test_a_job_that_fails_ends_its_worker_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with Workers(1) as workers, pytest.raises(CryptoError, match="exit status 1"):
        workers.done([worker.powers_job([]), {"do": "nothing of the kind"}])

    assert "KeyError" in capfd.readouterr().err


def test_closing_leaves_no_process() -> None:
    with Workers(1) as workers:
        (process,) = (process._process for process in workers._processes)
        assert process.poll() is None
    assert process.returncode is not None
    workers.close()


def test_a_forked_child_is_refused_and_leaves_the_parents_processes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with Workers(1) as workers:
        (process,) = (process._process for process in workers._processes)
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: -1)
            with pytest.raises(CryptoError, match="belong to another process"):
                powers([(mpz(2), mpz(5), mpz(101))] * 2, workers)
            copied = copy.copy(workers)
            copied.close()
        assert process.poll() is None
        assert powers([(mpz(2), mpz(5), mpz(101))] * 2, workers) == [32, 32]


def test_threads_take_turns(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[int, list[mpz]] = {}
    send = Process.send

    def slow_send(process: Process, job: worker.Job) -> None:
        send(process, job)
        time.sleep(0.002)  # another thread's turn, if it gets one

    monkeypatch.setattr(Process, "send", slow_send)

    def work(base: int) -> None:
        for _ in range(5):
            found[base] = powers([(mpz(base + place), mpz(300), mpz(10**9 + 7)) for place in range(3)], workers)

    threads = [threading.Thread(target=work, args=(base,)) for base in (10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    square = (10**9 + 7) ** 2
    assert found == {base: [pow(base + place, 300, square) for place in range(3)] for base in (10, 20, 30)}


@pytest.mark.parametrize("text", [b"hello, this is no frame", (1).to_bytes(8, "big") + b"\xc1"])
def test_what_is_no_answer_is_an_error(tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if something printed before the worker began.
    printing = tmp_path / "python"
    printing.write_text(f"#!{sys.executable}\nimport sys, time\nsys.stdout.buffer.write({text!r})\n")
    printing.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(printing))
    process = Process()

    with pytest.raises(WorkerError, match="a worker process wrote something that is no answer"):
        process.receive()
    process.close()


def test_an_interrupt_from_the_keyboard_does_not_reach_a_worker() -> None:
    with Workers(1) as workers:
        (process,) = (process._process for process in workers._processes)
        # The terminal sends it to the group of the main process.
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()


@pytest.mark.parametrize("count", [0, -1, 257])
def test_a_number_of_workers_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(ArgumentError, match=f"expected 1 to 256 workers beside this process, got {count}"):
        Workers(count)


def test_a_worker_ends_with_its_input() -> None:
    with Workers(1) as workers:
        (process,) = (process._process for process in workers._processes)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 0


PLANTED = ("gmpy2", "json", "msgspec", "numpy", "secrets", "signal", "splitvfl")


def test_a_worker_imports_nothing_from_the_folder_that_it_is_started_in(
    key: PrivateKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write there, in a shared folder say, would be handed the primes."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(f"open({name!r} + ' was imported', 'w').close()\nraise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as where Python was started without a script
    job = worker.powers_job([(mpz(2), mpz(3), mpz(35))])
    with Workers(1) as workers:
        assert workers.done([job, job]) == [[8], [8]]
    assert not list(tmp_path.glob("* was imported"))


def test_a_worker_finds_the_package_where_this_process_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that is on the path of this process for a while, and nowhere else."""
    monkeypatch.setattr(worker, "__name__", "elsewhere")
    (tmp_path / "elsewhere.py").write_text("open('was run', 'w').close()\n")
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    process = Process()
    with pytest.raises(WorkerError, match="exit status 0"):
        process.receive()
    process.close()
    assert (tmp_path.parent / "was run").exists()


def test_no_secret_is_in_an_argument_of_a_process(key: PrivateKey) -> None:
    with Workers(1) as workers:
        (process,) = (process._process for process in workers._processes)
        powers([(mpz(2), key.p - 1, key.p)] * 2, workers)
        assert isinstance(process.args, list)
        assert process.args[1:] == ["-P", "-m", "splitvfl.crypto.worker"]


def test_workers_import_no_torch(key: PrivateKey) -> None:
    code = "import sys; import splitvfl.crypto.worker; sys.exit('torch' in sys.modules)"

    assert os.spawnv(os.P_WAIT, os.sys.executable, [os.sys.executable, "-c", code]) == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("cut", [0, 5, 8, 10])
def test_half_a_frame_is_the_end(cut: int) -> None:
    stream = io.BytesIO()
    worker.write_frame(stream, [b"abc", 5])

    assert worker.read_frame(io.BytesIO(stream.getvalue())) == [b"abc", 5]
    assert worker.read_frame(io.BytesIO(stream.getvalue()[:cut])) is None
