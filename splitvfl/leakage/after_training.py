"""Leaks through the trained model: what a passive party has learned, judged when training has ended.

A defense hides labels in messages. What the messages taught the party's own model stays with it: an attack that is
called after training (``when = "after-training"``) gets a copy of that model, the party's columns and a few known
labels, and scores records. Beside it stands the same attack on the model as it was before training, with the same known
labels: what the columns and those labels alone tell. Only the difference is due to training together.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from splitvfl.data.columns import Columns, PartyData
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Attack, View, call_attack
from splitvfl.leakage.judging import keeper_for
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.side_knowledge import GRANTED
from splitvfl.learning.randomness import PartyRandom
from splitvfl.metrics import leak_auc, oriented, tied_leak_auc

SHOWN = frozenset({"bottom", "columns"}) | GRANTED
"""View fields that an attack has after training, when no message arrives any more."""

MOST_RECORDS = 20_000
"""Records of each part that are scored at most: enough for an AUC to two digits."""

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True, slots=True)
class AfterTraining:
    """What one attack learned after training, of records whose labels it did not know.

    Attributes:
        train: Of training records.
        test: Of test records.
        before_train: The same attack's of training records, with the model as it was before training.
        before_test: Likewise of test records.
        known_positives: Positive records that it knew.
        known_negatives: Negative records that it knew.
        scored: Share of these records, training and test together, that it scored with the trained model.
        known_records: Of classes and numbers: how many records it knew.
    """

    train: LeakSummary = field(default_factory=LeakSummary)
    test: LeakSummary = field(default_factory=LeakSummary)
    before_train: LeakSummary = field(default_factory=LeakSummary)
    before_test: LeakSummary = field(default_factory=LeakSummary)
    known_positives: int = 0
    known_negatives: int = 0
    scored: float = 1.0
    known_records: int = 0

    def scalars(self, where: str) -> dict[str, float]:
        """Return the AUCs that exist for a log, under tags that end in ``where``."""
        parts = {"": self.train, "_test": self.test, "_baseline": self.before_train, "_baseline_test": self.before_test}
        found = {f"leak_auc_after_training{part}/{where}": one.auc for part, one in parts.items()}
        for part in ("", "_test"):
            found[f"leak_auc_after_training{part}_tied/{where}"] = parts[part].tied_auc
            found[f"leak_top1_after_training{part}/{where}"] = parts[part].top1
        found[f"leak_scored_after_training/{where}"] = self.scored if self.scored < 1.0 else math.nan
        return {tag: value for tag, value in found.items() if not math.isnan(value)}


def answer_figures(scores: Tensor, labels: Tensor, *, classes: int | None = 2) -> LeakSummary:
    """Return the figures of scores ``(n,)`` or ``(n, k)`` of one part, NaN where a record was left out.

    There are no steps: the AUC is of all the records that were scored. What decides is turned round where that reads
    better.

    Args:
        scores: Of the records that were asked about.
        labels: Theirs, ``(n,)``.
        classes: Number of classes; ``None`` of numbers.
    """
    asked = labels.numel()
    if classes == 2:
        scored = ~scores.isnan()
        positives = int((labels == 1).sum())
        found = LeakSummary(
            auc=leak_auc(scores[scored], labels[scored]),
            tied_auc=tied_leak_auc(scores, labels),
            scored=int(scored.sum()) / asked if asked else 1.0,
            positives=positives,
            negatives=asked - positives,
        )
    else:
        keeper = keeper_for(classes, cumulative=True)
        keeper.add(torch.arange(asked), scores, labels)
        over_run = keeper.summary()
        found = LeakSummary(
            auc=over_run.accumulated_auc,
            tied_auc=over_run.tied_accumulated_auc,
            scored=keeper.records / asked if asked else 1.0,
            task=over_run.task,
            chance=over_run.chance,
            top1=over_run.accumulated_top1,
        )
    # Who scores nothing at all was not judged, which is not the same as found blind.
    some = replace(found, tied_auc=found.tied_auc if 0.0 < found.scored < 1.0 else math.nan)
    return replace(some, worst_auc=oriented(some.deciding[0]))


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

    def judge(self, scores: Tensor) -> tuple[LeakSummary, LeakSummary, float]:
        """Return the figures of scores ``(n,)`` on training and on test records, and the share of both that has one.

        Records that were known are left out.
        """
        # Whatever the attack scored: what it was told is no leak.
        told = torch.isin(self.ids, torch.cat([self.known_positives, self.known_negatives, self.known_records]))
        asked = (~told).nonzero()[:, 0]
        first_test = self.train.numel()
        parts = (asked[asked < first_test], asked[asked >= first_test])
        train, test = (answer_figures(scores[one], self.labels[one], classes=self.classes) for one in parts)
        scored = sum(round(found.scored * one.numel()) for found, one in zip((train, test), parts, strict=True))
        return train, test, scored / asked.numel() if asked.numel() else 1.0


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

    def judged(model: nn.Module) -> tuple[LeakSummary, LeakSummary, float]:
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

    train, test, scored = judged(trained)
    return AfterTraining(
        train,
        test,
        *judged(before)[:2],
        known_positives=quiz.known_positives.numel(),
        known_negatives=quiz.known_negatives.numel(),
        scored=scored,
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
