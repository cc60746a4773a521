from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.privacy import (
    GaussianEvaluations,
    GaussianMessages,
    HdpTraining,
    MessagesPerUse,
    PrivacyBudget,
    PrivacyLoss,
    gaussian_delta,
    hdp_sigma,
    k_fold_epsilon,
    not_covered,
)

SETTING: dict[str, Any] = {"steps_per_epoch": 4, "batch_size": 16, "eta": 0.1, "k": 1.0, "lipschitz": 1.0}
LOGISTIC: dict[str, Any] = {"beta_theta": 0.25, "beta_y": 0.5, "k_y": 1.0}
PASSIVE = HdpTraining(party="passive", **SETTING)
ACTIVE = HdpTraining(party="active", **SETTING, **LOGISTIC)
LABEL = HdpTraining(party="active", **SETTING, **LOGISTIC, changed="label")
STEPS = 20


def streams(sigma: float = 20.0, **active: Any) -> list[GaussianMessages]:
    """A bank with labels and two passive parties."""
    return [
        GaussianMessages("bank", ("shop", "telecom"), {"row": ACTIVE, "label": LABEL}, sigma, **active),
        GaussianMessages("shop", ("bank",), {"row": PASSIVE}, sigma),
        GaussianMessages("telecom", ("bank",), {"row": PASSIVE}, 2 * sigma),
    ]


def begun(budget: PrivacyBudget, steps: int) -> PrivacyBudget:
    for step in range(steps):
        budget.begin(step)
    return budget


def evaluations(**changes: Any) -> GaussianEvaluations:
    settings = {"training": PASSIVE, "sigma": 0.5, "records": 50, "after": (8, 16)}
    return GaussianEvaluations("shop", ("bank",), **(settings | changes))


# What was spent.


def test_what_is_spent_is_the_sensitivity_so_far_over_the_noise() -> None:
    budget = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), 7)

    spent = budget.spent("shop")

    assert spent.mu == pytest.approx(PASSIVE.sensitivity(7) / 20.0)
    assert spent.zcdp == pytest.approx(spent.mu**2 / 2)
    assert gaussian_delta(20.0, spent.epsilon, sensitivity=PASSIVE.sensitivity(7)) == pytest.approx(1e-5, rel=1e-6)
    assert (spent.steps, spent.coalition, spent.senders) == (7, ("bank",), ("shop",))
    assert budget.planned("shop").mu == pytest.approx(PASSIVE.sensitivity(STEPS) / 20.0)


def test_before_the_first_step_nothing_is_spent() -> None:
    budget = PrivacyBudget(streams(), steps=STEPS, delta=1e-5)

    assert (budget.spent("shop").epsilon, budget.outsider().epsilon, budget.begun) == (0.0, 0.0, 0)


def test_one_label_costs_less_than_the_row_with_its_label() -> None:
    budget = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), STEPS)

    label, row = budget.spent("bank", relation="label"), budget.spent("bank")

    assert label.mu == pytest.approx(LABEL.sensitivity(STEPS) / 20.0)
    assert label.epsilon < row.epsilon


def test_an_outsider_reads_the_rows_of_all_parties() -> None:
    budget = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), STEPS)

    outsider = budget.outsider()

    squares = sum(budget.spent(name).mu ** 2 for name in ("bank", "shop", "telecom"))
    assert outsider.mu**2 == pytest.approx(squares)
    assert outsider.relation == "record"


def test_records_of_one_entity_cost_so_many_times_mu() -> None:
    budget = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), STEPS)

    assert budget.spent("shop", group=3).mu == pytest.approx(3 * budget.spent("shop").mu)
    assert budget.outsider(group=3).epsilon > budget.outsider().epsilon


def test_draws_of_their_own_cost_root_p_whoever_looks() -> None:
    one = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), STEPS)
    own = begun(PrivacyBudget(streams(one_draw=False), steps=STEPS, delta=1e-5), STEPS)

    for coalition in (("shop",), ("shop", "telecom"), None):
        assert own.spent("bank", to=coalition).mu == pytest.approx(math.sqrt(2) * one.spent("bank", to=coalition).mu)
    # Who receives nothing may see what the others make of it.
    assert one.spent("shop", to=("telecom",)).mu == one.spent("shop").mu
    assert one.spent("shop", to=()).mu == 0.0


