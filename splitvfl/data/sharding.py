"""Which shard a record belongs to: told by its id alone, so that all parties divide their records alike.

The shard of a record is SHA-256 of its id, of which the first 4 bytes are taken as a whole number (big-endian), modulo
the number of shards. The id is hashed in UTF-8 as :func:`splitvfl.data.id_column.normalised` writes it: a whole number
in decimal digits, text in Unicode's normal form C without blanks around it, with letter case folded if that is agreed
on. So a record that two parties hold is in the shard of the same number at both, whatever their files look like, and
no shard has to meet another one.

Shards that were written by one version are read by all later ones: they say by which version of the rule their ids are
written. It hides nothing: whoever can guess an id knows its shard. Nor is it random: who chooses ids can choose in
which shard they fall.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.data.chunks import Chunk
from splitvfl.data.id_column import AS_IT_STANDS, Case, check_id_column, names_in, normalised
from splitvfl.data.id_rules import ID_RULE, RuleVersion
from splitvfl.data.sources import chunks, open_all
from splitvfl.data.typed_cells import as_text, names_records
from splitvfl.errors import ArgumentError, ConfigError, DataError
from splitvfl.learning.batches import MOST_SHARDS

RULE: Final = "sha256, first 4 bytes, big-endian, mod"
"""What notes of shards call the rule."""

HASH_BYTES: Final = 32
_TAKEN: Final = 4

Hashes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_WRITTEN = re.compile(r"(\d+(?:,\d+)*)/(\d+)", re.ASCII)


def id_hashes(names: Iterable[str]) -> Hashes:
    """Return SHA-256 of ids, ``(n, 32)`` uint8.

    Args:
        names: Ids, as :func:`splitvfl.data.id_column.normalised` writes them.
    """
    sha256 = hashlib.sha256
    hashes = b"".join([sha256(name.encode()).digest() for name in names])
    return np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)


def shard_of(hashes: Hashes, shards: int) -> Numbers:
    """Return the shard of each record, from 0 to ``shards`` − 1, ``(n,)`` int64.

    Args:
        hashes: :func:`id_hashes` of their ids; of each row the first 4 bytes count.
        shards: How many there are, 1 to :data:`splitvfl.learning.batches.MOST_SHARDS`.

    Raises:
        ArgumentError: If the number of shards is out of its range.

    >>> shard_of(id_hashes(["7", "007", "Zoë"]), 8).tolist()
    [3, 1, 0]
    """
    check_shards(shards)
    first = np.ascontiguousarray(hashes[:, :_TAKEN]).view(">u4")[:, 0]
    return first.astype(np.int64) % shards


def check_shards(shards: int) -> None:
    """Check that records can be divided into so many shards.

    Raises:
        ArgumentError: If not.
    """
    if not 1 <= shards <= MOST_SHARDS:
        raise ArgumentError(f"expected 1 to {MOST_SHARDS} shards, got {shards}")


def shard_numbers(ids: object, shards: int, *, case: Case = "kept") -> Numbers:
    """Return the shard of each of some ids, for those who divide their records with another tool.

    Args:
        ids: An Arrow array, a NumPy array or a sequence, of whole numbers or text.
        shards: How many there are.
        case: Whether letter case counts (``"kept"``) or not (``"folded"``).

    Raises:
        ArgumentError: If the number of shards is out of its range, or an id is missing, empty, or of another type.

    >>> shard_numbers([7, 8], 8).tolist() == shard_numbers([" 7", "8 "], 8).tolist()
    True
    """
    column = pa.array(ids) if not isinstance(ids, pa.Array | pa.ChunkedArray) else ids
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not names_records(column.type):
        raise ArgumentError(f"expected ids that are whole numbers, text or UUIDs, got {column.type}")
    try:
        names = [normalised(name or "", case) for name in as_text(column).to_pylist()]
    except DataError as error:
        raise ArgumentError(f"id {error.row} (from 0): {error}") from error
    if "" in names:
        raise ArgumentError(f"id {names.index('')} (from 0) is missing or empty")
    return shard_of(id_hashes(names), shards)


@dataclass(frozen=True)
class HeldShards:
    """Some of the shards of a division.

    Attributes:
        numbers: Which, ascending.
        shards: How many there are in all.
        id_rule: Version of the rule by which ids are written (:mod:`splitvfl.data.id_column`).

    Raises:
        ArgumentError: If there is no such shard, or one is named twice.

    >>> str(HeldShards.read("3/8")), str(HeldShards((0, 1), 8))
    ('3 of 8', '0,1 of 8')
    """

    numbers: tuple[int, ...]
    shards: int
    id_rule: RuleVersion = field(default=ID_RULE, compare=False)

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_shards(self.shards)
        if not self.numbers or self.numbers[0] < 0 or self.numbers[-1] >= self.shards:
            raise ArgumentError(f"shards of {self.shards} are numbered from 0 to {self.shards - 1}, got {self._listed}")
        if any(after <= before for before, after in zip(self.numbers, self.numbers[1:], strict=False)):
            raise ArgumentError(f"expected numbers of shards, ascending and each once, got {self._listed}")

    @classmethod
    def read(cls, text: str) -> Self:
        """Return what is written as ``"3/8"``, or ``"3,4/8"``.

        Raises:
            ConfigError: If it is written otherwise.
        """
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise ConfigError(f"expected a shard and the number of shards, like 3/8 or 3,4/8, got {text!r}")
        return cls(tuple(map(int, found[1].split(","))), int(found[2]))

    @property
    def _listed(self) -> str:
        return ",".join(map(str, self.numbers))

    def __str__(self) -> str:
        """Say which of how many."""
        return f"{self._listed} of {self.shards}"

    def check(self, source: object, column: str, *, case: Case = "kept") -> None:
        """Check that every record of some files belongs here; their id column is read.

        Args:
            source: Files, as a :class:`splitvfl.data.spec.TableSpec` names them.
            column: The id column.
            case: Whether letter case counts.

        Raises:
            DataError: If one does not, with its place; or if ids cannot be read.
        """
        sources = open_all(source)
        check_id_column(sources, column)
        for chunk in chunks(sources, {column: AS_IT_STANDS}):
            self._check_chunk(chunk, column, case)

    def _check_chunk(self, chunk: Chunk, column: str, case: Case) -> None:
        numbers = shard_of(id_hashes(names_in(chunk, column, case, rule=self.id_rule)), self.shards)
        strange = np.flatnonzero(~np.isin(numbers, self.numbers))
        if strange.size:
            row = int(strange[0])
            raise DataError(
                f"{chunk.place(row)}, column {column!r}: id {chunk.columns[column][row].as_py()!r} belongs to shard "
                f"{numbers[row]} of {self.shards}, and these should be the records of shard {self}: were they divided "
                "by another rule, with another number of shards, or with letter case counted otherwise?"
            )
