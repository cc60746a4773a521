"""Batches in flight: what stale activations cost in test AUC, on data that the user holds (``SPLITVFL_DATA``).

Two parties whose columns are divided, a bottom of 64 and 32 units below a top of 32 (of Criteo's categories Wide &
Deep), batches of 256, eight epochs, Adam at 1e-3 and plain gradient descent at 0.05 with momentum 0.9: settings chosen
once, and the same for every number of batches in flight, as of somebody who changes nothing else. The figure of a run
is its best test AUC of all epochs; of each difference to the run without batches in flight, with the same seed, the
mean over the seeds, and half of its 95 % interval. A row holds if the mean loss is at most the standard deviation of
the runs without. Run ``python -m scripts.bench.staleness [--quick] [--json OUT]``; with ``BENCH_JOBS`` naming a folder
finished runs are kept there. Data sets whose file is not there are left out, and named.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import yaml
from scipy import stats

from scripts.bench.measuring import Result, main
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.settings import data_folder
from splitvfl.app.experiment import Experiment, Workbench
from splitvfl.app.records import load_data
from splitvfl.config.sections import parse_config
from splitvfl.run.training import Status

IN_FLIGHT: Final = (0, 1, 2, 4)
SEEDS, EPOCHS = 5, 8
QUICK_SEEDS, QUICK_EPOCHS = 2, 2
OPTIMIZERS: Final[dict[str, dict[str, Any]]] = {
    "Adam": {"name": "adam", "lr": 1e-3},
    "SGD": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
}
_MLP: Final = {"name": "mlp", "bottom": [64, 32], "top_hidden": [32]}
_WIDE_DEEP: Final = {"name": "wide-deep", "bottom": [64, 32], "embedding_dim": 8}
_BANK: Final = ["age", "job", "marital", "education", "default", "housing", "loan"]
_CREDIT: Final = ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"]
_LATE: Final = ["age", "DebtRatio", "MonthlyIncome", "NumberRealEstateLoansOrLines", "NumberOfDependents"]

# By name for people: the file, the data section without it, the label party's columns, and the model.
DATA: Final[dict[str, tuple[str, dict[str, Any], list[str], dict[str, Any]]]] = {
    "bank marketing": (
        "bank_marketing_additional_full.parquet",
        {"name": "bank-marketing", "drop": ["duration"]},
        _BANK,
        _MLP,
    ),
    "credit default": ("credit_default_taiwan.parquet", {"name": "credit-default"}, _CREDIT, _MLP),
    "Give Me Some Credit": ("give_me_some_credit.parquet", {"name": "give-me-some-credit"}, _LATE, _MLP),
    "Criteo, random 46k": ("criteo_random_46k_20cols.parquet", {"name": "criteo"}, ["I*"], _WIDE_DEEP),
}


def best_auc(data: dict[str, Any], own: list[str], model: dict[str, Any], optimizer: str, **run: int) -> dict[str, Any]:
    """Train once, and return the best test AUC of all epochs.

    Args:
        data: Its section of an experiment, without the seed of the division.
        own: The label party's columns; the partner has the rest.
        model: Its section.
        optimizer: One of :data:`OPTIMIZERS`.
        run: ``in_flight``, ``epochs`` and ``seed``.
    """
    rate = OPTIMIZERS[optimizer]
    given = {
        "data": {**data, "split_seed": run["seed"]},
        "parties": {"us": {"role": "active", "columns": own}, "partner": {"role": "passive", "columns": "rest"}},
        "model": model,
        "exchange": {"name": "split", "in_flight": run["in_flight"]},
        "train": {"epochs": run["epochs"], "batch_size": 256, "seed": run["seed"], "optimizer": rate},
        "audit": False,
    }
    config = parse_config(yaml.safe_dump(given), source="staleness.yaml")
    found: list[float] = []

    def follow(status: Status) -> None:
        found.append(status.test)

    Experiment(config, Workbench(load_data(config), {})).trainer().fit(run["epochs"], progress=follow)
    return {"auc": max(value for value in found if not math.isnan(value))}


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes bundled data, two seeds and two epochs."""
    seeds, epochs = (QUICK_SEEDS, QUICK_EPOCHS) if quick else (SEEDS, EPOCHS)
    wanted = [
        (title, optimizer, data, own, model) for title, data, own, model in _at_hand(quick) for optimizer in OPTIMIZERS
    ]
    jobs = [
        Job(
            best_auc,
            {
                "data": data,
                "own": own,
                "model": model,
                "optimizer": optimizer,
                "in_flight": in_flight,
                "epochs": epochs,
                "seed": seed,
            },
        )
        for _, optimizer, data, own, model in wanted
        for in_flight in IN_FLIGHT
        for seed in range(seeds)
    ]
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(os.environ.get("BENCH_JOBS", folder))
        results = iter(run_jobs(jobs, kept, workers=os.cpu_count() or 1))
    rows = []
    for title, optimizer, *_ in wanted:
        aucs = {in_flight: [next(results)["auc"] for _ in range(seeds)] for in_flight in IN_FLIGHT}
        rows += [_row(f"{title}, {optimizer}", in_flight, aucs[0], aucs[in_flight]) for in_flight in IN_FLIGHT[1:]]
    return rows


def _at_hand(quick: bool) -> list[tuple[str, dict[str, Any], list[str], dict[str, Any]]]:
    if quick:
        return [("breast cancer", {"name": "breast-cancer"}, ["mean *"], _MLP)]
    found = []
    for title, (name, data, own, model) in DATA.items():
        path = data_folder() / name
        if path.is_file():
            found.append((title, {**data, "path": str(path)}, own, model))
        else:
            print(f"left out: {title}; there is no {name} (SPLITVFL_DATA names the folder)")
    return found


def _row(title: str, in_flight: int, usual: Sequence[float], stale: Sequence[float]) -> Result:
    """Return the mean loss of one number of batches in flight, and whether it is within the spread of seeds."""
    lost = [before - after for before, after in zip(usual, stale, strict=True)]
    half = float(stats.t.ppf(0.975, len(lost) - 1)) * stdev(lost) / math.sqrt(len(lost))
    note = (
        f"test AUC {fmean(stale):.4f}, without {fmean(usual):.4f}, whose standard deviation is {stdev(usual):.4f}; "
        f"loss ± {half:.4f}, {len(lost)} seeds"
    )
    aim = stdev(usual) if in_flight == 1 else None
    return Result(f"{title}, {in_flight} in flight: loss of best test AUC", fmean(lost), "AUC", aim, note=note)


if __name__ == "__main__":
    # Jobs are named by their module, which in the processes that do them is not called __main__.
    from scripts.bench import staleness

    raise SystemExit(main("Batches in flight: what stale activations cost", staleness.measure))
