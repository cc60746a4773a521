"""A model of the label party's own columns, trained alone: on labels, or on the scores of a joint model.

Trained on scores it is a student, and the joint model its teacher. What both training sets make small is the task's
usual loss; with probabilities in the place of labels it is the cross-entropy between the teacher's prediction and the
student's, least where the student says what the teacher says on average of records that look alike to it.

Source: Hinton, Vinyals and Dean, arXiv:1503.02531, without a temperature: scores are to be probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from splitvfl.data.columns import PartyData, Records
from splitvfl.errors import DataError
from splitvfl.exchange.prediction import predict_records
from splitvfl.learning.batches import Batches
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.learning.settings import Settings
from splitvfl.learning.tasks import Task
from splitvfl.party.party import ActiveParty
from splitvfl.party.recipe import Recipe

HELD_OUT_EVERY = 5
_MOST_EPOCHS, _PATIENCE, _RATE = 100, 10, 5e-3
_BATCHES, _LARGEST_BATCH = 32, 1024
_ROWS = 4096


@dataclass(frozen=True)
class Option:
    """A choice that held-out records decide on.

    Attributes:
        model: The section that describes the model.
        recipe: Its recipe.
        weight_decay: What weights lose in each step, in parts of the learning rate.
    """

    model: Settings
    recipe: Recipe
    weight_decay: float


@dataclass(frozen=True)
class Choice:
    """What held-out records decided.

    Attributes:
        option: The option.
        epochs: After how many epochs it was best.
        loss: Its mean loss on the labels of the held-out records.
    """

    option: Option
    epochs: int
    loss: float


class Lesson:
    """What a model of one party's own columns is to learn.

    Args:
        data: The party's records with true labels; dummies of a padded alignment are left out.
        task: What is learned, with its usual loss.
        targets: What is trained on in the place of the training records' labels, one row per record; ``None``: labels.
        seed: Decides first weights and the order of records.
        device: Where it is trained.

    Raises:
        DataError: If there are too few records to hold some out.
    """

    def __init__(
        self, data: PartyData, task: Task, targets: Tensor | None, *, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        self._data, self._task, self._seed, self._device = data, task, seed, torch.device(device)
        real = data.train.real
        self._places = torch.arange(data.train.count) if real is None else real.nonzero()[:, 0].cpu()
        if len(self._places) < HELD_OUT_EVERY:
            raise DataError(f"{data.name} has {len(self._places)} training records; too few to hold some out")
        labels = data.train.labels
        assert labels is not None, "the label party has them"
        self._targets = labels if targets is None else targets

    def choose(self, options: Sequence[Option], *, tell: Callable[[str], None] = lambda line: None) -> Choice:
        """Return the option, and the number of epochs, with the least loss on held-out training records.

        Every fifth training record is held out, and judged by its label, whatever is trained on.

        Raises:
            DataError: If no option has a finite loss.
        """
        found = []
        for number, option in enumerate(options, start=1):
            found.append(choice := self._tried(option))
            tell(f"choice {number} of {len(options)}: loss {choice.loss:.4f} on held-out records")
        best = min(found, key=lambda choice: choice.loss)
        if not best.epochs:
            raise DataError(f"the loss on own columns of {self._data.name} is NaN or infinite, whatever is chosen")
        return best

    def _tried(self, option: Option) -> Choice:
        batches, party = self._batches(HELD_OUT_EVERY), self._party(option)
        held_out = self._places[torch.tensor(list(batches.held_out))]
        best, epochs = math.inf, 0
        for epoch in self._epochs(party, batches):
            loss = self._loss(party, held_out)
            if loss < best:
                best, epochs = loss, epoch
            if epoch - epochs >= _PATIENCE:
                break
        return Choice(option, epochs, best)

    def learned(self, choice: Choice) -> ActiveParty:
        """Return the party with a model as chosen, trained on all training records, and frozen."""
        party = self._party(choice.option)
        for epoch in self._epochs(party, self._batches(None)):
            if epoch == choice.epochs:
                break
        party.top.requires_grad_(False)
        return party

    def _batches(self, held_out_every: int | None) -> Batches:
        count = len(self._places)
        size = min(max(count // _BATCHES, 16), _LARGEST_BATCH, count - count // HELD_OUT_EVERY)
        return Batches(count, size, seed=self._seed, held_out_every=held_out_every)

    def _party(self, option: Option) -> ActiveParty:
        with PartyRandom(derive_seed(self._seed, "student")):
            module = option.recipe.make_top(self._data, self._task, [])

        def optimizer(weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return torch.optim.AdamW(weights, lr=_RATE, weight_decay=option.weight_decay)

        party = ActiveParty(self._data, module, task=self._task, optimizer=optimizer)
        party.prepare(seed=derive_seed(self._seed, "dropout"), device=self._device)
        return party

    def _epochs(self, party: ActiveParty, batches: Batches) -> Iterator[int]:
        """Train epoch by epoch, and yield the number of each, from 1, when it is done."""
        for epoch in range(_MOST_EPOCHS):
            for positions in batches.epoch(epoch):
                rows = self._places[positions]
                with party.random:
                    self._step(party, self._data.train.rows(rows).to(self._device), self._targets[rows])
            yield epoch + 1

    def _step(self, party: ActiveParty, batch: Records, targets: Tensor) -> None:
        party.weights.clear_gradients()
        loss = self._task.loss(party.run_top([], batch), targets.to(self._device))
        loss.backward()
        party.weights.update()

    def _loss(self, party: ActiveParty, rows: Tensor) -> float:
        """Return the mean loss on the labels of some training records; infinite where it is NaN."""
        total = 0.0
        with party.evaluating(), torch.no_grad():
            for piece in rows.split(_ROWS):
                batch = self._data.train.rows(piece).to(self._device)
                assert batch.labels is not None, "the label party has them"
                total += len(piece) * self._task.loss(party.run_top([], batch), batch.labels).item()
        return total / len(rows) if math.isfinite(total) else math.inf


def outputs_alone(party: ActiveParty, records: Records) -> Tensor:
    """Return the outputs, ``(n, k)``, of a model that takes its party's own columns only."""
    return predict_records(party, {}, {party.name: records}).outputs
