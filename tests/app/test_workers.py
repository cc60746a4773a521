"""What is said before several workers begin."""

from __future__ import annotations

import pytest

from splitvfl.app.workers import is_public, said_of_team
from splitvfl.team.team import Alone, part_of


def worker(rank: int, size: int) -> Alone:
    team = Alone()
    team.rank, team.size = rank, size
    return team


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("10.1.2.3", False),
        ("127.0.0.1", False),
        ("localhost", False),
        ("fe80::1", False),
        ("no-such-host.invalid", False),
        ("", False),
    ],
)
def test_workers_that_are_joined_at_a_public_address_are_told_what_that_means(address: str, public: bool) -> None:
    assert is_public(address) == public
    lines = said_of_team(worker(0, 2), {"MASTER_ADDR": address})
    assert lines[0] == "2 workers, each with a shard of the records; this one is worker 0"
    assert [line for line in lines if "whoever reaches them reads and changes weights" in line] == lines[1:]
    assert (len(lines) == 2) == public


def test_nothing_is_said_of_a_party_of_one_process() -> None:
    assert said_of_team(Alone(), {"MASTER_ADDR": "8.8.8.8"}) == []


def test_parts_are_all_records_once() -> None:
    parts = [part_of(11, worker(rank, 3)) for rank in range(3)]
    assert [position for part in parts for position in part] == list(range(11))
