"""Memoised noise on scores: what averages out of fresh noise stays, and what is said of its limits is so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.claims import Claim, PerRecord
from splitvfl.cut.chain import DefenseChain
from splitvfl.defenses import GaussianIR, Rounding, ScoreNoise, noise_direction
from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.exchange.prediction import predict
from splitvfl.hooks import Secrets
from splitvfl.party.memoised import MemoisedNoise, defended_scores
from tests.builders import generator
from tests.exchange.test_scoring import linear_parties

KEY = bytes(range(32))
POWER = 4.0
RECORDS, CLASSES, COLUMNS = 200, 3, 5


class Gaussian:
    """Gaussian noise on scores, drawn as a hook should."""

    crossing = "scores"
    name = "gaussian-scores"

    def __init__(self, sigma: float = 0.1) -> None:
        self.sigma = sigma

    def __call__(self, scores: Tensor, secrets: Secrets, /) -> Tensor:
        return secrets.add_normal(scores, self.sigma)


def chain(*defenses: Any) -> DefenseChain:
    made = DefenseChain("scores", "notary")
    for defense in defenses:
        made.attach(defense)
    return made


def softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, dim=1)


def answered(
    defenses: DefenseChain, logits: Tensor, noise: MemoisedNoise | None, *, step: int = 0, ids: Tensor | None = None
) -> Tensor:
    return defended_scores(defenses, noise, logits, softmax, step=step, ids=ids)


class World:
    """A partner's columns and weights, which the label party knows, and the logits of its records."""

    def __init__(self) -> None:
        draw = generator(0)
        self.columns = torch.rand(RECORDS, COLUMNS, generator=draw, dtype=torch.float64)
        self.weight = torch.randn(CLASSES, COLUMNS, generator=draw, dtype=torch.float64)
        self.own = torch.randn(RECORDS, CLASSES, generator=draw)
        self.direction, self.gain = noise_direction(self.weight)
        self.J = torch.diff(torch.eye(CLASSES, dtype=torch.float64), dim=0)
        self.solve = torch.linalg.pinv(self.J @ self.weight)

    @property
    def noisy(self) -> DefenseChain:
        return chain(ScoreNoise(scheme="optimum", power=POWER, direction=self.direction.tolist()))

    def logits(self, own: Tensor) -> Tensor:
        return (self.columns @ self.weight.T).float() + own

    def error(self, scores: Sequence[Tensor], own: Sequence[Tensor]) -> float:
        """MSE per column, beside what the same estimate has without noise, of least squares on the mean of answers."""
        mean = torch.stack([one.double().log() - part.double() for one, part in zip(scores, own, strict=True)]).mean(0)
        truth = self.columns @ self.weight.T
        return ((mean - truth) @ self.J.T @ self.solve.T).square().mean().item()


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def test_the_mean_of_predictions_has_the_less_of_fresh_noise_the_more_there_are(world: World) -> None:
    """Theorem 4's noise raises the error by ``t σ₁² / d``, and the mean of m of them by a share 1/m of that."""
    defenses, logits = world.noisy, world.logits(world.own)
    answers = [answered(defenses, logits, None) for _ in range(64)]

    for looks in (1, 4, 16, 64):
        found = world.error(answers[:looks], [world.own] * looks)
        # Squares of sums of coins over 200 records have a relative standard deviation of at most √(2/200) = .1.
        assert found == pytest.approx(POWER * world.gain / looks, rel=0.4)


def test_two_different_answers_of_a_coin_tell_the_middle(world: World) -> None:
    defenses, logits = world.noisy, world.logits(world.own)
    first, *rest = (answered(defenses, logits, None).double().log() for _ in range(16))
    other = first
    for one in rest:
        other = torch.where((one - first).abs().amax(dim=1, keepdim=True) > 1e-3, one, other)
    seen_both = (other != first).any(dim=1)
    assert seen_both.sum() > 195  # all but one in 2^15
    middle = ((first + other) / 2)[seen_both] @ world.J.T
    torch.testing.assert_close(middle, logits.double()[seen_both] @ world.J.T, rtol=0, atol=1e-4)


