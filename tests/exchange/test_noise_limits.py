"""Noise on residues and the limit of what is encrypted: refused before the first step, where it would end the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from splitvfl.defenses import LaplaceResidue, MultiplicativeLaplaceResidue
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.run.trainer import Trainer
from tests.exchange.logistic import BATCH, trainer_of

# How large the number is that is encrypted of a residue of 1: Taylor's coefficient is four times it.
UNITS: dict[str, tuple[Callable[..., Exchange], float]] = {
    "residue": (Residue, 1.0),
    "taylor": (Taylor, 4.0),
    "coordinator": (Coordinator, 4.0),
}


def trainer(name: str, limit: float | None, defense: Any) -> Trainer:
    encryption = InsecureEncryption(key_bits=512, value_limit=limit)
    return trainer_of(UNITS[name][0](rows=BATCH, encryption=encryption), {"lab": 2}, defenses=(defense,), audit=False)


@pytest.mark.parametrize("name", UNITS)
def test_laplace_noise_that_the_limit_does_not_hold_is_refused_with_one_that_does(name: str) -> None:
    defense = LaplaceResidue(epsilon=0.1)
    refused = trainer(name, None, defense)
    draws, unit = refused.active.data.train.count * 7, UNITS[name][1]
    # P(|noise| > t · scale) = e^-t; of so many draws one is beyond in a run of 10^9.
    needed = unit * (1 + 20 * (-math.log(1e-9 / draws)))
    limit = 2.0 ** math.ceil(math.log2(needed))

    with pytest.raises(
        ConfigError, match=rf"value_limit is 16, and laplace-residue .*value_limit: {limit:g}, at every"
    ):
        refused.fit(7)
    assert refused.step == 0

    # What is named will do, and what is well below will not.
    trainer(name, limit, defense).exchange.check_noise(refused.active, epochs=7)
    with pytest.raises(ConfigError, match="value_limit is"):
        trainer(name, 0.9 * needed, defense).exchange.check_noise(refused.active, epochs=7)


def test_many_epochs_need_more() -> None:
    one = trainer("residue", 60.0, LaplaceResidue(epsilon=1.0))
    one.exchange.check_noise(one.active, epochs=1)
    with pytest.raises(ConfigError, match="in 1000 epochs"):
        one.exchange.check_noise(one.active, epochs=1000)


@pytest.mark.parametrize(("name", "bound"), [("residue", 15.9), ("taylor", 3.99)])
def test_multiplicative_noise_needs_its_bound(name: str, bound: float) -> None:
    inside, beyond = (
        trainer(name, None, MultiplicativeLaplaceResidue(epsilon=5.0, b1=0.5, b2=b2)) for b2 in (bound, 1.01 * bound)
    )
    inside.exchange.check_noise(inside.active, epochs=1000)
    with pytest.raises(ConfigError, match=r"multiplicative-laplace-residue .*value_limit: 32, at every"):
        beyond.exchange.check_noise(beyond.active, epochs=1)


def test_what_is_not_encrypted_has_no_limit() -> None:
    open_run = trainer_of(Split(), {"lab": 2}, defenses=(LaplaceResidue(epsilon=0.1),), audit=False)
    open_run.exchange.check_noise(open_run.active, epochs=7)
