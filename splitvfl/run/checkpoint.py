"""Saving a run so that it can go on: all at once or not at all.

A checkpoint is a folder ``step-000120`` with one file per party and concern. It is written under another name, flushed
to disk, and renamed; older ones are deleted after that, but for as many as are asked for. Whatever interrupts the
writing, the last good one stays. Hook state (from which noise can be regenerated) lies in files of its own, and all
files are readable by their owner only.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from splitvfl.errors import CheckpointError
from splitvfl.system.private_folder import PRIVATE, private_folder
from splitvfl.system.untrusted_files import UntrustedFile, flush_folder, memory_of_machine, new_file

State = Mapping[str, Any]

_log = logging.getLogger("splitvfl.run")
_NAME = re.compile(r"step-[0-9]{1,18}(-[0-9]{1,18})?")


def save(folder: Path, step: int, parts: Mapping[str, State], *, keep: int = 1) -> Path:
    """Write one checkpoint and delete the older ones.

    Args:
        folder: Where checkpoints lie; made if missing.
        step: Number of steps done.
        parts: File stem to state: tensors, numbers, strings, lists and dicts of them.
        keep: How many checkpoints stay, this one included.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: If it cannot be written; the last good one is untouched.
    """
    target = _unused(folder / f"step-{step:09d}")
    draft = folder / f".writing-{step:09d}"
    try:
        for abandoned in (*folder.glob(".writing-*"), *folder.glob(".deleting-*")):
            shutil.rmtree(abandoned, ignore_errors=True)
        private_folder(folder)
        draft.mkdir(mode=PRIVATE)
        for stem, state in parts.items():
            with new_file(draft / f"{stem}.pt") as file:
                torch.save(dict(state), file)
        flush_folder(draft)
        draft.rename(target)
        flush_folder(folder)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        shutil.rmtree(draft, ignore_errors=True)
        kept = latest(folder)
        hope = (
            f"the last good one, {kept}, is untouched: make room and go on (with --resume, if it is a run of "
            "`splitvfl train`)"
            if kept
            else "there is no older one"
        )
        raise CheckpointError(f"cannot write the checkpoint of step {step} in {folder}: {error}; {hope}") from error
    others = [path for path in _all(folder) if path != target]
    for old in others[: max(len(others) - keep + 1, 0)]:
        remove(old)
    _log.info("checkpoint of step %d is in %s", step, target)
    return target


def _unused(target: Path) -> Path:
    """Return a name that no checkpoint has, so that the old one of the same step stays until the new one lies there."""
    number, name = 1, target
    while name.exists():
        number += 1
        name = target.with_name(f"{target.name}-{number}")
    return name


def _all(folder: Path) -> list[Path]:
    # By numbers: among the names, a tenth save of one step would come before the second.
    return sorted(filter(_is_named_so, folder.glob("step-*")), key=_step_and_number)


def _is_named_so(path: Path) -> bool:
    """Return whether a checkpoint has such a name; a link leads out of a folder that may be somebody else's."""
    return _NAME.fullmatch(path.name) is not None and not path.is_symlink()


def _step_and_number(checkpoint: Path) -> list[int]:
    return [int(part) for part in checkpoint.name.split("-")[1:]]


def latest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in a folder, or ``None``."""
    found = _all(folder)
    return found[-1] if found else None


def steps(folder: Path) -> dict[int, Path]:
    """Return the complete checkpoints in a folder by their step, in ascending order; the newest of each step."""
    return {step_of(path): path for path in _all(folder)}


def step_of(checkpoint: Path) -> int:
    """Return the number of steps that were done at a checkpoint."""
    return _step_and_number(checkpoint)[0]


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint; what is left of one that cannot be deleted is no complete one."""
    # Renamed first: half deleted, it must not pass for one that can be gone on from.
    doomed = checkpoint.with_name(f".deleting-{checkpoint.name}")
    shutil.rmtree(doomed, ignore_errors=True)  # of the same step, left by a process that was killed here
    checkpoint.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def load(checkpoint: Path, *, only: str = "*") -> dict[str, dict[str, Any]]:
    """Return the parts of a checkpoint by file stem. Only tensors and plain values are accepted, never code.

    Args:
        checkpoint: Its folder.
        only: The parts wanted, as a pattern.

    Raises:
        CheckpointError: If a file is missing, damaged, or holds anything else.
    """
    most = memory_of_machine()
    files = sorted(checkpoint.glob(f"{only}.pt"))
    parts = {path.stem: UntrustedFile(path=path, most=most).checkpoint() for path in files}
    if not parts:
        raise CheckpointError(f"{checkpoint} holds no checkpoint")
    return parts


@contextmanager
def restoring(source: Path, *, what: str, anew: str) -> Iterator[None]:
    """Say, when a checkpoint is taken back in a block and does not fit, what is the matter with it.

    Args:
        source: The checkpoint's folder.
        what: What it may belong to another one of: ``"run"``.
        anew: How to start anew, in words.

    Raises:
        CheckpointError: If the block finds something missing, of another form or of other values.
    """
    try:
        yield
    except KeyError as error:
        raise CheckpointError(
            f"{source} lacks {error}: it is damaged, or belongs to another {what} or version of splitvfl"
        ) from error
    except (IndexError, TypeError, AttributeError) as error:  # what an older version kept, in a form of its own
        raise CheckpointError(
            f"{source} was written by another version of splitvfl, or is damaged ({error}): finish the run with "
            f"the version that began it, or start anew {anew}"
        ) from error
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"{source} belongs to another {what}: {error}") from error
