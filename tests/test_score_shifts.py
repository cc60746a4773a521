"""Every defense and penalty says whether scores are still probabilities, and small runs agree with what it says."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from splitvfl.defenses import Purification, RandomisedResponse, Rounding
from splitvfl.errors import HookError
from splitvfl.hooks import crossing_of, hook_name, shifts_scores_of
from splitvfl.learning.tasks import Binary
from splitvfl.models import logistic_loss
from splitvfl.sklearn import SplitClassifier
from tests.builders import random
from tests.test_contract import DEFENSES, call_defense, secrets
from tests.test_contract_penalties import PENALTIES

# A minute of training its adversary.
_SLOW = {"adversarial-reconstruction"}
# One of each class: its other settings act alike.
_FIRST = {hook_name(row.make()): name for name, row in reversed(DEFENSES.items())}
LEARNED = [name for name in _FIRST.values() if crossing_of(DEFENSES[name].make()) != "scores"]
PUBLISHED = [name for name, row in DEFENSES.items() if crossing_of(row.make()) == "scores"]
# Noise on the labels of 600 records moves the mean of the scores by less: up to .052 here.
_BY_CHANCE = 0.065


def imbalanced() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(600, 6)).astype(np.float32)
    return X, (X[:, 0] + X[:, 3] + draw.normal(size=600) > 2.2).astype(int)


def mean_shift(**settings: Any) -> float:
    """How far the mean score is from the share of positive records."""
    X, y = imbalanced()
    common: dict[str, Any] = {"batch_size": 60, "random_state": 0, "audit": False}
    model = SplitClassifier({"lab": slice(3, None)}, **common, **settings).fit(X, y)
    scores = model._task.loss.scores(model._outputs(X))
    return abs(float(scores.mean()) - float(y.mean()))


@pytest.mark.parametrize("name", DEFENSES)
def test_every_defense_says_whether_it_shifts_scores(name: str) -> None:
    assert isinstance(DEFENSES[name].make().shifts_scores, str)


@pytest.mark.parametrize("name", PENALTIES)
def test_every_penalty_says_whether_it_shifts_scores(name: str) -> None:
    assert isinstance(PENALTIES[name]().shifts_scores, str)


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_learned_behind_a_defense_is_as_it_says(name: str) -> None:
    defense = DEFENSES[name].make()
    found = mean_shift(model="logistic-regression", epochs=6, learning_rate=0.2, defenses=[defense])
    assert (found > _BY_CHANCE) is bool(shifts_scores_of(defense))


@pytest.mark.parametrize("name", sorted(set(PENALTIES) - _SLOW))
def test_what_is_learned_with_a_penalty_is_as_it_says(name: str) -> None:
    model = {"name": "mlp", "bottom": [8], "sampled": name == "mutual-information-bottleneck"}
    penalties = [{"name": name, "weight": 0.01}]
    assert mean_shift(model=model, epochs=8, learning_rate=0.02, penalties=penalties) < _BY_CHANCE


def test_the_likelihood_of_answers_shifts_nothing() -> None:
    defense = RandomisedResponse(epsilon=1.0, corrected="likelihood")
    assert not shifts_scores_of(defense)
    assert mean_shift(model="logistic-regression", epochs=6, learning_rate=0.2, defenses=[defense]) < _BY_CHANCE


@pytest.mark.parametrize("name", PUBLISHED)
def test_scores_behind_a_defense_are_as_it_says(name: str) -> None:
    defense = DEFENSES[name].make()
    shares = np.random.default_rng(0).dirichlet([6.0, 2.0, 0.5], 400)
    scores = torch.from_numpy(shares)
    if getattr(defense, "direction", None) is not None:
        scores = scores[:, :2] / scores[:, :2].sum(dim=1, keepdim=True)
    sent = call_defense(defense, scores, secrets(random(0), dtype=torch.float64))
    moved = (sent.mean(dim=0) - scores.mean(dim=0)).abs().max().item()
    assert (moved > 0.006) is bool(shifts_scores_of(defense)) or isinstance(defense, Rounding)
    if isinstance(defense, Rounding):  # says so below three decimals
        assert moved <= 0.5 * 10.0**-defense.decimals


@pytest.mark.parametrize("approximation", ["taylor", "minimax", "piecewise"])
def test_an_approximated_loss_says_that_scores_are_another_sigmoid(approximation: Any) -> None:
    assert approximation in logistic_loss(approximation).shifts_scores
    assert not logistic_loss("exact").shifts_scores
    assert not Binary().loss.shifts_scores


def test_settings_decide_where_they_matter() -> None:
    assert not Purification(temperature=1.0).shifts_scores
    assert not Rounding(decimals=3).shifts_scores
    assert Rounding(decimals=2).shifts_scores


class Silent:
    name: ClassVar[str] = "silent"
    crossing: ClassVar[str] = "labels"


def test_a_custom_hook_that_does_not_say_is_told_of() -> None:
    assert shifts_scores_of(Silent()) == "silent: does not say whether scores are still probabilities"
    said = type("Said", (Silent,), {"shifts_scores": "halves"})()
    assert shifts_scores_of(said) == "silent: halves"
    assert not shifts_scores_of(type("Kept", (Silent,), {"shifts_scores": ""})())
    assert not shifts_scores_of(type("OfGradients", (Silent,), {"crossing": "gradient"})())
    with pytest.raises(HookError, match="must be a sentence"):
        shifts_scores_of(type("Wrong", (Silent,), {"shifts_scores": True})())
