"""What the parts of this reproduction share: data sets, how they are scaled and divided, the model and its trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scripts.reproduce.shared.settings import Settings, data_folder
from scripts.reproduce.shared.stratified import stratified_split
from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.data.load import load
from splitvfl.exchange.oracle import Oracle
from splitvfl.hooks import Attack
from splitvfl.learning.losses import Approximation
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.learning.tasks import Binary
from splitvfl.messaging.messages import Message
from splitvfl.models import Linear, LinearTop, logistic_loss
from splitvfl.party.party import ActiveParty, PassiveParty

PASSIVE = "passive"
RATES = (0.001, 0.003, 0.01)
"""Among which the paper chose."""

RATE = 0.01

Init = Literal["zero", "Xavier", "Kaiming", "N(0, 1)"]
INITS: tuple[Init, ...] = get_args(Init)

Scaling = Literal["rows / largest norm", "pixels / 255", "standardised"]

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set as it is scaled, with or without an intercept, and for how long it is trained on.

    Attributes:
        key: Short name, fit for a file.
        title: Name for people.
        source: ``"mnist"``, ``"credit"``, or what stands in for them: ``"digits"`` and ``"breast-cancer"``.
        path: File of the first two.
        scaling: Of the columns.
        intercept: Whether the label party trains one.
        batch_size: Records in a step.
        epochs: The paper's: 30 and 10.
        stacked: Batch sizes, and epochs at each, at which the equations of all epochs are stacked.
    """

    key: str
    title: str = ""
    source: str
    path: str = ""
    scaling: Scaling
    intercept: bool
    batch_size: int = 256
    epochs: int = 30
    stacked: tuple[tuple[int, int], ...] = ()

    @property
    def images(self) -> bool:
        """Whether it is a set of images, and no table."""
        return self.source in ("mnist", "digits")

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values."""
        return {
            name: getattr(self, name)
            for name in ("key", "source", "path", "scaling", "intercept", "batch_size", "epochs")
        }


def has_short_rows(problem: Problem) -> bool:
    """Return whether no row has a norm above 1, as the paper presupposes."""
    return problem.scaling == "rows / largest norm"


def problems(settings: Settings) -> list[Problem]:
    """Return the data sets that are at hand; what is missing is said, and left out."""
    if settings.quick:
        return _quick_problems()
    found = []
    for name, group in (("mnist.npz", _MNIST), ("credit_default_taiwan.parquet", _CREDIT)):
        path = data_folder() / name
        if settings.has(group[0].title, path):
            found += [replace(problem, path=str(path)) for problem in group]
    return found


def _mnist(key: str, scaling: Scaling) -> Problem:
    return Problem(key=key, title=f"MNIST 0/1, {scaling}", source="mnist", scaling=scaling, intercept=False)


_MNIST = (
    _mnist("mnist-norm", "rows / largest norm"),
    _mnist("mnist-pixels", "pixels / 255"),
    _mnist("mnist-standard", "standardised"),
)
_CREDIT = (
    Problem(
        key="credit",
        title="credit default",
        source="credit",
        scaling="standardised",
        intercept=True,
        stacked=((256, 30), (64, 12)),
    ),
    Problem(
        key="credit-no-intercept",
        title="credit default, no intercept",
        source="credit",
        scaling="standardised",
        intercept=False,
    ),
)


def _quick_problems() -> list[Problem]:
    return [
        Problem(
            key="digits",
            title="digits 0/1, rows / largest norm",
            source="digits",
            scaling="rows / largest norm",
            intercept=False,
            batch_size=16,
            epochs=3,
        ),
        Problem(
            key="breast-cancer",
            title="breast cancer",
            source="breast-cancer",
            scaling="standardised",
            intercept=True,
            batch_size=64,
            epochs=3,
            stacked=((32, 6),),
        ),
    ]


# --- data


def data_of(problem: Problem, seed: int) -> VerticalData:
    """Return the data, the first half of the columns at the label party, the second at the passive one.

    MNIST has its own test images; of others a tenth (of the stand-ins a fifth) is drawn with the seed.
    """
    own_split = problem.source == "mnist"
    return _data(problem.source, problem.path, problem.scaling, 0 if own_split else seed)


@lru_cache(maxsize=2)
def _data(source: str, path: str, scaling: Scaling, seed: int) -> VerticalData:
    if source in ("mnist", "digits"):
        return _of_images(*(_mnist_images(path) if source == "mnist" else _digit_images(seed)), scaling=scaling)
    if source == "credit":
        # SEX, EDUCATION and MARRIAGE as the numbers that they are coded as: 23 columns, as in the paper.
        given: dict[str, Any] = {"name": "credit-default", "path": path, "categorical_columns": []}
    else:
        given = {"name": source}
    fraction = 0.1 if source == "credit" else 0.2
    return load(**given, active=0.5, passive={PASSIVE: "rest"}, test_fraction=fraction, split_seed=seed)


def _mnist_images(path: str) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    parts = []
    for part in ("train", "test"):
        images, digits = arrays[f"x_{part}"], arrays[f"y_{part}"]
        kept = digits <= 1
        parts += [images[kept].reshape(kept.sum(), -1) / np.float32(255), digits[kept].astype(np.float32)]
    return parts[0], parts[1], parts[2], parts[3]


def _digit_images(seed: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    from sklearn.datasets import load_digits

    images, digits = load_digits(n_class=2, return_X_y=True)
    images, labels = (images / 16).astype(np.float32), digits.astype(np.float32)
    train, test = stratified_split(labels, test_fraction=0.2, seed=seed)
    return images[train], labels[train], images[test], labels[test]


def _of_images(train: Matrix, labels: Matrix, test: Matrix, test_labels: Matrix, *, scaling: Scaling) -> VerticalData:
    shift, scale = _scale_of(train, scaling)
    half = train.shape[1] // 2
    names = tuple(f"pixel {number}" for number in range(train.shape[1]))
    ids = (torch.arange(len(train)), torch.arange(len(train), len(train) + len(test)))

    def party(name: str, columns: slice, *, labelled: bool) -> PartyData:
        parts = [
            Records(
                own_ids,
                Columns.of(torch.from_numpy(((part - shift) / scale)[:, columns].copy())),
                torch.from_numpy(answers) if labelled else None,
            )
            for own_ids, part, answers in zip(ids, (train, test), (labels, test_labels), strict=True)
        ]
        return PartyData(name, names[columns], names[columns], (), parts[0], parts[1])

    active, passive = party("active", slice(half), labelled=True), party(PASSIVE, slice(half, None), labelled=False)
    return VerticalData("digits 0 and 1", "binary", 2, active, {PASSIVE: passive}, "images of 0 (-1) and 1 (+1)")


def _scale_of(images: Matrix, scaling: Scaling) -> tuple[Matrix, Matrix]:
    """Return what is subtracted from every row, and what it is divided by."""
    width = images.shape[1]
    if scaling == "standardised":
        spread = images.std(axis=0)
        return images.mean(axis=0), np.where(spread > 0, spread, np.float32(1))
    largest = np.linalg.norm(images.astype(np.float64), axis=1).max() if scaling == "rows / largest norm" else 1.0
    return np.zeros(width, np.float32), np.full(width, largest, np.float32)


def joined(data: VerticalData, part: Literal["train", "test"], *, intercept: bool) -> tuple[Tensor, Tensor, int]:
    """Return all columns side by side, the label party's and its constant first, and labels.

    Returns:
        Rows ``(n, d)``, float32; labels ``(n,)`` in −1 and +1, float32; how many columns are the label party's.
    """
    own, other = getattr(data.active, part), getattr(data[PASSIVE], part)
    columns = own.columns.numeric
    parts = [columns, torch.ones_like(columns[:, :1])] if intercept else [columns]
    rows = torch.cat([*parts, other.columns.numeric], dim=1)
    return rows, 2 * own.labels - 1, rows.shape[1] - other.columns.numeric.shape[1]


def validation_split(data: VerticalData, seed: int) -> VerticalData:
    """Return the training records alone, a random tenth of them to validate on in place of the test records."""
    count = data.active.train.count
    order = torch.randperm(count, generator=torch.Generator().manual_seed(derive_seed(seed, "validation")))
    validated, trained = order[: count // 10], order[count // 10 :]

    def divided(party: PartyData) -> PartyData:
        return replace(party, train=party.train.rows(trained), test=party.train.rows(validated))

    passives = {name: divided(party) for name, party in data.passives.items()}
    return replace(data, active=divided(data.active), passives=passives)


# --- model


def deviation(init: Init, width: int) -> float:
    """Return the standard deviation of a linear layer's first weights, of so many columns and one output."""
    return {"zero": 0.0, "Xavier": math.sqrt(2 / (width + 1)), "Kaiming": math.sqrt(2 / width), "N(0, 1)": 1.0}[init]


