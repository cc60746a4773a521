"""One training step between parties is one training step of the unsplit model; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from splitvfl.data.columns import PartyData
from splitvfl.defenses import GaussianIR, Isotropic, MaxNorm
from splitvfl.errors import PrivacyError, ProtocolError
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.learning.sampling import add_normal
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message, decode, encode
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.builders import ACTIVE, WIDTH, active_party, awaited, passive_party, sgd

ROWS = torch.tensor([4, 0, 31, 12, 7, 9])
N = len(ROWS)


def parties(names: tuple[str, ...] = ("telecom",)) -> tuple[ActiveParty, dict[str, PassiveParty]]:
    active = active_party(len(names), optimizer=sgd)
    for name in names:
        active.connect(name)
    return active, {name: passive_party(name, optimizer=sgd) for name in names}


def train(
    active: ActiveParty, passives: dict[str, PassiveParty], *, step: int = 0, record: Any = None
) -> dict[str, Any]:
    halves: dict[str, Half] = {
        name: passive_step(party, party.train_batch(ROWS), step, active=ACTIVE) for name, party in passives.items()
    }
    halves[ACTIVE] = active_step(active, active.train_batch(ROWS), step)
    return converse(halves, record=record)


def unsplit(active: ActiveParty, passives: dict[str, PassiveParty]) -> tuple[Tensor, list[Tensor]]:
    """Loss of the same weights as one model, and the activations, in its graph."""
    activations = [party.bottom(party.data.train.columns.numeric[ROWS]) for party in passives.values()]
    for activation in activations:
        activation.retain_grad()
    logits = active.top(torch.cat([*activations, active.data.train.columns.numeric[ROWS]], dim=1))
    labels = active.data.train.labels
    assert labels is not None
    return functional.binary_cross_entropy_with_logits(logits[:, 0], labels[ROWS]), activations


@pytest.mark.parametrize("names", [("telecom",), ("telecom", "shop"), ("shop", "telecom", "post")])
def test_steps_are_the_unsplit_models_to_the_bit(names: tuple[str, ...]) -> None:
    (active, passives), (top, bottoms) = parties(names), parties(names)
    whole = [top, *bottoms.values()]
    for step in range(3):
        results = train(active, passives, step=step)
        loss, _ = unsplit(top, bottoms)
        for party in whole:
            party.weights.clear_gradients()
        loss.backward()
        for party in whole:
            party.weights.update()
        assert results == {ACTIVE: loss.item(), **dict.fromkeys(names)}
    for left, right in zip((active, *passives.values()), whole, strict=True):
        for one, other in zip(left.module.parameters(), right.module.parameters(), strict=True):
            assert torch.equal(one, other)


def test_steps_in_bfloat16_are_the_unsplit_models_to_the_bit_and_halve_the_messages() -> None:
    names = ("telecom", "shop")
    (active, passives), (top, bottoms) = parties(names), parties(names)
    for party in (active, *passives.values()):
        party.prepare(seed=0, device=torch.device("cpu"), autocast=torch.bfloat16)
    crossed: list[Message] = []
    for step in range(3):
        results = train(active, passives, step=step, record=lambda one: crossed.append(decode(encode(one))))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            activations = [party.bottom(party.data.train.columns.numeric[ROWS]) for party in bottoms.values()]
            logits = top.top(torch.cat([*activations, top.data.train.columns.numeric[ROWS].bfloat16()], dim=1))
        labels = top.data.train.labels
        assert labels is not None
        loss = functional.binary_cross_entropy_with_logits(logits[:, 0].float(), labels[ROWS])
        for party in (top, *bottoms.values()):
            party.weights.clear_gradients()
        loss.backward()
        for party in (top, *bottoms.values()):
            party.weights.update()
        assert results[ACTIVE] == loss.item()
    assert {one.payload.dtype for one in crossed} == {torch.bfloat16}
    for left, right in zip((active, *passives.values()), (top, *bottoms.values()), strict=True):
        assert all(map(torch.equal, left.module.parameters(), right.module.parameters()))


def test_what_crosses_is_activations_and_their_gradients_and_nothing_else() -> None:
    active, passives = parties(("telecom", "shop"))
    loss, activations = unsplit(*parties(("telecom", "shop")))
    loss.backward()
    crossed: list[Message] = []
    train(active, passives, step=5, record=crossed.append)
    addresses = [(one.sender, one.receiver, one.kind, one.step) for one in crossed]
    assert sorted(addresses) == [
        (ACTIVE, "shop", "gradient", 5),
        (ACTIVE, "telecom", "gradient", 5),
        ("shop", ACTIVE, "activation", 5),
        ("telecom", ACTIVE, "activation", 5),
    ]
    for number, name in enumerate(passives):
        sent = {one.kind: one.payload for one in crossed if name in (one.sender, one.receiver)}
        assert torch.equal(sent["activation"], activations[number])
        assert torch.equal(sent["gradient"], activations[number].grad)  # type: ignore[arg-type]
    assert not any(one.payload.requires_grad or one.payload.grad_fn is not None for one in crossed)


def test_a_top_that_ignores_a_party_sends_it_zeros() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, joined: Tensor) -> Tensor:
            result: Tensor = self.linear(joined[:, -2:].detach())
            return result

    active, passives = parties()
    active = ActiveParty(active.data, First())
    active.connect("telecom")
    crossed: list[Message] = []
    before = [weight.detach().clone() for weight in passives["telecom"].bottom.parameters()]
    train(active, passives, record=crossed.append)
    assert torch.equal(crossed[-1].payload, torch.zeros(N, WIDTH))
    assert all(map(torch.equal, before, passives["telecom"].bottom.parameters()))


# --- defenses


def test_gradient_defenses_change_what_is_sent_and_not_what_the_top_learns() -> None:
    (active, passives), (plain, undefended) = parties(), parties()
    active.cuts["telecom"].gradient.attach(Isotropic(sigma=0.5), noise_seed_for_experiments=3)
    sent: list[Message] = []
    clear: list[Message] = []
    train(active, passives, record=sent.append)
    train(plain, undefended, record=clear.append)
    noised = add_normal(clear[-1].payload, 0.5, torch.Generator().manual_seed(3))
    assert torch.equal(sent[-1].payload, noised)
    assert all(map(torch.equal, active.top.parameters(), plain.top.parameters()))
    assert not all(map(torch.equal, passives["telecom"].bottom.parameters(), undefended["telecom"].bottom.parameters()))


def test_each_party_gets_the_gradient_that_its_own_cut_defends() -> None:
    names = ("telecom", "shop")
    (active, passives), (plain, undefended) = parties(names), parties(names)
    active.cuts["shop"].gradient.attach(MaxNorm(), noise_seed_for_experiments=3)
    sent: list[Message] = []
    clear: list[Message] = []
    train(active, passives, record=sent.append)
    train(plain, undefended, record=clear.append)

    def to(name: str, messages: list[Message]) -> Tensor:
        return next(one.payload for one in messages if one.receiver == name)

    assert torch.equal(to("telecom", sent), to("telecom", clear))
    assert not torch.equal(to("shop", sent), to("shop", clear))


def test_activation_defenses_change_what_is_sent() -> None:
    active, passives = parties()
    passives["telecom"].activation.attach(GaussianIR(clip=0.5, sigma=1.0), noise_seed_for_experiments=0)
    _, [activation] = unsplit(active, passives)
    crossed: list[Message] = []
    train(active, passives, record=crossed.append)
    assert not torch.equal(crossed[0].payload, activation)


def test_a_defense_that_cannot_do_its_work_stops_the_message() -> None:
    class NeedsMore:
        def __call__(self, message: Tensor, secrets: Any, /) -> Tensor:
            raise PrivacyError("cannot be kept")

    active, passives = parties()
    active.cuts["telecom"].gradient.attach(NeedsMore())
    crossed: list[Message] = []
    with pytest.raises(PrivacyError, match="cannot be kept"):
        train(active, passives, record=crossed.append)
    assert [one.kind for one in crossed] == ["activation"]


# --- what others send


def stranger(name: str, receiver: str, kind: str, payload: Tensor, step: int = 0) -> Half:
    yield Outbox(send=(Message(name, receiver, kind, step, payload),), wait=(awaited(receiver),))


def spoiled(value: float) -> Tensor:
    payload = torch.zeros(N, WIDTH)
    payload[2, 1] = value
    return payload


def unchanged(party: Any, before: list[Tensor]) -> bool:
    return all(map(torch.equal, before, party.module.parameters()))


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (torch.zeros(N - 1, WIDTH), rf"from telecom to be {N} x 1 to 65536 in float32, got 5 x 4 in float32"),
        (torch.zeros(N), rf"from telecom to be {N} x 1 to 65536 in float32, got 6 in float32"),
        (torch.zeros(N, WIDTH, dtype=torch.int64), "got 6 x 4 in int64"),
        (spoiled(torch.nan), "activation of step 0 from telecom holds NaN"),
        (spoiled(torch.inf), "activation of step 0 from telecom holds NaN or infinite"),
    ],
)
def test_activations_that_do_not_fit_are_refused(payload: Tensor, complaint: str) -> None:
    active, _ = parties()
    before = [weight.detach().clone() for weight in active.top.parameters()]
    with pytest.raises(ProtocolError, match=complaint):
        converse(
            {
                ACTIVE: active_step(active, active.train_batch(ROWS), 0),
                "telecom": stranger("telecom", ACTIVE, "activation", payload),
            }
        )
    assert unchanged(active, before)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (torch.zeros(N, WIDTH + 1), "gradient of step 0 from bank to be 6 x 4 in float32, got 6 x 5 in float32"),
        (torch.zeros(N - 1, WIDTH), "got 5 x 4"),
        (torch.zeros(1, WIDTH), "got 1 x 4"),
        (torch.zeros(N, WIDTH, dtype=torch.float64), "got 6 x 4 in float64"),
        (spoiled(torch.nan), "gradient of step 0 from bank holds NaN"),
        (spoiled(-torch.inf), "gradient of step 0 from bank holds NaN or infinite"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(payload: Tensor, complaint: str) -> None:
    party = passive_party("telecom")
    before = [weight.detach().clone() for weight in party.bottom.parameters()]
    with pytest.raises(ProtocolError, match=complaint):
        converse(
            {
                "telecom": passive_step(party, party.train_batch(ROWS), 0, active=ACTIVE),
                ACTIVE: stranger(ACTIVE, "telecom", "gradient", payload),
            }
        )
    assert unchanged(party, before)


@pytest.mark.parametrize(("kind", "step"), [("scores", 0), ("gradient", 1)])
def test_messages_of_another_conversation_are_refused(kind: str, step: int) -> None:
    party = passive_party("telecom")
    with pytest.raises(ProtocolError, match=f"expected gradient of step 0 from {ACTIVE}, got {kind} of step {step}"):
        converse(
            {
                "telecom": passive_step(party, party.train_batch(ROWS), 0, active=ACTIVE),
                ACTIVE: stranger(ACTIVE, "telecom", kind, torch.zeros(N, WIDTH), step),
            }
        )


def test_the_halves_hold_only_their_own_partys_data() -> None:
    """A passive half is built from its own party alone: its data carry no labels, and it gets none."""
    party = passive_party("telecom")
    assert isinstance(party.data, PartyData)
    assert party.data.train.labels is None
    assert party.train_batch(ROWS).labels is None
    train(active_with_cut := parties()[0], {"telecom": party})
    held = [value for value in vars(party).values() if isinstance(value, Tensor)]
    labels = active_with_cut.data.train.labels
    assert labels is not None
    assert not [tensor for tensor in held if tensor.shape == (N,) and torch.equal(tensor.float(), labels[ROWS])]
