"""Scores that another party computes, over links: those of one process to the bit, whatever breaks on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.defenses import GaussianIR, Rounding, ScoreNoise
from splitvfl.errors import ConfigError, DataError, LinkError, ProtocolError, ReplayError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.prediction import Prediction, predict
from splitvfl.exchange.scoring import COORDINATOR
from splitvfl.learning.tasks import Task, task_for
from splitvfl.party.memoised import MemoisedNoise
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.party.scorer import Scorer
from splitvfl.run import prediction
from splitvfl.run.prediction import ActivePrediction, PassivePrediction, PredictionSettings
from splitvfl.run.scoring import CoordinatorPrediction, CoordinatorSettings
from tests.builders import ACTIVE
from tests.exchange.test_scoring import linear_parties
from tests.run.test_prediction import THREE, Noise, World, session, settings

ROLES = [COORDINATOR, *THREE]


def parties(task: str = "binary", *, defended: bool = False) -> dict[str, Party]:
    active, passives = linear_parties(THREE, task=task)
    active.widths = dict.fromkeys(THREE, active.task.outputs)
    if defended:
        for name, party in passives.items():
            noise = GaussianIR(clip=2.0, sigma=0.2)
            party.activation.attach(noise, at=("prediction",), noise_seed_for_experiments=len(name))
    return {ACTIVE: active, **passives}


def scorer_of(
    name: str, task: Task, *, defended: bool, seed: int | None = 1, noise: MemoisedNoise | None = None
) -> Scorer:
    scorer = Scorer(name, task, noise=noise)
    if defended:
        scorer.scores.attach(Noise(), noise_seed_for_experiments=seed)
        scorer.scores.attach(Rounding(decimals=2))
    return scorer


def world_of(by: str, *breaks: tuple[str, int]) -> World:
    """Parties and, if it scores, the third one, each with a link to the label party."""
    return World((*THREE, COORDINATOR) if by == COORDINATOR else THREE, breaks=breaks)


def score(
    world: World,
    by: str,
    all_parties: Mapping[str, Party],
    *,
    defended: bool = False,
    changed: Mapping[str, dict[str, Any]] | None = None,
    seed: int | None = 1,
    loss: str = "usual",
    noise: MemoisedNoise | None = None,
    at_third: Mapping[str, Any] | None = None,
    retries: int = 3,
    **common: Any,
) -> dict[str, Any]:
    """Score as ``by``; ``changed`` are settings that one party alone has, ``at_third`` those of the coordinator."""
    active = all_parties[ACTIVE]
    assert isinstance(active, ActiveParty)
    common = {"learned": TaskSpec(active.task.name, active.task.outputs), "loss": "usual", "scores_by": by, **common}
    tasks: dict[str, Callable[[], Any]] = {}
    for name, party in all_parties.items():
        agreed: PredictionSettings = settings(**{**common, **(changed or {}).get(name, {})})
        here = session(world, name, retries=retries)
        if isinstance(party, ActiveParty):
            tasks[name] = ActivePrediction(party, world.passives, agreed, here).run
        else:
            assert isinstance(party, PassiveParty)
            scorer = None
            if agreed.scores_by == name:
                scorer = scorer_of(name, active.task, defended=defended, seed=seed, noise=noise)
            tasks[name] = PassivePrediction(party, (ACTIVE,), agreed, here, scorer=scorer).run
    if by == COORDINATOR:

        def made(learned: TaskSpec) -> Scorer:
            task = task_for(learned.task, learned.outputs)
            return scorer_of(COORDINATOR, task, defended=defended, seed=seed, noise=noise)

        shared = {name: common[name] for name in ("memoised", "direction_by") if name in common}
        third = CoordinatorSettings(loss=loss, **{**shared, **(at_third or {})})
        tasks[COORDINATOR] = CoordinatorPrediction(
            ACTIVE, made, third, session(world, COORDINATOR, retries=retries)
        ).run
    return world.run(tasks)


def in_one_process(by: str, task: str = "binary", *, defended: bool = False) -> Tensor:
    all_parties = parties(task, defended=defended)
    active = all_parties[ACTIVE]
    assert isinstance(active, ActiveParty)
    if defended:
        active.scores.attach(Noise(), noise_seed_for_experiments=1)
        active.scores.attach(Rounding(decimals=2))
    passives = {name: party for name, party in all_parties.items() if isinstance(party, PassiveParty)}
    return predict(active, passives, batch_size=7, scores_by=by).scores


@pytest.mark.parametrize("defended", [False, True], ids=["plain", "defended"])
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("by", ROLES)
def test_scores_over_links_are_those_of_one_process(by: str, task: str, defended: bool) -> None:
    expected = in_one_process(by, task, defended=defended)
    assert torch.equal(expected, in_one_process("active", task, defended=defended))

    found = score(world_of(by), by, parties(task, defended=defended), defended=defended)

    assert torch.equal(found[ACTIVE].scores, expected)
    assert found[ACTIVE].outputs.shape == (24, 0)
    for name in THREE:
        if name == by:
            assert torch.equal(found[name], expected), "it learns the scores in return"
        else:
            assert found[name] is None
    assert found.get(COORDINATOR, 24) == 24


@pytest.mark.parametrize("by", ROLES)
def test_what_crosses_is_what_the_roles_say(by: str) -> None:
    world = world_of(by)

    score(world, by, parties())

    # 24 records in messages of 7.
    for name in THREE:
        sent = [message.kind for message in world.sent[name] if message.kind not in ("agreement", "farewell")]
        assert sent == ["introduction", "member", *["scores" if name == by else "part"] * 4]
    to_scorer = [message.kind for message in world.sent[ACTIVE] if message.receiver == by]
    assert to_scorer[-9:] == [*["parts", "share"] * 4, "farewell"]
    bystander = next(name for name in THREE if name != by)
    assert {message.kind for message in world.sent[ACTIVE] if message.receiver == bystander} == {
        "agreement",
        "introduction",
        "member",
        "members",
        "scoring",
        "farewell",
    }


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("by", ROLES)
def test_masked_parts_add_up_to_the_same(by: str, masked: bool) -> None:
    found = score(world_of(by), by, parties("multiclass"), masked=masked)[ACTIVE].scores

    # Masked parts are rounded to 2^-32, and their sum to float32: a few roundings of logits of size ten.
    torch.testing.assert_close(found, in_one_process(by, "multiclass"), rtol=1e-5 * masked, atol=1e-6 * masked)


# --- broken links


@pytest.mark.parametrize("when", [0, 1, 3, 5])
@pytest.mark.parametrize("by", ROLES)
def test_a_broken_link_is_made_anew_and_everything_is_said_again_to_the_bit(by: str, when: int) -> None:
    expected = in_one_process(by, defended=True)
    other = next(name for name in THREE if name != by)
    world = world_of(by, (by, when), (other, 4))

    found = score(world, by, parties(defended=True), defended=True)

    assert world.met == 3
    assert torch.equal(found[ACTIVE].scores, expected)
    answers: dict[int, Tensor] = {}
    for message in world.sent[by]:
        if message.kind == "scores":
            assert torch.equal(answers.setdefault(message.step, message.payload), message.payload)
    assert sorted(answers) == [0, 1, 2, 3]


@pytest.mark.parametrize("by", ROLES)
def test_noise_from_entropy_is_repeated_too(by: str) -> None:
    world = world_of(by, (by, 5))

    found = score(world, by, parties(), defended=True, seed=None)

    answers = [message for message in world.sent[by] if message.kind == "scores"]
    repeated = {step: [m.payload for m in answers if m.step == step] for step in range(4)}
    assert len(answers) > 4
    assert all(torch.equal(one, first) for first, *rest in repeated.values() for one in rest)
    assert torch.equal(found[ACTIVE].scores, torch.cat([first for first, *_ in repeated.values()]))


@pytest.mark.parametrize("by", ROLES)
def test_memoised_noise_is_the_same_in_the_next_prediction_and_in_another_batch(by: str) -> None:
    noise = MemoisedNoise(b"k" * 32)

    def found(rows: int, noise: MemoisedNoise | None, *breaks: tuple[str, int]) -> Tensor:
        options: dict[str, Any] = {"memoised": noise is not None, "rows": rows, "seed": None, "noise": noise}
        scores: Tensor = score(world_of(by, *breaks), by, parties(), defended=True, **options)[ACTIVE].scores
        return scores

    first = found(7, noise)
    assert torch.equal(found(7, noise), first), "another process"
    assert torch.equal(found(11, noise, (by, 3)), first), "in messages of another length, begun again"
    assert not torch.equal(found(7, MemoisedNoise(b"j" * 32)), first)
    assert not torch.equal(found(7, None), found(7, None)), "fresh noise is not"


def directed(scorer: Scorer) -> Scorer:
    scorer.scores.attach(ScoreNoise(scheme="optimum", power=1.0, direction="sent"), noise_seed_for_experiments=1)
    return scorer


@pytest.mark.parametrize("by", [COORDINATOR, "telecom", "shop"])
def test_a_direction_crosses_once_a_meeting_and_is_the_same_after_a_broken_link(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scorer_of
    monkeypatch.setattr("tests.run.test_scoring.scorer_of", lambda *about, **options: directed(made(*about, **options)))
    active, passives = linear_parties(THREE)
    active.scores.attach(ScoreNoise(scheme="optimum", power=1.0, direction="sent"), noise_seed_for_experiments=1)
    expected = predict(active, passives, batch_size=7, scores_by=by, direction_by="shop").scores
    world = world_of(by, (by, 5))

    found = score(world, by, parties(), direction_by="shop")

    assert torch.equal(found[ACTIVE].scores, expected)
    sent = [message for message in world.sent["shop"] if message.kind == "direction"]
    assert len(sent) == (0 if by == "shop" else world.met)


@pytest.mark.parametrize("by", [COORDINATOR, "telecom", "shop"])
def test_who_begins_again_with_another_direction_gets_no_scores(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, directions = scorer_of, [[0.6, 0.8], [0.8, 0.6], [0.8, -0.6], [0.0, 1.0]]
    monkeypatch.setattr("tests.run.test_scoring.scorer_of", lambda *about, **options: directed(made(*about, **options)))
    monkeypatch.setattr(
        "splitvfl.exchange.scoring.own_direction",
        lambda party: torch.tensor(directions.pop(0), dtype=torch.float64),
    )

    found = score(world_of(by, (by, 5)), by, parties(), direction_by="shop")

    assert isinstance(found[by], ReplayError)
    assert "sent another direction" in str(found[by])
    assert not isinstance(found[ACTIVE], Prediction)


@pytest.mark.parametrize("by", [COORDINATOR, "telecom"])
def test_who_takes_other_noise_on_scores_for_agreed_is_told(by: str) -> None:
    for one in (ACTIVE, "shop"):
        for changed, words in (
            ({"memoised": True}, "noise of scores"),
            ({"direction_by": "shop"}, "direction of noise is sent by"),
        ):
            world = world_of(by)
            found = score(world, by, parties(), changed={one: changed})
            assert any(words in line for line in wrong(found)), found
            assert nothing_was_sent(world)


@pytest.mark.parametrize("promised", [True, False], ids=["memoised", "fresh"])
def test_a_label_party_cannot_tell_the_scorer_of_other_noise_than_those_that_send_parts(
    promised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes part in each comparison alone, and lies in that with the coordinator."""
    honest = prediction.third_terms
    monkeypatch.setattr(
        prediction, "third_terms", lambda *given, **more: honest(*given, **{**more, "memoised": not promised})
    )
    found = score(
        world_of(COORDINATOR),
        COORDINATOR,
        parties(),
        memoised=promised,
        at_third={"memoised": not promised},
        noise=None if promised else MemoisedNoise(bytes(32)),
    )

    assert isinstance(found[COORDINATOR], DataError)
    assert "write the same prediction.score_noise at all parties" in str(found[COORDINATOR])
    assert not isinstance(found[ACTIVE], Prediction)


