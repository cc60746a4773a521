"""Neighbouring inputs of a defense, and what it sends of them: many draws of one record's message.

A world is one value of what neighbours differ in. Of defenses that treat each row by itself many records of one world
are sent in one batch, and each row is a draw. Of those that mix rows each draw is a batch of its own, sent by a fresh
copy, in which all other records are known.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.audit.class_worlds import class_probabilities, class_rows, label_pairs, paired_predictions
from splitvfl.audit.dependence import batches_differ, ranks_of, rows_follow
from splitvfl.claims import RunPlan
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import (
    Defense,
    Secrets,
    call_defense,
    crossing_of,
    hook_name,
    needs_label_gradients,
    soft_classes_of,
)
from splitvfl.learning.discrete_noise import Keystream
from splitvfl.learning.label_gradients import LabelGradients, LabelGradientSource

Messages = npt.NDArray[np.float64]
Relation = Literal["label of a record", "residue of a record", "row of a record"]

_PREDICTIONS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_FAR_APART = (-2.0, 3.0)
_RESIDUES = (-1.0, -0.5, -0.1, -0.01, 0.01, 0.1, 0.5, 1.0)
_LENGTHS = (1.0, 3.0, 30.0)  # of rows, in units of the claimed bound: what should be clipped may not be
_BESIDE = 128  # rows of a batch, of which a quarter are draws: noise that rows share is seen in few
_OTHERS = 7  # known records beside the one that is told apart, where rows are mixed
MESSAGES = 8
"""Messages of one record that are looked at together, at most."""
_BATCHES = 32  # that are compared for what rows of one batch share: so many show noise that cancels in each of them
_APART_BY = 500_000  # seeds, between what is measured and what is looked at before: no claim is tested so often


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a defense meets in an experiment.

    Attributes:
        classes: Number of classes; ``None``: labels are numbers.
        label_range: For numbers: the least and the largest label.
        targets: What the loss's targets can be behind a label defense, empty for any number; ``None``: the labels.
        receivers: Passive parties.
        epochs: How often each record is used.
        width: Columns of a message, where the defense does not say.
        seeded: Whether noise is drawn from a seeded generator, for experiments; otherwise from a keystream.
        unmet: Conditions that the experiment does not meet, in whole sentences: claims are not covered then.
        void: Why claims of labels over the whole run do not apply, without a full stop; empty: they do.
    """

    classes: int | None = 2
    label_range: tuple[float, float] | None = None
    targets: tuple[float, ...] | None = None
    receivers: int = 1
    epochs: int = 1
    width: int = 2
    seeded: bool = True
    unmet: tuple[str, ...] = ()
    void: str = ""


class World(NamedTuple):
    """One value of what neighbours differ in.

    Attributes:
        label: The record's label.
        prediction: The model's prediction of it, where a row is made from both.
        row: The row itself, where that is what differs.
        residue: The residue, where that is what differs.
        between: Of more than two classes: those that are told apart; the prediction is of the second one.
    """

    label: float = 0.0
    prediction: float = 0.5
    row: tuple[float, ...] = ()
    residue: float | None = None
    between: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.between is not None:
            return f"class {self.label:g} where class {self.between[1]} is predicted with {self.prediction:g}"
        if self.row:
            return f"row {', '.join(f'{entry:.3g}' for entry in self.row)}"
        if self.residue is not None:
            return f"residue {self.residue:g}"
        return f"label {self.label:g} at f = {self.prediction:g}"


def neighbours(
    relation: Relation, defense: object, bound: float, around: Surroundings
) -> Iterator[tuple[World, World]]:
    """Yield pairs of worlds among which the worst is looked for.

    Args:
        relation: What they differ in.
        defense: The defense.
        bound: For rows: the norm within which they are promised something.
        around: Where it is.

    Raises:
        ArgumentError: If no such pair can be made; the message says why.
    """
    if relation == "row of a record":
        yield from _rows(bound, around.width)
    elif relation == "residue of a record":
        for place, low in enumerate(_RESIDUES):
            yield from ((World(residue=low), World(residue=high)) for high in _RESIDUES[place + 1 :])
    else:
        yield from _labels(defense, around)


