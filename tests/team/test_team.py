"""Workers in processes of their own: what they do together is done by all, or by none."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from splitvfl.errors import ConfigError, TeamError
from splitvfl.team import team as team_module
from splitvfl.team.team import Alone, Team
from splitvfl.team.workers import Workers
from tests.run.forked import FORKS
from tests.run.parties import free_ports
from tests.team.together import ENOUGH_S, SIZE, together, worker


def _sparse(rows: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows, values, (5, 2), check_invariants=True)


def _tensors(rank: int) -> list[Tensor | None]:
    random = torch.Generator().manual_seed(rank)
    rows = torch.randint(5, (1, 4 + rank), generator=random)  # some come twice
    return [
        torch.randn(3, 2, generator=random),
        torch.randn(4, generator=random, dtype=torch.float64),
        None if rank == 1 else torch.full((2,), float(rank)),  # not at all workers
        None,  # at none
        _sparse(rows, torch.randn(4 + rank, 2, generator=random)),
        None if rank != 2 else _sparse(torch.tensor([[1]]), torch.ones(1, 2)),
        torch.tensor(float(rank)),
    ]


def _add_up(team: Team) -> Any:
    """Sums as NumPy's arrays: a tensor lies in the memory of the process that sends it, which may have ended."""
    sums = team.add_up(_tensors(team.rank))
    return [None if one is None else (one.is_sparse, one.to_dense().numpy()) for one in sums]


def test_sums_are_those_of_all_workers_and_the_same_to_the_bit_at_each() -> None:
    found = together(_add_up)

    given = [_tensors(rank) for rank in range(SIZE)]
    for place, one in enumerate(found[0]):
        dense = [own.to_dense() for own in (tensors[place] for tensors in given) if own is not None]
        if not dense:
            assert one is None
            continue
        sparse, total = one[0], torch.from_numpy(one[1])
        assert sparse == (place in (4, 5))
        assert torch.allclose(total, torch.stack(dense).sum(0), rtol=0, atol=1e-6)
        assert total.dtype == dense[0].dtype
        assert all(torch.equal(torch.from_numpy(other[place][1]), total) for other in found)


def _other_operations(team: Team) -> Any:
    rows = torch.full((team.rank, 2), float(team.rank))  # worker 0 has none
    gathered = team.gather(rows)
    weights = [torch.full((2, 2), float(team.rank)), torch.tensor(team.rank)]
    team.share(weights)
    said = team.collect(f"worker {team.rank}"[: 6 + 2 * team.rank].encode())
    return gathered and [one.tolist() for one in gathered], [weight.tolist() for weight in weights], said


def test_what_is_gathered_shared_and_collected() -> None:
    found = together(_other_operations)

    for rank, (gathered, weights, said) in enumerate(found):
        if rank == 0:
            assert gathered == [[], [[1.0, 1.0]], [[2.0, 2.0]] * 2]
        else:
            assert gathered is None
        assert weights == [[[0.0, 0.0], [0.0, 0.0]], 0]
        assert said == [b"worker", b"worker 1", b"worker 2"]


def _parts(rank: int) -> list[Tensor]:
    """What a worker has for each: other numbers of rows, none of them for some."""
    random = torch.Generator().manual_seed(10 + rank)
    return [torch.randn((rank * to) % 4, 2, generator=random) for to in range(SIZE)]


def _exchange(team: Team) -> Any:
    parts = _parts(team.rank)
    rows, counts = team.exchange(torch.cat(parts), list(map(len, parts)))
    # Back where they came from, by those who know how many that are.
    back, _ = team.exchange(rows, counts, [len(part) for part in parts])
    none, _ = team.exchange(torch.empty(0, dtype=torch.int32), [0] * team.size)
    return rows.numpy(), counts, torch.equal(back, torch.cat(parts)), none.numpy()


def test_every_worker_gets_what_all_have_for_it_and_no_more() -> None:
    for rank, (rows, counts, came_back, none) in enumerate(together(_exchange)):
        expected = [_parts(sender)[rank] for sender in range(SIZE)]
        assert counts == list(map(len, expected))
        assert torch.equal(torch.from_numpy(rows), torch.cat(expected))
        assert came_back
        assert none.shape == (0,)


