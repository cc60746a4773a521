from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.crypto.budget import ROOM, Budget
from splitvfl.errors import ArgumentError, CryptoError

Budgets = Callable[..., Budget]

limits = st.floats(1e-3, 1e3)
budgets = st.builds(
    Budget,
    key_bits=st.sampled_from([512, 2048, 3072]),
    rows=st.integers(1, 4096),
    outputs=st.integers(1, 300),
    value_limit=limits,
    weight_limit=limits,
    value_bits=st.integers(0, 40),
    weight_bits=st.integers(0, 40),
    plain_limit=st.floats(0, 1e6),
    packed=st.booleans(),
)


@given(budgets)
def test_a_slot_holds_the_largest_sum_with_two_bits_to_spare(budget: Budget) -> None:
    scale = 2 ** (budget.value_bits + budget.weight_bits)
    largest = budget.rows * Fraction(budget.value_limit) * Fraction(budget.weight_limit) * scale
    largest += Fraction(budget.plain_limit) * scale

    # The bound of the design, log2 of the largest size + 2; the widest of the slots that rounding up can ask for.
    assert 2 ** (budget.slot_bits - 2) >= largest
    assert budget.rows * budget.value_size * budget.weight_size + budget.plain_size <= 2 ** (budget.slot_bits - 2)


@given(budgets)
def test_all_sums_fit_the_key_with_their_masks(budget: Budget) -> None:
    assert sum(budget.counts) == budget.outputs
    assert len(budget.counts) == budget.replies
    assert max(budget.counts) == budget.counts[0] == budget.slots or budget.replies > 1
    assert max(budget.counts) - min(budget.counts) <= 1
    assert max(budget.counts) <= budget.slots
    least_modulus = 2 ** (budget.key_bits - 1)
    for count, bits in zip(budget.counts, budget.opened_bits, strict=True):
        # The largest packed sum, of either sign, with the smallest and the largest mask: it stays within [0, n).
        packed = sum(budget.largest_sum << (place * budget.slot_bits) for place in range(count))
        assert packed < 2**bits
        assert packed < least_modulus - (least_modulus - 2**bits - 1)
        # The numbers that are left out at both edges, of all: the distance from uniform.
        assert Fraction(2 * 2**bits, least_modulus) <= Fraction(1, 2**41)
        assert bits <= 8 * budget.opened_bytes < 8 + max(budget.opened_bits)


@given(budgets)
def test_no_fewer_replies_would_do(budget: Budget) -> None:
    if budget.packed and budget.replies > 1:
        fuller = math.ceil(budget.outputs / (budget.replies - 1))
        assert fuller * budget.slot_bits > budget.key_bits - ROOM
    if not budget.packed:
        assert budget.replies == budget.outputs


@given(budgets, st.randoms(use_true_random=False))
def test_the_error_of_a_sum_is_within_its_bound(budget: Budget, random: object) -> None:
    rows = min(budget.rows, 5)
    values = [random.uniform(-budget.value_limit, budget.value_limit) for _ in range(rows)]  # type: ignore[attr-defined]
    weights = [random.uniform(-budget.weight_limit, budget.weight_limit) for _ in range(rows)]  # type: ignore[attr-defined]
    coded = budget.encode_values(torch.tensor(values, dtype=torch.float64)).tolist()
    plain = budget.encode_weights(torch.tensor(weights, dtype=torch.float64)).tolist()

    sums = sum(a * b for a, b in zip(coded, plain, strict=True))
    exact = sum(Fraction(a) * Fraction(b) for a, b in zip(values, weights, strict=True))
    assert abs(Fraction(sums, 2**budget.sum_bits) - exact) <= Fraction(budget.error)
    # Decoding rounds to the nearest float64.
    assert budget.decode_sums([sums]).item() == pytest.approx(
        float(exact), abs=budget.error + 1e-12 * abs(float(exact))
    )


def test_the_agreed_sizes_of_the_readme_example() -> None:
    budget = Budget(key_bits=2048, rows=32, outputs=64, value_limit=1.0, weight_limit=8.0, value_bits=27)

    # 5 + 0 + 3 + 27 + 26 = 61, and 2.
    assert budget.slot_bits == 63
    # 31 of 63 bits leave 43 of 2048 free, and 32 do not.
    assert budget.counts == (22, 21, 21)


def test_a_sum_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ArgumentError) as caught:
        Budget(key_bits=128, rows=1024, outputs=1, value_limit=100.0, weight_limit=1e9, value_bits=40, weight_bits=40)

    # 10 + 6.6 + 29.9 + 80 = 126.5, and 2.
    assert "a sum of 1024 products up to 1e+09 x 100 with 80 fraction bits takes 129 bits" in str(caught.value)
    assert "a key of 128 bits holds 85 beside its mask" in str(caught.value)


def test_a_mask_takes_43_bits_of_a_key() -> None:
    settings: dict[str, Any] = {"rows": 64, "outputs": 1, "value_limit": 2.0, "weight_limit": 4.0, "value_bits": 40,
                                "weight_bits": 36}  # fmt: skip
    assert Budget(key_bits=130, **settings).slot_bits == 87

    with pytest.raises(ArgumentError, match="a key of 129 bits holds 86 beside its mask"):
        Budget(key_bits=129, **settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rows", 0), ("outputs", 0), ("outputs", 1 << 21), ("key_bits", 32), ("value_bits", -1), ("weight_bits", 61),
     ("value_limit", 0.0), ("value_limit", math.nan), ("weight_limit", math.inf), ("weight_limit", -1.0),
     ("plain_limit", -1.0), ("plain_limit", math.nan)],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused(budget: Budgets, name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=f"expected {name} .*got {value!r}"):
        budget(**{name: value})


def test_values_over_the_agreed_limits_are_refused(budget: Budgets) -> None:
    with pytest.raises(CryptoError, match=r"size up to 2, the agreed limit, got 2\.5 at place 0"):
        budget().encode_values(torch.tensor([2.5]))
    with pytest.raises(CryptoError, match="size up to 4, the agreed limit"):
        budget().encode_weights(torch.tensor([[4.5]]))
    assert budget().encode_values(torch.tensor([-2.0])).item() == -budget().value_size
