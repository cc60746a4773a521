"""What HDP-VFL costs a training in the clear: clips and the privacy account, and then the noise.

Two parties of 13 and 10 columns train logistic regression for ten epochs of ten batches of 3200 records, in one
process. What is compared was trained in turn: without any defense; with two that change nothing; with the clips of
senders and receivers and the account; and with noise from a keystream besides.
Run ``python -m scripts.bench.private_steps [--quick] [--json OUT]``. Times are CPU times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.bench.measuring import Result, interleaved, main
from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.defenses import CoefficientNoise, GaussianIR
from splitvfl.exchange.receiver_clips import ReceiverClips
from splitvfl.exchange.split import Split
from splitvfl.hooks import At, Crossing, Secrets
from splitvfl.learning.optimizers import sgd
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.privacy import GaussianMessages, HdpTraining, PrivacyBudget

BATCH, STEPS, EPOCHS, COLUMNS = 3200, 10, 10, (13, 10)
QUICK_BATCH = 320
# Of a step, beyond what any two defenses cost.
LARGEST_SHARE = 0.1
SIGMA, DELTA, RATE = 12.3, 0.01, 0.1


class _NoNoise:
    """A sender's secrets that add nothing: what is left of a defense then is its clip."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._secrets, name)

    def add_normal(self, message: Tensor, scale: float | Tensor) -> Tensor:
        return message


class _Copy:
    """A defense that changes nothing.

    Args:
        crossing: Of what.
    """

    def __init__(self, crossing: Crossing) -> None:
        self.name, self.crossing = f"copy-{crossing}", crossing

    def claims(self) -> tuple[()]:
        return ()

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message.clone()


class _ClippedIR(GaussianIR):
    def claims(self) -> Any:
        return super().claims()  # its bound is checked, which is a part of what it costs

    def __call__(self, activation: Tensor, secrets: Secrets, /) -> Tensor:
        silent: Any = _NoNoise(secrets)
        return super().__call__(activation, silent)


class _ClippedCoefficients(CoefficientNoise):
    def claims(self) -> Any:
        return super().claims()

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        silent: Any = _NoNoise(secrets)
        return super().__call__(gradient, silent)


def account(training: int, batch: int = BATCH, steps: int = STEPS, epochs: int = EPOCHS) -> PrivacyBudget:
    """Return the account of a training; each number is of one with a rate of its own, so that nothing of it is known.

    Args:
        training: Which.
        batch: Records in a batch.
        steps: Steps of an epoch.
        epochs: Of the training.
    """
    common: dict[str, Any] = {"steps_per_epoch": steps, "batch_size": batch, "eta": RATE * (1 + 1e-9 * training)}
    common |= {"k": 1.0, "lipschitz": 1.0, "weight_decay": 1e-3}
    active: Any = partial(
        HdpTraining, party="active", **common, beta_theta=0.25, beta_y=0.5, k_y=1.0, step=1.462, row_norm=1.0
    )
    passive = HdpTraining(party="passive", **common)
    streams = [
        GaussianMessages("bank", ("shop",), {"row": active(), "label": active(changed="label")}, SIGMA, grid=2.0**-20),
        GaussianMessages("shop", ("bank",), {"row": passive}, SIGMA, grid=2.0**-20),
    ]
    return PrivacyBudget(streams, steps * epochs, DELTA, records=batch * steps)


