"""Ridge regression on known records, beside scikit-learn's and a loop that leaves one out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as TheirRidge

from splitvfl.attacks import RidgeAttack, fit_ridge
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Auxiliary, View, call_attack
from splitvfl.leakage.ridge import _PENALTIES

sizes = given(m=st.integers(2, 12), w=st.integers(1, 6), d=st.integers(1, 3), seed=st.integers(0, 1000))


def records(m: int, w: int, d: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(m, w, generator=random, dtype=torch.float64)
    targets = inputs @ torch.randn(w, d, generator=random, dtype=torch.float64)
    return inputs, targets + 0.5 * torch.randn(m, d, generator=random, dtype=torch.float64)


def in_their_units(inputs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    spread = like.std(dim=0, correction=0)
    return (inputs - like.mean(dim=0)) / torch.where(spread > 0, spread, 1.0)


def unit_of(inputs: torch.Tensor) -> float:
    return torch.linalg.svdvals(in_their_units(inputs, inputs)).square().mean().item()


@settings(max_examples=6)
@sizes
def test_the_penalty_is_the_one_that_leaves_one_out_best(m: int, w: int, d: int, seed: int) -> None:
    """Scikit-learn's ridge, fitted anew without each record in turn."""
    inputs, targets = records(m, w, d, seed)
    found = fit_ridge(inputs, targets)
    centred, unit = in_their_units(inputs, inputs), unit_of(inputs)
    for place in range(d):
        errors = []
        for penalty in _PENALTIES:
            left_out = []
            for one in range(m):
                others = np.arange(m) != one
                # Centred by the mean of all, as the closed form has it, and not by that of the others.
                theirs = TheirRidge(alpha=penalty * unit).fit(centred.numpy()[others], targets.numpy()[others, place])
                left_out.append(theirs.predict(centred.numpy()[[one]])[0] - targets.numpy()[one, place])
            errors.append(np.square(left_out).mean())
        # Two penalties may leave out equally well up to rounding, or to where each one's mean moves the intercept.
        chosen = list(_PENALTIES).index(found.penalty[place].item())
        assert errors[chosen] <= min(errors) * (1 + 1e-6) + 1e-12


@sizes
def test_estimates_are_those_of_scikit_learn(m: int, w: int, d: int, seed: int) -> None:
    inputs, targets = records(m, w, d, seed)
    found = fit_ridge(inputs, targets)
    ours, new = in_their_units(inputs, inputs).numpy(), torch.randn(5, w, dtype=torch.float64)
    for place in range(d):
        alpha = found.penalty[place].item() * unit_of(inputs)
        theirs = TheirRidge(alpha=alpha).fit(ours, targets.numpy()[:, place])
        expected = theirs.predict(in_their_units(new, inputs).numpy())
        expected = expected.clip(found.low[place].item(), found.high[place].item())
        # Of a penalty of 1e-6 and dependent inputs six digits are lost.
        assert found.estimate(new)[:, place].numpy() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=15)
@sizes
def test_estimates_stay_within_known_values_or_a_little_beyond_where_that_is_better_for_records_left_out(
    m: int, w: int, d: int, seed: int
) -> None:
    """Beside a loop over records, each clipped to what the others have."""
    inputs, targets = records(m, w, d, seed)
    found = fit_ridge(inputs, targets)
    ours = in_their_units(inputs, inputs).numpy()
    for place in range(d):
        alpha, own = found.penalty[place].item() * unit_of(inputs), targets.numpy()[:, place]
        free, kept = [], []
        for one in range(m):
            others = np.arange(m) != one
            estimate = TheirRidge(alpha=alpha).fit(ours[others], own[others]).predict(ours[[one]])[0]
            free.append(own[one] - estimate)
            kept.append(own[one] - np.clip(estimate, own[others].min(), own[others].max()))
        beyond = np.square(free).mean() < np.square(kept).mean()
        if abs(np.square(free).mean() - np.square(kept).mean()) > 1e-6:  # else rounding decides
            further = 0.5 * np.ptp(own) if beyond else 0.0
            limits = found.low[place].item(), found.high[place].item()
            assert limits == pytest.approx((own.min() - further, own.max() + further))
            left_out = found.left_out[:, place].square().mean().item()
            # Scikit-learn centres by the others, the closed form by all.
            assert left_out == pytest.approx(np.square(free if beyond else kept).mean(), rel=1e-4, abs=1e-4)


def test_a_few_inputs_far_from_all_known_ones_do_not_spoil_what_the_others_tell() -> None:
    """One in three hundred is a hundred times as large, which its target is not: a line would be off by as much."""
    random = torch.Generator().manual_seed(0)
    targets = torch.randn(1_000, 1, generator=random)
    sent = targets + 0.5 * torch.randn(1_000, 1, generator=random)
    sent[40::300] *= 100
    estimate = fit_ridge(sent[:40], targets[:40]).estimate(sent[40:])
    share = 1 - (estimate - targets[40:]).square().mean() / targets[40:].var()
    # 1 / (1 + .25) of the variance is what the sum with such noise tells; the outliers cost a share of their number.
    assert 0.7 < share < 0.8


def none(width: int, columns: int) -> Auxiliary:
    return Auxiliary(torch.empty(0, width), torch.empty(0, columns), torch.empty(0, dtype=torch.int64))


