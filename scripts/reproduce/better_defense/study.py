"""What is trained and measured: the arrangements, and the pieces of work whose results are kept.

Nothing here knows which defenses there are, at which strengths, or how a page is made of the results, so that a change
of those leaves the results as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.reproduce.label_leakage.study import PASSIVE, Problem, held_out
from scripts.reproduce.label_leakage.study import data_of as both_on_all_columns
from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.data.load import load
from splitvfl.defenses.abstaining_response import AbstainingResponse
from splitvfl.defenses.asymmetric_response import AsymmetricResponse
from splitvfl.defenses.axis_gaussian import AxisGaussian
from splitvfl.defenses.axis_sumkl import AxisSumKL
from splitvfl.defenses.gaussian_targets import GaussianTargets
from splitvfl.defenses.isotropic import Isotropic
from splitvfl.defenses.max_norm import MaxNorm
from splitvfl.defenses.memoised_response import MemoisedResponse
from splitvfl.defenses.record_gaussian import RecordGaussian
from splitvfl.defenses.sumkl import SumKL
from splitvfl.exchange.one_way import OneWay
from splitvfl.exchange.split import Split
from splitvfl.leakage.message_audit import MessageAudit
from splitvfl.learning.optimizers import fused_adam
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.metrics import leak_auc
from splitvfl.models.mlp import MLP
from splitvfl.models.pca import PCA
from splitvfl.models.wide_deep import WideDeepBottom, WideDeepTop
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.training import Status

EMBEDDING_DIM = 4
"""Numbers that stand for one category."""

LEAST_CANARIES, SHARE_OF_CANARIES, MOST_SHARE = 400, 0.02, 0.1
"""How many training records get a coin for a label: so many, or this share if more; at most the last share."""

RANDOM_WIDTHS = (256, 128)
COMPONENTS, HIDDEN = 16, (64,)
"""Where nothing comes back: random layers, or at most so many principal components; the label party's hidden layer."""

