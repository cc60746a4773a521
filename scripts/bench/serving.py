"""What a score costs on request: ``splitvfl serve`` at two parties, asked by 1, 8 and 64 clients at once.

Three processes on one machine: the label party and its partner, each on one thread, linked over mutual TLS on loopback,
and this one, whose clients ask over HTTP on loopback, one record a request, each as soon as it has the answer to the
one before. Every client asks for records that have not been asked for before as long as there are any. Both halves are
an MLP with first weights: what a score is makes no difference to how long it takes. Behind these rows stand those of
joint predictions by who computes the scores (:mod:`scripts.bench.scoring`), and of what counting them costs
(:mod:`scripts.bench.counting`). On a machine that is shared, the CPU times
are what says most. Run
``python -m scripts.bench.serving [--quick] [--json OUT]``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from scripts.bench.counting import ledger
from scripts.bench.measuring import Result, main
from scripts.bench.scoring import roles
from splitvfl.app.models import Models
from splitvfl.app.records import own_data
from splitvfl.app.run_files import MODEL_FOLDER
from splitvfl.app.run_folder import write_config
from splitvfl.app.saved_model import Origin, save_half
from splitvfl.config.sections import config_to_yaml, load_config
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.learning.randomness import PartyRandom
from splitvfl.learning.tasks import task_for
from splitvfl.net.certs import make_certificates
from splitvfl.party.party import ActiveParty, PassiveParty

# How many clients ask at once, and how often each of them.
CLIENTS = ((1, 2000), (8, 500), (64, 100))
QUICK_CLIENTS = ((1, 200), (8, 50), (64, 10))
# Records in one request, and such requests: what a batch costs.
BATCH, BATCHES, QUICK_BATCHES = 500, 20, 5
RECORDS, COLUMNS, WARM_UP = 20_000, 10, 20
LIMIT_S = 120.0
BANK, TELECOM = "bank", "telecom"
NO_LIMIT = str(10**9)
PROCESSES: Any = multiprocessing.get_context("spawn")

FILES = {
    BANK: """
data: {{name: table, path: bank.parquet, id_column: customer}}
parties:
  bank: {{role: active, columns: ["x*"], label: default}}
  telecom: {{role: passive, address: "127.0.0.1:{port}"}}
model: {{name: mlp, top_hidden: [32]}}
train: {{device: cpu, threads: 1}}
network: {{certificates: certs}}
""",
    TELECOM: """
data: {{name: table, path: telecom.parquet, id_column: customer}}
parties:
  bank: {{role: active}}
  telecom: {{role: passive, columns: ["x*"]}}
model: {{name: mlp, bottom: [64, 32]}}
train: {{device: cpu, threads: 1}}
network: {{listen: "127.0.0.1:{port}", certificates: certs}}
""",
}


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` asks a tenth as often."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as name, _parties(Path(name)) as (port, records, pids):
        bodies = map(_body, itertools.cycle(records))
        asyncio.run(_ask(port, [list(itertools.islice(bodies, WARM_UP))]))
        for clients, each in QUICK_CLIENTS if quick else CLIENTS:
            results += _clients(port, pids, [list(itertools.islice(bodies, each)) for _ in range(clients)])
        results.append(_batches(port, records, QUICK_BATCHES if quick else BATCHES))
    return results + roles(quick) + _counting(quick)


def _counting(quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory() as name:
        _prepare(Path(name), _free_ports(1)[0])
        return ledger(Path(name), (BANK, TELECOM), quick)


def _clients(port: int, pids: dict[str, int], bodies: list[list[bytes]]) -> list[Result]:
    before, started = {name: _cpu_s(pid) for name, pid in pids.items()}, time.perf_counter()
    seconds = asyncio.run(_ask(port, bodies))
    elapsed = time.perf_counter() - started
    busy = {name: (_cpu_s(pid) - before[name]) / len(seconds) * 1e3 for name, pid in pids.items()}
    who = "1 client" if len(bodies) == 1 else f"{len(bodies)} clients"
    note = f"{len(seconds)} requests of one record, load average {os.getloadavg()[0]:.1f}"
    median, worst = (float(np.quantile(seconds, share)) * 1e3 for share in (0.5, 0.99))
    return [
        Result(f"latency, {who}, median", median, "ms", None, note=note),
        Result(f"latency, {who}, 99th percentile", worst, "ms", None, note=note),
        Result(f"throughput, {who}", len(seconds) / elapsed, "requests/s", None, better="higher", note=note),
        *(Result(f"CPU time of a request, {who}, {name}", took, "ms", None, note=note) for name, took in busy.items()),
    ]


def _cpu_s(pid: int) -> float:
    """Return the CPU time that a process has taken, which is the work itself whatever else the machine does: Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _batches(port: int, records: Sequence[dict[str, Any]], count: int) -> Result:
    body = json.dumps({"records": records[:BATCH]}).encode()
    started = time.perf_counter()
    asyncio.run(_ask(port, [[body] * count]))
    rate = len(records[:BATCH]) * count / (time.perf_counter() - started)
    note = f"{count} requests of {len(records[:BATCH])} records, one after the other"
    return Result("throughput, 1 client, batches", rate, "records/s", None, better="higher", note=note)


