"""Where an alignment in buckets keeps its ids, and the buckets that are done: beside the folder that is to be made.

::

    .NAME.buckets/buckets.json      what is aligned: a folder of other records or terms is not gone on with
    .NAME.buckets/7.ids             row in the party's own files (int64) and digest (64 bytes) of each id of bucket 7
    .NAME.buckets/7.done.npy        int64, (records, 2): row, -1 for a dummy, and new id; ascending by id
    .NAME.buckets/7.done.json       digest of the new ids; at the active party also records in common with each other

Digests of ids that can be guessed tell these ids: the folder is its owner's only, and goes when the alignment is there.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from splitvfl.data.id_column import (
    AS_IT_STANDS,
    DIGEST_BYTES,
    Case,
    Digests,
    check_id_column,
    first_repeat,
    id_digest,
    names_in,
    order_digest,
    repeated_id,
)
from splitvfl.data.sources import chunks, open_all
from splitvfl.errors import DataError
from splitvfl.exchange.psi import Rows
from splitvfl.exchange.psi_buckets import DoneBucket, bucket_of
from splitvfl.system.untrusted_files import MOST_BYTES, UntrustedFile, decoded, memory_of_machine, open_own, write_whole

FORMAT, VERSION = "splitvfl buckets", 1
FACTS_FILE = "buckets.json"

# What is gathered before it is put into files: 64 MiB of ids.
_LOAD_ROWS = (64 << 20) // (DIGEST_BYTES + 8)
_ENTRY = np.dtype([("row", "<i8"), ("digest", "u1", (DIGEST_BYTES,))])


def folder_of_buckets(out: Path) -> Path:
    """Return where the buckets of an alignment are kept until all are done."""
    return out.with_name(f".{out.name}.buckets")


class _Told(msgspec.Struct):
    """``NUMBER.done.json``."""

    order: str
    shared: dict[str, Annotated[int, msgspec.Meta(ge=0)]]


class BucketFolder:
    """The ids of one party in buckets, and what is done.

    Args:
        folder: The folder, which is there and its owner's only.
        files: The party's files.
        id_column: The column that names the records.
        case: Whether letter case counts.
        buckets: How many buckets there are.
        terms: What else must be as it was when it goes on.
        overwrite: Begin anew where the folder is of other records or terms, or damaged.

    Attributes:
        sizes: Records in each bucket, ``(buckets,)``, int64.
        fingerprint: :func:`splitvfl.data.id_column.fingerprint` of the id column.

    Raises:
        DataError: If the files cannot be read, an id is missing or there twice, or the folder is of other records or
            terms, or damaged.
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[Path],
        id_column: str,
        *,
        case: Case,
        buckets: int,
        terms: Mapping[str, object],
        overwrite: bool = False,
    ) -> None:
        self._folder, self._buckets, self._column = folder, buckets, id_column
        self._sources = open_all(files)
        check_id_column(self._sources, id_column)
        for left in folder.glob("*.ids"):  # the files may have changed
            left.unlink()
        self.sizes: Rows = np.zeros(buckets, np.int64)
        self.fingerprint = self._fill(case)
        for number in range(buckets):
            self._check_repeats(number)
        try:
            self._done = self._taken_up({**terms, "buckets": buckets, "ids": self.fingerprint})
        except DataError:
            if not overwrite:
                raise
            for left in (folder / FACTS_FILE, *folder.glob("*.done.*")):
                left.unlink()
            self._done = self._taken_up({**terms, "buckets": buckets, "ids": self.fingerprint})

    def _fill(self, case: Case) -> str:
        """Put all ids into their buckets, and return the fingerprint of the column."""
        digest, rows, waiting = hashlib.sha256(), 0, []
        for chunk in chunks(self._sources, {self._column: AS_IT_STANDS}):
            content = b"".join(map(id_digest, names_in(chunk, self._column, case)))
            digest.update(content)
            waiting.append(np.frombuffer(content, np.uint8).reshape(-1, DIGEST_BYTES))
            if sum(map(len, waiting)) >= _LOAD_ROWS:
                rows = self._put(np.concatenate(waiting), rows)
                waiting = []
        rows = self._put(np.concatenate([np.empty((0, DIGEST_BYTES), np.uint8), *waiting]), rows)
        if not rows:
            raise DataError(f"{self._sources[0].name} has a header and no rows")
        return digest.hexdigest()

    def _put(self, digests: Digests, first: int) -> int:
        numbers = bucket_of(digests, self._buckets)
        entries = np.empty(len(digests), _ENTRY)
        entries["row"], entries["digest"] = np.arange(first, first + len(digests)), digests
        counts = np.bincount(numbers, minlength=self._buckets)
        parts = np.split(entries[np.argsort(numbers, kind="stable")], np.cumsum(counts)[:-1])
        for number, part in enumerate(parts):
            if len(part):
                with open_own(self._ids_file(number), "ab", mode=0o666) as file:
                    file.write(part.tobytes())
        self.sizes += counts
        return first + len(digests)

    def _taken_up(self, facts: Mapping[str, object]) -> dict[int, DoneBucket]:
        """Return the buckets that are done, after a check that they are of these facts."""
        self._check_facts(facts)
        return {number: found for number in range(self._buckets) if (found := self._load(number)) is not None}

    def _check_facts(self, facts: Mapping[str, object]) -> None:
        path = self._folder / FACTS_FILE
        known = json.dumps({"format": FORMAT, "version": VERSION, "facts": dict(facts)}).encode()
        found = self._file(FACTS_FILE).json(dict[str, Any])
        if found is None:
            write_whole(path, known, mode=0o666)
            return
        if found != decoded(known):
            raise DataError(
                f"{self._folder} holds buckets of an alignment of other records, parties or terms, which was not "
                f"finished; {self._again}"
            )

    @property
    def _again(self) -> str:
        return "start anew with --overwrite, which removes it"

    def _check_repeats(self, number: int) -> None:
        rows, digests = self.read(number)
        repeat = first_repeat(digests)
        if repeat is not None:
            raise repeated_id(self._sources, self._column, [int(rows[place]) for place in repeat])

    def read(self, number: int) -> tuple[Rows, Digests]:
        """Return the rows of a bucket in the party's files, and the digests of their ids."""
        content = self._file(self._ids_file(number).name, most=memory_of_machine()).read()
        entries = np.frombuffer(content or b"", _ENTRY)
        return entries["row"].astype(np.int64), np.ascontiguousarray(entries["digest"])

    def done(self, number: int) -> DoneBucket | None:
        """Return what is kept of a bucket, if it is done."""
        return self._done.get(number)

    def keep(self, number: int, found: DoneBucket) -> None:
        """Keep what was found of a bucket on the disk."""
        told = {"order": order_digest(found.ids), "shared": dict(found.shared)}
        write_whole(self._folder / f"{number}.done.json", json.dumps(told).encode(), mode=0o666)
        content = io.BytesIO()
        np.save(content, np.stack([found.rows, found.ids], axis=1), allow_pickle=False)
        write_whole(self._folder / f"{number}.done.npy", content.getbuffer(), mode=0o666)
        self._done[number] = found
        self._ids_file(number).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder: the alignment is there."""
        shutil.rmtree(self._folder)

    def _ids_file(self, number: int) -> Path:
        return self._folder / f"{number}.ids"

    def _load(self, number: int) -> DoneBucket | None:
        path = self._folder / f"{number}.done.npy"
        if not path.exists():
            return None
        values = self._file(path.name, most=memory_of_machine()).array()
        told = self._file(f"{number}.done.json").present_json(_Told)
        if values.dtype != np.int64 or values.ndim != 2 or values.shape[1] != 2:
            raise DataError(f"{path} is damaged; {self._again}")
        rows, ids = np.ascontiguousarray(values.T)
        if ((rows < -1) | (rows >= int(self.sizes.sum()))).any() or (np.diff(ids) <= 0).any() or (ids < 0).any():
            raise DataError(f"{path} is damaged; {self._again}")
        # Of another order: it was being aligned again, and is so once more.
        return DoneBucket(rows, ids, told.shared) if order_digest(ids) == told.order else None

    def _file(self, name: str, *, most: int = MOST_BYTES) -> UntrustedFile:
        return UntrustedFile(path=self._folder / name, most=most, remedy=self._again, error=DataError)
