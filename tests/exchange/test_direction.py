"""The direction of noise on scores: sent by the passive party whose columns it hides to who computes the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.defenses import ClassLabel, Rounding, ScoreNoise, TopOne, noise_direction
from splitvfl.errors import ArgumentError, ConfigError, ForgedError, PrivacyError, ProtocolError
from splitvfl.exchange.direction import receiving_direction
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.prediction import _opening, predict, predict_records
from splitvfl.exchange.scoring import (
    COORDINATOR,
    CoordinatorSide,
    LabelSide,
    PassiveScorerSide,
    PassiveSide,
    ScoringTerms,
)
from splitvfl.learning.tasks import task_for
from splitvfl.messaging.conversation import converse
from splitvfl.messaging.messages import Message
from splitvfl.party.direction import DIRECTION, check_awaited, checked_direction, own_direction
from splitvfl.party.memoised import MemoisedNoise
from splitvfl.party.party import PassiveParty
from splitvfl.party.scorer import Scorer
from tests.builders import ACTIVE, party_data
from tests.exchange.test_hostile_scoring import Change, changing, flipped, of, same
from tests.exchange.test_scoring import all_bytes, linear_parties, received

TWO = ("shop", "telecom")
SENDER = "telecom"
ROLES = ("active", COORDINATOR, "shop", SENDER)


def scored(
    by: str, *, task: str = "multiclass", scheme: Any = 2, sent: bool = True, noise: MemoisedNoise | None = None
) -> tuple[Tensor, list[Message], Tensor]:
    """Scores, what crossed, and the direction, which is sent or written into the scorer's settings."""
    active, passives = linear_parties(TWO, task=task)
    v = own_direction(passives[SENDER])
    active.scores.attach(
        ScoreNoise(scheme=scheme, power=1.0, direction="sent" if sent else v.tolist()), noise_seed_for_experiments=3
    )
    active.score_noise = noise if noise is None or sent else noise.about(v.numpy().tobytes())
    records = {party.name: party.data.test for party in (active, *passives.values())}
    crossed: list[Message] = []
    found = predict_records(
        active,
        passives,
        records,
        batch_size=7,
        scores_by=by,
        direction_by=SENDER if sent else None,
        record=lambda one: crossed.append(replace(one, payload=one.payload.clone())),
    )
    return found.scores, crossed, v


@pytest.mark.parametrize("scheme", [1, 2, "optimum"])
@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("by", ROLES)
def test_scores_are_those_of_a_direction_in_the_settings_to_the_bit(by: str, task: str, scheme: Any) -> None:
    expected, without, v = scored(by, task=task, scheme=scheme, sent=False)
    assert not [message for message in without if message.kind == "direction"]
    assert v.shape == (2 if task == "binary" else 3,)

    found, crossed, _ = scored(by, task=task, scheme=scheme)

    assert torch.equal(found, expected)
    kinds = [message.kind for message in crossed]
    if by != SENDER:
        assert kinds.index("direction") < min(kinds.index(one) for one in ("activation", "part") if one in kinds)


@pytest.mark.parametrize(
    "made",
    [
        *(partial(ScoreNoise, scheme=scheme, power=1.0, direction=[1.0, 2.0, -1.0]) for scheme in (1, 2)),
        partial(ScoreNoise, scheme=3, power=1.0),
        partial(ClassLabel, epsilon=0.01),
        partial(Rounding, decimals=2),
        TopOne,
    ],
    ids=["scheme 1", "scheme 2", "scheme 3", "class label", "rounding", "top one"],
)
def test_every_defense_of_scores_does_the_same_wherever_scores_are_computed(made: Any) -> None:
    def found(by: str) -> Tensor:
        active, passives = linear_parties(TWO, task="multiclass")
        active.scores.attach(made())
        return predict(active, passives, batch_size=7, scores_by=by).scores

    active, passives = linear_parties(TWO, task="multiclass")
    bare, expected = predict(active, passives, batch_size=7).scores, found("active")
    assert not torch.equal(expected, bare)
    assert torch.equal(expected.argmax(dim=1), bare.argmax(dim=1))
    for by in ROLES[1:]:
        assert torch.equal(found(by), expected)


def test_it_is_theorem_fours_of_the_senders_weights() -> None:
    _, passives = linear_parties(TWO, task="multiclass")
    weight = passives[SENDER].bottom.weight.detach()
    assert torch.equal(own_direction(passives[SENDER]), noise_direction(weight)[0])
    _, passives = linear_parties(TWO)
    assert torch.equal(own_direction(passives[SENDER]), noise_direction(passives[SENDER].bottom.weight[0])[0])


