"""What partners see that is made from labels voids what is promised of the whole run, by name and everywhere."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn import functional

from splitvfl.app.noise_basis import void_for_labels
from splitvfl.claims import (
    CLASS_WEIGHTS,
    EARLY_STOPPING,
    SELECTION,
    STRATIFIED,
    DetectionError,
    GaussianDP,
    LabelRelease,
    PureDP,
    claims_of,
    not_applying,
    promises_of_labels,
)
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.data.load import load
from splitvfl.data.store import open_tables
from splitvfl.defenses import (
    AbstainingResponse,
    AsymmetricResponse,
    GaussianTargets,
    LaplaceResidue,
    MemoisedResponse,
    RandomisedResponse,
    RecordGaussian,
)
from splitvfl.exchange.split import Split
from splitvfl.learning.losses import CrossEntropy, Logistic
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.learning.tasks import Binary, Multiclass, Regression, Task
from splitvfl.models import logistic_loss
from splitvfl.party.attaching import claims_in_words, label_guarantee, promised_in_short, promises_of
from splitvfl.party.own_part import OwnPart
from tests.builders import linear_trainer, small_trainer
from tests.tables import ingest

VOID = "The run-wide guarantee does not apply: early stopping is made from labels"
STOPPING: dict[str, Any] = {"early_stopping": EarlyStopping(patience=1, validation_every=3)}


OF_THE_RUN: list[Any] = [
    AsymmetricResponse(detection_error=0.3),
    AbstainingResponse(detection_error=0.3),
    RandomisedResponse(epsilon=1.0),
    MemoisedResponse(flip=0.2),
    GaussianTargets(mu=0.8),
    GaussianTargets(mu=0.8, remembered=False),
    RecordGaussian(mu=0.8, per="run"),
]


def names(defense: Any) -> str:
    return str(defense.name)


@pytest.mark.parametrize("defense", OF_THE_RUN, ids=names)
def test_early_stopping_voids_what_is_promised_of_a_run(defense: Any) -> None:
    covered, stopped = (
        linear_trainer(defenses=[copy.deepcopy(defense)], audit=False, **more).active for more in ({}, STOPPING)
    )
    for party in (covered, stopped):
        party.plan_run(epochs=3)

    for said in (promises_of, lambda party, epochs: promised_in_short([party], epochs=epochs)):
        assert all("all messages of the run together" in line for line in said(covered, 3))
        assert [line.removesuffix(".") for line in said(stopped, 3)] == [f"{defense.name}: {VOID}"]
    for party, of_run in ((covered, True), (stopped, False)):
        guarantee = label_guarantee(party, next(iter(party.cuts)), epochs=3)
        assert guarantee is not None
        assert (guarantee.of_run, guarantee.scope) == (of_run, "run")
        assert guarantee.void == (() if of_run else ("early stopping",))
        assert guarantee.auc < 1.0
    (words,) = claims_in_words([stopped])
    assert words.startswith(f"{defense.name}: {VOID}.")
    assert VOID not in claims_in_words([covered])[0]


def numbers_of(defense: Any) -> set[float]:
    """Every number that is claimed of the labels over the run, and what follows from it in closed form."""
    found: set[float] = set()
    for claim in promises_of_labels(claims_of(defense)):
        match claim:
            case PureDP():
                found |= {claim.epsilon, claim.success_bound}
            case GaussianDP():
                found |= {claim.mu, claim.detection_error}
            case DetectionError():
                found |= {claim.bound, 1.0 - claim.bound}
    return {round(number, 6) for number in found}


@pytest.mark.parametrize("defense", OF_THE_RUN, ids=names)
def test_no_figure_of_a_guarantee_that_is_void_is_logged(tmp_path: Path, defense: Any) -> None:
    logged: list[set[float]] = []
    for case, more in ({"kept": {}, "void": STOPPING}).items():
        own = copy.deepcopy(defense)
        trainer = linear_trainer(defenses=[own], audit=False, log_dir=tmp_path / case, log_every=1, **more)
        trainer.fit(2)  # of one epoch, a message and the run have the same μ
        lines = map(json.loads, (tmp_path / case / "metrics.jsonl").read_text().splitlines())
        of_lines = {value for line in lines for tag, value in line.items() if tag.startswith("defense/")}
        measured = {*trainer.active.measurements.values(), *trainer.measurements.values()}
        logged.append({round(value, 6) for value in of_lines | measured if isinstance(value, float)})

    kept, void = (numbers & numbers_of(own) for numbers in logged)
    assert kept
    assert not void


@pytest.mark.parametrize(("own_part", "more"), [("exact", {}), ("sent", STOPPING)])
def test_no_total_of_releases_is_logged_where_they_come_to_no_guarantee(
    own_part: OwnPart, more: dict[str, Any]
) -> None:
    def logged(exchange: Split, **settings: Any) -> set[str]:
        trainer = linear_trainer(exchange=exchange, defenses=[LaplaceResidue(epsilon=1.0)], audit=False, **settings)
        trainer.fit(1)
        return {tag.rpartition("/")[2] for tag in trainer.active.measurements}

    assert logged(Split(own_part="sent")) >= {"epsilon_spent", "label_success_bound", "power"}
    assert logged(Split(own_part=own_part), **more) == {"power", "noise_to_signal"}


def test_what_is_promised_of_one_message_stays() -> None:
    defense = RecordGaussian(detection_error=0.4)
    covered, stopped = (small_trainer(("lab",), defenses=[defense], **more).active for more in ({}, STOPPING))

    assert promises_of(stopped, 3) == promises_of(covered, 3) != []
    assert VOID not in " ".join(claims_in_words([stopped]))


@pytest.mark.parametrize(("missing", "found"), [("", (SELECTION,)), ("1", ())])
def test_records_left_out_by_their_label_void_it(tmp_path: Path, missing: str, found: tuple[LabelRelease, ...]) -> None:
    path = tmp_path / "shop.csv"
    rows = [f"{number % 7},{number % 5},{number % 2}" for number in range(60)]
    path.write_text("\n".join(["age,usage,bought", *rows, f"3,4,{missing}"]))
    data = load("table", path=path, label="bought", unlabelled="drop", active="age", passive={"lab": "usage"})

    trainer = small_trainer(("lab",), defenses=[RandomisedResponse(epsilon=1.0)])
    trainer.active.data = data.active

    assert trainer.active.label_releases == found
    assert not data["lab"].selected_by_label
    (said,) = promised_in_short([trainer.active], epochs=3)
    assert ("does not apply: selection of records by label" in said) == bool(found)


def test_each_release_is_named_once() -> None:
    said = not_applying((EARLY_STOPPING, SELECTION))
    assert said.endswith("does not apply: early stopping and selection of records by label are made from labels")


# --- each of them, found in a run, by name


def _divided(tested: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]], *, by_ids: bool = False) -> PartyData:
    """A label owner's records, tested as a function of their labels says."""
    labels = np.random.default_rng(0).random(600) < 0.3
    test = tested(labels.astype(np.int64))
    parts = [torch.arange(600)[torch.from_numpy(part)] for part in (~test, test)]
    columns = torch.zeros(600, 2)
    train, held = (Records(ids, Columns.of(columns[ids]), torch.from_numpy(labels).float()[ids]) for ids in parts)
    return PartyData("bank", ("a", "b"), ("a", "b"), (), train, held, divided_by_ids=by_ids)