class Trainings:
    """Trainings from the start, on the same records.

    Args:
        batch: Records in a batch.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        draw = torch.Generator().manual_seed(0)
        rows = batch * STEPS
        labels = (torch.rand(rows, generator=draw) < 0.25).float()
        self._data = [
            self._party(name, torch.randn(rows, width, generator=draw), labels if name == "bank" else None)
            for name, width in zip(("bank", "shop"), COLUMNS, strict=True)
        ]
        self._numbers = count()

    @staticmethod
    def _party(name: str, columns: Tensor, labels: Tensor | None) -> PartyData:
        scaled = columns / columns.norm(dim=1, keepdim=True)
        train = Records(torch.arange(len(scaled)), Columns.of(scaled), labels)
        few = slice(0, 100)
        test = Records(train.ids[few], Columns.of(scaled[few]), None if labels is None else labels[few])
        names = tuple(f"x{number}" for number in range(scaled.shape[1]))
        return PartyData(name, names, names, (), train, test)

    def bare(self) -> Trainer:
        """Return one without clips, noise or account."""
        return self._trainer(Split(), ())

    def hooked(self) -> Trainer:
        """Return one with a defense of the activation and one of the gradient that change nothing."""
        return self._trainer(Split(), (At(_Copy("activation"), "training"), _Copy("gradient")))

    def clipped(self) -> Trainer:
        """Return one with clips and an account, and no noise."""
        return self._counted(_ClippedIR(clip=1.0, sigma=SIGMA), _ClippedCoefficients(**self._coefficients))

    def noisy(self) -> Trainer:
        """Return one with all of HDP-VFL."""
        return self._counted(GaussianIR(clip=1.0, sigma=SIGMA), CoefficientNoise(**self._coefficients))

    @property
    def _coefficients(self) -> dict[str, Any]:
        return {"sigma": SIGMA, "clip": 1.0, "scale": 1.0, "one_draw": True}

    def _counted(self, activations: GaussianIR, coefficients: CoefficientNoise) -> Trainer:
        exchange = Split(receiver_clips=ReceiverClips(activation=1.0, coefficient=1.0))
        trainer = self._trainer(exchange, (At(activations, "training"), coefficients))
        trainer.training.account = account(next(self._numbers), self.batch)
        return trainer

    def _trainer(self, exchange: Split, defenses: tuple[Any, ...]) -> Trainer:
        bank, shop = self._data
        steps = partial(sgd, lr=RATE, weight_decay=1e-3, radius=1.0)
        return Trainer(
            ActiveParty(bank, LinearTop(1, active_inputs=COLUMNS[0], init="zero"), optimizer=steps),
            {"shop": PassiveParty(shop, Linear(COLUMNS[1], init="zero"), optimizer=steps)},
            defenses=defenses,
            batch_size=self.batch,
            exchange=exchange,
            evaluate_every=EPOCHS,
            audit=False,
        )


def measure(quick: bool) -> list[Result]:
    """Return what defenses, clips and accounting, and noise add to a step, and what the account takes alone."""
    trainings, runs = Trainings(QUICK_BATCH if quick else BATCH), 2 if quick else 25
    makers = (trainings.bare, trainings.hooked, trainings.clipped, trainings.noisy)
    warm_up = 1
    waiting = [iter([make() for _ in range(runs + warm_up)]) for make in makers]
    bare, *more = interleaved([_next_fit(each) for each in waiting], runs=runs, warm_up=warm_up)
    names = ("two defenses that change nothing", "clips and account", "noise of both directions")
    of, steps = f"batch {trainings.batch}", STEPS * EPOCHS
    return [
        *(
            _added(f"{name}, {of}", less, much, bare, LARGEST_SHARE if name == "clips and account" else None)
            for name, less, much in zip(names, (bare, *more), more, strict=False)
        ),
        Result(f"step without, {of}", 1e3 * median(bare) / steps, "ms", None, note=f"{runs} runs of {steps} steps"),
        *(_of_account(each, runs) for each in (STEPS, 1)),
    ]


def _added(
    name: str, less: Sequence[float], more: Sequence[float], step: Sequence[float], target: float | None
) -> Result:
    """Return by what share of a step one training took longer than another, run by run."""
    shares = (np.asarray(more) - np.asarray(less)) / np.asarray(step)
    low, middle, high = np.quantile(shares, [0.25, 0.5, 0.75])
    return Result(name, float(middle), "of a step", target, note=f"{len(shares)} runs, {low:.3g} to {high:.3g}")


def _next_fit(trainers: Iterator[Trainer]) -> Callable[[], object]:
    return lambda: next(trainers).fit(EPOCHS)


def _of_account(steps: int, runs: int) -> Result:
    """Return what a training's account takes of a step, said after every epoch and of a plan that nobody knew."""
    numbers = count(1_000_000)

    def counted() -> None:
        budget = account(next(numbers), steps=steps)
        for step in range(budget.steps):
            budget.begin(step)
            if (step + 1) % steps == 0:
                budget.spent_on_everything()

    ((*taken,),) = interleaved([counted], runs=runs)
    each = 1e3 * median(taken) / (steps * EPOCHS)
    name = f"account alone, {EPOCHS} epochs of {steps} {'step' if steps == 1 else 'steps'}, a step"
    return Result(name, each, "ms", None, note=f"{runs} runs")


if __name__ == "__main__":
    sys.exit(main("HDP-VFL: what a step costs more", measure))