def test_rounding_and_what_is_never_drawn_are_counted_by_the_number() -> None:
    exact = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), 9).spent("bank")
    rough = begun(PrivacyBudget(streams(grid=1e-3, unmatched=1e-9), steps=STEPS, delta=1e-5), 9).spent("bank")

    # Nine batches of 16 numbers, each up to a thousandth of the noise off, and each with a chance of 1e-9.
    assert rough.mu == pytest.approx(exact.mu + 1e-3 * 12)
    alone = gaussian_delta(1.0, rough.epsilon, sensitivity=rough.mu)
    assert alone == pytest.approx(1e-5 - 144e-9, rel=1e-6)
    assert PrivacyLoss(mu=rough.mu, unmatched=144e-9).delta(rough.epsilon) == pytest.approx(1e-5, rel=1e-6)
    hopeless = begun(PrivacyBudget(streams(unmatched=1e-5), steps=STEPS, delta=1e-5), 1).spent("bank")
    assert math.isinf(hopeless.epsilon)


def test_a_log_has_what_was_spent_without_the_plan() -> None:
    budget = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), 9)

    assert budget.spent_on_everything() == [spent for spent, _ in budget.everything()]
    assert [(each.of, each.steps) for each in budget.spent_on_everything()][-1] == ("record at all parties", 9)


# Messages that cost the same at each use.


def per_use(**how: Any) -> MessagesPerUse:
    costs = {"label": PrivacyLoss.laplace_releases(0.05)}
    return MessagesPerUse("bank", ("shop", "telecom"), costs, steps_per_epoch=4, **how)  # type: ignore[arg-type]


def test_noise_on_residues_adds_up_over_the_epochs_that_were_begun() -> None:
    budget = begun(PrivacyBudget([per_use()], steps=STEPS, delta=1e-5, relation="label"), 9)

    spent = budget.spent("bank", relation="label")

    # Two epochs and a step of the third: some record was used three times.
    assert spent.epsilon == pytest.approx(PrivacyLoss.laplace_releases(0.05, 3).guarantee(1e-5).epsilon)
    assert spent.epsilon <= k_fold_epsilon(0.05, 3, 1e-5)


def test_remembered_answers_are_paid_for_once() -> None:
    budget = begun(PrivacyBudget([per_use(remembered=True)], steps=STEPS, delta=1e-5, relation="label"), STEPS)

    assert budget.spent("bank", relation="label").epsilon == pytest.approx(0.05 + 2 * math.log1p(-1e-5))


@pytest.mark.parametrize(
    ("how", "coalition", "uses"),
    [
        ({"one_draw": False}, ("shop",), 10),
        ({"one_draw": False, "answered": False}, ("shop",), 5),
        ({"one_draw": False, "answered": False}, ("shop", "telecom"), 10),
        ({"answered": False}, ("insurer",), 0),
        ({}, ("insurer",), 5),
    ],
)
def test_who_sees_which_draws(how: dict[str, Any], coalition: tuple[str, ...], uses: int) -> None:
    budget = begun(PrivacyBudget([per_use(**how)], steps=STEPS, delta=1e-5, relation="label"), STEPS)

    spent = budget.spent("bank", to=coalition, relation="label")

    assert spent.zcdp == pytest.approx(uses * 0.05**2 / 2)


# Limits.


def test_noise_for_a_budget_spends_it_and_no_more() -> None:
    sigma = hdp_sigma({"row": PASSIVE}, STEPS, epsilon=1.0, delta=1e-5)
    shop = GaussianMessages("shop", ("bank",), {"row": PASSIVE}, sigma)

    budget = PrivacyBudget([shop], steps=STEPS, delta=1e-5, epsilon=1.0)

    assert budget.planned("shop").epsilon == pytest.approx(1.0, rel=1e-8)
    assert budget.last_step == STEPS
    assert hdp_sigma({"row": PASSIVE}, STEPS, epsilon=1.0, delta=1e-5, group=3, draws=4) == pytest.approx(6 * sigma)
    assert hdp_sigma({"label": LABEL}, STEPS, epsilon=1.0, delta=1e-5) == pytest.approx(
        sigma * LABEL.sensitivity(STEPS) / PASSIVE.sensitivity(STEPS)
    )


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0.05, 0.98), relation=st.sampled_from(["row", "record", "label"]), group=st.integers(1, 3))
def test_training_ends_before_the_step_that_would_overspend(share: float, relation: Any, group: int) -> None:
    def worst(steps: int) -> float:
        """The largest ε that is limited, after so many steps of a run without a limit."""
        free = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), steps)
        if relation == "record":
            return free.outsider(group=group).epsilon
        names = ("bank",) if relation == "label" else ("bank", "shop", "telecom")
        return max(free.spent(name, relation=relation, group=group).epsilon for name in names)

    limit = share * worst(STEPS)
    budget = PrivacyBudget(streams(), steps=STEPS, delta=1e-5, epsilon=limit, relation=relation, group=group)

    last = budget.last_step
    begun(budget, last)
    with pytest.raises(PrivacyError, match=r"would spend more|no step fits"):
        budget.begin(last)

    assert budget.begun == last
    assert worst(last) <= limit < worst(last + 1)


