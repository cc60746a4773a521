"""Parties of two workers each, among which weights are divided: those of one process, whatever happens."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from splitvfl.app.saved_model import load_half
from splitvfl.cli import main
from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.net.certs import make_certificates
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.written_files import FAREWELL_FILE
from tests.commands import Command, Within
from tests.run.parties import (
    finished,
    free_ports,
    neighbouring_ports,
    newest_of,
    same_weights,
    signalled,
    start,
)
from tests.table_folders import write_tables

TEXT = """
data: {name: tables, path: tables}
parties:
  shop: {role: active, address: "127.0.0.1:PORT+"}
  paper: {role: passive}
model:
  name: wide-deep
  embedding_dim: 3
  bottom: [8, 6]
  cut_after: 1
  crosses: [[shop field 0, shop field 1]]
  cross_buckets: 51
  sparse: true
  tables: sharded
exchange: {name: split, in_flight: 1}
team: {workers: 2}
train:
  epochs: 3
  batch_size: 30
  block_rows: 4
  seed: 3
  private_seed_for_experiments: 3
  checkpoint_every_steps: 4
  early_stopping: {patience: 3, validation_every: 7}
network: {listen: "127.0.0.1:PORT+", certificates: certs, message_s: 30, meeting_s: 60}
audit: false
"""
PARTIES, WORKERS = ("shop", "paper"), 2
DIVIDED = ("model.dense=sharded", "exchange.in_flight=0", "train.epochs=2")
RECORDS, STEPS = 201, 3 * 6


def click_data() -> VerticalData:
    """Categories under Zipf's law at both parties, and one test record: worker 0 has none to evaluate."""
    random = torch.Generator().manual_seed(0)
    ids = {part: torch.arange(first, last) for part, first, last in (("train", 0, RECORDS), ("test", 900, 901))}
    labels = {part: torch.randint(2, own.shape, generator=random).float() for part, own in ids.items()}

    def party(name: str, sizes: tuple[int, ...], labels: Mapping[str, Tensor] | None) -> PartyData:
        def records(part: str) -> Records:
            count = len(ids[part])
            codes = (torch.tensor(sizes) ** torch.rand(count, len(sizes), generator=random) - 1).int()
            numeric = torch.randn(count, 2, generator=random)
            return Records(ids[part], Columns(numeric, codes), None if labels is None else labels[part])

        numbers, fields = (f"{name}0", f"{name}1"), tuple(f"{name} field {place}" for place in range(len(sizes)))
        return PartyData(name, (*numbers, *fields), numbers, sizes, records("train"), records("test"), fields)

    passives = {"paper": party("paper", (40, 9), None)}
    return VerticalData("clicks", "binary", 2, party("shop", (31, 5), labels), passives, "clicks that were made up")


def place(folder: Path) -> None:
    """Make a folder in which parties can be started."""
    folder.mkdir(exist_ok=True)
    make_certificates(folder / "certs", list(PARTIES))
    write_tables(folder / "tables", click_data())
    first = neighbouring_ports(WORKERS)
    (folder / "run.yaml").write_text(TEXT.replace("PORT", str(first)))


