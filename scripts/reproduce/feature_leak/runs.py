"""The runs that the page is made of: what is trained, on which records, and what is kept of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from scripts.reproduce.defense_table.runs import Sample
from scripts.reproduce.feature_leak.arrangements import PARTNER
from scripts.reproduce.shared.jobs import Result
from scripts.reproduce.shared.settings import data_folder
from splitvfl.app.experiment import Experiment, Workbench
from splitvfl.app.records import load_data
from splitvfl.attacks import InverseNetworkAttack, StackedRidgeAttack
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import PartyData, VerticalData
from splitvfl.data.encoding import FittedNumbers
from splitvfl.hooks import Attack
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.own_columns import alone_aucs, own_columns_auc
from splitvfl.leakage.ridge import fit_ridge
from splitvfl.run.column_seats import ColumnSeats
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status

TOP_HIDDEN = (16,)
"""The label party's layer between what it receives and the output."""

KNOWN = (0.01, 0.05, 0.2)
"""Shares of the records whose columns the attacker knows; the second one is that of the page's other tables."""


def choose(
    *, arrangement: Mapping[str, Any], way: Mapping[str, Any], rate: float, epochs: Sequence[int], seed: int
) -> Result:
    """Train one model to the largest number of epochs, and return validation AUCs after each of some numbers.

    Args:
        arrangement: The data, as :meth:`Arrangement.as_settings` says it.
        way: The model and what protects it, as :meth:`Way.as_settings` does.
        rate: Of Adam.
        epochs: After which it is evaluated.
        seed: Of weights, order and noise.

    Returns:
        ``aucs``: by number of epochs.
    """
    config = _config(arrangement, way, rate=rate, epochs=max(epochs), every=1, seed=seed, watched=False)
    trainer = _trainer(config, arrangement, validating=True)
    found: list[float] = []

    def follow(status: Status) -> None:
        if status.step % len(trainer.batches) == 0:
            found.append(trainer.training.figures["test/auc"])

    trainer.fit(max(epochs), progress=follow)
    return {"aucs": {str(number): found[number - 1] for number in epochs}}


def measure(
    *,
    arrangement: Mapping[str, Any],
    way: Mapping[str, Any],
    rate: float,
    epochs: int,
    seed: int,
    validating: bool = False,
) -> Result:
    """Train one model while the label party reads columns and the auditor reads labels, and return what was found.

    Args:
        arrangement: As for :func:`choose`.
        way: Likewise.
        rate: Of Adam.
        epochs: How many.
        seed: Of weights, order, noise, and of which records are known.
        validating: Whether the AUC is of validation records. What is read is of training records all the same.

    Returns:
        ``auc``: on the test records; ``readings``: by known share, as :func:`_read` returns them; ``labels``: the worst
        AUC of the auditor's attacks on messages; ``total``: that of messages and predictions together; ``steps``.
    """
    config = _config(arrangement, way, rate=rate, epochs=epochs, every=epochs, seed=seed, watched=True)
    trainer = _trainer(config, arrangement, validating=validating)
    test = trainer.fit(epochs)
    labels = trainer.watch.label_leaks_logged[PARTNER]
    readings = {f"{one.known_share:g}": _read(one) for one in trainer.column_readings(PARTNER)}
    return {
        "auc": test["auc"],
        "readings": readings,
        "labels": trainer.worst_leak[0],
        "total": math.nan if labels.total is None else labels.total,
        "steps": trainer.step,
    }


def measure_stronger(*, known_share: float, **run: Any) -> Result:
    """Train one model while columns are read by ``inverse-network``, as :func:`_read_by` says."""
    return _read_by(InverseNetworkAttack(known_share=known_share), known_share=known_share, **run)


def measure_stacked(*, known_share: float, **run: Any) -> Result:
    """Train one model while columns are read by ``stacked-ridge``, as :func:`_read_by` says."""
    return _read_by(StackedRidgeAttack(known_share=known_share), known_share=known_share, **run)


