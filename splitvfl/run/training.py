"""The steps of a run, in one process or of one party over a network, and what follows each of them."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from splitvfl.exchange.evaluation import Evaluation
from splitvfl.leakage.label_leak import LabelLeak
from splitvfl.leakage.monitor import Monitor
from splitvfl.leakage.watching import Watch
from splitvfl.learning.schedule import GO_ON, Schedule, StepPlan, Verdict
from splitvfl.party.party import Party
from splitvfl.system.signals import Signals

TrainingProgress = Callable[["Status"], None]


class Interrupted(Exception):
    """Training stopped at a signal, between two steps, after saving a checkpoint (if it has a folder)."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where a run stands, for a progress bar.

    Attributes:
        epoch: Current epoch, from 1.
        epochs: Number of epochs.
        step: Steps done in the run.
        steps: Steps in the run.
        loss: Training loss of the last step; NaN without labels.
        test: Headline figure on the test records after the last evaluation; NaN before, and without labels.
        worst_leak: Worst leak AUC so far, and the attack's name, at the last log; NaN and "" before.
        label_leaks: Total, beyond prediction and known without messages by party, at the last end of an epoch.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    test: float
    worst_leak: tuple[float, str]
    label_leaks: Mapping[str, LabelLeak] = field(default_factory=dict)


class Training(ABC):
    """Training as a schedule says: step, measure, evaluate, log, save, up to the last step or a verdict to stop.

    Args:
        watch: What is watched meanwhile.

    Attributes:
        step: Number of steps done.
        watch: Attacks on what crosses, and their figures.
        figures: Figures of the last evaluation, ``"test/auc"`` and so on; none without labels.
        kept: Figures of the evaluation whose weights are kept, where training may stop early.
    """

    def __init__(self, watch: Watch) -> None:
        self.step = 0
        self.watch = watch
        self.figures: dict[str, float] = {}
        self.kept: dict[str, float] = {}
        self._seconds = 0.0
        self._loss = math.nan
        self._sums: dict[str, tuple[float, int]] = {}
        self._offset = 0
        self._monitor = Monitor(None)

    @property
    @abstractmethod
    def _parties(self) -> tuple[Party, ...]:
        """The parties that are trained here; one with labels is the first."""

    @abstractmethod
    def _train_step(self, rows: Tensor) -> None:
        """Take the next step, on the records at these positions."""

    @abstractmethod
    def _evaluate(self, epoch: int) -> Verdict:
        """Evaluate after an epoch, counted from 1."""

    @abstractmethod
    def save(self) -> None:
        """Write a checkpoint."""

    def _follow(self, schedule: Schedule, progress: TrainingProgress, *, grace_s: float | None = None) -> None:
        """Take the steps that are left, if there are any.

        Args:
            schedule: What follows which step.
            progress: Told of every step.
            grace_s: Seconds that a step which is under way may take on when a signal comes; ``None``: no limit.

        Raises:
            Interrupted: At Ctrl-C, after the current step and a checkpoint.
        """
        if self.stopped or self.step >= schedule.steps:
            return  # the best weights stay in use
        for party in self._parties:
            party.best.restore_trained()
        with Signals(grace_s=grace_s) as signals:
            for turn in schedule.plans(self.step):
                verdict = self._take_turn(turn, schedule, progress)
                if turn.saves or signals.asked:
                    self.save()
                if verdict.stop:
                    return
                if signals.asked and self.step < schedule.steps:
                    raise Interrupted

    def _take_turn(self, turn: StepPlan, schedule: Schedule, progress: TrainingProgress) -> Verdict:
        self._train_step(turn.rows)
        verdict = self._evaluate(turn.epoch + 1) if turn.evaluates else GO_ON
        if turn.logs:
            self._monitor.write(self.step, self._scalars(epoch_ends=turn.ends_epoch))
        progress(self._status(turn.epoch + 1, schedule))
        return verdict

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the time of a block as training, attacks and their judging excluded."""
        judging, started = self.watch.seconds, time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started - (self.watch.seconds - judging)

    def _step_taken(self, loss: float | None) -> None:
        self._loss = math.nan if loss is None else loss
        for tag, value in self._measured.items():
            total, count = self._sums.get(tag, (0.0, 0))
            if math.isfinite(value):
                self._sums[tag] = (total + value, count + 1)
        self.step += 1

    def _evaluated(self, evaluation: Evaluation) -> Verdict:
        self.figures = dict(evaluation.figures)
        if evaluation.verdict.best:
            self.kept = dict(self.figures)
        return evaluation.verdict

    @property
    def _measured(self) -> dict[str, float]:
        return {tag: value for party in self._parties for tag, value in party.measurements.items()}

    def _scalars(self, *, epoch_ends: bool) -> dict[str, float]:
        measured = {f"defense/{tag}": value for tag, value in self._measured.items()}
        return {"train/loss": self._loss, **self.figures, **measured, **self.watch.scalars(epoch_ends=epoch_ends)}

    def _status(self, epoch: int, schedule: Schedule) -> Status:
        on_test = (value for tag, value in self.figures.items() if tag.startswith("test/"))
        return Status(
            epoch=epoch,
            epochs=schedule.epochs,
            step=self.step,
            steps=schedule.steps,
            loss=self._loss,
            test=next(on_test, math.nan),  # the headline figure comes first
            worst_leak=self.watch.worst_logged,
            label_leaks=self.watch.label_leaks_logged,
        )

    def _flush(self) -> None:
        """Bring the log to disk, and note how long it is."""
        if self._monitor.is_open:
            self._offset = self._monitor.flush()

    def _progress_state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "offset": self._offset,
            "seconds": self._seconds,
            "loss": self._loss,
            "sums": dict(self._sums),
        }

    def _take_back_progress(self, state: Mapping[str, Any]) -> None:
        self.step, self._offset, self._seconds = state["step"], state["offset"], state["seconds"]
        self._loss, self._sums = state["loss"], dict(state["sums"])

    @property
    def stopped(self) -> bool:
        """Whether early stopping has ended the training."""
        return self._parties[0].best.stopped

    @property
    def kept_epoch(self) -> int | None:
        """The epoch, from 1, whose weights early stopping keeps; ``None`` without it."""
        return self._parties[0].best.epoch

    @property
    def step_ms(self) -> float:
        """Mean time of a training step in milliseconds, defenses included, attacks and their judging excluded.

        Over a network it includes waiting for the others.
        """
        return 1000.0 * self._seconds / self.step if self.step else math.nan

    @property
    def measurements(self) -> dict[str, float]:
        """Means over the run of what the defenses logged: ``party/defense/measurement``."""
        return {tag: total / count for tag, (total, count) in self._sums.items() if count}