def _go_back_once(team: Team) -> Any:
    """The first time worker 1 cannot go on, when the others add up; then all go on together."""
    told = ""
    try:
        if team.rank == 1:
            team.refuse("the link with ads broke")
        else:
            team.add_up([torch.ones(2)])
    except TeamError as error:
        told = f"{error} {error.final}"
    (total,) = team.add_up([torch.ones(2)])
    assert total is not None
    return told, total.tolist()


def test_one_that_cannot_go_on_is_told_to_all_in_the_place_of_what_they_do_and_all_go_on_together() -> None:
    first, second, third = together(_go_back_once)
    assert second == ("", [3.0, 3.0])
    assert first == third == ("worker 1 of shop: the link with ads broke False", [3.0, 3.0])


def _two_refuse(team: Team) -> Any:
    if team.rank == 1:
        team.collect(b"")
    team.refuse(f"link {team.rank} broke", final=team.rank == 2)
    return team.lost


def test_two_that_cannot_go_on_are_both_named_and_one_for_good_is_for_good() -> None:
    assert together(_two_refuse) == [
        "worker 2 of shop: link 2 broke",
        (True, "worker 0 of shop: link 0 broke; worker 2 of shop: link 2 broke"),
        "worker 2 of shop has ended",
    ]


def _called(team: Team) -> Any:
    """Worker 0 waits for another party at three operations; before the last two, another worker waits in vain."""
    found = []
    for operation in range(3):
        if team.rank == 0:
            found.append(_hears(team, 3 * ENOUGH_S if operation else 0.2))
        elif team.rank == 1 and operation == 1:
            team.refuse("the link with ads broke")
            continue
        team.link_lost = lambda: team.rank == 2 and operation == 2  # noqa: B023 - of this operation
        try:
            team.collect(b"")
        except TeamError as error:
            found.append(str(error))
    return found


def _hears(team: Team, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if team.is_refusing():
            return True
        time.sleep(0.01)
    return False


def test_one_that_waits_for_another_party_hears_that_its_fellows_wait_in_vain() -> None:
    refused = "worker 1 of shop: the link with ads broke"
    assert together(_called) == [[False, True, refused, True], [], [refused]]


def _one_is_gone(team: Team) -> Any:
    team.collect(b"")
    if team.rank == 2:
        os._exit(9)
    team.add_up([torch.ones(2)])


def test_a_worker_that_is_gone_is_noticed_and_nobody_waits_for_it() -> None:
    answers, (port,) = FORKS.Queue(), free_ports(1)
    started = time.monotonic()
    processes = [FORKS.Process(target=worker, args=(rank, port, 3, _one_is_gone, answers)) for rank in range(3)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=ENOUGH_S) for _ in range(2))
    for process in processes:
        process.join(ENOUGH_S)
    assert time.monotonic() - started < ENOUGH_S
    for rank in (0, 1):
        final, said = found[rank]
        assert final
        assert "a worker of shop is gone" in said


def _waiting(rank: int, port: int, ready: Any, end: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    variables = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in variables.items()}
    with Workers(2, party="shop", environment=os.environ, wait_s=ENOUGH_S) as team:
        ready.put(rank)
        if rank:
            end.wait(ENOUGH_S)  # as one that waits for another party
            return
        try:
            team.collect(b"")
        except KeyboardInterrupt:
            assert "stopped" in team.lost
            team.refuse("stopped", final=True)  # says nothing, and waits for nobody
            os._exit(7)


def test_a_worker_that_waits_for_others_hears_ctrl_c() -> None:
    ready, end, (port,) = FORKS.Queue(), FORKS.Event(), free_ports(1)
    first, second = (FORKS.Process(target=_waiting, args=(rank, port, ready, end)) for rank in range(2))
    for process in (first, second):
        process.start()
    for _ in range(2):
        ready.get(timeout=ENOUGH_S)
    time.sleep(0.3)  # until it waits; if it does not yet, nothing is tested, and nothing fails
    assert first.pid is not None
    os.kill(first.pid, signal.SIGINT)
    first.join(ENOUGH_S / 2)
    assert first.exitcode == 7
    assert second.is_alive()
    end.set()
    second.join(ENOUGH_S)


