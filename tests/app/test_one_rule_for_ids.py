"""What trains together scores together, and nothing else: one rule for ids at every command.

Every cell below, as a file holds it, is looked for among records whose ids are all different, by each command's own
code. It must be found as the one that the rule says, and as none of the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from splitvfl import from_tables
from splitvfl.app.teacher import _ScoreFile
from splitvfl.config.sections import DataConfig
from splitvfl.data.columns import Provenance
from splitvfl.data.id_column import id_digest, read_digests
from splitvfl.data.ingest.run import ingest_like
from splitvfl.data.joint_records import read_joint_records
from splitvfl.data.new_records import read_new_records
from splitvfl.data.party_file import PartyFile
from splitvfl.data.record_index import RecordIndex, asked_digests
from splitvfl.data.score_file import write_scores
from splitvfl.data.shard_files import shard_file
from splitvfl.data.shard_writing import shard
from splitvfl.data.sharding import id_hashes, shard_of
from splitvfl.errors import DataError
from splitvfl.run.record_counts import record_forms
from tests.tables import ingest, load_party

KEY: Final = "123e4567-e89b-12d3-a456-4266141740ab"
LARGE: Final = str(2**63 + 7)
# Ids of which no two are the same.
NAMES: Final = ("7", "007", "+7", "7.0", "-7", "0", LARGE, "Zo\u00eb", "ZO\u00cb", KEY, KEY.replace("-", ""), "7a")
FILL: Final = 24
RUN: Final = "1" * 32


class Cell(NamedTuple):
    """A cell: as text in a CSV file, or of a type in a Parquet file; and the id that it is."""

    value: Any
    kind: pa.DataType | None
    name: str


CELLS: Final = (
    *(Cell(name, None, name) for name in NAMES),
    *(Cell(name, pa.string(), name) for name in NAMES[:4]),
    Cell(" 7", None, "7"),
    Cell("007 ", None, "007"),
    Cell("\u00a07\t", pa.large_string(), "7"),
    Cell("Zoe\u0308", None, "Zo\u00eb"),
    Cell("Zoe\u0308 ", pa.dictionary(pa.int32(), pa.string()), "Zo\u00eb"),
    Cell(KEY.upper(), None, KEY),
    Cell(KEY.upper(), pa.string(), KEY),
    Cell(UUID(KEY), pa.uuid(), KEY),
    Cell(7, pa.int8(), "7"),
    Cell(-7, pa.int64(), "-7"),
    Cell(7, pa.uint64(), "7"),
    Cell(2**63 + 7, pa.uint64(), LARGE),
    Cell(7.0, pa.float32(), "7"),
    Cell(-0.0, pa.float64(), "0"),
    Cell(Decimal("7.00"), pa.decimal128(9, 2), "7"),
    Cell(b"007", pa.binary(), "007"),
    Cell("Zoe\u0308".encode(), pa.large_binary(), "Zo\u00eb"),
)


def others(cell: Cell) -> list[Any]:
    """Return ids of other records, of the type of the cell."""
    numbers = range(40, 40 + FILL)
    kind = cell.kind
    if kind == pa.uuid():
        return [UUID(int=number) for number in numbers]
    if kind is None or isinstance(cell.value, str):
        return [f"f{number}" for number in numbers]
    if isinstance(cell.value, bytes):
        return [f"f{number}".encode() for number in numbers]
    return [type(cell.value)(number) for number in numbers]


OTHERS: Final = [
    text(number) for text in (str, "f{}".format, lambda n: str(UUID(int=n))) for number in range(40, 40 + FILL)
]


def file_of(cell: Cell, folder: Path, *, alone: bool = False) -> Path:
    """Write the cell's record, whose x is -1, and others."""
    ids = [cell.value, *([] if alone else others(cell))]
    x = [-1.0, *(row + 0.5 for row in range(len(ids) - 1))]
    y = [row % 2 for row in range(len(ids))]
    if cell.kind is None:
        path = folder / "own.csv"
        path.write_text("id,x,y\n" + "".join(f"{one},{a},{b}\n" for one, a, b in zip(ids, x, y, strict=True)))
        return path
    pq.write_table(pa.table({"id": pa.array(ids, cell.kind), "x": x, "y": y}), folder / "own.parquet")
    return folder / "own.parquet"


