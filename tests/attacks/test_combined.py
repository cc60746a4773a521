from __future__ import annotations

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from splitvfl.attacks import CombinedAttack, ReadoutAttack
from splitvfl.hooks import View, call_attack
from splitvfl.leakage.judging import Leak
from splitvfl.metrics import leak_auc, oriented

WIDTH = 4


def views(
    epochs: int, *, records: int = 800, batch: int = 100, noise: float = 2.0, seed: int = 0
) -> tuple[list[View], Tensor]:
    """Views below a linear top, noise along it, and the labels, one per id."""
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(WIDTH, generator=random)
    activation = torch.randn(records, WIDTH, generator=random)
    logit = 1.2 * activation @ weight / weight.norm() - 1.0
    labels = (torch.rand(records, generator=random) < torch.sigmoid(logit)).float()
    found = []
    for _ in range(epochs):
        for rows in torch.randperm(records, generator=random).split(batch):
            residues = torch.sigmoid(logit[rows]) - labels[rows] + noise * torch.randn(len(rows), generator=random)
            gradient = residues[:, None] * weight / len(rows)
            found.append(View(party="a", step=len(found), ids=rows, gradient=gradient, activation=activation[rows]))
    return found, labels


def judged(attack: object, seen: list[View], labels: Tensor) -> float:
    leak = Leak(attack)  # type: ignore[arg-type]
    for view in seen:
        leak.see(view, labels[view.ids])
    return leak.summary.worst_accumulated_auc


def test_together_they_tell_more_than_the_readout_and_than_the_messages() -> None:
    seen, labels = views(8)
    direction = seen[0].gradient[0].double() / seen[0].gradient[0].norm()
    sums = torch.zeros(len(labels), dtype=torch.float64)
    for view in seen:
        sums.index_add_(0, view.ids, view.gradient.double() @ direction)

    together = judged(CombinedAttack(), seen, labels)

    # A label shifts the mean of eight messages by 1, against noise of 2 / √8: AUC about .84, as the readout's .8.
    assert together > judged(ReadoutAttack(), seen, labels) + 0.03
    assert together > oriented(leak_auc(sums, labels)) + 0.03


def test_with_as_many_messages_as_make_them_even_it_nears_the_best_there_is() -> None:
    seen, labels = views(8, seed=1)
    weight = seen[0].gradient[0].double() / seen[0].gradient[0].norm()
    logit = torch.zeros(len(labels), dtype=torch.float64)
    ratio = np.zeros(len(labels))
    # Who knows everything: the true residues' scale and noise, and the true prediction.
    scale = max(float((view.gradient.double() @ weight).abs().max()) for view in seen)
    assert scale > 0
    for view in seen:
        logit[view.ids] = view.activation.double() @ weight
    sign = 1.0 if leak_auc(logit, labels) > 0.5 else -1.0
    logit = 1.2 * sign * logit - 1.0
    length = float(torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)).norm())
    for view in seen:
        places = sign * (view.gradient.double() @ weight).numpy() * len(view.ids) / length
        ratio[view.ids.numpy()] -= (places - (expit(logit[view.ids].numpy()) - 0.5)) / 2.0**2
    best = leak_auc(logit + torch.from_numpy(ratio), labels)

    assert judged(CombinedAttack(), seen, labels) > best - 0.03


def test_it_adds_them_up_the_right_way_round_whatever_the_sign_of_the_direction() -> None:
    for seed in range(4):
        seen, labels = views(6, seed=seed)
        readout = judged(ReadoutAttack(), seen, labels)
        turned = [
            View(party="a", step=view.step, ids=view.ids, gradient=-view.gradient, activation=-view.activation)
            for view in seen
        ]
        assert min(judged(CombinedAttack(), which, labels) for which in (seen, turned)) > readout


def test_its_score_is_the_sum_of_both_in_units_of_their_spread() -> None:
    seen, _ = views(1, batch=800)
    scores = call_attack(CombinedAttack(), seen[0])
    readout = call_attack(ReadoutAttack(), seen[0])
    direction = ReadoutAttack()
    call_attack(direction, seen[0])
    assert direction.direction is not None
    messages = seen[0].gradient.double() @ direction.direction
    spread = [(values / values.std(correction=0)) for values in (readout - readout.mean(), messages)]
    torch.testing.assert_close(scores, spread[0] - spread[1], rtol=1e-9, atol=1e-9)


def test_what_is_counted_of_the_records_is_what_a_slow_sum_finds() -> None:
    attack = CombinedAttack()
    for view in views(3, records=130, batch=40)[0]:
        call_attack(attack, view)
    columns = attack.state_dict()["records"]["columns"]
    assert attack.state_dict()["count"] == 130
    for number, name in enumerate(("readout", "messages")):
        values = columns[name][:130]
        expected = torch.stack([values.sum(), values.square().sum()])
        # Rounding of some hundred sums and differences of order one.
        torch.testing.assert_close(attack.state_dict()["totals"][number], expected, rtol=1e-9, atol=1e-9)


def test_it_goes_on_to_the_bit() -> None:
    seen, _ = views(2)
    straight, resumed = CombinedAttack(), CombinedAttack()
    for view in seen[:9]:
        call_attack(straight, view)
    resumed.load_state_dict(straight.state_dict())
    for view in seen[9:]:
        assert torch.equal(call_attack(resumed, view), call_attack(straight, view))


def test_gradients_of_zero_score_nothing() -> None:
    seen, _ = views(1)
    first = seen[0]
    zeros = View(
        party="a", step=0, ids=first.ids, gradient=torch.zeros_like(first.gradient), activation=first.activation
    )
    assert not call_attack(CombinedAttack(), zeros).any()
