from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from splitvfl.data import arrow_source, csv_source
from splitvfl.data.cell_format import CellFormat
from splitvfl.data.sources import check_kinds, find_files, infer_kinds, open_all, read_table
from splitvfl.errors import DataError

NUMBERS = {"a": pa.float64()}


def read(path: Path, types: dict[str, pa.DataType], **settings: Any) -> tuple[dict[str, list[Any]], list[str]]:
    """Return all cells by column, and the place of every row."""
    cells: dict[str, list[Any]] = {name: [] for name in types}
    places = []
    for chunk in open_all([path], **settings)[0].chunks(types):
        for name, column in chunk.columns.items():
            assert column.type == types[name]
            cells[name] += column.to_pylist()
        places += [chunk.place(row) for row in range(chunk.rows)]
    return cells, places


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 64)
    monkeypatch.setattr(arrow_source, "BATCH_ROWS", 7)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.zst", "t.tsv", "t.tsv.gz"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_cells_and_places_are_those_of_the_file(name: str, line_end: str, tmp_path: Path, small_blocks: None) -> None:
    rng = random.Random(0)
    mark = "\t" if ".tsv" in name else ","
    rows = [(rng.random(), rng.choice(["", "x", 'say ""hi""', "three\nlong\nlines"])) for _ in range(50)]
    lines = [f"a{mark}b"]
    expected_lines, line = [], 2
    for number, text in rows:
        if rng.random() < 0.2:
            lines.append("")
            line += 1
        expected_lines.append(line)
        lines.append(f'{number}{mark}"{text}"')
        line += 1 + text.count("\n")
    data = line_end.join([*lines, ""]).encode()
    path = tmp_path / name
    if path.suffix == ".zst":
        with pa.output_stream(path, compression="zstd") as stream:
            stream.write(data)
    else:
        write(path, data)

    cells, places = read(path, {"a": pa.float64(), "b": pa.string()})

    assert cells["a"] == [number for number, _ in rows]
    assert cells["b"] == [text.replace('""', '"') for _, text in rows]
    assert places == [f"{name}, line {number}" for number in expected_lines]


def test_the_last_line_needs_no_end_and_a_byte_order_mark_is_no_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", b"\xef\xbb\xbfa;b\n1;2\n3;4")

    assert read(path, NUMBERS)[0] == {"a": [1.0, 3.0]}


