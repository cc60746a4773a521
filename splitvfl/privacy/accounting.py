"""What a training has spent of a privacy budget, what the rest will, and where it has to end.

A :class:`PrivacyBudget` knows what each party sends (its *streams*), counts the steps that were begun, and says for
every sender, coalition of receivers and relation what that has cost. It works in both directions: :func:`hdp_sigma` is
the noise for a budget, :meth:`PrivacyBudget.planned` the budget for a noise.

What is assumed: the order of the records is known to everybody, and nothing is amplified by it. Membership is outside:
the alignment of the parties tells who is in the data.

>>> training = HdpTraining(party="passive", steps_per_epoch=1, batch_size=455, eta=0.1, k=1, lipschitz=1)
>>> sigma = hdp_sigma({"row": training}, 10, epsilon=1.0, delta=1e-3)
>>> shop = GaussianMessages("shop", ("bank",), {"row": training}, sigma)
>>> budget = PrivacyBudget([shop], steps=10, delta=1e-3, epsilon=1.0)
>>> for step in range(5):
...     budget.begin(step)
>>> round(budget.spent("shop").epsilon, 3), round(budget.planned("shop").epsilon, 3), budget.last_step
(0.661, 1.0, 10)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from splitvfl.errors import ArgumentError, PrivacyError, count, number, positive, probability
from splitvfl.privacy.composition import Guarantee, PrivacyLoss
from splitvfl.privacy.gaussian_dp import gaussian_mu
from splitvfl.privacy.sensitivity import HdpTraining
from splitvfl.privacy.statement import IN_A_KNOWN_ORDER, NotCovered, Relation, Statement, claim_warnings

Own = Literal["label", "row"]
Sends = npt.NDArray[np.int64]
"""How often the messages of every step were sent with noise of their own: 1, or more where noise was not repeated."""

_VERSION = 1


class Stream(Protocol):
    """What one party sends in every step, to whom, and what it costs."""

    @property
    def sender(self) -> str:
        """Whose messages they are."""

    @property
    def receivers(self) -> tuple[str, ...]:
        """Who receives them."""

    @property
    def relations(self) -> tuple[Own, ...]:
        """What it protects: the sender's row of a record, or a label alone."""

    def loss(self, relation: Own, sends: Sends, to: frozenset[str]) -> PrivacyLoss:
        """Return what all messages of some steps tell a coalition.

        Args:
            relation: One of :attr:`relations`.
            sends: How often each step was sent.
            to: The coalition, without the sender.
        """

    def terms(self) -> dict[str, Any]:
        """Return what it is, for a checkpoint: as JSON has it. Equal terms cost the same."""


