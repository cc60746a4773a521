"""Lists of large integers as tensors of bytes of a fixed width, and back.

Every number takes as many bytes as its agreed bound needs, however small it is: a length would tell its size.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch
from gmpy2 import mpz
from torch import Tensor

from splitvfl.errors import CryptoError


def integers_to_tensor(values: Sequence[int | mpz], width: int) -> Tensor:
    """Return integers as bytes, the most significant first.

    Args:
        values: Each from 0 to ``256**width - 1``.
        width: Bytes per integer, ≥ 1.

    Returns:
        uint8 ``(len(values), width)``.

    Raises:
        CryptoError: If an integer is negative or does not fit.
    """
    try:
        joined = b"".join(int(value).to_bytes(width, "big") for value in values)
    except OverflowError as error:
        raise CryptoError(f"expected integers from 0 to 256**{width} - 1, got one outside ({error})") from error
    if not joined:
        return torch.zeros((len(values), width), dtype=torch.uint8)
    # A bytearray is writable memory of its own, which torch asks for.
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8).view(len(values), width)


def tensor_to_integers(tensor: Tensor, width: int) -> list[int]:
    """Return the integers that :func:`integers_to_tensor` made bytes of.

    Raises:
        CryptoError: If the tensor is not uint8 ``(count, width)``.
    """
    if tensor.dtype != torch.uint8 or tensor.dim() != 2 or tensor.shape[1] != width:
        raise CryptoError(
            f"expected bytes, uint8 (count, {width}), got {str(tensor.dtype).removeprefix('torch.')} "
            f"{tuple(tensor.shape)}"
        )
    raw = tensor.contiguous().cpu().numpy().tobytes()
    return [int.from_bytes(raw[start : start + width], "big") for start in range(0, len(raw), width)]


def plain_integers(values: Tensor | Iterable[int]) -> list[int]:
    """Return an int64 tensor, or Python or GMP integers, as a list of Python integers.

    Raises:
        CryptoError: If a value is no integer; a float is never rounded here.
    """
    if isinstance(values, Tensor):
        if values.dtype != torch.int64 or values.dim() != 1:
            raise CryptoError(
                f"expected integers, int64 (count,), got {str(values.dtype).removeprefix('torch.')} "
                f"{tuple(values.shape)}; encode makes them of real numbers"
            )
        return [int(value) for value in values.tolist()]
    found = []
    for place, value in enumerate(values):
        try:
            # Takes integers of numpy and GMP too, and no float.
            found.append(int(operator.index(value)))
        except TypeError as error:
            raise CryptoError(
                f"expected integers, got {value!r} at place {place}; encode makes them of real numbers"
            ) from error
    return found
