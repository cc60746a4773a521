"""The state of a run in one process, of all its parties or of one of several over a network, and its log."""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.errors import ConfigError
from splitvfl.exchange.evaluation import EvaluatedOutputs, Evaluation
from splitvfl.exchange.handshake import HeldCheckpoints
from splitvfl.leakage.label_leak import LabelLeak
from splitvfl.leakage.watching import Watch
from splitvfl.learning.schedule import Schedule, StepPlan
from splitvfl.messaging.conversation import Half
from splitvfl.party.party import Party
from splitvfl.run.replacement import Replacement
from splitvfl.run.step_log import StepLog
from splitvfl.system.signals import Interrupted, Signals
from splitvfl.team.team import Alone, Team

if TYPE_CHECKING:
    from splitvfl.privacy.accounting import PrivacyBudget
    from splitvfl.privacy.solvable import Solvable

TrainingProgress = Callable[["Status"], None]


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

    @classmethod
    def of(cls, run: Training, schedule: Schedule, *, epoch: int) -> Status:
        """Return where a run stands in an epoch of its schedule."""
        on_test = (value for tag, value in run.figures.items() if tag.startswith("test/"))
        return cls(
            epoch=epoch,
            epochs=schedule.epochs,
            step=run.step,
            steps=schedule.steps,
            loss=run.loss,
            test=next(on_test, math.nan),  # the headline figure comes first
            worst_leak=run.watch.worst_logged,
            label_leaks=dict(run.watch.label_leaks_logged),
        )


def new_run_number() -> str:
    """Return a number for a run that no other has."""
    return secrets.token_hex(16)