@dataclass(frozen=True)
class GaussianMessages:
    """Messages of HDP-VFL: Gaussian noise, and a sensitivity over the whole training.

    Attributes:
        sender: Whose messages they are.
        receivers: Who receives them.
        trainings: How the sender trains, by what neighbours differ in: ``"row"``, and ``"label"`` at the label party.
        sigma: Standard deviation of the noise; or one for each of some stretches of steps, ``[(steps, sigma), …]``, of
            which the last one goes on.
        one_draw: Whether all receivers get the same noise. With draws of their own, μ is √p times as large for p
            receivers, **whoever of them looks**: in a training, what one receives depends on what the others did.
        grid: Grid of the noise, in standard deviations, from 0: each number is rounded to it before.
        unmatched: For each number, the probability of noise that the other world could not have led to, from 0.
    """

    sender: str
    receivers: tuple[str, ...]
    trainings: Mapping[Own, HdpTraining]
    sigma: float | tuple[tuple[int, float], ...]
    one_draw: bool = True
    grid: float = 0.0
    unmatched: float = 0.0

    def __post_init__(self) -> None:
        _check_parties(self.sender, self.receivers)
        for stretch, sigma in self._stretches():
            positive("sigma", sigma)
            count("steps of a stretch", stretch)
        if not self.trainings or any(training.changed != name for name, training in self.trainings.items()):
            raise ArgumentError("trainings: expected an HdpTraining for 'row', 'label' or both, changed accordingly")
        if not (0.0 <= self.grid < 1.0 and 0.0 <= self.unmatched <= 1.0):
            raise ArgumentError(
                f"expected grid in [0, 1) and unmatched in [0, 1], got {self.grid} and {self.unmatched}"
            )

    @property
    def relations(self) -> tuple[Own, ...]:
        """What it protects."""
        return tuple(self.trainings)

    def loss(self, relation: Own, sends: Sends, to: frozenset[str]) -> PrivacyLoss:
        """Return one Gaussian release of everything; see :class:`Stream`."""
        draws = 1 if self.one_draw else len(self.receivers)
        if not sends.any() or not to:
            return PrivacyLoss()
        training = self.trainings[relation]
        mu = _weighted(training, (draws * sends / self._sigmas(len(sends)) ** 2).tobytes())
        numbers = draws * float((sends * training.numbers(len(sends))).sum())
        # Rounding moves every number by a grid step at most, whichever record it is of.
        return PrivacyLoss(mu=mu + self.grid * math.sqrt(numbers), unmatched=min(1.0, self.unmatched * numbers))

    def terms(self) -> dict[str, Any]:
        """Return what the cost follows from."""
        return {
            "sender": self.sender,
            "receivers": list(self.receivers),
            "trainings": {name: _plain(vars(training)) for name, training in sorted(self.trainings.items())},
            "sigma": [list(stretch) for stretch in self._stretches()],
            "one draw": self.one_draw,
            "grid": self.grid,
            "unmatched": self.unmatched,
        }

    def after(self, steps: int, sigma: float) -> GaussianMessages:
        """Return the same messages with another noise after so many steps."""
        kept = list(self._until(count("steps", steps)))
        stretches = (*kept, (1, positive("sigma", sigma)))
        return GaussianMessages(
            self.sender, self.receivers, self.trainings, stretches, self.one_draw, self.grid, self.unmatched
        )

    def _stretches(self) -> tuple[tuple[int, float], ...]:
        return self.sigma if isinstance(self.sigma, tuple) else ((1, number("sigma", self.sigma)),)

    def _until(self, steps: int) -> Iterable[tuple[int, float]]:
        for sigma, same in groupby(self._sigmas(steps).tolist()):
            yield len(list(same)), sigma

    def _sigmas(self, steps: int) -> npt.NDArray[np.float64]:
        stretches = self._stretches()
        found = np.full(steps, stretches[-1][1])
        start = 0
        for length, sigma in stretches[:-1]:
            found[start : start + length] = sigma
            start += length
        return found


@dataclass(frozen=True)
class GaussianEvaluations:
    """Messages of HDP-VFL that are about records on which nothing is trained, and show the weights that made them.

    What is protected is a row that was trained on. The rows of the records that are evaluated are not.

    Attributes:
        sender: Whose messages they are.
        receivers: Who receives them.
        training: How the sender trains.
        sigma: Standard deviation of the noise.
        records: How many records are evaluated.
        after: After how many steps, each time.
        grid: As :class:`GaussianMessages` has it.
        unmatched: Likewise.
    """

    sender: str
    receivers: tuple[str, ...]
    training: HdpTraining
    sigma: float
    records: int
    after: tuple[int, ...]
    grid: float = 0.0
    unmatched: float = 0.0

    def __post_init__(self) -> None:
        _check_parties(self.sender, self.receivers)
        positive("sigma", self.sigma)
        count("records", self.records)
        for steps in self.after:
            count("after", steps)

    @property
    def relations(self) -> tuple[Own, ...]:
        """What it protects."""
        return (self.training.changed,)

    def loss(self, relation: Own, sends: Sends, to: frozenset[str]) -> PrivacyLoss:
        """Return one Gaussian release of all evaluations that may have followed these steps; see :class:`Stream`."""
        taken = [(steps, int(sends[steps - 1])) for steps in self.after if steps <= len(sends)]
        if not any(times for _, times in taken) or not to:
            return PrivacyLoss()
        numbers = float(self.records * sum(times for _, times in taken))
        moved = math.sqrt(self.records * math.fsum(times * self.training.moved(steps) ** 2 for steps, times in taken))
        mu = moved / self.sigma + self.grid * math.sqrt(numbers)
        return PrivacyLoss(mu=mu, unmatched=min(1.0, self.unmatched * numbers))

    def terms(self) -> dict[str, Any]:
        """Return what the cost follows from."""
        return {
            "sender": self.sender,
            "receivers": list(self.receivers),
            "training": _plain(vars(self.training)),
            "sigma": self.sigma,
            "records": self.records,
            "after": list(self.after),
            "grid": self.grid,
            "unmatched": self.unmatched,
        }


