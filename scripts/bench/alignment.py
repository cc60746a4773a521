"""What alignment costs, and what padding does.

Aligning: two processes on this machine, each running ``splitvfl align`` over mutual TLS on loopback, from two CSV files
to two folders; half of the ids are common. Wall time is counted from the start of both to the end of both, Python's
start included, and memory is the peak resident size of the larger one.

Padding: two data sets, of whose training records one half is common and the other half is held by the passive party
alone; out of these come the dummies, for which the active party fills in columns and label of a random record of its
own. The test records are the same whatever the padding. The passive party tries to tell dummies from the others by the
norm of their gradients, in a step and added up over the run; .5 is guessing. Medians over seeds.

Run ``python -m scripts.bench.alignment [--quick] [--json OUT]``; it needs the data sets in ``SPLITVFL_DATA``.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scripts.bench.measuring import Result, main
from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import PartyData, Records, VerticalData
from splitvfl.data.load import load
from splitvfl.hooks import View
from splitvfl.leakage.judging import ScoreKeeper
from splitvfl.models import MLP
from splitvfl.party.party import ActiveParty, PassiveParty

SIZES, QUICK_SIZES = (100_000, 1_000_000), (1000,)
TARGET_S = {100_000: 60.0}
# Of one party, in MiB, Python and its libraries included.
TARGET_MIB = {1_000_000: 1024.0}
SHARES, QUICK_SHARES = (0.0, 0.1, 0.25, 0.5, 1.0), (0.0, 0.5)
SEEDS, QUICK_SEEDS = 5, 1
EPOCHS, QUICK_EPOCHS = 10, 1
BATCH = 256
# Active and passive columns of each data set.
DATA = {
    "credit-default": ("LIMIT_BAL, SEX, EDUCATION, MARRIAGE, AGE", "rest"),
    "give-me-some-credit": ("age, NumberOfDependents, MonthlyIncome", "rest"),
}


@dataclass(frozen=True)
class Aligned:
    """What an alignment of two parties took.

    Attributes:
        seconds: Wall time.
        cpu_seconds: CPU time of both.
        peak_mib: Peak resident size of the larger one.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float


