from __future__ import annotations

import numpy as np
import pytest
import torch
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.crypto.integers import integers_to_tensor, plain_integers, tensor_to_integers
from splitvfl.errors import CryptoError


@given(st.lists(st.integers(0, 2**80 - 1)))
def test_bytes_and_back(values: list[int]) -> None:
    tensor = integers_to_tensor(values, 10)

    assert tensor.dtype == torch.uint8
    assert tensor.shape == (len(values), 10)
    assert tensor_to_integers(tensor, 10) == values


def test_the_first_byte_is_the_most_significant() -> None:
    assert integers_to_tensor([258], 3).tolist() == [[0, 1, 2]]
    assert tensor_to_integers(torch.tensor([[9, 0], [1, 2]], dtype=torch.uint8).t(), 2) == [9 * 256 + 1, 2]


@pytest.mark.parametrize("value", [256, -1])
def test_what_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(CryptoError, match=r"0 to 256\*\*1 - 1"):
        integers_to_tensor([value], 1)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(2, 3, dtype=torch.int64), torch.zeros(6, dtype=torch.uint8), torch.zeros(2, 4, dtype=torch.uint8)],
)
def test_bytes_of_another_shape_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(CryptoError, match=r"expected bytes, uint8 \(count, 3\)"):
        tensor_to_integers(tensor, 3)


def test_integers_of_every_library_are_taken() -> None:
    assert plain_integers([1, mpz(-2), np.int64(3)]) == [1, -2, 3]
    assert plain_integers(torch.tensor([4, -5])) == [4, -5]
    assert all(type(value) is int for value in plain_integers([mpz(1), np.int32(1)]))


@pytest.mark.parametrize("value", [1.0, np.float64(1), "1", None])
def test_what_is_no_integer_is_not_rounded(value: object) -> None:
    with pytest.raises(CryptoError, match="at place 1; encode makes them of real numbers"):
        plain_integers([0, value])  # type: ignore[list-item]


@pytest.mark.parametrize("tensor", [torch.zeros(2), torch.zeros(2, 2, dtype=torch.int64)])
def test_a_tensor_of_something_else_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(CryptoError, match=r"expected integers, int64 \(count,\)"):
        plain_integers(tensor)