@pytest.mark.parametrize("data", [b"a,b\r1,x\r2,y\r", b"\n\r\na,b\n1,x\n2,y\n", b'"a",b\n1,x\n2,y'])
def test_a_chunk_and_the_whole_are_read_alike(data: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", data)

    cells, _ = read(path, {"a": pa.int64(), "b": pa.string()})

    assert cells == read_table(path).to_pydict() == {"a": [1, 2], "b": ["x", "y"]}


def test_a_name_may_hold_a_line_end(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 'a,"two\nlines"\n1,x\n')

    cells, places = read(path, {"a": pa.int64(), "two\nlines": pa.string()})

    assert cells == read_table(path).to_pydict() == {"a": [1], "two\nlines": ["x"]}
    assert places == ["t.csv, line 3"]


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_arrow_files_are_read_in_batches(compression: str | None, tmp_path: Path, small_blocks: None) -> None:
    table = pa.table({"a": range(20), "b": pa.array([str(n % 3) for n in range(20)]).dictionary_encode()})
    pyarrow.feather.write_feather(table, tmp_path / "t.feather", compression=compression or "uncompressed", chunksize=9)

    cells, places = read(tmp_path / "t.feather", {"a": pa.float64(), "b": pa.string()})

    assert cells == {"a": list(range(20)), "b": [str(n % 3) for n in range(20)]}
    assert places == [f"t.feather, row {row} (from 0)" for row in range(20)]
    assert read_table(tmp_path / "t.feather").to_pydict() == table.to_pydict()
    write(tmp_path / "t.arrow", "no Arrow file")
    with pytest.raises(DataError, match=r"t.arrow could not be read"):
        open_all([tmp_path / "t.arrow"])


def test_a_file_without_a_header_takes_names(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", "1\tx\n2\ty\n")

    cells, places = read(path, {"a": pa.float64(), "b": pa.string()}, header=["a", "b"])

    assert cells == {"a": [1, 2], "b": ["x", "y"]}
    assert places[0] == "t.tsv, line 1"
    with pytest.raises(DataError, match=r"t.tsv, line 1: expected 3 cells, as names were given, got 2"):
        open_all([path], header=["a", "b", "c"])


def test_parquet_is_read_in_batches_and_counted_from_zero(tmp_path: Path, small_blocks: None) -> None:
    table = pa.table({"a": range(20), "b": pa.array([str(n % 3) for n in range(20)]).dictionary_encode()})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=9)

    cells, places = read(tmp_path / "t.parquet", {"a": pa.float64(), "b": pa.string()})

    assert cells == {"a": list(range(20)), "b": [str(n % 3) for n in range(20)]}
    assert places == [f"t.parquet, row {row} (from 0)" for row in range(20)]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("1,2,3", r"t.csv, line 41: expected 2 cells as in the header, got 3"),
        ("1", r"t.csv, line 41: expected 2 cells as in the header, got 1"),
        ("abc,x", r"t.csv, line 41, column 'a': expected a number, as in the first rows .*, got 'abc'"),
        (b"1,x\xff", r"t.csv, line 41, column 'b': the text is not UTF-8"),
    ],
)
def test_a_broken_line_is_named(broken: str | bytes, message: str, tmp_path: Path, small_blocks: None) -> None:
    line = broken.encode() if isinstance(broken, str) else broken
    path = write(tmp_path / "t.csv", b"a,b\n" + b"1.5,x\n" * 39 + line + b"\n" + b"1.5,x\n" * 20 + b"worse\n")

    with pytest.raises(DataError, match=message):
        read(path, {"a": pa.float64(), "b": pa.string()})


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("0,x,oops", r"line 121, column 'a'.*'oops'"),
        ("0,x,1,y", "line 121: expected 3 cells"),
        ('0,"x\ny",1,z', "line 121: expected 3 cells as in the header, got 4"),
        ('0,x,"oops"', r"line 121, column 'a'.*'oops'"),
    ],
)
def test_lines_are_counted_with_line_ends_in_quotation_marks(broken: str, message: str, tmp_path: Path) -> None:
    rows = "".join(f'0,"two\nlines, one \r ""row""",{row}\n\n' for row in range(39))
    path = write(tmp_path / "t.csv", f'c,b,a\n0,"x\ny",1\n{rows}{broken}\n0,"z\nz",7\n')

    with pytest.raises(DataError, match=f"t.csv, {message}"):
        read(path, {"a": pa.float64(), "b": pa.string()})


def test_numbers_are_read_as_they_are_written_in_every_block(tmp_path: Path, small_blocks: None) -> None:
    cells = [f"{row}" if row < 30 else f"1.{row:03},5" for row in range(60)]
    path = write(tmp_path / "t.csv", "a;b\n" + "".join(f"{cell};x\n" for cell in cells))
    written = CellFormat(decimal=",", thousands=".")

    found, _ = read(path, {"a": pa.float64(), "b": pa.string()}, written=written)

    assert found["a"] == [row if row < 30 else 1000.5 + row for row in range(60)]
    with pytest.raises(DataError, match=r"t.csv, line 32, column 'a': expected a whole number.*, got '1.030,5'"):
        read(path, {"a": pa.int64()}, written=written)