@pytest.mark.parametrize("by", ROLES)
def test_who_computes_the_scores_receives_it_and_nobody_else_can_read_it(by: str) -> None:
    _, crossed, v = scored(by)
    sent = [message for message in crossed if message.kind == "direction"]
    numbers = v.numpy().tobytes()
    if by == "active":
        (message,) = sent
        assert (message.sender, message.receiver) == (SENDER, ACTIVE)
        assert torch.equal(message.payload, v)
    elif by == SENDER:
        assert sent == []
    else:
        assert [(one.sender, one.receiver) for one in sent] == [(SENDER, ACTIVE), (ACTIVE, by)]
        assert {(one.payload.dtype, tuple(one.payload.shape)) for one in sent} == {(torch.uint8, (3 * 8 + 16,))}
        assert numbers not in all_bytes(received(crossed, ACTIVE))


def test_memoised_noise_follows_from_the_direction_too() -> None:
    noise = MemoisedNoise(bytes(range(32)))
    expected = scored("active", scheme="optimum", noise=noise, sent=False)[0]
    for by in ROLES:
        assert torch.equal(scored(by, scheme="optimum", noise=noise)[0], expected)
    assert not torch.equal(scored("active", scheme="optimum", noise=noise.about(b""), sent=False)[0], expected)


# --- hostile


class Meeting:
    """All parties of one meeting, of whom the sender or the label party may lie."""

    def __init__(self, by: str) -> None:
        self.active, self.passives = linear_parties(TWO, task="multiclass")
        terms = ScoringTerms(
            scorer=by,
            parties=TWO,
            learned=TaskSpec("multiclass", 3),
            loss="usual",
            records=24,
            rows=8,
            direction_by=SENDER,
        )
        self.noise = ScoreNoise(scheme=2, power=1.0, direction="sent")
        scorer = Scorer(by, self.active.task)
        scorer.scores.attach(self.noise)
        self.sides: dict[str, Any] = {ACTIVE: LabelSide(self.active, terms)}
        for name, party in self.passives.items():
            self.sides[name] = (
                PassiveScorerSide(party, scorer, ACTIVE, terms) if name == by else PassiveSide(party, ACTIVE, terms)
            )
        self.third = CoordinatorSide(ACTIVE, scorer) if by == COORDINATOR else None

    def open(self, *, change: Change = same) -> None:
        halves = {name: side.open() for name, side in self.sides.items()}
        if self.third is not None:
            halves[COORDINATOR] = _opening(self.third)
        converse(halves | {ACTIVE: changing(halves[ACTIVE], change)})


def begun(by: str) -> object:
    """A prediction that has got as far as the direction, at least."""
    return scored(by) if by == "active" else Meeting(by).open()


BY = (COORDINATOR, "shop")
WRONG: Sequence[tuple[list[float], str]] = [
    ([float("nan"), 0.0, 1.0], "NaN or infinite"),
    ([float("inf"), 0.0, 0.0], "NaN or infinite"),
    ([0.0, 0.0, 0.0], "got one of length 0"),
    ([1.0, 1.0, 1.0], "expected telecom to send a direction of noise of length 1"),
    ([1e308, -1e308, 0.0], "got one of length inf"),
    ([1.0 + 1e-6, 0.0, 0.0], "of length 1"),
    ([5e-324, 0.0, 0.0], "of length 1"),
]


@pytest.mark.parametrize(("numbers", "words"), WRONG)
@pytest.mark.parametrize("by", ["active", *BY])
def test_what_is_no_direction_is_refused_before_anything_is_answered(
    by: str, numbers: list[float], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = torch.tensor(numbers, dtype=torch.float64)
    where = "direction" if by == "active" else "scoring"
    monkeypatch.setattr(f"splitvfl.exchange.{where}.own_direction", lambda party: v)
    with pytest.raises(ProtocolError, match=words):
        begun(by)


@pytest.mark.parametrize("length", [1, 2, 4])
@pytest.mark.parametrize("by", ["active", *BY])
def test_a_direction_of_another_length_is_refused(by: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    v = torch.zeros(length, dtype=torch.float64)
    v[0] = 1.0
    where = "direction" if by == "active" else "scoring"
    monkeypatch.setattr(f"splitvfl.exchange.{where}.own_direction", lambda party: v)
    with pytest.raises(ProtocolError, match="direction"):
        begun(by)


@pytest.mark.parametrize("place", [0, 23, 39])
@pytest.mark.parametrize("by", BY)
def test_a_direction_that_was_changed_on_the_way_is_refused(by: str, place: int) -> None:
    with pytest.raises(ForgedError, match="passed on a direction of noise in the name of telecom"):
        Meeting(by).open(change=of("direction", flipped(place)))


@pytest.mark.parametrize("by", BY)
def test_an_honest_one_is_taken(by: str) -> None:
    meeting = Meeting(by)
    meeting.open()
    torch.testing.assert_close(meeting.noise.direction, own_direction(meeting.passives[SENDER]))


def test_a_narrower_number_is_refused() -> None:
    active, _ = linear_parties(TWO, task="multiclass")
    half = receiving_direction(active, SENDER)
    (expected,) = next(half).wait
    assert (expected.dtypes, expected.shape) == ((torch.float64,), (3,))


# --- settings that do not go together


def test_nobody_awaits_what_is_sent_and_the_other_way_round() -> None:
    awaiting, others = Scorer("shop", linear_parties(TWO)[0].task), Scorer("shop", linear_parties(TWO)[0].task)
    awaiting.scores.attach(ScoreNoise(scheme=2, power=1.0, direction="sent"))
    others.scores.attach(Rounding(decimals=2))
    check_awaited(awaiting.scores, SENDER)
    check_awaited(others.scores, None)
    with pytest.raises(ConfigError, match=r"score-noise of shop awaits a direction .* prediction\.direction_by: NAME"):
        check_awaited(awaiting.scores, None)
    with pytest.raises(ConfigError, match="telecom would send a direction of noise, and no defense of scores of shop"):
        check_awaited(others.scores, SENDER)
    with pytest.raises(ConfigError, match="telecom sends a direction of noise"):
        others.take_direction(Message(SENDER, "shop", "direction", 0, torch.tensor([0.6, 0.8], dtype=torch.float64)))


def test_no_score_is_published_before_the_direction_has_come() -> None:
    active, passives = linear_parties(TWO)
    active.scores.attach(ScoreNoise(scheme=2, power=1.0, direction="sent"))
    for by in ROLES:
        with pytest.raises(PrivacyError, match="direction: sent"):
            predict(active, passives, scores_by=by)


def test_who_is_no_passive_party_sends_none() -> None:
    active, passives = linear_parties(TWO)
    with pytest.raises(ArgumentError, match=r"direction_by: expected a passive party \(shop, telecom\), got 'bank'"):
        predict(active, passives, direction_by="bank")


def test_a_model_that_is_not_linear_has_none() -> None:
    party = PassiveParty(party_data(SENDER, width=5), nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 3)))
    with pytest.raises(ConfigError, match="telecom has no direction of noise to send"):
        own_direction(party)


