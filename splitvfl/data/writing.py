"""Folders and arrays on disk: complete or not there at all."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from splitvfl.data.schema import is_table_folder
from splitvfl.errors import ArgumentError, DataError
from splitvfl.system.signals import stoppable
from splitvfl.system.untrusted_files import flush_folder, new_file

_LOCK = ".lock"


class NpyWriter:
    """Writes an array row by row into an ``.npy`` file whose size is known, without holding it in memory.

    Args:
        path: The file; it must not exist.
        shape: Shape of the whole array.
        dtype: Its type, little-endian.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str) -> None:
        self._path = path
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self._rows = 0
        self._file = path.open("xb")
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Write the next rows."""
        if rows.shape[1:] != self._shape[1:]:
            raise ArgumentError(f"expected rows of shape {self._shape[1:]} in {self._path.name}, got {rows.shape[1:]}")
        self._rows += len(rows)
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)

    def close(self) -> None:
        """Finish the file; the rows must be complete."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._rows != self._shape[0]:
            raise DataError(f"expected {self._shape[0]} rows in {self._path.name}, got {self._rows}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._file.close()


@dataclass(frozen=True)
class StoredTensor:
    """A tensor whose bytes lie in a file of their own.

    Attributes:
        name: Its name.
        dtype: ``"U8"``, ``"I64"`` or ``"F64"``, as safetensors writes them.
        length: Number of elements; it has one dimension.
        file: The file, little-endian.
    """

    name: str
    dtype: str
    length: int
    file: Path


def write_safetensors(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Join tensors that lie in files into one safetensors file, without reading one whole.

    Source: the format's description, https://github.com/huggingface/safetensors#format.
    """
    header: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.file.stat().st_size
        header[tensor.name] = {"dtype": tensor.dtype, "shape": [tensor.length], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with new_file(path, mode=0o666) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            with tensor.file.open("rb") as part:
                shutil.copyfileobj(part, file, 1 << 20)


Recogniser = Callable[[Path], bool]


def check_target(
    target: Path, *, overwrite: bool, holds: str = "tables", recognised: Recogniser = is_table_folder
) -> None:
    """Check that a folder may be written there.

    Args:
        target: The folder.
        overwrite: Whether one that is there may be replaced.
        holds: What such a folder holds, in words.
        recognised: Whether a folder is one of these; others are never replaced.

    Raises:
        DataError: If something is there that may not be replaced, or there is no folder to write in.
    """
    if not target.parent.is_dir():
        raise DataError(f"cannot write {target}: there is no folder {target.parent}")
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink() or not recognised(target):
        raise DataError(f"{target} exists and holds no {holds}; it is left alone: choose another name")
    if not overwrite:
        raise DataError(f"{target} holds {holds} already; choose another name, or overwrite them")


def check_space(folder: Path, needed: int) -> None:
    """Check that a disk has room for this many bytes.

    Raises:
        DataError: If it has not.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"the tables need {needed / 2**30:.1f} GiB at {folder}, and {free / 2**30:.1f} GiB are free; "
            "nothing was written"
        )


@contextmanager
def draft(
    target: Path,
    *,
    overwrite: bool,
    holds: str = "tables",
    recognised: Recogniser = is_table_folder,
    private: bool = False,
) -> Iterator[Path]:
    """Give a new folder beside ``target``; when the body ends well it becomes ``target``, else it is removed.

    A request to terminate ends the body like an interrupt from the keyboard. What a killed process left behind is
    removed by the next draft of the same target.

    Args:
        target: The folder to be made.
        overwrite: Replace one that is there, if it is recognised.
        holds: What such a folder holds, for errors.
        recognised: Tells whether a folder is one of these.
        private: Whether nobody but its owner may enter it; else the umask decides, as for any folder.

    Raises:
        DataError: See :func:`check_target`.
    """
    check = partial(check_target, target, overwrite=overwrite, holds=holds, recognised=recognised)
    check()
    _remove_abandoned(target)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with stoppable():
            yield folder
            # Others may have written there in the meantime.
            check()
            (folder / _LOCK).unlink()
            if not private:  # else it is its owner's only, as it was made
                folder.chmod(0o777 & ~_umask())
            _replace(folder, target)
    finally:
        try:
            _remove(folder)
        finally:
            os.close(lock)


def _prefix(target: Path) -> str:
    return f".{target.name}.writing-"


def _remove_abandoned(target: Path) -> None:
    """Remove drafts whose processes are gone: the lock of such a one is free."""
    for lock in target.parent.glob(f"{glob.escape(_prefix(target))}*/{_LOCK}"):
        try:
            if not _is_our_folder(lock.parent):
                continue
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # it has just become complete, is a link, or another user's
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock.parent)
        except BlockingIOError:  # another process is at work there
            continue
        finally:
            os.close(descriptor)


def _is_our_folder(path: Path) -> bool:
    """Tell a draft of ours from what others have put under such a name: a link would lead to what is not to go."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _remove(folder: Path) -> None:
    """Remove a draft if it is there, its lock last: what remains when this is interrupted, the next draft removes."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _LOCK:
            path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _replace(folder: Path, target: Path) -> None:
    if not target.exists():
        folder.rename(target)
    else:
        # Two renames: between them the earlier folder is there under the name of a draft.
        old = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
        try:
            target.rename(old / "old")
            folder.rename(target)
        except BaseException:
            if not target.exists():
                (old / "old").rename(target)
            old.rmdir()
            raise
        shutil.rmtree(old, ignore_errors=True)
    flush_folder(target.parent)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
