"""Evaluations under masks: the same figures, from the sum of the passive parties' parts alone."""

from __future__ import annotations

import pytest
import torch

from splitvfl.exchange.evaluation import Evaluation, EvaluationPlan, active_evaluation, passive_evaluation
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.taylor import Taylor
from splitvfl.messaging.conversation import converse
from splitvfl.messaging.messages import Message
from tests.exchange.logistic import BATCH, RECORDS, SHORT, trainer_of

THREE = {"lab": 3, "shop": 2, "telecom": 4}


def evaluated(trainer: object, record: list[Message]) -> Evaluation:
    plan = EvaluationPlan(range(0, RECORDS, 5), RECORDS, rows=16)
    active, passives = trainer.active, trainer.passives  # type: ignore[attr-defined]
    halves = {
        name: passive_evaluation(party, plan, step=9, epoch=1, active=active.name) for name, party in passives.items()
    }
    halves[active.name] = active_evaluation(active, plan, step=9, epoch=1)
    found: Evaluation = converse(halves, record=record.append)[active.name]
    return found


@pytest.mark.parametrize("widths", [{"lab": 3}, THREE], ids=["one", "three"])
def test_figures_are_those_of_parts_in_the_clear(widths: dict[str, int]) -> None:
    clear, hidden = (
        trainer_of(Oracle(approximation="taylor"), widths),
        trainer_of(Taylor(rows=BATCH, encryption=SHORT), widths),
    )
    for trainer in (clear, hidden):
        trainer.fit(1)
    # Encrypted weights differ by 1e-7, parts are rounded to 2^-32; AUCs of 70 records move by steps of 1e-3 or not.
    messages: list[Message] = []
    expected, found = evaluated(clear, []), evaluated(hidden, messages)
    assert found.figures == pytest.approx(expected.figures, abs=1e-6)
    sent = [message for message in messages if message.kind == "evaluation"]
    assert {message.payload.dtype for message in sent} == {torch.int64}
    assert len(sent) == len(widths) * 6  # 14 validation records, and 70 of the test in pieces of 16


def test_no_part_can_be_read_and_no_mask_is_used_twice() -> None:
    trainer = trainer_of(Taylor(rows=BATCH, encryption=SHORT), THREE)
    trainer.fit(1)
    messages: list[Message] = []
    evaluated(trainer, messages)
    sent = torch.cat([message.payload for message in messages if message.kind == "evaluation"])
    assert sent.abs().double().min() > 2.0**37  # parts are below 2^36, and masks uniform on 2^64
    # The test records are the training records: validation pieces and test pieces hold the same parts.
    assert sent.unique().numel() == sent.numel()
