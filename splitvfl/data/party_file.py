"""One party's data out of its own file: no other party's columns, models or secrets are needed, or known."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.data.alignment import Alignment, fill_dummies, read_alignment
from splitvfl.data.columns import PartyData, Provenance, Records, TaskName
from splitvfl.data.doubts import doubts_of, label_doubts
from splitvfl.data.encoding import Encoded, FittedEncoding
from splitvfl.data.hashing import are_tested
from splitvfl.data.labels import Labels, are_missing, check_split, read_labels
from splitvfl.data.load import as_written, check_input, fit, numbers_of_rows, party_of, read_source, records_of
from splitvfl.data.named_rows import rows_called
from splitvfl.data.partition import REST
from splitvfl.data.schema import PARTS, Part, Role
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.spelling import setting
from splitvfl.data.split import check_both_parts
from splitvfl.data.tables import Rows, column_of
from splitvfl.errors import ArgumentError, DataError


class PartyFile(NamedTuple):
    """What one party holds, and what is learned.

    Attributes:
        data: Its records.
        task: What is learned; ``None`` at a passive party, which need not know.
        classes: 2 for binary, k for multi-class, 1 for regression; 0 at a passive party.
        encoding: How its columns became numbers, to be kept for new records.
    """

    data: PartyData
    task: TaskName | None
    classes: int
    encoding: FittedEncoding


def load_party(spec: TableSpec, party: PartyClaim, *, aligned: str | os.PathLike[str] | None = None) -> PartyFile:
    """Return what one party holds, encoded, and split into training and test records.

    The split looks at each record's id alone (:func:`splitvfl.data.hashing.are_tested`), as that of ``splitvfl
    ingest`` does: parties with the same ids, seed and fraction split alike without talking. Aligned records are in the
    order of their new ids. Others are in the file's order, called by the id column
    (:mod:`splitvfl.data.id_column`), or numbered from 0 without one: parties must then have the same records in the
    same order.

    Dummies of a padded alignment, which the active party does not hold, get the columns and the label of a random
    record of their part, the same at every call: what they are filled from is kept in the alignment folder. They are
    marked in :attr:`splitvfl.data.columns.Records.real`.

    Args:
        spec: The party's table. The label column is named at the active party, and there only. The id column is that of
            the alignment if none is named.
        party: The party. Columns that it does not claim are left out.
        aligned: The folder that ``splitvfl align`` wrote.

    Raises:
        ArgumentError: If a setting does not go with the role or the alignment.
        DataError: If the file, its columns, labels or records are not what was asked for, or not those that were
            aligned.
    """
    _check(spec, party)
    name = party.name
    alignment = None
    if aligned is not None:
        alignment = own_alignment(read_alignment(aligned), name, party.role, spec.id_column)
        spec = replace(spec, id_column=alignment.schema.id_column)
    table, origin = read_source(spec)
    source = origin.name
    division = spec.divide(table.column_names, _with_nobody(party), source=source)
    table, written = as_written(spec, division, table, division.held[name], origin)
    if alignment is None:
        order = RecordOrder(numbers_of_rows(table, spec, source), np.arange(table.num_rows, dtype=np.int64))
    else:
        alignment.check_source(spec.source)
        order = RecordOrder.of(alignment)
        table, source = order.taken(table), f"{source} (rows counted as they are aligned)"
    tested = are_tested(order.ids, seed=spec.split_seed, fraction=spec.test_fraction)
    split = np.flatnonzero(~tested[order.real]), np.flatnonzero(tested[order.real])
    check_both_parts(sum(map(len, split)), len(split[1]), test_fraction=spec.test_fraction, source=name)
    held, called = division.held[name], spec.id_column
    with rows_called(called, None if called is None else table.column(called)):
        labels, classes = _labels(spec, table, source, split)
        fitted = fit(spec, division, table, held, train=split[0], source=source)
        encoded = fitted.apply(table, source=source)
    check_input(party, encoded, split[0], source=source)
    train, test = (_records(part, order, tested, encoded, labels) for part in PARTS)
    provenance = Provenance(encoding=fitted, id_column=spec.id_column, id_rule=spec.id_rule)
    doubts = doubts_of(table, held, categories=spec.categories(division, source=source), written=written)
    if spec.label is not None:
        doubts += label_doubts(table, spec.label)
    data = party_of(name, held, encoded, train, test, provenance, doubts, divided_by_ids=True)
    return PartyFile(data, spec.task if party.role == "active" else None, classes, fitted)


def _check(spec: TableSpec, party: PartyClaim) -> None:
    if party.role == "active" and spec.label is None:
        raise ArgumentError(
            f"the active party holds the labels: expected the name of the label column ({setting('label')}), got none"
        )
    if party.role == "passive" and spec.label is not None:
        raise ArgumentError(f"a passive party holds no labels, got label {spec.label!r}; drop the column if it has one")
    if spec.split_column is not None:
        raise ArgumentError("a party's own records are split by their ids, as at the others; give no split column")


def own_alignment(alignment: Alignment, name: str, role: Role, id_column: str | None) -> Alignment:
    """Return an alignment after a check that it is this party's, by this id column if one is named.

    Raises:
        DataError: If it is not.
    """
    schema = alignment.schema
    if (schema.party, schema.role) != (name, role):
        raise DataError(
            f"{alignment.folder} was aligned by {schema.party} as the {schema.role} party, not by {name} as the {role} "
            "one; name this party's own folder, or align again"
        )
    if id_column is not None and id_column != schema.id_column:
        raise DataError(
            f"{alignment.folder} was aligned by column {schema.id_column!r}, got id column {id_column!r}; leave it "
            "out, or align again"
        )
    return alignment


def _with_nobody(party: PartyClaim) -> list[PartyClaim]:
    """Return the claims on a party's own table: what it does not claim belongs to nobody, and is left out."""
    return [party] if party.columns == REST else [party, PartyClaim(f"not {party.name}", "active", REST)]


