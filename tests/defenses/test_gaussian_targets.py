"""GaussianTargets: what is drawn, when, from what; and the claim, whose runs are in test_record_gaussian.py."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from splitvfl import SplitModel
from splitvfl.app.trainer import Trainer
from splitvfl.claims import GaussianDP, RunPlan, claims_of
from splitvfl.cut.layer import responses_of
from splitvfl.defenses import GaussianTargets
from splitvfl.errors import ArgumentError, ConfigError, PrivacyError, SplitVFLError
from splitvfl.exchange.taylor import Taylor
from splitvfl.hooks import Secrets, call_defense
from splitvfl.learning.tasks import Multiclass, Regression
from splitvfl.metrics import leak_auc
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.builders import random
from tests.defenses.test_record_gaussian import MU, ONES, a_run, halves, noise_moved, party_data
from tests.exchange.logistic import SHORT

NORMAL = NormalDist()
COUNT = 200_000


def secrets(ids: Tensor, *, seed: int = 0) -> Secrets:
    return Secrets(party="bank", step=0, generator=random(seed), ids=ids)


@pytest.mark.parametrize("remembered", [True, False])
def test_a_label_is_as_private_as_a_shift_of_gaussian_noise(remembered: bool) -> None:
    defense = GaussianTargets(mu=MU, remembered=remembered, **({} if remembered else {"epochs": 1}))
    labels = halves(COUNT)
    targets = defense(labels, secrets(torch.arange(COUNT)))
    near = 4 * 0.5 / math.sqrt(COUNT / 2)  # four standard errors of a share of half of them
    wrong = ((targets > 0.5).double() - labels).abs()
    error = 0.5 * (wrong[labels == 0].mean() + wrong[labels == 1].mean()).item()
    assert error == pytest.approx(NORMAL.cdf(-MU / 2), abs=near)
    assert leak_auc(targets, labels) == pytest.approx(NORMAL.cdf(MU / math.sqrt(2)), abs=near)
    assert targets.mean().item() == pytest.approx(0.5, abs=4 / MU / math.sqrt(COUNT))


def test_epochs_of_fresh_noise_add_up_to_what_was_promised() -> None:
    epochs, labels = 8, halves(COUNT // 4)
    defense = GaussianTargets(mu=MU, remembered=False, epochs=epochs)
    own = secrets(torch.arange(len(labels)))
    total = sum((defense(labels, own) for _ in range(epochs)), torch.zeros_like(labels))
    near = 4 * 0.5 / math.sqrt(len(labels) / 2)
    assert leak_auc(total, labels) == pytest.approx(NORMAL.cdf(MU / math.sqrt(2)), abs=near)
    with pytest.raises(PrivacyError, match="is for 8 messages of a record, one in each epoch"):
        defense(labels, own)


def test_noise_of_classes_sums_to_zero_and_hides_every_pair_alike() -> None:
    classes, count = 4, 200_000
    labels = torch.arange(count) % classes
    defense = GaussianTargets(mu=MU, classes=classes)
    targets = call_defense(defense, labels, secrets(torch.arange(count))).double()
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(count, dtype=torch.float64), atol=1e-5, rtol=0.0)
    near = 4 * 0.5 / math.sqrt(count / classes)
    for first in range(classes):
        for second in range(first):
            of_first, of_second = targets[labels == first], targets[labels == second]
            ahead = [rows[:, first] > rows[:, second] for rows in (of_first, of_second)]
            error = 0.5 * (1 - ahead[0].double().mean() + ahead[1].double().mean()).item()
            assert error == pytest.approx(NORMAL.cdf(-MU / 2), abs=near)
    # What a later defense gets is computed from it: the largest class.
    assert torch.equal(responses_of(targets.float()), targets.float().argmax(dim=1))


def test_a_range_is_covered_and_labels_outside_are_taken_for_its_ends() -> None:
    defense = GaussianTargets(mu=MU, label_range=(-2.0, 6.0))
    labels = torch.where(halves(COUNT) == 1, 99.0, -99.0)
    targets = defense(labels, secrets(torch.arange(COUNT)))
    near = 4 * 0.5 / math.sqrt(COUNT / 2)
    assert leak_auc(targets, halves(COUNT)) == pytest.approx(NORMAL.cdf(MU / math.sqrt(2)), abs=near)
    assert defense.sigma == pytest.approx(8.0 / MU)
    assert targets.mean().item() == pytest.approx(2.0, abs=4 * 8 / MU / math.sqrt(COUNT))


def test_a_remembered_target_stays_whatever_is_asked() -> None:
    defense = GaussianTargets(mu=MU)
    ids = torch.tensor([5, 2, 5, 1 << 40])
    first = defense(torch.tensor([1.0, 0.0, 1.0, 1.0]), secrets(ids))
    again = defense(torch.tensor([0.0, 1.0, 0.0, 0.0]), secrets(ids, seed=9))
    assert torch.equal(first, again)
    assert first[0] == first[2] != first[1]
    resumed = GaussianTargets(mu=MU)
    resumed.load_state_dict(defense.state_dict())
    assert torch.equal(resumed(torch.zeros(4), secrets(ids, seed=3)), first)
    with pytest.raises(ArgumentError, match="expected targets drawn with mu 2"):
        GaussianTargets(mu=2.0).load_state_dict(defense.state_dict())


def test_memory_is_that_of_the_records_and_not_of_the_steps() -> None:
    defense = GaussianTargets(mu=MU)

    def size() -> int:
        columns = defense.state_dict()["targets"]["columns"].values()
        return sum(column.numel() * column.element_size() for column in columns)

    for _ in range(3):
        for start in range(0, 1000, 100):
            defense(torch.zeros(100), secrets(torch.arange(start, start + 100)))
    assert size() == 5 * 1000


def test_fresh_targets_of_one_record_in_a_batch_are_one() -> None:
    defense = GaussianTargets(mu=MU, remembered=False, epochs=2)
    targets = defense(torch.tensor([1.0, 0.0, 1.0]), secrets(torch.tensor([4, 8, 4])))
    assert targets[0] == targets[2]
    with pytest.raises(PrivacyError, match="have different labels"):
        defense(torch.tensor([1.0, 0.0, 0.0]), secrets(torch.tensor([4, 8, 4])))


@pytest.mark.parametrize(
    ("settings", "mu", "per"),
    [
        ({"sigma": 2.0}, 0.5, "run"),
        ({"sigma": 2.0, "classes": 3}, math.sqrt(2) / 2, "run"),
        ({"sigma": 2.0, "label_range": (1.0, 4.0)}, 1.5, "run"),
        ({"sigma": 2.0, "remembered": False}, 0.5, "message"),
        ({"sigma": 2.0, "remembered": False, "epochs": 9}, 1.5, "run"),
        ({"mu": 0.7, "remembered": False}, 0.7, "run"),
        ({"detection_error": 0.4}, -2 * NORMAL.inv_cdf(0.4), "run"),
    ],
)
def test_what_is_claimed(settings: dict[str, Any], mu: float, per: Any) -> None:
    (claim,) = claims_of(GaussianTargets(**settings))
    assert isinstance(claim, GaussianDP)
    assert (claim.mu, claim.per, claim.unit) == (pytest.approx(mu), per, "label of a record")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "exactly one of sigma, mu, epsilon together with delta, and detection_error, got none"),
        ({"epsilon": 3.0}, "got epsilon without delta"),
        ({"sigma": 1.0, "mu": 1.0}, "go without mu"),
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"mu": 1.0, "classes": 1}, "classes must be at least 2"),
        ({"mu": 1.0, "epochs": 3}, "epochs, at least 1, go with remembered=False"),
        ({"mu": 1.0, "classes": 3, "label_range": (0.0, 1.0)}, "without a label_range"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        GaussianTargets(**settings)


@pytest.mark.parametrize(
    ("settings", "labels", "text"),
    [
        ({}, torch.tensor([0.0, 2.0]), r"labels must be 0 or 1, got \[0.0, 2.0\]; for regression say label_range"),
        ({}, torch.tensor([0, 1]), "floating-point dtype"),
        ({"classes": 3}, torch.tensor([0, 3]), "whole numbers from 0 to 2"),
        ({"classes": 3}, torch.tensor([0.0, 1.0]), "whole numbers from 0 to 2"),
        ({"label_range": (0.0, 1.0)}, torch.tensor([0.5, math.nan]), "must be finite"),
    ],
)
def test_other_labels_are_refused(settings: dict[str, Any], labels: Tensor, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        GaussianTargets(mu=MU, **settings)(labels, secrets(torch.arange(2)))


@pytest.mark.parametrize(
    ("defense", "settings", "text"),
    [
        (GaussianTargets(mu=1.0, remembered=False, epochs=9), {}, "promised over 9 epochs, and the run has 3"),
        (
            GaussianTargets(mu=1.0, classes=3),
            {},
            r"was made for 3 classes, and a binary task here has 2 classes; say classes: 2",
        ),
        (GaussianTargets(mu=1.0), {"task": Regression()}, r"here has no classes; say label_range: \[low, high\]"),
    ],
)
def test_what_would_void_the_promise_is_refused_before_the_first_step(
    defense: Any, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(SplitVFLError, match=text):
        a_run([defense], ONES, **settings)


def test_in_a_loop_of_ones_own_fresh_noise_needs_the_number_of_epochs() -> None:
    with pytest.raises(PrivacyError, match=r"in a loop of your own say epochs="):
        GaussianTargets(mu=1.0, remembered=False)(torch.zeros(2), secrets(torch.arange(2)))
    fresh = GaussianTargets(mu=1.0, remembered=False)
    fresh.plan_run(RunPlan(epochs=4))
    assert fresh.sigma == pytest.approx(2.0)
    with pytest.raises(ConfigError, match="promised over 4 epochs, and the run has 5"):
        fresh.plan_run(RunPlan(epochs=5))


def test_classes_are_learned_from_one_number_for_each() -> None:
    """In parties and in a model of one's own: the gradient is p − t, of which any multiple would be another loss."""
    torch.manual_seed(0)
    columns, labels = torch.randn(64, 4), torch.arange(64) % 3
    top = nn.Linear(5, 3)
    model = SplitModel(nn.Linear(4, 5), top)
    model.defend(GaussianTargets(mu=MU, classes=3), noise_seed_for_experiments=0)
    outputs = model(columns, labels=labels, ids=torch.arange(64))
    targets = model.targets(labels, ids=torch.arange(64))
    assert targets.shape == (64, 3)
    outputs.retain_grad()
    functional.cross_entropy(outputs, targets).backward()
    assert outputs.grad is not None
    torch.testing.assert_close(outputs.grad, (outputs.softmax(1).detach() - targets) / 64, atol=1e-6, rtol=1e-4)


