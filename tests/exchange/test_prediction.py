"""Joint scoring is the unsplit model's scoring; what is published is what the defenses left."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.cut.chain import DefenseChain
from splitvfl.defenses import GaussianIR, Rounding
from splitvfl.errors import ArgumentError, DataError, HookError, ProtocolError
from splitvfl.exchange.prediction import active_prediction, passive_prediction, predict, predict_records
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.hooks import Secrets
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.builders import ACTIVE, active_party, awaited, passive_party

ROWS = torch.arange(8)


def parties(
    names: tuple[str, ...] = ("telecom",), *, task: str = "binary", dropout: float = 0.0
) -> tuple[ActiveParty, dict[str, PassiveParty]]:
    active = active_party(len(names), task=task, dropout=dropout)
    for name in names:
        active.connect(name)
    return active, {name: passive_party(name, dropout=dropout) for name in names}


def unsplit(active: ActiveParty, passives: dict[str, PassiveParty]) -> Tensor:
    """Raw outputs of the same weights as one model, in evaluation mode."""
    modules = [active.top, *(party.bottom for party in passives.values())]
    for module in modules:
        module.eval()
    with torch.no_grad():
        inputs = [party.bottom(party.data.test.columns.numeric) for party in passives.values()]
        outputs: Tensor = active.top(torch.cat([*inputs, active.data.test.columns.numeric], dim=1))
    for module in modules:
        module.train()
    return outputs


def test_parties_that_were_never_connected_predict() -> None:
    active, passives = active_party(2), {name: passive_party(name) for name in ("shop", "telecom")}

    joint = predict(active, passives)

    torch.testing.assert_close(joint.outputs, unsplit(active, passives), rtol=1e-5, atol=1e-6)


def test_a_model_of_own_columns_predicts_without_a_partner() -> None:
    whole = active_party()
    alone = ActiveParty(whole.data, nn.Linear(2, 1))

    found = predict_records(alone, {}, {ACTIVE: whole.data.test})

    torch.testing.assert_close(found.outputs, alone.top(whole.data.test.columns.numeric))


def test_what_cannot_be_scored_together_is_said() -> None:
    active, passives = parties()
    with pytest.raises(ArgumentError, match="expected part train or test, got 'validation'"):
        predict(active, passives, part="validation")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="bank is connected to, telecom; got shop"):
        predict(active, {"shop": passive_party("shop")})
    nothing = {party.name: party.data.test.rows(ROWS[:0]) for party in (active, passives["telecom"])}
    with pytest.raises(DataError, match="bank has no record to score"):
        predict_records(active, passives, nothing)
    others = {ACTIVE: active.data.test, "telecom": passives["telecom"].data.test.rows(ROWS)}
    with pytest.raises(DataError, match="bank and telecom have other records, or the same in another order"):
        predict_records(active, passives, others)


def test_training_records_are_scored_on_request() -> None:
    active, passives = parties()
    rows, own = passives["telecom"].data.train.columns.numeric, active.data.train.columns.numeric
    with torch.no_grad():
        expected = active.top(torch.cat([passives["telecom"].bottom(rows), own], dim=1))

    joint = predict(active, passives, part="train", batch_size=5)

    # Batches of five round sums of a few terms otherwise than one batch does.
    torch.testing.assert_close(joint.outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("names", [("telecom",), ("shop", "telecom"), ("telecom", "shop")])
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_joint_scores_are_the_unsplit_models(names: tuple[str, ...], task: str) -> None:
    active, passives = parties(names, task=task, dropout=0.5)
    expected = unsplit(active, passives)
    joint = predict(active, passives)
    assert torch.equal(joint.outputs, expected)
    published = {
        "binary": lambda: torch.sigmoid(expected[:, 0]),
        "multiclass": lambda: torch.softmax(expected, 1),
        "regression": lambda: expected[:, 0],
    }
    assert torch.equal(joint.scores, published[task]())
    assert not joint.outputs.requires_grad


@pytest.mark.parametrize("batch_size", [1, 7, 24, 1000])
def test_scores_are_in_the_order_of_the_test_records(batch_size: int) -> None:
    active, passives = parties()
    # Matrix products of other heights may add in another order: a few units in the last place of numbers about 1.
    torch.testing.assert_close(
        predict(active, passives, batch_size=batch_size).outputs, unsplit(active, passives), rtol=0, atol=1e-6
    )


def test_rounding_acts_on_the_published_scores_only() -> None:
    active, passives = parties()
    plain = predict(active, passives)
    active.scores.attach(Rounding(decimals=1))
    rounded = predict(active, passives)
    assert torch.equal(rounded.outputs, plain.outputs)
    assert not torch.equal(rounded.scores, plain.scores)
    assert rounded.scores.tolist() == pytest.approx([round(score, 1) for score in plain.scores.tolist()], abs=1e-7)


def test_in_bfloat16_outputs_and_scores_are_float32() -> None:
    active, passives = parties(("telecom", "shop"))
    full = predict(active, passives)
    for party in (active, *passives.values()):
        party.prepare(seed=0, device=torch.device("cpu"), autocast=torch.bfloat16)
    half = predict(active, passives)
    assert half.outputs.dtype == half.scores.dtype == torch.float32
    assert not torch.equal(half.outputs, full.outputs)
    # bfloat16 keeps eight bits; a handful of layers, each with outputs of order one, rounds a handful of times.
    torch.testing.assert_close(half.outputs, full.outputs, rtol=0, atol=8 * 2**-8)


def test_every_passive_party_receives_what_was_published() -> None:
    active, passives = parties(("telecom", "shop"))
    active.scores.attach(Rounding(decimals=1))
    halves: dict[str, Half] = {ACTIVE: active_prediction(active, active.test_batch(ROWS), 3)}
    for name, party in passives.items():
        halves[name] = passive_prediction(party, party.test_batch(ROWS), 3, active=ACTIVE, outputs=1)
    crossed: list[Message] = []
    results = converse(halves, record=crossed.append)
    assert torch.equal(results["telecom"], results[ACTIVE].scores)
    assert torch.equal(results["shop"], results[ACTIVE].scores)
    assert sorted((one.sender, one.receiver, one.kind, one.step) for one in crossed) == [
        (ACTIVE, "shop", "scores", 3),
        (ACTIVE, "telecom", "scores", 3),
        ("shop", ACTIVE, "activation", 3),
        ("telecom", ACTIVE, "activation", 3),
    ]
    assert not any(one.payload.requires_grad for one in crossed)


def test_activation_defenses_act_on_predictions_too() -> None:
    active, passives = parties()
    plain = predict(active, passives)
    passives["telecom"].activation.attach(GaussianIR(clip=0.5, sigma=1.0), noise_seed_for_experiments=0)
    assert not torch.equal(predict(active, passives).outputs, plain.outputs)


def test_gradient_defenses_and_observers_see_nothing_of_a_prediction() -> None:
    called: list[str] = []

    class Notes:
        needs = frozenset({"gradient"})

        def __init__(self, seat: str) -> None:
            self.seat = seat

        def __call__(self, message: Any, *_: Any) -> Any:
            called.append(self.seat)
            return message

    active, passives = parties()
    active.cuts["telecom"].gradient.attach(Notes("defense"))
    passives["telecom"].observers.append(Notes("observer"))  # type: ignore[arg-type]
    predict(active, passives)
    assert called == []
    halves: dict[str, Half] = {ACTIVE: active_step(active, active.train_batch(ROWS), 0)}
    for name, party in passives.items():
        halves[name] = passive_step(party, party.train_batch(ROWS), 0, active=ACTIVE)
    converse(halves)
    assert sorted(called) == ["defense", "observer"], "in training they do act"


def test_score_defenses_get_no_labels() -> None:
    seen: list[tuple[list[int], Any]] = []

    class Records:
        crossing = "scores"

        def __call__(self, scores: Tensor, secrets: Any, /) -> Tensor:
            seen.append((secrets.ids.tolist(), secrets._labels))
            return scores

    active, passives = parties()
    active.scores.attach(Records())
    predict(active, passives, batch_size=16)
    ids = active.data.test.ids.tolist()
    assert seen == [(ids[:16], None), (ids[16:], None)]


# --- modes and randomness


def modes(active: ActiveParty, passives: dict[str, PassiveParty]) -> list[bool]:
    return [layer.training for party in (active, *passives.values()) for layer in party.module.modules()]


def test_every_layers_mode_is_as_before() -> None:
    active, passives = parties(dropout=0.5)
    # A layer that its owner froze stays frozen inside of a model that trains.
    next(iter(passives["telecom"].bottom.children())).eval()
    before = modes(active, passives)
    assert {True, False} == set(before)
    predict(active, passives)
    assert modes(active, passives) == before
    active.top.eval()
    before = modes(active, passives)
    predict(active, passives)
    assert modes(active, passives) == before


def test_modes_come_back_after_an_error() -> None:
    class Fails:
        crossing = "scores"

        def __call__(self, *_: Any) -> Tensor:
            return torch.tensor(torch.nan)

    active, passives = parties(dropout=0.5)
    active.scores.attach(Fails())
    before = modes(active, passives)
    with pytest.raises(HookError, match="Fails"):
        predict(active, passives)
    assert modes(active, passives) == before


def test_weights_gradients_and_randomness_are_left_alone() -> None:
    active, passives = parties(dropout=0.5)
    outside, own = torch.get_rng_state(), passives["telecom"].random.state_dict()["cpu"]
    predict(active, passives)
    assert torch.equal(torch.get_rng_state(), outside)
    assert torch.equal(passives["telecom"].random.state_dict()["cpu"], own)
    assert all(weight.grad is None for weight in active.top.parameters())


def test_noise_on_scores_is_a_chains_own() -> None:
    class Noise:
        crossing = "scores"

        def __call__(self, scores: Tensor, secrets: Secrets, /) -> Tensor:
            return secrets.add_normal(scores, 1.0)

    active, passives = parties()
    plain = predict(active, passives).scores
    active.scores.attach(Noise(), noise_seed_for_experiments=3)
    chain = DefenseChain("scores", ACTIVE)
    chain.attach(Noise(), noise_seed_for_experiments=3)
    expected = chain.apply(plain, step=0, ids=None, labels=None)
    assert torch.equal(predict(active, passives).scores, expected)


def test_in_inference_mode_it_works_as_well() -> None:
    active, passives = parties()
    active.scores.attach(Rounding(decimals=1))
    expected = predict(active, passives).scores
    with torch.inference_mode():
        assert torch.equal(predict(active, passives).scores, expected)


# --- what others send


def stranger(name: str, receiver: str, kind: str, payload: Tensor, *, step: int = 0, reads: bool = True) -> Half:
    yield Outbox(send=(Message(name, receiver, kind, step, payload),), wait=(awaited(receiver),) if reads else ())


@pytest.mark.parametrize("payload", [torch.zeros(7, 4), torch.zeros(9, 4), torch.zeros(8), torch.zeros(8, 2, 2)])
def test_activations_that_do_not_fit_are_refused(payload: Tensor) -> None:
    active, _ = parties()
    with pytest.raises(ProtocolError, match="from telecom to be 8 x 1 to 65536 in"):
        converse(
            {
                ACTIVE: active_prediction(active, active.test_batch(ROWS), 0),
                "telecom": stranger("telecom", ACTIVE, "activation", payload),
            }
        )


@pytest.mark.parametrize("payload", [torch.zeros(7), torch.zeros(()), torch.zeros(9, 3)])
def test_scores_that_do_not_fit_are_refused(payload: Tensor) -> None:
    party = passive_party("telecom")
    with pytest.raises(ProtocolError, match=f"expected scores of step 0 from {ACTIVE} to be 8 in"):
        converse(
            {
                "telecom": passive_prediction(party, party.test_batch(ROWS), 0, active=ACTIVE, outputs=1),
                ACTIVE: stranger(ACTIVE, "telecom", "scores", payload),
            }
        )


@pytest.mark.parametrize(("kind", "step"), [("gradient", 0), ("scores", 1)])
def test_messages_of_another_conversation_are_refused(kind: str, step: int) -> None:
    party = passive_party("telecom")
    with pytest.raises(ProtocolError, match="expected scores of step 0"):
        converse(
            {
                "telecom": passive_prediction(party, party.test_batch(ROWS), 0, active=ACTIVE, outputs=1),
                ACTIVE: stranger(ACTIVE, "telecom", kind, torch.zeros(8), step=step),
            }
        )


def test_a_top_that_is_too_wide_is_named() -> None:
    active, passives = parties()
    active = ActiveParty(active.data, nn.Sequential(active.top, nn.Linear(1, 2)))
    for name in passives:
        active.connect(name)
    with pytest.raises(ValueError, match=r"top model must put out shape \(24, 1\)"):
        predict(active, passives)
