"""What a label party reads of a partner's columns if its gradients teach the partner's model to show them.

Feature-space hijacking (Pasquini, Ateniese and Bernaschi, "Unleashing the Tiger", CCS 2021), by a label party that
knows the columns of some records: a network of its own learns to tell these columns from activations, and what comes
back to the partner is the gradient of that network's error in place of the loss's. ``crafted`` sends nothing else;
``quiet`` sends the loss's gradient for all records that it does not know, and rows no longer than the longest of these
for those that it does. In the end ridge regression from activations of the known records, and their squares, to columns
is judged by the others: the share of variance, mean over columns.
Run ``python -m scripts.bench.hijacking [--quick] [--json OUT]``. It takes 5 minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn

from scripts.bench.measuring import Result, main
from splitvfl.app.trainer import Trainer
from splitvfl.attacks import RidgeAttack
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.exchange import split_step
from splitvfl.exchange.receiver_clips import NO_CLIPS, ReceiverClips
from splitvfl.exchange.split import Split
from splitvfl.hooks import Weighed
from splitvfl.learning.tasks import task_for
from splitvfl.models import MLP
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.penalties import AdversarialReconstruction

RECORDS, TESTED, KNOWN, BATCH, COLUMNS, OWN = 1200, 400, 60, 60, 5, 2
EPOCHS, SEEDS = 40, 5
QUICK_EPOCHS, QUICK_SEEDS = 3, 1

Sent = Literal["honest", "crafted", "quiet"]


@dataclass(frozen=True)
class Case:
    """What the passive party does about it.

    Attributes:
        name: In words.
        width: Outputs of its bottom model.
        clip: Largest norm of a record's row of the gradient that it uses (``exchange.receiver_clips``).
        penalty: Weight of ``adversarial-reconstruction``.
        sent: What the label party sends, in turn.
    """

    name: str
    width: int = 4
    clip: float | None = None
    penalty: float = 0.0
    sent: tuple[Sent, ...] = ("honest", "crafted")


CASES = (
    Case("nothing", sent=("honest", "crafted", "quiet")),
    Case("2 outputs in place of 4", width=2),
    Case("receiver_clips 1.0", clip=1.0),
    Case("adversarial-reconstruction 0.3", penalty=0.3),
    Case("both of these", clip=1.0, penalty=0.3),
)


def trainer(seed: int, case: Case) -> Trainer:
    """Return a training from the start, in which the passive party's own auditor reads what it sends."""
    draw = torch.Generator().manual_seed(seed)
    factor = torch.randn(RECORDS + TESTED, 1, generator=draw)
    own, theirs = (torch.randn(len(factor), width, generator=draw) + factor for width in (OWN, COLUMNS))
    labels = (factor[:, 0] + 0.7 * torch.randn(len(factor), generator=draw) > 0.4).float()
    torch.manual_seed(seed)
    penalties = [Weighed(AdversarialReconstruction(), case.penalty)] if case.penalty else []
    top, bottom = MLP(case.width + OWN, [5, 1], final_activation=False), MLP(COLUMNS, [6, case.width])
    return Trainer(
        ActiveParty(_party("bank", own, labels), top, task=task_for("binary")),
        {"telecom": PassiveParty(_party("telecom", theirs, None), bottom, penalties=penalties)},
        exchange=Split(receiver_clips=NO_CLIPS if case.clip is None else ReceiverClips(coefficient=case.clip)),
        attacks=[RidgeAttack(known_share=KNOWN / RECORDS)],
        batch_size=BATCH,
        seed=seed,
        audit=False,
    )


def _party(name: str, numbers: Tensor, labels: Tensor | None) -> PartyData:
    every = Records(torch.arange(len(numbers)), Columns.of(numbers), labels)
    names = tuple(f"{name} {place}" for place in range(numbers.shape[1]))
    train, test = every.rows(torch.arange(RECORDS)), every.rows(torch.arange(RECORDS, len(numbers)))
    return PartyData(name, names, names, (), train, test)


