"""Evaluation of the model: passive parties send activations, and the label party replies with two bits.

The records that are evaluated cross in pieces, and no score leaves the label party. What it says in the end, the
verdict, is whether training goes on, and whether the model is the best so far: with early stopping two bits that depend
on labels, without it always "go on" and "not the best".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.errors import ProtocolError
from splitvfl.exchange.parts import checked_outputs, part_to_score
from splitvfl.exchange.prediction import parts_of
from splitvfl.hooks import all_finite
from splitvfl.learning.drawing import MOST_RECORDS, drawn, drawn_of_classes
from splitvfl.learning.schedule import GO_ON, Verdict
from splitvfl.learning.tasks import Task
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.party import SENDING, ActiveParty, Party, PassiveParty
from splitvfl.party.top_model import own_input


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """The records to evaluate, and their pieces: a pure function of agreed numbers.

    Attributes:
        validation: Positions among the training records, those that are held out; empty without early stopping.
        test: Number of test records.
        rows: Records in a message.
        first: Position of the first of these test records: of several workers each has a part of them.
        validates: Whether records are held out, some of them at other workers perhaps. ``None``: if there are any here.
        most_validation: Of several workers: records of the first part at the one that has most of them. All have as
            many pieces as that one, the last of them without records where there are fewer: what they compute together,
            they do equally often.
        most_test: The same of test records.
    """

    validation: range
    test: int
    rows: int = 4096
    first: int = 0
    validates: bool | None = None
    most_validation: int = 0
    most_test: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts, in the order in which they are evaluated."""
        validates = bool(self.validation) if self.validates is None else self.validates
        return ("validation", "test") if validates else ("test",)

    def batches(self, party: Party) -> Iterator[tuple[str, Records]]:
        """Yield a party's records piece by piece, each with its part: ``"validation"`` before ``"test"``."""
        for piece in _pieces(self.validation, self.rows, self.most_validation):
            yield "validation", party.train_batch(piece)
        for piece in _pieces(range(self.first, self.first + self.test), self.rows, self.most_test):
            yield "test", party.test_batch(piece)


def _pieces(positions: range, rows: int, most: int) -> Iterator[Tensor]:
    for start in range(0, max(len(positions), most), rows):
        piece = positions[start : start + rows]
        yield torch.arange(piece.start, piece.stop, piece.step)


