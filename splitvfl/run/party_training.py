"""One party's training as one half of a conversation, from the agreement to the farewell.

In one process :func:`~splitvfl.messaging.conversation.converse` drives the halves of all parties, over a network
:func:`~splitvfl.net.driver.drive` that of one, when it has introduced itself. What a run is made of stands here once;
what a process keeps of it is its :class:`~splitvfl.run.training.Training`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from splitvfl.errors import LinkError
from splitvfl.exchange.base import Side, evaluation_of
from splitvfl.exchange.evaluation import EvaluationPlan, passive_evaluation
from splitvfl.exchange.handshake import (
    HeldCheckpoints,
    active_farewell,
    active_resuming,
    agreement,
    farewell,
    passive_resuming,
)
from splitvfl.learning.schedule import StepPlan
from splitvfl.messaging.conversation import Half, Inbox
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.run.training import Training

P = TypeVar("P", bound=Party)


class PartyTraining(ABC, Generic[P]):
    """One party's part in a run.

    Args:
        party: The party.
        partners: Names of those that it talks to.
        training: What this process keeps of the run.
        terms: What must be equal at every party.
        plan: What is evaluated.
        one_way: Whether everything crosses before the first step.
        side: Its side of the exchange; ``None`` where it is taken only when the parties have agreed.

    Attributes:
        side: Its side of the exchange.
        trains: Whether what it sends now belongs to a training step, or crosses in place of one.
    """

    side: Side

    def __init__(
        self,
        party: P,
        partners: Sequence[str],
        training: Training,
        *,
        terms: Mapping[str, object],
        plan: EvaluationPlan,
        one_way: bool,
        side: Side | None = None,
    ) -> None:
        self.party, self.partners = party, tuple(partners)
        self.trains = False
        self._training, self._terms, self._plan, self._one_way = training, terms, plan, one_way
        if side is not None:
            self.side = side

    def half(self) -> Half:
        """Return its half of all that it says to the others.

        In a one-way exchange that ends before the first step, and the active party takes its steps alone.

        Raises:
            Interrupted: At Ctrl-C, after the current step and a checkpoint.
            SplitVFLError: As the halves that it is made of.
        """
        training = self._training
        yield from agreement(self.party.name, self.partners, self._terms)
        yield from training.together(training.begin, of=training.count)
        if self._one_way:
            # Before anything is sent there is a checkpoint, from which the same would be sent again.
            yield from training.choose(self._resuming)
            yield from self._training_messages(self.side.open())
            training.crossed()
        else:
            yield from self._in_turn(self.side.open())
            yield from training.choose(self._resuming)
            yield from self.steps()
        yield from self._leave()

    def steps(self) -> Half:
        """Return its half of the steps that are left, and of what follows each of them; then it has its best weights.

        Raises:
            Interrupted: At Ctrl-C, after the current step and a checkpoint.
            SplitVFLError: As the halves that it is made of.
        """
        training = self._training
        count = 1 if self._one_way else training.count
        yield from training.together(training.start, of=count)
        if training.plan is not None:
            self.party.best.restore_trained()
            with training.signals:
                while training.plan is not None:
                    yield from self._step(training.plan, count)
        self.party.best.use()

    def _step(self, plan: StepPlan, count: int) -> Half:
        training = self._training
        step = self.side.step(training.records[self.party.name], plan.step)
        loss = yield from self._training_messages(step)
        if loss is not None:
            training.loss = loss
        if plan.evaluates:
            yield from self._in_turn(self._evaluation(plan))
        yield from training.together(training.step_done, of=count)
        if training.saving:
            if plan.saves or count > 1:  # else this party is interrupted alone
                yield from self._in_turn(self.side.drain())
            yield from training.together(training.step_saved, of=count)

    def _training_messages(self, half: Half) -> Half:
        self.trains = True
        result = yield from self._in_turn(half)
        self.trains = False
        return result

    def _in_turn(self, half: Half) -> Half:
        """Return a half that acts in this party's random state, while the clock runs; what lies between is outside."""
        inbox: Inbox | None = None
        try:
            while True:
                started = time.perf_counter()
                try:
                    with self.party.random:
                        outbox = next(half) if inbox is None else half.send(inbox)
                except StopIteration as stop:
                    return stop.value
                finally:
                    if self.trains:
                        self._training.clock += time.perf_counter() - started
                inbox = yield outbox
        finally:
            half.close()

    @abstractmethod
    def _resuming(self, own: HeldCheckpoints) -> Half:
        """Return its half of the choice of a checkpoint."""

    @abstractmethod
    def _evaluation(self, plan: StepPlan) -> Half:
        """Return its half of the evaluation after a step."""

    @abstractmethod
    def _leave(self) -> Half:
        """Return its half of the farewell: nobody needs anybody any more."""


class ActiveTraining(PartyTraining[ActiveParty]):
    """The label party's part."""

    def _resuming(self, own: HeldCheckpoints) -> Half:
        return active_resuming(self.party.name, self.partners, own)

    def _evaluation(self, plan: StepPlan) -> Half:
        half = evaluation_of(self.side, self.party, self._plan, step=plan.step + 1, epoch=plan.epoch + 1)
        self._training.evaluated((yield from half))

    def _leave(self) -> Half:
        training = self._training
        yield from training.part(active_farewell(self.party.name, self.partners, training.step, training.parted))
        try:
            yield from self.side.leave()
        except LinkError as error:  # nothing is needed of anybody any more
            training.notify(f"{error}; everything had been said before")


class PassiveTraining(PartyTraining[PassiveParty]):
    """A passive party's part."""

    def _resuming(self, own: HeldCheckpoints) -> Half:
        return passive_resuming(self.party.name, self.partners[0], own)

    def _evaluation(self, plan: StepPlan) -> Half:
        step, epoch = plan.step + 1, plan.epoch + 1
        return passive_evaluation(self.party, self._plan, step=step, epoch=epoch, active=self.partners[0])

    def _leave(self) -> Half:
        training = self._training
        yield from training.part(farewell(self.party.name, self.partners, training.step))
        training.parted()
