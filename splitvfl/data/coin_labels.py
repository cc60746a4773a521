"""Training records whose label is a coin that was tossed for them, in the place of the true one.

The label party places the coins, below everything that reads labels; :mod:`splitvfl.leakage.canaries` has what they
are good for, and judges them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError, DataError
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.records import Ids

Positions = npt.NDArray[np.int64]

NO_IDS = "canaries are told by their ids, and there are none; pass model(x, labels=y, ids=ids)"

LEAST_CANARIES = 20
"""With fewer the interval covers half of the scale."""


class Canaries:
    """The canaries, by their ids.

    Args:
        ids: ``(n,)``, int64, each once.

    Raises:
        ArgumentError: If there are fewer than twenty, or one comes twice.
    """

    def __init__(self, ids: Tensor) -> None:
        self.ids: Ids = np.sort(_whole(ids))
        if self.ids.size < LEAST_CANARIES:
            raise ArgumentError(f"expected at least {LEAST_CANARIES} canaries, got {self.ids.size}")
        if (self.ids[1:] == self.ids[:-1]).any():
            raise ArgumentError("expected every canary's id once")

    @property
    def answers(self) -> tuple[Ids, Positions] | None:
        """Ids and randomised labels, 0 or 1, of those that have one; ``None``: unknown, or drawn anew in each step."""
        return None

    @property
    def count(self) -> int:
        """Number of canaries."""
        return int(self.ids.size)

    def among(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return which of these records are canaries, ``(k,)``."""
        return _place(self.ids, ids) >= 0

    def among_rows(self, ids: Tensor | None) -> Tensor:
        """Return the same of a batch's ids, ``(k,)`` bool on the CPU.

        Raises:
            ArgumentError: If nobody knows the ids.
        """
        if ids is None:
            raise ArgumentError(NO_IDS)
        return torch.from_numpy(self.among(ids.detach().reshape(-1).cpu().numpy()))


@dataclass(frozen=True, eq=False)
class DrawnCoins:
    """Which records are to be canaries, and their labels.

    Attributes:
        places: Their places among the records that may be one, ``(n,)``, int64, ascending.
        labels: ``(n,)``: int64 in {0, 1} or classes, float64 one of two numbers.
    """

    places: Tensor
    labels: Tensor

    @classmethod
    def draw(
        cls,
        train: Records,
        count: int,
        *,
        among: int,
        noise_seed_for_experiments: int | None = None,
        classes: int | None = 2,
    ) -> DrawnCoins:
        """Choose records at random, and toss a fair coin for each.

        Of k classes each gets one of them, all equally likely; of numbers one of the quartiles of the labels, the lower
        or the upper.

        Both come from the operating system's entropy, unless an experiment fixes them; never from a seed that a
        partner knows.

        Args:
            train: Training records with labels.
            count: How many.
            among: How many records may be one.
            noise_seed_for_experiments: Fixed seed, for experiments only.
            classes: Number of classes; ``None`` for numbers.

        Raises:
            ArgumentError: If fewer than twenty are wanted.
            DataError: If they are more than half of these records, or both quartiles are the same number.
        """
        if count < LEAST_CANARIES:
            raise ArgumentError(f"expected at least {LEAST_CANARIES} canaries, got {count}")
        if count > among // 2:
            raise DataError(
                f"expected at most {among // 2} canaries, half of the {among} training records that "
                f"are neither held out to validate on nor dummies, got {count}: the auditor learns from the others"
            )
        source = _source(noise_seed_for_experiments)
        places = np.sort(np.array(source.sample(range(among), count), dtype=np.int64))
        return cls(torch.from_numpy(places), torch.from_numpy(_drawn_labels(count, source, train, classes)))

    @classmethod
    def blank(cls, count: int, *, classes: int | None) -> DrawnCoins:
        """Return room for as many, to be filled with what somebody else has drawn."""
        return cls(
            torch.zeros(count, dtype=torch.int64),
            torch.zeros(count, dtype=torch.float64 if classes is None else torch.int64),
        )


