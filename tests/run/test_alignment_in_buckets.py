"""Alignment in buckets from files to folders: broken off, gone on with, and folders that are not gone on with."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitvfl.cli import main
from splitvfl.data.alignment import aligned_rows
from splitvfl.data.id_column import fingerprint, read_digests
from splitvfl.data.shard_files import shard_file
from splitvfl.data.shard_writing import shard
from splitvfl.errors import DataError, LinkError, SplitVFLError
from splitvfl.exchange import psi_buckets
from splitvfl.exchange.psi import Aligned, Terms
from splitvfl.run import bucket_folder
from splitvfl.run.alignment import run_alignment
from splitvfl.run.bucket_folder import BucketFolder, folder_of_buckets
from tests.run.test_alignment import Town, caught

TERMS = Terms(active="bank", buckets=4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of a few records, and ids that are put into files a few at a time."""
    monkeypatch.setattr(psi_buckets, "LEAST_IN_BUCKET", 1)
    monkeypatch.setattr(bucket_folder, "_LOAD_ROWS", 7)


def bucket_folder_of(town: Town, name: str) -> Path:
    return folder_of_buckets(town.folder / "aligned" / name)


def broken_off(town: Town, **changes: Any) -> dict[str, Any]:
    """Run until the telecom's process stops after two buckets; what a party raises is its result."""

    def stop(line: str) -> None:
        if line.startswith("bucket 2 of 4"):
            raise SplitVFLError("stopped")

    with ThreadPoolExecutor(2) as pool:
        runs = {
            "bank": pool.submit(caught, run_alignment, town.job("bank", terms=TERMS, **changes)),
            "telecom": pool.submit(
                lambda: caught(lambda: run_alignment(town.job("telecom", terms=TERMS, **changes), notify=stop))
            ),
        }
    return {name: run.result() for name, run in runs.items()}


def test_what_was_done_before_a_break_is_kept_and_the_same_command_goes_on(tmp_path: Path) -> None:
    town = Town(tmp_path, telecom=(10, 60))
    found = broken_off(town)
    assert str(found["telecom"]) == "stopped"
    assert isinstance(found["bank"], LinkError)
    kept = {name: bucket_folder_of(town, name) for name in town.files}
    for folder in kept.values():
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / "1.done.npy").exists()
    assert not (tmp_path / "aligned" / "bank").exists()
    before = np.load(kept["telecom"] / "0.done.npy")

    said: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        jobs = {name: town.job(name, terms=TERMS) for name in town.files}
        runs = {
            name: pool.submit(lambda job: run_alignment(job, notify=said.append), job) for name, job in jobs.items()
        }
    ended = {name: run.result() for name, run in runs.items()}
    assert any("of 4 buckets were done before" in line for line in said)
    aligned = {name: aligned_rows(tmp_path / "aligned" / name, town.files[name]) for name in town.files}
    np.testing.assert_array_equal(aligned["bank"].rows - 10, aligned["telecom"].rows)
    assert sorted(aligned["bank"].rows) == list(range(10, 40))
    assert aligned["telecom"].schema.digest == ended["bank"].digest
    assert (aligned["bank"].schema.sizes, aligned["bank"].schema.shared) == (
        {"bank": 40, "telecom": 50},
        {"telecom": 30},
    )
    # What was done before is part of it, and nothing is left beside the result.
    assert set(before[:, 1]) <= set(aligned["telecom"].ids)
    assert sorted(path.name for path in (tmp_path / "aligned").iterdir()) == ["bank", "telecom"]


def test_shards_are_aligned_in_buckets_and_compared_too(tmp_path: Path) -> None:
    town = Town(tmp_path, telecom=(10, 60))
    for name, file in town.files.items():
        shard(file, tmp_path / name, id_column="customer", shards=2)
    town.files = {name: shard_file(tmp_path / name, 1) for name in town.files}
    town.run(terms=Terms(active="bank", buckets=2))
    aligned = {name: aligned_rows(tmp_path / "aligned" / name, file) for name, file in town.files.items()}
    assert {one.schema.shards for one in aligned.values()} == {"1 of 2"}
    assert aligned["bank"].schema.digest == aligned["telecom"].schema.digest

    town.files["telecom"] = shard_file(tmp_path / "telecom", 0)
    for error in town.run(terms=Terms(active="bank", buckets=2), overwrite=True).values():
        assert isinstance(error, DataError)
        assert "shard that is aligned: " in str(error)