def start_party(
    root: Path, folder: Path, name: str, *more: str, within: Sequence[Within] = (nullcontext,) * WORKERS
) -> dict[str, Command]:
    (port,) = free_ports(1)
    variables = {"WORLD_SIZE": WORKERS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {
        f"{name} {rank}": Command(
            ["party", "run.yaml", "--as", name, "--out", f"runs/{name}", *more],
            folder,
            within=within[rank],
            COLUMNS="120",
            PYTHONPATH=str(root),
            **{key: str(value) for key, value in (variables | {"RANK": rank, "LOCAL_RANK": rank}).items()},
        )
        for rank in range(WORKERS)
    }


def folders(root: Path, name: str) -> list[Path]:
    run = root / "runs" / name
    return [run, *(run / f"worker-{rank}" for rank in range(1, WORKERS))]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """Two parties of two workers, and the same in one process."""
    folder = tmp_path_factory.mktemp("sharded")
    place(folder)
    said = finished({key: one for name in PARTIES for key, one in start_party(checkout, folder, name).items()})
    assert "tables are divided: this worker holds 25 of 49 rows" in said["paper 0"]
    finished({"whole": start(checkout, ["train", "run.yaml", "--out", "runs/whole"], folder)})
    return folder


def put_together(states: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of one process, of those of its workers, which have all others alike."""
    found = {}
    for name, first in states[0].items():
        if not name.endswith(".table.rows"):
            assert all(torch.equal(first, state[name]) for state in states), name
            found[name] = first
            continue
        rows = torch.empty(sum(len(state[name]) for state in states), first.shape[1])
        for rank, state in enumerate(states):
            rows[rank::WORKERS] = state[name]
        found[name.removesuffix(".rows")] = rows
    return found


def weights_of(root: Path, name: str, what: str = "module") -> dict[str, Tensor]:
    return put_together([newest_of(folder)["party"][what] for folder in folders(root, name)])


def largest_difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in left)


@pytest.mark.parametrize("name", PARTIES)
def test_workers_end_with_the_weights_of_one_process(workplace: Path, name: str) -> None:
    """Those as trained and those of the best evaluation; one is under way beside each step."""
    whole = newest_of(workplace / "runs" / "whole")
    assert whole["run"]["step"] == STEPS
    # Sums of float32 numbers in another order, and of Adam where gradients are tiny.
    assert largest_difference(weights_of(workplace, name), whole[f"party-{name}"]["module"]) < 2e-6
    assert largest_difference(weights_of(workplace, name, "kept"), whole[f"party-{name}"]["kept"]) < 2e-6


@pytest.mark.parametrize(("name", "rows"), [("shop", 36 + 51), ("paper", 49)])
def test_a_worker_holds_and_saves_its_part_of_rows_and_of_the_optimisers_state(
    workplace: Path, name: str, rows: int
) -> None:
    held = 0
    for folder in folders(workplace, name):
        party = newest_of(folder)["party"]
        own = {key: len(value) for key, value in party["module"].items() if key.endswith(".table.rows")}
        state = party["optimizer"]["embeddings"]["state"].values()
        assert [len(one["sum"]) for one in state] == list(own.values())
        held += sum(own.values())
    assert held == rows


def test_the_finished_half_has_whole_tables_and_computes_in_one_process(workplace: Path) -> None:
    parts = {}
    for name in PARTIES:
        ours = safetensors.torch.load_file(workplace / "runs" / name / "model" / "weights.safetensors")
        theirs = safetensors.torch.load_file(workplace / "runs" / "whole" / "model" / name / "weights.safetensors")
        assert largest_difference(ours, theirs) < 2e-6
        assert largest_difference(ours, weights_of(workplace, name, "kept")) == 0.0
        parts[name] = [
            load_half(folder).party(click_data()[name], device=torch.device("cpu"))
            for folder in (workplace / "runs" / name / "model", workplace / "runs" / "whole" / "model" / name)
        ]
    rows = torch.arange(50)
    outputs = []
    for shop, paper in zip(parts["shop"], parts["paper"], strict=True):
        assert isinstance(shop, ActiveParty)
        assert isinstance(paper, PassiveParty)
        outputs.append(shop.run_top([paper.activate(paper.train_batch(rows))], shop.train_batch(rows)))
    assert torch.allclose(*outputs, rtol=0, atol=1e-5)


def test_figures_are_those_of_one_process(workplace: Path) -> None:
    together, whole = (
        [json.loads(line) for line in (workplace / "runs" / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("shop", "whole")
    )
    assert [line["step"] for line in together] == [line["step"] for line in whole]
    for one, other in zip(together, whole, strict=True):
        assert one == pytest.approx(other, abs=1e-5, nan_ok=True)


def train_with_a_killed_worker(root: Path, folder: Path, *more: str) -> dict[str, str]:
    """Train, and start the party anew of which a worker is killed behind step 10; return what was said."""
    place(folder)
    shop = start_party(root, folder, "shop", *more)
    killed = partial(signalled, 10, signal.SIGKILL, folder / "killed")
    paper = start_party(root, folder, "paper", *more, within=(nullcontext, killed))
    assert [one.wait(60) for one in paper.values()] == [2, -signal.SIGKILL]
    return finished(shop | start_party(root, folder, "paper", *more))


def test_a_run_ends_like_an_undisturbed_one_when_a_worker_with_its_rows_is_killed(
    workplace: Path, tmp_path: Path, checkout: Path
) -> None:
    train_with_a_killed_worker(checkout, tmp_path)
    for party in PARTIES:
        for ours, known in zip(folders(tmp_path, party), folders(workplace, party), strict=True):
            found, expected = (newest_of(one)["party"]["module"] for one in (ours, known))
            assert same_weights(found, expected), party


def test_other_weights_are_divided_too_and_a_worker_that_is_killed_changes_nothing(
    tmp_path: Path, checkout: Path
) -> None:
    """At the party with a bottom model; its half is the one that a single process writes."""
    folder = tmp_path
    said = train_with_a_killed_worker(checkout, folder, *DIVIDED)
    assert "each worker keeps a part of every weight of the bottom model" in said["paper 0"]
    assert "model.dense: sharded: shop has no bottom model" in said["shop 0"]
    finished({"whole": start(checkout, ["train", "run.yaml", "--out", "runs/whole", *DIVIDED], folder)})

    whole = newest_of(folder / "runs" / "whole")["party-paper"]["module"]
    parts = [newest_of(one)["party"] for one in folders(folder, "paper")]
    for name, expected in whole.items():
        if name.endswith(".table"):
            continue
        held = [part["module"][name] for part in parts]
        assert len(held[0]) - len(held[1]) in (0, 1), name
        assert torch.allclose(torch.cat(held), expected, rtol=0, atol=2e-6), name
    for part in parts:
        state = part["optimizer"]["dense"]["state"].values()
        dense = [value.shape for name, value in part["module"].items() if not name.endswith(".table.rows")]
        assert [one["exp_avg"].shape for one in state] == dense
    for name in PARTIES:
        ours = safetensors.torch.load_file(folder / "runs" / name / "model" / "weights.safetensors")
        theirs = safetensors.torch.load_file(folder / "runs" / "whole" / "model" / name / "weights.safetensors")
        assert largest_difference(ours, theirs) < 2e-6


def copied(workplace: Path, folder: Path) -> None:
    place(folder)
    for name in PARTIES:
        shutil.copytree(workplace / "runs" / name, folder / "runs" / name)


def test_a_run_does_not_go_on_with_tables_that_are_no_longer_divided(
    workplace: Path, tmp_path: Path, checkout: Path
) -> None:
    copied(workplace, tmp_path)
    more = ("model.tables=replicated", "train.epochs=4")
    workers = {key: one for name in PARTIES for key, one in start_party(checkout, tmp_path, name, *more).items()}
    said = {key: " ".join(one.communicate(timeout=90)[1].split()) for key, one in workers.items()}
    assert {one.returncode for one in workers.values()} == {2}
    assert any("rows of tables here was 0 mod 2 and is all" in words for words in said.values()), said


def test_folders_of_workers_that_changed_places_are_refused(workplace: Path, tmp_path: Path, checkout: Path) -> None:
    """Their rows would be taken for others, of which there are as many or nearly."""
    copied(workplace, tmp_path)
    first, second = (folder / "checkpoints" for folder in folders(tmp_path, "paper"))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    waiting, workers = (start_party(checkout, tmp_path, name, "train.epochs=4") for name in PARTIES)
    said = {key: " ".join(one.communicate(timeout=90)[1].split()) for key, one in workers.items()}
    for one in waiting.values():  # for a paper that comes with the right ones
        one.kill()
    assert {one.returncode for one in workers.values()} == {2}
    assert any("rows of tables here was 1 mod 2 and is 0 mod 2" in words for words in said.values()), said


@pytest.mark.parametrize("parted", [True, False])
def test_a_finished_run_that_is_started_again_writes_its_half_again(
    parted: bool, workplace: Path, tmp_path: Path, checkout: Path
) -> None:
    """Without partners, too, whether these had taken leave or vanished just then, and never come back."""
    copied(workplace, tmp_path)
    half = tmp_path / "runs" / "paper" / "model"
    shutil.rmtree(half)
    if not parted:
        for one in folders(tmp_path, "paper"):
            (one / FAREWELL_FILE).unlink()
    said = finished(start_party(checkout, tmp_path, "paper", "network.meeting_s=1"))
    assert ("finished this run before" if parted else "and ends without them") in said["paper 0"]
    ours, known = (
        safetensors.torch.load_file(one / "weights.safetensors")
        for one in (half, workplace / "runs" / "paper" / "model")
    )
    assert same_weights(ours, known)


def test_check_says_what_one_worker_would_hold(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    assert main(["check", "run.yaml", "--as", "paper", "--out", "runs/new"]) == 0
    # 25 of 49 rows of 3 numbers, and a layer of 8 on 2 + 6 inputs.
    assert "model: 147 weights" in capsys.readouterr().out
