"""Leaks through the trained model: what a passive party has learned, judged when training has ended.

A defense hides labels in messages. What the messages taught the party's own model stays with it: an attack that is
called after training (``when = "after-training"``) gets a copy of that model, the party's columns and a few known
labels, and scores records. Beside it stands the same attack on the model as it was before training, with the same known
labels: what the columns and those labels alone tell. Only the difference is due to training together.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from splitvfl.data.columns import Columns, PartyData
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Attack, View, call_attack
from splitvfl.leakage.judging import keeper_for
from splitvfl.leakage.side_knowledge import GRANTED
from splitvfl.learning.randomness import PartyRandom
from splitvfl.metrics import chance_auc, known, leak_auc, tied_leak_auc, turned_round

SHOWN = frozenset({"bottom", "columns"}) | GRANTED
"""View fields that an attack has after training, when no message arrives any more."""

MOST_RECORDS = 20_000
"""Records of each part that are scored at most: enough for an AUC to two digits."""

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True, slots=True)
class AfterTraining:
    """What one attack learned after training; AUCs of records whose labels it did not know, in its own orientation.

    The tied AUCs are of all these records, :func:`~splitvfl.metrics.tied_leak_auc`, the others of those that it scored;
    ``None`` where it left out none, and they are the same. What decides are the four leaks: tied, and turned round
    where that reads better.

    Attributes:
        train_auc: Leak AUC on training records; ``None`` where nothing was scored, or of one class only.
        test_auc: Leak AUC on test records.
        baseline_train_auc: The same attack's on training records, with the model as it was before training.
        baseline_test_auc: Likewise on test records.
        known_positives: Positive records that it knew.
        known_negatives: Negative records that it knew.
        train_tied_auc: Of all training records that it did not know.
        test_tied_auc: Of all test records.
        baseline_train_tied_auc: Of all training records, with the model as it was before training.
        baseline_test_tied_auc: Of all test records, likewise.
        scored: Share of these records, training and test together, that it scored with the trained model.
        train_positives: Positive training records that it was asked about.
        train_negatives: Negative ones.
        test_positives: Positive test records.
        test_negatives: Negative ones.
        train_chance: Of classes and numbers: what is expected of who knows nothing, on training records.
        test_chance: Likewise on test records.
        train_top1: Of k classes: share of training records whose own class scored highest.
        test_top1: Of test records.
        baseline_train_top1: Of training records, with the model as it was before training.
        baseline_test_top1: Of test records, likewise.
        known_records: Of classes and numbers: how many records it knew.
    """

    train_auc: float | None
    test_auc: float | None
    baseline_train_auc: float | None
    baseline_test_auc: float | None
    known_positives: int
    known_negatives: int
    train_tied_auc: float | None = None
    test_tied_auc: float | None = None
    baseline_train_tied_auc: float | None = None
    baseline_test_tied_auc: float | None = None
    scored: float = 1.0
    train_positives: int = 0
    train_negatives: int = 0
    test_positives: int = 0
    test_negatives: int = 0
    train_chance: float | None = None
    test_chance: float | None = None
    train_top1: float | None = None
    test_top1: float | None = None
    baseline_train_top1: float | None = None
    baseline_test_top1: float | None = None
    known_records: int = 0

    @property
    def train_leak(self) -> float | None:
        """What decides, on training records."""
        return turned_round(self.raw_train)

    @property
    def test_leak(self) -> float | None:
        """What decides, on test records."""
        return turned_round(self.raw_test)

    @property
    def baseline_train_leak(self) -> float | None:
        """The same with the model as it was before training, turned round by itself."""
        return turned_round(_of_all(self.baseline_train_auc, self.baseline_train_tied_auc))

    @property
    def baseline_test_leak(self) -> float | None:
        """Likewise on test records."""
        return turned_round(_of_all(self.baseline_test_auc, self.baseline_test_tied_auc))

    @property
    def raw_train(self) -> float | None:
        """The AUC of all training records, in the attack's own orientation."""
        return _of_all(self.train_auc, self.train_tied_auc)

    @property
    def raw_test(self) -> float | None:
        """The AUC of all test records, in the attack's own orientation."""
        return _of_all(self.test_auc, self.test_tied_auc)

    @property
    def train_by_chance(self) -> float | None:
        """What orientation alone gives on so many training records; ``None`` where they were not counted."""
        return self.train_chance or known(chance_auc(self.train_positives, self.train_negatives))

    @property
    def test_by_chance(self) -> float | None:
        """What orientation alone gives on so many test records."""
        return self.test_chance or known(chance_auc(self.test_positives, self.test_negatives))

    def scalars(self, where: str) -> dict[str, float]:
        """Return the AUCs that exist for a log, under tags that end in ``where``."""
        found = {
            f"leak_auc_after_training/{where}": self.train_auc,
            f"leak_auc_after_training_test/{where}": self.test_auc,
            f"leak_auc_after_training_baseline/{where}": self.baseline_train_auc,
            f"leak_auc_after_training_baseline_test/{where}": self.baseline_test_auc,
            f"leak_auc_after_training_tied/{where}": self.train_tied_auc,
            f"leak_auc_after_training_test_tied/{where}": self.test_tied_auc,
            f"leak_scored_after_training/{where}": self.scored if self.scored < 1.0 else None,
            f"leak_top1_after_training/{where}": self.train_top1,
            f"leak_top1_after_training_test/{where}": self.test_top1,
        }
        return {tag: value for tag, value in found.items() if value is not None}