@dataclass
class Crafting:
    """A label party that sends what teaches the partner's model to show its columns, of records ``0`` to ``KNOWN``.

    Attributes:
        known: Their columns.
        width: Outputs of the partner's model.
        quiet: Whether it keeps to what looks like the loss's gradient.
        zero: For each step the share of records whose row is all zeros.
    """

    known: Tensor
    width: int
    quiet: bool
    zero: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the network of its own."""
        self._reader = nn.Sequential(nn.Linear(self.width, 32), nn.Tanh(), nn.Linear(32, self.known.shape[1]))
        self._optimizer = torch.optim.Adam(self._reader.parameters(), 3e-3)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send crafted gradients in the block."""
        original = split_step.loss_and_gradients

        def crafted(party: ActiveParty, inbox: Any, batch: Records, step: int, **more: Any) -> Any:
            value, honest = original(party, inbox, batch, step, **more)
            (message,), (gradient,) = inbox.values(), honest.values()
            sent = self._instead(message.payload, gradient, batch.ids)
            self.zero.append((sent == 0).all(dim=1).double().mean().item())
            return value, dict.fromkeys(honest, sent)

        with mock.patch.object(split_step, "loss_and_gradients", crafted):
            yield

    def _instead(self, activation: Tensor, honest: Tensor, ids: Tensor) -> Tensor:
        rows = (ids < KNOWN).nonzero()[:, 0]
        sent = honest.clone() if self.quiet else torch.zeros_like(honest)
        if not len(rows):
            return sent
        leaf, wanted = activation[rows].detach().clone().requires_grad_(), self.known[ids[rows]]
        for _ in range(3):
            self._optimizer.zero_grad()
            nn.functional.mse_loss(self._reader(leaf.detach()), wanted).backward()
            self._optimizer.step()
        (crafted,) = torch.autograd.grad(nn.functional.mse_loss(self._reader(leaf), wanted), leaf)
        if self.quiet:
            crafted = nn.functional.normalize(crafted, dim=1) * honest.norm(dim=1).max()
        sent[rows] = crafted
        return sent


def read_by_ridge(made: Trainer) -> float:
    """Return the share of variance that is read of columns of records that the label party does not know."""
    party = made.passives["telecom"]
    columns = party.data.train.columns.numeric
    with torch.no_grad():
        activation = party.bottom(columns)
    inputs = torch.cat([activation, activation**2, torch.ones(len(columns), 1)], dim=1)
    known = inputs[:KNOWN]
    weights = torch.linalg.solve(known.T @ known + 1e-2 * torch.eye(inputs.shape[1]), known.T @ columns[:KNOWN])
    error = (inputs[KNOWN:] @ weights - columns[KNOWN:]).var(dim=0)
    return float((1.0 - error / columns[KNOWN:].var(dim=0)).mean())


@dataclass(frozen=True)
class Run:
    """What one training came to: shares of variance, the auditor's at most, the test AUC, rows that were all zeros."""

    before: float
    read: float
    auditor: float
    auc: float
    zero: float


def run(seed: int, case: Case, sent: Sent, epochs: int) -> Run:
    """Train once."""
    made = trainer(seed, case)
    before = read_by_ridge(made)
    torch.manual_seed(1000 + seed)
    known = made.passives["telecom"].data.train.columns.numeric[:KNOWN]
    crafting = Crafting(known, case.width, quiet=sent == "quiet")
    if sent == "honest":
        made.fit(epochs)
    else:
        with crafting.sending():
            made.fit(epochs)
    (found,) = made.column_readings("telecom")
    return Run(before, read_by_ridge(made), found.most, made.test["auc"], mean(crafting.zero or [0.0]))


def measure(quick: bool) -> list[Result]:
    """Return what is read behind each case, of honest and of crafted gradients."""
    epochs, seeds = (QUICK_EPOCHS, QUICK_SEEDS) if quick else (EPOCHS, SEEDS)
    found: list[Result] = []
    honest: list[Run] = []  # every case begins with them
    for case in CASES:
        for sent in case.sent:
            runs = [run(seed, case, sent, epochs) for seed in range(seeds)]
            if case == CASES[0] and sent == "honest":
                found.append(_read("before training (one-way)", [one.before for one in runs], ""))
            if sent == "honest":
                honest = runs
            auditor = [one.auditor for one in runs]
            gains = [one.read - other.read for one, other in zip(runs, honest, strict=True)]
            note = (
                f"its auditor says {mean(auditor):.2f} ({min(auditor):.2f} to {max(auditor):.2f}); "
                f"more than honest by {min(gains):.2f} to {max(gains):.2f}, in {sum(gain > 0 for gain in gains)}; "
                f"test AUC {mean(one.auc for one in runs):.3f}; rows of zeros {mean(one.zero for one in runs):.0%}"
            )
            found.append(_read(f"{case.name}, {sent}", [one.read for one in runs], note))
    return found


def _read(name: str, shares: Sequence[float], note: str) -> Result:
    spread = f"mean of {len(shares)} seeds, {min(shares):.2f} to {max(shares):.2f}"
    return Result(name, mean(shares), "of variance", None, note="; ".join(filter(None, [spread, note])))


if __name__ == "__main__":
    sys.exit(main("what crafted gradients make a partner's model show", measure))
