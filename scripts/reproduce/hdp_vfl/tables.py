"""Tables for the other losses: counts, amounts and ages, in units and bounds that are public."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from scripts.reproduce.hdp_vfl.study import ADULT, BREAST, FILES, Problem, table_of
from scripts.reproduce.shared.settings import data_folder
from scripts.reproduce.shared.stratified import stratified_split
from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.learning.randomness import derive_seed

ACTIVE, PASSIVE = "label-party", "passive"

Target = Literal["breast", "adult", "age", "limit", "dependents", "income", "capped income", "progression", "good"]

GIVE_ME_SOME_CREDIT = "give_me_some_credit.parquet"

_TEST_FRACTION = 0.2
_PURPOSE = "hdp-vfl, other losses"
_HALF = 0.5
# Of every column what is known of it without a look at the records; after a logarithm, where there is one.
_RANGES: Mapping[str, tuple[float, float]] = {
    "RevolvingUtilizationOfUnsecuredLines": (0.0, 1.5),
    "age": (18.0, 100.0),
    "NumberOfTime30-59DaysPastDueNotWorse": (0.0, 6.0),
    "DebtRatio": (0.0, 8.0),
    "MonthlyIncome": (0.0, 12.0),
    "NumberOfOpenCreditLinesAndLoans": (0.0, 30.0),
    "NumberOfTimes90DaysLate": (0.0, 6.0),
    "NumberRealEstateLoansOrLines": (0.0, 6.0),
    "NumberOfTime60-89DaysPastDueNotWorse": (0.0, 6.0),
    "NumberOfDependents": (0.0, 6.0),
    "LIMIT_BAL": (9.0, 14.0),
    "SEX": (1.0, 2.0),
    "EDUCATION": (0.0, 6.0),
    "MARRIAGE": (0.0, 3.0),
    "AGE": (20.0, 80.0),
    **{f"PAY_{month}": (-2.0, 4.0) for month in (0, 2, 3, 4, 5, 6)},
    **{f"BILL_AMT{month}": (0.0, 13.0) for month in range(1, 7)},
    **{f"PAY_AMT{month}": (0.0, 12.0) for month in range(1, 7)},
}
_LOGARITHMS = ("DebtRatio", "MonthlyIncome", "LIMIT_BAL", "BILL_AMT", "PAY_AMT")


class Rows(NamedTuple):
    """Columns in [−1, 1] and what is predicted from them.

    Attributes:
        columns: ``(n, d)``; the label party has the first half.
        targets: ``(n,)``, in a unit in which they are about 1.
    """

    columns: npt.NDArray[np.float64]
    targets: npt.NDArray[np.float64]


def file_of(target: Target) -> Path | None:
    """Return the file that a target is in; ``None``: it is bundled with scikit-learn."""
    if target in ("breast", "progression"):
        return None
    names = {"adult": FILES["adult"], "limit": FILES["credit"]}
    return data_folder() / names.get(target, GIVE_ME_SOME_CREDIT)


@lru_cache(maxsize=2)
def data_of(target: Target, seed: int, *, validated: bool, rows: int = 0) -> VerticalData:
    """Return a table divided between two parties, and between training and test records, 80 to 20.

    Args:
        target: What is predicted.
        seed: Of the division.
        validated: Whether a fifth of the training records stands in for the test records.
        rows: Only so many records are used, at random; 0: all.
    """
    parts, labels, task = _parts(target)
    chosen = np.random.default_rng(derive_seed(seed, _PURPOSE) % 2**32).permutation(len(labels))
    chosen = chosen[:rows] if rows else chosen
    train, test = _divided(chosen, labels, seed, task)
    if validated:
        train, test = _divided(train, labels, seed, task)
    active, passive = (
        _party(name, part, labels if name == ACTIVE else None, train, test)
        for name, part in zip((ACTIVE, PASSIVE), parts, strict=True)
    )
    binary = task == "binary"
    return VerticalData(
        target, "binary" if binary else "regression", 2 if binary else 1, active, {PASSIVE: passive}, ""
    )


def _divided(
    chosen: npt.NDArray[np.int64], labels: Tensor, seed: int, task: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    train, test = stratified_split(
        labels[torch.from_numpy(chosen)].numpy(),
        test_fraction=_TEST_FRACTION,
        seed=derive_seed(seed, _PURPOSE) % 2**32,
        by_class=task == "binary",
    )
    return chosen[train], chosen[test]


def _party(
    name: str, rows: Tensor, labels: Tensor | None, train: npt.NDArray[np.int64], test: npt.NDArray[np.int64]
) -> PartyData:
    names = tuple(f"{name} {number}" for number in range(rows.shape[1]))
    halves = [torch.from_numpy(part) for part in (train, test)]
    records = [Records(ids, Columns.of(rows[ids]), None if labels is None else labels[ids]) for ids in halves]
    return PartyData(name, names, names, (), records[0], records[1])


@lru_cache(maxsize=4)
def _parts(target: Target) -> tuple[tuple[Tensor, Tensor], Tensor, str]:
    if target == "good":
        return _good()
    if target in ("adult", "breast"):
        problem = BREAST if target == "breast" else ADULT
        return _binary(problem)
    found = _numbers(target)
    half = found.columns.shape[1] // 2
    first, second = (torch.tensor(part).float() for part in (found.columns[:, :half], found.columns[:, half:]))
    return (first, second), torch.tensor(found.targets).float(), "regression"


def _good() -> tuple[tuple[Tensor, Tensor], Tensor, str]:
    frame = pd.read_parquet(data_folder() / GIVE_ME_SOME_CREDIT)
    labels = torch.tensor(frame.pop("SeriousDlqin2yrs").to_numpy(np.float32))
    rows = torch.tensor(_columns(frame)).float()
    half = rows.shape[1] // 2
    return (rows[:, :half], rows[:, half:]), labels, "binary"


def _binary(problem: Problem) -> tuple[tuple[Tensor, Tensor], Tensor, str]:
    path = file_of("adult") if problem is ADULT else None
    table = table_of(
        Problem.of({**problem.as_settings(), "path": "" if path is None else str(path), "scaling": "public ranges"}), 0
    )
    # They are divided anew for every seed.
    active, passive = (torch.cat([party.train, party.test]) for party in (table.active, table.passive))
    return (active, passive), torch.cat([table.labels, table.test_labels]), "binary"


def _numbers(target: Target) -> Rows:
    if target == "progression":
        from sklearn.datasets import load_diabetes

        bunch = load_diabetes()
        # Its columns have norm 1 over all records, and so none is larger than a fifth.
        return Rows(np.clip(5.0 * bunch.data, -1.0, 1.0), bunch.target / 150.0)
    path = file_of(target)
    assert path is not None, "all others are files"
    frame = pd.read_parquet(path)
    frame = frame.drop(columns=frame.columns.intersection(["SeriousDlqin2yrs", "default_payment_next_month"]))
    if target == "limit":
        # A tenfold limit is 1 more, and 100 000 is 0.
        return _without(frame, "LIMIT_BAL", np.log10(frame["LIMIT_BAL"]) - 5.0)
    if target == "age":
        return _without(frame, "age", (frame["age"] - 50.0) / 50.0)
    if target == "dependents":
        frame = frame[frame["NumberOfDependents"].notna()]
        return _without(frame, "NumberOfDependents", frame["NumberOfDependents"])
    frame = frame[frame["MonthlyIncome"] >= 100.0]
    return _without(frame, "MonthlyIncome", (frame["MonthlyIncome"] / 5000.0).clip(upper=5.0))


def _without(frame: pd.DataFrame, name: str, targets: pd.Series) -> Rows:
    return Rows(_columns(frame.drop(columns=name)), targets.to_numpy(np.float64))


def _columns(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    columns = [
        _ranged(np.log1p(frame[each].clip(lower=0)) if each.startswith(_LOGARITHMS) else frame[each], *_RANGES[each])
        for each in frame.columns
    ]
    return np.stack(columns, axis=1)


def _ranged(column: pd.Series, low: float, high: float) -> npt.NDArray[np.float64]:
    known = column.fillna(_HALF * (low + high)).to_numpy(np.float64)
    found: npt.NDArray[np.float64] = (2.0 * np.clip(known, low, high) - low - high) / (high - low)
    return found
