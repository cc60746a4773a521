from __future__ import annotations

import copy
import pickle  # noqa: TID251 - what a user may do to it
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from splitvfl.cut.chain import DefenseChain
from splitvfl.defenses import Isotropic
from splitvfl.learning.randomness import EntropicGenerator, PartyRandom, entropic_generator, keyed_generator
from splitvfl.learning.sampled import Sampled
from tests.run.forked import FORKS, in_a_fork

CPU = torch.device("cpu")


def numbers(random: PartyRandom) -> list[float]:
    with random:
        found: list[float] = torch.rand(500, dtype=torch.float64).tolist()
    return found


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_a_partys_state_from_entropy_is_another(copied: Callable[[PartyRandom], PartyRandom]) -> None:
    own, seeded = PartyRandom.entropic(CPU), PartyRandom(7)
    resumed = PartyRandom.entropic(CPU)
    resumed.load_state_dict(own.state_dict())
    others = [copied(one) for one in (own, resumed, own)]

    assert numbers(copied(seeded)) == numbers(seeded)
    first = numbers(own)
    assert numbers(resumed) == first
    drawn = [first, *map(numbers, others)]
    assert len({number for one in drawn for number in one}) == 2000  # nor does one go on behind another


def around_a_fork() -> list[list[float]]:
    own, seeded, generator = PartyRandom.entropic(CPU), PartyRandom(7), EntropicGenerator(CPU)
    generator()

    def found() -> list[list[float]]:
        return [numbers(seeded), draws(generator(), 4).tolist(), numbers(own)]

    def of_child() -> list[list[float]]:
        drawn = found()
        kept = PartyRandom(0)
        kept.load_state_dict(own.state_dict())
        return [*drawn, numbers(kept), numbers(own)]

    def of_states() -> list[list[float]]:
        kept = PartyRandom(0)
        kept.load_state_dict(own.state_dict())
        found = [numbers(kept)]
        own.load_state_dict(parents)
        return [*found, numbers(own)]

    parents = own.state_dict()
    return [*in_a_fork(None, of_child), *in_a_fork(None, of_states), *found()]


def test_a_forked_child_has_a_state_of_its_own_where_it_came_from_entropy() -> None:
    found = in_a_fork(FORKS, around_a_fork)
    (seeded, generator, own, kept, following), (unused, given), parents = found[:5], found[5:7], found[7:]
    assert seeded == parents[0]
    assert generator != parents[1]
    assert len({number for one in (own, unused, parents[2]) for number in one}) == 1500
    assert kept == following  # from a state that the child has taken, and from one that it was given
    assert given == parents[2]


def test_a_copy_of_an_entropic_generator_is_another_and_a_copy_of_a_sampled_model_draws_its_own() -> None:
    layer = Sampled(nn.Linear(3, 4))
    layer.generator = EntropicGenerator(CPU)
    rows = torch.zeros(5, 3)
    layer(rows)
    frozen = pickle.dumps(layer)
    copies = [copy.deepcopy(layer), pickle.loads(frozen), pickle.loads(frozen)]

    drawn = [one(rows) for one in (layer, *copies)]

    assert len({tuple(one.flatten().tolist()) for one in drawn}) == 4
    assert layer.generator() is layer.generator()
    layer.generator = torch.Generator().manual_seed(1)
    other = copy.deepcopy(layer)
    assert torch.equal(layer(rows), other(rows))


def draws(generator: torch.Generator, count: int) -> torch.Tensor:
    return torch.empty(count).normal_(generator=generator)


def test_entropic_generators_differ_in_every_word_of_their_state() -> None:
    one, other = (entropic_generator(CPU).get_state()[24 : 24 + 8 * 624].view(torch.int64) for _ in range(2))

    assert (one != other).all()  # 624 coincidences of one in four billion
    assert one.max() < 2**32


def test_no_seed_of_thirty_two_bits_gives_the_state_of_an_entropic_generator() -> None:
    generator = entropic_generator(CPU)
    words = generator.get_state()[24 : 24 + 8 * 624].view(torch.int64)

    # A seeded twister's words follow from the first one; here they do not.
    seeded = torch.Generator().manual_seed(int(words[0])).get_state()[24 : 24 + 8 * 624].view(torch.int64)
    assert seeded[0] == words[0]
    assert not torch.equal(seeded, words)


def test_numbers_of_an_entropic_generator_are_standard_normal() -> None:
    values = draws(entropic_generator(CPU), 200_000)

    # Six standard errors: 1/sqrt(n) of the mean, 1/sqrt(2n) of the deviation.
    assert abs(values.mean().item()) < 6 / 200_000**0.5
    assert abs(values.std().item() - 1.0) < 6 / 400_000**0.5


def test_its_state_can_be_saved_and_taken_up() -> None:
    generator = entropic_generator(CPU)
    draws(generator, 1001)
    again = torch.Generator()
    again.set_state(generator.get_state())

    assert torch.equal(draws(generator, 999), draws(again, 999))


def test_an_attached_defense_without_a_seed_draws_entropic_noise_and_survives_a_restart() -> None:
    def chain() -> DefenseChain:
        new = DefenseChain("gradient", "bank")
        new.attach(Isotropic(sigma=1.0))
        return new

    first, second, resumed = chain(), chain(), chain()
    message = torch.zeros(4, 3)
    sent = first.apply(message, step=0, ids=None, labels=None)
    assert not torch.equal(sent, second.apply(message, step=0, ids=None, labels=None))

    resumed.load_state_dict(first.state_dict())

    following = first.apply(message, step=1, ids=None, labels=None)
    assert torch.equal(following, resumed.apply(message, step=1, ids=None, labels=None))


def test_a_keyed_generator_follows_from_its_key_and_purpose() -> None:
    key, other = b"k" * 32, b"l" * 32

    def state(*about: bytes, key: bytes = key) -> torch.Tensor:
        return keyed_generator(key, *about).get_state()[24 : 24 + 8 * 624].view(torch.int64)

    assert torch.equal(state(b"ab", b"c"), state(b"ab", b"c"))
    for another in (state(b"a", b"bc"), state(b"abc"), state(b"ab", b"c", b""), state(b"ab", b"c", key=other)):
        assert (state(b"ab", b"c") != another).all()


def test_numbers_of_keyed_generators_are_standard_normal_and_independent() -> None:
    drawn = torch.stack([draws(keyed_generator(b"k" * 32, bytes([number])), 20_000) for number in range(10)])

    # Six standard errors.
    assert abs(drawn.mean().item()) < 6 / 200_000**0.5
    assert abs(drawn.std().item() - 1.0) < 6 / 400_000**0.5
    assert (torch.corrcoef(drawn) - torch.eye(10)).abs().max() < 6 / 20_000**0.5


# Garbage is collected at every turn, and threads change places at every chance: what else happens once in many runs.
_IN_TURNS = """
import gc, sys, threading, torch
from splitvfl.learning.randomness import PartyRandom

def turns():
    own = PartyRandom(0)
    for _ in range(3_000):
        base = torch.ones(3, requires_grad=True) * 1
        view = base.view(3)
        view.ring = [view, base]
        del view, base
        with own:
            pass

gc.set_threshold(1)
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=turns, daemon=True) for _ in range(6)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


@pytest.mark.slow(reason="six threads in a process of their own")
def test_parties_that_take_turns_in_threads_do_not_wait_for_each_other_for_ever() -> None:
    """Torch lets go of the interpreter with its generator's lock in hand, if a tensor dies just then."""
    assert subprocess.run([sys.executable, "-c", _IN_TURNS], timeout=60).returncode == 0
