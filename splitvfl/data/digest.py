"""Digests by which records are known again: what a run was tested on, and what is there now."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from splitvfl.data.columns import Records

# Rows that are read at once; records may be larger than memory.
_PIECE = 1 << 16


def records_digest(records: Records) -> str:
    """Return SHA-256 of ids, numbers and codes of records in their order, in hexadecimal.

    Numbers count as they were encoded, before rows are scaled down to a norm. Labels are not looked at.
    """
    digest = hashlib.sha256(b"splitvfl records 1\0")
    for rows in torch.arange(records.count).split(_PIECE):
        columns = records.columns.rows(rows)
        for values, kind in (
            (records.ids[rows], "<i8"),
            (columns.numeric, "<f4"),
            (columns.categorical, "<i8"),
        ):
            digest.update(f"{tuple(values.shape)}".encode())
            digest.update(np.ascontiguousarray(values.cpu().numpy(), kind).data)
    return digest.hexdigest()
