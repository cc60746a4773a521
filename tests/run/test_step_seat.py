"""A partner's only column, from all steps of a training: found as far as theorem 3.5 says, and judged up to its sign."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.attacks import SingleColumnAttack
from splitvfl.defenses import GaussianIR
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.hooks import PartnerStep, View
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.run.trainer import Trainer
from tests.exchange.logistic import BATCH, RECORDS, SHORT, trainer_of

ENCRYPTED = {"rows": BATCH, "encryption": SHORT}
EXCHANGES: dict[str, Callable[[], Exchange]] = {
    "split": Split,
    "oracle": Oracle,
    "residue": partial(Residue, **ENCRYPTED),
    "taylor": partial(Taylor, **ENCRYPTED, loss=False),
    "coordinator": partial(Coordinator, **ENCRYPTED),
    "hybrid": partial(Hybrid, **ENCRYPTED, epsilon=1.0, share=0.4),
}


class Look:
    """Keeps its view, and answers zeros."""

    name, seat, target = "look", "active", "features"
    needs = frozenset({"partner_steps"})

    def __init__(self, kept: list[View]) -> None:
        self.kept = kept

    def __deepcopy__(self, memo: Any) -> Look:
        return self

    def __call__(self, view: View, /) -> Tensor:
        self.kept.append(view)
        return torch.zeros(len(view.ids), 1)


def trained(exchange: Exchange, epochs: int = 4, *, columns: int = 1, **settings: Any) -> Trainer:
    made = trainer_of(exchange, {"lab": columns}, **{"own": BATCH - 1, "attacks": [SingleColumnAttack()], **settings})
    made.fit(epochs)
    return made


def reading(made: Trainer) -> ColumnReading:
    (found,) = made.column_readings("lab")
    return found


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_column_is_found_in_every_exchange(name: str) -> None:
    found = reading(trained(EXCHANGES[name](), epochs=6 if name == "hybrid" else 4))
    assert (found.attack, found.of_steps, found.known_share) == ("single-column", True, 0.0)
    assert found.share > 0.9999
    assert found.exact == 1.0
    assert (found.records, found.told) == (RECORDS, 1)


@pytest.mark.parametrize("exchange", ["split", "taylor"])
def test_what_the_attack_is_shown_is_what_the_partner_multiplies(exchange: str) -> None:
    """Beside the partner's own column and weight, step by step, which the attack never sees."""
    kept: list[View] = []
    made = trained(EXCHANGES[exchange](), epochs=2, attacks=[Look(kept)])
    (view,) = kept
    column = made.passives["lab"].data.train.columns.numeric[:, 0].double().numpy()
    weights, last = [], None
    for step in view.partner_steps:
        x = column[step.ids.numpy()]
        seen = step.received.numpy()
        parts = np.linalg.lstsq(step.columns.numpy().T, seen, rcond=None)[0] if exchange == "taylor" else seen
        w = float(parts @ x / (x @ x))
        np.testing.assert_allclose(parts, w * x, atol=1e-4)
        if last is not None:
            np.testing.assert_allclose(w, last, rtol=1e-3, atol=1e-4)
        pulls = step.sent.numpy() + step.part_weight * parts
        assert step.eta == 0.5
        last = w - step.eta * float(pulls @ x)
        weights.append(w)
    assert len(weights) == 2 * len(made.batches)
    np.testing.assert_allclose(last, made.passives["lab"].bottom.weight.item(), rtol=1e-3, atol=1e-4)


def unavailable(made: Trainer) -> str:
    assert made.column_readings("lab") == []
    return made.unavailable["lab"]["single-column"]
