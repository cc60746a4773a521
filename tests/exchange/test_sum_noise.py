"""Noise on sums that a label party opens: its law, where it lands, what it hides, and that a repeated step repeats."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.defenses import LaplaceResidue, MemoisedResponse
from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.exchange.noise import SumNoiseSettings
from splitvfl.exchange.paillier import InsecureEncryption, PassiveSide
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.sum_noise import SumNoise, largest_noise
from splitvfl.messaging.conversation import converse
from splitvfl.run.trainer import Trainer
from tests.builders import take_step
from tests.exchange.logistic import BATCH, RATE, SHORT, trainer_of, weights_of

KEY = bytes(range(32))
WIDTHS = {"lab": 4, "shop": 2}
SIGMA = 0.75
BITS = SHORT.value_bits + SHORT.feature_bits


def noisy(sigma: float | None = SIGMA, **options: Any) -> Residue:
    settings = SumNoiseSettings(epsilon=1.0, delta=1e-5, sigma=sigma)
    given: dict[str, Any] = {"encryption": SHORT, "own_part": "sent", "sum_noise": settings} | options
    return Residue(rows=BATCH, **given)


def trainer_with(exchange: Residue, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"approximation": "exact", "audit": False} | options
    return trainer_of(exchange, WIDTHS, **settings)


def stepped(trainer: Trainer, steps: int = 1) -> None:
    converse({name: side.open() for name, side in trainer._sides.items()})
    for rows in trainer.batches.epoch(0)[:steps]:
        take_step(trainer, rows)


# --- its law


@pytest.mark.parametrize("bits", [58, 24, 12])
def test_noise_on_integers_is_gaussian_of_its_sigma(bits: int) -> None:
    """With a grid of the noise far below the last bit, near it, and far above it."""
    drawn = np.array(SumNoise(KEY, SIGMA).on_integers("lab", 0, 20_000, bits=bits), dtype=float) / 2.0**bits
    # A step of 2^-12 is 0.0003 of σ: no test of 20 000 numbers sees it.
    assert kstest(drawn / SIGMA, "norm").pvalue > 1e-3
    # Four standard errors.
    assert drawn.std() == pytest.approx(SIGMA, rel=4 / math.sqrt(2 * len(drawn)))


def test_the_last_bits_are_uniform_whatever_the_sum_is() -> None:
    """What lies below the grid of the noise tells nothing: of the sum 5 it is as of the sum 0."""
    grid = 2 ** (BITS - 21)  # of σ .75: .75 is 1.5 times 2^-1, and the grid 2^-20 of that power
    drawn = SumNoise(KEY, SIGMA).on_integers("lab", 0, 20_000, bits=BITS)
    for total in (0, 5, grid // 3):
        below = np.array([(total + number) % grid for number in drawn], dtype=float) / grid
        assert kstest(below, "uniform").pvalue > 1e-3


def test_each_party_and_step_has_draws_of_its_own_and_a_repeated_step_the_same() -> None:
    noise = SumNoise(KEY, SIGMA)
    first = noise.on_integers("lab", 3, 4_000, bits=BITS)
    assert first == SumNoise(KEY, SIGMA).on_integers("lab", 3, 4_000, bits=BITS)
    others = [
        noise.on_integers("shop", 3, 4_000, bits=BITS),
        noise.on_integers("lab", 4, 4_000, bits=BITS),
        SumNoise(bytes(32), SIGMA).on_integers("lab", 3, 4_000, bits=BITS),
        (noise.on_own(torch.zeros(4_000, dtype=torch.float64), 3) * 2.0**BITS).tolist(),
    ]
    for other in others:
        # Five standard errors of a correlation of nothing.
        assert abs(np.corrcoef(np.array(first, float), np.array(other, float))[0, 1]) < 5 / math.sqrt(4_000)
    assert KEY.hex() not in repr(noise)
    assert str(KEY) not in repr(noise)


def test_no_noise_exceeds_what_sums_have_room_for() -> None:
    assert 13 * SIGMA < largest_noise(SIGMA) < 13.001 * SIGMA


# --- where it lands


def test_addends_are_added_to_the_sums_under_their_masks() -> None:
    """Packed in three slots, with negative numbers, and next to the limit; a mask is any number."""
    layout = ProductLayout(
        key_bits=512, rows=4, outputs=7, value_limit=2.0, weight_limit=2.0, value_bits=8, weight_bits=8, plain_limit=3.0
    )
    sums = [17, -5, 0, layout.largest_sum - layout.plain_size, -1, 2, -3]
    added = [-40, 3, 0, layout.plain_size, -layout.plain_size, 1, -1]
    masks = [3 << 300, 12345]
    rest = iter(sums)
    opened = [
        (sum(next(rest) << (place * layout.slot_bits) for place in range(count)) + mask) % (1 << bits)
        for count, mask, bits in zip(layout.counts, masks, layout.opened_bits, strict=False)
    ]
    assert len(layout.counts) == len(opened)
    width = layout.opened_bytes
    sent = torch.tensor([list(number.to_bytes(width, "big")) for number in opened], dtype=torch.uint8)
    got = layout.add_to_opened(sent, added)
    found: list[int] = []
    for row, mask, count, bits in zip(got.tolist(), masks, layout.counts, layout.opened_bits, strict=False):
        signed = (int.from_bytes(bytes(row), "big") - mask) % (1 << bits)
        signed -= (signed >> (bits - 1)) << bits
        for _ in range(count):
            low = ((signed + (1 << (layout.slot_bits - 1))) % (1 << layout.slot_bits)) - (1 << (layout.slot_bits - 1))
            found.append(low)
            signed = (signed - low) >> layout.slot_bits
    assert found == [one + other for one, other in zip(sums, added, strict=True)]
    for wrong in (added[:-1], [*added[:-1], layout.plain_size + 1]):
        with pytest.raises(ArgumentError, match="expected 7 addends up to"):
            layout.add_to_opened(sent, wrong)


def test_one_step_moves_weights_by_the_noise_and_nothing_else() -> None:
    """Against the same step without: at the passive parties and at the label party, to float32."""
    with_noise, without = trainer_with(noisy()), trainer_with(noisy(sum_noise=None))
    key = with_noise._sides["bank"]._noise.key  # type: ignore[attr-defined]
    for trainer in (with_noise, without):
        stepped(trainer)
    noise = SumNoise(key, SIGMA)
    for name, weight in weights_of(with_noise).items():
        moved = (weight - weights_of(without)[name]).double() * BATCH / -RATE
        if name == "bank":
            drawn = noise.on_own(torch.zeros(len(moved), dtype=torch.float64), 0)
        else:
            drawn = torch.tensor(noise.on_integers(name, 0, len(moved), bits=BITS), dtype=torch.float64) / 2.0**BITS
        torch.testing.assert_close(moved, drawn, rtol=0, atol=1e-4)


def test_the_released_sums_have_the_noise_that_was_agreed() -> None:
    """Over an epoch of steps whose clean sums are known: the gradient of labels without a signal."""
    wide = {"lab": 40}
    settings = SumNoiseSettings(epsilon=1.0, delta=1e-5, sigma=50.0)
    clear, hidden = (
        trainer_of(
            Residue(rows=BATCH, encryption=SHORT, own_part="sent", sum_noise=one),
            wide,
            approximation="exact",
            audit=False,
        )
        for one in (None, settings)
    )
    start = weights_of(clear)["lab"]
    assert torch.equal(start, weights_of(hidden)["lab"])
    for trainer in (clear, hidden):
        stepped(trainer)
    drawn = (weights_of(hidden)["lab"] - weights_of(clear)["lab"]).double() * BATCH / RATE
    # Four standard errors of a standard deviation of 40 numbers.
    assert drawn.std().item() == pytest.approx(50.0, rel=4 / math.sqrt(2 * 40))


# --- what it hides


@pytest.mark.slow(reason="a thousand runs of five epochs")
def test_who_knows_all_but_one_label_is_right_as_often_as_the_guarantee_allows_and_no_more() -> None:
    """The whole run of the record's sums, two worlds, the best test: along the record's row, added up over epochs."""
    epochs, runs, columns = 5, 1_000, 3
    row = np.array([0.6, 0.0, -0.8])
    sigma = 1.9
    mu = math.sqrt(epochs) / sigma
    moved = [round(entry * 2**SHORT.feature_bits) << SHORT.value_bits for entry in row]
    right = 0
    for run in range(runs):
        label = run % 2
        noise = SumNoise(run.to_bytes(32, "big"), sigma)
        score = 0.0
        for epoch in range(epochs):
            sums = [
                m * (1 - label) + n
                for m, n in zip(moved, noise.on_integers("lab", epoch, columns, bits=BITS), strict=True)
            ]
            score += float(np.array(sums, float) @ row) / 2.0**BITS
        right += (score > epochs / 2) == (label == 0)
    # Three and a half standard errors of the best success Φ(μ/2) over so many runs, either way.
    best = norm.cdf(mu / 2)
    assert right / runs == pytest.approx(best, abs=3.5 * math.sqrt(best * (1 - best) / runs))


@pytest.mark.parametrize("own", [3, 0])
def test_given_the_releases_labels_move_nothing(own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of opposite labels whose noisy sums are made equal end with equal weights, the label party's too."""
    monkeypatch.setattr(SumNoise, "on_own", lambda self, sums, step: torch.sin(torch.arange(len(sums)).double() + step))
    monkeypatch.setattr(
        PassiveSide,
        "unmasked",
        lambda self, message, evaluator, masked: torch.cos(torch.arange(evaluator.layout.outputs).double()),
    )
    weights = []
    for label in (0.0, 1.0):
        trainer = trainer_with(noisy(), own=own)
        labels = trainer.active.data.train.labels
        assert labels is not None
        labels.fill_(label)
        stepped(trainer, 2)
        weights.append(weights_of(trainer))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_party_that_multiplies_with_other_numbers_reads_a_label_through_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One record times the largest entry of a column that is agreed, all others times nothing: it is in one sum."""
    trainer = trainer_with(noisy())
    opened: dict[str, torch.Tensor] = {}
    unmasked = PassiveSide.unmasked

    def read(self: Any, *given: Any) -> torch.Tensor:
        sums = opened[self._party.name] = unmasked(self, *given)
        return sums

    def largest(self: ProductLayout, weights: torch.Tensor) -> torch.Tensor:
        chosen = torch.zeros(weights.shape, dtype=torch.int64)
        chosen.fill_diagonal_(self.weight_size)
        return chosen

    monkeypatch.setattr(PassiveSide, "unmasked", read)
    monkeypatch.setattr(ProductLayout, "encode_weights", largest)
    stepped(trainer)
    labels = trainer.active.data.train.labels
    assert labels is not None
    truth = labels[trainer.batches.epoch(0)[0][:4]]
    # Residues are near −½ and ½ at first weights, so sums near 32 or −32, under noise of σ = 0.75.
    assert ((opened["lab"] < 0) == (truth == 1)).all()


def test_two_sums_of_one_step_with_the_same_noise_tell_labels_by_how_residues_were_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why a step that is taken again must get the activations that it had: what is multiplied is as agreed."""
    trainer = trainer_with(noisy(own_part="exact", sigma=64.0), own=0, intercept=False)
    lab, shop = trainer.passives["lab"], trainer.passives["shop"]
    opened: list[torch.Tensor] = []
    unmasked = PassiveSide.unmasked

    def read(self: Any, *given: Any) -> torch.Tensor:
        sums = unmasked(self, *given)
        if self._party is lab:
            opened.append(sums * 2.0**BITS)
        return sums

    monkeypatch.setattr(PassiveSide, "unmasked", read)
    monkeypatch.setattr(shop, "activate", lambda batch: torch.zeros(batch.count, 1))
    converse({name: side.open() for name, side in trainer._sides.items()})
    rows = trainer.batches.epoch(0)[0]
    entries = lab.train_batch(rows).transformed.numeric[:, 0].double()
    multiplied = (entries * 2**SHORT.feature_bits).round()
    first, other = torch.full((BATCH,), -0.3), -2.7

    def sum_of(logits: torch.Tensor) -> torch.Tensor:
        monkeypatch.setattr(lab, "activate", lambda batch: logits[:, None])
        trainer.training.step = 0  # as after a broken link
        take_step(trainer, rows)
        return opened[-1][0]

    def residue(logit: float, label: float) -> float:
        logits = torch.full((BATCH,), logit, requires_grad=True)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.full((BATCH,), label))
        (gradient,) = torch.autograd.grad(loss, logits)
        return round(gradient[0].item() * BATCH * 2**SHORT.value_bits)

    known = sum_of(first)
    moved = [residue(other, label) - residue(-0.3, label) for label in (0.0, 1.0)]
    told = []
    for record in range(BATCH):
        chosen = first.clone()
        chosen[record] = other
        by = (sum_of(chosen) - known) / multiplied[record]
        told.append(float(abs(by - moved[1]) < abs(by - moved[0])))
    labels = trainer.active.data.train.labels
    assert labels is not None
    assert told == labels[rows].tolist()