def test_the_mean_of_predictions_has_all_of_memoised_noise(world: World) -> None:
    logits, noise = world.logits(world.own), MemoisedNoise(KEY)
    # A process, a chain and an order of its own each time.
    answers = []
    for look in range(4):
        order = torch.randperm(RECORDS, generator=generator(look))
        found = torch.empty(RECORDS, CLASSES)
        for start in range(0, RECORDS, 90 + look):
            rows = order[start : start + 90 + look]
            found[rows] = answered(world.noisy, logits[rows], noise, step=start, ids=rows + 1000 * look)
        answers.append(found)

    assert all(torch.equal(one, answers[0]) for one in answers)
    for looks in (1, 4):
        assert world.error(answers[:looks], [world.own] * looks) == pytest.approx(POWER * world.gain, rel=1e-3)


def test_who_changes_its_own_part_takes_the_mean_of_memoised_noise_too(world: World) -> None:
    """Each change is another value: looks that can be counted, and cannot be told from a record that has changed."""
    looks = [world.own + 1e-3 * look for look in range(8)]
    looks = [own * torch.tensor([1.0, 1.001, 1.0]) ** look for look, own in enumerate(looks)]
    answers = [answered(world.noisy, world.logits(own), MemoisedNoise(KEY)) for own in looks]

    assert world.error(answers, looks) == pytest.approx(POWER * world.gain / 8, rel=0.4)


def test_values_that_differ_in_a_bit_have_independent_noise() -> None:
    """With the same noise, the difference of two answers would be the change of the record without any."""
    logits = torch.randn(RECORDS, CLASSES, generator=generator(1))
    noise, defenses = MemoisedNoise(KEY), chain(Gaussian(0.1))
    changed = torch.nextafter(logits, torch.full_like(logits, 9.0))

    before, after = (answered(defenses, one, noise) - softmax(one) for one in (logits, changed))

    # 600 products of independent numbers: a standard deviation of 1/√600 = .04.
    assert abs(torch.corrcoef(torch.stack([before.flatten(), after.flatten()]))[0, 1]) < 0.2
    assert (before - after).std().item() == pytest.approx(0.1 * 2**0.5, rel=0.15)


def test_noise_of_one_key_is_that_of_the_law(world: World) -> None:
    logits = torch.randn(RECORDS, CLASSES, generator=generator(2))
    added = answered(chain(Gaussian(0.1)), logits, MemoisedNoise(KEY)) - softmax(logits)
    assert added.mean().abs() < 4 * 0.1 / (RECORDS * CLASSES) ** 0.5
    assert added.std().item() == pytest.approx(0.1, rel=0.15)
    assert abs(torch.corrcoef(added.T)[0, 1]) < 0.3  # the numbers of a row


def test_noise_follows_from_the_key_the_settings_the_place_and_the_value_alone() -> None:
    logits = torch.tensor([[0.5, -0.0, 1.0]])

    def found(noise: MemoisedNoise, *defenses: Any, step: int = 0, values: Tensor = logits) -> Tensor:
        return answered(chain(*(defenses or (Gaussian(),))), values, noise, step=step)

    first = found(MemoisedNoise(KEY))
    assert torch.equal(found(MemoisedNoise(KEY), step=7, values=logits + 0.0), first), "the two zeros are one number"
    others = [
        found(MemoisedNoise(KEY[::-1])),
        found(MemoisedNoise(KEY, b"other settings")),
        found(MemoisedNoise(KEY).about(b"")),
        found(MemoisedNoise(KEY).about(b"v")),
        found(MemoisedNoise(KEY), Rounding(decimals=7), Gaussian()),  # rounded first, by less than this asks for
    ]
    assert all(not torch.equal(one, first) for one in others[:4])
    torch.testing.assert_close(others[4], first, rtol=0, atol=1e-6)
    twice = found(MemoisedNoise(KEY), Gaussian(), Gaussian())
    assert not torch.allclose(twice - first, first - softmax(logits)), "two of a kind have two noises"


