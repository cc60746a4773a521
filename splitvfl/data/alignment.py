"""The alignment folder: which of a party's own rows are common to all parties, under which new ids, in which order.

::

    aligned/bank/alignment.json     AlignmentSchema: who, how, how many, and of which file
    aligned/bank/rows.npy           int64, (records,): row in the party's own file, from 0; -1 for a dummy
    aligned/bank/ids.npy            int64, (records,): the new ids, ascending, the same at every party

It is written when an alignment is complete, and says nothing of the others but their names and numbers of records. Keep
it to yourself all the same: it says which of your records your partners have.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from splitvfl.data.chunks import Mask
from splitvfl.data.id_column import Case, fingerprint, order_digest, read_digests
from splitvfl.data.id_rules import FIRST_RULE, RuleVersion
from splitvfl.data.schema import PARTS, Part, Role, has_format, read_schema, write_schema
from splitvfl.data.sources import open_all
from splitvfl.data.writing import NpyWriter, check_target, draft
from splitvfl.errors import DataError
from splitvfl.system.private_folder import make_parents
from splitvfl.system.untrusted_files import UntrustedFile, memory_of_machine

FORMAT = "splitvfl alignment"
VERSION = 1
ALIGNMENT_FILE = "alignment.json"

Rows = npt.NDArray[np.int64]


class AlignmentSchema(msgspec.Struct, frozen=True, kw_only=True):
    """``alignment.json``: what was aligned.

    Attributes:
        format: Always :data:`FORMAT`.
        version: Version of the format.
        party: Whose folder it is.
        role: Its role.
        sizes: Number of records that each party had, its own included.
        shared: At the active party, records in common with each passive party; empty at a passive one.
        mode: ``"both"`` or ``"padded"``, see :mod:`splitvfl.exchange.psi`.
        padding: Dummies per common record that were asked for.
        records: Number of aligned records, dummies included.
        dummies: Those that the active party does not hold; 0 at a passive party, which cannot tell.
        digest: :func:`splitvfl.data.id_column.order_digest` of the ids: the same at all parties.
        files: Names of the party's own files.
        id_column: Their id column.
        case: Whether letter case counted.
        id_rule: Version of the rule by which ids are written (:mod:`splitvfl.data.id_column`).
        source: :func:`splitvfl.data.id_column.fingerprint` of that column.
        secret: What dummies are filled from, in hexadecimal: a random number of this party alone.
        shards: Which shards of how many were aligned, in words; empty where all records were.
    """

    format: str = FORMAT
    version: int = VERSION
    party: str
    role: Role
    sizes: dict[str, int]
    shared: dict[str, int]
    mode: Literal["both", "padded"]
    padding: float
    records: int
    dummies: int
    digest: str
    files: tuple[str, ...]
    id_column: str
    case: Case
    id_rule: RuleVersion = FIRST_RULE
    source: str
    secret: str
    shards: str = ""


@dataclass(frozen=True, eq=False)
class Alignment:
    """An alignment, as one party keeps it.

    Attributes:
        rows: Row in the party's own file, -1 for a dummy, ``(records,)``, int64.
        ids: The new ids, ascending, ``(records,)``, int64.
        schema: What was aligned.
        folder: Where it lies.
    """

    rows: Rows
    ids: Rows
    schema: AlignmentSchema
    folder: Path

    @property
    def real(self) -> Mask:
        """Which records the party holds: all of them but dummies."""
        return self.rows >= 0

    @property
    def kept(self) -> Mask:
        """Which rows of the party's file are aligned, ``(rows,)``."""
        kept = np.zeros(self.schema.sizes[self.schema.party], bool)
        kept[self.rows[self.real]] = True
        return kept

    @cached_property
    def row_ids(self) -> Rows:
        """New ids of the rows that are aligned, in the file's order."""
        return self.ids[self.real][np.argsort(self.rows[self.real])]

    @property
    def seed(self) -> int:
        """What decides how dummies are filled."""
        return int(self.schema.secret, 16)

    def check_source(self, source: object) -> None:
        """Check that records are still those that were aligned, as far as their id column goes; it is read.

        Args:
            source: Where they are, as a :class:`splitvfl.data.spec.TableSpec` names it.

        Raises:
            DataError: If they are not, or cannot be read.
        """
        digests = read_digests(source, self.schema.id_column, case=self.schema.case, rule=self.schema.id_rule)
        if fingerprint(digests) != self.schema.source:
            named = ", ".join(one.name for one in open_all(source))
            expected = self.schema.sizes[self.schema.party]
            counts = f"{expected} then, {len(digests)} now" if expected != len(digests) else f"{expected} both times"
            raise DataError(
                f"column {self.schema.id_column!r} of {named} is not the one that was aligned in {self.folder} "
                f"({counts}): records have changed, or their order; align again, or bring the aligned file back"
            )


