"""One cell run again: what comes of it beside what was kept."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from scripts.reproduce.shared.jobs import Cells, Job, OneCell, run_jobs
from scripts.reproduce.shared.making import duration
from splitvfl.errors import DataError

_HOME = "scripts.reproduce."
"""What cells are run by lies there; a file must not choose any other function."""


def run_again(path: Path, say: Callable[[str], None] = print) -> int:
    """Run the cell of a file again, say what comes of it, and return 1 if it differs from what was kept.

    Raises:
        DataError: If the file is no whole cell, or one of another version, or its function is not there any more.
    """
    job = job_of(path)
    # As in the processes of a whole run: figures depend on it.
    torch.set_num_threads(1)
    try:
        run_jobs([job], Cells(path.parent, alone=job.name), workers=1)
    except OneCell as one:
        return compared(one, say)
    raise AssertionError("a cell that is asked for alone is run")


def job_of(path: Path) -> Job:
    """Return the job whose result a file holds.

    Raises:
        DataError: As :func:`run_again`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        module, _, name = content["work"].rpartition(".")
        settings, version = dict(content["settings"]), content["version"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: half a cell, or none ({error})") from None
    work = _function(module, name)
    if not callable(work):
        raise DataError(f"{path}: there is no function {module}.{name} that cells are run by")
    job = Job(work, settings)
    if version != job.identity["version"]:
        raise DataError(f"{path}: of version {version}, not {job.identity['version']}")
    if job.place(path.parent) != path:
        raise DataError(f"{path}: not the cell that its name says")
    return job


def _function(module: str, name: str) -> Any:
    """Return a function that cells are run by; ``None`` if there is none of that name."""
    if not module.startswith(_HOME):
        return None
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        return None


def compared(one: OneCell, say: Callable[[str], None]) -> int:
    """Say what came of one cell beside what was kept of it, and return 1 if they differ."""
    say(f"{one.job.name}: {one.job.label}, {duration(one.found.seconds)} of CPU time")
    say(json.dumps(one.job.settings, ensure_ascii=False))
    if one.kept is None:
        say("nothing was kept of it before; now this is:")
        say(json.dumps(one.found.result, ensure_ascii=False))
        return 0
    code = "older code" if one.kept.stale else "the same code"
    apart = _differences("", one.kept.result, one.found.result)
    if not apart:
        say(f"the same as was kept, which was of {code}")
        return 0
    say(f"values that differ from what was kept, which was of {code}: {len(apart)}; kept → now, and now is kept:")
    for line in apart[:_SHOWN]:
        say(f"    {line}")
    if len(apart) > _SHOWN:
        say(f"    and {len(apart) - _SHOWN} others")
    return 1


_SHOWN = 20
"""So many values of a cell that differ are shown."""


def _differences(place: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return [line for name in old for line in _differences(f"{place}.{name}".lstrip("."), old[name], new[name])]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for number, pair in pairs for line in _differences(f"{place}[{number}]", *pair)]
    both_nan = all(isinstance(value, float) and math.isnan(value) for value in (old, new))
    return [] if old == new or both_nan else [f"{place}: {old} → {new}"]
