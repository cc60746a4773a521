"""Table folders, as ingesting writes them (:mod:`splitvfl.data.schema`), opened without being read.

Arrays are mapped into memory: a row is read from the disk when it is asked for, what was read may be dropped again when
memory is short, and what is written to a tensor never reaches the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from splitvfl.data.columns import LABEL_DTYPES, Columns, PartyData, Provenance, Records, TaskName, VerticalData
from splitvfl.data.ingested_doubts import doubts_of_encoders
from splitvfl.data.schema import (
    PARTS,
    SCHEMA_FILE,
    Part,
    PartyRole,
    PartySchema,
    Role,
    read_data_schema,
    read_party_schema,
)
from splitvfl.data.tables import did_you_mean
from splitvfl.errors import ArgumentError, DataError
from splitvfl.system.untrusted_files import MOST_LARGE, UntrustedFile

# Ids of two parties are compared in pieces of 8 MiB.
_PIECE = 1 << 20


def open_tables(path: str | os.PathLike[str], *, parties: Mapping[str, Role] | None = None) -> VerticalData:
    """Return a data set whose records stay on disk until they are asked for.

    Everything that takes no look at every row is checked: versions, names, numbers of rows and columns, dtypes, and
    that files are complete. Record ids are compared between the parties, all of them. Codes are not, here: a model
    refuses one that is out of its field's range when it meets it.

    Folders of parties that ingested apart, put into one folder without a ``schema.json`` of its own, are opened alike,
    once they are seen to have agreed on ids and split. Files that were encoded like earlier ones hold test records
    only, for :func:`splitvfl.exchange.prediction.predict`; there, labels may be missing.

    Args:
        path: The folder that ingesting wrote, or one that holds the folders of single parties.
        parties: Names and roles of the parties wanted, in the order wanted: the active one, and one passive party at
            least. Passive parties that are not named are left out. Default: all, in the order of the folder.

    Raises:
        ArgumentError: If ``parties`` names a party that is not there, in the other role, or none of a role.
        DataError: If the folder or a file is missing, damaged, of another version, or does not fit the others.
    """
    folder = Path(path)
    schema = _whole(folder)
    roles = _roles(schema, folder)
    names = list(roles) if parties is None else _chosen(parties, roles, folder)
    active = next(name for name in names if roles[name] == "active")
    opened = {name: _opened(folder / name, schema, roles[name]) for name in names}
    for data in opened.values():
        _check_ids(folder, opened[active], data)
    return VerticalData(
        name=schema.name,
        task=schema.task,
        classes=schema.classes,
        active=opened.pop(active),
        passives=opened,
        description=schema.description,
    )


def open_party(path: str | os.PathLike[str]) -> PartyData:
    """Return what one party holds, out of its own folder; nothing else is looked at.

    Args:
        path: The party's folder.

    Raises:
        DataError: If the folder or a file is missing, damaged or of another version.
    """
    # Its own folder does not say what divides the records.
    return _party_data(Path(path), read_party_schema(Path(path)), by_ids=False)


@dataclass(frozen=True)
class _Whole:
    """What is known of a data set, beside its parties' folders."""

    name: str
    task: TaskName
    classes: int
    description: str
    rows: Mapping[Part, int]
    parties: tuple[PartyRole, ...]
    together: bool = True
    by_ids: bool = True


def _whole(folder: Path) -> _Whole:
    own = [path.parent for path in sorted(folder.glob(f"*/{SCHEMA_FILE}"))]
    if own and not (folder / SCHEMA_FILE).exists():
        return _joined(folder, [read_party_schema(path) for path in own])
    schema = read_data_schema(folder)
    facts = (schema.name, schema.task, schema.classes, schema.description, schema.rows, schema.parties)
    return _Whole(*facts, by_ids=schema.split.rule != "column")


def _joined(folder: Path, parties: Sequence[PartySchema]) -> _Whole:
    """Return what parties that ingested apart make together; only the active one knows what is learned."""
    apart = [party.name for party in parties if party.agreed != parties[0].agreed]
    if apart:
        raise DataError(
            f"{folder}: {parties[0].name} and {apart[0]} did not agree on the kind of ids, the split seed and the test "
            "fraction; ingest one of them again"
        )
    knows = max(parties, key=lambda party: party.role == "active")
    roles = tuple(PartyRole(name=party.name, role=party.role) for party in parties)
    return _Whole(
        folder.name, knows.task, knows.classes, "parties that ingested apart", knows.rows, roles, together=False
    )


def _opened(folder: Path, whole: _Whole, role: Role) -> PartyData:
    """Return a party's data, once what its own folder says is what the data set says of it."""
    schema = read_party_schema(folder)
    facts = ["name", "role", "rows", *(("task", "classes") if whole.together else ())]
    expected = {"name": folder.name, "role": role, "rows": whole.rows, "task": whole.task, "classes": whole.classes}
    for what in facts:
        if (got := getattr(schema, what)) != expected[what]:
            raise DataError(
                f"{folder / SCHEMA_FILE}: expected {what} {expected[what]!r}, as the others have it, got {got!r}; "
                "ingest all parties together, or alike"
            )
    if role == "active" and schema.label is None and schema.rows["train"] > 0:
        raise DataError(f"{folder / SCHEMA_FILE}: the files were ingested without labels; nothing can be learned")
    return _party_data(folder, schema, by_ids=whole.by_ids)