def everybody(folder: Path) -> Path:
    """Write one record for each name, whose u says which, and the others."""
    path = folder / "all.csv"
    rows = [f"{name},{row}.0" for row, name in enumerate([*NAMES, *OTHERS])]
    path.write_text("\n".join(["id,u", *rows]) + "\n")
    return path


def trained(path: Path) -> PartyFile:
    return load_party(path, name="bank", role="active", label="y", id_column="id", scale="none", test_fraction=0.4)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what everybody's records are at each command: numbers in training and in tables, by name."""
    folder = tmp_path_factory.mktemp("known")
    path = everybody(folder)
    rows = path.read_text().splitlines()[1:]
    path.write_text("\n".join(["id,x,y", *(f"{row},{place % 2}" for place, row in enumerate(rows))]) + "\n")
    found = trained(path).data
    numbers: dict[int, str] = {}
    for part in (found.train, found.test):
        places = part.columns.numeric[:, 0].long().tolist()
        numbers |= {one: [*NAMES, *OTHERS][place] for one, place in zip(part.ids.tolist(), places, strict=True)}
    tables = folder / "tables"
    ingest(path, out=tables, label="y", id_column="id", active="rest", scale="none", test_fraction=0.4)
    return {"numbers": numbers, "tables": tables, "all": everybody(folder)}


def marked(ids: Sequence[int], x: Sequence[float]) -> int:
    """Return the number of the record whose x is -1."""
    return next(one for one, value in zip(ids, x, strict=True) if value == -1.0)


def in_tables(folder: Path) -> int:
    ids, x = (
        np.concatenate([np.load(folder / f"{part}.{what}.npy") for part in ("train", "test")])
        for what in ("ids", "numeric")
    )
    return marked(ids.tolist(), x[:, 0].tolist())


def by_alignment(path: Path, known: dict[str, Any], folder: Path) -> str:
    digests = {id_digest(name): name for name in NAMES}
    return digests[read_digests(path, "id")[0].tobytes()]


def by_training(path: Path, known: dict[str, Any], folder: Path) -> str:
    data = trained(path).data
    ids = torch.cat([data.train.ids, data.test.ids]).tolist()
    x = torch.cat([data.train.columns.numeric[:, 0], data.test.columns.numeric[:, 0]]).tolist()
    return cast(str, known["numbers"][marked(ids, x)])


