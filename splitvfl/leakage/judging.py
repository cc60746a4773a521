"""Judging an attack: how well its scores separate the labels, in one step and added up over the run.

An attack never meets labels. Its scores do, here, at whoever holds the labels: the harness of an experiment, or the
label party, which runs the partner's attacks on its own outgoing messages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.data.coin_labels import Canaries
from splitvfl.data.columns import Records, TaskName
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import (
    Attack,
    View,
    call_attack,
    call_revised,
    hook_name,
    is_clustering,
    is_cumulative,
    is_signed,
    moment_of,
    needs_of,
    reads_messages,
    refusal_of,
    revises,
    target_of,
)
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.class_judging import ClassKeeper
from splitvfl.leakage.keeping import Keeper, apart
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.members import MemberKeeper
from splitvfl.leakage.number_judging import NumberKeeper
from splitvfl.leakage.record_sums import RecordSums
from splitvfl.leakage.series import StepValues
from splitvfl.leakage.side_knowledge import GRANTED, check_known, knowledge_for
from splitvfl.leakage.signs import SignKeeper
from splitvfl.learning.randomness import PartyRandom
from splitvfl.learning.records import Ids, Slots
from splitvfl.metrics import (
    Array,
    centred,
    in_the_middle,
    leak_auc,
    rank_auc,
    scores_and_positives,
)

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_SAFE_SQUARES = (1e-280, 1e280)


class Handle:
    """Something attached that can be taken off again; a context manager that does so even when its body raises.

    Args:
        remove: Called at most once.
    """

    def __init__(self, remove: Callable[[], None]) -> None:
        self._detach: Callable[[], None] | None = remove

    def remove(self) -> None:
        """Take it off; a second call does nothing."""
        if self._detach is not None:
            self._detach()
            self._detach = None

    @property
    def is_attached(self) -> bool:
        """Whether it has not been taken off yet."""
        return self._detach is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def real_rows(labels: Tensor) -> Tensor | None:
    """Return which rows have a label to be judged by, ``(n,)`` bool; ``None`` if all have, as they mostly do."""
    if not labels.is_floating_point() or not math.isnan(labels.sum().item()):
        return None
    return ~torch.isnan(labels.reshape(-1))


class ScoreKeeper(Keeper):
    """The judge of scores of two classes.

    Scores of one step are standardised (zero mean, unit variance over the scored records of the batch) before they are
    added to their record's sum, so that steps with large gradients do not drown the others. A step that leaves a record
    out adds nothing, the mean, to its sum.

    Scores that are of a record's whole run already are not added up, and not standardised, as they would then be
    relative to the batch that a record comes in: the last one of each record counts.

    Sums are kept of about the first two million records that are met; in a shuffled order they are a random sample.
    Canaries are standardised together with the others of their batch, in which there may be one of them or none.

    Args:
        canaries: Which records have coin-toss labels, if any have.
        raw: Whether scores are added as they are: log ratios, whose unit is the same in every step.
        cumulative: Whether a score is of all that came of its record so far.
    """

    _records: _ScoreSums
    _canaries: _ScoreSums | None

    def __init__(self, *, canaries: Canaries | None = None, raw: bool = False, cumulative: bool = False) -> None:
        super().__init__(StepValues, partial(_ScoreSums, last=cumulative), canaries=canaries)
        self._raw = raw or cumulative

    def add(self, ids: Tensor | None, scores: Tensor, labels: Tensor) -> float:
        """Judge one step and return its leak AUC (NaN if undefined), of the records that are no canaries.

        Args:
            ids: Record ids, ``(n,)``; ``None`` when nobody knows them, and nothing can be added up.
            scores: ``(n,)``; NaN marks records that were not scored.
            labels: ``(n,)`` in {0, 1}; NaN marks records that are not judged: dummies of a padded alignment.

        Raises:
            ArgumentError: If there are canaries, and nobody knows which these are.
        """
        real = real_rows(labels)
        if real is not None:
            scores, labels = scores.reshape(-1)[real.to(scores.device)], labels.reshape(-1)[real]
            ids = None if ids is None else ids.reshape(-1)[real.to(ids.device)]
        own_ids = None if ids is None else ids.detach().cpu().numpy().reshape(-1).copy()
        scored = None
        if math.isnan(scores.sum().item()):
            left_out = torch.isnan(scores.reshape(-1))
            scores, scored = scores.reshape(-1).masked_fill(left_out, 0.0), ~left_out.cpu().numpy()
        values, positive = scores_and_positives(scores, labels)
        kept, canary = apart(own_ids, self.canaries)
        auc = self._judge(values[kept], positive[kept], None if scored is None else scored[kept])
        added = None if own_ids is None else _to_add(values, scored, raw=self._raw)
        if own_ids is not None and added is not None:
            self._sum(own_ids, added, positive, kept, canary)
        return auc

    def _judge(self, values: Array, positive: Flags, scored: Flags | None) -> float:
        """Note a step's AUC; ``scored``: which records were, if not all."""
        self._count(values.size, values.size if scored is None else int(np.count_nonzero(scored)))
        auc = tied = rank_auc(values, positive) if scored is None else rank_auc(values[scored], positive[scored])
        if math.isnan(auc):
            self._undefined += 1
        else:
            self._aucs.append(auc)
        if self._tied is not None:
            if scored is not None:
                tied = rank_auc(in_the_middle(values, scored), positive)
            if not math.isnan(tied):
                self._tied.append(tied)
        return auc

    def _auc_of(self, sums: Floats, labels: Flags) -> float:
        return leak_auc(torch.from_numpy(sums), torch.from_numpy(labels))

    @property
    def classes(self) -> tuple[int, int]:
        """Number of positive and of negative records that were judged, scored or not."""
        return self._records.classes

    def record_scores(self) -> tuple[Floats, Flags]:
        """Return the accumulated scores of the records that were scored and are no canaries, and which are positive."""
        return self._records.of_scored()

    def scores_of(self, ids: Ids) -> Floats:
        """Return the accumulated scores of these records, ``(n,)``, none of them a canary."""
        return self._records.of(ids)

    def canary_scores(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]] | None:
        """Return the canaries' accumulated scores, higher for label 1, and their coins; ``None`` without canaries.

        No coin entered into the scores, nor into their orientation: the records that are no canaries decide that.
        """
        if self._canaries is None:
            return None
        scores, coins = self._canaries.of_all()
        return self.orientation * scores, coins

    def canary_leak(self, *, level: float = 0.95) -> CanaryLeak | None:
        """Return what the accumulated scores tell of the canaries' labels; ``None`` where there are none.

        Every canary counts whose label could be judged; the sum of one that was never scored is 0. NaN while those met
        are of one class.

        Args:
            level: Confidence of the interval, in (0, 1).
        """
        found = self.canary_scores()
        return None if found is None else CanaryLeak.of(*map(torch.from_numpy, found), level=level)

    def randomised_leak(self, *, level: float = 0.95) -> CanaryLeak | None:
        """Return what the accumulated scores tell of the canaries' randomised labels, oriented by other records."""
        answers = None if self.canaries is None else self.canaries.answers
        if answers is None or self._canaries is None:
            return None
        ids, labels = answers
        scores = self.orientation * self._canaries.of(ids)
        return CanaryLeak.of(torch.from_numpy(scores), torch.from_numpy(labels), level=level)

    def summary(self) -> LeakSummary:
        """Return the run's figures so far."""
        positives, negatives = self.classes
        return self._oriented_summary(positives + negatives, positives=positives, negatives=negatives)