def test_a_budget_that_no_step_fits_says_so() -> None:
    budget = PrivacyBudget(streams(sigma=0.01), steps=STEPS, delta=1e-5, epsilon=0.1)

    assert budget.last_step == 0
    with pytest.raises(PrivacyError, match=r"no step fits into the privacy budget: .* ε 0\.1 at δ 1e-05"):
        budget.begin(0)
    assert budget.begun == 0


# Faults and new plans.


def test_a_step_with_the_same_noise_is_counted_once_and_with_fresh_noise_again() -> None:
    budget = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), 8)
    before = budget.spent("shop").mu

    budget.begin(5)
    same = budget.spent("shop").mu
    budget.begin(5, same_noise=False)
    fresh = budget.spent("shop").mu

    assert same == before
    weights = np.ones(8)
    weights[5] = 2.0
    assert fresh == pytest.approx(PASSIVE.weighted_sensitivity(weights) / 20.0)
    assert fresh > before


def test_fresh_noise_that_would_overspend_is_refused_and_not_counted() -> None:
    sigma = hdp_sigma({"row": PASSIVE}, STEPS, epsilon=1.0, delta=1e-5)
    budget = PrivacyBudget(
        [GaussianMessages("shop", ("bank",), {"row": PASSIVE}, sigma)], steps=STEPS, delta=1e-5, epsilon=1.0
    )
    begun(budget, STEPS)

    with pytest.raises(PrivacyError, match="would spend more"):
        budget.begin(3, same_noise=False)

    assert budget.spent("shop").epsilon == pytest.approx(1.0, rel=1e-8)


def test_the_account_survives_a_kill() -> None:
    budget = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), 9)
    budget.begin(2, same_noise=False)
    kept = json.loads(json.dumps(budget.state_dict()))
    begun_again = PrivacyBudget(streams(), steps=STEPS, delta=1e-5)

    begun_again.load_state_dict(kept)

    assert begun_again.spent("shop") == budget.spent("shop")
    assert begun_again.begun == 9
    begun_again.begin(9)
    begun_again.begin(4, same_noise=False)
    spent = begun_again.spent("shop")
    # An older checkpoint takes back nothing that was sent.
    begun_again.load_state_dict(kept)
    assert begun_again.spent("shop") == spent
    assert spent.steps == 10


def test_an_account_of_something_else_is_refused() -> None:
    state = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), 9).state_dict()

    with pytest.raises(PrivacyError, match="other noise or another training"):
        PrivacyBudget(streams(sigma=21.0), steps=STEPS, delta=1e-5).load_state_dict(state)
    with pytest.raises(PrivacyError, match="has 9 steps, the plan 5"):
        PrivacyBudget(streams(), steps=5, delta=1e-5).load_state_dict(state)
    with pytest.raises(PrivacyError, match="version 1, got 2"):
        PrivacyBudget(streams(), steps=STEPS, delta=1e-5).load_state_dict(state | {"version": 2})


def test_more_epochs_are_a_new_plan_that_counts_the_old_run() -> None:
    budget = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), STEPS)
    louder = [stream.after(STEPS, 40.0) for stream in streams()]

    longer = budget.extended(STEPS + 8, louder)

    assert longer.begun == STEPS
    assert longer.spent("shop").mu == pytest.approx(PASSIVE.sensitivity(STEPS) / 20.0)
    factors = [1 / 20.0**2] * STEPS + [1 / 40.0**2] * 8
    assert longer.planned("shop").mu == pytest.approx(PASSIVE.weighted_sensitivity(factors))
    begun(longer, STEPS + 8)
    again = longer.extended(STEPS + 9, [stream.after(STEPS + 8, 80.0) for stream in louder])
    assert again.planned("shop").mu == pytest.approx(PASSIVE.weighted_sensitivity([*factors, 1 / 80.0**2]))
    with pytest.raises(ArgumentError, match="20 steps were begun, the new plan has 19"):
        budget.extended(19, streams())


