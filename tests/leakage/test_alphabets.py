"""Which columns of a party have few values, and which values these are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from splitvfl.data.columns import PartyData
from splitvfl.data.load import load
from splitvfl.leakage.alphabets import MOST_VALUES, known_alphabets
from splitvfl.leakage.unit_box import Box
from tests.builders import party_data

ROWS = 1200


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> PartyData:
    """A continuous column, whole numbers, a category of three, a column that does not vary, and a flag."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "amount": draw.random(ROWS),
            "plan": draw.choice(["x", "y", "z"], ROWS),
            "flat": 3,
            "calls": draw.integers(2, 7, ROWS),
            "late": draw.integers(0, 2, ROWS),
            "many": draw.integers(0, 3 * MOST_VALUES, ROWS),
            "y": draw.integers(0, 2, ROWS),
        }
    )
    path: Path = tmp_path_factory.mktemp("tables") / "t.csv"
    table.to_csv(path, index=False)
    columns = ["amount", "plan", "flat", "calls", "late", "many"]
    return load("table", path=str(path), label="y", passive={"p": columns}, scale="minmax")["p"]


def box_of(data: PartyData) -> Box:
    return Box.of(data.train.columns.numeric.double())


def test_categories_and_whole_numbers_have_alphabets_and_others_have_none(party: PartyData) -> None:
    # Places count the columns that vary: amount, plan=x, plan=y, plan=z, calls, late, many.
    found = {one.places: one.values for one in known_alphabets(party, box_of(party))}
    assert set(found) == {(1, 2, 3), (4,), (5,)}
    assert sorted(found[1, 2, 3].tolist()) == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    # 2 … 6 in the unit box; columns are float32.
    torch.testing.assert_close(found[4,], torch.arange(5).double().unsqueeze(1) / 4, rtol=0, atol=1e-6)
    assert found[5,].tolist() == [[0.0], [1.0]]


def test_the_training_records_own_values_are_in_their_alphabets_to_the_bit(party: PartyData) -> None:
    box = box_of(party)
    truth = box.unit(party.train.columns.numeric)[:, box.varying]
    for one in known_alphabets(party, box):
        rows = {tuple(row) for row in truth[:, list(one.places)].tolist()}
        assert rows == {tuple(row) for row in one.values.tolist()}


def test_a_category_that_is_listed_nowhere_is_a_possibility_where_it_occurs(party: PartyData) -> None:
    columns = party.train.columns.numeric.clone()
    columns[5, 1:4] = 0.0
    train = replace(party.train, columns=party.train.columns._replace(numeric=columns))
    found = {one.places: one.values.tolist() for one in known_alphabets(replace(party, train=train), box_of(party))}
    assert [0.0, 0.0, 0.0] in found[1, 2, 3]
    assert len(found[1, 2, 3]) == 4


def test_a_few_records_of_continuous_columns_are_not_taken_for_discrete_ones() -> None:
    data = party_data("telecom", width=3, train=48)
    assert known_alphabets(data, box_of(data)) == ()


def test_records_that_are_read_in_pieces_give_the_same(party: PartyData, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = known_alphabets(party, box_of(party))
    monkeypatch.setattr("splitvfl.leakage.alphabets._PIECE", 7)
    pieces = known_alphabets(party, box_of(party))
    assert [(one.places, one.values.tolist()) for one in whole] == [(one.places, one.values.tolist()) for one in pieces]
