"""Pseudo-clients beside means, where columns differ in distribution, and where nothing tells one map from another."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.attacks import PseudoClientAttack
from splitvfl.attacks.pseudo_client import moments_apart
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Attack, Auxiliary, HookError, View, call_attack

Bottom = Callable[[Tensor], Tensor]
MESSAGES, RECORDS, KNOWN = 30, 80, 20


def columns(count: int, random: torch.Generator) -> Tensor:
    """A waiting time and a rare flag, each of variance 1 or so."""
    drawn = torch.rand(count, 2, generator=random)
    return torch.stack([-torch.log(drawn[:, 0]), 2.5 * (drawn[:, 1] < 0.2)], dim=1)


def views(bottom: Bottom, seed: int, *, shuffled: bool = False) -> Iterator[tuple[View, Tensor]]:
    """Messages of a model that stays, with other public rows in each; and the true columns."""
    random = torch.Generator().manual_seed(seed)
    for step in range(MESSAGES):
        truth = columns(RECORDS, random)
        sent, ids = bottom(truth), RECORDS * step + torch.arange(RECORDS)
        told = Auxiliary(sent[:KNOWN].flip(0) if shuffled else sent[:KNOWN], truth[:KNOWN], ids[:KNOWN])
        yield (
            View(party="clinic", step=step, ids=ids[KNOWN:], received_activation=sent[KNOWN:], auxiliary=told),
            truth[KNOWN:],
        )


def shares(attack: Attack, bottom: Bottom, seed: int) -> Tensor:
    """Share of each column's variance that the last ten messages give away: below 0 where the mean is nearer."""
    off = [(call_attack(attack, view) - truth).square().mean(dim=0) for view, truth in views(bottom, seed)]
    variance = columns(10_000, torch.Generator().manual_seed(0)).var(dim=0)
    return 1 - torch.stack(off[-10:]).mean(dim=0) / variance


def straight(seed: int) -> Bottom:
    weight = torch.randn(2, 2, generator=torch.Generator().manual_seed(100 + seed))
    return lambda given: given @ weight


def test_columns_that_differ_in_distribution_are_found_without_any_pair() -> None:
    """Behind one layer as wide as they are many. Of seeds 0 to 5 in five, .97 to 1.00."""
    assert shares(PseudoClientAttack(), straight(0), 0).min() > 0.9


@pytest.mark.slow(reason="two attacks on thirty messages")
def test_an_adversary_finds_them_too() -> None:
    """Of seeds 0 to 5 in four, .85 to .99."""
    assert shares(PseudoClientAttack(loss="adversary"), straight(4), 4).min() > 0.9


@pytest.mark.parametrize("loss", ["moments", "adversary"])
@pytest.mark.slow(reason="an attack that is trained")
def test_where_nothing_is_told_nothing_is_read(loss: Any) -> None:
    """Noise that has the columns' distribution: some map fits it, and its estimates are wrong by twice the variance."""
    random = torch.Generator().manual_seed(7)
    assert shares(PseudoClientAttack(loss=loss), lambda given: columns(len(given), random), 0).max() < 0.05


def test_which_activation_belongs_to_a_public_row_is_not_read() -> None:
    one, other = PseudoClientAttack(), PseudoClientAttack()
    paired, mixed = (list(views(straight(0), 0, shuffled=shuffled))[:4] for shuffled in (False, True))
    for (view, _), (again, _) in zip(paired, mixed, strict=True):
        assert not torch.equal(view.auxiliary.activation, again.auxiliary.activation)
        assert torch.equal(call_attack(one, view), call_attack(other, again))


class Knowing(nn.Module):
    """A top model of which the label is the first column, and that has learned to say it."""

    def __init__(self, undone: Tensor, labels: Tensor) -> None:
        super().__init__()
        self.undone, self.labels = undone, labels

    def forward(self, activation: Tensor) -> Tensor:
        return (activation @ self.undone - self.labels).square().mean()


