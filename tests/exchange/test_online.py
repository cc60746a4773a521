"""Both halves of online scoring, without sockets: scores are those of a prediction, and what is held is an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.data.record_index import RecordIndex
from splitvfl.defenses import Rounding
from splitvfl.errors import ProtocolError
from splitvfl.exchange.online import STANDING, Answers, Scored, Standing, answering, asking
from splitvfl.exchange.prediction import predict
from splitvfl.messaging.conversation import Expected, Half, Outbox, converse
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.answers import RecordAnswers
from tests.builders import ACTIVE, active_party, passive_party

RUN = "a" * 32
ROWS = torch.arange(24)


def parties(*names: str, task: str = "binary") -> tuple[ActiveParty, dict[str, PassiveParty]]:
    active = active_party(len(names), task=task)
    for name in names:
        active.connect(name)
        active.widths[name] = 4
    return active, {name: passive_party(name) for name in names}


def digests_of(records: Records) -> Tensor:
    return torch.from_numpy(RecordIndex.of_numbers(records.ids.numpy(), run=RUN).own.copy())


def answers_of(party: PassiveParty, held: Tensor = ROWS) -> RecordAnswers:
    """What a party answers that holds the test records at these places, in this order."""
    index = RecordIndex(digests_of(party.data.test)[held].numpy())
    party.data = type(party.data)(
        party.name, (), party.data.numeric_names, (), party.data.train, party.data.test.rows(held)
    )
    return RecordAnswers(party, index, key=b"k" * 32, half="h", settings=b"")


def scored(
    active: ActiveParty, answers: dict[str, Callable[[Tensor], Answers]], rows: Tensor = ROWS, *, number: int = 0
) -> Scored:
    batch = active.test_batch(rows)
    halves: dict[str, Half] = {ACTIVE: asking(active, batch, digests_of(batch), number)}
    halves |= {name: answering(name, ACTIVE, answer, number, most=64) for name, answer in answers.items()}
    result: Scored = converse(halves)[ACTIVE]
    return result


@pytest.mark.parametrize("names", [("telecom",), ("telecom", "shop")])
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_scores_are_those_of_a_prediction_to_the_bit(names: tuple[str, ...], task: str) -> None:
    active, passives = parties(*names, task=task)
    expected = predict(active, passives).scores

    # The partners keep their records in an order of their own: batches of one and the same height add up alike.
    found = scored(active, {name: answers_of(party) for name, party in passives.items()})

    assert torch.equal(found.scores, expected)
    assert found.held.all()


def test_a_record_that_a_partner_does_not_hold_is_an_answer() -> None:
    active, passives = parties("telecom", "shop")
    expected = predict(active, passives).scores
    telecom, shop = torch.tensor([5, 3, 20, 9]), torch.tensor([9, 5, 1])

    found = scored(
        active, {"telecom": answers_of(passives["telecom"], telecom), "shop": answers_of(passives["shop"], shop)}
    )

    assert torch.nonzero(found.standing["telecom"])[:, 0].tolist() == [3, 5, 9, 20]
    assert torch.nonzero(found.standing["shop"])[:, 0].tolist() == [1, 5, 9]
    # Matrix products of other heights may add in another order.
    torch.testing.assert_close(found.scores, expected[[5, 9]], rtol=0, atol=1e-6)


def test_nothing_is_scored_where_nobody_holds_anything() -> None:
    for task, shape in (("binary", (0,)), ("multiclass", (0, 3))):
        active, passives = parties("telecom", task=task)
        found = scored(active, {"telecom": answers_of(passives["telecom"], torch.tensor([3]))}, torch.tensor([4, 5]))
        assert found.scores.shape == shape
        assert not found.held.any()


def test_what_crosses_is_asked_one_way_and_answered_the_other() -> None:
    active, passives = parties("telecom", "shop")
    batch = active.test_batch(ROWS)
    halves = {ACTIVE: asking(active, batch, digests_of(batch), 0)}
    halves |= {name: answering(name, ACTIVE, answers_of(one), 0, most=64) for name, one in passives.items()}
    sent: list[Message] = []

    converse(halves, record=sent.append)

    kinds = {(message.sender, message.receiver, message.kind) for message in sent}
    assert kinds == {
        *((ACTIVE, name, "request") for name in passives),
        *((name, ACTIVE, kind) for name in passives for kind in ("standing", "activation")),
    }


def test_scores_are_defended_as_in_a_prediction() -> None:
    active, passives = parties("telecom")
    active.scores.attach(Rounding(decimals=1))

    found = scored(active, {"telecom": answers_of(passives["telecom"])})

    assert torch.equal(found.scores, predict(active, {"telecom": passive_party("telecom")}).scores)
    assert torch.equal(found.scores, torch.round(found.scores, decimals=1))


# --- partners that mean harm


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_a_record_whose_outputs_overflow_has_no_score_and_spoils_no_other(task: str) -> None:
    active, passives = parties("telecom", task=task)
    for weight in active.top.parameters():
        weight.data *= 100.0
    answers = answers_of(passives["telecom"])
    with active.evaluating(), passives["telecom"].evaluating():
        expected = scored(active, {"telecom": answers}).scores
        answers._keep(torch.tensor([2, 5]), torch.full((2, 4), 3e38))  # finite, as what crosses must be
        found = scored(active, {"telecom": answers})
        answers._keep(ROWS, torch.full((24, 4), 3e38))
        nobody = scored(active, {"telecom": answers}).scores

    assert found.held.all()
    assert found.scores.isnan().reshape(24, -1).all(dim=1).nonzero()[:, 0].tolist() == [2, 5]
    kept = [place for place in range(24) if place not in (2, 5)]
    torch.testing.assert_close(found.scores[kept], expected[kept], rtol=0, atol=1e-6)
    assert nobody.shape == expected.shape
    assert nobody.isnan().all()


def lying(change: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> Callable[[Tensor], Any]:
    honest = answers_of(passive_party("telecom"))

    def answer(asked: Tensor) -> Answers:
        answers = honest(asked)
        return Answers(*change(answers.standing.clone(), answers.activation.clone()))  # type: ignore[arg-type]

    return answer


def spoiled(activation: Tensor, value: float) -> Tensor:
    activation[2, 1] = value
    return activation


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda standing, rows: (standing + 3, rows), "1 .held., 2 .refused. or 3 .scored enough., got 4"),
        (lambda standing, rows: (standing[:-1], rows), "expected standing of step 0 from telecom to be 24 in uint8"),
        (lambda standing, rows: (standing.long(), rows), "in uint8, got 24 in int64"),
        (lambda standing, rows: (standing, rows[:-1]), "expected activation of step 0 from telecom to be 24 x 4"),
        (lambda standing, rows: (standing * 0, rows), "without reading activation"),
        (lambda standing, rows: (standing, torch.cat([rows, rows], 1)), "to be 24 x 4 .*, got 24 x 8"),
        (lambda standing, rows: (standing, rows.double()), "got 24 x 4 in float64"),
        (lambda standing, rows: (standing, spoiled(rows, torch.nan)), "NaN or infinite"),
        (lambda standing, rows: (standing, spoiled(rows, torch.inf)), "NaN or infinite"),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, told: str) -> None:
    active, _ = parties("telecom")
    with pytest.raises(ProtocolError, match=told):
        scored(active, {"telecom": lying(change)})


def test_a_record_that_was_refused_has_no_score_and_no_row() -> None:
    active, _ = parties("telecom")

    def limited(standing: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        standing[20:] = int(Standing.REFUSED)
        return standing, rows[:20]

    found = scored(active, {"telecom": lying(limited)})

    assert found.held.tolist() == [True] * 20 + [False] * 4
    assert len(found.scores) == 20


def asked(payload: Tensor, *, number: int = 0) -> Half:
    yield Outbox(send=(Message(ACTIVE, "telecom", "request", number, payload),))
    return None


@pytest.mark.parametrize(
    "payload",
    [torch.zeros(0, 32), torch.zeros(65, 32), torch.zeros(3, 31), torch.zeros(32), torch.zeros(3, 32).float()],
)
def test_a_passive_party_takes_no_other_question(payload: Tensor) -> None:
    wrong = payload if payload.shape == (3, 32) else payload.to(torch.uint8)
    half = answering("telecom", ACTIVE, lambda digests: pytest.fail("it was answered"), 0, most=64)
    with pytest.raises(ProtocolError, match="expected request of step 0 from bank to be 1 to 64 x 32 in uint8"):
        converse({"telecom": half, ACTIVE: asked(wrong)})


def test_what_is_answered_names_nobody() -> None:
    """An id that is not held leaves nothing but a zero."""
    answers = answers_of(passive_party("telecom"), torch.tensor([3]))(torch.from_numpy(np.zeros((2, 32), np.uint8)))

    half = answering("telecom", ACTIVE, lambda digests: answers, 0, most=64)
    sent: list[Message] = []

    def listening() -> Half:
        yield from asked(torch.zeros(2, 32, dtype=torch.uint8))
        yield Outbox(wait=(Expected("telecom", STANDING, 0, (torch.uint8,), (2,)),))

    converse({"telecom": half, ACTIVE: listening()}, record=sent.append)
    assert [message.kind for message in sent] == ["request", STANDING]
    assert sent[-1].payload.tolist() == [0, 0]
