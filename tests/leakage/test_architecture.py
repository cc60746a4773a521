"""An architecture holds no weight of the model that it was made of."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from splitvfl.errors import AttackRefused
from splitvfl.leakage.architecture import architecture_of
from splitvfl.models import MLP
from tests.builders import same


def moved(model: nn.Module, seed: int) -> nn.Module:
    """The same model with other weights and buffers."""
    other, random = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for part in (*other.parameters(), *other.buffers()):
        if part.is_floating_point():
            part.data = torch.rand(part.shape, generator=random)
    return other


@pytest.mark.parametrize(
    "model", [MLP(3, [4, 2]), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.PReLU(), nn.Linear(4, 2))]
)
def test_it_is_the_same_whatever_the_weights_are(model: nn.Module) -> None:
    one, other = (architecture_of(moved(model, seed), 3).state_dict() for seed in (0, 1))
    assert same(one, other)
    assert not same(one, architecture_of(model, 4).state_dict())
    assert not set(map(float, model.state_dict()["0.weight" if "0.weight" in one else "layers.0.weight"].flatten())) & {
        value for part in one.values() for value in part.flatten().tolist()
    }


def test_it_runs_as_the_model_does_and_leaves_it_as_it_was() -> None:
    model, columns = MLP(3, [4, 2]), torch.randn(5, 3)
    before, drawn = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    fresh = architecture_of(model, 0)
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert same(before, model.state_dict())
    assert fresh(columns).shape == (5, 2)
    fresh.load_state_dict(before)
    assert torch.equal(fresh(columns), model(columns))


class Scaled(nn.Module):
    """Its scale is a weight that nothing draws."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, columns: Tensor) -> Tensor:
        scaled: Tensor = self.inner(columns) * self.scale
        return scaled


class Centred(nn.Linear):
    """It holds the columns' means."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("means", torch.ones(3))


class Halved(nn.Linear):
    """It begins anew at half of what it was."""

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight /= 2
            self.bias.zero_()


@pytest.mark.parametrize(("model", "name"), [(Scaled(), "scale"), (Centred(), "means"), (Halved(3, 2), "weight")])
def test_what_no_layer_draws_anew_is_refused_by_name(model: nn.Module, name: str) -> None:
    with pytest.raises(AttackRefused, match=f"{name} of the partner's bottom model is no part of its architecture"):
        architecture_of(model, 0)
