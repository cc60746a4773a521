"""What a run says of when, how and on what it was made, and that it goes on with the same data only."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import shutil
import stat
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import yaml

from splitvfl.app.beginning import Beginning
from splitvfl.app.experiment import prepare, run_experiment
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.errors import CheckpointError, DataError
from splitvfl.report.provenance import deciding_settings, shown_settings, shown_word
from splitvfl.report.summary import read_summary
from splitvfl.run.half_folder import HalfSchema, _signed
from tests.summaries import opened

EXPERIMENT = """
data: {name: table, path: clients.csv, id_column: id, label: late}
parties:
  bank: {role: active, columns: [income]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [3]}
train: {epochs: 1, batch_size: 8}
audit: false
"""


def table(*, late: str = "01", first_value: float = 0.5, last_id: int = 40, names: str = "pay,bill") -> str:
    generator = np.random.default_rng(0)
    rows = [f"id,income,{names},late"]
    for number in range(40):
        income, pay, bill = generator.random(3)
        label = late[number % 2]
        identity = last_id if number == 39 else number
        rows.append(f"{identity},{income:.4f},{first_value if number == 0 else pay:.4f},{bill:.4f},{label}")
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run."""
    folder = tmp_path_factory.mktemp("clients")
    (folder / "clients.csv").write_text(table())
    (folder / "credit.yaml").write_text(EXPERIMENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "credit.yaml", "train.seed=3", "--out", str(folder / "run")]) == 0
    return folder


