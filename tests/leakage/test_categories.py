"""Which columns are categories, and which share of them an estimate gets right."""

from __future__ import annotations

import math

import pytest
import torch

from splitvfl.data.load import load
from splitvfl.errors import ArgumentError
from splitvfl.leakage.categories import (
    CategoryGroup,
    category_groups,
    commonest_share,
    flags,
    judge_category,
    share_right,
    varying_groups,
)


def test_one_hot_columns_are_grouped_and_numbers_are_not(tmp_path: object) -> None:
    import pandas as pd

    table = pd.DataFrame({"a": range(20), "plan": ["x", "y", "z", "x"] * 5, "y": [0, 1] * 10, "b": [0.5, 1.0] * 10})
    path = f"{tmp_path}/t.csv"
    table.to_csv(path, index=False)
    party = load("table", path=path, label="y", split_seed=1, passive={"p": ["a", "plan", "b"]})["p"]

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


def test_groups_of_what_varies_count_these_columns_alone() -> None:
    groups = [CategoryGroup("plan", (1, 2, 4)), CategoryGroup("kind", (0, 3))]
    varying = torch.tensor([True, True, False, False, True])

    # Of the second one column is left, which is no choice between several.
    assert varying_groups(groups, varying) == [CategoryGroup("plan", (1, 2))]


def test_flags_are_columns_of_two_values_that_occur_outside_of_groups() -> None:
    truth = torch.tensor([[0.0, 1, 0, 0, 0.5], [1.0, 0, 0, 1, 1.0]])

    found = flags(truth, ["a", "b", "c", "d", "e"], [CategoryGroup("x", (0, 1))])
    assert found == [CategoryGroup("d", (3,))]


def test_a_record_of_no_category_is_of_one_more_among_bits() -> None:
    group = CategoryGroup("plan", (0, 1))
    truth = torch.tensor([[1.0, 0], [0, 1], [0, 0], [0, 0]])

    leak = judge_category(group, truth, truth)
    # Two records of no category are answered with the first one, which one record has: 2/3 bits of three records.
    assert leak.right == pytest.approx((1 + 1) / 4)
    h = -(1 / 3 * math.log2(1 / 3) + 2 / 3 * math.log2(2 / 3))
    assert leak.bits_left == pytest.approx(0.75 * h + (3 - 2) / (8 * math.log(2)))
