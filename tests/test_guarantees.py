"""The AUC that each kind of claim allows, against the area that its trade-off of errors leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats
from torch import Tensor

from splitvfl.claims import (
    DetectionError,
    GaussianDP,
    Guarantee,
    PureDP,
    auc_of_detection_error,
    auc_of_epsilon,
    auc_of_mu,
    auc_of_randomised_classes,
    claims_of,
    guarantee_of,
    promises_of_labels,
    tightest,
)
from splitvfl.defenses import (
    AbstainingResponse,
    AsymmetricResponse,
    LaplaceResidue,
    MemoisedResponse,
    RandomisedResponse,
)
from splitvfl.errors import ArgumentError
from splitvfl.exchange.split import Split
from splitvfl.hooks import Secrets
from splitvfl.party.attaching import label_guarantee
from splitvfl.privacy.accounting import MessagesPerUse, PrivacyBudget
from splitvfl.privacy.composition import PrivacyLoss
from splitvfl.report.verdict import LabelEvidence, label_verdict
from tests.builders import ACTIVE, linear_trainer, small_trainer

Errors = npt.NDArray[np.float64]

ANSWERS = Guarantee(0.60, "run", "asymmetric-response")
NOISE = Guarantee(0.64, "run", "record-gaussian")


def _area(trade_off: Callable[[Errors], Errors]) -> float:
    """Return the area under the curve of true against false positives that a trade-off of errors leaves."""
    false = (np.arange(200_000) + 0.5) / 200_000
    return float(np.mean(1.0 - trade_off(false)))


@pytest.mark.parametrize("error", [0.0, 0.1, 0.4, 0.5])
def test_the_auc_of_a_detection_error_is_the_area_of_its_trade_off(error: float) -> None:
    assert auc_of_detection_error(error) == pytest.approx(
        _area(lambda false: np.maximum(0.0, 2.0 * error - false)), abs=1e-5
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 4.0])
def test_the_auc_of_epsilon_is_the_area_of_its_trade_off(epsilon: float) -> None:
    def trade_off(false: Errors) -> Errors:
        steep, flat = 1.0 - np.exp(epsilon) * false, np.exp(-epsilon) * (1.0 - false)
        found: Errors = np.maximum(0.0, np.maximum(steep, flat))
        return found

    assert auc_of_epsilon(epsilon) == pytest.approx(_area(trade_off), abs=1e-4)


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
def test_the_auc_of_mu_is_the_area_of_its_trade_off(mu: float) -> None:
    def trade_off(false: Errors) -> Errors:
        found: Errors = scipy.stats.norm.cdf(scipy.stats.norm.isf(false) - mu)
        return found

    assert auc_of_mu(mu) == pytest.approx(_area(trade_off), abs=1e-4)


def test_equal_detection_errors_are_no_equal_aucs() -> None:
    # 60 of 100: randomised labels of L = 0.4, and Gaussian noise of the same detection error.
    mu = -2.0 * float(scipy.stats.norm.ppf(0.4))
    assert auc_of_epsilon(math.log(0.6 / 0.4)) == pytest.approx(0.60)
    assert auc_of_mu(mu) == pytest.approx(0.640, abs=5e-4)
    assert auc_of_detection_error(0.4) == pytest.approx(0.68)


def test_a_guarantee_of_the_run_is_tighter_than_any_of_a_message() -> None:
    of_message = Guarantee(0.51, "message", "a")
    assert tightest(of_message, NOISE, ANSWERS) == ANSWERS
    assert tightest(of_message, replace(ANSWERS, void=("early stopping",))) == of_message
    assert tightest() is None


@pytest.mark.parametrize(
    ("claim", "auc"),
    [
        (GaussianDP(1.0, per="run"), auc_of_mu(1.0)),
        (PureDP(1.0), auc_of_epsilon(1.0)),
        (DetectionError(0.4), 0.68),
        (DetectionError(0.4, auc=0.6), 0.6),
        (DetectionError(0.5), 0.5),
    ],
)
def test_a_claim_guarantees_its_own_auc_where_it_states_one(
    claim: GaussianDP | PureDP | DetectionError, auc: float
) -> None:
    found = guarantee_of(claim, "x", void=("early stopping",))
    assert found.auc == pytest.approx(auc)
    assert (found.scope, found.source, found.of_run) == (claim.per, "x", False)


def test_no_guarantee_is_below_a_guess() -> None:
    with pytest.raises(ArgumentError, match=r"from 0\.5 to 1"):
        replace(ANSWERS, auc=0.4)


# --- randomised labels, by enumeration


def _best_auc(yes: Errors, no: Errors) -> float:
    """Return the AUC of whoever ranks answers by their likelihood ratio, from every pair of answers."""
    found = 0.0
    for one, likely in enumerate(yes):
        for other, rare in enumerate(no):
            ahead = yes[one] * no[other] - yes[other] * no[one]  # the ratio of one against that of the other
            found += likely * rare * (1.0 if ahead > 1e-12 else 0.5 if ahead > -1e-12 else 0.0)
    return found


def _answers(classes: int, epsilon: float) -> Errors:
    """Return P(answer | class), a row for each class."""
    truth = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    return np.where(np.eye(classes, dtype=bool), truth, (1.0 - truth) / (classes - 1))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.1, 1.5, 6.0])
def test_the_auc_of_k_classes_is_that_of_every_pair_of_answers(classes: int, epsilon: float) -> None:
    table = _answers(classes, epsilon)
    by_pairs = [_best_auc(table[one], table[other]) for one, other in permutations(range(classes), 2)]
    assert by_pairs == pytest.approx([auc_of_randomised_classes(epsilon, classes)] * len(by_pairs), abs=1e-12)
    assert max(by_pairs) <= auc_of_epsilon(epsilon) + 1e-12


def _flips(defense: Any) -> Errors:
    a, b = defense.flips.positive, defense.flips.negative
    return np.array([[1.0 - b, b], [a, 1.0 - a]])


def _silent(defense: Any) -> Errors:
    speaks, lies = defense.speaking, defense.flip
    no = np.array([speaks * (1.0 - lies), speaks * lies, 1.0 - speaks])
    return np.stack([no, no[[1, 0, 2]]])


@pytest.mark.parametrize(
    ("defense", "table"),
    [
        (RandomisedResponse(epsilon=1.5), _answers(2, 1.5)),
        (RandomisedResponse(epsilon=1.5, classes=10), _answers(10, 1.5)),
        (MemoisedResponse(flip=0.2), _flips(MemoisedResponse(flip=0.2))),
        (AsymmetricResponse(detection_error=0.4), _flips(AsymmetricResponse(detection_error=0.4))),
        (
            AsymmetricResponse(detection_error=0.4, epsilon=None),
            _flips(AsymmetricResponse(detection_error=0.4, epsilon=None)),
        ),
        (AbstainingResponse(detection_error=0.4), _silent(AbstainingResponse(detection_error=0.4))),
        (
            AbstainingResponse(detection_error=0.4, epsilon=None),
            _silent(AbstainingResponse(detection_error=0.4, epsilon=None)),
        ),
    ],
    ids=["two", "ten", "memoised", "asymmetric", "asymmetric-certain", "abstaining", "abstaining-certain"],
)
def test_randomised_labels_guarantee_the_exact_auc_of_their_answers(defense: Any, table: Errors) -> None:
    found = tightest(*(guarantee_of(claim, defense.name) for claim in promises_of_labels(claims_of(defense))))
    assert found is not None
    assert found.of_run
    assert found.auc == pytest.approx(_best_auc(table[1], table[0]), abs=1e-9)


# --- calculated noise


def _account(cost: PrivacyLoss, *, epochs: int = 3) -> PrivacyBudget:
    stream = MessagesPerUse(ACTIVE, ("telecom",), {"label": cost}, steps_per_epoch=3)
    return PrivacyBudget([stream], steps=3 * epochs, delta=1e-5, relation="label")


def test_an_account_guarantees_what_its_steps_have_spent_and_before_the_first_what_is_planned() -> None:
    active = small_trainer().active
    account = _account(PrivacyLoss(mu=0.2, unmatched=1e-3))

    def bound() -> float:
        found = label_guarantee(active, "telecom", epochs=3, account=account)
        assert found is not None
        assert found.of_run
        return found.auc

    assert bound() == pytest.approx(auc_of_mu(0.2 * math.sqrt(3)) + 3e-3)
    for step in range(6):
        account.begin(step)
    assert bound() == pytest.approx(auc_of_mu(0.2 * math.sqrt(2)) + 2e-3)


def test_a_planned_budget_that_ends_before_counts_until_it_ends() -> None:
    stream = MessagesPerUse(ACTIVE, ("telecom",), {"label": PrivacyLoss(mu=0.2)}, steps_per_epoch=1)
    account = PrivacyBudget([stream], steps=100, delta=1e-5, relation="label", epsilon=1.0)
    found = label_guarantee(small_trainer().active, "telecom", epochs=100, account=account)
    assert found is not None
    assert found.auc == pytest.approx(auc_of_mu(0.2 * math.sqrt(account.last_step)))
    assert account.last_step < 100


def test_an_account_of_other_releases_or_of_rows_alone_guarantees_no_auc_of_labels() -> None:
    active = small_trainer().active
    assert label_guarantee(active, "telecom", epochs=3, account=_account(PrivacyLoss.laplace_releases(0.1))) is None
    rows = MessagesPerUse("telecom", (ACTIVE,), {"row": PrivacyLoss(mu=0.1)}, steps_per_epoch=3)
    assert label_guarantee(active, "telecom", epochs=3, account=PrivacyBudget([rows], steps=9, delta=1e-5)) is None
    assert label_guarantee(active, "telecom", epochs=3) is None


class Nothing:
    """A gradient's defense that adds no noise, and claims what a test wants."""

    name = "laplace-residue"  # as another is called
    crossing = "gradient"

    def __init__(self, *stated: Any) -> None:
        self.stated = stated

    def claims(self) -> Any:
        return self.stated

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message


