"""Secret batches: how draws are distributed, how likely one counts, and what a known support tells."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.exchange.selection import (
    KEY_BYTES,
    SecretBatch,
    epochs_for_success,
    run_success,
)
from splitvfl.privacy import sign_success, unknowns_for_success

KEY = bytes(range(KEY_BYTES))


def enumerated(drawn: SecretBatch, size: int, columns: int) -> float:
    """The probability of a draw that counts, over all bits that may be turned round."""
    ones, found = drawn.ones(size), 0.0
    for turned in itertools.product((False, True), repeat=size):
        sent = [(place < ones) != turn for place, turn in enumerate(turned)]
        used = sum(sent[:ones])
        if used and columns < sum(sent) < size:
            found += math.prod(1 - drawn.kept if turn else drawn.kept for turn in turned)
    return found


@pytest.mark.parametrize(("epsilon", "share"), [(0.5, 0.3), (2.0, 0.45), (5.0, 0.1)])
@pytest.mark.parametrize("columns", [1, 3, 8])
def test_the_probability_of_a_draw_that_counts_is_that_of_all_draws_together(
    epsilon: float, share: float, columns: int
) -> None:
    drawn = SecretBatch(epsilon, share)
    assert drawn.acceptance(10, columns) == pytest.approx(enumerated(drawn, 10, columns), abs=1e-12)


def test_bits_are_kept_as_often_as_epsilon_says_and_exactly_so_many_are_meant() -> None:
    drawn, size, rounds = SecretBatch(1.0, 0.3), 40, 4000
    meant, sent = (np.stack(bits) for bits in zip(*(drawn._bits(KEY, n, 0, size) for n in range(rounds)), strict=True))

    assert (meant.sum(axis=1) == 12).all()
    # Four standard errors of 160 000 bits, or of 4 000 for each place.
    assert (meant == sent).mean() == pytest.approx(math.e / (1 + math.e), abs=4 * math.sqrt(0.2 / (rounds * size)))
    assert np.allclose(meant.mean(axis=0), 0.3, rtol=0, atol=4.5 * math.sqrt(0.21 / rounds))
    turned = meant != sent
    assert turned[meant].mean() == pytest.approx(turned[~meant].mean(), abs=4 * math.sqrt(0.2 / 48_000 * 2))


def test_what_counts_is_used_hidden_and_fewer_than_all() -> None:
    drawn = SecretBatch(0.7, 0.2)
    draws = [drawn.draw(KEY, step, 12, [2, 5]) for step in range(300)]

    for one in draws:
        assert not (one.used & ~one.sent).any()
        assert 0 < one.used.sum() <= drawn.ones(12)
        assert 5 < one.sent.sum() < 12
    assert 0.2 < drawn.acceptance(12, 5) < 0.6  # so that many were drawn again


def test_a_step_is_drawn_again_alike_and_no_other_one_is() -> None:
    drawn = SecretBatch(1.0, 0.3)
    first, again, later = (drawn.draw(KEY, step, 64, [4]) for step in (3, 3, 4))
    other = drawn.draw(KEY[::-1], 3, 64, [4])

    assert torch.equal(first.sent, again.sent)
    assert torch.equal(first.used, again.used)
    assert not torch.equal(first.sent, later.sent)
    assert not torch.equal(first.sent, other.sent)


def test_draws_end_where_none_counts() -> None:
    with pytest.raises(PrivacyError, match=r"none of 128 draws for the 20 records of step 7 .* from 20 to 19"):
        SecretBatch(1.0, 0.3).draw(KEY, 7, 20, [3, 19])


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan, 1e-20, 40.0])
def test_an_epsilon_without_a_probability_between_one_half_and_one_is_refused(epsilon: float) -> None:
    with pytest.raises(ArgumentError, match=r"p = .* must be above ½ and below 1"):
        SecretBatch(epsilon, 0.3)


@pytest.mark.parametrize("share", [0.0, -0.1, 0.5, 0.7, math.nan])
def test_a_share_that_is_not_below_one_half_is_refused(share: float) -> None:
    with pytest.raises(ArgumentError, match="above 0 and below ½"):
        SecretBatch(1.0, share)


def test_remedies_do_what_they_say_and_smaller_batches_do_not() -> None:
    drawn, columns = SecretBatch(3.0, 0.1), 20
    assert not drawn.is_likely(100, columns)
    batch, share, epsilon = drawn.remedies(100, columns)

    size = int(batch.rpartition("from ")[2].split()[0])
    assert drawn.is_likely(size, columns)
    assert not drawn.is_likely(size - 1, columns)
    assert SecretBatch(3.0, float(share.split()[-1])).is_likely(100, columns)
    assert SecretBatch(float(epsilon.split()[1]), 0.1).is_likely(100, columns)
    assert not [one for one in drawn.remedies(21, columns, records=22) if "batch_size" in one]


@pytest.mark.parametrize(("used", "sent"), [(16, 40), (32, 70), (32, 90), (8, 15), (2, 50), (99, 101), (3, 5)])
def test_a_draw_for_given_sizes_uses_and_sends_as_many_on_average(used: int, sent: int) -> None:
    drawn, size = SecretBatch.for_sizes(used, sent)
    ones = drawn.ones(size)

    # Expectations of two independent binomials, and the paper's equations solved for them.
    assert drawn.expected_used(size) == pytest.approx(used, rel=1e-12)
    assert (size - ones) * (1 - drawn.kept) == pytest.approx(sent - used, abs=0.5 * (1 - drawn.kept))
    assert max(0.5, used / sent) < drawn.kept < 1
    assert 2 * ones < size
    counts = [drawn.draw(KEY, step, size, [0]) for step in range(400)]
    for mean, numbers in ((used, [one.used.sum() for one in counts]), (sent, [one.sent.sum() for one in counts])):
        # Four standard errors, and half a record of rounding.
        assert np.mean(numbers) == pytest.approx(mean, abs=4 * np.std(numbers) / 20 + 0.5)


@pytest.mark.parametrize("kept", [0.55, 0.7, 0.9, 0.99])
def test_the_probability_that_a_bit_is_kept_may_be_named(kept: float) -> None:
    drawn, size = SecretBatch.for_sizes(16, 40, kept=kept)

    assert drawn.kept == pytest.approx(kept, rel=1e-12)
    assert drawn.epsilon == pytest.approx(math.log(kept / (1 - kept)))
    # Each of the two numbers is rounded by half a record at most.
    assert size == pytest.approx(16 / kept + 24 / (1 - kept), abs=1)
    assert drawn.expected_used(size) == pytest.approx(16, abs=kept / 2 + 1e-9)
    assert drawn.expected_sent(size) == pytest.approx(40, abs=0.5 + 1e-9)


@pytest.mark.parametrize(
    ("used", "sent", "kept", "said"),
    [
        (0, 5, None, "expected 1 <= used < sent"),
        (5, 5, None, "got 5 and 5"),
        (16, 40, 0.5, r"above max\(½, k / L\) = 0.5"),
        (16, 20, 0.8, r"above max\(½, k / L\) = 0.8"),
        (16, 40, 1.0, "below 1, got 1.0"),
        (7, 8, None, r"name p \(kept\)"),
        (1, 8, None, r"name p \(kept\)"),
    ],
)
def test_sizes_that_no_draw_has_are_refused(used: int, sent: int, kept: float | None, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        SecretBatch.for_sizes(used, sent, kept=kept)


def test_a_known_support_tells_signs_as_often_as_least_squares_gets_them_right() -> None:
    generator = np.random.default_rng(0)
    used, columns, right = 60, 20, []
    for _ in range(300):
        rows, residues = generator.normal(size=(used, columns)), generator.choice([-0.5, 0.5], used)
        solved = np.linalg.lstsq(rows.T, rows.T @ residues, rcond=None)[0]
        right.append((np.sign(solved) == np.sign(residues)).mean())

    # Two percent: the formula is of many records, and four standard errors of 18 000 signs are one.
    assert np.mean(right) == pytest.approx(sign_success(columns, used), abs=0.02)
    assert sign_success(columns, columns) == 1.0
    for success in (0.6, 0.55):
        assert sign_success(columns, unknowns_for_success(success, columns)) == pytest.approx(success)
        given = {"size": 900, "used": used, "sent": 3 * used, "columns": columns}
        assert run_success(epochs_for_success(success, **given), **given) == pytest.approx(success)
