"""What the parts of this reproduction share: three problems, how their columns are made, and which party has which.

The paper prints neither which columns are whose, nor how they are encoded, nor learning rates. Here the label party has
the first columns of each table, categories are indicators, and a row that is longer than 1 is scaled down to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from scripts.reproduce.hdp_vfl import published
from scripts.reproduce.shared.settings import Settings, data_folder
from scripts.reproduce.shared.stratified import stratified_split
from splitvfl.learning.randomness import derive_seed

Source = Literal["breast", "credit", "adult"]
Scaling = Literal["statistics", "public ranges"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)

ACTIVE_COLUMNS: Mapping[Source, int] = {"breast": 10, "credit": 13, "adult": 6}
"""How many first columns of its table the label party has; the passive party has the others."""

FILES: Mapping[Source, str] = {
    "credit": "credit_default_taiwan.parquet",
    "adult": "adult_census_income.parquet",
}
"""The sets that are not bundled with scikit-learn."""

_TEST_FRACTION = 0.2
_SPLIT_PURPOSE = "hdp-vfl"

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set, how it is scaled, and for how long it is trained on.

    Attributes:
        key: Short name, fit for a file.
        title: Name for people.
        source: Which data.
        path: File of the data; empty for a bundled set.
        scaling: Of the columns: by mean and deviation of the training records, or by bounds that are public.
        intercept: Whether the label party has a column of ones besides.
        batch_size: Records in a step, at most; no more than there are.
        epochs: How often every record is used.
        rows: Only so many training and test records are used; 0: all. For quick runs.
    """

    key: str
    title: str
    source: Source
    path: str = ""
    scaling: Scaling = "statistics"
    intercept: bool = True
    batch_size: int = published.BATCH_SIZE
    epochs: int = published.EPOCHS
    rows: int = 0

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values, from which :meth:`of` makes it again."""
        return asdict(self)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Problem:
        """Return the problem of :meth:`as_settings`."""
        return cls(**{field.name: settings[field.name] for field in fields(cls)})

    @property
    def variant(self) -> str:
        """Scaling and intercept in words."""
        return f"{self.scaling}, {'with' if self.intercept else 'without'} intercept"

    def variants(self) -> list[Problem]:
        """Return it with either scaling, with and without an intercept."""
        return [replace(self, scaling=scaling, intercept=own) for scaling in SCALINGS for own in (True, False)]


BREAST = Problem(key="breast", title="breast cancer", source="breast")
CREDIT = Problem(key="credit", title="credit default", source="credit")
ADULT = Problem(key="adult", title="adult", source="adult")


def problems(settings: Settings) -> list[Problem]:
    """Return the problems whose data are at hand; what is missing is said, and left out."""
    if settings.quick:
        return [BREAST]
    found = [BREAST]
    for problem in (CREDIT, ADULT):
        path = data_folder() / FILES[problem.source]
        if settings.has(problem.title, path):
            found.append(replace(problem, path=str(path)))
    return found


# --- columns


class Party(NamedTuple):
    """One party's columns of training and test records, ``(n, d)`` and ``(s, d)``, float32, rows of norm at most 1."""

    train: Tensor
    test: Tensor


class Table(NamedTuple):
    """One division of a problem's records.

    Attributes:
        active: The label party's columns; a column of ones is not among them.
        passive: The passive party's columns.
        pooled: Both parties' columns, scaled alike, rows of any norm.
        labels: Of training records, ``(n,)``, float32 0 and 1.
        test_labels: ``(s,)``, float32.
    """

    active: Party
    passive: Party
    pooled: Party
    labels: Tensor
    test_labels: Tensor

    @property
    def majority(self) -> float:
        """The accuracy of answering the training records' commoner class for every test record."""
        positive = float(self.test_labels.double().mean())
        return positive if float(self.labels.double().mean()) > 0.5 else 1.0 - positive


@lru_cache(maxsize=2)
def table_of(problem: Problem, seed: int) -> Table:
    """Return the columns and labels as one seed divides them, 80 to 20 with the classes' shares kept.

    Args:
        problem: Which.
        seed: Of the split.
    """
    raw = _raw(problem.source, problem.path)
    train, test = stratified_split(
        raw.labels, test_fraction=_TEST_FRACTION, seed=derive_seed(seed, _SPLIT_PURPOSE) % 2**32
    )
    if problem.rows:
        # A split is in the order of the table, and a table may be in an order of its own.
        train, test = (_some(part, problem.rows, seed) for part in (train, test))
    scaled = _scaled(raw, train, problem.scaling)
    active, passive = (
        Party(*(torch.from_numpy(rows_within(scaled[part][:, of]).astype(np.float32)) for part in (train, test)))
        for of in (slice(raw.active), slice(raw.active, None))
    )
    pooled = Party(*(torch.from_numpy(scaled[part].astype(np.float32)) for part in (train, test)))
    answers = [torch.from_numpy(raw.labels[part].astype(np.float32)) for part in (train, test)]
    return Table(active, passive, pooled, answers[0], answers[1])


