"""What follows from the settings of a training alone."""

from __future__ import annotations

from typing import Any

import pytest

from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.exchange.one_way import OneWay
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.run.plan import TrainingPlan
from splitvfl.team.team import FirstWorker
from tests.builders import party_data


def test_workers_evaluate_every_record_once_in_equally_many_pieces() -> None:
    data = party_data("lab", width=2, train=47, test=25)
    plan = TrainingPlan(batch_size=4, shards=2, early_stopping=EarlyStopping(validation_every=5))
    alone = plan.evaluation(data, plan.batches(data))
    found = []
    for rank in range(2):
        team = FirstWorker(2)
        team.rank = rank
        found.append(plan.evaluation(data, plan.batches(data, shard=rank), team=team))
    tested = [row for one in found for row in range(one.first, one.first + one.test)]
    assert (alone.first, alone.test, tested) == (0, 25, list(range(25)))
    assert sorted(row for one in found for row in one.validation) == list(alone.validation)
    assert len(alone.validation) == 9
    assert {(one.most_test, one.most_validation, one.validates) for one in found} == {(13, 5, True)}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [({"epochs": 0}, "epochs must be at least 1"), ({"evaluate_every": 1.5}, "evaluate_every must be a whole number")],
)
def test_counts_are_whole_numbers_from_one(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        TrainingPlan(**given)


def test_canaries_are_refused_where_nobody_could_look_for_them() -> None:
    TrainingPlan(exchange=OneWay(), audit=False).check_canaries()
    TrainingPlan(canaries=30).check_canaries()
    for plan in (TrainingPlan(canaries=30, audit=False), TrainingPlan(canaries=30, exchange=OneWay())):
        with pytest.raises(ConfigError, match="canaries"):
            plan.check_canaries()