# --- a run of it


def test_a_resumed_run_repeats_the_noise_of_its_key(tmp_path: Path) -> None:
    def trainer(folder: str, seed: int | None) -> Trainer:
        return trainer_with(noisy(), noise_seed_for_experiments=seed, log_dir=tmp_path / folder)

    whole = trainer("whole", 3)
    whole.fit(2)
    trainer("parts", 3).fit(1)
    again = trainer("parts", None)  # with a key of its own, until it has that of the checkpoint
    assert again.resume() == 5
    again.fit(2)
    assert all(torch.equal(weight, weights_of(again)[name]) for name, weight in weights_of(whole).items())
    key = whole._sides["bank"]._noise.key  # type: ignore[attr-defined]
    owners = [path for path in (tmp_path / "whole").rglob("*") if path.is_file() and key in path.read_bytes()]
    assert owners
    assert all(path.stat().st_mode & 0o077 == 0 for path in owners)  # readable by the owner only


def test_without_a_seed_noise_is_new_in_every_run() -> None:
    keys = {trainer_with(noisy(), noise_seed_for_experiments=None)._sides["bank"]._noise.key for _ in range(2)}  # type: ignore[attr-defined]
    assert len(keys) == 2
    assert noisy().repeatable(5).noise_key() == noisy().repeatable(5).noise_key() != noisy().repeatable(6).noise_key()


