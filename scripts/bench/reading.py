"""What it costs to see, while a model is trained, what a partner reads of columns in activations, and to lower it.

Two parties of 50 columns each train in one process, batches of 4096, behind a bottom model of two layers with a cut 64
wide: with ``ridge`` in the label party's seat, which knows 5 % of the records, and without. A passive party that reads
its own messages has the same reader and half of the step, which is timed too. The third training has the penalty
``distance-correlation`` of 256 records, as it is by default.
Run ``python -m scripts.bench.reading [--quick] [--json OUT]``. Times are CPU times.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import count
from statistics import median

import numpy as np
import torch
from torch import Tensor

from scripts.bench.measuring import Result, interleaved, main
from splitvfl.app.trainer import Trainer
from splitvfl.attacks import RidgeAttack
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.hooks import Attack, Penalty
from splitvfl.models import MLP
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.penalties import DistanceCorrelation

BATCH, STEPS, COLUMNS, WIDTH, HIDDEN = 4096, 65, 50, 64, 128
QUICK_BATCH, QUICK_STEPS = 512, 12
# Of a step: what is aimed at, of a reader and of a penalty.
LARGEST_SHARE, LARGEST_SHARE_OF_PENALTY = 0.03, 0.10


def trainer(batch: int, steps: int, attacks: tuple[Attack, ...] = (), penalties: tuple[Penalty, ...] = ()) -> Trainer:
    """Return a training from the start.

    Args:
        batch: Records of a batch.
        steps: Steps of an epoch.
        attacks: Those in the label party's seat.
        penalties: Those of the passive party.
    """
    draw = torch.Generator().manual_seed(0)
    rows = batch * steps
    shop, ads = (torch.randn(rows, COLUMNS, generator=draw) for _ in range(2))
    labels = (shop[:, 0] + ads[:, 0] > 0).float()
    torch.manual_seed(0)
    return Trainer(
        ActiveParty(_party("shop", shop, labels), MLP(WIDTH + COLUMNS, [64, 1], final_activation=False)),
        {"ads": PassiveParty(_party("ads", ads, None), MLP(COLUMNS, [HIDDEN, WIDTH]), penalties=penalties)},
        attacks=attacks,
        batch_size=batch,
        evaluate_every=1_000,
        audit=False,
    )


def _party(name: str, numbers: Tensor, labels: Tensor | None) -> PartyData:
    train = Records(torch.arange(len(numbers)), Columns.of(numbers), labels)
    test = train.rows(torch.arange(100))
    names = tuple(f"{name} {place}" for place in range(COLUMNS))
    return PartyData(name, names, names, (), train, test)


def measure(quick: bool) -> list[Result]:
    """Return which share of a step a reader takes, of both parties' and of the passive party's alone, and a penalty."""
    batch, steps, runs = (QUICK_BATCH, QUICK_STEPS, 2) if quick else (BATCH, STEPS, 15)
    without, reading = trainer(batch, steps), trainer(batch, steps, (RidgeAttack(known_share=0.05),))
    penalised = trainer(batch, steps, penalties=(DistanceCorrelation(),))
    passive = without.passives["ads"]
    batches = [passive.train_batch(torch.arange(batch) + batch * place) for place in range(steps)]

    def own_half() -> None:
        for step, records in enumerate(batches):
            activation = passive.activate(records)
            passive.learn(activation, torch.full_like(activation, 1e-6), records, step)

    works = [partial(_epoch, one, count(1)) for one in (without, reading, penalised)]
    alone, read, lowered, half = interleaved([*works, own_half], runs=runs)
    cost, of_penalty = (np.asarray(one) - np.asarray(alone) for one in (read, lowered))
    of = f"batch {batch}, cut {WIDTH} wide, {COLUMNS} columns"
    return [
        _share(f"ridge, of a step of both parties, {of}", cost, alone),
        _share(f"ridge, of the passive party's half of it, {of}", cost, half),
        _share(f"distance-correlation, of a step of both parties, {of}", of_penalty, alone, LARGEST_SHARE_OF_PENALTY),
        Result("a step of both parties", 1e3 * median(alone) / steps, "ms", None, note=f"{runs} epochs of {steps}"),
        Result("the passive party's half of it", 1e3 * median(half) / steps, "ms", None),
    ]


def _epoch(one: Trainer, numbers: count[int]) -> None:
    one.fit(next(numbers))


def _share(
    name: str,
    cost: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    step: list[float],
    target: float = LARGEST_SHARE,
) -> Result:
    low, middle, high = np.quantile(cost / np.asarray(step), [0.25, 0.5, 0.75])
    note = f"{len(step)} epochs, quartiles {low:.3g} to {high:.3g}"
    return Result(name, float(middle), "of a step", target, note=note)


if __name__ == "__main__":
    sys.exit(main("what the label party reads of columns, and a penalty against it: what a step costs more", measure))
