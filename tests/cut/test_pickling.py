"""A model goes into a file or another process as any module does, or says in one sentence what to keep instead."""

from __future__ import annotations

import copy
import io
import pickle  # noqa: TID251 - what a user may do to a model
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from splitvfl import SplitModel
from splitvfl.attacks import NormAttack
from splitvfl.defenses import AsymmetricResponse, Isotropic, MemoisedResponse
from tests.builders import same, small_trainer

INPUT = torch.arange(12.0).reshape(4, 3) / 12
LABELS = torch.tensor([0.0, 1.0, 0.0, 1.0])


def saved(given: Any) -> Any:
    file = io.BytesIO()
    torch.save(given, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


# `spawn` and `forkserver` pickle in the same way as ForkingPickler.
PICKLES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda given: pickle.loads(pickle.dumps(given)),
    "torch.save": saved,
    "spawn": lambda given: pickle.loads(ForkingPickler.dumps(given)),
}


@pytest.fixture(params=PICKLES)
def pickled(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return PICKLES[request.param]


def model_of(**settings: Any) -> SplitModel:
    torch.manual_seed(0)
    return SplitModel({"lab": nn.Linear(3, 2), "ward": nn.Linear(3, 2)}, nn.Linear(4, 1), **settings)


def step(model: SplitModel) -> None:
    model.zero_grad()
    model.loss(model(INPUT, INPUT, labels=LABELS), LABELS).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_a_model_without_hooks_goes_on_as_it_was(pickled: Callable[[Any], Any]) -> None:
    model = model_of(loss=mse)
    step(model)

    other = pickled(model)

    with torch.no_grad():
        assert torch.equal(other(INPUT, INPUT), model(INPUT, INPUT))
    assert other._loss is mse
    twin = copy.deepcopy(model)
    for one in (twin, other):
        step(one)
    assert same(twin.state_dict(), other.state_dict())
    assert other.cuts["lab"].steps == 2


def mse(output: Tensor, labels: Tensor) -> Tensor:
    return mse_loss(output.squeeze(1), labels)


ATTACH: dict[str, Callable[[SplitModel], Any]] = {
    "labels": lambda model: model.defend(AsymmetricResponse(detection_error=0.4)),
    "gradient": lambda model: model.cuts["ward"].defend(Isotropic(ratio=2)),
    "seeded": lambda model: model.cuts["ward"].defend(Isotropic(ratio=2), noise_seed_for_experiments=1),
    "attack": lambda model: model.cuts["ward"].watch(NormAttack()),
    "audit": lambda model: model.cuts["ward"].audit(),
    "earlier layer": lambda model: model.observe(model.bottoms["lab"], NormAttack()),
}


@pytest.mark.parametrize("what", ATTACH)
def test_a_model_with_hooks_names_its_state_dict(what: str, pickled: Callable[[Any], Any]) -> None:
    model = model_of()
    handle = ATTACH[what](model)

    with pytest.raises(TypeError, match=r"attached to this model, .* keep state_dict\(\)"):
        pickled(model)

    handle.remove()
    assert same(pickled(model).state_dict(), model.state_dict())


def test_cuts_and_chains_with_hooks_are_not_pickled_alone(pickled: Callable[[Any], Any]) -> None:
    model = model_of()
    model.cuts["ward"].defend(Isotropic(ratio=2))

    for part in (model.cuts["ward"], model.cuts["ward"].gradient, model.cuts):
        with pytest.raises(TypeError, match=r"attached to the .*keep state_dict\(\)"):
            pickled(part)
    assert pickled(model.cuts["lab"]).party == "lab"


@pytest.mark.parametrize(
    "loss",
    [lambda output, y: mse(output, y), partial(lambda output, y, scale: scale * mse(output, y), scale=2)],
    ids=["lambda", "partial"],
)
def test_a_loss_without_a_name_is_told(loss: Any, pickled: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"the loss of this model is .*<lambda>.*keep model.state_dict\(\)"):
        pickled(model_of(loss=loss))
    assert pickled(model_of(loss=binary_cross_entropy_with_logits))._loss is binary_cross_entropy_with_logits


def test_no_label_of_an_abandoned_step_is_pickled() -> None:
    model = model_of()
    handle = model.defend(AsymmetricResponse(detection_error=0.4))
    model(INPUT, INPUT, labels=LABELS, ids=torch.arange(4))  # a forward pass whose loss never came
    handle.remove()

    assert not PICKLES["pickle"](model)._answers
    assert model._answers


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_keep_hooks_and_draw_noise_of_their_own(copied: Callable[[Any], Any]) -> None:
    model = model_of()
    model.cuts["ward"].defend(Isotropic(sigma=1.0))
    model.defend(MemoisedResponse(epsilon=1.0))
    other = copied(model)

    assert isinstance(other, SplitModel)
    assert len(other.cuts["ward"].gradient) == len(other.labels) == 1
    assert (other.top is model.top) == (copied is copy.copy)
    for one in (model, other):
        one.zero_grad()
        one.loss(one(INPUT, INPUT, labels=LABELS, ids=torch.arange(4)), LABELS, ids=torch.arange(4)).backward()
    first, second = (one.bottoms["ward"].get_parameter("weight").grad for one in (model, other))
    assert first is not None
    assert second is not None
    assert torch.equal(first, second) == (copied is copy.copy)


@pytest.mark.parametrize("begun", [False, True], ids=["new", "trained"])
def test_a_trainer_and_its_parties_say_what_to_keep(begun: bool, pickled: Callable[[Any], Any]) -> None:
    trainer = small_trainer()
    if begun:
        trainer.fit(1)

    for way in (pickled, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"neither copied nor pickled.*state_dict\(\).*trainer.save\(folder\)"):
            way(trainer)
    for party in (trainer.active, *trainer.passives.values()):
        with pytest.raises(TypeError, match=rf"party {party.name} is not pickled.*module.state_dict\(\)"):
            pickled(party)
        assert same(copy.deepcopy(party).module.state_dict(), party.module.state_dict())
