from __future__ import annotations

import pyarrow as pa
import pytest

from splitvfl.data.number_forms import around, is_unit
from splitvfl.data.number_text import (
    NumberStyle,
    counted,
    different,
    is_gap,
    is_written,
    looks_like,
    looks_numeric,
    to_numbers,
)

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


def many(pattern: str, first: float = 1.0, digits: int = 0, rows: int = 30) -> list[str]:
    """Return different numbers, with something around each."""
    return [pattern.format(f"{first + row:.{digits}f}") for row in range(rows)]


@pytest.mark.parametrize(
    ("values", "units", "first"),
    [
        (many("{} bhp", 74.1, 1), ("bhp",), 74.1),
        (many("{} CC", 1248), ("CC",), 1248),
        (many("{}lbs", 159), ("lbs",), 159),
        (many("US$ {}", 12.5, 2), ("US$",), 12.5),
        (many("Rs. {}", 500), ("Rs.",), 500),
        (many("Rs.{}", 500), ("Rs.",), 500),
        (many("INR{}", 500), ("INR",), 500),
        (many("EUR {}", 500), ("EUR",), 500),
        (many("{} °F", 98.6, 1), ("°F",), 98.6),
        (many("-{} mmol/L", 5.2, 1), ("mmol/L",), -5.2),
        (many("{} yrs", 12), ("yrs",), 12),
        (many("₹{} for two", 800), ("₹", "for two"), 800),
        (many("pH {}", 7.4, 1), ("pH",), 7.4),
        (["4 GB", "8 GB", "128 GB"], ("GB",), 4),
        (["98.6 °F", "37.2 °F"], ("°F",), 98.6),
    ],
)
def test_what_is_common_around_numbers_is_their_unit(values: list[str], units: tuple[str, ...], first: float) -> None:
    assert looks_like(values) == NumberStyle(units=units)
    assert all(map(is_unit, units))
    cells = pa.array(values)
    style = NumberStyle(units=units)
    assert to_numbers(cells.filter(is_written(cells, style)), style).to_pylist()[0] == first


def test_a_unit_goes_with_a_decimal_comma_and_with_thousands() -> None:
    assert looks_like(["12,50 zł", "7,25 zł"]) == NumberStyle(",", units=("zł",))
    assert looks_like(["1,234 sq ft", "22,345.5 sq ft"]) == NumberStyle(".", ",", ("sq ft",))


@pytest.mark.parametrize(
    ("values", "forms"),
    [
        (many("€{}M", 1.2, 1) + many("€{}K", 600, rows=3), {"€…M", "€…K"}),
        (["19M", "8.7M", "201k", "Varies with device"], {"…M", "…k"}),
        (many("{}K", 1.5, 1) + many("{}", 500, rows=20), {"…K"}),
        (["10,000+", "500+", "1,000,000+"], {"…+"}),
        (many("~{}"), {"~…"}),
        (many("{}*"), {"…*"}),
        (many("<{}", 0.02, 2), {"<…"}),
        (many("{}-", 12.5, 2), {"…-"}),
        (many("\u2013{}", 12.5, 2), {"\u2013…"}),
        (["₹1,23,456", "₹12,34,567"], {"₹…"}),
        (["1,23,456", "12,34,567"], set()),
        (["\uff11\uff12", "\uff13\uff0e\uff15"], set()),
    ],
)
def test_forms_that_no_setting_reads_are_named(values: list[str], forms: set[str]) -> None:
    style = looks_like(values)
    assert style is not None
    assert style.forms
    assert set(style.unread) == forms
    assert looks_numeric(pa.array(values), style).to_pylist() == ["device" not in value for value in values]


@pytest.mark.parametrize("unit", ["-", "\u2013", "e", "E", "3", "1kg", ".", "()", "a,b", ""])
def test_a_unit_is_no_part_of_a_number(unit: str) -> None:
    assert not is_unit(unit)


