"""A student learns what its teacher says, chooses on held-out records, and never sees a test record."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from splitvfl.config.sections import MODEL
from splitvfl.data.columns import PartyData
from splitvfl.errors import DataError
from splitvfl.learning.tasks import Task, task_for
from splitvfl.run import student
from splitvfl.run.student import Lesson, Option, outputs_alone
from tests.builders import ACTIVE, generator, party_data
from tests.table_folders import click_data


def option(*hidden: int, decay: float = 0.0, name: str = "mlp") -> Option:
    section = MODEL.default(name, **({"top_hidden": hidden} if name == "mlp" else {"bottom": hidden}))
    return Option(section, section.recipe, decay)


def records(task: str = "binary", train: int = 160) -> PartyData:
    return party_data(ACTIVE, width=2, task=task, train=train)


def with_noise_for_labels(data: PartyData) -> PartyData:
    labels = (torch.rand(data.train.count, generator=generator("coins")) > 0.5).float()
    return dataclasses.replace(data, train=dataclasses.replace(data.train, labels=labels))


def teacher(columns: Tensor) -> Tensor:
    return torch.sigmoid(1.5 * columns[:, 0] - columns[:, 1])


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(student, "_RATE", 0.05)
    monkeypatch.setattr(student, "_MOST_EPOCHS", 25)
    monkeypatch.setattr(student, "_PATIENCE", 4)


def test_a_student_says_what_its_teacher_says_where_labels_say_nothing() -> None:
    data, task = with_noise_for_labels(records()), task_for("binary")
    scores = teacher(data.train.columns.numeric)
    choice = dataclasses.replace(Lesson(data, task, scores, seed=0).choose([option()]), epochs=25)

    taught, alone = (Lesson(data, task, targets, seed=0).learned(choice) for targets in (scores, None))

    said, by_itself = (torch.sigmoid(outputs_alone(party, data.test)[:, 0]) for party in (taught, alone))
    torch.testing.assert_close(said, teacher(data.test.columns.numeric), atol=0.05, rtol=0)
    assert (by_itself - 0.5).abs().mean() < 0.15  # coins, of which nothing can be learned
    assert not any(weight.requires_grad for weight in taught.top.parameters())


@pytest.mark.parametrize(("name", "classes"), [("multiclass", 3), ("regression", 1)])
def test_classes_and_values_are_taught_too(name: str, classes: int) -> None:
    data, task = records(name), task_for(name, classes)
    values = data.train.columns.numeric @ torch.tensor([1.0, -2.0])
    scores = values if classes == 1 else torch.softmax(torch.stack([values, 0 * values, -values], dim=1), dim=1)
    lesson = Lesson(data, task, scores, seed=0)

    party = lesson.learned(dataclasses.replace(lesson.choose([option()]), epochs=25))

    expected = data.test.columns.numeric @ torch.tensor([1.0, -2.0])
    found = outputs_alone(party, data.test)
    logit = found[:, 0] if classes == 1 else (found[:, 0] - found[:, 2]) / 2
    torch.testing.assert_close(logit, expected, atol=0.15, rtol=0.1)


def test_held_out_records_decide_and_test_records_do_not_matter() -> None:
    data, task = records(), task_for("binary")
    wrong = dataclasses.replace(data, test=dataclasses.replace(data.test, labels=1 - data.test.labels))
    heavy = Option(option().model, option().recipe, weight_decay=10.0)  # nearly no weight is left

    choices = [Lesson(given, task, None, seed=0).choose([heavy, option(4)]) for given in (data, wrong)]

    assert choices[0].option.weight_decay == 0.0
    assert choices[0].loss == choices[1].loss
    ends = [Lesson(given, task, None, seed=0).learned(choices[0]) for given in (data, wrong)]
    for one, other in zip(ends[0].top.parameters(), ends[1].top.parameters(), strict=True):
        assert torch.equal(one, other)


def test_categories_are_learned_from_without_a_partner() -> None:
    data = click_data(train=200, test=40)
    parts = {
        part: dataclasses.replace(getattr(data["publisher"], part), labels=getattr(data.active, part).labels)
        for part in ("train", "test")
    }
    shop = dataclasses.replace(data["publisher"], **parts)
    lesson = Lesson(shop, task_for("binary"), None, seed=0)

    party = lesson.learned(dataclasses.replace(lesson.choose([option(4, name="wide-deep")]), epochs=2))

    assert shop.field_sizes
    assert outputs_alone(party, shop.test).shape == (40, 1)


def test_dummies_teach_nothing() -> None:
    data, task = records(), task_for("binary")
    real = torch.arange(data.train.count) % 4 > 0
    padded = dataclasses.replace(data, train=dataclasses.replace(data.train, real=real))
    spoiled = torch.where(real, teacher(data.train.columns.numeric), torch.nan)

    choice = Lesson(padded, task, spoiled, seed=0).choose([option()])

    assert math.isfinite(choice.loss)


def test_what_cannot_be_learned_is_said() -> None:
    task: Task = task_for("binary")
    with pytest.raises(DataError, match="has 4 training records; too few to hold some out"):
        Lesson(records(train=4), task, None, seed=0)
    data = records()
    with pytest.raises(DataError, match="is NaN or infinite, whatever is chosen"):
        Lesson(data, task, torch.full((data.train.count,), torch.nan), seed=0).choose([option()])
