"""A top that counts in standard deviations of the labels, from their mean."""

from __future__ import annotations

import pytest
import torch

from splitvfl.data.columns import NO_RECORDS, Columns, PartyData, Records
from splitvfl.errors import ConfigError
from splitvfl.learning.tasks import task_for
from splitvfl.models.mlp import LabelScale, MLPRecipe

LABELS = torch.tensor([100.0, 200.0, 600.0, 300.0])


def bank(records: Records) -> PartyData:
    return PartyData("bank", ("a",), ("a",), (), records, NO_RECORDS)


def columns() -> PartyData:
    return bank(Records(torch.arange(4), Columns.of(torch.zeros(4, 1)), LABELS))


def test_outputs_are_in_the_unit_of_the_labels() -> None:
    top = MLPRecipe(label_scale=True).make_top(columns(), task_for("regression", 1), [3])
    inputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))

    assert isinstance(top, LabelScale)
    inner = top.top(inputs)
    expected = LABELS.double().mean() + LABELS.double().std() * inner.double()
    torch.testing.assert_close(top(inputs).double(), expected, rtol=1e-5, atol=0)


def test_a_saved_top_brings_its_own_unit() -> None:
    recipe, task = MLPRecipe(label_scale=True), task_for("regression", 1)
    trained = recipe.make_top(columns(), task, [3])
    without_labels = Records(torch.zeros(0, dtype=torch.int64), Columns.of(torch.zeros(0, 1)))
    loaded = recipe.make_top(bank(without_labels), task, [3])

    loaded.load_state_dict(trained.state_dict())

    inputs = torch.ones(2, 4)
    assert torch.equal(loaded(inputs), trained(inputs))


def test_classes_have_no_unit() -> None:
    with pytest.raises(ConfigError, match=r"model.label_scale: for regression; this is a binary task"):
        MLPRecipe(label_scale=True).make_top(columns(), task_for("binary", 2), [3])


def test_without_it_the_top_is_as_it_was() -> None:
    task = task_for("regression", 1)
    assert set(MLPRecipe().make_top(columns(), task, [3]).state_dict()) == {"layers.0.weight", "layers.0.bias"}
