"""A shard that is missing, in another's place, of another rule or division, damaged or empty is told by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from splitvfl.data.shard_files import (
    SHARDING_FILE,
    ShardNote,
    check_noted,
    held_shards,
    is_sharded_folder,
    read_note,
    read_sharding,
    shard_file,
)
from splitvfl.data.shard_writing import shard
from splitvfl.data.sharding import HeldShards
from splitvfl.errors import DataError

TABLE = pa.table({"id": list(range(60)), "x": [1] * 60})


def divided(folder: Path, shards: int = 4, **settings: object) -> Path:
    shard(TABLE, folder, id_column="id", shards=shards, **settings)  # type: ignore[arg-type]
    return folder


def other_note(path: Path, **changes: object) -> None:
    """Write a shard's file again, with a note that says something else."""
    note = read_note(path)
    assert note is not None
    changed = msgspec.to_builtins(note) | changes
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"splitvfl.shard": msgspec.json.encode(changed)}), path)


def test_a_folder_that_is_as_it_was_written_is_read(tmp_path: Path) -> None:
    sharding = read_sharding(divided(tmp_path / "out"))
    assert sharding.records == tuple(pq.read_metadata(shard_file(tmp_path / "out", one)).num_rows for one in range(4))
    assert sum(sharding.records) == 60
    assert (sharding.shards, sharding.id_column, sharding.case, sharding.files) == (4, "id", "kept", ("the table",))
    assert is_sharded_folder(tmp_path / "out")
    assert not is_sharded_folder(tmp_path)
    assert read_note(shard_file(tmp_path / "out", 2)) == ShardNote.of(sharding, 2)


def _missing(folder: Path) -> None:
    shard_file(folder, 2).unlink()


def _twice(folder: Path) -> None:
    shutil.copy(shard_file(folder, 1), shard_file(folder, 2))


def _of_another_division(folder: Path) -> None:
    shutil.copy(shard_file(divided(folder.with_name("second")), 2), shard_file(folder, 2))


def _none(folder: Path) -> None:
    pq.write_table(TABLE, shard_file(folder, 2))


def _more(folder: Path) -> None:
    shutil.copy(shard_file(folder, 2), shard_file(folder, 9))


def _of_another_rule(folder: Path) -> None:
    other_note(shard_file(folder, 2), rule="crc32")


def _of_a_later_version(folder: Path) -> None:
    other_note(shard_file(folder, 2), version=2)


def _with_fewer_rows(folder: Path) -> None:
    path = shard_file(folder, 2)
    metadata = pq.read_schema(path).metadata
    pq.write_table(pq.read_table(path).slice(1).replace_schema_metadata(metadata), path)


def _with_strange_words(folder: Path) -> None:
    other_note(shard_file(folder, 2), shard="two")


def _torn(folder: Path) -> None:
    path = shard_file(folder, 2)
    path.write_bytes(path.read_bytes()[:-20])


def _other_counts(folder: Path) -> None:
    told = json.loads((folder / SHARDING_FILE).read_text())
    told["records"][2] += 1
    (folder / SHARDING_FILE).write_text(json.dumps(told))


def _rule_in_the_folder(folder: Path) -> None:
    path = folder / SHARDING_FILE
    path.write_text(path.read_text().replace("first 4 bytes", "first 8 bytes"))


