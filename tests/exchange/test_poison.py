"""A peer that sends finite numbers which are no good: what can be noticed is refused before a weight changes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from splitvfl.defenses import Isotropic
from splitvfl.errors import HookError, ProtocolError
from splitvfl.exchange.evaluation import EvaluationPlan, active_evaluation
from splitvfl.exchange.prediction import active_prediction, passive_prediction
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.hooks import all_finite_together
from splitvfl.learning.optimizers import PerParameter
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from tests.builders import ACTIVE, WIDTH, active_party, awaited, party_data, passive_party

ROWS = torch.arange(6)
N = len(ROWS)
LARGEST = torch.finfo(torch.float32).max


def label_party(*weights: float) -> ActiveParty:
    """A party whose top is linear layers without bias, each filled with one weight, of widths 6, 3 and 1."""
    layers = [nn.Linear(6, 3, bias=False), nn.Linear(3, 1, bias=False)]
    for layer, weight in zip(layers, weights, strict=True):
        nn.init.constant_(layer.weight, weight)
    party = ActiveParty(party_data(ACTIVE, width=2, task="binary"), nn.Sequential(*layers))
    party.connect("telecom")
    return party


def stranger(name: str, receiver: str, kind: str, payload: Tensor, *, listens: bool = True) -> Half:
    yield Outbox(
        send=(Message(name, receiver, kind, 3, payload),),
        wait=(awaited(receiver, "gradient", 3, shape=(N, WIDTH)),) if listens else (),
    )


def state(party: Party) -> Any:
    return copy.deepcopy(
        (party.module.state_dict(), None if party.weights.optimizer is None else party.weights.optimizer.state_dict())
    )


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def refused(party: Party, half: Half, peer: Half, complaint: str, *, peer_name: str) -> None:
    """The half refuses, has sent nothing after what it refused, and changed nothing."""
    before = state(party)
    crossed: list[Message] = []
    with pytest.raises(ProtocolError, match=complaint):
        converse({party.name: half, peer_name: peer}, record=crossed.append)
    assert equal(before, state(party))
    assert not [one for one in crossed if one.kind == "gradient" and one.sender == party.name]


def to_active(party: ActiveParty, payload: Tensor, complaint: str) -> None:
    half = active_step(party, party.train_batch(ROWS), 3)
    refused(party, half, stranger("telecom", ACTIVE, "activation", payload), complaint, peer_name="telecom")


def test_an_activation_that_makes_the_loss_infinite_is_refused() -> None:
    to_active(
        label_party(2.0, 1.0), torch.full((N, WIDTH), LARGEST), r"outputs of step 3 are up to inf, .* telecom sent"
    )


@pytest.mark.parametrize("second", [0.0, 1.0])
def test_whether_an_activation_is_refused_says_nothing_of_labels(second: float) -> None:
    """Two losses of 3e38 are infinite together, one is not: who knows the first label would read the second."""
    party = label_party(1.0, 1.0)
    assert party.data.train.labels is not None
    party.data.train.labels[:2] = torch.tensor([0.0, second])
    with torch.no_grad():
        next(party.top.parameters())[:, WIDTH:] = 0
    sent = torch.zeros(N, WIDTH)
    sent[:2, 0] = LARGEST / 3.2  # three hidden units add up to .94 of the largest number
    to_active(party, sent, r"outputs of step 3 are up to 3.19e\+38, .* telecom sent")


def test_an_activation_that_makes_only_gradients_overflow_is_refused() -> None:
    """Outputs are near 0 and the loss is ln 2, but the first layer's gradient is 1/12 · 100 · 3e38 and more."""
    party = label_party(0.0, 100.0)
    to_active(party, torch.full((N, WIDTH), LARGEST), r"gradients of step 3 are NaN or infinite, .* telecom sent")


def ruined() -> ActiveParty:
    """With activations of 0 its outputs are 0 and its weights' gradients finite; the activation's is about 1e49."""
    party = label_party(1e25, 1e25)
    with torch.no_grad():
        next(party.top.parameters())[:, WIDTH:] = 0
    return party


def test_a_cut_gradient_that_overflows_is_not_sent() -> None:
    to_active(ruined(), torch.zeros(N, WIDTH), r"gradients of step 3 are NaN or infinite, .* telecom sent")


def test_a_cut_gradient_that_overflows_is_not_sent_by_a_defense_either() -> None:
    party = ruined()
    party.cuts["telecom"].gradient.attach(Isotropic(sigma=1.0), noise_seed_for_experiments=0)
    before = state(party)
    half = active_step(party, party.train_batch(ROWS), 3)
    with pytest.raises(HookError, match="isotropic at step 3 wants to send NaN or infinite values"):
        converse({ACTIVE: half, "telecom": stranger("telecom", ACTIVE, "activation", torch.zeros(N, WIDTH))})
    assert equal(before, state(party))