@pytest.mark.parametrize(
    ("kind", "cell", "wanted"),
    [(pa.int64(), "1.5", "a whole number"), (pa.bool_(), "2", "true or false"), (pa.float64(), "1,5", "a number")],
)
def test_a_cell_of_another_type_is_named_with_what_was_expected(
    kind: pa.DataType, cell: str, wanted: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.csv", f'a,b\n1,x\n"{cell}",x\n')

    with pytest.raises(DataError, match=rf"t.csv, line 3, column 'a': expected {wanted}.*, got '{cell}'"):
        read(path, {"a": kind})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "t.csv is empty"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16; expected UTF-8"),
        (b"a,\xff\n1,2\n", "line 1: the text is not UTF-8"),
        (b"a,b,a\n1,2,3\n", "names more than one column 'a'"),
        (b"a\rb,c\n1,2\n", "carriage returns alone"),
        ("a,b\n1,2\n".encode("utf-16-le"), "line 1 holds zero bytes"),
    ],
)
def test_a_file_that_is_no_csv_file_is_an_error(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        open_all([write(tmp_path / "t.csv", data)])


def test_a_truncated_or_false_archive_is_an_error(tmp_path: Path) -> None:
    rng = random.Random(0)
    text = "a\n" + "".join(f"{rng.random()}\n" for _ in range(20_000))
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(text.encode())[:-2000])
    with pytest.raises(DataError, match=r"cut.csv.gz could not be read"):
        read(cut, NUMBERS)
    false = tmp_path / "false.csv.gz"
    false.write_bytes(b"a\n1\n")
    with pytest.raises(DataError, match=r"false.csv.gz could not be read"):
        read(false, NUMBERS)
    (tmp_path / "false.parquet").write_bytes(b"a\n1\n")
    with pytest.raises(DataError, match=r"false.parquet could not be read"):
        open_all([tmp_path / "false.parquet"])


def test_an_archive_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a\n1\n") + gzip.compress(b"2\n3\n"))

    assert read(path, NUMBERS)[0] == {"a": [1, 2, 3]}


def test_a_quotation_mark_that_is_not_closed_does_not_fill_the_memory(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_source, "LONGEST_LINE", 500)
    path = write(tmp_path / "t.csv", 'a,b\n1,5" pipe\n' + "2,x\n" * 200)
    assert len(read(path, {"b": pa.string()})[0]["b"]) == 201

    path = write(tmp_path / "t.csv", "a,b\n1," + "x" * 2000)
    with pytest.raises(DataError, match="line 2: longer than 0 MiB"):
        read(path, {"b": pa.string()})


@pytest.mark.parametrize("after", [30, 3000])
@pytest.mark.parametrize("later", ["", '2,"x"\n'])
def test_a_quotation_mark_that_is_not_closed_does_not_swallow_lines(
    after: int, later: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 1 << 10)
    path = write(tmp_path / "t.csv", "a,b\n" + "1,x\n" * 50 + '1,"open\n' + later + "1,x\n" * after)

    with pytest.raises(DataError, match=r"t.csv, line 52: a quotation mark is not closed"):
        read(path, {"b": pa.string()})


def test_text_that_is_not_utf8_is_named_where_kinds_are_inferred(tmp_path: Path) -> None:
    source = open_all([write(tmp_path / "t.csv", b"a,b\n1,x\n2,\xe9\n")])[0]

    with pytest.raises(DataError, match=r"t.csv, line 3, column 'b': the text is not UTF-8"):
        source.infer(["a", "b"], ())


def test_what_arrow_parses_is_not_freed_by_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A thread of Arrow's that frees bytes of Python's while the process ends aborts it: exit code 134 and not 2.
    given: list[pa.Buffer] = []
    monkeypatch.setattr(pa, "BufferReader", lambda data: given.append(data) or pa.input_stream(data))
    read(write(tmp_path / "t.csv", "a\n1\n"), NUMBERS)

    assert given
    assert all(isinstance(data, pa.Buffer) and data.is_mutable for data in given)  # bytes of Python's are not


def test_kinds_are_those_of_the_first_rows_that_show_them(tmp_path: Path, small_blocks: None) -> None:
    first = write(tmp_path / "1.csv", "i,n,t,b,late,never,word\n" + "1,1.5,x,true,,,7\n" * 30 + "1,1.5,x,true,3,,7\n")
    second = write(tmp_path / "2.csv", "i,n,t,b,late,never,word\n1,1.5,x,true,3,,7\n")

    names = ["i", "n", "t", "b", "late", "never", "word"]
    kinds = infer_kinds(open_all([first, second]), names, text=["word"])

    assert kinds == {
        "i": "integer",
        "n": "number",
        "t": "text",
        "b": "truth",
        "late": "integer",
        "never": "number",
        "word": "text",
    }


