from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import laplace
from torch import Tensor

from splitvfl.attacks import additive_noise_llr, multiplicative_noise_llr
from splitvfl.errors import ArgumentError
from splitvfl.privacy import MultiplicativeMode, label_success_ceiling, laplace_label_success, laplace_scale

MODES: tuple[MultiplicativeMode, ...] = ("as_printed", "sign_preserving", "centred_at_one")
RECORDS = 20_000


def releases(epochs: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Labels of even odds, and predictions that have nothing to do with them, so that only messages tell."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, RECORDS), rng.uniform(0.1, 0.9, (epochs, RECORDS)), rng


def right(ratios: Tensor, labels: np.ndarray) -> float:
    return float(((ratios.numpy() > 0) == (labels == 1)).mean())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_one_release_is_read_as_often_as_the_closed_form_says(epsilon: float) -> None:
    labels, predictions, rng = releases(1)
    noisy = labels - predictions + rng.laplace(scale=laplace_scale(epsilon), size=predictions.shape)

    found = right(additive_noise_llr(torch.from_numpy(noisy), torch.from_numpy(predictions), epsilon), labels)

    expected = laplace_label_success(epsilon)
    assert abs(found - expected) < 3 * math.sqrt(expected * (1 - expected) / RECORDS)


def test_epochs_add_up_and_stay_below_the_ceiling() -> None:
    labels, predictions, rng = releases(30)
    noisy = labels - predictions + rng.laplace(scale=laplace_scale(1.0), size=predictions.shape)
    z, f = torch.from_numpy(noisy), torch.from_numpy(predictions)

    found = [right(additive_noise_llr(z[:epochs], f[:epochs], 1.0), labels) for epochs in (1, 10, 30)]

    # The specification's .6, .77 and .90.
    assert found == pytest.approx([0.61, 0.77, 0.90], abs=0.015)
    assert found[2] < label_success_ceiling(0.5, releases=30)


def test_ratios_are_those_of_scipys_densities() -> None:
    labels, predictions, rng = releases(2)
    noisy = labels - predictions + rng.laplace(scale=laplace_scale(0.7), size=predictions.shape)
    one, zero = (laplace.logpdf(noisy, loc=y - predictions, scale=laplace_scale(0.7)) for y in (1, 0))

    found = additive_noise_llr(torch.from_numpy(noisy), torch.from_numpy(predictions), 0.7)

    assert np.allclose(found.numpy(), (one - zero).sum(axis=0), atol=1e-12)


def multiplied(
    residues: np.ndarray, rng: np.random.Generator, *, epsilon: float, b1: float, b2: float, mode: MultiplicativeMode
) -> np.ndarray:
    """The mechanism as the specification writes it."""
    sign = np.where(residues < 0, -1.0, 1.0)
    least = b1 if mode == "as_printed" else sign * b1
    kept = np.where(np.abs(residues) <= b1, least, residues)
    noise = (mode == "centred_at_one") + rng.laplace(scale=2 * b2 / (b1 * epsilon), size=residues.shape)
    sent = kept * noise
    return np.where(sent >= b2, b2, np.where(sent <= -b2, b2 if mode == "as_printed" else -b2, sent))


@pytest.mark.parametrize("mode", MODES)
def test_what_was_multiplied_is_read_by_the_ratio_of_probabilities(mode: MultiplicativeMode) -> None:
    settings = {"epsilon": 6.0, "b1": 0.2, "b2": 1.0}
    labels, predictions, rng = releases(1)
    predictions = np.full_like(predictions, 0.25)  # of one size, so that probabilities can be counted
    sent = multiplied(labels - predictions, rng, **settings, mode=mode)
    ratios = multiplicative_noise_llr(torch.from_numpy(sent), torch.from_numpy(predictions), **settings, mode=mode)

    found, places = ratios.numpy(), np.digitize(sent[0], [-1.0 + 1e-9, -0.5, -0.1, 0.1, 0.5, 1.0 - 1e-9])
    for place in np.unique(places):
        here = places == place
        ones, zeros = int((labels[here] == 1).sum()), int((labels[here] == 0).sum())
        # Given a likelihood ratio L the odds of even labels are L, so 1 / (1 + e^-log L) is the share of ones.
        expected = float((1 / (1 + np.exp(-found[here]))).mean())
        assert ones / (ones + zeros) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / (ones + zeros)))
    # Signs of the modes of mean 0 tell nothing; the sizes ¾ and ¼ do.
    assert right(ratios, labels) > 0.55


def test_a_value_at_the_bound_is_recognised_after_float32() -> None:
    settings = {"epsilon": 5.0, "b1": 0.3, "b2": 0.7, "mode": "centred_at_one"}
    predictions = torch.full((1, 2), 0.5, dtype=torch.float64)
    exact = torch.tensor([[0.7, -0.7]], dtype=torch.float64)

    crossed = (exact.float() / 48) * 48  # as part of a mean over a batch of 48

    expected = multiplicative_noise_llr(exact, predictions, **settings)  # type: ignore[arg-type]
    assert multiplicative_noise_llr(crossed, predictions, **settings).tolist() == expected.tolist()  # type: ignore[arg-type]
    assert expected[0] == -expected[1]  # f = ½: the mechanism is symmetric


@pytest.mark.parametrize(
    ("noisy", "predictions", "said"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2), "one shape"),
        (torch.zeros(3), torch.zeros(3), "one shape"),
        (torch.zeros(0, 3), torch.zeros(0, 3), "one shape"),
        (torch.full((1, 3), math.nan), torch.zeros(1, 3), "noisy holds NaN"),
        (torch.zeros(1, 3), torch.full((1, 3), 1.5), r"predictions in \[0, 1\]"),
        (torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3), "floating-point"),
    ],
)
def test_what_are_no_releases_is_refused(noisy: Tensor, predictions: Tensor, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        additive_noise_llr(noisy, predictions, 1.0)
    with pytest.raises(ArgumentError, match=said):
        multiplicative_noise_llr(noisy, predictions, 1.0, b1=0.5, b2=1.0, mode="as_printed")


def test_an_epsilon_that_is_none_is_refused() -> None:
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="epsilon"):
            additive_noise_llr(torch.zeros(1, 1), torch.zeros(1, 1), wrong)
        with pytest.raises(ArgumentError, match="epsilon"):
            multiplicative_noise_llr(torch.zeros(1, 1), torch.zeros(1, 1), wrong, b1=0.5, b2=1.0, mode="as_printed")
