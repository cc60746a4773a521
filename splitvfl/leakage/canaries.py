"""Canaries: training records with coin-toss labels, among which any leak of labels is one beyond the prediction.

A record's columns tell something of its label, and so does everything that a model makes of them. Of a coin that was
tossed for the record they tell nothing. The label party places the coins, alone and without a word; from then on they
are labels like all others: trained on, answered for, defended, sent. The AUC of an attack's score *among the canaries*
is then what the messages gave away of labels that nobody can predict, with nothing to subtract or to match.

**The coins** are fair and independent of everything. Should all of them agree (one case in 2¹⁹ at twenty records), all
are tossed again: given how many of each class there are, every order stays equally likely. So a score that knows
nothing of the coins has an AUC of one half in expectation, and a promise that a defense makes for every record holds
for the canaries: behind ``asymmetric-response`` at L no score that follows from the messages is expected to exceed
1 − L. If the lower end of the interval does, a promise is broken, or the label came another way.

**Who is asked.** The auditor scores canaries without having learned from them: neither their labels nor their clean
gradients enter its axis or its densities. Else its own knowledge would be found in messages that hold none. Its
prediction of a canary is no part of the figure: a model learns coins by heart (on digits, undefended, its final
prediction read .62 of them after 30 epochs), and the prediction stays with the label party. All other figures of
attacks are of the other records with their true labels; no attacker is granted a canary as a known record.

**The interval** says what other records and coins would have read in this run (:func:`~splitvfl.metrics.auc_interval`).
It says nothing of another run, with other noise and weights, nor of other attacks: what an attack reads is a lower
bound of what there is to read. 3000 canaries give about ±.02, 300 ±.065, 20 ±.25.

**What it costs.** Every canary is trained on noise; half of the labels are wrong on average, and where one class is
rare its share seems larger than it is. With 2 % canaries and no defense the test AUC changed by −.0010 ± .0013 on
credit-default (480 of 24,000; 5 seeds, 5 epochs; of the first 3 seeds −.0004 ± .0015) and by −.0015 ± .0021 on digits
(29 of 1437; 10 seeds, 20 epochs), the test loss by +.0001 ± .0005 of .442 and +.013 ± .004 of .080: ranks hardly
suffer, sharp probabilities do. With 10 % on credit-default: +.0001 ± .0019 and +.0036 ± .0029. (Paired by seed, 95 % t
intervals.) A private top learns from true labels, as it sends nothing.

**Are they like other records?** A canary's label is as often against the prediction as with it, others' are mostly with
it; what a message tells of a label *given* the prediction does not depend on which of the two it is. With the
prediction subtracted, the same score read .75 and .94 of 288 canaries on digits behind ``axis-sumkl`` at .4, after 6
and 30 epochs, and .72 and .94 of the other records; behind ``axis-gaussian`` .82 and .97, .81 and .97. It is the score
that may do worse on canaries: one that was fitted to others has rarely seen a confident prediction that is wrong.

**Can a partner find them?** Nothing that crosses says which they are: all messages are to the bit those of a run whose
data have these labels. But half are mislabelled, and mislabelled records keep large gradients. On digits, in the last
10 of 30 epochs, row norms told canaries whose coin is wrong from all other records with an AUC of .996 undefended, .72
behind ``max-norm`` and .60 behind ``asymmetric-response`` and ``axis-sumkl`` at .4. Whoever finds one learns that a
label is a coin, and nothing of a true one. The figure assumes that the partner does not treat canaries in a way of
their own: one that recognises them could send activations for them that make the figure better than the truth.
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

from splitvfl.data.columns import Columns, Records
from splitvfl.errors import ArgumentError, ConfigError, DataError
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.records import Ids
from splitvfl.metrics import auc_interval, leak_auc, top_shares

Positions = npt.NDArray[np.int64]

NO_IDS = "canaries are told by their ids, and there are none; pass model(x, labels=y, ids=ids)"

LEAST_CANARIES = 20
"""With fewer the interval covers half of the scale."""


@dataclass(frozen=True, slots=True)
class CanaryLeak:
    """One attack's leak of the canaries' labels, added up over the run, oriented by the records that are no canaries.

    Attributes:
        auc: AUC of the accumulated scores among the canaries. One that was never scored counts as a tie, in the middle.
        low: Lower end of the interval, :func:`~splitvfl.metrics.auc_interval`.
        high: Upper end.
        positives: Canaries with label 1 that were judged.
        negatives: Canaries with label 0.
        top1: Of k classes, where canaries have a label that was drawn from all of them: share whose own class scored
            highest, which for who knows nothing is 1/k; else ``None``. The AUC is then that of the label against one
            other that is drawn for each canary: by the difference of the two scores, which of the two has the larger
            number. So it is that of a fair coin there, too.
    """

    auc: float
    low: float
    high: float
    positives: int
    negatives: int
    top1: float | None = None

    @property
    def count(self) -> int:
        """Number of canaries that were judged."""
        return self.positives + self.negatives

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, *, level: float = 0.95) -> Self:
        """Return the figures of scores of canaries, ``(n,)``, and their coins, ``(n,)`` in {0, 1}."""
        low, high = auc_interval(scores, labels, level=level)
        positives = int((labels == 1).sum())
        return cls(leak_auc(scores, labels), low, high, positives, labels.numel() - positives)

    @classmethod
    def of_classes(
        cls, scores: npt.NDArray[np.float64], labels: Positions, classes: int, *, level: float = 0.95
    ) -> Self:
        """Return the figures of scores of canaries, ``(n, k)``, and the classes that were drawn for them, ``(n,)``.

        The other class is drawn from a fixed seed: it need not be secret, only independent of the label.
        """
        rows = np.arange(labels.size)
        others = (labels + np.random.default_rng(0).integers(1, classes, labels.size)) % classes
        low, high = np.minimum(labels, others), np.maximum(labels, others)
        scores = scores if labels.size else np.zeros((0, classes))
        found = cls.of(
            torch.from_numpy(scores[rows, high] - scores[rows, low]),
            torch.from_numpy((labels > others).astype(np.int64)),
            level=level,
        )
        return replace(found, top1=float(top_shares(scores, labels).mean()) if labels.size else None)


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
        """Return which records they are and their coins: for the label party only."""
        names = ("positions", "ids", "coins", "all_ids")
        values = (self._positions, self._own_ids, self._coins, self.ids)
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


def check_canaries(*, audit: bool, exchange: str, read: bool = True) -> None:
    """Refuse canaries where nobody looks for them.

    Args:
        audit: Whether the auditor's attack is run.
        exchange: Name of the exchange.
        read: Whether messages about single records come back to a passive party in it.

    Raises:
        ConfigError: If so.
    """
    if not audit:
        raise ConfigError("canaries are for the auditor, who is switched off; take them out")
    if not read:
        raise ConfigError(
            f"in exchange {exchange} no message about one record comes back to a passive party, so there is nothing "
            "in which canaries could be read; take them out"
        )


def canaries_of(given: Canaries | Tensor | None) -> Canaries | None:
    """Return canaries, of which the ids may be given alone."""
    return Canaries(given) if isinstance(given, Tensor) else given


def with_canaries(
    labels: Tensor, count: int, *, noise_seed_for_experiments: int | None = None, classes: int | None = 2
) -> tuple[Tensor, Tensor]:
    """Return labels of which some are coin tosses, and which: for a training loop of one's own.

    Call it once for a run and keep what it returns: other coins in every epoch would be noise on the labels. Train on
    the labels returned and judge with ``cut.audit(canaries=ids[positions])``.

    Args:
        labels: Of the training records, ``(n,)`` in {0, 1}, any dtype, or in 0 … k−1, or numbers; they stay as they
            are.
        count: How many canaries, from twenty to ``n // 2``.
        noise_seed_for_experiments: Fixed seed, for experiments only. Default: the operating system's entropy.
        classes: Number of classes, of which each canary gets one, all equally likely; ``None`` for numbers, of which it
            gets the lower or the upper quartile.

    Returns:
        Labels ``(n,)`` like ``labels``, and the positions of the canaries, ``(count,)`` int64, ascending.

    Raises:
        ArgumentError: If there are fewer than twenty, or labels are not 0 and 1, or no such classes.
        DataError: If they are more than half.
    """
    if classes == 2 and (labels.dim() != 1 or not ((labels == 0) | (labels == 1)).all()):
        raise ArgumentError(f"expected labels 0 and 1, one per record, got {labels.dtype} {tuple(labels.shape)}")
    if labels.dim() != 1 or (classes is not None and not ((labels >= 0) & (labels < classes)).all()):
        raise ArgumentError(
            f"expected one label per record, at least 0 and below {classes}, got {labels.dtype} {tuple(labels.shape)}"
        )
    positions = torch.arange(labels.shape[0])
    records = Records(positions, Columns.of(torch.zeros(labels.shape[0], 0)), labels)
    placed = CoinLabels.place(
        records,
        count,
        trained=records.count,
        position=lambda places: places,
        noise_seed_for_experiments=noise_seed_for_experiments,
        classes=classes,
    )
    tossed = placed.label(records, positions).labels
    assert tossed is not None
    return tossed, torch.from_numpy(placed.ids.copy()).to(labels.device)


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
