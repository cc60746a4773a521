"""Checks of the arguments of privacy formulas."""

from __future__ import annotations

import math
from numbers import Real

from splitvfl.errors import ArgumentError


def number(name: str, value: object) -> float:
    """Return a number as a float.

    Raises:
        ArgumentError: If it is text, nothing, or a truth value.
    """
    if type(value) is float:  # as nearly always, and asking for a Real takes ten times as long
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentError(f"{name} must be a number, got {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return a finite value above 0 as a float.

    Raises:
        ArgumentError: If it is none.
    """
    value = number(name, value)
    if not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{name} must be finite and above 0, got {value!r}")
    return value


def probability(name: str, value: float) -> float:
    """Return a value strictly between 0 and 1 as a float.

    Raises:
        ArgumentError: If it is none.
    """
    value = number(name, value)
    if not 0 < value < 1:
        raise ArgumentError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return value


def count(name: str, value: int) -> int:
    """Return a whole number of at least 1.

    Raises:
        ArgumentError: If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= 1 or value % 1:
        raise ArgumentError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def from_zero(name: str, value: float) -> float:
    """Return a finite value of at least 0 as a float.

    Raises:
        ArgumentError: If it is none.
    """
    value = number(name, value)
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentError(f"{name} must be finite and at least 0, got {value!r}")
    return value