def _stratified(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=1, stratify=labels)[1]
    return np.isin(np.arange(len(labels)), test)


def _balanced(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(len(labels)), [np.flatnonzero(labels == one)[:60] for one in (0, 1)])


def _oversampled(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.random.default_rng(4).random(len(labels)) < np.where(labels == 1, 0.35, 0.15)


def _sorted(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(len(labels)), np.argsort(labels, kind="stable")[480:])


def _by_chance(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.random.default_rng(3).random(len(labels)) < 0.2


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (_divided(_stratified), True),
        (_divided(_stratified, by_ids=True), False),  # then it is by chance
        (_divided(_balanced), True),
        (_divided(_balanced, by_ids=True), False),
        (_divided(_oversampled), True),
        (_divided(_sorted), True),
        (_divided(_by_chance), False),
        (_divided(lambda labels: np.arange(600) >= 480), False),  # the latest records
    ],
    ids=["stratified", "by ids", "balanced", "balanced by ids", "oversampled", "sorted", "by chance", "by time"],
)
def test_a_division_that_is_stratified_by_labels_voids_it(data: PartyData, found: bool) -> None:
    trainer = small_trainer(("lab",), defenses=[RandomisedResponse(epsilon=1.0)])
    trainer.active.data = data

    assert trainer.active.label_releases == ((STRATIFIED,) if found else ())
    guarantee = label_guarantee(trainer.active, "lab", epochs=3)
    assert guarantee is not None
    assert guarantee.of_run != found
    assert ("stratified division is made from labels" in void_for_labels([data], Binary())) == found


def test_of_numbers_and_of_records_that_are_not_divided_no_division_is_stratified() -> None:
    classes = _divided(_stratified)
    many = replace(
        classes,
        **{
            part: replace(getattr(classes, part), labels=getattr(classes, part).labels.long() * 2)
            for part in ("train", "test")
        },
    )
    numbers = replace(
        classes,
        **{
            part: replace(getattr(classes, part), labels=getattr(classes, part).labels + 0.5)
            for part in ("train", "test")
        },
    )
    undivided = replace(classes, test=classes.train)
    found = [data.seems_stratified for data in (many, numbers, undivided)]
    assert found == [True, False, False]


