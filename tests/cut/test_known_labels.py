"""An id has one label: ids that are places in a batch are refused where hooks would remember by them."""

from __future__ import annotations

import math
import pickle  # noqa: TID251 - what a user may do to a model

import pytest
import torch
from torch import Tensor, nn

from splitvfl import SplitModel
from splitvfl.attacks import NormAttack
from splitvfl.cut.known_labels import _PLACES, KnownLabels
from splitvfl.defenses import MemoisedResponse
from splitvfl.errors import ArgumentError

LABELS = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])


def step(model: SplitModel, rows: Tensor, ids: Tensor) -> None:
    labels = LABELS[rows]
    model.loss(model(torch.ones(len(rows), 2), labels=labels, ids=ids), labels, ids=ids).backward()


def watched() -> SplitModel:
    model = SplitModel(nn.Linear(2, 2), nn.Linear(2, 1))
    model.cut.watch(NormAttack())
    return model


def test_places_in_a_batch_are_no_ids() -> None:
    model = watched()
    first, second = torch.arange(6).split(3)
    step(model, first, torch.arange(3))

    with pytest.raises(ArgumentError, match=r"id \d comes with label .* before: an id names one record"):
        step(model, second.flip(0), torch.arange(3))


def test_records_keep_their_ids_in_every_batch_and_order() -> None:
    model = watched()
    ids = torch.tensor([5, -1, 2**62, 7, 8, 9])

    for rows in (torch.arange(6), torch.tensor([3, 1, 1, 5]), torch.arange(6).flip(0)):
        step(model, rows, ids[rows])

    assert model.cut.steps == 3


def test_a_label_defense_counts_as_a_hook_and_a_bare_model_has_nothing_to_mix() -> None:
    bare, defended = (SplitModel(nn.Linear(2, 2), nn.Linear(2, 1)) for _ in range(2))
    defended.defend(MemoisedResponse(epsilon=1.0))
    for model in (bare, defended):
        step(model, torch.tensor([0]), torch.tensor([4]))

    step(bare, torch.tensor([1]), torch.tensor([4]))
    with pytest.raises(ArgumentError, match="id 4 comes with label 1, and came with 0 before"):
        step(defended, torch.tensor([1]), torch.tensor([4]))


def test_twice_in_one_batch_with_two_labels_is_refused() -> None:
    with pytest.raises(ArgumentError, match="id 3 comes with label"):
        KnownLabels().check(torch.tensor([3, 2, 3]), torch.tensor([0.0, 1.0, 1.0]))


def test_memory_is_bounded_and_what_has_no_place_or_label_is_let_pass() -> None:
    known = KnownLabels()
    known.check(torch.tensor([1]), torch.tensor([0]))

    known.check(torch.tensor([1 + _PLACES]), torch.tensor([1]))
    known.check(torch.tensor([2, 2 + _PLACES, 2]), torch.tensor([0, 1, 0]))  # two that would take one place
    known.check(torch.tensor([1]), torch.tensor([math.nan]))
    with pytest.raises(ArgumentError, match="id 1 comes with label 2"):
        known.check(torch.tensor([1]), torch.tensor([2]))


def test_labels_that_were_seen_are_in_no_pickle() -> None:
    model = SplitModel(nn.Linear(2, 2), nn.Linear(2, 1))
    leak = model.cut.watch(NormAttack())
    step(model, torch.arange(6), torch.arange(6))
    leak.remove()

    assert pickle.loads(pickle.dumps(model))._known._labels.isnan().all()
    assert not model._known._labels.isnan().all()
