"""Defenses of published scores: what they keep, by how much they move scores, and what least squares then misses."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import scipy.linalg
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.attacks import equations, least_squares
from splitvfl.defenses import ClassLabel, Purification, ScoreNoise, TopOne, noise_direction
from splitvfl.defenses.score_noise import as_classes, scheme_noise, unit_direction, with_noise
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets

DTYPES = st.sampled_from([torch.float32, torch.float64])


def secrets(seed: int = 0) -> Secrets:
    return Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(seed))


@st.composite
def scores_of_classes(draw: st.DrawFn) -> Tensor:
    """Softmax scores, of which some are level with others, or next to it, or 0."""
    k = draw(st.integers(2, 6))
    logits = draw(st.lists(st.lists(st.sampled_from([0.0, 1.0, 1.0 + 1e-7, 3.0, -40.0]), min_size=k, max_size=k)))
    rows = torch.tensor(logits, dtype=torch.float64).reshape(-1, k)
    noise = torch.rand(rows.shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return torch.softmax(rows + draw(st.sampled_from([0.0, 1e-16, 1.0])) * noise, dim=1).to(draw(DTYPES))


@st.composite
def directions(draw: st.DrawFn, k: int) -> list[float]:
    found = draw(st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.3, -2.0]), min_size=k, max_size=k))
    assume(any(found))
    return found


def in_front(scores: Tensor) -> Tensor:
    return scores == scores.max(dim=1, keepdim=True).values


# --- schemes


@given(scores=scores_of_classes(), scheme=st.sampled_from([1, 2, 3]), power=st.floats(0.01, 100), data=st.data())
def test_the_classes_in_front_stay_and_the_power_is_kept(
    scores: Tensor, scheme: int, power: float, data: st.DataObject
) -> None:
    direction = None if scheme == 3 else data.draw(directions(scores.shape[1]))
    defense = ScoreNoise(scheme=scheme, power=power, direction=direction)  # type: ignore[arg-type]

    sent = defense(scores, secrets())

    assert torch.equal(in_front(sent), in_front(scores))
    assert sent.dtype == scores.dtype
    torch.testing.assert_close(sent.sum(dim=1).double(), torch.ones(len(scores)).double(), rtol=0, atol=1e-6)
    noise = scheme_noise(as_classes(scores), scheme, power=power, direction=defense.direction)  # type: ignore[arg-type]
    assert (noise.square().sum(dim=1) <= power * (1 + 1e-12)).all()


@given(
    c=st.lists(st.sampled_from([0.0, 0.5, 0.5 - 1e-9, 1e-20, 1.0, 0.7, 0.2]), max_size=6),
    scheme=st.sampled_from([1, 2, 3]),
    power=st.floats(0.01, 50),
    dtype=DTYPES,
)
def test_a_sigmoid_stays_on_its_side_of_one_half(c: list[float], scheme: int, power: float, dtype: torch.dtype) -> None:
    scores = torch.tensor(c, dtype=dtype)

    direction = None if scheme == 3 else [-1.0, 1.0]
    sent = ScoreNoise(scheme=scheme, power=power, direction=direction)(scores, secrets())  # type: ignore[arg-type]

    assert torch.equal((sent - 0.5).sign(), (scores - 0.5).sign())


@given(seed=st.integers(0, 300), k=st.integers(2, 7), power=st.floats(0.1, 9))
def test_the_schemes_are_what_the_specification_says(seed: int, k: int, power: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.softmax(torch.randn(4, k, generator=generator, dtype=torch.float64), dim=1)
    v = unit_direction(torch.randn(k, generator=generator, dtype=torch.float64))
    root = math.sqrt(power)
    for row in scores:
        best = int(row.argmax())
        sign = math.copysign(1.0, v[best])
        expected = {
            1: [root * abs(v[i]) * (1 if i == best else -1) for i in range(k)],
            2: [min(root * sign * v[i], root * sign * v[best]) for i in range(k)],
            3: [root * (i == best) for i in range(k)],
        }
        for scheme, noise in expected.items():
            found = scheme_noise(row[None], scheme, power=power, direction=v)  # type: ignore[arg-type]
            torch.testing.assert_close(found[0], torch.tensor(noise, dtype=torch.float64), rtol=0, atol=1e-12)
            logits = row.log() + torch.tensor(noise, dtype=torch.float64)
            moved = logits.exp() / logits.exp().sum()
            torch.testing.assert_close(with_noise(row[None], found)[0], moved, rtol=0, atol=1e-14)


@given(k=st.integers(2, 6), d=st.integers(1, 8), seed=st.integers(0, 200))
def test_the_gain_is_that_of_theorem_4_and_no_direction_has_more(k: int, d: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(k, d, generator=generator, dtype=torch.float64)
    x = torch.rand(300, d, generator=generator, dtype=torch.float64)
    logits, power = x @ weight.T, 0.04
    J = torch.diff(torch.eye(k, dtype=torch.float64), dim=0)
    moved = torch.from_numpy(scipy.linalg.pinv((J @ weight).numpy(), rtol=1e-10)) @ J

    v, gain = noise_direction(weight)

    assert torch.linalg.vector_norm(v).item() == pytest.approx(1.0)
    assert (moved @ v).square().sum().item() / d == pytest.approx(gain, rel=1e-9)
    other = unit_direction(torch.randn(k, generator=generator, dtype=torch.float64))
    assert (moved @ other).square().sum().item() / d <= gain * (1 + 1e-9)
    # Seen through the defense and the attack: a coin decides the sign, and every sign has the same gain.
    plain = torch.softmax(logits, dim=1)
    sent = ScoreNoise(scheme="optimum", power=power, direction=v.tolist())(plain, secrets(seed))
    zeros = torch.zeros_like(plain)
    before, after = (least_squares(*equations(scores, zeros, weight)) - x for scores in (plain, sent))
    crossed = 2 * (before * (after - before)).sum(dim=1).mean() / d
    raised = (after.square() - before.square()).mean().item()
    # Records' own errors are at right angles to the noise, where A has full row rank or J is the attacker's own.
    assert crossed.item() == pytest.approx(0.0, abs=1e-6 * max(1.0, gain))
    assert raised == pytest.approx(power * gain, rel=1e-5, abs=1e-9)


def test_the_direction_of_a_sigmoid_is_the_difference_of_its_classes() -> None:
    weight = torch.tensor([3.0, -4.0])

    v, gain = noise_direction(weight)

    torch.testing.assert_close(v.abs(), torch.full((2,), math.sqrt(0.5), dtype=torch.float64))
    assert v.sum().item() == pytest.approx(0.0, abs=1e-12)
    assert gain == pytest.approx(2 / 25 / 2)  # n = (-1, 1)/√2 moves the logit by √2, and x by √2/5


def test_the_optimum_tosses_a_fair_coin_for_every_record() -> None:
    scores = torch.full((4000, 3), 1 / 3, dtype=torch.float64)
    sent = ScoreNoise(scheme="optimum", power=1.0, direction=[1.0, 0.0, -1.0])(scores, secrets())

    # Half of them go up; 4000 coins have a standard deviation of 32.
    assert abs(int((sent[:, 0] > sent[:, 2]).sum()) - 2000) < 130


# --- the class alone, the first alone, a map


@given(scores=scores_of_classes(), epsilon=st.floats(0.0, 0.16))
def test_the_class_label_tells_the_class_and_nothing_else(scores: Tensor, epsilon: float) -> None:
    sent = ClassLabel(epsilon=epsilon)(scores, secrets())

    top, k = in_front(scores), scores.shape[1]
    assert torch.equal(in_front(sent), top)
    for row, told in zip(top, sent.double(), strict=True):
        first = (1 - (k - int(row.sum())) * epsilon) / int(row.sum())
        expected = torch.where(row, first, epsilon).double()
        torch.testing.assert_close(told, expected, rtol=1e-6, atol=1e-7)


@given(scores=scores_of_classes())
def test_the_first_score_stays_and_the_others_are_level(scores: Tensor) -> None:
    sent, top = TopOne()(scores, secrets()), in_front(scores)

    assert torch.equal(in_front(sent), top)
    torch.testing.assert_close(sent[top], scores[top], rtol=1e-6, atol=0)
    torch.testing.assert_close(sent.sum(dim=1), scores.sum(dim=1), rtol=1e-5, atol=0)
    for row, others in zip(sent, ~top, strict=True):
        assert row[others].unique().numel() <= 1


def test_two_classes_have_nothing_to_hide_behind_the_first() -> None:
    scores = torch.tensor([0.2, 0.9, 0.5])
    torch.testing.assert_close(TopOne()(scores, secrets()), scores)
    torch.testing.assert_close(ClassLabel(epsilon=0.1)(scores, secrets()), torch.tensor([0.1, 0.9, 0.5]))


@given(scores=scores_of_classes(), temperature=st.floats(0.2, 20))
def test_a_temperature_keeps_the_class(scores: Tensor, temperature: float) -> None:
    sent = Purification(temperature=temperature)(scores, secrets())

    assert torch.equal(in_front(sent), in_front(scores))
    expected = scores.double() ** (1 / temperature)
    expected = expected / expected.sum(dim=1, keepdim=True)
    torch.testing.assert_close(sent.double(), expected, rtol=1e-4, atol=1e-6)


class Mapped(Purification):
    """A map of one's own, as a user writes it."""

    def __init__(self, purified: Callable[[Tensor], Tensor]) -> None:
        super().__init__(temperature=1.0)
        self.purified = purified  # type: ignore[method-assign]


