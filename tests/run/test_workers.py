"""Parties of several workers each: the weights of one process, and of an undisturbed run whatever happens to one."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from splitvfl.app.addresses import CHECKING, AddressBook
from splitvfl.app.saved_model import load_half
from splitvfl.app.team_settings import check_team
from splitvfl.app.workers import team_of
from splitvfl.cli import main
from splitvfl.config.sections import parse_config
from splitvfl.errors import ConfigError
from splitvfl.net.certs import make_certificates
from splitvfl.run import checkpoint
from tests.commands import Command, Within
from tests.run.kubelet import Kubelet
from tests.run.parties import (
    finished,
    free_ports,
    has_reached,
    neighbouring_ports,
    newest_of,
    same_weights,
    signalled,
    start,
    weights_of,
)
from tests.summaries import opened

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT+"}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [16, 8], top_hidden: [8]}
exchange: {name: split, in_flight: 1}
team: {workers: 2}
train:
  epochs: 2
  batch_size: 47
  seed: 3
  private_seed_for_experiments: 3
  noise_seed_for_experiments: 5
  checkpoint_every_steps: 4
  early_stopping: {patience: 2, validation_every: 7}
network: {listen: "127.0.0.1:PORT+", certificates: certs, message_s: 30, meeting_s: 60}
audit: false
"""
# An activation is defended as a whole, by what remembers and draws. Of a gradient each worker defends its own rows,
# with noise of its own: so little that the weights are those of one process, and to the bit only those of a run that
# has drawn the same.
ON_PARTS = (
    TEXT + "defenses:\n  - own_hooks:Spread\n  - {name: clip-gradient, bound: 0.01}\n"
    "  - {name: isotropic, sigma: 1.0e-8}\n"
)
OWN_HOOKS = '''
class Spread:
    """Noise as large as a share of the longest row so far, which is of all rows of a batch."""

    crossing = "activation"
    longest = 0.0

    def __call__(self, activation, secrets, /):
        self.longest = max(self.longest, activation.norm(dim=1).max().item())
        return secrets.add_normal(activation - 0.5 * activation.mean(dim=0), 0.01 * self.longest)

    def state_dict(self):
        return {"longest": self.longest}

    def load_state_dict(self, state, /):
        self.longest = state["longest"]
'''
DEFENDED = (
    TEXT.replace("top_hidden: [8]", "top_hidden: []").replace("audit: false", "audit: {canaries: 60}")
    + "defenses:\n  - {name: asymmetric-response, detection_error: 0.3}\n  - {name: isotropic, ratio: 2.0}\n"
    "attacks: [norm, direction, residual]\n"
)
PARTIES = ("clinic", "lab")
WORKERS, STEPS = 2, 2 * 9