def rows_within(rows: Floats, norm: float = 1.0) -> Floats:
    """Return rows ``(n, d)``, those longer than ``norm`` scaled down to it."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Floats = rows * np.minimum(1.0, norm / np.maximum(norms, norm))
    return found


def _some(part: npt.NDArray[np.int64], count: int, seed: int) -> npt.NDArray[np.int64]:
    chosen: npt.NDArray[np.int64] = np.sort(np.random.default_rng(seed).permutation(part)[:count])
    return chosen


class _Raw(NamedTuple):
    """A data set as numbers.

    Attributes:
        rows: ``(n, d)``, indicators of categories among them.
        labels: ``(n,)``.
        bounds: Lower and upper public bound of each column, ``(d, 2)``.
        active: How many first columns are the label party's.
        columns: How many columns each party has in the table that they were made from.
    """

    rows: Floats
    labels: Labels
    bounds: Floats
    active: int
    columns: tuple[int, int]


def sizes_of(problem: Problem) -> tuple[int, int, int]:
    """Return how many records there are, and how many columns the label party's and the passive party's table has."""
    raw = _raw(problem.source, problem.path)
    return len(raw.rows), *raw.columns


def widths_of(problem: Problem) -> tuple[int, int]:
    """Return how many numbers a row of the label party and one of the passive party has; a column of ones apart."""
    raw = _raw(problem.source, problem.path)
    return raw.active, raw.rows.shape[1] - raw.active


@lru_cache(maxsize=2)
def _raw(source: Source, path: str) -> _Raw:
    if source == "breast":
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer(as_frame=True)
        # scikit-learn's 1 is benign; what a screening looks for is the other class.
        frame, labels = bunch.data, 1 - bunch.target.to_numpy(np.int64)
    else:
        frame = pd.read_parquet(path)
        if "split" in frame:
            frame = frame[frame.pop("split") == "train"]
        labels = frame.pop("default_payment_next_month" if source == "credit" else "label").to_numpy(np.int64)
    return _numbers(frame, labels, ACTIVE_COLUMNS[source], _BOUNDS[source])


def _numbers(frame: pd.DataFrame, labels: Labels, own: int, bounds: Mapping[str, tuple[float, float]]) -> _Raw:
    parts = [_indicators(frame[name]) if name not in bounds else frame[[name]] for name in frame.columns]
    limits = [
        [bounds[name]] if name in bounds else [_KEPT] * part.shape[1]
        for name, part in zip(frame.columns, parts, strict=True)
    ]
    return _Raw(
        rows=np.hstack([part.to_numpy(np.float64) for part in parts]),
        labels=labels,
        bounds=np.array([pair for each in limits for pair in each]),
        active=sum(part.shape[1] for part in parts[:own]),
        columns=(own, len(frame.columns) - own),
    )


def _indicators(column: pd.Series) -> pd.DataFrame:
    """Return a column of zeros and ones for each category; which there are, a code book says."""
    return pd.get_dummies(column, dtype=np.float64)


def _scaled(raw: _Raw, train: npt.NDArray[np.int64], scaling: Scaling) -> Floats:
    if scaling == "public ranges":
        low, high = raw.bounds.T
        ranged: Floats = (2.0 * np.clip(raw.rows, low, high) - low - high) / (high - low)
        return ranged
    known = raw.rows[train]
    spread = known.std(axis=0)
    standardised: Floats = (raw.rows - known.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return standardised


# --- public bounds

_KEPT = (-1.0, 1.0)
"""The range under which a number stays what it is: an indicator 0 or 1, of which most are 0 and make no row longer."""

_Bounds = Mapping[str, tuple[float, float]]


def _of_breast() -> _Bounds:
    means = {
        "radius": (5.0, 25.0),
        "texture": (10.0, 30.0),
        "perimeter": (30.0, 160.0),
        "area": (0.0, 1500.0),
        "smoothness": (0.05, 0.15),
        "compactness": (0.0, 0.25),
        "concavity": (0.0, 0.25),
        "concave points": (0.0, 0.1),
        "symmetry": (0.1, 0.3),
        "fractal dimension": (0.05, 0.08),
    }
    found = {f"mean {name}": bounds for name, bounds in means.items()}
    # An error is a fraction of what it is an error of, and the worst cell is somewhat beyond the mean.
    found |= {f"{name} error": (0.0, 0.05 * high) for name, (_, high) in means.items()}
    found |= {f"worst {name}": (low, 1.5 * high) for name, (low, high) in means.items()}
    return found


def _of_credit() -> _Bounds:
    months = range(1, 7)
    found: dict[str, tuple[float, float]] = {
        "LIMIT_BAL": (0.0, 400_000.0),
        "SEX": (1.0, 2.0),
        "EDUCATION": (0.0, 4.0),
        "MARRIAGE": (0.0, 3.0),
        "AGE": (20.0, 60.0),
    }
    # Months that a payment is late; two are one rate missed for good.
    found |= {f"PAY_{month}": (-2.0, 2.0) for month in (0, 2, 3, 4, 5, 6)}
    found |= {f"BILL_AMT{month}": (0.0, 200_000.0) for month in months}
    return found | {f"PAY_AMT{month}": (0.0, 20_000.0) for month in months}


_BOUNDS: Mapping[Source, _Bounds] = {
    "breast": _of_breast(),
    "credit": _of_credit(),
    "adult": {
        "age": (17.0, 70.0),
        "fnlwgt": (0.0, 400_000.0),
        "education_num": (4.0, 16.0),
        "capital_gain": (0.0, 10_000.0),
        "capital_loss": (0.0, 2_000.0),
        "hours_per_week": (20.0, 60.0),
    },
}
"""Round numbers of what is usual: what is beyond them is taken for them. Columns without any are categories.

They were set by a person who knows these public data sets, as whoever keeps such a table knows what is usual in it; no
record at hand enters them.
"""