def align_on_loopback(folder: Path, records: int, *more: str) -> Aligned:
    """Align so many ids a side, half of them common, in two processes.

    Args:
        folder: Where all files go.
        records: How many.
        more: Further options of the command, alike at both.
    """
    files = {"bank": _people(folder, "bank", 0, records), "telecom": _people(folder, "telecom", records // 2, records)}
    _run("certs", *files, "--out", "certs", folder=folder)
    address = f"127.0.0.1:{_free_port()}"
    ways = {"bank": ("--peer", f"telecom={address}"), "telecom": ("--listen", address)}
    begun = time.monotonic()
    running = [_start(folder, name, path, *ways[name], *more) for name, path in files.items()]
    try:
        used = [_used(process) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    seconds, unit = time.monotonic() - begun, 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Aligned(seconds, sum(one.ru_utime + one.ru_stime for one in used), max(one.ru_maxrss for one in used) / unit)


def _start(folder: Path, name: str, path: Path, *way: str) -> subprocess.Popen[bytes]:
    own = ("align", str(path), "--id", "customer", "--as", name, "--active", "bank", "--certificates", "certs")
    return subprocess.Popen(_command(*own, *way), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _used(process: subprocess.Popen[bytes]) -> resource.struct_rusage:
    """Wait for a process to end, and return what it used."""
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise RuntimeError(f"aligning failed: {said.decode()}")
    return used


def _people(folder: Path, name: str, first: int, count: int) -> Path:
    numbers = np.random.default_rng(first).permutation(np.arange(first, first + count))
    path = folder / f"{name}.csv"
    with path.open("w") as file:
        file.write("customer,column\n")
        file.writelines(f"customer-{number:09d},{number % 7}\n" for number in numbers.tolist())
    return path


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _command(*words: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from splitvfl.cli import main; sys.exit(main())", *words]


def _run(*words: str, folder: Path) -> None:
    subprocess.run(_command(*words), cwd=folder, check=True, stdout=subprocess.DEVNULL)


class _TellsDummies:
    """The passive party's attempt to tell dummies: those with the larger gradients, or the smaller ones.

    Args:
        dummies: Ids of the dummies, for the judge.
    """

    needs = frozenset({"gradient"})

    def __init__(self, dummies: Tensor) -> None:
        self.keeper = ScoreKeeper()
        self._dummies = dummies

    def __call__(self, view: View, /) -> None:
        norms = torch.linalg.vector_norm(view.gradient, dim=1)
        self.keeper.add(view.ids, norms, torch.isin(view.ids, self._dummies).float())


@dataclass(frozen=True)
class _Padded:
    auc: float
    step: float
    accumulated: float


def _train(data: VerticalData, share: float, epochs: int, seed: int) -> _Padded:
    active, passive = _padded(data, share, seed)
    torch.manual_seed(seed)
    passive_party = PassiveParty(passive, MLP(passive.width, [64, 32]))
    active_party = ActiveParty(active, MLP(32 + active.width, [32, 1], final_activation=False))
    real = active.train.real
    teller = _TellsDummies(active.train.ids[~real] if real is not None else torch.zeros(0, dtype=torch.int64))
    passive_party.observers.append(teller)
    trainer = Trainer(active_party, {passive.name: passive_party}, batch_size=BATCH, seed=seed, audit=False)
    auc = trainer.fit(epochs)["auc"]
    found = teller.keeper.summary()
    return _Padded(auc, found.worst_auc, found.worst_accumulated_auc)


def _padded(data: VerticalData, share: float, seed: int) -> tuple[PartyData, PartyData]:
    """Return both parties' data: a half of the training records, and dummies out of the other half."""
    (passive,) = data.passives.values()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(data.active.train.count, generator=generator)
    common, foreign = order[: len(order) // 2], order[len(order) // 2 :]
    count = round(share * len(common))
    rows = torch.cat([common, foreign[:count]])
    filled = torch.cat([common, common[torch.randint(len(common), (count,), generator=generator)]])
    mixed = torch.randperm(len(rows), generator=generator)
    theirs = passive.train.rows(rows[mixed])
    ours = data.active.train.rows(filled[mixed])
    real = torch.arange(len(rows))[mixed] < len(common)
    own = Records(theirs.ids, ours.columns, ours.labels, real=real if count else None)
    return replace(data.active, train=own), replace(passive, train=theirs)


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` aligns fewer ids, and trains once for one epoch."""
    sizes = QUICK_SIZES if quick else SIZES
    # First what needs data that may be missing, not after minutes of work.
    padding = [result for name, claims in DATA.items() for result in _padding_results(name, *claims, quick=quick)]
    return [result for records in sizes for result in _alignment_results(records)] + padding


def _alignment_results(records: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        found = align_on_loopback(Path(folder), records)
    what, note = f"aligning {records:,} ids a side", "1 run, two processes, mutual TLS on loopback"
    return [
        Result(what, found.seconds, "s", TARGET_S.get(records), note=note),
        Result(f"{what}, peak memory of a party", found.peak_mib, "MiB", TARGET_MIB.get(records), note=note),
    ]


def _padding_results(name: str, active: str, passive: str, *, quick: bool) -> list[Result]:
    settings = {"missing": "indicator"} if name == "give-me-some-credit" else {}
    data = load(name, active=active, passive={"partner": passive}, **settings)  # type: ignore[arg-type]
    seeds, epochs = (QUICK_SEEDS, QUICK_EPOCHS) if quick else (SEEDS, EPOCHS)
    results = []
    for share in QUICK_SHARES if quick else SHARES:
        runs = [_train(data, share, epochs, seed) for seed in range(seeds)]
        what = f"{name}, padding {share:g}"
        results.append(_median(f"{what}: test AUC", [run.auc for run in runs], "higher"))
        if share:
            results.append(_median(f"{what}: dummies told in a step", [run.step for run in runs]))
            results.append(_median(f"{what}: dummies told over the run", [run.accumulated for run in runs]))
    return results


def _median(what: str, values: Sequence[float], better: str = "lower") -> Result:
    note = f"{len(values)} seeds, {min(values):.4f} to {max(values):.4f}"
    return Result(what, float(np.median(values)), "AUC", None, better=better, note=note)  # type: ignore[arg-type]


if __name__ == "__main__":
    raise SystemExit(main("Alignment, and what padding does", measure))
