"""Dummies of a padded alignment are trained on and sent like all records, and count in no figure."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.app.trainer import Trainer
from splitvfl.attacks import NormAttack, ResidualAttack
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.errors import DataError
from splitvfl.exchange.prediction import predict
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.hooks import Secrets, View
from splitvfl.leakage.after_training import Quiz
from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.judging import ScoreKeeper
from splitvfl.messaging.conversation import converse
from splitvfl.metrics import leak_auc
from splitvfl.party.party import ActiveParty
from tests.builders import ACTIVE, active_party, generator, party_data, passive_party, top_model

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("quick_own_models")


def marked(part: Records) -> Records:
    """Every third record is a dummy, whose label is the other one."""
    real = torch.arange(part.count) % 3 != 0
    assert part.labels is not None
    return dataclasses.replace(part, labels=torch.where(real, part.labels, 1 - part.labels), real=real)


def padded_data() -> PartyData:
    data = party_data(ACTIVE, width=2, task="binary")
    return dataclasses.replace(data, train=marked(data.train), test=marked(data.test))


def padded_trainer(**settings: Any) -> Trainer:
    active = ActiveParty(padded_data(), top_model())
    return Trainer(active, {"telecom": passive_party("telecom")}, **{"batch_size": 16, **settings})


def real_rows(part: Records) -> Tensor:
    assert part.real is not None
    return part.real


def test_marks_have_one_row_per_record() -> None:
    ids = torch.arange(3)
    with pytest.raises(DataError, match="one row per record"):
        Records(ids, Columns.of(torch.zeros(3, 1)), torch.zeros(3), real=torch.ones(2, dtype=torch.bool))


def test_without_marks_the_labels_are_judged_by_as_they_are() -> None:
    train = party_data(ACTIVE, width=2, task="binary").train
    assert train.judged is train.labels


def test_a_keeper_leaves_out_records_without_a_label() -> None:
    scores, ids = torch.randn(30, generator=generator("scores")), torch.arange(30)
    labels = (torch.arange(30) % 4 == 0).double()
    real = torch.arange(30) % 3 != 0
    some, others = ScoreKeeper(), ScoreKeeper()
    for _ in range(3):
        one = some.add(ids, scores, labels.masked_fill(~real, torch.nan))
        assert one == others.add(ids[real], scores[real], labels[real])
    assert some.accumulated_auc == others.accumulated_auc
    assert some.records == others.records == 20


def test_an_auditor_leaves_them_out() -> None:
    some, others = Audit(), Audit()
    ids = torch.arange(40)
    labels = (torch.arange(40) % 2).double()
    real = torch.arange(40) % 3 != 0
    for step in range(6):
        clean = torch.randn(40, 4, generator=generator("clean", step)) + labels[:, None]
        sent = clean + torch.randn(40, 4, generator=generator("noise", step))
        some.see(clean, sent, labels.masked_fill(~real, torch.nan), ids, responses=labels)
        others.see(clean[real], sent[real], labels[real], ids[real])
    for left, right in zip(tensors(some.state_dict()), tensors(others.state_dict()), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def tensors(state: Any) -> list[Tensor]:
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in tensors(value)]
    return [state] if isinstance(state, Tensor) else []


class Remembered:
    """A defense that changes nothing and remembers what it was shown."""

    crossing = "gradient"

    def __init__(self) -> None:
        self.labels: list[Tensor] = []

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        self.labels.append(secrets.labels.clone())
        return gradient.clone()


def test_defenses_get_the_labels_that_dummies_are_trained_on() -> None:
    """One that treats classes differently must not treat dummies as a third class."""
    defense = Remembered()
    trainer = padded_trainer(defenses=[defense])
    trainer.fit(1)
    seen = torch.cat(defense.labels)
    assert set(seen.tolist()) == {0.0, 1.0}
    labels = trainer.active.data.train.labels
    assert labels is not None
    assert seen.sum() == labels.sum()


def test_weights_are_those_of_a_run_that_does_not_know_its_dummies() -> None:
    data = padded_data()
    plain = dataclasses.replace(
        data, train=dataclasses.replace(data.train, real=None), test=dataclasses.replace(data.test, real=None)
    )
    runs = [
        Trainer(ActiveParty(own, top_model()), {"telecom": passive_party("telecom")}, batch_size=16)
        for own in (data, plain)
    ]
    for run in runs:
        run.fit(2)
    ours, theirs = (run.active.module.state_dict() for run in runs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_test_figures_are_those_of_real_records() -> None:
    trainer = padded_trainer()
    figures = trainer.fit(2)
    outputs = predict(trainer.active, trainer.passives).outputs[:, 0]
    test = trainer.active.data.test
    assert test.labels is not None
    assert figures["auc"] == leak_auc(outputs[real_rows(test)], test.labels[real_rows(test)])
    assert figures["auc"] != leak_auc(outputs, test.labels)


class Watched:
    """The residual attack, and what it would have scored; at every step."""

    name = "watched"
    needs = frozenset({"gradient"})

    def __init__(self) -> None:
        self.attack = ResidualAttack()
        self.scores: list[tuple[Tensor, Tensor]] = []

    def __deepcopy__(self, memo: Any) -> Watched:
        return self

    def __call__(self, view: View, /) -> Tensor:
        scores = self.attack(view)
        self.scores.append((view.ids.clone(), scores.clone()))
        return scores


def test_leaks_are_those_of_real_records() -> None:
    attack = Watched()
    trainer = padded_trainer(attacks=[attack])
    trainer.fit(2)
    train = trainer.active.data.train
    assert train.labels is not None
    label = dict(zip(train.ids.tolist(), train.labels.tolist(), strict=True))
    real = set(train.ids[real_rows(train)].tolist())
    aucs = []
    for ids, scores in attack.scores:
        kept = torch.tensor([one in real for one in ids.tolist()])
        aucs.append(leak_auc(scores[kept], torch.tensor([label[one] for one in ids[kept].tolist()])))
    leak = trainer.leaks["telecom"]["watched"]
    # A batch of one class has no AUC.
    assert list(leak.keeper.aucs) == [auc for auc in aucs if not math.isnan(auc)]
    assert leak.keeper.records == int(real_rows(train).sum())
    assert trainer.audits["telecom"].linear.records == int(real_rows(train).sum())


def test_what_watches_the_cut_is_judged_by_real_records() -> None:
    active, passive = ActiveParty(padded_data(), top_model()), passive_party("telecom")
    leak = active.connect("telecom").watch(NormAttack())
    batch = active.train_batch(torch.arange(16))
    converse(
        {
            ACTIVE: active_step(active, batch, 0),
            "telecom": passive_step(passive, passive.train_batch(torch.arange(16)), 0, active=ACTIVE),
        }
    )
    assert leak.keeper.records == int(real_rows(batch).sum())


def test_nobody_is_asked_about_dummies_after_training() -> None:
    data = padded_data()
    quiz = Quiz.draw(data, known_positives=3, known_negatives=3, seed=0)
    assert real_rows(data.train)[quiz.train].all()
    assert real_rows(data.test)[quiz.test].all()
    assert not quiz.labels.isnan().any()
    dummies = set(data.train.ids[~real_rows(data.train)].tolist())
    assert not dummies & set(torch.cat([quiz.known_positives, quiz.known_negatives]).tolist())


def test_without_marks_nothing_changes() -> None:
    active = active_party()
    targets, responses = active.answer(active.train_batch(torch.arange(4)), 0)
    assert responses is None
    assert torch.equal(targets, active.data.train.labels[:4])  # type: ignore[index]
