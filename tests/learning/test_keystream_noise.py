"""Noise of deployed runs: from a keystream, on a grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from splitvfl.cut.chain import DefenseChain
from splitvfl.defenses import GaussianIR, LaplaceResidue
from splitvfl.hooks import Defense, Secrets
from splitvfl.learning.randomness import keyed_stream
from splitvfl.learning.sampling import (
    add_laplace,
    add_normal,
    random_bits,
    standard_laplace,
    standard_normal,
    uniform,
)
from splitvfl.privacy import DiscreteNoise, Keystream, discrete_gaussian

KEY = bytes(range(32))
GENERATOR = torch.Generator().manual_seed(0)


def stream() -> Keystream:
    return Keystream(KEY)


def secrets(keystream: Keystream | None) -> Secrets:
    return Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(0), keystream=keystream)


def on_grid(values: Tensor, grid: float) -> bool:
    return bool((torch.remainder(values.double() / grid, 1.0) == 0.0).all())


def test_bits_of_a_keystream_are_its_words_but_for_one() -> None:
    bits = random_bits(5, stream())

    assert bits.tolist() == [int(word) >> 1 for word in stream().words(5)]


def test_continuous_numbers_come_from_it_too() -> None:
    assert stats.kstest(standard_normal((20_000,), stream()).numpy(), "norm").pvalue > 1e-4
    assert stats.kstest(standard_laplace((20_000,), stream()).numpy(), "laplace").pvalue > 1e-4
    assert stats.kstest(uniform((20_000,), stream()).numpy(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_of_one_scale_is_discrete_and_what_the_sampler_draws(dtype: torch.dtype) -> None:
    message = torch.randn(70, 3, generator=GENERATOR, dtype=dtype)
    for law, add in (("gaussian", add_normal), ("laplace", add_laplace)):
        noise = DiscreteNoise(law, 0.7)  # type: ignore[arg-type]

        sent = add(message, 0.7, stream())

        expected = torch.from_numpy(noise.add(message.double().numpy(), stream())).to(dtype)
        assert sent.dtype == dtype
        assert torch.equal(sent, expected)
        if dtype == torch.float64:
            assert on_grid(sent, noise.grid)


def test_what_no_grid_fits_gets_continuous_noise_from_the_stream() -> None:
    message = torch.tensor([[0.0, float("nan")], [1e30, 1.0]], dtype=torch.float64)
    scales = torch.tensor([[1.0], [2.0]], dtype=torch.float64)

    sent = add_normal(message, 1.0, stream())
    rows = add_normal(torch.zeros(2, 2, dtype=torch.float64), scales, stream())

    assert torch.isnan(sent).tolist() == [[False, True], [False, False]]
    torch.testing.assert_close(rows, scales * standard_normal((2, 2), stream()), rtol=0, atol=1e-8)
    assert torch.equal(add_normal(message, 0.0, stream()), message) or bool(torch.isnan(message).any())
    assert add_laplace(torch.zeros(0, 3), 1.0, stream()).shape == (0, 3)


def test_a_seeded_generator_gives_what_it_gave() -> None:
    seeded = torch.Generator().manual_seed(3)
    noise = standard_laplace((50, 2), torch.Generator().manual_seed(3))

    torch.testing.assert_close(add_laplace(torch.ones(50, 2), 2.0, seeded), (1 + 2 * noise).float(), rtol=0, atol=1e-6)


def test_secrets_draw_from_the_keystream_where_there_is_one() -> None:
    zeros = torch.zeros(10, 2, dtype=torch.float64)

    assert torch.equal(secrets(stream()).add_normal(zeros, 1.0), add_normal(zeros, 1.0, stream()))
    assert torch.equal(secrets(stream()).add_laplace(zeros, 1.0), add_laplace(zeros, 1.0, stream()))
    assert torch.equal(secrets(stream()).normal(3), standard_normal((3,), stream()))
    assert torch.equal(secrets(stream()).laplace(3), standard_laplace((3,), stream()))
    assert torch.equal(secrets(stream()).uniform(3), uniform((3,), stream()))
    assert torch.equal(secrets(None).normal(3), standard_normal((3,), torch.Generator().manual_seed(0)))


# In a chain of defenses.


def chain(defense: Defense, seed: int | None) -> DefenseChain:
    found = DefenseChain("activation" if isinstance(defense, GaussianIR) else "gradient", "shop")
    found.attach(defense, noise_seed_for_experiments=seed)
    return found


def apply(of: DefenseChain, message: Tensor) -> Tensor:
    return of.apply(message, step=0, ids=None, labels=None)


def test_without_a_seed_the_activation_is_sent_on_the_grid_of_its_noise() -> None:
    rows = torch.randn(200, 4, dtype=torch.float64, generator=GENERATOR)

    deployed = apply(chain(GaussianIR(clip=1.0, sigma=0.5), None), rows)
    experiment = apply(chain(GaussianIR(clip=1.0, sigma=0.5), 7), rows)

    assert on_grid(deployed, discrete_gaussian(0.5).grid)
    assert not on_grid(experiment, discrete_gaussian(0.5).grid)
    assert not torch.equal(deployed, apply(chain(GaussianIR(clip=1.0, sigma=0.5), None), rows))


def test_a_step_that_is_taken_again_from_its_state_repeats_its_noise() -> None:
    rows = torch.randn(40, 2, generator=GENERATOR)
    running = chain(GaussianIR(clip=1.0, sigma=0.5), None)
    apply(running, rows)
    state = running.state_dict()
    first = [apply(running, rows) for _ in range(3)]

    again = chain(GaussianIR(clip=1.0, sigma=0.5), None)
    again.load_state_dict(state)

    assert all(torch.equal(apply(again, rows), sent) for sent in first)
    assert not torch.equal(first[0], first[1])


def test_the_state_holds_a_stream_before_anything_was_drawn() -> None:
    of = chain(GaussianIR(clip=1.0, sigma=0.5), None)
    of.draw_generators(torch.device("cpu"))
    (state,) = of.state_dict().values()

    (seeded,) = chain(GaussianIR(clip=1.0, sigma=0.5), 7).state_dict().values()
    assert Keystream.from_state(state["keystream"]).position == 0
    assert seeded["keystream"] is None


def test_noise_on_residues_is_discrete_in_their_own_unit() -> None:
    gradient = torch.linspace(-0.4, 0.4, 64, dtype=torch.float64)[:, None] / 64

    sent = apply(chain(LaplaceResidue(epsilon=1.0), None), gradient)

    # Scale 2/ε on a residue, which is −64 times a row; 64 is a power of two.
    assert on_grid(-64 * sent, 2.0**-19)


def test_streams_by_key_and_purpose_have_nothing_in_common() -> None:
    key = b"k" * 32
    words = [keyed_stream(key, *about).words(50) for about in ((b"ab", b"c"), (b"a", b"bc"), (b"a",))]

    assert len(np.unique(np.concatenate(words))) == 150
    assert keyed_stream(key, b"a").words(50).tolist() == words[2].tolist()


def test_a_state_of_before_there_were_keystreams_draws_the_same_noise_each_time() -> None:
    chain = DefenseChain("activation", "bank")
    chain.attach(GaussianIR(clip=1.0, sigma=2.0))
    chain.draw_generators(torch.device("cpu"))
    state = chain.state_dict()
    for one in state.values():
        del one["keystream"]
    sent = []
    for _ in range(2):
        chain.load_state_dict(state)
        sent.append(chain.apply(torch.zeros(3, 2), step=0, ids=None, labels=None))

    assert torch.equal(sent[0], sent[1])
    chain.load_state_dict(chain.state_dict())  # and so does a checkpoint that was written since
    assert chain.state_dict()["gaussian-ir"]["keystream"] is None