def test_records_with_the_same_logits_have_the_same_answer() -> None:
    """Which everybody sees who gets the answers: no claim of one record by itself holds."""
    logits = torch.tensor([[0.5, -1.0, 1.0]]).repeat(3, 1)
    found = answered(chain(Gaussian()), logits, MemoisedNoise(KEY), ids=torch.arange(3))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_whoever_has_the_key_can_check_guesses(world: World) -> None:
    logits, noise = world.logits(world.own), MemoisedNoise(KEY)
    answers = answered(chain(Gaussian()), logits, noise)
    shuffled = torch.randperm(RECORDS, generator=generator(3))

    guesses = answered(chain(Gaussian()), logits[shuffled], noise)

    equal = (answers[:, None] == guesses[None]).all(dim=2)
    assert torch.equal(shuffled[equal.int().argmax(dim=1)], torch.arange(RECORDS))
    assert equal.sum() == RECORDS


def test_noise_on_activations_is_drawn_anew_all_the_same() -> None:
    def found() -> Tensor:
        active, passives = linear_parties(("shop", "telecom"))
        passives["shop"].activation.attach(GaussianIR(clip=2.0, sigma=0.2), at=("prediction",))
        active.score_noise = MemoisedNoise(KEY)
        return predict(active, passives, scores_by="coordinator").scores

    assert not torch.equal(found(), found())


def test_a_chain_is_left_as_it_was() -> None:
    defenses = chain(Gaussian())
    defenses.draw_generators(torch.device("cpu"))
    before = defenses.state_dict()
    answered(defenses, torch.randn(2, 3), MemoisedNoise(KEY))
    after = defenses.state_dict()
    assert before["gaussian-scores"]["keystream"] == after["gaussian-scores"]["keystream"]
    assert torch.equal(before["gaussian-scores"]["generator"], after["gaussian-scores"]["generator"])


class Counting(Gaussian):
    """Keeps a state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class Claiming(Gaussian):
    """Says something of each record by itself."""

    def claims(self) -> tuple[Claim, ...]:
        return (PerRecord(),)


@pytest.mark.parametrize(
    ("defense", "words"), [(Counting(), "a state of its own"), (Claiming(), "records with the same logits")]
)
def test_defenses_that_would_break_their_word_are_refused(defense: Any, words: str) -> None:
    with pytest.raises(PrivacyError, match=words):
        answered(chain(defense), torch.randn(1, 3), MemoisedNoise(KEY))


def test_a_key_has_32_bytes_and_is_not_shown() -> None:
    with pytest.raises(ArgumentError, match="expected a key of 32 bytes, got 16"):
        MemoisedNoise(KEY[:16])
    assert KEY.hex() not in repr(MemoisedNoise(KEY))
    assert repr(KEY) not in repr(MemoisedNoise(KEY))


@pytest.mark.parametrize("scheme", [1, 2, 3, "optimum"])
def test_in_one_process_scores_are_the_same_at_every_scorer_and_in_every_batch(scheme: Any) -> None:
    def found(by: str, batch_size: int, noise: MemoisedNoise | None) -> Tensor:
        active, passives = linear_parties(("shop", "telecom"), task="multiclass")
        direction = None if scheme == 3 else [1.0, 2.0, -1.0]
        active.scores.attach(ScoreNoise(scheme=scheme, power=1.0, direction=direction))
        active.score_noise = noise
        scores = predict(active, passives, batch_size=batch_size, scores_by=by).scores
        assert not any(party.one_by_one for party in (active, *passives.values()))
        return scores

    expected = found("active", 5, MemoisedNoise(KEY))
    for by in ("coordinator", "shop", "telecom"):
        assert torch.equal(found(by, 24, MemoisedNoise(KEY)), expected)
    if scheme == "optimum":
        assert not torch.equal(found("active", 5, None), expected)
    else:  # nothing is drawn
        torch.testing.assert_close(found("active", 5, None), expected, rtol=1e-5, atol=1e-6)