def test_what_is_linear_in_an_activation_is_found_from_few_records() -> None:
    """Of five columns behind a layer of eight, from as many known records as it takes to tell five directions."""
    random = torch.Generator().manual_seed(0)
    columns = torch.randn(400, 5, generator=random)
    sent = columns @ torch.randn(5, 8, generator=random)
    view = View(
        party="clinic",
        step=0,
        ids=torch.arange(380),
        received_activation=sent[20:],
        auxiliary=Auxiliary(sent[:20], columns[:20], torch.arange(400, 420)),
        earlier_auxiliary=none(8, 5),
    )
    estimate = call_attack(RidgeAttack(), view)
    # All but the few values that lie further beyond those that are known than half their range.
    assert (estimate - columns[20:]).square().mean() / columns[20:].var() < 1e-3
    assert (estimate - columns[20:]).square().median() < 1e-10
    assert estimate.dtype == torch.float64


def test_earlier_messages_help_as_long_as_the_model_is_the_same() -> None:
    """Six known records a message cannot tell eight directions; those of ten messages can."""
    random = torch.Generator().manual_seed(0)
    first, other = torch.randn(8, 8, generator=random), torch.randn(8, 8, generator=random)

    def off(attack: RidgeAttack, bottoms: list[torch.Tensor]) -> float:
        errors = []
        for step, bottom in enumerate(bottoms):
            columns = torch.randn(40, 8, generator=torch.Generator().manual_seed(step))
            sent = columns @ bottom
            view = View(
                party="clinic",
                step=step,
                ids=torch.arange(34),
                received_activation=sent[6:],
                auxiliary=Auxiliary(sent[:6], columns[:6], 100 + 6 * step + torch.arange(6)),
                earlier_auxiliary=none(8, 8),
            )
            errors.append((call_attack(attack, view) - columns[6:]).square().mean().item())
        return errors[-1]

    assert off(RidgeAttack(), [first] * 10) < 1e-3
    assert off(RidgeAttack(memory=0), [first] * 10) > 0.1
    # Behind another model earlier messages mislead, and are not listened to.
    alone = off(RidgeAttack(memory=0), [other])
    assert off(RidgeAttack(), [first] * 9 + [other]) < 2 * alone


def test_it_remembers_the_latest_of_each_record_and_no_more_than_it_may() -> None:
    attack = RidgeAttack(memory=5)
    for step in range(3):
        sent, ids = torch.randn(9, 3), torch.tensor([step, step + 1, 7, 8])
        view = View(
            party="clinic",
            step=step,
            ids=torch.arange(20, 25),
            received_activation=sent[4:],
            auxiliary=Auxiliary(sent[:4], sent[:4], ids),
            earlier_auxiliary=none(3, 3),
        )
        call_attack(attack, view)
    again = RidgeAttack(memory=5)
    again.load_state_dict(attack.state_dict())
    activation, columns, ids = again.state_dict()["latest"]
    assert ids.tolist() == [2, 3, 7, 8, 1], "those of this message, and then the latest of others"
    assert torch.equal(activation[:4], sent[:4])
    assert torch.equal(columns, activation)
    assert torch.equal(call_attack(again, view), call_attack(attack, view))


def test_of_messages_in_between_it_remembers_the_latest_of_each_record() -> None:
    """As if it had been called with each: record 2 as it came last before this message, record 1 as it came now."""
    attack = RidgeAttack()
    numbers = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    view = View(
        party="clinic",
        step=5,
        ids=torch.arange(20, 24),
        received_activation=numbers[5:],
        auxiliary=Auxiliary(numbers[:2], numbers[:2], torch.tensor([1, 9])),
        earlier_auxiliary=Auxiliary(numbers[2:5], numbers[2:5], torch.tensor([2, 1, 2])),
    )
    call_attack(attack, view)
    activation, columns, ids = attack.state_dict()["latest"]
    assert ids.tolist() == [1, 9, 2]
    assert torch.equal(activation, numbers[:3])
    assert torch.equal(columns, activation)


@pytest.mark.parametrize("memory", [-1, 100_001])
def test_memory_has_limits(memory: int) -> None:
    with pytest.raises(ArgumentError, match="memory must be 0 to 100,000 records"):
        RidgeAttack(memory=memory)


def test_one_unit_in_large_numbers_hides_no_other() -> None:
    random = torch.Generator().manual_seed(0)
    columns = torch.randn(60, 1, generator=random)
    sent = torch.cat([columns, 1e6 * torch.randn(60, 1, generator=random)], dim=1)
    estimate = fit_ridge(sent[:30], columns[:30]).estimate(sent[30:])
    assert (estimate - columns[30:]).square().mean() < 1e-6


def test_of_two_records_nothing_is_told_apart() -> None:
    """Each left out leaves a constant, whatever the penalty: the largest is taken, and estimates stay near the mean."""
    found = fit_ridge(torch.tensor([[0.0], [1e-4]]), torch.tensor([[-1.0], [1.0]]))
    assert found.penalty.item() == max(_PENALTIES)
    assert found.estimate(torch.tensor([[1.0]])).abs().item() < 20.0


def test_known_records_that_are_all_alike_give_their_columns() -> None:
    found = fit_ridge(torch.ones(3, 2), torch.tensor([[1.0], [2.0], [3.0]]))
    assert torch.equal(found.estimate(torch.tensor([[9.0, 9.0]])), torch.tensor([[2.0]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("inputs", "targets", "complaint"),
    [
        (torch.zeros(1, 2), torch.zeros(1, 2), "at least 2 known records of each, got 1 and 1"),
        (torch.zeros(3, 2), torch.zeros(2, 2), "got 3 and 2"),
        (torch.full((2, 2), torch.nan), torch.zeros(2, 1), "NaN or infinite"),
    ],
)
def test_what_cannot_be_fitted_is_refused(inputs: torch.Tensor, targets: torch.Tensor, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        fit_ridge(inputs, targets)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_nobody_knows_none_or_all(share: float) -> None:
    with pytest.raises(ArgumentError, match="known_share must be above 0 and below 1"):
        RidgeAttack(known_share=share)