def test_noise_is_an_agreed_term_and_without_it_nothing_changes() -> None:
    assert noisy().terms()["noise on sums"] == SIGMA
    bare = Residue(rows=BATCH, encryption=SHORT)
    assert "noise on sums" not in bare.terms()
    assert bare.sums_layout(4) == SHORT.layout(BATCH, 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"own_part": "exact"}, "write own_part: sent"),
        ({"own_part": "exact", "own": 0}, "write own_part: sent"),
        ({"sum_noise": SumNoiseSettings(epsilon=1.0, delta=1e-5)}, "say how many they are"),
        ({"defenses": (LaplaceResidue(epsilon=1.0),)}, "laplace-residue at bank changes labels or residues"),
        ({"defenses": (MemoisedResponse(epsilon=1.0),)}, "memoised-response at bank changes labels or residues"),
        ({"approximation": "taylor"}, "take approximation exact or piecewise"),
        ({"approximation": "minimax"}, "take approximation exact or piecewise"),
        ({"encryption": InsecureEncryption(key_bits=512, value_limit=0.5)}, "take a value_limit of 1 at least"),
        ({"encryption": InsecureEncryption(key_bits=512, most_columns=3)}, "has 3 columns, and with the intercept"),
    ],
)
def test_what_the_noise_was_not_calculated_for_is_refused(options: dict[str, Any], words: str) -> None:
    of_trainer = {name: options[name] for name in ("own", "defenses") if name in options}
    with pytest.raises(ConfigError, match=words):
        trainer_with(noisy(**{name: value for name, value in options.items() if name not in of_trainer}), **of_trainer)


def test_a_label_party_that_learns_nothing_needs_no_sum_of_its_own() -> None:
    trainer = trainer_with(noisy(own_part="exact"), own=0, intercept=False)
    stepped(trainer)
    assert not weights_of(trainer)["bank"].any()
