"""Pieces of work that are done once: cached as JSON, in a pool of processes, so that a run can be broken off."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch

from scripts.reproduce.shared.claims import write_whole
from splitvfl import __version__

Result = dict[str, Any]

# Spawned: a fork of a process in which torch has started threads may hang.
PROCESSES: BaseContext = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Job:
    """A function at the top of a module, and what it is called with.

    Attributes:
        work: Returns what JSON can hold; called with the settings as keywords.
        settings: JSON values. They and the function's name decide whether a result that lies there is this job's.
    """

    work: Callable[..., Result]
    settings: Mapping[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this job from others; a result of another version of splitvfl is not this job's."""
        name = f"{self.work.__module__}.{self.work.__qualname__}"
        return {"work": name, "version": __version__, "settings": dict(self.settings)}

    @property
    def label(self) -> str:
        """What is said of it while it is worked on."""
        parts = [
            value.get("key", value.get("label", "")) for value in self.settings.values() if isinstance(value, dict)
        ]
        seed = [f"seed {self.settings['seed']}"] if "seed" in self.settings else []
        return ", ".join([self.work.__name__, *filter(None, parts), *seed])

    def place(self, folder: Path) -> Path:
        """Return the file that its result is kept in."""
        digest = hashlib.blake2b(json.dumps(self.identity, sort_keys=True).encode(), digest_size=8).hexdigest()
        return folder / f"{self.work.__name__}-{digest}.json"


def run_jobs(
    jobs: Sequence[Job], folder: Path, *, workers: int, say: Callable[[str], None] = lambda line: None
) -> list[Result]:
    """Return every job's result, in order; only those without one in the folder are run.

    A result is written whole as soon as there is one, so that a run that was broken off goes on where it stood.
    **A change of the code is not noticed**: delete the folder after one.

    Args:
        jobs: What to do. Jobs that are alike are done once.
        folder: Where results are kept.
        workers: Processes of one thread each; with 1, this one.
        say: Called with a line after each job that was run.

    Raises:
        Exception: What the first failing job raised; results of the others are kept.
    """
    waiting = list({place: job for job in jobs if not (place := job.place(folder)).exists()}.values())
    if workers == 1:
        for number, job in enumerate(waiting, start=1):
            _run(job, folder)
            say(f"{number}/{len(waiting)} {job.label}")
    elif waiting:
        _run_in_pool(waiting, folder, workers, say)
    return [_read(job.place(folder)) for job in jobs]


def _run_in_pool(jobs: Sequence[Job], folder: Path, workers: int, say: Callable[[str], None]) -> None:
    with ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=PROCESSES, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        futures = {pool.submit(_run, job, folder): job for job in jobs}
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                future.result()
                say(f"{number}/{len(jobs)} {futures[future].label}")
        finally:
            # After a failure or Ctrl-C, what has not begun is not begun.
            pool.shutdown(wait=False, cancel_futures=True)


def _run(job: Job, folder: Path) -> None:
    result = job.work(**job.settings)
    write_whole(job.place(folder), json.dumps({**job.identity, "result": _without_nan(result)}, allow_nan=False))


def _read(path: Path) -> Result:
    result: Result = _with_nan(json.loads(path.read_text(encoding="utf-8"))["result"])
    return result


def _without_nan(value: Any) -> Any:
    """Write what is not finite as null: JSON has no word for it."""
    if isinstance(value, Mapping):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_nan(part) for part in value]
    return math.nan if value is None else value
