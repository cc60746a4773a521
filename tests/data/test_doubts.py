"""What columns are doubted for, and what they are not."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from splitvfl.data.doubts import doubts_of
from splitvfl.data.ingest.run import ingest
from splitvfl.data.load import load
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.store import open_tables

RANDOM = np.random.default_rng(0)
ROWS = 400


def kinds(name: str, values: object, *, known: bool = False) -> list[str]:
    table = pa.table({name: values})
    return [doubt.kind for doubt in doubts_of(table, [name], categories={name} if known else ())]


WORDS = ["".join(RANDOM.choice(list(string.ascii_lowercase), 8)) for _ in range(ROWS)]


GIVEN_NUMBERS = ("flight_number", "flightNumber", "FlightNumber", "account_no", "Account No.", "acct", "AcctNo")
GIVEN_NUMBERS += ("bank_account", "Kontonummer", "kundennummer", "policynumber", "phone", "order_num")
COUNTS = ("number_of_payments", "num_calls", "transactions_no", "claims_number", "account_balance", "amount", "no")
COUNTS += ("visitsnumber", "phone_minutes_total", "mobile_price", "account_age_days", "Account length")


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("row", np.arange(ROWS), ["id"]),
        ("row", RANDOM.permutation(ROWS) + 5.0, ["id"]),  # as CSV with a gap somewhere gives them
        ("hash", RANDOM.integers(2**40, 2**60, ROWS), ["id"]),
        ("customerId", RANDOM.choice(10**6, ROWS, replace=False), ["id"]),
        ("customer_id", RANDOM.integers(0, 200, 4000), ["id"]),
        ("name", WORDS, ["id"]),
        ("salary", RANDOM.choice(10**6, ROWS, replace=False), []),
        ("paid", RANDOM.normal(size=ROWS), []),
        ("id", np.arange(8), []),  # too few to say
        ("colour", RANDOM.choice(["red", "blue"], ROWS), []),
        ("always", np.full(ROWS, 3), ["constant"]),
        ("always", ["x"] * ROWS, ["constant"]),
        ("one row", [3], []),
        ("region", RANDOM.integers(1, 9, ROWS), ["codes"]),
        ("num_products", RANDOM.integers(1, 9, ROWS), []),
        ("zip", RANDOM.integers(10_000, 99_999, ROWS) // 10 * 10, ["codes"]),
        ("tone", RANDOM.choice(5, ROWS, p=[0.4, 0.05, 0.3, 0.05, 0.2]), ["codes"]),  # up and down
        ("calls", RANDOM.poisson(1.5, ROWS), []),
        ("grade", RANDOM.binomial(5, 0.5, ROWS), []),
        ("late", RANDOM.choice([0, 1, 2, 98], ROWS), []),  # a sentinel leaves holes
        ("yes", RANDOM.integers(0, 2, ROWS), []),
        ("price", [f"{number // 100},{number % 100:02}" for number in range(1000, 1000 + ROWS)], ["numbers"]),
        ("price", [f"1.{number:03},5" for number in range(ROWS)], ["numbers"]),
        ("place", [f"{number}, Main Street" for number in range(ROWS // 2)] * 2, []),
        ("born", [f"{1 + number % 28:02}.07.{1950 + number % 50}" for number in range(ROWS)], ["dates"]),
        ("seen", [1.0] * 150 + [None] * 250, ["gaps"]),
        ("seen", ["x", "y"] * 75 + [""] * 250, ["gaps"]),
        ("nothing", pa.nulls(ROWS), ["gaps"]),
        *((name, RANDOM.integers(1000, 9999, 4000), ["id"]) for name in GIVEN_NUMBERS),
        *((name, RANDOM.integers(0, 5000, 4000), []) for name in COUNTS),
        ("answer", ["Yes", "yes ", "No"] * 99, ["variants"]),
        ("answer", ["Yes", "No", "yes or no", None, ""] * 99, []),
    ],
)
def test_a_column_is_doubted(name: str, values: object, expected: list[str]) -> None:
    assert kinds(name, values) == expected


def test_what_is_known_to_hold_categories_is_not_doubted() -> None:
    assert kinds("region", RANDOM.integers(1, 9, ROWS), known=True) == []


@pytest.mark.parametrize(
    "name", ["breast-cancer", "wine", "diabetes", pytest.param("clicks", marks=pytest.mark.slow(reason="20,000 rows"))]
)
def test_there_is_no_false_alarm_on_sets_without_such_columns(name: str) -> None:
    data = load(name, passive={"lab": "rest"})

    found = [doubt for doubt in data["lab"].doubts if doubt.kind != "gaps"]
    assert found == []


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("adult_census_income.parquet", []),
        ("bank_marketing_additional_full.parquet", []),
        ("give_me_some_credit.parquet", []),
        ("wall_following_robot_24.parquet", []),
        # The codebook has −2, −1 and 0 for three ways of having paid.
        (
            "credit_default_taiwan.parquet",
            [*(("codes", name) for name in ("EDUCATION", "MARRIAGE")), *(("codes", f"PAY_{n}") for n in range(2, 7))],
        ),
    ],
)
def test_public_tables_are_doubted_where_they_should_be(
    file: str, expected: list[tuple[str, str]], data_folder: Path
) -> None:
    if not (data_folder / file).exists():
        pytest.skip(f"no {file} in {data_folder}")
    table = pa.parquet.read_table(data_folder / file)

    assert [doubt[:2] for doubt in doubts_of(table, table.column_names, categories=())] == expected


def test_ingested_columns_are_doubted_by_their_schema_alone(tmp_path: Path) -> None:
    rows = 2000
    random = np.random.default_rng(1)
    columns = {
        "row": np.arange(rows),
        "customer_id": random.integers(0, 500, rows),
        "always": np.ones(rows),
        "region": random.integers(1, 9, rows),
        "seen": [None if place % 3 else 1.0 * place for place in range(rows)],
        "word": [f"w{place}" for place in range(rows)],
        "colour": random.choice(["red", "blue"], rows),
        "calls": random.poisson(3, rows),
        "amount": random.integers(0, 10**6, rows),
        "default": random.integers(0, 2, rows),
    }
    spec = TableSpec(source=pa.table(columns), label="default", missing="indicator")
    claims = [PartyClaim("bank", "active", "calls"), PartyClaim("shop", "passive", "rest")]
    ingest(spec, claims, tmp_path / "tables")

    data = open_tables(tmp_path / "tables")

    assert data["bank"].doubts == ()
    assert {doubt.column: doubt.kind for doubt in data["shop"].doubts} == {
        "row": "id",
        "customer_id": "id",
        "always": "constant",
        "region": "codes",
        "seen": "gaps",
        "word": "id",
    }
