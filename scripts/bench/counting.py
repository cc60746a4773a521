"""What counting costs: a prediction of 256 records over a network, with a ledger at the passive party and without one.

Two parties in one process, each in a thread, linked over mutual TLS on loopback: from their files to the scores, as
``splitvfl predict`` does it. What is compared is the whole of it, calls with and without a ledger in turn, in CPU time
of both parties. A machine waits besides until what is counted is on its disk, twice in a call, which CPU time does not
see; it stands in a row of its own.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq

from scripts.bench.measuring import Result, interleaved
from splitvfl.app.run_files import MODEL_FOLDER
from splitvfl.app.serving import PredictionFiles, Service, prepare_prediction
from splitvfl.config.sections import load_config
from splitvfl.run.ledger import CountedCall, Ledger, ScoredFor, ScoreLimits
from splitvfl.run.record_counts import Forms

ROWS = 256
HELD = 10_000_000
CALLS, QUICK_CALLS = 31, 3
SHARE = 0.05
LIMITS = "prediction={per_record: 1000000, per_day: 100000000}"


def ledger(folder: Path, parties: tuple[str, str], quick: bool) -> list[Result]:
    """Return the rows.

    Args:
        folder: Where the files, certificates and trained halves of both parties are.
        parties: The label party and the passive one.
        quick: Whether to measure a few calls only.
    """
    for name in parties:
        pq.write_table(pq.read_table(folder / f"{name}.parquet").slice(0, ROWS), folder / f"{name}-few.parquet")
    without, counted = interleaved(
        [lambda: _uncounted(folder, parties), lambda: _predict(folder, parties)],
        runs=QUICK_CALLS if quick else CALLS,
        warm_up=1,
    )
    low, share, high = (
        float(np.quantile(np.asarray(counted) / np.asarray(without) - 1, one)) for one in (0.25, 0.5, 0.75)
    )
    own_ms, waited_ms = _alone(quick, held=0)
    long_ms, _ = _alone(quick, held=HELD // (100 if quick else 1))
    call_ms = float(np.median(without)) * 1e3
    what = f"a prediction of {ROWS} records over TLS"
    return [
        Result(what, call_ms, "ms", None, note="CPU time of both parties, without a ledger"),
        Result(
            f"ledger, {what}, with and without", share, "of a call", SHARE, note=f"quartiles {low:.3f} to {high:.3f}"
        ),
        Result(
            "ledger, its own time", own_ms / call_ms, "of a call", SHARE, note=f"{own_ms:.2f} ms, each record limited"
        ),
        Result(
            "ledger of ten million records, its own time", long_ms, "ms", None, note="CPU time of counting 256 more"
        ),
        Result("ledger, waiting for the disk", waited_ms, "ms", None, note="what a call takes beyond its CPU time"),
    ]


def _predict(folder: Path, parties: tuple[str, str]) -> None:
    services = [_service(folder, name, name == parties[0]) for name in parties]
    failed: list[BaseException] = []

    def act(service: Service) -> None:
        try:
            service.run()
        except BaseException as error:  # told below
            failed.append(error)

    threads = [threading.Thread(target=act, args=(service,)) for service in services]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise RuntimeError("the parties did not score") from failed[0]


def _service(folder: Path, name: str, active: bool) -> Service:
    config = load_config(folder / f"{name}.yaml", [] if active else [LIMITS])
    files = PredictionFiles(
        model=folder / "runs" / name / MODEL_FOLDER,
        records=folder / f"{name}-few.parquet",
        out=folder / "scores.csv" if active else None,
        overwrite=True,
    )
    return prepare_prediction(config, name, files)


def _uncounted(folder: Path, parties: tuple[str, str]) -> None:
    with mock.patch("splitvfl.app.serving.Counting", _Nothing):
        _predict(folder, parties)


class _Nothing:
    """Counting that does nothing."""

    @classmethod
    def of(cls, *anything: object) -> _Nothing:
        return cls()

    def call(self, *anything: object, records: int) -> None:
        return None


def _alone(quick: bool, *, held: int) -> tuple[float, float]:
    """Return what counting takes in a ledger that holds so many records: ms of CPU, and ms of waiting besides."""
    about = ScoredFor(partner="bank", asked="predict", model="a" * 64, defenses=(), scorer="bank")
    limits = ScoreLimits(per_record=10**6, per_day=10**9)
    busy, waited = [], []
    with tempfile.TemporaryDirectory() as name:
        own = Ledger(Path(name) / "ledger", party="telecom", run="a" * 32, limits=limits)
        if held:
            own.count(own.marks(_forms(np.arange(held))), about)
        for number in range(QUICK_CALLS if quick else 10 * CALLS):
            forms = _forms(np.arange(number * ROWS, (number + 1) * ROWS))
            started, began = time.process_time(), time.perf_counter()
            CountedCall(own, own.marks(forms), about, records=ROWS, again=False).begin()
            busy.append((time.process_time() - started) * 1e3)
            waited.append((time.perf_counter() - began) * 1e3 - busy[-1])
    return float(np.median(busy)), float(np.median(waited))


def _forms(numbers: Forms) -> Forms:
    return np.stack([np.zeros_like(numbers), numbers], axis=1)
