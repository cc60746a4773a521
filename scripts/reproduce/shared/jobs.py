"""Pieces of work that are done once: cached as JSON, in a pool of processes, so that a run can be broken off."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch

from scripts.reproduce.shared.claims import write_whole
from scripts.reproduce.shared.sources import code_of
from splitvfl import __version__
from splitvfl.errors import DataError

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
        """What is said of it while it is worked on: the function, names and figures of the settings, and the seed."""
        parts = [_named(name, value) for name, value in self.settings.items() if name != "seed"]
        seed = [f"seed {self.settings['seed']}"] if "seed" in self.settings else []
        return ", ".join([self.work.__name__, *filter(None, parts), *seed])

    @property
    def name(self) -> str:
        """What it is called where no other is called the same: the function's name and a digest of the identity."""
        return name_of_cell(self.identity)

    def place(self, folder: Path) -> Path:
        """Return the file that its result is kept in."""
        return folder / f"{self.name}.json"


def name_of_cell(identity: Mapping[str, Any]) -> str:
    """Return what a cell is called: the name of its function, and a digest of what tells it from others."""
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()
    return f"{identity['work'].rpartition('.')[2]}-{digest}"


def _named(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        source = " ".join(filter(None, (value.get("source"), value.get("variant"))))
        return str(value.get("key") or value.get("label") or source)
    return f"{name} {value}" if isinstance(value, str | int | float) else ""


@dataclass(frozen=True)
class Cell:
    """A job's result as it is kept.

    Attributes:
        name: Of the job.
        label: Of the job.
        result: What was found.
        seconds: CPU seconds that it took, those of processes that it started included; NaN if nobody measured.
        stale: Whether the code that it depends on has changed since.
    """

    name: str
    label: str
    result: Result
    seconds: float
    stale: bool


class OneCell(Exception):
    """The cell that was asked for alone has been run.

    Attributes:
        job: Which.
        kept: What was kept of it before; ``None``: nothing.
        found: What was found now, and is kept.
    """

    def __init__(self, job: Job, kept: Cell | None, found: Cell) -> None:
        super().__init__(job.name)
        self.job, self.kept, self.found = job, kept, found


@dataclass
class Cells:
    """Where results are kept, which of them may be used, and which were.

    Attributes:
        folder: One file for each.
        keep_stale: Whether those of older code are used as they are, not made anew.
        alone: Name or label of the only cell to run: see :class:`OneCell`.
        used: By name, what was used since this was made; their results are left out.
    """

    folder: Path
    keep_stale: bool = False
    alone: str = ""
    used: dict[str, Cell] = field(default_factory=dict)

    def kept(self, job: Job) -> Cell | None:
        """Return what is kept of a job; ``None``: nothing.

        Raises:
            DataError: If what lies there is broken, or another job's.
        """
        path = job.place(self.folder)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({error}); delete it, and it is made anew") from None
        try:
            content = json.loads(text)
            found = {name: content[name] for name in job.identity}
            result = _with_nan(content["result"])
            code, seconds = content.get("code"), float(content.get("seconds", math.nan))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{path}: half a cell, or none; delete it, and it is made anew") from None
        if found != json.loads(json.dumps(job.identity)) or not isinstance(result, dict):
            raise DataError(f"{path}: not the cell that its name says; delete it, and it is made anew")
        # Cells of before there were sums have none.
        if content.get("sum", _sum_of(content["result"])) != _sum_of(content["result"]):
            raise DataError(f"{path}: its result was changed since it was made; delete it, and it is made anew")
        return Cell(job.name, job.label, result, seconds, stale=code != code_of(job.work))

    def usable(self, jobs: Sequence[Job]) -> tuple[dict[str, Cell], list[Job], int]:
        """Return what may be used of these jobs, by name, those that have to be run, and how many of them are stale.

        Raises:
            DataError: As :meth:`kept`.
        """
        once = {job.name: job for job in jobs}
        found = {name: cell for name, job in once.items() if (cell := self.kept(job)) is not None}
        stale = [] if self.keep_stale else [name for name, cell in found.items() if cell.stale]
        usable = {name: cell for name, cell in found.items() if name not in stale}
        none = [job for name, job in once.items() if name not in found]
        return usable, [*none, *(once[name] for name in stale)], len(stale)

    def results(self, jobs: Sequence[Job], known: Mapping[str, Cell] | None = None) -> list[Result]:
        """Return what is kept of these jobs, in order, and count them as used.

        Args:
            jobs: Which.
            known: By name, what has been read of them already.

        Raises:
            DataError: As :meth:`kept`, or if nothing is kept of one.
        """
        return [self._use(job, (known or {}).get(job.name) or self.kept(job)).result for job in jobs]

    @property
    def unused(self) -> int:
        """How many cells lie in the folder that were not used: of other settings, or another version."""
        return len({path.stem for path in self.folder.glob("*.json")} - self.used.keys())

    def _use(self, job: Job, cell: Cell | None) -> Cell:
        if cell is None:
            raise DataError(f"{job.place(self.folder)}: is not there any more")
        self.used[cell.name] = Cell(cell.name, cell.label, {}, cell.seconds, cell.stale)
        return cell

    def one(self, jobs: Sequence[Job]) -> None:
        """Run the one cell that was asked for, if it is among these jobs.

        Raises:
            OneCell: It has been run.
            DataError: If several are called so; or if none is, and not all of these jobs are kept, so that those that
                come after them cannot be known.
        """
        known = {job.name: job for job in jobs}
        chosen = [job for job in known.values() if self.alone in (job.name, job.label)]
        if len(chosen) > 1:
            raise DataError(f"{len(chosen)} cells are called {self.alone!r}; give one of: {listed(chosen)}")
        if chosen:
            before = self.kept(chosen[0])
            _run(chosen[0], self.folder, code_of(chosen[0].work))
            after = self.kept(chosen[0])
            assert after is not None
            raise OneCell(chosen[0], before, after)
        if any(self.kept(job) is None for job in known.values()):
            raise DataError(
                f"there is no cell {self.alone!r} among the {len(known)} that come first, and these have to be run "
                f"before it is known which come next. There are: {listed(list(known.values()))}"
            )


def listed(jobs: Sequence[Job | Cell], most: int = 20) -> str:
    """Return names and labels of cells, for a message."""
    said = [f"{job.name} ({job.label})" for job in jobs[:most]]
    return "; ".join(said) + (f"; and {len(jobs) - most} others" if len(jobs) > most else "")


def run_jobs(
    jobs: Sequence[Job], cells: Cells | Path, *, workers: int, say: Callable[[str], None] = lambda line: None
) -> list[Result]:
    """Return every job's result, in order; only those are run of which none is kept, or one of older code.

    A result is written whole as soon as there is one, so that a run that was broken off goes on where it stood. With it
    are kept settings, version, CPU seconds, and the digest of the code that it depends on
    (:func:`~scripts.reproduce.shared.sources.code_of`): after a change of that code it is stale, and made anew, unless
    ``cells`` says otherwise. A change of data files or of other libraries is not noticed.

    Args:
        jobs: What to do. Jobs that are alike are done once.
        cells: Where results are kept, and which may be used; a folder: what is in it and not stale.
        workers: Processes of one thread each; with 1, this one.
        say: Called with a line after each job that was run.

    Raises:
        DataError: If what is kept is broken or another job's.
        OneCell: If one cell alone was asked for, when it has been run.
        Exception: What the first failing job raised; results of the others are kept.
    """
    cells = Cells(cells) if isinstance(cells, Path) else cells
    if cells.alone:
        cells.one(jobs)
        return cells.results(jobs)
    known, waiting, stale = cells.usable(jobs)
    if stale:
        say(f"{stale} cells are of older code, and are made anew")
    if workers == 1:
        for number, job in enumerate(waiting, start=1):
            _run(job, cells.folder, code_of(job.work))
            say(f"{number}/{len(waiting)} {job.label}")
    elif waiting:
        _run_in_pool(waiting, cells.folder, workers, say)
    return cells.results(jobs, known)


def _run_in_pool(jobs: Sequence[Job], folder: Path, workers: int, say: Callable[[str], None]) -> None:
    with ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=PROCESSES, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        futures = {pool.submit(_run, job, folder, code_of(job.work)): job for job in jobs}
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                future.result()
                say(f"{number}/{len(jobs)} {futures[future].label}")
        finally:
            # After a failure or Ctrl-C, what has not begun is not begun.
            pool.shutdown(wait=False, cancel_futures=True)


def _run(job: Job, folder: Path, code: str) -> None:
    began = _seconds()
    result = _without_nan(job.work(**job.settings))
    seconds = round(_seconds() - began, 3)
    content = {**job.identity, "code": code, "seconds": seconds, "sum": _sum_of(result), "result": result}
    write_whole(job.place(folder), json.dumps(content, allow_nan=False))


def _sum_of(result: object) -> str:
    """Return a digest of a result as it is kept: against mistakes, and not against anybody who means it."""
    # As it will be read again: keys are text.
    text = json.dumps(json.loads(json.dumps(result)), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _seconds() -> float:
    """Return the CPU seconds of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


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