def test_numbers_with_a_word_among_them_are_not_taken_for_categories(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,b\n" + "".join(f"{n},x\n" for n in range(30)) + "unknown,x\n")

    with pytest.raises(DataError, match=r"t.csv, line 32, column 'a': 'unknown' among numbers"):
        infer_kinds(open_all([path]), ["a", "b"], text=())
    assert infer_kinds(open_all([path]), ["a", "b"], text=["a"])["a"] == "text"


def test_dates_are_an_error_unless_they_are_read_as_text(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "day\n2020-01-01\n2020-01-02\n")

    with pytest.raises(DataError, match=r"'day' of t.csv holds neither numbers nor text but date32.*read as text"):
        infer_kinds(open_all([path]), ["day"], text=())
    assert infer_kinds(open_all([path]), ["day"], text=["day"]) == {"day": "text"}


def test_files_need_the_same_columns_in_any_order(tmp_path: Path) -> None:
    first = write(tmp_path / "1.csv", "alpha,beta\n1,2\n")
    turned = write(tmp_path / "2.csv", "beta,alpha\n4,3\n")
    lacking = write(tmp_path / "3.csv", "alpha,betta\n1,2\n")
    richer = write(tmp_path / "4.csv", "alpha,beta,gamma\n1,2,3\n")

    assert [
        list(chunk.columns["alpha"].to_pylist())
        for s in open_all([first, turned])
        for chunk in s.chunks({"alpha": pa.int64()})
    ] == [[1], [3]]
    with pytest.raises(DataError, match=r"3.csv has no column 'beta', which 1.csv has; did you mean 'betta'"):
        open_all([first, lacking])
    with pytest.raises(DataError, match=r"4.csv has a column 'gamma', which 1.csv has not"):
        open_all([first, richer])


def test_parquet_files_must_agree_on_what_is_text(tmp_path: Path) -> None:
    tables = {"whole": [1, 2], "real": [0.5, 1.0], "text": ["1", "2"], "none": pa.nulls(2), "nothing": pa.nulls(2)}
    for name, cells in tables.items():
        pq.write_table(pa.table({"a": cells}), tmp_path / f"{name}.parquet")

    def kind(*names: str) -> str:
        return infer_kinds(open_all([tmp_path / f"{name}.parquet" for name in names]), ["a"], text=())["a"]

    assert kind("whole", "real") == kind("real", "whole") == kind("none", "real", "nothing") == "number"
    assert kind("none", "whole") == "integer"
    with pytest.raises(DataError, match=r"'a' of text.parquet holds text, and whole numbers in whole.parquet"):
        kind("whole", "text")
    with pytest.raises(DataError, match="holds text, and numbers in the files that were ingested before"):
        check_kinds(open_all([tmp_path / "text.parquet"]), {"a": "number"})


def test_text_in_parquet_must_be_utf8(tmp_path: Path) -> None:
    cells = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    pq.write_table(pa.table({"a": cells}), tmp_path / "t.parquet")

    with pytest.raises(DataError, match=r"t.parquet, row 1 \(from 0\), column 'a': the text is not UTF-8"):
        read(tmp_path / "t.parquet", {"a": pa.string()})


def test_files_are_found_by_name_and_pattern_once_each(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c[1].csv"):
        write(tmp_path / name, "a\n1\n")

    assert [path.name for path in find_files([tmp_path / "[ab].csv", tmp_path / "c[1].csv"])] == [
        "a.csv",
        "b.csv",
        "c[1].csv",
    ]
    with pytest.raises(DataError, match=r"expected a CSV or Parquet file at .*none.csv"):
        find_files([tmp_path / "none.csv"])
    with pytest.raises(DataError, match=r"'a.csv' was given more than once"):
        find_files([tmp_path / "*.csv", tmp_path / "a.csv"])
    with pytest.raises(DataError, match="got none"):
        find_files([])
    with pytest.raises(DataError, match="expected a file that ends in one of"):
        open_all([write(tmp_path / "t.xlsx", "x")])
