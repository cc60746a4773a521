"""Small files: the one place that reads them, as files of somebody else, and writes them, whole or not at all.

A run, a model part, a table folder or an alignment is copied from machine to machine, and another user may have
prepared the folder that it lies in. So no file in such a folder is trusted:

- No link is followed. A link may lead to any file that its reader may read, or may overwrite.
- Pipes and devices are refused, without waiting for a writer.
- Sizes are limited before memory is taken: bytes, values and depth of JSON, tensors as their header announces them,
  and the directory of a checkpoint's archive.
- JSON is strict: UTF-8, no key twice, no NaN. A newer version of a format is refused by name.

A file that its user names is another matter: ``linked=True`` follows a link. So Kubernetes mounts a ConfigMap, and each
certificate and key of a Secret.

Whoever writes to the same file while it is read is not guarded against: such a folder belongs to its reader.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple, TypeVar

import msgspec

from splitvfl.errors import CheckpointError, SplitVFLError, all_printable, printable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

MOST_BYTES: Final = 1 << 28
"""Of a file that is read as a whole, unless its reader says otherwise."""

MOST_LARGE: Final = 1 << 38
"""Of a file that is read piece by piece."""

MOST_VALUES: Final = 1 << 22
"""Of a JSON document: an empty list takes 64 bytes of memory, and 3 bytes of a file."""

DEEPEST: Final = 64
"""Lists and objects within each other."""

_DAMAGED: Final = "is damaged"
_PIECE: Final = 1 << 20
_HEADER_LENGTH: Final = 8  # bytes of a safetensors file that say how long its header is
_MOST_HEADER: Final = 1 << 26
_MOST_DIMENSIONS: Final = 8  # more would be a number of bytes that takes hours to work out
_MOST_ELEMENTS: Final = 1 << 62
_SIZES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
_MOST_DIRECTORY: Final = 1 << 24  # bytes, for each of which an archive's directory may take sixteen of memory
_LONGEST_COMMENT: Final = 1 << 16
_ENDS: Final = struct.Struct("<4s4xHH2I2x")  # where a directory ends: entries on this disk and in all, length, offset
_ENDS_64: Final = struct.Struct("<4s20x4Q")  # the same of zip64, just before its locator
_LOCATOR: Final = struct.Struct("<4s16x")
# What torch would call with a number of its choice: a few bytes that fill the memory with zeros.
_FILLS_MEMORY: Final = re.compile(rb"(?:builtins|__builtin__)[\n.]bytearray")

_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# What file systems without hard links answer.
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)

T = TypeVar("T")


class ArrayHead(NamedTuple):
    """What the header of an ``.npy`` file announces.

    Attributes:
        shape: The array's shape.
        columns_first: Whether it is stored column by column.
        dtype: Its type.
        offset: Where its numbers begin, in bytes.
    """

    shape: tuple[int, ...]
    columns_first: bool
    dtype: np.dtype[Any]
    offset: int


class ArchiveDirectory(NamedTuple):
    """What the end of a zip archive announces of its directory.

    Attributes:
        entries: How many entries it has.
        size: How many bytes it has.
        is_64: Whether a zip64 record says so, which replaces the plain one.
    """

    entries: int
    size: int
    is_64: bool


class TensorHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the header of a safetensors file announces of a tensor.

    Attributes:
        dtype: Its type, as the format names it.
        shape: Its shape.
        data_offsets: Where its bytes begin and end, behind the header.
    """

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class UntrustedFile:
    """A file, and what is said where it is not what it should be.

    Attributes:
        path: The file. The folders above it are their owner's business: they may be links.
        remedy: What to do where its content is damaged, in words.
        says: What a message says of such a file, before the reason.
        error: Raised for everything that is wrong.
        most: How many bytes it may have.
        linked: Whether the user has named the file, so that a link is followed.
        piped: Whether it may be a pipe too, which the user has named.
    """

    path: Path
    remedy: str = "bring it back as it was, or delete it"
    says: str = _DAMAGED
    error: type[SplitVFLError] = CheckpointError
    most: int = MOST_BYTES
    linked: bool = False
    piped: bool = False

    def refused(self, why: object) -> SplitVFLError:
        """Return the error for a content that cannot be used."""
        return self.error(f"{self.path} {self.says}: {why}; {self.remedy}")

    # --- as bytes

    def open(self) -> BufferedReader | None:
        """Return the file, open for reading; ``None`` if there is none. Its size is its reader's to limit.

        Raises:
            SplitVFLError: :attr:`error`, if it is a link, or something else than a file, or may not be read.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | (0 if self.linked else os.O_NOFOLLOW)
        try:
            # Without waiting for a writer where the name is that of a pipe.
            descriptor = os.open(self.path, flags | (0 if self.piped else os.O_NONBLOCK))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if not self.linked and error.errno in (errno.ELOOP, errno.EMLINK):
                raise self.error(
                    f"{self.path} is a link, which may lead to any file of yours, and is not followed: put a file in "
                    "its place"
                ) from error
            raise self._unread(error) from error
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or (self.piped and stat.S_ISFIFO(mode))):
            os.close(descriptor)
            remedy = "name a file" if self.linked else "take it away"
            raise self.error(f"{self.path} is no file, but a folder, a pipe or a device: {remedy}")
        return os.fdopen(descriptor, "rb")

    @contextmanager
    def opened(self) -> Iterator[BufferedReader]:
        """Give the file, open for reading, for the length of a block; raises as :meth:`open`, and without a file."""
        file = self.open()
        if file is None:
            raise self._missing()
        with file:
            yield file

    def read(self) -> bytes | None:
        """Return what the file holds; ``None`` if there is none.

        Raises:
            SplitVFLError: As :meth:`open`, or if it is larger than :attr:`most`.
        """
        file = self.open()
        if file is None:
            return None
        with file:
            size = self._check_size(file)
            try:
                # As much as there is, for which memory is taken: the limit may be all that the machine has.
                content = file.read(size + 1)
                while len(content) > size and len(content) <= self.most and (piece := file.read(_PIECE)):
                    content += piece  # of a pipe, whose size is none
            except OSError as error:
                raise self._unread(error) from error
        if len(content) > self.most:
            raise self._too_large()
        return content

    def text(self) -> str | None:
        """Return a text in UTF-8; ``None`` if there is no file. Raises as :meth:`read`, and if it is no such text."""
        content = self.read()
        try:
            return None if content is None else content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.refused(error) from error

    # --- as JSON

    def json(
        self,
        kind: type[T],
        *,
        wanted: str = "",
        version: int = 0,
        sanitise: bool = False,
        nested: Callable[[Any], Any] = lambda found: found,
        wrong_in: Callable[[T], str] = lambda found: "",
    ) -> T | None:
        """Return what a JSON file holds; ``None`` if there is none.

        Args:
            kind: What it must hold.
            wanted: The format that it must begin with; empty: it names none.
            version: The version of that format; 0: it has none.
            sanitise: Whether every text is made printable, so that none steers a terminal.
            nested: Returns what was read as ``kind`` has it, where a file has it in another form; may raise ValueError.
            wrong_in: Returns what is wrong with it, in words; empty where all is well.

        Raises:
            SplitVFLError: As :meth:`read`; or if it is no strict JSON, of another format or version, or holds
                something else.
        """
        content = self.read()
        if content is None:
            return None
        try:
            found = decoded(content)
            if wanted:
                self.check_format(found, wanted, version)
            elif version:
                self.check_version(found, version)
            value = msgspec.convert(nested(all_printable(found) if sanitise else found), kind, str_keys=True)
        except _UNREADABLE as error:
            raise self.refused(error) from error
        if wrong := wrong_in(value):
            raise self.refused(wrong)
        return value

    def present_json(self, kind: type[T], *, wanted: str = "", version: int = 0) -> T:
        """Return what a JSON file holds; raises as :meth:`json`, and without a file."""
        found = self.json(kind, wanted=wanted, version=version)
        if found is None:
            raise self._missing()
        return found

    def has_format(self, wanted: str) -> bool:
        """Return whether it is a JSON file that says that it is of this format, in any version."""
        with suppress(self.error):
            found = self.json(dict[str, Any])
            return found is not None and found.get("format") == wanted
        return False

    def check_format(self, found: Any, wanted: str, version: int) -> None:
        """Refuse another format, and another version of it.

        Raises:
            SplitVFLError: If it is another.
        """
        if not isinstance(found, dict) or found.get("format") != wanted:
            raise self.error(f'{self.path} does not begin with "format": "{wanted}"; it belongs to something else')
        self.check_version(found, version)

    def check_version(self, found: Any, version: int) -> None:
        """Refuse another version of a format.

        Raises:
            SplitVFLError: If it is another; a newer one is called so.
        """
        given = found.get("version") if isinstance(found, dict) else None
        if given is None:
            raise self.error(f"{self.path} has no version, expected {version}; {self.remedy}")
        if type(given) is not int or given != version:
            newer = "" if type(given) is not int or given < version else ", or update splitvfl: a newer one made it"
            raise self.error(f"{self.path} has version {given!r:.40}, expected {version}; {self.remedy}{newer}")

    # --- as numbers

    def digest(self) -> str:
        """Return the file's SHA-256, in hexadecimal; raises as :meth:`open`, without a file, or if it is too large."""
        with self.opened() as file:
            self._check_size(file)
            return hashlib.file_digest(file, "sha256").hexdigest()

    def array_head(self) -> ArrayHead:
        """Return what an ``.npy`` file announces, after a check that it holds just that; no number is read.

        Raises:
            SplitVFLError: As :meth:`open`; without a file; or if it is no such file.
        """
        with self.opened() as file:
            return self._array_head(file)

    def array(self) -> npt.NDArray[Any]:
        """Return the array of an ``.npy`` file, after the checks of :meth:`array_head`, which it raises as."""
        import numpy as np

        with self.opened() as file:
            head = self._array_head(file)
            found = np.fromfile(file, head.dtype, math.prod(head.shape))
        return found.reshape(head.shape, order="F" if head.columns_first else "C")

    def _array_head(self, file: BinaryIO) -> ArrayHead:
        from numpy.lib import format as npy

        size = self._check_size(file)
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, columns_first, dtype = read(file)
        except Exception as error:  # numpy reads the header as Python's own code is read: they have no common type
            raise self.refused(error) from error
        head = ArrayHead(shape, columns_first and len(shape) > 1, dtype, file.tell())
        if dtype.hasobject or any(length < 0 for length in shape) or len(shape) > _MOST_DIMENSIONS:
            raise self.refused("it holds something else than numbers")
        needed = head.offset + math.prod(shape) * dtype.itemsize
        if size != needed:
            raise self.refused(f"expected {needed} bytes, got {size}")
        return head

    # --- as tensors

    def tensor_heads(self) -> tuple[dict[str, TensorHead], dict[str, str]]:
        """Return what a safetensors file announces, tensors and metadata, after a check that it holds just that.

        No tensor is read.

        Raises:
            SplitVFLError: As :meth:`open`; without a file; or if it is no such file.
        """
        with self.opened() as file:
            size = self._check_size(file)
            start = file.read(_HEADER_LENGTH)
            length = int.from_bytes(start, "little")
            if len(start) < _HEADER_LENGTH or not 0 < length <= min(_MOST_HEADER, size - _HEADER_LENGTH):
                raise self.refused(f"it is no safetensors file with a header of at most {_MOST_HEADER >> 20} MiB")
            try:
                found = decoded(file.read(length))
                if not isinstance(found, dict):
                    raise ValueError("its header is no description of tensors")
                metadata = msgspec.convert(found.pop("__metadata__", {}), dict[str, str])
                heads = msgspec.convert(found, dict[str, TensorHead])
                announced = sum(map(_bytes_of, heads.values()))
            except _UNREADABLE as error:
                raise self.refused(f"it is no safetensors file: {error}") from error
        if announced != size - _HEADER_LENGTH - length:
            held = size - _HEADER_LENGTH - length
            raise self.refused(f"it announces {announced:,} bytes of tensors, and holds {held:,}")
        return heads, metadata

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a safetensors file, after the checks of :meth:`tensor_heads`, which it raises as."""
        import safetensors.torch

        self.tensor_heads()
        try:
            return safetensors.torch.load_file(self.path)
        except (OSError, safetensors.SafetensorError, ValueError) as error:
            raise self.refused(error) from error

    def checkpoint(self) -> dict[str, Any]:
        """Return what ``torch.save`` wrote: tensors and plain values, never code.

        The archive may hold nothing that is compressed or stored twice: a small file would fill the memory.

        Raises:
            SplitVFLError: As :meth:`open`; without a file; or if it holds anything else.
        """
        import torch

        with self.opened() as file:
            self._check_size(file)
            self._check_archive(file)
            file.seek(0)
            try:
                # Before PyTorch 2.14 indices of sparse tensors are compared with their shape only if that is asked for.
                with torch.sparse.check_sparse_tensor_invariants():
                    found = torch.load(file, weights_only=True, map_location="cpu")
            except Exception as error:  # they have no common type, and torch's advice is not to be followed
                raise self._no_checkpoint() from error
        if not isinstance(found, dict):
            raise self._no_checkpoint()
        return found

    def _check_archive(self, file: BinaryIO) -> None:
        directory = archive_directory(file)
        if directory is None:
            raise self._no_checkpoint()
        # Before it is opened: each entry takes memory then, however few are announced.
        if directory.size > _MOST_DIRECTORY:
            raise self.refused(f"its archive has a directory of {directory.size:,} bytes, as no checkpoint has")
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                packed = any(one.compress_type != zipfile.ZIP_STORED for one in entries)
                unfit = packed or sum(one.file_size for one in entries) > os.fstat(file.fileno()).st_size
                pickled = b"" if unfit else b"".join(
                    archive.read(one) for one in entries if one.filename.endswith(".pkl")
                )  # fmt: skip
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError) as error:
            raise self._no_checkpoint() from error
        if unfit:
            raise self.refused("its archive announces more than the file holds, as no checkpoint does")
        if _FILLS_MEMORY.search(pickled):
            raise self.refused("it would fill the memory, as no checkpoint does")

    def _no_checkpoint(self) -> SplitVFLError:
        return self.error(f"{self.path} is damaged, or holds more than tensors and plain values")

    # --- what is wrong

    def _check_size(self, file: BinaryIO) -> int:
        size = os.fstat(file.fileno()).st_size
        if size > self.most:
            raise self._too_large()
        return size

    def _missing(self) -> SplitVFLError:
        says = "cannot be read" if self.says == _DAMAGED else self.says
        return self.error(f"{self.path} {says}: there is no such file; {self.remedy}")

    def _unread(self, error: OSError) -> SplitVFLError:
        return self.error(f"{self.path} cannot be read: {error.strerror}")

    def _too_large(self) -> SplitVFLError:
        size = next((f"{self.most >> bits} {unit}" for bits, unit in _UNITS if self.most >> bits), "0 bytes")
        return self.error(f"{self.path} is larger than {size}, and no such file is: take it away")


def archive_directory(file: BinaryIO) -> ArchiveDirectory | None:
    """Return what the end of a zip archive announces of its directory; ``None`` if it is no archive.

    It is read before the archive is opened, which takes memory for every entry. Where it stands is where
    :mod:`zipfile` looks for it; a zip64 locator whose record is not just before it is of no archive.

    Args:
        file: The archive, which is then at its beginning.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _LONGEST_COMMENT - _ENDS.size - _LOCATOR.size - _ENDS_64.size))
    tail = file.read()
    file.seek(0)
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < _ENDS.size:
        return None
    _, _, entries, length, _ = _ENDS.unpack_from(tail, place)
    if not tail[max(0, place - _LOCATOR.size) : place].startswith(b"PK\x06\x07"):
        return ArchiveDirectory(entries, length, is_64=False)
    record = place - _LOCATOR.size - _ENDS_64.size
    if record < 0 or not tail[record:].startswith(b"PK\x06\x06"):
        return None
    _, _, entries, length, _ = _ENDS_64.unpack_from(tail, record)
    return ArchiveDirectory(entries, length, is_64=True)


