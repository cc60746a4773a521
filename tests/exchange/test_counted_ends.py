"""Ends of a run that tell a partner something it chose, as a refused sum does, and are counted with these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from splitvfl.crypto.engine import Engine
from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.crypto.sum_masks import SumMasks
from splitvfl.errors import CryptoError, ReplayError, SumRefused
from splitvfl.exchange.coordinator import NAME, Coordinator
from splitvfl.exchange.paillier import EncryptedExchange
from splitvfl.exchange.parts import part_to_score
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from splitvfl.messaging.conversation import converse
from splitvfl.party.refusals import MOST, Refusals, journal_of
from splitvfl.run.replay import ReplayGuard
from splitvfl.run.trainer import Trainer
from tests.builders import take_step
from tests.exchange.logistic import BATCH, RATE, SHORT, trainer_of

STEPS = 5  # of an epoch


class Pusher(Owner):
    """Adds to the first sum of the first answer what moves a weight by ``push``: within the limits, and not noticed."""

    push = 0.0
    value_limit = SHORT.largest_value

    def open_masked(self, reply: Tensor, layout: ProductLayout) -> Tensor:
        opened = tensor_to_integers(super().open_masked(reply, layout), layout.opened_bytes)
        lie = int(self.push / RATE * 4 * BATCH * 2**layout.sum_bits)
        assert abs(lie) < layout.largest_sum / 2
        type(self).push = 0.0
        return integers_to_tensor([(opened[0] + lie) % (1 << layout.opened_bits[0]), *opened[1:]], layout.opened_bytes)


class Pushing(Engine):
    def owner(self, key: PrivateKey) -> Owner:
        return Pusher(key)


EXCHANGES: dict[str, tuple[Callable[..., EncryptedExchange], str]] = {
    "taylor": (partial(Taylor, rows=BATCH, encryption=SHORT, loss=False), "bank"),
    "coordinator": (partial(Coordinator, rows=BATCH, encryption=SHORT), NAME),
}


def pushed(name: str, push: float, folder: Path) -> Trainer:
    """Train one epoch more from the last checkpoint on, in a process of its own, after one lie."""
    made, liar = EXCHANGES[name]
    by_party = {party: made(engine=Pushing if party == liar else Engine) for party in ("bank", "lab")}
    trainer = trainer_of(by_party, {"lab": 2}, log_dir=folder, checkpoint_every=STEPS)  # type: ignore[arg-type]
    if liar == NAME:
        trainer._sides[NAME]._engine = Pushing()  # type: ignore[attr-defined]
    trainer.resume()
    Pusher.push = push
    trainer.fit(2)
    return trainer


@pytest.mark.parametrize("name", [*EXCHANGES])
def test_logits_above_the_limit_are_no_oracle_without_end(name: str, tmp_path: Path) -> None:
    """Who opens sums sets weights, and sees whether a logit under them exceeds the limit: it moves far three times."""
    made, _ = EXCHANGES[name]
    honest = trainer_of(made(), {"lab": 2}, log_dir=tmp_path, checkpoint_every=STEPS)
    honest.fit(1)
    for number in range(1, MOST + 1):
        # The coordinator opens the active party's sums first: whoever's weight is moved is the one that counts.
        with pytest.raises(CryptoError, match="would send a value of size"):
            pushed(name, 60.0, tmp_path)
        counts = [len(Refusals(party, journal_of(tmp_path, party))) for party in ("bank", "lab")]
        assert sorted(counts) == [0, number]
    with pytest.raises(SumRefused, match="takes no part in this run any more") as caught:
        pushed(name, 0.0, tmp_path)
    assert "numbers of its own at step" in str(caught.value)


def test_a_run_within_the_limits_counts_nothing(tmp_path: Path) -> None:
    trainer_of(EXCHANGES["taylor"][0](), {"lab": 2}, log_dir=tmp_path, checkpoint_every=STEPS).fit(1)
    pushed("taylor", 0.01, tmp_path)
    assert not [*tmp_path.glob("refused-sums-*")]


def test_residues_above_the_limit_are_counted() -> None:
    """With a sigmoid that is a line whoever sends logits moves residues, and sees whether one exceeds the limit."""
    made = partial(Residue, rows=BATCH, encryption=SHORT, approximation="taylor")
    trainer = trainer_of(made(), {"lab": 2})
    torch.nn.init.constant_(trainer.passives["lab"].bottom.weight, 1000.0)
    with pytest.raises(CryptoError, match="bank would send a value of size"):
        trainer.fit(1)
    assert len(trainer.active.refusals) == 1


def test_parts_that_are_too_large_for_masks_are_counted() -> None:
    trainer = trainer_of(EXCHANGES["taylor"][0](), {"lab": 2})
    lab = trainer.passives["lab"]
    lab.masks = SumMasks()
    torch.nn.init.constant_(lab.bottom.weight, 2.0**24)
    with pytest.raises(CryptoError, match="expected entries up to"):
        part_to_score(lab, lab.test_batch(torch.arange(4)), 0, "evaluation", kind="evaluation")
    assert len(lab.refusals) == 1


@pytest.mark.parametrize("name", ["residue", "taylor"])
def test_another_sum_than_before_the_run_went_back_is_counted(name: str) -> None:
    """Else the owner compares two sums of its choice, one guess at a cell for each time that the run is started."""
    made = {"residue": Residue, "taylor": Taylor}[name]
    by_party = {
        "bank": made(rows=BATCH, encryption=SHORT, engine=Pushing),
        "lab": made(rows=BATCH, encryption=SHORT),
    }
    approximation = "exact" if name == "residue" else "taylor"
    trainer = trainer_of(by_party, {"lab": 2}, approximation=approximation)  # type: ignore[arg-type]
    lab, guard, rows = trainer.passives["lab"], ReplayGuard(()), trainer.batches.epoch(0)[0]
    lab.remember = guard.admit
    before = {
        party.name: {k: v.clone() for k, v in party.module.state_dict().items()} for party in trainer.training.parties
    }

    def again(push: float) -> None:
        guard.go_back()
        trainer.training.step = 0
        for party in trainer.training.parties:
            party.module.load_state_dict(before[party.name])
        converse({party: side.open() for party, side in trainer._sides.items()})
        Pusher.push = push
        take_step(trainer, rows)

    again(0.0)
    again(0.0)
    assert len(lab.refusals) == 0
    for number in range(1, MOST + 1):
        with pytest.raises(ReplayError):
            again(0.1)
        assert len(lab.refusals) == number
    with pytest.raises(SumRefused, match="another one than before"):
        again(0.0)