# --- clients


async def _ask(port: int, bodies: list[list[bytes]]) -> list[float]:
    """Let as many clients as there are lists send their bodies, and return how long each answer took, in seconds."""
    taken = await asyncio.gather(*(_client(port, own) for own in bodies))
    return [seconds for own in taken for seconds in own]


async def _client(port: int, bodies: list[bytes]) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = []
    for body in bodies:
        started = time.perf_counter()
        writer.write(_REQUEST % (port, len(body)) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        answer = await reader.readexactly(int(length.partition(b":")[2]))
        taken.append(time.perf_counter() - started)
        if not head.startswith(b"HTTP/1.1 200") or b'"score' not in answer:
            raise RuntimeError(f"expected scores, got {head[:40]!r} {answer[:200]!r}")
    writer.close()
    return taken


_REQUEST = b"POST /score HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def _body(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode()


# --- the parties


@contextmanager
def _parties(folder: Path) -> Iterator[tuple[int, list[dict[str, Any]], dict[str, int]]]:
    """Yield the port of a label party whose partner is linked, records that both know, and the processes."""
    meeting, port = _free_ports(2)
    records = _prepare(folder, meeting)
    limits = ("--per-minute", NO_LIMIT, "--per-day", NO_LIMIT)
    processes = [
        PROCESSES.Process(target=_serve, args=(folder, [f"runs/{name}", "--as", name, *more]), daemon=True)
        for name, more in (
            (TELECOM, ["--records", "telecom.parquet", *limits]),
            (BANK, ["--http", f"127.0.0.1:{port}"]),
        )
    ]
    try:
        for process in processes:
            process.start()
        _wait_until_ready(port)
        yield port, records, dict(zip((TELECOM, BANK), (process.pid for process in processes), strict=True))
    finally:
        for process in reversed(processes):
            process.terminate()
            process.join(LIMIT_S)


def _serve(folder: Path, arguments: list[str]) -> None:
    torch.set_num_threads(1)
    os.chdir(folder)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    from splitvfl.cli import main as command

    raise SystemExit(command(["serve", *arguments]))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=LIMIT_S):
                return
        except OSError:  # nobody listens yet, or its partner is not there
            time.sleep(0.1)
    raise RuntimeError(f"the parties were not ready within {LIMIT_S:g} s")


def _prepare(folder: Path, port: int) -> list[dict[str, Any]]:
    """Write files, certificates and runs of both parties; return the label party's records as requests have them."""
    draw = np.random.default_rng(0)
    names = [f"c{number:06d}" for number in range(RECORDS)]
    tables = {}
    for name in FILES:
        columns = {f"x{number}": draw.normal(size=RECORDS) for number in range(COLUMNS)}
        tables[name] = pa.table({"customer": names, **columns})
        label = {"default": draw.integers(0, 2, RECORDS)} if name == BANK else {}
        pq.write_table(pa.table({"customer": names, **columns, **label}), folder / f"{name}.parquet")
        (folder / f"{name}.yaml").write_text(FILES[name].format(port=port))
    make_certificates(folder / "certs", [*FILES])
    for name in FILES:
        _write_run(folder, name)
    return [{"id": row.pop("customer"), **row} for row in tables[BANK].to_pylist()]


def _write_run(folder: Path, name: str) -> None:
    config, task = load_config(folder / f"{name}.yaml"), task_for("binary")
    own, models = own_data(config, name), Models(config.model, config.exchange.make())
    party: ActiveParty | PassiveParty
    with PartyRandom(1):
        if name == BANK:
            party = ActiveParty(own.data, models.top(own.data, task, [32]))
            party.widths = {TELECOM: 32}
        else:
            party = PassiveParty(own.data, models.bottom(own.data, task))
    origin = Origin(
        learned=TaskSpec("binary", 1),
        model=config.model,
        run="a" * 32,
        step=1,
        epoch=1,
        encoding=own.encoding,
        id_column=config.data.id_column,
    )
    save_half(folder / "runs" / name / MODEL_FOLDER, party, origin)
    write_config(folder / "runs" / name, config_to_yaml(config))


if __name__ == "__main__":
    raise SystemExit(main("Scores on request: latency and throughput", measure))
