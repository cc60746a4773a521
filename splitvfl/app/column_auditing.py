"""The readers by which a passive party finds out, alone, what the label party could read in what it sends.

While it trains one reader is enough to see how that moves, and must cost little. When it has trained, the party can
compute what it would send with its finished model, and send none of it: there all readers are run that
could find more, as what they take is paid once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import scipy
import torch

from splitvfl.app.assembly import Assembly
from splitvfl.config.registry import built_in
from splitvfl.config.sections import TrainConfig
from splitvfl.hooks import Attack, hook_name, known_share_of, reads_activations
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.column_readers import readers_to_run
from splitvfl.leakage.column_reading import FEWEST
from splitvfl.leakage.watching import Watch
from splitvfl.learning.batches import PIECE_ROWS, Batches
from splitvfl.party.party import PassiveParty
from splitvfl.report.rows import counted
from splitvfl.run.column_seats import read_own_columns, readings_of

# Name of the attack that reads messages while a party trains.
_AUDITORS: Final = "ridge"

# Share of the training records whose columns the auditor's readers know: this one, or more where messages are small.
_KNOWS: Final = 0.05
_KNOWS_OF_A_MESSAGE: Final = 12
_KNOWS_AT_MOST: Final = 0.5

# So large a share of messages that are left out is worth a line.
_TOLD_FROM: Final = 0.05

# Of a model that stands still, messages in which even half of the records are fewer than that are read together.
_READ_TOGETHER: Final = math.ceil(_KNOWS_OF_A_MESSAGE / _KNOWS_AT_MOST)

# Records of the messages that are read, at least, where there are as many; and messages.
_RECORDS, _MESSAGES = 4_000, 20
# Of the inverse networks at each message: of one that is all there is, as many as over an epoch of twenty and more.
_STEPS, _STEPS_ON_ALL = 10, 300
# By how many a reader is judged that is asked for few of each message, about.
_ASKED: Final = 1_000


def live_readers(assembly: Assembly, *, audited: bool, records: int) -> list[Attack]:
    """Return the attacks that read what a passive party sends while it trains.

    Those of its file, and the auditor's, unless ``audit`` is false or the file has one of that name.
    """
    listed = [one for one in assembly.attacks() if reads_activations(one)]
    return [*listed, *(_auditors(listed, message_size(assembly, records)) if audited else ())]


def experiment_attacks(assembly: Assembly, *, audited: bool, records: int) -> list[Attack]:
    """Return the attacks of an experiment in one process: those of its file.

    Where all activations are sent once and nothing comes back, features are all that leaks: then the auditor's reader
    of columns is among them, unless ``audit`` is false or the file has one of that name.

    Args:
        assembly: What the parts of the experiment are made by.
        audited: Whether ``audit`` is not false.
        records: Number of training records.
    """
    listed, wanted = assembly.attacks(), audited and assembly.exchange.one_way
    return [*listed, *(_auditors(listed, message_size(assembly, records)) if wanted else ())]


def message_size(assembly: Assembly, records: int) -> int:
    """Return how many records a message of training has: a batch, or where all is sent once a piece of it."""
    return min(PIECE_ROWS, max(records, 1)) if assembly.exchange.one_way else assembly.batch_size


def said_of_few_known(attacks: Iterable[Attack], *, records: int, batch_size: int) -> Iterator[str]:
    """Yield of each reader that leaves messages out how many, in sentences.

    Args:
        attacks: All that will run.
        records: How many training records there are.
        batch_size: How many of them a message has.
    """
    for attack in attacks:
        if not reads_activations(attack) or not hasattr(attack, "known_share"):
            continue
        share, name = known_share_of(attack), hook_name(attack)
        known = round(share * records)
        left_out = (
            1.0 if min(known, batch_size) < FEWEST else float(scipy.stats.binom.cdf(FEWEST - 1, batch_size, share))
        )
        if left_out > _TOLD_FROM:
            yield (
                f"{name} knows {counted(known, 'record')} of {records:,}; of messages of {batch_size:,} about "
                f"{left_out:.0%} will have fewer than {FEWEST} of these and be left out: raise its known_share, or "
                "train.batch_size"
            )


def _auditors(listed: Sequence[Attack], size: int) -> list[Attack]:
    """Return the auditor's reader of messages of so many records, unless one of its name is listed."""
    if any(hook_name(one) == _AUDITORS for one in listed):
        return []
    return [built_in("attacks")[_AUDITORS](known_share=_known(size))]