class Training:
    """What one process keeps of a run, and does for all its parties when they have come equally far.

    The parties themselves follow :class:`~splitvfl.run.party_training.PartyTraining`; one process has all of them, or
    one that talks to the others over a network.

    Args:
        watch: What is watched meanwhile.
        notify: As the attribute.

    Attributes:
        parties: The parties that are trained here; one with labels is the first.
        step: Number of steps done.
        plan: The step under way; ``None`` before the first one and after the last.
        records: Those of the step under way, by party.
        begun: By party, told of its records before anything of their step is sent.
        saving: Whether a checkpoint follows the step that was just done.
        signals: Requests to stop between two steps.
        team: The workers of the party that is trained here, or this process alone.
        loss: Training loss of the last step; NaN without labels.
        log: What was measured in steps, and where it is written.
        clock: Seconds that parties here have spent in the step under way; waiting is none of it.
        watch: Attacks on what crosses, and their figures.
        figures: Figures of the last evaluation, ``"test/auc"`` and so on; none without labels.
        kept: Figures of the evaluation whose weights are kept, where training may stop early.
        tested: Outputs of test records in the last evaluation, at the label party; ``None``: there are none.
        kept_tested: Those of the evaluation whose weights are kept.
        notify: Told in one line what happens, for a person.
        account: What is spent of a privacy budget, where noise was calculated for one; ``None``: nothing is counted.
        exchange_notes: What is known of the exchange before the first step, in sentences.
        solvable: What partners can compute of labels, known before the first step.
        foresee: At the active party, says what follows from how many columns each passive party has, as a figure and in
            sentences; ``None``: nobody has asked.
    """

    def __init__(self, watch: Watch, *, notify: Callable[[str], None] = lambda line: None) -> None:
        self.parties: tuple[Party, ...] = ()
        self.step = 0
        self.plan: StepPlan | None = None
        self.records: dict[str, Records] = {}
        self.begun: dict[str, Callable[[Records], None]] = {}
        self.saving = False
        self.signals = Signals()
        self.team: Team = Alone()
        self.loss = math.nan
        self.log = StepLog()
        self.clock = 0.0
        self.watch = watch
        self.figures: dict[str, float] = {}
        self.kept: dict[str, float] = {}
        self.tested: EvaluatedOutputs | None = None
        self.kept_tested: EvaluatedOutputs | None = None
        self.notify = notify
        self.account: PrivacyBudget | None = None
        self.exchange_notes: list[str] = []
        self.solvable: list[Solvable] = []
        self.foresee: Callable[[Mapping[str, int]], tuple[list[Solvable], list[str]]] | None = None
        self._judging = 0.0
        self._coming: deque[StepPlan] = deque()

    def tell(self, notes: Sequence[str]) -> None:
        """Say what a side has to say before the first step: once, however often the parties meet."""
        for note in notes:
            if note not in self.exchange_notes:
                self.exchange_notes.append(note)
                self.notify(note)

    def opened(self, columns: Mapping[str, int]) -> None:
        """Take note of how many columns each passive party has, and say what follows before the first step."""
        if self.foresee is not None and columns:
            self.solvable, said = self.foresee(columns)
            self.tell(said)

    # --- steps

    def set_out(self, schedule: Schedule, progress: TrainingProgress, *, grace_s: float | None = None) -> None:
        """Say what is to be followed.

        Args:
            schedule: What follows which step.
            progress: Told of every step.
            grace_s: Seconds that a step which is under way may take on when a signal comes; ``None``: no limit.

        Raises:
            ConfigError: If it has more steps than noise was calculated for.
        """
        if self.account is not None and schedule.steps > self.account.steps:
            raise ConfigError(
                f"the noise of this run was calculated for {self.account.steps:,} steps, and {schedule.epochs} epochs "
                f"have {schedule.steps:,}: with the same noise they would spend more than was promised. Start a new "
                "run, whose noise is calculated for all of its epochs"
            )
        self._schedule, self._progress, self.signals = schedule, progress, Signals(grace_s=grace_s)
        self.team.stopping = lambda: self.signals.asked

    def start(self) -> None:
        """Begin with the first of the steps that are left, if there are any."""
        if self.account is not None:
            for step in range(self.account.begun, self.step):  # of a checkpoint from before accounts were kept
                self.account.begin(step)
        self._plans = self._schedule.plans(self.step)
        self._coming.clear()
        self.plan = None
        if not self.stopped:
            self._go_on()

    def coming(self, most: int) -> list[StepPlan]:
        """Return the steps after the one under way, so many at most, up to the next one that a checkpoint follows."""
        found: list[StepPlan] = []
        last = self.plan
        while last is not None and not last.saves and len(found) < most:
            if len(found) == len(self._coming):
                self._coming.extend(islice(self._plans, 1))
            last = self._coming[len(found)] if len(found) < len(self._coming) else None
            found += [last] if last is not None else []
        return found

    def _go_on(self) -> None:
        self.plan = self._coming.popleft() if self._coming else next(self._plans, None)
        if self.plan is not None:
            if self.account is not None:
                # Before anything of it is sent. A step that is taken again has the noise that it had.
                self.account.begin(self.plan.step)
            self.records = {party.name: party.train_batch(self.plan.rows) for party in self.parties}
            for party in self.parties:
                party.share = self.plan.share
            for name, told in self.begun.items():
                told(self.records[name])
        self._judging, self.clock = self.watch.seconds, 0.0

    def step_done(self) -> None:
        """Count the step under way, log, and tell of it; go on with the next one, unless a checkpoint comes first."""
        plan = self.plan
        assert plan is not None, "one is under way"
        measured = self.log.add(self.parties, self.clock - (self.watch.seconds - self._judging))
        self.step = plan.step + 1
        if plan.logs:
            self.log.monitor.write(self.step, self._scalars(measured, plan))
        self._progress(Status.of(self, self._schedule, epoch=plan.epoch + 1))
        self.saving = plan.saves or self.team.stop_asked
        if not self.saving:
            self._go_on()

    def step_saved(self, save: Callable[[], None] | None) -> None:
        """Write a checkpoint after the step that was just done, and go on, unless it was the last one.

        Args:
            save: Writes it; ``None``: something of the step is still under way, and nothing is written.

        Raises:
            Interrupted: At Ctrl-C.
        """
        if save is not None:
            save()
        if self.stopped:
            self.plan = None
        elif self.team.stop_asked and self.step < self._schedule.steps:
            for line in self.spent():
                self.notify(line)
            raise Interrupted
        else:
            self._go_on()

    def evaluated(self, evaluation: Evaluation) -> None:
        """Take note of the label party's evaluation."""
        self.figures, self.tested = dict(evaluation.figures), evaluation.tested
        if evaluation.verdict.best:
            self.kept, self.kept_tested = dict(self.figures), self.tested

    def evaluated_state(self) -> dict[str, Any]:
        """Return the outputs of test records, as a checkpoint holds them beside the figures."""
        return {"tested": _tensors(self.tested), "kept tested": _tensors(self.kept_tested)}

    def take_back_evaluated(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`evaluated_state` returned."""
        # Checkpoints of older versions hold none.
        found = (state.get(key) for key in ("tested", "kept tested"))
        self.tested, self.kept_tested = (None if held is None else EvaluatedOutputs(**held) for held in found)

    def _scalars(self, measured: Mapping[str, float], plan: StepPlan) -> dict[str, float]:
        defenses = {f"defense/{tag}": value for tag, value in measured.items()}
        penalties = {f"penalty/{tag}": value for party in self.parties for tag, value in party.penalised.items()}
        watched = self.watch.scalars(epoch_ends=plan.ends_epoch)
        spent = _spent_scalars(self.account) if _tells_spent(plan, last=self.step == self._schedule.steps) else {}
        return {"train/loss": self.loss, **self.figures, **defenses, **penalties, **spent, **watched}

    def spent(self) -> list[str]:
        """Return what was spent of a privacy budget up to now, in sentences; none where nothing is counted."""
        return [] if self.account is None else [spent.in_words(planned) for spent, planned in self.account.everything()]

    def progress_state(self) -> dict[str, Any]:
        """Return how far it is, its log and its account, as a checkpoint holds them."""
        log = self.log.state_dict()
        return {
            "step": self.step,
            "offset": log["offset"],
            "seconds": log["seconds"],
            "loss": self.loss,
            "sums": log["sums"],
            "account": None if self.account is None else self.account.state_dict(),
        }

    def take_back_progress(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`progress_state` returned."""
        self.step, self.loss = state["step"], state["loss"]
        self.log.load_state_dict(state)
        if self.account is not None and state.get("account") is not None:
            self.account.load_state_dict(state["account"])

    @property
    def stopped(self) -> bool:
        """Whether early stopping has ended the training."""
        return self.parties[0].weights.best.stopped

    @property
    def kept_epoch(self) -> int | None:
        """The epoch, from 1, whose weights early stopping keeps; ``None`` without it."""
        return self.parties[0].weights.best.epoch

    @property
    def step_ms(self) -> float:
        """Mean time of a training step in milliseconds, defenses included, attacks and their judging excluded.

        It is the time in which the parties in this process compute. Waiting for others is none of it, nor are messages
        on their way.
        """
        return self.log.step_ms(self.step)

    @property
    def measurements(self) -> dict[str, float]:
        """Means over the run of what the defenses logged, of totals the last: ``party/defense/measurement``."""
        return self.log.means


class Run(ABC):
    """A run as its parties' halves meet it: what it does beside the steps depends on which parties are here.

    Args:
        training: What this process keeps of it.

    Attributes:
        training: As given.
        replacing: The earlier run in its folder, which stays until this one has a checkpoint; ``None``: nobody has
            looked for one.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        self.replacing: Replacement | None = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a run is neither copied nor pickled: it holds records, noise and open files. Keep state_dict() of its "
            "models, or trainer.save(folder); save_checkpoint() and resume() go on with a run, and a Trainer that is "
            "made again begins another"
        )

    @abstractmethod
    def begin(self) -> None:
        """Get ready, when the parties have agreed."""

    def new_number(self) -> str:
        """Return the number that a new run gets, if it is one; empty: it is drawn where it is needed."""
        return ""

    def before_leaving(self) -> None:  # noqa: B027 - whoever is alone has nobody to wait for
        """Wait until all workers have come as far, when everything is saved."""

    def choose(self, resuming: Callable[[HeldCheckpoints], Half]) -> Half:
        """Go on from a checkpoint that all parties have; where all are here, one holds them all.

        Args:
            resuming: Returns the party's half of the choice, given what it has.
        """
        yield from ()

    @abstractmethod
    def save_checkpoint(self) -> None:
        """Write a checkpoint."""

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self.training.step

    @property
    def watch(self) -> Watch:
        """Attacks on what crosses, and their figures."""
        return self.training.watch

    @property
    def stopped(self) -> bool:
        """Whether early stopping has ended the training."""
        return self.training.stopped

    @property
    def kept_epoch(self) -> int | None:
        """The epoch, from 1, whose weights early stopping keeps; ``None`` without it."""
        return self.training.kept_epoch

    @property
    def step_ms(self) -> float:
        """Mean time of a training step in milliseconds (:attr:`Training.step_ms`)."""
        return self.training.step_ms

    @property
    def measurements(self) -> dict[str, float]:
        """Means over the run of what the defenses logged (:attr:`Training.measurements`)."""
        return self.training.measurements


def _tells_spent(plan: StepPlan, *, last: bool) -> bool:
    """Return whether the log says what was spent: at the end of every epoch, from the hundredth on of every tenth.

    To find it takes longer than a short step, and the longer the more epochs there were.
    """
    epoch = plan.epoch + 1
    apart: int = 10 ** max(0, len(str(epoch)) - 2)
    return plan.ends_epoch and (last or epoch % apart == 0)


def _spent_scalars(account: PrivacyBudget | None) -> dict[str, float]:
    if account is None:
        return {}
    return {
        f"privacy/{spent.of}/{name}": value
        for spent in account.spent_on_everything()
        for name, value in (("epsilon", spent.epsilon), ("mu", spent.mu), ("zcdp", spent.zcdp))
        if math.isfinite(value)
    }


def _tensors(tested: EvaluatedOutputs | None) -> dict[str, Tensor] | None:
    return None if tested is None else {"outputs": tested.outputs, "positions": tested.positions}
