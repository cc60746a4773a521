"""A prediction by the workers of a party: each scores a part of the records, and worker 0 has all scores in the end.

Worker i scores with worker i of every other party, over a link of its own. What is counted for the records, and where
their scores go, is worker 0's business; the others wait for it before anything of a record leaves them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from splitvfl.config.sections import ExperimentConfig
from splitvfl.data.digests import encoded_digest
from splitvfl.data.new_records import NewRecords
from splitvfl.data.shards import lie_apart, shard_path
from splitvfl.errors import ConfigError, DataError, PrivacyError
from splitvfl.exchange.scoring import ACTIVE
from splitvfl.hooks import hook_name
from splitvfl.party.party import ActiveParty, PassiveParty, Tally
from splitvfl.team.team import Team, part_of


def check_scored_by_workers(config: ExperimentConfig, *, promised: bool) -> None:
    """Refuse a prediction that several workers cannot make: where something is agreed on for all records at once.

    Args:
        config: The party's file.
        promised: Whether noise was calculated for the training, of which predictions take their part.

    Raises:
        ConfigError: If it is one.
    """
    refused = {
        "prediction.scores_by": (config.scorer != config.active, f"it adds up parts of all records; write {ACTIVE}"),
        f"exchange: {config.exchange.name}": (config.exchange.factory.hides_parts, "masks are of all records together"),
        "prediction.score_noise": (config.prediction.memoised, "its key is kept beside one worker's ledger"),
        "prediction.direction_by": (config.prediction.direction_by is not None, "it was not tried"),
        "exchange.noise": (promised, "what the training put by for predictions is counted by one process"),
    }
    for key, (asked, why) in refused.items():
        if asked:
            raise ConfigError(
                f"{config.source}: {key}: records are not scored by several workers with it: {why}; start splitvfl "
                "predict as one process, without torchrun"
            )


def check_defended_by_workers(party: ActiveParty | PassiveParty, source: str) -> None:
    """Refuse a defense of predictions that acts on a batch, of which each worker has others.

    Args:
        party: The party, with its defenses.
        source: What its file is called in messages.

    Raises:
        ConfigError: If there is one.
    """
    chain = party.scores if isinstance(party, ActiveParty) else party.activation["prediction"]
    if len(chain) and chain.scope == "batch":
        raise ConfigError(
            f"{source}: defenses: one of {', '.join(map(hook_name, chain))} acts on the records of a whole "
            "message, of which each worker has others; start splitvfl predict as one process, without torchrun"
        )


def own_file(records: Path | None, team: Team) -> Path | None:
    """Return the file of a worker's own records: its number stands for ``{worker}``, if that is in the path.

    Raises:
        ConfigError: If there is no worker whose number it could be.
    """
    if records is None or not lie_apart(str(records)):
        return records
    if team.size == 1:
        raise ConfigError(
            f"--records: {records}: {{worker}} stands for the number of one of several workers, and this is one "
            "process; name one file, or start as many workers as there are files"
        )
    return shard_path(str(records), team.rank)


def scored_terms(read: NewRecords, half: str, *, apart: bool) -> dict[str, str]:
    """Return what workers that score together must have alike beside their settings: the half, and one file's records.

    Args:
        read: The records that a worker has read.
        half: Digest of its trained half.
        apart: Whether each has read a file of its own.
    """
    terms = {"trained half": half}
    if not apart:
        names = hashlib.sha256(_written(read.names)).hexdigest()
        terms["records"] = f"{read.data.test.count} {encoded_digest(read.data.test)} {names}"
    return terms


@dataclass(frozen=True, eq=False)
class TeamRecords:
    """The records of a prediction, as one worker has them.

    Attributes:
        own: Those that it scores.
        names: What all records of all workers are called, in their order, at worker 0; at the others those of its own.
        parts: How many parts leave all workers, at worker 0: dummies are no names, and are scored too.
    """

    own: NewRecords
    names: pa.Array
    parts: int


def records_of_team(scored: NewRecords, team: Team, *, apart: bool) -> TeamRecords:
    """Return which of the records a worker scores.

    Args:
        scored: What it has read.
        team: The workers.
        apart: Whether the others have read other files. Else all have read the same, and each takes its part.

    Raises:
        DataError: If records of several files have no names, or one is in two files.
        TeamError: If a worker could not go on.
    """
    if team.size == 1:
        return TeamRecords(scored, scored.names, scored.data.test.count)
    if not apart:
        return TeamRecords(_part(scored, part_of(scored.data.test.count, team)), scored.names, scored.data.test.count)
    counts = [int(count) for count in team.collect(str(scored.data.test.count).encode())]
    if scored.named_by == "rows":
        raise DataError(
            "records of several files are called by their numbers, which begin anew in each: name the column that "
            "calls them (--id)"
        )
    # As text: a column of whole numbers in one file may be text in another.
    gathered = team.gather(torch.frombuffer(bytearray(_written(scored.names.cast(pa.string()))), dtype=torch.uint8))
    names = scored.names
    if gathered is not None:
        names = pa.concat_arrays([_read(one.numpy().tobytes()) for one in gathered])
        if pc.count_distinct(names).as_py() < len(names):
            raise DataError(
                "a record is in the files of two workers, or twice in one; it would be scored twice: take one out"
            )
    team.collect(b"different")  # the others hear now if they are not, and not when all is scored
    return TeamRecords(scored, names, sum(counts))


def _part(scored: NewRecords, places: range) -> NewRecords:
    """Return some of the records, which follow one another."""
    test = scored.data.test
    index = torch.arange(places.start, places.stop)
    real = None if test.real is None else test.real[index]
    before = places.start if test.real is None else int(test.real[: places.start].sum())
    count = len(places) if real is None else int(real.sum())
    own = replace(test, ids=test.ids[index], columns=test.columns.rows(index), labels=None, real=real)
    return replace(scored, data=replace(scored.data, test=own), names=scored.names.slice(before, count))


def _written(names: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table([names], names=["name"])
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _read(content: bytes) -> pa.Array:
    column = pa.ipc.open_stream(content).read_all().column(0)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


class TeamTally:
    """What counts the records of all workers, once: worker 0 does, and the others wait for it.

    Args:
        team: The workers.
        records: How many parts may leave this one.
        counted: At worker 0: counts the records of all of them; else ``None``.
    """

    def __init__(self, team: Team, records: int, counted: Tally | None) -> None:
        self._team, self._records, self._counted = team, records, counted
        self._begun, self._left = False, 0

    def begin(self) -> None:
        """Count them, or wait until they are counted, before anything of a record leaves; called at every beginning.

        What leaves when a link was mended is what left before.

        Raises:
            LimitError: At worker 0, if a limit is reached.
            TeamError: At the others, then.
        """
        if not self._begun:
            self._team.collect(b"agreed")  # with all partners: else nothing is scored, and nothing is to be counted
            if self._counted is not None:
                self._counted.begin()
            self._team.collect(b"counted")
            self._begun = True
        self._left = self._records

    def leaving(self, records: int) -> None:
        """Let parts of so many records go.

        Raises:
            PrivacyError: If they were not counted.
        """
        if records > self._left:
            raise PrivacyError(f"parts of {records} records were to leave, and {self._left} of them are counted")
        self._left -= records


def scores_of_all(scores: Tensor | None, team: Team) -> Tensor | None:
    """Return the scores of all workers, in the order of their records, at worker 0, when all have done their parts.

    Args:
        scores: This worker's; ``None``: a party that gets none.
        team: The workers.

    Raises:
        TeamError: If a worker could not score its part.
    """
    if scores is None:
        team.collect(b"done")
        return None
    return team.whole(scores)