# Words.


def test_a_claim_is_stated_with_who_and_against_whom() -> None:
    budget = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5, records=100), STEPS)

    statement = budget.spent("bank", relation="label").statement(
        mechanism="Gaussian noise",
        clipping="rows to norm 1",
        generator="AES",
        not_covered=not_covered("alignment"),
        records=100,
    )

    assert statement.epsilon == budget.spent("bank", relation="label").epsilon
    assert statement.sentences()[0].startswith("The label of one record at bank is protected from shop and telecom: ")
    assert statement.sentences()[-1].startswith("Not covered, alignment: ")
    assert "nothing is amplified" in statement.sampling
    outsider = budget.outsider().statement(mechanism="", clipping="", generator="", not_covered=())
    assert outsider.against == "an outsider who reads all messages"


def test_a_plan_that_promises_little_says_so() -> None:
    weak = PrivacyBudget(streams(sigma=0.5), steps=STEPS, delta=0.02, records=100)
    strong = PrivacyBudget(streams(sigma=500.0), steps=STEPS, delta=1e-5, records=100)

    assert any("1/100" in warning for warning in weak.warnings())
    assert any("above 10" in warning for warning in weak.warnings())
    assert strong.warnings() == ()


def test_an_evaluation_counts_once_its_step_was_begun() -> None:
    """Without penalties the weights are as far apart as two steps with the record took them, or more epochs."""
    push = 2 * 0.1 / 16
    budget = begun(PrivacyBudget([evaluations()], steps=STEPS, delta=1e-5), 7)
    assert budget.spent("shop").mu == 0.0
    budget.begin(7)
    assert budget.spent("shop").mu == pytest.approx(math.sqrt(50) * 2 * push / 0.5)
    assert budget.planned("shop").mu == pytest.approx(math.sqrt(50 * (2**2 + 4**2)) * push / 0.5)
    both = begun(PrivacyBudget([*streams(), evaluations()], steps=STEPS, delta=1e-5), 9)
    trained = begun(PrivacyBudget(streams(), steps=STEPS, delta=1e-5), 9).spent("shop").mu
    assert both.spent("shop").mu == pytest.approx(math.hypot(trained, math.sqrt(50) * 2 * push / 0.5))
    rough = evaluations(grid=1e-3, unmatched=1e-4).loss("row", np.ones(9, dtype=np.int64), frozenset({"bank"}))
    assert rough.mu == pytest.approx(math.sqrt(50) * (2 * push / 0.5 + 1e-3))
    assert rough.unmatched == pytest.approx(50e-4)
    assert json.loads(json.dumps(evaluations().terms())) == evaluations().terms()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PrivacyBudget(streams(), steps=0, delta=1e-5), "steps must be"),
        (lambda: PrivacyBudget(streams(), steps=5, delta=1.0), "delta must lie"),
        (lambda: PrivacyBudget(streams(), steps=5, delta=0.1, epsilon=0.0), "epsilon must be"),
        (lambda: PrivacyBudget(streams()[1:], steps=5, delta=0.1, relation="label"), "no stream protects a label"),
        (lambda: PrivacyBudget(streams(), steps=5, delta=0.1).begin(1), "expected a step up to 0, got 1"),
        (lambda: begun(PrivacyBudget(streams(), steps=5, delta=0.1), 5).begin(5), "expected a step up to 4, got 5"),
        (lambda: PrivacyBudget(streams(), steps=5, delta=0.1).spent("shop", relation="label"), "nothing is sent that"),
        (lambda: PrivacyBudget(streams(), steps=5, delta=0.1).spent("shop", to=["shop"]), "knows its own data"),
        (lambda: GaussianMessages("shop", (), {"row": PASSIVE}, 1.0), "got nobody"),
        (lambda: GaussianMessages("shop", ("shop",), {"row": PASSIVE}, 1.0), "shop sends to others"),
        (lambda: GaussianMessages("shop", ("bank",), {}, 1.0), "expected an HdpTraining"),
        (lambda: GaussianMessages("shop", ("bank",), {"label": PASSIVE}, 1.0), "expected an HdpTraining"),
        (lambda: GaussianMessages("shop", ("bank",), {"row": PASSIVE}, 0.0), "sigma must be"),
        (lambda: GaussianMessages("shop", ("bank",), {"row": PASSIVE}, 1.0, grid=1.5), "expected grid in"),
        (lambda: MessagesPerUse("shop", ("bank",), {}, steps_per_epoch=1), "costs: expected"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
