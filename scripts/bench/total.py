"""What the total leak is with the partner's own features and without, on five data sets, as a table for a page.

The partner has all columns and the label owner none; a bottom of 64 and 32 units below a linear top,
``asymmetric-response(0.3)``, three epochs, Adam at 1e-3, batches of 256. *Without features* is the larger of what
messages and predictions tell the auditor's reader and of the best attack on messages; *baseline* what the features
predict alone, with labels of other records; *joint reader* all of it together; *total* the largest of all. The last
columns are what the total stays below where nothing leaks, and what the reader reads of labels in random order.

Run ``python -m scripts.bench.total [--seeds N]``. ``SPLITVFL_DATA`` names the folder of the files; data sets whose file
is not there are left out, and named.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, Final

import yaml

from scripts.reproduce.shared.settings import data_folder
from splitvfl.app.experiment import Experiment, Workbench
from splitvfl.app.records import load_data
from splitvfl.config.sections import parse_config
from splitvfl.leakage.leak_summary import nanmax

EPOCHS: Final = 3
# By name for people: the data section, and the file where it needs one.
DATA: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "breast cancer": ({"name": "breast-cancer"}, ""),
    "digits": ({"name": "digits"}, ""),
    "bank marketing": (
        {"name": "bank-marketing", "drop": ["duration"]},
        "bank_marketing_additional_full.parquet",
    ),
    "credit default": ({"name": "credit-default"}, "credit_default_taiwan.parquet"),
    "Give Me Some Credit": ({"name": "give-me-some-credit"}, "give_me_some_credit.parquet"),
}
COLUMNS: Final = ("without features", "baseline", "joint reader", "total", "where nothing leaks", "shuffled labels")


def figures(data: dict[str, Any], seed: int, *, epochs: int = EPOCHS) -> tuple[float, ...]:
    """Train once, and return the figures of a row of the table, in the order of :data:`COLUMNS`."""
    given = {
        "data": {**data, "split_seed": seed},
        "parties": {"us": {"role": "active", "columns": []}, "partner": {"role": "passive", "columns": "rest"}},
        "model": {"name": "mlp", "bottom": [64, 32], "top_hidden": []},
        "defenses": [{"name": "asymmetric-response", "detection_error": 0.3}],
        "attacks": ["norm", "direction", "readout", "combined", "mixture"],
        "train": {
            "epochs": epochs,
            "batch_size": 256,
            "seed": seed,
            "noise_seed_for_experiments": seed,
            "optimizer": {"name": "adam", "lr": 1e-3},
        },
    }
    config = parse_config(yaml.safe_dump(given), source="total.yaml")
    trainer = Experiment(config, Workbench(load_data(config), {})).trainer()
    trainer.fit(epochs)
    leak, audit = trainer.watch.label_leak("partner"), trainer.watch.audits["partner"]
    assert leak is not None
    assert leak.total is not None
    assert leak.by_chance is not None
    assert audit.told is not None
    worst = nanmax(*(one.worst for one in trainer.summaries("partner").values() if one.by_messages))
    told, shuffled = audit.told, audit.history.judge_shuffled(order=seed).joint
    return max(worst, told.messages), told.baseline, told.joint, leak.total, leak.by_chance, shuffled


def table(seeds: int) -> Iterator[str]:
    """Yield the lines of the table: means over seeds."""
    yield f"| data | {' | '.join(COLUMNS)} |"
    yield f"| --- |{' ---: |' * len(COLUMNS)}"
    for name, (data, file) in DATA.items():
        path = data_folder() / file
        if file and not path.is_file():
            print(f"left out: {name}; there is no {file} (SPLITVFL_DATA names the folder)")
            continue
        section = {**data, "path": str(path)} if file else data
        found = [figures(section, seed) for seed in range(seeds)]
        yield row(name, found)


def row(name: str, found: Sequence[Sequence[float]]) -> str:
    """Return a line of the table: the mean of each figure over runs.

    >>> row("digits", [(0.5, 0.75), (1.0, 0.25)])
    '| digits | 0.750 | 0.500 |'
    """
    means = (fmean(values) for values in zip(*found, strict=True))
    return f"| {name} | {' | '.join('–' if math.isnan(mean) else f'{mean:.3f}' for mean in means)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    for line in table(parser.parse_args().seeds):
        print(line, flush=True)
