"""What crosses in a run depends on labels through the remembered answers alone, whatever the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.defenses import (
    AbstainingResponse,
    AsymmetricResponse,
    AxisGaussian,
    Isotropic,
    MemoisedResponse,
    RandomisedResponse,
)
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.run.trainer import Trainer
from tests.builders import sgd, small_trainer, weights

MAKERS: dict[str, Callable[[], Any]] = {
    "asymmetric": lambda: AsymmetricResponse(detection_error=0.3),
    "asymmetric, likelihood": lambda: AsymmetricResponse(detection_error=0.3, corrected="likelihood"),
    "memoised, likelihood": lambda: MemoisedResponse(flip=0.2, corrected="likelihood"),
    "randomised": lambda: RandomisedResponse(epsilon=1.0),
    "randomised, likelihood": lambda: RandomisedResponse(epsilon=1.0, corrected="likelihood"),
    "abstaining": lambda: AbstainingResponse(detection_error=0.3),
    "abstaining, likelihood": lambda: AbstainingResponse(detection_error=0.3, corrected="likelihood"),
}


def kept(labels: Tensor) -> Tensor:
    return labels


def turned(labels: Tensor) -> Tensor:
    return 1 - labels


class Run:
    """A run on changed labels, whose records have answered already, or not."""

    def __init__(
        self,
        defenses: list[Any],
        *,
        labels: Callable[[Tensor], Tensor],
        answers: Any = None,
        epochs: int = 2,
        **settings: Any,
    ) -> None:
        self.sent: list[Tensor] = []
        self.trainer: Trainer = small_trainer(
            ("telecom", "shop"),
            defenses=defenses,
            noise_seed_for_experiments=3,
            record=lambda message: self.sent.append(message.payload.clone()),
            # What it measures crosses nowhere; a defense's promise with and without it is in test_record_gaussian.py.
            **{"audit": False, **settings},
        )
        (self.defense,) = self.trainer.active.labels
        if answers is not None:
            self.defense.load_state_dict(answers)  # type: ignore[attr-defined]
        given = self.trainer.active.data.train.labels
        assert given is not None
        given.copy_(labels(given))
        self.trainer.fit(epochs)

    @property
    def answers(self) -> dict[str, Any]:
        state: dict[str, Any] = self.defense.state_dict()  # type: ignore[attr-defined]
        return state

    def is_told_apart_from(self, other: Run) -> bool:
        """Whether any bit that a run sends or leaves differs, the signs of zeros included."""
        left, right = ([*run.sent, *weights(run.trainer).values()] for run in (self, other))
        pairs = zip(left, right, strict=False)
        return len(left) != len(right) or any(
            not torch.equal(one.view(torch.int32), two.view(torch.int32)) for one, two in pairs
        )


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_with_the_same_answers_other_labels_send_the_same_bits(make: Callable[[], Any]) -> None:
    def run(labels: Callable[[Tensor], Tensor], answers: Any = None) -> Run:
        return Run([make(), AxisGaussian(ratio=1.0), Isotropic(ratio=0.1)], labels=labels, answers=answers)

    first = run(kept)
    honest, other = (run(labels, first.answers) for labels in (kept, turned))

    assert len(honest.sent) == 2 * 3 * 4  # epochs, steps, messages
    assert not honest.is_told_apart_from(other)
    assert first.is_told_apart_from(run(turned))  # answers that are drawn for other labels


def test_a_stop_by_true_labels_is_seen_by_the_partner() -> None:
    """What each of these defenses says voids it: the verdict knows labels that the answers do not."""

    def run(labels: Callable[[Tensor], Tensor], answers: Any = None) -> Run:
        stopping = EarlyStopping(patience=1, validation_every=3)
        return Run(
            [MAKERS["abstaining"]()], labels=labels, answers=answers, epochs=12, early_stopping=stopping, optimizer=sgd
        )

    answers = run(kept).answers

    assert run(kept, answers).is_told_apart_from(run(turned, answers))
    assert not run(kept, answers).is_told_apart_from(run(kept, answers))


@pytest.mark.parametrize("corrected", ["targets", "likelihood"])
def test_labels_of_silent_records_are_in_nothing_that_a_run_leaves(corrected: Any) -> None:
    """No answers are given beforehand: the same generator makes the same records silent, whatever their labels are."""

    def run(labels: Callable[[Tensor], Tensor]) -> Run:
        defense = AbstainingResponse(detection_error=0.4, corrected=corrected)
        return Run([defense], labels=labels, batch_size=48)

    first = run(kept)
    # One batch holds all records, in the order of the draw; zero rows of its gradient are the silent ones.
    gradient = first.sent[2]
    silent = torch.zeros(48, dtype=torch.bool)
    silent[torch.cat(list(first.trainer.batches.epoch(0)))] = ~gradient.any(dim=1)
    assert 25 < silent.sum() < 47

    assert not first.is_told_apart_from(run(lambda labels: torch.where(silent, 1 - labels, labels)))
    assert first.is_told_apart_from(run(lambda labels: torch.where(silent, labels, 1 - labels)))