KINDS: Mapping[str, Any] = {
    "abstaining-response": AbstainingResponse,
    "asymmetric-response": AsymmetricResponse,
    "axis-gaussian": AxisGaussian,
    "axis-sumkl": AxisSumKL,
    "gaussian-targets": GaussianTargets,
    "isotropic": Isotropic,
    "max-norm": MaxNorm,
    "memoised-response": MemoisedResponse,
    "record-gaussian": RecordGaussian,
    "sumkl": SumKL,
}
"""Defenses by the names that they have in experiment files."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set, divided between two parties, and the model over both.

    Attributes:
        key: Short name, fit for a file.
        title: Name for people.
        arguments: Of :func:`splitvfl.data.load.load`; of images ``path`` alone.
        kind: ``"wide-deep"``: both parties hold all columns, as in the paper; ``"mlp"``: the label party holds the
            columns of ``own``, the partner the rest; ``"images"``: MNIST, odd or even, the upper rows of the image at
            the label party.
        own: Columns of the label party.
        widths: Layers at the partner; behind them stands one linear layer, beside the label party's columns.
        batch_size: Records in a step.
    """

    key: str
    title: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "wide-deep"
    own: tuple[str, ...] = ()
    widths: tuple[int, ...] = (128, 128, 128, 128)
    batch_size: int = 512

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values."""
        found = asdict(self)
        del found["title"]
        return found | {"own": list(self.own), "widths": list(self.widths)}


IMAGES, UPPER_ROWS = 20_000, 9
"""So many of MNIST's training images are trained on, and so many of the 28 rows are the label party's."""


@lru_cache(maxsize=2)
def _data(text: str, seed: int, validation: bool) -> VerticalData:
    setting = Setting(**json.loads(text))
    if setting.kind == "images":
        data = _images(setting.arguments["path"], seed)
    elif setting.kind == "wide-deep":
        data = both_on_all_columns(Problem(key=setting.key, arguments=setting.arguments), seed)
    else:
        data = load(
            **setting.arguments,
            active=list(setting.own),
            passive={PASSIVE: "rest"},
            split_seed=seed,
            test_fraction=0.1,
        )
    return held_out(data, seed) if validation else data


def data_of(setting: Mapping[str, Any], seed: int, *, validation: bool) -> VerticalData:
    """Return the data as they are divided: a random tenth to test on (of MNIST its own test images).

    Args:
        setting: What :meth:`Setting.as_settings` returned.
        seed: Of the division; of MNIST it decides which images are trained on.
        validation: Whether the test records are left out, and a tenth of the training records stand in their place.
    """
    return _data(json.dumps(dict(setting), sort_keys=True), seed, validation)


def _images(path: str, seed: int) -> VerticalData:
    with np.load(path) as file:
        arrays = {name: file[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    chosen = np.random.default_rng(seed).permutation(len(arrays["x_train"]))[:IMAGES]
    parts = {
        "train": (arrays["x_train"][chosen], arrays["y_train"][chosen]),
        "test": (arrays["x_test"], arrays["y_test"]),
    }
    cut = UPPER_ROWS * arrays["x_train"].shape[2]
    names = tuple(f"pixel {number}" for number in range(arrays["x_train"][0].size))
    held = {
        name: PartyData(name, names[columns], names[columns], (), *_records(parts, columns, labelled=name == "active"))
        for name, columns in (("active", slice(cut)), (PASSIVE, slice(cut, None)))
    }
    return VerticalData("MNIST", "binary", 2, held.pop("active"), held, "images of digits: 1 if odd")


def _records(
    parts: Mapping[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]], columns: slice, *, labelled: bool
) -> tuple[Records, Records]:
    first = 0
    found = []
    for images, digits in parts.values():
        rows = torch.from_numpy(images.reshape(len(images), -1)[:, columns] / np.float32(255))
        labels = torch.from_numpy((digits % 2).astype(np.float32)) if labelled else None
        found.append(Records(torch.arange(first, first + len(images)), Columns.of(rows), labels))
        first += len(images)
    return found[0], found[1]


def describe(setting: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return how many records there are, how many of those to train on are positives, and who has how many columns."""
    data = data_of(setting, seed, validation=False)
    train = data.active.train
    assert train.labels is not None
    return {
        "records": train.count,
        "test": data.active.test.count,
        "positives": int(train.labels.sum().item()),
        "own": len(data.active.column_names),
        "partner": len(data[PASSIVE].column_names),
        "canaries": canaries_among(train.count),
    }


def canaries_among(records: int) -> int:
    """Return how many of so many training records get a coin for a label.

    >>> canaries_among(135_000), canaries_among(9_000), canaries_among(455)
    (2700, 400, 45)
    """
    wanted = max(LEAST_CANARIES, round(SHARE_OF_CANARIES * records))
    return min(wanted, int(MOST_SHARE * records))


# --- models


def _bottom(setting: Mapping[str, Any], party: PartyData, widths: Sequence[int]) -> nn.Module:
    if setting["kind"] == "wide-deep":
        return WideDeepBottom(party.width, party.field_sizes, embedding_dim=EMBEDDING_DIM, widths=widths)
    return MLP(party.width, widths)


class _Components(nn.Module):
    """Principal components of the numeric columns; categories, which are no numbers, stay out."""

    def __init__(self, columns: Tensor) -> None:
        super().__init__()
        self.pca = PCA(columns.shape[1], min(COMPONENTS, columns.shape[1])).fit(columns)

    def forward(self, columns: Tensor | Columns) -> Tensor:
        """Return the projections, ``(n, width)``."""
        found: Tensor = self.pca(columns if isinstance(columns, Tensor) else columns.numeric)
        return found


def _top(setting: Mapping[str, Any], party: PartyData, width: int, *, hidden: Sequence[int] = ()) -> nn.Module:
    """Return one linear layer over activations and own columns; hidden layers stand behind the activations, or both."""
    if setting["kind"] == "wide-deep":
        return WideDeepTop(width, party.width, party.field_sizes, hidden=hidden)
    return MLP(width + party.width, [*hidden, 1], final_activation=False)


