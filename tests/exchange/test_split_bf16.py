"""What crosses in bfloat16 is what a step computes with, at both parties, in one process and between two."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.claims import Gaussian
from splitvfl.defenses import GaussianIR, MaxNorm
from splitvfl.errors import ArgumentError, DataError, ProtocolError
from splitvfl.exchange.handshake import agreement
from splitvfl.exchange.prediction import predict
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.hooks import Secrets, View
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message, decode, encode
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.plan import TrainingPlan
from tests.builders import ACTIVE, WIDTH, active_party, awaited, passive_party, same, sgd, small_trainer, weights

ROWS = torch.tensor([4, 0, 31, 12, 7, 9])
HALF = torch.bfloat16


def parties(
    names: tuple[str, ...] = ("telecom",), *, wire: torch.dtype | None = HALF, autocast: torch.dtype | None = None
) -> tuple[ActiveParty, dict[str, PassiveParty]]:
    active = active_party(len(names), optimizer=sgd)
    passives = {name: passive_party(name, optimizer=sgd) for name in names}
    for name in names:
        active.connect(name)
    for party in (active, *passives.values()):
        party.prepare(seed=0, device=torch.device("cpu"), wire=wire, autocast=autocast)
    return active, passives


def train(active: ActiveParty, passives: dict[str, PassiveParty], *, step: int = 0) -> list[Message]:
    crossed: list[Message] = []
    halves: dict[str, Half] = {
        name: passive_step(party, party.train_batch(ROWS), step, active=ACTIVE) for name, party in passives.items()
    }
    halves[ACTIVE] = active_step(active, active.train_batch(ROWS), step)
    converse(halves, record=crossed.append)
    return crossed


def rounded(tensor: Tensor) -> Tensor:
    """To eight bits of mantissa, ties to even, by integer arithmetic on float32."""
    bits = tensor.detach().contiguous().view(torch.int32).to(torch.int64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & ~0xFFFF
    return bits.to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("names", [("telecom",), ("telecom", "shop")])
def test_a_step_is_that_of_a_loop_that_rounds_what_crosses(names: tuple[str, ...]) -> None:
    (active, passives), (top, bottoms) = parties(names), parties(names)
    labels = top.data.train.labels
    assert labels is not None
    for step in range(3):
        train(active, passives, step=step)

        activations = {name: party.bottom(party.data.train.columns.numeric[ROWS]) for name, party in bottoms.items()}
        leaves = [rounded(activation).requires_grad_() for activation in activations.values()]
        outputs = top.top(torch.cat([*leaves, top.data.train.columns.numeric[ROWS]], dim=1))
        top.weights.clear_gradients()
        functional.binary_cross_entropy_with_logits(outputs[:, 0], labels[ROWS]).backward()
        top.weights.update()
        for party, leaf in zip(bottoms.values(), leaves, strict=True):
            assert leaf.grad is not None
            party.weights.clear_gradients()
            activations[party.name].backward(rounded(leaf.grad))
            party.weights.update()

        for party, other in zip((active, *passives.values()), (top, *bottoms.values()), strict=True):
            for name, weight in party.module.state_dict().items():
                assert torch.equal(weight, other.module.state_dict()[name]), f"{party.name}: {name}"
    plain = parties(names, wire=None)
    for step in range(3):
        train(*plain, step=step)
    assert not torch.equal(*(one.top.state_dict()["layers.0.weight"] for one in (active, plain[0])))


@pytest.mark.parametrize("autocast", [None, HALF])
def test_everything_between_parties_has_two_bytes_a_number(autocast: torch.dtype | None) -> None:
    active, passives = parties(("telecom", "shop"), autocast=autocast)
    crossed = train(active, passives)
    assert {message.kind for message in crossed} == {"activation", "gradient"}
    assert {message.payload.dtype for message in crossed} == {HALF}
    for message in crossed:
        assert torch.equal(decode(encode(message)).payload, message.payload)


def test_defenses_act_before_the_rounding() -> None:
    seen: list[torch.dtype] = []

    class Notes(MaxNorm):
        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            seen.append(message.dtype)
            return super().__call__(message, secrets)

    class NotesActivation(GaussianIR):
        def claims(self) -> tuple[Gaussian]:
            return super().claims()

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            seen.append(message.dtype)
            return super().__call__(message, secrets)

    active, passives = parties()
    active.cuts["telecom"].gradient.attach(Notes(), noise_seed_for_experiments=0)
    passives["telecom"].activation.attach(NotesActivation(clip=1.0, sigma=0.5), noise_seed_for_experiments=0)
    crossed = train(active, passives)
    assert seen == [torch.float32, torch.float32]
    assert {message.payload.dtype for message in crossed} == {HALF}


def test_an_attack_in_either_seat_sees_what_crossed() -> None:
    class Looks:
        name = "looks"
        needs = frozenset({"gradient"})

        def __init__(self) -> None:
            self.views: list[View] = []

        def __call__(self, view: View, /) -> Tensor:
            self.views.append(view)
            return view.gradient[:, 0]

    active, passives = parties()
    received, sent = Looks(), Looks()
    passives["telecom"].observers.append(received)  # type: ignore[arg-type]  # it scores, as an attack does
    active.cuts["telecom"].watch(sent)
    crossed = train(active, passives)
    for looks in (received, sent):
        gradient = looks.views[0].gradient
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, crossed[-1].payload.float())


def test_predictions_cross_in_two_bytes_too() -> None:
    (active, passives), (_, plain) = parties(("telecom", "shop")), parties(("telecom", "shop"))
    columns = [party.data.test.columns.numeric for party in (*plain.values(), active)]
    inputs = [rounded(party.bottom(own)) for party, own in zip(plain.values(), columns, strict=False)]
    with torch.no_grad():
        expected = active.top(torch.cat([*inputs, columns[-1]], dim=1))
    assert torch.equal(predict(active, passives).outputs, expected)


def test_a_gradient_of_another_width_is_refused() -> None:
    party = parties()[1]["telecom"]
    half = passive_step(party, party.train_batch(ROWS), 0, active=ACTIVE)

    def answering() -> Half:
        yield Outbox(wait=(awaited("telecom", "activation", 0, shape=(len(ROWS), WIDTH)),))
        yield Outbox(send=(Message(ACTIVE, "telecom", "gradient", 0, torch.zeros(len(ROWS), WIDTH)),))

    with pytest.raises(ProtocolError, match="expected gradient of step 0 from bank to be 6 x 4 in bfloat16"):
        converse({"telecom": half, ACTIVE: answering()})


@pytest.mark.parametrize("who", ["active", "passive"])
def test_another_width_of_numbers_is_refused(who: str) -> None:
    active, passives = parties()
    (active if who == "active" else passives["telecom"]).wire = None
    expected = "float32, got .* in bfloat16" if who == "active" else "bfloat16, got .* in float32"
    with pytest.raises(ProtocolError, match=f"expected activation of step 0 from telecom to be .* in {expected}"):
        train(active, passives)


def test_the_width_is_a_term_that_parties_agree_on() -> None:
    halves = {
        "bank": agreement("bank", ("telecom",), TrainingPlan(wire=HALF).terms()),
        "telecom": agreement("telecom", ("bank",), TrainingPlan().terms()),
    }
    with pytest.raises(DataError, match=r"wire: \w+ has (bf16|as computed), \w+ has (bf16|as computed)$"):
        converse(halves)


def test_a_whole_run_crosses_in_two_bytes_and_every_evaluation_of_it() -> None:
    crossed: list[Message] = []
    half, plain = (
        small_trainer(wire=HALF, record=crossed.append),
        small_trainer(),
    )
    assert half.fit(1) != plain.fit(1)
    assert {message.payload.dtype for message in crossed} == {HALF}
    assert not same(weights(half), weights(plain))


def test_other_widths_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"wire must be torch.bfloat16 or None, got torch.float16"):
        small_trainer(wire=torch.float16)