@pytest.mark.parametrize("defended", [True, False], ids=["defended", "plain"])
@pytest.mark.parametrize("who", [ACTIVE, "shop"])
@pytest.mark.parametrize("by", [COORDINATOR, "telecom"])
def test_who_begins_again_gets_no_scores_for_another_part(by: str, who: str, defended: bool) -> None:
    all_parties = parties()
    party = all_parties[who]
    own, calls = party.test_batch, [0]

    def shifted(rows: Tensor) -> Any:
        calls[0] += 1
        batch = own(rows)
        if calls[0] > 2:  # from the second beginning on
            batch.columns.numeric.add_(1.0)
        return batch

    party.test_batch = shifted  # type: ignore[method-assign]
    # The one that scores loses its link after two answers.
    world = world_of(by, (by, 4 if by == COORDINATOR else 5))

    found = score(world, by, all_parties, defended=defended)

    answered = [message.step for message in world.sent[by] if message.kind == "scores"]
    assert answered == [0, 1]
    assert isinstance(found[by], ReplayError)
    kind = "share" if who == ACTIVE else "part"
    assert f"{who} sent another {kind} for step 0 than before" in str(found[by])


def test_who_names_the_parties_in_another_order_gets_no_other_sum_with_the_same_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_parties = parties()
    liar = all_parties["shop"]
    own, honest, meetings = liar.test_batch, ActivePrediction._meet_scorer, [0]

    def shifted(rows: Tensor) -> Any:
        batch = own(rows)
        batch.columns.numeric.add_(float(meetings[0] > 1))
        return batch

    def reordered(self: ActivePrediction) -> Any:
        meetings[0] += 1
        if meetings[0] > 1:
            self._passives = (*reversed(self._passives),)
        return honest(self)

    liar.test_batch = shifted  # type: ignore[method-assign]
    monkeypatch.setattr(ActivePrediction, "_meet_scorer", reordered)
    world = world_of(COORDINATOR, (COORDINATOR, 4))

    found = score(world, COORDINATOR, all_parties, defended=True, masked=True)

    assert [message.step for message in world.sent[COORDINATOR] if message.kind == "scores"] == [0, 1]
    assert isinstance(found[COORDINATOR], ReplayError)


