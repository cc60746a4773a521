"""What docs/scaling.md says of shards by other tools: each statement divides as the project does.

Where a tool is installed its statement runs as it stands there. Without it, its arithmetic is still looked at: SQLite
computes the same expressions, with functions of the same names that are made of Python's.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sqlite3
import unicodedata
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from splitvfl.cli import main
from splitvfl.data.shard_files import read_sharding, shard_file
from splitvfl.data.sharding import HeldShards, shard_numbers

SHARDS = 8
TEXTS = [f" {name} {number} " for number in range(40) for name in ("Zo\u00eb", "anna", "\u6771\u4eac")]
NUMBERS = [*range(-20, 100), 9_007_199_254_740_993, -(1 << 63)]


def blocks(checkout: Path, language: str, wanted: str) -> str:
    text = (checkout / "docs" / "scaling.md").read_text()
    (found,) = [block for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if wanted in block]
    return str(found)


def people(folder: Path, ids: list[Any]) -> Path:
    path = folder / "people.parquet"
    pq.write_table(pa.table({"customer": ids, "age": list(range(len(ids)))}), path)
    return path


def check(folder: Path, ids: list[Any]) -> None:
    """Look whether the folder of a tool has every record once, in the shard in which the project would have it."""
    found: dict[int, Any] = {}
    for part in folder.glob("shard=*"):
        number = int(part.name.partition("=")[2])
        files = sorted(part.glob("*.parquet"))
        HeldShards((number,), SHARDS).check(files, "customer")
        for file in files:
            table = pq.ParquetFile(file).read()
            assert table.column_names == ["customer", "age"]
            found |= dict(zip(table["age"].to_pylist(), table["customer"].to_pylist(), strict=True))
    assert found == dict(enumerate(ids))


def nfd(ids: list[Any]) -> list[Any]:
    return [unicodedata.normalize("NFD", one) if isinstance(one, str) else one for one in ids]


def by_sqlite(expression: str, ids: list[Any]) -> list[int]:
    """Evaluate an expression of a page over the column ``customer``."""
    sha256 = {"sha256": 1, "sha2": 2}
    # Types are written in each dialect's way.
    expression = re.sub(r"\(('0x'.*)\)::UBIGINT", r"from_0x(\1)", expression)
    expression = expression.replace("customer::VARCHAR", "CAST(customer AS TEXT)")
    expression = expression.replace("AS STRING", "AS TEXT").replace("AS BIGINT", "AS INTEGER")
    with closing(sqlite3.connect(":memory:")) as base:
        for name, arguments in sha256.items():
            base.create_function(name, arguments, lambda text, bits=256: hashlib.sha256(text.encode()).hexdigest())
        base.create_function("conv", 3, lambda text, one, other: str(int(text, one)) if other == 10 else None)
        base.create_function("nfc_normalize", 1, lambda text: unicodedata.normalize("NFC", text))
        base.create_function("from_0x", 1, lambda text: int(text, 16))
        base.execute("CREATE TABLE people (customer)")
        base.executemany("INSERT INTO people VALUES (?)", [(one,) for one in ids])
        return [number for (number,) in base.execute(f"SELECT {expression} FROM people ORDER BY rowid")]


@pytest.mark.parametrize("ids", [TEXTS, NUMBERS], ids=["text", "numbers"])
@pytest.mark.parametrize(("wanted", "forms"), [("COPY (", (nfd, list)), ("CREATE TABLE", (list,))])
def test_expressions_compute_the_rule(checkout: Path, wanted: str, forms: tuple[Any, ...], ids: list[Any]) -> None:
    (expression,) = re.findall(r"SELECT \*, (.*) AS shard", blocks(checkout, "sql", wanted))
    for form in forms:
        assert by_sqlite(expression, form(ids)) == shard_numbers(form(ids), SHARDS).tolist()


@pytest.mark.parametrize("ids", [nfd(TEXTS), NUMBERS], ids=["text", "numbers"])
def test_duckdb_writes_the_same_shards(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[Any]
) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    people(tmp_path, ids)
    duckdb.connect().execute(blocks(checkout, "sql", "COPY ("))
    check(tmp_path / "sharded", ids)


@pytest.mark.parametrize("ids", [TEXTS, NUMBERS], ids=["text", "numbers"])
@pytest.mark.slow(reason="starts a Java virtual machine")
@pytest.mark.filterwarnings("ignore")  # its own
def test_spark_writes_the_same_shards(checkout: Path, tmp_path: Path, ids: list[Any]) -> None:
    sql = pytest.importorskip("pyspark.sql")
    people(tmp_path, ids)
    statement = blocks(checkout, "sql", "CREATE TABLE")
    assert statement.count("/data/") == 2
    settings = {"spark.ui.enabled": "false", "spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    session = sql.SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    try:
        session.sql(statement.replace("/data/", f"{tmp_path}/").rstrip().rstrip(";"))
        session.sql("DROP TABLE sharded")
    finally:
        session.stop()
    check(tmp_path / "sharded", ids)


@pytest.mark.parametrize("ids", [nfd(TEXTS), NUMBERS], ids=["text", "numbers"])
@pytest.mark.slow(reason="starts a cluster of one")
@pytest.mark.filterwarnings("ignore")  # its own
def test_ray_writes_the_same_shards(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[Any]
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    people(tmp_path, ids)
    try:
        exec(compile(blocks(checkout, "python", "import ray"), "scaling.md", "exec"), {"__name__": "page"})
    finally:
        ray.shutdown()
    check(tmp_path / "sharded", ids)


def test_the_commands_of_the_page_divide_and_are_taken(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "people-1.csv"
    path.write_text("customer,age\n" + "".join(f"{name},1\n" for name in TEXTS))
    command = shlex.split(blocks(checkout, "bash", "splitvfl shard"))
    assert main([*command[1:2], "people-*.csv", *command[3:]]) == 0
    sharding = read_sharding(tmp_path / "sharded")
    assert sharding.shards == SHARDS
    for number in range(SHARDS):
        HeldShards((number,), SHARDS).check(shard_file(tmp_path / "sharded", number), "customer")
    # The files of another tool, as the page calls them; nobody is there to align with.
    (tmp_path / "sharded" / "shard=3").mkdir()
    pq.write_table(
        pq.read_table(shard_file(tmp_path / "sharded", 3)).replace_schema_metadata(), "sharded/shard=3/data_0.parquet"
    )
    command = shlex.split(blocks(checkout, "bash", "--shard 3/8"))
    assert main([*command[1:], "--plaintext-on-loopback", "--wait", "0.1", "--listen", "127.0.0.1:0"]) == 2