def _made(make: Any, seed: int, *names: str) -> Any:
    with PartyRandom(derive_seed(seed, "initialisation", *names)):
        return make()


def defense_of(given: Mapping[str, Any]) -> list[Any]:
    """Return a defense by its name and options, as a list of one; none where the name is empty."""
    return [KINDS[given["name"]](**given["options"])] if given["name"] else []


def build_trainer(
    setting: Mapping[str, Any],
    seed: int,
    *,
    learning_rate: float,
    validation: bool,
    defense: Mapping[str, Any],
    audited: bool = False,
    evaluate_every: int = 1,
) -> Trainer:
    """Return the trainer of the model of a setting, cut below its linear top.

    Args:
        setting: What :meth:`Setting.as_settings` returned.
        seed: Of split, initialisation, order, noise and canaries.
        learning_rate: Of Adam at both parties.
        validation: As in :func:`data_of`.
        defense: Its ``name``, empty for none, and ``options``.
        audited: Whether the auditor looks on, some labels are coins, and a private top learns beside the one that
            sends, by the package's own rate.
        evaluate_every: Epochs between two evaluations.
    """
    data = data_of(setting, seed, validation=validation)
    passive, active, width = data[PASSIVE], data.active, setting["widths"][-1]
    adam = partial(fused_adam, lr=learning_rate)
    bottom = _made(partial(_bottom, setting, passive, setting["widths"]), seed, PASSIVE)
    top, private = (_made(partial(_top, setting, active, width), seed, *name) for name in (("active",), ("private",)))
    return Trainer(
        ActiveParty(active, top, optimizer=adam, private_top=private if audited else None),
        {PASSIVE: PassiveParty(passive, bottom, optimizer=adam)},
        defenses=defense_of(defense),
        batch_size=setting["batch_size"],
        seed=seed,
        noise_seed_for_experiments=seed,
        audit=audited,
        canaries=canaries_among(active.train.count) if audited else None,
        evaluate_every=evaluate_every,
        exchange=Split(),
    )


# --- pieces of work