def _read_by(
    attack: Attack,
    *,
    arrangement: Mapping[str, Any],
    way: Mapping[str, Any],
    rate: float,
    epochs: int,
    seed: int,
    known_share: float,
) -> Result:
    """Train one model while columns are read by another reader than ``ridge``.

    Args:
        attack: The reader.
        arrangement: As for :func:`choose`.
        way: Likewise.
        rate: Of Adam.
        epochs: How many.
        seed: Of weights, order, noise, and of which records are known: the same as in :func:`measure`.
        known_share: Share of the records whose columns the attacker knows; that of ``attack``.

    Returns:
        ``auc``: on the test records; ``readings``: by known share, as of :func:`measure`.
    """
    config = _config(arrangement, way, rate=rate, epochs=epochs, every=epochs, seed=seed, watched=False)
    trainer = _trainer(config, arrangement, validating=False)
    seats = ColumnSeats(
        trainer.active,
        trainer.passives,
        [attack],
        watch=trainer.watch,
        exchange=trainer.exchange,
        batches=trainer.batches,
        seed=seed,
    )
    test = trainer.fit(epochs)
    return {"auc": test["auc"], "readings": {f"{known_share:g}": _read(one) for one in seats.readings(PARTNER)}}


def _read(reading: ColumnReading) -> dict[str, Any]:
    """Return a reading as JSON: shares of variance, in the last epoch, added up over the run, and without messages."""
    return {
        "share": reading.share,
        "accumulated": reading.accumulated,
        "without_messages": reading.without_messages,
        "told": reading.told,
        "columns": {one.column: one.share for one in reading.columns},
        "records": reading.records,
        "note": reading.note,
    }


def settle(
    *, arrangement: Mapping[str, Any], way: Mapping[str, Any], rate: float, epochs: int, seed: int, known_share: float
) -> Result:
    """Train one model, and read columns once, in the activations of the trained bottom model of all training records.

    Ridge regression is fitted to all known records at once, and judged by all others.

    Args:
        arrangement: As for :func:`choose`.
        way: Likewise, without a defense of the activation.
        rate: Of Adam.
        epochs: How many.
        seed: Of weights, order, and of which records are known.
        known_share: Share of the records whose columns the attacker knows.

    Returns:
        ``auc``: on the test records; ``share``: of variance that is recovered, the mean over columns that vary.
    """
    trainer, truth, estimate = _read_once(arrangement, way, rate, epochs, seed, known_share)
    return {"auc": trainer.training.figures["test/auc"], "share": recovered(estimate, truth)}


def depict(
    *,
    arrangement: Mapping[str, Any],
    way: Mapping[str, Any],
    rate: float,
    epochs: int,
    seed: int,
    known_share: float,
    pictures: int,
) -> Result:
    """Train one model on digits, and return some pictures beside what is read of them, as :func:`settle` reads.

    Args:
        arrangement: As for :func:`choose`; the partner holds all pixels.
        way: Likewise, without a defense of the activation.
        rate: Of Adam.
        epochs: How many.
        seed: As for :func:`settle`.
        known_share: Likewise.
        pictures: How many: the first of those whose pixels are not known.

    Returns:
        ``truth`` and ``estimate``: pixels of each picture, from 0 to 16, to a tenth; ``share``: of variance that is
        recovered, the mean over pixels that vary, of all records that are not known.
    """
    trainer, truth, estimate = _read_once(arrangement, way, rate, epochs, seed, known_share)
    data = trainer.passives[PARTNER].data
    return {
        "truth": _pixels(data, truth[:pictures]),
        "estimate": _pixels(data, estimate[:pictures]),
        "share": recovered(estimate, truth),
    }


def _read_once(
    arrangement: Mapping[str, Any], way: Mapping[str, Any], rate: float, epochs: int, seed: int, known_share: float
) -> tuple[Trainer, Tensor, Tensor]:
    """Train one model; return it, the columns of records that are not known, and what one fit estimates of them."""
    config = _config(arrangement, way, rate=rate, epochs=epochs, every=epochs, seed=seed, watched=False)
    trainer = _trainer(config, arrangement, validating=False)
    trainer.fit(epochs)
    party = trainer.passives[PARTNER]
    columns = party.data.train.columns.numeric
    with torch.no_grad():
        sent = party.bottom(columns)
    order = torch.randperm(len(columns), generator=torch.Generator().manual_seed(seed))
    count = round(known_share * len(columns))
    known, others = order[:count], order[count:]
    return trainer, columns[others], fit_ridge(sent[known], columns[known]).estimate(sent[others])


def _pixels(data: PartyData, columns: Tensor) -> list[list[float]]:
    """Return pixels as they were before they were scaled."""
    assert data.provenance is not None, "digits are encoded"
    assert data.provenance.encoding is not None, "digits are encoded"
    fitted = [one for one in data.provenance.encoding.columns if isinstance(one, FittedNumbers)]
    offset, spread = (torch.tensor([getattr(one, name) for one in fitted]) for name in ("offset", "spread"))
    pixels: list[list[float]] = (columns.double() * spread + offset).clamp(0, 16).mul(10).round().div(10).tolist()
    return pixels


