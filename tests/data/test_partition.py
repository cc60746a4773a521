from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.data.partition import ColumnClaim, divide, matching
from splitvfl.errors import ArgumentError, DataError

CREDIT = ("LIMIT_BAL", "AGE", "PAY_0", "PAY_2", "BILL_AMT1", "BILL_AMT2")


def _divide(columns: tuple[str, ...] = CREDIT, /, **claims: ColumnClaim) -> dict[str, tuple[str, ...]]:
    return divide(columns, claims, source="credit.parquet")


def test_names_patterns_and_rest() -> None:
    assert _divide(bank=["AGE"], telecom="BILL_*,PAY_?", shop="rest") == {
        "bank": ("AGE",),
        "telecom": ("PAY_0", "PAY_2", "BILL_AMT1", "BILL_AMT2"),
        "shop": ("LIMIT_BAL",),
    }


def test_an_exact_name_is_itself_though_it_looks_like_a_pattern() -> None:
    assert _divide(("x[1]", "x1", "a*", "ab"), bank=["x[1]", "a*"], shop="rest") == {
        "bank": ("x[1]", "a*"),
        "shop": ("x1", "ab"),
    }


def test_names_overlap_within_one_party() -> None:
    assert _divide(bank=["PAY_*", "PAY_0"], shop="rest")["bank"] == ("PAY_0", "PAY_2")


def test_a_share_is_of_what_no_name_claims() -> None:
    assert _divide(bank="PAY_*", telecom=0.25, shop=0.75) == {
        "bank": ("PAY_0", "PAY_2"),
        "telecom": ("LIMIT_BAL",),
        "shop": ("AGE", "BILL_AMT1", "BILL_AMT2"),
    }


def test_nothing_may_be_claimed() -> None:
    assert _divide(bank=(), shop="rest") == {"bank": (), "shop": CREDIT}


@given(st.integers(1, 40), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_shares_that_add_up_give_each_column_once_and_in_order(count: int, weights: list[int]) -> None:
    columns = tuple(f"c{index}" for index in range(count))
    claims: dict[str, ColumnClaim] = {f"p{index}": weight / sum(weights) for index, weight in enumerate(weights)}

    parts = divide(columns, claims, source="t")

    assert tuple(column for part in parts.values() for column in part) == columns
    for part, share in zip(parts.values(), claims.values(), strict=True):
        assert isinstance(share, float)
        assert abs(len(part) - share * count) <= 1  # both ends are rounded, each by half a column at most


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=12), st.randoms())
def test_any_assignment_by_name_is_reproduced(owners: list[str], random: object) -> None:
    columns = tuple(f"c{index}" for index in range(len(owners)))
    expected = {
        party: tuple(column for column, owner in zip(columns, owners, strict=True) if owner == party) for party in "abc"
    }

    # The order in which a party names its columns does not matter.
    assert divide(columns, {party: part[::-1] for party, part in expected.items()}, source="t") == expected


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"bank": ["AGEE"], "shop": "rest"}, "no column 'AGEE' in credit.parquet; did you mean 'AGE'?"),
        ({"bank": "age", "shop": "rest"}, "no column 'age' in credit.parquet; did you mean 'AGE'?"),
        ({"bank": "ZZ*", "shop": "rest"}, "no column 'ZZ*' in credit.parquet; there are 'LIMIT_BAL', 'AGE'"),
        ({"bank": "PAY_*", "shop": ["*"]}, "column 'PAY_0' is claimed by both bank and shop"),
        ({"bank": "PAY_*", "shop": "BILL_*"}, "no party claims 'LIMIT_BAL', 'AGE' of credit.parquet"),
        ({"bank": 0.5, "shop": 0.25}, "no party claims 'BILL_AMT1', 'BILL_AMT2' of"),
    ],
)
def test_columns_that_do_not_fit_are_data_errors(claims: dict[str, ColumnClaim], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        _divide(**claims)


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"bank": 0.0, "shop": "rest"}, "bank's share of the columns in (0, 1], got 0.0"),
        ({"bank": 1.5}, "bank's share of the columns in (0, 1], got 1.5"),
        ({"bank": 0.75, "shop": 0.5}, "add up to 1.25; expected 1 at most"),
        ({"bank": "rest", "shop": "rest"}, "one party at most to claim the rest, got bank and shop"),
        ({"bank": True}, "expected column names or patterns, a share in (0, 1] or 'rest', got True"),
        ({"bank": [3]}, "got [3]"),
    ],
)
def test_malformed_claims_are_argument_errors(claims: dict[str, ColumnClaim], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        _divide(**claims)


def test_a_reserved_column_says_what_it_is() -> None:
    with pytest.raises(DataError, match="'y' is the label of t and no feature"):
        matching(["y"], ["a"], source="t", reserved={"y": "the label"})
    # A pattern only ever means features.
    assert matching(["*"], ["a"], source="t", reserved={"y": "the label"}) == ("a",)
