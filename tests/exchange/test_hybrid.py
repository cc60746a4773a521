"""The hybrid exchange: gradient descent on records that the label party alone knows, and what crosses of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.app.deployment import Deployment
from splitvfl.app.records import own_data
from splitvfl.attacks import ResidueSolvingAttack
from splitvfl.config.sections import parse_config
from splitvfl.errors import ArgumentError, ConfigError, ProtocolError
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.hooks import Secrets, View
from splitvfl.messaging.conversation import admit, converse
from splitvfl.messaging.messages import Message
from splitvfl.run.trainer import Trainer
from tests.builders import take_step
from tests.exchange.logistic import RATE, SHORT, descend, exact_coefficient, taylor_coefficient, trainer_of, weights_of

ONE, TWO = {"lab": 4}, {"lab": 4, "shop": 6}
BATCH = 32

# Weights are float32 of size one: ten steps may each round by 2^-24.
ROUNDING = 2e-6


def hybrid(**options: Any) -> Hybrid:
    settings: dict[str, Any] = {"rows": BATCH, "encryption": SHORT, "epsilon": 1.0, "share": 0.3}
    return Hybrid(**(settings | {"selection_seed_for_experiments": 3} | options))


def used_batches(trainer: Trainer, exchange: Hybrid, epochs: int) -> list[Tensor]:
    """The records that are used, step by step; none of a batch that is left out."""
    widths = [party.data.width for party in trainer.passives.values()]
    batches = [rows for epoch in range(epochs) for rows in trainer.batches.epoch(epoch)]
    draws = (
        (rows, exchange.secret_batch.draw(exchange.selection_key(), step, len(rows), widths))
        for step, rows in enumerate(batches)
        if exchange.secret_batch.is_likely(len(rows), max(widths))
    )
    return [rows[draw.used] for rows, draw in draws]


@pytest.mark.parametrize("widths", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize(
    ("approximation", "coefficient", "scale"),
    [("taylor", taylor_coefficient, 4.0), ("exact", exact_coefficient, 1.0)],
)
def test_it_trains_as_gradient_descent_on_the_records_that_are_used(
    widths: dict[str, int], approximation: Any, coefficient: Callable[[float, float], float], scale: float
) -> None:
    exchange = hybrid(approximation=approximation)
    trainer = trainer_of(exchange, widths, approximation=approximation, batch=BATCH)
    batches = used_batches(trainer, exchange, 2)
    assert len({len(rows) for rows in batches}) > 1  # k is not known beforehand
    expected = descend(trainer, batches, coefficient, scale)
    trainer.fit(2)
    for party, weight in weights_of(trainer).items():
        # Fixed point's error, taken in each step with the learning rate of one half.
        limit = ROUNDING + len(batches) * exchange.error
        assert np.allclose(weight.numpy(), expected[party], rtol=0, atol=limit), party


@pytest.mark.parametrize("widths", [ONE, TWO], ids=["one", "two"])
def test_one_step_errs_by_no_more_than_is_stated(widths: dict[str, int]) -> None:
    coarse = InsecureEncryption(key_bits=512, value_bits=8, feature_bits=8)
    exchange = hybrid(encryption=coarse, rows=64)
    trainer = trainer_of(exchange, widths, approximation="exact", batch=64)
    expected = descend(trainer, used_batches(trainer, exchange, 1)[:1], exact_coefficient, 1.0)
    converse({name: side.open() for name, side in trainer._sides.items()})
    take_step(trainer, trainer.batches.epoch(0)[0])
    for party in widths:
        apart = np.abs(weights_of(trainer)[party].numpy() - expected[party]).max()
        assert apart <= RATE * exchange.error + ROUNDING
        assert apart > 10 * ROUNDING  # it is fixed point that is measured here


@pytest.mark.parametrize("widths", [ONE, TWO], ids=["one", "two"])
def test_no_size_of_a_message_follows_from_how_many_records_are_used(widths: dict[str, int]) -> None:
    messages: list[Message] = []
    exchange = hybrid()
    trainer = trainer_of(exchange, widths, approximation="exact", batch=BATCH, record=messages.append)
    trainer.fit(1)

    asked = {message.step: message.payload for message in messages if message.kind == "selection"}
    assert [(bits.dtype, len(bits)) for bits in asked.values()] == [(torch.uint8, n) for n in (BATCH, BATCH, 6)]
    assert not asked[2].any()  # the rest of the epoch is too little to hide anything in
    for message in messages:
        sent = int(asked[message.step].sum())
        assert message.kind in ("selection", "activation", "residues", "sums", "opened")
        if message.kind in ("activation", "residues"):
            assert len(message.payload) == sent
    # All ciphertexts of the zeros are new, as those of residues are: none is alike.
    residues = next(message.payload for message in messages if message.kind == "residues")
    assert len(residues.unique(dim=0)) == len(residues)


def test_activations_are_of_the_records_that_are_asked_for_in_their_order() -> None:
    messages: list[Message] = []
    trainer = trainer_of(hybrid(), ONE, approximation="exact", batch=BATCH, record=messages.append)
    party, rows = trainer.passives["lab"], trainer.batches.epoch(0)[0]
    logits = party.activate(party.train_batch(rows)).detach()
    trainer.fit(1)

    bits, sent = (next(m.payload for m in messages if m.kind == kind) for kind in ("selection", "activation"))
    # Of float32 products of a few numbers of size one, in another order.
    assert torch.allclose(sent, logits[bits.bool()], rtol=0, atol=1e-6)


def test_two_runs_use_other_records_though_the_order_has_one_seed() -> None:
    """It is no secret to anybody in which order records come."""
    asked: list[bytes] = []
    for _ in range(2):
        messages: list[Message] = []
        exchange = hybrid(selection_seed_for_experiments=None)
        unseeded: dict[str, Any] = {"noise_seed_for_experiments": None, "record": messages.append}
        trainer_of(exchange, ONE, approximation="exact", batch=BATCH, **unseeded).fit(1)
        asked.append(next(bytes(message.payload.tolist()) for message in messages if message.kind == "selection"))
    assert asked[0] != asked[1]


def test_the_seed_of_an_experiments_noise_fixes_the_draws_too_and_leaves_the_exchange_as_it_was() -> None:
    exchange = hybrid(selection_seed_for_experiments=None)
    asked: list[list[bytes]] = []
    for seed in (1, 1, 2):
        messages: list[Message] = []
        options: dict[str, Any] = {"noise_seed_for_experiments": seed, "record": messages.append}
        trainer_of(exchange, ONE, approximation="exact", batch=BATCH, **options).fit(1)
        asked.append([bytes(message.payload.tolist()) for message in messages if message.kind == "selection"])

    assert asked[0] == asked[1] != asked[2]
    # Whoever takes the same object without a seed draws from entropy again.
    assert exchange.selection_key() != exchange.selection_key()
    # A seed for the draws alone is the one that counts.
    assert hybrid().repeatable(5).selection_key() == hybrid().selection_key()
    assert any("Its draws follow from a seed" in line for line in exchange.repeatable(5).notes(ONE, records=70))


def test_parties_of_a_network_draw_from_entropy_whatever_seed_their_noise_has(tmp_path: Path) -> None:
    text = """
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000"}
  lab: {role: passive, columns: rest}
