"""Checks of settings that several defenses have."""

from __future__ import annotations

import math

from splitvfl.errors import ArgumentError, number


def check_positive(**settings: float) -> None:
    """Raise :class:`ArgumentError` unless every setting is a number, positive and finite."""
    for name, value in settings.items():
        if not (number(name, value) > 0 and math.isfinite(value)):
            raise ArgumentError(f"{name} must be positive and finite, got {value}")


def check_detection_error(detection_error: float) -> None:
    """Raise :class:`ArgumentError` unless a detection error L lies in (0, ½)."""
    if not 0.0 < detection_error < 0.5:
        raise ArgumentError(f"detection_error must lie strictly between 0 and 0.5, got {detection_error}")
