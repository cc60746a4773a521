"""Small parties, whose columns, labels and models each follow from a name and a seed alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import NO_RECORDS, Columns, PartyData, Records
from splitvfl.learning.tasks import Task, task_for
from splitvfl.messaging.conversation import Expected, converse
from splitvfl.messaging.messages import FLOATS
from splitvfl.models import MLP, Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty

ACTIVE = "bank"
WIDTH = 4  # of every cut


def generator(*purpose: object) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr(purpose).encode()))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def record_ids(count: int, *, first: int = 0) -> Tensor:
    """Ids in no order, some below zero and some beyond 2**40: nothing that could be mistaken for a row number."""
    numbers = torch.arange(first, first + count)
    return torch.where(numbers % 3 == 0, -7 * numbers - 5, 13 * numbers + (numbers % 3 == 1) * 2**41)


def columns_of(name: str, part: str, count: int, width: int) -> Tensor:
    """Normal columns that share a factor with everybody's columns and with the labels."""
    factor = torch.randn(count, 1, generator=generator("factor", part))
    return torch.randn(count, width, generator=generator(name, part)) + factor


def labels_of(part: str, count: int, task: str) -> Tensor:
    factor = torch.randn(count, 1, generator=generator("factor", part))[:, 0]
    noisy = factor + 0.7 * torch.randn(count, generator=generator("labels", part))
    if task == "binary":
        return (noisy > 0.4).float()
    if task == "multiclass":
        return torch.bucketize(noisy, torch.tensor([-0.5, 0.5]))
    return noisy


def party_data(
    name: str, *, width: int, train: int = 48, test: int = 24, task: str | None = None, unit: bool = False
) -> PartyData:
    """Columns of one party; with labels if there is a task. ``unit``: columns in [0, 1]."""
    parts = {}
    for first, (part, count) in zip((0, 10_000), (("train", train), ("test", test)), strict=True):
        columns = columns_of(name, part, count, width)
        parts[part] = Records(
            record_ids(count, first=first),
            Columns.of(torch.sigmoid(columns) if unit else columns),
            None if task is None else labels_of(part, count, task),
        )
    names = tuple(f"{name}{number}" for number in range(width))
    return PartyData(name, names, names, (), parts["train"], parts["test"], divided_by_ids=True)


def seeded(purpose: str, build: Any) -> nn.Module:
    """Return what ``build()`` makes, with initial weights that depend on the purpose only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(purpose.encode()))
        module: nn.Module = build()
    return module


def bottom_model(name: str, *, width: int = 5, dropout: float = 0.0) -> nn.Module:
    return seeded(name, lambda: MLP(width, [6, WIDTH], dropout=dropout))


def top_model(passives: int = 1, *, own: int = 2, outputs: int = 1, dropout: float = 0.0) -> nn.Module:
    inputs = passives * WIDTH + own
    return seeded("top", lambda: MLP(inputs, [5, outputs], final_activation=False, dropout=dropout))


def awaited(sender: str, kind: str = "activation", step: int = 0, *, shape: tuple[Any, ...] = (1,)) -> Expected:
    """What a half in a test waits for, in any dtype of floats."""
    return Expected(sender, kind, step, FLOATS, shape)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def passive_party(name: str, *, dropout: float = 0.0, optimizer: Any = None, **sizes: Any) -> PassiveParty:
    options = {} if optimizer is None else {"optimizer": optimizer}
    return PassiveParty(party_data(name, width=5, **sizes), bottom_model(name, dropout=dropout), **options)


def active_party(
    passives: int = 1, *, task: str = "binary", dropout: float = 0.0, optimizer: Any = None, **sizes: Any
) -> ActiveParty:
    what: Task = task_for(task, 3)
    data = party_data(ACTIVE, width=2, task=task, **sizes)
    options = {} if optimizer is None else {"optimizer": optimizer}
    return ActiveParty(data, top_model(passives, outputs=what.outputs, dropout=dropout), task=what, **options)


def small_trainer(
    names: Sequence[str] = ("telecom",),
    *,
    task: str = "binary",
    dropout: float = 0.0,
    optimizer: Any = None,
    sizes: dict[str, int] | None = None,
    **settings: Any,
) -> Trainer:
    """A trainer over fresh parties: called twice, it gives equal ones that share nothing.

    No auditor watches unless a test says ``audit=True``: it would take three quarters of a small run's time.
    """
    common: dict[str, Any] = {"dropout": dropout, "optimizer": optimizer, **(sizes or {})}
    passives = {name: passive_party(name, **common) for name in names}
    settings = {"batch_size": 16, "audit": False, **settings}
    return Trainer(active_party(len(names), task=task, **common), passives, **settings)


def linear_trainer(*, features: int = 3, outputs: int = 1, bias: bool = False, **settings: Any) -> Trainer:
    """Vertical logistic (or softmax) regression, columns in [0, 1]."""
    task = "binary" if outputs == 1 else "multiclass"
    bottom = seeded("linear", lambda: Linear(features, outputs, bias=bias))
    if bias:
        nn.init.constant_(bottom.bias, 0.3)  # type: ignore[arg-type]
    top = seeded("linear top", lambda: LinearTop(1, outputs, active_inputs=2))
    passive = PassiveParty(party_data("telecom", width=features, unit=True), bottom)
    active = ActiveParty(party_data(ACTIVE, width=2, task=task, unit=True), top, task=task_for(task, 3))
    return Trainer(active, {"telecom": passive}, **{"batch_size": 16, **settings})


def take_step(trainer: Trainer, rows: Tensor) -> None:
    """Take one training step of all parties, on the records at these positions, without what surrounds it in a run."""
    parties = (trainer.active, *trainer.passives.values())
    batches = {party.name: party.train_batch(rows) for party in parties}
    trainer.labels_of.turn_to(batches[trainer.active.name])
    halves = {name: side.step(batches.get(name, NO_RECORDS), trainer.step) for name, side in trainer._sides.items()}
    turns = {party.name: party.random for party in parties}
    converse(halves, turns=turns, record=trainer.record)
    trainer.training.step += 1


def weights(trainer: Trainer) -> dict[str, Tensor]:
    """Every weight of every party, copied."""
    return {
        f"{party.name}/{name}": weight.detach().clone()
        for party in (trainer.active, *trainer.passives.values())
        for name, weight in party.module.state_dict().items()
    }


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are equal to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
