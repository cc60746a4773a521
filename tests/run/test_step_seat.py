"""A partner's only column, from all steps of a training: found as far as theorem 3.5 says, judged up to its sign."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.app.deployment import _unavailable
from splitvfl.attacks import SingleColumnAttack
from splitvfl.defenses import GaussianIR
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.hooks import View
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.run import step_seat
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
    found = reading(trained(EXCHANGES[name](), epochs=10 if name == "hybrid" else 4))
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


def test_without_plain_steps_one_factor_is_granted_and_nothing_else() -> None:
    made = trained(Split(in_flight=1))
    assert reading(made).share > 0.999
    assert "one factor and its sign are granted" in reading(made).note
    made._step_seat._kept[0].received["lab"][:] = made._step_seat._kept[0].received["lab"].flip(0)
    made._step_seat.read(0, made.training.log.monitor)
    assert reading(made).share < 0.99


def test_an_unscaled_estimate_is_not_granted_a_scale_where_the_weight_takes_plain_steps() -> None:
    class Double(SingleColumnAttack):
        def __call__(self, view: View, /) -> Tensor:
            return -2.0 * super().__call__(view)

    assert reading(trained(Split(), attacks=[Double()])).share < 0.1, "twice the column is off by the column"


def test_fewer_sums_than_records_give_the_last_batch_alone() -> None:
    """Of 70 records the last batch of an epoch has six, whose parts fourteen sums determine up to one factor."""
    found = reading(trained(EXCHANGES["taylor"](), own=BATCH - 3))
    assert 0.0 < found.exact < 0.5  # type: ignore[operator]
    assert "the scale is not determined" in found.note
    assert "records are not linked to the others" in found.note
    made = trained(EXCHANGES["taylor"](), own=BATCH - 3, drop_last=True)
    assert "do not determine the parts of so many" in unavailable(made)


def test_noise_on_what_is_sent_leaves_less() -> None:
    shares = [
        reading(trained(Split(), defenses=(GaussianIR(clip=10.0, sigma=sigma / 10),))).share
        for sigma in (0.001, 0.3, 30.0)
    ]
    assert shares[0] > 0.99
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.5


def test_a_run_that_was_resumed_has_all_steps(tmp_path: Any) -> None:
    whole = trained(Split())
    trained(Split(), epochs=2, log_dir=tmp_path)
    again = trainer_of(Split(), {"lab": 1}, own=BATCH - 1, attacks=[SingleColumnAttack()], log_dir=tmp_path)
    again.resume()
    again.fit(4)
    assert len(again._step_seat._kept) == len(whole._step_seat._kept)
    assert reading(again) == reading(whole)
    assert "feature_leak_of_steps/lab/single-column" in (tmp_path / "metrics.jsonl").read_text()


def test_steps_beyond_what_is_kept_are_counted_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reading(trained(Split()))
    monkeypatch.setattr(step_seat, "_MOST_NUMBERS", 1)
    steps = 4 * -(-RECORDS // BATCH)
    assert f"only the first 1 of {steps} steps were looked at" in reading(trained(Split())).note
    assert "looked at" not in whole.note


def test_looking_changes_nothing() -> None:
    watched, alone = trained(Split()), trained(Split(), attacks=[])
    assert torch.equal(watched.passives["lab"].bottom.weight, alone.passives["lab"].bottom.weight)
    assert not alone.active.told_of_steps


@pytest.mark.parametrize(
    ("exchange", "widths", "why"),
    [
        ("split", {"lab": 2}, "lab has 2"),
        ("coordinator", {"lab": 1, "shop": 1}, "sums of the parts of all partners together"),
    ],
)
def test_what_cannot_be_reconstructed_is_named(exchange: str, widths: dict[str, int], why: str) -> None:
    made = trainer_of(EXCHANGES[exchange](), widths, own=BATCH - 1, attacks=[SingleColumnAttack()])
    made.fit(1)
    assert why in unavailable(made)


def test_two_partners_of_one_column_are_both_found_under_encryption() -> None:
    made = trainer_of(EXCHANGES["taylor"](), {"lab": 1, "shop": 1}, own=BATCH - 1, attacks=[SingleColumnAttack()])
    made.fit(4)
    assert [made.column_readings(name)[0].share > 0.999 for name in ("lab", "shop")] == [True, True]


def test_over_a_network_nobodys_column_is_reconstructed() -> None:
    made = trainer_of(Split(), {"lab": 1})
    why = _unavailable(SingleColumnAttack(), made.active, frozenset(), Split(), partner="lab")
    assert "nobody's real column is reconstructed over a network" in why


def unavailable(made: Trainer) -> str:
    assert made.column_readings("lab") == []
    return made.unavailable["lab"]["single-column"]
