"""One rule for text that is numbers, and settings that read it: for files, frames, ingest and what is scored later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from splitvfl.data import csv_source
from splitvfl.data.cell_format import CellFormat, TextWatch, cell_format, numbers_in_text, read_numbers
from splitvfl.data.columns import VerticalData
from splitvfl.data.doubts import DoubtWarning
from splitvfl.data.encoding import FittedEncoding
from splitvfl.data.ingest.run import ingest_like
from splitvfl.data.joined_tables import from_tables
from splitvfl.data.joint_records import read_joint_records
from splitvfl.data.load import load
from splitvfl.data.new_records import read_new_records
from splitvfl.data.party_file import load_party
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.store import open_tables
from splitvfl.errors import ArgumentError, DataError
from tests.tables import ingest

ROWS = 40
POINTS = [f"{0.25 * row:.2f}" for row in range(ROWS)]
COMMAS = [f"{1000 + row}.{row:02}".replace(".", ",") for row in range(ROWS)]


def with_cells(cells: list[str], **others: str) -> list[str]:
    """Return cells, some of which are others: ``_3="?"``."""
    return [others.get(f"_{row}", cell) for row, cell in enumerate(cells)]


def write(folder: Path, cells: list[str | None], name: str = "t.csv", delimiter: str = ",") -> Path:
    """Return a file with a column ``a`` of these cells, numbers ``b`` and labels."""
    frame = pd.DataFrame({"id": np.arange(len(cells)), "a": cells})
    frame = frame.assign(b=np.arange(len(cells)) * 2, label=np.arange(len(cells)) % 2)
    path = folder / name
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep=delimiter)
    return path


def loaded(path: Path, **settings: Any) -> VerticalData:
    return load("table", path=path, label="label", id_column="id", active="b", passive={"lab": "a"}, **settings)


def values(data: VerticalData) -> list[float]:
    """Return the column ``a`` as it was in the file, in the order of ids."""
    lab = data["lab"]
    ids = np.concatenate([lab.train.ids.numpy(), lab.test.ids.numpy()])
    found = np.concatenate([lab.train.columns.numeric.numpy(), lab.test.columns.numeric.numpy()])[:, 0]
    return [round(float(value), 2) for value in found[np.argsort(ids)]]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("word", ["?", "-", "unknown", "n.a.", "#DIV/0!"])
def test_a_word_among_numbers_of_a_file_is_an_error_with_the_setting(name: str, word: str, tmp_path: Path) -> None:
    path = write(tmp_path, with_cells(POINTS, _29=word, _31=word), name)

    with pytest.raises(DataError) as error:
        loaded(path)

    place = "t.csv, line 31" if name == "t.csv" else "t.parquet, row 29 (from 0)"
    assert str(error.value).startswith(f"{place}, column 'a': {word!r} among numbers (2 of {ROWS} values")
    assert f"missing_values=[{word!r}]" in str(error.value)
    assert "text_columns" in str(error.value)
    data = loaded(path, missing_values=[word], missing="indicator")
    assert data["lab"].numeric_names == ("a", "a missing")


@pytest.mark.parametrize("gap", ["", "None", "NULL", "NaN", "<NA>", "#N/A", "n/a", " "])
def test_usual_gaps_are_gaps_in_numbers(gap: str, tmp_path: Path) -> None:
    path = write(tmp_path, with_cells(POINTS, _29=gap))

    with pytest.raises(DataError, match="has no value in 1 of 40 rows, first in row 29"):
        loaded(path)
    frame = pd.DataFrame({"a": with_cells(POINTS, _29=gap)})
    labels = pd.DataFrame({"label": np.arange(ROWS) % 2, "b": np.arange(ROWS) * 0.5})
    with pytest.raises(DataError, match="has no value in 1 of 40 rows, first in row 29"):
        from_tables(active=labels, passive={"lab": frame}, label="label", decimal=".")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_the_same_words_are_categories_in_text(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, [["NA", "DE", "None", "FR"][row % 4] for row in range(ROWS)], name)

    assert loaded(path)["lab"].numeric_names == ("a=DE", "a=FR", "a=NA", "a=None")
    named = loaded(path, missing_values=["NA"])
    assert named["lab"].numeric_names == ("a=DE", "a=FR", "a=None", "a=missing")
    kept = loaded(path, missing_values=["NA"], text_columns="a")
    assert kept["lab"].numeric_names == ("a=DE", "a=FR", "a=NA", "a=None")


@pytest.mark.parametrize(
    ("cells", "settings"),
    [
        ([f"{1000 * row + 1:,}.5" for row in range(ROWS)], {"thousands": ","}),
        (COMMAS, {"decimal": ","}),
        ([f"${row}.50" for row in range(ROWS)], {"units": ["$"]}),
        ([f"{row}.5%" for row in range(ROWS)], {"units": ["%"]}),
        ([f"({row + 1}.5)" for row in range(ROWS)], {"units": ["()"]}),
        (
            [f"{1000 + row}".replace("1", "1\u202f", 1) + ",5" for row in range(ROWS)],
            {"decimal": ",", "thousands": " "},
        ),
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_numbers_that_are_written_otherwise_name_the_settings_and_are_read_with_them(
    cells: list[str], settings: dict[str, Any], name: str, tmp_path: Path
) -> None:
    path = write(tmp_path, list(cells), name, delimiter=";")

    with pytest.raises(DataError, match=r"'a': .* is text, and looks like a number") as error:
        loaded(path)

    for key, value in settings.items():
        assert f"{key}={value!r}" in str(error.value)
    strip = str.maketrans({"$": None, "%": None, "(": "-", ")": None, "\u202f": None})
    plain = [cell.translate(strip) for cell in cells]
    plain = [cell.replace(",", ".") if settings.get("decimal") == "," else cell.replace(",", "") for cell in plain]
    assert values(loaded(path, **settings, scale="none")) == [round(float(cell), 2) for cell in plain]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(("pattern", "unit"), [("{} bhp", "bhp"), ("Rs. {}", "Rs."), ("EUR {}", "EUR")])
def test_any_common_unit_is_named_and_read(pattern: str, unit: str, name: str, tmp_path: Path) -> None:
    path = write(tmp_path, [pattern.format(cell) for cell in POINTS], name)

    with pytest.raises(DataError, match=r"'a': .* is text, and looks like a number") as error:
        loaded(path)

    assert f"units=['{unit}']" in str(error.value)
    assert values(loaded(path, units=[unit], scale="none")) == [float(cell) for cell in POINTS]
    with pytest.raises(DataError) as error:
        loaded(path, units=["kWh"])
    assert f"units=['kWh', '{unit}']" in str(error.value)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_form_that_no_setting_reads_is_to_be_converted(name: str, tmp_path: Path) -> None:
    cells = [f"€{row + 1.5}M" if row % 2 else f"€{row + 1}K" for row in range(ROWS)]
    path = write(tmp_path, list(cells), name)

    with pytest.raises(DataError, match=r"no setting reads '€…[MK]', '€…[MK]'; convert the column"):
        loaded(path)
    with pytest.raises(DataError, match="no setting reads"):
        loaded(path, units=["€"], decimal=".")
    with pytest.raises(DataError, match=r"no setting reads '€…[MK]', '€…[MK]'; convert the column"):
        ingest(path, out=tmp_path / "out", **TestIngest.PARTIES)
    assert "a=€11K" in loaded(path, text_columns="a")["lab"].numeric_names
    with pytest.warns(DoubtWarning, match=r"no setting reads '€…[MK]', '€…[MK]', convert the column"):
        TestFrames().joined(cells)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("word", ["K", "First", "31-33", "<0.02"])
def test_a_word_that_may_be_a_category_is_not_called_missing(word: str, name: str, tmp_path: Path) -> None:
    path = write(tmp_path, with_cells(POINTS, _29=word), name)

    with pytest.raises(DataError) as error:
        loaded(path)

    assert f"{word!r} among numbers" in str(error.value)
    assert "missing_values=" not in str(error.value)
    assert "text_columns or categorical_columns" in str(error.value)
    with pytest.warns(DoubtWarning) as warned:
        TestFrames().joined(with_cells(POINTS, _29=word))
    assert "missing_values" not in str(warned[0].message)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_numbers_in_half_of_the_rows_are_numbers(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, [str(row % 3) if row > 5 else f"ca {row}, note" for row in range(ROWS)], name)

    with pytest.raises(DataError, match=r"'ca 0, note' among numbers .6 of 40 values are no numbers"):
        loaded(path)
    with pytest.raises(DataError, match=r"'ca 0, note' among numbers .6 of 40 values are no numbers"):
        ingest(path, out=tmp_path / "out", **TestIngest.PARTIES)


def test_all_columns_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,label\n" + "".join(f"${row},{row}%,({row + 1}),{row % 2}\n" for row in range(ROWS)))

    with pytest.raises(DataError, match=r"'a': .*units=\['\$'\].*; the same holds for 'b' \(units=\['%'\]\), 'c'"):
        load("table", path=path, label="label", active="b", passive={"lab": "rest"})


def test_wrong_grouping_is_an_error_and_no_other_number(tmp_path: Path) -> None:
    path = write(tmp_path, with_cells(COMMAS, _7="12.34.5"), delimiter=";")
    settings = {"decimal": ",", "thousands": "."}

    with pytest.raises(DataError, match=r"t.csv, line 9, column 'a': '12.34.5' among numbers"):
        loaded(path, **settings)

    fitted = load_party(
        TableSpec(source=write(tmp_path, list(COMMAS), delimiter=";"), id_column="id", drop=["b", "label"], **settings),
        PartyClaim("lab", "passive"),
    ).encoding
    bad = write(tmp_path, with_cells(COMMAS, _7="12.34.5"), "new.csv", delimiter=";")
    with pytest.raises(DataError, match=r"new.csv, line 9, column 'a': expected a number .*, got '12.34.5'$"):
        read_new_records(bad, name="lab", role="passive", encoding=fitted)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([f"{row + 1} {'kg' if row % 2 else 'g'}" for row in range(ROWS)], "'2 kg', of another unit than '1 g'"),
        (with_cells([f"{row + 1} kg" for row in range(ROWS)], _3="0.5"), "line 5.*'0.5', of another unit than '1 kg'"),
    ],
)
def test_a_column_has_one_unit(cells: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        loaded(write(tmp_path, list(cells)), units=["kg", "g"])


def test_zero_needs_no_unit(tmp_path: Path) -> None:
    data = loaded(
        write(tmp_path, with_cells([f"{row + 1} kg" for row in range(ROWS)], _3="0")), units="kg", scale="none"
    )
    assert values(data)[:5] == [1, 2, 3, 0, 5]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("missing", [-999, "-999", "-999.0"])
def test_a_number_may_say_that_nothing_is_known(name: str, missing: Any, tmp_path: Path) -> None:
    path = write(tmp_path, list(POINTS), name)
    frame = pd.DataFrame({"id": np.arange(ROWS), "a": np.where(np.arange(ROWS) == 3, -999, np.arange(ROWS) * 1.5)})
    frame = frame.assign(b=1.5 * np.arange(ROWS), label=np.arange(ROWS) % 2)
    frame.to_parquet(path) if name == "t.parquet" else frame.to_csv(path, index=False)

    with pytest.raises(DataError, match="has no value in 1 of 40 rows, first in row 3"):
        loaded(path, missing_values=[missing])


@pytest.mark.parametrize("declared", [{"text_columns": "a"}, {"categorical_columns": "a"}])
@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_declared_column_is_text(name: str, declared: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path, [["1", "2", "3", "4+"][row % 4] for row in range(ROWS)], name)

    with pytest.raises(
        DataError, match=r"'4\+' among numbers .*codes or categories.*text_columns or categorical_columns"
    ):
        loaded(path)
    assert loaded(path, **declared)["lab"].numeric_names == ("a=1", "a=2", "a=3", "a=4+")


def test_a_column_whose_type_says_categories_is_declared(tmp_path: Path) -> None:
    path = write(tmp_path, list(POINTS), "t.parquet")
    table = pq.read_table(path)
    digits = pa.array([str(row % 3) for row in range(ROWS)]).dictionary_encode()
    pq.write_table(table.set_column(1, "a", digits), path)

    data = loaded(path, missing_values=["?"])
    assert data["lab"].numeric_names == ("a=0", "a=1", "a=2")
    assert data["lab"].doubts == ()
    ingest(path, out=tmp_path / "out", **TestIngest.PARTIES, decimal=".")
    assert open_tables(tmp_path / "out")["lab"].field_names == ("a",)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_codes_stay_text(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, [["00501", "10001", "94105", "x"][row % 4] for row in range(ROWS)], name)
    assert loaded(path)["lab"].numeric_names == ("a=00501", "a=10001", "a=94105", "a=x")


def test_a_dropped_column_and_ids_may_hold_anything(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    ids = with_cells([str(1000 + row) for row in range(ROWS)], _3="A7")
    path.write_text(
        "id,a,b,label\n" + "".join(f"{one},{'?' if row == 2 else row},{row},{row % 2}\n" for row, one in enumerate(ids))
    )
    data = load_party(
        TableSpec(source=path, id_column="id", drop=["a", "label"], missing_values=["-"]), PartyClaim("x", "passive")
    )
    assert data.data.column_names == ("b",)


def test_labels_of_digits_are_classes_and_a_word_among_them_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, list(POINTS), "t.parquet")
    table = pq.read_table(path)
    digits = pa.array([str(row % 3) for row in range(ROWS)])
    pq.write_table(table.set_column(3, "label", digits), path)
    assert loaded(path, task="multiclass", decimal=".").classes == 3

    pq.write_table(table.set_column(3, "label", pa.array(with_cells(digits.to_pylist(), _4="?"))), path)
    with pytest.raises(DataError, match="column 'label': '\\?' among numbers"):
        loaded(path, task="multiclass", decimal=".")


@pytest.mark.parametrize("given", [{"thousands": "."}, {"decimal": ",", "thousands": ","}, {"decimal": ";"}])
def test_separators_that_contradict_each_other_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match="decimal"):
        TableSpec(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["", "e", "3", "-", "1kg"])
def test_a_unit_is_no_part_of_a_number(unit: str) -> None:
    with pytest.raises(ArgumentError, match="expected units such as"):
        TableSpec(units=[unit])


class TestFrames:
    LABELS = pd.DataFrame({"label": np.arange(ROWS) % 2, "b": np.arange(ROWS) * 0.5})

    def test_text_that_looks_like_numbers_is_warned_of(self) -> None:
        with pytest.warns(DoubtWarning, match=r"lab: a \(1 of 40 values is no number: '\?', first in row 3"):
            data = self.joined(with_cells(POINTS, _3="?"))
        assert [doubt.kind for doubt in data["lab"].doubts] == ["numbers"]

    def test_settings_read_it(self) -> None:
        data = self.joined(with_cells(POINTS, _3="?"), missing_values=["?"], missing="indicator")
        assert data["lab"].numeric_names == ("a", "a missing")
        assert self.joined(POINTS, decimal={"lab": "."})["lab"].numeric_names == ("a",)

    def test_each_party_may_write_otherwise(self, tmp_path: Path) -> None:
        path = write(tmp_path, list(COMMAS), delimiter=";")
        points = pd.DataFrame({"id": np.arange(ROWS), "c": POINTS})
        points.to_csv(tmp_path / "points.csv", index=False)
        both: dict[str, Any] = {
            "active": path,
            "passive": {"lab": tmp_path / "points.csv"},
            "label": "label",
            "id": "id",
        }

        with pytest.raises(DataError, match=r"points.csv, .*SETTING=\{'lab': ...\} in Python"):
            from_tables(**both, decimal=",")
        data = from_tables(**both, decimal={"active": ","}, scale="none")
        assert data.active.numeric_names == ("a", "b")
        assert data["lab"].numeric_names == ("c",)
        with pytest.raises(ArgumentError, match="no party 'lap'; did you mean 'lab'"):
            from_tables(**both, decimal={"lap": ","})

    def joined(self, cells: list[str], **settings: Any) -> VerticalData:
        frame = pd.DataFrame({"a": cells})
        return from_tables(active=self.LABELS, passive={"lab": frame}, label="label", **settings)


class TestNewRecords:
    def test_they_are_read_as_the_training_was(self, tmp_path: Path) -> None:
        path = write(tmp_path, with_cells(COMMAS, _5="?"), delimiter=";")
        data = loaded(path, decimal=",", missing_values=["?"], missing="indicator", split_seed=1)
        parties = [data.active, data["lab"]]
        frame = pd.DataFrame({"id": [1, 2, 3], "a": ["1.5", "2,5", "?"], "b": [1, 2, 3]})

        with pytest.raises(DataError, match=r"row 0 .*, column 'a': expected a number as decimal=',' says, got '1.5'"):
            read_joint_records(frame, parties)
        frame.loc[0, "a"] = "1001,01"
        found = read_joint_records(frame, parties).records["lab"].columns.numeric
        again = data["lab"].train if 1 in data["lab"].train.ids else data["lab"].test
        assert found[0].tolist() == again.columns.numeric[again.ids.tolist().index(1)].tolist()
        assert found[:, 1].tolist() == [0, 0, 1]

    def test_the_format_is_kept_as_json(self, tmp_path: Path) -> None:
        path = write(tmp_path, list(COMMAS), delimiter=";")
        provenance = loaded(path, decimal=",")["lab"].provenance
        assert provenance is not None
        assert provenance.encoding is not None
        kept = msgspec.json.encode(provenance.encoding)
        assert msgspec.json.decode(kept, type=FittedEncoding).written == CellFormat(decimal=",")
        bare = msgspec.json.encode(FittedEncoding(columns=()))
        assert bare == b'{"columns":[]}'  # as runs that are older have it


class TestIngest:
    PARTIES: ClassVar[dict[str, Any]] = {"label": "label", "id_column": "id", "active": "b", "passive": {"lab": "a"}}

    def test_the_rule_looks_at_all_rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(csv_source, "BLOCK_BYTES", 100)
        cells = with_cells(["x" if row < 20 else str(row) for row in range(60)], _50="y")
        with pytest.raises(DataError, match=r"t.csv, line 2, column 'a': 'x' among numbers .*21 of 60.*: 'x', 'y'"):
            ingest(write(tmp_path, list(cells)), out=tmp_path / "out", **self.PARTIES)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
    def test_settings_are_kept_with_the_tables(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_source, "BLOCK_BYTES", 100)
        cells = with_cells([f"{row},5" if row < 30 else f"1.{row:03},5" for row in range(60)], _7="?")
        settings = {"decimal": ",", "thousands": ".", "missing_values": ["?"], "missing": "indicator", "scale": "none"}
        path = write(tmp_path, list(cells), name, delimiter=";")
        ingest(path, out=tmp_path / "out", **self.PARTIES, **settings)
        ingest_like(path, tmp_path / "again", like=tmp_path / "out")

        whole, again = open_tables(tmp_path / "out")["lab"], open_tables(tmp_path / "again")["lab"].test
        found = {
            int(one): row
            for part in (whole.train, whole.test)
            for one, row in zip(part.ids, part.columns.numeric, strict=True)
        }
        for one, row in zip(again.ids, again.columns.numeric, strict=True):
            assert row.tolist() == found[int(one)].tolist()
            assert row.tolist() == [found[7][0], 1.0] if one == 7 else [(one if one < 30 else 1000 + one) + 0.5, 0.0]

        bad = write(tmp_path, with_cells(list(cells), _40="1.23,5"), f"new{Path(name).suffix}", delimiter=";")
        place = "new.csv, line 42" if name == "t.csv" else r"new.parquet, row 40 \(from 0\)"
        with pytest.raises(DataError, match=f"{place}, column 'a': expected a number.*'1.23,5'"):
            ingest_like(bad, tmp_path / "bad", like=tmp_path / "out")

    def test_typed_text_is_an_error_in_files(self, tmp_path: Path) -> None:
        path = write(tmp_path, list(POINTS), "t.parquet")
        with pytest.raises(DataError, match=r"column 'a': all values are numbers kept as text, .* set decimal='.'"):
            ingest(path, out=tmp_path / "out", **self.PARTIES)


class TestBoundedMemory:
    def test_beyond_its_values_rows_are_counted(self) -> None:
        watch = TextWatch(CellFormat(), most=4)
        watch.add(pa.array(["a", "b", "c"]))
        watch.add(pa.array(["d", "e", "1", "2"]))
        assert watch.style == CellFormat().style
        watch.add(pa.array(["e", "e", "f", None, ""]))
        assert watch.style is None

    def test_it_judges_as_a_table_in_memory(self) -> None:
        for cells in (["1", "2", "x"], ["x", "1", "y"], ["00501", "?"], ["1,5", "2,25"], [*"abcd12", *"311312"]):
            watch = TextWatch(CellFormat())
            for cell in cells:
                watch.add(pa.array([cell]))
            whole = numbers_in_text(pa.array(cells), CellFormat())
            assert watch.style == (None if whole is None else whole.style)


@pytest.mark.parametrize("missing", [-999, -999.0, "-999", "-999,0", "-999,00"])
@pytest.mark.parametrize("cell", ["-999", "-999,0", "-999,00"])
def test_a_number_that_is_missing_is_one_in_the_style_of_the_file(missing: object, cell: str) -> None:
    written = cell_format([missing], ",", None, ())

    found = read_numbers(pa.array(["1,5", cell, "-2,5"]), written)

    assert isinstance(found, pa.Array)
    assert found.to_pylist() == [1.5, None, -2.5]
    assert cell_format([-0.5], ",", None, ()).missing_values == ("-0,5",)
    assert cell_format([float("nan")], ",", None, ()).missing_values == ("nan",)


UNITS: dict[str, Any] = {"units": ["%", "‰", "$", "kg", "g"], "missing": "indicator"}


@pytest.mark.parametrize("trained", ["{} kg", "{}%", "{}"])
@pytest.mark.parametrize("now", ["{} kg", "{} g", "{}%", "{}‰", "${}", "{}"])
def test_new_records_have_the_unit_that_the_training_had(trained: str, now: str, tmp_path: Path) -> None:
    files = [
        write(tmp_path, [one.format(cell) for cell in POINTS], f"{name}.csv")
        for name, one in (("old", trained), ("new", now))
    ]
    spec = TableSpec(source=files[0], id_column="id", drop=["b", "label"], **UNITS)
    fitted = load_party(spec, PartyClaim("lab", "passive")).encoding

    if now == trained:
        assert read_new_records(files[1], name="lab", role="passive", encoding=fitted).data.test.count == ROWS
        return
    with pytest.raises(DataError, match=r"new.csv, line 3, column 'a': .* of another unit than the training had"):
        read_new_records(files[1], name="lab", role="passive", encoding=fitted)