def test_words_that_are_no_direction_are_refused() -> None:
    with pytest.raises(ArgumentError, match="expected numbers, or: sent, got 'mine'"):
        ScoreNoise(scheme=2, power=1.0, direction="mine")  # type: ignore[arg-type]
    for direction in ("sent", (1.0, -1.0)):
        with pytest.raises(ArgumentError, match="scheme 3 adds noise to the predicted class alone"):
            ScoreNoise(scheme=3, power=1.0, direction=direction)
    with pytest.raises(ArgumentError, match="takes no other"):
        ScoreNoise(scheme=3, power=1.0).take_direction(torch.tensor([0.6, 0.8]))
    assert checked_direction(torch.tensor([0.6, 0.8], dtype=torch.float64), SENDER).tolist() == [0.6, 0.8]


# --- what who sends it, and who gets answers, can do with it


LOGITS = torch.randn(50, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def answers_along(direction: Tensor, *, noise: MemoisedNoise | None = None) -> Tensor:
    """Return the logarithms of the scores that are answered behind theorem 4's noise, less their mean."""
    scorer = Scorer(COORDINATOR, task_for("multiclass", 4), noise=noise)
    scorer.scores.attach(ScoreNoise(scheme="optimum", power=4.0, direction="sent"))
    scorer.take_direction(Message(SENDER, COORDINATOR, DIRECTION, 0, direction))
    answered = scorer.answer([torch.zeros(50, 4, dtype=torch.float64)], LOGITS, number=0, ids=None).log()
    return answered - answered.mean(dim=1, keepdim=True)


def unit(*numbers: float) -> Tensor:
    return torch.nn.functional.normalize(torch.tensor(numbers, dtype=torch.float64), dim=0)


def test_who_sends_the_same_for_all_classes_takes_the_noise_from_everybodys_columns() -> None:
    true = LOGITS - LOGITS.mean(dim=1, keepdim=True)

    assert (answers_along(unit(1, -2, 3, -2)) - true).norm(dim=1).min() > 1.9, "noise of length 2"
    torch.testing.assert_close(answers_along(unit(1, 1, 1, 1)), true)


def test_who_sends_other_directions_has_other_memoised_noise() -> None:
    true, direction = LOGITS - LOGITS.mean(dim=1, keepdim=True), unit(1, -2, 3, -2)
    noise = MemoisedNoise(bytes(32))

    found = torch.stack([answers_along(direction * (1 + number * 1e-12), noise=noise) for number in range(40)])

    middle = (found.amax(dim=0) + found.amin(dim=0)) / 2
    torch.testing.assert_close(middle, true, rtol=1e-6, atol=1e-6)


def test_two_answers_that_differ_tell_the_direction() -> None:
    direction = unit(1, -2, 3, -2)

    moved = answers_along(direction) - answers_along(direction)

    differs = moved.norm(dim=1) > 1
    assert differs.any(), "a coin for each of 50 records"
    found = torch.nn.functional.normalize(moved[differs], dim=1)
    torch.testing.assert_close(found * found[:, :1].sign(), direction.expand_as(found))
