from __future__ import annotations

import gzip
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse, stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from splitvfl.cli import main
from splitvfl.data import clicks as clicks_module
from splitvfl.data.click_world import World, words
from splitvfl.data.clicks import Clicks, write_clicks
from splitvfl.data.load import load
from splitvfl.data.sources import read_table
from splitvfl.errors import ArgumentError, DataError

another_law = pytest.mark.slow(reason="draws 100,000 rows, and as many to fit the law that is asked for")

ROWS = 100_000
# Strength and intercept are chosen on so many rows of their own.
PILOT = 1 << 17


@pytest.fixture(scope="module")
def clicks() -> Clicks:
    return Clicks(ROWS)


@pytest.fixture(scope="module")
def few() -> Clicks:
    return Clicks(500)


@pytest.fixture(scope="module")
def frame(clicks: Clicks) -> pd.DataFrame:
    return clicks.table().to_pandas()


@pytest.fixture(scope="module")
def chances(clicks: Clicks) -> np.ndarray:
    return np.concatenate([chunk.probabilities for chunk in clicks.chunks()])


def test_columns_are_named_and_typed_as_criteos(frame: pd.DataFrame) -> None:
    assert list(frame) == ["id", "label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    assert (frame["id"] == np.arange(ROWS)).all()
    assert set(frame["label"]) == {0, 1}
    for name in (f"C{n}" for n in range(1, 27)):
        assert frame[name].dropna().str.fullmatch("[0-9a-f]{8}").all()


@pytest.mark.parametrize("share", [0.03, pytest.param(0.26, marks=another_law)])
def test_the_share_of_clicks_is_the_asked_one(share: float) -> None:
    chunks = list(Clicks(ROWS, positive_share=share, seed=5).chunks())
    labels = np.concatenate([chunk.rows.column("label").to_numpy() for chunk in chunks])
    chances = np.concatenate([chunk.probabilities for chunk in chunks])

    # Four standard errors: of the mean chance here and on the pilot, and of the labels given the chances.
    error = chances.std() * math.sqrt(1 / ROWS + 1 / PILOT)
    assert chances.mean() == pytest.approx(share, abs=4 * error)
    assert labels.mean() == pytest.approx(chances.mean(), abs=4 * math.sqrt(share * (1 - share) / ROWS))


def test_a_file_that_cannot_be_described_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected two records or more, got 1"):
        write_clicks(tmp_path / "clicks.csv", Clicks(1))

    assert list(tmp_path.iterdir()) == []


def test_labels_follow_the_probabilities(frame: pd.DataFrame, chances: np.ndarray) -> None:
    groups = pd.qcut(chances, 20, labels=False)
    expected = pd.Series(chances).groupby(groups).sum()
    variance = pd.Series(chances * (1 - chances)).groupby(groups).sum()
    found = frame["label"].groupby(groups).sum()

    # Twenty independent squares of nearly normal numbers; wrong once in a thousand seeds.
    assert ((found - expected) ** 2 / variance).sum() < stats.chi2(20).ppf(0.999)


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        pytest.param(0.6, 0.25, marks=another_law),
        pytest.param(0.8, 0.03, marks=another_law),
        pytest.param(0.8, 0.25, marks=another_law),
        pytest.param(0.95, 0.25, marks=another_law),
    ],
)
def test_the_bayes_auc_is_the_asked_one(asked: float, share: float, tmp_path: Path) -> None:
    made = Clicks(ROWS, bayes_auc=asked, positive_share=share, seed=1)

    report = write_clicks(tmp_path / "c.parquet", made)

    # Four standard errors; the pilot has one of its own.
    error = report.standard_error * math.sqrt(1 + ROWS / PILOT)
    assert report.auc == pytest.approx(asked, abs=4 * error)
    assert error < 0.002
    low, high = report.interval
    assert high - low == pytest.approx(2 * 1.96 * report.standard_error)


def test_the_true_probabilities_reach_the_bayes_auc(clicks: Clicks, frame: pd.DataFrame, chances: np.ndarray) -> None:
    positive, negative = chances[frame["label"] == 1], chances[frame["label"] == 0]
    # Variance of an AUC, DeLong et al. 1988: that of the share of pairs won, per positive and per negative.
    won_by_positive = np.searchsorted(np.sort(negative), positive) / len(negative)
    lost_by_negative = 1 - np.searchsorted(np.sort(positive), negative) / len(positive)
    error = math.sqrt(won_by_positive.var() / len(positive) + lost_by_negative.var() / len(negative))

    # Four standard errors, and the pilot's, which is smaller than these.
    assert roc_auc_score(frame["label"], chances) == pytest.approx(0.8, abs=4 * math.sqrt(2) * error)
    assert error < 0.003


