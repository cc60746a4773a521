"""Every reader of a file that may be somebody else's, against files that nobody should be able to harm it with."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitvfl.app.beginning import Beginning
from splitvfl.app.run_files import kept_settings
from splitvfl.app.saved_run import run_config
from splitvfl.app.serving_noise import noise_key, note_settings
from splitvfl.cli import main
from splitvfl.config.sections import kept_text
from splitvfl.crypto.keys import PrivateKey
from splitvfl.data import alignment, schema, shard_files, store
from splitvfl.data.ingest import statistics
from splitvfl.data.ranges import read_ranges
from splitvfl.errors import CheckpointError, ConfigError, CryptoError, DataError, SplitVFLError
from splitvfl.leakage import reconstruction, shown_records
from splitvfl.leakage.monitor import read_metrics
from splitvfl.party.kept import Kept, Limits, Pieces
from splitvfl.party.refusals import Refusals
from splitvfl.report import audit_file, releases
from splitvfl.report.summary import read_summary
from splitvfl.run import checkpoint, half_folder, ledger_file
from splitvfl.run.ask_limits import AskCounts, AskLimits
from splitvfl.run.party_folder import PartyFolder
from splitvfl.run.replay import ReplayJournal
from splitvfl.run.revealed_file import read_revealed
from tests.rows import every


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: Where it lies in its folder.
        read: Reads it, given the folder.
        error: What is raised of a bad one.
        json: Whether it is one JSON document.
        format: The format that it begins with, and its version.
        version: Its version, if it has one.
        linked: Whether a link is followed, as the user has named the file itself.
    """

    name: str
    read: Callable[[Path], Any]
    error: type[SplitVFLError] = CheckpointError
    json: bool = True
    format: str = ""
    version: int = 0
    linked: bool = False


def of_files(name: str, error: type[SplitVFLError] = CheckpointError, **more: Any) -> Any:
    """Return a kind that is no JSON."""
    return partial(Kind, name, error=error, json=False, **more)


def kept(folder: Path) -> object:
    return Kept.found(folder / "kept", ["bank"], Pieces(4, 2), limits=Limits(memory_mib=1, disk_mib=1), records="")


def aligned(folder: Path, name: str) -> object:
    return alignment._read_array(folder / name, 3)


def columns(folder: Path, name: str) -> object:
    return store._mapped(folder / name, (3,), "<i8")


def counts(folder: Path) -> object:
    return statistics._counts_file(folder).tensor_heads()


KINDS = {
    # A run
    "summary": Kind("summary.json", read_summary),
    "reconstruction": Kind(
        "reconstruct.json",
        reconstruction.read_reconstruction,
        format=reconstruction.FORMAT,
        version=reconstruction.VERSION,
    ),
    "shown records": Kind("columns-read.json", shown_records.read_shown, version=1),
    "audit": Kind("audit.json", audit_file.read_audit, format=audit_file.FORMAT, version=audit_file.VERSION),
    "releases": Kind("releases.json", releases.releases),
    "reserve": Kind("reserved-predictions.json", releases.reserve_of),
    "metrics": Kind("metrics.jsonl", read_metrics),
    "beginning": Kind("begun.json", partial(Beginning.noted, going_on=True)),
    "farewell": Kind("farewell.json", lambda folder: PartyFolder(folder).noted_farewell()),
    "settings": of_files("experiment.yaml", ConfigError)(kept_settings),
    "settings of a saved run": of_files("experiment.yaml", ConfigError)(partial(run_config, modules=".")),
    "settings as text": of_files("experiment.yaml", ConfigError)(lambda folder: kept_text(folder / "experiment.yaml")),
    "replay journal": of_files("replay.journal")(lambda folder: ReplayJournal(folder / "replay.journal", ["scores"])),
    "refused sums": of_files("refused-sums-bank.journal")(
        lambda folder: Refusals("bank", folder / "refused-sums-bank.journal")
    ),
    "checkpoint": of_files("run.pt")(checkpoint.load),
    "kept activations": Kind("kept/index.json", kept),
    "ledger key": of_files("ledger.key")(ledger_file.key_of),
    "ledger": of_files("ledger.jsonl")(
        lambda folder: list(ledger_file.read_on(ledger_file.Chain(folder, None), np.zeros(0, ledger_file._ENTRY)))
    ),
    "ledger marks": of_files("scored.bin")(partial(ledger_file.entries_from, start=0)),
    "requests": Kind("asked.json", lambda folder: AskCounts(AskLimits(), folder / "asked.json")),
    "noise key": of_files("noise.key")(lambda folder: noise_key(folder / "noise.key")),
    "noise settings": Kind("noise.json", lambda folder: note_settings(folder, {}, print)),
    # A trained model part
    "model part": Kind(
        "half.json", half_folder.read_half_schema, format=half_folder.FORMAT, version=half_folder.VERSION
    ),
    "weights": of_files("weights.safetensors")(half_folder.read_weights),
    "transform": of_files("transform.safetensors")(half_folder.read_transform),
    "digest": of_files("vocabulary.safetensors")(
        lambda folder: half_folder.check_file(folder, "vocabulary.safetensors", "")
    ),
    # Tables, alignments, shards
    "tables": Kind("schema.json", schema.read_data_schema, DataError, format=schema.FORMAT, version=schema.VERSION),
    "table of a party": Kind(
        "schema.json", schema.read_party_schema, DataError, format=schema.FORMAT, version=schema.VERSION
    ),
    "columns": of_files("train.ids.npy", DataError, linked=True)(partial(columns, name="train.ids.npy")),
    "alignment": Kind(
        "alignment.json", alignment.read_alignment, DataError, format=alignment.FORMAT, version=alignment.VERSION
    ),
    "aligned rows": of_files("rows.npy", DataError)(partial(aligned, name="rows.npy")),
    "shards": Kind(
        shard_files.SHARDING_FILE,
        shard_files.read_sharding,
        DataError,
        format=shard_files.FORMAT,
        version=shard_files.VERSION,
    ),
    "statistics": Kind(
        "statistics.json", statistics.ShardFolder, DataError, format=statistics.FORMAT, version=statistics.VERSION
    ),
    "counts": of_files("counts.safetensors", DataError)(counts),
    # What the user names
    "revealed weights": of_files("w.safetensors", DataError, linked=True)(
        lambda folder: read_revealed(folder / "w.safetensors")
    ),
    "private key": of_files("bank.key", CryptoError, linked=True)(lambda folder: PrivateKey.load(folder / "bank.key")),
    "ranges": of_files("ranges.csv", DataError, linked=True)(lambda folder: read_ranges(folder / "ranges.csv")),
}
PIPED = ("ranges",)  # a pipe that the user names is read

