from __future__ import annotations

import pytest
import torch

from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.errors import ArgumentError, DataError


def _columns(rows: int, fields: int = 1) -> Columns:
    return Columns(torch.arange(2.0 * rows).reshape(rows, 2), torch.arange(rows * fields).reshape(rows, fields))


def _records(rows: int, labels: bool = True) -> Records:
    return Records(torch.arange(rows) + 100, _columns(rows), torch.arange(rows).float() if labels else None)


def test_count_is_the_number_of_records() -> None:
    assert _columns(5).count == 5
    assert _records(5).count == 5


def test_rows_pick_the_same_records_everywhere() -> None:
    picked = _records(4).rows(torch.tensor([3, 0]))

    assert picked.ids.tolist() == [103, 100]
    assert picked.columns.numeric.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert picked.columns.categorical.tolist() == [[3], [0]]
    assert picked.labels is not None
    assert picked.labels.tolist() == [3.0, 0.0]
    assert _records(4, labels=False).rows(torch.tensor([1])).labels is None


def test_a_module_gets_the_numbers_alone_when_there_is_no_field() -> None:
    numbers = torch.ones(3, 2)
    plain, mixed = Columns.of(numbers), _columns(3)

    assert plain.module_input() is numbers
    assert plain.categorical.shape == (3, 0)
    assert plain.categorical.dtype == torch.int64
    assert mixed.module_input() is mixed


def test_records_move_together() -> None:
    moved = _records(3).to("meta")

    assert moved.labels is not None
    tensors = (moved.ids, moved.labels, *moved.columns)
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 4
    assert _records(3, labels=False).to("meta").labels is None


def test_records_of_unequal_length_are_refused() -> None:
    with pytest.raises(DataError, match=r"one row per record.*'ids': 2, 'numeric': 3"):
        Records(torch.arange(2), _columns(3))
    with pytest.raises(DataError, match="'labels': 1"):
        Records(torch.arange(3), _columns(3), torch.zeros(1))


def test_parties_are_found_by_name() -> None:
    bank = PartyData("bank", ("a",), ("a", "a missing"), (4,), _records(3), _records(1))
    shop = PartyData("shop", ("b",), ("b",), (), _records(3, labels=False), _records(1, labels=False))
    data = VerticalData("credit", "binary", 2, bank, {"shop": shop}, "")

    assert data["bank"] is bank
    assert data["shop"] is shop
    assert (bank.width, shop.width) == (2, 1)
    with pytest.raises(ArgumentError, match="no party 'telecom' in credit; expected one of bank, shop"):
        data["telecom"]


def test_rows_of_bounded_data_are_no_longer_than_agreed() -> None:
    generator = torch.Generator().manual_seed(0)
    numeric = torch.randn(50, 3, generator=generator)
    records = Records(torch.arange(50), Columns.of(numeric))
    data = PartyData("lab", ("a", "b", "c"), ("a", "b", "c"), (), records, records).with_row_norm(1.5)
    for part in (data.train, data.test):
        taken = part.rows(torch.arange(50)).to("cpu").columns.numeric
        for given, found in zip(numeric.tolist(), taken.tolist(), strict=True):
            length = sum(entry**2 for entry in given) ** 0.5
            # A float32 product of float32 numbers errs by two roundings.
            assert found == pytest.approx([entry * min(1.0, 1.5 / length) for entry in given], rel=3e-7)
    # Taken twice, they do not change again.
    twice = data.train.rows(torch.arange(50)).rows(torch.arange(50)).columns.numeric
    torch.testing.assert_close(twice, data.train.rows(torch.arange(50)).columns.numeric, rtol=2e-7, atol=0)
    assert torch.equal(data.with_row_norm(None).train.rows(torch.arange(50)).columns.numeric, numeric)


def test_rows_of_zeros_stay_zero() -> None:
    assert Columns.of(torch.zeros(2, 3)).bounded(0.1).numeric.tolist() == [[0.0] * 3] * 2
