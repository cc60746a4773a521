"""The reader of messages, predictions and the partner's own features together, and what it reads of shuffled labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from splitvfl.cut.split_model import SplitModel
from splitvfl.data.columns import Columns, Records
from splitvfl.defenses import Isotropic
from splitvfl.errors import ArgumentError, DataError
from splitvfl.leakage import own_columns
from splitvfl.leakage.message_audit import MessageAudit
from splitvfl.learning.randomness import PartyRandom

RECORDS = 400
TASKS = {"two classes": 2, "three classes": 3, "numbers": None}


def world(classes: int | None, *, records: int = RECORDS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of which the first tells something of the labels."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(records, 4, generator=generator)
    told = features[:, 0] + torch.randn(records, generator=generator)
    if classes is None:
        return features, told
    bounds = torch.quantile(told, torch.arange(1, classes) / classes)
    return features, torch.bucketize(told, bounds).to(torch.float32 if classes == 2 else torch.int64)


def by_task(*, quick: int) -> list[Any]:
    """Every task; all but one are of the second tier."""
    slow = pytest.mark.slow(reason="another task")
    return [pytest.param(classes, marks=[] if classes == quick else slow) for classes in TASKS.values()]


def squared(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(output.squeeze(1), labels)


def run(
    classes: int | None,
    features: Tensor,
    labels: Tensor,
    *,
    given: Records | Columns | Tensor | None,
    noise: float = 10.0,
    ids: Tensor | None = None,
) -> MessageAudit:
    """Three epochs of a small model behind isotropic noise."""
    ids = torch.arange(len(labels)) if ids is None else ids
    with PartyRandom(0):
        top = nn.Linear(4, 1 if classes in (2, None) else classes)
        model = SplitModel(nn.Linear(features.shape[1], 4), top, loss=squared if classes is None else None)
        model.defend(Isotropic(ratio=noise), noise_seed_for_experiments=0)
        audit = model.cut.audit(classes=classes, features=given)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            for rows in torch.randperm(len(labels)).split(50):
                truth = labels[rows]
                optimizer.zero_grad()
                output = model(features[rows], labels=truth, ids=ids[rows])
                model.loss(output, truth, ids=ids[rows]).backward()
                optimizer.step()
    return audit


@pytest.mark.slow(reason="five audits of shuffled labels")
@pytest.mark.parametrize("classes", TASKS.values(), ids=TASKS)
def test_shuffled_labels_are_read_by_nothing(classes: int | None) -> None:
    """Log odds that know a record's own label read more than 0.9 of shuffled ones here."""
    features, labels = world(classes, records=200)
    audit = run(classes, features, labels, given=features)
    assert audit.told is not None
    assert audit.told.auc > audit.by_chance()
    reads = [audit.history.judge_shuffled(order=order) for order in range(5)]
    joint = np.array([read.joint for read in reads])
    assert abs(joint.mean() - 0.5) < 4.0 * joint.std(ddof=1) / math.sqrt(joint.size)
    assert np.mean([read.auc < audit.by_chance() for read in reads]) >= 0.8
    assert audit.shuffled(orders=1) == [reads[0].auc]


def test_a_second_model_knows_no_label_of_the_fold_that_it_is_judged_on() -> None:
    """Models that predict which folds they were fitted to, a bit for each."""
    places = np.random.default_rng(0).permutation(np.arange(40) % 5)

    def predict(fitted: np.ndarray, asked: np.ndarray) -> dict[str, np.ndarray]:
        return {"bits": np.full(asked.size, sum(1 << int(fold) for fold in np.unique(places[fitted])), np.float64)}

    folds = [(np.flatnonzero(places != fold), np.flatnonzero(places == fold)) for fold in range(5)]
    assert own_columns.place_of_each(folds).tolist() == places.tolist()
    found = own_columns.nested(places, own_columns.out_of_fold(folds, predict), predict)["bits"].astype(np.int64)
    own, left_out = 1 << places, 1 << np.arange(5)[:, None]
    assert (found == (31 & ~(own | left_out))).all()


@pytest.mark.parametrize("classes", by_task(quick=2), ids=TASKS)
def test_the_total_is_the_largest_of_reader_features_and_attacks(classes: int | None) -> None:
    features, labels = world(classes)
    audit, without = (run(classes, features, labels, given=given) for given in (features, None))
    told = audit.told
    assert told is not None
    assert audit.total == max(audit.worst, told.joint, told.baseline)
    # The features tell more than heavily noised messages; both together more than these.
    assert told.joint > without.total
    assert told.baseline > 0.7
    assert audit.includes_features
    assert not without.includes_features
    assert "messages and predictions only" in repr(without)
    assert "messages and predictions only" not in repr(audit)
    # What is measured without features is as it was.
    assert without.told is not None
    assert (told.messages, told.prediction_auc) == (without.told.auc, without.told.prediction_auc)
    assert without.total == max(without.worst, without.told.messages)


def test_a_reader_that_loses_to_the_features_does_not_lower_the_total() -> None:
    """One column that tells and nine that do not, on 300 records; messages of a constant are noise."""
    generator = torch.Generator().manual_seed(3)
    labels = (torch.arange(300) % 2).float()
    features = torch.randn(300, 10, generator=generator)
    features[:, 0] += 2.0 * labels
    audit = run(2, torch.zeros(300, 1), labels, given=features, noise=1e3)
    told = audit.told
    assert told is not None
    assert told.joint < told.baseline == audit.total
    assert told.baseline == own_columns.own_columns_auc(Columns.of(features), labels).auc


def test_features_are_found_by_the_records_ids() -> None:
    features, labels = world(2, records=120)
    whole = run(2, features, labels, given=features)
    assert run(2, features, labels, given=Columns.of(features)).total == whole.total
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    # Ids in any order, with records that are never sent.
    ids = torch.cat([order * 7 - 100, torch.tensor([5000, 6000])])
    rows = torch.cat([features[order], torch.full((2, 4), torch.nan)])
    moved = run(2, features, labels, given=Records(ids, Columns.of(rows)), ids=torch.arange(120) * 7 - 100)
    assert moved.told is not None
    assert whole.told is not None
    assert moved.told.baseline == pytest.approx(whole.told.baseline, abs=0.06)  # other folds
    wrong = run(2, features, labels, given=features[order])
    assert wrong.told is not None
    assert wrong.told.baseline < 0.6 < 0.75 < moved.told.baseline


def test_a_record_without_features_stops_before_anything_is_sent() -> None:
    features, labels = world(2)
    with pytest.raises(DataError, match=r"features of every record that is sent, got none of record \d+"):
        run(2, features, labels, given=features[:50])
    with pytest.raises(ArgumentError, match=r"Records, Columns or a matrix of numbers \(n, d\), got Tensor of shape"):
        run(2, features, labels, given=features[:, 0])


def test_models_of_the_features_are_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []
    made = own_columns.classifiers

    def counted(seed: int) -> object:
        fits.append(seed)
        return made(seed)

    monkeypatch.setattr(own_columns, "_measured", {})
    monkeypatch.setattr(own_columns, "classifiers", counted)
    features, labels = world(2, records=100)
    audit = run(2, features, labels, given=features)
    assert len(fits) == 0  # nobody has asked yet
    first = audit.told
    assert len(fits) == 15  # five folds, and ten pairs of them
    audit.load_state_dict(audit.state_dict())
    assert audit.told == first
    assert len(fits) == 15
    own_columns.own_columns_auc(Columns.of(features), labels)
    assert len(fits) == 15  # the baseline of a run is the same figure
