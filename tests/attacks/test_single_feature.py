from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.attacks.single_feature import (
    ObservedBatch,
    SingleFeature,
    logits_of_residues,
    recover_single_feature,
)
from splitvfl.errors import ArgumentError

APPROXIMATIONS = ["taylor", "minimax", "piecewise", "exact"]
RECORDS, BATCH, OWN = 60, 10, 16


def coefficient(z: float, y: int, approximation: str) -> float:
    """f, one record at a time, as the specification writes it."""
    if approximation == "taylor":
        return z - 2 * y
    if approximation == "minimax":
        return -0.004 * z**3 + 0.197 * z - 0.5 * y
    if approximation == "exact":
        return (1 / (1 + math.exp(-y * z)) - 1) * y
    return (z - y / 2 if abs(z) < 0.5 else 0.0) - (y if y * z <= -0.5 else 0.0)


class Training:
    """Plain training of two parties in NumPy loops; only ``steps()`` is what the attacker sees."""

    def __init__(
        self,
        *,
        approximation: str = "taylor",
        seed: int = 0,
        start: float = 0.3,
        features: int = 1,
        decay: float = 0.0,
        intercept: float | None = None,
        eta: float = 0.5,
        size: float = 0.3,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.approximation, self.decay, self.intercept, self.eta = approximation, decay, intercept, eta
        self.own = size * self.random.normal(size=(RECORDS, OWN))
        self.other = size * self.random.normal(size=(RECORDS, features))
        self.labels = np.where(self.random.random(RECORDS) < 0.4, 1, -1)
        self.own_weights = 0.1 * self.random.normal(size=OWN)
        self.other_weights = start * self.random.normal(size=features)
        self.other_history: list[float] = []

    def steps(self, epochs: float) -> Iterator[ObservedBatch]:
        c = 4 if self.approximation == "taylor" else 1
        left = round(epochs * RECORDS / BATCH)
        while left > 0:
            order = self.random.permutation(RECORDS)
            for start in range(0, RECORDS, BATCH)[:left]:
                batch = order[start : start + BATCH]
                self.other_history.append(float(self.other_weights[0]))
                mine = self.own[batch] @ self.own_weights
                theirs = self.other[batch] @ self.other_weights + (self.intercept or 0.0)
                residues = np.array(
                    [
                        coefficient(z, y, self.approximation)
                        for z, y in zip(mine + theirs, self.labels[batch].tolist(), strict=True)
                    ]
                )
                gradient = self.own[batch].T @ residues
                yield ObservedBatch(
                    torch.from_numpy(batch * 7 + 3),
                    torch.from_numpy(self.own[batch]),
                    torch.from_numpy(gradient),
                    torch.from_numpy(mine),
                    torch.from_numpy(self.labels[batch]),
                    self.eta,
                )
                self.own_weights = self.own_weights - self.eta / (c * BATCH) * gradient
                self.other_weights = self.other_weights - self.eta * (
                    self.other[batch].T @ residues / (c * BATCH) + self.decay * self.other_weights
                )
                if self.intercept is not None:
                    self.intercept -= self.eta / (c * BATCH) * residues.sum()
            left -= RECORDS // BATCH


def error_up_to_sign(found: SingleFeature, training: Training) -> float:
    assert torch.equal(found.ids, torch.arange(RECORDS) * 7 + 3)
    truth = training.other[:, 0]
    return float(min(np.abs(found.features.numpy() - sign * truth).max() for sign in (1, -1)))


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_every_feature_is_recovered_up_to_one_sign(approximation: Any) -> None:
    training = Training(approximation=approximation, seed=1, eta=0.1, size=0.25)

    found = recover_single_feature(training.steps(3), approximation=approximation)

    # Residues are exact to about 1e-14; where weights are small, ratios lose a few digits more.
    assert error_up_to_sign(found, training) < 1e-8
    weights = np.array(training.other_history)
    sign = np.sign(found.weights.numpy() @ weights)
    np.testing.assert_allclose(found.weights.numpy() * sign, weights, atol=1e-8)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_zero_weights_at_first_say_nothing_and_do_no_harm(approximation: Any) -> None:
    training = Training(approximation=approximation, start=0.0, eta=0.1, size=0.25)

    found = recover_single_feature(training.steps(4), approximation=approximation)

    assert error_up_to_sign(found, training) < 1e-6
    assert math.isnan(found.weights[0])


def test_a_published_learning_rate_is_enough() -> None:
    training = Training(eta=0.01, seed=1)

    assert error_up_to_sign(recover_single_feature(training.steps(3)), training) < 1e-6


def test_records_whose_feature_is_zero_are_told() -> None:
    training = Training()
    training.other[::4] = 0.0

    found = recover_single_feature(training.steps(3))

    assert error_up_to_sign(found, training) < 1e-8
    assert found.features[::4].abs().max() < 1e-12


def test_linkage_takes_more_than_one_epoch_and_says_so() -> None:
    with pytest.raises(ArgumentError, match=r"no scale: .* observe more epochs"):
        recover_single_feature(Training().steps(1))
    for seed in range(5):
        assert not recover_single_feature(Training(seed=seed).steps(3)).features.isnan().any()


def test_what_is_not_linked_is_nan_and_the_rest_is_right() -> None:
    training = Training()
    batches = list(training.steps(2))
    stranger = batches[-1]._replace(ids=torch.arange(900, 900 + BATCH))  # ten records that no other step has

    found = recover_single_feature([*batches[:-1], stranger])

    seen = found.ids < 900
    assert found.features[~seen].isnan().all()
    truth = torch.from_numpy(training.other[:, 0])[(found.ids[seen] - 3) // 7]
    assert torch.minimum((found.features[seen] - truth).abs().max(), (found.features[seen] + truth).abs().max()) < 1e-8


def test_a_step_in_between_with_unknown_records_is_not_added_up() -> None:
    training = Training(eta=0.4)
    batches = list(training.steps(3))
    # The same step with ids that come nowhere else: its residue sum is unknown from here on.
    batches[9] = batches[9]._replace(ids=torch.arange(900, 900 + BATCH))

    found = recover_single_feature(batches)

    truth = torch.from_numpy(training.other[:, 0])
    features = found.features[found.ids < 900]
    assert torch.minimum((features - truth).abs().max(), (features + truth).abs().max()) < 1e-7


def test_records_beyond_the_piecewise_sigmoids_slope_are_used_when_they_are_on_it() -> None:
    training = Training(approximation="piecewise", size=0.8, seed=3)
    batches = list(training.steps(8))
    outside = [abs(abs(coefficient_) - 0.5) >= 0.5 for coefficient_ in _residues(batches)]

    found = recover_single_feature(batches, approximation="piecewise")

    assert 0.02 < np.mean(outside) < 0.5
    known = ~found.features.isnan()
    truth = torch.from_numpy(training.other[:, 0])[known]
    assert known.double().mean() > 0.9
    assert (
        torch.minimum((found.features[known] - truth).abs().max(), (found.features[known] + truth).abs().max()) < 1e-6
    )


def _residues(batches: list[ObservedBatch]) -> list[float]:
    return [
        value
        for batch in batches
        for value in np.linalg.lstsq(batch.columns.numpy().T, batch.gradient.numpy(), rcond=None)[0].tolist()
    ]


def test_a_penalty_on_the_other_partys_weight_is_taken_into_account() -> None:
    training = Training(decay=0.3)
    batches = list(training.steps(3))

    assert error_up_to_sign(recover_single_feature(batches, weight_decay=0.3), training) < 1e-8
    try:
        unaware = error_up_to_sign(recover_single_feature(batches), training)
    except ArgumentError:
        unaware = math.inf
    assert unaware > 1e-3


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_a_passive_party_reads_the_one_feature_of_a_label_party_with_an_intercept(approximation: Any) -> None:
    """Remark 4.9: the roles exchanged, and labels read off the signs of the residues."""
    training = Training(approximation=approximation, intercept=0.0, seed=5)
    batches = []
    for batch in training.steps(3):
        labels = -torch.sign(torch.tensor(_residues([batch])))
        assert torch.equal(labels, batch.labels.double())
        batches.append(batch._replace(labels=labels))

    found = recover_single_feature(batches, approximation=approximation, intercept=0.0)

    assert error_up_to_sign(found, training) < 1e-7


def test_without_its_intercept_a_label_party_looks_like_one_with_more_features() -> None:
    with pytest.raises(ArgumentError, match="not multiples of one feature"):
        recover_single_feature(Training(intercept=0.3).steps(3))


@pytest.mark.parametrize("seed", range(3))
def test_two_features_are_refused_before_and_noticed_after(seed: int) -> None:
    with pytest.raises(ArgumentError, match=r"2 features; only a single one is determined.*see orthogonal_twin"):
        recover_single_feature([], other_features=2)
    with pytest.raises(ArgumentError, match="it has more features"):
        recover_single_feature(Training(features=2, seed=seed, eta=0.01).steps(3))


def test_batches_beyond_the_attackers_own_columns_are_refused() -> None:
    batch = next(Training().steps(1))

    with pytest.raises(ArgumentError, match="10 residues are more than the features' rank 9"):
        recover_single_feature([batch._replace(columns=batch.columns[:, :9], gradient=batch.gradient[:9])])


def test_a_weight_that_moves_against_its_gradient_is_noticed() -> None:
    batches = [batch._replace(labels=-batch.labels) for batch in Training(approximation="taylor").steps(3)]
    with pytest.raises(ArgumentError, match="more features"):
        recover_single_feature(batches)
    uphill = [batch._replace(eta=0.3) for batch in Training(eta=-0.3).steps(3)]
    with pytest.raises(ArgumentError, match="moved against its gradient"):
        recover_single_feature(uphill)


def test_a_party_whose_feature_is_zero_throughout_is_named() -> None:
    training = Training()
    training.other[:] = 0.0
    with pytest.raises(ArgumentError, match="logits are 0 at all steps"):
        recover_single_feature(training.steps(2))
    with pytest.raises(ArgumentError, match="no step was observed"):
        recover_single_feature([])


def test_errors_of_fixed_point_residues_are_tolerated_and_grow_no_more_than_the_scale() -> None:
    training = Training(seed=2)
    noise = torch.Generator().manual_seed(0)
    batches = []
    for batch in training.steps(3):
        residues = torch.tensor(_residues([batch]), dtype=torch.float64)
        residues += 1e-6 * torch.randn(BATCH, generator=noise, dtype=torch.float64)
        batches.append(batch._replace(columns=torch.eye(BATCH, dtype=torch.float64), gradient=residues))

    # Logits of the other party are about .1 and their change not much less: an error of 1e-6 is 1e-5 of it.
    assert error_up_to_sign(recover_single_feature(batches, tolerance=1e-5), training) < 1e-4


@given(z=st.floats(-4.0, 4.0), y=st.sampled_from([-1, 1]), approximation=st.sampled_from(APPROXIMATIONS))
def test_logits_follow_from_residues_or_are_nan(z: float, y: int, approximation: Any) -> None:
    residue = np.array([coefficient(z, y, approximation)])

    found = logits_of_residues(residue, np.array([float(y)]), approximation=approximation, noise=1e-9)[0]

    if approximation == "piecewise" and not 1e-9 < abs(residue[0]) < 1 - 1e-9:
        assert math.isnan(found)
        assert abs(z) > 0.5 - 1e-8
    else:
        # At 4.05 the cubic turns: the root's error is that of the value, 1e-16, over a slope of .006 at 4.
        assert found == pytest.approx(z, abs=1e-12)


def test_minimax_residues_beyond_the_cubics_peak_determine_nothing() -> None:
    residue = np.array([coefficient(-9.0, 1, "minimax")])

    assert np.isnan(logits_of_residues(residue, np.ones(1), approximation="minimax", noise=1e-9)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": torch.zeros(3, dtype=torch.int64)}, "each once in a batch, got torch.int64, 1 of 3"),
        ({"ids": torch.arange(3.0)}, "expected whole ids"),
        ({"ids": torch.arange(4)}, r"of one shape \(s,\)"),
        ({"ids": torch.arange(3)[:, None]}, r"of one shape \(s,\)"),
        ({"columns": torch.zeros(0, 3)}, r"expected features \(s, d\)"),
        ({"gradient": torch.tensor([0.0, math.nan, 1.0])}, "gradient holds NaN"),
        ({"own_logits": torch.full((3,), math.inf)}, "own_logits holds NaN or infinite"),
        ({"labels": torch.tensor([0, 1, 1])}, "labels -1 and "),
        ({"eta": 0.0}, "eta must be finite, above 0"),
        ({"eta": 2.0}, "below 1 / weight_decay, got 2.0"),
    ],
)
def test_bad_batches_are_refused(change: dict[str, Any], message: str) -> None:
    batch = ObservedBatch(torch.arange(3), torch.eye(3), torch.ones(3), torch.zeros(3), torch.ones(3), 0.1)
    with pytest.raises(ArgumentError, match=message):
        recover_single_feature([batch._replace(**change)], weight_decay=0.5)


@pytest.mark.parametrize(
    "setting",
    [
        {"approximation": "cubic"},
        {"intercept": math.inf},
        {"weight_decay": -0.1},
        {"tolerance": 0.0},
        {"other_features": 0},
    ],
)
def test_bad_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=rf"{next(iter(setting)).partition('_')[0]}|the other party has 0 features"):
        recover_single_feature([], **setting)
