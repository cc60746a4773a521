"""Columns and a clone by turns: beside a closed form, where first weights say much, and where they say nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.attacks import UnSplitAttack
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import View, call_attack, most_records_of
from splitvfl.leakage.architecture import architecture_of

RECORDS, COLUMNS, MESSAGES = 32, 4, 8


class Near(nn.Linear):
    """A layer that begins as the identity."""

    def reset_parameters(self) -> None:
        nn.init.eye_(self.weight)
        nn.init.zeros_(self.bias)


def near() -> nn.Linear:
    return Near(COLUMNS, COLUMNS)


def drawn() -> nn.Linear:
    return nn.Linear(COLUMNS, COLUMNS)


def trained(make: Callable[[], nn.Linear], seed: int) -> nn.Linear:
    """A layer that training has moved by a fifth of a standard deviation in each weight."""
    torch.manual_seed(seed)
    layer = make()
    with torch.no_grad():
        layer.weight += 0.2 * torch.randn(COLUMNS, COLUMNS)
    return layer


def view(sent: Tensor, bottom: nn.Module, step: int = 0) -> View:
    fresh = architecture_of(bottom, 7)
    return View(
        party="clinic", step=step, ids=torch.arange(len(sent)), received_activation=sent, partner_architecture=fresh
    )


def shares(bottom: nn.Module, seed: int, send: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Share of each column's variance, which is 1, over messages: below 0 where the mean is nearer."""
    attack, random, off = UnSplitAttack(), torch.Generator().manual_seed(seed), []
    for step in range(MESSAGES):
        truth = torch.randn(RECORDS, COLUMNS, generator=random)
        with torch.no_grad():
            sent = (send or bottom)(truth)
        off.append((call_attack(attack, view(sent, bottom, step)) - truth).square().mean(dim=0))
    return 1 - torch.stack(off).mean(dim=0)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow(reason="another seed"))])
def test_what_first_weights_nearly_are_is_read(seed: int) -> None:
    """Four columns. Of seeds 0 to 3, last ten of 20 messages: .76 to .86; the first three .84 to .94."""
    assert shares(trained(near, seed), seed).mean() > 0.7


@pytest.mark.slow(reason="hundreds of steps for each of many messages, in two seeds")
def test_behind_first_weights_that_are_drawn_it_reads_next_to_nothing() -> None:
    """It finds columns that would be sent so, and not these. Of seeds 0 to 3: .01 to .28 of variance, each column >= 0.

    That is chance: the clone's layer and the partner's are alike in a column or two of four.
    """
    found = [shares(trained(drawn, seed), seed).clamp_min(0).mean() for seed in (0, 2)]
    assert torch.stack(found).mean() < 0.2


@pytest.mark.slow(reason="an attack that is trained")
def test_where_nothing_is_told_nothing_is_read() -> None:
    random = torch.Generator().manual_seed(5)
    noise = shares(trained(near, 0), 0, lambda given: torch.randn(given.shape, generator=random))
    assert noise.max() < 0.05


class Mixing(nn.Module):
    """A layer that has no weights to be estimated."""

    in_features = COLUMNS
    mixture = torch.randn(COLUMNS, 3, generator=torch.Generator().manual_seed(1))

    def forward(self, columns: Tensor) -> Tensor:
        return columns @ self.mixture


@pytest.mark.slow(reason="two hundred rounds, until it settles")
def test_of_an_architecture_without_weights_columns_are_those_of_least_squares() -> None:
    """``min |xA − a|² / V + 0.01 |x|² / d``, with V the outputs' variance in sum, has a closed form."""
    truth = torch.randn(RECORDS, COLUMNS, generator=torch.Generator().manual_seed(2))
    mixture = Mixing.mixture.double()
    sent = truth.double() @ mixture
    kept = 0.01 * sent.var(dim=0, correction=0).sum() / COLUMNS * torch.eye(COLUMNS, dtype=torch.float64)
    expected = sent @ mixture.T @ torch.linalg.inv(mixture @ mixture.T + kept)
    found = call_attack(UnSplitAttack(rounds=200), view(sent.float(), Mixing()))
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)  # in float32, by steps of .05 that settle


def test_the_weights_of_the_partner_do_not_matter() -> None:
    sent = torch.randn(RECORDS, COLUMNS, generator=torch.Generator().manual_seed(0))
    one, other = (call_attack(UnSplitAttack(), view(sent, trained(near, seed))) for seed in (0, 1))
    assert torch.equal(one, other)


def test_it_goes_on_from_its_saved_state() -> None:
    bottom = trained(drawn, 0)
    messages = [torch.randn(8, COLUMNS, generator=torch.Generator().manual_seed(step)) for step in range(4)]
    undisturbed, first, resumed = (UnSplitAttack(rounds=2) for _ in range(3))
    for sent in messages[:2]:
        call_attack(undisturbed, view(sent, bottom))
        call_attack(first, view(sent, bottom))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for sent in messages[2:]:
        expected = call_attack(undisturbed, view(sent, bottom))
        assert torch.equal(call_attack(resumed, view(sent, bottom)), expected)
    assert not torch.equal(call_attack(UnSplitAttack(rounds=2), view(messages[3], bottom)), expected)


class Counting(nn.Module):
    def forward(self, columns: Tensor) -> Tensor:
        return columns


def test_an_architecture_that_does_not_say_how_many_columns_it_takes_is_refused() -> None:
    with pytest.raises(AttackRefused, match="says how many columns it takes"):
        call_attack(UnSplitAttack(), view(torch.randn(8, COLUMNS), Counting()))


class Blind(Counting):
    in_features = COLUMNS

    def forward(self, columns: Tensor) -> Tensor:
        return columns.detach().round()


def test_an_architecture_that_passes_no_gradient_on_is_refused() -> None:
    with pytest.raises(AttackRefused, match="passes no gradient on to its columns"):
        call_attack(UnSplitAttack(), view(torch.randn(8, COLUMNS), Blind()))


def test_it_asks_for_few_records() -> None:
    assert most_records_of(UnSplitAttack(records=7)) == 7


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"records": 0}, "records must be 1 to 10,000, got 0"),
        ({"rounds": 0}, "rounds must be 1 to 1,000, got 0"),
        ({"steps": 1_001}, "steps must be 1 to 1,000, got 1001"),
    ],
)
def test_settings_have_limits(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        UnSplitAttack(**settings)