class _ScoreSums(RecordSums):
    """Sums of records of two classes."""

    def __init__(self, *, last: bool) -> None:
        super().__init__(last=last, total=np.float64, label=np.int8)

    def _meet(self, slots: Slots, labels: Flags) -> None:
        # Labels are kept as -1 and +1: 0 is a record that was never met.
        self._records["label"][slots] = 2 * labels.astype(np.int8) - 1

    def _met(self) -> Flags:
        met: Flags = self._records["label"] != 0
        return met

    def _labels(self, chosen: Flags) -> Flags:
        positive: Flags = self._records["label"][chosen] == 1
        return positive

    def _sums(self, chosen: Flags) -> Floats:
        # The middle of standardised scores, and so of their sums, is the 0 that they start at.
        return super()._sums(chosen) if self._last else self._records["total"][chosen]

    @property
    def classes(self) -> tuple[int, int]:
        """Number of positive and of negative records that were met, scored or not."""
        self._settle()
        labels = self._records["label"]
        return int(np.count_nonzero(labels == 1)), int(np.count_nonzero(labels == -1))


def _to_add(values: Array, scored: Flags | None, *, raw: bool) -> Floats | None:
    """Return what a step adds to the sums, NaN where a record was left out; ``None`` for nothing."""
    if scored is None:
        if raw:
            return values.astype(np.float64)
        return _standardised(values) if values.size > 1 else None
    added = np.full(values.size, math.nan)
    if raw or np.count_nonzero(scored) > 1:
        added[scored] = values[scored] if raw else _standardised(values[scored])
    return added