def test_buckets_of_other_records_are_not_gone_on_with(tmp_path: Path) -> None:
    town = Town(tmp_path, telecom=(10, 60))
    broken_off(town)
    with town.files["bank"].open("a") as file:
        file.write("c900,1\n")
    with pytest.raises(DataError, match="holds buckets of an alignment of other records, parties or terms"):
        run_alignment(town.job("bank", terms=TERMS))
    again = town.run(terms=TERMS, overwrite=True)
    assert isinstance(again["bank"], Aligned)
    assert len(again["telecom"].ids) == 30


def made(tmp_path: Path, text: str, **changes: Any) -> BucketFolder:
    folder = tmp_path / "buckets"
    folder.mkdir(exist_ok=True)
    (tmp_path / "people.csv").write_text(text)
    given: dict[str, Any] = {"case": "kept", "buckets": 3, "terms": {"party": "bank"}}
    return BucketFolder(folder, [tmp_path / "people.csv"], "customer", **{**given, **changes})


def test_every_id_is_in_its_bucket_with_its_row(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(40)]
    found = made(tmp_path, "customer\n" + "\n".join(names) + "\n")
    digests = read_digests([tmp_path / "people.csv"], "customer")
    assert found.fingerprint == fingerprint(digests)
    rows = []
    for number in range(3):
        own, hashes = found.read(number)
        np.testing.assert_array_equal(hashes, digests[own])
        assert (psi_buckets.bucket_of(hashes, 3) == number).all()
        assert len(own) == found.sizes[number]
        rows += own.tolist()
    assert sorted(rows) == list(range(40))


def test_an_id_that_is_there_twice_is_told_with_both_places(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 4.*'c1' is there already in .*line 2"):
        made(tmp_path, "customer\nc1\nc2\nc1\n")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("0.done.npy", b"no array"),
        ("0.done.json", b"[1]"),
        ("buckets.json", b"{"),
        ("0.done.npy", [[0, 5], [1, 5]]),
        ("0.done.npy", [[0, 5], [99, 6]]),
        ("0.done.npy", [[0, -5], [1, 6]]),
    ],
)
def test_a_damaged_folder_is_refused_and_replaced_where_that_is_asked_for(
    file: str, content: Any, tmp_path: Path
) -> None:
    text = "customer\nc1\nc2\nc3\nc4\n"
    made(tmp_path, text).keep(0, psi_buckets.DoneBucket(np.array([0, 1]), np.array([5, 7]), {"telecom": 2}))
    kept = made(tmp_path, text).done(0)
    assert kept is not None
    assert (kept.rows.tolist(), kept.ids.tolist(), kept.shared) == ([0, 1], [5, 7], {"telecom": 2})
    if isinstance(content, bytes):
        (tmp_path / "buckets" / file).write_bytes(content)
    else:
        np.save(tmp_path / "buckets" / file, np.array(content))
    with pytest.raises(DataError, match=r"(damaged|cannot be read).*--overwrite"):
        made(tmp_path, text)
    assert made(tmp_path, text, overwrite=True).done(0) is None


def test_a_bucket_that_was_being_aligned_again_when_its_machine_stopped_is_not_done(tmp_path: Path) -> None:
    """The facts of a bucket are written first: those of other ids than are there were written and no more."""
    text = "customer\nc1\nc2\nc3\nc4\n"
    made(tmp_path, text).keep(0, psi_buckets.DoneBucket(np.array([0, 1]), np.array([5, 7])))
    np.save(tmp_path / "buckets" / "0.done.npy", np.array([[0, 5], [1, 8]]))
    assert made(tmp_path, text).done(0) is None


def test_the_command_has_buckets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Too small ones are refused before anybody is met."""
    (tmp_path / "people.csv").write_text("customer\nc1\n")
    command = f"align {tmp_path / 'people.csv'} --id customer --as bank --active bank --peer telecom=127.0.0.1:9"
    more = f"--plaintext-on-loopback --out {tmp_path / 'aligned'} --buckets 2"
    assert main(f"{command} {more}".split()) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "splitvfl: bank has 0 records in bucket" in said
    assert json.loads((tmp_path / ".aligned.buckets" / "buckets.json").read_bytes())["format"] == "splitvfl buckets"
