"""Shares of what messages add: their interval by Fieller's theorem, and when there is no share."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from scripts.reproduce.shared.shares import fieller, kept


def test_the_share_kept_is_of_what_messages_add() -> None:
    nothing, undefended, defended = [0.70, 0.72, 0.71], [0.80, 0.82, 0.81], [0.765, 0.795, 0.78]

    found = kept(defended, undefended, nothing)

    # The mean gain is .07, of .10.
    assert found.share == pytest.approx(0.7)
    assert found.difference == pytest.approx(0.07)
    # What messages add does not vary here, so that it is the interval of the difference, in tenths.
    half = stats.t.ppf(0.975, 2) * stats.sem([0.065, 0.075, 0.07]) / 0.1
    assert found.share_ends == pytest.approx((0.7 - half, 0.7 + half))
    assert found.shown == "70 % (58 to 82 %)"


@pytest.mark.parametrize("seed", range(4))
def test_the_interval_of_a_share_holds_the_ratios_that_a_paired_test_does_not_reject(seed: int) -> None:
    """By trying ratios, one after the other, with the test of another library."""
    draw = np.random.default_rng(seed)
    below = draw.normal(0.10, 0.01, 5)
    above = 0.6 * below + draw.normal(0, 0.008, 5)

    ends = fieller(above.tolist(), below.tolist())

    assert ends is not None
    for ratio in np.linspace(ends[0] - 0.2, ends[1] + 0.2, 41):
        rejected = stats.ttest_rel(above, ratio * below).pvalue < 0.05
        assert rejected != (ends[0] <= ratio <= ends[1])


def test_intervals_are_wider_where_runs_share_records() -> None:
    below, above, nothing = [0.11, 0.09, 0.10, 0.12], [0.07, 0.05, 0.06, 0.06], [0.7] * 4
    defended, undefended = ([0.7 + one for one in gains] for gains in (above, below))

    narrow, wide = (kept(defended, undefended, nothing, overlap=overlap) for overlap in (0.0, 1 / 9))

    # By trying ratios: t of a mean whose variance is (1/n + n_test/n_train) s² (Nadeau and Bengio).
    assert wide.share_ends is not None
    for ratio in np.linspace(wide.share_ends[0] - 0.2, wide.share_ends[1] + 0.2, 41):
        left = np.array(above) - ratio * np.array(below)
        t = abs(left.mean()) / math.sqrt((1 / 4 + 1 / 9) * left.var(ddof=1))
        assert (t > stats.t.ppf(0.975, 3)) != (wide.share_ends[0] <= ratio <= wide.share_ends[1])
    assert narrow.difference_ends is not None
    assert wide.difference_ends is not None
    widths = [ends[1] - ends[0] for ends in (narrow.difference_ends, wide.difference_ends)]
    assert widths[1] / widths[0] == pytest.approx(math.sqrt(1 + 4 / 9))


def test_the_interval_of_a_share_holds_it_in_nineteen_of_twenty_studies() -> None:
    draw = np.random.default_rng(0)
    studies = 2000
    held = []
    for _ in range(studies):
        below = draw.normal(0.10, 0.02, 5)
        ends = fieller((0.5 * below + draw.normal(0, 0.02, 5)).tolist(), below.tolist())
        if ends is not None:
            held.append(ends[0] <= 0.5 <= ends[1])

    assert len(held) > 0.99 * studies
    # .005 is the standard error of such a share: four of these.
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    "undefended",
    [
        [0.71, 0.71, 0.68],  # gains of .01, 0 and −.01: the interval holds 0
        [0.72, 0.71, 0.70],  # the mean gain is .01, and the interval's half width .025
    ],
)
def test_there_is_no_share_where_messages_may_add_nothing(undefended: list[float]) -> None:
    nothing, defended = [0.70, 0.71, 0.69], [0.72, 0.72, 0.72]

    found = kept(defended, undefended, nothing)

    assert found.share is found.share_ends is None
    assert found.difference == pytest.approx(0.02)
    # The differences are .02, .01 and .03: t with two degrees of freedom times .01/√3.
    assert found.shown == "+.020 ± .025\\*"


def test_there_is_a_share_just_where_a_paired_test_says_that_messages_add_something() -> None:
    draw = np.random.default_rng(1)
    told = []
    for _ in range(200):
        nothing, defended = draw.normal(0.7, 0.02, (2, 4))
        undefended = nothing + draw.normal(0.02, 0.015, 4)
        test = stats.ttest_rel(undefended, nothing)
        told.append(bool(test.pvalue < 0.05 and test.statistic > 0))

        found = kept(defended.tolist(), undefended.tolist(), nothing.tolist())

        assert (found.share is not None) is told[-1]
    assert 20 < sum(told) < 180


def test_of_a_loss_by_messages_no_share_is_kept() -> None:
    # Undefended it is worse for certain.
    found = kept([0.72, 0.72], [0.690, 0.690], [0.70, 0.70])

    assert found.share is None
    assert found.shown == "+.020 ± .000\\*"


def test_a_seed_without_a_figure_leaves_none() -> None:
    assert kept([0.72, math.nan], [0.8, 0.81], [0.70, 0.70]).shown == "–"
    # Known of the defended model alone, there is no share of it.
    assert kept([0.72, 0.73], [0.8, math.nan], [0.70, 0.70]).share is None
    # One seed has no interval, and no share.
    assert kept([0.72], [0.8], [0.70]).shown == "+.020\\*"


def test_a_share_of_nothing_has_no_sign() -> None:
    found = kept([0.70, 0.69, 0.709], [0.80, 0.79, 0.81], [0.70, 0.69, 0.71])

    assert found.share is not None
    assert -0.005 < found.share < 0.0
    assert found.shown.startswith("0 % (−2 to ")
