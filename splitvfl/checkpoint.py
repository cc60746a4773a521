"""Saving a run so that it can go on: all at once or not at all.

A checkpoint is a folder ``step-000120`` with one file per party and concern. It is written under another name, flushed
to disk, and renamed; older ones are deleted after that. Whatever interrupts the writing, the last good one stays.
Hook state (from which noise can be regenerated) lies in files of its own, and all files are readable by their owner
only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from splitvfl.errors import CheckpointError

State = Mapping[str, Any]


def save(folder: Path, step: int, parts: Mapping[str, State]) -> Path:
    """Write one checkpoint and delete the older ones.

    Args:
        folder: Where checkpoints lie; made if missing.
        step: Number of steps done.
        parts: File stem to state: tensors, numbers, strings, lists and dicts of them.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: If it cannot be written; the last good one is untouched.
    """
    target = _unused(folder / f"step-{step:09d}")
    draft = folder / f".writing-{step:09d}"
    try:
        for abandoned in folder.glob(".writing-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        for stem, state in parts.items():
            _write(draft / f"{stem}.pt", state)
        draft.rename(target)
        _flush_folder(folder)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        shutil.rmtree(draft, ignore_errors=True)
        kept = latest(folder)
        hope = (
            f"the last good one, {kept}, is untouched: make room and go on with --resume"
            if kept
            else "there is no older one"
        )
        raise CheckpointError(f"cannot write the checkpoint of step {step} in {folder}: {error}; {hope}") from error
    for old in _all(folder):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return target


def _unused(target: Path) -> Path:
    """Return a name that no checkpoint has, so that the old one of the same step stays until the new one lies there."""
    number, name = 1, target
    while name.exists():
        number += 1
        name = target.with_name(f"{target.name}-{number}")
    return name


def _write(path: Path, state: State) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _all(folder: Path) -> list[Path]:
    # By numbers: among the names, a tenth save of one step would come before the second.
    return sorted(folder.glob("step-*"), key=lambda path: [int(part) for part in path.name.split("-")[1:]])


def latest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in a folder, or ``None``."""
    found = _all(folder)
    return found[-1] if found else None


def load(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """Return the parts of a checkpoint by file stem. Only tensors and plain values are accepted, never code.

    Raises:
        CheckpointError: If a file is missing, damaged, or holds anything else.
    """
    parts = {}
    for path in sorted(checkpoint.glob("*.pt")):
        try:
            parts[path.stem] = torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:  # unpickling errors have no common type, and torch's advice is not to be followed
            raise CheckpointError(f"{path} is damaged, or holds more than tensors and plain values") from error
    if not parts:
        raise CheckpointError(f"{checkpoint} holds no checkpoint")
    return parts