def first_weights(data: VerticalData, init: Init, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weights that the label party and the passive party begin with, ``(1, d)`` each."""
    found = []
    for party in (data.active, data[PASSIVE]):
        with PartyRandom(derive_seed(seed, "initialisation", party.name)):
            found.append(torch.randn(1, party.width) * deviation(init, party.width))
    return found[0], found[1]


def build_trainer(
    problem: Problem,
    seed: int,
    *,
    init: Init = "zero",
    approximation: Approximation = "taylor",
    attacks: Iterable[Attack] = (),
    record: Callable[[Message], None] | None = None,
) -> Trainer:
    """Return the trainer of logistic regression by the gradient oracle.

    Args:
        problem: The data set.
        seed: Of split, initialisation and order.
        init: How the first weights are drawn.
        approximation: Of the sigmoid.
        attacks: In the passive party's seat.
        record: Called with every message.
    """
    data = data_of(problem, seed)
    bottom = Linear(data[PASSIVE].width)
    top = LinearTop(1, active_inputs=data.active.width)
    assert top.own is not None
    with torch.no_grad():
        for layer, weight in zip((top.own, bottom), first_weights(data, init, seed), strict=True):
            layer.weight.copy_(weight)
    top.intercept.requires_grad_(problem.intercept)
    sgd = partial(torch.optim.SGD, lr=RATE)
    return Trainer(
        ActiveParty(data.active, top, task=Binary(logistic_loss(approximation)), optimizer=sgd),
        {PASSIVE: PassiveParty(data[PASSIVE], bottom, optimizer=sgd)},
        attacks=tuple(attacks),
        batch_size=problem.batch_size,
        seed=seed,
        exchange=Oracle(approximation=approximation),
        evaluate_every=problem.epochs,
        audit=False,
        record=record,
    )


def joint_weights(trainer: Trainer, *, intercept: bool) -> Tensor:
    """Return all weights in the order of :func:`joined`, ``(d,)``."""
    top = trainer.active.top
    assert isinstance(top, LinearTop)
    assert isinstance(top.own, nn.Linear)
    parts = [
        top.own.weight[0],
        *([top.intercept] if intercept else []),
        next(trainer.passives[PASSIVE].bottom.parameters())[0],
    ]
    return torch.cat([part.detach().clone() for part in parts])


# --- figures


def short(value: float) -> str:
    """Return a setting without the zero before its point: ``.1``."""
    return f"{value:g}".removeprefix("0")


def majority(data: VerticalData, part: Literal["train", "test"] = "train") -> float:
    """Return the share of the larger class."""
    labels = getattr(data.active, part).labels
    share = float(labels.double().mean())
    return max(share, 1 - share)


def describe(problem: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return counts, widths, norms and the ranks of the passive party's batches, of one data set.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of split and order.
    """
    given = Problem(**problem)
    data = data_of(given, seed)
    rows, _, active = joined(data, "train", intercept=given.intercept)
    norms = rows.double().norm(dim=1)
    other = data[PASSIVE].train.columns.numeric
    trainer = build_trainer(given, seed)
    ranks = [
        int(torch.linalg.matrix_rank(other[batch].double(), rtol=_rank_tolerance(other, batch)))
        for batch in trainer.batches.epoch(0)[:10]
    ]
    return {
        "records": data.active.train.count,
        "test": data.active.test.count,
        "majority": majority(data),
        "majority_test": majority(data, "test"),
        "active": active,
        "passive": other.shape[1],
        "constant": int((other == other[0]).all(dim=0).sum()),
        "radius": float(norms.max()),
        "typical": float(norms.median()),
        "rank": [min(ranks), max(ranks)],
        "smoothness": float(torch.linalg.eigvalsh(rows.double().T @ rows.double() / len(rows)).max()) / 4,
    }


def _rank_tolerance(columns: Tensor, batch: Tensor) -> float:
    # What the attack takes: entries are float32.
    return max(len(batch), columns.shape[1]) * torch.finfo(columns.dtype).eps
