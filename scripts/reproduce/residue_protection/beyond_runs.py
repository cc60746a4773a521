"""Cells of the comparison beyond the paper: one contender on one problem with one seed, trained and attacked."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scripts.reproduce.residue_protection.descent import MOST_STEPS, Step, Watch, descend, number_of_steps, steps_of
from scripts.reproduce.residue_protection.guesses import ATTACKS, Effort, Reading, Transcript, balanced
from scripts.reproduce.residue_protection.mechanisms import NONE, additive, chosen, multiplicative
from scripts.reproduce.residue_protection.protections import Contender, Memoised, Residues, Selection
from scripts.reproduce.residue_protection.study import Problem, Table, build_trainer, held_out, table_of
from scripts.reproduce.residue_protection.training import RATES, accuracies, aucs, laplace_numbers
from scripts.reproduce.shared.jobs import Result
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.paillier import Encryption, InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.learning.randomness import derive_seed
from splitvfl.metrics import leak_auc
from splitvfl.run.training import Status

SELECTIONS: Mapping[str, Selection] = {
    "breast": Selection(used=16, sent=40),
    "digits": Selection(used=32, sent=70),
    "census": Selection(used=32, sent=90),
    "credit": Selection(used=8, sent=15),
}
"""The paper's table IV: records that are used in a step, and sent."""

EPSILONS = (0.01, 0.1, 1.0, 10.0)
"""Of one release by value, as in the paper's table II."""

DEPLOYED = (1.0, 3.0)
"""Of a label over a whole run: what somebody might promise."""

COINS = 0.2
"""Share of the training records whose labels are tossed in the runs that are attacked: no column tells them."""

DRAWS = 5
"""Trainings of each seed, with noise or answers of their own, whose test figures are averaged."""

_TIE = 1e-5
_GRID = 1_000
_TIMED_STEPS = 8
_KEY_BITS = 2048


# --- who takes part


def contenders(problem: Problem, *, quick: bool = False) -> list[Contender]:
    """Return what is compared on a problem.

    Additive noise at four ε; multiplicative noise of the same ε by label, with bounds chosen without data, and its two
    modes of mean 0 at a nominal ε of 1; memoised responses of the same ε over the whole run as additive noise, and
    others that are read as often; the hybrid exchange, alone and with memoised responses.

    Args:
        problem: The data and the number of epochs.
        quick: Whether to leave out most of them.
    """
    exact, selection = Residues(mechanism=NONE), SELECTIONS[problem.key]
    found = [
        Contender(key="none", title="none", protection=exact),
        Contender(
            key="residue",
            title="none, exchange `residue`",
            protection=exact,
            batch_size=selection.used,
            encrypted=True,
        ),
    ]
    found += [_additive(epsilon) for epsilon in (EPSILONS if not quick else (1.0,))]
    found += [_multiplicative(epsilon) for epsilon in (EPSILONS[1:] if not quick else (1.0,))]
    found += [
        Contender(
            key=mode,
            title=f"Mult {mode.replace('_', ' ')}, nominal ε 1, b1 .1, b2 10",
            protection=Residues(mechanism=multiplicative(1.0, 0.1, 10.0, mode)),
        )
        for mode in (("as_printed", "sign_preserving") if not quick else ("as_printed",))
    ]
    for epsilon in EPSILONS[:3] if not quick else (1.0,):
        found += _answers(epsilon, problem.epochs, quick=quick)
    found += [_memoised(f"memoised-{epsilon:g}", epsilon) for epsilon in DEPLOYED if not quick]
    found.append(Contender(key="hybrid", title="hybrid", protection=exact, selection=selection))
    found += [
        replace(_memoised(f"hybrid-memoised-{epsilon:g}", epsilon), selection=selection)
        for epsilon in (DEPLOYED if not quick else DEPLOYED[:1])
    ]
    return [replace(one, title=f"hybrid + {one.title}") if one.key.startswith("hybrid-") else one for one in found]


def _additive(epsilon: float) -> Contender:
    return Contender(
        key=f"add-{epsilon:g}", title=f"Add, ε {epsilon:g}", protection=Residues(mechanism=additive(epsilon))
    )


def _multiplicative(epsilon: float) -> Contender:
    """Return multiplicative noise whose claim of a label is that of additive noise, half of its ε."""
    return Contender(
        key=f"mult-{epsilon:g}",
        title=f"Mult centred at one, true ε {epsilon / 2:g}",
        protection=Residues(mechanism=chosen(epsilon / 2)),
    )


def _memoised(key: str, epsilon: float) -> Contender:
    return Contender(key=key, title=f"memoised, ε {epsilon:.3g}", protection=Memoised(epsilon=epsilon))