@dataclass(frozen=True, slots=True)
class EvaluatedOutputs:
    """The model's outputs of test records, at the label party: what its own model is compared with, record by record.

    Attributes:
        outputs: Float32, ``(m, k)``, on the CPU; of at most 20 000 records; of more, some are
            drawn.
        positions: Where these records are among the test records, int64 ``(m,)``.
    """

    outputs: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation, at the label party. It stays there.

    Attributes:
        figures: The task's headline figure and the loss of each part by name, ``"test/auc"`` and ``"test/loss"``; with
            early stopping ``"validation/auc"`` and ``"validation/loss"`` too. NaN where a part has no
            records; dummies of a padded alignment count in none. With a private top these are its own, NaN where its
            outputs are not finite; those of the top that sends are ``"test/sending/auc"`` and so on, and
            ``"train/private_top/left_out"`` is how many of its steps were left out.
        verdict: What the other parties were told.
        tested: Outputs of test records, of the top whose figures are ``"test/auc"`` and so on. ``None`` where there are
            no test records, at a worker that is not worker 0, and where test records lie apart at several workers.
    """

    figures: dict[str, float]
    verdict: Verdict
    tested: EvaluatedOutputs | None = None


def active_evaluation(party: ActiveParty, plan: EvaluationPlan, *, step: int, epoch: int) -> Half:
    """Return the label party's half of one evaluation; its result is an :class:`Evaluation`.

    With :attr:`ActiveParty.patience` the validation records are judged, and it heeds the verdict like everybody else.

    Args:
        party: The active party.
        plan: What is evaluated.
        step: Number of training steps done.
        epoch: Number of the epoch that has ended, from 1.

    Raises:
        ProtocolError: If an activation holds NaN or infinite values.
    """
    sending = {part: _Scored() for part in plan.parts}
    private = {part: _Scored() for part in plan.parts}
    with party.evaluating():
        for part, batch in plan.batches(party):
            inbox = yield Outbox(wait=party.await_parts("evaluation", step, batch.count))
            received = parts_of(party, inbox)
            with torch.no_grad():
                sending[part].add(checked_outputs(party, party.run_top(received, batch)), batch)
                if party.private_top is not None:  # spoiled outputs too: it is nobody else's business
                    private[part].add(party.private_top.run(received, own_input(batch)), batch)
    for scored in (*sending.values(), *private.values()):
        scored.put_together(party)
    tested = None
    if party.team.rank:  # worker 0 has what all have scored
        figures = {}
    elif party.private_top is None:
        figures, tested = _figures(party, sending), sending["test"].tested(party)
    else:
        figures, tested = _figures(party, private) | _figures(party, sending, SENDING), private["test"].tested(party)
        figures["train/private_top/left_out"] = float(party.private_top.left_out)
    evaluation = _judged(party, figures, tested, epoch)
    payload = torch.tensor(evaluation.verdict, dtype=torch.int64)
    yield Outbox(send=tuple(Message(party.name, name, "verdict", step, payload) for name in party.cuts))
    return evaluation


def own_evaluation(
    party: ActiveParty, plan: EvaluationPlan, outputs_of: Callable[[str, Records], Tensor], *, epoch: int
) -> Evaluation:
    """Return an evaluation that asks nobody and tells nobody; the label party heeds its verdict.

    Args:
        party: The active party.
        plan: What is evaluated.
        outputs_of: Returns the top's outputs, ``(n, k)``, of records of a part, ``"validation"`` or ``"test"``.
        epoch: Number of the epoch that has ended, from 1.
    """
    parts = {part: _Scored() for part in plan.parts}
    with party.evaluating():
        for part, batch in plan.batches(party):
            parts[part].add(outputs_of(part, batch), batch)
    return _judged(party, _figures(party, parts), parts["test"].tested(party), epoch)


def passive_evaluation(party: PassiveParty, plan: EvaluationPlan, *, step: int, epoch: int, active: str) -> Half:
    """Return a passive party's half of one evaluation; its result is the :class:`Verdict`, which it has applied.

    Args:
        party: The passive party.
        plan: What is evaluated.
        step: Number of training steps done.
        epoch: Number of the epoch that has ended, from 1.
        active: Name of the active party.

    Raises:
        ProtocolError: If the verdict is none.
    """
    with party.evaluating():
        for piece, (_, batch) in enumerate(plan.batches(party)):
            part = part_to_score(party, batch, step, "evaluation", kind="evaluation", piece=piece)
            if party.masks is None:
                party.send_to_watchers(part, batch, step, "evaluation", piece)
            yield Outbox(send=(Message(party.name, active, "evaluation", step, part),))
    inbox = yield Outbox(wait=(Expected(active, "verdict", step, (torch.int64,), (2,)),))
    verdict = _verdict(inbox[active])
    party.weights.best.apply(verdict, epoch=epoch)
    return verdict


def _figures(party: ActiveParty, parts: dict[str, _Scored], of: str = "") -> dict[str, float]:
    if not of and "test" in parts:
        party.saturated = parts["test"].saturated(party.task)
    return {
        f"{part}/{of}{name}": value
        for part, scored in parts.items()
        for name, value in scored.figures(party.task).items()
    }


def _judged(party: ActiveParty, figures: dict[str, float], tested: EvaluatedOutputs | None, epoch: int) -> Evaluation:
    """Return the figures with the verdict on them, which the label party has applied."""
    verdict = GO_ON
    if party.patience is not None:
        if party.team.rank == 0:
            verdict = party.patience.judge(figures.get(f"validation/{party.judged_by}", math.nan))
        verdict = Verdict(*map(bool, party.team.collect(bytes(verdict))[0]))
    party.weights.best.apply(verdict, epoch=epoch)
    return Evaluation(figures, verdict, tested)


def _verdict(message: Message) -> Verdict:
    stop, best = message.payload.tolist()
    if not {stop, best} <= {0, 1}:
        raise ProtocolError(
            f"expected a verdict of step {message.step} of zeros and ones from {message.sender}, got {[stop, best]}"
        )
    return Verdict(stop=bool(stop), best=bool(best))


class _Scored:
    """Outputs and labels of one part, piece by piece."""

    def __init__(self) -> None:
        self._outputs: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._positions: list[Tensor] = []

    def add(self, outputs: Tensor, batch: Records) -> None:
        assert batch.labels is not None
        assert batch.positions is not None, "they were taken from the label party's records"
        counted = slice(None) if batch.real is None else batch.real
        self._outputs.append(outputs[counted])
        self._labels.append(batch.labels[counted])
        self._positions.append(batch.positions[slice(None) if batch.real is None else batch.real.cpu()])

    def put_together(self, party: ActiveParty) -> None:
        """Gather at worker 0 what all workers have scored."""
        if party.team.size == 1:
            return
        labels = party.data.test.labels
        assert labels is not None
        none = torch.empty(0, party.task.outputs, dtype=party.sending.output_dtype, device=party.device)
        outputs = torch.cat(self._outputs or [none])
        own = torch.cat(self._labels or [labels[:0]])
        places = torch.cat(self._positions or [torch.empty(0, dtype=torch.int64)]).to(party.device)
        self._outputs, self._labels = party.team.gather(outputs) or [], party.team.gather(own) or []
        self._positions = party.team.gather(places) or []

    def tested(self, party: ActiveParty) -> EvaluatedOutputs | None:
        """Return the outputs, of at most 20 000 records: with an AUC, of at most 10 000 of each class."""
        apart = party.data.shards is not None and party.data.shards.here is not None
        if apart or not sum(map(len, self._labels)):  # what lies apart has positions of its own at each worker
            return None
        outputs, positions, labels = map(torch.cat, (self._outputs, self._positions, self._labels))
        if len(labels) > MOST_RECORDS:
            binary = party.task.metric == "auc"
            rows = torch.from_numpy(drawn_of_classes(labels, 0)) if binary else drawn(len(labels), 0)
            outputs, positions = outputs[rows.to(outputs.device)], positions[rows.to(positions.device)]
        return EvaluatedOutputs(outputs.float().cpu(), positions.cpu())

    def saturated(self, task: Task) -> float | None:
        """Return the fraction of scores that are exactly 0 or 1; ``None`` where there are none."""
        if not sum(map(len, self._labels)):
            return None
        return task.saturation(torch.cat(self._outputs).float())

    def figures(self, task: Task) -> dict[str, float]:
        if not sum(map(len, self._labels)):
            return {task.metric: math.nan, "loss": math.nan}
        outputs, labels = torch.cat(self._outputs), torch.cat(self._labels)
        if not all_finite(outputs):
            return {task.metric: math.nan, "loss": math.nan}
        with torch.no_grad():
            loss = task.loss(outputs, labels).item()
        return {task.metric: task.measure(outputs, labels), "loss": loss}