def _party_data(folder: Path, schema: PartySchema, *, by_ids: bool) -> PartyData:
    if len(schema.field_sizes) != len(schema.field_names) or min(schema.field_sizes, default=1) < 1:
        raise DataError(
            f"{folder / SCHEMA_FILE}: expected a size from 1 for each of {len(schema.field_names)} fields, "
            f"got {list(schema.field_sizes)}"
        )
    train, test = (_records(folder, schema, part) for part in PARTS)
    names = (schema.column_names, schema.numeric_names)
    return PartyData(
        schema.name,
        *names,
        schema.field_sizes,
        train,
        test,
        field_names=schema.field_names,
        provenance=Provenance(tables=folder),
        doubts=doubts_of_encoders(schema.encoders, schema.rows.get("train", 0)),
        selected_by_label=schema.label is not None and schema.label.left_out > 0,
        divided_by_ids=by_ids,
    )


def _records(folder: Path, schema: PartySchema, part: Part) -> Records:
    rows, width, fields = schema.rows.get(part, 0), len(schema.numeric_names), len(schema.field_sizes)
    label_dtype = LABEL_DTYPES[schema.task]
    return Records(
        _mapped(folder / f"{part}.ids.npy", (rows,), "<i8"),
        Columns(
            _mapped(folder / f"{part}.numeric.npy", (rows, width), "<f4"),
            _mapped(folder / f"{part}.codes.npy", (rows, fields), "<i4"),
        ),
        None if schema.label is None else _mapped(folder / f"{part}.labels.npy", (rows,), label_dtype),
        real=_mapped(folder / f"{part}.real.npy", (rows,), "|b1") if schema.dummies else None,
    )


def _mapped(file: Path, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Return a tensor that is backed by a file, after a check of its header and its length."""
    again = "ingest the data again"
    # A table folder's owner may keep its large arrays elsewhere, behind links.
    found, columns_first, found_dtype, offset = UntrustedFile(
        path=file, most=MOST_LARGE, linked=True, remedy=again, error=DataError
    ).array_head()
    if found != shape or found_dtype != np.dtype(dtype) or columns_first:
        order = ", column by column" if columns_first else ""
        raise DataError(
            f"{file}: expected {np.dtype(dtype)} of shape {shape}, row by row, as {SCHEMA_FILE} beside it says, "
            f"got {found_dtype} of shape {found}{order}; {again}"
        )
    return torch.from_numpy(np.memmap(file, found_dtype, mode="c", offset=offset, shape=shape))


def _roles(schema: _Whole, folder: Path) -> dict[str, Role]:
    """Return the parties' roles by name, in the order of the folder."""
    roles = {party.name: party.role for party in schema.parties}
    # A name that leads out of the folder is none that ingesting wrote.
    strange = [name for name in roles if Path(name).name != name]
    if strange or len(roles) < len(schema.parties):
        raise DataError(f"{folder / SCHEMA_FILE}: expected parties with different plain names, got {list(roles)}")
    counts = [list(roles.values()).count(role) for role in ("active", "passive")]
    if counts[0] != 1 or counts[1] < 1:
        raise DataError(
            f"{folder}: expected one active party and at least one passive party, got {counts[0]} and {counts[1]}; to "
            "train in one process, ingest the columns of all parties together, or put the parties' folders into one"
        )
    return roles


def _chosen(parties: Mapping[str, Role], roles: Mapping[str, Role], folder: Path) -> list[str]:
    for name, role in parties.items():
        if name not in roles:
            raise ArgumentError(f"{folder} holds no party {name!r}{did_you_mean(name, roles)}")
        if role != roles[name]:
            raise ArgumentError(f"party {name!r} of {folder} was ingested as {roles[name]}, got {role}")
    if len(set(parties.values())) < 2:
        raise ArgumentError(f"expected the active party and one passive party at least, got {', '.join(parties)}")
    return list(parties)


def _check_ids(folder: Path, active: PartyData, passive: PartyData) -> None:
    for part in PARTS:
        ours, theirs = (getattr(data, part).ids.numpy() for data in (active, passive))
        place = _first_difference(ours, theirs)
        if place is not None:
            raise DataError(
                f"{folder / passive.name / f'{part}.ids.npy'}: expected the ids of {active.name}, in their order, got "
                f"{theirs[place]} and not {ours[place]} in row {place} (from 0); ingest both with the same id column "
                "and split seed"
            )


def _first_difference(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> int | None:
    for start in range(0, left.size, _PIECE):
        differs = left[start : start + _PIECE] != right[start : start + _PIECE]
        if differs.any():
            return start + int(differs.argmax())
    return None