def _evaluations(trainer: Trainer, epochs: Sequence[int]) -> list[float]:
    """Train for the largest of these numbers of epochs, and return the AUC after each of them."""
    found: dict[int, float] = {}

    def follow(status: Status) -> None:
        if status.step % len(trainer.batches) == 0:
            found[status.step // len(trainer.batches)] = status.test

    trainer.fit(max(epochs), progress=follow)
    return [found[number] for number in epochs]


def validate(
    setting: Mapping[str, Any],
    seed: int,
    defense: Mapping[str, Any],
    learning_rate: float,
    epochs: Sequence[int],
) -> dict[str, Any]:
    """Train once, and return the validation AUC after each of several numbers of epochs.

    No defense here depends on how many epochs are planned, and the rate is constant, so that a run of the largest
    number passes through those of the others.
    """
    every = math.gcd(*epochs)
    trainer = build_trainer(
        setting, seed, learning_rate=learning_rate, validation=True, defense=defense, evaluate_every=every
    )
    return {"auc": _evaluations(trainer, epochs)}


def measure(
    setting: Mapping[str, Any],
    seed: int,
    defense: Mapping[str, Any],
    learning_rate: float,
    epochs: int,
    validation: bool,
) -> dict[str, Any]:
    """Train once with auditor, canaries and private top, and return what was kept and what leaked.

    Returns:
        ``test`` and ``private``: AUC of the top that sends and of the private one. ``total``, ``matched`` and
        ``prediction``: messages and the sending top's prediction together, the same between records of equal
        prediction, the prediction alone. ``canaries``: by attack the auditor's AUC among the canaries. ``worst``: by
        attack its AUC in a step and over the run. ``error`` and ``late_error``: detection error of one message, over
        the run and in its last tenth.
    """
    trainer = build_trainer(
        setting,
        seed,
        learning_rate=learning_rate,
        validation=validation,
        defense=defense,
        audited=True,
        evaluate_every=epochs,
    )
    figures = trainer.fit(epochs)
    audit: MessageAudit = trainer.audits[PASSIVE]
    told = audit.told
    assert told is not None
    return {
        "test": figures["sending/auc"],
        "private": figures["auc"],
        "total": told.auc,
        "matched": told.matched_auc,
        "prediction": told.prediction_auc,
        "canaries": {name: _canary_auc(keeper) for name, keeper in audit.keepers.items()},
        "worst": {name: [one.worst_auc, one.worst_accumulated_auc] for name, one in audit.summaries.items()},
        "error": audit.detection_error,
        "late_error": audit.late_detection_error,
    }


def _canary_auc(keeper: Any) -> float:
    leak = keeper.canary_leak()
    return math.nan if leak is None else float(leak.auc)


def one_way(
    setting: Mapping[str, Any],
    seed: int,
    bottom: str,
    hidden: bool,
    learning_rate: float,
    epochs: Sequence[int],
    validation: bool,
) -> dict[str, Any]:
    """Train a top over activations that crossed once, of a partner who hears nothing; return AUCs by epochs.

    Args:
        setting: What :meth:`Setting.as_settings` returned.
        seed: Of everything.
        bottom: ``"random"``: layers as initialised; ``"pca"``: principal components of the partner's numeric columns.
        hidden: Whether the label party's top has a hidden layer, which costs no leak, or is that of the setting.
        learning_rate: Of Adam.
        epochs: After which the AUC is taken.
        validation: As in :func:`data_of`.
    """
    data = data_of(setting, seed, validation=validation)
    passive, active = data[PASSIVE], data.active
    if bottom == "pca":
        layers: nn.Module = _Components(passive.train.columns.numeric)
        width = min(COMPONENTS, passive.width)
    else:
        layers = _made(partial(_bottom, setting, passive, RANDOM_WIDTHS), seed, PASSIVE)
        width = RANDOM_WIDTHS[-1]
    top = _made(partial(_top, setting, active, width, hidden=HIDDEN if hidden else ()), seed, "active")
    trainer = Trainer(
        ActiveParty(active, top, optimizer=partial(fused_adam, lr=learning_rate)),
        {PASSIVE: PassiveParty(passive, layers)},
        batch_size=setting["batch_size"],
        seed=seed,
        noise_seed_for_experiments=seed,
        audit=False,
        evaluate_every=math.gcd(*epochs),
        exchange=OneWay(),
    )
    return {"auc": _evaluations(trainer, epochs)}


def alone(
    setting: Mapping[str, Any], seed: int, learning_rate: float, epochs: Sequence[int], validation: bool
) -> dict[str, Any]:
    """Train the label party's own part on its own columns, by batches as with a partner; return AUCs by epochs."""
    active = data_of(setting, seed, validation=validation).active
    # Over one activation that is always zero, what is left of the top is its part on the own columns, and a constant.
    model = _made(partial(_top, setting, active, 1), seed, "active")
    optimizer = fused_adam(list(model.parameters()), lr=learning_rate)
    found = {}
    with PartyRandom(derive_seed(seed, "order")):
        for epoch in range(1, max(epochs) + 1):
            for rows in torch.randperm(active.train.count).split(setting["batch_size"]):
                batch = active.train.rows(rows)
                assert batch.labels is not None
                optimizer.zero_grad(set_to_none=True)
                functional.binary_cross_entropy_with_logits(_logits(setting, model, batch), batch.labels).backward()
                optimizer.step()
            if epoch in epochs:
                with torch.no_grad():
                    scores = _logits(setting, model, active.test)
                assert active.test.labels is not None
                found[epoch] = leak_auc(scores, active.test.labels)
    return {"auc": [found[number] for number in epochs]}


def _logits(setting: Mapping[str, Any], model: nn.Module, batch: Records) -> Tensor:
    nothing = torch.zeros(batch.count, 1)
    if setting["kind"] == "wide-deep":
        found: Tensor = model(nothing, batch.columns.module_input())
    else:
        found = model(torch.cat([nothing, batch.columns.numeric], dim=1))
    return found[:, 0]
