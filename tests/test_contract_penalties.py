"""What every built-in penalty must do. A new one is one more row in the table."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl import penalties
from splitvfl.config.docstrings import docstring_of
from splitvfl.config.registry import built_in
from splitvfl.hooks import HELD, Held, held_by, hook_name, penalise
from splitvfl.learning.sampled import Distribution
from tests.test_contract import through_disk

PENALTIES: dict[str, Callable[[], Any]] = {
    "adversarial-reconstruction": lambda: penalties.AdversarialReconstruction(records=16, hidden=4, steps=3),
    "distance-correlation": lambda: penalties.DistanceCorrelation(records=16),
    "mutual-information-bottleneck": penalties.MutualInformationBottleneck,
}
# Those that are no share, and those that draw nothing.
UNBOUNDED, DRAWING = {"mutual-information-bottleneck"}, {"adversarial-reconstruction", "distance-correlation"}

ROWS = 24
every = pytest.mark.parametrize("name", PENALTIES)


def batch(step: int = 0, *, rows: int = ROWS, generator: torch.Generator | None = None) -> tuple[Tensor, Held]:
    """An activation that tells the columns, and what a party holds of it."""
    random = torch.Generator().manual_seed(step)
    columns = torch.randn(rows, 3, generator=random)
    activation = torch.tanh(columns @ torch.ones(3, 4).tril()) + 0.1 * torch.randn(rows, 4, generator=random)
    held = Held(
        party="lab",
        step=step,
        ids=torch.arange(rows) * 7 - 3,
        columns=columns,
        categories=torch.zeros(rows, 0, dtype=torch.int64),
        generator=generator or torch.Generator().manual_seed(100 + step),
        distribution=Distribution(activation, activation.square() - 1.0),
    )
    return activation, held


def called(penalty: Any, activation: Tensor, held: Held) -> tuple[float, Tensor]:
    """Return a penalty, and its gradients by the activation and by what that was drawn from, side by side."""
    found = penalise(penalty, activation, held)
    none = [torch.zeros_like(activation, dtype=one.dtype) for one in (found.gradient, *found.by_distribution)]
    both = found.added_to_distribution(none[1:], 1.0)
    return found.value, torch.cat([found.added_to(none[0]), *(one.to(none[0].dtype) for one in both)], dim=1)


def largest(name: str) -> float:
    return math.inf if name in UNBOUNDED else 1.0 + 1e-6


def test_the_table_has_a_row_for_every_penalty() -> None:
    assert set(PENALTIES) == set(built_in("penalties"))


@every
def test_it_says_what_it_is_and_what_it_claims(name: str) -> None:
    penalty = PENALTIES[name]()
    said = docstring_of(type(penalty)).labelled
    assert hook_name(penalty) == name
    assert held_by(penalty) <= HELD
    assert {"Claim", "Works with", "Cost", "In a file", "Source"} <= said.keys()
    assert said["Claim"].startswith("no claim"), "none of them proves anything"
    call = inspect.getdoc(type(penalty).__call__) or ""
    assert "Args:" in call
    assert "Returns:" in call


@every
def test_settings_are_keyword_only_and_data_is_positional_only(name: str) -> None:
    factory = type(PENALTIES[name]())
    settings, data = (inspect.signature(one).parameters.values() for one in (factory, factory.__call__))
    assert all(setting.kind is inspect.Parameter.KEYWORD_ONLY for setting in settings)
    assert all(argument.kind is inspect.Parameter.POSITIONAL_ONLY for argument in list(data)[1:])


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_a_number_with_a_gradient_for_every_record_and_changes_nothing(name: str, dtype: torch.dtype) -> None:
    activation, held = batch()
    given = activation.to(dtype)
    before = given.clone(), held.columns, held.ids
    value, gradient = called(PENALTIES[name](), given, held)
    assert 0.0 <= value <= largest(name)
    assert gradient.shape == (ROWS, 3 * 4)
    assert gradient.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    for left, right in zip(before, (given, held.columns, held.ids), strict=True):
        assert torch.equal(left, right)


@every
@pytest.mark.parametrize("rows", [1, 2])
def test_a_small_batch_is_no_mistake(name: str, rows: int) -> None:
    value, gradient = called(PENALTIES[name](), *batch(rows=rows))
    assert 0.0 <= value <= largest(name)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", sorted(DRAWING))
def test_it_draws_from_the_partys_generator_and_nothing_else(name: str) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = called(PENALTIES[name](), *batch())
    again = called(PENALTIES[name](), *batch())
    other = called(PENALTIES[name](), *batch(generator=torch.Generator().manual_seed(9)))
    assert torch.equal(torch.get_rng_state(), state)
    assert first[0] == again[0]
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1]), "other records are drawn"


@every
def test_it_goes_on_from_its_saved_state(name: str) -> None:
    straight, first, resumed = (PENALTIES[name]() for _ in range(3))
    for step in (0, 1):
        called(straight, *batch(step))
        called(first, *batch(step))
    if hasattr(first, "state_dict"):
        resumed.load_state_dict(through_disk(first.state_dict()))
        resumed.load_state_dict(through_disk(resumed.state_dict()))  # before its first call
    for step in (2, 3):
        ours, theirs = (called(one, *batch(step)) for one in (straight, resumed))
        assert ours[0] == theirs[0]
        assert torch.equal(ours[1], theirs[1])


@every
def test_it_does_not_grow_with_the_batch(name: str) -> None:
    """It stands beside a mean loss: the same records twice are the same penalty, and half the gradient for each."""

    some: dict[str, Any] = {"records": 2 * ROWS} if name in DRAWING else {}
    options = {"hidden": 4, "lr": 1e-4} if name == "adversarial-reconstruction" else {}
    activation, held = batch()
    twice = Held(
        party="lab",
        step=0,
        ids=held.ids.repeat(2),
        columns=held.columns.repeat(2, 1),
        categories=held.categories.repeat(2, 1),
        generator=torch.Generator().manual_seed(100),
        distribution=Distribution(*(part.repeat(2, 1) for part in held.distribution)),
    )
    make = partial(built_in("penalties")[name], **some, **options)
    value, gradient = called(make(), activation, held)
    both, halves = called(make(), activation.repeat(2, 1), twice)
    assert both == pytest.approx(value, rel=1e-3)
    torch.testing.assert_close(halves[:ROWS] + halves[ROWS:], gradient, rtol=1e-2, atol=1e-5)
