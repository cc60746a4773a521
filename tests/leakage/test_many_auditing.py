"""The auditor's attack on k classes and on numbers: Bayes where noise is known, and chance where nothing is sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn

from splitvfl import SplitModel
from splitvfl.errors import HookError
from splitvfl.hooks import Secrets
from splitvfl.leakage.canaries import with_canaries
from splitvfl.leakage.many_auditing import ClassAudit, ManyAudit, NumberHistory, balanced_error
from splitvfl.metrics import macro_auc, oriented

K, ROWS, WIDTH = 4, 240, 5
Sent = list[Tensor]


class Noise:
    """Gaussian noise; what was sent, and what without, can be looked at."""

    def __init__(self, sigma: float, *, only: bool = False) -> None:
        self.sigma, self.only = sigma, only
        self.sent: Sent = []

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        generator = torch.Generator().manual_seed(secrets.step)
        noise = self.sigma * torch.randn(gradient.shape, generator=generator)
        self.sent.append(noise if self.only else gradient + noise)
        return self.sent[-1]


def data(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(ROWS, 6, generator=generator)
    labels = (columns[:, :K] + torch.randn(ROWS, K, generator=generator)).argmax(dim=1)
    return columns, labels, torch.arange(ROWS)


def watched(
    defense: Noise | None,
    *,
    steps: int = 12,
    batch: int = 80,
    lr: float = 0.0,
    labels: Tensor | None = None,
    **audit: Any,
) -> tuple[SplitModel, ManyAudit]:
    """Train below a linear top, all records every three steps."""
    columns, own, ids = data()
    labels = own if labels is None else labels
    torch.manual_seed(0)
    model = SplitModel(nn.Linear(6, WIDTH), nn.Linear(WIDTH, K))
    if defense is not None:
        model.cut.defend(defense)
    found = model.cut.audit(classes=K, **audit)
    assert isinstance(found, ManyAudit)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % ROWS
        output = model(columns[rows], labels=labels[rows], ids=ids[rows])
        nn.functional.cross_entropy(output, labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, found


def test_without_a_defense_every_label_is_read() -> None:
    _, audit = watched(None)
    assert audit.worst == 1.0
    assert audit.total == 1.0
    assert audit.detection_error == audit.late_detection_error == 0.0
    assert audit.summaries["auditor-ratio"].accumulated_top1 > 0.99


def test_noise_alone_tells_nothing() -> None:
    """240 records, 12 steps: the macro AUC of nothing has a standard deviation of .02 or so."""
    _, audit = watched(Noise(0.01, only=True))
    ratio = audit.summaries["auditor-ratio"]
    assert abs(ratio.accumulated_auc - 0.5) < 0.08
    assert audit.detection_error > 1 - 1 / K - 0.12
    # With predictions that are known anyway: as good as those, and by little more.
    assert audit.total < oriented(audit.prediction_auc) + 0.06


def test_with_known_noise_it_is_as_good_as_bayes() -> None:
    noise = Noise(0.015)
    model, audit = watched(noise, steps=12)
    columns, labels, _ = data()

    # Frozen weights: of each record four messages, whose mean under each label is known.
    with torch.no_grad():
        hidden = model.bottoms["passive"](columns)
        predicted = torch.softmax(model.top(hidden), dim=1)
        weight = model.top.weight
    evidence = torch.zeros(ROWS, K)
    for step, sent in enumerate(noise.sent):
        rows = torch.arange(step * 80, (step + 1) * 80) % ROWS
        for label in range(K):
            residues = predicted[rows] - nn.functional.one_hot(torch.tensor(label), K)
            mean = residues @ weight / 80
            evidence[rows, label] -= (sent - mean).square().sum(dim=1) / (2 * noise.sigma**2)
    bayes = macro_auc(torch.log_softmax(evidence.double(), dim=1), labels)

    found = audit.summaries["auditor-ratio"].accumulated_auc
    assert 0.6 < bayes < 0.99
    assert found == pytest.approx(bayes, abs=0.03)  # its first step is lost, and its variance is estimated
    assert audit.total >= found


def first_scores(labels: Tensor) -> Tensor:
    """Return the scores of the first message, in which nothing depends on these labels."""
    columns, _, ids = data()
    torch.manual_seed(0)
    model = SplitModel(nn.Linear(6, WIDTH), nn.Linear(WIDTH, K))
    model.cut.defend(Noise(0.01, only=True))
    audit = model.cut.audit(classes=K)
    kept: Sent = []
    audit.keepers["auditor-linear"].add = lambda ids, scores, labels: kept.append(scores)  # type: ignore[method-assign]
    nn.functional.cross_entropy(model(columns, labels=labels, ids=ids), labels).backward()
    return kept[0]


def test_labels_of_the_own_batch_enter_no_score() -> None:
    _, labels, _ = data()
    torch.testing.assert_close(first_scores(labels), first_scores((labels + 1) % K), rtol=0, atol=0)


def test_the_balanced_error_is_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    scores, labels = generator.normal(size=(300, K)), generator.choice(K, 300, p=[0.7, 0.1, 0.1, 0.1])
    expected = 1.0 - balanced_accuracy_score(labels, scores.argmax(axis=1))
    assert balanced_error(scores, labels.astype(float)) == pytest.approx(expected, abs=1e-12)
    assert math.isnan(balanced_error(scores, np.zeros(300)))


def test_canaries_are_drawn_of_all_classes_and_read_where_nothing_hides_them() -> None:
    _, labels, ids = data()
    tossed, positions = with_canaries(labels, 60, classes=K, noise_seed_for_experiments=0)

    assert set(tossed[positions].tolist()) == set(range(K))
    kept = torch.ones(ROWS, dtype=torch.bool)
    kept[positions] = False
    assert (tossed[kept] == labels[kept]).all()
    _, audit = watched(None, labels=tossed, canaries=ids[positions])
    found = audit.canaries
    assert found is not None
    assert (found.auc, found.top1, found.count) == (1.0, 1.0, 60)
    _, blind = watched(Noise(0.01, only=True), labels=tossed, canaries=ids[positions])
    assert blind.canaries is not None
    assert blind.canaries.low < 0.5


def test_state_goes_on_alike() -> None:
    _, whole = watched(Noise(0.004), steps=4)
    _, second = watched(None, steps=1)
    second.load_state_dict(whole.state_dict())
    assert repr(second.summaries) == repr(whole.summaries)
    assert second.total == whole.total
    assert second.detection_error == whole.detection_error


def test_labels_that_are_no_classes_are_refused() -> None:
    model = SplitModel(nn.Linear(6, WIDTH), nn.Linear(WIDTH, K))
    model.cut.audit(classes=3)
    columns, labels, ids = data()
    with pytest.raises(HookError, match="the auditor judges labels 0 to 2, got"):
        nn.functional.cross_entropy(model(columns, labels=labels, ids=ids), labels).backward()
    assert isinstance(model.cut.audit(classes=10), ClassAudit)


def test_numbers_are_read_in_their_own_unit() -> None:
    columns, _, ids = data()
    labels = columns[:, 0] * 20.0 + 100.0 + torch.randn(ROWS, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = SplitModel(nn.Linear(6, 8), nn.Linear(8, 1), loss=lambda output, y: (output.squeeze(1) - y).square())
    audit = model.cut.audit(classes=None)
    for _ in range(2):
        output = model(columns, labels=labels, ids=ids)
        (output.squeeze(1) - labels).square().mean().backward()
    found = audit.summaries["auditor-ratio"]
    assert found.accumulated_auc > 0.9999
    assert (found.within, found.correlation) == (1.0, pytest.approx(1.0))
    assert audit.total > 0.99
    assert math.isnan(audit.detection_error)


def test_numbers_of_which_nothing_is_told_are_not_read_below_one_half_in_all() -> None:
    """24 runs of 40 records: all pairs of the out-of-fold estimates together would read .43."""
    generator, found = np.random.default_rng(0), []
    for _ in range(24):
        history = NumberHistory()
        history.add(np.arange(40), *(generator.normal(size=shape) for shape in (40, (40, 1), (40, 1))))
        found.append(history.judge().auc)
    assert np.mean(found) == pytest.approx(0.5, abs=4.0 * np.std(found) / math.sqrt(24))
    assert np.mean(found) > 0.46
