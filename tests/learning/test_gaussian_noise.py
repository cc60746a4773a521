from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import brentq

from splitvfl.errors import ArgumentError
from splitvfl.privacy import classic_gaussian_sigma, gaussian_delta, gaussian_sigma
from tests.rows import every


def slow_delta(sigma: float, epsilon: float, sensitivity: float) -> mpmath.mpf:
    """The definition in 400 digits: at 1e-300 nearly all of them cancel."""
    with mpmath.workdps(400):
        span, scale, loss = mpmath.mpf(sensitivity), mpmath.mpf(sigma), mpmath.mpf(epsilon)
        half, shift = span / (2 * scale), loss * scale / span
        return mpmath.ncdf(half - shift) - mpmath.exp(loss) * mpmath.ncdf(-half - shift)


@every(
    sigma=[1e-3, 0.03, 0.5, 1.0, 4.0, 30.0, 1e3, 1e6],
    epsilon=[1e-9, 1e-4, 0.1, 1.0, 10.0, 100.0, 700.0, 5000.0],
    sensitivity=[1.0, 7.5],
)
def test_delta_equals_the_definition_in_400_digits(sigma: float, epsilon: float, sensitivity: float) -> None:
    expected = slow_delta(sigma, epsilon, sensitivity)

    # Cancellation costs four of sixteen digits before the integral takes over; logarithms of up to -700 cost three.
    assert gaussian_delta(sigma, epsilon, sensitivity=sensitivity) == pytest.approx(
        float(expected), rel=1e-9, abs=1e-305
    )


def test_delta_equals_the_area_between_the_two_densities() -> None:
    sigma, epsilon, span = 1.7, 0.4, 2.0
    # The supremum over events is attained where one density exceeds e^epsilon times the other.
    loss = mpmath.quad(
        lambda x: max(0.0, mpmath.npdf(x, span, sigma) - mpmath.exp(epsilon) * mpmath.npdf(x, 0.0, sigma)),
        [-20.0, span / 2 + epsilon * sigma**2 / span, 25.0],
    )

    assert gaussian_delta(sigma, epsilon, sensitivity=span) == pytest.approx(float(loss), rel=1e-10)


@every(epsilon=[1e-3, 0.1, 0.9, 2.0, 20.0, 150.0], delta=[0.5, 0.1, 1e-5, 1e-12])
def test_sigma_equals_the_root_of_the_definition(epsilon: float, delta: float) -> None:
    with mpmath.workdps(60):
        root = brentq(
            lambda log: float(mpmath.log(slow_delta(math.exp(log), epsilon, 3.0) / delta)), -8, 12, xtol=1e-13
        )

    assert gaussian_sigma(epsilon, delta, sensitivity=3.0) == pytest.approx(math.exp(root), rel=1e-9)


def test_sigma_equals_that_of_dp_accounting() -> None:
    accounting = pytest.importorskip("dp_accounting", exc_type=ImportError)

    for epsilon in (0.05, 0.5, 1.0, 8.0):
        for delta in (1e-2, 1e-5, 1e-9):
            expected = 2.5 * accounting.get_sigma_gaussian(epsilon, delta)
            # Its own root search stops at a relative 1e-7 or so.
            assert gaussian_sigma(epsilon, delta, sensitivity=2.5) == pytest.approx(expected, rel=1e-6)


# Here δ is 1e-125, and two numbers of which 2e-4 remains are subtracted: their common factor must not take part.
@example(epsilon=0.12, log_delta=-287.7728345847002, sensitivity=1e-06)
@given(epsilon=st.floats(1e-4, 300.0), log_delta=st.floats(-650.0, -0.01), sensitivity=st.floats(1e-6, 1e6))
def test_sigma_is_the_smallest_that_keeps_its_promise(epsilon: float, log_delta: float, sensitivity: float) -> None:
    delta = math.exp(log_delta)

    sigma = gaussian_sigma(epsilon, delta, sensitivity=sensitivity)

    # One rounding of sigma changes log delta by up to (epsilon sigma / Delta)^2 ~ 1500 roundings.
    assert gaussian_delta(sigma, epsilon, sensitivity=sensitivity) <= delta * (1 + 1e-11)
    assert gaussian_delta(sigma * (1 - 1e-7), epsilon, sensitivity=sensitivity) > delta * (1 + 1e-11)


def test_the_textbook_is_never_below_the_exact_noise_and_refuses_where_it_would_be() -> None:
    for epsilon in (0.01, 0.3, 0.999):
        for delta in (0.1, 1e-6):
            assert classic_gaussian_sigma(epsilon, delta, sensitivity=2.0) > gaussian_sigma(
                epsilon, delta, sensitivity=2.0
            )
    # The specification's figures for what the formula would do beyond: delta .04 instead of .01 at epsilon 10.
    sigma = math.sqrt(2 * math.log(1.25 / 0.01)) / 10
    assert gaussian_delta(sigma, 10.0, sensitivity=1.0) == pytest.approx(0.04, abs=0.005)
    with pytest.raises(ArgumentError, match=r"below 1, got 1\.0; gaussian_sigma holds everywhere"):
        classic_gaussian_sigma(1.0, 0.01, sensitivity=1.0)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_arguments_outside_their_range_are_refused(wrong: float) -> None:
    with pytest.raises(ArgumentError, match="epsilon must be finite and above 0"):
        gaussian_sigma(wrong, 0.1, sensitivity=1.0)
    with pytest.raises(ArgumentError, match="sensitivity must be finite and above 0"):
        gaussian_delta(1.0, 1.0, sensitivity=wrong)
    with pytest.raises(ArgumentError, match="sigma must be finite and above 0"):
        gaussian_delta(wrong, 1.0, sensitivity=1.0)
    for function in (gaussian_sigma, classic_gaussian_sigma):
        for delta in (wrong, 1.0):
            with pytest.raises(ArgumentError, match="delta must lie strictly between 0 and 1"):
                function(0.5, delta, sensitivity=1.0)