def _of_all(auc: float | None, tied: float | None) -> float | None:
    return auc if tied is None else tied


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """Figures of one part's answers.

    Attributes:
        auc: Leak AUC of the records that were scored; ``None`` where none was, or of one class only.
        tied_auc: Of all records that were asked about; ``None`` where none was left out, or all.
        scored: Number of records that were scored.
        positives: Positive records that were asked about.
        negatives: Negative ones.
        asked: All of them.
        chance: Of classes and numbers: what is expected of who knows nothing.
        top1: Of k classes: share whose own class scored highest.
    """

    auc: float | None
    tied_auc: float | None
    scored: int
    positives: int
    negatives: int
    asked: int
    chance: float | None = None
    top1: float | None = None

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, *, classes: int | None = 2) -> AnswerFigures:
        """Return the figures of scores ``(n,)`` or ``(n, k)``, NaN where a record was left out."""
        if classes != 2:
            return cls._of_many(scores, labels, classes)
        scored = ~scores.isnan()
        positives = int((labels == 1).sum())
        return cls(
            auc=known(leak_auc(scores[scored], labels[scored])),
            # Who scores nothing at all was not judged, which is not the same as found blind.
            tied_auc=known(tied_leak_auc(scores, labels)) if scored.any() and not scored.all() else None,
            scored=int(scored.sum()),
            positives=positives,
            negatives=labels.numel() - positives,
            asked=labels.numel(),
        )

    @classmethod
    def _of_many(cls, scores: Tensor, labels: Tensor, classes: int | None) -> AnswerFigures:
        keeper = keeper_for(classes, cumulative=True)
        keeper.add(torch.arange(labels.numel()), scores, labels)
        found, scored = keeper.summary(), keeper.records
        return cls(
            auc=known(found.accumulated_auc),
            tied_auc=known(found.tied_accumulated_auc) if 0 < scored < labels.numel() else None,
            scored=scored,
            positives=0,
            negatives=0,
            asked=labels.numel(),
            chance=known(found.chance),
            top1=known(found.accumulated_top1),
        )


