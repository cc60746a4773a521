"""Workers that find each other: late, twice, never, and among what others have left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from splitvfl.errors import ConfigError, TeamError
from splitvfl.team import joining
from splitvfl.team.joining import Launch, meet
from tests.run.parties import free_ports

# Longer than anything here takes on a busy machine.
ENOUGH_S = 60.0


@pytest.fixture
def begin() -> Iterator[Callable[..., Future[dist.Store]]]:
    """Starts one worker in a thread, which returns the store in which it met the others."""
    with ThreadPoolExecutor(8) as threads:

        def one(launch: Launch, *, wait_s: float = ENOUGH_S, notify: Callable[[str], None] = print) -> Any:
            return threads.submit(meet, launch, party="shop", wait_s=wait_s, notify=notify)

        yield one


def launches(size: int) -> list[Launch]:
    (port,) = free_ports(1)
    return [Launch(rank, size, "127.0.0.1", port) for rank in range(size)]


def together(stores: Sequence[dist.Store]) -> bool:
    """Whether what one writes is there for all, and nothing was there before."""
    fresh = not any(store.check(["here"]) for store in stores)
    stores[0].set("here", "1")
    return fresh and all(store.check(["here"]) for store in stores)


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENOUGH_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_workers_meet_in_whatever_order_they_come(begin: Any) -> None:
    first, second, third = launches(3)
    late = [begin(third), begin(second)]
    time.sleep(0.2)  # nobody listens yet; if they have not looked by then, nothing is tested, and nothing fails
    assert together([one.result(ENOUGH_S) for one in (begin(first), *late)])


def test_a_worker_that_comes_back_before_the_others_have_left_waits_for_those_who_come(begin: Any) -> None:
    """It joins nobody by what is left of the process in its place, as torch by itself would, and waits for hours."""
    first, second = launches(2)
    old = [begin(first), begin(second)]
    left = [one.result(ENOUGH_S) for one in old]
    assert together(left)

    again = begin(second)
    # What it does there shows that it has come, and that worker 0 is still what it was.
    until(lambda: left[0].underlying_store.add("splitvfl 1/1", 0) == 2)
    assert not again.done()
    left.clear()  # worker 0 ends, and with it the store
    old.clear()

    assert together([begin(first).result(ENOUGH_S), again.result(ENOUGH_S)])


def test_a_store_of_the_launcher_outlives_workers_that_meet_in_it_again(begin: Any) -> None:
    (port,) = free_ports(1)
    kept = dist.TCPStore("127.0.0.1", port, 2, is_master=True, wait_for_workers=False)
    launched = [Launch(rank, 2, "127.0.0.1", port, keeps_store=True) for rank in range(2)]
    for order in (launched, launched, launched[::-1]):
        begun = [begin(one) for one in order]
        assert together([one.result(ENOUGH_S) for one in begun])
    del kept


def test_a_worker_that_is_started_again_while_others_wait_for_a_third_counts_once(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_CALL_S", 0.3)
    first, second, third = launches(3)
    waiting = begin(first)
    gone = begin(second, wait_s=0.5)  # as one that is killed
    with pytest.raises(TeamError, match=r"not all workers of shop came to .*; worker 0 says who did not"):
        gone.result(ENOUGH_S)
    assert together([one.result(ENOUGH_S) for one in (waiting, begin(second), begin(third))])


def test_who_does_not_come_is_named_soon_and_in_the_end(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_CALL_S", 0.5)
    monkeypatch.setattr(joining, "_TELL_S", 0.1)
    told: list[str] = []
    first, second, *_ = launches(4)
    waiting = begin(first, wait_s=1.0, notify=told.append)
    begin(second, wait_s=1.5)
    with pytest.raises(TeamError, match=rf"worker 2, 3 of shop did not come to {first.place} within \d s") as error:
        waiting.result(ENOUGH_S)
    assert error.value.final
    assert told[-1] == f"worker 2, 3 of shop did not come to {first.place}; still waiting"


def test_whoever_finds_nobody_says_so_soon_and_in_the_end(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_TELL_S", 0.1)
    told: list[str] = []
    _, second = launches(2)
    with pytest.raises(TeamError, match=r"worker 1 of shop cannot reach worker 0.*it was not started, or is not found"):
        begin(second, wait_s=0.5, notify=told.append).result(ENOUGH_S)
    assert told == [f"worker 0 of shop cannot be reached at {second.place}; still waiting"]


def test_two_processes_in_one_place_are_told_apart_from_none(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_CALL_S", 0.5)
    first, second, _ = launches(3)
    waiting = begin(first, wait_s=1.0)
    for _ in range(2):
        begin(second, wait_s=1.5)
    with pytest.raises(
        TeamError, match=r"worker 2 of shop did not come.*more than one process says that it is worker 1"
    ):
        waiting.result(ENOUGH_S)


VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "shop-0.shop-workers", "MASTER_PORT": "29500"}


def test_what_a_launcher_says_is_read() -> None:
    assert Launch.read(VARIABLES) == Launch(1, 2, "shop-0.shop-workers", 29500)
    torchrun = VARIABLES | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert Launch.read(torchrun) == Launch(1, 2, "shop-0.shop-workers", 29500, keeps_store=True)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"RANK": "2"}, "RANK is '2', expected a whole number from 0 to 1"),
        ({"RANK": "$(POD_INDEX)"}, r"RANK is '\$\(POD_INDEX\)', expected"),
        ({"RANK": ""}, "RANK is '', expected"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', expected a whole number from 1"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is empty"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is '0', expected a whole number from 1 to 65535"),
    ],
)
def test_what_makes_no_sense_is_said(wrong: Mapping[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Launch.read(VARIABLES | wrong)