def _answers(epsilon: float, epochs: int, *, quick: bool) -> Iterator[Contender]:
    """Yield memoised responses to hold against additive noise of an ε: as private, and as well read."""
    whole = epochs * epsilon / 2
    yield replace(_memoised(f"same-{epsilon:g}", whole), title=f"memoised, ε of Add at {epsilon:g}")
    if quick:
        return
    yield Contender(
        key=f"likelihood-{epsilon:g}",
        title=f"memoised, ε of Add at {epsilon:g}, by likelihood",
        protection=Memoised(epsilon=whole, corrected="likelihood"),
    )
    read = additive_success(epsilon, epochs)
    yield replace(
        _memoised(f"as-read-{epsilon:g}", math.log(read / (1.0 - read))),
        title=f"memoised, read as often as Add at {epsilon:g}",
    )


@lru_cache
def additive_success(epsilon: float, releases: int) -> float:
    """Return how often additive noise of so many releases tells a label of even odds, f known.

    In units of ε/2 the ratio of one release is 1 where the noise is positive, −1 where it is below −1, and ``1 + 2
    noise`` between, which is cut into cells: their masses are exact, and their places to a thousandth. Ratios of
    several releases are the convolution.
    """
    edges = np.exp(epsilon / 2 * np.linspace(-1.0, 0.0, 2 * _GRID + 1)) / 2
    between = np.diff(edges) / 2  # of which each end of a cell gets one half
    one = np.zeros(2 * _GRID + 1)
    one[:-1] += between
    one[1:] += between
    one[0] += edges[0]
    one[-1] += 0.5
    length = 2 * _GRID * releases + 1
    every = np.fft.irfft(np.fft.rfft(one, length) ** releases, length)
    return float(every[length // 2 + 1 :].sum() + every[length // 2] / 2)


def effort_for(contender: Contender, *, quick: bool = False) -> Effort:
    """Return on how many steps attacks on sums are run: few where residues cross, which tell all that sums do."""
    if quick:
        return Effort(solved=20, sparse=5, program=1, stacked=1 << 18, time_limit=0.1)
    if contender.sums_only:
        return Effort(solved=MOST_STEPS, sparse=60, program=6, stacked=1 << 21)
    return Effort(solved=200, sparse=3, program=2, stacked=1 << 18)


# --- a cell


class Chosen(NamedTuple):
    """A learning rate, and whether the next one beyond was not offered.

    Attributes:
        rate: As it is.
        at_end: Whether it is the largest or the smallest of those offered.
    """

    rate: float
    at_end: bool


def contend(problem: Mapping[str, Any], contender: Mapping[str, Any], seed: int, effort: Mapping[str, Any]) -> Result:
    """Choose a learning rate on a held-out tenth, train and test; then train with coins among the labels, and attack.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        contender: What :meth:`Contender.as_settings` returned.
        seed: Of everything.
        effort: Fields of :class:`Effort`.

    Returns:
        ``rate`` and ``at_end``; ``accuracy`` and ``auc`` on the test records; ``steps`` of a training; ``attacks``:
        what :func:`judged` returns for each.
    """
    given, one = Problem.of(problem), Contender.of(contender)
    table = table_of(given, seed)
    training = _Training(given, one, seed)
    rate = training.best_rate(held_out(table, seed))
    weights = training.weights(table, torch.full((DRAWS,), rate.rate, dtype=torch.float64), "training")
    logits = table.test.double() @ weights
    labels, coins = _with_coins(table.labels, seed, given.key)
    tossed = table._replace(labels=labels)
    steps = number_of_steps(one, records=len(table.train), batch_size=given.batch_size, epochs=given.epochs)
    transcript = Transcript(
        table.train.double(),
        releases=0 if one.sums_only else given.epochs,
        sums=Effort(**effort).solved,
        steps=steps,
    )
    single = torch.tensor([rate.rate], dtype=torch.float64)
    transcript.own = (transcript.columns @ training.weights(tossed, single, "attacked", transcript))[:, 0]
    found = {}
    for name, attack in ATTACKS.items():
        reading = attack(transcript, one.protection, Effort(**effort))
        if reading is not None:
            found[name] = judged(reading, labels.double(), coins)
    return {
        "rate": rate.rate,
        "at_end": rate.at_end,
        "accuracy": float(accuracies(logits, table.test_labels).mean()),
        "auc": float(aucs(logits, table.test_labels).mean()),
        "steps": steps,
        "attacks": found,
    }


def judged(reading: Reading, labels: Tensor, coins: Tensor) -> dict[str, Any]:
    """Return what an attack gets, balanced, of single steps and over the run, of labels and of coins.

    Args:
        reading: What it found.
        labels: Of the training records, ``(n,)``, 0 and 1.
        coins: Which of them were tossed, ``(n,)``, bool.

    Returns:
        ``run`` and ``run_auc`` of records with their own labels, ``run_coins``, ``single`` and ``single_coins``, NaN
        where there are none; ``guessed`` coins over the run, how many of them ``right``; the attack's ``note``.
    """
    own, tossed = ~coins, coins[reading.records]
    sign = torch.sign(reading.run[coins])
    right = sign * (2 * labels[coins] - 1) > 0
    return {
        "run": balanced(reading.run[own], labels[own]),
        "run_auc": leak_auc(reading.run[own], labels[own]),
        "run_coins": balanced(reading.run[coins], labels[coins]),
        "single": balanced(reading.single[~tossed], labels[reading.records[~tossed]]),
        "single_coins": balanced(reading.single[tossed], labels[reading.records[tossed]]),
        "guessed": int((sign != 0).sum()),
        "right": int(right.sum()),
        "note": reading.note,
    }


def _with_coins(labels: Tensor, seed: int, key: str) -> tuple[Tensor, Tensor]:
    """Return labels of which some were tossed, and which: the same for all contenders."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "coins", key))
    coins = torch.zeros(len(labels), dtype=torch.bool)
    coins[torch.randperm(len(labels), generator=generator)[: round(COINS * len(labels))]] = True
    tossed = torch.randint(2, labels.shape, generator=generator).to(labels.dtype)
    return torch.where(coins, tossed, labels), coins


class _Training:
    """Trainings of one contender on one problem with one seed."""

    def __init__(self, problem: Problem, contender: Contender, seed: int) -> None:
        self._problem, self._contender, self._seed = problem, contender, seed

    def best_rate(self, validated: Table) -> Chosen:
        """Return the learning rate of the best accuracy on held-out records, on average over draws of noise.

        Among equals, which there are on a few dozen of records, AUC decides.
        """
        offered = torch.tensor(RATES, dtype=torch.float64) / (2 * self._contender.protection.size)
        weights = self.weights(validated, offered.repeat_interleave(DRAWS), "choice of rates")
        logits = validated.test.double() @ weights
        figures = accuracies(logits, validated.test_labels) + _TIE * aucs(logits, validated.test_labels)
        best = int(figures.view(len(RATES), DRAWS).mean(dim=1).argmax())
        return Chosen(float(offered[best]), best in (0, len(RATES) - 1))

    def steps(self, table: Table) -> Iterator[Step]:
        """Return the steps of a training."""
        records, columns = table.train.shape
        return steps_of(
            self._contender,
            records=records,
            columns=columns,
            batch_size=self._problem.batch_size,
            epochs=self._problem.epochs,
            seed=self._seed,
        )

    def weights(self, table: Table, rates: Tensor, stage: str, watch: Watch | None = None) -> Tensor:
        """Return the weights of one training at each rate, ``(d, R)``, with noise of its own each."""
        purpose = (stage, self._problem.key, self._contender.key)
        generator = torch.Generator().manual_seed(derive_seed(self._seed, *purpose))
        protection = self._contender.protection
        return descend(
            table.train.double(),
            protection.targets(table.labels.double(), generator, len(rates)),
            protection,
            self.steps(table),
            rates=rates,
            draw=laplace_numbers(generator),
            watch=watch,
        )


# --- time


def step_seconds(problem: Mapping[str, Any], contender: Mapping[str, Any], *, short_keys: bool = False) -> Result:
    """Return the median of the seconds of processor time that a step takes in the package, all parties together.

    The first step is left out; keys and their exchange are made before it. In a run over a network these seconds are
    divided among parties, and waiting for the network comes on top.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        contender: What :meth:`Contender.as_settings` returned.
        short_keys: Whether to encrypt with 512 bits, which protects nothing: to show that it runs.
    """
    given, one = Problem.of(problem), Contender.of(contender)
    exchange = exchange_of(one, given, short_keys=short_keys)
    size = one.rows(given.batch_size)
    small = replace(given, batch_size=size, rows=(_TIMED_STEPS + 1) * size)
    defense = one.protection.defense()
    trainer = build_trainer(
        small, 0, rate=0.1, defenses=() if defense is None else (defense,), exchange=exchange, evaluate_every=1000
    )
    times: list[float] = []

    def follow(status: Status) -> None:
        times.append(time.process_time())

    epochs = max(1, -(-(_TIMED_STEPS + 1) // len(trainer.batches)))
    trainer.fit(epochs, progress=follow)
    return {"seconds": statistics.median(after - before for before, after in pairwise(times))}


def exchange_of(contender: Contender, problem: Problem, *, short_keys: bool) -> Exchange:
    """Return the package's exchange of a contender."""
    encryption = InsecureEncryption(key_bits=512) if short_keys else Encryption(key_bits=_KEY_BITS)
    if contender.selection is not None:
        chosen_batch = contender.selection
        return Hybrid(
            rows=chosen_batch.batch_size,
            encryption=encryption,
            epsilon=chosen_batch.epsilon,
            share=chosen_batch.share,
        )
    if contender.encrypted:
        return Residue(rows=contender.rows(problem.batch_size), encryption=encryption)
    return Split()