def test_rows_do_not_depend_on_the_chunks_they_come_in(clicks: Clicks) -> None:
    few = Clicks(500)
    whole = next(few.chunks(500))

    for size in (200, 77, 3):
        chunks = list(few.chunks(size))
        assert pa.Table.from_batches([chunk.rows for chunk in chunks]).combine_chunks().equals(few.table())
        # One place of rounding: a vectorised exp may take the last rows of a chunk another way.
        np.testing.assert_allclose(
            np.concatenate([chunk.probabilities for chunk in chunks]), whole.probabilities, rtol=1e-14
        )
    # A file can be made longer without a change to what it holds.
    assert next(clicks.chunks(500)).rows.equals(whole.rows)


def test_the_same_seed_gives_the_same_rows_and_another_one_others() -> None:
    table = Clicks(1_000, seed=7).table()

    clicks_module._fitted.cache_clear()  # what is remembered of the first would be equal in any case
    assert table.equals(Clicks(1_000, seed=7).table())
    other = Clicks(1_000, seed=8).table()
    assert table.column("I1") != other.column("I1")
    assert table.column("C1").unique() != other.column("C1").unique()


def test_rows_are_the_same_on_every_machine_and_version(few: Clicks) -> None:
    # Recorded once. A change here changes everybody's data, and the numbers in results made from it.
    rows = few.table().slice(0, 3).to_pylist()

    assert [[row[name] for name in ("label", "I1", "I5", "C1", "C16", "C26")] for row in rows] == [
        [0, None, 4047, "03175051", None, "434ff333"],
        [0, 2, 2179, "f5a6fdf8", "0a4f44d2", "141bfcff"],
        [0, None, 206166, "03175051", None, "60f4419f"],
    ]


def test_words_are_those_of_splitmix64() -> None:
    # Output of the reference implementation (Vigna, splitmix64.c) for the seed 1234567.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]

    assert words(1234567, np.arange(1, 6, dtype=np.uint64)).tolist() == expected


def test_vocabularies_grow_from_three_to_a_million(clicks: Clicks, frame: pd.DataFrame) -> None:
    sizes = clicks.vocabularies

    assert (sizes["C1"], sizes["C26"]) == (3, 1_000_000)
    assert list(sizes.values()) == sorted(sizes.values())
    for name, size in sizes.items():
        found = frame[name].nunique()
        assert found <= size
        # In so many rows every category of a small field is seen: the rarest of 62 is expected 383 times.
        assert found == size or size > 62
    assert frame["C26"].nunique() > 20_000


def test_every_category_has_a_name_of_its_own() -> None:
    largest = World(0, numbers=0, fields=26).fields[-1]

    names = largest.names(np.arange(1, largest.size + 1, dtype=np.uint64))

    assert len(names.unique()) == largest.size


def test_categories_follow_zipfs_law(clicks: Clicks, frame: pd.DataFrame) -> None:
    name = "C18"
    size = clicks.vocabularies[name]
    counts = frame[name].value_counts().to_numpy()
    ranks = np.arange(1, 1 + len(counts))
    expected = len(frame) * np.log1p(1 / ranks) / math.log1p(size)
    common = ranks <= 30

    # Thirty squares of nearly normal numbers, sorted by frequency, which can only bring them closer.
    assert ((counts - expected)[common] ** 2 / expected[common]).sum() < stats.chi2(30).ppf(0.999)
    window = (ranks >= 10) & (ranks <= 300)
    slope = np.polyfit(np.log(ranks[window]), np.log(counts[window]), 1)[0]
    # A rank of 300 is seen 34 times, known to a sixth; over 1.5 decades this moves the slope by less than 0.05.
    assert slope == pytest.approx(-1, abs=0.05)


