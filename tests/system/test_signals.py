"""Ctrl-C and SIGTERM ask first, and act then."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from splitvfl.system.signals import Signals, stoppable

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def no_search_for_garbage() -> Iterator[None]:
    """An interrupt that comes in a callback of that search, as Hypothesis has one, is lost there."""
    gc.disable()
    yield
    gc.enable()


@BOTH
def test_the_first_asks_and_the_second_acts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Signals() as signals:
        assert not signals.asked
        send(number)
        assert signals.asked
        with pytest.raises(KeyboardInterrupt):
            send(number)
    assert signal.getsignal(number) is before


@BOTH
def test_who_waits_is_woken_after_the_grace(number: signal.Signals) -> None:
    def wait() -> None:
        send(number)  # the grace may be over before a slow machine has begun to wait
        threading.Event().wait(60)

    with Signals(grace_s=0.01) as signals, pytest.raises(KeyboardInterrupt):
        wait()
    assert signals.asked


def test_a_request_that_outlived_its_block_has_its_time_limit_again_in_the_next() -> None:
    with Signals(grace_s=0.01) as signals:
        signals.asked = True  # and then a link was lost
    with pytest.raises(KeyboardInterrupt), signals:
        threading.Event().wait(60)


def test_no_signal_comes_once_the_block_is_left() -> None:
    with Signals(grace_s=0.05) as signals:
        send(signal.SIGINT)
    time.sleep(0.1)
    assert signals.asked


def test_it_acts_until_the_last_of_several_has_left() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Signals() as signals:
        with signals:
            pass
        send(signal.SIGINT)
        assert signals.asked
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_interrupts_within_a_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stoppable():
        send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def inside() -> None:
        with stoppable(), Signals() as signals:
            seen.append((signal.getsignal(signal.SIGTERM), signals.asked))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [(before, False)]