@pytest.mark.parametrize(
    "values",
    [
        ["A12", "B7", "C99"],
        many("A{}"),
        many("E{}", 11.9, 1),
        many("CPT{}", 99213),
        many("v{}", 1.2, 1),
        many("m{}"),
        many("SKU-{}"),
        many("{}.HK", 1000),
        many("{}.jpg"),
        many("{}, Main"),
        many("{} Main Street"),
        many("#{}"),
        many("Store {}"),
        many("LH {}", 400),
        many("{} Aug"),
        many("{}am", rows=12) + many("{}pm", rows=12),
        [f"{row}{'ABCD'[row % 4]}" for row in range(40)],
        ["1012 AB", "1013 XZ", "1014 KL"],
        ["K1A 0B1", "K2B 1C3"],
        ["Q1", "Q2", "Q3", "Q4"],
        ["Q1 2024", "Q2 2024"],
        many("level {}", rows=5),
        many("grade {}", rows=12),
        many("{} rooms", rows=5),
        many("{}+", rows=5),
        ["<=50K", ">50K"],
        ["<$50K", ">=$50K"],
        ["NO", "<30", ">30"],
        ["<0", "0<=X<200", ">=200", "no checking"],
        [">200", ">300", "Norm"],
        ["10+ years", "< 1 year", "1 year", "2 years", "3 years"],
        many("{}xx", 941),
        ["Windows 7", "Windows 10", "Windows 8.1"],
        ["3/5", "4/5"],
        ["2021-Q1", "2021-Q2"],
    ],
)
def test_letters_do_not_make_codes_and_levels_numbers(values: list[str]) -> None:
    assert looks_like(values) is None


def test_half_of_the_rows_are_enough() -> None:
    notes = [f"ca {row}, note {row}" for row in range(6)]
    assert looks_like([*notes, "1", "2", "3"]) is None
    assert looks_like([*notes, *["1", "2", "3"] * 2]) == NumberStyle()
    assert looks_like([*notes, *["1 bhp", "2.5 bhp", "3 bhp"] * 2]) == NumberStyle(units=("bhp",))
    assert looks_like([*"abc", *["0"] * 50]) is None  # one number may be a category


def test_numbers_with_exponents_are_numbers_among_others_and_a_few_alone_are_codes() -> None:
    assert looks_like(["1E5", "2E7", "4E2", "2.5"]) == NumberStyle()
    assert looks_like(["1E5", "12E7", "4E2"]) is None
    assert looks_like([*many("1E{}"), "x"]) == NumberStyle()


def test_how_often_values_occur_is_counted_without_blanks_and_gaps() -> None:
    values, rows = counted(pa.array(["a", " a", "b", None, "NA", "", "b ", "b"]))
    assert dict(zip(values.to_pylist(), rows.to_pylist(), strict=True)) == {"a": 2, "b": 3}


@pytest.mark.parametrize("word", ["?", "-", "n.a.", "unknown", "#DIV/0!", "Missing"])
def test_signs_and_some_words_say_that_nothing_is_known(word: str) -> None:
    assert is_gap(word)


@pytest.mark.parametrize("word", ["K", "First", "more", "31-33", "<0.02", "12+"])
def test_other_words_may_be_values(word: str) -> None:
    assert not is_gap(word)


@pytest.mark.parametrize(("before", "behind"), [(12, 0), (0, 24)])
def test_what_stands_around_a_number_is_short(before: int, behind: int) -> None:
    def form_of(before: int, behind: int) -> tuple[str, ...] | None:
        values = [f"{'~' * before}{number}{'!' * behind}" for number in range(1000, 1040)]
        found = around(pa.array(values), pa.array([1] * len(values)))
        return found and found.forms

    assert form_of(before, behind) == ("~" * before + "…" + "!" * behind,)
    assert form_of(before + (before > 0), behind + (behind > 0)) is None
