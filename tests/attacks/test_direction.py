from __future__ import annotations

import math

import pytest
import torch

from splitvfl.attacks import DirectionAttack
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, call_attack
from splitvfl.metrics import leak_auc


def view_of(gradient: torch.Tensor, ids: list[int], known: list[int]) -> View:
    return View(
        party="telecom",
        step=0,
        ids=torch.tensor(ids),
        gradient=gradient,
        known_positives=torch.tensor(known, dtype=torch.int64),
    )


def slow_scores(batches: list[tuple[torch.Tensor, list[int]]], known: list[int]) -> list[float]:
    """Mean cosine to the last gradient of every other known positive, record by record, of the last batch."""
    references: dict[int, list[float]] = {}
    for gradient, ids in batches:
        met = zip(gradient.tolist(), ids, strict=True)
        references.update({record: row for row, record in met if record in known and any(row)})
    scores = []
    for row, record in zip(batches[-1][0].tolist(), batches[-1][1], strict=True):
        others = [reference for other, reference in references.items() if other != record]
        cosines = [
            sum(a * b for a, b in zip(row, other, strict=True)) / (math.hypot(*row) * math.hypot(*other))
            if any(row)
            else 0.0
            for other in others
        ]
        scores.append(sum(cosines) / len(cosines) if cosines else math.nan)
    return scores


@pytest.mark.parametrize("known", [[], [3], [3, 11], [0, 3, 11, 17, 99]])
def test_scores_equal_a_slow_loop(known: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    attack = DirectionAttack()
    batches = []
    for ids in ([3, 5, 8, 11], [0, 1, 2, 17], [5, 3, 0, 3], [11, 8, 3, 99]):
        gradient = torch.randn(4, 6, generator=generator, dtype=torch.float64)
        gradient[1] = 0.0
        batches.append((gradient, ids))

        scores = call_attack(attack, view_of(gradient, ids, known))

        expected = torch.tensor(slow_scores(batches, known), dtype=torch.float64)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-12, equal_nan=True)


def test_a_record_never_scores_its_own_reference() -> None:
    gradient = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))

    scores = call_attack(DirectionAttack(), view_of(gradient, [10, 11, 12, 13, 14], [12]))

    assert scores.isnan().tolist() == [False, False, True, False, False]


def test_a_zero_gradient_does_not_replace_a_reference() -> None:
    attack = DirectionAttack()
    call_attack(attack, view_of(torch.tensor([[1.0, 0.0]]), [7], [7]))

    scores = call_attack(attack, view_of(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), [7, 8], [7]))

    assert scores[1].item() == 1.0


def test_records_that_are_no_longer_granted_are_no_references() -> None:
    attack = DirectionAttack()
    call_attack(attack, view_of(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), [1, 2], [1, 2]))

    scores = call_attack(attack, view_of(torch.tensor([[3.0, 0.0]]), [5], [1]))

    assert scores.tolist() == [1.0]


def test_the_cosine_survives_tiny_and_huge_gradients() -> None:
    gradient = torch.tensor([[1e-30, 1e-30], [1e30, 1e30], [-1e-12, -1e-12]])

    scores = call_attack(DirectionAttack(), view_of(gradient, [0, 1, 2], [0]))

    # One rounding of float32 per operation.
    torch.testing.assert_close(scores[1:], torch.tensor([1.0, -1.0]), rtol=0, atol=1e-6)


def test_labels_are_read_at_a_linear_top() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(200, generator=generator) < 0.2).double()
    prediction = torch.rand(200, generator=generator, dtype=torch.float64)
    gradient = torch.outer(prediction - labels, torch.randn(5, generator=generator, dtype=torch.float64))
    known = int(labels.nonzero()[0])

    scores = call_attack(DirectionAttack(), view_of(gradient, list(range(200)), [known]))

    others = torch.arange(200) != known
    assert leak_auc(scores[others], labels[others]) == 1.0


def test_references_survive_a_restart() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 3, 4, generator=generator)
    attack, restarted = DirectionAttack(), DirectionAttack()
    call_attack(attack, view_of(first, [1, 2, 3], [1, 3]))

    restarted.load_state_dict(attack.state_dict())

    later = view_of(second, [4, 5, 6], [1, 3])
    expected = call_attack(attack, later)
    assert torch.equal(call_attack(restarted, later), expected)
    assert not expected.isnan().any()


def test_another_width_is_refused() -> None:
    attack = DirectionAttack()
    call_attack(attack, view_of(torch.ones(2, 3), [0, 1], [0]))

    with pytest.raises(ArgumentError, match="width 3, got 4"):
        attack(view_of(torch.ones(2, 4), [0, 1], [0]))