def refuse_links(folder: Path, error: type[SplitVFLError] = CheckpointError) -> None:
    """Refuse a folder in which something, at any depth, is a link: what is written or deleted there could be elsewhere.

    The folder itself may be one, and lie behind others.

    Raises:
        SplitVFLError: ``error``, if there is a link.
    """
    folders = [folder]
    while folders:
        try:
            entries = [*os.scandir(folders.pop())]
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # who needs it says so
            continue
        for entry in entries:
            if entry.is_symlink():
                raise error(
                    f"{printable(entry.path)} is a link, which may lead to any place of yours, and is not followed: "
                    "put what it stands for in its place, or delete it"
                )
        folders += [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]


_UNITS: Final = ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes"))


def memory_of_machine() -> int:
    """Return the bytes of memory that this machine has: no weights that are larger can be used here."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def decoded(
    content: bytes | bytearray | memoryview, *, most: int = MOST_VALUES, infinite: bool = False, nan: bool = False
) -> Any:
    """Return the value of a JSON text that anybody may have written.

    Args:
        content: The text, UTF-8.
        most: How many values it may hold.
        infinite: Whether numbers may be infinite, as Python writes them: ``Infinity``.
        nan: Whether all that Python writes may be there, NaN and whole numbers of any size too.

    Raises:
        ValueError: If it is no strict JSON, has a key twice, more values, or is nested more than 64 deep.
        RecursionError: If it is nested far deeper.

    >>> decoded(b'{"step": 1}')
    {'step': 1}
    """
    text = bytes(content)
    # Each value but the first has a comma, a bracket or a brace of its own before it, counted in no time.
    if (count := text.count(b",") + text.count(b"[") + text.count(b"{")) > most:
        raise ValueError(f"expected at most {most:,} values, got up to {count:,}")
    if nan or (infinite and b"Infinity" in text):
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=float if nan else _infinity)
    else:
        value = msgspec.json.decode(text)
    keys = checked_depth(value)
    if text.count(b":") != keys and _STRINGS.sub(b"", text).count(b":") != keys:
        json.loads(text, object_pairs_hook=_unique)  # names it
        raise ValueError("a key comes twice")
    return value


def checked_depth(value: Any) -> int:
    """Return how many keys a value as JSON has it holds, at every depth.

    Raises:
        ValueError: If it is nested more than 64 deep.
    """
    keys, depth = 0, 0
    level = [value] if isinstance(value, (dict, list)) else []
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        keys += sum(len(one) for one in level if type(one) is dict)
        level = [
            inner
            for one in level
            for inner in (one.values() if type(one) is dict else one)
            if type(inner) is dict or type(inner) is list
        ]
    return keys


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.100} comes twice")
        found[key] = value
    return found


def _infinity(text: str) -> float:
    if text == "NaN":
        raise ValueError("NaN is no number")
    return float(text)


def _bytes_of(one: TensorHead) -> int:
    if one.dtype not in _SIZES or any(length < 0 for length in one.shape):
        raise ValueError(f"expected tensors of a known type, got {one.dtype!r:.40} {one.shape!r:.100}")
    if len(one.shape) > _MOST_DIMENSIONS or math.prod(one.shape) > _MOST_ELEMENTS:
        raise ValueError(f"expected tensors of at most {_MOST_DIMENSIONS} dimensions, got {one.shape!r:.100}")
    return _SIZES[one.dtype] * math.prod(one.shape)


# --- writing


@contextmanager
def new_file(path: Path, *, mode: int = 0o600, flush: bool = True) -> Iterator[BinaryIO]:
    """Give a new file, to be written in a block; nothing stays of it if the block fails.

    Args:
        path: The file.
        mode: At most these bits, less the umask; 0o666 leaves it to the umask.
        flush: Whether it is on the disk at the end of the block, so that it outlives a loss of power.

    Raises:
        OSError: If something is there already, a link included, or it cannot be written.
    """
    file = open_own(path, "xb", mode=mode)
    try:
        with file:
            yield file
            if flush:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path, *, mode: int = 0o600, flush: bool = True, alone: bool = True) -> Iterator[BinaryIO]:
    """Give a file, to be written in a block: it is as it was until the new one is complete. No link is followed.

    Args:
        path: The file.
        mode: As :func:`new_file`.
        flush: As :func:`new_file`.
        alone: Whether nobody else writes this file meanwhile, as where its folder is locked. A draft that a killed
            process leaves is then replaced by the next.

    Raises:
        OSError: If it cannot be written; the earlier file stays.
    """
    draft = path.with_name(f".{path.name}" if alone else f".{path.name}.{secrets.token_hex(8)}")
    if alone:
        draft.unlink(missing_ok=True)
    try:
        with new_file(draft, mode=mode, flush=flush) as file:
            yield file
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_whole(
    path: Path, content: bytes | memoryview, *, mode: int = 0o600, flush: bool = True, alone: bool = True
) -> None:
    """Write a file all at once; see :func:`replacing`, which it raises as."""
    with replacing(path, mode=mode, flush=flush, alone=alone) as file:
        file.write(content)


def write_json(
    path: Path, value: Any, *, indent: int = 2, end: bytes = b"\n", mode: int = 0o600, flush: bool = True
) -> None:
    """Write a value as JSON, all at once, where nobody else does; see :func:`indented` and :func:`replacing`.

    Args:
        path: The file.
        value: The value.
        indent: As :func:`indented`.
        end: What comes last.
        mode: As :func:`new_file`.
        flush: As :func:`new_file`.

    Raises:
        OSError: If it cannot be written; the earlier file stays.
    """
    write_whole(path, indented(value, indent=indent) + end, mode=mode, flush=flush)


def indented(value: Any, *, indent: int = 2) -> bytes:
    """Return a value as JSON with a line for each of its own; with an indent of 0 in one line, of -1 without spaces."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent)