@pytest.mark.slow(reason="two attacks on thirty messages")
def test_of_columns_that_are_distributed_alike_labels_say_which_is_which() -> None:
    """The label is the first column. Of seeds 0 to 5 it is found in all, .99 to 1.00, and without labels in none."""
    weight, found = torch.randn(2, 2, generator=torch.Generator().manual_seed(100)), {}
    for top_weight in (0.0, 1.0):
        attack, random, off = PseudoClientAttack(top_weight=top_weight), torch.Generator().manual_seed(0), []
        for step in range(MESSAGES):
            truth = -torch.log(torch.rand(RECORDS, 2, generator=random))
            sent, ids = truth @ weight, RECORDS * step + torch.arange(RECORDS)
            view = View(
                party="clinic",
                step=step,
                ids=ids[KNOWN:],
                received_activation=sent[KNOWN:],
                auxiliary=Auxiliary(sent[:KNOWN], truth[:KNOWN], ids[:KNOWN]),
                top=Knowing(torch.linalg.inv(weight)[:, 0], truth[:KNOWN, 0]),
            )
            off.append((call_attack(attack, view) - truth[KNOWN:])[:, 0].square().mean())
        found[top_weight] = 1 - torch.stack(off[-10:]).mean()
    assert found[0.0] < 0.0
    assert found[1.0] > 0.95


def test_what_kernels_say_is_their_mean_over_random_frequencies() -> None:
    """Beside exact kernels, pair by pair.

    The mean of 500 draws is off by 2 % or so: each draw is a mean of 80 waves, off by a third.
    """
    random = torch.Generator().manual_seed(0)
    made, given = torch.randn(3, 7, 2, generator=random), 1.0 + torch.rand(5, 2, generator=random)
    found = torch.stack([moments_apart(made, given, random) for _ in range(500)]).mean(dim=0)
    for one, value in zip(made, found, strict=True):
        spread = (torch.cov(one.T, correction=0) - torch.cov(given.T, correction=0)).square().sum()
        middle = (one.mean(dim=0) - given.mean(dim=0)).square().sum()
        kernels = sum(
            kernel(one, one, width).mean() + kernel(given, given, width).mean() - 2 * kernel(one, given, width).mean()
            for width in (0.25, 0.5, 1.0, 2.0, 4.0)
        )
        assert value.item() == pytest.approx(float(spread + middle + kernels), rel=0.07)


def kernel(one: Tensor, other: Tensor, width: float) -> Tensor:
    return torch.exp(-(one[:, None] - other[None]).square().sum(dim=2) / (2 * width))


def test_what_is_distributed_alike_is_nowhere_apart() -> None:
    rows = columns(30, torch.Generator().manual_seed(0))
    off = moments_apart(torch.stack([rows, rows.flip(0)]), rows, torch.Generator().manual_seed(0))
    assert off.abs().max() < 1e-6


@pytest.mark.parametrize("loss", ["moments", "adversary"])
def test_it_goes_on_from_its_saved_state(loss: Any) -> None:
    messages = [view for view, _ in views(straight(0), 0)][:5]
    undisturbed, first, resumed = (PseudoClientAttack(loss=loss, hidden=5, memory=50) for _ in range(3))
    for view in messages[:3]:
        call_attack(undisturbed, view)
        call_attack(first, view)
    resumed.load_state_dict(PseudoClientAttack(loss=loss).state_dict())
    saved = first.state_dict()
    call_attack(first, messages[3])  # what was saved stays what it was
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for view in messages[3:]:
        assert torch.equal(call_attack(undisturbed, view), call_attack(resumed, view))
    assert [len(part) for part in resumed.state_dict()["rows"]] == [50, 50, 50]


def test_seeds_are_its_own() -> None:
    view = next(iter(views(straight(0), 0)))[0]
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one = call_attack(PseudoClientAttack(), view)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.equal(one, call_attack(PseudoClientAttack(seed=1), view))


def test_one_public_row_is_too_few() -> None:
    view = next(iter(views(straight(0), 0)))[0]
    one = view.granting(auxiliary=Auxiliary(*(part[:1] for part in view.auxiliary)))
    with pytest.raises((ArgumentError, HookError), match="expected at least 2 public rows, got 1"):
        call_attack(PseudoClientAttack(), one)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"known_share": 0.0}, "known_share must be above 0 and below 1, got 0.0"),
        ({"loss": "both"}, "loss must be 'moments' or 'adversary', got 'both'"),
        ({"hidden": -1}, "hidden must be 0 to 1,024, got -1"),
        ({"memory": 1}, "memory must be 2 to 10,000 rows, got 1"),
        ({"steps": 0}, "steps must be 1 to 1,000, got 0"),
        ({"top_weight": -1.0}, "top_weight must be 0 to 1,000, got -1.0"),
    ],
)
def test_settings_have_limits(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        PseudoClientAttack(**settings)
