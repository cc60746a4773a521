"""A copy of what draws noise, an unpickled one and a forked child draw their own; of a seed or a state they do not."""

from __future__ import annotations

import copy
import itertools
import math
import pickle  # noqa: TID251 - what a user may do to a model
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from splitvfl import SplitModel
from splitvfl.cut.chain import DefenseChain
from splitvfl.defenses import AxisGaussian, GaussianIR, Isotropic, MemoisedResponse
from splitvfl.hooks import Secrets
from tests.run.forked import FORKS, in_a_fork

ROWS = 5000
SIGMA = 0.5


def unpickled(chain: DefenseChain) -> DefenseChain:
    """Of a chain itself there is no pickle: its team has none."""
    found = DefenseChain(chain.crossing, chain.party)
    found._attached = pickle.loads(pickle.dumps(chain._attached))
    return found


COPIES: dict[str, Callable[[Any], Any]] = {
    "copied": copy.deepcopy,
    "unpickled": unpickled,
    "copied twice": lambda one: copy.deepcopy(copy.deepcopy(one)),
}


class OfGenerator:
    """Noise of the generator itself, as a hook of long ago draws it."""

    crossing = "activation"

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message + SIGMA * torch.empty_like(message).normal_(generator=secrets.generator)


def chain_of(defense: Any, seed: int | None = None) -> DefenseChain:
    chain = DefenseChain(getattr(defense, "crossing", "gradient"), "bank")
    chain.attach(defense, noise_seed_for_experiments=seed)
    return chain


def _sent(chain: DefenseChain, step: int = 0) -> Tensor:
    labels = (torch.arange(ROWS) % 2).float()
    message = torch.zeros(ROWS, 2) + 1e-3 * labels[:, None]
    return chain.apply(message, step=step, ids=torch.arange(ROWS), labels=labels)


def independent(first: Tensor, second: Tensor) -> bool:
    """Whether their difference has the variance of two noises, to five standard errors, and no part of it is zero."""
    off: float = abs((first - second).std().item() / (2**0.5 * SIGMA) - 1.0)
    return off < 5 / math.sqrt(2 * first.numel()) and int((first == second).sum()) <= 3


@pytest.mark.parametrize("used", [False, True], ids=["before use", "after use"])
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("defense", [GaussianIR(clip=1.0, sigma=SIGMA), Isotropic(sigma=SIGMA), OfGenerator()])
def test_a_copy_draws_noise_of_its_own(defense: Any, way: str, used: bool) -> None:
    chain = chain_of(defense)
    chain.draw_generators(torch.device("cpu"))
    if used:
        _sent(chain)
    first, second = (COPIES[way](chain) for _ in range(2))

    drawn = [_sent(one) for one in (chain, first, second)]

    assert independent(drawn[0], drawn[1])
    assert independent(drawn[1], drawn[2])


def test_two_of_one_pickle_draw_noise_of_their_own_and_it_holds_no_key() -> None:
    chain = chain_of(GaussianIR(clip=1.0, sigma=SIGMA))
    _sent(chain)
    frozen = pickle.dumps(chain._attached)
    thawed = [copy.copy(chain) for _ in range(2)]
    for one in thawed:
        one._attached = pickle.loads(frozen)

    assert independent(*map(_sent, thawed))
    (state,) = chain.state_dict().values()
    assert bytes.fromhex(state["keystream"]["key"]) not in frozen
    assert state["keystream"]["key"].encode() not in frozen
    assert state["generator"].numpy().tobytes()[24:2000] not in frozen


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_what_a_state_was_loaded_into_draws_noise_of_its_own(way: str) -> None:
    """A run that went on from a checkpoint; the state may be one of before there were keystreams."""
    first = chain_of(GaussianIR(clip=1.0, sigma=SIGMA))
    first.draw_generators(torch.device("cpu"))
    state = first.state_dict()
    old = copy.deepcopy(state)
    del old["gaussian-ir"]["keystream"]
    for one in (state, old):
        resumed = chain_of(GaussianIR(clip=1.0, sigma=SIGMA))
        resumed.load_state_dict(copy.deepcopy(one))
        other = COPIES[way](resumed)
        again = _sent(resumed)
        assert independent(again, _sent(other))
        assert other.state_dict()["gaussian-ir"]["keystream"] is not None
        resumed.load_state_dict(copy.deepcopy(one))
        assert torch.equal(again, _sent(resumed))  # the state itself goes on to the bit
    first.load_state_dict(state)
    assert torch.equal(_sent(chain_of_state(state)), _sent(first))


def chain_of_state(state: dict[str, Any]) -> DefenseChain:
    found = chain_of(GaussianIR(clip=1.0, sigma=SIGMA))
    found.load_state_dict(state)
    return found


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_what_has_a_seed_goes_on_as_it_does(way: str) -> None:
    for used in (False, True):
        chain = chain_of(Isotropic(sigma=SIGMA), seed=5)
        if used:
            _sent(chain)
        other = COPIES[way](chain)
        assert torch.equal(_sent(chain, 1), _sent(other, 1))