def start_worker(
    root: Path, folder: Path, name: str, rank: int, port: int, *more: str, within: Within = nullcontext
) -> Command:
    """Start one worker, with the variables that torchrun sets."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORKERS, "MASTER_ADDR": "127.0.0.1"}
    return Command(
        ["party", "run.yaml", "--as", name, "--out", f"runs/{name}", *more],
        folder,
        within=within,
        COLUMNS="120",
        PYTHONPATH=str(root),
        MASTER_PORT=str(port),
        **{key: str(value) for key, value in variables.items()},
    )


def start_party(root: Path, folder: Path, name: str, *more: str) -> dict[str, Command]:
    (port,) = free_ports(1)
    return {f"{name} {rank}": start_worker(root, folder, name, rank, port, *more) for rank in range(WORKERS)}


def place(folder: Path, text: str = ON_PARTS) -> None:
    """Make a folder in which parties can be started."""
    folder.mkdir(exist_ok=True)
    make_certificates(folder / "certs", list(PARTIES))
    # Two ports that follow each other.
    first = neighbouring_ports(WORKERS)
    (folder / "run.yaml").write_text(text.replace("PORT", str(first)))
    (folder / "own_hooks.py").write_text(OWN_HOOKS)


def folders(root: Path, name: str) -> list[Path]:
    run = root / "runs" / name
    return [run, *(run / f"worker-{rank}" for rank in range(1, WORKERS))]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """Two parties of two workers, and the same in one process."""
    folder = tmp_path_factory.mktemp("workers")
    place(folder)
    finished({key: one for name in PARTIES for key, one in start_party(checkout, folder, name).items()})
    finished({"whole": start(checkout, ["train", "run.yaml", "--out", "runs/whole"], folder)})
    return folder


def test_defenses_attacks_and_the_auditor_have_the_whole_message(tmp_path: Path, checkout: Path) -> None:
    """With the figures of one process, whose noise, answers and canaries are drawn with the same seeds."""
    place(tmp_path, DEFENDED)
    finished({key: one for name in PARTIES for key, one in start_party(checkout, tmp_path, name).items()})
    finished({"whole": start(checkout, ["train", "run.yaml", "--out", "runs/whole"], tmp_path)})

    whole = newest_of(tmp_path / "runs" / "whole")
    for name in PARTIES:
        weights = [weights_of(folder) for folder in folders(tmp_path, name)]
        assert same_weights(*weights)
        assert largest_difference(weights[0], whole[f"party-{name}"]["module"]) < 1e-4
    apart, together = (opened(tmp_path / "runs" / run / "summary.json") for run in ("clinic", "whole"))
    for figure in ("test_metric", "test_loss", "canaries", "steps"):
        assert apart[figure] == pytest.approx(together[figure], abs=1e-4), figure
    # A figure of ranks changes by a pair where rounding swaps two scores.
    for figure in ("beyond_prediction", "prediction_auc", "detection_error"):
        leak, known = (found["parties"]["lab"][figure] for found in (apart, together))
        assert leak == pytest.approx(known, abs=2e-3), figure
    # Over a network nobody but the partner has its features, and they tell more than these messages.
    assert [found["parties"]["lab"].get("includes_features", False) for found in (apart, together)] == [False, True]
    assert apart["parties"]["lab"]["prediction_auc"] - 0.02 < apart["parties"]["lab"]["total"]
    assert apart["parties"]["lab"]["total"] < together["parties"]["lab"]["total"]
    ours, theirs = (found["parties"]["lab"]["attacks"] for found in (apart, together))
    assert {"norm", "direction", "residual", "auditor-likelihood"} <= ours.keys() == theirs.keys()
    for attack in ours:
        for figure in ("auc", "accumulated_auc", "steps", "positives", "negatives"):
            assert ours[attack][figure] == pytest.approx(theirs[attack][figure], abs=2e-3), (attack, figure)


def test_what_is_drawn_at_random_is_worker_0s(tmp_path: Path, checkout: Path) -> None:
    """First weights and canaries, without any seed: each worker alone would have others. Noise on rows is its own."""
    text = DEFENDED.replace("  private_seed_for_experiments: 3\n", "").replace("  noise_seed_for_experiments: 5\n", "")
    assert "seed_for" not in text
    text = text.replace("defenses:\n", "defenses:\n  - {name: gaussian-ir, clip: 3.0, sigma: 0.1}\n")
    place(tmp_path, text.replace("epochs: 2", "epochs: 1"))
    finished({key: one for name in PARTIES for key, one in start_party(checkout, tmp_path, name).items()})
    for name in PARTIES:
        assert same_weights(*(weights_of(folder) for folder in folders(tmp_path, name)))
    ours, theirs = (newest_of(folder)["hooks"]["canaries"] for folder in folders(tmp_path, "clinic"))
    assert ours["coins"].numel() == 60
    assert all(torch.equal(ours[key], theirs[key]) for key in ("positions", "ids", "coins"))
    drawing = [newest_of(folder)["hooks"]["defenses"] for folder in folders(tmp_path, "lab")]
    for phase in ("activation/training", "activation/evaluation"):
        one, other = (state[phase]["gaussian-ir"]["keystream"] for state in drawing)
        assert one["key"] != other["key"]
        assert "0" not in (one["position"], other["position"])


def largest_difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> float:
    assert left.keys() == right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in left)


def test_workers_end_equal_and_with_the_weights_of_one_process(workplace: Path) -> None:
    newest = checkpoint.latest(workplace / "runs" / "whole" / "checkpoints")
    assert newest is not None
    whole = checkpoint.load(newest)
    assert whole["run"]["step"] == STEPS
    for name in PARTIES:
        weights = [weights_of(folder) for folder in folders(workplace, name)]
        assert same_weights(*weights)
        # Sums of float32 numbers in another order, over 18 steps.
        assert largest_difference(weights[0], whole[f"party-{name}"]["module"]) < 1e-5


def test_a_checkpoint_says_whose_noise_it_holds_and_on_what_defenses_act(workplace: Path) -> None:
    """A run goes on with the same only: else noise would be drawn anew for what was sent."""
    for name in PARTIES:
        for rank, folder in enumerate(folders(workplace, name)):
            terms = newest_of(folder)["run"]["terms"]
            assert terms["number of this worker"] == str(rank)
            assert json.loads(terms["scope of defenses"]) == ["batch", "row", "row"]


def test_figures_are_of_all_records_and_logged_by_worker_0(workplace: Path) -> None:
    together, whole = (
        [json.loads(line) for line in (workplace / "runs" / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("clinic", "whole")
    )
    assert [line["step"] for line in together] == [line["step"] for line in whole]
    for one, other in zip(together, whole, strict=True):
        assert one.keys() == other.keys()
        assert all(one[tag] == pytest.approx(other[tag], abs=1e-5) for tag in one)
    assert {"train/loss", "test/auc", "validation/auc"} <= together[-1].keys()
    tested, theirs = (newest_of(workplace / "runs" / run)["run"]["tested"] for run in ("clinic", "whole"))
    assert tested["positions"].tolist() == theirs["positions"].tolist() == list(range(129))
    assert torch.allclose(tested["outputs"], theirs["outputs"], atol=1e-4)
    assert newest_of(workplace / "runs" / "clinic" / "worker-1")["run"]["tested"] is None
    assert not (workplace / "runs" / "clinic" / "worker-1" / "metrics.jsonl").exists()
    assert not (workplace / "runs" / "clinic" / "worker-1" / "model").exists()
    for name in PARTIES:
        load_half(workplace / "runs" / name / "model")


def test_workers_that_nobody_answers_leave_their_earlier_run(workplace: Path, tmp_path: Path, checkout: Path) -> None:
    place(tmp_path)
    run = shutil.copytree(workplace / "runs" / "clinic", tmp_path / "runs" / "clinic")

    def content() -> dict[str, bytes]:
        files = (path for path in run.rglob("*") if path.is_file() and path.suffix != ".lock")
        return {str(path.relative_to(run)): path.read_bytes() for path in files}

    before = content()
    assert "worker-1/experiment.yaml" in before
    parted = start_party(checkout, tmp_path, "clinic", "network.meeting_s=1", "--overwrite")
    said = {name: process.communicate(timeout=60)[1] for name, process in parted.items()}
    assert {process.returncode for process in parted.values()} == {2}, said
    assert "holds the earlier run again" in " ".join(said["clinic 0"].split())
    assert content() == before


def test_a_run_goes_on_like_an_undisturbed_one_when_one_worker_was_asked_to_stop(
    workplace: Path, tmp_path: Path, checkout: Path
) -> None:
    place(tmp_path)
    parties = {"clinic": start_party(checkout, tmp_path, "clinic")}
    asked = partial(signalled, 10, signal.SIGTERM, tmp_path / "asked")
    (port,) = free_ports(1)
    lab = [
        start_worker(checkout, tmp_path, "lab", rank, port, within=within)
        for rank, within in enumerate((nullcontext, asked))
    ]
    said = [one.communicate(timeout=60) for one in lab]
    assert [one.returncode for one in lab] == [130, 130], said
    assert not has_reached(tmp_path / "runs" / "lab", STEPS)
    parties["lab"] = start_party(checkout, tmp_path, "lab")
    finished({key: one for workers in parties.values() for key, one in workers.items()})

    for party in PARTIES:
        known = weights_of(workplace / "runs" / party)
        assert all(same_weights(weights_of(one), known) for one in folders(tmp_path, party)), party


@pytest.mark.parametrize(
    ("name", "rank", "slow"),
    [
        pytest.param("lab", 1, True, marks=pytest.mark.slow(reason="a worker that stands still")),
        ("clinic", 0, False),
    ],
)
def test_workers_that_are_started_again_one_by_one_end_like_an_undisturbed_run(
    name: str, rank: int, slow: bool, workplace: Path, tmp_path: Path, checkout: Path
) -> None:
    """One is killed and back at once; the other one of its party ends a little later, or much later."""
    place(tmp_path)
    ports = dict(zip(PARTIES, free_ports(2), strict=True))
    victim, other = f"{name} {rank}", f"{name} {1 - rank}"
    happened = tmp_path / "happened"
    happens = {victim: partial(signalled, 10, signal.SIGKILL, happened)}
    if slow:  # before the other one is killed
        happens = {other: partial(signalled, 10, signal.SIGSTOP, happened)}
    starts = {
        f"{party} {number}": partial(
            start_worker,
            checkout,
            tmp_path,
            party,
            number,
            ports[party],
            within=happens.get(f"{party} {number}", nullcontext),
        )
        for party in PARTIES
        for number in range(WORKERS)
    }
    with Kubelet(starts) as kubelet:
        kubelet.until(happened.exists, "the signal")
        if slow:
            kubelet.running[victim].kill()
        kubelet.until(lambda: bool(kubelet.ended[victim]), "it was killed")
        if slow:
            # Until the new one has found what the other one has left; if it has not, nothing is tested by it.
            time.sleep(1.0)
            kubelet.running[other].send_signal(signal.SIGCONT)
        kubelet.finish()

    # Nobody needs a third attempt, and the other party none.
    assert kubelet.ended == {key: {victim: [-signal.SIGKILL], other: [2]}.get(key, []) for key in starts}
    for party in PARTIES:
        known = weights_of(workplace / "runs" / party)
        assert all(same_weights(weights_of(one), known) for one in folders(tmp_path, party)), party


def test_a_folder_of_a_worker_that_is_lost_is_missed(workplace: Path, tmp_path: Path, checkout: Path) -> None:
    """Nobody begins anew without it: what it sent would be sent with other noise, and the others have gone on."""
    place(tmp_path)
    for name in PARTIES:
        shutil.copytree(workplace / "runs" / name, tmp_path / "runs" / name)
    shutil.rmtree(tmp_path / "runs" / "lab" / "worker-1")
    longer = "train.epochs=3"
    workers = {key: one for name in PARTIES for key, one in start_party(checkout, tmp_path, name, longer).items()}
    said = {key: one.communicate(timeout=90)[1] for key, one in workers.items()}
    assert {one.returncode for one in workers.values()} == {2}
    for rank in range(WORKERS):
        assert "worker 1 of lab has no checkpoint" in " ".join(said[f"lab {rank}"].split())


def test_a_worker_does_not_go_on_with_the_folder_of_another(workplace: Path, tmp_path: Path, checkout: Path) -> None:
    """With its noise, for records that it was not drawn for, and without what was answered of its own."""
    place(tmp_path)
    for name in PARTIES:
        shutil.copytree(workplace / "runs" / name, tmp_path / "runs" / name)
    first, second = (folder / "checkpoints" for folder in folders(tmp_path, "lab"))
    aside = tmp_path / "aside"
    for source, target in ((first, aside), (second, first), (aside, second)):
        source.rename(target)
    longer = "train.epochs=3"
    waiting, workers = (start_party(checkout, tmp_path, name, longer) for name in PARTIES)
    said = {key: " ".join(one.communicate(timeout=90)[1].split()) for key, one in workers.items()}
    for one in waiting.values():  # for a lab that comes with the right ones
        one.kill()
    assert {one.returncode for one in workers.values()} == {2}
    assert any(f"number of this worker was {1 - rank} and is {rank}" in said[f"lab {rank}"] for rank in range(WORKERS))


def test_workers_with_different_files_are_told_what_differs(tmp_path: Path, checkout: Path) -> None:
    place(tmp_path)
    (port,) = free_ports(1)
    workers = {
        str(rank): start_worker(checkout, tmp_path, "lab", rank, port, f"train.optimizer.lr=0.0{rank + 1}")
        for rank in range(WORKERS)
    }
    for one in workers.values():
        assert "workers 0 and 1 of lab do not have the same: train: " in one.communicate(timeout=60)[1]
        assert one.returncode == 2


def test_a_worker_that_fails_ends_the_others_and_they_say_which_it_was(tmp_path: Path, checkout: Path) -> None:
    place(tmp_path)
    (tmp_path / "runs" / "lab" / "worker-1").mkdir(parents=True)
    (tmp_path / "runs" / "lab" / "worker-1" / "precious").write_text("mine")
    (port,) = free_ports(1)
    workers = [start_worker(checkout, tmp_path, "lab", rank, port) for rank in range(WORKERS)]
    said = [one.communicate(timeout=60)[1] for one in workers]
    assert [one.returncode for one in workers] == [2, 2]
    assert "holds files and is not a run" in said[0] + said[1]


# --- what is refused before anybody is met


def config_of(*changes: tuple[str, str]) -> Any:
    text = TEXT.replace("PORT", "7000")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_config(text, source="shop.yaml")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            (("top_hidden: [8]", "top_hidden: [8], private_top: true"),),
            "model.private_top: not with team.workers above 1",
        ),
        ((("seed: 3\n", "seed: 3\n  autocast: bf16\n"),), "train.autocast: not with"),
    ],
)
def test_what_several_workers_cannot_do_is_refused(changes: Any, complaint: str) -> None:
    check_team(config_of())
    with pytest.raises(ConfigError, match=f"shop.yaml: {complaint}"):
        check_team(config_of(*changes))


def test_workers_and_shards_are_as_many() -> None:
    assert config_of().shards == 2
    assert config_of(("seed: 3\n", "shards: 2\n  seed: 3\n")).shards == 2
    with pytest.raises(ConfigError, match=r"team\.workers is 2, and each worker has one shard, but train\.shards is 3"):
        config_of(("seed: 3\n", "shards: 3\n  seed: 3\n"))


def test_the_launcher_and_the_file_say_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    alone = config_of(("team: {workers: 2}\n", ""))
    with pytest.raises(ConfigError, match=r"4 workers were started.*team: \{workers: 4\}"), team_of(alone, "lab"):
        pass
    monkeypatch.delenv("WORLD_SIZE")
    with team_of(alone, "lab") as team:
        assert team.size == 1
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2"), team_of(config_of(), "lab"):
        pass


@pytest.mark.parametrize(
    ("address", "worker", "expected"),
    [
        ("127.0.0.1:7000+", 3, "127.0.0.1:7003"),
        ("[::1]:7000+", 1, "[::1]:7001"),
        ("clinic-{worker}.clinic.example:7000", 2, "clinic-2.clinic.example:7000"),
    ],
)
def test_a_worker_has_an_address_of_its_own(address: str, worker: int, expected: str) -> None:
    config = config_of(('"127.0.0.1:7000+"', f'"{address}"'))
    assert AddressBook(config, "lab", worker=worker)._partners()[0].address == expected


@pytest.mark.parametrize("listen", [":7000", "0.0.0.0:7000", "[::]:7000"])
def test_workers_on_machines_of_their_own_listen_at_one_port(listen: str) -> None:
    config = config_of(('listen: "127.0.0.1:7000+"', f'listen: "{listen}"'))
    lines = [AddressBook(config, "clinic", worker=worker).where() for worker in range(WORKERS)]
    assert lines == [[f"listens at {listen}"]] * 2
    with pytest.raises(ConfigError, match=r"network\.listen: all 2 workers would have the address 127\.0\.0\.1:7000;"):
        AddressBook(config_of(('listen: "127.0.0.1:7000+"', 'listen: "127.0.0.1:7000"')), "clinic").where()


def test_one_address_for_all_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"parties\.clinic\.address: all 2 workers would have the address"):
        AddressBook(config_of(('address: "127.0.0.1:7000+"', 'address: "127.0.0.1:7000"')), "lab")._partners()


def test_one_process_trains_in_shards_as_the_workers_would(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    assert main(["train", "run.yaml", "train.epochs=1", "--out", "runs/once"]) == 0
    newest = checkpoint.latest(workplace / "runs" / "once" / "checkpoints")
    assert newest is not None
    assert checkpoint.load(newest)["run"]["settings"]["shards of the records"] == WORKERS


def test_a_run_does_not_go_on_with_other_numbers(workplace: Path, tmp_path: Path, checkout: Path) -> None:
    """Of workers, or of batches in flight: the order of the records, or the weights, would be others from there on."""
    place(tmp_path)
    for name in PARTIES:
        shutil.copytree(workplace / "runs" / name, tmp_path / "runs" / name)
    text = (
        (tmp_path / "run.yaml").read_text().replace("team: {workers: 2}\n", "").replace("in_flight: 1", "in_flight: 0")
    )
    (tmp_path / "run.yaml").write_text(text)
    alone = {
        name: Command(
            ["party", "run.yaml", "--as", name, "--out", f"runs/{name}", "train.epochs=3"],
            tmp_path,
            COLUMNS="120",
            PYTHONPATH=str(checkout),
        )
        for name in PARTIES
    }
    said = {name: " ".join(one.communicate(timeout=60)[1].split()) for name, one in alone.items()}
    assert {one.returncode for one in alone.values()} == {2}
    assert any("workers of each party was 2 and is 1" in words for words in said.values()), said
    assert any("batches in flight was 1 and is 0" in words for words in said.values()), said


def test_a_port_that_is_taken_ends_all_workers_at_once(tmp_path: Path, checkout: Path) -> None:
    """Although worker 0 would have waited a minute for its partner."""
    place(tmp_path)
    first = first_port(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        started = time.monotonic()
        workers = start_party(checkout, tmp_path, "clinic")
        said = {key: one.communicate(timeout=50)[1] for key, one in workers.items()}
    assert time.monotonic() - started < 50
    assert {one.returncode for one in workers.values()} == {2}
    assert "cannot listen" in said["clinic 1"]
    assert "several workers on one machine need a port each" in said["clinic 1"]
    assert "worker 1 of clinic: cannot listen" in " ".join(said["clinic 0"].split())


def test_who_waits_in_vain_for_a_partner_says_for_whom(tmp_path: Path, checkout: Path) -> None:
    place(tmp_path)
    workers = start_party(checkout, tmp_path, "lab", "network.meeting_s=1")
    said = {key: one.communicate(timeout=50)[1] for key, one in workers.items()}
    assert {one.returncode for one in workers.values()} == {2}
    assert "no link with clinic at 127.0.0.1:" in said["lab 0"] + said["lab 1"]
    for words in said.values():
        assert "no link with clinic" in words.split("splitvfl, worker")[-1]


def test_only_a_party_has_several_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workplace: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["predict", str(workplace / "runs" / "clinic")]) == 2
    assert "splitvfl, worker 1: 2 workers were started" in capsys.readouterr().err


def test_check_says_how_workers_are_started_and_where_each_is_found(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    first = first_port(workplace)
    assert main(["check", "run.yaml", "--as", "lab", "--out", "runs/new"]) == 0
    said = capsys.readouterr().out
    for worker in range(WORKERS):
        assert f"worker {worker}: dials clinic at 127.0.0.1:{first + worker}" in said
    assert "next: torchrun --nproc-per-node 2 --no-python splitvfl party run.yaml --as lab" in said


def check(folder: Path, checkout: Path, name: str, wait: str = "4", **variables: str) -> Command:
    words = ["check", "run.yaml", "--as", name, "--connect", "--wait", wait, "--out", "runs/new"]
    return Command(words, folder, COLUMNS="200", PYTHONPATH=str(checkout), **variables)


def test_check_meets_the_partners_as_every_worker(tmp_path: Path, checkout: Path) -> None:
    place(tmp_path)
    checks = {name: check(tmp_path, checkout, name) for name in PARTIES}
    said = {name: one.communicate(timeout=60)[0] for name, one in checks.items()}
    assert {one.returncode for one in checks.values()} == {0}, said
    for name, other in (PARTIES, PARTIES[::-1]):
        assert [f"worker {worker}: connected: {other}" in said[name] for worker in range(WORKERS)] == [True, True]


def test_check_names_the_worker_whose_port_does_not_answer(tmp_path: Path, checkout: Path) -> None:
    place(tmp_path)
    # The clinic listens at one machine's worker 0 only, as where a rule of a firewall was forgotten.
    checks = {
        "lab": check(tmp_path, checkout, "lab", "2"),
        "clinic": check(tmp_path, checkout, "clinic", RANK="0", WORLD_SIZE="2"),
    }
    said = {name: one.communicate(timeout=60) for name, one in checks.items()}
    assert [one.returncode for one in checks.values()] == [2, 0]
    assert "worker 0: connected: clinic" in said["lab"][0]
    assert "worker 1: no link with clinic at 127.0.0.1" in said["lab"][1]
    assert "1 thing to mend" in said["lab"][1]
    assert "worker 0: connected: lab" in said["clinic"][0]
    assert "worker 1: connected" not in said["clinic"][0]


def test_check_stands_for_one_worker_where_each_listens_on_a_machine_of_its_own() -> None:
    config = config_of(('listen: "127.0.0.1:7000+"', 'listen: ":7000"'))
    assert AddressBook(config, "clinic", CHECKING).workers_here == range(1)
    assert AddressBook(config_of(), "clinic", CHECKING).workers_here == range(2)


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("0", "3"), ("one", "2")])
def test_check_is_started_as_a_worker_that_there_is(
    rank: str, size: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    assert main(["check", "run.yaml", "--as", "lab", "--out", "runs/new"]) == 2
    assert f"this process was started as worker {rank} of {size}" in capsys.readouterr().err


def test_a_party_stays_until_it_is_stopped_and_ends_well_then(workplace: Path, tmp_path: Path, checkout: Path) -> None:
    """When it is done: started again and again, it would look as if it failed."""
    place(tmp_path)
    for name in PARTIES:
        shutil.copytree(workplace / "runs" / name, tmp_path / "runs" / name)
    workers = start_party(checkout, tmp_path, "lab", "--stay")
    for one in workers.values():
        assert any("waits to be stopped" in line for line in one.stderr)
        assert one.poll() is None
        one.send_signal(signal.SIGTERM)
    assert [one.wait(60) for one in workers.values()] == [0, 0]


def test_all_come_back_if_worker_0_cannot_write_what_is_left(workplace: Path, tmp_path: Path, checkout: Path) -> None:
    """A worker that had left would be missed by one that is started again."""
    place(tmp_path)
    for name in PARTIES:
        shutil.copytree(workplace / "runs" / name, tmp_path / "runs" / name)
    shutil.rmtree(tmp_path / "runs" / "lab" / "model")
    (tmp_path / "runs" / "lab" / "model").touch()
    workers = start_party(checkout, tmp_path, "lab")
    said = {key: one.communicate(timeout=60)[1] for key, one in workers.items()}
    assert {one.returncode for one in workers.values()} == {2}, said
    assert "worker 0 of lab: " in said["lab 1"]


def first_port(folder: Path) -> int:
    """The port of worker 0."""
    return int((folder / "run.yaml").read_text().split('listen: "127.0.0.1:')[1].split("+")[0])