def _standardised(values: Array) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = centred(values)
        square = np.dot(shifted, shifted)
    if not _SAFE_SQUARES[0] < square < _SAFE_SQUARES[1]:
        # Equal scores, or numbers so large or small that their squares are none: in units of the largest they are.
        shifted = centred(values / (np.abs(values).max() or 1.0))
        square = np.dot(shifted, shifted)
    deviation = math.sqrt(square / values.size)
    # All scores equal: they say nothing about anybody.
    return shifted / deviation if deviation > 0 else np.zeros_like(shifted)


def task_name(classes: int | None) -> TaskName:
    """Return the task of labels with so many classes; ``None``: numbers.

    >>> task_name(2), task_name(10), task_name(None)
    ('binary', 'multiclass', 'regression')
    """
    if classes is None:
        return "regression"
    return "binary" if classes == 2 else "multiclass"


def keeper_for(
    classes: int | None,
    *,
    canaries: Canaries | None = None,
    raw: bool = False,
    cumulative: bool = False,
    clusters: bool = False,
) -> Keeper:
    """Return a new judge of scores.

    Args:
        classes: Number of classes of the labels; ``None`` for numbers.
        canaries: Which records have coin-toss labels, if any have.
        raw: Whether scores are log ratios, or log likelihoods of k classes: added as they are.
        cumulative: Whether a score is of all that came of its record so far.
        clusters: Of k classes: whether nobody knows which column is which.
    """
    if classes is None:
        return NumberKeeper(canaries=canaries, raw=raw, cumulative=cumulative)
    if classes == 2:
        return ScoreKeeper(canaries=canaries, raw=raw, cumulative=cumulative)
    return ClassKeeper(classes, canaries=canaries, raw=raw, cumulative=cumulative, clusters=clusters)


def worst_of(keepers: Iterable[Keeper], *, level: float = 0.95, randomised: bool = False) -> CanaryLeak | None:
    """Return the largest canary AUC of several attacks, raw, with an interval that holds for all of them at once.

    Of k attacks each has ``(1 − level) / k`` of what may be wrong (Bonferroni), as the largest was chosen with the very
    records that it is measured on. So the interval is valid, and the AUC itself is expected to be a little too
    high: the largest of three read .717 in the mean of 12 runs with 600 canaries, where each one's mean was .70 to .71
    and .70 is what ``asymmetric-response`` promises. Its upper end is the largest of all attacks:
    one that read less may be the stronger one, and less certain.

    One reader of all scores, fitted on the other records, would have a narrower interval and no such excess. It was
    tried, and misses leaks: what predicts other records' labels outweighs what messages add. Behind
    ``axis-sumkl(detection_error=0.45)`` on credit default it read .55 and .57 of 1,000 canaries in two runs, where the
    auditor's attacks read .60 in both; with the prediction among its inputs, .56 and .53.

    Args:
        keepers: The judges of the attacks.
        level: Confidence of the interval, in (0, 1).
        randomised: Whether it is of the canaries' randomised labels.

    Returns:
        ``None`` where none has canaries that could be judged.
    """
    judges = list(keepers)
    own = 1.0 - (1.0 - level) / max(1, len(judges))
    leaks = [(judge.randomised_leak if randomised else judge.canary_leak)(level=own) for judge in judges]
    seen = [leak for leak in leaks if leak and not math.isnan(leak.auc)]
    found = max(seen, key=lambda leak: leak.auc, default=None)
    return None if found is None else replace(found, high=max(leak.high for leak in seen), figures=len(judges))