def recovered(estimate: Tensor, truth: Tensor) -> float:
    """Return the share of variance that estimates recover, never below 0, the mean over columns that vary."""
    truth, varies = truth.double(), (truth != truth[0]).any(dim=0)
    variance = truth.var(dim=0, correction=0)[varies]
    errors = (estimate.double() - truth).square().mean(dim=0)[varies]
    return (1.0 - errors / variance).clamp_min(0.0).mean().item()


def describe(*, arrangement: Mapping[str, Any]) -> Result:
    """Count records and columns, and say what either party's own columns tell of labels.

    Args:
        arrangement: As for :func:`choose`.

    Returns:
        ``train``, ``test`` and ``positives`` among the training records; ``own`` and ``partner``: encoded columns;
        ``alone``: test AUC of the label party's own columns, and ``alone_validated``: that on validation records, both
        of the model that is the better one there; ``known``: AUC of labels by the partner's columns.
    """
    told = json.dumps(arrangement)
    data, trying = (_data(told, validating=flag) for flag in (False, True))
    train, held = data.active.train, data[PARTNER].train
    assert train.labels is not None
    tried = alone_aucs(train, trying.active.test)
    model = max(tried, key=lambda name: tried[name], default=None)
    return {
        "train": train.count,
        "test": data.active.test.count,
        "positives": int(train.labels.sum()),
        "own": data.active.width,
        "partner": held.columns.numeric.shape[1],
        # None: there are no such columns
        "alone": None if model is None else alone_aucs(train, data.active.test)[model],
        "alone_validated": None if model is None else tried[model],
        "known": own_columns_auc(held.columns, train.labels).auc,
    }


def _config(
    arrangement: Mapping[str, Any],
    way: Mapping[str, Any],
    *,
    rate: float,
    epochs: int,
    every: int,
    seed: int,
    watched: bool,
) -> ExperimentConfig:
    partner: dict[str, Any] = {"role": "passive", "columns": "rest"}
    if way["penalties"]:
        partner["penalties"] = way["penalties"]
    written: dict[str, Any] = {
        "name": arrangement["key"],
        "data": arrangement["data"],
        "parties": {"active": {"role": "active", "columns": arrangement["own"]}, PARTNER: partner},
        "model": {"name": "mlp", "bottom": way["bottom"], "top_hidden": TOP_HIDDEN, "sampled": way["sampled"]},
        "train": {
            "epochs": epochs,
            "evaluate_every_epochs": every,
            "batch_size": arrangement["batch_size"],
            "optimizer": {"name": "adam", "lr": rate},
            "seed": seed,
            "noise_seed_for_experiments": seed,
            "device": "cpu",
        },
        "defenses": way["defenses"],
        "attacks": [{"name": "ridge", "known_share": share} for share in KNOWN] if watched else [],
        "audit": watched,
    }
    # JSON is YAML.
    return _with_path(parse_config(json.dumps(written), source="feature_leak"), arrangement)


def _with_path(config: ExperimentConfig, arrangement: Mapping[str, Any]) -> ExperimentConfig:
    file = arrangement["sample"]["file"]
    if not file:
        return config
    # Where the file lies is this machine's, and in no setting.
    return config.model_copy(update={"data": config.data.model_copy(update={"path": str(data_folder() / file)})})


def _trainer(config: ExperimentConfig, arrangement: Mapping[str, Any], *, validating: bool) -> Trainer:
    return Experiment(config, Workbench(_data(json.dumps(arrangement), validating=validating), {})).trainer()


@cache
def _data(arrangement: str, *, validating: bool) -> VerticalData:
    """Return the chosen records; while settings are chosen, validation ones stand for test ones."""
    chosen = json.loads(arrangement)
    return Sample(**chosen["sample"]).of(_whole(arrangement), validating=validating)


@cache
def _whole(arrangement: str) -> VerticalData:
    chosen = json.loads(arrangement)
    plain = {"bottom": [1], "defenses": [], "penalties": [], "sampled": False}
    data = load_data(_config(chosen, plain, rate=1.0, epochs=1, every=1, seed=0, watched=False))
    return _at_least(data, chosen["from_digit"]) if chosen["from_digit"] else data


def _at_least(data: VerticalData, digit: int) -> VerticalData:
    """Return a binary task of one with classes: is it at least so much?"""

    def judged(party: PartyData) -> PartyData:
        train, test = (
            replace(part, labels=None if part.labels is None else (part.labels >= digit).float())
            for part in (party.train, party.test)
        )
        return replace(party, train=train, test=test)

    return replace(data, task="binary", classes=2, active=judged(data.active))
