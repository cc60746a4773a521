"""What a network costs: messages over mutual TLS against a plain socket, and training steps against their computation.

Two processes on one machine, over loopback. Messages: a round trip of a tensor of B x 128 float32 each way. The
training step is that of Wide & Deep in ``scripts.bench.cut``, which the other process takes part in as the label party;
so are prediction and evaluation. All times are wall times, each party on one thread. Run
``python -m scripts.bench.network [--quick] [--json OUT]``.
"""

from __future__ import annotations

import itertools
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from statistics import median

import torch

from scripts.bench.cut import FIELDS, ROWS, WIDTH, Bench
from scripts.bench.measuring import Result, Work, interleaved, main, ratio
from splitvfl.errors import LinkError
from splitvfl.exchange.evaluation import EvaluationPlan, active_evaluation, passive_evaluation
from splitvfl.exchange.prediction import active_prediction, passive_prediction
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.messaging.conversation import Expected, Half, converse
from splitvfl.messaging.messages import Message
from splitvfl.net.certs import make_certificates
from splitvfl.net.driver import drive
from splitvfl.net.frames import Hello
from splitvfl.net.links import Link, Listener, dial
from splitvfl.net.tls import Identity
from splitvfl.system.allocator import keep_large_blocks

# Batch sizes, the ratios that are aimed at (a message and its answer; a training step), and how many paired runs each
# is measured with.
BATCHES = ((512, 9.0, 1.35, 201, 61), (4096, 5.0, 1.15, 101, 31), (65_536, 3.0, 1.10, 31, 11))
QUICK_BATCHES = ((512, 9.0, 1.35, 11, 3), (4096, 5.0, 1.15, 5, 2), (65_536, 3.0, 1.10, 2, 1))
HERE, THERE = "passive", "active"
# No wait of the benchmark is longer.
LIMIT_S = 120.0
# Spawned: a fork would take gRPC's threads with it, or rather without them.
PROCESSES: BaseContext = multiprocessing.get_context("spawn")
# Uncounted runs, first: it takes a few until a process has all the memory that it keeps.
WARM_UP = 8


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes smaller tables and fewer runs."""
    results: list[Result] = []
    fields = 2 if quick else FIELDS
    for batch, message, step, messages, steps in QUICK_BATCHES if quick else BATCHES:
        results += _message_results(batch, message, messages)
        for name in EXCHANGES:
            target = step if name == "training step" else None
            results += _exchange_results(name, batch, target, steps, fields)
    return results


# --- messages


def _message_results(batch: int, target: float, runs: int) -> list[Result]:
    tensor = torch.randn(batch, WIDTH)
    with _plain_echo(batch) as plain, _partner(_echo, batch) as link:
        numbers = itertools.count()
        works: list[Work] = [
            partial(_round_trip_plain, plain, tensor),
            lambda: _round_trip(link, tensor, next(numbers)),
        ]
        raw, linked = interleaved(works, runs=runs, warm_up=WARM_UP, clock=time.perf_counter)
    value, note = ratio(linked, raw)
    return [
        Result(f"messages, mutual TLS / plain socket, batch {batch}", value, "ratio", target, note=note),
        Result(f"messages, mutual TLS, batch {batch}", median(linked) * 1e3, "ms", None, note=f"{runs} runs"),
    ]


def _round_trip(link: Link, tensor: torch.Tensor, number: int) -> None:
    link.send(Message(HERE, THERE, "activation", number, tensor), timeout=LIMIT_S)
    link.receive(_expected(THERE, "gradient", number, tensor.shape), timeout=LIMIT_S)


def _echo(link: Link, batch: int) -> None:
    for number in itertools.count():
        message = link.receive(_expected(HERE, "activation", number, (batch, WIDTH)), timeout=LIMIT_S)
        link.send(Message(THERE, HERE, "gradient", number, message.payload), timeout=LIMIT_S)


def _expected(sender: str, kind: str, number: int, shape: Sequence[int]) -> Expected:
    return Expected(sender, kind, number, (torch.float32,), tuple(shape))


def _round_trip_plain(connection: socket.socket, tensor: torch.Tensor) -> None:
    data = tensor.numpy().data.cast("B")
    connection.sendall(data)
    # As at the end of a link, what arrives has memory of its own.
    _receive_exactly(connection, memoryview(bytearray(len(data))))


def _receive_exactly(connection: socket.socket, into: memoryview) -> None:
    while into:
        count = connection.recv_into(into)
        if count == 0:
            raise ConnectionError("the other process is gone")
        into = into[count:]


@contextmanager
def _plain_echo(batch: int) -> Iterator[socket.socket]:
    """Yield a plain connection to a process that sends everything back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = _process(_serve_plain, batch, server.getsockname()[1])
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection
    process.join()


