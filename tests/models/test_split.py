from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from splitvfl.errors import ArgumentError
from splitvfl.models import MLP, split_sequential


def named_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            first=nn.Linear(4, 6), act=nn.ReLU(), second=nn.Linear(6, 5), squash=nn.Tanh(), last=nn.Linear(5, 1)
        )
    )


@pytest.mark.parametrize(
    ("at", "lengths"), [(1, (1, 4)), (2, (2, 3)), (4, (4, 1)), (-1, (4, 1)), (-4, (1, 4)), ("second", (2, 3))]
)
def test_the_halves_compute_what_the_whole_computed(at: int | str, lengths: tuple[int, int]) -> None:
    model, inputs = named_model(), torch.randn(7, 4)

    bottom, top = split_sequential(model, at=at)

    assert (len(bottom), len(top)) == lengths
    assert torch.equal(top(bottom(inputs)), model(inputs))


def test_the_halves_hold_the_very_parameters_under_their_names() -> None:
    model = named_model()

    bottom, top = split_sequential(model, at="squash")

    halves = {**dict(bottom.named_parameters()), **dict(top.named_parameters())}
    assert list(halves) == [name for name, _ in model.named_parameters()]
    assert all(halves[name] is parameter for name, parameter in model.named_parameters())


def test_gradients_through_the_halves_are_those_of_the_whole() -> None:
    model, inputs = named_model(), torch.randn(7, 4)
    expected = torch.autograd.grad(model(inputs).sum(), list(model.parameters()))
    bottom, top = split_sequential(model, at=3)

    top(bottom(inputs)).sum().backward()

    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_layer_used_twice_stays_twice() -> None:
    shared = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), shared, nn.Linear(2, 2), shared)

    bottom, top = split_sequential(model, at=2)

    assert (len(bottom), len(top)) == (2, 2)


def test_an_mlp_is_cut_at_its_layers() -> None:
    model, inputs = MLP(3, [4, 2]), torch.randn(5, 3)

    bottom, top = split_sequential(model.layers, at=2)

    assert torch.equal(top(bottom(inputs)), model(inputs))


@pytest.mark.parametrize("at", [0, 5, 6, -5, -6, "first"])
def test_an_empty_half_is_refused(at: int | str) -> None:
    with pytest.raises(ArgumentError, match="a model of 5 layers is cut at 1 to 4, got"):
        split_sequential(named_model(), at=at)


def test_unknown_layers_and_other_models_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no layer 'third' to cut at; the layers are first, act, second"):
        split_sequential(named_model(), at="third")
    with pytest.raises(ArgumentError, match=r"expected an nn.Sequential, got Linear"):
        split_sequential(nn.Linear(2, 2), at=1)  # type: ignore[arg-type]
