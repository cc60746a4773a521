"""Alignment between processes' ends: over gRPC, from files to folders."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from splitvfl.cli import main
from splitvfl.data.alignment import read_alignment
from splitvfl.data.shard_files import shard_file
from splitvfl.data.shard_writing import shard
from splitvfl.data.sharding import HeldShards
from splitvfl.errors import ConfigError, DataError, LinkError, SplitVFLError
from splitvfl.exchange.psi import Aligned, Overlap, Terms
from splitvfl.net.tls import Plaintext
from splitvfl.run.alignment import AlignmentJob, described, peers_of, run_alignment
from tests.run.parties import neighbouring_ports


def people(folder: Path, name: str, first: int, last: int) -> Path:
    path = folder / f"{name}.csv"
    path.write_text("customer,age\n" + "".join(f"c{number},1\n" for number in range(first, last)))
    return path


class Town:
    """A bank that dials, and others that listen."""

    def __init__(self, folder: Path, **others: tuple[int, int]) -> None:
        self.folder = folder
        self.files = {name: people(folder, name, *span) for name, span in {"bank": (0, 40), **others}.items()}
        self.addresses = {name: f"127.0.0.1:{neighbouring_ports(1)}" for name in others}

    def job(self, name: str, **changes: Any) -> AlignmentJob:
        bank = name == "bank"
        settings: dict[str, Any] = {
            "party": name,
            "terms": Terms(active="bank"),
            "files": (self.files[name],),
            "id_column": "customer",
            "out": self.folder / "aligned" / name,
            "peers": dict(self.addresses) if bank else {"bank": None},
            "identities": {},
            "listen": None if bank else self.addresses[name],
            "credentials": Plaintext(True),
            "meeting_s": 20.0,
            "message_s": 20.0,
        }
        return AlignmentJob(**{**settings, **changes})

    def run(self, **changes: Any) -> dict[str, Any]:
        """All at once; what a party raises is its result."""
        with ThreadPoolExecutor(len(self.files)) as pool:
            runs = {name: pool.submit(caught, run_alignment, self.job(name, **changes)) for name in self.files}
        return {name: run.result() for name, run in runs.items()}


def caught(work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except SplitVFLError as error:
        return error


def test_three_parties_write_the_same_order(tmp_path: Path) -> None:
    town = Town(tmp_path, telecom=(10, 60), shop=(5, 30))
    found = town.run()
    folders = {name: read_alignment(tmp_path / "aligned" / name) for name in town.files}
    assert {folder.schema.records for folder in folders.values()} == {20}
    assert len({folder.schema.digest for folder in folders.values()}) == 1
    assert {name: folder.schema.role for name, folder in folders.items()} == {
        "bank": "active", "shop": "passive", "telecom": "passive",
    }  # fmt: skip
    np.testing.assert_array_equal(folders["bank"].rows - 10, folders["telecom"].rows)
    np.testing.assert_array_equal(folders["bank"].rows - 5, folders["shop"].rows)
    assert folders["bank"].schema.shared == found["bank"].shared == {"telecom": 30, "shop": 25}
    assert folders["telecom"].schema.sizes == {"telecom": 50, "bank": 40}
    for name, folder in folders.items():
        folder.check_source(town.files[name])


def test_size_only_writes_nothing(tmp_path: Path) -> None:
    town = Town(tmp_path, telecom=(10, 60))
    found = town.run(terms=Terms(active="bank", mode="size-only"), out=None)
    assert found["bank"] == Overlap(sizes={"bank": 40, "telecom": 50}, shared={"telecom": 30})
    assert not (tmp_path / "aligned").exists()


def test_nothing_in_common_is_said_at_both_and_nothing_written(tmp_path: Path) -> None:
    town = Town(tmp_path, telecom=(100, 160))
    found = town.run()
    for name, other in (("bank", "telecom"), ("telecom", "bank")):
        assert isinstance(found[name], DataError)
        assert f"{name} has no record in common with {other}" in str(found[name])
        assert "--fold-case" in str(found[name])
    assert list((tmp_path / "aligned").iterdir()) == []


def test_ids_that_a_partner_may_write_otherwise_are_counted_at_home(tmp_path: Path) -> None:
    town, said = Town(tmp_path, telecom=(10, 60)), {"bank": list[str](), "telecom": list[str]()}
    town.files["bank"].write_text("customer,age\n007,1\n08,1\n9.0,1\nc20,1\n")
    with ThreadPoolExecutor(2) as pool:
        for run in [
            pool.submit(lambda name: run_alignment(town.job(name), notify=said[name].append), name) for name in said
        ]:
            run.result()
    assert any(line.startswith("2 of your ids have leading zeros, 1 has .0 at the end;") for line in said["bank"])
    assert not any("leading zeros" in line for line in said["telecom"])


def test_differing_terms_are_named_at_both(tmp_path: Path) -> None:
    town = Town(tmp_path, telecom=(10, 60))
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(caught, run_alignment, town.job("bank")),
            pool.submit(caught, run_alignment, town.job("telecom", terms=Terms(active="bank", case="folded"))),
        ]
    for error in (run.result() for run in runs):
        assert isinstance(error, SplitVFLError)
    assert any("letter case of ids" in str(run.result()) for run in runs)


@pytest.fixture
def sharded(tmp_path: Path) -> Town:
    """A bank and a telecom whose records are divided into three shards, in folders of their names."""
    town = Town(tmp_path, telecom=(10, 60))
    for name, file in town.files.items():
        shard(file, tmp_path / name, id_column="customer", shards=3)
    return town


def test_shards_of_one_number_are_aligned_and_all_of_them_find_what_is_common(sharded: Town) -> None:
    common: list[int] = []
    for number in range(3):
        sharded.files = {name: shard_file(sharded.folder / name, number) for name in sharded.files}
        found = sharded.run(overwrite=True)
        common.append(len(found["bank"].ids))
        for name in sharded.files:
            assert read_alignment(sharded.folder / "aligned" / name).schema.shards == f"{number} of 3"
    assert sum(common) == 30
    assert min(common) > 0


def test_shards_of_other_numbers_or_of_other_divisions_are_not_aligned(sharded: Town, tmp_path: Path) -> None:
    bank = shard_file(tmp_path / "bank", 1)
    shard(sharded.files["telecom"], tmp_path / "others", id_column="customer", shards=4)
    others = {
        "2 of 3": shard_file(tmp_path / "telecom", 2),
        "1 of 4": shard_file(tmp_path / "others", 1),
        "nothing": sharded.files["telecom"],
    }
    for what, telecom in others.items():
        sharded.files = {"bank": bank, "telecom": telecom}
        for error in sharded.run().values():
            assert isinstance(error, DataError)
            assert "shard that is aligned: " in str(error)
            assert f"bank has 1 of 3, telecom has {what}" in str(error) or f"has {what}, bank has 1 of" in str(error)
            assert "(--shard 3/8)" in str(error)


def test_files_of_another_tool_are_aligned_as_the_shard_that_they_are_said_to_be(sharded: Town, tmp_path: Path) -> None:
    plain = people(tmp_path, "plain", 0, 0)
    kept = pq.read_table(shard_file(tmp_path / "telecom", 1)).column("customer").to_pylist()
    plain.write_text("customer\n" + "".join(f"{name}\n" for name in kept))
    jobs = [
        sharded.job("bank", files=(shard_file(tmp_path / "bank", 1),)),
        sharded.job("telecom", files=(plain,), shards=HeldShards((1,), 3)),
    ]
    with ThreadPoolExecutor(2) as pool:
        found = [run.result() for run in [pool.submit(caught, run_alignment, job) for job in jobs]]
    assert found[0].digest == found[1].digest

    with pytest.raises(
        DataError, match=r"plain.csv, line 2, column 'customer': id 'c\d+' belongs to shard 1 of 3, and"
    ):
        run_alignment(sharded.job("telecom", files=(plain,), shards=HeldShards((2,), 3), overwrite=True))
    with pytest.raises(
        DataError, match=r"shard-1.parquet says that it is shard 1 of 3, and it was given as shard 2 of 3"
    ):
        run_alignment(
            sharded.job("bank", files=(shard_file(tmp_path / "bank", 1),), shards=HeldShards((2,), 3), overwrite=True)
        )


def test_a_shard_whose_records_were_changed_since_is_refused(sharded: Town, tmp_path: Path) -> None:
    path = shard_file(tmp_path / "bank", 1)
    table = pq.read_table(path)
    names = [
        *table.column("customer").to_pylist()[:-1],
        "c3" if "c3" not in table.column("customer").to_pylist() else "c4",
    ]
    pq.write_table(table.set_column(0, "customer", pa.array(names)), path)
    with pytest.raises(DataError, match=r"shard-1.parquet, row \d+ .* belongs to shard [02] of 3"):
        run_alignment(sharded.job("bank", files=(path,)))


def test_nobody_is_waited_for_without_end(tmp_path: Path) -> None:
    town = Town(tmp_path, telecom=(10, 60))
    with pytest.raises(LinkError, match=r"telecom at 127.0.0.1"):
        run_alignment(town.job("bank", meeting_s=0.3))
    with pytest.raises(LinkError, match="bank did not dial"):
        run_alignment(town.job("telecom", meeting_s=0.3))


def test_who_comes_first_waits_for_who_comes_last(tmp_path: Path) -> None:
    """The telecom hears nothing before the shop is there, for longer than a message may take."""
    town = Town(tmp_path, telecom=(10, 60), shop=(5, 30))
    # Long enough for a machine that does something else meanwhile: nobody computes while they wait.
    jobs = {name: town.job(name, message_s=2.0) for name in town.files}
    with ThreadPoolExecutor(len(jobs)) as pool:
        early = [pool.submit(caught, run_alignment, jobs[name]) for name in ("bank", "telecom")]
        time.sleep(2.5)
        found = [caught(run_alignment, jobs["shop"]), *(run.result() for run in early)]
    assert [getattr(one, "digest", one) for one in found] == [
        read_alignment(tmp_path / "aligned" / "bank").schema.digest
    ] * 3


def test_what_is_there_is_found_before_anybody_is_met(tmp_path: Path) -> None:
    town = Town(tmp_path, telecom=(10, 60))
    (tmp_path / "aligned" / "bank").mkdir(parents=True)
    (tmp_path / "aligned" / "bank" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="it is left alone"):
        run_alignment(town.job("bank"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"out": None}, "mode both writes the aligned order: name a folder"),
        ({"terms": Terms(active="bank", mode="size-only")}, "mode size-only writes nothing"),
        ({"peers": {"telecom": None}}, "telecom has no address, so it must dial: say where to listen"),
        ({"listen": "127.0.0.1:1"}, "nobody will come to 127.0.0.1:1"),
        ({"meeting_s": float("nan")}, "above 0 to wait for each party, got nan"),
        ({"message_s": -1.0}, "above 0 to wait for each message, got -1"),
        ({"identities": {"shop": "x"}}, "shop has an identity and is no peer; there are telecom"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Town(tmp_path, telecom=(10, 60)).job("bank", **changes)


@pytest.mark.parametrize("texts", [["telecom.example:7000"], ["=x:1"], ["telecom="], ["a=x:1", "a"], [""]])
def test_peers_that_are_written_otherwise_are_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="peer"):
        peers_of(texts)


@pytest.mark.parametrize("name", ["bank", "telecom"])
def test_dummies_are_told_where_they_are_known(tmp_path: Path, name: str) -> None:
    job = Town(tmp_path, telecom=(10, 60)).job(name, terms=Terms(active="bank", mode="padded", padding=0.25))
    rows = np.array([3, -1, 4, 5, 6]) if name == "bank" else np.arange(5)
    found = Aligned(rows=rows, ids=np.arange(5), digest="ab" * 32, sizes={"bank": 40, "telecom": 50})
    text = "\n".join(described(job, found))
    expected = "4 records of yours, and 1 dummies" if name == "bank" else "5 records, of which about 80% are bank's"
    assert expected in text


def test_the_command_aligns_under_mutual_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "bank", "telecom", "--out", str(tmp_path / "certs")]) == 0
    town = Town(tmp_path, telecom=(10, 60))
    port = town.addresses["telecom"].rpartition(":")[2]

    def command(name: str, *more: str) -> list[str]:
        own = ["align", str(town.files[name]), "--id", "customer", "--as", name, "--active", "bank", "--wait", "20"]
        return [*own, "--out", str(tmp_path / name), "--certificates", str(tmp_path / "certs"), *more]

    with ThreadPoolExecutor(2) as pool:
        codes = [
            pool.submit(
                main, command("bank", "--peer", f"telecom=localhost:{port}", "--mode", "padded", "--padding", "0.2")
            ),
            pool.submit(main, command("telecom", "--listen", f":{port}", "--mode", "padded", "--padding", "0.2")),
        ]
    assert [code.result() for code in codes] == [0, 0]
    printed = capsys.readouterr().out
    assert "30 records of yours, and 6 dummies" in printed
    assert "36 records, of which about 83% are bank's" in printed
    for name, scores in (("bank", " --out scores.csv"), ("telecom", "")):
        files = f"--as {name} --records {town.files[name]} --aligned {tmp_path / name}{scores}"
        assert f"splitvfl predict EXPERIMENT.yaml {files}   (to score new records)" in printed
    assert read_alignment(tmp_path / "bank").schema.digest == read_alignment(tmp_path / "telecom").schema.digest


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--shard", "3"], "expected a shard and the number of shards, like 3/8 or 3,4/8, got '3'"),
        (["--mode", "all"], "expected mode one of both, size-only, padded"),
        (["--peer", "telecom.example:7000"], "expected a peer like telecom=telecom.example:7000"),
        (["--peer", "telecom"], "say where to listen"),
        (["--peer", "telecom=127.0.0.1:1", "--mode", "padded"], "expected padding above 0"),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], complaint: str
) -> None:
    path = people(tmp_path, "bank", 0, 3)
    own = ["align", str(path), "--id", "customer", "--as", "bank", "--active", "bank", "--plaintext-on-loopback"]
    assert main([*own, *more]) == 2
    assert complaint in capsys.readouterr().err
