"""The data sets that have a name: bundled with scikit-learn, or in a file that the user holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from splitvfl.data.clicks import Clicks
from splitvfl.data.columns import TaskName
from splitvfl.data.encoding import Encoding
from splitvfl.data.images import LABEL, SPLIT, read_images
from splitvfl.data.labels import Positive
from splitvfl.errors import ArgumentError, DataError

DATA_FOLDER = "SPLITVFL_DATA"
TABLES = "tables"
"""Name of the data set that was ingested before, and lies on disk as numbers."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set with a name, and how it is read unless the user says otherwise.

    Attributes:
        description: One line for people.
        source: Who made it, and where it is found.
        licence: What is known of its terms.
        task: What is learned.
        labels: Names that copies of the file give the label column.
        make: Makes the table of a bundled or synthetic set.
        read: Reads the table of a file that is neither CSV nor Parquet.
        of_digits: Whether the label is a digit, one of which may be the positive class.
        files: File names looked for in the data folder; empty for a bundled set.
        positive: The positive class where the label column holds text.
        ignored: Columns that some copies have and that are no features.
        categories: Numeric columns that hold categories.
        split_column: Column that tells test rows from training rows.
        encoding: Scaling and the like.
    """

    description: str
    source: str
    licence: str
    task: TaskName = "binary"
    labels: tuple[str, ...] = ()
    make: Callable[[], pa.Table] | None = None
    read: Callable[[Path], pa.Table] | None = None
    of_digits: bool = False
    files: tuple[str, ...] = ()
    positive: Positive | None = None
    ignored: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    split_column: str | None = None
    encoding: Encoding = field(default_factory=Encoding)


@cache  # several runs of one process read the same, and a table is never changed
def _bundled(name: str, label: str) -> pa.Table:
    # Takes a second to import, which `splitvfl --help` need not wait for.
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    columns = {str(column): bunch.data[:, index] for index, column in enumerate(bunch.feature_names)}
    # scikit-learn's 1 is benign; what a screening looks for is the other class.
    target = 1 - bunch.target if label == "malignant" else bunch.target
    return pa.table({**columns, label: target})


def _clicks() -> pa.Table:
    return Clicks(20_000).table()


_WITH_SCIKIT_LEARN = "UCI, bundled with scikit-learn"
_CC_BY = "CC BY 4.0"
_CLICKS = Encoding(scale="log1p", missing="indicator", categorical="index", min_count=5)

DATA_SETS: Mapping[str, DataSet] = {
    "breast-cancer": DataSet(
        description="569 tumours, 30 measurements: is it malignant? (37 %)",
        source=f"Wolberg, Street and Mangasarian 1995; {_WITH_SCIKIT_LEARN}",
        licence=_CC_BY,
        labels=("malignant",),
        make=partial(_bundled, "breast_cancer", "malignant"),
    ),
    "digits": DataSet(
        description="1,797 handwritten digits, 64 pixels: is it an 8 (`digit`)? or which is it (`digit: null`)?",
        source=f"Alpaydin and Kaynak 1998; {_WITH_SCIKIT_LEARN}",
        licence=_CC_BY,
        labels=("digit",),
        make=partial(_bundled, "digits", "digit"),
        of_digits=True,
        encoding=Encoding(scale="minmax"),
    ),
    "mnist": DataSet(
        description="70,000 handwritten digits, 784 pixels: is it an 8 (`digit`)? or which is it (`digit: null`)? "
        "(official split)",
        source="LeCun, Cortes and Burges 1998: the four idx files in a folder, or mnist.npz with x_train to y_test",
        licence="usually given as CC BY-SA 3.0",
        labels=(LABEL,),
        files=("mnist.npz", "train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"),
        read=read_images,
        of_digits=True,
        split_column=SPLIT,
        encoding=Encoding(scale="minmax"),
    ),
    "diabetes": DataSet(
        description="442 patients, 10 measurements: how far has the disease progressed? (25 to 346)",
        source="Efron, Hastie, Johnstone and Tibshirani 2004; bundled with scikit-learn",
        licence="published with the paper; no explicit licence known",
        task="regression",
        labels=("progression",),
        make=partial(_bundled, "diabetes", "progression"),
    ),
    "wine": DataSet(
        description="178 wines, 13 measurements: which of three cultivars?",
        source=f"Aeberhard and Forina 1991; {_WITH_SCIKIT_LEARN}",
        licence=_CC_BY,
        task="multiclass",
        labels=("cultivar",),
        make=partial(_bundled, "wine", "cultivar"),
    ),
    "credit-default": DataSet(
        description="30,000 credit card holders in Taiwan, 23 columns: default next month? (22 %)",
        source="Yeh and Lien 2009; UCI 350, 'default of credit card clients'",
        licence=_CC_BY,
        labels=("default_payment_next_month", "default.payment.next.month", "default payment next month"),
        files=("credit_default_taiwan.parquet", "UCI_Credit_Card.csv"),
        ignored=("ID",),
        categories=("SEX", "EDUCATION", "MARRIAGE"),
    ),
    "give-me-some-credit": DataSet(
        description="150,000 borrowers, 10 columns: seriously late within two years? (6.7 %)",
        source="Kaggle competition 'Give Me Some Credit' 2011, cs-training.csv",
        licence="competition rules; no open licence known, do not redistribute",
        labels=("SeriousDlqin2yrs",),
        files=("give_me_some_credit.parquet", "cs-training.csv"),
        ignored=("", "Unnamed: 0"),
        encoding=Encoding(scale="log1p", missing="indicator"),
    ),
    "criteo": DataSet(
        description="A sample of display advertising, 13 counts and up to 26 categories: was it clicked? (26 %)",
        source="Criteo Labs / Kaggle Display Advertising Challenge 2014, with columns label, I1-I13, C1-C26",
        licence="Criteo's terms: non-commercial use, no redistribution, cite Criteo",
        labels=("label",),
        files=("criteo.parquet", "criteo_random_46k_20cols.parquet", "criteo_head_10k.parquet"),
        ignored=("Id",),
        encoding=_CLICKS,
    ),
    "clicks": DataSet(
        description="20,000 synthetic clicks, 13 counts and 26 categories: was it clicked? (25 %; Bayes AUC .80)",
        source="made by splitvfl.data.clicks, in the form of Criteo's",
        licence="none needed",
        labels=("label",),
        make=_clicks,
        ignored=("id",),
        encoding=_CLICKS,
    ),
    "bank-marketing": DataSet(
        description="41,188 calls by a Portuguese bank, 20 columns: did the client subscribe? (11 %)",
        source="Moro, Cortez and Rita 2014; UCI 222, bank-additional-full.csv",
        licence=_CC_BY,
        labels=("y",),
        files=("bank_marketing_additional_full.parquet", "bank-additional-full.csv"),
        positive="yes",
    ),
    "adult": DataSet(
        description="48,842 people in the US census of 1994, 14 columns: income above 50,000? (24 %; official split)",
        source="Becker and Kohavi 1996; UCI 2",
        licence=_CC_BY,
        labels=("label",),
        files=("adult_census_income.parquet",),
        split_column="split",
    ),
    "robot": DataSet(
        description="5,456 readings of a robot's 24 ultrasound sensors: which of four moves?",
        source="Freire, Veloso and Barreto 2010; UCI 194, Wall-Following Robot Navigation",
        licence=_CC_BY,
        task="multiclass",
        labels=("Class",),
        files=("wall_following_robot_24.parquet",),
    ),
    "satellite": DataSet(
        description="6,435 satellite pixels with their neighbours, 36 columns: which of six soils? (official split)",
        source="Statlog (Landsat Satellite), UCI 146",
        licence=_CC_BY,
        task="multiclass",
        labels=("label",),
        files=("statlog_landsat_satellite.parquet",),
        split_column="split",
    ),
    "table": DataSet(
        description="Any CSV or Parquet file: give its `path` and the name of its `label` column",
        source="yours",
        licence="yours",
    ),
    TABLES: DataSet(
        description="A folder that `splitvfl ingest` wrote, of any size: give its `path`",
        source="yours",
        licence="yours",
    ),
}


def file_of(name: str, path: str | os.PathLike[str] | None) -> Path | None:
    """Return the file of a named set; ``None`` for one that is made.

    It is looked for at ``path``, or under its known names in the folder that ``SPLITVFL_DATA`` names.

    Raises:
        ArgumentError: If ``path`` is given for a bundled set, or missing for ``"table"``.
        DataError: If no known file is found.
    """
    data_set = DATA_SETS[name]
    if data_set.make is not None:
        if path is not None:
            raise ArgumentError(f"{name} is bundled and takes no path, got {os.fspath(path)!r}; use 'table' for a file")
        return None
    if path is None and not data_set.files:
        raise ArgumentError(f"data set {name!r} needs the path of a CSV or Parquet file")
    return _known_file(name, data_set.files) if path is None else Path(path)


def _known_file(name: str, files: tuple[str, ...]) -> Path:
    folder = os.environ.get(DATA_FOLDER)
    names = " or ".join(files)
    if not folder:
        raise DataError(
            f"{name} is not bundled; give its path, or name the folder that holds {names} in the environment "
            f"variable {DATA_FOLDER}"
        )
    for file in files:
        if (Path(folder) / file).is_file():
            return Path(folder) / file
    raise DataError(
        f"{name} is not bundled; expected {names} in {folder} ({DATA_FOLDER}), and there is none; or give its path"
    )


def digit_labels(column: pa.Array, digit: int | None) -> pa.Array:
    """Return 1 where the digit is the asked one and 0 elsewhere; the digits themselves when ``digit`` is ``None``.

    Raises:
        ArgumentError: If it is no digit.
    """
    if digit is None:
        return column
    if digit not in range(10):
        raise ArgumentError(f"expected a digit from 0 to 9, or none for all ten classes, got {digit!r}")
    return pa.array((column.to_numpy() == digit).astype(np.int64))
