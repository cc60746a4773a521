from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from splitvfl.defenses import AsymmetricResponse, MemoisedResponse
from splitvfl.defenses.corrected_response import Flips
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, call_defense, crossing_of

SecretsFactory = Callable[..., Secrets]


def definition_of_epsilon(flips: Flips) -> float:
    """Largest log ratio over both answers and both orders of the labels."""
    table = [[1 - flips.negative, flips.negative], [flips.positive, 1 - flips.positive]]
    ratios = [math.log(table[y][answer] / table[1 - y][answer]) for y, answer in itertools.product((0, 1), (0, 1))]
    return max(ratios)


def variance(negative: float, positive: float, positive_share: float) -> float:
    """Average variance of the corrected targets, from the two answers' probabilities and values."""
    delta = 1 - negative - positive
    values = np.array([-negative, 1 - negative]) / delta
    total = 0.0
    for share, label, yes in ((1 - positive_share, 0.0, negative), (positive_share, 1.0, 1 - positive)):
        total += share * float(np.dot([1 - yes, yes], (values - label) ** 2))
    return total


@given(detection_error=st.floats(0.05, 0.49), epsilon=st.floats(0.1, 20.0))
def test_flips_meet_both_promises_with_equality(detection_error: float, epsilon: float) -> None:
    if 1 - 2 * detection_error > math.tanh(epsilon / 2):
        with pytest.raises(ArgumentError, match="raise epsilon to at least"):
            AsymmetricResponse(detection_error=detection_error, epsilon=epsilon)
        return
    flips = AsymmetricResponse(detection_error=detection_error, epsilon=epsilon).flips

    assert 0 <= flips.negative < 1
    assert 0 <= flips.positive < 1
    # Best guess from one answer: total variation of two points is the difference of their probabilities.
    assert (flips.negative + flips.positive) / 2 == pytest.approx(detection_error, rel=1e-9)
    assert definition_of_epsilon(flips) == pytest.approx(epsilon, rel=1e-6)
    assert flips.epsilon == pytest.approx(definition_of_epsilon(flips), rel=1e-12)


@pytest.mark.parametrize("positive_share", [0.03, 0.25, 0.49])
@pytest.mark.parametrize(("detection_error", "epsilon"), [(0.4, 3.0), (0.3, 1.0), (0.45, 0.5)])
def test_no_other_flips_have_less_variance(positive_share: float, detection_error: float, epsilon: float) -> None:
    flips = AsymmetricResponse(detection_error=detection_error, epsilon=epsilon).flips
    ours = variance(*flips, positive_share)

    # Brute force over the line 1 - a - b = 1 - 2L.
    others = [Flips(b, 2 * detection_error - b) for b in np.linspace(0, 2 * detection_error, 8_001)[1:-1]]
    allowed = [variance(*other, positive_share) for other in others if definition_of_epsilon(other) <= epsilon]

    assert allowed
    # The grid's step moves the variance by less than 3e-3 of itself.
    assert ours <= min(allowed) * (1 + 1e-9)
    assert min(allowed) == pytest.approx(ours, rel=5e-3)


def test_the_docstring_tells_the_variances() -> None:
    flips = AsymmetricResponse(detection_error=0.4, epsilon=3.0).flips
    symmetric = MemoisedResponse(flip=0.4)

    assert variance(*flips, 0.067) == pytest.approx(0.5, abs=0.05)
    assert variance(*symmetric.flips, 0.067) == pytest.approx(6.0, abs=0.05)
    assert symmetric.epsilon == pytest.approx(0.41, abs=0.005)


@pytest.mark.parametrize("rare", ["positive", "negative"])
@pytest.mark.parametrize("epsilon", [2.0, None])
def test_answers_and_targets_are_what_is_promised(
    rare: Any, epsilon: float | None, secrets_for_test: SecretsFactory
) -> None:
    n = 40_000
    labels = (torch.arange(n) % 2).double()
    defense = AsymmetricResponse(detection_error=0.3, epsilon=epsilon, rare=rare)

    targets = call_defense(defense, labels, secrets_for_test(labels, ids=torch.arange(n)))

    flips = defense.flips
    assert (flips.positive > flips.negative) == (rare == "positive")
    for label, lie in ((0.0, flips.negative), (1.0, flips.positive)):
        part = targets[labels == label]
        lied = ((part > 0.5).double() != label).double().mean().item()
        error = 5 * math.sqrt(lie * (1 - lie) / (n / 2))  # five standard errors of a binomial share
        assert lied == pytest.approx(lie, abs=error)
        assert part.mean().item() == pytest.approx(label, abs=error / flips.total_variation)
    # A reader of the answers: AUC 1 - L, with a standard error below .003 at this size.
    assert roc_auc_score(labels.numpy(), targets.numpy()) == pytest.approx(0.7, abs=0.015)


