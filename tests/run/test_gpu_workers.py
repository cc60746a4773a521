"""Workers that compute on GPUs: what they add up, what they train, and what happens when one of them is killed.

By NCCL too where it can join them: on as many GPUs, or on one with ``NCCL_MULTI_RANK_GPU_ENABLE=1`` and NCCL from 2.30.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from splitvfl.errors import TeamError
from splitvfl.run import checkpoint
from splitvfl.system.gpu_copies import to_device, to_memory
from splitvfl.team import gpus
from splitvfl.team.gpus import take_gpu
from splitvfl.team.team import Team
from tests.run import test_sharded_tables as clicks
from tests.run.parties import finished, newest_of, same_weights, start, wait_for_step, weights_of
from tests.run.test_workers import PARTIES, folders, largest_difference, place, start_party
from tests.team.test_team import _tensors
from tests.team.together import SIZE, together

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.slow,
    # Some versions of torch warn whoever says that tensors are to be checked.
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]

GPU: Final = "train.device=cuda"
_SOON_S: Final = 4.0


def joined_by_nccl(count: int) -> bool:
    if torch.cuda.device_count() >= count:
        return True
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


def _sums(team: Team) -> Any:
    device = take_gpu(os.environ)
    carried = team.compute_on(device)
    given = [None if one is None else one.to(device) for one in _tensors(team.rank)]
    sums = team.add_up(given)
    parts = team.gather(torch.full((team.rank, 2), float(team.rank), device=device))
    whole = torch.arange(6.0, device=device).split([1, 2, 3]) if team.rank == 0 else None
    mine = team.scatter(whole, team.rank + 1)
    weight = torch.full((2,), float(team.rank), device=device)
    team.share([weight])
    rows, counts = team.exchange(torch.full((SIZE,), team.rank, device=device), [1] * SIZE)
    on = {one.device for one in [*sums, *(parts or []), rows] if one is not None}
    shown = [None if one is None else (one.is_sparse, one.to_dense().cpu().numpy()) for one in sums]
    return carried, on == {device}, shown, len(parts or ()), mine.cpu().tolist(), weight.tolist(), rows.tolist(), counts


def test_operations_of_workers_on_gpus_are_those_on_cpus() -> None:
    found = together(_sums)

    carried = "NCCL" if joined_by_nccl(SIZE) else "gloo, as workers share a GPU, which NCCL refuses"
    assert [(one[0], one[1]) for one in found] == [(carried, True)] * SIZE
    given = [_tensors(rank) for rank in range(SIZE)]
    for place_, one in enumerate(found[0][2]):
        dense = [own.to_dense() for own in (tensors[place_] for tensors in given) if own is not None]
        if not dense:
            assert one is None
            continue
        assert one[0] == (place_ in (4, 5))
        assert torch.allclose(torch.from_numpy(one[1]), torch.stack(dense).sum(0), rtol=0, atol=1e-6)
        assert all((other[2][place_][1] == one[1]).all() for other in found)
    assert [one[3] for one in found] == [SIZE, 0, 0]
    assert [one[4] for one in found] == [[0.0], [1.0, 2.0], [3.0, 4.0, 5.0]]
    assert all(one[5] == [0.0, 0.0] for one in found)
    assert all((one[6], one[7]) == ([0, 1, 2], [1, 1, 1]) for one in found)


def _one_on_the_cpu(team: Team) -> Any:
    return team.compute_on(torch.device("cpu") if team.rank == 1 else take_gpu(os.environ))


def test_a_worker_on_another_kind_of_device_is_named() -> None:
    found = together(_one_on_the_cpu)

    assert all(final and "worker 1 on a CPU; take machines of one kind" in said for final, said in found), found


def _left_within_a_sum(team: Team) -> Any:
    gpus.SUM_S = _SOON_S  # type: ignore[misc]  # in this process alone
    device = take_gpu(os.environ)
    if team.compute_on(device) != "NCCL":
        return None
    if team.rank == 1:  # it says that it is there, and then it is not
        vars(team)["_gpu_sums"].add_up = lambda flat: time.sleep(2 * _SOON_S)
    begun = time.monotonic()
    try:
        team.add_up([torch.ones(3, device=device)])
    except TeamError as error:
        return str(error), time.monotonic() - begun
    return None


def test_workers_do_not_wait_for_one_that_left_within_a_sum() -> None:
    if not joined_by_nccl(SIZE):
        pytest.skip("NCCL does not join them here")
    found = together(_left_within_a_sum)

    assert [one is None for one in found] == [False, True, False]
    for said, waited in (found[0], found[2]):
        assert said.startswith("a worker of shop is gone, or did not come")
        assert waited < 2 * _SOON_S


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """Two parties of two workers on GPUs, and the same in one process."""
    folder = tmp_path_factory.mktemp("workers")
    place(folder)
    said = finished({key: one for name in PARTIES for key, one in start_party(checkout, folder, name, GPU).items()})
    for key, words in said.items():
        assert f"worker {key[-1]} computes on cuda:" in words
    finished({"whole": start(checkout, ["train", "run.yaml", "--out", "runs/whole", GPU], folder)})
    return folder


def test_workers_end_equal_and_with_the_weights_of_one_process(workplace: Path) -> None:
    newest = checkpoint.latest(workplace / "runs" / "whole" / "checkpoints")
    assert newest is not None
    whole = checkpoint.load(newest)
    assert whole["run"]["step"] == 12 * 9
    for name in PARTIES:
        weights = [weights_of(folder) for folder in folders(workplace, name)]
        assert same_weights(*weights)
        # Sums of float32 numbers in another order, over 108 steps.
        assert largest_difference(weights[0], whole[f"party-{name}"]["module"]) < 1e-4


def test_a_worker_that_is_killed_is_missed_and_the_run_goes_on_when_all_are_started_again(
    workplace: Path, tmp_path: Path, checkout: Path
) -> None:
    place(tmp_path)
    processes = {key: one for name in PARTIES for key, one in start_party(checkout, tmp_path, name, GPU).items()}
    wait_for_step(tmp_path / "runs" / "lab", 20)
    processes["lab 1"].send_signal(signal.SIGKILL)
    for process in processes.values():
        process.communicate(timeout=120)
    assert all(process.returncode for process in processes.values())
    finished({key: one for name in PARTIES for key, one in start_party(checkout, tmp_path, name, GPU).items()})

    for name in PARTIES:
        weights = [weights_of(folder) for folder in folders(tmp_path, name)]
        assert same_weights(*weights)
        assert newest_of(tmp_path / "runs" / name)["run"]["step"] == 12 * 9
        assert largest_difference(weights[0], weights_of(workplace / "runs" / name)) < 1e-4


@pytest.mark.parametrize("how", ["sharded", "replicated"])
def test_tables_with_sparse_gradients(how: str, tmp_path: Path, checkout: Path) -> None:
    clicks.place(tmp_path)
    more = (GPU, f"model.tables={how}")
    names = clicks.PARTIES
    finished({key: one for name in names for key, one in clicks.start_party(checkout, tmp_path, name, *more).items()})
    finished({"whole": start(checkout, ["train", "run.yaml", "--out", "runs/whole", *more], tmp_path)})

    newest = checkpoint.latest(tmp_path / "runs" / "whole" / "checkpoints")
    assert newest is not None
    whole = checkpoint.load(newest)
    for name in names:
        parts = clicks.weights_of(tmp_path, name) if how == "sharded" else weights_of(tmp_path / "runs" / name)
        # Sums of float32 numbers in another order, over 72 steps.
        assert largest_difference(parts, whole[f"party-{name}"]["module"]) < 1e-4


def test_what_is_copied_is_what_was_there() -> None:
    there = torch.randn(5, 3, device="cuda")
    here = to_memory(there.T)
    assert here.is_pinned()
    assert torch.equal(here, there.T.cpu())
    assert torch.equal(to_device(here, torch.device("cuda")), there.T)
    assert to_device(there, there.device) is there
