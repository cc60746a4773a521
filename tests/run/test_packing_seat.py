"""A party of an experiment that deviates by packing: what it reads is judged, at both strengths, and by NumPy here."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from splitvfl.app.assembly import Assembly
from splitvfl.app.records import load_data
from splitvfl.app.solving import Solving, SolvingBasis
from splitvfl.attacks import PackingAttack, PackingEngine
from splitvfl.config.sections import parse_config
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.leakage.packed_values import PackedReading
from splitvfl.learning.batches import Batches
from splitvfl.run.trainer import Trainer
from tests.exchange.logistic import BATCH, RECORDS, SHORT, trainer_of

COLUMNS = 4
AGREED = SHORT.model_copy(update={"most_columns": COLUMNS})
ENCRYPTED: dict[str, Any] = {"rows": BATCH, "encryption": AGREED}
MADE = {
    "residue": partial(Residue, **ENCRYPTED),
    "taylor": partial(Taylor, **ENCRYPTED, loss=False),
    "taylor with a loss": partial(
        Taylor, rows=BATCH, encryption=SHORT.model_copy(update={"most_columns": COLUMNS + 1})
    ),
    "coordinator": partial(Coordinator, **ENCRYPTED),
    "hybrid": partial(Hybrid, **ENCRYPTED, epsilon=1.0, share=0.4),
}


def trained(exchange: Exchange, malicious: str, *, epochs: int = 1, **settings: Any) -> tuple[Trainer, PackingEngine]:
    engine = PackingEngine()
    approximation = exchange.approximation
    made = trainer_of(
        exchange,
        settings.pop("widths", {"lab": COLUMNS}),
        approximation=approximation,
        **{"malicious": {malicious: engine}, "attacks": [PackingAttack()], **settings},
    )
    made.fit(epochs)
    return made, engine


def first_step(made: Trainer, exchange: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Residues, parts and labels of the first batch, by NumPy, of an equal trainer that was not trained."""
    fresh = trainer_of(MADE[exchange](), {"lab": COLUMNS}, approximation=made.exchange.approximation)
    rows = fresh.batches.epoch(0)[0].numpy()
    own, lab = fresh.active.data.train, fresh.passives["lab"].data.train
    top = fresh.active.top
    mine = own.columns.numeric.numpy()[rows] @ top.own.weight.detach().numpy()[0] + top.intercept.item()
    theirs = lab.columns.numeric.numpy()[rows] @ fresh.passives["lab"].bottom.weight.detach().numpy()[0]
    assert own.labels is not None
    y = own.labels.numpy()[rows]
    if exchange == "residue":
        return 1 / (1 + np.exp(-mine - theirs)) - y, theirs, y
    return (mine - 2 * (2 * y - 1)), theirs, y