def write_new(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Make a file, with at most this mode, and have it on the disk: whole, or not at all where there are hard links.

    Raises:
        OSError: If something is there already, a link included, or it cannot be written.
    """
    # Under another name first: a process that is killed leaves no file with half of its content.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with new_file(draft, mode=mode) as file:
            file.write(content)
        try:
            os.link(draft, path, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with new_file(path, mode=mode) as file:
                file.write(content)
    finally:
        draft.unlink(missing_ok=True)


def write_named(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file that the user has named: a link is followed, it may be a pipe, and one that is there is overwritten.

    Args:
        path: The file.
        content: What it holds from then on.
        mode: Bits of a file that is made, less the umask.

    Raises:
        OSError: If it cannot be written.
    """
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)


def append_bytes(path: Path, content: bytes) -> None:
    """Write at the end of a file, which is made if need be, and have it on the disk. No link is followed.

    Raises:
        OSError: If it cannot be written.
    """
    new = not path.exists()
    with open_own(path, "ab", buffered=False) as file:
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    if new:
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Have it on the disk which files are in a folder.

    Raises:
        OSError: If it cannot be done.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_own(
    path: Path, how: Literal["xb", "wb", "ab", "r+b"], *, mode: int = 0o600, buffered: bool = True
) -> BinaryIO:
    """Return a file of this process, open to be written; no link is followed, and no pipe waited at.

    Args:
        path: The file.
        how: As Python's ``open`` takes it.
        mode: Bits of a file that is made, less the umask.
        buffered: Whether writes may wait in memory.

    Raises:
        OSError: If it cannot be opened, or is a link.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)

    return open(path, how, buffering=-1 if buffered else 0, opener=opener)