@dataclass(frozen=True, slots=True)
class Quiz:
    """The test of an attacker after training: records it is asked about, records it knows, and the true labels.

    Attributes:
        train: Positions of training records, sorted, the known ones among them.
        test: Positions of test records, sorted.
        ids: Of ``train``, then ``test``.
        labels: Of ``train``, then ``test``, in {0, 1}, in 0 … k−1, or numbers; for the judge only.
        known_positives: Ids of the positive training records that the attacker knows, ``(k,)``.
        known_negatives: Ids of the negative ones.
        classes: Number of classes; ``None`` of numbers.
        known_records: Of classes and numbers: ids of the training records that it knows, ``(j,)``.
    """

    train: Tensor
    test: Tensor
    ids: Tensor
    labels: Tensor
    known_positives: Tensor
    known_negatives: Tensor
    classes: int | None = 2
    known_records: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    @classmethod
    def draw(
        cls, data: PartyData, *, known_positives: int, known_negatives: int, seed: int, classes: int | None = 2
    ) -> Quiz:
        """Return a quiz: known training records, and of each part at most :data:`MOST_RECORDS` others.

        Args:
            data: The active party's.
            known_positives: Positive training records that the attacker knows; all if there are fewer.
            known_negatives: Negative ones.
            seed: Of what is drawn; any whole number.
            classes: Number of classes: of k, ``known_positives`` of every class are known; ``None`` of numbers, of
                which as many as both together are.
        """
        labels, test_labels = data.train.judged, data.test.judged
        assert labels is not None
        assert test_labels is not None
        generator = np.random.default_rng(seed)
        positive, negative, others = (torch.zeros(0, dtype=torch.int64),) * 3
        if classes == 2:
            positive, negative = (
                _drawn(np.flatnonzero(labels.numpy() == label), count, generator)
                for label, count in ((1, known_positives), (0, known_negatives))
            )
        elif classes is None:
            others = _drawn(_with_label(labels), known_positives + known_negatives, generator)
        else:
            members = (np.flatnonzero(labels.numpy() == label) for label in range(classes))
            others = torch.cat([_drawn(member, known_positives, generator) for member in members])
        told = torch.cat([positive, negative, others])
        train = torch.cat([told, _drawn(_with_label(labels), MOST_RECORDS, generator)]).unique()
        test = _drawn(_with_label(test_labels), MOST_RECORDS, generator)
        return cls(
            train=train,
            test=test,
            ids=torch.cat([data.train.ids[train], data.test.ids[test]]),
            labels=torch.cat([labels[train], test_labels[test]]),
            known_positives=data.train.ids[positive],
            known_negatives=data.train.ids[negative],
            classes=classes,
            known_records=data.train.ids[others],
        )

    @property
    def granted(self) -> dict[str, Any]:
        """What the attacker is told of classes and numbers beside the view's other fields; of two classes nothing."""
        if self.classes == 2:
            return {}
        places = {record: place for place, record in enumerate(self.ids.tolist())}
        labels = self.labels[[places[record] for record in self.known_records.tolist()]]
        labels = labels.double() if self.classes is None else labels.long()
        return {"classes": self.classes, "known_records": self.known_records, "known_values": labels}

    def judge(self, scores: Tensor) -> tuple[AnswerFigures, AnswerFigures]:
        """Return the figures of scores ``(n,)`` on training and on test records, without those that were known."""
        # Whatever the attack scored: what it was told is no leak.
        told = torch.isin(self.ids, torch.cat([self.known_positives, self.known_negatives, self.known_records]))
        asked = (~told).nonzero()[:, 0]
        first_test = self.train.numel()
        train, test = asked[asked < first_test], asked[asked >= first_test]
        return (
            AnswerFigures.of(scores[train], self.labels[train], classes=self.classes),
            AnswerFigures.of(scores[test], self.labels[test], classes=self.classes),
        )


def _with_label(labels: Tensor) -> npt.NDArray[np.int64]:
    """Return the positions of all records but dummies, about which nobody is asked."""
    return np.flatnonzero(~labels.isnan().numpy())


def _drawn(positions: npt.NDArray[np.int64], most: int, generator: np.random.Generator) -> Tensor:
    if positions.size > most:
        positions = np.sort(generator.choice(positions, most, replace=False))
    return torch.from_numpy(positions)