@pytest.mark.parametrize(
    ("exchange", "most"),
    [
        *(("residue", COLUMNS), ("taylor", COLUMNS + 2), ("coordinator", 4096), ("hybrid", COLUMNS)),
        *(
            pytest.param(exchange, most, marks=pytest.mark.slow(reason="one more run"))
            for exchange, *several in (
                *(("residue", COLUMNS + 2, 4096), ("taylor", COLUMNS, 4096)),
                *(("coordinator", COLUMNS, COLUMNS + 2), ("hybrid", COLUMNS + 2, 4096)),
            )
            for most in several
        ),
    ],
)
def test_what_is_foreseen_of_a_step_is_what_is_read(exchange: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encryption = SHORT.model_copy(update={"most_columns": most})
    made, engine = trained(MADE[exchange](encryption=encryption), "lab")
    settings = {"residue": "name: residue", "taylor": "name: taylor, loss: false", "coordinator": "name: coordinator"}
    settings["hybrid"] = "name: hybrid, epsilon: 1.0, share: 0.4"
    text = f"""
data: breast-cancer
parties: {{bank: {{role: active, columns: rest}}, lab: {{role: passive, columns: 0.2}}}}
model: logistic-regression
exchange: {{{settings[exchange]}, encryption: {{key_bits: 2048}}}}
train: {{epochs: 1, batch_size: {BATCH}}}
"""
    config = parse_config(text, source="foreseen.yaml")
    assembly = Assembly(config, load_data(config).active)
    monkeypatch.setattr(assembly.exchange, "encryption", encryption)
    basis = SolvingBasis.of_file(assembly, records=RECORDS, task="binary", own_columns=3)
    solving = Solving(basis, Batches(RECORDS, BATCH, seed=0), task="binary")
    (found,) = (one for one in solving.of({"lab": COLUMNS}) if one.deviates)
    ours = reading(made, "agreed bits")
    assert found.equations == ours.per_step == max(map(len, engine.learned))
    # Of the hybrid exchange it is an expectation.
    assert found.records == pytest.approx(ours.records, abs=BATCH / 2 if exchange == "hybrid" else 0)
    if most == COLUMNS:
        assert found.left == found.equations
        assert found.claimed == COLUMNS


def reading(made: Trainer, strength: str) -> PackedReading:
    (found,) = (one for one in made.packing if one.strength == strength)
    return found


@pytest.mark.parametrize("exchange", ["residue", "taylor"])
def test_what_is_read_of_a_batch_is_its_residues(exchange: str) -> None:
    made, engine = trained(MADE[exchange](), "lab")
    residues, _, _ = first_step(made, exchange)
    read = engine.learned[0].numpy()
    assert 0 < len(read) < BATCH
    np.testing.assert_allclose(read, residues[: len(read)], atol=1e-5)
    ours, whole = reading(made, "agreed bits"), reading(made, "whole plaintexts")
    assert ours.per_step == len(read)
    assert ours.happened
    assert not whole.happened
    # 512 bits hold this many slots of a value, its sign and a bit, in one ciphertext of four sums.
    assert whole.slots * whole.ciphertexts >= whole.per_step > ours.per_step
    assert ours.per_step <= 2 * COLUMNS
    assert (ours.right, whole.right) == (1.0, 1.0)


def test_the_auc_is_that_of_guessing_what_was_not_read() -> None:
    """By all pairs: records that were read are ranked by their labels, all others alike."""
    made, engine = trained(MADE["residue"](), "lab")
    assert made.active.data.train.labels is not None
    labels = made.active.data.train.labels.numpy()
    scores = np.zeros(RECORDS)
    for rows, values in zip(made.batches.epoch(0), engine.learned, strict=True):
        scores[rows[: len(values)].numpy()] = -values.numpy()
    pairs = [
        1.0 if scores[p] > scores[n] else 0.5 if scores[p] == scores[n] else 0.0
        for p in np.flatnonzero(labels == 1)
        for n in np.flatnonzero(labels == 0)
    ]
    ours = reading(made, "agreed bits")
    assert ours.auc == pytest.approx(np.mean(pairs))
    assert 0.5 < ours.auc < 1.0  # type: ignore[operator]
    assert ours.records == int((scores != 0).sum())
    longer, _ = trained(MADE["residue"](), "lab", epochs=6)
    assert reading(longer, "agreed bits").records > ours.records, "other orders show others"


def test_the_attack_is_judged_in_the_seat_of_the_party_that_deviates() -> None:
    made, _ = trained(MADE["residue"](), "lab", epochs=2)
    found = made.summaries("lab")["packing"]
    assert found.accumulated_auc > 0.8  # type: ignore[operator, attr-defined]
    assert "packing" not in made.unavailable["lab"]
    honest = trainer_of(MADE["residue"](), {"lab": COLUMNS}, approximation="exact", attacks=[PackingAttack()])
    assert "malicious: {PARTY: packing}" in honest.unavailable["lab"]["packing"]
    assert honest.packing == []


def test_the_label_owner_reads_parts_of_logits() -> None:
    made, engine = trained(MADE["taylor"](), "bank")
    _, parts, _ = first_step(made, "taylor")
    np.testing.assert_allclose(engine.learned[0].numpy(), parts[: len(engine.learned[0])], atol=1e-5)
    ours, whole = reading(made, "agreed bits"), reading(made, "whole plaintexts")
    assert (ours.party, ours.owner, ours.reads, ours.auc) == ("bank", "lab", "parts", None)
    assert ours.right == whole.right == 1.0
    assert whole.records > ours.records


@pytest.mark.parametrize(
    ("exchange", "malicious"),
    [("taylor with a loss", "lab"), ("taylor with a loss", "bank"), ("coordinator", "lab")],
)
def test_other_exchanges_are_read_too(exchange: str, malicious: str) -> None:
    made, _ = trained(MADE[exchange](), malicious)
    ours = reading(made, "agreed bits")
    # Under a coordinator the coefficient is that of the whole logit, which may be larger than 2.
    assert ours.right > 0.9 if exchange == "coordinator" else ours.right == 1.0
    assert ours.reads == ("labels" if malicious == "lab" else "parts")


def test_of_two_partners_the_one_that_deviates_reads_labels() -> None:
    made, _ = trained(MADE["taylor"](), "lab", widths={"lab": COLUMNS, "shop": 2})
    ours = reading(made, "agreed bits")
    assert (ours.party, ours.owner, ours.reads, ours.right) == ("lab", "bank", "labels", 1.0)


def test_zeros_of_the_hybrid_exchange_tell_nothing() -> None:
    made, _ = trained(MADE["hybrid"](), "lab", epochs=3)
    ours = reading(made, "agreed bits")
    assert ours.right == 1.0
    assert 0 < ours.records < RECORDS


def test_each_auc_of_the_hybrid_exchange_names_its_records() -> None:
    made, _ = trained(MADE["hybrid"](), "lab")
    ours = reading(made, "agreed bits")
    attack: Any = made.summaries("lab")["packing"]
    assert ours.sent == attack.positives + attack.negatives
    assert ours.records < ours.sent < RECORDS  # type: ignore[operator]
    said = ours.sentences()[0]
    assert f"{ours.auc:.4f} over all {RECORDS} records, of which {ours.sent} were sent to it" in said
    every, _ = trained(MADE["residue"](), "lab")
    assert reading(every, "agreed bits").sent == RECORDS
    assert "were sent" not in reading(every, "agreed bits").sentences()[0]


def test_a_longer_key_reads_whole_batches_and_trains_as_an_honest_party() -> None:
    longer = SHORT.model_copy(update={"key_bits": 1024})
    made, _ = trained(Residue(rows=BATCH, encryption=longer), "lab", widths={"lab": 12})
    assert reading(made, "agreed bits").per_step == BATCH
    assert reading(made, "agreed bits").auc == 1.0
    honest = trainer_of(Residue(rows=BATCH, encryption=longer), {"lab": 12}, approximation="exact")
    honest.fit(1)
    assert torch.equal(made.passives["lab"].bottom.weight, honest.passives["lab"].bottom.weight)


@pytest.mark.parametrize(
    ("exchange", "malicious", "why"),
    [
        (Split, "lab", "exchange split encrypts nothing"),
        (Oracle, "lab", "exchange oracle encrypts nothing"),
        (MADE["residue"], "bank", "the label party multiplies nothing"),
        (MADE["coordinator"], "bank", "ask the coordinator for single parts"),
        (MADE["residue"], "shop", "expected a party of this experiment, bank, lab"),
    ],
)
def test_what_cannot_deviate_is_refused(exchange: Any, malicious: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"malicious.{malicious}: .*{why}"):
        trained(exchange(), malicious)


def test_a_run_that_was_resumed_has_all_that_was_read(tmp_path: Any) -> None:
    whole, _ = trained(MADE["residue"](), "lab", epochs=2)
    trained(MADE["residue"](), "lab", log_dir=tmp_path)
    again = trainer_of(
        MADE["residue"](),
        {"lab": COLUMNS},
        approximation="exact",
        malicious={"lab": PackingEngine()},
        attacks=[PackingAttack()],
        log_dir=tmp_path,
    )
    again.resume()
    again.fit(2)
    assert again.packing == whole.packing


def test_what_is_said_has_the_countermeasure_beside_it() -> None:
    made, _ = trained(MADE["residue"](), "lab")
    ours, whole = (" ".join(reading(made, one).sentences()) for one in ("agreed bits", "whole plaintexts"))
    assert "only the bits that the agreed sums take come back" in ours
    assert "exchange.encryption.most_columns" in ours
    assert whole.startswith("If whole plaintexts came back")
