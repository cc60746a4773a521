from __future__ import annotations

import pytest
import torch
from torch import nn

from splitvfl.errors import ArgumentError
from splitvfl.models import MLP


@pytest.mark.parametrize("final_activation", [True, False])
def test_output_equals_the_layers_by_hand(final_activation: bool) -> None:
    torch.manual_seed(0)
    model = MLP(5, [7, 3], final_activation=final_activation)
    inputs = torch.randn(11, 5)

    output = model(inputs)

    first, second = (layer for layer in model.layers if isinstance(layer, nn.Linear))
    by_hand = (inputs @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    torch.testing.assert_close(output, by_hand.clamp(min=0) if final_activation else by_hand)
    assert output.shape == (11, 3)


def test_a_top_ends_in_a_linear_layer_and_a_bottom_in_an_activation() -> None:
    names = [type(layer).__name__ for layer in MLP(4, [8, 1], final_activation=False, dropout=0.5).layers]
    assert names == ["Linear", "ReLU", "Dropout", "Linear"]
    assert [type(layer).__name__ for layer in MLP(4, [8]).layers] == ["Linear", "ReLU"]


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    model = MLP(4, [500], dropout=0.5)
    inputs = torch.ones(1, 4)

    full = model.eval()(inputs)
    dropped = model.train()(inputs)

    alive = full > 0
    kept = dropped[alive] > 0
    assert 0.35 < kept.float().mean().item() < 0.65  # five standard errors at about 250 live units
    torch.testing.assert_close(dropped[alive][kept], 2 * full[alive][kept])


@pytest.mark.parametrize("inputs_and_widths", [(0, [3]), (3, []), (3, [2, 0])])
def test_bad_widths_are_refused(inputs_and_widths: tuple[int, list[int]]) -> None:
    with pytest.raises(ArgumentError, match="all at least 1, got"):
        MLP(*inputs_and_widths)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_bad_dropout_is_refused(dropout: float) -> None:
    with pytest.raises(ArgumentError, match=r"dropout must lie in \[0, 1\)"):
        MLP(3, [2], dropout=dropout)