JSON = [name for name, kind in KINDS.items() if kind.json]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "received" / "kept").mkdir(parents=True)
    return tmp_path / "received"


def refused(kind: Kind, folder: Path, said: str) -> None:
    with pytest.raises(kind.error, match=f"{kind.name}.*{said}"):
        kind.read(folder)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.linked])
def test_a_link_is_not_followed(folder: Path, name: str) -> None:
    kind = KINDS[name]
    (folder.parent / "secret").write_text("token: swordfish")
    for target in (folder.parent / "secret", folder.parent / "nowhere", Path("/dev/zero")):
        (folder / kind.name).unlink(missing_ok=True)
        (folder / kind.name).symlink_to(target)
        refused(kind, folder, "is a link, .* is not followed")
    assert (folder.parent / "secret").read_text() == "token: swordfish"
    assert not (folder.parent / "nowhere").exists()


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.linked])
def test_a_link_that_the_user_names_leads_to_a_file_alone(folder: Path, name: str) -> None:
    kind = KINDS[name]
    (folder / kind.name).symlink_to(folder)
    refused(kind, folder, "is no file")


@pytest.mark.parametrize("name", [name for name in KINDS if name not in PIPED])
def test_pipes_and_folders_are_refused_and_not_waited_at(folder: Path, name: str) -> None:
    kind = KINDS[name]
    os.mkfifo(folder / kind.name)
    refused(kind, folder, "is no file, but a folder, a pipe or a device")
    (folder / kind.name).unlink()
    (folder / kind.name).mkdir()
    refused(kind, folder, "is no file, but a folder, a pipe or a device")


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("ledger", "private key")])
def test_no_memory_is_taken_for_a_file_of_a_terabyte(folder: Path, name: str) -> None:
    kind = KINDS[name]
    (folder / kind.name).touch(mode=0o600)
    os.truncate(folder / kind.name, 1 << 40)  # a hole, which takes no room
    refused(kind, folder, "is larger than .*, and no such file is")


@pytest.mark.parametrize("name", ["ledger", "private key"])
def test_of_a_terabyte_no_more_is_read_than_such_a_file_holds(folder: Path, name: str) -> None:
    kind = KINDS[name]
    (folder / kind.name).touch(mode=0o600)
    os.truncate(folder / kind.name, 1 << 40)
    if name == "ledger":
        assert kind.read(folder) == []  # its line has no end
    else:
        refused(kind, folder, "holds no private key")


