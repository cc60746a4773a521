"""Parties of one experiment, each in a process of its own, over mutual TLS on loopback."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from scripts.bench.faulty import short_keys
from splitvfl.run import checkpoint
from splitvfl.run.shared_state import whole_party
from splitvfl.run.training import Training
from tests.commands import Command, Within

# What encrypted runs compute does not depend on the length of keys, and how long they take does.
SHORT_KEYS: Within = partial(short_keys, 512)


_PORTS = range(10_000, 32_000)
_GIVEN: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    found: set[int] = set()
    while len(found) < count:
        found.add(neighbouring_ports(1))
    return list(found)


def neighbouring_ports(count: int) -> int:
    """The first of ports that follow each other, at none of which anybody listens now.

    They are below those that systems give to callers, so that nobody takes one by chance before it is used. No port is
    given twice by one process of tests, and none by two that run side by side.
    """
    each = len(_PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = _PORTS[each * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) :][:each]
    while True:
        first = secrets.choice(own[: each - count])
        wanted = set(range(first, first + count))
        with ExitStack() as taken, suppress(OSError):
            for port in wanted - _GIVEN:
                taken.enter_context(socket.socket()).bind(("127.0.0.1", port))
            if not wanted & _GIVEN:
                _GIVEN.update(wanted)
                return first


def start(root: Path, arguments: Sequence[str], folder: Path, *, within: Within = nullcontext) -> Command:
    """Start ``splitvfl`` with these arguments in a folder, and in its process within something."""
    return Command(arguments, folder, within=within, COLUMNS="120", PYTHONPATH=str(root))


def start_party(root: Path, folder: Path, file: str, name: str, *more: str, within: Within = nullcontext) -> Command:
    """Start one party in a folder that holds its file; its run lies in ``runs/NAME``."""
    return start(root, ["party", file, "--as", name, "--out", f"runs/{name}", *more], folder, within=within)


def finished(processes: Mapping[str, Command], *, timeout: float = 120) -> dict[str, str]:
    """Wait for all, and return what each wrote to standard error; all must have ended well."""
    said = {}
    for name, process in processes.items():
        out, errors = process.communicate(timeout=timeout)
        assert process.returncode == 0, f"{name}: {process.returncode}\n{out}\n{errors}"
        said[name] = errors
    return said


def side_by_side(acts: Mapping[str, Callable[[], object]], *, timeout: float = 60) -> dict[str, BaseException]:
    """Let each act in a thread of its own, and return what went wrong, by name; all must end.

    They begin in this order: who dials before anybody listens waits before it dials again.
    """
    wrong: dict[str, BaseException] = {}

    def act(name: str) -> None:
        try:
            acts[name]()
        except BaseException as error:  # handed to the test
            wrong[name] = error

    threads = [threading.Thread(target=act, args=(name,), daemon=True) for name in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    assert not any(thread.is_alive() for thread in threads), "somebody hangs"
    return wrong


def newest_of(run: Path, first: Path | None = None) -> dict[str, Any]:
    """All that the newest checkpoint of a run holds, of a worker with what lies in the run of the first one."""
    newest = checkpoint.latest(run / "checkpoints")
    assert newest is not None
    parts = checkpoint.load(newest)
    return parts if "party" not in parts else parts | {"party": whole_party(newest, first)}


def has_reached(run: Path, step: int) -> bool:
    """Whether a run has a checkpoint of this step or a later one."""
    return max(checkpoint.steps(run / "checkpoints"), default=0) >= step


def wait_for_step(run: Path, step: int) -> None:
    """Wait until a run has one."""
    deadline = time.monotonic() + 90
    while not has_reached(run, step):
        assert time.monotonic() < deadline, f"no checkpoint of step {step} in {run}"
        time.sleep(0.01)


def signalled(step: int, number: int, once: Path) -> AbstractContextManager[object]:
    """Let a party get a signal while it is entered, when it has done a step, and only if a file is not there yet."""
    step_done = Training.step_done

    def done(training: Training) -> None:
        step_done(training)
        if training.step == step and not once.exists():
            once.touch()
            os.kill(os.getpid(), number)

    return mock.patch.object(Training, "step_done", done)


def weights_of(folder: Path, first: Path | None = None) -> dict[str, Tensor]:
    """The weights in the newest checkpoint of one party's run, of a worker with those in the run of the first one."""
    newest = checkpoint.latest(folder / "checkpoints")
    assert newest is not None
    state: dict[str, Tensor] = whole_party(newest, first)["module"]
    return state


def same_weights(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
