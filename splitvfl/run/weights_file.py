"""Weights of a half of which some are divided among workers, as one file of safetensors.

Worker 0 writes it, and never holds a whole table: it takes memory for one block of rows of all workers at a time, or
for one divided weight, and for the other weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import safetensors.torch
import torch
from torch import Tensor, nn

from splitvfl.system.gpu_copies import bytes_of, to_memory
from splitvfl.system.untrusted_files import decoded
from splitvfl.team.divided import divided_weights, replicated_state, sharded_tables
from splitvfl.team.team import Team

_DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class _Divided:
    """A weight that is divided.

    Attributes:
        dtype: Its dtype.
        shape: Its shape as a whole.
        whole: Yields it, block by block of its first dimension, at worker 0, and as many times ``None`` at the others.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    whole: Callable[[], Iterator[Tensor | None]]


def pieces_of_weights(module: nn.Module, team: Team) -> Iterator[bytes]:
    """Yield a model's weights, piece by piece, as one file that :func:`safetensors.torch.load` reads.

    What is divided stands in it as a whole, under the name that it has in one process. The other workers call
    :func:`give_parts` meanwhile.

    Args:
        module: The model, at worker 0.
        team: The workers.

    Raises:
        TeamError: If a worker could not go on, or is gone.
    """
    plain = {name: value.detach().cpu().contiguous() for name, value in replicated_state(module).items()}
    file, divided = safetensors.torch.save(plain), _divided(module, team)
    if not divided:
        yield file
        return
    # The length of the header in 8 bytes, the header, and then the numbers, in the order of the header's offsets.
    start = 8 + int.from_bytes(file[:8], "little")
    header = json.dumps(_with_divided(decoded(file[8:start]), divided, len(file) - start)).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    yield file[start:]
    for one in divided.values():
        for block in one.whole():
            assert block is not None, "worker 0 has every block"
            yield bytes(bytes_of(to_memory(block)))


def give_parts(module: nn.Module, team: Team) -> None:
    """Give worker 0 this worker's part of what is divided, while that one calls :func:`pieces_of_weights`.

    Raises:
        TeamError: If a worker could not go on, or is gone.
    """
    for one in _divided(module, team).values():
        for _ in one.whole():
            pass


def _divided(module: nn.Module, team: Team) -> dict[str, _Divided]:
    found = {
        name: _Divided(table.rows.dtype, (table.count, table.rows.shape[1]), table.whole)
        for name, table in sharded_tables(module).items()
    }

    def whole(part: Tensor) -> Iterator[Tensor | None]:
        yield team.whole(part)

    for name, weight in divided_weights(module).items():
        part = weight.detach().to_local()
        found[name] = _Divided(weight.dtype, tuple(weight.shape), partial(whole, part))
    return found


def _with_divided(header: dict[str, object], divided: Mapping[str, _Divided], end: int) -> dict[str, object]:
    for name, one in divided.items():
        size = torch.Size(one.shape).numel() * one.dtype.itemsize
        header[name] = {"dtype": _DTYPES[one.dtype], "shape": one.shape, "data_offsets": (end, end + size)}
        end += size
    return header