def test_counts_have_zeros_heavy_tails_and_telling_gaps(frame: pd.DataFrame) -> None:
    counts = frame[[f"I{n}" for n in range(1, 14)]]

    assert (counts.min() >= 0).all()
    assert ((counts == 0).mean() > 0.2).sum() >= 4
    assert (counts.quantile(0.999) > 20 * counts.median().clip(lower=1)).sum() >= 8
    # Asked 45 % of I1; six standard errors.
    assert frame["I1"].isna().mean() == pytest.approx(0.45, abs=6 * math.sqrt(0.25 / ROWS))
    for name, share in (("C1", 0.0), ("C3", 0.03), ("C5", 0.12), ("C8", 0.4), ("C16", 0.4)):
        assert frame[name].isna().mean() == pytest.approx(share, abs=6 * math.sqrt(0.25 / ROWS))
    # Two counts with gaps where one entity is rare: 36 % of their gaps, and of nothing else, go together.
    assert frame["I3"].isna().corr(frame["I13"].isna()) > 0.25
    rates = frame.groupby(frame["I1"].isna())["label"].mean()
    # Standard error of the difference: 0.0028.
    assert abs(rates[True] - rates[False]) > 0.0112


def test_each_kind_of_signal_has_its_share_of_the_variance(clicks: Clicks) -> None:
    signals = clicks._world.draw(np.arange(ROWS, dtype=np.uint64)).signals
    variances = {kind: np.var(clicks._law.weights[kind] * signal) for kind, signal in signals.items()}

    found = {kind: variance / sum(variances.values()) for kind, variance in variances.items()}

    # A variance of so many rows, as on the pilot, is known to 1 % even where the tails are heavy.
    assert found == pytest.approx(
        {"counts": 0.35, "missing": 0.07, "categories": 0.33, "interactions": 0.15, "crosses": 0.10}, rel=0.04
    )


def _association(frame: pd.DataFrame, first: str, second: str) -> float:
    """Cramér's V."""
    return float(stats.contingency.association(pd.crosstab(frame[first], frame[second]).to_numpy()))


def test_columns_of_one_user_or_ad_belong_together(frame: pd.DataFrame) -> None:
    assert _association(frame, "C1", "C6") > 0.2
    # Of two who know nothing of each other V is about √(degrees of freedom / rows / 2) = 0.009.
    assert _association(frame, "C1", "C2") < 0.02
    pairs = frame[["I1", "I6"]].corr(method="spearman").to_numpy()
    assert pairs[0, 1] > 0.2


def _linear_auc(frame: pd.DataFrame, columns: list[str], train: int) -> float:
    """Test AUC of a logistic regression on these columns; the first rows are for training."""
    counts = frame[[name for name in columns if name.startswith("I")]].astype(float)
    fields = frame[[name for name in columns if name.startswith("C")]].fillna("")
    blocks = [sparse.csr_matrix(np.hstack([np.log1p(counts.fillna(0)), counts.isna()]))]
    if fields.shape[1]:
        encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5).fit(fields[:train])
        blocks.append(encoder.transform(fields))
    matrix = sparse.hstack(blocks).tocsr()
    model = LogisticRegression(C=0.05, max_iter=200).fit(matrix[:train], frame["label"][:train])
    return float(roc_auc_score(frame["label"][train:], model.decision_function(matrix[train:])))


@pytest.mark.slow(reason="fits three linear models")
def test_a_linear_model_learns_much_and_not_everything(frame: pd.DataFrame, chances: np.ndarray) -> None:
    rows, train = 16_000, 12_000
    columns = list(frame)[2:]
    best = roc_auc_score(frame["label"][train:rows], chances[train:rows])

    both, active, rest = (_linear_auc(frame[:rows], part, train) for part in (columns, columns[:6], columns[6:]))

    # The AUC on 4,000 rows has a standard error of .009; the bounds lie three of them from the figures found.
    assert best - both > 0.02
    assert both > 0.70
    assert active > 0.60
    assert rest > 0.675


