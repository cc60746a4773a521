"""Attacks on equations by name, for attacks that find the equations first and then go on with one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from splitvfl.attacks.constrained_least_squares import ConstrainedLeastSquaresAttack
from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.attacks.half import HalfStarAttack
from splitvfl.attacks.least_squares import ClampedLeastSquaresAttack, LeastSquaresAttack
from splitvfl.attacks.rcc1 import RCC1Attack
from splitvfl.attacks.rcc2 import RCC2Attack
from splitvfl.errors import ArgumentError

WhiteBox = Literal["least-squares", "clamped-least-squares", "constrained-least-squares", "half-star", "rcc1", "rcc2"]

_ATTACKS: Mapping[str, type[EquationAttack]] = {
    attack.name: attack
    for attack in (
        LeastSquaresAttack,
        ClampedLeastSquaresAttack,
        ConstrainedLeastSquaresAttack,
        HalfStarAttack,
        RCC1Attack,
        RCC2Attack,
    )
}


def white_box(name: WhiteBox) -> EquationAttack:
    """Return the attack on equations of this name.

    Raises:
        ArgumentError: If there is none.
    """
    if name not in _ATTACKS:
        raise ArgumentError(f"then must be one of {', '.join(_ATTACKS)}, got {name!r}")
    return _ATTACKS[name]()


def check_known_rows(known_rows: int) -> int:
    """Return a number of known records, if it is one.

    Raises:
        ArgumentError: If it is no whole number of at least 1.
    """
    if isinstance(known_rows, bool) or not isinstance(known_rows, int) or known_rows < 1:
        raise ArgumentError(f"known_rows must be a whole number of at least 1, got {known_rows!r}")
    return known_rows
