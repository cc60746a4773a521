"""Noise that is scaled by the batch tells a record's label by the rows of others: the total has that.

The attack here is its own: how strong each message is as a whole, less the run's median, and of each record the least.
It knows no label. Labels are drawn without the columns, so that predictions tell nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from splitvfl.cut.split_model import SplitModel
from splitvfl.defenses import Isotropic
from splitvfl.leakage.message_audit import MessageAudit
from splitvfl.learning.randomness import PartyRandom
from splitvfl.metrics import leak_auc

RECORDS, RARE = 320, 0.1


class Levels:
    """Keeps how strong each message is."""

    name = "levels"
    needs = frozenset({"gradient"})
    tasks = frozenset({"binary", "multiclass"})

    def __init__(self, classes: int) -> None:
        self.shape = () if classes == 2 else (classes,)
        self.kept: list[tuple[Tensor, float]] = []

    def __call__(self, view: Any, /) -> Tensor:
        self.kept.append((view.ids.clone(), float(view.gradient.double().square().mean().log())))
        return torch.zeros(len(view.ids), *self.shape)

    def least(self) -> Tensor:
        usual, found = float(np.median([level for _, level in self.kept])), torch.full((RECORDS,), torch.inf)
        for ids, level in self.kept:
            found[ids] = found[ids].minimum(torch.tensor(level - usual))
        return found


def run(classes: int, *, epochs: int = 4, batch: int = 8) -> tuple[MessageAudit, Tensor, Tensor]:
    """Train behind noise of the largest row's size; the last class is rare. Return the audit, scores and labels."""
    random = torch.Generator().manual_seed(7)
    columns = torch.randn(RECORDS, 6, generator=random)
    rare = torch.rand(RECORDS, generator=random) < RARE
    labels = torch.where(rare, classes - 1, torch.randint(classes - 1, (RECORDS,), generator=random))
    with PartyRandom(3):
        # No hidden layer, and slow: nothing of the labels is learned by heart.
        top = nn.Linear(8, 1 if classes == 2 else classes)
        nn.init.orthogonal_(top.weight)
        model = SplitModel(nn.Linear(6, 8), top)
        order = [torch.randperm(RECORDS) for _ in range(epochs)]
        with torch.no_grad():  # what a model knows of the shares of the classes, it knows from the start
            top.bias[-1] = -2.0
    model.defend(Isotropic(ratio=20.0), noise_seed_for_experiments=0)
    audit, levels = model.cut.audit(classes=classes), Levels(classes)
    model.cut.watch(levels, classes=classes)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    for rows in (part for epoch in order for part in epoch.split(batch)):
        truth = labels[rows].float()
        outputs = model(columns[rows], labels=truth, ids=rows)
        targets = model.targets(truth, ids=rows)
        if classes == 2:
            loss = functional.binary_cross_entropy_with_logits(outputs.squeeze(1), targets)
        else:
            loss = functional.cross_entropy(outputs, targets.long())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return audit, levels.least(), labels


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow(reason="three classes"))])
def test_a_rare_class_that_makes_a_whole_batch_loud_is_in_the_total(classes: int) -> None:
    audit, least, labels = run(classes)
    reached = leak_auc(least, (labels == classes - 1).float())

    assert audit.prediction_auc < 0.65
    assert audit.told is not None
    assert reached > 0.9
    # Of three classes a macro AUC: of the two others nothing tells which, but that it is one of them.
    assert audit.told.messages >= (reached if classes == 2 else (reached + 2 * 0.55) / 3) - 0.01
    assert abs(float(np.mean(audit.shuffled(orders=10))) - 0.5) < 0.05


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow(reason="three classes"))])
def test_levels_go_on_from_a_checkpoint_and_from_one_of_before(classes: int) -> None:
    audit, _, _ = run(classes, epochs=2)
    again, old = (run(classes, epochs=1)[0].history for _ in range(2))
    state = audit.history.state_dict()
    again.load_state_dict(state)
    table = state.get("table", state)
    table.pop("usual")
    for name in ("level", "least"):
        table["columns"].pop(name)
    old.load_state_dict(state)

    assert again.judge() == audit.history.judge()
    assert old.judge().messages < again.judge().messages
    ids, sent = np.arange(8), torch.ones(8, 8)
    for history in (again, old):  # both go on
        history.note_level(ids, sent)
        assert np.isfinite(history.judge().messages)