@dataclass(frozen=True, eq=False)
class RecordOrder:
    """The records of one party in their order.

    Attributes:
        ids: Their ids.
        rows: Their rows in the file; negative for a dummy.
        seed: What decides how dummies are filled.
    """

    ids: Rows
    rows: Rows
    seed: int = 0

    @classmethod
    def of(cls, alignment: Alignment) -> RecordOrder:
        """Return the order of aligned records."""
        return cls(alignment.ids, alignment.rows, alignment.seed)

    @property
    def real(self) -> npt.NDArray[np.bool_]:
        """Which records are no dummies."""
        return self.rows >= 0

    def taken(self, table: pa.Table) -> pa.Table:
        """Return the rows of the file's table that are no dummies, in their order."""
        return table.take(pa.array(self.rows[self.real])).combine_chunks()


def _labels(spec: TableSpec, table: pa.Table, source: str, split: Sequence[Rows]) -> tuple[Labels | None, int]:
    if spec.label is None:
        return None, 0
    where = f"label column {spec.label!r} of {source}"
    target = column_of(table, spec.label, source=source)
    _check_labelled(target, where)
    labels, classes = read_labels(target, task=spec.task, positive=spec.positive, source=where)
    check_split(labels, split[0], split[1], task=spec.task, source=where)
    return labels, classes


def _check_labelled(labels: pa.Array, where: str) -> None:
    """Refuse records without a label, whatever is set: the partner has them too.

    Left out now, their ids would be missing in what is sent, and show the partner which outcomes are not known yet.
    """
    missing = are_missing(labels)
    if missing.any():
        error = DataError(
            f"{where} has no value in {missing.sum()} rows, first in row {missing.argmax()} (from 0); the partner has "
            f"these records too, and {setting('unlabelled', 'drop')} would show it which outcomes are not known yet: "
            "take them out of the file, and align what is left (splitvfl align)"
        )
        error.row = int(missing.argmax())
        raise error


def _records(
    part: Part, order: RecordOrder, tested: npt.NDArray[np.bool_], encoded: Encoded, labels: Labels | None
) -> Records:
    mask = tested if part == "test" else ~tested
    real = order.real[mask]
    rows = fill_dummies(np.flatnonzero(mask[order.real]), real, seed=order.seed, part=part)
    return records_of(encoded, order.ids[mask], rows, labels, real=real)