def _parts_of(train: Tensor, test: Tensor) -> PartyData:
    parts = (Records(torch.arange(len(part)), Columns.of(torch.zeros(len(part), 1)), part) for part in (train, test))
    return PartyData("bank", ("a",), ("a",), (), *parts)


def test_a_class_that_a_part_lacks_though_it_is_expected_there_is_seen() -> None:
    def found(more: int, *, part: str) -> bool:
        # Half of all records are tested; the third class is too rare for the test of independence.
        full, bare = torch.cat([torch.arange(401) % 2, torch.full((more,), 2)]), torch.arange(380) % 2
        return (_parts_of(full, bare) if part == "test" else _parts_of(bare, full)).seems_stratified

    assert all(found(14, part=part) for part in ("train", "test"))
    assert not any(found(4, part=part) for part in ("train", "test"))  # as in one of eight divisions by chance


def test_numbers_that_differ_in_rank_between_the_parts_are_seen() -> None:
    numbers = torch.from_numpy(np.random.default_rng(6).gamma(2.0, size=600)).float()
    highest = numbers.sort().values
    assert not _parts_of(numbers[:480], numbers[480:]).seems_stratified
    assert _parts_of(highest[:480], highest[480:]).seems_stratified
    assert _parts_of(numbers[:480], numbers[480:] * 1.6).seems_stratified


@pytest.mark.parametrize("classes", [6, 40, 0])
def test_few_divisions_by_chance_are_taken_for_one_by_labels(classes: int) -> None:
    generator, found = np.random.default_rng(7), 0
    for _ in range(1000):
        # Of many classes most have few records: one in the test part is far more than the share that is expected.
        drawn = generator.random(500) ** 3
        labels = torch.from_numpy((drawn * classes).astype(np.int64)) if classes else torch.from_numpy(drawn).float()
        test = torch.from_numpy(generator.random(500) < 0.1)
        found += _parts_of(labels[~test], labels[test]).seems_stratified
    assert found <= 5  # one is expected; more than five are in one of 1,500


def test_dummies_of_a_padded_alignment_are_no_class() -> None:
    given = _parts_of(torch.cat([torch.arange(300) % 2, torch.zeros(300).long()]), (torch.arange(91) % 9 > 3).long())
    train = replace(given.train, real=torch.arange(600) < 300)
    assert given.seems_stratified
    assert not replace(given, train=train).seems_stratified


@pytest.mark.parametrize(
    ("split", "by_ids"), [({}, True), ({"split_column": "held", "test_value": 1}, False)], ids=["ids", "column"]
)
def test_records_from_a_file_know_whether_ids_divide_them(tmp_path: Path, split: dict[str, Any], by_ids: bool) -> None:
    path = tmp_path / "shop.csv"
    rows = [f"{number % 7},{number % 5},{number % 2},{int(number >= 48)}" for number in range(60)]
    path.write_text("\n".join(["age,usage,bought,held", *rows]))
    settings: dict[str, Any] = {"label": "bought", "drop": [] if split else ["held"], **split}
    data = load("table", path=path, active="age", passive={"lab": "usage"}, **settings)
    ingest(path, out=tmp_path / "tables", active="age", passive={"lab": "usage"}, **settings)

    assert data.active.divided_by_ids == by_ids
    assert open_tables(tmp_path / "tables").active.divided_by_ids == by_ids


class Weighted(Logistic):
    """Positives count ten times."""

    name = "weighted"

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        weight = torch.tensor(10.0)
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, pos_weight=weight)


class Balanced(CrossEntropy):
    """Each class of a batch counts alike, however many records it has."""

    name = "balanced"

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        weight = 1.0 / torch.bincount(targets, minlength=outputs.shape[1]).clamp(min=1)
        return functional.cross_entropy(outputs, targets, weight=weight)


@pytest.mark.parametrize(
    ("task", "found"),
    [
        (Binary(Weighted()), True),
        (Multiclass(3, Balanced()), True),
        (Binary(), False),
        (Binary(logistic_loss("taylor")), False),
        (Binary(logistic_loss("piecewise")), False),
        (Multiclass(3), False),
        (Regression(), False),
    ],
    ids=["weights", "batches", "logistic", "taylor", "piecewise", "classes", "numbers"],
)
def test_a_loss_that_weighs_classes_voids_it(task: Task, found: bool) -> None:
    trainer = small_trainer(("lab",), task=task.name)
    trainer.active.task = task

    assert trainer.active.label_releases == ((CLASS_WEIGHTS,) if found else ())
    assert ("class weights" in void_for_labels([trainer.active.data], task)) == found


def test_a_loss_that_a_label_defense_computes_has_no_weights_of_the_task() -> None:
    trainer = small_trainer(("lab",), defenses=[RandomisedResponse(epsilon=1.0, corrected="likelihood")])
    trainer.active.task = Binary(Weighted())

    assert trainer.active.label_releases == ()
