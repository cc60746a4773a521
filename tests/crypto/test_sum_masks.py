from __future__ import annotations

import copy
import math

import pytest
import torch
from scipy.stats import kstest

from splitvfl.crypto.sum_masks import SumMasks, sum_of
from splitvfl.errors import CryptoError
from splitvfl.system import forks


def met(count: int, session: bytes = b"today") -> list[SumMasks]:
    senders = [SumMasks() for _ in range(count)]
    for own in senders:
        others = [sender.public for sender in senders if sender is not own]
        own.meet(torch.stack(others) if others else torch.zeros(0, 32, dtype=torch.uint8), session=session)
    return senders


def parts_of(count: int, rows: int = 50) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, 1, generator=generator, dtype=torch.float64) * 1e3 for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_masks_cancel_in_the_sum(count: int) -> None:
    parts = parts_of(count)
    sent = [own.masked(part, kind="scores", number=3, piece=1) for own, part in zip(met(count), parts, strict=True)]
    # Each part is rounded to 2^-32, half a unit at most.
    torch.testing.assert_close(sum_of(sent), torch.stack(parts).sum(dim=0), rtol=0, atol=count * 2.0**-33 + 1e-12)


def test_what_crosses_is_uniform_even_of_zeros() -> None:
    own, *_ = met(2)
    sent = own.masked(torch.zeros(20_000), kind="scores", number=0, piece=0)
    shares = sent.double().numpy() / 2.0**64 + 0.5
    # Keys are random here: two such tests fail once in 50 million runs where all is well.
    assert kstest(shares, "uniform").pvalue > 1e-8
    assert (sent & 1).double().mean().item() == pytest.approx(0.5, abs=0.02)  # the lowest bit too: 5.6 standard errors


def test_the_sum_of_some_tells_nothing() -> None:
    first, second, _ = met(3)
    part = torch.zeros(20_000)
    together = sum_of([one.masked(part, kind="scores", number=0, piece=0) for one in (first, second)])
    assert kstest(together.numpy() / 2.0**32 + 0.5, "uniform").pvalue > 1e-8


def test_all_others_together_take_off_one_partys_mask() -> None:
    """What is not promised: of three, two that tell what they know read the third one's part."""
    victim, *others = met(3)
    part = parts_of(1)[0]
    sent = victim.masked(part, kind="scores", number=0, piece=0)
    # What they would have sent of parts of zero: their masks.
    known = [own.masked(torch.zeros_like(part), kind="scores", number=0, piece=0) for own in others]
    torch.testing.assert_close(sum_of([sent, *known]), part, rtol=0, atol=2.0**-33 + 1e-12)


def test_masks_are_the_same_for_the_same_message_and_for_no_other() -> None:
    own, _ = met(2)
    part = torch.zeros(8)
    first = own.masked(part, kind="scores", number=1, piece=2)
    assert torch.equal(first, own.masked(part, kind="scores", number=1, piece=2))
    for other in (
        {"kind": "scorer", "number": 1, "piece": 2},
        {"kind": "scores", "number": 2, "piece": 1},
        {"kind": "scores", "number": 1, "piece": 3},
    ):
        assert not (first == own.masked(part, **other)).any()
    again, _ = met(2)
    assert not (first == again.masked(part, kind="scores", number=1, piece=2)).any()


def test_the_largest_parts_of_many_senders_do_not_wrap() -> None:
    senders = met(4)
    for value in (2.0**20, -(2.0**20)):
        sent = [own.masked(torch.tensor([value]), kind="scores", number=0, piece=0) for own in senders]
        assert sum_of(sent).tolist() == [4 * value]


@pytest.mark.parametrize("value", [math.nan, math.inf, 2.0**20 + 1, -(2.0**21)])
def test_parts_that_do_not_fit_are_refused(value: float) -> None:
    own, _ = met(2)
    with pytest.raises(CryptoError, match="up to 1048576 in size"):
        own.masked(torch.tensor([0.0, value]), kind="scores", number=0, piece=0)


def test_keys_that_are_none_are_refused() -> None:
    own, other = SumMasks(), SumMasks()
    with pytest.raises(CryptoError, match="its own"):
        own.meet(own.public.unsqueeze(0), session=b"")
    with pytest.raises(CryptoError, match="twice"):
        own.meet(torch.stack([other.public, other.public]), session=b"")
    # The point of order one: every shared secret would be zero.
    with pytest.raises(CryptoError, match="public key is none"):
        own.meet(torch.zeros(1, 32, dtype=torch.uint8), session=b"")


def test_the_same_keys_give_other_masks_at_another_meeting() -> None:
    own, other = SumMasks(), SumMasks()
    sent = []
    for session in (b"today", b"tomorrow", b"today"):
        own.meet(other.public.unsqueeze(0), session=session)
        sent.append(own.masked(torch.zeros(1000), kind="scores", number=0, piece=0))
    assert torch.equal(sent[0], sent[2])
    # Two uniform numbers of 64 bits are equal with probability 2^-64, each of a thousand.
    assert not (sent[0] == sent[1]).any()


def test_neither_a_copy_nor_a_forked_child_has_the_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts under the same masks: their difference is in the clear."""
    own, _ = met(2)
    with pytest.raises(TypeError, match="masks are not copied"):
        copy.deepcopy(own)
    (part,) = parts_of(1)
    with monkeypatch.context() as patched:
        patched.setattr(forks, "_forks", forks.forks() + 1)
        with pytest.raises(CryptoError, match="forked from"):
            own.masked(part, kind="scores", number=3, piece=1)
    assert own.masked(part, kind="scores", number=3, piece=1).shape == part.shape