@pytest.mark.parametrize(
    ("defense", "expected"),
    [
        (GaussianIR(clip=1.0, sigma=SIGMA), [0.5121889, 0.02135114]),
        (Isotropic(sigma=1.0), [1.024378, 0.04270229]),
        (AxisGaussian(ratio=1.0), [0.001118729, 0.001118729]),
        (OfGenerator(), [0.4772063, 0.5303928]),
    ],
    ids=lambda value: "" if isinstance(value, list) else type(value).__name__,
)
def test_numbers_of_a_seed_stay_as_they_are(defense: Any, expected: list[float]) -> None:
    """Golden: the first row of the second step, times the scale of the message."""
    chain = chain_of(defense, seed=11)
    _sent(chain)
    assert _sent(chain, 1)[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_two_copies_of_a_model_send_independent_noise() -> None:
    """What a saved or copied model sends for the same records shares no noise with what it sends."""
    torch.manual_seed(0)
    model = SplitModel(nn.Linear(4, 2), nn.Linear(2, 1))
    model.cut.activation.attach(GaussianIR(clip=1e-9, sigma=SIGMA))
    model.cut.gradient.attach(Isotropic(sigma=SIGMA))
    rows, labels = torch.randn(ROWS, 4), (torch.arange(ROWS) % 2).float()

    def crossed(one: SplitModel) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []
        handle = one.top.register_forward_pre_hook(lambda module, given: found.append(given[0].detach()))
        gradients: list[Tensor] = []
        second = one.bottoms["passive"].register_forward_hook(
            lambda module, given, output: output.register_hook(gradients.append) and None
        )
        one.loss(one(rows, labels=labels, ids=torch.arange(ROWS)), labels, ids=torch.arange(ROWS)).backward()
        handle.remove()
        second.remove()
        return found[0], gradients[0].clone()

    crossed(model)
    copies = [copy.deepcopy(model), copy.deepcopy(model)]
    seen = [crossed(one) for one in (model, *copies)]

    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert independent(seen[one][0], seen[other][0])
        assert independent(seen[one][1], seen[other][1])  # rows of the honest gradient are about 1e-4


def test_a_copy_remembers_what_was_answered_and_answers_for_others_by_itself() -> None:
    """An answer that was given already stays the only one; of records that neither has met each draws its own."""

    def answers(chain: DefenseChain, start: int) -> Tensor:
        ids = torch.arange(start, start + 1000)
        return chain.apply((ids % 2).float(), step=0, ids=ids, labels=(ids % 2).float())

    chain = chain_of(MemoisedResponse(epsilon=0.5))
    before = answers(chain, 0)
    other = copy.deepcopy(chain)

    assert torch.equal(answers(other, 0), before)
    assert torch.equal(answers(chain, 0), before)
    agreeing = (answers(other, 1000) == answers(chain, 1000)).float().mean().item()
    keep = torch.sigmoid(torch.tensor(0.5)).item()
    # Two answers agree where both were kept, or neither: five standard errors of 1000.
    assert abs(agreeing - (keep**2 + (1 - keep) ** 2)) < 5 * 0.5 / 1000**0.5


Sent = npt.NDArray[np.float32]


def around_a_fork() -> dict[str, dict[str, Sent]]:
    """What two children and their parent send, by the name of a chain."""
    chains = {
        "new": chain_of(GaussianIR(clip=1.0, sigma=SIGMA)),
        "used": chain_of(GaussianIR(clip=1.0, sigma=SIGMA)),
        "resumed": chain_of(GaussianIR(clip=1.0, sigma=SIGMA)),
        "of the generator": chain_of(OfGenerator()),
        "of an old state": chain_of(GaussianIR(clip=1.0, sigma=SIGMA)),
        "seeded": chain_of(GaussianIR(clip=1.0, sigma=SIGMA), seed=3),
    }
    for chain in chains.values():
        chain.draw_generators(torch.device("cpu"))
    for name in ("used", "seeded"):
        _sent(chains[name])
    chains["resumed"].load_state_dict(chains["resumed"].state_dict())
    old = chains["of an old state"].state_dict()
    del old["gaussian-ir"]["keystream"]
    chains["of an old state"].load_state_dict(old)
    parents = {name: chain.state_dict() for name, chain in chains.items()}

    def sent(chain: DefenseChain) -> Sent:
        found: Sent = _sent(chain).numpy()
        return found

    def of_child() -> dict[str, dict[str, Sent]]:
        return {name: {"child": sent(chain)} for name, chain in chains.items()}

    def of_states() -> dict[str, dict[str, Sent]]:
        found = {}
        for name, chain in chains.items():
            chain.load_state_dict(chain.state_dict())
            found[name] = {"unused": sent(chain)}
            again = chain.state_dict()
            for key in ("after", "again"):
                chain.load_state_dict(again)
                found[name][key] = sent(chain)
        return found

    def of_the_parents() -> dict[str, Sent]:
        for name, chain in chains.items():
            chain.load_state_dict(parents[name])
        return {name: sent(chain) for name, chain in chains.items()}

    first, second, third = in_a_fork(None, of_child), in_a_fork(None, of_child), in_a_fork(None, of_states)
    given = in_a_fork(None, of_the_parents)
    return {
        name: {
            "parent": sent(chain),
            "parent's": given[name],
            **first[name],
            "sister": second[name]["child"],
            **third[name],
        }
        for name, chain in chains.items()
    }


def test_a_forked_child_draws_noise_of_its_own() -> None:
    for name, arrays in in_a_fork(FORKS, around_a_fork).items():
        found = {key: torch.from_numpy(array) for key, array in arrays.items()}
        # From a state that a child was given, or has taken, it goes on to the bit.
        assert torch.equal(found["parent"], found["parent's"]), name
        assert torch.equal(found["after"], found["again"]), name
        others = [found[key] for key in ("child", "sister", "unused")]
        if name == "seeded":
            assert all(torch.equal(found["parent"], one) for one in others)
        else:
            for one, other in itertools.combinations([found["parent"], *others], 2):
                assert independent(one, other), name