def _out_of_step(team: Team) -> Any:
    return team.collect(b"") if team.rank else team.gather(torch.ones(1))


def test_workers_that_do_different_things_are_stopped() -> None:
    assert all("not in step" in said for _, said in together(_out_of_step))


def _stop(team: Team) -> Any:
    asked = []
    for step in range(3):
        team.stopping = lambda step=step: team.rank == 1 and step == 1  # type: ignore[misc]
        team.collect(b"")
        asked.append(team.stop_asked)
    return asked


def test_a_stop_that_one_was_asked_for_is_known_to_all_after_the_same_operation() -> None:
    assert together(_stop) == [[False, True, False]] * 3


def test_a_party_of_one_process_does_nothing() -> None:
    team, tensor = Alone(), torch.ones(2)
    assert (team.rank, team.size) == (0, 1)
    (total,) = team.add_up([tensor])
    assert total is tensor
    assert team.gather(tensor) == [tensor]
    assert team.collect(b"x") == [b"x"]
    rows, counts = team.exchange(tensor, [2])
    assert rows is tensor
    assert counts == [2]
    team.refuse("nobody hears it")
    team.stopping = lambda: True
    assert team.stop_asked


def test_workers_that_nobody_started_are_told_how() -> None:
    with pytest.raises(ConfigError, match=r"team\.workers is 2.*RANK.*torchrun --nproc-per-node 2 --no-python"):
        Workers(2, party="shop", environment={}, wait_s=1.0)


def _wrong_number(rank: int, port: int, answers: Any) -> None:
    variables = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in variables.items()}
    try:
        Workers(3, party="shop", environment=os.environ, wait_s=ENOUGH_S)
    except ConfigError as error:
        answers.put(str(error))


def test_another_number_of_workers_than_the_file_says_is_refused() -> None:
    answers, (port,) = FORKS.Queue(), free_ports(1)
    processes = [FORKS.Process(target=_wrong_number, args=(rank, port, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    for _ in processes:
        assert "team.workers is 3, and 2 workers were started" in answers.get(timeout=ENOUGH_S)
    for process in processes:
        process.join(ENOUGH_S)


def _in_a_group_that_is_there(rank: int, port: int, answers: Any) -> None:
    """As in Ray Train: the group is somebody else's, and no variable says anything."""
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    try:
        Workers(3, party="shop", environment={}, wait_s=ENOUGH_S)
    except ConfigError as error:
        refused = str(error)
    with Workers(2, party="shop", environment={}, wait_s=ENOUGH_S) as team:
        said = team.collect(f"worker {team.rank}".encode())
    still_there = torch.ones(1)
    dist.all_reduce(still_there)
    answers.put((rank, (refused, said, still_there.item())))
    dist.barrier()  # who keeps the store goes last


def test_a_process_group_that_is_there_is_used_and_left_as_it_is() -> None:
    answers, (port,) = FORKS.Queue(), free_ports(1)
    processes = [FORKS.Process(target=_in_a_group_that_is_there, args=(rank, port, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=ENOUGH_S) for _ in processes)
    for process in processes:
        process.join(ENOUGH_S)
    for rank in range(2):
        refused, said, total = found[rank]
        assert "team.workers is 3, and 2 workers were started" in refused
        assert said == [b"worker 0", b"worker 1"]
        assert total == 2


def test_nothing_takes_objects_from_another_worker() -> None:
    """Collectives that take objects unpickle what another worker sends."""
    root = Path(team_module.__file__).parent.parent
    assert len(list(root.rglob("*.py"))) > 200
    taking = re.compile(r"_object_list\(|(gather|send|scatter|broadcast|recv)_object\(")
    assert [path for path in root.rglob("*.py") if taking.search(path.read_text(encoding="utf-8"))] == []
