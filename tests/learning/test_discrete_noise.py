from __future__ import annotations

import copy
import json
import math
import pickle  # noqa: TID251 - what a user may do to it
from decimal import Decimal
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.learning import discrete_noise
from splitvfl.learning.discrete_noise import DiscreteNoise
from splitvfl.privacy import Keystream, discrete_gaussian, discrete_laplace
from tests.run.forked import FORKS, in_a_fork

KEY = bytes(range(32))
SCALES = [1.0, 1.5, 1.999]
NOISES = [make(scale) for make in (discrete_gaussian, discrete_laplace) for scale in SCALES]


def stream(position: int = 0) -> Keystream:
    return Keystream(KEY, position=position)


# The keystream.


def test_the_keystream_is_that_of_the_standard() -> None:
    # NIST SP 800-38A, F.5.5, AES-256 in counter mode: what two blocks of plaintext became, and the plaintext.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    cipher = bytes.fromhex("601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5")

    words = Keystream(key, position=counter).words(4)

    assert words.astype("<u8").tobytes() == bytes(a ^ b for a, b in zip(plain, cipher, strict=True))


def test_keys_come_from_the_operating_system() -> None:
    assert Keystream().words(4).tolist() != Keystream().words(4).tolist()


def test_positions_move_on_and_go_back() -> None:
    one = stream()
    whole = one.words(6).tolist()

    other = stream()
    assert other.words(2).tolist() + other.words(4).tolist() == whole
    assert stream(position=1).words(2).tolist() == whole[2:4]
    other.words(1)  # half a block is not used twice
    assert other.position == one.position + 1


def test_a_copy_of_a_stream_of_the_operating_systems_key_has_another() -> None:
    fresh = Keystream()
    fresh.words(3)
    for one in (fresh, Keystream.from_state(fresh.state())):
        frozen = pickle.dumps(one)
        assert bytes.fromhex(one.state()["key"]) not in frozen
        copies = [copy.copy(one), copy.deepcopy(one), pickle.loads(frozen), pickle.loads(frozen)]
        drawn = [other.words(4).tolist() for other in (one, *copies)]
        assert len({tuple(words) for words in drawn}) == 5
        assert [other.position for other in copies] == [2] * 4
        assert len({other.state()["key"] for other in (one, *copies)}) == 5


