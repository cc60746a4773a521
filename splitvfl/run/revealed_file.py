"""Weights that a passive party hands to a partner on purpose, as a file: ``splitvfl reveal``.

A safetensors file. Of a linear model its tensors are the matrix ``(k, d)`` of the party's columns and, if there is
one, the vector ``(k,)`` that is added; of any other model they are all weights by name. Its metadata has one entry,
which says whose weights they are and of which model (:class:`RevealedSchema`). Neither holds a value or a range of any
column: only names of columns, and of a category's column its value.

Whoever reads such a file has it from somebody else: sizes are checked before memory is taken, and what it says before
it is used. Its digest finds damage. It does not say who wrote the file, nor that what it says is true.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from splitvfl.errors import DataError
from splitvfl.wording import shown

FORMAT: Final = "splitvfl revealed weights"
VERSION: Final = 1
MEANING: Final = (
    "Whoever has this file and sees scores, or a part of the logits, of this model knows linear equations in this "
    "party's columns of every record that was or will be scored: a white box."
)

RevealedWeights = Literal["true", "rotated", "shifted"]
"""The model's own, or those of remark 6: ``W Hᵀ`` and ``W + Δ``, of which the file holds neither H nor Δ."""

_LENGTH = 8  # bytes of a safetensors file that say how long its header is
_MOST_HEADER = 1 << 24
_MOST_TENSORS = 1 << 28
_MOST_DIMENSIONS = 8  # more would be a number of bytes that takes hours to work out
_SIZES: Mapping[str, int] = {"F32": 4, "F64": 8}


class RevealedSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file of revealed weights says of itself.

    Attributes:
        version: Version of the format.
        party: Whose weights they are.
        run: Number of the run, the same at all its parties.
        step: Training steps that the parties took together.
        epoch: Epoch whose weights they are.
        outputs: Outputs of the model for a record, k.
        columns: Names of the columns that the weights are of, in their order, after encoding.
        weights: Whether they are the model's own, or were changed, and how.
        meaning: What the file is to whoever has it, in words.
        digest: SHA-256 of all of this, with an empty text in this place, and of the weights.
    """

    version: int
    party: str
    run: str
    step: int
    epoch: int
    outputs: int
    columns: tuple[str, ...]
    weights: RevealedWeights
    meaning: str = MEANING
    digest: str = ""


@dataclass(frozen=True, eq=False)
class Revealed:
    """Revealed weights of a linear model, read and checked.

    Attributes:
        path: The file.
        schema: What it says.
        weight: ``(k, d)``, float64.
        bias: ``(k,)``, float64; zeros if there is none.
    """

    path: Path
    schema: RevealedSchema
    weight: Tensor
    bias: Tensor


def linear_parts(weights: Mapping[str, Tensor], outputs: int, columns: int) -> tuple[Tensor, Tensor] | None:
    """Return the matrix ``(k, d)`` and the vector ``(k,)`` of a linear model; ``None`` if weights have other shapes."""
    matrices = [one for one in weights.values() if tuple(one.shape) == (outputs, columns)]
    vectors = [one for one in weights.values() if tuple(one.shape) == (outputs,)]
    if len(matrices) != 1 or len(vectors) > 1 or len(matrices) + len(vectors) != len(weights):
        return None
    return matrices[0], vectors[0] if vectors else matrices[0].new_zeros(outputs)


# --- writing


def write_revealed(path: Path, schema: RevealedSchema, weights: Mapping[str, Tensor]) -> None:
    """Write weights into a new file, readable by its owner alone until that one hands it on.

    Args:
        path: The file, which must not be there yet.
        schema: What is said of them; its digest is filled in.
        weights: By name, on the CPU.

    Raises:
        DataError: If the file is there already, or there is no folder for it.
        OSError: If it cannot be written; nothing of it is left then.
    """
    if not path.parent.is_dir():
        raise DataError(f"cannot write {path}: there is no folder {path.parent}")
    signed = msgspec.structs.replace(schema, digest=_digest(schema, weights))
    content = safetensors.torch.save(
        {name: one.contiguous() for name, one in weights.items()},
        metadata={FORMAT: msgspec.json.encode(signed).decode()},
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise DataError(f"{path} is there already, and is left alone: choose another name, or delete it") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _digest(schema: RevealedSchema, weights: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(schema, digest="")))
    for name in sorted(weights):
        one = weights[name].contiguous()
        found.update(msgspec.json.encode([name, str(one.dtype), list(one.shape)]))
        found.update(one.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# --- reading


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_revealed(path: Path) -> Revealed:
    """Return the revealed weights of a linear model, from a file that anybody may have written.

    Raises:
        DataError: If it is no such file, too large, damaged, of a model that is not linear, or holds NaN or infinite
            values.
        OSError: If it cannot be read.
    """
    # Not to wait for a writer where the name is that of a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise _refused(path, "it is no file")
    with os.fdopen(descriptor, "rb") as file:
        content = _content(file, found.st_size, path)
    try:
        weights = safetensors.torch.load(content)
    except (SafetensorError, ValueError) as error:
        raise _refused(path, "it is no safetensors file") from error
    header = _header(content, path)
    schema = _schema(header, path)
    if schema.digest != _digest(schema, weights):
        raise _refused(path, "it is damaged: it holds something else than when it was written")
    parts = linear_parts(weights, schema.outputs, len(schema.columns))
    if parts is None:
        shapes = ", ".join(str(tuple(one.shape)) for one in list(weights.values())[:3])
        raise _refused(
            path,
            f"expected one matrix ({schema.outputs}, {len(schema.columns)}) of a linear model, and at most one vector "
            f"({schema.outputs},), got {len(weights)} tensors: {shapes or 'none'}",
        )
    weight, bias = (one.double() for one in parts)
    if not bool(torch.isfinite(weight).all()) or not bool(torch.isfinite(bias).all()):
        raise _refused(path, "it holds NaN or infinite values")
    return Revealed(path, schema, weight, bias)


def _content(file: BinaryIO, size: int, path: Path) -> bytes:
    """Return a whole file, if its size and what it announces are those of weights."""
    start = file.read(_LENGTH)
    length = int.from_bytes(start, "little")
    if len(start) < _LENGTH or not 0 < length <= min(_MOST_HEADER, size - _LENGTH):
        raise _refused(path, f"it is no safetensors file with a header of at most {_MOST_HEADER >> 20} MiB")
    header = file.read(length)
    if size > _LENGTH + length + _MOST_TENSORS:
        raise _refused(path, f"expected at most {_MOST_TENSORS >> 20} MiB of weights, got {size:,} bytes")
    announced = sum(_bytes_of(one, path) for one in _tensors(header, path).values())
    if announced != size - _LENGTH - length:
        raise _refused(path, f"it announces {announced:,} bytes of weights, and holds {size - _LENGTH - length:,}")
    content = start + header + file.read(announced)
    if len(content) != size:
        raise _refused(path, "it changes while it is read")
    return content


def _tensors(header: bytes, path: Path) -> dict[str, _Tensor]:
    try:
        fields = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        return {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in fields.items() if name != "__metadata__"}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(path, "it is no safetensors file: its header is no description of tensors") from error


def _bytes_of(one: _Tensor, path: Path) -> int:
    if one.dtype not in _SIZES or any(length < 0 for length in one.shape):
        raise _refused(path, f"expected weights in {' or '.join(_SIZES)}, got {shown(one.dtype)} {shown(one.shape)}")
    if len(one.shape) > _MOST_DIMENSIONS or max(one.shape, default=0) > _MOST_TENSORS:
        raise _refused(path, f"expected weights of at most {_MOST_DIMENSIONS} dimensions, got {shown(one.shape)}")
    return _SIZES[one.dtype] * math.prod(one.shape)


def _header(content: bytes, path: Path) -> dict[str, str]:
    length = int.from_bytes(content[:_LENGTH], "little")
    try:
        fields = msgspec.json.decode(content[_LENGTH : _LENGTH + length], type=dict[str, msgspec.Raw])
        return msgspec.json.decode(fields.get("__metadata__", b"{}"), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(path, "its metadata are damaged") from error


def _schema(metadata: Mapping[str, str], path: Path) -> RevealedSchema:
    if set(metadata) != {FORMAT}:
        raise _refused(path, f"its metadata do not say {FORMAT!r}")
    try:
        version = msgspec.json.decode(metadata[FORMAT], type=dict[str, msgspec.Raw]).get("version")
        if version is None or msgspec.json.decode(version) != VERSION:
            raise _refused(path, f"it has another version than {VERSION}")
        return msgspec.json.decode(metadata[FORMAT], type=RevealedSchema)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(path, "its metadata are damaged") from error


def _refused(path: Path, why: str) -> DataError:
    return DataError(f"{path} holds no revealed weights of a linear model, as `splitvfl reveal` writes them: {why}")
