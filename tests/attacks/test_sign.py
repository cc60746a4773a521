from __future__ import annotations

import torch

from splitvfl.attacks import DirectionAttack, SignAttack
from splitvfl.hooks import View, call_attack


def view_of(gradient: torch.Tensor, known: list[int]) -> View:
    ids = torch.arange(gradient.shape[0])
    return View(party="telecom", step=0, ids=ids, gradient=gradient, known_positives=torch.tensor(known))


def test_at_width_one_minus_the_sign_is_the_label() -> None:
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])
    logits = torch.tensor([[-2.0], [0.5], [3.0], [-4.0], [0.0]], requires_grad=True)
    torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels).backward()
    assert logits.grad is not None

    scores = call_attack(SignAttack(), view_of(logits.grad, []))

    assert scores.tolist() == [1.0, -1.0, 1.0, -1.0, 1.0]


def test_a_vanished_residue_is_undecided() -> None:
    assert call_attack(SignAttack(), view_of(torch.zeros(2, 1), [])).tolist() == [0.0, 0.0]


def test_wider_gradients_get_the_sign_of_the_cosine_and_keep_nan() -> None:
    view = view_of(torch.tensor([[1.0, 1.0], [0.5, 0.0], [-1.0, 0.2], [0.0, 0.0]]), [0])

    scores = call_attack(SignAttack(), view)

    cosines = call_attack(DirectionAttack(), view)
    assert scores[1:].tolist() == [1.0, -1.0, 0.0]
    assert scores[0].isnan()
    assert cosines[0].isnan()


def test_references_survive_a_restart() -> None:
    attack, restarted = SignAttack(), SignAttack()
    call_attack(attack, view_of(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), [0]))

    restarted.load_state_dict(attack.state_dict())

    later = View(
        party="telecom",
        step=1,
        ids=torch.tensor([8, 9]),
        gradient=torch.tensor([[2.0, 1.0], [-1.0, 5.0]]),
        known_positives=torch.tensor([0]),
    )
    assert call_attack(restarted, later).tolist() == [1.0, -1.0]