def _serve_plain(batch: int, port: int) -> None:
    keep_large_blocks()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            data = memoryview(bytearray(batch * WIDTH * 4))
            try:
                _receive_exactly(connection, data)
            except ConnectionError:
                return
            connection.sendall(data)


# --- what parties do together


def _training(bench: Bench, party: str, number: int) -> Half:
    if party == THERE:
        return active_step(bench.active, bench.active_records, number)
    return passive_step(bench.passive, bench.passive_records, number, active=THERE)


def _prediction(bench: Bench, party: str, number: int) -> Half:
    if party == THERE:
        return active_prediction(bench.active, bench.active_records, number)
    return passive_prediction(bench.passive, bench.passive_records, number, active=THERE, outputs=1)


def _evaluation(bench: Bench, party: str, number: int) -> Half:
    plan = EvaluationPlan(validation=range(0), test=bench.active_records.count)
    if party == THERE:
        return active_evaluation(bench.active, plan, step=number, epoch=1)
    return passive_evaluation(bench.passive, plan, step=number, epoch=1, active=THERE)


EXCHANGES: dict[str, Callable[[Bench, str, int], Half]] = {
    "training step": _training,
    "prediction": _prediction,
    "evaluation": _evaluation,
}


def _exchange_results(name: str, batch: int, target: float | None, runs: int, fields: int) -> list[Result]:
    alone, apart = Bench(batch, fields, ROWS + 1), Bench(batch, fields, ROWS + 1)
    counts = itertools.count(), itertools.count()
    with _partner(_take_part, name, batch, fields) as link:

        def in_process() -> None:
            halves = {party: EXCHANGES[name](alone, party, next(counts[0]) // 2) for party in (HERE, THERE)}
            converse(halves, turns={HERE: alone.passive.random, THERE: alone.active.random})

        def networked() -> None:
            half = EXCHANGES[name](apart, HERE, next(counts[1]))
            drive(half, party=HERE, links={THERE: link}, turn=apart.passive.random, timeout=LIMIT_S)

        inside, outside = interleaved([in_process, networked], runs=runs, warm_up=WARM_UP, clock=time.perf_counter)
    value, note = ratio(outside, inside)
    return [
        Result(f"{name}, mutual TLS / in process, batch {batch}", value, "ratio", target, note=note),
        Result(f"{name}, in process, batch {batch}", median(inside) * 1e3, "ms", None, note=f"{runs} runs"),
        Result(f"{name}, mutual TLS, batch {batch}", median(outside) * 1e3, "ms", None, note=f"{runs} runs"),
    ]


def _take_part(link: Link, name: str, batch: int, fields: int) -> None:
    bench = Bench(batch, fields, ROWS + 1)
    for number in itertools.count():
        half = EXCHANGES[name](bench, THERE, number)
        drive(half, party=THERE, links={HERE: link}, turn=bench.active.random, timeout=LIMIT_S)


# --- the other process


@contextmanager
def _partner(behave: Callable[..., None], *arguments: object) -> Iterator[Link]:
    """Yield a link to a process that runs ``behave(link, *arguments)`` until the link is closed."""
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(folder, [HERE, THERE])
        hello, credentials = Hello(HERE, "bench", "passive"), Identity.load(HERE, folder=folder)
        with Listener("127.0.0.1:0", credentials, hello=hello, peers={THERE: THERE}) as listener:
            process = _process(_be_partner, folder, listener.port, behave, *arguments)
            with listener.accept(THERE, timeout=LIMIT_S) as link:
                yield link
        process.join()


def _be_partner(folder: str, port: int, behave: Callable[..., None], *arguments: object) -> None:
    torch.set_num_threads(1)
    keep_large_blocks()
    hello, credentials = Hello(THERE, "bench", "active"), Identity.load(THERE, folder=folder)
    with dial(HERE, f"127.0.0.1:{port}", credentials, hello=hello, identity=HERE, timeout=LIMIT_S) as link:
        try:
            behave(link, *arguments)
        except LinkError:
            return  # the benchmark has what it wanted


def _process(work: Callable[..., None], *arguments: object) -> BaseProcess:
    process = PROCESSES.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


if __name__ == "__main__":
    raise SystemExit(main("The network: what mutual TLS costs, on loopback", measure))
