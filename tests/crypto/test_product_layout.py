from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.crypto.product_layout import ROOM, ProductLayout
from splitvfl.errors import ArgumentError, CryptoError

Layouts = Callable[..., ProductLayout]

limits = st.floats(1e-3, 1e3)
layouts = st.builds(
    ProductLayout,
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


@given(layouts)
def test_a_slot_holds_the_largest_sum_with_two_bits_to_spare(layout: ProductLayout) -> None:
    scale = 2 ** (layout.value_bits + layout.weight_bits)
    largest = layout.rows * Fraction(layout.value_limit) * Fraction(layout.weight_limit) * scale
    largest += Fraction(layout.plain_limit) * scale

    # The bound of the design, log2 of the largest size + 2; the widest of the slots that rounding up can ask for.
    assert 2 ** (layout.slot_bits - 2) >= largest
    assert layout.rows * layout.value_size * layout.weight_size + layout.plain_size <= 2 ** (layout.slot_bits - 2)


@given(layouts)
def test_all_sums_fit_the_key_with_their_masks(layout: ProductLayout) -> None:
    assert sum(layout.counts) == layout.outputs
    assert len(layout.counts) == layout.replies
    assert max(layout.counts) == layout.counts[0] == layout.slots or layout.replies > 1
    assert max(layout.counts) - min(layout.counts) <= 1
    assert max(layout.counts) <= layout.slots
    least_modulus = 2 ** (layout.key_bits - 1)
    for count, bits in zip(layout.counts, layout.opened_bits, strict=True):
        # The largest packed sum, of either sign, with the smallest and the largest mask: it stays within [0, n).
        packed = sum(layout.largest_sum << (place * layout.slot_bits) for place in range(count))
        assert packed < 2**bits
        assert packed < least_modulus - (least_modulus - 2**bits - 1)
        # The numbers that are left out at both edges, of all: the distance from uniform.
        assert Fraction(2 * 2**bits, least_modulus) <= Fraction(1, 2**41)
        assert bits <= 8 * layout.opened_bytes < 8 + max(layout.opened_bits)


@given(layouts)
def test_no_fewer_replies_would_do(layout: ProductLayout) -> None:
    if layout.packed and layout.replies > 1:
        fuller = math.ceil(layout.outputs / (layout.replies - 1))
        assert fuller * layout.slot_bits > layout.key_bits - ROOM
    if not layout.packed:
        assert layout.replies == layout.outputs


@given(layouts, st.randoms(use_true_random=False))
def test_the_error_of_a_sum_is_within_its_bound(layout: ProductLayout, random: object) -> None:
    rows = min(layout.rows, 5)
    values = [random.uniform(-layout.value_limit, layout.value_limit) for _ in range(rows)]  # type: ignore[attr-defined]
    weights = [random.uniform(-layout.weight_limit, layout.weight_limit) for _ in range(rows)]  # type: ignore[attr-defined]
    coded = layout.encode_values(torch.tensor(values, dtype=torch.float64)).tolist()
    plain = layout.encode_weights(torch.tensor(weights, dtype=torch.float64)).tolist()

    sums = sum(a * b for a, b in zip(coded, plain, strict=True))
    exact = sum(Fraction(a) * Fraction(b) for a, b in zip(values, weights, strict=True))
    assert abs(Fraction(sums, 2**layout.sum_bits) - exact) <= Fraction(layout.error)
    # Decoding rounds to the nearest float64.
    assert layout.decode_sums([sums]).item() == pytest.approx(
        float(exact), abs=layout.error + 1e-12 * abs(float(exact))
    )


def test_the_agreed_sizes_of_the_readme_example() -> None:
    layout = ProductLayout(key_bits=2048, rows=32, outputs=64, value_limit=1.0, weight_limit=8.0, value_bits=27)

    # 5 + 0 + 3 + 27 + 26 = 61, and 2.
    assert layout.slot_bits == 63
    # 31 of 63 bits leave 43 of 2048 free, and 32 do not.
    assert layout.counts == (22, 21, 21)


def test_a_sum_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ArgumentError) as caught:
        ProductLayout(
            key_bits=128, rows=1024, outputs=1, value_limit=100.0, weight_limit=1e9, value_bits=40, weight_bits=40
        )

    # 10 + 6.6 + 29.9 + 80 = 126.5, and 2.
    assert "a sum of 1024 products up to 1e+09 x 100 with 80 fraction bits takes 129 bits" in str(caught.value)
    assert "a key of 128 bits holds 85 beside its mask" in str(caught.value)


def test_a_mask_takes_43_bits_of_a_key() -> None:
    settings: dict[str, Any] = {"rows": 64, "outputs": 1, "value_limit": 2.0, "weight_limit": 4.0, "value_bits": 40,
                                "weight_bits": 36}  # fmt: skip
    assert ProductLayout(key_bits=130, **settings).slot_bits == 87

    with pytest.raises(ArgumentError, match="a key of 129 bits holds 86 beside its mask"):
        ProductLayout(key_bits=129, **settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rows", 0), ("outputs", 0), ("outputs", 1 << 21), ("key_bits", 32), ("value_bits", -1), ("weight_bits", 61),
     ("value_limit", 0.0), ("value_limit", math.nan), ("weight_limit", math.inf), ("weight_limit", -1.0),
     ("plain_limit", -1.0), ("plain_limit", math.nan)],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused(layout: Layouts, name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=f"expected {name} .*got {value!r}"):
        layout(**{name: value})


def test_values_over_the_agreed_limits_are_refused(layout: Layouts) -> None:
    with pytest.raises(CryptoError, match=r"size up to 2, the agreed limit, got 2\.5 at place 0"):
        layout().encode_values(torch.tensor([2.5]))
    with pytest.raises(CryptoError, match="size up to 4, the agreed limit"):
        layout().encode_weights(torch.tensor([[4.5]]))
    assert layout().encode_values(torch.tensor([-2.0])).item() == -layout().value_size