def test_equality_in_the_condition_is_the_symmetric_response() -> None:
    epsilon = 1.5
    flips = AsymmetricResponse(detection_error=(1 - math.tanh(epsilon / 2)) / 2 + 1e-12, epsilon=epsilon).flips

    assert flips.negative == pytest.approx(MemoisedResponse(epsilon=epsilon).flip, abs=1e-9)
    assert flips.positive == pytest.approx(flips.negative, abs=1e-9)


def test_without_a_bound_the_common_class_never_lies(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}
    defense = AsymmetricResponse(detection_error=0.4, epsilon=None)

    targets = call_defense(defense, torch.zeros(1000), secrets_for_test(ids=torch.arange(1000), log=logged.__setitem__))

    assert not targets.any()
    assert math.isinf(defense.epsilon)
    assert logged == {"detection_error_bound": 0.4}
    assert crossing_of(defense) == "labels"


def test_it_logs_what_it_promises(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}

    call_defense(
        AsymmetricResponse(detection_error=0.4, epsilon=2.0),
        torch.ones(2),
        secrets_for_test(ids=torch.arange(2), log=logged.__setitem__),
    )

    assert logged == pytest.approx({"epsilon": 2.0, "detection_error_bound": 0.4})


def test_a_record_answers_once_and_after_a_restart(secrets_for_test: SecretsFactory, tmp_path: Any) -> None:
    defense = AsymmetricResponse(detection_error=0.3)
    restarted = AsymmetricResponse(detection_error=0.3)
    ids = 10**12 * torch.arange(300)

    first = call_defense(defense, torch.ones(300), secrets_for_test(ids=ids, seed=1))
    torch.save(defense.state_dict(), tmp_path / "state")
    restarted.load_state_dict(torch.load(tmp_path / "state", weights_only=True))

    assert 0 < first.double().mean() < first.max()  # some of each answer
    assert torch.equal(call_defense(defense, torch.zeros(300), secrets_for_test(ids=ids, seed=2)), first)
    assert torch.equal(call_defense(restarted, torch.zeros(300), secrets_for_test(ids=ids, seed=3)), first)
    with pytest.raises(ArgumentError, match="expected answers drawn with"):
        AsymmetricResponse(detection_error=0.2).load_state_dict(defense.state_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"detection_error": 0.5}, "strictly between 0 and 0.5, got 0.5"),
        ({"detection_error": 0.4, "epsilon": 0.0}, "positive and finite, or None"),
        ({"detection_error": 0.4, "epsilon": math.inf}, "positive and finite, or None"),
        ({"detection_error": 0.4, "epsilon": math.nan}, "positive and finite, or None"),
        ({"detection_error": 0.4, "rare": "both"}, "'positive' or 'negative', got 'both'"),
        ({"detection_error": 0.1, "epsilon": 1.0}, "raise epsilon to at least 2.1973, or the detection error to 0.269"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AsymmetricResponse(**settings)


@given(detection_error=st.floats(0.001, 0.499))
def test_the_epsilon_that_a_refusal_advises_is_accepted(detection_error: float) -> None:
    with pytest.raises(ArgumentError, match="raise epsilon to at least") as refused:
        AsymmetricResponse(detection_error=detection_error, epsilon=1e-3)
    advised = re.search(r"at least ([\d.]+)", str(refused.value))
    assert advised is not None
    assert AsymmetricResponse(detection_error=detection_error, epsilon=float(advised[1])).epsilon < math.inf


def test_an_epsilon_without_lies_is_refused() -> None:
    with pytest.raises(ArgumentError, match="epsilon 1000 is too large"):
        AsymmetricResponse(detection_error=0.4, epsilon=1000.0)
