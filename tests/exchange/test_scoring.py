"""Scores that another party computes: the same to the bit, and nobody learns more than its role says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from splitvfl.crypto.key_agreement import AgreementKey
from splitvfl.crypto.sum_masks import SumMasks
from splitvfl.defenses import ClassLabel, GaussianIR, Rounding
from splitvfl.errors import ArgumentError, ConfigError, PrivacyError
from splitvfl.exchange.masking import mask_parts
from splitvfl.exchange.prediction import predict, predict_records
from splitvfl.exchange.scoring import own_part
from splitvfl.learning.tasks import Multiclass, task_for
from splitvfl.messaging.messages import Message
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.party.scorer import Scorer, added_up
from splitvfl.system.gpu_copies import bytes_of
from tests.builders import ACTIVE, active_party, party_data, passive_party, seeded

ONE, TWO, NINE = ("telecom",), ("shop", "telecom"), tuple("abcdefghi")
COLUMNS = 5


def linear_parties(
    names: Sequence[str] = TWO, *, task: str = "binary", own: int = 2
) -> tuple[ActiveParty, dict[str, PassiveParty]]:
    """Parties of a linear model with weights of order one, connected in the order of their names."""
    what = task_for(task, 3)
    top = seeded("linear top", lambda: LinearTop(len(names), what.outputs, active_inputs=own, init="normal"))
    assert isinstance(top, LinearTop)
    nn.init.normal_(top.intercept, generator=torch.Generator().manual_seed(1))
    active = ActiveParty(party_data(ACTIVE, width=own, task=task), top, task=what)
    for name in names:
        active.connect(name)
    bottoms = {name: seeded(name, lambda: Linear(COLUMNS, what.outputs, init="normal")) for name in names}
    return active, {name: PassiveParty(party_data(name, width=COLUMNS), bottom) for name, bottom in bottoms.items()}


def scorers(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(["coordinator", names[0], names[-1]]))


ROLES = [(names, by) for names in (ONE, TWO, NINE) for by in scorers(names)]


def received(crossed: Sequence[Message], name: str) -> list[Message]:
    return [message for message in crossed if message.receiver == name]


# --- the scores


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize(("names", "by"), ROLES)
def test_scores_are_those_of_the_label_party_to_the_bit(names: tuple[str, ...], by: str, task: str) -> None:
    active, passives = linear_parties(names, task=task)
    expected = predict(active, passives, batch_size=7)

    found = predict(active, passives, batch_size=7, scores_by=by)

    assert torch.equal(found.scores, expected.scores)
    assert found.outputs.shape == (24, 0), "the label party has no logits"


@pytest.mark.parametrize("by", ["coordinator", "shop"])
def test_a_label_party_without_columns_has_its_intercept_to_add(by: str) -> None:
    active, passives = linear_parties(own=0, task="multiclass")

    assert torch.equal(predict(active, passives, scores_by=by).scores, predict(active, passives).scores)


@pytest.mark.parametrize("by", ["coordinator", "telecom"])
def test_scores_are_the_softmax_of_one_linear_model_of_all_columns(by: str) -> None:
    active, passives = linear_parties(task="multiclass")
    top = active.top
    assert isinstance(top, LinearTop)
    assert top.own is not None
    weights = [party.bottom.weight for party in passives.values()] + [top.own.weight]
    weight = np.concatenate([one.detach().double().numpy() for one in weights], axis=1)  # type: ignore[operator]
    columns = [party.data.test.columns.numeric for party in (*passives.values(), active)]
    logits = np.concatenate([one.double().numpy() for one in columns], axis=1) @ weight.T
    logits += top.intercept.detach().double().numpy()
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))

    found = predict(active, passives, scores_by=by).scores

    # Logits of size about ten, summed over a dozen terms in float32, are off by a few 1e-6.
    np.testing.assert_allclose(found.numpy(), shares / shares.sum(axis=1, keepdims=True), rtol=3e-5, atol=1e-7)


def test_parts_are_added_up_as_the_label_partys_model_does_however_many_there_are() -> None:
    draw = torch.Generator().manual_seed(0)
    for parties in (1, 2, 3, 4, 5, 8, 17, 33):
        for outputs in (1, 3, 8):
            parts = [torch.randn(50, outputs, generator=draw) * 100 for _ in range(parties)]
            columns = torch.randn(50, 3, generator=draw)
            top = LinearTop(parties, outputs, active_inputs=3, init="normal")
            own = top(torch.cat([*map(torch.zeros_like, parts), columns], dim=1))
            assert torch.equal(added_up(parts, own), top(torch.cat([*parts, columns], dim=1)))


@pytest.mark.parametrize("by", ["coordinator", "shop", "telecom"])
def test_defenses_of_scores_and_of_activations_act_wherever_scores_are_computed(by: str) -> None:
    def found(scores_by: str) -> Tensor:
        active, passives = linear_parties()
        for name, party in passives.items():
            party.activation.attach(GaussianIR(clip=1.0, sigma=0.3), noise_seed_for_experiments=len(name))
        active.scores.attach(Rounding(decimals=1))
        return predict(active, passives, scores_by=scores_by, batch_size=7).scores

    assert torch.equal(found(by), found("active"))
    assert {round(10 * score) / 10 for score in found(by).tolist()} == {round(x, 1) for x in found(by).tolist()}


# --- who learns what


def crossed_by(scores_by: str, names: Sequence[str] = TWO, **options: Any) -> tuple[Any, list[Message]]:
    active, passives = linear_parties(names, task="multiclass", **options)
    crossed: list[Message] = []
    records = {party.name: party.data.test for party in (active, *passives.values())}
    predict_records(active, passives, records, scores_by=scores_by, record=crossed.append)
    return (active, passives), crossed


def activations(passives: Mapping[str, PassiveParty]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: party.bottom(party.data.test.columns.numeric) for name, party in passives.items()}


def all_bytes(messages: Sequence[Message]) -> bytes:
    return b"|".join(bytes(bytes_of(message.payload.detach())) for message in messages)


@pytest.mark.parametrize("by", ["coordinator", "shop", "telecom"])
def test_the_label_party_receives_scores_and_what_it_cannot_read(by: str) -> None:
    (_, passives), crossed = crossed_by(by)
    here = received(crossed, ACTIVE)

    assert {message.payload.dtype for message in here if message.kind != "scores"} <= {torch.uint8}
    seen = all_bytes(here)
    for part in activations(passives).values():
        assert part.numpy().tobytes()[:12] not in seen
        assert part[-1].numpy().tobytes() not in seen


def test_what_the_label_party_receives_leaves_one_number_of_each_record_open() -> None:
    """Weights that move all classes of a record alike, by whatever it is, give what it receives: k - 1 equations."""
    active, passives = linear_parties(task="multiclass")
    before = predict(active, passives, scores_by="coordinator").scores
    moved = activations(passives)["telecom"]
    with torch.no_grad():
        passives["telecom"].bottom.weight += torch.randn(1, COLUMNS, generator=torch.Generator().manual_seed(3))  # type: ignore[operator]
    shift = activations(passives)["telecom"] - moved

    after = predict(active, passives, scores_by="coordinator").scores

    assert shift.abs().min() > 1e-3, "every activation is another"
    # As many roundings of logits of size ten as there are terms.
    torch.testing.assert_close(after, before, rtol=3e-5, atol=1e-6)


@pytest.mark.parametrize("scores_by", ["active", "coordinator", "shop"])
def test_a_passive_party_that_does_not_score_receives_nothing_of_a_score(scores_by: str) -> None:
    _, crossed = crossed_by(scores_by)

    kinds = {message.kind for message in received(crossed, "telecom")}

    assert kinds == ({"scores"} if scores_by == "active" else {"members", "member", "scoring"})


def test_a_third_party_receives_parts_and_no_id_column_or_label() -> None:
    (active, passives), crossed = crossed_by("coordinator")
    here = received(crossed, "coordinator")

    assert [message.kind for message in here] == ["members", "member", "member", "scoring", "parts", "share"]
    seen = all_bytes(here)
    for number in active.data.test.ids.tolist():
        assert number.to_bytes(8, "little", signed=True) not in seen
    for part in activations(passives).values():
        assert part[-1].numpy().tobytes() not in seen, "sealed on the way"
    for party in (active, *passives.values()):
        for row in party.data.test.columns.numeric:
            assert row.numpy().tobytes() not in seen
    labels = active.data.test.labels
    assert labels is not None
    assert all(labels.to(dtype).numpy().tobytes() not in seen for dtype in (torch.float32, torch.int64, torch.uint8))


def test_a_passive_party_that_scores_receives_the_others_parts_and_the_label_partys() -> None:
    (active, _), crossed = crossed_by("shop")
    here = received(crossed, "shop")
    top = active.top
    assert isinstance(top, LinearTop)

    assert [message.kind for message in here] == ["members", "member", "scoring", "parts", "share"]
    with torch.no_grad():
        torch.testing.assert_close(here[-1].payload, top.active_logits(active.data.test.columns.numeric))


@pytest.mark.parametrize("by", ["coordinator", "shop"])
def test_who_computes_scores_has_them_before_their_defenses(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the label party it has no more: its part is among them."""
    active, passives = linear_parties()
    plain = predict(active, passives).scores
    active.scores.attach(ClassLabel(epsilon=0.0))
    seen = _seen_by_scorer(monkeypatch)

    answered = predict(active, passives, scores_by=by).scores

    assert set(answered.tolist()) == {0.0, 1.0}
    (parts, own), part = seen[0], activations(passives)
    assert torch.equal(torch.sigmoid(sum(parts) + own)[:, 0], plain)
    assert all(torch.equal(one, other) for one, other in zip(parts, part.values(), strict=True))