NOT_JSON = {
    "nothing": (b"", ""),
    "cut off": (b'{"a": ', ""),
    "no UTF-8": (b'{"a": "\xff\xfe"}', "utf-8"),
    "a key twice": (b'{"a": 1, "a": 2}', "'a' comes twice"),
    "too deep": (b'{"a":' * 65 + b"1" + b"}" * 65, "nested more than 64 deep"),
    "far too deep": (b"[" * 200_000, "depth"),
    "too many values": (b"[" + b"[]," * 4_200_000 + b"[]]", "expected at most 4,194,304 values|is larger than 1 MiB"),
    "NaN": (b'{"a": NaN}', ""),
}


@pytest.mark.parametrize("name", JSON)
@every(what=NOT_JSON)
def test_what_is_no_strict_json_is_refused(folder: Path, name: str, what: str) -> None:
    kind, (content, said) = KINDS[name], NOT_JSON[what]
    if name == "metrics" and not content:
        return  # a run that has logged nothing yet
    (folder / kind.name).write_bytes(content)
    refused(kind, folder, said)


@pytest.mark.parametrize("name", [name for name in JSON if name not in ("audit", "noise settings")])
@every(content=[b"3", b'"text"', b"null", b'[["a"], 1]', b'{"format": [], "version": {}, "run": []}'])
def test_what_holds_something_else_is_refused(folder: Path, name: str, content: bytes) -> None:
    kind = KINDS[name]
    (folder / kind.name).write_bytes(content)
    refused(kind, folder, "")


@pytest.mark.parametrize("name", [name for name in JSON if KINDS[name].version])
def test_another_version_is_refused_by_name(folder: Path, name: str) -> None:
    kind = KINDS[name]
    head = f'"format": "{kind.format}"'
    (folder / kind.name).write_text(f'{{{head}, "version": {kind.version + 1}}}')
    refused(kind, folder, f"has version {kind.version + 1}, expected {kind.version}; .*a newer one made it")
    (folder / kind.name).write_text(f"{{{head}}}")
    refused(kind, folder, f"has no version, expected {kind.version}")


@pytest.mark.parametrize(
    "name", ["weights", "transform", "counts", "revealed weights", "checkpoint", "columns", "aligned rows"]
)
def test_numbers_that_are_none_are_refused(folder: Path, name: str) -> None:
    kind = KINDS[name]
    for content in (b"", bytes(64), b"\x80\x02}q\x00.", b"PK\x05\x06" + bytes(18), os.urandom(200)):
        (folder / kind.name).write_bytes(content)
        refused(kind, folder, "")


def test_a_reader_that_finds_nothing_makes_nothing_up(folder: Path) -> None:
    """Else every test above could pass for a file that is not looked for."""
    (folder / "kept").rmdir()
    for name, kind in KINDS.items():
        if name in ("beginning", "replay journal", "noise key", "noise settings"):  # these are made then
            continue
        found: Any = None
        with suppress(kind.error):
            found = kind.read(folder)
        assert found is None or not getattr(found, "__len__", lambda: 0)(), name
    assert list(folder.iterdir()) == []


# --- from the command line


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to("/etc/hostname"),
    "a pipe": os.mkfifo,
    "a hole": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "far too deep": lambda path: path.write_bytes(b"[" * 200_000),
    "something else": lambda path: path.write_bytes(b'[{"a": 1}]'),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("report RUN --out PAGE", "summary.json"),
        ("predict RUN --out PAGE", "model/bank/half.json"),
        ("predict RUN --out PAGE", "experiment.yaml"),
        ("audit RUN", "experiment.yaml"),
        ("train RUN/experiment.yaml", "experiment.yaml"),
    ],
)
def test_a_command_ends_with_exit_code_2_and_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, what: str
) -> None:
    if command.startswith("train") and what in ("a link", "a pipe"):
        pytest.skip("a file that the user names may be either")
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    (tmp_path / "run" / "model" / "bank").mkdir(parents=True, exist_ok=True)
    HOSTILE[what](path)
    words = command.replace("RUN", str(tmp_path / "run")).replace("PAGE", str(tmp_path / "page")).split()
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("splitvfl: ")
    assert "Traceback" not in errors
    assert not (tmp_path / "page").exists()


def test_an_audit_writes_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in the place of ``audit.json`` may lead to any file of who audits."""
    from splitvfl.report import audit_page

    (tmp_path / "victim").write_text("mine")
    (tmp_path / "audit.html").symlink_to(tmp_path / "victim")
    monkeypatch.setattr(audit_page, "audit_page", lambda audit: "all")
    audit_page.write_audit_page({}, tmp_path / "audit.html")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "audit.html").read_text() == "all"


def test_a_checkpoint_with_a_plain_state_is_read(folder: Path) -> None:
    torch.save({"w": torch.ones(3), "step": 1}, folder / "run.pt")
    assert checkpoint.load(folder)["run"]["step"] == 1
