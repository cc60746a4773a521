"""The labels of the label party's training records: as they are, as they are trained on, and as attacks are judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from splitvfl.data.coin_labels import CoinLabels, DrawnCoins, eligible
from splitvfl.data.columns import PartyData, Records
from splitvfl.errors import DataError
from splitvfl.learning.batches import Batches
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.learning.tasks import Task
from splitvfl.team.team import Team


class _Holder(Protocol):
    data: PartyData
    task: Task


class TrainingLabels:
    """The true labels, and the coins that stand in the place of some.

    Args:
        holder: The label party, whose data and task are looked at when they are needed.

    Attributes:
        canaries: Training records with coin-toss labels; ``None``: there are none.

    Raises:
        DataError: If there are no labels, or they are not what the task needs.
    """

    def __init__(self, holder: _Holder) -> None:
        self.canaries: CoinLabels | None = None
        self._holder = holder
        data, task = holder.data, holder.task
        if data.train.count:
            if data.train.labels is None or data.test.labels is None:
                raise DataError(f"the active party {data.name} holds no labels")
            # Of a shard that lies apart: whether there are both classes, all workers find out together.
            check = task.check_values if self._lies_apart else task.check
            _check_each(check, data.train, f"training records of {data.name}")
        if data.test.count and data.test.labels is not None:
            _check_each(task.check_values, data.test, f"test records of {data.name}")

    def check_together(self, team: Team) -> None:
        """Check at worker 0 that the labels of all workers are fit to train on, where each has a shard of its own.

        Raises:
            DataError: If they are not: there is one class only, say.
        """
        if not self._lies_apart:
            return
        assert self._train.labels is not None
        found = team.whole(_extremes(self._train.labels))
        if found is not None:
            self._holder.task.check(found)

    def check_held_out(self, settings: EarlyStopping, held_out: range, team: Team) -> None:
        """Check at worker 0 that the labels at these positions, of all workers together, are fit to judge by.

        Raises:
            DataError: If they are not: there is one class only, say.
        """
        train = self._train
        assert train.labels is not None
        places = slice(held_out.start, held_out.stop, held_out.step)
        labels = train.labels[places] if train.real is None else train.labels[places][train.real[places]]
        found = team.whole(labels if team.size == 1 else _extremes(labels))
        if found is None:
            return
        try:
            self._holder.task.check(found)
        except DataError as error:
            every, count = settings.validation_every, self._holder.data.training_records
            raise DataError(
                f"early stopping holds out {count // every} of the {count} training records of "
                f"{self._holder.data.name}, one of {every}, and they are not fit to judge by: {error}"
            ) from error

    def place_canaries(
        self, count: int, batches: Batches, *, team: Team | None = None, noise_seed_for_experiments: int | None = None
    ) -> None:
        """Give so many training records a coin toss for a label, for as long as the party trains.

        They are trained on and answered for like all others, and judged apart. Never are they test records, records
        that are held out to validate on, or dummies of a padded alignment. Which records they are and their coins are
        in :meth:`state_dict`, and nowhere else.

        Args:
            count: How many, at least twenty.
            batches: The order of the training records, which says what is held out.
            team: The workers of the party, of which each may have a shard of its own: worker 0 draws for all.
            noise_seed_for_experiments: Fixed seed, for experiments only. Default: the operating system's entropy.

        Raises:
            ArgumentError: If there are fewer than twenty.
            DataError: If they are more than half of these records.
        """
        if team is None or not self._lies_apart:
            self.canaries = CoinLabels.place(
                self._train,
                count,
                trained=batches.count,
                position=batches.positions,
                noise_seed_for_experiments=noise_seed_for_experiments,
                classes=self._holder.task.classes,
            )
        else:
            self.canaries = self._placed_together(count, batches, team, noise_seed_for_experiments)

    def _placed_together(self, count: int, batches: Batches, team: Team, seed: int | None) -> CoinLabels:
        """Return this worker's part of the canaries that worker 0 draws among the records of all."""
        classes = self._holder.task.classes
        among, position_of = eligible(self._train, batches.own_count, batches.own_positions)
        counts = [int(said) for said in team.collect(str(among).encode())]
        if team.rank:
            coins = DrawnCoins.blank(count, classes=classes)
        else:
            coins = DrawnCoins.draw(
                self._train, count, among=sum(counts), noise_seed_for_experiments=seed, classes=classes
            )
        team.share([coins.places, coins.labels])
        first = sum(counts[: team.rank])
        own = (coins.places >= first) & (coins.places < first + among)
        positions = position_of(coins.places[own] - first)
        ids = self._train.ids[positions]
        all_ids = team.whole(ids)
        all_ids = torch.empty(count, dtype=ids.dtype) if all_ids is None else all_ids
        team.share([all_ids])
        return CoinLabels(positions, ids, coins.labels[own], all_ids=all_ids)

    @property
    def _lies_apart(self) -> bool:
        """Whether these are the records of one shard, and nobody here has the others."""
        shards = self._holder.data.shards
        return shards is not None and shards.here is not None

    def share_canaries(self, team: Team) -> None:
        """Give all workers the canaries of worker 0, where all have all records."""
        if self.canaries is not None and team.size > 1 and not self._lies_apart:
            state = self.canaries.state_dict()
            team.share(list(state.values()))
            self.canaries.load_state_dict(state)

    def trained_on(self, batch: Records, rows: Tensor) -> Records:
        """Return training records, which are at these positions, with the labels that are trained on."""
        return batch if self.canaries is None else self.canaries.label(batch, rows)

    def true(self, batch: Records) -> Tensor:
        """Return the labels of a batch of training records, without coins."""
        assert batch.labels is not None
        if self.canaries is None:
            return batch.labels
        labels = self._train.labels
        assert labels is not None
        assert batch.positions is not None, "batches are taken from the party's records"
        return labels[batch.positions.to(labels.device)].to(batch.labels)

    @property
    def judged_records(self) -> Records:
        """The training records as attacks are judged by them, in which canaries count no more than dummies."""
        return self._train if self.canaries is None else self.canaries.apart(self._train)

    @property
    def _train(self) -> Records:
        return self._holder.data.train

    def state_dict(self) -> dict[str, Any] | None:
        """Return the canaries: for the label party only."""
        return None if self.canaries is None else self.canaries.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None, /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If the number of canaries is another.
        """
        if state is None and self.canaries is not None:
            raise ValueError(f"it has no canaries, this run is to have {self.canaries.count}")
        if state is not None and self.canaries is None:
            raise ValueError(f"it has {state['coins'].numel()} canaries, this run is to have none")
        if self.canaries is not None and state is not None:
            self.canaries.load_state_dict(state)


def _extremes(labels: Tensor) -> Tensor:
    """Return the smallest and the largest label, if there are any: enough to tell whether all are the same."""
    return torch.stack([labels.min(), labels.max()]) if labels.numel() else labels


def _check_each(check: Callable[[Tensor], None], records: Records, which: str) -> None:
    """Check labels, and name the record that is not fit by what its owner knows it by.

    Raises:
        DataError: As the check does.
    """
    assert records.labels is not None
    try:
        check(records.labels)
    except DataError as error:
        if error.row is None:
            raise
        raise DataError(
            f"{error} among the {records.count} {which}: first in that of id {int(records.ids[error.row])} (where ids "
            "are text or there are none, its row in the table, from 0); take such records out, or another loss"
        ) from error
