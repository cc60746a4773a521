"""Images of handwritten digits as MNIST's makers publish them, from a file that the user holds: one row per image.

Two forms are read: the four ``idx`` files, compressed by gzip or not, in one folder; and an ``npz`` archive of
``x_train``, ``y_train``, ``x_test`` and ``y_test``. Nothing is unpickled. What a file announces is compared with what
may be before memory is taken for it: a file of a few bytes can announce, or unpack to, any size.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.errors import DataError
from splitvfl.system.untrusted_files import UntrustedFile, archive_directory

Bytes = npt.NDArray[np.uint8]

SIDE: Final = 28
"""Rows, and columns, of an image."""
LABEL: Final = "digit"
SPLIT: Final = "split"

_PARTS: Final = ("train", "test")
_MOST_IMAGES: Final = 70_000  # of a part; all of MNIST are so many
_MOST_BYTES: Final = 1 << 26  # of a file as it lies on the disk
# By part: names of the files of images and of labels, with either dot, as copies have them.
_IDX: Final = {"train": "train", "test": "t10k"}
_IDX_IMAGES, _IDX_LABELS = 0x803, 0x801
_REMEDY: Final = "download the files of MNIST anew"
_MOST_ENTRIES, _MOST_DIRECTORY = 16, 1 << 16  # the directory in bytes


def read_images(path: Path) -> pa.Table:
    """Return all images as a table: pixels ``r00c00`` to ``r27c27`` from 0 to 255, the digit, and the published split.

    Args:
        path: The ``npz`` file; or the folder of the ``idx`` files, or one of them.

    Raises:
        DataError: If a file is missing, is no such file, or holds other sizes than it announces.
    """
    _check_there(path)
    parts = _of_archive(path) if path.suffix == ".npz" else _of_folder(path if path.is_dir() else path.parent)
    for part, (images, digits) in zip(_PARTS, parts, strict=True):
        if len(images) != len(digits):
            raise DataError(f"{path}: expected a digit for each {part} image, got {len(images)} and {len(digits)}")
        if digits.max(initial=0) > 9:
            raise DataError(f"{path}: expected digits from 0 to 9, got {digits.max()}")
    pixels = np.concatenate([images.reshape(len(images), SIDE * SIDE) for images, _ in parts])
    digits = np.concatenate([found for _, found in parts])
    split = np.repeat(_PARTS, [len(images) for images, _ in parts])
    # Column by column: each is in one piece then.
    columns = np.ascontiguousarray(pixels.T)
    named = {f"r{row:02}c{column:02}": columns[row * SIDE + column] for row in range(SIDE) for column in range(SIDE)}
    return pa.table({**named, LABEL: digits.astype(np.int64), SPLIT: split.tolist()})


def _check_there(path: Path) -> None:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # no name holds a zero byte
        raise DataError(f"{path}: no such file or folder; expected an npz file, or idx files, of MNIST") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _file(path: Path) -> UntrustedFile:
    says = "is no file of MNIST"
    return UntrustedFile(path=path, remedy=_REMEDY, says=says, error=DataError, most=_MOST_BYTES, linked=True)


# --- idx


def _of_folder(folder: Path) -> list[tuple[Bytes, Bytes]]:
    return [
        (
            _idx(_found(folder, _IDX[part], "images", 3), _IDX_IMAGES, (SIDE, SIDE)),
            _idx(_found(folder, _IDX[part], "labels", 1), _IDX_LABELS, ()),
        )
        for part in _PARTS
    ]


def _found(folder: Path, part: str, what: str, dimensions: int) -> Path:
    names = [f"{part}-{what}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder}: expected an npz file, or a folder with {' or '.join(names)}, and there is none")


def _idx(path: Path, magic: int, shape: tuple[int, ...]) -> Bytes:
    """Return the numbers of an ``idx`` file, ``(n, *shape)``."""
    one = _file(path)
    head = struct.Struct(f">{2 + len(shape)}I")
    with one.opened() as file:
        size = _checked_size(one, file)
        unpacked: BinaryIO = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file  # type: ignore[assignment]
        start = _read(one, unpacked.read, head.size)
        if len(start) < head.size:
            raise one.refused(f"it has {len(start)} bytes, and its header {head.size}")
        found, count, *sides = head.unpack(start)
        if found != magic or tuple(sides) != shape:
            raise one.refused(f"expected magic number {magic} and sides {list(shape)}, got {found} and {sides}")
        if not 0 < count <= _MOST_IMAGES:
            raise one.refused(f"it announces {count:,} images; expected 1 to {_MOST_IMAGES:,}")
        needed = count * int(np.prod(shape, dtype=np.int64))
        if path.suffix != ".gz" and size != head.size + needed:
            raise one.refused(f"expected {head.size + needed:,} bytes, got {size:,}")
        content = _read(one, unpacked.read, needed + 1)
    return _as_bytes(one, content, (count, *shape))


# --- npz


def _of_archive(path: Path) -> list[tuple[Bytes, Bytes]]:
    one = _file(path)
    with one.opened() as file:
        _checked_size(one, file)
        _check_directory(one, file)
        try:
            with zipfile.ZipFile(file) as archive:
                return [
                    (
                        _array(one, archive, f"x_{part}.npy", (SIDE, SIDE)),
                        _array(one, archive, f"y_{part}.npy", ()),
                    )
                    for part in _PARTS
                ]
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error) as error:
            raise one.refused(error) from error


def _check_directory(one: UntrustedFile, file: BinaryIO) -> None:
    """Refuse an archive of many entries: each takes memory before anything is known of it."""
    directory = archive_directory(file)
    if directory is None:
        raise one.refused("it is no archive")
    if directory.is_64:
        raise one.refused("it has a zip64 directory, as archives of 4 GiB or 65,535 entries do; expected a plain one")
    if directory.entries > _MOST_ENTRIES or directory.size > _MOST_DIRECTORY:
        raise one.refused(f"it has {directory.entries:,} entries; expected x_train, y_train, x_test and y_test")


def _array(one: UntrustedFile, archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> Bytes:
    """Return an array of an archive, ``(n, *shape)``."""
    from numpy.lib import format as npy

    try:
        entry = archive.getinfo(name)
    except KeyError:
        raise one.refused(f"it holds no {name}; expected x_train, y_train, x_test and y_test") from None
    width = int(np.prod(shape, dtype=np.int64))
    if entry.file_size > _MOST_IMAGES * width + (1 << 12):
        raise one.refused(f"{name} announces {entry.file_size:,} bytes; expected up to {_MOST_IMAGES:,} images")
    with archive.open(entry) as packed:
        content = io.BytesIO(_read(one, packed.read, entry.file_size + 1))
    try:
        version = npy.read_magic(content)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        found, columns_first, dtype = read(content)
    except Exception as error:  # numpy reads the header as Python's own code is read: they have no common type
        raise one.refused(f"{name}: {error}") from error
    if dtype != np.uint8 and dtype.kind in "iu":
        one = replace(one, remedy=f"save it as uint8: {Path(name).stem}.astype('uint8')")
    if dtype != np.uint8 or (columns_first and len(found) > 1) or found[1:] != shape or not found:
        raise one.refused(f"{name}: expected uint8 (n, {', '.join(map(str, shape))}), got {dtype} {found}")
    if not 0 < found[0] <= _MOST_IMAGES:
        raise one.refused(f"{name} announces {found[0]:,} images; expected 1 to {_MOST_IMAGES:,}")
    return _as_bytes(one, content.read(), found)


# --- both


def _checked_size(one: UntrustedFile, file: BinaryIO) -> int:
    size = os.fstat(file.fileno()).st_size
    if size > one.most:
        raise one.refused(f"it has {size:,} bytes; expected up to {one.most:,}")
    return size


def _read(one: UntrustedFile, read: Callable[[int], bytes], size: int) -> bytes:
    """Return so many bytes, or as many as there are."""
    try:
        return read(size)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise one.refused(error) from error


def _as_bytes(one: UntrustedFile, content: bytes, shape: tuple[int, ...]) -> Bytes:
    needed = int(np.prod(shape, dtype=np.int64))
    if len(content) != needed:
        raise one.refused(f"expected {needed:,} bytes behind its header, got {len(content):,}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
