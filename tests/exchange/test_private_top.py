"""A private top predicts, and nothing that crosses depends on it: messages are the same to the bit without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl import conversation, training
from splitvfl.defenses import AxisSumKL, GaussianIR, RandomisedResponse
from splitvfl.hooks import Defense
from splitvfl.messages import Message
from splitvfl.models import MLP
from splitvfl.party import ActiveParty
from splitvfl.schedule import EarlyStopping
from splitvfl.tasks import task_for
from splitvfl.training import Trainer
from tests.builders import ACTIVE, WIDTH, party_data, passive_party, same, seeded, sgd, top_model, weights


def private_model(passives: int = 1, *, outputs: int = 1, dropout: float = 0.0) -> nn.Module:
    inputs = passives * WIDTH + 2
    return seeded("private top", lambda: MLP(inputs, [7, outputs], final_activation=False, dropout=dropout))


def trainer_with(
    private_top: nn.Module | None,
    names: Sequence[str] = ("telecom",),
    *,
    task: str = "binary",
    dropout: float = 0.0,
    optimizer: Any = sgd,
    top: nn.Module | None = None,
    **settings: Any,
) -> Trainer:
    what = task_for(task, 3)
    top = top or top_model(len(names), outputs=what.outputs, dropout=dropout)
    data = party_data(ACTIVE, width=2, task=task)
    active = ActiveParty(data, top, private_top=private_top, task=what, optimizer=optimizer)
    passives = {name: passive_party(name, dropout=dropout, optimizer=optimizer) for name in names}
    return Trainer(active, passives, **{"batch_size": 16, "noise_seed_for_experiments": 4, **settings})


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Every message between parties from now on, those of evaluations and verdicts too."""
    messages: list[Message] = []
    recording = partial(conversation.converse, record=messages.append)
    monkeypatch.setattr(training, "converse", lambda halves, **options: recording(halves, turns=options.get("turns")))
    return messages


def taken(messages: list[Message]) -> list[tuple[Any, ...]]:
    """Return what has crossed, as bytes and in order, and forget it."""
    found = [
        (one.sender, one.receiver, one.kind, one.step, str(one.payload.dtype), _bytes(one.payload)) for one in messages
    ]
    messages.clear()
    return found


def _bytes(payload: Tensor) -> bytes:
    return bytes(payload.contiguous().flatten().view(torch.uint8).tolist())


# Made anew for each run: some keep the directions of gradients that they have seen.
DEFENSES: dict[str, Callable[[], list[Defense]]] = {
    "none": list,
    "labels and activations": lambda: [RandomisedResponse(epsilon=1.0), GaussianIR(clip=2.0, sigma=0.3)],
    "gradients": lambda: [AxisSumKL(detection_error=0.4)],
}


@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize("names", [("telecom",), ("telecom", "shop")])
@pytest.mark.parametrize("stopping", [None, EarlyStopping(patience=2, validation_every=4)])
def test_messages_are_the_same_to_the_bit_with_and_without_it(
    crossed: list[Message], defense: str, names: tuple[str, ...], stopping: EarlyStopping | None
) -> None:
    found = []
    for private in (None, private_model(len(names), dropout=0.4)):
        trainer = trainer_with(
            private, names, dropout=0.3, defenses=DEFENSES[defense](), early_stopping=stopping, evaluate_every=2
        )
        trainer.fit(6)
        found.append((taken(crossed), weights(trainer), trainer.step, trainer.kept_epoch))
    (plain, plain_weights, *plain_end), (beside, beside_weights, *beside_end) = found
    assert len({kind for _, _, kind, *_ in plain}) >= 4  # agreement, activation, gradient, evaluation, verdict
    assert plain == beside
    assert same(plain_weights, beside_weights)
    assert plain_end == beside_end
