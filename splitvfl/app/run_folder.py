"""The folder of a run: whether it may be written to, and what splitvfl writes there and may delete."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from splitvfl.config.sections import RUN_HEADER, kept_text
from splitvfl.config.yaml import Document
from splitvfl.errors import ConfigError
from splitvfl.leakage.reconstruction import RECONSTRUCTION_FILE
from splitvfl.leakage.shown_records import SHOWN_FILE
from splitvfl.report.audit_words import AUDIT_FILE, AUDIT_PAGE
from splitvfl.report.provenance import BEGUN_FILE
from splitvfl.report.releases import RELEASES_FILE, RESERVE_FILE
from splitvfl.report.rows import counted
from splitvfl.report.summary import FILE_NAME, RunSummary, read_summary
from splitvfl.run import checkpoint, written_files
from splitvfl.run.ledger_file import LEDGER_FOLDER
from splitvfl.system.untrusted_files import UntrustedFile, write_whole

CONFIG_FILE = "experiment.yaml"
MODEL_FOLDER = "model"
STUDENT_FOLDER, ALONE_FOLDER, DISTILLATION_FILE = "student", "own-columns", "distillation.json"
_CONFIG_DRAFT = f".{CONFIG_FILE}"


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
        raise ConfigError(_already_there(folder))


def _already_there(folder: Path) -> str:
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


def kept_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that a run's folder holds, as they stand there; nothing where there are none.

    Raises:
        ConfigError: If the file is damaged, a link or no file.
    """
    path = folder / CONFIG_FILE
    text = kept_text(path)
    return {} if text is None else Document(text, source=str(path)).tree


def is_barely_begun(folder: Path) -> bool:
    """Return whether a folder holds a run that was broken off before its first checkpoint: nothing worth keeping."""
    kept = (MODEL_FOLDER, "weights", "report.html", FILE_NAME)
    return (
        _is_run(folder)
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


def clear_run(folder: Path) -> None:
    """Delete what a run writes, and nothing else. Killed on the way, it leaves a run, of which the rest can go too."""
    doomed = folder / ".deleting"
    workers = [path.name for path in folder.glob("worker-[0-9]*") if _is_run(path)]
    own = (*written_files.FOLDERS, "weights", MODEL_FOLDER, LEDGER_FOLDER, STUDENT_FOLDER, ALONE_FOLDER)
    for name in (*own, *workers):
        shutil.rmtree(doomed, ignore_errors=True)
        if (folder / name).exists():
            (folder / name).rename(doomed)  # half deleted, they must not pass for whole ones
            shutil.rmtree(doomed, ignore_errors=True)
    names = (
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
        CONFIG_FILE,
    )  # the last one says that it is a run
    for path in [*written_files.files(folder), *(folder / name for name in names)]:
        path.unlink(missing_ok=True)