class CoinLabels(Canaries):
    """Canaries that the label party has placed among its training records, and their coins.

    Args:
        positions: Of the records among the training records, ``(n,)``, int64, each once.
        ids: Their ids, ``(n,)``, int64.
        coins: Their labels, ``(n,)`` in {0, 1}; classes, or one of two numbers.
        all_ids: The ids of all canaries, where these are those of one shard. ``None``: these are all.
    """

    def __init__(self, positions: Tensor, ids: Tensor, coins: Tensor, *, all_ids: Tensor | None = None) -> None:
        super().__init__(ids if all_ids is None else all_ids)
        self._answers = np.full(self.count, np.nan)  # not met yet; infinite: of more than one value
        self._take(positions, ids, coins)

    def _take(self, positions: Tensor, ids: Tensor, coins: Tensor) -> None:
        order = np.argsort(_whole(positions))
        self._positions: Positions = _whole(positions)[order]
        self._own_ids: Ids = _whole(ids)[order]
        self._coins = coins.detach().reshape(-1).cpu().numpy()[order]

    @classmethod
    def place(
        cls,
        train: Records,
        count: int,
        *,
        trained: int,
        position: Callable[[Positions], Positions],
        noise_seed_for_experiments: int | None = None,
        classes: int | None = 2,
    ) -> Self:
        """Choose records at random, and toss a fair coin for each, as :meth:`DrawnCoins.draw`.

        Args:
            train: The label party's training records; dummies of a padded alignment are never chosen.
            count: How many.
            trained: Number of records that are trained on, and not held out to validate on.
            position: Returns the positions of records, given their places among those.
            noise_seed_for_experiments: Fixed seed, for experiments only.
            classes: Number of classes; ``None`` for numbers.

        Raises:
            ArgumentError: If fewer than twenty are wanted.
            DataError: If they are more than half of these records, or both quartiles are the same number.
        """
        among, position_of = eligible(train, trained, position)
        drawn = DrawnCoins.draw(
            train,
            count,
            among=among,
            noise_seed_for_experiments=noise_seed_for_experiments,
            classes=classes,
        )
        positions = position_of(drawn.places)
        return cls(positions, train.ids[positions], drawn.labels)

    def note_answers(self, ids: Tensor, answers: Tensor) -> None:
        """Take note of what label defenses answer for those of a batch that are canaries.

        Args:
            ids: Record ids, ``(n,)``.
            answers: ``(n,)``: 0 or 1; ½ where nothing is said.
        """
        places = _place(self.ids, ids.detach().reshape(-1).cpu().numpy())
        met = places >= 0
        given, before = answers.detach().reshape(-1).double().cpu().numpy()[met], self._answers[places[met]]
        self._answers[places[met]] = np.where(np.isnan(before) | (before == given), given, np.inf)

    @property
    def answers(self) -> tuple[Ids, Positions] | None:
        """Ids and randomised labels, 0 or 1, of those that have one; ``None``: unknown, or drawn anew in each step."""
        if not np.isfinite(self._answers).all():
            return None
        told = self._answers != 0.5
        return self.ids[told], self._answers[told].astype(np.int64)

    def label(self, batch: Records, rows: Tensor) -> Records:
        """Return training records with the coins in place of the labels of those that are canaries.

        Args:
            batch: The records at these positions.
            rows: The positions, ``(n,)``, int64.
        """
        assert batch.labels is not None
        places = _place(self._positions, rows.numpy())
        met = places >= 0
        if not met.any():
            return batch
        labels, where = batch.labels.clone(), torch.from_numpy(np.flatnonzero(met)).to(batch.labels.device)
        labels[where] = torch.from_numpy(self._coins[places[met]]).to(labels)
        return replace(batch, labels=labels)

    def label_all(self, train: Records) -> Records:
        """Return all training records with the coins in place of the canaries' labels; takes memory for all of them."""
        assert train.labels is not None
        labels = train.labels.clone()
        labels[torch.from_numpy(self._positions)] = torch.from_numpy(self._coins).to(labels)
        return replace(train, labels=labels)

    def apart(self, train: Records) -> Records:
        """Return the label party's training records, in which the canaries count in no figure, as dummies do."""
        real = torch.ones(train.count, dtype=torch.bool) if train.real is None else train.real.clone()
        real[torch.from_numpy(self._positions)] = False
        return replace(train, real=real)

    def state_dict(self) -> dict[str, Any]:
        """Return which records they are, their coins and randomised labels: for the label party only."""
        names = ("positions", "ids", "coins", "all_ids", "answers")
        values = (self._positions, self._own_ids, self._coins, self.ids, self._answers)
        return {name: torch.from_numpy(value.copy()) for name, value in zip(names, values, strict=True)}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If there are not as many.
        """
        ids = np.sort(_whole(state.get("all_ids", state["ids"])))  # older ones say those of all only
        if ids.size != self.count:
            raise ValueError(f"it has {ids.size} canaries, this run is to have {self.count}")
        self.ids = ids
        if "answers" in state:  # older ones have none
            self._answers = state["answers"].numpy().copy()
        self._take(state["positions"], state["ids"], state["coins"])


def eligible(
    train: Records, trained: int, position: Callable[[Positions], Positions]
) -> tuple[int, Callable[[Tensor], Tensor]]:
    """Return how many records may be canaries, and what returns their positions, given their places among these.

    Args:
        train: The label party's training records; dummies of a padded alignment are never chosen.
        trained: Number of records that are trained on.
        position: Returns the positions of records, given their places among those.
    """
    if train.real is None:
        return trained, lambda places: torch.from_numpy(position(places.numpy()))
    positions = torch.from_numpy(position(np.arange(trained)))
    real = positions[train.real[positions]]
    return real.numel(), lambda places: real[places]


def toss(count: int, source: random.Random) -> npt.NDArray[np.int64]:
    """Return fair coins, 0 and 1, at least one of each: if all agree, all are tossed again."""
    while True:
        coins = np.unpackbits(np.frombuffer(source.randbytes(-(-count // 8)), np.uint8))[:count]
        if 0 < np.count_nonzero(coins) < count:
            return coins.astype(np.int64)


def _drawn_labels(
    count: int, source: random.Random, train: Records, classes: int | None
) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
    """Return a label for each canary."""
    if classes == 2:
        return toss(count, source)
    if classes is not None:
        while True:
            drawn = np.array(source.choices(range(classes), k=count), dtype=np.int64)
            if drawn.min() < drawn.max():
                return drawn
    labels = train.judged
    assert labels is not None
    lower, upper = np.nanquantile(labels.detach().double().cpu().numpy(), [0.25, 0.75])
    if not lower < upper:
        raise DataError(f"canaries have one of the quartiles of the labels, and both are {lower:g}; take them out")
    found: npt.NDArray[np.float64] = np.where(toss(count, source) == 1, upper, lower)
    return found


def _source(seed: int | None) -> random.Random:
    # Not the generators of noise: which records were chosen must not follow from anything that a partner sees.
    return random.SystemRandom() if seed is None else random.Random(derive_seed(seed, "canaries"))


def _place(ordered: Ids, values: Ids) -> Positions:
    """Return where each value is in an ordered array; −1 where it is not."""
    places = np.searchsorted(ordered, values)
    places[places == ordered.size] = 0
    return np.where(ordered[places] == values, places, -1)


def _whole(values: Tensor) -> npt.NDArray[np.int64]:
    return values.detach().reshape(-1).cpu().numpy().astype(np.int64)
