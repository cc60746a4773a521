"""Parties of one experiment, each in a process of its own, over mutual TLS on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from splitvfl.run import checkpoint

COMMAND = [sys.executable, "-c", "import sys; from splitvfl.cli import main; sys.exit(main())"]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start(root: Path, arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Start ``splitvfl`` with these arguments in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_party(root: Path, folder: Path, file: str, name: str, *more: str) -> subprocess.Popen[str]:
    """Start one party in a folder that holds its file; its run lies in ``runs/NAME``."""
    return start(root, ["party", file, "--as", name, "--out", f"runs/{name}", *more], folder)


def finished(processes: Mapping[str, subprocess.Popen[str]], *, timeout: float = 120) -> dict[str, str]:
    """Wait for all, and return what each wrote to standard error; all must have ended well."""
    said = {}
    for name, process in processes.items():
        out, errors = process.communicate(timeout=timeout)
        assert process.returncode == 0, f"{name}: {process.returncode}\n{out}\n{errors}"
        said[name] = errors
    return said


def weights_of(folder: Path) -> dict[str, Tensor]:
    """The weights in the newest checkpoint of one party's run."""
    newest = checkpoint.latest(folder / "checkpoints")
    assert newest is not None
    state: dict[str, Tensor] = checkpoint.load(newest, only="party")["party"]["module"]
    return state


def same_weights(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
