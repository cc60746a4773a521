"""The folder of a run: whether it may be written to, and what splitvfl writes there and may delete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from splitvfl.app.run_files import (
    ALONE_FOLDER,
    CONFIG_FILE,
    DISTILLATION_FILE,
    MODEL_FOLDER,
    STUDENT_FOLDER,
    kept_settings,
)
from splitvfl.config.sections import RUN_HEADER
from splitvfl.errors import ConfigError
from splitvfl.leakage.reconstruction import RECONSTRUCTION_FILE
from splitvfl.leakage.shown_records import SHOWN_FILE
from splitvfl.report.audit_file import AUDIT_FILE, AUDIT_PAGE
from splitvfl.report.provenance import BEGUN_FILE
from splitvfl.report.releases import RELEASES_FILE, RESERVE_FILE
from splitvfl.report.rows import counted
from splitvfl.report.summary import FILE_NAME, RunSummary, read_summary
from splitvfl.run import checkpoint, written_files
from splitvfl.run.ledger_file import LEDGER_FOLDER
from splitvfl.run.replacement import PART, REPLACED, Replacement, delete, is_unsettled
from splitvfl.system.folder_lock import locked
from splitvfl.system.untrusted_files import UntrustedFile, refuse_links, write_whole

_CONFIG_DRAFT = f".{CONFIG_FILE}"
# So long a worker may take to notice that another one has ended.
_PATIENCE_S = 30.0


def has_checkpoint(folder: Path) -> bool:
    """Return whether a folder holds a run that can go on from a checkpoint."""
    return checkpoint.latest(folder / "checkpoints") is not None


def check_folder(folder: Path, source: str, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that a run may not be written to, or that holds its source; nothing is changed in it.

    Raises:
        ConfigError: If the folder holds a run and neither ``resume`` nor ``overwrite`` is asked for, holds other files,
            is no folder, or there is nothing to resume.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; a run needs a folder")
    refuse_links(folder, ConfigError)
    if resume:
        if not has_checkpoint(folder):
            raise ConfigError(f"{folder} holds no checkpoint to resume from; start it without --resume")
        return
    if not folder.exists() or {path.name for path in folder.iterdir()} <= {_CONFIG_DRAFT}:
        return
    if not _is_run(folder) or Path(source).resolve() == (folder / CONFIG_FILE).resolve():
        raise ConfigError(
            f"{folder} holds files and is not a run of splitvfl; it is left alone, name another with --out"
        )
    if not overwrite:
        raise ConfigError(already_there(folder))


def holds_finished_run(folder: Path) -> bool:
    """Return whether a folder holds a run with its figures."""
    return folder.is_dir() and _is_run(folder) and (folder / FILE_NAME).is_file()


def already_there(folder: Path) -> str:
    """Return what is said of a folder that holds a run, finished or not."""
    if not (folder / FILE_NAME).is_file():
        return f"{folder} already holds a run; continue it with --resume, or replace it with --overwrite"
    done = read_summary(folder)
    if done.planned_steps is not None:
        return (
            f"{folder} already holds a run of {done.seat} that has not finished; go on with it by starting that party "
            "again, as it was started, or replace it with --overwrite"
        )
    exchange = kept_settings(folder).get("exchange")
    # Calculated noise is that of the epochs that were planned: such a run is not resumed for more.
    noisy = isinstance(exchange, dict) and any(exchange.get(key) is not None for key in ("noise", "sum_noise"))
    more = "" if noisy else f"train it for more epochs with train.epochs={2 * done.epochs} --resume, "
    return (
        f"{folder} already holds a finished run, of {counted(done.epochs, 'epoch')}{finished_at(done)}: see it with "
        f"splitvfl report {folder}; {more}replace it with --overwrite, or name another folder with --out"
    )


def finished_at(run: RunSummary) -> str:
    """Return when a run finished, with a comma before; nothing where that was not kept."""
    return "" if run.provenance is None else f", finished {run.provenance.finished}"


def _is_run(folder: Path) -> bool:
    """Return whether a folder holds a run: settings that a run wrote, not an experiment file of the same name."""
    file = UntrustedFile(path=folder / CONFIG_FILE, error=ConfigError).open()
    if file is None:
        return False
    with file:
        return file.read(len(RUN_HEADER)) == RUN_HEADER.encode()


def is_barely_begun(folder: Path) -> bool:
    """Return whether a folder holds a run that was broken off before its first checkpoint: nothing worth keeping."""
    kept = (MODEL_FOLDER, "weights", "report.html", FILE_NAME)
    return (
        _is_run(folder)
        and not is_unsettled(folder)  # a run lies aside in it
        and not has_checkpoint(folder)
        and not any((folder / name).exists() for name in kept)
        and not written_files.refusal_journals(folder)
    )


def write_config(folder: Path, text: str, *, private: bool = False) -> None:
    """Write the settings of a run into its folder, all at once.

    Args:
        folder: The run's folder.
        text: The settings, as YAML.
        private: Whether a secret is among them, and only the owner of the file may read it; else it follows the umask.
    """
    write_whole(folder / CONFIG_FILE, (RUN_HEADER + text).encode(), mode=0o600 if private else 0o666)


def written(folder: Path) -> list[Path]:
    """Return what a run has written into a folder: what says that it is a run last."""
    workers = [path for path in folder.glob("worker-[0-9]*") if _is_run(path)]
    names = (
        "weights",
        MODEL_FOLDER,
        LEDGER_FOLDER,
        STUDENT_FOLDER,
        ALONE_FOLDER,
        "report.html",
        RECONSTRUCTION_FILE,
        SHOWN_FILE,
        AUDIT_FILE,
        RELEASES_FILE,
        AUDIT_PAGE,
        RESERVE_FILE,
        DISTILLATION_FILE,
        FILE_NAME,
        BEGUN_FILE,
    )
    own = [*workers, *(folder / name for name in (*names, CONFIG_FILE))]
    return [*written_files.paths(folder), *filter(os.path.lexists, own)]


def settle(folder: Path, *, notify: Callable[[str], None]) -> None:
    """End what a killed process has left of replacing a run; the folder is locked.

    Args:
        folder: The folder, which need not hold a run.
        notify: Told in one line that an earlier run was brought back.

    Raises:
        ConfigError: If workers of the run that was killed are still at work.
        OSError: If files cannot be moved.
    """
    if any(_is_run(place) for place in (folder, folder / REPLACED, folder / PART)):
        with _workers_gone(folder, wanted=is_unsettled(folder)):
            Replacement(folder, written, notify=notify).settle()


@contextmanager
def replacing(folder: Path, *, anew: bool, notify: Callable[[str], None]) -> Iterator[Replacement]:
    """Keep the run that a folder holds until another one has its first checkpoint, or the block ends well.

    Whatever ends the block before brings it back. A run without anything worth keeping is deleted at once.

    Args:
        folder: The folder, which is locked and settled.
        anew: Whether a run begins in the block; otherwise the one that is there goes on, and nothing is moved.
        notify: Told in one line what became of the earlier run.
    """
    earlier = Replacement(folder, written, notify=notify)
    if anew:
        if is_barely_begun(folder):
            delete(folder, written(folder))
        earlier.begin()
    try:
        yield earlier
    except BaseException:
        try:
            with _workers_gone(folder, wanted=earlier.is_aside):
                earlier.undo()
        except (OSError, ConfigError) as error:  # the reason why the block ended is what counts
            notify(f"the earlier run lies in {folder / REPLACED}, and the next start brings it back: {error}")
        raise
    earlier.done()


@contextmanager
def _workers_gone(folder: Path, *, wanted: bool) -> Iterator[None]:
    """Wait until no worker is at work in a folder of its own within the run's, and keep others out."""
    with ExitStack() as held:
        for path in folder.glob("worker-[0-9]*") if wanted else ():
            held.enter_context(locked(path, patience_s=_PATIENCE_S))
        yield
