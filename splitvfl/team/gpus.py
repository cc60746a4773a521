"""The GPUs of a party's workers: which of them computes on which, and sums from one to another by NCCL.

Each worker takes the GPU of its number among the processes of its machine. Where there are fewer GPUs, workers share
them, which NCCL refuses; then, as on CPUs, sums go by way of main memory and gloo.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from splitvfl.errors import ConfigError, TeamError
from splitvfl.system.untrusted_files import decoded

SUM_S: Final = 30.0
"""How long a sum may take, in seconds: all workers are there when it begins. NCCL does not notice who leaves later."""


def take_gpu(environment: Mapping[str, str]) -> torch.device:
    """Make a GPU this process's own: the one of its number on its machine.

    Args:
        environment: Where the launcher's variables are; without ``LOCAL_RANK`` it is taken to be the only process of
            its machine, as in a container with a GPU of its own.

    Raises:
        ConfigError: If ``LOCAL_RANK`` makes no sense.
    """
    rank = environment.get("LOCAL_RANK", "0")
    if not rank.isdecimal():
        raise ConfigError(f"LOCAL_RANK is {rank!r}, expected a whole number from 0: what starts the workers sets it")
    device = torch.device("cuda", int(rank) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def described(device: torch.device) -> str:
    """Return what other workers have to know of a device: its kind, and which one of the world's it is."""
    if device.type != "cuda":
        return json.dumps([device.type, ""])
    found = torch.cuda.get_device_properties(device)
    return json.dumps([found.name, f"{socket.gethostname()} {found.uuid}"])


def check_one_kind(party: str, devices: Sequence[str]) -> None:
    """Check that all workers compute on devices of one kind: others round otherwise, and replicas would part.

    Raises:
        TeamError: If one does not.
    """
    kinds = [decoded(one.encode())[0] for one in devices]
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise TeamError(
                f"the workers of {party} compute on other devices: worker 0 on {_shown(kinds[0])}, worker {rank} on "
                f"{_shown(kind)}; take machines of one kind, or write train: {{device: cpu}}",
                final=True,
            )


def _shown(kind: str) -> str:
    return "a CPU" if kind == "cpu" else kind


def are_apart(devices: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether NCCL joins these GPUs: no two workers have the same one, or NCCL was told to bear with that.

    Args:
        devices: As :func:`described` has them, of all workers.
        environment: Where ``NCCL_MULTI_RANK_GPU_ENABLE`` may be, which NCCL reads from version 2.30 on.
    """
    return len(set(devices)) == len(devices) or environment.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


class GpuSums:
    """Sums over workers that NCCL takes from GPU to GPU. All workers make one together.

    Args:
        device: This worker's GPU.
        wait_for: Waits for what has ``is_completed`` and ``wait``, as work of torch has them, and calls about once a
            second what it is given besides.

    Raises:
        RuntimeError: If NCCL does not join them.
    """

    def __init__(self, device: torch.device, wait_for: Callable[[Any, Callable[[], None]], None]) -> None:
        self._wait_for = wait_for
        # torch would end the whole process where NCCL fails; here who waits says why, and ends in order.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        self._group: Any = dist.new_group(backend="nccl", timeout=timedelta(seconds=2 * SUM_S))
        try:
            self.add_up(torch.ones(1, device=device))  # joins them
        except RuntimeError as error:
            raise RuntimeError(f"NCCL does not join the GPUs (NCCL_DEBUG=INFO shows why): {error}") from error

    def add_up(self, flat: Tensor) -> None:
        """Overwrite a tensor on the GPU with the sum of all workers', the same to the bit at each.

        Raises:
            RuntimeError: If it fails, or takes longer than :data:`SUM_S`: another worker is gone.
        """
        until = time.perf_counter() + SUM_S

        def check() -> None:
            if time.perf_counter() > until:
                raise RuntimeError(f"NCCL has waited for {SUM_S:g} s")

        dist.all_reduce(
            flat, group=self._group, async_op=True
        ).wait()  # what follows on the GPU waits, not this process
        self._wait_for(_Queued(), check)

    def close(self) -> None:
        """Leave the group, and wait for nobody: others may be gone, or wait for this worker elsewhere."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()


class _Queued:
    """All that the GPU was given to do until now."""

    def __init__(self) -> None:
        self._end = torch.cuda.Event()
        self._end.record()

    def is_completed(self) -> bool:
        """Return whether it is done: to wait for it would be deaf to signals, and to who is gone."""
        done: bool = self._end.query()
        return done

    def wait(self) -> None:
        """Do nothing: it is done."""
