"""Weights of a half of which tables are divided among workers, as one file of safetensors.

Worker 0 writes it, and never holds a whole table: it takes memory for one block of rows of all workers at a time, and
for the other weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import safetensors.torch
import torch
from torch import nn

from splitvfl.messaging.messages import bytes_of
from splitvfl.team.sharded_table import ShardedTable, replicated_state, sharded_tables

_DTYPES: Mapping[torch.dtype, str] = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16"}


def pieces_of_weights(module: nn.Module) -> Iterator[bytes]:
    """Yield a model's weights, piece by piece, as one file that :func:`safetensors.torch.load` reads.

    A table that is divided stands in it as a whole, under the name that it has in one process. The other workers call
    :func:`give_rows` meanwhile.

    Args:
        module: The model, at worker 0.

    Raises:
        TeamError: If a worker could not go on, or is gone.
    """
    plain = {name: value.detach().cpu().contiguous() for name, value in replicated_state(module).items()}
    file, tables = safetensors.torch.save(plain), sharded_tables(module)
    if not tables:
        yield file
        return
    # The length of the header in 8 bytes, the header, and then the numbers, in the order of the header's offsets.
    start = 8 + int.from_bytes(file[:8], "little")
    header = json.dumps(_with_tables(json.loads(file[8:start]), tables, len(file) - start)).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    yield file[start:]
    for table in tables.values():
        for block in table.whole():
            assert block is not None, "worker 0 has every block"
            yield bytes(bytes_of(block))


def give_rows(module: nn.Module) -> None:
    """Give worker 0 the rows that this worker holds, while that one calls :func:`pieces_of_weights`.

    Raises:
        TeamError: If a worker could not go on, or is gone.
    """
    for table in sharded_tables(module).values():
        for _ in table.whole():
            pass


def _with_tables(header: dict[str, object], tables: Mapping[str, ShardedTable], end: int) -> dict[str, object]:
    for name, table in tables.items():
        shape = (table.count, table.rows.shape[1])
        size = shape[0] * shape[1] * table.rows.element_size()
        header[name] = {"dtype": _DTYPES[table.rows.dtype], "shape": shape, "data_offsets": (end, end + size)}
        end += size
    return header
