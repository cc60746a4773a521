"""What lies in the checkpoint of worker 0 alone."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.errors import CheckpointError, TeamError
from splitvfl.run import checkpoint
from splitvfl.run.shared_state import whole_party, with_shared, without_shared, without_the_others
from splitvfl.team.team import Alone, Team
from tests.team.threads import T, Table, Threads, in_threads


def state_of(rank: int) -> dict[str, Any]:
    """A model with rows of its own at each worker, three steps of Adam, and what each has at random."""
    torch.manual_seed(0)
    model = nn.Linear(40, 30, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.ones(1, 40, dtype=torch.float64)).sum().backward()
        optimizer.step()
    rows = torch.full((300, 2), float(rank))
    weights = {**model.state_dict(), "table.rows": rows, "few": torch.zeros(3)}
    kept = None if rank == 2 else {"weight": torch.ones(40, 30).bfloat16()}
    random = torch.Generator().manual_seed(rank).get_state()
    return {"module": weights, "kept": kept, "optimizer": optimizer.state_dict(), "random": random, "epoch": 3}


STATES = [state_of(rank) for rank in range(3)]


def workers(count: int, work: Callable[[Threads], T]) -> list[T]:
    table = Table(count)
    return in_threads(lambda rank: work(Threads(rank, table)), table)


def size_of(checkpoint: Path) -> int:
    return sum(file.stat().st_size for file in checkpoint.iterdir())


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and all(map(equal, left, right))
    return bool(left == right)


def saved(team: Team, root: Path, state: Any = None) -> Path:
    folder = root if team.rank == 0 else root / f"worker-{team.rank}"
    return checkpoint.save(
        folder / "checkpoints", 7, {"party": without_shared(state or STATES[team.rank], team)}, keep=2
    )


def test_every_worker_gets_back_what_it_had(tmp_path: Path) -> None:
    def work(team: Team) -> Any:
        path = saved(team, tmp_path)
        return with_shared(checkpoint.load(path)["party"], team), path

    found = workers(3, work)
    for rank, (state, path) in enumerate(found):
        assert equal(state, STATES[rank]), rank
        assert equal(whole_party(path), STATES[rank]), rank


def test_what_is_alike_lies_on_disk_once(tmp_path: Path) -> None:
    first, second, third = workers(3, lambda team: saved(team, tmp_path))
    whole, part = size_of(first), size_of(second)
    # Weights in float64, two numbers of Adam for each, and the kept ones; the rows and random state stay.
    assert whole - part == pytest.approx(40 * 30 * (3 * 8 + 2), rel=0.1)
    assert size_of(third) < whole - 40 * 30 * 3 * 8 + 2000
    own = checkpoint.load(second)["party"]
    assert torch.equal(own["module"]["table.rows"], torch.ones(300, 2))
    assert torch.equal(own["module"]["few"], torch.zeros(3)), "too small to be looked for elsewhere"
    blank = without_the_others(own)
    assert torch.equal(blank["module"]["weight"], torch.zeros(30, 40, dtype=torch.float64))
    assert torch.equal(blank["module"]["table.rows"], torch.ones(300, 2))


def test_a_worker_keeps_what_is_not_as_at_worker_0(tmp_path: Path) -> None:
    """To the bit: a zero with a sign is another one."""

    def work(team: Team) -> Any:
        weight = torch.zeros(500) if team.rank == 0 else -torch.zeros(500)
        return without_shared({"weight": weight}, team)

    for rank, state in enumerate(workers(3, work)):
        assert isinstance(state["weight"], Tensor)
        assert torch.signbit(state["weight"]).all() == (rank > 0)


def test_parts_that_happen_to_be_alike_stay(tmp_path: Path) -> None:
    """A layer whose weights are all ones, say: a worker gives its part for the half when worker 0's is not at hand."""

    def work(team: Team) -> Any:
        weights = OrderedDict(scale=torch.ones(500), other=torch.ones(500))
        weights._metadata = {"": {"version": 2}}  # type: ignore[attr-defined]
        state = {"module": weights, "kept": dict(weights)}
        return without_the_others(without_shared(state, team, own={"scale"}))

    for state in workers(2, work)[1:]:
        for weights in (state["module"], state["kept"]):
            assert torch.equal(weights["scale"], torch.ones(500))
            assert torch.equal(weights["other"], torch.zeros(500)), "worker 0 has it, and writes it"
        assert state["module"]._metadata == {"": {"version": 2}}


def test_another_folder_in_the_place_of_worker_0s_is_noticed(tmp_path: Path) -> None:
    workers(2, lambda team: saved(team, tmp_path))
    other = state_of(0)
    other["module"]["weight"] += 1.0
    shutil.rmtree(tmp_path / "checkpoints")
    saved(Alone(), tmp_path, other)
    first, second = (
        path
        for folder in (tmp_path, tmp_path / "worker-1")
        for path in checkpoint.steps(folder / "checkpoints").values()
    )
    with pytest.raises(CheckpointError, match=r"/module/weight of worker 0 is not what this checkpoint leaves to it"):
        whole_party(second)

    def work(team: Team) -> str:
        with pytest.raises((CheckpointError, TeamError)) as error:
            with_shared(checkpoint.load((first, second)[team.rank])["party"], team)
        team.refuse(str(error.value))
        return str(error.value)

    said = workers(2, work)
    assert "another worker leaves /module/weight to that of worker 0, which has something else" in said[0]
    assert "another worker is gone" in said[1]
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match=r"leaves weights to that of worker 0, which is not in "):
        whole_party(second)


def test_one_process_leaves_nothing_out() -> None:
    assert equal(without_shared(STATES[0], Alone()), STATES[0])
    assert equal(with_shared(STATES[0], Alone()), STATES[0])