def test_a_run_of_classes_and_one_of_a_range_go_through_the_parties() -> None:
    for task, labels, settings in (
        (Multiclass(3), torch.arange(32) % 3, {"classes": 3}),
        (Regression(), torch.linspace(0.0, 2.0, 32), {"label_range": (0.0, 2.0)}),
    ):
        weights, sent = a_run([GaussianTargets(mu=MU, **settings)], labels, task=task)  # type: ignore[arg-type]
        assert all(bool(value.isfinite().all()) for value in weights.values())
        assert len(sent) == 12


def test_under_encryption_a_label_enters_through_its_target_alone() -> None:
    other = ONES.clone()
    other[5] = 1 - other[5]

    def trained(labels: Tensor) -> dict[str, Tensor]:
        torch.manual_seed(0)
        trainer = Trainer(
            ActiveParty(party_data("bank", torch.randn(32, 2), labels), LinearTop(1, 1, active_inputs=2)),
            {"telecom": PassiveParty(party_data("telecom", torch.randn(32, 2), None), Linear(2, 1))},
            defenses=[GaussianTargets(mu=MU)],
            batch_size=16,
            noise_seed_for_experiments=5,
            exchange=Taylor(rows=16, encryption=SHORT),
            audit=False,
        )
        trainer.fit(1)
        return dict(trainer.passives["telecom"].bottom.state_dict())

    weights = trained(ONES)
    with noise_moved((ONES[5] - other[5]).item() * MU, record=5, remembered=True):
        again = trained(other)
    assert torch.equal(weights["weight"], again["weight"])
    assert not torch.equal(weights["weight"], trained(other)["weight"])
