"""Draws that are no independent ones: noise that the rows of a batch share, in claims that are true."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitvfl.audit import Surroundings
from splitvfl.audit.worlds import Stage, World
from splitvfl.claims import GaussianDP
from splitvfl.defenses import LaplaceResidue
from splitvfl.hooks import Secrets

WORLD = World(label=1.0, prediction=0.5)


class Shared:
    """Noise of every row's own, which is what is claimed, and more of it that all rows of a batch have alike."""

    name = "shared"
    crossing = "gradient"

    def __init__(self, offset: float = 0.0, spread: float = 0.0) -> None:
        self.offset, self.spread = offset, spread

    def claims(self) -> tuple[GaussianDP, ...]:
        return (GaussianDP(1.0),)

    def __call__(self, rows: Tensor, secrets: Secrets, /) -> Tensor:
        generator, each = secrets.generator, len(rows)
        wider = 1.0 + self.spread * torch.rand(1, generator=generator)
        own = wider * torch.randn(rows.shape, generator=generator)
        return rows + (own + self.offset * torch.randn(1, generator=generator)) / each


def stage(defense: object, seed: int = 0) -> Stage:
    return Stage(defense, Surroundings(width=1), seed=seed, rows=1_000)  # type: ignore[arg-type]  # a hook of its own


@pytest.mark.parametrize("defense", [Shared(offset=0.2), Shared(offset=5.0), Shared(spread=1.0)])
def test_rows_that_share_an_offset_or_a_scale_are_noticed(defense: Shared) -> None:
    assert stage(defense).dependence(WORLD).on_batch


@pytest.mark.parametrize("defense", [Shared(), LaplaceResidue(epsilon=1.0)])
def test_rows_with_noise_of_their_own_are_draws(defense: object) -> None:
    """In eight tries of one in a million each."""
    assert not any(any(stage(defense, seed).dependence(WORLD)) for seed in range(8))
