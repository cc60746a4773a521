from __future__ import annotations

import pyarrow as pa
import pytest

from splitvfl.data.number_text import NumberStyle, different, is_written, looks_like, to_numbers

GERMAN, ENGLISH, COMMA = NumberStyle(",", "."), NumberStyle(".", ","), NumberStyle(",")


@pytest.mark.parametrize(
    ("values", "style", "numbers"),
    [
        (["0.5", "-1.25", "+3", "\u22124", " 7 ", "1.5e3", "5.", ".5"], NumberStyle(), None),
        (["1", "2", "?", None, "", "NaN"], NumberStyle(), [1, 2]),
        (["4,181.46", "750.10"], ENGLISH, [4181.46, 750.1]),
        (["1,234", "22,345"], ENGLISH, [1234, 22345]),
        (["0,125", "1,250"], COMMA, [0.125, 1.25]),
        (["325,50", "4181,46"], COMMA, [325.5, 4181.46]),
        (["1.234.567,5", "2,5"], GERMAN, [1234567.5, 2.5]),
        (["1 234,5", "2"], NumberStyle(",", " "), [1234.5, 2.0]),
        (["1\u202f234,5", "1\u00a0000"], NumberStyle(",", " "), [1234.5, 1000.0]),
        (["1'234.50", "1\u2019000"], NumberStyle(".", "'"), [1234.5, 1000.0]),
        (["$12.50", "-$7", "$-8"], NumberStyle(units=("$",)), [12.5, -7.0, -8.0]),
        (["12.5%", "7 %"], NumberStyle(units=("%",)), [12.5, 7.0]),
        (["5 kg", "7kg"], NumberStyle(units=("kg",)), [5, 7]),
        (["(12.5)", "3"], NumberStyle(units=("()",)), [-12.5, 3.0]),
        (["(1,234.5)", "$3.2", "($4)"], NumberStyle(".", ",", ("$", "()")), [-1234.5, 3.2, -4.0]),
        (["12,5 €", "1.000 €"], NumberStyle(",", ".", ("€",)), [12.5, 1000.0]),
        (["12.34.5", "1.234,5", "2,5"], GERMAN, [1234.5, 2.5]),
    ],
)
def test_the_style_of_numbers_is_recognised(
    values: list[str | None], style: NumberStyle, numbers: list[float] | None
) -> None:
    assert looks_like(values) == style
    cells = different(pa.array(values, pa.string()))
    found = to_numbers(cells.filter(is_written(cells, style)), style).to_pylist()
    assert found == ([0.5, -1.25, 3.0, -4.0, 7.0, 1500.0, 5.0, 0.5] if numbers is None else numbers)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None, "", "NA"],
        ["red", "green", "1"],
        ["17.08.2021", "18.08.2021"],
        ["2021-08-17", "12:30"],
        ["10-20", "20-30", ">30"],
        ["00501", "10001", "?"],  # postcodes
        ["001.1", "250.00", "V45"],  # diagnoses
        ["0170123", "089123456", "7"],  # telephone numbers
        ["1e5", "2e7"],  # product codes
        ["12ab", "1234", "9999"],  # hashes
        ["1.10.2", "1.2", "1.3"],  # versions
        ["10.0.0.1", "10.0.0.2"],
        ["4111111111111111", "4111111111111112"],
        ["yes", "no"],
        ["TRUE", "FALSE"],
        ["00", "01"],
    ],
)
def test_other_text_and_codes_are_no_numbers(values: list[str | None]) -> None:
    assert looks_like(values) is None


def test_the_decimal_separator_that_is_known_is_preferred() -> None:
    assert looks_like(["1.234", "12.345"]) == NumberStyle()
    assert looks_like(["1.234", "12.345"], first=COMMA) == GERMAN


@pytest.mark.parametrize("cell", ["12.34.5", "1.23", "1,2,3", "1.2345,5", "0.123,5", "1.234.", "", "--5", "5-", "1,5e"])
def test_a_cell_is_a_number_from_its_first_character_to_its_last(cell: str) -> None:
    assert is_written(pa.array([cell, "1.234,5"]), GERMAN).to_pylist() == [False, True]


def test_whole_numbers_stay_whole() -> None:
    assert to_numbers(pa.array(["1,234", "7"]), ENGLISH).type == pa.int64()
    assert to_numbers(pa.array(["1,234.5", "7"]), ENGLISH).type == pa.float64()