def _seen_by_scorer(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Tensor], Tensor]]:
    """What whoever computes scores has to add up, batch by batch, as it comes."""
    seen: list[tuple[list[Tensor], Tensor]] = []
    answer = Scorer.answer

    def spied(self: Scorer, parts: Any, own: Tensor, **known: Any) -> Tensor:
        seen.append(([*parts], own))
        return answer(self, parts, own, **known)

    monkeypatch.setattr(Scorer, "answer", spied)
    return seen


@pytest.mark.parametrize("by", ["coordinator", "telecom"])
def test_of_masked_parts_a_scorer_learns_the_sum(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("lab", "shop", "telecom")
    active, passives = linear_parties(names)
    plain = predict(active, passives).scores
    keys = {name: AgreementKey() for name in names}
    for name, party in passives.items():
        others = {other: key.public for other, key in keys.items() if other != name}
        mask_parts(party, ACTIVE, SumMasks(keys[name]), others, b"session")
    active.sums_parts = True
    seen = _seen_by_scorer(monkeypatch)

    found = predict(active, passives, scores_by=by).scores

    ((total,), _), parts = seen[0], activations(passives)
    # Each part is rounded to 2^-32, and the sum to float32.
    torch.testing.assert_close(total, sum(parts.values(), torch.zeros_like(total)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)


def test_who_asks_again_with_another_part_of_its_own_reads_a_part_behind_a_class_label() -> None:
    """The label is which side of nothing a part lies on, moved by whatever the label party likes."""
    active, passives = linear_parties(ONE)
    active.scores.attach(ClassLabel(epsilon=0.0))
    part = activations(passives)["telecom"][:, 0]
    top = active.top
    assert isinstance(top, LinearTop)
    low, high = -64.0, 64.0
    with torch.no_grad():
        for _ in range(30):  # of the first record: halves the interval each time
            own = top.active_logits(active.data.test.columns.numeric)[0, 0]
            top.intercept += -(low + high) / 2 - own
            if predict(active, passives, scores_by="coordinator").scores[0] > 0.5:
                low = (low + high) / 2
            else:
                high = (low + high) / 2

    # 128 / 2^30 is below float32's rounding of the intercept at size 10.
    assert (low + high) / 2 == pytest.approx(part[0].item(), abs=1e-5)


def test_of_two_classes_a_score_that_nobody_defends_is_the_only_passive_partys_part() -> None:
    """One logit is one equation whoever adds up: its inverse is the sum, and the label party knows the rest of it."""
    active, passives = linear_parties(ONE)
    part = activations(passives)["telecom"]
    with torch.no_grad():
        own = own_part(active, active.data.test)

    scores = predict(active, passives, scores_by="coordinator").scores.double()

    # Of a probability at 1 - e^-10 float32 leaves 6e-8 / 5e-5 of the logit.
    small = part.abs().squeeze(1) + own.abs().squeeze(1) < 10
    assert small.sum() > 5
    torch.testing.assert_close(torch.logit(scores)[small] - own[small, 0], part[small, 0].double(), atol=2e-3, rtol=0)


def test_who_asks_again_with_large_parts_of_its_own_finds_the_number_that_scores_leave_open() -> None:
    """Softmax hides what all logits of a record have in common; a sum with a large number rounds by it."""
    part = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * 3
    scorer = Scorer("notary", Multiclass(3))

    def told(parts: Tensor, own: float) -> Tensor:
        return scorer.answer([parts], torch.full_like(parts, own), number=0, ids=None).double()

    apart = told(part, 0.0).log()
    apart -= apart[:, :1].clone()
    guesses = torch.arange(-12, 12, 0.02, dtype=torch.float64)
    guessed = (guesses[None, :, None] + apart[:, None, :]).float()
    misfit = torch.zeros(len(part), len(guesses))
    for power in range(14, 29):  # float32 rounds sums of this size to 2^-9, ..., 2^5
        would_be = told(guessed.reshape(-1, 3), 2.0**power).reshape(*guessed.shape)
        misfit += (would_be - told(part, 2.0**power)[:, None]).abs().sum(2).clamp(max=0.02)

    found = guesses[misfit.argmin(1)]

    # Whoever knows nothing is off by .67 standard deviations, 2.0, in half of all records.
    assert (found - part[:, 0]).abs().median() < 0.1


@pytest.mark.parametrize("names", [ONE, TWO])
def test_what_crosses_where_the_label_party_computes_scores_is_what_always_crossed(names: tuple[str, ...]) -> None:
    _, crossed = crossed_by("active", names)

    assert sorted({(message.sender, message.kind) for message in crossed}) == sorted(
        [(ACTIVE, "scores"), *((name, "activation") for name in names)]
    )


# --- what cannot be


def test_a_defense_that_asks_for_ids_is_none_for_a_third_party() -> None:
    asked: list[list[int]] = []

    class ByRecord:
        crossing = "scores"

        def __call__(self, scores: Tensor, secrets: Any, /) -> Tensor:
            asked.append(secrets.ids.tolist())
            return scores

    active, passives = linear_parties()
    active.scores.attach(ByRecord())
    predict(active, passives, scores_by="shop")
    assert asked == [active.data.test.ids.tolist()]
    with pytest.raises(PrivacyError, match="ByRecord"):
        predict(active, passives, scores_by="coordinator")


def test_only_linear_models_can_be_scored_elsewhere() -> None:
    active, passives = active_party(), {"telecom": passive_party("telecom")}
    with pytest.raises(ConfigError, match=r"only the scores of linear models .* adds up logits, got MLP"):
        predict(active, passives, scores_by="coordinator")


def test_nobody_computes_scores_who_does_not_take_part() -> None:
    active, passives = linear_parties()
    with pytest.raises(ArgumentError, match=r"a passive party \(shop, telecom\); got 'bank'"):
        predict(active, passives, scores_by=ACTIVE)