def test_a_large_activation_that_does_no_harm_is_taken() -> None:
    party = label_party(1.0, 1.0)
    half = active_step(party, party.train_batch(ROWS), 3)
    results = converse(
        {ACTIVE: half, "telecom": stranger("telecom", ACTIVE, "activation", torch.full((N, WIDTH), 1e3))}
    )
    assert math.isfinite(results[ACTIVE])


@pytest.mark.parametrize("optimizer", [None, PerParameter()])
def test_a_gradient_that_makes_a_weights_gradient_overflow_is_refused(optimizer: Any) -> None:
    party = passive_party("telecom", optimizer=optimizer)
    half = passive_step(party, party.train_batch(ROWS), 3, active=ACTIVE)
    peer = stranger(ACTIVE, "telecom", "gradient", torch.full((N, WIDTH), LARGEST), listens=False)
    complaint = f"gradients of the weights of telecom at step 3 overflow, with what {ACTIVE} sent"
    refused(party, half, peer, complaint, peer_name=ACTIVE)


def spoiled(name: str = "telecom") -> PassiveParty:
    party = passive_party(name)
    with torch.no_grad():
        next(party.bottom.parameters()).fill_(math.nan)
    return party


@pytest.mark.parametrize("phase", ["training", "prediction"])
@pytest.mark.parametrize("defended", [False, True])
def test_a_spoiled_bottom_model_is_noticed_before_anything_is_sent(phase: str, defended: bool) -> None:
    class Halve:
        crossing = "activation"

        def __call__(self, message: Tensor, secrets: Any, /) -> Tensor:
            return message / 2

    party = spoiled()
    if defended:
        party.activation.attach(Halve())
    batch = party.train_batch(ROWS)
    half = (
        passive_step(party, batch, 3, active=ACTIVE)
        if phase == "training"
        else passive_prediction(party, batch, 3, active=ACTIVE, outputs=1)
    )
    with pytest.raises(ProtocolError, match=r"the activation of step 3 of telecom holds NaN .* was not sent"):
        next(half)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(value: float) -> None:
    party = passive_party("telecom")
    half = passive_prediction(party, party.train_batch(ROWS), 3, active=ACTIVE, outputs=1)
    next(half)
    with pytest.raises(ProtocolError, match=f"scores of step 3 from {ACTIVE} hold NaN or infinite"):
        half.send({ACTIVE: Message(ACTIVE, "telecom", "scores", 3, torch.tensor([0.0, value, 0, 0, 0, 0]))})


@pytest.mark.parametrize("exchange", ["evaluation", "prediction"])
@pytest.mark.parametrize(
    ("value", "complaint"), [(LARGEST, "outputs of bank on what telecom sent"), (math.nan, "telecom")]
)
def test_activations_that_spoil_the_outputs_are_refused_and_nothing_is_published(
    exchange: str, value: float, complaint: str
) -> None:
    party = label_party(2.0, 1.0)
    if exchange == "prediction":
        half, kind, rows = active_prediction(party, party.test_batch(ROWS), 3), "activation", N
    else:
        half = active_evaluation(party, EvaluationPlan(range(0), N), step=3, epoch=1)
        kind, rows = "evaluation", N
    next(half)
    message = Message("telecom", ACTIVE, kind, 3, torch.full((rows, WIDTH), value))
    with pytest.raises(ProtocolError, match=f"{complaint}.* NaN or infinite"):
        half.send({"telecom": message})
    assert party.weights.best.epoch is None


# --- the check itself


NUMBERS = st.floats(width=32) | st.sampled_from([LARGEST, -LARGEST])


@given(st.lists(st.lists(NUMBERS, max_size=4), max_size=4))
def test_tensors_are_finite_together_if_every_entry_is(rows: list[list[float]]) -> None:
    tensors = [torch.tensor(row, dtype=torch.float32) for row in rows]
    assert all_finite_together(tensors) == all(math.isfinite(entry) for row in rows for entry in row)


@pytest.mark.parametrize("value", [1.0, LARGEST, math.inf, math.nan])
def test_sparse_gradients_are_looked_into(value: float) -> None:
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert table.weight.grad is not None
    table.weight.grad._values()[1, 0] = value
    assert all_finite_together([torch.ones(2), table.weight.grad]) == math.isfinite(value)


def test_half_precision_and_whole_numbers_may_be_among_them() -> None:
    tensors = [torch.full((9,), 60_000.0, dtype=torch.float16), torch.ones(2, dtype=torch.int64), torch.ones(3)]
    assert all_finite_together(tensors)
    assert not all_finite_together([*tensors, torch.tensor([math.inf], dtype=torch.bfloat16)])
    assert all_finite_together([])


def test_frozen_and_unused_weights_do_not_matter() -> None:
    party = active_party()
    party.weights.clear_gradients()
    assert party.weights.has_finite_gradients()
    next(party.top.parameters()).grad = torch.full_like(next(party.top.parameters()), math.nan)
    assert not party.weights.has_finite_gradients()
