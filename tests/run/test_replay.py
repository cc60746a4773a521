"""A partner that makes a run go back and then sends something else learns nothing: not the noise, at any rate."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.errors import CheckpointError, ProtocolError, ReplayError
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message
from splitvfl.net.frames import Hello
from splitvfl.net.links import pair
from splitvfl.run.replay import ReplayJournal
from splitvfl.run.written_files import REPLAY_JOURNAL


def activation(step: int, payload: Tensor, sender: str = "lab", kind: str = "activation") -> Message:
    return Message(sender, "clinic", kind, step, payload)


_OPEN: list[ReplayJournal] = []


def guard_in(folder: Path) -> ReplayJournal:
    _OPEN.append(ReplayJournal(folder / REPLAY_JOURNAL, {"activation", "evaluation"}))
    return _OPEN[-1]


@pytest.fixture(autouse=True)
def closed_at_last() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


def payloads(steps: int) -> list[Tensor]:
    return list(torch.randn(steps, 4, 3, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("restarted", [False, True])
def test_what_comes_again_must_be_what_came(tmp_path: Path, restarted: bool) -> None:
    guard = guard_in(tmp_path)
    sent = payloads(4)
    for step, payload in enumerate(sent):
        guard.admit(activation(step, payload))
    if restarted:  # killed, that is: nothing is closed
        guard = guard_in(tmp_path)
    guard.go_back()
    for step in (2, 3):
        guard.admit(activation(step, sent[step].clone()))
    guard.admit(activation(4, sent[0]))  # not sent before
    guard.go_back()
    guard.admit(activation(2, sent[2]))
    other = sent[3].clone()
    other[1, 1] = torch.nextafter(other[1, 1], torch.tensor(9.0))
    with pytest.raises(ReplayError, match="lab sent another activation for step 3 than before"):
        guard.admit(activation(3, other))
    with pytest.raises(ReplayError):  # and still, when it is asked again
        guard.admit(activation(3, other))
    guard.admit(activation(3, sent[3]))


def test_shape_and_dtype_sender_kind_and_place_count(tmp_path: Path) -> None:
    guard = guard_in(tmp_path)
    first, second = torch.zeros(2, 3), torch.ones(2, 3)
    guard.admit(activation(0, first))
    guard.admit(activation(0, second, sender="shop"))
    guard.admit(activation(0, second, kind="evaluation"))
    guard.admit(activation(0, first, kind="evaluation"))  # the second piece of one evaluation
    guard.go_back()
    for other in (torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3).bfloat16()):
        with pytest.raises(ReplayError):
            guard.admit(activation(0, other))
    with pytest.raises(ReplayError):
        guard.admit(activation(0, first, sender="shop"))
    with pytest.raises(ReplayError):
        guard.admit(activation(0, first, kind="evaluation"))


def test_what_no_checkpoint_reaches_is_forgotten_and_the_rest_is_not(tmp_path: Path) -> None:
    guard = guard_in(tmp_path)
    for step, payload in enumerate(payloads(100)):
        guard.admit(activation(step, payload))
    long = (tmp_path / REPLAY_JOURNAL).stat().st_size
    guard.forget(90)
    assert (tmp_path / REPLAY_JOURNAL).stat().st_size < long / 5
    guard.admit(activation(100, torch.zeros(1, 1)))  # goes to the new file
    again = guard_in(tmp_path)
    again.admit(activation(3, torch.zeros(1, 1)))
    for step in (90, 99, 100):
        with pytest.raises(ReplayError):
            again.admit(activation(step, torch.ones(1, 1)))
    assert (tmp_path / REPLAY_JOURNAL).stat().st_mode & 0o777 == 0o600


def test_a_long_run_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    guard, payload = guard_in(tmp_path), torch.zeros(1, 1)
    taken = []
    for epoch in range(20):
        for step in range(50 * epoch, 50 * epoch + 50):
            guard.admit(activation(step, payload))
        guard.forget(50 * epoch)
        taken.append(len(guard._digests) + len(guard._counts))
    assert taken[-1] < 1.5 * taken[1]


def test_two_journals_of_the_same_messages_share_no_digest(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        guard_in(tmp_path / name).admit(activation(0, torch.zeros(2, 2)))
        contents.append((tmp_path / name / REPLAY_JOURNAL).read_bytes())
    assert contents[0][16:32] != contents[1][16:32]
    assert contents[0][-16:] != contents[1][-16:]


@given(cut=st.integers(0, 200))
def test_a_torn_journal_keeps_every_whole_record(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("torn")
    guard = guard_in(folder)
    sent = payloads(4)
    for step, payload in enumerate(sent):
        guard.admit(activation(step, payload))
    path = folder / REPLAY_JOURNAL
    os.truncate(path, min(cut, path.stat().st_size))
    header, record = 32, 36
    whole = max(0, min(cut, path.stat().st_size) - header) // record
    again = guard_in(folder)
    for step in range(whole):
        with pytest.raises(ReplayError):
            again.admit(activation(step, sent[step] + 1))
    for step in range(whole, 4):
        again.admit(activation(step, sent[step] + 1))
    third = guard_in(folder)
    third.go_back()
    for step in range(4):
        third.admit(activation(step, sent[step] + (0 if step < whole else 1)))


def test_a_journal_that_is_none_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / REPLAY_JOURNAL).write_bytes(b"x" * 64)
    with pytest.raises(CheckpointError, match=r"replay\.journal is no journal of messages"):
        guard_in(tmp_path)
    (tmp_path / REPLAY_JOURNAL).unlink()
    guard = guard_in(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*replay\.journal"):
            guard.admit(activation(0, torch.zeros(1)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    guard_in(tmp_path).admit(activation(0, torch.ones(1)))  # half a record is none
    with pytest.raises(CheckpointError, match="cannot write"):
        ReplayJournal(tmp_path / "missing" / REPLAY_JOURNAL, {"activation"})


def test_over_a_link_the_difference_of_two_answers_is_never_sent(tmp_path: Path) -> None:
    """The attack itself: the same noise twice, on two gradients."""
    answers = []
    for payload in (torch.zeros(2, 2), torch.ones(2, 2)):
        guard = guard_in(tmp_path)  # a party that was killed, or a run that went back
        near, far = pair(Hello("clinic", "run", "active"), Hello("lab", "run", "passive"))
        far.send(activation(5, payload), timeout=5)
        expected = Expected("lab", "activation", 5, (torch.float32,), (2, 2))
        noise = torch.randn(2, 2, generator=torch.Generator().manual_seed(7))
        with contextlib.suppress(ReplayError):
            answers.append(guard.watching(near).receive(expected, timeout=5).payload + noise)
        near.close()
        far.close()
    assert len(answers) == 1


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_holds_no_numbers_is_not_what_an_honest_message_is_compared_with(tmp_path: Path, poison: float) -> None:
    guard = guard_in(tmp_path)
    with pytest.raises(ProtocolError, match="activation of step 3 from lab holds NaN or infinite values"):
        guard.admit(activation(3, torch.tensor([1.0, poison])))
    for restarted in (guard, guard_in(tmp_path)):
        restarted.go_back()
        restarted.admit(activation(3, torch.ones(2)))
    guard.go_back()
    with pytest.raises(ReplayError):  # from now on that is what was said
        guard.admit(activation(3, torch.zeros(2)))


def test_other_kinds_pass_unseen(tmp_path: Path) -> None:
    guard = guard_in(tmp_path)
    for payload in (torch.zeros(1, dtype=torch.uint8), torch.ones(1, dtype=torch.uint8)):
        near, far = pair(Hello("clinic", "run", "active"), Hello("lab", "run", "passive"))
        far.send(activation(0, payload, kind="resuming"), timeout=5)
        taken = guard.watching(near).receive(Expected("lab", "resuming", 0, (torch.uint8,), (1,)), timeout=5)
        assert torch.equal(taken.payload, payload)  # the second, too, which differs from the first
        near.close()
        far.close()