def judge_after_training(
    attack: Attack,
    data: PartyData,
    *,
    trained: nn.Module,
    before: nn.Module,
    quiz: Quiz,
    step: int = 0,
    device: torch.device | str = "cpu",
) -> AfterTraining:
    """Call an attack with a trained bottom model, and with the same model before training, and judge both.

    What the attack draws leaves torch's generators as they were, and is the same with both models.

    Args:
        attack: A label attack with ``when = "after-training"``. A copy of it is called for each model.
        data: The attacking party's columns.
        trained: Its bottom model.
        before: Its bottom model before training.
        quiz: What is asked.
        step: Steps of the run.
        device: Where the models live.

    Raises:
        HookError: If the attack breaks its contract.
    """
    parts = (data.train.rows(quiz.train).columns, data.test.rows(quiz.test).columns)
    columns = Columns(*(torch.cat(pair) for pair in zip(*parts, strict=True))).to(device).module_input()

    def judged(model: nn.Module) -> tuple[AnswerFigures, AnswerFigures]:
        view = view_after_training(
            model,
            columns,
            ids=quiz.ids.to(device),
            known_positives=quiz.known_positives.to(device),
            known_negatives=quiz.known_negatives.to(device),
            party=data.name,
            step=step,
        )
        told = {name: part.to(device) if isinstance(part, Tensor) else part for name, part in quiz.granted.items()}
        view = view.granting(**told)
        random = PartyRandom(0)
        if view.device.type == "cuda":
            random.use_cuda()
        with random:
            return quiz.judge(call_attack(copy.deepcopy(attack), view).cpu())

    (train, test), (train_before, test_before) = judged(trained), judged(before)
    asked = train.asked + test.asked
    return AfterTraining(
        train_auc=train.auc,
        test_auc=test.auc,
        baseline_train_auc=train_before.auc,
        baseline_test_auc=test_before.auc,
        known_positives=quiz.known_positives.numel(),
        known_negatives=quiz.known_negatives.numel(),
        train_tied_auc=train.tied_auc,
        test_tied_auc=test.tied_auc,
        baseline_train_tied_auc=train_before.tied_auc,
        baseline_test_tied_auc=test_before.tied_auc,
        scored=(train.scored + test.scored) / asked if asked else 1.0,
        train_positives=train.positives,
        train_negatives=train.negatives,
        test_positives=test.positives,
        test_negatives=test.negatives,
        train_chance=train.chance,
        test_chance=test.chance,
        train_top1=train.top1,
        test_top1=test.top1,
        baseline_train_top1=train_before.top1,
        baseline_test_top1=test_before.top1,
        known_records=quiz.known_records.numel(),
    )


def view_after_training(
    bottom: nn.Module,
    columns: Any,
    *,
    ids: Tensor,
    known_positives: Tensor,
    known_negatives: Tensor,
    party: str = "passive",
    step: int = 0,
) -> View:
    """Return what a passive party holds when training has ended, for an attack to be called with.

    Args:
        bottom: Its model; the view gets a copy by :func:`own_copy`.
        columns: Its columns as the model takes them, ``(n, d)`` or ``Columns``: known records and any others.
        ids: Their record ids, ``(n,)``, int64.
        known_positives: Ids of the positive records that it knows, ``(k,)``.
        known_negatives: Ids of the negative ones.
        party: Its name.
        step: Steps of the run.

    Raises:
        ArgumentError: If a known record is not among the ids.
    """
    known = torch.cat([known_positives, known_negatives])
    missing = known[~torch.isin(known, ids)]
    if missing.numel():
        raise ArgumentError(
            f"expected columns of every known record, got none of {missing.numel()} of {known.numel()}, "
            f"such as id {missing[0].item()}; give their columns and ids along"
        )
    return View(
        party=party,
        step=step,
        ids=ids,
        bottom=own_copy(bottom),
        columns=columns,
        known_positives=known_positives,
        known_negatives=known_negatives,
    )


def own_copy(model: nn.Module) -> nn.Module:
    """Return a copy of a model that shares nothing with it, and leads to nothing but itself.

    Weights and buffers are copied, and gradients are not. Hooks are left out, as whoever attached one may hold more
    than the model's owner does; only those of ``torch.nn.utils``, which compute weights (``spectral_norm``), are kept.
    Activations that a layer has kept lose their autograd graph.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for name in _HOOKS:
            hooks = vars(module)[name]
            kept = {key: hook for key, hook in hooks.items() if type(hook).__module__.startswith("torch.nn.utils.")}
            # Each dictionary of hooks is copied as this one.
            memo[id(hooks)] = copy.deepcopy(type(hooks)(kept))
        for value in vars(module).values():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    copied: nn.Module = copy.deepcopy(model, memo)  # torch copies a parameter without its gradient
    return copied
