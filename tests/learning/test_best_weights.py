"""A party's best weights beside those as trained: which is which, whenever it is asked or saved."""

from __future__ import annotations

import copy

import torch
from torch import nn

from splitvfl.learning.best_weights import BestWeights
from splitvfl.learning.schedule import GO_ON, Verdict
from tests.saving import through_disk

BEST = Verdict(stop=False, best=True)
STOP = Verdict(stop=True, best=False)


def model(value: float) -> nn.Module:
    """A layer and running statistics: what a copy of the parameters alone would forget."""
    made = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    fill(made, value)
    return made


def fill(module: nn.Module, value: float) -> None:
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.fill_(value)


def values(module: nn.Module) -> set[float]:
    return {number for tensor in module.state_dict().values() for number in tensor.flatten().tolist()}


def test_the_best_weights_come_back_and_those_as_trained_are_laid_aside() -> None:
    module = model(1.0)
    best = BestWeights(module)
    best.apply(BEST, epoch=1)
    fill(module, 2.0)
    best.apply(GO_ON, epoch=2)
    best.use()
    assert (values(module), best.epoch, best.in_use) == ({1.0}, 1, True)
    best.use()  # a second time changes nothing
    assert values(module) == {1.0}
    best.restore_trained()
    best.restore_trained()
    assert (values(module), best.in_use) == ({2.0}, False)
    best.apply(BEST, epoch=3)
    fill(module, 4.0)
    best.use()
    assert (values(module), best.epoch) == ({2.0}, 3)


def test_without_a_best_evaluation_nothing_changes() -> None:
    module = model(1.0)
    best = BestWeights(module)
    best.apply(STOP, epoch=1)
    best.use()
    assert (values(module), best.epoch, best.stopped, best.in_use) == ({1.0}, None, True, False)


def test_a_copy_is_kept_and_not_a_view() -> None:
    module = model(1.0)
    best = BestWeights(module)
    best.apply(BEST, epoch=1)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    best.use()
    assert values(module) == {1.0}


def test_a_saved_state_holds_both_whichever_is_in_use() -> None:
    module = model(1.0)
    best = BestWeights(module)
    best.apply(BEST, epoch=2)
    fill(module, 3.0)
    best.apply(STOP, epoch=5)
    as_trained = through_disk(best.state_dict())
    best.use()
    in_use = through_disk(best.state_dict())
    for state in (as_trained, in_use):
        other = model(9.0)
        restored = BestWeights(other)
        restored.load_state_dict(copy.deepcopy(state))
        assert (values(other), restored.epoch, restored.stopped, restored.in_use) == ({3.0}, 2, True, False)
        restored.use()
        assert values(other) == {1.0}


def test_loading_an_earlier_state_forgets_a_later_best() -> None:
    module = model(1.0)
    best = BestWeights(module)
    early = through_disk(best.state_dict())
    best.apply(BEST, epoch=1)
    best.use()
    best.load_state_dict(early)
    best.use()
    assert (values(module), best.epoch, best.in_use) == ({1.0}, None, False)