def by_tables_in_memory(path: Path, known: dict[str, Any], folder: Path) -> str:
    settings: dict[str, Any] = {"label": "y", "id": "id", "scale": "none", "test_fraction": 0.4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data = from_tables(active=path, passive={"lab": known["all"]}, **settings)
    own, lab = ([part.columns.numeric[:, 0] for part in (one.train, one.test)] for one in (data.active, data["lab"]))
    x, u = torch.cat(own).tolist(), torch.cat(lab).long().tolist()
    assert len(x) == FILL + 1
    return NAMES[marked(u, x)]


def by_prediction(path: Path, known: dict[str, Any], folder: Path) -> str:
    bank = trained(path)
    lab = load_party(known["all"], name="lab", role="passive", id_column="id", scale="none")
    provenance = (bank.data.provenance, lab.data.provenance)
    assert all(isinstance(one, Provenance) for one in provenance)
    found = read_joint_records({"bank": path, "lab": known["all"]}, [bank.data, lab.data], id_column="id")
    return NAMES[int(found.records["lab"].columns.numeric[0, 0])]


def by_a_partys_prediction(path: Path, known: dict[str, Any], folder: Path) -> str:
    found = read_new_records(path, name="bank", role="active", encoding=trained(path).encoding, id_column="id")
    return cast(str, known["numbers"][int(found.data.test.ids[0])])


def by_score_file(path: Path, known: dict[str, Any], folder: Path) -> str:
    bank = trained(path)
    new = read_new_records(path, name="bank", role="active", encoding=bank.encoding, id_column="id")
    write_scores(folder / "scores.csv", new.data.test.columns.numeric[:, 0], name_column="id", names=new.names)
    scores = _ScoreFile(folder / "scores.csv", 1, "bank", DataConfig(name="table"), "id", 2)
    held = [one for one in known["numbers"] if scores.has(torch.tensor([one]))]
    return cast(str, known["numbers"][marked(held, scores.of(torch.tensor(held))[:, 0].tolist())])


def by_ingest(path: Path, known: dict[str, Any], folder: Path) -> str:
    ingest(path, out=folder / "t", label="y", id_column="id", active="rest", scale="none", test_fraction=0.4)
    return cast(str, known["numbers"][in_tables(folder / "t" / "active")])


def by_ingest_like(path: Path, known: dict[str, Any], folder: Path) -> str:
    ingest_like(path, folder / "like", like=known["tables"])
    return cast(str, known["numbers"][in_tables(folder / "like" / "active")])


def by_shard(path: Path, known: dict[str, Any], folder: Path) -> str:
    shard(path, folder / "shards", id_column="id", shards=2)
    files = [shard_file(folder / "shards", number) for number in range(2)]
    found = [pq.read_table(file)["x"].to_pylist() for file in files]
    number = next(number for number, x in enumerate(found) if -1.0 in x)
    digest = read_digests(files[number], "id")[found[number].index(-1.0)].tobytes()
    name = {id_digest(name): name for name in NAMES}[digest]
    assert shard_of(id_hashes([name]), 2).tolist() == [number]
    return name


def served_by(index: RecordIndex) -> str:
    found = index.find(asked_digests(NAMES, run=RUN)).tolist()
    assert sorted(found)[:-1] == [-1] * (len(NAMES) - 1)
    assert max(found) == 0
    return NAMES[found.index(0)]


def by_serving_a_file(path: Path, known: dict[str, Any], folder: Path) -> str:
    new = read_new_records(path, name="bank", role="active", encoding=trained(path).encoding, id_column="id")
    return served_by(RecordIndex.of(new.names[:1], run=RUN, case="kept", source="own"))


def by_serving_tables(path: Path, known: dict[str, Any], folder: Path) -> str:
    ingest(path, out=folder / "t", label="y", id_column="id", active="rest", scale="none", test_fraction=0.4)
    return served_by(RecordIndex.of_numbers(np.array([in_tables(folder / "t" / "active")]), run=RUN))


def by_score_log(path: Path, known: dict[str, Any], folder: Path) -> str:
    new = read_new_records(path, name="bank", role="active", encoding=trained(path).encoding, id_column="id")
    # Letter case never counts there.
    names = [name for name in NAMES if name != "ZO\u00cb"]
    forms = record_forms(pa.array(names), rows=False).tolist()
    found = names[forms.index(record_forms(new.names[:1], rows=False).tolist()[0])]
    return "ZO\u00cb" if found == "Zo\u00eb" and "ZO\u00cb" in new.names[0].as_py() else found


COMMANDS: Final[tuple[Callable[[Path, dict[str, Any], Path], str], ...]] = (
    by_alignment,
    by_training,
    by_tables_in_memory,
    by_prediction,
    by_a_partys_prediction,
    by_score_file,
    by_ingest,
    by_ingest_like,
    by_shard,
    by_serving_a_file,
    by_serving_tables,
    by_score_log,
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.__name__)
def test_every_command_knows_a_record_by_the_same_id(
    command: Callable[[Path, dict[str, Any], Path], str], known: dict[str, Any], tmp_path: Path
) -> None:
    for place, cell in enumerate(CELLS):
        folder = tmp_path / str(place)
        folder.mkdir()
        assert command(file_of(cell, folder), known, folder) == cell.name, cell


@pytest.mark.parametrize("command", COMMANDS[:-1], ids=lambda one: one.__name__)
@pytest.mark.parametrize("twice", [("7", " 7"), ("Zo\u00eb", "Zoe\u0308"), (KEY, KEY.upper())])
def test_one_id_written_in_two_ways_is_there_twice(
    command: Callable[[Path, dict[str, Any], Path], str], twice: tuple[str, str], known: dict[str, Any], tmp_path: Path
) -> None:
    path = file_of(Cell(twice[0], None, ""), tmp_path)
    path.write_text(f"{path.read_text()}{twice[1]},3.0,1\n")

    with pytest.raises(DataError, match=r"own.csv, .*column 'id': id .* once normalised, is there already in own.csv"):
        command(path, known, tmp_path)
