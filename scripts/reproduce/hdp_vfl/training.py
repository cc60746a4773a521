"""Training of many contenders and learning rates at once, on the package's own batches, and what it comes to.

One step is that of exchange ``split`` with two parties, one linear layer each and plain gradient descent that ends in a
ball: the passive party sends its part of the logits with noise, the label party the derivatives with noise, and
receivers clip. A test holds it against the package's trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from scripts.reproduce.hdp_vfl import published
from scripts.reproduce.hdp_vfl.noise import LIPSCHITZ, NO_NOISE, Noise, Training, noise_of
from scripts.reproduce.hdp_vfl.study import Party, Problem, Table, table_of
from scripts.reproduce.residue_protection.training import accuracies, aucs
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.settings import Settings
from splitvfl.learning.batches import Batches
from splitvfl.learning.randomness import derive_seed

RATES = (0.03, 0.1, 0.3, 1.0, 2.0, 3.9)
"""Learning rates among which five folds decide; beyond 2 / (β_θ R² + 2 λ), 3.98, sensitivities do not hold."""

FOLDS = 5

Method = Literal["single party", "centralised", "non-private", "encrypted", "as printed", "published, clips", "tight"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """What is trained, all but its learning rate.

    Attributes:
        method: ``"single party"``: the label party's columns alone. ``"centralised"``: all columns in one place, rows
            and weights of any norm. ``"non-private"``: HDP-VFL without noise. ``"encrypted"``: the same with Taylor's
            sigmoid, which is what the encrypted exchange computes. ``"as printed"``: the published noise, and receivers
            that use whatever comes. ``"published, clips"``: the published noise, and receivers that clip. ``"tight"``:
            noise as this package calculates it, and receivers that clip.
        epsilon: ε of the whole training; 0: there is no noise.
        radius: k of the ball.
    """

    method: Method
    epsilon: float = 0.0
    radius: float = published.RADIUS

    @property
    def clips(self) -> bool:
        """Whether receivers clip what they use; without noise there is nothing to clip."""
        return self.method in ("published, clips", "tight")

    def as_settings(self) -> dict[str, Any]:
        """Return JSON values, from which it can be made again."""
        return asdict(self)

    def noise(self, training: Training) -> Noise:
        """Return both parties' noise."""
        if not self.epsilon:
            return NO_NOISE
        return noise_of(training, self.epsilon, "tight" if self.method == "tight" else "published")


def private(method: Method, radius: float = published.RADIUS) -> list[Contender]:
    """Return a method at every ε of the paper."""
    return [Contender(method=method, epsilon=epsilon, radius=radius) for epsilon in published.EPSILONS]


class Cells(NamedTuple):
    """Trainings that are done at once, C of them; a number for each, ``(C,)``, float32.

    Attributes:
        rates: Learning rates.
        radii: Of the ball; infinite: there is none.
        passive: Standard deviation of the noise on parts of logits.
        active: Of that on derivatives.
        part: To what the label party clips a part; infinite: it does not.
        derivative: To what the passive party clips a derivative.
        taylor: 1 for Taylor's sigmoid, 0 for the exact one.
    """

    rates: Tensor
    radii: Tensor
    passive: Tensor
    active: Tensor
    part: Tensor
    derivative: Tensor
    taylor: Tensor

    @classmethod
    def of(cls, pairs: Sequence[tuple[Contender, float]], size: Size) -> Cells:
        """Return the cells of contenders with learning rates."""
        unbounded = float("inf")
        rows = []
        for contender, rate in pairs:
            noise = contender.noise(size.training(rate, contender.radius))
            rows.append(
                (
                    rate,
                    unbounded if contender.method == "centralised" else contender.radius,
                    noise.passive,
                    noise.active,
                    contender.radius if contender.clips else unbounded,
                    LIPSCHITZ if contender.clips else unbounded,
                    float(contender.method == "encrypted"),
                )
            )
        return cls(*torch.tensor(rows, dtype=torch.float32).T.contiguous())


