from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitvfl.attacks import ReadoutAttack
from splitvfl.attacks.leading_direction import leading_direction
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, call_attack
from splitvfl.metrics import leak_auc

WIDTH = 6


def batches(number: int, *, noise: float = 0.0, rows: int = 400) -> list[tuple[View, Tensor, Tensor]]:
    """Views below a linear top: gradients r·w of clean labels, plus isotropic noise; the labels and h·w beside them."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(WIDTH, generator=generator)
    found = []
    for step in range(number):
        activation = torch.randn(rows, WIDTH, generator=generator).relu()
        logits = activation @ weight - 1.0
        labels = (torch.rand(rows, generator=generator) < torch.sigmoid(logits)).float()
        gradient = (torch.sigmoid(logits) - labels)[:, None] * weight / rows
        gradient = gradient + noise * torch.randn(rows, WIDTH, generator=generator) * gradient.norm(dim=1).max()
        view = View(party="telecom", step=step, ids=torch.arange(rows), gradient=gradient, activation=activation)
        found.append((view, labels, logits))
    return found


def test_it_recovers_the_prediction_up_to_scale_and_sign() -> None:
    view, _, logits = batches(1)[0]

    scores = call_attack(ReadoutAttack(), view)

    # The prediction is the score times a constant plus the intercept: correlation 1 up to float32 rounding.
    assert abs(torch.corrcoef(torch.stack([scores, logits.double()]))[0, 1].item()) == pytest.approx(1.0, abs=1e-6)


def test_noise_averages_out_and_the_sign_stays() -> None:
    attack = ReadoutAttack()
    aucs = []
    for view, labels, _ in batches(200, noise=1.0):
        aucs.append(leak_auc(call_attack(attack, view), labels))
    best = [leak_auc(logits, labels) for _, labels, logits in batches(200)[100:]]

    later = aucs[100:]
    assert all(auc > 0.5 for auc in later) or all(auc < 0.5 for auc in later)
    mean = sum(later) / len(later)
    # Within .03 of what the model itself predicts, although every row's noise exceeds its gradient.
    assert max(mean, 1 - mean) > sum(best) / len(best) - 0.03


def test_its_state_goes_on_where_it_was() -> None:
    views = [view for view, _, _ in batches(6, noise=0.5)]
    attack, restarted = ReadoutAttack(), ReadoutAttack()
    for view in views[:3]:
        call_attack(attack, view)

    restarted.load_state_dict(attack.state_dict())

    for view in views[3:]:
        assert torch.equal(call_attack(restarted, view), call_attack(attack, view))


def test_gradients_of_zero_teach_nothing() -> None:
    view, _, _ = batches(1)[0]
    zeros = View(party="telecom", step=0, ids=view.ids, gradient=torch.zeros(400, WIDTH), activation=view.activation)

    assert not call_attack(ReadoutAttack(), zeros).any()


def test_another_width_is_refused() -> None:
    attack = ReadoutAttack()
    call_attack(attack, batches(1)[0][0])
    narrow = View(party="telecom", step=1, ids=torch.arange(3), gradient=torch.ones(3, 2), activation=torch.ones(3, 2))

    with pytest.raises(ArgumentError, match="width 6, got 2"):
        call_attack(attack, narrow)


def test_a_direction_that_comes_out_turned_is_turned_back(monkeypatch: pytest.MonkeyPatch) -> None:
    views = [view for view, _, _ in batches(4)]
    straight = ReadoutAttack()
    expected = [call_attack(straight, view) for view in views]
    signs = iter([1.0, -1.0, -1.0, 1.0])
    monkeypatch.setattr(
        "splitvfl.attacks.readout.leading_direction", lambda moment: next(signs) * leading_direction(moment)
    )

    attack = ReadoutAttack()

    for view, scores in zip(views, expected, strict=True):
        torch.testing.assert_close(call_attack(attack, view), scores)
