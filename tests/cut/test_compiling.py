"""A compiled model computes what the model computes, hooks included, and is compiled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from splitvfl import SplitModel
from splitvfl.attacks import NormAttack
from splitvfl.defenses import AsymmetricResponse, GaussianIR, RecordGaussian
from splitvfl.models import Sampled

INPUT = torch.arange(24.0).reshape(8, 3) / 24
LABELS = (torch.arange(8) % 2).float()
IDS = torch.arange(8)

HOOKS: dict[str, Callable[[SplitModel], Any]] = {
    "none": lambda model: None,
    "labels": lambda model: model.defend(AsymmetricResponse(detection_error=0.4), noise_seed_for_experiments=1),
    "activation": lambda model: model.cut.defend(GaussianIR(clip=1.0, sigma=0.1), noise_seed_for_experiments=1),
    "gradient under every label": lambda model: model.cut.defend(RecordGaussian(mu=1.0), noise_seed_for_experiments=1),
    "attack and audit": lambda model: (model.cut.watch(NormAttack()), model.cut.audit()),
    "earlier layer": lambda model: model.observe(model.bottoms["passive"].get_submodule("0"), NormAttack()),
}


# The compiler asks every tensor that it is given for a gradient; one that crosses a cut is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def model_of(hook: str) -> SplitModel:
    torch.manual_seed(0)
    model = SplitModel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), nn.Linear(2, 1))
    HOOKS[hook](model)
    return model


def trained(model: SplitModel, forward: Callable[..., Any], steps: int = 3) -> list[float]:
    losses = []
    for _ in range(steps):
        model.zero_grad()
        loss = model.loss(forward(INPUT, labels=LABELS, ids=IDS), LABELS, ids=IDS)
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow(reason="traces gradients too"))]
)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_compiled_model_trains_as_the_model_does_and_is_compiled_once(hook: str, backend: str) -> None:
    plain, model = model_of(hook), model_of(hook)
    forward = torch.compile(model, backend=backend)

    found = trained(model, forward, steps=1)
    once = counters["stats"]["unique_graphs"]
    found += trained(model, forward)

    assert found == trained(plain, plain, steps=4)
    assert once >= 2  # the bottom, in two pieces where a layer is watched, and the top
    assert counters["stats"]["unique_graphs"] == once
    assert model.cut.steps == 4


def test_a_step_in_one_graph_says_what_to_compile_instead() -> None:
    model = model_of("none")

    with pytest.raises(Exception, match="compile the bottoms and the top, without fullgraph"):
        torch.compile(lambda given: model(given).sum(), backend="eager", fullgraph=True)(INPUT)
    for part in (*model.bottoms.values(), model.top):
        part.forward = torch.compile(part.forward, backend="eager")
    assert trained(model, model) == trained(plain := model_of("none"), plain)


def test_numbers_that_a_bottleneck_draws_are_drawn_outside_the_graph() -> None:
    bottom = Sampled(nn.Linear(3, 4))
    drawn = torch.compile(bottom, backend="eager")

    outputs = []
    for forward in (bottom, drawn, drawn):
        torch.manual_seed(3)
        outputs.append(forward(INPUT))

    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[1], outputs[2])
    assert outputs[1].drawn_from.mean.shape == (8, 2)
    assert not torch.equal(drawn(INPUT), outputs[2])