def test_a_map_of_ones_own_is_applied_and_checked() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])

    smoothed = Mapped(lambda c: 0.5 * c + 0.5 / c.shape[1])(scores, secrets())

    torch.testing.assert_close(smoothed, 0.5 * scores + 0.5 / 3)
    with pytest.raises(ArgumentError, match="keep the predicted class, and it changes 1 of 2"):
        Mapped(lambda c: c.flip(1).roll(1, 1))(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]]), secrets())
    with pytest.raises(ArgumentError, match="sum to one, and 2 of 2"):
        Mapped(lambda c: c / 2)(scores, secrets())
    with pytest.raises(ArgumentError, match=r"scores \(2, 3\), got \(2, 2\)"):
        Mapped(lambda c: c[:, :2])(scores, secrets())


# --- bad input


def test_bad_settings_are_told() -> None:
    for settings, message in (
        ({"scheme": 4, "power": 1.0}, "scheme must be 1, 2, 3 or optimum"),
        ({"scheme": True, "power": 1.0}, "scheme must be"),
        ({"scheme": 2, "power": 1.0}, "scheme 2 needs a direction"),
        ({"scheme": "optimum", "power": 1.0}, "needs a direction"),
        ({"scheme": 3, "power": 0.0}, "power must be positive"),
        ({"scheme": 3, "power": 1.0, "direction": [1.0, 0.0]}, "scheme 3 adds noise to the predicted class alone"),
        ({"scheme": 1, "power": 1.0, "direction": [0.0, 0.0]}, "direction: expected"),
        ({"scheme": 1, "power": 1.0, "direction": [1.0]}, "two where a model has one logit"),
        ({"scheme": 1, "power": 1.0, "direction": [math.nan, 0.0]}, "direction: expected"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ScoreNoise(**settings)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="each of 3 classes, got 2"):
        ScoreNoise(scheme=1, power=1.0, direction=[1.0, 2.0])(torch.full((1, 3), 1 / 3), secrets())
    with pytest.raises(ArgumentError, match=r"below 1 / 3"):
        ClassLabel(epsilon=0.4)(torch.full((1, 3), 1 / 3), secrets())
    with pytest.raises(ArgumentError, match="epsilon must lie"):
        ClassLabel(epsilon=0.5)
    with pytest.raises(ArgumentError, match="temperature must be"):
        Purification(temperature=0.0)
    for bad in (torch.tensor([1.1]), torch.tensor([[math.nan, 0.5]]), torch.zeros(1, 2), torch.zeros(1, 2, 2)):
        with pytest.raises(ArgumentError, match=r"expected scores in \[0, 1\]"):
            TopOne()(bad, secrets())
    with pytest.raises(ArgumentError, match="the same weights"):
        noise_direction(torch.ones(3, 2))
    with pytest.raises(ArgumentError, match="expected finite weights"):
        noise_direction(torch.ones(1, 2))
