"""Which columns are categories, and which share of them an estimate gets right."""

from __future__ import annotations

import pytest
import torch

from splitvfl.data import load
from splitvfl.errors import ArgumentError
from splitvfl.leakage.categories import CategoryGroup, category_groups, commonest_share, share_right


def test_one_hot_columns_are_grouped_and_numbers_are_not(tmp_path: object) -> None:
    import pandas as pd

    table = pd.DataFrame({"a": range(20), "plan": ["x", "y", "z", "x"] * 5, "y": [0, 1] * 10, "b": [0.5, 1.0] * 10})
    path = f"{tmp_path}/t.csv"
    table.to_csv(path, index=False)
    party = load("table", path=path, label="y", passive={"p": ["a", "plan", "b"]})["p"]

    assert category_groups(party) == [CategoryGroup("plan", (1, 2, 3))]
    assert [party.numeric_names[place] for place in (1, 2, 3)] == ["plan=x", "plan=y", "plan=z"]


def test_the_largest_estimate_is_the_answer_and_ties_count_in_part() -> None:
    truth = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    estimate = torch.tensor([[0.9, 0.1, 0], [0.2, 0.1, 0.1], [0.3, 0.3, 0.3], [0.0, 0.0, 1.0]])

    # Right, wrong, a third, and a record of no category, which nobody can get right.
    assert share_right(estimate, truth) == pytest.approx((1 + 0 + 1 / 3 + 0) / 4)
    assert commonest_share(truth) == 0.25


def test_a_flag_is_right_on_its_side_of_one_half() -> None:
    truth, estimate = torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([[0.7], [0.4], [0.5]])

    assert share_right(estimate, truth) == pytest.approx(2.5 / 3)
    assert commonest_share(truth) == pytest.approx(2 / 3)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError):
        share_right(torch.zeros(2, 2), torch.zeros(2, 3))
