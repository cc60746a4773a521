"""An evaluation's figures are the unsplit model's, no score leaves the label party, and its answer has two bits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, r2_score, roc_auc_score
from torch import Tensor

from splitvfl.data.columns import Records, Shards
from splitvfl.defenses import GaussianIR
from splitvfl.errors import DataError, ProtocolError
from splitvfl.exchange import evaluation
from splitvfl.exchange.evaluation import Evaluation, EvaluationPlan, active_evaluation, passive_evaluation
from splitvfl.learning import drawing
from splitvfl.learning.schedule import GO_ON, EarlyStopping, Verdict
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.builders import ACTIVE, WIDTH, active_party, passive_party

STOPPING = EarlyStopping(patience=1, validation_every=4)
HELD_OUT = range(3, 48, 4)
PLAN = EvaluationPlan(validation=HELD_OUT, test=24, rows=5)


def parties(
    names: tuple[str, ...] = ("telecom",), *, stopping: bool = True, **options: Any
) -> tuple[ActiveParty, dict[str, PassiveParty]]:
    active = active_party(len(names), **options)
    for name in names:
        active.connect(name)
    if stopping:
        active.stop_early_by(STOPPING, HELD_OUT)
    dropout = options.get("dropout", 0.0)
    return active, {name: passive_party(name, dropout=dropout) for name in names}


def evaluate(
    active: ActiveParty,
    passives: dict[str, PassiveParty],
    plan: EvaluationPlan = PLAN,
    *,
    record: Any = None,
    epoch: int = 1,
) -> dict[str, Any]:
    halves: dict[str, Half] = {
        name: passive_evaluation(party, plan, step=7, epoch=epoch, active=ACTIVE) for name, party in passives.items()
    }
    halves[ACTIVE] = active_evaluation(active, plan, step=7, epoch=epoch)
    turns = {party.name: party.random for party in (active, *passives.values())}
    return converse(halves, turns=turns, record=record)


def unsplit(active: ActiveParty, passives: dict[str, PassiveParty], part: str, rows: list[int]) -> np.ndarray:
    """Raw outputs of the same weights as one model, a record at a time."""
    for party in (active, *passives.values()):
        party.module.eval()
    outputs = []
    with torch.no_grad():
        for row in rows:
            columns = [
                getattr(party.data, part).columns.numeric[row : row + 1] for party in (*passives.values(), active)
            ]
            inputs = [party.bottom(own) for party, own in zip(passives.values(), columns, strict=False)]
            outputs.append(active.top(torch.cat([*inputs, columns[-1]], dim=1)))
    for party in (active, *passives.values()):
        party.module.train()
    return torch.cat(outputs).double().numpy()


def by_sklearn(task: str, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    if task == "binary":
        return roc_auc_score(labels, outputs[:, 0]), log_loss(labels, 1 / (1 + np.exp(-outputs[:, 0])))
    if task == "multiclass":
        shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        return accuracy_score(labels, outputs.argmax(axis=1)), log_loss(labels, shares, labels=range(3))
    return r2_score(labels, outputs[:, 0]), mean_squared_error(labels, outputs[:, 0])


@pytest.mark.parametrize("names", [("telecom",), ("telecom", "shop")])
@pytest.mark.parametrize(("task", "metric"), [("binary", "auc"), ("multiclass", "accuracy"), ("regression", "r2")])
def test_the_figures_are_those_of_the_unsplit_model(names: tuple[str, ...], task: str, metric: str) -> None:
    active, passives = parties(names, task=task, dropout=0.5)
    expected = {}
    for part, where, rows in (("validation", "train", list(HELD_OUT)), ("test", "test", list(range(24)))):
        labels = getattr(active.data, where).labels[rows].double().numpy()
        figures = by_sklearn(task, unsplit(active, passives, where, rows), labels)
        expected |= {f"{part}/{metric}": figures[0], f"{part}/loss": figures[1]}

    evaluation: Evaluation = evaluate(active, passives)[ACTIVE]

    assert list(evaluation.figures) == list(expected)
    # Sums of a few float32 numbers about 1, in another order.
    assert evaluation.figures == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_outputs_of_test_records_stay_with_the_figures(task: str) -> None:
    active, passives = parties(task=task, dropout=0.5)
    expected = unsplit(active, passives, "test", list(range(24)))

    tested = evaluate(active, passives)[ACTIVE].tested

    assert tested.outputs.numpy() == pytest.approx(expected, abs=1e-5)
    assert tested.positions.tolist() == list(range(24))


def test_of_many_test_records_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_RECORDS", 10)
    monkeypatch.setattr(drawing, "MOST_RECORDS", 10)
    active, passives = parties()
    labels = active.data.test.labels
    assert labels is not None
    expected = unsplit(active, passives, "test", list(range(24)))

    first, second = (evaluate(active, passives)[ACTIVE].tested for _ in range(2))

    assert first.positions.tolist() == second.positions.tolist() == sorted(set(first.positions.tolist()))
    assert labels[first.positions].sum() == 5 == len(first.positions) / 2, "an AUC needs as many of each class"
    assert first.outputs.numpy() == pytest.approx(expected[first.positions], abs=1e-5)


def test_dummies_and_shards_that_lie_apart_are_left_out() -> None:
    active, passives = parties()
    real = torch.arange(24) % 3 > 0
    data = active.data
    active.data = dataclasses.replace(data, test=dataclasses.replace(data.test, real=real))
    assert evaluate(active, passives)[ACTIVE].tested.positions.tolist() == real.nonzero()[:, 0].tolist()
    for here, expected in ((None, True), (0, False)):
        active.data = dataclasses.replace(data, shards=Shards((48,), (24,), here))
        assert (evaluate(active, passives)[ACTIVE].tested is not None) is expected


def test_only_activations_go_one_way_and_two_bits_the_other() -> None:
    active, passives = parties(("telecom", "shop"))
    crossed: list[Message] = []
    results = evaluate(active, passives, record=crossed.append)

    for name in passives:
        sent = [message for message in crossed if message.sender == name]
        assert {(message.receiver, message.kind, message.step) for message in sent} == {(ACTIVE, "evaluation", 7)}
        # Twelve validation records and 24 test records, five at a time.
        assert [tuple(message.payload.shape) for message in sent] == [(n, WIDTH) for n in (5, 5, 2, 5, 5, 5, 5, 4)]
        received = [message for message in crossed if message.receiver == name]
        assert [(message.kind, message.step, message.payload.dtype) for message in received] == [
            ("verdict", 7, torch.int64)
        ]
        assert received[0].payload.tolist() == [0, 1]
        assert results[name] == results[ACTIVE].verdict == Verdict(stop=False, best=True)
    assert not any(message.payload.requires_grad for message in crossed)


def test_without_early_stopping_the_answer_says_nothing() -> None:
    active, passives = parties(stopping=False)
    for epoch in range(1, 4):
        crossed: list[Message] = []
        results = evaluate(active, passives, EvaluationPlan(range(0), 24), record=crossed.append, epoch=epoch)
        assert set(results[ACTIVE].figures) == {"test/auc", "test/loss"}
        assert [message.payload.tolist() for message in crossed if message.sender == ACTIVE] == [[0, 0]]
        assert results["telecom"] == GO_ON
        with torch.no_grad():
            next(active.top.parameters()).neg_()
    assert (active.weights.best.epoch, passives["telecom"].weights.best.epoch) == (None, None)


def test_every_party_keeps_the_weights_of_the_best_evaluation_and_stops_with_the_others() -> None:
    active, passives = parties(("telecom", "shop"))
    everybody = (active, *passives.values())
    first = evaluate(active, passives, epoch=1)[ACTIVE]
    kept = {party.name: [weight.clone() for weight in party.module.state_dict().values()] for party in everybody}
    with torch.no_grad():
        for party in everybody:
            for weight in party.module.parameters():
                weight.neg_()
    worse = evaluate(active, passives, epoch=2)[ACTIVE]
    assert worse.figures["validation/auc"] <= first.figures["validation/auc"]
    assert (first.verdict, worse.verdict) == (Verdict(stop=False, best=True), Verdict(stop=True, best=False))
    for party in everybody:
        assert (party.weights.best.stopped, party.weights.best.epoch) == (True, 1)
        party.weights.best.use()
        assert all(map(torch.equal, party.module.state_dict().values(), kept[party.name]))


def test_the_verdict_is_on_validation_records_and_not_on_test_records() -> None:
    """With the validation labels turned over, better becomes worse; the test figures stay."""
    active, passives = parties()
    before = evaluate(active, passives)[ACTIVE].figures
    labels = active.data.train.labels
    assert labels is not None
    labels[list(HELD_OUT)] = 1 - labels[list(HELD_OUT)]
    after = evaluate(active, passives)[ACTIVE].figures
    assert after["validation/auc"] == pytest.approx(1 - before["validation/auc"])
    assert (after["test/auc"], after["test/loss"]) == (before["test/auc"], before["test/loss"])


def test_defenses_of_evaluations_act_and_no_others() -> None:
    class Fails:
        crossing = "activation"

        def __call__(self, *_: Any) -> Tensor:
            raise AssertionError("called in an evaluation")

    active, passives = parties()
    plain = evaluate(active, passives)[ACTIVE].figures
    passives["telecom"].activation.attach(Fails(), at=("training", "prediction"))
    assert evaluate(active, passives)[ACTIVE].figures == plain
    noise = GaussianIR(clip=0.5, sigma=1.0)
    passives["telecom"].activation.attach(noise, at=("evaluation",), noise_seed_for_experiments=0)
    assert evaluate(active, passives)[ACTIVE].figures != plain


def test_modes_weights_and_randomness_are_left_as_they_were() -> None:
    active, passives = parties(dropout=0.5)
    next(iter(passives["telecom"].bottom.children())).eval()  # frozen by its owner
    everybody = (active, *passives.values())

    def state() -> list[Any]:
        modes = [layer.training for party in everybody for layer in party.module.modules()]
        random = [party.random.state_dict()["cpu"].tolist() for party in everybody]
        return [modes, random, torch.get_rng_state().tolist(), [str(party.module.state_dict()) for party in everybody]]

    before = state()
    assert {True, False} == set(before[0])
    evaluate(active, passives)
    assert state() == before


def test_an_activation_that_is_not_finite_is_refused_and_the_modes_come_back() -> None:
    active, passives = parties(dropout=0.5)
    with torch.no_grad():
        next(passives["telecom"].bottom.parameters()).fill_(math.nan)
    with pytest.raises(ProtocolError, match="the activation of step 7 of telecom holds NaN"):
        evaluate(active, passives)
    assert all(layer.training for party in (active, passives["telecom"]) for layer in party.module.modules())
    assert (active.weights.best.epoch, passives["telecom"].weights.best.epoch) == (None, None)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (torch.tensor([2, 0]), r"zeros and ones from bank, got \[2, 0\]"),
        (torch.tensor([0, -1]), r"zeros and ones from bank, got \[0, -1\]"),
        (torch.tensor([1]), "to be 2 in int64, got 1 in int64"),
        (torch.tensor([1.0, 0.0]), "to be 2 in int64, got 2 in float32"),
    ],
)
def test_what_is_no_verdict_is_refused(payload: Tensor, message: str) -> None:
    party = passive_party("telecom")

    active = active_party(1)
    active.connect("telecom")

    def answering() -> Half:
        yield Outbox(wait=active.await_activations("evaluation", 7, 24))
        yield Outbox(send=(Message(ACTIVE, "telecom", "verdict", 7, payload),))

    half = passive_evaluation(party, EvaluationPlan(range(0), 24), step=7, epoch=1, active=ACTIVE)
    with pytest.raises(ProtocolError, match=message):
        converse({"telecom": half, ACTIVE: answering()})
    assert not party.weights.best.stopped


def test_without_test_records_there_is_no_figure() -> None:
    active, passives = parties(stopping=False, test=0)
    crossed: list[Message] = []
    for party in passives.values():
        party.data = passive_party("telecom", test=0).data
    figures = evaluate(active, passives, EvaluationPlan(range(0), 0), record=crossed.append)[ACTIVE].figures
    assert all(math.isnan(figure) for figure in figures.values())
    assert [message.kind for message in crossed] == ["verdict"]


def test_the_records_of_a_plan_are_made_piece_by_piece() -> None:
    """Nobody holds all records of an evaluation at once."""
    party = passive_party("telecom")
    asked: list[list[int]] = []

    def noted(rows: Tensor) -> Records:
        asked.append(rows.tolist())
        return party.data.train.rows(rows)

    party.train_batch = noted  # type: ignore[method-assign]
    pieces = EvaluationPlan(range(9, 10**9, 10), 0, rows=3).batches(party)
    assert next(pieces)[1].ids.tolist() == party.data.train.ids[[9, 19, 29]].tolist()
    assert asked == [[9, 19, 29]]


def test_every_worker_has_as_many_pieces_as_the_one_with_most_records() -> None:
    """The last of them without records where there are fewer; no record is left out, and none comes twice."""
    party = passive_party("telecom")
    shares = [(range(4, 40, 5), 6, 0), (range(44, 48, 5), 7, 6), (range(0), 0, 13)]
    plans = [
        EvaluationPlan(held_out, count, rows=3, first=first, validates=True, most_validation=8, most_test=7)
        for held_out, count, first in shares
    ]
    pieces = [[(part, len(records.ids)) for part, records in plan.batches(party)] for plan in plans]
    assert pieces == [
        [("validation", 3), ("validation", 3), ("validation", 2), ("test", 3), ("test", 3), ("test", 0)],
        [("validation", 1), ("validation", 0), ("validation", 0), ("test", 3), ("test", 3), ("test", 1)],
        [("validation", 0), ("validation", 0), ("validation", 0), ("test", 0), ("test", 0), ("test", 0)],
    ]
    tested = [records.ids for plan in plans for part, records in plan.batches(party) if part == "test"]
    assert torch.equal(torch.cat(tested), party.data.test.ids[:13])


def test_dummies_cross_like_all_records_and_count_in_no_figure() -> None:
    active, passives = parties()
    real = torch.arange(48) % 7 != 3
    for part, count in (("train", 48), ("test", 24)):
        records = getattr(active.data, part)
        labels = records.labels.clone()
        labels[~real[:count]] = 1 - labels[~real[:count]]
        padded = Records(records.ids, records.columns, labels, real[:count])
        active.data = dataclasses.replace(active.data, **{part: padded})
    crossed: list[Message] = []
    figures = evaluate(active, passives, record=crossed.append)[ACTIVE].figures

    assert sum(len(message.payload) for message in crossed if message.kind == "evaluation") == 12 + 24
    for name, part, rows in (("validation", "train", list(HELD_OUT)), ("test", "test", list(range(24)))):
        kept = [row for row in rows if real[row]]
        assert 0 < len(kept) < len(rows)
        outputs = unsplit(active, passives, part, kept)
        auc, loss = by_sklearn("binary", outputs, getattr(active.data, part).labels[kept].double().numpy())
        # Sums of a few float32 numbers about 1, in another order.
        assert (figures[f"{name}/auc"], figures[f"{name}/loss"]) == pytest.approx((auc, loss), abs=1e-5)


def test_dummies_are_no_labels_to_judge_by() -> None:
    active, _ = parties(stopping=False)
    train = active.data.train
    assert train.labels is not None
    labels = train.labels.clone()
    labels[list(HELD_OUT)] = 0.0
    labels[3] = 1.0
    real = torch.arange(48) != 3
    active.data = dataclasses.replace(active.data, train=Records(train.ids, train.columns, labels, real))
    with pytest.raises(DataError, match="all 11 labels are 0"):
        active.stop_early_by(STOPPING, HELD_OUT)
