"""A single unknown feature from logits alone: three cases, against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.attacks import BlackBoxFeatureAttack, black_box_feature
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import LogitParts, View, call_attack
from splitvfl.leakage.features import judge_features

# Of nine digits: w x of the smallest floats is 0.
features = st.lists(st.floats(0, 1).map(lambda one: round(one, 9)), min_size=1, max_size=12).map(
    lambda one: torch.tensor(one, dtype=torch.float64)
)
sizes = st.floats(0.01, 50)
signs = st.sampled_from([-1.0, 1.0])


@given(x=features, size=sizes, sign=signs)
def test_without_an_intercept_the_largest_record_is_one(x: torch.Tensor, size: float, sign: float) -> None:
    estimate = black_box_feature(sign * size * x, case=1)
    expected = x / x.max() if x.max() > 0 else x
    torch.testing.assert_close(estimate, expected, rtol=1e-12, atol=1e-12)
    assert (estimate - x).square().mean() <= (1 - x.max()) ** 2 + 1e-12


@given(x=features, size=sizes, intercept=st.floats(0.01, 50), sign=signs)
def test_with_an_intercept_of_the_same_sign_the_range_is_stretched(
    x: torch.Tensor, size: float, intercept: float, sign: float
) -> None:
    estimate = black_box_feature(sign * (size * x + intercept), case=2)
    low, high = x.min(), x.max()
    if size * (high - low) > 1e-6 * intercept:
        # The intercept costs digits: at most 1e-16 · 5000 / 1e-6 of them.
        torch.testing.assert_close(estimate, (x - low) / (high - low), rtol=0, atol=1e-6)
        assert (estimate - x).square().mean() <= (1 - high) ** 2 + low**2 + 1e-5
    assert ((estimate >= 0) & (estimate <= 1)).all()


@given(x=features, size=sizes, sign=signs)
def test_with_an_intercept_of_the_other_sign_and_one_sign_of_all_it_is_turned(
    x: torch.Tensor, size: float, sign: float
) -> None:
    estimate = black_box_feature(sign * (size * x - 2 * size), case=3)  # all of the intercept's sign
    low, high = x.min(), x.max()
    expected = torch.full_like(x, 0.5) if low == high else (x - low) / (high - low)
    if low == high or high - low > 1e-6:
        torch.testing.assert_close(estimate, expected, rtol=0, atol=1e-6)


@given(sign=signs, mean=st.floats(0, 1))
def test_of_both_signs_a_known_mean_decides(sign: float, mean: float) -> None:
    x = torch.tensor([0.0, 0.1, 0.2, 1.0], dtype=torch.float64)  # of mean .325
    observed = sign * (4 * x - 1)
    assert black_box_feature(observed, case=3).tolist() == [0.5] * 4
    known = black_box_feature(observed, case=3, mean=mean)
    if abs(mean - 0.5) < 1e-9:
        return
    expected = x if mean < 0.5 else 1 - x
    torch.testing.assert_close(known, expected, rtol=0, atol=1e-12)


@given(x=features, size=sizes, sign=signs, mean=st.sampled_from([0.2, 0.8]))
def test_of_unknown_signs_the_mean_decides_whatever_signs_there_are(
    x: torch.Tensor, size: float, sign: float, mean: float
) -> None:
    observed = sign * size * (x + 1)  # all of one sign
    assert black_box_feature(observed, case="mixed").tolist() == [0.5] * len(x)
    known = black_box_feature(observed, case="mixed", mean=mean)
    low, high = x.min(), x.max()
    stretched = (x - low) / (high - low) if high - low > 1e-6 else None
    if stretched is None or abs(stretched.mean().item() - 0.5) < 1e-6:
        return
    expected = stretched if (stretched.mean() < 0.5) == (mean < 0.5) else 1 - stretched
    torch.testing.assert_close(known, expected, rtol=0, atol=1e-6)


def test_at_one_half_a_mean_does_not_decide() -> None:
    observed = torch.tensor([-1.0, 0.5, 3.0])
    assert black_box_feature(observed, case=3, mean=0.5).tolist() == [0.5] * 3
    even = torch.tensor([-1.0, 1.0])  # of mean ½ either way
    assert black_box_feature(even, case=3, mean=0.1).tolist() == [0.5] * 2


@pytest.mark.parametrize(("case", "expected"), [(1, 1.0), (2, 0.5), (3, 0.5)])
@pytest.mark.parametrize("count", [1, 4])
def test_equal_observations_tell_nothing_but_in_case_one(case: int, expected: float, count: int) -> None:
    assert black_box_feature(torch.full((count,), -2.5), case=case).tolist() == [expected] * count  # type: ignore[arg-type]
    assert black_box_feature(torch.zeros(count), case=1).tolist() == [0.0] * count


def test_observations_as_large_as_floats_get_stay_finite() -> None:
    largest = torch.finfo(torch.float64).max
    observed = torch.tensor([-largest, 0.0, largest], dtype=torch.float64)
    assert black_box_feature(observed, case=3, mean=0.2).isfinite().all()


@pytest.mark.parametrize("count", [2, 5, 20])
def test_errors_of_uniform_features_are_the_closed_forms(count: int) -> None:
    """2 / (3N(N+1)) without an intercept, 1 / (N(N+1)) with one."""
    runs = 1500
    x = torch.rand(runs, count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    for case, intercept, expected in ((1, 0.0, 2 / 3), (2, 0.7, 1.0)):
        off = torch.stack([black_box_feature(-3 * (one + intercept), case=case) - one for one in x])  # type: ignore[arg-type]
        errors = off.square().mean(dim=1)
        wanted = expected / (count * (count + 1))
        # Five standard errors of the mean over the runs.
        assert errors.mean().item() == pytest.approx(wanted, abs=5 * errors.std().item() / math.sqrt(runs))


@pytest.mark.parametrize(
    ("observations", "options", "message"),
    [
        (torch.zeros(0), {"case": 1}, "at least one record"),
        (torch.zeros(2, 2), {"case": 1}, "at least one record"),
        (torch.tensor([math.nan]), {"case": 1}, "NaN"),
        (torch.tensor([1]), {"case": 1}, "floating-point"),
        (torch.ones(2), {"case": 4}, "case must be 1, 2, 3 or mixed, got 4"),
        (torch.ones(2), {"case": 3, "mean": 1.1}, "mean must lie"),
        (torch.ones(2), {"case": 3, "mean": math.nan}, "mean must lie"),
    ],
)
def test_bad_input_is_refused(observations: torch.Tensor, options: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        black_box_feature(observations, **options)  # type: ignore[arg-type]


def seen(values: torch.Tensor, *columns: str) -> View:
    parts = LogitParts(values, columns or ("age",))
    return View(party="bank", step=0, ids=torch.arange(len(values)), logit_parts=parts)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize(("case", "intercept", "expected"), [(1, 0.0, 2 / 3), (2, 0.7, 1.0)])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_attacks_errors_on_uniform_features_are_the_closed_forms(
    count: int, case: int, intercept: float, expected: float, sign: float
) -> None:
    """2 / (3N(N+1)) and 1 / (N(N+1)), whatever the sign of the weight."""
    runs = 100
    draws = torch.rand(runs, count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    attack = BlackBoxFeatureAttack(case=case)  # type: ignore[arg-type]
    errors = torch.tensor(
        [judge_features(attack, seen(sign * 3 * (x + intercept).unsqueeze(1)), x.unsqueeze(1)).mse for x in draws]
    )
    # Five standard errors of the mean over the runs.
    tolerance = 5 * errors.std().item() / math.sqrt(runs)
    assert errors.mean().item() == pytest.approx(expected / (count * (count + 1)), abs=tolerance)


def test_a_negative_weight_does_not_turn_the_estimate_round() -> None:
    """Without absolute values, as in the authors' code, it is 1 − x."""
    x = torch.tensor([0.0, 0.1, 0.2, 1.0], dtype=torch.float64)
    observed = -4 * x - 1
    naive = (observed - observed.min()) / (observed.max() - observed.min())
    torch.testing.assert_close(naive, 1 - x, rtol=0, atol=1e-12)
    estimate = call_attack(BlackBoxFeatureAttack(case=2), seen(observed.unsqueeze(1)))
    torch.testing.assert_close(estimate, x.unsqueeze(1), rtol=0, atol=1e-12)


