"""What the parts of this reproduction share: four problems, how their columns are made and divided, and the model.

The label party holds labels and nothing else, not even an intercept; one passive party holds all columns. The paper
prints neither its split, its epochs, its learning rates nor its preprocessing. Ours are the fields of :class:`Problem`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from scripts.reproduce.shared.settings import Settings, data_folder
from scripts.reproduce.shared.stratified import stratified_split
from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.split import Split
from splitvfl.hooks import Attack, Defense
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.tasks import Binary
from splitvfl.messaging.messages import Message
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty

LABEL_PARTY, PASSIVE = "label-party", "passive"

Source = Literal["breast", "digits", "census", "credit"]
Scaling = Literal["standardised", "log1p, standardised", "to [0, 1]", "log1p, to [0, 1]", "as they are"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)

FILES: Mapping[Source, str] = {
    "census": "adult_census_income.parquet",
    "credit": "give_me_some_credit.parquet",
}
"""The sets that are not bundled with scikit-learn."""

CENSUS_CATEGORIES = 75
"""The commonest of the 102 categories of census, counted over all records: with six numbers they make 81 columns."""

_TEST_FRACTION = 0.2
_SPLIT_PURPOSE = "residue protection"

_Rows = npt.NDArray[np.float64]
_Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set, how it is scaled, and for how long it is trained on.

    Attributes:
        key: Short name, fit for a file; also what the paper's tables are looked up by.
        title: Name for people.
        source: Which data.
        path: File of the data; empty for a bundled set.
        scaling: Of the columns. What it subtracts and divides by is taken from the training records.
        batch_size: Records in a step.
        epochs: How often every record is released.
        rows: Only so many training and test records are used; 0: all. For quick runs.
        constant: Whether a column of ones is added, whose weight is an intercept that learns from what is sent.
    """

    key: str
    title: str
    source: Source
    path: str = ""
    scaling: Scaling = "standardised"
    batch_size: int
    epochs: int
    rows: int = 0
    constant: bool = False

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values, from which :meth:`of` makes it again."""
        return asdict(self)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Problem:
        """Return the problem of :meth:`as_settings`."""
        return cls(**{field.name: settings[field.name] for field in fields(cls)})


BREAST = Problem(key="breast", title="breast cancer", source="breast", batch_size=32, epochs=30)
DIGITS = Problem(key="digits", title="digits, odd or even", source="digits", batch_size=32, epochs=30)
CENSUS = Problem(key="census", title="census income", source="census", batch_size=256, epochs=10)
CREDIT = Problem(
    key="credit",
    title="give me some credit",
    source="credit",
    scaling="log1p, standardised",
    batch_size=256,
    epochs=10,
)


def problems(settings: Settings) -> list[Problem]:
    """Return the problems whose data are at hand; what is missing is said, and left out."""
    if settings.quick:
        return [replace(BREAST, epochs=3), replace(DIGITS, epochs=2, rows=400)]
    found = [BREAST, DIGITS]
    for problem in (CENSUS, CREDIT):
        path = data_folder() / FILES[problem.source]
        if settings.has(problem.title, path):
            found.append(replace(problem, path=str(path)))
    return found


# --- columns


class Table(NamedTuple):
    """Scaled columns and labels of one split.

    Attributes:
        train: ``(n, d)``, float32.
        labels: ``(n,)``, float32 0 and 1.
        test: ``(s, d)``, float32.
        test_labels: ``(s,)``, float32.
        names: Of the columns.
    """

    train: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    names: tuple[str, ...]

    @property
    def majority(self) -> float:
        """The share of the larger class among the test records."""
        share = float(self.test_labels.double().mean())
        return max(share, 1.0 - share)


@lru_cache(maxsize=2)
def table_of(problem: Problem, seed: int) -> Table:
    """Return the columns and labels as one seed divides them, 80 to 20 with the classes' shares kept.

    Missing values become the median of the training records.

    Args:
        problem: Which.
        seed: Of the split.
    """
    rows, labels, names = _raw(problem.source, problem.path)
    train, test = stratified_split(labels, test_fraction=_TEST_FRACTION, seed=derive_seed(seed, _SPLIT_PURPOSE) % 2**32)
    if problem.rows:
        # A split is in the order of the table, and a table may be in an order of its own.
        train, test = (_some(part, problem.rows, seed) for part in (train, test))
    scaled = _scaled(rows, train, problem.scaling)
    if problem.constant:
        scaled, names = np.hstack([scaled, np.ones((len(scaled), 1))]), (*names, "constant")
    parts = [torch.from_numpy(scaled[part].astype(np.float32)) for part in (train, test)]
    answers = [torch.from_numpy(labels[part].astype(np.float32)) for part in (train, test)]
    return Table(parts[0], answers[0], parts[1], answers[1], names)


def _some(part: npt.NDArray[np.int64], count: int, seed: int) -> npt.NDArray[np.int64]:
    chosen: npt.NDArray[np.int64] = np.sort(np.random.default_rng(seed).permutation(part)[:count])
    return chosen


@lru_cache(maxsize=2)
def _raw(source: Source, path: str) -> tuple[_Rows, _Labels, tuple[str, ...]]:
    return {"breast": _breast, "digits": _digits, "census": _census, "credit": _credit}[source](path)


def _breast(_path: str) -> tuple[_Rows, _Labels, tuple[str, ...]]:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    # scikit-learn's 1 is benign; what a screening looks for is the other class.
    return bunch.data, 1 - bunch.target, tuple(map(str, bunch.feature_names))


def _digits(_path: str) -> tuple[_Rows, _Labels, tuple[str, ...]]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.data, bunch.target % 2, tuple(map(str, bunch.feature_names))


def _census(path: str) -> tuple[_Rows, _Labels, tuple[str, ...]]:
    frame = pd.read_parquet(path)
    labels = frame.pop("label").to_numpy(np.int64)
    frame = frame.drop(columns="split")
    numbers = [name for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])]
    indicators = pd.get_dummies(frame.drop(columns=numbers), dtype=np.float64)
    # Stable: categories that are as common as one another stay in their order.
    commonest = indicators.sum().sort_values(ascending=False, kind="stable").index[:CENSUS_CATEGORIES]
    kept = [name for name in indicators.columns if name in set(commonest)]
    rows = np.hstack([frame[numbers].to_numpy(np.float64), indicators[kept].to_numpy(np.float64)])
    return rows, labels, (*numbers, *kept)


def _credit(path: str) -> tuple[_Rows, _Labels, tuple[str, ...]]:
    frame = pd.read_parquet(path)
    labels = frame.pop("SeriousDlqin2yrs").to_numpy(np.int64)
    return frame.to_numpy(np.float64), labels, tuple(map(str, frame.columns))


def _scaled(rows: _Rows, train: npt.NDArray[np.int64], scaling: Scaling) -> _Rows:
    """Return the columns scaled by what is seen in the training records."""
    known = rows[train]
    middle = np.nanmedian(known, axis=0)
    rows = np.where(np.isnan(rows), middle, rows)
    if scaling.startswith("log1p"):
        # No column that is taken so has negative values.
        rows = np.log1p(rows)
    known = rows[train]
    if scaling.endswith("standardised"):
        spread = known.std(axis=0)
        shift, width = known.mean(axis=0), spread
    elif scaling.endswith("to [0, 1]"):
        shift, width = known.min(axis=0), np.ptp(known, axis=0)
    else:
        shift, width = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
    scaled: _Rows = (rows - shift) / np.where(width > 0, width, 1.0)
    return scaled


def held_out(table: Table, seed: int) -> Table:
    """Return the training records alone, a random tenth of them to validate on in place of the test records."""
    count = len(table.train)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(derive_seed(seed, "held-out tenth") % 2**32))
    validated, trained = order[: count // 10], order[count // 10 :]
    return Table(
        table.train[trained], table.labels[trained], table.train[validated], table.labels[validated], table.names
    )


# --- the package's own training


def data_of(problem: Problem, seed: int) -> VerticalData:
    """Return the data as the package takes them: a label party without columns, and one passive party."""
    table = table_of(problem, seed)
    ids = (torch.arange(len(table.train)), torch.arange(len(table.train), len(table.train) + len(table.test)))

    def party(name: str, columns: slice, *, labelled: bool) -> PartyData:
        train, test = (
            Records(own_ids, Columns.of(rows[:, columns].clone()), answers if labelled else None)
            for own_ids, rows, answers in zip(
                ids, (table.train, table.test), (table.labels, table.test_labels), strict=True
            )
        )
        return PartyData(name, table.names[columns], table.names[columns], (), train, test)

    active = party(LABEL_PARTY, slice(0), labelled=True)
    passive = party(PASSIVE, slice(None), labelled=False)
    return VerticalData(problem.title, "binary", 2, active, {PASSIVE: passive}, problem.title)


def build_trainer(
    problem: Problem,
    seed: int,
    *,
    rate: float,
    defenses: Sequence[Defense] = (),
    attacks: Sequence[Attack] = (),
    exchange: Exchange | None = None,
    record: Callable[[Message], None] | None = None,
    **options: Any,
) -> Trainer:
    """Return the package's trainer of this problem: weights from zero, no intercept, plain gradient descent.

    Args:
        problem: The data set.
        seed: Of split and order.
        rate: The learning rate.
        defenses: Of what the label party sends.
        attacks: In the passive party's seat.
        exchange: Default: ``split``, in which residues are sent as they are.
        record: Called with every message.
        options: More of :class:`~splitvfl.app.trainer.Trainer`.
    """
    data = data_of(problem, seed)
    sgd = partial(torch.optim.SGD, lr=rate)
    return Trainer(
        ActiveParty(data.active, LinearTop(1, intercept=False), task=Binary(), optimizer=sgd),
        {PASSIVE: PassiveParty(data[PASSIVE], Linear(data[PASSIVE].width, init="zero"), optimizer=sgd)},
        defenses=tuple(defenses),
        attacks=tuple(attacks),
        batch_size=problem.batch_size,
        seed=seed,
        exchange=Split() if exchange is None else exchange,
        record=record,
        **{"evaluate_every": problem.epochs, "audit": False, "noise_seed_for_experiments": seed, **options},
    )
