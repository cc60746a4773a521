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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import safetensors.torch
import torch
from torch import Tensor

from splitvfl.errors import DataError, shown
from splitvfl.system.untrusted_files import UntrustedFile, decoded, new_file

FORMAT: Final = "splitvfl revealed weights"
VERSION: Final = 1
MEANING: Final = (
    "Whoever has this file and sees scores, or a part of the logits, of this model knows linear equations in this "
    "party's columns of every record that was or will be scored: a white box."
)

RevealedWeights = Literal["true", "rotated", "shifted"]
"""The model's own, or those of remark 6: ``W Hᵀ`` and ``W + Δ``, of which the file holds neither H nor Δ."""

_MOST_BYTES = (1 << 28) + (1 << 24)
_TYPES = ("F32", "F64")
_SAYS = "holds no revealed weights of a linear model, as `splitvfl reveal` writes them"
_REMEDY = "get it anew from whoever gave it to you"


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
        with new_file(path) as file:
            file.write(content)
    except FileExistsError as error:
        raise DataError(f"{path} is there already, and is left alone: choose another name, or delete it") from error


def _digest(schema: RevealedSchema, weights: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(schema, digest="")))
    for name in sorted(weights):
        one = weights[name].contiguous()
        found.update(msgspec.json.encode([name, str(one.dtype), list(one.shape)]))
        found.update(one.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# --- reading


def read_revealed(path: Path) -> Revealed:
    """Return the revealed weights of a linear model, from a file that anybody may have written.

    Raises:
        DataError: If it is no such file, too large, damaged, of a model that is not linear, or holds NaN or infinite
            values.
        OSError: If it cannot be read.
    """
    file = UntrustedFile(path=path, most=_MOST_BYTES, says=_SAYS, remedy=_REMEDY, error=DataError, linked=True)
    heads, metadata = file.tensor_heads()
    if odd := [one for one in heads.values() if one.dtype not in _TYPES]:
        raise file.refused(f"expected weights in {' or '.join(_TYPES)}, got {odd[0].dtype} {shown(odd[0].shape)}")
    weights = file.tensors()
    schema = _schema(metadata, file)
    if schema.digest != _digest(schema, weights):
        raise file.refused("it is damaged: it holds something else than when it was written")
    parts = linear_parts(weights, schema.outputs, len(schema.columns))
    if parts is None:
        shapes = ", ".join(str(tuple(one.shape)) for one in list(weights.values())[:3])
        raise file.refused(
            f"expected one matrix ({schema.outputs}, {len(schema.columns)}) of a linear model, and at most one vector "
            f"({schema.outputs},), got {len(weights)} tensors: {shapes or 'none'}",
        )
    weight, bias = (one.double() for one in parts)
    if not bool(torch.isfinite(weight).all()) or not bool(torch.isfinite(bias).all()):
        raise file.refused("it holds NaN or infinite values")
    return Revealed(path, schema, weight, bias)


def _schema(metadata: Mapping[str, str], file: UntrustedFile) -> RevealedSchema:
    if set(metadata) != {FORMAT}:
        raise file.refused(f"its metadata do not say {FORMAT!r}")
    try:
        found = decoded(metadata[FORMAT].encode())
        if not isinstance(found, dict):
            raise ValueError("expected an object")
        file.check_version(found, VERSION)
        return msgspec.convert(found, RevealedSchema)
    except (ValueError, RecursionError) as error:
        raise file.refused("its metadata are damaged") from error
