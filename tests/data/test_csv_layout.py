"""Delimiter and header of a CSV file, as they are found and as they are read; what is odd is named with its line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from splitvfl.data import csv_source
from splitvfl.data.csv_layout import LOOKED_AT_BYTES, layout_of
from splitvfl.data.sources import open_all, read_table
from splitvfl.data.tables import column_of
from splitvfl.errors import DataError

TABLE = {"a": [1, 2, 3], "b": ["x", "y", "z"]}


def read(path: Path, text: str) -> dict[str, list[object]]:
    """Return the cells of a file that is read whole, having compared them with those of its chunks."""
    path.write_text(text)
    table = read_table(path)
    source = open_all([path])[0]
    cells: dict[str, list[object]] = {name: [] for name in table.column_names}
    for chunk in source.chunks(dict(zip(table.column_names, table.schema.types, strict=True))):
        for name, column in chunk.columns.items():
            cells[name] += column.to_pylist()
    assert cells == table.to_pydict()
    assert source.names == tuple(cells)
    return cells


@pytest.mark.parametrize(
    "text",
    [
        "a{d}b\n1{d}x\n2{d}y\n3{d}z\n",
        '"a"{d}"b"\n1{d}"x"\n2{d}"y"\n3{d}"z"',
        "# made by hand\na{d}b\n1{d}x\n2{d}y\n3{d}z\n",
        "# made by hand, on Monday; or | Tuesday\n\n# and more\na{d}b\n1{d}x\n2{d}y\n3{d}z\n",
        "a{d}b{d}\n1{d}x{d}\n2{d}y{d}\n3{d}z{d}\n",
        "a{d}b{d}{d}{d}\r\n1{d}x{d}{d}{d}\r\n2{d}y{d}{d}{d}\r\n3{d}z{d}{d}{d}\r\n",
        "sep={d}\na{d}b\n1{d}x\n2{d}y\n3{d}z\n",
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_table_is_read_whatever_separates_its_cells(text: str, delimiter: str, tmp_path: Path) -> None:
    assert read(tmp_path / "t.csv", text.format(d=delimiter)) == TABLE


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a;b\n1,5;2,5\n3,5;4,5\n", ";"),  # decimal commas, in every row
        ("name, first;b;c\nx,1;y;z\n", ";"),
        ('"a,b";c\n1;2\n', ";"),
        ("a, b, c;d\n" + "1, 2, 3;4\n" * 6 + "1;4\n" * 4, ";"),  # more cells in fewer rows
        ('a,b\n"1;2;3",4\n"5;6;7",8\n', ","),
        ("id,genres,label\n1,Action|Comedy|Drama,0\n2,Action|Horror|War,1\n", ","),
        ("a\n1\n2\n", ","),
        ("a b\n1 2\n", ","),
        ("#a\tb\n1\t2\n", "\t"),
        ("a|b\n" + "1|2\n" * 20 + "1|2|3\n", "|"),  # a ragged line is found when it is read
    ],
)
def test_the_delimiter_is_the_one_that_header_and_rows_agree_on(text: str, delimiter: str) -> None:
    assert layout_of(text, name="t.csv")[:2] == (delimiter, 0)


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("# made by hand, on Monday\na,b\n1,x\n2,y\n", 1),
        ("# a,b\n1,x\n2,y\n", 0),  # as numpy.savetxt writes it
        ("# made by hand, on Monday\n#a,b\n1,x\n2,y\n", 1),
        ("#name,city\nAnna,Rome\nBert,Oslo\n", 0),
        ("# one\n# two\n# three\na,b\n1,2\n", 3),
        ("#\n", 0),
    ],
)
def test_a_header_may_begin_like_a_comment(text: str, skipped: int) -> None:
    assert layout_of(text, name="t.csv").skipped == skipped


def test_of_rows_without_a_header_names_and_numbers_decide() -> None:
    assert layout_of("1,5;2,5\n3,5;4,5\n", name="t.csv", header=["a", "b"]).delimiter == ";"
    assert layout_of("1,5;2\n3,5;4\n", name="t.csv", header=["a", "b"]).delimiter == ";"
    assert layout_of("1,5;6,2\n3,4;7,2\n", name="t.csv", header=["a", "b", "c"]).delimiter == ","


def test_a_line_longer_than_what_is_looked_at_is_split_as_it_begins(tmp_path: Path) -> None:
    names = [f"column{number}" for number in range(LOOKED_AT_BYTES // 8)]
    path = tmp_path / "t.csv"
    path.write_text(";".join(names) + "\n" + ";".join("1" * len(names)) + "\n")

    assert read_table(path).column_names == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Accounts of May\na;b;c\n1;2;3\n4;5;6\n", r"line 1: expected 3 cells as in most .*got 1.*If line 2 does"),
        ("Accounts, May\n\na,b,c\n1,2,3\n4,5,6\n", r"line 1: expected 3 cells .*got 2"),
        ("a,b\n1,2,\n3,4,\n", r"line 1: .*the other lines end with a comma, and the header does not"),
        ("a;b;\n1;2\n3;4\n", r"line 1: .*the header ends with a semicolon, and the other lines do not"),
        ("a,b\n1,2,3\n4,5,6\n", r"line 1: .*one column has no name"),
    ],
)
def test_a_header_that_does_not_fit_is_named_with_what_to_do(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)

    with pytest.raises(DataError, match=message):
        open_all([path])


def test_a_value_in_an_unnamed_column_is_no_trailing_delimiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,\n" + "1,2,\n" * LOOKED_AT_BYTES + "1,2,3\n")
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 1 << 16)
    told = rf"line {LOOKED_AT_BYTES + 2}: expected nothing behind the last comma.*got '3'; give that column a name"

    with pytest.raises(DataError, match=told):
        read_table(path)
    with pytest.raises(DataError, match=told):
        list(open_all([path])[0].chunks({"a": pa.int64()}))


def test_a_delimiter_that_is_none_is_asked_for_where_a_column_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id^a^label\n1^2^0\n")

    with pytest.raises(DataError, match=r"no column 'label' .*one column only, 'id\^a\^label': which delimiter\?"):
        column_of(read_table(path), "label", source="t.csv")
    path.write_text("id\n1\n")
    with pytest.raises(DataError, match=r"no column 'label' .*there are 'id'"):
        column_of(read_table(path), "label", source="t.csv")