class Derived(RandomisedResponse):
    """Inherits what is claimed, and may have changed all that it calls."""


@pytest.mark.parametrize(
    ("defense", "owner"),
    [
        (Nothing(DetectionError(0.45, per="run")), "Nothing"),
        (Nothing(GaussianDP(0.1, per="run")), "Nothing"),
        (Nothing(PureDP(0.1, per="run")), "Nothing"),
        (Nothing(PureDP(0.1)), "Nothing"),  # which adds up over the run
        (Derived(epsilon=0.1), "Derived"),
        (RandomisedResponse(epsilon=0.1), ""),
        (LaplaceResidue(epsilon=0.1), ""),
    ],
    ids=["error", "gaussian", "pure", "messages", "derived", "of splitvfl", "messages of splitvfl"],
)
def test_what_a_class_outside_claims_is_no_guarantee_of_the_run(defense: Any, owner: str) -> None:
    active = linear_trainer(defenses=[defense], exchange=Split(own_part="sent"), audit=False).active
    found = label_guarantee(active, next(iter(active.cuts)), epochs=3, own_part="sent")
    assert found is not None
    assert found.auc < 0.6  # it is shown, as what it is
    verdict = label_verdict(LabelEvidence(guarantee=found), goal=0.6)
    if owner:
        claimed = f"claimed by {__name__}:{owner}, not checked"
        assert claimed in found.void
        assert found.why_void == claimed
        assert (verdict.state, found.of_run) == ("inconclusive", False)
    else:
        assert (verdict.state, found.of_run, found.why_void) == ("below-goal", True, "")


def test_what_voids_a_guarantee_is_said_of_each() -> None:
    void = ("early stopping", "class weights", "claimed by bad:Bad, not checked")
    assert replace(ANSWERS, void=void).why_void == (
        "claimed by bad:Bad, not checked; the partner sees early stopping and class weights, made from labels"
    )