def _rows(bound: float, width: int) -> Iterator[tuple[World, World]]:
    for times in _LENGTHS:
        end = (times * bound, *(0.0 for _ in range(width - 1)))
        opposite = tuple(-entry for entry in end)
        yield World(row=end), World(row=opposite)
        yield World(row=end), World(row=(0.0,) * width)
        even = (times * bound / math.sqrt(width),) * width
        yield World(row=even), World(row=tuple(-entry for entry in even))


def _labels(defense: object, around: Surroundings) -> Iterator[tuple[World, World]]:
    if around.classes is None:
        if around.label_range is None:
            raise ArgumentError("labels are numbers, and it is not known between which: the defense has no label_range")
        low, high = around.label_range
        pairs = [(low, high)]
    else:
        pairs = [(float(one), float(other)) for one, other in label_pairs(around.classes)]
    if crossing_of(defense) == "labels":
        yield from ((World(label=low), World(label=high)) for low, high in pairs)
        return
    if around.classes is None:
        raise ArgumentError("rows under other labels are made of classes, and here labels are numbers")
    if around.classes > 2:
        yield from _classes(around, around.classes)
        return
    targets = _targets(around)
    for f in _PREDICTIONS:
        yield World(min(targets), f), World(max(targets), f)


def _classes(around: Surroundings, classes: int) -> Iterator[tuple[World, World]]:
    if around.targets is not None and set(around.targets) != set(range(classes)):
        raise ArgumentError("of more than two classes, rows behind answers that are no classes are not made")
    for one, other, prediction in paired_predictions(classes, _PREDICTIONS):
        both = (one, other)
        yield tuple(World(float(label), prediction, between=both) for label in both)  # type: ignore[misc]  # are two


def _targets(around: Surroundings) -> tuple[float, ...]:
    """Return what stands for two labels; where it can be any number, two that are far apart."""
    return (0.0, 1.0) if around.targets is None else around.targets or _FAR_APART


