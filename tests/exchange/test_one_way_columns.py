"""What the one message of a one-way run tells of columns, and that each reader sees it once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from splitvfl import Trainer
from splitvfl.attacks import InverseNetworkAttack, PseudoClientAttack, RidgeAttack, StackedRidgeAttack
from splitvfl.errors import LinkError
from splitvfl.exchange.one_way import OneWay
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.party import kept
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.builders import party_data, seeded

RECORDS = 400


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "PIECE_ROWS", 100)


def one_way(*names: str, width: int = 3, **settings: Any) -> Trainer:
    """A bottom of one layer and a ReLU that nobody trains, from five columns to so many outputs."""
    passives = {
        name: PassiveParty(
            party_data(name, width=5, train=RECORDS),
            seeded(f"bottom of {name}", lambda: nn.Sequential(nn.Linear(5, width), nn.Tanh())),
        )
        for name in names or ("telecom",)
    }
    top = seeded("top", lambda: nn.Linear(width * len(passives) + 2, 1))
    active = ActiveParty(party_data("bank", width=2, task="binary", train=RECORDS), top)
    options = {"attacks": [RidgeAttack(known_share=0.3)], "batch_size": 50, "audit": False, "exchange": OneWay()}
    return Trainer(active, passives, **{**options, **settings})


def reading(trainer: Trainer, party: str = "telecom") -> ColumnReading:
    return trainer.column_readings(party)[0]


def columns(party: PassiveParty) -> np.ndarray:
    return party.data.train.columns.numeric.double().numpy()


def activations(party: PassiveParty) -> np.ndarray:
    with torch.no_grad():
        sent: Tensor = party.bottom(party.data.train.columns.numeric)
    return sent.double().numpy()


def by_least_squares(inputs: np.ndarray, truth: np.ndarray, known: np.ndarray) -> float:
    """The share of variance that ordinary least squares on the known records recovers of the others."""
    rows = np.hstack([inputs, np.ones((len(inputs), 1))])
    weight = np.linalg.lstsq(rows[known], truth[known], rcond=None)[0]
    rest = np.setdiff1d(np.arange(len(truth)), known)
    errors = (rows[rest] @ weight - truth[rest]) ** 2
    return float(np.maximum(0, 1 - errors.mean(0) / truth[rest].var(0)).mean())


def test_the_one_message_tells_what_least_squares_reads_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "PIECE_ROWS", RECORDS)
    made = one_way()
    made.fit(2)
    found, party = reading(made), made.passives["telecom"]
    known = made.watch.readers["telecom"]["ridge"].known.numpy()
    assert found.share == pytest.approx(by_least_squares(activations(party), columns(party), known), abs=0.01)
    assert 0.3 < found.share < 0.9, "three numbers of five columns"
    assert found.records == RECORDS - len(known)
    assert found.sent_once
    assert (found.accumulated, found.worst, found.worst_epoch) == (None, None, None)
    assert {one.accumulated for one in found.columns} == {one.worst for one in found.columns} == {None}
    assert found.evaluation is not None
    assert found.evaluation.share == pytest.approx(found.share, abs=0.2)


def test_all_readers_of_activations_read_it() -> None:
    attacks = [kind(known_share=0.3) for kind in (InverseNetworkAttack, StackedRidgeAttack, PseudoClientAttack)]
    made = one_way(attacks=attacks)
    made.fit(1)
    found = {one.attack: one.share for one in made.column_readings("telecom")}
    assert found.keys() == {"inverse-network", "stacked-ridge", "pseudo-client"}
    assert min(found["inverse-network"], found["stacked-ridge"]) > 0.3


def test_records_that_early_stopping_holds_out_are_sent_and_read() -> None:
    made = one_way(early_stopping=EarlyStopping(patience=1, validation_every=4))
    made.fit(1)
    assert reading(made).records == RECORDS - round(0.3 * RECORDS)


def test_of_several_partners_each_is_read_by_itself() -> None:
    made = one_way("shop", "telecom")
    made.fit(1)
    alone = one_way("shop")
    alone.fit(1)
    assert reading(made, "shop").share == reading(alone, "shop").share != reading(made, "telecom").share


def test_no_top_is_shown_that_has_learned_nothing() -> None:
    made = one_way(attacks=[PseudoClientAttack(known_share=0.3, top_weight=1.0)])
    assert "before the label party's top model" in made.unavailable["telecom"]["pseudo-client"]


def test_who_goes_on_reads_what_the_undisturbed_run_read(tmp_path: Path) -> None:
    straight = one_way(log_dir=tmp_path / "run")
    straight.fit(1)
    shutil.copytree(tmp_path / "run", tmp_path / "lost")
    straight.fit(2)
    shutil.rmtree(tmp_path / "lost" / "kept")  # all is sent again, and nobody reads it twice
    again = one_way(log_dir=tmp_path / "lost")
    again.resume()
    again.fit(2)
    assert reading(again) == reading(straight)


def test_a_crossing_that_broke_off_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = one_way()
    whole.fit(1)
    broken = one_way(log_dir=tmp_path)
    add = kept.Kept.add

    def breaking(self: kept.Kept, payloads: Any) -> None:
        if self.done == 2:
            raise LinkError("gone")
        add(self, payloads)

    monkeypatch.setattr(kept.Kept, "add", breaking)
    with pytest.raises(LinkError):
        broken.fit(1)
    monkeypatch.setattr(kept.Kept, "add", add)
    broken.fit(1)
    assert reading(broken) == reading(whole)
