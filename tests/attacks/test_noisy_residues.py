"""The attacks on noisy residues as hooks: the label party's part is not known, and epochs add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.attacks import (
    AdditiveLLRAttack,
    MultiplicativeLLRAttack,
    additive_noise_llr,
    multiplicative_noise_llr,
)
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View, call_attack
from splitvfl.leakage.judging import Leak
from splitvfl.privacy import laplace_label_success, laplace_scale

RECORDS = 10_000


class World:
    """Records whose labels are 1 as often as their logits say: an own part, which is known, and one shift of all."""

    def __init__(self, shift: float, *, records: int = RECORDS, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.own = self.rng.normal(size=records)
        self.shift = shift
        self.predictions = 1 / (1 + np.exp(-self.own - shift))
        self.labels = (self.rng.uniform(size=records) < self.predictions).astype(float)

    def view(self, noisy: np.ndarray, rows: np.ndarray, step: int = 0) -> View:
        sent = torch.from_numpy(-noisy / len(rows)).unsqueeze(1)
        own = torch.from_numpy(self.own[rows]).unsqueeze(1)
        return View(party="lab", step=step, ids=torch.from_numpy(3 * rows - 50), gradient=sent, activation=own)

    def additive(self, rows: np.ndarray, epsilon: float) -> np.ndarray:
        return (self.labels - self.predictions)[rows] + self.rng.laplace(scale=laplace_scale(epsilon), size=len(rows))

    def right(self, scores: Tensor) -> float:
        return float(((scores.numpy() > 0) == (self.labels == 1)).mean())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("shift", [-1.5, 0.8])
def test_one_release_is_read_as_the_closed_form_says_though_the_shift_is_fitted(epsilon: float, shift: float) -> None:
    world, rows = World(shift), np.arange(RECORDS)

    found = world.right(
        call_attack(AdditiveLLRAttack(epsilon=epsilon), world.view(world.additive(rows, epsilon), rows))
    )

    expected = laplace_label_success(epsilon)
    assert abs(found - expected) < 3 * math.sqrt(expected * (1 - expected) / RECORDS)


def test_epochs_add_up_in_batches_whose_shift_is_not_known() -> None:
    records = 4000
    world, attack, found = World(-1.5, records=records), AdditiveLLRAttack(epsilon=1.0), []
    leak = Leak(attack)
    for epoch in range(30):
        for number, rows in enumerate(np.array_split(world.rng.permutation(records), 8)):
            view = world.view(world.additive(rows, 1.0), rows, 8 * epoch + number)
            leak.see(view, torch.from_numpy(world.labels[rows]))
        if epoch in (0, 9, 29):
            found.append(leak.summary.records_right / records)

    # The specification's .6, .77 and .90; three standard errors are .023, .020 and .014.
    assert found == pytest.approx([0.61, 0.77, 0.90], abs=0.025)


def test_a_shift_is_found_where_noise_is_small() -> None:
    world, attack, rows = World(2.0), AdditiveLLRAttack(epsilon=20.0), np.arange(RECORDS)

    call_attack(attack, world.view(world.additive(rows, 20.0), rows))

    assert attack.shift == pytest.approx(2.0, abs=0.1)  # a step of the shifts that are tried is ⅛


def test_a_shift_that_nothing_is_told_of_is_zero() -> None:
    world, attack = World(2.0, records=4), AdditiveLLRAttack(epsilon=0.01)
    rows = np.arange(4)

    assert attack.shift == pytest.approx(0.0, abs=1e-12)
    call_attack(attack, world.view(world.additive(rows, 0.01), rows))

    assert attack.shift == pytest.approx(0.0, abs=0.01)


def test_of_shifts_that_explain_messages_alike_smaller_ones_count_more() -> None:
    # Logits of 3 and no residue but noise: all shifts from 0 on explain that, and the middle of those tried is 4.
    world, attack, rows = World(0.0, records=50), AdditiveLLRAttack(epsilon=10.0), np.arange(50)
    world.own = np.full(50, 3.0)

    call_attack(attack, world.view(world.rng.laplace(scale=laplace_scale(10.0), size=50), rows))

    assert 0.5 < attack.shift < 2.5


def test_a_given_shift_is_taken_as_it_is() -> None:
    world, rows = World(0.5, records=50), np.arange(50)
    noisy = [world.additive(rows, 1.0) for _ in range(3)]
    attack = AdditiveLLRAttack(epsilon=1.0, shift=0.5)

    found = [call_attack(attack, world.view(one, rows, step)) for step, one in enumerate(noisy)][-1]

    expected = additive_noise_llr(
        torch.from_numpy(np.stack(noisy)), torch.from_numpy(np.stack([world.predictions] * 3)), 1.0
    )
    assert torch.allclose(found, expected, atol=1e-12)


def test_multiplied_residues_are_read_as_by_the_function_where_the_shift_is_known() -> None:
    world, rows = World(0.5, records=50), np.arange(50)
    settings = {"epsilon": 6.0, "b1": 0.2, "b2": 1.0}
    noisy = world.rng.uniform(-1, 1, 50)

    found = call_attack(MultiplicativeLLRAttack(**settings, shift=0.5), world.view(noisy, rows))

    expected = multiplicative_noise_llr(
        torch.from_numpy(noisy)[None], torch.from_numpy(world.predictions)[None], **settings, mode="centred_at_one"
    )
    assert torch.allclose(found, expected, atol=1e-9)  # −n times a row over −n: rounded twice


def test_multiplied_residues_tell_the_shift_and_labels() -> None:
    world, rows = World(1.0), np.arange(RECORDS)
    residues = world.labels - world.predictions
    kept = np.sign(residues) * np.maximum(np.abs(residues), 0.2)
    sent = np.clip(kept * (1 + world.rng.laplace(scale=2 / (0.2 * 40.0), size=RECORDS)), -1.0, 1.0)
    attack = MultiplicativeLLRAttack(epsilon=40.0, b1=0.2, b2=1.0)

    scores = call_attack(attack, world.view(sent, rows))

    assert attack.shift == pytest.approx(1.0, abs=0.15)
    # With noise of a quarter of its size a residue keeps its sign with probability 1 − e^-4 / 2 = .991.
    assert world.right(scores) > 0.985


def test_rows_of_zeros_are_no_releases() -> None:
    world, rows = World(0.0, records=6), np.arange(6)
    attack = AdditiveLLRAttack(epsilon=10.0)

    scores = call_attack(attack, world.view(np.array([1.0, 0.0, -1.0, 0.0, 1.0, -1.0]), rows))

    assert scores[[1, 3]].tolist() == [0.0, 0.0]
    assert torch.sign(scores[[0, 2, 4, 5]]).tolist() == [1.0, -1.0, 1.0, -1.0]


def test_wide_cuts_and_wrong_settings_are_refused() -> None:
    view = View(party="lab", step=0, ids=torch.arange(3), gradient=torch.ones(3, 2), activation=torch.ones(3, 2))
    for attack in (AdditiveLLRAttack(epsilon=1.0), MultiplicativeLLRAttack(epsilon=1.0, b1=0.5, b2=1.0)):
        with pytest.raises(HookError, match=r"cut of width 1, got shapes \(3, 2\) and \(3, 2\)"):
            call_attack(attack, view)
    with pytest.raises(ArgumentError, match="epsilon"):
        AdditiveLLRAttack(epsilon=0.0)
    with pytest.raises(ArgumentError, match="finite shift"):
        AdditiveLLRAttack(epsilon=1.0, shift=math.nan)
    with pytest.raises(ArgumentError, match="b1"):
        MultiplicativeLLRAttack(epsilon=1.0, b1=2.0, b2=1.0)