class Places(NamedTuple):
    """Where the records of a world stand in a batch, and what is looked at of it.

    Attributes:
        own: Which rows are a world's; of all others everything is known, ``(rows,)``.
        draws: For each draw the rows that are looked at together, ``(draws, k)``.
    """

    own: Tensor
    draws: Tensor

    @classmethod
    def alone(cls, rows: int) -> Places:
        """Return a batch in which every row is a draw."""
        return cls(torch.ones(rows, dtype=torch.bool), torch.arange(rows)[:, None])

    @classmethod
    def beside_known(cls, rows: int) -> Places:
        """Return a batch in which each record has a known neighbour, and another known one half a batch away.

        No known record belongs to two draws, which would not be independent then.

        Args:
            rows: A multiple of four.
        """
        places = torch.arange(rows)
        own = (places % 2 == 0) & (places < rows // 2)
        next_ones, far_ones = places ^ 1, (places + rows // 2) % rows
        return cls(own, torch.stack([places, next_ones, far_ones], dim=1)[own])

    @classmethod
    def whole(cls, rows: int) -> Places:
        """Return a batch that is one draw: one record in the middle of known ones."""
        places = torch.arange(rows)
        return cls(places == rows // 2, places[None])


class Dependence(NamedTuple):
    """On what else a row depends.

    Attributes:
        on_batch: On other rows of its message.
        on_earlier: On rows of an earlier message of other records.
    """

    on_batch: bool
    on_earlier: bool


@dataclass(slots=True)
class Stage:
    """A defense that is sent inputs of its neighbours' worlds, and what leaves it.

    Attributes:
        defense: It; every batch is sent by a copy.
        around: Where it is.
        together: Whether all receivers of a message are looked at together.
        steps: Messages of the record that are looked at together, at most those of its epochs.
        beside: Whether an earlier message of other records, and known rows of the same batch, are looked at too.
        whole: Whether each draw is a batch of its own, of which all rows are looked at: so it must be where rows depend
            on each other, or share noise.
        seed: Of the first batch.
        rows: Of a batch, where all are draws.
    """

    defense: Defense
    around: Surroundings
    together: bool = False
    steps: int = 1
    beside: bool = False
    whole: bool = False
    seed: int = 0
    rows: int = 4096
    _drawn: int = field(default=0, init=False)

    def draw(self, world: World, number: int) -> Messages:
        """Return so many messages of a record in a world, ``(number, d)``: a draw each."""
        # Rows of a gradient are over the size of their batch: it is the same for all draws.
        places = self._places()
        rows = places.draws.numpy()
        batches = [self._sent(world, places.own)[rows] for _ in range(math.ceil(number / len(rows)))]
        return np.concatenate(batches).reshape(len(batches) * len(rows), -1)[:number]

    def dependence(self, world: World) -> Dependence:
        """Return on what else a row depends that is sent of a world, by what is sent of equal rows of it."""
        stage = replace(self, together=False, beside=True, steps=1, seed=self.seed + _APART_BY)
        own = Places.alone(max(1, self.rows // 4)).own
        sent = np.stack([stage._sent_to_one(world, own) for _ in range(_BATCHES)])
        messages = np.split(sent, 2, axis=2)
        ranks = [ranks_of(message) for message in messages]
        on_batch = any(map(batches_differ, messages, ranks)) or any(map(rows_follow, ranks))
        return Dependence(on_batch, rows_follow(*ranks))

    def _places(self) -> Places:
        if self.whole:
            return Places.whole(1 + _OTHERS)
        return Places.beside_known(_BESIDE) if self.beside else Places.alone(self.rows)

    def _sent(self, world: World, own: Tensor) -> Messages:
        """Return what is sent of a batch to all receivers in all epochs, side by side: ``(rows, d)``."""
        once = crossing_of(self.defense) == "labels" or getattr(self.defense, "one_draw", False)
        receivers = self.around.receivers if self.together and not once else 1
        if getattr(self.defense, "draws_at_output", False):
            # What stands for the labels is drawn once; each cut's message is made of it by itself.
            return self._sent_to_one(world, own, cuts=receivers)
        return np.concatenate([self._sent_to_one(world, own) for _ in range(receivers)], axis=1)

    def _sent_to_one(self, world: World, own: Tensor, *, cuts: int = 1) -> Messages:
        sender = prepared(self.defense, self.around)
        self._drawn += 1
        source = np.random.default_rng((self.seed, self._drawn))
        generator = torch.Generator().manual_seed(int(source.integers(2**62)))
        stream = None if self.around.seeded else Keystream(source.bytes(32))
        rows = len(own)
        # A batch of few records is always of others: some of them may be treated as no others are.
        ids = torch.arange(rows) + (2 * rows * self._drawn if self.whole else 0)
        found = []
        if self.beside:
            earlier = make_batch(sender, world, torch.zeros_like(own), self.around)
            found.append(send(sender, earlier, ids + rows, 0, generator, stream, cuts=cuts))
        batch = make_batch(sender, world, own, self.around)
        steps = range(len(found), len(found) + min(self.around.epochs, self.steps))
        found += [send(sender, batch, ids, step, generator, stream, cuts=cuts) for step in steps]
        return np.concatenate(found, axis=1)


def prepared(defense: Defense, around: Surroundings) -> Defense:
    """Return a fresh copy of a defense, told what it is told before a run.

    Raises:
        HookError: If it cannot be copied.
        SplitVFLError: If it refuses such a run.
    """
    try:
        sender = copy.deepcopy(defense)
    except Exception as error:  # other people's code may fail in any way
        raise HookError(
            f"{hook_name(defense)} cannot be copied, and an audit calls many copies of a defense: "
            f"{type(error).__name__}: {error}"
        ) from error
    values = None if around.classes is None else tuple(map(float, range(around.classes)))
    if around.targets is not None:
        values = around.targets or None
    if hasattr(sender, "take_targets"):
        sender.take_targets(values)
    if hasattr(sender, "plan_run"):
        sender.plan_run(RunPlan(around.epochs, values=values))
    return sender


class Batch(NamedTuple):
    """What a defense is given.

    Attributes:
        message: The message.
        labels: The labels.
        under_labels: What the message would be under every label, where it asks for that.
    """

    message: Tensor
    labels: Tensor
    under_labels: LabelGradients | None = None


def make_batch(defense: Defense, world: World, own: Tensor, around: Surroundings) -> Batch:
    """Return a batch whose ``own`` rows, ``(rows,)``, are of a world, and all others of one that is known."""
    rows = len(own)
    if world.row:
        message = torch.where(own[:, None], torch.tensor([world.row]), torch.zeros(1, len(world.row)))
        return Batch(message, torch.zeros(rows))
    labels = torch.where(own, world.label, 0.0)
    if crossing_of(defense) == "labels":
        numbers = soft_classes_of(defense) is None and (around.classes is None or around.classes == 2)
        return Batch(labels if numbers else labels.long(), labels)
    if world.residue is not None:
        labels = torch.where(own, float(world.residue > 0), 0.0)
        residues = torch.where(own, world.residue, -0.5)
        return Batch(-residues[:, None] / rows, labels)
    if world.between is not None and around.classes is not None:
        classes = torch.where(own, int(world.label), world.between[0])
        predictions = torch.where(own, world.prediction, 0.5).double()
        probabilities = class_probabilities(around.classes, world.between, predictions)
        message, under_labels = class_rows(probabilities, classes, around.width)
        return Batch(message, classes, under_labels if needs_label_gradients(defense) else None)
    targets = torch.where(own, world.label, min(values := _targets(around)))
    labels = (targets == max(values)).float()
    predictions = torch.where(own, world.prediction, 0.5)
    if not needs_label_gradients(defense):
        return Batch(-(targets - predictions)[:, None] / rows, labels)
    return _with_gradients(targets, labels, predictions, around.width, values)


def _with_gradients(
    targets: Tensor, labels: Tensor, predictions: Tensor, width: int, values: tuple[float, ...]
) -> Batch:
    """Return rows below a top that adds up columns, and the logistic loss, with what they would be otherwise."""
    activation = (torch.logit(predictions.double())[:, None] / width).float().repeat(1, width).requires_grad_()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs.reshape(-1), targets)

    source = LabelGradientSource(loss, targets)
    with torch.enable_grad():
        crossed = activation.clone()
        output = source.follow(crossed.sum(dim=1, keepdim=True), {"partner": crossed}, classes=2, values=values)
        loss(output, targets).backward()
    assert activation.grad is not None
    return Batch(activation.grad, labels, source.at("partner"))


def send(
    defense: Defense,
    batch: Batch,
    ids: Tensor,
    step: int,
    generator: torch.Generator,
    stream: Keystream | None,
    *,
    cuts: int = 1,
) -> Messages:
    """Return what a defense sends of a batch at so many cuts, side by side: ``(rows, d)``, checked as in a run."""
    secrets = Secrets(
        party="auditor",
        step=step,
        generator=generator,
        keystream=stream,
        ids=ids,
        labels=batch.labels,
        label_gradients=batch.under_labels,
    )
    if batch.under_labels is not None and getattr(defense, "draws_at_output", False):
        batch.under_labels.drawn = defense.draw(batch.under_labels, secrets)  # type: ignore[attr-defined]
    sent = [call_defense(defense, batch.message, secrets) for _ in range(cuts)]
    return torch.cat([one.detach().double().reshape(len(ids), -1) for one in sent], dim=1).numpy()


class Behaviour(NamedTuple):
    """What was seen of a defense before anything was measured.

    Attributes:
        mixing: Whether a row changes what is sent of other records.
        repeatable: Whether the same generator gives the same message again.
    """

    mixing: bool
    repeatable: bool


def observe(defense: Defense, worlds: tuple[World, World], around: Surroundings) -> Behaviour:
    """Return what a defense does with the rows of others, and whether it draws from its secrets alone.

    Raises:
        HookError: If it cannot be called with such inputs, or returns what may not be sent.
    """

    def once(world: World) -> Messages:
        sender = prepared(defense, around)
        ids = torch.arange(1 + _OTHERS)
        batch = make_batch(sender, world, ids < 1, around)
        return send(sender, batch, ids, 0, torch.Generator().manual_seed(1), None)

    first, again, other = once(worlds[0]), once(worlds[0]), once(worlds[1])
    repeatable = bool((first == again).all())
    # Sums are rounded on a grid that the whole batch decides.
    apart = np.abs(first[1:] - other[1:]).max() > 1e-6 * max(float(np.abs(first).max()), float(np.abs(other).max()))
    return Behaviour(mixing=repeatable and bool(apart), repeatable=repeatable)
