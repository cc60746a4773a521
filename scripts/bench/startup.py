"""What starting costs: commands that only speak, names of the package, and a short training, in processes of their own.

CPU time of whole processes, taken in turn. A mark is ``import torch``: seconds differ between machines, and ratios to
it hardly do. The training is the example ``breast_cancer.yaml`` for one epoch. Beside it stands a plain script that
trains the same logistic regression on the same columns in one piece. It imports what such a training needs: torch with
its optimiser, NumPy, scikit-learn's loader and a TensorBoard writer. It audits nothing and predicts from nobody's own
columns, as the command does beside training.

Every process has byte code that is written already: the first runs, which do not count, write it.

Run ``python -m scripts.bench.startup [--quick] [--json OUT]``. ``--quick`` takes three runs of each.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from scripts.bench.measuring import Result, interleaved, main, ratio

RUNS, QUICK_RUNS = 11, 3
ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE: Final = ROOT / "splitvfl" / "examples" / "breast_cancer.yaml"
COMMAND: Final = ("-m", "splitvfl")

PLAIN: Final = """
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch.utils.tensorboard import SummaryWriter

features, labels = load_breast_cancer(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
train, test = np.split(order, [440])
scaled = (features - features[train].mean(axis=0)) / features[train].std(axis=0)
x, y = torch.tensor(scaled).float(), torch.tensor(labels).float()
model = torch.nn.Linear(30, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
with SummaryWriter(FOLDER) as board:
    for step, rows in enumerate(torch.tensor(train).split(64)):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x[rows]).squeeze(1), y[rows])
        loss.backward()
        optimizer.step()
        board.add_scalar("loss", loss.item(), step)
with torch.no_grad():
    scores = model(x[test]).squeeze(1).numpy()
above = scores[labels[test] == 1][:, None] - scores[labels[test] == 0]
print(float((above > 0).mean() + 0.5 * (above == 0).mean()))
"""


def run(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Start Python with these arguments, and wait until it has ended well."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"OMP_NUM_THREADS": "1", **variables}
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, check=True)


def cpu_of_ended() -> float:
    """Return CPU seconds of all processes that this one has started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes fewer runs."""
    completing = {"_SPLITVFL_COMPLETE": "complete_bash", "COMP_WORDS": "splitvfl tr", "COMP_CWORD": "1"}
    with tempfile.TemporaryDirectory() as folder:
        training = ("train", str(EXAMPLE), "train.epochs=1", "--overwrite", "--out", str(Path(folder) / "run"))
        works = {
            "import torch": (("-c", "import torch"), {}),
            "splitvfl --version": ((*COMMAND, "--version"), {}),
            "splitvfl --help": ((*COMMAND, "--help"), {}),
            "completion": (COMMAND, completing),
            "import splitvfl": (("-c", "import splitvfl"), {}),
            "splitvfl.SplitModel": (("-c", "import splitvfl; splitvfl.SplitModel"), {}),
            "plain script": (("-c", f"FOLDER = {str(Path(folder) / 'board')!r}\n{PLAIN}"), {}),
            "splitvfl train": ((*COMMAND, *training), {}),
        }
        times = interleaved(
            [partial(run, *work) for work in works.values()],
            runs=QUICK_RUNS if quick else RUNS,
            warm_up=1,
            clock=cpu_of_ended,
        )
    taken = dict(zip(works, times, strict=True))
    results = []
    for name, target in (("splitvfl --version", 0.3), ("splitvfl --help", 0.3), ("completion", 0.3)):
        results += _of_torch(name, taken, target)
    results += _of_torch("import splitvfl", taken, 0.15)
    above = np.subtract(taken["splitvfl.SplitModel"], taken["import torch"])
    low, middle, high = np.quantile(above, [0.25, 0.5, 0.75])
    note = f"{len(above)} runs, {low:.3g} to {high:.3g}"
    results.append(Result("splitvfl.SplitModel above import torch", float(middle), "CPU s", 0.3, note=note))
    for name, beside, most in (
        ("splitvfl.SplitModel", "import torch", None),
        ("splitvfl train", "plain script", 1.6),
    ):
        value, note = ratio(taken[name], taken[beside])
        note = f"{note}; {median(taken[name]):.3g} and {median(taken[beside]):.3g} CPU s"
        results.append(Result(f"{name} / {beside}", value, "ratio", most, note=note))
    return results


def _of_torch(name: str, taken: Mapping[str, Sequence[float]], target: float) -> list[Result]:
    """Return the CPU seconds of a process, and its ratio to ``import torch``."""
    low, middle, high = np.quantile(taken[name], [0.25, 0.5, 0.75])
    value, note = ratio(taken[name], taken["import torch"])
    return [
        Result(name, float(middle), "CPU s", target, note=f"{len(taken[name])} runs, {low:.3g} to {high:.3g}"),
        Result(f"{name} / import torch", value, "ratio", None, note=note),
    ]


if __name__ == "__main__":
    raise SystemExit(main("Starting: commands, names of the package, and a short training", measure))