def test_a_copy_of_a_stream_of_a_given_key_goes_on_as_it_does() -> None:
    one = stream(position=5)
    copies = [copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
    words = one.words(4).tolist()
    assert [other.words(4).tolist() for other in copies] == [words] * 3


def drawn_around_a_fork() -> list[list[int]]:
    """Words of a child, its state's and those of its own child; and the parent's, of four streams."""
    fresh, given = Keystream(), stream()
    of_a_state = Keystream.from_state(fresh.state())
    before_use = Keystream()
    ones = (fresh, of_a_state, before_use, given)
    ones[0].words(3)

    def words() -> list[list[int]]:
        return [one.words(2).tolist() for one in ones]

    def of_child() -> list[list[int]]:
        kept = Keystream.from_state(before_use.state()).words(2).tolist()
        return [*in_a_fork(None, words), *words(), kept]

    return [*in_a_fork(None, of_child), *words()]


def test_a_forked_child_does_not_go_on_with_its_parents_stream() -> None:
    found = in_a_fork(FORKS, drawn_around_a_fork)
    grandchild, child, (kept,), parent = found[:4], found[4:8], found[8:9], found[9:]
    assert grandchild[3] == child[3] == parent[3]  # under a key that was given
    drawn = [words for one in (grandchild, child, parent) for words in one[:3]]
    assert len({tuple(words) for words in drawn}) == 9
    assert kept == child[2]  # a state is that of the process that asks for it


def test_the_state_goes_through_json_and_the_key_is_not_shown() -> None:
    one = stream()
    one.words(100)
    again = Keystream.from_state(json.loads(json.dumps(one.state())))

    assert again.words(9).tolist() == one.words(9).tolist()
    assert KEY.hex() not in repr(one)


@pytest.mark.parametrize("change", [{"key": "zz"}, {"key": "00"}, {"cipher": "RC4"}, {"position": "-1"}])
def test_a_state_that_is_none_is_refused(change: dict[str, str]) -> None:
    with pytest.raises((PrivacyError, ArgumentError)):
        Keystream.from_state(stream().state() | change)
    with pytest.raises(PrivacyError, match="no state of a keystream"):
        Keystream.from_state({})


# The law.


def exact_cdf(noise: DiscreteNoise, numbers: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The continuous law up to the right end of a number's interval, from scipy."""
    ends = (np.asarray(numbers, dtype=np.float64) + 0.5) * noise.grid / noise.scale
    return np.asarray(stats.norm.cdf(ends) if noise.law == "gaussian" else stats.laplace.cdf(ends))


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_draws_follow_the_exact_law(noise: DiscreteNoise) -> None:
    drawn = noise.draw(300_000, stream())

    # Equal probabilities: 2000 bins between the law's quantiles, their probabilities from scipy.
    law = stats.norm if noise.law == "gaussian" else stats.laplace
    edges = np.rint(law.ppf(np.arange(1, 2000) / 2000) * noise.scale / noise.grid)
    shares = np.diff(exact_cdf(noise, edges), prepend=0.0, append=1.0)
    counts = np.bincount(np.searchsorted(edges, drawn, side="left"), minlength=2000)
    assert stats.chisquare(counts, shares * drawn.size).pvalue > 1e-4
    # The grid is far below what so many draws resolve, so that the continuous law's test is as good.
    assert stats.kstest(drawn * noise.grid / noise.scale, law.cdf).pvalue > 1e-4


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_last_bits_and_signs_are_even(noise: DiscreteNoise) -> None:
    drawn = noise.draw(200_000, stream(7))

    # A strip has 2^12 places; a bias among them would show in the remainder.
    assert stats.chisquare(np.bincount(drawn & 4095, minlength=4096)).pvalue > 1e-4
    assert abs(np.sign(drawn).mean()) < 4 / math.sqrt(drawn.size)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_four_moments(noise: DiscreteNoise) -> None:
    drawn = noise.draw(300_000, stream(3)) * noise.grid / noise.scale

    # Moments 1 to 8 of the standard laws; the error of a mean of powers is known from those of twice the order.
    moments = {"gaussian": [0, 1, 0, 3, 0, 15, 0, 105], "laplace": [0, 2, 0, 24, 0, 720, 0, 40320]}[noise.law]
    for order in range(1, 5):
        error = math.sqrt((moments[2 * order - 1] - moments[order - 1] ** 2) / drawn.size)
        assert (drawn**order).mean() == pytest.approx(moments[order - 1], abs=4.5 * error)


@pytest.mark.slow(reason="millions of draws, of which three lie there")
@pytest.mark.parametrize("scale", SCALES)
def test_tails_beyond_five_deviations(scale: float) -> None:
    noise = discrete_gaussian(scale)
    drawn = noise.draw(6_000_000, stream(11))

    beyond = int((np.abs(drawn) * noise.grid > 5 * scale).sum())

    # 3.4 are expected: Poisson.
    expected = drawn.size * 2 * stats.norm.sf(5)
    assert stats.poisson.cdf(beyond, expected) > 1e-4
    assert stats.poisson.sf(beyond - 1, expected) > 1e-4


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", SCALES)
def test_every_piece_of_the_tail_has_the_law_too(law: Any, scale: float) -> None:
    noise = DiscreteNoise(law, scale)
    steps = scale / noise.grid
    # Of the Gaussian's third piece, beyond 9.75 deviations, nearly nothing is kept.
    for level in (1, 2) if law == "gaussian" else (1, 2, 3):
        table = discrete_noise._table(law, steps, level)
        source = stream(level)
        places, kept = discrete_noise._tried(table, source.words(150_000), source)

        above = stats.norm.sf if law == "gaussian" else stats.expon.sf
        below = stats.norm.isf if law == "gaussian" else stats.expon.isf
        start = above((table.start - 0.5) / steps)
        found = places[kept]
        assert found.min() >= table.start
        edges = np.rint(below(start * np.arange(39, 0, -1) / 40) * steps)
        shares = -np.diff(above((edges + 0.5) / steps), prepend=start, append=0.0) / start
        counts = np.bincount(np.searchsorted(edges, found, side="left"), minlength=40)
        assert stats.chisquare(counts, shares * found.size).pvalue > 1e-4


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_each_piece_of_the_tail_gets_its_share(noise: DiscreteNoise) -> None:
    # No strip is lower than the law, and a slot of one piece has the area of all slots of the next: so all is exact.
    steps = noise.scale / noise.grid
    levels = discrete_noise._LEVELS[noise.law]
    tables = [discrete_noise._table(noise.law, steps, level) for level in range(levels)]

    for table, following in zip(tables, [*tables[1:], None], strict=True):
        edges = table.start + 4096.0 * np.arange(len(table.slots) - 1)
        heights = table.slots[:-1] * table.unit / 4096
        half = 0.5 / steps
        shape = np.exp(-0.5 * (edges / steps) ** 2) if noise.law == "gaussian" else np.exp(-edges / steps)
        assert (heights >= shape * (1 + half**2)).all()
        assert int(table.slots[:-1].sum()) + table.beyond <= 2**16
        if following is None:
            assert table.beyond == 0
        else:
            assert table.beyond * table.unit == following.unit * 2**16
            assert following.start == table.start + 4096 * (len(table.slots) - 1)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("place", [0, 1, 2, 4095])
def test_a_place_of_the_first_strip_is_kept_as_often_as_it_should(law: Any, place: int) -> None:
    steps = 1.3 * 2.0**20
    table = discrete_noise._table(law, steps, 0)
    tests = np.linspace(0, 2**35 - 1, 4001).astype(np.uint64)
    words = (tests << np.uint64(29)) | np.uint64(place << 16)  # slot 0, which is the first strip's

    places, kept = discrete_noise._tried(table, words, stream())

    assert (places == place).all()
    height = float(discrete_noise._exact_height(law, Decimal(steps), place))  # half of the others' at 0
    assert kept.mean() == pytest.approx(height * 4096 / (int(table.slots[0]) * table.unit), abs=2 / 4001)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_tables_fit_for_every_scale(law: Any) -> None:
    for steps in 2.0**20 * np.random.default_rng(0).uniform(1, 2, 40):
        for level in range(discrete_noise._LEVELS[law]):
            table = discrete_noise._table(law, float(steps), level)
            held = int(table.slots[:-1].sum())
            assert held > 0
            assert held + table.beyond <= len(table.strips)


@pytest.mark.parametrize("place", [0, 1, 1000, 1_500_000, 9_000_000])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_heights_in_60_digits_equal_the_integral(law: Any, place: int) -> None:
    steps = 1_048_577.25
    with mpmath.workdps(70):
        exponent = (lambda y: -(y**2) / (2 * mpmath.mpf(steps) ** 2)) if law == "gaussian" else lambda y: -y / steps
        low = mpmath.mpf(place) - 0.5 if place else mpmath.mpf(0)
        slow = mpmath.quad(lambda y: mpmath.exp(exponent(y)), [low, mpmath.mpf(place) + 0.5])
        exact = discrete_noise._exact_height(law, Decimal(steps), place)

        # Decimal works with 28 digits outside of the sampler's own context.
        assert abs(mpmath.mpf(str(exact)) / slow - 1) < mpmath.mpf(10) ** -18


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_what_floating_point_leaves_open_decimal_numbers_decide_alike(
    law: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a margin a trillion times wider, hundreds of draws are decided in decimal numbers: all in the same way.
    noise = DiscreteNoise(law, 1.3)
    fast = noise._drawn(20_000, stream())
    calls: list[bool] = []
    decided = discrete_noise._decided
    monkeypatch.setattr(discrete_noise, "_MARGIN", 0.05)
    monkeypatch.setattr(discrete_noise, "_decided", lambda *of: calls.append(decided(*of)) or calls[-1])

    slow = noise._drawn(20_000, stream())

    # The first piece's words come first, so that these do not move; what follows in further pieces does.
    steps = noise.scale / noise.grid
    middle = discrete_noise._table(law, steps, 1).start
    inner = [drawn[np.abs(drawn) < middle] for drawn in (fast, slow)]
    assert inner[0].tolist() == inner[1].tolist()
    assert len(calls) > 100
    assert 0.1 < np.mean(calls) < 0.9


def test_probabilities_add_up_and_are_the_laws() -> None:
    for noise in NOISES:
        places = np.array([0, 1, 5, 10**6, 4 * 10**6])
        exact = exact_cdf(noise, places) - exact_cdf(noise, places - 1)

        # A difference of two numbers near 1 has ten digits less than they have.
        assert noise.probability(places) == pytest.approx(exact, rel=1e-6, abs=1e-15)
        assert noise.probability(-places) == pytest.approx(noise.probability(places))


# Noise that is added.


def on_grid(values: npt.NDArray[Any], grid: float) -> bool:
    return bool((np.mod(values / grid, 1.0) == 0.0).all())


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_outputs_of_both_worlds_lie_on_one_grid(noise: DiscreteNoise) -> None:
    for value in (0.0, 1.0, -math.pi, 1e-30, 1e6 / 3):
        sent = noise.add(np.full(100_000, value), stream())

        assert on_grid(sent, noise.grid)
    assert math.frexp(noise.grid)[0] == 0.5
    assert 2**20 <= noise.scale / noise.grid < 2**21


def test_torchs_laplace_noise_does_not_lie_on_one_grid() -> None:
    torch.manual_seed(0)
    sent = torch.distributions.Laplace(torch.tensor(0.0), torch.tensor(1.5)).sample((100_000,)).double().numpy()

    assert sent.dtype == np.float64
    assert not on_grid(sent, discrete_laplace(1.5).grid)


def test_added_noise_is_what_was_drawn_on_the_rounded_input() -> None:
    noise = discrete_gaussian(3.0)
    values = np.random.default_rng(0).normal(size=(50, 4)) * 100

    sent = noise.add(values, stream())

    drawn = noise.draw(200, stream()).reshape(50, 4)
    assert (sent == (np.rint(values / noise.grid) + drawn) * noise.grid).all()
    assert np.abs(np.rint(values / noise.grid) * noise.grid - values).max() <= noise.grid / 2


def test_steps_are_independent_and_a_step_that_is_repeated_repeats() -> None:
    noise = discrete_gaussian(1.0)
    source = stream()
    states, steps = [], []
    for _ in range(40):
        states.append(source.state())
        steps.append(noise.draw(20_000, source) * noise.grid)

    correlations = np.corrcoef(np.stack(steps))[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 4.8 / math.sqrt(20_000)  # of 780 pairs
    lagged = np.concatenate(steps)
    assert abs(np.corrcoef(lagged[1:], lagged[:-1])[0, 1]) < 4 / math.sqrt(lagged.size)
    again = noise.draw(20_000, Keystream.from_state(states[17])) * noise.grid
    assert (again == steps[17]).all()


def test_what_rounding_and_the_sampler_cost() -> None:
    gaussian, laplace = discrete_gaussian(1.0), discrete_laplace(1.0)

    assert gaussian.widened(2.0, 16) == 2.0 + 4 * 2.0**-20
    assert laplace.widened(2.0, 16) == 2.0 + 16 * 2.0**-20
    assert gaussian.distance == pytest.approx(2 * stats.norm.sf(13))
    assert laplace.distance == pytest.approx(math.exp(-80))


def test_noise_near_its_end_could_not_come_from_another_value() -> None:
    """Of a Gaussian within 13, what lies outside of one within 13 of a value that is s away: an end of the law."""
    noise = discrete_gaussian(1.0)
    for shift in (0.5, 4.0, 9.0):
        exact = stats.norm.sf(13 - shift) - stats.norm.sf(13)
        assert exact <= noise.unmatched(shift) <= 2.1 * exact  # the other end is counted too
    assert noise.unmatched(0.0) <= 4.1 * stats.norm.sf(13)
    assert noise.unmatched(13.0) == noise.unmatched(50.0) == 1.0
    assert math.exp(-79.5) <= discrete_laplace(2.0).unmatched(1.0) <= 1.01 * (math.exp(-79.5) + math.exp(-80))


def test_scales_may_be_tiny_or_huge() -> None:
    for scale in (1e-280, 1e-20, 1e20, 1e250):
        noise = discrete_gaussian(scale)
        assert (noise.add(np.zeros(20_000), stream()) / scale).std() == pytest.approx(1.0, rel=0.03)
    assert discrete_gaussian(1.0).draw(0, stream()).size == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: discrete_gaussian(0.0), "scale must be finite and above 0"),
        (lambda: discrete_laplace(math.nan), "scale must be finite"),
        (lambda: discrete_gaussian(1e-300), "expected a scale of noise from 1e-290"),
        (lambda: discrete_gaussian(1.0).add(np.array([math.nan]), stream()), "expected finite values"),
        (lambda: discrete_gaussian(1.0).add(np.array([1e10]), stream()), r"below 2\^31 times the scale"),
        (lambda: discrete_gaussian(1.0).widened(1.0, 0), "coordinates must be"),
        (lambda: discrete_gaussian(1.0).unmatched(-1.0), "shift must be at least 0"),
        (lambda: Keystream(b"short"), "expected a key of 32 bytes, got 5"),
        (lambda: Keystream(KEY, position=-1), "expected a position from 0"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