@dataclass(frozen=True)
class MessagesPerUse:
    """Messages that cost the same whenever a record is used, and nothing of which depends on what was sent before.

    What one use costs has to hold whatever the other messages are: noise on the residue of a label party that learns
    nothing itself from exact residues, say.

    Attributes:
        sender: Whose messages they are.
        receivers: Who receives them.
        costs: What one use costs, by what neighbours differ in.
        steps_per_epoch: Steps in an epoch, in which every record is used once.
        remembered: Whether a record's first answer is sent again, at no cost.
        one_draw: Whether all receivers get the same answer.
        answered: Whether receivers send something back, on which later messages depend. Then draws of their own are all
            counted for every coalition, as by :class:`GaussianMessages`; without, only those that it receives.
    """

    sender: str
    receivers: tuple[str, ...]
    costs: Mapping[Own, PrivacyLoss]
    steps_per_epoch: int
    remembered: bool = False
    one_draw: bool = True
    answered: bool = True

    def __post_init__(self) -> None:
        _check_parties(self.sender, self.receivers)
        count("steps_per_epoch", self.steps_per_epoch)
        if not self.costs:
            raise ArgumentError("costs: expected what one use costs, for 'row' or 'label'")

    @property
    def relations(self) -> tuple[Own, ...]:
        """What it protects."""
        return tuple(self.costs)

    def loss(self, relation: Own, sends: Sends, to: frozenset[str]) -> PrivacyLoss:
        """Return what the record that was used most often has cost; see :class:`Stream`."""
        each = self.steps_per_epoch
        uses = sum(int(sends[start : start + each].max()) for start in range(0, len(sends), each))
        seen = len(to and self.receivers) if self.answered else len(to.intersection(self.receivers))
        uses = min(uses, 1) if self.remembered else uses
        return self.costs[relation].repeated(uses * (min(seen, 1) if self.one_draw else seen))

    def terms(self) -> dict[str, Any]:
        """Return what the cost follows from."""
        costs = {
            name: {
                "mu": loss.mu,
                "pure": loss.pure,
                "laplace": loss.laplace,
                "distance": loss.distance,
                "unmatched": loss.unmatched,
            }
            for name, loss in sorted(self.costs.items())
        }
        return {
            "sender": self.sender,
            "receivers": list(self.receivers),
            "costs": _plain(costs),
            "steps per epoch": self.steps_per_epoch,
            "remembered": self.remembered,
            "one draw": self.one_draw,
            "answered": self.answered,
        }


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent, or is going to be.

    Attributes:
        epsilon: ε in nats; infinite where there is none.
        delta: δ.
        mu: μ of the Gaussian releases.
        zcdp: ρ.
        method: How it was composed.
        steps: Steps that it is about.
        senders: Whose messages.
        coalition: To whom.
        relation: What neighbours differ in.
        group: In how many records of one entity.
    """

    epsilon: float
    delta: float
    mu: float
    zcdp: float
    method: str
    steps: int
    senders: tuple[str, ...]
    coalition: tuple[str, ...]
    relation: Relation
    group: int

    @property
    def of(self) -> str:
        """Whose data it is about, in a word or two: ``"row at shop"``, ``"record at all parties"``."""
        return f"{self.relation} at {'all parties' if self.relation == 'record' else ' and '.join(self.senders)}"

    def in_words(self, planned: Spent | None = None) -> str:
        """Return it in a sentence, beside what it will be at the end if that is another figure.

        Where no ε holds at δ, now or at the end, the sentence says that nothing is promised.
        """
        readers = "an outsider who reads all messages" if self.relation == "record" else " and ".join(self.coalition)
        said = f"{self.of}, towards {readers}: {_epsilon(self.epsilon)} at δ {self.delta:g} (μ {_up(self.mu)}, zCDP "
        said += f"{_up(self.zcdp)}) after {self.steps:,} {'step' if self.steps == 1 else 'steps'}"
        if planned is not None and planned.steps != self.steps:
            said += f", and {_epsilon(planned.epsilon)} after the {planned.steps:,} that were planned"
        if not math.isfinite(self.epsilon):
            said += ": nothing is promised"
        elif planned is not None and not math.isfinite(planned.epsilon):
            said += ": of all of them nothing is promised"
        return f"Spent on one {said}."

    def statement(
        self,
        *,
        mechanism: str,
        clipping: str,
        generator: str,
        not_covered: Sequence[NotCovered],
        sampling: str = IN_A_KNOWN_ORDER,
        records: int | None = None,
    ) -> Statement:
        """Return what is claimed, with what only those know who made the mechanism.

        Args:
            mechanism: What is done to what is sent.
            clipping: What is clipped to what, by whom.
            generator: Where the noise comes from.
            not_covered: What the claim does not cover.
            sampling: What is assumed of the order of the records.
            records: Records trained on, for the warnings.
        """
        senders = " and ".join(self.senders)
        protected = {
            "row": f"the row of one record at {senders}",
            "label": f"the label of one record at {senders}",
            "record": f"one record at all of {senders}",
        }
        readers = "an outsider who reads all messages" if self.relation == "record" else " and ".join(self.coalition)
        return Statement(
            mechanism=mechanism,
            relation=self.relation,
            group=self.group,
            epsilon=self.epsilon,
            delta=self.delta,
            protected=protected[self.relation],
            against=readers,
            clipping=clipping,
            sampling=sampling,
            generator=generator,
            method=self.method,
            not_covered=tuple(not_covered),
            warnings=claim_warnings(self.epsilon, self.delta, records=records),
            steps=self.steps,
        )


def hdp_sigma(
    trainings: Mapping[Own, HdpTraining], steps: int, *, epsilon: float, delta: float, group: int = 1, draws: int = 1
) -> float:
    """Return the smallest standard deviation with which a training's messages are (ε, δ)-private.

    For the ``"row"`` of a record where it is given, otherwise for its ``"label"``.

    Args:
        trainings: How the sender trains, as :class:`GaussianMessages` takes it.
        steps: Steps of the whole training.
        epsilon: ε in nats, > 0.
        delta: δ, in (0, 1).
        group: Records of one entity.
        draws: Receivers with noise of their own.
    """
    training = trainings.get("row") or trainings["label"]
    moved = training.sensitivity(count("steps", steps)) * count("group", group) * math.sqrt(count("draws", draws))
    return moved / gaussian_mu(epsilon=epsilon, delta=delta)


@dataclass
class PrivacyBudget:
    """The account of a training: call :meth:`begin` before the messages of a step leave.

    A step that is taken again **with the same noise**, as by a run that goes on from a checkpoint with the state of its
    generators, tells nothing new, and is counted once. Where the noise is fresh, say so, and it is counted again; then
    the account has to be written before every step, for a checkpoint does not know which steps were taken after it.

    Attributes:
        streams: What is sent.
        steps: Steps that are planned.
        delta: δ of all that is said here, in (0, 1).
        epsilon: ε that may be spent on ``relation``, by each sender; ``None``: no limit.
        relation: What the limit is for: ``"row"``, ``"label"``, or ``"record"`` for all messages together.
        group: Records of one entity that the limit is for.
        records: Records trained on, for the warnings.

    Raises:
        ArgumentError: If a number is out of its range, or no stream protects what the limit is for.
    """

    streams: Sequence[Stream]
    steps: int
    delta: float
    epsilon: float | None = None
    relation: Relation = "row"
    group: int = 1
    records: int | None = None
    _sends: Sends = field(init=False, repr=False)
    _begun: int = field(init=False, default=0, repr=False)
    _last: int | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        probability("delta", self.delta)
        count("group", self.group)
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
        self._sends = np.zeros(count("steps", self.steps), dtype=np.int64)
        if not self._limited():
            raise ArgumentError(f"no stream protects a {self.relation}: a budget for it means nothing")

    @property
    def begun(self) -> int:
        """How many steps were begun."""
        return self._begun

    @property
    def last_step(self) -> int:
        """How many steps can be taken, of those that are planned, before ε would be overspent by any sender.

        All parties that have the same account find the same number.
        """
        if self._last is None:
            self._last = self._affordable()
        return self._last

    @property
    def stop(self) -> Callable[[int], bool] | None:
        """Whether training ends after so many steps, as a schedule asks; ``None`` without a limit."""
        return None if self.epsilon is None else lambda done: done >= self.last_step

    def begin(self, step: int, *, same_noise: bool = True) -> None:
        """Count a step, before anything of it is sent.

        Args:
            step: Its number, from 0: the next one, or one that was begun before.
            same_noise: Whether a step that is taken again has the noise that it had.

        Raises:
            ArgumentError: If a step is left out, or beyond the plan.
            PrivacyError: If it would overspend the budget.
        """
        if not 0 <= step <= self.begun or step >= len(self._sends):
            raise ArgumentError(f"expected a step up to {min(self.begun, len(self._sends) - 1)}, got {step}")
        again = self._sends[step] > 0
        if again and same_noise:
            return
        if not again and step >= self.last_step:
            raise PrivacyError(self._overspent(step))
        if again:
            sends = self._sends.copy()
            sends[step] += 1
            if self._exceeds(sends[: self.begun]):
                raise PrivacyError(self._overspent(step))
            self._sends, self._last = sends, None
        else:
            self._sends[step], self._begun = 1, step + 1

    def spent(self, sender: str, *, to: Iterable[str] | None = None, relation: Own = "row", group: int = 1) -> Spent:
        """Return what the steps that were begun have told a coalition about one sender.

        Args:
            sender: Whose row, or label.
            to: The coalition; default: all who receive something of it.
            relation: ``"row"`` or ``"label"``.
            group: Records of one entity.

        Raises:
            ArgumentError: If nothing is known of that sender, or it is in the coalition itself.
        """
        return self._of((sender,), to, relation, group, self._sends[: self.begun])

    def planned(self, sender: str, *, to: Iterable[str] | None = None, relation: Own = "row", group: int = 1) -> Spent:
        """Return what it will be when the plan is done, arguments as :meth:`spent`."""
        return self._of((sender,), to, relation, group, np.maximum(self._sends, 1))

    def loss(self, sender: str, *, relation: Own = "row") -> PrivacyLoss | None:
        """Return the privacy loss towards all who receive something of a sender: of the steps begun, else planned.

        Args:
            sender: Whose row, or label.
            relation: ``"row"`` or ``"label"``.

        Returns:
            ``None`` if nothing is sent that protects it.
        """
        if sender not in self._senders(relation):
            return None
        return self._loss(
            (sender,), None, relation, self._sends[: self.begun] if self.begun else self._sends[: self.last_step] + 1
        )

    def outsider(self, *, group: int = 1, planned: bool = False) -> Spent:
        """Return what somebody learns of a record, changed at every party, who reads all messages.

        μ² of all senders' rows add up: given what was sent, each stream moves with its own sender's row only.
        """
        sends = np.maximum(self._sends, 1) if planned else self._sends[: self.begun]
        return self._of(self._senders("row"), None, "record", group, sends)

    def everything(self) -> list[tuple[Spent, Spent]]:
        """Return what was spent, and what was planned, of each sender and relation, and of a record at every party.

        Each towards all who receive something of the sender; who receives less of it has learned no more.
        """
        return list(zip(self.spent_on_everything(), self._everything(np.maximum(self._sends, 1)), strict=True))

    def spent_on_everything(self) -> list[Spent]:
        """Return what was spent, of :meth:`everything`: what a log has after every epoch, without the plan."""
        return self._everything(self._sends[: self.begun])

    def _everything(self, sends: Sends) -> list[Spent]:
        own: tuple[Own, ...] = ("row", "label")
        found = [
            self._of((sender,), None, relation, 1, sends) for relation in own for sender in self._senders(relation)
        ]
        if len(self._senders("row")) > 1:
            found.append(self._of(self._senders("row"), None, "record", 1, sends))
        return found

    def warnings(self) -> tuple[str, ...]:
        """Return what is to be said of the plan's (ε, δ)."""
        found = [
            self._of(senders, None, self.relation, self.group, np.maximum(self._sends, 1))
            for senders in self._limited()
        ]
        return tuple(
            dict.fromkeys(w for each in found for w in claim_warnings(each.epsilon, self.delta, records=self.records))
        )

    def extended(self, steps: int, streams: Sequence[Stream]) -> PrivacyBudget:
        """Return a new plan that goes on after the steps that were begun, and counts them.

        Args:
            steps: Steps of the new plan, those that were begun included.
            streams: What is sent from now on; for another noise, :meth:`GaussianMessages.after` so many steps.

        Raises:
            ArgumentError: If it has fewer steps than were begun.
        """
        if steps < self.begun:
            raise ArgumentError(f"{self.begun} steps were begun, the new plan has {steps}")
        found = PrivacyBudget(streams, steps, self.delta, self.epsilon, self.relation, self.group, self.records)
        found._sends[: self.begun], found._begun = self._sends[: self.begun], self.begun
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the account as JSON has it: what was sent how often, and what the streams were."""
        runs = [[len(list(same)), times] for times, same in groupby(self._sends[: self.begun].tolist())]
        return {"version": _VERSION, "sends": runs, "streams": [stream.terms() for stream in self.streams]}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Steps that were begun since are kept: they have been sent.

        Raises:
            PrivacyError: If the account is of other streams, or another version: then :meth:`extended` is the way.
        """
        if state.get("version") != _VERSION:
            raise PrivacyError(f"expected a privacy account of version {_VERSION}, got {state.get('version')!r}")
        if state["streams"] != [stream.terms() for stream in self.streams]:
            raise PrivacyError(
                "this privacy account is of other noise or another training: a plan that goes on in another way counts "
                "the old one, see PrivacyBudget.extended"
            )
        sends = [int(times) for length, times in state["sends"] for _ in range(int(length))]
        if len(sends) > len(self._sends):
            raise PrivacyError(f"the privacy account has {len(sends)} steps, the plan {len(self._sends)}: extend it")
        self._sends[: len(sends)] = np.maximum(self._sends[: len(sends)], sends)
        self._begun, self._last = max(self._begun, len(sends)), None

    def _senders(self, relation: Relation) -> tuple[str, ...]:
        own: Own = "row" if relation == "record" else relation
        return tuple(dict.fromkeys(stream.sender for stream in self.streams if own in stream.relations))

    def _limited(self) -> list[tuple[str, ...]]:
        """Return the senders whose messages the limit is for, together or each by itself."""
        senders = self._senders(self.relation)
        if self.relation == "record":
            return [senders] if senders else []
        return [(sender,) for sender in senders]

    def _loss(
        self, senders: tuple[str, ...], to: Iterable[str] | None, relation: Relation, sends: Sends
    ) -> PrivacyLoss:
        own: Own = "row" if relation == "record" else relation
        coalition = None if to is None else frozenset(to)
        found, known = PrivacyLoss(), False
        for stream in self.streams:
            if stream.sender not in senders or own not in stream.relations:
                continue
            readers = frozenset(stream.receivers) if coalition is None else coalition
            if coalition is not None and stream.sender in coalition:
                raise ArgumentError(f"{stream.sender} knows its own data: take it out of the coalition")
            known = True
            found += stream.loss(own, sends, readers)
        if not known:
            raise ArgumentError(f"nothing is sent that protects a {own} of {', '.join(senders)}")
        return found

    def _of(
        self, senders: tuple[str, ...], to: Iterable[str] | None, relation: Relation, group: int, sends: Sends
    ) -> Spent:
        coalition = None if to is None else tuple(to)
        loss = self._loss(senders, coalition, relation, sends).of_group(group)
        guarantee = _guarantee(loss, self.delta)
        readers = dict.fromkeys(
            name for stream in self.streams if stream.sender in senders for name in stream.receivers
        )
        return Spent(
            epsilon=guarantee.epsilon,
            delta=self.delta,
            mu=loss.mu,
            zcdp=loss.zcdp,
            method=guarantee.method,
            steps=len(sends),
            senders=senders,
            coalition=tuple(readers) if coalition is None else coalition,
            relation=relation,
            group=group,
        )

    def _exceeds(self, sends: Sends) -> bool:
        if self.epsilon is None or not sends.size:
            return False
        # An ε that a σ was calculated for comes back with a rounding or two.
        allowed = self.epsilon * (1.0 + 1e-9)
        return any(
            self._loss(senders, None, self.relation, sends).of_group(self.group).guarantee(self.delta).epsilon > allowed
            for senders in self._limited()
        )

    def _affordable(self) -> int:
        sends = np.maximum(self._sends, 1)
        if not self._exceeds(sends):
            return len(sends)
        low, high = 0, len(sends)  # the first is affordable, the last is not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._exceeds(sends[:middle]) else (middle, high)
        return low

    def _overspent(self, step: int) -> str:
        if self.last_step == 0:
            return (
                f"no step fits into the privacy budget: one step already spends more than ε {self.epsilon:g} at "
                f"δ {self.delta:g}; take more noise"
            )
        return (
            f"step {step} would spend more than ε {self.epsilon:g} at δ {self.delta:g} for a {self.relation}: training "
            f"ends after {self.last_step} steps"
        )


# Parties that train alike cost the same, and a plan stays what it is while its steps are taken.
@lru_cache(maxsize=16)
def _weighted(training: HdpTraining, factors: bytes) -> float:
    return training.weighted_sensitivity(np.frombuffer(factors))


@lru_cache(maxsize=64)
def _guarantee(loss: PrivacyLoss, delta: float) -> Guarantee:
    return loss.guarantee(delta)


def _epsilon(value: float) -> str:
    return f"ε {_up(value)}" if math.isfinite(value) else "no ε"


def _up(value: float) -> str:
    """Return a cost in three digits, never below it."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    # What is a whole number of units but for rounding stays what it is.
    return f"{math.ceil(value / unit - 1e-6) * unit:.3g}"


def _check_parties(sender: str, receivers: Sequence[str]) -> None:
    if not receivers or sender in receivers or len(set(receivers)) < len(receivers):
        raise ArgumentError(f"{sender} sends to others, each named once, got {', '.join(receivers) or 'nobody'}")


def _plain(value: Any) -> Any:
    """Return a value as it comes back from JSON."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