@pytest.mark.parametrize("by", [COORDINATOR, "shop"])
def test_parts_that_are_to_be_added_in_another_order_have_no_second_look_at_memoised_noise(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    names = ("gym", "shop", "telecom")
    active, passives = linear_parties(names, task="multiclass")
    active.widths = dict.fromkeys(names, active.task.outputs)
    honest, meetings = ActivePrediction._meet_scorer, [0]

    def reordered(self: ActivePrediction) -> Any:
        meetings[0] += 1
        if meetings[0] > 1:
            self._passives = (*reversed(self._passives),)
        return honest(self)

    monkeypatch.setattr(ActivePrediction, "_meet_scorer", reordered)
    linked = (*names, COORDINATOR) if by == COORDINATOR else names
    world = World(linked, breaks=((by, 4 if by == COORDINATOR else 5),))

    everybody: dict[str, Party] = {ACTIVE: active, **passives}
    found = score(world, by, everybody, defended=True, memoised=True, noise=MemoisedNoise(bytes(32)))

    assert [message.step for message in world.sent[by] if message.kind == "scores"] == [0, 1]
    assert isinstance(found[by], ReplayError)
    assert f"{ACTIVE} sent another order of parties for step 0 than before" in str(found[by])


def test_links_that_keep_breaking_are_given_up() -> None:
    world = world_of(COORDINATOR, *[(COORDINATOR, 3)] * 9)

    found = score(world, COORDINATOR, parties(), retries=2)

    assert world.met == 3
    assert isinstance(found[COORDINATOR], LinkError)
    assert isinstance(found[ACTIVE], LinkError)


# --- who does not fit


def wrong(found: Mapping[str, Any]) -> list[str]:
    return [str(one) for one in found.values() if isinstance(one, DataError)]


def nothing_was_sent(world: World) -> bool:
    """Whether no number that depends on a record has left anybody."""
    kinds = {message.kind for sent in world.sent.values() for message in sent}
    return not kinds & {"direction", "part", "parts", "share", "scores", "activation"}


class Counted:
    """A tally that notes whether anything was counted."""

    def __init__(self) -> None:
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def leaving(self, records: int) -> None: ...


@pytest.mark.parametrize("by", ["telecom", COORDINATOR])
def test_two_parties_that_both_claim_to_score_are_told(by: str) -> None:
    world, all_parties, tallies = world_of(by), parties(), [Counted(), Counted()]
    for name, tally in zip(THREE, tallies, strict=True):
        party = all_parties[name]
        assert isinstance(party, PassiveParty)
        party.tally = tally

    found = score(world, by, all_parties, changed={"shop": {"scores_by": "shop"}})

    assert any(f"scores are computed by: bank has {by}, shop has shop" in one for one in wrong(found))
    assert nothing_was_sent(world)
    assert [tally.begun for tally in tallies] == [0, 0], "no look at anything"


def test_a_party_that_expects_the_label_party_to_score_is_told() -> None:
    world = world_of("telecom")

    found = score(world, "telecom", parties(), changed={"shop": {"scores_by": "active"}})

    assert any("scores are computed by: bank has telecom" in one for one in wrong(found))
    assert nothing_was_sent(world)


def test_a_scorer_of_another_loss_is_told() -> None:
    for by in (COORDINATOR, "telecom"):
        world = world_of(by)

        found = score(world, by, parties(), loss="another", changed={by: {"loss": "another"}})

        assert any("loss" in one and "another" in one for one in wrong(found))
        assert nothing_was_sent(world)


def test_no_party_ends_well_where_nothing_was_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defense in the third party's file does not fit: it says so, and nobody takes what was sent for scored."""

    def unfit(name: str, task: Task, **options: Any) -> Scorer:
        scorer = Scorer(name, task)
        scorer.scores.attach(ScoreNoise(scheme=2, power=1.0, direction=[1.0, -1.0, 0.0]))
        return scorer

    monkeypatch.setattr(sys.modules[__name__], "scorer_of", unfit)
    world = world_of(COORDINATOR)
    world.patience_s = 0.5

    found = score(world, COORDINATOR, parties())

    assert isinstance(found[COORDINATOR], ConfigError)
    assert str(found[COORDINATOR]) == (
        "a defense of scores in the file of coordinator does not fit what is predicted: direction: expected a number "
        "for each of 2 classes, got 3 numbers; change it there (defenses), and begin again"
    )
    for name in (ACTIVE, *THREE):
        assert isinstance(found[name], LinkError | ProtocolError), (name, found[name])
    for name in THREE:
        assert world.told[name][-1] == "nobody here knows of any score; what was counted stays counted"


def test_who_computed_the_scores_keeps_them_where_the_label_party_leaves_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another passive party has none, and does not end well."""

    def stopped(self: ActivePrediction) -> Any:
        raise LinkError("it lost another party")
        yield  # a half

    monkeypatch.setattr(ActivePrediction, "_leave", stopped)
    world = world_of("telecom")
    world.patience_s = 0.5

    found = score(world, "telecom", parties(), retries=0)

    torch.testing.assert_close(found["telecom"], in_one_process("telecom"), rtol=0.0, atol=0.0)
    assert isinstance(found["shop"], LinkError)