class Size(NamedTuple):
    """How long a training is."""

    records: int
    batch_size: int
    epochs: int
    intercept: bool

    @classmethod
    def of(cls, problem: Problem, records: int) -> Size:
        """Return that of a problem with so many training records; a batch has no more than there are."""
        return cls(records, min(problem.batch_size, records), problem.epochs, problem.intercept)

    def training(self, rate: float, radius: float) -> Training:
        """Return what sensitivity depends on."""
        each = self.records // self.batch_size
        return Training(self.epochs, each, self.batch_size, rate, radius, self.intercept)


class Weights(NamedTuple):
    """Weights of the label party, ``(d_A, C)``, that of a column of ones last, and the passive party, ``(d_B, C)``."""

    active: Tensor
    passive: Tensor


def descend(
    active: Tensor, passive: Tensor, labels: Tensor, cells: Cells, size: Size, *, seed: int, noise: torch.Generator
) -> Weights:
    """Train every cell from weights of zero, and return the weights.

    Cells see the same batches, and noise that differs in its scale only.

    Args:
        active: The label party's rows, ``(n, d_A)``, with a column of ones if there is an intercept.
        passive: The passive party's rows, ``(n, d_B)``; ``d_B`` may be 0.
        labels: ``(n,)``, 0 and 1.
        cells: What is trained.
        size: For how long; a last batch of an epoch that would be smaller is left out.
        seed: Of the order.
        noise: Where noise comes from. Numbers of 24 bits, and for experiments only.
    """
    count = len(cells.rates)
    own, other = active.new_zeros(active.shape[1], count), passive.new_zeros(passive.shape[1], count)
    order = Batches(len(labels), size.batch_size, seed=seed, drop_last=True)
    for epoch in range(size.epochs):
        for index in order.epoch(epoch):
            rows, others = active.index_select(0, index), passive.index_select(0, index)
            drawn = torch.randn(2, len(index), 1, generator=noise, dtype=active.dtype)
            part = (others @ other).addcmul_(drawn[0], cells.passive)
            part = torch.minimum(torch.maximum(part, -cells.part), cells.part)
            h = _derivatives((rows @ own).add_(part), labels[index].unsqueeze(1), cells.taylor)
            sent = torch.addcmul(h, drawn[1], cells.active)
            used = torch.minimum(torch.maximum(sent, -cells.derivative), cells.derivative)
            own = _stepped(own, rows.T @ h / len(index), cells)
            other = _stepped(other, others.T @ used / len(index), cells)
    return Weights(own, other)


def _derivatives(logits: Tensor, labels: Tensor, taylor: Tensor) -> Tensor:
    approximated = taylor.bool()
    h = torch.sigmoid(logits)
    if bool(approximated.any()):
        h = torch.where(approximated, 0.5 + 0.25 * logits, h)
    return h.sub_(labels)


def _stepped(weights: Tensor, gradient: Tensor, cells: Cells) -> Tensor:
    stepped = weights * (1 - cells.rates * published.WEIGHT_DECAY) - cells.rates * gradient
    norms = torch.linalg.vector_norm(stepped, dim=0)
    within: Tensor = stepped * (cells.radii / norms).clamp(max=1.0).nan_to_num(1.0)
    return within


# --- what it comes to


class _Rows(NamedTuple):
    """Both parties' rows and the labels, to train on and to test on."""

    active: Party
    passive: Party
    labels: Tensor
    test_labels: Tensor


def _rows_of(table: Table, method: Method, *, intercept: bool) -> _Rows:
    """Return the rows that a method trains on; who has the columns of others has none of them elsewhere."""
    active = table.pooled if method == "centralised" else table.active
    alone = method in ("centralised", "single party")
    passive = Party(*(rows[:, : 0 if alone else None] for rows in table.passive))
    if intercept:
        active = Party(*(torch.cat([rows, torch.ones(len(rows), 1)], dim=1) for rows in active))
    return _Rows(active, passive, table.labels, table.test_labels)


