"""The bounds on what unbiased answers cost, against brute force over channels."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import linprog, minimize
from scipy.stats import norm

from splitvfl.defenses import AbstainingResponse, AsymmetricResponse, MemoisedResponse
from splitvfl.defenses import least_variance as module
from splitvfl.defenses.least_variance import least_variance, least_variance_under_auc
from splitvfl.errors import ArgumentError

Floats = npt.NDArray[np.float64]

SHARES = (0.067, 0.3, 0.5)


def best_unbiased(channel: Floats, share: float) -> tuple[Floats, float]:
    """Targets of least V for a channel ``(2, k)``, and that V: the solution of the quadratic program."""
    weights = (1 - share) * channel[0] + share * channel[1]
    used = weights > 0
    system = channel[:, used]
    gram = system / weights[used] @ system.T
    multipliers = np.linalg.solve(gram, [0.0, 1.0])
    targets = np.zeros(channel.shape[1])
    targets[used] = system.T @ multipliers / weights[used]
    return targets, variance(channel, targets, share)


def variance(channel: Floats, targets: Floats, share: float) -> float:
    """V by its definition."""
    moments = [channel[label] @ (targets - label) ** 2 for label in (0, 1)]
    return float((1 - share) * moments[0] + share * moments[1])


def auc(channel: Floats) -> float:
    """AUC of the best reader: every pair of answers, ranked by likelihood ratio, ties as a half."""
    ratios = channel[1] / np.maximum(channel.sum(axis=0), 1e-300)
    won = (ratios[:, None] > ratios) + 0.5 * (ratios[:, None] == ratios)
    return float(channel[1] @ won @ channel[0])


def total_variation(channel: Floats) -> float:
    return float(np.abs(channel[1] - channel[0]).sum() / 2)


def privacy_loss(channel: Floats) -> float:
    ratios = channel[1] / channel[0]
    return float(np.abs(np.log(ratios)).max())


def random_channels(count: int, seed: int) -> list[Floats]:
    """Two to five answers, from nearly certain ones to nearly useless ones."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        answers = 2 + number % 4
        spread = 10.0 ** generator.uniform(-1.0, 1.0)
        base = generator.dirichlet(np.full(answers, spread), size=2) + 1e-12
        mixed = base + generator.uniform(0.0, 3.0) * base.mean(axis=0)
        found.append(mixed / mixed.sum(axis=1, keepdims=True))
    return found


def channel_of(defense: Any) -> Floats:
    """The answers' probabilities, in the order of the defense's targets."""
    if isinstance(defense, AbstainingResponse):
        said, lie = defense.speaking, defense.flip
        no = [said * (1 - lie), 1 - said, said * lie]
        return np.array([no, no[::-1]])
    a, b = defense.flips.positive, defense.flips.negative
    return np.array([[1 - b, b], [a, 1 - a]])


def test_the_best_targets_are_those_of_a_general_solver() -> None:
    for channel in random_channels(8, seed=1):
        targets, least = best_unbiased(channel, 0.2)
        assert channel @ targets == pytest.approx([0.0, 1.0], abs=1e-9)
        found = minimize(
            lambda chosen, given=channel: variance(given, chosen, 0.2),
            np.zeros(channel.shape[1]),
            constraints={"type": "eq", "fun": lambda chosen, given=channel: given @ chosen - [0.0, 1.0]},
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 500},
        )
        assert found.success
        assert least == pytest.approx(found.fun, rel=1e-5)


@pytest.fixture(scope="module")
def told() -> list[tuple[Floats, float, float, float]]:
    """Channels, and of each the detection error, ε, and AUC."""
    found = [
        (channel, (1 - total_variation(channel)) / 2, privacy_loss(channel), auc(channel))
        for channel in random_channels(4000, seed=0)
    ]
    return [one for one in found if 1e-3 < one[1] < 0.499]


@pytest.mark.parametrize("share", [*SHARES, 0.8])
def test_no_channel_costs_less_than_its_bounds(share: float, told: list[tuple[Floats, float, float, float]]) -> None:
    nearest = math.inf
    for channel, error, epsilon, reached in told:
        _, least = best_unbiased(channel, share)
        bounds = {
            "auc": least_variance_under_auc(auc=reached, positive_share=share),
            "error": least_variance(positive_share=share, detection_error=error),
            "both": least_variance(positive_share=share, detection_error=error, epsilon=epsilon),
            "epsilon": least_variance(positive_share=share, epsilon=epsilon),
        }
        for name, bound in bounds.items():
            # Rounding of a linear system whose condition grows as 1 / δ².
            assert least >= bound * (1 - 1e-7) - 1e-9, (name, channel)
        nearest = min(nearest, least / bounds["both"])
    assert nearest < 1.05  # not idle: some of two answers are nearly symmetric


