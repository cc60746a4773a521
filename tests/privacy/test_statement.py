from __future__ import annotations

import json
import math
from typing import Any

import pytest

from splitvfl.errors import ArgumentError
from splitvfl.privacy import NotCovered, Statement, claim_warnings, not_covered

FACTS: dict[str, Any] = {
    "mechanism": "Gaussian noise of sigma 3",
    "relation": "row",
    "epsilon": 1.00004,
    "delta": 1e-6,
    "protected": "the row of one record at shop",
    "against": "bank",
    "clipping": "rows to norm 1",
    "sampling": "in a known order",
    "generator": "AES-256 in counter mode",
    "method": "exact",
    "not_covered": not_covered("alignment", "evaluation"),
    "steps": 40,
}


def test_json_and_back_by_way_of_a_file() -> None:
    for epsilon in (1.25, math.inf, 0.0):
        statement = Statement(**(FACTS | {"epsilon": epsilon}))

        assert Statement.from_json(json.loads(json.dumps(statement.as_json(), allow_nan=False))) == statement


def test_every_part_is_in_the_words() -> None:
    text = "\n".join(Statement(**FACTS, group=3, warnings=("δ is large",)).sentences())

    for part in ("mechanism", "protected", "against", "clipping", "sampling", "generator", "method"):
        assert FACTS[part].casefold() in text.casefold()
    assert "(1.001, 1e-06) in 40 steps" in text  # rounded up, never down
    assert "any 3 records of one entity" in text
    assert "Warning: δ is large." in text
    for gap in FACTS["not_covered"]:
        assert f"Not covered, {gap.item}: {gap.reason}." in text


def test_no_epsilon_is_said_as_none() -> None:
    none = Statement(**(FACTS | {"epsilon": math.inf})).sentences()[0]
    assert "is not protected from" in none
    assert "no ε at δ = 1e-06" in none
    assert "(ε, δ) = (0, " in Statement(**(FACTS | {"epsilon": 0.0})).sentences()[0]


@pytest.mark.parametrize(
    ("epsilon", "delta", "records", "expected"),
    [
        (1.0, 1e-6, 1000, []),
        (1.0, 1e-3, 1000, ["1/1000"]),
        (1.0, 1e-3, None, []),
        (1e-7, 1e-6, 1000, ["below δ"]),
        (10.0, 1e-6, 1000, []),
        (10.1, 1e-6, 1000, ["above 10"]),
        (math.inf, 0.5, 10, ["1/10", "above 10"]),
    ],
)
def test_what_promises_little_is_warned_of(
    epsilon: float, delta: float, records: int | None, expected: list[str]
) -> None:
    found = claim_warnings(epsilon, delta, records=records)

    assert len(found) == len(expected)
    assert all(part in warning for part, warning in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: claim_warnings(1.0, 1.0), "from 1 on it promises nothing"),
        (lambda: claim_warnings(-1.0, 0.1), "epsilon must be at least 0"),
        (lambda: claim_warnings(1.0, 0.1, records=0), "records must be"),
        (lambda: Statement(**(FACTS | {"delta": 2.0})), "delta must lie"),
        (lambda: Statement(**(FACTS | {"relation": "column"})), "relation must be one of label, row, record"),
        (lambda: Statement(**FACTS, group=0), "group must be"),
        (lambda: not_covered("weather"), "expected some of statistics, .* got weather"),
        (lambda: Statement.from_json({"colour": 1}), "a statement has no colour"),
        (lambda: Statement.from_json({"epsilon": 1.0}), "this is no statement of privacy"),
    ],
)
def test_what_is_no_statement_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_gaps_of_ones_own_stand_beside_the_known_ones() -> None:
    own = NotCovered("rounding of rows", "rows are rounded to bfloat16")

    assert Statement(**(FACTS | {"not_covered": (own,)})).as_json()["not_covered"] == [
        {"item": "rounding of rows", "reason": "rows are rounded to bfloat16"}
    ]