model: logistic-regression
exchange: {name: hybrid, epsilon: 1.0, share: 0.3, encryption: {key_bits: 2048}}
train: {epochs: 1, batch_size: 200, noise_seed_for_experiments: 5, private_seed_for_experiments: 6}
network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}
"""
    config = parse_config(text, source=tmp_path / "all.yaml")
    keys = set()
    for _ in range(2):
        exchange = Deployment(config, "clinic", own=own_data(config, "clinic")).assembly.exchange
        assert isinstance(exchange, Hybrid)
        keys.add(exchange.selection_key())
    assert len(keys) == 2


def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    def trainer(folder: str, seed: int | None) -> Trainer:
        exchange = hybrid(selection_seed_for_experiments=seed)
        options: dict[str, Any] = {"noise_seed_for_experiments": None, "log_dir": tmp_path / folder}
        return trainer_of(exchange, ONE, approximation="exact", batch=BATCH, **options)

    whole = trainer("whole", 3)
    whole.fit(3)
    trainer("parts", 3).fit(1)
    again = trainer("parts", None)  # with a key of its own, until it has that of the checkpoint
    assert again.resume() == 3
    again.fit(3)
    assert all(torch.equal(weight, weights_of(again)[party]) for party, weight in weights_of(whole).items())


def test_defenses_of_gradients_act_on_the_records_that_are_used_and_on_no_zero() -> None:
    seen: list[Tensor] = []

    class Looking:
        def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
            assert secrets.ids is not None
            seen.append(secrets.ids)
            return 0 * gradient

    exchange = hybrid()
    trainer = trainer_of(exchange, ONE, approximation="exact", batch=BATCH, defenses=(Looking(),))
    before = weights_of(trainer)["lab"]
    trainer.fit(1)
    expected = used_batches(trainer, exchange, 1)
    assert [ids.tolist() for ids in seen] == [rows.tolist() for rows in expected]
    assert torch.equal(weights_of(trainer)["lab"], before)


def test_defenses_of_labels_answer_for_the_records_that_are_used() -> None:
    seen: list[Tensor] = []

    class Turning:
        crossing = "labels"

        def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
            assert secrets.ids is not None
            seen.append(secrets.ids)
            return 1 - labels

    exchange = hybrid()
    trainer = trainer_of(exchange, ONE, approximation="exact", batch=BATCH, defenses=(Turning(),))
    batches = used_batches(trainer, exchange, 1)
    expected = descend(trainer, batches, lambda z, y: exact_coefficient(z, -y), 1.0)
    trainer.fit(1)
    assert [ids.tolist() for ids in seen] == [rows.tolist() for rows in batches]
    for party, weight in weights_of(trainer).items():
        assert np.allclose(weight.numpy(), expected[party], rtol=0, atol=ROUNDING + 2 * exchange.error)


def test_attacks_see_the_columns_and_the_sum_of_what_was_sent() -> None:
    attacks = [ResidueSolvingAttack()]
    trainer = trainer_of(hybrid(), {"lab": 12}, approximation="exact", batch=BATCH, attacks=attacks)
    trainer.fit(2)
    # Of the two batches of an epoch that are not left out.
    assert trainer.leaks["lab"]["residue-solving"].summary.steps == 4


def test_attacks_are_judged_on_the_records_that_were_used_and_on_the_zeros_apart() -> None:
    seen: list[tuple[list[int], Tensor]] = []

    class Looking(ResidueSolvingAttack):
        def __call__(self, view: View, /) -> Tensor:
            seen.append((view.ids.tolist(), super().__call__(view)))
            return seen[-1][1]

    exchange = hybrid()
    trainer = trainer_of(exchange, {"lab": 12}, approximation="exact", batch=BATCH, attacks=[Looking()])
    used = used_batches(trainer, exchange, 2)
    trainer.fit(2)

    labels = trainer.active.data.train.labels
    hits: dict[int, list[bool]] = {0: [], 1: []}
    zeros = 0
    for (ids, scores), rows in zip(seen, used, strict=True):
        zeros += len(ids) - len(rows)
        for record, score in zip(ids, scores.tolist(), strict=True):
            if record in rows.tolist():
                hits[int(labels[record])].append((score > 0) == (labels[record] == 1))
    summary = trainer.leaks["lab"]["residue-solving"].summary
    assert zeros > 20
    assert summary.balanced == pytest.approx(np.mean([np.mean(each) for each in hits.values()]), rel=1e-12)
    assert summary.base_rate == max(map(len, hits.values())) / sum(map(len, hits.values()))
    assert summary.zeros_found == 0.0  # least squares finds none
    tags = trainer.watch.scalars(epoch_ends=True)
    assert tags["balanced_accuracy_accumulated/lab/residue-solving"] == summary.accumulated_balanced
    assert summary.told.startswith("balanced accuracy on the records that were used 0.")


# --- what is refused


@pytest.mark.parametrize(
    ("options", "widths", "told"),
    [
        ({"rows": 5}, ONE, r"train.batch_size is 5, and more than 5 are needed"),
        (
            {"epsilon": 5.0, "share": 0.25},
            {"lab": 1, "shop": 9},
            r"than shop has columns \(9\).* p = 0.993, .* or share",
        ),
        ({"epsilon": 5.0, "share": 0.05}, {"lab": 30}, r"Take larger batches with a smaller epsilon, out of 70"),
    ],
)
def test_settings_that_hide_nothing_are_refused_before_anything_is_sent(
    options: dict[str, Any], widths: dict[str, int], told: str
) -> None:
    messages: list[Message] = []
    with pytest.raises(ConfigError, match=told):
        trainer_of(hybrid(**options), widths, batch=options.get("rows", BATCH), record=messages.append)
    assert not messages


def test_who_has_more_columns_than_can_be_hidden_from_is_refused_by_the_label_party_too() -> None:
    """Over a network it is told how many there are, and no more."""
    trainer = trainer_of(hybrid(), ONE, approximation="exact", batch=BATCH)
    half = trainer._sides["bank"].open()
    next(half)
    with pytest.raises(ConfigError, match=r"than lab has columns \(30\)"):
        half.send({"lab": Message("lab", "bank", "columns", 0, torch.tensor([30]))})


def test_parties_agree_on_what_is_drawn_and_not_on_a_seed() -> None:
    ours, theirs = hybrid().terms(), hybrid(epsilon=2.0, share=0.4, selection_seed_for_experiments=None).terms()
    assert {key for key in ours if ours[key] != theirs[key]} == {"epsilon of the selection", "share"}


def test_a_share_of_no_record_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"share 0.01 of train.batch_size 32 is no record at all.*\(k = 0\)"):
        hybrid(share=0.01)


def test_only_the_last_batch_of_an_epoch_is_left_out() -> None:
    with pytest.raises(ArgumentError, match=r"batches of 6 records hide nothing, .* expected batches of 32"):
        trainer_of(hybrid(), TWO, approximation="exact", batch=6).fit(1)


@pytest.mark.parametrize(
    ("bits", "told"),
    [
        (lambda bits: 2 * bits, "expected bytes 0 and 1, got 2"),
        (torch.ones_like, "expected 5 to 31 ones for lab with its 4 columns, got 32"),
        (torch.zeros_like, "expected 5 to 31 ones for lab with its 4 columns, got 0"),
        (lambda bits: (torch.arange(len(bits)) < 4).to(torch.uint8), "expected 5 to 31 .* got 4"),
    ],
)
def test_a_passive_party_sends_nothing_for_a_selection_that_is_none(
    bits: Callable[[Tensor], Tensor], told: str
) -> None:
    trainer = trainer_of(hybrid(), ONE, approximation="exact", batch=BATCH)
    converse({name: side.open() for name, side in trainer._sides.items()})
    rows = trainer.batches.epoch(0)[0]
    half = trainer._sides["lab"].step(trainer.passives["lab"].train_batch(rows), 0)
    (awaited,) = next(half).wait
    drawn = trainer.exchange.secret_batch.draw(bytes(32), 0, BATCH, [4]).sent.to(torch.uint8)  # type: ignore[attr-defined]
    message = admit(Message("bank", "lab", "selection", 0, bits(drawn)), awaited)
    with pytest.raises(ProtocolError, match=f"selection of step 0 from bank: {told}"):
        half.send({"bank": message})


@pytest.mark.parametrize("value", [math.nan, 1e20])
def test_logits_that_end_the_run_end_it_whether_their_record_is_used_or_not(value: float) -> None:
    """Else a passive party would learn of any record whether it is used."""
    exchange = hybrid()
    for used in (True, False):
        trainer = trainer_of(exchange, ONE, approximation="exact", batch=BATCH)
        converse({name: side.open() for name, side in trainer._sides.items()})
        rows = trainer.batches.epoch(0)[0]
        draw = exchange.secret_batch.draw(exchange.selection_key(), 0, BATCH, [4])
        place = int((draw.used[draw.sent] == used).nonzero()[0])
        half = trainer._sides["bank"].step(trainer.active.train_batch(rows), 0)
        next(half)
        logits = torch.zeros(int(draw.sent.sum()), 1)
        logits[place] = value
        with pytest.raises(ProtocolError, match=r"NaN or infinite|which no loss bears"):
            half.send({"lab": Message("lab", "bank", "activation", 0, logits)})


# --- what is said


def test_what_is_not_hidden_is_said_before_the_first_step() -> None:
    said: list[str] = []
    trainer = trainer_of(hybrid(), TWO, approximation="exact", batch=BATCH)
    trainer.training.notify = said.append
    trainer.fit(1, progress=lambda status: said.append(f"step {status.step}"))
    before = " ".join(said[: said.index("step 1")])

    assert "has nothing to do with labels" in before
    assert "(attack sparse-residues)" in before
    assert "(secret-batch-likelihood)" in before
    assert "take a label defense besides, whose epsilon is of labels" in before
    # Ten ones in m, of which p = .731 are kept; Φ(√(4 / 3.31)) and Φ(√(6 / 1.31)).
    assert "7.3 used" in before
    assert "If lab knew which records are used, least squares would read a sign from its 4 columns with a " in before
    assert "probability of 0.86 in one step" in before
    assert "from its 6 columns with a probability of 0.98" in before
    # 16.6 · 4 and 64.3 · 4 used records; the first takes batches of 66.3 / (.3 · .731).
    assert "below 0.6 from 66 used records on (no batch of the 70 records), below 0.55 from 257 used" in before
    assert trainer.training.exchange_notes == said[: said.index("step 1")]


def notes_with(start: str, notes: Sequence[str]) -> list[str]:
    return [note for note in notes if note.startswith(start)]


def test_larger_batches_within_the_data_are_named() -> None:
    *_, ceiling, _, _ = hybrid(rows=200).notes({"lab": 4, "shop": 60}, records=500)
    assert "solve for all residues from its 60 columns, as many equations as there are" in ceiling
    (lab,) = notes_with("If lab knew", hybrid().notes({"lab": 4}, records=500))
    assert "below 0.6 from 66 used records on (train.batch_size 303 with this share and epsilon)" in lab
    (lab,) = notes_with("If lab knew", hybrid().notes({"lab": 4}, records=200))
    assert "(train.batch_size 200, all records, with share times p above 0.33)" in lab


def test_it_is_said_after_how_many_epochs_labels_are_read() -> None:
    drawn = hybrid(rows=200).secret_batch
    (said,) = notes_with("If it knows", hybrid(rows=200).notes({"lab": 4}, records=500))
    sixty, ninety = (int(number) for number in re.findall(r"after about (\d+) epochs", said))
    used, sent = drawn.expected_used(200), drawn.expected_sent(200)

    def success(epochs: float) -> float:
        return NormalDist().cdf(math.sqrt(epochs * 4 / 200 * used / sent))

    assert success(sixty - 1) < 0.6 <= success(sixty)
    assert success(ninety - 1) < 0.9 <= success(ninety)
    (said,) = notes_with("If it knows", hybrid(rows=32).notes({"lab": 20}, records=500))
    assert "reads 0.6 of labels after about 1 epoch and 0.9" in said