@pytest.mark.parametrize("share", [0.067, 0.4])
@pytest.mark.parametrize("answers", [2, 5])
def test_a_search_for_a_cheaper_channel_ends_at_the_bound(share: float, answers: int) -> None:
    """It is free to move all probabilities; what counts is V in units of the least for the AUC that it has then."""

    def channel_at(logits: Floats) -> Floats:
        rows = np.exp(logits.reshape(2, answers) - logits.reshape(2, answers).max(axis=1, keepdims=True))
        return rows / rows.sum(axis=1, keepdims=True)

    def ratio(logits: Floats) -> float:
        channel = channel_at(logits)
        reached = auc(channel)
        if not 0.51 < reached < 0.95:  # beyond, both numbers vanish or diverge, and their ratio is rounding
            return 1e3
        return best_unbiased(channel, share)[1] / least_variance_under_auc(auc=reached, positive_share=share)

    generator = np.random.default_rng(answers)
    ends = []
    for _ in range(3):
        start = generator.normal(size=2 * answers)
        found = minimize(
            ratio, start, method="Nelder-Mead", options={"maxiter": 3000, "maxfev": 3000, "adaptive": True}
        )
        ends.append(found.fun)
    assert min(ends) >= 1 - 1e-7
    assert min(ends) < 1.1


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("error", [0.1, 0.3, 0.4, 0.48])
def test_our_answers_meet_their_bounds(share: float, error: float) -> None:
    asymmetric = AsymmetricResponse(detection_error=error, epsilon=None)
    channel = channel_of(asymmetric)
    assert auc(channel) == pytest.approx(1 - error, abs=1e-12)
    assert variance(channel, np.array(asymmetric.target_values), share) == pytest.approx(
        least_variance_under_auc(auc=1 - error, positive_share=share), rel=1e-9
    )

    epsilon = 2 * math.atanh(1 - 2 * error) + 0.7
    for chosen in (None, epsilon):
        abstaining = AbstainingResponse(detection_error=error, epsilon=chosen)
        channel = channel_of(abstaining)
        assert (1 - total_variation(channel)) / 2 == pytest.approx(error, abs=1e-12)
        least = least_variance(positive_share=share, detection_error=error, epsilon=chosen)
        assert best_unbiased(channel, share)[1] == pytest.approx(least, rel=1e-9)
        assert best_unbiased(channel, share)[0][1] == pytest.approx(share)  # silence's best target

    memoised = MemoisedResponse(epsilon=epsilon)
    assert variance(channel_of(memoised), np.array(memoised.target_values), share) == pytest.approx(
        least_variance(positive_share=share, epsilon=epsilon), rel=1e-9
    )
    # v as the table writes it.
    assert least_variance(positive_share=share, epsilon=epsilon) == pytest.approx(
        math.exp(epsilon) / math.expm1(epsilon) ** 2, rel=1e-9
    )


def test_every_channel_is_a_garbling_of_the_abstaining_response() -> None:
    """A linear program looks for the garbling, and knows nothing of the proof."""
    looked = 0
    for channel in random_channels(120, seed=3):
        error, epsilon = (1 - total_variation(channel)) / 2, privacy_loss(channel)
        if not 1e-3 < error < 0.499 or epsilon > 12:
            continue
        looked += 1
        for chosen in (None, epsilon):
            best = channel_of(AbstainingResponse(detection_error=error, epsilon=chosen))
            assert garbles(best, channel)
    assert looked > 80


def test_the_program_finds_no_garbling_where_there_is_none() -> None:
    best = channel_of(AbstainingResponse(detection_error=0.4, epsilon=3.0))
    told_more = channel_of(AsymmetricResponse(detection_error=0.39, epsilon=3.0))
    assert not garbles(best, told_more)
    # The asymmetric response of the same promises is one, and not the other way round.
    asymmetric = channel_of(AsymmetricResponse(detection_error=0.4, epsilon=3.0))
    assert garbles(best, asymmetric)
    assert not garbles(asymmetric, best)