def check_alignment_target(folder: Path, *, overwrite: bool) -> None:
    """Check that an alignment may be written there; the folder around it is made.

    Raises:
        DataError: If something is there that may not be replaced.
    """
    make_parents(folder)
    check_target(folder, overwrite=overwrite, holds="aligned records", recognised=_is_alignment)


def write_alignment(
    folder: str | os.PathLike[str], rows: Rows, ids: Rows, schema: AlignmentSchema, *, overwrite: bool = False
) -> Alignment:
    """Write an alignment and return it; the folder appears when it is complete, for its owner only.

    Args:
        folder: The folder to be made.
        rows: See :class:`Alignment`.
        ids: See :class:`Alignment`.
        schema: What was aligned.
        overwrite: Replace an alignment that is there already.

    Raises:
        DataError: If something is there that may not be replaced.
    """
    target = Path(folder)
    check_alignment_target(target, overwrite=overwrite)
    kept = draft(target, overwrite=overwrite, holds="aligned records", recognised=_is_alignment, private=True)
    with kept as inside:
        for name, values in (("rows", rows), ("ids", ids)):
            with NpyWriter(inside / f"{name}.npy", (len(values),), "<i8") as writer:
                writer.append(values)
        write_schema(inside / ALIGNMENT_FILE, schema)
    return Alignment(rows, ids, schema, target)


def _is_alignment(folder: Path) -> bool:
    return has_format(folder / ALIGNMENT_FILE, FORMAT)


def read_alignment(folder: str | os.PathLike[str]) -> Alignment:
    """Return an alignment; the file that was aligned is not looked at, see :meth:`Alignment.check_source`.

    Raises:
        DataError: If there is none, it has another version, or is damaged.
    """
    path = Path(folder)
    what = "an alignment, as `splitvfl align` writes it"
    schema = read_schema(
        path / ALIGNMENT_FILE, AlignmentSchema, what=what, wanted=FORMAT, version=VERSION, again="align again"
    )
    rows, ids = (_read_array(path / f"{name}.npy", schema.records) for name in ("rows", "ids"))
    dummies, repeats = int((rows < 0).sum()), len(np.unique(rows[rows >= 0]))
    fits = dummies == schema.dummies and repeats == schema.records - dummies
    if not fits or order_digest(ids) != schema.digest or (np.diff(ids) <= 0).any():
        raise DataError(f"{path}: rows or ids are not those that {ALIGNMENT_FILE} tells of; it is damaged: align again")
    return Alignment(rows, ids, schema, path)


def aligned_rows(folder: str | os.PathLike[str], source: object) -> Alignment:
    """Return an alignment after a check that these are the records that were aligned.

    Raises:
        DataError: If they are not, or there is no alignment.
    """
    alignment = read_alignment(folder)
    alignment.check_source(source)
    return alignment


def fill_dummies(places: npt.NDArray[np.int64], real: Mask, *, seed: int, part: Part) -> npt.NDArray[np.int64]:
    """Return where each record's columns and label come from: a dummy's from a random real record of its part.

    Args:
        places: Where the real records' lie, in their order, ``(real records,)``.
        real: Which records are real, ``(records,)``.
        seed: Decides what fills the dummies.
        part: The part that all of these belong to.
    """
    filled = np.empty(len(real), np.int64)
    filled[real] = places
    if not real.all() and len(places):
        generator = np.random.Generator(np.random.PCG64([seed, PARTS.index(part)]))
        filled[~real] = generator.choice(places, int((~real).sum()))
    return filled


def _read_array(path: Path, records: int) -> Rows:
    most = memory_of_machine()
    file = UntrustedFile(path=path, most=most, says="cannot be read", remedy="align again", error=DataError)
    head = file.array_head()
    if head.dtype != np.int64 or head.shape != (records,):
        raise DataError(f"{path}: expected {records} of int64, got {head.dtype} of shape {head.shape}; align again")
    return file.array()