def _no_note(folder: Path) -> None:
    (folder / SHARDING_FILE).unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_missing, r"shard 2 of 4 is missing: there is no .*shard-2.parquet"),
        (_twice, r"shard-2.parquet holds shard 1, which is there twice"),
        (_of_another_division, r"shard-2.parquet is no shard of this division"),
        (_none, r"shard-2.parquet is no shard of this division"),
        (_more, r"shard-9.parquet is none of the 4 shards of its folder; take it out"),
        (_of_another_rule, r"shard-2.parquet was divided by another rule: 'crc32', version 1; expected 'sha256"),
        (_of_a_later_version, r"shard-2.parquet was divided by another rule: 'sha256.*', version 2; expected"),
        (_with_fewer_rows, r"shard-2.parquet holds \d+ records, and \d+ when it was written; it is damaged"),
        (_with_strange_words, r"shard-2.parquet says of itself what no shard does"),
        (_torn, r"shard-2.parquet could not be read"),
        (_other_counts, r"shard-2.parquet and sharding.json tell of different records"),
        (_rule_in_the_folder, r"sharding.json tells of another rule"),
        (_no_note, r"expected shards, as `splitvfl shard` writes them, at .*out; it has no sharding.json"),
    ],
)
def test_what_is_wrong_with_a_shard_is_told_by_name(
    spoil: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    spoil(divided(tmp_path / "out"))
    with pytest.raises(DataError, match=message):
        read_sharding(tmp_path / "out")


def test_an_empty_shard_is_told_by_name(tmp_path: Path) -> None:
    shard(TABLE.slice(0, 2), tmp_path / "out", id_column="id", shards=8)
    with pytest.raises(DataError, match=r"shard 0 of 8 is empty: .*shard-0.parquet; 2 records may be too few for 8"):
        read_sharding(tmp_path / "out")
    with pytest.raises(DataError, match=r"shard-0.parquet is empty: shard 0 of 8 has no record"):
        held_shards([shard_file(tmp_path / "out", 0)], id_column="id", case="kept")


def test_files_say_which_shards_they_are(tmp_path: Path) -> None:
    folder = divided(tmp_path / "out")
    files = [shard_file(folder, one) for one in range(4)]
    assert held_shards(files[3:], id_column="id", case="kept") == HeldShards((3,), 4)
    assert held_shards([files[2], files[0]], id_column="id", case="kept") == HeldShards((0, 2), 4)
    moved = shutil.copy(files[1], tmp_path / "mine.parquet")
    assert held_shards([moved], id_column="id", case="kept") == HeldShards((1,), 4)
    # All of them are what was divided, and by what no longer matters.
    assert held_shards(files, id_column="x", case="folded") is None


def test_files_that_are_no_shards_say_nothing(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("id\n1\n")
    assert held_shards([tmp_path / "a.parquet", tmp_path / "a.csv"], id_column="id", case="kept") is None


def test_files_that_do_not_belong_together_are_named(tmp_path: Path) -> None:
    one, two = divided(tmp_path / "one"), divided(tmp_path / "two")
    pq.write_table(TABLE, tmp_path / "a.parquet")
    first = shard_file(one, 0)
    for other, what in ((tmp_path / "a.parquet", "no shard"), (shard_file(two, 1), "a shard of another division")):
        with pytest.raises(DataError, match=rf"shard-0.parquet is shard 0 of 4, and {other.name} is {what}"):
            held_shards([first, other], id_column="id", case="kept")
    again = shutil.copy(first, tmp_path / "again.parquet")
    with pytest.raises(DataError, match=r"shard-0.parquet and again.parquet are both shard 0; leave one out"):
        held_shards([first, again], id_column="id", case="kept")


def test_shards_are_used_as_they_were_divided(tmp_path: Path) -> None:
    file = shard_file(divided(tmp_path / "out", case="folded"), 1)
    with pytest.raises(DataError, match="was divided with --fold-case, and is used with letter case counted"):
        held_shards([file], id_column="id", case="kept")
    with pytest.raises(DataError, match="was divided by column 'id', got 'x'"):
        held_shards([file], id_column="x", case="folded")


def test_a_shard_is_not_taken_for_another(tmp_path: Path) -> None:
    """By what it says of itself; a file of another tool says nothing."""
    (tmp_path / "people.csv").write_text("id\n" + "\n".join(map(str, range(40))) + "\n")
    shard(tmp_path / "people.csv", tmp_path / "sharded", id_column="id", shards=2)
    file = tmp_path / "sharded" / "shard-1.parquet"
    check_noted([file, tmp_path / "people.csv"], shard=1, shards=2)
    with pytest.raises(DataError, match=r"shard-1.parquet says that it is shard 1/2, and was given as shard 0/2"):
        check_noted([file], shard=0, shards=2)