def garbles(source: Floats, wanted: Floats) -> bool:
    """Whether a stochastic matrix G has ``source @ G = wanted``, to 1e-6."""
    rows, columns = source.shape[1], wanted.shape[1]
    size = rows * columns
    equal, given = [], []
    for label, answer in itertools.product((0, 1), range(columns)):
        line = np.zeros((rows, columns))
        line[:, answer] = source[label]
        equal.append(line.reshape(-1))
        given.append(wanted[label, answer])
    sums = [np.kron(np.eye(rows)[row], np.ones(columns)) for row in range(rows)]
    matrix, slack = np.array(equal), np.eye(len(equal))
    # Least total violation; an exact garbling has none.
    found = linprog(
        np.concatenate([np.zeros(size), np.ones(2 * len(equal))]),
        A_eq=np.block([[matrix, slack, -slack], [np.array(sums), np.zeros((rows, 2 * len(equal)))]]),
        b_eq=np.concatenate([given, np.ones(rows)]),
    )
    assert found.success
    return bool(found.fun < 1e-6)


@pytest.mark.parametrize("prediction", [0.03, 0.2, 0.9])
def test_zero_gradient_costs_what_a_calibrated_target_costs(prediction: float) -> None:
    """By enumeration of a record's answers: noise of its gradient where its probability is what the model says."""
    defense = AbstainingResponse(detection_error=0.4, epsilon=3.0)
    channel, (no, _, yes) = channel_of(defense), defense.target_values
    gradients = np.array([prediction - no, 0.0, prediction - yes]) / defense.speaking
    cost = 0.0
    for label, weight in ((0, 1 - prediction), (1, prediction)):
        assert channel[label] @ gradients == pytest.approx(prediction - label, abs=1e-12)  # unbiased
        cost += weight * float(channel[label] @ (gradients - (prediction - label)) ** 2)
    assert cost == pytest.approx(least_variance(positive_share=prediction, detection_error=0.4, epsilon=3.0), rel=1e-9)


def test_the_docstring_tells_what_each_kind_of_answer_costs() -> None:
    share, error = 0.067, 0.4

    def ours(defense: Any) -> tuple[float, float]:
        channel = channel_of(defense)
        return best_unbiased(channel, share)[1], auc(channel)

    # A Gaussian target y + N(0, σ²), remembered: detection error Φ(−1/(2σ)), AUC Φ(1/(σ √2)), V = σ².
    by_error = -1 / (2 * norm.ppf(error))
    by_auc = 1 / (math.sqrt(2) * norm.ppf(1 - error))
    expected = [
        ours(AsymmetricResponse(detection_error=error, epsilon=None)),
        ours(AsymmetricResponse(detection_error=error, epsilon=3.0)),
        (by_auc**2, norm.cdf(1 / (by_auc * math.sqrt(2)))),
        ours(AbstainingResponse(detection_error=error, epsilon=None)),
        ours(AbstainingResponse(detection_error=error, epsilon=3.0)),
        (by_error**2, norm.cdf(1 / (by_error * math.sqrt(2)))),
        ours(MemoisedResponse(flip=error)),
    ]
    rows = re.findall(r"^\w.*(?:≤ \.6|ε|\.4) +(\d?\.\d+) +(\.\d+)$", module.__doc__ or "", re.MULTILINE)
    assert len(rows) == len(expected)
    for told, (cost, reads) in zip(rows, expected, strict=True):
        assert (float(told[0]), float(told[1])) == (pytest.approx(cost, abs=0.005), pytest.approx(reads, abs=0.0005))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positive_share": 0.0, "epsilon": 1.0}, "positive_share must lie strictly between 0 and 1"),
        ({"positive_share": 0.5}, "expected a detection_error, an epsilon, or both"),
        ({"positive_share": 0.5, "detection_error": 0.5}, "strictly between 0 and 0.5"),
        ({"positive_share": 0.5, "epsilon": math.inf}, "positive and finite"),
    ],
)
def test_bad_numbers_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        least_variance(**settings)


@pytest.mark.parametrize("auc_", [0.5, 1.01, math.nan])
def test_an_auc_out_of_range_is_refused(auc_: float) -> None:
    with pytest.raises(ArgumentError, match=r"above 0\.5 and at most 1"):
        least_variance_under_auc(auc=auc_, positive_share=0.1)