def thorough_readers(assembly: Assembly, party: PassiveParty) -> list[Attack]:
    """Return new attacks that read what a party would send with a model that stands still."""
    of_one = message_size(assembly, party.data.train.count)
    size = _together(of_one) * of_one
    known = _known(size)
    # Of each message so many that all together are judged by enough.
    asked = -(-_ASKED // max(1, min(_messages(size), party.data.train.count // size)))
    ours = built_in("attacks")
    made: list[Attack] = [
        ours[_AUDITORS](known_share=known),
        ours["inverse-network"](known_share=known, steps=_STEPS_ON_ALL if assembly.exchange.one_way else _STEPS),
        ours["white-box-inversion"](known_share=known, records=asked),
    ]
    wanted = readers_to_run(party.data)
    return [one for one in made if hook_name(one) in wanted]


def _messages(size: int) -> int:
    return max(_MESSAGES, -(-_RECORDS // size))


def _together(size: int) -> int:
    """Return how many messages of so many records are read as one, where a model stands still."""
    return max(1, -(-_READ_TOGETHER // size))


def _known(size: int) -> float:
    # So many records of each message, of small ones too, as a reader needs: an auditor shall not be weak.
    return min(max(_KNOWS, _KNOWS_OF_A_MESSAGE / size), _KNOWS_AT_MOST)


def read_again(
    assembly: Assembly, party: PassiveParty, readers: Sequence[Attack], *, active: str, settings: TrainConfig
) -> tuple[list[ColumnReading], dict[str, str]]:
    """Return what attacks read of messages that a party computes with its model as it is, and sends to nobody.

    They are the first messages of an epoch, 4 000 records or 20 messages, whichever is more: in the order of training,
    in evaluation mode, behind its defenses, which draw noise of their own. Messages of fewer than 24 records are read
    several at a time: the model is the same for all, and whoever has received them can do so too.

    Args:
        assembly: What the parts were made by.
        party: The party; it learns nothing.
        readers: The attacks.
        active: The label party.
        settings: How the training is.

    Returns:
        The readings, and why others have none.
    """
    watch, train = Watch([party.name]), party.data.train
    stopping = settings.early_stopping
    batches = Batches(
        train.count,
        min(message_size(assembly, train.count), train.count),
        seed=settings.seed,
        block_rows=assembly.block_rows,
        held_out_every=None if stopping is None or assembly.exchange.one_way else stopping.validation_every,
    )
    seen, party.sent_to = party.sent_to, []
    try:
        read_own_columns(
            party,
            readers,
            watch,
            active=active,
            exchange=assembly.exchange,
            batches=batches,
            seed=settings.seed,
            every_message=True,
        )
        if watch.readers[party.name]:
            _send_to_readers(party, batches, together=_together(batches.batch_size))
    finally:
        party.sent_to = seen
    found = [_standing_still(reading) for reading in readings_of(watch, party.name)]
    return found, watch.unavailable[party.name]


def _send_to_readers(party: PassiveParty, batches: Batches, *, together: int) -> None:
    steps = enumerate(batches.epoch(0))
    for number in range(_messages(together * batches.batch_size)):
        messages, read = [], []
        for step, rows in islice(steps, together):
            batch = party.train_batch(rows)
            with party.evaluating(), torch.no_grad():  # a layer that counts what passes is not to count this
                activation = party.activate(batch)
            messages.append(party.defend_activation(activation, batch, step))
            read.append(rows)
        if not read:
            return
        party.send_to_watchers(torch.cat(messages), party.train_batch(torch.cat(read)), number)


def _standing_still(reading: ColumnReading) -> ColumnReading:
    """Return a reading without what is added up over a run: there is none."""
    columns = [replace(one, accumulated=None) for one in reading.columns]
    return replace(reading, standing_still=True, sent_once=False, accumulated=None, columns=columns)
