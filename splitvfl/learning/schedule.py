"""The schedule of a run: when it evaluates, logs, saves and stops, decided alike by every party."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from torch import Tensor

from splitvfl.errors import ArgumentError, shown
from splitvfl.learning.batches import Batches


def checked_count(name: str, given: object) -> int:
    """Return a number of epochs or steps.

    Args:
        name: What the argument is called.
        given: What it was given.

    Raises:
        ArgumentError: If it is no whole number, or below 1.
    """
    if not isinstance(given, numbers.Integral) or isinstance(given, bool):
        raise ArgumentError(f"{name} must be a whole number, at least 1, got {shown(given)}")
    if given < 1:
        raise ArgumentError(f"{name} must be at least 1, got {given}")
    return int(given)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One training step, and what is done after it, in this order: evaluate, log, save.

    Attributes:
        step: Number of the step, from 0; after it, ``step + 1`` steps are done.
        rows: Positions of its training records, int64.
        epoch: Number of its epoch, from 0.
        ends_epoch: Whether it is its epoch's last step, or the run's.
        evaluates: Whether an evaluation follows.
        logs: Whether a line of the log follows.
        saves: Whether a checkpoint follows; it does wherever an evaluation does.
        share: What share of the step's records these are: 1, unless several workers have a shard each.
    """

    step: int
    rows: Tensor
    epoch: int
    ends_epoch: bool
    evaluates: bool
    logs: bool
    saves: bool
    share: float = 1.0


class Schedule:
    """The steps of a run and what follows each: a function of agreed numbers alone, so that no message is needed.

    Args:
        batches: The order of the records.
        epochs: Epochs of the whole run, from 1.
        log_every: Steps between two lines of the log, besides one after each epoch.
        checkpoint_every: Steps between two checkpoints, besides one after each epoch; ``None`` for no more.
        evaluate_every: Epochs between two evaluations; the last epoch always ends in one.
        stop: Told how many steps are done, says whether the run ends there, as an epoch would; every party must be
            given the same, a function of agreed numbers. ``None``: it ends with the last epoch.

    Attributes:
        epochs: Epochs of the whole run, if nothing stops it before.
        steps: Steps of the whole run.

    Raises:
        ArgumentError: If a number is below 1, or none that is whole.

    >>> schedule = Schedule(Batches(6, 2, seed=0), 2, log_every=2, checkpoint_every=None, evaluate_every=2)
    >>> [(turn.step, turn.epoch, turn.logs, turn.evaluates) for turn in schedule.plans(2)]
    [(2, 0, True, False), (3, 1, True, False), (4, 1, False, False), (5, 1, True, True)]
    """

    def __init__(
        self,
        batches: Batches,
        epochs: int,
        *,
        log_every: int,
        checkpoint_every: int | None,
        evaluate_every: int,
        stop: Callable[[int], bool] | None = None,
    ) -> None:
        counts = {
            "epochs": epochs,
            "log_every": log_every,
            "checkpoint_every": checkpoint_every,
            "evaluate_every": evaluate_every,
        }
        for name, number in counts.items():
            if number is not None:
                checked_count(name, number)
        self.epochs = epochs
        steps = epochs * len(batches)
        self.steps = steps if stop is None else next(filter(stop, range(1, steps)), steps)
        self._batches = batches
        self._log_every, self._checkpoint_every, self._evaluate_every = log_every, checkpoint_every, evaluate_every

    def plans(self, start: int = 0) -> Iterator[StepPlan]:
        """Yield the plan of every step from one to the end of the run; none if the run has no more.

        Args:
            start: Number of steps that are done.
        """
        for epoch in range(start // len(self._batches), self.epochs):
            position = max(start - epoch * len(self._batches), 0)
            left = self.steps - epoch * len(self._batches)
            if left <= position:
                return
            for place, rows in enumerate(self._batches.epoch(epoch)[position:left], start=position):
                yield self._plan(epoch, place, rows)

    def _plan(self, epoch: int, place: int, rows: Tensor) -> StepPlan:
        step = epoch * len(self._batches) + place
        done = step + 1
        ends_epoch = done % len(self._batches) == 0 or done == self.steps
        return StepPlan(
            step=step,
            rows=rows,
            epoch=epoch,
            ends_epoch=ends_epoch,
            evaluates=ends_epoch and (done == self.steps or (epoch + 1) % self._evaluate_every == 0),
            logs=ends_epoch or done % self._log_every == 0,
            saves=ends_epoch or (self._checkpoint_every is not None and done % self._checkpoint_every == 0),
            share=1.0 if self._batches.shard is None else len(rows) / self._batches.whole(place),
        )


class Verdict(NamedTuple):
    """The label party's verdict on an evaluation. Both bits depend on labels.

    Attributes:
        stop: Whether training ends here.
        best: Whether no evaluation before was as good: every party then keeps a copy of its weights.
    """

    stop: bool
    best: bool


GO_ON = Verdict(stop=False, best=False)


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Settings of early stopping, which all parties agree on.

    Judged by the task's headline figure (AUC, accuracy or R²; more is better) on training records that are held out:
    every ``validation_every``-th by position. Whether training stops early or not, every party ends with the weights of
    the best evaluation.

    Args:
        patience: So many evaluations without an improvement end the training, from 1.
        min_delta: An improvement exceeds the best figure before by more than this, from 0.
        validation_every: Of so many training records one is held out, from 2.

    Raises:
        ArgumentError: If a setting is out of its range.
    """

    # The limits of files, in which a mistake has a line. Counts are kept in 64 bits.
    patience: Annotated[int, Field(ge=1, le=2**63 - 1)] = 3
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    validation_every: Annotated[int, Field(ge=2, le=2**63 - 1)] = 10

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.patience < 1:
            raise ArgumentError(f"patience must be at least 1 evaluation, got {self.patience}")
        if not (math.isfinite(self.min_delta) and self.min_delta >= 0):
            raise ArgumentError(f"min_delta must be a finite number from 0, got {self.min_delta}")
        if self.validation_every < 2:
            raise ArgumentError(
                f"validation_every must be at least 2, of which one is held out, got {self.validation_every}"
            )


class Patience:
    """The label party's judgement of one evaluation after the other.

    Args:
        settings: What counts as an improvement, and how long to wait for one.

    Attributes:
        best: The best figure so far; NaN before the first one that is a number.
        waited: Evaluations since then.
    """

    def __init__(self, settings: EarlyStopping) -> None:
        self.settings = settings
        self.best = math.nan
        self.waited = 0

    def judge(self, figure: float) -> Verdict:
        """Return the verdict on an evaluation; a NaN is no improvement.

        >>> patience = Patience(EarlyStopping(patience=2))
        >>> [patience.judge(figure) for figure in (0.7, 0.6, 0.7)][-1]
        Verdict(stop=True, best=False)
        """
        better = math.isfinite(figure) and not figure <= self.best + self.settings.min_delta
        self.best, self.waited = (figure, 0) if better else (self.best, self.waited + 1)
        return Verdict(stop=self.waited >= self.settings.patience, best=better)

    def state_dict(self) -> dict[str, Any]:
        """Return the best figure and how long ago it was."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self.best, self.waited = state["best"], state["waited"]
