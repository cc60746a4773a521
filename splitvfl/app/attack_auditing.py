"""Attacks on several trainings of one experiment, read after the first, the tenth and the last epoch.

The experiment is trained as it is configured, under several seeds, and watched by every attack that it lists and by the
auditor's. Where coins can be read some training records get one for a label: of coins nobody knows anything but from
messages, so that the share that an attack guesses right stands beside what a guarantee allows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from splitvfl.app.audit_ceilings import Guarantees
from splitvfl.app.experiment import Experiment, Workbench
from splitvfl.app.run_auditing import GUESSED, strongest
from splitvfl.audit.attacks import (
    AttackFigures,
    Coins,
    ProvenLoss,
    Reading,
    Relation,
    Scores,
    Seat,
    Trainings,
    figure_of,
    reading_epochs,
    right_guesses,
    standardised,
    together,
)
from splitvfl.config.sections import ExperimentConfig, TrainConfig
from splitvfl.data.coin_labels import LEAST_CANARIES
from splitvfl.errors import ConfigError
from splitvfl.leakage.judging import ScoreKeeper
from splitvfl.metrics import leak_auc, oriented
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status, TrainingProgress

CONFIDENCE: Final = 0.95
"""Share of audits of which all intervals after one number of epochs hold."""

_MOST_SEEDS = 100
_COIN_SHARE, _MOST_COINS = 10, 300  # one record in ten, and no more of a large table

Readers = tuple[str, ...]


class AttackRead(NamedTuple):
    """What one attack had read at some moment of one training.

    Attributes:
        auc: Of all that it added up, turned round where that reads better; NaN: of nothing.
        coins: Scores of the coins, higher for one as far as it knows, and the coins; ``None`` without any.
        by_messages: Whether it reads any message.
    """

    auc: float
    coins: tuple[Scores, Coins] | None
    by_messages: bool = True


Moment = dict[Readers, dict[str, AttackRead]]


@dataclass(frozen=True)
class Tried:
    """What attacks read of several trainings.

    Attributes:
        epochs: After how many epochs.
        moments: By number of epochs, one for each training.
        coins: Records of each training with a coin for a label.
        unavailable: Attacks that could not be run, in whole sentences.
    """

    epochs: tuple[int, ...]
    moments: Mapping[int, Sequence[Moment]]
    coins: int
    unavailable: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many trainings."""
        return len(self.moments[self.epochs[-1]])

    def pooled(self, epochs: int, readers: Readers) -> dict[str, tuple[Scores, Coins]]:
        """Return each attack's scores of all coins of all trainings, each training's in units of its own."""
        parts: dict[str, list[tuple[Scores, Coins]]] = defaultdict(list)
        for moment in self.moments[epochs]:
            for name, read in moment.get(readers, {}).items():
                if read.coins is not None:
                    parts[name].append(read.coins)
        return {
            name: (np.concatenate([standardised(scores) for scores, _ in each]), np.concatenate([c for _, c in each]))
            for name, each in parts.items()
        }

    def at_the_end(self) -> dict[str, tuple[Scores, Coins]]:
        """Return the same after the last epoch, of every reader."""
        last = self.epochs[-1]
        readers = dict.fromkeys(who for moment in self.moments[last] for who in moment)
        return {
            f"{name} at {' and '.join(who)}": found for who in readers for name, found in self.pooled(last, who).items()
        }


