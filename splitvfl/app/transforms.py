"""From the setting of a passive party to the transform of its columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from splitvfl.config.sections import TransformConfig
from splitvfl.data.columns import PartyData
from splitvfl.data.partition import matching, patterns
from splitvfl.data.transform import (
    Rearrangement,
    Rotation,
    Transform,
    check_unit_box,
    flip,
    like_alphabets,
    permute,
    random_rotation,
)
from splitvfl.errors import ArgumentError, DataError
from splitvfl.system.untrusted_files import MOST_BYTES, UntrustedFile

# Bytes before the numbers of an .npy file.
_MOST_HEADER = 1 << 16


def transform_for(chosen: TransformConfig, data: PartyData) -> Transform:
    """Return the transform of a party's columns, drawn anew if it is by chance.

    Args:
        chosen: The setting.
        data: The party's data, untransformed; of it, the training records count.

    Raises:
        DataError: If a column is not there, or not as the transform needs it, or a file is not readable.
        ArgumentError: If a matrix is not orthonormal, or of another number of columns.
    """
    if not data.width:
        raise DataError(f"{data.name} has no columns of numbers, and a transform is of these")
    if chosen.name == "flip":
        return _flip(chosen, data)
    if chosen.name == "permute":
        return _permutation(chosen, data)
    return _rotation(chosen, data)


def _flip(chosen: TransformConfig, data: PartyData) -> Rearrangement:
    columns = _columns(chosen, data)
    check_unit_box(data.train.columns.numeric, data.numeric_names, columns)
    return flip(data.width, columns)


def _permutation(chosen: TransformConfig, data: PartyData) -> Rearrangement:
    columns = _columns(chosen, data)
    groups = [[columns[place] for place in group] for group in like_alphabets(data.train.columns.numeric[:, columns])]
    within = {column for group in groups for column in group}
    alone = [data.numeric_names[column] for column in columns if column not in within]
    if not groups or (chosen.columns is not None and alone):
        raise DataError(
            f"columns are permuted among those that hold the same values, and none holds those of {alone[0]!r}: scale "
            "all to [0, 1] (data.scale: minmax), or name others"
        )
    return permute(groups, data.width, seed=chosen.seed_for_experiments)


def _rotation(chosen: TransformConfig, data: PartyData) -> Rotation:
    if chosen.matrix is None:
        return random_rotation(data.width, seed=chosen.seed_for_experiments)
    file = UntrustedFile(
        path=Path(chosen.matrix),
        says="is no matrix of numbers that numpy.save wrote",
        remedy=f"expected a file .npy, of shape ({data.width}, {data.width})",
        error=DataError,
        linked=True,
        most=max(MOST_BYTES, 16 * data.width**2 + _MOST_HEADER),  # of the widest numbers that numpy has
    )
    try:
        matrix = torch.from_numpy(np.asarray(file.array(), dtype=np.float64))
    except (ValueError, TypeError) as error:
        raise file.refused(error) from error
    if matrix.shape != (data.width, data.width):
        raise ArgumentError(
            f"expected a matrix ({data.width}, {data.width}) for the {data.width} columns of {data.name} after "
            f"encoding, got {tuple(matrix.shape)}"
        )
    return Rotation(matrix)


def _columns(chosen: TransformConfig, data: PartyData) -> list[int]:
    """Return the columns that a setting means, from 0."""
    if chosen.columns is None:
        return list(range(data.width))
    source = f"the columns of {data.name} after encoding"
    named = matching(patterns(chosen.columns), data.numeric_names, source=source)
    return [place for place, name in enumerate(data.numeric_names) if name in named]
