from __future__ import annotations

import math

import pytest

from splitvfl.defenses.setting_checks import check_detection_error, check_positive
from splitvfl.errors import ArgumentError


def test_positive_settings_are_finite_and_above_zero() -> None:
    check_positive(sigma=1e-300, ratio=1)
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match=f"ratio must be positive and finite, got {value}"):
            check_positive(sigma=1.0, ratio=value)
    for nothing in (None, "1", True):
        with pytest.raises(ArgumentError, match="ratio must be a number, got "):
            check_positive(ratio=nothing)  # type: ignore[arg-type]


def test_a_detection_error_lies_between_0_and_one_half() -> None:
    check_detection_error(0.499)
    for value in (0.0, 0.5, -0.1, math.nan):
        with pytest.raises(ArgumentError, match=f"must lie strictly between 0 and 0.5, got {value}"):
            check_detection_error(value)