def coins_of(bench: Workbench, *, canaries: int | None, usual: int | None, readable: bool) -> int:
    """Return how many records of a training get a coin: those asked for, or one in ten where coins can be read.

    Args:
        bench: The experiment's data.
        canaries: How many were asked for; ``None``: as many as the experiment says.
        usual: How many the experiment says; ``None``: as many as are well spent.
        readable: Whether messages about single records come back to a passive party, and the auditor reads them.
    """
    asked = usual if canaries is None else canaries
    if asked is not None:
        return asked
    records = bench.data.active.train.count
    few = min(_MOST_COINS, records // _COIN_SHARE)
    return few if readable and bench.data.task == "binary" and few >= LEAST_CANARIES else 0


def try_attacks(
    config: ExperimentConfig,
    bench: Workbench,
    *,
    seeds: int,
    coins: int,
    progress: Callable[[int], TrainingProgress | None] = lambda number: None,
) -> Tried:
    """Train under so many seeds, and return what attacks had read after the first, the tenth and the last epoch.

    Args:
        config: The experiment; its seed and those after it are taken, and likewise that of its noise if it is fixed.
        bench: Its data.
        seeds: Trainings.
        coins: Records of each that get a coin for a label; 0 for none.
        progress: Called with the number of a training, from 0, for what is told of its steps.

    Raises:
        ConfigError: If ``seeds`` is not from 1 to 100, or nobody could look for coins.
    """
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ConfigError(f"--seeds: expected 0 to {_MOST_SEEDS}, got {seeds}")
    epochs = reading_epochs(config.train.epochs)
    moments: dict[int, list[Moment]] = {epoch: [] for epoch in epochs}
    unavailable: dict[str, None] = {}
    for number in range(seeds):
        seeded = config.model_copy(update={"train": _under_seed(config.train, number)})
        trainer = Experiment(seeded.auditing(canaries=coins) if coins else seeded, bench).trainer()
        each, tell = len(trainer.batches), progress(number)

        def read(status: Status, trainer: Trainer = trainer, each: int = each, tell: object = tell) -> None:
            done, rest = divmod(status.step, each)
            if rest == 0 and done in epochs[:-1]:
                moments[done].append(_moment(trainer))
            if callable(tell):
                tell(status)

        trainer.fit(config.train.epochs, progress=read)
        moments[epochs[-1]].append(_moment(trainer, after_training=True))
        unavailable |= dict.fromkeys(_unavailable(trainer))
    # A budget or early stopping may have ended all of them before.
    there = tuple(epoch for epoch in epochs if moments[epoch])
    return Tried(there, moments, coins, tuple(unavailable))


def _under_seed(train: TrainConfig, number: int) -> TrainConfig:
    """Return the settings of a training under another seed."""
    noise = train.noise_seed_for_experiments
    seeded = {"seed": train.seed + number, "noise_seed_for_experiments": None if noise is None else noise + number}
    return train.model_copy(update=seeded)


def _unavailable(trainer: Trainer) -> Iterator[str]:
    for party, reasons in trainer.unavailable.items():
        for attack, reason in reasons.items():
            yield f"Attack {attack} at {party} could not be run: {reason.rstrip('.')}."


# --- reading


def _moment(trainer: Trainer, *, after_training: bool = False) -> Moment:
    found: Moment = {(party,): _by_party(trainer, party) for party in trainer.passives}
    if len(trainer.passives) > 1:
        found[tuple(trainer.passives)] = _by_all(trainer)
    if after_training:
        for party, late in trainer.after_training.items():
            for name, figures in late.items():
                read = AttackRead(figures.train.worst_auc, None, by_messages=False)
                found[(party,)][f"{name}, on the trained half"] = read
    return found


def _by_party(trainer: Trainer, party: str) -> dict[str, AttackRead]:
    keepers, summaries = trainer.watch.keepers(party), trainer.summaries(party)
    found = {}
    for name, summary in summaries.items():
        keeper = keepers[name]
        coins = keeper.canary_scores() if isinstance(keeper, ScoreKeeper) else None
        found[name] = AttackRead(summary.worst_accumulated_auc, coins, summary.by_messages)
    return found


def _by_all(trainer: Trainer) -> dict[str, AttackRead]:
    """Return what all passive parties read who put their scores of each record together, attack by attack."""
    each = {party: trainer.watch.keepers(party) for party in trainer.passives}
    found = {}
    for name in dict.fromkeys(name for keepers in each.values() for name in keepers):
        keepers = [own[name] for own in each.values() if name in own]
        if not all(isinstance(keeper, ScoreKeeper) for keeper in keepers):
            continue
        judges = [keeper for keeper in keepers if isinstance(keeper, ScoreKeeper)]
        records = [judge.record_scores() for judge in judges]
        if any(len(labels) != len(records[0][1]) or (labels != records[0][1]).any() for _, labels in records):
            continue  # not of the same records
        joint = together([judge.orientation * sums for judge, (sums, _) in zip(judges, records, strict=True)])
        auc = oriented(leak_auc(torch.from_numpy(joint), torch.from_numpy(records[0][1])))
        coins = [own for judge in judges if (own := judge.canary_scores()) is not None]
        read = (together([scores for scores, _ in coins]), coins[0][1]) if coins else None
        by_messages = any(trainer.summaries(party)[name].by_messages for party, own in each.items() if name in own)
        found[name] = AttackRead(auc, read, by_messages)
    return found


# --- putting together


def seats_of(
    trainer: Trainer, bench: Workbench, guarantees: Guarantees, tried: Tried | None, *, confidence: float
) -> tuple[tuple[Seat, ...], Trainings | None]:
    """Return what everybody could learn of everybody, beside what is guaranteed, and the trainings that it is from.

    Args:
        trainer: The experiment's.
        bench: Its data.
        guarantees: What is guaranteed.
        tried: What attacks have read; ``None``: none was tried.
        confidence: Share of audits of which all bounds from coins hold.
    """
    active, passives = trainer.active.name, tuple(trainer.passives)
    epochs = reading_epochs(guarantees.epochs) if tried is None else tried.epochs
    readers: list[Readers] = [(party,) for party in passives]
    if len(passives) > 1:
        readers.append(passives)
    figures = 0 if tried is None else max(_intervals(tried, done, readers) for done in epochs)
    each = 1.0 - (1.0 - CONFIDENCE) / max(1, figures)
    bounds = 1.0 - (1.0 - confidence) / (len(epochs) * len(readers))
    seats = []
    for who in readers:
        readings = []
        for done in epochs:
            allowed = guarantees.of_labels(done)
            readings.append(
                Reading(
                    done,
                    allowed.ceiling,
                    allowed.why,
                    guarantees.noise_alone(len(who), done),
                    None if tried is None else _proven(tried.pooled(done, who), confidence=bounds),
                    () if tried is None else _figures(tried.moments[done], who, confidence=each),
                )
            )
        own = bench.known.get(who[0]) if len(who) == 1 else None
        seats.append(Seat(who, (active,), "label of a record", own, tuple(readings)))
    seats += _of_rows(active, passives, guarantees, epochs)
    trainings = None if tried is None else _trainings(trainer, tried, figures)
    return tuple(seats), trainings


def _of_rows(active: str, passives: tuple[str, ...], guarantees: Guarantees, epochs: Sequence[int]) -> Iterator[Seat]:
    asked: list[tuple[Readers, tuple[str, ...], Relation]] = [
        ((active,), (party,), "row of a record") for party in passives
    ]
    if guarantees.accounts:
        asked.append((passives, (active,), "row of a record"))
        asked.append(((), (active, *passives), "record at all parties"))
    for readers, owners, relation in asked:
        allowed = [(done, guarantees.of_rows(owners, done)) for done in epochs]
        yield Seat(readers, owners, relation, None, tuple(Reading(done, *found) for done, found in allowed))


def _intervals(tried: Tried, done: int, readers: Sequence[Readers]) -> int:
    """Return how many intervals there are after so many epochs."""
    return sum(
        (not math.isnan(read.auc)) + (read.coins is not None)
        for who in readers
        for read in tried.moments[done][0].get(who, {}).values()
    )


def _figures(moments: Sequence[Moment], who: Readers, *, confidence: float) -> tuple[AttackFigures, ...]:
    found = []
    for name in dict.fromkeys(name for moment in moments for name in moment.get(who, {})):
        reads = [moment[who][name] for moment in moments if name in moment.get(who, {})]
        right = figure_of(
            [None if read.coins is None else right_guesses(*read.coins) for read in reads], confidence=confidence
        )
        auc = figure_of([read.auc for read in reads], confidence=confidence)
        found.append(AttackFigures(name, auc, right, reads[0].by_messages))
    return tuple(sorted(found, key=_rank, reverse=True))


def _rank(found: AttackFigures) -> tuple[bool, float, float]:
    right = 0.0 if found.right is None else found.right.mean
    return found.by_messages, right, 0.0 if found.auc is None else found.auc.mean


def _proven(read: Mapping[str, tuple[Scores, Coins]], *, confidence: float) -> ProvenLoss | None:
    if not read:
        return None
    each = 1.0 - (1.0 - confidence) / (len(read) * len(GUESSED))
    best = strongest(read, delta=0.0, confidence=each)
    event = best.event
    return ProvenLoss(best.bound, best.ceiling, event.hits, event.draws, best.statistic, each)


def _trainings(trainer: Trainer, tried: Tried, figures: int) -> Trainings:
    labels, classes = trainer.active.data.train.labels, trainer.active.task.classes
    rate = None
    if labels is not None and classes is not None:
        rate = float(torch.bincount(labels[~labels.isnan()].long()).max() / (~labels.isnan()).sum())
    return Trainings(tried.count, tried.coins, rate, CONFIDENCE, figures)