def folds(rows: _Rows, seed: int) -> Iterable[_Rows]:
    """Yield the training rows without a fifth of them, which they are tested on; each fifth in turn."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "folds") % 2**32)
    order = torch.randperm(len(rows.labels), generator=generator)
    for number in range(FOLDS):
        left_out = torch.zeros(len(order), dtype=torch.bool)
        left_out[order[number::FOLDS]] = True
        active, passive = (
            Party(party.train[~left_out], party.train[left_out]) for party in (rows.active, rows.passive)
        )
        yield _Rows(active, passive, rows.labels[~left_out], rows.labels[left_out])


def _logits(
    rows: _Rows, problem: Problem, pairs: Sequence[tuple[Contender, float]], *, seed: int, purpose: str
) -> Tensor:
    size = Size.of(problem, len(rows.labels))
    weights = descend(
        rows.active.train,
        rows.passive.train,
        rows.labels,
        Cells.of(pairs, size),
        size,
        seed=seed,
        noise=torch.Generator().manual_seed(derive_seed(seed, f"noise, {purpose}") % 2**32),
    )
    return rows.active.test @ weights.active + rows.passive.test @ weights.passive


def train_contenders(
    problem: Mapping[str, Any], seed: int, contenders: Sequence[Mapping[str, Any]], rates: Sequence[float]
) -> Result:
    """Train every contender at the rate of the highest accuracy plus AUC over five folds of its training records.

    Accuracy alone does not tell rates apart where every record is given the commoner class. The folds have
    noise of their own. Weights are judged after the last epoch, with parts of logits of the test records as they are.

    Args:
        problem: :meth:`Problem.as_settings`.
        seed: Of split, order, folds and noise.
        contenders: :meth:`Contender.as_settings` of each, all with rows of one kind.
        rates: Learning rates to choose from.

    Returns:
        ``cells``, one for each contender: rate, accuracy plus AUC over the folds at that rate, accuracy and AUC on test
        records, and the noise of both parties; and ``majority``, the accuracy of the commoner class.
    """
    what, chosen = Problem.of(problem), [Contender(**each) for each in contenders]
    table = table_of(what, seed)
    rows = _rows_of(table, chosen[0].method, intercept=what.intercept)
    pairs = [(contender, rate) for contender in chosen for rate in rates]
    found = torch.zeros(len(pairs), dtype=torch.float64)
    for number, fold in enumerate(folds(rows, seed)):
        logits = _logits(fold, what, pairs, seed=seed, purpose=f"fold {number}")
        found += (accuracies(logits, fold.test_labels) + aucs(logits, fold.test_labels)) / FOLDS
    # Of rates that do equally well the smallest, which needs the least noise.
    validated, best = found.view(len(chosen), len(rates)).max(dim=1)
    best_pairs = [(contender, rates[place]) for contender, place in zip(chosen, best.tolist(), strict=True)]
    logits = _logits(rows, what, best_pairs, seed=seed, purpose="test")
    size = Size.of(what, len(rows.labels))
    cells = [
        {
            "rate": rate,
            "validated": score,
            "accuracy": accuracy,
            "auc": auc,
            **contender.noise(size.training(rate, contender.radius))._asdict(),
        }
        for (contender, rate), score, accuracy, auc in zip(
            best_pairs,
            validated.tolist(),
            accuracies(logits, table.test_labels).tolist(),
            aucs(logits, table.test_labels).tolist(),
            strict=True,
        )
    ]
    return {"cells": cells, "majority": table.majority}


def judge_noisy_parts(
    problem: Mapping[str, Any], seed: int, contenders: Sequence[Mapping[str, Any]], rates: Sequence[float]
) -> Result:
    """Train every contender at its rate, and judge it by parts of logits with the noise of the training.

    Args:
        problem: :meth:`Problem.as_settings`.
        seed: Of split, order and noise.
        contenders: :meth:`Contender.as_settings` of each, all with rows of both parties.
        rates: A learning rate for each.

    Returns:
        ``accuracy`` on test records, of each; nobody clips these parts.
    """
    what, chosen = Problem.of(problem), [Contender(**each) for each in contenders]
    rows = _rows_of(table_of(what, seed), chosen[0].method, intercept=what.intercept)
    pairs = list(zip(chosen, rates, strict=True))
    size = Size.of(what, len(rows.labels))
    cells = Cells.of(pairs, size)
    generator = torch.Generator().manual_seed(derive_seed(seed, "noise, test") % 2**32)
    weights = descend(rows.active.train, rows.passive.train, rows.labels, cells, size, seed=seed, noise=generator)
    # One draw for each cell: here it is all that there is to be seen.
    drawn = torch.randn(len(rows.test_labels), len(pairs), generator=generator)
    part = torch.addcmul(rows.passive.test @ weights.passive, drawn, cells.passive)
    return {"accuracy": accuracies(rows.active.test @ weights.active + part, rows.test_labels).tolist()}


class Outcome(NamedTuple):
    """What one contender comes to, a value for each seed.

    Attributes:
        accuracy: On test records.
        auc: On test records.
        validated: Accuracy plus AUC over the folds, at the chosen rate.
        rate: The chosen rate.
        passive: Noise of the passive party.
        active: Noise of the label party.
        majority: Accuracy of the commoner class on the same records.
    """

    accuracy: tuple[float, ...]
    auc: tuple[float, ...]
    validated: tuple[float, ...]
    rate: tuple[float, ...]
    passive: tuple[float, ...]
    active: tuple[float, ...]
    majority: tuple[float, ...]


Outcomes = Mapping[Problem, Mapping[Contender, Outcome]]


def outcomes_of(
    settings: Settings, problems: Sequence[Problem], contenders: Sequence[Contender], rates: Sequence[float] = RATES
) -> Outcomes:
    """Return what contenders come to on problems, at all seeds.

    Args:
        settings: Seeds, processes, and where finished work is kept.
        problems: Which.
        contenders: Which; each on every problem.
        rates: Learning rates to choose from.
    """
    groups = [group for group in _alike(contenders) if group]
    jobs = [
        Job(
            train_contenders,
            {
                "problem": problem.as_settings(),
                "seed": seed,
                "contenders": [each.as_settings() for each in group],
                "rates": list(rates),
            },
        )
        for problem in problems
        for group in groups
        for seed in range(settings.seeds)
    ]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    found: dict[Problem, dict[Contender, Outcome]] = {}
    for problem in problems:
        found[problem] = {}
        for group in groups:
            seeds = [next(results) for _ in range(settings.seeds)]
            for number, contender in enumerate(group):
                cells = [{**each["cells"][number], "majority": each["majority"]} for each in seeds]
                found[problem][contender] = Outcome(
                    **{name: tuple(cell[name] for cell in cells) for name in Outcome._fields}
                )
    return found


def noisy_parts_of(
    settings: Settings, outcomes: Outcomes, contenders: Sequence[Contender]
) -> Mapping[Problem, Mapping[Contender, list[float]]]:
    """Return the accuracies of contenders whose test records' parts of logits have noise, too, at their chosen rates.

    Args:
        settings: Seeds, processes, and where finished work is kept.
        outcomes: What :func:`outcomes_of` found, of these contenders and maybe others.
        contenders: Which.
    """
    jobs = [
        Job(
            judge_noisy_parts,
            {
                "problem": problem.as_settings(),
                "seed": seed,
                "contenders": [each.as_settings() for each in contenders],
                "rates": [found[each].rate[seed] for each in contenders],
            },
        )
        for problem, found in outcomes.items()
        for seed in range(settings.seeds)
    ]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    judged: dict[Problem, dict[Contender, list[float]]] = {}
    for problem in outcomes:
        seeds = [next(results)["accuracy"] for _ in range(settings.seeds)]
        judged[problem] = {each: [seed[number] for seed in seeds] for number, each in enumerate(contenders)}
    return judged


def _alike(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Return contenders by the rows that they train on."""
    alone: tuple[Method, ...] = ("single party", "centralised")
    apart = [[each for each in contenders if each.method == method] for method in alone]
    return [*apart, [each for each in contenders if each.method not in alone]]