def test_of_several_classes_the_part_that_varies_most_is_read() -> None:
    x = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    # In case 2 the first part would be taken for one minus the feature.
    parts = torch.stack([0.1 * x - 0.5, -2 * x - 1, torch.zeros(3)], dim=1)
    estimate = call_attack(BlackBoxFeatureAttack(case=2), seen(parts))
    torch.testing.assert_close(estimate[:, 0], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("case", "expected"), [(1, 1.0), (2, 0.5), (3, 0.5), ("mixed", 0.5)])
def test_of_a_single_prediction_only_case_one_tells_anything(case: int, expected: float) -> None:
    parts = torch.tensor([[0.0, -2.5]])
    assert call_attack(BlackBoxFeatureAttack(case=case), seen(parts)).tolist() == [[expected]]  # type: ignore[arg-type]


def test_more_than_one_column_is_refused_by_name() -> None:
    with pytest.raises(AttackRefused, match="these logits are of 2: plan=a, plan=b"):
        call_attack(BlackBoxFeatureAttack(), seen(torch.ones(3, 1), "plan=a", "plan=b"))


@pytest.mark.parametrize("options", [{"case": 0}, {"case": True}, {"case": "both"}, {"mean": 2.0}, {"mean": math.nan}])
def test_settings_of_the_attack_that_are_none_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(options))):
        BlackBoxFeatureAttack(**options)  # type: ignore[arg-type]