def known_allowed(train: Records, positives: int, negatives: int, *, classes: int | None = 2) -> tuple[int, int]:
    """Return how many records of each class an attacker is told of: as many as wanted, or half of those there are.

    Args:
        train: The label party's training records.
        positives: How many positive records are wanted, at least 0.
        negatives: How many negative ones.
        classes: Number of classes; ``None`` for numbers. Of k classes the first number is of every class, and half of
            the rarest decides; of numbers each is at most a quarter of all records.

    Raises:
        ArgumentError: If less than 0 are wanted.
    """
    check_known(positives, negatives)
    if train.labels is None:
        return positives, negatives
    there = _members(train, classes)
    allowed = [min(wanted, max(1, count // 2)) for wanted, count in zip((positives, negatives), there, strict=True)]
    return allowed[0], allowed[1]


def _members(train: Records, classes: int | None) -> tuple[int, int]:
    """Return how many records there are of label 1 and of label 0, or what stands for them."""
    assert train.labels is not None
    if classes is None:
        half = train.count // 2 if train.real is None else int(train.real.sum()) // 2
        return half, half
    # Not by the labels to judge by, of which a table on disk would make doubles.
    counts = []
    for label in range(classes):
        member = train.labels == label
        counts.append(int((member if train.real is None else member & train.real).sum()))
    return (counts[1], counts[0]) if classes == 2 else (min(counts), min(counts))


class Leak(Handle):
    """A label attack being judged: what ``watch`` returns.

    Args:
        attack: The attack.
        known_positives: How many positive records the attacker is assumed to know, for attacks that need some. They
            are the first ones met, and stay the same for the whole run. The grant is side knowledge of the attacker,
            stated in every report; their labels are the only ones that reach an attack, as ids. The attack is not
            judged by them. Default: every other one that is met, up to :data:`~splitvfl.leakage.side_knowledge.KNOWN`.
        known_negatives: How many negative records it is assumed to know, likewise.
        remove: Called when the leak is detached.
        canaries: Which records have coin-toss labels: judged apart, and never granted. Default: none.
        classes: Number of classes of the labels; ``None`` for numbers. Of k classes the attacker knows
            ``known_positives`` records of every class, and every AUC is a mean of one class against the rest; of
            numbers it knows as many as both together, and every AUC is a concordance.

    Attributes:
        name: The attack's name.
        needs: View fields that it reads, besides what the judge grants.
        keeper: The judge's figures.
        signs: How many labels it has right, if the sign of its score is the label.
        members: The same where steps use some of their records only: of those, and of the zeros of the others.
        seconds: Time spent on attacking and judging, so that a step's own time can be told apart.

    Raises:
        ArgumentError: If the attack is none on the labels of a training step, or of other labels, or it would know less
            than 0 records.
    """

    def __init__(
        self,
        attack: Attack,
        *,
        known_positives: int | None = None,
        known_negatives: int | None = None,
        remove: Callable[[], None] = lambda: None,
        canaries: Canaries | None = None,
        classes: int | None = 2,
    ) -> None:
        super().__init__(remove)
        if target_of(attack) != "labels":
            raise ArgumentError(
                f"{hook_name(attack)} estimates {target_of(attack)}; only label attacks watch a training step"
            )
        if moment_of(attack) != "every-step":
            raise ArgumentError(
                f"{hook_name(attack)} acts after training, not on a message; once the model is trained, call it: "
                "attack(view_after_training(bottom, columns, ids=..., known_positives=..., known_negatives=...)), "
                "from splitvfl.leakage.after_training"
            )
        self.attack = attack
        self.name = hook_name(attack)
        refused = refusal_of(attack, task_name(classes))
        if refused:
            raise ArgumentError(f"attack {self.name}: {refused}")
        self._knowledge = knowledge_for(
            classes, needs_of(attack), known_positives=known_positives, known_negatives=known_negatives
        )
        self.needs = needs_of(attack) - GRANTED
        self.keeper = keeper_for(
            classes, canaries=canaries, cumulative=is_cumulative(attack), clusters=is_clustering(attack)
        )
        signed, last = is_signed(attack) and classes == 2, is_cumulative(attack)
        self.signs = SignKeeper(last=last) if signed else None
        self.members = MemberKeeper(last=last) if signed else None
        self.seconds = 0.0
        self._classes, self._revises, self._stale = classes, revises(attack), True
        # An attack that draws numbers must not change the dropout of what it watches.
        self._random = PartyRandom(0)

    def __repr__(self) -> str:
        """Return the attack's name and its figures so far."""
        found = self.summary
        return (
            f"<Leak of {self.name}: AUC {found.auc:.3f} a step, {found.accumulated_auc:.3f} accumulated, worst "
            f"{found.worst:.3f}>"
        )

    def see(self, view: View, labels: Tensor, *, ids_known: bool = True, zeros: Tensor | None = None) -> float:
        """Show the attack a view, judge its scores with the labels, and return the step's leak AUC.

        Args:
            view: What the attacking party sees. Labels are not handed to the attack.
            labels: ``(n,)`` in {0, 1}, in 0 … k−1, or numbers.
            ids_known: Whether the view's ids name records; if they only number the batch's rows, nothing is
                accumulated and no record is granted.
            zeros: Whose residue is a zero by design, ``(n,)``, bool: nothing of these records is in the message. They
                count in no share of right signs, and in the AUC as all others do, as who attacks does not know them.
                ``None`` where there are none by design.

        Raises:
            HookError: If the attack breaks its contract, the labels are not binary, or it puts together what came of
                each record and nobody knows the ids.
        """
        started = time.perf_counter()
        if is_cumulative(self.attack) and not ids_known:
            raise HookError(
                f"attack {self.name} puts together what came of each record, and this batch has no record ids; "
                "pass them along: model(x, labels=y, ids=ids)"
            )
        honest = self._without_canaries(view.ids, labels) if ids_known else labels
        if ids_known:
            self._knowledge.meet(view.ids, honest)
        told = self._knowledge.granted()
        view = view.granting(
            **{name: value.to(view.device) if isinstance(value, Tensor) else value for name, value in told.items()}
        )
        if view.device.type == "cuda":
            self._random.use_cuda()
        with self._random:
            scores = call_attack(self.attack, view)
        labels, honest = self._without_known(view.ids, labels), self._without_known(view.ids, honest)
        ids = view.ids if ids_known else None
        self._stale = True
        try:
            if self.signs is not None:
                self.signs.add(ids, scores, honest, zeros=zeros)
            if self.members is not None and zeros is not None:
                self.members.add(ids, scores, honest, zeros)
            return self.keeper.add(ids, scores, labels)
        except ArgumentError as error:
            raise HookError(f"attack {self.name} cannot be judged at step {view.step}: {error}") from error
        finally:
            self.seconds += time.perf_counter() - started

    def revise(self) -> None:
        """Ask an attack that gives all records new scores for these, if anything came since; of others do nothing.

        Raises:
            HookError: If the attack breaks its contract.
        """
        if not self._revises or not self._stale:
            return
        started = time.perf_counter()
        with self._random:
            ids, scores = call_revised(self.attack, self._classes)
        self.keeper.revise(ids.cpu().numpy(), scores.detach().cpu().double().numpy())
        self._stale = False
        self.seconds += time.perf_counter() - started

    def _without_known(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the labels to judge by, NaN for the records that were granted: what an attack was told is no leak."""
        told = [known.to(labels.device) for known in self._knowledge.told]
        if not sum(known.numel() for known in told):
            return labels
        granted = torch.isin(ids.to(labels.device), torch.cat(told))
        return labels.reshape(-1).double().masked_fill(granted, math.nan)

    def _without_canaries(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the labels that are no coins, NaN for the others: nobody knows a record by a label that it has not."""
        if self.keeper.canaries is None:
            return labels
        canary = torch.from_numpy(self.keeper.canaries.among(ids.cpu().numpy())).to(labels.device)
        return labels.reshape(-1).double().masked_fill(canary, math.nan)

    @property
    def known(self) -> dict[str, int]:
        """Number of records that the attack was told of, by view field; empty if it needs none."""
        return self._knowledge.counts

    @property
    def auc(self) -> float:
        """Mean leak AUC of a step among the records that were scored, in the attack's orientation."""
        return self.keeper.summary().auc

    @property
    def accumulated_auc(self) -> float:
        """Leak AUC of the scores added up per record, of records that were scored, in the attack's orientation."""
        self.revise()
        return self.keeper.accumulated_auc

    @property
    def canaries(self) -> CanaryLeak | None:
        """What it read of the canaries' labels, in the attack's orientation; ``None`` where there are none."""
        self.revise()
        return self.keeper.canary_leak()

    @property
    def summary(self) -> LeakSummary:
        """All figures so far."""
        self.revise()
        summary = replace(self.keeper.summary(), by_messages=reads_messages(self.attack))
        if self.signs is None:
            return summary
        assert self.members is not None, "both are kept of signed attacks"
        right, records = self.signs.records
        return replace(
            summary,
            signs_right=self.signs.share(),
            records_right=right,
            records=records,
            balanced=self.members.balanced,
            accumulated_balanced=self.members.accumulated_balanced,
            base_rate=self.members.base_rate,
            zeros_found=self.members.zeros_found,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the judge's state, and the attack's where it has one."""
        return {"known": self._knowledge.state_dict()} | {
            name: part.state_dict() for name, part in self._parts().items()
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._stale = True
        self._knowledge.load_state_dict(state["known"])
        for name, part in self._parts().items():
            if name in state or name not in ("attack", "members"):  # which may have had no state then
                part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        parts = {"keeper": self.keeper, "random": self._random, "signs": self.signs, "members": self.members}
        parts["attack"] = self.attack
        return {name: part for name, part in parts.items() if hasattr(part, "state_dict")}
