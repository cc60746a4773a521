"""Digests by which data are known again: what a run began with, and what it was tested on.

They are of the records as they are trained on: encoded, divided and in their order. Whoever has a digest can try out
what it may be of, and few labels are soon tried, so these digests stay with the party whose data they are of.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from splitvfl.data.columns import PartyData, Records
from splitvfl.errors import DataError

SCHEMA, RECORDS, COLUMNS, LABELS, ORDER = "schema", "records", "columns", "labels", "order"
"""What there are digests of."""

# So many records and more are digested in the order in which they lie: rows of a table on disk are not picked singly.
_SORTED_BELOW = 1 << 22
# Rows that are read at once; records may be larger than memory.
_PIECE = 1 << 16

_CHANGED = {
    SCHEMA: "the names, kinds or encoding of {}'s columns",
    RECORDS: "the records of {} (their ids)",
    COLUMNS: "values in {}'s columns",
    LABELS: "the labels of {}",
    ORDER: "the order of {}'s records, or which of them are test records",
}


def data_digests(data: PartyData) -> dict[str, str]:
    """Return SHA-256 digests, in hexadecimal, of a party's schema, records, columns and, if it has any, labels.

    Ids, columns and labels of fewer than 2²² records are digested in the order of ids, so that what changed can be
    told apart; more of them in their own. How they are ordered and divided is a digest of its own. Every value is read
    once, and of so many records where it lies: data on disk need not fit into memory.
    """
    parts = (data.train, data.test)
    names = [data.column_names, data.numeric_names, data.field_names, data.field_sizes]
    inputs = [[part.columns[kind] for part in parts] for kind in range(2)]
    order = _order([part.ids for part in parts])
    found = {
        SCHEMA: hashlib.sha256(json.dumps(names).encode()).hexdigest(),
        RECORDS: _digest(_in_order([part.ids for part in parts], order)),
        COLUMNS: _digest(*(_in_order(values, order) for values in inputs)),
        ORDER: _digest(*([values] for part in parts for values in (part.ids, part.real))),
    }
    if data.train.labels is not None:
        found[LABELS] = _digest(_in_order([part.labels for part in parts], order))
    return found


def _order(ids: Sequence[Tensor]) -> Tensor | None:
    whole = sum(part.numel() for part in ids)
    return torch.cat([part.cpu() for part in ids]).argsort(stable=True) if whole < _SORTED_BELOW else None


def _in_order(parts: Sequence[Tensor | None], order: Tensor | None) -> Sequence[Tensor | None]:
    known = [part.cpu() for part in parts if part is not None and part.shape[0]]
    if order is None or sum(part.shape[0] for part in known) != order.numel():
        return parts
    return [torch.cat(known)[order]] if known else []


def _digest(*groups: Sequence[Tensor | None]) -> str:
    digest = hashlib.sha256()
    for tensor in itertools.chain(*groups):
        if tensor is None:
            digest.update(b"none;")
            continue
        values = tensor.detach().cpu().contiguous().numpy()
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{little.dtype.str} {little.shape};".encode())
        digest.update(little.reshape(-1).view("u1").data)
    return digest.hexdigest()


def encoded_digest(records: Records) -> str:
    """Return SHA-256 of ids, numbers and codes of records in their order, in hexadecimal.

    Numbers count as they were encoded, before rows are scaled down to a norm. Labels are not looked at.
    """
    digest = hashlib.sha256(b"splitvfl records 1\0")
    for rows in torch.arange(records.count).split(_PIECE):
        columns = records.columns.rows(rows)
        for values, kind in (
            (records.ids[rows], "<i8"),
            (columns.numeric, "<f4"),
            (columns.categorical, "<i8"),
        ):
            digest.update(f"{tuple(values.shape)}".encode())
            digest.update(np.ascontiguousarray(values.cpu().numpy(), kind).data)
    return digest.hexdigest()


def changed_data(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return in words what differs between two times, of each party that both know; nothing if all is the same.

    Where names or ids differ, values cannot be compared, and are not spoken of. Nor are those of any party where
    records or labels changed: which records are test records depends on the labels, and numbers are scaled as training
    records ask for. Nor is the order, where anything else changed at all.

    Args:
        before: Digests (:func:`data_digests`) by party.
        now: The same, later.
    """
    known = sorted(before.keys() & now.keys())
    found = [(what, party) for party in known for what in _differing(before[party], now[party])]
    hidden = {ORDER, COLUMNS} if {what for what, _ in found} & {RECORDS, LABELS} else {ORDER}
    told = [entry for entry in found if entry[0] not in hidden] or found
    return [_CHANGED[what].format(party) for what, party in told]


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    found = [what for what in _CHANGED if before.get(what) != now.get(what)]
    if RECORDS in found:
        return [what for what in found if what in (SCHEMA, RECORDS)]
    return [what for what in found if what in (SCHEMA, LABELS)] if SCHEMA in found else found


def refuse_changed_data(
    before: Mapping[str, Mapping[str, str]] | None,
    now: Mapping[str, Mapping[str, str]],
    *,
    where: object,
    notify: Callable[[str], None],
) -> None:
    """Refuse to go on with other data than a run began with.

    Args:
        before: Digests by party, as the run began; ``None`` if an older version began it, which kept none.
        now: Digests by party.
        where: The run's folder.
        notify: Told in one line that nothing could be compared.

    Raises:
        DataError: If any party's data changed; it says what of whose.
    """
    if before is None:
        notify(f"{where}: an older version began this run and noted no data: that they are the same is not checked")
    elif changed := changed_data(before, now):
        raise DataError(
            f"{where}: the data have changed since this run began: {'; '.join(changed)}. A run goes on with "
            "the data that it began with: bring them back, or start anew with --overwrite or in another folder"
        )
