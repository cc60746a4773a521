"""What is trained in the search, and what is measured of each run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from scripts.reproduce.better_defense.search_channels import (
    Given,
    Told,
    cross_fitted_opinions,
    mu_for,
    neighbours_means,
    noisy_opinions,
    sided_answers,
    total_variation_for,
)
from scripts.reproduce.better_defense.search_data import (
    PARTNER,
    WIDTH,
    Free,
    Problem,
    bottom_of,
    components,
    data_of,
    random_layers,
    wide_features,
)
from scripts.reproduce.shared.jobs import Result
from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import PartyData, VerticalData
from splitvfl.defenses import AsymmetricResponse, AxisSumKL
from splitvfl.hooks import Defense
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.metrics import leak_auc
from splitvfl.models import WideDeepTop
from splitvfl.party.party import ActiveParty, PassiveParty

TEACHER = 16
"""So many components of the partner's columns, and of the label party's own, does a teacher know."""

ROUNDS = 3
TEACHERS_PART = 0.2
"""Of what answers and a noisy teacher promise together, the part that the teacher has: of AUC above a half."""

EPSILON = 3.0
FOLDS = 5
BLOCK = 4096
WARM_EPOCHS = 5
HEAD_BATCH = 256


def train(
    *,
    problem: Mapping[str, Any],
    channel: Mapping[str, Any],
    rate: float,
    points: Sequence[int],
    seed: int,
    final: bool,
) -> Result:
    """Train with one channel, and measure after each of some numbers of epochs.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        channel: ``kind`` and what it needs.
        rate: Learning rate of Adam, of the bottom and the top that sends.
        points: Numbers of epochs, rising.
        seed: Of split, initialisation, order and noise.
        final: Whether on all training records, with canaries that are attacked, and measured on test records; else a
            tenth of the training records is measured on, and nobody attacks.

    Returns:
        By point the AUC of the top that sends (``sending``) and of the private top (``private``); at the end what the
        auditor's attacks, and who knows the algorithm, read of the canaries.
    """
    of = Problem(**problem)
    data = data_of(of, seed, validation=not final)
    table = Given(data.active.train.ids, torch.full((data.active.train.count,), 0.5, dtype=torch.float64))
    trainer = _trainer(of, data, seed, rate, _defense(channel, table), warm=channel["kind"] == "warm", final=final)
    teller = Teller(channel, trainer, table, seed)
    found: dict[str, list[float]] = {"sending": [], "private": []}
    for stop in sorted({*points, *teller.stops(points[-1])}):
        teller.tell()
        trainer.fit(stop)
        if stop in points:
            found["private"].append(trainer.test["auc"])
            found["sending"].append(trainer.test["sending/auc"])
    return {**found, **(_leaks(trainer, teller) if final else {})}


def _leaks(trainer: Trainer, teller: Teller) -> Result:
    """Return the canaries' AUC by each of the auditor's attacks, with its standard error, and by who knows all else."""
    found = trainer.watch.canaries(PARTNER)
    coins = trainer.active.training_labels.canaries
    assert coins is not None
    among = torch.from_numpy(coins.among(trainer.active.data.train.ids.numpy()))
    return {
        "canaries": {name: [found[name].auc, found[name].low, found[name].high] for name in AUDITORS if name in found},
        "informed": math.nan if teller.read is None else leak_auc(teller.read[among], teller.labels[among]),
    }


class Teller:
    """The label party's side of a channel: what is told from the next epoch on.

    Args:
        channel: ``kind`` and what it needs.
        trainer: The trainer, before it has begun.
        table: The defense that answers; it is not used where a channel has another.
        seed: Of noise and folds.

    Attributes:
        labels: The training labels, with the canaries' coins, float64.
        read: What who knows the algorithm reads so far; ``None``: nobody was asked.
    """

    def __init__(self, channel: Mapping[str, Any], trainer: Trainer, table: Given, seed: int) -> None:
        self._channel, self._trainer, self._table, self._seed = channel, trainer, table, seed
        train, coins = trainer.active.data.train, trainer.active.training_labels.canaries
        known = train if coins is None else coins.label_all(train)
        assert known.labels is not None
        self.labels = known.labels.double()
        self.read: Tensor | None = None
        self._told = 0

    def stops(self, epochs: int) -> list[int]:
        """Return after which epochs something new is told, in a run of so many."""
        if self._channel["kind"] != "noisy" or self._channel["rounds"] == 1:
            return []
        rounds = self._channel["rounds"]
        return [max(1, epochs * number // rounds) for number in range(1, rounds)]

    def tell(self) -> None:
        """Compute what is told from now on; what stays as it was is not computed again."""
        kind = self._channel["kind"]
        if kind not in _TOLD or self._told >= self._channel.get("rounds", 1):
            return
        generator = torch.Generator().manual_seed(derive_seed(self._seed, "told", str(self._told)))
        told = _TOLD[kind](self._channel, self._known(), self.labels, generator)
        self._table.targets = told.targets
        # Scores of several rounds are of equal weight: each has the same μ.
        self.read = told.read if self.read is None else self.read + told.read
        self._told += 1

    def _known(self) -> Tensor:
        """Return what the label party computes opinions from, ``(n, d)``: a constant, components, what crosses now."""
        data = self._trainer.active.data
        partner = self._trainer.passives[PARTNER]
        wide = self._channel.get("features") == "wide"
        sent = wide_features(partner.data, self._seed) if wide else components(partner.data, self._seed, TEACHER)
        parts = [torch.ones(data.train.count, 1), sent.train, components(data, self._seed, TEACHER).train]
        if self._told:
            with partner.evaluating(), torch.no_grad():
                now = partner.bottom(partner.data.train.columns.module_input())
            parts.append((now - now.mean(dim=0)) / now.std(dim=0).clamp(min=1e-3))
        return torch.cat(parts, dim=1).double()


def _noisy(channel: Mapping[str, Any], known: Tensor, labels: Tensor, generator: torch.Generator) -> Told:
    mu = mu_for(channel["auc"]) / math.sqrt(channel["rounds"])
    return noisy_opinions(known, labels, mu=mu, generator=generator)


def _cross_fitted(channel: Mapping[str, Any], known: Tensor, labels: Tensor, generator: torch.Generator) -> Told:
    return cross_fitted_opinions(known, labels, folds=channel["folds"], generator=generator)


def _neighbours(channel: Mapping[str, Any], known: Tensor, labels: Tensor, generator: torch.Generator) -> Told:
    return neighbours_means(known, labels, count=channel["count"], generator=generator, block=BLOCK)


def _sided(channel: Mapping[str, Any], known: Tensor, labels: Tensor, generator: torch.Generator) -> Told:
    # Of the AUC above a half that is promised, the teacher who says which side has its part.
    mu = mu_for(0.5 + TEACHERS_PART * (channel["auc"] - 0.5))
    prior = noisy_opinions(known, labels, mu=mu, generator=generator)
    answers = sided_answers(
        labels,
        prior.targets.clamp(0.02, 0.98),
        delta=total_variation_for(channel["auc"], mu),
        generator=generator,
    )
    return Told(answers.posterior if channel["posterior"] else answers.unbiased, answers.read)


_TOLD = {"noisy": _noisy, "cross-fitted": _cross_fitted, "neighbours": _neighbours, "sided": _sided}


def _defense(channel: Mapping[str, Any], table: Given) -> list[Defense]:
    kind = channel["kind"]
    if kind == "undefended":
        return []
    if kind == "axis-sumkl":
        return [AxisSumKL(detection_error=channel["detection_error"])]
    if kind in ("asymmetric", "warm"):
        corrected = channel.get("corrected", "targets")
        error = channel["detection_error"]
        return [AsymmetricResponse(detection_error=error, epsilon=EPSILON, corrected=corrected)]
    return [table]


def warm_up(bottom: nn.Module, data: VerticalData, seed: int) -> None:
    """Train a bottom, without labels, to tell the principal components of its columns from columns half spoiled.

    A quarter of the entries of every record are replaced by those of another record: what is learned is which values
    come together. The partner does it alone.
    """
    partner = data[PARTNER]
    columns, wanted = partner.train.columns, components(partner, seed).train
    with PartyRandom(derive_seed(seed, "warm-up")):
        decoder = nn.Linear(WIDTH, wanted.shape[1])
        optimizer = torch.optim.Adam([*bottom.parameters(), *decoder.parameters()], lr=1e-3, fused=True)
        for _ in range(WARM_EPOCHS):
            for rows in torch.randperm(columns.count).split(HEAD_BATCH):
                own, other = columns.rows(rows), columns.rows(torch.randint(columns.count, rows.shape))
                spoiled = type(own)(*(_mixed(*pair) for pair in zip(own, other, strict=True)))
                optimizer.zero_grad()
                functional.mse_loss(decoder(bottom(spoiled.module_input())), wanted[rows]).backward()
                optimizer.step()


def _mixed(own: Tensor, other: Tensor) -> Tensor:
    return torch.where(torch.rand(own.shape) < 0.25, other, own)


def silent(
    *,
    problem: Mapping[str, Any],
    features: str,
    hidden: int,
    rate: float,
    points: Sequence[int],
    seed: int,
    final: bool,
) -> Result:
    """Train a head of the label party's on its own columns and on what was sent to it once; nothing goes back.

    Args:
        problem: As :func:`train`.
        features: ``"none"``, ``"random"``, ``"components"`` or ``"wide"``.
        hidden: Units of a hidden layer; 0: none.
        rate: Learning rate of Adam.
        points: Numbers of epochs, rising.
        seed: Of split, initialisation and order.
        final: As :func:`train`.

    Returns:
        By point the AUC, ``private``.
    """
    data = data_of(Problem(**problem), seed, validation=not final)
    own, partner = data.active, data[PARTNER]
    own_columns = own.train.columns.numeric, own.test.columns.numeric
    sent = _SENT[features](partner, seed) if features in _SENT else Free(*(one[:, :0] for one in own_columns))
    train_columns, test_columns = (torch.cat(pair, dim=1) for pair in zip(sent, own_columns, strict=True))
    return {"private": _heads(train_columns, test_columns, own, hidden=hidden, rate=rate, points=points, seed=seed)}


_SENT: Mapping[str, Callable[[PartyData, int], Free]] = {
    "random": random_layers,
    "components": components,
    "wide": wide_features,
}


def _heads(
    columns: Tensor, tests: Tensor, own: PartyData, *, hidden: int, rate: float, points: Sequence[int], seed: int
) -> list[float]:
    labels, truth = own.train.labels, own.test.labels
    assert labels is not None
    assert truth is not None
    found = []
    with PartyRandom(derive_seed(seed, "head")):
        width = columns.shape[1]
        head = (
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1)) if hidden else nn.Linear(width, 1)
        )
        optimizer = torch.optim.Adam(head.parameters(), lr=rate, fused=True)
        for epoch in range(1, points[-1] + 1):
            for rows in torch.randperm(len(labels)).split(HEAD_BATCH):
                optimizer.zero_grad()
                logits = head(columns[rows])[:, 0]
                functional.binary_cross_entropy_with_logits(logits, labels[rows].float()).backward()
                optimizer.step()
            if epoch in points:
                with torch.no_grad():
                    found.append(leak_auc(head(tests)[:, 0], truth))
    return found


def adam(rate: float) -> partial[Optimizer]:
    """Return what makes Adam at this rate."""
    return partial(_adam, rate=rate)


def _adam(parameters: Iterable[nn.Parameter], *, rate: float) -> Optimizer:
    return torch.optim.Adam(parameters, lr=rate, fused=True)


def _trainer(
    problem: Problem,
    data: VerticalData,
    seed: int,
    rate: float,
    defenses: Sequence[Defense],
    *,
    warm: bool,
    final: bool,
) -> Trainer:
    partner, own = data[PARTNER], data.active
    bottom = bottom_of(problem, partner, seed)
    if warm:
        warm_up(bottom, data, seed)
    tops = []
    for number in range(2):
        with PartyRandom(derive_seed(seed, "initialisation", own.name, str(number))):
            tops.append(WideDeepTop(WIDTH, own.width, own.field_sizes))
    top, private = tops
    return Trainer(
        ActiveParty(own, top, private_top=private, optimizer=adam(rate)),
        {PARTNER: PassiveParty(partner, bottom, optimizer=adam(rate))},
        defenses=defenses,
        batch_size=problem.batch_size,
        seed=seed,
        noise_seed_for_experiments=seed,
        audit=final,
        canaries=problem.canaries if final else None,
        evaluate_every=1000,
    )