@pytest.fixture
def here(begun: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder as the current one, with the data that the run began with."""
    monkeypatch.chdir(begun)
    (begun / "clients.csv").write_text(table())
    return begun


def test_a_summary_says_when_how_and_on_what(here: Path) -> None:
    found = read_summary(Path("run")).provenance
    assert found is not None
    began, ended = (
        datetime.strptime(at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) for at in (found.started, found.finished)
    )
    assert began <= ended <= datetime.now(UTC)
    assert found.command == "splitvfl train credit.yaml train.seed=3 --out run"
    assert found.versions["torch"] == metadata.version("torch")
    assert found.versions["numpy"] == np.__version__
    assert (found.train + found.test, found.held_out) == (40, 0)
    assert {name: (party.role, party.numeric, party.fields) for name, party in found.parties.items()} == {
        "bank": ("active", 1, 0),
        "lab": ("passive", 2, 0),
    }
    assert str(here) not in Path("run/summary.json").read_text()


def test_digests_of_a_summary_are_of_the_data_and_need_the_key(here: Path) -> None:
    found = read_summary(Path("run")).provenance
    assert found is not None
    active = prepare(load_config("credit.yaml")).data.active
    by_id = {
        identity: label
        for part in (active.train, active.test)
        for identity, label in zip(part.ids.tolist(), part.labels.tolist(), strict=True)  # type: ignore[union-attr]
    }
    labels = np.array([by_id[identity] for identity in sorted(by_id)], dtype="<f4")
    digest = hashlib.sha256(b"<f4 (40,);" + labels.tobytes()).hexdigest()
    key = bytes.fromhex(json.loads(Path("run/begun.json").read_text())["key"])
    expected = hmac.new(key, f"bank/labels:{digest}".encode(), hashlib.sha256).hexdigest()[:32]
    assert found.parties["bank"].digests["labels"] == expected
    assert set(found.parties["lab"].digests) == {"schema", "records", "columns", "order"}
    assert stat.S_IMODE(Path("run/begun.json").stat().st_mode) == 0o600
    # Neither the plain digest nor the key is in what may be shown.
    written = Path("run/summary.json").read_text()
    assert digest not in written
    assert key.hex() not in written
    assert found.same_data
    assert found.same_data not in written


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"late": "10"}, "the labels of bank"),
        ({"first_value": 0.75}, "values in lab's columns"),
        ({"last_id": 99}, "the records of"),
        ({"names": "pay,other"}, "the names, kinds or encoding of lab's columns"),
    ],
)
def test_a_run_goes_on_with_the_data_that_it_began_with_only(
    here: Path, change: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("run/summary.json").read_bytes()
    Path("clients.csv").write_text(table(**change))  # type: ignore[arg-type]

    assert main(["train", "credit.yaml", "train.seed=3", "train.epochs=2", "--out", "run", "--resume"]) == 2

    told = capsys.readouterr().err
    assert "the data have changed since this run began" in told
    assert said in told
    assert Path("run/summary.json").read_bytes() == before


def test_a_finished_run_says_so_and_stays_as_it_is(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}

    assert main(["train", "credit.yaml", "train.seed=3", "--out", "run"]) == 2
    assert "already holds a finished run, of 1 epoch, finished 20" in capsys.readouterr().err
    assert main(["train", "credit.yaml", "train.seed=3", "--out", "run", "--resume"]) == 0
    assert "nothing is left to train" in " ".join(capsys.readouterr().err.split())
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_a_run_of_an_older_version_goes_on_with_a_note(here: Path, tmp_path: Path) -> None:
    config = load_config("credit.yaml")
    bench, folder, told = prepare(config), tmp_path / "run", []
    run_experiment(config, folder, workbench=bench)
    (checkpoint,) = (folder / "checkpoints").iterdir()
    state = torch.load(checkpoint / "run.pt", weights_only=True)
    del state["data"]
    torch.save(state, checkpoint / "run.pt")
    (folder / "begun.json").unlink()
    longer = load_config("credit.yaml", ["train.epochs=2"])

    summary = run_experiment(longer, folder, workbench=bench, resume=True, notify=told.append)

    assert any("is not checked" in line for line in told)
    assert summary.epochs == 2
    assert summary.provenance is not None
    assert summary.provenance.started == ""
    # Its own data were divided otherwise: loaded anew, other records would be tested.
    with pytest.raises(DataError, match=r"by the labels .*: train again; the old run still predicts new records"):
        run_experiment(load_config("credit.yaml", ["train.epochs=3"]), folder, resume=True)


def test_a_run_divided_by_labels_is_not_resumed(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree("run", tmp_path / "run")
    path = run / "begun.json"
    noted = json.loads(path.read_text())
    assert noted.pop("split_by") == "ids"
    path.write_text(json.dumps(noted))

    for command in (["check", "credit.yaml"], ["train", "credit.yaml", "--resume"]):
        assert main([*command, "train.seed=3", "train.epochs=2", "--out", str(run)]) == 2
        assert "This version divides by ids" in " ".join(capsys.readouterr().err.split())


def test_a_run_divided_by_labels_still_predicts_new_records_and_says_so(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree("run", tmp_path / "run")
    halves = [*run.rglob("half.json")]
    assert len(halves) == 2
    for path in halves:
        half = msgspec.json.decode(path.read_bytes(), type=HalfSchema)
        assert half.split_by == "ids"
        path.write_bytes(msgspec.json.encode(_signed(msgspec.structs.replace(half, split_by=msgspec.UNSET))))

    assert main(["predict", str(run), "--out", "own.csv"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "would test other records: train again; the old run still predicts new records (--records" in said
    assert main(["predict", str(run), "--records", "clients.csv", "--out", "new.csv"]) == 0
    assert len(Path("new.csv").read_text().splitlines()) == 1 + 40


def test_runs_on_equal_files_in_different_folders_have_equal_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        rows = [line.split(",") for line in table().splitlines()]
        (folder / "bank.csv").write_text("".join(f"{row[0]},{row[1]},{row[4]}\n" for row in rows))
        (folder / "lab.csv").write_text("".join(f"{row[0]},{row[2]},{row[3]}\n" for row in rows))
        (folder / "credit.yaml").write_text(
            "data: {name: table, id_column: id}\n"
            "parties:\n  bank: {role: active, path: bank.csv, label: late}\n  lab: {role: passive, path: lab.csv}\n"
            "model: {name: mlp, bottom: [3]}\ntrain: {epochs: 1, batch_size: 32}\naudit: false\n"
        )
        monkeypatch.chdir(folder)
        assert main(["train", "credit.yaml"]) == 0
        assert str(tmp_path) not in Path("runs/credit/summary.json").read_text()
        written.append(read_summary(Path("runs/credit")).provenance)
    first, second = written
    assert first is not None
    assert second is not None
    assert first.settings == second.settings
    assert first.data_identity == second.data_identity


def test_a_summary_of_an_older_version_stays_readable(here: Path, tmp_path: Path) -> None:
    written = opened(Path("run/summary.json"))
    del written["provenance"]
    (tmp_path / "summary.json").write_text(json.dumps(written))
    assert read_summary(tmp_path).provenance is None


def test_a_summary_that_was_handed_on_does_not_steer_the_terminal(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("run", tmp_path / "run")
    written = opened(tmp_path / "run/summary.json")
    written["provenance"]["finished"] = "2026\x1b[2J"
    written["notes"] = ["1\u202f000 crème\u202e"]
    (tmp_path / "run/summary.json").write_text(json.dumps(written))

    assert main(["train", "credit.yaml", "--out", str(tmp_path / "run")]) == 2

    told = capsys.readouterr().err
    assert r"finished 2026\x1b[2J" in told
    assert "\x1b" not in told
    assert read_summary(tmp_path / "run").notes == ["1\u202f000 crème\\u202e"]


DEEP = "[" * 100_000


@pytest.mark.parametrize("key", ["", "00" * 31, "00" * 33, "xy", None])
def test_a_key_that_is_none_is_refused(here: Path, tmp_path: Path, key: str | None) -> None:
    (tmp_path / "begun.json").write_text(json.dumps({"started": "", "key": key}))
    with pytest.raises(CheckpointError, match=r"begun\.json is damaged"):
        Beginning.noted(tmp_path, going_on=True)


@pytest.mark.parametrize("inside", [DEEP, '{"started": ' + DEEP])
def test_a_note_or_a_summary_without_end_is_damaged(here: Path, tmp_path: Path, inside: str) -> None:
    (tmp_path / "begun.json").write_text(inside)
    with pytest.raises(CheckpointError, match=r"begun\.json is damaged"):
        Beginning.noted(tmp_path, going_on=True)
    shutil.copy("run/summary.json", tmp_path)
    found = read_summary(tmp_path).provenance
    assert found is not None
    assert found.same_data == ""
    (tmp_path / "summary.json").write_text(inside)
    with pytest.raises(CheckpointError, match=r"summary\.json is damaged"):
        read_summary(tmp_path)


def test_what_is_shown_of_a_command_holds_no_secret_and_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        str(tmp_path / "a" / "x.yaml"),
        "data.path=/home/anna/clients 2026/x.csv",
        "train.noise_seed_for_experiments=12345",
        "network.token=hunter2",
        "--out=../elsewhere",
        "data={path: /home/anna/y.csv}",
        "a/b",
        "train.lr=0.1",
    ]
    shown = [shown_word(word) for word in words]
    assert shown[:4] == ["train", "a/x.yaml", "data.path=…/x.csv", "train.noise_seed_for_experiments=(not shown)"]
    assert shown[4] == "network.token=(not shown)"
    assert "anna" not in " ".join(shown)
    assert shown[-2:] == ["a/b", "train.lr=0.1"]


SHOWN = {
    "train={epochs: 1, noise_seed_for_experiments: 4}": "train={epochs: 1, noise_seed_for_experiments: (not shown)}",
    "parties={bank: {path: data/a, b: /home/x/b.csv}}": "parties={bank: {path: data/a, b: …/b.csv}}",
    "data.path=../secret/x": "data.path=…/x",
    "data.path=~bob/x": "data.path=…/x",
    "data.path=~": "data.path=~",  # nothing, in YAML
    r"data.path=C:\Users\me\x": "data.path=…/x",
    r"\\server\me\x.yaml": "…/x.yaml",
    "../secret/x.yaml": "…/x.yaml",
    "a/../../secret/x.yaml": "…/x.yaml",
    "~bob": "…/~bob",
    "data.path=s3://anna/secret/x": "data.path=…/x",
    "--records=bank=/home/anna/x.csv": "--records=bank=…/x.csv",
    "network={token: [hunter2]}": "network={token: (not shown)}",
    "defenses=['noise(seed_for_experiments=7)']": "defenses=[noise(seed_for_experiments=(not shown)]",
    "noise(seed_for_experiments=7)": "noise(seed_for_experiments=(not shown)",
    "train.lr=1e-2 # /home/anna": "train.lr=…/anna",
    "data={path: /home/anna": "data=(not shown)",
    "train.lr=1e-2": "train.lr=1e-2",
    "defenses=[]": "defenses=[]",
    "goal=null": "goal=null",
    "/home/anna=x/y.yaml": "…/y.yaml",
}


@pytest.mark.parametrize("word", SHOWN)
def test_values_within_a_setting_are_looked_at_one_by_one(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_word(word) == SHOWN[word]


def test_settings_are_shown_without_folders_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside = tmp_path / "data" / "x.csv"
    text = f"# anna\ndata:\n  path: {inside}\n  label: a/b\nnetwork:\n  certificates: '/etc/certs of anna/bank'\n"
    text += "parties:\n  bank: {role: active, path: /home/anna/b.csv}\ntrain: {noise_seed_for_experiments: 424242}\n"
    assert yaml.safe_load(shown_settings(text)) == {
        "data": {"path": "data/x.csv", "label": "a/b"},
        "network": {"certificates": "…/bank"},
        "parties": {"bank": {"role": "active", "path": "…/b.csv"}},
        "train": {"noise_seed_for_experiments": "(not shown)"},
    }
    assert shown_settings("data: {path: /home/anna") == "(not shown)\n"


def test_seeds_and_places_are_no_settings_that_figures_depend_on() -> None:
    settings = {
        "name": "x",
        "goal": 0.6,
        "data": {"path": "/x", "label": "y"},
        "train": {"seed": 1, "noise_seed_for_experiments": 2, "lr": 0.5, "threads": 1},
        "parties": {"bank": {"role": "active", "address": "host:1", "path": "/home/anna/x.csv"}},
        "network": {"listen": "x"},
        "data_seed": 3,
    }
    found = deciding_settings(settings)
    assert set(found) == {"data.label", "train.lr", "parties.bank.role", "data_seed"}
    assert not any(re.search("seed$", key) for key in found if key.startswith("train"))
