"""Small table folders, as ingesting writes them, from columns in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splitvfl.data.columns import Columns, PartyData, Records, TaskName, VerticalData
from splitvfl.data.schema import (
    FORMAT,
    SCHEMA_FILE,
    VERSION,
    DataSchema,
    IdRule,
    LabelSchema,
    Part,
    PartyRole,
    PartySchema,
    Role,
    SplitRule,
    write_schema,
)


def click_data(train: int = 600, test: int = 200, *, task: TaskName = "binary", classes: int = 2) -> VerticalData:
    """A shop with labels and numbers, a publisher with numbers and categories, and a bank with categories only."""
    random = torch.Generator().manual_seed(0)
    ids = {
        part: torch.randint(-(2**60), 2**60, (count,), generator=random)
        for part, count in (("train", train), ("test", test))
    }
    label = (classes, torch.int64 if task == "multiclass" else torch.float32)
    shop = _party("shop", 3, (), ids, random, label=label)
    passives = {"publisher": _party("publisher", 4, (30, 5), ids, random), "bank": _party("bank", 0, (7,), ids, random)}
    return VerticalData("clicks", task, classes, shop, passives, "clicks that were made up")


def _party(
    name: str,
    width: int,
    sizes: tuple[int, ...],
    ids: dict[str, Tensor],
    random: torch.Generator,
    *,
    label: tuple[int, torch.dtype] | None = None,
) -> PartyData:
    parts = {}
    for part, own in ids.items():
        codes = torch.zeros(own.numel(), len(sizes), dtype=torch.int32)
        for field, size in enumerate(sizes):
            codes[:, field] = torch.randint(size, (own.numel(),), generator=random)
        numeric = torch.randn(own.numel(), width, generator=random)
        labels = None if label is None else torch.randint(label[0], own.shape, generator=random).to(label[1])
        parts[part] = Records(own, Columns(numeric, codes), labels)
    numbers = tuple(f"{name}{number}" for number in range(width))
    fields = tuple(f"{name} field {number}" for number in range(len(sizes)))
    return PartyData(name, (*numbers, *fields), numbers, sizes, parts["train"], parts["test"], fields)


def write_tables(folder: Path, data: VerticalData) -> Path:
    """Write a data set, and return its folder."""
    folder.mkdir()
    roles: dict[str, Role] = {data.active.name: "active", **dict.fromkeys(data.passives, "passive")}
    for name, role in roles.items():
        _write_party(folder / name, data[name], role, data)
    schema = DataSchema(
        format=FORMAT,
        version=VERSION,
        name=data.name,
        task=data.task,
        classes=data.classes,
        description=data.description,
        rows=_rows(data.active),
        positive_share=None,
        label_column="click",
        ids=IdRule(column="id", rule="integer"),
        split=SplitRule(rule="hash", fraction=0.25, seed=0),
        dropped=(),
        parties=tuple(PartyRole(name=name, role=role) for name, role in roles.items()),
    )
    write_schema(folder / SCHEMA_FILE, schema)
    return folder


def _rows(party: PartyData) -> dict[Part, int]:
    return {"train": party.train.count, "test": party.test.count}


def _write_party(folder: Path, party: PartyData, role: Role, data: VerticalData) -> None:
    folder.mkdir()
    for part, records in (("train", party.train), ("test", party.test)):
        arrays = {"ids": records.ids, "numeric": records.columns.numeric, "codes": records.columns.categorical}
        if records.labels is not None:
            arrays["labels"] = records.labels
        for what, values in arrays.items():
            np.save(folder / f"{part}.{what}.npy", values.numpy(), allow_pickle=False)
    label = LabelSchema(column="click", kind="integer", values=(0.0, 1.0), positive=1)
    schema = PartySchema(
        format=FORMAT,
        version=VERSION,
        name=party.name,
        role=role,
        task=data.task,
        classes=data.classes,
        rows=_rows(party),
        column_names=party.column_names,
        numeric_names=party.numeric_names,
        field_names=party.field_names,
        field_sizes=party.field_sizes,
        encoders=(),
        label=label if role == "active" else None,
        agreed="",
        id_fingerprints={"train": "", "test": ""},
    )
    write_schema(folder / SCHEMA_FILE, schema)
