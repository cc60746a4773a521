"""One party's training as one half of a conversation, from the agreement to the farewell.

In one process :func:`~splitvfl.messaging.conversation.converse` drives the halves of all parties, over a network
:func:`~splitvfl.net.driver.drive` that of one, when it has introduced itself. What a run is made of stands here once;
what a process keeps of it is its :class:`~splitvfl.run.training.Training`, and what depends on which parties are there
its :class:`~splitvfl.run.training.Run`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from splitvfl.errors import LinkError
from splitvfl.exchange.base import Exchange, Side, evaluation_of
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
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.run.training import Run

P = TypeVar("P", bound=Party)


class Rendezvous:
    """A place where the halves of one process wait for each other.

    Args:
        count: How many they are.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._arrived, self._times = 0, 0

    def join(self, what: Callable[[], None]) -> Half:
        """Wait until all halves have come; the last one does what is common to them, once."""
        time = self._times
        self._arrived += 1
        if self._arrived == self.count:
            self._arrived, self._times = 0, time + 1
            what()
        yield Outbox(until=lambda: self._times > time)


class PartyTraining(ABC, Generic[P]):
    """One party's part in a run.

    Args:
        party: The party.
        partners: Names of those that it talks to.
        run: The run.
        exchange: How a step is talked through.
        terms: What must be equal at every party.
        plan: What is evaluated.
        here: Where it waits for the other parties in this process, if there are any.
        parted: Called when nobody needs this party any more. ``None``: all parties are here, and none takes leave.

    Attributes:
        side: Its side of the exchange, once the parties have agreed.
        trains: Whether what it sends now belongs to a training step, or crosses in place of one.
        evaluates: Whether what it sends now belongs to an evaluation.
        crossed: Whether everything has crossed that ever will; of a meeting that broke off at its end, it is not known.
    """

    side: Side

    def __init__(
        self,
        party: P,
        partners: Sequence[str],
        run: Run,
        *,
        exchange: Exchange,
        terms: Mapping[str, object],
        plan: EvaluationPlan,
        here: Rendezvous | None = None,
        parted: Callable[[], None] | None = None,
    ) -> None:
        self.party, self.partners = party, tuple(partners)
        self.trains, self.evaluates, self.crossed = False, False, False
        self._run, self._training, self._terms, self._plan = run, run.training, terms, plan
        self._one_way, self._draws_records = exchange.one_way, exchange.draws_records
        self._in_flight = exchange.in_flight
        self._adds_noise = exchange.sum_noise is not None
        self._here, self._parted = here or Rendezvous(), parted

    def half(self) -> Half:
        """Return its half of all that it says to the others.

        In a one-way exchange that ends before the first step, and the active party takes its steps alone.

        Raises:
            Interrupted: At Ctrl-C, after the current step and a checkpoint.
            SplitVFLError: As the halves that it is made of.
        """
        run, training = self._run, self._training
        yield from agreement(self.party.name, self.partners, self._terms)
        yield from self._here.join(run.begin)
        if self._one_way:
            self.crossed = False
            # Before anything is sent there is a checkpoint, from which the same would be sent again.
            yield from run.choose(self._resuming)
            yield from self._training_messages(self.side.open())
            self.crossed = True
            if self._parted is not None:
                run.save_checkpoint()
        else:
            yield from self._in_turn(self.side.open())
            training.tell(self.side.notes())
            training.opened(self.side.columns)
            yield from run.choose(self._resuming)
            yield from self.steps()
        run.before_leaving()
        yield from self._leave()

    def steps(self) -> Half:
        """Return its half of the steps that are left, and of what follows each of them; then it has its best weights.

        Raises:
            Interrupted: At Ctrl-C, after the current step and a checkpoint.
            SplitVFLError: As the halves that it is made of.
        """
        training = self._training
        here = Rendezvous() if self._one_way else self._here
        yield from here.join(training.start)
        if training.plan is not None:
            self.party.weights.best.restore_trained()
            with training.signals:
                while training.plan is not None:
                    yield from self._step(training.plan, here)
        self.party.weights.best.use()

    def _step(self, plan: StepPlan, here: Rendezvous) -> Half:
        training = self._training
        if self._in_flight:
            self.side.look_ahead([len(later.rows) for later in training.coming(self._in_flight)])
        step = self.side.step(training.records[self.party.name], plan.step)
        loss = yield from self._training_messages(step)
        if loss is not None:
            training.loss = loss
        if plan.saves:
            yield from self._training_messages(self.side.drain())
        if plan.evaluates:
            self.evaluates = True
            try:
                yield from self._in_turn(self._evaluation(plan))
            finally:
                self.evaluates = False
        yield from here.join(training.step_done)
        if training.saving:
            yield from self._before_saving(plan, alone=here.count == 1)
            save = None if self.side.under_way else self._run.save_checkpoint
            yield from here.join(partial(training.step_saved, save))

    def _before_saving(self, plan: StepPlan, *, alone: bool) -> Half:
        """End what is under way where a stop was asked for between two checkpoints, if all parties stop together."""
        if plan.saves:
            return
        under_way, name = self.side.under_way, self.party.name
        if not alone:
            said = (
                f"{name} brought its batches in flight to an end for this stop. A run that goes on from here is as "
                "good, and ends with other weights than one that was not stopped"
            )
            yield from self._training_messages(self.side.drain())
        else:  # the others do not know that it stops, and go on: a checkpoint here would be of no use
            said = f"{name} has batches in flight, and goes back to its last checkpoint when it goes on"
        if under_way:
            self._training.notify(said)

    def _training_messages(self, half: Half) -> Half:
        self.trains = True
        try:
            return (yield from self._in_turn(half))
        finally:
            self.trains = False

    def _in_turn(self, half: Half) -> Half:
        """Return a half that acts in this party's random state, while the clock runs; what lies between is outside."""
        resume: Callable[[], Outbox] = partial(next, half)
        try:
            while True:
                started = time.perf_counter()
                try:
                    with self.party.random:
                        outbox = resume()
                except StopIteration as stop:
                    return stop.value
                finally:
                    if self.trains:
                        self._training.clock += time.perf_counter() - started
                try:
                    resume = partial(half.send, (yield outbox))
                except LinkError as error:
                    resume = partial(half.throw, error)
        finally:
            half.close()

    @abstractmethod
    def answered(self) -> frozenset[str]:
        """Return the kinds of messages on which what it sends depends, if that is defended; they must not vary."""

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

    def answered(self) -> frozenset[str]:
        """Return the kinds of messages on which its gradients depend, where they are defended or hide what is drawn.

        Noise on sums too: of two sums with the same noise the difference has none, and how residues of other logits
        were rounded tells their labels.
        """
        chains = (self.party.labels, *(cut.gradient for cut in self.party.cuts.values()))
        if not any(map(len, chains)):
            return frozenset({"activation"} if self._draws_records or self._adds_noise else ())
        # Of parts under masks that are new at every meeting, the sum is remembered.
        return frozenset({"activation"} if self.party.sums_parts else {"activation", "evaluation"})

    def _resuming(self, own: HeldCheckpoints) -> Half:
        return active_resuming(self.party.name, self.partners, own, number=self._run.new_number())

    def _evaluation(self, plan: StepPlan) -> Half:
        half = evaluation_of(self.side, self.party, self._plan, step=plan.step + 1, epoch=plan.epoch + 1)
        self._training.evaluated((yield from half))

    def _leave(self) -> Half:
        if self._parted is not None:
            yield from active_farewell(self.party.name, self.partners, self._training.step, self._parted)
        try:
            yield from self.side.leave()
        except LinkError as error:  # nothing is needed of anybody any more
            self._training.notify(f"{error}; everything had been said before")


class PassiveTraining(PartyTraining[PassiveParty]):
    """A passive party's part."""

    def answered(self) -> frozenset[str]:
        """Return the kinds of messages on which its activations depend.

        Each depends on the gradients of the steps before, and on which records it is asked for.
        """
        defended = not self._one_way and any(map(len, self.party.chains().values()))
        kinds = {"gradient", "selection"} if self._draws_records else {"gradient"}
        return frozenset(kinds if defended else ())

    def _resuming(self, own: HeldCheckpoints) -> Half:
        return passive_resuming(self.party.name, self.partners[0], own)

    def _evaluation(self, plan: StepPlan) -> Half:
        step, epoch = plan.step + 1, plan.epoch + 1
        return passive_evaluation(self.party, self._plan, step=step, epoch=epoch, active=self.partners[0])

    def _leave(self) -> Half:
        if self._parted is not None:
            yield from farewell(self.party.name, self.partners, self._training.step)
            self._parted()