def test_the_named_set_has_counts_and_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fewer(rows: int) -> Clicks:
        asked.append(rows)
        return Clicks(rows // 10)

    monkeypatch.setattr("splitvfl.data.sets.Clicks", fewer)
    data = load("clicks", active="I[1-6]", passive={"publisher": "rest"})

    assert asked == [20_000]
    assert data.active.train.count + data.active.test.count == 2_000
    assert data.active.column_names == tuple(f"I{n}" for n in range(1, 7))
    assert data["publisher"].field_names == tuple(f"C{n}" for n in range(1, 27))
    assert "id" not in data["publisher"].column_names


@pytest.mark.parametrize(("fields", "numbers"), [(0, 13), (2, 0), (3, 20)])
def test_any_number_of_columns(fields: int, numbers: int) -> None:
    table = Clicks(500, fields=fields, numbers=numbers).table()

    assert table.num_columns == 2 + fields + numbers
    assert 0.05 < np.mean(table.column("label").to_numpy()) < 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 0}, "expected rows from 1 to"),
        ({"positive_share": 0.0}, "expected positive_share from 0.001 to 0.5, got 0.0"),
        ({"positive_share": 0.7}, "expected positive_share from 0.001 to 0.5, got 0.7"),
        ({"positive_share": math.nan}, "expected positive_share"),
        ({"bayes_auc": 0.5}, "expected bayes_auc from 0.55 to 0.99, got 0.5"),
        ({"fields": -1}, "expected fields from 0 to 200, got -1"),
        ({"numbers": 201}, "expected numbers from 0 to 200, got 201"),
        ({"fields": 0, "numbers": 0}, r"expected fields \+ numbers from 1 to 400, got 0"),
        ({"fields": 1, "numbers": 0, "bayes_auc": 0.99}, "can be at most 0.97.*ask for more columns"),
    ],
)
def test_arguments_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Clicks(**{"rows": 10, **settings})


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz"])
def test_files_hold_the_rows(ending: str, few: Clicks, tmp_path: Path) -> None:
    # More than one chunk, hence more than one row group.
    made = Clicks(70_000, fields=5, numbers=3) if ending == "parquet" else few
    seen: list[int] = []

    path = tmp_path / "new" / f"c.{ending}"

    report = write_clicks(path, made, progress=seen.append)

    found, expected = read_table(path).to_pandas(), made.table().to_pandas()
    for name in expected:
        if name.startswith("C"):  # a CSV file has no missing text
            pd.testing.assert_series_equal(found[name].fillna(""), expected[name].fillna(""))
        else:
            pd.testing.assert_series_equal(found[name], expected[name], check_dtype=False)
    assert (report.records, report.positives) == (made.rows, int(expected["label"].sum()))
    assert seen[-1] == made.rows
    assert list(path.parent.iterdir()) == [path]


def test_a_file_under_zstd_holds_the_same_as_a_plain_one(few: Clicks, tmp_path: Path) -> None:
    plain, packed, zipped = files = [tmp_path / f"c.csv{end}" for end in ("", ".zst", ".gz")]
    for file in files:
        write_clicks(file, few)

    with pa.input_stream(packed, compression="zstd") as stream:
        assert stream.read() == plain.read_bytes()
    assert gzip.decompress(zipped.read_bytes()) == plain.read_bytes()
    assert re.fullmatch(r"0,[01],(\d*,){13}([0-9a-f]{8},|,){25}([0-9a-f]{8})?", plain.read_text().splitlines()[1])


def test_a_file_that_is_there_is_replaced_on_request_only(few: Clicks, tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("mine")

    with pytest.raises(DataError, match="is there already"):
        write_clicks(path, few)
    assert path.read_text() == "mine"
    assert write_clicks(path, few, overwrite=True).records == 500
    assert path.read_text() != "mine"


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz", "csv.zst"])
def test_writing_that_breaks_off_leaves_nothing_new(ending: str, few: Clicks, tmp_path: Path) -> None:
    path = tmp_path / f"c.{ending}"
    path.write_text("mine")

    def broken(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_clicks(path, few, overwrite=True, progress=broken)

    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "mine"


def test_another_ending_is_refused(few: Clicks, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"ends in one of \.parquet, \.csv, .*got 'c.xlsx'"):
        write_clicks(tmp_path / "c.xlsx", few)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_file_and_tells_its_bayes_auc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.csv"
    command = ["synth", "clicks", "--rows", "2000", "--out", str(path), "--positive-share", "0.1", "--fields", "4"]

    assert main(command) == 0

    said = capsys.readouterr().out
    assert "2,000 rows" in said
    assert "Bayes AUC: 0.8" in said or "Bayes AUC: 0.7" in said
    assert len(path.read_text().splitlines()) == 2001
    assert main(command) == 2
    assert "is there already" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--bayes-auc", "2"]) == 2
    assert "expected bayes_auc from 0.55 to 0.99, got 2" in capsys.readouterr().err
